//! The caller's communicator.

use super::boundary::{AbiStruct, field_ends};
use crate::comm::{AllGather, AllToAll, Comm};
use crate::error::{Error, Result};
use libc::c_void;

/// The most ranks that may share an optimizer.
pub const FOAM_MAX_RANKS: i32 = 65_536;

/// `foam_comm.flags`: `all_gatherv` also takes a `send` that lies in `recv`, where the bytes of this rank belong. New
/// values are then gathered so: they are neither kept nor copied twice.
pub const FOAM_COMM_IN_PLACE: u32 = 1;

/// Gives every rank some bytes, and takes some from every rank: `send` holds the messages to rank 0, 1, ... one
/// behind the other, of `send_bytes[0]`, `send_bytes[1]`, ... bytes, and `recv` receives those of rank 0, 1, ...
/// likewise. Returns 0, or the caller's own code of an error once the call has failed or timed out.
///
/// On the CPU `send` and `recv` are host memory, and the bytes have arrived when the call returns. On a CUDA device they
/// are memory of that device, and the work is put on `stream`: a CUstream, that of the step, or outside of a step one of
/// the library's. The device's primary context is current. The call need not wait for the work; NCCL's do not.
pub type foam_all_to_allv_fn = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        send: *const c_void,
        send_bytes: *const u64,
        recv: *mut c_void,
        recv_bytes: *const u64,
        stream: *mut c_void,
    ) -> i32,
>;

/// Gives all ranks the same `bytes` bytes of `send`; `recv` receives those of rank 0, 1, ... (the own ones too) one
/// behind the other, of `recv_bytes[0]`, `recv_bytes[1]`, ... bytes. Otherwise as `foam_all_to_allv_fn`.
pub type foam_all_gatherv_fn = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        send: *const c_void,
        bytes: u64,
        recv: *mut c_void,
        recv_bytes: *const u64,
        stream: *mut c_void,
    ) -> i32,
>;

/// How ranks reach each other: two collectives of the caller (MPI, NCCL, gloo, ...), which move bytes and compute
/// nothing. All ranks make the same calls on their optimizers in the same order; the library then makes the same
/// collectives in the same order on each, on the thread that is inside the call. A collective should time out: a
/// rank that died is only noticed by it. Optimizers that take a step together share the communicator of the first.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct foam_comm {
    /// Bytes of this struct, set by the caller.
    pub struct_size: u32,
    /// This rank, from 0.
    pub rank: i32,
    /// Number of ranks.
    pub size: i32,
    /// 0, or `FOAM_COMM_IN_PLACE`; ranks may differ.
    pub flags: u32,
    /// First argument of both.
    pub user: *mut c_void,
    /// Every rank gives every rank its own bytes.
    pub all_to_allv: foam_all_to_allv_fn,
    /// Every rank gives all ranks the same bytes.
    pub all_gatherv: foam_all_gatherv_fn,
}

// SAFETY: plain data, first field `struct_size`; a callback that is NULL is none.
unsafe impl AbiStruct for foam_comm {
    const NAME: &'static str = "foam_comm";
    const REQUIRED: usize = std::mem::size_of::<foam_comm>();
    const ENDS: &'static [usize] =
        field_ends!(foam_comm { struct_size, rank, size, flags, user, all_to_allv, all_gatherv });

    fn defaults() -> Self {
        foam_comm {
            struct_size: std::mem::size_of::<Self>() as u32,
            rank: 0,
            size: 1,
            flags: 0,
            user: std::ptr::null_mut(),
            all_to_allv: None,
            all_gatherv: None,
        }
    }
}

/// The communicator that the struct describes.
pub(super) fn read_comm(raw: &foam_comm) -> Result<Comm> {
    let foam_comm { rank, size, flags, user, all_to_allv, all_gatherv, .. } = *raw;
    if flags & !FOAM_COMM_IN_PLACE != 0 {
        let message = format!("comm.flags = {flags:#x}: expected 0 or FOAM_COMM_IN_PLACE");
        return Err(Error::invalid(message));
    }
    if !(1..=FOAM_MAX_RANKS).contains(&size) {
        return Err(Error::invalid(format!("comm.size = {size}: expected 1 <= size <= {FOAM_MAX_RANKS}")));
    }
    if !(0..size).contains(&rank) {
        return Err(Error::invalid(format!("comm.rank = {rank}: expected 0 <= rank < {size}")));
    }
    let callbacks: (Option<AllToAll>, Option<AllGather>) = (all_to_allv, all_gatherv);
    let (Some(all_to_all), Some(all_gather)) = callbacks else {
        return Err(Error::invalid("comm.all_to_allv and comm.all_gatherv: expected both"));
    };
    let mut comm = Comm::new(rank as usize, size as usize, user, all_to_all, all_gather)?;
    comm.in_place = flags & FOAM_COMM_IN_PLACE != 0;
    Ok(comm)
}
