//! The CUDA backend. No GPU is needed: the simulator of `tests/cudasim` executes what is shipped, and NVIDIA's real
//! compiler, assembler and libraries, installed by `environment.sh`, check what the simulator cannot.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(
    clippy::duplicate_mod,
    reason = "the replay of traces, which an example shares, brings its own way to the device"
)]

#[path = "../support/comm.rs"]
mod comm;
#[path = "../support/cudasim.rs"]
mod cudasim;
#[path = "../support/frame.rs"]
mod frame;
#[path = "../support/golden/mod.rs"]
mod golden;
#[path = "../support/library.rs"]
mod library;
#[path = "../support/nvidia.rs"]
mod nvidia;
#[path = "../support/program.rs"]
mod program;
#[path = "../support/python.rs"]
mod python;
#[path = "../support/rank.rs"]
mod rank;
#[path = "../support/simulated.rs"]
mod simulated;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/tier.rs"]
mod tier;

mod cost;
mod delay;
mod faults;
mod graph;
mod parity;
mod probe;
mod products;
mod programs;
mod qr;
mod ranks;
mod sharing;
mod simulator;
mod soap;
mod stack;
mod together;
mod toolchain;
mod workspace;
