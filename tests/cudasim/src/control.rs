//! What tests use: `cudasim_*` functions to set knobs, inject faults, and read counts, reasons and leaks.
//!
//! Reach them with `dlsym` on the library loaded as `libcuda.so.1`, or as Rust functions of this crate.

use libc::{c_char, c_int, c_void};

use crate::boundary::{copy_text, lock, put_if, text};
use crate::counters::{NAMES, Totals};
use crate::faults::Spoil;
use crate::handle::number;
use crate::state::{Sim, with_stack};

impl Sim {
    /// What of a context the caller still holds.
    pub fn leaks_of(&self, context: u64) -> Vec<String> {
        let mut leaks: Vec<String> = self
            .store
            .live()
            .filter(|a| a.context == context && a.place != crate::store::Place::Module)
            .map(crate::store::Alloc::name)
            .collect();
        let add = |leaks: &mut Vec<String>, kind: &str, handle: u64| {
            leaks.push(format!("{kind} {}", number(handle)))
        };
        for (handle, stream) in self.streams.live.iter().filter(|(_, s)| s.context == context && !s.builtin) {
            if stream.alive {
                add(&mut leaks, "stream", *handle);
            }
        }
        for (handle, _) in self.events.live.iter().filter(|(_, e)| e.context == context) {
            add(&mut leaks, "event", *handle);
        }
        for (handle, _) in self.modules.live.iter().filter(|(_, m)| m.context == context) {
            add(&mut leaks, "module", *handle);
        }
        for (handle, _) in self.graphs.live.iter().filter(|(_, g)| g.context == context) {
            add(&mut leaks, "graph", *handle);
        }
        for (handle, _) in self.execs.live.iter().filter(|(_, g)| g.context == context) {
            add(&mut leaks, "executable graph", *handle);
        }
        for (handle, _) in self.blas.live.iter().filter(|(_, b)| b.context == context) {
            add(&mut leaks, "cuBLAS handle", *handle);
        }
        for (handle, _) in self.solvers.live.iter().filter(|(_, s)| s.context == context) {
            add(&mut leaks, "cuSOLVER handle", *handle);
        }
        leaks
    }

    /// Everything that the caller still holds, and what died with its context.
    pub fn leaks(&self) -> Vec<String> {
        let mut leaks = self.orphans.clone();
        for (handle, context) in &self.contexts.live {
            leaks.extend(self.leaks_of(*handle));
            let kind = if context.primary { "primary context" } else { "context" };
            leaks.push(format!("{kind} {} of device {}", number(*handle), context.device));
        }
        leaks.extend(self.params.live.keys().map(|h| format!("cuSOLVER parameters {}", number(*h))));
        leaks
    }

    fn report(&self) -> String {
        let mut out = String::new();
        for (name, value) in NAMES.iter().zip(self.counters.values()).filter(|(_, v)| *v > 0) {
            out += &format!("cudasim: {name} {value}\n");
        }
        for (name, count) in self.counters.calls() {
            out += &format!("cudasim: call {name} {count}\n");
        }
        for leak in self.leaks() {
            out += &format!("cudasim: leak: {leak}\n");
        }
        out + &format!("cudasim: {} violations, {} leaks\n", self.reasons.violations, self.leaks().len())
    }
}

/// Prints the report, and ends the process with status 99 if `strict` finds anything.
pub extern "C" fn at_exit() {
    let sim = lock();
    if sim.config.report {
        eprint!("{}", sim.report());
    }
    if sim.config.strict && (sim.reasons.violations > 0 || !sim.leaks().is_empty()) {
        eprintln!("cudasim: strict: {} violations, {} leaks", sim.reasons.violations, sim.leaks().len());
        // SAFETY: ends the process without running further handlers.
        unsafe { libc::_exit(99) };
    }
}

/// Sets a knob (see `Config`); 0, or 1 if the key or value is not understood.
#[unsafe(no_mangle)]
pub extern "C" fn cudasim_set(key: *const c_char, value: *const c_char) -> c_int {
    let (Ok(key), Ok(value)) = (text(key, "key"), text(value, "value")) else { return 1 };
    let mut sim = lock();
    let known = sim.config.set(&key, &value);
    sim.apply_config();
    c_int::from(!known)
}

/// Starts anew: no contexts, no memory, no counts, no faults, no reasons. Knobs stay. Every handle and device
/// pointer is invalid afterwards; pinned memory is unmapped from the host.
#[unsafe(no_mangle)]
pub extern "C" fn cudasim_reset() {
    let mut sim = lock();
    let contexts: Vec<u64> = sim.contexts.live.keys().copied().collect();
    for context in contexts {
        // A failed context runs none of its queued work.
        if let Some(context) = sim.contexts.live.get_mut(&context) {
            context.sticky = Some((4, "the simulator was reset".to_string()));
        }
        for stream in sim.streams.live.values_mut() {
            stream.capture = None;
        }
        let _ = sim.destroy_context(context);
    }
    with_stack(Vec::clear);
    let Sim { reasons, counters, faults, races, .. } = &mut *sim;
    reasons.log.clear();
    reasons.last.clear();
    reasons.violations = 0;
    *counters = crate::counters::Counters::default();
    faults.clear();
    races.clear();
    sim.primaries.clear();
    sim.primary_flags.clear();
    sim.blas.live.clear();
    sim.solvers.live.clear();
    sim.params.live.clear();
    sim.captures.clear();
    sim.graphs.live.clear();
    sim.execs.live.clear();
    sim.orphans.clear();
    sim.store.peak = 0;
    sim.initialized = false;
    sim.apply_config();
}

/// The `nth` call of an entry point from now on (1 is the next) returns `status`.
#[unsafe(no_mangle)]
pub extern "C" fn cudasim_fail(name: *const c_char, nth: u64, status: c_int) -> c_int {
    let Ok(name) = text(name, "name") else { return 1 };
    lock().faults.fail(&name, nth, status);
    0
}

/// The `nth` decomposition from now on goes wrong: `info`, `nonorthogonal`, `nan` or `values`.
#[unsafe(no_mangle)]
pub extern "C" fn cudasim_fail_evd(nth: u64, kind: *const c_char) -> c_int {
    match text(kind, "kind").ok().as_deref().and_then(Spoil::parse) {
        Some(spoil) => {
            lock().faults.spoil(nth, spoil);
            0
        }
        None => 1,
    }
}

/// Forgets all injected faults.
#[unsafe(no_mangle)]
pub extern "C" fn cudasim_clear_faults() {
    lock().faults.clear();
}

/// Copies the totals (at most `size` bytes) and, if `reset` is not 0, starts counting anew.
#[unsafe(no_mangle)]
pub extern "C" fn cudasim_counters(out: *mut Totals, size: usize, reset: c_int) -> usize {
    let mut sim = lock();
    if !out.is_null() {
        let values = sim.counters.values();
        let count = size.min(size_of::<Totals>());
        // SAFETY: the caller promises `size` bytes at `out`.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr().cast::<u8>(), out.cast::<u8>(), count) };
    }
    if reset != 0 {
        sim.counters = crate::counters::Counters::default();
    }
    size_of::<Totals>()
}

/// One total or the calls of one entry point, by name.
#[unsafe(no_mangle)]
pub extern "C" fn cudasim_count(name: *const c_char) -> u64 {
    text(name, "name").map_or(0, |name| lock().counters.by_name(&name))
}

/// The newest reason; returns its length.
#[unsafe(no_mangle)]
pub extern "C" fn cudasim_last_reason(out: *mut c_char, size: usize) -> usize {
    copy_text(&lock().reasons.last, out, size)
}

/// All reasons kept, one a line; returns the length of the text.
#[unsafe(no_mangle)]
pub extern "C" fn cudasim_reasons(out: *mut c_char, size: usize) -> usize {
    copy_text(&lock().reasons.log.join("\n"), out, size)
}

/// How many rules were broken.
#[unsafe(no_mangle)]
pub extern "C" fn cudasim_violations() -> u64 {
    lock().reasons.violations
}

/// Forgets reasons and violations.
#[unsafe(no_mangle)]
pub extern "C" fn cudasim_clear_reasons() {
    let mut sim = lock();
    sim.reasons.log.clear();
    sim.reasons.last.clear();
    sim.reasons.violations = 0;
}

/// How many objects the caller still holds; the text lists them one a line.
#[unsafe(no_mangle)]
pub extern "C" fn cudasim_leaks(out: *mut c_char, size: usize) -> u64 {
    let leaks = lock().leaks();
    copy_text(&leaks.join("\n"), out, size);
    leaks.len() as u64
}

/// Bytes of device memory in use now, and the most ever in use.
#[unsafe(no_mangle)]
pub extern "C" fn cudasim_memory(now: *mut u64, peak: *mut u64) {
    let sim = lock();
    put_if(now, sim.store.used.iter().sum());
    put_if(peak, sim.store.peak);
}

/// How many operations have not run yet.
#[unsafe(no_mangle)]
pub extern "C" fn cudasim_pending() -> u64 {
    lock().pending.len() as u64
}

/// Reads device memory as it is now, with no wait and no checks but bounds; 0, or 1 if out of bounds.
#[unsafe(no_mangle)]
pub extern "C" fn cudasim_peek(address: u64, out: *mut c_void, bytes: usize) -> c_int {
    let sim = lock();
    match sim.store.find(address).filter(|a| a.live) {
        Some(alloc) if (address - alloc.base) as usize + bytes <= alloc.size => {
            // SAFETY: within the allocation; the caller promises `bytes` at `out`.
            unsafe {
                let from = alloc.bytes.add((address - alloc.base) as usize);
                std::ptr::copy_nonoverlapping(from, out.cast::<u8>(), bytes);
            }
            0
        }
        _ => 1,
    }
}
