//! Options of a live optimizer: reading them, and changing those that do not shape its state.

use super::boundary;
use super::handle::{Need, enter, foam_optimizer};
use super::param::refuse_rates;
use super::status::{foam_error, foam_status};
use crate::error::Result;
use libc::c_char;

/// Changes one option of a live optimizer; the next step uses it, and no state moves. Keys and values are those of
/// `foam_config_set`. Live are lr, weight_decay, decoupled_weight_decay, the dampings (epsilon, epsilon_left,
/// epsilon_right, epsilon_max), tau, residual_threshold, check_period, grafting_epsilon, nonfinite,
/// negative_eigenvalues, noise_floor, nesterov, ema_momentum, nadam, inject_fault, inject_fault_step,
/// refresh_schedule, refresh_method, qr_track, front_period, front_steps, refresh_growth and kappa_threshold, and as long as they
/// switch nothing on or off also beta1, beta2, grafting_beta2, momentum, correction_period and refresh_delay. The others shape the state
/// and are refused by name with the reason.
///
/// The configuration is validated as a whole; a refused value changes nothing. A new damping is used from the next
/// check on. A new check_period or schedule leaves the first check where it was. Bias corrections take a new beta as
/// if it had been in use from the first step.
///
/// # Safety
/// `optimizer` came from `foam_create`; `key` and `value` are C strings; `error` is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_set_option(
    optimizer: *mut foam_optimizer,
    key: *const c_char,
    value: *const c_char,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        enter(optimizer, Need::Settled, error, |inner| {
            let (key, value) = (boundary::text(key, "key")?, boundary::text(value, "value")?);
            let config = inner.optimizer.config().changed(key, value)?;
            refuse_rates(&config, config.lr, inner.optimizer.plan().params.iter().map(|param| &param.spec))?;
            inner.optimizer.set_config(config);
            Ok(())
        })
    }
}

/// Writes the text form of an optimizer's option `key`, NUL-terminated, into `value` of `capacity` bytes: the value
/// in use. Give `key` = NULL to get the keys that `foam_set_option` changes, separated by spaces.
///
/// # Safety
/// `optimizer` came from `foam_create`; `key` is NULL or a C string; `value` points to `capacity` writable bytes;
/// `error` is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_get_option(
    optimizer: *mut foam_optimizer,
    key: *const c_char,
    value: *mut c_char,
    capacity: usize,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        enter(optimizer, Need::Statistics, error, |inner| {
            let text = if key.is_null() { live_keys()? } else { option(inner.optimizer.config(), key)? };
            boundary::put_text(&text, value, capacity)
        })
    }
}

unsafe fn option(config: &crate::config::Config, key: *const c_char) -> Result<String> {
    // SAFETY: the caller's contract.
    config.get(unsafe { boundary::text(key, "key")? })
}

fn live_keys() -> Result<String> {
    let live = crate::config::OPTIONS.iter().filter(|option| option.is_live());
    crate::memory::whole_joined(live.map(|option| option.key), " ", "the keys")
}
