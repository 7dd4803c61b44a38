//! What a device would refuse, or silently get wrong, is refused with a reason.

mod common;

use cudasim::blas::{gemm::*, handle::*};
use cudasim::control::*;
use cudasim::driver::{context::*, copy::*, device::*, event::*, launch::*, memory::*, module::*, stream::*};
use cudasim::solver::handle::*;

use common::{Gpu, REDUCE, TYPES, count, leaks, reason, set, turn};

const ONE: [u32; 3] = [1, 1, 1];

#[test]
fn use_after_free_and_double_free() {
    let mut gpu = Gpu::new();
    let fill = gpu.kernel(TYPES, "fill");
    let (x, v, n) = (gpu.alloc::<f32>(8), 1f32, 8i32);
    assert_eq!(cuMemFree_v2(x), 0);
    assert_eq!(cuMemFree_v2(x), 1);
    assert!(reason().contains("double free"), "{}", reason());
    let mut out = [0f32; 8];
    assert_eq!(cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), x, 32), 1);
    assert!(reason().contains("was freed"), "{}", reason());
    // The launch itself succeeds; the failure is asynchronous and stays.
    assert_eq!(gpu.launch(fill, ONE, 32, 0, args![x, v, n]), 0);
    assert!(reason().contains("was freed") && reason().contains("`fill`"), "{}", reason());
    assert_eq!(cuStreamSynchronize(gpu.stream), 700);
    assert_eq!(cuCtxSynchronize(), 700);
    assert_eq!(cudasim_violations(), 3);
}

#[test]
fn out_of_bounds_and_misaligned_accesses() {
    for (name, status, text) in [("out_of_bounds", 700, "past"), ("misaligned", 716, "multiple of 4")] {
        let mut gpu = Gpu::new();
        let kernel = gpu.kernel(TYPES, name);
        let (x, n) = (gpu.upload(&[0f32; 10]), 8i32);
        assert_eq!(gpu.launch(kernel, ONE, 4, 0, args![x, n]), 0);
        assert!(reason().contains(text) && reason().contains("thread ["), "{}", reason());
        assert_eq!(cuCtxSynchronize(), status);
    }
    let gpu = Gpu::new();
    let x = gpu.alloc::<f32>(10);
    assert_eq!(cuMemsetD32_v2(x, 0, 11), 1);
    assert!(reason().contains("4 bytes past"), "{}", reason());
    assert_eq!(cuMemsetD32_v2(x + 1, 0, 1), 1);
    assert_eq!(cuMemcpyDtoD_v2(x, x + 4096, 4), 1);
    assert_eq!(cuMemFree_v2(x + 4), 1);
    assert!(reason().contains("not its start"), "{}", reason());
}

#[test]
fn host_and_device_addresses_are_told_apart() {
    let gpu = Gpu::new();
    let x = gpu.alloc::<f32>(4);
    let mut host = [0f32; 4];
    let here = host.as_mut_ptr();
    assert_eq!(cuMemcpyDtoH_v2(here.cast(), here as u64, 16), 1);
    assert!(reason().contains("not a device address"), "{}", reason());
    assert_eq!(cuMemcpyHtoD_v2(x, x as *const _, 16), 1);
    assert!(reason().contains("host address is wanted"), "{}", reason());
    assert_eq!(cuMemsetD8_v2(here as u64, 0, 4), 1);
    assert_eq!(cuMemFree_v2(here as u64), 1);
    assert!(reason().contains("host address"), "{}", reason());
    let (mut kind, mut who) = (0u32, 0u64);
    assert_eq!(cuPointerGetAttribute((&raw mut kind).cast(), 2, x + 8), 0);
    assert_eq!(kind, 2);
    assert_eq!(cuPointerGetAttribute((&raw mut who).cast(), 1, x), 0);
    assert_eq!(who, gpu.context);
    let before = cudasim_violations();
    assert_eq!(cuPointerGetAttribute((&raw mut kind).cast(), 2, here as u64), 1);
    assert_eq!(cudasim_violations(), before, "a probe of a host pointer is no violation");
}

/// Runs this test binary again for one ignored test, in a process of its own.
fn child(test: &str) -> std::process::Output {
    std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", test, "--nocapture", "--test-threads=1"])
        .output()
        .unwrap()
}

#[test]
#[ignore = "the parent runs it in a process that dies"]
fn child_reads_a_device_address() {
    let gpu = Gpu::new();
    let x = gpu.upload(&[1f32]);
    // SAFETY: none; that is the point.
    let value = unsafe { std::ptr::read_volatile(x as *const f32) };
    println!("survived with {value}");
}

#[test]
#[ignore = "the parent runs it in a process that dies"]
fn child_reads_freed_pinned_memory() {
    let _gpu = Gpu::new();
    let mut p = std::ptr::null_mut();
    assert_eq!(cuMemHostAlloc(&mut p, 64, 0), 0);
    assert_eq!(cuMemFreeHost(p), 0);
    // SAFETY: none; that is the point.
    let value = unsafe { std::ptr::read_volatile(p.cast::<u8>()) };
    println!("survived with {value}");
}

#[test]
fn the_host_dies_when_it_follows_a_device_address() {
    use std::os::unix::process::ExitStatusExt;
    for test in ["child_reads_a_device_address", "child_reads_freed_pinned_memory"] {
        let output = child(test);
        assert_eq!(output.status.signal(), Some(11), "{output:?}");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("survived"));
    }
}

#[test]
fn shared_races_and_barrier_divergence() {
    let mut gpu = Gpu::new();
    let racy = gpu.kernel(REDUCE, "sum_without_barrier");
    let (x, out) = (gpu.upload(&[1f32; 64]), gpu.alloc::<f32>(64));
    assert_eq!(gpu.launch(racy, ONE, 64, 256, args![x, out]), 0);
    assert!(reason().contains("no barrier between"), "{}", reason());
    assert!(count("shared_races") > 0);
    let diverge = gpu.also("diverge");
    assert_eq!(gpu.launch(diverge, ONE, 32, 0, args![out]), 0);
    assert!(reason().contains("barrier divergence"), "{}", reason());
    assert_eq!(cuCtxSynchronize(), 719);
}

#[test]
fn traps_and_endless_kernels_end() {
    let mut gpu = Gpu::with(&[("budget", "100000")]);
    let forever = gpu.kernel(TYPES, "forever");
    let x = gpu.upload(&[0i32]);
    assert_eq!(gpu.launch(forever, ONE, 1, 0, args![x]), 0);
    assert_eq!(cuCtxSynchronize(), 702);
    drop(gpu);
    let mut gpu = Gpu::new();
    let fail = gpu.kernel(TYPES, "fail");
    let zero = 0i32;
    assert_eq!(gpu.launch(fail, ONE, 1, 0, args![zero]), 0);
    assert_eq!(cuCtxSynchronize(), 719);
    assert!(count("cuCtxSynchronize") > 0);
}

#[test]
fn launch_limits() {
    let mut gpu = Gpu::new();
    let fill = gpu.kernel(TYPES, "fill");
    let (x, v, n) = (gpu.alloc::<f32>(8), 1f32, 8i32);
    for (grid, block, shared, text) in [
        ([0, 1, 1], 32, 0, "is 0 along x"),
        ([1, 65536, 1], 32, 0, "along y"),
        ([1, 1, 1], 1025, 0, "threads along x"),
        ([1, 1, 1], 32, 48 * 1024 + 1, "shared memory"),
    ] {
        assert_eq!(gpu.launch(fill, grid, block, shared, args![x, v, n]), 1);
        assert!(reason().contains(text), "{}", reason());
    }
    assert_eq!(cuFuncSetAttribute(fill, 8, 64 * 1024), 0);
    assert_eq!(gpu.launch(fill, ONE, 32, 64 * 1024, args![x, v, n]), 0);
    let none = std::ptr::null_mut();
    assert_eq!(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, gpu.stream, none, none), 1);
    assert!(reason().contains("kernelParams is null"), "{}", reason());
    assert_eq!(count("kernel_launches"), 1);
}

#[test]
fn contexts_must_be_current_and_the_right_one() {
    let mut gpu = Gpu::new();
    let fill = gpu.kernel(TYPES, "fill");
    let (x, v, n) = (gpu.alloc::<f32>(8), 1f32, 8i32);
    let mut popped = 0;
    assert_eq!(cuCtxPopCurrent_v2(&mut popped), 0);
    assert_eq!(popped, gpu.context);
    assert_eq!(cuMemAlloc_v2(&mut popped, 4), 201);
    assert!(reason().contains("no current context"), "{}", reason());
    assert_eq!(cuCtxPopCurrent_v2(&mut popped), 201);
    let mut other = 0;
    assert_eq!(cuCtxCreate_v2(&mut other, 0, 0), 0);
    assert_eq!(gpu.launch_on(0, fill, ONE, 8, 0, args![x, v, n]), 201);
    assert_eq!(cuStreamSynchronize(gpu.stream), 400);
    assert!(reason().contains("another context"), "{}", reason());
    assert_eq!(cuMemFree_v2(x), 1);
    let mut blas = 0;
    assert_eq!(cublasCreate_v2(&mut blas), 0);
    assert_eq!(cublasSetStream_v2(blas, gpu.stream), 1);
    assert_eq!(cuCtxDestroy_v2(other), 0);
    let current = cuCtxSynchronize();
    assert_eq!(current, 201, "the destroyed context was popped");
}

#[test]
fn handles_end_and_are_never_mistaken() {
    let gpu = Gpu::new();
    let (mut stream, mut event) = (0, 0);
    assert_eq!(cuStreamCreate(&mut stream, 1), 0);
    assert_eq!(cuEventCreate(&mut event, 2), 0);
    assert_eq!(cuStreamDestroy_v2(stream), 0);
    assert_eq!(cuStreamDestroy_v2(stream), 400);
    assert_eq!(cuEventRecord(event, stream), 400);
    assert!(reason().contains("was destroyed"), "{}", reason());
    assert_eq!(cuEventRecord(stream, gpu.stream), 400);
    assert!(reason().contains("not a Event handle"), "{}", reason());
    assert_eq!(cuEventDestroy_v2(event), 0);
    assert_eq!(cuEventDestroy_v2(event), 400);
    assert_eq!(cuStreamSynchronize(0x1234), 400);
}

#[test]
fn missing_devices_versions_and_memory() {
    let turn = turn();
    set("devices", "0");
    assert_eq!(cuInit(0), 100);
    set("devices", "1");
    drop(turn);
    let gpu = Gpu::with(&[("memory", "1M"), ("driver", "12020")]);
    let mut address = 0;
    assert_eq!(cuMemAlloc_v2(&mut address, 1 << 20), 0);
    assert_eq!(cuMemAlloc_v2(&mut address, 1), 2);
    assert_eq!(cudasim_violations(), 0, "running out of memory is no violation");
    let (mut free, mut total) = (1, 0);
    assert_eq!(cuMemGetInfo_v2(&mut free, &mut total), 0);
    assert_eq!((free, total), (0, 1 << 20));
    // NVRTC 12.9 writes PTX 8.8; a driver of CUDA 12.2 knows 8.2.
    let image = std::ffi::CString::new(TYPES).unwrap();
    assert_eq!(cuModuleLoadData(&mut address, image.as_ptr().cast()), 222);
    let bad = c".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry f() { .reg .b32 %r<2>; frobnicate.u32 %r1; }";
    assert_eq!(cuModuleLoadData(&mut address, bad.as_ptr().cast()), 218);
    assert!(reason().contains("frobnicate"), "{}", reason());
    drop(gpu);
}

#[test]
fn leaks_are_listed() {
    let mut gpu = Gpu::new();
    gpu.kernel(TYPES, "fill");
    let x = gpu.alloc::<f32>(25);
    let (mut event, mut blas, mut solver, mut params) = (0, 0, 0, 0);
    assert_eq!(cuEventCreate(&mut event, 0), 0);
    assert_eq!(cublasCreate_v2(&mut blas), 0);
    assert_eq!(cusolverDnCreate(&mut solver), 0);
    assert_eq!(cusolverDnCreateParams(&mut params), 0);
    let list = leaks();
    for kind in [
        "100 bytes",
        "stream",
        "event",
        "module",
        "cuBLAS",
        "cuSOLVER handle",
        "parameters",
        "primary context",
    ] {
        assert_eq!(list.iter().filter(|l| l.contains(kind)).count(), 1, "{kind}: {list:?}");
    }
    assert_eq!(list.len(), 8);
    assert_eq!(cuMemFree_v2(x), 0);
    assert_eq!(cuEventDestroy_v2(event), 0);
    assert_eq!(cublasDestroy_v2(blas), 0);
    assert_eq!(cusolverDnDestroy(solver), 0);
    assert_eq!(cusolverDnDestroyParams(params), 0);
    assert_eq!(cuModuleUnload(gpu.modules[0]), 0);
    assert_eq!(cuCtxPopCurrent_v2(std::ptr::null_mut()), 0);
    assert_eq!(cuDevicePrimaryCtxRelease_v2(0), 0);
    let list = leaks();
    assert_eq!(list.len(), 1, "{list:?}");
    assert!(list[0].contains("stream") && list[0].contains("when context"), "{list:?}");
    assert_eq!(cuDevicePrimaryCtxRelease_v2(0), 201);
}

#[test]
fn bad_products_are_refused() {
    let gpu = Gpu::new();
    let mut blas = 0;
    assert_eq!(cublasCreate_v2(&mut blas), 0);
    assert_eq!(cublasSetStream_v2(blas, gpu.stream), 0);
    let (a, one) = (gpu.upload(&[1f32; 64]), 1f32);
    let scalar = (&raw const one).cast();
    let gemm = |lda, c: u64, alpha| {
        let (a, c) = (a as *const _, c as *mut _);
        cublasSgemm_v2(blas, 0, 0, 4, 4, 4, alpha, a, lda, a, 4, scalar, c, 4)
    };
    let c = gpu.upload(&[1f32; 16]);
    assert_eq!(gemm(3, c, scalar), 7);
    assert!(reason().contains("leading dimension of A is 3"), "{}", reason());
    assert_eq!(gemm(4, 0, scalar), 7);
    assert_eq!(gemm(4, c, a as *const _), 7);
    assert!(reason().contains("pointer mode is host"), "{}", reason());
    assert_eq!(gemm(4, c, scalar), 0);
    gpu.download::<f32>(c, 16);
    assert_eq!(gemm(4, a, scalar), 0);
    assert!(reason().contains("overlaps an operand"), "{}", reason());
    assert_eq!(gemm(4, c, scalar), 13, "the context has failed");
}

#[test]
fn injected_faults_strike_once_at_the_nth_call() {
    let gpu = Gpu::new();
    assert_eq!(cudasim_fail(c"cuMemAlloc_v2".as_ptr(), 2, 2), 0);
    assert_eq!(cudasim_fail(c"cublasCreate_v2".as_ptr(), 1, 3), 0);
    let mut address = 0;
    assert_eq!(cuMemAlloc_v2(&mut address, 4), 0);
    assert_eq!(cuMemAlloc_v2(&mut address, 4), 2);
    assert_eq!(cuMemAlloc_v2(&mut address, 4), 0);
    assert_eq!(cublasCreate_v2(&mut address), 3);
    assert_eq!(cublasCreate_v2(&mut address), 0);
    assert_eq!(count("injected"), 2);
    assert_eq!(cudasim_violations(), 0);
    assert_eq!(count("cuMemAlloc_v2"), 3);
    drop(gpu);
}

#[test]
fn uninitialised_reads_are_counted_or_refused() {
    let mut gpu = Gpu::new();
    let add = gpu.kernel(TYPES, "add_to");
    let (x, y, n) = (gpu.alloc::<f32>(4), gpu.upload(&[0f32; 4]), 4i32);
    assert_eq!(gpu.launch(add, ONE, 4, 0, args![x, y, n]), 0);
    assert_eq!(count("uninit_bytes"), 16);
    assert!(gpu.download::<f32>(y, 4).iter().all(|v| v.is_nan()), "uninitialised memory is NaN");
    set("uninit", "refuse");
    assert_eq!(gpu.launch(add, ONE, 4, 0, args![x, y, n]), 0);
    assert!(reason().contains("never written"), "{}", reason());
    assert_eq!(cuCtxSynchronize(), 700);
}
