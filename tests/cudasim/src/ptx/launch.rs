//! A kernel launch: blocks one after another, threads of a block in turns between waits. A device promises no order
//! of blocks, nor of the warps of a block: here both are chosen at random.

use super::code::{BarOp, NONE, Op, Program, WarpOp};
use super::shared::Shared;
use super::thread::{Frame, State, Thread};
use crate::reason::{Fault, Kind, Result, refuse};
use crate::schedule::Random;
use crate::window::{Hint, Window};

/// What to launch.
#[derive(Clone)]
pub struct Launch {
    /// The kernel's index in the program.
    pub entry: usize,
    /// Blocks along each axis.
    pub grid: [u32; 3],
    /// Threads along each axis.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// The parameters, laid out as the kernel declares them.
    pub params: Vec<u8>,
}

impl Launch {
    /// Where dynamic shared memory starts: after the static.
    pub fn dynamic_base(&self, program: &Program) -> u32 {
        super::decode::align(program.functions[self.entry].shared, 16) as u32
    }
}

/// The state of a running launch.
pub struct Engine<'a, 'w> {
    /// The module.
    pub program: &'a Program,
    /// What was launched.
    pub launch: &'a Launch,
    /// Device memory.
    pub window: &'a mut Window<'w>,
    /// The running block.
    pub ctaid: [u32; 3],
    /// Its shared memory.
    pub shared: Shared,
    /// A memo for each load and store.
    pub hints: Vec<Hint>,
    /// Instructions so far.
    pub instructions: u64,
    /// Instructions after which the kernel is taken for endless.
    pub budget: u64,
    /// Races in shared memory.
    pub reports: Vec<String>,
    /// Lines already reported.
    reported: Vec<u32>,
    /// Threads that have ended, as a bitmap.
    done: Vec<u32>,
    /// The order in which the warps of a block take turns.
    turns: Vec<usize>,
}

/// What a launch leaves behind.
pub struct Outcome {
    /// Instructions executed, over all threads.
    pub instructions: u64,
    /// Races in shared memory.
    pub reports: Vec<String>,
}

/// Runs a launch, with blocks and warps in the order that `random` gives, or in that of their numbers.
pub fn run(
    program: &Program,
    launch: &Launch,
    window: &mut Window<'_>,
    budget: u64,
    random: Option<&mut Random>,
) -> Result<Outcome> {
    let [gx, gy, gz] = launch.grid.map(u64::from);
    let count: u32 = launch.block.iter().product();
    let mut order: Vec<u64> = (0..gx * gy * gz).collect();
    let mut turns: Vec<usize> = (0..count.div_ceil(32) as usize).collect();
    if let Some(random) = random {
        random.shuffle(&mut order);
        random.shuffle(&mut turns);
    }
    let mut engine = Engine {
        program,
        launch,
        window,
        ctaid: [0; 3],
        shared: Shared::default(),
        hints: vec![0; program.hints as usize],
        instructions: 0,
        budget,
        reports: Vec::new(),
        reported: Vec::new(),
        done: Vec::new(),
        turns,
    };
    let mut threads: Vec<Thread> = (0..count).map(|_| Thread::default()).collect();
    for i in order {
        engine.ctaid = [(i % gx) as u32, (i / gx % gy) as u32, (i / (gx * gy)) as u32];
        engine.block(&mut threads)?;
    }
    Ok(Outcome { instructions: engine.instructions, reports: engine.reports })
}

impl Engine<'_, '_> {
    /// A fault, to be placed by the caller.
    pub fn fault(&self, kind: Kind, reason: &str) -> Fault {
        Fault { kind, reason: reason.to_string() }
    }

    /// The fault of a kernel that does not end.
    pub fn too_long(&self) -> Fault {
        self.fault(Kind::Timeout, "the kernel ran past the limit of instructions")
    }

    /// Adds to the count of instructions.
    pub fn count(&mut self, count: u64) -> Result {
        self.instructions += count;
        if self.instructions > self.budget { Err(self.too_long()) } else { Ok(()) }
    }

    /// The lanes of a thread's warp that have not ended.
    pub fn live_lanes(&self, thread: u32) -> u64 {
        let threads: u32 = self.launch.block.iter().product();
        let lanes = (threads - thread / 32 * 32).min(32);
        u64::from(u32::MAX >> (32 - lanes) & !self.done[(thread / 32) as usize])
    }

    /// Notes a race in shared memory, once for each instruction.
    pub fn report_shared_race(&mut self, thread: u32, other: u32, address: u64, frame: Frame) {
        if self.reported.contains(&frame.pc) {
            return;
        }
        self.reported.push(frame.pc);
        self.reports.push(format!(
            "threads {other} and {thread} of block {:?} touch shared byte {address} of `{}` with no barrier between",
            self.ctaid, self.program.functions[self.launch.entry].name
        ));
    }

    fn place(&self, fault: Fault, thread: &Thread) -> Fault {
        let (code, pc) = thread.place();
        let code = &self.program.functions[code];
        let line = code.lines.get(pc).copied().unwrap_or(0);
        let reason = format!(
            "{} (`{}`, PTX line {line}, block {:?}, thread {:?})",
            fault.reason, code.name, self.ctaid, thread.tid
        );
        Fault { kind: fault.kind, reason }
    }

    fn block(&mut self, threads: &mut [Thread]) -> Result {
        let size = (self.launch.dynamic_base(self.program) + self.launch.shared) as usize;
        let warps = threads.len().div_ceil(32);
        self.shared.start(size, warps);
        self.done = vec![0; warps];
        for (i, thread) in threads.iter_mut().enumerate() {
            thread.start(self, i as u32);
        }
        loop {
            let mut moved = false;
            for turn in 0..warps {
                let first = 32 * self.turns[turn];
                let last = threads.len().min(first + 32);
                for thread in &mut threads[first..last] {
                    if thread.state != State::Ready {
                        continue;
                    }
                    moved = true;
                    if let Err(fault) = thread.run(self) {
                        return Err(self.place(fault, thread));
                    }
                    if thread.state == State::Done {
                        self.done[thread.index as usize / 32] |= 1 << (thread.index % 32);
                    }
                }
            }
            for warp in 0..warps {
                let lanes = &mut threads[warp * 32..];
                let count = lanes.len().min(32);
                moved |= self.exchange(&mut lanes[..count], warp)?;
            }
            if threads.iter().all(|t| t.state == State::Done) {
                return Ok(());
            }
            moved |= self.barriers(threads)?;
            if !moved {
                return Err(self.stuck(threads));
            }
        }
    }

    fn stuck(&self, threads: &[Thread]) -> Fault {
        let list = |state| {
            let found: Vec<u32> = threads.iter().filter(|t| t.state == state).map(|t| t.index).collect();
            match found.len() {
                0 => "none".to_string(),
                n => format!("{n} (first {}, last {})", found[0], found[n - 1]),
            }
        };
        let waiting = threads.iter().find(|t| t.state != State::Done);
        let fault = self.fault(
            Kind::LaunchFailed,
            &format!(
                "barrier divergence: threads at a block barrier: {}; at a warp exchange: {}; ended: {}",
                list(State::Barrier),
                list(State::Warp),
                list(State::Done)
            ),
        );
        match waiting {
            Some(thread) => self.place(fault, thread),
            None => fault,
        }
    }

    /// Lets threads pass the barriers that are complete.
    fn barriers(&mut self, threads: &mut [Thread]) -> Result<bool> {
        let mut waiting: Vec<(u64, usize, usize, usize)> = Vec::new();
        for (i, thread) in threads.iter_mut().enumerate().filter(|(_, t)| t.state == State::Barrier) {
            let (code, pc) = thread.place();
            let Op::Barrier(index) = self.program.functions[code].ins[pc].op else { continue };
            let bar = &self.program.functions[code].bars[index as usize];
            let id = *thread.reg(bar.id);
            waiting.push((id, i, code, pc));
        }
        let Some(&(id, first, code, pc)) = waiting.first() else { return Ok(false) };
        let Op::Barrier(index) = self.program.functions[code].ins[pc].op else { return Ok(false) };
        let bar = &self.program.functions[code].bars[index as usize];
        let group: Vec<usize> = waiting.iter().filter(|w| w.0 == id).map(|w| w.1).collect();
        let expected =
            if bar.count == NONE { threads.len() } else { *threads[first].reg(bar.count) as usize };
        if group.len() < expected {
            return Ok(false);
        }
        let elsewhere = waiting.iter().find(|w| w.0 == id && (w.2, w.3) != (code, pc));
        if let (Some(other), true) = (elsewhere, bar.aligned && bar.count == NONE) {
            let line = |code: usize, pc: usize| self.program.functions[code].lines[pc];
            let reason = format!(
                "barrier divergence: thread {} waits at PTX line {}, thread {} at line {}",
                threads[first].index,
                line(code, pc),
                threads[other.1].index,
                line(other.2, other.3)
            );
            return Err(self.place(self.fault(Kind::LaunchFailed, &reason), &threads[first]));
        }
        if let Some((op, _, _, _)) = bar.reduce {
            let mut count = 0;
            for &i in &group {
                if let Some((_, _, p, negate)) = self.bar_of(&threads[i]).and_then(|b| b.reduce) {
                    count += usize::from((*threads[i].reg(p) == 1) != negate);
                }
            }
            let value = match op {
                BarOp::Or => u64::from(count > 0),
                BarOp::And => u64::from(count == group.len()),
                BarOp::Count => count as u64,
            };
            for &i in &group {
                if let Some((_, d, _, _)) = self.bar_of(&threads[i]).and_then(|b| b.reduce) {
                    *threads[i].reg(d) = value;
                }
            }
        }
        for &i in &group {
            threads[i].state = State::Ready;
        }
        self.shared.barrier();
        Ok(true)
    }

    fn bar_of(&self, thread: &Thread) -> Option<&super::code::Bar> {
        let (code, pc) = thread.place();
        let function = &self.program.functions[code];
        match function.ins[pc].op {
            Op::Barrier(index) => Some(&function.bars[index as usize]),
            _ => None,
        }
    }

    /// Performs the warp-wide exchanges whose lanes have all arrived.
    fn exchange(&mut self, lanes: &mut [Thread], warp: usize) -> Result<bool> {
        let mut moved = false;
        for first in 0..lanes.len() {
            if lanes[first].state != State::Warp {
                continue;
            }
            let (code, pc) = lanes[first].place();
            let function = &self.program.functions[code];
            let Op::Warp(index) = function.ins[pc].op else { continue };
            let op = &function.warps[index as usize];
            let whole = u32::MAX >> (32 - lanes.len() as u32);
            let mask =
                if op.mask == NONE { whole & !self.done[warp] } else { *lanes[first].reg(op.mask) as u32 };
            if mask >> first & 1 == 0 {
                let fault =
                    self.fault(Kind::LaunchFailed, &format!("lane {first} is not in its own mask {mask:#x}"));
                return Err(self.place(fault, &lanes[first]));
            }
            if mask & self.done[warp] != 0 {
                let fault = self.fault(
                    Kind::LaunchFailed,
                    &format!("mask {mask:#x} names lanes {:#x} that have ended", mask & self.done[warp]),
                );
                return Err(self.place(fault, &lanes[first]));
            }
            // Lanes beyond the block's end never existed; hardware ignores them.
            let mask = mask & whole;
            let arrived = (0..lanes.len()).filter(|&i| mask >> i & 1 == 1).all(|i| {
                let depth = lanes[i].frames.len();
                lanes[i].state == State::Warp
                    && lanes[i].place() == (code, pc)
                    && depth == lanes[first].frames.len()
            });
            if !arrived {
                continue;
            }
            self.perform(lanes, op, mask).map_err(|fault| self.place(fault, &lanes[first]))?;
            for (i, lane) in lanes.iter_mut().enumerate() {
                if mask >> i & 1 == 1 {
                    lane.state = State::Ready;
                }
            }
            // Shuffles and votes do not order memory; only `bar.warp.sync` does.
            if matches!(op.op, WarpOp::Sync) {
                self.shared.warp_sync(warp);
            }
            moved = true;
        }
        Ok(moved)
    }

    fn perform(&self, lanes: &mut [Thread], op: &super::code::Warp, mask: u32) -> Result {
        let members: Vec<usize> = (0..lanes.len()).filter(|&i| mask >> i & 1 == 1).collect();
        if matches!(op.op, WarpOp::Sync) {
            return Ok(());
        }
        let flip = u64::from(op.negate);
        let values: Vec<u64> =
            lanes.iter_mut().map(|l| if l.state == State::Warp { *l.reg(op.a) ^ flip } else { 0 }).collect();
        let ballot = members.iter().fold(0u64, |b, &i| b | (values[i] & 1) << i);
        for &i in &members {
            let (value, flag) = match op.op {
                WarpOp::ShuffleUp | WarpOp::ShuffleDown | WarpOp::ShuffleXor | WarpOp::ShuffleIndex => {
                    let (b, c) = (*lanes[i].reg(op.b) as i64 & 31, *lanes[i].reg(op.c) as i64);
                    let (clamp, segment) = (c & 31, c >> 8 & 31);
                    let (lane, low) = (i as i64, i as i64 & segment);
                    let high = low | (clamp & !segment);
                    let (from, inside) = match op.op {
                        WarpOp::ShuffleUp => (lane - b, lane - b >= high),
                        WarpOp::ShuffleDown => (lane + b, lane + b <= high),
                        WarpOp::ShuffleXor => (lane ^ b, lane ^ b <= high),
                        _ => (low | (b & !segment), low | (b & !segment) <= high),
                    };
                    let from = if inside { from as usize } else { i };
                    if mask >> from & 1 == 0 {
                        refuse!(LaunchFailed, "lane {i} shuffles from lane {from}, which does not take part");
                    }
                    (values[from], u64::from(inside))
                }
                WarpOp::VoteAll => (u64::from(ballot == u64::from(mask)), 0),
                WarpOp::VoteAny => (u64::from(ballot != 0), 0),
                WarpOp::VoteUniform => (u64::from(ballot == 0 || ballot == u64::from(mask)), 0),
                WarpOp::VoteBallot => (ballot, 0),
                WarpOp::MatchAny => {
                    (members.iter().filter(|&&j| values[j] == values[i]).fold(0, |m, &j| m | 1 << j), 0)
                }
                WarpOp::MatchAll => {
                    let all = members.iter().all(|&j| values[j] == values[i]);
                    (if all { u64::from(mask) } else { 0 }, u64::from(all))
                }
                WarpOp::Reduce(f) => {
                    (members.iter().skip(1).fold(values[members[0]], |acc, &j| f(acc, values[j])), 0)
                }
                WarpOp::Sync => (0, 0),
            };
            if op.d != NONE {
                *lanes[i].reg(op.d) = value;
            }
            if op.p != NONE {
                *lanes[i].reg(op.p) = flag;
            }
        }
        Ok(())
    }
}
