//! The format: a safetensors file with one tensor a state buffer and one a record, and a JSON object
//! under the metadata key `foam`.
//!
//! | tensor | type, shape | holds |
//! | --- | --- | --- |
//! | `NAME/clock.step`, `NAME/clock.weight` | I64 [1], F64 [1] | the parameter's clock |
//! | `NAME/blockB/filter`, `moment`, `momentum` | work precision, the block's shape | moments |
//! | `NAME/blockB/axisK/statistic`, `basis`, `inverse_root` | [n, n] | lower triangle of the (unweighted) statistic; Qᵀ; inverse root |
//! | `NAME/blockB/axisK/spectrum` | [n] | eigenvalues |
//! | `NAME/blockB/axisK/gauges`, `counters` | F64 [10], I64 [15] | the record, in the order of its struct |
//!
//! A file is read whole and checked whole before anything is changed.

use crate::engine::plan::Slot;
use crate::engine::{Clock, Optimizer};
use crate::error::{Error, Result};
use crate::preconditioner::{Branch, Counters, FactorRecord, Gauges};
use crate::tensor::Precision;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::{Value, json};
use std::collections::HashMap;

/// Version of the format.
const FORMAT: u64 = 1;
/// The metadata key.
const KEY: &str = "foam";

/// Everything that a checkpoint restores.
pub struct Restored {
    /// Clocks by parameter.
    pub clocks: Vec<Clock>,
    /// Records by factor.
    pub records: Vec<FactorRecord>,
    /// Bytes by state buffer.
    pub buffers: Vec<Vec<u8>>,
    /// Steps taken.
    pub steps: u64,
    /// Steps skipped.
    pub skipped_steps: u64,
}

fn dtype(precision: Precision) -> Dtype {
    match precision {
        Precision::F32 => Dtype::F32,
        Precision::F64 => Dtype::F64,
    }
}

fn block_key(optimizer: &Optimizer, block: usize) -> String {
    let plan = optimizer.plan();
    let param = &plan.params[plan.blocks[block].param];
    format!("{}/block{}", param.spec.name, block - param.blocks.start)
}

fn slot_key(optimizer: &Optimizer, slot: &Slot) -> String {
    let block = block_key(optimizer, slot.block);
    match slot.axis {
        Some(axis) => format!("{block}/axis{axis}/{}", slot.kind.name()),
        None => format!("{block}/{}", slot.kind.name()),
    }
}

fn record_key(optimizer: &Optimizer, factor: usize, what: &str) -> String {
    let plan = &optimizer.plan().factors[factor];
    format!("{}/axis{}/{what}", block_key(optimizer, plan.block), plan.axis)
}

const GAUGES: usize = size_of::<Gauges>() / 8;
const COUNTERS: usize = size_of::<Counters>() / 8;

/// The state as the bytes of a file.
pub fn encode(optimizer: &mut Optimizer) -> Result<Vec<u8>> {
    let mut entries: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    for index in 0..optimizer.plan().slots.len() {
        let slot = optimizer.plan().slots[index].clone();
        let mut bytes = vec![0; slot.bytes()];
        optimizer.read_slot(index, &mut bytes)?;
        entries.push((slot_key(optimizer, &slot), dtype(slot.precision), slot.dims, bytes));
    }
    for (index, record) in optimizer.records().iter().enumerate() {
        let gauges = bytemuck::bytes_of(&record.gauges).to_vec();
        let counters = bytemuck::bytes_of(&record.counters).to_vec();
        entries.push((record_key(optimizer, index, "gauges"), Dtype::F64, vec![GAUGES], gauges));
        entries.push((record_key(optimizer, index, "counters"), Dtype::I64, vec![COUNTERS], counters));
    }
    for (index, param) in optimizer.plan().params.iter().enumerate() {
        let (name, clock) = (&param.spec.name, optimizer.clock(index));
        let step = (clock.step as i64).to_ne_bytes().to_vec();
        entries.push((format!("{name}/clock.step"), Dtype::I64, vec![1], step));
        entries.push((
            format!("{name}/clock.weight"),
            Dtype::F64,
            vec![1],
            clock.weight.to_ne_bytes().to_vec(),
        ));
    }
    let metadata = HashMap::from([(KEY.to_string(), describe(optimizer)?.to_string())]);
    let mut views = Vec::with_capacity(entries.len());
    for (key, dtype, shape, bytes) in &entries {
        let view = TensorView::new(*dtype, shape.clone(), bytes)
            .map_err(|e| Error::checkpoint(format!("cannot write tensor '{key}': {e}")))?;
        views.push((key.as_str(), view));
    }
    serialize(views, Some(metadata))
        .map_err(|e| Error::checkpoint(format!("cannot write the checkpoint: {e}")))
}

fn describe(optimizer: &Optimizer) -> Result<Value> {
    let mut options = serde_json::Map::new();
    for option in crate::config::OPTIONS {
        options.insert(option.key.to_string(), json!(optimizer.config().get(option.key)?));
    }
    let params: Vec<Value> = optimizer.plan().params.iter().map(|p| param_json(&p.spec)).collect();
    let totals = optimizer.summary().totals;
    Ok(json!({
        "format": FORMAT,
        "writer": format!("libfoam {}", env!("CARGO_PKG_VERSION")),
        "steps": totals.steps,
        "skipped_steps": totals.skipped_steps,
        "params": params,
        "config": options,
    }))
}

fn param_json(spec: &crate::engine::plan::ParamSpec) -> Value {
    json!({ "name": spec.name, "shape": spec.shape, "dtype": spec.dtype.name() })
}

/// Reads and checks the bytes of a file against the optimizer that is to take it.
pub fn decode(optimizer: &Optimizer, bytes: &[u8]) -> Result<Restored> {
    let broken = |e| Error::checkpoint(format!("not a safetensors file, or a damaged one: {e}"));
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(broken)?;
    let tensors = SafeTensors::deserialize(bytes).map_err(broken)?;
    let text = header.metadata().as_ref().and_then(|m| m.get(KEY)).ok_or_else(|| {
        Error::checkpoint(format!(
            "the file has no '{KEY}' metadata; expected a checkpoint written by libfoam"
        ))
    })?;
    let about: Value = serde_json::from_str(text)
        .map_err(|e| Error::checkpoint(format!("the metadata '{KEY}' is not valid JSON: {e}")))?;
    let format = about["format"].as_u64();
    if format != Some(FORMAT) {
        return Err(Error::checkpoint(format!("format = {}: expected {FORMAT}", about["format"])));
    }
    check_params(optimizer, &about)?;
    let reader = Reader { tensors: &tensors };
    let plan = optimizer.plan();
    let mut buffers = Vec::with_capacity(plan.slots.len());
    for slot in &plan.slots {
        let key = slot_key(optimizer, slot);
        let bytes = reader.bytes(&key, dtype(slot.precision), &slot.dims)?;
        check_finite(&key, slot.precision, bytes)?;
        buffers.push(bytes.to_vec());
    }
    let mut records = Vec::with_capacity(plan.factors.len());
    for (index, factor) in plan.factors.iter().enumerate() {
        let (gauges, counters) =
            (record_key(optimizer, index, "gauges"), record_key(optimizer, index, "counters"));
        let record = FactorRecord {
            gauges: bytemuck::pod_read_unaligned(reader.bytes(&gauges, Dtype::F64, &[GAUGES])?),
            counters: bytemuck::pod_read_unaligned(reader.bytes(&counters, Dtype::I64, &[COUNTERS])?),
        };
        check_record(&record, factor.epsilon, &gauges, &counters)?;
        records.push(record);
    }
    let mut clocks = Vec::with_capacity(plan.params.len());
    for param in &plan.params {
        let key = format!("{}/clock", param.spec.name);
        let step: i64 =
            bytemuck::pod_read_unaligned(reader.bytes(&format!("{key}.step"), Dtype::I64, &[1])?);
        let weight: f64 =
            bytemuck::pod_read_unaligned(reader.bytes(&format!("{key}.weight"), Dtype::F64, &[1])?);
        let in_range = (0..=1 << 53).contains(&step) && weight > 0.0 && weight <= 1.0;
        if !in_range {
            return Err(Error::checkpoint(format!(
                "'{key}': step = {step}, weight = {weight} is out of range"
            )));
        }
        clocks.push(Clock { step: step as u64, weight });
    }
    let expected = plan.slots.len() + 2 * plan.factors.len() + 2 * plan.params.len();
    if tensors.len() != expected {
        return Err(Error::checkpoint(format!(
            "the file has {} tensors: expected {expected}",
            tensors.len()
        )));
    }
    let count = |key: &str| {
        about[key]
            .as_u64()
            .filter(|n| *n <= 1 << 53)
            .ok_or_else(|| Error::checkpoint(format!("metadata {key} = {}: expected a count", about[key])))
    };
    Ok(Restored { clocks, records, buffers, steps: count("steps")?, skipped_steps: count("skipped_steps")? })
}

/// Takes over what [`decode`] gave.
pub fn restore(optimizer: &mut Optimizer, restored: Restored) -> Result<()> {
    for (slot, bytes) in restored.buffers.iter().enumerate() {
        optimizer.write_slot(slot, bytes)?;
    }
    optimizer.restore(&restored.clocks, restored.records, restored.steps, restored.skipped_steps)
}

/// The file's list of parameters must be the optimizer's, in any order.
fn check_params(optimizer: &Optimizer, about: &Value) -> Result<()> {
    let empty = Vec::new();
    let listed = about["params"].as_array().unwrap_or(&empty);
    for (index, param) in optimizer.plan().params.iter().enumerate() {
        let wanted = param_json(&param.spec);
        let name = &param.spec.name;
        let found = listed.iter().find(|p| p["name"] == wanted["name"]).ok_or_else(|| {
            Error::checkpoint(format!("the file has no parameter '{name}'; it belongs to another model"))
                .at(index)
        })?;
        if *found != wanted {
            return Err(Error::checkpoint(format!(
                "parameter '{name}' is {} {} in the file: expected {} {}",
                found["dtype"], found["shape"], wanted["dtype"], wanted["shape"]
            ))
            .at(index));
        }
    }
    let count = optimizer.plan().params.len();
    if listed.len() != count {
        return Err(Error::checkpoint(format!("the file has {} parameters: expected {count}", listed.len())));
    }
    Ok(())
}

struct Reader<'a> {
    tensors: &'a SafeTensors<'a>,
}

impl<'a> Reader<'a> {
    fn bytes(&self, key: &str, dtype: Dtype, shape: &[usize]) -> Result<&'a [u8]> {
        let tensor = self.tensors.tensor(key).map_err(|_| {
            Error::checkpoint(format!("the file has no tensor '{key}'; it was written with other options"))
        })?;
        if tensor.dtype() != dtype || tensor.shape() != shape {
            return Err(Error::checkpoint(format!(
                "tensor '{key}' is {:?} {:?} in the file: expected {dtype:?} {shape:?}",
                tensor.dtype(),
                tensor.shape()
            )));
        }
        Ok(tensor.data())
    }
}

fn check_finite(key: &str, precision: Precision, bytes: &[u8]) -> Result<()> {
    let finite = match precision {
        Precision::F32 => bytes.chunks_exact(4).all(|b| bytemuck::pod_read_unaligned::<f32>(b).is_finite()),
        Precision::F64 => bytes.chunks_exact(8).all(|b| bytemuck::pod_read_unaligned::<f64>(b).is_finite()),
    };
    if finite {
        Ok(())
    } else {
        Err(Error::checkpoint(format!("tensor '{key}' has values that are not finite")))
    }
}

fn check_record(record: &FactorRecord, base: f64, gauges: &str, counters: &str) -> Result<()> {
    let epsilon = record.gauges.epsilon;
    if !(epsilon.is_finite() && epsilon > 0.0) {
        return Err(Error::checkpoint(format!(
            "'{gauges}': epsilon = {epsilon}: expected about {base} or more"
        )));
    }
    let c = &record.counters;
    let words: &[i64] = bytemuck::cast_slice(std::slice::from_ref(c));
    let in_range = words.iter().all(|n| (0..=1 << 53).contains(n));
    if !in_range || c.has_basis > 1 || c.branch > Branch::ReuseSame as i64 {
        return Err(Error::checkpoint(format!("'{counters}' has counters out of range")));
    }
    Ok(())
}
