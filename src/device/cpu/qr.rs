//! An orthonormal basis of the columns of a square matrix, by Householder reflections.

use super::real::Real;
use faer::dyn_stack::{MemStack, StackReq};
use faer::linalg::householder::{
    apply_block_householder_sequence_on_the_left_in_place_scratch as form_scratch,
    apply_block_householder_sequence_on_the_left_in_place_with_conj as form,
};
use faer::linalg::qr::no_pivoting::factor::{qr_in_place, qr_in_place_scratch, recommended_block_size};
use faer::linalg::{temp_mat_scratch, temp_mat_zeroed};
use faer::mat::AsMatMut;
use faer::reborrow::{Reborrow, ReborrowMut};
use faer::{Conj, MatMut, Par, Spec};

/// Scratch that [`orthonormalize`] needs for side `n`.
pub(super) fn scratch<S: Real>(n: usize) -> StackReq {
    let n = n.max(1);
    let block = recommended_block_size::<S>(n, n);
    let factor = qr_in_place_scratch::<S>(n, n, block, Par::Seq, Spec::default());
    temp_mat_scratch::<S>(block, n).and(factor.or(form_scratch::<S>(n, block, n)))
}

/// `q` becomes the orthogonal factor of `a` (both column-major, of side `n`), which is destroyed. Columns of `a` that
/// depend on others are completed to a basis. False if the result is not finite.
pub(super) fn orthonormalize<S: Real>(a: &mut [S], q: &mut [S], n: usize, stack: &mut MemStack) -> bool {
    // A power of two costs no digits, and keeps the squares of a reflection in range.
    let largest = a.iter().map(|x| x.wide().abs()).fold(0.0, f64::max);
    if !largest.is_finite() {
        return false;
    }
    if largest > 0.0 {
        let scale = S::of(2f64.powi(-(largest.log2().floor() as i32).clamp(-120, 120)));
        a.iter_mut().for_each(|x| *x *= scale);
    }
    let block = recommended_block_size::<S>(n, n);
    let (mut coefficients, stack) = temp_mat_zeroed::<S, _, _>(block, n, stack);
    let mut coefficients = coefficients.as_mat_mut();
    let mut reflections = MatMut::from_column_major_slice_mut(a, n, n);
    qr_in_place(reflections.rb_mut(), coefficients.rb_mut(), Par::Seq, stack, Spec::default());
    q.fill(S::default());
    (0..n).for_each(|i| q[i + i * n] = S::of(1.0));
    let target = MatMut::from_column_major_slice_mut(q, n, n);
    form(reflections.rb(), coefficients.rb(), Conj::No, target, Par::Seq, stack);
    q.iter().all(|x| x.wide().is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use faer::dyn_stack::MemBuffer;

    fn check<S: Real>(n: usize, rank: usize, scale: f64, tolerance: f64) {
        let entry = |i: usize, j: usize| ((i * 37 + j * 101 + i * j * 13) % 97) as f64 / 97.0 - 0.5;
        // Columns beyond the rank repeat the first ones.
        let a: Vec<S> = (0..n * n).map(|k| S::of(scale * entry(k % n, (k / n) % rank))).collect();
        let (mut destroyed, mut q) = (a.clone(), vec![S::default(); n * n]);
        let mut memory = MemBuffer::new(scratch::<S>(n));
        assert!(orthonormalize(&mut destroyed, &mut q, n, MemStack::new(&mut memory)));
        for i in 0..n {
            for j in 0..n {
                let dot: f64 = (0..n).map(|k| q[k + i * n].wide() * q[k + j * n].wide()).sum();
                let expected = if i == j { 1.0 } else { 0.0 };
                assert!((dot - expected).abs() < tolerance, "side {n}: {i}, {j}: {dot}");
                // R = QᵀA is upper triangular.
                let r: f64 = (0..n).map(|k| q[k + i * n].wide() * a[k + j * n].wide() / scale).sum();
                assert!(i <= j || r.abs() < tolerance * n as f64, "side {n}: R[{i}, {j}] = {r}");
            }
        }
    }

    #[test]
    fn the_factor_is_orthogonal_and_leaves_a_triangle() {
        for n in [1, 2, 7, 40, 130] {
            check::<f64>(n, n, 1.0, 1e-12);
            check::<f32>(n, n, 1.0, 1e-5);
            check::<f32>(n, n, 1e-30, 1e-5);
            check::<f64>(n, n.div_ceil(3), 1.0, 1e-12);
        }
    }
}
