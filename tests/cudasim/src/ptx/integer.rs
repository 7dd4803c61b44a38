//! Integer and bit instructions as plain functions of register bits.
//!
//! Registers hold their value zero-extended to 64 bits; every function keeps that true.

#![allow(clippy::unnecessary_cast, clippy::manual_bits, clippy::absurd_extreme_comparisons)] // The macro serves every width.

use super::types::Type;

/// A function of one register.
pub type Un = fn(u64) -> u64;
/// A function of two registers.
pub type Bin = fn(u64, u64) -> u64;
/// A function of three registers.
pub type Tri = fn(u64, u64, u64) -> u64;

/// Picks the closure for an integer type: `$T` is the type, `$U` its unsigned twin.
macro_rules! by_int {
    ($ty:expr, |$T:ident, $U:ident| $f:expr) => {
        by_int!(@ $ty, $T, $U, $f, [
            (Type::U(2) | Type::B(2), u16, u16), (Type::S(2), i16, u16),
            (Type::U(4) | Type::B(4), u32, u32), (Type::S(4), i32, u32),
            (Type::U(8) | Type::B(8), u64, u64), (Type::S(8), i64, u64)
        ])
    };
    (@ $ty:expr, $T:ident, $U:ident, $f:expr, [$(($p:pat, $t:ty, $u:ty)),*]) => {
        match $ty {
            $($p => {
                #[allow(dead_code)]
                type $T = $t;
                #[allow(dead_code)]
                type $U = $u;
                Some($f)
            })*
            _ => None,
        }
    };
}

/// One-operand instructions.
pub fn unary(op: &str, ty: Type) -> Option<Un> {
    match op {
        "neg" => by_int!(ty, |T, U| |a| (a as T).wrapping_neg() as U as u64),
        "abs" => match ty {
            Type::S(2) => Some(|a| u64::from((a as i16).unsigned_abs())),
            Type::S(4) => Some(|a| u64::from((a as i32).unsigned_abs())),
            Type::S(8) => Some(|a| (a as i64).unsigned_abs()),
            _ => None,
        },
        "not" if ty == Type::Pred => Some(|a| a ^ 1),
        "not" => by_int!(ty, |T, U| |a| !(a as U) as u64),
        "cnot" => by_int!(ty, |T, U| |a| u64::from(a as U == 0)),
        "popc" => by_int!(ty, |T, U| |a| u64::from((a as U).count_ones())),
        "clz" => by_int!(ty, |T, U| |a| u64::from((a as U).leading_zeros())),
        "brev" => by_int!(ty, |T, U| |a| (a as U).reverse_bits() as u64),
        "bfind" => by_int!(ty, |T, U| |a| find_high::<{ std::mem::size_of::<T>() }>(a, T::MIN as i128 != 0)),
        _ => None,
    }
}

/// Position of the highest bit that differs from the sign, or all ones.
fn find_high<const SIZE: usize>(a: u64, signed: bool) -> u64 {
    let bits = SIZE as u32 * 8;
    let shift = 64 - bits;
    let a = if signed && (a << shift) as i64 <= -1 { !a } else { a } << shift >> shift;
    if a == 0 { u64::from(u32::MAX) } else { u64::from(63 - a.leading_zeros()) }
}

/// Two-operand instructions; `mode` is `lo`, `hi`, `wide`, `sat` or nothing.
pub fn binary(op: &str, mode: &str, ty: Type) -> Option<Bin> {
    if ty == Type::Pred {
        return match op {
            "and" => Some(|a, b| a & b),
            "or" => Some(|a, b| a | b),
            "xor" => Some(|a, b| a ^ b),
            _ => None,
        };
    }
    match (op, mode) {
        ("add", "sat") if ty == Type::S(4) => {
            Some(|a, b| u64::from((a as i32).saturating_add(b as i32) as u32))
        }
        ("sub", "sat") if ty == Type::S(4) => {
            Some(|a, b| u64::from((a as i32).saturating_sub(b as i32) as u32))
        }
        ("add", _) => by_int!(ty, |T, U| |a, b| (a as U).wrapping_add(b as U) as u64),
        ("sub", _) => by_int!(ty, |T, U| |a, b| (a as U).wrapping_sub(b as U) as u64),
        ("mul", "hi") => {
            by_int!(ty, |T, U| |a, b| {
                ((a as T as i128).wrapping_mul(b as T as i128) >> T::BITS) as U as u64
            })
        }
        ("mul", "wide") => match ty {
            Type::U(2) => Some(|a, b| u64::from(a as u16) * u64::from(b as u16)),
            Type::S(2) => Some(|a, b| u64::from((i32::from(a as i16) * i32::from(b as i16)) as u32)),
            Type::U(4) => Some(|a, b| u64::from(a as u32) * u64::from(b as u32)),
            Type::S(4) => Some(|a, b| (i64::from(a as i32) * i64::from(b as i32)) as u64),
            _ => None,
        },
        ("mul", _) => by_int!(ty, |T, U| |a, b| (a as U).wrapping_mul(b as U) as u64),
        ("mul24", _) => match ty {
            Type::U(4) => Some(|a, b| u64::from(((a & 0xff_ffff) * (b & 0xff_ffff)) as u32)),
            Type::S(4) => Some(|a, b| {
                let low = |v: u64| i64::from((v as i32) << 8 >> 8);
                u64::from((low(a) * low(b)) as u32)
            }),
            _ => None,
        },
        // Division by zero is undefined in PTX; hardware gives all ones.
        ("div", _) => {
            by_int!(ty, |T, U| |a, b| if b as T == 0 {
                U::MAX as u64
            } else {
                (a as T).wrapping_div(b as T) as U as u64
            })
        }
        ("rem", _) => {
            by_int!(ty, |T, U| |a, b| if b as T == 0 { a } else { (a as T).wrapping_rem(b as T) as U as u64 })
        }
        ("min", _) => by_int!(ty, |T, U| |a, b| (a as T).min(b as T) as U as u64),
        ("max", _) => by_int!(ty, |T, U| |a, b| (a as T).max(b as T) as U as u64),
        ("and", _) => Some(|a, b| a & b),
        ("or", _) => Some(|a, b| a | b),
        ("xor", _) => Some(|a, b| a ^ b),
        ("shl", _) => {
            by_int!(ty, |T, U| |a, b| {
                let n = b as u32;
                if n >= U::BITS { 0 } else { ((a as U) << n) as u64 }
            })
        }
        ("shr", _) => {
            by_int!(ty, |T, U| |a, b| {
                let n = (b as u32).min(T::BITS);
                if n < T::BITS {
                    ((a as T) >> n) as U as u64
                } else if (a as T) < (0 as T) {
                    U::MAX as u64
                } else {
                    0
                }
            })
        }
        _ => None,
    }
}

/// Three-operand instructions.
pub fn ternary(op: &str, mode: &str, ty: Type) -> Option<Tri> {
    match (op, mode) {
        ("mad", "wide") => match ty {
            Type::U(2) => {
                Some(|a, b, c| u64::from((u32::from(a as u16) * u32::from(b as u16)).wrapping_add(c as u32)))
            }
            Type::S(2) => Some(|a, b, c| {
                u64::from((i32::from(a as i16) * i32::from(b as i16)).wrapping_add(c as i32) as u32)
            }),
            Type::U(4) => Some(|a, b, c| (u64::from(a as u32) * u64::from(b as u32)).wrapping_add(c)),
            Type::S(4) => {
                Some(|a, b, c| (i64::from(a as i32) * i64::from(b as i32)).wrapping_add(c as i64) as u64)
            }
            _ => None,
        },
        ("mad", "hi") => by_int!(ty, |T, U| |a, b, c| {
            (((a as T as i128).wrapping_mul(b as T as i128) >> T::BITS) as U).wrapping_add(c as U) as u64
        }),
        ("mad", _) => by_int!(ty, |T, U| |a, b, c| (a as U).wrapping_mul(b as U).wrapping_add(c as U) as u64),
        ("sad", _) => by_int!(ty, |T, U| |a, b, c| (a as T).abs_diff(b as T).wrapping_add(c as U) as u64),
        ("bfe", _) => match ty {
            Type::U(4) => Some(|a, b, c| extract(a, b, c, 32, false)),
            Type::S(4) => Some(|a, b, c| extract(a, b, c, 32, true) & 0xffff_ffff),
            Type::U(8) => Some(|a, b, c| extract(a, b, c, 64, false)),
            Type::S(8) => Some(|a, b, c| extract(a, b, c, 64, true)),
            _ => None,
        },
        ("shf", "l.clamp") => Some(|a, b, c| u64::from((join(a, b) << c.min(32) >> 32) as u32)),
        ("shf", "l.wrap") => Some(|a, b, c| u64::from((join(a, b) << (c & 31) >> 32) as u32)),
        ("shf", "r.clamp") => Some(|a, b, c| u64::from((join(a, b) >> c.min(32)) as u32)),
        ("shf", "r.wrap") => Some(|a, b, c| u64::from((join(a, b) >> (c & 31)) as u32)),
        ("prmt", _) => Some(permute),
        _ => None,
    }
}

fn join(low: u64, high: u64) -> u64 {
    (low & 0xffff_ffff) | high << 32
}

fn extract(a: u64, position: u64, length: u64, bits: u64, signed: bool) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    let sign_at = (position + length).wrapping_sub(1).min(bits - 1);
    let sign = signed && length > 0 && a >> sign_at & 1 == 1;
    let mut value = 0;
    for i in 0..bits {
        let bit = if i < length && position + i < bits { a >> (position + i) & 1 == 1 } else { sign };
        value |= u64::from(bit) << i;
    }
    value
}

/// `bfi`: `length` bits of `a` put into `b` at `position`.
pub fn insert(a: u64, b: u64, position: u64, length: u64, bits: u64) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    let mut value = b;
    for i in 0..length {
        if position + i >= bits {
            break;
        }
        value = value & !(1 << (position + i)) | (a >> i & 1) << (position + i);
    }
    value
}

fn permute(a: u64, b: u64, selector: u64) -> u64 {
    let bytes = join(a, b);
    (0..4).fold(0, |value, i| {
        let choice = selector >> (4 * i) & 0xf;
        let byte = bytes >> (8 * (choice & 7)) & 0xff;
        let byte = if choice & 8 == 0 {
            byte
        } else if byte & 0x80 == 0 {
            0
        } else {
            0xff
        };
        value | byte << (8 * i)
    })
}

/// `lop3`: the truth table `table` over the bits of `a`, `b`, `c`.
pub fn lop3(a: u64, b: u64, c: u64, table: u8) -> u64 {
    (0..8).filter(|i| table >> i & 1 == 1).fold(0, |value, i| {
        let pick = |v: u64, bit: u32| if i >> bit & 1 == 1 { v } else { !v };
        value | pick(a, 2) & pick(b, 1) & pick(c, 0)
    }) & 0xffff_ffff
}

/// A comparison of integers, as 0 or 1.
pub fn compare(op: &str, ty: Type) -> Option<Bin> {
    if ty == Type::Pred {
        return None;
    }
    match op {
        "eq" => by_int!(ty, |T, U| |a, b| u64::from(a as T == b as T)),
        "ne" => by_int!(ty, |T, U| |a, b| u64::from(a as T != b as T)),
        "lt" => by_int!(ty, |T, U| |a, b| u64::from((a as T) < b as T)),
        "le" => by_int!(ty, |T, U| |a, b| u64::from(a as T <= b as T)),
        "gt" => by_int!(ty, |T, U| |a, b| u64::from(a as T > b as T)),
        "ge" => by_int!(ty, |T, U| |a, b| u64::from(a as T >= b as T)),
        "lo" => by_int!(ty, |T, U| |a, b| u64::from((a as U) < b as U)),
        "ls" => by_int!(ty, |T, U| |a, b| u64::from(a as U <= b as U)),
        "hi" => by_int!(ty, |T, U| |a, b| u64::from(a as U > b as U)),
        "hs" => by_int!(ty, |T, U| |a, b| u64::from(a as U >= b as U)),
        _ => None,
    }
}
