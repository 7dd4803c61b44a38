//! Checkpoints of an optimizer, to and from a file or bytes.

use super::engine::{FileSource, Writer, load, replace};
use super::optimizer::Optimizer;
use crate::error::{Error, Kind, Result};
use std::path::Path;

impl Optimizer {
    /// Writes the whole state to a safetensors file, keyed by parameter name. The file appears whole or not at all:
    /// a temporary file beside it is flushed to the disk and then renamed. All language bindings read it.
    pub fn save_file(&mut self, path: impl AsRef<Path>) -> Result<()> {
        self.settled(|engine| {
            let writer = Writer::new(engine)?;
            replace(path.as_ref(), |sink| writer.write(engine, sink))
        })
    }

    /// Reads the state that [`Optimizer::save_file`] wrote, into an optimizer made for the same parameters (in any order) with
    /// options that give the same state. The run then continues bit for bit. A file that does not fit is refused with the
    /// reason, and nothing changes.
    pub fn load_file(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let outcome = self.enter(|engine| load(engine, &mut FileSource::open(path)?));
        outcome.map_err(|mut error| {
            if error.kind == Kind::BadCheckpoint {
                error.message = format!("'{}': {}", path.display(), error.message);
            }
            error
        })
    }

    /// What [`Optimizer::save_file`] writes, as bytes.
    pub fn save_memory(&mut self) -> Result<Vec<u8>> {
        self.settled(|engine| {
            let writer = Writer::new(engine)?;
            let size = writer.size();
            let refused = || Error::out_of_memory("the checkpoint", u128::from(size));
            let mut bytes = Vec::new();
            let room = usize::try_from(size).map_err(|_| refused())?;
            bytes.try_reserve_exact(room).map_err(|_| refused())?;
            writer.write(engine, &mut |piece| {
                bytes.extend_from_slice(piece);
                Ok(())
            })?;
            Ok(bytes)
        })
    }

    /// Reads what [`Optimizer::save_memory`] gave, as [`Optimizer::load_file`] reads a file.
    ///
    /// ```
    /// # fn main() -> foam::Result<()> {
    /// use foam::{Config, Optimizer, Param};
    ///
    /// let make = || Optimizer::new(Config::default(), [Param::new("w", &[4])]);
    /// let (mut first, mut second) = (make()?, make()?);
    /// let mut w = vec![1.0f32; 4];
    /// first.step([&mut w], [&[0.1f32; 4]])?;
    /// second.load_memory(&first.save_memory()?)?;
    /// assert_eq!(second.stats()?.steps, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn load_memory(&mut self, bytes: &[u8]) -> Result<()> {
        self.enter(|engine| load(engine, &mut &*bytes))
    }
}
