//! A private pool that runs numbered tasks. It exists because a step must not allocate: rayon's
//! injector allocates a block every few dozen calls.
//!
//! Threads start at the first parallel call, so a process may fork before its first step; a child
//! that inherits a pool without threads starts new ones. That is why the locks here are the standard
//! library's: parking_lot keeps sleepers in one table of the process, in which a child would find its
//! parent's threads and wake them in vain.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;

/// A worker looks this often for the next job before it sleeps: phases of one step follow each other
/// within microseconds, and waking a thread costs more than that.
const SPINS: usize = 20_000;

/// Runs tasks on `threads` threads, the caller's included.
pub struct Pool {
    threads: usize,
    running: Option<Threads>,
}

/// A pool of one's own, or the process's pool of that size, which serves one call at a time.
pub enum Workers {
    /// For a handle.
    Own(Pool),
    /// For calls without a handle.
    Shared(usize, &'static Mutex<Pool>),
}

impl Workers {
    /// A pool of one's own; 0 threads means one for each core.
    pub fn own(threads: usize) -> Workers {
        Workers::Own(Pool::new(threads))
    }

    /// The process's pool of `threads` threads; 0 means one for each core. It is never given up.
    pub fn shared(threads: usize) -> Workers {
        static POOLS: Mutex<Vec<(usize, &'static Mutex<Pool>)>> = Mutex::new(Vec::new());
        let threads = if threads == 0 { cores() } else { threads };
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        let known = pools.iter().find(|pool| pool.0 == threads).map(|pool| pool.1);
        let pool = known.unwrap_or_else(|| {
            let pool = Box::leak(Box::new(Mutex::new(Pool::new(threads))));
            pools.push((threads, pool));
            pool
        });
        Workers::Shared(threads, pool)
    }

    /// Threads that share the work.
    pub fn threads(&self) -> usize {
        match self {
            Workers::Own(pool) => pool.threads(),
            Workers::Shared(threads, _) => *threads,
        }
    }

    /// As [`Pool::run`]. While another call has the shared pool, the caller does all of its work itself:
    /// nobody waits, and the result is the same.
    pub fn run(&mut self, total: usize, parallel: bool, body: &(dyn Fn(usize, usize) + Sync)) {
        match self {
            Workers::Own(pool) => pool.run(total, parallel, body),
            Workers::Shared(threads, _) if *threads == 1 || total <= 1 || !parallel => {
                (0..total).for_each(|task| body(task, 0));
            }
            Workers::Shared(_, pool) => match pool.try_lock() {
                Ok(mut pool) => pool.run(total, parallel, body),
                // A pool survives the panic of a task.
                Err(TryLockError::Poisoned(pool)) => pool.into_inner().run(total, parallel, body),
                Err(TryLockError::WouldBlock) => (0..total).for_each(|task| body(task, 0)),
            },
        }
    }
}

/// The cores of the machine, asked once: a workspace's size depends on it.
fn cores() -> usize {
    static CORES: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, |n| n.get()))
}

struct Threads {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
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

impl Pool {
    /// A pool of `threads` threads; 0 means one for each core.
    pub fn new(threads: usize) -> Pool {
        Pool { threads: if threads == 0 { cores() } else { threads }, running: None }
    }

    /// Threads that share the work.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Calls `body(task, worker)` once for every task below `total`; workers are numbered from 0 and
    /// below [`Pool::threads`]. With `parallel` false, or nothing to share, the caller does it all.
    pub fn run(&mut self, total: usize, parallel: bool, body: &(dyn Fn(usize, usize) + Sync)) {
        if self.threads == 1 || total <= 1 || !parallel {
            (0..total).for_each(|task| body(task, 0));
            return;
        }
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

    /// The running threads, started if need be; none if the system gives no thread.
    fn running(&mut self) -> Option<Arc<Shared>> {
        let process = std::process::id();
        if self.running.as_ref().is_some_and(|running| running.process != process) {
            // After a fork the threads are the parent's: forget their handles.
            if let Some(running) = self.running.take() {
                std::mem::forget(running);
            }
        }
        if self.running.is_none() {
            let shared = Arc::new(Shared {
                generation: AtomicU64::new(0),
                queue: Mutex::new(Queue { job: None, active: 0, quit: false }),
                wake: Condvar::new(),
                done: Condvar::new(),
            });
            let workers: Vec<_> = (1..self.threads)
                .map_while(|number| {
                    let shared = shared.clone();
                    std::thread::Builder::new()
                        .name(format!("foam-{number}"))
                        .spawn(move || serve(&shared, number))
                        .ok()
                })
                .collect();
            if workers.is_empty() {
                return None;
            }
            self.running = Some(Threads { shared, workers, process });
        }
        self.running.as_ref().map(|running| running.shared.clone())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            self.workers.drain(..).for_each(std::mem::forget);
            return;
        }
        self.shared.queue().quit = true;
        self.shared.generation.fetch_add(1, Ordering::Release);
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker never panics outside a job, and a job's panic is caught.
            let _ = worker.join();
        }
    }
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
        let mut pool = Pool::new(3);
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
        let mut pool = Pool::new(2);
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
}
