//! Equal blocks are batched, so that one launch or one batched call serves all of them. Here is which block lies
//! where, and where the device keeps its tables; fixed at creation.

use super::driver::ALIGNMENT;
use super::tables::{
    Certificate, Choice, Drift, Gate, MAX_ORDER, Order, Renewal, STRIP, SUMS, Scale, Search, Site, Task,
};
use crate::engine::plan::{BlockPlan, FactorPlan, ParamPlan, Plan};
use crate::error::{Error, Kind, Result};
use crate::preconditioner::Preconditioner;
use crate::tensor::{DType, Precision};
use std::ops::Range;

/// Elements of one chunk of an elementwise pass.
pub const CHUNK: usize = 4096;
/// Blocks of one batch, or factors of one group: a launch has at most 65535 along its second axis.
pub const MOST_BLOCKS: usize = 32768;
/// Workspace of a step, whatever the model's size, unless a single block needs more: larger stacks are worked on in
/// slices.
const STEP_BYTES: usize = 256 << 20;
/// Workspace that the factors of a check may fill at once, unless a single one needs more.
const CHECK_BYTES: usize = 64 << 20;

/// Consecutive blocks of one stack, which one launch works on.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The stack.
    pub stack: usize,
    /// Places in it.
    pub places: Range<usize>,
    /// Its first block in the plan, which stands for all.
    pub block: usize,
    /// Its first row, counted over all stacks.
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
    /// Bytes of workspace for each block.
    pub room: usize,
}

impl Batch {
    /// Blocks.
    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// Chunks of a block.
    pub fn chunks(&self) -> usize {
        self.elements.div_ceil(CHUNK)
    }

    /// Whether a gradient in bf16, its unfolding and its square along `axis` in f32 have room in the workspace of the
    /// step. Where not, the axis is so much longer than the others that its product is bound by memory, not by arithmetic.
    pub fn squares_fit(&self, axis: usize) -> bool {
        let copies = if self.dims.len() > 2 { 2 } else { 1 };
        2 * copies * self.elements + 4 * self.dims[axis].pow(2) <= self.room
    }

    /// A block is one run in its parameter.
    pub fn is_contiguous(&self) -> bool {
        (1..self.dims.len()).all(|a| self.strides[a - 1] == self.strides[a] * self.dims[a])
            && self.strides.last() == Some(&1)
    }
}

/// Bytes of workspace of a step, for a block: the gradient for the statistics (and its unfolding), or the two halves
/// that the products go back and forth between.
fn step_bytes(block: &BlockPlan, param: &ParamPlan, in_basis: bool) -> usize {
    let (s, w) = (param.statistic.size(), param.work.size());
    let middle = block.dims.len() > 2;
    let plain = if middle { 2 * s.max(w) } else { s.max(2 * w) };
    // SOAP's statistics in the basis take the projected gradient while it lies in one of the halves.
    let behind = if s > w { s } else { 0 } + if middle { s } else { 0 };
    block.elements * if in_basis { 2 * w + behind } else { plain }
}

/// Sections of the device's tables, as byte offsets.
#[derive(Clone, Debug, Default)]
pub struct Sections {
    /// The gate; with the infos and the answers behind it, it is what the host reads back.
    pub gate: usize,
    /// Infos, by row.
    pub infos: usize,
    /// Answers of `sense`, by order.
    pub drifts: usize,
    /// End of what the host reads back.
    pub readback: usize,
    /// Answers of `refresh`, by factor.
    pub renewals: usize,
    /// Sites, by row.
    pub sites: usize,
    /// Parameter numbers, by row.
    pub params: usize,
    /// Orders, by row.
    pub orders: usize,
    /// ‖G‖², by row.
    pub squares: usize,
    /// Tasks: as many lists as [`Layout::lists`], each of as many as there are factors.
    pub tasks: usize,
    /// Records that depend on refreshes: [`Layout::choices`] lists.
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
    /// The batches.
    pub batches: Vec<Batch>,
    /// First row of each stack.
    pub first_rows: Vec<usize>,
    /// The tables.
    pub tables: Sections,
    /// Offset of each factor's sensed diagonal, in numbers.
    pub diagonals: Vec<usize>,
    /// First partial sum of each batch, in numbers.
    pub partials: Vec<usize>,
    /// Bytes of workspace.
    pub work_bytes: usize,
    /// Bytes of a second one, for factors alone.
    pub side_bytes: usize,
    /// Refreshes are delayed.
    pub delays: bool,
}

fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

impl Layout {
    /// The layout of `plan`.
    pub fn new(plan: &Plan, keeps_diagonals: bool) -> Result<Layout> {
        for block in &plan.blocks {
            refuse_shape(block, &plan.params[block.param].spec.name).map_err(|e| e.at(block.param))?;
        }
        let in_basis = matches!(plan.preconditioner, Preconditioner::Soap(soap) if soap.in_basis);
        let (mut batches, mut first_rows) = (Vec::new(), Vec::new());
        let (mut first, mut step) = (0, 0);
        for (stack, own) in plan.stacks.iter().enumerate() {
            first_rows.push(first);
            let Some(each) = own.blocks.first().map(|block| {
                let block = &plan.blocks[*block];
                step_bytes(block, &plan.params[block.param], in_basis)
            }) else {
                continue;
            };
            let most = (STEP_BYTES / each.max(1)).clamp(1, MOST_BLOCKS);
            for start in (0..own.blocks.len()).step_by(most) {
                let places = start..(start + most).min(own.blocks.len());
                step = step.max(places.len() * each);
                let block = own.blocks[start];
                let (blocked, param) = (&plan.blocks[block], &plan.params[plan.blocks[block].param]);
                batches.push(Batch {
                    stack,
                    block,
                    first: first + start,
                    dims: blocked.dims.clone(),
                    strides: blocked.strides.clone(),
                    elements: blocked.elements,
                    dtype: param.spec.dtype,
                    work: param.work,
                    statistic: param.statistic,
                    preconditioned: !blocked.factors.is_empty(),
                    room: each,
                    places,
                });
            }
            first += own.blocks.len();
        }
        let mut diagonals = Vec::with_capacity(plan.factors.len());
        let mut kept = 0;
        for factor in &plan.factors {
            diagonals.push(kept);
            kept += if keeps_diagonals { factor.dim } else { 0 };
        }
        let mut partials = Vec::with_capacity(batches.len());
        let mut sums = 0;
        for batch in &batches {
            partials.push(sums);
            sums += 2 * batch.chunks() * batch.count();
        }
        let delays = plan.factors.iter().any(|factor| factor.pending_statistic.is_some());
        let lists = (lists(delays), choices(delays));
        let tables = place_tables(plan.blocks.len(), plan.factors.len(), lists, kept, sums);
        let work_bytes = aligned(step.max(check_bytes(plan, CHECK_BYTES)));
        let side_bytes = aligned(check_bytes(plan, work_bytes));
        Ok(Layout { batches, first_rows, tables, diagonals, partials, work_bytes, side_bytes, delays })
    }

    /// Lists of tasks.
    pub fn lists(&self) -> usize {
        lists(self.delays)
    }

    /// Lists of choices.
    pub fn choices(&self) -> usize {
        choices(self.delays)
    }

    /// The row of a block.
    pub fn row(&self, block: &BlockPlan) -> usize {
        self.first_rows[block.stack] + block.place
    }
}

/// Lists of tasks: of what is sensed, refreshed, measured and damped; where refreshes are delayed, the last three also
/// before the answers to a check are known, and of what is kept.
fn lists(delays: bool) -> usize {
    if delays { 8 } else { 4 }
}

fn choices(delays: bool) -> usize {
    if delays { 2 } else { 1 }
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

fn place_tables(
    blocks: usize,
    factors: usize,
    (lists, choices): (usize, usize),
    diagonals: usize,
    partials: usize,
) -> Sections {
    let mut end = 0;
    let mut section = |bytes: usize| {
        let at = end;
        end = aligned(end + bytes);
        at
    };
    let gate = section(size_of::<Gate>());
    let infos = section(blocks * 4);
    let drifts = section(factors * size_of::<Drift>());
    let readback = drifts + factors * size_of::<Drift>();
    let renewals = section(factors * size_of::<Renewal>());
    let sites = section(blocks * size_of::<Site>());
    let params = section(blocks * 4);
    let orders = section(blocks * size_of::<Order>());
    let squares = section(blocks * 8);
    let tasks = section(lists * factors * size_of::<Task>());
    let choices = section(choices * factors * size_of::<Choice>());
    let diagonals = section(diagonals * 8);
    let partials = section(partials * 8);
    Sections {
        gate,
        infos,
        drifts,
        readback,
        renewals,
        sites,
        params,
        orders,
        squares,
        tasks,
        choices,
        diagonals,
        partials,
        bytes: end,
    }
}

/// Where the matrices and vectors of a group of factors lie in the workspace.
#[derive(Clone, Copy, Debug)]
pub struct Scratch {
    /// Four lists of matrices.
    pub matrices: [u64; 4],
    /// Spectra.
    pub spectra: u64,
    /// Weights, in double precision.
    pub weights: u64,
    /// What a refresh keeps between its kernels.
    pub scales: u64,
    /// The solver's answers, two per factor.
    pub infos: u64,
    /// Lists of pointers to the matrices of each of the four.
    pub pointers: u64,
    /// Sums of the strips of each factor.
    pub partials: u64,
    /// The state of a search, by factor.
    pub searches: u64,
    /// That of a certificate.
    pub certificates: u64,
}

/// Strips of a matrix of side `n`.
pub fn strips(n: usize) -> usize {
    n.div_ceil(STRIP)
}

impl Scratch {
    /// For `count` factors of side `n` with numbers of `size` bytes, from address `at` on; and its end.
    pub fn new(at: u64, n: usize, size: usize, count: usize) -> (Scratch, u64) {
        let mut end = at as usize;
        let mut section = |bytes: usize| {
            let here = end;
            end = aligned(end + bytes);
            here as u64
        };
        let matrices = [(); 4].map(|()| section(count * n * n * size));
        let (spectra, weights) = (section(count * n * size), section(3 * count * n * 8));
        let (scales, infos) = (section(count * size_of::<Scale>()), section(2 * count * 4));
        let pointers = section(4 * count * 8);
        let partials = section(count * strips(n) * SUMS * 8);
        let searches = section(count * size_of::<Search>());
        let certificates = section(count * size_of::<Certificate>());
        let made =
            Scratch { matrices, spectra, weights, scales, infos, pointers, partials, searches, certificates };
        (made, end as u64)
    }

    /// The pointers to the matrices with number `which`, of `count` factors.
    pub fn list(&self, which: usize, count: usize) -> u64 {
        self.pointers + (which * count * 8) as u64
    }

    /// Bytes of such a scratch.
    pub fn bytes(n: usize, size: usize, count: usize) -> usize {
        Scratch::new(0, n, size, count).1 as usize
    }
}

/// The moments of a block that turn with a basis: a matrix in the precision of the work, and two copies of a moment.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// The matrices.
    pub matrices: u64,
    /// The copies.
    pub halves: [u64; 2],
}

impl Turn {
    /// For `count` factors of side `n`, whose blocks have `elements` elements of `size` bytes, from address `at` on; and
    /// its end.
    pub fn new(at: u64, n: usize, elements: usize, size: usize, count: usize) -> (Turn, u64) {
        let mut end = aligned(at as usize);
        let mut section = |bytes: usize| {
            let here = end;
            end = aligned(end + bytes);
            here as u64
        };
        let matrices = section(count * n * n * size);
        (Turn { matrices, halves: [(); 2].map(|()| section(count * elements * size)) }, end as u64)
    }
}

/// Bytes that the check of `count` factors like `factor` takes, with a solver of numbers of `size` bytes.
pub fn factor_bytes(plan: &Plan, factor: &FactorPlan, size: usize, count: usize) -> usize {
    let scratch = Scratch::bytes(factor.dim, size, count);
    if plan.preconditioner.has_roots() {
        return scratch;
    }
    let block = &plan.blocks[factor.block];
    let work = plan.params[block.param].work.size();
    Turn::new(scratch as u64, factor.dim, block.elements, work, count).1 as usize
}

/// Enough for the largest factor alone, in double precision, and for all of them at once up to a limit.
fn check_bytes(plan: &Plan, limit: usize) -> usize {
    let need = |factor: &FactorPlan| {
        let size = plan.params[plan.blocks[factor.block].param].statistic.size();
        factor_bytes(plan, factor, size, 1)
    };
    let own = || plan.factors.iter().filter(|factor| factor.is_preconditioned());
    let all = own().map(need).fold(0usize, usize::saturating_add);
    let most = own().map(|factor| factor_bytes(plan, factor, 8, 1)).max().unwrap_or(0);
    most.max(all.min(limit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::engine::plan::ParamSpec;

    fn plan(shapes: &[[usize; 2]]) -> Plan {
        let spec = |(number, shape): (usize, &[usize; 2])| ParamSpec {
            name: format!("p{number}"),
            shape: shape.to_vec(),
            dtype: DType::F32,
            lr_scale: 1.0,
            weight_decay_scale: 1.0,
            root: 0.0,
            grafting_only: false,
            shard: None,
        };
        let config = Config { merge_dims: false, ..Config::reference() };
        Plan::new(&config, shapes.iter().enumerate().map(spec).collect()).unwrap()
    }

    #[test]
    fn a_large_model_is_worked_on_in_slices() {
        // Two decoder layers of a model of 7B parameters, in blocks of 1024.
        let layer = [[4096, 4096], [4096, 4096], [4096, 4096], [4096, 4096], [11008, 4096], [4096, 11008]];
        let plan = plan(&[layer, layer].concat());
        let layout = Layout::new(&plan, false).unwrap();
        assert_eq!(layout.work_bytes, STEP_BYTES);
        for (stack, own) in plan.stacks.iter().enumerate() {
            let slices: Vec<&Batch> = layout.batches.iter().filter(|batch| batch.stack == stack).collect();
            // Eight bytes per element.
            let each = 8 * slices[0].elements;
            assert_eq!(slices.len(), (own.blocks.len() * each).div_ceil(STEP_BYTES), "stack {stack}");
            let mut next = 0;
            for slice in slices {
                assert_eq!(slice.places.start, next);
                assert_eq!((slice.block, slice.first), (own.blocks[next], layout.first_rows[stack] + next));
                assert!(slice.count() * each <= STEP_BYTES);
                next = slice.places.end;
            }
            assert_eq!(next, own.blocks.len());
        }
    }

    #[test]
    fn a_small_model_is_worked_on_at_once() {
        let plan = plan(&[[768, 768]; 16]);
        let layout = Layout::new(&plan, false).unwrap();
        assert_eq!((layout.batches.len(), layout.work_bytes), (1, 16 * 768 * 768 * 8));
    }
}
