//! A proven bound of the gap of a factor whose spectrum is corrected to diag H, H = QᵀAQ: the cheapest that is at
//! most τ, by the rules of [`crate::preconditioner::bound`].

use super::inverse;
use super::lanes::LANES;
use super::passes::{VECTORS, Vectors, ball, is_refuted, scale, spectral_radius};
use super::product::{Span2, mirror};
use super::real::{Real, fused, vectorized};
use super::scratch::Scratch;
use super::sweep;
use crate::device::Certificate;
use crate::preconditioner::bound::{self, Coupling, LARGEST_AIM, Remainder};
use crate::preconditioner::damping::inverse_power;
use crate::preconditioner::policy::BoundRule;
use faer::dyn_stack::StackReq;
use faer::linalg::cholesky::llt;
use faer::{Auto, MatMut, Par, Spec};

/// What padding may need of the room of [`Corrected::bound`], besides four vectors in double precision and
/// [`VECTORS`] in that of the statistic.
pub(super) const PADDING: usize = VECTORS * LANES;

/// Scratch that [`Corrected::bound`] needs for side `n`.
pub(super) fn scratch<S: Real>(n: usize) -> StackReq {
    llt::factor::cholesky_in_place_scratch::<S>(n, Par::Seq, tuned())
}

/// Blocks up to this side are factorized without products. Measured: faer's default of 64 costs 46 % more at side 64,
/// 26 % at 128 and 12 % at 256; above that all are equal.
const RECURSION: usize = 32;

fn tuned<S: Real>() -> Spec<llt::factor::LltParams, S> {
    let mut params: llt::factor::LltParams = <llt::factor::LltParams as Auto<S>>::auto();
    params.recursion_threshold = RECURSION;
    Spec::new(params)
}

/// Runs an expression with `$lanes` the widest numbers that the CPU has.
macro_rules! wide_or_plain {
    ($lanes:ident, $body:expr) => {
        if fused() {
            type $lanes<S> = <S as Real>::Lanes;
            vectorized(
                #[inline(always)]
                || $body,
            )
        } else {
            type $lanes<S> = [S; LANES];
            $body
        }
    };
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
    /// ‖H − diag H‖_F / ‖H‖_F.
    pub residual: f64,
    /// The bound, and the rule that gave it.
    pub bound: (f64, BoundRule),
    /// A bound of −λ_min(M), where it was looked for; else 1 or more.
    pub loss: f64,
    /// Matrices 0 and 1 of the scratch were used.
    pub factorized: bool,
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
        let (coupling, rest) = rest.split_at_mut(2 * n);
        a.iter_mut().zip(self.diagonal).for_each(|(a, d)| *a = d + self.epsilon);
        let (least, most) = a.iter().fold((f64::INFINITY, 0.0), |(l, m), a| (a.min(l), a.max(m)));
        let mut vectors = Vectors::<S>::new(n, rest);
        vectors.roots.iter_mut().zip(&*a).for_each(|(root, a)| *root = S::of(1.0 / a.sqrt()));
        vectors.shares.iter_mut().zip(&*a).for_each(|(share, a)| *share = S::of(a / most));
        // In the unit of the least one, nothing overflows. H ⪰ c·D₀, so that N ⪰ (c·D₀ + ε)/(diag H + ε).
        let mut kept = 1.0f64;
        for (a, fresh) in a.iter_mut().zip(self.fresh) {
            kept = kept.min((order.kept * fresh.wide() + self.epsilon) / *a);
            *a /= least;
        }
        let average = 1.0 - kept;
        let mut norm = 0.0;
        for (power, a) in vectors.powers.iter_mut().zip(&*a) {
            let square = inverse_power(*a, q).powi(2);
            norm += square;
            *power = S::of(square);
        }
        let alpha = 1.0 / f64::sqrt(norm);
        let coupling = Coupling::new(a, q, coupling);
        if let Some(roots) = coupling.square_roots() {
            vectors.numbers.iter_mut().zip(roots).for_each(|(x, root)| *x = S::of(*root));
        }
        // SAFETY: the wide instructions are there.
        let sums = wide_or_plain!(L, unsafe { scale::<S, L<S>>(m, &mut vectors, &coupling) });
        let change = sums.squares.sqrt();
        // With U the orthogonal factor of Q = U(I + F), ‖F‖ ≤ ω/2 to first order: in U's basis M differs by at most
        // √(max a/min a)·(1 + ‖M‖)·ω, which moves the gap by α/p of that, and Q f(a) Qᵀ from U f(a) Uᵀ by α·ω.
        let charge = alpha * order.orthogonality * (1.0 + q * (most / least).sqrt() * (1.0 + change));
        let target = order.target - charge;
        let found = |bound: f64, rule, loss, factorized| Found {
            relative_change: change,
            alpha,
            residual: residual(self.diagonal, most, sums.weighted_by_a),
            bound: (bound + charge, rule),
            loss,
            factorized,
        };
        // ‖Λ‖_F / ‖f(B)‖_F, below which the sandwich never is.
        let lower = (sums.first_order / norm).sqrt();
        if lower.is_nan() || lower > target {
            return found(lower, BoundRule::Exceeded, f64::INFINITY, false);
        }
        let proxy = alpha * q * change;
        if proxy == 0.0 {
            return found(0.0, BoundRule::Average, 0.0, false);
        }
        let remainder = Remainder::new(q, sums.first_order / norm, sums.weighted_by_powers / norm);
        let by_loss = |loss| remainder.bound(loss).min(proxy * bound::growth(q, loss));
        let by_average = by_loss(average);
        if by_average <= target {
            return found(by_average, BoundRule::Average, average, false);
        }
        let by_radius = |radius: f64| {
            let loss = average.min(radius);
            by_loss(loss).min(bound::spectral_form(q, loss, radius))
        };
        let n_real = n as f64;
        let promising = |least: f64| by_radius(least) <= target;
        // SAFETY: the wide instructions are there.
        let radius = wide_or_plain!(L, unsafe { spectral_radius::<S, L<S>>(m, &mut vectors, promising) });
        let radius = radius.min(change * ((n_real - 1.0) / n_real).sqrt());
        let by_spectrum = by_radius(radius);
        let mut loss = average.min(radius);
        if by_spectrum <= target {
            return found(by_spectrum, BoundRule::Spectral, loss, false);
        }
        // The largest m with which a bound is at most τ; then mI + M, which has to be positive definite.
        let aim = target.min(LARGEST_AIM);
        let enough = remainder.largest_loss(aim).max(bound::spectral_loss(q, aim, radius));
        let margin = 0.5 * n_real * S::STEP;
        let possible = enough < loss && enough > margin;
        let mut refuted = || {
            // SAFETY: the wide instructions are there.
            wide_or_plain!(L, unsafe { is_refuted::<S, L<S>>(m, &mut vectors, enough - margin) })
        };
        if possible && !refuted() && is_definite(m, enough - margin, work, scratch) {
            loss = enough;
            let bound = by_loss(loss).min(bound::spectral_form(q, loss, radius));
            return found(bound, BoundRule::Spectral, loss, true);
        }
        let by_sandwich = if invert(m, work, inverse, n) {
            // SAFETY: the wide instructions are there.
            let sum = wide_or_plain!(L, unsafe { ball::<S, L<S>>(m, work, &mut vectors, &coupling) });
            sum / (2.0 * norm.sqrt())
        } else {
            f64::INFINITY
        };
        if by_sandwich < by_spectrum {
            found(by_sandwich, BoundRule::Sandwich, loss, true)
        } else {
            found(by_spectrum, BoundRule::Spectral, loss, true)
        }
    }
}

/// ‖H − diag d‖_F / ‖H‖_F with d = diag H, for Σ H_ij² / `most`² below and above the diagonal.
fn residual(diagonal: &[f64], most: f64, off: f64) -> f64 {
    let on: f64 = diagonal.iter().map(|d| (d / most).powi(2)).sum();
    // A statistic of zeros is diagonal.
    if off == 0.0 { 0.0 } else { (off / (off + on)).sqrt() }
}

/// The lower triangle of `target` becomes that of M, with `diagonal` on the diagonal.
fn copy_lower<S: Real>(m: &[S], target: &mut [S], diagonal: S, n: usize) {
    for j in 0..n {
        target[j * n + j] = diagonal;
        target[j * n + j + 1..(j + 1) * n].copy_from_slice(&m[j * n + j + 1..(j + 1) * n]);
    }
}

/// Whether `shift`·I + M is positive definite; `work` is used.
fn is_definite<S: Real>(m: &mut [S], shift: f64, work: &mut [S], scratch: &mut Scratch) -> bool {
    let n = m.len().isqrt();
    if n <= sweep::SIDE {
        // SAFETY: a square matrix.
        return unsafe { sweep::is_definite(Span2::square(m.as_mut_ptr(), n), S::of(shift)) };
    }
    copy_lower(m, work, S::of(shift), n);
    let whole = MatMut::from_column_major_slice_mut(work, n, n);
    let stack = scratch.stack();
    llt::factor::cholesky_in_place(whole, Default::default(), Par::Seq, stack, tuned()).is_ok()
}

/// The lower triangle of `target` becomes that of N⁻¹ = (I + M)⁻¹; `room` is used. False if N is not positive definite.
fn invert<S: Real>(m: &[S], target: &mut [S], room: &mut [S], n: usize) -> bool {
    // SAFETY: different matrices of n² numbers.
    unsafe {
        if n <= inverse::ONE_TRIANGLE {
            copy_lower(m, target, S::of(1.0), n);
        } else {
            mirror::<S, S>(m.as_ptr(), n, target.as_mut_ptr(), n, n, 1.0);
            target.iter_mut().step_by(n + 1).for_each(|x| *x = S::of(1.0));
        }
        inverse::invert(Span2::square(target.as_mut_ptr(), n), Span2::square(room.as_mut_ptr(), n))
    }
}
