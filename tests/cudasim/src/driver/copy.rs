//! Copies and fills.
//!
//! The bytes move when the operation runs, in deferred mode too: a pinned buffer that the host changes too
//! early gives wrong data, as on a device. Pageable memory is staged when the call is made (host to device)
//! or makes the host wait (device to host).

use std::sync::Arc;

use libc::{c_int, c_uchar, c_uint, c_void};

use crate::boundary::driver;
use crate::reason::{Result, refuse};
use crate::schedule::{Run, Work};
use crate::state::Sim;
use crate::store::Place;

/// The direction of a copy.
#[derive(Clone, Copy, PartialEq)]
enum Direction {
    ToDevice,
    ToHost,
    Within,
}

impl Sim {
    /// Whether host memory is page-locked; refuses device addresses and null.
    fn is_pinned(&mut self, address: u64, bytes: usize, name: &str) -> Result<bool> {
        if bytes == 0 {
            return Ok(false);
        }
        if address < 4096 {
            refuse!(InvalidValue, "{name} is null");
        }
        if self.store.is_device_address(address) {
            refuse!(InvalidValue, "{name} is a device address, a host address is wanted");
        }
        match self.store.find(address) {
            Some(alloc) if !alloc.live => {
                refuse!(InvalidValue, "{name} is in the {}, which was freed", alloc.name())
            }
            Some(alloc) if (address - alloc.base) as usize + bytes > alloc.size => {
                refuse!(InvalidValue, "{name} runs past the {}", alloc.name())
            }
            found => Ok(found.is_some()),
        }
    }

    /// Whether an address is the device's: of device memory, or of managed memory.
    fn is_on_device(&self, address: u64) -> bool {
        self.store.is_device_address(address)
            || self.store.find(address).is_some_and(|a| a.live && a.place == Place::Managed)
    }

    /// Checks that a range is device memory now; it is checked again when the copy runs.
    fn device_range(&mut self, address: u64, bytes: usize, name: &str) -> Result {
        let context = self.current()?;
        if bytes == 0 {
            return Ok(());
        }
        match self.store.check(address, bytes, context) {
            Ok(_) => Ok(()),
            Err(fault) => refuse!(InvalidValue, "{name}: {}", fault.reason),
        }
    }

    fn count_copy(&mut self, direction: Direction, bytes: usize) {
        let totals = &mut self.counters.totals;
        let (copies, total) = match direction {
            Direction::ToDevice => (&mut totals.h2d_copies, &mut totals.h2d_bytes),
            Direction::ToHost => (&mut totals.d2h_copies, &mut totals.d2h_bytes),
            Direction::Within => (&mut totals.d2d_copies, &mut totals.d2d_bytes),
        };
        *copies += 1;
        *total += bytes as u64;
    }

    /// Enqueues a copy; `wait` makes the host wait for it.
    fn copy(&mut self, name: &str, to: u64, from: u64, bytes: usize, stream: u64, wait: bool) -> Result {
        let stream = self.stream(stream)?;
        let direction = match (self.is_on_device(to), self.is_on_device(from)) {
            (true, true) => Direction::Within,
            (true, false) => Direction::ToDevice,
            (false, true) => Direction::ToHost,
            (false, false) => refuse!(InvalidValue, "neither address is on the device"),
        };
        let mut waits = wait && direction != Direction::Within;
        let run: Run = match direction {
            Direction::Within => {
                self.device_range(to, bytes, "the destination")?;
                self.device_range(from, bytes, "the source")?;
                Arc::new(move |stage| stage.window.copy(to, from, bytes))
            }
            Direction::ToDevice => {
                self.device_range(to, bytes, "the destination")?;
                let pinned = self.is_pinned(from, bytes, "the source")?;
                if pinned {
                    Arc::new(move |stage| stage.window.copy(to, from, bytes))
                } else {
                    self.pageable(stream, wait)?;
                    let mut staged = vec![0u8; bytes];
                    // SAFETY: the caller promises `bytes` readable bytes at `from`.
                    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, staged.as_mut_ptr(), bytes) };
                    Arc::new(move |stage| stage.window.put(to, &staged, 1))
                }
            }
            Direction::ToHost => {
                self.device_range(from, bytes, "the source")?;
                let pinned = self.is_pinned(to, bytes, "the destination")?;
                if pinned {
                    Arc::new(move |stage| stage.window.copy_out(to, from, bytes))
                } else {
                    self.pageable(stream, wait)?;
                    waits = true;
                    Arc::new(move |stage| {
                        // SAFETY: the caller promises `bytes` writable bytes at `to`, and the host waits.
                        let out = unsafe { std::slice::from_raw_parts_mut(to as *mut u8, bytes) };
                        stage.window.get(from, out, 1)
                    })
                }
            }
        };
        self.count_copy(direction, bytes);
        self.enqueue(stream, name, Work::Run(run))?;
        if wait && direction != Direction::Within {
            self.counters.totals.host_syncs += 1;
        }
        if waits {
            self.wait_stream(stream)?;
        }
        Ok(())
    }

    /// Counts an asynchronous copy of pageable memory, which the host may have to wait for.
    fn pageable(&mut self, stream: u64, synchronous: bool) -> Result {
        self.refuse_capturing(stream, "a copy of pageable memory cannot be captured")?;
        if !synchronous {
            self.counters.totals.pageable_copies += 1;
            self.counters.totals.host_syncs += 1;
        }
        Ok(())
    }

    fn side(&mut self, address: u64, device: bool, bytes: usize, name: &str) -> Result {
        let shared = self.store.find(address).is_some_and(|a| a.place.is_of_host());
        let on_device = self.store.is_device_address(address);
        if bytes > 0 && device && !on_device && !shared {
            refuse!(InvalidValue, "{name} {address:#x} is not a device address");
        }
        if bytes > 0 && !device && on_device {
            refuse!(InvalidValue, "{name} {address:#x} is a device address, a host address is wanted");
        }
        Ok(())
    }

    fn checked_copy(
        &mut self,
        name: &str,
        (to, to_device): (u64, bool),
        (from, from_device): (u64, bool),
        bytes: usize,
        stream: u64,
        wait: bool,
    ) -> Result {
        self.current()?;
        self.side(to, to_device, bytes, "the destination")?;
        self.side(from, from_device, bytes, "the source")?;
        if bytes == 0 {
            return Ok(());
        }
        self.copy(name, to, from, bytes, stream, wait)
    }

    fn fill(&mut self, name: &str, to: u64, value: &[u8], count: usize, stream: u64) -> Result {
        let stream = self.stream(stream)?;
        let bytes = value.len() * count;
        self.device_range(to, bytes, "the destination")?;
        if !to.is_multiple_of(value.len() as u64) {
            refuse!(InvalidValue, "{to:#x} is not a multiple of {}", value.len());
        }
        self.counters.totals.memsets += 1;
        self.counters.totals.memset_bytes += bytes as u64;
        let value = value.to_vec();
        let run: Run = Arc::new(move |stage| stage.window.fill(to, &value, count));
        self.enqueue(stream, name, Work::Run(run))?;
        Ok(())
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) -> c_int {
    driver("cuMemcpyHtoD_v2", |sim| {
        sim.checked_copy("cuMemcpyHtoD", (to, true), (from as u64, false), bytes, 0, true)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> c_int {
    driver("cuMemcpyDtoH_v2", |sim| {
        sim.checked_copy("cuMemcpyDtoH", (to as u64, false), (from, true), bytes, 0, true)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) -> c_int {
    driver("cuMemcpyDtoD_v2", |sim| {
        sim.checked_copy("cuMemcpyDtoD", (to, true), (from, true), bytes, 0, true)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: u64) -> c_int {
    driver("cuMemcpyHtoDAsync_v2", |sim| {
        sim.checked_copy("cuMemcpyHtoDAsync", (to, true), (from as u64, false), bytes, stream, false)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: u64) -> c_int {
    driver("cuMemcpyDtoHAsync_v2", |sim| {
        sim.checked_copy("cuMemcpyDtoHAsync", (to as u64, false), (from, true), bytes, stream, false)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) -> c_int {
    driver("cuMemcpyDtoDAsync_v2", |sim| {
        sim.checked_copy("cuMemcpyDtoDAsync", (to, true), (from, true), bytes, stream, false)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpy(to: u64, from: u64, bytes: usize) -> c_int {
    driver("cuMemcpy", |sim| {
        sim.current()?;
        if bytes == 0 { Ok(()) } else { sim.copy("cuMemcpy", to, from, bytes, 0, true) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: u64) -> c_int {
    driver("cuMemcpyAsync", |sim| {
        sim.current()?;
        if bytes == 0 { Ok(()) } else { sim.copy("cuMemcpyAsync", to, from, bytes, stream, false) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8_v2(to: u64, value: c_uchar, count: usize) -> c_int {
    driver("cuMemsetD8_v2", |sim| sim.fill("cuMemsetD8", to, &[value], count, 0))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD32_v2(to: u64, value: c_uint, count: usize) -> c_int {
    driver("cuMemsetD32_v2", |sim| sim.fill("cuMemsetD32", to, &value.to_le_bytes(), count, 0))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(to: u64, value: c_uchar, count: usize, stream: u64) -> c_int {
    driver("cuMemsetD8Async", |sim| sim.fill("cuMemsetD8Async", to, &[value], count, stream))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: u64) -> c_int {
    driver("cuMemsetD32Async", |sim| sim.fill("cuMemsetD32Async", to, &value.to_le_bytes(), count, stream))
}
