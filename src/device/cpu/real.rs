//! The two working precisions, and the way between them and the caller's element types.

#[cfg(not(target_arch = "x86_64"))]
use super::lanes::LANES;
use super::lanes::Lanes;
#[cfg(target_arch = "x86_64")]
use super::lanes::wide;
use crate::tensor::{DType, TensorRef};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Longest run of elements handled at once; such a run of every operand stays in the first cache.
pub const SPAN: usize = 1024;

/// A working precision: f32 or f64.
pub trait Real:
    faer::traits::RealField
    + Copy
    + Default
    + bytemuck::Pod
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::AddAssign
    + std::ops::MulAssign
    + std::ops::SubAssign
    + std::ops::DivAssign
    + PartialOrd
    + Send
    + Sync
    + 'static
{
    /// Eight of them in registers, for a CPU that is [`fused`].
    type Lanes: Lanes<Self>;
    /// The element type of a tensor that holds such numbers.
    const DTYPE: DType;
    /// Its largest finite value.
    const LARGEST: f64;
    /// The distance from 1 to the next number.
    const STEP: f64;
    /// What an orthogonal basis may miss, as a relative error.
    const BASIS_TOLERANCE: f64;
    /// Rounds.
    fn of(x: f64) -> Self;
    /// Widens.
    fn wide(self) -> f64;
    /// Square root.
    fn root(self) -> Self;
    /// Absolute value.
    fn size(self) -> Self;
    /// Reads `len` elements of a caller's tensor, multiplied by `scale`.
    ///
    /// # Safety
    /// The tensor has `offset + out.len()` elements.
    unsafe fn load(tensor: TensorRef, offset: usize, scale: f64, out: &mut [Self]);
    /// Writes `values` into a caller's tensor.
    ///
    /// # Safety
    /// The tensor has `offset + values.len()` elements, and nobody else accesses them.
    unsafe fn store(tensor: TensorRef, offset: usize, values: &[Self]);
}

macro_rules! implement {
    ($type:ty, $lanes:ty, $dtype:expr, $tolerance:expr, $to_slice:ident, $from_slice:ident) => {
        impl Real for $type {
            #[cfg(target_arch = "x86_64")]
            type Lanes = $lanes;
            #[cfg(not(target_arch = "x86_64"))]
            type Lanes = [Self; LANES];
            const DTYPE: DType = $dtype;
            const LARGEST: f64 = <$type>::MAX as f64;
            const STEP: f64 = <$type>::EPSILON as f64;
            const BASIS_TOLERANCE: f64 = $tolerance;
            #[inline(always)]
            fn of(x: f64) -> Self {
                x as $type
            }
            #[inline(always)]
            fn wide(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn root(self) -> Self {
                self.sqrt()
            }
            #[inline(always)]
            fn size(self) -> Self {
                <$type>::abs(self)
            }
            #[inline(always)]
            unsafe fn load(tensor: TensorRef, offset: usize, scale: f64, out: &mut [Self]) {
                let len = out.len();
                debug_assert!(len <= SPAN);
                // SAFETY: the caller's contract; unaligned reads.
                unsafe {
                    match tensor.dtype {
                        DType::F32 => {
                            let source = tensor.data.cast::<f32>().add(offset);
                            for (i, x) in out.iter_mut().enumerate() {
                                *x = source.add(i).read_unaligned() as $type;
                            }
                        }
                        DType::F64 => {
                            let source = tensor.data.cast::<f64>().add(offset);
                            for (i, x) in out.iter_mut().enumerate() {
                                *x = source.add(i).read_unaligned() as $type;
                            }
                        }
                        DType::F16 => {
                            let mut half = [f16::ZERO; SPAN];
                            let source = tensor.data.cast::<f16>().add(offset).cast::<u8>();
                            std::ptr::copy_nonoverlapping(source, half.as_mut_ptr().cast(), len * 2);
                            half[..len].$to_slice(out);
                        }
                        DType::Bf16 => {
                            let mut half = [bf16::ZERO; SPAN];
                            let source = tensor.data.cast::<bf16>().add(offset).cast::<u8>();
                            std::ptr::copy_nonoverlapping(source, half.as_mut_ptr().cast(), len * 2);
                            half[..len].$to_slice(out);
                        }
                    }
                }
                if scale != 1.0 {
                    let scale = scale as $type;
                    out.iter_mut().for_each(|x| *x *= scale);
                }
            }
            #[inline(always)]
            unsafe fn store(tensor: TensorRef, offset: usize, values: &[Self]) {
                let len = values.len();
                debug_assert!(len <= SPAN);
                // SAFETY: the caller's contract; unaligned writes.
                unsafe {
                    match tensor.dtype {
                        DType::F32 => {
                            let target = tensor.data.cast::<f32>().add(offset);
                            for (i, x) in values.iter().enumerate() {
                                target.add(i).write_unaligned(*x as f32);
                            }
                        }
                        DType::F64 => {
                            let target = tensor.data.cast::<f64>().add(offset);
                            for (i, x) in values.iter().enumerate() {
                                target.add(i).write_unaligned(*x as f64);
                            }
                        }
                        DType::F16 => {
                            let mut half = [f16::ZERO; SPAN];
                            half[..len].$from_slice(values);
                            let target = tensor.data.cast::<f16>().add(offset).cast::<u8>();
                            std::ptr::copy_nonoverlapping(half.as_ptr().cast(), target, len * 2);
                        }
                        DType::Bf16 => {
                            let mut half = [bf16::ZERO; SPAN];
                            half[..len].$from_slice(values);
                            let target = tensor.data.cast::<bf16>().add(offset).cast::<u8>();
                            std::ptr::copy_nonoverlapping(half.as_ptr().cast(), target, len * 2);
                        }
                    }
                }
            }
        }
    };
}

implement!(f32, wide::Singles, DType::F32, 1e-4, convert_to_f32_slice, convert_from_f32_slice);
implement!(f64, wide::Doubles, DType::F64, 1e-9, convert_to_f64_slice, convert_from_f64_slice);

/// The elements of a caller's tensor from `offset` on, where they can be used as they lie.
#[inline(always)]
pub fn in_place<T: Real>(tensor: TensorRef, offset: usize) -> Option<*mut T> {
    let data = tensor.data.cast::<T>();
    (tensor.dtype == T::DTYPE && data.is_aligned()).then(|| data.wrapping_add(offset))
}

/// Σ (x/d)², as [`wide_sum_of_squares`] of the quotients.
#[inline(always)]
pub fn wide_sum_of_quotients<W: Real>(values: &[W], divisors: &[W]) -> f64 {
    let mut lanes = [0.0; 8];
    let add = |(lane, (x, d)): (&mut f64, (&W, &W))| {
        let quotient = (*x / *d).wide();
        *lane += quotient * quotient;
    };
    let (values, last) = values.as_chunks::<8>();
    let (divisors, last_divisors) = divisors.as_chunks::<8>();
    for (values, divisors) in values.iter().zip(divisors) {
        lanes.iter_mut().zip(values.iter().zip(divisors)).for_each(add);
    }
    lanes.iter_mut().zip(last.iter().zip(last_divisors)).for_each(add);
    lanes.iter().sum()
}

/// Σ x² in double precision, for values whose squares may overflow single precision.
#[inline(always)]
pub fn wide_sum_of_squares<W: Real>(values: &[W]) -> f64 {
    let mut lanes = [0.0; 8];
    let mut chunks = values.chunks_exact(8);
    for chunk in &mut chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += x.wide() * x.wide();
        }
    }
    for (lane, x) in lanes.iter_mut().zip(chunks.remainder()) {
        *lane += x.wide() * x.wide();
    }
    lanes.iter().sum()
}

/// Σ x², in sixteen lanes whose order does not depend on the machine.
#[inline(always)]
pub fn sum_of_squares<W: Real>(values: &[W]) -> f64 {
    let mut lanes = [W::default(); 16];
    let mut chunks = values.chunks_exact(16);
    for chunk in &mut chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += *x * *x;
        }
    }
    for (lane, x) in lanes.iter_mut().zip(chunks.remainder()) {
        *lane += *x * *x;
    }
    lanes.iter().map(|lane| lane.wide()).sum()
}

/// Says that the numbers at `place`, which may be anywhere, will be used soon.
#[inline(always)]
pub fn prefetch<T>(place: *const T) {
    // SAFETY: a hint, which reads nothing.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Whether the CPU has what [`Real::Lanes`] need, in a body that runs [`vectorized`]: on x86-64, AVX2 and FMA.
#[inline(always)]
pub fn fused() -> bool {
    !matches!(pulp::Arch::new(), pulp::Arch::Scalar)
}

/// Runs `body`, compiled for the widest vectors that the CPU has, if it and all that it calls is inlined.
///
/// pulp takes closures by value, and the shim through which the compiler calls a borrowing closure by value is not
/// inlined: the loops would fall back to the baseline's vectors. Called by reference, the closure is inlined.
#[inline(always)]
pub fn vectorized<R>(body: impl FnMut() -> R) -> R {
    struct Body<F>(F);

    impl<R, F: FnMut() -> R> pulp::NullaryFnOnce for Body<F> {
        type Output = R;

        #[inline(always)]
        fn call(mut self) -> R {
            (self.0)()
        }
    }

    pulp::Arch::new().dispatch(Body(body))
}
