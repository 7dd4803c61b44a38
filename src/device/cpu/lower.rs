//! Lower triangles of small symmetric products, in tiles that stay in registers: a call of faer's product computes a
//! rectangle, and several of them for a triangle cost more to begin than they save.

// Iterators over arrays of vectors are not always inlined, and instructions beyond the baseline must be.
#![allow(clippy::needless_range_loop)]

use super::lanes::{LANES, Lanes};
use super::product::Span2;
use super::real::{Real, fused, prefetch, vectorized};

/// Largest side, and most terms of a sum.
pub(super) const SIDE: usize = 128;
/// Columns of a tile.
const COLUMNS: usize = 6;

/// Whether [`multiply`] takes such operands. Where its vectors are not written out by hand, faer's products are better.
pub(super) fn takes<T: Real>(target: &Span2<T>, left: &Span2<T>) -> bool {
    let small = target.rows <= SIDE && left.cols <= SIDE;
    let wide = cfg!(target_arch = "x86_64") && fused();
    small && wide && target.row == 1 && (left.row == 1 || left.col == 1)
}

/// The lower triangle of `target` = `keep`·`target` + `alpha`·`left`·`right`, for what [`takes`] is true of; the strict upper
/// triangle stays as it is. With `keep` = 0 nothing of the lower one is read.
///
/// # Safety
/// All three are valid memory; `target` overlaps neither operand.
pub(super) unsafe fn multiply<T: Real>(target: Span2<T>, keep: T, left: Span2<T>, right: Span2<T>, alpha: T) {
    let product = Product { target, keep, left, right, alpha };
    // SAFETY: the caller's contract; the wide instructions are there. A tile has twelve vectors of 32 bytes.
    unsafe {
        if size_of::<T>() == 4 {
            vectorized(
                #[inline(always)]
                || product.run::<T::Lanes, 2>(),
            );
        } else {
            vectorized(
                #[inline(always)]
                || product.run::<T::Lanes, 1>(),
            );
        }
    }
}

struct Product<T> {
    target: Span2<T>,
    keep: T,
    left: Span2<T>,
    right: Span2<T>,
    alpha: T,
}

/// Groups of rows of the left operand, column by column.
type Panel<T, const R: usize> = [[[T; LANES]; R]; SIDE];

impl<T: Real> Product<T> {
    /// In tiles of `R` groups of rows.
    ///
    /// # Safety
    /// As [`multiply`]; the CPU has the instructions of `L`.
    #[inline(always)]
    unsafe fn run<L: Lanes<T>, const R: usize>(&self) {
        let n = self.target.rows;
        let mut panel: Panel<T, R> = [[[T::default(); LANES]; R]; SIDE];
        for i in (0..n).step_by(R * LANES) {
            let whole = i + R * LANES <= n;
            // SAFETY: the caller's contract.
            let (first, step) = unsafe {
                if whole && self.left.row == 1 {
                    (self.left.data.add(i).cast_const(), self.left.col)
                } else {
                    self.pack::<L, R>(&mut panel, i);
                    (panel.as_ptr().cast::<T>(), R * LANES)
                }
            };
            for j in (0..n.min(i + R * LANES)).step_by(COLUMNS) {
                // SAFETY: the same.
                unsafe { self.tile::<L, R>(first, step, i, j) };
            }
        }
    }

    /// Rows `i` to `i` + R·[`LANES`] of the left operand, zeros where it has none.
    ///
    /// # Safety
    /// As [`Product::run`].
    #[inline(always)]
    unsafe fn pack<L: Lanes<T>, const R: usize>(&self, panel: &mut Panel<T, R>, i: usize) {
        let (left, terms) = (self.left, self.left.cols);
        for r in 0..R {
            let row = i + r * LANES;
            let rows = left.rows.saturating_sub(row).min(LANES);
            let mut k = 0;
            // SAFETY: the caller's contract.
            unsafe {
                while left.col == 1 && rows == LANES && k + LANES <= terms {
                    let mut part = [L::splat(T::default()); LANES];
                    for t in 0..LANES {
                        part[t] = L::load(&*left.data.add((row + t) * left.row + k).cast::<[T; LANES]>());
                    }
                    let part = L::transpose(part);
                    for t in 0..LANES {
                        part[t].store(&mut panel[k + t][r]);
                    }
                    k += LANES;
                }
                for k in k..terms {
                    panel[k][r] = [T::default(); LANES];
                    for t in 0..rows {
                        panel[k][r][t] = left.data.add((row + t) * left.row + k * left.col).read();
                    }
                }
            }
        }
    }

    /// The tile at row `i` and column `j`; the rows of the left operand begin at `first`, its columns are `step` apart.
    ///
    /// # Safety
    /// As [`Product::run`].
    #[inline(always)]
    unsafe fn tile<L: Lanes<T>, const R: usize>(&self, first: *const T, step: usize, i: usize, j: usize) {
        let (right, target) = (self.right, self.target);
        let n = target.rows;
        let replaces = self.keep == T::default();
        // SAFETY: the caller's contract.
        unsafe {
            if !replaces {
                // What is added to comes from memory while the sums are made.
                for c in 0..COLUMNS.min(n - j) {
                    prefetch(target.data.wrapping_add(i + (j + c) * target.col));
                }
            }
            let zero = L::splat(T::default());
            let (mut sums, mut rows) = ([[zero; R]; COLUMNS], [zero; R]);
            // Columns that the product does not have are computed like its last, and not written.
            let mut columns = [right.data.cast_const(); COLUMNS];
            for c in 0..COLUMNS {
                columns[c] = right.data.add((j + c).min(n - 1) * right.col);
            }
            let mut left = first;
            for k in 0..self.left.cols {
                for r in 0..R {
                    rows[r] = L::load(&*left.add(r * LANES).cast::<[T; LANES]>());
                }
                for c in 0..COLUMNS {
                    let factor = L::splat(columns[c].add(k * right.row).read());
                    for r in 0..R {
                        sums[c][r] = rows[r].times_plus(factor, sums[c][r]);
                    }
                }
                left = left.wrapping_add(step);
            }
            let (alpha, keep) = (L::splat(self.alpha), L::splat(self.keep));
            for c in 0..COLUMNS.min(n - j) {
                for r in 0..R {
                    let row = i + r * LANES;
                    // Rows above the diagonal.
                    let above = (j + c).saturating_sub(row);
                    if above >= LANES {
                        continue;
                    }
                    let place = target.data.wrapping_add(row + (j + c) * target.col);
                    if row + LANES <= n {
                        let place = &mut *place.cast::<[T; LANES]>();
                        let before = if replaces { zero } else { L::load(place).times(keep) };
                        let after = sums[c][r].times_plus(alpha, before);
                        let after = if above > 0 { L::load(place).then(above, after) } else { after };
                        after.store(place);
                        continue;
                    }
                    let mut numbers = [T::default(); LANES];
                    sums[c][r].times(alpha).store(&mut numbers);
                    for t in above..n.saturating_sub(row) {
                        let before = if replaces { T::default() } else { self.keep * place.add(t).read() };
                        place.add(t).write(before + numbers[t]);
                    }
                }
            }
        }
    }
}
