//! The process's threads, which run numbered tasks. It exists because a step must not allocate: rayon's
//! injector allocates a block every few dozen calls.
//!
//! There is one pool for each number of threads that somebody asked for, however many handles and sessions there are:
//! it serves one call at a time, and a call that finds it taken does its work on its own thread. Nobody waits, and
//! the result is the same. The threads end with the last handle or session of that number.
//!
//! Threads start at the first parallel call, so a process may fork before its first step; a child
//! that inherits a pool without threads starts new ones. That is why the locks here are the standard
//! library's: parking_lot keeps sleepers in one table of the process, in which a child would find its
//! parent's threads and wake them in vain. And it is why a pool is taken by the number of the process, and why
//! the list of pools only ever grows at its head: a fork finds neither in the middle of a change.
//!
//! Nothing here aborts for want of memory or threads: with fewer threads than asked for, fewer share the work.

use super::thread::Thread;
use crate::error::Result;
use crate::memory::{Counted, boxed, probe, reserved};
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A worker looks this often for the next job before it sleeps: phases of one step follow each other
/// within microseconds, and waking a thread costs more than that.
const SPINS: usize = 20_000;

/// A share in the process's pool of some number of threads, the caller's included.
pub struct Workers(&'static Pool);

/// The pools of the process, newest first. None is ever taken out.
static POOLS: AtomicPtr<Pool> = AtomicPtr::new(null_mut());

impl Workers {
    /// A share in the pool of `threads` threads; 0 means one for each core.
    pub fn new(threads: usize) -> Result<Workers> {
        let threads = if threads == 0 { cores()? } else { threads };
        let mut made: Option<Box<Pool>> = None;
        loop {
            let first = POOLS.load(Ordering::Acquire);
            if let Some(pool) = find(first, threads) {
                pool.users.fetch_add(1, Ordering::AcqRel);
                return Ok(Workers(pool));
            }
            let mut pool = match made.take() {
                Some(pool) => pool,
                None => boxed(Pool::new(threads), "the threads")?,
            };
            pool.next = first;
            let pool = Box::into_raw(pool);
            if POOLS.compare_exchange(first, pool, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: nobody else has seen it.
                made = Some(unsafe { Box::from_raw(pool) });
            }
        }
    }

    /// Threads that share the work.
    pub fn threads(&self) -> usize {
        self.0.threads
    }

    /// Calls `body(task, worker)` once for every task below `total`; workers are numbered from 0 and
    /// below [`Workers::threads`]. With `parallel` false, nothing to share, or the pool in use, the caller does it
    /// all.
    pub fn run(&self, total: usize, parallel: bool, body: &(dyn Fn(usize, usize) + Sync)) {
        let shares = self.0.threads > 1 && total > 1 && parallel;
        match shares.then(|| self.0.take()).flatten() {
            Some(mut taken) => taken.run(total, body),
            None => (0..total).for_each(|task| body(task, 0)),
        }
    }
}

impl Clone for Workers {
    fn clone(&self) -> Workers {
        self.0.users.fetch_add(1, Ordering::AcqRel);
        Workers(self.0)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        if self.0.users.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        // Whoever came meanwhile and finds the pool taken does one job alone, and starts new threads for the next.
        if let Some(mut taken) = self.0.take()
            && self.0.users.load(Ordering::Acquire) == 0
        {
            taken.end();
        }
    }
}

fn find(first: *const Pool, threads: usize) -> Option<&'static Pool> {
    // SAFETY: pools in the list are never freed, and their links never change.
    let mut pool = unsafe { first.as_ref() };
    while let Some(own) = pool.filter(|pool| pool.threads != threads) {
        // SAFETY: as above.
        pool = unsafe { own.next.as_ref() };
    }
    pool
}

/// The cores of the machine, asked once: a workspace's size depends on it.
fn cores() -> Result<usize> {
    static CORES: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    if CORES.get().is_none() {
        // The standard library reads the limits of the process into memory that it cannot be refused.
        probe(1 << 20, "the number of cores")?;
    }
    Ok(*CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, |n| n.get())))
}

/// One pool. What runs belongs to whoever took it.
struct Pool {
    threads: usize,
    users: AtomicUsize,
    /// The process that took it; 0 if it is free. Another process than this one is the one before a fork.
    taken: AtomicU32,
    running: UnsafeCell<Option<Threads>>,
    next: *const Pool,
}

// SAFETY: `running` is touched by the one who took the pool alone, and `next` is set before others see the pool.
unsafe impl Sync for Pool {}

struct Threads {
    shared: Counted<Shared>,
    workers: Vec<Thread>,
    process: u32,
}

struct Shared {
    /// Counts jobs; workers watch it without taking the lock.
    generation: AtomicU64,
    queue: Mutex<Queue>,
    wake: Condvar,
    done: Condvar,
}

impl Shared {
    /// The queue. Nothing panics while it is held, so a poisoned lock is as good as any.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Queue {
    job: Option<Job>,
    /// Workers inside the current job.
    active: usize,
    quit: bool,
}

/// A job lives on the caller's stack; the caller does not return before `active` is zero.
#[derive(Clone, Copy)]
struct Job {
    body: *const (dyn Fn(usize, usize) + Sync),
    next: *const AtomicUsize,
    failed: *const AtomicBool,
    total: usize,
}

// SAFETY: the pointees are Sync and outlive the job (see `Pool::run`).
unsafe impl Send for Job {}

/// What a new worker is told.
struct Start {
    shared: Counted<Shared>,
    number: usize,
}

impl Pool {
    fn new(threads: usize) -> Pool {
        Pool {
            threads,
            users: AtomicUsize::new(0),
            taken: AtomicU32::new(0),
            running: UnsafeCell::new(None),
            next: std::ptr::null(),
        }
    }

    /// Takes the pool, unless somebody else has it.
    fn take(&self) -> Option<Taken<'_>> {
        let process = std::process::id();
        let found = self.taken.load(Ordering::Relaxed);
        if found == process {
            return None;
        }
        let got = self.taken.compare_exchange(found, process, Ordering::Acquire, Ordering::Relaxed);
        got.ok().map(|_| Taken { pool: self, process })
    }
}

/// A pool that is taken, until it is dropped.
struct Taken<'a> {
    pool: &'a Pool,
    process: u32,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.pool.taken.store(0, Ordering::Release);
    }
}

impl Taken<'_> {
    fn run(&mut self, total: usize, body: &(dyn Fn(usize, usize) + Sync)) {
        let Some(running) = self.running() else {
            (0..total).for_each(|task| body(task, 0));
            return;
        };
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        // SAFETY: only the lifetime is erased; the job is withdrawn and all workers have left it
        // before this function returns or unwinds.
        let body: *const (dyn Fn(usize, usize) + Sync + 'static) =
            unsafe { std::mem::transmute(std::ptr::from_ref(body)) };
        let job = Job { body, next: &raw const next, failed: &raw const failed, total };
        {
            let mut queue = running.queue();
            queue.job = Some(job);
            running.generation.fetch_add(1, Ordering::Release);
            running.wake.notify_all();
        }
        let own = catch_unwind(AssertUnwindSafe(|| work(&job, 0)));
        let mut queue = running.queue();
        queue.job = None;
        while queue.active > 0 {
            queue = running.done.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        drop(queue);
        if let Err(payload) = own {
            resume_unwind(payload);
        }
        if failed.load(Ordering::Acquire) {
            panic!("a worker thread panicked");
        }
    }

    fn slot(&mut self) -> &mut Option<Threads> {
        // SAFETY: the pool is taken by this one alone.
        unsafe { &mut *self.pool.running.get() }
    }

    /// The running threads, started if need be; none if the system gives no thread.
    fn running(&mut self) -> Option<Counted<Shared>> {
        let (process, threads) = (self.process, self.pool.threads);
        let slot = self.slot();
        if slot.as_ref().is_some_and(|running| running.process != process) {
            // After a fork the threads are the parent's: forget their handles.
            std::mem::forget(slot.take());
        }
        if slot.is_none() {
            *slot = start(threads, process);
        }
        slot.as_ref().map(|running| running.shared.clone())
    }

    /// Ends the threads.
    fn end(&mut self) {
        let process = self.process;
        let Some(running) = self.slot().take() else { return };
        if running.process != process {
            std::mem::forget(running);
            return;
        }
        running.shared.queue().quit = true;
        running.shared.generation.fetch_add(1, Ordering::Release);
        running.shared.wake.notify_all();
        // A worker never panics outside a job, and a job's panic is caught.
        running.workers.into_iter().for_each(Thread::join);
    }
}

/// Starts as many threads as the system gives; none is no pool.
fn start(threads: usize, process: u32) -> Option<Threads> {
    let what = "the threads";
    let shared = Shared {
        generation: AtomicU64::new(0),
        queue: Mutex::new(Queue { job: None, active: 0, quit: false }),
        wake: Condvar::new(),
        done: Condvar::new(),
    };
    let shared = Counted::new(shared, what).ok()?;
    let mut workers = reserved(threads - 1, what).ok()?;
    for number in 1..threads {
        let told = boxed(Start { shared: shared.clone(), number }, what).ok();
        let Some(worker) = told.and_then(|told| {
            Thread::start(told, number, |told| {
                serve(&told.shared, told.number);
            })
        }) else {
            break;
        };
        workers.push(worker);
    }
    (!workers.is_empty()).then_some(Threads { shared, workers, process })
}

fn work(job: &Job, worker: usize) {
    // SAFETY: the job is alive while it is worked on.
    let (body, next) = unsafe { (&*job.body, &*job.next) };
    loop {
        let task = next.fetch_add(1, Ordering::Relaxed);
        if task >= job.total {
            return;
        }
        body(task, worker);
    }
}

fn serve(shared: &Shared, worker: usize) {
    // A thread inherits the environment of the one that starts it, which need not be inside a call.
    crate::abi::float_env::keep_standard();
    // Here, where nobody waits for it, and not with the first job.
    let mut ready = super::product::ready().is_ok();
    let mut seen = 0;
    loop {
        for _ in 0..SPINS {
            if shared.generation.load(Ordering::Acquire) != seen {
                break;
            }
            std::hint::spin_loop();
        }
        let mut queue = shared.queue();
        while shared.generation.load(Ordering::Acquire) == seen && !queue.quit {
            queue = shared.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        seen = shared.generation.load(Ordering::Acquire);
        if queue.quit {
            return;
        }
        let Some(job) = queue.job else { continue };
        // Without memory for products this one sits the job out; the others, or the caller, do it all.
        ready = ready || super::product::ready().is_ok();
        if !ready {
            continue;
        }
        queue.active += 1;
        drop(queue);
        if catch_unwind(AssertUnwindSafe(|| work(&job, worker))).is_err() {
            // SAFETY: the job is alive until `active` is zero again.
            unsafe { (*job.failed).store(true, Ordering::Release) };
        }
        let mut queue = shared.queue();
        queue.active -= 1;
        if queue.active == 0 {
            shared.done.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_and_workers_are_numbered() {
        let pool = Workers::new(3).unwrap();
        for _ in 0..200 {
            let counts: Vec<AtomicUsize> = (0..37).map(|_| AtomicUsize::new(0)).collect();
            pool.run(counts.len(), true, &|task, worker| {
                assert!(worker < 3);
                counts[task].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn a_panic_in_a_task_reaches_the_caller_and_the_pool_survives() {
        let pool = Workers::new(2).unwrap();
        let caught = catch_unwind(AssertUnwindSafe(|| {
            pool.run(16, true, &|task, _| assert!(task != 7, "task seven"));
        }));
        assert!(caught.is_err());
        let count = AtomicUsize::new(0);
        pool.run(16, true, &|_, _| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.load(Ordering::Relaxed), 16);
    }

    #[test]
    fn one_pool_serves_all_who_ask_for_as_many_threads() {
        let shares: Vec<_> = (0..40).map(|_| Workers::new(5).unwrap()).collect();
        let other = Workers::new(6).unwrap();
        assert!(shares.iter().all(|share| std::ptr::eq(share.0, shares[0].0)));
        assert!(!std::ptr::eq(shares[0].0, other.0));
        let count = AtomicUsize::new(0);
        // Whoever finds the pool taken, as the inner ones do, does the work alone.
        shares[0].run(8, true, &|_, _| {
            shares[1].run(8, true, &|_, worker| {
                assert_eq!(worker, 0);
                count.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(count.load(Ordering::Relaxed), 64);
    }
}
