//! The CPU: faer for the products and decompositions, but for the eigendecomposition in single precision; a pool over
//! fixed tasks. Every verb is done when it returns.

mod accumulate;
mod apply;
mod background;
mod certificate;
mod evd;
pub mod gap;
mod inverse;
mod lanes;
mod lower;
mod passes;
mod phases;
mod pool;
mod product;
mod qr;
mod real;
mod redamp;
mod refresh;
mod scratch;
mod sense;
mod soap;
mod square;
mod sweep;
mod thread;
mod vectors;
mod walks;

use super::{
    Binding, Device, Footprint, INFO_FELL_BACK, Inspection, Pending, Readback, RedampOrder, RefreshOrder,
    Refreshed, Rung, SenseOrder, SharedSquare, Site, Sites,
};
use crate::engine::plan::{ParamPlan, Plan, SlotId};
use crate::engine::rules::{Clock, Rules};
use crate::error::{Error, Result};
use crate::memory::{ALIGNMENT, Allocator, Arena, Counted, filled, reserved, tried};
use crate::preconditioner::policy::Sensed;
use crate::preconditioner::{FactorRecord, Preconditioner};
use crate::tensor::Precision;
use background::Background;
use parking_lot::Mutex;
use pool::Workers;
pub use product::kernels;
use scratch::{Scratch, ScratchShape};
use vectors::Gathered;
use walks::Walks;

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
    /// The address of `place`.
    fn at(&self, place: usize) -> *mut T {
        self.0.wrapping_add(place)
    }

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

/// How the direction of a block comes about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Direction {
    /// The block takes no part.
    #[default]
    None,
    /// Inverse roots times the filtered gradient, with the grafted method's length.
    Preconditioned,
    /// Adam in the basis.
    Rotated,
    /// The grafted method's own step.
    Grafted,
    /// No direction: only decay and momentum act.
    Zero,
}

/// What the step under way does with one block.
#[derive(Clone, Copy, Debug, Default)]
struct BlockStep {
    /// Its gradient enters its statistics.
    accumulates: bool,
    /// How its direction comes about.
    direction: Direction,
    /// See [`crate::engine::rules::Tick`].
    decay: f64,
    /// As `decay`.
    gain: f64,
    /// The filtered gradient is divided by it.
    filter_divisor: f64,
    /// The grafted moment is divided by it.
    moment_divisor: f64,
    /// ‖G‖².
    squared_norm: f64,
    /// Multiplies the gradient that enters the grafted moment.
    normalize: f64,
    /// Added to the root of the grafted moment.
    moment_epsilon: f64,
    /// Multiplies the direction.
    length: f64,
}

/// What tasks share: the plan, where the state and the caller's memory are, and the workspace.
struct Shared {
    plan: Counted<Plan>,
    walks: Walks,
    /// Address of every array of the state.
    arrays: Vec<u64>,
    /// The caller's memory, by block.
    sites: Vec<Site>,
    /// First byte of the workspace of the blocks.
    work: *mut u8,
    /// Offset of each factor's sensed diagonal.
    diagonal_offsets: Vec<usize>,
}

// SAFETY: addresses; who reads or writes through them keeps order.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// The numbers of `slot`, which has to be there.
    fn slot<T>(&self, slot: impl Into<Option<SlotId>>) -> *mut T {
        let slot = slot.into().expect("a verb uses an array that its preconditioner does not keep");
        debug_assert_eq!(self.plan.slots[slot].precision.size(), size_of::<T>());
        let (array, offset) = self.plan.place_of(slot);
        debug_assert!(self.arrays[array] != 0, "a verb uses an array that was not given");
        (self.arrays[array] + offset as u64) as *mut T
    }

    /// The parameter of `block`.
    fn param(&self, block: usize) -> &ParamPlan {
        &self.plan.params[self.plan.blocks[block].param]
    }

    fn clock_address(&self, block: usize) -> *mut Clock {
        let plan = &self.plan.blocks[block];
        let clocks = self.arrays[self.plan.stacks[plan.stack].arrays.start] as *mut Clock;
        clocks.wrapping_add(plan.place)
    }

    /// The clock of `block`.
    fn clock(&self, block: usize) -> Clock {
        // SAFETY: the first array of a stack holds the clocks of its blocks; a caller's may lie anywhere.
        unsafe { self.clock_address(block).read_unaligned() }
    }

    fn set_clock(&self, block: usize, clock: Clock) {
        // SAFETY: as in `clock`; one thread writes clocks.
        unsafe { self.clock_address(block).write_unaligned(clock) }
    }

    fn record_address(&self, factor: usize) -> *mut FactorRecord {
        let plan = &self.plan.factors[factor];
        let block = &self.plan.blocks[plan.block];
        let records = self.arrays[self.plan.stacks[block.stack].arrays.start + 1] as *mut FactorRecord;
        if records.is_null() {
            return records;
        }
        records.wrapping_add(block.place * block.dims.len() + plan.axis)
    }

    /// The record of `factor`.
    fn record(&self, factor: usize) -> FactorRecord {
        // SAFETY: the second array of a stack with factors holds their records; a caller's may lie anywhere.
        unsafe { self.record_address(factor).read_unaligned() }
    }

    /// Whether all inverse roots of `block` have been formed: the diagonal of a formed one (or its eigenvalues) is
    /// positive, and one that never was is zero.
    fn has_roots(&self, block: usize) -> bool {
        let work = self.param(block).work;
        let formed = |factor: usize| {
            let plan = &self.plan.factors[factor];
            let slot = plan.inverse_root.or(plan.root_spectrum).or(plan.root_diagonal);
            let Some(slot) = slot else { return false };
            // SAFETY: an inverse root has at least one number.
            unsafe {
                match work {
                    Precision::F32 => self.slot::<f32>(slot).read() != 0.0,
                    Precision::F64 => self.slot::<f64>(slot).read() != 0.0,
                }
            }
        };
        let mut factors = self.plan.blocks[block].factors.clone();
        !factors.is_empty() && factors.all(formed)
    }

    /// The workspace of `block`.
    fn work<T>(&self, block: usize) -> *mut T {
        // SAFETY: the offset lies within the workspace, by the walks.
        unsafe { self.work.add(self.walks.work_offsets[block]).cast() }
    }
}

/// Memory in which a product brings an inverse root together.
struct Room {
    memory: *mut u8,
    /// The factor whose inverse root is there, and which rows of it, while its axis is worked on.
    holds: Option<(usize, std::ops::Range<usize>)>,
}

// SAFETY: who holds the lock of a room has its memory.
unsafe impl Send for Room {}

/// Memory that the device owns; on a borrowed state it owns nothing.
struct Own {
    state: Arena,
    work: Arena,
    scratches: Arena,
}

/// The CPU.
pub struct Cpu {
    /// Refreshes ahead of time, of an owned state whose refreshes are delayed. It comes before the memory that it reads.
    background: Option<Background>,
    shared: Shared,
    own: Option<Own>,
    /// Gradients of vectors that their statistics have not taken yet, of an owned state.
    gathered: Option<Gathered>,
    workers: Workers,
    /// Sizes of a factor's scratch.
    shape: ScratchShape,
    /// One for each factor that can be worked on at the same time.
    scratches: Vec<Mutex<Scratch>>,
    /// One for each product that can take an inverse root from a shared square at the same time. In an owned state they
    /// lie in the scratches' memory, which no product of a step uses.
    rooms: Vec<Mutex<Room>>,
    /// Sums of the elementwise tasks.
    chunk_sums: Vec<f64>,
    /// Sums of the final product's tiles.
    tile_sums: Vec<f64>,
    /// By block.
    steps: Vec<BlockStep>,
    /// What happened to every block.
    infos: Vec<i32>,
    /// Blocks whose direction was left out of the last update.
    left_out: u64,
    /// What was sensed last.
    sensed: Vec<Sensed>,
    /// The orders of a refresh that works on a block at a time, by block, and which of them are of one block.
    places: Vec<usize>,
    groups: Vec<std::ops::Range<usize>>,
    /// diag QᵀLQ of every factor, as last sensed (only for a policy that may adopt it).
    diagonals: Vec<f64>,
    /// The gradients of this call have been looked at.
    inspected: bool,
    /// Where results lie, and how their operands get there.
    write: Vec<u64>,
    copies: Vec<(u64, u64, usize)>,
    infos_out: u64,
}

impl Cpu {
    /// The CPU for `plan`, on `threads` threads (0: one per core). Without an allocator it works on a borrowed
    /// state and workspace, on the process's shared threads.
    pub fn new(
        plan: Counted<Plan>,
        threads: usize,
        keeps_diagonals: bool,
        allocator: Option<Allocator>,
    ) -> Result<Cpu> {
        let what = "the tasks of a step";
        let walks = Walks::new(&plan)?;
        let mut diagonal_offsets = reserved(plan.factors.len(), what)?;
        let mut diagonals = 0;
        for factor in &plan.factors {
            diagonal_offsets.push(diagonals);
            diagonals += if keeps_diagonals { factor.dim } else { 0 };
        }
        let shape = ScratchShape::new(&plan);
        let workers = Workers::new(threads)?;
        let count = workers.threads().min(plan.factors.len());
        let blocks = plan.blocks.len();
        let rooms = workers.threads().min(walks.root_tiles);
        let mut cpu = Cpu {
            background: None,
            own: None,
            gathered: None,
            scratches: tried((0..count).map(|_| Ok(Mutex::new(Scratch::new(shape, Some(&workers))?))), what)?,
            workers,
            shape,
            rooms: tried(
                (0..rooms).map(|_| Ok(Mutex::new(Room { memory: std::ptr::null_mut(), holds: None }))),
                what,
            )?,
            chunk_sums: filled(0.0, walks.chunks.len(), what)?,
            tile_sums: filled(0.0, walks.partials, what)?,
            steps: filled(BlockStep::default(), blocks, what)?,
            infos: filled(0, blocks, what)?,
            left_out: 0,
            sensed: reserved(plan.factors.len(), what)?,
            places: reserved(plan.factors.len(), what)?,
            groups: reserved(plan.factors.len(), what)?,
            diagonals: filled(0.0, diagonals, what)?,
            inspected: false,
            write: reserved(plan.arrays.len(), what)?,
            copies: Vec::new(),
            infos_out: 0,
            shared: Shared {
                arrays: filled(0, plan.arrays.len(), what)?,
                sites: filled(Site::ABSENT, blocks, what)?,
                work: std::ptr::null_mut(),
                plan,
                walks,
                diagonal_offsets,
            },
        };
        if let Some(allocator) = allocator {
            let state = Arena::zeroed(cpu.shared.plan.state_bytes, allocator, "the optimizer's state")?;
            let work = Arena::zeroed(cpu.shared.walks.work_bytes, allocator, "the workspace")?;
            let bytes = cpu.scratch_bytes().max(cpu.room_bytes());
            let scratches = Arena::zeroed(bytes, allocator, "the workspace of a check")?;
            cpu.shared.work = work.as_ptr();
            cpu.place_scratches(scratches.as_ptr());
            cpu.place_rooms(scratches.as_ptr());
            cpu.own = Some(Own { state, work, scratches });
            cpu.gathered = Gathered::new(&cpu.shared.plan, &cpu.shared.walks, allocator)?;
            cpu.background = Background::new(&cpu.shared.plan, cpu.shape, allocator)?;
        }
        Ok(cpu)
    }

    fn scratch_bytes(&self) -> usize {
        self.scratches.len() * self.shape.bytes()
    }

    fn room_bytes(&self) -> usize {
        self.rooms.len() * self.shared.walks.root_bytes
    }

    /// Puts the rooms side by side at `memory`, which has room for all of them.
    fn place_rooms(&mut self, memory: *mut u8) {
        for (number, room) in self.rooms.iter_mut().enumerate() {
            room.get_mut().memory = memory.wrapping_add(number * self.shared.walks.root_bytes);
        }
    }

    /// Puts the scratches side by side at `memory`, which has room for all of them.
    fn place_scratches(&mut self, memory: *mut u8) {
        for (number, scratch) in self.scratches.iter_mut().enumerate() {
            scratch.get_mut().place(memory.wrapping_add(number * self.shape.bytes()));
        }
    }

    /// Runs `body` for every factor of a list, one factor per thread, each with a scratch of its own.
    fn each_factor(&mut self, count: usize, body: &(dyn Fn(&Shared, usize, &mut Scratch) + Sync)) {
        let (shared, scratches) = (&self.shared, &self.scratches);
        self.workers.run(count, count > 1, &|task, _| {
            // At most min(threads, factors) tasks run at once, and there are as many scratches: one is
            // always free.
            let mut scratch = scratches.iter().cycle().find_map(|scratch| scratch.try_lock());
            if let Some(scratch) = scratch.as_mut() {
                body(shared, task, scratch);
            }
        });
    }

    fn take_sites(&mut self, sites: &Sites) {
        match sites {
            Sites::Listed(listed) => self.shared.sites.copy_from_slice(listed),
            Sites::Rows(rows) => {
                let plan = self.shared.plan.clone();
                for (row, block) in plan.blocks.iter().enumerate() {
                    // SAFETY: an i32 per block, or none at all.
                    let active = rows.active == 0
                        || unsafe { (rows.active as *const i32).wrapping_add(row).read_unaligned() } != 0;
                    let dtype = plan.params[block.param].spec.dtype;
                    self.shared.sites[row] = rows.site(row, block.elements, dtype, active);
                }
            }
            Sites::None => {}
        }
    }
}

impl Device for Cpu {
    fn is_synchronous(&self) -> bool {
        true
    }

    fn state(&self) -> Option<u64> {
        self.own.as_ref().map(|own| own.state.as_ptr() as u64)
    }

    unsafe fn read(&mut self, from: u64, into: &mut [u8]) -> Result<()> {
        vectors::settle(self);
        // SAFETY: the caller's contract.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    unsafe fn write(&mut self, bytes: &[u8], to: u64) -> Result<()> {
        vectors::settle(self);
        self.background.iter_mut().for_each(Background::abandon);
        // SAFETY: the caller's contract.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len()) };
        Ok(())
    }

    unsafe fn read_shared(&mut self, at: &SharedSquare, root: bool, into: &mut [u8]) -> Result<()> {
        vectors::settle(self);
        // SAFETY: the caller's contract.
        unsafe { square::read(at, root, into) };
        Ok(())
    }

    unsafe fn write_shared(&mut self, bytes: &[u8], at: &SharedSquare, root: bool) -> Result<()> {
        vectors::settle(self);
        self.background.iter_mut().for_each(Background::abandon);
        // SAFETY: the caller's contract.
        unsafe { square::write(bytes, at, root) };
        Ok(())
    }

    unsafe fn clear(&mut self, at: u64, bytes: usize) -> Result<()> {
        vectors::settle(self);
        self.background.iter_mut().for_each(Background::abandon);
        // SAFETY: the caller's contract.
        unsafe { (at as *mut u8).write_bytes(0, bytes) };
        Ok(())
    }

    fn workspace_bytes(&self) -> usize {
        // A verb uses either the blocks' workspace and the rooms or the factors'.
        (self.shared.walks.work_bytes + self.room_bytes()).max(self.scratch_bytes()) + ALIGNMENT
    }

    fn footprint(&self) -> Footprint {
        let own = self.own.as_ref();
        Footprint {
            state_host: own.map_or(0, |own| own.state.bytes()),
            state_device: 0,
            workspace: own.map_or(0, |own| own.work.bytes() + own.scratches.bytes())
                + self.gathered.as_ref().map_or(0, Gathered::bytes)
                + self.background.as_ref().map_or(0, Background::bytes),
            threads: self.workers.threads(),
        }
    }

    unsafe fn bind(&mut self, binding: &Binding) -> Result<()> {
        if !self.shared.plan.factors.is_empty() {
            product::ready()?;
        }
        if self.own.is_none() {
            let (start, bytes) = (binding.workspace.0 as *mut u8, binding.workspace.1);
            let need = self.workspace_bytes();
            if bytes < need {
                return Err(Error::invalid(format!(
                    "the workspace has {bytes} bytes; expected at least {need}"
                )));
            }
            let start = start.wrapping_add(start.align_offset(ALIGNMENT));
            self.shared.work = start;
            self.place_scratches(start);
            self.place_rooms(start.wrapping_add(self.shared.walks.work_bytes));
        }
        self.shared.arrays.copy_from_slice(binding.read);
        self.write.clear();
        self.write.extend_from_slice(binding.write);
        self.copies.clear();
        let refused = |_| Error::out_of_memory("the list of copies", size_of_val(binding.copies) as u128);
        self.copies.try_reserve(binding.copies.len()).map_err(refused)?;
        self.copies.extend_from_slice(binding.copies);
        self.take_sites(&binding.sites);
        let (read, write) = binding.infos;
        self.infos_out = write;
        if read != 0 {
            for (row, info) in self.infos.iter_mut().enumerate() {
                // SAFETY: an i32 per block.
                *info = unsafe { (read as *const i32).wrapping_add(row).read_unaligned() };
            }
        }
        self.inspected = false;
        Ok(())
    }

    fn carry(&mut self) -> Result<()> {
        for (from, to, bytes) in &self.copies {
            // SAFETY: buffers of the call, of these sizes, which do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(*from as *const u8, *to as *mut u8, *bytes) };
        }
        self.shared.arrays.copy_from_slice(&self.write);
        Ok(())
    }

    fn inspect(&mut self, rules: &Rules) -> Result<Inspection> {
        self.inspected = true;
        Ok(Inspection::Known(accumulate::inspect(self, rules)))
    }

    fn accumulate(&mut self, rules: &Rules, _: bool) -> Result<()> {
        accumulate::accumulate(self, rules);
        Ok(())
    }

    fn sense(&mut self, rules: &Rules, orders: &[SenseOrder]) -> Result<()> {
        vectors::settle(self);
        match self.shared.plan.preconditioner {
            Preconditioner::Shampoo(_) => sense::sense(self, rules, orders),
            Preconditioner::Soap(soap) => soap::sense(self, rules, &soap, orders),
        }
        Ok(())
    }

    fn readback(&mut self, into: &mut Readback) -> Result<()> {
        let shared = &self.shared;
        into.clocks.clear();
        into.clocks.extend((0..shared.plan.blocks.len()).map(|block| shared.clock(block)));
        into.infos.clear();
        into.infos.extend_from_slice(&self.infos);
        into.records.clear();
        let factors = shared.plan.factors.len();
        if factors > 0 && !shared.record_address(0).is_null() {
            into.records.extend((0..factors).map(|factor| shared.record(factor)));
        }
        into.sensed.clear();
        into.sensed.append(&mut self.sensed);
        Ok(())
    }

    fn refresh(
        &mut self,
        rules: &Rules,
        orders: &[RefreshOrder],
        answers: &mut Vec<Refreshed>,
    ) -> Result<bool> {
        vectors::settle(self);
        match self.shared.plan.preconditioner {
            Preconditioner::Shampoo(_) => refresh::refresh(self, rules, orders, answers),
            Preconditioner::Soap(soap) => soap::refresh(self, rules, &soap, orders, answers),
        }
        for (order, answer) in orders.iter().zip(&*answers) {
            if answer.rung != Rung::Chosen {
                self.infos[self.shared.plan.factors[order.factor].block] |= INFO_FELL_BACK;
            }
        }
        Ok(true)
    }

    fn postpone(&mut self, rules: &Rules, orders: &[RefreshOrder]) -> Result<()> {
        vectors::settle(self);
        refresh::keep(self, rules, orders);
        self.resume(orders)
    }

    fn resume(&mut self, orders: &[RefreshOrder]) -> Result<()> {
        if let Some(background) = &mut self.background {
            background.begin(&self.shared, orders);
        }
        Ok(())
    }

    fn store_records(&mut self, records: &[FactorRecord], _: &[Pending]) -> Result<()> {
        for (factor, record) in records.iter().enumerate() {
            // SAFETY: the record of the factor, in the state.
            unsafe { self.shared.record_address(factor).write_unaligned(*record) };
        }
        Ok(())
    }

    fn redamp(&mut self, orders: &[RedampOrder]) -> Result<()> {
        redamp::redamp(self, orders);
        Ok(())
    }

    fn apply(&mut self, rules: &Rules, _: &[bool]) -> Result<()> {
        match self.shared.plan.preconditioner {
            Preconditioner::Shampoo(own) => apply::apply(self, rules, own.keeps_root),
            Preconditioner::Soap(soap) => soap::apply(self, rules, &soap),
        }
        Ok(())
    }

    fn left_out(&self) -> u64 {
        self.left_out
    }

    fn finish(&mut self) -> Result<()> {
        if self.infos_out != 0 {
            for (row, info) in self.infos.iter().enumerate() {
                // SAFETY: an i32 per block.
                unsafe { (self.infos_out as *mut i32).wrapping_add(row).write_unaligned(*info) };
            }
        }
        Ok(())
    }

    fn has_news(&self) -> bool {
        false
    }

    fn reopen(&mut self) {}
}
