//! The verbs `inspect` and `accumulate`: is the gradient finite, and statistic += gain·G Gᵀ.

use super::geometry::{AxisView, Chunk, Tile};
use super::product::{Span2, multiply, multiply_lower};
use super::real::{Real, SPAN, sum_of_squares};
use super::{BlockOrder, Cpu, Floor, Places, Precision, Tensors, by_precision};
use crate::optimizer::plan::ParamPlan;

/// Fills `squared_norm` of every order with the sum of squares of its (scaled, decayed) gradient.
pub(super) fn inspect(cpu: &mut Cpu, tensors: &Tensors, orders: &mut [BlockOrder]) {
    cpu.take_orders(orders);
    let (floor, order_of) = (&cpu.floor, &cpu.order_of);
    let sums = Places(cpu.chunk_sums.as_mut_ptr());
    let chunks = &floor.walks.chunks;
    let looked = &*orders;
    cpu.workers.run(chunks.len(), chunks.len() > 4, &|task, _| {
        let Some(number) = order_of[chunks[task].block] else { return };
        let param = &floor.plan.params[floor.plan.blocks[chunks[task].block].param];
        let sum =
            by_precision!(param, inspect_chunk(floor, tensors, &looked[number as usize], &chunks[task]));
        // SAFETY: one place a chunk.
        unsafe { sums.put(task, sum) };
    });
    for order in orders {
        let sum: f64 = cpu.chunk_sums[floor.walks.chunks_of[order.block].clone()].iter().sum();
        let param = &floor.plan.params[floor.plan.blocks[order.block].param];
        // The largest entry of G Gᵀ is at most ‖G‖²; the stored statistic carries up to 16 times it.
        let most = largest(param) / 32.0;
        order.squared_norm = if sum < most { sum } else { f64::INFINITY };
    }
}

fn largest(param: &ParamPlan) -> f64 {
    let narrow = param.work == Precision::F32 || param.statistic == Precision::F32;
    if narrow { f32::LARGEST } else { f64::LARGEST }
}

fn inspect_chunk<W: Real, S: Real>(
    floor: &Floor,
    tensors: &Tensors,
    order: &BlockOrder,
    chunk: &Chunk,
) -> f64 {
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            let mut total = 0.0;
            let mut gradient = [W::default(); SPAN];
            floor.walks.blocks[chunk.block].walk(chunk.rows.clone(), |run| {
                let g = &mut gradient[..run.len];
                // SAFETY: the run lies within the parameter, by the plan.
                unsafe { load_gradient(floor, tensors, order, run.tensor, g) };
                total += sum_of_squares(g);
            });
            total
        },
    )
}

/// The gradient as the step uses it: scaled, and with the coupled decay.
///
/// # Safety
/// `offset + out.len()` elements exist in the block's parameter and gradient.
#[inline(always)]
pub(super) unsafe fn load_gradient<T: Real>(
    floor: &Floor,
    tensors: &Tensors,
    order: &BlockOrder,
    offset: usize,
    out: &mut [T],
) {
    let param = floor.plan.blocks[order.block].param;
    let Some(grad) = tensors.grads[param] else { return out.fill(T::default()) };
    // SAFETY: the caller's contract.
    unsafe { T::load(grad, offset, order.grad_scale, out) };
    if order.coupled_decay != 0.0 {
        let mut values = [T::default(); SPAN];
        let values = &mut values[..out.len()];
        // SAFETY: the caller's contract.
        unsafe { T::load(tensors.params[param], offset, 1.0, values) };
        let decay = T::of(order.coupled_decay);
        out.iter_mut().zip(values).for_each(|(g, w)| *g += decay * *w);
    }
}

/// Updates the statistics of all blocks that have factors.
pub(super) fn accumulate(cpu: &mut Cpu, tensors: &Tensors, orders: &[BlockOrder]) {
    cpu.take_orders(orders);
    let (floor, order_of) = (&cpu.floor, &cpu.order_of);
    for wave in floor.walks.waves.iter().filter(|wave| !wave.statistics.is_empty()) {
        let chunks = &floor.walks.chunks[wave.chunks.clone()];
        cpu.workers.run(chunks.len(), wave.parallel, &|task, _| {
            let chunk = &chunks[task];
            let block = &floor.plan.blocks[chunk.block];
            let Some(number) = order_of[chunk.block].filter(|_| !block.factors.is_empty()) else { return };
            let param = &floor.plan.params[block.param];
            by_precision!(param, gather_chunk(floor, tensors, &orders[number as usize], chunk));
        });
        cpu.workers.run(wave.statistics.len(), wave.parallel, &|task, _| {
            let tile = &wave.statistics[task];
            let Some(number) = order_of[tile.block] else { return };
            let param = &floor.plan.params[floor.plan.blocks[tile.block].param];
            by_precision!(param, statistic_tile(floor, &orders[number as usize], tile));
        });
    }
}

/// Brings the gradient into the workspace, in the precision of the statistics.
fn gather_chunk<W: Real, S: Real>(floor: &Floor, tensors: &Tensors, order: &BlockOrder, chunk: &Chunk) {
    let work: *mut S = floor.work(chunk.block);
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            floor.walks.blocks[chunk.block].walk(chunk.rows.clone(), |run| {
                // SAFETY: the run lies within the block's workspace and parameter, and belongs to
                // this chunk alone.
                unsafe {
                    let target = std::slice::from_raw_parts_mut(work.add(run.work), run.len);
                    load_gradient(floor, tensors, order, run.tensor, target);
                }
            });
        },
    );
}

/// A panel of columns of one statistic's lower triangle.
fn statistic_tile<W: Real, S: Real>(floor: &Floor, order: &BlockOrder, tile: &Tile) {
    let block = &floor.plan.blocks[tile.block];
    let factor = &floor.plan.factors[block.factors.start + tile.axis];
    let view = AxisView::new(&block.dims, tile.axis);
    let (start, width, n) = (tile.panel.start, tile.panel.len(), view.dim);
    let statistic: *mut S = floor.slot(factor.statistic);
    let target = Span2::square(statistic, n);
    if order.statistic_decay != 1.0 {
        let decay = S::of(order.statistic_decay);
        for j in tile.panel.clone() {
            // SAFETY: column j of the statistic belongs to this tile.
            let column = unsafe { std::slice::from_raw_parts_mut(statistic.add(j * n), n) };
            column.iter_mut().for_each(|x| *x *= decay);
        }
    }
    let work: *mut S = floor.work(tile.block);
    let stride = floor.walks.blocks[tile.block].stride;
    let gain = S::of(order.statistic_gain);
    let below = n - tile.panel.end;
    // SAFETY: the operands lie in the block's workspace, the target in the statistic's own columns.
    let add = |x: Span2<S>| unsafe {
        // x is dim × depth; the tile is x[start.., :]·x[panel, :]ᵀ.
        let own = x.part(start, 0, width, x.cols);
        multiply_lower(target.part(start, start, width, width), true, own, own.t(), gain);
        if below > 0 {
            let rest = x.part(tile.panel.end, 0, below, x.cols);
            multiply(target.part(tile.panel.end, start, below, width), true, rest, own.t(), gain);
        }
    };
    // Only the rows of a matrix are padded.
    let padded = |length: usize| if block.dims.len() == 2 { stride } else { length };
    if view.inner == 1 {
        add(Span2::row_major(work, view.outer, n, padded(n)).t());
    } else {
        let row = padded(view.inner);
        for slice in 0..view.outer {
            add(Span2::row_major(work.wrapping_add(slice * n * view.inner), n, view.inner, row));
        }
    }
}
