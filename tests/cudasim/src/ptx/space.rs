//! A thread's loads, stores and atomics, in every state space.

use super::code::{Atom, AtomOp, LOCAL_WINDOW, Mem, NONE, PARAM_WINDOW, SHARED_WINDOW, WINDOW};
use super::convert::sign_extend;
use super::launch::Engine;
use super::shared::Touch;
use super::thread::{Frame, Thread};
use super::types::Space;
use crate::reason::{Result, refuse};

impl Thread {
    /// Where `len` bytes of a space are.
    fn locate(
        &mut self,
        engine: &mut Engine<'_, '_>,
        mem: &Mem,
        frame: Frame,
        len: usize,
        touch: Touch,
    ) -> Result<*mut u8> {
        let register = if mem.base == NONE { 0 } else { self.regs[(frame.base + mem.base) as usize] };
        let address = register.wrapping_add(mem.offset as u64);
        let (space, address) = match mem.space {
            Space::Generic => space_of(address),
            Space::Const => (Space::Global, address),
            space => (space, address),
        };
        if space != Space::Global && address % len as u64 != 0 {
            refuse!(Misaligned, "{space:?} address {address:#x} is not a multiple of {len}");
        }
        let bytes: &mut [u8] = match space {
            Space::Shared => {
                let size = engine.shared.bytes.len();
                if address as usize >= size || size - (address as usize) < len {
                    refuse!(IllegalAddress, "{len} bytes at shared address {address:#x}, of {size}");
                }
                if let Some(other) = engine.shared.touch(self.index, address as usize, len, touch) {
                    engine.report_shared_race(self.index, other, address, frame);
                }
                &mut engine.shared.bytes
            }
            Space::Local => &mut self.local,
            Space::Param => {
                let formal = engine.program.functions[engine.launch.entry].formal;
                if self.frames.len() == 1 && (address as usize) < formal {
                    let params = &engine.launch.params;
                    if touch != Touch::Read || address as usize + len > params.len() {
                        refuse!(IllegalAddress, "bad access to kernel parameter byte {address}");
                    }
                    // SAFETY: within the parameters; only read, as checked above.
                    return Ok(unsafe { params.as_ptr().add(address as usize).cast_mut() });
                }
                let address = address as usize + frame.param as usize;
                if address + len > self.params.len() {
                    refuse!(IllegalAddress, "{len} bytes at parameter address {address:#x}");
                }
                // SAFETY: checked above.
                return Ok(unsafe { self.params.as_mut_ptr().add(address) });
            }
            _ => {
                let hint = &mut engine.hints[mem.hint as usize];
                return match touch {
                    Touch::Read => Ok(engine.window.read(hint, address, len, len)?.cast_mut()),
                    Touch::Write => engine.window.write(hint, address, len, len),
                    Touch::Atomic => {
                        engine.window.read(hint, address, len, len)?;
                        engine.window.write(hint, address, len, len)
                    }
                };
            }
        };
        let at = address as usize;
        if at > bytes.len() || bytes.len() - at < len {
            refuse!(IllegalAddress, "{len} bytes at {space:?} address {address:#x}, of {}", bytes.len());
        }
        // SAFETY: checked above.
        Ok(unsafe { bytes.as_mut_ptr().add(at) })
    }

    #[inline]
    pub(super) fn load(&mut self, engine: &mut Engine<'_, '_>, mem: &Mem, frame: Frame) -> Result {
        let size = mem.ty.size();
        let from = self.locate(engine, mem, frame, size * mem.count as usize, Touch::Read)?;
        for i in 0..mem.count as usize {
            // SAFETY: `locate` checked the whole range.
            let mut bits = unsafe { read_bits(from.add(i * size), size) };
            if mem.ty.signed() {
                bits = sign_extend(bits, mem.ty) & mem.masks[i];
            }
            self.regs[(frame.base + mem.slots[i]) as usize] = bits;
        }
        Ok(())
    }

    #[inline]
    pub(super) fn store(&mut self, engine: &mut Engine<'_, '_>, mem: &Mem, frame: Frame) -> Result {
        let size = mem.ty.size();
        let to = self.locate(engine, mem, frame, size * mem.count as usize, Touch::Write)?;
        for i in 0..mem.count as usize {
            let bits = self.regs[(frame.base + mem.slots[i]) as usize];
            // SAFETY: `locate` checked the whole range.
            unsafe { write_bits(to.add(i * size), size, bits) };
        }
        Ok(())
    }

    pub(super) fn atomic(&mut self, engine: &mut Engine<'_, '_>, atom: &Atom, frame: Frame) -> Result {
        let size = atom.mem.ty.size();
        let at = self.locate(engine, &atom.mem, frame, size, Touch::Atomic)?;
        // SAFETY: `locate` checked the range.
        let old = unsafe { read_bits(at, size) };
        let b = self.regs[(frame.base + atom.b) as usize];
        let new = match atom.op {
            AtomOp::Apply(f) => f(old, b),
            AtomOp::Exchange => b,
            AtomOp::CompareAndSwap if old == b & atom.mem.ty.mask() => {
                self.regs[(frame.base + atom.c) as usize]
            }
            AtomOp::CompareAndSwap => old,
            AtomOp::Increment => {
                if old >= b {
                    0
                } else {
                    old + 1
                }
            }
            AtomOp::Decrement => {
                if old == 0 || old > b {
                    b
                } else {
                    old - 1
                }
            }
        };
        // SAFETY: likewise.
        unsafe { write_bits(at, size, new) };
        if atom.mem.slots[0] != NONE {
            self.regs[(frame.base + atom.mem.slots[0]) as usize] = old;
        }
        Ok(())
    }
}

/// The space of a generic address, and the address in it.
pub(super) fn space_of(address: u64) -> (Space, u64) {
    for (window, space) in
        [(SHARED_WINDOW, Space::Shared), (LOCAL_WINDOW, Space::Local), (PARAM_WINDOW, Space::Param)]
    {
        if address.wrapping_sub(window) < WINDOW {
            return (space, address - window);
        }
    }
    (Space::Global, address)
}

/// Little-endian bits of `size` bytes.
unsafe fn read_bits(from: *const u8, size: usize) -> u64 {
    // SAFETY: the caller checked the range.
    unsafe {
        match size {
            1 => u64::from(*from),
            2 => u64::from(from.cast::<u16>().read_unaligned()),
            4 => u64::from(from.cast::<u32>().read_unaligned()),
            _ => from.cast::<u64>().read_unaligned(),
        }
    }
}

unsafe fn write_bits(to: *mut u8, size: usize, bits: u64) {
    // SAFETY: the caller checked the range.
    unsafe {
        match size {
            1 => *to = bits as u8,
            2 => to.cast::<u16>().write_unaligned(bits as u16),
            4 => to.cast::<u32>().write_unaligned(bits as u32),
            _ => to.cast::<u64>().write_unaligned(bits),
        }
    }
}
