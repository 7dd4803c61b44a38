//! What can go wrong, as one enum: one sentence per variant, with the parameter's name in it.

use std::fmt;

/// Where in the model an error happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Index of the parameter in the caller's list.
    pub param: Option<usize>,
    /// Axis of the parameter's block (0 = left factor).
    pub axis: Option<usize>,
}

/// The kinds of error; each has a status code of its own in the C ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// An argument is NULL, out of range, or contradicts another.
    InvalidArgument,
    /// A legal request that this build or device does not serve.
    Unsupported,
    /// A tensor's shape, dtype or device is not the one declared at creation.
    ShapeMismatch,
    /// Memory for the state could not be had.
    OutOfMemory,
    /// The device reported an error.
    DeviceError,
    /// A gradient is not finite (or its square overflows the statistics).
    NotFinite,
    /// Every rung of the eigendecomposition ladder failed.
    NoConvergence,
    /// A file could not be read or written.
    Io,
    /// A checkpoint is truncated, foreign, or belongs to another model.
    BadCheckpoint,
    /// A collective of the caller's communicator failed.
    Collective,
    /// Another call is inside the same handle.
    Busy,
    /// An earlier panic left the handle unusable.
    Poisoned,
    /// A panic was caught at the boundary.
    Panic,
}

/// An error: what kind, where, and a sentence for a person.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Error {
    /// The kind, which decides the status code.
    pub kind: Kind,
    /// Where in the model.
    pub place: Place,
    /// Error code of the operating system or the device, or 0.
    pub native_code: i32,
    /// What was wrong and what was expected.
    pub message: String,
}

impl Clone for Error {
    /// The copy says as much as memory allows.
    fn clone(&self) -> Self {
        Error { message: format!("{}", self.message), ..*self }
    }
}

/// What an error says: as much of it as memory allows.
pub(crate) trait Message {
    /// The text.
    fn message(self) -> String;
}

impl Message for String {
    fn message(self) -> String {
        self
    }
}

impl Message for &str {
    fn message(self) -> String {
        format!("{self}")
    }
}

/// The result of everything that can fail.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of `kind` that says `message`.
    pub(crate) fn new(kind: Kind, message: impl Message) -> Self {
        Error { kind, place: Place::default(), native_code: 0, message: message.message() }
    }

    /// An [`Kind::InvalidArgument`] error.
    pub(crate) fn invalid(message: impl Message) -> Self {
        Error::new(Kind::InvalidArgument, message)
    }

    /// A [`Kind::BadCheckpoint`] error.
    pub(crate) fn checkpoint(message: impl Message) -> Self {
        Error::new(Kind::BadCheckpoint, message)
    }

    /// An [`Kind::OutOfMemory`] error for a request of `bytes`.
    pub(crate) fn out_of_memory(what: &str, bytes: u128) -> Self {
        Error::new(Kind::OutOfMemory, format!("out of memory: {what} needs {bytes} bytes"))
    }

    /// The same error, with more to say.
    pub(crate) fn saying(mut self, more: &str) -> Self {
        if self.message.try_reserve(more.len()).is_ok() {
            self.message.push_str(more);
        }
        self
    }

    /// The same error, at a parameter.
    pub(crate) fn at(mut self, param: usize) -> Self {
        self.place.param = Some(param);
        self
    }

    /// The same error, at an axis of its parameter.
    pub(crate) fn on_axis(mut self, axis: usize) -> Self {
        self.place.axis = Some(axis);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
