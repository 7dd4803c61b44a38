//! cuSOLVER: symmetric eigendecompositions and inverses.
//!
//! | module | entry points |
//! | --- | --- |
//! | [`handle`] | handles and parameter objects |
//! | [`cholesky`] | `potrf` and `potri` |
//! | [`evd`] | `Xsyevd` and `XsyevBatched` |

pub mod cholesky;
pub mod evd;
pub mod handle;

pub use handle::SolverHandle;
