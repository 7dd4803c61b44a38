//! The inverse of a symmetric positive definite matrix, by halves: nearly all of its n³ operations are products.

use super::product::{Span2, multiply, multiply_lower};
use super::real::{Real, vectorized};

/// Matrices up to this side are inverted number by number.
const LEAF: usize = 32;

/// The symmetric matrix `a`, of which both triangles are given, becomes its inverse, of which at least the lower triangle
/// is; `room` has its size. False, and `a` is destroyed, if it is not positive definite.
///
/// With A = [P, Bᵀ; B, D], W = B·P⁻¹ and R = (D − W·Bᵀ)⁻¹ it is [P⁻¹ + Wᵀ·R·W, ·; −R·W, R]. All Schur complements of a
/// positive definite matrix are so, too, and their pivots are those of a Cholesky factorization.
///
/// # Safety
/// Both are valid, do not overlap, and are nobody else's.
pub(super) unsafe fn invert<S: Real>(a: Span2<S>, room: Span2<S>) -> bool {
    let n = a.rows;
    let one = S::of(1.0);
    // SAFETY: parts of the two that do not overlap.
    unsafe {
        if n <= LEAF {
            return vectorized(
                #[inline(always)]
                || invert_leaf(a),
            );
        }
        let half = (n / 2).next_multiple_of(LEAF / 2).min(n - 1);
        let rest = n - half;
        let (p, b, d) =
            (a.part(0, 0, half, half), a.part(half, 0, rest, half), a.part(half, half, rest, rest));
        let w = room.part(half, 0, rest, half);
        if !invert(p, room.part(0, 0, half, half)) {
            return false;
        }
        mirror(p);
        multiply(w, false, b, p, one);
        multiply_lower(d, true, w, b.t(), S::of(-1.0));
        mirror(d);
        if !invert(d, room.part(half, half, rest, rest)) {
            return false;
        }
        mirror(d);
        multiply(b, false, d, w, S::of(-1.0));
        multiply_lower(p, true, w.t(), b, S::of(-1.0));
        true
    }
}

/// Gauss and Jordan's elimination, without a choice of pivots.
///
/// # Safety
/// As [`invert`].
#[inline(always)]
unsafe fn invert_leaf<S: Real>(a: Span2<S>) -> bool {
    let n = a.rows;
    let at = |i: usize, j: usize| a.data.wrapping_add(i * a.row + j * a.col);
    let mut columns = [[S::default(); LEAF]; LEAF];
    for (j, column) in columns[..n].iter_mut().enumerate() {
        // SAFETY: the caller's contract.
        column[..n].iter_mut().enumerate().for_each(|(i, x)| *x = unsafe { at(i, j).read() });
    }
    for k in 0..n {
        let pivot = columns[k][k].wide();
        if !(pivot > 0.0 && pivot.is_finite()) {
            return false;
        }
        let inverse = S::of(1.0) / columns[k][k];
        let mut own = columns[k];
        own[k] = S::default();
        columns[k] = [S::default(); LEAF];
        columns[k][k] = S::of(1.0);
        for column in &mut columns[..n] {
            let factor = column[k] * inverse;
            column.iter_mut().zip(&own).for_each(|(x, own)| *x -= *own * factor);
            column[k] = factor;
        }
    }
    for (j, column) in columns[..n].iter().enumerate() {
        // SAFETY: the caller's contract.
        column[..n].iter().enumerate().for_each(|(i, x)| unsafe { at(i, j).write(*x) });
    }
    true
}

/// Side of the tiles in which a triangle is copied onto the other.
const TILE: usize = 16;

/// The upper triangle becomes the mirror image of the lower one.
///
/// # Safety
/// Valid and nobody else's.
unsafe fn mirror<S: Real>(a: Span2<S>) {
    let at = |i: usize, j: usize| a.data.wrapping_add(i * a.row + j * a.col);
    for first_col in (0..a.cols).step_by(TILE) {
        for first_row in (first_col..a.rows).step_by(TILE) {
            for j in first_col..(first_col + TILE).min(a.cols) {
                for i in first_row.max(j + 1)..(first_row + TILE).min(a.rows) {
                    // SAFETY: the caller's contract.
                    unsafe { at(j, i).write(at(i, j).read()) };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<S: Real>(n: usize, lowest: f64, tolerance: f64) {
        // A = L·Lᵀ + lowest·I.
        let l = |i: usize, j: usize| {
            if i >= j { ((i * 31 + j * 17 + i * j) % 23) as f64 / 23.0 - 0.4 } else { 0.0 }
        };
        let entry = |i: usize, j: usize| (0..=i.min(j)).map(|k| l(i, k) * l(j, k)).sum::<f64>() / n as f64;
        let whole: Vec<f64> =
            (0..n * n).map(|k| entry(k % n, k / n) + if k % n == k / n { lowest } else { 0.0 }).collect();
        let mut a: Vec<S> = whole.iter().map(|x| S::of(*x)).collect();
        let mut room = vec![S::default(); n * n];
        let [a_span, room] = [&mut a, &mut room].map(|x| Span2::square(x.as_mut_ptr(), n));
        // SAFETY: two matrices of that side.
        let done = unsafe { invert(a_span, room) };
        assert_eq!(done, lowest > 0.0, "side {n}");
        if !done {
            return;
        }
        let lower = |i: usize, j: usize| a[i.max(j) + i.min(j) * n].wide();
        for i in 0..n {
            for j in 0..n {
                let sum: f64 = (0..n).map(|k| lower(i, k) * whole[k + j * n]).sum();
                let expected = if i == j { 1.0 } else { 0.0 };
                assert!((sum - expected).abs() < tolerance, "side {n}: {i}, {j}: {sum}");
            }
        }
    }

    #[test]
    fn the_inverse_is_one_and_an_indefinite_matrix_has_none() {
        for n in [1, 2, 31, 32, 33, 48, 65, 130] {
            check::<f64>(n, 0.5, 1e-12);
            check::<f32>(n, 0.5, 1e-4);
            check::<f64>(n, -4.0, 0.0);
        }
    }
}
