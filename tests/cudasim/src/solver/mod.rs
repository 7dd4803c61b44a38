//! cuSOLVER: symmetric eigendecompositions.
//!
//! | module | entry points |
//! | --- | --- |
//! | [`handle`] | handles and parameter objects |
//! | [`evd`] | `Xsyevd` and `XsyevBatched` |

pub mod evd;
pub mod handle;

pub use handle::SolverHandle;
