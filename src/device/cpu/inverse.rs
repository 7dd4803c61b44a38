//! The inverse of a symmetric positive definite matrix, by halves: nearly all of its n³ operations are products.

use super::product::{self, Span2, multiply, multiply_lower};
use super::real::Real;
use super::sweep;

/// Of matrices up to this side, only the lower triangle is read.
pub(super) const ONE_TRIANGLE: usize = sweep::SIDE;

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
        if n <= ONE_TRIANGLE {
            return sweep::invert(a);
        }
        // A multiple of what a sweep pads to.
        let half = (n / 2).next_multiple_of(16).min(n - 1);
        let rest = n - half;
        let (p, b, d) =
            (a.part(0, 0, half, half), a.part(half, 0, rest, half), a.part(half, half, rest, rest));
        let (b_transposed, w) = (a.part(0, half, half, rest), room.part(half, 0, rest, half));
        if !invert(p, room.part(0, 0, half, half)) {
            return false;
        }
        mirror(p);
        multiply(w, false, b, p, one);
        // Not by b.t(): its rows would be far apart.
        multiply_lower(d, true, w, b_transposed, S::of(-1.0));
        if rest > ONE_TRIANGLE {
            mirror(d);
        }
        if !invert(d, room.part(half, half, rest, rest)) {
            return false;
        }
        mirror(d);
        multiply(b, false, d, w, S::of(-1.0));
        multiply_lower(p, true, w.t(), b, S::of(-1.0));
        true
    }
}

/// The upper triangle becomes the mirror image of the lower one.
///
/// # Safety
/// Valid and nobody else's; its columns are contiguous.
unsafe fn mirror<S: Real>(a: Span2<S>) {
    // SAFETY: the caller's contract.
    unsafe { product::mirror::<S, S>(a.data, a.col, a.data, a.col, a.rows, 1.0) };
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
        for n in [1, 2, 15, 16, 17, 31, 48, 63, 64, 65, 100, 130] {
            check::<f64>(n, 0.5, 1e-12);
            check::<f32>(n, 0.5, 1e-4);
            check::<f64>(n, -4.0, 0.0);
        }
    }
}
