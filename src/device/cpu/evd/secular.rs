//! The secular equation 1 + Σ wᵢ/(dᵢ − λ) = 0 in double precision, for several roots at once.
//!
//! With rising poles d and weights w > 0 there is one root above each pole: λ_j in (d_j, d_{j+1}), and the last one at
//! most Σ w above the last pole. A root is kept as its distance μ from the nearer of these poles, so that all differences
//! dᵢ − λ_j have full relative accuracy. In double precision this suffices for vectors that are orthogonal in single
//! precision: the weights need not be computed again from the roots, as they are where both are of one precision.

use std::array::from_fn;

/// Roots that are worked on together.
const LANES: usize = 8;
type Group = [f64; LANES];

/// Steps to a root; three to six are usual.
const MOST_STEPS: usize = 60;
/// A step this small, relative to the distances from both poles, is the last one: the error after it is its square.
const LAST_STEP: f64 = 3e-8;
/// Rounding of the sums, per term, relative to their sizes.
const ROUNDING: f64 = 2e-16;

/// The equation.
#[derive(Clone, Copy)]
pub(super) struct Secular<'a> {
    /// d, rising.
    pub poles: &'a [f64],
    /// w.
    pub weights: &'a [f64],
    /// Σ w.
    pub total: f64,
}

/// Σ wᵢ/(dᵢ − λ) and its derivative, over the poles up to the root's own, and over those above.
struct Sums {
    below: Group,
    below_slope: Group,
    above: Group,
    above_slope: Group,
}

impl Secular<'_> {
    /// Roots `first` to `first` + `origins`' length: the pole next to each, and the distance from it. False if one was not
    /// found.
    #[inline(always)]
    pub fn solve(&self, first: usize, origins: &mut [f64], distances: &mut [f64]) -> bool {
        let mut found = true;
        for (group, (origins, distances)) in
            origins.chunks_mut(LANES).zip(distances.chunks_mut(LANES)).enumerate()
        {
            let (origin, distance, done) = self.solve_group(first + group * LANES);
            origins.copy_from_slice(&origin[..origins.len()]);
            distances.copy_from_slice(&distance[..distances.len()]);
            found &= done;
        }
        found
    }

    #[inline(always)]
    fn solve_group(&self, first: usize) -> (Group, Group, bool) {
        let last = self.poles.len() - 1;
        // Beyond the last root it is found again.
        let root: [usize; LANES] = from_fn(|k| (first + k).min(last));
        let pole: Group = from_fn(|k| self.poles[root[k]]);
        let weight: Group = from_fn(|k| self.weights[root[k]]);
        // Above the last root there is a pole of weight 0, far enough for the root to be in the lower half.
        let gap: Group = from_fn(|k| match root[k] {
            j if j == last => 2.5 * self.total,
            j => self.poles[j + 1] - pole[k],
        });
        let next: Group = from_fn(|k| if root[k] == last { 0.0 } else { self.weights[root[k] + 1] });

        // In the middle of the interval: the sign tells which pole is nearer. With the terms of the other poles as they are
        // there, c + w_j/(d_j − λ) + w_{j+1}/(d_{j+1} − λ) = 0 gives a first root.
        let half: Group = from_fn(|k| 0.5 * gap[k]);
        let sums = self.sums(first, &pole, &half);
        let value: Group = from_fn(|k| 1.0 + sums.below[k] + sums.above[k]);
        let lower: [bool; LANES] = from_fn(|k| value[k] > 0.0);
        let origin: Group = from_fn(|k| if lower[k] { pole[k] } else { pole[k] + gap[k] });
        // Poles relative to the origin.
        let own: Group = from_fn(|k| if lower[k] { 0.0 } else { -gap[k] });
        let other: Group = from_fn(|k| if lower[k] { gap[k] } else { 0.0 });
        let mut low: Group = from_fn(|k| if lower[k] { 0.0 } else { -half[k] });
        let mut high: Group = from_fn(|k| if lower[k] { half[k] } else { 0.0 });
        let mut at: Group = from_fn(|k| {
            let c = value[k] - (next[k] - weight[k]) / half[k];
            let (a, b) = if lower[k] {
                (c * gap[k] + weight[k] + next[k], weight[k] * gap[k])
            } else {
                (weight[k] + next[k] - c * gap[k], -next[k] * gap[k])
            };
            within(small_root(c, a, b), low[k], high[k])
        });
        let rounding = ROUNDING * self.poles.len() as f64;
        let mut open = [true; LANES];
        for _ in 0..MOST_STEPS {
            let sums = self.sums(first, &origin, &at);
            for k in 0..LANES {
                let value = 1.0 + sums.below[k] + sums.above[k];
                let size = 1.0 - sums.below[k] + sums.above[k];
                let slope = sums.below_slope[k] + sums.above_slope[k];
                let (left, right) = (own[k] - at[k], other[k] - at[k]);
                low[k] = if open[k] && value < 0.0 { at[k] } else { low[k] };
                high[k] = if open[k] && value > 0.0 { at[k] } else { high[k] };
                // Each sum becomes r + s/(d − λ), with its value and derivative here.
                let c = value - left * sums.below_slope[k] - right * sums.above_slope[k];
                let a = (left + right) * value - left * right * slope;
                let to = within(at[k] + small_root(c, a, left * right * value), low[k], high[k]);
                let step = (to - at[k]).abs();
                let settled = value.abs() <= rounding * size;
                let last = step <= LAST_STEP * right.min(-left);
                at[k] = if open[k] && !settled { to } else { at[k] };
                open[k] &= !settled && !last;
            }
            if !open.iter().any(|open| *open) {
                break;
            }
        }
        let done = !open.iter().any(|open| *open);
        (origin, at, done)
    }

    /// At `origin` + `at`. Poles up to `first` are below all roots of the group, those from `first` + [`LANES`] on above.
    #[inline(always)]
    fn sums(&self, first: usize, origin: &Group, at: &Group) -> Sums {
        let (poles, weights) = (self.poles, &self.weights[..self.poles.len()]);
        let zero = [0.0; LANES];
        let (mut below, mut below_slope) = (zero, zero);
        for (pole, weight) in poles[..first].iter().zip(weights) {
            let inverse: Group = from_fn(|k| 1.0 / ((pole - origin[k]) - at[k]));
            let term: Group = inverse.map(|x| weight * x);
            below = from_fn(|k| below[k] + term[k]);
            below_slope = from_fn(|k| below_slope[k] + term[k] * inverse[k]);
        }
        let (mut above, mut above_slope) = (zero, zero);
        let middle = (first + LANES).min(poles.len());
        for i in first..middle {
            let inverse: Group = from_fn(|k| 1.0 / ((poles[i] - origin[k]) - at[k]));
            let term: Group = inverse.map(|x| weights[i] * x);
            let mine: [bool; LANES] = from_fn(|k| i <= first + k);
            below = from_fn(|k| below[k] + if mine[k] { term[k] } else { 0.0 });
            below_slope = from_fn(|k| below_slope[k] + if mine[k] { term[k] * inverse[k] } else { 0.0 });
            above = from_fn(|k| above[k] + if mine[k] { 0.0 } else { term[k] });
            above_slope = from_fn(|k| above_slope[k] + if mine[k] { 0.0 } else { term[k] * inverse[k] });
        }
        for (pole, weight) in poles[middle..].iter().zip(&weights[middle..]) {
            let inverse: Group = from_fn(|k| 1.0 / ((pole - origin[k]) - at[k]));
            let term: Group = inverse.map(|x| weight * x);
            above = from_fn(|k| above[k] + term[k]);
            above_slope = from_fn(|k| above_slope[k] + term[k] * inverse[k]);
        }
        Sums { below, below_slope, above, above_slope }
    }
}

/// The root of c·x² − a·x + b = 0 that lies between the poles, without cancellation.
#[inline(always)]
fn small_root(c: f64, a: f64, b: f64) -> f64 {
    let root = (a * a - 4.0 * b * c).max(0.0).sqrt();
    if a > 0.0 { 2.0 * b / (a + root) } else { (a - root) / (2.0 * c) }
}

/// `x`, or the middle if it is not between `low` and `high`.
#[inline(always)]
fn within(x: f64, low: f64, high: f64) -> f64 {
    if x > low && x < high { x } else { 0.5 * (low + high) }
}
