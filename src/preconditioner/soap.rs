//! SOAP: Adam in the eigenbasis of Shampoo's statistics (Vyas et al.), which arrays it keeps for a block, and the
//! measure κ of how stale a basis is.
//!
//! Per block and step n = 1, 2, … (the first gradient of all only makes the basis and does not count):
//! g′ = G projected by all Q_k; m ← β₁m + (1−β₁)g′; v ← β₂v + (1−β₂)g′²; d = m/(√v + ε); u = d projected back;
//! W ← W − lr·√(1−β₂ⁿ)/(1−β₁ⁿ)·u. A refresh sorts the columns of Q_k by diag(Q_kᵀ A_k Q_k), permutes v with them,
//! takes Q_k ← QR(A_k Q_k), and turns m into the new basis. m stays in the basis from step to step.
//!
//! Its β₁ is `beta1`, its β₂ and ε are `grafting_beta2` and `grafting_epsilon` (it runs that Adam in the basis), the
//! decay of its statistics is `beta2`.

use super::policy::{Action, Sensed};
use super::{Access, Branch, FactorRecord};
use crate::config::{Config, RefreshSchedule, SoapForm};
use crate::engine::plan::{Array, SlotKind};
use crate::engine::ports::Verb;
use crate::error::Result;
use crate::memory::push;
use crate::tensor::Precision;

/// SOAP's options that shape its state and its verbs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Soap {
    /// The statistics are kept in the basis.
    pub in_basis: bool,
    /// The direction of a block is divided by its root mean square.
    pub normalizes: bool,
    /// A larger side has no basis.
    pub largest_side: usize,
    /// Vectors have a basis.
    pub vectors: bool,
}

impl Soap {
    /// The configuration's.
    pub fn of(config: &Config) -> Soap {
        let limit = config.max_precond_dim;
        Soap {
            in_basis: config.soap_form == SoapForm::InBasis,
            normalizes: config.normalize_grads,
            largest_side: if limit > 0 { limit as usize } else { usize::MAX },
            vectors: config.precondition_1d,
        }
    }

    /// Whether a side gets a basis in a block of order `order`.
    pub fn has_basis(&self, order: usize, side: usize) -> bool {
        side <= self.largest_side && (order > 1 || self.vectors)
    }

    /// Statistic and basis of every axis that has them. The basis is used in every step: it has the precision of
    /// the work.
    pub fn arrays(
        &self,
        dims: &[usize],
        statistic: Precision,
        work: Precision,
        arrays: &mut Vec<Array>,
    ) -> Result<()> {
        let kinds = [(self.statistic(), statistic), (SlotKind::Basis, work)];
        for (kind, precision) in kinds {
            for (axis, dim) in dims.iter().enumerate() {
                if self.has_basis(dims.len(), *dim) {
                    let square = Array::numbers(kind, Some(axis), precision, &[*dim, *dim])?;
                    push(arrays, square, "the plan of blocks")?;
                }
            }
        }
        Ok(())
    }

    /// What its statistics are called: those in the basis mean something else.
    fn statistic(&self) -> SlotKind {
        if self.in_basis { SlotKind::RotatedStatistic } else { SlotKind::Statistic }
    }

    /// What `verb` does with an array of numbers.
    pub fn access(&self, verb: Verb, kind: SlotKind) -> Access {
        use Access::{None, Reads, Writes};
        use SlotKind::{Basis, Filter, Moment, RotatedStatistic, Statistic};
        match (verb, kind) {
            (_, RotatedStatistic) => Writes,
            (Verb::Accumulate, Statistic) => Writes,
            (Verb::Apply, Basis) => Reads,
            (Verb::Apply, Filter | Moment) => Writes,
            (Verb::Check, Statistic) => Reads,
            (Verb::Check, Basis | Filter | Moment) => Writes,
            _ => None,
        }
    }
}

/// Whether the next refresh of a factor makes its basis orthonormal again.
pub fn polishes(record: &FactorRecord) -> bool {
    (record.counters.evd_calls + 1) % POLISH_PERIOD == 0
}

/// Whether κ decides about a refresh, so that it has to be known before.
pub fn senses(config: &Config) -> bool {
    config.refresh_schedule == RefreshSchedule::Kappa
}

/// Refreshes a basis whose κ is above the threshold.
pub fn decide(config: &Config, record: &mut FactorRecord, sensed: &Sensed) -> Action {
    record.gauges.kappa = sensed.kappa;
    record.counters.proxy_calls += 1;
    // A κ that is no number is no reason to trust the basis.
    if sensed.kappa <= config.kappa_threshold {
        record.counters.reuse_calls += 1;
        record.counters.branch = Branch::ReuseSame as i64;
        return Action::Reuse { epsilon: record.gauges.epsilon, adopt_diagonal: false };
    }
    record.counters.branch = Branch::EvdThreshold as i64;
    Action::Refresh
}

/// Diagonal entries below this share of the largest count as this much.
pub const FLOOR: f64 = 1e-6;

/// Keeps a division by a zero root mean square finite (the authors' code has the same constant).
pub const TINY_RMS: f64 = 1e-30;

/// Q ← Q·Z multiplies rounding errors: at every so many refreshes the basis is made orthonormal again.
const POLISH_PERIOD: i64 = 16;

/// κ of a statistic H = QᵀAQ in its basis: with s = diag H, a = s + 10⁻⁶·max s, C_ij = H_ij/√(a_i a_j),
/// κ² = (1/n) Σ_{i<j} C_ij²·(a_i + a_j)/(√a_i + √a_j)².
///
/// The leading term of E‖u_stale − u_fresh‖²/E‖u_fresh‖², see `docs/theory.md`. `h(i, j)` is asked for i ≥ j.
pub fn kappa(n: usize, h: impl Fn(usize, usize) -> f64) -> f64 {
    let largest = (0..n).map(|i| h(i, i)).fold(0.0, f64::max);
    if largest == 0.0 {
        // A statistic of zeros is diagonal in every basis.
        return 0.0;
    }
    let a: Vec<f64> = (0..n).map(|i| h(i, i).max(0.0) + FLOOR * largest).collect();
    let roots: Vec<f64> = a.iter().map(|a| a.sqrt()).collect();
    let mut total = 0.0;
    for j in 0..n {
        let mut column = 0.0;
        for i in j + 1..n {
            let c = h(i, j) / (roots[i] * roots[j] * (roots[i] + roots[j]));
            column += c * c * (a[i] + a[j]);
        }
        total += column;
    }
    (total / n as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use faer::{Mat, Side};

    /// A random symmetric positive definite matrix whose diagonal spans four orders of magnitude.
    fn statistic(n: usize, seed: &mut u64, off: f64) -> Mat<f64> {
        let mut random = || {
            *seed ^= *seed << 13;
            *seed ^= *seed >> 7;
            *seed ^= *seed << 17;
            (*seed >> 11) as f64 / (1u64 << 53) as f64 - 0.5
        };
        let scales: Vec<f64> = (0..n).map(|_| 10f64.powf(2.0 * random())).collect();
        // (I + off·X)(I + off·X)ᵀ is positive definite for almost every X; then rows and columns are scaled.
        let x = Mat::from_fn(n, n, |i, j| if i == j { 1.0 } else { 0.0 } + off * random());
        let gram = &x * x.transpose();
        Mat::from_fn(n, n, |i, j| scales[i] * scales[j] * gram[(i, j)])
    }

    fn root_of(h: &Mat<f64>) -> Mat<f64> {
        let eigen = h.self_adjoint_eigen(Side::Lower).unwrap();
        let (n, u, d) = (h.nrows(), eigen.U(), eigen.S().column_vector());
        Mat::from_fn(n, n, |i, j| (0..n).map(|k| u[(i, k)] * d[k].max(0.0).sqrt() * u[(j, k)]).sum())
    }

    #[test]
    fn the_bounds_of_the_theorems_hold_on_random_statistics() {
        let mut seed = 0x9E37_79B9_7F4A_7C15;
        let mut largest = 0.0f64;
        for case in 0..1500 {
            let n = 2 + case % 9;
            let h = statistic(n, &mut seed, [0.05, 0.3, 1.0, 3.0][case % 4]);
            let s: Vec<f64> = (0..n).map(|i| h[(i, i)]).collect();
            let root = root_of(&h);
            // T1: what κ² is the leading term of.
            let exact = 2.0 * (1.0 - (0..n).map(|i| root[(i, i)] / s[i].sqrt()).sum::<f64>() / n as f64);
            // T2: ≤ tr(N⁻¹)/n − 1, N = I + C.
            let normal = Mat::from_fn(n, n, |i, j| h[(i, j)] / (s[i] * s[j]).sqrt());
            let eigen = normal.self_adjoint_eigen(Side::Lower).unwrap();
            let values: Vec<f64> = (0..n).map(|i| eigen.S().column_vector()[i]).collect();
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            if least < 1e-7 {
                continue;
            }
            let rounding = 1e-9 / least;
            let inverse = values.iter().map(|x| 1.0 / x).sum::<f64>() / n as f64 - 1.0;
            let off = values.iter().map(|x| (x - 1.0) * (x - 1.0)).sum::<f64>();
            assert!(exact <= inverse + rounding, "T2: {exact} > {inverse}");
            assert!(inverse <= off / (n as f64 * least) + rounding, "T2, second part");
            // T3: 0 ≤ Σ√H_ii − tr √H ≤ Σ_{i≠j} H_ij²/(√(s_i s_j)(√s_i + √s_j)).
            let gap: f64 = (0..n).map(|i| s[i].sqrt() - root[(i, i)]).sum();
            let mut bound = 0.0;
            for i in 0..n {
                for j in (0..n).filter(|j| *j != i) {
                    let (a, b) = (s[i].sqrt(), s[j].sqrt());
                    bound += h[(i, j)].powi(2) / (a * b * (a + b));
                }
            }
            let size: f64 = s.iter().map(|s| s.sqrt()).sum();
            assert!(gap >= -1e-9 * size && gap <= bound + 1e-9 * size, "T3: {gap} against {bound}");
            // κ² is the leading term: where C is small both agree.
            let measured = kappa(n, |i, j| h[(i, j)]).powi(2);
            if off / (n as f64) < 1e-2 {
                largest = largest.max((measured / exact - 1.0).abs());
            }
        }
        assert!(largest > 0.0 && largest < 0.25, "κ² is off its meaning by {largest}");
    }

    #[test]
    fn kappa_is_zero_for_a_diagonal_and_has_no_units() {
        assert_eq!(kappa(3, |i, j| if i == j { i as f64 } else { 0.0 }), 0.0);
        assert_eq!(kappa(2, |_, _| 0.0), 0.0);
        let h = |scale: f64| move |i: usize, j: usize| scale * [[4.0, 1.0], [1.0, 1.0]][i][j];
        let expected = (0.5 * 0.25 * 5.0 / 9.0f64).sqrt();
        assert!((kappa(2, h(1.0)) - expected).abs() < 1e-5);
        assert!((kappa(2, h(1e-20)) - kappa(2, h(1.0))).abs() < 1e-12);
    }

    #[test]
    fn kappa_above_its_threshold_refreshes() {
        let config = Config { kappa_threshold: 0.5, ..Config::reference() };
        let mut record = FactorRecord::new(1e-9);
        let sensed = |kappa| Sensed { kappa, ..Sensed::default() };
        assert!(matches!(decide(&config, &mut record, &sensed(0.4)), Action::Reuse { .. }));
        assert_eq!((record.counters.reuse_calls, record.gauges.kappa), (1, 0.4));
        assert_eq!(decide(&config, &mut record, &sensed(0.6)), Action::Refresh);
        assert_eq!(decide(&config, &mut record, &sensed(f64::NAN)), Action::Refresh);
    }
}
