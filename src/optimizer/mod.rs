//! Algorithm 1: the step as a pipeline over batches of blocks,
//! inspect → accumulate → (sense → decide → refresh / redamp) → apply.

mod check;
mod diagnose;
pub mod plan;
pub mod stack;
pub mod stats;

use crate::backend::cpu::Cpu;
use crate::backend::cuda::Cuda;
use crate::backend::{Backend, BlockOrder, Direction, News, Tensors};
use crate::config::{Config, Device, Grafting, InjectFault, Nonfinite};
use crate::error::{Error, Kind, Result};
use crate::memory::Allocator;
use crate::preconditioner::{FactorRecord, cadence};
use plan::{ParamPlan, ParamSpec, Plan};
use stats::{Totals, Verb};
use std::sync::Arc;
use std::time::Instant;

/// How urgent a log line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Something that a user should look at.
    Warning,
    /// Something that a user may ignore.
    Info,
}

/// Where log lines go.
pub type Log = Box<dyn Fn(Level, &str) + Send>;

/// The time of one parameter: it ticks only when the parameter takes part in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clock {
    /// Steps taken.
    pub step: u64,
    /// The statistic is the stored one times this. Carrying the decay here saves a pass over every
    /// statistic in every step.
    pub weight: f64,
}

/// Below this weight the stored statistics are rescaled, so that they never grow far beyond the true
/// ones.
const LEAST_WEIGHT: f64 = 1.0 / 16.0;

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Parameters were updated.
    Stepped,
    /// A gradient was not finite, and the configuration says to skip such steps.
    Skipped,
}

/// What a caller may set for one step.
#[derive(Clone, Copy, Debug)]
pub struct StepOptions {
    /// Learning rate; the configuration's if `None`.
    pub lr: Option<f64>,
    /// Multiplies every gradient.
    pub grad_scale: f64,
}

impl Default for StepOptions {
    fn default() -> Self {
        StepOptions { lr: None, grad_scale: 1.0 }
    }
}

/// An optimizer: the plan, the records, and a backend that holds the buffers.
pub struct Optimizer {
    config: Config,
    plan: Arc<Plan>,
    backend: Box<dyn Backend>,
    clocks: Vec<Clock>,
    records: Vec<FactorRecord>,
    totals: Totals,
    log: Log,
    orders: Vec<BlockOrder>,
    /// Clocks as they will be if the step passes inspection.
    next: Vec<Clock>,
    /// An error that was found out while nobody asked for it.
    deferred: Option<Error>,
    /// A device failed in the middle of a step.
    lost: bool,
}

impl Optimizer {
    /// An optimizer for `specs`, with all state zero.
    pub fn new(config: Config, specs: Vec<ParamSpec>, allocator: Allocator, log: Log) -> Result<Optimizer> {
        config.validate()?;
        check_specs(&config, &specs)?;
        let plan = Arc::new(Plan::new(&config, specs)?);
        let backend: Box<dyn Backend> = match config.device.kind {
            Device::CPU_KIND => Box::new(Cpu::new(plan.clone(), &config, allocator)?),
            Device::CUDA_KIND => Box::new(Cuda::new(plan.clone(), &config, allocator)?),
            _ => return Err(config.device.unknown()),
        };
        Ok(Optimizer::on(backend, config, plan, log))
    }

    /// An optimizer on a backend whose state is zero.
    fn on(backend: Box<dyn Backend>, config: Config, plan: Arc<Plan>, log: Log) -> Optimizer {
        let clocks = vec![Clock { step: 0, weight: 1.0 }; plan.params.len()];
        Optimizer {
            backend,
            next: clocks.clone(),
            clocks,
            records: plan.factors.iter().map(|f| FactorRecord::new(f.epsilon)).collect(),
            totals: Totals::default(),
            log,
            orders: Vec::with_capacity(plan.blocks.len()),
            deferred: None,
            lost: false,
            config,
            plan,
        }
    }

    /// The hyperparameters.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The clock of every parameter.
    pub fn clocks(&self) -> &[Clock] {
        &self.clocks
    }

    /// The record of every factor.
    pub fn records(&self) -> &[FactorRecord] {
        &self.records
    }

    /// Waits until all work is done. Tells of a step that the device refused meanwhile.
    pub fn synchronize(&mut self) -> Result<()> {
        self.settle()?;
        self.deferred.take().map_or(Ok(()), Err)
    }

    /// Brings clocks, records and totals up to date with a device that works on its own.
    pub fn settle(&mut self) -> Result<()> {
        let mut news = News::default();
        self.backend.settle(&mut news)?;
        if let Err(error) = self.hear(news) {
            self.deferred = Some(error);
        }
        Ok(())
    }

    /// Whether a device failed in the middle of a step, so that parameters and state are in doubt.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// One step: updates the parameters in place. On an error, nothing has changed (unless
    /// [`Optimizer::is_lost`]).
    ///
    /// The tensors must be valid for the call, disjoint where written, and in the plan's order.
    pub fn step(&mut self, tensors: &Tensors, options: StepOptions) -> Result<Outcome> {
        if let Some(error) = self.deferred.take() {
            return Err(error);
        }
        let begun = Instant::now();
        self.schedule(tensors, options);
        let waits = self.next_is_check(tensors);
        self.timed(Verb::Inspect, |this| this.backend.inspect(tensors, &mut this.orders, waits))?;
        if let Some(order) = self.orders.iter().find(|o| !o.squared_norm.is_finite()) {
            let error = self.not_finite(self.plan.blocks[order.block].param);
            if self.config.nonfinite == Nonfinite::Error {
                return Err(error);
            }
            self.totals.skipped_steps += 1;
            (self.log)(Level::Warning, &format!("step skipped: {}", error.message));
            return Ok(Outcome::Skipped);
        }
        std::mem::swap(&mut self.clocks, &mut self.next);
        self.totals.steps += 1;
        let outcome = self.take_step(tensors).map_err(|error| self.lose(error))?;
        self.totals.seconds_total += begun.elapsed().as_secs_f64();
        Ok(outcome)
    }

    /// The part of a step that writes.
    fn take_step(&mut self, tensors: &Tensors) -> Result<Outcome> {
        self.timed(Verb::Accumulate, |this| this.backend.accumulate(tensors, &this.orders))?;
        if self.fault() == InjectFault::Panic {
            panic!("injected fault: panic");
        }
        if !self.check(tensors)? {
            return Ok(Outcome::Skipped);
        }
        let mut overflowed = 0;
        self.timed(Verb::Apply, |this| {
            overflowed = this.backend.apply(tensors, &this.orders)?;
            Ok(())
        })?;
        self.remark_overflow(overflowed as u64);
        Ok(Outcome::Stepped)
    }

    /// An error of the device in the middle of a step leaves nothing to rely on, and says so.
    fn lose(&mut self, mut error: Error) -> Error {
        if error.kind != Kind::NotFinite {
            self.lost = true;
            error.message += "; the step was under way: parameters and state are lost, load a checkpoint into a new optimizer";
        }
        error
    }

    fn not_finite(&self, param: usize) -> Error {
        let name = &self.plan.params[param].spec.name;
        let message = format!(
            "the gradient of parameter '{name}' is not finite, or its square overflows; expected finite values"
        );
        Error::new(Kind::NotFinite, message).at(param)
    }

    fn remark_overflow(&self, blocks: u64) {
        if blocks > 0 {
            let line =
                format!("the direction of {blocks} blocks overflowed and was left out; use a larger epsilon");
            (self.log)(Level::Warning, &line);
        }
    }

    /// Writes the orders of all blocks that take part, and the clocks as they will be.
    fn schedule(&mut self, tensors: &Tensors, options: StepOptions) {
        self.orders.clear();
        self.next.copy_from_slice(&self.clocks);
        for (index, param) in self.plan.params.iter().enumerate() {
            if tensors.grads[index].is_none() {
                continue;
            }
            let tick = tick(&self.config, self.clocks[index]);
            self.next[index] = tick.clock;
            let order = order(&self.config, param, &tick, options);
            self.orders.extend(param.blocks.clone().map(|block| BlockOrder { block, ..order }));
        }
    }

    /// Whether the scheduled step checks any parameter.
    fn next_is_check(&self, tensors: &Tensors) -> bool {
        let mut parts = self.next.iter().zip(tensors.grads);
        parts.any(|(clock, grad)| grad.is_some() && cadence::is_check(&self.config, clock.step))
    }

    /// The fault that is to happen in the current step.
    fn fault(&self) -> InjectFault {
        if self.totals.steps >= self.config.inject_fault_step as u64 {
            self.config.inject_fault
        } else {
            InjectFault::None
        }
    }

    fn timed(&mut self, verb: Verb, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let begun = Instant::now();
        let result = work(self);
        self.totals.seconds[verb as usize] += begun.elapsed().as_secs_f64();
        result
    }
}

/// A clock's next tick, and how the gradient enters the statistics in it.
struct Tick {
    clock: Clock,
    decay: f64,
    gain: f64,
}

/// L = w·S with a stored S: L ← βL + (1−β)GGᵀ becomes w ← βw, S ← S + (1−β)/w·GGᵀ.
fn tick(config: &Config, clock: Clock) -> Tick {
    let beta = config.beta2;
    let step = clock.step + 1;
    if beta >= 1.0 {
        return Tick { clock: Clock { step, weight: 1.0 }, decay: 1.0, gain: 1.0 };
    }
    let weight = clock.weight * beta;
    if weight < LEAST_WEIGHT {
        return Tick { clock: Clock { step, weight: 1.0 }, decay: weight, gain: 1.0 - beta };
    }
    Tick { clock: Clock { step, weight }, decay: 1.0, gain: (1.0 - beta) / weight }
}

fn order(config: &Config, param: &ParamPlan, tick: &Tick, options: StepOptions) -> BlockOrder {
    let t = tick.clock.step;
    let lr = options.lr.unwrap_or(config.lr);
    let decay = config.weight_decay * param.spec.weight_decay_scale;
    let (coupled, decoupled) = if config.decoupled_weight_decay { (0.0, decay) } else { (decay, 0.0) };
    let direction = if !param.factors.is_empty() && cadence::is_preconditioned(config, t) {
        Direction::Preconditioned
    } else if config.grafting == Grafting::None {
        Direction::Zero
    } else {
        Direction::Grafted
    };
    BlockOrder {
        block: 0,
        direction,
        grad_scale: options.grad_scale,
        coupled_decay: coupled,
        decoupled_decay: decoupled,
        lr: lr * param.spec.lr_scale,
        step_lr: lr,
        filter_correction: cadence::bias_correction(config.bias_correction, config.beta1, t),
        moment_correction: cadence::bias_correction(
            config.grafting == Grafting::Adam,
            config.grafting_beta2,
            t,
        ),
        statistic_decay: tick.decay,
        statistic_gain: tick.gain,
        squared_norm: 0.0,
    }
}

fn check_specs(config: &Config, specs: &[ParamSpec]) -> Result<()> {
    if specs.is_empty() {
        return Err(Error::invalid("count = 0: expected at least one parameter"));
    }
    let mut names: Vec<(&str, usize)> = specs.iter().enumerate().map(|(i, s)| (s.name.as_str(), i)).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        let (first, second) = (pair[0].1, pair[1].1);
        return Err(Error::invalid(format!(
            "parameters {first} and {second} are both named '{}'; expected unique names",
            pair[0].0
        ))
        .at(second));
    }
    for (index, spec) in specs.iter().enumerate() {
        let refuse = |field: &str, value: f64, expected: &str| {
            let name = &spec.name;
            Err(Error::invalid(format!("parameter '{name}': {field} = {value}: expected {expected}"))
                .at(index))
        };
        if !(spec.lr_scale.is_finite() && spec.lr_scale > 0.0) {
            return refuse("lr_scale", spec.lr_scale, "a number > 0 (foam_param_init sets 1)");
        }
        if !(spec.weight_decay_scale.is_finite() && spec.weight_decay_scale >= 0.0) {
            return refuse("weight_decay_scale", spec.weight_decay_scale, "a number >= 0");
        }
        if !(spec.root.is_finite() && spec.root >= 0.0) {
            return refuse("root", spec.root, "a number >= 0, 0 for the configuration's");
        }
        if spec.grafting_only && config.grafting == Grafting::None {
            let name = &spec.name;
            return Err(Error::invalid(format!(
                "parameter '{name}' is grafting-only but grafting = none; expected sgd, adagrad, rmsprop or adam"
            ))
            .at(index));
        }
    }
    Ok(())
}

impl Optimizer {
    /// Copies a state buffer out.
    pub fn read_slot(&mut self, slot: plan::SlotId, bytes: &mut [u8]) -> Result<()> {
        self.backend.read(slot, bytes)
    }

    /// Takes over the state of a checkpoint that was checked against this optimizer.
    pub fn restore(&mut self, restored: crate::checkpoint::format::Restored) -> Result<()> {
        for (slot, bytes) in restored.buffers.iter().enumerate() {
            self.backend.write(slot, bytes)?;
        }
        let dampings: Vec<f64> = restored.records.iter().map(|r| r.gauges.epsilon).collect();
        self.backend.restore(&restored.clocks, &dampings)?;
        self.clocks = restored.clocks;
        self.records = restored.records;
        self.totals.steps = restored.steps;
        self.totals.skipped_steps = restored.skipped_steps;
        Ok(())
    }
}

impl Optimizer {
    /// The plan of an optimizer that is not made: what [`Optimizer::new`] would refuse about the options and the
    /// parameters is refused.
    pub fn plan_for(config: &Config, specs: Vec<ParamSpec>) -> Result<Plan> {
        config.validate()?;
        check_specs(config, &specs)?;
        Plan::new(config, specs)
    }

    /// Takes over options that do not shape the state ([`Config::changed`] gives such a configuration).
    pub fn set_config(&mut self, config: Config) {
        let base = |plan: &Plan, factor: &plan::FactorPlan| {
            config.base_epsilon(plan.blocks[factor.block].dims.len(), factor.axis)
        };
        if self.plan.factors.iter().any(|factor| factor.epsilon != base(&self.plan, factor)) {
            let mut plan = Plan::clone(&self.plan);
            for (new, old) in plan.factors.iter_mut().zip(&self.plan.factors) {
                new.epsilon = base(&self.plan, old);
            }
            self.plan = Arc::new(plan);
        }
        self.backend.set_config(&config, &self.plan);
        self.config = config;
    }

    /// Finds what [`Optimizer::step`] would refuse, and changes nothing. A device that works on its own does not
    /// look at the gradients.
    pub fn validate_step(&mut self, tensors: &Tensors, options: StepOptions) -> Result<Outcome> {
        if let Some(error) = &self.deferred {
            return Err(error.clone());
        }
        if self.config.device.kind != Device::CPU_KIND {
            return Ok(Outcome::Stepped);
        }
        self.schedule(tensors, options);
        self.backend.inspect(tensors, &mut self.orders, false)?;
        match self.orders.iter().find(|order| !order.squared_norm.is_finite()) {
            None => Ok(Outcome::Stepped),
            Some(_) if self.config.nonfinite == Nonfinite::Skip => Ok(Outcome::Skipped),
            Some(order) => Err(self.not_finite(self.plan.blocks[order.block].param)),
        }
    }
}
