//! A refresh by QR steps: Q ← qr(A·Q) from the stale basis, until the sandwich bound is at most τ. The factorization
//! is a Cholesky QR, because its parts (`potrf`, `trsm` and products) exist in batches at every side: see the head of
//! kernels/qr.cuh.
//!
//! The device decides about each factor by itself, and the host waits for nothing: a group takes a fixed number of
//! steps, of which a factor whose bound has come to τ takes no more. What they did not suffice for gets an
//! eigendecomposition at the next check, because no library call can be left out by the device; until then the basis
//! of the last step is in use, and the bound that was proven for it stands in the factor's record.

use super::Gpu;
use super::cuda::driver;
use super::cuda::linear::Side;
use super::factor::{
    Group, by_factor, by_strip, by_tile, certify, factorize, multiply, point, pointers, rotate,
};
use super::kernels::index;
use super::step::launch;
use super::tables::{Drift, Task, task};
use crate::device::{QrSteps, RefreshOrder};
use crate::error::Result;
use std::ffi::c_void;

/// The task of a factor that is refreshed by steps: order number `number` of the check.
pub(super) fn task(gpu: &Gpu, own: Task, order: &RefreshOrder, steps: QrSteps, number: usize) -> Task {
    Task {
        epsilon: order.base.floor,
        ratio: order.base.ratio,
        target: steps.target,
        // Of an older statistic nothing is known.
        kept: 0.0,
        flags: (own.flags & task::HAS_BASIS) | task::QR,
        // What was sensed in this check has been read.
        report: gpu.table(gpu.layout.tables.drifts + number * size_of::<Drift>()),
        renewal: gpu.renewal(order.factor),
        steps: steps.blind,
        ..own
    }
}

/// Takes up to `steps` steps with every factor of a group.
pub(super) fn refresh(gpu: &mut Gpu, group: &Group, tasks: u64, steps: i32) -> Result<()> {
    let n = group.n as u32;
    launch!(gpu.kernels.qr.start[index(group.statistic)], by_tile(group), gpu.stream, tasks, n)?;
    for _ in 0..steps {
        step(gpu, group, tasks)?;
    }
    Ok(())
}

fn step(gpu: &mut Gpu, group: &Group, tasks: u64) -> Result<()> {
    let scratch = rotate(gpu, group, tasks)?;
    let kernels = gpu.kernels.clone();
    let (precision, count, n, none) = (group.statistic, group.tasks.len(), group.n as u32, 0u64);
    let s = index(precision);
    let (stream, per_factor, per_tile) = (gpu.stream, by_factor(group), by_tile(group));
    let (orders, scales, infos) = (scratch.weights, scratch.scales, scratch.infos);
    let [h, q, new, room] = scratch.matrices;
    point(gpu, group, &scratch)?;
    // H + σI = L Lᵀ, the rows of L back in the order of Q; LᵀL = R Rᵀ with R lower, and Z = L R⁻ᵀ.
    launch!(kernels.qr.arrange[s], per_factor, stream, tasks, n, h, new, orders, scales)?;
    factorize(gpu, group, &scratch, 2, infos)?;
    launch!(kernels.qr.spread[s], per_tile, stream, n, new, room, orders)?;
    multiply(gpu, group, precision, (room, true), (room, false), new)?;
    factorize(gpu, group, &scratch, 2, infos + 4 * count as u64)?;
    gpu.linear.solve_lower(&pointers(group, &scratch, 2), scratch.list(3, count), Side::Right)?;
    // Q ← Q·Z, then 1.5·Q − 0.5·Q·QᵀQ.
    multiply(gpu, group, precision, (q, false), (room, false), new)?;
    multiply(gpu, group, precision, (new, true), (new, false), room)?;
    multiply(gpu, group, precision, (new, false), (room, false), h)?;
    launch!(kernels.qr.straighten[s], per_tile, stream, n, new, h)?;
    multiply(gpu, group, precision, (new, true), (new, false), room)?;
    let limit = precision.basis_tolerance();
    let partials = scratch.partials;
    launch!(kernels.miss[s], by_strip(group), stream, n, room, partials)?;
    launch!(kernels.qr.judge, per_factor, stream, tasks, n, partials, infos, scales, limit)?;
    // H in the new basis, from the statistic itself: the bound holds whatever gave the basis.
    launch!(kernels.fetch[s][s], per_tile, stream, tasks, n, h, none, none, none, none)?;
    multiply(gpu, group, precision, (h, false), (new, false), room)?;
    multiply(gpu, group, precision, (new, true), (room, false), h)?;
    certify(gpu, group, tasks, &scratch)?;
    launch!(kernels.qr.rule[s], per_factor, stream, tasks, n, scales)?;
    launch!(kernels.qr.take[s], per_tile, stream, tasks, n, new, scales)
}
