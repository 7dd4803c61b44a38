//! The verbs of a stack: their arguments, and the validation of these before the first write.

use super::boundary::{self, AbiStruct, field_ends};
use super::config::foam_config;
use super::handle::LogSink;
use super::param::refuse_stack_rates;
use super::stack::views::Arguments;
use super::stack::{foam_stack, read_stack};
use super::status::{foam_error, foam_status};
use super::tensor::foam_tensor;
use crate::engine::cache;
use crate::engine::ports::{Buffer, Port, Verb, refuse_overlaps};
use crate::engine::session::{Call, Session};
use crate::engine::stack::Stack;
use crate::error::{Error, Result};
use crate::memory::tried;
use libc::c_void;

/// The block took no part: it is not active, or never accumulated.
pub const FOAM_INFO_IDLE: i32 = 1;
/// The block's gradient is not finite, or its square overflows: nothing of the block changed.
pub const FOAM_INFO_NOT_FINITE: i32 = 2;
/// The block's direction overflowed and was left out of the update.
pub const FOAM_INFO_LEFT_OUT: i32 = 4;
/// An eigendecomposition of the block failed or was inaccurate, and another path served.
pub const FOAM_INFO_FELL_BACK: i32 = 8;

/// Arguments of the verbs of a stack. Fill it with `foam_stack_args_init`, then set what the verb uses. All
/// tensors have `count` blocks as their first dimension.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct foam_stack_args {
    /// Bytes of this struct, set by the caller.
    pub struct_size: u32,
    /// Must be 0.
    pub flags: u32,
    /// The state buffers, in the order of `foam_stack_layout`. `data` may be NULL where the verb does not
    /// use a buffer.
    pub state: *const foam_tensor,
    /// NULL: the state is updated in place. Else where the new state goes, in the same order; `data` = NULL
    /// means in place for that buffer. What a verb does not write is not touched.
    pub state_out: *const foam_tensor,
    /// Number of tensors in `state`, and in `state_out`.
    pub state_count: usize,
    /// Gradients, count * shape, of any floating type (accumulate, apply).
    pub grads: *const foam_tensor,
    /// Parameters, count * shape, or NULL; needed where there is a weight decay (accumulate: a coupled one).
    /// Only read.
    pub params: *const foam_tensor,
    /// i32[count]: 0 for a block that takes no part; NULL means that all do (accumulate).
    pub active: *const foam_tensor,
    /// i32[count]: what the verb before wrote (check, apply); NULL means `info` itself.
    pub info_in: *const foam_tensor,
    /// i32[count]: receives `FOAM_INFO_*` bits for every block.
    pub info: *const foam_tensor,
    /// Receives the updates, count * shape, of the stack's type (or f32 for f16 and bf16). It may be exactly
    /// `grads` or `params`, if these have the same type (apply).
    pub update: *const foam_tensor,
    /// Workspace, of any content and alignment.
    pub workspace: *mut c_void,
    /// Its bytes, at least what `foam_stack_workspace` says.
    pub workspace_size: usize,
    /// CUDA stream to order the work on; ignored on the CPU.
    pub stream: *mut c_void,
    /// The update is this times the direction; NaN (the default) means minus the configuration's learning
    /// rate (apply).
    pub scale: f64,
    /// Multiplies every gradient, default 1; the same in accumulate and in apply.
    pub grad_scale: f64,
}

// SAFETY: plain data, first field `struct_size`, every bit pattern valid.
unsafe impl AbiStruct for foam_stack_args {
    const NAME: &'static str = "foam_stack_args";
    const REQUIRED: usize = std::mem::offset_of!(foam_stack_args, stream);
    const ENDS: &'static [usize] = field_ends!(foam_stack_args {
        struct_size,
        flags,
        state,
        state_out,
        state_count,
        grads,
        params,
        active,
        info_in,
        info,
        update,
        workspace,
        workspace_size,
        stream,
        scale,
        grad_scale
    });

    fn defaults() -> Self {
        foam_stack_args {
            struct_size: size_of::<Self>() as u32,
            flags: 0,
            state: std::ptr::null(),
            state_out: std::ptr::null(),
            state_count: 0,
            grads: std::ptr::null(),
            params: std::ptr::null(),
            active: std::ptr::null(),
            info_in: std::ptr::null(),
            info: std::ptr::null(),
            update: std::ptr::null(),
            workspace: std::ptr::null_mut(),
            workspace_size: 0,
            stream: std::ptr::null_mut(),
            scale: f64::NAN,
            grad_scale: 1.0,
        }
    }
}

/// Fills `args` with the defaults: no tensors, in place, all blocks active.
/// `struct_size` is `sizeof(foam_stack_args)` as the caller was compiled.
///
/// # Safety
/// `args` points to `struct_size` writable bytes; `error` is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_stack_args_init(
    args: *mut foam_stack_args,
    struct_size: u32,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        boundary::call(error, || {
            if args.is_null() {
                return Err(Error::invalid("args is NULL; expected a foam_stack_args to fill"));
            }
            boundary::write_struct(args, struct_size, foam_stack_args::defaults())
        })
    }
}

/// First part of a step: looks at the gradients, ticks the clocks of the active blocks whose gradients are
/// finite, and adds these to the statistics. Reads grads, params, active, clock and statistics; writes clock,
/// statistics and info. Numerical trouble is reported by `info`, not by an error.
///
/// # Safety
/// The structs have their `struct_size` set; the tensors' memory is valid for the call, and nobody else writes
/// it, or reads what is written, meanwhile; `error` is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_stack_accumulate(
    config: *const foam_config,
    stack: *const foam_stack,
    args: *const foam_stack_args,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe { boundary::call(error, || perform(Verb::Accumulate, config, stack, args)) }
}

/// Second part of a step: measures, decides, refreshes and re-damps the factors of the blocks that took part
/// and whose clock says that a check is due. Call it in every step, or at least in every step with a check.
/// Reads info, clock, record, statistics, bases, spectra and inverse roots; writes all of these but clock and
/// statistics. SOAP's basis is checked after `foam_stack_apply`: its check reads info, clock, record, statistics,
/// bases, filter and moment, and writes all of these but clock and (`soap_form` = exact) statistics.
///
/// # Safety
/// As `foam_stack_accumulate`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_stack_check(
    config: *const foam_config,
    stack: *const foam_stack,
    args: *const foam_stack_args,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe { boundary::call(error, || perform(Verb::Check, config, stack, args)) }
}

/// Last part of a step: the updates, to be added to the parameters. Reads grads, params, info, clock, inverse
/// roots, filter, moment and momentum; writes update, filter, moment, momentum and info. A block that took no
/// part gets an update of zeros and keeps its state. SOAP reads the bases in place of the inverse roots; with
/// `soap_form` = in_basis it adds the projected gradient to the statistics here.
///
/// # Safety
/// As `foam_stack_accumulate`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_stack_apply(
    config: *const foam_config,
    stack: *const foam_stack,
    args: *const foam_stack_args,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe { boundary::call(error, || perform(Verb::Apply, config, stack, args)) }
}

unsafe fn perform(
    verb: Verb,
    config: *const foam_config,
    stack: *const foam_stack,
    args: *const foam_stack_args,
) -> Result<()> {
    // SAFETY: the caller's contract.
    let (raw, (config, stack), args) = unsafe {
        let pair = read_stack(config, stack)?;
        (boundary::read_struct(config, "config")?, pair, boundary::read_struct(args, "args")?)
    };
    if args.flags != 0 {
        return Err(Error::invalid(format!("args.flags = {:#x}: expected 0", args.flags)));
    }
    if args.scale.is_infinite() {
        return Err(Error::invalid(format!(
            "args.scale = {}: expected a finite number, or NaN for minus the configuration's lr",
            args.scale
        )));
    }
    if verb == Verb::Apply {
        refuse_stack_rates(&config, &stack, (!args.scale.is_nan()).then_some(args.scale))?;
    }
    if !args.grad_scale.is_finite() || args.grad_scale == 0.0 {
        return Err(Error::invalid(format!(
            "args.grad_scale = {}: expected a finite number other than 0 (foam_stack_args_init sets 1)",
            args.grad_scale
        )));
    }
    let mut session = cache::take(&config, &stack)?;
    let sink = LogSink { callback: raw.log, user: raw.log_user };
    let outcome = session.set_log(move |level, message| sink.line(level, message));
    // SAFETY: the caller's contract.
    let outcome = outcome.and_then(|()| unsafe { run(verb, &mut session, &stack, &args, config.lr) });
    cache::give(session);
    outcome
}

unsafe fn run(
    verb: Verb,
    session: &mut Session,
    stack: &Stack,
    args: &foam_stack_args,
    lr: f64,
) -> Result<()> {
    let ports = session.ports(verb, !args.params.is_null(), !args.active.is_null())?;
    let need = session.workspace_bytes();
    let arguments = Arguments { args, stack, layout: session.layout(), need, device: session.device_of() };
    arguments.check_lists()?;
    // SAFETY: the caller's contract.
    let (inputs, outputs) = unsafe {
        let read = |written: bool, ports: &[Port]| -> Result<Vec<Buffer>> {
            tried(ports.iter().map(|port| arguments.give(port, written)), "the buffers")
        };
        (read(false, &ports.inputs)?, read(true, &ports.outputs)?)
    };
    refuse_overlaps(&ports, &inputs, &outputs, |written, place| arguments.say(&ports, written, place))?;
    let scale = if args.scale.is_nan() { -lr } else { args.scale };
    let call = Call {
        verb,
        ports: &ports,
        inputs: &inputs,
        outputs: &outputs,
        grad_scale: args.grad_scale,
        scale,
        stream: args.stream,
    };
    // SAFETY: the caller's contract, and everything was checked above.
    unsafe { session.run(&call) }
}
