//! Files of the first format: one tensor for each state buffer and record, records in the order of that time,
//! no checksums.

use super::header::{Dtype, Header};
use super::layout::dtype;
use super::load::{About, Found, Index, check_clock, check_count, check_record};
use super::source::Source;
use super::{Text, bad, no_memory, reserved};
use crate::engine::plan::{Plan, SlotKind};
use crate::engine::{Clock, Optimizer};
use crate::error::Result;
use crate::preconditioner::{Counters, FactorRecord, Gauges};
use crate::tensor::Precision;
use std::fmt::{self, Write};

/// The fields of a record when the format was current.
const GAUGES: [&str; 10] = [
    "epsilon",
    "proxy",
    "max_proxy",
    "relative_change",
    "alpha",
    "gap_bound",
    "residual",
    "noise_floor",
    "eigenvalue_min",
    "eigenvalue_max",
];
const COUNTERS: [&str; 15] = [
    "branch",
    "has_basis",
    "last_refresh",
    "last_check",
    "checks",
    "evd_calls",
    "reuse_calls",
    "proxy_calls",
    "epsilon_updates",
    "cap_refreshes",
    "residual_calls",
    "failed_evds",
    "fallback_double",
    "fallback_svd",
    "fallback_stale",
];

/// How many tensors a file for `plan` has.
pub fn tensors(plan: &Plan) -> usize {
    plan.slots.len() + 2 * plan.factors.len() + 2 * plan.params.len()
}

/// What tensors of a block are named after.
struct Block<'a>(&'a Plan, usize);

impl fmt::Display for Block<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Block(plan, block) = *self;
        let param = &plan.params[plan.blocks[block].param];
        write!(f, "{}/block{}", param.spec.name, block - param.blocks.start)
    }
}

/// Finds and checks everything in a file of the first format. Without checksums, numbers that are not finite
/// are the one sign of damage; but an inverse root may overflow.
pub fn find(
    optimizer: &Optimizer,
    header: &mut Header,
    about: &mut About,
    source: &mut dyn Source,
) -> Result<Found> {
    let plan = optimizer.whole();
    about.check_params(optimizer)?;
    header.check_places(source.size())?;
    let index = Index::new(header)?;
    let mut name = Text::default();
    let mut place = |message: fmt::Arguments, dtype: Dtype, shape: &[usize]| {
        name.clear();
        name.write_fmt(message).map_err(|_| no_memory("reading the checkpoint", 0))?;
        index.find(&name, dtype, shape).map(|entry| entry.bytes.start)
    };
    let mut slots = reserved(plan.slots.len(), "reading the checkpoint")?;
    let order = plan.slots.iter().map(|slot| slot.saved_dims().count()).max().unwrap_or(0);
    let mut dims = reserved(order, "reading the checkpoint")?;
    for (id, slot) in plan.slots.iter().enumerate() {
        let (block, kind) = (Block(plan, slot.block), slot.kind.saved().name());
        dims.clear();
        dims.extend(slot.saved_dims());
        let (dtype, dims) = (dtype(slot.precision), &dims);
        let at = match slot.axis {
            Some(axis) => place(format_args!("{block}/axis{axis}/{kind}"), dtype, dims)?,
            None => place(format_args!("{block}/{kind}"), dtype, dims)?,
        };
        slots.push((at, id));
    }
    let mut records = reserved(plan.factors.len(), "reading the checkpoint")?;
    for factor in &plan.factors {
        let (block, axis) = (Block(plan, factor.block), factor.axis);
        let mut record = FactorRecord::new(factor.damping.at(0.0));
        let at = place(format_args!("{block}/axis{axis}/gauges"), Dtype::F64, &[GAUGES.len()])?;
        let gauges: &mut [f64] = bytemuck::cast_slice_mut(std::slice::from_mut(&mut record.gauges));
        words(source, at, &GAUGES, Gauges::FIELDS, |field, word| gauges[field] = f64::from_le_bytes(word))?;
        let at = place(format_args!("{block}/axis{axis}/counters"), Dtype::I64, &[COUNTERS.len()])?;
        let counters: &mut [i64] = bytemuck::cast_slice_mut(std::slice::from_mut(&mut record.counters));
        words(source, at, &COUNTERS, Counters::FIELDS, |field, word| {
            counters[field] = i64::from_le_bytes(word)
        })?;
        check_record(&record).map_err(|e| bad!("'{block}/axis{axis}': {}", e.message))?;
        records.push(record);
    }
    let mut clocks = reserved(plan.params.len(), "reading the checkpoint")?;
    for param in &plan.params {
        let key = &param.spec.name;
        let (mut step, mut weight) = ([0; 8], [0; 8]);
        source.read_at(place(format_args!("{key}/clock.step"), Dtype::I64, &[1])?, &mut step)?;
        source.read_at(place(format_args!("{key}/clock.weight"), Dtype::F64, &[1])?, &mut weight)?;
        let clock = Clock { step: u64::from_le_bytes(step), weight: f64::from_le_bytes(weight) };
        check_clock(&clock).map_err(|e| bad!("'{key}/clock': {}", e.message))?;
        clocks.push(clock);
    }
    check_count(header, tensors(plan))?;
    slots.sort_unstable();
    let largest = plan.slots.iter().map(|slot| slot.saved_bytes()).max().unwrap_or(0);
    let mut buffer = reserved(largest, "reading the checkpoint")?;
    for (at, id) in &slots {
        let slot = &plan.slots[*id];
        buffer.resize(slot.saved_bytes(), 0);
        source.read_at(*at, &mut buffer)?;
        if slot.kind.saved() != SlotKind::InverseRoot && !finite(slot.precision, &buffer) {
            let (block, kind) = (Block(plan, slot.block), slot.kind.saved().name());
            return Err(bad!("'{block}': its {kind} has values that are not finite"));
        }
    }
    Ok(Found { slots, records, clocks })
}

fn words(
    source: &mut dyn Source,
    at: u64,
    columns: &[&str],
    fields: &[&str],
    mut set: impl FnMut(usize, [u8; 8]),
) -> Result<()> {
    for (number, column) in columns.iter().enumerate() {
        let mut word = [0; 8];
        source.read_at(at + 8 * number as u64, &mut word)?;
        if let Some(field) = fields.iter().position(|field| field == column) {
            set(field, word);
        }
    }
    Ok(())
}

fn finite(precision: Precision, bytes: &[u8]) -> bool {
    match precision {
        Precision::F32 => bytes.chunks_exact(4).all(|b| bytemuck::pod_read_unaligned::<f32>(b).is_finite()),
        Precision::F64 => bytes.chunks_exact(8).all(|b| bytemuck::pod_read_unaligned::<f64>(b).is_finite()),
    }
}
