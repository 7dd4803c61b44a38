//! Status codes and the caller-owned error record.

use crate::error::{Error, Kind};
use libc::c_char;

/// Result of every call that can fail: `FOAM_OK` or one of the codes below.
pub type foam_status = i32;

/// The call did what it says.
pub const FOAM_OK: foam_status = 0;
/// An argument is NULL, out of range, or contradicts another.
pub const FOAM_INVALID_ARGUMENT: foam_status = 1;
/// A legal request that this library or device does not serve.
pub const FOAM_UNSUPPORTED: foam_status = 2;
/// A tensor's shape, dtype or device is not the one declared at creation.
pub const FOAM_SHAPE_MISMATCH: foam_status = 3;
/// Memory for the state could not be had.
pub const FOAM_OUT_OF_MEMORY: foam_status = 4;
/// The device reported an error; `native_code` holds its code.
pub const FOAM_DEVICE_ERROR: foam_status = 5;
/// A gradient is not finite, or its square overflows the statistics.
pub const FOAM_NOT_FINITE: foam_status = 6;
/// An eigendecomposition failed on every path (diagnostics only: a step never returns it).
pub const FOAM_NO_CONVERGENCE: foam_status = 7;
/// A file could not be read or written.
pub const FOAM_IO_ERROR: foam_status = 8;
/// A checkpoint is truncated, foreign, or belongs to another model.
pub const FOAM_BAD_CHECKPOINT: foam_status = 9;
/// A collective of `foam_comm` failed, or did not deliver; the message says whether parameters were written.
pub const FOAM_COLLECTIVE_FAILED: foam_status = 10;
/// The caller asked to stop (reserved).
pub const FOAM_CANCELLED: foam_status = 11;
/// Another call is inside the same handle.
pub const FOAM_BUSY: foam_status = 12;
/// An earlier panic left the handle unusable; only statistics and destroy work.
pub const FOAM_POISONED: foam_status = 13;
/// A panic was caught at the boundary; the handle, if any, is now poisoned.
pub const FOAM_PANIC: foam_status = 14;

/// Size of `foam_error.message`, with its final NUL.
pub const FOAM_MESSAGE_SIZE: usize = 1000;

/// What went wrong, in the caller's own memory. Pass NULL if you do not want it.
///
/// Set `struct_size` (or start from `FOAM_ERROR_INIT`) before the first call. A failed call fills
/// the record; a successful call sets `code` to `FOAM_OK` and empties the message.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct foam_error {
    /// Bytes of this struct, set by the caller.
    pub struct_size: u32,
    /// The status that the call returned.
    pub code: foam_status,
    /// Index of the parameter concerned, or -1.
    pub param_index: i64,
    /// Axis of the block concerned, or -1.
    pub axis: i32,
    /// Error code of the operating system or the device, or 0.
    pub native_code: i32,
    /// A sentence for a person, NUL-terminated UTF-8.
    pub message: [c_char; FOAM_MESSAGE_SIZE],
}

/// Bytes of `foam_error` in front of the message.
pub(super) const ERROR_HEAD: usize = std::mem::offset_of!(foam_error, message);

impl foam_error {
    /// An empty record.
    pub fn new() -> Self {
        foam_error {
            struct_size: std::mem::size_of::<foam_error>() as u32,
            code: FOAM_OK,
            param_index: -1,
            axis: -1,
            native_code: 0,
            message: [0; FOAM_MESSAGE_SIZE],
        }
    }

    /// The message as text.
    pub fn text(&self) -> String {
        let bytes: Vec<u8> = self.message.iter().map(|c| *c as u8).take_while(|b| *b != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl std::fmt::Debug for foam_error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "foam_error {{ code: {}, param_index: {}, message: {:?} }}",
            self.code,
            self.param_index,
            self.text()
        )
    }
}

impl Default for foam_error {
    fn default() -> Self {
        foam_error::new()
    }
}

/// The status code of an error kind.
pub(super) fn code(kind: Kind) -> foam_status {
    match kind {
        Kind::InvalidArgument => FOAM_INVALID_ARGUMENT,
        Kind::Unsupported => FOAM_UNSUPPORTED,
        Kind::ShapeMismatch => FOAM_SHAPE_MISMATCH,
        Kind::OutOfMemory => FOAM_OUT_OF_MEMORY,
        Kind::DeviceError => FOAM_DEVICE_ERROR,
        Kind::NotFinite => FOAM_NOT_FINITE,
        Kind::NoConvergence => FOAM_NO_CONVERGENCE,
        Kind::Io => FOAM_IO_ERROR,
        Kind::BadCheckpoint => FOAM_BAD_CHECKPOINT,
        Kind::Collective => FOAM_COLLECTIVE_FAILED,
        Kind::Busy => FOAM_BUSY,
        Kind::Poisoned => FOAM_POISONED,
        Kind::Panic => FOAM_PANIC,
    }
}

/// Fills the caller's record with `error` (or with success).
///
/// # Safety
/// `out` is NULL or points to a writable record whose `struct_size` is set.
pub(super) unsafe fn report(out: *mut foam_error, error: Option<&Error>) {
    if out.is_null() {
        return;
    }
    // SAFETY: the caller promises that the first field is readable.
    let size = unsafe { super::boundary::size_of_struct(out) } as usize;
    let size = size.min(std::mem::size_of::<foam_error>());
    if size < ERROR_HEAD {
        return;
    }
    let mut record = foam_error::new();
    if let Some(error) = error {
        record.code = code(error.kind);
        record.param_index = error.place.param.map_or(-1, |p| p as i64);
        record.axis = error.place.axis.map_or(-1, |a| a as i32);
        record.native_code = error.native_code;
        // The last byte that fits is the NUL; a multi-byte character is never cut.
        let room = (size - ERROR_HEAD).saturating_sub(1);
        let mut end = error.message.len().min(room);
        while !error.message.is_char_boundary(end) {
            end -= 1;
        }
        for (slot, byte) in record.message.iter_mut().zip(error.message[..end].bytes()) {
            *slot = if byte == 0 { b' ' as c_char } else { byte as c_char };
        }
    }
    // SAFETY: `size` bytes belong to the caller's record; its `struct_size` is left as it was.
    unsafe {
        let source = (&raw const record).cast::<u8>().add(4);
        std::ptr::copy_nonoverlapping(source, out.cast::<u8>().add(4), size - 4);
    }
}

/// The name of a status, for example "FOAM_BUSY"; "FOAM_UNKNOWN" for any other number.
#[unsafe(no_mangle)]
pub extern "C" fn foam_status_name(status: foam_status) -> *const c_char {
    let name = match status {
        FOAM_OK => c"FOAM_OK",
        FOAM_INVALID_ARGUMENT => c"FOAM_INVALID_ARGUMENT",
        FOAM_UNSUPPORTED => c"FOAM_UNSUPPORTED",
        FOAM_SHAPE_MISMATCH => c"FOAM_SHAPE_MISMATCH",
        FOAM_OUT_OF_MEMORY => c"FOAM_OUT_OF_MEMORY",
        FOAM_DEVICE_ERROR => c"FOAM_DEVICE_ERROR",
        FOAM_NOT_FINITE => c"FOAM_NOT_FINITE",
        FOAM_NO_CONVERGENCE => c"FOAM_NO_CONVERGENCE",
        FOAM_IO_ERROR => c"FOAM_IO_ERROR",
        FOAM_BAD_CHECKPOINT => c"FOAM_BAD_CHECKPOINT",
        FOAM_COLLECTIVE_FAILED => c"FOAM_COLLECTIVE_FAILED",
        FOAM_CANCELLED => c"FOAM_CANCELLED",
        FOAM_BUSY => c"FOAM_BUSY",
        FOAM_POISONED => c"FOAM_POISONED",
        FOAM_PANIC => c"FOAM_PANIC",
        _ => c"FOAM_UNKNOWN",
    };
    name.as_ptr()
}
