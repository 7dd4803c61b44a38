//! Delayed refreshes ahead of time: a thread of the handle decomposes the statistics that `postpone` kept, one after the
//! other, while steps go on.
//!
//! It reads kept statistics and writes memory of its own, and nothing else. Whoever takes a refresh waits for one that is
//! under way, and works out by himself one that was not begun, or was begun for another order: what is found, and when
//! it is taken, depends on neither speed nor threads. So a process that forks, a system that gives no thread and a state
//! that was loaded need no care: what was not found ahead of time is found in time.
//!
//! The thread starts with the first request and ends with the handle. As in [`super::pool`], the locks are the standard
//! library's, and a child forgets the thread of its parent.

use super::real::Real;
use super::refresh::decompose;
use super::scratch::{Scratch, ScratchShape};
use super::thread::Thread;
use super::{Precision, Shared};
use crate::device::{RefreshOrder, Refreshed, Rung};
use crate::engine::plan::Plan;
use crate::error::Result;
use crate::memory::{Allocator, Arena, Counted, aligned, boxed, filled, reserved};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The refreshes of a handle that are under way.
pub(super) struct Background {
    running: Option<Running>,
    /// Where the basis of each factor goes; its spectrum follows.
    places: Vec<usize>,
    results: Arena,
    shape: ScratchShape,
    scratch: Arena,
}

/// The thread, and the process that it belongs to.
struct Running {
    shared: Counted<SharedQueue>,
    thread: Thread,
    process: u32,
}

/// What the thread and the handle share.
struct SharedQueue {
    queue: Mutex<Queue>,
    wake: Condvar,
    done: Condvar,
}

struct Queue {
    /// By factor.
    jobs: Vec<Option<Job>>,
    /// The factors of those that wait, the next one last.
    waiting: Vec<usize>,
    quit: bool,
}

/// A refresh.
#[derive(Clone, Copy)]
struct Job {
    order: RefreshOrder,
    precision: Precision,
    side: usize,
    exponent: f64,
    /// Addresses of the kept statistic, and of the basis and the spectrum to write.
    statistic: usize,
    basis: usize,
    spectrum: usize,
    stage: Stage,
}

#[derive(Clone, Copy)]
enum Stage {
    Waiting,
    UnderWay,
    /// What was found; none if the thread could not tell.
    Done(Option<Refreshed>),
}

/// What the thread is told.
struct Start {
    shared: Counted<SharedQueue>,
    scratch: Scratch,
}

impl SharedQueue {
    /// The queue. Nothing panics while it is held, so a poisoned lock is as good as any.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue, once `factor` is not under way.
    fn settled(&self, factor: usize) -> MutexGuard<'_, Queue> {
        let mut queue = self.queue();
        while matches!(queue.jobs[factor], Some(Job { stage: Stage::UnderWay, .. })) {
            queue = self.done.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue
    }
}

impl Background {
    /// Memory for the refreshes of `plan`; none if they are not delayed.
    pub fn new(plan: &Plan, shape: ScratchShape, allocator: Allocator) -> Result<Option<Background>> {
        let what = "the refreshes under way";
        if plan.factors.iter().all(|factor| factor.pending_statistic.is_none()) {
            return Ok(None);
        }
        let mut places = reserved(plan.factors.len(), what)?;
        let mut end = 0;
        for (number, factor) in plan.factors.iter().enumerate() {
            places.push(end);
            let numbers = factor.dim * (factor.dim + 1);
            end += aligned((numbers * plan.param_of(number).statistic.size()) as u128) as usize;
        }
        let results = Arena::zeroed(end, allocator, what)?;
        let scratch = Arena::zeroed(shape.bytes(), allocator, what)?;
        Ok(Some(Background { running: None, places, results, shape, scratch }))
    }

    /// Bytes that it occupies.
    pub fn bytes(&self) -> usize {
        self.results.bytes() + self.scratch.bytes()
    }

    /// Begins refreshes of statistics that were kept. Without a thread nothing is found ahead of time.
    pub fn begin(&mut self, shared: &Shared, orders: &[RefreshOrder]) {
        if orders.is_empty() {
            return;
        }
        self.forget_parents();
        if self.running.is_none() {
            self.running = self.start();
        }
        let Some(running) = &self.running else { return };
        let mut queue = running.shared.queue();
        for order in orders {
            let factor = &shared.plan.factors[order.factor];
            let precision = shared.plan.param_of(order.factor).statistic;
            let basis = self.results.as_ptr() as usize + self.places[order.factor];
            let (array, offset) = factor.pending_statistic.map_or((0, 0), |slot| shared.plan.place_of(slot));
            queue.jobs[order.factor] = Some(Job {
                order: *order,
                precision,
                side: factor.dim,
                exponent: factor.exponent,
                statistic: shared.arrays[array] as usize + offset,
                basis,
                spectrum: basis + factor.dim * factor.dim * precision.size(),
                stage: Stage::Waiting,
            });
            // What was asked for first comes first; there is room for every factor.
            queue.waiting.insert(0, order.factor);
        }
        drop(queue);
        running.shared.wake.notify_one();
    }

    /// What was found for `order`, whose basis and spectrum are copied unless every rung failed; none if the caller has to
    /// find it himself. The refresh is under way no longer.
    pub fn take<S: Real>(
        &self,
        order: &RefreshOrder,
        basis: &mut [S],
        spectrum: &mut [S],
    ) -> Option<Refreshed> {
        let running = self.running.as_ref().filter(|running| running.is_ours())?;
        let mut queue = running.shared.settled(order.factor);
        let job = queue.jobs[order.factor].take()?;
        if matches!(job.stage, Stage::Waiting) {
            queue.waiting.retain(|factor| *factor != order.factor);
        }
        let Stage::Done(Some(found)) = job.stage else { return None };
        if job.order != *order {
            return None;
        }
        if found.rung == Rung::Stale {
            // Nothing was written: basis and spectrum stay.
            return Some(found);
        }
        // SAFETY: the job's own memory, which the thread has left.
        unsafe {
            basis.copy_from_slice(std::slice::from_raw_parts(job.basis as *const S, basis.len()));
            spectrum.copy_from_slice(std::slice::from_raw_parts(job.spectrum as *const S, spectrum.len()));
        }
        Some(found)
    }

    /// No statistic is read any more, and nothing is kept of what was found.
    pub fn abandon(&mut self) {
        self.forget_parents();
        let Some(running) = &self.running else { return };
        let count = {
            let mut queue = running.shared.queue();
            queue.waiting.clear();
            queue.jobs.len()
        };
        (0..count).for_each(|factor| running.shared.settled(factor).jobs[factor] = None);
    }

    /// After a fork the thread is the parent's, and may have held a lock.
    fn forget_parents(&mut self) {
        if self.running.as_ref().is_some_and(|running| !running.is_ours()) {
            std::mem::forget(self.running.take());
        }
    }

    fn start(&self) -> Option<Running> {
        let (what, factors) = ("the refreshes under way", self.places.len());
        let queue = Queue {
            jobs: filled(None, factors, what).ok()?,
            waiting: reserved(factors, what).ok()?,
            quit: false,
        };
        let shared = SharedQueue { queue: Mutex::new(queue), wake: Condvar::new(), done: Condvar::new() };
        let shared = Counted::new(shared, what).ok()?;
        let mut scratch = Scratch::new(self.shape, None).ok()?;
        scratch.place(self.scratch.as_ptr());
        let told = boxed(Start { shared: shared.clone(), scratch }, what).ok()?;
        let thread = Thread::start(told, 0, |told| serve(*told))?;
        Some(Running { shared, thread, process: std::process::id() })
    }
}

impl Running {
    fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.abandon();
        let Some(running) = self.running.take() else { return };
        running.shared.queue().quit = true;
        running.shared.wake.notify_one();
        running.thread.join();
    }
}

/// What the thread does.
fn serve(told: Start) {
    let Start { shared, mut scratch } = told;
    // A thread inherits the environment of the one that starts it, which need not be inside a call.
    crate::abi::float_env::keep_standard();
    let mut queue = shared.queue();
    while !queue.quit {
        let Some(factor) = queue.waiting.pop() else {
            queue = shared.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        let Some(job) = queue.jobs[factor].as_mut() else { continue };
        job.stage = Stage::UnderWay;
        let job = *job;
        drop(queue);
        // Whoever takes the refresh does what fails here again, and fails as he would have.
        let found = catch_unwind(AssertUnwindSafe(|| work(&job, &mut scratch))).ok().flatten();
        queue = shared.queue();
        if let Some(job) = queue.jobs[factor].as_mut() {
            job.stage = Stage::Done(found);
        }
        shared.done.notify_all();
    }
}

/// None without memory for products.
fn work(job: &Job, scratch: &mut Scratch) -> Option<Refreshed> {
    super::product::ready().ok()?;
    Some(match job.precision {
        Precision::F32 => work_in::<f32>(job, scratch),
        Precision::F64 => work_in::<f64>(job, scratch),
    })
}

fn work_in<S: Real>(job: &Job, scratch: &mut Scratch) -> Refreshed {
    let n = job.side;
    // SAFETY: the kept statistic, which nobody writes while the job is under way, and memory of the job's own.
    let (statistic, basis, spectrum) = unsafe {
        (
            std::slice::from_raw_parts(job.statistic as *const S, n * n),
            std::slice::from_raw_parts_mut(job.basis as *mut S, n * n),
            std::slice::from_raw_parts_mut(job.spectrum as *mut S, n),
        )
    };
    decompose(statistic, &job.order, job.exponent, basis, spectrum, scratch)
}
