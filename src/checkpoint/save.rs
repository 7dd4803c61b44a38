//! State → bytes. The header does not depend on the numbers of the state, so it is known, with the size of the
//! whole, before any of them is read; the checksums come last.

use super::header::{Dtype, KEY, LONGEST};
use super::json::{Escaped, list, quote};
use super::layout::{Content, Layout, Name, Tensor};
use super::{Text, bad, no_memory, reserved};
use crate::comm::{Comm, Mail, agree};
use crate::engine::Optimizer;
use crate::error::{Error, Kind, Result};
use crate::memory::{filled, push};
use crate::preconditioner::{Counters, Gauges};
use std::fmt::{self, Write};

/// Version of the format.
pub const FORMAT: u64 = 2;
/// The tensor of the checksums. Every other has the name of a parameter and a slash in it.
pub const CHECKSUMS: &str = "crc32";
/// Bytes that are passed on at once.
const CHUNK: usize = 1 << 20;
/// Bytes that ranks bring together at once.
const ROUND: usize = 16 << 20;
/// What the lists of a round are called where there is no memory for them.
const ROUNDS: &str = "the exchange of a checkpoint";

/// A checkpoint that is ready to be written.
pub struct Writer {
    layout: Layout,
    head: Vec<u8>,
    payload: u64,
}

impl Writer {
    /// Lays out the checkpoint of `optimizer`, without reading its state.
    pub fn new(optimizer: &Optimizer) -> Result<Writer> {
        let layout = Layout::new(optimizer.whole())?;
        let mut text = Text::default();
        let payload = write_header(&mut text, optimizer, &layout)
            .map_err(|_| no_memory("the header of the checkpoint", text.len() as u128))?;
        if text.len() as u64 > LONGEST {
            return Err(bad!(
                "cannot write the checkpoint: its header would have {} bytes; safetensors allows {LONGEST}; use fewer parameters, or a larger max_factor_dim",
                text.len()
            ));
        }
        let mut head = reserved(8 + text.len(), "the header of the checkpoint")?;
        head.extend_from_slice(&(text.len() as u64).to_le_bytes());
        head.extend_from_slice(text.as_bytes());
        Ok(Writer { layout, head, payload })
    }

    /// Bytes of the whole checkpoint.
    pub fn size(&self) -> u64 {
        self.head.len() as u64 + self.payload
    }

    /// Reads the state and gives it to `sink`, piece by piece. The memory that it needs is had before the
    /// first piece.
    pub fn write(self, optimizer: &mut Optimizer, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        if optimizer.ranks().is_some() {
            return self.write_together(optimizer, true, sink);
        }
        let Writer { layout, head, .. } = self;
        let largest = layout.tensors.iter().map(|t| t.item).max().unwrap_or(0);
        let mut out = Out { buffer: reserved(CHUNK.max(largest), "writing the checkpoint")?, sink };
        let mut checksums = reserved(4 * (layout.tensors.len() + 2), "the checksums of the checkpoint")?;
        let mut add = |crc: u32| checksums.extend_from_slice(&crc.to_le_bytes());
        add(crc32fast::hash(&head));
        (out.sink)(&head)?;
        for tensor in &layout.tensors {
            let mut crc = crc32fast::Hasher::new();
            for at in tensor.items.clone() {
                let space = out.space(tensor.item)?;
                fill(optimizer, &layout, tensor, at, space)?;
                crc.update(space);
            }
            add(crc.finalize());
        }
        let last = crc32fast::hash(&checksums);
        checksums.extend_from_slice(&last.to_le_bytes());
        out.flush()?;
        (out.sink)(&checksums)
    }
}

impl Writer {
    /// The same with the state that other ranks hold; they all call it together. The pieces go to all of them, or
    /// to the first one alone.
    pub fn write_together(
        self,
        optimizer: &mut Optimizer,
        to_all: bool,
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let Some(mut ranks) = optimizer.lend_ranks() else { return self.write(optimizer, sink) };
        let (comm, mail) = ranks.post();
        let written = match self.write_rounds(optimizer, comm, mail, to_all, sink) {
            // A communicator that failed tells nobody anything.
            Err(error) if error.kind == Kind::Collective => Err(error),
            other => agree::all_well(comm, mail, other, "the checkpoint"),
        };
        optimizer.give_ranks_back(ranks);
        written
    }

    /// Round after round of whole items. What the sink refuses is kept for the end: the others go on.
    fn write_rounds(
        self,
        optimizer: &mut Optimizer,
        comm: &mut Comm,
        mail: &mut Mail,
        to_all: bool,
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let Writer { layout, head, .. } = self;
        let (rank, size) = (comm.rank, comm.size);
        let receives = to_all || rank == 0;
        let mut checksums = reserved(4 * (layout.tensors.len() + 2), "the checksums of the checkpoint")?;
        checksums.extend_from_slice(&crc32fast::hash(&head).to_le_bytes());
        let mut outcome = if receives { sink(&head) } else { Ok(()) };
        let mut items = layout
            .tensors
            .iter()
            .flat_map(|tensor| tensor.items.clone().map(move |at| (tensor, at)))
            .peekable();
        let mut crc = crc32fast::Hasher::new();
        while items.peek().is_some() {
            let (mut round, mut bytes) = (Vec::new(), 0);
            while let Some((tensor, at)) = items.next_if(|(next, _)| bytes == 0 || bytes + next.item <= ROUND)
            {
                bytes += tensor.item;
                push(&mut round, (tensor, at, owner_of(optimizer, &layout, tensor, at)), ROUNDS)?;
            }
            let mut sizes = filled(0, size, ROUNDS)?;
            round.iter().for_each(|(tensor, _, owner)| sizes[*owner] += tensor.item);
            mail.begin(sizes[rank] + 8 * size)?;
            for (tensor, at, _) in round.iter().filter(|(.., owner)| *owner == rank) {
                fill(optimizer, &layout, tensor, *at, mail.space(tensor.item)?)?;
            }
            if to_all {
                comm.gather(mail, sizes.iter().copied())?;
            } else {
                (0..size).try_for_each(|_| mail.close(comm))?;
                comm.exchange(mail, sizes.iter().map(|bytes| if rank == 0 { *bytes } else { 0 }))?;
            }
            let mut cursors = filled(0, size, ROUNDS)?;
            for (tensor, at, owner) in round.iter().filter(|_| receives) {
                let piece = &mail.from(*owner)[cursors[*owner]..][..tensor.item];
                cursors[*owner] += tensor.item;
                crc.update(piece);
                outcome = outcome.and_then(|()| sink(piece));
                if at + 1 == tensor.items.end {
                    let whole = std::mem::replace(&mut crc, crc32fast::Hasher::new());
                    checksums.extend_from_slice(&whole.finalize().to_le_bytes());
                }
            }
        }
        if receives {
            let last = crc32fast::hash(&checksums);
            checksums.extend_from_slice(&last.to_le_bytes());
            outcome = outcome.and_then(|()| sink(&checksums));
        }
        outcome
    }
}

/// Who has item `at` of a tensor. A clock is that of the parameter's first block.
pub fn owner_of(optimizer: &Optimizer, layout: &Layout, tensor: &Tensor, at: usize) -> usize {
    let plan = optimizer.whole();
    optimizer.owner(match tensor.content {
        Content::Slots(_) => plan.slots[layout.slots[at]].block,
        Content::Gauges | Content::Counters => plan.factors[layout.factors[at]].block,
        Content::ClockStep | Content::ClockWeight => plan.params[tensor.param].blocks.start,
    })
}

/// Copies item `at` of a tensor.
pub fn fill(
    optimizer: &mut Optimizer,
    layout: &Layout,
    tensor: &Tensor,
    at: usize,
    space: &mut [u8],
) -> Result<()> {
    let clock = |optimizer: &Optimizer| optimizer.clock(tensor.param);
    let elsewhere = || Error::invalid("another rank has this part of the state");
    let record = |optimizer: &Optimizer| {
        optimizer.own_factor(layout.factors[at]).map(|own| optimizer.records()[own]).ok_or_else(elsewhere)
    };
    match tensor.content {
        Content::Slots(_) => {
            let slot = optimizer.own_slot(layout.slots[at]).ok_or_else(elsewhere)?;
            return optimizer.read_slot(slot, space);
        }
        Content::Gauges => space.copy_from_slice(bytemuck::bytes_of(&record(optimizer)?.gauges)),
        Content::Counters => space.copy_from_slice(bytemuck::bytes_of(&record(optimizer)?.counters)),
        Content::ClockStep => space.copy_from_slice(&(clock(optimizer).step as i64).to_le_bytes()),
        Content::ClockWeight => space.copy_from_slice(&clock(optimizer).weight.to_le_bytes()),
    }
    Ok(())
}

/// Gathers small pieces into larger ones.
struct Out<'a> {
    buffer: Vec<u8>,
    sink: &'a mut dyn FnMut(&[u8]) -> Result<()>,
}

impl Out<'_> {
    /// Room for the next `bytes`, which are at most the buffer's capacity.
    fn space(&mut self, bytes: usize) -> Result<&mut [u8]> {
        if self.buffer.len() + bytes > self.buffer.capacity() {
            self.flush()?;
        }
        let begin = self.buffer.len();
        self.buffer.resize(begin + bytes, 0);
        Ok(&mut self.buffer[begin..])
    }

    fn flush(&mut self) -> Result<()> {
        (self.sink)(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }
}

/// Writes the header's object, and gives the number of bytes that follow it.
fn write_header(
    out: &mut Text,
    optimizer: &Optimizer,
    layout: &Layout,
) -> std::result::Result<u64, fmt::Error> {
    let plan = optimizer.whole();
    out.write_str("{\"__metadata__\":{")?;
    quote(out, KEY)?;
    out.write_str(":\"")?;
    describe(&mut Escaped(out), optimizer)?;
    out.write_str("\"}")?;
    let mut end = 0;
    let mut place = |out: &mut Text, bytes: u64| {
        let begin = end;
        end += bytes;
        write!(out, "],\"data_offsets\":[{begin},{end}]}}")
    };
    for tensor in &layout.tensors {
        out.write_char(',')?;
        quote(out, Name(plan, tensor))?;
        write!(out, ":{{\"dtype\":\"{}\",\"shape\":[", tensor.dtype)?;
        let (mut comma, mut written) = ("", Ok(()));
        layout.shape(plan, tensor, |size| {
            written = written.and_then(|()| write!(out, "{comma}{size}"));
            comma = ",";
        });
        written?;
        place(out, tensor.bytes())?;
    }
    let checksums = layout.tensors.len() + 2;
    write!(out, ",\"{CHECKSUMS}\":{{\"dtype\":\"{}\",\"shape\":[{checksums}", Dtype::U32)?;
    place(out, 4 * checksums as u64)?;
    out.write_char('}')?;
    // The tensors begin at a multiple of eight bytes.
    while !out.len().is_multiple_of(8) {
        out.write_char(' ')?;
    }
    Ok(end)
}

/// The JSON object under [`KEY`].
fn describe(out: &mut dyn Write, optimizer: &Optimizer) -> fmt::Result {
    let totals = optimizer.summary().totals;
    write!(out, "{{\"format\":{FORMAT},\"writer\":\"libfoam {}\"", env!("CARGO_PKG_VERSION"))?;
    write!(out, ",\"steps\":{},\"skipped_steps\":{}", totals.steps, totals.skipped_steps)?;
    for (key, fields) in [("gauges", Gauges::FIELDS), ("counters", Counters::FIELDS)] {
        write!(out, ",\"{key}\":")?;
        list(out, fields, |out, field| quote(out, field))?;
    }
    out.write_str(",\"params\":")?;
    list(out, &optimizer.whole().params, |out, param| {
        out.write_str("{\"name\":")?;
        quote(out, &param.spec.name)?;
        out.write_str(",\"shape\":")?;
        list(out, &param.spec.shape, |out, size| write!(out, "{size}"))?;
        write!(out, ",\"dtype\":\"{}\"}}", param.spec.dtype.name())
    })?;
    out.write_str(",\"config\":{")?;
    for (index, option) in crate::config::OPTIONS.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        write!(out, "{comma}\"{}\":\"", option.key)?;
        option.print(optimizer.config(), &mut Escaped(out))?;
        out.write_char('"')?;
    }
    out.write_str("}}")
}
