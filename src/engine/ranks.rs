//! A step that many ranks share. Every rank owns some blocks and holds their state; gradients come to the owners,
//! new values go back. Around the same three verbs, in this order:
//!
//! | collective | carries | when |
//! | --- | --- | --- |
//! | `all_gatherv` | a note: options, rates, which gradients there are, and whether all is well | every step |
//! | `all_to_allv` | gradients and values of sharded parameters, to the owners | if there are sharded parameters |
//! | `all_gatherv` | a note: whether what came is finite | likewise |
//! | `all_to_allv` | new values of sharded parameters, to who hold them | likewise |
//! | `all_gatherv` | new values of replicated parameters, to all | if there are replicated parameters |
//!
//! Nothing is written before all ranks have said that they can go on.

use super::handle::{Optimizer, Outcome, StepOptions, Tensors};
use super::owners::{Cuts, ELSEWHERE, rows};
use super::plan::{ParamSpec, Plan};
use super::rules::Rules;
use crate::comm::{Comm, Mail, Traffic, agree};
use crate::config::{Config, Nonfinite};
use crate::error::{Error, Kind, Result};
use crate::memory::{Allocator, Arena};
use crate::tensor::{DType, TensorRef};
use bytemuck::{Pod, Zeroable};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// What an optimizer knows of the ranks that it shares its work with.
pub struct Ranks {
    comm: Comm,
    mail: Mail,
    division: Arc<Division>,
    /// The blocks of the whole plan by owner.
    owned: Vec<Vec<usize>>,
    /// How every parameter is cut; none for a replicated one.
    cuts: Vec<Option<Cuts>>,
    /// Hash of the options that all ranks share.
    options: u64,
    /// Of every parameter, the type of its gradient in the step under way; none if it takes no part.
    grads: Vec<Option<DType>>,
    /// What the sizes below were worked out for.
    sized_for: Option<Vec<Option<DType>>>,
    sizes: Sizes,
    /// Values of the local blocks of sharded parameters, and where each begins.
    values: Arena,
    value_places: Vec<usize>,
    /// Their gradients; grows with the type of the gradients.
    gradients: Option<Arena>,
    gradient_places: Vec<usize>,
    /// How far the message of each rank has been read.
    cursors: Vec<usize>,
}

/// Who has which block.
pub struct Division {
    /// The plan of all blocks.
    pub whole: Plan,
    /// The owner of every block of it.
    pub owners: Vec<u32>,
    /// The number of each of its blocks in the local plan, or [`ELSEWHERE`].
    pub places: Vec<usize>,
}

impl Division {
    /// The number of a block of the whole plan in the local one; none if another rank owns it.
    pub fn place(&self, block: usize) -> Option<usize> {
        Some(self.places[block]).filter(|place| *place != ELSEWHERE)
    }
}

/// Bytes of the messages, without seals, by rank.
#[derive(Default)]
struct Sizes {
    /// Gradients and values from here to owners, and from others to this owner.
    to_owners: Vec<usize>,
    to_here: Vec<usize>,
    /// New values from here to holders, and from owners to this holder.
    to_holders: Vec<usize>,
    back_here: Vec<usize>,
    /// New values of replicated parameters, by owner.
    replicated: Vec<usize>,
}

/// What a rank tells all others.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Note {
    options: u64,
    lr: f64,
    grad_scale: f64,
    /// The first parameter whose gradient is not finite, or -1.
    offender: i64,
    /// 1 if the step is only validated.
    validates: u32,
    /// 1 if this rank cannot take the step; `words` say why.
    failed: u32,
    words: [u8; WORDS],
}

const WORDS: usize = 240;

/// What a rank says about the gradient of a parameter.
const NOT_HELD: u8 = 0;
const ABSENT: u8 = 1;
const PRESENT: u8 = 2;

impl Note {
    fn new(options: u64, step: StepOptions, lr: f64, validates: bool) -> Note {
        Note {
            options,
            lr,
            grad_scale: step.grad_scale,
            offender: -1,
            validates: validates.into(),
            failed: 0,
            words: [0; WORDS],
        }
    }

    fn fail(&mut self, error: &Error) {
        self.failed = 1;
        let mut end = error.message.len().min(WORDS);
        while !error.message.is_char_boundary(end) {
            end -= 1;
        }
        self.words[..end].copy_from_slice(&error.message.as_bytes()[..end]);
    }

    fn said(&self) -> String {
        let end = self.words.iter().position(|byte| *byte == 0).unwrap_or(WORDS);
        String::from_utf8_lossy(&self.words[..end]).into_owned()
    }
}

/// What there is to be known once all ranks have met.
pub struct Shared {
    /// The ranks.
    pub ranks: Ranks,
    /// The plan of this rank's own blocks.
    pub part: Plan,
}

impl Ranks {
    /// Compares options and parameters with all ranks and gives every block an owner. `whole` is the plan of all
    /// blocks, or why there is none.
    pub fn meet(mut comm: Comm, config: &Config, specs: &[ParamSpec], whole: Result<Plan>) -> Result<Shared> {
        let parts = agree::agree(&mut comm, config, specs, whole.as_ref().err())?;
        let mut mail = Mail::default();
        let made = whole.and_then(|whole| Ranks::divide(&comm, config, whole, parts));
        let (whole, owners, cuts, part, places, value_places, values) =
            agree::all_well(&mut comm, &mut mail, made, "the creation")?;
        let mut owned = vec![Vec::new(); comm.size];
        for (block, owner) in owners.iter().enumerate() {
            owned[*owner as usize].push(block);
        }
        let (size, blocks, params) = (comm.size, part.blocks.len(), whole.params.len());
        let ranks = Ranks {
            comm,
            mail,
            owned,
            cuts,
            options: agree::hash(&agree::options_text(config)),
            grads: vec![None; params],
            sized_for: None,
            sizes: Sizes::default(),
            values,
            value_places,
            gradients: None,
            gradient_places: vec![0; blocks],
            cursors: vec![0; size],
            division: Arc::new(Division { whole, owners, places }),
        };
        Ok(Shared { ranks, part })
    }

    #[allow(clippy::type_complexity, reason = "taken apart at once")]
    fn divide(
        comm: &Comm,
        config: &Config,
        whole: Plan,
        parts: Vec<Vec<Option<super::plan::Shard>>>,
    ) -> Result<(Plan, Vec<u32>, Vec<Option<Cuts>>, Plan, Vec<usize>, Vec<usize>, Arena)> {
        let mut cuts = Vec::with_capacity(whole.params.len());
        for (index, (param, shards)) in whole.params.iter().zip(&parts).enumerate() {
            let found = Cuts::new(&param.spec.shape, shards).map_err(|problem| {
                Error::invalid(format!("parameter '{}' {problem}", param.spec.name)).at(index)
            })?;
            cuts.push(found);
        }
        let owners = super::owners::owners(config, &whole, comm.size)?;
        let (part, places) = whole.part(&owners, comm.rank, |param| cuts[param].is_some())?;
        let mut bytes = 0usize;
        let mut value_places = Vec::with_capacity(part.blocks.len());
        for block in &part.blocks {
            value_places.push(bytes);
            if cuts[block.param].is_some() {
                let own = block.elements * part.params[block.param].spec.dtype.size();
                bytes = (bytes + own).next_multiple_of(crate::memory::ALIGNMENT);
            }
        }
        let values = Arena::zeroed(bytes, Allocator::System, "the blocks of sharded parameters")?;
        Ok((whole, owners, cuts, part, places, value_places, values))
    }

    /// This rank and the number of ranks.
    pub fn rank_and_size(&self) -> (usize, usize) {
        (self.comm.rank, self.comm.size)
    }

    /// Who has which block.
    pub fn division(&self) -> &Arc<Division> {
        &self.division
    }

    /// What went through the communicator.
    pub fn traffic(&self) -> Traffic {
        self.comm.traffic
    }

    /// The communicator and the mail, for calls other than a step.
    pub fn post(&mut self) -> (&mut Comm, &mut Mail) {
        (&mut self.comm, &mut self.mail)
    }

    /// The options have changed.
    pub fn set_options(&mut self, config: &Config) {
        self.options = agree::hash(&agree::options_text(config));
    }

    /// Bytes of the buffers for the exchange.
    pub fn bytes(&self) -> usize {
        self.values.bytes() + self.gradients.as_ref().map_or(0, Arena::bytes)
    }

    fn has_sharded(&self) -> bool {
        self.cuts.iter().any(Option::is_some)
    }

    /// Where the values and the gradient of a local block lie, and the gradient's type, if its parameter is sharded
    /// and takes part. `Some(None)` if it is sharded and takes no part.
    pub fn staged(&self, param: usize, block: usize) -> Option<Option<(u64, u64, DType)>> {
        self.cuts[param].as_ref()?;
        Some(self.grads[param].map(|dtype| {
            let gradients = self.gradients.as_ref().map_or(0, |arena| arena.as_ptr() as u64);
            let value = self.values.as_ptr() as u64 + self.value_places[block] as u64;
            (value, gradients + self.gradient_places[block] as u64, dtype)
        }))
    }

    /// Whether a sharded parameter takes part in the step under way; none if it is replicated.
    pub fn sharded_takes_part(&self, param: usize) -> Option<bool> {
        self.cuts[param].as_ref().map(|_| self.grads[param].is_some())
    }

    /// Tells all ranks what this one thinks of the step, and compares. `note` says whether it can go on.
    fn tell(&mut self, tensors: Option<&Tensors>, note: Note) -> Result<i64> {
        let (rank, size, params) = (self.comm.rank, self.comm.size, self.division.whole.params.len());
        let bytes = size_of::<Note>() + 2 * params;
        self.mail.begin(bytes + 8)?;
        self.mail.put(bytemuck::bytes_of(&note));
        for index in 0..params {
            let param = &self.division.whole.params[index];
            let grad = tensors.and_then(|tensors| tensors.grads[index]);
            let word = match grad {
                _ if tensors.is_none() || param.spec.held_elements() == 0 => [NOT_HELD, 0],
                Some(grad) => [PRESENT, grad.dtype.code() as u8],
                None => [ABSENT, 0],
            };
            self.mail.put(&word);
        }
        self.comm.gather(&mut self.mail, (0..size).map(|_| bytes))?;
        let notes = |rank: usize| -> Note {
            bytemuck::pod_read_unaligned(&self.mail.from(rank)[..size_of::<Note>()])
        };
        if note.failed != 0 {
            // The caller has the error itself.
            return Ok(-1);
        }
        let mut offender = -1;
        for other in 0..size {
            let said = notes(other);
            if said.failed != 0 {
                return Err(Error::invalid(format!(
                    "rank {other} refused the step, so that no rank takes it: {}",
                    said.said()
                )));
            }
            let differs = |what: &str, first: String, found: String| {
                Err(Error::invalid(format!(
                    "the ranks differ: {what} is {first} on rank 0 and {found} on rank {other}; expected the same on every rank"
                )))
            };
            let first = notes(0);
            if said.options != first.options {
                return Err(Error::invalid(format!(
                    "the ranks differ: rank {other} has other options than rank 0; expected foam_set_option with the same value on every rank"
                )));
            }
            if said.validates != first.validates {
                return Err(Error::invalid(format!(
                    "the ranks differ: rank {other} takes another step than rank 0 (one is only validated)"
                )));
            }
            if said.lr.to_bits() != first.lr.to_bits() {
                return differs("lr", first.lr.to_string(), said.lr.to_string());
            }
            if said.grad_scale.to_bits() != first.grad_scale.to_bits() {
                return differs("grad_scale", first.grad_scale.to_string(), said.grad_scale.to_string());
            }
            if said.offender >= 0 && (offender < 0 || said.offender < offender) {
                offender = said.offender;
            }
        }
        let word = |rank: usize, param: usize| {
            let begin = size_of::<Note>() + 2 * param;
            let said = self.mail.from(rank);
            (said[begin], said[begin + 1])
        };
        for index in 0..params {
            let name = &self.division.whole.params[index].spec.name;
            let mut known: Option<(usize, (u8, u8))> = None;
            for other in 0..size {
                let said = word(other, index);
                if said.0 == NOT_HELD {
                    continue;
                }
                let (first, before) = *known.get_or_insert((other, said));
                if before != said {
                    let text = |said: (u8, u8)| match said {
                        (PRESENT, code) => DType::ALL.get(code as usize).map_or("unknown", |d| d.name()),
                        _ => "absent",
                    };
                    let (a, b) = (text(before), text(said));
                    return Err(Error::invalid(format!(
                        "the gradient of parameter '{name}' is {a} on rank {first} and {b} on rank {other}; expected the same on every rank (seen from rank {rank})"
                    ))
                    .at(index));
                }
            }
            self.grads[index] = match known {
                Some((_, (PRESENT, code))) => DType::ALL.get(code as usize).copied(),
                _ => None,
            };
        }
        Ok(offender)
    }

    /// Works out the sizes of all messages, if what takes part is not what took part before.
    fn measure(&mut self) {
        if self.sized_for.as_ref() == Some(&self.grads) {
            return;
        }
        let (rank, size) = (self.comm.rank as u32, self.comm.size);
        let fresh = || vec![0; size];
        let mut sizes = Sizes {
            to_owners: fresh(),
            to_here: fresh(),
            to_holders: fresh(),
            back_here: fresh(),
            replicated: fresh(),
        };
        for (number, block) in self.division.whole.blocks.iter().enumerate() {
            let Some(grad) = self.grads[block.param] else { continue };
            let owner = self.division.owners[number];
            let value = self.division.whole.params[block.param].spec.dtype.size();
            let Some(cuts) = &self.cuts[block.param] else {
                sizes.replicated[owner as usize] += block.elements * value;
                continue;
            };
            cuts.segments(block, |segment| {
                let source = cuts.source(segment.piece, number, owner);
                let both = segment.len * (value + grad.size());
                if source != owner && source == rank {
                    sizes.to_owners[owner as usize] += both;
                }
                if source != owner && owner == rank {
                    sizes.to_here[source as usize] += both;
                }
                for holder in cuts.pieces[segment.piece].holders.iter().filter(|holder| **holder != owner) {
                    if owner == rank {
                        sizes.to_holders[*holder as usize] += segment.len * value;
                    }
                    if *holder == rank {
                        sizes.back_here[owner as usize] += segment.len * value;
                    }
                }
            });
        }
        self.sizes = sizes;
        self.sized_for = Some(self.grads.clone());
    }

    /// Makes room for the gradients of the local blocks of sharded parameters.
    fn place_gradients(&mut self, part: &Plan) -> Result<()> {
        let mut bytes = 0usize;
        for (place, block) in self.gradient_places.iter_mut().zip(&part.blocks) {
            *place = bytes;
            if let (Some(dtype), Some(_)) = (self.grads[block.param], &self.cuts[block.param]) {
                bytes = (bytes + block.elements * dtype.size()).next_multiple_of(crate::memory::ALIGNMENT);
            }
        }
        if self.gradients.as_ref().is_none_or(|arena| arena.bytes() < bytes) {
            self.gradients = None;
            let what = "the gradients of sharded parameters";
            self.gradients = Some(Arena::zeroed(bytes, Allocator::System, what)?);
        }
        Ok(())
    }

    /// Brings gradients and values of sharded parameters to the owners.
    fn bring(&mut self, tensors: &Tensors) -> Result<()> {
        let (rank, size) = (self.comm.rank as u32, self.comm.size);
        let total: usize = self.sizes.to_owners.iter().sum();
        self.mail.begin(total + 8 * size)?;
        for owner in 0..size {
            for number in &self.owned[owner] {
                let block = &self.division.whole.blocks[*number];
                let (Some(grad), Some(cuts)) = (tensors.grads[block.param], &self.cuts[block.param]) else {
                    continue;
                };
                let value = tensors.params[block.param];
                let mail = &mut self.mail;
                cuts.segments(block, |segment| {
                    let source = cuts.source(segment.piece, *number, owner as u32);
                    if source == rank && owner as u32 != rank {
                        // SAFETY: the segment lies within the tensors of who holds the piece.
                        unsafe {
                            put(mail, grad, segment.held, segment.len);
                            put(mail, value, segment.held, segment.len);
                        }
                    }
                });
            }
            self.mail.close(&self.comm);
        }
        self.comm.exchange(&mut self.mail, self.sizes.to_here.iter().copied())?;
        self.cursors.fill(0);
        for number in &self.owned[rank as usize] {
            let block = &self.division.whole.blocks[*number];
            let (Some(dtype), Some(cuts)) = (self.grads[block.param], &self.cuts[block.param]) else {
                continue;
            };
            let Some(Some((values, gradients, _))) = self.staged(block.param, self.division.places[*number])
            else {
                continue;
            };
            let value = tensors.params[block.param];
            let (mail, cursors) = (&self.mail, &mut self.cursors);
            cuts.segments(block, |segment| {
                let source = cuts.source(segment.piece, *number, rank);
                let mut take = |own: Option<TensorRef>, into: u64, dtype: DType| {
                    let (into, bytes) = (
                        (into as *mut u8).wrapping_add(segment.block * dtype.size()),
                        segment.len * dtype.size(),
                    );
                    let from = if source == rank {
                        let own = own.map_or(std::ptr::null(), |own| own.data.cast_const());
                        own.wrapping_add(segment.held * dtype.size())
                    } else {
                        let cursor = &mut cursors[source as usize];
                        *cursor += bytes;
                        mail.from(source as usize)[*cursor - bytes..*cursor].as_ptr()
                    };
                    // SAFETY: both sides have as many bytes, by the plan.
                    unsafe { std::ptr::copy_nonoverlapping(from, into, bytes) };
                };
                take(tensors.grads[block.param], gradients, dtype);
                take(Some(value), values, value.dtype);
            });
        }
        Ok(())
    }

    /// Sends the new values of sharded parameters to who hold them.
    fn send_back(&mut self, tensors: &Tensors, failure: Option<&Error>) -> Result<Option<usize>> {
        let (rank, size) = (self.comm.rank as u32, self.comm.size);
        let total: usize = self.sizes.to_holders.iter().sum();
        self.mail.begin(total + 16 * size)?;
        for holder in 0..size as u32 {
            self.mail.put(&word(failure));
            for number in &self.owned[rank as usize] {
                let block = &self.division.whole.blocks[*number];
                let Some(cuts) = &self.cuts[block.param] else { continue };
                let Some(Some((values, ..))) = self.staged(block.param, self.division.places[*number]) else {
                    continue;
                };
                let value = TensorRef { data: values as *mut u8, dtype: tensors.params[block.param].dtype };
                let mail = &mut self.mail;
                cuts.segments(block, |segment| {
                    if holder != rank && cuts.pieces[segment.piece].holders.contains(&holder) {
                        // SAFETY: the segment lies within the block.
                        unsafe { put(mail, value, segment.block, segment.len) };
                    }
                });
            }
            self.mail.close(&self.comm);
        }
        self.comm.exchange(&mut self.mail, self.sizes.back_here.iter().map(|bytes| bytes + 8))?;
        let failed = (0..size).find(|rank| self.mail.from(*rank)[0] != 0);
        if failed.is_some() {
            return Ok(failed);
        }
        for owner in 0..size as u32 {
            let mut cursor = 8;
            for number in &self.owned[owner as usize] {
                let block = &self.division.whole.blocks[*number];
                let (Some(_), Some(cuts)) = (self.grads[block.param], &self.cuts[block.param]) else {
                    continue;
                };
                let value = tensors.params[block.param];
                let each = value.dtype.size();
                let staged = if owner == rank {
                    self.values.as_ptr().wrapping_add(self.value_places[self.division.places[*number]])
                } else {
                    std::ptr::null_mut()
                };
                let mail = &self.mail;
                cuts.segments(block, |segment| {
                    if !cuts.pieces[segment.piece].holders.contains(&rank) {
                        return;
                    }
                    let bytes = segment.len * each;
                    let from = if owner == rank {
                        staged.cast_const().wrapping_add(segment.block * each)
                    } else {
                        cursor += bytes;
                        mail.from(owner as usize)[cursor - bytes..cursor].as_ptr()
                    };
                    // SAFETY: the segment lies within this rank's tensor, and within what came.
                    unsafe {
                        std::ptr::copy_nonoverlapping(from, value.data.add(segment.held * each), bytes);
                    }
                });
            }
        }
        Ok(None)
    }

    /// Gives all ranks the new values of the replicated parameters.
    fn spread(&mut self, tensors: &Tensors, failure: Option<&Error>) -> Result<Option<usize>> {
        let (rank, size) = (self.comm.rank, self.comm.size);
        self.mail.begin(self.sizes.replicated[rank] + 16)?;
        self.mail.put(&word(failure));
        for number in &self.owned[rank] {
            let block = &self.division.whole.blocks[*number];
            if self.grads[block.param].is_none() || self.cuts[block.param].is_some() {
                continue;
            }
            let value = tensors.params[block.param];
            let mail = &mut self.mail;
            // SAFETY: the run lies within the parameter.
            rows(block, |tensor, _, len| unsafe { put(mail, value, tensor, len) });
        }
        self.comm.gather(&mut self.mail, self.sizes.replicated.iter().map(|bytes| bytes + 8))?;
        let failed = (0..size).find(|rank| self.mail.from(*rank)[0] != 0);
        if failed.is_some() {
            return Ok(failed);
        }
        for owner in (0..size).filter(|owner| *owner != rank) {
            let mut cursor = 8;
            for number in &self.owned[owner] {
                let block = &self.division.whole.blocks[*number];
                if self.grads[block.param].is_none() || self.cuts[block.param].is_some() {
                    continue;
                }
                let value = tensors.params[block.param];
                let (mail, each) = (&self.mail, value.dtype.size());
                rows(block, |tensor, _, len| {
                    let bytes = &mail.from(owner)[cursor..cursor + len * each];
                    cursor += bytes.len();
                    // SAFETY: the run lies within the parameter.
                    unsafe {
                        let into = value.data.add(tensor * each);
                        std::ptr::copy_nonoverlapping(bytes.as_ptr(), into, bytes.len());
                    }
                });
            }
        }
        Ok(None)
    }
}

/// The first word of a message with new values: whether the sender has any.
fn word(failure: Option<&Error>) -> [u8; 8] {
    u64::from(failure.is_some()).to_le_bytes()
}

/// Adds `len` elements of `tensor` from `first` on.
///
/// # Safety
/// They lie within the tensor.
unsafe fn put(mail: &mut Mail, tensor: TensorRef, first: usize, len: usize) {
    let each = tensor.dtype.size();
    // SAFETY: the caller's contract.
    unsafe { mail.put_raw(tensor.data.add(first * each), len * each) };
}

impl Optimizer {
    /// Tells the other ranks that this one refuses a step, so that none of them waits for it.
    pub fn refuse_together(&mut self, error: Error) -> Error {
        let Some(mut ranks) = self.ranks.take() else { return error };
        let mut note = Note::new(ranks.options, StepOptions::default(), 0.0, false);
        note.fail(&error);
        // A communicator that fails now has told the others in its own way.
        if ranks.tell(None, note).is_err() {
            self.mark_lost();
        }
        self.ranks = Some(ranks);
        error
    }

    /// A step that all ranks take, or none.
    pub(super) fn step_together(
        &mut self,
        tensors: &Tensors,
        options: StepOptions,
        validates: bool,
    ) -> Result<Outcome> {
        let Some(mut ranks) = self.ranks.take() else {
            return Err(Error::invalid("this optimizer has no other ranks"));
        };
        ranks.comm.stream = tensors.stream;
        let outcome = self.take_together(&mut ranks, tensors, options, validates);
        self.ranks = Some(ranks);
        outcome
    }

    fn take_together(
        &mut self,
        ranks: &mut Ranks,
        tensors: &Tensors,
        options: StepOptions,
        validates: bool,
    ) -> Result<Outcome> {
        let lr = options.lr.unwrap_or(self.engine.config.lr);
        let mut note = Note::new(ranks.options, options, lr, validates);
        let sharded = ranks.has_sharded();
        let mut begun = None;
        if !sharded {
            // All gradients are here: whether they are finite goes with the first note.
            let found = self.look(ranks, tensors, options);
            match &found {
                Ok((_, own)) => note.offender = *own,
                Err(error) => note.fail(error),
            }
            begun = Some(found);
        }
        let unwritten = "; no parameter of this rank was written, but other ranks may have gone on: load a checkpoint into a new optimizer";
        let mut offender =
            ranks.tell(Some(tensors), note).map_err(|error| self.out_of_step(error, unwritten))?;
        let (rules, waits) = match begun {
            Some(found) => found?.0,
            None => {
                ranks.measure();
                let placed = ranks.place_gradients(&self.engine.plan);
                placed.map_err(|mut error| {
                    error.kind = Kind::Collective;
                    self.out_of_step(error, unwritten)
                })?;
                ranks.bring(tensors).map_err(|error| self.out_of_step(error, unwritten))?;
                let found = self.look(ranks, tensors, options);
                let mut verdict = Note::new(ranks.options, options, lr, validates);
                match &found {
                    Ok((_, own)) => verdict.offender = *own,
                    Err(error) => verdict.fail(error),
                }
                offender =
                    ranks.tell(Some(tensors), verdict).map_err(|error| self.out_of_step(error, unwritten))?;
                found?.0
            }
        };
        if offender >= 0 {
            let param = offender as usize;
            return if validates && self.engine.config.nonfinite == Nonfinite::Skip {
                Ok(Outcome::Skipped)
            } else if validates {
                Err(self.engine.not_finite(param))
            } else {
                self.engine.refuse_param(param)
            };
        }
        if validates {
            return Ok(Outcome::Stepped);
        }
        ranks.measure();
        // What fails now fails on one rank while the others have stepped: all hear of it.
        let taken = catch_unwind(AssertUnwindSafe(|| self.take_step(&rules, waits)));
        let failure = match &taken {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(error.clone()),
            Err(_) => Some(Error::new(Kind::Panic, "internal panic")),
        };
        let mut failed = Ok(None);
        if sharded {
            failed = ranks.send_back(tensors, failure.as_ref());
        }
        if ranks.cuts.iter().any(Option::is_none) && matches!(failed, Ok(None)) {
            failed = ranks.spread(tensors, failure.as_ref());
        }
        match taken {
            Err(payload) => {
                self.mark_lost();
                resume_unwind(payload)
            }
            Ok(Err(error)) => return Err(self.lose(error)),
            Ok(Ok(_)) => {}
        }
        let written = "; parameters were written on some ranks and are no longer equal: they are lost, load a checkpoint into a new optimizer";
        match failed {
            Ok(None) => Ok(Outcome::Stepped),
            Ok(Some(rank)) => {
                let error =
                    Error::new(Kind::Collective, format!("rank {rank} failed in the middle of the step"));
                Err(self.out_of_step(error, written))
            }
            Err(error) => Err(self.out_of_step(error, written)),
        }
    }

    /// Begins a step on this rank's blocks, and gives the first parameter among them whose gradient is not finite,
    /// or -1.
    fn look(
        &mut self,
        ranks: &Ranks,
        tensors: &Tensors,
        options: StepOptions,
    ) -> Result<((Rules, bool), i64)> {
        let (rules, waits) = self.begin(tensors, options, Some(ranks))?;
        let block = self.engine.inspect(&rules)?;
        Ok(((rules, waits), block.map_or(-1, |block| self.engine.plan.blocks[block].param as i64)))
    }

    /// A collective that failed leaves the ranks where nobody knows: this one stops, and says what became of the
    /// parameters. Other errors are the same on every rank, and leave all as it was.
    fn out_of_step(&mut self, mut error: Error, consequence: &str) -> Error {
        if error.kind == Kind::Collective {
            self.mark_lost();
            error.message += consequence;
        }
        error
    }
}
