//! The rounding of cuBLAS and cuSOLVER: a caller that counts on more than single precision gives is caught.

#![cfg(not(feature = "no-batched-evd"))]

mod common;

use std::ffi::c_void;

use cudasim::blas::{gemm::*, handle::*, level3::*, product::SLICE};
use cudasim::solver::{evd::*, handle::*};

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

fn solver(gpu: &Gpu) -> u64 {
    let mut handle = 0;
    assert_eq!(cusolverDnCreate(&mut handle), 0);
    assert_eq!(cusolverDnSetStream(handle, gpu.stream), 0);
    handle
}

/// Eigenvalues and eigenvectors, one after another, of a symmetric matrix of `T`, whose `cudaDataType_t` is `code`.
fn decompose<T: Copy + Default + Into<f64>>(
    gpu: &Gpu,
    handle: u64,
    matrix: &[T],
    code: i32,
    batched: bool,
) -> (Vec<f64>, Vec<f64>) {
    let n = matrix.len().isqrt();
    let (a, w, info) = (gpu.upload(matrix), gpu.alloc::<T>(n), gpu.upload(&[-7i32]));
    let (p, q, side) = (a as *mut c_void, w as *mut c_void, n as i64);
    let (mut device, mut host) = (0, 0);
    let status = if batched {
        cusolverDnXsyevBatched_bufferSize(
            handle,
            0,
            1,
            0,
            side,
            code,
            p,
            side,
            code,
            q,
            code,
            &mut device,
            &mut host,
            1,
        )
    } else {
        cusolverDnXsyevd_bufferSize(
            handle,
            0,
            1,
            0,
            side,
            code,
            p,
            side,
            code,
            q,
            code,
            &mut device,
            &mut host,
        )
    };
    assert_eq!(status, 0, "{}", reason());
    let (room, mut own) = (gpu.alloc::<u8>(device) as *mut c_void, vec![0u8; host]);
    let (own, info_at) = (own.as_mut_ptr().cast(), info as *mut c_void);
    let status = if batched {
        cusolverDnXsyevBatched(
            handle,
            0,
            1,
            0,
            side,
            code,
            p,
            side,
            code,
            q,
            code,
            room,
            device,
            own,
            host,
            info_at.cast(),
            1,
        )
    } else {
        cusolverDnXsyevd(
            handle,
            0,
            1,
            0,
            side,
            code,
            p,
            side,
            code,
            q,
            code,
            room,
            device,
            own,
            host,
            info_at.cast(),
        )
    };
    assert_eq!(status, 0, "{}", reason());
    assert_eq!(gpu.download::<i32>(info, 1), [0]);
    let wide = |values: Vec<T>| values.into_iter().map(T::into).collect();
    (wide(gpu.download(w, n)), wide(gpu.download(a, n * n)))
}

/// A = V diag(values) Vᵀ with V = I - 2 v vᵀ: the eigenvectors are known.
fn known(values: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let n = values.len();
    let mut v: Vec<f64> = (0..n).map(|i| ((i * 29 + 7) % 13) as f64 - 5.5).collect();
    let length = v.iter().map(|x| x * x).sum::<f64>().sqrt();
    v.iter_mut().for_each(|x| *x /= length);
    let vectors: Vec<f64> =
        (0..n * n).map(|k| f64::from(u8::from(k % n == k / n)) - 2.0 * v[k % n] * v[k / n]).collect();
    let entry = |k: usize| (0..n).map(|l| vectors[l * n + k % n] * values[l] * vectors[l * n + k / n]).sum();
    ((0..n * n).map(entry).collect(), vectors)
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// The largest defect of QᵀQ = I.
fn defect(q: &[f64], n: usize) -> f64 {
    let entry = |k: usize| {
        let (x, y) = (&q[k % n * n..][..n], &q[k / n * n..][..n]);
        (dot(x, y) - f64::from(u8::from(k % n == k / n))).abs()
    };
    (0..n * n).map(entry).fold(0.0, f64::max)
}

fn single(matrix: &[f64]) -> Vec<f32> {
    matrix.iter().map(|x| *x as f32).collect()
}

#[test]
fn eigenvalues_and_vectors_are_as_wrong_as_their_precision_is() {
    let n = 24;
    let values: Vec<f64> = (0..n).map(|i| 10f64.powf(-8.0 + 8.0 * i as f64 / (n - 1) as f64)).collect();
    let (matrix, _) = known(&values);
    let off = |found: &[f64]| found.iter().zip(&values).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
    let mut negative = 0;
    for seed in ["1", "2", "3"] {
        let gpu = Gpu::with(&[("seed", seed)]);
        let handle = solver(&gpu);
        // In f32 the matrix itself is off by half an epsilon; the solver adds about 1e-6 of the largest.
        let (found, q) = decompose(&gpu, handle, &single(&matrix), 0, false);
        assert!((2e-7..2e-6).contains(&off(&found)), "{:e}", off(&found));
        assert!((1e-8..1e-5).contains(&defect(&q, n)), "{:e}", defect(&q, n));
        negative += found.iter().filter(|x| **x < 0.0).count();
        let (found, q) = decompose(&gpu, handle, &matrix, 1, false);
        assert!((1e-16..1e-14).contains(&off(&found)), "{:e}", off(&found));
        assert!(defect(&q, n) < 1e-13, "{:e}", defect(&q, n));
        gpu.clean();
    }
    assert!(negative > 0, "what is below the error may come out negative");
    let gpu = Gpu::with(&[("evd_noise", "0")]);
    let (found, _) = decompose(&gpu, solver(&gpu), &single(&matrix), 0, false);
    assert!(off(&found) < 2e-7, "without the solver's errors: {:e}", off(&found));
}

#[test]
fn signs_and_rotations_within_clusters_are_the_seeds() {
    // Three equal eigenvalues and two that stand apart.
    let (n, values) = (5, [1.0, 1.0, 1.0, 3.0, 7.0]);
    let (matrix, vectors) = known(&values);
    let (mut signs, mut angles) = (Vec::new(), Vec::new());
    for seed in 0..12u32 {
        let gpu = Gpu::with(&[("seed", &seed.to_string())]);
        let (_, q) = decompose(&gpu, solver(&gpu), &single(&matrix), 0, true);
        // One that stands apart is known up to its sign, a cluster as a space.
        let apart = dot(&q[4 * n..], &vectors[4 * n..]);
        assert!((apart.abs() - 1.0).abs() < 1e-5, "{apart}");
        signs.push(apart > 0.0);
        let inside: f64 = (0..3).map(|i| dot(&q[i * n..][..n], &vectors[..n]).powi(2)).sum();
        assert!((inside - 1.0).abs() < 1e-5, "{inside}");
        angles.push(dot(&q[..n], &vectors[..n]).abs());
        // The same seed gives the same bits, as the library does.
        let (_, again) = decompose(&gpu, solver(&gpu), &single(&matrix), 0, true);
        assert_eq!(q, again);
        // The other algorithm gives others, and so does a mode that promises nothing.
        let handle = solver(&gpu);
        assert_ne!(decompose(&gpu, handle, &single(&matrix), 0, false).1, q);
        assert_eq!(cusolverDnSetDeterministicMode(handle, 2), 0);
        let first = decompose(&gpu, handle, &single(&matrix), 0, true).1;
        assert_ne!(decompose(&gpu, handle, &single(&matrix), 0, true).1, first);
        gpu.clean();
    }
    assert!(signs.contains(&true) && signs.contains(&false), "a caller that counts on a sign is caught");
    let spread = angles.iter().fold(0.0f64, |m, x| m.max(*x)) - angles.iter().fold(1.0f64, |m, x| m.min(*x));
    assert!(spread > 0.5, "a caller that counts on a basis of a cluster is caught: {angles:?}");
}

#[test]
fn a_single_decomposition_waits_inside_and_is_counted_apart() {
    let gpu = Gpu::new();
    let handle = solver(&gpu);
    let (matrix, _) = known(&[1.0, 2.0, 3.0]);
    for (batched, waits) in [(true, 0), (false, 1)] {
        let before = count("solver_syncs");
        decompose(&gpu, handle, &matrix, 1, batched);
        assert_eq!(count("solver_syncs") - before, waits);
    }
    let own = count("cuCtxSynchronize") + count("cuMemcpyHtoD_v2") + count("cuMemcpyDtoH_v2");
    assert_eq!(count("host_syncs"), own, "the solver's waits are not among the caller's");
}
