//! The CUDA backend: state on the device, work on the caller's stream, NVIDIA's libraries found at run time.
//!
//! A plain step only puts work on the stream. A gradient that is not finite is held back by the device
//! itself (the gate), and the host hears of it when it waits anyway: at a check, or when it is asked for
//! figures. Blocks of equal shape are stacked, so that launches do not grow with their number.

mod borrowed;
mod driver;
mod factor;
mod kernels;
mod linear;
pub mod probe;
mod stacks;
mod step;
mod tables;

use super::bound::Late;
use super::{
    Backend, BlockOrder, Footprint, News, RedampOrder, RefreshOrder, Refreshed, Rung, SenseOrder, Tensors,
};
use crate::config::{Config, Nonfinite};
use crate::error::{Error, Kind, Result};
use crate::memory::Allocator;
use crate::optimizer::Clock;
use crate::optimizer::plan::{Plan, SlotId};
use crate::preconditioner::policy::Sensed;
use cudarc::driver::sys::CUstream;
use driver::{Event, Memory, Pinned, Stream};
use kernels::Engine;
use linear::Linear;
use stacks::Layout;
use std::sync::Arc;
use tables::{Gate, NONE, Renewal, Site, Stack, Task, Time};

/// A CUDA device.
pub struct Cuda {
    plan: Arc<Plan>,
    config: Config,
    allocator: Allocator,
    layout: Layout,
    linear: Linear,
    state: Memory,
    tables: Memory,
    work: Memory,
    /// Address of every state buffer.
    slots: Vec<u64>,
    /// Addresses of the blocks' clocks and infos, and of the factors' dampings with the bytes between them.
    clocks: u64,
    infos: u64,
    dampings: (u64, usize),
    /// Bytes of workspace that a caller must lend; 0 for a backend with memory of its own.
    lent_bytes: usize,
    /// The stacks as the kernels see them.
    stacks: Vec<Stack>,
    /// The sites as last posted, and as this step wants them, by block in the order of the stacks.
    sites: Vec<Site>,
    wanted: Vec<Site>,
    /// Whether a stack has inverse roots in this step.
    preconditioned: Vec<bool>,
    /// What the device tells.
    bulletin: Pinned,
    /// What it is told at a check.
    tasks: Pinned,
    /// Refreshes whose answers are still out.
    pending: Vec<RefreshOrder>,
    /// The stream of the step under way, and whether it records a graph.
    stream: CUstream,
    capturing: bool,
    /// The last stream that work was put on, if its order still stands.
    last: Option<CUstream>,
    /// There is work that the host has not waited for.
    dirty: bool,
    forgive: bool,
    /// Everything up to here has been put on a stream.
    ready: Event,
    own: Stream,
    engine: Arc<Engine>,
}

/// The memory of a backend.
struct Memories {
    state: Memory,
    tables: Memory,
    work: Memory,
    bulletin: Pinned,
    tasks: Pinned,
}

// SAFETY: handles and addresses with an owner; one call at a time uses them.
unsafe impl Send for Cuda {}

impl Cuda {
    /// State and workspace for `plan`, all zero, on the configuration's device.
    pub fn new(plan: Arc<Plan>, config: &Config, allocator: Allocator) -> Result<Cuda> {
        let engine = Engine::open(config.device.id)?;
        let _current = engine.device.enter()?;
        let device = &engine.device;
        let layout = Layout::new(&plan, config)?;
        let state = Memory::new(device, layout.state_bytes, allocator, "the optimizer's state")?;
        let tables = Memory::new(device, layout.tables.bytes, allocator, "the optimizer's tables")?;
        let work = Memory::new(device, layout.work_bytes, allocator, "the workspace")?;
        let bulletin = Pinned::new(device, layout.tables.bulletin)?;
        let tasks = Pinned::new(device, 4 * plan.factors.len() * size_of::<Task>())?;
        let linear = Linear::new(device, Some(allocator), probe::has_batched_solver())?;
        let memory = Memories { state, tables, work, bulletin, tasks };
        let mut made = Cuda::assemble(engine.clone(), plan, config, layout, linear, memory, allocator)?;
        made.slots = made.layout.slots.iter().map(|at| made.state.address() + *at as u64).collect();
        let at = |section: usize| made.tables.address() + section as u64;
        let (clocks, infos) = (at(made.layout.tables.clocks), at(made.layout.tables.info));
        let dampings = (at(made.layout.tables.dampings), 8);
        (made.clocks, made.infos, made.dampings) = (clocks, infos, dampings);
        made.stacks = made.bind();
        made.clear()?;
        made.reserve_solver()?;
        Ok(made)
    }

    fn assemble(
        engine: Arc<Engine>,
        plan: Arc<Plan>,
        config: &Config,
        layout: Layout,
        linear: Linear,
        memory: Memories,
        allocator: Allocator,
    ) -> Result<Cuda> {
        let own = Stream::new(&engine.device)?;
        let ready = Event::new(&engine.device)?;
        let blocks = plan.blocks.len();
        let Memories { state, tables, work, bulletin, tasks } = memory;
        Ok(Cuda {
            slots: vec![0; plan.slots.len()],
            clocks: 0,
            infos: 0,
            dampings: (0, 0),
            lent_bytes: 0,
            stacks: Vec::new(),
            sites: vec![Site::default(); blocks],
            wanted: vec![Site::default(); blocks],
            preconditioned: vec![false; layout.stacks.len()],
            pending: Vec::new(),
            stream: std::ptr::null_mut(),
            capturing: false,
            last: None,
            dirty: false,
            forgive: false,
            config: config.clone(),
            allocator,
            layout,
            linear,
            state,
            tables,
            work,
            bulletin,
            tasks,
            ready,
            own,
            engine,
            plan,
        })
    }

    /// The state as it is before the first step.
    fn clear(&mut self) -> Result<()> {
        let stream = self.own.raw();
        self.state.clear(stream)?;
        self.tables.clear(stream)?;
        let gate =
            Gate { bad: NONE, open: 0, closed: 0, param: NONE, calls: 0, refused: 0, call: 0, overflowed: 0 };
        let at = |section: usize| self.tables.address() + section as u64;
        let order = self.layout.stacks.iter().flat_map(|stack| &stack.blocks);
        let params: Vec<i32> = order.map(|block| self.plan.blocks[*block].param as i32).collect();
        let (clocks, dampings) =
            (vec![Clock { step: 0, weight: 1.0 }; self.plan.params.len()], self.base_dampings());
        self.send(at(self.layout.tables.gate), bytemuck::bytes_of(&gate))?;
        self.send(at(self.layout.tables.params), bytemuck::cast_slice(&params))?;
        self.set_times(&clocks, &dampings)
    }

    fn base_dampings(&self) -> Vec<f64> {
        self.plan.factors.iter().map(|factor| factor.epsilon).collect()
    }

    /// Copies to the device on our own stream, and waits.
    fn send(&self, target: u64, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the bytes stay until the wait is over; the target is a table or a state buffer of ours.
        unsafe { driver::upload(target, bytes.as_ptr(), bytes.len(), self.own.raw())? };
        driver::wait_for(self.own.raw())
    }

    fn set_times(&mut self, clocks: &[Clock], dampings: &[f64]) -> Result<()> {
        let order = self.layout.stacks.iter().flat_map(|stack| &stack.blocks);
        let times: Vec<Time> = order
            .map(|block| clocks[self.plan.blocks[*block].param])
            .map(|clock| Time { step: clock.step, weight: clock.weight })
            .collect();
        let at = |section: usize| self.tables.address() + section as u64;
        self.send(at(self.layout.tables.clocks), bytemuck::cast_slice(&times))?;
        self.send(at(self.layout.tables.dampings), bytemuck::cast_slice(dampings))?;
        self.mark(self.own.raw())
    }

    /// What has been put on `stream` comes before whatever follows on another.
    fn mark(&mut self, stream: CUstream) -> Result<()> {
        self.last = Some(stream);
        self.ready.record(stream)
    }

    /// Our own stream comes after everything so far.
    fn join_own(&mut self) -> Result<()> {
        if self.last != Some(self.own.raw()) {
            self.ready.before(self.own.raw())?;
        }
        Ok(())
    }

    /// Copies the bulletin to the host on `stream`, and waits. The one wait of a check.
    fn listen(&mut self, stream: CUstream) -> Result<()> {
        let bytes = self.layout.tables.bulletin;
        // SAFETY: the pinned bulletin has that size, and nobody touches it until the wait is over.
        unsafe { driver::download(self.bulletin.data(), self.tables.address(), bytes, stream)? };
        driver::wait_for(stream)?;
        self.dirty = false;
        Ok(())
    }

    fn told<T: bytemuck::Pod>(&self, section: usize, index: usize) -> T {
        let at = section + index * size_of::<T>();
        bytemuck::pod_read_unaligned(&self.bulletin.bytes()[at..at + size_of::<T>()])
    }

    /// What the bulletin says that the host does not know yet.
    fn read_news(&mut self, news: &mut News) {
        let sections = &self.layout.tables;
        let gate: Gate = self.told(sections.gate, 0);
        news.refused = gate.refused;
        news.culprit = usize::try_from(gate.param).ok().filter(|_| gate.param != NONE);
        news.overflowed = gate.overflowed;
        news.clocks = self
            .plan
            .params
            .iter()
            .map(|param| {
                let (stack, index) = self.layout.place[param.blocks.start];
                let time: Time = self.told(sections.clocks, self.layout.stacks[stack].first + index);
                Clock { step: time.step, weight: time.weight }
            })
            .collect();
        let pending = std::mem::take(&mut self.pending);
        news.refreshed = pending
            .into_iter()
            .map(|order| {
                let renewal: Renewal = self.told(sections.renewals, order.factor);
                (order, answer(&renewal))
            })
            .collect();
    }

    /// Tells the device that the host has read its gate, if there was anything to read.
    fn hear(&mut self, gate: &Gate, stream: CUstream) -> Result<()> {
        if gate.refused > 0 || gate.overflowed > 0 {
            step::heard(self, stream)?;
            self.mark(stream)?;
        }
        Ok(())
    }

    fn gate(&self) -> u64 {
        self.tables.address() + self.layout.tables.gate as u64
    }

    /// The address of a state buffer.
    fn slot(&self, slot: SlotId) -> u64 {
        self.slots[slot]
    }

    fn buffer(&self, slot: SlotId, len: usize) -> Result<u64> {
        let bytes = self.plan.slots[slot].bytes();
        if bytes != len {
            return Err(Error::invalid(format!("a state buffer has {bytes} bytes, not {len}")));
        }
        Ok(self.slot(slot))
    }

    fn strict(&self) -> bool {
        self.config.nonfinite == Nonfinite::Error
    }
}

fn answer(renewal: &Renewal) -> Refreshed {
    let rung = match renewal.rung {
        0 => Rung::Chosen,
        1 => Rung::Double,
        _ => Rung::Stale,
    };
    Refreshed {
        rung,
        eigenvalue_min: renewal.least,
        eigenvalue_max: renewal.most,
        noise_floor: renewal.noise,
    }
}

impl Backend for Cuda {
    fn late(&mut self) -> Option<&mut dyn Late> {
        Some(self)
    }

    fn inspect(&mut self, tensors: &Tensors, orders: &mut [BlockOrder], waits: bool) -> Result<()> {
        let engine = self.engine.clone();
        let _current = engine.device.enter()?;
        self.stream = tensors.stream.cast();
        self.capturing = driver::is_capturing(self.stream)?;
        if waits && self.capturing {
            return Err(Error::new(
                Kind::Unsupported,
                "this step is a check, which must wait for the device, but args.stream is being captured; expected graphs of plain steps only",
            ));
        }
        step::inspect(self, tensors, orders)
    }

    fn accumulate(&mut self, _: &Tensors, orders: &[BlockOrder]) -> Result<()> {
        let engine = self.engine.clone();
        let _current = engine.device.enter()?;
        orders.first().map_or(Ok(()), |first| step::accumulate(self, first, self.gate()))
    }

    fn sense(&mut self, orders: &[SenseOrder], sensed: &mut [Sensed], news: &mut News) -> Result<()> {
        let engine = self.engine.clone();
        let _current = engine.device.enter()?;
        factor::sense(self, orders)?;
        self.listen(self.stream)?;
        for (number, sensed) in sensed.iter_mut().enumerate() {
            *sensed = factor::sensed(&self.told(self.layout.tables.drifts, number));
        }
        let gate: Gate = self.told(self.layout.tables.gate, 0);
        news.refused_now = gate.open == 0;
        self.read_news(news);
        self.hear(&gate, self.stream)
    }

    fn refresh(&mut self, orders: &[RefreshOrder], refreshed: &mut [Option<Refreshed>]) -> Result<()> {
        let engine = self.engine.clone();
        let _current = engine.device.enter()?;
        factor::refresh(self, orders)?;
        self.pending.extend_from_slice(orders);
        refreshed.fill(None);
        Ok(())
    }

    fn redamp(&mut self, orders: &[RedampOrder]) -> Result<()> {
        let engine = self.engine.clone();
        let _current = engine.device.enter()?;
        factor::redamp(self, orders)
    }

    fn apply(&mut self, _: &Tensors, orders: &[BlockOrder]) -> Result<usize> {
        let engine = self.engine.clone();
        let _current = engine.device.enter()?;
        step::apply(self, orders)?;
        self.dirty = true;
        if !self.capturing {
            self.mark(self.stream)?;
        }
        Ok(0)
    }

    fn settle(&mut self, news: &mut News) -> Result<()> {
        if !self.dirty && self.pending.is_empty() {
            return Ok(());
        }
        let engine = self.engine.clone();
        let _current = engine.device.enter()?;
        self.join_own()?;
        let own = self.own.raw();
        self.listen(own)?;
        self.read_news(news);
        self.hear(&self.told(self.layout.tables.gate, 0), own)
    }

    fn forgive(&mut self) {
        self.forgive = true;
    }

    fn read(&mut self, slot: SlotId, bytes: &mut [u8]) -> Result<()> {
        let engine = self.engine.clone();
        let _current = engine.device.enter()?;
        let source = self.buffer(slot, bytes.len())?;
        self.join_own()?;
        // SAFETY: `buffer` checked the length, and nobody touches the bytes until the wait is over.
        unsafe { driver::download(bytes.as_mut_ptr(), source, bytes.len(), self.own.raw())? };
        driver::wait_for(self.own.raw())
    }

    fn write(&mut self, slot: SlotId, bytes: &[u8]) -> Result<()> {
        let engine = self.engine.clone();
        let _current = engine.device.enter()?;
        let target = self.buffer(slot, bytes.len())?;
        self.join_own()?;
        self.send(target, bytes)?;
        self.mark(self.own.raw())
    }

    fn restore(&mut self, clocks: &[Clock], dampings: &[f64]) -> Result<()> {
        let engine = self.engine.clone();
        let _current = engine.device.enter()?;
        self.join_own()?;
        self.pending.clear();
        self.set_times(clocks, dampings)
    }

    fn set_config(&mut self, config: &Config, plan: &Arc<Plan>) {
        self.config = config.clone();
        self.plan = plan.clone();
    }

    fn footprint(&self) -> Footprint {
        Footprint {
            state_host: 0,
            state_device: self.state.bytes(),
            workspace: self.work.bytes() + self.tables.bytes() + self.linear.bytes(),
            threads: 1,
        }
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // The caller's stream may still be at work on our memory.
        if let Ok(_current) = self.engine.device.enter() {
            let _ = self.ready.wait();
        }
    }
}
