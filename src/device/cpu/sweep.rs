//! The inverse of a small symmetric positive definite matrix, by sweeps of a few columns at a time, in the first cache.
//!
//! With the pivot block P, the columns U of its rows and W = U·P⁻¹, a sweep replaces P by −P⁻¹, U by W and every other
//! part A_ij by A_ij − W_i·U_jᵀ. It keeps the matrix symmetric, so that one triangle is enough; when every block was
//! swept, the matrix is −A⁻¹. The pivot blocks are Schur complements, as in a Cholesky factorization.

use super::lanes::{LANES, Lanes};
use super::product::Span2;
use super::real::{Real, fused, vectorized};

/// Largest side.
pub(super) const SIDE: usize = 64;
/// Columns of a tile that is updated in registers.
const COLUMNS: usize = 4;

/// Columns of the matrix, or of a panel of it.
type Columns<S, const N: usize> = [[S; SIDE]; N];

/// The symmetric matrix `a` of at most [`SIDE`] rows, of which the lower triangle is read, becomes its inverse, of which
/// the lower triangle is written. False, and `a` is unchanged, if it is not positive definite.
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
    // SAFETY: the caller's contract.
    let column = |j: usize| unsafe { std::slice::from_raw_parts_mut(a.data.add(j + j * a.col), n - j) };
    for (j, own) in x[..n].iter_mut().enumerate() {
        own[j..n].copy_from_slice(column(j));
    }
    // Rows and columns of the identity do not touch the rest.
    let padded = n.next_multiple_of(R * LANES);
    (n..padded).for_each(|j| x[j][j] = S::of(1.0));
    // The blocks on the diagonal, of a tile's rows, are kept whole.
    for start in (0..padded).step_by(R * LANES) {
        for j in start..start + R * LANES {
            for i in j + 1..start + R * LANES {
                x[i][j] = x[j][i];
            }
        }
    }
    let mut panels = [[[S::default(); SIDE]; LANES]; 2];
    for k in (0..padded).step_by(LANES) {
        // SAFETY: the caller's contract.
        if !unsafe { sweep::<S, L, R>(&mut x, &mut panels, padded, k) } {
            return false;
        }
    }
    for (j, own) in x[..n].iter().enumerate() {
        column(j).iter_mut().zip(&own[j..n]).for_each(|(to, from)| *to = S::default() - *from);
    }
    true
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
