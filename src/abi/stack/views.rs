//! The caller's tensors, held against the ports of a verb.

use super::super::handle::dtype_text;
use super::super::stack_args::foam_stack_args;
use super::super::step::wrong_device;
use super::super::tensor::{foam_dtype, foam_tensor};
use crate::config::Device;
use crate::engine::plan::Array;
use crate::engine::ports::{Buffer, Port, Ports, Role, refuse_overlaps};
use crate::engine::stack::Stack;
use crate::error::{Error, Kind, Result};
use crate::memory::{listed, reserved};
use crate::tensor::Element;

/// The arguments of one call, by port.
pub struct Arguments<'a> {
    /// The arguments.
    pub args: &'a foam_stack_args,
    /// The stack.
    pub stack: &'a Stack,
    /// Its state buffers.
    pub layout: &'a [Array],
    /// Bytes of workspace.
    pub need: usize,
    /// Where the buffers must lie.
    pub device: Device,
}

impl Arguments<'_> {
    /// The lists of state tensors are there, and as long as the layout.
    pub fn check_lists(&self) -> Result<()> {
        let count = self.layout.len();
        if self.args.state_count != count {
            return Err(Error::invalid(format!(
                "args.state_count = {}: expected {count}, as foam_stack_layout says",
                self.args.state_count
            )));
        }
        if self.args.state.is_null() {
            return Err(Error::invalid(format!("args.state is NULL; expected {count} tensors")));
        }
        Ok(())
    }

    /// What a port is called in messages.
    fn name(&self, port: &Port, written: bool) -> String {
        match port.role {
            Role::State(place) if written && self.out_of_place(place).is_some() => {
                format!("args.state_out[{place}] '{}'", port.name)
            }
            Role::State(place) => format!("args.state[{place}] '{}'", port.name),
            Role::Info if !written && !self.args.info_in.is_null() => "args.info_in".into(),
            _ => format!("args.{}", port.name),
        }
    }

    /// What the port at a place of the inputs or outputs is called.
    pub fn say(&self, ports: &Ports, written: bool, place: usize) -> String {
        let list = if written { &ports.outputs } else { &ports.inputs };
        self.name(&list[place], written)
    }

    /// The place for the new state of a buffer, if it has one of its own.
    fn out_of_place(&self, place: usize) -> Option<*const foam_tensor> {
        let list = self.args.state_out;
        // SAFETY: a list that is not NULL has a tensor for every state buffer.
        let tensor = (!list.is_null()).then(|| unsafe { list.add(place) })?;
        // SAFETY: as above.
        (!unsafe { (*tensor).data }.is_null()).then_some(tensor)
    }

    /// The buffer that the caller gives for a port, checked.
    ///
    /// # Safety
    /// The caller's tensors are readable.
    pub unsafe fn give(&self, port: &Port, written: bool) -> Result<Buffer> {
        let args = self.args;
        if port.role == Role::Workspace {
            return self.workspace();
        }
        let tensor = match port.role {
            Role::Grads => args.grads,
            Role::Params => args.params,
            Role::Active => args.active,
            Role::Update => args.update,
            Role::Info if !written && !args.info_in.is_null() => args.info_in,
            Role::Info => args.info,
            Role::State(place) if written => {
                // SAFETY: the list has a tensor for every state buffer.
                self.out_of_place(place).unwrap_or_else(|| unsafe { args.state.add(place) })
            }
            // SAFETY: as above.
            Role::State(place) => unsafe { args.state.add(place) },
            Role::Workspace => std::ptr::null(),
        };
        // SAFETY: the caller's contract.
        let given = unsafe { read_tensor(tensor, port, self.stack.count, self.device) };
        given.map_err(|cause| named(cause, &self.name(port, written)))
    }

    fn workspace(&self) -> Result<Buffer> {
        let (data, bytes) = (self.args.workspace.cast::<u8>(), self.args.workspace_size);
        let need = self.need;
        if data.is_null() {
            return Err(Error::invalid(format!("args.workspace is NULL; expected {need} bytes")));
        }
        if bytes < need {
            return Err(Error::invalid(format!(
                "args.workspace_size = {bytes}: expected at least {need}, as foam_stack_workspace says"
            )));
        }
        if (data as usize).checked_add(bytes).is_none() {
            return Err(Error::invalid("args.workspace wraps around memory"));
        }
        Ok(Buffer { data, element: Element::U8, bytes })
    }
}

fn named(mut cause: Error, name: &str) -> Error {
    cause.message = format!("{name}: {}", cause.message);
    cause
}

/// A list of state tensors, in the layout's order.
pub struct State {
    /// The tensors.
    pub tensors: *const foam_tensor,
    /// Their number.
    pub count: usize,
    /// The argument's name.
    pub called: &'static str,
    /// Where its buffers must lie.
    pub device: Device,
}

/// The addresses of all state buffers, checked against the layout and against each other.
///
/// # Safety
/// The list is NULL or has its number of readable tensors.
pub unsafe fn read_state(list: &State, layout: &[Array], stack: &Stack) -> Result<Vec<*mut u8>> {
    if list.count != layout.len() {
        return Err(Error::invalid(format!(
            "count = {}: expected {}, as foam_stack_layout says",
            list.count,
            layout.len()
        )));
    }
    if list.tensors.is_null() {
        return Err(Error::invalid(format!("{} is NULL; expected {} tensors", list.called, layout.len())));
    }
    let ports = Ports { inputs: Vec::new(), outputs: Ports::state(layout)? };
    let name = |place: usize| format!("{}[{place}] '{}'", list.called, ports.outputs[place].name);
    let mut given = reserved(layout.len(), "the buffers")?;
    for (place, port) in ports.outputs.iter().enumerate() {
        // SAFETY: the caller's contract.
        let read = unsafe { read_tensor(list.tensors.add(place), port, stack.count, list.device) };
        given.push(read.map_err(|cause| named(cause, &name(place)))?);
    }
    refuse_overlaps(&ports, &[], &given, |_, place| name(place))?;
    listed(given.iter().map(|given| given.data), "the buffers")
}

/// A contiguous tensor in the device's memory that fits its port.
///
/// # Safety
/// `tensor` is NULL or a readable tensor.
unsafe fn read_tensor(
    tensor: *const foam_tensor,
    port: &Port,
    count: usize,
    device: Device,
) -> Result<Buffer> {
    let batch = [count as i64];
    let expected = || port.expected(&batch);
    if tensor.is_null() {
        return Err(Error::invalid(format!("is NULL; expected {}", expected())));
    }
    // SAFETY: the caller's contract.
    let tensor = unsafe { &*tensor };
    if tensor.data.is_null() {
        return Err(Error::invalid(format!("data is NULL; expected {}", expected())));
    }
    let wanted = port.tail.len() + 1;
    if tensor.ndim < 0 || tensor.ndim as usize != wanted {
        let message = format!("ndim = {}: expected {wanted}, {}", tensor.ndim, expected());
        return Err(Error::new(Kind::ShapeMismatch, message));
    }
    if tensor.shape.is_null() {
        return Err(Error::invalid(format!("shape is NULL; expected {}", expected())));
    }
    // SAFETY: the caller gives `ndim` sizes.
    let sizes = (0..wanted).map(|a| unsafe { tensor.shape.add(a).read_unaligned() });
    let shape = listed(sizes, "a shape")?;
    let found = element_of(tensor.dtype);
    let called = found.map_or_else(|| dtype_text(tensor.dtype), |e| format!("{}", e.name()));
    let wrong = shape.iter().zip(batch.iter().copied().chain(port.tail.iter().map(|dim| *dim as i64)));
    let wrong = wrong.enumerate().find(|(_, (size, wanted))| **size != *wanted).map(|(axis, _)| axis);
    let element = port.check(&batch, found, &called, &shape).map_err(|cause| match wrong {
        Some(axis) => cause.on_axis(axis),
        None => cause,
    })?;
    // SAFETY: strides that are not NULL are `ndim` numbers.
    unsafe { check_strides(tensor, &shape)? };
    if let Some(problem) = wrong_device(tensor.device, device) {
        return Err(Error::new(Kind::ShapeMismatch, problem));
    }
    let bytes = port.stride(element) * count;
    let start = usize::try_from(tensor.byte_offset).ok().and_then(|o| (tensor.data as usize).checked_add(o));
    if start.and_then(|start| start.checked_add(bytes)).is_none() {
        let message = format!("byte_offset = {}: the tensor wraps around memory", tensor.byte_offset);
        return Err(Error::invalid(message));
    }
    let data = tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize);
    let state = matches!(port.role, Role::State(_)) && matches!(element, Element::Real(_));
    // A GPU reads nothing at odd addresses; clocks and records hold 64-bit numbers.
    let strict = device.kind != Device::CPU.kind;
    let size = if strict && element == Element::U32 { 8 } else { element.size() };
    if strict && !(data as usize).is_multiple_of(size) {
        return Err(Error::invalid(format!("its address is not a multiple of {size}, as the device needs")));
    }
    if state && !(data as usize).is_multiple_of(element.size()) {
        let message = format!("its address is not a multiple of {}, the size of an element", element.size());
        return Err(Error::invalid(message));
    }
    Ok(Buffer { data, element, bytes })
}

unsafe fn check_strides(tensor: &foam_tensor, shape: &[i64]) -> Result<()> {
    if tensor.strides.is_null() {
        return Ok(());
    }
    let mut expected = 1i64;
    for axis in (0..shape.len()).rev() {
        // SAFETY: the caller's contract.
        let stride = unsafe { tensor.strides.add(axis).read_unaligned() };
        if shape[axis] > 1 && stride != expected {
            return Err(Error::new(
                Kind::Unsupported,
                format!(
                    "strides[{axis}] = {stride}: expected {expected}, row-major contiguous memory (make a contiguous copy)"
                ),
            )
            .on_axis(axis));
        }
        expected *= shape[axis];
    }
    Ok(())
}

fn element_of(dtype: foam_dtype) -> Option<Element> {
    Element::from_dlpack(dtype.code, dtype.bits).filter(|_| dtype.lanes == 1)
}
