//! Preconditioners and their Kronecker factors: which arrays they keep, a factor's record, when it is checked,
//! what is decided about it, and the bound that can be proven for it. Device-free: the numbers come from a device.

pub mod bound;
pub mod cadence;
pub mod damping;
pub mod diagnosis;
pub mod policy;
pub mod shampoo;
pub mod soap;

use crate::config::{Config, PreconditionerName};
use crate::engine::plan::{Array, SlotKind};
use crate::engine::ports::Verb;
use crate::engine::rules::MOST_STEPS;
use crate::error::Result;
use crate::tensor::Precision;
use bytemuck::{Pod, Zeroable};
use damping::Damping;
use policy::{Action, Sensed};

/// A preconditioner: which arrays it keeps, in which order the verbs of a step run, what each of them uses, and how
/// a factor is judged at a check. How its direction is formed are the device's verbs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Preconditioner {
    /// Inverse roots of the statistics.
    Shampoo(shampoo::Shampoo),
    /// Adam in the eigenbasis of the statistics.
    Soap(soap::Soap),
}

/// What a verb does with an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// It does not need it.
    None,
    /// It reads it.
    Reads,
    /// It reads it and writes it anew.
    Writes,
}

impl Default for Preconditioner {
    fn default() -> Self {
        Preconditioner::Shampoo(shampoo::Shampoo { keeps_root: true, shares_squares: false })
    }
}

impl Preconditioner {
    /// The configuration's preconditioner.
    pub fn of(config: &Config) -> Preconditioner {
        match config.preconditioner {
            PreconditionerName::Shampoo => Preconditioner::Shampoo(shampoo::Shampoo::of(config)),
            PreconditionerName::Soap => Preconditioner::Soap(soap::Soap::of(config)),
        }
    }

    /// Adds the arrays of the factors of a block.
    pub fn arrays(
        &self,
        config: &Config,
        dims: &[usize],
        statistic: Precision,
        work: Precision,
        arrays: &mut Vec<Array>,
    ) -> Result<()> {
        match self {
            Preconditioner::Shampoo(own) => own.arrays(config, dims, statistic, work, arrays),
            Preconditioner::Soap(soap) => soap.arrays(dims, statistic, work, arrays),
        }
    }

    /// Whether a side gets a basis in a block of order `order`.
    pub fn has_basis(&self, order: usize, side: usize) -> bool {
        match self {
            Preconditioner::Shampoo(_) => true,
            Preconditioner::Soap(soap) => soap.has_basis(order, side),
        }
    }

    /// The largest side that merging may give, for blocks of at most `limit`.
    pub fn merge_limit(&self, limit: usize) -> usize {
        match self {
            Preconditioner::Shampoo(_) => limit,
            Preconditioner::Soap(soap) => limit.min(soap.largest_side),
        }
    }

    /// The verbs of a step, in the order in which they run.
    pub fn order(&self) -> [Verb; 3] {
        match self {
            Preconditioner::Shampoo(_) => [Verb::Accumulate, Verb::Check, Verb::Apply],
            // The basis that is refreshed with this gradient serves from the next step on.
            Preconditioner::Soap(_) => [Verb::Accumulate, Verb::Apply, Verb::Check],
        }
    }

    /// What `verb` does with an array of numbers.
    pub fn access(&self, verb: Verb, kind: SlotKind) -> Access {
        match self {
            Preconditioner::Shampoo(own) => own.access(verb, kind),
            Preconditioner::Soap(soap) => soap.access(verb, kind),
        }
    }

    /// Whether inverse roots are formed at a check.
    pub fn has_roots(&self) -> bool {
        matches!(self, Preconditioner::Shampoo(_))
    }

    /// Whether a factor's last decomposition failed, so that a device that climbs one rung per check tries the next.
    /// SOAP decomposes only until there is a first basis; a power iteration that fails is the same again.
    pub fn decomposes_again(&self, config: &Config, record: &FactorRecord) -> bool {
        if config.refresh_delay > 0 {
            // A basis that a check asked for is still to come after it.
            return record.counters.branch == Branch::EvdFailed as i64;
        }
        let wants = self.has_roots() || record.counters.evd_calls == 0;
        wants && record.refresh_failed()
    }

    /// Whether a factor with a basis is measured before it is decided about.
    pub fn senses(&self, config: &Config) -> bool {
        match self {
            Preconditioner::Shampoo(_) => policy::senses(config),
            Preconditioner::Soap(_) => soap::senses(config),
        }
    }

    /// Decides about a factor with a basis; see [`policy::decide`].
    pub fn decide(
        &self,
        config: &Config,
        record: &mut FactorRecord,
        sensed: &Sensed,
        exponent: f64,
        growth: f64,
        damping: Damping,
    ) -> Action {
        match self {
            Preconditioner::Shampoo(_) => policy::decide(config, record, sensed, exponent, growth, damping),
            Preconditioner::Soap(_) => soap::decide(config, record, sensed),
        }
    }
}

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
    /// QR steps that did not bring the bound to τ: the next check decomposes.
    QrShort = 10,
    /// Refreshes are delayed, and the last one failed on a device that climbs one rung per check: the next check
    /// decomposes in double precision, at once.
    EvdFailed = 11,
}

/// A part of a factor's record: plain numbers of one type, and the table of their names, which checkpoints use.
macro_rules! part {
    ($(#[$meta:meta])* $name:ident: $type:ty { $($(#[$about:meta])* $field:ident,)+ }) => {
        $(#[$meta])*
        pub struct $name {
            $($(#[$about])* pub $field: $type,)+
        }

        impl $name {
            /// The names of its numbers, in order.
            pub const FIELDS: &'static [&'static str] = &[$(stringify!($field)),+];
        }
    };
}

part! {
    /// The reals of a factor's record. Values that do not exist yet are NaN.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
    Gauges: f64 {
        /// ε in use.
        epsilon,
        /// h of the last check.
        proxy,
        /// Largest h so far.
        max_proxy,
        /// RC of the last check.
        relative_change,
        /// α of the last check.
        alpha,
        /// Proven bound of the relative operator gap at the last check.
        gap_bound,
        /// Off-diagonal residual of the last check.
        residual,
        /// Proxy right after the last refresh.
        noise_floor,
        /// Smallest eigenvalue of the basis in use.
        eigenvalue_min,
        /// Largest eigenvalue of the basis in use.
        eigenvalue_max,
        /// κ of the last check: how far the statistic is from diagonal in SOAP's basis.
        kappa,
        /// ‖QᵀQ − I‖ of a basis that QR steps gave, as sign vectors see it.
        orthogonality,
    }
}

part! {
    /// The counters of a factor's record.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
    Counters: i64 {
        /// [`Branch`] of the last check.
        branch,
        /// 1 once there is a basis.
        has_basis,
        /// Step of the last refresh, 0 for never.
        last_refresh,
        /// Step of the last check, 0 for never.
        last_check,
        /// Checks.
        checks,
        /// Eigendecompositions.
        evd_calls,
        /// Checks that kept the basis.
        reuse_calls,
        /// Proxies computed.
        proxy_calls,
        /// Checks that asked for another ε.
        epsilon_updates,
        /// Refreshes because of the cap.
        cap_refreshes,
        /// Residuals computed.
        residual_calls,
        /// Eigendecompositions that failed on at least one path.
        failed_evds,
        /// Refreshes saved by double precision.
        fallback_double,
        /// Refreshes saved by the other driver.
        fallback_svd,
        /// Refreshes given up.
        fallback_stale,
        /// Refreshes because a lower bound of the sandwich passed τ: no Cholesky was needed.
        bound_exceeded,
        /// Reuses certified by what an average can have lost.
        bound_average,
        /// Reuses certified by bounds of the drift's spectrum.
        bound_spectral,
        /// Reuses certified by the sandwich.
        bound_sandwich,
        /// Steps Q ← qr(A·Q).
        qr_steps,
        /// Refreshes that such steps gave.
        qr_refreshes,
        /// Refreshes by an eigendecomposition because such steps did not suffice.
        qr_fallbacks,
        /// Checks that refreshed by such steps without looking at the basis first.
        qr_tracked,
        /// Which of the last eight checks that looked at the basis asked for a refresh: a bit each, the newest lowest.
        recent_refreshes,
        /// Step at which the refresh that is under way was asked for, 0 if none is (`refresh_delay`).
        pending_since,
        /// Checks that asked for a refresh and left the stale basis in use, because a refresh is delayed.
        delayed_checks,
    }
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
                kappa: none,
                orthogonality: none,
            },
            counters: Counters::default(),
        }
    }

    /// Why these cannot be the values of a record that the engine wrote; none if they can. Records decide what the
    /// engine does next, so that a caller's array and a checkpoint are held to the same rule.
    pub fn fault(&self) -> Option<String> {
        let epsilon = self.gauges.epsilon;
        if !(epsilon.is_finite() && epsilon > 0.0) {
            return Some(format!("epsilon = {epsilon}: expected a number > 0"));
        }
        let counts: [i64; size_of::<Counters>() / 8] = bytemuck::cast(self.counters);
        for (field, count) in Counters::FIELDS.iter().zip(counts) {
            if !(0..=MOST_STEPS as i64).contains(&count) {
                return Some(format!("{field} = {count}: expected a count up to {MOST_STEPS}"));
            }
        }
        let Counters { has_basis, branch, pending_since, last_check, .. } = self.counters;
        if pending_since > if has_basis > 0 { last_check } else { 0 } {
            return Some(format!(
                "pending_since = {pending_since}: expected at most the step of the last check, and 0 where there is no basis"
            ));
        }
        let last = Branch::EvdFailed as i64;
        (has_basis > 1 || branch > last).then(|| {
            format!("has_basis = {has_basis}, branch = {branch}: expected 0 or 1, and at most {last}")
        })
    }

    /// Whether there is a basis.
    pub fn has_basis(&self) -> bool {
        self.counters.has_basis != 0
    }

    /// Whether a refresh is under way that is taken `delay` steps after it was asked for, by step `t`.
    pub fn adopts(&self, delay: i64, t: u64) -> bool {
        let since = self.counters.pending_since;
        since > 0 && t as i64 >= since.saturating_add(delay)
    }

    /// Whether the QR steps of the last check did not suffice.
    pub fn is_short(&self) -> bool {
        self.counters.branch == Branch::QrShort as i64
    }

    /// Whether the last check asked for a refresh that did not succeed: the next one begins with double precision.
    pub fn refresh_failed(&self) -> bool {
        let refreshes = [Branch::EvdFirst, Branch::EvdStale, Branch::EvdCap, Branch::EvdThreshold];
        let counters = &self.counters;
        let asked = refreshes.iter().any(|branch| *branch as i64 == counters.branch);
        asked
            && (counters.last_refresh != counters.last_check
                || counters.evd_calls + counters.qr_refreshes == 0)
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

/// Every field of a record, in the order of its words: the gauges, then the counters.
pub fn record_fields() -> impl Iterator<Item = RecordField> {
    let fields = Gauges::FIELDS
        .iter()
        .map(|name| (*name, true))
        .chain(Counters::FIELDS.iter().map(|name| (*name, false)));
    // In a list of a factor's statistics the branch of the last check is called so.
    let public = |name| if name == "branch" { "last_branch" } else { name };
    fields.enumerate().map(move |(place, (name, real))| RecordField {
        name: public(name),
        offset: 8 * place,
        real,
    })
}
