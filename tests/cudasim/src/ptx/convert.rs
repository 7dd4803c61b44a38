//! The `cvt` instruction between all scalar types.

use half::{bf16, f16};

use super::float::{Round, direct32, flush};
use super::types::Type;

/// A conversion: types and modifiers, and the width of the destination register.
#[derive(Clone, Copy, Debug)]
pub struct Cvt {
    /// The source type.
    pub from: Type,
    /// The destination type.
    pub to: Type,
    /// The rounding, if given.
    pub round: Option<Round>,
    /// Round a float to an integral float (`rni` and the like).
    pub integral: bool,
    /// Flush subnormals.
    pub ftz: bool,
    /// Clamp to the range of the destination.
    pub sat: bool,
    /// The mask of the destination register, into which signed results extend.
    pub mask: u64,
}

/// A value on its way.
enum Value {
    Int(i128),
    Float(f64),
}

impl Cvt {
    /// The converted bits.
    pub fn apply(&self, bits: u64) -> u64 {
        let value = self.read(bits);
        match (value, self.to.float()) {
            (Value::Int(v), false) => self.write_int(v),
            (Value::Float(v), false) => self.float_to_int(v),
            (Value::Int(v), true) => self.int_to_float(v),
            (Value::Float(v), true) => self.float_to_float(v, bits),
        }
    }

    fn read(&self, bits: u64) -> Value {
        match self.from {
            Type::S(1) => Value::Int(i128::from(bits as i8)),
            Type::S(2) => Value::Int(i128::from(bits as i16)),
            Type::S(4) => Value::Int(i128::from(bits as i32)),
            Type::S(_) => Value::Int(i128::from(bits as i64)),
            Type::F(2) => Value::Float(f16::from_bits(bits as u16).to_f64()),
            Type::F(4) => {
                let v = f32::from_bits(bits as u32);
                Value::Float(f64::from(if self.ftz { flush(v) } else { v }))
            }
            Type::F(_) => Value::Float(f64::from_bits(bits)),
            Type::Bf16 => Value::Float(bf16::from_bits(bits as u16).to_f64()),
            other => Value::Int(i128::from(bits & other.mask())),
        }
    }

    fn write_int(&self, v: i128) -> u64 {
        let (low, high) = int_range(self.to);
        let v = if self.sat { v.clamp(low, high) } else { v };
        let bits = v as u64 & self.to.mask();
        if self.to.signed() { sign_extend(bits, self.to) & self.mask } else { bits }
    }

    fn float_to_int(&self, v: f64) -> u64 {
        if v.is_nan() {
            return if self.to.size() == 8 && self.from == Type::F(8) { 1 << 63 } else { 0 };
        }
        let v = integral(v, self.round.unwrap_or(Round::Zero));
        let (low, high) = int_range(self.to);
        // `as` saturates, and the range of every type fits in i128.
        let v = (v as i128).clamp(low, high);
        let bits = v as u64 & self.to.mask();
        if self.to.signed() { sign_extend(bits, self.to) & self.mask } else { bits }
    }

    fn int_to_float(&self, v: i128) -> u64 {
        let round = self.round.unwrap_or(Round::Nearest);
        match self.to {
            Type::F(8) => directed(v, v as f64, |x| x as i128, f64::next_down, f64::next_up, round).to_bits(),
            Type::F(4) => {
                let near = directed(v, v as f32, |x| x as i128, f32::next_down, f32::next_up, round);
                u64::from(near.to_bits())
            }
            Type::F(2) => u64::from(f16::from_f64(v as f64).to_bits()),
            _ => u64::from(bf16::from_f64(v as f64).to_bits()),
        }
    }

    fn float_to_float(&self, v: f64, bits: u64) -> u64 {
        let mut v = v;
        if self.integral {
            v = integral(v, self.round.unwrap_or(Round::Nearest)).copysign(v);
        }
        if self.sat {
            v = if v.is_nan() { 0.0 } else { v.clamp(0.0, 1.0) };
        }
        let round = self.round.unwrap_or(Round::Nearest);
        match self.to {
            // The same type and nothing to do: keep a NaN's payload.
            to if to == self.from && !self.integral && !self.sat && !self.ftz => bits,
            Type::F(8) => v.to_bits(),
            Type::F(4) => {
                let v = direct32(v, 0.0, if self.integral { Round::Nearest } else { round });
                u64::from(if self.ftz { flush(v) } else { v }.to_bits())
            }
            Type::F(2) => u64::from(narrow16(v, round).to_bits()),
            _ => u64::from(narrow_bf16(v, round).to_bits()),
        }
    }
}

/// An integer as the nearest float, moved one step where the rounding asks for it.
fn directed<F: Copy>(
    v: i128,
    near: F,
    exact: impl Fn(F) -> i128,
    down: impl Fn(F) -> F,
    up: impl Fn(F) -> F,
    round: Round,
) -> F {
    let back = exact(near);
    let towards_zero = round == Round::Zero;
    if back > v && (round == Round::Down || towards_zero && v > 0) {
        down(near)
    } else if back < v && (round == Round::Up || towards_zero && v < 0) {
        up(near)
    } else {
        near
    }
}

fn integral(v: f64, round: Round) -> f64 {
    match round {
        Round::Nearest => v.round_ties_even(),
        Round::Zero => v.trunc(),
        Round::Down => v.floor(),
        Round::Up => v.ceil(),
    }
}

fn narrow16(v: f64, round: Round) -> f16 {
    let near = f16::from_f64(v);
    let step = |by: i32| f16::from_bits((i32::from(near.to_bits()) + by) as u16);
    let back = near.to_f64();
    let outwards = back.abs() > v.abs();
    match round {
        Round::Zero if outwards => step(-1),
        Round::Down if back > v => step(if v > 0.0 { -1 } else { 1 }),
        Round::Up if back < v => step(if v > 0.0 { 1 } else { -1 }),
        _ => near,
    }
}

fn narrow_bf16(v: f64, round: Round) -> bf16 {
    let near = bf16::from_f64(v);
    if round == Round::Zero && near.to_f64().abs() > v.abs() {
        return bf16::from_bits(near.to_bits() - 1);
    }
    near
}

fn int_range(ty: Type) -> (i128, i128) {
    let bits = 8 * ty.size();
    if ty.signed() { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

/// The bits of a signed type extended to 64 bits.
pub fn sign_extend(bits: u64, ty: Type) -> u64 {
    let shift = 64 - 8 * ty.size() as u32;
    ((bits << shift) as i64 >> shift) as u64
}
