//! One step of several optimizers on one device, or of none of them; a step of one is the simplest case. The host
//! waits at most once, whatever the number of optimizers: what all of them have to know is asked for together.

use super::handle::{Optimizer, Outcome, StepOptions, Tensors};
use super::rules::Rules;
use crate::config::Nonfinite;
use crate::error::{Error, Kind, Result};
use crate::memory::reserved;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

/// One optimizer's part of a step.
pub struct Member<'a> {
    optimizer: &'a mut Optimizer,
    tensors: &'a Tensors<'a>,
    options: StepOptions,
    /// The rules of the step, and whether it checks.
    begun: Option<(Rules, bool)>,
}

impl<'a> Member<'a> {
    /// The part of an optimizer without other ranks.
    pub fn new(optimizer: &'a mut Optimizer, tensors: &'a Tensors<'a>, options: StepOptions) -> Member<'a> {
        Member { optimizer, tensors, options, begun: None }
    }
}

/// One step of all members, which are on one device and whose tensors are on one stream, or of none of them. On an
/// error nothing has changed, unless [`Optimizer::is_lost`].
pub fn step(members: &mut [Member]) -> Result<Outcome> {
    let begun = Instant::now();
    for member in members.iter_mut() {
        member.optimizer.deferred.take().map_or(Ok(()), Err)?;
    }
    if let Some((place, block)) = look(members)? {
        return members[place].optimizer.engine.refuse(block);
    }
    judge(members)?;
    let outcome = write(members);
    let seconds = begun.elapsed().as_secs_f64() / members.len() as f64;
    members.iter_mut().for_each(|member| member.optimizer.engine.totals.seconds_total += seconds);
    outcome
}

/// Finds what [`step`] would refuse, and changes nothing. The host waits for a device that works on its own.
pub fn validate(members: &mut [Member]) -> Result<Outcome> {
    for member in members.iter_mut() {
        let optimizer = &mut member.optimizer;
        if optimizer.engine.device.is_recording(member.tensors.stream)? {
            return Err(Error::new(
                Kind::Unsupported,
                "a validated step must wait for the device, but args.stream is being captured; expected another stream",
            ));
        }
        optimizer.settle()?;
        optimizer.deferred.clone().map_or(Ok(()), Err)?;
    }
    let mut found = look(members)?.map(|(place, block)| {
        let plan = members[place].optimizer.plan();
        (place, plan.blocks[block].param)
    });
    for (place, member) in members.iter_mut().enumerate() {
        let device = &mut member.optimizer.engine.device;
        let Some(verdict) = device.verdict() else { continue };
        device.finish()?;
        let mut bad = [0; 4];
        // SAFETY: the device keeps a word there.
        unsafe { device.read(verdict, &mut bad)? };
        let bad = i32::from_ne_bytes(bad);
        found = found.or((bad != i32::MAX).then_some((place, bad as usize)));
    }
    let Some((place, param)) = found else { return Ok(Outcome::Stepped) };
    let engine = &members[place].optimizer.engine;
    match engine.config.nonfinite {
        Nonfinite::Skip => Ok(Outcome::Skipped),
        Nonfinite::Error => Err(engine.not_finite(param)),
    }
}

/// Begins the step and looks at all gradients. Gives the first member and its block whose gradient is not finite, if
/// that is known.
fn look(members: &mut [Member]) -> Result<Option<(usize, usize)>> {
    for member in members.iter_mut() {
        member.begun = Some(member.optimizer.begin(member.tensors, member.options, None)?);
    }
    let mut found = None;
    for (place, member) in members.iter_mut().enumerate() {
        let Some((rules, _)) = &member.begun else { continue };
        let block = member.optimizer.engine.look(rules)?;
        found = found.or(block.map(|block| (place, block)));
    }
    Ok(found)
}

/// A device that works on its own takes the step of all members, or of none.
fn judge(members: &mut [Member]) -> Result<()> {
    let Some(own) = members[0].optimizer.engine.device.joint_gate() else { return Ok(()) };
    if members.len() == 1 {
        return members[0].optimizer.engine.device.judge(&[own]);
    }
    let mut gates = reserved(members.len(), "the optimizers of a step")?;
    gates.extend(members.iter().filter_map(|member| member.optimizer.engine.device.joint_gate()));
    members[0].optimizer.engine.device.judge(&gates)
}

/// The part of a step that writes. What fails now leaves nothing to rely on.
fn write(members: &mut [Member]) -> Result<Outcome> {
    let outcome = catch_unwind(AssertUnwindSafe(|| submit_all(members).and_then(|()| conclude_all(members))));
    if !matches!(&outcome, Ok(Ok(_)))
        && !matches!(&outcome, Ok(Err((_, cause))) if cause.kind == Kind::NotFinite)
    {
        members.iter_mut().for_each(|member| member.optimizer.mark_lost());
    }
    match outcome {
        Ok(outcome) => outcome.map_err(|(place, cause)| members[place].optimizer.lose(cause)),
        Err(payload) => resume_unwind(payload),
    }
}

/// Which member failed, and why.
type Failed = (usize, Error);

/// All that comes before the answers that a check waits for.
fn submit_all(members: &mut [Member]) -> std::result::Result<(), Failed> {
    for (place, member) in members.iter_mut().enumerate() {
        let Some((rules, waits)) = &mut member.begun else { continue };
        *waits = member.optimizer.submit(rules, *waits).map_err(|cause| (place, cause))?;
    }
    Ok(())
}

/// The rest of the checks. The first one waits; by then the answers to all have arrived.
fn conclude_all(members: &mut [Member]) -> std::result::Result<Outcome, Failed> {
    let (mut outcome, mut waited) = (Ok(Outcome::Stepped), false);
    for (place, member) in members.iter_mut().enumerate() {
        let Some((rules, true)) = &member.begun else { continue };
        if waited {
            member.optimizer.engine.device.arrived();
        }
        waited = true;
        match member.optimizer.conclude(rules) {
            Ok(Outcome::Stepped) => {}
            Ok(Outcome::Skipped) => outcome = outcome.and(Ok(Outcome::Skipped)),
            Err(cause) if cause.kind == Kind::NotFinite => outcome = outcome.and(Err((place, cause))),
            Err(cause) => return Err((place, cause)),
        }
    }
    outcome
}
