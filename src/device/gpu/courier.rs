//! What moves bytes between tensors and the messages of ranks on a GPU: kernels and copies on the caller's stream.
//! The host waits where it reads what came, and nowhere else.

use super::cuda::driver::{self, Event, Memory, Pinned, RawStream, Stream};
use super::kernels::Kernels;
use super::step::{launch, wide};
use super::tables::{CARRIED, Carried, STAMPED, Stamped, THREADS};
use crate::comm::WHAT;
use crate::comm::courier::{Courier as Carries, NOBODY, Patch, ROOMS, Room, Rows, Trouble, Word};
use crate::error::{Error, Result};
use crate::memory::Allocator;
use bytemuck::Zeroable;
use std::ffi::c_void;
use std::sync::Arc;

/// Moves bytes on a GPU.
pub struct Courier {
    rooms: [Option<Memory>; ROOMS],
    /// The first rank of every kind of trouble, kept by the device.
    troubles: Memory,
    /// Notes on their way out, and in.
    outgoing: Option<Pinned>,
    incoming: Option<Pinned>,
    allocator: Allocator,
    /// The stream of the call under way; our own between calls.
    stream: RawStream,
    /// Everything up to here comes before what follows.
    ready: Event,
    is_ready: bool,
    own: Stream,
    kernels: Arc<Kernels>,
}

// SAFETY: handles and addresses with an owner; one call at a time uses them.
unsafe impl Send for Courier {}

impl Courier {
    /// One for device number `ordinal`.
    pub fn new(ordinal: i32, allocator: Allocator) -> Result<Courier> {
        let kernels = Kernels::open(ordinal)?;
        let _current = kernels.device.enter()?;
        let device = &kernels.device;
        let (own, ready) = (Stream::new(device)?, Event::new(device)?);
        let troubles = Memory::new(device, 8, allocator, WHAT)?;
        let words: [i32; 2] = [NOBODY; 2];
        // SAFETY: the words stay until the wait is over.
        unsafe { driver::upload(troubles.address(), words.as_ptr().cast(), 8, own.raw())? };
        driver::wait_for(own.raw())?;
        Ok(Courier {
            rooms: [const { None }; ROOMS],
            troubles,
            outgoing: None,
            incoming: None,
            allocator,
            stream: own.raw(),
            ready,
            is_ready: false,
            own,
            kernels: kernels.clone(),
        })
    }

    /// Pinned memory of at least `bytes` bytes; nothing is on its way from or to the old one.
    fn pinned(kernels: &Kernels, own: &mut Option<Pinned>, bytes: usize) -> Result<*mut u8> {
        if own.as_ref().is_none_or(|pinned| pinned.bytes().len() < bytes) {
            *own = None;
            *own = Some(Pinned::new(&kernels.device, bytes.next_power_of_two())?);
        }
        Ok(own.as_ref().map_or(std::ptr::null_mut(), Pinned::data))
    }

    fn upload(&mut self, at: u64, mail: &[u8], patches: &[Patch]) -> Result<()> {
        let data = Courier::pinned(&self.kernels, &mut self.outgoing, mail.len())?;
        // SAFETY: as many bytes; the note before has been waited for, so that nobody reads them any more.
        unsafe {
            std::ptr::copy_nonoverlapping(mail.as_ptr(), data, mail.len());
            driver::upload(at, data, mail.len(), self.stream)?;
        }
        for patch in patches {
            // SAFETY: words of tables of this device, within the message.
            unsafe { driver::copy(at + patch.at as u64, patch.from, patch.bytes, self.stream)? };
        }
        Ok(())
    }

    /// Launches one kernel per [`STAMPED`] words.
    fn words(
        &self,
        words: &mut dyn Iterator<Item = Word>,
        mut put: impl FnMut(i32, i32, Stamped) -> Result<()>,
    ) -> Result<()> {
        let mut first = 0;
        loop {
            let (mut stamped, mut count) = (Stamped::zeroed(), 0);
            for word in words.take(STAMPED) {
                (stamped.at[count], stamped.value[count]) = (word.at, word.value);
                count += 1;
            }
            if count == 0 {
                return Ok(());
            }
            put(first, count as i32, stamped)?;
            first += count as i32;
        }
    }
}

impl Carries for Courier {
    fn follow(&mut self, stream: *mut c_void) -> Result<()> {
        let kernels = self.kernels.clone();
        let _current = kernels.device.enter()?;
        self.stream = stream.cast();
        if self.is_ready && !driver::is_capturing(self.stream)? {
            self.ready.before(self.stream)
        } else {
            Ok(())
        }
    }

    fn rest(&mut self) -> Result<()> {
        let kernels = self.kernels.clone();
        let _current = kernels.device.enter()?;
        let stream = std::mem::replace(&mut self.stream, self.own.raw());
        if stream != self.own.raw() && !driver::is_capturing(stream)? {
            self.ready.record(stream)?;
            self.is_ready = true;
            self.ready.before(self.own.raw())?;
        }
        Ok(())
    }

    fn stream(&self) -> *mut c_void {
        self.stream.cast()
    }

    fn room(&mut self, room: Room, bytes: usize) -> Result<u64> {
        let kernels = self.kernels.clone();
        let _current = kernels.device.enter()?;
        let own = &mut self.rooms[room as usize];
        if let Some(memory) = own.as_ref().filter(|memory| memory.bytes() >= bytes) {
            return Ok(memory.address());
        }
        // What is under way may still use the old one.
        driver::wait_for(self.stream)?;
        *own = None;
        let memory = own.insert(Memory::new(&kernels.device, bytes, self.allocator, WHAT)?);
        memory.clear(self.stream)?;
        Ok(memory.address())
    }

    fn bytes(&self) -> usize {
        self.troubles.bytes() + self.rooms.iter().flatten().map(Memory::bytes).sum::<usize>()
    }

    fn post(&mut self, mail: &[u8], patches: &[Patch], trouble: &mut Option<Error>) -> Result<u64> {
        let at = self.room(Room::Send, mail.len())?;
        let kernels = self.kernels.clone();
        let _current = kernels.device.enter()?;
        *trouble = self.upload(at, mail, patches).err();
        Ok(at)
    }

    fn land(&mut self, mail: &mut [u8]) -> Result<u64> {
        let at = self.room(Room::Receive, mail.len())?;
        let kernels = self.kernels.clone();
        let _current = kernels.device.enter()?;
        driver::fill(at, 0, mail.len(), self.stream)?;
        Ok(at)
    }

    fn fetch(&mut self, mail: &mut [u8]) -> Result<()> {
        let at = self.room(Room::Receive, mail.len())?;
        let kernels = self.kernels.clone();
        let _current = kernels.device.enter()?;
        let data = Courier::pinned(&self.kernels, &mut self.incoming, mail.len())?;
        // SAFETY: as many bytes, which nobody touches until the wait is over.
        unsafe {
            driver::download(data, at, mail.len(), self.stream)?;
            driver::wait_for(self.stream)?;
            std::ptr::copy_nonoverlapping(data, mail.as_mut_ptr(), mail.len());
        }
        Ok(())
    }

    unsafe fn carry(&mut self, rows: &mut dyn Iterator<Item = Rows>) -> Result<()> {
        let kernels = self.kernels.clone();
        let _current = kernels.device.enter()?;
        loop {
            let (mut list, mut count, mut most) = (Carried::zeroed(), 0, 0);
            for each in rows.take(CARRIED) {
                let all = each.from | each.to | each.row as u64 | each.from_step as u64 | each.to_step as u64;
                // The widest load that every row allows; elements have at least two bytes.
                let width = 1u64 << all.trailing_zeros().clamp(1, 3);
                (list.from[count], list.to[count]) = (each.from, each.to);
                (list.from_step[count], list.to_step[count]) = (each.from_step as u64, each.to_step as u64);
                (list.row[count], list.rows[count]) = (each.row as u64 / width, each.rows as u64);
                list.width[count] = width;
                most = most.max(each.row / width as usize * each.rows);
                count += 1;
            }
            if count == 0 {
                return Ok(());
            }
            let grid = wide(most.div_ceil(8 * THREADS).clamp(1, 1024), count, most.min(THREADS));
            launch!(kernels.carry, grid, self.stream, list)?;
        }
    }

    unsafe fn stamp(&mut self, words: &mut dyn Iterator<Item = Word>) -> Result<()> {
        let kernels = self.kernels.clone();
        let _current = kernels.device.enter()?;
        let stream = self.stream;
        self.words(words, |_, count, list| launch!(kernels.stamp, wide(1, 1, STAMPED), stream, count, list))
    }

    unsafe fn expect(
        &mut self,
        words: &mut dyn Iterator<Item = Word>,
        about: Trouble,
    ) -> Result<Option<usize>> {
        let kernels = self.kernels.clone();
        let _current = kernels.device.enter()?;
        let (stream, target) = (self.stream, self.troubles.address() + 4 * about as u64);
        self.words(words, |first, count, list| {
            launch!(kernels.expect, wide(1, 1, STAMPED), stream, first, count, list, target)
        })?;
        Ok(None)
    }

    fn call(&mut self, collective: &mut dyn FnMut() -> i32) -> Result<i32> {
        let kernels = self.kernels.clone();
        let _current = kernels.device.enter()?;
        Ok(collective())
    }

    fn troubles(&self) -> Option<u64> {
        Some(self.troubles.address())
    }

    fn settle(&mut self) -> Result<[i32; 2]> {
        let kernels = self.kernels.clone();
        let _current = kernels.device.enter()?;
        let data = Courier::pinned(&self.kernels, &mut self.incoming, 8)?;
        // SAFETY: as many bytes, which nobody touches until the wait is over.
        unsafe {
            driver::download(data, self.troubles.address(), 8, self.stream)?;
            driver::wait_for(self.stream)?;
            Ok(data.cast::<[i32; 2]>().read_unaligned())
        }
    }
}

impl Drop for Courier {
    fn drop(&mut self) {
        // Streams may still be at work on our memory.
        if let Ok(_current) = self.kernels.device.enter() {
            if self.is_ready {
                let _ = self.ready.wait();
            }
            let _ = driver::wait_for(self.own.raw());
        }
    }
}
