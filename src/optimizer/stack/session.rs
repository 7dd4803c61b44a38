//! A session: an optimizer without state of its own, and what it does to a caller's buffers in one call.

use super::super::{Clock, Level, Optimizer, StepOptions, Tick, order};
use super::ports::{Given, Ports, Role, Verb};
use super::{Buffer, Content, Element, Stack};
use crate::backend::bound::{Bound, Memory};
use crate::backend::cpu::Cpu;
use crate::backend::cuda::Cuda;
use crate::backend::{Backend, Tensors};
use crate::config::{Config, Device, InjectFault};
use crate::error::{Error, Kind, Result};
use crate::preconditioner::{FactorRecord, cadence};
use crate::tensor::{DType, TensorRef};
use std::sync::Arc;

/// The block took no part: it is not active, or has never accumulated.
pub const IDLE: i32 = 1;
/// The gradient is not finite, or its square overflows.
pub const NOT_FINITE: i32 = 2;
/// The direction overflowed and was left out.
pub const LEFT_OUT: i32 = 4;
/// An eigendecomposition fell to a lower rung of the ladder.
pub const FELL: i32 = 8;

/// Everything that a verb is given, checked against its ports.
pub struct Call<'a> {
    /// The verb.
    pub verb: Verb,
    /// What the buffers are.
    pub ports: &'a Ports,
    /// Operands, in the order of the ports.
    pub inputs: &'a [Given],
    /// Results, in the order of the ports.
    pub outputs: &'a [Given],
    /// Multiplies every gradient.
    pub grad_scale: f64,
    /// The update is this times the direction.
    pub scale: f64,
    /// The caller's stream.
    pub stream: *mut libc::c_void,
}

impl Call<'_> {
    pub(super) fn input(&self, role: Role) -> Option<Given> {
        self.ports.inputs.iter().position(|p| p.role == role).map(|place| self.inputs[place])
    }

    pub(super) fn output(&self, role: Role) -> Option<Given> {
        self.ports.outputs.iter().position(|p| p.role == role).map(|place| self.outputs[place])
    }
}

/// An optimizer for one stack and one configuration.
pub struct Session {
    pub(super) stack: Stack,
    pub(super) layout: Vec<Buffer>,
    pub(super) optimizer: Optimizer,
    /// Ports of every verb, without and with parameters, as far as they were asked for.
    ports: [[Option<Arc<Ports>>; 2]; 3],
    /// Place in the layout of every slot of the plan.
    pub(super) places: Vec<usize>,
    pub(super) slots: Vec<*mut u8>,
    params: Vec<TensorRef>,
    grads: Vec<Option<TensorRef>>,
    updates: Vec<TensorRef>,
    pub(super) info: Vec<i32>,
    /// Words on their way between the caller's buffers and the host's.
    pub(super) bytes: Vec<u8>,
}

// SAFETY: the addresses are only used within the call that set them.
unsafe impl Send for Session {}

impl Session {
    /// A session; `config` is as a stack sees it.
    pub(super) fn new(config: Config, stack: Stack) -> Result<Session> {
        config.validate()?;
        stack.validate(&config)?;
        let layout = stack.layout(&config)?;
        let plan = Arc::new(stack.plan(&config, stack.count)?);
        let backend: Box<dyn Backend> = match config.device.kind {
            Device::CPU_KIND => Box::new(Cpu::borrowing(plan.clone(), &config)),
            Device::CUDA_KIND => Box::new(Cuda::borrowing(plan.clone(), &config)?),
            _ => return Err(config.device.unknown()),
        };
        let place = |content| layout.iter().position(|b| b.content == content).unwrap_or(0);
        let places = plan.slots.iter().map(|s| place(Content::Slot(s.kind, s.axis))).collect();
        let nowhere = TensorRef { data: std::ptr::null_mut(), dtype: DType::F32 };
        Ok(Session {
            places,
            layout,
            ports: Default::default(),
            slots: vec![std::ptr::null_mut(); plan.slots.len()],
            params: vec![nowhere; stack.count],
            grads: vec![None; stack.count],
            updates: vec![nowhere; stack.count],
            info: vec![0; stack.count],
            bytes: Vec::new(),
            optimizer: Optimizer::on(backend, config, plan, Box::new(|_, _| {})),
            stack,
        })
    }

    /// Whether it is a session for these.
    pub(super) fn serves(&self, config: &Config, stack: &Stack) -> bool {
        self.stack == *stack && self.optimizer.config == *config
    }

    /// The stack's state buffers.
    pub fn layout(&self) -> &[Buffer] {
        &self.layout
    }

    /// What `verb` takes and gives.
    pub fn ports(&mut self, verb: Verb, with_params: bool) -> Result<Arc<Ports>> {
        let config = &self.optimizer.config;
        let decays = config.weight_decay * self.stack.weight_decay_scale != 0.0;
        let needed = match verb {
            Verb::Accumulate => decays && !config.decoupled_weight_decay,
            Verb::Check => false,
            Verb::Apply => decays,
        };
        if needed && !with_params {
            return Err(Error::invalid(format!(
                "params are missing: weight_decay = {} needs them; expected params, or weight_decay = 0",
                config.weight_decay
            )));
        }
        let kept = &mut self.ports[verb as usize][usize::from(with_params)];
        let make = || Arc::new(Ports::new(verb, &self.stack, &self.layout, with_params));
        Ok(kept.get_or_insert_with(make).clone())
    }

    /// Where the buffers lie.
    pub fn device_of(&self) -> Device {
        self.optimizer.config.device
    }

    /// Bytes of workspace that any verb needs.
    pub fn workspace_bytes(&mut self) -> Result<usize> {
        match self.late() {
            Some(device) => device.workspace_bytes(),
            None => Ok(self.bound()?.workspace_bytes()),
        }
    }

    /// Where log lines go in the next call.
    pub fn set_log(&mut self, log: impl Fn(Level, &str) + Send + 'static) {
        self.optimizer.log = Box::new(log);
    }

    /// Writes the first values into the state buffers, given in the layout's order.
    ///
    /// # Safety
    /// The buffers are writable and have the layout's sizes.
    pub unsafe fn reset(&mut self, state: &[*mut u8]) -> Result<()> {
        let first = self.optimizer.plan.factors.iter().map(|f| FactorRecord::new(f.epsilon)).collect();
        self.optimizer.clocks.fill(Clock { step: 0, weight: 1.0 });
        self.optimizer.records = first;
        for (place, data) in state.iter().enumerate() {
            let bytes = self.layout[place].stride() * self.stack.count;
            // SAFETY: the caller's contract.
            unsafe {
                match self.layout[place].content {
                    Content::Clock => self.store_clocks(*data)?,
                    Content::Record => self.store_records(*data)?,
                    Content::Slot(..) => match self.late() {
                        Some(device) => device.store(None, *data as u64, bytes)?,
                        None => self.bound()?.clear(*data, bytes)?,
                    },
                }
            }
        }
        Ok(())
    }

    /// Performs a verb. Numerical trouble goes to `info`; an error means that nothing was written.
    ///
    /// # Safety
    /// The buffers are valid for the call, fit their ports, and were checked for overlaps.
    pub unsafe fn run(&mut self, call: &Call) -> Result<()> {
        if self.late().is_some() {
            // SAFETY: the caller's contract.
            return unsafe { self.run_late(call) };
        }
        // SAFETY: the caller's contract.
        let outcome = unsafe { self.bind(call).and_then(|()| self.perform(call)) };
        if let Some(bound) = self.optimizer.backend.bound() {
            bound.release();
        }
        outcome
    }

    pub(super) fn bound(&mut self) -> Result<&mut dyn Bound> {
        self.optimizer.backend.bound().ok_or_else(|| {
            Error::new(Kind::Unsupported, "this device does not work on the caller's state buffers yet")
        })
    }

    /// Points the backend at the caller's buffers: the results where there are any, else the operands.
    unsafe fn bind(&mut self, call: &Call) -> Result<()> {
        let address = |place: usize| {
            let role = Role::State(place);
            call.output(role).or(call.input(role)).map_or(std::ptr::null_mut(), |given| given.data)
        };
        let addresses: Vec<*mut u8> = (0..self.layout.len()).map(address).collect();
        for (slot, plan) in self.optimizer.plan.slots.iter().enumerate() {
            let place = self.places[slot];
            let base = addresses[place];
            let offset = plan.block * self.layout[place].stride();
            self.slots[slot] = if base.is_null() { base } else { base.wrapping_add(offset) };
        }
        let missing = || Error::invalid("the workspace is missing");
        let workspace = call.output(Role::Workspace).ok_or_else(missing)?;
        let memory = Memory {
            slots: &self.slots,
            workspace: workspace.data,
            workspace_bytes: workspace.bytes,
            stream: call.stream,
        };
        let backend = self.optimizer.backend.bound().ok_or_else(missing)?;
        // SAFETY: the caller's contract.
        unsafe { backend.bind(&memory) }
    }

    unsafe fn perform(&mut self, call: &Call) -> Result<()> {
        // SAFETY: the caller's contract, in all that follows.
        unsafe {
            self.load(call)?;
            self.carry(call)?;
            self.point(call);
            match call.verb {
                Verb::Accumulate => self.accumulate(call)?,
                Verb::Check => self.check()?,
                Verb::Apply => self.apply(call)?,
            }
            self.store(call)
        }
    }

    /// Reads what the host decides by: who takes part, the clocks, the records.
    unsafe fn load(&mut self, call: &Call) -> Result<()> {
        let place = |content| self.layout.iter().position(|b| b.content == content).map(Role::State);
        let (clock, record) = (place(Content::Clock), place(Content::Record));
        let flags = call.input(Role::Active).or(call.input(Role::Info));
        // SAFETY: the caller's contract.
        unsafe {
            self.load_clocks(clock.and_then(|role| call.input(role)))?;
            if call.verb == Verb::Check {
                self.load_records(record.and_then(|role| call.input(role)))?;
            }
            if let Some(flags) = flags {
                let mut info = std::mem::take(&mut self.info);
                let fetched = self.bound()?.fetch(flags.data, bytemuck::cast_slice_mut(&mut info));
                self.info = info;
                fetched?;
            } else {
                self.info.fill(1);
            }
        }
        if call.verb == Verb::Accumulate {
            self.info.iter_mut().for_each(|flag| *flag = if *flag == 0 { IDLE } else { 0 });
        }
        self.optimizer.totals.steps = self.optimizer.clocks.iter().map(|c| c.step).max().unwrap_or(0);
        Ok(())
    }

    /// Copies the operands of results that lie elsewhere.
    unsafe fn carry(&mut self, call: &Call) -> Result<()> {
        for (port, output) in call.ports.outputs.iter().zip(call.outputs) {
            let Role::State(place) = port.role else { continue };
            let Some(input) = call.input(port.role).filter(|input| input.data != output.data) else {
                continue;
            };
            let host = matches!(self.layout[place].content, Content::Clock | Content::Record);
            if !host {
                // SAFETY: the caller's contract.
                unsafe { self.bound()?.copy(input.data, output.data, output.bytes)? };
            }
        }
        Ok(())
    }

    /// Writes down where each block's gradient, parameter and update are.
    fn point(&mut self, call: &Call) {
        let elements: usize = self.stack.dims.iter().product();
        let part = |given: Given, block: usize| {
            let Element::Real(dtype) = given.element else { unreachable!("checked by the ports") };
            TensorRef { data: given.data.wrapping_add(block * elements * dtype.size()), dtype }
        };
        let (params, grads) = (call.input(Role::Params), call.input(Role::Grads));
        let updates = call.output(Role::Update);
        for block in 0..self.stack.count {
            let takes_part = self.info[block] & (IDLE | NOT_FINITE) == 0;
            self.grads[block] = grads.filter(|_| takes_part).map(|g| part(g, block));
            if let Some(params) = params {
                self.params[block] = part(params, block);
            }
            if let Some(updates) = updates {
                self.updates[block] = part(updates, block);
            }
        }
    }

    fn accumulate(&mut self, call: &Call) -> Result<()> {
        let optimizer = &mut self.optimizer;
        let tensors =
            Tensors { params: &self.params, grads: &self.grads, updates: None, stream: call.stream };
        optimizer.schedule(&tensors, StepOptions { lr: None, grad_scale: call.grad_scale });
        optimizer.backend.inspect(&tensors, &mut optimizer.orders, false)?;
        for order in optimizer.orders.iter().filter(|o| !o.squared_norm.is_finite()) {
            self.info[order.block] |= NOT_FINITE;
            optimizer.next[order.block] = optimizer.clocks[order.block];
        }
        optimizer.orders.retain(|o| o.squared_norm.is_finite());
        std::mem::swap(&mut optimizer.clocks, &mut optimizer.next);
        optimizer.totals.steps += 1;
        if optimizer.fault() == InjectFault::Panic {
            panic!("injected fault: panic");
        }
        optimizer.backend.accumulate(&tensors, &optimizer.orders)
    }

    fn check(&mut self) -> Result<()> {
        let optimizer = &mut self.optimizer;
        let due = |block: &usize| {
            let t = optimizer.clocks[*block].step;
            self.info[*block] & (IDLE | NOT_FINITE) == 0 && t > 0 && cadence::is_check(&optimizer.config, t)
        };
        let due: Vec<usize> = (0..self.stack.count).filter(due).collect();
        if due.is_empty() {
            return Ok(());
        }
        let failed: Vec<i64> = optimizer.records.iter().map(|r| r.counters.failed_evds).collect();
        optimizer.check_params(&due)?;
        for (factor, before) in failed.iter().enumerate() {
            if optimizer.records[factor].counters.failed_evds > *before {
                self.info[optimizer.plan.factors[factor].block] |= FELL;
            }
        }
        Ok(())
    }

    fn apply(&mut self, call: &Call) -> Result<()> {
        let optimizer = &mut self.optimizer;
        let tensors = Tensors {
            params: &self.params,
            grads: &self.grads,
            updates: Some(&self.updates),
            stream: call.stream,
        };
        let options = StepOptions { lr: Some(-call.scale), grad_scale: call.grad_scale };
        optimizer.orders.clear();
        for (block, info) in self.info.iter_mut().enumerate() {
            let clock = optimizer.clocks[block];
            if *info & (IDLE | NOT_FINITE) == 0 && clock.step == 0 {
                *info |= IDLE;
            }
            if *info & (IDLE | NOT_FINITE) == 0 {
                // The clock has ticked already, and the statistics stay as they are.
                let tick = Tick { clock, decay: 1.0, gain: 0.0 };
                let mut order = order(&optimizer.config, &optimizer.plan.params[block], &tick, options);
                order.block = block;
                optimizer.orders.push(order);
            }
        }
        if optimizer.config.normalized_grafting {
            optimizer.backend.inspect(&tensors, &mut optimizer.orders, false)?;
        }
        for order in optimizer.orders.iter().filter(|o| !o.squared_norm.is_finite()) {
            self.info[order.block] |= NOT_FINITE;
        }
        optimizer.orders.retain(|o| o.squared_norm.is_finite());
        optimizer.backend.apply(&tensors, &optimizer.orders)?;
        let bytes = call.output(Role::Update).map_or(0, |update| update.bytes / self.stack.count);
        for block in 0..self.stack.count {
            let backend = optimizer.backend.bound().ok_or_else(|| Error::invalid("no bound backend"))?;
            if self.info[block] & (IDLE | NOT_FINITE) != 0 {
                // SAFETY: the block's part of the updates.
                unsafe { backend.clear(self.updates[block].data, bytes)? };
            } else if backend.left_out(block) {
                self.info[block] |= LEFT_OUT;
            }
        }
        Ok(())
    }

    /// Writes what the host decided.
    unsafe fn store(&mut self, call: &Call) -> Result<()> {
        for (port, output) in call.ports.outputs.iter().zip(call.outputs) {
            // SAFETY: the caller's contract.
            unsafe {
                match port.role {
                    Role::Info => {
                        let info = std::mem::take(&mut self.info);
                        let put = self.bound()?.put(bytemuck::cast_slice(&info), output.data);
                        self.info = info;
                        put?;
                    }
                    Role::State(place) => match self.layout[place].content {
                        Content::Clock => self.store_clocks(output.data)?,
                        Content::Record => self.store_records(output.data)?,
                        Content::Slot(..) => {}
                    },
                    _ => {}
                }
            }
        }
        Ok(())
    }
}
