//! The verbs `inspect` and `accumulate`: is the gradient finite, and statistic += gain·G Gᵀ.

use super::lower;
use super::product::{Span2, is_small, multiply, multiply_lower, multiply_only_lower};
use super::real::{Real, SPAN, in_place, sum_of_squares, vectorized};
use super::vectors;
use super::walks::{Chunk, Tile};
use super::{BlockStep, Cpu, Places, Precision, Shared, by_precision};
use crate::device::{INFO_IDLE, INFO_NOT_FINITE};
use crate::engine::plan::AxisView;
use crate::engine::rules::Rules;
use crate::preconditioner::Preconditioner;
use crate::tensor::{TensorRef, squared_norm_limit};

/// ‖G‖² of every active block (scaled, decayed), infinite where it, or its square in the statistics, overflows.
/// Marks those blocks; gives the first of them.
pub(super) fn inspect(cpu: &mut Cpu, rules: &Rules) -> Option<usize> {
    for (info, site) in cpu.infos.iter_mut().zip(&cpu.shared.sites) {
        *info = if site.active { 0 } else { INFO_IDLE };
    }
    measure(cpu, rules)
}

/// The same for the blocks that are not marked yet.
pub(super) fn measure(cpu: &mut Cpu, rules: &Rules) -> Option<usize> {
    let (shared, infos) = (&cpu.shared, &cpu.infos);
    let sums = Places(cpu.chunk_sums.as_mut_ptr());
    let chunks = &shared.walks.chunks;
    cpu.workers.run(chunks.len(), chunks.len() > 4, &|task, _| {
        let chunk = &chunks[task];
        if infos[chunk.block] & (INFO_IDLE | INFO_NOT_FINITE) != 0 {
            return;
        }
        let param = shared.param(chunk.block);
        let sum = by_precision!(param, inspect_chunk(shared, rules, chunk));
        // SAFETY: one place per chunk.
        unsafe { sums.put(task, sum) };
    });
    let mut offender = None;
    for (block, info) in cpu.infos.iter_mut().enumerate() {
        if *info & (INFO_IDLE | INFO_NOT_FINITE) != 0 {
            continue;
        }
        let sum: f64 = cpu.chunk_sums[shared.walks.chunks_of[block].clone()].iter().sum();
        let param = shared.param(block);
        let sound = sum < squared_norm_limit(param.work, param.statistic);
        cpu.steps[block].squared_norm = if sound { sum } else { f64::INFINITY };
        if !sound {
            *info |= INFO_NOT_FINITE;
            offender = offender.or(Some(block));
        }
    }
    offender
}

fn inspect_chunk<W: Real, S: Real>(shared: &Shared, rules: &Rules, chunk: &Chunk) -> f64 {
    let gradient = Gradient::new(shared, rules, chunk.block);
    vectorized(
        #[inline(always)]
        || {
            let mut total = 0.0;
            let mut values = [W::default(); SPAN];
            shared.walks.blocks[chunk.block].walk(
                chunk.rows.clone(),
                // Inlined, so that it is compiled for the vectors that `vectorized` chose.
                #[inline(always)]
                |run| {
                    // SAFETY: the run lies within the block, by the plan.
                    total += sum_of_squares(unsafe { gradient.read(run.tensor, run.len, &mut values) });
                },
            );
            total
        },
    )
}

/// The gradient of a block as the step uses it: scaled, and with the coupled decay.
#[derive(Clone, Copy)]
pub(super) struct Gradient {
    own: TensorRef,
    param: TensorRef,
    scale: f64,
    decay: f64,
}

impl Gradient {
    pub fn new(shared: &Shared, rules: &Rules, block: usize) -> Gradient {
        let site = &shared.sites[block];
        Gradient {
            own: TensorRef { data: site.grad as *mut u8, dtype: site.grad_dtype },
            param: TensorRef { data: site.param as *mut u8, dtype: shared.param(block).spec.dtype },
            scale: rules.grad_scale,
            decay: if rules.decoupled != 0 { 0.0 } else { site.decay },
        }
    }

    /// Where it can be used as the caller has it.
    #[inline(always)]
    fn lies<T: Real>(&self) -> Option<*mut T> {
        in_place(self.own, 0).filter(|_| self.scale == 1.0 && self.decay == 0.0)
    }

    /// `len` elements of the gradient; if they are not in the caller's memory as they are used, in `values`.
    ///
    /// # Safety
    /// `offset + len` elements exist in the block's parameter and gradient, and nobody writes them meanwhile.
    #[inline(always)]
    pub unsafe fn read<'a, T: Real>(&self, offset: usize, len: usize, values: &'a mut [T; SPAN]) -> &'a [T] {
        if let Some(data) = self.lies::<T>() {
            // SAFETY: the caller's contract.
            return unsafe { std::slice::from_raw_parts(data.add(offset), len) };
        }
        let values = &mut values[..len];
        // SAFETY: the caller's contract.
        unsafe { self.load(offset, values) };
        values
    }

    /// # Safety
    /// `offset + out.len()` elements exist in the block's parameter and gradient.
    #[inline(always)]
    pub unsafe fn load<T: Real>(&self, offset: usize, out: &mut [T]) {
        // SAFETY: the caller's contract.
        unsafe { T::load(self.own, offset, self.scale, out) };
        if self.decay != 0.0 {
            let mut values = [T::default(); SPAN];
            let values = &mut values[..out.len()];
            // SAFETY: the caller's contract.
            unsafe { T::load(self.param, offset, 1.0, values) };
            let decay = T::of(self.decay);
            out.iter_mut().zip(values).for_each(|(g, w)| *g += decay * *w);
        }
    }
}

/// Advances the clocks of the blocks that take part, and updates the statistics of those that have factors.
pub(super) fn accumulate(cpu: &mut Cpu, rules: &Rules) {
    let in_basis = matches!(cpu.shared.plan.preconditioner, Preconditioner::Soap(soap) if soap.in_basis);
    for (block, info) in cpu.infos.iter().enumerate() {
        let step = &mut cpu.steps[block];
        step.accumulates = *info == 0 && !cpu.shared.plan.blocks[block].factors.is_empty();
        if *info == 0 {
            let clock = cpu.shared.clock(block);
            let tick = rules.tick(clock);
            step.accumulates = step.accumulates && tick.accumulates;
            (step.decay, step.gain) = (tick.decay, tick.gain);
            if in_basis {
                // Only the first gradient: `apply` has the later ones in the basis, and adds them.
                step.accumulates = step.accumulates && clock.step == 0;
                (step.decay, step.gain) = plain_average(rules);
            }
            cpu.shared.set_clock(block, tick.clock);
        }
    }
    gather_vectors(cpu);
    let (shared, steps, gathered) = (&cpu.shared, &cpu.steps, cpu.gathered.as_ref());
    let of_vector = |block: usize| gathered.filter(|gathered| gathered.takes(block));
    for wave in &shared.walks.waves {
        let adds = |block: usize| steps[block].accumulates;
        if wave.statistics.is_empty() || !wave.blocks.clone().any(adds) {
            continue;
        }
        let chunks = &shared.walks.chunks[wave.chunks.clone()];
        cpu.workers.run(chunks.len(), wave.parallel, &|task, _| {
            let chunk = &chunks[task];
            let param = shared.param(chunk.block);
            if steps[chunk.block].accumulates
                && by_precision!(param, where_it_lies(shared, rules, chunk.block)).is_none()
            {
                let side = shared.plan.blocks[chunk.block].elements;
                let target = match (of_vector(chunk.block), param.statistic) {
                    (None, _) => shared.work(chunk.block),
                    (Some(gathered), Precision::F32) => gathered.last::<f32>(chunk.block, side).cast(),
                    (Some(gathered), Precision::F64) => gathered.last::<f64>(chunk.block, side).cast(),
                };
                by_precision!(param, gather_chunk(shared, rules, chunk, target));
            }
        });
        cpu.workers.run(wave.statistics.len(), wave.parallel, &|task, _| {
            let tile = &wave.statistics[task];
            let step = &steps[tile.block];
            if let Some(gathered) = of_vector(tile.block) {
                if step.accumulates && gathered.is_due(tile.block, step.decay) {
                    vectors::take(shared, gathered, tile, step.decay);
                }
            } else if step.accumulates {
                let param = shared.param(tile.block);
                let lies = by_precision!(param, where_it_lies(shared, rules, tile.block));
                let source = lies.unwrap_or_else(|| Source::workspace(shared, tile.block));
                by_precision!(param, statistic_tile(shared, step.decay, step.gain, tile, source));
            }
        });
    }
    if let Some(gathered) = &mut cpu.gathered {
        for (block, step) in cpu.steps.iter().enumerate() {
            if step.accumulates && gathered.takes(block) && gathered.is_due(block, step.decay) {
                gathered.empty(block);
            }
        }
    }
}

/// Counts the gradients of this step that vectors gather. A statistic that is multiplied in this step takes what was
/// gathered before.
fn gather_vectors(cpu: &mut Cpu) {
    let Some(gathered) = &cpu.gathered else { return };
    let steps = cpu.steps.iter().enumerate();
    let takes = |(block, step): &(usize, &BlockStep)| step.accumulates && gathered.takes(*block);
    if steps.clone().filter(takes).any(|(block, step)| step.decay != 1.0 && gathered.has(block)) {
        vectors::settle(cpu);
    }
    if let Some(gathered) = &mut cpu.gathered {
        for (block, step) in cpu.steps.iter().enumerate() {
            if step.accumulates && gathered.takes(block) {
                gathered.extend(block, step.gain);
            }
        }
    }
}

/// A block for the statistics, in their precision.
#[derive(Clone, Copy)]
pub(super) struct Source {
    data: *mut u8,
    /// Elements from a row of a matrix to the next.
    stride: usize,
}

impl Source {
    /// A block in its workspace.
    pub fn workspace(shared: &Shared, block: usize) -> Source {
        Source::walked(shared, block, shared.work(block))
    }

    /// A block at `data`, as the walk through it has it.
    pub fn walked(shared: &Shared, block: usize, data: *mut u8) -> Source {
        Source { data, stride: shared.walks.blocks[block].stride }
    }
}

/// The gradient in the caller's memory, if the statistics can be made from it there: our own products of small matrices
/// have the same bits wherever their operands lie.
fn where_it_lies<W: Real, S: Real>(shared: &Shared, rules: &Rules, block: usize) -> Option<Source> {
    let plan = &shared.plan.blocks[block];
    if W::DTYPE != S::DTYPE || plan.dims.len() != 2 {
        return None;
    }
    let data = Gradient::new(shared, rules, block).lies::<S>()?;
    let (rows, cols, stride) = (plan.dims[0], plan.dims[1], plan.strides[0]);
    let source = Span2::row_major(data, rows, cols, stride);
    let small = |x: Span2<S>| is_small(&Span2::square(x.data, x.rows), &x);
    (small(source) && small(source.t())).then_some(Source { data: data.cast(), stride })
}

/// Brings the gradient to `target`, in the precision of the statistics and in the order of the workspace.
fn gather_chunk<W: Real, S: Real>(shared: &Shared, rules: &Rules, chunk: &Chunk, target: *mut u8) {
    let work: *mut S = target.cast();
    let gradient = Gradient::new(shared, rules, chunk.block);
    vectorized(
        #[inline(always)]
        || {
            shared.walks.blocks[chunk.block].walk(
                chunk.rows.clone(),
                // Inlined, so that it is compiled for the vectors that `vectorized` chose.
                #[inline(always)]
                |run| {
                    // SAFETY: the run lies within the block's target and parameter, and belongs to this
                    // chunk alone.
                    unsafe {
                        let target = std::slice::from_raw_parts_mut(work.add(run.work), run.len);
                        gradient.load(run.tensor, target);
                    }
                },
            );
        },
    );
}

/// Decay and gain of an average whose decay is not carried by the clock.
pub(super) fn plain_average(rules: &Rules) -> (f64, f64) {
    if rules.beta2 >= 1.0 { (1.0, 1.0) } else { (rules.beta2, 1.0 - rules.beta2) }
}

/// A panel of columns of one statistic's lower triangle takes the block at `source`, in the statistic's precision. The
/// strict upper triangle may hold an inverse root.
pub(super) fn statistic_tile<W: Real, S: Real>(
    shared: &Shared,
    decay: f64,
    gain: f64,
    tile: &Tile,
    source: Source,
) {
    let block = &shared.plan.blocks[tile.block];
    if block.dims.len() == 1 {
        return vectors::add::<S>(shared, tile, decay, &[gain], source.data.cast());
    }
    let factor = &shared.plan.factors[block.factors.start + tile.axis];
    let view = AxisView::new(&block.dims, tile.axis);
    let (start, width, n) = (tile.panel.start, tile.panel.len(), view.dim);
    let statistic: *mut S = shared.slot(factor.statistic);
    let target = Span2::square(statistic, n);
    let work: *mut S = source.data.cast();
    let (mut keep, gain) = (S::of(decay), S::of(gain));
    let below = n - tile.panel.end;
    // SAFETY: the operands lie in the block's workspace or gradient, the target in the statistic's own columns.
    let mut add = |x: Span2<S>| unsafe {
        // x is dim × depth; the tile is x[start.., :]·x[panel, :]ᵀ.
        let own = x.part(start, 0, width, x.cols);
        let triangle = target.part(start, start, width, width);
        let keep = std::mem::replace(&mut keep, S::of(1.0));
        if below == 0 && is_small(&triangle, &own) {
            return lower::multiply(triangle, keep, own, own.t(), gain);
        }
        if keep != S::of(1.0) {
            for j in tile.panel.clone() {
                let column = std::slice::from_raw_parts_mut(statistic.add(j * n + j), n - j);
                column.iter_mut().for_each(|x| *x *= keep);
            }
        }
        if factor.root_diagonal.is_some() {
            multiply_only_lower(triangle, true, own, own.t(), gain);
        } else {
            multiply_lower(triangle, true, own, own.t(), gain);
        }
        if below > 0 {
            let rest = x.part(tile.panel.end, 0, below, x.cols);
            multiply(target.part(tile.panel.end, start, below, width), true, rest, own.t(), gain);
        }
    };
    // Only the rows of a matrix are padded.
    let padded = |length: usize| if block.dims.len() == 2 { source.stride } else { length };
    if view.inner == 1 {
        add(Span2::row_major(work, view.outer, n, padded(n)).t());
    } else {
        let row = padded(view.inner);
        for slice in 0..view.outer {
            add(Span2::row_major(work.wrapping_add(slice * n * view.inner), n, view.inner, row));
        }
    }
}
