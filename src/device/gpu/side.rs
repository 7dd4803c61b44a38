//! Delayed refreshes ahead of time: the statistics that `postpone` kept are decomposed on a stream of our own, beside the
//! steps that go on.
//!
//! | stream | does | when |
//! | --- | --- | --- |
//! | the caller's | copies the statistic, then marks `kept` | the check that asks |
//! | ours | after `kept`: decomposes the copy into memory of its own, then marks `found` | as soon as it can |
//! | the caller's | after `found`: takes basis and spectrum over | `refresh_delay` steps later |
//!
//! In between nobody waits for the other, and the host for none of them. Libraries, workspace and tasks are the side's
//! own. Whoever takes a refresh that was not begun here, or was begun for another order, decomposes the kept statistic
//! himself: what is found does not depend on where.
//!
//! A factor has one refresh under way, and the host has waited for the step that took it before the next one is asked
//! for. So the requests that the host does not know to be done have different factors, and as many tasks as there are
//! factors at the most. Tasks are placed one behind the other, each request in one piece, and from the start again where
//! the rest is too short: with room for twice as many tasks as factors, none takes the place of one that may be needed.

use super::Gpu;
use super::cuda::driver::{self, ALIGNMENT, Event, Memory, Pinned, RawStream, Stream};
use super::cuda::linear::{Handles, Linear};
use super::cuda::probe;
use super::factor::{decompose_all, noise_tasks, refresh_task};
use super::tables::{Renewal, Task};
use crate::device::RefreshOrder;
use crate::error::Result;
use crate::memory::{Allocator, filled, reserved};

/// Requests that have a mark of their own. A mark that is used again only makes whoever waits for it wait longer: work
/// on the stream is done in its order.
const MARKS: usize = 4;

/// The refreshes of a handle that are under way.
pub(super) struct Side {
    stream: Stream,
    linear: Linear,
    work: Memory,
    /// What was found, the answers, and the tasks.
    memory: Memory,
    /// Where the basis of each factor goes; its spectrum follows.
    places: Vec<usize>,
    renewals: usize,
    tasks: usize,
    /// Tasks on their way to the device.
    staged: Pinned,
    /// Place of the next request's first task.
    next: usize,
    kept: Event,
    found: [Event; MARKS],
    /// Requests so far.
    requests: usize,
    /// By factor.
    jobs: Vec<Option<Job>>,
}

/// A refresh that was begun.
#[derive(Clone, Copy)]
struct Job {
    order: RefreshOrder,
    /// Which mark comes after it.
    mark: usize,
}

/// Room for the tasks of two lists: those of the decompositions, and those of their noise floors.
fn room(factors: usize) -> usize {
    2 * factors
}

impl Side {
    /// Stream, libraries and memory for the refreshes of `gpu`. The context is current.
    pub fn new(gpu: &mut Gpu, allocator: Allocator) -> Result<Side> {
        let what = "the refreshes under way";
        let (device, plan) = (gpu.kernels.device.clone(), gpu.plan.clone());
        let factors = plan.factors.len();
        let mut places = reserved(factors, what)?;
        let mut end = 0usize;
        let mut section = |bytes: usize| {
            let at = end;
            end = (end + bytes).next_multiple_of(ALIGNMENT);
            at
        };
        for (number, factor) in plan.factors.iter().enumerate() {
            let numbers = factor.dim * (factor.dim + 1);
            places.push(section(numbers * plan.param_of(number).statistic.size()));
        }
        let renewals = section(factors * size_of::<Renewal>());
        let staged_bytes = 2 * room(factors) * size_of::<Task>();
        let tasks = section(staged_bytes);
        let stream = Stream::new(&device)?;
        // Products that decide about a basis are exact.
        let mut linear =
            Linear::new(Handles::new(&device)?, Some(allocator), probe::has_batched_solver(), false)?;
        linear.follow(stream.raw())?;
        let event = || Event::new(&device);
        let mut made = Side {
            stream,
            linear,
            work: Memory::new(&device, gpu.layout.side_bytes, allocator, what)?,
            memory: Memory::new(&device, end, allocator, what)?,
            places,
            renewals,
            tasks,
            staged: Pinned::new(&device, staged_bytes)?,
            next: 0,
            kept: event()?,
            found: [event()?, event()?, event()?, event()?],
            requests: 0,
            jobs: filled(None, factors, what)?,
        };
        let (solver, host) = made.run(gpu, |gpu| gpu.solver_needs())?;
        made.linear.reserve(solver, host, Some(allocator))?;
        Ok(made)
    }

    /// Bytes of device memory that it occupies.
    pub fn bytes(&self) -> usize {
        self.work.bytes() + self.memory.bytes() + self.linear.bytes()
    }

    /// The host waits until nothing is under way.
    pub fn wait(&self) -> Result<()> {
        driver::wait_for(self.stream.raw())
    }

    /// What is put on `stream` from now on comes after all that was begun, of which nothing is kept.
    pub fn abandon(&mut self, stream: RawStream) -> Result<()> {
        self.jobs.fill(None);
        match self.requests.checked_sub(1) {
            Some(last) => self.found[last % MARKS].before(stream),
            None => Ok(()),
        }
    }

    /// What `work` puts on the queue goes to the side's stream, with its workspace and libraries.
    fn run<T>(&mut self, gpu: &mut Gpu, work: impl FnOnce(&mut Gpu) -> Result<T>) -> Result<T> {
        let mut stream = self.stream.raw();
        let mut exchange = |gpu: &mut Gpu| {
            std::mem::swap(&mut gpu.stream, &mut stream);
            std::mem::swap(&mut gpu.linear, &mut self.linear);
            std::mem::swap(&mut gpu.work, &mut self.work);
        };
        exchange(gpu);
        let outcome = work(gpu);
        exchange(gpu);
        outcome
    }

    /// Where the basis of a factor goes.
    fn place(&self, factor: usize) -> u64 {
        self.memory.address() + self.places[factor] as u64
    }

    /// Where the answer to a refresh of a factor goes.
    fn renewal(&self, factor: usize) -> u64 {
        self.memory.address() + (self.renewals + factor * size_of::<Renewal>()) as u64
    }

    /// The task that decomposes the kept statistic of a factor into the side's memory.
    fn task(&self, gpu: &Gpu, order: &RefreshOrder) -> Task {
        let factor = &gpu.plan.factors[order.factor];
        let size = gpu.plan.param_of(order.factor).statistic.size();
        let basis = self.place(order.factor);
        let spectrum = basis + (factor.dim * factor.dim * size) as u64;
        let report = self.renewal(order.factor);
        Task { basis, spectrum, fresh: 0, report, due: 0, ..refresh_task(gpu, order, None) }
    }

    /// Brings the tasks of a request to the device on `stream`; gives the addresses of the two lists, of which the
    /// second is 0 if it is empty.
    fn send(&mut self, lists: [&[Task]; 2], stream: RawStream) -> Result<[u64; 2]> {
        let (count, room) = (lists[0].len(), room(self.jobs.len()));
        let first = if self.next + count <= room { self.next } else { 0 };
        self.next = first + count;
        let mut addresses = [0; 2];
        for (number, list) in lists.into_iter().enumerate().filter(|(_, list)| !list.is_empty()) {
            let bytes: &[u8] = bytemuck::cast_slice(list);
            let offset = (number * room + first) * size_of::<Task>();
            addresses[number] = self.memory.address() + (self.tasks + offset) as u64;
            // SAFETY: the pinned lists have that room, and what was there has been copied: see the head of this file.
            unsafe {
                let staged = self.staged.data().add(offset);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), staged, bytes.len());
                driver::upload(addresses[number], staged, bytes.len(), stream)?;
            }
        }
        Ok(addresses)
    }

    fn begin(&mut self, gpu: &mut Gpu, orders: &[RefreshOrder]) -> Result<()> {
        let tasks: Vec<Task> = orders.iter().map(|order| self.task(gpu, order)).collect();
        let orders: Vec<&RefreshOrder> = orders.iter().collect();
        let noise = noise_tasks(&orders, &tasks);
        let [list, noise] = self.send([&tasks, &noise], gpu.stream)?;
        self.kept.record(gpu.stream)?;
        self.kept.before(self.stream.raw())?;
        self.run(gpu, |gpu| decompose_all(gpu, &orders, list, noise))?;
        let mark = self.requests % MARKS;
        self.found[mark].record(self.stream.raw())?;
        self.requests += 1;
        for order in orders {
            self.jobs[order.factor] = Some(Job { order: *order, mark });
        }
        Ok(())
    }
}

/// Begins refreshes of statistics that were kept. Without a side nothing is found ahead of time.
pub(super) fn begin(gpu: &mut Gpu, orders: &[RefreshOrder]) -> Result<()> {
    let Some(mut side) = gpu.side.take() else { return Ok(()) };
    let outcome = side.begin(gpu, orders);
    if outcome.is_err() {
        // What was begun and has no mark must not be met by what comes next. The first error is the one to tell.
        let _ = side.wait();
    }
    gpu.side = Some(side);
    outcome
}

/// The caller's stream waits for the refreshes that are to be taken. Gives those that are still to be made, and those
/// that were found ahead of time, in their order.
pub(super) fn await_found<'a>(
    gpu: &Gpu,
    orders: Vec<&'a RefreshOrder>,
) -> Result<(Vec<&'a RefreshOrder>, Vec<&'a RefreshOrder>)> {
    let Some(side) = &gpu.side else { return Ok((orders, Vec::new())) };
    let mut awaited = [false; MARKS];
    let (mut open, mut found) = (Vec::new(), Vec::new());
    for order in orders {
        let job = side.jobs[order.factor].filter(|_| order.delayed);
        if let Some(job) = job {
            // Also where it is of no use: it reads what the next request writes.
            if !std::mem::replace(&mut awaited[job.mark], true) {
                side.found[job.mark].before(gpu.stream)?;
            }
        }
        let same = job.is_some_and(|job| job.order == RefreshOrder { due: 0, ..*order });
        if same { found.push(order) } else { open.push(order) }
    }
    Ok((open, found))
}

/// The task that takes over what was found ahead of time for a factor.
pub(super) fn task(gpu: &Gpu, own: Task, order: &RefreshOrder) -> Task {
    let Some(side) = &gpu.side else { return own };
    Task { found: side.place(order.factor), renewal: side.renewal(order.factor), ..own }
}
