//! The ports of a stack's verbs: what each takes and gives, in order.

use super::boundary::{self, AbiStruct, List, field_ends};
use super::config::foam_config;
use super::stack::{FOAM_STACK_BUFFER_NDIM, FOAM_STACK_NAME_SIZE, dtype_of, foam_stack, read_stack};
use super::status::{foam_error, foam_status};
use super::tensor::foam_dtype;
use crate::engine::ports::{Port, Ports, Role, Verb};
use crate::error::Error;
use crate::preconditioner::Preconditioner;
use crate::tensor::Element;
use libc::c_char;
use std::mem::size_of;

/// `foam_stack_accumulate`.
pub const FOAM_VERB_ACCUMULATE: i32 = 0;
/// `foam_stack_check`.
pub const FOAM_VERB_CHECK: i32 = 1;
/// `foam_stack_apply`.
pub const FOAM_VERB_APPLY: i32 = 2;

/// The verb reads it: an operand.
pub const FOAM_PORT_READ: u32 = 1;
/// The verb writes it: a result.
pub const FOAM_PORT_WRITTEN: u32 = 2;

/// Dtypes in `foam_stack_port.dtypes`.
pub const FOAM_PORT_DTYPES: usize = 4;

/// One operand or result of a verb of a stack.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct foam_stack_port {
    /// Bytes of this struct as the library wrote it.
    pub struct_size: u32,
    /// `FOAM_PORT_READ` for an operand, `FOAM_PORT_WRITTEN` for a result.
    pub flags: u32,
    /// Place of a state buffer in `foam_stack_layout`; -1 for what is not state. A buffer that is both read and
    /// written is listed twice, and may be the same memory.
    pub state: i32,
    /// Number of dimensions.
    pub ndim: i32,
    /// Dtypes that it may have; at least 1.
    pub dtype_count: i32,
    /// 0.
    pub reserved: u32,
    /// The dtypes, the stack's own first; those behind `dtype_count` are zero.
    pub dtypes: [foam_dtype; FOAM_PORT_DTYPES],
    /// Its sizes, the number of blocks first; those behind `ndim` are 0. The workspace has one dimension of
    /// size 0 here: `foam_stack_workspace` says how many bytes it needs.
    pub shape: [i64; FOAM_STACK_BUFFER_NDIM],
    /// Its name, for example "grads" or "statistic_0", NUL-terminated.
    pub name: [c_char; FOAM_STACK_NAME_SIZE],
}

// SAFETY: plain data, first field `struct_size`, every bit pattern valid.
unsafe impl AbiStruct for foam_stack_port {
    const NAME: &'static str = "foam_stack_port";
    const REQUIRED: usize = size_of::<foam_stack_port>();
    const ENDS: &'static [usize] = field_ends!(foam_stack_port {
        struct_size,
        flags,
        state,
        ndim,
        dtype_count,
        reserved,
        dtypes,
        shape,
        name
    });

    fn defaults() -> Self {
        foam_stack_port {
            struct_size: size_of::<Self>() as u32,
            flags: 0,
            state: -1,
            ndim: 0,
            dtype_count: 0,
            reserved: 0,
            dtypes: [foam_dtype::default(); FOAM_PORT_DTYPES],
            shape: [0; FOAM_STACK_BUFFER_NDIM],
            name: [0; FOAM_STACK_NAME_SIZE],
        }
    }
}

/// Lists what a verb (`FOAM_VERB_*`) of a stack takes and gives: its operands in order, then its results in order,
/// as the XLA handlers have them. `with_params` is 1 with the parameters among the operands, 0 without, and -1 for
/// what the weight decay needs; 0 is refused where a weight decay needs them. `items`, `item_size` =
/// `sizeof(foam_stack_port)`, `capacity` and `count` are as in `foam_stack_layout`.
///
/// # Safety
/// `config` and `stack` are structs whose `struct_size` is set; `items` has `capacity` × `item_size` writable
/// bytes; `count` is writable; `error` is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_stack_ports(
    config: *const foam_config,
    stack: *const foam_stack,
    verb: i32,
    with_params: i32,
    items: *mut foam_stack_port,
    item_size: usize,
    capacity: usize,
    count: *mut usize,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        boundary::call(error, || {
            let (config, stack) = read_stack(config, stack)?;
            config.validate()?;
            stack.validate(&config)?;
            let verb = match verb {
                FOAM_VERB_ACCUMULATE => Verb::Accumulate,
                FOAM_VERB_CHECK => Verb::Check,
                FOAM_VERB_APPLY => Verb::Apply,
                _ => return Err(Error::invalid(format!("verb = {verb}: expected one of FOAM_VERB_*"))),
            };
            let needed = needs_params(verb, config.weight_decay * stack.weight_decay_scale, &config);
            let with = match with_params {
                -1 => needed,
                0 if needed => {
                    return Err(Error::invalid(format!(
                        "with_params = 0: weight_decay = {} needs the parameters; expected 1 or -1",
                        config.weight_decay
                    )));
                }
                0 | 1 => with_params == 1,
                _ => {
                    return Err(Error::invalid(format!("with_params = {with_params}: expected -1, 0 or 1")));
                }
            };
            let layout = stack.layout(&config)?;
            let ports = Ports::new(verb, &Preconditioner::of(&config), &stack, &layout, with)?;
            let (read, own) = (ports.inputs.len(), Element::Real(stack.dtype));
            let list = List { items, item_size, capacity, count };
            boundary::write_list(list, read + ports.outputs.len(), |place| {
                Ok(match ports.inputs.get(place) {
                    Some(port) => describe(port, FOAM_PORT_READ, stack.count, own),
                    None => describe(&ports.outputs[place - read], FOAM_PORT_WRITTEN, stack.count, own),
                })
            })
        })
    }
}

/// Whether a verb reads the parameters: where there is a weight decay (accumulate: a coupled one).
fn needs_params(verb: Verb, decay: f64, config: &crate::config::Config) -> bool {
    match verb {
        Verb::Accumulate => decay != 0.0 && !config.decoupled_weight_decay,
        Verb::Check => false,
        Verb::Apply => decay != 0.0,
    }
}

fn describe(port: &Port, flags: u32, count: usize, own: Element) -> foam_stack_port {
    let mut item = foam_stack_port { flags, ndim: 1 + port.tail.len() as i32, ..foam_stack_port::defaults() };
    if let Role::State(place) = port.role {
        item.state = place as i32;
    }
    item.shape[0] = if port.role == Role::Workspace { 0 } else { count as i64 };
    for (slot, size) in item.shape[1..].iter_mut().zip(&port.tail) {
        *slot = *size as i64;
    }
    // The stack's own type is the one to choose where there is a choice.
    let (first, others) =
        (port.elements.iter().filter(|e| **e == own), port.elements.iter().filter(|e| **e != own));
    for (slot, element) in item.dtypes.iter_mut().zip(first.chain(others)) {
        *slot = dtype_of(*element);
    }
    item.dtype_count = port.elements.len() as i32;
    boundary::put_name(&mut item.name, &port.name);
    item
}
