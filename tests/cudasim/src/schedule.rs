//! Streams and the order in which their work runs.
//!
//! Eager mode runs every operation when it is enqueued. Deferred mode runs nothing until the host waits or
//! asks, and then picks among the operations that stream order, events and the legacy stream allow, at
//! random and often no more than what the host waits for.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::config::Config;
use crate::counters::Counters;
use crate::driver::graph::Node;
use crate::faults::Faults;
use crate::handle::number;
use crate::race::{Actor, Clock};
use crate::reason::{Fault, Kind, Result, refuse};
use crate::state::Sim;
use crate::store::Place;
use crate::window::Window;

/// What an operation works with when it runs.
pub struct Stage<'a> {
    /// Device memory.
    pub window: Window<'a>,
    /// Counts.
    pub counters: &'a mut Counters,
    /// Faults to come.
    pub faults: &'a mut Faults,
    /// The knobs.
    pub config: &'a Config,
    /// Random choices.
    pub random: &'a mut Random,
    /// Violations that do not stop the operation.
    pub reports: Vec<String>,
}

/// The work of an operation.
pub type Run = Arc<dyn Fn(&mut Stage<'_>) -> Result + Send + Sync>;

/// What an operation does.
#[derive(Clone)]
pub enum Work {
    /// Nothing: it only has a place in the order.
    Marker,
    /// Runs.
    Run(Run),
    /// Frees device memory.
    Free(u64),
}

/// An operation in a stream.
pub struct Op {
    /// Its number, in the order of enqueueing.
    id: u64,
    actor: Actor,
    /// Operations of other streams that must run first.
    after: Vec<u64>,
    work: Work,
}

/// A stream.
pub struct Stream {
    /// Its context.
    pub context: u64,
    /// Its place in vector clocks.
    pub component: usize,
    /// Creation flags; bit 0 is `NON_BLOCKING`.
    pub flags: u32,
    /// Its priority.
    pub priority: i32,
    /// A default stream, not the caller's to destroy.
    pub builtin: bool,
    /// Not yet destroyed.
    pub alive: bool,
    /// The stream whose capture this one takes part in; its work becomes nodes of a graph.
    pub capture: Option<u64>,
    /// Operations enqueued so far.
    pub count: u64,
    /// The last operation.
    pub last: u64,
    /// What comes before the next operation.
    pub clock: Arc<Clock>,
    queue: VecDeque<Op>,
}

impl Stream {
    /// A stream with no work.
    pub fn new(context: u64, component: usize, flags: u32, priority: i32, builtin: bool) -> Stream {
        Stream {
            context,
            component,
            flags,
            priority,
            builtin,
            alive: true,
            capture: None,
            count: 0,
            last: 0,
            clock: Arc::default(),
            queue: VecDeque::new(),
        }
    }

    fn blocking(&self) -> bool {
        self.flags & 1 == 0
    }
}

/// A small generator of random numbers.
pub struct Random(u64);

impl Random {
    /// Starts from a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `n`, or 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        if n == 0 { 0 } else { (self.0 >> 11) % n }
    }

    /// Puts a list in random order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

impl Sim {
    /// Adds work to a stream (a real handle, from [`Sim::stream`]); returns the operation.
    pub fn enqueue(&mut self, stream: u64, what: &str, work: Work) -> Result<u64> {
        self.enqueue_after(stream, what, work, None)
    }

    /// Likewise, after an event's record.
    pub fn enqueue_after(
        &mut self,
        stream: u64,
        what: &str,
        work: Work,
        event: Option<(u64, Arc<Clock>)>,
    ) -> Result<u64> {
        if let Some(origin) = self.streams.get(stream)?.capture {
            self.capture(origin, stream, what, Node::Work(work))?;
            return Ok(0);
        }
        let context = self.streams.get(stream)?.context;
        let legacy = self.contexts.get(context)?.legacy;
        let mut clock = self.host_clock.clone();
        let mut after = Vec::new();
        if stream == legacy {
            clock.join(&self.contexts.get(context)?.departed.1);
            for (_, other) in self.streams.live.iter().filter(|(h, s)| s.context == context && **h != legacy)
            {
                if other.blocking() {
                    if other.capture.is_some() {
                        refuse!(CaptureImplicit, "the legacy stream would wait for a capturing stream");
                    }
                    after.push(other.last);
                    clock.join(&other.clock);
                }
            }
        } else if self.streams.get(stream)?.blocking() {
            let other = self.streams.get(legacy)?;
            after.push(other.last);
            clock.join(&other.clock.clone());
        }
        if let Some((record, known)) = event {
            after.push(record);
            clock.join(&known);
        }
        self.last_op += 1;
        let id = self.last_op;
        let target = self.streams.get(stream)?;
        clock.join(&target.clock);
        target.count += 1;
        clock.set(target.component, target.count);
        let clock = Arc::new(clock);
        target.clock = clock.clone();
        target.last = id;
        let what = format!("{what} (op {id}, stream {})", number(stream)).into();
        let actor = Actor { stream: target.component, index: target.count, clock, what };
        target.queue.push_back(Op { id, actor, after, work });
        self.pending.insert(id, stream);
        if !self.config.deferred {
            self.force(&[id])?;
        }
        Ok(id)
    }

    /// Runs work until none of these operations is pending.
    pub fn force(&mut self, targets: &[u64]) -> Result {
        let lazy = self.config.deferred && self.random.below(2) == 0;
        let needed = if lazy { Some(self.needed(targets)) } else { None };
        while targets.iter().any(|t| self.pending.contains_key(t)) {
            let choices: Vec<u64> = self
                .streams
                .live
                .iter()
                .filter(|(handle, stream)| {
                    stream.queue.front().is_some_and(|op| {
                        op.after.iter().all(|id| !self.pending.contains_key(id))
                            && needed
                                .as_ref()
                                .is_none_or(|n| n.get(handle).is_some_and(|last| op.id <= *last))
                    })
                })
                .map(|(handle, _)| *handle)
                .collect();
            if choices.is_empty() {
                refuse!(Internal, "the work waited for cannot run");
            }
            let pick = if self.config.deferred { self.random.below(choices.len() as u64) } else { 0 };
            self.run_head(choices[pick as usize]);
        }
        Ok(())
    }

    /// The last operation of each stream that `targets` depend on.
    fn needed(&self, targets: &[u64]) -> HashMap<u64, u64> {
        let mut needed: HashMap<u64, u64> = HashMap::new();
        let mut open: Vec<u64> = targets.to_vec();
        while let Some(id) = open.pop() {
            let Some(&stream) = self.pending.get(&id) else { continue };
            let known = needed.entry(stream).or_default();
            if *known >= id {
                continue;
            }
            *known = id;
            if let Some(stream) = self.streams.live.get(&stream) {
                for op in stream.queue.iter().filter(|op| op.id <= id) {
                    open.extend(&op.after);
                }
            }
        }
        needed
    }

    /// Runs one random operation, as a device would while the host polls.
    pub fn advance(&mut self) {
        let ready: Vec<u64> = self
            .streams
            .live
            .iter()
            .filter(|(_, s)| {
                s.queue.front().is_some_and(|op| op.after.iter().all(|id| !self.pending.contains_key(id)))
            })
            .map(|(handle, _)| *handle)
            .collect();
        if !ready.is_empty() {
            let pick = self.random.below(ready.len() as u64) as usize;
            self.run_head(ready[pick]);
        }
    }

    fn run_head(&mut self, handle: u64) {
        let Some(stream) = self.streams.live.get_mut(&handle) else { return };
        let Some(op) = stream.queue.pop_front() else { return };
        let context = stream.context;
        if !stream.alive && stream.queue.is_empty() {
            let _ = self.streams.remove(handle);
        }
        self.pending.remove(&op.id);
        if self.contexts.live.get(&context).is_none_or(|c| c.sticky.is_some()) {
            return;
        }
        match &op.work {
            Work::Marker => {}
            Work::Free(address) => {
                let freed = self.store.free(*address, &[Place::Device]);
                self.races.forget(*address);
                if let Err(fault) = freed {
                    self.fail_context(context, &op.actor.what, &fault);
                }
            }
            Work::Run(run) => self.run(context, &op.actor, run),
        }
    }

    fn run(&mut self, context: u64, actor: &Actor, run: &Run) {
        let mut stage = Stage {
            window: Window::new(&mut self.store, context, self.config.uninit),
            counters: &mut self.counters,
            faults: &mut self.faults,
            config: &self.config,
            random: &mut self.random,
            reports: Vec::new(),
        };
        let result = run(&mut stage);
        let Stage { window, reports, .. } = stage;
        let (views, uninit) = (window.views, window.uninit_bytes);
        self.counters.totals.uninit_bytes += uninit;
        for reason in reports {
            self.counters.totals.shared_races += 1;
            self.reasons.note(&actor.what, &Fault { kind: Kind::Race, reason });
        }
        if self.config.races {
            for reason in self.races.check(&views, actor) {
                self.counters.totals.races += 1;
                self.reasons.note("race", &Fault { kind: Kind::Race, reason });
            }
        }
        if let Err(fault) = result {
            self.fail_context(context, &actor.what, &fault);
        }
    }

    fn fail_context(&mut self, context: u64, what: &str, fault: &Fault) {
        self.reasons.note(what, fault);
        if let Some(context) = self.contexts.live.get_mut(&context) {
            let status = fault.kind.status(crate::reason::Library::Driver);
            context.sticky.get_or_insert_with(|| (status, format!("{what}: {}", fault.reason)));
        }
    }

    /// The host waits for a stream.
    pub fn wait_stream(&mut self, stream: u64) -> Result {
        let context = self.streams.get(stream)?.context;
        self.refuse_capturing(stream, "the host cannot wait for a capturing stream")?;
        let last = if self.contexts.get(context)?.legacy == stream {
            // The legacy stream stands for every blocking stream as well.
            self.enqueue(stream, "wait", Work::Marker)?
        } else {
            self.streams.get(stream)?.last
        };
        self.force(&[last])?;
        let clock = self.streams.get(stream)?.clock.clone();
        self.host_knows(&clock);
        self.healthy(context)
    }

    /// The host waits for all streams of a context.
    pub fn wait_context(&mut self, context: u64) -> Result {
        let streams: Vec<(u64, Arc<Clock>, Option<u64>)> = self
            .streams
            .live
            .values()
            .filter(|s| s.context == context)
            .map(|s| (s.last, s.clock.clone(), s.capture))
            .collect();
        if streams.iter().any(|s| s.2.is_some()) {
            self.spoil_captures(context);
            refuse!(Capture, "the host cannot wait for a context with a capturing stream");
        }
        let last: Vec<u64> = streams.iter().map(|s| s.0).collect();
        self.force(&last)?;
        let mut known = self.contexts.get(context)?.departed.0.clone();
        for (_, clock, _) in &streams {
            known.join(clock);
        }
        self.host_knows(&known);
        Ok(())
    }

    /// The host has learnt that what `clock` names is done.
    pub fn host_knows(&mut self, clock: &Clock) {
        self.host_clock.join(clock);
        let mut known = self.host_clock.clone();
        for stream in self.streams.live.values() {
            for op in &stream.queue {
                known.meet(&op.actor.clock);
            }
        }
        self.races.prune(&known);
    }

    /// Whether an operation has run.
    pub fn done(&self, op: u64) -> bool {
        !self.pending.contains_key(&op)
    }
}
