//! A stack of blocks through the exported C functions, with state in buffers of its own.

use super::model::{Failure, checked, configuration};
use super::tensor::Dtype;
use foam::abi::*;
use std::mem::{MaybeUninit, size_of};
use std::ptr::{null, null_mut};

/// A buffer at an address of its own choosing, as a tensor.
#[derive(Clone, Debug)]
pub struct Room {
    pub dtype: foam_dtype,
    pub shape: Vec<i64>,
    memory: Vec<u64>,
    /// Bytes between the start of the memory and the first element.
    lead: usize,
    bytes: usize,
}

impl Room {
    /// Zeros at an address that is aligned to an element, and to no more than that.
    pub fn new(dtype: foam_dtype, shape: &[i64]) -> Room {
        let size = usize::from(dtype.bits) / 8;
        let bytes = shape.iter().product::<i64>() as usize * size;
        Room { dtype, shape: shape.to_vec(), memory: vec![0; bytes.div_ceil(8) + 2], lead: size, bytes }
    }

    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.memory)[self.lead..self.lead + self.bytes]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.memory)[self.lead..self.lead + self.bytes]
    }

    /// The C form; it points into this room.
    pub fn in_c(&mut self) -> foam_tensor {
        foam_tensor {
            data: self.bytes_mut().as_mut_ptr().cast(),
            device: foam_device { device_type: FOAM_DEVICE_CPU, device_id: 0 },
            ndim: self.shape.len() as i32,
            dtype: self.dtype,
            shape: self.shape.as_mut_ptr(),
            strides: null_mut(),
            byte_offset: 0,
        }
    }
}

pub const I32: foam_dtype = foam_dtype { code: FOAM_DTYPE_INT, bits: 32, lanes: 1 };

/// What is constant about a stack.
#[derive(Clone, Debug)]
pub struct Shape {
    pub dims: Vec<i64>,
    pub count: usize,
    pub dtype: Dtype,
    pub weight_decay_scale: f64,
    pub root: f64,
    pub grafting_only: bool,
}

impl Shape {
    pub fn new(dims: &[i64], count: usize, dtype: Dtype) -> Shape {
        let dims = dims.to_vec();
        Shape { dims, count, dtype, weight_decay_scale: 1.0, root: 0.0, grafting_only: false }
    }

    pub fn in_c(&self) -> foam_stack {
        let mut stack = MaybeUninit::<foam_stack>::uninit();
        // SAFETY: the struct has the size that is passed; the call fills it.
        let mut stack = unsafe {
            checked(|error| foam_stack_init(stack.as_mut_ptr(), size_of::<foam_stack>() as u32, error))
                .unwrap();
            stack.assume_init()
        };
        (stack.shape, stack.ndim, stack.count) =
            (self.dims.as_ptr(), self.dims.len() as i32, self.count as i64);
        (stack.dtype, stack.root) = (self.dtype.in_c(), self.root);
        stack.weight_decay_scale = self.weight_decay_scale;
        stack.flags = if self.grafting_only { FOAM_STACK_GRAFTING_ONLY } else { 0 };
        stack
    }

    /// The shape of all blocks together.
    pub fn whole(&self) -> Vec<i64> {
        [vec![self.count as i64], self.dims.clone()].concat()
    }
}

/// A stack with its state.
pub struct Stack {
    pub config: foam_config,
    pub shape: Shape,
    pub names: Vec<String>,
    pub state: Vec<Room>,
    pub workspace: Vec<u8>,
    /// Write the new state elsewhere, and only then take it over.
    pub out_of_place: bool,
}

/// What a step came to.
pub struct Stepped {
    pub update: Room,
    pub info: Vec<i32>,
}

/// The three verbs.
type Verb = unsafe extern "C" fn(
    *const foam_config,
    *const foam_stack,
    *const foam_stack_args,
    *mut foam_error,
) -> foam_status;

impl Stack {
    /// A stack at its beginning; options as in [`configuration`].
    pub fn new(preset: &str, options: &str, shape: Shape) -> Stack {
        let config = configuration(preset, options).unwrap();
        let items = layout(&config, &shape).unwrap();
        let name = |item: &foam_stack_buffer| {
            item.name.iter().take_while(|c| **c != 0).map(|c| *c as u8 as char).collect::<String>()
        };
        let state: Vec<Room> =
            items.iter().map(|i| Room::new(i.dtype, &i.shape[..i.ndim as usize])).collect();
        for (item, room) in items.iter().zip(&state) {
            assert_eq!(item.bytes as usize, room.bytes().len());
        }
        let mut bytes = 0;
        let raw = shape.in_c();
        // SAFETY: live structs and a place for the size.
        checked(|error| unsafe { foam_stack_workspace(&config, &raw, &mut bytes, error) }).unwrap();
        let names = items.iter().map(name).collect();
        let mut stack = Stack { config, shape, names, state, workspace: vec![0; bytes], out_of_place: false };
        stack.reset();
        stack
    }

    /// Puts the state back to its beginning.
    pub fn reset(&mut self) {
        self.state.iter_mut().for_each(|room| room.bytes_mut().fill(0xA5));
        let tensors: Vec<foam_tensor> = self.state.iter_mut().map(Room::in_c).collect();
        let raw = self.shape.in_c();
        // SAFETY: the tensors point into buffers that outlive the call.
        checked(|error| unsafe {
            foam_stack_reset(&self.config, &raw, tensors.as_ptr(), tensors.len(), error)
        })
        .unwrap();
    }

    /// Calls a verb; `fill` sets the arguments that are its own.
    pub fn call(&mut self, verb: Verb, fill: impl FnOnce(&mut foam_stack_args)) -> Result<(), Failure> {
        // What lies in the workspace must not matter.
        self.workspace.fill(0xFF);
        let mut args = MaybeUninit::<foam_stack_args>::uninit();
        // SAFETY: as for the stack.
        let mut args = unsafe {
            let size = size_of::<foam_stack_args>() as u32;
            checked(|error| foam_stack_args_init(args.as_mut_ptr(), size, error))?;
            args.assume_init()
        };
        let mut outs: Vec<Room> = self.state.iter().map(|r| Room::new(r.dtype, &r.shape)).collect();
        outs.iter_mut().for_each(|room| room.bytes_mut().fill(0x5A));
        let before = self.state.clone();
        let state: Vec<foam_tensor> = self.state.iter_mut().map(Room::in_c).collect();
        let out: Vec<foam_tensor> = outs.iter_mut().map(Room::in_c).collect();
        (args.state, args.state_count) = (state.as_ptr(), state.len());
        args.state_out = if self.out_of_place { out.as_ptr() } else { null() };
        (args.workspace, args.workspace_size) = (self.workspace.as_mut_ptr().cast(), self.workspace.len());
        fill(&mut args);
        let raw = self.shape.in_c();
        // SAFETY: everything points into buffers that outlive the call.
        checked(|error| unsafe { verb(&self.config, &raw, &args, error) })?;
        if self.out_of_place {
            for (place, (old, new)) in before.iter().zip(outs).enumerate() {
                assert_eq!(old.bytes(), self.state[place].bytes(), "the operands are only read");
                // What the verb does not write is not touched.
                if new.bytes().iter().any(|b| *b != 0x5A) {
                    self.state[place] = new;
                }
            }
        }
        Ok(())
    }

    /// A whole step: the updates of blocks whose `active` is not 0.
    pub fn step(
        &mut self,
        grads: &mut Room,
        params: &mut Room,
        active: Option<&[i32]>,
        (scale, grad_scale): (f64, f64),
    ) -> Stepped {
        let count = [self.shape.count as i64];
        let mut flags = Room::new(I32, &count);
        let mut info = Room::new(I32, &count);
        let mut last = Room::new(I32, &count);
        let wide = if self.shape.dtype == Dtype::F64 { Dtype::F64 } else { Dtype::F32 };
        let mut update = Room::new(wide.in_c(), &self.shape.whole());
        update.bytes_mut().fill(0xA5);
        if let Some(active) = active {
            flags.bytes_mut().copy_from_slice(bytemuck::cast_slice(active));
        }
        let (g, w, f, i, l, u) =
            (grads.in_c(), params.in_c(), flags.in_c(), info.in_c(), last.in_c(), update.in_c());
        self.call(foam_stack_accumulate, |args| {
            (args.grads, args.params, args.info, args.grad_scale) = (&g, &w, &i, grad_scale);
            args.active = if active.is_some() { &f } else { null() };
        })
        .unwrap();
        // SOAP is checked after its update.
        let soap = self.config.preconditioner == FOAM_PRECONDITIONER_SOAP;
        if !soap {
            self.call(foam_stack_check, |args| args.info = &i).unwrap();
        }
        let out_of_place = self.out_of_place;
        self.call(foam_stack_apply, |args| {
            (args.grads, args.params, args.update) = (&g, &w, &u);
            (args.scale, args.grad_scale) = (scale, grad_scale);
            args.info_in = if out_of_place { &i } else { null() };
            args.info = if out_of_place { &l } else { &i };
        })
        .unwrap();
        if soap {
            self.call(foam_stack_check, |args| args.info = if out_of_place { &l } else { &i }).unwrap();
        }
        let info = if out_of_place { last } else { info };
        Stepped { update, info: words(info.bytes()) }
    }

    /// The part of block `block` of the state buffer called `name`.
    pub fn part(&self, name: &str, block: usize) -> &[u8] {
        let place = self.names.iter().position(|n| n == name).unwrap_or_else(|| panic!("no {name}"));
        let bytes = self.state[place].bytes();
        let stride = bytes.len() / self.shape.count;
        &bytes[block * stride..(block + 1) * stride]
    }
}

/// The description of a stack's state buffers.
pub fn layout(config: &foam_config, shape: &Shape) -> Result<Vec<foam_stack_buffer>, Failure> {
    let (raw, size) = (shape.in_c(), size_of::<foam_stack_buffer>());
    let mut count = 0;
    // SAFETY: a count query writes nothing but the count.
    checked(|error| unsafe { foam_stack_layout(config, &raw, null_mut(), size, 0, &mut count, error) })?;
    // SAFETY: plain data, for which zero is a value.
    let mut items: Vec<foam_stack_buffer> = (0..count).map(|_| unsafe { std::mem::zeroed() }).collect();
    // SAFETY: `items` has room for `count` elements of `size` bytes.
    checked(|error| unsafe {
        foam_stack_layout(config, &raw, items.as_mut_ptr(), size, items.len(), &mut count, error)
    })?;
    Ok(items)
}

/// Bytes as numbers.
pub fn words<T: bytemuck::AnyBitPattern>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}
