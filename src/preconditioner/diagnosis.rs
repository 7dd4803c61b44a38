//! What is wrong with a configuration, judged by the records of its factors: pure functions, once for the warnings,
//! the statistics of every language, and `python -m foam doctor`.
//!
//! A factor is judged from its [`ENOUGH`]th check on: bases turn fast at the start of every run. Checks at which it is
//! refreshed whatever is found do not count: they say nothing of the policy. The optimizer has a finding if at least
//! one in [`SHARE`] of the judged factors has it. A factor has at most one of the first three, the cause: noise keeps ε
//! at its cap, and a cap makes every check refresh.

use super::{Counters, FactorRecord, Preconditioner};
use crate::config::{Config, EpsilonMode, Policy, StatisticDtype};
use crate::error::Result;
use crate::memory::{listed, whole_joined};

/// Checks of a factor before it is judged.
pub const ENOUGH: i64 = 20;
/// One in so many factors makes a finding of the optimizer.
const SHARE: usize = 10;
/// A factor that is refreshed at this share of its checks saves next to nothing.
const BUSY: f64 = 0.9;
/// Share of a statistic that is replaced between two checks, above which the drift is the period's.
const FAST: f64 = 0.2;

/// Something that keeps a configuration from working.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Finding {
    /// Right after a refresh, with no drift at all, the proxy is above τ: rounding decides, not staleness.
    NoiseAboveTau,
    /// Most checks wanted a larger ε than `epsilon_max`.
    EpsilonAtCap,
    /// Nearly every check refreshes: nothing is saved.
    AlwaysRefreshes,
    /// ε is at least the largest eigenvalue: the inverse root is nearly a multiple of the identity.
    DampingDominates,
    /// Most eigendecompositions failed or were inaccurate at first.
    RefreshesFail,
}

impl Finding {
    /// Every finding, in the order of its bit.
    pub const ALL: [Finding; 5] = [
        Finding::NoiseAboveTau,
        Finding::EpsilonAtCap,
        Finding::AlwaysRefreshes,
        Finding::DampingDominates,
        Finding::RefreshesFail,
    ];

    /// Its bit in `findings` of the C structs.
    fn bit(self) -> u64 {
        1 << self as u64
    }

    /// Its name: that of the C constant `FOAM_FINDING_*`, in small letters.
    pub fn name(self) -> &'static str {
        match self {
            Finding::NoiseAboveTau => "noise_above_tau",
            Finding::EpsilonAtCap => "epsilon_at_cap",
            Finding::AlwaysRefreshes => "always_refreshes",
            Finding::DampingDominates => "damping_dominates",
            Finding::RefreshesFail => "refreshes_fail",
        }
    }
}

/// A set of findings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Findings(u64);

impl Findings {
    /// Whether there are none: nothing is wrong, as far as the statistics show it.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether `finding` is one of them.
    pub fn contains(self, finding: Finding) -> bool {
        self.0 & finding.bit() != 0
    }

    /// Each of them.
    pub fn iter(self) -> impl Iterator<Item = Finding> {
        Finding::ALL.into_iter().filter(move |finding| self.contains(*finding))
    }

    /// These and `others`.
    pub fn with(self, others: Findings) -> Findings {
        Findings(self.0 | others.0)
    }

    /// The `FOAM_FINDING_*` bits of C.
    pub fn bits(self) -> u64 {
        self.0
    }
}

/// The checks of a factor that say something: those of a policy that looks, and its first, which has nothing to look at.
/// All, where no look is known of: statistics in a file need not have that column.
fn telling_checks(config: &Config, counters: &Counters) -> i64 {
    let senses = Preconditioner::of(config).senses(config);
    match counters.proxy_calls.saturating_add(counters.residual_calls).saturating_add(counters.qr_tracked) {
        looked if senses && looked > 0 => counters.checks.min(looked.saturating_add(1)),
        _ => counters.checks,
    }
}

fn is_judged(config: &Config, record: &FactorRecord) -> bool {
    telling_checks(config, &record.counters) >= ENOUGH
}

/// The findings about one factor.
pub fn judge(config: &Config, record: &FactorRecord) -> Findings {
    let judged = is_judged(config, record);
    let found = Finding::ALL.into_iter().filter(|finding| judged && holds(config, record, *finding));
    Findings(found.map(Finding::bit).sum())
}

fn holds(config: &Config, record: &FactorRecord, finding: Finding) -> bool {
    let (gauges, counters) = (&record.gauges, &record.counters);
    let preconditioner = Preconditioner::of(config);
    // SOAP has no inverse roots: no ε, no proxy.
    let has_roots = preconditioner.has_roots();
    // A stale policy refreshes at every check on purpose, whatever it measures.
    let steered = preconditioner.senses(config) && !(has_roots && config.policy == Policy::Stale);
    let has_proxy = has_roots && steered && config.policy != Policy::DiagonalResidual;
    let is = |cause: Finding| holds(config, record, cause);
    match finding {
        Finding::NoiseAboveTau => has_proxy && gauges.noise_floor > config.tau,
        Finding::EpsilonAtCap => has_proxy && !is(Finding::NoiseAboveTau) && is_at_cap(config, record),
        Finding::AlwaysRefreshes => {
            let telling = telling_checks(config, counters);
            // Each of the others had its refresh.
            let asked = counters.evd_calls - (counters.checks - telling);
            let busy = asked as f64 >= BUSY * telling as f64;
            let known = is(Finding::NoiseAboveTau) || is(Finding::EpsilonAtCap);
            busy && steered && !known
        }
        Finding::DampingDominates => {
            has_roots && gauges.eigenvalue_max > 0.0 && gauges.epsilon >= gauges.eigenvalue_max
        }
        Finding::RefreshesFail => 2 * counters.failed_evds > counters.evd_calls + counters.fallback_stale,
    }
}

fn is_at_cap(config: &Config, record: &FactorRecord) -> bool {
    let (gauges, counters) = (&record.gauges, &record.counters);
    match config.policy {
        // Nothing counts how often it was clipped: judged by where ε is now.
        Policy::FoamNoRefresh => gauges.epsilon >= config.most_damping().at(gauges.eigenvalue_max),
        _ => 2 * counters.cap_refreshes > telling_checks(config, counters),
    }
}

/// What was found about all factors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Diagnosis {
    /// The optimizer's findings.
    pub findings: Findings,
    /// Factors that were judged.
    pub judged: usize,
    /// Factors that have a finding, by its bit's number.
    pub concerned: [usize; Finding::ALL.len()],
    /// The first of them.
    pub first: [usize; Finding::ALL.len()],
}

/// Judges all factors.
pub fn judge_all<'a>(config: &Config, records: impl Iterator<Item = &'a FactorRecord>) -> Diagnosis {
    let mut sum = Diagnosis::default();
    for (factor, record) in records.enumerate() {
        sum.judged += usize::from(is_judged(config, record));
        for finding in judge(config, record).iter() {
            let place = finding as usize;
            if sum.concerned[place] == 0 {
                sum.first[place] = factor;
            }
            sum.concerned[place] += 1;
        }
    }
    for finding in Finding::ALL {
        let concerned = sum.concerned[finding as usize];
        sum.findings.0 |= if concerned > 0 && concerned * SHARE >= sum.judged { finding.bit() } else { 0 };
    }
    sum
}

impl Diagnosis {
    /// What a finding is, and what to try, with `record` that of its first factor. `place` names that factor.
    pub fn text(
        &self,
        config: &Config,
        finding: Finding,
        record: &FactorRecord,
        place: Option<&str>,
    ) -> String {
        let (count, judged) = (self.concerned[finding as usize], self.judged);
        let place = place.map_or(String::new(), |place| format!(" ({place})"));
        let (what, remedy) = (symptom(config, finding, record), remedy(config, finding, record));
        format!("{}: {count} of {judged} factors{place}: {what}; {remedy}", finding.name())
    }

    /// The findings of the optimizer, one line for each; `record` gives a factor's record.
    pub fn lines(&self, config: &Config, record: impl Fn(usize) -> FactorRecord) -> Result<String> {
        let text = |finding| self.text(config, finding, &record(self.first[finding as usize]), None);
        let lines = listed(self.findings.iter().map(text), "the findings")?;
        whole_joined(lines.iter().map(String::as_str), "\n", "the findings")
    }
}

fn symptom(config: &Config, finding: Finding, record: &FactorRecord) -> String {
    let (gauges, counters) = (&record.gauges, &record.counters);
    let (checks, evds) = (counters.checks, counters.evd_calls);
    match finding {
        Finding::NoiseAboveTau => {
            format!("rounding alone makes the proxy {:.2}, above tau = {}", gauges.noise_floor, config.tau)
        }
        Finding::EpsilonAtCap if config.policy == Policy::FoamNoRefresh => {
            format!("epsilon is at epsilon_max = {:.2e}", gauges.epsilon)
        }
        Finding::EpsilonAtCap => {
            let telling = telling_checks(config, counters);
            format!("{} of {telling} checks wanted more than epsilon_max", counters.cap_refreshes)
        }
        Finding::AlwaysRefreshes => {
            format!("{evds} eigendecompositions at {checks} checks, so that nothing is saved")
        }
        Finding::DampingDominates => format!(
            "epsilon = {:.2e} is not below the largest eigenvalue {:.2e}, so that nothing is preconditioned",
            gauges.epsilon, gauges.eigenvalue_max
        ),
        Finding::RefreshesFail => format!(
            "{} of {} eigendecompositions failed or were inaccurate at first",
            counters.failed_evds,
            evds + counters.fallback_stale
        ),
    }
}

/// The option to change, and a value to try.
fn remedy(config: &Config, finding: Finding, record: &FactorRecord) -> String {
    let narrow = config.statistic_dtype != StatisticDtype::F64;
    let doubled = if narrow { "statistic_dtype = f64, or " } else { "" };
    let gauges = &record.gauges;
    match finding {
        Finding::NoiseAboveTau => {
            // The noise falls as ε rises; a tenth of τ leaves room for the drift.
            let factor = 10.0 * gauges.noise_floor / config.tau;
            format!("try {doubled}epsilon = {}", rounded_up(config.epsilon * factor))
        }
        Finding::EpsilonAtCap => {
            format!("try epsilon_max = {}, or policy = sandwich", rounded_up(10.0 * config.epsilon_max))
        }
        Finding::AlwaysRefreshes => busy_remedy(config, record),
        Finding::DampingDominates if config.epsilon_mode == EpsilonMode::Relative => {
            format!("try epsilon = 3e-4")
        }
        Finding::DampingDominates => format!(
            "try epsilon = {}, or epsilon_mode = relative with epsilon = 3e-4",
            rounded_up(1e-6 * gauges.eigenvalue_max)
        ),
        Finding::RefreshesFail if narrow => format!("try statistic_dtype = f64"),
        Finding::RefreshesFail => format!("look for gradients of extreme size, and clip or scale them"),
    }
}

fn busy_remedy(config: &Config, record: &FactorRecord) -> String {
    if !Preconditioner::of(config).has_roots() {
        return format!("try kappa_threshold = {}", rounded_up(2.0 * config.kappa_threshold));
    }
    if config.policy == Policy::DiagonalResidual {
        let seen = record.gauges.residual.max(config.residual_threshold);
        return format!("try residual_threshold = {}", rounded_up(1.5 * seen));
    }
    if record.gauges.noise_floor > config.tau / 4.0 {
        return remedy(config, Finding::NoiseAboveTau, record);
    }
    let period = config.check_period as f64;
    if 1.0 - config.beta2.powf(period) > FAST {
        // A tenth of the statistic is replaced between two checks.
        let slower = 1.0 - 0.9f64.powf(1.0 / period);
        return format!("try beta2 = {}, or a smaller check_period", 1.0 - rounded_down(slower));
    }
    format!("try tau = {}, or policy = stale, which measures nothing", rounded_up(2.0 * config.tau))
}

/// The number with one digit that is at least `value`.
fn rounded_up(value: f64) -> f64 {
    one_digit(value, f64::ceil)
}

/// The number with one digit that is at most `value`.
fn rounded_down(value: f64) -> f64 {
    one_digit(value, f64::floor)
}

fn one_digit(value: f64, round: fn(f64) -> f64) -> f64 {
    if !(value.is_finite() && value > 0.0) {
        return value;
    }
    let place = value.log10().floor() as i32;
    // Rounding of the quotient must not make 1 of 1.0000000000000002.
    let digit = round((value / 10f64.powi(place) * 1e9).round() / 1e9);
    // Read from text, so that it is the number that is printed.
    format!("{digit}e{place}").parse().unwrap_or(value)
}
