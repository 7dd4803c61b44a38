//! Checkpoints, to a file or to memory.

use super::boundary;
use super::handle::{Need, enter, foam_optimizer};
use super::status::{foam_error, foam_status};
use crate::checkpoint::load::load;
use crate::checkpoint::save::Writer;
use crate::checkpoint::source::FileSource;
use crate::checkpoint::{file, text};
use crate::error::{Error, Kind};
use libc::{c_char, c_void};
use std::path::Path;

/// Writes the whole state to a safetensors file, keyed by parameter name. The file appears whole or
/// not at all: a temporary file beside it is flushed to the disk and then renamed. A symbolic link is
/// followed, the permissions of a file that is replaced are kept, and what is no regular file is refused.
///
/// # Safety
/// `optimizer` came from `foam_create`; `path` is a C string; `error` is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_save_file(
    optimizer: *mut foam_optimizer,
    path: *const c_char,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        enter(optimizer, Need::Settled, error, |inner| {
            let path = Path::new(boundary::text(path, "path")?);
            let writer = Writer::new(&inner.optimizer)?;
            file::replace(path, |sink| writer.write(&mut inner.optimizer, sink))
        })
    }
}

/// Reads the state that `foam_save_file` wrote, into an optimizer created for the same parameters (in
/// any order) with options that give the same state. The run then continues bit for bit. A file that
/// does not fit is refused with the reason, and nothing changes.
///
/// # Safety
/// `optimizer` came from `foam_create`; `path` is a C string; `error` is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_load_file(
    optimizer: *mut foam_optimizer,
    path: *const c_char,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        enter(optimizer, Need::Sound, error, |inner| {
            let path = Path::new(boundary::text(path, "path")?);
            load(&mut inner.optimizer, &mut FileSource::open(path)?).map_err(|mut cause| {
                if cause.kind == Kind::BadCheckpoint {
                    cause.message = text(format_args!("'{}': {}", path.display(), cause.message));
                }
                cause
            })
        })
    }
}

/// Writes what `foam_save_file` writes into `data` of `capacity` bytes. `*size` receives the number of
/// bytes; pass `data` = NULL to ask for it, which does not read the state.
///
/// # Safety
/// `optimizer` came from `foam_create`; `data` is NULL or has `capacity` writable bytes; `size` is
/// writable; `error` is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_save_memory(
    optimizer: *mut foam_optimizer,
    data: *mut c_void,
    capacity: usize,
    size: *mut usize,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        enter(optimizer, Need::Settled, error, |inner| {
            if size.is_null() {
                return Err(Error::invalid("size is NULL; expected a place for the number of bytes"));
            }
            let writer = Writer::new(&inner.optimizer)?;
            let needed = usize::try_from(writer.size())
                .map_err(|_| Error::out_of_memory("the checkpoint", u128::from(writer.size())))?;
            if !data.is_null() {
                if capacity < needed {
                    return Err(Error::invalid(text(format_args!(
                        "capacity = {capacity}: expected at least {needed}"
                    ))));
                }
                let mut at = 0;
                writer.write(&mut inner.optimizer, &mut |bytes| {
                    // SAFETY: all pieces together have `needed` bytes, and the caller gives as many.
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), data.cast::<u8>().add(at), bytes.len());
                    at += bytes.len();
                    Ok(())
                })?;
            }
            *size = needed;
            Ok(())
        })
    }
}

/// Reads from memory what `foam_load_file` reads from a file.
///
/// # Safety
/// `optimizer` came from `foam_create`; `data` has `size` readable bytes; `error` is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_load_memory(
    optimizer: *mut foam_optimizer,
    data: *const c_void,
    size: usize,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        enter(optimizer, Need::Sound, error, |inner| {
            if data.is_null() {
                return Err(Error::invalid("data is NULL; expected the bytes of a checkpoint"));
            }
            load(&mut inner.optimizer, &mut std::slice::from_raw_parts(data.cast::<u8>(), size))
        })
    }
}
