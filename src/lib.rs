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
//! | [`abi`] | the only `extern "C"`: boundary, errors, configuration, handle, live options, statistics, plans, ranks, checkpoints, stacks, XLA handlers, the plugin's table |
//! | `api` | the same for Rust: [`Optimizer`], its tensors, its statistics |
//! | [`config`] | the hyperparameters: every option, its default, its range |
//! | `engine` | Algorithm 1, once: the plan (parameters → blocks → stacks), the State, `accumulate`, `check`, `apply`; grafting; `ranks`: who owns which block, and the exchange of a step |
//! | `preconditioner` | Shampoo and SOAP as values: their arrays, the order of their verbs; a factor's record, when it is checked, the policies, the damping, the proven bounds, the diagnosis |
//! | `device` | the trait of a device and what it is given; `cpu` (faer, the eigendecomposition of f32, the pools of the process), `gpu` (verbs, kernels, tables) over `gpu::cuda` |
//! | `comm` | collectives that the caller injects, messages in the host's or a device's memory; agreement of the ranks at creation |
//! | `checkpoint` | state to and from safetensors, whole or by parameter, atomically; files of the first format |
//! | `error`, `memory`, `tensor` | the error enum; aligned, fallible memory; element types, once |
//!
//! A *State* is stacks of equal blocks: named arrays (`clock`, `record`, `statistic_0`, …) whose first dimension is
//! the block. A handle owns one; the stack functions and the XLA handlers borrow the caller's; a checkpoint names its
//! parts by parameter and block. The engine's three verbs are the same over both.
//!
//! # Glossary
//! The paper's symbols, and the words for them here, in the ABI, in the statistics and in the documents.
//!
//! | word | symbol | meaning |
//! | --- | --- | --- |
//! | stack | | equal blocks, whose state lies in shared arrays |
//! | slot | | one block's part of an array |
//! | clock | t | steps that a block took part in, and the weight of its statistic |
//! | record | | everything about a factor that is not an array of numbers: ε, proxies, counters |
//! | site | | the caller's memory of one block |
//! | rules | | the options of a step as plain numbers, as devices get them |
//! | readback | | what a device tells the host, once per check |
//! | pending | | a refresh whose outcome only the device knows yet, or that was asked for and is taken later |
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
//! | refresh | EVD | a new basis and spectrum (SOAP: a power iteration with QR) |
//! | schedule | | at which steps factors are checked |
//! | kappa | κ | how far a statistic is from diagonal in SOAP's basis, see `preconditioner::soap` |
//! | shared square | | one that holds a statistic and an inverse root, a triangle each, see `device::cpu::square` |
//! | form | | where SOAP keeps its statistics: in the parameter's axes (exact) or in the basis |

#![deny(missing_docs)]
#![deny(unsafe_op_in_unsafe_fn)]
#![warn(clippy::undocumented_unsafe_blocks)]

/// As the standard library's, but as much of the text as memory allows: no message aborts the process.
macro_rules! format {
    ($($text:tt)*) => { $crate::memory::text(format_args!($($text)*)) };
}

pub mod abi;
mod api;
mod checkpoint;
mod comm;
pub mod config;
mod device;
mod engine;
mod error;
mod memory;
mod preconditioner;
mod tensor;

pub use api::{
    Branch, Counters, Element, FactorId, FactorStats, Gradient, Level, Memory, Optimizer, Outcome, Param,
    Seconds, Stats, StepOptions, TensorMut, build_info,
};
pub use config::{Config, Device};
pub use error::{Error, Kind as ErrorKind, Place, Result};
pub use preconditioner::diagnosis::{Finding, Findings};
pub use tensor::DType;

/// The crate whose `bf16` and `f16` parameters may have, in the version that is used here.
pub use half;
/// The crate whose views are taken and whose arrays are returned, in the version that is used here.
pub use ndarray;
