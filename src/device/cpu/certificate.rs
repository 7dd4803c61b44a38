//! A proven bound of the gap of a factor whose spectrum is corrected to diag H, H = QᵀAQ: the cheapest that is at
//! most τ, by the rules of [`crate::preconditioner::bound`].
//!
//! The passes over the n²/2 numbers of M are in the precision of the statistic, [`LANES`] rows at a time: rows of such a
//! group that are not below the diagonal are made zero, and vectors are padded with zeros to whole groups.

use super::inverse;
use super::product::{Span2, mirror};
use super::real::{Real, vectorized};
use super::scratch::Scratch;
use crate::device::Certificate;
use crate::preconditioner::bound::{self, Coupling, LARGEST_AIM, Remainder};
use crate::preconditioner::damping::inverse_power;
use crate::preconditioner::policy::BoundRule;
use faer::dyn_stack::StackReq;
use faer::linalg::cholesky::llt;
use faer::{Auto, MatMut, Par, Spec};

/// Rows that are worked on together.
const LANES: usize = 8;

/// Vectors of room that [`Corrected::bound`] needs, besides [`PADDING`] numbers: three in double precision and
/// [`VECTORS`] in that of the statistic.
const VECTORS: usize = 7;
/// What padding may need of the room.
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
        let sums = vectorized(
            #[inline(always)]
            || scale(m, &mut vectors, &coupling),
        );
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
        let radius = vectorized(
            #[inline(always)]
            || spectral_radius(m, &mut vectors, |least| by_radius(least) <= target),
        );
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
        if enough < loss && enough > margin {
            copy_lower(m, work, S::of(enough - margin), n);
            if factorize(work, n, scratch) {
                loss = enough;
                let bound = by_loss(loss).min(bound::spectral_form(q, loss, radius));
                return found(bound, BoundRule::Spectral, loss, true);
            }
        }
        let by_sandwich = if invert(m, work, inverse, n) {
            let sum = vectorized(
                #[inline(always)]
                || ball(m, work, &mut vectors, &coupling),
            );
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

/// Vectors in the precision of the statistic, padded with zeros to whole groups of [`LANES`] numbers.
struct Vectors<'a, S> {
    n: usize,
    /// a^(−1/2).
    roots: &'a mut [S],
    /// f(a)², in the unit of the largest.
    powers: &'a mut [S],
    /// a, in the unit of the largest.
    shares: &'a mut [S],
    /// √a in the unit of the least, if p = 2.
    numbers: &'a mut [S],
    /// A column of C.
    weights: &'a mut [S],
    /// Two of a power iteration.
    v: &'a mut [S],
    image: &'a mut [S],
    /// A column of C in double precision.
    wide: &'a mut [f64],
}

impl<'a, S: Real> Vectors<'a, S> {
    fn new(n: usize, room: &'a mut [f64]) -> Vectors<'a, S> {
        let (wide, room) = room.split_at_mut(n);
        let room: &mut [S] = bytemuck::cast_slice_mut(room);
        let padded = n.next_multiple_of(LANES);
        room[..VECTORS * padded].fill(S::default());
        let mut parts = room.chunks_exact_mut(padded);
        let mut next = || parts.next().expect("the room has space for the vectors");
        Vectors {
            n,
            roots: next(),
            powers: next(),
            shares: next(),
            numbers: next(),
            weights: next(),
            v: next(),
            image: next(),
            wide,
        }
    }
}

/// The first row of the group that row j + 1 is in.
#[inline(always)]
fn group_start(j: usize) -> usize {
    (j + 1) & !(LANES - 1)
}

/// The groups of a padded vector from row `from` on.
#[inline(always)]
fn groups<S>(vector: &[S], from: usize) -> &[[S; LANES]] {
    vector[from..].as_chunks().0
}

/// The last group of a column, of which only the first numbers exist.
#[inline(always)]
fn padded<S: Real>(rest: &[S]) -> [S; LANES] {
    let mut group = [S::default(); LANES];
    group[..rest.len()].copy_from_slice(rest);
    group
}

/// Sums over the columns, added up in double precision once per column.
struct Totals<const K: usize>([[f64; LANES]; K]);

impl<const K: usize> Totals<K> {
    fn new() -> Self {
        Totals([[0.0; LANES]; K])
    }

    #[inline(always)]
    fn add<S: Real>(&mut self, column: &[[S; LANES]; K]) {
        for (total, own) in self.0.iter_mut().zip(column) {
            total.iter_mut().zip(own).for_each(|(total, own)| *total += own.wide());
        }
    }

    fn sums(&self) -> [f64; K] {
        self.0.map(|lanes| lanes.iter().sum())
    }
}

/// What one pass over M gives.
struct Sums {
    /// ‖M‖_F².
    squares: f64,
    /// ‖C∘M‖_F².
    first_order: f64,
    /// Σ f(a_i)² M_ij².
    weighted_by_powers: f64,
    /// Σ a_i a_j M_ij², in the unit of the largest a.
    weighted_by_a: f64,
}

/// The lower triangle of H in `m` becomes that of M.
#[inline(always)]
fn scale<S: Real>(m: &mut [S], vectors: &mut Vectors<S>, coupling: &Coupling) -> Sums {
    let n = vectors.n;
    let mut totals = Totals::<4>::new();
    for j in 0..n {
        let from = group_start(j);
        weigh(vectors, coupling, from, j);
        let column = &mut m[j * n..][..n];
        column[from..j + 1].fill(S::default());
        let own = (vectors.roots[j], vectors.powers[j], vectors.shares[j]);
        let mut sums = [[S::default(); LANES]; 4];
        let (whole, rest) = column[from..].as_chunks_mut::<LANES>();
        let terms = groups(vectors.roots, from)
            .iter()
            .zip(groups(vectors.powers, from))
            .zip(groups(vectors.shares, from).iter().zip(groups(vectors.weights, from)));
        let mut last = padded(rest);
        let columns = whole.iter_mut().chain((!rest.is_empty()).then_some(&mut last));
        for (x, ((root, power), (share, weight))) in columns.zip(terms) {
            for k in 0..LANES {
                let change = x[k] * root[k] * own.0;
                let (square, weighted) = (change * change, change * weight[k]);
                x[k] = change;
                sums[0][k] += square;
                sums[1][k] += weighted * weighted;
                sums[2][k] += square * (power[k] + own.1);
                sums[3][k] += square * (share[k] * own.2);
            }
        }
        rest.copy_from_slice(&last[..rest.len()]);
        totals.add(&sums);
    }
    let [squares, first_order, powers, shares] = totals.sums();
    Sums {
        squares: 2.0 * squares,
        first_order: 2.0 * first_order,
        weighted_by_powers: powers,
        weighted_by_a: 2.0 * shares,
    }
}

/// The weights become C_ij for i from `from` on.
#[inline(always)]
fn weigh<S: Real>(vectors: &mut Vectors<S>, coupling: &Coupling, from: usize, j: usize) {
    let weights = &mut vectors.weights[from..];
    if coupling.square_roots().is_some() {
        let (own, one) = (vectors.numbers[j], S::of(1.0));
        let numbers = &vectors.numbers[from..];
        weights.iter_mut().zip(numbers).for_each(|(c, x)| *c = one / (*x + own));
    } else {
        let wide = &mut vectors.wide[from..];
        coupling.column(from, j, wide);
        weights.iter_mut().zip(wide).for_each(|(c, x)| *c = S::of(*x));
    }
}

/// max_i (|M| v)_i / v_i ≥ the largest |eigenvalue| of M, for any v > 0 (Collatz–Wielandt); v is a few steps of the
/// power method. min_i (|M| v)_i / v_i is below all that further steps can give: they are left out if that is not
/// `promising`.
#[inline(always)]
fn spectral_radius<S: Real>(m: &[S], vectors: &mut Vectors<S>, promising: impl Fn(f64) -> bool) -> f64 {
    let n = vectors.n;
    let (v, image) = (&mut *vectors.v, &mut *vectors.image);
    v[..n].fill(S::of(1.0));
    let mut radius = f64::INFINITY;
    for _ in 0..3 {
        image.fill(S::default());
        for j in 0..n {
            let from = group_start(j);
            let own = v[j];
            let mut lanes = [S::default(); LANES];
            let (whole, rest) = m[j * n..][from..n].as_chunks::<LANES>();
            let last = padded(rest);
            let columns = whole.iter().chain((!rest.is_empty()).then_some(&last));
            let images = image[from..].as_chunks_mut::<LANES>().0.iter_mut();
            for ((x, y), v) in columns.zip(images).zip(groups(v, from)) {
                for k in 0..LANES {
                    let x = x[k].size();
                    y[k] += x * own;
                    lanes[k] += x * v[k];
                }
            }
            image[j] += S::of(lanes.iter().map(|lane| lane.wide()).sum());
        }
        let ratios = image[..n].iter().zip(&*v).map(|(w, v)| w.wide() / v.wide());
        let (least, worst) = ratios.fold((f64::INFINITY, 0.0), |(l, w), x| (x.min(l), x.max(w)));
        // What the sums of n numbers may have lost by rounding.
        radius = worst.mul_add(n as f64 * S::STEP, worst).min(radius);
        if !promising(least) {
            break;
        }
        let mean = image[..n].iter().map(|w| w.wide()).sum::<f64>() / n as f64;
        // Every entry stays positive, however little it takes part.
        let little = S::of(1e-3 * mean + 1e-30);
        v[..n].iter_mut().zip(&*image).for_each(|(v, w)| *v = *w + little);
    }
    radius
}

/// The lower triangle of `target` becomes that of M, with `diagonal` on the diagonal.
fn copy_lower<S: Real>(m: &[S], target: &mut [S], diagonal: S, n: usize) {
    for j in 0..n {
        target[j * n + j] = diagonal;
        target[j * n + j + 1..(j + 1) * n].copy_from_slice(&m[j * n + j + 1..(j + 1) * n]);
    }
}

/// The lower triangle of `matrix` becomes its Cholesky factor. False if it is not positive definite.
fn factorize<S: Real>(matrix: &mut [S], n: usize, scratch: &mut Scratch) -> bool {
    let whole = MatMut::from_column_major_slice_mut(matrix, n, n);
    let stack = scratch.stack();
    llt::factor::cholesky_in_place(whole, Default::default(), Par::Seq, stack, tuned()).is_ok()
}

/// The lower triangle of `target` becomes that of N⁻¹ = (I + M)⁻¹; `room` is used. False if N is not positive definite.
fn invert<S: Real>(m: &[S], target: &mut [S], room: &mut [S], n: usize) -> bool {
    // SAFETY: different matrices of n² numbers.
    unsafe {
        mirror::<S, S>(m.as_ptr(), n, target.as_mut_ptr(), n, 1.0);
        target.iter_mut().step_by(n + 1).for_each(|x| *x = S::of(1.0));
        inverse::invert(Span2::square(target.as_mut_ptr(), n), Span2::square(room.as_mut_ptr(), n))
    }
}

/// ‖C∘(N⁻¹ − I − M)‖_F + ‖C∘(N⁻¹ − I + M)‖_F, the length of the centre and the radius of the ball that the sandwich puts
/// the gap into, both doubled. The lower triangle of `n_inverse` is N⁻¹.
#[inline(always)]
fn ball<S: Real>(m: &[S], n_inverse: &mut [S], vectors: &mut Vectors<S>, coupling: &Coupling) -> f64 {
    let n = vectors.n;
    let (mut diagonal, mut totals) = (0.0, Totals::<2>::new());
    for j in 0..n {
        let from = group_start(j);
        weigh(vectors, coupling, from, j);
        let column = &mut n_inverse[j * n..][..n];
        diagonal += ((column[j].wide() - 1.0) * coupling.at(j, j)).powi(2);
        column[from..j + 1].fill(S::default());
        let mut sums = [[S::default(); LANES]; 2];
        let (inverses, rest) = column[from..].as_chunks::<LANES>();
        let (changes, other) = m[j * n..][from..n].as_chunks::<LANES>();
        let (last, other) = (padded(rest), padded(other));
        let ends = (!rest.is_empty()).then_some((&last, &other));
        let columns = inverses.iter().zip(changes).chain(ends);
        for ((inverse, x), c) in columns.zip(groups(vectors.weights, from)) {
            for k in 0..LANES {
                let (low, high) = ((inverse[k] - x[k]) * c[k], (inverse[k] + x[k]) * c[k]);
                sums[0][k] += low * low;
                sums[1][k] += high * high;
            }
        }
        totals.add(&sums);
    }
    totals.sums().map(|sum| (2.0 * sum + diagonal).sqrt()).iter().sum()
}
