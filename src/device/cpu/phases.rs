//! A job of the pool that has many short phases: one thread goes through it, and the others help with what a phase shares.
//!
//! A phase of a decomposition takes microseconds, as long as it would take to start a job of the pool. Here the helpers
//! wait for the next phase inside of one job. The thread that goes through it waits only for tasks that somebody has begun:
//! it is never held up by a helper that comes late or not at all.

use super::pool::Workers;
use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Looks for the next phase before a helper lets other threads run.
const SPINS: usize = 2_000;
/// Bits for a number of tasks.
const BITS: u32 = 16;
const MASK: u64 = (1 << BITS) - 1;

/// The phases of one job.
pub(super) struct Phases {
    /// Whether anybody else may help.
    shared: bool,
    /// The number of the phase, how many tasks it has, and how many were begun from the first on and from the last on.
    state: AtomicU64,
    /// Tasks of the phase that are done.
    done: AtomicUsize,
    /// Written between two phases by the one thread, read by whoever has begun a task.
    body: UnsafeCell<Option<*const (dyn Fn(usize) + Sync)>>,
    over: AtomicBool,
    failed: AtomicBool,
}

// SAFETY: `body` is written while no task is under way, and read by tasks alone.
unsafe impl Sync for Phases {}

impl Phases {
    /// Phases that nobody helps with.
    pub fn alone() -> Phases {
        Phases {
            shared: false,
            state: AtomicU64::new(0),
            done: AtomicUsize::new(0),
            body: UnsafeCell::new(None),
            over: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        }
    }

    /// Runs `job` on one thread, while the others of `workers` that are free help with its phases.
    pub fn run<R: Send>(workers: &Workers, job: impl FnOnce(&Phases) -> R + Send) -> Option<R> {
        let threads = workers.threads();
        if threads == 1 {
            return Some(job(&Phases::alone()));
        }
        let phases = Phases { shared: true, ..Phases::alone() };
        let whole = Once { job: Cell::new(Some(job)), result: Cell::new(None) };
        let whole = &whole;
        workers.run(threads, true, &|task, _| match task {
            0 => {
                // The helpers go even if it panics.
                let _over = Over(&phases);
                whole.run(&phases);
            }
            _ => phases.help(),
        });
        whole.result.take()
    }

    /// Calls `body` once for each number below `total`, on whichever threads are there.
    pub fn share(&self, total: usize, body: &(dyn Fn(usize) + Sync)) {
        if !self.shared || !(2..1 << BITS).contains(&total) {
            return (0..total).for_each(body);
        }
        // SAFETY: only the lifetime is erased: no task begins or goes on after this function.
        let erased: *const (dyn Fn(usize) + Sync + 'static) =
            unsafe { std::mem::transmute(std::ptr::from_ref(body)) };
        // SAFETY: no task is under way, and none begins before the state changes.
        unsafe { *self.body.get() = Some(erased) };
        self.done.store(0, Ordering::Relaxed);
        let phase = (self.state.load(Ordering::Relaxed) >> (3 * BITS)).wrapping_add(1);
        self.state.store(phase << (3 * BITS) | (total as u64) << (2 * BITS), Ordering::Release);
        {
            // Tasks of helpers read `body`, even if one of this thread panics.
            let _wait = Wait(self);
            while self.take(false) {}
        }
        if self.failed.load(Ordering::Acquire) {
            panic!("a thread that helped panicked");
        }
    }

    /// Begins and ends a task; false if there is none. Helpers take the last ones first: what a thread has in its caches
    /// from one phase, it is likely to use in the next.
    fn take(&self, from_last: bool) -> bool {
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            let (total, first, last) = counts(state);
            if first + last >= total {
                return false;
            }
            let next = state + if from_last { 1 } else { 1 << BITS };
            match self.state.compare_exchange_weak(state, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    let _done = Done(self);
                    let task = if from_last { total - 1 - last } else { first };
                    // SAFETY: the phase is not over before this task is: the body is there, and nobody writes it.
                    if let Some(body) = unsafe { *self.body.get() } {
                        // SAFETY: as above.
                        unsafe { (*body)(task) };
                    }
                    return true;
                }
                Err(now) => state = now,
            }
        }
    }

    fn help(&self) {
        let mut looks = 0;
        while !self.over.load(Ordering::Acquire) {
            if self.take(true) {
                looks = 0;
                continue;
            }
            pause(&mut looks);
        }
    }
}

/// The tasks of a phase, and those begun from the first on and from the last on.
fn counts(state: u64) -> (usize, usize, usize) {
    ((state >> (2 * BITS) & MASK) as usize, (state >> BITS & MASK) as usize, (state & MASK) as usize)
}

/// Waits a moment.
fn pause(looks: &mut usize) {
    *looks += 1;
    if *looks < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
}

/// A job that one task takes.
struct Once<J, R> {
    job: Cell<Option<J>>,
    result: Cell<Option<R>>,
}

// SAFETY: one task alone touches it, and the caller after all tasks.
unsafe impl<J: Send, R: Send> Sync for Once<J, R> {}

impl<J: FnOnce(&Phases) -> R, R> Once<J, R> {
    fn run(&self, phases: &Phases) {
        self.result.set(self.job.take().map(|job| job(phases)));
    }
}

/// Says, when dropped, that there are no more phases.
struct Over<'a>(&'a Phases);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Release);
    }
}

/// Says, when dropped, that a task is done.
struct Done<'a>(&'a Phases);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.failed.store(true, Ordering::Release);
        }
        self.0.done.fetch_add(1, Ordering::AcqRel);
    }
}

/// Waits, when dropped, for the tasks that were begun; those that were not, nobody begins any more.
struct Wait<'a>(&'a Phases);

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let Wait(phases) = self;
        // A phase of no tasks.
        let (_, first, last) = counts(phases.state.fetch_and(!(MASK << (2 * BITS)), Ordering::AcqRel));
        let mut looks = 0;
        while phases.done.load(Ordering::Acquire) < first + last {
            pause(&mut looks);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_of_every_phase_runs_once() {
        for threads in [1, 2, 3, 8] {
            let workers = Workers::new(threads).unwrap();
            let counts: Vec<AtomicUsize> = (0..50).map(|_| AtomicUsize::new(0)).collect();
            let sum = Phases::run(&workers, |phases| {
                for phase in 1..=2_000 {
                    let total = phase % 50;
                    phases.share(total, &|task| {
                        counts[task].fetch_add(1, Ordering::Relaxed);
                    });
                    let seen: usize = counts.iter().map(|count| count.swap(0, Ordering::Relaxed)).sum();
                    assert_eq!(seen, total, "{threads} threads, phase {phase}");
                }
                7
            });
            assert_eq!(sum, Some(7));
        }
    }

    #[test]
    fn a_job_inside_a_job_is_done_alone() {
        let workers = Workers::new(3).unwrap();
        let outer = AtomicUsize::new(0);
        workers.run(4, true, &|_, _| {
            let sum = Phases::run(&workers, |phases| {
                let inner = AtomicUsize::new(0);
                phases.share(10, &|task| {
                    inner.fetch_add(task, Ordering::Relaxed);
                });
                inner.into_inner()
            });
            outer.fetch_add(sum.unwrap(), Ordering::Relaxed);
        });
        assert_eq!(outer.into_inner(), 4 * 45);
    }

    #[test]
    fn a_panic_ends_the_job() {
        let workers = Workers::new(3).unwrap();
        for at in [0, 5, 9] {
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                Phases::run(&workers, |phases| {
                    phases.share(10, &|task| {
                        if task == at {
                            panic!("on purpose");
                        }
                    });
                })
            }));
            assert!(caught.is_err());
        }
        assert_eq!(Phases::run(&workers, |_| 1), Some(1));
    }
}
