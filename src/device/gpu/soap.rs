//! SOAP's verbs: `apply` runs Adam in the basis, `sense` measures κ, `refresh` makes the first basis by an
//! eigendecomposition and the later ones by a power iteration with QR, and turns the moments with them.

use super::Gpu;
use super::cuda::driver;
use super::cuda::linear::Batch as Matrices;
use super::factor::{self, Group, List, batch, by_factor, by_strip, by_tile, first_task, multiply};
use super::kernels::index;
use super::layout::{MOST_BLOCKS, Scratch, Turn, factor_bytes};
use super::step::{self, Along, Blocks, by_block, by_chunk, launch, multiply_along, turn, wide};
use super::tables::{Drift, THREADS, Task, task};
use crate::config::InjectFault;
use crate::device::{RefreshOrder, SenseOrder};
use crate::engine::plan::AxisView;
use crate::engine::rules::Rules;
use crate::error::{Kind, Result};
use crate::preconditioner::soap::Soap;
use crate::tensor::Precision;
use std::cmp::Reverse;
use std::ffi::c_void;

/// Moments in the basis, direction, parameter; with the statistics in the basis, those too. Nothing here waits, copies
/// or allocates.
pub(super) fn apply(gpu: &Gpu, rules: &Rules, soap: &Soap) -> Result<()> {
    let (stream, kernels, gate) = (gpu.stream, gpu.kernels.clone(), gpu.gate());
    let (in_basis, normalizes) = (i32::from(soap.in_basis), i32::from(soap.normalizes));
    for (number, (batch, view)) in gpu.layout.batches.iter().zip(&gpu.batches).enumerate() {
        let rules = step::rules_of(batch, rules);
        if !gpu.ticked {
            launch!(kernels.resume, step::each(batch.count()), stream, *view, rules)?;
        }
        launch!(kernels.soap.prepare, by_block(batch), stream, *view, rules, in_basis)?;
        let (w, s, grid) = (index(batch.work), index(batch.statistic), by_chunk(batch));
        let half = batch.count() * batch.elements * batch.work.size();
        let mut halves = [0, half].map(|x| view.work + x as u64);
        let turned = gpu.preconditioned[number];
        if turned {
            launch!(kernels.soap.load[w], grid, stream, *view, rules)?;
            turn(gpu, batch, view, Along::Into, &mut halves)?;
        }
        let projected = halves[0];
        if soap.in_basis && batch.preconditioned && gpu.adds {
            // The other half is free until the direction is turned back.
            let behind = view.work + 2 * half as u64;
            let bytes = (batch.count() * batch.elements * batch.statistic.size()) as u64;
            let (source, room) = if batch.statistic.size() <= batch.work.size() {
                (halves[1], behind)
            } else {
                (behind, behind + bytes)
            };
            launch!(kernels.soap.collect[s][w], grid, stream, *view, rules, projected, source)?;
            let each = wide(batch.count(), batch.dims.len(), batch.elements);
            launch!(kernels.rescale[s], each, stream, *view)?;
            step::add_statistics(gpu, batch, view, source, room)?;
        }
        launch!(kernels.soap.moments[w], grid, stream, *view, rules, projected, normalizes)?;
        if turned {
            turn(gpu, batch, view, Along::Back, &mut halves)?;
        }
        if turned || soap.normalizes {
            let direction = halves[0];
            launch!(kernels.soap.length, by_block(batch), stream, *view, gate, normalizes)?;
            launch!(kernels.soap.update[w], grid, stream, *view, rules, direction, normalizes)?;
        }
    }
    Ok(())
}

/// What is done with a statistic in the basis, whose clock carries nothing.
fn form(soap: &Soap) -> i32 {
    if soap.in_basis { task::PLAIN } else { 0 }
}

/// Measures κ of factors.
pub(super) fn sense(gpu: &mut Gpu, rules: &Rules, soap: &Soap, orders: &[SenseOrder]) -> Result<()> {
    let drifts = gpu.table(gpu.layout.tables.drifts);
    let own = |(number, order): (usize, &SenseOrder)| Task {
        flags: form(soap),
        report: drifts + (number * size_of::<Drift>()) as u64,
        ..gpu.task(order.factor, Some(rules))
    };
    let tasks: Vec<Task> = orders.iter().enumerate().map(own).collect();
    let list = gpu.send_tasks(List::Sense, &tasks)?;
    let factors: Vec<usize> = orders.iter().map(|order| order.factor).collect();
    for group in gpu.groups(&factors, |_| None) {
        let tasks = first_task(list, &group);
        let (scratch, h) = rotated(gpu, soap, &group, tasks)?;
        measure(gpu, &group, tasks, &scratch, h, 0)?;
    }
    Ok(())
}

/// κ of a group, H at `h`; with `orders` for a refresh, and the falling order of the diagonals goes there.
fn measure(gpu: &Gpu, group: &Group, tasks: u64, scratch: &Scratch, h: u64, orders: u64) -> Result<()> {
    let (s, n, partials, kernels) =
        (index(group.statistic), group.n as u32, scratch.partials, &gpu.kernels.soap);
    launch!(kernels.gauge[s], by_strip(group), gpu.stream, n, h, partials)?;
    launch!(kernels.judge_gauge[s], by_factor(group), gpu.stream, tasks, n, h, partials, orders)
}

/// The statistics of a group in their bases. With them in the parameter's axes the second matrices become Q and the
/// third A·Q.
fn rotated(gpu: &Gpu, soap: &Soap, group: &Group, tasks: u64) -> Result<(Scratch, u64)> {
    let scratch = gpu.scratch(group);
    let [a, q, image, h] = scratch.matrices;
    let (n, none) = (group.n as u32, 0u64);
    let fetch = gpu.kernels.soap.fetch[index(group.statistic)][index(group.work)];
    if soap.in_basis {
        launch!(fetch, by_tile(group), gpu.stream, tasks, n, a, none)?;
        return Ok((scratch, a));
    }
    launch!(fetch, by_tile(group), gpu.stream, tasks, n, a, q)?;
    multiply(gpu, group, group.statistic, (a, false), (q, false), image)?;
    multiply(gpu, group, group.statistic, (q, true), (image, false), h)?;
    Ok((scratch, h))
}

/// Factors of one axis of one stack that are refreshed together, all by the same way.
struct Part {
    group: Group,
    /// By an eigendecomposition.
    first: bool,
    /// Makes a basis orthonormal again.
    polishes: bool,
    axis: AxisView,
    blocks: Blocks,
    /// Whether its blocks have m, and v.
    moments: (bool, bool),
}

/// Cuts sorted orders into parts that fit into the workspace.
fn parts(gpu: &Gpu, orders: &[&RefreshOrder]) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let key = |order: &RefreshOrder| {
        let factor = &gpu.plan.factors[order.factor];
        (gpu.plan.blocks[factor.block].stack, factor.axis, is_first(order), order.doubled)
    };
    for (number, order) in orders.iter().enumerate() {
        let factor = &gpu.plan.factors[order.factor];
        let (param, block) = (gpu.plan.param_of(order.factor), &gpu.plan.blocks[factor.block]);
        let solver = if order.doubled { Precision::F64 } else { param.statistic };
        if let Some(last) = parts.last_mut().filter(|_| key(orders[number - 1]) == key(order)) {
            let count = last.blocks.count + 1;
            let bytes = factor_bytes(&gpu.plan, factor, solver.size(), count);
            if bytes <= gpu.work.bytes() && count < MOST_BLOCKS {
                last.group.tasks.end += 1;
                last.blocks.count = count;
                last.polishes |= order.polish;
                continue;
            }
        }
        parts.push(Part {
            group: Group {
                tasks: number..number + 1,
                n: factor.dim,
                statistic: param.statistic,
                work: param.work,
                solver,
            },
            first: is_first(order),
            polishes: order.polish,
            axis: AxisView::new(&block.dims, factor.axis),
            blocks: Blocks { count: 1, elements: block.elements },
            moments: (block.filter.is_some(), block.moment.is_some()),
        });
    }
    parts
}

/// Whether an order is for an eigendecomposition: of a factor without a basis, or whose first one failed, so that its
/// basis is still the identity.
fn is_first(order: &RefreshOrder) -> bool {
    !order.has_basis || order.doubled
}

/// Renews bases, and turns the moments with them; the answers stay on the device.
pub(super) fn refresh(gpu: &mut Gpu, rules: &Rules, soap: &Soap, orders: &[RefreshOrder]) -> Result<()> {
    let mut sorted: Vec<&RefreshOrder> = orders.iter().collect();
    sorted.sort_by_key(|order| {
        let factor = &gpu.plan.factors[order.factor];
        let block = &gpu.plan.blocks[factor.block];
        (Reverse(factor.dim), block.stack, factor.axis, is_first(order), order.doubled, block.place)
    });
    let own = |order: &&RefreshOrder| {
        let mut flags = form(soap);
        flags |= if order.has_basis { task::HAS_BASIS } else { 0 };
        flags |= if order.polish { task::POLISH } else { 0 };
        flags |= match is_first(order) {
            true => factor::fault(order),
            false if order.fault == InjectFault::EvdAll => task::FAIL,
            false => 0,
        };
        Task { flags, report: gpu.renewal(order.factor), ..gpu.task(order.factor, Some(rules)) }
    };
    let tasks: Vec<Task> = sorted.iter().map(own).collect();
    let list = gpu.send_tasks(List::Refresh, &tasks)?;
    let spoils = tasks.iter().any(|t| t.flags & task::SPOIL != 0);
    for part in parts(gpu, &sorted) {
        let group = &part.group;
        let tasks = first_task(list, group);
        let (scratch, z) = if part.first {
            first_basis(gpu, group, tasks, spoils)?
        } else if soap.in_basis {
            turn_in_basis(gpu, &part, soap, tasks)?
        } else {
            turn_exactly(gpu, group, soap, tasks)?
        };
        turn_moments(gpu, &part, &scratch, tasks, z)?;
    }
    Ok(())
}

/// Where the orders of the bases of a group lie: behind the roots.
fn orders_of(scratch: &Scratch, group: &Group) -> u64 {
    scratch.weights + (group.tasks.len() * group.n * 8) as u64
}

/// The first basis of the factors of a group, and what turns the moments into it: the same.
fn first_basis(gpu: &mut Gpu, group: &Group, tasks: u64, spoils: bool) -> Result<(Scratch, u64)> {
    let scratch = factor::solve(gpu, group, tasks, spoils)?;
    let [_, q, sorted, _] = scratch.matrices;
    let (s, w, e) = (index(group.statistic), index(group.work), index(group.solver));
    let (n, orders, rung) = (group.n as u32, orders_of(&scratch, group), group.rung());
    let (spectra, scales, kernels) = (scratch.spectra, scratch.scales, &gpu.kernels.soap);
    let grid = by_factor(group);
    launch!(kernels.sort[s][e], grid, gpu.stream, tasks, n, q, spectra, scales, sorted, orders, rung)?;
    launch!(kernels.take[s][w], by_tile(group), gpu.stream, tasks, n, sorted, scales)?;
    Ok((scratch, sorted))
}

/// κ, the new order, and the orthogonal factor of the columns of `from` in it: `to` becomes that; `room` is used.
fn orthogonal_factor(
    gpu: &mut Gpu,
    group: &Group,
    tasks: u64,
    scratch: &Scratch,
    h: u64,
    [from, to, room]: [u64; 3],
) -> Result<()> {
    let kernels = gpu.kernels.clone();
    let (s, n, stream, per_factor) = (index(group.statistic), group.n as u32, gpu.stream, by_factor(group));
    let (orders, scales, partials) = (orders_of(scratch, group), scratch.scales, scratch.partials);
    measure(gpu, group, tasks, scratch, h, orders)?;
    launch!(kernels.soap.reorder[s], per_factor, stream, from, n, to, orders, scales)?;
    // Until the solver says otherwise, nothing has succeeded: a solver that fails costs no step.
    let count = group.tasks.len();
    driver::fill(scratch.infos, 0xff, count * 4, stream)?;
    let matrices = Matrices { matrices: to, ..batch(scratch, group) };
    if let Err(cause) = gpu.linear.orthonormalize(&matrices) {
        // Out of memory is no matter of numbers: the caller has to know.
        if cause.kind == Kind::OutOfMemory {
            return Err(cause);
        }
        driver::fill(scratch.infos, 0xff, count * 4, stream)?;
    }
    multiply(gpu, group, group.statistic, (to, true), (to, false), room)?;
    let (infos, limit) = (scratch.infos, group.statistic.basis_tolerance());
    launch!(kernels.miss[s], by_strip(group), stream, n, room, partials)?;
    launch!(kernels.soap.judge, per_factor, stream, tasks, n, partials, infos, scales, limit)
}

/// Q ← QR(A·Q), its columns in the order of diag(QᵀAQ); gives Z = QᵀQ′, which turns what is in the old basis.
fn turn_exactly(gpu: &mut Gpu, group: &Group, soap: &Soap, tasks: u64) -> Result<(Scratch, u64)> {
    let (scratch, h) = rotated(gpu, soap, group, tasks)?;
    let [new, old, image, _] = scratch.matrices;
    orthogonal_factor(gpu, group, tasks, &scratch, h, [image, new, image])?;
    multiply(gpu, group, group.statistic, (old, true), (new, false), h)?;
    let (n, scales) = (group.n as u32, scratch.scales);
    let take = gpu.kernels.soap.take[index(group.statistic)][index(group.work)];
    launch!(take, by_tile(group), gpu.stream, tasks, n, new, scales)?;
    Ok((scratch, h))
}

/// Z = QR(H), its columns in the order of diag H; H ← ZᵀHZ and Q ← Q·Z. Gives Z.
fn turn_in_basis(gpu: &mut Gpu, part: &Part, soap: &Soap, tasks: u64) -> Result<(Scratch, u64)> {
    let group = &part.group;
    let (scratch, h) = rotated(gpu, soap, group, tasks)?;
    let [_, z, image, result] = scratch.matrices;
    orthogonal_factor(gpu, group, tasks, &scratch, h, [h, z, image])?;
    let (precision, kernels) = (group.statistic, gpu.kernels.clone());
    let (s, w, stream, per_tile) = (index(precision), index(group.work), gpu.stream, by_tile(group));
    let (n, scales, none) = (group.n as u32, scratch.scales, 0u64);
    multiply(gpu, group, precision, (h, false), (z, false), image)?;
    multiply(gpu, group, precision, (z, true), (image, false), result)?;
    launch!(kernels.soap.statistic[s], per_tile, stream, tasks, n, result, scales)?;
    let (old, new) = (h, image);
    launch!(kernels.soap.fetch[s][w], per_tile, stream, tasks, n, none, old)?;
    multiply(gpu, group, precision, (old, false), (z, false), new)?;
    launch!(kernels.soap.take[s][w], per_tile, stream, tasks, n, new, scales)?;
    if part.polishes {
        // Q ← 1.5·Q − 0.5·Q·QᵀQ.
        let (q, square, cube) = (h, image, result);
        launch!(kernels.soap.fetch[s][w], per_tile, stream, tasks, n, none, q)?;
        multiply(gpu, group, precision, (q, true), (q, false), square)?;
        multiply(gpu, group, precision, (q, false), (square, false), cube)?;
        launch!(kernels.soap.polish[s][w], per_tile, stream, tasks, n, q, cube, scales)?;
    }
    Ok((scratch, z))
}

/// m ← Zᵀm along the axis, and v takes the order of the new basis (an eigendecomposition leaves v).
fn turn_moments(gpu: &Gpu, part: &Part, scratch: &Scratch, tasks: u64, z: u64) -> Result<()> {
    let group = &part.group;
    let (blocks, work, count) = (part.blocks, group.work, group.tasks.len());
    let (s, w, n) = (index(group.statistic), index(work), group.n as u32);
    let end = Scratch::new(gpu.work.address(), group.n, group.solver.size(), count).1;
    let turn = Turn::new(end, group.n, blocks.elements, work.size(), count).0;
    let (kernels, stream, grid) = (&gpu.kernels.soap, gpu.stream, blocks.grid());
    let (elements, scales, orders) = (blocks.elements as u32, scratch.scales, orders_of(scratch, group));
    let (dim, inner) = (part.axis.dim as u32, part.axis.inner as u32);
    let [from, to] = turn.halves;
    if part.moments.0 {
        let matrices = turn.matrices;
        launch!(kernels.narrow[s][w], by_tile(group), stream, n, z, matrices)?;
        let second = 0i32;
        launch!(kernels.pick[w], grid, stream, tasks, elements, second, from)?;
        multiply_along(gpu, work, blocks, part.axis, (matrices, Along::Into), turn.halves, false)?;
        launch!(kernels.lay[w], grid, stream, tasks, elements, second, to, scales, dim, inner, orders)?;
    }
    if part.moments.1 && !part.first {
        let second = 1i32;
        launch!(kernels.pick[w], grid, stream, tasks, elements, second, from)?;
        launch!(kernels.lay[w], grid, stream, tasks, elements, second, from, scales, dim, inner, orders)?;
    }
    Ok(())
}

/// Chooses the records of pending refreshes.
pub(super) fn settle(gpu: &Gpu, pending: usize) -> Result<()> {
    if pending == 0 {
        return Ok(());
    }
    let choices = gpu.table(gpu.layout.tables.choices);
    launch!(gpu.kernels.soap.settle, wide(pending, 1, THREADS), gpu.stream, choices)
}
