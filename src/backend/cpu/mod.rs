//! The CPU backend: faer for the products and decompositions, a private pool over fixed tasks.

mod accumulate;
mod apply;
mod bench;
mod bound;
mod evd;
pub mod gap;
mod geometry;
mod pool;
mod product;
mod real;
mod redamp;
mod refresh;
mod sense;

use super::{
    Backend, BlockOrder, Footprint, News, RedampOrder, RefreshOrder, Refreshed, SenseOrder, Tensors,
};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::memory::{Allocator, Arena};
use crate::optimizer::Clock;
use crate::optimizer::plan::{Plan, SlotId};
use crate::preconditioner::policy::Sensed;
use crate::tensor::Precision;
use bench::{Bench, BenchShape};
use geometry::Walks;
use parking_lot::Mutex;
use pool::Workers;
use std::sync::Arc;

/// Calls a function that is generic over the work and the statistic precision.
macro_rules! by_precision {
    ($param:expr, $function:ident ( $($argument:expr),* $(,)? )) => {
        match ($param.work, $param.statistic) {
            (Precision::F32, Precision::F32) => $function::<f32, f32>($($argument),*),
            (Precision::F32, Precision::F64) => $function::<f32, f64>($($argument),*),
            (Precision::F64, Precision::F32) => $function::<f64, f32>($($argument),*),
            (Precision::F64, Precision::F64) => $function::<f64, f64>($($argument),*),
        }
    };
}
use by_precision;

/// Numbers that tasks write, each its own place.
#[derive(Clone, Copy)]
struct Places<T>(*mut T);

// SAFETY: every task writes places that no other task of the same phase touches.
unsafe impl<T> Sync for Places<T> {}

impl<T> Places<T> {
    /// # Safety
    /// `place` is within the buffer, and no other task touches it in this phase.
    unsafe fn put(&self, place: usize, value: T) {
        // SAFETY: the caller's contract.
        unsafe { self.0.add(place).write(value) }
    }

    /// # Safety
    /// As [`Places::put`].
    #[allow(clippy::mut_from_ref)]
    unsafe fn get(&self, place: usize) -> &mut T {
        // SAFETY: the caller's contract.
        unsafe { &mut *self.0.add(place) }
    }
}

/// What tasks share: the plan, the options, and where the buffers are.
struct Floor {
    plan: Arc<Plan>,
    config: Config,
    walks: Walks,
    /// Address of every state buffer.
    slots: Vec<*mut u8>,
    /// First byte of the workspace of the blocks.
    work: *mut u8,
    /// Offset of each factor's sensed diagonal.
    diagonal_offsets: Vec<usize>,
}

// SAFETY: addresses; who reads or writes through them keeps order.
unsafe impl Send for Floor {}
// SAFETY: as above.
unsafe impl Sync for Floor {}

impl Floor {
    /// The state buffer `slot`.
    fn slot<T>(&self, slot: SlotId) -> *mut T {
        debug_assert_eq!(self.plan.slots[slot].precision.size(), size_of::<T>());
        debug_assert!(!self.slots[slot].is_null(), "a verb uses a buffer that was not given");
        self.slots[slot].cast()
    }

    /// The workspace of `block`.
    fn work<T>(&self, block: usize) -> *mut T {
        // SAFETY: the offset lies within the workspace, by the walks.
        unsafe { self.work.add(self.walks.work_offsets[block]).cast() }
    }
}

/// What a backend of an optimizer handle owns; one that works on a caller's memory owns nothing.
struct Own {
    state: Arena,
    work: Arena,
    benches: Arena,
}

/// The CPU.
pub struct Cpu {
    floor: Floor,
    own: Option<Own>,
    workers: Workers,
    /// Sizes of a bench.
    shape: BenchShape,
    /// One for each factor that can be worked on at the same time.
    benches: Vec<Mutex<Bench>>,
    /// Sums of the elementwise tasks.
    chunk_sums: Vec<f64>,
    /// Sums of the final product's tiles.
    tile_sums: Vec<f64>,
    /// What each block's direction is multiplied by in the current step.
    lengths: Vec<f64>,
    /// Whether each block's direction was left out of its last update.
    left_out: Vec<bool>,
    /// Order of each block in the current step.
    order_of: Vec<Option<u32>>,
    /// diag QᵀLQ of every factor, as last sensed (only for the policy that adopts it).
    diagonals: Vec<f64>,
}

impl Cpu {
    /// State and workspace for `plan`, all zero.
    pub fn new(plan: Arc<Plan>, config: &Config, allocator: Allocator) -> Result<Cpu> {
        let mut cpu = Cpu::without_memory(plan, config, Workers::own(config.num_threads as usize));
        let plan = &cpu.floor.plan;
        let state = Arena::zeroed(plan.state_bytes, allocator, "the optimizer's state")?;
        let work = Arena::zeroed(cpu.floor.walks.work_bytes, allocator, "the workspace")?;
        let bytes = cpu.benches.len() * cpu.shape.bytes();
        let benches = Arena::zeroed(bytes, allocator, "the workspace of a check")?;
        for (address, slot) in cpu.floor.slots.iter_mut().zip(&plan.slots) {
            // SAFETY: the offset lies within the state, by the plan.
            *address = unsafe { state.as_ptr().add(slot.offset) };
        }
        cpu.floor.work = work.as_ptr();
        cpu.place_benches(benches.as_ptr());
        cpu.own = Some(Own { state, work, benches });
        Ok(cpu)
    }

    /// A backend for `plan` that has no state and no workspace yet.
    fn without_memory(plan: Arc<Plan>, config: &Config, workers: Workers) -> Cpu {
        let walks = Walks::new(&plan);
        let mut diagonal_offsets = Vec::with_capacity(plan.factors.len());
        let mut diagonals = 0;
        for factor in &plan.factors {
            diagonal_offsets.push(diagonals);
            diagonals +=
                if config.policy == crate::config::Policy::DiagonalResidual { factor.dim } else { 0 };
        }
        let shape = BenchShape::new(&plan);
        let benches = workers.threads().min(plan.factors.len());
        Cpu {
            own: None,
            workers,
            benches: (0..benches).map(|_| Mutex::new(Bench::new(shape))).collect(),
            shape,
            chunk_sums: vec![0.0; walks.chunks.len()],
            tile_sums: vec![0.0; walks.partials],
            lengths: vec![0.0; plan.blocks.len()],
            left_out: vec![false; plan.blocks.len()],
            order_of: vec![None; plan.blocks.len()],
            diagonals: vec![0.0; diagonals],
            floor: Floor {
                slots: vec![std::ptr::null_mut(); plan.slots.len()],
                work: std::ptr::null_mut(),
                plan,
                config: config.clone(),
                walks,
                diagonal_offsets,
            },
        }
    }

    /// Puts the benches side by side at `memory`, which has room for all of them.
    fn place_benches(&mut self, memory: *mut u8) {
        for (number, bench) in self.benches.iter_mut().enumerate() {
            bench.get_mut().place(memory.wrapping_add(number * self.shape.bytes()));
        }
    }

    fn take_orders(&mut self, orders: &[BlockOrder]) {
        self.order_of.fill(None);
        for (number, order) in orders.iter().enumerate() {
            self.order_of[order.block] = Some(number as u32);
        }
    }

    /// Runs `body` for every factor of a list, one factor a thread, each with a bench of its own.
    fn each_factor(&mut self, count: usize, body: &(dyn Fn(&Floor, usize, &mut Bench) + Sync)) {
        let (floor, benches) = (&self.floor, &self.benches);
        self.workers.run(count, count > 1, &|task, _| {
            // At most min(threads, factors) tasks run at once, and there are as many benches: one is
            // always free.
            let mut bench = benches.iter().cycle().find_map(|bench| bench.try_lock());
            if let Some(bench) = bench.as_mut() {
                body(floor, task, bench);
            }
        });
    }
}

impl Backend for Cpu {
    fn inspect(&mut self, tensors: &Tensors, orders: &mut [BlockOrder], _: bool) -> Result<()> {
        accumulate::inspect(self, tensors, orders);
        Ok(())
    }

    fn accumulate(&mut self, tensors: &Tensors, orders: &[BlockOrder]) -> Result<()> {
        accumulate::accumulate(self, tensors, orders);
        Ok(())
    }

    fn sense(&mut self, orders: &[SenseOrder], sensed: &mut [Sensed], _: &mut News) -> Result<()> {
        sense::sense(self, orders, sensed);
        Ok(())
    }

    fn refresh(&mut self, orders: &[RefreshOrder], refreshed: &mut [Option<Refreshed>]) -> Result<()> {
        refresh::refresh(self, orders, refreshed);
        Ok(())
    }

    fn redamp(&mut self, orders: &[RedampOrder]) -> Result<()> {
        redamp::redamp(self, orders);
        Ok(())
    }

    fn apply(&mut self, tensors: &Tensors, orders: &[BlockOrder]) -> Result<usize> {
        Ok(apply::apply(self, tensors, orders))
    }

    fn settle(&mut self, _: &mut News) -> Result<()> {
        Ok(())
    }

    fn forgive(&mut self) {}

    fn read(&mut self, slot: SlotId, bytes: &mut [u8]) -> Result<()> {
        let source = self.buffer(slot, bytes.len())?;
        // SAFETY: `buffer` checked the length.
        unsafe { std::ptr::copy_nonoverlapping(source, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn write(&mut self, slot: SlotId, bytes: &[u8]) -> Result<()> {
        let target = self.buffer(slot, bytes.len())?;
        // SAFETY: `buffer` checked the length.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
        Ok(())
    }

    fn restore(&mut self, _: &[Clock], _: &[f64]) -> Result<()> {
        Ok(())
    }

    fn set_config(&mut self, config: &Config, plan: &Arc<Plan>) {
        self.floor.config = config.clone();
        self.floor.plan = plan.clone();
    }

    fn footprint(&self) -> Footprint {
        Footprint {
            state_host: self.own.as_ref().map_or(0, |own| own.state.bytes()),
            state_device: 0,
            workspace: self.own.as_ref().map_or(0, |own| own.work.bytes() + own.benches.bytes()),
            threads: self.workers.threads(),
        }
    }

    fn bound(&mut self) -> Option<&mut dyn super::bound::Bound> {
        Some(self)
    }
}

impl Cpu {
    fn buffer(&self, slot: SlotId, len: usize) -> Result<*mut u8> {
        let plan = &self.floor.plan.slots[slot];
        if plan.bytes() != len {
            return Err(Error::invalid(format!("a state buffer has {} bytes, not {len}", plan.bytes())));
        }
        Ok(self.floor.slots[slot])
    }
}
