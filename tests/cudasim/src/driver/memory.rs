//! Allocation, page-locked memory and questions about pointers.

use libc::{c_int, c_uint, c_void};

use crate::boundary::{driver, put, put_if, take};
use crate::reason::{Result, refuse};
use crate::schedule::{Run, Work};
use crate::state::Sim;
use crate::store::Place;

impl Sim {
    /// Refuses while any stream of the context captures.
    fn not_capturing(&mut self, context: u64, what: &str) -> Result {
        if self.streams.live.values().any(|s| s.context == context && s.capture.is_some()) {
            self.spoil_captures(context);
            refuse!(Capture, "{what} is not allowed while a stream captures");
        }
        Ok(())
    }

    fn allocate(&mut self, bytes: usize) -> Result<u64> {
        let context = self.current()?;
        if bytes == 0 {
            refuse!(InvalidValue, "bytesize is 0");
        }
        self.not_capturing(context, "an allocation")?;
        let device = self.device_of(context)?;
        let address = self.store.allocate(bytes, context, device, self.config.memory, Place::Device)?;
        self.counters.totals.allocs += 1;
        self.counters.totals.alloc_bytes += bytes as u64;
        Ok(address)
    }

    /// Waits for the context's work, as freeing does.
    fn implicit_wait(&mut self, context: u64) -> Result {
        self.counters.totals.implicit_syncs += 1;
        self.wait_context(context)
    }

    fn owned(&mut self, address: u64, context: u64) -> Result {
        if let Some(alloc) = self.store.find(address)
            && alloc.live
            && alloc.context != context
        {
            refuse!(InvalidValue, "the {} belongs to another context than the current one", alloc.name());
        }
        Ok(())
    }

    fn free_host(&mut self, address: u64, place: Place) -> Result {
        let context = self.current_even_failed()?;
        self.implicit_wait(context)?;
        self.store.free(address, &[place])?;
        self.races.forget(address);
        self.counters.totals.host_frees += 1;
        Ok(())
    }

    fn pin(&mut self, out: *mut *mut c_void, bytes: usize) -> Result {
        let context = self.current()?;
        if bytes == 0 {
            refuse!(InvalidValue, "bytesize is 0");
        }
        self.not_capturing(context, "pinning memory")?;
        let device = self.device_of(context)?;
        let address = self.store.take_host(bytes, context, device, Place::Pinned)?;
        self.counters.totals.host_allocs += 1;
        put(out, address as *mut c_void, "pp")
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAlloc_v2(out: *mut u64, bytes: usize) -> c_int {
    driver("cuMemAlloc_v2", |sim| {
        let address = sim.allocate(bytes)?;
        put(out, address, "dptr")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: u64) -> c_int {
    driver("cuMemFree_v2", |sim| {
        let context = sim.current_even_failed()?;
        if address == 0 {
            return Ok(());
        }
        sim.owned(address, context)?;
        sim.not_capturing(context, "freeing memory")?;
        sim.implicit_wait(context)?;
        sim.store.free(address, &[Place::Device, Place::Managed])?;
        sim.races.forget(address);
        sim.counters.totals.frees += 1;
        Ok(())
    })
}

/// Memory that host and devices share. With flag 2 other streams than the attached one may not touch it, which is not
/// simulated; 1 lets all.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocManaged(out: *mut u64, bytes: usize, flags: c_uint) -> c_int {
    driver("cuMemAllocManaged", |sim| {
        let context = sim.current()?;
        if bytes == 0 || flags != 1 {
            refuse!(
                InvalidValue,
                "{bytes} bytes with flags {flags:#x}: expected some, and CU_MEM_ATTACH_GLOBAL (1)"
            );
        }
        sim.not_capturing(context, "an allocation")?;
        let device = sim.device_of(context)?;
        let address = sim.store.take_host(bytes, context, device, Place::Managed)?;
        sim.counters.totals.allocs += 1;
        sim.counters.totals.alloc_bytes += bytes as u64;
        put(out, address, "dptr")
    })
}

/// The allocation counts as a write by its stream, so that unordered use on another stream is a race.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocAsync(out: *mut u64, bytes: usize, stream: u64) -> c_int {
    driver("cuMemAllocAsync", |sim| {
        let stream = sim.stream(stream)?;
        let address = sim.allocate(bytes)?;
        let run: Run = std::sync::Arc::new(move |stage| stage.window.claim(address, bytes));
        sim.enqueue(stream, "cuMemAllocAsync", Work::Run(run))?;
        put(out, address, "dptr")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(address: u64, stream: u64) -> c_int {
    driver("cuMemFreeAsync", |sim| {
        let stream = sim.stream(stream)?;
        if address == 0 {
            return Ok(());
        }
        let context = sim.current()?;
        sim.owned(address, context)?;
        let size = match sim.store.find(address) {
            Some(alloc) if alloc.live && alloc.base == address && alloc.place == Place::Device => alloc.size,
            Some(alloc) if !alloc.live => refuse!(InvalidValue, "double free of the {}", alloc.name()),
            _ => refuse!(InvalidValue, "{address:#x} is not the start of a device allocation"),
        };
        let run: Run = std::sync::Arc::new(move |stage| stage.window.claim(address, size));
        sim.enqueue(stream, "cuMemFreeAsync", Work::Run(run))?;
        sim.enqueue(stream, "cuMemFreeAsync", Work::Free(address))?;
        sim.counters.totals.frees += 1;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostAlloc(out: *mut *mut c_void, bytes: usize, flags: c_uint) -> c_int {
    driver("cuMemHostAlloc", |sim| {
        if flags & !7 != 0 {
            refuse!(InvalidValue, "unknown flags {flags:#x}");
        }
        sim.pin(out, bytes)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocHost_v2(out: *mut *mut c_void, bytes: usize) -> c_int {
    driver("cuMemAllocHost_v2", |sim| sim.pin(out, bytes))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(address: *mut c_void) -> c_int {
    driver("cuMemFreeHost", |sim| sim.free_host(address as u64, Place::Pinned))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostGetDevicePointer_v2(out: *mut u64, address: *mut c_void, flags: c_uint) -> c_int {
    driver("cuMemHostGetDevicePointer_v2", |sim| {
        let context = sim.current()?;
        if flags != 0 {
            refuse!(InvalidValue, "flags must be 0");
        }
        let alloc = sim.store.check(address as u64, 1, context)?;
        if !alloc.place.is_of_host() {
            refuse!(InvalidValue, "the {} is not host memory", alloc.name());
        }
        put(out, address as u64, "pdptr")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostRegister_v2(address: *mut c_void, bytes: usize, _flags: c_uint) -> c_int {
    driver("cuMemHostRegister_v2", |sim| {
        let context = sim.current()?;
        if address.is_null() || bytes == 0 {
            refuse!(InvalidValue, "the range is null or empty");
        }
        let address = address as u64;
        let end = address + bytes as u64;
        let overlaps = sim.store.live().any(|a| a.base < end && address < a.base + a.size as u64);
        if overlaps || sim.store.is_device_address(address) {
            refuse!(InvalidValue, "the range overlaps memory that CUDA knows already");
        }
        let device = sim.device_of(context)?;
        sim.store.register(address, bytes, context, device);
        sim.counters.totals.host_allocs += 1;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostUnregister(address: *mut c_void) -> c_int {
    driver("cuMemHostUnregister", |sim| sim.free_host(address as u64, Place::Registered))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> c_int {
    driver("cuMemGetInfo_v2", |sim| {
        let context = sim.current()?;
        let device = sim.device_of(context)?;
        let used = sim.store.used.get(device).copied().unwrap_or(0);
        put(free, sim.config.memory.saturating_sub(used) as usize, "free")?;
        put(total, sim.config.memory as usize, "total")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetAddressRange_v2(base: *mut u64, size: *mut usize, address: u64) -> c_int {
    driver("cuMemGetAddressRange_v2", |sim| {
        sim.current()?;
        match sim.store.find(address).filter(|a| a.live) {
            Some(alloc) => {
                put_if(base, alloc.base);
                put_if(size, alloc.size);
                Ok(())
            }
            None => refuse!(NotFound, "{address:#x} is in no live allocation"),
        }
    })
}

/// One attribute of a pointer, or nothing if the pointer is unknown to CUDA.
fn attribute(sim: &Sim, which: c_int, address: u64) -> Result<Option<u64>> {
    let Some(alloc) = sim.store.find(address).filter(|a| a.live) else { return Ok(None) };
    // Managed memory says that it is the device's, and has an address on the host all the same.
    let managed = alloc.place == Place::Managed;
    let host = alloc.place.is_of_host();
    Ok(Some(match which {
        1 => alloc.context,
        2 => 2 - u64::from(host && !managed),
        3 => address,
        4 if host => address,
        4 => return Ok(None),
        8 => u64::from(managed),
        6 | 10 | 15 => 0,
        7 => alloc.number,
        9 => alloc.device as u64,
        11 => alloc.base,
        12 => alloc.size as u64,
        13 => 1,
        14 | 17 => 0,
        16 => 3,
        _ => refuse!(InvalidValue, "pointer attribute {which} is unknown"),
    }))
}

fn write_attribute(out: *mut c_void, which: c_int, value: u64) -> Result {
    match which {
        1 | 3 | 4 | 7 | 11 | 12 | 14 | 17 => put(out.cast::<u64>(), value, "data"),
        6 | 8 | 10 | 13 | 15 => put(out.cast::<u8>(), value as u8, "data"),
        _ => put(out.cast::<u32>(), value as u32, "data"),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuPointerGetAttribute(out: *mut c_void, which: c_int, address: u64) -> c_int {
    driver("cuPointerGetAttribute", |sim| {
        sim.ready()?;
        match attribute(sim, which, address)? {
            Some(value) => write_attribute(out, which, value),
            None => refuse!(Probe, "{address:#x} is not an address that CUDA knows"),
        }
    })
}

/// Unknown pointers succeed with zeros, as in CUDA (the device ordinal is -2).
#[unsafe(no_mangle)]
pub extern "C" fn cuPointerGetAttributes(
    count: c_uint,
    which: *mut c_int,
    out: *mut *mut c_void,
    address: u64,
) -> c_int {
    driver("cuPointerGetAttributes", |sim| {
        sim.ready()?;
        for i in 0..count as usize {
            let which = take(which.wrapping_add(i), "attributes")?;
            let target = take(out.wrapping_add(i), "data")?;
            let missing = if which == 9 { -2i32 as u32 as u64 } else { 0 };
            let value = attribute(sim, which, address)?.unwrap_or(missing);
            write_attribute(target, which, value)?;
        }
        Ok(())
    })
}
