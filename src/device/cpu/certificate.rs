//! A proven bound of the gap of a factor whose spectrum is corrected to diag H, H = QᵀAQ: the cheapest that is at
//! most τ, by the rules of [`crate::preconditioner::bound`].

use super::real::Real;
use super::scratch::Scratch;
use crate::device::Certificate;
use crate::preconditioner::bound::{self, Coupling};
use crate::preconditioner::policy::BoundRule;
use faer::dyn_stack::StackReq;
use faer::linalg::cholesky::llt;
use faer::linalg::triangular_inverse::invert_lower_triangular;
use faer::{MatMut, MatRef, Par, Spec};

/// Scratch that [`Corrected::bound`] needs for side `n`.
pub(super) fn scratch<S: Real>(n: usize) -> StackReq {
    llt::factor::cholesky_in_place_scratch::<S>(n, Par::Seq, Spec::default())
}

/// A factor in its stale basis, with diag H as spectrum.
pub(super) struct Corrected<'a, S> {
    /// diag H, at least 0.
    pub diagonal: &'a [f64],
    /// The spectrum of the last refresh.
    pub fresh: &'a [S],
    /// 1/p.
    pub exponent: f64,
    /// ε.
    pub epsilon: f64,
}

/// What is found about such a factor.
pub(super) struct Found {
    /// ‖M‖_F.
    pub relative_change: f64,
    /// α.
    pub alpha: f64,
    /// The bound, and the rule that gave it.
    pub bound: (f64, BoundRule),
}

impl<S: Real> Corrected<'_, S> {
    /// Bounds the gap. The lower triangle of matrix 2 of the scratch is H, and becomes M below its diagonal;
    /// matrices 0 and 1 are used.
    pub fn bound(&self, order: Certificate, scratch: &mut Scratch) -> Found {
        let n = self.diagonal.len();
        // SAFETY: three different matrices of the scratch, of n² numbers each.
        let (m, work, inverse) = unsafe {
            let matrix = |which| std::slice::from_raw_parts_mut(scratch.matrix::<S>(which), n * n);
            (matrix(2), matrix(0), matrix(1))
        };
        // Vectors of the scratch, taken out of it so that the rest can be used.
        let mut room = std::mem::take(&mut scratch.room);
        let found = self.bound_in(order, scratch, &mut room, (m, work, inverse));
        scratch.room = room;
        found
    }

    fn bound_in(
        &self,
        order: Certificate,
        scratch: &mut Scratch,
        room: &mut [f64],
        (m, work, inverse): (&mut [S], &mut [S], &mut [S]),
    ) -> Found {
        let (n, q) = (self.diagonal.len(), self.exponent);
        let (a, rest) = room.split_at_mut(n);
        let (roots, rest) = rest.split_at_mut(n);
        let (coupling, rest) = rest.split_at_mut(2 * n);
        a.iter_mut().zip(self.diagonal).for_each(|(a, d)| *a = d + self.epsilon);
        roots.iter_mut().zip(&*a).for_each(|(root, a)| *root = 1.0 / a.sqrt());
        let coupling = Coupling::new(a, q, coupling);
        let (mut squares, mut first_order) = (0.0, 0.0);
        for j in 0..n {
            let column = &mut m[j * n..(j + 1) * n];
            column[j] = S::default();
            for i in j + 1..n {
                let x = column[i].wide() * roots[i] * roots[j];
                column[i] = S::of(x);
                squares += 2.0 * x * x;
                let weighted = x * coupling.at(i, j);
                first_order += 2.0 * weighted * weighted;
            }
        }
        let powers = a.iter().map(|a| a.powf(-q));
        let norm = powers.clone().map(|e| e * e).sum::<f64>().sqrt();
        let alpha = powers.fold(0.0, f64::max) / norm;
        let change = squares.sqrt();
        let found = |bound, rule| Found { relative_change: change, alpha, bound: (bound, rule) };
        // ‖Λ‖_F / ‖f(B)‖_F, below which the sandwich never is.
        let lower = first_order.sqrt() / norm;
        if lower.is_nan() || lower > order.target {
            return found(lower, BoundRule::Exceeded);
        }
        let proxy = alpha * q * change;
        if proxy == 0.0 {
            return found(0.0, BoundRule::Average);
        }
        // H ⪰ c·D₀, so that N ⪰ (c·D₀ + ε)/(diag H + ε).
        let kept = |fresh: &S| order.kept * fresh.wide() + self.epsilon;
        let least = self.fresh.iter().zip(&*a).map(|(fresh, a)| kept(fresh) / a).fold(1.0, f64::min);
        let average = 1.0 - least;
        let by_average = proxy * bound::growth(q, average);
        if by_average <= order.target {
            return found(by_average, BoundRule::Average);
        }
        let n_real = n as f64;
        let radius = spectral_radius(m, n, rest).min(change * ((n_real - 1.0) / n_real).sqrt());
        let loss = average.min(radius);
        let by_spectrum = (proxy * bound::growth(q, loss)).min(bound::spectral_form(q, loss, radius));
        if by_spectrum <= order.target {
            return found(by_spectrum, BoundRule::Spectral);
        }
        work.copy_from_slice(m);
        (0..n).for_each(|i| work[i + i * n] = S::of(1.0));
        let by_sandwich = if invert_lower(work, inverse, n, scratch) {
            sandwich(m, inverse, work, &coupling, n) / (2.0 * norm)
        } else {
            f64::INFINITY
        };
        if by_sandwich < by_spectrum {
            found(by_sandwich, BoundRule::Sandwich)
        } else {
            found(by_spectrum, BoundRule::Spectral)
        }
    }
}

/// max_i (|M| v)_i / v_i ≥ the largest |eigenvalue| of M, for any v > 0 (Collatz–Wielandt); v is a few steps of the
/// power method. `room` is for two vectors.
fn spectral_radius<S: Real>(m: &[S], n: usize, room: &mut [f64]) -> f64 {
    let (v, rest) = room.split_at_mut(n);
    let image = &mut rest[..n];
    v.fill(1.0);
    let mut radius = f64::INFINITY;
    for _ in 0..3 {
        image.fill(0.0);
        for j in 0..n {
            let (mut sum, own) = (0.0, v[j]);
            for i in j + 1..n {
                let x = m[i + j * n].wide().abs();
                image[i] += x * own;
                sum += x * v[i];
            }
            image[j] += sum;
        }
        let worst = image.iter().zip(&*v).map(|(w, v)| w / v).fold(0.0, f64::max);
        radius = radius.min(worst);
        let mean = image.iter().sum::<f64>() / n as f64;
        // Every entry stays positive, however little it takes part.
        v.iter_mut().zip(&*image).for_each(|(v, w)| *v = w + 1e-3 * mean + f64::MIN_POSITIVE);
    }
    radius
}

/// The lower triangle of `n_inverse` becomes N⁻¹ = L⁻ᵀL⁻¹, for the N in the lower triangle of `matrix`, which is used.
/// False if N is not positive definite.
fn invert_lower<S: Real>(matrix: &mut [S], n_inverse: &mut [S], n: usize, scratch: &mut Scratch) -> bool {
    let whole = MatMut::from_column_major_slice_mut(&mut *matrix, n, n);
    let stack = scratch.stack();
    if llt::factor::cholesky_in_place(whole, Default::default(), Par::Seq, stack, Spec::default()).is_err() {
        return false;
    }
    invert_lower_triangular(
        MatMut::from_column_major_slice_mut(&mut *n_inverse, n, n),
        MatRef::from_column_major_slice(&*matrix, n, n),
        Par::Seq,
    );
    true
}

/// ‖C∘(N⁻¹ − I − M)‖_F + ‖C∘(N⁻¹ − I + M)‖_F, for L⁻¹ in the lower triangle of `root`; `product` is used.
fn sandwich<S: Real>(m: &[S], root: &mut [S], product: &mut [S], coupling: &Coupling, n: usize) -> f64 {
    use faer::linalg::matmul::triangular::{BlockStructure, matmul};
    let view = MatRef::from_column_major_slice(&*root, n, n);
    matmul(
        MatMut::from_column_major_slice_mut(&mut *product, n, n),
        BlockStructure::TriangularLower,
        faer::Accum::Replace,
        view.transpose(),
        BlockStructure::TriangularUpper,
        view,
        BlockStructure::TriangularLower,
        S::of(1.0),
        Par::Seq,
    );
    let (mut centre, mut width) = (0.0, 0.0);
    for j in 0..n {
        let on = (product[j + j * n].wide() - 1.0) * coupling.at(j, j);
        centre += on * on;
        width += on * on;
        for i in j + 1..n {
            let (inverse, x, c) = (product[i + j * n].wide(), m[i + j * n].wide(), coupling.at(i, j));
            let (low, high) = ((inverse - x) * c, (inverse + x) * c);
            centre += 2.0 * low * low;
            width += 2.0 * high * high;
        }
    }
    centre.sqrt() + width.sqrt()
}
