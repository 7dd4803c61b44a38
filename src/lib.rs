//! libfoam: Shampoo whose damping and eigendecomposition frequency are controlled, factor by factor,
//! by a measured proxy of the staleness error (FOAM). In Rust use [`Optimizer`]; for all other languages
//! the crate is a shared library with a stable C ABI ([`abi`]).
//!
#![cfg_attr(any(doc, doctest), doc = include_str!("../docs/rust.md"))]
//!
//! # The map
//! Data flows down this list and back once: gradient → statistic → sense → decide → refresh or
//! re-damp → apply → parameter.
//!
//! | module | is |
//! | --- | --- |
//! | [`abi`] | the only `extern "C"`: boundary, errors, configuration, handle, statistics, checkpoints, stacks, XLA handlers |
//! | `api` | the same for Rust: [`Optimizer`], its tensors, its statistics |
//! | [`config`] | the hyperparameters: every option, its default, its range |
//! | `optimizer` | Algorithm 1: parameters cut into blocks, the step's pipeline, the state's layout |
//! | `preconditioner` | one Kronecker factor: its record, when it is checked, what is decided, the proven bound |
//! | `backend` | the verbs that a device performs on batches of blocks; `cpu` does them with faer |
//! | `checkpoint` | state to and from safetensors, atomically |
//!
//! # Glossary
//! The paper's symbols, and the words for them here, in the ABI, in the statistics and in the documents.
//!
//! | word | symbol | meaning |
//! | --- | --- | --- |
//! | block | G | a matrix (or tensor) piece of a parameter, no side larger than `max_factor_dim` |
//! | factor | | what belongs to one axis of a block |
//! | statistic | L, R | running second moment of the gradient along an axis |
//! | basis | Q | eigenvectors of the statistic at the last refresh |
//! | spectrum | D | its eigenvalues then |
//! | epsilon | ε | damping in use, between ε₀ (`epsilon`) and ε_max (`epsilon_max`) |
//! | root | p | the inverse root is (Q (D + ε) Qᵀ)^(−1/p) |
//! | relative change | RC | ‖(L̂+ε)^(−1/2) (L − L̂) (L̂+ε)^(−1/2)‖_F, in the stale basis |
//! | alpha | α | ‖L̂^(−1/p)‖₂ / ‖L̂^(−1/p)‖_F |
//! | proxy | h | α·RC/p, a first-order bound of the relative operator gap |
//! | gap bound | h·g(m) | a bound that holds for any drift, see `preconditioner::bound` |
//! | check period | f | steps between two checks of a factor |
//! | tau | τ | the tolerated proxy |
//! | refresh | EVD | a new basis and spectrum |

#![deny(missing_docs)]
#![deny(unsafe_op_in_unsafe_fn)]
#![warn(clippy::undocumented_unsafe_blocks)]

pub mod abi;
mod api;
mod backend;
mod checkpoint;
pub mod config;
mod error;
mod memory;
mod optimizer;
mod preconditioner;
mod tensor;

pub use api::{
    Branch, Counters, Element, FactorId, FactorStats, Gradient, Level, Memory, Optimizer, Outcome, Param,
    Seconds, Stats, StepOptions, TensorMut, build_info,
};
pub use config::{Config, Device};
pub use error::{Error, Kind as ErrorKind, Place, Result};
pub use tensor::DType;

/// The crate whose `bf16` and `f16` parameters may have, in the version that is used here.
pub use half;
/// The crate whose views are taken and whose arrays are returned, in the version that is used here.
pub use ndarray;
