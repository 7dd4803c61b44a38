//! An optimizer that owns its State: what a handle of the C ABI holds.

use super::plan::{Content, ParamSpec, Plan, Size, Slot, SlotId, SlotKind, Sum};
use super::ports::Verb;
use super::ranks::{Division, Ranks, Shared, courier};
use super::rules::Rules;
use super::together::{self, Member};
use super::{Clock, Engine, Log};
use crate::comm::{Comm, agree};
use crate::config::{Config, Device, Grafting, Nonfinite};
use crate::device::{Binding, SharedSquare, Site, Sites};
use crate::error::{Error, Kind, Result};
use crate::memory::{Allocator, Counted, boxed, filled, listed, probe, reserved};
use crate::preconditioner::{FactorRecord, cadence};
use crate::tensor::TensorRef;
use std::time::Instant;

/// The tensors of one step, validated, in the order of the plan's parameters.
pub struct Tensors<'a> {
    /// Parameters, updated in place.
    pub params: &'a [TensorRef],
    /// Gradients; `None` for a parameter that takes no part.
    pub grads: &'a [Option<TensorRef>],
    /// The caller's stream, for devices that have streams.
    pub stream: *mut libc::c_void,
    /// Streams whose work so far comes before the step.
    pub after: &'a [*mut libc::c_void],
}

/// Steps ahead within which the next check is looked for.
const FARTHEST_CHECK: u64 = 1 << 20;

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

/// An optimizer: the engine, and the State that it works on.
pub struct Optimizer {
    pub(super) engine: Engine,
    /// Address of every array of the state.
    arrays: Vec<u64>,
    sites: Vec<Site>,
    /// An error that a readback brought when no step was under way; the next call reports it.
    pub(super) deferred: Option<Error>,
    /// A device failed in the middle of a step.
    lost: bool,
    /// The ranks that share the work; none alone.
    pub(super) ranks: Option<Box<Ranks>>,
    /// Who of them has which block.
    division: Option<Counted<Division>>,
}

impl Optimizer {
    /// An optimizer for `specs`, at its first state.
    pub fn new(config: Config, specs: Vec<ParamSpec>, allocator: Allocator, log: Log) -> Result<Optimizer> {
        config.validate()?;
        check_specs(&config, &specs)?;
        if config.device.kind == Device::CPU_KIND && matches!(allocator, Allocator::System) {
            let sizes = specs.iter().enumerate().map(|(index, spec)| Size::of(&config, index, spec));
            let need = sizes.map(|size| Ok(size?.state)).sum::<Result<Sum>>()?;
            probe(need.0, "the optimizer's state")?;
        }
        let plan = Plan::new(&config, specs)?;
        Optimizer::with_plan(config, plan, allocator, log)
    }

    /// An optimizer that shares the work on `specs` with the other ranks of `comm`. What one rank refuses, all do.
    pub fn with_ranks(
        config: Config,
        specs: Vec<ParamSpec>,
        mut comm: Comm,
        allocator: Allocator,
        log: Log,
    ) -> Result<Optimizer> {
        comm.courier = courier(config.device, allocator)?;
        let copies = || crate::memory::tried(specs.iter().map(ParamSpec::copy), "the parameters");
        let whole = copies().and_then(|specs| Optimizer::plan_for(&config, specs));
        let Shared { mut ranks, part } = Ranks::meet(comm, &config, &specs, whole)?;
        let made = Optimizer::with_plan(config, part, allocator, log);
        let (comm, mail) = ranks.post();
        let mut made = agree::all_well(comm, mail, made, "the creation")?;
        made.division = Some(ranks.division().clone());
        made.ranks = Some(boxed(ranks, crate::comm::WHAT)?);
        Ok(made)
    }

    fn with_plan(config: Config, plan: Plan, allocator: Allocator, log: Log) -> Result<Optimizer> {
        let engine = Engine::new(config, plan, Some(allocator), log)?;
        let base = engine.device.state().unwrap_or(0);
        let places = engine.plan.arrays.iter().map(|extent| base + extent.offset as u64);
        let arrays = listed(places, "the addresses of the state")?;
        let sites = filled(Site::ABSENT, engine.plan.blocks.len(), "the places of the blocks")?;
        let mut made =
            Optimizer { engine, arrays, sites, deferred: None, lost: false, ranks: None, division: None };
        let words = made.words(&made.engine.clocks, &made.engine.records)?;
        made.store_words(&words)?;
        Ok(made)
    }

    /// The hyperparameters.
    pub fn config(&self) -> &Config {
        &self.engine.config
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.engine.plan
    }

    /// The clock of a parameter: its blocks take part together.
    pub fn clock(&self, param: usize) -> Clock {
        let blocks = &self.plan().params[param].blocks;
        if blocks.is_empty() { Clock::START } else { self.engine.clocks[blocks.start] }
    }

    /// The record of every factor.
    pub fn records(&self) -> &[FactorRecord] {
        &self.engine.records
    }

    /// Waits until all work is done. Tells of a step that the device refused meanwhile.
    pub fn synchronize(&mut self) -> Result<()> {
        self.settle()?;
        self.settle_ranks()?;
        self.deferred.take().map_or(Ok(()), Err)
    }

    /// Tells of an exchange that only the device knows to have failed.
    fn settle_ranks(&mut self) -> Result<()> {
        let Some(ranks) = &mut self.ranks else { return Ok(()) };
        ranks.settle().inspect_err(|_| self.lost = true)
    }

    /// Brings clocks, records and totals up to date with the device.
    pub fn settle(&mut self) -> Result<()> {
        if !self.engine.device.has_news() {
            return Ok(());
        }
        self.engine.ask()?;
        if let Err(error) = self.engine.report_refused() {
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
        if self.ranks.is_none() {
            return together::step(&mut [Member::new(self, tensors, options)]);
        }
        if let Some(error) = self.deferred.take() {
            return Err(self.refuse_together(error));
        }
        let begun = Instant::now();
        let outcome = self.step_together(tensors, options, false)?;
        self.engine.totals.seconds_total += begun.elapsed().as_secs_f64();
        Ok(outcome)
    }

    /// Points the device at the state and the tensors. Gives the rules of the step, and whether it checks.
    pub(super) fn begin(
        &mut self,
        tensors: &Tensors,
        options: StepOptions,
        ranks: Option<&Ranks>,
    ) -> Result<(Rules, bool)> {
        self.engine.recording = self.engine.device.is_recording(tensors.stream)?;
        if !self.engine.recording && self.engine.device.was_recorded() {
            // Steps may have been taken without the host: the clocks say what is due.
            self.settle()?;
            self.deferred.take().map_or(Ok(()), Err)?;
        }
        let lr = options.lr.unwrap_or(self.engine.config.lr);
        let rules = Rules::new(&self.engine.config, -lr, options.grad_scale);
        let waits = self.place_blocks(tensors, ranks);
        let binding = Binding {
            read: &self.arrays,
            write: &self.arrays,
            copies: &[],
            sites: Sites::Listed(&self.sites),
            infos: (0, 0),
            workspace: (0, 0),
            stream: tensors.stream,
            after: tensors.after,
            joint: true,
            strict: self.engine.config.nonfinite == Nonfinite::Error,
            // Ranks agree before the first write.
            waits: waits || ranks.is_some(),
        };
        // SAFETY: the state is ours, and the tensors are valid for the call.
        unsafe { self.engine.device.bind(&binding)? };
        if self.engine.resumes && !self.engine.recording {
            self.engine.resume_refreshes()?;
            self.engine.resumes = false;
        }
        Ok((rules, waits))
    }

    /// The part of a step that writes.
    pub(super) fn take_step(&mut self, rules: &Rules, waits: bool) -> Result<Outcome> {
        if self.submit(rules, waits)? { self.conclude(rules) } else { Ok(Outcome::Stepped) }
    }

    /// The part of a step that writes, as far as nothing has to be waited for. Says whether [`Optimizer::conclude`]
    /// must follow.
    pub(super) fn submit(&mut self, rules: &Rules, waits: bool) -> Result<bool> {
        for verb in self.engine.plan.preconditioner.order() {
            match verb {
                Verb::Accumulate => self.engine.accumulate(rules)?,
                Verb::Apply => self.engine.apply(rules)?,
                Verb::Check if waits && self.engine.begin_check(rules)? => return Ok(true),
                Verb::Check => {}
            }
        }
        self.complete()?;
        Ok(false)
    }

    /// The rest of a step that checks.
    pub(super) fn conclude(&mut self, rules: &Rules) -> Result<Outcome> {
        let goes_on = self.engine.end_check(rules);
        if goes_on.as_ref().is_err_and(|cause| cause.kind != Kind::NotFinite) {
            return goes_on.map(|_| Outcome::Skipped);
        }
        let order = self.engine.plan.preconditioner.order();
        // A step that was held back still counts what was put on the queue before.
        if order.last() == Some(&Verb::Apply) && matches!(goes_on, Ok(true)) {
            self.engine.apply(rules)?;
        }
        self.complete()?;
        goes_on.map(|taken| if taken { Outcome::Stepped } else { Outcome::Skipped })
    }

    /// All work of a step has been put on the queue.
    fn complete(&mut self) -> Result<()> {
        self.engine.device.finish()?;
        self.engine.warn_left_out(self.engine.device.left_out());
        Ok(())
    }

    /// An error of the device in the middle of a step leaves nothing to rely on, and says so.
    pub(super) fn lose(&mut self, error: Error) -> Error {
        if error.kind == Kind::NotFinite {
            return error;
        }
        self.lost = true;
        error.saying(
            "; the step was under way: parameters and state are lost, load a checkpoint into a new optimizer",
        )
    }

    /// Writes down where every block is, and which take part. Says whether any of them is due for a check.
    fn place_blocks(&mut self, tensors: &Tensors, ranks: Option<&Ranks>) -> bool {
        let engine = &mut self.engine;
        let mut waits = false;
        for (index, param) in engine.plan.params.iter().enumerate() {
            // Of a sharded parameter the owner's blocks lie in memory of their own.
            let sharded = ranks.and_then(|ranks| ranks.sharded_takes_part(index));
            if !sharded.unwrap_or(tensors.grads[index].is_some()) {
                for block in param.blocks.clone() {
                    self.sites[block].active = false;
                    engine.takes_part[block] = false;
                }
                continue;
            }
            let own = tensors.params[index];
            for block in param.blocks.clone() {
                let offset = engine.plan.blocks[block].offset;
                let staged = ranks.and_then(|ranks| ranks.staged(index, block)).flatten();
                let here = tensors.grads[index].map(|grad| {
                    let at = |tensor: TensorRef| tensor.data as u64 + (offset * tensor.dtype.size()) as u64;
                    (at(own), at(grad), grad.dtype)
                });
                let Some((value, grad, grad_dtype)) = staged.or(here) else { continue };
                self.sites[block] = Site {
                    param: value,
                    grad,
                    grad_dtype,
                    lr_scale: param.spec.lr_scale,
                    decay: engine.config.weight_decay * param.spec.weight_decay_scale,
                    active: true,
                    ..Site::ABSENT
                };
                engine.takes_part[block] = true;
            }
            // Of some parameters another rank owns all blocks.
            let next = engine.clocks.get(param.blocks.start).map_or(0, |clock| clock.step) + 1;
            let mut factors = param.factors.clone();
            let due = |factor: usize| {
                engine.plan.factors[factor].is_preconditioned()
                    && (cadence::is_due(&engine.config, next, engine.records[factor].has_basis())
                        || engine.adopts(factor, next))
            };
            waits = waits || factors.any(due);
        }
        waits
    }

    /// How many steps come before the next check, if all parameters take part; `u64::MAX` if none is due for long.
    pub fn plain_steps(&self) -> u64 {
        let engine = &self.engine;
        let (mut least, mut last) = (u64::MAX, None);
        for (factor, record) in engine.plan.factors.iter().zip(&engine.records) {
            let since = record.counters.pending_since;
            let state = (engine.clocks[factor.block].step, record.has_basis(), since);
            if !factor.is_preconditioned() || last == Some(state) {
                continue;
            }
            last = Some(state);
            let delay = engine.config.refresh_delay;
            let is_due = |more: &u64| {
                let next = state.0 + more + 1;
                cadence::is_due(&engine.config, next, state.1) || (delay > 0 && record.adopts(delay, next))
            };
            least = (0..least.min(FARTHEST_CHECK)).find(is_due).unwrap_or(least);
        }
        least
    }

    /// Copies a slot of the state out, as a checkpoint has it.
    pub fn read_slot(&mut self, slot: SlotId, bytes: &mut [u8]) -> Result<()> {
        let at = self.slot_address(slot, bytes.len())?;
        if let Some((shared, root)) = self.shared_square(slot) {
            // SAFETY: a square of the plan, and as many bytes.
            return unsafe { self.engine.device.read_shared(&shared, root, bytes) };
        }
        // SAFETY: the slot has that many bytes.
        unsafe { self.engine.device.read(at, bytes) }
    }

    /// Copies a slot of the state in, as a checkpoint has it.
    pub fn write_slot(&mut self, slot: SlotId, bytes: &[u8]) -> Result<()> {
        let at = self.slot_address(slot, bytes.len())?;
        if let Some((shared, root)) = self.shared_square(slot) {
            // SAFETY: a square of the plan, and as many bytes.
            return unsafe { self.engine.device.write_shared(bytes, &shared, root) };
        }
        // SAFETY: the slot has that many bytes.
        unsafe { self.engine.device.write(bytes, at) }
    }

    fn slot_address(&self, slot: SlotId, len: usize) -> Result<u64> {
        let bytes = self.plan().slots[slot].saved_bytes();
        if bytes != len {
            return Err(Error::invalid(format!("a slot of the state has {bytes} bytes, not {len}")));
        }
        Ok(self.place_in_memory(slot))
    }

    fn place_in_memory(&self, slot: SlotId) -> u64 {
        let (array, offset) = self.plan().place_of(slot);
        self.arrays[array] + offset as u64
    }

    /// The square that a slot shares with another, and whether it is the inverse root's.
    fn shared_square(&self, slot: SlotId) -> Option<(SharedSquare, bool)> {
        let Slot { kind, block, axis, precision, .. } = self.plan().slots[slot];
        if !matches!(kind, SlotKind::Statistic | SlotKind::RootDiagonal) {
            return None;
        }
        let factor = &self.plan().factors[self.plan().blocks[block].factors.start + axis?];
        let shared = SharedSquare {
            square: self.place_in_memory(factor.statistic?),
            diagonal: self.place_in_memory(factor.root_diagonal?),
            side: factor.dim,
            precision,
        };
        Some((shared, kind == SlotKind::RootDiagonal))
    }

    /// Takes over clocks (by parameter), records (by factor of the whole plan) and totals that were checked against this optimizer.
    pub fn restore(
        &mut self,
        clocks: Vec<Clock>,
        records: Vec<FactorRecord>,
        steps: u64,
        skipped_steps: u64,
    ) -> Result<()> {
        let mut own = reserved(self.engine.records.len(), "the records")?;
        own.extend(
            (0..records.len()).filter(|factor| self.own_factor(*factor).is_some()).map(|f| records[f]),
        );
        let records: Vec<FactorRecord> = own;
        let mut by_block = reserved(self.engine.clocks.len(), "the clocks")?;
        for (param, clock) in self.engine.plan.params.iter().zip(clocks) {
            by_block.extend(param.blocks.clone().map(|_| clock));
        }
        let words = self.words(&by_block, &records)?;
        self.engine.clocks = by_block;
        self.engine.records = records;
        self.engine.totals.steps = steps;
        self.engine.totals.skipped_steps = skipped_steps;
        self.engine.resumes = self.engine.config.refresh_delay > 0;
        self.deferred = None;
        self.store_words(&words).map_err(|error| self.abandon(error))
    }

    /// A load that stopped between its writes leaves nothing to rely on, and says so.
    pub fn abandon(&mut self, error: Error) -> Error {
        self.lost = true;
        error.saying("; the load was under way: the state is lost, load a checkpoint into a new optimizer")
    }

    /// Clocks (by block) and records (by factor) as the arrays of the state hold them: one list per array.
    fn words(&self, clocks: &[Clock], records: &[FactorRecord]) -> Result<Vec<(usize, Vec<u8>)>> {
        let plan = self.plan();
        let mut lists = reserved(2 * plan.stacks.len(), "the lists of clocks and records")?;
        for (number, stack) in plan.stacks.iter().enumerate() {
            for content in [Content::Clock, Content::Record] {
                let Some(array) = plan.array(number, content) else { continue };
                let mut words: Vec<u8> = reserved(plan.arrays[array].bytes, "clocks and records")?;
                for block in &stack.blocks {
                    match content {
                        Content::Clock => words.extend_from_slice(bytemuck::bytes_of(&clocks[*block])),
                        _ => {
                            let own = &records[plan.blocks[*block].factors.clone()];
                            words.extend_from_slice(bytemuck::cast_slice(own));
                        }
                    }
                }
                lists.push((array, words));
            }
        }
        Ok(lists)
    }

    fn store_words(&mut self, lists: &[(usize, Vec<u8>)]) -> Result<()> {
        for (array, words) in lists {
            // SAFETY: the array of all blocks of a stack, by the plan.
            unsafe { self.engine.device.write(words, self.arrays[*array])? };
        }
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

    /// The plan of all blocks, whoever owns them.
    pub fn whole(&self) -> &Plan {
        self.division.as_ref().map_or(&self.engine.plan, |division| &division.whole)
    }

    /// Who has which block; none alone.
    pub fn division(&self) -> Option<&Division> {
        self.division.as_deref()
    }

    /// The ranks that share the work; none alone.
    pub fn ranks(&self) -> Option<&Ranks> {
        self.ranks.as_deref()
    }

    /// The ranks, taken out so that the rest can be read meanwhile; [`Optimizer::give_ranks_back`] follows.
    pub fn lend_ranks(&mut self) -> Option<Box<Ranks>> {
        self.ranks.take()
    }

    /// See [`Optimizer::lend_ranks`].
    pub fn give_ranks_back(&mut self, ranks: Box<Ranks>) {
        self.ranks = Some(ranks);
    }

    /// The outcome of something that all ranks do, if it is good on every rank.
    pub fn together<T>(&mut self, outcome: Result<T>, doing: &str) -> Result<T> {
        let settled = self.settle_ranks();
        let Some(ranks) = &mut self.ranks else { return outcome };
        let outcome = settled.and(outcome);
        let (comm, mail) = ranks.post();
        agree::all_well(comm, mail, outcome, doing)
    }

    /// The number of a block of the whole plan here; none if another rank owns it.
    pub fn place(&self, block: usize) -> Option<usize> {
        self.division.as_ref().map_or(Some(block), |division| division.place(block))
    }

    /// The owner of a block of the whole plan.
    pub fn owner(&self, block: usize) -> usize {
        self.division.as_ref().map_or(0, |division| division.owners[block] as usize)
    }

    /// The slot of this rank that is `slot` of the whole plan; none if another rank has it.
    pub fn own_slot(&self, slot: SlotId) -> Option<SlotId> {
        let whole = self.whole();
        let block = whole.slots[slot].block;
        let here = &self.plan().blocks[self.place(block)?];
        Some(here.slots.start + slot - whole.blocks[block].slots.start)
    }

    /// The factor of this rank that is `factor` of the whole plan; none if another rank has it.
    pub fn own_factor(&self, factor: usize) -> Option<usize> {
        let whole = self.whole();
        let block = whole.factors[factor].block;
        let here = &self.plan().blocks[self.place(block)?];
        Some(here.factors.start + factor - whole.blocks[block].factors.start)
    }

    /// The ranks went apart, or the device failed: nothing here is to be relied on.
    pub(super) fn mark_lost(&mut self) {
        self.lost = true;
    }

    /// Takes over options that do not shape the state ([`Config::changed`] gives such a configuration).
    pub fn set_config(&mut self, config: Config) {
        if let Some(ranks) = &mut self.ranks {
            ranks.set_options(&config);
        }
        self.engine.config = config;
    }

    /// Finds what [`Optimizer::step`] would refuse, and changes nothing. The host waits for a device that works on its
    /// own.
    pub fn validate_step(&mut self, tensors: &Tensors, options: StepOptions) -> Result<Outcome> {
        if self.ranks.is_none() {
            return together::validate(&mut [Member::new(self, tensors, options)]);
        }
        if let Some(error) = self.deferred.clone() {
            return Err(self.refuse_together(error));
        }
        self.step_together(tensors, options, true)
    }
}

impl Engine {
    pub(super) fn not_finite(&self, param: usize) -> Error {
        let name = &self.plan.params[param].spec.name;
        let message = format!(
            "the gradient of parameter '{name}' is not finite, or its square overflows; expected finite values"
        );
        Error::new(Kind::NotFinite, message).at(param)
    }

    /// A joint step whose gradient is known not to be finite: nothing has changed.
    pub(super) fn refuse(&mut self, block: usize) -> Result<Outcome> {
        self.refuse_param(self.plan.blocks[block].param)
    }

    pub(super) fn refuse_param(&mut self, param: usize) -> Result<Outcome> {
        let error = self.not_finite(param);
        if self.config.nonfinite == Nonfinite::Error {
            return Err(error);
        }
        self.totals.skipped_steps += 1;
        self.warn(&format!("step skipped: {}", error.message));
        Ok(Outcome::Skipped)
    }

    /// Tells of the joint steps that the device did not take since the last readback. Such a step is an error, if
    /// the configuration says so; then nothing has changed since.
    pub(super) fn report_refused(&mut self) -> Result<()> {
        self.warn_left_out(self.readback.left_out);
        let refused = self.readback.refused;
        if refused == 0 {
            return Ok(());
        }
        self.totals.steps -= refused.min(self.totals.steps);
        let Some(offender) = self.readback.offender else { return Ok(()) };
        let mut error = self.not_finite(offender);
        if self.config.nonfinite == Nonfinite::Error {
            self.device.reopen();
            if refused > 1 {
                let after = refused - 1;
                error = error
                    .saying(&format!("; it was found {after} steps ago, and these were not taken either"));
            }
            return Err(error);
        }
        self.totals.skipped_steps += refused;
        self.warn(&format!("{refused} steps skipped: {}", error.message));
        Ok(())
    }
}

fn check_specs(config: &Config, specs: &[ParamSpec]) -> Result<()> {
    if specs.is_empty() {
        return Err(Error::invalid("count = 0: expected at least one parameter"));
    }
    let mut names =
        listed(specs.iter().enumerate().map(|(i, s)| (s.name.as_str(), i)), "the names of the parameters")?;
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
