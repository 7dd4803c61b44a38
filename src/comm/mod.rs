//! Collectives that the caller injects. Only bytes move: no rank adds anything up, so that no result depends on the
//! number of ranks. Every message ends with a seal of eight bytes, which tells a collective that returned without
//! delivering, and ranks that are out of step, from good ones.
//!
//! A [`Mail`] is what the host says and reads: notes, descriptions, checkpoints. A [`Parcel`] is gradients and values,
//! which on a GPU never come to the host.

pub mod agree;
pub mod courier;

use crate::error::{Error, Kind, Result};
use crate::memory::{boxed, push};
use courier::{Courier, Host, Patch, Room, Trouble, Word};
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
    /// The gather takes this rank's bytes from where they belong among those that come in, too.
    pub in_place: bool,
    /// Gets bytes to where the collectives want them.
    pub courier: Box<dyn Courier>,
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

/// The two collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// Every rank gives every rank its own bytes.
    Exchange,
    /// Every rank gives all ranks the same bytes.
    Gather,
}

impl Collective {
    fn name(self) -> &'static str {
        match self {
            Collective::Exchange => "all_to_allv",
            Collective::Gather => "all_gatherv",
        }
    }
}

/// What the memory of an exchange is called where there is none.
pub const WHAT: &str = "the exchange between ranks";

/// Bytes of a seal.
const SEAL: usize = 8;

fn seal(sequence: u64, sender: usize) -> u64 {
    (sequence << 20 ^ sender as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

/// Messages of the host on their way out and in; kept so that a step does not allocate.
#[derive(Default)]
pub struct Mail {
    send: Vec<u8>,
    send_bytes: Vec<u64>,
    recv: Vec<u8>,
    recv_bytes: Vec<u64>,
    /// Where the message of each rank begins in `recv`.
    starts: Vec<usize>,
    /// What only the device knows of the message.
    patches: Vec<Patch>,
}

impl Mail {
    /// Begins anew; `bytes` is how much will be put in at most.
    pub fn begin(&mut self, bytes: usize) -> Result<()> {
        self.send.clear();
        self.send_bytes.clear();
        self.patches.clear();
        room(&mut self.send, bytes)
    }

    /// Adds to the message under way.
    pub fn put(&mut self, bytes: &[u8]) -> Result<()> {
        room(&mut self.send, bytes.len())?;
        self.send.extend_from_slice(bytes);
        Ok(())
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.send.len()
    }

    /// The bytes from `at` on are those that lie at `from` on the device when the message goes out.
    pub fn patch(&mut self, patch: Patch) -> Result<()> {
        push(&mut self.patches, patch, WHAT)
    }

    /// The last `len` bytes of the message under way, to be filled.
    pub fn space(&mut self, len: usize) -> Result<&mut [u8]> {
        let begin = self.send.len();
        room(&mut self.send, len)?;
        self.send.resize(begin + len, 0);
        Ok(&mut self.send[begin..])
    }

    /// Ends the message to one rank; the messages are in the order of the ranks.
    pub fn close(&mut self, comm: &Comm) -> Result<()> {
        let before: u64 = self.send_bytes.iter().sum();
        self.put(&seal(comm.sequence, comm.rank).to_le_bytes())?;
        push(&mut self.send_bytes, self.send.len() as u64 - before, WHAT)
    }

    /// The message of `rank`, without its seal.
    pub fn from(&self, rank: usize) -> &[u8] {
        let (begin, bytes) = (self.starts[rank], self.recv_bytes[rank] as usize);
        &self.recv[begin..begin + bytes - SEAL]
    }

    /// Makes room for what comes in, with broken seals; gives its size.
    fn expect(&mut self, sizes: impl Iterator<Item = usize>) -> Result<usize> {
        self.recv_bytes.clear();
        self.starts.clear();
        let mut end = 0;
        for size in sizes {
            push(&mut self.starts, end, WHAT)?;
            end += size + SEAL;
            push(&mut self.recv_bytes, (size + SEAL) as u64, WHAT)?;
        }
        let more = end.saturating_sub(self.recv.len());
        room(&mut self.recv, more)?;
        self.recv.resize(self.recv.len() + more, 0);
        for (start, bytes) in self.starts.iter().zip(&self.recv_bytes) {
            let end = start + *bytes as usize;
            self.recv[end - SEAL..end].fill(0);
        }
        Ok(end)
    }
}

/// Makes room for `more` bytes.
fn room(list: &mut Vec<u8>, more: usize) -> Result<()> {
    list.try_reserve(more).map_err(|_| Error::out_of_memory(WHAT, more as u128))
}

/// Messages of gradients and values, in the memory of the device: a word that says whether the sender is well, the
/// bytes, and a seal.
#[derive(Default)]
pub struct Parcel {
    /// First address and bytes of every message that goes out, by rank; of a gather there is one.
    out: Vec<(u64, u64)>,
    /// The same of what comes in.
    back: Vec<(u64, u64)>,
    out_bytes: Vec<u64>,
    back_bytes: Vec<u64>,
    /// What goes out lies where this rank's bytes come in.
    in_place: bool,
}

/// Bytes of a word.
pub const WORD: usize = 8;

/// Bytes of a message around `bytes` bytes.
fn wrapped(bytes: usize) -> usize {
    WORD + bytes.next_multiple_of(WORD) + SEAL
}

impl Parcel {
    /// Begins anew: `out` says how many bytes go to every rank (of a gather: to all), `back` how many come from each.
    pub fn begin(
        &mut self,
        mut out: impl Iterator<Item = usize>,
        mut back: impl Iterator<Item = usize>,
    ) -> Result<()> {
        self.out_bytes.clear();
        self.back_bytes.clear();
        out.try_for_each(|bytes| push(&mut self.out_bytes, wrapped(bytes) as u64, WHAT))?;
        back.try_for_each(|bytes| push(&mut self.back_bytes, wrapped(bytes) as u64, WHAT))
    }

    /// Where the bytes to `rank` go.
    pub fn to(&self, rank: usize) -> u64 {
        self.out[if self.out.len() == 1 { 0 } else { rank }].0 + WORD as u64
    }

    /// Where the bytes of `rank` come.
    pub fn from(&self, rank: usize) -> u64 {
        self.back[rank].0 + WORD as u64
    }
}

fn place(mut at: u64, sizes: &[u64], list: &mut Vec<(u64, u64)>) -> Result<()> {
    list.clear();
    for size in sizes {
        push(list, (at, *size), WHAT)?;
        at += size;
    }
    Ok(())
}

impl Comm {
    /// A communicator of the caller's, whose messages lie in host memory.
    pub fn new(
        rank: usize,
        size: usize,
        user: *mut c_void,
        all_to_all: AllToAll,
        all_gather: AllGather,
    ) -> Result<Comm> {
        let traffic = Traffic::default();
        Ok(Comm {
            rank,
            size,
            user,
            all_to_all,
            all_gather,
            in_place: false,
            courier: boxed(Host::new(), WHAT)?,
            sequence: 1,
            traffic,
        })
    }

    /// Gives all ranks what is in the mail; `sizes` says how much comes from each.
    pub fn gather(&mut self, mail: &mut Mail, sizes: impl Iterator<Item = usize>) -> Result<()> {
        mail.close(self)?;
        self.deliver(Collective::Gather, mail, sizes)
    }

    /// Gives every rank its message; `sizes` says how much comes from each.
    pub fn exchange(&mut self, mail: &mut Mail, sizes: impl Iterator<Item = usize>) -> Result<()> {
        self.deliver(Collective::Exchange, mail, sizes)
    }

    fn deliver(
        &mut self,
        collective: Collective,
        mail: &mut Mail,
        sizes: impl Iterator<Item = usize>,
    ) -> Result<()> {
        let end = mail.expect(sizes)?;
        let mut trouble = None;
        let send = self.courier.post(&mail.send, &mail.patches, &mut trouble).map_err(|e| self.failed(e))?;
        let recv = self.courier.land(&mut mail.recv[..end]).map_err(|e| self.failed(e))?;
        let sequence = self.sequence;
        self.call(collective, send, &mail.send_bytes, recv, &mail.recv_bytes)?;
        if let Some(error) = trouble {
            return Err(self.failed(error));
        }
        self.courier.fetch(&mut mail.recv[..end]).map_err(|e| self.failed(e))?;
        for rank in 0..self.size {
            let end = mail.starts[rank] + mail.recv_bytes[rank] as usize;
            if mail.recv[end - SEAL..end] != seal(sequence, rank).to_le_bytes() {
                return Err(self.undelivered(collective, rank));
            }
        }
        Ok(())
    }

    /// Finds memory for a parcel that was begun. The addresses hold until the next one.
    pub fn open(&mut self, collective: Collective, parcel: &mut Parcel) -> Result<()> {
        let total = |sizes: &[u64]| sizes.iter().sum::<u64>() as usize;
        let recv = self.courier.room(Room::Receive, total(&parcel.back_bytes)).map_err(|e| self.failed(e))?;
        place(recv, &parcel.back_bytes, &mut parcel.back).map_err(|e| self.failed(e))?;
        parcel.in_place = self.in_place && collective == Collective::Gather;
        let send = if parcel.in_place {
            parcel.back[self.rank].0
        } else {
            self.courier.room(Room::Send, total(&parcel.out_bytes)).map_err(|e| self.failed(e))?
        };
        place(send, &parcel.out_bytes, &mut parcel.out).map_err(|e| self.failed(e))
    }

    /// Sends a parcel that has been packed, or could not be, and waits for nothing but the collective. Gives a rank
    /// that failed in the middle of the step, if that is known at once; a GPU tells it with the next note.
    pub fn send(
        &mut self,
        collective: Collective,
        parcel: &Parcel,
        packed: Result<()>,
        is_well: bool,
    ) -> Result<Option<usize>> {
        let last = |(at, bytes): &(u64, u64)| at + bytes - SEAL as u64;
        let (own, sequence) = (seal(self.sequence, self.rank), self.sequence);
        // Without its seal a message is refused.
        let stamped = packed.and_then(|()| {
            let word = |(at, _): &(u64, u64)| Word { at: *at, value: u64::from(!is_well) };
            let words = parcel.out.iter().map(word);
            let seals = parcel.out.iter().map(|message| Word { at: last(message), value: own });
            let awaited = |(rank, _): &(usize, _)| !parcel.in_place || *rank != self.rank;
            let broken = parcel.back.iter().enumerate().filter(awaited);
            let broken = broken.map(|(_, message)| Word { at: last(message), value: 0 });
            // SAFETY: the messages lie in the rooms, which are as large as all of them.
            unsafe { self.courier.stamp(&mut words.chain(seals).chain(broken)) }
        });
        let (send, recv) = (parcel.out[0].0, parcel.back[0].0);
        self.call(collective, send, &parcel.out_bytes, recv, &parcel.back_bytes)?;
        stamped.map_err(|e| self.failed(e))?;
        let mut seals =
            parcel.back.iter().enumerate().map(|(r, m)| Word { at: last(m), value: seal(sequence, r) });
        let mut words = parcel.back.iter().map(|(at, _)| Word { at: *at, value: 0 });
        // SAFETY: as above.
        let (lost, failed) = unsafe {
            (self.courier.expect(&mut seals, Trouble::Lost), self.courier.expect(&mut words, Trouble::Failed))
        };
        match lost.map_err(|e| self.failed(e))? {
            Some(rank) => Err(self.undelivered(collective, rank)),
            None => failed.map_err(|e| self.failed(e)),
        }
    }

    fn call(
        &mut self,
        collective: Collective,
        send: u64,
        send_bytes: &[u64],
        recv: u64,
        recv_bytes: &[u64],
    ) -> Result<()> {
        let stream = self.courier.stream();
        let (from, into) = (send as *const c_void, recv as *mut c_void);
        let (user, all_gather, all_to_all) = (self.user, self.all_gather, self.all_to_all);
        // SAFETY: the caller promised a working callback, and the buffers are as large as the sizes say.
        let mut made = || unsafe {
            match collective {
                Collective::Gather => {
                    all_gather(user, from, send_bytes[0], into, recv_bytes.as_ptr(), stream)
                }
                Collective::Exchange => {
                    all_to_all(user, from, send_bytes.as_ptr(), into, recv_bytes.as_ptr(), stream)
                }
            }
        };
        let status = self.courier.call(&mut made).map_err(|e| self.failed(e))?;
        let others = |bytes: &[u64]| bytes.iter().sum::<u64>() - bytes[self.rank];
        self.traffic.sent += match collective {
            Collective::Gather => send_bytes[0] * (self.size as u64 - 1),
            Collective::Exchange => others(send_bytes),
        };
        self.traffic.received += others(recv_bytes);
        self.sequence += 1;
        self.traffic.collectives += 1;
        if status != 0 {
            let message =
                format!("comm.{} failed on rank {} with status {status}", collective.name(), self.rank);
            let mut error = Error::new(Kind::Collective, message);
            error.native_code = status;
            return Err(error);
        }
        Ok(())
    }

    fn undelivered(&self, collective: Collective, rank: usize) -> Error {
        let message = format!(
            "comm.{} reported success on rank {}, but what rank {rank} sent did not arrive: the collective returned short, or the ranks are out of step",
            collective.name(),
            self.rank
        );
        Error::new(Kind::Collective, message)
    }

    /// A device that fails around a collective leaves this rank out of it.
    fn failed(&self, mut error: Error) -> Error {
        error.kind = Kind::Collective;
        error.message = format!("comm, on rank {}: {}", self.rank, error.message);
        error
    }
}
