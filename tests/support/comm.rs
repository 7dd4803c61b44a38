//! A communicator of threads: ranks of one process that hand each other bytes. It can be made to fail.

use cudarc::driver::sys::{self, CUresult};
use foam::abi::{FOAM_COMM_IN_PLACE, foam_comm};
use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// What is to go wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// The collective of this number (from 0) fails on this rank, and the rank is gone.
    Fails { rank: usize, at: usize },
    /// The collective of this number returns success on this rank without having written anything.
    Short { rank: usize, at: usize },
}

/// The status that a failed collective returns.
pub const BROKEN: i32 = 77;

struct State {
    /// By sender: its messages, by receiver.
    posted: Vec<Option<Vec<Vec<u8>>>>,
    taken: usize,
    broken: bool,
}

/// All ranks.
pub struct World {
    state: Mutex<State>,
    changed: Condvar,
}

/// One rank of a world.
pub struct Member {
    world: Arc<World>,
    rank: usize,
    size: usize,
    fault: Fault,
    count: usize,
    /// Names of the collectives so far.
    pub calls: Vec<&'static str>,
    /// The messages lie in device memory; copies are put on the stream of the collective.
    pub on_device: bool,
    /// How long it waits for the others.
    pub patience: Duration,
    /// How often it waited for a stream.
    pub waits: u64,
    /// Takes bytes from where they belong among those that come in.
    pub in_place: bool,
    /// How often they lay there.
    pub placed: u64,
}

impl World {
    /// A world of `size` ranks, with one fault.
    pub fn members(size: usize, fault: Fault) -> Vec<Member> {
        let state = State { posted: (0..size).map(|_| None).collect(), taken: 0, broken: false };
        let world = Arc::new(World { state: Mutex::new(state), changed: Condvar::new() });
        let member = |rank| Member {
            world: world.clone(),
            rank,
            size,
            fault,
            count: 0,
            calls: Vec::new(),
            on_device: false,
            waits: 0,
            // Ranks may differ in it.
            in_place: rank % 2 == 1,
            placed: 0,
            patience: Duration::from_secs(60),
        };
        (0..size).map(member).collect()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // A rank that is gone breaks what the others wait for, as a closed connection does.
        self.world.state.lock().unwrap().broken = true;
        self.world.changed.notify_all();
    }
}

impl Member {
    /// The communicator of this rank; the member must outlive it.
    pub fn comm(&mut self) -> foam_comm {
        foam_comm {
            struct_size: size_of::<foam_comm>() as u32,
            rank: self.rank as i32,
            size: self.size as i32,
            flags: if self.in_place { FOAM_COMM_IN_PLACE } else { 0 },
            user: std::ptr::from_mut(self).cast(),
            all_to_allv: Some(all_to_allv),
            all_gatherv: Some(all_gatherv),
        }
    }

    fn swap(&mut self, messages: Vec<Vec<u8>>) -> Option<Vec<Vec<u8>>> {
        let patience = self.patience;
        let number = self.count;
        self.count += 1;
        let mut state = self.world.state.lock().unwrap();
        if self.fault == (Fault::Fails { rank: self.rank, at: number }) {
            state.broken = true;
            self.world.changed.notify_all();
            return None;
        }
        let free = |s: &mut State| s.posted[self.rank].is_some() && !s.broken;
        state = self.world.changed.wait_timeout_while(state, patience, free).unwrap().0;
        if state.broken || state.posted[self.rank].is_some() {
            return None;
        }
        state.posted[self.rank] = Some(messages);
        self.world.changed.notify_all();
        let complete = |s: &mut State| s.posted.iter().any(Option::is_none) && !s.broken;
        state = self.world.changed.wait_timeout_while(state, patience, complete).unwrap().0;
        if state.posted.iter().any(Option::is_none) {
            return None;
        }
        let got = state.posted.iter().map(|from| from.as_ref().unwrap()[self.rank].clone()).collect();
        state.taken += 1;
        if state.taken == state.posted.len() {
            state.taken = 0;
            state.posted.iter_mut().for_each(|slot| *slot = None);
            self.world.changed.notify_all();
        } else {
            // Nobody leaves before all have taken: the next round is a new one.
            let busy = |s: &mut State| s.posted.iter().all(Option::is_some) && s.taken > 0;
            drop(self.world.changed.wait_timeout_while(state, patience, busy).unwrap().0);
        }
        Some(got)
    }

    unsafe fn deliver(
        &mut self,
        name: &'static str,
        out: Option<Vec<Vec<u8>>>,
        recv: *mut u8,
        sizes: &[u64],
        stream: *mut c_void,
    ) -> i32 {
        self.calls.push(name);
        let number = self.count;
        let Some(got) = out.and_then(|out| self.swap(out)) else {
            // As a closed connection: nobody waits for this rank.
            self.world.state.lock().unwrap().broken = true;
            self.world.changed.notify_all();
            return BROKEN;
        };
        if self.fault == (Fault::Short { rank: self.rank, at: number }) {
            return 0;
        }
        let mut at = 0;
        for (message, size) in got.iter().zip(sizes) {
            let len = message.len().min(*size as usize);
            // SAFETY: the library gives as many bytes as it says.
            if !unsafe { self.write(recv.add(at), &message[..len], stream) } {
                return BROKEN;
            }
            at += *size as usize;
        }
        0
    }

    /// Bytes of the library; none if the device does not give them.
    unsafe fn read(&mut self, from: *const u8, bytes: usize, stream: *mut c_void) -> Option<Vec<u8>> {
        let mut own = vec![0; bytes];
        // SAFETY: the library gives as many bytes as it says.
        unsafe {
            if !self.on_device {
                std::ptr::copy_nonoverlapping(from, own.as_mut_ptr(), bytes);
                return Some(own);
            }
            self.waits += 1;
            let copied =
                sys::cuMemcpyDtoHAsync_v2(own.as_mut_ptr().cast(), from as u64, bytes, stream.cast());
            let waited = sys::cuStreamSynchronize(stream.cast());
            ((copied, waited) == (CUresult::CUDA_SUCCESS, CUresult::CUDA_SUCCESS)).then_some(own)
        }
    }

    unsafe fn write(&mut self, to: *mut u8, bytes: &[u8], stream: *mut c_void) -> bool {
        // SAFETY: as above.
        unsafe {
            if !self.on_device {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
                return true;
            }
            self.waits += 1;
            let copied =
                sys::cuMemcpyHtoDAsync_v2(to as u64, bytes.as_ptr().cast(), bytes.len(), stream.cast());
            let waited = sys::cuStreamSynchronize(stream.cast());
            (copied, waited) == (CUresult::CUDA_SUCCESS, CUresult::CUDA_SUCCESS)
        }
    }
}

unsafe extern "C" fn all_to_allv(
    user: *mut c_void,
    send: *const c_void,
    send_bytes: *const u64,
    recv: *mut c_void,
    recv_bytes: *const u64,
    stream: *mut c_void,
) -> i32 {
    // SAFETY: `user` is a member, and the buffers are as the library says.
    unsafe {
        let member = &mut *user.cast::<Member>();
        let mut at = 0;
        let mut out = Some(Vec::new());
        for rank in 0..member.size {
            let bytes = *send_bytes.add(rank) as usize;
            let message = member.read(send.cast::<u8>().add(at), bytes, stream);
            out = out.zip(message).map(|(mut out, message)| {
                out.push(message);
                out
            });
            at += bytes;
        }
        let sizes = std::slice::from_raw_parts(recv_bytes, member.size).to_vec();
        member.deliver("all_to_allv", out, recv.cast(), &sizes, stream)
    }
}

unsafe extern "C" fn all_gatherv(
    user: *mut c_void,
    send: *const c_void,
    bytes: u64,
    recv: *mut c_void,
    recv_bytes: *const u64,
    stream: *mut c_void,
) -> i32 {
    // SAFETY: as above.
    unsafe {
        let member = &mut *user.cast::<Member>();
        let own = member.read(send.cast::<u8>(), bytes as usize, stream);
        let sizes = std::slice::from_raw_parts(recv_bytes, member.size).to_vec();
        let before: u64 = sizes[..member.rank].iter().sum();
        member.placed += u64::from(send.addr() == recv.addr() + before as usize);
        let out = own.map(|own| vec![own; member.size]);
        member.deliver("all_gatherv", out, recv.cast(), &sizes, stream)
    }
}
