//! Shampoo: which arrays it keeps for a block. Its accumulation, direction and sensing are the device's verbs;
//! what is decided about a factor at a check is in [`super::policy`].

use super::{Access, policy};
use crate::config::Config;
use crate::engine::plan::{Array, SlotKind};
use crate::engine::ports::Verb;
use crate::error::Result;
use crate::memory::push;
use crate::tensor::Precision;

/// Statistic, basis, spectrum and inverse root of every axis, and the spectrum of the last refresh where the policy
/// needs it (after QR steps: numbers that diag(·) of them is a lower bound of QᵀAQ); kind by kind, axis by axis.
pub fn arrays(
    config: &Config,
    dims: &[usize],
    statistic: Precision,
    work: Precision,
    arrays: &mut Vec<Array>,
) -> Result<()> {
    let kinds = [
        (SlotKind::Statistic, statistic),
        (SlotKind::Basis, statistic),
        (SlotKind::Spectrum, statistic),
        (SlotKind::InverseRoot, work),
        (SlotKind::FreshSpectrum, statistic),
    ];
    let kinds = if policy::certifies(config.policy) { &kinds[..] } else { &kinds[..4] };
    for &(kind, precision) in kinds {
        for (axis, dim) in dims.iter().enumerate() {
            let square = [*dim, *dim];
            let tail = if kind.is_vector() { &square[..1] } else { &square[..] };
            push(arrays, Array::numbers(kind, Some(axis), precision, tail)?, "the plan of blocks")?;
        }
    }
    Ok(())
}

/// What `verb` does with an array of numbers.
pub fn access(verb: Verb, kind: SlotKind) -> Access {
    use Access::{None, Reads, Writes};
    use SlotKind::{Basis, Filter, FreshSpectrum, InverseRoot, Moment, Momentum, Spectrum, Statistic};
    match (verb, kind) {
        (Verb::Accumulate, Statistic) => Writes,
        (Verb::Check, Statistic) => Reads,
        (Verb::Check, Basis | Spectrum | InverseRoot | FreshSpectrum) => Writes,
        (Verb::Apply, InverseRoot) => Reads,
        (Verb::Apply, Filter | Moment | Momentum) => Writes,
        _ => None,
    }
}
