//! The step: its arguments, and their validation before the first write.

use super::boundary::{self, AbiStruct, field_ends};
use super::handle::{Inner, Need, dtype_text, element_type, enter, enter_all, foam_optimizer};
use super::param::refuse_rates;
use super::status::{foam_error, foam_status};
use super::tensor::{
    FOAM_DEVICE_CPU, FOAM_DEVICE_CUDA, FOAM_DEVICE_CUDA_HOST, FOAM_DEVICE_CUDA_MANAGED, foam_device,
    foam_tensor,
};
use crate::config::Device;
use crate::engine::plan::{ParamPlan, Plan};
use crate::engine::ranks::step::{Party, run};
use crate::engine::together::{self, Member};
use crate::engine::{Optimizer, Outcome, StepOptions, Tensors};
use crate::error::{Error, Kind, Result};
use crate::memory::reserved;
use crate::tensor::{DType, TensorRef};
use libc::c_void;

/// The step is only checked, not taken: everything that it would refuse is refused (arguments, tensors, overlaps,
/// gradients that are not finite), and neither parameters nor state change. `skipped` receives what the step would
/// say. On a CUDA device the call waits for the answer.
pub const FOAM_STEP_VALIDATE: u32 = 1;

/// Arguments of one step. Fill it with `foam_step_args_init`, then set `count`, `params` and `grads`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct foam_step_args {
    /// Bytes of this struct, set by the caller.
    pub struct_size: u32,
    /// 0, or `FOAM_STEP_VALIDATE`.
    pub flags: u32,
    /// Number of tensors in `params` and in `grads`: as many as at creation, in the same order.
    pub count: usize,
    /// The parameters, updated in place.
    pub params: *const foam_tensor,
    /// Their gradients, only read; `data` = NULL for a parameter that takes no part in this step.
    pub grads: *const foam_tensor,
    /// CUDA stream (a CUstream or cudaStream_t) to order the work on; NULL is the legacy default stream.
    /// Ignored on the CPU.
    pub stream: *mut c_void,
    /// NULL, or receives 1 if the step was skipped because a gradient is not finite, else 0.
    pub skipped: *mut i32,
    /// Learning rate of this step; NaN (the default) means the configuration's.
    pub lr: f64,
    /// Multiplies every gradient, default 1; for example 1/S to undo a loss scale of S.
    pub grad_scale: f64,
    /// NULL, or CUDA streams on which gradients or parameters are still being made: the step comes after what has been
    /// put on them so far. Ignored on the CPU; not for optimizers from `foam_create_ranks`.
    pub after: *const *mut c_void,
    /// Number of streams in `after`.
    pub after_count: usize,
}

// SAFETY: plain data, first field `struct_size`, every bit pattern valid.
unsafe impl AbiStruct for foam_step_args {
    const NAME: &'static str = "foam_step_args";
    const REQUIRED: usize = std::mem::offset_of!(foam_step_args, stream);
    const ENDS: &'static [usize] = field_ends!(foam_step_args {
        struct_size,
        flags,
        count,
        params,
        grads,
        stream,
        skipped,
        lr,
        grad_scale,
        after,
        after_count
    });

    fn defaults() -> Self {
        foam_step_args {
            struct_size: std::mem::size_of::<Self>() as u32,
            flags: 0,
            count: 0,
            params: std::ptr::null(),
            grads: std::ptr::null(),
            stream: std::ptr::null_mut(),
            skipped: std::ptr::null_mut(),
            lr: f64::NAN,
            grad_scale: 1.0,
            after: std::ptr::null(),
            after_count: 0,
        }
    }
}

/// Lists that a step fills anew; kept so that it does not allocate.
pub(super) struct StepScratch {
    params: Vec<TensorRef>,
    grads: Vec<Option<TensorRef>>,
    extents: Vec<Extent>,
}

/// The bytes of one tensor.
#[derive(Clone, Copy)]
struct Extent {
    start: usize,
    end: usize,
    param: usize,
    written: bool,
}

impl StepScratch {
    pub fn new(count: usize) -> Result<Self> {
        let what = "the tensors of a step";
        Ok(StepScratch {
            params: reserved(count, what)?,
            grads: reserved(count, what)?,
            extents: reserved(2 * count, what)?,
        })
    }
}

/// Fills `args` with the defaults: no tensors, the configuration's learning rate, gradients as they are.
/// `struct_size` is `sizeof(foam_step_args)` as the caller was compiled.
///
/// # Safety
/// `args` points to `struct_size` writable bytes; `error` is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_step_args_init(
    args: *mut foam_step_args,
    struct_size: u32,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        boundary::call(error, || {
            if args.is_null() {
                return Err(Error::invalid("args is NULL; expected a foam_step_args to fill"));
            }
            boundary::write_struct(args, struct_size, foam_step_args::defaults())
        })
    }
}

/// One step: reads the gradients, updates the parameters in place. Everything is validated before the
/// first write: a failed step (other than FOAM_PANIC) has changed neither parameters nor state.
///
/// On a CUDA device the step is put on `args.stream`; the call waits for the device only when a check is due.
/// A gradient that is not finite is held back by the device, and the caller learns of it at the next call that
/// waits (a check, `foam_synchronize`, statistics, a checkpoint): with `nonfinite = error` that call, or the next
/// step, fails with FOAM_NOT_FINITE, and no step since the bad one was taken; with `skip` that one step is left
/// out and counted. If the device itself fails in the middle of a step (FOAM_DEVICE_ERROR), the message says
/// that parameters and state are lost, and later calls give FOAM_POISONED.
///
/// # Safety
/// `optimizer` came from `foam_create`; the tensors' memory is valid for the call, and nobody else
/// writes it or reads the parameters meanwhile; `error` is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_step(
    optimizer: *mut foam_optimizer,
    args: *const foam_step_args,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        enter(optimizer, Need::Sound, error, |inner| {
            // A step that one rank refuses is refused by all, so that no rank waits for it.
            let (args, options) = match read_step(args, inner) {
                Ok(read) => read,
                Err(error) => return Err(inner.optimizer.refuse_together(error)),
            };
            let Inner { optimizer, scratch } = inner;
            let (stream, after) = (args.stream, streams(&args));
            let tensors = Tensors { params: &scratch.params, grads: &scratch.grads, stream, after };
            let outcome = if args.flags & FOAM_STEP_VALIDATE == 0 {
                optimizer.step(&tensors, options)?
            } else {
                optimizer.validate_step(&tensors, options)?
            };
            if !args.skipped.is_null() {
                *args.skipped = i32::from(outcome == Outcome::Skipped);
            }
            Ok(())
        })
    }
}

/// One step of several optimizers, or of none of them: `args[i]` is that of `optimizers[i]`. Everything that one of
/// them refuses all refuse, and nothing has changed; a gradient that is not finite skips the step of all if the options
/// of its optimizer say so, and that one counts it. Overlaps between the tensors of two optimizers are not looked for.
///
/// Either all are from `foam_create`, on one device and (on CUDA) with one `stream`: the call then waits for the device
/// as often as that of one optimizer, once at a check and never in a plain step. Or all are from `foam_create_ranks`
/// with the same ranks, and share the collectives of one step: the groups of a model need no more of them than one
/// group. The communicator of the first serves all, and all ranks make this call with the same optimizers in the same
/// order.
///
/// # Safety
/// `optimizers` and `args` have `count` elements, each as for `foam_step`; `error` is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_step_together(
    optimizers: *const *mut foam_optimizer,
    args: *const foam_step_args,
    count: usize,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe { enter_all(optimizers, count, error, |inners| step_all(inners, args)) }
}

/// # Safety
/// As `foam_step_together`.
unsafe fn step_all(inners: &mut [&mut Inner], args: *const foam_step_args) -> Result<()> {
    let alone = inners.iter().all(|inner| inner.optimizer.ranks().is_none());
    if let Some(place) = inners.iter().position(|inner| !alone && inner.optimizer.ranks().is_none()) {
        let message =
            format!("optimizers[{place}] has no other ranks; expected all from foam_create_ranks, or none");
        return Err(Error::invalid(message));
    }
    let place_of = |inner: &Inner| inner.optimizer.config().device;
    if let Some(place) = inners.iter().position(|inner| alone && place_of(inner) != place_of(inners[0])) {
        let (found, own) = (place_of(inners[place]), place_of(inners[0]));
        let message = format!(
            "optimizers[{place}] is on device type {}, id {}: expected type {}, id {}, the device of optimizers[0]",
            found.kind, found.id, own.kind, own.id
        );
        return Err(Error::invalid(message));
    }
    let world = |inner: &Inner| inner.optimizer.ranks().map(|ranks| ranks.rank_and_size());
    if let Some(place) = inners.iter().position(|inner| world(inner) != world(inners[0])) {
        let message = format!("optimizers[{place}] has other ranks than optimizers[0]; expected the same");
        return Err(Error::invalid(message));
    }
    let what = "the optimizers of a step";
    let mut read: Vec<(foam_step_args, StepOptions)> = reserved(inners.len(), what)?;
    let mut fault = None;
    // SAFETY: the caller's contract; every element has the size that the first one says.
    let stride = if args.is_null() { 0 } else { unsafe { boundary::size_of_struct(args) as usize } };
    for (place, inner) in inners.iter_mut().enumerate() {
        let own = args.cast::<u8>().wrapping_add(place * stride).cast();
        // SAFETY: the caller's contract.
        match unsafe { read_step(own, inner) } {
            Ok((args, options)) => read.push((args, options)),
            Err(error) => {
                fault = Some(Error { message: format!("optimizers[{place}]: {}", error.message), ..error });
                break;
            }
        }
    }
    let validates = read.first().is_some_and(|(args, _)| args.flags & FOAM_STEP_VALIDATE != 0);
    if fault.is_none() && read.iter().any(|(args, _)| (args.flags & FOAM_STEP_VALIDATE != 0) != validates) {
        fault = Some(Error::invalid("args: expected FOAM_STEP_VALIDATE in all of them, or in none"));
    }
    let ordered = alone && place_of(inners[0]).kind == FOAM_DEVICE_CUDA;
    if let Some(place) = read.iter().position(|(args, _)| ordered && args.stream != read[0].0.stream) {
        let message = format!("args[{place}].stream is another than args[0].stream; expected one stream");
        fault = fault.or(Some(Error::invalid(message)));
    }
    // A step that one rank refuses is refused by all, so that no rank waits for it.
    if let Some(error) = fault.take_if(|_| alone) {
        return Err(error);
    }
    let mut tensors: Vec<Tensors> = reserved(inners.len(), what)?;
    let mut optimizers = reserved(inners.len(), what)?;
    for (place, inner) in inners.iter_mut().enumerate() {
        let Inner { optimizer, scratch } = &mut **inner;
        let own = read.get(place).map(|(args, _)| args);
        let stream = own.map_or(std::ptr::null_mut(), |args| args.stream);
        // SAFETY: the caller's contract; `read_options` has looked at them.
        let after: &[_] = own.map_or(&[], |args| unsafe { streams(args) });
        tensors.push(Tensors { params: &scratch.params, grads: &scratch.grads, stream, after });
        optimizers.push(optimizer);
    }
    let outcome = if alone {
        let mut members: Vec<Member> = reserved(tensors.len(), what)?;
        let own = optimizers.into_iter().zip(&tensors).zip(&read);
        members.extend(
            own.map(|((optimizer, tensors), (_, options))| Member::new(optimizer, tensors, *options)),
        );
        if validates { together::validate(&mut members) } else { together::step(&mut members) }
    } else {
        share(optimizers, &tensors, &read, fault, validates)
    };
    let skipped = i32::from(outcome? == Outcome::Skipped);
    for (args, _) in read.iter().filter(|(args, _)| !args.skipped.is_null()) {
        // SAFETY: the caller's contract.
        unsafe { *args.skipped = skipped };
    }
    Ok(())
}

/// The step of optimizers that share their work with other ranks, all of which hear of a fault.
fn share(
    optimizers: Vec<&mut Optimizer>,
    tensors: &[Tensors],
    read: &[(foam_step_args, StepOptions)],
    mut fault: Option<Error>,
    validates: bool,
) -> Result<Outcome> {
    let refused = fault.is_some();
    let mut parties: Vec<Party> = reserved(tensors.len(), "the optimizers of a step")?;
    for (place, (optimizer, tensors)) in optimizers.into_iter().zip(tensors).enumerate() {
        let options = read.get(place).map_or_else(StepOptions::default, |(_, options)| *options);
        parties.push(Party::new(optimizer, (!refused).then_some(tensors), options, fault.take())?);
    }
    let outcome = run(&mut parties, validates);
    parties.into_iter().for_each(Party::end);
    outcome
}

/// Reads and checks all arguments of a step.
unsafe fn read_step(args: *const foam_step_args, inner: &mut Inner) -> Result<(foam_step_args, StepOptions)> {
    // SAFETY: the caller's contract.
    let args = unsafe { boundary::read_struct(args, "args")? };
    let options = read_options(&args)?;
    if args.after_count > 0 && inner.optimizer.ranks().is_some() {
        return Err(Error::new(
            Kind::Unsupported,
            "args.after has streams, which an optimizer from foam_create_ranks does not wait for; expected none",
        ));
    }
    // SAFETY: the caller's contract.
    unsafe { read_tensors(&args, inner)? };
    let optimizer = &inner.optimizer;
    let lr = options.lr.unwrap_or(optimizer.config().lr);
    refuse_rates(optimizer.config(), lr, optimizer.plan().params.iter().map(|param| &param.spec))?;
    Ok((args, options))
}

/// The streams of `after`.
///
/// # Safety
/// `read_options` took the arguments, whose memory lives as long as what is borrowed.
unsafe fn streams<'a>(args: &foam_step_args) -> &'a [*mut c_void] {
    if args.after_count == 0 {
        return &[];
    }
    // SAFETY: the caller gives `after_count` streams.
    unsafe { std::slice::from_raw_parts(args.after, args.after_count) }
}

fn read_options(args: &foam_step_args) -> Result<StepOptions> {
    if args.flags & !FOAM_STEP_VALIDATE != 0 {
        let message = format!("args.flags = {:#x}: expected 0 or FOAM_STEP_VALIDATE", args.flags);
        return Err(Error::invalid(message));
    }
    if args.lr < 0.0 || args.lr.is_infinite() {
        return Err(Error::invalid(format!(
            "args.lr = {}: expected a number >= 0, or NaN for the configuration's",
            args.lr
        )));
    }
    if !args.grad_scale.is_finite() || args.grad_scale == 0.0 {
        return Err(Error::invalid(format!(
            "args.grad_scale = {}: expected a finite number other than 0 (foam_step_args_init sets 1)",
            args.grad_scale
        )));
    }
    if args.after_count > 0 && (args.after.is_null() || !args.after.is_aligned()) {
        return Err(Error::invalid(format!(
            "args.after is {:?}: expected {} streams, aligned as pointers are",
            args.after, args.after_count
        )));
    }
    Ok(StepOptions { lr: (!args.lr.is_nan()).then_some(args.lr), grad_scale: args.grad_scale })
}

unsafe fn read_tensors(args: &foam_step_args, inner: &mut Inner) -> Result<()> {
    let plan = inner.optimizer.plan();
    let device = inner.optimizer.config().device;
    let count = plan.params.len();
    if args.count != count {
        return Err(Error::invalid(format!("args.count = {}: expected {count}, as at creation", args.count)));
    }
    for (list, name) in [(args.params, "params"), (args.grads, "grads")] {
        if list.is_null() {
            return Err(Error::invalid(format!("args.{name} is NULL; expected {count} tensors")));
        }
    }
    let scratch = &mut inner.scratch;
    scratch.params.clear();
    scratch.grads.clear();
    scratch.extents.clear();
    for (index, param) in plan.params.iter().enumerate() {
        // SAFETY: the caller gives `count` tensors in each list.
        let (own, grad) =
            unsafe { (args.params.add(index).read_unaligned(), args.grads.add(index).read_unaligned()) };
        // SAFETY: the caller's contract.
        let read = unsafe {
            let own = read_tensor(&own, param, "parameter", Some(param.spec.dtype), device);
            let grad = if grad.data.is_null() {
                Ok(None)
            } else {
                read_tensor(&grad, param, "gradient of parameter", None, device).map(Some)
            };
            own.and_then(|own| Ok((own, grad?)))
        };
        let (own, grad) = read.map_err(|e| e.at(index))?;
        scratch.params.push(own);
        scratch.grads.push(grad);
        scratch.extents.push(extent(own, param, index, true));
        scratch.extents.extend(grad.map(|grad| extent(grad, param, index, false)));
    }
    refuse_overlaps(plan, &mut scratch.extents)
}

/// A tensor of the right shape, type and place, or an error that says which of these it is not.
unsafe fn read_tensor(
    tensor: &foam_tensor,
    param: &ParamPlan,
    what: &str,
    dtype: Option<DType>,
    device: Device,
) -> Result<TensorRef> {
    let name = &param.spec.name;
    let refuse = |kind, problem: String| Err(Error::new(kind, format!("{what} '{name}': {problem}")));
    let wanted: &[usize] = &param.spec.shape;
    let part = if param.spec.shard.is_some() { ", this rank's part" } else { "" };
    let held = param.spec.held_elements();
    if tensor.ndim < 0 || tensor.ndim as usize != wanted.len() {
        return refuse(
            Kind::ShapeMismatch,
            format!("ndim = {}: expected {} ({wanted:?})", tensor.ndim, wanted.len()),
        );
    }
    if tensor.shape.is_null() && !wanted.is_empty() {
        return refuse(Kind::InvalidArgument, format!("shape is NULL; expected {wanted:?}"));
    }
    let mut expected_stride = 1i64;
    for axis in (0..wanted.len()).rev() {
        // SAFETY: the caller gives `ndim` sizes.
        let size = unsafe { tensor.shape.add(axis).read_unaligned() };
        let expected = param.spec.held_size(axis);
        if size < 0 || size as usize != expected {
            return refuse(
                Kind::ShapeMismatch,
                format!("shape[{axis}] = {size}: expected {expected}{part} ({wanted:?})"),
            )
            .map_err(|e: Error| e.on_axis(axis));
        }
        if !tensor.strides.is_null() {
            // SAFETY: strides that are not NULL are `ndim` numbers.
            let stride = unsafe { tensor.strides.add(axis).read_unaligned() };
            if size > 1 && stride != expected_stride {
                return refuse(
                    Kind::Unsupported,
                    format!(
                        "strides[{axis}] = {stride}: expected {expected_stride}, row-major contiguous memory (make a contiguous copy)"
                    ),
                )
                .map_err(|e: Error| e.on_axis(axis));
            }
        }
        expected_stride *= size;
    }
    let Some(found) = element_type(tensor.dtype) else {
        return refuse(
            Kind::Unsupported,
            format!("{}: expected f32, f64, f16 or bf16", dtype_text(tensor.dtype)),
        );
    };
    if let Some(dtype) = dtype.filter(|dtype| *dtype != found) {
        return refuse(
            Kind::ShapeMismatch,
            format!("dtype {}: expected {}, as at creation", found.name(), dtype.name()),
        );
    }
    if let Some(problem) = wrong_device(tensor.device, device) {
        return refuse(Kind::ShapeMismatch, problem);
    }
    if tensor.data.is_null() && held > 0 {
        return refuse(Kind::InvalidArgument, format!("data is NULL; expected its memory"));
    }
    let data = usize::try_from(tensor.byte_offset)
        .ok()
        .and_then(|offset| (tensor.data as usize).checked_add(offset));
    let end = data.and_then(|data| data.checked_add(held * found.size()));
    if end.is_none() {
        return refuse(
            Kind::InvalidArgument,
            format!("byte_offset = {}: the tensor wraps around memory", tensor.byte_offset),
        );
    }
    Ok(TensorRef { data: tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize), dtype: found })
}

/// Why a tensor's memory is not the optimizer's to work on.
pub(super) fn wrong_device(found: foam_device, own: Device) -> Option<String> {
    let kind = found.device_type;
    if own.kind == FOAM_DEVICE_CPU {
        return (!matches!(kind, FOAM_DEVICE_CPU | FOAM_DEVICE_CUDA_HOST)).then(|| {
            format!("device type {kind}: expected {FOAM_DEVICE_CPU} (CPU), the optimizer's device")
        });
    }
    let here = kind == FOAM_DEVICE_CUDA && found.device_id == own.id;
    (!here && kind != FOAM_DEVICE_CUDA_MANAGED).then(|| {
        format!(
            "device type {kind}, id {}: expected {FOAM_DEVICE_CUDA} (CUDA), id {}, the optimizer's device",
            found.device_id, own.id
        )
    })
}

fn extent(tensor: TensorRef, param: &ParamPlan, index: usize, written: bool) -> Extent {
    let start = tensor.data as usize;
    Extent { start, end: start + param.spec.held_elements() * tensor.dtype.size(), param: index, written }
}

/// What is written may overlap nothing else; gradients may share memory with each other.
fn refuse_overlaps(plan: &Plan, extents: &mut [Extent]) -> Result<()> {
    extents.sort_unstable_by_key(|e| e.start);
    // The furthest ends so far, of written memory and of any.
    let (mut written, mut any): (Option<Extent>, Option<Extent>) = (None, None);
    for extent in extents.iter() {
        let against = if extent.written { any } else { written };
        if let Some(other) = against.filter(|other| extent.start < other.end) {
            let say = |e: &Extent| {
                let name = &plan.params[e.param].spec.name;
                format!("{} '{name}'", if e.written { "parameter" } else { "the gradient of parameter" })
            };
            return Err(Error::invalid(format!(
                "{} and {} overlap in memory; expected parameters that overlap nothing else",
                say(&other),
                say(extent)
            ))
            .at(extent.param));
        }
        let further = |kept: Option<Extent>| kept.filter(|k| k.end >= extent.end).or(Some(*extent));
        any = further(any);
        if extent.written {
            written = further(written);
        }
    }
    Ok(())
}
