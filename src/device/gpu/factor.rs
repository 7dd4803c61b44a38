//! The verbs of a check: sense, refresh, redamp. Factors of equal side go together; a group is as large as
//! the workspace allows.

use super::Gpu;
use super::cuda::driver::{self, ALIGNMENT, Grid};
use super::cuda::linear::{Batch, Operand, Pointers, Shape, Side};
use super::kernels::index;
use super::layout::{MOST_BLOCKS, Scratch, strips};
use super::qr;
use super::side;
use super::step::{each, launch, wide};
use super::tables::{CERTIFY_ROUNDS, Choice, Drift, Renewal, THREADS, Task, task};
use crate::config::InjectFault;
use crate::device::{Pending, RedampOrder, RefreshOrder, SEARCH_RATIO, Search, SenseOrder};
use crate::engine::plan::Content;
use crate::engine::rules::Rules;
use crate::error::{Kind, Result};
use crate::preconditioner::FactorRecord;
use crate::preconditioner::damping::Damping;
use crate::preconditioner::policy::{BoundRule, Sensed};
use crate::tensor::Precision;
use bytemuck::Zeroable;
use std::ffi::c_void;
use std::ops::Range;

/// Factors that are worked on together: consecutive tasks of one side and one precision.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub tasks: Range<usize>,
    pub n: usize,
    pub statistic: Precision,
    pub work: Precision,
    /// Precision of the solver.
    pub solver: Precision,
}

impl Group {
    /// The rung that a decomposition of this group stands on.
    pub fn rung(&self) -> i32 {
        i32::from(self.solver != self.statistic)
    }
}

/// The lists of tasks.
#[derive(Clone, Copy)]
pub(super) enum List {
    Sense = 0,
    Refresh = 1,
    Noise = 2,
    Redamp = 3,
    Keep = 7,
}

/// How many lists lie between one that is sent once a check has heard its answers and the same one sent before.
const EARLY: usize = 3;

/// What was sensed, as the policies take it.
pub(super) fn sensed(drift: &Drift) -> Sensed {
    Sensed {
        relative_change: drift.relative_change,
        alpha: drift.alpha,
        residual: drift.residual,
        certified: (drift.epsilon, drift.proxy),
        ends: (drift.least, drift.largest),
        bound: (drift.bound, BoundRule::of(drift.rule)),
        kappa: drift.kappa,
    }
}

impl Gpu {
    /// What every task about `factor` has in common.
    pub(super) fn task(&self, factor: usize, rules: Option<&Rules>) -> Task {
        let plan = &self.plan.factors[factor];
        let block = &self.plan.blocks[plan.block];
        Task {
            statistic: self.slot(plan.statistic),
            basis: self.slot(plan.basis),
            spectrum: self.slot(plan.spectrum),
            inverse_root: self.slot(plan.inverse_root.or(plan.root_spectrum)),
            fresh: plan.fresh_spectrum.map_or(0, |slot| self.slot(slot)),
            diagonal: self.table(self.layout.tables.diagonals + self.layout.diagonals[factor] * 8),
            clock: self.clock(plan.block),
            record: self.record(factor),
            filter: self.slot(block.filter),
            moment: self.slot(block.moment),
            exponent: plan.exponent,
            log_beta2: rules.map_or(0.0, |rules| rules.log_beta2),
            correct: rules.map_or(0, |rules| rules.statistic_correction * rules.statistics_period),
            ..Task::zeroed()
        }
    }

    /// Where the answer to a refresh of `factor` goes.
    pub(super) fn renewal(&self, factor: usize) -> u64 {
        self.table(self.layout.tables.renewals + factor * size_of::<Renewal>())
    }

    /// Brings a list of tasks to the device; gives its address.
    pub(super) fn send_tasks(&self, list: List, tasks: &[Task]) -> Result<u64> {
        // A list that is sent before the host has waited may not take the place of one that was sent after it waited
        // last: that one may still have to be copied.
        let early = matches!(list, List::Refresh | List::Noise | List::Redamp) && self.is_early();
        let number = list as usize + if early { EARLY } else { 0 };
        let first = number * self.plan.factors.len() * size_of::<Task>();
        let target = self.table(self.layout.tables.tasks + first);
        let bytes: &[u8] = bytemuck::cast_slice(tasks);
        if bytes.is_empty() {
            return Ok(target);
        }
        // SAFETY: the pinned list has room for a task per factor. What it held before has been copied: the host
        // has waited for the device since.
        unsafe {
            let staged = self.outgoing.data().add(first);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), staged, bytes.len());
            driver::upload(target, staged, bytes.len(), self.stream)?;
        }
        Ok(target)
    }

    /// Whether delayed refreshes are taken before the answers to the check under way are known.
    fn is_early(&self) -> bool {
        self.layout.delays && !self.heard
    }

    /// Where the choices of the step under way are staged, and where they go.
    fn choices(&self) -> (usize, u64) {
        let factors = self.plan.factors.len();
        let own = if self.is_early() { factors * size_of::<Choice>() } else { 0 };
        let staged = self.layout.lists() * factors * size_of::<Task>();
        (staged + own, self.table(self.layout.tables.choices + own))
    }

    /// Cuts a list, sorted by side, into groups that fit into the workspace.
    pub(super) fn groups(
        &self,
        factors: &[usize],
        solver: impl Fn(usize) -> Option<Precision>,
    ) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for (number, factor) in factors.iter().enumerate() {
            let param = self.plan.param_of(*factor);
            let (n, statistic, work) = (self.plan.factors[*factor].dim, param.statistic, param.work);
            let solver = solver(number).unwrap_or(statistic);
            if let Some(last) = groups.last_mut() {
                let same = (last.n, last.statistic, last.work, last.solver) == (n, statistic, work, solver);
                let bytes = Scratch::bytes(n, solver.size(), last.tasks.len() + 1);
                if same && bytes <= self.work.bytes() && last.tasks.len() < MOST_BLOCKS {
                    last.tasks.end += 1;
                    continue;
                }
            }
            groups.push(Group { tasks: number..number + 1, n, statistic, work, solver });
        }
        groups
    }

    pub(super) fn scratch(&self, group: &Group) -> Scratch {
        Scratch::new(self.work.address(), group.n, group.solver.size(), group.tasks.len()).0
    }

    /// All factors with a basis, those of equal side together.
    pub(super) fn by_side(&self) -> Vec<usize> {
        let own = |factor: &usize| self.plan.factors[*factor].is_preconditioned();
        let mut factors: Vec<usize> = (0..self.plan.factors.len()).filter(own).collect();
        factors.sort_by_key(|f| std::cmp::Reverse(self.plan.factors[*f].dim));
        factors
    }

    /// Bytes that the solver needs on the device and on the host, whatever part of the plan is refreshed, on whatever
    /// path: groups of any size, single factors, and these in double precision.
    pub(super) fn solver_needs(&self) -> Result<(usize, usize)> {
        let mut most = (0, 0);
        for group in self.groups(&self.by_side(), |_| None) {
            let own = batch(&self.scratch(&group), &group);
            let lone = Batch { count: 1, ..own };
            for asked in [own, lone, Batch { precision: Precision::F64, ..lone }] {
                let (bytes, host) = self.linear.needs(&asked)?;
                most = (most.0.max(bytes), most.1.max(host));
            }
            if !self.plan.preconditioner.has_roots() {
                most.0 = most.0.max(self.linear.needs_factor(&own)?);
            }
        }
        Ok((most.0.next_multiple_of(ALIGNMENT), most.1))
    }
}

pub(super) fn batch(scratch: &Scratch, group: &Group) -> Batch {
    Batch {
        matrices: scratch.matrices[1],
        spectra: scratch.spectra,
        infos: scratch.infos,
        n: group.n,
        count: group.tasks.len(),
        precision: group.solver,
    }
}

/// The address of a group's first task.
pub(super) fn first_task(list: u64, group: &Group) -> u64 {
    list + (group.tasks.start * size_of::<Task>()) as u64
}

/// Some thread blocks for each matrix of a group.
pub(super) fn by_tile(group: &Group) -> Grid {
    let numbers = group.n * group.n;
    wide(numbers.div_ceil(16 * THREADS), group.tasks.len(), numbers)
}

/// One thread block for each strip of each matrix of a group.
pub(super) fn by_strip(group: &Group) -> Grid {
    wide(strips(group.n), group.tasks.len(), group.n)
}

/// One thread block for each factor of a group.
pub(super) fn by_factor(group: &Group) -> Grid {
    wide(group.tasks.len(), 1, group.n * group.n)
}

/// c ← a·b over the matrices of a group.
pub(super) fn multiply(
    gpu: &Gpu,
    group: &Group,
    precision: Precision,
    a: (u64, bool),
    b: (u64, bool),
    c: u64,
) -> Result<()> {
    let n = group.n;
    let operand = |at, transposed| Operand { at, lead: n, stride: n * n, transposed };
    let shape = Shape { m: n, n, k: n, count: group.tasks.len() };
    gpu.linear.multiply(precision, shape, operand(a.0, a.1), operand(b.0, b.1), operand(c, false), false)
}

/// Measures factors: leaves a [`Drift`] for every order.
pub(super) fn sense(gpu: &mut Gpu, rules: &Rules, orders: &[SenseOrder]) -> Result<()> {
    let drifts = gpu.table(gpu.layout.tables.drifts);
    let tasks: Vec<Task> = orders
        .iter()
        .enumerate()
        .map(|(number, order)| {
            let most = order.search.map_or(order.base, |search| search.most);
            let target = order.search.map(|search| search.target);
            let target = target.or(order.certificate.map(|certificate| certificate.target));
            let keep = if order.keep_diagonal { task::KEEP_DIAGONAL } else { 0 };
            Task {
                epsilon: order.base.floor,
                ratio: order.base.ratio,
                most: most.floor,
                most_ratio: most.ratio,
                target: target.unwrap_or(0.0),
                kept: order.certificate.map_or(0.0, |certificate| certificate.kept),
                orthogonality: order.certificate.map_or(0.0, |certificate| certificate.orthogonality),
                flags: keep | if order.search.is_some() { task::SEARCH } else { 0 },
                report: drifts + (number * size_of::<Drift>()) as u64,
                ..gpu.task(order.factor, Some(rules))
            }
        })
        .collect();
    let list = gpu.send_tasks(List::Sense, &tasks)?;
    let factors: Vec<usize> = orders.iter().map(|order| order.factor).collect();
    // The policy is one of the whole configuration: all orders agree.
    let certifies = orders.iter().any(|order| order.certificate.is_some());
    for group in gpu.groups(&factors, |_| None) {
        let tasks = first_task(list, &group);
        if certifies {
            let scratch = rotate(gpu, &group, tasks)?;
            point(gpu, &group, &scratch)?;
            certify(gpu, &group, tasks, &scratch)?;
        } else {
            let own = &orders[group.tasks.clone()];
            let rounds = own.iter().filter_map(|order| Some(tries(order.base, order.search?))).max();
            let scratch = rotate(gpu, &group, tasks)?;
            drift(gpu, &group, tasks, &scratch, Rotated::stale(&scratch), 1 + rounds.unwrap_or(0))?;
        }
    }
    Ok(())
}

/// How many ε a search from `base` on tries at the most: both ends, and then as many as halve the logarithm of their
/// ratio until it is that of [`SEARCH_RATIO`]. With rounding it may be one more.
fn tries(base: Damping, search: Search) -> i32 {
    let ratio = |least: f64, most: f64| if least > 0.0 { (most / least).max(1.0) } else { 1.0 };
    let most = ratio(base.floor, search.most.floor).max(ratio(base.ratio, search.most.ratio));
    let halvings = (most.ln() / SEARCH_RATIO.ln()).log2().ceil().max(0.0);
    3 + halvings as i32
}

/// The first matrices of a group become H = QᵀLQ.
pub(super) fn rotate(gpu: &Gpu, group: &Group, tasks: u64) -> Result<Scratch> {
    let scratch = gpu.scratch(&Group { solver: group.statistic, ..group.clone() });
    let (s, n, none) = (index(group.statistic), group.n as u32, 0u64);
    let [a, q, t, _] = scratch.matrices;
    launch!(gpu.kernels.fetch[s][s], by_tile(group), gpu.stream, tasks, n, a, q, none, none, none)?;
    multiply(gpu, group, group.statistic, (a, false), (q, false), t)?;
    multiply(gpu, group, group.statistic, (q, true), (t, false), a)?;
    Ok(scratch)
}

/// What a drift is measured of.
#[derive(Clone, Copy)]
struct Rotated {
    /// H.
    h: u64,
    /// The statistics as they were decomposed, or 0.
    statistics: u64,
    /// Their scales, or 0.
    scales: u64,
}

impl Rotated {
    /// H in the bases in use, as [`rotate`] leaves it.
    fn stale(scratch: &Scratch) -> Rotated {
        Rotated { h: scratch.matrices[0], statistics: 0, scales: 0 }
    }
}

/// RC, α and the residual of a group; with more than one round also along the search.
fn drift(gpu: &Gpu, group: &Group, tasks: u64, scratch: &Scratch, of: Rotated, rounds: i32) -> Result<()> {
    let (s, n, stream) = (index(group.statistic), group.n as u32, gpu.stream);
    let Rotated { h, statistics: a, scales } = of;
    let (searches, partials) = (scratch.searches, scratch.partials);
    let (per_strip, per_factor, kernels) = (by_strip(group), by_factor(group), &gpu.kernels);
    for round in 0..rounds {
        launch!(kernels.drift[s], per_strip, stream, tasks, n, h, a, scales, searches, partials, round)?;
        launch!(
            kernels.judge_drift[s],
            per_factor,
            stream,
            tasks,
            n,
            h,
            a,
            scales,
            searches,
            partials,
            round
        )?;
    }
    Ok(())
}

/// The noise floor of a group that has just been decomposed. In the precision of the statistics A·Q is there already, so
/// that QᵀAQ is one product; else the basis has been rounded since.
fn noise_floor(gpu: &Gpu, group: &Group, tasks: u64, decomposed: &Scratch) -> Result<()> {
    if group.solver != group.statistic {
        let scratch = rotate(gpu, group, tasks)?;
        return drift(gpu, group, tasks, &scratch, Rotated::stale(&scratch), 1);
    }
    let [a, q, h, image] = decomposed.matrices;
    multiply(gpu, group, group.statistic, (q, true), (image, false), h)?;
    drift(gpu, group, tasks, decomposed, Rotated { h, statistics: a, scales: decomposed.scales }, 1)
}

/// Lists of pointers to the matrices of a group, which the batched solvers take.
pub(super) fn point(gpu: &Gpu, group: &Group, scratch: &Scratch) -> Result<()> {
    let ([a, b, c, d], count) = (scratch.matrices, group.tasks.len() as u32);
    let (lists, bytes) = (scratch.pointers, (group.n * group.n * group.statistic.size()) as u64);
    launch!(gpu.kernels.point, each(group.tasks.len()), gpu.stream, lists, a, b, c, d, bytes, count)
}

/// The first matrices of a group are H: bounds its gaps by the cheap rules, then by the proof that M ⪰ −m, then by the
/// sandwich. The second and the last ones are used. The device cannot leave out library calls that nothing needs.
pub(super) fn certify(gpu: &mut Gpu, group: &Group, tasks: u64, scratch: &Scratch) -> Result<()> {
    let (s, n, stream) = (index(group.statistic), group.n as u32, gpu.stream);
    let [m, big, _, inverse] = scratch.matrices;
    let (per_factor, weights, partials) = (by_factor(group), scratch.weights, scratch.partials);
    let (own, certificates) = (&gpu.kernels.certify, scratch.certificates);
    let (per_strip, per_tile) = (by_strip(group), by_tile(group));
    launch!(own.start[s], per_factor, stream, tasks, n, m, weights, certificates)?;
    launch!(own.scale[s], per_strip, stream, tasks, n, m, weights, partials)?;
    launch!(own.average, per_factor, stream, tasks, n, certificates, partials)?;
    for round in 0..CERTIFY_ROUNDS as i32 {
        launch!(own.round[s], per_strip, stream, tasks, n, m, weights, certificates, partials, round)?;
    }
    launch!(own.end[s], per_factor, stream, tasks, n, certificates, partials)?;
    launch!(own.prove[s], per_tile, stream, tasks, n, m, big, certificates)?;
    let (infos, proofs) = (scratch.infos, scratch.infos + 4 * group.tasks.len() as u64);
    factorize(gpu, group, scratch, 1, proofs)?;
    launch!(gpu.kernels.complete[s], per_tile, stream, tasks, n, m, big, inverse, proofs)?;
    // N = L Lᵀ, and N⁻¹ = L⁻ᵀL⁻¹.
    factorize(gpu, group, scratch, 1, infos)?;
    gpu.linear.solve_lower(&pointers(group, scratch, 1), scratch.list(3, group.tasks.len()), Side::Left)?;
    multiply(gpu, group, group.statistic, (inverse, true), (inverse, false), big)?;
    launch!(gpu.kernels.enclose[s], per_strip, stream, tasks, n, m, big, partials)?;
    launch!(gpu.kernels.judge_gap[s], per_factor, stream, tasks, n, infos, proofs, partials)
}

/// The matrices of a group with number `which`, for the batched solvers.
pub(super) fn pointers(group: &Group, scratch: &Scratch, which: usize) -> Pointers {
    let count = group.tasks.len();
    Pointers { list: scratch.list(which, count), n: group.n, count, precision: group.statistic }
}

/// Cholesky's factors of the matrices with number `which`, in their lower triangles; what the solver says goes to
/// `infos`. A solver that fails costs no step: it has not succeeded with any.
pub(super) fn factorize(gpu: &Gpu, group: &Group, scratch: &Scratch, which: usize, infos: u64) -> Result<()> {
    let bytes = group.tasks.len() * 4;
    driver::fill(infos, 0xff, bytes, gpu.stream)?;
    match gpu.linear.factorize(&pointers(group, scratch, which), infos) {
        // Out of memory is no matter of numbers: the caller has to know.
        Err(cause) if cause.kind != Kind::OutOfMemory => driver::fill(infos, 0xff, bytes, gpu.stream),
        other => other,
    }
}

/// Renews bases and spectra; the answers stay on the device.
pub(super) fn refresh(gpu: &mut Gpu, rules: &Rules, orders: &[RefreshOrder]) -> Result<()> {
    if orders.is_empty() {
        return Ok(());
    }
    // Eigendecompositions, what was found ahead of time, QR steps; within each the large factors first, as they were.
    let (by_steps, others): (Vec<&RefreshOrder>, Vec<&RefreshOrder>) =
        orders.iter().partition(|order| order.qr.is_some());
    let (mut sorted, found) = side::await_found(gpu, others)?;
    let (decomposed, known) = (sorted.len(), sorted.len() + found.len());
    sorted.extend(found);
    sorted.extend(by_steps);
    let tasks: Vec<Task> = sorted
        .iter()
        .enumerate()
        .map(|(number, order)| {
            let own = refresh_task(gpu, order, Some(rules));
            let own = if (decomposed..known).contains(&number) { side::task(gpu, own, order) } else { own };
            order.qr.map_or(own, |steps| qr::task(gpu, own, order, steps, number))
        })
        .collect();
    let noise = noise_tasks(&sorted[..decomposed], &tasks);
    let list = gpu.send_tasks(List::Refresh, &tasks)?;
    let noise_list = if noise.is_empty() { 0 } else { gpu.send_tasks(List::Noise, &noise)? };
    decompose_all(gpu, &sorted[..decomposed], list, noise_list)?;
    let part = |first: usize| list + (first * size_of::<Task>()) as u64;
    let factors: Vec<usize> = sorted.iter().map(|order| order.factor).collect();
    for group in gpu.groups(&factors[decomposed..known], |_| None) {
        let (tasks, n, s) = (first_task(part(decomposed), &group), group.n as u32, index(group.statistic));
        launch!(gpu.kernels.take_found[s], by_tile(&group), gpu.stream, tasks, n)?;
        launch!(gpu.kernels.bounds[s], by_factor(&group), gpu.stream, tasks, n)?;
    }
    for group in gpu.groups(&factors[known..], |_| None) {
        let own = &sorted[known..][group.tasks.clone()];
        let steps = own.iter().filter_map(|order| order.qr).map(|qr| qr.blind).max().unwrap_or(0);
        qr::refresh(gpu, &group, first_task(part(known), &group), steps)?;
    }
    Ok(())
}

/// The task of a refresh. A delayed one is of the statistic that was kept, which needs no rules.
pub(super) fn refresh_task(gpu: &Gpu, order: &RefreshOrder, rules: Option<&Rules>) -> Task {
    let mut flags = if order.has_basis { task::HAS_BASIS } else { 0 };
    flags |= if order.shift { task::SHIFT } else { 0 };
    flags |= fault(order);
    let own = Task { flags, report: gpu.renewal(order.factor), ..gpu.task(order.factor, rules) };
    if !order.delayed {
        return own;
    }
    let statistic = gpu.slot(gpu.plan.factors[order.factor].pending_statistic);
    Task { statistic, flags: flags | task::PLAIN, due: order.due, ..own }
}

/// The tasks that measure the noise floor of what `tasks` decompose; none if that is not asked for.
pub(super) fn noise_tasks(orders: &[&RefreshOrder], tasks: &[Task]) -> Vec<Task> {
    // The option is one of the whole configuration: all orders agree.
    if !orders.iter().any(|order| order.noise_floor) {
        return Vec::new();
    }
    let noise = |(order, own): (&&RefreshOrder, &Task)| Task {
        epsilon: order.base.floor,
        ratio: order.base.ratio,
        flags: task::NOISE | task::GIVEN_EPSILON | (own.flags & task::PLAIN),
        ..*own
    };
    orders.iter().zip(tasks).map(noise).collect()
}

/// Eigendecompositions, whose tasks lie at `list`, and those of their noise floors at `noise`, or 0.
pub(super) fn decompose_all(gpu: &mut Gpu, orders: &[&RefreshOrder], list: u64, noise: u64) -> Result<()> {
    let factors: Vec<usize> = orders.iter().map(|order| order.factor).collect();
    let spoils = orders.iter().any(|order| fault(order) & task::SPOIL != 0);
    let doubled = |number: usize| orders[number].doubled.then_some(Precision::F64);
    for group in gpu.groups(&factors, doubled) {
        let scratch = decompose(gpu, &group, first_task(list, &group), spoils)?;
        if noise != 0 {
            noise_floor(gpu, &group, first_task(noise, &group), &scratch)?;
        }
        let (tasks, n) = (first_task(list, &group), group.n as u32);
        launch!(gpu.kernels.bounds[index(group.statistic)], by_factor(&group), gpu.stream, tasks, n)?;
    }
    Ok(())
}

/// Keeps the statistics of factors as they are, for refreshes that are taken later.
pub(super) fn keep(gpu: &Gpu, rules: &Rules, orders: &[RefreshOrder]) -> Result<()> {
    let own = |order: &RefreshOrder| Task {
        found: gpu.slot(gpu.plan.factors[order.factor].pending_statistic),
        ..gpu.task(order.factor, Some(rules))
    };
    let tasks: Vec<Task> = orders.iter().map(own).collect();
    let list = gpu.send_tasks(List::Keep, &tasks)?;
    let factors: Vec<usize> = orders.iter().map(|order| order.factor).collect();
    for group in gpu.groups(&factors, |_| None) {
        let (tasks, n) = (first_task(list, &group), group.n as u32);
        launch!(gpu.kernels.keep[index(group.statistic)], by_tile(&group), gpu.stream, tasks, n)?;
    }
    Ok(())
}

/// Faults made on purpose, as far as this rung of the ladder has them.
pub(super) fn fault(order: &RefreshOrder) -> i32 {
    match order.fault {
        InjectFault::EvdNonorthogonal if !order.doubled => task::SPOIL,
        InjectFault::EvdChosen if !order.doubled => task::FAIL,
        InjectFault::EvdDouble | InjectFault::EvdAll => task::FAIL,
        _ => 0,
    }
}

/// Decomposes the statistics of a group; takes over what is sound.
fn decompose(gpu: &mut Gpu, group: &Group, tasks: u64, spoils: bool) -> Result<Scratch> {
    let scratch = solve(gpu, group, tasks, spoils)?;
    let (s, e, n) = (index(group.statistic), index(group.solver), group.n as u32);
    let (q, spectra, scales, rung) = (scratch.matrices[1], scratch.spectra, scratch.scales, group.rung());
    launch!(gpu.kernels.adopt[s][e], by_tile(group), gpu.stream, tasks, n, q, spectra, scales, rung)?;
    Ok(scratch)
}

/// Decomposes the statistics of a group: leaves them, scaled, in the first matrices, eigenvectors in the second ones, the
/// products of both in the last ones, the spectra, and whether they are sound.
pub(super) fn solve(gpu: &mut Gpu, group: &Group, tasks: u64, spoils: bool) -> Result<Scratch> {
    let scratch = gpu.scratch(group);
    let [a, q, o, image] = scratch.matrices;
    let (s, e) = (index(group.statistic), index(group.solver));
    let (stream, count, n, none) = (gpu.stream, group.tasks.len(), group.n as u32, 0u64);
    let (per_factor, per_tile, per_strip) = (by_factor(group), by_tile(group), by_strip(group));
    let (kernels, scales, partials) = (gpu.kernels.clone(), scratch.scales, scratch.partials);
    launch!(kernels.peak[s], per_strip, stream, tasks, n, partials)?;
    launch!(kernels.fetch[s][e], per_tile, stream, tasks, n, a, none, q, scales, partials)?;
    // Until the solver says otherwise, nothing has converged: a solver that fails costs no step.
    driver::fill(scratch.infos, 0xff, count * 4, stream)?;
    let batch = batch(&scratch, group);
    let solved = gpu.linear.decompose(&batch);
    // Out of memory is no matter of numbers: the caller has to know.
    if let Err(cause) = solved {
        if cause.kind == Kind::OutOfMemory {
            return Err(cause);
        }
        driver::fill(scratch.infos, 0xff, count * 4, stream)?;
        driver::fill(scratch.spectra, 0, count * group.n * group.solver.size(), stream)?;
    }
    if spoils {
        launch!(kernels.spoil[e], per_factor, stream, tasks, n, q)?;
    }
    multiply(gpu, group, group.solver, (q, true), (q, false), o)?;
    multiply(gpu, group, group.solver, (a, false), (q, false), image)?;
    let limit = group.solver.basis_tolerance();
    let (spectra, infos) = (scratch.spectra, scratch.infos);
    launch!(kernels.compare[e], per_strip, stream, n, a, q, o, image, spectra, partials)?;
    launch!(kernels.verify[e], per_factor, stream, tasks, n, partials, spectra, infos, scales, limit)?;
    Ok(scratch)
}

/// Writes the records of all factors into the state, and stages those that pending refreshes choose from.
pub(super) fn store_records(gpu: &mut Gpu, records: &[FactorRecord], pending: &[Pending]) -> Result<()> {
    let staged = gpu.incoming_head() + gpu.plan.head_bytes;
    for (factor, record) in gpu.plan.factors.iter().zip(records) {
        let block = &gpu.plan.blocks[factor.block];
        let array = gpu.plan.arrays[gpu.plan.stacks[block.stack].arrays.start + 1].offset;
        let place = array + (block.place * block.dims.len() + factor.axis) * size_of::<FactorRecord>();
        let bytes = bytemuck::bytes_of(record);
        // SAFETY: pinned memory has room for a second head. What it held before has been copied: the host has
        // waited for the device since.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                gpu.incoming.data().add(staged + place),
                bytes.len(),
            )
        };
    }
    let stored = if records.is_empty() { Vec::new() } else { gpu.head(&[Content::Record]) };
    for (offset, address, bytes) in stored {
        // SAFETY: as above; the records of the state.
        unsafe { driver::upload(address, gpu.incoming.data().add(staged + offset), bytes, gpu.stream)? };
    }
    if pending.is_empty() {
        return Ok(());
    }
    let choices: Vec<Choice> = pending
        .iter()
        .map(|pending| {
            let block = &gpu.plan.blocks[gpu.plan.factors[pending.factor].block];
            Choice {
                record: gpu.record(pending.factor),
                renewal: gpu.renewal(pending.factor),
                info: gpu.infos + 4 * gpu.layout.row(block) as u64,
                success: pending.success,
                failure: pending.failure,
            }
        })
        .collect();
    let bytes: &[u8] = bytemuck::cast_slice(&choices);
    let (first, target) = gpu.choices();
    // SAFETY: the pinned list has room for a choice per factor, and as above.
    unsafe {
        let staged = gpu.outgoing.data().add(first);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), staged, bytes.len());
        driver::upload(target, staged, bytes.len(), gpu.stream)
    }
}

/// Forms inverse roots, and chooses the records of pending refreshes.
pub(super) fn redamp(gpu: &mut Gpu, orders: &[RedampOrder]) -> Result<()> {
    let (_, choices) = gpu.choices();
    let tasks: Vec<Task> = orders
        .iter()
        .map(|order| {
            let mut flags = if order.adopt_diagonal { task::ADOPT_DIAGONAL } else { 0 };
            flags |= if order.pending.is_some() { task::AFTER_REFRESH } else { 0 };
            let relative = gpu.plan.factors[order.factor].damping.ratio > 0.0;
            flags |= if relative { task::RELATIVE } else { 0 };
            let choice = |(number, _): (usize, Damping)| choices + (number * size_of::<Choice>()) as u64;
            let most = order.pending.map_or(order.epsilon, |(_, most)| most);
            Task {
                epsilon: order.epsilon.floor,
                ratio: order.epsilon.ratio,
                most: most.floor,
                most_ratio: most.ratio,
                flags,
                report: gpu.renewal(order.factor),
                choice: order.pending.map_or(0, choice),
                ..gpu.task(order.factor, None)
            }
        })
        .collect();
    let list = gpu.send_tasks(List::Redamp, &tasks)?;
    let factors: Vec<usize> = orders.iter().map(|order| order.factor).collect();
    for group in gpu.groups(&factors, |_| None) {
        let (scratch, tasks) = (gpu.scratch(&group), first_task(list, &group));
        let [b, product, ..] = scratch.matrices;
        let (s, w, n) = (index(group.statistic), index(group.work), group.n as u32);
        let per_tile = by_tile(&group);
        launch!(gpu.kernels.damp[s], by_factor(&group), gpu.stream, tasks, n, scratch.weights)?;
        if gpu.plan.factors[factors[group.tasks.start]].inverse_root.is_none() {
            launch!(gpu.kernels.eigenroot[s], by_factor(&group), gpu.stream, tasks, n, scratch.weights)?;
            continue;
        }
        launch!(gpu.kernels.weigh[s], per_tile, gpu.stream, tasks, n, scratch.weights, b)?;
        multiply(gpu, &group, group.statistic, (b, false), (b, true), product)?;
        launch!(gpu.kernels.root[s][w], per_tile, gpu.stream, tasks, n, product)?;
    }
    Ok(())
}
