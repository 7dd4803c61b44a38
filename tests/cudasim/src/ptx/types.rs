//! PTX types and the parsed module.

use std::collections::HashMap;

/// A scalar type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// A predicate.
    Pred,
    /// Untyped bits, with their size in bytes.
    B(u8),
    /// An unsigned integer.
    U(u8),
    /// A signed integer.
    S(u8),
    /// f16, f32 or f64.
    F(u8),
    /// bf16.
    Bf16,
    /// Two f16 in 32 bits.
    F16x2,
    /// Two bf16 in 32 bits.
    Bf16x2,
}

impl Type {
    /// Reads a type name without its dot.
    pub fn parse(name: &str) -> Option<Type> {
        let sized = |make: fn(u8) -> Type, bits: &str| match bits {
            "8" => Some(make(1)),
            "16" => Some(make(2)),
            "32" => Some(make(4)),
            "64" => Some(make(8)),
            _ => None,
        };
        match name {
            "pred" => Some(Type::Pred),
            "f16x2" => Some(Type::F16x2),
            "bf16" => Some(Type::Bf16),
            "bf16x2" => Some(Type::Bf16x2),
            _ if name.len() < 2 || !name.is_ascii() => None,
            _ => match name.split_at(1) {
                ("b", bits) => sized(Type::B, bits),
                ("u", bits) => sized(Type::U, bits),
                ("s", bits) => sized(Type::S, bits),
                ("f", bits) => sized(Type::F, bits).filter(|t| t.size() > 1),
                _ => None,
            },
        }
    }

    /// Bytes in memory.
    pub fn size(self) -> usize {
        match self {
            Type::Pred => 1,
            Type::B(n) | Type::U(n) | Type::S(n) | Type::F(n) => n as usize,
            Type::Bf16 => 2,
            Type::F16x2 | Type::Bf16x2 => 4,
        }
    }

    /// The bits that a value of this type may set in a register.
    pub fn mask(self) -> u64 {
        match self {
            Type::Pred => 1,
            _ if self.size() == 8 => u64::MAX,
            _ => (1 << (8 * self.size())) - 1,
        }
    }

    /// Whether it is a signed integer.
    pub fn signed(self) -> bool {
        matches!(self, Type::S(_))
    }

    /// Whether it is a floating-point scalar.
    pub fn float(self) -> bool {
        matches!(self, Type::F(_) | Type::Bf16)
    }
}

/// A state space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Any of the others, told by the address.
    Generic,
    /// Device memory.
    Global,
    /// Constant memory; lives among the global allocations.
    Const,
    /// The block's shared memory.
    Shared,
    /// The thread's own memory.
    Local,
    /// Parameters of kernels and functions.
    Param,
}

impl Space {
    /// Reads a space name without its dot.
    pub fn parse(name: &str) -> Option<Space> {
        match name {
            "global" => Some(Space::Global),
            "const" => Some(Space::Const),
            "shared" | "shared::cta" => Some(Space::Shared),
            "local" => Some(Space::Local),
            "param" | "param::entry" | "param::func" => Some(Space::Param),
            _ => None,
        }
    }
}

/// One piece of a variable's initialiser.
#[derive(Clone, Debug)]
pub enum Init {
    /// A literal, already in the bits of the element type.
    Bits(u64),
    /// The address of another variable plus an offset.
    Address(String, i64),
}

/// A variable or parameter.
#[derive(Clone, Debug)]
pub struct Var {
    /// Its name.
    pub name: String,
    /// Where it lives.
    pub space: Space,
    /// Its alignment in bytes.
    pub align: usize,
    /// The element type.
    pub element: Type,
    /// Bytes in all; 0 for `extern .shared` arrays of open size.
    pub size: usize,
    /// Its initial elements.
    pub init: Vec<Init>,
}

/// An operand of an instruction.
#[derive(Clone, Debug)]
pub enum Operand {
    /// A register: its slot and declared type.
    Reg(u32, Type),
    /// A special register such as `%tid.x`.
    Special(String),
    /// An integer literal.
    Int(u64),
    /// An f32 literal.
    F32(u32),
    /// An f64 literal.
    F64(u64),
    /// A variable, label or function.
    Symbol(String),
    /// `[base + offset]`; the base is a register, a symbol or a literal.
    Address(Box<Operand>, i64),
    /// `{a, b, ..}`.
    Vector(Vec<Operand>),
    /// `(a, b, ..)` of a call.
    List(Vec<Operand>),
    /// `p|q`.
    Pair(Box<Operand>, Box<Operand>),
    /// `!p`.
    Not(Box<Operand>),
    /// `_`.
    Sink,
}

/// An instruction as written.
#[derive(Clone, Debug)]
pub struct Raw {
    /// The guard's slot, and whether it is negated.
    pub guard: Option<(u32, bool)>,
    /// The opcode cut at its dots.
    pub opcode: Vec<String>,
    /// The operands.
    pub operands: Vec<Operand>,
    /// The line in the source.
    pub line: u32,
}

/// A kernel or a device function.
#[derive(Clone, Debug, Default)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Whether it is a kernel.
    pub entry: bool,
    /// What it returns.
    pub returns: Vec<Var>,
    /// Its parameters.
    pub params: Vec<Var>,
    /// The instructions.
    pub body: Vec<Raw>,
    /// Label to index in `body`.
    pub labels: HashMap<String, usize>,
    /// Local, shared and call-parameter variables declared inside.
    pub vars: Vec<Var>,
    /// Branch targets of `brx.idx`, by label.
    pub targets: HashMap<String, Vec<String>>,
    /// How many register slots the names took.
    pub registers: u32,
    /// `.maxntid` or `.reqntid`, as threads per block.
    pub max_threads: Option<u32>,
    /// Whether it has a body here.
    pub defined: bool,
}

/// A parsed module.
#[derive(Debug, Default)]
pub struct Source {
    /// PTX version times ten.
    pub version: u32,
    /// The target's compute capability times ten.
    pub target: u32,
    /// Module-scope variables.
    pub vars: Vec<Var>,
    /// Kernels and functions.
    pub functions: Vec<Function>,
}
