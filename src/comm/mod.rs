//! Collectives that the caller injects. Only bytes move: no rank adds anything up, so that no result depends on the
//! number of ranks. Every message ends with a seal of eight bytes, which tells a collective that returned without
//! delivering, and ranks that are out of step, from good ones.

pub mod agree;

use crate::error::{Error, Kind, Result};
use libc::c_void;

/// A collective of the caller: every rank gives every rank some bytes, which lie one behind the other.
pub type AllToAll = unsafe extern "C" fn(
    user: *mut c_void,
    send: *const c_void,
    send_bytes: *const u64,
    recv: *mut c_void,
    recv_bytes: *const u64,
    stream: *mut c_void,
) -> i32;

/// A collective of the caller: every rank gives all ranks the same bytes.
pub type AllGather = unsafe extern "C" fn(
    user: *mut c_void,
    send: *const c_void,
    bytes: u64,
    recv: *mut c_void,
    recv_bytes: *const u64,
    stream: *mut c_void,
) -> i32;

/// The caller's communicator.
pub struct Comm {
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub size: usize,
    user: *mut c_void,
    all_to_all: AllToAll,
    all_gather: AllGather,
    /// The caller's stream, for the call under way.
    pub stream: *mut c_void,
    /// Collectives so far; the seals have it.
    sequence: u64,
    /// What went through it.
    pub traffic: Traffic,
}

// SAFETY: the callbacks are called only on a thread that is inside a call on the handle, as the header says.
unsafe impl Send for Comm {}

/// What went through a communicator.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    /// Collectives.
    pub collectives: u64,
    /// Bytes that this rank sent to others.
    pub sent: u64,
    /// Bytes that it received from others.
    pub received: u64,
}

/// Bytes of a seal.
const SEAL: usize = 8;

fn seal(sequence: u64, sender: usize) -> [u8; SEAL] {
    let mixed = (sequence << 20 ^ sender as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed | 1).to_le_bytes()
}

/// Messages on their way out and in; kept so that a step does not allocate.
#[derive(Default)]
pub struct Mail {
    send: Vec<u8>,
    send_bytes: Vec<u64>,
    recv: Vec<u8>,
    recv_bytes: Vec<u64>,
    /// Where the message of each rank begins in `recv`.
    starts: Vec<usize>,
}

impl Mail {
    /// Begins anew; `bytes` is how much will be put in at most.
    pub fn begin(&mut self, bytes: usize) -> Result<()> {
        self.send.clear();
        self.send_bytes.clear();
        room(&mut self.send, bytes)
    }

    /// Adds to the message under way.
    pub fn put(&mut self, bytes: &[u8]) {
        self.send.extend_from_slice(bytes);
    }

    /// Adds `len` bytes at `from`.
    ///
    /// # Safety
    /// There are as many readable bytes.
    pub unsafe fn put_raw(&mut self, from: *const u8, len: usize) {
        // SAFETY: the caller's contract.
        self.send.extend_from_slice(unsafe { std::slice::from_raw_parts(from, len) });
    }

    /// The last `len` bytes of the message under way, to be filled.
    pub fn space(&mut self, len: usize) -> &mut [u8] {
        let begin = self.send.len();
        self.send.resize(begin + len, 0);
        &mut self.send[begin..]
    }

    /// Ends the message to one rank; the messages are in the order of the ranks.
    pub fn close(&mut self, comm: &Comm) {
        let before: u64 = self.send_bytes.iter().sum();
        self.send.extend_from_slice(&seal(comm.sequence, comm.rank));
        self.send_bytes.push(self.send.len() as u64 - before);
    }

    /// The message of `rank`, without its seal.
    pub fn from(&self, rank: usize) -> &[u8] {
        let (begin, bytes) = (self.starts[rank], self.recv_bytes[rank] as usize);
        &self.recv[begin..begin + bytes - SEAL]
    }

    /// Makes room for what comes in, with broken seals.
    fn expect(&mut self, sizes: impl Iterator<Item = usize>) -> Result<()> {
        self.recv_bytes.clear();
        self.starts.clear();
        let mut end = 0;
        for size in sizes {
            self.starts.push(end);
            end += size + SEAL;
            self.recv_bytes.push((size + SEAL) as u64);
        }
        let more = end.saturating_sub(self.recv.len());
        room(&mut self.recv, more)?;
        self.recv.resize(self.recv.len() + more, 0);
        for (start, bytes) in self.starts.iter().zip(&self.recv_bytes) {
            let end = start + *bytes as usize;
            self.recv[end - SEAL..end].fill(0);
        }
        Ok(())
    }
}

/// Makes room for `more` bytes.
fn room(list: &mut Vec<u8>, more: usize) -> Result<()> {
    list.try_reserve(more).map_err(|_| Error::out_of_memory("the exchange between ranks", more as u128))
}

impl Comm {
    /// A communicator of the caller's.
    pub fn new(
        rank: usize,
        size: usize,
        user: *mut c_void,
        all_to_all: AllToAll,
        all_gather: AllGather,
    ) -> Comm {
        let stream = std::ptr::null_mut();
        let traffic = Traffic::default();
        Comm { rank, size, user, all_to_all, all_gather, stream, sequence: 1, traffic }
    }

    /// Gives all ranks what is in the mail; `sizes` says how much comes from each.
    pub fn gather(&mut self, mail: &mut Mail, sizes: impl Iterator<Item = usize>) -> Result<()> {
        mail.close(self);
        mail.expect(sizes)?;
        let bytes = mail.send.len() as u64;
        // SAFETY: the caller promised a working callback, and the buffers are as large as the sizes say.
        let status = unsafe {
            (self.all_gather)(
                self.user,
                mail.send.as_ptr().cast(),
                bytes,
                mail.recv.as_mut_ptr().cast(),
                mail.recv_bytes.as_ptr(),
                self.stream,
            )
        };
        self.traffic.sent += bytes * (self.size as u64 - 1);
        self.check("all_gatherv", status, mail)
    }

    /// Gives every rank its message; `sizes` says how much comes from each.
    pub fn exchange(&mut self, mail: &mut Mail, sizes: impl Iterator<Item = usize>) -> Result<()> {
        mail.expect(sizes)?;
        // SAFETY: as above.
        let status = unsafe {
            (self.all_to_all)(
                self.user,
                mail.send.as_ptr().cast(),
                mail.send_bytes.as_ptr(),
                mail.recv.as_mut_ptr().cast(),
                mail.recv_bytes.as_ptr(),
                self.stream,
            )
        };
        self.traffic.sent += mail.send.len() as u64 - mail.send_bytes[self.rank];
        self.check("all_to_allv", status, mail)
    }

    fn check(&mut self, called: &str, status: i32, mail: &Mail) -> Result<()> {
        let sequence = self.sequence;
        self.sequence += 1;
        self.traffic.collectives += 1;
        self.traffic.received += mail.recv_bytes.iter().sum::<u64>() - mail.recv_bytes[self.rank];
        if status != 0 {
            let mut error = Error::new(
                Kind::Collective,
                format!("comm.{called} failed on rank {} with status {status}", self.rank),
            );
            error.native_code = status;
            return Err(error);
        }
        for rank in 0..self.size {
            let end = mail.starts[rank] + mail.recv_bytes[rank] as usize;
            if mail.recv[end - SEAL..end] != seal(sequence, rank) {
                return Err(Error::new(
                    Kind::Collective,
                    format!(
                        "comm.{called} reported success on rank {}, but what rank {rank} sent did not arrive: the collective returned short, or the ranks are out of step",
                        self.rank
                    ),
                ));
            }
        }
        Ok(())
    }
}
