//! Capture of streams into graphs, and graphs that are launched again and again without the host.

use std::collections::{HashMap, HashSet};

use libc::{c_int, c_ulonglong, c_void};

use crate::boundary::{driver, put};
use crate::reason::{Result, refuse};
use crate::schedule::Work;
use crate::state::Sim;

/// What a node of a graph does when the graph is launched.
#[derive(Clone)]
pub enum Node {
    /// An operation.
    Work(Work),
    /// Records an event, as if the launch had.
    Record(u64),
    /// Waits for what an event was last recorded for before the launch.
    Await(u64),
}

/// A graph: its nodes in the order of capture, each with its name and the nodes that come before it.
#[derive(Clone, Default)]
pub struct Graph {
    /// Its context.
    pub context: u64,
    nodes: Vec<(String, Node, Vec<usize>)>,
}

/// A capture under way.
#[derive(Default)]
pub struct Capture {
    graph: Graph,
    /// What the next node of each stream comes after.
    ends: HashMap<u64, Vec<usize>>,
    /// Something was refused, so that no graph will come of it.
    spoilt: bool,
}

impl Sim {
    /// Adds a node to the capture that `stream` takes part in.
    pub fn capture(&mut self, origin: u64, stream: u64, what: &str, node: Node) -> Result {
        let Some(capture) = self.captures.get_mut(&origin) else {
            refuse!(Internal, "the capture is unknown");
        };
        if capture.spoilt {
            refuse!(CaptureInvalidated, "the capture was spoilt by an earlier call");
        }
        if matches!(node, Node::Work(Work::Free(_))) {
            capture.spoilt = true;
            refuse!(Capture, "memory is freed in a capture");
        }
        let nodes = &mut capture.graph.nodes;
        let before = capture.ends.insert(stream, vec![nodes.len()]).unwrap_or_default();
        nodes.push((what.to_string(), node, before));
        Ok(())
    }

    /// The nodes that an event stands for which is recorded now.
    pub fn captured_so_far(&mut self, origin: u64, stream: u64) -> Result<Vec<usize>> {
        match self.captures.get(&origin) {
            Some(capture) if capture.spoilt => {
                refuse!(CaptureInvalidated, "the capture was spoilt by an earlier call")
            }
            Some(capture) => Ok(capture.ends.get(&stream).cloned().unwrap_or_default()),
            None => refuse!(Internal, "the capture is unknown"),
        }
    }

    /// A stream comes after captured nodes, and so takes part in their capture.
    pub fn join_capture(&mut self, stream: u64, origin: u64, nodes: Vec<usize>) -> Result {
        if self.streams.get(stream)?.capture.is_some_and(|own| own != origin) {
            self.spoil(stream)?;
            refuse!(CaptureIsolation, "a capturing stream waits for an event of another capture");
        }
        let Some(capture) = self.captures.get_mut(&origin) else {
            refuse!(CapturedEvent, "the event was recorded in a capture that has ended");
        };
        capture.ends.entry(stream).or_default().extend(nodes);
        self.streams.get(stream)?.capture = Some(origin);
        Ok(())
    }

    /// Spoils the capture of a stream.
    pub fn spoil(&mut self, stream: u64) -> Result {
        let origin = self.streams.get(stream)?.capture;
        if let Some(capture) = origin.and_then(|origin| self.captures.get_mut(&origin)) {
            capture.spoilt = true;
        }
        Ok(())
    }

    /// Spoils all captures of a context.
    pub fn spoil_captures(&mut self, context: u64) {
        for capture in self.captures.values_mut().filter(|c| c.graph.context == context) {
            capture.spoilt = true;
        }
    }

    /// Refuses what a capturing stream forbids, which spoils the capture.
    pub fn refuse_capturing(&mut self, stream: u64, why: &str) -> Result {
        if self.streams.get(stream)?.capture.is_some() {
            self.spoil(stream)?;
            refuse!(Capture, "{why}");
        }
        Ok(())
    }

    /// 0, 1 while a stream captures, 2 if its capture is spoilt.
    pub fn capture_status(&mut self, stream: u64) -> Result<c_int> {
        let origin = self.streams.get(stream)?.capture;
        let capture = origin.and_then(|origin| self.captures.get(&origin));
        Ok(capture.map_or(0, |capture| if capture.spoilt { 2 } else { 1 }))
    }

    fn begin_capture(&mut self, stream: u64) -> Result {
        let stream = self.stream(stream)?;
        let context = self.current()?;
        if self.contexts.get(context)?.legacy == stream {
            refuse!(Capture, "the legacy stream cannot be captured");
        }
        if self.streams.get(stream)?.capture.is_some() {
            refuse!(InvalidValue, "the stream captures already");
        }
        self.streams.get(stream)?.capture = Some(stream);
        let graph = Graph { context, nodes: Vec::new() };
        self.captures.insert(stream, Capture { graph, ..Capture::default() });
        Ok(())
    }

    fn end_capture(&mut self, stream: u64) -> Result<u64> {
        let stream = self.stream(stream)?;
        let Some(capture) = self.captures.remove(&stream) else {
            refuse!(InvalidValue, "no capture began on this stream");
        };
        for other in self.streams.live.values_mut().filter(|s| s.capture == Some(stream)) {
            other.capture = None;
        }
        for event in self.events.live.values_mut() {
            if event.captured.as_ref().is_some_and(|(origin, _)| *origin == stream) {
                event.captured = None;
            }
        }
        if capture.spoilt {
            refuse!(CaptureInvalidated, "the capture was spoilt by an earlier call");
        }
        let mut joined: HashSet<usize> = HashSet::new();
        let mut open = capture.ends.get(&stream).cloned().unwrap_or_default();
        while let Some(node) = open.pop() {
            if joined.insert(node) {
                open.extend(&capture.graph.nodes[node].2);
            }
        }
        if capture.ends.values().flatten().any(|node| !joined.contains(node)) {
            refuse!(CaptureUnjoined, "a stream that joined the capture did not come back to its origin");
        }
        Ok(self.graphs.add(capture.graph))
    }

    /// Puts the nodes of a graph on a stream, in one of the orders that the graph allows.
    fn launch_graph(&mut self, exec: u64, stream: u64) -> Result {
        let stream = self.stream(stream)?;
        let context = self.current()?;
        self.refuse_capturing(stream, "a graph is launched on a capturing stream")?;
        let graph = self.execs.get(exec)?.clone();
        if graph.context != context {
            refuse!(InvalidContext, "the graph belongs to another context than the current one");
        }
        self.counters.totals.graph_launches += 1;
        let mut waiting: Vec<usize> = (0..graph.nodes.len()).collect();
        let mut gone = vec![false; graph.nodes.len()];
        while !waiting.is_empty() {
            let is_ready = |place: &usize| graph.nodes[waiting[*place]].2.iter().all(|before| gone[*before]);
            let ready: Vec<usize> = (0..waiting.len()).filter(is_ready).collect();
            let pick = if self.config.deferred { self.random.below(ready.len() as u64) as usize } else { 0 };
            let node = waiting.remove(ready[pick]);
            gone[node] = true;
            let (what, work, _) = &graph.nodes[node];
            match work {
                Node::Work(work) => {
                    self.enqueue(stream, &format!("replayed {what}"), work.clone())?;
                }
                Node::Record(event) => self.record(*event, stream, false)?,
                Node::Await(event) => self.await_event(stream, *event, false)?,
            }
        }
        Ok(())
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(stream: u64, mode: c_int) -> c_int {
    driver("cuStreamBeginCapture_v2", |sim| {
        if !(0..=2).contains(&mode) {
            refuse!(InvalidValue, "capture mode {mode} is unknown");
        }
        sim.begin_capture(stream)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamEndCapture(stream: u64, out: *mut u64) -> c_int {
    driver("cuStreamEndCapture", |sim| {
        put(out, 0, "phGraph")?;
        let graph = sim.end_capture(stream)?;
        put(out, graph, "phGraph")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphInstantiateWithFlags(out: *mut u64, graph: u64, flags: c_ulonglong) -> c_int {
    driver("cuGraphInstantiateWithFlags", |sim| {
        if flags != 0 {
            refuse!(NotSupported, "flags of instantiation are not supported");
        }
        let graph = sim.graphs.get(graph)?.clone();
        let exec = sim.execs.add(graph);
        put(out, exec, "phGraphExec")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphLaunch(exec: u64, stream: u64) -> c_int {
    driver("cuGraphLaunch", |sim| sim.launch_graph(exec, stream))
}

/// The number of nodes; their handles are not given out.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphGetNodes(graph: u64, nodes: *mut *mut c_void, count: *mut usize) -> c_int {
    driver("cuGraphGetNodes", |sim| {
        if !nodes.is_null() {
            refuse!(NotSupported, "handles of nodes are not supported");
        }
        let known = sim.graphs.get(graph)?.nodes.len();
        put(count, known, "numNodes")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphDestroy(graph: u64) -> c_int {
    driver("cuGraphDestroy", |sim| sim.graphs.remove(graph).map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecDestroy(exec: u64) -> c_int {
    driver("cuGraphExecDestroy", |sim| sim.execs.remove(exec).map(|_| ()))
}
