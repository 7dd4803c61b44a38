//! Agreement at creation: all ranks must have the same options and parameters. They compare hashes; only if these
//! differ do the descriptions travel, so that the error can name what differs, the same on every rank.

use super::{Comm, Mail};
use crate::config::{Config, OPTIONS};
use crate::engine::plan::{ParamSpec, Shard};
use crate::error::{Error, Result};
use bytemuck::{Pod, Zeroable};

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

/// A hash that is the same on every machine (FNV-1a).
pub fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// The options that all ranks must share, one per line.
pub fn options_text(config: &Config) -> String {
    let mut text = String::new();
    for option in OPTIONS.iter().filter(|option| !OWN.contains(&option.key)) {
        text += option.key;
        text += " = ";
        let _ = option.print(config, &mut text);
        text += "\n";
    }
    text
}

fn describe(config: &Config, specs: &[ParamSpec]) -> String {
    let mut text = format!("libfoam {}\n", env!("CARGO_PKG_VERSION"));
    text += &options_text(config);
    for (index, spec) in specs.iter().enumerate() {
        text += &format!(
            "parameter {index} = '{}' {} {:?}, lr_scale {}, weight_decay_scale {}, root {}, grafting_only {}\n",
            spec.name.replace('\n', " "),
            spec.dtype.name(),
            spec.shape,
            spec.lr_scale,
            spec.weight_decay_scale,
            spec.root,
            spec.grafting_only
        );
    }
    text
}

/// Compares options and parameters over all ranks, and tells which part of every parameter each rank holds: by
/// parameter, then by rank. `refused` is why this rank cannot go on, if so: then all ranks learn of it.
pub fn agree(
    comm: &mut Comm,
    config: &Config,
    specs: &[ParamSpec],
    refused: Option<&Error>,
) -> Result<Vec<Vec<Option<Shard>>>> {
    let text = refused.map_or_else(|| describe(config, specs), |error| error.message.clone());
    let mut mail = Mail::default();
    let greeting = Greeting {
        protocol: PROTOCOL,
        rank: comm.rank as u64,
        size: comm.size as u64,
        hash: hash(&text),
        bytes: text.len() as u64,
        params: specs.len() as u64,
        failed: refused.is_some().into(),
    };
    mail.begin(size_of::<Greeting>() + 8)?;
    mail.put(bytemuck::bytes_of(&greeting));
    let size = comm.size;
    comm.gather(&mut mail, (0..size).map(|_| size_of::<Greeting>()))?;
    let greetings: Vec<Greeting> =
        (0..size).map(|rank| bytemuck::pod_read_unaligned(mail.from(rank))).collect();
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
        mail.put(text.as_bytes());
        comm.gather(&mut mail, greetings.iter().map(|said| said.bytes as usize))?;
        let texts: Vec<String> =
            (0..size).map(|rank| String::from_utf8_lossy(mail.from(rank)).into_owned()).collect();
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
                let say = |line: Option<&str>| line.unwrap_or("nothing more").to_string();
                return format!(
                    "the ranks differ: rank 0 has {}; rank {other} has {}; expected the same on every rank",
                    say(a),
                    say(b)
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
        mail.put(bytemuck::bytes_of(&held));
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
    Ok((0..specs.len()).map(|param| (0..size).map(|rank| part(rank, param)).collect()).collect())
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
    mail.put(&words);
    let size = comm.size;
    comm.gather(mail, (0..size).map(|_| WORDS))?;
    let value = outcome?;
    match (0..size).find(|rank| mail.from(*rank)[0] != 0) {
        None => Ok(value),
        Some(rank) => {
            let said: Vec<u8> = mail.from(rank).iter().copied().take_while(|byte| *byte != 0).collect();
            let said = String::from_utf8_lossy(&said);
            Err(Error::invalid(format!("rank {rank} refused {doing}: {said}")))
        }
    }
}
