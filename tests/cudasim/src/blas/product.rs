//! The arithmetic of a product, as cuBLAS documents it for each compute type.
//!
//! In single precision every element is summed by fused multiplications and additions in f32, in slices of the inner
//! dimension whose sums are then added one after another. The order depends on the inner dimension alone. Which order
//! a device takes is its own business; what matters is that the sum is rounded at every term.

use half::{bf16, f16};

use crate::matrix::Real;

/// Terms of the inner dimension that are summed before their sum is added to those before.
pub const SLICE: usize = 32;

/// How operands are read and sums are kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arithmetic {
    /// f64 throughout.
    F64,
    /// f32 throughout.
    F32,
    /// Operands rounded to TF32, sums in f32.
    Tf32,
    /// Operands rounded to f16, sums in f32.
    FastF16,
    /// Operands rounded to bf16, sums in f32.
    FastBf16,
    /// Sums in f16.
    F16,
}

/// The first compute capability with tensor cores for TF32 and bf16.
const AMPERE: (i32, i32) = (8, 0);

impl Arithmetic {
    /// Of a routine of one type (`cublasSgemm`, `cublasDsyrk`) under a `cublasMath_t`. A device without tensor cores
    /// for TF32 computes in f32.
    pub fn of_routine(real: Real, math: i32, capability: (i32, i32)) -> Arithmetic {
        match (real, math & 0xf) {
            (Real::F64, _) => Arithmetic::F64,
            // CUBLAS_TENSOR_OP_MATH stands for CUBLAS_COMPUTE_32F_FAST_16F in single precision.
            (_, 1) => Arithmetic::FastF16,
            (_, 3) if capability >= AMPERE => Arithmetic::Tf32,
            _ => Arithmetic::F32,
        }
    }

    /// Of `cublasGemmEx` with operands of a type, under a `cublasComputeType_t` that is known, and the math mode: with
    /// CUBLAS_COMPUTE_32F the mode decides, with the pedantic type it does not.
    pub fn of_compute(operands: Real, compute: i32, math: i32, capability: (i32, i32)) -> Arithmetic {
        let ampere = capability >= AMPERE;
        match compute {
            64 | 65 => Arithmetic::F16,
            70 | 71 => Arithmetic::F64,
            74 => Arithmetic::FastF16,
            75 if ampere => Arithmetic::FastBf16,
            77 if ampere => Arithmetic::Tf32,
            68 if operands == Real::F32 => Arithmetic::of_routine(operands, math, capability),
            _ => Arithmetic::F32,
        }
    }

    /// An operand as the product takes it.
    fn operand(self, value: f32) -> f32 {
        match self {
            Arithmetic::Tf32 => tf32(value),
            Arithmetic::FastF16 => f16::from_f32(value).to_f32(),
            Arithmetic::FastBf16 => bf16::from_f32(value).to_f32(),
            _ => value,
        }
    }

    /// `a` (m by k, column-major) times `b` (its element (l, j) is `at(l, j)`), as f64 numbers.
    pub fn multiply(
        self,
        (m, n, k): (usize, usize, usize),
        a: &[f64],
        b: impl Fn(usize, usize) -> f64,
    ) -> Vec<f64> {
        match self {
            Arithmetic::F64 => {
                let mut c = vec![0.0; m * n];
                for j in 0..n {
                    let column = &mut c[j * m..(j + 1) * m];
                    for l in 0..k {
                        add_double(column, &a[l * m..(l + 1) * m], b(l, j));
                    }
                }
                c
            }
            Arithmetic::F16 => {
                let entry = |at: usize| {
                    let (i, j) = (at % m, at / m);
                    (0..k).fold(0.0, |sum, l| f16::from_f64(sum + a[l * m + i] * b(l, j)).to_f64())
                };
                (0..m * n).map(entry).collect()
            }
            _ => {
                let a: Vec<f32> = a.iter().map(|x| self.operand(*x as f32)).collect();
                let mut factors = vec![0f32; k];
                let mut c = vec![0.0; m * n];
                let (mut total, mut slice) = (vec![0f32; m], vec![0f32; m]);
                for j in 0..n {
                    for (l, factor) in factors.iter_mut().enumerate() {
                        *factor = self.operand(b(l, j) as f32);
                    }
                    column(&a, &factors, &mut total, &mut slice);
                    for (out, value) in c[j * m..(j + 1) * m].iter_mut().zip(&total) {
                        *out = f64::from(*value);
                    }
                }
                c
            }
        }
    }

    /// `alpha` times the product plus `beta` times the old result.
    pub fn combine(self, product: f64, alpha: f64, old: Option<(f64, f64)>) -> f64 {
        if self == Arithmetic::F64 {
            return alpha * product + old.map_or(0.0, |(beta, old)| beta * old);
        }
        let scaled = alpha as f32 * product as f32;
        f64::from(old.map_or(scaled, |(beta, old)| (beta as f32).mul_add(old as f32, scaled)))
    }
}

/// Ten explicit bits of mantissa, to nearest, halves away from zero: what `cvt.rna.tf32.f32` does, the only conversion
/// that sm_80 has.
pub fn tf32(value: f32) -> f32 {
    if !value.is_finite() {
        return value;
    }
    f32::from_bits((value.to_bits() + 0x1000) & !0x1fff)
}

fn add_double(column: &mut [f64], a: &[f64], factor: f64) {
    for (out, value) in column.iter_mut().zip(a) {
        *out += value * factor;
    }
}

/// One column of a product in f32: `total` becomes the sum over the columns of `a`, each times its factor.
fn column(a: &[f32], factors: &[f32], total: &mut [f32], slice: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: the processor has both.
        unsafe { column_fused(a, factors, total, slice) };
        return;
    }
    column_body(a, factors, total, slice);
}

/// The same bits, by the processor's own instruction.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn column_fused(a: &[f32], factors: &[f32], total: &mut [f32], slice: &mut [f32]) {
    column_body(a, factors, total, slice);
}

#[inline(always)]
fn column_body(a: &[f32], factors: &[f32], total: &mut [f32], slice: &mut [f32]) {
    let m = total.len();
    total.fill(0.0);
    for (s, part) in factors.chunks(SLICE).enumerate() {
        let sum: &mut [f32] = if s == 0 { &mut *total } else { &mut *slice };
        sum.fill(0.0);
        for (l, factor) in part.iter().enumerate() {
            let start = (s * SLICE + l) * m;
            for (out, value) in sum.iter_mut().zip(&a[start..start + m]) {
                *out = value.mul_add(*factor, *out);
            }
        }
        if s > 0 {
            for (out, value) in total.iter_mut().zip(slice.iter()) {
                *out += value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Arithmetic, SLICE, column_body, tf32};
    use crate::matrix::Real;

    #[test]
    fn tf32_keeps_ten_bits_and_rounds_halves_away_from_zero() {
        let ulp = 2f32.powi(-10);
        for (given, wanted) in [
            (1.0, 1.0),
            (1.0 + 0.49 * ulp, 1.0),
            (1.0 + 0.5 * ulp, 1.0 + ulp),
            (-(1.0 + 0.5 * ulp), -(1.0 + ulp)),
            (1.0 + 1.5 * ulp, 1.0 + 2.0 * ulp),
            (2.0 - 0.25 * ulp, 2.0),
            (f32::INFINITY, f32::INFINITY),
        ] {
            assert_eq!(tf32(given), wanted, "{given:e}");
        }
        assert!(tf32(f32::NAN).is_nan());
    }

    #[test]
    fn sums_are_rounded_at_every_term_in_slices() {
        // 2^24 takes no 1: added one by one they vanish, from the second slice on they are summed before.
        let k = 2 * SLICE;
        let a = vec![1f64; k];
        let b = |l: usize, _: usize| if l == 0 { 16_777_216.0 } else { 1.0 };
        let sum = Arithmetic::F32.multiply((1, 1, k), &a, b);
        assert_eq!(sum[0], 16_777_216.0 + SLICE as f64);
        assert_eq!(Arithmetic::F64.multiply((1, 1, k), &a, b)[0], 16_777_216.0 + k as f64 - 1.0);
        // A fused term is rounded once: the square of 1 + 2^-12 less its rounded self is not zero.
        let x = 1.0 + 2f64.powi(-12);
        let squared = f64::from((x * x) as f32);
        let rest = Arithmetic::F32.multiply((1, 1, 2), &[-squared, x], |l, _| if l == 0 { 1.0 } else { x });
        assert_eq!(rest[0], x * x - squared);
    }

    #[test]
    fn the_processors_instruction_gives_the_same_bits() {
        let (m, k) = (13usize, 2 * SLICE + 5);
        let a: Vec<f64> = (0..m * k).map(|i| f64::from(((i * 7919) % 1009) as f32 / 311.0 - 1.6)).collect();
        let factors: Vec<f32> = (0..k).map(|l| ((l * 31) % 17) as f32 / 7.0 - 1.1).collect();
        let fast = Arithmetic::F32.multiply((m, 1, k), &a, |l, _| f64::from(factors[l]));
        let narrow: Vec<f32> = a.iter().map(|x| *x as f32).collect();
        let (mut total, mut slice) = (vec![0f32; m], vec![0f32; m]);
        column_body(&narrow, &factors, &mut total, &mut slice);
        assert_eq!(fast, total.iter().map(|x| f64::from(*x)).collect::<Vec<_>>());
    }

    #[test]
    fn modes_and_types_choose_the_arithmetic() {
        let of = Arithmetic::of_routine;
        assert_eq!(of(Real::F32, 0, (8, 0)), Arithmetic::F32);
        assert_eq!(of(Real::F32, 3, (8, 0)), Arithmetic::Tf32);
        assert_eq!(of(Real::F32, 3, (7, 5)), Arithmetic::F32, "no such tensor cores");
        assert_eq!(of(Real::F32, 1, (8, 0)), Arithmetic::FastF16);
        assert_eq!(of(Real::F32, 16 | 3, (8, 0)), Arithmetic::Tf32);
        assert_eq!(of(Real::F64, 3, (8, 0)), Arithmetic::F64);
        let of = Arithmetic::of_compute;
        assert_eq!(of(Real::F32, 68, 3, (9, 0)), Arithmetic::Tf32, "the mode allows it");
        assert_eq!(of(Real::F32, 69, 3, (9, 0)), Arithmetic::F32, "pedantic");
        assert_eq!(of(Real::F32, 77, 0, (9, 0)), Arithmetic::Tf32);
        assert_eq!(of(Real::Bf16, 68, 3, (9, 0)), Arithmetic::F32, "exact products");
        assert_eq!(of(Real::F32, 75, 0, (9, 0)), Arithmetic::FastBf16);
        assert_eq!(of(Real::F16, 64, 0, (9, 0)), Arithmetic::F16);
        assert_eq!(of(Real::F64, 70, 3, (9, 0)), Arithmetic::F64);
    }
}
