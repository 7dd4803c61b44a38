//! The verbs of every step: inspect, accumulate, apply. Nothing here waits, copies or allocates.

use super::driver::{self, Function, Grid};
use super::kernels::index;
use super::linear::{Operand, Shape};
use super::stacks::{CHUNK, StackPlan};
use super::tables::{ORDER_BYTES, POSTED, Rules, Site, Stack, THREADS, Time, element_code};
use super::{BlockOrder, Cuda, Tensors};
use crate::backend::Direction;
use crate::config::{Cadence, Choice, Grafting};
use crate::error::{Error, Result};
use crate::tensor::{DType, Precision};
use cudarc::driver::sys::CUstream;
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
fn by_chunk(stack: &StackPlan) -> Grid {
    wide(stack.chunks(), stack.blocks.len(), stack.elements)
}

/// One thread block for each block, which looks at its chunks.
fn by_block(stack: &StackPlan) -> Grid {
    wide(stack.blocks.len(), 1, stack.chunks())
}

pub(super) const SINGLE: Grid = Grid { blocks: (1, 1), threads: 1 };

impl Cuda {
    /// The stacks as the kernels see them, at their addresses.
    pub(super) fn bind(&self) -> Vec<Stack> {
        let (tables, sections) = (self.tables.address(), &self.layout.tables);
        let stacks = self.layout.stacks.iter().zip(&self.layout.partials);
        stacks
            .map(|(stack, partials)| {
                let block = &self.plan.blocks[stack.blocks[0]];
                let at = |section: usize, size: usize| tables + (section + stack.first * size) as u64;
                let state = |slot: Option<usize>| slot.map_or(0, |slot| self.slot(slot));
                let mut view = Stack {
                    count: stack.blocks.len() as i32,
                    order: stack.dims.len() as i32,
                    chunks: stack.chunks() as i32,
                    factors: if stack.preconditioned { stack.dims.len() as i32 } else { 0 },
                    elements: stack.elements as u32,
                    chunk: CHUNK as u32,
                    param_dtype: element_code(stack.dtype),
                    contiguous: i32::from(stack.is_contiguous()),
                    sites: at(sections.sites, size_of::<Site>()),
                    params: at(sections.params, 4),
                    clocks: self.clocks + (stack.first * size_of::<Time>()) as u64,
                    orders: at(sections.orders, ORDER_BYTES),
                    partials: tables + (sections.partials + partials * 8) as u64,
                    squares: at(sections.squares, 8),
                    info: self.infos + (stack.first * 4) as u64,
                    filter: state(block.filter),
                    moment: state(block.moment),
                    momentum: state(block.momentum),
                    work: self.work.address(),
                    ..Stack::default()
                };
                for (axis, dim) in stack.dims.iter().enumerate() {
                    view.dims[axis] = *dim as u32;
                    view.strides[axis] = stack.strides[axis] as u64;
                }
                for (axis, factor) in self.plan.factors[block.factors.clone()].iter().enumerate() {
                    view.statistics[axis] = self.slot(factor.statistic);
                }
                view
            })
            .collect()
    }

    /// The hyperparameters of a step, for a stack.
    pub(super) fn rules(&self, stack: &StackPlan, order: &BlockOrder) -> Rules {
        let config = &self.config;
        let narrow = stack.work == Precision::F32 || stack.statistic == Precision::F32;
        let corrects = |enabled: bool, beta: f64| i32::from(enabled && beta > 0.0 && beta < 1.0);
        Rules {
            betas: [config.beta1, config.beta2, config.beta1.ln(), config.beta2.ln()],
            grafting_beta2: [config.grafting_beta2, config.grafting_beta2.ln()],
            grafting_epsilon: config.grafting_epsilon,
            momentum: config.momentum,
            lr: order.step_lr,
            grad_scale: order.grad_scale,
            largest: if narrow { f64::from(f32::MAX) } else { f64::MAX } / 32.0,
            first_check: config.first_check(),
            grafting: config.grafting.number(),
            normalized: i32::from(config.normalized_grafting),
            nadam: i32::from(config.nadam),
            nesterov: i32::from(config.nesterov),
            ema_momentum: i32::from(config.ema_momentum),
            decoupled: i32::from(config.decoupled_weight_decay),
            corrections: [
                corrects(config.bias_correction, config.beta1),
                corrects(config.bias_correction, config.beta2),
                corrects(config.grafting == Grafting::Adam, config.grafting_beta2),
            ],
            paper: i32::from(config.cadence == Cadence::Paper),
        }
    }
}

/// Looks at every gradient; the device decides whether the step is taken.
pub(super) fn inspect(cuda: &mut Cuda, tensors: &Tensors, orders: &[BlockOrder]) -> Result<()> {
    let Some(first) = orders.first().copied() else { return Ok(()) };
    find_sites(cuda, tensors, orders)?;
    let stream = cuda.stream;
    if cuda.last != Some(stream) {
        cuda.ready.before(stream)?;
        cuda.linear.follow(stream)?;
        cuda.last = Some(stream);
    }
    cuda.dirty = true;
    post_sites(cuda, stream)?;
    let engine = cuda.engine.clone();
    let (gate, forgive, strict) =
        (cuda.gate(), i32::from(std::mem::take(&mut cuda.forgive)), i32::from(cuda.strict()));
    launch!(engine.begin, SINGLE, stream, gate, forgive)?;
    measure(cuda, &first, gate)?;
    launch!(engine.judge, SINGLE, stream, gate, strict)
}

/// The squared norms of all gradients. What is not finite closes the gate, if there is one.
pub(super) fn measure(cuda: &Cuda, order: &BlockOrder, gate: u64) -> Result<()> {
    for (stack, view) in cuda.layout.stacks.iter().zip(&cuda.stacks) {
        let rules = cuda.rules(stack, order);
        launch!(cuda.engine.inspect[index(stack.work)], by_chunk(stack), cuda.stream, *view, rules)?;
        launch!(cuda.engine.total, by_block(stack), cuda.stream, *view, rules, gate)?;
    }
    Ok(())
}

/// The sites that this step wants, each checked the first time it is seen.
fn find_sites(cuda: &mut Cuda, tensors: &Tensors, orders: &[BlockOrder]) -> Result<()> {
    cuda.wanted.copy_from_slice(&cuda.sites);
    cuda.wanted.iter_mut().for_each(|site| site.active = 0);
    for order in orders {
        let block = &cuda.plan.blocks[order.block];
        let Some(grad) = tensors.grads[block.param] else { continue };
        let param = tensors.params[block.param];
        let (stack, index) = cuda.layout.place[order.block];
        let at = |data: *mut u8, dtype: DType| data as u64 + (block.offset * dtype.size()) as u64;
        let site = Site {
            param: at(param.data, param.dtype),
            grad: at(grad.data, grad.dtype),
            lr_scale: cuda.plan.params[block.param].spec.lr_scale,
            decay: order.coupled_decay + order.decoupled_decay,
            grad_dtype: element_code(grad.dtype),
            active: 1,
        };
        let number = cuda.layout.stacks[stack].first + index;
        let known = &cuda.sites[number];
        for (what, address, dtype, seen) in [
            ("parameter", site.param, param.dtype, known.param),
            ("gradient of parameter", site.grad, grad.dtype, known.grad),
        ] {
            if address != seen {
                check_address(cuda, what, address, dtype, block.param)?;
            }
        }
        cuda.wanted[number] = site;
    }
    Ok(())
}

fn check_address(cuda: &Cuda, what: &str, address: u64, dtype: DType, param: usize) -> Result<()> {
    let name = &cuda.plan.params[param].spec.name;
    let ordinal = cuda.engine.device.ordinal();
    if !address.is_multiple_of(dtype.size() as u64) {
        return Err(Error::invalid(format!(
            "{what} '{name}': address {address:#x}: expected a multiple of {}, the size of {}",
            dtype.size(),
            dtype.name()
        ))
        .at(param));
    }
    match driver::owner(address) {
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

/// Brings the sites that changed to the device, inside the launches themselves.
fn post_sites(cuda: &mut Cuda, stream: CUstream) -> Result<()> {
    let table = cuda.tables.address() + cuda.layout.tables.sites as u64;
    for first in (0..cuda.wanted.len()).step_by(POSTED) {
        let end = (first + POSTED).min(cuda.wanted.len());
        if cuda.wanted[first..end] == cuda.sites[first..end] {
            continue;
        }
        let mut posted = [Site::default(); POSTED];
        posted[..end - first].copy_from_slice(&cuda.wanted[first..end]);
        let (from, count) = (first as i32, (end - first) as i32);
        let grid = Grid { blocks: (1, 1), threads: POSTED };
        launch!(cuda.engine.post, grid, stream, table, from, count, posted)?;
        cuda.sites[first..end].copy_from_slice(&posted[..end - first]);
    }
    Ok(())
}

/// The clocks go on, and the statistics take in the gradient.
pub(super) fn accumulate(cuda: &Cuda, first: &BlockOrder, gate: u64) -> Result<()> {
    let (stream, engine) = (cuda.stream, cuda.engine.clone());
    for (stack, view) in cuda.layout.stacks.iter().zip(&cuda.stacks) {
        let rules = cuda.rules(stack, first);
        let count = stack.blocks.len();
        launch!(engine.tick, each(count), stream, *view, rules, gate)?;
        if !stack.preconditioned {
            continue;
        }
        let s = index(stack.statistic);
        launch!(engine.rescale[s], wide(count, stack.dims.len(), stack.elements), stream, *view)?;
        launch!(engine.gather[s], by_chunk(stack), stream, *view, rules)?;
        for axis in 0..stack.dims.len() {
            add_statistic(cuda, stack, view, axis)?;
        }
    }
    Ok(())
}

/// A block seen along one axis: `outer` slices of `dim` rows and `inner` columns.
#[derive(Clone, Copy)]
struct View {
    outer: usize,
    dim: usize,
    inner: usize,
}

impl View {
    fn new(dims: &[usize], axis: usize) -> View {
        View {
            outer: dims[..axis].iter().product(),
            dim: dims[axis],
            inner: dims[axis + 1..].iter().product(),
        }
    }

    fn is_middle(&self) -> bool {
        self.outer > 1 && self.inner > 1
    }
}

/// Unfolds every block of a stack from one place of the workspace to another.
fn unfold(
    cuda: &Cuda,
    precision: Precision,
    stack: &StackPlan,
    from: u64,
    to: u64,
    view: View,
) -> Result<()> {
    let grid = by_chunk(stack);
    let numbers = [stack.elements, view.outer, view.dim, view.inner].map(|x| x as u32);
    let [elements, outer, dim, inner] = numbers;
    let function: Function = cuda.engine.unfold[index(precision)];
    launch!(function, grid, cuda.stream, from, to, elements, outer, dim, inner)
}

/// Statistic += U Uᵀ, U the unfolding of the gathered gradient along `axis`.
fn add_statistic(cuda: &Cuda, stack: &StackPlan, stacked: &Stack, axis: usize) -> Result<()> {
    let (precision, count) = (stack.statistic, stack.blocks.len());
    let view = View::new(&stack.dims, axis);
    let mut source = stacked.work;
    if view.is_middle() {
        source += (count * stack.elements * precision.size()) as u64;
        unfold(cuda, precision, stack, stacked.work, source, view)?;
    }
    let n = view.dim;
    let k = stack.elements / n;
    // The last axis lies along the columns of the column-major view, every other one along its rows.
    let along_columns = view.inner == 1;
    let lead = if along_columns { n } else { k };
    let own = |transposed| Operand { at: source, lead, stride: stack.elements, transposed };
    let target = Operand { at: stacked.statistics[axis], lead: n, stride: n * n, transposed: false };
    if count == 1 {
        return cuda.linear.add_square(precision, n, k, own(!along_columns), target);
    }
    cuda.linear.multiply(
        precision,
        Shape { m: n, n, k, count },
        own(!along_columns),
        own(along_columns),
        target,
        true,
    )
}

/// Moments, direction, momentum, parameter.
pub(super) fn apply(cuda: &mut Cuda, orders: &[BlockOrder]) -> Result<()> {
    let Some(first) = orders.first() else { return Ok(()) };
    // The host's clocks are never behind the device's: where it sees no inverse roots, there are none.
    cuda.preconditioned.fill(false);
    for order in orders.iter().filter(|o| o.direction == Direction::Preconditioned) {
        cuda.preconditioned[cuda.layout.place[order.block].0] = true;
    }
    update(cuda, first, cuda.gate())
}

/// The same for the stacks that are marked as preconditioned and for the others.
pub(super) fn update(cuda: &Cuda, first: &BlockOrder, gate: u64) -> Result<()> {
    let (stream, engine) = (cuda.stream, cuda.engine.clone());
    for (number, (stack, view)) in cuda.layout.stacks.iter().zip(&cuda.stacks).enumerate() {
        let rules = cuda.rules(stack, first);
        let (w, grid) = (index(stack.work), by_chunk(stack));
        launch!(engine.filter[w], grid, stream, *view, rules)?;
        if !cuda.preconditioned[number] {
            continue;
        }
        let mut halves =
            [0, stack.blocks.len() * stack.elements * stack.work.size()].map(|x| view.work + x as u64);
        for axis in 0..stack.dims.len() {
            precondition(cuda, stack, axis, halves)?;
            halves.swap(0, 1);
        }
        let direction = halves[0];
        launch!(engine.norm[w], grid, stream, *view, direction)?;
        launch!(engine.length, by_block(stack), stream, *view, rules, gate)?;
        launch!(engine.update[w], grid, stream, *view, rules, direction)?;
    }
    Ok(())
}

/// Inverse root × block along `axis`, from the first half of the workspace to the second.
fn precondition(cuda: &Cuda, stack: &StackPlan, axis: usize, [from, to]: [u64; 2]) -> Result<()> {
    let (precision, count) = (stack.work, stack.blocks.len());
    let view = View::new(&stack.dims, axis);
    let n = view.dim;
    let factor = &cuda.plan.factors[cuda.plan.blocks[stack.blocks[0]].factors.start + axis];
    let root = Operand { at: cuda.slot(factor.inverse_root), lead: n, stride: n * n, transposed: false };
    let rest = stack.elements / n;
    let matrix = |at, lead| Operand { at, lead, stride: stack.elements, transposed: false };
    if view.is_middle() {
        // Unfolded, multiplied and folded again: three launches whatever the number of slices.
        unfold(cuda, precision, stack, from, to, view)?;
        let shape = Shape { m: rest, n, k: n, count };
        cuda.linear.multiply(precision, shape, matrix(to, rest), root, matrix(from, rest), false)?;
        return unfold(
            cuda,
            precision,
            stack,
            from,
            to,
            View { outer: n, dim: view.outer, inner: view.inner },
        );
    }
    if view.inner == 1 {
        let shape = Shape { m: n, n: rest, k: n, count };
        return cuda.linear.multiply(precision, shape, root, matrix(from, n), matrix(to, n), false);
    }
    let shape = Shape { m: rest, n, k: n, count };
    cuda.linear.multiply(precision, shape, matrix(from, rest), root, matrix(to, rest), false)
}

/// The host has read the gate: what it said is news no more.
pub(super) fn heard(cuda: &Cuda, stream: CUstream) -> Result<()> {
    let gate = cuda.gate();
    launch!(cuda.engine.heard, SINGLE, stream, gate)
}
