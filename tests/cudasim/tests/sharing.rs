//! Managed memory, memory of peers, and two host threads at once.

mod common;

use cudasim::control::*;
use cudasim::driver::{context::*, copy::*, device::*, event::*, launch::*, memory::*, stream::*};

use common::{Gpu, TYPES, count, reason};

const ONE: [u32; 3] = [1, 1, 1];

/// Launches `fill` from any thread.
fn launch_fill(fill: u64, stream: u64, (x, v, n): (u64, f32, i32)) -> i32 {
    let list = args![x, v, n];
    let (list, none) = (list.as_ptr().cast_mut().cast(), std::ptr::null_mut());
    cuLaunchKernel(fill, (n as u32).div_ceil(64), 1, 1, 64, 1, 1, 0, stream, list, none)
}

/// An attribute of a pointer that is a number of four bytes, or the status.
fn attribute(which: i32, address: u64) -> Result<u64, i32> {
    let mut value = 0u64;
    match cuPointerGetAttribute((&raw mut value).cast(), which, address) {
        0 => Ok(value),
        status => Err(status),
    }
}

#[test]
fn managed_memory_is_the_hosts_and_the_devices() {
    let mut gpu = Gpu::deferred(3);
    let fill = gpu.kernel(TYPES, "fill");
    let (mut x, mut y, v, n) = (0u64, 0u64, 3f32, 8i32);
    assert_eq!(cuMemAllocManaged(&mut x, 32, 0), 1, "no flag");
    assert_eq!(cuMemAllocManaged(&mut x, 0, 1), 1, "no bytes");
    assert_eq!(cuMemAllocManaged(&mut x, 32, 1), 0, "{}", reason());
    // It says that it is device memory, and that it is managed; device memory says that it is not.
    assert_eq!((attribute(2, x), attribute(8, x), attribute(4, x)), (Ok(2), Ok(1), Ok(x)));
    assert_eq!((attribute(1, x), attribute(9, x)), (Ok(gpu.context), Ok(0)));
    let device = gpu.alloc::<f32>(8);
    assert_eq!((attribute(2, device), attribute(8, device), attribute(4, device)), (Ok(2), Ok(0), Err(1)));
    // SAFETY: 32 bytes that host and device share.
    let host = unsafe { std::slice::from_raw_parts_mut(x as *mut f32, 8) };
    host.fill(1.0);
    assert_eq!(gpu.launch(fill, ONE, 8, 0, args![x, v, n]), 0);
    assert_eq!(host[0], 1.0, "the kernel has not run");
    assert_eq!(cuStreamSynchronize(gpu.stream), 0);
    assert_eq!(*host, [3.0; 8]);
    // Copies take it on either side.
    let mut out = [0f32; 8];
    assert_eq!(cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), x, 32), 0, "{}", reason());
    assert_eq!(out, [3.0; 8]);
    assert_eq!(cuMemcpyDtoDAsync_v2(device, x, 32, gpu.stream), 0);
    assert_eq!(gpu.download::<f32>(device, 8), [3.0; 8]);
    // Unordered use is a race, as with any memory, and bounds hold.
    let mut other = 0;
    assert_eq!(cuStreamCreate(&mut other, 1), 0);
    assert_eq!(gpu.launch(fill, ONE, 8, 0, args![x, v, n]), 0);
    assert_eq!(gpu.launch_on(other, fill, ONE, 8, 0, args![x, v, n]), 0);
    assert_eq!(cuCtxSynchronize(), 0);
    assert_eq!(count("races"), 1);
    assert_eq!(cuMemsetD8_v2(x, 0, 33), 1);
    assert!(reason().contains("managed allocation"), "{}", reason());
    assert_eq!(cuMemFreeHost(x as _), 1, "freed by the other function");
    assert_eq!(cuMemFree_v2(x), 0);
    assert_eq!(cuMemFree_v2(x), 1);
    assert_eq!(attribute(2, x), Err(1));
    assert_eq!(cuMemAllocManaged(&mut y, 32, 1), 0);
    assert_eq!(y, x, "the address is used again");
    assert_eq!(cuMemFree_v2(y), 0);
}

#[test]
fn memory_of_a_peer_is_reached_only_where_access_was_enabled() {
    for enabled in [true, false] {
        let mut gpu = Gpu::with(&[("devices", "2")]);
        let fill = gpu.kernel(TYPES, "fill");
        let (mut peer, mut x, mut can, v, n) = (0u64, 0u64, 0, 3f32, 8i32);
        assert_eq!(cuDevicePrimaryCtxRetain(&mut peer, 1), 0);
        assert_eq!(cuCtxPushCurrent_v2(peer), 0);
        assert_eq!(cuMemAlloc_v2(&mut x, 32), 0);
        assert_eq!(cuCtxPopCurrent_v2(std::ptr::null_mut()), 0);
        assert_eq!((attribute(9, x), attribute(2, x), attribute(1, x)), (Ok(1), Ok(2), Ok(peer)));
        assert_eq!(cuDeviceCanAccessPeer(&mut can, 0, 1), 0);
        assert_eq!(can, 1);
        assert_eq!(cuDeviceCanAccessPeer(&mut can, 0, 0), 0);
        assert_eq!(can, 0);
        assert_eq!(cuCtxDisablePeerAccess(peer), 705);
        assert_eq!(cuCtxEnablePeerAccess(gpu.context, 0), 217, "its own device");
        if enabled {
            assert_eq!(cuCtxEnablePeerAccess(peer, 0), 0);
            assert_eq!(cuCtxEnablePeerAccess(peer, 0), 704);
        }
        // The launch succeeds either way; without access the kernel fails.
        assert_eq!(gpu.launch(fill, ONE, 8, 0, args![x, v, n]), 0);
        assert_eq!(cuCtxSynchronize(), if enabled { 0 } else { 700 });
        if !enabled {
            let failure = "of another context";
            let mut reasons = vec![0u8; 1 << 16];
            let length = cudasim_reasons(reasons.as_mut_ptr().cast(), reasons.len());
            let reasons = String::from_utf8_lossy(&reasons[..length]).into_owned();
            assert!(reasons.contains(failure), "{reasons}");
            continue;
        }
        let mut out = [0f32; 8];
        let mut own = 0;
        assert_eq!(cuCtxGetCurrent(&mut own), 0);
        assert_eq!(own, gpu.context);
        assert_eq!(cuCtxPushCurrent_v2(peer), 0);
        assert_eq!(cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), x, 32), 0);
        assert_eq!(out, [3.0; 8]);
        // Access goes one way.
        let mine = allocated_in(gpu.context);
        assert_eq!(cuMemsetD8_v2(mine, 0, 4), 1);
        assert!(reason().contains("of another context"), "{}", reason());
        assert_eq!(cuCtxPopCurrent_v2(std::ptr::null_mut()), 0);
        assert_eq!(cuCtxDisablePeerAccess(peer), 0);
        assert_eq!(cuMemsetD8_v2(x, 0, 4), 1);
    }
}

/// Four bytes in a context that is not current.
fn allocated_in(context: u64) -> u64 {
    let mut address = 0;
    assert_eq!(cuCtxPushCurrent_v2(context), 0);
    assert_eq!(cuMemAlloc_v2(&mut address, 4), 0);
    assert_eq!(cuCtxPopCurrent_v2(std::ptr::null_mut()), 0);
    address
}

#[test]
fn every_host_thread_has_its_own_current_context() {
    let gpu = Gpu::new();
    let context = gpu.context;
    std::thread::spawn(move || {
        let mut address = 0;
        assert_eq!(cuMemAlloc_v2(&mut address, 4), 201);
        assert!(reason().contains("no current context"), "{}", reason());
        assert_eq!(cuCtxPushCurrent_v2(context), 0);
        assert_eq!(cuMemAlloc_v2(&mut address, 4), 0);
        assert_eq!(cuMemFree_v2(address), 0);
        assert_eq!(cuCtxPopCurrent_v2(&mut address), 0);
        assert_eq!(address, context);
    })
    .join()
    .unwrap();
    let mut current = 0;
    assert_eq!(cuCtxGetCurrent(&mut current), 0);
    assert_eq!(current, context, "the other thread's stack is its own");
}

#[test]
fn the_per_thread_streams_of_two_threads_are_two_streams() {
    for (stream, races) in [(2u64, 1), (1, 0)] {
        let mut gpu = Gpu::deferred(5);
        let fill = gpu.kernel(TYPES, "fill");
        let x = gpu.alloc::<f32>(8);
        let context = gpu.context;
        let work = move || {
            assert_eq!(cuCtxSetCurrent(context), 0);
            assert_eq!(launch_fill(fill, stream, (x, 3.0, 8)), 0);
        };
        work();
        std::thread::spawn(work).join().unwrap();
        assert_eq!(cuCtxSynchronize(), 0);
        assert_eq!(count("races"), races, "stream {stream}: {}", reason());
    }
}

/// Makes and ends streams, events and memory; every number that comes back is the thread's own.
fn labour(context: u64, fill: u64, own: f32) {
    assert_eq!(cuCtxPushCurrent_v2(context), 0);
    for round in 0..60 {
        let v = own + round as f32;
        let (mut stream, mut event, mut x) = (0, 0, 0u64);
        assert_eq!(cuStreamCreate(&mut stream, 1), 0);
        assert_eq!(cuEventCreate(&mut event, 2), 0);
        assert_eq!(cuMemAlloc_v2(&mut x, 256), 0);
        assert_eq!(launch_fill(fill, stream, (x, v, 64)), 0);
        assert_eq!(cuEventRecord(event, stream), 0);
        assert_eq!(cuEventSynchronize(event), 0);
        let mut out = [0f32; 64];
        assert_eq!(cuMemcpyDtoHAsync_v2(out.as_mut_ptr().cast(), x, 256, stream), 0);
        assert_eq!(cuStreamSynchronize(stream), 0);
        assert_eq!(out, [v; 64]);
        assert_eq!(cuMemFree_v2(x), 0);
        assert_eq!(cuEventDestroy_v2(event), 0);
        assert_eq!(cuStreamDestroy_v2(stream), 0);
    }
    assert_eq!(cuCtxPopCurrent_v2(std::ptr::null_mut()), 0);
}

#[test]
fn two_host_threads_work_at_once() {
    for mode in ["eager", "deferred"] {
        let mut gpu = Gpu::with(&[("mode", mode)]);
        let fill = gpu.kernel(TYPES, "fill");
        let (context, before) = (gpu.context, count("allocs"));
        std::thread::scope(|scope| {
            for own in [1000.0, 2000.0] {
                scope.spawn(move || labour(context, fill, own));
            }
        });
        assert_eq!(count("allocs") - before, 120);
        assert_eq!(count("allocs") - count("frees"), before);
        gpu.clean();
        // A failure of one is a failure of the context, whoever asks.
        let x = gpu.alloc::<f32>(8);
        let work = move || {
            assert_eq!(cuCtxPushCurrent_v2(context), 0);
            assert_eq!(launch_fill(fill, 1, (x, 1.0, 800)), 0);
            cuCtxSynchronize()
        };
        let failed = std::thread::spawn(work).join().unwrap();
        assert_eq!(failed, 700);
        assert_eq!(cuCtxSynchronize(), 700);
    }
}

#[test]
fn devices_say_that_they_have_managed_memory() {
    let _gpu = Gpu::new();
    let mut value = 0;
    for which in [83, 89] {
        assert_eq!(cuDeviceGetAttribute(&mut value, which, 0), 0);
        assert_eq!(value, 1, "attribute {which}");
    }
}
