//! Bytes → state. First the header, then every checksum, then every value that steers the optimizer; only a
//! checkpoint that passes all of it changes anything.

use super::header::{Dtype, Entry, Header, KEY};
use super::json::{Quoted, Reader};
use super::layout::{Content, Layout, Name, Tensor};
use super::source::Source;
use super::{Text, bad, no_memory, reserved, save, v1};
use crate::engine::{Clock, Optimizer};
use crate::error::Result;
use crate::preconditioner::{Counters, FactorRecord, Gauges};
use std::fmt::{self, Write};
use std::ops::Range;

/// Largest count that a double holds exactly: no run has more steps.
const MOST: u64 = 1 << 53;
/// Bytes that are checked at once.
const CHUNK: usize = 1 << 16;

/// What a checkpoint restores, once it has been checked.
pub struct Found {
    /// Where the state buffers lie, in the order of the file.
    pub slots: Vec<(u64, usize)>,
    /// Records by factor.
    pub records: Vec<FactorRecord>,
    /// Clocks by parameter.
    pub clocks: Vec<Clock>,
}

/// Checks a checkpoint and takes it over. On an error nothing has changed, unless the source or the device
/// failed in the middle of the writes; the optimizer then counts as lost.
pub fn load(optimizer: &mut Optimizer, source: &mut dyn Source) -> Result<()> {
    let checked = check(optimizer, source);
    let (found, steps, skipped) = optimizer.together(checked, "the checkpoint")?;
    let largest = optimizer.plan().slots.iter().map(|slot| slot.saved_bytes()).max().unwrap_or(0);
    let mut buffer = reserved(largest, "reading the checkpoint")?;
    optimizer.restore(found.clocks, found.records, steps, skipped)?;
    for (at, slot) in found.slots {
        // The parts of other ranks are theirs to read.
        let Some(slot) = optimizer.own_slot(slot) else { continue };
        buffer.clear();
        buffer.resize(optimizer.plan().slots[slot].saved_bytes(), 0);
        let written = source.read_at(at, &mut buffer).and_then(|()| optimizer.write_slot(slot, &buffer));
        written.map_err(|error| optimizer.abandon(error))?;
    }
    Ok(())
}

/// All of the checkpoint, checked, and the totals.
fn check(optimizer: &Optimizer, source: &mut dyn Source) -> Result<(Found, u64, u64)> {
    let plan = optimizer.whole();
    let layout = Layout::new(plan)?;
    let usual = layout.tensors.len().max(v1::tensors(plan));
    // Enough to say what is wrong with the file of a similar model; more would only cost memory.
    let mut header = Header::read(source, 1000 + 2 * usual)?;
    let text = header
        .about
        .take()
        .ok_or_else(|| bad!("the file has no '{KEY}' metadata; expected a checkpoint written by libfoam"))?;
    let mut about = About::read(&text)?;
    about.check_period(optimizer)?;
    let found = match about.format {
        Some(1) => v1::find(optimizer, &mut header, &mut about, source)?,
        Some(save::FORMAT) => find(optimizer, &layout, &mut header, &mut about, source)?,
        Some(other) => return Err(bad!("format = {other}: expected 1 or {}", save::FORMAT)),
        None => return Err(bad!("the metadata has no 'format'; expected 1 or {}", save::FORMAT)),
    };
    let (steps, skipped) = (count("steps", about.steps)?, count("skipped_steps", about.skipped_steps)?);
    Ok((found, steps, skipped))
}

fn count(key: &str, found: Option<u64>) -> Result<u64> {
    let found = found.ok_or_else(|| bad!("the metadata has no '{key}'; expected a count"))?;
    if found > MOST {
        return Err(bad!("metadata {key} = {found}: expected at most {MOST}"));
    }
    Ok(found)
}

/// A parameter in the file's list.
struct Listed {
    name: Range<usize>,
    shape: Range<usize>,
    dtype: Range<usize>,
}

/// The JSON object under [`KEY`].
#[derive(Default)]
pub struct About {
    format: Option<u64>,
    steps: Option<u64>,
    skipped_steps: Option<u64>,
    /// The option of that name; none in files that were written before it existed.
    statistics_period: Option<i64>,
    /// For every column of a record, the field that it holds, if we know it.
    gauges: Vec<Option<usize>>,
    counters: Vec<Option<usize>>,
    params: Vec<Listed>,
    /// Names and types of parameters, one behind the other.
    words: Text,
    sizes: Vec<usize>,
}

impl About {
    fn read(text: &str) -> Result<About> {
        let mut about = About::default();
        let mut reader = Reader::new(text);
        let read = reader.object(|reader, key| about.member(reader, key)).and_then(|()| reader.end());
        read.map_err(|mut error| {
            if error.kind == crate::error::Kind::BadCheckpoint {
                error.message = super::text(format_args!("the metadata '{KEY}': {}", error.message));
            }
            error
        })?;
        Ok(about)
    }

    fn member(&mut self, reader: &mut Reader, key: Quoted) -> Result<()> {
        if key.is("format") {
            self.format = Some(reader.whole()?);
        } else if key.is("steps") {
            self.steps = Some(reader.whole()?);
        } else if key.is("skipped_steps") {
            self.skipped_steps = Some(reader.whole()?);
        } else if key.is("gauges") {
            columns(reader, Gauges::FIELDS, &mut self.gauges)?;
        } else if key.is("counters") {
            columns(reader, Counters::FIELDS, &mut self.counters)?;
        } else if key.is("config") {
            reader.object(|reader, key| {
                if !key.is("statistics_period") {
                    return reader.skip();
                }
                let mut text = Text::default();
                reader.string()?.append_to(&mut text)?;
                let period = text.parse().map_err(|_| bad!("config.statistics_period is no whole number"))?;
                self.statistics_period = Some(period);
                Ok(())
            })?;
        } else if key.is("params") {
            reader.array(|reader| self.param(reader))?;
        } else {
            reader.skip()?;
        }
        Ok(())
    }

    fn param(&mut self, reader: &mut Reader) -> Result<()> {
        let mut listed = Listed { name: 0..0, shape: 0..0, dtype: 0..0 };
        reader.object(|reader, key| {
            let begin = self.words.len();
            if key.is("name") {
                reader.string()?.append_to(&mut self.words)?;
                listed.name = begin..self.words.len();
            } else if key.is("dtype") {
                reader.string()?.append_to(&mut self.words)?;
                listed.dtype = begin..self.words.len();
            } else if key.is("shape") {
                let begin = self.sizes.len();
                let sizes = &mut self.sizes;
                reader.array(|reader| push(sizes, usize::try_from(reader.whole()?).unwrap_or(usize::MAX)))?;
                listed.shape = begin..self.sizes.len();
            } else {
                reader.skip()?;
            }
            Ok(())
        })?;
        push(&mut self.params, listed)
    }

    /// The gradients in the statistics are counted by this option, and not in the state.
    fn check_period(&self, optimizer: &Optimizer) -> Result<()> {
        let (found, expected) = (self.statistics_period.unwrap_or(1), optimizer.config().statistics_period);
        if found != expected {
            return Err(bad!(
                "the file was written with statistics_period = {found}, which the weight of its statistics is counted by: expected {expected}, as in this optimizer"
            ));
        }
        Ok(())
    }

    /// The file's list of parameters must be the optimizer's, in any order.
    pub fn check_params(&mut self, optimizer: &Optimizer) -> Result<()> {
        let (words, sizes) = (&self.words, &self.sizes);
        self.params.sort_unstable_by(|a, b| words[a.name.clone()].cmp(&words[b.name.clone()]));
        for (index, param) in optimizer.plan().params.iter().enumerate() {
            let spec = &param.spec;
            let at = self.params.binary_search_by(|listed| words[listed.name.clone()].cmp(&*spec.name));
            let found = &self.params[at.map_err(|_| {
                bad!("the file has no parameter '{}'; it belongs to another model", spec.name).at(index)
            })?];
            let (shape, dtype) = (&sizes[found.shape.clone()], &words[found.dtype.clone()]);
            if *shape != *spec.shape || dtype != spec.dtype.name() {
                return Err(bad!(
                    "parameter '{}' is {dtype} {} in the file: expected {} {}",
                    spec.name,
                    Shape(shape),
                    spec.dtype.name(),
                    Shape(&spec.shape)
                )
                .at(index));
            }
        }
        let (listed, expected) = (self.params.len(), optimizer.plan().params.len());
        if listed != expected {
            return Err(bad!("the file has {listed} parameters: expected {expected}"));
        }
        Ok(())
    }
}

fn push<T>(list: &mut Vec<T>, item: T) -> Result<()> {
    list.try_reserve(1).map_err(|_| no_memory("the header of the checkpoint", size_of::<T>() as u128))?;
    list.push(item);
    Ok(())
}

/// Which field each column of a record is.
fn columns(reader: &mut Reader, fields: &[&str], columns: &mut Vec<Option<usize>>) -> Result<()> {
    columns.clear();
    reader.array(|reader| {
        let name = reader.string()?;
        push(columns, fields.iter().position(|field| name.is(field)))
    })
}

/// A shape in messages.
pub struct Shape<'a>(pub &'a [usize]);

impl fmt::Display for Shape<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        super::json::list(f, self.0, |out, size| write!(out, "{size}"))
    }
}

/// The tensors of a file by name.
pub struct Index<'a> {
    header: &'a Header,
    order: Vec<usize>,
}

impl<'a> Index<'a> {
    /// The index of a header whose tensors were all kept.
    pub fn new(header: &'a Header) -> Result<Index<'a>> {
        let entries = header.entries();
        let mut order = reserved(entries.len(), "the header of the checkpoint")?;
        order.extend(0..entries.len());
        let name = |at: usize| header.name(&entries[at]);
        order.sort_unstable_by(|a, b| name(*a).cmp(name(*b)));
        if let Some(pair) = order.windows(2).find(|pair| name(pair[0]) == name(pair[1])) {
            return Err(bad!("the file has two tensors '{}'", name(pair[0])));
        }
        Ok(Index { header, order })
    }

    /// The tensor `name`, which must have this type and shape.
    pub fn find(&self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<&'a Entry> {
        let entries = self.header.entries();
        let at =
            self.order.binary_search_by(|at| self.header.name(&entries[*at]).cmp(name)).map_err(|_| {
                bad!("the file has no tensor '{name}'; it was written with other options: expected one")
            })?;
        let entry = &entries[self.order[at]];
        let found = self.header.shape(entry);
        if entry.dtype != dtype || found != shape {
            return Err(bad!(
                "tensor '{name}' is {} {} in the file: expected {dtype} {}",
                entry.dtype,
                Shape(found),
                Shape(shape)
            ));
        }
        Ok(entry)
    }
}

/// The number of tensors must be the plan's.
pub fn check_count(header: &Header, expected: usize) -> Result<()> {
    if header.count != expected {
        return Err(bad!(
            "the file has {} tensors: expected {expected}; it was written with other options",
            header.count
        ));
    }
    Ok(())
}

/// Finds and checks everything in a file of the present format.
fn find(
    optimizer: &Optimizer,
    layout: &Layout,
    header: &mut Header,
    about: &mut About,
    source: &mut dyn Source,
) -> Result<Found> {
    let plan = optimizer.whole();
    header.check_places(source.size())?;
    let header = &*header;
    check_sums(header, source)?;
    about.check_params(optimizer)?;
    let index = Index::new(header)?;
    let mut found = Found {
        slots: reserved(plan.slots.len(), "reading the checkpoint")?,
        records: reserved(plan.factors.len(), "reading the checkpoint")?,
        clocks: reserved(plan.params.len(), "reading the checkpoint")?,
    };
    found.records.extend(plan.factors.iter().map(|factor| FactorRecord::new(factor.damping.at(0.0))));
    found.clocks.resize(plan.params.len(), Clock { step: 0, weight: 1.0 });
    let mut name = Text::default();
    let mut shape = Vec::new();
    for tensor in &layout.tensors {
        name.clear();
        write!(name, "{}", Name(plan, tensor)).map_err(|_| no_memory("reading the checkpoint", 0))?;
        shape.clear();
        let mut kept = Ok(());
        layout.shape(plan, tensor, |size| kept = kept.clone().and_then(|()| push(&mut shape, size)));
        kept?;
        match tensor.content {
            Content::Gauges => shape[1] = about.gauges.len(),
            Content::Counters => shape[1] = about.counters.len(),
            _ => {}
        }
        let entry = index.find(&name, tensor.dtype, &shape).map_err(|error| error.at(tensor.param))?;
        take(layout, tensor, entry.bytes.start, about, source, &mut found)?;
    }
    check_count(header, layout.tensors.len() + 1)?;
    for tensor in &layout.tensors {
        for at in tensor.items.clone() {
            let checked = match tensor.content {
                Content::Counters => check_record(&found.records[layout.factors[at]]),
                Content::ClockStep => check_clock(&found.clocks[tensor.param]),
                _ => continue,
            };
            checked.map_err(|mut error| {
                error.message = super::text(format_args!("'{}': {}", Name(plan, tensor), error.message));
                error.at(tensor.param)
            })?;
        }
    }
    found.slots.sort_unstable();
    Ok(found)
}

/// Reads the records and clocks of a tensor, or remembers where its state buffers lie.
fn take(
    layout: &Layout,
    tensor: &Tensor,
    begin: u64,
    about: &About,
    source: &mut dyn Source,
    found: &mut Found,
) -> Result<()> {
    let mut at = begin;
    let mut word = || {
        let mut bytes = [0; 8];
        source.read_at(at, &mut bytes)?;
        at += 8;
        Ok::<_, crate::error::Error>(bytes)
    };
    for (number, item) in tensor.items.clone().enumerate() {
        match tensor.content {
            Content::Slots(_) => {
                let place = begin + (number * tensor.item) as u64;
                found.slots.push((place, layout.slots[item]));
            }
            Content::ClockStep => found.clocks[tensor.param].step = u64::from_le_bytes(word()?),
            Content::ClockWeight => found.clocks[tensor.param].weight = f64::from_le_bytes(word()?),
            Content::Gauges => {
                let gauges = &mut found.records[layout.factors[item]].gauges;
                let fields: &mut [f64] = bytemuck::cast_slice_mut(std::slice::from_mut(gauges));
                for column in &about.gauges {
                    let value = f64::from_le_bytes(word()?);
                    column.iter().for_each(|field| fields[*field] = value);
                }
            }
            Content::Counters => {
                let counters = &mut found.records[layout.factors[item]].counters;
                let fields: &mut [i64] = bytemuck::cast_slice_mut(std::slice::from_mut(counters));
                for column in &about.counters {
                    let value = i64::from_le_bytes(word()?);
                    column.iter().for_each(|field| fields[*field] = value);
                }
            }
        }
    }
    Ok(())
}

/// Compares the checksum of the header and of every tensor.
fn check_sums(header: &Header, source: &mut dyn Source) -> Result<()> {
    let entries = header.entries();
    let Some((last, others)) = entries.split_last().filter(|(last, _)| {
        header.name(last) == save::CHECKSUMS
            && last.dtype == Dtype::U32
            && *header.shape(last) == [entries.len() + 1]
    }) else {
        return Err(bad!(
            "the last tensor is not '{}' with {} checksums; the file is damaged",
            save::CHECKSUMS,
            entries.len() + 1
        ));
    };
    let mut sums: Vec<u8> = reserved(4 * (entries.len() + 1), "the checksums of the checkpoint")?;
    sums.resize(4 * (entries.len() + 1), 0);
    source.read_at(last.bytes.start, &mut sums)?;
    let stated =
        |at: usize| u32::from_le_bytes([sums[4 * at], sums[4 * at + 1], sums[4 * at + 2], sums[4 * at + 3]]);
    if crc32fast::hash(&sums[..4 * entries.len()]) != stated(entries.len()) {
        return Err(bad!(
            "tensor '{}' does not match its own checksum; the file is damaged",
            save::CHECKSUMS
        ));
    }
    if header.crc != stated(0) {
        return Err(bad!("the header does not match its checksum; the file is damaged"));
    }
    let mut chunk = reserved(CHUNK, "reading the checkpoint")?;
    for (number, entry) in others.iter().enumerate() {
        let mut crc = crc32fast::Hasher::new();
        let mut at = entry.bytes.start;
        while at < entry.bytes.end {
            chunk.resize((entry.bytes.end - at).min(CHUNK as u64) as usize, 0);
            source.read_at(at, &mut chunk)?;
            crc.update(&chunk);
            at += chunk.len() as u64;
        }
        if crc.finalize() != stated(number + 1) {
            return Err(bad!(
                "tensor '{}' does not match its checksum; the file is damaged",
                header.name(entry)
            ));
        }
    }
    Ok(())
}

/// Records and clocks are held to what the engine can write itself. All other numbers are taken as they are, for
/// they are saved as they are: an inverse root may have overflowed.
pub fn check_record(record: &FactorRecord) -> Result<()> {
    record.fault().map_or(Ok(()), |fault| Err(bad!("{fault}")))
}

/// See [`check_record`].
pub fn check_clock(clock: &Clock) -> Result<()> {
    clock.fault().map_or(Ok(()), |fault| Err(bad!("{fault}")))
}
