//! cuSOLVER: symmetric eigendecompositions, inverses and orthogonal factors.
//!
//! | module | entry points |
//! | --- | --- |
//! | [`handle`] | handles and parameter objects |
//! | [`cholesky`] | `potrf`, `potrfBatched` and `potri` |
//! | [`evd`] | `Xsyevd` and `XsyevBatched` |
//! | [`qr`] | `geqrf` and `orgqr` |
//! | [`rounding`] | none: the errors of an eigensolver |

pub mod cholesky;
pub mod evd;
pub mod handle;
pub mod qr;
pub mod rounding;

pub use handle::SolverHandle;
