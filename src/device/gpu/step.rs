//! The verbs of every step: inspect, accumulate, apply. Nothing here waits, copies or allocates.

use super::Gpu;
use super::cuda::driver::{self, Function, Grid, RawStream};
use super::cuda::linear::{Operand, Shape};
use super::kernels::index;
use super::layout::{Batch, CHUNK};
use super::tables::{Order, POSTED, STAMPED, Site, Stack, Stamped, THREADS, judge};
use crate::device::{Rows, Site as CallerSite};
use crate::engine::plan::AxisView;
use crate::engine::rules::Rules;
use crate::error::{Error, Result};
use crate::preconditioner::Preconditioner;
use crate::tensor::{DType, Precision, squared_norm_limit};
use bytemuck::Zeroable;
use std::ffi::c_void;

/// Puts a kernel on a stream with the given arguments, each of the kernel's own type.
macro_rules! launch {
    ($function:expr, $grid:expr, $stream:expr, $($argument:expr),+ $(,)?) => {{
        let mut pointers = [$((&raw const $argument).cast_mut().cast::<c_void>()),+];
        // SAFETY: the arguments are the kernel's, by its source, and the memory they name is ours or the
        // caller's for the call.
        unsafe { driver::launch($function, $grid, $stream, &mut pointers) }
    }};
}
pub(super) use launch;

/// One thread block for each of x × y pieces, with as many threads as a piece of `items` items can use.
pub(super) fn wide(x: usize, y: usize, items: usize) -> Grid {
    Grid { blocks: (x, y), threads: items.next_power_of_two().clamp(32, THREADS) }
}

/// One thread for each of `count` things.
pub(super) fn each(count: usize) -> Grid {
    wide(count.div_ceil(THREADS), 1, count)
}

/// One thread block for each chunk of each block.
pub(super) fn by_chunk(batch: &Batch) -> Grid {
    Blocks::of(batch).grid()
}

/// One thread block for each block, which looks at its chunks.
pub(super) fn by_block(batch: &Batch) -> Grid {
    wide(batch.count(), 1, batch.chunks())
}

/// Blocks that lie one behind the other.
#[derive(Clone, Copy)]
pub(super) struct Blocks {
    /// How many.
    pub count: usize,
    /// Elements of each.
    pub elements: usize,
}

impl Blocks {
    /// Those of a batch.
    pub fn of(batch: &Batch) -> Blocks {
        Blocks { count: batch.count(), elements: batch.elements }
    }

    /// One thread block for each chunk of each.
    pub fn grid(self) -> Grid {
        wide(self.elements.div_ceil(CHUNK), self.count, self.elements)
    }
}

/// How a matrix acts along an axis.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Along {
    /// It is symmetric.
    Symmetric,
    /// By its transpose: into the basis.
    Into,
    /// As it is: back.
    Back,
}

pub(super) const SINGLE: Grid = Grid { blocks: (1, 1), threads: 1 };

impl Gpu {
    /// The batches as the kernels see them, at their addresses.
    pub(super) fn views(&self) -> Vec<Stack> {
        let sections = &self.layout.tables;
        let batches = self.layout.batches.iter().zip(&self.layout.partials);
        batches
            .map(|(batch, partials)| {
                let block = &self.plan.blocks[batch.block];
                let at = |section: usize, size: usize| self.table(section + batch.first * size);
                let numbers = |slot: Option<usize>| slot.map_or(0, |slot| self.slot(slot));
                let mut view = Stack {
                    count: batch.count() as i32,
                    order: batch.dims.len() as i32,
                    chunks: batch.chunks() as i32,
                    factors: if batch.preconditioned { batch.dims.len() as i32 } else { 0 },
                    elements: batch.elements as u32,
                    chunk: CHUNK as u32,
                    param_dtype: batch.dtype.code(),
                    contiguous: i32::from(batch.is_contiguous()),
                    wide: i32::from(batch.work == Precision::F64),
                    sites: at(sections.sites, size_of::<Site>()),
                    params: at(sections.params, 4),
                    clocks: self.clock(batch.block),
                    orders: at(sections.orders, size_of::<Order>()),
                    partials: self.table(sections.partials + partials * 8),
                    squares: at(sections.squares, 8),
                    info: self.infos + (batch.first * 4) as u64,
                    filter: numbers(block.filter),
                    moment: numbers(block.moment),
                    momentum: numbers(block.momentum),
                    work: self.work.address(),
                    ..Stack::zeroed()
                };
                for (axis, dim) in batch.dims.iter().enumerate() {
                    view.dims[axis] = *dim as u32;
                    view.strides[axis] = batch.strides[axis] as u64;
                }
                for (axis, factor) in self.plan.factors[block.factors.clone()].iter().enumerate() {
                    view.statistics[axis] = self.slot(factor.statistic);
                    view.roots[axis] = self.slot(factor.inverse_root.or(factor.basis));
                    view.eigenroots[axis] = self.slot(factor.root_spectrum);
                }
                if let Some((updates, dtype)) = self.rows.map(|rows| rows.updates) {
                    let offset = (batch.first * batch.elements * dtype.size()) as u64;
                    view.update = if updates == 0 { 0 } else { updates + offset };
                    view.update_dtype = dtype.code();
                }
                view
            })
            .collect()
    }
}

/// The rules for a batch.
pub(super) fn rules_of(batch: &Batch, rules: &Rules) -> Rules {
    Rules { largest: squared_norm_limit(batch.work, batch.statistic), ..*rules }
}

/// Looks at every gradient; [`judge`] follows for a joint step.
pub(super) fn inspect(gpu: &mut Gpu, rules: &Rules) -> Result<()> {
    if !gpu.joint {
        return measure(gpu, rules);
    }
    let (stream, kernels) = (gpu.stream, gpu.kernels.clone());
    post_sites(gpu, stream)?;
    // A graph must not open the gate each time that it is launched.
    let reopens = gpu.reopen && !gpu.capturing;
    let (gate, reopen) = (gpu.gate(), i32::from(reopens));
    launch!(kernels.begin, SINGLE, stream, gate, reopen)?;
    if !gpu.capturing {
        (gpu.reopen, gpu.calls) = (false, gpu.calls + 1);
    }
    measure(gpu, rules)
}

/// Decides whether the joint steps behind `gates` are taken: all of them, or none.
pub(super) fn judge(gpu: &Gpu, gates: &[(u64, bool)]) -> Result<()> {
    let lead = gates.first().map_or(0, |gate| gate.0);
    let launch = |own: &[(u64, bool)], parts: i32| {
        let mut list = Stamped::zeroed();
        for (place, (gate, strict)) in own.iter().enumerate() {
            (list.at[place], list.value[place]) = (*gate, u64::from(*strict));
        }
        let count = own.len() as i32;
        launch!(gpu.kernels.judge, SINGLE, gpu.stream, count, list, lead, parts)
    };
    if gates.len() <= STAMPED {
        return launch(gates, judge::FIRST | judge::LOOK | judge::TELL);
    }
    for (number, own) in gates.chunks(STAMPED).enumerate() {
        launch(own, judge::LOOK | if number == 0 { judge::FIRST } else { 0 })?;
    }
    gates.chunks(STAMPED).try_for_each(|own| launch(own, judge::TELL))
}

/// The squared norms of all gradients. What is not finite closes the gate, if there is one.
fn measure(gpu: &Gpu, rules: &Rules) -> Result<()> {
    let gate = gpu.gate();
    for (batch, view) in gpu.layout.batches.iter().zip(&gpu.batches) {
        let rules = rules_of(batch, rules);
        launch!(gpu.kernels.inspect[index(batch.work)], by_chunk(batch), gpu.stream, *view, rules)?;
        launch!(gpu.kernels.total, by_block(batch), gpu.stream, *view, rules, gate)?;
    }
    Ok(())
}

/// The sites that this step wants, each checked the first time it is seen.
pub(super) fn find_sites(gpu: &mut Gpu, sites: &[CallerSite]) -> Result<()> {
    gpu.wanted.copy_from_slice(&gpu.sites);
    gpu.wanted.iter_mut().for_each(|site| site.active = 0);
    for (block, site) in gpu.plan.blocks.iter().zip(sites).filter(|(_, site)| site.active) {
        let row = gpu.layout.row(block);
        let known = &gpu.sites[row];
        let dtype = gpu.plan.params[block.param].spec.dtype;
        for (what, address, dtype, seen) in [
            ("parameter", site.param, dtype, known.param),
            ("gradient of parameter", site.grad, site.grad_dtype, known.grad),
        ] {
            if address != seen {
                check_address(gpu, what, address, dtype, block.param)?;
            }
        }
        gpu.wanted[row] = Site::from(site);
    }
    Ok(())
}

fn check_address(gpu: &Gpu, what: &str, address: u64, dtype: DType, param: usize) -> Result<()> {
    let name = &gpu.plan.params[param].spec.name;
    let ordinal = gpu.kernels.device.ordinal();
    if !address.is_multiple_of(dtype.size() as u64) {
        return Err(Error::invalid(format!(
            "{what} '{name}': address {address:#x}: expected a multiple of {}, the size of {}",
            dtype.size(),
            dtype.name()
        ))
        .at(param));
    }
    match driver::owner(address) {
        Some(owner) if owner == ordinal && gpu.kernels.device.is_foreign(address) => {
            Err(Error::invalid(format!(
                "{what} '{name}': address {address:#x} was allocated in another context of cuda:{ordinal}; expected the device's primary context, which CUDA's runtime and the frameworks use"
            ))
            .at(param))
        }
        Some(owner) if owner == ordinal => Ok(()),
        Some(owner) => Err(Error::invalid(format!(
            "{what} '{name}' lies on cuda:{owner}: expected cuda:{ordinal}, the optimizer's device"
        ))
        .at(param)),
        None => Err(Error::invalid(format!(
            "{what} '{name}': the driver does not know address {address:#x} as device memory; expected memory of cuda:{ordinal}"
        ))
        .at(param)),
    }
}

/// The sites of blocks that lie one behind the other, written by the device itself.
pub(super) fn place_rows(gpu: &Gpu, rows: &Rows) -> Result<()> {
    for (batch, view) in gpu.layout.batches.iter().zip(&gpu.batches) {
        let first = rows.site(batch.first, batch.elements, batch.dtype, true);
        let (params, grads, decay) = (first.param, first.grad, first.decay);
        let bytes = |dtype: DType| (batch.elements * dtype.size()) as u64;
        let (param_bytes, grad_bytes) = (bytes(batch.dtype), bytes(rows.grads.1));
        let active = if rows.active == 0 { 0 } else { rows.active + 4 * batch.first as u64 };
        let code = rows.grads.1.code();
        let (place, grid) = (gpu.kernels.place, each(batch.count()));
        launch!(place, grid, gpu.stream, *view, params, grads, param_bytes, grad_bytes, decay, code, active)?;
    }
    Ok(())
}

/// Brings the sites that changed to the device, inside the launches themselves. A graph brings its own each time, and
/// the host those that a graph may have changed.
fn post_sites(gpu: &mut Gpu, stream: RawStream) -> Result<()> {
    let table = gpu.table(gpu.layout.tables.sites);
    for first in (0..gpu.wanted.len()).step_by(POSTED) {
        let end = (first + POSTED).min(gpu.wanted.len());
        if gpu.wanted[first..end] == gpu.sites[first..end] && !gpu.recorded && !gpu.capturing {
            continue;
        }
        let mut posted = [Site::zeroed(); POSTED];
        posted[..end - first].copy_from_slice(&gpu.wanted[first..end]);
        let (from, count) = (first as i32, (end - first) as i32);
        let grid = Grid { blocks: (1, 1), threads: POSTED };
        launch!(gpu.kernels.post, grid, stream, table, from, count, posted)?;
        gpu.sites[first..end].copy_from_slice(&posted[..end - first]);
    }
    Ok(())
}

/// The clocks advance, and the statistics take in the gradient.
pub(super) fn accumulate(gpu: &Gpu, rules: &Rules) -> Result<()> {
    let (stream, kernels, gate) = (gpu.stream, gpu.kernels.clone(), gpu.gate());
    let in_basis = matches!(gpu.plan.preconditioner, Preconditioner::Soap(soap) if soap.in_basis);
    for (batch, view) in gpu.layout.batches.iter().zip(&gpu.batches) {
        let rules = rules_of(batch, rules);
        let count = batch.count();
        launch!(kernels.tick, each(count), stream, *view, rules, gate)?;
        // Statistics in the basis take the gradient when it has been projected.
        if !batch.preconditioned || in_basis || !gpu.adds {
            continue;
        }
        let s = index(batch.statistic);
        launch!(kernels.rescale[s], wide(count, batch.dims.len(), batch.elements), stream, *view)?;
        let mut rest = *view;
        if is_exact(gpu, batch, &rules) {
            add_exactly(gpu, batch, &mut rest)?;
        }
        if rest.statistics.iter().all(|statistic| *statistic == 0) {
            continue;
        }
        launch!(kernels.gather[s], by_chunk(batch), stream, *view, rules)?;
        let behind = view.work + (count * batch.elements * batch.statistic.size()) as u64;
        add_statistics(gpu, batch, &rest, view.work, behind)?;
    }
    Ok(())
}

/// Whether the gradients of a batch are bf16 numbers that enter statistics in f32 as they are: neither scaled nor with a
/// coupled decay.
fn is_exact(gpu: &Gpu, batch: &Batch, rules: &Rules) -> bool {
    let takes =
        |dtype: i32, decay: f64| dtype == DType::Bf16.code() && (rules.decoupled != 0 || decay == 0.0);
    let sites = match gpu.rows {
        Some(rows) => takes(rows.grads.1.code(), rows.decay),
        None => {
            let sites = &gpu.wanted[batch.first..batch.first + batch.count()];
            sites.iter().filter(|site| site.active != 0).all(|site| takes(site.grad_dtype, site.decay))
        }
    };
    sites && batch.statistic == Precision::F32 && rules.grad_scale == 1.0 && gpu.linear.has_bf16()
}

/// The statistics take in the squares of gradients in bf16, which are multiplied as they are, where these have room; such
/// statistics are struck from the view. The gain of a block is the device's, so that it comes to the square afterwards.
fn add_exactly(gpu: &Gpu, batch: &Batch, view: &mut Stack) -> Result<()> {
    let own = |view: &Stack, axis: usize| view.statistics[axis] != 0 && batch.squares_fit(axis);
    let axes = 0..batch.dims.len();
    let sides = axes.clone().filter(|axis| own(view, *axis)).map(|axis| batch.dims[axis]);
    let Some(most) = sides.max() else { return Ok(()) };
    let (stream, kernels, count) = (gpu.stream, &gpu.kernels, batch.count());
    let squares = view.work;
    let gathered = squares + (4 * count * most * most) as u64;
    let unfolded = gathered + (2 * count * batch.elements) as u64;
    launch!(kernels.gather_bf16, by_chunk(batch), stream, *view, gathered)?;
    for axis in axes {
        if !own(view, axis) {
            continue;
        }
        let along = AxisView::new(&batch.dims, axis);
        let source = if along.is_middle() {
            unfold(gpu, kernels.unfold_bf16, Blocks::of(batch), gathered, unfolded, along)?;
            unfolded
        } else {
            gathered
        };
        let (shape, operands) = square(batch, along, source);
        let n = along.dim;
        let target = Operand { at: squares, lead: n, stride: n * n, transposed: false };
        for (shape, [left, right], target) in lower_tiles(shape, operands, target, (2, 4)) {
            gpu.linear.multiply_bf16(shape, left, right, target)?;
        }
        let (grid, number) = (wide((n * n).div_ceil(16 * THREADS), count, n * n), axis as i32);
        launch!(kernels.add_square, grid, stream, *view, number, squares)?;
        view.statistics[axis] = 0;
    }
    Ok(())
}

/// U Uᵀ as a product, U the unfolding of the blocks along an axis, at `source`: its size and its operands.
fn square(batch: &Batch, view: AxisView, source: u64) -> (Shape, [Operand; 2]) {
    let n = view.dim;
    let k = batch.elements / n;
    // The last axis lies along the columns of the column-major view, every other one along its rows.
    let along_columns = view.inner == 1;
    let lead = if along_columns { n } else { k };
    let own = |transposed| Operand { at: source, lead, stride: batch.elements, transposed };
    (Shape { m: n, n, k, count: batch.count() }, [own(!along_columns), own(along_columns)])
}

/// Columns of a statistic that are multiplied at once, at least; fewer would leave a GPU's products idle.
const TILE: usize = 256;
/// Products of one statistic, at most: what more of them save is little.
const MOST_TILES: usize = 8;

/// A product, its operands and its result.
type Piece = (Shape, [Operand; 2], Operand);

/// The lower triangle of a square U Uᵀ as products: columns in pieces, each with the rows from its diagonal on. Of c
/// pieces the work is (c + 1) / 2c of the whole square. How many there are depends on the side alone. The sizes are
/// those of the numbers of operands and result.
fn lower_tiles(
    shape: Shape,
    operands: [Operand; 2],
    target: Operand,
    (size, wide): (usize, usize),
) -> impl Iterator<Item = Piece> {
    let n = shape.n;
    let width = n.div_ceil((n / TILE).clamp(1, MOST_TILES)).max(1);
    (0..n).step_by(width).map(move |first| {
        // Row `first` of U, whichever way it is stored: the left operand is U, the right one its transpose.
        let from = |own: Operand, row_wise: bool| {
            let step = if row_wise { own.lead } else { 1 };
            Operand { at: own.at + (first * step * size) as u64, ..own }
        };
        let [left, right] = operands;
        let own = [from(left, left.transposed), from(right, !right.transposed)];
        let at = target.at + (first * (target.lead + 1) * wide) as u64;
        (Shape { m: n - first, n: width.min(n - first), ..shape }, own, Operand { at, ..target })
    })
}

/// Every statistic += U Uᵀ, U the unfolding of the blocks at `source` along its axis; `room` is used.
pub(super) fn add_statistics(gpu: &Gpu, batch: &Batch, view: &Stack, source: u64, room: u64) -> Result<()> {
    for axis in (0..batch.dims.len()).filter(|axis| view.statistics[*axis] != 0) {
        add_statistic(gpu, batch, view.statistics[axis], axis, source, room)?;
    }
    Ok(())
}

/// Unfolds every block of a stack from one place of the workspace to another.
fn unfold(gpu: &Gpu, function: Function, blocks: Blocks, from: u64, to: u64, view: AxisView) -> Result<()> {
    let grid = blocks.grid();
    let numbers = [blocks.elements, view.outer, view.dim, view.inner].map(|x| x as u32);
    let [elements, outer, dim, inner] = numbers;
    launch!(function, grid, gpu.stream, from, to, elements, outer, dim, inner)
}

fn add_statistic(
    gpu: &Gpu,
    batch: &Batch,
    statistic: u64,
    axis: usize,
    source: u64,
    room: u64,
) -> Result<()> {
    let precision = batch.statistic;
    let view = AxisView::new(&batch.dims, axis);
    let source = if view.is_middle() {
        unfold(gpu, gpu.kernels.unfold[index(precision)], Blocks::of(batch), source, room, view)?;
        room
    } else {
        source
    };
    let (shape, operands) = square(batch, view, source);
    let target = Operand { at: statistic, lead: shape.n, stride: shape.n * shape.n, transposed: false };
    // One triangle is half the work; TF32 is more than twice as fast, and there is no such product of a triangle.
    if shape.count == 1 && !gpu.linear.is_fast() {
        return gpu.linear.add_square(precision, shape.n, shape.k, operands[0], target);
    }
    let size = precision.size();
    for (shape, [left, right], target) in lower_tiles(shape, operands, target, (size, size)) {
        gpu.linear.multiply_fast(precision, shape, left, right, target, true)?;
    }
    Ok(())
}

/// Moments, direction, momentum, parameter.
pub(super) fn apply(gpu: &Gpu, rules: &Rules, keeps_root: bool) -> Result<()> {
    let (stream, kernels, gate) = (gpu.stream, gpu.kernels.clone(), gpu.gate());
    if !gpu.ticked && (rules.normalized != 0 || rules.moment_relative != 0) {
        measure(gpu, rules)?;
    }
    for (number, (batch, view)) in gpu.layout.batches.iter().zip(&gpu.batches).enumerate() {
        let rules = rules_of(batch, rules);
        if !gpu.ticked {
            launch!(kernels.resume, each(batch.count()), stream, *view, rules)?;
        }
        let (w, grid) = (index(batch.work), by_chunk(batch));
        launch!(kernels.filter[w], grid, stream, *view, rules)?;
        if !gpu.preconditioned[number] {
            continue;
        }
        let mut halves =
            [0, batch.count() * batch.elements * batch.work.size()].map(|x| view.work + x as u64);
        if keeps_root {
            turn(gpu, batch, view, Along::Symmetric, &mut halves)?;
        } else {
            through_basis(gpu, batch, view, &mut halves)?;
        }
        let direction = halves[0];
        launch!(kernels.norm[w], grid, stream, *view, direction)?;
        launch!(kernels.length, by_block(batch), stream, *view, rules, gate)?;
        launch!(kernels.update[w], grid, stream, *view, rules, direction)?;
    }
    Ok(())
}

/// Multiplies the blocks by their roots or bases along every axis that has one; the first half holds the result.
pub(super) fn turn(gpu: &Gpu, batch: &Batch, view: &Stack, acts: Along, halves: &mut [u64; 2]) -> Result<()> {
    for axis in (0..batch.dims.len()).filter(|axis| view.roots[*axis] != 0) {
        let along = AxisView::new(&batch.dims, axis);
        multiply_along(gpu, batch.work, Blocks::of(batch), along, (view.roots[axis], acts), *halves, true)?;
        halves.swap(0, 1);
    }
    Ok(())
}

/// The same without inverse roots: into the bases, times the roots' eigenvalues, and back.
fn through_basis(gpu: &Gpu, batch: &Batch, view: &Stack, halves: &mut [u64; 2]) -> Result<()> {
    turn(gpu, batch, view, Along::Into, halves)?;
    let blocks = halves[0];
    launch!(gpu.kernels.scale[index(batch.work)], by_chunk(batch), gpu.stream, *view, blocks)?;
    turn(gpu, batch, view, Along::Back, halves)
}

/// Matrix × block along an axis for every block, from the first place to the second; the matrices lie one behind the
/// other, too. For a middle axis the first place is used.
pub(super) fn multiply_along(
    gpu: &Gpu,
    precision: Precision,
    blocks: Blocks,
    view: AxisView,
    (matrices, acts): (u64, Along),
    [from, to]: [u64; 2],
    fast: bool,
) -> Result<()> {
    let (count, n) = (blocks.count, view.dim);
    let multiply = |shape, a, b, c| {
        if fast {
            gpu.linear.multiply_fast(precision, shape, a, b, c, false)
        } else {
            gpu.linear.multiply(precision, shape, a, b, c, false)
        }
    };
    let root = |transposed| Operand { at: matrices, lead: n, stride: n * n, transposed };
    let rest = blocks.elements / n;
    let matrix = |at, lead| Operand { at, lead, stride: blocks.elements, transposed: false };
    // From the right it is the other way round.
    let right = root(acts == Along::Back);
    if view.is_middle() {
        // Unfolded, multiplied and folded again: three launches whatever the number of slices.
        let function = gpu.kernels.unfold[index(precision)];
        unfold(gpu, function, blocks, from, to, view)?;
        let shape = Shape { m: rest, n, k: n, count };
        multiply(shape, matrix(to, rest), right, matrix(from, rest))?;
        let inverse = AxisView { outer: n, dim: view.outer, inner: view.inner };
        return unfold(gpu, function, blocks, from, to, inverse);
    }
    if view.inner == 1 {
        let shape = Shape { m: n, n: rest, k: n, count };
        let left = root(acts == Along::Into);
        return multiply(shape, left, matrix(from, n), matrix(to, n));
    }
    let shape = Shape { m: rest, n, k: n, count };
    multiply(shape, matrix(from, rest), right, matrix(to, rest))
}

/// The host has read the gate: its counts start again.
pub(super) fn acknowledge(gpu: &Gpu, stream: RawStream) -> Result<()> {
    let gate = gpu.gate();
    launch!(gpu.kernels.acknowledge, SINGLE, stream, gate)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The elements of a square that the pieces write, and their work as a share of the whole.
    fn covered(n: usize, transposed: bool) -> (usize, f64) {
        let (k, shape) = (5, Shape { m: n, n, k: 5, count: 3 });
        let lead = if transposed { k } else { n };
        let own = |transposed| Operand { at: 0, lead, stride: n * k, transposed };
        let target = Operand { at: 0, lead: n, stride: n * n, transposed: false };
        let (mut count, mut work, mut next) = (0, 0, 0);
        for (piece, [left, right], c) in
            lower_tiles(shape, [own(transposed), own(!transposed)], target, (1, 1))
        {
            // The first row and column of a piece lie on the diagonal.
            assert_eq!(c.at as usize, next * (n + 1));
            assert_eq!((left.at, right.at), ((next * if transposed { k } else { 1 }) as u64, left.at));
            assert_eq!((piece.m, piece.k, piece.count), (n - next, k, 3));
            next += piece.n;
            work += piece.m * piece.n;
            count += 1;
        }
        assert_eq!(next, n, "every column is written");
        (count, work as f64 / (n * n) as f64)
    }

    #[test]
    fn the_pieces_of_a_square_cover_its_lower_triangle() {
        for transposed in [false, true] {
            for n in [1, 7, 255, 256, 511] {
                assert_eq!(covered(n, transposed), (1, 1.0), "{n}");
            }
            for (n, count, share) in [(512, 2, 0.75), (768, 3, 0.6667), (1024, 4, 0.625), (8192, 8, 0.5625)] {
                let (pieces, work) = covered(n, transposed);
                assert!(pieces == count && (work - share).abs() < 1e-4, "{n}: {pieces} of {work}");
            }
            for n in [513, 700, 1000, 1023, 2047, 3001] {
                let (pieces, work) = covered(n, transposed);
                assert!(pieces <= MOST_TILES && work < 0.76, "{n}: {pieces} of {work}");
            }
        }
    }
}
