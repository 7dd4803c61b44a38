//! Streams.

use libc::{c_int, c_uint, c_void};

use crate::boundary::{driver, put, put_if};
use crate::reason::{Result, refuse};
use crate::state::Sim;

impl Sim {
    fn create_stream(&mut self, out: *mut u64, flags: c_uint, priority: c_int) -> Result {
        let context = self.current()?;
        if flags > 1 {
            refuse!(InvalidValue, "unknown stream flags {flags:#x}");
        }
        let stream = self.new_stream(context, flags, priority, false);
        put(out, stream, "phStream")
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamCreate(out: *mut u64, flags: c_uint) -> c_int {
    driver("cuStreamCreate", |sim| sim.create_stream(out, flags, 0))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamCreateWithPriority(out: *mut u64, flags: c_uint, priority: c_int) -> c_int {
    driver("cuStreamCreateWithPriority", |sim| sim.create_stream(out, flags, priority.clamp(-5, 0)))
}

/// Work that is still queued runs later; the handle is gone at once.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: u64) -> c_int {
    driver("cuStreamDestroy_v2", |sim| {
        sim.current_even_failed()?;
        if stream <= 2 {
            refuse!(InvalidHandle, "a default stream is not destroyed");
        }
        let found = sim.streams.get(stream)?;
        if !found.alive {
            refuse!(InvalidHandle, "the stream was destroyed already");
        }
        if found.builtin {
            refuse!(InvalidHandle, "a default stream is not destroyed");
        }
        if found.capture.is_some() {
            refuse!(Capture, "a capturing stream is destroyed");
        }
        found.alive = false;
        let (last, clock, context, flags) = (found.last, found.clock.clone(), found.context, found.flags);
        let departed = &mut sim.contexts.get(context)?.departed;
        departed.0.join(&clock);
        if flags & 1 == 0 {
            departed.1.join(&clock);
        }
        if sim.done(last) {
            sim.streams.remove(stream)?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: u64) -> c_int {
    driver("cuStreamSynchronize", |sim| {
        let stream = sim.stream(stream)?;
        sim.counters.totals.host_syncs += 1;
        sim.wait_stream(stream)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamQuery(stream: u64) -> c_int {
    driver("cuStreamQuery", |sim| {
        let stream = sim.stream(stream)?;
        sim.refuse_capturing(stream, "a capturing stream is queried")?;
        sim.advance();
        let (last, clock) = (sim.streams.get(stream)?.last, sim.streams.get(stream)?.clock.clone());
        if !sim.done(last) {
            refuse!(NotReady, "the stream has pending work");
        }
        sim.host_knows(&clock);
        let context = sim.streams.get(stream)?.context;
        sim.healthy(context)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamGetCtx(stream: u64, out: *mut u64) -> c_int {
    driver("cuStreamGetCtx", |sim| {
        let stream = if stream <= 2 { sim.stream(stream)? } else { stream };
        let context = sim.streams.get(stream)?.context;
        put(out, context, "pctx")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamGetFlags(stream: u64, out: *mut c_uint) -> c_int {
    driver("cuStreamGetFlags", |sim| {
        let stream = sim.stream(stream)?;
        let flags = sim.streams.get(stream)?.flags;
        put(out, flags, "flags")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamGetPriority(stream: u64, out: *mut c_int) -> c_int {
    driver("cuStreamGetPriority", |sim| {
        let stream = sim.stream(stream)?;
        let priority = sim.streams.get(stream)?.priority;
        put(out, priority, "priority")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamGetId(stream: u64, out: *mut u64) -> c_int {
    driver("cuStreamGetId", |sim| {
        let stream = sim.stream(stream)?;
        let id = sim.streams.get(stream)?.component as u64;
        put(out, id, "streamId")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamIsCapturing(stream: u64, out: *mut c_int) -> c_int {
    driver("cuStreamIsCapturing", |sim| {
        let stream = sim.stream(stream)?;
        let status = sim.capture_status(stream)?;
        put(out, status, "captureStatus")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamGetCaptureInfo_v2(
    stream: u64,
    status: *mut c_int,
    id: *mut u64,
    graph: *mut *mut c_void,
    dependencies: *mut *const c_void,
    count: *mut usize,
) -> c_int {
    driver("cuStreamGetCaptureInfo_v2", |sim| {
        let stream = sim.stream(stream)?;
        let capture = sim.streams.get(stream)?.capture;
        let known = sim.capture_status(stream)?;
        put(status, known, "captureStatus_out")?;
        put_if(id, capture.unwrap_or(0));
        put_if(graph, std::ptr::null_mut());
        put_if(dependencies, std::ptr::null());
        put_if(count, 0);
        Ok(())
    })
}
