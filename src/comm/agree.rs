//! Agreement at creation: all ranks must have the same options and parameters. They compare hashes; only if these
//! differ do the descriptions travel, so that the error can name what differs, the same on every rank.

use super::{Comm, Mail, WHAT};
use crate::config::{Config, OPTIONS};
use crate::engine::plan::{ParamSpec, Shard};
use crate::error::{Error, Result};
use crate::memory::{Text, listed, tried, whole_text};
use bytemuck::{Pod, Zeroable};
use std::fmt::{self, Write};

/// What ranks may have differently: where they work, and what a fault is injected into.
const OWN: [&str; 4] = ["device", "num_threads", "inject_fault", "inject_fault_step"];
/// Version of what ranks tell each other.
const PROTOCOL: u64 = 1;

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
struct Greeting {
    protocol: u64,
    rank: u64,
    size: u64,
    /// The description's hash, and its bytes.
    hash: u64,
    bytes: u64,
    params: u64,
    /// 1 if this rank cannot go on; its words are then the description.
    failed: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
struct Held {
    /// Axis + 1; 0 for the whole parameter.
    axis: u64,
    start: u64,
    length: u64,
}

/// A hash that is the same on every machine (FNV-1a), of what is written to it.
struct Hash(u64);

impl fmt::Write for Hash {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let add = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        self.0 = text.bytes().fold(self.0, add);
        Ok(())
    }
}

fn hashed(write: impl FnOnce(&mut Hash) -> fmt::Result) -> u64 {
    let mut hash = Hash(0xcbf2_9ce4_8422_2325);
    // Nothing that is written here can fail.
    let _ = write(&mut hash);
    hash.0
}

/// The hash of the options that all ranks must share.
pub fn options_hash(config: &Config) -> u64 {
    hashed(|hash| write_options(config, hash))
}

/// The options that all ranks must share, one per line.
fn write_options(config: &Config, out: &mut dyn Write) -> fmt::Result {
    for option in OPTIONS.iter().filter(|option| !OWN.contains(&option.key)) {
        write!(out, "{} = ", option.key)?;
        option.print(config, out)?;
        out.write_str("\n")?;
    }
    Ok(())
}

fn describe(config: &Config, specs: &[ParamSpec]) -> Result<String> {
    let mut text = Text::default();
    let written = write_description(config, specs, &mut text);
    written.map_err(|_| Error::out_of_memory("the description for the ranks", text.0.len() as u128))?;
    Ok(text.0)
}

fn write_description(config: &Config, specs: &[ParamSpec], out: &mut dyn Write) -> fmt::Result {
    writeln!(out, "libfoam {}", env!("CARGO_PKG_VERSION"))?;
    write_options(config, out)?;
    for (index, spec) in specs.iter().enumerate() {
        write!(out, "parameter {index} = '")?;
        // One line per parameter, whatever its name.
        spec.name.chars().try_for_each(|c| out.write_char(if c == '\n' { ' ' } else { c }))?;
        writeln!(
            out,
            "' {} {:?}, lr_scale {}, weight_decay_scale {}, root {}, grafting_only {}",
            spec.dtype.name(),
            spec.shape,
            spec.lr_scale,
            spec.weight_decay_scale,
            spec.root,
            spec.grafting_only
        )?;
    }
    Ok(())
}

/// Compares options and parameters over all ranks, and tells which part of every parameter each rank holds: by
/// parameter, then by rank. `refused` is why this rank cannot go on, if so: then all ranks learn of it.
pub fn agree(
    comm: &mut Comm,
    config: &Config,
    specs: &[ParamSpec],
    refused: Option<&Error>,
) -> Result<Vec<Vec<Option<Shard>>>> {
    // Without memory for the description this rank tells the others so.
    let described = refused.map_or_else(|| describe(config, specs), |error| Err(error.clone()));
    let (text, refused) = match &described {
        Ok(text) => (text, None),
        Err(error) => (&error.message, Some(error)),
    };
    let mut mail = Mail::default();
    let greeting = Greeting {
        protocol: PROTOCOL,
        rank: comm.rank as u64,
        size: comm.size as u64,
        hash: hashed(|hash| hash.write_str(text)),
        bytes: text.len() as u64,
        params: specs.len() as u64,
        failed: refused.is_some().into(),
    };
    mail.begin(size_of::<Greeting>() + 8)?;
    mail.put(bytemuck::bytes_of(&greeting))?;
    let size = comm.size;
    comm.gather(&mut mail, (0..size).map(|_| size_of::<Greeting>()))?;
    let greetings: Vec<Greeting> =
        listed((0..size).map(|rank| bytemuck::pod_read_unaligned(mail.from(rank))), WHAT)?;
    for (place, said) in greetings.iter().enumerate() {
        let differs = |what: &str, found: u64, expected: u64| {
            Err(Error::invalid(format!(
                "comm: the rank at place {place} says {what} = {found}: expected {expected}, as on rank {}",
                comm.rank
            )))
        };
        if said.protocol != PROTOCOL {
            return differs("protocol", said.protocol, PROTOCOL);
        }
        if said.size != size as u64 {
            return differs("size", said.size, size as u64);
        }
        if said.rank != place as u64 {
            return Err(Error::invalid(format!(
                "comm: the rank at place {place} says rank = {}: expected the ranks in order",
                said.rank
            )));
        }
    }
    let failed = greetings.iter().position(|said| said.failed != 0);
    if failed.is_some() || greetings.iter().any(|said| said.hash != greetings[0].hash) {
        mail.begin(text.len() + 8)?;
        mail.put(text.as_bytes())?;
        comm.gather(&mut mail, greetings.iter().map(|said| said.bytes as usize))?;
        let said = |rank| whole_text(format_args!("{}", String::from_utf8_lossy(mail.from(rank))), WHAT);
        let texts: Vec<String> = tried((0..size).map(said), WHAT)?;
        if let Some(rank) = failed {
            return Err(refused.filter(|_| comm.rank == rank).cloned().unwrap_or_else(|| {
                Error::invalid(format!("rank {rank} refused the creation: {}", texts[rank]))
            }));
        }
        return Err(Error::invalid(difference(&texts)));
    }
    share_parts(comm, specs, &mut mail)
}

/// The first difference between what the ranks said.
fn difference(texts: &[String]) -> String {
    let Some(other) = (1..texts.len()).find(|rank| texts[*rank] != texts[0]) else {
        return "the ranks' descriptions differ in their hashes only".into();
    };
    let (mut mine, mut its) = (texts[0].lines(), texts[other].lines());
    loop {
        match (mine.next(), its.next()) {
            (Some(a), Some(b)) if a == b => {}
            (a, b) => {
                let (a, b) = (a.unwrap_or("nothing more"), b.unwrap_or("nothing more"));
                return format!(
                    "the ranks differ: rank 0 has {a}; rank {other} has {b}; expected the same on every rank"
                );
            }
        }
    }
}

fn share_parts(comm: &mut Comm, specs: &[ParamSpec], mail: &mut Mail) -> Result<Vec<Vec<Option<Shard>>>> {
    let bytes = specs.len() * size_of::<Held>();
    mail.begin(bytes + 8)?;
    for spec in specs {
        let held = spec.shard.map_or(Held::default(), |shard| Held {
            axis: shard.axis as u64 + 1,
            start: shard.start as u64,
            length: shard.length as u64,
        });
        mail.put(bytemuck::bytes_of(&held))?;
    }
    let size = comm.size;
    comm.gather(mail, (0..size).map(|_| bytes))?;
    let part = |rank: usize, param: usize| {
        let begin = param * size_of::<Held>();
        let held: Held = bytemuck::pod_read_unaligned(&mail.from(rank)[begin..begin + size_of::<Held>()]);
        (held.axis > 0).then(|| Shard {
            axis: held.axis as usize - 1,
            start: held.start as usize,
            length: held.length as usize,
        })
    };
    tried((0..specs.len()).map(|param| listed((0..size).map(|rank| part(rank, param)), WHAT)), WHAT)
}

/// Tells all ranks whether this one may go on; if one may not, the error says which, and why.
pub fn all_well<T>(comm: &mut Comm, mail: &mut Mail, outcome: Result<T>, doing: &str) -> Result<T> {
    const WORDS: usize = 256;
    let mut words = [0u8; WORDS];
    if let Err(error) = &outcome {
        let text = error.message.as_bytes();
        let len = text.len().clamp(1, WORDS);
        words[..len.min(text.len())].copy_from_slice(&text[..len.min(text.len())]);
        words[0] = words[0].max(1);
    }
    mail.begin(WORDS + 8)?;
    mail.put(&words)?;
    let size = comm.size;
    comm.gather(mail, (0..size).map(|_| WORDS))?;
    let value = outcome?;
    match (0..size).find(|rank| mail.from(*rank)[0] != 0) {
        None => Ok(value),
        Some(rank) => {
            let said = mail.from(rank);
            let end = said.iter().position(|byte| *byte == 0).unwrap_or(said.len());
            let said = String::from_utf8_lossy(&said[..end]);
            Err(Error::invalid(format!("rank {rank} refused {doing}: {said}")))
        }
    }
}
