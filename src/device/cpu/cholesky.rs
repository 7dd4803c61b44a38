//! The Cholesky factorization of a small matrix in code of our own, of a larger one by faer.

use super::real::{Real, vectorized};
use faer::dyn_stack::{MemStack, StackReq};
use faer::linalg::cholesky::llt;
use faer::{Auto, MatMut, Par, Spec};
use std::array::from_fn;
use std::ops::RangeInclusive;

/// Rows, and columns, that are worked on together.
const LANES: usize = 8;

/// Sides for which the code of our own is used, in single precision. Measured: it takes 0.5 of faer's time at 32, 0.45 at
/// 64, 0.64 at 128 and 0.7 at 256; in double precision 0.95 to 1.4. Of smaller matrices the padding would have no room.
const SMALL: RangeInclusive<usize> = 32..=256;

/// Blocks up to this side faer factorizes without products. Measured: its default of 64 costs 12 % more at side 256; above
/// that all are equal.
const RECURSION: usize = 32;

fn tuned<S: Real>() -> Spec<llt::factor::LltParams, S> {
    let mut params: llt::factor::LltParams = <llt::factor::LltParams as Auto<S>>::auto();
    params.recursion_threshold = RECURSION;
    Spec::new(params)
}

/// Scratch that [`factorize`] needs for side `n`.
pub(super) fn scratch<S: Real>(n: usize) -> StackReq {
    llt::factor::cholesky_in_place_scratch::<S>(n, Par::Seq, tuned())
}

fn is_small<S>(n: usize) -> bool {
    size_of::<S>() == size_of::<f32>() && SMALL.contains(&n)
}

/// Numbers of a column of a matrix of side `n` that [`factorize`] takes.
pub(super) fn stride<S>(n: usize) -> usize {
    if is_small::<S>(n) { n.next_multiple_of(LANES) } else { n }
}

/// The lower triangle of `matrix`, with [`stride`] numbers per column and as many columns, becomes its Cholesky factor.
/// False if it is not positive definite. What is beyond the side need not be set.
pub(super) fn factorize<S: Real>(matrix: &mut [S], n: usize, stack: &mut MemStack) -> bool {
    if is_small::<S>(n) {
        let stride = stride::<S>(n);
        let matrix = &mut matrix[..stride * stride];
        for j in 0..stride {
            matrix[j * stride + n.max(j)..(j + 1) * stride].fill(S::default());
            if j >= n {
                matrix[j * stride + j] = S::of(1.0);
            }
        }
        return vectorized(
            #[inline(always)]
            || factorize_panels(matrix, stride),
        );
    }
    let whole = MatMut::from_column_major_slice_mut(&mut matrix[..n * n], n, n);
    llt::factor::cholesky_in_place(whole, Default::default(), Par::Seq, stack, tuned()).is_ok()
}

/// Panels of [`LANES`] columns: a square of them is kept in registers while the columns before are subtracted from it.
#[inline(always)]
fn factorize_panels<S: Real>(matrix: &mut [S], n: usize) -> bool {
    let zero = S::default();
    let group = |column: &[S], from: usize| -> [S; LANES] { from_fn(|i| column[from..from + LANES][i]) };
    for first in (0..n).step_by(LANES) {
        let (done, panel) = matrix.split_at_mut(first * n);
        let (mut corner, mut inverse) = ([[zero; LANES]; LANES], [zero; LANES]);
        for from in (first..n).step_by(LANES) {
            let mut x: [[S; LANES]; LANES] = from_fn(|c| group(&panel[c * n..], from));
            for column in done.chunks_exact(n) {
                let (below, across) = (group(column, from), group(column, first));
                for (x, factor) in x.iter_mut().zip(across) {
                    *x = minus(*x, below, factor);
                }
            }
            for c in 0..LANES {
                if from == first {
                    let pivot = x[c][c];
                    if !(pivot > zero && pivot.wide().is_finite()) {
                        return false;
                    }
                    inverse[c] = S::of(1.0) / pivot.root();
                }
                let own: [S; LANES] = from_fn(|i| x[c][i] * inverse[c]);
                x[c] = own;
                if from == first {
                    corner[c] = own;
                }
                for d in c + 1..LANES {
                    x[d] = minus(x[d], own, corner[c][d]);
                }
            }
            for (c, x) in x.iter().enumerate() {
                panel[c * n + from..][..LANES].copy_from_slice(x);
            }
        }
    }
    true
}

/// x − y·factor.
#[inline(always)]
fn minus<S: Real>(x: [S; LANES], y: [S; LANES], factor: S) -> [S; LANES] {
    from_fn(|i| x[i] - y[i] * factor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use faer::dyn_stack::MemBuffer;

    /// A = L·Lᵀ, whose last pivot is 1, plus `last` at that place.
    fn check<S: Real>(n: usize, last: f64, tolerance: f64) {
        let l = |i: usize, j: usize| {
            let below = (((i * 31 + j * 17 + i * j) % 23) as f64 / 23.0 - 0.4) / (n as f64).sqrt();
            if i > j { below } else { f64::from(i == j) }
        };
        let entry = |i: usize, j: usize| (0..=i.min(j)).map(|k| l(i, k) * l(j, k)).sum::<f64>();
        let stride = stride::<S>(n);
        let mut matrix = vec![S::of(f64::NAN); stride * stride];
        for j in 0..n {
            for i in j..n {
                matrix[i + j * stride] = S::of(entry(i, j) + if j + 1 == n { last } else { 0.0 });
            }
        }
        let mut memory = MemBuffer::new(scratch::<S>(n));
        let done = factorize(&mut matrix, n, MemStack::new(&mut memory));
        assert_eq!(done, last >= 0.0, "side {n}");
        for j in 0..if done { n } else { 0 } {
            for i in j..n {
                let off = (matrix[i + j * stride].wide() - l(i, j)).abs();
                assert!(off <= tolerance, "side {n}: {off} at {i}, {j}");
            }
        }
    }

    #[test]
    fn the_factor_is_found_and_an_indefinite_matrix_has_none() {
        for n in [1, 2, 8, 31, 32, 33, 39, 40, 64, 65, 128, 131, 255, 256, 257] {
            check::<f64>(n, 0.0, 1e-12);
            check::<f64>(n, -1.5, 0.0);
            check::<f32>(n, 0.0, 1e-4);
            check::<f32>(n, -1.5, 0.0);
        }
    }
}
