//! Blocks of equal shape are stacked, so that one launch or one batched call serves all of them. Here is
//! which block lies where; fixed at creation.

use super::driver::ALIGNMENT;
use super::tables::{Choice, Drift, Gate, Renewal, Task, Time};
use super::tables::{MAX_ORDER, ORDER_BYTES, Site};
use crate::config::{Config, Policy};
use crate::error::{Error, Kind, Result};
use crate::optimizer::plan::{BlockPlan, ParamPlan, Plan};
use crate::tensor::{DType, Precision};

/// Elements of one chunk of an elementwise pass.
pub const CHUNK: usize = 4096;
/// Blocks of one stack, or factors of one group: a launch has at most 65535 along its second axis.
pub const MOST_BLOCKS: usize = 32768;
/// Workspace that the factors of a check may fill at once, unless a single one needs more.
const CHECK_BYTES: usize = 64 << 20;

/// Blocks of equal shape, strides, precisions and kind.
#[derive(Clone, Debug)]
pub struct StackPlan {
    /// The plan's numbers of its blocks.
    pub blocks: Vec<usize>,
    /// Its first block, counted over all stacks.
    pub first: usize,
    /// Sizes of a block's axes.
    pub dims: Vec<usize>,
    /// Strides in the parameter.
    pub strides: Vec<usize>,
    /// Elements of a block.
    pub elements: usize,
    /// Type of the parameters.
    pub dtype: DType,
    /// Precision of the work.
    pub work: Precision,
    /// Precision of the statistics.
    pub statistic: Precision,
    /// Whether the blocks have factors.
    pub preconditioned: bool,
}

impl StackPlan {
    fn new(block: &BlockPlan, param: &ParamPlan) -> StackPlan {
        StackPlan {
            blocks: Vec::new(),
            first: 0,
            dims: block.dims.clone(),
            strides: block.strides.clone(),
            elements: block.elements,
            dtype: param.spec.dtype,
            work: param.work,
            statistic: param.statistic,
            preconditioned: !block.factors.is_empty(),
        }
    }

    fn takes(&self, other: &StackPlan) -> bool {
        self.blocks.len() < MOST_BLOCKS
            && self.dims == other.dims
            && self.strides == other.strides
            && self.dtype == other.dtype
            && self.statistic == other.statistic
            && self.preconditioned == other.preconditioned
    }

    /// Chunks of a block.
    pub fn chunks(&self) -> usize {
        self.elements.div_ceil(CHUNK)
    }

    /// A block is one run in its parameter.
    pub fn is_contiguous(&self) -> bool {
        (1..self.dims.len()).all(|a| self.strides[a - 1] == self.strides[a] * self.dims[a])
            && self.strides.last() == Some(&1)
    }

    /// Bytes of workspace of a step: the gradient for the statistics (and its unfolding), or the two halves
    /// that the products go back and forth between.
    fn work_bytes(&self) -> usize {
        let (s, w) = (self.statistic.size(), self.work.size());
        let middle = self.dims.len() > 2;
        self.blocks.len() * self.elements * if middle { 2 * s.max(w) } else { s.max(2 * w) }
    }
}

/// Sections of the device's tables, as byte offsets.
#[derive(Clone, Debug, Default)]
pub struct Sections {
    /// The gate; with the clocks and the answers behind it, it is the bulletin that the host reads.
    pub gate: usize,
    /// The clock of every block, stack by stack.
    pub clocks: usize,
    /// Answers of `sense`, by order.
    pub drifts: usize,
    /// Answers of `refresh`, by factor.
    pub renewals: usize,
    /// End of the bulletin.
    pub bulletin: usize,
    /// Sites, by block.
    pub sites: usize,
    /// Parameter numbers, by block.
    pub params: usize,
    /// Orders, by block.
    pub orders: usize,
    /// ‖G‖², by block.
    pub squares: usize,
    /// Info, by block.
    pub info: usize,
    /// Dampings, by factor.
    pub dampings: usize,
    /// Tasks: three lists, each of as many as there are factors, the middle one twice.
    pub tasks: usize,
    /// Records that depend on refreshes.
    pub choices: usize,
    /// Sensed diagonals.
    pub diagonals: usize,
    /// Partial sums.
    pub partials: usize,
    /// All.
    pub bytes: usize,
}

/// The whole layout.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The stacks.
    pub stacks: Vec<StackPlan>,
    /// Stack and index within it, by block of the plan.
    pub place: Vec<(usize, usize)>,
    /// Offset in the state, by slot of the plan.
    pub slots: Vec<usize>,
    /// Bytes of the state.
    pub state_bytes: usize,
    /// The tables.
    pub tables: Sections,
    /// Offset of each factor's sensed diagonal, in numbers.
    pub diagonals: Vec<usize>,
    /// First partial sum of each stack, in numbers.
    pub partials: Vec<usize>,
    /// Bytes of workspace.
    pub work_bytes: usize,
}

fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

impl Layout {
    /// The layout of `plan`.
    pub fn new(plan: &Plan, config: &Config) -> Result<Layout> {
        let mut stacks: Vec<StackPlan> = Vec::new();
        for (number, block) in plan.blocks.iter().enumerate() {
            let param = &plan.params[block.param];
            refuse_shape(block, &param.spec.name).map_err(|e| e.at(block.param))?;
            let own = StackPlan::new(block, param);
            match stacks.iter_mut().find(|stack| stack.takes(&own)) {
                Some(stack) => stack.blocks.push(number),
                None => stacks.push(StackPlan { blocks: vec![number], ..own }),
            }
        }
        let mut place = vec![(0, 0); plan.blocks.len()];
        let mut first = 0;
        for (index, stack) in stacks.iter_mut().enumerate() {
            stack.first = first;
            first += stack.blocks.len();
            stack.blocks.iter().enumerate().for_each(|(i, block)| place[*block] = (index, i));
        }
        let (slots, state_bytes) = place_state(plan, &stacks);
        let mut diagonals = Vec::with_capacity(plan.factors.len());
        let mut kept = 0;
        for factor in &plan.factors {
            diagonals.push(kept);
            kept += if config.policy == Policy::DiagonalResidual { factor.dim } else { 0 };
        }
        let mut partials = Vec::with_capacity(stacks.len());
        let mut sums = 0;
        for stack in &stacks {
            partials.push(sums);
            sums += 2 * stack.chunks() * stack.blocks.len();
        }
        let tables = place_tables(plan.blocks.len(), plan.factors.len(), kept, sums);
        let step = stacks.iter().map(StackPlan::work_bytes).max().unwrap_or(0);
        let check = check_bytes(plan);
        Ok(Layout {
            stacks,
            place,
            slots,
            state_bytes,
            tables,
            diagonals,
            partials,
            work_bytes: step.max(check),
        })
    }
}

fn refuse_shape(block: &BlockPlan, name: &str) -> Result<()> {
    let refuse = |problem: String| {
        Err(Error::new(Kind::Unsupported, format!("parameter '{name}' on a CUDA device: {problem}")))
    };
    if block.dims.len() > MAX_ORDER {
        return refuse(format!(
            "a block has {} axes: expected at most {MAX_ORDER} (merge_dims = true merges them)",
            block.dims.len()
        ));
    }
    if block.elements >= 1 << 31 {
        return refuse(format!("a block has {} elements: expected fewer than 2^31", block.elements));
    }
    Ok(())
}

/// Every kind of buffer of a stack is one array with the blocks along its first axis.
fn place_state(plan: &Plan, stacks: &[StackPlan]) -> (Vec<usize>, usize) {
    let mut offsets = vec![0; plan.slots.len()];
    let mut end = 0;
    for stack in stacks {
        let own = |block: usize| {
            let block = &plan.blocks[block];
            let factors = plan.factors[block.factors.clone()].iter();
            let slots = factors.flat_map(|f| [f.statistic, f.basis, f.spectrum, f.inverse_root]);
            slots
                .chain([block.filter, block.moment, block.momentum].into_iter().flatten())
                .collect::<Vec<_>>()
        };
        let lists: Vec<Vec<usize>> = stack.blocks.iter().map(|block| own(*block)).collect();
        for kind in 0..lists[0].len() {
            for list in &lists {
                offsets[list[kind]] = end;
                end += plan.slots[list[kind]].bytes();
            }
            end = aligned(end);
        }
    }
    (offsets, end)
}

fn place_tables(blocks: usize, factors: usize, diagonals: usize, partials: usize) -> Sections {
    let mut end = 0;
    let mut section = |bytes: usize| {
        let at = end;
        end = aligned(end + bytes);
        at
    };
    let gate = section(size_of::<Gate>());
    let clocks = section(blocks * size_of::<Time>());
    let drifts = section(factors * size_of::<Drift>());
    let renewals = section(factors * size_of::<Renewal>());
    let bulletin = renewals + factors * size_of::<Renewal>();
    let sites = section(blocks * size_of::<Site>());
    let params = section(blocks * 4);
    let orders = section(blocks * ORDER_BYTES);
    let squares = section(blocks * 8);
    let info = section(blocks * 4);
    let dampings = section(factors * 8);
    let tasks = section(4 * factors * size_of::<Task>());
    let choices = section(factors * size_of::<Choice>());
    let diagonals = section(diagonals * 8);
    let partials = section(partials * 8);
    Sections {
        gate,
        clocks,
        drifts,
        renewals,
        bulletin,
        sites,
        params,
        orders,
        squares,
        info,
        dampings,
        tasks,
        choices,
        diagonals,
        partials,
        bytes: end,
    }
}

/// Where the matrices and vectors of a group of factors lie in the workspace.
#[derive(Clone, Copy, Debug)]
pub struct Bench {
    /// Four lists of matrices.
    pub matrices: [u64; 4],
    /// Spectra.
    pub spectra: u64,
    /// Weights, in double precision.
    pub weights: u64,
    /// What a refresh keeps between its kernels.
    pub scales: u64,
    /// The solver's answers.
    pub infos: u64,
}

impl Bench {
    /// For `count` factors of side `n` with numbers of `size` bytes, from address `at` on; and its end.
    pub fn new(at: u64, n: usize, size: usize, count: usize) -> (Bench, u64) {
        let mut end = at as usize;
        let mut section = |bytes: usize| {
            let here = end;
            end = aligned(end + bytes);
            here as u64
        };
        let matrices = [(); 4].map(|()| section(count * n * n * size));
        let (spectra, weights) = (section(count * n * size), section(count * n * 8));
        let (scales, infos) = (section(count * super::tables::SCALE_BYTES), section(count * 4));
        (Bench { matrices, spectra, weights, scales, infos }, end as u64)
    }

    /// Bytes of such a bench.
    pub fn bytes(n: usize, size: usize, count: usize) -> usize {
        Bench::new(0, n, size, count).1 as usize
    }
}

/// Enough for the largest factor alone, and for all of them at once up to a limit.
fn check_bytes(plan: &Plan) -> usize {
    let need = |factor: &crate::optimizer::plan::FactorPlan| {
        Bench::bytes(factor.dim, plan.slots[factor.statistic].precision.size(), 1)
    };
    let all: usize = plan.factors.iter().map(need).sum();
    let most = plan.factors.iter().map(need).max().unwrap_or(0);
    most.max(all.min(CHECK_BYTES))
}
