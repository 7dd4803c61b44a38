//! XLA FFI handlers: the verbs of a stack as custom calls, to be registered by address. XLA's structs are
//! declared in [`frame`]; nothing of XLA is linked.

mod attributes;
mod frame;
mod handler;

use super::boundary;
use super::float_env;
use crate::engine::ports::Verb;
use crate::error::{Error, Kind};
use frame::{CallFrame, ErrorCreateArgs, STAGE_EXECUTE};
use handler::Platform;
use libc::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `foam_stack_accumulate` as an XLA FFI handler of API version 0.1, for the platform cpu. Register it by its
/// address, for example with `jax.ffi.register_ffi_target`; both pointers are XLA's, `XLA_FFI_CallFrame *`
/// and `XLA_FFI_Error *`.
///
/// Operands: grads, params (with_params = 1), active, clock, statistic_*. Results: clock, statistic_*, info,
/// workspace. Attributes of all three handlers: options ("key=value;key=value", after "preset=NAME" if
/// wanted), order (dimensions of a block; those in front are batch), with_params, preconditioned, dtype,
/// grad_scale, weight_decay_scale, root, and scale (apply).
///
/// # Safety
/// `call_frame` is a call frame of XLA's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_xla_accumulate(call_frame: *mut c_void) -> *mut c_void {
    // SAFETY: the caller's contract.
    unsafe { handle("foam_xla_accumulate", Verb::Accumulate, &handler::CPU, call_frame) }
}

/// `foam_stack_check` as an XLA FFI handler, as `foam_xla_accumulate`. Operands: info, clock, record,
/// statistic_*, basis_*, spectrum_*, inverse_root_*. Results: record, basis_*, spectrum_*, inverse_root_*,
/// info, workspace. SOAP, `keep_inverse_root` = 0, and an axis whose squares are shared (`share_squares`: statistic_* is a
/// result, too, and root_diagonal_* stands for inverse_root_*) have other ports; `foam_stack_ports` lists them. SOAP is
/// checked after `foam_xla_apply`.
///
/// # Safety
/// `call_frame` is a call frame of XLA's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_xla_check(call_frame: *mut c_void) -> *mut c_void {
    // SAFETY: the caller's contract.
    unsafe { handle("foam_xla_check", Verb::Check, &handler::CPU, call_frame) }
}

/// `foam_stack_apply` as an XLA FFI handler, as `foam_xla_accumulate`. Operands: grads, params (with_params
/// = 1), info, clock, inverse_root_*, filter, moment, momentum. Results: update, filter, moment, momentum,
/// info, workspace. Other ports as with `foam_xla_check`.
///
/// # Safety
/// `call_frame` is a call frame of XLA's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_xla_apply(call_frame: *mut c_void) -> *mut c_void {
    // SAFETY: the caller's contract.
    unsafe { handle("foam_xla_apply", Verb::Apply, &handler::CPU, call_frame) }
}

/// `foam_xla_accumulate` for the platform CUDA: device buffers, on XLA's stream, without waiting.
///
/// # Safety
/// `call_frame` is a call frame of XLA's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_xla_accumulate_cuda(call_frame: *mut c_void) -> *mut c_void {
    // SAFETY: the caller's contract.
    unsafe { handle("foam_xla_accumulate_cuda", Verb::Accumulate, &handler::CUDA, call_frame) }
}

/// `foam_xla_check` for the platform CUDA. It waits for the device once.
///
/// # Safety
/// `call_frame` is a call frame of XLA's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_xla_check_cuda(call_frame: *mut c_void) -> *mut c_void {
    // SAFETY: the caller's contract.
    unsafe { handle("foam_xla_check_cuda", Verb::Check, &handler::CUDA, call_frame) }
}

/// `foam_xla_apply` for the platform CUDA, without waiting.
///
/// # Safety
/// `call_frame` is a call frame of XLA's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_xla_apply_cuda(call_frame: *mut c_void) -> *mut c_void {
    // SAFETY: the caller's contract.
    unsafe { handle("foam_xla_apply_cuda", Verb::Apply, &handler::CUDA, call_frame) }
}

/// Answers a metadata call, or performs the verb; an error and a panic become XLA's error.
///
/// # Safety
/// `call_frame` is NULL or a call frame of XLA's.
unsafe fn handle(name: &str, verb: Verb, platform: &Platform, call_frame: *mut c_void) -> *mut c_void {
    let frame = call_frame.cast::<CallFrame>();
    // SAFETY: the caller's contract.
    unsafe {
        if frame.is_null() || frame::answer_metadata(frame) || (*frame).stage != STAGE_EXECUTE {
            return std::ptr::null_mut();
        }
        let frame = &*frame;
        let _floats = float_env::standard();
        let outcome = catch_unwind(AssertUnwindSafe(|| handler::perform(verb, platform, frame)))
            .unwrap_or_else(|payload| Err(boundary::panic_error(&*payload)));
        match outcome {
            Ok(()) => std::ptr::null_mut(),
            Err(cause) => report(name, frame, &cause),
        }
    }
}

/// XLA's own error object for `cause`.
///
/// # Safety
/// `frame` is a call frame with an API table.
unsafe fn report(name: &str, frame: &CallFrame, cause: &Error) -> *mut c_void {
    // The codes of absl::Status.
    let code = match cause.kind {
        Kind::InvalidArgument | Kind::ShapeMismatch => 3,
        Kind::OutOfMemory => 8,
        Kind::Unsupported => 12,
        _ => 13,
    };
    let message = boundary::c_text(&format!("{name}: {}", cause.message));
    let mut args = ErrorCreateArgs {
        struct_size: size_of::<ErrorCreateArgs>(),
        extension_start: std::ptr::null_mut(),
        message: message.as_ptr().cast(),
        code,
    };
    // SAFETY: the caller's contract; XLA copies the message.
    unsafe {
        let create = if frame.api.is_null() { None } else { (*frame.api).error_create };
        create.map_or(std::ptr::null_mut(), |create| create(&mut args))
    }
}
