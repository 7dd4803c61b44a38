//! What every entry of the C ABI goes through: panics stop here, structs of other sizes are
//! completed or refused, and C strings become text.

use super::status::{self, FOAM_OK, foam_error, foam_status};
use crate::error::{Error, Kind, Result};
use libc::c_char;
use std::ffi::CStr;
use std::mem::size_of;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A public struct that starts with `struct_size`.
///
/// # Safety
/// The type is `repr(C)` plain data whose first field is `struct_size: u32`, and every bit pattern
/// is a value of it.
pub(super) unsafe trait AbiStruct: Copy {
    /// Its name in messages.
    const NAME: &'static str;
    /// Bytes that even the oldest caller sets.
    const REQUIRED: usize;
    /// What missing fields are completed with.
    fn defaults() -> Self;
}

/// Runs the body of an entry: its error goes to the caller's record, its panic becomes
/// `FOAM_PANIC`.
///
/// # Safety
/// `error` is NULL or points to a writable record whose `struct_size` is set.
pub(super) unsafe fn call(error: *mut foam_error, body: impl FnOnce() -> Result<()>) -> foam_status {
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| Err(panic_error(&*payload)));
    // SAFETY: the caller's contract.
    unsafe { finish(error, outcome) }
}

/// Reports the outcome of a call and gives its status.
///
/// # Safety
/// As [`call`].
pub(super) unsafe fn finish(error: *mut foam_error, outcome: Result<()>) -> foam_status {
    match outcome {
        Ok(()) => {
            // SAFETY: the caller's contract.
            unsafe { status::report(error, None) };
            FOAM_OK
        }
        Err(cause) => {
            // SAFETY: the caller's contract.
            unsafe { status::report(error, Some(&cause)) };
            status::code(cause.kind)
        }
    }
}

/// The error that a caught panic becomes.
pub(super) fn panic_error(payload: &(dyn std::any::Any + Send)) -> Error {
    let said = payload
        .downcast_ref::<&str>()
        .map(|s| s.to_string())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_string());
    Error::new(Kind::Panic, format!("internal panic: {said}"))
}

/// Reads a caller's struct of any size: a shorter one is completed with defaults, a longer one is
/// accepted if what this library does not know is all zero.
///
/// # Safety
/// `source` is NULL or points to as many readable bytes as its `struct_size` says.
pub(super) unsafe fn read_struct<T: AbiStruct>(source: *const T, argument: &str) -> Result<T> {
    if source.is_null() {
        return Err(Error::invalid(format!("{argument} is NULL; expected a {}", T::NAME)));
    }
    // SAFETY: the first field is `struct_size`.
    let size = unsafe { source.cast::<u32>().read_unaligned() } as usize;
    check_size::<T>(size, argument)?;
    let mut value = T::defaults();
    let known = size.min(size_of::<T>());
    // SAFETY: both sides have `known` bytes, and every bit pattern is a value of `T`.
    unsafe {
        std::ptr::copy_nonoverlapping(source.cast::<u8>(), (&raw mut value).cast::<u8>(), known);
    }
    if size > known {
        // SAFETY: the caller's struct has `size` bytes.
        let tail = unsafe { std::slice::from_raw_parts(source.cast::<u8>().add(known), size - known) };
        if tail.iter().any(|byte| *byte != 0) {
            return Err(Error::new(
                Kind::Unsupported,
                format!(
                    "{argument}.struct_size = {size}: the caller sets fields of {} that this library ({} bytes) does not know; expected them to be zero",
                    T::NAME,
                    size_of::<T>()
                ),
            ));
        }
    }
    Ok(value)
}

/// Writes `value` into a caller's struct of `size` bytes: a shorter one gets the fields it has, the
/// unknown tail of a longer one becomes zero. `struct_size` becomes `size`.
///
/// # Safety
/// `target` points to `size` writable bytes.
pub(super) unsafe fn write_struct<T: AbiStruct>(target: *mut T, size: u32, value: T) -> Result<()> {
    let bytes = size as usize;
    check_size::<T>(bytes, "struct_size of")?;
    let known = bytes.min(size_of::<T>());
    // SAFETY: the caller's contract.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), target.cast::<u8>(), known);
        target.cast::<u8>().add(known).write_bytes(0, bytes - known);
        target.cast::<u32>().write_unaligned(size);
    }
    Ok(())
}

/// Far beyond any struct of this ABI: a size above it is an uninitialised field, not a version.
const ABSURD: usize = 1 << 16;

fn check_size<T: AbiStruct>(size: usize, argument: &str) -> Result<()> {
    if size < T::REQUIRED || size > ABSURD {
        return Err(Error::invalid(format!(
            "{argument} {}: struct_size = {size}: expected sizeof({}), {} in this library and at least {}",
            T::NAME,
            T::NAME,
            size_of::<T>(),
            T::REQUIRED
        )));
    }
    Ok(())
}

/// A C string argument as text.
///
/// # Safety
/// `source` is NULL or a C string that lives for `'a`.
pub(super) unsafe fn text<'a>(source: *const c_char, argument: &str) -> Result<&'a str> {
    if source.is_null() {
        return Err(Error::invalid(format!("{argument} is NULL; expected a string")));
    }
    // SAFETY: the caller's contract.
    unsafe { CStr::from_ptr(source) }
        .to_str()
        .map_err(|_| Error::invalid(format!("{argument} is not valid UTF-8")))
}
