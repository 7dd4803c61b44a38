//! The C ABI: the only `extern "C"` functions, and the only place where pointers from outside are read.
//!
//! A call goes through three gates: [`boundary`] (panics, struct sizes, strings, the floating-point environment),
//! [`handle`] (one call at a time, poison), and the validation of everything it was given, before the first write.

#![allow(non_camel_case_types)]

mod api;
mod blocks;
mod boundary;
mod checkpoint;
mod comm;
mod config;
mod diagnose;
pub(crate) mod float_env;
mod handle;
mod inspect;
mod live;
mod param;
mod probe;
mod record;
mod stack;
mod stack_args;
mod stack_ports;
mod stats;
mod status;
mod step;
mod tensor;
mod version;
mod xla;

pub use api::*;
pub use blocks::*;
pub use checkpoint::*;
pub use comm::*;
pub use config::*;
pub use diagnose::*;
pub use handle::*;
pub use inspect::*;
pub use live::*;
pub use param::*;
pub use probe::*;
pub use record::*;
pub use stack::*;
pub use stack_args::*;
pub use stack_ports::*;
pub use stats::*;
pub use status::*;
pub use step::*;
pub use tensor::*;
pub use version::*;
pub use xla::*;
