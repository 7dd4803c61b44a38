//! A step that all ranks take, or none: of one optimizer, or of several with the collectives of one.

use super::exchange::Way;
use super::note::tell;
use super::{Ranks, note};
use crate::comm::courier::NOBODY;
use crate::comm::{Collective, WORD};
use crate::config::Nonfinite;
use crate::engine::handle::{Optimizer, Outcome, StepOptions, Tensors};
use crate::engine::rules::Rules;
use crate::error::{Error, Kind, Result};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// What became of the parameters once values were exchanged.
pub const WRITTEN: &str = "; parameters were written on some ranks and are no longer equal: they are lost, load a checkpoint into a new optimizer";
/// What became of them before.
const UNWRITTEN: &str = "; no parameter of this rank was written, but other ranks may have gone on: load a checkpoint into a new optimizer";

/// One optimizer's part of a step.
pub struct Party<'a> {
    pub optimizer: &'a mut Optimizer,
    pub ranks: Box<Ranks>,
    /// Its tensors; none if this rank refuses the step.
    pub tensors: Option<&'a Tensors<'a>>,
    pub options: StepOptions,
    /// Why this rank cannot take the step.
    pub fault: Option<Error>,
    /// The first parameter here whose gradient is not finite, or [`NOBODY`].
    pub bad: i32,
    begun: Option<(Rules, bool)>,
}

impl<'a> Party<'a> {
    /// The part of an optimizer that shares its work; [`Party::end`] follows.
    pub fn new(
        optimizer: &'a mut Optimizer,
        tensors: Option<&'a Tensors<'a>>,
        options: StepOptions,
        fault: Option<Error>,
    ) -> Result<Party<'a>> {
        let Some(ranks) = optimizer.ranks.take() else {
            return Err(Error::invalid(
                "this optimizer has no other ranks; expected one from foam_create_ranks",
            ));
        };
        Ok(Party { optimizer, ranks, tensors, options, fault, bad: NOBODY, begun: None })
    }

    /// The optimizer has its ranks again.
    pub fn end(self) {
        self.optimizer.ranks = Some(self.ranks);
    }

    /// Begins the step on this rank's blocks, and looks at their gradients.
    fn look(&mut self) {
        let Some(tensors) = self.tensors else { return };
        let mut look = || -> Result<()> {
            let (rules, waits) = self.optimizer.begin(tensors, self.options, Some(&self.ranks))?;
            let block = self.optimizer.engine.inspect(&rules)?;
            self.bad = block.map_or(NOBODY, |block| self.optimizer.engine.plan.blocks[block].param as i32);
            self.begun = Some((rules, waits));
            Ok(())
        };
        if let Err(error) = look() {
            self.fault = Some(error);
        }
    }
}

/// The step of all parties. They have the same ranks; the first one's communicator serves all.
pub fn run(parties: &mut [Party], validates: bool) -> Result<Outcome> {
    let outcome = follow(parties).and_then(|()| take(parties, validates));
    let rested = parties.iter_mut().try_for_each(|party| party.ranks.comm.courier.rest());
    let outcome = match rested {
        Ok(()) => outcome,
        Err(error) => outcome.and(Err(Error { kind: Kind::Collective, ..error }.saying(WRITTEN))),
    };
    if outcome.as_ref().is_err_and(|error| error.kind == Kind::Collective) {
        // The ranks are where nobody knows.
        parties.iter_mut().for_each(|party| party.optimizer.mark_lost());
    }
    outcome
}

fn follow(parties: &mut [Party]) -> Result<()> {
    for party in parties {
        let Some(tensors) = party.tensors else { continue };
        if let Err(error) = party.ranks.comm.courier.follow(tensors.stream) {
            party.fault = Some(error);
        }
    }
    Ok(())
}

/// A collective that failed leaves the ranks where nobody knows: the message says what became of the parameters.
/// Other errors are the same on every rank, and leave all as it was.
fn apart(error: Error, consequence: &str) -> Error {
    if error.kind == Kind::Collective && !error.message.ends_with(WRITTEN) {
        return error.saying(consequence);
    }
    error
}

fn take(parties: &mut [Party], validates: bool) -> Result<Outcome> {
    let offender = match meet(parties, validates) {
        Ok(offender) => offender,
        Err(error) => {
            withdraw(parties)?;
            return Err(apart(error, UNWRITTEN));
        }
    };
    if let Some((place, param)) = offender {
        withdraw(parties)?;
        let engine = &mut parties[place].optimizer.engine;
        return if !validates {
            engine.refuse_param(param)
        } else if engine.config.nonfinite == Nonfinite::Skip {
            Ok(Outcome::Skipped)
        } else {
            Err(engine.not_finite(param))
        };
    }
    if validates {
        withdraw(parties)?;
        return Ok(Outcome::Stepped);
    }
    write(parties)
}

/// The step is not taken: devices forget what they have seen of it.
fn withdraw(parties: &mut [Party]) -> Result<()> {
    for party in parties {
        if let Err(error) = party.optimizer.engine.device.withdraw() {
            return Err(party.optimizer.lose(error));
        }
    }
    Ok(())
}

/// All that comes before the first write: the notes, and gradients on their way to the owners.
fn meet(parties: &mut [Party], validates: bool) -> Result<note::Offender> {
    let sharded = parties.iter().any(|party| party.ranks.has_sharded());
    if !sharded {
        // All gradients are here: whether they are finite goes with the first note.
        parties.iter_mut().for_each(Party::look);
        let offender = tell(parties, validates, true)?;
        measure(parties)?;
        return Ok(offender);
    }
    tell(parties, validates, false)?;
    measure(parties)?;
    exchange(parties, Way::Bring, true)?;
    parties.iter_mut().for_each(Party::look);
    tell(parties, validates, true)
}

fn measure(parties: &mut [Party]) -> Result<()> {
    for party in parties {
        let Party { optimizer, ranks, .. } = party;
        // The others go on into the exchange: a rank that cannot is out of step.
        let measured = ranks.measure(&optimizer.engine.plan);
        measured.map_err(|error| Error { kind: Kind::Collective, ..error })?;
    }
    Ok(())
}

/// Packs, makes one collective for all parties, and unpacks. Gives a rank that failed, if that is known.
fn exchange(parties: &mut [Party], way: Way, is_well: bool) -> Result<Option<usize>> {
    let (rank, size) = parties[0].ranks.rank_and_size();
    let (collective, own) = match way {
        Way::Spread => (Collective::Gather, rank..rank + 1),
        _ => (Collective::Exchange, 0..size),
    };
    let mut parcel = std::mem::take(&mut parties[0].ranks.parcel);
    let work = || -> Result<Option<usize>> {
        let (list, sizes) = (&*parties, |bytes: usize| bytes.next_multiple_of(WORD));
        let out = own.map(|r| list.iter().map(|party| sizes(party.ranks.leg(way).out[r])).sum::<usize>());
        let back =
            (0..size).map(|r| list.iter().map(|party| sizes(party.ranks.leg(way).back[r])).sum::<usize>());
        parcel.begin(out, back).map_err(|error| Error { kind: Kind::Collective, ..error })?;
        parties[0].ranks.comm.open(collective, &mut parcel)?;
        for r in 0..size {
            let (mut to, mut from) = (parcel.to(r), parcel.from(r));
            for party in parties.iter_mut() {
                (party.ranks.to[r], party.ranks.from[r]) = (to, from);
                let leg = party.ranks.leg(way);
                let (sent, received) = (leg.out[r], leg.back[r]);
                to += sent.next_multiple_of(WORD) as u64;
                from += received.next_multiple_of(WORD) as u64;
            }
        }
        let packed = if is_well { each(parties, |ranks, tensors| ranks.pack(way, tensors)) } else { Ok(()) };
        let failed = parties[0].ranks.comm.send(collective, &parcel, packed, is_well)?;
        if failed.is_none() && is_well {
            let unpacked = each(parties, |ranks, tensors| ranks.unpack(way, tensors));
            unpacked.map_err(|error| Error { kind: Kind::Collective, ..error })?;
        }
        Ok(failed)
    };
    let outcome = work();
    parties[0].ranks.parcel = parcel;
    outcome
}

fn each(parties: &mut [Party], work: impl Fn(&mut Ranks, &Tensors) -> Result<()>) -> Result<()> {
    parties.iter_mut().try_for_each(|party| match party.tensors {
        Some(tensors) => work(&mut party.ranks, tensors),
        None => Ok(()),
    })
}

/// The part of a step that writes. What fails now fails on one rank while the others have stepped: all are informed.
fn write(parties: &mut [Party]) -> Result<Outcome> {
    let taken = catch_unwind(AssertUnwindSafe(|| -> Result<()> {
        for party in parties.iter_mut() {
            if let Some((rules, waits)) = party.begun.take() {
                party.optimizer.take_step(&rules, waits).map_err(|error| party.optimizer.lose(error))?;
            }
        }
        Ok(())
    }));
    let is_well = matches!(taken, Ok(Ok(())));
    let (mut failed, mut ways) = (Ok(None), [None; 2]);
    if parties.iter().any(|party| party.ranks.has_sharded()) {
        ways[0] = Some(Way::Back);
    }
    if parties.iter().any(|party| party.ranks.has_replicated()) {
        ways[1] = Some(Way::Spread);
    }
    for way in ways.into_iter().flatten() {
        if matches!(failed, Ok(None)) {
            failed = exchange(parties, way, is_well);
        }
    }
    if !is_well {
        parties.iter_mut().for_each(|party| party.optimizer.mark_lost());
    }
    match taken {
        Err(payload) => resume_unwind(payload),
        Ok(Err(error)) => return Err(error),
        Ok(Ok(())) => {}
    }
    match failed {
        Ok(None) => Ok(Outcome::Stepped),
        Ok(Some(rank)) => {
            let message = format!("rank {rank} failed in the middle of the step");
            Err(Error::new(Kind::Collective, message).saying(WRITTEN))
        }
        Err(error) => Err(apart(error, WRITTEN)),
    }
}

impl Optimizer {
    /// Tells the other ranks that this one refuses a step, so that none of them waits for it.
    pub fn refuse_together(&mut self, error: Error) -> Error {
        if self.ranks.is_none() {
            return error;
        }
        let kept = error.clone();
        // A communicator that fails now has told the others in its own way.
        self.take_alone(None, StepOptions::default(), Some(error), false).err().unwrap_or(kept)
    }

    /// A step that all ranks take, or none.
    pub(in crate::engine) fn step_together(
        &mut self,
        tensors: &Tensors,
        options: StepOptions,
        validates: bool,
    ) -> Result<Outcome> {
        self.take_alone(Some(tensors), options, None, validates)
    }

    fn take_alone(
        &mut self,
        tensors: Option<&Tensors>,
        options: StepOptions,
        fault: Option<Error>,
        validates: bool,
    ) -> Result<Outcome> {
        let mut parties = [Party::new(self, tensors, options, fault)?];
        let outcome = run(&mut parties, validates);
        let [party] = parties;
        party.end();
        outcome
    }
}
