//! Decoded instructions: what the interpreter runs.
//!
//! Every operand is a slot of the thread's register frame. Literals, variables' addresses and special
//! registers such as `%tid.x` have slots too, filled when the frame is made, so that no operand needs a
//! test at run time.

use super::convert::Cvt;
use super::integer::{Bin, Tri, Un};
use super::types::{Space, Type};

/// The guard of an unguarded instruction.
pub const ALWAYS: u32 = u32::MAX;
/// An absent slot.
pub const NONE: u32 = u32::MAX;

/// A decoded instruction.
pub struct Ins {
    /// The guard's slot, or [`ALWAYS`].
    pub guard: u32,
    /// The value of the guard for which the instruction is skipped.
    pub skip_when: u64,
    /// What it does.
    pub op: Op,
}

/// What an instruction does. `d` is the destination, `a`, `b`, `c` the sources.
pub enum Op {
    /// Copies a register.
    Mov { d: u32, a: u32 },
    /// Applies a function of one register.
    Un { f: Un, d: u32, a: u32 },
    /// Applies a function of two registers.
    Bin { f: Bin, d: u32, a: u32, b: u32 },
    /// Applies a function of three registers.
    Tri { f: Tri, d: u32, a: u32, b: u32, c: u32 },
    /// `a` if the predicate holds, else `b`.
    Select { d: u32, a: u32, b: u32, p: u32 },
    /// A conversion, by index in [`Code::cvts`].
    Cvt { d: u32, a: u32, cvt: u32 },
    /// Addition or subtraction with carry: `d = a ± b ± carry`.
    Carry { d: u32, a: u32, b: u32, carry: u32, form: CarryForm },
    /// Bit field insert.
    Bfi { d: u32, from: [u32; 4], bits: u64 },
    /// Three-input logic with a truth table.
    Lop3 { d: u32, a: u32, b: u32, c: u32, table: u8 },
    /// The address of a local variable.
    LocalAddress { d: u32, offset: u32 },
    /// Whether a generic address lies in a space.
    IsSpace { d: u32, a: u32, space: Space },
    /// A load, by index in [`Code::mems`].
    Load(u32),
    /// A store, by index in [`Code::mems`].
    Store(u32),
    /// An atomic, by index in [`Code::atoms`].
    Atom(u32),
    /// A branch.
    Branch(u32),
    /// A branch by index.
    BranchTable { index: u32, targets: Box<[u32]> },
    /// A call, by index in [`Code::calls`].
    Call(u32),
    /// Return from the function, or end of the thread.
    Return,
    /// End of the thread.
    Exit,
    /// A trap.
    Trap,
    /// A barrier of the block, by index in [`Code::bars`].
    Barrier(u32),
    /// A warp-wide exchange, by index in [`Code::warps`].
    Warp(u32),
    /// Lanes of the warp that have not ended.
    ActiveMask { d: u32 },
    /// A clock that moves.
    Clock { d: u32 },
    /// Nothing: fences, prefetches.
    Nop,
}

/// Which carries an addition takes and leaves.
#[derive(Clone, Copy, Debug)]
pub struct CarryForm {
    /// Subtract instead of add.
    pub subtract: bool,
    /// Take the carry in.
    pub take: bool,
    /// Leave a carry.
    pub leave: bool,
    /// 32 or 64.
    pub bits: u32,
}

/// A load or store of one to four elements.
pub struct Mem {
    /// The state space.
    pub space: Space,
    /// The element type in memory.
    pub ty: Type,
    /// The registers, as many as `count`.
    pub slots: [u32; 4],
    /// The masks of the registers, into which signed loads extend.
    pub masks: [u64; 4],
    /// How many elements.
    pub count: u8,
    /// The register with the address, or [`NONE`].
    pub base: u32,
    /// What to add to it.
    pub offset: i64,
    /// The index of this instruction's memo of the allocation it last hit.
    pub hint: u32,
}

/// An atomic read-modify-write.
pub struct Atom {
    /// Where: `slots[0]` is the destination or [`NONE`].
    pub mem: Mem,
    /// The operation.
    pub op: AtomOp,
    /// The operand.
    pub b: u32,
    /// The second operand of `cas`.
    pub c: u32,
}

/// The operation of an atomic.
#[derive(Clone, Copy, Debug)]
pub enum AtomOp {
    /// A function of the old value and the operand.
    Apply(Bin),
    /// Replace.
    Exchange,
    /// Replace if equal.
    CompareAndSwap,
    /// Add one up to a limit.
    Increment,
    /// Subtract one down to zero.
    Decrement,
}

/// A call of a device function.
pub struct Call {
    /// The callee's index, or a builtin.
    pub callee: Callee,
    /// Offsets in the caller's parameter memory, and sizes, of the arguments.
    pub args: Vec<(usize, usize)>,
    /// Likewise of the results.
    pub returns: Vec<(usize, usize)>,
}

/// What a call calls.
pub enum Callee {
    /// A function of the module.
    Function(usize),
    /// `vprintf`: prints nothing and returns 0.
    Printf,
    /// `__assertfail`.
    AssertFail,
}

/// A barrier of the block.
pub struct Bar {
    /// The barrier's number, a register.
    pub id: u32,
    /// How many threads take part, a register, or [`NONE`] for all.
    pub count: u32,
    /// Whether all threads must be at the same instruction.
    pub aligned: bool,
    /// A reduction over the threads: the operation, the destination, the predicate and whether it is negated.
    pub reduce: Option<(BarOp, u32, u32, bool)>,
}

/// The reduction of a `bar.red`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BarOp {
    /// Any predicate holds.
    Or,
    /// Every predicate holds.
    And,
    /// How many hold.
    Count,
}

/// A warp-wide exchange; all lanes of `mask` must arrive.
pub struct Warp {
    /// What is exchanged.
    pub op: WarpOp,
    /// The destination, or [`NONE`].
    pub d: u32,
    /// The second destination (a predicate), or [`NONE`].
    pub p: u32,
    /// The operand.
    pub a: u32,
    /// The lane or offset of a shuffle.
    pub b: u32,
    /// The clamp of a shuffle.
    pub c: u32,
    /// The member mask, or [`NONE`] for the whole warp.
    pub mask: u32,
    /// Whether the operand is negated.
    pub negate: bool,
}

/// The kind of a warp-wide exchange.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum WarpOp {
    ShuffleUp,
    ShuffleDown,
    ShuffleXor,
    ShuffleIndex,
    VoteAll,
    VoteAny,
    VoteUniform,
    VoteBallot,
    MatchAny,
    MatchAll,
    Reduce(Bin),
    Sync,
}

/// A special register.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Special {
    Tid(usize),
    Ntid(usize),
    Ctaid(usize),
    Nctaid(usize),
    Lane,
    Warp,
    Warps,
    Zero,
    One,
    LaneMaskEq,
    LaneMaskLt,
    LaneMaskLe,
    LaneMaskGt,
    LaneMaskGe,
    DynamicBase,
    DynamicShared,
    TotalShared,
}

/// A decoded function.
#[derive(Default)]
pub struct Code {
    /// Its name.
    pub name: String,
    /// The instructions.
    pub ins: Vec<Ins>,
    /// The line of each instruction.
    pub lines: Vec<u32>,
    /// The register frame as it is when the function starts.
    pub template: Vec<u64>,
    /// The slots of special registers.
    pub specials: Vec<(u32, Special)>,
    /// Bytes of local memory.
    pub local: usize,
    /// Bytes of parameter memory: results, parameters, then the variables of calls.
    pub params: usize,
    /// Bytes of the kernel's own parameters.
    pub formal: usize,
    /// Offset and size of each result.
    pub returns: Vec<(usize, usize)>,
    /// Offset and size of each parameter.
    pub arguments: Vec<(usize, usize)>,
    /// Bytes of static shared memory.
    pub shared: usize,
    /// `.maxntid`.
    pub max_threads: Option<u32>,
    /// Whether it is a kernel.
    pub entry: bool,
    /// Tables that instructions index.
    pub mems: Vec<Mem>,
    /// Atomics.
    pub atoms: Vec<Atom>,
    /// Conversions.
    pub cvts: Vec<Cvt>,
    /// Calls.
    pub calls: Vec<Call>,
    /// Barriers.
    pub bars: Vec<Bar>,
    /// Warp-wide exchanges.
    pub warps: Vec<Warp>,
}

/// A decoded module.
pub struct Program {
    /// The functions, in the order of the source.
    pub functions: Vec<Code>,
    /// How many load hints the functions use in all.
    pub hints: u32,
    /// PTX version times ten.
    pub version: u32,
}

/// Generic addresses of shared memory start here.
pub const SHARED_WINDOW: u64 = 0x0100_0000_0000_0000;
/// Generic addresses of local memory start here.
pub const LOCAL_WINDOW: u64 = 0x0200_0000_0000_0000;
/// Generic addresses of kernel parameters start here.
pub const PARAM_WINDOW: u64 = 0x0300_0000_0000_0000;
/// The size of each window.
pub const WINDOW: u64 = 0x0000_0001_0000_0000;
