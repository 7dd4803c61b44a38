//! A proven bound of the gap of a factor whose spectrum is corrected to diag H, H = QᵀAQ: the cheapest that is at
//! most τ, by the rules of [`crate::preconditioner::bound`].

use super::real::{Real, vectorized, wide_sum_of_squares};
use super::scratch::Scratch;
use crate::device::Certificate;
use crate::preconditioner::bound::{self, Coupling};
use crate::preconditioner::damping::inverse_power;
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
    /// A bound of −λ_min(M), where it was looked for; else 1 or more.
    pub loss: f64,
    /// Matrices 0 and 1 of the scratch were used.
    pub inverted: bool,
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
        let (columns, rest) = rest.split_at_mut(2 * n);
        let (squares, first_order) = vectorized(
            #[inline(always)]
            || scale(m, roots, &coupling, columns),
        );
        let powers = a.iter().map(|a| inverse_power(*a, q));
        let norm = powers.clone().map(|e| e * e).sum::<f64>().sqrt();
        let alpha = powers.fold(0.0, f64::max) / norm;
        let change = squares.sqrt();
        // With U the orthogonal factor of Q = U(I + F), ‖F‖ ≤ ω/2 to first order: in U's basis M differs by at most
        // √(max a/min a)·(1 + ‖M‖)·ω, which moves the gap by α/p of that, and Q f(a) Qᵀ from U f(a) Uᵀ by α·ω.
        let (least, most) = a.iter().fold((f64::INFINITY, 0.0), |(l, m), a| (a.min(l), a.max(m)));
        let charge = alpha * order.orthogonality * (1.0 + q * (most / least).sqrt() * (1.0 + change));
        let order = Certificate { target: order.target - charge, ..order };
        let found = |bound: f64, rule, loss, inverted| Found {
            relative_change: change,
            alpha,
            bound: (bound + charge, rule),
            loss,
            inverted,
        };
        // ‖Λ‖_F / ‖f(B)‖_F, below which the sandwich never is.
        let lower = first_order.sqrt() / norm;
        if lower.is_nan() || lower > order.target {
            return found(lower, BoundRule::Exceeded, f64::INFINITY, false);
        }
        let proxy = alpha * q * change;
        if proxy == 0.0 {
            return found(0.0, BoundRule::Average, 0.0, false);
        }
        // H ⪰ c·D₀, so that N ⪰ (c·D₀ + ε)/(diag H + ε).
        let kept = |fresh: &S| order.kept * fresh.wide() + self.epsilon;
        let least = self.fresh.iter().zip(&*a).map(|(fresh, a)| kept(fresh) / a).fold(1.0, f64::min);
        let average = 1.0 - least;
        let by_average = proxy * bound::growth(q, average);
        if by_average <= order.target {
            return found(by_average, BoundRule::Average, average, false);
        }
        let n_real = n as f64;
        let radius = vectorized(
            #[inline(always)]
            || spectral_radius(m, n, rest),
        );
        let radius = radius.min(change * ((n_real - 1.0) / n_real).sqrt());
        let loss = average.min(radius);
        let by_spectrum = (proxy * bound::growth(q, loss)).min(bound::spectral_form(q, loss, radius));
        if by_spectrum <= order.target {
            return found(by_spectrum, BoundRule::Spectral, loss, false);
        }
        work.copy_from_slice(m);
        (0..n).for_each(|i| work[i + i * n] = S::of(1.0));
        let by_sandwich = if invert_lower(work, inverse, n, scratch) {
            sandwich(m, inverse, work, &coupling, rest) / (2.0 * norm)
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

/// The lower triangle of H in `m` becomes that of M, with a diagonal of zeros; gives ‖M‖_F² and ‖C∘M‖_F². `room` is for
/// two vectors.
#[inline(always)]
fn scale<S: Real>(m: &mut [S], roots: &[f64], coupling: &Coupling, room: &mut [f64]) -> (f64, f64) {
    let n = roots.len();
    let (changes, weights) = room.split_at_mut(n);
    let (mut squares, mut first_order) = (0.0, 0.0);
    for j in 0..n {
        let below = j + 1..n;
        m[j + j * n] = S::default();
        let column = &mut m[j * n..][below.clone()];
        let (changes, weights) = (&mut changes[below.clone()], &mut weights[below.clone()]);
        for ((x, change), root) in column.iter_mut().zip(&mut *changes).zip(&roots[below.clone()]) {
            *change = x.wide() * root * roots[j];
            *x = S::of(*change);
        }
        squares += 2.0 * wide_sum_of_squares(changes);
        coupling.column(below.start, j, weights);
        weights.iter_mut().zip(&*changes).for_each(|(weight, change)| *weight *= change);
        first_order += 2.0 * wide_sum_of_squares(weights);
    }
    (squares, first_order)
}

/// max_i (|M| v)_i / v_i ≥ the largest |eigenvalue| of M, for any v > 0 (Collatz–Wielandt); v is a few steps of the
/// power method. `room` is for two vectors.
#[inline(always)]
fn spectral_radius<S: Real>(m: &[S], n: usize, room: &mut [f64]) -> f64 {
    let (v, rest) = room.split_at_mut(n);
    let image = &mut rest[..n];
    v.fill(1.0);
    let mut radius = f64::INFINITY;
    for _ in 0..3 {
        image.fill(0.0);
        for j in 0..n {
            let (above, below) = image.split_at_mut(j + 1);
            above[j] += add_column(&m[j * n..][j + 1..n], v[j], &v[j + 1..], below);
        }
        let worst = image.iter().zip(&*v).map(|(w, v)| w / v).fold(0.0, f64::max);
        radius = radius.min(worst);
        let mean = image.iter().sum::<f64>() / n as f64;
        // Every entry stays positive, however little it takes part.
        v.iter_mut().zip(&*image).for_each(|(v, w)| *v = w + 1e-3 * mean + f64::MIN_POSITIVE);
    }
    radius
}

/// y += |x|·own, and gives |x|·v; in eight lanes.
#[inline(always)]
fn add_column<S: Real>(x: &[S], own: f64, v: &[f64], y: &mut [f64]) -> f64 {
    let mut lanes = [0.0; 8];
    for ((x, v), y) in x.chunks(8).zip(v.chunks(8)).zip(y.chunks_mut(8)) {
        for (((lane, x), v), y) in lanes.iter_mut().zip(x).zip(v).zip(y) {
            let x = x.wide().abs();
            *y += x * own;
            *lane += x * v;
        }
    }
    lanes.iter().sum()
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

/// ‖C∘(N⁻¹ − I − M)‖_F + ‖C∘(N⁻¹ − I + M)‖_F, for L⁻¹ in the lower triangle of `root`; `product` is used. `room` is for
/// three vectors.
fn sandwich<S: Real>(
    m: &[S],
    root: &mut [S],
    product: &mut [S],
    coupling: &Coupling,
    room: &mut [f64],
) -> f64 {
    use faer::linalg::matmul::triangular::{BlockStructure, matmul};
    let n = coupling.side();
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
    vectorized(
        #[inline(always)]
        || ball(m, product, coupling, n, room),
    )
}

/// The centre's length and the radius of the ball that the sandwich puts the gap into, both doubled: their sum.
#[inline(always)]
fn ball<S: Real>(m: &[S], n_inverse: &[S], coupling: &Coupling, n: usize, room: &mut [f64]) -> f64 {
    let (weights, rest) = room.split_at_mut(n);
    let (lows, highs) = rest.split_at_mut(n);
    let (mut centre, mut width) = (0.0, 0.0);
    for j in 0..n {
        let on = (n_inverse[j + j * n].wide() - 1.0) * coupling.at(j, j);
        centre += on * on;
        width += on * on;
        let below = j + 1..n;
        let (weights, lows) = (&mut weights[below.clone()], &mut lows[below.clone()]);
        let highs = &mut highs[below.clone()];
        coupling.column(below.start, j, weights);
        let columns = n_inverse[j * n..][below.clone()].iter().zip(&m[j * n..][below]);
        let places = lows.iter_mut().zip(&mut *highs).zip(&*weights);
        for ((inverse, x), ((low, high), c)) in columns.zip(places) {
            let (inverse, x) = (inverse.wide(), x.wide());
            (*low, *high) = ((inverse - x) * c, (inverse + x) * c);
        }
        centre += 2.0 * wide_sum_of_squares(lows);
        width += 2.0 * wide_sum_of_squares(highs);
    }
    centre.sqrt() + width.sqrt()
}
