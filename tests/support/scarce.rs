//! An allocator that counts while it is told to, and refuses one allocation, or all from one on.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering::SeqCst};

/// The system's allocator with these manners.
pub struct Scarce;

pub static ARMED: AtomicBool = AtomicBool::new(false);
static STAYS_EMPTY: AtomicBool = AtomicBool::new(false);
/// Allocations until one is refused.
static LEFT: AtomicIsize = AtomicIsize::new(0);
/// A larger allocation than this is always refused, as on a machine with less memory.
pub static LARGEST: AtomicIsize = AtomicIsize::new(isize::MAX);
/// Allocations in all.
pub static CALLS: AtomicIsize = AtomicIsize::new(0);
static HELD: AtomicIsize = AtomicIsize::new(0);
static PEAK: AtomicIsize = AtomicIsize::new(0);
/// Shows where every refused allocation was asked for.
pub static SHOWS: AtomicBool = AtomicBool::new(false);

fn refuses() -> bool {
    if !ARMED.load(SeqCst) {
        return false;
    }
    let left = LEFT.fetch_sub(1, SeqCst);
    let refused = left == 0 || (left < 0 && STAYS_EMPTY.load(SeqCst));
    if refused && SHOWS.load(SeqCst) {
        ARMED.store(false, SeqCst);
        eprintln!("refused:\n{}", std::backtrace::Backtrace::force_capture());
        ARMED.store(true, SeqCst);
    }
    refused
}

fn holds(change: isize) {
    if ARMED.load(SeqCst) {
        PEAK.fetch_max(HELD.fetch_add(change, SeqCst) + change, SeqCst);
    }
}

// SAFETY: everything is handed to the system's allocator as it came, or refused with a null pointer.
unsafe impl GlobalAlloc for Scarce {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, SeqCst);
        // The products' library takes its pages on every thread once, right after they were asked for and given back;
        // it has no way to be refused.
        if layout.align() == 4096 {
            // SAFETY: the caller's contract.
            return unsafe { System.alloc(layout) };
        }
        if refuses() || layout.size() as isize > LARGEST.load(SeqCst) {
            return null_mut();
        }
        holds(layout.size() as isize);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, data: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if refuses() {
            return null_mut();
        }
        holds(size as isize - layout.size() as isize);
        // SAFETY: the caller's contract.
        unsafe { System.realloc(data, layout, size) }
    }

    unsafe fn dealloc(&self, data: *mut u8, layout: Layout) {
        holds(-(layout.size() as isize));
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(data, layout) }
    }
}

/// What a call gives whose allocation `number` is refused (and all after it, if memory `stays_empty`), and whether it
/// got that far.
pub fn with_refusal<T>(number: isize, stays_empty: bool, call: impl FnOnce() -> T) -> (T, bool) {
    LEFT.store(number, SeqCst);
    STAYS_EMPTY.store(stays_empty, SeqCst);
    ARMED.store(true, SeqCst);
    let outcome = call();
    ARMED.store(false, SeqCst);
    (outcome, LEFT.load(SeqCst) < 0)
}

/// The most bytes that a call held at once.
pub fn peak<T>(call: impl FnOnce() -> T) -> (T, isize) {
    HELD.store(0, SeqCst);
    PEAK.store(0, SeqCst);
    let (outcome, _) = with_refusal(isize::MAX, false, call);
    (outcome, PEAK.load(SeqCst))
}
