//! Algorithm 1, once: `accumulate`, `check` and `apply` over a State. The State is the arrays of stacks of equal
//! blocks ([`plan`]); an optimizer handle owns one ([`Optimizer`]), a call on a stack borrows the caller's
//! ([`session`]). Both run the same three verbs on the same [`Engine`], which submits them to a device.

pub mod cache;
mod check;
mod delay;
mod diagnose;
mod grafting;
mod handle;
pub mod owners;
pub mod plan;
pub mod ports;
pub mod ranks;
pub mod rules;
pub mod session;
pub mod stack;
pub mod stats;
pub mod together;

pub use handle::{Optimizer, Outcome, StepOptions, Tensors};
pub use rules::Clock;

use crate::config::{Config, Device as Place, InjectFault, MatmulPrecision};
use crate::device::cpu::Cpu;
use crate::device::gpu::Gpu;
use crate::device::{Device, INFO_IDLE, INFO_NOT_FINITE, Inspection, Readback};
use crate::error::{Error, Result};
use crate::memory::{Allocator, Counted, boxed, filled, listed};
use crate::preconditioner::diagnosis::Findings;
use crate::preconditioner::{FactorRecord, cadence, policy};
use plan::Plan;
use rules::Rules;
use stats::{Totals, Verb};
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

/// The three verbs over a State, and what the host knows of that State.
pub struct Engine {
    config: Config,
    plan: Counted<Plan>,
    device: Box<dyn Device>,
    /// The clock of every block, as far as the host knows it.
    clocks: Vec<Clock>,
    /// The record of every factor, as far as the host knows it.
    records: Vec<FactorRecord>,
    /// Which blocks take part in the step under way.
    takes_part: Vec<bool>,
    /// The step under way is recorded, not taken.
    recording: bool,
    /// The state is the caller's: clocks and records have to be read in every call.
    borrowed: bool,
    readback: Readback,
    /// Refreshes may be under way in a state that was loaded, and have not been begun here.
    resumes: bool,
    /// Steps since the last readback.
    unconfirmed: u64,
    lists: check::Lists,
    bases: Vec<bool>,
    totals: Totals,
    /// Findings that were reported.
    reported: Findings,
    log: Log,
}

impl Engine {
    /// An engine for `plan` on the configuration's device; without an allocator, state and workspace are borrowed.
    fn new(config: Config, plan: Plan, allocator: Option<Allocator>, log: Log) -> Result<Engine> {
        let plan = Counted::new(plan, "the plan")?;
        let keeps_diagonals = policy::adopts_diagonal(&config);
        let device: Box<dyn Device> = match config.device.kind {
            Place::CPU_KIND => {
                let threads = config.num_threads as usize;
                boxed(Cpu::new(plan.clone(), threads, keeps_diagonals, allocator)?, "the device")?
            }
            Place::CUDA_KIND => {
                let tf32 = config.matmul_precision == MatmulPrecision::Tf32;
                let made = Gpu::new(plan.clone(), config.device.id, keeps_diagonals, tf32, allocator)?;
                boxed(made, "the device")?
            }
            _ => return Err(config.device.unknown()),
        };
        Ok(Engine {
            clocks: filled(Clock::START, plan.blocks.len(), "the clocks")?,
            records: first_records(&plan)?,
            takes_part: filled(false, plan.blocks.len(), "the clocks")?,
            recording: false,
            borrowed: allocator.is_none(),
            readback: Readback::with_room(plan.blocks.len(), plan.factors.len())?,
            resumes: false,
            unconfirmed: 0,
            lists: check::Lists::with_room(
                plan.factors.len(),
                if device.is_synchronous() { 0 } else { plan.factors.len() },
            )?,
            bases: filled(false, plan.stacks.len(), "the clocks")?,
            totals: Totals::default(),
            reported: Findings::default(),
            config,
            plan,
            device,
            log,
        })
    }

    /// Looks at the gradients, before anything is written, and lets a device that works on its own decide about the
    /// step. Gives the first block whose gradient is not finite, if that is known.
    fn inspect(&mut self, rules: &Rules) -> Result<Option<usize>> {
        let found = self.look(rules)?;
        if let Some(gate) = self.device.joint_gate() {
            self.device.judge(&[gate])?;
        }
        Ok(found)
    }

    /// Looks at the gradients, as [`Engine::inspect`]; nothing is decided.
    fn look(&mut self, rules: &Rules) -> Result<Option<usize>> {
        let inspection = self.timed(Verb::Inspect, |this| this.device.inspect(rules))?;
        Ok(match inspection {
            Inspection::Known(block) => block,
            Inspection::Pending => None,
        })
    }

    /// First part of a step: advances the clocks of the blocks that take part, and adds their gradients to the
    /// statistics. Comes after `inspect`.
    fn accumulate(&mut self, rules: &Rules) -> Result<()> {
        self.totals.steps += u64::from(!self.recording);
        let knows_the_step = !self.borrowed || self.device.is_synchronous();
        if self.fault() == InjectFault::Panic && knows_the_step {
            panic!("injected fault: panic");
        }
        let adds = self.may_add(rules);
        self.timed(Verb::Accumulate, |this| this.device.accumulate(rules, adds))?;
        if self.recording {
            return Ok(());
        }
        for (clock, takes_part) in self.clocks.iter_mut().zip(&self.takes_part) {
            // What the device did, or will report in a readback that it could not do.
            *clock = if *takes_part { rules.tick(*clock).clock } else { *clock };
        }
        Ok(())
    }

    /// Whether a gradient of the step under way may enter the statistics. The device may have refused steps that the
    /// host has not heard of: a block's clock can be behind by as many.
    fn may_add(&mut self, rules: &Rules) -> bool {
        if self.borrowed || self.recording || rules.statistics_period == 1 {
            return true;
        }
        let unknown = self.unconfirmed;
        self.unconfirmed += 1;
        let mut own = self.clocks.iter().zip(&self.takes_part).filter(|(_, takes_part)| **takes_part);
        let gradients = |step| cadence::accumulations(rules.statistics_period as u64, step);
        own.any(|(clock, _)| gradients(clock.step.saturating_sub(unknown)) < gradients(clock.step + 1))
    }

    /// Last part of a step: moments, direction, momentum, and the parameters or their updates.
    fn apply(&mut self, rules: &Rules) -> Result<()> {
        let (plan, records) = (&self.plan, &self.records);
        for (basis, stack) in self.bases.iter_mut().zip(&plan.stacks) {
            let mut factors = stack.blocks.iter().flat_map(|block| plan.blocks[*block].factors.clone());
            // A recorded step may be taken when there is one.
            let unknown = self.borrowed || self.recording;
            *basis = factors.any(|factor| unknown || records[factor].has_basis());
        }
        self.timed(Verb::Apply, |this| this.device.apply(rules, &this.bases))
    }

    /// Asks the device what the host has to know, and takes it over. Refuses clocks and records that no verb wrote.
    fn ask(&mut self) -> Result<()> {
        self.device.readback(&mut self.readback)?;
        self.unconfirmed = 0;
        if self.borrowed {
            self.refuse_foreign_words()?;
        }
        let known = std::mem::take(&mut self.readback);
        if !self.borrowed {
            for (factor, (before, after)) in self.records.iter().zip(&known.records).enumerate() {
                self.warn_of_fallbacks(factor, before, after);
            }
        }
        self.totals.steps += known.replayed;
        self.clocks.copy_from_slice(&known.clocks);
        // A call that uses no records brings none.
        if !known.records.is_empty() {
            self.records.copy_from_slice(&known.records);
        }
        for (takes_part, info) in self.takes_part.iter_mut().zip(&known.infos) {
            *takes_part = info & (INFO_IDLE | INFO_NOT_FINITE) == 0;
        }
        self.readback = known;
        Ok(())
    }

    fn refuse_foreign_words(&self) -> Result<()> {
        let expected = "expected a state that foam_stack_reset and the verbs wrote";
        for (block, clock) in self.readback.clocks.iter().enumerate() {
            if let Some(fault) = clock.fault() {
                return Err(Error::invalid(format!("clock of block {block}: {fault}; {expected}")));
            }
        }
        for (plan, record) in self.plan.factors.iter().zip(&self.readback.records) {
            if let Some(fault) = record.fault() {
                let (block, axis) = (plan.block, plan.axis);
                let message = format!("record of block {block}, axis {axis}: {fault}; {expected}");
                return Err(Error::invalid(message).on_axis(axis));
            }
        }
        Ok(())
    }

    /// The fault that is to happen in the current step.
    fn fault(&self) -> InjectFault {
        if self.totals.steps >= self.config.inject_fault_step as u64 {
            self.config.inject_fault
        } else {
            InjectFault::None
        }
    }

    fn warn(&self, message: &str) {
        (self.log)(Level::Warning, message);
    }

    fn warn_left_out(&self, blocks: u64) {
        if blocks > 0 {
            self.warn(&format!(
                "the direction of {blocks} blocks overflowed and was left out; use a larger epsilon"
            ));
        }
    }

    fn timed<T>(&mut self, verb: Verb, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let begun = Instant::now();
        let result = work(self);
        self.totals.seconds[verb as usize] += begun.elapsed().as_secs_f64();
        result
    }
}

/// The record of every factor before its first check.
fn first_records(plan: &Plan) -> Result<Vec<FactorRecord>> {
    listed(plan.factors.iter().map(|factor| FactorRecord::new(factor.damping.at(0.0))), "the records")
}
