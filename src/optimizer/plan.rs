//! The plan: parameters cut into blocks, blocks into factors, and the buffers that each needs.
//! Device-free and fixed at creation.

use crate::config::{Config, Grafting, Policy, StatisticDtype};
use crate::error::{Error, Kind, Result};
use crate::memory::aligned;
use crate::tensor::{DType, Precision};
use std::ops::Range;

/// A parameter as the caller declares it.
#[derive(Clone, Debug)]
pub struct ParamSpec {
    /// Unique name.
    pub name: String,
    /// Sizes of its dimensions.
    pub shape: Vec<usize>,
    /// Type of its elements.
    pub dtype: DType,
    /// Multiplies the learning rate.
    pub lr_scale: f64,
    /// Multiplies the weight decay.
    pub weight_decay_scale: f64,
    /// p of its inverse roots; 0 for the configuration's.
    pub root: f64,
    /// No preconditioner: the grafted method alone.
    pub grafting_only: bool,
}

/// A parameter in the plan.
#[derive(Clone, Debug)]
pub struct ParamPlan {
    /// What the caller declared.
    pub spec: ParamSpec,
    /// Number of elements.
    pub elements: usize,
    /// Precision of the work: filter, moments, inverse roots.
    pub work: Precision,
    /// Precision of statistics, basis and spectrum.
    pub statistic: Precision,
    /// Its blocks.
    pub blocks: Range<usize>,
    /// Its factors, over all blocks.
    pub factors: Range<usize>,
}

/// A block: a rectangular piece of a (merged) parameter.
#[derive(Clone, Debug)]
pub struct BlockPlan {
    /// Its parameter.
    pub param: usize,
    /// Sizes of its axes.
    pub dims: Vec<usize>,
    /// Elements between neighbours along each axis of the parameter.
    pub strides: Vec<usize>,
    /// First element within the parameter.
    pub offset: usize,
    /// Number of elements.
    pub elements: usize,
    /// Its factors, one an axis (none when the parameter is not preconditioned).
    pub factors: Range<usize>,
    /// m, the filtered gradient.
    pub filter: Option<SlotId>,
    /// v, the grafted method's second moment.
    pub moment: Option<SlotId>,
    /// M, the momentum.
    pub momentum: Option<SlotId>,
}

/// A factor: what belongs to one axis of a block.
#[derive(Clone, Debug)]
pub struct FactorPlan {
    /// Its block.
    pub block: usize,
    /// Its axis.
    pub axis: usize,
    /// Its side.
    pub dim: usize,
    /// p.
    pub root: f64,
    /// The inverse root's exponent is −exponent.
    pub exponent: f64,
    /// ε₀.
    pub epsilon: f64,
    /// The statistic; its lower triangle counts.
    pub statistic: SlotId,
    /// The basis, one eigenvector a row.
    pub basis: SlotId,
    /// The spectrum.
    pub spectrum: SlotId,
    /// The inverse root in use.
    pub inverse_root: SlotId,
}

/// Index of a state buffer.
pub type SlotId = usize;

/// What a state buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotKind {
    /// L or R.
    Statistic,
    /// Q.
    Basis,
    /// D.
    Spectrum,
    /// (Q (D + ε) Qᵀ)^(−1/p).
    InverseRoot,
    /// The filtered gradient.
    Filter,
    /// The grafted second moment.
    Moment,
    /// The momentum.
    Momentum,
}

impl SlotKind {
    /// Its name in checkpoints.
    pub fn name(self) -> &'static str {
        match self {
            SlotKind::Statistic => "statistic",
            SlotKind::Basis => "basis",
            SlotKind::Spectrum => "spectrum",
            SlotKind::InverseRoot => "inverse_root",
            SlotKind::Filter => "filter",
            SlotKind::Moment => "moment",
            SlotKind::Momentum => "momentum",
        }
    }
}

/// A state buffer: whose it is, what it holds, and where it lies in the state.
#[derive(Clone, Debug)]
pub struct Slot {
    /// What it holds.
    pub kind: SlotKind,
    /// Its block.
    pub block: usize,
    /// Its axis, for a factor's buffer.
    pub axis: Option<usize>,
    /// Precision of its numbers.
    pub precision: Precision,
    /// Its shape.
    pub dims: Vec<usize>,
    /// Byte offset in the state.
    pub offset: usize,
    /// Count of its numbers.
    pub len: usize,
}

impl Slot {
    /// Bytes of the buffer.
    pub fn bytes(&self) -> usize {
        self.len * self.precision.size()
    }
}

/// The whole plan.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Parameters, in the caller's order.
    pub params: Vec<ParamPlan>,
    /// Blocks, parameter by parameter, in row-major order.
    pub blocks: Vec<BlockPlan>,
    /// Factors, block by block, axis by axis.
    pub factors: Vec<FactorPlan>,
    /// State buffers.
    pub slots: Vec<Slot>,
    /// Bytes of all state buffers, with alignment.
    pub state_bytes: usize,
}

impl Plan {
    /// Cuts `specs` into blocks as `config` says.
    pub fn new(config: &Config, specs: Vec<ParamSpec>) -> Result<Plan> {
        let mut plan = Plan::default();
        let mut bytes: u128 = 0;
        for (index, spec) in specs.into_iter().enumerate() {
            plan.add(config, index, spec, &mut bytes)?;
        }
        plan.state_bytes = usize::try_from(bytes).map_err(|_| Error::out_of_memory("the state", bytes))?;
        Ok(plan)
    }

    fn add(&mut self, config: &Config, index: usize, spec: ParamSpec, bytes: &mut u128) -> Result<()> {
        let elements = spec.shape.iter().product::<usize>();
        let work = spec.dtype.work();
        let statistic = match config.statistic_dtype {
            StatisticDtype::Auto => work,
            StatisticDtype::F32 => Precision::F32,
            StatisticDtype::F64 => Precision::F64,
        };
        let preconditioned = !spec.grafting_only && config.policy != Policy::GraftingOnly;
        let limit = config.max_factor_dim as usize;
        let shape = merged(&spec.shape, config.merge_dims, limit);
        let chunks: Vec<usize> = if shape.iter().any(|d| *d > limit) {
            shape.iter().map(|d| d.div_ceil(limit)).collect()
        } else {
            vec![1; shape.len()]
        };
        let count: usize = chunks.iter().product();
        if preconditioned {
            refuse_absurd(&shape, limit, statistic, &spec.name).map_err(|e| e.at(index))?;
        }
        self.reserve(count, shape.len(), &spec.name).map_err(|e| e.at(index))?;

        let strides = row_major_strides(&shape);
        let first_block = self.blocks.len();
        let first_factor = self.factors.len();
        let root = [spec.root, config.root, 2.0 * shape.len() as f64].into_iter().find(|r| *r > 0.0);
        let root = root.unwrap_or(2.0);
        for number in 0..count {
            let at = unravel(number, &chunks);
            let dims: Vec<usize> = at.iter().zip(&shape).map(|(c, d)| limit.min(d - c * limit)).collect();
            let offset = at.iter().zip(&strides).map(|(c, s)| c * limit * s).sum();
            let block = self.blocks.len();
            let factors_before = self.factors.len();
            for (axis, dim) in dims.iter().copied().enumerate().filter(|_| preconditioned) {
                let mut slot = |kind, precision, dims: &[usize]| {
                    self.slot(kind, block, Some(axis), precision, dims, bytes)
                };
                let factor = FactorPlan {
                    block,
                    axis,
                    dim,
                    root,
                    exponent: config.exponent_multiplier / root,
                    epsilon: config.base_epsilon(dims.len(), axis),
                    statistic: slot(SlotKind::Statistic, statistic, &[dim, dim]),
                    basis: slot(SlotKind::Basis, statistic, &[dim, dim]),
                    spectrum: slot(SlotKind::Spectrum, statistic, &[dim]),
                    inverse_root: slot(SlotKind::InverseRoot, work, &[dim, dim]),
                };
                self.factors.push(factor);
            }
            let has_moment = !matches!(config.grafting, Grafting::None | Grafting::Sgd);
            let mut buffer =
                |wanted: bool, kind| wanted.then(|| self.slot(kind, block, None, work, &dims, bytes));
            let filter = buffer(config.beta1 > 0.0, SlotKind::Filter);
            let moment = buffer(has_moment, SlotKind::Moment);
            let momentum = buffer(config.momentum > 0.0, SlotKind::Momentum);
            self.blocks.push(BlockPlan {
                param: index,
                elements: dims.iter().product(),
                dims,
                strides: strides.clone(),
                offset,
                factors: factors_before..self.factors.len(),
                filter,
                moment,
                momentum,
            });
        }
        let blocks = first_block..self.blocks.len();
        let factors = first_factor..self.factors.len();
        self.params.push(ParamPlan { spec, elements, work, statistic, blocks, factors });
        Ok(())
    }

    /// A huge parameter must be refused by an error, so the lists grow fallibly.
    fn reserve(&mut self, blocks: usize, order: usize, name: &str) -> Result<()> {
        let refused = |_| {
            Error::new(
                Kind::OutOfMemory,
                format!("out of memory: parameter '{name}' would be cut into {blocks} blocks"),
            )
        };
        let factors = blocks.saturating_mul(order);
        self.blocks.try_reserve(blocks).map_err(refused)?;
        self.factors.try_reserve(factors).map_err(refused)?;
        self.slots.try_reserve(factors.saturating_mul(4).saturating_add(3 * blocks)).map_err(refused)
    }

    fn slot(
        &mut self,
        kind: SlotKind,
        block: usize,
        axis: Option<usize>,
        precision: Precision,
        dims: &[usize],
        bytes: &mut u128,
    ) -> SlotId {
        let len = dims.iter().fold(1usize, |product, d| product.saturating_mul(*d));
        let offset = usize::try_from(*bytes).unwrap_or(usize::MAX);
        *bytes += aligned(len as u128 * precision.size() as u128);
        self.slots.push(Slot { kind, block, axis, precision, dims: dims.to_vec(), offset, len });
        self.slots.len() - 1
    }

    /// The parameter that a factor belongs to.
    pub fn param_of(&self, factor: usize) -> &ParamPlan {
        &self.params[self.blocks[self.factors[factor].block].param]
    }
}

/// More bytes than any machine can address: refused before the lists of blocks are built.
const ADDRESSABLE: u128 = 1 << 46;

fn refuse_absurd(shape: &[usize], limit: usize, precision: Precision, name: &str) -> Result<()> {
    let chunks = |d: usize| d.div_ceil(limit) as u128;
    let all: u128 = shape.iter().fold(1, |product: u128, d| product.saturating_mul(chunks(*d)));
    let mut numbers: u128 = 0;
    for dim in shape {
        let (full, rest) = ((dim / limit) as u128, (dim % limit) as u128);
        let squares = (full.saturating_mul((limit as u128).pow(2))).saturating_add(rest.pow(2));
        numbers = numbers.saturating_add((all / chunks(*dim)).saturating_mul(squares));
    }
    let bytes = numbers.saturating_mul(2 * precision.size() as u128);
    if bytes > ADDRESSABLE {
        return Err(Error::out_of_memory(&format!("the state of parameter '{name}'"), bytes));
    }
    Ok(())
}

/// Drops dimensions of size 1, then merges neighbours from the left while the product is at most
/// `limit`. Without merging a shape stays as it is; a scalar becomes a vector of one.
fn merged(shape: &[usize], merge: bool, limit: usize) -> Vec<usize> {
    if !merge {
        return if shape.is_empty() { vec![1] } else { shape.to_vec() };
    }
    let mut kept: Vec<usize> = Vec::new();
    for dim in shape.iter().copied().filter(|d| *d != 1) {
        match kept.last_mut() {
            Some(last) if last.saturating_mul(dim) <= limit => *last *= dim,
            _ => kept.push(dim),
        }
    }
    if kept.is_empty() { vec![1] } else { kept }
}

fn row_major_strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

/// The `number`-th index tuple of a grid, in row-major order.
fn unravel(mut number: usize, grid: &[usize]) -> Vec<usize> {
    let mut at = vec![0; grid.len()];
    for (slot, size) in at.iter_mut().zip(grid).rev() {
        *slot = number % size;
        number /= size;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(shape: &[usize]) -> ParamSpec {
        ParamSpec {
            name: "w".into(),
            shape: shape.to_vec(),
            dtype: DType::F32,
            lr_scale: 1.0,
            weight_decay_scale: 1.0,
            root: 0.0,
            grafting_only: false,
        }
    }

    #[test]
    fn dimensions_merge_from_the_left_while_they_fit() {
        assert_eq!(merged(&[8, 4, 3, 3], true, 32), [32, 9]);
        assert_eq!(merged(&[6, 4], true, 1024), [24]);
        assert_eq!(merged(&[1, 1], true, 1024), [1]);
        assert_eq!(merged(&[1, 1], false, 1024), [1, 1]);
        assert_eq!(merged(&[], false, 1024), [1]);
        assert_eq!(merged(&[64, 1, 64], true, 100), [64, 64]);
    }

    #[test]
    fn a_large_matrix_is_cut_in_row_major_order() {
        let config = Config { max_factor_dim: 128, ..Config::default() };
        let plan = Plan::new(&config, vec![spec(&[200, 300])]).unwrap();
        let dims: Vec<_> = plan.blocks.iter().map(|b| b.dims.clone()).collect();
        assert_eq!(dims, [[128, 128], [128, 128], [128, 44], [72, 128], [72, 128], [72, 44]]);
        assert_eq!(plan.blocks[4].offset, 128 * 300 + 128);
        assert_eq!(plan.factors.len(), 12);
        assert_eq!(plan.blocks.iter().map(|b| b.elements).sum::<usize>(), 200 * 300);
    }

    #[test]
    fn slots_do_not_overlap() {
        let config = Config { momentum: 0.9, max_factor_dim: 7, ..Config::default() };
        let plan = Plan::new(&config, vec![spec(&[20, 30]), spec(&[3]), spec(&[])]).unwrap();
        for pair in plan.slots.windows(2) {
            assert!(pair[0].offset + pair[0].bytes() <= pair[1].offset);
        }
        let last = plan.slots.last().unwrap();
        assert!(last.offset + last.bytes() <= plan.state_bytes);
    }
}
