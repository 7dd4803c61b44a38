//! Why a call was refused: the kinds of refusal, their status codes, and the log that tests read.

/// What kind of rule was broken, or what else kept a call from succeeding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A bad argument.
    InvalidValue,
    /// A question whose honest answer is "invalid value", such as the attributes of a plain host pointer.
    Probe,
    /// A handle that is unknown, destroyed, or of another context.
    InvalidHandle,
    /// No current context, or not the right one.
    InvalidContext,
    /// The device ordinal does not exist.
    InvalidDevice,
    /// No device at all.
    NoDevice,
    /// `cuInit` was not called, or a library handle is missing.
    NotInitialized,
    /// The device's memory is used up.
    OutOfMemory,
    /// Work is still pending; the answer of a query.
    NotReady,
    /// An address outside live allocations.
    IllegalAddress,
    /// An address that is not a multiple of the access size.
    Misaligned,
    /// A kernel broke a rule: barrier divergence, shared race, trap, deadlock.
    LaunchFailed,
    /// A launch configuration beyond the device's limits.
    OutOfResources,
    /// A kernel that never ends.
    Timeout,
    /// A device-side assertion.
    Assert,
    /// PTX that does not parse or uses an unknown instruction.
    InvalidPtx,
    /// PTX newer than the driver.
    PtxVersion,
    /// PTX for a newer device.
    NoBinary,
    /// An unknown symbol.
    NotFound,
    /// A feature that is left out.
    NotSupported,
    /// An operation that stream capture forbids.
    Capture,
    /// A capture that an earlier refusal has spoilt.
    CaptureInvalidated,
    /// A capture that ends while streams that joined it have not come back.
    CaptureUnjoined,
    /// A capturing stream that would depend on work outside its capture.
    CaptureIsolation,
    /// A synchronous operation that would touch a capturing stream.
    CaptureImplicit,
    /// A query of an event that was recorded in a capture.
    CapturedEvent,
    /// Peer access that the devices do not have.
    PeerUnsupported,
    /// Peer access that was enabled already.
    PeerEnabled,
    /// Peer access that was not enabled.
    PeerNotEnabled,
    /// A workspace smaller than what the size query said.
    Workspace,
    /// Two accesses to the same bytes with nothing that orders them; reported, never returned.
    Race,
    /// The context already failed with this driver status.
    Sticky(i32),
    /// A status that a test asked for.
    Injected(i32),
    /// A bug in the simulator.
    Internal,
}

/// A refused call: the kind and a sentence.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The kind, from which the status follows.
    pub kind: Kind,
    /// What was wrong, in a sentence.
    pub reason: String,
}

/// The result of everything that can be refused.
pub type Result<T = ()> = std::result::Result<T, Fault>;

/// Leaves the function with a [`Fault`] of this kind and a formatted reason.
macro_rules! refuse {
    ($kind:ident, $($text:tt)*) => {
        return Err($crate::reason::Fault { kind: $crate::reason::Kind::$kind, reason: format!($($text)*) })
    };
}
pub(crate) use refuse;

/// Which library's status codes an entry point returns.
#[derive(Clone, Copy)]
pub enum Library {
    /// `CUresult`.
    Driver,
    /// `cublasStatus_t`.
    Blas,
    /// `cusolverStatus_t`.
    Solver,
}

impl Kind {
    /// The status code in a library's numbering.
    pub fn status(self, library: Library) -> i32 {
        match (self, library) {
            (Kind::Injected(status), _) => status,
            (kind, Library::Driver) => kind.driver_status(),
            (Kind::NotInitialized | Kind::InvalidHandle | Kind::InvalidContext, _) => 1,
            (Kind::OutOfMemory, Library::Blas) => 3,
            (Kind::OutOfMemory, Library::Solver) => 2,
            (Kind::InvalidValue | Kind::Probe | Kind::Workspace, Library::Blas) => 7,
            (Kind::InvalidValue | Kind::Probe | Kind::Workspace, Library::Solver) => 3,
            (Kind::NotSupported, Library::Blas) => 15,
            (Kind::NotSupported, Library::Solver) => 9,
            (Kind::Internal, Library::Blas) => 14,
            (Kind::Internal, Library::Solver) => 7,
            (_, Library::Blas) => 13,
            (_, Library::Solver) => 6,
        }
    }

    fn driver_status(self) -> i32 {
        match self {
            Kind::InvalidValue | Kind::Probe | Kind::Workspace => 1,
            Kind::OutOfMemory => 2,
            Kind::NotInitialized => 3,
            Kind::NoDevice => 100,
            Kind::InvalidDevice => 101,
            Kind::InvalidContext => 201,
            Kind::NoBinary => 209,
            Kind::PeerUnsupported => 217,
            Kind::PeerEnabled => 704,
            Kind::PeerNotEnabled => 705,
            Kind::InvalidPtx => 218,
            Kind::PtxVersion => 222,
            Kind::InvalidHandle => 400,
            Kind::NotFound => 500,
            Kind::NotReady => 600,
            Kind::IllegalAddress => 700,
            Kind::OutOfResources => 701,
            Kind::Timeout => 702,
            Kind::Assert => 710,
            Kind::Misaligned => 716,
            Kind::LaunchFailed | Kind::Race => 719,
            Kind::NotSupported => 801,
            Kind::Capture => 900,
            Kind::CaptureInvalidated => 901,
            Kind::CaptureUnjoined => 904,
            Kind::CaptureIsolation => 905,
            Kind::CaptureImplicit => 906,
            Kind::CapturedEvent => 907,
            Kind::Sticky(status) | Kind::Injected(status) => status,
            Kind::Internal => 999,
        }
    }

    /// Whether a correct program could meet this; all other kinds count as violations.
    pub fn is_innocent(self) -> bool {
        matches!(
            self,
            Kind::Probe
                | Kind::OutOfMemory
                | Kind::NoDevice
                | Kind::InvalidDevice
                | Kind::NotReady
                | Kind::NotFound
                | Kind::NotSupported
                | Kind::Sticky(_)
                | Kind::Injected(_)
        )
    }
}

/// At most this many reasons are kept; the count of violations goes on.
const KEPT: usize = 1000;

/// The log of refusals.
#[derive(Default)]
pub struct Reasons {
    /// Every reason, oldest first.
    pub log: Vec<String>,
    /// The newest reason.
    pub last: String,
    /// How many rules were broken.
    pub violations: u64,
    /// Do not print reasons to stderr.
    pub quiet: bool,
    /// Abort the process at the first violation, for a backtrace.
    pub abort: bool,
}

impl Reasons {
    /// Notes a refusal of the entry point or operation `place`.
    pub fn note(&mut self, place: &str, fault: &Fault) {
        if fault.kind == Kind::NotReady {
            return;
        }
        self.last = format!("{place}: {}", fault.reason);
        if self.log.len() < KEPT {
            self.log.push(self.last.clone());
        }
        let innocent = fault.kind.is_innocent();
        if !innocent {
            self.violations += 1;
        }
        if !self.quiet && !matches!(fault.kind, Kind::Probe) {
            eprintln!("cudasim: {}{}", if innocent { "" } else { "violation: " }, self.last);
        }
        if self.abort && !innocent {
            std::process::abort();
        }
    }
}
