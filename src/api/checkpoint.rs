//! Checkpoints of an optimizer, to and from a file or bytes.

use super::engine::{file, format};
use super::optimizer::Optimizer;
use crate::error::Result;
use std::path::Path;

impl Optimizer {
    /// Writes the whole state to a safetensors file, keyed by parameter name. The file appears whole or not at all:
    /// a temporary file beside it is flushed to the disk and then renamed. All language bindings read it.
    pub fn save(&mut self, path: impl AsRef<Path>) -> Result<()> {
        self.settled(|engine| file::write(path.as_ref(), &format::encode(engine)?))
    }

    /// Reads the state that [`Optimizer::save`] wrote, into an optimizer made for the same parameters (in any order) with
    /// options that give the same state. The run then continues bit for bit. A file that does not fit is refused with the
    /// reason, and nothing changes.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        self.load_bytes(&file::read(path)?).map_err(|mut error| {
            error.message = format!("'{}': {}", path.display(), error.message);
            error
        })
    }

    /// What [`Optimizer::save`] writes, as bytes.
    pub fn to_bytes(&mut self) -> Result<Vec<u8>> {
        self.settled(format::encode)
    }

    /// Reads what [`Optimizer::to_bytes`] gave, as [`Optimizer::load`] reads a file.
    ///
    /// ```
    /// # fn main() -> foam::Result<()> {
    /// use foam::{Config, Optimizer, Param};
    ///
    /// let make = || Optimizer::new(Config::default(), [Param::new("w", &[4])]);
    /// let (mut first, mut second) = (make()?, make()?);
    /// let mut w = vec![1.0f32; 4];
    /// first.step([&mut w], [&[0.1f32; 4]])?;
    /// second.load_bytes(&first.to_bytes()?)?;
    /// assert_eq!(second.stats()?.steps, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn load_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.enter(|engine| {
            let restored = format::decode(engine, bytes)?;
            format::restore(engine, restored)
        })
    }
}
