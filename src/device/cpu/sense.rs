//! The verb `sense`: RC, α and the residual of a factor in its stale basis, and the search for the
//! smallest certified damping.

use super::certificate::{Corrected, Found};
use super::real::{Real, vectorized, wide_sum_of_squares};
use super::scratch::Scratch;
use super::{Cpu, Places, Precision, Shared};
use crate::device::{SEARCH_RATIO, SenseOrder};
use crate::engine::rules::Rules;
use crate::preconditioner::damping::inverse_power;
use crate::preconditioner::policy::{BoundRule, Sensed};
use std::cell::Cell;

/// Measures factors, and keeps the answers for the readback.
pub(super) fn sense(cpu: &mut Cpu, rules: &Rules, orders: &[SenseOrder]) {
    cpu.sensed.clear();
    cpu.sensed.resize(orders.len(), Sensed::default());
    let answers = Places(cpu.sensed.as_mut_ptr());
    let diagonals = Places(cpu.diagonals.as_mut_ptr());
    cpu.each_factor(orders.len(), &|shared, task, scratch| {
        let order = &orders[task];
        let answer = match shared.plan.param_of(order.factor).statistic {
            Precision::F32 => sense_factor::<f32>(shared, rules, order, scratch),
            Precision::F64 => sense_factor::<f64>(shared, rules, order, scratch),
        };
        if order.keep_diagonal {
            let place = shared.diagonal_offsets[order.factor];
            for (i, x) in scratch.vector.iter().enumerate() {
                // SAFETY: every factor has its own stretch of diagonals.
                unsafe { diagonals.put(place + i, *x) };
            }
        }
        // SAFETY: one place per task.
        unsafe { answers.put(task, answer) };
    });
}

fn sense_factor<S: Real>(
    shared: &Shared,
    rules: &Rules,
    order: &SenseOrder,
    scratch: &mut Scratch,
) -> Sensed {
    let factor = &shared.plan.factors[order.factor];
    let scale = rules.statistic_scale(shared.clock(factor.block));
    scratch.load_statistic::<S>(shared, factor, scale);
    scratch.rotate::<S>(shared, factor);
    let n = factor.dim;
    // SAFETY: `rotate` filled matrix 2; the spectrum has n numbers.
    let (h, spectrum) = unsafe {
        (
            std::slice::from_raw_parts(scratch.matrix::<S>(2), n * n),
            std::slice::from_raw_parts(shared.slot::<S>(factor.spectrum), n),
        )
    };
    scratch.vector.clear();
    scratch.vector.extend((0..n).map(|i| h[i + i * n].wide().max(0.0)));
    let diagonal = scratch.vector.iter().copied();
    let ends = (diagonal.clone().fold(f64::INFINITY, f64::min), diagonal.fold(0.0, f64::max));
    let base = order.base.at(ends.1);
    let none = (f64::NAN, f64::NAN);
    if let (Some(certificate), Some(fresh)) = (order.certificate, factor.fresh_spectrum) {
        // SAFETY: the factor's own slot, of n numbers.
        let fresh = unsafe { std::slice::from_raw_parts(shared.slot::<S>(fresh), n) };
        let diagonal = std::mem::take(&mut scratch.vector);
        let corrected = Corrected { diagonal: &diagonal, fresh, exponent: factor.exponent, epsilon: base };
        let Found { relative_change, alpha, residual, bound, .. } = corrected.bound(certificate, scratch);
        scratch.vector = diagonal;
        return Sensed { relative_change, alpha, residual, certified: none, ends, bound, kappa: f64::NAN };
    }
    let epsilon = base.max(shared.record(order.factor).gauges.epsilon);
    let weights = Cell::from_mut(&mut scratch.room[..n]).as_slice_of_cells();
    let drift = Drift { h, spectrum, exponent: factor.exponent, weights };
    let certified = match order.search {
        Some(search) => drift.smallest_sufficient(base, search.most.at(ends.1), search.target),
        None => none,
    };
    Sensed {
        relative_change: drift.relative_change(epsilon),
        alpha: drift.alpha(epsilon),
        residual: residual(h, &scratch.vector),
        certified,
        ends,
        bound: (f64::NAN, BoundRule::None),
        kappa: f64::NAN,
    }
}

/// H = QᵀLQ against D: the drift of a factor, seen in its stale basis.
pub(super) struct Drift<'a, S> {
    /// Lower triangle of H, column-major.
    pub h: &'a [S],
    /// D.
    pub spectrum: &'a [S],
    /// 1/p.
    pub exponent: f64,
    /// Room for as many numbers as D has.
    pub weights: &'a [Cell<f64>],
}

impl<S: Real> Drift<'_, S> {
    fn damped(&self, epsilon: f64) -> impl Iterator<Item = f64> {
        self.spectrum.iter().map(move |d| (d.wide().max(0.0) + epsilon).max(f64::MIN_POSITIVE))
    }

    /// RC = ‖(H − D)_ij / √((D_i+ε)(D_j+ε))‖_F.
    pub fn relative_change(&self, epsilon: f64) -> f64 {
        let n = self.spectrum.len();
        let weights = self.weights;
        weights.iter().zip(self.damped(epsilon)).for_each(|(weight, x)| weight.set(1.0 / x));
        vectorized(
            #[inline(always)]
            || {
                let mut total = 0.0;
                for j in 0..n {
                    let column = &self.h[j * n..(j + 1) * n];
                    let on = (column[j].wide() - self.spectrum[j].wide()) * weights[j].get();
                    let off = weighted_squares(&column[j + 1..], &weights[j + 1..]);
                    total += on * on + 2.0 * off * weights[j].get();
                }
                total.sqrt()
            },
        )
    }

    /// α = max e / ‖e‖₂, e_i = (D_i+ε)^(−1/p).
    pub fn alpha(&self, epsilon: f64) -> f64 {
        let (mut largest, mut squares) = (0.0f64, 0.0);
        for x in self.damped(epsilon) {
            let e = inverse_power(x, self.exponent);
            largest = largest.max(e);
            squares += e * e;
        }
        largest / squares.sqrt()
    }

    /// h = α·RC/p.
    pub fn proxy(&self, epsilon: f64) -> f64 {
        self.relative_change(epsilon) * self.alpha(epsilon) * self.exponent
    }

    /// The smallest ε in [low, high] with h(ε) ≤ target, and h there; NaN if there is none. RC and α
    /// both fall as ε grows, so bisection finds it; the end that is kept satisfies the inequality.
    fn smallest_sufficient(&self, low: f64, high: f64, target: f64) -> (f64, f64) {
        let at_low = self.proxy(low);
        if at_low <= target {
            return (low, at_low);
        }
        let at_high = self.proxy(high);
        if at_high.is_nan() || at_high > target {
            return (f64::NAN, f64::NAN);
        }
        let (mut low, mut best) = (low, (high, at_high));
        while best.0 > low * SEARCH_RATIO {
            // The geometric mean, root by root: the product of two tiny numbers would be zero.
            let middle = low.sqrt() * best.0.sqrt();
            let proxy = self.proxy(middle);
            if proxy <= target {
                best = (middle, proxy);
            } else {
                low = middle;
            }
        }
        best
    }
}

/// Σ x²·w, in lanes so that it vectorises in a fixed order.
#[inline(always)]
fn weighted_squares<S: Real>(x: &[S], w: &[Cell<f64>]) -> f64 {
    let mut lanes = [0.0; 8];
    let (mut xs, mut ws) = (x.chunks_exact(8), w.chunks_exact(8));
    for (x, w) in (&mut xs).zip(&mut ws) {
        for ((lane, x), w) in lanes.iter_mut().zip(x).zip(w) {
            *lane += x.wide() * x.wide() * w.get();
        }
    }
    let rest = xs.remainder().iter().zip(ws.remainder());
    lanes.iter().sum::<f64>() + rest.map(|(x, w)| x.wide() * x.wide() * w.get()).sum::<f64>()
}

/// ‖H − diag d‖_F / ‖H‖_F with d = max(diag H, 0).
fn residual<S: Real>(h: &[S], d: &[f64]) -> f64 {
    let n = d.len();
    let (off, whole) = vectorized(
        #[inline(always)]
        || {
            let (mut off, mut whole) = (0.0, 0.0);
            for j in 0..n {
                let on = h[j + j * n].wide();
                let below = wide_sum_of_squares(&h[j * n + j + 1..(j + 1) * n]);
                off += 2.0 * below + (on - d[j]).powi(2);
                whole += 2.0 * below + on * on;
            }
            (off, whole)
        },
    );
    // A statistic of zeros is diagonal.
    if whole == 0.0 { 0.0 } else { (off / whole).sqrt() }
}
