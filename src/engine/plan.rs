//! The plan: parameters cut into blocks, equal blocks grouped into stacks, and the named arrays that each stack
//! needs. Device-free and fixed at creation.

use super::grafting;
use crate::config::{Config, Policy, StatisticDtype};
use crate::error::{Error, Kind, Result};
use crate::preconditioner::{FactorRecord, shampoo};
use crate::tensor::{DType, Element, Precision};
use std::collections::HashMap;
use std::ops::Range;

/// Alignment of every array in an owned state: what a GPU's widest accesses want.
pub const ARRAY_ALIGNMENT: usize = 256;
/// 32-bit words of a clock.
pub const CLOCK_WORDS: usize = size_of::<super::Clock>() / 4;
/// 32-bit words of a factor's record.
pub const RECORD_WORDS: usize = size_of::<FactorRecord>() / 4;

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
    /// The part that this rank holds; none for the whole parameter.
    pub shard: Option<Shard>,
}

/// The part of a parameter that a rank holds: `length` places of an axis, from `start` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The axis that is cut, of the parameter's own shape.
    pub axis: usize,
    /// First place.
    pub start: usize,
    /// Places; 0 if the rank holds nothing of the parameter.
    pub length: usize,
}

impl ParamSpec {
    /// Size of axis `axis` of the tensors that this rank gives.
    pub fn held_size(&self, axis: usize) -> usize {
        self.shard.filter(|shard| shard.axis == axis).map_or(self.shape[axis], |shard| shard.length)
    }

    /// Elements of the tensors that this rank gives.
    pub fn held_elements(&self) -> usize {
        (0..self.shape.len()).map(|axis| self.held_size(axis)).product()
    }
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
    /// Its number within the parameter.
    pub number: usize,
    /// It is one run of elements within the parameter. Decides how it is walked through, wherever it lies.
    pub is_run: bool,
    /// Sizes of its axes.
    pub dims: Vec<usize>,
    /// Elements between neighbours along each axis of the parameter.
    pub strides: Vec<usize>,
    /// First element within the parameter.
    pub offset: usize,
    /// Number of elements.
    pub elements: usize,
    /// Its factors, one per axis (none when the parameter is not preconditioned).
    pub factors: Range<usize>,
    /// Its slots, in the order of its stack's arrays.
    pub slots: Range<usize>,
    /// Its stack, and its place in it.
    pub stack: usize,
    /// See `stack`.
    pub place: usize,
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
    /// The basis, one eigenvector per row.
    pub basis: SlotId,
    /// The spectrum.
    pub spectrum: SlotId,
    /// The inverse root in use.
    pub inverse_root: SlotId,
}

/// Index of a slot.
pub type SlotId = usize;

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// Its name in checkpoints and layouts.
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

/// What an array of a stack holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    /// The clock of every block.
    Clock,
    /// The record of every factor.
    Record,
    /// A slot of every block, and its axis if it is a factor's.
    Slot(SlotKind, Option<usize>),
}

impl Content {
    /// Its axis, if it is a factor's.
    pub fn axis(self) -> Option<usize> {
        match self {
            Content::Slot(_, axis) => axis,
            _ => None,
        }
    }

    /// Its name, for example `statistic_0`.
    pub fn name(self) -> String {
        match self {
            Content::Clock => "clock".into(),
            Content::Record => "record".into(),
            Content::Slot(kind, Some(axis)) => format!("{}_{axis}", kind.name()),
            Content::Slot(kind, None) => kind.name().into(),
        }
    }
}

/// An array of a stack, as its layout says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Array {
    /// What it holds.
    pub content: Content,
    /// Type of its elements.
    pub element: Element,
    /// Its dimensions after the first, which is the number of the block.
    pub tail: Vec<usize>,
}

impl Array {
    /// An array of numbers.
    pub fn numbers(kind: SlotKind, axis: Option<usize>, precision: Precision, tail: &[usize]) -> Array {
        Array { content: Content::Slot(kind, axis), element: precision.element(), tail: tail.to_vec() }
    }

    /// Bytes of one block's part.
    pub fn stride(&self) -> usize {
        self.tail.iter().product::<usize>() * self.element.size()
    }
}

/// The one layout: the arrays of a stack of blocks, in the order in which every call takes them.
fn layout(
    config: &Config,
    dims: &[usize],
    statistic: Precision,
    work: Precision,
    preconditioned: bool,
) -> Vec<Array> {
    let words = |content, tail: &[usize]| Array { content, element: Element::U32, tail: tail.to_vec() };
    let mut arrays = vec![words(Content::Clock, &[CLOCK_WORDS])];
    if preconditioned {
        arrays.push(words(Content::Record, &[dims.len(), RECORD_WORDS]));
        arrays.extend(shampoo::arrays(dims, statistic, work));
    }
    let moments = [
        (SlotKind::Filter, config.beta1 > 0.0),
        (SlotKind::Moment, grafting::has_moment(config.grafting)),
        (SlotKind::Momentum, config.momentum > 0.0),
    ];
    let wanted = moments.into_iter().filter(|(_, wanted)| *wanted);
    arrays.extend(wanted.map(|(kind, _)| Array::numbers(kind, None, work, dims)));
    arrays
}

/// One block's part of an array of numbers.
#[derive(Clone, Debug)]
pub struct Slot {
    /// What it holds.
    pub kind: SlotKind,
    /// Its block.
    pub block: usize,
    /// Its axis, for a factor's slot.
    pub axis: Option<usize>,
    /// Precision of its numbers.
    pub precision: Precision,
    /// Its dimensions.
    pub dims: Vec<usize>,
}

impl Slot {
    /// How many numbers it holds.
    pub fn len(&self) -> usize {
        self.dims.iter().product()
    }

    /// Its bytes.
    pub fn bytes(&self) -> usize {
        self.len() * self.precision.size()
    }
}

/// A stack: equal blocks, which share every array.
#[derive(Clone, Debug)]
pub struct StackPlan {
    /// Its blocks, by their numbers in the plan.
    pub blocks: Vec<usize>,
    /// Its arrays.
    pub layout: Vec<Array>,
    /// Its arrays, counted over all stacks.
    pub arrays: Range<usize>,
}

/// Where an array lies in an owned state.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// First byte.
    pub offset: usize,
    /// Bytes.
    pub bytes: usize,
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
    /// Slots, block by block, in the order of the stack's arrays.
    pub slots: Vec<Slot>,
    /// Stacks, in the order of their first blocks.
    pub stacks: Vec<StackPlan>,
    /// Where the arrays of all stacks lie in an owned state: clocks first, then records, then the rest.
    pub arrays: Vec<Extent>,
    /// Bytes of the clocks and records in front of an owned state.
    pub head_bytes: usize,
    /// Bytes of an owned state.
    pub state_bytes: usize,
}

/// What blocks of one stack have in common.
#[derive(PartialEq, Eq, Hash)]
struct StackKey {
    strides: Vec<usize>,
    dtype: i32,
    layout: Vec<Array>,
    dims: Vec<usize>,
}

impl Plan {
    /// Cuts `specs` into blocks as `config` says.
    pub fn new(config: &Config, specs: Vec<ParamSpec>) -> Result<Plan> {
        let mut plan = Plan::default();
        let mut known = HashMap::new();
        for (index, spec) in specs.into_iter().enumerate() {
            plan.add(config, index, spec, &mut known)?;
        }
        plan.place_arrays()?;
        Ok(plan)
    }

    fn add(
        &mut self,
        config: &Config,
        index: usize,
        spec: ParamSpec,
        known: &mut HashMap<StackKey, usize>,
    ) -> Result<()> {
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
            let arrays = layout(config, &dims, statistic, work, preconditioned);
            let key = StackKey { strides: strides.clone(), dtype: spec.dtype.code(), layout: arrays, dims };
            let (arrays, dims) = (key.layout.clone(), key.dims.clone());
            let stack = *known.entry(key).or_insert_with(|| {
                self.stacks.push(StackPlan { blocks: Vec::new(), layout: arrays.clone(), arrays: 0..0 });
                self.stacks.len() - 1
            });
            let place = self.stacks[stack].blocks.len();
            self.stacks[stack].blocks.push(block);
            let slots = self.add_slots(block, &arrays);
            let find = |kind, axis| {
                let mut own = slots.clone();
                own.find(|slot| self.slots[*slot].kind == kind && self.slots[*slot].axis == axis)
            };
            let factor_of = |(axis, dim): (usize, &usize)| {
                let own = |kind| find(kind, Some(axis));
                Some(FactorPlan {
                    block,
                    axis,
                    dim: *dim,
                    root,
                    exponent: config.exponent_multiplier / root,
                    epsilon: config.base_epsilon(dims.len(), axis),
                    statistic: own(SlotKind::Statistic)?,
                    basis: own(SlotKind::Basis)?,
                    spectrum: own(SlotKind::Spectrum)?,
                    inverse_root: own(SlotKind::InverseRoot)?,
                })
            };
            let factors: Vec<FactorPlan> = dims.iter().enumerate().filter_map(factor_of).collect();
            let [filter, moment, momentum] =
                [SlotKind::Filter, SlotKind::Moment, SlotKind::Momentum].map(|kind| find(kind, None));
            let before = self.factors.len();
            self.factors.extend(factors);
            self.blocks.push(BlockPlan {
                param: index,
                number,
                is_run: (1..dims.len()).all(|a| strides[a - 1] == strides[a] * dims[a]),
                elements: dims.iter().product(),
                dims,
                strides: strides.clone(),
                offset,
                factors: before..self.factors.len(),
                slots,
                stack,
                place,
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

    /// The slots of a block: one for each array of numbers of its stack.
    fn add_slots(&mut self, block: usize, arrays: &[Array]) -> Range<usize> {
        let first = self.slots.len();
        for array in arrays {
            let Content::Slot(kind, axis) = array.content else { continue };
            let precision =
                if array.element == Precision::F64.element() { Precision::F64 } else { Precision::F32 };
            self.slots.push(Slot { kind, block, axis, precision, dims: array.tail.clone() });
        }
        first..self.slots.len()
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

    /// Numbers the arrays of all stacks and places them in an owned state. Clocks and records come first, so
    /// that a device can bring all of them to the host at once.
    pub(super) fn place_arrays(&mut self) -> Result<()> {
        let mut number = 0;
        for stack in &mut self.stacks {
            stack.arrays = number..number + stack.layout.len();
            number = stack.arrays.end;
        }
        self.arrays = vec![Extent { offset: 0, bytes: 0 }; number];
        let mut end: u128 = 0;
        for head in [Some(Content::Clock), Some(Content::Record), None] {
            for stack in &self.stacks {
                for (array, number) in stack.layout.iter().zip(stack.arrays.clone()) {
                    let is_head = matches!(array.content, Content::Clock | Content::Record);
                    if head.map_or(is_head, |wanted| wanted != array.content) {
                        continue;
                    }
                    let count = stack.blocks.len() as u128;
                    let numbers =
                        array.tail.iter().fold(count, |product, d| product.saturating_mul(*d as u128));
                    let bytes = numbers.saturating_mul(array.element.size() as u128);
                    let place = |x: u128| usize::try_from(x).unwrap_or(usize::MAX);
                    self.arrays[number] = Extent { offset: place(end), bytes: place(bytes) };
                    // Clocks and records stay dense; numbers start where a device likes them to.
                    end = end.saturating_add(bytes);
                    end = if is_head { end } else { end.next_multiple_of(ARRAY_ALIGNMENT as u128) };
                }
            }
            if head == Some(Content::Record) {
                self.head_bytes = usize::try_from(end).unwrap_or(usize::MAX);
                end = end.next_multiple_of(ARRAY_ALIGNMENT as u128);
            }
        }
        self.state_bytes = usize::try_from(end).map_err(|_| Error::out_of_memory("the state", end))?;
        Ok(())
    }

    /// The array, counted over all stacks, that holds `content` of the blocks of `stack`.
    pub fn array(&self, stack: usize, content: Content) -> Option<usize> {
        let own = &self.stacks[stack];
        own.layout.iter().position(|array| array.content == content).map(|place| own.arrays.start + place)
    }

    /// The array that a slot is part of, and the slot's bytes from its start.
    pub fn place_of(&self, slot: SlotId) -> (usize, usize) {
        let plan = &self.slots[slot];
        let block = &self.blocks[plan.block];
        let stack = &self.stacks[block.stack];
        // The arrays of numbers follow those of the clocks and records.
        let words = stack.layout.len() - block.slots.len();
        (stack.arrays.start + words + slot - block.slots.start, block.place * plan.bytes())
    }

    /// The parameter that a factor belongs to.
    pub fn param_of(&self, factor: usize) -> &ParamPlan {
        &self.params[self.blocks[self.factors[factor].block].param]
    }
}

/// A block seen along one axis: `outer` slices of `dim` rows and `inner` columns.
#[derive(Clone, Copy, Debug)]
pub struct AxisView {
    /// Slices.
    pub outer: usize,
    /// Rows of a slice.
    pub dim: usize,
    /// Columns of a slice; 1 for the last axis, whose slices are then seen as one matrix.
    pub inner: usize,
}

impl AxisView {
    /// The view of `dims` along `axis`.
    pub fn new(dims: &[usize], axis: usize) -> AxisView {
        AxisView {
            outer: dims[..axis].iter().product(),
            dim: dims[axis],
            inner: dims[axis + 1..].iter().product(),
        }
    }

    /// Whether there are axes with more than one element on both sides.
    pub fn is_middle(&self) -> bool {
        self.outer > 1 && self.inner > 1
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

pub(super) fn row_major_strides(shape: &[usize]) -> Vec<usize> {
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
            shard: None,
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
    fn arrays_do_not_overlap_and_slots_lie_within_them() {
        let config = Config { momentum: 0.9, max_factor_dim: 7, ..Config::default() };
        let plan = Plan::new(&config, vec![spec(&[20, 30]), spec(&[3]), spec(&[])]).unwrap();
        let mut extents = plan.arrays.clone();
        extents.sort_by_key(|extent| extent.offset);
        for pair in extents.windows(2) {
            assert!(pair[0].offset + pair[0].bytes <= pair[1].offset);
        }
        let last = extents.last().unwrap();
        assert!(last.offset + last.bytes <= plan.state_bytes);
        let mut starts = Vec::new();
        for (slot, own) in plan.slots.iter().enumerate() {
            let (array, offset) = plan.place_of(slot);
            assert!(offset + own.bytes() <= plan.arrays[array].bytes);
            starts.push((array, offset));
        }
        starts.sort_unstable();
        starts.dedup();
        assert_eq!(starts.len(), plan.slots.len());
    }

    #[test]
    fn equal_blocks_are_one_stack() {
        let config = Config { max_factor_dim: 8, ..Config::default() };
        let plan = Plan::new(&config, vec![spec(&[16, 20]), spec(&[3]), spec(&[16, 20])]).unwrap();
        let counts: Vec<usize> = plan.stacks.iter().map(|stack| stack.blocks.len()).collect();
        assert_eq!(counts, [8, 4, 1]);
        for (number, block) in plan.blocks.iter().enumerate() {
            assert_eq!(plan.stacks[block.stack].blocks[block.place], number);
        }
    }
}
