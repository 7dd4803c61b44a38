//! One Kronecker factor: its record, when it is checked, what is decided about it, and the bound
//! that can be proven for it. Device-free: the numbers come from a backend.

pub mod bound;
pub mod cadence;
pub mod policy;

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

/// The record of one factor: everything about it that is not a buffer.
#[derive(Clone, Copy, Debug, PartialEq)]
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
}

/// A field of a factor's record, for whoever reads records as words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordField {
    /// Its name, as in `foam_factor_info`.
    pub name: &'static str,
    /// Its first byte within the record.
    pub offset: usize,
    /// A double; else a 64-bit whole number.
    pub real: bool,
}

/// The fields of both parts of a record. One that is missing does not compile.
macro_rules! record_fields {
    (reals { $($real:ident),+ } wholes { $($whole:ident = $name:literal),+ }) => {
        /// Every field of a record, in the order of its words: the gauges, then the counters.
        pub const RECORD_FIELDS: &[RecordField] = &[
            $(RecordField {
                name: stringify!($real),
                offset: std::mem::offset_of!(Gauges, $real),
                real: true,
            },)+
            $(RecordField {
                name: $name,
                offset: size_of::<Gauges>() + std::mem::offset_of!(Counters, $whole),
                real: false,
            },)+
        ];
        const _: fn(&Gauges, &Counters) = |gauges, counters| {
            let Gauges { $($real: _),+ } = gauges;
            let Counters { $($whole: _),+ } = counters;
        };
    };
}

record_fields! {
    reals {
        epsilon, proxy, max_proxy, relative_change, alpha, gap_bound, residual, noise_floor, eigenvalue_min,
        eigenvalue_max
    }
    wholes {
        branch = "last_branch", has_basis = "has_basis", last_refresh = "last_refresh", last_check = "last_check",
        checks = "checks", evd_calls = "evd_calls", reuse_calls = "reuse_calls", proxy_calls = "proxy_calls",
        epsilon_updates = "epsilon_updates", cap_refreshes = "cap_refreshes", residual_calls = "residual_calls",
        failed_evds = "failed_evds", fallback_double = "fallback_double", fallback_svd = "fallback_svd",
        fallback_stale = "fallback_stale"
    }
}
