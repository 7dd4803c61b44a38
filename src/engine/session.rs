//! A session: an engine without a State of its own, and one verb of it on the caller's arrays.

use super::plan::Array;
use super::ports::{Buffer, Ports, Role, Verb};
use super::rules::Rules;
use super::stack::Stack;
use super::{Clock, Engine, Level, first_records};
use crate::config::{Config, Device as Place};
use crate::device::{Binding, Rows, Sites};
use crate::engine::plan::Content;
use crate::error::{Error, Result};
use crate::memory::{Counted, boxed, filled, listed, push};
use crate::tensor::DType;

/// Everything that a verb is given, checked against its ports.
pub struct Call<'a> {
    /// The verb.
    pub verb: Verb,
    /// What the buffers are.
    pub ports: &'a Ports,
    /// Operands, in the order of the ports.
    pub inputs: &'a [Buffer],
    /// Results, in the order of the ports.
    pub outputs: &'a [Buffer],
    /// Multiplies every gradient.
    pub grad_scale: f64,
    /// The update is this times the direction.
    pub scale: f64,
    /// The caller's stream.
    pub stream: *mut libc::c_void,
}

impl Call<'_> {
    fn input(&self, role: Role) -> Option<Buffer> {
        self.ports.inputs.iter().position(|p| p.role == role).map(|place| self.inputs[place])
    }

    fn output(&self, role: Role) -> Option<Buffer> {
        self.ports.outputs.iter().position(|p| p.role == role).map(|place| self.outputs[place])
    }
}

fn address(buffer: Option<Buffer>) -> u64 {
    buffer.map_or(0, |buffer| buffer.data as u64)
}

fn typed(buffer: Option<Buffer>) -> (u64, DType) {
    (address(buffer), buffer.and_then(|buffer| buffer.element.real()).unwrap_or(DType::F32))
}

/// What the addresses of a call's buffers are called in errors.
const BUFFERS: &str = "the addresses of the buffers";

/// An engine for one stack and one configuration.
pub struct Session {
    stack: Stack,
    engine: Engine,
    /// Ports of every verb, without and with parameters and the list of active blocks, as far as they were asked for.
    ports: [[Option<Counted<Ports>>; 4]; 3],
}

impl Session {
    /// A session; `config` is as a stack sees it.
    pub(super) fn new(config: Config, stack: Stack) -> Result<Session> {
        config.validate()?;
        stack.validate(&config)?;
        let plan = stack.plan(&config, stack.count)?;
        let engine = Engine::new(config, plan, None, boxed(|_: Level, _: &str| {}, "the log")?)?;
        Ok(Session { stack, engine, ports: Default::default() })
    }

    /// Whether it is a session for these.
    pub(super) fn serves(&self, config: &Config, stack: &Stack) -> bool {
        self.stack == *stack && self.engine.config == *config
    }

    /// The arrays of the stack's state.
    pub fn layout(&self) -> &[Array] {
        &self.engine.plan.stacks[0].layout
    }

    /// What `verb` takes and gives.
    pub fn ports(&mut self, verb: Verb, with_params: bool, with_active: bool) -> Result<Counted<Ports>> {
        let config = &self.engine.config;
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
        let plan = &self.engine.plan;
        let (layout, preconditioner) = (&plan.stacks[0].layout, &plan.preconditioner);
        let kept = &mut self.ports[verb as usize][usize::from(with_params) + 2 * usize::from(with_active)];
        if let Some(ports) = kept {
            return Ok(ports.clone());
        }
        let mut ports = Ports::new(verb, preconditioner, &self.stack, layout, with_params)?;
        ports.inputs.retain(|port| with_active || port.role != Role::Active);
        let ports = Counted::new(ports, "the ports")?;
        *kept = Some(ports.clone());
        Ok(ports)
    }

    /// Where the buffers lie.
    pub fn device_of(&self) -> Place {
        self.engine.config.device
    }

    /// Bytes of workspace that any verb needs.
    pub fn workspace_bytes(&self) -> usize {
        self.engine.device.workspace_bytes()
    }

    /// Where log lines go in the next call.
    pub fn set_log(&mut self, log: impl Fn(Level, &str) + Send + 'static) -> Result<()> {
        self.engine.log = boxed(log, "the log")?;
        Ok(())
    }

    /// Writes the first values into the arrays of the state, given in the layout's order.
    ///
    /// # Safety
    /// The arrays are writable and have the layout's sizes.
    pub unsafe fn reset(&mut self, state: &[*mut u8]) -> Result<()> {
        let clocks = filled(Clock::START, self.stack.count, "the clocks")?;
        let records = first_records(&self.engine.plan)?;
        let plan = self.engine.plan.clone();
        for (array, data) in plan.stacks[0].layout.iter().zip(state) {
            let at = *data as u64;
            // SAFETY: the caller's contract.
            unsafe {
                match array.content {
                    Content::Clock => self.engine.device.write(bytemuck::cast_slice(&clocks), at)?,
                    Content::Record => self.engine.device.write(bytemuck::cast_slice(&records), at)?,
                    Content::Slot(..) => self.engine.device.clear(at, array.stride() * self.stack.count)?,
                }
            }
        }
        Ok(())
    }

    /// Performs a verb. Numerical trouble goes to `info`; an error means that nothing was written.
    ///
    /// # Safety
    /// The buffers are valid until the work of the call is done, fit their ports, and were checked for overlaps.
    pub unsafe fn run(&mut self, call: &Call) -> Result<()> {
        let arrays = self.layout().len();
        let given = |place: usize| (call.input(Role::State(place)), call.output(Role::State(place)));
        let read = listed((0..arrays).map(|place| address(given(place).0.or(given(place).1))), BUFFERS)?;
        let write = listed((0..arrays).map(|place| address(given(place).1.or(given(place).0))), BUFFERS)?;
        let mut copies = Vec::new();
        for (port, output) in call.ports.outputs.iter().zip(call.outputs) {
            let moved = call.input(port.role).filter(|input| input.data != output.data);
            if let Some(input) = moved.filter(|_| port.role != Role::Update) {
                push(&mut copies, (input.data as u64, output.data as u64, output.bytes), BUFFERS)?;
            }
        }
        let config = &self.engine.config;
        let rows = Rows {
            params: address(call.input(Role::Params)),
            grads: typed(call.input(Role::Grads)),
            updates: typed(call.output(Role::Update)),
            active: address(call.input(Role::Active)),
            decay: config.weight_decay * self.stack.weight_decay_scale,
        };
        let info = call.output(Role::Info);
        let workspace = call.output(Role::Workspace).map_or((0, 0), |w| (w.data as u64, w.bytes));
        let binding = Binding {
            read: &read,
            write: &write,
            copies: &copies,
            sites: if call.verb == Verb::Check { Sites::None } else { Sites::Rows(rows) },
            infos: (address(call.input(Role::Info)), address(info)),
            workspace,
            stream: call.stream,
            joint: false,
            strict: false,
            after: &[],
            waits: call.verb == Verb::Check,
        };
        let rules = Rules::new(config, call.scale, call.grad_scale);
        // SAFETY: the caller's contract.
        unsafe { self.engine.device.bind(&binding)? };
        self.perform(call.verb, &rules)
    }

    fn perform(&mut self, verb: Verb, rules: &Rules) -> Result<()> {
        let engine = &mut self.engine;
        if engine.device.is_synchronous() {
            // Refuses words that no verb wrote, before anything is written.
            engine.ask()?;
            engine.totals.steps = engine.clocks.iter().map(|clock| clock.step).max().unwrap_or(0);
        }
        engine.device.carry()?;
        match verb {
            Verb::Accumulate => {
                engine.inspect(rules)?;
                engine.accumulate(rules)?;
            }
            Verb::Check => {
                engine.check(rules)?;
            }
            Verb::Apply => engine.apply(rules)?,
        }
        engine.device.finish()
    }
}
