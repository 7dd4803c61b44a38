//! What every entry point goes through: the lock, the count, injected faults, the status, no panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{LazyLock, Mutex, MutexGuard};

use crate::reason::{Fault, Kind, Library, Result, refuse};
use crate::state::Sim;

static SIM: LazyLock<Mutex<Sim>> = LazyLock::new(|| Mutex::new(Sim::default()));

/// The simulator, for one caller at a time.
pub fn lock() -> MutexGuard<'static, Sim> {
    SIM.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn cross(name: &'static str, library: Library, body: impl FnOnce(&mut Sim) -> Result) -> i32 {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut sim = lock();
        sim.counters.call(name);
        if let Some(status) = sim.faults.strike(name) {
            sim.counters.totals.injected += 1;
            let fault = Fault { kind: Kind::Injected(status), reason: format!("status {status} by request") };
            sim.reasons.note(name, &fault);
            return status;
        }
        match body(&mut sim) {
            Ok(()) => 0,
            Err(fault) => {
                sim.reasons.note(name, &fault);
                fault.kind.status(library)
            }
        }
    }));
    outcome.unwrap_or_else(|_| {
        let fault = Fault { kind: Kind::Internal, reason: "the simulator panicked".to_string() };
        lock().reasons.note(name, &fault);
        Kind::Internal.status(library)
    })
}

/// An entry point of the driver.
pub fn driver(name: &'static str, body: impl FnOnce(&mut Sim) -> Result) -> i32 {
    cross(name, Library::Driver, body)
}

/// An entry point of cuBLAS.
pub fn blas(name: &'static str, body: impl FnOnce(&mut Sim) -> Result) -> i32 {
    cross(name, Library::Blas, body)
}

/// An entry point of cuSOLVER.
pub fn solver(name: &'static str, body: impl FnOnce(&mut Sim) -> Result) -> i32 {
    cross(name, Library::Solver, body)
}

/// Writes through an output pointer of the caller.
pub(crate) fn put<T>(out: *mut T, value: T, name: &str) -> Result {
    if out.is_null() || !out.is_aligned() {
        refuse!(InvalidValue, "{name} is null or not aligned");
    }
    // SAFETY: the caller of the C function promises a valid output; null and alignment are checked.
    unsafe { out.write(value) };
    Ok(())
}

/// Writes through an optional output pointer.
pub(crate) fn put_if<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: as in `put`.
        unsafe { out.write_unaligned(value) };
    }
}

/// Reads through a pointer of the caller.
pub(crate) fn take<T: Copy>(from: *const T, name: &str) -> Result<T> {
    if from.is_null() {
        refuse!(InvalidValue, "{name} is null");
    }
    // SAFETY: the caller of the C function promises a valid input; null is checked.
    Ok(unsafe { from.read_unaligned() })
}

/// A C string of the caller.
pub(crate) fn text(from: *const libc::c_char, name: &str) -> Result<String> {
    if from.is_null() {
        refuse!(InvalidValue, "{name} is null");
    }
    // SAFETY: the caller promises a C string.
    Ok(unsafe { std::ffi::CStr::from_ptr(from) }.to_string_lossy().into_owned())
}

/// Copies a string into the caller's buffer, cut to fit and ended by a zero; returns its full length.
pub(crate) fn copy_text(value: &str, out: *mut libc::c_char, size: usize) -> usize {
    if !out.is_null() && size > 0 {
        let n = value.len().min(size - 1);
        // SAFETY: the caller promises `size` bytes at `out`.
        unsafe {
            std::ptr::copy_nonoverlapping(value.as_ptr(), out.cast::<u8>(), n);
            *out.add(n) = 0;
        }
    }
    value.len()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_panic_becomes_a_status_and_a_reason() {
        assert_eq!(super::driver("cuInit", |_| panic!("on purpose")), 999);
        assert_eq!(super::blas("cublasCreate_v2", |_| panic!("on purpose")), 14);
        assert_eq!(super::solver("cusolverDnCreate", |_| panic!("on purpose")), 7);
        assert!(super::lock().reasons.last.contains("panicked"));
    }
}
