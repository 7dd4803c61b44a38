//! Preconditioners and their Kronecker factors: which arrays they keep, a factor's record, when it is checked,
//! what is decided about it, and the bound that can be proven for it. Device-free: the numbers come from a device.

pub mod bound;
pub mod cadence;
pub mod policy;
pub mod shampoo;

use crate::engine::rules::MOST_STEPS;
use bytemuck::{Pod, Zeroable};

/// What the last check of a factor did.
#[repr(i64)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Branch {
    /// No check yet.
    None = 0,
    /// The first eigendecomposition.
    EvdFirst = 1,
    /// An eigendecomposition because the policy is stale.
    EvdStale = 2,
    /// Reuse; epsilon was raised.
    ReuseRaised = 3,
    /// Reuse; epsilon was lowered, still above its base.
    ReuseLowered = 4,
    /// Reuse at the base epsilon.
    ReuseFloor = 5,
    /// An eigendecomposition because no epsilon up to the cap serves.
    EvdCap = 6,
    /// An eigendecomposition because the proxy or the residual passed its threshold.
    EvdThreshold = 7,
    /// Reuse; epsilon was clipped at the cap.
    ReuseClipped = 8,
    /// Reuse; nothing changed.
    ReuseSame = 9,
}

/// The reals of a factor's record. Values that do not exist yet are NaN.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct Gauges {
    /// ε in use.
    pub epsilon: f64,
    /// h of the last check.
    pub proxy: f64,
    /// Largest h so far.
    pub max_proxy: f64,
    /// RC of the last check.
    pub relative_change: f64,
    /// α of the last check.
    pub alpha: f64,
    /// Proven bound of the relative operator gap at the last check.
    pub gap_bound: f64,
    /// Off-diagonal residual of the last check.
    pub residual: f64,
    /// Proxy right after the last refresh.
    pub noise_floor: f64,
    /// Smallest eigenvalue of the basis in use.
    pub eigenvalue_min: f64,
    /// Largest eigenvalue of the basis in use.
    pub eigenvalue_max: f64,
}

/// The counters of a factor's record.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Counters {
    /// [`Branch`] of the last check.
    pub branch: i64,
    /// 1 once there is a basis.
    pub has_basis: i64,
    /// Step of the last refresh, 0 for never.
    pub last_refresh: i64,
    /// Step of the last check, 0 for never.
    pub last_check: i64,
    /// Checks.
    pub checks: i64,
    /// Eigendecompositions.
    pub evd_calls: i64,
    /// Checks that kept the basis.
    pub reuse_calls: i64,
    /// Proxies computed.
    pub proxy_calls: i64,
    /// Checks that asked for another ε.
    pub epsilon_updates: i64,
    /// Refreshes because of the cap.
    pub cap_refreshes: i64,
    /// Residuals computed.
    pub residual_calls: i64,
    /// Eigendecompositions that failed on at least one path.
    pub failed_evds: i64,
    /// Refreshes saved by double precision.
    pub fallback_double: i64,
    /// Refreshes saved by the other driver.
    pub fallback_svd: i64,
    /// Refreshes given up.
    pub fallback_stale: i64,
}

/// The record of one factor: everything about it that is not an array. It lies in the state as it is here.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct FactorRecord {
    /// The reals.
    pub gauges: Gauges,
    /// The counters.
    pub counters: Counters,
}

impl FactorRecord {
    /// The record of a factor that was never checked.
    pub fn new(epsilon: f64) -> Self {
        let none = f64::NAN;
        FactorRecord {
            gauges: Gauges {
                epsilon,
                proxy: none,
                max_proxy: none,
                relative_change: none,
                alpha: none,
                gap_bound: none,
                residual: none,
                noise_floor: none,
                eigenvalue_min: none,
                eigenvalue_max: none,
            },
            counters: Counters::default(),
        }
    }

    /// Whether these can be the values of a record that the engine wrote: counts that a run can reach, a branch
    /// that exists, a damping that is positive.
    pub fn is_sound(&self) -> bool {
        let counts: [i64; size_of::<Counters>() / 8] = bytemuck::cast(self.counters);
        counts.iter().all(|count| (0..=MOST_STEPS as i64).contains(count))
            && self.counters.has_basis <= 1
            && self.counters.branch <= Branch::ReuseSame as i64
            && self.gauges.epsilon.is_finite()
            && self.gauges.epsilon > 0.0
    }

    /// Whether there is a basis.
    pub fn has_basis(&self) -> bool {
        self.counters.has_basis != 0
    }

    /// Whether the last check asked for a refresh that did not succeed: the next one begins with double precision.
    pub fn refresh_failed(&self) -> bool {
        let refreshes = [Branch::EvdFirst, Branch::EvdStale, Branch::EvdCap, Branch::EvdThreshold];
        let counters = &self.counters;
        let asked = refreshes.iter().any(|branch| *branch as i64 == counters.branch);
        asked && (counters.last_refresh != counters.last_check || counters.evd_calls == 0)
    }
}
