//! The choice of a decoded operation for each opcode.

use super::code::{CarryForm, NONE, Op, SHARED_WINDOW};
use super::convert::Cvt;
use super::decode::Decoder;
use super::float::{self, Round};
use super::integer;
use super::types::{Operand, Raw, Space, Type};
use crate::reason::{Result, refuse};

impl Decoder<'_> {
    /// Decodes one instruction.
    pub(super) fn instruction(&mut self, raw: &Raw) -> Result {
        let mods: Vec<&str> = raw.opcode[1..].iter().map(String::as_str).collect();
        let ops = &raw.operands;
        let ty = mods.iter().rev().find_map(|m| Type::parse(m)).unwrap_or(Type::B(4));
        if ops.len() < least_operands(&raw.opcode[0]) {
            refuse!(InvalidPtx, "line {}: `{}` has too few operands", raw.line, raw.opcode.join("."));
        }
        match raw.opcode[0].as_str() {
            "mov" => self.mov(raw, ty),
            "ld" | "ldu" => self.memory(&mods, ops, ty, false),
            "st" => self.memory(&mods, ops, ty, true),
            "atom" | "red" => self.atomic(raw, &mods, ty),
            "cvta" => self.cvta(&mods, ops),
            "cvt" => self.cvt(raw, &mods),
            "setp" => self.setp(raw, &mods, ty),
            "set" => self.set(raw, &mods),
            "selp" => {
                let (d, a, b) =
                    (self.destination(&ops[0])?, self.source(&ops[1], ty)?, self.source(&ops[2], ty)?);
                let p = self.source(&ops[3], Type::Pred)?;
                self.emit(Op::Select { d, a, b, p });
                Ok(())
            }
            "slct" => self.slct(ops, &mods),
            "bra" => {
                let target = self.label(&ops[0])?;
                self.emit(Op::Branch(target));
                Ok(())
            }
            "brx" => {
                let index = self.source(&ops[0], Type::U(4))?;
                let Operand::Symbol(list) = &ops[1] else { return self.unknown(raw) };
                let Some(labels) = self.function.targets.get(list) else { return self.unknown(raw) };
                let targets = labels.iter().map(|l| self.label_named(l)).collect::<Result<Box<[u32]>>>()?;
                self.emit(Op::BranchTable { index, targets });
                Ok(())
            }
            "call" => self.call(raw),
            "ret" => self.plain(Op::Return),
            "exit" => self.plain(Op::Exit),
            "trap" | "brkpt" => self.plain(Op::Trap),
            "membar" | "fence" | "prefetch" | "prefetchu" | "nanosleep" | "discard" | "pmevent" => {
                self.plain(Op::Nop)
            }
            "bar" | "barrier" => self.barrier(raw, &mods),
            "shfl" | "vote" | "match" | "redux" => self.warp(raw, &mods, ty),
            "activemask" => {
                let d = self.destination(&ops[0])?;
                self.plain(Op::ActiveMask { d })
            }
            "isspacep" => {
                let (d, a) = (self.destination(&ops[0])?, self.source(&ops[1], Type::U(8))?);
                let space = mods.iter().find_map(|m| Space::parse(m)).unwrap_or(Space::Global);
                self.plain(Op::IsSpace { d, a, space })
            }
            "bfi" => {
                let d = self.destination(&ops[0])?;
                let from = [
                    self.source(&ops[1], ty)?,
                    self.source(&ops[2], ty)?,
                    self.source(&ops[3], Type::U(4))?,
                    self.source(&ops[4], Type::U(4))?,
                ];
                self.plain(Op::Bfi { d, from, bits: 8 * ty.size() as u64 })
            }
            "lop3" => {
                let (d, a, b) =
                    (self.destination(&ops[0])?, self.source(&ops[1], ty)?, self.source(&ops[2], ty)?);
                let c = self.source(&ops[3], ty)?;
                let Operand::Int(table) = ops[4] else { return self.unknown(raw) };
                self.plain(Op::Lop3 { d, a, b, c, table: table as u8 })
            }
            "addc" | "subc" | "madc" => self.carry_chain(raw, &mods, ty),
            _ if mods.contains(&"cc") => self.carry_chain(raw, &mods, ty),
            _ => self.arithmetic(raw, &mods, ty),
        }
    }

    pub(super) fn plain(&mut self, op: Op) -> Result {
        self.emit(op);
        Ok(())
    }

    /// Everything that is a function of one, two or three registers.
    fn arithmetic(&mut self, raw: &Raw, mods: &[&str], ty: Type) -> Result {
        let name = raw.opcode[0].as_str();
        let ops = &raw.operands;
        let has = |m: &str| mods.contains(&m);
        let round = mods.iter().find_map(|m| Round::parse(m)).unwrap_or(Round::Nearest);
        let (ftz, approx) = (has("ftz"), has("approx") || has("full"));
        let mode = match name {
            "shf" if has("l") && has("wrap") => "l.wrap",
            "shf" if has("l") => "l.clamp",
            "shf" if has("wrap") => "r.wrap",
            "shf" => "r.clamp",
            _ => mods.iter().copied().find(|m| matches!(*m, "lo" | "hi" | "wide" | "sat")).unwrap_or(""),
        };
        if has("relu") || (name == "prmt" && mods.len() > 1) {
            return self.unknown(raw);
        }
        let d = self.destination(&ops[0])?;
        let float = ty.float() || matches!(ty, Type::F16x2 | Type::Bf16x2);
        match ops.len() {
            2 => {
                let a = self.source(&ops[1], ty)?;
                let full = if name == "testp" { format!("testp.{}", mods[0]) } else { name.to_string() };
                let f = if float {
                    float::unary(&full, ty, round, ftz, approx)
                } else {
                    integer::unary(name, ty)
                };
                match f {
                    Some(f) if mods.contains(&"shiftamt") => {
                        self.emit(Op::Un { f, d, a });
                        let bits = self.constant(8 * ty.size() as u64 - 1);
                        self.emit(Op::Bin {
                            f: |a, b| if a == u64::from(u32::MAX) { a } else { b - a },
                            d,
                            a: d,
                            b: bits,
                        });
                    }
                    Some(f) => self.emit(Op::Un { f, d, a }),
                    None => return self.unknown(raw),
                }
            }
            3 => {
                let a = self.source(&ops[1], ty)?;
                let b_type = if matches!(name, "shl" | "shr") { Type::U(4) } else { ty };
                let b = self.source(&ops[2], b_type)?;
                let f = if float {
                    float::binary(name, ty, round, ftz, approx, has("NaN"))
                } else {
                    integer::binary(name, mode, ty)
                };
                let Some(f) = f else { return self.unknown(raw) };
                self.emit(Op::Bin { f, d, a, b });
            }
            4 => {
                let wide = mode == "wide";
                let c_type = match ty {
                    Type::U(n) if wide => Type::U(2 * n),
                    Type::S(n) if wide => Type::S(2 * n),
                    _ if matches!(name, "bfe" | "shf" | "prmt") => Type::U(4),
                    _ => ty,
                };
                let (a, c) = (self.source(&ops[1], ty)?, self.source(&ops[3], c_type)?);
                let b = self.source(&ops[2], if name == "bfe" { Type::U(4) } else { ty })?;
                let f = if float && matches!(name, "fma" | "mad") {
                    float::fma(ty, round, ftz)
                } else {
                    integer::ternary(name, mode, ty)
                };
                let Some(f) = f else { return self.unknown(raw) };
                self.emit(Op::Tri { f, d, a, b, c });
            }
            _ => return self.unknown(raw),
        }
        if float && has("sat") {
            let f = match ty {
                Type::F(4) => |a: u64| u64::from(clamp01(f32::from_bits(a as u32)).to_bits()),
                _ => return self.unknown(raw),
            };
            self.emit(Op::Un { f, d, a: d });
        }
        Ok(())
    }

    fn mov(&mut self, raw: &Raw, ty: Type) -> Result {
        let ops = &raw.operands;
        match (&ops[0], &ops[1]) {
            (Operand::Vector(parts), value) => {
                let a = self.source(value, ty)?;
                let bits = 8 * ty.size() / parts.len();
                let whole = self.temp();
                self.emit(Op::Mov { d: whole, a });
                for (i, part) in parts.iter().enumerate() {
                    if matches!(part, Operand::Sink) {
                        continue;
                    }
                    let d = self.destination(part)?;
                    let shift = self.constant((i * bits) as u64);
                    let f: integer::Bin = match bits {
                        8 => |a, b| a >> b & 0xff,
                        16 => |a, b| a >> b & 0xffff,
                        _ => |a, b| a >> b & 0xffff_ffff,
                    };
                    self.emit(Op::Bin { f, d, a: whole, b: shift });
                }
            }
            (_, Operand::Vector(parts)) => {
                let bits = 8 * ty.size() / parts.len();
                let part_type = Type::B((bits / 8) as u8);
                let mut whole = self.constant(0);
                for (i, part) in parts.iter().enumerate() {
                    let a = self.source(part, part_type)?;
                    let (shift, d) = (self.constant((i * bits) as u64), self.temp());
                    self.emit(Op::Tri {
                        f: |whole, a, shift| whole | a << shift,
                        d,
                        a: whole,
                        b: a,
                        c: shift,
                    });
                    whole = d;
                }
                let d = self.destination(&ops[0])?;
                self.emit(Op::Mov { d, a: whole });
            }
            _ => {
                let (d, a) = (self.destination(&ops[0])?, self.source(&ops[1], ty)?);
                self.emit(Op::Mov { d, a });
            }
        }
        Ok(())
    }

    /// Global and constant addresses are generic already; shared, local and param ones are moved into
    /// and out of their windows.
    fn cvta(&mut self, mods: &[&str], ops: &[Operand]) -> Result {
        use super::code::{LOCAL_WINDOW, PARAM_WINDOW};
        let (d, a) = (self.destination(&ops[0])?, self.source(&ops[1], Type::U(8))?);
        let space = mods.iter().find_map(|m| Space::parse(m)).unwrap_or(Space::Generic);
        let f: integer::Un = match (space, mods.contains(&"to")) {
            (Space::Shared, true) => |a| a.wrapping_sub(SHARED_WINDOW),
            (Space::Shared, false) => |a| a.wrapping_add(SHARED_WINDOW),
            (Space::Local, true) => |a| a.wrapping_sub(LOCAL_WINDOW),
            (Space::Local, false) => |a| a.wrapping_add(LOCAL_WINDOW),
            (Space::Param, true) => |a| a.wrapping_sub(PARAM_WINDOW),
            (Space::Param, false) => |a| a.wrapping_add(PARAM_WINDOW),
            _ => |a| a,
        };
        self.plain(Op::Un { f, d, a })
    }

    fn cvt(&mut self, raw: &Raw, mods: &[&str]) -> Result {
        let ops = &raw.operands;
        let types: Vec<Type> = mods.iter().filter_map(|m| Type::parse(m)).collect();
        let [to, from] = types[..] else { return self.unknown(raw) };
        if ops.len() != 2 || matches!(to, Type::F16x2 | Type::Bf16x2) {
            return self.unknown(raw);
        }
        let (d, a) = (self.destination(&ops[0])?, self.source(&ops[1], from)?);
        let fast: Option<integer::Un> = match (to, from, mods.len()) {
            (Type::F(8), Type::F(4), 2) => Some(|a| f64::from(f32::from_bits(a as u32)).to_bits()),
            (Type::S(8), Type::S(4), 2) => Some(|a| a as i32 as i64 as u64),
            (Type::U(8), Type::U(4), 2) | (Type::U(4), Type::U(8), 2) => Some(|a| a & 0xffff_ffff),
            _ => None,
        };
        if let Some(f) = fast {
            return self.plain(Op::Un { f, d, a });
        }
        let cvt = Cvt {
            from,
            to,
            round: mods.iter().find_map(|m| Round::parse(m)),
            integral: mods.iter().any(|m| matches!(*m, "rni" | "rzi" | "rmi" | "rpi")),
            ftz: mods.contains(&"ftz"),
            sat: mods.contains(&"sat"),
            mask: Self::mask_of(&ops[0]),
        };
        self.code.cvts.push(cvt);
        let cvt = self.code.cvts.len() as u32 - 1;
        self.plain(Op::Cvt { d, a, cvt })
    }

    fn comparison(&self, raw: &Raw, mods: &[&str], ty: Type) -> Result<integer::Bin> {
        let ftz = mods.contains(&"ftz");
        let found = mods
            .iter()
            .find_map(|m| if ty.float() { float::compare(m, ty, ftz) } else { integer::compare(m, ty) });
        match found {
            Some(f) => Ok(f),
            None => self.unknown(raw),
        }
    }

    fn setp(&mut self, raw: &Raw, mods: &[&str], ty: Type) -> Result {
        let ops = &raw.operands;
        let f = self.comparison(raw, mods, ty)?;
        let (a, b) = (self.source(&ops[1], ty)?, self.source(&ops[2], ty)?);
        let combine = mods.iter().find_map(|m| integer::binary(m, "", Type::Pred));
        if let (Operand::Reg(d, _), None) = (&ops[0], combine) {
            return self.plain(Op::Bin { f, d: *d, a, b });
        }
        let (first, second) = match &ops[0] {
            Operand::Pair(p, q) => (self.destination(p)?, self.destination(q)?),
            other => (self.destination(other)?, NONE),
        };
        let (yes, no) = (self.temp(), self.temp());
        self.emit(Op::Bin { f, d: yes, a, b });
        self.emit(Op::Un { f: |a| a ^ 1, d: no, a: yes });
        if let Some(combine) = combine {
            let c = self.source(&ops[3], Type::Pred)?;
            self.emit(Op::Bin { f: combine, d: yes, a: yes, b: c });
            self.emit(Op::Bin { f: combine, d: no, a: no, b: c });
        }
        self.emit(Op::Mov { d: first, a: yes });
        if second != NONE {
            self.emit(Op::Mov { d: second, a: no });
        }
        Ok(())
    }

    fn set(&mut self, raw: &Raw, mods: &[&str]) -> Result {
        let ops = &raw.operands;
        let types: Vec<Type> = mods.iter().filter_map(|m| Type::parse(m)).collect();
        let [to, from] = types[..] else { return self.unknown(raw) };
        if ops.len() != 3 {
            return self.unknown(raw);
        }
        let f = self.comparison(raw, mods, from)?;
        let (d, a, b) =
            (self.destination(&ops[0])?, self.source(&ops[1], from)?, self.source(&ops[2], from)?);
        self.emit(Op::Bin { f, d, a, b });
        let f: integer::Un = match to {
            Type::F(4) => |a| if a == 1 { u64::from(1f32.to_bits()) } else { 0 },
            Type::F(2) => |a| if a == 1 { 0x3c00 } else { 0 },
            _ => |a| if a == 1 { 0xffff_ffff } else { 0 },
        };
        self.plain(Op::Un { f, d, a: d })
    }

    fn slct(&mut self, ops: &[Operand], mods: &[&str]) -> Result {
        let types: Vec<Type> = mods.iter().filter_map(|m| Type::parse(m)).collect();
        let [ty, by] = types[..] else { refuse!(InvalidPtx, "line {}: bad slct", self.line) };
        let (d, a, b) = (self.destination(&ops[0])?, self.source(&ops[1], ty)?, self.source(&ops[2], ty)?);
        let (c, p) = (self.source(&ops[3], by)?, self.temp());
        let f: integer::Un = match by {
            Type::F(_) => |c| u64::from(f32::from_bits(c as u32) >= 0.0),
            _ => |c| u64::from(c as i32 >= 0),
        };
        self.emit(Op::Un { f, d: p, a: c });
        self.plain(Op::Select { d, a, b, p })
    }

    /// `add.cc`, `addc`, `sub.cc`, `subc`, `mad.cc`, `madc`.
    fn carry_chain(&mut self, raw: &Raw, mods: &[&str], ty: Type) -> Result {
        let ops = &raw.operands;
        if self.carry == NONE {
            self.carry = self.temp();
        }
        let carry = self.carry;
        let name = raw.opcode[0].as_str();
        let form = CarryForm {
            subtract: name.starts_with("sub"),
            take: name.ends_with('c'),
            leave: mods.contains(&"cc"),
            bits: 8 * ty.size() as u32,
        };
        let d = self.destination(&ops[0])?;
        let (mut a, mut b) = (self.source(&ops[1], ty)?, self.source(&ops[2], ty)?);
        if name.starts_with("mad") {
            let mode = if mods.contains(&"hi") { "hi" } else { "lo" };
            let Some(f) = integer::binary("mul", mode, ty) else { return self.unknown(raw) };
            let product = self.temp();
            self.emit(Op::Bin { f, d: product, a, b });
            a = product;
            b = self.source(&ops[3], ty)?;
        }
        self.plain(Op::Carry { d, a, b, carry, form })
    }
}

fn clamp01(v: f32) -> f32 {
    if v.is_nan() { 0.0 } else { v.clamp(0.0, 1.0) }
}

/// How many operands an instruction has at least.
fn least_operands(opcode: &str) -> usize {
    match opcode {
        "bfi" | "lop3" => 5,
        "selp" | "slct" | "shfl" | "madc" => 4,
        "setp" | "set" | "atom" | "addc" | "subc" => 3,
        "bra" | "activemask" => 1,
        "bar" | "barrier" | "call" | "ret" | "exit" | "trap" | "brkpt" | "membar" | "fence" | "prefetch"
        | "prefetchu" | "nanosleep" | "discard" | "pmevent" => 0,
        _ => 2,
    }
}
