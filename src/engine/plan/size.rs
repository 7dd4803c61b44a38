//! What a parameter costs, known from its shape alone: sizes are refused before lists are built.

use super::layout::{CLOCK_WORDS, RECORD_WORDS, Slot};
use super::shape::{merged, piece};
use super::{BlockPlan, FactorPlan, ParamSpec, is_preconditioned, statistic_precision};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::preconditioner::Preconditioner;

/// More bytes than any machine can address.
const ADDRESSABLE: u128 = 1 << 46;

/// What a parameter costs at least, known from its shape alone.
pub struct Size {
    /// Bytes of the lists of its blocks, factors and slots.
    pub lists: u128,
    /// Bytes of its state.
    pub state: u128,
}

/// A sum that stops at the largest number.
#[derive(Default)]
pub struct Sum(pub u128);

impl std::iter::Sum<u128> for Sum {
    fn sum<I: Iterator<Item = u128>>(numbers: I) -> Sum {
        Sum(numbers.fold(0, u128::saturating_add))
    }
}

impl Size {
    /// The cost of parameter number `index`; an error if no machine could address it.
    pub fn of(config: &Config, index: usize, spec: &ParamSpec) -> Result<Size> {
        let preconditioner = Preconditioner::of(config);
        let limit = preconditioner.merge_limit(config.max_factor_dim as usize);
        let shape = merged(&spec.shape, config, limit)?;
        let precision = statistic_precision(config, spec.dtype);
        let chunks = |d: usize| d.div_ceil(piece(config, d)) as u128;
        let blocks: u128 = shape.iter().fold(1, |product: u128, d| product.saturating_mul(chunks(*d)));
        let square = |side: usize| {
            let kept = preconditioner.has_basis(shape.len(), side);
            if kept { (side as u128).saturating_mul(side as u128) } else { 0 }
        };
        let mut numbers: u128 = 0;
        for dim in &shape {
            let side = piece(config, *dim);
            let (full, rest) = ((dim / side) as u128, dim % side);
            // Only a side that reaches the limit has a square of it.
            let whole = if full > 0 { full.saturating_mul(square(side)) } else { 0 };
            let squares = whole.saturating_add(square(rest));
            numbers = numbers.saturating_add((blocks / chunks(*dim)).saturating_mul(squares));
        }
        let factors = if is_preconditioned(config, spec, &shape) { shape.len() as u128 } else { 0 };
        // Statistic and basis; a record per factor and a clock per block.
        let squares = if factors > 0 { numbers.saturating_mul(2 * precision.size() as u128) } else { 0 };
        let words = blocks.saturating_mul(4 * (CLOCK_WORDS as u128 + factors * RECORD_WORDS as u128));
        let each = size_of::<BlockPlan>() as u128
            + factors * (size_of::<FactorPlan>() as u128 + 6 * size_of::<Slot>() as u128);
        let size = Size { lists: blocks.saturating_mul(each), state: squares.saturating_add(words) };
        if size.lists.max(size.state) > ADDRESSABLE {
            let what = format!("the state of parameter '{}'", spec.name);
            return Err(Error::out_of_memory(&what, size.lists.max(size.state)).at(index));
        }
        Ok(size)
    }
}
