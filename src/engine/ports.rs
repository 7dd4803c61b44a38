//! What each verb of a stack takes and gives: the one table that the C functions and the XLA handlers check their
//! buffers against.

use super::plan::{Array, Content, SlotKind};
use super::stack::Stack;
use crate::error::{Error, Kind, Result};
use crate::memory::{copied, joined, push, reserved, whole_text};
use crate::preconditioner::{Access, Preconditioner};
use crate::tensor::{DType, Element, Precision};

/// The verbs of a stack; one after the other, in the order of the preconditioner, they are a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Inspect the gradients, tick the clocks, update the statistics.
    Accumulate,
    /// Sense, decide, refresh, re-damp, where a check is due.
    Check,
    /// Filter, direction, grafting, decay, momentum, update.
    Apply,
}

impl Verb {
    fn access(self, preconditioner: &Preconditioner, layout: &[Array], content: Content) -> Access {
        let has = |kind, axis| layout.iter().any(|array| array.content == Content::Slot(kind, axis));
        match (self, content) {
            (Verb::Accumulate, Content::Clock) => Access::Writes,
            (_, Content::Clock) => Access::Reads,
            (Verb::Check, Content::Record) => Access::Writes,
            (_, Content::Record) => Access::None,
            // The square holds the inverse root, too.
            (_, Content::Slot(SlotKind::Statistic, axis)) if has(SlotKind::RootDiagonal, axis) => {
                let of = |kind| preconditioner.access(self, kind);
                of(SlotKind::Statistic).max(of(SlotKind::RootDiagonal))
            }
            (_, Content::Slot(kind, _)) => preconditioner.access(self, kind),
        }
    }
}

/// What a buffer is to a verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Gradients.
    Grads,
    /// Parameters.
    Params,
    /// Which blocks take part.
    Active,
    /// What happened to every block.
    Info,
    /// The updates.
    Update,
    /// An array of the state, by its place in the layout.
    State(usize),
    /// Workspace.
    Workspace,
}

/// A buffer that a verb takes or gives.
#[derive(Debug)]
pub struct Port {
    /// What it is.
    pub role: Role,
    /// Its name in messages.
    pub name: String,
    /// The element types that it may have.
    pub elements: Vec<Element>,
    /// Its dimensions after those of the batch.
    pub tail: Vec<usize>,
}

/// What a verb takes and gives, in order.
#[derive(Debug)]
pub struct Ports {
    /// Operands.
    pub inputs: Vec<Port>,
    /// Results.
    pub outputs: Vec<Port>,
}

/// The port of one array of the state.
fn state_port(place: usize, array: &Array) -> Result<Port> {
    port(Role::State(place), &array.content.name()?, &[array.element], &array.tail)
}

fn port(role: Role, name: &str, elements: &[Element], tail: &[usize]) -> Result<Port> {
    Ok(Port {
        role,
        name: whole_text(format_args!("{name}"), PORTS)?,
        elements: copied(elements, PORTS)?,
        tail: copied(tail, PORTS)?,
    })
}

/// What the ports are called in errors.
const PORTS: &str = "the ports";

impl Ports {
    /// The ports of `verb`.
    pub fn new(
        verb: Verb,
        preconditioner: &Preconditioner,
        stack: &Stack,
        layout: &[Array],
        with_params: bool,
    ) -> Result<Ports> {
        let own = Element::Real(stack.dtype);
        let mut inputs = reserved(3 + layout.len(), PORTS)?;
        if verb != Verb::Check {
            inputs.push(port(Role::Grads, "grads", &DType::ALL.map(Element::Real), &stack.dims)?);
            if with_params {
                inputs.push(port(Role::Params, "params", &[own], &stack.dims)?);
            }
        }
        inputs.push(match verb {
            Verb::Accumulate => port(Role::Active, "active", &[Element::I32], &[])?,
            _ => port(Role::Info, "info", &[Element::I32], &[])?,
        });
        let mut outputs = reserved(3 + layout.len(), PORTS)?;
        if verb == Verb::Apply {
            let wider = stack.dtype.work() == Precision::F32 && stack.dtype != DType::F32;
            let elements = &[own, Element::Real(DType::F32)][..1 + usize::from(wider)];
            outputs.push(port(Role::Update, "update", elements, &stack.dims)?);
        }
        for (place, array) in layout.iter().enumerate() {
            let access = verb.access(preconditioner, layout, array.content);
            if access != Access::None {
                push(&mut inputs, state_port(place, array)?, PORTS)?;
            }
            if access == Access::Writes {
                push(&mut outputs, state_port(place, array)?, PORTS)?;
            }
        }
        outputs.push(port(Role::Info, "info", &[Element::I32], &[])?);
        push(&mut outputs, port(Role::Workspace, "workspace", &[Element::U8], &[])?, PORTS)?;
        Ok(Ports { inputs, outputs })
    }

    /// Ports for all arrays of the state.
    pub fn state(layout: &[Array]) -> Result<Vec<Port>> {
        crate::memory::tried(layout.iter().enumerate().map(|(place, array)| state_port(place, array)), PORTS)
    }
}

impl Port {
    /// Bytes of one block's part, for elements of type `element`.
    pub fn stride(&self, element: Element) -> usize {
        self.tail.iter().product::<usize>() * element.size()
    }

    /// What is expected, for example `f32[6,4,4]`.
    pub fn expected(&self, batch: &[i64]) -> String {
        let names = joined(self.elements.iter().map(|e| e.name()), " or ");
        let shape = batch.iter().copied().chain(self.tail.iter().map(|d| *d as i64));
        format!("{names}[{}]", joined(shape, ","))
    }

    /// Checks a buffer of type `element` (or of one that is unknown here, called `called`) and of `shape`.
    pub fn check(
        &self,
        batch: &[i64],
        element: Option<Element>,
        called: &str,
        shape: &[i64],
    ) -> Result<Element> {
        let tail = self.tail.iter().map(|d| *d as i64);
        let same_shape = shape.iter().copied().eq(batch.iter().copied().chain(tail));
        match element.filter(|e| self.elements.contains(e)) {
            Some(element) if same_shape => Ok(element),
            _ => Err(Error::new(
                Kind::ShapeMismatch,
                format!("expected {}, got {called}{}", self.expected(batch), dims_text(shape)),
            )),
        }
    }
}

/// A shape in messages: `[6,4]`.
pub fn dims_text(shape: &[i64]) -> String {
    format!("[{}]", joined(shape, ","))
}

/// A buffer that was checked against its port.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    /// First element.
    pub data: *mut u8,
    /// Type of its elements.
    pub element: Element,
    /// Bytes.
    pub bytes: usize,
}

/// Refuses buffers that overlap where one is written, unless an operand is its own result, or the updates
/// take the place of gradients (or parameters) of the same type. `say` names a port of the inputs or outputs.
pub fn refuse_overlaps(
    ports: &Ports,
    inputs: &[Buffer],
    outputs: &[Buffer],
    say: impl Fn(bool, usize) -> String,
) -> Result<()> {
    let within = |a: &Buffer, b: &Buffer| {
        (a.data as usize) < b.data as usize + b.bytes && (b.data as usize) < a.data as usize + a.bytes
    };
    let clash = |one: String, other: String| {
        Err(Error::invalid(format!(
            "{one} and {other} overlap in memory; expected what is written to overlap nothing else, or to be exactly its own input"
        )))
    };
    for (place, output) in outputs.iter().enumerate() {
        let role = ports.outputs[place].role;
        for (other, input) in inputs.iter().enumerate().filter(|(_, input)| within(output, input)) {
            let source = ports.inputs[other].role;
            let paired =
                source == role || role == Role::Update && matches!(source, Role::Grads | Role::Params);
            let same = input.data == output.data && input.element == output.element;
            if !(paired && same) {
                return clash(say(false, other), say(true, place));
            }
        }
        if let Some(other) = (0..place).find(|other| within(output, &outputs[*other])) {
            return clash(say(true, other), say(true, place));
        }
    }
    Ok(())
}
