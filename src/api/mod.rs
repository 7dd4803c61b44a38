//! The safe Rust API: parameters and gradients as slices or `ndarray` views, no `unsafe` for its user.
//!
//! It does what [`crate::abi`] does for C: it validates everything that it is given before the first
//! write, names the parameter in every refusal, and leaves the work to the engine.

mod checkpoint;
mod optimizer;
mod param;
mod stats;
mod tensor;

pub use engine::{Branch, Level, Outcome};
pub use optimizer::{Optimizer, StepOptions, build_info};
pub use param::Param;
pub use stats::{Counters, FactorId, FactorStats, Memory, Seconds, Stats};
pub use tensor::{Element, Gradient, TensorMut};

/// What this API takes from the engine; no other line of it names the engine's modules.
mod engine {
    pub(super) use crate::checkpoint::file::replace;
    pub(super) use crate::checkpoint::load::load;
    pub(super) use crate::checkpoint::save::Writer;
    pub(super) use crate::checkpoint::source::FileSource;
    pub(super) use crate::engine::plan::{ParamPlan, ParamSpec, SlotKind};
    pub(super) use crate::engine::stats::Verb;
    pub use crate::engine::{Level, Outcome};
    pub(super) use crate::engine::{Optimizer, StepOptions, Tensors};
    pub(super) use crate::memory::Allocator;
    pub use crate::preconditioner::Branch;
    pub(super) use crate::preconditioner::Counters;
    pub(super) use crate::tensor::TensorRef;
}
