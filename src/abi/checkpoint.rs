//! Checkpoints, to a file or to memory.

use super::boundary;
use super::handle::{Need, enter, foam_optimizer};
use super::status::{foam_error, foam_status};
use crate::checkpoint::load::load;
use crate::checkpoint::save::Writer;
use crate::checkpoint::source::FileSource;
use crate::checkpoint::states::{self, Span};
use crate::checkpoint::{file, text};
use crate::engine::Optimizer;
use crate::error::{Error, Kind, Result};
use crate::memory::listed;
use libc::{c_char, c_void};
use std::path::Path;

/// Writes the whole state to a safetensors file, keyed by parameter name. The file appears whole or
/// not at all: a temporary file beside it is flushed to the disk and then renamed. A symbolic link is
/// followed, the permissions of a file that is replaced are kept, and what is no regular file is refused.
/// With a `foam_comm` all ranks make this call, and rank 0 writes the one file, which is the same for every number
/// of ranks.
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
            match inner.optimizer.ranks().map(|ranks| ranks.rank_and_size().0) {
                None => file::replace(path, |sink| writer.write(&mut inner.optimizer, sink)),
                // One rank writes the file, or refuses its name before any part of it has travelled.
                Some(0) => save_first(&mut inner.optimizer, writer, path),
                Some(_) => {
                    inner.optimizer.together(Ok(()), "the checkpoint")?;
                    let written = writer.write_together(&mut inner.optimizer, false, &mut |_| Ok(()));
                    written.and_then(|()| inner.optimizer.together(Ok(()), "the checkpoint"))
                }
            }
        })
    }
}

/// The part of the rank that writes the file: the others get its name, its bytes and its end.
fn save_first(optimizer: &mut Optimizer, writer: Writer, path: &Path) -> Result<()> {
    // What went wrong among the ranks is known to all of them.
    let mut reported = false;
    let written = file::replace(path, |sink| {
        let written = optimizer
            .together(Ok(()), "the checkpoint")
            .and_then(|()| writer.write_together(optimizer, false, sink));
        reported = written.is_err();
        written
    });
    if reported { written } else { optimizer.together(written, "the checkpoint") }
}

/// Reads the state that `foam_save_file` wrote, into an optimizer created for the same parameters (in
/// any order) with options that give the same state. The run then continues bit for bit. A file that
/// does not fit is refused with the reason, and nothing changes. With a `foam_comm` all ranks make this call, each
/// reads its own blocks, and the number of ranks may be another than that of the save.
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
/// bytes; pass `data` = NULL to ask for it, which does not read the state. With a `foam_comm` all ranks make this
/// call with room enough, and each receives all of the state.
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

/// A part of the bytes of one parameter's state, see `foam_read_states`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct foam_state_part {
    /// First byte.
    pub offset: u64,
    /// Bytes; may be 0.
    pub bytes: u64,
    /// Host memory of as many bytes; may be NULL for none.
    pub data: *mut c_void,
}

/// `*bytes` receives the bytes of the state of parameter `param_index` in the form of `foam_read_states`: the same
/// on every rank and for every number of ranks.
///
/// # Safety
/// `optimizer` came from `foam_create`; `bytes` is writable; `error` is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_param_state_bytes(
    optimizer: *mut foam_optimizer,
    param_index: i64,
    bytes: *mut u64,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        enter(optimizer, Need::Sound, error, |inner| {
            if bytes.is_null() {
                return Err(Error::invalid("bytes is NULL; expected a place for the number of bytes"));
            }
            let sizes = states::sizes(&inner.optimizer)?;
            let found = usize::try_from(param_index).ok().and_then(|index| sizes.get(index));
            *bytes = *found.ok_or_else(|| {
                Error::invalid(format!(
                    "param_index = {param_index}: expected 0 <= param_index < {}",
                    sizes.len()
                ))
            })?;
            Ok(())
        })
    }
}

/// Copies a part of every parameter's state, `parts[i]` of parameter i, for frameworks that keep the optimizer's
/// state parameter by parameter, and shard it themselves. With a `foam_comm` all ranks make this call together, each
/// with the parts that it wants. The bytes are those of the parameter's tensors in the checkpoint file, in the file's
/// order, and do not depend on the number of ranks; they belong to this version of the library and these options.
///
/// # Safety
/// `optimizer` came from `foam_create`; `parts` has `count` elements, whose memory is writable; `error` is NULL or a
/// record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_read_states(
    optimizer: *mut foam_optimizer,
    parts: *const foam_state_part,
    count: usize,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        enter(optimizer, Need::Settled, error, |inner| {
            let (spans, places) = read_parts(&mut inner.optimizer, parts, count)?;
            states::read(&mut inner.optimizer, &spans, &places)
        })
    }
}

/// Takes over what `foam_read_states` gave. Together the parts of all ranks must have all bytes of every parameter;
/// several ranks may have the same ones. `steps` and `skipped_steps` become those of `foam_stats`. What does not fit
/// is refused on every rank, and nothing changes.
///
/// # Safety
/// As `foam_read_states`; the parts' memory is only read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_write_states(
    optimizer: *mut foam_optimizer,
    parts: *const foam_state_part,
    count: usize,
    steps: u64,
    skipped_steps: u64,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        enter(optimizer, Need::Settled, error, |inner| {
            let (spans, places) = read_parts(&mut inner.optimizer, parts, count)?;
            states::write(&mut inner.optimizer, &spans, &places, steps, skipped_steps)
        })
    }
}

/// # Safety
/// `parts` is NULL or has `count` elements.
unsafe fn read_parts(
    optimizer: &mut Optimizer,
    parts: *const foam_state_part,
    count: usize,
) -> Result<(Vec<Span>, Vec<*mut u8>)> {
    let expected = optimizer.whole().params.len();
    let read = if parts.is_null() || count != expected {
        Err(Error::invalid(format!(
            "parts: {count} elements (or NULL): expected {expected}, one per parameter"
        )))
    } else {
        // SAFETY: the caller's contract.
        let parts = unsafe { std::slice::from_raw_parts(parts, count) };
        match parts.iter().position(|part| part.data.is_null() && part.bytes > 0) {
            Some(index) => {
                Err(Error::invalid(format!("parts[{index}].data is NULL; expected its memory")).at(index))
            }
            None => {
                let spans = parts.iter().map(|part| Span { offset: part.offset, bytes: part.bytes });
                let places = parts.iter().map(|part| part.data.cast::<u8>());
                let what = "the list of the state's parts";
                listed(spans, what).and_then(|spans| Ok((spans, listed(places, what)?)))
            }
        }
    };
    optimizer.together(read, "the call")
}
