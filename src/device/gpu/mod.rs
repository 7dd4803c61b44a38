//! A GPU: state on the device, work on the caller's stream. The verbs, tables and kernels are here; what is
//! NVIDIA's (driver, cuBLAS, cuSOLVER, found at run time) is in [`cuda`].
//!
//! A plain step only puts work on the stream. A gradient that is not finite is held back by the device itself (the
//! gate), and the host learns of it when it waits anyway: at a check, or when it is asked for statistics. Equal
//! blocks are batched, so that launches do not grow with their number.

mod courier;
pub mod cuda;
mod factor;
mod kernels;
mod layout;
mod qr;
mod side;
mod soap;
mod step;
mod tables;

use super::{
    Binding, Device, Footprint, Inspection, Pending, Readback, RedampOrder, RefreshOrder, Refreshed, Rows,
    SenseOrder, Site, Sites,
};
use crate::engine::plan::{Content, Plan, SlotId};
use crate::engine::rules::{Clock, Rules};
use crate::error::{Error, Kind, Result};
use crate::memory::{Allocator, Counted};
use crate::preconditioner::{FactorRecord, Preconditioner};
use bytemuck::Zeroable;
pub use courier::Courier;
use cuda::driver::{self, ALIGNMENT, Event, Memory, Pinned, RawStream, Stream};
use cuda::linear::{Handles, Linear, blas_workspace};
use cuda::probe;
use kernels::Kernels;
use layout::Layout;
use side::Side;
use std::sync::Arc;
use tables::{Choice, Gate, NONE, Task};

/// A GPU.
pub struct Gpu {
    plan: Counted<Plan>,
    layout: Layout,
    linear: Linear,
    /// Where memory of its own comes from; none on a borrowed state.
    allocator: Option<Allocator>,
    state: Option<Memory>,
    tables: Memory,
    work: Memory,
    /// Bytes of workspace that a caller must give.
    borrowed_bytes: usize,
    /// Address of every array of the state; where results lie, and how their operands get there.
    arrays: Vec<u64>,
    write: Vec<u64>,
    copies: Vec<(u64, u64, usize)>,
    /// Address of the infos, by row, and of those that results go to.
    infos: u64,
    infos_out: u64,
    /// The batches as the kernels see them.
    batches: Vec<tables::Stack>,
    /// The sites as last posted, and as this step wants them, by row.
    sites: Vec<tables::Site>,
    wanted: Vec<tables::Site>,
    /// The blocks of a call on a stack.
    rows: Option<Rows>,
    /// Whether all blocks take part or none.
    joint: bool,
    /// After a refused joint step, none is taken until the engine says so.
    strict: bool,
    /// The clocks of this call have advanced, and the orders of its blocks are worked out.
    ticked: bool,
    /// A gradient of this call may enter the statistics.
    adds: bool,
    /// Whether the blocks of each batch may have inverse roots in this step.
    preconditioned: Vec<bool>,
    /// How many factors were sensed since the last readback.
    sensed: usize,
    /// The host has waited for the device in this call.
    heard: bool,
    /// What the next readback brings is on its way, or has arrived.
    requested: bool,
    arrived: bool,
    /// What comes back to the host, and behind it records on their way out.
    incoming: Pinned,
    /// Tasks and choices on their way to the device.
    outgoing: Pinned,
    /// The stream of the call under way, and whether it records a graph.
    stream: RawStream,
    capturing: bool,
    in_call: bool,
    /// A step was recorded into a graph, which may be launched at any time from then on.
    recorded: bool,
    /// Joint steps that the host has put on a stream, or knows of.
    calls: u64,
    /// The stream that the libraries follow.
    followed: Option<RawStream>,
    /// There is work that the host has not waited for.
    dirty: bool,
    /// The next step opens a closed gate.
    reopen: bool,
    /// Everything up to here has been put on a stream; whether it was ever recorded.
    ready: Event,
    is_ready: bool,
    /// What another stream has to do before a step.
    arrival: Event,
    own: Stream,
    /// Refreshes ahead of time, of an owned state whose refreshes are delayed.
    side: Option<Side>,
    kernels: Arc<Kernels>,
}

// SAFETY: handles and addresses with an owner; one call at a time uses them.
unsafe impl Send for Gpu {}

impl Gpu {
    /// Device number `ordinal` for `plan`; with `tf32` the products of every step round their operands. Without an allocator it works on a borrowed state and workspace.
    pub fn new(
        plan: Counted<Plan>,
        ordinal: i32,
        keeps_diagonals: bool,
        tf32: bool,
        allocator: Option<Allocator>,
    ) -> Result<Gpu> {
        let kernels = Kernels::open(ordinal)?;
        let _current = kernels.device.enter()?;
        let device = &kernels.device;
        let layout = Layout::new(&plan, keeps_diagonals)?;
        let factors = plan.factors.len();
        let (state, tables, work) = match allocator {
            Some(allocator) => (
                Some(Memory::new(device, plan.state_bytes, allocator, "the optimizer's state")?),
                Memory::new(device, layout.tables.bytes, allocator, "the optimizer's tables")?,
                Memory::new(device, layout.work_bytes, allocator, "the workspace")?,
            ),
            None => (None, Memory::borrowed(device, 0, 0), Memory::borrowed(device, 0, layout.work_bytes)),
        };
        let incoming = Pinned::new(device, layout.tables.readback.next_multiple_of(8) + 2 * plan.head_bytes)?;
        let lists = layout.lists() * size_of::<Task>() + layout.choices() * size_of::<Choice>();
        let outgoing = Pinned::new(device, factors * lists)?;
        let handles = Handles::open(device)?;
        let linear = Linear::new(handles, allocator, probe::has_batched_solver(), tf32)?;
        let (own, ready, arrival) = (Stream::new(device)?, Event::new(device)?, Event::new(device)?);
        let rows = plan.blocks.len();
        let mut made = Gpu {
            arrays: vec![0; plan.arrays.len()],
            write: vec![0; plan.arrays.len()],
            copies: Vec::new(),
            infos: 0,
            infos_out: 0,
            batches: Vec::new(),
            sites: vec![tables::Site::zeroed(); rows],
            wanted: vec![tables::Site::zeroed(); rows],
            rows: None,
            joint: false,
            strict: false,
            ticked: false,
            adds: true,
            preconditioned: vec![false; layout.batches.len()],
            sensed: 0,
            heard: false,
            requested: false,
            arrived: false,
            stream: std::ptr::null_mut(),
            capturing: false,
            in_call: false,
            recorded: false,
            calls: 0,
            followed: None,
            dirty: false,
            reopen: false,
            is_ready: false,
            borrowed_bytes: 0,
            state,
            kernels: kernels.clone(),
            plan,
            layout,
            linear,
            allocator,
            tables,
            work,
            incoming,
            outgoing,
            ready,
            arrival,
            own,
            side: None,
        };
        let (solver, host) = made.solver_needs()?;
        made.linear.reserve(solver, host, allocator)?;
        if let Some(allocator) = allocator {
            made.clear_memory()?;
            if made.layout.delays {
                made.side = Some(Side::new(&mut made, allocator)?);
            }
        } else {
            let tables = made.layout.tables.bytes.next_multiple_of(ALIGNMENT);
            let libraries = blas_workspace(&kernels.device) + solver;
            made.borrowed_bytes = tables + made.layout.work_bytes + libraries + ALIGNMENT;
        }
        Ok(made)
    }

    /// State and tables as they are before the first step.
    fn clear_memory(&mut self) -> Result<()> {
        if let Some(state) = &self.state {
            state.clear(self.own.raw())?;
        }
        self.tables.clear(self.own.raw())?;
        let gate = Gate { bad: NONE, param: NONE, ..Gate::zeroed() };
        let blocks = self.plan.stacks.iter().flat_map(|stack| &stack.blocks);
        let params: Vec<i32> = blocks.map(|block| self.plan.blocks[*block].param as i32).collect();
        self.send(self.table(self.layout.tables.gate), bytemuck::bytes_of(&gate))?;
        self.send(self.table(self.layout.tables.params), bytemuck::cast_slice(&params))?;
        self.mark(self.own.raw())
    }

    /// The address of a section of the tables.
    fn table(&self, section: usize) -> u64 {
        self.tables.address() + section as u64
    }

    /// The gate of a joint step; 0 for a call on a stack.
    fn gate(&self) -> u64 {
        if self.joint { self.table(self.layout.tables.gate) } else { 0 }
    }

    /// The address of a slot; 0 where there is none.
    fn slot(&self, slot: impl Into<Option<SlotId>>) -> u64 {
        let Some(slot) = slot.into() else { return 0 };
        let (array, offset) = self.plan.place_of(slot);
        match self.arrays[array] {
            0 => 0,
            base => base + offset as u64,
        }
    }

    /// The address of a block's clock.
    fn clock(&self, block: usize) -> u64 {
        let plan = &self.plan.blocks[block];
        let array = self.plan.stacks[plan.stack].arrays.start;
        self.arrays[array] + (plan.place * size_of::<Clock>()) as u64
    }

    /// The address of a factor's record.
    fn record(&self, factor: usize) -> u64 {
        let plan = &self.plan.factors[factor];
        let block = &self.plan.blocks[plan.block];
        let array = self.plan.stacks[block.stack].arrays.start + 1;
        let place = block.place * block.dims.len() + plan.axis;
        self.arrays[array] + (place * size_of::<FactorRecord>()) as u64
    }

    /// Copies to the device on our own stream, and waits.
    fn send(&self, target: u64, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the bytes stay until the wait is over; the target is a table or an array of the state.
        unsafe { driver::upload(target, bytes.as_ptr(), bytes.len(), self.own.raw())? };
        driver::wait_for(self.own.raw())
    }

    /// What has been put on `stream` comes before whatever follows on another.
    fn mark(&mut self, stream: RawStream) -> Result<()> {
        self.is_ready = true;
        self.ready.record(stream)
    }

    /// Our own stream comes after everything so far.
    fn join_own(&mut self) -> Result<()> {
        if self.is_ready { self.ready.before(self.own.raw()) } else { Ok(()) }
    }

    /// No kept statistic is read any more once our own stream has come so far, and nothing is kept of what was found.
    fn abandon_refreshes(&mut self) -> Result<()> {
        match &mut self.side {
            Some(side) => side.abandon(self.own.raw()),
            None => Ok(()),
        }
    }

    /// Where the clocks and records of the state lie: offset in the plan's head, address, bytes; those that are
    /// neighbours on both sides as one.
    fn head(&self, wanted: &[Content]) -> Vec<(usize, u64, usize)> {
        let mut spans: Vec<(usize, u64, usize)> = Vec::new();
        for content in wanted {
            for stack in 0..self.plan.stacks.len() {
                let Some(array) = self.plan.array(stack, *content) else { continue };
                let (extent, address) = (self.plan.arrays[array], self.arrays[array]);
                if address == 0 {
                    continue;
                }
                match spans.last_mut() {
                    Some((offset, at, bytes))
                        if *offset + *bytes == extent.offset && *at + *bytes as u64 == address =>
                    {
                        *bytes += extent.bytes;
                    }
                    _ => spans.push((extent.offset, address, extent.bytes)),
                }
            }
        }
        spans
    }

    /// Where the head begins in what comes back to the host.
    fn incoming_head(&self) -> usize {
        self.layout.tables.readback.next_multiple_of(8)
    }

    /// Brings what the host has to know to pinned memory on `stream`.
    fn fetch(&mut self, stream: RawStream) -> Result<()> {
        let (sections, head) = (&self.layout.tables, self.incoming_head());
        let data = self.incoming.data();
        let mut parts = Vec::new();
        if self.infos == self.table(sections.infos) {
            parts.push((0, self.tables.address(), sections.readback));
        } else {
            parts.push((sections.infos, self.infos, self.plan.blocks.len() * 4));
            let drifts = self.sensed * size_of::<tables::Drift>();
            parts.push((sections.drifts, self.table(sections.drifts), drifts));
        }
        let spans = self.head(&[Content::Clock, Content::Record]);
        parts.extend(spans.into_iter().map(|(offset, address, bytes)| (head + offset, address, bytes)));
        for (place, address, bytes) in parts.into_iter().filter(|(_, _, bytes)| *bytes > 0) {
            // SAFETY: pinned memory of that size, which nobody touches until the wait is over.
            unsafe { driver::download(data.add(place), address, bytes, stream)? };
        }
        Ok(())
    }

    fn told<T: bytemuck::Pod>(&self, at: usize) -> T {
        bytemuck::pod_read_unaligned(&self.incoming.bytes()[at..at + size_of::<T>()])
    }

    /// Makes the values of what was fetched.
    fn decode(&mut self, into: &mut Readback) {
        let (plan, sections, head) = (&self.plan, &self.layout.tables, self.incoming_head());
        into.clocks.clear();
        into.infos.clear();
        for block in &plan.blocks {
            let clocks = plan.arrays[plan.stacks[block.stack].arrays.start].offset;
            into.clocks.push(self.told(head + clocks + block.place * size_of::<Clock>()));
            into.infos.push(self.told(sections.infos + 4 * self.layout.row(block)));
        }
        into.records.clear();
        for factor in &plan.factors {
            let block = &plan.blocks[factor.block];
            let records = plan.arrays[plan.stacks[block.stack].arrays.start + 1].offset;
            let place = block.place * block.dims.len() + factor.axis;
            into.records.push(self.told(head + records + place * size_of::<FactorRecord>()));
        }
        into.sensed.clear();
        for number in 0..self.sensed {
            let drift: tables::Drift = self.told(sections.drifts + number * size_of::<tables::Drift>());
            into.sensed.push(factor::sensed(&drift));
        }
        (into.refused, into.refused_now, into.offender, into.left_out) = (0, false, None, 0);
        into.replayed = 0;
        if self.joint {
            let gate: Gate = self.told(sections.gate);
            into.refused = gate.refused;
            into.refused_now = gate.open == 0;
            into.offender = usize::try_from(gate.param).ok().filter(|_| gate.param != NONE);
            into.left_out = gate.left_out;
            into.replayed = gate.calls.saturating_sub(self.calls);
            self.calls = gate.calls;
        }
    }

    /// Takes the workspace of a caller: tables, the blocks' workspace, and the rest for the libraries.
    fn take_workspace(&mut self, (start, bytes): (u64, usize)) -> Result<()> {
        let device = self.kernels.device.clone();
        let at = start.next_multiple_of(ALIGNMENT as u64);
        let tables = self.layout.tables.bytes.next_multiple_of(ALIGNMENT);
        let fixed = tables + self.layout.work_bytes + (at - start) as usize;
        let Some(rest) = bytes.checked_sub(fixed) else {
            return Err(Error::invalid(format!(
                "the workspace has {bytes} bytes; expected more than {fixed}"
            )));
        };
        self.tables = Memory::borrowed(&device, at, tables);
        self.work = Memory::borrowed(&device, at + tables as u64, self.layout.work_bytes);
        self.linear.borrow(at + (tables + self.layout.work_bytes) as u64, rest);
        self.followed = None;
        Ok(())
    }
}

impl Device for Gpu {
    fn is_synchronous(&self) -> bool {
        false
    }

    fn state(&self) -> Option<u64> {
        self.state.as_ref().map(Memory::address)
    }

    unsafe fn read(&mut self, from: u64, into: &mut [u8]) -> Result<()> {
        let kernels = self.kernels.clone();
        let _current = kernels.device.enter()?;
        if into.is_empty() {
            return Ok(());
        }
        self.join_own()?;
        // SAFETY: the caller's contract, and nobody touches the bytes until the wait is over.
        unsafe { driver::download(into.as_mut_ptr(), from, into.len(), self.own.raw())? };
        driver::wait_for(self.own.raw())
    }

    unsafe fn write(&mut self, bytes: &[u8], to: u64) -> Result<()> {
        let kernels = self.kernels.clone();
        let _current = kernels.device.enter()?;
        self.join_own()?;
        self.abandon_refreshes()?;
        self.send(to, bytes)?;
        self.mark(self.own.raw())
    }

    unsafe fn clear(&mut self, at: u64, bytes: usize) -> Result<()> {
        let kernels = self.kernels.clone();
        let _current = kernels.device.enter()?;
        self.join_own()?;
        self.abandon_refreshes()?;
        driver::fill(at, 0, bytes, self.own.raw())?;
        driver::wait_for(self.own.raw())?;
        self.mark(self.own.raw())
    }

    fn workspace_bytes(&self) -> usize {
        self.borrowed_bytes
    }

    fn footprint(&self) -> Footprint {
        Footprint {
            state_host: 0,
            state_device: self.state.as_ref().map_or(0, Memory::bytes),
            workspace: self.work.bytes()
                + self.tables.bytes()
                + self.linear.bytes()
                + self.side.as_ref().map_or(0, Side::bytes),
            threads: 1,
        }
    }

    unsafe fn bind(&mut self, binding: &Binding) -> Result<()> {
        let kernels = self.kernels.clone();
        let _current = kernels.device.enter()?;
        let stream: RawStream = binding.stream.cast();
        let capturing = driver::is_capturing(stream)?;
        if binding.waits && capturing {
            return Err(Error::new(
                Kind::Unsupported,
                "this step must wait for the device (a check is due, a delayed refresh is taken, or ranks share it), but args.stream is being captured; expected graphs of plain steps of one process only",
            ));
        }
        let earlier = || binding.after.iter().map(|other| other.cast()).filter(|other| *other != stream);
        if capturing && earlier().next().is_some() {
            return Err(Error::new(
                Kind::Unsupported,
                "args.stream is being captured, and args.after has other streams, which a graph cannot wait for; expected none",
            ));
        }
        if let Sites::Listed(sites) = binding.sites {
            step::find_sites(self, sites)?;
        }
        if self.allocator.is_none() {
            self.take_workspace(binding.workspace)?;
        }
        self.rows = match binding.sites {
            Sites::Rows(rows) => Some(rows),
            _ => None,
        };
        (self.stream, self.capturing, self.joint) = (stream, capturing, binding.joint);
        (self.in_call, self.ticked, self.sensed, self.strict) = (true, false, 0, binding.strict);
        (self.adds, self.requested, self.arrived, self.heard) = (true, false, false, false);
        let moved = self.allocator.is_none() || self.arrays != binding.read;
        self.arrays.copy_from_slice(binding.read);
        self.write.copy_from_slice(binding.write);
        self.copies.clear();
        self.copies.extend_from_slice(binding.copies);
        let own = self.table(self.layout.tables.infos);
        let (read, write) = binding.infos;
        (self.infos, self.infos_out) = match (read, write) {
            (0, 0) => (own, own),
            (0, write) => (write, write),
            (read, 0) => (read, own),
            pair => pair,
        };
        if moved {
            self.batches = self.views();
        }
        // Whoever makes a gradient on another stream comes first.
        for other in earlier() {
            self.arrival.record(other)?;
            self.arrival.before(stream)?;
        }
        // An event from outside may enter a graph only as one that every launch waits for anew.
        match (self.is_ready, capturing) {
            (true, true) => self.ready.before_in_graph(stream)?,
            (true, false) => self.ready.before(stream)?,
            (false, _) => {}
        }
        if self.followed != Some(stream) {
            self.linear.follow(stream)?;
            self.followed = Some(stream);
        }
        Ok(())
    }

    fn carry(&mut self) -> Result<()> {
        let kernels = self.kernels.clone();
        let _current = kernels.device.enter()?;
        for (from, to, bytes) in &self.copies {
            // SAFETY: buffers of the call, of these sizes, which do not overlap.
            unsafe { driver::copy(*to, *from, *bytes, self.stream)? };
        }
        self.arrays.copy_from_slice(&self.write);
        self.infos = self.infos_out;
        self.batches = self.views();
        match self.rows {
            Some(rows) if rows.grads.0 != 0 => step::place_rows(self, &rows),
            _ => Ok(()),
        }
    }

    fn inspect(&mut self, rules: &Rules) -> Result<Inspection> {
        let kernels = self.kernels.clone();
        let _current = kernels.device.enter()?;
        self.dirty = true;
        step::inspect(self, rules)?;
        Ok(Inspection::Pending)
    }

    fn joint_gate(&self) -> Option<(u64, bool)> {
        self.joint.then(|| (self.gate(), self.strict))
    }

    fn judge(&mut self, gates: &[(u64, bool)]) -> Result<()> {
        let kernels = self.kernels.clone();
        let _current = kernels.device.enter()?;
        step::judge(self, gates)
    }

    fn accumulate(&mut self, rules: &Rules, adds: bool) -> Result<()> {
        let kernels = self.kernels.clone();
        let _current = kernels.device.enter()?;
        (self.ticked, self.adds) = (true, adds);
        step::accumulate(self, rules)
    }

    fn sense(&mut self, rules: &Rules, orders: &[SenseOrder]) -> Result<()> {
        let kernels = self.kernels.clone();
        let _current = kernels.device.enter()?;
        self.sensed = orders.len();
        match self.plan.preconditioner {
            Preconditioner::Shampoo(_) => factor::sense(self, rules, orders),
            Preconditioner::Soap(soap) => soap::sense(self, rules, &soap, orders),
        }
    }

    fn request(&mut self) -> Result<()> {
        let kernels = self.kernels.clone();
        let _current = kernels.device.enter()?;
        self.fetch(self.stream)?;
        self.requested = true;
        Ok(())
    }

    fn arrived(&mut self) {
        self.arrived = self.requested;
    }

    fn readback(&mut self, into: &mut Readback) -> Result<()> {
        let kernels = self.kernels.clone();
        let _current = kernels.device.enter()?;
        let stream = if self.in_call {
            self.stream
        } else {
            self.join_own()?;
            self.own.raw()
        };
        let (requested, arrived) = (std::mem::take(&mut self.requested), std::mem::take(&mut self.arrived));
        if !requested {
            self.fetch(stream)?;
        }
        if !arrived {
            // The one wait of a check.
            driver::wait_for(stream)?;
        }
        self.dirty = false;
        self.decode(into);
        (self.sensed, self.heard) = (0, true);
        if self.joint && (into.refused > 0 || into.left_out > 0) {
            step::acknowledge(self, stream)?;
            if !self.in_call {
                self.mark(stream)?;
            }
        }
        Ok(())
    }

    fn refresh(&mut self, rules: &Rules, orders: &[RefreshOrder], _: &mut Vec<Refreshed>) -> Result<bool> {
        let kernels = self.kernels.clone();
        let _current = kernels.device.enter()?;
        match self.plan.preconditioner {
            Preconditioner::Shampoo(_) => factor::refresh(self, rules, orders)?,
            Preconditioner::Soap(soap) => soap::refresh(self, rules, &soap, orders)?,
        }
        Ok(false)
    }

    fn postpone(&mut self, rules: &Rules, orders: &[RefreshOrder]) -> Result<()> {
        if orders.is_empty() {
            return Ok(());
        }
        let kernels = self.kernels.clone();
        let _current = kernels.device.enter()?;
        factor::keep(self, rules, orders)?;
        side::begin(self, orders)
    }

    fn resume(&mut self, orders: &[RefreshOrder]) -> Result<()> {
        if orders.is_empty() {
            return Ok(());
        }
        let kernels = self.kernels.clone();
        let _current = kernels.device.enter()?;
        side::begin(self, orders)
    }

    fn store_records(&mut self, records: &[FactorRecord], pending: &[Pending]) -> Result<()> {
        let kernels = self.kernels.clone();
        let _current = kernels.device.enter()?;
        factor::store_records(self, records, pending)?;
        match self.plan.preconditioner {
            Preconditioner::Shampoo(_) => Ok(()),
            Preconditioner::Soap(_) => soap::settle(self, pending.len()),
        }
    }

    fn redamp(&mut self, orders: &[RedampOrder]) -> Result<()> {
        let kernels = self.kernels.clone();
        let _current = kernels.device.enter()?;
        factor::redamp(self, orders)
    }

    fn apply(&mut self, rules: &Rules, bases: &[bool]) -> Result<()> {
        let kernels = self.kernels.clone();
        let _current = kernels.device.enter()?;
        for (marked, batch) in self.preconditioned.iter_mut().zip(&self.layout.batches) {
            *marked = batch.preconditioned && bases[batch.stack];
        }
        match self.plan.preconditioner {
            Preconditioner::Shampoo(own) => step::apply(self, rules, own.keeps_root),
            Preconditioner::Soap(soap) => soap::apply(self, rules, &soap),
        }
    }

    fn left_out(&self) -> u64 {
        0
    }

    fn finish(&mut self) -> Result<()> {
        let kernels = self.kernels.clone();
        let _current = kernels.device.enter()?;
        (self.in_call, self.dirty) = (false, true);
        if !self.capturing {
            return self.mark(self.stream);
        }
        self.recorded = true;
        self.ready.record_in_graph(self.stream)
    }

    fn has_news(&self) -> bool {
        self.dirty || self.recorded
    }

    fn is_recording(&self, stream: *mut libc::c_void) -> Result<bool> {
        let _current = self.kernels.device.enter()?;
        driver::is_capturing(stream.cast())
    }

    fn was_recorded(&self) -> bool {
        self.recorded
    }

    fn reopen(&mut self) {
        self.reopen = true;
    }

    fn verdict(&self) -> Option<u64> {
        Some(self.gate() + std::mem::offset_of!(Gate, bad) as u64)
    }

    fn withdraw(&mut self) -> Result<()> {
        if !self.in_call {
            return Ok(());
        }
        {
            let kernels = self.kernels.clone();
            let _current = kernels.device.enter()?;
            step::acknowledge(self, self.stream)?;
        }
        self.reopen = true;
        self.finish()
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // The caller's stream may still be at work on our memory.
        if let Ok(_current) = self.kernels.device.enter() {
            let _ = self.ready.wait();
            // So may our own.
            let _ = self.side.as_ref().map(Side::wait);
        }
    }
}

impl From<&Site> for tables::Site {
    fn from(site: &Site) -> tables::Site {
        tables::Site {
            param: site.param,
            grad: site.grad,
            lr_scale: site.lr_scale,
            decay: site.decay,
            grad_dtype: site.grad_dtype.code(),
            active: i32::from(site.active),
        }
    }
}
