//! Files that are either the old one or the new one, never half of one.

use super::{failed, no_memory, text};
use crate::error::{Error, Kind, Result};
use std::collections::hash_map::RandomState;
use std::fs::{self, File, Metadata, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// As many links as a path may lead through, as on Linux.
const MOST_LINKS: usize = 40;
/// Names that are tried before a directory counts as one that makes no new files.
const TRIES: usize = 64;

/// Replaces `path` by what `fill` writes, or makes it: a temporary file in the same directory, flushed to the
/// disk, then renamed. A symbolic link is followed, an old file's mode is kept, and what is no regular file
/// is left alone.
pub fn replace(
    path: &Path,
    fill: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
) -> Result<()> {
    let (target, old) = resolve(path)?;
    let cannot = |e| failed(format_args!("cannot write '{}'", path.display()), &e);
    let mut temporary = Temporary::new(&target, old.as_ref(), path)?;
    fill(&mut |bytes| temporary.file.write_all(bytes).map_err(cannot))?;
    temporary.file.sync_all().map_err(cannot)?;
    fs::rename(&temporary.path, &target).map_err(cannot)?;
    temporary.renamed = true;
    // The new name lasts through a power failure only once the directory is on the disk. The file is in place
    // and whole either way, and some file systems refuse this, so a failure here is no failed save.
    let _ = File::open(directory_of(&target)).and_then(|directory| directory.sync_all());
    Ok(())
}

/// Where `path` leads, and the regular file that is there now.
fn resolve(path: &Path) -> Result<(PathBuf, Option<Metadata>)> {
    let cannot = |e| failed(format_args!("cannot write '{}'", path.display()), &e);
    let refuse = |found: &str| {
        let message = text(format_args!(
            "cannot write '{}': it is {found}; expected the name of a file, or of none yet",
            path.display()
        ));
        Err(Error::new(Kind::Io, message))
    };
    let mut target = joined(Path::new(""), path)?;
    for _ in 0..MOST_LINKS {
        if target.file_name().is_none() || target.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return refuse("no name of a file");
        }
        let found = match fs::symlink_metadata(&target) {
            Ok(found) => found,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok((target, None)),
            Err(e) => return Err(cannot(e)),
        };
        if found.is_file() {
            return Ok((target, Some(found)));
        }
        if found.is_dir() {
            return refuse("a directory");
        }
        if !found.is_symlink() {
            return refuse("a device, a pipe or a socket");
        }
        let link = fs::read_link(&target).map_err(cannot)?;
        target = joined(directory_of(&target), &link)?;
    }
    refuse("one of too many symbolic links")
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// `directory/name`, or `name` if that stands alone.
fn joined(directory: &Path, name: &Path) -> Result<PathBuf> {
    let mut path = PathBuf::new();
    let bytes = directory.as_os_str().len() + name.as_os_str().len() + 1;
    path.try_reserve(bytes).map_err(|_| no_memory("a path", bytes as u128))?;
    path.push(directory);
    path.push(name);
    Ok(path)
}

/// A file that we made and that nobody else knows; it goes away unless it is renamed.
struct Temporary {
    path: PathBuf,
    file: File,
    renamed: bool,
}

impl Temporary {
    /// A new file beside `target`, with the mode of `old`.
    fn new(target: &Path, old: Option<&Metadata>, told: &Path) -> Result<Temporary> {
        let cannot = |e| failed(format_args!("cannot write '{}'", told.display()), &e);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        // Never readable to more people than the old file, not even for a moment.
        #[cfg(unix)]
        if let Some(old) = old {
            use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
            options.mode(old.mode() & 0o777);
        }
        let mut tries = 0;
        loop {
            let name = temporary_name();
            // The name is all hexadecimal digits, dots and dashes.
            let name = std::str::from_utf8(&name).unwrap_or_default();
            let path = joined(directory_of(target), Path::new(name))?;
            tries += 1;
            match options.open(&path) {
                Ok(file) => {
                    let made = Temporary { path, file, renamed: false };
                    made.keep_mode(old).map_err(cannot)?;
                    return Ok(made);
                }
                // Somebody else's file: leave it alone and take another name.
                Err(e) if e.kind() == ErrorKind::AlreadyExists && tries < TRIES => {}
                Err(e) => return Err(cannot(e)),
            }
        }
    }

    #[cfg(unix)]
    fn keep_mode(&self, old: Option<&Metadata>) -> std::io::Result<()> {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let Some(wanted) = old.map(|old| old.mode() & 0o777) else { return Ok(()) };
        // The process's mask may have taken some of it.
        if self.file.metadata()?.mode() & 0o777 == wanted {
            return Ok(());
        }
        self.file.set_permissions(fs::Permissions::from_mode(wanted))
    }

    #[cfg(not(unix))]
    fn keep_mode(&self, _: Option<&Metadata>) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            // The first error is the one to report; what is left of the file is of no use.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// `.foam-0123456789abcdef.tmp`: short enough for every directory, and random, so that it is nobody else's.
fn temporary_name() -> [u8; 26] {
    let mut name = *b".foam-0000000000000000.tmp";
    // The hasher's keys come from the operating system and differ from one hasher to the next; a forked
    // child inherits them, so the process counts too.
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    let number = hasher.finish();
    for (at, digit) in name[6..22].iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(number >> (4 * at)) as usize & 15];
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, bytes: &[u8]) -> Result<()> {
        replace(path, |sink| sink(bytes))
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("foam-file-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_no_litter() {
        let directory = folder("failed");
        let path = directory.join("state");
        write(&path, b"old").unwrap();
        write(&path, b"new").unwrap();
        assert!(write(&directory, b"x").unwrap_err().message.contains("a directory"));
        let missing = directory.join("missing").join("state");
        assert_eq!(write(&missing, b"x").unwrap_err().kind, Kind::Io);
        let stopped = replace(&path, |sink| {
            sink(b"half")?;
            Err(Error::new(Kind::DeviceError, "stopped"))
        });
        assert_eq!(stopped.unwrap_err().message, "stopped");
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn temporary_names_differ_and_fit_every_directory() {
        let names: std::collections::HashSet<_> = (0..1000).map(|_| temporary_name()).collect();
        assert_eq!(names.len(), 1000);
        assert!(
            names
                .iter()
                .all(|name| name.is_ascii() && name.starts_with(b".foam-") && name.ends_with(b".tmp"))
        );
    }
}
