//! The rounding of cuBLAS and cuSOLVER: a caller that counts on more than single precision gives is caught.

#![cfg(not(feature = "no-batched-evd"))]

mod common;

use std::ffi::c_void;

use cudasim::blas::{gemm::*, handle::*, level3::*, product::SLICE};

use common::{Gpu, count, reason};

fn blas(gpu: &Gpu) -> u64 {
    let mut handle = 0;
    assert_eq!(cublasCreate_v2(&mut handle), 0);
    assert_eq!(cublasSetStream_v2(handle, gpu.stream), 0);
    handle
}

fn ptr<T>(value: &T) -> *const c_void {
    (&raw const *value).cast()
}

/// The sum of products of `x` and `y` by each routine of single precision: plain, by strides, by pointers, mixed.
fn dots(gpu: &Gpu, handle: u64, x: &[f32], y: &[f32], compute: i32) -> [f32; 4] {
    let (k, one, zero) = (x.len() as i32, 1f32, 0f32);
    let (a, b, c) = (gpu.upload(x), gpu.upload(y), gpu.alloc::<f32>(4));
    let lists = gpu.upload(&[a, b, c + 8]);
    let (p, q, alpha, beta) = (a as *const c_void, b as *const c_void, ptr(&one), ptr(&zero));
    assert_eq!(cublasSgemm_v2(handle, 1, 0, 1, 1, k, alpha, p, k, q, k, beta, c as _, 1), 0);
    let second = (c + 4) as *mut c_void;
    let status =
        cublasSgemmStridedBatched(handle, 1, 0, 1, 1, k, alpha, p, k, 0, q, k, 0, beta, second, 1, 1, 1);
    assert_eq!(status, 0, "{}", reason());
    let (pa, pb, pc) = (lists as *const c_void, (lists + 8) as _, (lists + 16) as _);
    assert_eq!(cublasSgemmBatched(handle, 1, 0, 1, 1, k, alpha, pa, k, pb, k, beta, pc, 1, 1), 0);
    let fourth = (c + 12) as *mut c_void;
    let status =
        cublasGemmEx(handle, 1, 0, 1, 1, k, alpha, p, 0, k, q, 0, k, beta, fourth, 0, 1, compute, -1);
    assert_eq!(status, 0, "{}", reason());
    gpu.download::<f32>(c, 4).try_into().unwrap()
}

/// Large, then many ones that vanish beside it when every term is rounded; `2^24 + ones` in double precision.
fn terms(k: usize) -> (Vec<f32>, Vec<f32>) {
    let mut y = vec![1f32; k];
    y[0] = 16_777_216.0;
    (vec![1f32; k], y)
}

#[test]
fn a_sum_in_single_precision_is_rounded_at_every_term() {
    let gpu = Gpu::new();
    let handle = blas(&gpu);
    let k = 3 * SLICE;
    let (x, y) = terms(k);
    // Of the slices after the first, each is summed before it is added.
    let wanted = 16_777_216.0 + 2.0 * SLICE as f32;
    assert_eq!(dots(&gpu, handle, &x, &y, 68), [wanted; 4]);
    assert_ne!(wanted, (16_777_216.0 + (k - 1) as f64) as f32, "the sum in f64, rounded once, is another");
    // The rank-k update does the same: of 4096, 1, 1, ... the square of the first takes no 1.
    let mut row = vec![1f32; k];
    row[0] = 4096.0;
    let (a, c, one, zero) = (gpu.upload(&row), gpu.alloc::<f32>(1), 1f32, 0f32);
    for (op, lead) in [(0, 1), (1, k as i32)] {
        let status =
            cublasSsyrk_v2(handle, 0, op, 1, k as i32, ptr(&one), a as _, lead, ptr(&zero), c as _, 1);
        assert_eq!(status, 0, "{}", reason());
        assert_eq!(gpu.download::<f32>(c, 1), [wanted]);
    }
    // Double precision loses nothing of it.
    let wide: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
    let (a, c, one, zero) = (gpu.upload(&wide), gpu.alloc::<f64>(1), 1f64, 0f64);
    let status = cublasDsyrk_v2(handle, 0, 0, 1, k as i32, ptr(&one), a as _, 1, ptr(&zero), c as _, 1);
    assert_eq!(status, 0, "{}", reason());
    assert_eq!(gpu.download::<f64>(c, 1), [16_777_216.0 + (k - 1) as f64]);
    gpu.clean();
}

#[test]
fn tf32_rounds_operands_where_mode_type_and_device_allow_it() {
    // Ten bits of mantissa do not hold 1 + 2^-12.
    let fine = 1.0 + 2f32.powi(-12);
    let coarse = [1f32; 4];
    for (capability, math, compute, wanted) in [
        ("8.0", 0, 68, [fine; 4]),
        ("8.0", 2, 68, [fine; 4]),
        ("8.0", 3, 68, coarse),
        ("8.0", 3, 69, [1.0, 1.0, 1.0, fine]),
        ("8.0", 0, 77, [fine, fine, fine, 1.0]),
        ("7.5", 3, 77, [fine; 4]),
    ] {
        let gpu = Gpu::with(&[("capability", capability)]);
        let handle = blas(&gpu);
        assert_eq!(cublasSetMathMode(handle, math), 0);
        let got = dots(&gpu, handle, &[fine], &[1.0], compute);
        assert_eq!(got, wanted, "capability {capability}, mode {math}, compute type {compute}");
        gpu.clean();
    }
    let gpu = Gpu::new();
    assert_eq!(cublasSetMathMode(blas(&gpu), 7), 7);
    assert!(reason().contains("math mode 7"), "{}", reason());
    assert_eq!(count("cublasSetMathMode"), 1);
}
