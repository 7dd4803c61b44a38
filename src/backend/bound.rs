//! A backend that owns no state: it works on the caller's buffers, bound anew for every call.

use super::{Backend, BlockOrder, RefreshOrder, SenseOrder};
use crate::error::Result;
use crate::preconditioner::policy::Sensed;
use crate::tensor::DType;

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

/// The caller's memory for one call to a device that works on its own. Addresses are the device's; 0 is none.
pub struct Lent<'a> {
    /// Address of every state buffer of the plan; 0 for those that the call's verb does not use.
    pub slots: &'a [u64],
    /// The clock of every block.
    pub clocks: u64,
    /// The record of every factor.
    pub records: u64,
    /// The info of every block.
    pub infos: u64,
    /// Which blocks take part; 0 for all.
    pub active: u64,
    /// Parameters, one block behind the other.
    pub params: u64,
    /// Gradients, likewise, and their type.
    pub grads: (u64, DType),
    /// Updates, likewise.
    pub updates: (u64, DType),
    /// What is copied first, because results lie elsewhere than their operands: from, to, bytes.
    pub copies: &'a [(u64, u64, usize)],
    /// Workspace, and its bytes, at least [`Late::workspace_bytes`].
    pub workspace: (u64, usize),
    /// The caller's stream.
    pub stream: *mut libc::c_void,
}

/// A factor's record as 32-bit words.
pub type RecordWords = [u32; 50];

/// What a device that works on its own adds to work on borrowed memory: its verbs only put work on the
/// caller's stream, but for [`Late::look`].
pub trait Late: Backend {
    /// Bytes of workspace that any one verb needs.
    fn workspace_bytes(&self) -> Result<usize>;
    /// Takes the caller's buffers for the calls that follow.
    ///
    /// # Safety
    /// The memory is valid, and the caller's alone where it is written, until the work on the stream is done.
    unsafe fn lend(&mut self, lent: &Lent) -> Result<()>;
    /// Looks at the gradients, ticks the clocks, updates the statistics, writes the infos.
    fn begin(&mut self, order: &BlockOrder) -> Result<()>;
    /// Measures factors, then waits and brings clocks, infos and records to the host. The one wait of a check.
    fn look(&mut self, orders: &[SenseOrder]) -> Result<Looked<'_>>;
    /// The refreshes whose answers are still out.
    fn take_pending(&mut self) -> Vec<RefreshOrder>;
    /// Writes the records; those of `late` factors are chosen by the device: the first if the refresh succeeded,
    /// else the second.
    fn write_records(&mut self, records: &[RecordWords], late: &[(usize, [RecordWords; 2])]) -> Result<()>;
    /// Moments, direction, momentum, updates.
    fn end(&mut self, order: &BlockOrder) -> Result<()>;
    /// The call's work is all on the stream.
    fn close(&mut self) -> Result<()>;
    /// Copies host memory to the device, or zeros if there is none, and waits.
    ///
    /// # Safety
    /// `to` has `bytes` writable bytes.
    unsafe fn store(&mut self, from: Option<&[u8]>, to: u64, bytes: usize) -> Result<()>;
}

/// What a look brought to the host.
pub struct Looked<'a> {
    /// Step and weight of every block.
    pub clocks: &'a [u8],
    /// Info of every block.
    pub infos: &'a [u8],
    /// Record of every factor.
    pub records: &'a [u8],
    /// What was sensed, by order.
    pub sensed: Vec<Sensed>,
}
