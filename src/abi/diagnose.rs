//! What keeps a configuration from working, in words.

use super::boundary;
use super::config::{foam_config, to_config};
use super::handle::{Need, enter, foam_optimizer};
use super::stats::foam_factor_info;
use super::status::{foam_error, foam_status};
use crate::error::{Error, Result};
use crate::memory::tried;
use crate::preconditioner::{Counters, FactorRecord, Gauges, diagnosis};
use libc::c_char;

/// Says what `findings` of `foam_stats` means: a line for each finding, with its name, the factors that have it, the
/// option to change and a value to try; an empty text if nothing was found. `text`, if not NULL, is cut to `capacity`
/// bytes with the final zero; `needed`, if not NULL, receives the bytes of the whole text. The log function gets each
/// finding once, when it is made. A factor is judged from its twentieth check on, and one in ten judged factors makes a
/// finding. Works after a panic too.
///
/// # Safety
/// `optimizer` came from `foam_create`; `text` is NULL or has `capacity` bytes; `needed` is NULL or writable; `error`
/// is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_diagnosis(
    optimizer: *mut foam_optimizer,
    text: *mut c_char,
    capacity: usize,
    needed: *mut usize,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        enter(optimizer, Need::Statistics, error, |inner| {
            boundary::check_report(text, capacity)?;
            boundary::put_report(&inner.optimizer.diagnosis_text()?, text, capacity, needed);
            Ok(())
        })
    }
}

/// The same judgement of statistics that were read before: `count` factors of `item_size` =
/// `sizeof(foam_factor_info)` bytes each, of an optimizer with the options of `config`. `findings` receives the bits
/// of them all, and `findings` of each factor its own. `text`, `capacity` and `needed` are as in `foam_diagnosis`.
///
/// # Safety
/// `config` is a configuration; `factors` is NULL or has `count` × `item_size` writable bytes; `findings` and `needed`
/// are NULL or writable; `text` is NULL or has `capacity` bytes; `error` is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_diagnose(
    config: *const foam_config,
    factors: *mut foam_factor_info,
    item_size: usize,
    count: usize,
    findings: *mut u64,
    text: *mut c_char,
    capacity: usize,
    needed: *mut usize,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        boundary::call(error, || {
            let config = to_config(&boundary::read_struct(config, "config")?)?;
            config.validate()?;
            boundary::check_report(text, capacity)?;
            let items = boundary::read_list(factors, item_size, count)?;
            let records: Vec<FactorRecord> = tried(items.iter().map(record), "the records")?;
            let found = diagnosis::judge_all(&config, records.iter());
            let lines = found.lines(&config, |factor| records[factor])?;
            for (place, record) in records.iter().enumerate() {
                let findings = diagnosis::judge(&config, record).bits();
                let own = foam_factor_info { findings, ..items[place] };
                boundary::write_item(&own, factors, item_size, place);
            }
            if !findings.is_null() {
                *findings = found.findings.bits();
            }
            boundary::put_report(&lines, text, capacity, needed);
            Ok(())
        })
    }
}

/// The record that a factor's statistics came from.
fn record(info: &foam_factor_info) -> Result<FactorRecord> {
    let whole = |field: &str, count: u64| {
        i64::try_from(count)
            .map_err(|_| Error::invalid(format!("factors: {field} = {count}: expected a count below 2^63")))
    };
    let fresh = FactorRecord::new(info.epsilon);
    Ok(FactorRecord {
        gauges: Gauges {
            proxy: info.proxy,
            residual: info.residual,
            noise_floor: info.noise_floor,
            eigenvalue_max: info.eigenvalue_max,
            ..fresh.gauges
        },
        counters: Counters {
            checks: whole("checks", info.checks)?,
            evd_calls: whole("evd_calls", info.evd_calls)?,
            proxy_calls: whole("proxy_calls", info.proxy_calls)?,
            residual_calls: whole("residual_calls", info.residual_calls)?,
            qr_tracked: whole("qr_tracked", info.qr_tracked)?,
            cap_refreshes: whole("cap_refreshes", info.cap_refreshes)?,
            failed_evds: whole("failed_evds", info.failed_evds)?,
            fallback_stale: whole("fallback_stale", info.fallback_stale)?,
            ..fresh.counters
        },
    })
}
