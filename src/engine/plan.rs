//! The plan: parameters cut into blocks, equal blocks grouped into stacks, and the named arrays that each stack
//! needs. Device-free and fixed at creation. [`layout`] names and places the arrays, [`shape`] is the arithmetic of
//! shapes, [`size`] tells costs before anything is built.

mod layout;
mod shape;
mod size;

pub(super) use layout::Extent;
pub use layout::{Array, CLOCK_WORDS, Content, RECORD_WORDS, Slot, SlotKind, StackPlan};
pub use shape::AxisView;
pub(super) use shape::row_major_strides;
pub use size::{Size, Sum};

use crate::config::{Config, Policy, StatisticDtype};
use crate::error::{Error, Result};
use crate::memory::{copied, listed, push, whole_text};
use crate::preconditioner::damping::Damping;
use crate::preconditioner::{Preconditioner, policy};
use crate::tensor::{DType, Precision};
use layout::layout;
use shape::{merged, piece, unravel};
use std::collections::HashMap;
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
    /// An f32 parameter that this rank holds whole, with nothing special about it.
    pub fn new(name: String, shape: Vec<usize>) -> ParamSpec {
        ParamSpec {
            name,
            shape,
            dtype: DType::F32,
            lr_scale: 1.0,
            weight_decay_scale: 1.0,
            root: 0.0,
            grafting_only: false,
            shard: None,
        }
    }

    /// Size of axis `axis` of the tensors that this rank gives.
    pub fn held_size(&self, axis: usize) -> usize {
        self.shard.filter(|shard| shard.axis == axis).map_or(self.shape[axis], |shard| shard.length)
    }

    /// Elements of the tensors that this rank gives.
    pub fn held_elements(&self) -> usize {
        (0..self.shape.len()).map(|axis| self.held_size(axis)).product()
    }

    /// A copy of it.
    pub fn copy(&self) -> Result<ParamSpec> {
        Ok(ParamSpec {
            name: whole_text(format_args!("{}", self.name), LISTS)?,
            shape: copied(&self.shape, LISTS)?,
            ..*self
        })
    }
}

/// A parameter in the plan.
#[derive(Debug)]
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

impl ParamPlan {
    /// A copy of it.
    pub fn copy(&self) -> Result<ParamPlan> {
        let (blocks, factors) = (self.blocks.clone(), self.factors.clone());
        Ok(ParamPlan { spec: self.spec.copy()?, blocks, factors, ..*self })
    }
}

/// A block: a rectangular piece of a (merged) parameter.
#[derive(Debug)]
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
    /// Its factors, one per axis (none when no axis is preconditioned).
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

impl BlockPlan {
    /// A copy of it.
    pub fn copy(&self) -> Result<BlockPlan> {
        Ok(BlockPlan {
            dims: copied(&self.dims, LISTS)?,
            strides: copied(&self.strides, LISTS)?,
            factors: self.factors.clone(),
            slots: self.slots.clone(),
            ..*self
        })
    }
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
    /// ε₀ as it was at creation; its unit never changes.
    pub damping: Damping,
    /// The statistic; its lower triangle counts. None: the axis has no basis and is left as it is.
    pub statistic: Option<SlotId>,
    /// The basis, one eigenvector per row.
    pub basis: Option<SlotId>,
    /// The spectrum, where the preconditioner keeps one.
    pub spectrum: Option<SlotId>,
    /// The inverse root in use, where there is one.
    pub inverse_root: Option<SlotId>,
    /// The damped spectrum to the power, where there is no inverse root.
    pub root_spectrum: Option<SlotId>,
    /// The diagonal of the inverse root, where it shares the statistic's square.
    pub root_diagonal: Option<SlotId>,
    /// The spectrum of the last refresh, where the policy needs it.
    pub fresh_spectrum: Option<SlotId>,
    /// The statistic that a refresh under way decomposes, where refreshes are delayed.
    pub pending_statistic: Option<SlotId>,
}

impl FactorPlan {
    /// ε₀ with the options as they are now.
    pub fn base(&self, config: &Config, plan: &Plan) -> Damping {
        config.base_damping(plan.blocks[self.block].dims.len(), self.axis)
    }

    /// Whether the axis has a basis, or will have one.
    pub fn is_preconditioned(&self) -> bool {
        self.basis.is_some()
    }
}

/// Index of a slot.
pub type SlotId = usize;

/// The whole plan.
#[derive(Debug, Default)]
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
    /// What the arrays belong to.
    pub preconditioner: Preconditioner,
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
        // Sizes are refused before the lists are built: building them would take the time and memory that there is
        // not.
        let lists = specs.iter().enumerate().map(|(index, spec)| Size::of(config, index, spec));
        let lists = lists.map(|size| Ok(size?.lists)).sum::<Result<Sum>>()?.0;
        crate::memory::probe(lists, LISTS)?;
        let mut plan = Plan { preconditioner: Preconditioner::of(config), ..Plan::default() };
        plan.params.try_reserve_exact(specs.len()).map_err(|_| Error::out_of_memory(LISTS, lists))?;
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
        let statistic = statistic_precision(config, spec.dtype);
        let limit = config.max_factor_dim as usize;
        let shape = merged(&spec.shape, config, self.preconditioner.merge_limit(limit))?;
        let preconditioned = is_preconditioned(config, &spec, &shape);
        let sides = listed(shape.iter().map(|d| piece(config, *d)), LISTS)?;
        let chunks = listed(shape.iter().zip(&sides).map(|(d, side)| d.div_ceil(*side)), LISTS)?;
        let count: usize = chunks.iter().product();
        self.reserve(count, shape.len(), &spec.name).map_err(|e| e.at(index))?;

        let strides = row_major_strides(&shape)?;
        let first_block = self.blocks.len();
        let first_factor = self.factors.len();
        let root = [spec.root, config.root, 2.0 * shape.len() as f64].into_iter().find(|r| *r > 0.0);
        let root = root.unwrap_or(2.0);
        if preconditioned && policy::certifies(config.policy) && config.exponent_multiplier > root {
            let message = format!(
                "parameter '{}': exponent_multiplier / root = {} / {root}: the bound of policy = sandwich holds for exponents of at most 1; expected exponent_multiplier <= root",
                spec.name, config.exponent_multiplier
            );
            return Err(Error::invalid(message).at(index));
        }
        if preconditioned && !config.keep_inverse_root && work != statistic {
            let message = format!(
                "parameter '{}': keep_inverse_root = false with a basis in {} and steps in {}: the basis is used in every step; expected statistic_dtype = auto, or keep_inverse_root = true",
                spec.name,
                statistic.element().name(),
                work.element().name()
            );
            return Err(Error::invalid(message).at(index));
        }
        for number in 0..count {
            let at = unravel(number, &chunks)?;
            let firsts = listed(at.iter().zip(&sides).map(|(c, side)| c * side), LISTS)?;
            let dims =
                firsts.iter().zip(&shape).zip(&sides).map(|((first, d), side)| *side.min(&(d - first)));
            let dims = listed(dims, LISTS)?;
            let offset = firsts.iter().zip(&strides).map(|(first, s)| first * s).sum();
            let block = self.blocks.len();
            let layout = layout(config, &dims, statistic, work, preconditioned)?;
            let key = StackKey {
                strides: copied(&strides, LISTS)?,
                dtype: spec.dtype.code(),
                layout,
                dims: copied(&dims, LISTS)?,
            };
            let slots = self.add_slots(block, &key.layout)?;
            let stack = match known.get(&key) {
                Some(stack) => *stack,
                None => {
                    let copies = key.layout.iter().map(Array::copy);
                    let layout = crate::memory::tried(copies, LISTS)?;
                    push(&mut self.stacks, StackPlan { blocks: Vec::new(), layout, arrays: 0..0 }, LISTS)?;
                    known.try_reserve(1).map_err(|_| Error::out_of_memory(LISTS, 1))?;
                    known.insert(key, self.stacks.len() - 1);
                    self.stacks.len() - 1
                }
            };
            let place = self.stacks[stack].blocks.len();
            push(&mut self.stacks[stack].blocks, block, LISTS)?;
            let find = |kind, axis| {
                let mut own = slots.clone();
                own.find(|slot| self.slots[*slot].kind == kind && self.slots[*slot].axis == axis)
            };
            let factor_of = |(axis, dim): (usize, &usize)| {
                let own = |kind| find(kind, Some(axis));
                FactorPlan {
                    block,
                    axis,
                    dim: *dim,
                    root,
                    exponent: config.exponent_multiplier / root,
                    damping: config.base_damping(dims.len(), axis),
                    statistic: own(SlotKind::Statistic).or(own(SlotKind::RotatedStatistic)),
                    basis: own(SlotKind::Basis),
                    spectrum: own(SlotKind::Spectrum),
                    inverse_root: own(SlotKind::InverseRoot),
                    root_spectrum: own(SlotKind::RootSpectrum),
                    root_diagonal: own(SlotKind::RootDiagonal),
                    fresh_spectrum: own(SlotKind::FreshSpectrum),
                    pending_statistic: own(SlotKind::PendingStatistic),
                }
            };
            let has_factors = self.stacks[stack].layout.iter().any(|array| array.content == Content::Record);
            let axes = if has_factors { &dims[..] } else { &[] };
            let factors = listed(axes.iter().enumerate().map(factor_of), LISTS)?;
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
                strides: copied(&strides, LISTS)?,
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
    fn add_slots(&mut self, block: usize, arrays: &[Array]) -> Result<Range<usize>> {
        let first = self.slots.len();
        for array in arrays {
            let Content::Slot(kind, axis) = array.content else { continue };
            let precision =
                if array.element == Precision::F64.element() { Precision::F64 } else { Precision::F32 };
            let dims = copied(&array.tail, LISTS)?;
            push(&mut self.slots, Slot { kind, block, axis, precision, dims, place: (0, 0) }, LISTS)?;
        }
        Ok(first..self.slots.len())
    }

    /// A huge parameter must be refused by an error, so the lists grow fallibly.
    fn reserve(&mut self, blocks: usize, order: usize, name: &str) -> Result<()> {
        let refused = |_| {
            Error::new(
                crate::error::Kind::OutOfMemory,
                format!("out of memory: parameter '{name}' would be cut into {blocks} blocks"),
            )
        };
        let factors = blocks.saturating_mul(order);
        self.blocks.try_reserve(blocks).map_err(refused)?;
        self.factors.try_reserve(factors).map_err(refused)?;
        self.slots.try_reserve(factors.saturating_mul(6).saturating_add(3 * blocks)).map_err(refused)
    }

    /// How many axes of a block have a basis, or will have one.
    pub fn bases(&self, block: usize) -> usize {
        let factors = &self.factors[self.blocks[block].factors.clone()];
        factors.iter().filter(|factor| factor.is_preconditioned()).count()
    }

    /// The parameter that a factor belongs to.
    pub fn param_of(&self, factor: usize) -> &ParamPlan {
        &self.params[self.blocks[self.factors[factor].block].param]
    }
}

/// What the lists of a plan are called in errors.
const LISTS: &str = "the plan of blocks";

/// Precision of the statistics of a parameter of this type.
fn statistic_precision(config: &Config, dtype: DType) -> Precision {
    match config.statistic_dtype {
        StatisticDtype::Auto => dtype.work(),
        StatisticDtype::F32 => Precision::F32,
        StatisticDtype::F64 => Precision::F64,
    }
}

/// Whether a parameter of the merged shape `shape` has factors.
fn is_preconditioned(config: &Config, spec: &ParamSpec, shape: &[usize]) -> bool {
    let is_vector = shape.len() < 2;
    !spec.grafting_only && config.policy != Policy::GraftingOnly && (config.precondition_1d || !is_vector)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(shape: &[usize]) -> ParamSpec {
        ParamSpec::new("w".into(), shape.to_vec())
    }

    #[test]
    fn vectors_have_no_factors_unless_asked_for() {
        let config = Config { precondition_1d: false, keep_matrix: true, ..Config::reference() };
        let specs = [&[5][..], &[1, 7], &[], &[4, 3]].map(spec).to_vec();
        let plan = Plan::new(&config, specs).unwrap();
        let counts: Vec<usize> = plan.params.iter().map(|param| param.factors.len()).collect();
        assert_eq!(counts, [0, 0, 0, 2]);
    }

    #[test]
    fn a_large_matrix_is_cut_in_row_major_order() {
        let config = Config { max_factor_dim: 128, ..Config::reference() };
        let plan = Plan::new(&config, vec![spec(&[200, 300])]).unwrap();
        let dims: Vec<_> = plan.blocks.iter().map(|b| b.dims.clone()).collect();
        assert_eq!(dims, [[128, 128], [128, 128], [128, 44], [72, 128], [72, 128], [72, 44]]);
        assert_eq!(plan.blocks[4].offset, 128 * 300 + 128);
        assert_eq!(plan.factors.len(), 12);
        assert_eq!(plan.blocks.iter().map(|b| b.elements).sum::<usize>(), 200 * 300);
    }

    #[test]
    fn even_blocks_cover_a_matrix_once() {
        let config = Config { max_factor_dim: 128, even_blocks: true, ..Config::reference() };
        let plan = Plan::new(&config, vec![spec(&[200, 300])]).unwrap();
        let dims: Vec<_> = plan.blocks.iter().map(|b| b.dims.clone()).collect();
        assert_eq!(dims, [[112, 112], [112, 112], [112, 76], [88, 112], [88, 112], [88, 76]]);
        assert_eq!(plan.blocks[5].offset, 112 * 300 + 224);
        assert_eq!(plan.blocks.iter().map(|b| b.elements).sum::<usize>(), 200 * 300);
    }

    #[test]
    fn arrays_do_not_overlap_and_slots_lie_within_them() {
        let config = Config { momentum: 0.9, max_factor_dim: 7, ..Config::reference() };
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
    fn squares_are_shared_on_the_cpu_from_a_side_on_where_there_is_one_precision() {
        use crate::preconditioner::shampoo::SHARED_SIDE;
        let shared = |config: Config, dim: usize| {
            let plan = Plan::new(&config, vec![spec(&[dim, 3])]).unwrap();
            let [factor, small] = &plan.factors[..] else { panic!("a matrix has two factors") };
            assert!(small.inverse_root.is_some() && small.root_diagonal.is_none());
            assert_eq!(factor.inverse_root.is_none(), factor.root_diagonal.is_some());
            let squares: usize = [factor.statistic, factor.basis, factor.inverse_root]
                .into_iter()
                .flatten()
                .map(|slot| plan.slots[slot].len() / (dim * dim))
                .sum();
            assert_eq!(squares, if factor.root_diagonal.is_some() { 2 } else { 3 });
            factor.root_diagonal.is_some()
        };
        let cpu = || Config { merge_dims: false, ..Config::reference() };
        assert!(shared(cpu(), SHARED_SIDE) && shared(cpu(), 1000));
        assert!(!shared(cpu(), SHARED_SIDE - 1));
        assert!(!shared(Config { share_squares: false, ..cpu() }, 200));
        assert!(!shared(Config { statistic_dtype: StatisticDtype::F64, ..cpu() }, 200));
        assert!(!shared(Config { device: crate::config::Device { kind: 2, id: 0 }, ..cpu() }, 200));
    }

    #[test]
    fn without_inverse_roots_the_state_has_two_squares_per_side() {
        let bytes = |keep_inverse_root| {
            let (merge_dims, share_squares) = (false, false);
            let config = Config { keep_inverse_root, merge_dims, share_squares, ..Config::reference() };
            Plan::new(&config, vec![spec(&[64, 128])]).unwrap().state_bytes
        };
        let size = DType::F32.size();
        assert_eq!(bytes(true) - bytes(false), size * (64 * 64 + 128 * 128 - 64 - 128));
        let mixed =
            Config { keep_inverse_root: false, statistic_dtype: StatisticDtype::F64, ..Config::reference() };
        let message = Plan::new(&mixed, vec![spec(&[64, 128])]).unwrap_err().message;
        for part in ["'w'", "keep_inverse_root = false", "f64", "f32", "statistic_dtype = auto"] {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn equal_blocks_are_one_stack() {
        let config = Config { max_factor_dim: 8, ..Config::reference() };
        let plan = Plan::new(&config, vec![spec(&[16, 20]), spec(&[3]), spec(&[16, 20])]).unwrap();
        let counts: Vec<usize> = plan.stacks.iter().map(|stack| stack.blocks.len()).collect();
        assert_eq!(counts, [8, 4, 1]);
        for (number, block) in plan.blocks.iter().enumerate() {
            assert_eq!(plan.stacks[block.stack].blocks[block.place], number);
        }
    }
}
