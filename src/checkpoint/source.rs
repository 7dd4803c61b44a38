//! Where the bytes of a checkpoint come from: the caller's memory or a file, read where they are needed.

use super::{failed, reserved};
use crate::error::{Error, Kind, Result};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Bytes with a place each.
pub trait Source {
    /// How many there are.
    fn size(&self) -> u64;
    /// Copies the bytes from `at` on.
    fn read_at(&mut self, at: u64, into: &mut [u8]) -> Result<()>;
}

impl Source for &[u8] {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&mut self, at: u64, into: &mut [u8]) -> Result<()> {
        let found = usize::try_from(at).ok().and_then(|at| self.get(at..at.checked_add(into.len())?));
        let found = found.ok_or_else(|| super::bad!("bytes {at} and up lie outside the checkpoint"))?;
        into.copy_from_slice(found);
        Ok(())
    }
}

/// Small reads are served from this many bytes at once.
const WINDOW: usize = 1 << 20;

/// A regular file, of which no more than a window is in memory.
pub struct FileSource<'a> {
    path: &'a Path,
    file: File,
    len: u64,
    window: Vec<u8>,
    window_at: u64,
}

impl<'a> FileSource<'a> {
    /// Opens `path`, which has to be a regular file (or lead to one).
    pub fn open(path: &'a Path) -> Result<FileSource<'a>> {
        let cannot = |e| failed(format_args!("cannot read '{}'", path.display()), &e);
        // Asked before opening, because opening a FIFO waits for somebody to write to it.
        let regular = fs::metadata(path).map_err(cannot)?.is_file();
        let file = if regular { Some(File::open(path).map_err(cannot)?) } else { None };
        let about = file.as_ref().map(|file| file.metadata().map_err(cannot)).transpose()?;
        let (Some(file), Some(about)) = (file, about.filter(fs::Metadata::is_file)) else {
            let message =
                super::text(format_args!("cannot read '{}': expected a regular file", path.display()));
            return Err(Error::new(Kind::Io, message));
        };
        Ok(FileSource { path, file, len: about.len(), window: Vec::new(), window_at: 0 })
    }

    fn fetch(&mut self, at: u64, into: &mut [u8]) -> Result<()> {
        let read = self.file.seek(SeekFrom::Start(at)).and_then(|_| self.file.read_exact(into));
        read.map_err(|e| failed(format_args!("cannot read '{}'", self.path.display()), &e))
    }
}

impl Source for FileSource<'_> {
    fn size(&self) -> u64 {
        self.len
    }

    fn read_at(&mut self, at: u64, into: &mut [u8]) -> Result<()> {
        if into.len() >= WINDOW {
            return self.fetch(at, into);
        }
        let end = at.saturating_add(into.len() as u64);
        if end > self.len {
            return Err(super::bad!("bytes {at} and up lie outside the checkpoint"));
        }
        if at < self.window_at || end > self.window_at + self.window.len() as u64 {
            if self.window.capacity() == 0 {
                self.window = reserved(WINDOW, "reading the checkpoint")?;
            }
            let mut window = std::mem::take(&mut self.window);
            window.resize((self.len - at).min(WINDOW as u64) as usize, 0);
            let fetched = self.fetch(at, &mut window);
            // A window that was not filled serves nobody.
            if fetched.is_err() {
                window.clear();
            }
            (self.window, self.window_at) = (window, at);
            fetched?;
        }
        let begin = (at - self.window_at) as usize;
        into.copy_from_slice(&self.window[begin..begin + into.len()]);
        Ok(())
    }
}
