//! What the host and the kernels share, field by field as in kernels/common.cuh and kernels/factor.cuh.

use bytemuck::{Pod, Zeroable};

/// Threads of a thread block.
pub const THREADS: usize = 256;
/// Largest order of a block.
pub const MAX_ORDER: usize = 8;
/// Sites that one launch carries.
pub const POSTED: usize = 64;
/// No parameter.
pub const NONE: i32 = 0x7fff_ffff;

/// Element types of the caller's tensors.
pub fn element_code(dtype: crate::tensor::DType) -> i32 {
    use crate::tensor::DType;
    match dtype {
        DType::F32 => 0,
        DType::F64 => 1,
        DType::F16 => 2,
        DType::Bf16 => 3,
    }
}

/// The caller's memory of one block.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct Site {
    /// First element of the parameter's block.
    pub param: u64,
    /// First element of the gradient's block.
    pub grad: u64,
    /// Multiplies the learning rate.
    pub lr_scale: f64,
    /// Weight decay.
    pub decay: f64,
    /// [`element_code`] of the gradient.
    pub grad_dtype: i32,
    /// Takes part in the step.
    pub active: i32,
}

/// The time of a block.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct Time {
    /// Steps taken.
    pub step: u64,
    /// The statistic is the stored one times this.
    pub weight: f64,
}

/// Bytes of the order that `tick` leaves for each block.
pub const ORDER_BYTES: usize = 56;

/// Whether steps are taken.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct Gate {
    /// The first bad parameter of this step, or [`NONE`].
    pub bad: i32,
    /// This step is taken.
    pub open: i32,
    /// No step is taken until the host has heard of the bad one.
    pub closed: i32,
    /// The first bad parameter since the host last looked, or [`NONE`].
    pub param: i32,
    /// Steps asked for.
    pub calls: u64,
    /// Steps not taken since the host last looked.
    pub refused: u64,
    /// The call in which `param` was bad.
    pub call: u64,
    /// Directions left out since the host last looked.
    pub overflowed: u64,
}

/// A stack of equal blocks.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct Stack {
    /// Blocks.
    pub count: i32,
    /// Axes of a block.
    pub order: i32,
    /// Chunks of a block.
    pub chunks: i32,
    /// Factors of a block: its order, or 0.
    pub factors: i32,
    /// Elements of a block.
    pub elements: u32,
    /// Elements of a chunk.
    pub chunk: u32,
    /// [`element_code`] of the parameters.
    pub param_dtype: i32,
    /// A block is one run in its parameter.
    pub contiguous: i32,
    /// [`element_code`] of the updates.
    pub update_dtype: i32,
    /// Nothing.
    pub reserved: i32,
    /// Sizes of the axes.
    pub dims: [u32; MAX_ORDER],
    /// Elements between neighbours along each axis of the parameter.
    pub strides: [u64; MAX_ORDER],
    /// The statistics of each axis.
    pub statistics: [u64; MAX_ORDER],
    /// Addresses of tables and state.
    pub sites: u64,
    /// The parameter of each block.
    pub params: u64,
    /// The clock of each block.
    pub clocks: u64,
    /// The order of each block.
    pub orders: u64,
    /// Two partial sums a chunk.
    pub partials: u64,
    /// ‖G‖² of each block.
    pub squares: u64,
    /// Info of each block.
    pub info: u64,
    /// m, or 0.
    pub filter: u64,
    /// v, or 0.
    pub moment: u64,
    /// M, or 0.
    pub momentum: u64,
    /// The workspace.
    pub work: u64,
    /// Where the update goes, or 0 for the parameter itself.
    pub update: u64,
}

/// The hyperparameters of a step.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct Rules {
    /// β₁ and β₂, and their logarithms.
    pub betas: [f64; 4],
    /// β of the grafted moment, and its logarithm.
    pub grafting_beta2: [f64; 2],
    /// Added to the grafted root.
    pub grafting_epsilon: f64,
    /// μ.
    pub momentum: f64,
    /// Learning rate of the step.
    pub lr: f64,
    /// Multiplies the gradient.
    pub grad_scale: f64,
    /// ‖G‖² must be smaller.
    pub largest: f64,
    /// The first step with inverse roots.
    pub first_check: u64,
    /// Number of the grafting.
    pub grafting: i32,
    /// Graft from the normalised gradient.
    pub normalized: i32,
    /// Look one filter step ahead.
    pub nadam: i32,
    /// Nesterov momentum.
    pub nesterov: i32,
    /// Scale the momentum's input.
    pub ema_momentum: i32,
    /// Decay the parameter, not the gradient.
    pub decoupled: i32,
    /// Which averages are corrected for their start: filter, statistic, moment.
    pub corrections: [i32; 3],
    /// The paper's cadence: inverse roots from the first step.
    pub paper: i32,
}

/// What to do with one factor.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct Task {
    /// Addresses of the factor's buffers.
    pub statistic: u64,
    /// Q.
    pub basis: u64,
    /// D.
    pub spectrum: u64,
    /// The inverse root.
    pub inverse_root: u64,
    /// The sensed diagonal.
    pub diagonal: u64,
    /// The block's clock.
    pub clock: u64,
    /// The ε in use.
    pub damping: u64,
    /// 1/p.
    pub exponent: f64,
    /// ε to sense or to damp with.
    pub epsilon: f64,
    /// ε if the refresh failed.
    pub fallback: f64,
    /// The range and the target of a search.
    pub search: [f64; 3],
    /// ln β₂.
    pub log_beta2: f64,
    /// Where the answer goes.
    pub report: u64,
    /// Bits of [`task`].
    pub flags: i32,
    /// Divide the statistic by its bias correction.
    pub correct: i32,
}

/// Bits of [`Task::flags`].
pub mod task {
    /// There is a stale basis to fall back on.
    pub const HAS_BASIS: i32 = 1;
    /// Take the sensed diagonal as spectrum.
    pub const ADOPT_DIAGONAL: i32 = 2;
    /// The ε depends on the refresh of this check.
    pub const AFTER_REFRESH: i32 = 4;
    /// Search for a certified ε.
    pub const SEARCH: i32 = 8;
    /// A fault on purpose: spoil the basis.
    pub const SPOIL: i32 = 16;
    /// A fault on purpose: the decomposition fails.
    pub const FAIL: i32 = 32;
    /// Keep the sensed diagonal.
    pub const KEEP_DIAGONAL: i32 = 64;
    /// Shift the spectrum so that its smallest value is not negative.
    pub const SHIFT: i32 = 128;
    /// Sense with the given ε, not with the one in use.
    pub const GIVEN_EPSILON: i32 = 256;
    /// Measure the noise floor.
    pub const NOISE: i32 = 512;
}

/// What was sensed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Drift {
    /// RC.
    pub relative_change: f64,
    /// α.
    pub alpha: f64,
    /// Off-diagonal residual.
    pub residual: f64,
    /// Certified ε.
    pub epsilon: f64,
    /// The proxy there.
    pub proxy: f64,
}

/// What a refresh came to.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Renewal {
    /// Smallest eigenvalue.
    pub least: f64,
    /// Largest eigenvalue.
    pub most: f64,
    /// Noise floor.
    pub noise: f64,
    /// 0 chosen, 1 double, 3 stale.
    pub rung: i32,
    /// There is a new basis.
    pub fresh: i32,
}

/// 32-bit words of a factor's record.
pub const RECORD_WORDS: usize = 50;

/// A record that depends on how the refresh of its factor went.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Choice {
    /// The caller's record.
    pub record: u64,
    /// How the refresh went.
    pub renewal: u64,
    /// The block's info.
    pub info: u64,
    /// The record if it succeeded.
    pub sound: [u32; RECORD_WORDS],
    /// The record if it failed.
    pub failed: [u32; RECORD_WORDS],
}

/// Bytes of what a refresh keeps between its kernels.
pub const SCALE_BYTES: usize = 32;

const _: () = {
    assert!(size_of::<Site>() == 40);
    assert!(size_of::<Gate>() == 48);
    assert!(size_of::<Stack>() == 4 * 10 + 4 * MAX_ORDER + 16 * MAX_ORDER + 8 * 12);
    assert!(size_of::<Rules>() == 8 * 12 + 4 * 10);
    assert!(size_of::<Task>() == 128);
    assert!(size_of::<Choice>() == 24 + 8 * RECORD_WORDS);
    assert!(size_of::<Drift>() == 40 && size_of::<Renewal>() == 32);
};
