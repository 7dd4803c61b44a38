//! The statistics of an optimizer and of every factor, as plain structs.

use super::engine::{self, Branch, Verb};
use crate::preconditioner::diagnosis::Findings;

/// Statistics of the whole optimizer since its creation (or since the start of the run that its checkpoint continues;
/// seconds count from creation).
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// Steps taken; skipped ones are not counted here.
    pub steps: u64,
    /// Steps skipped because a gradient was not finite.
    pub skipped_steps: u64,
    /// Parameters of the model.
    pub params: usize,
    /// Blocks that they are cut into.
    pub blocks: usize,
    /// Kronecker factors, over all blocks.
    pub factors: usize,
    /// What was done, summed over all factors.
    pub counters: Counters,
    /// Bytes in use.
    pub memory: Memory,
    /// Threads that work on a step.
    pub threads: usize,
    /// Where the time of the steps went.
    pub seconds: Seconds,
    /// Steps before the next check, if all parameters take part; `u64::MAX` if none is near.
    pub plain_steps: u64,
    /// What keeps the configuration from working; see [`Optimizer::diagnosis`](crate::Optimizer::diagnosis).
    pub findings: Findings,
}

/// How often something was done: for one factor, or for all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Checks: what stale Shampoo would spend an eigendecomposition on each time.
    pub checks: u64,
    /// Eigendecompositions done.
    pub evd_calls: u64,
    /// Checks that kept the stale basis.
    pub reuse_calls: u64,
    /// Proxies computed.
    pub proxy_calls: u64,
    /// Checks that asked for another epsilon.
    pub epsilon_updates: u64,
    /// Refreshes because epsilon would have passed `epsilon_max` (or no epsilon was certified).
    pub cap_refreshes: u64,
    /// Off-diagonal residuals computed (policy `diagonal_residual`).
    pub residual_calls: u64,
    /// Eigendecompositions that failed on at least one path.
    pub failed_evds: u64,
    /// Refreshes saved by double precision.
    pub fallback_double: u64,
    /// Refreshes saved by the other driver (a singular value decomposition).
    pub fallback_svd: u64,
    /// Refreshes given up: the stale basis was kept with raised damping.
    pub fallback_stale: u64,
    /// Refreshes because a lower bound of the sandwich passed `tau` (policy `sandwich`).
    pub bound_exceeded: u64,
    /// Reuses certified by what an average can have lost (policy `sandwich`).
    pub bound_average: u64,
    /// Reuses certified by bounds of the drift's spectrum (policy `sandwich`).
    pub bound_spectral: u64,
    /// Reuses certified by the sandwich bound itself (policy `sandwich`).
    pub bound_sandwich: u64,
    /// Steps Q <- qr(A Q) (`refresh_method` qr).
    pub qr_steps: u64,
    /// Refreshes that such steps gave, without an eigendecomposition.
    pub qr_refreshes: u64,
    /// Refreshes by an eigendecomposition because such steps did not suffice.
    pub qr_fallbacks: u64,
    /// Checks that refreshed by QR steps without looking at the basis first (`qr_track`).
    pub qr_tracked: u64,
    /// Checks that asked for a refresh and left the stale basis in use, because refreshes are delayed (`refresh_delay`).
    pub delayed_checks: u64,
}

impl Counters {
    /// Eigendecompositions per check; 0 before the first check.
    pub fn evd_rate(&self) -> f64 {
        self.evd_calls as f64 / self.checks.max(1) as f64
    }

    fn of(counters: &engine::Counters) -> Counters {
        Counters {
            checks: counters.checks as u64,
            evd_calls: counters.evd_calls as u64,
            reuse_calls: counters.reuse_calls as u64,
            proxy_calls: counters.proxy_calls as u64,
            epsilon_updates: counters.epsilon_updates as u64,
            cap_refreshes: counters.cap_refreshes as u64,
            residual_calls: counters.residual_calls as u64,
            failed_evds: counters.failed_evds as u64,
            fallback_double: counters.fallback_double as u64,
            fallback_svd: counters.fallback_svd as u64,
            fallback_stale: counters.fallback_stale as u64,
            bound_exceeded: counters.bound_exceeded as u64,
            bound_average: counters.bound_average as u64,
            bound_spectral: counters.bound_spectral as u64,
            bound_sandwich: counters.bound_sandwich as u64,
            qr_steps: counters.qr_steps as u64,
            qr_refreshes: counters.qr_refreshes as u64,
            qr_fallbacks: counters.qr_fallbacks as u64,
            qr_tracked: counters.qr_tracked as u64,
            delayed_checks: counters.delayed_checks as u64,
        }
    }
}

/// Bytes that an optimizer has in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Memory {
    /// State in host memory.
    pub state_host: usize,
    /// State in device memory.
    pub state_device: usize,
    /// Workspace.
    pub workspace: usize,
}

/// Seconds by what they were spent on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Seconds {
    /// Checking gradients.
    pub inspect: f64,
    /// Statistics.
    pub accumulate: f64,
    /// Proxies.
    pub sense: f64,
    /// Eigendecompositions.
    pub refresh: f64,
    /// Inverse roots.
    pub redamp: f64,
    /// Directions and parameters.
    pub apply: f64,
    /// Steps, all in all.
    pub total: f64,
}

/// Which factor: what belongs to one axis of one block of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FactorId {
    /// Index of the parameter, in the order of creation.
    pub param: usize,
    /// Block within the parameter, in row-major order.
    pub block: usize,
    /// Axis within the block.
    pub axis: usize,
}

/// Statistics of one Kronecker factor. Numbers that do not exist yet are NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct FactorStats {
    /// Which factor.
    pub id: FactorId,
    /// Side of the factor.
    pub dim: usize,
    /// p of the inverse root.
    pub root: f64,
    /// ε₀, the base damping.
    pub epsilon_base: f64,
    /// ε, the damping in use.
    pub epsilon: f64,
    /// h of the last check: the proxy of the relative operator gap.
    pub proxy: f64,
    /// Largest h so far.
    pub max_proxy: f64,
    /// RC of the last check.
    pub relative_change: f64,
    /// α of the last check.
    pub alpha: f64,
    /// Proven upper bound of the relative operator gap at the last check, for the epsilon that was in use then
    /// (policy `foam_certified`: for the epsilon that it chose).
    pub gap_bound: f64,
    /// Off-diagonal residual of the last check (policy `diagonal_residual`).
    pub residual: f64,
    /// Proxy right after the last refresh, with no drift at all: what rounding alone makes of it.
    pub noise_floor: f64,
    /// Smallest eigenvalue of the basis in use.
    pub eigenvalue_min: f64,
    /// Largest eigenvalue of the basis in use.
    pub eigenvalue_max: f64,
    /// SOAP: κ of the last check, how far the statistic was from diagonal in the basis in use.
    pub kappa: f64,
    /// ‖QᵀQ − I‖ of a basis that QR steps gave, as sign vectors see it; NaN otherwise.
    pub orthogonality: f64,
    /// What the last check did.
    pub last_branch: Branch,
    /// Step of the last refresh, on the parameter's own clock; 0 for never.
    pub last_refresh: u64,
    /// Step of the last check, on the parameter's own clock; 0 for never.
    pub last_check: u64,
    /// What was done.
    pub counters: Counters,
    /// What is wrong with the factor, judged from its twentieth check on.
    pub findings: Findings,
}

impl Branch {
    /// Every branch, in the order of its number.
    const ALL: [Branch; 12] = [
        Branch::None,
        Branch::EvdFirst,
        Branch::EvdStale,
        Branch::ReuseRaised,
        Branch::ReuseLowered,
        Branch::ReuseFloor,
        Branch::EvdCap,
        Branch::EvdThreshold,
        Branch::ReuseClipped,
        Branch::ReuseSame,
        Branch::QrShort,
        Branch::EvdFailed,
    ];

    fn of(number: i64) -> Branch {
        Branch::ALL.into_iter().find(|branch| *branch as i64 == number).unwrap_or(Branch::None)
    }

    /// Its name: that of the C constant `FOAM_BRANCH_*`, in small letters.
    pub fn name(self) -> &'static str {
        match self {
            Branch::None => "none",
            Branch::EvdFirst => "evd_first",
            Branch::EvdStale => "evd_stale",
            Branch::ReuseRaised => "reuse_raised",
            Branch::ReuseLowered => "reuse_lowered",
            Branch::ReuseFloor => "reuse_floor",
            Branch::EvdCap => "evd_cap",
            Branch::EvdThreshold => "evd_threshold",
            Branch::ReuseClipped => "reuse_clipped",
            Branch::ReuseSame => "reuse_same",
            Branch::QrShort => "qr_short",
            Branch::EvdFailed => "evd_failed",
        }
    }

    /// Whether it was an eigendecomposition (or QR steps that served in its place).
    pub fn is_refresh(self) -> bool {
        matches!(self, Branch::EvdFirst | Branch::EvdStale | Branch::EvdCap | Branch::EvdThreshold)
    }
}

pub(super) fn whole(engine: &engine::Optimizer) -> Stats {
    let (plan, summary) = (engine.plan(), engine.summary());
    let (totals, footprint) = (summary.totals, summary.footprint);
    let seconds = |verb: Verb| totals.seconds[verb as usize];
    Stats {
        steps: totals.steps,
        skipped_steps: totals.skipped_steps,
        params: plan.params.len(),
        blocks: plan.blocks.len(),
        factors: plan.factors.len(),
        counters: Counters::of(&summary.counters),
        memory: Memory {
            state_host: footprint.state_host,
            state_device: footprint.state_device,
            workspace: footprint.workspace,
        },
        threads: footprint.threads,
        plain_steps: summary.plain_steps,
        seconds: Seconds {
            inspect: seconds(Verb::Inspect),
            accumulate: seconds(Verb::Accumulate),
            sense: seconds(Verb::Sense),
            refresh: seconds(Verb::Refresh),
            redamp: seconds(Verb::Redamp),
            apply: seconds(Verb::Apply),
            total: totals.seconds_total,
        },
        findings: summary.findings,
    }
}

pub(super) fn factor(engine: &engine::Optimizer, index: usize) -> FactorStats {
    let plan = engine.plan();
    let (factor, record) = (&plan.factors[index], &engine.records()[index]);
    let param = plan.blocks[factor.block].param;
    let (gauges, counters) = (record.gauges, record.counters);
    FactorStats {
        id: FactorId { param, block: plan.blocks[factor.block].number, axis: factor.axis },
        dim: factor.dim,
        root: factor.root,
        epsilon_base: factor.base(engine.config(), plan).at(record.gauges.eigenvalue_max),
        epsilon: gauges.epsilon,
        proxy: gauges.proxy,
        max_proxy: gauges.max_proxy,
        relative_change: gauges.relative_change,
        alpha: gauges.alpha,
        gap_bound: gauges.gap_bound,
        residual: gauges.residual,
        noise_floor: gauges.noise_floor,
        eigenvalue_min: gauges.eigenvalue_min,
        eigenvalue_max: gauges.eigenvalue_max,
        kappa: gauges.kappa,
        orthogonality: gauges.orthogonality,
        last_branch: Branch::of(counters.branch),
        last_refresh: counters.last_refresh as u64,
        last_check: counters.last_check as u64,
        counters: Counters::of(&counters),
        findings: engine.findings(record),
    }
}
