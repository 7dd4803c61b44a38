//! Aligned, zeroed, fallible memory for state and workspace, from the system or from the caller.

use crate::error::{Error, Result};
use libc::c_void;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Alignment of every buffer: a cache line, and the widest vector register.
pub const ALIGNMENT: usize = 64;

/// Gives `size` bytes aligned to `alignment`, or NULL.
pub type AllocateFn = unsafe extern "C" fn(user: *mut c_void, size: usize, alignment: usize) -> *mut c_void;
/// Takes them back.
pub type DeallocateFn =
    unsafe extern "C" fn(user: *mut c_void, data: *mut c_void, size: usize, alignment: usize);

/// Where memory comes from.
#[derive(Clone, Copy, Debug, Default)]
pub enum Allocator {
    /// The process's allocator.
    #[default]
    System,
    /// The caller's callbacks.
    Callbacks {
        /// Gives memory.
        allocate: AllocateFn,
        /// Takes it back.
        deallocate: DeallocateFn,
        /// First argument of both.
        user: *mut c_void,
    },
}

// SAFETY: the callbacks are only called on a thread inside a call on the handle, as the header says.
unsafe impl Send for Allocator {}
// SAFETY: as above.
unsafe impl Sync for Allocator {}

/// One zeroed allocation.
#[derive(Debug)]
pub struct Arena {
    data: NonNull<u8>,
    bytes: usize,
    source: Allocator,
}

// SAFETY: an Arena owns its memory; access goes through raw pointers whose users keep order.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// `bytes` zeroed bytes for `what`.
    pub fn zeroed(bytes: usize, source: Allocator, what: &str) -> Result<Arena> {
        let refused = || Error::out_of_memory(what, bytes as u128);
        let size = bytes.max(ALIGNMENT);
        let data = match source {
            Allocator::System => {
                let layout = Layout::from_size_align(size, ALIGNMENT).map_err(|_| refused())?;
                // SAFETY: the layout's size is not zero.
                unsafe { alloc_zeroed(layout) }
            }
            Allocator::Callbacks { allocate, user, .. } => {
                // SAFETY: the caller promised a working callback.
                let data = unsafe { allocate(user, size, ALIGNMENT) }.cast::<u8>();
                if !data.is_null() {
                    // SAFETY: the callback gave `size` bytes.
                    unsafe { data.write_bytes(0, size) };
                }
                data
            }
        };
        let data = NonNull::new(data).ok_or_else(refused)?;
        let arena = Arena { data, bytes: size, source };
        if data.as_ptr().align_offset(ALIGNMENT) != 0 {
            return Err(Error::invalid(format!(
                "config.allocate returned memory that is not aligned; expected alignment {ALIGNMENT}"
            )));
        }
        Ok(arena)
    }

    /// Its first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.data.as_ptr()
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        match self.source {
            Allocator::System => {
                // SAFETY: allocated with the same layout, which was valid then.
                unsafe {
                    dealloc(self.data.as_ptr(), Layout::from_size_align_unchecked(self.bytes, ALIGNMENT))
                }
            }
            Allocator::Callbacks { deallocate, user, .. } => {
                // SAFETY: given by the matching callback.
                unsafe { deallocate(user, self.data.as_ptr().cast(), self.bytes, ALIGNMENT) }
            }
        }
    }
}

/// `bytes` rounded up to the alignment.
pub fn aligned(bytes: u128) -> u128 {
    bytes.next_multiple_of(ALIGNMENT as u128)
}
