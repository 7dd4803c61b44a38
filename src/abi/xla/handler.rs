//! What the handlers of all verbs do: attributes and buffers become a stack and its call.

use super::super::param::refuse_stack_rates;
use super::attributes::Attributes;
use super::frame::{self, BUFFER, Buffer, Buffers, CallFrame};
use crate::config::PreconditionerName;
use crate::device::gpu::cuda::probe;
use crate::engine::cache;
use crate::engine::ports::{Buffer as Given, Port, Ports, Role, Verb, dims_text, refuse_overlaps};
use crate::engine::session::Call;
use crate::engine::stack::Stack;
use crate::error::{Error, Kind, Result};
use crate::memory::{filled, joined, listed, tried};
use crate::preconditioner::Preconditioner;
use crate::tensor::{DType, Element};
use libc::c_void;

/// What a platform has of its own.
pub struct Platform {
    /// The `device` of the configuration, for a call with a buffer at this address.
    pub device: fn(u64) -> Result<String>,
    /// The stream that the call is ordered on.
    pub stream: unsafe fn(&CallFrame) -> Result<*mut c_void>,
}

/// Host memory.
pub const CPU: Platform = Platform { device: |_| Ok(format!("cpu")), stream: |_| Ok(std::ptr::null_mut()) };

/// NVIDIA devices: the one that the buffers lie on, and XLA's stream.
pub const CUDA: Platform = Platform {
    device: |address| Ok(format!("cuda:{}", probe::owner(address)?)),
    // SAFETY: a call frame of the execute stage, by the callers.
    stream: |frame| unsafe { frame::stream(frame) },
};

/// An operand or a result as XLA gives it.
struct View<'a> {
    data: *mut u8,
    element: Option<Element>,
    called: String,
    shape: &'a [i64],
}

/// Performs a verb.
///
/// # Safety
/// `frame` is a call frame of the execute stage.
pub unsafe fn perform(verb: Verb, platform: &Platform, frame: &CallFrame) -> Result<()> {
    // SAFETY: the caller's contract.
    let (mut attributes, inputs, outputs) = unsafe {
        let attributes = Attributes::read(&frame.attrs)?;
        (attributes, views(&frame.args, "operand")?, views(&frame.rets, "result")?)
    };
    let address = inputs.first().map_or(0, |view| view.data as u64);
    let device = (platform.device)(address);
    attributes.config.set("device", device.as_deref().unwrap_or("cpu"))?;
    let arity = || check_arity(verb, &attributes, inputs.len(), outputs.len());
    let least = 1 + usize::from(attributes.with_params);
    let taken = if inputs.len() < least {
        Err(Error::invalid("operands are missing"))
    } else {
        read_stack(verb, &attributes, &inputs).and_then(|(batch, stack)| {
            if verb == Verb::Apply {
                refuse_stack_rates(&attributes.config, &stack, attributes.scale)?;
            }
            Ok((batch, cache::take(&attributes.config, &stack)?))
        })
    };
    // With too few operands other mistakes are only consequences.
    let taken = device.and(taken);
    let (batch, mut session) = taken.map_err(|cause| arity().err().unwrap_or(cause))?;
    session.set_log(|_, _| {})?;
    let ports = session.ports(verb, attributes.with_params, true);
    let ports = ports.map_err(|cause| arity().err().unwrap_or(cause))?;
    if (ports.inputs.len(), ports.outputs.len()) != (inputs.len(), outputs.len()) {
        arity()?;
    }
    let need = session.workspace_bytes();
    let taken = give("operand", &ports.inputs, &inputs, batch, need)?;
    let given = give("result", &ports.outputs, &outputs, batch, need)?;
    let say = |written: bool, place: usize| {
        let (what, list) = if written { ("result", &ports.outputs) } else { ("operand", &ports.inputs) };
        format!("{what} {place} '{}'", list[place].name)
    };
    refuse_overlaps(&ports, &taken, &given, say)?;
    let call = Call {
        verb,
        ports: &ports,
        inputs: &taken,
        outputs: &given,
        grad_scale: attributes.grad_scale,
        scale: attributes.scale.unwrap_or(-attributes.config.lr),
        // SAFETY: the caller's contract.
        stream: unsafe { (platform.stream)(frame)? },
    };
    // SAFETY: XLA's buffers are valid for the call, and everything was checked above.
    let outcome = unsafe { session.run(&call) };
    cache::give(session);
    outcome
}

/// The buffers of a list.
///
/// # Safety
/// `list` is XLA's list of operands or results.
unsafe fn views<'a>(list: &Buffers, what: &str) -> Result<Vec<View<'a>>> {
    let size = usize::try_from(list.size).unwrap_or(0);
    let view = |place: usize| {
        // SAFETY: the lists have `size` items; a buffer has `rank` sizes.
        unsafe {
            if *list.types.add(place) != BUFFER {
                return Err(Error::invalid(format!("{what} {place}: expected a buffer")));
            }
            let buffer = &*(*list.items.add(place)).cast::<Buffer>();
            let shape = match usize::try_from(buffer.rank) {
                Ok(rank) if rank > 0 => std::slice::from_raw_parts(buffer.dims, rank),
                _ => &[],
            };
            let (element, called) = element_of(buffer.dtype);
            Ok(View { data: buffer.data.cast(), element, called, shape })
        }
    };
    tried((0..size).map(view), "the buffers")
}

/// The element type that an `XLA_FFI_DataType` names, and its name.
fn element_of(dtype: i32) -> (Option<Element>, String) {
    if let Some(element) = Element::from_xla(dtype) {
        return (Some(element), format!("{}", element.name()));
    }
    let name = match dtype {
        1 => format!("pred"),
        2 => format!("i8"),
        3 => format!("i16"),
        5 => format!("i64"),
        9 => format!("u64"),
        15 => format!("c64"),
        18 => format!("c128"),
        other => format!("type {other}"),
    };
    (None, name)
}

/// Says which operands or results are missing or too many; their number does not depend on sizes.
fn check_arity(verb: Verb, attributes: &Attributes, inputs: usize, outputs: usize) -> Result<()> {
    let stack = stack(attributes, filled(1, attributes.order, "a shape")?, 1, DType::F32);
    let layout = stack.layout(&attributes.config)?;
    let preconditioner = Preconditioner::of(&attributes.config);
    let ports = Ports::new(verb, &preconditioner, &stack, &layout, attributes.with_params)?;
    for (what, ports, got) in [("operands", &ports.inputs, inputs), ("results", &ports.outputs, outputs)] {
        if ports.len() != got {
            let names = joined(ports.iter().map(|p| p.name.as_str()), ", ");
            return Err(Error::invalid(format!("expected {} {what} ({names}), got {got}", ports.len(),)));
        }
    }
    Ok(())
}

fn stack(attributes: &Attributes, dims: Vec<usize>, count: usize, dtype: DType) -> Stack {
    Stack {
        dims,
        count,
        dtype,
        weight_decay_scale: attributes.weight_decay_scale,
        root: attributes.root,
        grafting_only: !attributes.preconditioned,
    }
}

/// The batch and the stack that the operands' shapes and types tell. There is a first operand, and a second with params.
fn read_stack<'a>(verb: Verb, attributes: &Attributes, inputs: &[View<'a>]) -> Result<(&'a [i64], Stack)> {
    let order = attributes.order;
    let first = inputs[0].shape;
    let size = |d: i64| usize::try_from(d).unwrap_or(0);
    let real = |view: &View| view.element.and_then(Element::real);
    let moments = attributes.config.preconditioner == PreconditionerName::Soap;
    let (batch, dims, found) = if let (Verb::Check, true, Some(last)) = (verb, moments, inputs.last()) {
        // SOAP turns its moments, which have the block's shape and come last.
        let dims = &last.shape[last.shape.len().saturating_sub(order)..];
        (first, dims.iter().copied().map(size).collect(), real(last))
    } else if verb == Verb::Check {
        // info, clock, record, then the statistics, bases, spectra and inverse roots of every axis.
        let statistic = |axis: usize| inputs.get(3 + axis).and_then(|v| v.shape.last()).copied();
        let dims = listed((0..order).map(|axis| statistic(axis).map_or(1, size)), "a shape")?;
        let double = inputs.get(3 + 3 * order).and_then(real) == Some(DType::F64);
        (first, dims, Some(if double { DType::F64 } else { DType::F32 }))
    } else {
        if first.len() < order {
            return Err(Error::new(
                Kind::ShapeMismatch,
                format!("operand 0 'grads': expected at least {order} dimensions, got {}", dims_text(first)),
            ));
        }
        let (batch, dims) = first.split_at(first.len() - order);
        let own = if attributes.with_params { &inputs[1] } else { &inputs[0] };
        (batch, listed(dims.iter().copied().map(size), "a shape")?, real(own))
    };
    let count = batch.iter().map(|d| size(*d)).try_fold(1usize, usize::checked_mul);
    // A type that is none of the four is refused by the port, against the default.
    let dtype = attributes.dtype.or(found).unwrap_or(DType::F32);
    Ok((batch, stack(attributes, dims, count.unwrap_or(0), dtype)))
}

/// Checks the buffers of a list against their ports.
fn give(what: &str, ports: &[Port], views: &[View], batch: &[i64], need: usize) -> Result<Vec<Given>> {
    let count: i64 = batch.iter().product();
    let check = |(place, (port, view)): (usize, (&Port, &View))| {
        let refuse =
            |kind, problem: String| Error::new(kind, format!("{what} {place} '{}': {problem}", port.name));
        if port.role == Role::Workspace {
            let bytes = view.shape.iter().product::<i64>().max(0) as usize;
            if view.element != Some(Element::U8) || bytes < need {
                let got = format!("{}{}", view.called, dims_text(view.shape));
                return Err(refuse(Kind::ShapeMismatch, format!("expected at least u8[{need}], got {got}")));
            }
            return Ok(Given { data: view.data, element: Element::U8, bytes });
        }
        let element = port
            .check(batch, view.element, &view.called, view.shape)
            .map_err(|cause| refuse(cause.kind, cause.message))?;
        if view.data.is_null() {
            return Err(refuse(Kind::InvalidArgument, "data is NULL".into()));
        }
        Ok(Given { data: view.data, element, bytes: port.stride(element) * count as usize })
    };
    tried(ports.iter().zip(views).enumerate().map(check), "the buffers")
}
