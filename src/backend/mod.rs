//! The verbs that a device performs, each over a batch, so that a CPU can spread blocks over threads
//! and a GPU can batch and fuse. Control flow stays with the optimizer; a backend only computes.
//!
//! | verb | does | when |
//! | --- | --- | --- |
//! | [`Backend::inspect`] | ‖G‖² of every block; finds what is not finite | every step, before any write |
//! | [`Backend::accumulate`] | statistic ← β·statistic + (1−β)·G Gᵀ, along every axis | every step |
//! | [`Backend::sense`] | RC, α, residual of factors in their stale basis | check steps |
//! | [`Backend::refresh`] | eigendecompositions, with the never-fail ladder | check steps |
//! | [`Backend::redamp`] | inverse roots from (basis, spectrum, ε) | check steps |
//! | [`Backend::apply`] | filter, direction, grafting, decay, momentum, parameter | every step |

pub mod bound;
pub mod cpu;
pub mod cuda;

use crate::config::{Config, InjectFault};
use crate::error::Result;
use crate::optimizer::Clock;
use crate::optimizer::plan::{Plan, SlotId};
use crate::preconditioner::policy::Sensed;
use crate::tensor::TensorRef;
use std::sync::Arc;

/// The tensors of one step, validated, in the order of the plan's parameters.
pub struct Tensors<'a> {
    /// Parameters, updated in place.
    pub params: &'a [TensorRef],
    /// Gradients; `None` for a parameter that takes no part.
    pub grads: &'a [Option<TensorRef>],
    /// Where the updates −lr·u go; `None` to update the parameters in place. With a place for the updates
    /// a parameter is read only where a decay needs it.
    pub updates: Option<&'a [TensorRef]>,
    /// The caller's stream, for devices that have streams.
    pub stream: *mut libc::c_void,
}

// SAFETY: addresses; validated tensors are disjoint and live for the call.
unsafe impl Sync for Tensors<'_> {}

/// How the direction of a block comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Inverse roots times the filtered gradient, with the grafted method's length.
    Preconditioned,
    /// The grafted method's own step.
    Grafted,
    /// No direction yet: only decay and momentum act.
    Zero,
}

/// What a step does with one block.
#[derive(Clone, Copy, Debug)]
pub struct BlockOrder {
    /// The block.
    pub block: usize,
    /// How its direction comes about.
    pub direction: Direction,
    /// Multiplies the gradient.
    pub grad_scale: f64,
    /// Added to the gradient: this times the parameter.
    pub coupled_decay: f64,
    /// Added to the direction: this times the parameter.
    pub decoupled_decay: f64,
    /// Learning rate of the block.
    pub lr: f64,
    /// Learning rate of the step, before the parameter's own scale.
    pub step_lr: f64,
    /// The filtered gradient is divided by it.
    pub filter_correction: f64,
    /// The grafted second moment is divided by it.
    pub moment_correction: f64,
    /// The stored statistics are multiplied by it first (1 in nearly every step).
    pub statistic_decay: f64,
    /// G Gᵀ enters the stored statistics with this weight.
    pub statistic_gain: f64,
    /// ‖G‖² of the block, found by `inspect`.
    pub squared_norm: f64,
}

/// A factor to sense.
#[derive(Clone, Copy, Debug)]
pub struct SenseOrder {
    /// The factor.
    pub factor: usize,
    /// The statistic is the stored one times this (average weight and bias correction).
    pub scale: f64,
    /// ε to sense with.
    pub epsilon: f64,
    /// Search for a certified ε: the smallest in [low, high] whose proxy is at most the target.
    pub search: Option<Search>,
}

/// A search for the smallest sufficient damping.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// Smallest ε.
    pub low: f64,
    /// Largest ε.
    pub high: f64,
    /// Largest tolerated proxy.
    pub target: f64,
}

/// A factor to refresh.
#[derive(Clone, Copy, Debug)]
pub struct RefreshOrder {
    /// The factor.
    pub factor: usize,
    /// As in [`SenseOrder`].
    pub scale: f64,
    /// ε that the noise floor is measured with.
    pub epsilon: f64,
    /// The parameter's step, for the record.
    pub step: u64,
    /// The step of the refresh before, to fall back on.
    pub last_refresh: i64,
    /// Whether there is a stale basis to fall back on.
    pub has_basis: bool,
    /// The chosen precision failed at the last check: begin with double precision.
    pub doubled: bool,
    /// A fault made on purpose.
    pub fault: InjectFault,
}

/// Which path gave the basis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rung {
    /// The eigendecomposition in the chosen precision (or the statistic is diagonal).
    #[default]
    Chosen,
    /// The one in double precision.
    Double,
    /// The singular value decomposition in double precision.
    Svd,
    /// None: the stale basis was kept (or, with no basis, the statistic's diagonal was taken).
    Stale,
}

/// What a refresh found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Refreshed {
    /// Which path gave the basis.
    pub rung: Rung,
    /// Smallest eigenvalue.
    pub eigenvalue_min: f64,
    /// Largest eigenvalue.
    pub eigenvalue_max: f64,
    /// The proxy right after the refresh; NaN when it was not measured.
    pub noise_floor: f64,
}

/// A factor whose inverse root is formed anew.
#[derive(Clone, Copy, Debug)]
pub struct RedampOrder {
    /// The factor.
    pub factor: usize,
    /// ε.
    pub epsilon: f64,
    /// ε if the refresh of this check, whose answer is still out, failed; `None` if there was none.
    pub fallback: Option<f64>,
    /// First take the diagonal found by the last `sense` as spectrum.
    pub adopt_diagonal: bool,
}

/// What a device that works on its own has found out since the host last asked. Empty from a device that
/// answers at once.
#[derive(Debug, Default)]
pub struct News {
    /// Steps that were not taken because a gradient was not finite.
    pub refused: u64,
    /// Whether the last of them is the step that is under way.
    pub refused_now: bool,
    /// The parameter whose gradient was the first of these.
    pub culprit: Option<usize>,
    /// The clock of every parameter, if the host's may be ahead.
    pub clocks: Vec<Clock>,
    /// Directions that overflowed and were left out.
    pub overflowed: u64,
    /// Answers to earlier refreshes.
    pub refreshed: Vec<(RefreshOrder, Refreshed)>,
}

/// Sizes that a backend reports.
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

/// A device. After [`Backend::inspect`] has let a step pass, no verb fails for numerical reasons. A device
/// may work behind the host's back: it then answers `None` where it would have to wait, holds back by
/// itself a step whose gradient is not finite, and tells by [`News`] once the host has to wait anyway.
pub trait Backend: Send {
    /// Fills `squared_norm` of every order; a value that is not finite means that the block's
    /// gradient, or its square in the precision of the statistics, is not.
    /// `waits` says that a check is due, so that the host will wait for the device in this step.
    fn inspect(&mut self, tensors: &Tensors, orders: &mut [BlockOrder], waits: bool) -> Result<()>;
    /// Updates the statistics.
    fn accumulate(&mut self, tensors: &Tensors, orders: &[BlockOrder]) -> Result<()>;
    /// Measures factors; `sensed[i]` answers `orders[i]`. The one place in a step where the host waits.
    fn sense(&mut self, orders: &[SenseOrder], sensed: &mut [Sensed], news: &mut News) -> Result<()>;
    /// Renews bases and spectra; `refreshed[i]` answers `orders[i]`, now or by [`News`].
    fn refresh(&mut self, orders: &[RefreshOrder], refreshed: &mut [Option<Refreshed>]) -> Result<()>;
    /// Forms inverse roots.
    fn redamp(&mut self, orders: &[RedampOrder]) -> Result<()>;
    /// Updates moments, momentum and parameters. Gives the number of blocks whose direction overflowed and
    /// was left out of the update.
    fn apply(&mut self, tensors: &Tensors, orders: &[BlockOrder]) -> Result<usize>;
    /// Waits until all work is done, and tells what came of it.
    fn settle(&mut self, news: &mut News) -> Result<()>;
    /// The host has reported a refused step to the caller: later steps are taken again.
    fn forgive(&mut self);
    /// Copies a state buffer out.
    fn read(&mut self, slot: SlotId, bytes: &mut [u8]) -> Result<()>;
    /// Copies a state buffer in.
    fn write(&mut self, slot: SlotId, bytes: &[u8]) -> Result<()>;
    /// Takes over restored clocks (by parameter) and dampings (by factor).
    fn restore(&mut self, clocks: &[Clock], dampings: &[f64]) -> Result<()>;
    /// Takes over options that do not shape the state, and the plan with its new base dampings.
    fn set_config(&mut self, config: &Config, plan: &Arc<Plan>);
    /// What it occupies.
    fn footprint(&self) -> Footprint;
    /// The backend as one that works on the caller's state and answers at once, if it can.
    fn bound(&mut self) -> Option<&mut dyn bound::Bound> {
        None
    }
    /// The backend as one that works on the caller's state on its own, if it can.
    fn late(&mut self) -> Option<&mut dyn bound::Late> {
        None
    }
}
