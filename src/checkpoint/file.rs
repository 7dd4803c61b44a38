//! Files that are either the old one or the new one, never half of one.

use crate::error::{Error, Kind, Result};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Writes `bytes` to `path` atomically: a temporary file beside it, flushed to the disk, then renamed.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = temporary_name(path)?;
    let outcome = write_temporary(&temporary, bytes).and_then(|()| {
        fs::rename(&temporary, path)
            .map_err(|e| Error::io(&format!("cannot rename to '{}'", path.display()), &e))
    });
    if outcome.is_err() {
        // The first error is the one to report; what is left of the file is of no use.
        let _ = fs::remove_file(&temporary);
        return outcome;
    }
    // The rename itself lasts only once the directory is on the disk.
    let directory = directory_of(path);
    File::open(directory)
        .and_then(|d| d.sync_all())
        .map_err(|e| Error::io(&format!("cannot flush directory '{}'", directory.display()), &e))
}

fn write_temporary(path: &Path, bytes: &[u8]) -> Result<()> {
    let failed = |e: std::io::Error| Error::io(&format!("cannot write '{}'", path.display()), &e);
    let mut file = OpenOptions::new().write(true).create_new(true).open(path).map_err(failed)?;
    file.write_all(bytes).map_err(failed)?;
    file.sync_all().map_err(failed)
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn temporary_name(path: &Path) -> Result<PathBuf> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().filter(|_| !path.is_dir()).ok_or_else(|| {
        Error::new(Kind::Io, format!("cannot write '{}': expected the name of a file", path.display()))
    })?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    temporary.push(format!(".{}.{number}.tmp", std::process::id()));
    Ok(directory_of(path).join(temporary))
}

/// Reads a regular file whole.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    let failed = |e: std::io::Error| Error::io(&format!("cannot read '{}'", path.display()), &e);
    let kind = fs::metadata(path).map_err(failed)?;
    if !kind.is_file() {
        return Err(Error::new(
            Kind::Io,
            format!("cannot read '{}': expected a regular file", path.display()),
        ));
    }
    let mut bytes = Vec::new();
    let size = kind.len();
    usize::try_from(size)
        .ok()
        .and_then(|size| bytes.try_reserve_exact(size).ok())
        .ok_or_else(|| Error::out_of_memory(&format!("'{}'", path.display()), u128::from(size)))?;
    let mut file = File::open(path).map_err(failed)?;
    std::io::Read::read_to_end(&mut file, &mut bytes).map_err(failed)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file_and_no_litter() {
        let directory = std::env::temp_dir().join(format!("foam-file-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("state");
        write(&path, b"old").unwrap();
        write(&path, b"new").unwrap();
        assert_eq!(read(&path).unwrap(), b"new");
        assert!(write(&directory, b"x").unwrap_err().message.contains("name of a file"));
        let missing = directory.join("missing").join("state");
        assert_eq!(write(&missing, b"x").unwrap_err().kind, Kind::Io);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        fs::remove_dir_all(&directory).unwrap();
    }
}
