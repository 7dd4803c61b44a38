//! What a device does. The engine submits verbs to it, each over many blocks or factors, and asks for one
//! readback per check; a CPU performs a verb at once, a GPU puts it on the caller's stream. Control flow, options
//! and policies stay with the engine: a device gets plain numbers ([`Rules`], orders) and addresses.
//!
//! | verb | does | when |
//! | --- | --- | --- |
//! | [`Device::inspect`] | ‖G‖² of every block; finds what is not finite | every step, before any write |
//! | [`Device::accumulate`] | clocks advance; every `statistics_period` steps statistic ← β·statistic + (1−β)·G Gᵀ along every axis | every step |
//! | [`Device::sense`] | RC, α, residual of factors in their stale basis | check steps |
//! | [`Device::readback`] | brings clocks, infos, records and what was sensed to the host | check steps: the one wait |
//! | [`Device::refresh`] | eigendecompositions, with the never-fail ladder | check steps |
//! | [`Device::postpone`] | keeps statistics, and begins their eigendecompositions in the background | check steps, with `refresh_delay` |
//! | [`Device::store_records`] | the records as the engine decided, or as a pending refresh will decide | check steps |
//! | [`Device::redamp`] | inverse roots from (basis, spectrum, ε) | check steps |
//! | [`Device::apply`] | filter, direction, grafting, decay, momentum, parameter | every step |
//!
//! For SOAP `refresh` turns the basis (and the moments in it), there is no `redamp`, and `apply` comes before the
//! check; with the statistics in the basis `apply` adds the projected gradient to them.

pub mod cpu;
pub mod gpu;

use crate::config::InjectFault;
use crate::engine::rules::{Clock, Rules};
use crate::error::{Error, Result};
use crate::memory::reserved;
use crate::preconditioner::FactorRecord;
use crate::preconditioner::damping::Damping;
use crate::preconditioner::policy::Sensed;
use crate::tensor::{DType, Precision};

/// The block took no part: it is not active, or has never accumulated.
pub const INFO_IDLE: i32 = 1;
/// The gradient is not finite, or its square overflows.
pub const INFO_NOT_FINITE: i32 = 2;
/// The direction overflowed and was left out.
pub const INFO_LEFT_OUT: i32 = 4;
/// An eigendecomposition failed or was inaccurate, and another path served.
pub const INFO_FELL_BACK: i32 = 8;

/// The memory of the caller that belongs to one block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Site {
    /// First element of the block in its parameter; 0 where there is none.
    pub param: u64,
    /// First element of the block in its gradient.
    pub grad: u64,
    /// Where the update goes, one element behind the other; 0 to update the parameter in place.
    pub update: u64,
    /// Type of the gradient.
    pub grad_dtype: DType,
    /// Type of the update.
    pub update_dtype: DType,
    /// Multiplies the learning rate.
    pub lr_scale: f64,
    /// Weight decay.
    pub decay: f64,
    /// Takes part in the step.
    pub active: bool,
}

impl Site {
    /// A block that takes no part.
    pub const ABSENT: Site = Site {
        param: 0,
        grad: 0,
        update: 0,
        grad_dtype: DType::F32,
        update_dtype: DType::F32,
        lr_scale: 1.0,
        decay: 0.0,
        active: false,
    };
}

/// Blocks whose parameters, gradients and updates lie one behind the other, as in a call on a stack.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// Parameters; 0 where there are none.
    pub params: u64,
    /// Gradients, and their type.
    pub grads: (u64, DType),
    /// Updates, and their type; 0 where the verb makes none.
    pub updates: (u64, DType),
    /// i32 per block: whether it takes part; 0 for all.
    pub active: u64,
    /// Weight decay.
    pub decay: f64,
}

impl Rows {
    /// The site of row `row`, for blocks of `elements` elements and parameters of type `dtype`.
    pub fn site(&self, row: usize, elements: usize, dtype: DType, active: bool) -> Site {
        let at = |base: u64, dtype: DType| {
            if base == 0 { 0 } else { base + (row * elements * dtype.size()) as u64 }
        };
        Site {
            param: at(self.params, dtype),
            grad: at(self.grads.0, self.grads.1),
            update: at(self.updates.0, self.updates.1),
            grad_dtype: self.grads.1,
            update_dtype: self.updates.1,
            lr_scale: 1.0,
            decay: if self.params == 0 { 0.0 } else { self.decay },
            active,
        }
    }
}

/// Where the blocks of a call are.
#[derive(Clone, Copy, Debug)]
pub enum Sites<'a> {
    /// Anywhere, by block.
    Listed(&'a [Site]),
    /// One behind the other.
    Rows(Rows),
    /// The verb needs none.
    None,
}

/// What the verbs of a call work on, until the next call. All addresses are of the device's memory.
pub struct Binding<'a> {
    /// Address of every array of the plan as it is read at first; 0 for those that the call does not use.
    pub read: &'a [u64],
    /// The same once [`Device::carry`] has run: where results lie.
    pub write: &'a [u64],
    /// What `carry` copies, because results lie elsewhere than their operands: from, to, bytes.
    pub copies: &'a [(u64, u64, usize)],
    /// The blocks.
    pub sites: Sites<'a>,
    /// i32 per block: what happened to it, as a verb before wrote it and as this one shall; 0 for the device's own.
    pub infos: (u64, u64),
    /// Workspace and its bytes; 0 for the device's own.
    pub workspace: (u64, usize),
    /// The caller's stream, for devices that have streams.
    pub stream: *mut libc::c_void,
    /// Streams whose work so far comes before that of the call.
    pub after: &'a [*mut libc::c_void],
    /// All blocks take part, or none: one gradient that is not finite stops the step.
    pub joint: bool,
    /// After such a step none is taken until the engine says [`Device::reopen`].
    pub strict: bool,
    /// The host will have to wait for the device in this call.
    pub waits: bool,
}

/// A square that holds a statistic and an inverse root ([`crate::engine::plan::SlotKind::RootDiagonal`]).
#[derive(Clone, Copy, Debug)]
pub struct SharedSquare {
    /// Address of the square.
    pub square: u64,
    /// Address of the inverse root's diagonal.
    pub diagonal: u64,
    /// Side of the square.
    pub side: usize,
    /// Precision of both.
    pub precision: Precision,
}

/// What an inspection found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inspection {
    /// Every gradient is finite, or the block of the first that is not.
    Known(Option<usize>),
    /// The device will act by itself, and tell in a later readback.
    Pending,
}

/// A factor to sense, at the larger of its base ε and the one in its record.
#[derive(Clone, Copy, Debug)]
pub struct SenseOrder {
    /// The factor.
    pub factor: usize,
    /// ε₀, at the largest of diag H.
    pub base: Damping,
    /// Search for the smallest ε in [ε₀, most] whose proxy is at most the target.
    pub search: Option<Search>,
    /// Keep the diagonal for a `redamp` that adopts it.
    pub keep_diagonal: bool,
    /// Bound the gap as it is once the diagonal is adopted. RC and α are then those of the corrected spectrum.
    pub certificate: Option<Certificate>,
}

/// A proven bound of the gap that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Certificate {
    /// τ: the cheapest bound that is at most τ is enough.
    pub target: f64,
    /// c: the statistic is at least c times what it was at the last refresh.
    pub kept: f64,
    /// ω ≥ ‖QᵀQ − I‖_F: what the basis misses of an orthogonal one is charged to the bound.
    pub orthogonality: f64,
}

/// A search for the smallest sufficient damping.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// Largest ε.
    pub most: Damping,
    /// Largest tolerated proxy.
    pub target: f64,
}

/// The search stops when its bracket is this tight: ε is then at most one percent above the smallest.
pub const SEARCH_RATIO: f64 = 1.01;

/// A factor to refresh.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RefreshOrder {
    /// The factor.
    pub factor: usize,
    /// ε₀, which the noise floor is measured with.
    pub base: Damping,
    /// Measure the noise floor.
    pub noise_floor: bool,
    /// Shift a spectrum with negative values up until the smallest is zero; else each becomes zero.
    pub shift: bool,
    /// Whether there is a stale basis to fall back on.
    pub has_basis: bool,
    /// SOAP with its statistic in the basis: make the new basis orthonormal to the last digits.
    pub polish: bool,
    /// Refresh by QR steps; by an eigendecomposition if they do not suffice.
    pub qr: Option<QrSteps>,
    /// The chosen precision failed at the last check: begin with double precision. Only for devices that do not
    /// climb the whole ladder in one check.
    pub doubled: bool,
    /// Decompose the statistic that [`Device::postpone`] kept; else the statistic as it is.
    pub delayed: bool,
    /// Take what was decomposed only if the clock of the block is at this step; 0 to take it in any case.
    pub due: u64,
    /// A fault made on purpose.
    pub fault: InjectFault,
}

/// A refresh by steps Q ← qr(A·Q).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QrSteps {
    /// τ: steps are taken until the sandwich bound is at most this.
    pub target: f64,
    /// How many are put on the queue of a device that is not synchronous, where nobody looks in between.
    pub blind: i32,
}

/// Which path gave the basis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rung {
    /// The eigendecomposition in the chosen precision (or the statistic is diagonal).
    #[default]
    Chosen = 0,
    /// The one in double precision.
    Double = 1,
    /// The singular value decomposition in double precision.
    Svd = 2,
    /// None: the stale basis was kept (or, with no basis, the statistic's diagonal was taken).
    Stale = 3,
    /// QR steps that did not suffice, on a device that is not synchronous: the next check decomposes.
    Short = 4,
}

/// What a refresh found.
#[derive(Clone, Copy, Debug)]
pub struct Refreshed {
    /// Which path gave the basis.
    pub rung: Rung,
    /// Smallest eigenvalue.
    pub eigenvalue_min: f64,
    /// Largest eigenvalue.
    pub eigenvalue_max: f64,
    /// The proxy right after the refresh; NaN when it was not measured.
    pub noise_floor: f64,
    /// κ before the refresh; NaN when it was not measured.
    pub kappa: f64,
    /// The proven bound of the gap right after it: 0 for an eigendecomposition.
    pub bound: f64,
    /// QR steps taken, whether or not they sufficed.
    pub qr_steps: i64,
    /// The basis is theirs.
    pub by_qr: bool,
    /// ‖QᵀQ − I‖_F of their basis; NaN for others.
    pub orthogonality: f64,
}

impl Default for Refreshed {
    fn default() -> Self {
        let none = f64::NAN;
        Refreshed {
            rung: Rung::Chosen,
            eigenvalue_min: none,
            eigenvalue_max: none,
            noise_floor: none,
            kappa: none,
            bound: 0.0,
            qr_steps: 0,
            by_qr: false,
            orthogonality: none,
        }
    }
}

/// A refresh whose outcome only the device will know: the record that the factor gets if it succeeds, and if it
/// fails. The device fills in what it measured.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    /// The factor.
    pub factor: usize,
    /// Its record if the refresh succeeds.
    pub success: FactorRecord,
    /// Its record if the refresh fails.
    pub failure: FactorRecord,
}

/// A factor whose inverse root is formed anew.
#[derive(Clone, Copy, Debug)]
pub struct RedampOrder {
    /// The factor.
    pub factor: usize,
    /// ε; after a pending refresh at the largest eigenvalue that it found.
    pub epsilon: Damping,
    /// Which of the pending refreshes decides about its record, and the ε to take if that one fails.
    pub pending: Option<(usize, Damping)>,
    /// First take the diagonal found by the last `sense` as spectrum.
    pub adopt_diagonal: bool,
}

/// What a readback brings to the host.
#[derive(Clone, Debug, Default)]
pub struct Readback {
    /// The clock of every block.
    pub clocks: Vec<Clock>,
    /// The info of every block.
    pub infos: Vec<i32>,
    /// The record of every factor.
    pub records: Vec<FactorRecord>,
    /// What was sensed since the last readback, by order.
    pub sensed: Vec<Sensed>,
    /// Joint steps that were not taken because a gradient was not finite, since the last readback.
    pub refused: u64,
    /// Joint steps that were asked for without the host, since the last readback.
    pub replayed: u64,
    /// Whether the last of the refused ones is the step that is under way.
    pub refused_now: bool,
    /// The parameter whose gradient was the first of these.
    pub offender: Option<usize>,
    /// Directions that overflowed and were left out, since the last readback.
    pub left_out: u64,
}

impl Readback {
    /// One with room for all that it can be told, so that no step grows it.
    pub fn with_room(blocks: usize, factors: usize) -> Result<Readback> {
        let what = "what a device reports";
        Ok(Readback {
            clocks: reserved(blocks, what)?,
            infos: reserved(blocks, what)?,
            records: reserved(factors, what)?,
            sensed: reserved(factors, what)?,
            ..Readback::default()
        })
    }
}

/// Sizes that a device reports.
#[derive(Clone, Copy, Debug, Default)]
pub struct Footprint {
    /// Bytes of state in host memory.
    pub state_host: usize,
    /// Bytes of state in device memory.
    pub state_device: usize,
    /// Bytes of workspace.
    pub workspace: usize,
    /// Threads that share the work.
    pub threads: usize,
}

const NOT_SHARED: &str = "this device keeps statistics and inverse roots in squares of their own";

/// A device, made for one plan. After [`Device::inspect`] has let a step pass, no verb fails for numerical
/// reasons.
pub trait Device: Send {
    /// Whether verbs are done when they return, so that a readback costs nothing and every answer is known.
    fn is_synchronous(&self) -> bool;

    /// The address of the state that it owns, all zero at first; none if it works on a borrowed one.
    fn state(&self) -> Option<u64>;
    /// Copies from the device's memory to the host's, after all work so far.
    ///
    /// # Safety
    /// `from` has as many readable bytes.
    unsafe fn read(&mut self, from: u64, into: &mut [u8]) -> Result<()>;
    /// Copies from the host's memory to the device's, after all work so far.
    ///
    /// # Safety
    /// `to` has as many writable bytes.
    unsafe fn write(&mut self, bytes: &[u8], to: u64) -> Result<()>;
    /// Copies the inverse root of a square (or the lower triangle of its statistic, with zeros) to the host's memory, as
    /// [`Device::read`]. Only devices whose plans share squares are asked.
    ///
    /// # Safety
    /// The addresses are those of such a square; `into` has its bytes.
    unsafe fn read_shared(&mut self, _at: &SharedSquare, _root: bool, _into: &mut [u8]) -> Result<()> {
        Err(Error::invalid(NOT_SHARED))
    }
    /// Copies the inverse root of a square (or the lower triangle of its statistic) from the host's memory, as
    /// [`Device::write`].
    ///
    /// # Safety
    /// As [`Device::read_shared`].
    unsafe fn write_shared(&mut self, _bytes: &[u8], _at: &SharedSquare, _root: bool) -> Result<()> {
        Err(Error::invalid(NOT_SHARED))
    }
    /// Fills memory of the device with zeros, after all work so far.
    ///
    /// # Safety
    /// `at` has `bytes` writable bytes.
    unsafe fn clear(&mut self, at: u64, bytes: usize) -> Result<()>;
    /// Bytes of workspace that a caller of a borrowed state has to give.
    fn workspace_bytes(&self) -> usize;
    /// What it occupies.
    fn footprint(&self) -> Footprint;

    /// Takes the memory of a call for the verbs that follow.
    ///
    /// # Safety
    /// The memory is valid, and the caller's alone where it is written, until the work of the call is done.
    unsafe fn bind(&mut self, binding: &Binding) -> Result<()>;
    /// Whether what is put on `stream` now is recorded, to be run later and any number of times.
    fn is_recording(&self, _stream: *mut libc::c_void) -> Result<bool> {
        Ok(false)
    }
    /// Whether steps were ever recorded: they may have been taken since without the host.
    fn was_recorded(&self) -> bool {
        false
    }
    /// Copies operands to where results lie, and works there from now on.
    fn carry(&mut self) -> Result<()>;
    /// Looks at the gradients of all active blocks, before anything is written.
    fn inspect(&mut self, rules: &Rules) -> Result<Inspection>;
    /// Where the device itself decides about the joint step under way, and whether a bad gradient stops all later
    /// steps; none if an inspection says at once what it found.
    fn joint_gate(&self) -> Option<(u64, bool)> {
        None
    }
    /// Decides on the device about the steps that were inspected, one for each of `gates`: all are taken, or none.
    fn judge(&mut self, _gates: &[(u64, bool)]) -> Result<()> {
        Ok(())
    }
    /// Advances the clocks of the blocks that take part, and updates their statistics. `adds` is false if it is certain
    /// that no gradient of this call enters the statistics: a device that does not know the clocks leaves out that work.
    fn accumulate(&mut self, rules: &Rules, adds: bool) -> Result<()>;
    /// Measures factors; the answers come with the readback.
    fn sense(&mut self, rules: &Rules, orders: &[SenseOrder]) -> Result<()>;
    /// Puts on the queue what the next readback in this call brings.
    fn request(&mut self) -> Result<()> {
        Ok(())
    }
    /// The host has waited for the queue since the request, on behalf of another: the readback need not.
    fn arrived(&mut self) {}
    /// Brings to the host what it has to know. On a device that is not synchronous, the one wait of a check.
    fn readback(&mut self, into: &mut Readback) -> Result<()>;
    /// Renews bases and spectra. `answers` becomes an answer per order; false if they are still out.
    fn refresh(
        &mut self,
        rules: &Rules,
        orders: &[RefreshOrder],
        answers: &mut Vec<Refreshed>,
    ) -> Result<bool>;
    /// Keeps the statistics of factors as they are, for refreshes that are taken later. What [`Device::refresh`] will find
    /// for an equal order may be worked out from now on; what it finds does not depend on that.
    fn postpone(&mut self, rules: &Rules, orders: &[RefreshOrder]) -> Result<()>;
    /// The same for statistics that were kept before and loaded since.
    fn resume(&mut self, orders: &[RefreshOrder]) -> Result<()>;
    /// Writes the records of all factors into the state, or of none; those of pending refreshes are chosen in `redamp`.
    fn store_records(&mut self, records: &[FactorRecord], pending: &[Pending]) -> Result<()>;
    /// Forms inverse roots.
    fn redamp(&mut self, orders: &[RedampOrder]) -> Result<()>;
    /// Updates moments, momentum and parameters (or writes the updates). `bases` says of every stack whether a
    /// block of it may have a basis. A block whose inverse roots were never formed takes the grafted step.
    fn apply(&mut self, rules: &Rules, bases: &[bool]) -> Result<()>;
    /// Blocks whose direction overflowed in the last `apply` and was left out, as far as that is known.
    fn left_out(&self) -> u64;
    /// The call's work has all been submitted.
    fn finish(&mut self) -> Result<()>;

    /// Whether there is anything that only a readback would tell.
    fn has_news(&self) -> bool;
    /// A refused joint step has been reported to the caller: later steps are taken again.
    fn reopen(&mut self);
    /// Where a device that works on its own keeps the first bad parameter of the inspected step: an i32, i32::MAX if
    /// there is none.
    fn verdict(&self) -> Option<u64> {
        None
    }
    /// The step that was inspected is not taken, whatever was found in it.
    fn withdraw(&mut self) -> Result<()> {
        Ok(())
    }
}
