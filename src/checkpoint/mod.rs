//! Checkpoints: the whole state to and from one safetensors file, keyed by parameter name.

pub mod file;
pub mod format;
