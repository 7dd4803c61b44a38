//! Everything the simulator knows, and the checks that most entry points share.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::thread::ThreadId;

use crate::blas::BlasHandle;
use crate::config::Config;
use crate::counters::Counters;
use crate::driver::graph::{Capture, Graph};
use crate::faults::Faults;
use crate::handle::{Table, Tag};
use crate::ptx::code::Program;
use crate::race::{Clock, Races};
use crate::reason::{Fault, Kind, Reasons, Result, refuse};
use crate::schedule::{Random, Stream};
use crate::solver::SolverHandle;
use crate::store::Store;

/// A context.
pub struct Context {
    /// Its device.
    pub device: usize,
    /// Whether it is the device's primary context.
    pub primary: bool,
    /// The stream that stands for the null handle.
    pub legacy: u64,
    /// Per-thread default streams.
    pub per_thread: HashMap<ThreadId, u64>,
    /// What destroyed streams did, and what the blocking ones among them did.
    pub departed: (Clock, Clock),
    /// The first asynchronous failure, status and reason; everything fails with it from then on.
    pub sticky: Option<(i32, String)>,
}

/// An event.
pub struct Event {
    /// Its context.
    pub context: u64,
    /// Creation flags.
    pub flags: u32,
    /// The newest record: the operation and what comes before it.
    pub record: Option<(u64, Arc<Clock>)>,
    /// If that record belongs to a capture: its origin, and the nodes that the event stands for.
    pub captured: Option<(u64, Vec<usize>)>,
}

/// A module.
pub struct Module {
    /// Its context.
    pub context: u64,
    /// The decoded functions.
    pub program: Arc<Program>,
    /// Its variables: address and size.
    pub globals: HashMap<String, (u64, usize)>,
    /// The handles of its functions.
    pub functions: Vec<u64>,
}

/// A kernel of a module.
pub struct Function {
    /// The module.
    pub module: u64,
    /// Its context.
    pub context: u64,
    /// The kernel's index.
    pub entry: usize,
    /// The decoded functions.
    pub program: Arc<Program>,
    /// The most dynamic shared memory that `cuFuncSetAttribute` allowed.
    pub max_dynamic: u32,
}

/// The whole simulator.
pub struct Sim {
    /// The knobs.
    pub config: Config,
    /// The log of refusals.
    pub reasons: Reasons,
    /// Counts.
    pub counters: Counters,
    /// Faults to come.
    pub faults: Faults,
    /// Device memory.
    pub store: Store,
    /// The race detector.
    pub races: Races,
    /// Whether `cuInit` was called.
    pub initialized: bool,
    /// Contexts.
    pub contexts: Table<Context>,
    /// Primary contexts and how often each is retained, by device.
    pub primaries: HashMap<usize, (u64, u32)>,
    /// Flags of primary contexts, by device.
    pub primary_flags: HashMap<usize, u32>,
    /// Streams.
    pub streams: Table<Stream>,
    /// Events.
    pub events: Table<Event>,
    /// Modules.
    pub modules: Table<Module>,
    /// Kernels.
    pub functions: Table<Function>,
    /// cuBLAS handles.
    pub blas: Table<BlasHandle>,
    /// cuSOLVER handles.
    pub solvers: Table<SolverHandle>,
    /// cuSOLVER parameter objects.
    pub params: Table<()>,
    /// Captures under way, by their origin.
    pub captures: HashMap<u64, Capture>,
    /// Graphs.
    pub graphs: Table<Graph>,
    /// Graphs that can be launched.
    pub execs: Table<Graph>,
    /// What was still alive when its context was destroyed.
    pub orphans: Vec<String>,
    /// Operations that have not run: their stream.
    pub pending: HashMap<u64, u64>,
    /// The last operation's number.
    pub last_op: u64,
    /// The last stream's component in clocks.
    pub components: usize,
    /// What the host has waited for.
    pub host_clock: Clock,
    /// The order of deferred work.
    pub random: Random,
}

// SAFETY: the raw pointers inside belong to allocations that only the holder of the lock touches.
unsafe impl Send for Sim {}

thread_local! {
    /// The stack of current contexts of this thread.
    static STACK: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f` on this thread's stack of contexts.
pub fn with_stack<T>(f: impl FnOnce(&mut Vec<u64>) -> T) -> T {
    STACK.with(|stack| f(&mut stack.borrow_mut()))
}

impl Default for Sim {
    /// A fresh simulator with the environment's knobs.
    fn default() -> Sim {
        let config = Config::from_env();
        if config.report || config.strict {
            // SAFETY: `at_exit` is a plain function.
            unsafe { libc::atexit(crate::control::at_exit) };
        }
        let mut sim = Sim {
            config,
            reasons: Reasons::default(),
            counters: Counters::default(),
            faults: Faults::from_env(),
            store: Store::default(),
            races: Races::default(),
            initialized: false,
            contexts: Table::new(Tag::Context),
            primaries: HashMap::new(),
            primary_flags: HashMap::new(),
            streams: Table::new(Tag::Stream),
            events: Table::new(Tag::Event),
            modules: Table::new(Tag::Module),
            functions: Table::new(Tag::Function),
            blas: Table::new(Tag::Blas),
            solvers: Table::new(Tag::Solver),
            params: Table::new(Tag::Params),
            captures: HashMap::new(),
            graphs: Table::new(Tag::Graph),
            execs: Table::new(Tag::Exec),
            orphans: Vec::new(),
            pending: HashMap::new(),
            last_op: 0,
            components: 0,
            host_clock: Clock::default(),
            random: Random::new(1),
        };
        sim.apply_config();
        sim
    }
}

impl Sim {
    /// Hands knobs to the parts that keep a copy.
    pub fn apply_config(&mut self) {
        self.reasons.quiet = self.config.quiet;
        self.reasons.abort = self.config.abort;
        self.random = Random::new(self.config.seed);
        let reuse = self.config.reuse;
        self.store.reuse = reuse;
        self.contexts.reuse = reuse;
        self.streams.reuse = reuse;
        self.events.reuse = reuse;
        self.modules.reuse = reuse;
        self.functions.reuse = reuse;
        self.blas.reuse = reuse;
        self.solvers.reuse = reuse;
        self.params.reuse = reuse;
        self.graphs.reuse = reuse;
        self.execs.reuse = reuse;
    }

    /// Refuses if `cuInit` was not called.
    pub fn ready(&self) -> Result {
        if !self.initialized {
            refuse!(NotInitialized, "cuInit was not called");
        }
        Ok(())
    }

    /// The current context, even if it has failed.
    pub fn current_even_failed(&mut self) -> Result<u64> {
        self.ready()?;
        let Some(handle) = with_stack(|stack| stack.last().copied()).filter(|h| *h != 0) else {
            refuse!(InvalidContext, "this thread has no current context");
        };
        if !self.contexts.live.contains_key(&handle) {
            refuse!(InvalidContext, "the current context was destroyed");
        }
        Ok(handle)
    }

    /// The current context.
    pub fn current(&mut self) -> Result<u64> {
        let handle = self.current_even_failed()?;
        self.healthy(handle)?;
        Ok(handle)
    }

    /// Refuses with the sticky status if the context has failed.
    pub fn healthy(&mut self, context: u64) -> Result {
        if let Some((status, reason)) = &self.contexts.get(context)?.sticky {
            let reason = format!("an earlier operation of this context failed: {reason}");
            return Err(Fault { kind: Kind::Sticky(*status), reason });
        }
        Ok(())
    }

    /// The device of a context.
    pub fn device_of(&mut self, context: u64) -> Result<usize> {
        Ok(self.contexts.get(context)?.device)
    }

    /// The stream that a handle means in the current context: 0 and 1 are the legacy default stream, 2 is the
    /// per-thread one.
    pub fn stream(&mut self, handle: u64) -> Result<u64> {
        let current = self.current()?;
        let stream = match handle {
            0 | 1 => self.contexts.get(current)?.legacy,
            2 => self.per_thread_stream(current)?,
            _ => handle,
        };
        let context = match self.streams.get(stream) {
            Ok(found) if found.alive => found.context,
            Ok(_) => refuse!(InvalidHandle, "stream {} was destroyed", crate::handle::number(stream)),
            Err(fault) => return Err(fault),
        };
        if context != current {
            refuse!(InvalidHandle, "the stream belongs to another context than the current one");
        }
        Ok(stream)
    }

    fn per_thread_stream(&mut self, context: u64) -> Result<u64> {
        let thread = std::thread::current().id();
        if let Some(&stream) = self.contexts.get(context)?.per_thread.get(&thread) {
            return Ok(stream);
        }
        let stream = self.new_stream(context, 0, 0, true);
        self.contexts.get(context)?.per_thread.insert(thread, stream);
        Ok(stream)
    }

    /// Adds a stream; `builtin` ones are not the caller's to destroy.
    pub fn new_stream(&mut self, context: u64, flags: u32, priority: i32, builtin: bool) -> u64 {
        self.components += 1;
        let component = self.components - 1;
        self.streams.add(Stream::new(context, component, flags, priority, builtin))
    }
}
