//! cuSOLVER: symmetric eigendecompositions, inverses and orthogonal factors.
//!
//! | module | entry points |
//! | --- | --- |
//! | [`handle`] | handles and parameter objects |
//! | [`cholesky`] | `potrf`, `potrfBatched` and `potri` |
//! | [`evd`] | `Xsyevd` and `XsyevBatched` |
//! | [`qr`] | `geqrf` and `orgqr` |

pub mod cholesky;
pub mod evd;
pub mod handle;
pub mod qr;

pub use handle::SolverHandle;
