//! The state of each parameter by itself, as bytes whose number and order do not depend on who owns its blocks: what
//! a framework's own sharded checkpoints keep. A parameter's bytes are its tensors of the checkpoint file, one behind
//! the other. Every rank reads and writes any part of any parameter's bytes.

use super::layout::{Content, Layout};
use super::load::{check_clock, check_record};
use super::save::{fill, owner_of};
use super::{bad, reserved};
use crate::comm::Mail;
use crate::engine::{Clock, Optimizer};
use crate::error::{Error, Result};
use crate::memory::{copied, filled, listed, push, tried};
use crate::preconditioner::FactorRecord;
use bytemuck::{Pod, Zeroable};

/// What these lists are called where there is no memory for them.
const PARTS: &str = "the list of the state's parts";

/// A part of a parameter's bytes.
#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub struct Span {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A piece of the state: one block's part of a tensor.
#[derive(Clone, Copy)]
struct Item {
    param: usize,
    /// Its tensor in the layout, and its item there.
    tensor: usize,
    at: usize,
    /// First byte among its parameter's.
    offset: u64,
    bytes: u64,
    owner: usize,
}

impl Item {
    /// What it has in common with a span: first byte within the item, bytes.
    fn common(&self, span: &Span) -> Option<(usize, usize)> {
        let begin = self.offset.max(span.offset);
        let end = (self.offset + self.bytes).min(span.offset.saturating_add(span.bytes));
        (begin < end).then(|| ((begin - self.offset) as usize, (end - begin) as usize))
    }
}

fn items(optimizer: &Optimizer, layout: &Layout) -> Result<(Vec<Item>, Vec<u64>)> {
    let mut ends = filled(0u64, optimizer.whole().params.len(), PARTS)?;
    let count = layout.tensors.iter().map(|tensor| tensor.items.len()).sum();
    let mut items = reserved(count, PARTS)?;
    for (number, tensor) in layout.tensors.iter().enumerate() {
        for at in tensor.items.clone() {
            let offset = ends[tensor.param];
            ends[tensor.param] += tensor.item as u64;
            let owner = owner_of(optimizer, layout, tensor, at);
            let (param, bytes) = (tensor.param, tensor.item as u64);
            items.push(Item { param, tensor: number, at, offset, bytes, owner });
        }
    }
    Ok((items, ends))
}

/// Bytes of every parameter's state.
pub fn sizes(optimizer: &Optimizer) -> Result<Vec<u64>> {
    let layout = Layout::new(optimizer.whole())?;
    items(optimizer, &layout).map(|(_, ends)| ends)
}

fn check_spans(optimizer: &Optimizer, spans: &[Span], sizes: &[u64]) -> Result<()> {
    for (index, (span, size)) in spans.iter().zip(sizes).enumerate() {
        if span.offset.checked_add(span.bytes).is_none_or(|end| end > *size) {
            let name = &optimizer.whole().params[index].spec.name;
            return Err(Error::invalid(format!(
                "parts[{index}]: bytes {} from {}: expected a part of the {size} bytes of parameter '{name}'",
                span.bytes, span.offset
            ))
            .at(index));
        }
    }
    Ok(())
}

/// The spans of all ranks, by rank.
fn share(optimizer: &mut Optimizer, mine: &[Span]) -> Result<Vec<Vec<Span>>> {
    let Some(mut ranks) = optimizer.lend_ranks() else { return tried([copied(mine, PARTS)], PARTS) };
    let (comm, mail) = ranks.post();
    let (bytes, size) = (std::mem::size_of_val(mine), comm.size);
    let gathered = mail.begin(bytes + 8).and_then(|()| {
        mail.put(bytemuck::cast_slice(mine))?;
        comm.gather(mail, (0..size).map(|_| bytes))
    });
    let spans = gathered.and_then(|()| by_rank(mail, size));
    optimizer.give_ranks_back(ranks);
    spans
}

fn by_rank(mail: &Mail, size: usize) -> Result<Vec<Vec<Span>>> {
    let spans = |rank| listed(mail.from(rank).chunks_exact(16).map(bytemuck::pod_read_unaligned), PARTS);
    tried((0..size).map(spans), PARTS)
}

/// Copies the spans of every parameter's state to where `into` says. All ranks call it together.
///
/// # Safety
/// Each address has as many writable bytes as its span.
pub unsafe fn read(optimizer: &mut Optimizer, spans: &[Span], into: &[*mut u8]) -> Result<()> {
    let layout = Layout::new(optimizer.whole())?;
    let (items, sizes) = items(optimizer, &layout)?;
    let checked = check_spans(optimizer, spans, &sizes);
    optimizer.together(checked, "reading the state")?;
    let wanted = share(optimizer, spans)?;
    let rank = optimizer.ranks().map_or(0, |ranks| ranks.rank_and_size().0);
    let largest = items.iter().map(|item| item.bytes as usize).max().unwrap_or(0);
    let mut buffer: Vec<u8> = reserved(largest, "reading the state")?;
    let give = |item: &Item, within: usize, bytes: &[u8]| {
        let place = item.offset as usize + within - spans[item.param].offset as usize;
        // SAFETY: the caller's contract; what they have in common lies within the span.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), into[item.param].add(place), bytes.len()) };
    };
    for item in items.iter().filter(|item| item.owner == rank) {
        if let Some((within, len)) = item.common(&spans[item.param]) {
            buffer.clear();
            buffer.resize(item.bytes as usize, 0);
            fill(optimizer, &layout, &layout.tensors[item.tensor], item.at, &mut buffer)?;
            give(item, within, &buffer[within..within + len]);
        }
    }
    let Some(mut ranks) = optimizer.lend_ranks() else { return Ok(()) };
    let mut send = || -> Result<()> {
        let (comm, mail) = ranks.post();
        mail.begin(0)?;
        for (to, theirs) in wanted.iter().enumerate() {
            for item in items.iter().filter(|item| item.owner == rank && to != rank) {
                if let Some((within, len)) = item.common(&theirs[item.param]) {
                    buffer.clear();
                    buffer.resize(item.bytes as usize, 0);
                    fill(optimizer, &layout, &layout.tensors[item.tensor], item.at, &mut buffer)?;
                    mail.put(&buffer[within..within + len])?;
                }
            }
            mail.close(comm)?;
        }
        let mut expected = filled(0, comm.size, PARTS)?;
        for item in items.iter().filter(|item| item.owner != rank) {
            expected[item.owner] += item.common(&spans[item.param]).map_or(0, |(_, len)| len);
        }
        comm.exchange(mail, expected.into_iter())?;
        let mut cursors = filled(0, comm.size, PARTS)?;
        for item in items.iter().filter(|item| item.owner != rank) {
            if let Some((within, len)) = item.common(&spans[item.param]) {
                let cursor = &mut cursors[item.owner];
                give(item, within, &mail.from(item.owner)[*cursor..*cursor + len]);
                *cursor += len;
            }
        }
        Ok(())
    };
    let sent = send();
    optimizer.give_ranks_back(ranks);
    sent
}

/// Who gives the bytes of an item to its owner, in order: rank, first byte within the item, bytes. The owner itself
/// where it can, else the first rank that has them. None if nobody has some of them.
fn sources(item: &Item, spans: &[Vec<Span>]) -> Result<Option<Vec<(usize, usize, usize)>>> {
    let mut found = Vec::new();
    let mut at = item.offset;
    let end = item.offset + item.bytes;
    while at < end {
        let has = |rank: &usize| {
            let span = spans[*rank][item.param];
            span.offset <= at && at < span.offset + span.bytes
        };
        let Some(rank) = Some(item.owner).filter(&has).or_else(|| (0..spans.len()).find(&has)) else {
            return Ok(None);
        };
        let span = spans[rank][item.param];
        let until = end.min(span.offset + span.bytes);
        push(&mut found, (rank, (at - item.offset) as usize, (until - at) as usize), PARTS)?;
        at = until;
    }
    Ok(Some(found))
}

/// Takes over the states whose bytes the ranks have in parts. All ranks call it together; on an error nothing has
/// changed, unless the device failed in the middle of the writes.
///
/// # Safety
/// Each address has as many readable bytes as its span.
pub unsafe fn write(
    optimizer: &mut Optimizer,
    spans: &[Span],
    from: &[*mut u8],
    steps: u64,
    skipped_steps: u64,
) -> Result<()> {
    let layout = Layout::new(optimizer.whole())?;
    let (items, sizes) = items(optimizer, &layout)?;
    let checked = check_spans(optimizer, spans, &sizes);
    optimizer.together(checked, "the state")?;
    let held = share(optimizer, spans)?;
    // The same on every rank, so that all refuse it.
    let mut paths = reserved(items.len(), PARTS)?;
    for item in &items {
        paths.push(sources(item, &held)?.ok_or_else(|| {
            let name = &optimizer.whole().params[item.param].spec.name;
            bad!("some of the {} bytes of the state of parameter '{name}' are on no rank", sizes[item.param])
                .at(item.param)
        })?);
    }
    let rank = optimizer.ranks().map_or(0, |ranks| ranks.rank_and_size().0);
    let total: usize = items.iter().filter(|item| item.owner == rank).map(|item| item.bytes as usize).sum();
    let mut own: Vec<u8> = reserved(total, "reading the state")?;
    let here = |item: &Item, within: usize, len: usize| {
        let place = item.offset as usize + within - spans[item.param].offset as usize;
        // SAFETY: the caller's contract; the bytes lie within the span.
        unsafe { std::slice::from_raw_parts(from[item.param].add(place), len) }
    };
    let mut mail = Mail::default();
    if let Some(mut ranks) = optimizer.lend_ranks() {
        let (comm, _) = ranks.post();
        let mut move_all = || -> Result<()> {
            mail.begin(0)?;
            for to in 0..comm.size {
                for (item, path) in
                    items.iter().zip(&paths).filter(|(item, _)| item.owner == to && to != rank)
                {
                    for (_, within, len) in path.iter().filter(|(source, ..)| *source == rank) {
                        mail.put(here(item, *within, *len))?;
                    }
                }
                mail.close(comm)?;
            }
            let mut expected = filled(0, comm.size, PARTS)?;
            for (_, path) in items.iter().zip(&paths).filter(|(item, _)| item.owner == rank) {
                for (source, _, len) in path.iter().filter(|(source, ..)| *source != rank) {
                    expected[*source] += len;
                }
            }
            comm.exchange(&mut mail, expected.into_iter())
        };
        let moved = move_all();
        optimizer.give_ranks_back(ranks);
        moved?;
    }
    let size = held.len();
    let mut cursors = filled(0, size, PARTS)?;
    for (item, path) in items.iter().zip(&paths).filter(|(item, _)| item.owner == rank) {
        for (source, within, len) in path {
            if *source == rank {
                own.extend_from_slice(here(item, *within, *len));
            } else {
                let cursor = &mut cursors[*source];
                own.extend_from_slice(&mail.from(*source)[*cursor..*cursor + len]);
                *cursor += len;
            }
        }
    }
    let taken = take(optimizer, &layout, &items, rank, &own);
    let (mut clocks, records) = optimizer.together(taken, "the state")?;
    share_clocks(optimizer, &mut clocks)?;
    optimizer.restore(clocks, records, steps, skipped_steps)?;
    let mut at = 0;
    for item in items.iter().filter(|item| item.owner == rank) {
        let bytes = &own[at..at + item.bytes as usize];
        at += bytes.len();
        if let Content::Slots(_) = layout.tensors[item.tensor].content
            && let Some(slot) = optimizer.own_slot(layout.slots[item.at])
        {
            optimizer.write_slot(slot, bytes).map_err(|error| optimizer.abandon(error))?;
        }
    }
    Ok(())
}

/// The bytes of a clock went to the owner of the parameter's first block: the owners of the others need it too.
fn share_clocks(optimizer: &mut Optimizer, clocks: &mut [Clock]) -> Result<()> {
    let Some(mut ranks) = optimizer.lend_ranks() else { return Ok(()) };
    let (comm, mail) = ranks.post();
    let (bytes, size) = (std::mem::size_of_val(clocks), comm.size);
    let shared = mail.begin(bytes + 8).and_then(|()| {
        mail.put(bytemuck::cast_slice(clocks))?;
        comm.gather(mail, (0..size).map(|_| bytes))
    });
    for (index, clock) in clocks.iter_mut().enumerate().filter(|_| shared.is_ok()) {
        let owner = optimizer.owner(optimizer.whole().params[index].blocks.start);
        let at = index * size_of::<Clock>();
        *clock = bytemuck::pod_read_unaligned(&mail.from(owner)[at..at + size_of::<Clock>()]);
    }
    optimizer.give_ranks_back(ranks);
    shared
}

/// The clocks and records among this rank's bytes, checked.
fn take(
    optimizer: &Optimizer,
    layout: &Layout,
    items: &[Item],
    rank: usize,
    own: &[u8],
) -> Result<(Vec<Clock>, Vec<FactorRecord>)> {
    let plan = optimizer.whole();
    let mut clocks = filled(Clock::START, plan.params.len(), PARTS)?;
    let fresh = plan.factors.iter().map(|factor| FactorRecord::new(factor.damping.at(0.0)));
    let mut records = listed(fresh, PARTS)?;
    let mut at = 0;
    for item in items.iter().filter(|item| item.owner == rank) {
        let bytes = &own[at..at + item.bytes as usize];
        at += bytes.len();
        match layout.tensors[item.tensor].content {
            Content::Slots(_) => {}
            Content::ClockStep => clocks[item.param].step = bytemuck::pod_read_unaligned(bytes),
            Content::ClockWeight => clocks[item.param].weight = bytemuck::pod_read_unaligned(bytes),
            Content::Gauges => records[layout.factors[item.at]].gauges = bytemuck::pod_read_unaligned(bytes),
            Content::Counters => {
                records[layout.factors[item.at]].counters = bytemuck::pod_read_unaligned(bytes);
            }
        }
    }
    for (factor, record) in plan.factors.iter().zip(&records) {
        check_record(record).map_err(|error| error.at(plan.blocks[factor.block].param))?;
    }
    for (index, clock) in clocks.iter().enumerate() {
        check_clock(clock).map_err(|error| error.at(index))?;
    }
    Ok((clocks, records))
}
