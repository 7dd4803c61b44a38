//! What the ranks tell each other before a step: whether each can take it, and everything that must be the same.

use super::Ranks;
use super::step::Party;
use crate::comm::Mail;
use crate::comm::courier::{NOBODY, Patch};
use crate::engine::handle::StepOptions;
use crate::error::{Error, Kind, Result};
use crate::tensor::DType;
use bytemuck::{Pod, Zeroable};
use std::mem::offset_of;

/// What a rank tells all others.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Note {
    options: u64,
    lr: f64,
    grad_scale: f64,
    /// 1 if the step is only validated.
    validates: u32,
    /// 1 if this rank cannot take the step; `words` say why.
    failed: u32,
    /// The first parameter whose gradient is not finite, or [`NOBODY`]. A GPU fills it in, and the two below.
    bad: i32,
    /// The first rank whose new values did not arrive in the step before, or [`NOBODY`].
    lost: i32,
    /// The first rank that failed in the middle of it, or [`NOBODY`].
    broken: i32,
    /// Optimizers that take the step together.
    parties: u32,
    words: [u8; WORDS],
}

const WORDS: usize = 232;

/// What a rank says about the gradient of a parameter.
const NOT_HELD: u8 = 0;
const ABSENT: u8 = 1;
const PRESENT: u8 = 2;

impl Note {
    fn new(options: u64, step: StepOptions, lr: f64, validates: bool, parties: usize) -> Note {
        Note {
            options,
            lr,
            grad_scale: step.grad_scale,
            validates: validates.into(),
            failed: 0,
            bad: NOBODY,
            lost: NOBODY,
            broken: NOBODY,
            parties: parties as u32,
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
        format!("{}", String::from_utf8_lossy(&self.words[..end]))
    }
}

/// Bytes of a party's part of the note.
fn bytes_of(ranks: &Ranks) -> usize {
    size_of::<Note>() + 2 * ranks.division.whole.params.len()
}

/// The first optimizer, and its first parameter, whose gradient is not finite on some rank.
pub type Offender = Option<(usize, usize)>;

/// Tells all ranks what this one thinks of the step, and compares. `looked` says that the gradients have been looked
/// at. Every party knows from then on which gradients take part.
pub fn tell(parties: &mut [Party], validates: bool, looked: bool) -> Result<Offender> {
    let total: usize = parties.iter().map(|party| bytes_of(&party.ranks)).sum();
    let count = parties.len();
    let mut mail = std::mem::take(&mut parties[0].ranks.mail);
    let put = mail.begin(total + 16).and_then(|()| {
        parties.iter().try_for_each(|party| write(party, &mut mail, validates, looked, count))
    });
    let comm = &mut parties[0].ranks.comm;
    let size = comm.size;
    let told = put.and_then(|()| comm.gather(&mut mail, (0..size).map(|_| total)));
    // Whoever has an error of its own reports that one.
    let own = parties.iter_mut().find_map(|party| party.fault.take());
    let outcome = match (told, own) {
        (Err(error), own) => Err(own.map_or_else(
            || error.clone(),
            |own| Error { kind: Kind::Collective, message: own.message, ..error.clone() },
        )),
        (Ok(()), Some(own)) => Err(own),
        (Ok(()), None) => read_all(parties, &mail),
    };
    parties[0].ranks.mail = mail;
    outcome
}

fn write(party: &Party, mail: &mut Mail, validates: bool, looked: bool, count: usize) -> Result<()> {
    let ranks = &party.ranks;
    let lr = party.options.lr.unwrap_or(party.optimizer.config().lr);
    let mut note = Note::new(ranks.options, party.options, lr, validates, count);
    let at = mail.len();
    let patch = |mail: &mut Mail, field: usize, from: u64, bytes: usize| {
        mail.patch(Patch { at: at + field, from, bytes })
    };
    match &party.fault {
        Some(error) => note.fail(error),
        None if looked => {
            note.bad = party.bad;
            if let Some(from) = party.optimizer.engine.device.verdict() {
                patch(mail, offset_of!(Note, bad), from, 4)?;
            }
        }
        None => {}
    }
    if let Some(from) = ranks.comm.courier.troubles() {
        patch(mail, offset_of!(Note, lost), from, 8)?;
    }
    mail.put(bytemuck::bytes_of(&note))?;
    for (index, param) in ranks.division.whole.params.iter().enumerate() {
        let word = match party.tensors {
            None => [NOT_HELD, 0],
            Some(_) if param.spec.held_elements() == 0 => [NOT_HELD, 0],
            Some(tensors) => match tensors.grads[index] {
                Some(grad) => [PRESENT, grad.dtype.code() as u8],
                None => [ABSENT, 0],
            },
        };
        mail.put(&word)?;
    }
    Ok(())
}

fn read_all(parties: &mut [Party], mail: &Mail) -> Result<Offender> {
    let (mut begin, mut offender) = (0, None);
    for (place, party) in parties.iter_mut().enumerate() {
        let bad = read(&mut party.ranks, mail, begin)?;
        offender = offender.or(bad.map(|param| (place, param)));
        begin += bytes_of(&party.ranks);
    }
    Ok(offender)
}

/// Compares what the ranks say about one optimizer; gives the first parameter whose gradient is not finite.
fn read(ranks: &mut Ranks, mail: &Mail, begin: usize) -> Result<Option<usize>> {
    let (rank, size) = (ranks.comm.rank, ranks.comm.size);
    let note = |rank: usize| -> Note {
        bytemuck::pod_read_unaligned(&mail.from(rank)[begin..begin + size_of::<Note>()])
    };
    let first = note(0);
    let mut bad = NOBODY;
    for other in 0..size {
        let said = note(other);
        if said.lost != NOBODY || said.broken != NOBODY {
            let message = if said.lost != NOBODY {
                format!(
                    "the values that rank {} sent in the step before did not arrive on rank {other}",
                    said.lost
                )
            } else {
                format!("rank {} failed in the middle of the step before", said.broken)
            };
            return Err(Error::new(Kind::Collective, message).saying(super::step::WRITTEN));
        }
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
        if said.parties != first.parties {
            return differs(
                "the number of optimizers",
                format!("{}", first.parties),
                format!("{}", said.parties),
            );
        }
        if said.lr.to_bits() != first.lr.to_bits() {
            return differs("lr", format!("{}", first.lr), format!("{}", said.lr));
        }
        if said.grad_scale.to_bits() != first.grad_scale.to_bits() {
            return differs("grad_scale", format!("{}", first.grad_scale), format!("{}", said.grad_scale));
        }
        bad = bad.min(said.bad);
    }
    let word = |rank: usize, param: usize| {
        let begin = begin + size_of::<Note>() + 2 * param;
        let said = mail.from(rank);
        (said[begin], said[begin + 1])
    };
    for (index, param) in ranks.division.whole.params.iter().enumerate() {
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
                let (a, b, name) = (text(before), text(said), &param.spec.name);
                return Err(Error::invalid(format!(
                    "the gradient of parameter '{name}' is {a} on rank {first} and {b} on rank {other}; expected the same on every rank (seen from rank {rank})"
                ))
                .at(index));
            }
        }
        ranks.grads[index] = match known {
            Some((_, (PRESENT, code))) => DType::ALL.get(code as usize).copied(),
            _ => None,
        };
    }
    Ok(usize::try_from(bad).ok().filter(|_| bad != NOBODY))
}
