//! Contexts and each thread's stack of current ones.

use std::collections::HashMap;

use libc::{c_int, c_uint, c_void};

use crate::boundary::{driver, put, put_if};
use crate::handle::number;
use crate::reason::{Result, refuse};
use crate::state::{Context, Sim, with_stack};
use crate::store::Place;

impl Sim {
    fn new_context(&mut self, device: usize, primary: bool) -> u64 {
        let context = Context {
            device,
            primary,
            legacy: 0,
            per_thread: HashMap::new(),
            departed: Default::default(),
            sticky: None,
        };
        let handle = self.contexts.add(context);
        let legacy = self.new_stream(handle, 0, 0, true);
        if let Some(context) = self.contexts.live.get_mut(&handle) {
            context.legacy = legacy;
        }
        handle
    }

    /// Ends a context and everything in it; what the caller should have released becomes an orphan.
    pub fn destroy_context(&mut self, handle: u64) -> Result {
        // A failed context has nothing left to wait for.
        let _ = self.wait_context(handle);
        let left = self.leaks_of(handle);
        self.orphans.extend(left.into_iter().map(|l| format!("{l}, when context {} ended", number(handle))));
        let allocs: Vec<u64> = self.store.live().filter(|a| a.context == handle).map(|a| a.base).collect();
        for base in allocs {
            let all = [Place::Device, Place::Module, Place::Pinned, Place::Registered, Place::Managed];
            self.store.free(base, &all)?;
            self.races.forget(base);
        }
        let gone: Vec<u64> =
            self.streams.live.iter().filter(|(_, s)| s.context == handle).map(|(h, _)| *h).collect();
        self.pending.retain(|_, stream| !gone.contains(stream));
        self.streams.retain(|s| s.context != handle);
        self.events.retain(|e| e.context != handle);
        self.captures.retain(|origin, _| !gone.contains(origin));
        self.graphs.retain(|g| g.context != handle);
        self.execs.retain(|g| g.context != handle);
        self.modules.retain(|m| m.context != handle);
        self.functions.retain(|f| f.context != handle);
        self.store.peers.retain(|(own, other)| *own != handle && *other != handle);
        self.contexts.remove(handle)?;
        Ok(())
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRetain(out: *mut u64, device: c_int) -> c_int {
    driver("cuDevicePrimaryCtxRetain", |sim| {
        let device = sim.device(device)?;
        let handle = match sim.primaries.get_mut(&device) {
            Some((handle, count)) => {
                *count += 1;
                *handle
            }
            None => {
                let handle = sim.new_context(device, true);
                sim.primaries.insert(device, (handle, 1));
                handle
            }
        };
        put(out, handle, "pctx")
    })
}

fn release(sim: &mut Sim, device: c_int) -> Result {
    let device = sim.device(device)?;
    let Some((handle, count)) = sim.primaries.get_mut(&device) else {
        refuse!(InvalidContext, "the primary context of device {device} is not retained");
    };
    *count -= 1;
    if *count == 0 {
        let handle = *handle;
        sim.primaries.remove(&device);
        sim.destroy_context(handle)?;
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease(device: c_int) -> c_int {
    driver("cuDevicePrimaryCtxRelease", |sim| release(sim, device))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> c_int {
    driver("cuDevicePrimaryCtxRelease_v2", |sim| release(sim, device))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: c_uint) -> c_int {
    driver("cuDevicePrimaryCtxSetFlags_v2", |sim| {
        let device = sim.device(device)?;
        sim.primary_flags.insert(device, flags);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int) -> c_int {
    driver("cuDevicePrimaryCtxGetState", |sim| {
        let device = sim.device(device)?;
        put(flags, sim.primary_flags.get(&device).copied().unwrap_or(0), "flags")?;
        put(active, c_int::from(sim.primaries.contains_key(&device)), "active")
    })
}

fn create(sim: &mut Sim, out: *mut u64, device: c_int) -> Result {
    let device = sim.device(device)?;
    let handle = sim.new_context(device, false);
    with_stack(|stack| stack.push(handle));
    put(out, handle, "pctx")
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxCreate_v2(out: *mut u64, _flags: c_uint, device: c_int) -> c_int {
    driver("cuCtxCreate_v2", |sim| create(sim, out, device))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxCreate_v4(out: *mut u64, params: *mut c_void, _flags: c_uint, device: c_int) -> c_int {
    driver("cuCtxCreate_v4", |sim| {
        if !params.is_null() {
            refuse!(NotSupported, "context creation parameters are not supported");
        }
        create(sim, out, device)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxDestroy_v2(context: u64) -> c_int {
    driver("cuCtxDestroy_v2", |sim| {
        sim.ready()?;
        if sim.contexts.get(context)?.primary {
            refuse!(InvalidContext, "a primary context is released, not destroyed");
        }
        with_stack(|stack| {
            if stack.last() == Some(&context) {
                stack.pop();
            }
        });
        sim.destroy_context(context)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxPushCurrent_v2(context: u64) -> c_int {
    driver("cuCtxPushCurrent_v2", |sim| {
        sim.ready()?;
        if !sim.contexts.live.contains_key(&context) {
            refuse!(InvalidContext, "{context:#x} is not a live context");
        }
        with_stack(|stack| stack.push(context));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxPopCurrent_v2(out: *mut u64) -> c_int {
    driver("cuCtxPopCurrent_v2", |sim| {
        sim.ready()?;
        let Some(context) = with_stack(Vec::pop) else {
            refuse!(InvalidContext, "this thread's stack of contexts is empty");
        };
        put_if(out, context);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetCurrent(out: *mut u64) -> c_int {
    driver("cuCtxGetCurrent", |sim| {
        sim.ready()?;
        put(out, with_stack(|stack| stack.last().copied().unwrap_or(0)), "pctx")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: u64) -> c_int {
    driver("cuCtxSetCurrent", |sim| {
        sim.ready()?;
        if context != 0 && !sim.contexts.live.contains_key(&context) {
            refuse!(InvalidContext, "{context:#x} is not a live context");
        }
        with_stack(|stack| {
            stack.pop();
            if context != 0 {
                stack.push(context);
            }
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetDevice(device: *mut c_int) -> c_int {
    driver("cuCtxGetDevice", |sim| {
        let context = sim.current_even_failed()?;
        let found = sim.device_of(context)?;
        put(device, found as c_int, "device")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetFlags(flags: *mut c_uint) -> c_int {
    driver("cuCtxGetFlags", |sim| {
        let context = sim.current_even_failed()?;
        let device = sim.device_of(context)?;
        put(flags, sim.primary_flags.get(&device).copied().unwrap_or(0), "flags")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetApiVersion(context: u64, version: *mut c_uint) -> c_int {
    driver("cuCtxGetApiVersion", |sim| {
        if context != 0 {
            sim.contexts.get(context)?;
        }
        put(version, 3020, "version")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> c_int {
    driver("cuCtxGetStreamPriorityRange", |sim| {
        sim.current()?;
        put_if(least, 0);
        put_if(greatest, -5);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> c_int {
    driver("cuCtxSynchronize", |sim| {
        let context = sim.current()?;
        sim.counters.totals.host_syncs += 1;
        sim.wait_context(context)?;
        sim.healthy(context)
    })
}

/// Whether one device can reach the memory of another: here every other one.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceCanAccessPeer(out: *mut c_int, device: c_int, peer: c_int) -> c_int {
    driver("cuDeviceCanAccessPeer", |sim| {
        let (own, other) = (sim.device(device)?, sim.device(peer)?);
        put(out, c_int::from(own != other), "canAccessPeer")
    })
}

/// Lets the current context reach the device memory of another device's context.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxEnablePeerAccess(peer: u64, flags: c_uint) -> c_int {
    driver("cuCtxEnablePeerAccess", |sim| {
        let own = sim.current()?;
        if flags != 0 {
            refuse!(InvalidValue, "flags must be 0");
        }
        if !sim.contexts.live.contains_key(&peer) {
            refuse!(InvalidContext, "{peer:#x} is not a live context");
        }
        if sim.device_of(own)? == sim.device_of(peer)? {
            refuse!(PeerUnsupported, "the peer context is of the same device");
        }
        if !sim.store.peers.insert((own, peer)) {
            refuse!(PeerEnabled, "the current context reaches that one already");
        }
        Ok(())
    })
}

/// Takes that back.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxDisablePeerAccess(peer: u64) -> c_int {
    driver("cuCtxDisablePeerAccess", |sim| {
        let own = sim.current()?;
        if !sim.store.peers.remove(&(own, peer)) {
            refuse!(PeerNotEnabled, "the current context does not reach that one");
        }
        Ok(())
    })
}
