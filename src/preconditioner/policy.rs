//! 𝒰(·): what becomes of a factor at a check, from what was sensed. Pure functions on plain numbers.

use super::damping::Damping;
use super::{Branch, FactorRecord};
use crate::config::{Config, Policy};

/// What a device measured about a factor in its stale basis.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sensed {
    /// RC at the current ε.
    pub relative_change: f64,
    /// α at the current ε.
    pub alpha: f64,
    /// Off-diagonal residual ‖H − diag H‖_F / ‖H‖_F, H = QᵀLQ.
    pub residual: f64,
    /// The smallest ε of the search range whose proxy is at most the target, and the proxy there;
    /// NaN when there is none (or none was asked for).
    pub certified: (f64, f64),
    /// κ of [`super::soap`].
    pub kappa: f64,
    /// Smallest and largest of diag H, each at least 0.
    pub ends: (f64, f64),
    /// A proven bound of the gap after a correction of the spectrum, and which rule gave it.
    pub bound: (f64, BoundRule),
}

/// Which rule bounded the gap.
#[repr(i32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BoundRule {
    /// None: nothing was asked for, or nothing could be said.
    #[default]
    None = 0,
    /// The first-order part alone is above τ, and the sandwich cannot be below it.
    Exceeded = 1,
    /// Theorem 1, or the remainder, with what an average can have lost.
    Average = 2,
    /// The same with bounds of the drift's spectrum, or the spectral form.
    Spectral = 3,
    /// Theorem 2, the sandwich.
    Sandwich = 4,
}

impl BoundRule {
    /// The rule with that number.
    pub fn of(number: i32) -> BoundRule {
        let all = [BoundRule::Exceeded, BoundRule::Average, BoundRule::Spectral, BoundRule::Sandwich];
        all.into_iter().find(|rule| *rule as i32 == number).unwrap_or_default()
    }
}

/// What is done with a factor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// Keep the basis, use this ε.
    Reuse {
        /// The damping to use from now on.
        epsilon: f64,
        /// Take the diagonal that was sensed as the new spectrum.
        adopt_diagonal: bool,
    },
    /// A new eigendecomposition, and ε back to its base.
    Refresh,
}

/// Whether the policy looks at a factor before it decides.
pub fn senses(config: &Config) -> bool {
    match config.policy {
        Policy::Stale => config.correction_period > 0,
        Policy::GraftingOnly => false,
        _ => true,
    }
}

/// Whether a policy looks for a damping of its own, which depends on the factor's age.
pub fn searches(policy: Policy) -> bool {
    policy == Policy::FoamCertified
}

/// Whether the policy may take the sensed diagonal as spectrum.
pub fn adopts_diagonal(config: &Config) -> bool {
    match config.policy {
        Policy::Stale => config.correction_period > 0,
        policy => matches!(policy, Policy::DiagonalResidual | Policy::Sandwich),
    }
}

/// Whether a policy asks for a proven bound of the gap after a correction of the spectrum.
pub fn certifies(policy: Policy) -> bool {
    policy == Policy::Sandwich
}

/// QR steps that a device takes without looking in between, so that the bound most likely is at most τ afterwards. One
/// step from a stale basis was found to leave it at 0.06 to 0.3, two at 0.02 to 0.12; a first basis, from I, happens once.
pub fn blind_steps(tau: f64, has_basis: bool) -> i32 {
    match (has_basis, tau) {
        (false, _) => 3,
        (true, 0.5..) => 1,
        (true, 0.25..) => 2,
        (true, _) => 3,
    }
}

/// Whether a factor with `qr_track` is refreshed unseen: more than half of its last eight sensed checks asked for it. Every
/// fourth check senses nevertheless, by which it is found out when that has changed.
pub fn tracks(record: &FactorRecord) -> bool {
    let counters = &record.counters;
    counters.recent_refreshes.count_ones() > 4 && counters.checks % 4 != 3
}

/// Whether what is sensed depends on the factor's age.
pub fn looks_at_age(policy: Policy) -> bool {
    searches(policy) || certifies(policy)
}

/// Decides about a factor with a basis, and writes what was seen into its record.
///
/// `exponent` is 1/p, `growth` is g(m) of [`super::bound`], `damping` gives ε₀.
pub fn decide(
    config: &Config,
    record: &mut FactorRecord,
    sensed: &Sensed,
    exponent: f64,
    growth: f64,
    damping: Damping,
) -> Action {
    let base = damping.at(sensed.ends.1);
    let cap = config.most_damping().at(sensed.ends.1);
    let current = base.max(record.gauges.epsilon);
    match config.policy {
        // On the schedule a stale factor is refreshed unseen: this is a check in between.
        Policy::Stale => return decide_residual(record, sensed, base, f64::INFINITY),
        Policy::DiagonalResidual => {
            return decide_residual(record, sensed, base, config.residual_threshold);
        }
        _ => {}
    }
    let proxy = sensed.relative_change * sensed.alpha * exponent;
    let gauges = &mut record.gauges;
    gauges.proxy = proxy;
    gauges.max_proxy = gauges.max_proxy.max(proxy);
    gauges.relative_change = sensed.relative_change;
    gauges.alpha = sensed.alpha;
    // No drift has no gap, whatever was lost meanwhile (0·∞ otherwise).
    gauges.gap_bound = if proxy == 0.0 { 0.0 } else { proxy * growth };
    record.counters.proxy_calls += 1;
    if config.policy == Policy::Sandwich {
        return decide_sandwich(config, record, sensed, base);
    }
    if !proxy.is_finite() {
        // Nothing can be said about the stale basis: only a fresh one helps.
        return refresh(record, Branch::EvdThreshold);
    }
    let scaled = base.max(current * proxy / config.tau);
    match config.policy {
        Policy::FoamFixedEpsilon if proxy > config.tau => refresh(record, Branch::EvdThreshold),
        Policy::FoamFixedEpsilon => reuse(record, base, Branch::ReuseSame),
        Policy::FoamNoRefresh => {
            record.counters.epsilon_updates += i64::from(scaled != current);
            let next = scaled.min(cap);
            let branch = if next < scaled { Branch::ReuseClipped } else { moved(current, next, base) };
            reuse(record, next, branch)
        }
        Policy::FoamCertified => decide_certified(record, sensed, growth, current, base),
        _ => {
            record.counters.epsilon_updates += i64::from(scaled != current);
            if scaled > cap {
                record.counters.cap_refreshes += 1;
                return refresh(record, Branch::EvdCap);
            }
            reuse(record, scaled, moved(current, scaled, base))
        }
    }
}

fn decide_certified(
    record: &mut FactorRecord,
    sensed: &Sensed,
    growth: f64,
    current: f64,
    base: f64,
) -> Action {
    let (epsilon, proxy) = sensed.certified;
    if !(epsilon.is_finite() && proxy.is_finite()) {
        record.counters.cap_refreshes += 1;
        return refresh(record, Branch::EvdCap);
    }
    record.counters.epsilon_updates += i64::from(epsilon != current);
    record.gauges.gap_bound = if proxy == 0.0 { 0.0 } else { proxy * growth };
    reuse(record, epsilon, moved(current, epsilon, base))
}

fn decide_sandwich(config: &Config, record: &mut FactorRecord, sensed: &Sensed, base: f64) -> Action {
    let (bound, rule) = sensed.bound;
    // What exceeded τ is a lower bound, and says nothing of the gap if the refresh fails.
    record.gauges.gap_bound = if rule == BoundRule::Exceeded { f64::INFINITY } else { bound };
    let counters = &mut record.counters;
    let refreshes = bound > config.tau || bound.is_nan();
    counters.recent_refreshes = (counters.recent_refreshes << 1 | i64::from(refreshes)) & 0xff;
    // Written so that a bound that is not a number refreshes.
    if bound <= config.tau {
        match rule {
            BoundRule::Average => counters.bound_average += 1,
            BoundRule::Spectral => counters.bound_spectral += 1,
            _ => counters.bound_sandwich += 1,
        }
        correct(record, sensed, base, Branch::ReuseFloor)
    } else {
        counters.bound_exceeded += i64::from(rule == BoundRule::Exceeded);
        refresh(record, Branch::EvdThreshold)
    }
}

/// Keeps the basis and takes the sensed diagonal as spectrum.
fn correct(record: &mut FactorRecord, sensed: &Sensed, base: f64, branch: Branch) -> Action {
    record.counters.reuse_calls += 1;
    record.counters.branch = branch as i64;
    take_diagonal(record, sensed, base);
    Action::Reuse { epsilon: base, adopt_diagonal: true }
}

fn take_diagonal(record: &mut FactorRecord, sensed: &Sensed, base: f64) {
    let gauges = &mut record.gauges;
    gauges.epsilon = base;
    (gauges.eigenvalue_min, gauges.eigenvalue_max) = sensed.ends;
}

/// A factor whose refresh was decided on goes on with its stale basis for a while: a policy that corrects spectra corrects
/// this one too, which is what its bound speaks of. Gives ε then.
pub fn correct_stale(
    config: &Config,
    record: &mut FactorRecord,
    sensed: &Sensed,
    damping: Damping,
) -> Option<f64> {
    if !adopts_diagonal(config) || !sensed.relative_change.is_finite() {
        return None;
    }
    let base = damping.at(sensed.ends.1);
    take_diagonal(record, sensed, base);
    Some(base)
}

fn decide_residual(record: &mut FactorRecord, sensed: &Sensed, base: f64, threshold: f64) -> Action {
    record.gauges.residual = sensed.residual;
    record.counters.residual_calls += 1;
    // Written so that a residual that is not a number refreshes.
    if sensed.residual <= threshold {
        correct(record, sensed, base, Branch::ReuseSame)
    } else {
        refresh(record, Branch::EvdThreshold)
    }
}

fn moved(current: f64, next: f64, base: f64) -> Branch {
    if next == base {
        Branch::ReuseFloor
    } else if next > current {
        Branch::ReuseRaised
    } else if next < current {
        Branch::ReuseLowered
    } else {
        Branch::ReuseSame
    }
}

fn reuse(record: &mut FactorRecord, next: f64, branch: Branch) -> Action {
    record.counters.reuse_calls += 1;
    record.counters.branch = branch as i64;
    record.gauges.epsilon = next;
    Action::Reuse { epsilon: next, adopt_diagonal: false }
}

fn refresh(record: &mut FactorRecord, branch: Branch) -> Action {
    record.counters.branch = branch as i64;
    Action::Refresh
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: f64 = 1e-6;
    const DAMPING: Damping = Damping::absolute(BASE);

    fn config(policy: Policy) -> Config {
        Config { policy, tau: 0.5, epsilon: BASE, epsilon_max: 1e-4, ..Config::reference() }
    }

    /// What Algorithm 3 does at proxy `h` (p = 2, so RC·α = 2h) from damping `epsilon`.
    fn check(policy: Policy, epsilon: f64, h: f64) -> (Action, FactorRecord) {
        let mut record = FactorRecord::new(epsilon);
        let sensed = Sensed { relative_change: 2.0 * h, alpha: 1.0, ..Sensed::default() };
        let action = decide(&config(policy), &mut record, &sensed, 0.5, 1.5, DAMPING);
        (action, record)
    }

    fn reused(epsilon: f64) -> Action {
        Action::Reuse { epsilon, adopt_diagonal: false }
    }

    #[test]
    fn foam_scales_epsilon_by_the_proxy_over_tau() {
        let (action, record) = check(Policy::Foam, 1e-5, 1.0);
        assert_eq!(action, reused(1e-5 * 1.0 / 0.5));
        assert_eq!(record.counters.branch, Branch::ReuseRaised as i64);
        assert_eq!((record.counters.reuse_calls, record.counters.epsilon_updates), (1, 1));
        assert_eq!((record.gauges.proxy, record.gauges.gap_bound), (1.0, 1.5));
        let (action, record) = check(Policy::Foam, 1e-5, 0.25);
        assert_eq!(action, reused(1e-5 * 0.25 / 0.5));
        assert_eq!(record.counters.branch, Branch::ReuseLowered as i64);
        let (action, record) = check(Policy::Foam, 1e-5, 1e-3);
        assert_eq!(action, reused(BASE));
        assert_eq!(record.counters.branch, Branch::ReuseFloor as i64);
    }

    #[test]
    fn foam_refreshes_above_the_cap_and_reuses_at_it() {
        let (action, record) = check(Policy::Foam, 1e-5, 5.01);
        assert_eq!(action, Action::Refresh);
        assert_eq!((record.counters.cap_refreshes, record.counters.reuse_calls), (1, 0));
        let mut at_cap = config(Policy::Foam);
        at_cap.epsilon_max = 1e-5 * 1.0 / 0.5;
        let sensed = Sensed { relative_change: 2.0, alpha: 1.0, ..Sensed::default() };
        let action = decide(&at_cap, &mut FactorRecord::new(1e-5), &sensed, 0.5, 1.0, DAMPING);
        assert_eq!(action, reused(at_cap.epsilon_max));
    }

    #[test]
    fn the_ablations_do_what_their_names_say() {
        assert_eq!(check(Policy::FoamFixedEpsilon, BASE, 0.49).0, reused(BASE));
        assert_eq!(check(Policy::FoamFixedEpsilon, BASE, 0.51).0, Action::Refresh);
        let (action, record) = check(Policy::FoamNoRefresh, 1e-5, 50.0);
        assert_eq!(action, reused(1e-4));
        assert_eq!(record.counters.branch, Branch::ReuseClipped as i64);
    }

    #[test]
    fn a_proxy_that_is_not_a_number_refreshes() {
        for policy in [Policy::Foam, Policy::FoamFixedEpsilon, Policy::FoamNoRefresh, Policy::FoamCertified] {
            assert_eq!(check(policy, BASE, f64::NAN).0, Action::Refresh);
            assert_eq!(check(policy, BASE, f64::INFINITY).0, Action::Refresh);
        }
        let mut record = FactorRecord::new(BASE);
        let sensed = Sensed { residual: f64::NAN, ..Sensed::default() };
        let config = config(Policy::DiagonalResidual);
        assert_eq!(decide(&config, &mut record, &sensed, 0.5, 1.0, DAMPING), Action::Refresh);
    }

    #[test]
    fn the_certified_policy_takes_the_epsilon_it_is_given_or_refreshes() {
        let config = config(Policy::FoamCertified);
        let sensed = Sensed { relative_change: 2.0, alpha: 1.0, certified: (3e-6, 0.3), ..Sensed::default() };
        let mut record = FactorRecord::new(BASE);
        assert_eq!(decide(&config, &mut record, &sensed, 0.5, 1.5, DAMPING), reused(3e-6));
        assert!((record.gauges.gap_bound - 0.45).abs() < 1e-15);
        let none = Sensed { certified: (f64::NAN, f64::NAN), ..sensed };
        assert_eq!(decide(&config, &mut record, &none, 0.5, 1.5, DAMPING), Action::Refresh);
    }

    #[test]
    fn the_sandwich_corrects_while_its_bound_is_at_most_tau() {
        let config = config(Policy::Sandwich);
        let sensed = |bound, rule| Sensed {
            relative_change: 2.0,
            alpha: 1.0,
            ends: (0.5, 4.0),
            bound: (bound, rule),
            ..Sensed::default()
        };
        let mut record = FactorRecord::new(BASE);
        let action = decide(&config, &mut record, &sensed(0.5, BoundRule::Spectral), 0.5, 1.5, DAMPING);
        assert_eq!(action, Action::Reuse { epsilon: BASE, adopt_diagonal: true });
        assert_eq!((record.gauges.gap_bound, record.gauges.eigenvalue_max), (0.5, 4.0));
        assert_eq!((record.counters.bound_spectral, record.counters.bound_exceeded), (1, 0));
        for (bound, rule, exceeded) in
            [(0.51, BoundRule::Sandwich, 0), (9.0, BoundRule::Exceeded, 1), (f64::NAN, BoundRule::None, 0)]
        {
            let mut record = FactorRecord::new(BASE);
            let action = decide(&config, &mut record, &sensed(bound, rule), 0.5, 1.5, DAMPING);
            assert_eq!((action, record.counters.bound_exceeded), (Action::Refresh, exceeded));
        }
    }

    #[test]
    fn a_relative_base_follows_the_sensed_eigenvalue() {
        let config = Config { epsilon_mode: crate::config::EpsilonMode::Relative, ..config(Policy::Foam) };
        let damping = Damping::new(&config, 1e-6);
        let sensed = Sensed { ends: (0.0, 1e-8), ..Sensed::default() };
        let mut record = FactorRecord::new(1e-20);
        let action = decide(&config, &mut record, &sensed, 0.5, 1.0, damping);
        assert_eq!(action, reused(1e-6 * 1e-8));
    }
}
