//! A communicator of threads: ranks of one process that hand each other bytes. It can be made to fail.

use foam::abi::foam_comm;
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
}

impl World {
    /// A world of `size` ranks, with one fault.
    pub fn members(size: usize, fault: Fault) -> Vec<Member> {
        let state = State { posted: (0..size).map(|_| None).collect(), taken: 0, broken: false };
        let world = Arc::new(World { state: Mutex::new(state), changed: Condvar::new() });
        let member = |rank| Member { world: world.clone(), rank, size, fault, count: 0, calls: Vec::new() };
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
            flags: 0,
            user: std::ptr::from_mut(self).cast(),
            all_to_allv: Some(all_to_allv),
            all_gatherv: Some(all_gatherv),
        }
    }

    fn swap(&mut self, messages: Vec<Vec<u8>>) -> Option<Vec<Vec<u8>>> {
        let patience = Duration::from_secs(60);
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

    unsafe fn deliver(&mut self, name: &'static str, out: Vec<Vec<u8>>, recv: *mut u8, sizes: &[u64]) -> i32 {
        self.calls.push(name);
        let number = self.count;
        let Some(got) = self.swap(out) else { return BROKEN };
        if self.fault == (Fault::Short { rank: self.rank, at: number }) {
            return 0;
        }
        let mut at = 0;
        for (message, size) in got.iter().zip(sizes) {
            let len = message.len().min(*size as usize);
            // SAFETY: the library gives as many bytes as it says.
            unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), recv.add(at), len) };
            at += *size as usize;
        }
        0
    }
}

unsafe extern "C" fn all_to_allv(
    user: *mut c_void,
    send: *const c_void,
    send_bytes: *const u64,
    recv: *mut c_void,
    recv_bytes: *const u64,
    _: *mut c_void,
) -> i32 {
    // SAFETY: `user` is a member, and the buffers are as the library says.
    unsafe {
        let member = &mut *user.cast::<Member>();
        let mut at = 0;
        let mut out = Vec::new();
        for rank in 0..member.size {
            let bytes = *send_bytes.add(rank) as usize;
            out.push(std::slice::from_raw_parts(send.cast::<u8>().add(at), bytes).to_vec());
            at += bytes;
        }
        let sizes = std::slice::from_raw_parts(recv_bytes, member.size).to_vec();
        member.deliver("all_to_allv", out, recv.cast(), &sizes)
    }
}

unsafe extern "C" fn all_gatherv(
    user: *mut c_void,
    send: *const c_void,
    bytes: u64,
    recv: *mut c_void,
    recv_bytes: *const u64,
    _: *mut c_void,
) -> i32 {
    // SAFETY: as above.
    unsafe {
        let member = &mut *user.cast::<Member>();
        let own = std::slice::from_raw_parts(send.cast::<u8>(), bytes as usize).to_vec();
        let sizes = std::slice::from_raw_parts(recv_bytes, member.size).to_vec();
        member.deliver("all_gatherv", vec![own; member.size], recv.cast(), &sizes)
    }
}
