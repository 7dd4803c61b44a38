//! One thread of a kernel: its registers, its stack, and the loop that runs it up to the next wait.

use super::code::{ALWAYS, Callee, Code, Op, Special};
use super::integer;
use super::launch::Engine;
use super::space::space_of;
use crate::reason::{Kind, Result};

/// Why a thread is not running.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum State {
    /// It can run.
    Ready,
    /// At a barrier of the block.
    Barrier,
    /// At a warp-wide exchange.
    Warp,
    /// Ended.
    Done,
}

/// A function being run.
#[derive(Clone, Copy)]
pub struct Frame {
    /// The function.
    pub code: u32,
    /// The next instruction.
    pub pc: u32,
    /// Where its registers start.
    pub base: u32,
    /// Where its local memory starts.
    pub local: u32,
    /// Where its parameter memory starts.
    pub param: u32,
}

/// A thread.
pub struct Thread {
    /// Its index in the block.
    pub index: u32,
    /// Its coordinates.
    pub tid: [u32; 3],
    /// Why it is not running.
    pub state: State,
    /// The registers of all frames.
    pub regs: Vec<u64>,
    /// The functions being run, innermost last.
    pub frames: Vec<Frame>,
    /// Local memory of all frames.
    pub(super) local: Vec<u8>,
    /// Parameter memory of all frames.
    pub(super) params: Vec<u8>,
}

/// Deeper calls than this are taken for endless recursion.
const DEEPEST: usize = 256;

impl Default for Thread {
    /// A thread that has not started.
    fn default() -> Thread {
        Thread {
            index: 0,
            tid: [0; 3],
            state: State::Done,
            regs: Vec::new(),
            frames: Vec::new(),
            local: Vec::new(),
            params: Vec::new(),
        }
    }
}

impl Thread {
    /// Puts the thread at the start of a kernel.
    pub fn start(&mut self, engine: &Engine<'_, '_>, index: u32) {
        let [x, y, _] = engine.launch.block;
        self.index = index;
        self.tid = [index % x, index / x % y, index / (x * y)];
        self.state = State::Ready;
        self.regs.clear();
        self.frames.clear();
        self.local.clear();
        self.params.clear();
        self.push(engine, engine.launch.entry);
    }

    fn push(&mut self, engine: &Engine<'_, '_>, code: usize) {
        let function = &engine.program.functions[code];
        let base = self.regs.len();
        let frame = Frame {
            code: code as u32,
            pc: 0,
            base: base as u32,
            local: self.local.len() as u32,
            param: self.params.len() as u32,
        };
        self.frames.push(frame);
        self.regs.extend_from_slice(&function.template);
        for &(slot, special) in &function.specials {
            self.regs[base + slot as usize] = engine.special(special, self);
        }
        self.local.resize(self.local.len() + function.local, 0xff);
        self.params.resize(self.params.len() + function.params, 0);
    }

    fn pop(&mut self) -> Option<Frame> {
        let frame = self.frames.pop()?;
        self.regs.truncate(frame.base as usize);
        self.local.truncate(frame.local as usize);
        self.params.truncate(frame.param as usize);
        Some(frame)
    }

    /// The register of the innermost frame.
    pub fn reg(&mut self, slot: u32) -> &mut u64 {
        let base = self.frames.last().map_or(0, |f| f.base);
        &mut self.regs[(base + slot) as usize]
    }

    /// The function and the instruction that the thread stands at (just past it, while it waits).
    pub fn place(&self) -> (usize, usize) {
        self.frames.last().map_or((0, 0), |f| (f.code as usize, f.pc.saturating_sub(1) as usize))
    }

    /// Runs until the thread waits or ends.
    pub fn run(&mut self, engine: &mut Engine<'_, '_>) -> Result {
        while self.state == State::Ready {
            self.run_frame(engine)?;
        }
        Ok(())
    }

    /// Runs until the frame changes or the thread waits.
    fn run_frame(&mut self, engine: &mut Engine<'_, '_>) -> Result {
        let Some(&frame) = self.frames.last() else {
            self.state = State::Done;
            return Ok(());
        };
        let program = engine.program;
        let code: &Code = &program.functions[frame.code as usize];
        let mut pc = frame.pc as usize;
        let mut count = 0u64;
        let base = frame.base as usize;
        let outcome = loop {
            let ins = &code.ins[pc];
            pc += 1;
            count += 1;
            let regs = &mut self.regs[base..];
            if ins.guard != ALWAYS && regs[ins.guard as usize] == ins.skip_when {
                continue;
            }
            match &ins.op {
                Op::Mov { d, a } => regs[*d as usize] = regs[*a as usize],
                Op::Un { f, d, a } => regs[*d as usize] = f(regs[*a as usize]),
                Op::Bin { f, d, a, b } => regs[*d as usize] = f(regs[*a as usize], regs[*b as usize]),
                Op::Tri { f, d, a, b, c } => {
                    regs[*d as usize] = f(regs[*a as usize], regs[*b as usize], regs[*c as usize]);
                }
                Op::Select { d, a, b, p } => {
                    regs[*d as usize] = regs[if regs[*p as usize] == 1 { *a } else { *b } as usize];
                }
                Op::Cvt { d, a, cvt } => {
                    regs[*d as usize] = code.cvts[*cvt as usize].apply(regs[*a as usize])
                }
                Op::Load(index) => {
                    let mem = &code.mems[*index as usize];
                    if let Err(fault) = self.load(engine, mem, frame) {
                        break Err(fault);
                    }
                }
                Op::Store(index) => {
                    let mem = &code.mems[*index as usize];
                    if let Err(fault) = self.store(engine, mem, frame) {
                        break Err(fault);
                    }
                }
                Op::Branch(target) => {
                    pc = *target as usize;
                    if count > engine.budget {
                        break Err(engine.too_long());
                    }
                }
                Op::Carry { d, a, b, carry, form } => {
                    let (x, y) = (u128::from(regs[*a as usize]), u128::from(regs[*b as usize]));
                    let extra = if form.take { u128::from(regs[*carry as usize]) } else { 0 };
                    let wide =
                        if form.subtract { x.wrapping_sub(y).wrapping_sub(extra) } else { x + y + extra };
                    regs[*d as usize] = (wide & ((1 << form.bits) - 1)) as u64;
                    if form.leave {
                        regs[*carry as usize] = (wide >> form.bits & 1) as u64;
                    }
                }
                Op::Bfi { d, from, bits } => {
                    let [a, b, c, e] = from.map(|slot| regs[slot as usize]);
                    regs[*d as usize] = integer::insert(a, b, c, e, *bits);
                }
                Op::Lop3 { d, a, b, c, table } => {
                    let (a, b, c) = (regs[*a as usize], regs[*b as usize], regs[*c as usize]);
                    regs[*d as usize] = integer::lop3(a, b, c, *table);
                }
                Op::LocalAddress { d, offset } => regs[*d as usize] = u64::from(frame.local + offset),
                Op::IsSpace { d, a, space } => {
                    let inside = space_of(regs[*a as usize]).0 == *space;
                    regs[*d as usize] = u64::from(inside);
                }
                Op::Atom(index) => {
                    let atom = &code.atoms[*index as usize];
                    if let Err(fault) = self.atomic(engine, atom, frame) {
                        break Err(fault);
                    }
                }
                Op::BranchTable { index, targets } => match targets.get(regs[*index as usize] as usize) {
                    Some(target) => pc = *target as usize,
                    None => break Err(engine.fault(Kind::LaunchFailed, "brx.idx has no such target")),
                },
                Op::Call(index) => {
                    self.save(pc);
                    break self.call(engine, code, *index as usize, frame);
                }
                Op::Return => {
                    self.save(pc);
                    self.finish(engine);
                    break Ok(());
                }
                Op::Exit => {
                    self.save(pc);
                    self.frames.clear();
                    self.state = State::Done;
                    break Ok(());
                }
                Op::Trap => break Err(engine.fault(Kind::LaunchFailed, "the kernel executed `trap`")),
                Op::Barrier(_) => {
                    self.save(pc);
                    self.state = State::Barrier;
                    break Ok(());
                }
                Op::Warp(_) => {
                    self.save(pc);
                    self.state = State::Warp;
                    break Ok(());
                }
                Op::ActiveMask { d } => regs[*d as usize] = engine.live_lanes(self.index),
                Op::Clock { d } => regs[*d as usize] = engine.instructions + count,
                Op::Nop => {}
            }
        };
        engine.count(count)?;
        if outcome.is_err() {
            self.save(pc);
        }
        outcome
    }

    fn save(&mut self, pc: usize) {
        if let Some(frame) = self.frames.last_mut() {
            frame.pc = pc as u32;
        }
    }

    fn call(&mut self, engine: &mut Engine<'_, '_>, code: &Code, index: usize, frame: Frame) -> Result {
        let call = &code.calls[index];
        match call.callee {
            Callee::Printf => {
                let (at, size) = call.returns.first().copied().unwrap_or((0, 0));
                let at = frame.param as usize + at;
                self.params[at..at + size].fill(0);
                Ok(())
            }
            Callee::AssertFail => Err(engine.fault(Kind::Assert, "a device-side assertion failed")),
            Callee::Function(callee) => {
                if self.frames.len() >= DEEPEST {
                    return Err(engine.fault(Kind::LaunchFailed, "calls nest too deeply"));
                }
                self.push(engine, callee);
                let base = self.frames.last().map_or(0, |f| f.param) as usize;
                let arguments = &engine.program.functions[callee].arguments;
                for (&(from, size), &(to, room)) in call.args.iter().zip(arguments) {
                    let from = frame.param as usize + from;
                    self.params.copy_within(from..from + size.min(room), base + to);
                }
                Ok(())
            }
        }
    }

    /// Ends the innermost function: hands its results to the caller, or ends the thread.
    fn finish(&mut self, engine: &Engine<'_, '_>) {
        if self.frames.len() < 2 {
            self.frames.clear();
            self.state = State::Done;
            return;
        }
        let Some(callee) = self.frames.last().copied() else { return };
        let caller = self.frames[self.frames.len() - 2];
        let function = &engine.program.functions[caller.code as usize];
        if let Op::Call(index) = function.ins[caller.pc as usize - 1].op {
            let returns = &engine.program.functions[callee.code as usize].returns;
            for (&(to, room), &(from, size)) in function.calls[index as usize].returns.iter().zip(returns) {
                let from = callee.param as usize + from;
                self.params.copy_within(from..from + size.min(room), caller.param as usize + to);
            }
        }
        self.pop();
    }
}

impl Engine<'_, '_> {
    /// The value of a special register.
    pub fn special(&self, special: Special, thread: &Thread) -> u64 {
        let lane = thread.index % 32;
        let threads: u32 = self.launch.block.iter().product();
        u64::from(match special {
            Special::Tid(axis) => thread.tid[axis],
            Special::Ntid(axis) => self.launch.block[axis],
            Special::Ctaid(axis) => self.ctaid[axis],
            Special::Nctaid(axis) => self.launch.grid[axis],
            Special::Lane => lane,
            Special::Warp => thread.index / 32,
            Special::Warps => threads.div_ceil(32),
            Special::Zero => 0,
            Special::One => 1,
            Special::LaneMaskEq => 1 << lane,
            Special::LaneMaskLt => (1 << lane) - 1,
            Special::LaneMaskLe => u32::MAX >> (31 - lane),
            Special::LaneMaskGt => !(u32::MAX >> (31 - lane)),
            Special::LaneMaskGe => !((1 << lane) - 1),
            Special::DynamicBase => self.launch.dynamic_base(self.program),
            Special::DynamicShared => self.launch.shared,
            Special::TotalShared => self.launch.dynamic_base(self.program) + self.launch.shared,
        })
    }
}
