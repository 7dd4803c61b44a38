//! How bytes get from tensors into the memory of a collective and out of it: at once on the CPU, in the order of a
//! stream on a GPU.

use crate::error::Result;
use crate::memory::{Allocator, Arena};
use libc::c_void;

/// Memory of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// What a collective reads.
    Send,
    /// What it writes.
    Receive,
    /// Values of the local blocks of sharded parameters.
    Values,
    /// Their gradients.
    Gradients,
}

/// Number of rooms.
pub const ROOMS: usize = 4;

/// Rows of bytes on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// First byte of the first row.
    pub from: u64,
    /// Where it goes.
    pub to: u64,
    /// Bytes of a row.
    pub row: usize,
    /// Rows.
    pub rows: usize,
    /// Bytes from one row to the next.
    pub from_step: usize,
    /// The same where they go.
    pub to_step: usize,
}

/// Eight bytes at an address that is a multiple of eight.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    /// The address.
    pub at: u64,
    /// What is written there, or expected.
    pub value: u64,
}

/// Bytes of the device that belong into a message.
#[derive(Clone, Copy, Debug)]
pub struct Patch {
    /// First byte in the message.
    pub at: usize,
    /// Where they lie.
    pub from: u64,
    /// Bytes.
    pub bytes: usize,
}

/// What an unexpected word means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A message did not arrive.
    Lost = 0,
    /// Its sender failed in the middle of the step.
    Failed = 1,
}

/// No rank in trouble.
pub const NOBODY: i32 = i32::MAX;

/// Moves bytes for a communicator.
pub trait Courier: Send {
    /// The work of a call is put on `stream` from now on, behind all work so far.
    fn follow(&mut self, stream: *mut c_void) -> Result<()>;
    /// The work of the call has been submitted; what comes next is put behind it, whatever its stream.
    fn rest(&mut self) -> Result<()>;
    /// The stream that collectives are to be put on.
    fn stream(&self) -> *mut c_void;

    /// The address of a room with `bytes` bytes; one that grows loses what was in it.
    fn room(&mut self, room: Room, bytes: usize) -> Result<u64>;
    /// Bytes of all rooms.
    fn bytes(&self) -> usize;

    /// Where a collective can read a message of the host; `patches` are put into it. What went wrong on the way is
    /// reported in `trouble`: the collective is made all the same, so that the other ranks learn of it.
    fn post(
        &mut self,
        mail: &[u8],
        patches: &[Patch],
        trouble: &mut Option<crate::error::Error>,
    ) -> Result<u64>;
    /// Where a collective can write as many bytes as `mail` has, which says what lies there now.
    fn land(&mut self, mail: &mut [u8]) -> Result<u64>;
    /// Brings what has landed to the host, and waits for it.
    fn fetch(&mut self, mail: &mut [u8]) -> Result<()>;

    /// Copies rows.
    ///
    /// # Safety
    /// Both sides are memory of the device, valid until the work is done, and do not overlap.
    unsafe fn carry(&mut self, rows: &mut dyn Iterator<Item = Rows>) -> Result<()>;
    /// Writes words.
    ///
    /// # Safety
    /// As for [`Courier::carry`].
    unsafe fn stamp(&mut self, words: &mut dyn Iterator<Item = Word>) -> Result<()>;
    /// Compares words, one per rank: the first rank whose word is another, if that is known. A device that works on
    /// its own keeps it for [`Courier::troubles`].
    ///
    /// # Safety
    /// As for [`Courier::carry`].
    unsafe fn expect(
        &mut self,
        words: &mut dyn Iterator<Item = Word>,
        about: Trouble,
    ) -> Result<Option<usize>>;

    /// Makes a collective, with the device's context current on this thread.
    fn call(&mut self, collective: &mut dyn FnMut() -> i32) -> Result<i32> {
        Ok(collective())
    }

    /// Where a device keeps the first rank of every kind of trouble: two i32, [`NOBODY`] if all is well.
    fn troubles(&self) -> Option<u64> {
        None
    }
    /// The same, once all work is done.
    fn settle(&mut self) -> Result<[i32; 2]> {
        Ok([NOBODY; 2])
    }
}

/// On the CPU everything is done at once.
pub struct Host {
    rooms: [Option<Arena>; ROOMS],
    stream: *mut c_void,
}

// SAFETY: memory with an owner; the stream is only handed through.
unsafe impl Send for Host {}

impl Host {
    /// One without rooms.
    pub fn new() -> Host {
        Host { rooms: [const { None }; ROOMS], stream: std::ptr::null_mut() }
    }
}

impl Courier for Host {
    fn follow(&mut self, stream: *mut c_void) -> Result<()> {
        self.stream = stream;
        Ok(())
    }

    fn rest(&mut self) -> Result<()> {
        self.stream = std::ptr::null_mut();
        Ok(())
    }

    fn stream(&self) -> *mut c_void {
        self.stream
    }

    fn room(&mut self, room: Room, bytes: usize) -> Result<u64> {
        let own = &mut self.rooms[room as usize];
        if let Some(arena) = own.as_ref().filter(|arena| arena.bytes() >= bytes) {
            return Ok(arena.as_ptr() as u64);
        }
        *own = None;
        let arena = own.insert(Arena::zeroed(bytes, Allocator::System, super::WHAT)?);
        Ok(arena.as_ptr() as u64)
    }

    fn bytes(&self) -> usize {
        self.rooms.iter().flatten().map(Arena::bytes).sum()
    }

    fn post(&mut self, mail: &[u8], _: &[Patch], _: &mut Option<crate::error::Error>) -> Result<u64> {
        Ok(mail.as_ptr() as u64)
    }

    fn land(&mut self, mail: &mut [u8]) -> Result<u64> {
        Ok(mail.as_mut_ptr() as u64)
    }

    fn fetch(&mut self, _: &mut [u8]) -> Result<()> {
        Ok(())
    }

    unsafe fn carry(&mut self, rows: &mut dyn Iterator<Item = Rows>) -> Result<()> {
        for each in rows {
            for row in 0..each.rows {
                let from = (each.from as *const u8).wrapping_add(row * each.from_step);
                let to = (each.to as *mut u8).wrapping_add(row * each.to_step);
                // SAFETY: the caller's contract.
                unsafe { std::ptr::copy_nonoverlapping(from, to, each.row) };
            }
        }
        Ok(())
    }

    unsafe fn stamp(&mut self, words: &mut dyn Iterator<Item = Word>) -> Result<()> {
        for word in words {
            // SAFETY: the caller's contract.
            unsafe { (word.at as *mut u64).write(word.value) };
        }
        Ok(())
    }

    unsafe fn expect(&mut self, words: &mut dyn Iterator<Item = Word>, _: Trouble) -> Result<Option<usize>> {
        let mut words = words.enumerate();
        // SAFETY: the caller's contract.
        let wrong = words.find(|(_, word)| unsafe { (word.at as *const u64).read() } != word.value);
        Ok(wrong.map(|(rank, _)| rank))
    }
}
