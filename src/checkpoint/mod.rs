//! Checkpoints: the whole state to and from one safetensors file, keyed by parameter name. The format is
//! described in `docs/checkpoints.md`.
//!
//! | module | holds |
//! | --- | --- |
//! | [`layout`] | which tensors a state is |
//! | [`save`] | state → bytes, one chunk in memory at a time |
//! | [`load`] | bytes → state: header, checksums and values first, then the writes |
//! | [`states`] | the state of each parameter by itself, in parts |
//! | [`v1`] | files of the first format |
//! | [`header`], [`json`] | the head of a safetensors file |
//! | [`source`], [`file`] | reading in pieces; replacing a file as a whole |
//!
//! No allocation here aborts: what cannot be had is [`Kind::OutOfMemory`].

pub mod file;
pub mod header;
mod json;
mod layout;
pub mod load;
pub mod save;
pub mod source;
pub mod states;
mod v1;

use crate::error::{Error, Kind, Result};
use crate::memory;
use std::fmt;
use std::ops::Deref;

pub use crate::memory::{no_memory, reserved, text};

/// Text whose growth can fail.
#[derive(Default)]
pub struct Text(memory::Text);

impl Text {
    fn reserve(&mut self, bytes: usize) -> Result<()> {
        self.0.0.try_reserve(bytes).map_err(|_| no_memory("the header of the checkpoint", bytes as u128))
    }

    /// Appends a character for which there is room.
    fn push(&mut self, c: char) {
        self.0.0.push(c);
    }

    fn clear(&mut self) {
        self.0.0.clear();
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0.0
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write_str(text)
    }
}

/// A [`Kind::BadCheckpoint`] error with a formatted message.
macro_rules! bad {
    ($($message:tt)*) => {
        crate::error::Error::checkpoint(crate::checkpoint::text(format_args!($($message)*)))
    };
}
use bad;

/// A [`Kind::Io`] error: what was being done, and what the system said.
fn failed(doing: fmt::Arguments<'_>, cause: &std::io::Error) -> Error {
    let mut error = Error::new(Kind::Io, text(format_args!("{doing}: {cause}")));
    error.native_code = cause.raw_os_error().unwrap_or(0);
    error
}
