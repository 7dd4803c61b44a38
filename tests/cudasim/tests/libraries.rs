//! cuBLAS and cuSOLVER: results, strictness, counts and spoiled decompositions.

#![cfg(not(feature = "no-batched-evd"))]

mod common;

use std::ffi::c_void;

use cudasim::blas::{gemm::*, handle::*, level1::*, level3::*};
use cudasim::control::*;
use cudasim::driver::stream::*;
use cudasim::solver::{evd::*, handle::*, qr::*};

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

fn numbers(n: usize, seed: usize) -> Vec<f64> {
    (0..n).map(|i| ((i * 37 + seed * 11) % 19) as f64 * 0.25 - 2.0).collect()
}

#[test]
fn strided_products_of_every_transposition() {
    let gpu = Gpu::new();
    let handle = blas(&gpu);
    let (m, n, k, batch) = (3usize, 4, 5, 3usize);
    let (lda, ldb, ldc) = (7usize, 8usize, 6usize);
    let (a, b, c) = (numbers(7 * 5 * batch, 1), numbers(8 * 5 * batch, 2), numbers(6 * 4 * batch, 3));
    let (da, db) = (gpu.upload(&a), gpu.upload(&b));
    for (ta, tb) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let dc = gpu.upload(&c);
        let (alpha, beta) = (1.5, -0.5);
        let strides = [(7 * 5) as i64, 8 * 5, 6 * 4];
        let status = cublasDgemmStridedBatched(
            handle,
            ta,
            tb,
            3,
            4,
            5,
            ptr(&alpha),
            da as _,
            7,
            strides[0],
            db as _,
            8,
            strides[1],
            ptr(&beta),
            dc as _,
            6,
            strides[2],
            3,
        );
        assert_eq!(status, 0, "{}", reason());
        let got = gpu.download::<f64>(dc, c.len());
        for s in 0..batch {
            for j in 0..n {
                for i in 0..m {
                    let sum: f64 = (0..k)
                        .map(|l| {
                            let x = if ta == 0 { a[s * 35 + l * lda + i] } else { a[s * 35 + i * lda + l] };
                            let y = if tb == 0 { b[s * 40 + j * ldb + l] } else { b[s * 40 + l * ldb + j] };
                            x * y
                        })
                        .sum();
                    let at = s * 24 + j * ldc + i;
                    assert!((got[at] - (alpha * sum + beta * c[at])).abs() < 1e-12);
                }
            }
            assert_eq!(got[s * 24 + 3], c[s * 24 + 3], "padding is untouched");
        }
    }
    assert_eq!(count("blas_calls"), 4);
    assert_eq!(count("blas_flops"), 4 * (2 * m * n * k * batch) as u64);
    assert_eq!(count("host_syncs") - count("cuCtxSynchronize"), 2 + 4 + 4, "only the test's own copies wait");
    gpu.clean();
}

#[test]
fn beta_zero_does_not_read_the_result() {
    let gpu = Gpu::with(&[("uninit", "refuse")]);
    let handle = blas(&gpu);
    let (a, c) = (gpu.upload(&[1f32, 2.0, 3.0, 4.0]), gpu.alloc::<f32>(4));
    let (one, zero) = (1f32, 0f32);
    assert_eq!(
        cublasSgemm_v2(handle, 0, 1, 2, 2, 2, ptr(&one), a as _, 2, a as _, 2, ptr(&zero), c as _, 2),
        0
    );
    assert_eq!(gpu.download::<f32>(c, 4), [10.0, 14.0, 14.0, 20.0]);
    gpu.clean();
}

#[test]
fn syrk_touches_one_triangle() {
    for (uplo, flip) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
        let gpu = Gpu::with(&[("uninit", "refuse")]);
        let handle = blas(&gpu);
        let (n, k) = (4usize, 3usize);
        let a = numbers(12, 5);
        let (da, dc) = (gpu.upload(&a), gpu.upload(&[9f64; 16]));
        let (alpha, beta) = (0.5, 2.0);
        let lda = if flip == 0 { 4 } else { 3 };
        assert_eq!(
            cublasDsyrk_v2(handle, uplo, flip, 4, 3, ptr(&alpha), da as _, lda, ptr(&beta), dc as _, 4),
            0
        );
        let got = gpu.download::<f64>(dc, 16);
        for j in 0..n {
            for i in 0..n {
                let at = |i: usize, l: usize| if flip == 0 { a[l * n + i] } else { a[i * k + l] };
                let sum: f64 = (0..k).map(|l| at(i, l) * at(j, l)).sum();
                let inside = if uplo == 0 { i >= j } else { i <= j };
                let want = if inside { 0.5 * sum + 18.0 } else { 9.0 };
                assert!((got[j * n + i] - want).abs() < 1e-12);
            }
        }
        gpu.clean();
    }
}

#[test]
fn diagonal_products_sums_and_vectors() {
    let gpu = Gpu::new();
    let handle = blas(&gpu);
    let a = [1f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    let (da, dx, dc) = (gpu.upload(&a), gpu.upload(&[10f32, 20.0, 30.0]), gpu.alloc::<f32>(6));
    assert_eq!(cublasSdgmm(handle, 1, 2, 3, da as _, 2, dx as _, 1, dc as _, 2), 0);
    assert_eq!(gpu.download::<f32>(dc, 6), [10.0, 20.0, 60.0, 80.0, 150.0, 180.0]);
    let (one, two) = (1f32, 2f32);
    assert_eq!(cublasSgeam(handle, 1, 0, 3, 2, ptr(&one), da as _, 2, ptr(&two), da as _, 3, dc as _, 3), 0);
    assert_eq!(gpu.download::<f32>(dc, 6), [3.0, 7.0, 11.0, 10.0, 14.0, 18.0]);
    let mut norm = 0f32;
    let before = count("host_syncs");
    assert_eq!(cublasSnrm2_v2(handle, 3, da as _, 2, (&raw mut norm).cast()), 0);
    assert_eq!(norm, 35f32.sqrt());
    assert_eq!(count("host_syncs") - before, 1, "a result in host memory makes the host wait");
    assert_eq!(cublasSetPointerMode_v2(handle, 1), 0);
    assert_eq!(cublasSdot_v2(handle, 3, da as _, 1, dx as _, 1, dc as _), 0);
    assert_eq!(count("host_syncs") - before, 1);
    assert_eq!(cublasSetPointerMode_v2(handle, 0), 0);
    assert_eq!(gpu.download::<f32>(dc, 1), [140.0]);
    assert_eq!(cublasSaxpy_v2(handle, 3, ptr(&two), da as _, 1, dx as _, 1), 0);
    assert_eq!(cublasSscal_v2(handle, 2, ptr(&two), dx as _, 2), 0);
    assert_eq!(gpu.download::<f32>(dx, 3), [24.0, 24.0, 72.0]);
    gpu.clean();
}

#[test]
fn mixed_precision_products() {
    use half::{bf16, f16};
    let gpu = Gpu::new();
    let handle = blas(&gpu);
    let halves: Vec<f16> = [1.0, 2.0, 3.0, 4.0].map(f16::from_f64).to_vec();
    let floats: Vec<bf16> = [1.0, 2.0, 3.0, 4.0].map(bf16::from_f64).to_vec();
    let (a, b, c) = (gpu.upload(&halves), gpu.upload(&floats), gpu.alloc::<f32>(4));
    let (one, zero) = (1f32, 0f32);
    for (from, code) in [(a, 2), (b, 14)] {
        let status = cublasGemmEx(
            handle,
            0,
            0,
            2,
            2,
            2,
            ptr(&one),
            from as _,
            code,
            2,
            from as _,
            code,
            2,
            ptr(&zero),
            c as _,
            0,
            2,
            68,
            -1,
        );
        assert_eq!(status, 0, "{}", reason());
        assert_eq!(gpu.download::<f32>(c, 4), [7.0, 10.0, 15.0, 22.0]);
    }
    gpu.clean();
}

struct Evd {
    handle: u64,
    batch: usize,
    n: usize,
}

impl Evd {
    fn new(gpu: &Gpu, n: usize, batch: usize) -> Evd {
        let mut handle = 0;
        assert_eq!(cusolverDnCreate(&mut handle), 0);
        assert_eq!(cusolverDnSetStream(handle, gpu.stream), 0);
        Evd { handle, batch, n }
    }

    fn sizes(&self, a: u64, w: u64, uplo: i32) -> (usize, usize) {
        let (mut device, mut host) = (0, 0);
        let n = self.n as i64;
        let status = if self.batch == 1 {
            cusolverDnXsyevd_bufferSize(
                self.handle,
                0,
                1,
                uplo,
                n,
                0,
                a as _,
                n,
                0,
                w as _,
                0,
                &mut device,
                &mut host,
            )
        } else {
            let batch = self.batch as i64;
            cusolverDnXsyevBatched_bufferSize(
                self.handle,
                0,
                1,
                uplo,
                n,
                0,
                a as _,
                n,
                0,
                w as _,
                0,
                &mut device,
                &mut host,
                batch,
            )
        };
        assert_eq!(status, 0, "{}", reason());
        (device, host)
    }

    /// Decomposes f32 matrices with workspaces `short` bytes too small on the device and host.
    fn run(&self, gpu: &Gpu, a: u64, uplo: i32, short: (usize, usize)) -> (i32, Vec<f32>, Vec<i32>) {
        let w = gpu.alloc::<f32>(self.n * self.batch);
        let info = gpu.upload(&vec![-7i32; self.batch]);
        let (device, host) = self.sizes(a, w, uplo);
        let scratch = gpu.alloc::<u8>(device);
        let mut room = vec![0u8; host];
        let n = self.n as i64;
        let (device, host) = (device - short.0, host - short.1);
        let status = if self.batch == 1 {
            cusolverDnXsyevd(
                self.handle,
                0,
                1,
                uplo,
                n,
                0,
                a as _,
                n,
                0,
                w as _,
                0,
                scratch as _,
                device,
                room.as_mut_ptr().cast(),
                host,
                info as _,
            )
        } else {
            let batch = self.batch as i64;
            cusolverDnXsyevBatched(
                self.handle,
                0,
                1,
                uplo,
                n,
                0,
                a as _,
                n,
                0,
                w as _,
                0,
                scratch as _,
                device,
                room.as_mut_ptr().cast(),
                host,
                info as _,
                batch,
            )
        };
        if status != 0 {
            return (status, Vec::new(), Vec::new());
        }
        (0, gpu.download::<f32>(w, self.n * self.batch), gpu.download::<i32>(info, self.batch))
    }
}

/// Symmetric matrices with NaN in the triangle that must not be read.
fn matrices(n: usize, batch: usize, uplo: i32) -> (Vec<f32>, Vec<f32>) {
    let mut full = vec![0f32; n * n * batch];
    for (s, matrix) in full.chunks_mut(n * n).enumerate() {
        for j in 0..n {
            for i in 0..n {
                let (low, high) = (i.min(j), i.max(j));
                matrix[j * n + i] = ((low * 7 + high * 3 + s) % 11) as f32 * 0.5 - 2.0;
            }
        }
    }
    let mut given = full.clone();
    for matrix in given.chunks_mut(n * n) {
        for j in 0..n {
            for i in 0..n {
                if if uplo == 0 { i < j } else { i > j } {
                    matrix[j * n + i] = f32::NAN;
                }
            }
        }
    }
    (full, given)
}

#[test]
fn decompositions_reconstruct_and_honour_the_triangle() {
    for (batch, uplo, seed) in [(1, 0, 0), (1, 1, 1), (5, 0, 2), (5, 1, 3)] {
        let gpu = if seed % 2 == 0 { Gpu::new() } else { Gpu::deferred(seed) };
        let n = 9;
        let evd = Evd::new(&gpu, n, batch);
        let (full, given) = matrices(n, batch, uplo);
        let a = gpu.upload(&given);
        let (status, values, info) = evd.run(&gpu, a, uplo, (0, 0));
        assert_eq!((status, info), (0, vec![0; batch]), "{}", reason());
        let q = gpu.download::<f32>(a, n * n * batch);
        for s in 0..batch {
            let (w, q) = (&values[s * n..(s + 1) * n], &q[s * n * n..(s + 1) * n * n]);
            assert!(w.windows(2).all(|p| p[0] <= p[1]));
            for j in 0..n {
                for i in 0..n {
                    let back: f32 = (0..n).map(|k| q[k * n + i] * w[k] * q[k * n + j]).sum();
                    assert!((back - full[s * n * n + j * n + i]).abs() < 1e-5);
                }
            }
        }
        assert_eq!((count("solver_calls"), count("evds")), (1, batch as u64));
        gpu.clean();
    }
}

#[test]
fn short_workspaces_are_refused() {
    let gpu = Gpu::new();
    let evd = Evd::new(&gpu, 6, 1);
    let a = gpu.upload(&matrices(6, 1, 0).0);
    assert_eq!(evd.run(&gpu, a, 0, (1, 0)).0, 3);
    assert!(reason().contains("the device workspace has"), "{}", reason());
    assert_eq!(evd.run(&gpu, a, 0, (0, 1)).0, 3);
    assert!(reason().contains("the host workspace has"), "{}", reason());
    assert_eq!(count("solver_calls"), 0);
    let wide = Evd { handle: evd.handle, batch: 1, n: 7 };
    assert_ne!(wide.run(&gpu, a, 0, (0, 0)).0, 0, "the matrix runs past its allocation");
}

#[test]
fn decompositions_go_wrong_on_request() {
    let gpu = Gpu::new();
    let n = 5;
    let evd = Evd::new(&gpu, n, 3);
    let (_, given) = matrices(n, 3, 0);
    assert_eq!(cudasim_fail_evd(2, c"info".as_ptr()), 0);
    let a = gpu.upload(&given);
    assert_eq!(evd.run(&gpu, a, 0, (0, 0)).2, [0, n as i32, 0]);
    assert_eq!(cudasim_fail_evd(3, c"nan".as_ptr()), 0);
    assert_eq!(cudasim_fail_evd(1, c"nonorthogonal".as_ptr()), 0);
    let a = gpu.upload(&given);
    assert_eq!(evd.run(&gpu, a, 0, (0, 0)).2, [0, 0, 0]);
    let q = gpu.download::<f32>(a, 3 * n * n);
    let dot: f32 = (0..n).map(|i| q[i] * q[n + i]).sum();
    assert!(dot.abs() > 0.5, "{dot}");
    assert!(q[..2 * n * n].iter().all(|v| v.is_finite()) && q[2 * n * n..].iter().any(|v| v.is_nan()));
    // A matrix with NaN in the triangle that is read does not converge.
    let a = gpu.upload(&vec![f32::NAN; 3 * n * n]);
    assert_eq!(evd.run(&gpu, a, 0, (0, 0)).2, [n as i32; 3]);
    assert_eq!(cudasim_fail_evd(1, c"nonsense".as_ptr()), 1);
    gpu.clean();
}

#[test]
fn a_workspace_shared_by_two_streams_is_a_race() {
    let gpu = Gpu::deferred(1);
    let (one, two) = (blas(&gpu), blas(&gpu));
    let mut other = 0;
    assert_eq!(cuStreamCreate(&mut other, 1), 0);
    assert_eq!(cublasSetStream_v2(two, other), 0);
    let room = gpu.alloc::<u8>(4096);
    assert_eq!(cublasSetWorkspace_v2(one, room as _, 4096), 0);
    assert_eq!(cublasSetWorkspace_v2(two, room as _, 4096), 0);
    assert_eq!(cublasSetWorkspace_v2(two, (room + 8) as _, 64), 7);
    let a = gpu.upload(&[1f32; 4]);
    let (x, y) = (gpu.upload(&[0f32; 4]), gpu.upload(&[0f32; 4]));
    let scalar = 1f32;
    for (handle, c) in [(one, x), (two, y)] {
        let status = cublasSgemm_v2(
            handle,
            0,
            0,
            2,
            2,
            2,
            ptr(&scalar),
            a as _,
            2,
            a as _,
            2,
            ptr(&scalar),
            c as _,
            2,
        );
        assert_eq!(status, 0);
    }
    gpu.download::<f32>(x, 4);
    assert_eq!(count("races"), 1);
}

/// QR of a column-major rows × cols matrix of f64, by the two calls: what the first left, tau, Q, and the infos.
fn reflections(gpu: &Gpu, given: &[f64], rows: i32, cols: i32, lda: i32) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let mut handle = 0;
    assert_eq!(cusolverDnCreate(&mut handle), 0);
    assert_eq!(cusolverDnSetStream(handle, gpu.stream), 0);
    let (a, tau, info) = (gpu.upload(given), gpu.alloc::<f64>(cols as usize), gpu.upload(&[-7i32; 2]));
    let (mut first, mut second) = (0, 0);
    assert_eq!(cusolverDnDgeqrf_bufferSize(handle, rows, cols, a as _, lda, &mut first), 0);
    assert_eq!(cusolverDnDorgqr_bufferSize(handle, rows, cols, cols, a as _, lda, tau as _, &mut second), 0);
    assert!(first > 0 && second > first, "the two ask for different sizes");
    let room = gpu.alloc::<f64>(second as usize);
    let factor =
        |n: i32| cusolverDnDgeqrf(handle, rows, cols, a as _, lda, tau as _, room as _, n, info as _);
    let form = |n: i32| {
        cusolverDnDorgqr(handle, rows, cols, cols, a as _, lda, tau as _, room as _, n, (info + 4) as _)
    };
    assert_eq!(factor(first), 0, "{}", reason());
    let (packed, scales) = (gpu.download::<f64>(a, given.len()), gpu.download::<f64>(tau, cols as usize));
    assert_eq!(form(second), 0, "{}", reason());
    assert_eq!(gpu.download::<i32>(info, 2), [0, 0]);
    assert_eq!(count("solver_calls"), 2);
    (packed, scales, gpu.download::<f64>(a, given.len()))
}

#[test]
fn reflections_give_an_orthogonal_factor_and_a_triangle() {
    for (rows, cols, lda, seed) in [(6usize, 6usize, 6usize, 0), (7, 4, 9, 1), (1, 1, 1, 2), (5, 5, 8, 3)] {
        let gpu = if seed % 2 == 0 { Gpu::new() } else { Gpu::deferred(seed) };
        let mut given = numbers(lda * cols, seed as usize + 3);
        // A column that depends on another one is completed to a basis.
        if cols > 3 {
            given.copy_within(0..rows, 2 * lda);
        }
        let (packed, tau, q) = reflections(&gpu, &given, rows as i32, cols as i32, lda as i32);
        for j in 0..cols {
            for i in 0..cols {
                let dot: f64 = (0..rows).map(|k| q[i * lda + k] * q[j * lda + k]).sum();
                assert!((dot - f64::from(u8::from(i == j))).abs() < 1e-13, "{rows}x{cols}: {i}, {j}: {dot}");
            }
            for i in 0..rows {
                let back: f64 = (0..=j).map(|k| q[k * lda + i] * packed[j * lda + k]).sum();
                assert!((back - given[j * lda + i]).abs() < 1e-12, "{rows}x{cols}: A is not QR");
            }
            for pad in rows..lda {
                assert_eq!(q[j * lda + pad], given[j * lda + pad], "padding is untouched");
            }
            // H = I - tau v v' is orthogonal only for this tau; LAPACK's lies in [1, 2], or is 0.
            let below: f64 = (j + 1..rows).map(|i| packed[j * lda + i].powi(2)).sum();
            assert!((tau[j] * (1.0 + below) - 2.0).abs() < 1e-12 || tau[j] == 0.0);
            assert!(tau[j] == 0.0 || (1.0..=2.0).contains(&tau[j]), "{}", tau[j]);
        }
        gpu.clean();
    }
}

#[test]
fn a_single_precision_factor_is_rounded_as_it_is_made() {
    let gpu = Gpu::new();
    let mut handle = 0;
    assert_eq!(cusolverDnCreate(&mut handle), 0);
    assert_eq!(cusolverDnSetStream(handle, gpu.stream), 0);
    let n = 12usize;
    let given: Vec<f32> =
        numbers(n * n, 4).iter().enumerate().map(|(i, x)| (x + 0.01 * i as f64) as f32).collect();
    let (a, tau, info) = (gpu.upload(&given), gpu.alloc::<f32>(n), gpu.alloc::<i32>(1));
    let room = gpu.alloc::<f32>(4096);
    let n32 = n as i32;
    let mut elements = 0;
    assert_eq!(cusolverDnSgeqrf_bufferSize(handle, n32, n32, a as _, n32, &mut elements), 0);
    assert_eq!(cusolverDnSgeqrf(handle, n32, n32, a as _, n32, tau as _, room as _, 4096, info as _), 0);
    assert_eq!(cusolverDnSorgqr_bufferSize(handle, n32, n32, n32, a as _, n32, tau as _, &mut elements), 0);
    assert_eq!(cusolverDnSorgqr(handle, n32, n32, n32, a as _, n32, tau as _, room as _, 4096, info as _), 0);
    let q = gpu.download::<f32>(a, n * n);
    let off = |i: usize, j: usize| {
        let dot: f64 = (0..n).map(|k| f64::from(q[i * n + k]) * f64::from(q[j * n + k])).sum();
        (dot - f64::from(u8::from(i == j))).abs()
    };
    let worst = (0..n * n).map(|k| off(k % n, k / n)).fold(0.0, f64::max);
    assert!(worst > 1e-9 && worst < 1e-5, "{worst:e}");
    gpu.clean();
}

#[test]
fn wrong_reflections_are_refused_and_go_wrong_on_request() {
    let gpu = Gpu::new();
    let mut handle = 0;
    assert_eq!(cusolverDnCreate(&mut handle), 0);
    assert_eq!(cusolverDnSetStream(handle, gpu.stream), 0);
    let (a, tau, info) = (gpu.upload(&[2f64, 1.0, 0.5, 1.0]), gpu.upload(&[0f64; 2]), gpu.upload(&[-7i32]));
    let room = gpu.alloc::<f64>(256);
    let form = |m: i32, n: i32, k: i32, tau: u64| {
        cusolverDnDorgqr(handle, m, n, k, a as _, 2, tau as _, room as _, 256, info as _)
    };
    assert_eq!(form(3, 2, 2, tau), 3, "lda is too small");
    assert_eq!(form(2, 2, 3, tau), 3, "more reflections than columns");
    assert_eq!(form(1, 2, 1, tau), 3, "more columns than rows");
    assert_eq!(form(2, 2, 2, a + 8), 3, "tau within the matrix");
    assert_ne!(form(2, 2, 2, 0x10), 0, "tau is not device memory");
    let (mut first, mut second) = (0, 0);
    assert_eq!(cusolverDnDgeqrf_bufferSize(handle, 2, 2, a as _, 2, &mut first), 0);
    assert_eq!(cusolverDnDorgqr_bufferSize(handle, 2, 2, 2, a as _, 2, tau as _, &mut second), 0);
    assert_eq!(cusolverDnDgeqrf(handle, 2, 2, a as _, 2, tau as _, room as _, first - 1, info as _), 3);
    assert!(reason().contains("the workspace has"), "{}", reason());
    assert_eq!(cusolverDnDorgqr(handle, 2, 2, 2, a as _, 2, tau as _, room as _, second - 1, info as _), 3);
    let refused = cudasim_violations();
    assert_eq!(count("solver_calls"), 0);
    for (kind, told) in [(c"info", -1), (c"nan", 0), (c"nonorthogonal", 0)] {
        assert_eq!(cudasim_fail_evd(1, kind.as_ptr()), 0);
        let (b, t) = (gpu.upload(&[2f64, 1.0, 0.5, 1.0]), gpu.alloc::<f64>(2));
        assert_eq!(cusolverDnDgeqrf(handle, 2, 2, b as _, 2, t as _, room as _, 256, info as _), 0);
        assert_eq!(cusolverDnDorgqr(handle, 2, 2, 2, b as _, 2, t as _, room as _, 256, info as _), 0);
        assert_eq!(gpu.download::<i32>(info, 1), [told], "{kind:?}");
        let q = gpu.download::<f64>(b, 4);
        let length = q[0] * q[0] + q[1] * q[1];
        assert_eq!((length - 1.0).abs() < 1e-12, told != 0, "{kind:?}: {q:?}");
    }
    assert_eq!(cudasim_violations(), refused, "what is asked for breaks no rule");
}
