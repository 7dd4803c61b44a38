//! Clocks and records as 32-bit words in the caller's buffers: a framework may have no 64-bit types.

use super::ports::Given;
use super::session::Session;
use super::{CLOCK_WORDS, RECORD_WORDS};
use crate::error::{Error, Result};
use crate::preconditioner::{Counters, FactorRecord, Gauges};

/// The most steps that a clock may show: what a double holds exactly.
const MOST_STEPS: u64 = 1 << 53;

impl Session {
    /// Reads the clocks, and refuses words that no verb wrote.
    ///
    /// # Safety
    /// The buffer is the clocks'.
    pub(super) unsafe fn load_clocks(&mut self, given: Option<Given>) -> Result<()> {
        let Some(given) = given else { return Ok(()) };
        // SAFETY: the caller's contract.
        unsafe { self.fetch(given.data, self.stack.count * CLOCK_WORDS * 4)? };
        let bytes = std::mem::take(&mut self.bytes);
        let read = self.read_clocks(&bytes);
        self.bytes = bytes;
        read
    }

    /// The same from words that are on the host already.
    pub(super) fn read_clocks(&mut self, bytes: &[u8]) -> Result<()> {
        let clocks = bytes.chunks_exact(CLOCK_WORDS * 4);
        for (number, (clock, bytes)) in self.optimizer.clocks.iter_mut().zip(clocks).enumerate() {
            let (step, weight) = bytes.split_at(8);
            clock.step = bytemuck::pod_read_unaligned(step);
            clock.weight = bytemuck::pod_read_unaligned(weight);
            if clock.step > MOST_STEPS || !(clock.weight > 0.0 && clock.weight <= 1.0) {
                return Err(Error::invalid(format!(
                    "clock of block {number}: step {}, weight {}; expected a state that foam_stack_reset and the verbs wrote",
                    clock.step, clock.weight
                )));
            }
        }
        Ok(())
    }

    /// Reads the records, and refuses words that no verb wrote.
    ///
    /// # Safety
    /// The buffer is the records'.
    pub(super) unsafe fn load_records(&mut self, given: Option<Given>) -> Result<()> {
        let Some(given) = given else { return Ok(()) };
        let factors = self.optimizer.records.len();
        // SAFETY: the caller's contract.
        unsafe { self.fetch(given.data, factors * RECORD_WORDS * 4)? };
        let bytes = std::mem::take(&mut self.bytes);
        let read = self.read_records(&bytes);
        self.bytes = bytes;
        read
    }

    /// The same from words that are on the host already.
    pub(super) fn read_records(&mut self, bytes: &[u8]) -> Result<()> {
        for (number, bytes) in bytes.chunks_exact(RECORD_WORDS * 4).enumerate() {
            let (gauges, counters) = bytes.split_at(size_of::<Gauges>());
            let gauges: Gauges = bytemuck::pod_read_unaligned(gauges);
            let counters: Counters = bytemuck::pod_read_unaligned(counters);
            let words: [i64; size_of::<Counters>() / 8] = bytemuck::cast(counters);
            let sound = words.iter().all(|n| (0..=MOST_STEPS as i64).contains(n)) && gauges.epsilon >= 0.0;
            if !sound {
                let order = self.stack.dims.len();
                return Err(Error::invalid(format!(
                    "record of block {}, axis {}: epsilon {}, counters {words:?}; expected a state that foam_stack_reset and the verbs wrote",
                    number / order,
                    number % order,
                    gauges.epsilon
                )));
            }
            self.optimizer.records[number] = FactorRecord { gauges, counters };
        }
        Ok(())
    }

    unsafe fn fetch(&mut self, from: *const u8, bytes: usize) -> Result<()> {
        let mut room = std::mem::take(&mut self.bytes);
        room.resize(bytes, 0);
        // SAFETY: the caller's contract.
        let fetched = unsafe { self.bound()?.fetch(from, &mut room) };
        self.bytes = room;
        fetched
    }

    /// Writes the clocks.
    ///
    /// # Safety
    /// The buffer is the clocks'.
    pub(super) unsafe fn store_clocks(&mut self, to: *mut u8) -> Result<()> {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        for clock in &self.optimizer.clocks {
            bytes.extend_from_slice(&clock.step.to_ne_bytes());
            bytes.extend_from_slice(&clock.weight.to_ne_bytes());
        }
        // SAFETY: the caller's contract.
        let put = unsafe { self.put(&bytes, to) };
        self.bytes = bytes;
        put
    }

    /// Writes the records.
    ///
    /// # Safety
    /// The buffer is the records'.
    pub(super) unsafe fn store_records(&mut self, to: *mut u8) -> Result<()> {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        for record in &self.optimizer.records {
            bytes.extend_from_slice(bytemuck::bytes_of(&record.gauges));
            bytes.extend_from_slice(bytemuck::bytes_of(&record.counters));
        }
        // SAFETY: the caller's contract.
        let put = unsafe { self.put(&bytes, to) };
        self.bytes = bytes;
        put
    }

    unsafe fn put(&mut self, bytes: &[u8], to: *mut u8) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe {
            match self.late() {
                Some(device) => device.store(Some(bytes), to as u64, bytes.len()),
                None => self.bound()?.put(bytes, to),
            }
        }
    }
}
