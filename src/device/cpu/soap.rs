//! SOAP's verbs: `apply` runs Adam in the basis, `sense` measures κ, `refresh` makes the first basis by an
//! eigendecomposition and the later ones by a power iteration with QR.

use super::accumulate::{Source, plain_average, statistic_tile};
use super::apply::{Pass, half, multiply_tile, write_no_update};
use super::pool::Workers;
use super::product::{Span2, mirror, multiply, multiply_lower};
use super::real::{Real, SPAN, vectorized, wide_sum_of_squares};
use super::refresh::climb;
use super::scratch::{PADDING, Scratch};
use super::walks::{Chunk, Run, Tile, Wave};
use super::{BlockStep, Cpu, Direction, Places, Precision, Shared, by_precision, qr};
use crate::config::InjectFault;
use crate::device::{INFO_IDLE, INFO_LEFT_OUT, INFO_NOT_FINITE, RefreshOrder, Refreshed, Rung, SenseOrder};
use crate::engine::plan::{AxisView, FactorPlan};
use crate::engine::rules::Rules;
use crate::preconditioner::policy::Sensed;
use crate::preconditioner::soap::{Soap, TINY_RMS, kappa};

/// Updates the moments in the basis and the parameters (or updates); with the statistics in the basis, those too.
pub(super) fn apply(cpu: &mut Cpu, rules: &Rules, soap: &Soap) {
    prepare(cpu, rules);
    cpu.left_out = 0;
    let shared = &cpu.shared;
    for wave in &shared.walks.waves {
        let sums = Places(cpu.chunk_sums.as_mut_ptr());
        let mut round = Round { shared, steps: &cpu.steps, workers: &mut cpu.workers, wave };
        // Blocks without a basis: all in one pass, unless their length has to be known first.
        round.each_chunk(Direction::Grafted, &|chunk, step, place| {
            let sum = by_precision!(shared.param(chunk.block), adam_chunk(shared, rules, soap, step, chunk));
            // SAFETY: one place per chunk.
            unsafe { sums.put(place, sum) };
        });
        if wave.blocks.clone().any(|block| round.steps[block].direction == Direction::Rotated) {
            round.each_chunk(Direction::Rotated, &|chunk, step, _| {
                by_precision!(shared.param(chunk.block), gather_chunk(shared, rules, step, chunk));
            });
            round.turn(false);
            if soap.in_basis && wave.blocks.clone().any(|block| round.steps[block].accumulates) {
                round.each_chunk(Direction::Rotated, &|chunk, step, _| {
                    let param = shared.param(chunk.block);
                    if param.work != param.statistic && step.accumulates {
                        by_precision!(param, convert_chunk(shared, chunk));
                    }
                });
                round.accumulate(rules);
            }
            round.each_chunk(Direction::Rotated, &|chunk, step, place| {
                let sum = by_precision!(shared.param(chunk.block), moments_chunk(shared, rules, step, chunk));
                // SAFETY: one place per chunk.
                unsafe { sums.put(place, sum) };
            });
            round.turn(true);
        }
        for block in wave.blocks.clone() {
            let waits = match cpu.steps[block].direction {
                Direction::Rotated => true,
                Direction::Grafted => soap.normalizes,
                _ => false,
            };
            if !waits {
                continue;
            }
            let squares: f64 = cpu.chunk_sums[shared.walks.chunks_of[block].clone()].iter().sum();
            if !squares.is_finite() {
                cpu.steps[block].length = 0.0;
                cpu.infos[block] |= INFO_LEFT_OUT;
                cpu.left_out += 1;
            } else if soap.normalizes {
                // The basis is orthogonal: the length in it is the length.
                let rms = (squares / shared.plan.blocks[block].elements as f64).sqrt();
                cpu.steps[block].length /= TINY_RMS + rms;
            }
        }
        let mut round = Round { shared, steps: &cpu.steps, workers: &mut cpu.workers, wave };
        for direction in [Some(Direction::Rotated), soap.normalizes.then_some(Direction::Grafted)] {
            let Some(direction) = direction else { continue };
            round.each_chunk(direction, &|chunk, step, _| {
                by_precision!(shared.param(chunk.block), update_chunk(shared, rules, step, chunk));
            });
        }
    }
}

/// A wave of a step, and who works on it.
struct Round<'a> {
    shared: &'a Shared,
    steps: &'a [BlockStep],
    workers: &'a mut Workers,
    wave: &'a Wave,
}

impl Round<'_> {
    /// Runs `body` for every chunk of the blocks with this direction; its last argument is the chunk's number.
    fn each_chunk(&mut self, direction: Direction, body: &(dyn Fn(&Chunk, &BlockStep, usize) + Sync)) {
        let (steps, range) = (self.steps, self.wave.chunks.clone());
        let chunks = &self.shared.walks.chunks[range.clone()];
        self.workers.run(chunks.len(), self.wave.parallel, &|task, _| {
            let step = &steps[chunks[task].block];
            if step.direction == direction {
                body(&chunks[task], step, range.start + task);
            }
        });
    }

    /// Multiplies the blocks by their bases along every axis that has one: into the basis, or back.
    fn turn(&mut self, back: bool) {
        let (shared, steps) = (self.shared, self.steps);
        for tiles in &self.wave.products {
            self.workers.run(tiles.len(), self.wave.parallel, &|task, _| {
                let tile = &tiles[task];
                if steps[tile.block].direction == Direction::Rotated {
                    by_precision!(shared.param(tile.block), turn_tile(shared, tile, back));
                }
            });
        }
    }

    /// Adds the projected gradients to the statistics in the basis: H ← β·H + (1−β)·g′g′ᵀ.
    fn accumulate(&mut self, rules: &Rules) {
        let (shared, steps, tiles) = (self.shared, self.steps, &self.wave.statistics);
        let (decay, gain) = plain_average(rules);
        self.workers.run(tiles.len(), self.wave.parallel, &|task, _| {
            let tile = &tiles[task];
            if steps[tile.block].accumulates {
                let source = Source::walked(shared, tile.block, shared.projected(tile.block));
                by_precision!(shared.param(tile.block), statistic_tile(shared, decay, gain, tile, source));
            }
        });
    }
}

/// Works out what the step does with every block. The first gradient of a block makes its basis and nothing else.
fn prepare(cpu: &mut Cpu, rules: &Rules) {
    let shared = &cpu.shared;
    for (block, info) in cpu.infos.iter_mut().enumerate() {
        let (step, t) = (&mut cpu.steps[block], shared.clock(block).step);
        if t == 0 {
            *info |= INFO_IDLE;
        }
        step.accumulates = false;
        if t <= 1 || *info & (INFO_IDLE | INFO_NOT_FINITE) != 0 {
            step.direction = Direction::None;
            write_no_update(shared, block);
            continue;
        }
        let n = t - 1;
        let site = &shared.sites[block];
        step.filter_divisor = rules.filter_divisor(n);
        step.moment_divisor = rules.moment_divisor(n);
        // √(1−β₂ⁿ)/(1−β₁ⁿ), and the decay acts after the step: W ← (W + s·u)(1 + s·decay).
        let scale = rules.scale * site.lr_scale;
        step.length = step.moment_divisor.sqrt() / step.filter_divisor * (1.0 + scale * site.decay);
        let rotated = shared.plan.bases(block) > 0 && shared.has_bases(block);
        step.direction = if rotated { Direction::Rotated } else { Direction::Grafted };
        // With the statistics in the basis, this verb adds to them.
        step.accumulates = rotated && rules.accumulates(t);
    }
}

impl Shared {
    /// Whether the bases of `block` have been made: one that never was is zero.
    fn has_bases(&self, block: usize) -> bool {
        fn formed<W: Real>(column: *const W, n: usize) -> bool {
            // SAFETY: a basis has at least one column.
            unsafe { std::slice::from_raw_parts(column, n) }.iter().any(|x| *x != W::default())
        }
        let work = self.param(block).work;
        let factors = &self.plan.factors[self.plan.blocks[block].factors.clone()];
        factors.iter().filter(|factor| factor.is_preconditioned()).all(|factor| match work {
            Precision::F32 => formed(self.slot::<f32>(factor.basis), factor.dim),
            Precision::F64 => formed(self.slot::<f64>(factor.basis), factor.dim),
        })
    }

    /// The projected gradient of `block` in the precision of its statistics.
    fn projected(&self, block: usize) -> *mut u8 {
        let (param, products) = (self.param(block), self.plan.bases(block));
        match (param.work, param.statistic) {
            (Precision::F32, Precision::F32) => half::<f32>(self, block, products).cast(),
            (Precision::F64, Precision::F64) => half::<f64>(self, block, products).cast(),
            // Behind the two halves.
            _ => {
                let len = self.walks.blocks[block].work_len();
                self.work::<u8>(block).wrapping_add(2 * len * param.work.size())
            }
        }
    }
}

/// Brings the gradient of a block into the workspace.
fn gather_chunk<W: Real, S: Real>(shared: &Shared, rules: &Rules, step: &BlockStep, chunk: &Chunk) {
    let pass = Pass::<W>::new(shared, rules, step, chunk.block);
    vectorized(
        #[inline(always)]
        || {
            shared.walks.blocks[chunk.block].walk(
                chunk.rows.clone(),
                #[inline(always)]
                |run| {
                    // SAFETY: the run lies within the block's workspace and gradient, and is this chunk's alone.
                    unsafe {
                        let work = std::slice::from_raw_parts_mut(pass.work.add(run.work), run.len);
                        pass.gradient.load(run.tensor, work);
                    }
                },
            );
        },
    );
}

/// Copies the projected gradient, in the precision of the statistics.
fn convert_chunk<W: Real, S: Real>(shared: &Shared, chunk: &Chunk) {
    let source = half::<W>(shared, chunk.block, shared.plan.bases(chunk.block));
    let target: *mut S = shared.projected(chunk.block).cast();
    shared.walks.blocks[chunk.block].walk(chunk.rows.clone(), |run| {
        // SAFETY: the run lies within the block's workspace, and is this chunk's alone.
        let (from, to) = unsafe {
            (
                std::slice::from_raw_parts(source.add(run.work), run.len),
                std::slice::from_raw_parts_mut(target.add(run.work), run.len),
            )
        };
        to.iter_mut().zip(from).for_each(|(to, from)| *to = S::of(from.wide()));
    });
}

fn turn_tile<W: Real, S: Real>(shared: &Shared, tile: &Tile, back: bool) {
    let block = &shared.plan.blocks[tile.block];
    let factor = &shared.plan.factors[block.factors.start + tile.axis];
    let q = Span2::square(shared.slot::<W>(factor.basis), factor.dim);
    let matrices = if back { (q, q.t()) } else { (q.t(), q) };
    let before = tile.number + if back { shared.plan.bases(tile.block) } else { 0 };
    let (source, target) = (half::<W>(shared, tile.block, before), half::<W>(shared, tile.block, before + 1));
    // SAFETY: the two halves of the block's workspace.
    unsafe { multiply_tile(shared, tile, matrices, source, target) };
}

/// Adam's moments take the gradient in `x`, which becomes m/(√v + ε).
#[inline(always)]
fn moments<W: Real>(pass: &Pass<W>, run: Run, x: &mut [W]) {
    let rules = pass.rules;
    let mut scale = [W::of(1.0); SPAN];
    let scale = &mut scale[..run.len];
    if let Some(moment) = pass.moment {
        // SAFETY: the run lies within the buffer and belongs to this chunk alone.
        let v = unsafe { std::slice::from_raw_parts_mut(moment.add(run.state), run.len) };
        let (keep, take) = (W::of(rules.moment_keep), W::of(rules.moment_take));
        let epsilon = W::of(rules.moment_epsilon);
        for ((v, g), d) in v.iter_mut().zip(&*x).zip(scale.iter_mut()) {
            *v = keep * *v + take * (*g * *g);
            *d = (*v).root() + epsilon;
            // Where no gradient was ever felt there is no step, not 0/0.
            *d = if *d > W::default() { *d } else { W::of(W::LARGEST) };
        }
    }
    if let Some(filter) = pass.filter {
        // SAFETY: as above.
        let m = unsafe { std::slice::from_raw_parts_mut(filter.add(run.state), run.len) };
        let (keep, take) = (W::of(rules.beta1), W::of(1.0 - rules.beta1));
        for (m, x) in m.iter_mut().zip(x.iter_mut()) {
            *m = keep * *m + take * *x;
            *x = *m;
        }
    }
    x.iter_mut().zip(&*scale).for_each(|(x, d)| *x /= *d);
}

/// Moments and direction in the basis; the squared length of the direction.
fn moments_chunk<W: Real, S: Real>(shared: &Shared, rules: &Rules, step: &BlockStep, chunk: &Chunk) -> f64 {
    let pass = Pass::<W>::new(shared, rules, step, chunk.block);
    let work = half::<W>(shared, chunk.block, shared.plan.bases(chunk.block));
    vectorized(
        #[inline(always)]
        || {
            let mut total = 0.0;
            shared.walks.blocks[chunk.block].walk(
                chunk.rows.clone(),
                #[inline(always)]
                |run| {
                    // SAFETY: the run lies within the block's workspace and is this chunk's alone.
                    let x = unsafe { std::slice::from_raw_parts_mut(work.add(run.work), run.len) };
                    moments(&pass, run, x);
                    total += wide_sum_of_squares(x);
                },
            );
            total
        },
    )
}

/// Adam where there is no basis: finishes the update, unless its length has to be known first; gives the squared
/// length.
fn adam_chunk<W: Real, S: Real>(
    shared: &Shared,
    rules: &Rules,
    soap: &Soap,
    step: &BlockStep,
    chunk: &Chunk,
) -> f64 {
    let pass = Pass::<W>::new(shared, rules, step, chunk.block);
    let length = W::of(step.length);
    vectorized(
        #[inline(always)]
        || {
            let mut total = 0.0;
            let mut values = [W::default(); SPAN];
            shared.walks.blocks[chunk.block].walk(
                chunk.rows.clone(),
                #[inline(always)]
                |run| {
                    let x = &mut values[..run.len];
                    // SAFETY: the run lies within the gradient and the workspace, and is this chunk's alone.
                    unsafe { pass.gradient.load(run.tensor, x) };
                    moments(&pass, run, x);
                    if soap.normalizes {
                        total += wide_sum_of_squares(x);
                        // SAFETY: as above.
                        unsafe { std::slice::from_raw_parts_mut(pass.work.add(run.work), run.len) }
                            .copy_from_slice(x);
                    } else {
                        x.iter_mut().for_each(|x| *x *= length);
                        pass.finish(run, x);
                    }
                },
            );
            total
        },
    )
}

/// The direction, turned back into the first half, takes its length, and the parameter its step.
fn update_chunk<W: Real, S: Real>(shared: &Shared, rules: &Rules, step: &BlockStep, chunk: &Chunk) {
    let pass = Pass::<W>::new(shared, rules, step, chunk.block);
    let length = W::of(step.length);
    vectorized(
        #[inline(always)]
        || {
            let mut direction = [W::default(); SPAN];
            shared.walks.blocks[chunk.block].walk(
                chunk.rows.clone(),
                #[inline(always)]
                |run| {
                    // SAFETY: the run lies within the block's workspace.
                    let x = unsafe { std::slice::from_raw_parts(pass.work.add(run.work), run.len) };
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

/// Measures κ of factors, and keeps the answers for the readback.
pub(super) fn sense(cpu: &mut Cpu, rules: &Rules, soap: &Soap, orders: &[SenseOrder]) {
    cpu.sensed.clear();
    cpu.sensed.resize(orders.len(), Sensed::default());
    let answers = Places(cpu.sensed.as_mut_ptr());
    cpu.each_factor(orders.len(), &|shared, task, scratch| {
        let factor = orders[task].factor;
        let param = shared.plan.param_of(factor);
        let factor = &shared.plan.factors[factor];
        let kappa = by_precision!(param, sense_factor(shared, rules, soap, factor, scratch));
        // SAFETY: one place per task.
        unsafe { answers.put(task, Sensed { kappa, ..Sensed::default() }) };
    });
}

fn sense_factor<W: Real, S: Real>(
    shared: &Shared,
    rules: &Rules,
    soap: &Soap,
    factor: &FactorPlan,
    scratch: &mut Scratch,
) -> f64 {
    load::<S>(shared, rules, soap, factor, scratch);
    if !soap.in_basis {
        power::<W, S>(shared, factor, scratch);
    }
    kappa_of::<S>(factor.dim, scratch)
}

/// Matrix 0 becomes the statistic, whole.
fn load<S: Real>(shared: &Shared, rules: &Rules, soap: &Soap, factor: &FactorPlan, scratch: &Scratch) {
    // In the basis the statistic decays in every step, elsewhere its clock carries the decay.
    let scale = if soap.in_basis { 1.0 } else { rules.statistic_scale(shared.clock(factor.block)) };
    scratch.load_statistic::<S>(shared, factor, scale);
}

/// From A in matrix 0: matrix 1 becomes Q, matrix 2 A·Q, and matrix 0 the lower triangle of QᵀAQ.
fn power<W: Real, S: Real>(shared: &Shared, factor: &FactorPlan, scratch: &Scratch) {
    let n = factor.dim;
    load_basis::<W, S>(shared, factor, scratch, 1);
    let [h, q, t] = [0, 1, 2].map(|which| Span2::square(scratch.matrix::<S>(which), n));
    // SAFETY: three different matrices of the scratch.
    unsafe {
        multiply(t, false, h, q, S::of(1.0));
        multiply_lower(h, false, q.t(), t, S::of(1.0));
    }
}

/// Matrix `which` becomes the basis, in the precision of the statistic.
fn load_basis<W: Real, S: Real>(shared: &Shared, factor: &FactorPlan, scratch: &Scratch, which: usize) {
    let count = factor.dim * factor.dim;
    // SAFETY: both have dim² numbers, and only this task touches them.
    let (source, target) = unsafe {
        (
            std::slice::from_raw_parts(shared.slot::<W>(factor.basis), count),
            std::slice::from_raw_parts_mut(scratch.matrix::<S>(which), count),
        )
    };
    target.iter_mut().zip(source).for_each(|(t, x)| *t = S::of(x.wide()));
}

/// The basis becomes matrix `which`.
fn store_basis<W: Real, S: Real>(shared: &Shared, factor: &FactorPlan, scratch: &Scratch, which: usize) {
    let count = factor.dim * factor.dim;
    // SAFETY: as in `load_basis`.
    let (source, target) = unsafe {
        (
            std::slice::from_raw_parts(scratch.matrix::<S>(which), count),
            std::slice::from_raw_parts_mut(shared.slot::<W>(factor.basis), count),
        )
    };
    target.iter_mut().zip(source).for_each(|(t, x)| *t = W::of(x.wide()));
}

/// κ of the lower triangle in matrix 0.
fn kappa_of<S: Real>(n: usize, scratch: &Scratch) -> f64 {
    // SAFETY: matrix 0 has n² numbers.
    let h = unsafe { std::slice::from_raw_parts(scratch.matrix::<S>(0), n * n) };
    kappa(n, |i, j| h[i + j * n].wide())
}

/// The diagonal of matrix 0 goes to the scratch's vector; finds the order in which it falls, and gives its ends.
fn falling_diagonal<S: Real>(n: usize, scratch: &mut Scratch) -> Refreshed {
    // SAFETY: matrix 0 has n² numbers.
    let h = unsafe { std::slice::from_raw_parts(scratch.matrix::<S>(0), n * n) };
    scratch.vector.clear();
    scratch.vector.extend((0..n).map(|i| h[i + i * n].wide()));
    falling(scratch)
}

/// Finds the order in which the numbers of the scratch's vector fall, and gives their ends.
fn falling(scratch: &mut Scratch) -> Refreshed {
    scratch.sort_falling();
    let values = &scratch.vector;
    Refreshed {
        rung: Rung::Chosen,
        eigenvalue_min: values.iter().copied().fold(f64::INFINITY, f64::min).max(0.0),
        eigenvalue_max: values.iter().copied().fold(0.0, f64::max),
        noise_floor: f64::NAN,
        kappa: f64::NAN,
        ..Refreshed::default()
    }
}

/// Renews bases, and turns the moments with them; an answer per order. One block per task: its factors turn the
/// same moments.
pub(super) fn refresh(
    cpu: &mut Cpu,
    rules: &Rules,
    soap: &Soap,
    orders: &[RefreshOrder],
    refreshed: &mut Vec<Refreshed>,
) {
    refreshed.clear();
    refreshed.resize(orders.len(), Refreshed::default());
    let answers = Places(refreshed.as_mut_ptr());
    let (mut places, mut groups) = (std::mem::take(&mut cpu.places), std::mem::take(&mut cpu.groups));
    let block_of = |place: usize| cpu.shared.plan.factors[orders[place].factor].block;
    places.clear();
    places.extend(0..orders.len());
    places.sort_unstable_by_key(|place| (block_of(*place), *place));
    groups.clear();
    let mut first = 0;
    for group in places.chunk_by(|a, b| block_of(*a) == block_of(*b)) {
        groups.push(first..first + group.len());
        first += group.len();
    }
    // The orders are sorted by size: the blocks with the largest factors come first.
    groups.sort_unstable_by_key(|group| places[group.start]);
    cpu.each_factor(groups.len(), &|shared, task, scratch| {
        for place in &places[groups[task].clone()] {
            let order = &orders[*place];
            let param = shared.plan.param_of(order.factor);
            let answer = by_precision!(param, refresh_factor(shared, rules, soap, order, scratch));
            // SAFETY: every order is in one group.
            unsafe { answers.put(*place, answer) };
        }
    });
    (cpu.places, cpu.groups) = (places, groups);
}

fn refresh_factor<W: Real, S: Real>(
    shared: &Shared,
    rules: &Rules,
    soap: &Soap,
    order: &RefreshOrder,
    scratch: &mut Scratch,
) -> Refreshed {
    let factor = &shared.plan.factors[order.factor];
    load::<S>(shared, rules, soap, factor, scratch);
    if !order.has_basis {
        return first_basis::<W, S>(shared, soap, factor, order.fault, scratch);
    }
    let n = factor.dim;
    if !soap.in_basis {
        power::<W, S>(shared, factor, scratch);
    }
    let kappa = kappa_of::<S>(n, scratch);
    let ends = falling_diagonal::<S>(n, scratch);
    let falling = std::mem::take(&mut scratch.order);
    let turned = turn::<W, S>(shared, soap, order, &falling, scratch);
    scratch.order = falling;
    let rung = if turned { Rung::Chosen } else { Rung::Stale };
    Refreshed { rung, kappa, ..ends }
}

/// The next basis: the power iteration's columns in the order `falling`, made orthogonal; says whether it was taken.
fn turn<W: Real, S: Real>(
    shared: &Shared,
    soap: &Soap,
    order: &RefreshOrder,
    falling: &[usize],
    scratch: &mut Scratch,
) -> bool {
    let factor = &shared.plan.factors[order.factor];
    let n = factor.dim;
    // Matrix 1 is Q in the exact form, and free in the other.
    let turned = if soap.in_basis {
        permuted_qr::<S>(n, falling, (0, 1), 2, scratch)
    } else {
        permuted_qr::<S>(n, falling, (2, 0), 2, scratch)
    };
    if !turned || order.fault == InjectFault::EvdAll {
        return false;
    }
    if soap.in_basis {
        turn_in_basis::<W, S>(shared, factor, order.polish, scratch);
    } else {
        // Z = QᵀQ′ turns what is in the old basis.
        let [z, q, new] = [0, 1, 2].map(|which| Span2::square(scratch.matrix::<S>(which), n));
        // SAFETY: three different matrices of the scratch.
        unsafe { multiply(z, false, q.t(), new, S::of(1.0)) };
        store_basis::<W, S>(shared, factor, scratch, 2);
        turn_momentum::<W, S>(shared, factor, 0, 1, 2, scratch);
    }
    permute_moment::<W>(shared, factor, falling, scratch);
    true
}

/// The first basis: eigenvectors of matrix 0, the largest eigenvalue first; by the same ladder as Shampoo's.
fn first_basis<W: Real, S: Real>(
    shared: &Shared,
    soap: &Soap,
    factor: &FactorPlan,
    fault: InjectFault,
    scratch: &mut Scratch,
) -> Refreshed {
    let n = factor.dim;
    let rung = climb::<S>(n, fault, scratch);
    // SAFETY: the basis has n² numbers, and only this task touches it.
    let basis = unsafe { std::slice::from_raw_parts_mut(shared.slot::<W>(factor.basis), n * n) };
    if rung == Rung::Stale {
        // Nothing decomposes it: Adam as it is, until a power iteration succeeds.
        basis.fill(W::default());
        (0..n).for_each(|i| basis[i + i * n] = W::of(1.0));
        let ends = falling_diagonal::<S>(n, scratch);
        return Refreshed { rung, ..ends };
    }
    let ends = falling(scratch);
    // SAFETY: `climb` left the eigenvectors in matrix 1.
    let q = unsafe { std::slice::from_raw_parts(scratch.matrix::<S>(1), n * n) };
    for (target, source) in basis.chunks_exact_mut(n).zip(&scratch.order) {
        let column = &q[source * n..(source + 1) * n];
        target.iter_mut().zip(column).for_each(|(t, x)| *t = W::of(x.wide()));
    }
    if soap.in_basis {
        // SAFETY: the statistic has n² numbers, and only this task touches it.
        let h = unsafe { std::slice::from_raw_parts_mut(shared.slot::<S>(factor.statistic), n * n) };
        h.fill(S::default());
        for (i, source) in scratch.order.iter().enumerate() {
            h[i + i * n] = S::of(scratch.vector[*source].max(0.0));
        }
    }
    load_basis::<W, S>(shared, factor, scratch, 0);
    turn_momentum::<W, S>(shared, factor, 0, 1, 2, scratch);
    Refreshed { rung, ..ends }
}

/// Matrix `target` becomes the orthogonal factor of matrix `from` with its columns in `order`; matrix `through` is
/// used. False if that failed.
fn permuted_qr<S: Real>(
    n: usize,
    order: &[usize],
    (from, through): (usize, usize),
    target: usize,
    scratch: &mut Scratch,
) -> bool {
    let [source, columns, q] = [from, through, target].map(|which| scratch.matrix::<S>(which));
    // SAFETY: `through` is another matrix than `from` and `target`.
    let columns = unsafe { std::slice::from_raw_parts_mut(columns, n * n) };
    for (column, place) in columns.chunks_exact_mut(n).zip(order) {
        // SAFETY: column `place` of the source.
        column.copy_from_slice(unsafe { std::slice::from_raw_parts(source.add(place * n), n) });
    }
    // SAFETY: the source is not needed any more where it is the target.
    let q = unsafe { std::slice::from_raw_parts_mut(q, n * n) };
    qr::orthonormalize(columns, q, n, scratch.stack())
}

/// With H in matrix 0 and Z in matrix 2: H ← ZᵀHZ, the momentum and Q turn by Z; then Q is polished if asked for.
fn turn_in_basis<W: Real, S: Real>(
    shared: &Shared,
    factor: &FactorPlan,
    polish: bool,
    scratch: &mut Scratch,
) {
    let n = factor.dim;
    let one = S::of(1.0);
    let [first, second, z] = [0, 1, 2].map(|which| Span2::square(scratch.matrix::<S>(which), n));
    // SAFETY: three different matrices of the scratch; the statistic has n² numbers.
    unsafe {
        multiply(second, false, first, z, one);
        multiply_lower(first, false, z.t(), second, one);
        mirror::<S, S>(first.data, n, shared.slot::<S>(factor.statistic), n, n, 1.0);
    }
    load_basis::<W, S>(shared, factor, scratch, 0);
    // SAFETY: as above.
    unsafe { multiply(second, false, first, z, one) };
    store_basis::<W, S>(shared, factor, scratch, 1);
    turn_momentum::<W, S>(shared, factor, 2, 0, 1, scratch);
    if polish {
        // Q ← 1.5·Q − 0.5·Q·QᵀQ.
        load_basis::<W, S>(shared, factor, scratch, 0);
        // SAFETY: as above.
        unsafe {
            multiply(second, false, first.t(), first, one);
            multiply(z, false, first, second, S::of(-0.5));
            for i in 0..n * n {
                *z.data.add(i) += S::of(1.5) * first.data.add(i).read();
            }
        }
        store_basis::<W, S>(shared, factor, scratch, 2);
    }
}

/// m ← Zᵀm along the axis, for Z in matrix `z`; matrices `copy` and `buffer` are used.
fn turn_momentum<W: Real, S: Real>(
    shared: &Shared,
    factor: &FactorPlan,
    z: usize,
    copy: usize,
    buffer: usize,
    scratch: &Scratch,
) {
    let Some(filter) = shared.plan.blocks[factor.block].filter else { return };
    let n = factor.dim;
    // SAFETY: two matrices of the scratch, with room for n² numbers of either precision.
    let (source, target) = unsafe {
        (
            std::slice::from_raw_parts(scratch.matrix::<S>(z), n * n),
            std::slice::from_raw_parts_mut(scratch.matrix::<W>(copy), n * n),
        )
    };
    target.iter_mut().zip(source).for_each(|(t, x)| *t = W::of(x.wide()));
    let (z, buffer) = (Span2::square(target.as_mut_ptr(), n), scratch.matrix::<W>(buffer));
    let one = W::of(1.0);
    along_axis(shared, factor, shared.slot::<W>(filter), |x, rows_are_columns| {
        let y = Span2::row_major(buffer, x.rows, x.cols, x.cols);
        // SAFETY: the buffer has room for a panel, and overlaps nothing.
        unsafe {
            if rows_are_columns {
                multiply(y, false, x, z, one);
            } else {
                multiply(y, false, z.t(), x, one);
            }
            copy_back(y, x);
        }
    });
}

/// v along the axis takes the order of the new basis; matrix 2 is used.
fn permute_moment<W: Real>(shared: &Shared, factor: &FactorPlan, order: &[usize], scratch: &Scratch) {
    let Some(moment) = shared.plan.blocks[factor.block].moment else { return };
    let buffer = scratch.matrix::<W>(2);
    along_axis(shared, factor, shared.slot::<W>(moment), |x, rows_are_columns| {
        let y = Span2::row_major(buffer, x.rows, x.cols, x.cols);
        for row in 0..x.rows {
            for col in 0..x.cols {
                let (from_row, from_col) =
                    if rows_are_columns { (row, order[col]) } else { (order[row], col) };
                // SAFETY: both lie within their matrices.
                unsafe {
                    let value = x.data.add(from_row * x.row + from_col * x.col).read();
                    y.data.add(row * y.row + col).write(value);
                }
            }
        }
        // SAFETY: the buffer overlaps nothing.
        unsafe { copy_back(y, x) };
    });
}

/// Visits an array of the block's shape in panels that a matrix of the scratch has room for: with the axis along
/// their rows' index, or, where the axis has only ones behind it, along their columns' (then the second argument is
/// true).
fn along_axis<W: Real>(
    shared: &Shared,
    factor: &FactorPlan,
    data: *mut W,
    mut visit: impl FnMut(Span2<W>, bool),
) {
    let view = AxisView::new(&shared.plan.blocks[factor.block].dims, factor.axis);
    let (n, width) = (view.dim, factor.dim + PADDING);
    if view.inner == 1 {
        let whole = Span2::row_major(data, view.outer, n, n);
        for first in (0..view.outer).step_by(width) {
            visit(whole.part(first, 0, width.min(view.outer - first), n), true);
        }
        return;
    }
    for slice in 0..view.outer {
        let start = data.wrapping_add(slice * n * view.inner);
        let whole = Span2::row_major(start, n, view.inner, view.inner);
        for first in (0..view.inner).step_by(width) {
            visit(whole.part(0, first, n, width.min(view.inner - first)), false);
        }
    }
}

/// Copies a dense row-major panel to where it belongs.
///
/// # Safety
/// Both are valid memory and do not overlap.
unsafe fn copy_back<W: Real>(from: Span2<W>, to: Span2<W>) {
    for row in 0..from.rows {
        // SAFETY: the caller's contract; both have one element per column in a row.
        unsafe {
            std::ptr::copy_nonoverlapping(from.data.add(row * from.row), to.data.add(row * to.row), to.cols)
        };
    }
}
