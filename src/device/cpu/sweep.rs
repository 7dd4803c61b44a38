//! Small symmetric positive definite matrices in the first cache, a few columns at a time: the inverse by sweeps, and
//! whether a matrix is one, by a Cholesky factorization.
//!
//! With the pivot block P, the columns U of its rows and W = U·P⁻¹, a sweep replaces P by −P⁻¹, U by W and every other
//! part A_ij by A_ij − W_i·U_jᵀ. It keeps the matrix symmetric, so that one triangle is enough; when every block was
//! swept, the matrix is −A⁻¹. The pivot blocks are Schur complements, as in a Cholesky factorization.

// Iterators over arrays of vectors are not always inlined, and instructions beyond the baseline must be.
#![allow(clippy::needless_range_loop)]

use super::lanes::{LANES, Lanes};
use super::product::Span2;
use super::real::{Real, fused, vectorized};

/// Largest side.
pub(super) const SIDE: usize = 64;
/// Columns of a tile that is updated in registers.
const COLUMNS: usize = 4;

/// Columns of the matrix, or of a panel of it.
type Columns<S, const N: usize> = [[S; SIDE]; N];

/// The symmetric matrix `a` of at most [`SIDE`] rows, of which the lower triangle counts, becomes its inverse, of which at
/// least the lower triangle is written. False, and `a` is unchanged, if it is not positive definite.
///
/// # Safety
/// Valid and nobody else's; its columns are contiguous.
pub(super) unsafe fn invert<S: Real>(a: Span2<S>) -> bool {
    debug_assert!(a.rows <= SIDE && a.row == 1);
    // A tile has eight vectors of 32 bytes, which leaves registers for the operands.
    let single = size_of::<S>() == 4;
    // SAFETY: the caller's contract; the wide instructions are there.
    unsafe {
        match (fused(), single) {
            (true, true) => vectorized(
                #[inline(always)]
                || invert_as::<S, S::Lanes, 2>(a),
            ),
            (true, false) => vectorized(
                #[inline(always)]
                || invert_as::<S, S::Lanes, 1>(a),
            ),
            (false, _) => invert_as::<S, [S; LANES], 1>(a),
        }
    }
}

/// [`invert`] with tiles of `R` groups of rows.
///
/// # Safety
/// As [`invert`]; the CPU has the instructions of `L`.
#[inline(always)]
unsafe fn invert_as<S: Real, L: Lanes<S>, const R: usize>(a: Span2<S>) -> bool {
    let n = a.rows;
    let mut x: Columns<S, SIDE> = [[S::default(); SIDE]; SIDE];
    let padded = n.next_multiple_of(R * LANES);
    // SAFETY: the caller's contract; what is read and written of the upper triangle is in the matrix.
    unsafe {
        read(&mut x, a, padded);
        for start in (0..padded).step_by(R * LANES) {
            make_whole::<S, L, R>(&mut x, start);
        }
        let mut panels = [[[S::default(); SIDE]; LANES]; 2];
        for k in (0..padded).step_by(LANES) {
            if !sweep::<S, L, R>(&mut x, &mut panels, padded, k) {
                return false;
            }
        }
        let zero = L::splat(S::default());
        for j in 0..n {
            let column = a.data.add(j * a.col);
            for i in (j / LANES * LANES..n).step_by(LANES) {
                if i + LANES <= n {
                    let negative = zero.minus(L::load(group(&mut x[j], i)));
                    negative.store(&mut *column.add(i).cast::<[S; LANES]>());
                } else {
                    (i..n).for_each(|i| column.add(i).write(S::default() - x[j][i]));
                }
            }
        }
    }
    true
}

/// `x` becomes the lower triangle of `a`, and the identity from there to the side `padded`: its rows and columns do not
/// touch the rest.
///
/// # Safety
/// As [`invert`].
#[inline(always)]
unsafe fn read<S: Real>(x: &mut Columns<S, SIDE>, a: Span2<S>, padded: usize) {
    let n = a.rows;
    for j in 0..n {
        // SAFETY: the caller's contract; a group may begin above the diagonal, but in the matrix.
        unsafe {
            let column = a.data.add(j * a.col);
            for i in (j / LANES * LANES..n).step_by(LANES) {
                if i + LANES <= n {
                    *group(&mut x[j], i) = *column.add(i).cast::<[S; LANES]>();
                } else {
                    (i..n).for_each(|i| x[j][i] = column.add(i).read());
                }
            }
        }
    }
    (n..padded).for_each(|j| x[j][j] = S::of(1.0));
}

/// Whether the symmetric matrix of at most [`SIDE`] rows with the lower triangle of `a` and `diagonal` on its diagonal has
/// a Cholesky factorization. Computed is that without roots, L·D·Lᵀ: its pivots are the squares of Cholesky's, and its
/// rounding errors have the same bound.
///
/// # Safety
/// Valid; its columns are contiguous.
pub(super) unsafe fn is_definite<S: Real>(a: Span2<S>, diagonal: S) -> bool {
    debug_assert!(a.rows <= SIDE && a.row == 1);
    // SAFETY: the caller's contract; the wide instructions are there.
    unsafe {
        match (fused(), size_of::<S>() == 4) {
            (true, true) => vectorized(
                #[inline(always)]
                || is_definite_as::<S, S::Lanes, 2>(a, diagonal),
            ),
            (true, false) => vectorized(
                #[inline(always)]
                || is_definite_as::<S, S::Lanes, 1>(a, diagonal),
            ),
            (false, _) => is_definite_as::<S, [S; LANES], 1>(a, diagonal),
        }
    }
}

/// [`is_definite`] with tiles of `R` groups of rows.
///
/// # Safety
/// As [`is_definite`]; the CPU has the instructions of `L`.
#[inline(always)]
unsafe fn is_definite_as<S: Real, L: Lanes<S>, const R: usize>(a: Span2<S>, diagonal: S) -> bool {
    let n = a.rows.next_multiple_of(R * LANES);
    let mut x: Columns<S, SIDE> = [[S::default(); SIDE]; SIDE];
    let [mut u, mut w] = [[[S::default(); SIDE]; LANES]; 2];
    // SAFETY: the caller's contract.
    unsafe {
        read(&mut x, a, n);
        (0..a.rows).for_each(|j| x[j][j] = diagonal);
        for k in (0..n).step_by(LANES) {
            for t in k..k + LANES {
                let pivot = x[t][t];
                if !(pivot > S::default() && pivot.wide().is_finite()) {
                    return false;
                }
                let inverse = L::splat(S::of(-1.0) / pivot);
                for i in (k..n).step_by(LANES) {
                    let column = L::load(group(&mut x[t], i));
                    column.store(group(&mut u[t - k], i));
                    column.times(inverse).store(group(&mut w[t - k], i));
                }
                for s in t + 1..k + LANES {
                    let factor = L::splat(u[t - k][s]);
                    for i in (k..n).step_by(LANES) {
                        let column = L::load(group(&mut x[s], i));
                        let left = L::load(group(&mut w[t - k], i));
                        left.times_plus(factor, column).store(group(&mut x[s], i));
                    }
                }
            }
            for j in (k + LANES..n).step_by(COLUMNS) {
                for i in (j / (R * LANES) * (R * LANES)..n).step_by(R * LANES) {
                    update::<S, L, R>(&mut x, &mut u, &mut w, i, j);
                }
            }
        }
    }
    true
}

/// The block on the diagonal from `start` on, of a tile's rows, gets its upper triangle: such blocks are kept whole.
///
/// # Safety
/// The CPU has the instructions of `L`.
#[inline(always)]
unsafe fn make_whole<S: Real, L: Lanes<S>, const R: usize>(x: &mut Columns<S, SIDE>, start: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        for s in 0..R {
            for r in s..R {
                let (row, col) = (start + r * LANES, start + s * LANES);
                let mut columns = [L::splat(S::default()); LANES];
                for t in 0..LANES {
                    columns[t] = L::load(group(&mut x[col + t], row));
                }
                let rows = L::transpose(columns);
                for t in 0..LANES {
                    let above = if r == s { rows[t].then(t, columns[t]) } else { rows[t] };
                    above.store(group(&mut x[row + t], col));
                }
            }
        }
    }
}

/// Sweeps columns k to k + [`LANES`] of the matrix `x` of side `n`; the panels are used for U and −W.
///
/// # Safety
/// The CPU has the instructions of `L`.
#[inline(always)]
unsafe fn sweep<S: Real, L: Lanes<S>, const R: usize>(
    x: &mut Columns<S, SIDE>,
    [u, w]: &mut [Columns<S, LANES>; 2],
    n: usize,
    k: usize,
) -> bool {
    // SAFETY: the caller's contract.
    unsafe {
        let zero = L::splat(S::default());
        // The rows from here on are in the swept columns, those before in the swept rows.
        let whole = k / (R * LANES) * (R * LANES);
        for i in (0..whole).step_by(LANES) {
            let mut rows = [zero; LANES];
            for j in 0..LANES {
                rows[j] = L::load(group(&mut x[i + j], k));
            }
            let rows = L::transpose(rows);
            for t in 0..LANES {
                rows[t].store(group(&mut u[t], i));
            }
        }
        for t in 0..LANES {
            for i in (whole..n).step_by(LANES) {
                *group(&mut u[t], i) = *group(&mut x[k + t], i);
            }
        }
        let mut pivot = [[S::default(); LANES]; LANES];
        for t in 0..LANES {
            pivot[t] = *group(&mut u[t], k);
        }
        if !sweep_pivot::<S, L>(&mut pivot) {
            return false;
        }
        for i in (0..n).step_by(LANES) {
            let mut own = [zero; LANES];
            for s in 0..LANES {
                own[s] = L::load(group(&mut u[s], i));
            }
            for t in 0..LANES {
                let mut sum = own[0].times(L::splat(pivot[t][0]));
                for s in 1..LANES {
                    sum = own[s].times_plus(L::splat(pivot[t][s]), sum);
                }
                sum.store(group(&mut w[t], i));
            }
        }
        for j in (0..n).step_by(COLUMNS) {
            // The swept columns are written below.
            if (k..k + LANES).contains(&j) {
                continue;
            }
            for i in (j / (R * LANES) * (R * LANES)..n).step_by(R * LANES) {
                update::<S, L, R>(x, u, w, i, j);
            }
        }
        for i in (0..whole + R * LANES).step_by(LANES) {
            let mut rows = [zero; LANES];
            for t in 0..LANES {
                rows[t] = zero.minus(L::load(group(&mut w[t], i)));
            }
            let rows = L::transpose(rows);
            for j in 0..LANES {
                rows[j].store(group(&mut x[i + j], k));
            }
        }
        for t in 0..LANES {
            for i in (whole..n).step_by(LANES) {
                zero.minus(L::load(group(&mut w[t], i))).store(group(&mut x[k + t], i));
            }
            *group(&mut x[k + t], k) = pivot[t];
        }
    }
    true
}

/// A tile of the matrix, from row `i` and column `j` on, −= W·Uᵀ; `w` is −W.
///
/// # Safety
/// As [`sweep`].
#[inline(always)]
unsafe fn update<S: Real, L: Lanes<S>, const R: usize>(
    x: &mut Columns<S, SIDE>,
    u: &mut Columns<S, LANES>,
    w: &mut Columns<S, LANES>,
    i: usize,
    j: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let zero = L::splat(S::default());
        let (mut tile, mut left) = ([[zero; R]; COLUMNS], [zero; R]);
        for c in 0..COLUMNS {
            for r in 0..R {
                tile[c][r] = L::load(group(&mut x[j + c], i + r * LANES));
            }
        }
        for t in 0..LANES {
            for r in 0..R {
                left[r] = L::load(group(&mut w[t], i + r * LANES));
            }
            for c in 0..COLUMNS {
                let factor = L::splat(u[t][j + c]);
                for r in 0..R {
                    tile[c][r] = left[r].times_plus(factor, tile[c][r]);
                }
            }
        }
        for c in 0..COLUMNS {
            for r in 0..R {
                tile[c][r].store(group(&mut x[j + c], i + r * LANES));
            }
        }
    }
}

/// The symmetric block becomes −P⁻¹, by sweeps of one column. False if it is not positive definite.
///
/// # Safety
/// As [`sweep`].
#[inline(always)]
unsafe fn sweep_pivot<S: Real, L: Lanes<S>>(block: &mut [[S; LANES]; LANES]) -> bool {
    // SAFETY: the caller's contract.
    unsafe {
        let (zero, one) = (L::splat(S::default()), L::splat(S::of(1.0)));
        let mut columns = [zero; LANES];
        for t in 0..LANES {
            columns[t] = L::load(&block[t]);
        }
        for k in 0..LANES {
            let mut own = [S::default(); LANES];
            columns[k].store(&mut own);
            if !(own[k] > S::default() && own[k].wide().is_finite()) {
                return false;
            }
            let inverse = one.over(L::splat(own[k]));
            // Place k of a column is its number in row k, which becomes the same divided by the pivot.
            let scale = one.with(k, inverse);
            let rest = zero.minus(columns[k].with(k, zero)).times(inverse);
            for j in 0..LANES {
                columns[j] = rest.times_plus(L::splat(own[j]), columns[j].times(scale));
            }
            columns[k] = zero.minus(rest).with(k, zero.minus(inverse));
        }
        for t in 0..LANES {
            columns[t].store(&mut block[t]);
        }
    }
    true
}

/// Rows `i` to `i` + [`LANES`] of a column.
#[inline(always)]
fn group<S: Real>(column: &mut [S; SIDE], i: usize) -> &mut [S; LANES] {
    debug_assert!(i + LANES <= SIDE);
    // SAFETY: within the column.
    unsafe { &mut *column.as_mut_ptr().add(i).cast::<[S; LANES]>() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_is_definite_above_its_least_eigenvalue() {
        fn check<S: Real>(n: usize) {
            // With c below the diagonal, the least eigenvalue is that of the diagonal − c.
            let c = 0.25;
            let mut a = vec![S::of(f64::NAN); n * n];
            for j in 0..n {
                a[j * n + j + 1..(j + 1) * n].fill(S::of(c));
            }
            let a = Span2::square(a.as_mut_ptr(), n);
            let least = if n == 1 { 0.0 } else { c };
            // SAFETY: a matrix of that side.
            let [below, above] = [-1e-3, 1e-3].map(|step| unsafe { is_definite(a, S::of(least + step)) });
            assert_eq!((below, above), (false, true), "side {n}");
        }
        for n in [1, 2, 7, 8, 9, 16, 17, 40, 63, 64] {
            check::<f32>(n);
            check::<f64>(n);
        }
    }
}
