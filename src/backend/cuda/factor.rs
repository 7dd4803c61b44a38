//! The verbs of a check: sense, refresh, redamp. Factors of equal side go together; a group is as large as
//! the workspace allows.

use super::driver::{self, Grid, Memory};
use super::kernels::index;
use super::linear::{Batch, Operand, Shape};
use super::stacks::{Bench, MOST_BLOCKS};
use super::step::{launch, wide};
use super::tables::{Drift, THREADS, Task, Time, task};
use super::{Cuda, RedampOrder, RefreshOrder, SenseOrder};
use crate::config::{InjectFault, NegativeEigenvalues, Policy};
use crate::error::Result;
use crate::preconditioner::policy::Sensed;
use crate::tensor::Precision;
use std::ffi::c_void;
use std::ops::Range;

/// What an orthogonal basis may miss, as a relative error.
fn tolerance(precision: Precision) -> f64 {
    match precision {
        Precision::F32 => 1e-4,
        Precision::F64 => 1e-9,
    }
}

/// Factors that are worked on together: consecutive tasks of one side and one precision.
#[derive(Clone, Debug)]
pub(super) struct Group {
    tasks: Range<usize>,
    n: usize,
    statistic: Precision,
    work: Precision,
    /// Precision of the solver.
    solver: Precision,
}

/// The three lists of tasks; the middle one has a second half for the noise floors.
#[derive(Clone, Copy)]
enum List {
    Sense = 0,
    Refresh = 1,
    Noise = 2,
    Redamp = 3,
}

/// What was sensed, as the policies take it.
pub(super) fn sensed(drift: &Drift) -> Sensed {
    Sensed {
        relative_change: drift.relative_change,
        alpha: drift.alpha,
        residual: drift.residual,
        certified: (drift.epsilon, drift.proxy),
    }
}

impl Cuda {
    /// What every task about `factor` has in common.
    fn task(&self, factor: usize) -> Task {
        let plan = &self.plan.factors[factor];
        let (stack, index) = self.layout.place[plan.block];
        let block = self.layout.stacks[stack].first + index;
        let (tables, sections) = (self.tables.address(), &self.layout.tables);
        let beta2 = self.config.beta2;
        Task {
            statistic: self.slot(plan.statistic),
            basis: self.slot(plan.basis),
            spectrum: self.slot(plan.spectrum),
            inverse_root: self.slot(plan.inverse_root),
            diagonal: tables + (sections.diagonals + self.layout.diagonals[factor] * 8) as u64,
            clock: self.clocks + (block * size_of::<Time>()) as u64,
            damping: self.dampings.0 + (factor * self.dampings.1) as u64,
            exponent: plan.exponent,
            log_beta2: beta2.ln(),
            correct: i32::from(self.config.bias_correction && beta2 > 0.0 && beta2 < 1.0),
            ..Task::default()
        }
    }

    /// Where the answer to a refresh of `factor` goes.
    pub(super) fn renewal(&self, factor: usize) -> u64 {
        let size = size_of::<super::tables::Renewal>();
        self.tables.address() + (self.layout.tables.renewals + factor * size) as u64
    }

    /// Brings a list of tasks to the device; gives its address.
    fn send_tasks(&self, list: List, tasks: &[Task]) -> Result<u64> {
        let first = list as usize * self.plan.factors.len() * size_of::<Task>();
        let target = self.tables.address() + (self.layout.tables.tasks + first) as u64;
        let bytes: &[u8] = bytemuck::cast_slice(tasks);
        if bytes.is_empty() {
            return Ok(target);
        }
        // SAFETY: the pinned list has room for a task a factor. What it held before has been copied: the host
        // has waited for the device since.
        unsafe {
            let staged = self.tasks.data().add(first);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), staged, bytes.len());
            driver::upload(target, staged, bytes.len(), self.stream)?;
        }
        Ok(target)
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
                let bytes = Bench::bytes(n, solver.size(), last.tasks.len() + 1);
                if same && bytes <= self.work.bytes() && last.tasks.len() < MOST_BLOCKS {
                    last.tasks.end += 1;
                    continue;
                }
            }
            groups.push(Group { tasks: number..number + 1, n, statistic, work, solver });
        }
        groups
    }

    pub(super) fn bench(&self, group: &Group) -> Bench {
        Bench::new(self.work.address(), group.n, group.solver.size(), group.tasks.len()).0
    }

    /// All factors, those of equal side together.
    pub(super) fn by_side(&self) -> Vec<usize> {
        let mut factors: Vec<usize> = (0..self.plan.factors.len()).collect();
        factors.sort_by_key(|f| std::cmp::Reverse(self.plan.factors[*f].dim));
        factors
    }

    /// The solver's workspace, as large as any refresh of this plan needs.
    pub(super) fn reserve_solver(&mut self) -> Result<()> {
        for group in self.groups(&self.by_side(), |_| None) {
            let batch = batch(&self.bench(&group), &group);
            self.linear.prepare(&batch, self.allocator)?;
        }
        Ok(())
    }
}

pub(super) fn batch(bench: &Bench, group: &Group) -> Batch {
    Batch {
        matrices: bench.matrices[1],
        spectra: bench.spectra,
        infos: bench.infos,
        n: group.n,
        count: group.tasks.len(),
        precision: group.solver,
    }
}

/// The address of a group's first task.
fn first_task(list: u64, group: &Group) -> u64 {
    list + (group.tasks.start * size_of::<Task>()) as u64
}

/// Some thread blocks for each matrix of a group.
fn by_tile(group: &Group) -> Grid {
    let numbers = group.n * group.n;
    wide(numbers.div_ceil(16 * THREADS), group.tasks.len(), numbers)
}

/// One thread block for each factor of a group.
fn by_factor(group: &Group) -> Grid {
    wide(group.tasks.len(), 1, group.n * group.n)
}

/// c ← a·b over the matrices of a group.
fn multiply(
    cuda: &Cuda,
    group: &Group,
    precision: Precision,
    a: (u64, bool),
    b: (u64, bool),
    c: u64,
) -> Result<()> {
    let n = group.n;
    let operand = |at, transposed| Operand { at, lead: n, stride: n * n, transposed };
    let shape = Shape { m: n, n, k: n, count: group.tasks.len() };
    cuda.linear.multiply(precision, shape, operand(a.0, a.1), operand(b.0, b.1), operand(c, false), false)
}

/// Measures factors: leaves a [`Drift`] for every order.
pub(super) fn sense(cuda: &mut Cuda, orders: &[SenseOrder]) -> Result<()> {
    let drifts = cuda.tables.address() + cuda.layout.tables.drifts as u64;
    let keep = if cuda.config.policy == Policy::DiagonalResidual { task::KEEP_DIAGONAL } else { 0 };
    let tasks: Vec<Task> = orders
        .iter()
        .enumerate()
        .map(|(number, order)| {
            let search = order.search;
            Task {
                epsilon: cuda.plan.factors[order.factor].epsilon,
                search: search.map_or([0.0; 3], |s| [s.low, s.high, s.target]),
                flags: keep | if search.is_some() { task::SEARCH } else { 0 },
                report: drifts + (number * size_of::<Drift>()) as u64,
                ..cuda.task(order.factor)
            }
        })
        .collect();
    let list = cuda.send_tasks(List::Sense, &tasks)?;
    let factors: Vec<usize> = orders.iter().map(|order| order.factor).collect();
    for group in cuda.groups(&factors, |_| None) {
        drift(cuda, &group, first_task(list, &group))?;
    }
    Ok(())
}

/// H = QᵀLQ of a group, and what the drift kernel makes of it.
fn drift(cuda: &Cuda, group: &Group, tasks: u64) -> Result<()> {
    let bench = cuda.bench(&Group { solver: group.statistic, ..group.clone() });
    let (s, n, none) = (index(group.statistic), group.n as u32, 0u64);
    let [a, q, t, _] = bench.matrices;
    launch!(cuda.engine.fetch[s][s], by_tile(group), cuda.stream, tasks, n, a, q, none)?;
    multiply(cuda, group, group.statistic, (a, false), (q, false), t)?;
    multiply(cuda, group, group.statistic, (q, true), (t, false), a)?;
    launch!(cuda.engine.drift[s], by_factor(group), cuda.stream, tasks, n, a, bench.weights)
}

/// Renews bases and spectra; the answers come with the next bulletin.
pub(super) fn refresh(cuda: &mut Cuda, orders: &[RefreshOrder]) -> Result<()> {
    if orders.is_empty() {
        return Ok(());
    }
    let shift = cuda.config.negative_eigenvalues == NegativeEigenvalues::Shift;
    let tasks: Vec<Task> = orders
        .iter()
        .map(|order| {
            let mut flags = if order.has_basis { task::HAS_BASIS } else { 0 };
            flags |= if shift { task::SHIFT } else { 0 };
            flags |= fault(order);
            Task { flags, report: cuda.renewal(order.factor), ..cuda.task(order.factor) }
        })
        .collect();
    let noise: Vec<Task> = orders
        .iter()
        .zip(&tasks)
        .map(|(order, own)| Task { epsilon: order.epsilon, flags: task::NOISE | task::GIVEN_EPSILON, ..*own })
        .collect();
    let list = cuda.send_tasks(List::Refresh, &tasks)?;
    let noise_list = if cuda.config.noise_floor { cuda.send_tasks(List::Noise, &noise)? } else { 0 };
    let factors: Vec<usize> = orders.iter().map(|order| order.factor).collect();
    let spoils = tasks.iter().any(|t| t.flags & task::SPOIL != 0);
    let doubled = |number: usize| orders[number].doubled.then_some(Precision::F64);
    for group in cuda.groups(&factors, doubled) {
        make_room(cuda, &group)?;
        decompose(cuda, &group, first_task(list, &group), spoils)?;
        if cuda.config.noise_floor {
            drift(cuda, &group, first_task(noise_list, &group))?;
        }
        let (tasks, n) = (first_task(list, &group), group.n as u32);
        launch!(cuda.engine.bounds[index(group.statistic)], by_factor(&group), cuda.stream, tasks, n)?;
    }
    Ok(())
}

/// Faults made on purpose, as far as this rung of the ladder has them.
fn fault(order: &RefreshOrder) -> i32 {
    match order.fault {
        InjectFault::EvdNonorthogonal if !order.doubled => task::SPOIL,
        InjectFault::EvdChosen if !order.doubled => task::FAIL,
        InjectFault::EvdDouble | InjectFault::EvdAll => task::FAIL,
        _ => 0,
    }
}

/// A single factor in double precision may need more room than the plan foresaw.
fn make_room(cuda: &mut Cuda, group: &Group) -> Result<()> {
    let bytes = Bench::bytes(group.n, group.solver.size(), group.tasks.len());
    if bytes > cuda.work.bytes() && !cuda.work.is_lent() {
        driver::wait_for(cuda.stream)?;
        cuda.work = Memory::new(&cuda.engine.device, bytes, cuda.allocator, "a refresh in double precision")?;
        cuda.stacks = cuda.bind();
    }
    Ok(())
}

/// Decomposes the statistics of a group; takes over what is sound.
fn decompose(cuda: &mut Cuda, group: &Group, tasks: u64, spoils: bool) -> Result<()> {
    let bench = cuda.bench(group);
    let [a, q, o, image] = bench.matrices;
    let (s, e) = (index(group.statistic), index(group.solver));
    let (stream, count, n, none) = (cuda.stream, group.tasks.len(), group.n as u32, 0u64);
    let (per_factor, per_tile) = (by_factor(group), by_tile(group));
    let engine = cuda.engine.clone();
    launch!(engine.peak[s], per_factor, stream, tasks, n, bench.scales)?;
    launch!(engine.fetch[s][e], per_tile, stream, tasks, n, a, none, bench.scales)?;
    launch!(engine.fetch[s][e], per_tile, stream, tasks, n, q, none, bench.scales)?;
    // Until the solver says otherwise, nothing has converged: a solver that fails costs no step.
    driver::fill(bench.infos, 0xff, count * 4, stream)?;
    let batch = batch(&bench, group);
    let solved = cuda.linear.prepare(&batch, cuda.allocator).and_then(|()| cuda.linear.decompose(&batch));
    if solved.is_err() {
        driver::fill(bench.infos, 0xff, count * 4, stream)?;
        driver::fill(bench.spectra, 0, count * group.n * group.solver.size(), stream)?;
    }
    if spoils {
        launch!(engine.spoil[e], per_factor, stream, tasks, n, q)?;
    }
    multiply(cuda, group, group.solver, (q, true), (q, false), o)?;
    multiply(cuda, group, group.solver, (a, false), (q, false), image)?;
    let (limit, rung) = (tolerance(group.solver), i32::from(group.solver != group.statistic));
    let (spectra, infos, scales) = (bench.spectra, bench.infos, bench.scales);
    launch!(engine.verify[e], per_factor, stream, tasks, n, a, q, o, image, spectra, infos, scales, limit)?;
    launch!(engine.adopt[s][e], per_tile, stream, tasks, n, q, spectra, scales, rung)
}

/// Forms inverse roots.
pub(super) fn redamp(cuda: &mut Cuda, orders: &[RedampOrder]) -> Result<()> {
    let tasks: Vec<Task> = orders
        .iter()
        .map(|order| {
            let mut flags = if order.adopt_diagonal { task::ADOPT_DIAGONAL } else { 0 };
            flags |= if order.fallback.is_some() { task::AFTER_REFRESH } else { 0 };
            Task {
                epsilon: order.epsilon,
                fallback: order.fallback.unwrap_or(order.epsilon),
                flags,
                report: cuda.renewal(order.factor),
                ..cuda.task(order.factor)
            }
        })
        .collect();
    let list = cuda.send_tasks(List::Redamp, &tasks)?;
    let factors: Vec<usize> = orders.iter().map(|order| order.factor).collect();
    for group in cuda.groups(&factors, |_| None) {
        let (bench, tasks) = (cuda.bench(&group), first_task(list, &group));
        let [b, product, ..] = bench.matrices;
        let (s, w, n) = (index(group.statistic), index(group.work), group.n as u32);
        let per_tile = by_tile(&group);
        launch!(cuda.engine.damp[s], by_factor(&group), cuda.stream, tasks, n, bench.weights)?;
        launch!(cuda.engine.weigh[s], per_tile, cuda.stream, tasks, n, bench.weights, b)?;
        multiply(cuda, &group, group.statistic, (b, false), (b, true), product)?;
        launch!(cuda.engine.root[s][w], per_tile, cuda.stream, tasks, n, product)?;
    }
    Ok(())
}
