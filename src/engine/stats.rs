//! Statistics of the whole optimizer.

use super::Optimizer;
use crate::device::Footprint;
use crate::error::Result;
use crate::preconditioner::diagnosis::{self, Diagnosis, Findings};
use crate::preconditioner::{Counters, FactorRecord};

/// The verbs whose time is kept.
#[derive(Clone, Copy, Debug)]
pub enum Verb {
    /// Is the gradient finite?
    Inspect,
    /// Statistics.
    Accumulate,
    /// Proxies.
    Sense,
    /// Eigendecompositions.
    Refresh,
    /// Inverse roots.
    Redamp,
    /// Directions and parameters.
    Apply,
}

/// Running totals.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Steps taken.
    pub steps: u64,
    /// Steps skipped.
    pub skipped_steps: u64,
    /// Seconds by [`Verb`].
    pub seconds: [f64; 6],
    /// Seconds in steps.
    pub seconds_total: f64,
}

/// A reading of all statistics.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    /// Running totals.
    pub totals: Totals,
    /// Counters summed over all factors.
    pub counters: Counters,
    /// What the device occupies.
    pub footprint: Footprint,
    /// Steps before the next check.
    pub plain_steps: u64,
    /// What is wrong.
    pub findings: Findings,
}

impl Optimizer {
    /// All statistics.
    pub fn summary(&self) -> Summary {
        let mut sum = Counters::default();
        for record in self.records() {
            let c = &record.counters;
            sum.checks += c.checks;
            sum.evd_calls += c.evd_calls;
            sum.reuse_calls += c.reuse_calls;
            sum.proxy_calls += c.proxy_calls;
            sum.epsilon_updates += c.epsilon_updates;
            sum.cap_refreshes += c.cap_refreshes;
            sum.residual_calls += c.residual_calls;
            sum.failed_evds += c.failed_evds;
            sum.fallback_double += c.fallback_double;
            sum.fallback_svd += c.fallback_svd;
            sum.fallback_stale += c.fallback_stale;
            sum.bound_exceeded += c.bound_exceeded;
            sum.bound_average += c.bound_average;
            sum.bound_spectral += c.bound_spectral;
            sum.bound_sandwich += c.bound_sandwich;
            sum.qr_steps += c.qr_steps;
            sum.qr_refreshes += c.qr_refreshes;
            sum.qr_fallbacks += c.qr_fallbacks;
            sum.qr_tracked += c.qr_tracked;
            sum.delayed_checks += c.delayed_checks;
        }
        Summary {
            totals: self.engine.totals,
            counters: sum,
            footprint: self.engine.device.footprint(),
            plain_steps: self.plain_steps(),
            findings: self.diagnosis().findings,
        }
    }

    /// What is wrong with the configuration, as far as the factors show it.
    pub fn diagnosis(&self) -> Diagnosis {
        diagnosis::judge_all(self.config(), self.records().iter())
    }

    /// The same in words, one line for each finding, with the option to change and a value to try.
    pub fn diagnosis_text(&self) -> Result<String> {
        self.diagnosis().lines(self.config(), |factor| self.records()[factor])
    }

    /// What is wrong with one factor.
    pub fn findings(&self, record: &FactorRecord) -> Findings {
        diagnosis::judge(self.config(), record)
    }
}
