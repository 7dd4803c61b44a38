//! Reading an optimizer: statistics, factors, and the exact gap.

use super::boundary::{self, List};
use super::handle::{Need, enter, foam_optimizer};
use super::stats::{
    FOAM_FACTOR_BASIS, FOAM_FACTOR_INVERSE_ROOT, FOAM_FACTOR_SPECTRUM, FOAM_FACTOR_STATISTIC,
    foam_factor_info, foam_stats_info,
};
use super::status::{foam_error, foam_status};
use crate::engine::Optimizer;
use crate::engine::plan::SlotKind;
use crate::engine::stats::Verb;
use crate::error::{Error, Result};
use std::mem::size_of;

/// Reads the statistics of the whole optimizer. Set `info->struct_size` first. Works after a panic too.
///
/// # Safety
/// `optimizer` came from `foam_create`; `info` points to as many writable bytes as its `struct_size`
/// says; `error` is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_stats(
    optimizer: *mut foam_optimizer,
    info: *mut foam_stats_info,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        enter(optimizer, Need::Statistics, error, |inner| {
            if info.is_null() {
                return Err(Error::invalid("info is NULL; expected a foam_stats_info to fill"));
            }
            boundary::write_struct(info, boundary::size_of_struct(info), stats_of(&inner.optimizer))
        })
    }
}

fn stats_of(optimizer: &Optimizer) -> foam_stats_info {
    let summary = optimizer.summary();
    let (totals, counters, footprint) = (summary.totals, summary.counters, summary.footprint);
    let traffic = optimizer.ranks().map(|ranks| ranks.traffic()).unwrap_or_default();
    let seconds = |verb: Verb| totals.seconds[verb as usize];
    foam_stats_info {
        struct_size: size_of::<foam_stats_info>() as u32,
        flags: 0,
        steps: totals.steps,
        skipped_steps: totals.skipped_steps,
        params: optimizer.plan().params.len() as u64,
        blocks: optimizer.plan().blocks.len() as u64,
        factors: optimizer.plan().factors.len() as u64,
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
        state_bytes_host: footprint.state_host as u64,
        state_bytes_device: footprint.state_device as u64,
        workspace_bytes: (footprint.workspace + optimizer.ranks().map_or(0, |ranks| ranks.bytes())) as u64,
        threads: footprint.threads as u64,
        seconds_inspect: seconds(Verb::Inspect),
        seconds_accumulate: seconds(Verb::Accumulate),
        seconds_sense: seconds(Verb::Sense),
        seconds_refresh: seconds(Verb::Refresh),
        seconds_redamp: seconds(Verb::Redamp),
        seconds_apply: seconds(Verb::Apply),
        seconds_total: totals.seconds_total,
        bound_exceeded: counters.bound_exceeded as u64,
        bound_average: counters.bound_average as u64,
        bound_spectral: counters.bound_spectral as u64,
        bound_sandwich: counters.bound_sandwich as u64,
        collectives: traffic.collectives,
        bytes_sent: traffic.sent,
        bytes_received: traffic.received,
        plain_steps: summary.plain_steps,
        qr_steps: counters.qr_steps as u64,
        qr_refreshes: counters.qr_refreshes as u64,
        qr_fallbacks: counters.qr_fallbacks as u64,
        findings: summary.findings.bits(),
        qr_tracked: counters.qr_tracked as u64,
        delayed_checks: counters.delayed_checks as u64,
    }
}

fn factor_of(optimizer: &Optimizer, index: usize) -> foam_factor_info {
    let plan = optimizer.plan();
    let (factor, record) = (&plan.factors[index], &optimizer.records()[index]);
    let block = &plan.blocks[factor.block];
    let (gauges, counters) = (record.gauges, record.counters);
    foam_factor_info {
        struct_size: size_of::<foam_factor_info>() as u32,
        last_branch: counters.branch as i32,
        param_index: block.param as i64,
        block: block.number as i64,
        axis: factor.axis as i64,
        dim: factor.dim as i64,
        root: factor.root,
        epsilon_base: factor.base(optimizer.config(), plan).at(gauges.eigenvalue_max),
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
        qr_steps: counters.qr_steps as u64,
        qr_refreshes: counters.qr_refreshes as u64,
        qr_fallbacks: counters.qr_fallbacks as u64,
        qr_tracked: counters.qr_tracked as u64,
        recent_refreshes: counters.recent_refreshes as u64,
        pending_since: counters.pending_since as u64,
        delayed_checks: counters.delayed_checks as u64,
        last_refresh: counters.last_refresh as u64,
        last_check: counters.last_check as u64,
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
        findings: optimizer.findings(record).bits(),
    }
}

/// Reads the statistics of every factor, ordered by parameter, block and axis. `items` has room for
/// `capacity` elements of `item_size` = `sizeof(foam_factor_info)` bytes as the caller was compiled;
/// `*count` receives the number of factors. Pass `items` = NULL and `capacity` = 0 to ask for it.
/// If there is too little room, nothing is written but `*count`. Works after a panic too.
///
/// # Safety
/// `optimizer` came from `foam_create`; `items` has `capacity` × `item_size` writable bytes; `count` is
/// writable; `error` is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_factor_stats(
    optimizer: *mut foam_optimizer,
    items: *mut foam_factor_info,
    item_size: usize,
    capacity: usize,
    count: *mut usize,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        enter(optimizer, Need::Statistics, error, |inner| {
            let total = inner.optimizer.plan().factors.len();
            let list = List { items, item_size, capacity, count };
            boundary::write_list(list, total, |index| Ok(factor_of(&inner.optimizer, index)))
        })
    }
}

/// Reads one of a factor's matrices (`FOAM_FACTOR_*`), row-major, as doubles. `*count` receives the
/// number of values; pass `values` = NULL to ask for it.
///
/// # Safety
/// `optimizer` came from `foam_create`; `values` is NULL or has room for `capacity` doubles; `count` is
/// writable; `error` is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_factor_read(
    optimizer: *mut foam_optimizer,
    param_index: i64,
    block: i64,
    axis: i64,
    what: i32,
    values: *mut f64,
    capacity: usize,
    count: *mut usize,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        enter(optimizer, Need::Settled, error, |inner| {
            let kind = match what {
                FOAM_FACTOR_STATISTIC => SlotKind::Statistic,
                FOAM_FACTOR_BASIS => SlotKind::Basis,
                FOAM_FACTOR_SPECTRUM => SlotKind::Spectrum,
                FOAM_FACTOR_INVERSE_ROOT => SlotKind::InverseRoot,
                _ => return Err(Error::invalid(format!("what = {what}: expected one of FOAM_FACTOR_*"))),
            };
            if count.is_null() {
                return Err(Error::invalid("count is NULL; expected a place for the number of values"));
            }
            let factor = inner.optimizer.factor_index(param_index, block, axis)?;
            let total = inner.optimizer.factor_len(factor, kind);
            if !values.is_null() {
                if capacity < total {
                    return Err(Error::invalid(format!("capacity = {capacity}: expected at least {total}")));
                }
                let matrix = inner.optimizer.factor_matrix(factor, kind)?;
                for (place, value) in matrix.iter().enumerate() {
                    values.add(place).write(*value);
                }
            }
            *count = total;
            Ok(())
        })
    }
}

/// Computes the exact relative operator gap of a factor at this moment: what the proxy estimates, at
/// the price of an eigendecomposition in double precision. For studies and tests.
///
/// # Safety
/// `optimizer` came from `foam_create`; `gap` is writable; `error` is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_exact_gap(
    optimizer: *mut foam_optimizer,
    param_index: i64,
    block: i64,
    axis: i64,
    gap: *mut f64,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        enter(optimizer, Need::Settled, error, |inner| {
            if gap.is_null() {
                return Err(Error::invalid("gap is NULL; expected a place for the result"));
            }
            *gap = exact_gap(&mut inner.optimizer, param_index, block, axis)?;
            Ok(())
        })
    }
}

fn exact_gap(optimizer: &mut Optimizer, param_index: i64, block: i64, axis: i64) -> Result<f64> {
    let factor = optimizer.factor_index(param_index, block, axis)?;
    optimizer.exact_gap(factor)
}
