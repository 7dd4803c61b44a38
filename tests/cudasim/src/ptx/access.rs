//! The choice of decoded loads, stores, atomics, calls, barriers and warp exchanges.

use super::code::{Atom, AtomOp, Bar, BarOp, Call, Callee, Mem, NONE, Op, Warp, WarpOp};
use super::decode::Decoder;
use super::float::{self, Round};
use super::integer;
use super::types::{Operand, Raw, Space, Type};
use crate::reason::{Result, refuse};

impl Decoder<'_> {
    fn mem(&mut self, mods: &[&str], address: &Operand, ty: Type) -> Result<Mem> {
        let space = mods.iter().find_map(|m| Space::parse(m)).unwrap_or(Space::Generic);
        let (base, offset) = self.address(address)?;
        *self.hints += 1;
        let hint = *self.hints - 1;
        Ok(Mem { space, ty, slots: [NONE; 4], masks: [u64::MAX; 4], count: 1, base, offset, hint })
    }

    /// `ld` and `st`, scalar or vector.
    pub(super) fn memory(&mut self, mods: &[&str], ops: &[Operand], ty: Type, store: bool) -> Result {
        if ops.len() != 2 {
            refuse!(InvalidPtx, "line {}: a load or store needs two operands", self.line);
        }
        let (value, address) = if store { (&ops[1], &ops[0]) } else { (&ops[0], &ops[1]) };
        let mut mem = self.mem(mods, address, ty)?;
        let parts = match value {
            Operand::Vector(parts) => &parts[..],
            other => std::slice::from_ref(other),
        };
        if parts.len() > 4 {
            refuse!(InvalidPtx, "line {}: vectors of more than four elements are not supported", self.line);
        }
        mem.count = parts.len() as u8;
        for (i, part) in parts.iter().enumerate() {
            mem.slots[i] = if store { self.source(part, ty)? } else { self.destination(part)? };
            mem.masks[i] = Self::mask_of(part);
        }
        self.code.mems.push(mem);
        let index = self.code.mems.len() as u32 - 1;
        self.plain(if store { Op::Store(index) } else { Op::Load(index) })
    }

    /// `atom` and `red`.
    pub(super) fn atomic(&mut self, raw: &Raw, mods: &[&str], ty: Type) -> Result {
        let reduce = raw.opcode[0] == "red";
        let ops = &raw.operands[usize::from(!reduce)..];
        let mut mem = self.mem(mods, &ops[0], ty)?;
        if !reduce {
            mem.slots[0] = self.destination(&raw.operands[0])?;
        }
        let named = |op: &str| {
            if ty.float() {
                float::binary(op, ty, Round::Nearest, false, false, false)
            } else {
                integer::binary(op, "", ty)
            }
        };
        let op = mods.iter().find_map(|m| match *m {
            "exch" => Some(AtomOp::Exchange),
            "cas" => Some(AtomOp::CompareAndSwap),
            "inc" => Some(AtomOp::Increment),
            "dec" => Some(AtomOp::Decrement),
            "add" | "min" | "max" | "and" | "or" | "xor" => named(m).map(AtomOp::Apply),
            _ => None,
        });
        let Some(op) = op else { return self.unknown(raw) };
        let b = self.source(&ops[1], ty)?;
        let c = if ops.len() > 2 { self.source(&ops[2], ty)? } else { NONE };
        if matches!(op, AtomOp::CompareAndSwap) && c == NONE {
            return self.unknown(raw);
        }
        self.code.atoms.push(Atom { mem, op, b, c });
        let index = self.code.atoms.len() as u32 - 1;
        self.plain(Op::Atom(index))
    }

    /// `call (returns), name, (arguments)`.
    pub(super) fn call(&mut self, raw: &Raw) -> Result {
        let mut ops = raw.operands.iter().peekable();
        let list = |ops: &mut std::iter::Peekable<std::slice::Iter<'_, Operand>>| -> Result<Vec<_>> {
            match ops.peek() {
                Some(Operand::List(items)) => {
                    ops.next();
                    items.iter().map(|item| self.param(item)).collect()
                }
                _ => Ok(Vec::new()),
            }
        };
        let returns = list(&mut ops)?;
        let Some(Operand::Symbol(name)) = ops.next() else {
            refuse!(InvalidPtx, "line {}: indirect calls are not supported", raw.line);
        };
        let args = list(&mut ops)?;
        let callee = match self.source.functions.iter().position(|f| f.name == *name) {
            Some(index) if self.source.functions[index].defined => {
                let callee = &self.source.functions[index];
                if callee.params.len() != args.len() || callee.returns.len() != returns.len() {
                    refuse!(
                        InvalidPtx,
                        "line {}: the call of `{name}` does not match its signature",
                        raw.line
                    );
                }
                Callee::Function(index)
            }
            Some(_) if name == "vprintf" => Callee::Printf,
            Some(_) if name == "__assertfail" => Callee::AssertFail,
            _ => refuse!(InvalidPtx, "line {}: function `{name}` has no body", raw.line),
        };
        self.code.calls.push(Call { callee, args, returns });
        let index = self.code.calls.len() as u32 - 1;
        self.plain(Op::Call(index))
    }

    /// `bar.sync`, `bar.red`, `barrier.*` and `bar.warp.sync`.
    pub(super) fn barrier(&mut self, raw: &Raw, mods: &[&str]) -> Result {
        let ops = &raw.operands;
        if mods.contains(&"warp") {
            let mask = self.source(&ops[0], Type::B(4))?;
            return self.warp_op(Warp {
                op: WarpOp::Sync,
                d: NONE,
                p: NONE,
                a: NONE,
                b: NONE,
                c: NONE,
                mask,
                negate: false,
            });
        }
        let has = |m: &str| mods.contains(&m);
        if has("cluster") || has("arrive") {
            return self.unknown(raw);
        }
        let aligned = raw.opcode[0] == "bar" || has("aligned");
        let mut operands = &ops[..];
        let mut reduce = None;
        if has("red") {
            let op = if has("popc") {
                BarOp::Count
            } else if has("and") {
                BarOp::And
            } else {
                BarOp::Or
            };
            let d = self.destination(&ops[0])?;
            let (last, negate) = match &ops[ops.len() - 1] {
                Operand::Not(inner) => (&**inner, true),
                other => (other, false),
            };
            let p = self.source(last, Type::Pred)?;
            reduce = Some((op, d, p, negate));
            operands = &ops[1..ops.len() - 1];
        }
        let id = match operands.first() {
            Some(operand) => self.source(operand, Type::U(4))?,
            None => self.constant(0),
        };
        let count = match operands.get(1) {
            Some(operand) => self.source(operand, Type::U(4))?,
            None => NONE,
        };
        self.code.bars.push(Bar { id, count, aligned, reduce });
        let index = self.code.bars.len() as u32 - 1;
        self.plain(Op::Barrier(index))
    }

    fn warp_op(&mut self, warp: Warp) -> Result {
        self.code.warps.push(warp);
        let index = self.code.warps.len() as u32 - 1;
        self.plain(Op::Warp(index))
    }

    /// `shfl`, `vote`, `match` and `redux`.
    pub(super) fn warp(&mut self, raw: &Raw, mods: &[&str], ty: Type) -> Result {
        let ops = &raw.operands;
        let has = |m: &str| mods.contains(&m);
        let op = match raw.opcode[0].as_str() {
            "shfl" if has("up") => WarpOp::ShuffleUp,
            "shfl" if has("down") => WarpOp::ShuffleDown,
            "shfl" if has("bfly") => WarpOp::ShuffleXor,
            "shfl" if has("idx") => WarpOp::ShuffleIndex,
            "vote" if has("all") => WarpOp::VoteAll,
            "vote" if has("any") => WarpOp::VoteAny,
            "vote" if has("uni") => WarpOp::VoteUniform,
            "vote" if has("ballot") => WarpOp::VoteBallot,
            "match" if has("any") => WarpOp::MatchAny,
            "match" if has("all") => WarpOp::MatchAll,
            "redux" => {
                let op = mods.iter().find(|m| matches!(**m, "add" | "min" | "max" | "and" | "or" | "xor"));
                match op.and_then(|op| integer::binary(op, "", ty)) {
                    Some(f) => WarpOp::Reduce(f),
                    None => return self.unknown(raw),
                }
            }
            _ => return self.unknown(raw),
        };
        let (d, p) = match &ops[0] {
            Operand::Pair(d, p) => (self.destination(d)?, self.destination(p)?),
            other => (self.destination(other)?, NONE),
        };
        let (value, negate) = match &ops[1] {
            Operand::Not(inner) => (&**inner, true),
            other => (other, false),
        };
        let a_type = if raw.opcode[0] == "vote" { Type::Pred } else { ty };
        let a = self.source(value, a_type)?;
        let shuffle = raw.opcode[0] == "shfl";
        let (b, c) = if shuffle {
            (self.source(&ops[2], Type::U(4))?, self.source(&ops[3], Type::U(4))?)
        } else {
            (NONE, NONE)
        };
        let mask = match ops.get(if shuffle { 4 } else { 2 }) {
            Some(operand) if has("sync") => self.source(operand, Type::B(4))?,
            _ => NONE,
        };
        self.warp_op(Warp { op, d, p, a, b, c, mask, negate })
    }
}
