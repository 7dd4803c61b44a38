//! cuBLAS, in plain loops.
//!
//! | module | entry points |
//! | --- | --- |
//! | [`handle`] | handles, streams, modes |
//! | [`gemm`] | products, single and batched |
//! | [`level3`] | `syrk`, `dgmm`, `geam` |
//! | [`product`] | none: the arithmetic of products |
//! | [`triangular`] | `trsmBatched` |
//! | [`level1`] | `nrm2`, `dot`, `axpy`, `scal` |

pub mod gemm;
pub mod handle;
pub mod level1;
pub mod level3;
pub mod product;
pub mod triangular;

pub use handle::BlasHandle;
