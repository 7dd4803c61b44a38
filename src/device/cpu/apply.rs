//! The verb `apply`: filter, direction, grafting, decay, momentum, parameter.
//!
//! The direction is inverse root × block along every axis; without inverse roots the block is turned into the bases,
//! multiplied by the inverse roots' eigenvalues, and turned back.
//!
//! Two elementwise passes with the products between them; a block without a preconditioner (yet)
//! needs only the first.

use super::accumulate::{Gradient, measure};
use super::product::{Span2, multiply};
use super::real::{Real, SPAN, in_place, vectorized, wide_sum_of_quotients, wide_sum_of_squares};
use super::square::Packed;
use super::walks::{Chunk, Run, Tile};
use super::{BlockStep, Cpu, Direction, Places, Precision, Room, Shared, by_precision};
use crate::device::{INFO_IDLE, INFO_LEFT_OUT, INFO_NOT_FINITE};
use crate::engine::plan::{AxisView, SlotId};
use crate::engine::rules::Rules;
use crate::tensor::TensorRef;
use parking_lot::Mutex;

/// Updates moments, momentum and parameters (or updates).
pub(super) fn apply(cpu: &mut Cpu, rules: &Rules, keeps_root: bool) {
    prepare(cpu, rules);
    cpu.left_out = 0;
    let shared = &cpu.shared;
    for wave in &shared.walks.waves {
        let chunks = &shared.walks.chunks[wave.chunks.clone()];
        let sums = Places(cpu.chunk_sums.as_mut_ptr());
        let steps = &cpu.steps;
        cpu.workers.run(chunks.len(), wave.parallel, &|task, _| {
            let step = &steps[chunks[task].block];
            if step.direction != Direction::None {
                let param = shared.param(chunks[task].block);
                let sum = by_precision!(param, filter_chunk(shared, rules, step, &chunks[task]));
                // SAFETY: one place per chunk.
                unsafe { sums.put(wave.chunks.start + task, sum) };
            }
        });
        let preconditioned = |block: usize| steps[block].direction == Direction::Preconditioned;
        if !wave.blocks.clone().any(preconditioned) {
            continue;
        }
        let rounds: &[Round] = if keeps_root { &[Round::Root] } else { &[Round::Into, Round::Back] };
        for round in rounds {
            for tiles in &wave.products {
                let (sums, rooms) = (Places(cpu.tile_sums.as_mut_ptr()), &cpu.rooms);
                // What a room held before this step may have changed.
                rooms.iter().for_each(|room| room.lock().holds = None);
                cpu.workers.run(tiles.len(), wave.parallel, &|task, _| {
                    let tile = &tiles[task];
                    if !preconditioned(tile.block) {
                        return;
                    }
                    let param = shared.param(tile.block);
                    if let Some(sum) = by_precision!(param, product_tile(shared, tile, *round, rooms)) {
                        // SAFETY: one place per tile of a block's last axis.
                        unsafe { sums.put(tile.partial, sum) };
                    }
                });
            }
        }
        for block in wave.blocks.clone() {
            if cpu.steps[block].direction != Direction::Preconditioned {
                continue;
            }
            let own: f64 = cpu.tile_sums[shared.walks.partials_of[block].clone()].iter().sum();
            let grafted: f64 = cpu.chunk_sums[shared.walks.chunks_of[block].clone()].iter().sum();
            cpu.steps[block].length = rules.length(own.sqrt(), grafted.sqrt());
            if !own.is_finite() {
                cpu.infos[block] |= INFO_LEFT_OUT;
                cpu.left_out += 1;
            }
        }
        let steps = &cpu.steps;
        cpu.workers.run(chunks.len(), wave.parallel, &|task, _| {
            let step = &steps[chunks[task].block];
            if step.direction == Direction::Preconditioned {
                let param = shared.param(chunks[task].block);
                by_precision!(param, update_chunk(shared, rules, step, &chunks[task]));
            }
        });
    }
}

/// Works out what the step does with every block; a block that takes no part gets an update of zeros.
fn prepare(cpu: &mut Cpu, rules: &Rules) {
    for (block, info) in cpu.infos.iter_mut().enumerate() {
        if cpu.shared.clock(block).step == 0 {
            *info |= INFO_IDLE;
        }
    }
    if (rules.normalized != 0 || rules.moment_relative != 0) && !cpu.inspected {
        measure(cpu, rules);
    }
    let shared = &cpu.shared;
    for (block, info) in cpu.infos.iter().enumerate() {
        let step = &mut cpu.steps[block];
        if info & (INFO_IDLE | INFO_NOT_FINITE) != 0 {
            step.direction = Direction::None;
            write_no_update(shared, block);
            continue;
        }
        let t = shared.clock(block).step;
        step.filter_divisor = rules.filter_divisor(t);
        step.moment_divisor = rules.moment_divisor(t);
        step.normalize = rules.normalization(step.squared_norm);
        step.moment_epsilon = rules.moment_epsilon(step.squared_norm, shared.plan.blocks[block].elements);
        step.direction = if shared.has_roots(block) {
            Direction::Preconditioned
        } else if rules.grafts != 0 {
            Direction::Grafted
        } else {
            Direction::Zero
        };
    }
}

/// The update of a block that takes no part is zero.
pub(super) fn write_no_update(shared: &Shared, block: usize) {
    let (site, elements) = (&shared.sites[block], shared.plan.blocks[block].elements);
    if site.update != 0 {
        // SAFETY: the block's part of the updates.
        unsafe { (site.update as *mut u8).write_bytes(0, elements * site.update_dtype.size()) };
    }
}

/// The scalars of a pass, and where the block's numbers are.
pub(super) struct Pass<'a, W> {
    pub rules: &'a Rules,
    pub step: &'a BlockStep,
    pub gradient: Gradient,
    param: TensorRef,
    /// Where the update goes, unless the parameter takes it.
    update: Option<TensorRef>,
    pub filter: Option<*mut W>,
    pub moment: Option<*mut W>,
    momentum: Option<*mut W>,
    pub work: *mut W,
    /// Added to the direction: this times the parameter.
    decay: f64,
    scale: f64,
}

impl<'a, W: Real> Pass<'a, W> {
    pub fn new(shared: &Shared, rules: &'a Rules, step: &'a BlockStep, block: usize) -> Self {
        let plan = &shared.plan.blocks[block];
        let site = &shared.sites[block];
        let numbers = |slot: Option<SlotId>| slot.map(|slot| shared.slot::<W>(slot));
        let update = TensorRef { data: site.update as *mut u8, dtype: site.update_dtype };
        Pass {
            rules,
            step,
            gradient: Gradient::new(shared, rules, block),
            param: TensorRef { data: site.param as *mut u8, dtype: shared.param(block).spec.dtype },
            update: (site.update != 0).then_some(update),
            filter: numbers(plan.filter),
            moment: numbers(plan.moment),
            momentum: numbers(plan.momentum),
            work: shared.work(block),
            decay: if rules.decoupled != 0 { site.decay } else { 0.0 },
            scale: rules.scale * site.lr_scale,
        }
    }

    /// m and v of the run take its gradient `g`; `filtered` becomes m̂, `scale` the grafted method's denominators (they
    /// stay as they are where it has none).
    #[inline(always)]
    fn filter(&self, run: Run, g: &[W], filtered: &mut [W], scale: &mut [W]) {
        let rules = self.rules;
        if let Some(moment) = self.moment {
            // SAFETY: the run lies within the buffer and belongs to this chunk alone.
            let v = unsafe { std::slice::from_raw_parts_mut(moment.add(run.state), run.len) };
            let (keep, take) = (W::of(rules.moment_keep), W::of(rules.moment_take));
            let normalize = W::of(self.step.normalize);
            let correction = W::of(1.0 / self.step.moment_divisor);
            let epsilon = W::of(self.step.moment_epsilon);
            for ((v, g), d) in v.iter_mut().zip(g).zip(scale.iter_mut()) {
                let g = *g * normalize;
                *v = keep * *v + take * (g * g);
                *d = (*v * correction).root() + epsilon;
                // Where no gradient was ever felt there is no step, not 0/0.
                *d = if *d > W::default() { *d } else { W::of(W::LARGEST) };
            }
        }
        let Some(filter) = self.filter else {
            filtered.copy_from_slice(g);
            return;
        };
        // SAFETY: as above.
        let m = unsafe { std::slice::from_raw_parts_mut(filter.add(run.state), run.len) };
        let (keep, take) = (W::of(rules.beta1), W::of(1.0 - rules.beta1));
        let correction = W::of(1.0 / self.step.filter_divisor);
        let ahead = rules.nadam != 0;
        for ((m, g), x) in m.iter_mut().zip(g).zip(filtered.iter_mut()) {
            *m = keep * *m + take * *g;
            let looked = if ahead { keep * *m + take * *g } else { *m };
            *x = looked * correction;
        }
    }

    /// Decay, momentum and the parameter (or the update), for a run whose direction is in `u`.
    #[inline(always)]
    pub fn finish(&self, run: Run, u: &mut [W]) {
        if self.update.is_some() && self.decay == 0.0 {
            // The parameter is not looked at.
            return self.finish_on(run, u, &mut []);
        }
        if let Some(param) = in_place::<W>(self.param, run.tensor) {
            // SAFETY: the run lies within the parameter and belongs to this chunk alone.
            return self.finish_on(run, u, unsafe { std::slice::from_raw_parts_mut(param, run.len) });
        }
        let mut values = [W::default(); SPAN];
        let w = &mut values[..run.len];
        // SAFETY: the run lies within the parameter and belongs to this chunk alone.
        unsafe {
            W::load(self.param, run.tensor, 1.0, w);
            self.finish_on(run, u, w);
            if self.update.is_none() {
                W::store(self.param, run.tensor, w);
            }
        }
    }

    /// As [`Pass::finish`], with the parameter's numbers in `w`.
    #[inline(always)]
    fn finish_on(&self, run: Run, u: &mut [W], w: &mut [W]) {
        if self.decay != 0.0 {
            let decay = W::of(self.decay);
            u.iter_mut().zip(&*w).for_each(|(u, w)| *u += decay * *w);
        }
        if let Some(momentum) = self.momentum {
            // SAFETY: the run lies within the buffer and belongs to this chunk alone.
            let m = unsafe { std::slice::from_raw_parts_mut(momentum.add(run.state), run.len) };
            let (mu, take) = (W::of(self.rules.momentum), W::of(self.rules.momentum_take));
            let nesterov = self.rules.nesterov != 0;
            for (m, u) in m.iter_mut().zip(u.iter_mut()) {
                let own = take * *u;
                *m = mu * *m + own;
                *u = if nesterov { own + mu * *m } else { *m };
            }
        }
        let scale = W::of(self.scale);
        if let Some(update) = self.update {
            u.iter_mut().for_each(|u| *u *= scale);
            // SAFETY: the run lies within the update and belongs to this chunk alone.
            return unsafe { W::store(update, run.tensor, u) };
        }
        w.iter_mut().zip(&*u).for_each(|(w, u)| *w += scale * *u);
    }
}

/// The first pass. Leaves m̂ in the workspace and gives the squared length of the grafted step, or
/// finishes the update of a block that has no inverse roots.
fn filter_chunk<W: Real, S: Real>(shared: &Shared, rules: &Rules, step: &BlockStep, chunk: &Chunk) -> f64 {
    let pass = Pass::<W>::new(shared, rules, step, chunk.block);
    vectorized(
        #[inline(always)]
        || {
            let mut total = 0.0;
            let (mut loaded, mut values) = ([W::default(); SPAN], [W::default(); SPAN]);
            let mut scale = [W::of(1.0); SPAN];
            shared.walks.blocks[chunk.block].walk(
                chunk.rows.clone(),
                // Inlined, so that it is compiled for the vectors that `vectorized` chose.
                #[inline(always)]
                |run| {
                    // SAFETY: the run lies within the block.
                    let g = unsafe { pass.gradient.read(run.tensor, run.len, &mut loaded) };
                    let (values, scale) = (&mut values[..run.len], &mut scale[..run.len]);
                    match step.direction {
                        Direction::Preconditioned => {
                            // SAFETY: the run lies within the block's workspace and belongs to this chunk.
                            let work =
                                unsafe { std::slice::from_raw_parts_mut(pass.work.add(run.work), run.len) };
                            pass.filter(run, g, work, scale);
                            total += if rules.normalized == 0 {
                                wide_sum_of_quotients(work, scale)
                            } else {
                                let normalize = W::of(step.normalize);
                                values.iter_mut().zip(g).for_each(|(x, g)| *x = *g * normalize);
                                wide_sum_of_quotients(values, scale)
                            };
                        }
                        Direction::Grafted => {
                            pass.filter(run, g, values, scale);
                            values.iter_mut().zip(&*scale).for_each(|(x, d)| *x /= *d);
                            pass.finish(run, values);
                        }
                        Direction::Zero | Direction::Rotated | Direction::None => {
                            pass.filter(run, g, values, scale);
                            values.fill(W::default());
                            pass.finish(run, values);
                        }
                    }
                },
            );
            total
        },
    )
}

/// Where the result of the products along all axes is: the products go back and forth between the two
/// halves of the block's workspace.
pub(super) fn half<W>(shared: &Shared, block: usize, products: usize) -> *mut W {
    let len = shared.walks.blocks[block].work_len();
    let work: *mut W = shared.work(block);
    if products.is_multiple_of(2) { work } else { work.wrapping_add(len) }
}

/// What the block is multiplied by along every axis.
#[derive(Clone, Copy, PartialEq)]
enum Round {
    /// The inverse root.
    Root,
    /// Qᵀ; behind the last axis the inverse roots' eigenvalues act.
    Into,
    /// Q.
    Back,
}

/// Rows of matrix × block along one axis; the squared length of the rows of the last axis of the last round.
fn product_tile<W: Real, S: Real>(
    shared: &Shared,
    tile: &Tile,
    round: Round,
    rooms: &[Mutex<Room>],
) -> Option<f64> {
    let block = &shared.plan.blocks[tile.block];
    let factor = &shared.plan.factors[block.factors.start + tile.axis];
    let (n, axis) = (factor.dim, tile.axis);
    let slot = if round == Round::Root { factor.inverse_root } else { factor.basis };
    // At most as many tiles as there are rooms run at once: one is always free.
    let free = || rooms.iter().cycle().find_map(|room| room.try_lock());
    let mut room = factor.root_diagonal.and_then(|_| free());
    let data = match &mut room {
        Some(room) => unpack_root(shared, tile, room),
        None => shared.slot::<W>(slot),
    };
    let matrix = Span2::row_major(data, n, n, n);
    // A basis has an eigenvector per row: it is Qᵀ. The root is symmetric.
    let (matrix, transposed) = match round {
        Round::Root => (matrix, matrix),
        Round::Into => (matrix, matrix.t()),
        Round::Back => (matrix.t(), matrix),
    };
    let before = if round == Round::Back { block.dims.len() + axis } else { axis };
    let (source, target) = (half::<W>(shared, tile.block, before), half::<W>(shared, tile.block, before + 1));
    // SAFETY: the two halves of the block's workspace.
    let y = unsafe { multiply_tile(shared, tile, (matrix, transposed), source, target) }?;
    if axis + 1 < block.dims.len() {
        return None;
    }
    if round == Round::Into {
        scale_rows(shared, tile, y);
        return None;
    }
    Some(vectorized(
        #[inline(always)]
        || {
            let mut total = 0.0;
            for row in 0..y.rows {
                // SAFETY: the rows that were just written.
                let row = unsafe { std::slice::from_raw_parts(y.data.add(row * y.row), n) };
                total += wide_sum_of_squares(row);
            }
            total
        },
    ))
}

/// Brings together what the tile takes of an inverse root that shares the statistic's square, unless it is there; gives
/// where the whole matrix would begin.
fn unpack_root<W: Real>(shared: &Shared, tile: &Tile, room: &mut Room) -> *mut W {
    let block = &shared.plan.blocks[tile.block];
    let number = block.factors.start + tile.axis;
    let factor = &shared.plan.factors[number];
    let (n, rows) = (factor.dim, tile.root_rows(&block.dims));
    let target: *mut W = room.memory.cast();
    let wanted = Some((number, rows.clone()));
    if room.holds != wanted {
        let (square, diagonal) = (shared.slot::<W>(factor.statistic), shared.slot::<W>(factor.root_diagonal));
        // SAFETY: the factor's slots, which have the precision of the work by the plan; a room has that many rows.
        unsafe { Packed { square, diagonal, n }.unpack(rows.clone(), 0..n, target, n) };
        room.holds = wanted;
    }
    target.wrapping_sub(rows.start * n)
}

/// Multiplies rows of a block in the bases, which lie along its last axis, by the inverse roots' eigenvalues.
fn scale_rows<W: Real>(shared: &Shared, tile: &Tile, y: Span2<W>) {
    let block = &shared.plan.blocks[tile.block];
    let factors = &shared.plan.factors[block.factors.clone()];
    // SAFETY: a number per place of the axis, in the precision of the work, by the plan.
    let roots = |axis: usize| unsafe {
        std::slice::from_raw_parts(shared.slot::<W>(factors[axis].root_spectrum), factors[axis].dim)
    };
    let last = roots(tile.axis);
    for row in 0..y.rows {
        let (mut place, mut scale) = (tile.panel.start + row, W::of(1.0));
        for axis in (0..tile.axis).rev() {
            scale *= roots(axis)[place % block.dims[axis]];
            place /= block.dims[axis];
        }
        // SAFETY: a row that this tile has just written.
        let numbers = unsafe { std::slice::from_raw_parts_mut(y.data.add(row * y.row), last.len()) };
        numbers.iter_mut().zip(last).for_each(|(x, root)| *x *= scale * *root);
    }
}

/// The tile's part of the block times a matrix A along one axis, for (A, Aᵀ); where the axis has only ones behind
/// it, the rows of the result.
///
/// # Safety
/// `source` and `target` are different halves of the block's workspace; the tile's rows of the target are its own.
pub(super) unsafe fn multiply_tile<W: Real>(
    shared: &Shared,
    tile: &Tile,
    (matrix, transposed): (Span2<W>, Span2<W>),
    source: *mut W,
    target: *mut W,
) -> Option<Span2<W>> {
    let block = &shared.plan.blocks[tile.block];
    let view = AxisView::new(&block.dims, tile.axis);
    let n = view.dim;
    // Only the rows of a matrix are padded.
    let stride = shared.walks.blocks[tile.block].stride;
    let padded = |length: usize| if block.dims.len() == 2 { stride } else { length };
    let one = W::of(1.0);
    // SAFETY: the caller's contract.
    unsafe {
        if view.inner > 1 && view.outer > 1 {
            for slice in tile.panel.clone() {
                let at = slice * n * view.inner;
                let x = Span2::row_major(source.add(at), n, view.inner, view.inner);
                multiply(Span2::row_major(target.add(at), n, view.inner, view.inner), false, matrix, x, one);
            }
            return None;
        }
        let (rows, first) = (tile.panel.len(), tile.panel.start);
        if view.inner > 1 {
            let x = Span2::row_major(source, n, view.inner, padded(view.inner));
            let y =
                Span2::row_major(target, n, view.inner, padded(view.inner)).part(first, 0, rows, view.inner);
            multiply(y, false, matrix.part(first, 0, rows, n), x, one);
            return None;
        }
        // The last axis, or one with only ones behind it: the block as one matrix with rows of length n.
        let stride = padded(n);
        let x = Span2::row_major(source, view.outer, n, stride).part(first, 0, rows, n);
        let y = Span2::row_major(target, view.outer, n, stride).part(first, 0, rows, n);
        multiply(y, false, x, transposed, one);
        Some(y)
    }
}

/// The second pass: the direction takes its length, and the parameter its step.
fn update_chunk<W: Real, S: Real>(shared: &Shared, rules: &Rules, step: &BlockStep, chunk: &Chunk) {
    let pass = Pass::<W>::new(shared, rules, step, chunk.block);
    let block = &shared.plan.blocks[chunk.block];
    let rounds = if shared.plan.factors[block.factors.start].root_spectrum.is_some() { 2 } else { 1 };
    let result: *const W = half(shared, chunk.block, rounds * block.dims.len());
    let length = W::of(step.length);
    vectorized(
        #[inline(always)]
        || {
            let mut direction = [W::default(); SPAN];
            shared.walks.blocks[chunk.block].walk(
                chunk.rows.clone(),
                // Inlined, so that it is compiled for the vectors that `vectorized` chose.
                #[inline(always)]
                |run| {
                    // SAFETY: the run lies within the block's workspace.
                    let x = unsafe { std::slice::from_raw_parts(result.add(run.work), run.len) };
                    let u = &mut direction[..run.len];
                    if length == W::default() {
                        u.fill(length);
                    } else {
                        u.iter_mut().zip(x).for_each(|(u, x)| *u = length * *x);
                    }
                    pass.finish(run, u);
                },
            );
        },
    );
}
