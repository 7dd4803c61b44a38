//! Floating-point instructions as plain functions of register bits.
//!
//! f32 results are rounded to f32, `fma` is fused, and directed rounding is exact: the nearest result is
//! corrected by the sign of its error. The `approx` functions are computed in f64 and rounded.

use half::{bf16, f16};

use super::integer::{Bin, Tri, Un};
use super::types::Type;

/// How a result is rounded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Round {
    /// To nearest, ties to even.
    Nearest,
    /// Towards zero.
    Zero,
    /// Towards minus infinity.
    Down,
    /// Towards plus infinity.
    Up,
}

impl Round {
    /// Reads `rn`, `rz`, `rm`, `rp` and their integer forms.
    pub fn parse(name: &str) -> Option<Round> {
        match name {
            "rn" | "rni" => Some(Round::Nearest),
            "rz" | "rzi" => Some(Round::Zero),
            "rm" | "rmi" => Some(Round::Down),
            "rp" | "rpi" => Some(Round::Up),
            _ => None,
        }
    }
}

fn f(a: u64) -> f32 {
    f32::from_bits(a as u32)
}

fn d(a: u64) -> f64 {
    f64::from_bits(a)
}

fn fb(v: f32) -> u64 {
    u64::from(v.to_bits())
}

fn h(a: u64) -> f32 {
    f16::from_bits(a as u16).to_f32()
}

fn hb(v: f32) -> u64 {
    u64::from(f16::from_f32(v).to_bits())
}

fn hd(v: f64) -> u64 {
    u64::from(f16::from_f64(v).to_bits())
}

fn g(a: u64) -> f32 {
    bf16::from_bits(a as u16).to_f32()
}

fn gd(v: f64) -> u64 {
    u64::from(bf16::from_f64(v).to_bits())
}

/// Subnormals become a zero of the same sign.
pub fn flush(v: f32) -> f32 {
    if v.is_subnormal() { 0f32.copysign(v) } else { v }
}

/// An f64 result of which `error` is what is missing, rounded to f64.
fn direct64(value: f64, error: f64, round: Round) -> f64 {
    if !value.is_finite() || error == 0.0 || error.is_nan() {
        return value;
    }
    match round {
        Round::Nearest => value,
        Round::Down if error < 0.0 => value.next_down(),
        Round::Up if error > 0.0 => value.next_up(),
        Round::Zero if value > 0.0 && error < 0.0 => value.next_down(),
        Round::Zero if value < 0.0 && error > 0.0 => value.next_up(),
        _ => value,
    }
}

/// `value + error` exactly, rounded to f32.
pub fn direct32(value: f64, error: f64, round: Round) -> f32 {
    let near = value as f32;
    if near.is_nan() || value.is_infinite() {
        return near;
    }
    // How the exact value compares with the nearest f32.
    let gap = value - f64::from(near);
    let above = gap > 0.0 || gap == 0.0 && error > 0.0;
    let below = gap < 0.0 || gap == 0.0 && error < 0.0;
    match round {
        Round::Nearest => near,
        Round::Down if below => near.next_down(),
        Round::Up if above => near.next_up(),
        Round::Zero if value > 0.0 && below => near.next_down(),
        Round::Zero if value < 0.0 && above => near.next_up(),
        _ => near,
    }
}

/// The sum and what it lost.
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let s = a + b;
    let bb = s - a;
    (s, (a - (s - bb)) + (b - bb))
}

/// The error of `fma(a, b, c)`, exact in sign.
fn fma_error(a: f64, b: f64, c: f64, r: f64) -> f64 {
    let u1 = a * b;
    let u2 = a.mul_add(b, -u1);
    let (a1, z) = two_sum(c, u2);
    let (b1, b2) = two_sum(u1, a1);
    ((b1 - r) + b2) + z
}

macro_rules! rounded {
    ($round:expr, |$R:ident| $f:expr) => {
        match $round {
            Round::Nearest => {
                const $R: Round = Round::Nearest;
                $f
            }
            Round::Zero => {
                const $R: Round = Round::Zero;
                $f
            }
            Round::Down => {
                const $R: Round = Round::Down;
                $f
            }
            Round::Up => {
                const $R: Round = Round::Up;
                $f
            }
        }
    };
}

/// `add`, `sub`, `mul`, `div`, `min`, `max` on any float type.
pub fn binary(op: &str, ty: Type, round: Round, ftz: bool, approx: bool, propagate: bool) -> Option<Bin> {
    let _ = approx;
    Some(match (op, ty) {
        ("add", Type::F(4)) if ftz => |a, b| fb(flush(flush(f(a)) + flush(f(b)))),
        ("sub", Type::F(4)) if ftz => |a, b| fb(flush(flush(f(a)) - flush(f(b)))),
        ("mul", Type::F(4)) if ftz => |a, b| fb(flush(flush(f(a)) * flush(f(b)))),
        ("div", Type::F(4)) if ftz => |a, b| fb(flush(flush(f(a)) / flush(f(b)))),
        ("add", Type::F(4)) if round == Round::Nearest => |a, b| fb(f(a) + f(b)),
        ("sub", Type::F(4)) if round == Round::Nearest => |a, b| fb(f(a) - f(b)),
        ("mul", Type::F(4)) if round == Round::Nearest => |a, b| fb(f(a) * f(b)),
        ("add", Type::F(8)) if round == Round::Nearest => |a, b| (d(a) + d(b)).to_bits(),
        ("sub", Type::F(8)) if round == Round::Nearest => |a, b| (d(a) - d(b)).to_bits(),
        ("mul", Type::F(8)) if round == Round::Nearest => |a, b| (d(a) * d(b)).to_bits(),
        ("add", Type::F(4)) => rounded!(round, |R| |a, b| {
            let (s, e) = two_sum(f64::from(f(a)), f64::from(f(b)));
            fb(direct32(s, e, R))
        }),
        ("sub", Type::F(4)) => rounded!(round, |R| |a, b| {
            let (s, e) = two_sum(f64::from(f(a)), -f64::from(f(b)));
            fb(direct32(s, e, R))
        }),
        ("mul", Type::F(4)) => {
            rounded!(round, |R| |a, b| fb(direct32(f64::from(f(a)) * f64::from(f(b)), 0.0, R)))
        }
        ("div", Type::F(4)) => rounded!(round, |R| |a, b| {
            let (x, y) = (f64::from(f(a)), f64::from(f(b)));
            let q = x / y;
            fb(direct32(q, -q.mul_add(y, -x) * y.signum(), R))
        }),
        ("add", Type::F(8)) => rounded!(round, |R| |a, b| {
            let (s, e) = two_sum(d(a), d(b));
            direct64(s, e, R).to_bits()
        }),
        ("sub", Type::F(8)) => rounded!(round, |R| |a, b| {
            let (s, e) = two_sum(d(a), -d(b));
            direct64(s, e, R).to_bits()
        }),
        ("mul", Type::F(8)) => rounded!(round, |R| |a, b| {
            let p = d(a) * d(b);
            direct64(p, d(a).mul_add(d(b), -p), R).to_bits()
        }),
        ("div", Type::F(8)) => rounded!(round, |R| |a, b| {
            let q = d(a) / d(b);
            direct64(q, -q.mul_add(d(b), -d(a)) * d(b).signum(), R).to_bits()
        }),
        ("min", Type::F(4)) if propagate => {
            |a, b| fb(if f(a).is_nan() { f(a) } else { least(f(a), f(b), true) })
        }
        ("max", Type::F(4)) if propagate => {
            |a, b| fb(if f(a).is_nan() { f(a) } else { most(f(a), f(b), true) })
        }
        ("min", Type::F(4)) => |a, b| fb(least(f(a), f(b), false)),
        ("max", Type::F(4)) => |a, b| fb(most(f(a), f(b), false)),
        ("min", Type::F(8)) => |a, b| pick64(d(a), d(b), true).to_bits(),
        ("max", Type::F(8)) => |a, b| pick64(d(a), d(b), false).to_bits(),
        ("copysign", Type::F(4)) => |a, b| fb(f(b).copysign(f(a))),
        ("copysign", Type::F(8)) => |a, b| d(b).copysign(d(a)).to_bits(),
        ("add", Type::F(2)) => |a, b| hb(h(a) + h(b)),
        ("sub", Type::F(2)) => |a, b| hb(h(a) - h(b)),
        ("mul", Type::F(2)) => |a, b| hb(h(a) * h(b)),
        ("min", Type::F(2)) => |a, b| hb(least(h(a), h(b), false)),
        ("max", Type::F(2)) => |a, b| hb(most(h(a), h(b), false)),
        ("add", Type::Bf16) => |a, b| gd(f64::from(g(a)) + f64::from(g(b))),
        ("sub", Type::Bf16) => |a, b| gd(f64::from(g(a)) - f64::from(g(b))),
        ("mul", Type::Bf16) => |a, b| gd(f64::from(g(a)) * f64::from(g(b))),
        ("min", Type::Bf16) => |a, b| gd(f64::from(least(g(a), g(b), false))),
        ("max", Type::Bf16) => |a, b| gd(f64::from(most(g(a), g(b), false))),
        ("add", Type::F16x2) => |a, b| pair(a, b, |x, y| hb(h(x) + h(y))),
        ("sub", Type::F16x2) => |a, b| pair(a, b, |x, y| hb(h(x) - h(y))),
        ("mul", Type::F16x2) => |a, b| pair(a, b, |x, y| hb(h(x) * h(y))),
        ("min", Type::F16x2) => |a, b| pair(a, b, |x, y| hb(least(h(x), h(y), false))),
        ("max", Type::F16x2) => |a, b| pair(a, b, |x, y| hb(most(h(x), h(y), false))),
        _ => return None,
    })
}

fn pair(a: u64, b: u64, f: fn(u64, u64) -> u64) -> u64 {
    f(a & 0xffff, b & 0xffff) | f(a >> 16 & 0xffff, b >> 16 & 0xffff) << 16
}

fn least(a: f32, b: f32, propagate: bool) -> f32 {
    if a.is_nan() {
        b
    } else if b.is_nan() {
        if propagate { b } else { a }
    } else if a == b {
        if a.is_sign_negative() { a } else { b }
    } else {
        a.min(b)
    }
}

fn most(a: f32, b: f32, propagate: bool) -> f32 {
    if a.is_nan() || b.is_nan() { least(a, b, propagate) } else { -least(-a, -b, propagate) }
}

fn pick64(a: f64, b: f64, low: bool) -> f64 {
    if a.is_nan() {
        b
    } else if b.is_nan() {
        a
    } else if a == b {
        if a.is_sign_negative() == low { a } else { b }
    } else if (a < b) == low {
        a
    } else {
        b
    }
}

/// `fma`, and `mad` on floats.
pub fn fma(ty: Type, round: Round, ftz: bool) -> Option<Tri> {
    Some(match ty {
        Type::F(4) if ftz => |a, b, c| fb(flush(flush(f(a)).mul_add(flush(f(b)), flush(f(c))))),
        Type::F(4) if round == Round::Nearest => |a, b, c| fb(f(a).mul_add(f(b), f(c))),
        Type::F(8) if round == Round::Nearest => |a, b, c| d(a).mul_add(d(b), d(c)).to_bits(),
        Type::F(4) => rounded!(round, |R| |a, b, c| {
            let (s, e) = two_sum(f64::from(f(a)) * f64::from(f(b)), f64::from(f(c)));
            fb(direct32(s, e, R))
        }),
        Type::F(8) => rounded!(round, |R| |a, b, c| {
            let r = d(a).mul_add(d(b), d(c));
            direct64(r, fma_error(d(a), d(b), d(c), r), R).to_bits()
        }),
        // The product of two f16 and the sum fit in f64 nearly always; ties beyond it do not matter here.
        Type::F(2) => |a, b, c| hd(f64::from(h(a)).mul_add(f64::from(h(b)), f64::from(h(c)))),
        Type::Bf16 => |a, b, c| gd(f64::from(g(a)).mul_add(f64::from(g(b)), f64::from(g(c)))),
        Type::F16x2 => |a, b, c| {
            let one = |s: u32| {
                let v = |x: u64| f64::from(h(x >> s & 0xffff));
                hd(v(a).mul_add(v(b), v(c))) << s
            };
            one(0) | one(16)
        },
        _ => return None,
    })
}

fn flush64(v: f64) -> f64 {
    if v.is_subnormal() { 0f64.copysign(v) } else { v }
}

/// An f64 whose low word is dropped, as the `approx.ftz.f64` instructions give.
fn coarse(v: f64) -> u64 {
    flush64(v).to_bits() & !0xffff_ffff
}

macro_rules! approx {
    ($ftz:expr, |$x:ident| $e:expr) => {
        if $ftz {
            |a| {
                let $x = f64::from(flush(f(a)));
                fb(flush($e as f32))
            }
        } else {
            |a| {
                let $x = f64::from(f(a));
                fb($e as f32)
            }
        }
    };
}

/// One-operand instructions.
pub fn unary(op: &str, ty: Type, round: Round, ftz: bool, approx: bool) -> Option<Un> {
    Some(match (op, ty) {
        ("neg", Type::F(4)) => |a| (a ^ 0x8000_0000) & 0xffff_ffff,
        ("neg", Type::F(8)) => |a| a ^ 1 << 63,
        ("neg", Type::F(2) | Type::Bf16) => |a| (a ^ 0x8000) & 0xffff,
        ("neg", Type::F16x2 | Type::Bf16x2) => |a| (a ^ 0x8000_8000) & 0xffff_ffff,
        ("abs", Type::F(4)) => |a| a & 0x7fff_ffff,
        ("abs", Type::F(8)) => |a| a & !(1 << 63),
        ("abs", Type::F(2) | Type::Bf16) => |a| a & 0x7fff,
        ("abs", Type::F16x2 | Type::Bf16x2) => |a| a & 0x7fff_7fff,
        ("sqrt", Type::F(8)) => rounded!(round, |R| |a| {
            let r = d(a).sqrt();
            direct64(r, -r.mul_add(r, -d(a)), R).to_bits()
        }),
        ("sqrt", Type::F(4)) if approx || ftz => approx!(ftz, |x| x.sqrt()),
        ("sqrt", Type::F(4)) => rounded!(round, |R| |a| {
            let r = f64::from(f(a)).sqrt();
            fb(direct32(r, -r.mul_add(r, -f64::from(f(a))), R))
        }),
        ("rcp", Type::F(8)) if approx => |a| coarse(1.0 / flush64(d(a))),
        ("rsqrt", Type::F(8)) if ftz => |a| coarse(1.0 / flush64(d(a)).sqrt()),
        ("rsqrt", Type::F(8)) => |a| (1.0 / d(a).sqrt()).to_bits(),
        ("rcp", Type::F(8)) => rounded!(round, |R| |a| {
            let q = 1.0 / d(a);
            direct64(q, -q.mul_add(d(a), -1.0) * d(a).signum(), R).to_bits()
        }),
        ("rcp", Type::F(4)) if approx || ftz => approx!(ftz, |x| 1.0 / x),
        ("rcp", Type::F(4)) => rounded!(round, |R| |a| {
            let x = f64::from(f(a));
            let q = 1.0 / x;
            fb(direct32(q, -q.mul_add(x, -1.0) * x.signum(), R))
        }),
        ("rsqrt", Type::F(4)) => approx!(ftz, |x| 1.0 / x.sqrt()),
        ("ex2", Type::F(4)) => approx!(ftz, |x| x.exp2()),
        ("lg2", Type::F(4)) => approx!(ftz, |x| x.log2()),
        ("sin", Type::F(4)) => approx!(ftz, |x| x.sin()),
        ("cos", Type::F(4)) => approx!(ftz, |x| x.cos()),
        ("tanh", Type::F(4)) => approx!(ftz, |x| x.tanh()),
        ("testp.finite", Type::F(4)) => |a| u64::from(f(a).is_finite()),
        ("testp.infinite", Type::F(4)) => |a| u64::from(f(a).is_infinite()),
        ("testp.number", Type::F(4)) => |a| u64::from(!f(a).is_nan()),
        ("testp.notanumber", Type::F(4)) => |a| u64::from(f(a).is_nan()),
        ("testp.normal", Type::F(4)) => |a| u64::from(f(a).is_normal()),
        ("testp.subnormal", Type::F(4)) => |a| u64::from(f(a).is_subnormal()),
        ("testp.finite", Type::F(8)) => |a| u64::from(d(a).is_finite()),
        ("testp.infinite", Type::F(8)) => |a| u64::from(d(a).is_infinite()),
        ("testp.number", Type::F(8)) => |a| u64::from(!d(a).is_nan()),
        ("testp.notanumber", Type::F(8)) => |a| u64::from(d(a).is_nan()),
        ("testp.normal", Type::F(8)) => |a| u64::from(d(a).is_normal()),
        ("testp.subnormal", Type::F(8)) => |a| u64::from(d(a).is_subnormal()),
        _ => return None,
    })
}

macro_rules! comparison {
    ($ty:expr, $ftz:expr, |$x:ident, $y:ident| $e:expr) => {
        Some(match $ty {
            Type::F(4) if $ftz => |a, b| {
                let ($x, $y) = (flush(f(a)), flush(f(b)));
                u64::from($e)
            },
            Type::F(4) => |a, b| {
                let ($x, $y) = (f(a), f(b));
                u64::from($e)
            },
            Type::F(8) => |a, b| {
                let ($x, $y) = (d(a), d(b));
                u64::from($e)
            },
            Type::F(2) => |a, b| {
                let ($x, $y) = (h(a), h(b));
                u64::from($e)
            },
            Type::Bf16 => |a, b| {
                let ($x, $y) = (g(a), g(b));
                u64::from($e)
            },
            _ => return None,
        })
    };
}

/// A comparison of floats, as 0 or 1; the forms that end in `u` hold for NaN too.
#[allow(clippy::neg_cmp_op_on_partial_ord, clippy::double_comparisons)]
pub fn compare(op: &str, ty: Type, ftz: bool) -> Option<Bin> {
    match op {
        "eq" => comparison!(ty, ftz, |x, y| x == y),
        "ne" => comparison!(ty, ftz, |x, y| x < y || x > y),
        "lt" => comparison!(ty, ftz, |x, y| x < y),
        "le" => comparison!(ty, ftz, |x, y| x <= y),
        "gt" => comparison!(ty, ftz, |x, y| x > y),
        "ge" => comparison!(ty, ftz, |x, y| x >= y),
        "equ" => comparison!(ty, ftz, |x, y| !(x < y || x > y)),
        "neu" => comparison!(ty, ftz, |x, y| x != y),
        "ltu" => comparison!(ty, ftz, |x, y| !(x >= y)),
        "leu" => comparison!(ty, ftz, |x, y| !(x > y)),
        "gtu" => comparison!(ty, ftz, |x, y| !(x <= y)),
        "geu" => comparison!(ty, ftz, |x, y| !(x < y)),
        "num" => comparison!(ty, ftz, |x, y| !x.is_nan() && !y.is_nan()),
        "nan" => comparison!(ty, ftz, |x, y| x.is_nan() || y.is_nan()),
        _ => None,
    }
}
