//! Statistics of the whole optimizer.

use super::Optimizer;
use crate::device::Footprint;
use crate::preconditioner::Counters;

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
        }
        Summary { totals: self.engine.totals, counters: sum, footprint: self.engine.device.footprint() }
    }
}
