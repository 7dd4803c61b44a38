//! Events.

use libc::{c_int, c_uint};

use super::graph::Node;
use crate::boundary::{driver, put};
use crate::reason::{Result, refuse};
use crate::schedule::Work;
use crate::state::{Event, Sim};

const DISABLE_TIMING: u32 = 2;

impl Sim {
    /// The event, if it belongs to the current context.
    fn event(&mut self, event: u64) -> Result<&mut Event> {
        let current = self.current()?;
        let found = self.events.get(event)?;
        if found.context != current {
            refuse!(InvalidHandle, "the event belongs to another context than the current one");
        }
        Ok(found)
    }

    /// Records an event. While the stream captures, the event stands for what was captured so far; or, if it is
    /// `external`, every launch of the graph will record it.
    pub(super) fn record(&mut self, event: u64, stream: u64, external: bool) -> Result {
        let stream = self.stream(stream)?;
        self.event(event)?;
        self.counters.totals.event_records += 1;
        match self.streams.get(stream)?.capture {
            Some(origin) if external => self.capture(origin, stream, "cuEventRecord", Node::Record(event)),
            Some(origin) => {
                let nodes = self.captured_so_far(origin, stream)?;
                let found = self.event(event)?;
                (found.record, found.captured) = (None, Some((origin, nodes)));
                Ok(())
            }
            None if external => refuse!(InvalidValue, "the flag EXTERNAL is for capturing streams only"),
            None => {
                let op = self.enqueue(stream, "cuEventRecord", Work::Marker)?;
                let clock = self.streams.get(stream)?.clock.clone();
                let found = self.event(event)?;
                (found.record, found.captured) = (Some((op, clock)), None);
                Ok(())
            }
        }
    }

    /// Lets a stream wait for what an event was last recorded for.
    pub(super) fn await_event(&mut self, stream: u64, event: u64, external: bool) -> Result {
        let stream = self.stream(stream)?;
        // The event may be of another context.
        let (record, captured) = {
            let found = self.events.get(event)?;
            (found.record.clone(), found.captured.clone())
        };
        self.counters.totals.stream_waits += 1;
        let capture = self.streams.get(stream)?.capture;
        match (capture, captured) {
            (Some(origin), _) if external => {
                self.capture(origin, stream, "cuStreamWaitEvent", Node::Await(event))
            }
            (None, _) if external => refuse!(InvalidValue, "the flag EXTERNAL is for capturing streams only"),
            (_, Some((origin, nodes))) => self.join_capture(stream, origin, nodes),
            (Some(_), None) if record.is_some() => {
                self.spoil(stream)?;
                refuse!(CaptureIsolation, "a capturing stream waits for an event outside the capture");
            }
            _ => {
                if record.is_some() {
                    self.enqueue_after(stream, "cuStreamWaitEvent", Work::Marker, record)?;
                }
                Ok(())
            }
        }
    }

    fn elapsed(&mut self, out: *mut f32, start: u64, end: u64) -> Result {
        let mut at = [0u64; 2];
        for (slot, event) in at.iter_mut().zip([start, end]) {
            let found = self.event(event)?;
            if found.flags & DISABLE_TIMING != 0 {
                refuse!(InvalidHandle, "the event was made without timing");
            }
            let Some((op, _)) = found.record else { refuse!(InvalidHandle, "the event was never recorded") };
            if !self.done(op) {
                refuse!(NotReady, "the event is not complete");
            }
            *slot = op;
        }
        // A simulated clock: a microsecond for each operation.
        put(out, (at[1] as f32 - at[0] as f32) * 1e-3, "pMilliseconds")
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventCreate(out: *mut u64, flags: c_uint) -> c_int {
    driver("cuEventCreate", |sim| {
        let context = sim.current()?;
        if flags & !3 != 0 {
            refuse!(InvalidValue, "unknown or unsupported event flags {flags:#x}");
        }
        let event = sim.events.add(Event { context, flags, record: None, captured: None });
        put(out, event, "phEvent")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: u64, stream: u64) -> c_int {
    driver("cuEventRecord", |sim| sim.record(event, stream, false))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecordWithFlags(event: u64, stream: u64, flags: c_uint) -> c_int {
    driver("cuEventRecordWithFlags", |sim| {
        if flags > 1 {
            refuse!(InvalidValue, "unknown flags {flags:#x}");
        }
        sim.record(event, stream, flags == 1)
    })
}

/// A wait for an event that was never recorded does nothing, as in CUDA.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: u64, event: u64, flags: c_uint) -> c_int {
    driver("cuStreamWaitEvent", |sim| {
        if flags > 1 {
            refuse!(InvalidValue, "unknown flags {flags:#x}");
        }
        sim.await_event(stream, event, flags == 1)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: u64) -> c_int {
    driver("cuEventQuery", |sim| {
        let found = sim.event(event)?;
        if found.captured.is_some() {
            refuse!(CapturedEvent, "the event was recorded in a capture");
        }
        let Some((op, clock)) = found.record.clone() else { return Ok(()) };
        sim.advance();
        if !sim.done(op) {
            refuse!(NotReady, "the event is not complete");
        }
        sim.host_knows(&clock);
        let context = sim.current()?;
        sim.healthy(context)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: u64) -> c_int {
    driver("cuEventSynchronize", |sim| {
        let found = sim.event(event)?;
        if found.captured.is_some() {
            refuse!(CapturedEvent, "the event was recorded in a capture");
        }
        let record = found.record.clone();
        sim.counters.totals.host_syncs += 1;
        if let Some((op, clock)) = record {
            sim.force(&[op])?;
            sim.host_knows(&clock);
        }
        let context = sim.current()?;
        sim.healthy(context)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: u64) -> c_int {
    driver("cuEventDestroy_v2", |sim| {
        sim.current_even_failed()?;
        sim.events.remove(event)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventElapsedTime(out: *mut f32, start: u64, end: u64) -> c_int {
    driver("cuEventElapsedTime", |sim| sim.elapsed(out, start, end))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventElapsedTime_v2(out: *mut f32, start: u64, end: u64) -> c_int {
    driver("cuEventElapsedTime_v2", |sim| sim.elapsed(out, start, end))
}
