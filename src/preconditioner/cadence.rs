//! Time: when factors are checked, and the corrections that depend on how long a parameter has lived.
//!
//! Every parameter has a clock of its own that ticks only when it takes part in a step. With a
//! gradient at every step it is the step number of the paper and of the authors' code; a parameter
//! without gradients stands still, so its bias correction, and with it its proxy, does not drift.

use crate::config::{Cadence, Config, Policy, RefreshSchedule};

/// Whether the factors of a parameter are checked at its step `t` (from 1).
pub fn is_check(config: &Config, t: u64) -> bool {
    on_schedule(config, t) || is_correction(config, t)
}

/// Whether there may be something to do for the verb `check` at step `t`: a check, or a basis that one asked for.
pub fn calls_check(config: &Config, t: u64) -> bool {
    let asked = t.checked_sub(config.refresh_delay as u64).filter(|asked| *asked > 0);
    is_check(config, t) || asked.is_some_and(|asked| is_check(config, asked))
}

/// Whether factors are refreshed at step `t` whatever is found: at the geometric times of `combined`; with another
/// schedule on all of it, where other checks correct.
pub fn is_forced(config: &Config, t: u64) -> bool {
    match config.refresh_schedule {
        RefreshSchedule::Combined => {
            config.policy != Policy::FoamNoRefresh
                && begins_or(config, t, |age| is_geometric(config.refresh_growth, age))
        }
        _ => config.correction_period > 0 && on_schedule(config, t),
    }
}

fn is_correction(config: &Config, t: u64) -> bool {
    let Some(period) = u64::try_from(config.correction_period).ok().filter(|period| *period > 0) else {
        return false;
    };
    match config.cadence {
        Cadence::Paper => (t - 1).is_multiple_of(period),
        Cadence::Reference => t > config.first_check() && t.is_multiple_of(period),
    }
}

/// Whether step `t` is on the schedule.
fn on_schedule(config: &Config, t: u64) -> bool {
    begins_or(config, t, |age| is_scheduled(config, age))
}

/// Whether `t` is the step of the first check, or a later one whose age `holds`: the step, counted from 1 (reference)
/// or from 0 (paper).
fn begins_or(config: &Config, t: u64, holds: impl Fn(u64) -> bool) -> bool {
    match config.cadence {
        Cadence::Paper => t == 1 || holds(t - 1),
        Cadence::Reference => {
            let first = config.first_check();
            t == first || (t > first && holds(t))
        }
    }
}

/// Whether the schedule has a check at `age`.
fn is_scheduled(config: &Config, age: u64) -> bool {
    let period = config.check_period as u64;
    match config.refresh_schedule {
        RefreshSchedule::Fixed | RefreshSchedule::Kappa => age.is_multiple_of(period),
        RefreshSchedule::FrontLoaded if age <= config.front_length() => {
            age.is_multiple_of(config.front_period as u64)
        }
        RefreshSchedule::FrontLoaded => age.is_multiple_of(period),
        RefreshSchedule::Geometric => is_geometric(config.refresh_growth, age),
        RefreshSchedule::Combined => age.is_multiple_of(period) || is_geometric(config.refresh_growth, age),
    }
}

/// Whether `age` is one of 1, ⌈ρ·1⌉, ⌈ρ⌈ρ·1⌉⌉, …, each at least one more than the one before.
fn is_geometric(growth: f64, age: u64) -> bool {
    let next = |t: u64| (t + 1).max((growth * t as f64).ceil() as u64);
    let mut t = 1;
    while t < age {
        t = next(t);
    }
    t == age
}

/// Whether a factor is checked at its block's step `t`: at a check, and at once where a basis should be there but
/// is not (a run that was resumed with another period, say).
pub fn is_due(config: &Config, t: u64, has_basis: bool) -> bool {
    t > 0 && (is_check(config, t) || (!has_basis && is_past_first_check(config, t)))
}

/// Whether the first check of a block at its step `t` has been due.
fn is_past_first_check(config: &Config, t: u64) -> bool {
    match config.cadence {
        Cadence::Paper => true,
        Cadence::Reference => t >= config.first_check(),
    }
}

/// Whether the gradient of a block's step `t` (from 1) enters its statistics: the first one does, so that a first
/// check finds something, and then every `period`-th.
pub fn accumulates(period: u64, t: u64) -> bool {
    t == 1 || t.is_multiple_of(period)
}

/// How many gradients are in the statistics of a block at its step `t`: what their weight and their bias correction
/// count.
pub fn accumulations(period: u64, t: u64) -> u64 {
    // With a period of 1 the first step is one of the multiples.
    t / period + u64::from(period > 1 && t > 0)
}

/// 1 − βᵗ, or 1 where there is nothing to correct.
pub fn bias_correction(enabled: bool, beta: f64, t: u64) -> f64 {
    if !enabled || beta >= 1.0 || beta == 0.0 {
        return 1.0;
    }
    power_complement(beta.ln(), t)
}

/// 1 − βᵗ from ln β. expm1 keeps all digits while βᵗ is near 1.
pub fn power_complement(log_beta: f64, t: u64) -> f64 {
    -((t as f64) * log_beta).exp_m1()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks(config: &Config, until: u64) -> Vec<u64> {
        (1..=until).filter(|t| is_check(config, *t)).collect()
    }

    #[test]
    fn the_paper_checks_at_one_and_every_period_after() {
        let config = Config { cadence: Cadence::Paper, check_period: 4, ..Config::reference() };
        assert_eq!(checks(&config, 13), [1, 5, 9, 13]);
        let every = Config { check_period: 1, ..config };
        assert_eq!(checks(&every, 3), [1, 2, 3]);
    }

    #[test]
    fn the_reference_checks_at_its_start_and_at_multiples_after() {
        let config = Config { check_period: 5, start_step: 12, ..Config::reference() };
        assert_eq!(checks(&config, 26), [12, 15, 20, 25]);
        let config = Config { check_period: 5, ..Config::reference() };
        assert_eq!(checks(&config, 12), [5, 10]);
        assert!(!is_due(&config, 4, false) && is_due(&config, 5, false));
        assert!(
            is_due(&config, 7, false) && !is_due(&config, 7, true),
            "a missing basis is made up for at once"
        );
    }

    #[test]
    fn a_front_loaded_schedule_is_dense_at_first() {
        let front = Config {
            cadence: Cadence::Paper,
            refresh_schedule: RefreshSchedule::FrontLoaded,
            check_period: 15,
            front_period: 5,
            front_steps: 20,
            ..Config::reference()
        };
        assert_eq!(checks(&front, 62), [1, 6, 11, 16, 21, 31, 46, 61]);
        let reference = Config { cadence: Cadence::Reference, ..front.clone() };
        assert_eq!(checks(&reference, 62), [5, 10, 15, 20, 30, 45, 60]);
        let windows = Config { front_steps: 0, beta2: 0.95, ..front };
        assert_eq!(windows.front_length(), 80);
    }

    #[test]
    fn a_geometric_schedule_grows_by_its_factor() {
        let config = Config {
            cadence: Cadence::Paper,
            refresh_schedule: RefreshSchedule::Geometric,
            refresh_growth: 1.5,
            ..Config::reference()
        };
        assert_eq!(checks(&config, 50), [1, 2, 3, 4, 6, 9, 13, 19, 28, 42]);
        let reference = Config { cadence: Cadence::Reference, refresh_growth: 2.0, ..config };
        assert_eq!(checks(&reference, 40), [1, 2, 4, 8, 16, 32]);
    }

    #[test]
    fn corrections_lie_between_the_refreshes_of_the_schedule() {
        let config = Config {
            refresh_schedule: RefreshSchedule::Geometric,
            refresh_growth: 3.0,
            correction_period: 5,
            ..Config::reference()
        };
        let forced = |config: &Config| (1..=30).filter(|t| is_forced(config, *t)).collect::<Vec<u64>>();
        assert_eq!(checks(&config, 30), [1, 3, 5, 9, 10, 15, 20, 25, 27, 30]);
        assert_eq!(forced(&config), [1, 3, 9, 27]);
        let late = Config { start_step: 12, ..config.clone() };
        assert_eq!((checks(&late, 30), forced(&late)), (vec![12, 15, 20, 25, 27, 30], vec![12, 27]));
        let paper = Config { cadence: Cadence::Paper, ..config.clone() };
        assert_eq!(checks(&paper, 30), [1, 2, 4, 6, 10, 11, 16, 21, 26, 28]);
        assert!(forced(&Config { correction_period: 0, ..config }).is_empty());
    }

    #[test]
    fn a_combined_schedule_checks_at_multiples_and_refreshes_at_geometric_times() {
        let forced = |config: &Config| (1..=50).filter(|t| is_forced(config, *t)).collect::<Vec<u64>>();
        let config = Config::default();
        assert_eq!(checks(&config, 50), [1, 2, 3, 5, 8, 10, 12, 18, 20, 27, 30, 40, 41, 50]);
        assert_eq!(forced(&config), [1, 2, 3, 5, 8, 12, 18, 27, 41]);
        let paper =
            Config { cadence: Cadence::Paper, check_period: 20, refresh_growth: 3.0, ..config.clone() };
        assert_eq!(
            (checks(&paper, 50), forced(&paper)),
            (vec![1, 2, 4, 10, 21, 28, 41], vec![1, 2, 4, 10, 28])
        );
        let late = Config { start_step: 15, ..config.clone() };
        assert_eq!((checks(&late, 30), forced(&late)), (vec![15, 18, 20, 27, 30], vec![15, 18, 27, 41]));
        assert!(forced(&Config { policy: Policy::FoamNoRefresh, ..config.clone() }).is_empty());
        // The same steps as those of geometric refreshes with corrections at the period between them.
        let geometric =
            Config { refresh_schedule: RefreshSchedule::Geometric, correction_period: 10, ..config.clone() };
        assert_eq!((checks(&geometric, 500), forced(&geometric)), (checks(&config, 500), forced(&config)));
    }

    #[test]
    fn accumulations_are_the_steps_that_accumulate() {
        for period in 1..6 {
            for t in 0..40 {
                let counted = (1..=t).filter(|t| accumulates(period, *t)).count() as u64;
                assert_eq!(accumulations(period, t), counted, "period {period}, step {t}");
            }
        }
    }

    #[test]
    fn bias_correction_is_one_minus_beta_to_the_t() {
        assert!((bias_correction(true, 0.9, 3) - (1.0 - 0.9f64.powi(3))).abs() < 1e-15);
        assert_eq!(bias_correction(false, 0.9, 3), 1.0);
        assert_eq!(bias_correction(true, 1.0, 3), 1.0);
        assert_eq!(bias_correction(true, 0.0, 3), 1.0);
    }
}
