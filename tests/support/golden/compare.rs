//! How far a recording is from its trace.

use super::case::{COUNTERS, Case, Factor, SERIES};
use super::{Precision, Recording};
use foam::FactorStats;

/// The outcome of one run.
pub struct Report {
    /// Errors of weights, series and final matrices, each beside its tolerance.
    pub checks: Vec<Check>,
    /// Counters compared: every column of every factor at every step.
    pub compared: usize,
    /// Those that differ.
    pub differing: usize,
    /// The first that differs, in order of steps.
    pub first_difference: Option<Difference>,
    /// Whether the column `damp` was among them.
    pub damp_compared: bool,
}

/// The largest error of one kind, relative to its tolerance.
pub struct Check {
    /// What is compared: the name of the trace's tensor or column.
    pub name: &'static str,
    /// The error; absent if the trace has nothing to compare.
    pub error: Option<f64>,
    /// What it may be.
    pub tolerance: f64,
    /// Where it is.
    pub place: String,
}

/// A counter that differs.
pub struct Difference {
    /// The step, from 1.
    pub step: usize,
    /// The factor's label.
    pub factor: String,
    /// The counter's name.
    pub column: &'static str,
    /// The trace's count.
    pub expected: i64,
    /// Ours.
    pub got: i64,
}

impl Report {
    /// Every error within its tolerance and every counter equal.
    pub fn passed(&self) -> bool {
        self.differing == 0 && self.checks.iter().all(Check::passed)
    }
}

impl Check {
    /// The error is within its tolerance; what is not a number is not.
    pub fn passed(&self) -> bool {
        self.error.is_none_or(|error| error <= self.tolerance)
    }

    fn new(name: &'static str, tolerance: f64) -> Self {
        Check { name, error: None, tolerance, place: String::new() }
    }

    fn see(&mut self, error: f64, tolerance: f64, place: impl FnOnce() -> String) {
        let error = if error.is_nan() { f64::INFINITY } else { error };
        if self.error.is_none_or(|worst| error / tolerance > worst / self.tolerance) {
            (self.error, self.tolerance, self.place) = (Some(error), tolerance, place());
        }
    }
}

/// Compares everything that the trace holds.
pub(super) fn compare(case: &Case, precision: Precision, run: &Recording) -> Result<Report, String> {
    let mut checks = vec![weights(case, precision, run)];
    checks.extend(series(case, precision, run));
    checks.extend(finals(case, precision, run));
    let mut report = Report {
        checks,
        compared: 0,
        differing: 0,
        first_difference: None,
        damp_compared: case.damp_is_comparable,
    };
    if case.setup.preset == "soap" {
        refreshes(case, run, &mut report);
    } else {
        counters(case, run, &mut report);
    }
    Ok(report)
}

/// max‖W − W_ref‖_F / max‖W_ref − W₀‖_F over the stored steps, for the worst parameter.
fn weights(case: &Case, precision: Precision, run: &Recording) -> Check {
    let tolerance = case.tolerance(precision).weights;
    let mut check = Check::new("W", tolerance);
    for (i, (param, ours)) in case.params.iter().zip(&run.weights).enumerate() {
        let expected = &param.weights[precision as usize];
        let moved = expected.iter().map(|w| distance(w, &param.start)).fold(0.0, f64::max);
        // Where the file has fewer rows than steps, they are the last ones.
        let skipped = case.w_steps.len() - expected.len();
        for ((t, w), expected) in case.w_steps.iter().zip(ours).skip(skipped).zip(expected) {
            check.see(ratio(distance(w, expected), moved), tolerance, || format!("p{i} at t = {t}"));
        }
    }
    check
}

fn series(case: &Case, precision: Precision, run: &Recording) -> [Check; 4] {
    let tolerance = case.tolerance(precision).series;
    let mut checks = SERIES.map(|name| Check::new(name, tolerance));
    for (f, factor) in case.factors.iter().enumerate() {
        for (t, expected) in factor.series[precision as usize].chunks_exact(SERIES.len()).enumerate() {
            let info = &run.statistics[t][f];
            // The trace of the residual policy keeps the residual in the column of the proxy.
            let h = if case.setup.policy == "diagonal_residual" { info.residual } else { info.proxy };
            let ours = [info.epsilon, h, info.relative_change, info.alpha];
            for ((check, x), expected) in checks.iter_mut().zip(ours).zip(expected) {
                // A value that the reference does not have must not exist here either.
                let error = match (x.is_nan(), expected.is_nan()) {
                    (true, true) => continue,
                    (false, false) => ratio((x - expected).abs(), expected.abs()),
                    _ => f64::INFINITY,
                };
                let place = || format!("{} at t = {}: expected {expected:e}, got {x:e}", factor.label, t + 1);
                check.see(error, tolerance, place);
            }
        }
    }
    checks
}

/// Relative Frobenius errors of the matrices after the last step.
fn finals(case: &Case, precision: Precision, run: &Recording) -> [Check; 4] {
    let allowed = case.tolerance(precision);
    let mut checks = ["factor", "inv", "stale", "eigvals"].map(|name| Check::new(name, allowed.inverse_root));
    for (factor, ours) in case.factors.iter().zip(&run.finals) {
        let expected = &factor.finals[precision as usize];
        // P = (D + ε)^(−m/p): what moves D by δ moves P by δ·m/p, so D has p/m times the room of P.
        let room = (factor.root / case.setup.exponent_multiplier).max(1.0) * allowed.inverse_root;
        let sorted = |d: &Vec<f64>| {
            let mut d = d.clone();
            d.sort_by(f64::total_cmp);
            d
        };
        let pairs = [
            (&ours.statistic, &expected.statistic, allowed.statistic),
            (&ours.inverse_root, &expected.inverse_root, allowed.inverse_root),
            (&ours.stale, &expected.stale, room),
            (&sorted(&ours.spectrum), &sorted(&expected.spectrum), room),
        ];
        for (check, (x, expected, tolerance)) in checks.iter_mut().zip(pairs) {
            if expected.is_empty() {
                continue;
            }
            let error = ratio(distance(x, expected), distance(expected, &vec![0.0; expected.len()]));
            check.see(error, tolerance, || factor.label.clone());
        }
    }
    checks
}

fn counters(case: &Case, run: &Recording, report: &mut Report) {
    for (t, infos) in (1..).zip(&run.statistics) {
        for (factor, info) in case.factors.iter().zip(infos) {
            let expected = row(factor, t);
            for (column, (expected, got)) in expected.iter().zip(counts(info, t)).enumerate() {
                let name = COUNTERS[column];
                if name == "damp" && !case.damp_is_comparable {
                    continue;
                }
                let expected = *expected as i64;
                report.compared += 1;
                if expected == got {
                    continue;
                }
                report.differing += 1;
                report.first_difference.get_or_insert_with(|| {
                    let factor = factor.label.clone();
                    Difference { step: t, factor, column: name, expected, got }
                });
            }
        }
    }
}

/// The SOAP authors' code makes a basis at the first step and refreshes it at every period after that.
fn refreshes(case: &Case, run: &Recording, report: &mut Report) {
    let option = |key: &str| -> usize {
        let own = case.setup.options.iter().rev().find(|(name, _)| name == key);
        own.and_then(|(_, value)| value.parse().ok()).expect("a trace of SOAP names all options")
    };
    let (period, largest) = (option("check_period"), option("max_precond_dim"));
    for (t, infos) in (1..).zip(&run.statistics) {
        for info in infos.iter().filter(|info| info.dim <= largest) {
            let (expected, got) = (1 + (t - 1) / period, info.counters.evd_calls as usize);
            report.compared += 1;
            if expected != got {
                report.differing += 1;
                report.first_difference.get_or_insert_with(|| Difference {
                    step: t,
                    factor: format!("p{}.b{}.f{}", info.id.param, info.id.block, info.id.axis),
                    column: "evd",
                    expected: expected as i64,
                    got: got as i64,
                });
            }
        }
    }
}

fn row(factor: &Factor, t: usize) -> &[f64] {
    &factor.counters[(t - 1) * COUNTERS.len()..t * COUNTERS.len()]
}

/// Our statistics in the trace's columns. The trace's `branch` is that of step `t`, and 0 where nothing was checked;
/// ours is that of the last check. A refresh that never happened is step -1 there and step 0 here.
fn counts(info: &FactorStats, t: usize) -> [i64; COUNTERS.len()] {
    let count = |n: u64| n as i64;
    let c = &info.counters;
    [
        count(c.checks),
        count(c.evd_calls),
        count(c.proxy_calls),
        count(c.reuse_calls),
        count(c.epsilon_updates),
        count(c.cap_refreshes),
        count(c.residual_calls),
        if info.last_refresh == 0 { -1 } else { count(info.last_refresh) },
        if info.last_check == t as u64 { info.last_branch as i64 } else { 0 },
    ]
}

/// ‖x − y‖_F, infinite if the sizes differ.
fn distance(x: &[f64], y: &[f64]) -> f64 {
    if x.len() != y.len() {
        return f64::INFINITY;
    }
    x.iter().zip(y).map(|(x, y)| (x - y).powi(2)).sum::<f64>().sqrt()
}

/// error / size, where no error is no error whatever the size.
fn ratio(error: f64, size: f64) -> f64 {
    if error == 0.0 { 0.0 } else { error / size }
}
