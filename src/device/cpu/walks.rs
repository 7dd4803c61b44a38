//! How a block is walked through: rows for the elementwise passes, tiles for the products, and waves
//! of blocks that share the workspace. Fixed at creation and independent of the number of threads,
//! so that results are too.

use super::real::SPAN;
use crate::engine::plan::{AxisView, BlockPlan, Plan};
use crate::error::Result;
use crate::memory::{aligned, copied, push, tried};
use crate::preconditioner::Preconditioner;
use std::ops::Range;

/// Elements of one elementwise task.
const CHUNK: usize = 16 * SPAN;
/// Columns (or rows) of one product task.
pub const PANEL: usize = 512;
/// Workspace that a wave may fill, unless a single block needs more.
const WAVE_BYTES: usize = 64 << 20;
/// Blocks with less workspace than this are small: the passes over a wave of them find the numbers of the pass
/// before still in the cache, if the wave is no larger than [`SMALL_WAVE_BYTES`].
const SMALL_BYTES: usize = 192 << 10;
/// Workspace of a wave of small blocks.
const SMALL_WAVE_BYTES: usize = 512 << 10;

/// What the lists of tasks are called in errors.
const TASKS: &str = "the tasks of a step";

/// A run of consecutive elements: in the parameter, in the state, in the workspace.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Offset from the block's first element in the caller's tensor.
    pub tensor: usize,
    /// Offset in a slot of the block.
    pub state: usize,
    /// Offset in the workspace.
    pub work: usize,
    /// Elements, at most [`SPAN`].
    pub len: usize,
}

/// The walk through one block.
#[derive(Clone, Debug)]
pub struct Geometry {
    /// Rows of the walk.
    rows: usize,
    /// Elements of a row (the last may be shorter when `packed`).
    cols: usize,
    /// Workspace elements of a matrix row.
    pub stride: usize,
    /// The block is one run in the parameter and in the workspace.
    packed: bool,
    elements: usize,
    dims: Vec<usize>,
    strides: Vec<usize>,
}

impl Geometry {
    fn new(block: &BlockPlan) -> Result<Geometry> {
        let order = block.dims.len();
        let cols = block.dims[order - 1];
        let rows = block.elements / cols;
        // A leading dimension that is a large power of two makes the rows of a transposed operand
        // collide in the cache and halves the speed of a product.
        let stride =
            if order == 2 && cols >= 128 && rows > 1 { cols.next_multiple_of(16) + 16 } else { cols };
        let packed = block.is_run && stride == cols;
        let (rows, cols) = if packed { (block.elements.div_ceil(SPAN), SPAN) } else { (rows, cols) };
        Ok(Geometry {
            rows,
            cols,
            stride,
            packed,
            elements: block.elements,
            dims: copied(&block.dims, TASKS)?,
            strides: copied(&block.strides, TASKS)?,
        })
    }

    /// Workspace elements of the block.
    pub fn work_len(&self) -> usize {
        if self.packed { self.elements } else { self.rows * self.stride }
    }

    fn row_offset(&self, mut row: usize) -> usize {
        let outer = self.dims.len() - 1;
        let mut offset = 0;
        for axis in (0..outer).rev() {
            offset += (row % self.dims[axis]) * self.strides[axis];
            row /= self.dims[axis];
        }
        offset
    }

    /// Visits the runs of `rows` in order.
    #[inline(always)]
    pub fn walk(&self, rows: Range<usize>, mut visit: impl FnMut(Run)) {
        for row in rows {
            if self.packed {
                let at = row * SPAN;
                visit(Run { tensor: at, state: at, work: at, len: SPAN.min(self.elements - at) });
                continue;
            }
            let tensor = self.row_offset(row);
            for col in (0..self.cols).step_by(SPAN) {
                visit(Run {
                    tensor: tensor + col,
                    state: row * self.cols + col,
                    work: row * self.stride + col,
                    len: SPAN.min(self.cols - col),
                });
            }
        }
    }
}

/// An elementwise task: some rows of a block.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// The block.
    pub block: usize,
    /// Its rows.
    pub rows: Range<usize>,
}

/// A product task: a panel of an axis of a block.
#[derive(Clone, Debug)]
pub struct Tile {
    /// The block.
    pub block: usize,
    /// The axis.
    pub axis: usize,
    /// How many axes before it have a product.
    pub number: usize,
    /// What of it: columns of the statistic, or rows of the product's result.
    pub panel: Range<usize>,
    /// Where the tile leaves its sum of squares.
    pub partial: usize,
    cost: u128,
}

impl Tile {
    /// The rows of the axis' matrix that the product takes, in a block of these sizes.
    pub fn root_rows(&self, dims: &[usize]) -> Range<usize> {
        let view = AxisView::new(dims, self.axis);
        // Only along the first of several axes does the tile have rows of the matrix; else it has rows of the block.
        if view.inner > 1 && view.outer == 1 { self.panel.clone() } else { 0..view.dim }
    }
}

/// A group of blocks that are worked on together; they share the workspace with the other waves.
#[derive(Clone, Debug, Default)]
pub struct Wave {
    /// Its blocks.
    pub blocks: Range<usize>,
    /// Elementwise tasks.
    pub chunks: Range<usize>,
    /// Tiles of the statistics.
    pub statistics: Vec<Tile>,
    /// Tiles of the products along axis 0, 1, …
    pub products: Vec<Vec<Tile>>,
    /// Whether there is enough work to wake other threads.
    pub parallel: bool,
}

/// All walks of a plan.
pub struct Walks {
    /// By block.
    pub blocks: Vec<Geometry>,
    /// Elementwise tasks, block by block.
    pub chunks: Vec<Chunk>,
    /// Chunks of each block.
    pub chunks_of: Vec<Range<usize>>,
    /// Partial sums of the final product's tiles, by block.
    pub partials_of: Vec<Range<usize>>,
    /// Byte offset of each block's workspace.
    pub work_offsets: Vec<usize>,
    /// The waves.
    pub waves: Vec<Wave>,
    /// Bytes of workspace.
    pub work_bytes: usize,
    /// Partial sums in all.
    pub partials: usize,
    /// Bytes that the largest inverse root, or the rows of it that a product takes, has when it is brought together.
    pub root_bytes: usize,
    /// Most products at the same time that take such a root.
    pub root_tiles: usize,
}

impl Walks {
    /// The walks of `plan`.
    pub fn new(plan: &Plan) -> Result<Walks> {
        let mut walks = Walks {
            blocks: tried(plan.blocks.iter().map(Geometry::new), TASKS)?,
            chunks: Vec::new(),
            chunks_of: Vec::new(),
            partials_of: Vec::new(),
            work_offsets: Vec::new(),
            waves: Vec::new(),
            work_bytes: 0,
            partials: 0,
            root_bytes: 0,
            root_tiles: 0,
        };
        let (mut wave, mut filled) = (Wave::default(), 0usize);
        for (number, block) in plan.blocks.iter().enumerate() {
            let param = &plan.params[block.param];
            let (narrow, wide) = (2 * param.work.size(), param.statistic.size());
            // Statistics in the basis take a copy of the projected gradient in their own precision.
            let copies = match plan.preconditioner {
                Preconditioner::Soap(soap) => soap.in_basis && param.work != param.statistic,
                Preconditioner::Shampoo(_) => false,
            };
            let wide = if copies { narrow + wide } else { narrow.max(wide) };
            let bytes = aligned(walks.blocks[number].work_len() as u128 * wide as u128 + 64) as usize;
            let limit = if bytes < SMALL_BYTES { SMALL_WAVE_BYTES } else { WAVE_BYTES };
            if filled > 0 && filled + bytes > limit {
                walks.close(std::mem::take(&mut wave))?;
                filled = 0;
            }
            push(&mut walks.work_offsets, filled, TASKS)?;
            filled += bytes;
            walks.work_bytes = walks.work_bytes.max(filled);
            walks.add(plan, number, block, &mut wave)?;
        }
        walks.close(wave)?;
        walks.measure_roots(plan);
        Ok(walks)
    }

    fn measure_roots(&mut self, plan: &Plan) {
        for tiles in self.waves.iter().flat_map(|wave| &wave.products) {
            let mut count = 0;
            for tile in tiles {
                let block = &plan.blocks[tile.block];
                let factor = &plan.factors[block.factors.start + tile.axis];
                if factor.root_diagonal.is_some() {
                    count += 1;
                    let numbers = tile.root_rows(&block.dims).len() * factor.dim;
                    let bytes = numbers * plan.params[block.param].work.size();
                    self.root_bytes = self.root_bytes.max(aligned(bytes as u128) as usize);
                }
            }
            self.root_tiles = self.root_tiles.max(count);
        }
    }

    fn add(&mut self, plan: &Plan, number: usize, block: &BlockPlan, wave: &mut Wave) -> Result<()> {
        let geometry = &self.blocks[number];
        let first = self.chunks.len();
        let rows = (CHUNK / geometry.cols).max(1);
        for start in (0..geometry.rows).step_by(rows) {
            let end = (start + rows).min(geometry.rows);
            push(&mut self.chunks, Chunk { block: number, rows: start..end }, TASKS)?;
        }
        push(&mut self.chunks_of, first..self.chunks.len(), TASKS)?;
        let first_partial = self.partials;
        let order = if block.factors.is_empty() { 0 } else { block.dims.len() };
        while wave.products.len() < order {
            push(&mut wave.products, Vec::new(), TASKS)?;
        }
        let has_basis = |axis: &usize| plan.factors[block.factors.start + axis].is_preconditioned();
        for (before, axis) in (0..order).filter(has_basis).enumerate() {
            let view = AxisView::new(&block.dims, axis);
            let dim = view.dim as u128;
            for start in (0..view.dim).step_by(PANEL) {
                let panel = start..(start + PANEL).min(view.dim);
                let cost = (dim - start as u128) * panel.len() as u128 * (block.elements as u128 / dim);
                let tile = Tile { block: number, axis, number: before, panel, partial: 0, cost };
                push(&mut wave.statistics, tile, TASKS)?;
            }
            for start in (0..result_rows(&view)).step_by(PANEL) {
                let panel = start..(start + PANEL).min(result_rows(&view));
                let cost = panel.len() as u128 * dim * block.elements as u128 / result_rows(&view) as u128;
                let partial = self.partials;
                self.partials += usize::from(axis + 1 == order);
                let tile = Tile { block: number, axis, number: before, panel, partial, cost };
                push(&mut wave.products[axis], tile, TASKS)?;
            }
        }
        push(&mut self.partials_of, first_partial..self.partials, TASKS)
    }

    fn close(&mut self, mut wave: Wave) -> Result<()> {
        let first = self.waves.last().map_or(0, |w| w.chunks.end);
        wave.chunks = first..self.chunks.len();
        wave.blocks = self.waves.last().map_or(0, |w| w.blocks.end)..self.chunks_of.len();
        // Large tiles first: the last tasks to finish are then small ones.
        let order = |t: &Tile| (std::cmp::Reverse(t.cost), t.block, t.axis, t.panel.start);
        wave.statistics.sort_unstable_by_key(order);
        wave.products.iter_mut().for_each(|tiles| tiles.sort_unstable_by_key(order));
        let flops: u128 = wave.statistics.iter().map(|t| t.cost).sum();
        wave.parallel = flops > 400_000 || wave.chunks.len() > 4;
        push(&mut self.waves, wave, TASKS)
    }
}

/// Rows of the product's result along an axis that are shared out to tiles.
fn result_rows(view: &AxisView) -> usize {
    match (view.inner, view.outer) {
        (1, outer) => outer,
        (_, 1) => view.dim,
        (_, outer) => outer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::engine::plan::ParamSpec;

    fn plan(shape: &[usize], limit: i64, merge_dims: bool) -> Plan {
        let config = Config { max_factor_dim: limit, merge_dims, ..Config::reference() };
        Plan::new(&config, vec![ParamSpec::new("w".into(), shape.to_vec())]).unwrap()
    }

    #[test]
    fn the_walks_visit_every_element_of_the_parameter_once() {
        for (shape, limit, merge) in [
            (vec![200, 300], 128, true),
            (vec![5, 7, 9, 2], 4, false),
            (vec![3000], 1024, true),
            (vec![40, 50], 64, false),
        ] {
            let plan = plan(&shape, limit, merge);
            let walks = Walks::new(&plan).unwrap();
            let mut seen = vec![0; shape.iter().product()];
            for (number, block) in plan.blocks.iter().enumerate() {
                let mut state = vec![0; block.elements];
                for chunk in &walks.chunks[walks.chunks_of[number].clone()] {
                    walks.blocks[chunk.block].walk(chunk.rows.clone(), |run| {
                        (0..run.len).for_each(|i| seen[block.offset + run.tensor + i] += 1);
                        (0..run.len).for_each(|i| state[run.state + i] += 1);
                        assert!(run.work + run.len <= walks.blocks[number].work_len());
                    });
                }
                assert!(state.iter().all(|n| *n == 1));
            }
            assert!(seen.iter().all(|n| *n == 1), "{shape:?}");
        }
    }
}
