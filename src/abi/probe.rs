//! What of CUDA the library finds at run time.

use super::boundary;
use super::status::{foam_error, foam_status};
use crate::device::gpu::cuda::probe;
use libc::c_char;

/// Looks for CUDA: NVIDIA's driver, cuBLAS, cuSOLVER, and devices. `usable` receives 1 if `device = cuda` can
/// work, else 0. `text`, if not NULL, receives a report for people, cut to `capacity` bytes with the final
/// zero: a line for each library (its file and version, or what was looked for) and for each device, and a
/// verdict with its reason. `needed`, if not NULL, receives the bytes of the whole report. Loads the libraries
/// that it finds, and initialises the driver, as `foam_create` with a CUDA device would.
///
/// # Safety
/// `usable` and `needed` are NULL or writable; `text` is NULL or has `capacity` bytes; `error` is NULL or a
/// record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_cuda_probe(
    usable: *mut i32,
    text: *mut c_char,
    capacity: usize,
    needed: *mut usize,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        boundary::call(error, || {
            boundary::check_report(text, capacity)?;
            let report = probe::report();
            if !usable.is_null() {
                *usable = i32::from(probe::require().is_ok());
            }
            boundary::put_report(&report, text, capacity, needed);
            Ok(())
        })
    }
}
