//! A CUDA driver, cuBLAS and cuSOLVER that run on the CPU, for tests on machines without a GPU.
//!
//! The cdylib stands in for `libcuda.so.1`, `libcublas.so.*` and `libcusolver.so.*` through symlinks in a
//! directory on `LD_LIBRARY_PATH` (`build.sh` makes them). It executes the PTX that it is given with its own
//! interpreter, computes linear algebra with plain loops in f64, and refuses, with a reason, what a device
//! would refuse or silently get wrong.
//!
//! # The map
//!
//! | module | is |
//! | --- | --- |
//! | [`driver`] | the entry points of the driver |
//! | [`blas`], [`solver`] | those of cuBLAS and cuSOLVER; [`matrix`] and [`eigen`] are the arithmetic |
//! | [`control`] | the `cudasim_*` functions that tests call |
//! | [`boundary`] | what every entry point goes through: lock, count, injected faults, status |
//! | [`state`] | everything that exists; [`handle`] tells the handles apart |
//! | [`store`] | device memory at addresses the host cannot touch |
//! | [`window`] | what one operation sees of memory, checked and recorded; [`bits`] are its sets of bytes |
//! | [`schedule`] | streams, and the order in which work runs: eager or deferred |
//! | [`race`] | vector clocks and the race detector |
//! | [`ptx`] | the PTX interpreter |
//! | [`config`], [`counters`], [`faults`], [`reason`] | knobs, counts, injected faults, refusals |
//!
//! # Conventions
//! An entry point has the name and signature of CUDA's; pointers are the caller's promise, as in CUDA, and
//! null is always checked. No panic crosses the boundary: it becomes an internal error with a reason.

#![allow(non_snake_case)]

pub mod bits;
pub mod blas;
pub mod boundary;
pub mod config;
pub mod control;
pub mod counters;
pub mod driver;
pub mod eigen;
pub mod faults;
pub mod handle;
pub mod matrix;
pub mod ptx;
pub mod race;
pub mod reason;
pub mod schedule;
pub mod solver;
pub mod state;
pub mod store;
pub mod window;
