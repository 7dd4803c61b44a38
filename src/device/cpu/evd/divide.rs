//! The eigenvalues and eigenvectors of a symmetric tridiagonal matrix T, by Cuppen's divide and conquer.
//!
//! With e between the halves, T = diag(T₁, T₂) + |e|·u·uᵀ, u = (0, …, 0, 1, ±1, 0, …, 0): T₁ and T₂ are solved first, then
//! merged. All numbers but the eigenvectors are in double precision. What is done in parallel depends on the side alone,
//! so the result does not depend on the number of threads.

use super::super::phases::Phases;
use super::super::real::vectorized;
use super::leaf::{self, Column, LEAF};
use super::merge;
use std::sync::atomic::{AtomicBool, Ordering};

/// Sides of parts are multiples of this, but for the last one's, so that all of a part's lists can be padded to it.
pub(super) const STEP: usize = 8;
/// Parts up to this side are solved by one thread.
pub(super) const ALONE: usize = 256;
/// Lists of a problem in double precision, its matrix included, and lists of places.
pub(super) const LISTS: usize = 9;
pub(super) const ORDERS: usize = 4;

/// Numbers of a list for side `n`.
pub(super) fn padded(n: usize) -> usize {
    n.next_multiple_of(STEP)
}

/// The memory of a problem. Each list has [`padded`] numbers.
pub(super) struct Problem<'a> {
    /// Its side.
    pub side: usize,
    /// The diagonal of T, which becomes the eigenvalues, and what is below it, by column.
    pub diagonal: &'a mut [f64],
    pub below: &'a mut [f64],
    /// The eigenvectors: columns of `side` numbers.
    pub basis: &'a mut [f32],
    /// Room for two matrices of [`padded`] columns of as many numbers.
    pub packed: &'a mut [f32],
    pub vectors: &'a mut [f32],
    /// Room for [`LISTS`] − 2 lists.
    pub lists: &'a mut [f64],
    /// Room for [`ORDERS`] lists.
    pub orders: &'a mut [u32],
}

/// Columns `first` to `first` + `side` of a problem, which are zero outside of the same rows.
pub(super) struct Block<'a> {
    pub first: usize,
    pub side: usize,
    /// Numbers in a column of `basis`.
    pub stride: usize,
    pub diagonal: &'a mut [f64],
    pub below: &'a mut [f64],
    pub basis: &'a mut [f32],
    pub packed: &'a mut [f32],
    pub vectors: &'a mut [f32],
    pub lists: [&'a mut [f64]; LISTS - 2],
    pub orders: [&'a mut [u32]; ORDERS],
}

/// Where the memory of a problem is.
#[derive(Clone, Copy)]
struct Frame {
    side: usize,
    diagonal: *mut f64,
    below: *mut f64,
    basis: *mut f32,
    packed: *mut f32,
    vectors: *mut f32,
    lists: *mut f64,
    orders: *mut u32,
}

// SAFETY: threads work on different blocks.
unsafe impl Sync for Frame {}

impl Frame {
    /// The columns from `first` to `last`, which is a multiple of [`STEP`] or the side.
    ///
    /// # Safety
    /// No other block that lives has one of these columns.
    unsafe fn block<'a>(&self, first: usize, last: usize) -> Block<'a> {
        let (n, side, all) = (self.side, last - first, padded(self.side));
        let own = padded(side);
        // SAFETY: the problem's memory is that large; the rest is the caller's contract.
        unsafe {
            let numbers = |from: *mut f64| std::slice::from_raw_parts_mut(from.add(first), own);
            let places = |from: *mut u32| std::slice::from_raw_parts_mut(from.add(first), own);
            let matrix = |from: *mut f32| std::slice::from_raw_parts_mut(from.add(first * all), own * all);
            Block {
                first,
                side,
                stride: n,
                diagonal: numbers(self.diagonal),
                below: numbers(self.below),
                basis: std::slice::from_raw_parts_mut(self.basis.add(first * n), side * n),
                packed: matrix(self.packed),
                vectors: matrix(self.vectors),
                lists: std::array::from_fn(|list| numbers(self.lists.add(list * all))),
                orders: std::array::from_fn(|list| places(self.orders.add(list * all))),
            }
        }
    }

    /// Solves the columns from `first` to `last` on this thread; false if it did not converge.
    ///
    /// # Safety
    /// As [`Frame::block`].
    unsafe fn solve(&self, first: usize, last: usize) -> bool {
        // SAFETY: the caller's contract; the halves have different columns.
        unsafe {
            if last - first <= LEAF {
                return solve_leaf(&mut self.block(first, last));
            }
            let middle = middle(first, last);
            self.solve(first, middle)
                && self.solve(middle, last)
                && merge::merge(&mut self.block(first, last), middle - first, &Phases::alone())
        }
    }

    /// As [`Frame::solve`]: parts up to [`ALONE`] side by side, then the rest.
    ///
    /// # Safety
    /// As [`Frame::block`].
    unsafe fn solve_shared(&self, phases: &Phases) -> bool {
        let levels = (0..).take_while(|level| self.side >> level > ALONE).count();
        let failed = AtomicBool::new(false);
        let share = |number: usize| {
            let (mut first, mut last) = (0, self.side);
            for level in (0..levels).rev() {
                let middle = middle(first, last);
                (first, last) = if number >> level & 1 == 0 { (first, middle) } else { (middle, last) };
            }
            (first, last)
        };
        // SAFETY: the caller's contract; shares have different columns.
        unsafe {
            phases.share(1 << levels, &|number| {
                let (first, last) = share(number);
                if !self.solve(first, last) {
                    failed.store(true, Ordering::Relaxed);
                }
            });
            !failed.into_inner() && self.merge_shared(0, self.side, levels, phases)
        }
    }

    /// Merges what [`Frame::solve_shared`] has solved.
    ///
    /// # Safety
    /// As [`Frame::block`].
    unsafe fn merge_shared(&self, first: usize, last: usize, levels: usize, phases: &Phases) -> bool {
        let middle = middle(first, last);
        // SAFETY: the caller's contract; the halves have different columns.
        unsafe {
            levels == 0
                || self.merge_shared(first, middle, levels - 1, phases)
                    && self.merge_shared(middle, last, levels - 1, phases)
                    && merge::merge(&mut self.block(first, last), middle - first, phases)
        }
    }
}

/// Where columns `first` to `last` are divided.
fn middle(first: usize, last: usize) -> usize {
    first + (((last - first + STEP) / 2) & !(STEP - 1)).max(STEP)
}

/// Solves T; false if it did not converge or T is not finite. The eigenvalues rise.
pub(super) fn solve(problem: Problem, phases: &Phases) -> bool {
    let n = problem.side;
    let finite = |list: &[f64]| list[..n].iter().all(|x| x.is_finite());
    if !finite(problem.diagonal) || !finite(problem.below) {
        return false;
    }
    divide(problem.diagonal, problem.below, 0, n);
    problem.basis.fill(0.0);
    let (lists, orders) = (&mut *problem.lists, &mut *problem.orders);
    let all = padded(n);
    let frame = Frame {
        side: n,
        diagonal: problem.diagonal[..all].as_mut_ptr(),
        below: problem.below[..all].as_mut_ptr(),
        basis: problem.basis[..n * n].as_mut_ptr(),
        packed: problem.packed[..all * all].as_mut_ptr(),
        vectors: problem.vectors[..all * all].as_mut_ptr(),
        lists: lists[..(LISTS - 2) * all].as_mut_ptr(),
        orders: orders[..ORDERS * all].as_mut_ptr(),
    };
    // SAFETY: all columns, for which the memory is large enough.
    let solved = unsafe { frame.solve_shared(phases) };
    if solved {
        sort(n, problem.diagonal, problem.basis, &orders[..n], &mut lists[..n], &mut problem.packed[..n]);
    }
    solved
}

/// Takes |e| off the diagonal at both sides of every place where T is divided.
fn divide(diagonal: &mut [f64], below: &[f64], first: usize, last: usize) {
    if last - first <= LEAF {
        return;
    }
    let middle = middle(first, last);
    diagonal[middle - 1] -= below[middle - 1].abs();
    diagonal[middle] -= below[middle - 1].abs();
    divide(diagonal, below, first, middle);
    divide(diagonal, below, middle, last);
}

fn solve_leaf(block: &mut Block) -> bool {
    let n = block.side;
    let mut vectors: [Column; LEAF] = [[0.0; LEAF]; LEAF];
    // What couples it to the next block is kept.
    let coupling = block.below[n - 1];
    let solved = vectorized(
        #[inline(always)]
        || leaf::solve(&mut block.diagonal[..n], &mut block.below[..n], &mut vectors),
    );
    block.below[n - 1] = coupling;
    for (column, vector) in block.basis.chunks_exact_mut(block.stride).zip(&vectors) {
        column[block.first..][..n].iter_mut().zip(vector).for_each(|(q, v)| *q = *v as f32);
    }
    let order = &mut block.orders[0][..n];
    order.iter_mut().enumerate().for_each(|(k, place)| *place = k as u32);
    order.sort_unstable_by(|i, j| block.diagonal[*i as usize].total_cmp(&block.diagonal[*j as usize]));
    solved
}

/// Brings eigenvalues and columns into `order`, cycle by cycle.
fn sort(n: usize, values: &mut [f64], basis: &mut [f32], order: &[u32], done: &mut [f64], room: &mut [f32]) {
    done.fill(0.0);
    for start in 0..n {
        if done[start] != 0.0 || order[start] as usize == start {
            continue;
        }
        room.copy_from_slice(&basis[start * n..][..n]);
        let first = values[start];
        let mut to = start;
        loop {
            done[to] = 1.0;
            let from = order[to] as usize;
            if from == start {
                values[to] = first;
                basis[to * n..][..n].copy_from_slice(room);
                break;
            }
            values[to] = values[from];
            basis.copy_within(from * n..(from + 1) * n, to * n);
            to = from;
        }
    }
}
