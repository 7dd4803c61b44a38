//! The statistics a caller can read: of the whole optimizer, and of every factor.

use super::boundary::{AbiStruct, field_ends};

/// Statistics of the whole optimizer since its creation (or since the start of the run that its
/// checkpoint continues; seconds count from creation).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct foam_stats_info {
    /// Bytes of this struct, set by the caller.
    pub struct_size: u32,
    /// 0.
    pub flags: u32,
    /// Steps taken; skipped ones are not counted here.
    pub steps: u64,
    /// Steps skipped because a gradient was not finite.
    pub skipped_steps: u64,
    /// Parameters of the model.
    pub params: u64,
    /// Blocks that they are cut into.
    pub blocks: u64,
    /// Kronecker factors, over all blocks.
    pub factors: u64,
    /// Checks of factors: what stale Shampoo would spend an eigendecomposition on each time.
    pub checks: u64,
    /// Eigendecompositions done (SOAP: refreshes of a basis, the first and those by QR).
    pub evd_calls: u64,
    /// Checks that kept the stale basis.
    pub reuse_calls: u64,
    /// Proxies computed.
    pub proxy_calls: u64,
    /// Checks that asked for another epsilon.
    pub epsilon_updates: u64,
    /// Refreshes because epsilon would have passed `epsilon_max` (or no epsilon was certified).
    pub cap_refreshes: u64,
    /// Off-diagonal residuals computed (policy diagonal_residual).
    pub residual_calls: u64,
    /// Eigendecompositions that failed on at least one path.
    pub failed_evds: u64,
    /// Refreshes saved by double precision.
    pub fallback_double: u64,
    /// Refreshes saved by the other driver (a singular value decomposition).
    pub fallback_svd: u64,
    /// Refreshes given up: the stale basis was kept with raised damping.
    pub fallback_stale: u64,
    /// Bytes of state in host memory.
    pub state_bytes_host: u64,
    /// Bytes of state in device memory.
    pub state_bytes_device: u64,
    /// Bytes of workspace.
    pub workspace_bytes: u64,
    /// Threads that work on a step.
    pub threads: u64,
    /// Seconds spent checking gradients.
    pub seconds_inspect: f64,
    /// Seconds spent in statistics.
    pub seconds_accumulate: f64,
    /// Seconds spent in proxies.
    pub seconds_sense: f64,
    /// Seconds spent in eigendecompositions.
    pub seconds_refresh: f64,
    /// Seconds spent forming inverse roots.
    pub seconds_redamp: f64,
    /// Seconds spent in directions and parameters.
    pub seconds_apply: f64,
    /// Seconds spent in steps, all in all.
    pub seconds_total: f64,
    /// Refreshes because a lower bound of the sandwich passed `tau` (policy `sandwich`).
    pub bound_exceeded: u64,
    /// Reuses certified by what an average can have lost (policy `sandwich`).
    pub bound_average: u64,
    /// Reuses certified by bounds of the drift's spectrum (policy `sandwich`).
    pub bound_spectral: u64,
    /// Reuses certified by the sandwich bound itself (policy `sandwich`).
    pub bound_sandwich: u64,
    /// Collectives of `foam_comm` so far; 0 alone.
    pub collectives: u64,
    /// Bytes that this rank gave to others in them.
    pub bytes_sent: u64,
    /// Bytes that it received from others.
    pub bytes_received: u64,
    /// Steps before the next check, if all parameters take part: so many plain steps may be replayed from a
    /// CUDA graph. UINT64_MAX if no check is near.
    pub plain_steps: u64,
    /// Steps Q <- qr(A Q) (`refresh_method` qr).
    pub qr_steps: u64,
    /// Refreshes that such steps gave, without an eigendecomposition.
    pub qr_refreshes: u64,
    /// Refreshes by an eigendecomposition because such steps did not suffice.
    pub qr_fallbacks: u64,
    /// What keeps the configuration from working: `FOAM_FINDING_*` bits, see `foam_diagnosis`.
    pub findings: u64,
    /// Checks that refreshed by QR steps without looking at the basis first (`qr_track`).
    pub qr_tracked: u64,
    /// Checks that asked for a refresh and left the stale basis in use, because refreshes are delayed (`refresh_delay`).
    pub delayed_checks: u64,
}

// SAFETY: plain data, first field `struct_size`, every bit pattern valid.
unsafe impl AbiStruct for foam_stats_info {
    const NAME: &'static str = "foam_stats_info";
    const REQUIRED: usize = std::mem::offset_of!(foam_stats_info, steps);
    const ENDS: &'static [usize] = field_ends!(foam_stats_info {
        struct_size,
        flags,
        steps,
        skipped_steps,
        params,
        blocks,
        factors,
        checks,
        evd_calls,
        reuse_calls,
        proxy_calls,
        epsilon_updates,
        cap_refreshes,
        residual_calls,
        failed_evds,
        fallback_double,
        fallback_svd,
        fallback_stale,
        state_bytes_host,
        state_bytes_device,
        workspace_bytes,
        threads,
        seconds_inspect,
        seconds_accumulate,
        seconds_sense,
        seconds_refresh,
        seconds_redamp,
        seconds_apply,
        seconds_total,
        bound_exceeded,
        bound_average,
        bound_spectral,
        bound_sandwich,
        collectives,
        bytes_sent,
        bytes_received,
        plain_steps,
        qr_steps,
        qr_refreshes,
        qr_fallbacks,
        findings,
        qr_tracked,
        delayed_checks
    });

    fn defaults() -> Self {
        foam_stats_info { struct_size: std::mem::size_of::<Self>() as u32, ..Default::default() }
    }
}

/// No check yet.
pub const FOAM_BRANCH_NONE: i32 = 0;
/// The first eigendecomposition.
pub const FOAM_BRANCH_EVD_FIRST: i32 = 1;
/// An eigendecomposition because the policy is stale.
pub const FOAM_BRANCH_EVD_STALE: i32 = 2;
/// Reuse; epsilon was raised.
pub const FOAM_BRANCH_REUSE_RAISED: i32 = 3;
/// Reuse; epsilon was lowered, still above its base.
pub const FOAM_BRANCH_REUSE_LOWERED: i32 = 4;
/// Reuse at the base epsilon.
pub const FOAM_BRANCH_REUSE_FLOOR: i32 = 5;
/// An eigendecomposition because epsilon would have passed `epsilon_max` (or none was certified).
pub const FOAM_BRANCH_EVD_CAP: i32 = 6;
/// An eigendecomposition because the proxy or the residual passed its threshold.
pub const FOAM_BRANCH_EVD_THRESHOLD: i32 = 7;
/// Reuse; epsilon was clipped at `epsilon_max`.
pub const FOAM_BRANCH_REUSE_CLIPPED: i32 = 8;
/// Reuse; nothing changed.
pub const FOAM_BRANCH_REUSE_SAME: i32 = 9;
/// QR steps on a CUDA device that did not bring the bound to `tau`: the next check decomposes.
pub const FOAM_BRANCH_QR_SHORT: i32 = 10;
/// A delayed refresh failed on a CUDA device: the next check decomposes in double precision, at once.
pub const FOAM_BRANCH_EVD_FAILED: i32 = 11;

/// Statistics of one Kronecker factor. Values that do not exist yet are NaN.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct foam_factor_info {
    /// Bytes of this struct as the library wrote it.
    pub struct_size: u32,
    /// `FOAM_BRANCH_*`: what the last check did.
    pub last_branch: i32,
    /// Parameter of the factor.
    pub param_index: i64,
    /// Block within the parameter, in row-major order.
    pub block: i64,
    /// Axis within the block.
    pub axis: i64,
    /// Side of the factor.
    pub dim: i64,
    /// p of the inverse root.
    pub root: f64,
    /// Base damping.
    pub epsilon_base: f64,
    /// Damping in use.
    pub epsilon: f64,
    /// h of the last check: the proxy of the relative operator gap.
    pub proxy: f64,
    /// Largest h so far.
    pub max_proxy: f64,
    /// RC of the last check.
    pub relative_change: f64,
    /// alpha of the last check.
    pub alpha: f64,
    /// Proven upper bound of the relative operator gap at the last check, for the epsilon that was in use
    /// then (policy foam_certified: for the epsilon that it chose).
    pub gap_bound: f64,
    /// Off-diagonal residual of the last check (policy diagonal_residual).
    pub residual: f64,
    /// Proxy right after the last refresh, with no drift at all: what rounding alone makes of it.
    pub noise_floor: f64,
    /// Smallest eigenvalue of the basis in use.
    pub eigenvalue_min: f64,
    /// Largest eigenvalue of the basis in use.
    pub eigenvalue_max: f64,
    /// Step of the last refresh, on the parameter's own clock; 0 for never.
    pub last_refresh: u64,
    /// Step of the last check, on the parameter's own clock; 0 for never.
    pub last_check: u64,
    /// Checks.
    pub checks: u64,
    /// Eigendecompositions (SOAP: refreshes of the basis, the first and those by QR).
    pub evd_calls: u64,
    /// Checks that kept the stale basis.
    pub reuse_calls: u64,
    /// Proxies computed.
    pub proxy_calls: u64,
    /// Checks that asked for another epsilon.
    pub epsilon_updates: u64,
    /// Refreshes because of the cap.
    pub cap_refreshes: u64,
    /// Residuals computed.
    pub residual_calls: u64,
    /// Eigendecompositions that failed on at least one path.
    pub failed_evds: u64,
    /// Refreshes saved by double precision.
    pub fallback_double: u64,
    /// Refreshes saved by the other driver.
    pub fallback_svd: u64,
    /// Refreshes given up.
    pub fallback_stale: u64,
    /// Refreshes because a lower bound of the sandwich passed `tau` (policy `sandwich`).
    pub bound_exceeded: u64,
    /// Reuses certified by what an average can have lost (policy `sandwich`).
    pub bound_average: u64,
    /// Reuses certified by bounds of the drift's spectrum (policy `sandwich`).
    pub bound_spectral: u64,
    /// Reuses certified by the sandwich bound itself (policy `sandwich`).
    pub bound_sandwich: u64,
    /// SOAP: kappa of the last check, how far the statistic was from diagonal in the basis in use; 0 is fresh.
    pub kappa: f64,
    /// |Q'Q - I| of a basis that QR steps gave, as sign vectors see it; NaN otherwise.
    pub orthogonality: f64,
    /// Steps Q <- qr(A Q) (`refresh_method` qr).
    pub qr_steps: u64,
    /// Refreshes that such steps gave, without an eigendecomposition.
    pub qr_refreshes: u64,
    /// Refreshes by an eigendecomposition because such steps did not suffice.
    pub qr_fallbacks: u64,
    /// What is wrong with the factor: `FOAM_FINDING_*` bits. It is judged from its twentieth check on.
    pub findings: u64,
    /// Checks that refreshed by QR steps without looking at the basis first (`qr_track`).
    pub qr_tracked: u64,
    /// Which of the last eight checks that looked at the basis asked for a refresh (policy `sandwich`): a bit each, the
    /// newest lowest.
    pub recent_refreshes: u64,
    /// Step at which the refresh that is under way was asked for, 0 if none is (`refresh_delay`). It is counted, and
    /// `last_refresh` becomes this step, when it is taken.
    pub pending_since: u64,
    /// Checks that asked for a refresh and left the stale basis in use, because refreshes are delayed.
    pub delayed_checks: u64,
}

// SAFETY: plain data, first field `struct_size`, every bit pattern valid.
unsafe impl AbiStruct for foam_factor_info {
    const NAME: &'static str = "foam_factor_info";
    const REQUIRED: usize = std::mem::offset_of!(foam_factor_info, root);
    const ENDS: &'static [usize] = field_ends!(foam_factor_info {
        struct_size,
        last_branch,
        param_index,
        block,
        axis,
        dim,
        root,
        epsilon_base,
        epsilon,
        proxy,
        max_proxy,
        relative_change,
        alpha,
        gap_bound,
        residual,
        noise_floor,
        eigenvalue_min,
        eigenvalue_max,
        last_refresh,
        last_check,
        checks,
        evd_calls,
        reuse_calls,
        proxy_calls,
        epsilon_updates,
        cap_refreshes,
        residual_calls,
        failed_evds,
        fallback_double,
        fallback_svd,
        fallback_stale,
        bound_exceeded,
        bound_average,
        bound_spectral,
        bound_sandwich,
        kappa,
        orthogonality,
        qr_steps,
        qr_refreshes,
        qr_fallbacks,
        findings,
        qr_tracked,
        recent_refreshes,
        pending_since,
        delayed_checks
    });

    fn defaults() -> Self {
        foam_factor_info { struct_size: std::mem::size_of::<Self>() as u32, ..Default::default() }
    }
}

/// Right after a refresh, with no drift at all, the proxy is above `tau`: rounding decides, not staleness.
pub const FOAM_FINDING_NOISE_ABOVE_TAU: u64 = 1;
/// Most checks wanted a larger epsilon than `epsilon_max`.
pub const FOAM_FINDING_EPSILON_AT_CAP: u64 = 2;
/// At least nine of ten checks refresh, for no reason named above: nothing is saved.
pub const FOAM_FINDING_ALWAYS_REFRESHES: u64 = 4;
/// Epsilon is at least the largest eigenvalue: nothing is preconditioned.
pub const FOAM_FINDING_DAMPING_DOMINATES: u64 = 8;
/// Most eigendecompositions failed or were inaccurate at first.
pub const FOAM_FINDING_REFRESHES_FAIL: u64 = 16;

/// The factor's statistic: the running second moment, not bias-corrected; dim x dim.
pub const FOAM_FACTOR_STATISTIC: i32 = 0;
/// The stale basis, one eigenvector per row; dim x dim.
pub const FOAM_FACTOR_BASIS: i32 = 1;
/// The stale spectrum; dim values.
pub const FOAM_FACTOR_SPECTRUM: i32 = 2;
/// The inverse root in use; dim x dim.
pub const FOAM_FACTOR_INVERSE_ROOT: i32 = 3;
