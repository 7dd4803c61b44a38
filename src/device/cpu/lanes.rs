//! Eight numbers of a working precision in vector registers, for loops that the compiler does not turn into vectors well.

// Iterators over arrays of vectors are not always inlined, and instructions beyond the baseline must be.
#![allow(clippy::needless_range_loop)]

use super::real::Real;

/// Numbers that are worked on together.
pub(super) const LANES: usize = 8;

/// [`LANES`] numbers. Only [`Lanes::load`] and [`Lanes::splat`] make some, so that their contract holds wherever there are
/// any.
pub(super) trait Lanes<S>: Copy {
    /// Reads them.
    ///
    /// # Safety
    /// The CPU has the instructions of this implementation: it is `[S; LANES]`, or [`fused`](super::real::fused) is true.
    unsafe fn load(from: &[S; LANES]) -> Self;

    /// `x` in every place.
    ///
    /// # Safety
    /// As [`Lanes::load`].
    unsafe fn splat(x: S) -> Self;

    /// Writes them.
    fn store(self, to: &mut [S; LANES]);

    /// self + b.
    fn plus(self, b: Self) -> Self;

    /// self − b.
    fn minus(self, b: Self) -> Self;

    /// self·b.
    fn times(self, b: Self) -> Self;

    /// self·b + c.
    fn times_plus(self, b: Self, c: Self) -> Self;

    /// self / b.
    fn over(self, b: Self) -> Self;

    /// |self|.
    fn size(self) -> Self;

    /// The same with what `b` has in place `k`.
    fn with(self, k: usize, b: Self) -> Self;

    /// The first `k` places, and what `b` has in the others.
    fn then(self, k: usize, b: Self) -> Self;

    /// Rows become columns.
    fn transpose(rows: [Self; LANES]) -> [Self; LANES];
}

impl<S: Real> Lanes<S> for [S; LANES] {
    #[inline(always)]
    unsafe fn load(from: &[S; LANES]) -> Self {
        *from
    }

    #[inline(always)]
    unsafe fn splat(x: S) -> Self {
        [x; LANES]
    }

    #[inline(always)]
    fn store(self, to: &mut [S; LANES]) {
        *to = self;
    }

    #[inline(always)]
    fn plus(self, b: Self) -> Self {
        std::array::from_fn(|k| self[k] + b[k])
    }

    #[inline(always)]
    fn minus(self, b: Self) -> Self {
        std::array::from_fn(|k| self[k] - b[k])
    }

    #[inline(always)]
    fn times(self, b: Self) -> Self {
        std::array::from_fn(|k| self[k] * b[k])
    }

    #[inline(always)]
    fn times_plus(self, b: Self, c: Self) -> Self {
        std::array::from_fn(|k| self[k] * b[k] + c[k])
    }

    #[inline(always)]
    fn over(self, b: Self) -> Self {
        std::array::from_fn(|k| self[k] / b[k])
    }

    #[inline(always)]
    fn size(self) -> Self {
        self.map(S::size)
    }

    #[inline(always)]
    fn with(mut self, k: usize, b: Self) -> Self {
        self[k] = b[k];
        self
    }

    #[inline(always)]
    fn then(self, k: usize, b: Self) -> Self {
        std::array::from_fn(|i| if i < k { self[i] } else { b[i] })
    }

    #[inline(always)]
    fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        std::array::from_fn(|k| rows.map(|row| row[k]))
    }
}

/// With AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
pub(super) mod wide {
    use super::{LANES, Lanes};
    use std::arch::x86_64::*;

    /// Eight in single precision.
    #[derive(Clone, Copy)]
    pub struct Singles(__m256);

    /// Eight in double precision.
    #[derive(Clone, Copy)]
    pub struct Doubles(__m256d, __m256d);

    /// From place 8 − k on, the mask of place k.
    static SINGLE: [i32; 16] = [0, 0, 0, 0, 0, 0, 0, 0, -1, 0, 0, 0, 0, 0, 0, 0];
    static DOUBLE: [i64; 16] = [0, 0, 0, 0, 0, 0, 0, 0, -1, 0, 0, 0, 0, 0, 0, 0];
    /// The same of the places from k on.
    static SINGLES: [i32; 16] = [0, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, -1, -1, -1, -1, -1];
    static DOUBLES: [i64; 16] = [0, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, -1, -1, -1, -1, -1];

    impl Lanes<f32> for Singles {
        #[inline(always)]
        unsafe fn load(from: &[f32; LANES]) -> Self {
            // SAFETY: the caller's contract.
            unsafe { Singles(_mm256_loadu_ps(from.as_ptr())) }
        }

        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: the caller's contract.
            unsafe { Singles(_mm256_set1_ps(x)) }
        }

        #[inline(always)]
        fn store(self, to: &mut [f32; LANES]) {
            // SAFETY: what is there was made under the contract.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr(), self.0) }
        }

        #[inline(always)]
        fn plus(self, b: Self) -> Self {
            // SAFETY: what is there was made under the contract.
            unsafe { Singles(_mm256_add_ps(self.0, b.0)) }
        }

        #[inline(always)]
        fn minus(self, b: Self) -> Self {
            // SAFETY: what is there was made under the contract.
            unsafe { Singles(_mm256_sub_ps(self.0, b.0)) }
        }

        #[inline(always)]
        fn times(self, b: Self) -> Self {
            // SAFETY: what is there was made under the contract.
            unsafe { Singles(_mm256_mul_ps(self.0, b.0)) }
        }

        #[inline(always)]
        fn times_plus(self, b: Self, c: Self) -> Self {
            // SAFETY: what is there was made under the contract.
            unsafe { Singles(_mm256_fmadd_ps(self.0, b.0, c.0)) }
        }

        #[inline(always)]
        fn over(self, b: Self) -> Self {
            // SAFETY: what is there was made under the contract.
            unsafe { Singles(_mm256_div_ps(self.0, b.0)) }
        }

        #[inline(always)]
        fn size(self) -> Self {
            // SAFETY: what is there was made under the contract.
            unsafe { Singles(_mm256_andnot_ps(_mm256_set1_ps(-0.0), self.0)) }
        }

        #[inline(always)]
        fn with(self, k: usize, b: Self) -> Self {
            let mask = SINGLE[LANES - k..][..LANES].as_ptr();
            // SAFETY: what is there was made under the contract.
            unsafe { Singles(_mm256_blendv_ps(self.0, b.0, _mm256_loadu_ps(mask.cast()))) }
        }

        #[inline(always)]
        fn then(self, k: usize, b: Self) -> Self {
            let mask = SINGLES[LANES - k..][..LANES].as_ptr();
            // SAFETY: what is there was made under the contract.
            unsafe { Singles(_mm256_blendv_ps(self.0, b.0, _mm256_loadu_ps(mask.cast()))) }
        }

        #[inline(always)]
        fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
            let [a, b, c, d, e, f, g, h] = rows;
            // SAFETY: what is there was made under the contract.
            unsafe {
                let low = [
                    _mm256_unpacklo_ps(a.0, b.0),
                    _mm256_unpacklo_ps(c.0, d.0),
                    _mm256_unpacklo_ps(e.0, f.0),
                    _mm256_unpacklo_ps(g.0, h.0),
                ];
                let high = [
                    _mm256_unpackhi_ps(a.0, b.0),
                    _mm256_unpackhi_ps(c.0, d.0),
                    _mm256_unpackhi_ps(e.0, f.0),
                    _mm256_unpackhi_ps(g.0, h.0),
                ];
                let ([a, b, e, f], [c, d, g, h]) = (quarters(low), quarters(high));
                [a, b, c, d, e, f, g, h]
            }
        }
    }

    /// Pairs of rows become quarters of columns: the first two, and those four further on.
    ///
    /// # Safety
    /// As [`Lanes::load`].
    #[inline(always)]
    unsafe fn quarters(pairs: [__m256; 4]) -> [Singles; 4] {
        let [ab, cd, ef, gh] = pairs;
        // SAFETY: the caller's contract.
        unsafe {
            let (first, first_next) = (_mm256_shuffle_ps::<0x44>(ab, cd), _mm256_shuffle_ps::<0x44>(ef, gh));
            let (second, second_next) =
                (_mm256_shuffle_ps::<0xee>(ab, cd), _mm256_shuffle_ps::<0xee>(ef, gh));
            [
                Singles(_mm256_permute2f128_ps::<0x20>(first, first_next)),
                Singles(_mm256_permute2f128_ps::<0x20>(second, second_next)),
                Singles(_mm256_permute2f128_ps::<0x31>(first, first_next)),
                Singles(_mm256_permute2f128_ps::<0x31>(second, second_next)),
            ]
        }
    }

    impl Lanes<f64> for Doubles {
        #[inline(always)]
        unsafe fn load(from: &[f64; LANES]) -> Self {
            // SAFETY: the caller's contract.
            unsafe { Doubles(_mm256_loadu_pd(from.as_ptr()), _mm256_loadu_pd(from.as_ptr().add(4))) }
        }

        #[inline(always)]
        unsafe fn splat(x: f64) -> Self {
            // SAFETY: the caller's contract.
            unsafe { Doubles(_mm256_set1_pd(x), _mm256_set1_pd(x)) }
        }

        #[inline(always)]
        fn store(self, to: &mut [f64; LANES]) {
            // SAFETY: what is there was made under the contract.
            unsafe {
                _mm256_storeu_pd(to.as_mut_ptr(), self.0);
                _mm256_storeu_pd(to.as_mut_ptr().add(4), self.1);
            }
        }

        #[inline(always)]
        fn plus(self, b: Self) -> Self {
            // SAFETY: what is there was made under the contract.
            unsafe { Doubles(_mm256_add_pd(self.0, b.0), _mm256_add_pd(self.1, b.1)) }
        }

        #[inline(always)]
        fn minus(self, b: Self) -> Self {
            // SAFETY: what is there was made under the contract.
            unsafe { Doubles(_mm256_sub_pd(self.0, b.0), _mm256_sub_pd(self.1, b.1)) }
        }

        #[inline(always)]
        fn times(self, b: Self) -> Self {
            // SAFETY: what is there was made under the contract.
            unsafe { Doubles(_mm256_mul_pd(self.0, b.0), _mm256_mul_pd(self.1, b.1)) }
        }

        #[inline(always)]
        fn times_plus(self, b: Self, c: Self) -> Self {
            // SAFETY: what is there was made under the contract.
            unsafe { Doubles(_mm256_fmadd_pd(self.0, b.0, c.0), _mm256_fmadd_pd(self.1, b.1, c.1)) }
        }

        #[inline(always)]
        fn over(self, b: Self) -> Self {
            // SAFETY: what is there was made under the contract.
            unsafe { Doubles(_mm256_div_pd(self.0, b.0), _mm256_div_pd(self.1, b.1)) }
        }

        #[inline(always)]
        fn size(self) -> Self {
            // SAFETY: what is there was made under the contract.
            unsafe {
                let sign = _mm256_set1_pd(-0.0);
                Doubles(_mm256_andnot_pd(sign, self.0), _mm256_andnot_pd(sign, self.1))
            }
        }

        #[inline(always)]
        fn with(self, k: usize, b: Self) -> Self {
            let mask = DOUBLE[LANES - k..][..LANES].as_ptr().cast();
            // SAFETY: what is there was made under the contract.
            unsafe {
                let (low, high) = (_mm256_loadu_pd(mask), _mm256_loadu_pd(mask.add(4)));
                Doubles(_mm256_blendv_pd(self.0, b.0, low), _mm256_blendv_pd(self.1, b.1, high))
            }
        }

        #[inline(always)]
        fn then(self, k: usize, b: Self) -> Self {
            let mask = DOUBLES[LANES - k..][..LANES].as_ptr().cast();
            // SAFETY: what is there was made under the contract.
            unsafe {
                let (low, high) = (_mm256_loadu_pd(mask), _mm256_loadu_pd(mask.add(4)));
                Doubles(_mm256_blendv_pd(self.0, b.0, low), _mm256_blendv_pd(self.1, b.1, high))
            }
        }

        #[inline(always)]
        fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
            let (mut numbers, mut columns) = ([[0.0; LANES]; LANES], rows);
            for k in 0..LANES {
                rows[k].store(&mut numbers[k]);
            }
            let numbers = <[f64; LANES]>::transpose(numbers);
            for k in 0..LANES {
                // SAFETY: there are some already.
                columns[k] = unsafe { Self::load(&numbers[k]) };
            }
            columns
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::real::{fused, vectorized};
    use super::*;

    /// All operations of `L`, against the numbers that they should give.
    ///
    /// # Safety
    /// The CPU has the instructions of `L`.
    #[inline(always)]
    unsafe fn check<S: Real, L: Lanes<S>>() {
        let row = |first: usize| -> [S; LANES] { std::array::from_fn(|k| S::of((first + k) as f64 - 3.0)) };
        let (x, y) = (row(0), row(40));
        // SAFETY: the caller's contract.
        let (a, b) = unsafe { (L::load(&x), L::load(&y)) };
        let same = |got: L, expected: &dyn Fn(f64, f64, usize) -> f64| {
            let mut numbers = [S::default(); LANES];
            got.store(&mut numbers);
            for k in 0..LANES {
                assert_eq!(numbers[k].wide(), S::of(expected(x[k].wide(), y[k].wide(), k)).wide());
            }
        };
        same(a.plus(b), &|x, y, _| x + y);
        same(a.minus(b), &|x, y, _| x - y);
        same(a.times(b), &|x, y, _| x * y);
        same(a.over(b), &|x, y, _| x / y);
        same(a.times_plus(b, a), &|x, y, _| x * y + x);
        same(a.size(), &|x, _, _| x.abs());
        // SAFETY: the caller's contract.
        same(unsafe { L::splat(S::of(7.0)) }, &|_, _, _| 7.0);
        for place in 0..LANES {
            same(a.with(place, b), &|x, y, k| if k == place { y } else { x });
            same(a.then(place, b), &|x, y, k| if k < place { x } else { y });
        }
        let mut rows = [a; LANES];
        for (i, row_of_eight) in rows.iter_mut().enumerate() {
            // SAFETY: the caller's contract.
            *row_of_eight = unsafe { L::load(&row(10 * i)) };
        }
        for (j, column) in L::transpose(rows).into_iter().enumerate() {
            same(column, &|_, _, i| (10 * i + j) as f64 - 3.0);
        }
    }

    #[test]
    fn lanes_compute_what_they_say() {
        // SAFETY: every CPU has the plain ones; the wide ones are asked for.
        unsafe {
            check::<f32, [f32; LANES]>();
            check::<f64, [f64; LANES]>();
            if fused() {
                vectorized(|| check::<f32, <f32 as Real>::Lanes>());
                vectorized(|| check::<f64, <f64 as Real>::Lanes>());
            }
        }
    }
}
