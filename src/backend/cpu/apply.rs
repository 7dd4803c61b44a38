//! The verb `apply`: filter, direction, grafting, decay, momentum, parameter.
//!
//! Two elementwise passes with the products between them; a block without a preconditioner (yet)
//! needs only the first.

use super::accumulate::load_gradient;
use super::geometry::{AxisView, Chunk, Run, Tile};
use super::product::{Span2, multiply};
use super::real::{Real, SPAN, wide_sum_of_squares};
use super::{BlockOrder, Cpu, Floor, Places, Precision, Tensors, by_precision};
use crate::backend::Direction;
use crate::config::{Config, Grafting};
use crate::optimizer::plan::SlotId;
use crate::tensor::TensorRef;

/// Keeps a division by a zero norm finite (the authors' code has the same constant).
const TINY_NORM: f64 = 1e-16;

/// Updates moments, momentum and parameters; gives the number of blocks whose direction overflowed.
pub(super) fn apply(cpu: &mut Cpu, tensors: &Tensors, orders: &[BlockOrder]) -> usize {
    cpu.take_orders(orders);
    cpu.left_out.fill(false);
    let (floor, order_of, lengths) = (&cpu.floor, &cpu.order_of, &mut cpu.lengths);
    let order = |block: usize| order_of[block].map(|number| &orders[number as usize]);
    let preconditioned = |block| order(block).filter(|o| o.direction == Direction::Preconditioned);
    let mut overflowed = 0;
    for wave in &floor.walks.waves {
        let chunks = &floor.walks.chunks[wave.chunks.clone()];
        let sums = Places(cpu.chunk_sums.as_mut_ptr());
        cpu.workers.run(chunks.len(), wave.parallel, &|task, _| {
            let Some(order) = order(chunks[task].block) else { return };
            let param = &floor.plan.params[floor.plan.blocks[order.block].param];
            let sum = by_precision!(param, filter_chunk(floor, tensors, order, &chunks[task]));
            // SAFETY: one place a chunk.
            unsafe { sums.put(wave.chunks.start + task, sum) };
        });
        if !wave.blocks.clone().any(|block| preconditioned(block).is_some()) {
            continue;
        }
        for tiles in &wave.products {
            let sums = Places(cpu.tile_sums.as_mut_ptr());
            cpu.workers.run(tiles.len(), wave.parallel, &|task, _| {
                let Some(order) = preconditioned(tiles[task].block) else { return };
                let param = &floor.plan.params[floor.plan.blocks[order.block].param];
                let sum = by_precision!(param, product_tile(floor, &tiles[task]));
                if let Some(sum) = sum {
                    // SAFETY: one place a tile of a block's last axis.
                    unsafe { sums.put(tiles[task].partial, sum) };
                }
            });
        }
        for block in wave.blocks.clone().filter(|block| preconditioned(*block).is_some()) {
            let own: f64 = cpu.tile_sums[floor.walks.partials_of[block].clone()].iter().sum();
            let grafted: f64 = cpu.chunk_sums[floor.walks.chunks_of[block].clone()].iter().sum();
            lengths[block] = length(floor.config.grafting, own.sqrt(), grafted.sqrt());
            cpu.left_out[block] = !own.is_finite();
            overflowed += usize::from(!own.is_finite());
        }
        let lengths = &*lengths;
        cpu.workers.run(chunks.len(), wave.parallel, &|task, _| {
            let Some(order) = preconditioned(chunks[task].block) else { return };
            let param = &floor.plan.params[floor.plan.blocks[order.block].param];
            by_precision!(param, update_chunk(floor, tensors, order, &chunks[task], lengths[order.block]));
        });
    }
    overflowed
}

/// What the direction is multiplied by: 1, or what gives it the grafted method's length. A direction that
/// is not finite gets the length 0 and is left out.
fn length(grafting: Grafting, own: f64, grafted: f64) -> f64 {
    match grafting {
        _ if !own.is_finite() => 0.0,
        Grafting::None => 1.0,
        _ => grafted / (own + TINY_NORM),
    }
}

/// The scalars of a pass, rounded once to the work precision, and where the block's buffers are.
struct Pass<'a, W> {
    floor: &'a Floor,
    tensors: &'a Tensors<'a>,
    order: &'a BlockOrder,
    param: TensorRef,
    /// Where the update goes, unless the parameter takes it.
    update: Option<TensorRef>,
    filter: Option<*mut W>,
    moment: Option<*mut W>,
    momentum: Option<*mut W>,
    work: *mut W,
    /// Multiplies the gradient that enters the grafted moment.
    normalize: W,
}

impl<'a, W: Real> Pass<'a, W> {
    fn new(floor: &'a Floor, tensors: &'a Tensors<'a>, order: &'a BlockOrder) -> Self {
        let block = &floor.plan.blocks[order.block];
        let buffer = |slot: Option<SlotId>| slot.map(|slot| floor.slot::<W>(slot));
        let normalize = if floor.config.normalized_grafting {
            1.0 / (order.squared_norm.sqrt() + TINY_NORM)
        } else {
            1.0
        };
        Pass {
            floor,
            tensors,
            order,
            param: tensors.params[block.param],
            update: tensors.updates.map(|updates| updates[block.param]),
            filter: buffer(block.filter),
            moment: buffer(block.moment),
            momentum: buffer(block.momentum),
            work: floor.work(order.block),
            normalize: W::of(normalize),
        }
    }

    fn config(&self) -> &Config {
        &self.floor.config
    }

    /// m and v of the run are updated; `filtered` becomes m̂, `source` what the grafted length is
    /// taken of, `scale` the grafted method's denominators (1 where it has none).
    #[inline(always)]
    fn filter(&self, run: Run, filtered: &mut [W], source: &mut [W], scale: &mut [W]) {
        let config = self.config();
        let one = W::of(1.0);
        // SAFETY: the run lies within the block.
        unsafe { load_gradient(self.floor, self.tensors, self.order, run.tensor, filtered) };
        source.iter_mut().zip(&*filtered).for_each(|(s, g)| *s = *g * self.normalize);
        if let Some(moment) = self.moment {
            // SAFETY: the run lies within the buffer and belongs to this chunk alone.
            let v = unsafe { std::slice::from_raw_parts_mut(moment.add(run.state), run.len) };
            let (keep, take) = match config.grafting {
                Grafting::Adagrad => (one, one),
                _ => (W::of(config.grafting_beta2), W::of(1.0 - config.grafting_beta2)),
            };
            let correction = W::of(1.0 / self.order.moment_correction);
            let epsilon = W::of(config.grafting_epsilon);
            for ((v, g), d) in v.iter_mut().zip(&*source).zip(scale.iter_mut()) {
                *v = keep * *v + take * (*g * *g);
                *d = (*v * correction).root() + epsilon;
                // Where no gradient was ever felt there is no step, not 0/0.
                *d = if *d > W::default() { *d } else { W::of(W::LARGEST) };
            }
        }
        if let Some(filter) = self.filter {
            // SAFETY: as above.
            let m = unsafe { std::slice::from_raw_parts_mut(filter.add(run.state), run.len) };
            let (keep, take) = (W::of(config.beta1), W::of(1.0 - config.beta1));
            let correction = W::of(1.0 / self.order.filter_correction);
            let ahead = config.nadam;
            for (m, x) in m.iter_mut().zip(filtered.iter_mut()) {
                let g = *x;
                *m = keep * *m + take * g;
                let looked = if ahead { keep * *m + take * g } else { *m };
                *x = looked * correction;
            }
        }
        if !config.normalized_grafting {
            source.copy_from_slice(filtered);
        }
    }

    /// Decay, momentum and the parameter (or the update), for a run whose direction is in `u`.
    #[inline(always)]
    fn finish(&self, run: Run, u: &mut [W]) {
        let mut values = [W::default(); SPAN];
        let w = &mut values[..run.len];
        if self.update.is_none() || self.order.decoupled_decay != 0.0 {
            // SAFETY: the run lies within the parameter.
            unsafe { W::load(self.param, run.tensor, 1.0, w) };
        }
        if self.order.decoupled_decay != 0.0 {
            let decay = W::of(self.order.decoupled_decay);
            u.iter_mut().zip(&*w).for_each(|(u, w)| *u += decay * *w);
        }
        if let Some(momentum) = self.momentum {
            // SAFETY: the run lies within the buffer and belongs to this chunk alone.
            let m = unsafe { std::slice::from_raw_parts_mut(momentum.add(run.state), run.len) };
            let mu = W::of(self.config().momentum);
            let take = W::of(if self.config().ema_momentum { 1.0 - self.config().momentum } else { 1.0 });
            let nesterov = self.config().nesterov;
            for (m, u) in m.iter_mut().zip(u.iter_mut()) {
                let own = take * *u;
                *m = mu * *m + own;
                *u = if nesterov { own + mu * *m } else { *m };
            }
        }
        let lr = W::of(self.order.lr);
        if let Some(update) = self.update {
            u.iter_mut().for_each(|u| *u = -(lr * *u));
            // SAFETY: the run lies within the update and belongs to this chunk alone.
            return unsafe { W::store(update, run.tensor, u) };
        }
        w.iter_mut().zip(&*u).for_each(|(w, u)| *w -= lr * *u);
        // SAFETY: the run lies within the parameter and belongs to this chunk alone.
        unsafe { W::store(self.param, run.tensor, w) };
    }
}

/// The first pass. Leaves m̂ in the workspace and gives the squared length of the grafted step, or
/// finishes the update of a block that has no inverse roots.
fn filter_chunk<W: Real, S: Real>(
    floor: &Floor,
    tensors: &Tensors,
    order: &BlockOrder,
    chunk: &Chunk,
) -> f64 {
    let pass = Pass::<W>::new(floor, tensors, order);
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            let mut total = 0.0;
            let mut buffers = [[W::default(); SPAN], [W::default(); SPAN], [W::of(1.0); SPAN]];
            floor.walks.blocks[chunk.block].walk(chunk.rows.clone(), |run| {
                let [filtered, source, scale] = &mut buffers;
                let (filtered, source, scale) =
                    (&mut filtered[..run.len], &mut source[..run.len], &mut scale[..run.len]);
                pass.filter(run, filtered, source, scale);
                match order.direction {
                    Direction::Preconditioned => {
                        // SAFETY: the run lies within the block's workspace and belongs to this chunk.
                        let work =
                            unsafe { std::slice::from_raw_parts_mut(pass.work.add(run.work), run.len) };
                        work.copy_from_slice(filtered);
                        source.iter_mut().zip(&*scale).for_each(|(s, d)| *s /= *d);
                        total += wide_sum_of_squares(source);
                    }
                    Direction::Grafted => {
                        filtered.iter_mut().zip(&*scale).for_each(|(x, d)| *x /= *d);
                        pass.finish(run, filtered);
                    }
                    Direction::Zero => {
                        filtered.fill(W::default());
                        pass.finish(run, filtered);
                    }
                }
            });
            total
        },
    )
}

/// Where the result of the products along all axes is: the products go back and forth between the two
/// halves of the block's workspace.
fn half<W>(floor: &Floor, block: usize, products: usize) -> *mut W {
    let len = floor.walks.blocks[block].work_len();
    let work: *mut W = floor.work(block);
    if products.is_multiple_of(2) { work } else { work.wrapping_add(len) }
}

/// Rows of inverse root × block along one axis; the squared length of the rows of the last axis.
fn product_tile<W: Real, S: Real>(floor: &Floor, tile: &Tile) -> Option<f64> {
    let block = &floor.plan.blocks[tile.block];
    let factor = &floor.plan.factors[block.factors.start + tile.axis];
    let view = AxisView::new(&block.dims, tile.axis);
    let n = view.dim;
    let root = Span2::row_major(floor.slot::<W>(factor.inverse_root), n, n, n);
    let (source, target) =
        (half::<W>(floor, tile.block, tile.axis), half::<W>(floor, tile.block, tile.axis + 1));
    // Only the rows of a matrix are padded.
    let stride = floor.walks.blocks[tile.block].stride;
    let padded = |length: usize| if block.dims.len() == 2 { stride } else { length };
    let one = W::of(1.0);
    // SAFETY: source and target are different halves; the tile's rows of the target are its own.
    unsafe {
        if view.inner > 1 && view.outer > 1 {
            for slice in tile.panel.clone() {
                let at = slice * n * view.inner;
                let x = Span2::row_major(source.add(at), n, view.inner, view.inner);
                multiply(Span2::row_major(target.add(at), n, view.inner, view.inner), false, root, x, one);
            }
            return None;
        }
        let (rows, first) = (tile.panel.len(), tile.panel.start);
        if view.inner > 1 {
            let x = Span2::row_major(source, n, view.inner, padded(view.inner));
            let y =
                Span2::row_major(target, n, view.inner, padded(view.inner)).part(first, 0, rows, view.inner);
            multiply(y, false, root.part(first, 0, rows, n), x, one);
            return None;
        }
        // The last axis, or one with only ones behind it: the block as one matrix with rows of length n.
        let stride = padded(n);
        let x = Span2::row_major(source, view.outer, n, stride).part(first, 0, rows, n);
        let y = Span2::row_major(target, view.outer, n, stride).part(first, 0, rows, n);
        multiply(y, false, x, root, one);
        if tile.axis + 1 < block.dims.len() {
            return None;
        }
        let mut total = 0.0;
        for row in 0..rows {
            total += wide_sum_of_squares(std::slice::from_raw_parts(y.data.add(row * stride), n));
        }
        Some(total)
    }
}

/// The second pass: the direction takes its length, and the parameter its step.
fn update_chunk<W: Real, S: Real>(
    floor: &Floor,
    tensors: &Tensors,
    order: &BlockOrder,
    chunk: &Chunk,
    length: f64,
) {
    let pass = Pass::<W>::new(floor, tensors, order);
    let result: *const W = half(floor, chunk.block, floor.plan.blocks[chunk.block].dims.len());
    let length = W::of(length);
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            let mut direction = [W::default(); SPAN];
            floor.walks.blocks[chunk.block].walk(chunk.rows.clone(), |run| {
                // SAFETY: the run lies within the block's workspace.
                let x = unsafe { std::slice::from_raw_parts(result.add(run.work), run.len) };
                let u = &mut direction[..run.len];
                if length == W::default() {
                    u.fill(length);
                } else {
                    u.iter_mut().zip(x).for_each(|(u, x)| *u = length * *x);
                }
                pass.finish(run, u);
            });
        },
    );
}
