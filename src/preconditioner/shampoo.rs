//! Shampoo: which arrays it keeps for a block. Its accumulation, direction and sensing are the device's verbs;
//! what is decided about a factor at a check is in [`super::policy`].

use super::Access;
use crate::engine::plan::{Array, SlotKind};
use crate::engine::ports::Verb;
use crate::tensor::Precision;

/// Statistic, basis, spectrum and inverse root of every axis; kind by kind, axis by axis.
pub fn arrays(dims: &[usize], statistic: Precision, work: Precision) -> Vec<Array> {
    let kinds = [
        (SlotKind::Statistic, statistic),
        (SlotKind::Basis, statistic),
        (SlotKind::Spectrum, statistic),
        (SlotKind::InverseRoot, work),
    ];
    let mut arrays = Vec::with_capacity(4 * dims.len());
    for (kind, precision) in kinds {
        for (axis, dim) in dims.iter().enumerate() {
            let square = [*dim, *dim];
            let tail = if kind == SlotKind::Spectrum { &square[..1] } else { &square[..] };
            arrays.push(Array::numbers(kind, Some(axis), precision, tail));
        }
    }
    arrays
}

/// What `verb` does with an array of numbers.
pub fn access(verb: Verb, kind: SlotKind) -> Access {
    use Access::{None, Reads, Writes};
    use SlotKind::{Basis, Filter, InverseRoot, Moment, Momentum, Spectrum, Statistic};
    match (verb, kind) {
        (Verb::Accumulate, Statistic) => Writes,
        (Verb::Check, Statistic) => Reads,
        (Verb::Check, Basis | Spectrum | InverseRoot) => Writes,
        (Verb::Apply, InverseRoot) => Reads,
        (Verb::Apply, Filter | Moment | Momentum) => Writes,
        _ => None,
    }
}
