//! The CPU on the caller's memory.

use super::pool::Workers;
use super::{Bench, Cpu};
use crate::backend::bound::{Bound, Memory};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::memory::ALIGNMENT;
use crate::optimizer::plan::Plan;
use parking_lot::Mutex;
use std::sync::Arc;

impl Cpu {
    /// A backend for `plan` that works on bound memory, on the process's shared threads.
    pub fn borrowing(plan: Arc<Plan>, config: &Config) -> Cpu {
        Cpu::without_memory(plan, config, Workers::shared(config.num_threads as usize))
    }
}

impl Bound for Cpu {
    fn workspace_bytes(&self) -> usize {
        // A verb uses either the blocks' workspace or the benches.
        self.floor.walks.work_bytes.max(self.benches.len() * self.shape.bytes()) + ALIGNMENT
    }

    unsafe fn bind(&mut self, memory: &Memory) -> Result<()> {
        let need = self.workspace_bytes();
        if memory.workspace_bytes < need {
            return Err(Error::invalid(format!(
                "the workspace has {} bytes; expected at least {need}",
                memory.workspace_bytes
            )));
        }
        self.floor.slots.copy_from_slice(memory.slots);
        let start = memory.workspace.wrapping_add(memory.workspace.align_offset(ALIGNMENT));
        self.floor.work = start;
        self.place_benches(start);
        Ok(())
    }

    fn release(&mut self) {
        self.floor.slots.fill(std::ptr::null_mut());
        self.floor.work = std::ptr::null_mut();
        self.benches.iter_mut().map(Mutex::get_mut).for_each(|bench: &mut Bench| {
            bench.place(std::ptr::null_mut());
        });
    }

    fn left_out(&self, block: usize) -> bool {
        self.left_out[block]
    }

    unsafe fn fetch(&mut self, from: *const u8, into: &mut [u8]) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    unsafe fn put(&mut self, bytes: &[u8], to: *mut u8) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    unsafe fn copy(&mut self, from: *const u8, to: *mut u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
        Ok(())
    }

    unsafe fn clear(&mut self, at: *mut u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { at.write_bytes(0, bytes) };
        Ok(())
    }
}
