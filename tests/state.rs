//! The state outside the library: checkpoints, resumed runs, the caller's own buffers through stacks and XLA, and calls
//! with random arguments.

#[path = "support/frame.rs"]
mod frame;
mod support;

mod checkpoint;
mod fuzz;
mod resume;
mod squares;
mod stack;
mod vectors;
mod xla;
