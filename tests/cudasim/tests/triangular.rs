//! Batched Cholesky factorizations and triangular systems.

#![cfg(not(feature = "no-batched-evd"))]

mod common;

use std::ffi::c_void;

use cudasim::blas::{handle::*, triangular::*};
use cudasim::solver::{cholesky::*, handle::*};

use common::{Gpu, count, reason};

fn ptr<T>(value: &T) -> *const c_void {
    (&raw const *value).cast()
}

fn blas(gpu: &Gpu) -> u64 {
    let mut handle = 0;
    assert_eq!(cublasCreate_v2(&mut handle), 0);
    assert_eq!(cublasSetStream_v2(handle, gpu.stream), 0);
    handle
}

/// A lower triangle, column by column, with what must not be read above it.
const LOWER: [f64; 9] = [2.0, 1.0, -1.0, f64::NAN, 3.0, 0.5, f64::NAN, f64::NAN, 4.0];

/// L Lᵀ of that triangle.
fn square() -> Vec<f64> {
    let l = |i: usize, k: usize| if i >= k { LOWER[i + 3 * k] } else { 0.0 };
    let entry = |at: usize| (0..3).map(|k| l(at % 3, k) * l(at / 3, k)).sum();
    (0..9).map(entry).collect()
}

#[test]
fn batched_factors_are_those_of_each_matrix_and_the_other_triangle_is_lost() {
    let gpu = Gpu::new();
    let mut handle = 0;
    assert_eq!(cusolverDnCreate(&mut handle), 0);
    assert_eq!(cusolverDnSetStream(handle, gpu.stream), 0);
    let mut indefinite = square();
    indefinite[4] = -1.0;
    let (a, b) = (gpu.upload(&square()), gpu.upload(&indefinite));
    let (list, infos) = (gpu.upload(&[a, b]), gpu.upload(&[-7i32; 2]));
    let before = count("solver_calls");
    let status = cusolverDnDpotrfBatched(handle, 0, 3, list as _, 3, infos as _, 2);
    assert_eq!(status, 0, "{}", reason());
    assert_eq!(count("solver_calls") - before, 1);
    assert_eq!(gpu.download::<i32>(infos, 2), [0, 2]);
    for (at, (got, expected)) in gpu.download::<f64>(a, 9).iter().zip(LOWER).enumerate() {
        assert_eq!(got.is_nan(), expected.is_nan(), "element {at}");
        assert!(expected.is_nan() || (got - expected).abs() < 1e-14, "element {at}: {got} {expected}");
    }
    gpu.clean();
    // The upper triangle is not simulated, and sizes are looked at.
    assert_ne!(cusolverDnDpotrfBatched(handle, 1, 3, list as _, 3, infos as _, 2), 0);
    assert_ne!(cusolverDnDpotrfBatched(handle, 0, 3, list as _, 2, infos as _, 2), 0);
    assert_ne!(cusolverDnDpotrfBatched(handle, 0, 3, list as _, 3, infos as _, -1), 0);
    assert_eq!(cusolverDnDestroy(handle), 0);
}

#[test]
fn triangular_systems_are_solved_from_both_sides_and_transposed() {
    let gpu = Gpu::new();
    let handle = blas(&gpu);
    let l = |i: usize, k: usize| if i >= k { LOWER[i + 3 * k] } else { 0.0 };
    let given: Vec<f64> = (0..9).map(|k| 0.5 * k as f64 - 1.0).collect();
    let triangle = gpu.upload(&LOWER);
    for (side, op) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let x = gpu.upload(&given);
        let (triangles, sides) = (gpu.upload(&[triangle]), gpu.upload(&[x]));
        let one = 1.0;
        let status =
            cublasDtrsmBatched(handle, side, 0, op, 0, 3, 3, ptr(&one), triangles as _, 3, sides as _, 3, 1);
        assert_eq!(status, 0, "{}", reason());
        let solved = gpu.download::<f64>(x, 9);
        let t = |i: usize, k: usize| if op == 0 { l(i, k) } else { l(k, i) };
        for i in 0..3 {
            for j in 0..3 {
                let product: f64 =
                    (0..3)
                        .map(|k| {
                            if side == 0 { t(i, k) * solved[k + 3 * j] } else { solved[i + 3 * k] * t(k, j) }
                        })
                        .sum();
                assert!((product - given[i + 3 * j]).abs() < 1e-13, "side {side}, op {op}");
            }
        }
    }
    gpu.clean();
    let (lists, one) = (gpu.upload(&[triangle]), 1.0);
    let bad = cublasDtrsmBatched(handle, 0, 0, 0, 0, 3, 3, ptr(&one), lists as _, 2, lists as _, 3, 1);
    assert_ne!(bad, 0, "a leading dimension below the side");
    assert_eq!(cublasDestroy_v2(handle), 0);
}
