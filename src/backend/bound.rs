//! A backend that owns no state: it works on the caller's buffers, bound anew for every call.

use super::Backend;
use crate::error::Result;

/// The caller's memory for one call.
pub struct Memory<'a> {
    /// Address of every state buffer of the plan; null for those that the call's verb does not use.
    pub slots: &'a [*mut u8],
    /// Workspace, with any alignment and any content.
    pub workspace: *mut u8,
    /// Its bytes, at least [`Bound::workspace_bytes`].
    pub workspace_bytes: usize,
    /// The caller's stream, for devices that have streams.
    pub stream: *mut libc::c_void,
}

/// What a backend adds to work on borrowed memory. All addresses are of the device's memory.
pub trait Bound: Backend {
    /// Bytes of workspace that any one verb needs.
    fn workspace_bytes(&self) -> usize;
    /// Takes the caller's buffers for the verbs that follow.
    ///
    /// # Safety
    /// The memory is valid, and the caller's alone where it is written, until [`Bound::release`].
    unsafe fn bind(&mut self, memory: &Memory) -> Result<()>;
    /// Forgets the caller's buffers.
    fn release(&mut self);
    /// Whether the last `apply` left the direction of `block` out because it overflowed.
    fn left_out(&self, block: usize) -> bool;
    /// Copies from the caller's memory to the host's.
    ///
    /// # Safety
    /// `from` has as many readable bytes.
    unsafe fn fetch(&mut self, from: *const u8, into: &mut [u8]) -> Result<()>;
    /// Copies from the host's memory to the caller's.
    ///
    /// # Safety
    /// `to` has as many writable bytes.
    unsafe fn put(&mut self, bytes: &[u8], to: *mut u8) -> Result<()>;
    /// Copies within the caller's memory.
    ///
    /// # Safety
    /// Both have `bytes` bytes and do not overlap.
    unsafe fn copy(&mut self, from: *const u8, to: *mut u8, bytes: usize) -> Result<()>;
    /// Fills the caller's memory with zeros.
    ///
    /// # Safety
    /// `at` has `bytes` writable bytes.
    unsafe fn clear(&mut self, at: *mut u8, bytes: usize) -> Result<()>;
}
