//! Two solved halves of a tridiagonal problem become one: with D and Q of the halves and z = Qᵀu it is
//! Q·(D + ρ·z·zᵀ)·Qᵀ. Its eigenvalues are the roots of the secular equation, its vectors Q·(D − λ)⁻¹·z.
//!
//! Where z is nearly zero, or two numbers of D are nearly equal, D keeps an eigenvalue and Q its vector: all that is
//! *kept* this way is left out of the equation. Columns of Q have zeros in the rows of the other half, so the product is
//! one of the first half's rows with the columns that are not zero there, and one of the second's.

use super::super::phases::Phases;
use super::super::product::{Span2, multiply};
use super::super::real::vectorized;
use super::divide::{ALONE, Block, STEP};
use super::secular::Secular;
use std::array::from_fn;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// What may be left out of T, relative to its norm: half a unit of single precision, times this.
const DEFLATION: f64 = 4.0 * 0.5 * f32::EPSILON as f64;
/// Roots of a large block that are worked on together, with their vectors and products.
const ROOTS: usize = 96;

/// Where a column of Q is not zero.
const FIRST: u32 = 0;
const BOTH: u32 = 1;
const SECOND: u32 = 2;

/// What a merge finds out before it solves the equation.
struct Split {
    /// Columns that the equation is about, and of these those that are zero in the second half, and in none.
    roots: usize,
    first: usize,
    both: usize,
    /// ρ·zᵀz.
    rho: f64,
    /// A power of two that takes the numbers of the equation to about 1.
    scale: f64,
}

impl Split {
    /// Whether most columns of `n` are kept: they stay where they are then, and the others take their old places.
    fn stays(&self, n: usize) -> bool {
        self.roots <= n / 2
    }

    /// Numbers of Q that the products read, for the halves of a block of side `n`.
    fn packed(&self, n: usize, middle: usize) -> [usize; 2] {
        [middle * (self.first + self.both), (n - middle) * (self.roots - self.first)]
    }
}

/// Merges the columns up to `middle` with the others; false if a root was not found. A large block is shared among
/// `phases`' threads.
pub(super) fn merge(block: &mut Block, middle: usize, phases: &Phases) -> bool {
    let split = deflate(block, middle);
    let (n, k) = (block.side, split.roots);
    if k == 0 {
        // All columns stay where they are, in the order that was found.
        let [order, merged, ..] = &mut block.orders;
        order[..n].copy_from_slice(&merged[..n]);
        return true;
    }
    pack(block, middle, &split);
    let solved = solve(block, middle, &split, phases);
    unpack(block, middle, &split);
    solved
}

/// Sorts the columns into those of the equation, in the order of their poles, and those that are kept. `orders[2]` lists
/// the first from its start, the others from its end.
fn deflate(block: &mut Block, middle: usize) -> Split {
    let (n, stride, first) = (block.side, block.stride, block.first);
    let coupling = block.below[middle - 1];
    let [z, ..] = &mut block.lists;
    let d = &mut block.diagonal[..n];
    let z = &mut z[..n];
    for (k, (z, column)) in z.iter_mut().zip(block.basis.chunks_exact(stride)).enumerate() {
        *z = f64::from(column[first + if k < middle { middle - 1 } else { middle }]);
        *z = if k >= middle && coupling < 0.0 { -*z } else { *z };
    }
    let square: f64 = z.iter().map(|z| z * z).sum();
    let rho = coupling.abs() * square;
    let norm = square.sqrt();
    z.iter_mut().for_each(|z| *z /= norm);
    let largest = d.iter().fold(rho, |largest, d| largest.max(d.abs()));
    let least = DEFLATION * largest;

    let [order, merged, listed, kind] = &mut block.orders;
    merge_orders(d, &order[..middle], &order[middle..n], middle, &mut merged[..n]);
    for (k, kind) in kind[..n].iter_mut().enumerate() {
        *kind = if k < middle { FIRST } else { SECOND };
    }
    let (mut roots, mut kept) = (0, n);
    let mut before: Option<usize> = None;
    for place in &merged[..n] {
        let own = *place as usize;
        let counts = rho * z[own].abs() > least;
        if !counts {
            kept -= 1;
            listed[kept] = own as u32;
            continue;
        }
        let Some(other) = before.replace(own) else { continue };
        let size = (z[own] * z[own] + z[other] * z[other]).sqrt();
        let (c, s) = (z[own] / size, z[other] / size);
        let gap = d[own] - d[other];
        if (gap * c * s).abs() > least {
            listed[roots] = other as u32;
            roots += 1;
            continue;
        }
        // A rotation of the two takes all of z to one of them.
        (z[own], z[other]) = (size, 0.0);
        if kind[own] != kind[other] {
            (kind[own], kind[other]) = (BOTH, BOTH);
        }
        let rows = match kind[own] {
            FIRST => 0..middle,
            SECOND => middle..n,
            _ => 0..n,
        };
        rotate(block.basis, stride, first + rows.start..first + rows.end, other, own, c as f32, s as f32);
        (d[other], d[own]) = (d[other] + gap * s * s, d[own] - gap * s * s);
        kept -= 1;
        listed[kept] = other as u32;
    }
    if let Some(last) = before {
        listed[roots] = last as u32;
        roots += 1;
    }
    let count = |which: u32| listed[..roots].iter().filter(|column| kind[**column as usize] == which).count();
    Split { roots, first: count(FIRST), both: count(BOTH), rho, scale: scale(largest) }
}

/// 2⁻ᵉ for a number of about 2ᵉ.
fn scale(largest: f64) -> f64 {
    let exponent = (largest.to_bits() >> 52 & 0x7ff).clamp(1, 2045);
    f64::from_bits((2046 - exponent) << 52)
}

/// The places of two rising lists as one.
fn merge_orders(d: &[f64], one: &[u32], two: &[u32], offset: usize, into: &mut [u32]) {
    let (mut i, mut j) = (0, 0);
    for place in into {
        let takes_one = match (one.get(i), two.get(j)) {
            (Some(one), Some(two)) => d[*one as usize] <= d[*two as usize + offset],
            (one, _) => one.is_some(),
        };
        if takes_one {
            *place = one[i];
            i += 1;
        } else {
            *place = two[j] + offset as u32;
            j += 1;
        }
    }
}

/// Columns `one` and `two` become c·one − s·two and c·two + s·one.
fn rotate(basis: &mut [f32], stride: usize, rows: Range<usize>, one: usize, two: usize, c: f32, s: f32) {
    let (low, high) = (one.min(two), one.max(two));
    let (before, from) = basis.split_at_mut(high * stride);
    let (x, y) = (&mut before[low * stride..][rows.clone()], &mut from[rows]);
    let s = if one < two { s } else { -s };
    for (x, y) in x.iter_mut().zip(y) {
        (*x, *y) = (c * *x - s * *y, c * *y + s * *x);
    }
}

/// Fills in the equation, in the order of its poles and in that of the rows of its vectors, and copies what is read of Q
/// or has to move.
fn pack(block: &mut Block, middle: usize, split: &Split) {
    let (n, stride, top, k) = (block.side, block.stride, block.first, split.roots);
    let [z, poles, weights, row_poles, row_z, ..] = &mut block.lists;
    let [_, _, listed, kind] = &block.orders;
    let row_z: &mut [f32] = bytemuck::cast_slice_mut(row_z);
    let sizes = split.packed(n, middle);
    let (first, second) = block.packed.split_at_mut(sizes[0]);
    let (second, kept) = second.split_at_mut(sizes[1]);
    // The next row of each kind.
    let mut next = [0, split.first, split.first + split.both];
    for (place, column) in listed[..k].iter().enumerate() {
        let (column, kind) = (*column as usize, kind[*column as usize]);
        let row = next[kind as usize];
        next[kind as usize] += 1;
        poles[place] = split.scale * block.diagonal[column];
        weights[place] = split.scale * split.rho * z[column] * z[column];
        row_poles[row] = poles[place];
        row_z[row] = z[column] as f32;
        let numbers = &block.basis[column * stride + top..][..n];
        if kind != SECOND {
            first[row * middle..][..middle].copy_from_slice(&numbers[..middle]);
        }
        if kind != FIRST {
            second[(row - split.first) * (n - middle)..][..n - middle].copy_from_slice(&numbers[middle..]);
        }
    }
    // Rows beyond the last are zero.
    row_poles[k..k.next_multiple_of(STEP)].fill(4.0);
    row_z[k..k.next_multiple_of(STEP)].fill(0.0);
    let [_, _, listed, _] = &mut block.orders;
    let d = &block.diagonal;
    listed[k..n].sort_unstable_by(|i, j| d[*i as usize].total_cmp(&d[*j as usize]).then(i.cmp(j)));
    if split.stays(n) {
        return;
    }
    for ((column, z), kept) in listed[k..n].iter().zip(&mut z[k..n]).zip(kept.chunks_exact_mut(n)) {
        *z = d[*column as usize];
        kept.copy_from_slice(&block.basis[*column as usize * stride + top..][..n]);
    }
}

/// Puts the roots and the kept columns where they belong, and finds the order of all.
fn unpack(block: &mut Block, middle: usize, split: &Split) {
    let (n, stride, top, k) = (block.side, block.stride, block.first, split.roots);
    let [z, _, _, _, _, origins, distances] = &block.lists;
    let [order, merged, listed, _] = &mut block.orders;
    let root = |place: usize| (origins[place] + distances[place]) / split.scale;
    let rest = &block.packed[split.packed(n, middle).iter().sum()..];
    if split.stays(n) {
        for (place, (column, vector)) in listed[..k].iter().zip(rest.chunks_exact(n)).enumerate() {
            block.diagonal[*column as usize] = root(place);
            block.basis[*column as usize * stride + top..][..n].copy_from_slice(vector);
        }
        return merge_orders(block.diagonal, &listed[..k], &listed[k..n], 0, &mut order[..n]);
    }
    (0..k).for_each(|place| block.diagonal[place] = root(place));
    block.diagonal[k..n].copy_from_slice(&z[k..n]);
    for (column, kept) in block.basis.chunks_exact_mut(stride).skip(k).zip(rest.chunks_exact(n)) {
        column[top..][..n].copy_from_slice(kept);
    }
    for list in [&mut *merged, &mut *listed] {
        list[..n].iter_mut().enumerate().for_each(|(place, number)| *number = place as u32);
    }
    merge_orders(block.diagonal, &merged[..k], &listed[..n - k], k, &mut order[..n]);
}

/// What the threads of a merge share: roots, vectors and products of a range of columns are of one thread.
struct Columns<'a> {
    secular: Secular<'a>,
    /// The poles and z in the order of the vectors' rows, padded.
    poles: &'a [f64],
    z: &'a [f32],
    origins: *mut f64,
    distances: *mut f64,
    vectors: *mut f32,
    /// Numbers of a vector, padded.
    stride: usize,
    /// Q in the rows of the first half and those of the second, and their products.
    left: [Span2<f32>; 2],
    target: [Span2<f32>; 2],
    /// The rows of the vectors that each is multiplied with.
    rows: [usize; 2],
}

// SAFETY: a range of columns is of one thread.
unsafe impl Sync for Columns<'_> {}

fn solve(block: &mut Block, middle: usize, split: &Split, phases: &Phases) -> bool {
    let (n, k) = (block.side, split.roots);
    let [_, poles, weights, row_poles, row_z, origins, distances] = &mut block.lists;
    let stride = k.next_multiple_of(STEP);
    let sizes = split.packed(n, middle);
    let packed = block.packed.as_mut_ptr();
    let (target, target_stride) = if split.stays(n) {
        (packed.wrapping_add(sizes.iter().sum()), n)
    } else {
        (block.basis[block.first..].as_mut_ptr(), block.stride)
    };
    let [first, second] = [split.first + split.both, k - split.first];
    let part = |data: *mut f32, rows: usize, cols: usize, col: usize| Span2 { data, rows, cols, row: 1, col };
    let columns = Columns {
        secular: Secular { poles: &poles[..k], weights: &weights[..k], total: split.scale * split.rho },
        poles: &row_poles[..stride],
        z: &bytemuck::cast_slice(row_z)[..stride],
        origins: origins.as_mut_ptr(),
        distances: distances.as_mut_ptr(),
        vectors: block.vectors[..k * stride].as_mut_ptr(),
        stride,
        left: [
            part(packed, middle, first, middle),
            part(packed.wrapping_add(sizes[0]), n - middle, second, n - middle),
        ],
        target: [
            part(target, middle, k, target_stride),
            part(target.wrapping_add(middle), n - middle, k, target_stride),
        ],
        rows: [0, split.first],
    };
    let width = if n <= ALONE { k } else { ROOTS };
    let failed = AtomicBool::new(false);
    let task = |number: usize| {
        let from = number * width;
        // SAFETY: ranges of columns do not overlap.
        if !unsafe { columns.solve(from..(from + width).min(k)) } {
            failed.store(true, Ordering::Relaxed);
        }
    };
    phases.share(k.div_ceil(width), &task);
    !failed.into_inner()
}

impl Columns<'_> {
    /// # Safety
    /// No other thread has one of these columns.
    unsafe fn solve(&self, range: Range<usize>) -> bool {
        let (from, count, stride) = (range.start, range.len(), self.stride);
        // SAFETY: the caller's contract.
        let (origins, distances, vectors) = unsafe {
            (
                std::slice::from_raw_parts_mut(self.origins.add(from), count),
                std::slice::from_raw_parts_mut(self.distances.add(from), count),
                std::slice::from_raw_parts_mut(self.vectors.add(from * stride), count * stride),
            )
        };
        let solved = vectorized(
            #[inline(always)]
            || {
                let solved = self.secular.solve(from, origins, distances);
                for ((vector, origin), distance) in
                    vectors.chunks_exact_mut(stride).zip(&*origins).zip(&*distances)
                {
                    fill(vector, self.poles, self.z, *origin, *distance);
                }
                solved
            },
        );
        let vectors = Span2 { data: vectors.as_mut_ptr(), rows: stride, cols: count, row: 1, col: stride };
        for half in 0..2 {
            let (left, target) =
                (self.left[half], self.target[half].part(0, from, self.target[half].rows, count));
            let right = vectors.part(self.rows[half], 0, left.cols, count);
            // SAFETY: the caller's contract; three different matrices.
            unsafe { multiply(target, false, left, right, 1.0) };
        }
        solved
    }
}

/// The vector (D − λ)⁻¹·z, of length 1.
#[inline(always)]
fn fill(vector: &mut [f32], poles: &[f64], z: &[f32], origin: f64, distance: f64) {
    let mut sums = [0.0; STEP];
    let (vector, poles, z) =
        (vector.as_chunks_mut::<STEP>().0, poles.as_chunks::<STEP>().0, z.as_chunks::<STEP>().0);
    for (vector, (poles, z)) in vector.iter_mut().zip(poles.iter().zip(z)) {
        let below: [f32; STEP] = from_fn(|k| ((poles[k] - origin) - distance) as f32);
        let x: [f32; STEP] = from_fn(|k| z[k] / below[k]);
        sums = from_fn(|k| sums[k] + f64::from(x[k]) * f64::from(x[k]));
        *vector = x;
    }
    let factor = (1.0 / sums.iter().sum::<f64>().sqrt()) as f32;
    vector.iter_mut().for_each(|vector| *vector = vector.map(|x| factor * x));
}
