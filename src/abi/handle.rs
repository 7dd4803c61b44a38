//! The handle: creation, destruction, and the rule of one call at a time.

use super::boundary;
use super::comm::{foam_comm, read_comm};
use super::config::{FOAM_LOG_INFO, FOAM_LOG_WARNING, foam_config, foam_log_fn, to_config};
use super::float_env;
use super::param::{FOAM_PARAM_GRAFTING_ONLY, foam_param, refuse_rates};
use super::status::{foam_error, foam_status};
use super::step::StepScratch;
use super::tensor::foam_dtype;
use crate::comm::{Comm, agree};
use crate::config::{Config, Device};
use crate::engine::plan::{ParamSpec, Shard};
use crate::engine::ranks::courier;
use crate::engine::{Level, Log, Optimizer};
use crate::error::{Error, Kind, Result};
use crate::memory::{Allocator, boxed, reserved, whole_text};
use crate::tensor::{DType, Element};
use libc::c_void;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// "libfoam!" while the handle lives.
const ALIVE: u64 = u64::from_le_bytes(*b"libfoam!");
/// What destroy leaves behind.
const GONE: u64 = u64::from_le_bytes(*b"foamgone");

/// Bytes of stack that are enough for any call, on a thread of the caller's: measured at less than half of that, for
/// every policy and every path of an eigendecomposition. The library's own threads have stacks of 2 MiB.
pub const FOAM_THREAD_STACK_SIZE: usize = 262_144;

/// An optimizer. Created by `foam_create`, used by one call at a time, destroyed by `foam_destroy`.
pub struct foam_optimizer {
    magic: AtomicU64,
    busy: AtomicBool,
    poisoned: AtomicBool,
    inner: UnsafeCell<Inner>,
}

/// What a call works on once it is inside.
pub(super) struct Inner {
    pub optimizer: Optimizer,
    pub scratch: StepScratch,
}

/// What a call needs of the handle.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// Consistent state: refused after a panic.
    Sound,
    /// The same, with all that the device has to tell.
    Settled,
    /// Statistics only: allowed after a panic.
    Statistics,
}

/// Enters the handle, runs `body`, leaves it. An overlapping call is refused, a panic poisons.
///
/// # Safety
/// `handle` is NULL or came from `foam_create` and is not destroyed; `error` is NULL or a record.
pub(super) unsafe fn enter(
    handle: *mut foam_optimizer,
    need: Need,
    error: *mut foam_error,
    body: impl FnOnce(&mut Inner) -> Result<()>,
) -> foam_status {
    let _floats = float_env::standard();
    // SAFETY: the caller's contract.
    let outcome = unsafe { enter_checked(handle, need, body) };
    // SAFETY: the caller's contract.
    unsafe { boundary::finish(error, outcome) }
}

unsafe fn enter_checked(
    handle: *mut foam_optimizer,
    need: Need,
    body: impl FnOnce(&mut Inner) -> Result<()>,
) -> Result<()> {
    if handle.is_null() {
        return Err(Error::invalid("optimizer is NULL; expected a handle from foam_create"));
    }
    // SAFETY: the caller's contract.
    let handle = unsafe { &*handle };
    if handle.magic.load(Ordering::Relaxed) != ALIVE {
        return Err(Error::invalid(
            "optimizer is not a live handle; expected one from foam_create, not yet destroyed",
        ));
    }
    if handle.busy.swap(true, Ordering::Acquire) {
        return Err(Error::new(
            Kind::Busy,
            "another call is inside this optimizer; expected one call at a time",
        ));
    }
    let poisoned = handle.poisoned.load(Ordering::Relaxed);
    let outcome = if need != Need::Statistics && poisoned {
        Err(Error::new(
            Kind::Poisoned,
            "an earlier call panicked, or its device failed, and left this optimizer inconsistent; destroy it and load a checkpoint into a new one",
        ))
    } else {
        // SAFETY: `busy` was ours to take: nobody else is inside.
        let inner = unsafe { &mut *handle.inner.get() };
        let settled = |inner: &mut Inner| {
            if need == Need::Sound || poisoned { Ok(()) } else { inner.optimizer.settle() }
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| settled(inner).and_then(|()| body(inner))));
        if outcome.is_err() || inner.optimizer.is_lost() {
            handle.poisoned.store(true, Ordering::Relaxed);
        }
        outcome.unwrap_or_else(|payload| Err(boundary::panic_error(&*payload)))
    };
    handle.busy.store(false, Ordering::Release);
    outcome
}

/// Enters several handles, runs `body`, leaves them: as [`enter`], and none of them is entered if one cannot be.
///
/// # Safety
/// `handles` is NULL or has `count` handles, each as for [`enter`].
pub(super) unsafe fn enter_all(
    handles: *const *mut foam_optimizer,
    count: usize,
    error: *mut foam_error,
    body: impl FnOnce(&mut [&mut Inner]) -> Result<()>,
) -> foam_status {
    let _floats = float_env::standard();
    let inside = || -> Result<()> {
        if handles.is_null() || count == 0 {
            return Err(Error::invalid(format!("optimizers: expected at least one handle, found {count}")));
        }
        let mut inners: Vec<&mut Inner> = reserved(count, "the optimizers of a step")?;
        // SAFETY: the caller's contract.
        unsafe { nest(handles, count, &mut inners, &mut Some(body)) }
    };
    let outcome = inside();
    // SAFETY: the caller's contract.
    unsafe { boundary::finish(error, outcome) }
}

/// Enters the next handle, and once all are entered runs the body.
unsafe fn nest<F: FnOnce(&mut [&mut Inner]) -> Result<()>>(
    handles: *const *mut foam_optimizer,
    count: usize,
    inners: &mut Vec<&mut Inner>,
    body: &mut Option<F>,
) -> Result<()> {
    if inners.len() == count {
        return body.take().map_or(Ok(()), |body| body(inners));
    }
    // SAFETY: the caller's contract; a handle that is given twice is refused as busy.
    unsafe {
        let handle = handles.add(inners.len()).read();
        enter_checked(handle, Need::Sound, |inner| {
            inners.push(&mut *std::ptr::from_mut(inner));
            nest(handles, count, inners, body)
        })
    }
}

/// The log callback with its argument.
pub(super) struct LogSink {
    pub callback: foam_log_fn,
    pub user: *mut c_void,
}

// SAFETY: called only on a thread inside a call on the handle, as the header says.
unsafe impl Send for LogSink {}

impl LogSink {
    pub fn line(&self, level: Level, message: &str) {
        let Some(callback) = self.callback else { return };
        let level = match level {
            Level::Warning => FOAM_LOG_WARNING,
            Level::Info => FOAM_LOG_INFO,
        };
        let text = boundary::c_text(message);
        // SAFETY: the caller promised a working callback.
        unsafe { callback(self.user, level, text.as_ptr().cast()) };
    }
}

/// The element type that a dtype names.
pub(super) fn element_type(dtype: foam_dtype) -> Option<DType> {
    let element = Element::from_dlpack(dtype.code, dtype.bits).filter(|_| dtype.lanes == 1);
    element.and_then(Element::real)
}

/// A dtype for messages.
pub(super) fn dtype_text(dtype: foam_dtype) -> String {
    match element_type(dtype) {
        Some(known) => format!("{}", known.name()),
        None => format!("dtype {{code {}, bits {}, lanes {}}}", dtype.code, dtype.bits, dtype.lanes),
    }
}

/// Largest rank that is accepted, as a guard against an uninitialised `ndim`.
pub(super) const MAX_NDIM: i32 = 64;

unsafe fn read_param(raw: &foam_param, index: usize) -> Result<ParamSpec> {
    let name = if raw.name.is_null() {
        whole_text(format_args!("param_{index}"), "a name")?
    } else {
        // SAFETY: the caller's contract.
        let name = unsafe { boundary::text(raw.name, "name") }.map_err(|e| e.at(index))?;
        whole_text(format_args!("{name}"), "a name")?
    };
    let refuse =
        |kind, what: String| Err(Error::new(kind, format!("parameter '{name}' ({index}): {what}")).at(index));
    if name.is_empty() {
        return refuse(
            Kind::InvalidArgument,
            format!("name is empty; expected a name, or NULL for a made one"),
        );
    }
    if raw.flags & !FOAM_PARAM_GRAFTING_ONLY != 0 {
        return refuse(
            Kind::InvalidArgument,
            format!("flags = {:#x}: expected FOAM_PARAM_* bits", raw.flags),
        );
    }
    if !(0..=MAX_NDIM).contains(&raw.ndim) {
        return refuse(
            Kind::InvalidArgument,
            format!("ndim = {}: expected 0 <= ndim <= {MAX_NDIM}", raw.ndim),
        );
    }
    if raw.shape.is_null() && raw.ndim > 0 {
        return refuse(Kind::InvalidArgument, format!("shape is NULL; expected {} sizes", raw.ndim));
    }
    let mut shape = reserved(raw.ndim as usize, "a shape")?;
    let mut elements = 1usize;
    for axis in 0..raw.ndim as usize {
        // SAFETY: the caller gives `ndim` sizes.
        let size = unsafe { raw.shape.add(axis).read_unaligned() };
        if size <= 0 {
            let what = format!("shape[{axis}] = {size}: expected at least 1");
            return refuse(Kind::InvalidArgument, what).map_err(|e| e.on_axis(axis));
        }
        // Eight bytes per element must stay addressable.
        let Some(product) = elements.checked_mul(size as usize).filter(|n| *n <= isize::MAX as usize / 8)
        else {
            let what = format!("shape overflows at axis {axis}; expected an addressable size");
            return refuse(Kind::InvalidArgument, what).map_err(|e| e.on_axis(axis));
        };
        elements = product;
        shape.push(size as usize);
    }
    let Some(dtype) = element_type(raw.dtype) else {
        return refuse(
            Kind::Unsupported,
            format!(
                "{}: expected f32 {{2,32,1}}, f64 {{2,64,1}}, f16 {{2,16,1}} or bf16 {{4,16,1}}",
                dtype_text(raw.dtype)
            ),
        );
    };
    let shard = match usize::try_from(raw.shard_axis).ok().filter(|axis| *axis < shape.len()) {
        None if raw.shard_axis == -1 => None,
        None => {
            let what = format!("shard_axis = {}: expected an axis of {shape:?}, or -1", raw.shard_axis);
            return refuse(Kind::InvalidArgument, what);
        }
        Some(axis) => {
            let part = usize::try_from(raw.shard_start).ok().zip(usize::try_from(raw.shard_length).ok());
            let Some((start, length)) = part
                .filter(|(start, length)| start.checked_add(*length).is_some_and(|end| end <= shape[axis]))
            else {
                let what = format!(
                    "shard_start = {}, shard_length = {}: expected a part of the {} places of axis {axis}",
                    raw.shard_start, raw.shard_length, shape[axis]
                );
                return refuse(Kind::InvalidArgument, what).map_err(|e| e.on_axis(axis));
            };
            Some(Shard { axis, start, length })
        }
    };
    Ok(ParamSpec {
        name,
        shape,
        dtype,
        lr_scale: raw.lr_scale,
        weight_decay_scale: raw.weight_decay_scale,
        root: raw.root,
        grafting_only: raw.flags & FOAM_PARAM_GRAFTING_ONLY != 0,
        shard,
    })
}

/// The parameters that an array of structs describes.
///
/// # Safety
/// `params` is NULL or has `count` structs whose `struct_size` is set and whose pointers are valid.
pub(super) unsafe fn read_params(params: *const foam_param, count: usize) -> Result<Vec<ParamSpec>> {
    if params.is_null() {
        return Err(Error::invalid(format!("params is NULL; expected {count} foam_param")));
    }
    // SAFETY: the array has at least one element, whose first field is its size.
    let stride = unsafe { boundary::size_of_struct(params) } as usize;
    let mut specs = Vec::new();
    specs
        .try_reserve_exact(count)
        .map_err(|_| Error::new(Kind::OutOfMemory, format!("out of memory: count = {count} parameters")))?;
    for index in 0..count {
        // SAFETY: the caller gives `count` elements of `stride` bytes.
        let raw = unsafe {
            let element = params.cast::<u8>().add(index * stride).cast::<foam_param>();
            boundary::read_struct(element, &format!("params[{index}]")).map_err(|e| e.at(index))?
        };
        if raw.struct_size as usize != stride {
            return Err(Error::invalid(format!(
                "params[{index}].struct_size = {}: expected {stride}, as in params[0]",
                raw.struct_size
            ))
            .at(index));
        }
        // SAFETY: the caller's contract.
        specs.push(unsafe { read_param(&raw, index)? });
    }
    Ok(specs)
}

pub(super) fn read_allocator(raw: &foam_config) -> Result<Allocator> {
    match (raw.allocate, raw.deallocate) {
        (None, None) => Ok(Allocator::System),
        (Some(allocate), Some(deallocate)) => {
            Ok(Allocator::Callbacks { allocate, deallocate, user: raw.allocator_user })
        }
        _ => Err(Error::invalid("config.allocate and config.deallocate: expected both or neither")),
    }
}

/// Creates an optimizer for `count` parameters, with all state zero, and puts it into `*out`.
/// Nothing that the arguments point to is kept. On failure `*out` is not written.
///
/// # Safety
/// `config` and the `params` are structs whose `struct_size` is set and whose pointers are valid;
/// `out` is writable; `error` is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_create(
    config: *const foam_config,
    params: *const foam_param,
    count: usize,
    out: *mut *mut foam_optimizer,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe { boundary::call(error, || create(config, params, count, None, out)) }
}

/// Creates an optimizer whose work and state are shared by the ranks of `comm`, which all make this call with the
/// same configuration and parameters. What differs is an error on every rank that names it. Nothing but the
/// callbacks of `comm` and its `user` is kept.
///
/// # Safety
/// As `foam_create`; `comm` is a struct whose `struct_size` is set and whose callbacks work until the optimizer is
/// destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_create_ranks(
    config: *const foam_config,
    comm: *const foam_comm,
    params: *const foam_param,
    count: usize,
    out: *mut *mut foam_optimizer,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        boundary::call(error, || {
            let comm = read_comm(&boundary::read_struct(comm, "comm")?)?;
            create(config, params, count, Some(comm), out)
        })
    }
}

/// # Safety
/// As `foam_create`.
unsafe fn create(
    config: *const foam_config,
    params: *const foam_param,
    count: usize,
    mut comm: Option<Comm>,
    out: *mut *mut foam_optimizer,
) -> Result<()> {
    if out.is_null() {
        return Err(Error::invalid("out is NULL; expected a place for the handle"));
    }
    // SAFETY: the caller's contract.
    let read = unsafe { read_creation(config, params, count, comm.is_some()) };
    let (raw, config, allocator, specs) = match read {
        Ok(read) => read,
        Err(error) => {
            // The other ranks are on their way into the first collective: they are told why this one is not.
            if let Some(comm) = &mut comm {
                // SAFETY: the caller's contract.
                if let Ok(raw) = unsafe { boundary::read_struct(config, "config") } {
                    let device = Device { kind: raw.device_type, id: raw.device_id };
                    comm.courier = courier(device, Allocator::System)?;
                }
                agree::agree(comm, &Config::default(), &[], Some(&error))?;
            }
            return Err(error);
        }
    };
    let sink = LogSink { callback: raw.log, user: raw.log_user };
    let log: Log = boxed(move |level: Level, message: &str| sink.line(level, message), "the log")?;
    let optimizer = match comm {
        None => Optimizer::new(config, specs, allocator, log)?,
        Some(comm) => Optimizer::with_ranks(config, specs, comm, allocator, log)?,
    };
    let handle = foam_optimizer {
        magic: AtomicU64::new(ALIVE),
        busy: AtomicBool::new(false),
        poisoned: AtomicBool::new(false),
        inner: UnsafeCell::new(Inner { scratch: StepScratch::new(count)?, optimizer }),
    };
    let handle = boxed(handle, "the handle")?;
    // SAFETY: the caller's contract.
    unsafe { *out = Box::into_raw(handle) };
    Ok(())
}

/// # Safety
/// As `foam_create`.
unsafe fn read_creation(
    config: *const foam_config,
    params: *const foam_param,
    count: usize,
    shared: bool,
) -> Result<(foam_config, Config, Allocator, Vec<ParamSpec>)> {
    if count == 0 {
        return Err(Error::invalid("count = 0: expected at least one parameter"));
    }
    // SAFETY: the caller's contract.
    let (raw, specs) = unsafe { (boundary::read_struct(config, "config")?, read_params(params, count)?) };
    if let Some(index) = specs.iter().position(|spec| spec.shard.is_some()).filter(|_| !shared) {
        let name = &specs[index].name;
        let message = format!("parameter '{name}' has a shard_axis; expected foam_create_ranks, or -1");
        return Err(Error::invalid(message).at(index));
    }
    let (config, allocator) = (to_config(&raw)?, read_allocator(&raw)?);
    config.validate()?;
    refuse_rates(&config, config.lr, specs.iter())?;
    Ok((raw, config, allocator, specs))
}

/// Waits until all work on the optimizer's device is done. On the CPU nothing is ever pending.
///
/// # Safety
/// `optimizer` came from `foam_create`; `error` is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_synchronize(
    optimizer: *mut foam_optimizer,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe { enter(optimizer, Need::Sound, error, |inner| inner.optimizer.synchronize()) }
}

/// Destroys an optimizer and all its state. NULL is fine. No call may be inside the handle; if one is,
/// the handle is left alone (and leaks) rather than torn from under it.
///
/// # Safety
/// `optimizer` is NULL or came from `foam_create`, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_destroy(optimizer: *mut foam_optimizer) {
    if optimizer.is_null() {
        return;
    }
    // SAFETY: the caller's contract.
    let handle = unsafe { &*optimizer };
    if handle.magic.load(Ordering::Relaxed) != ALIVE || handle.busy.swap(true, Ordering::Acquire) {
        return;
    }
    handle.magic.store(GONE, Ordering::Relaxed);
    // SAFETY: made by Box::into_raw; `busy` is ours for good. A panic in a destructor must not cross.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(unsafe { Box::from_raw(optimizer) })));
}
