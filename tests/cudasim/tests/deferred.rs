//! Deferred mode: work runs late, in any legal order, and what nothing orders is reported as a race.

mod common;

use cudasim::control::*;
use cudasim::driver::{context::*, copy::*, event::*, graph::*, memory::*, stream::*};

use common::{Gpu, TYPES, count, reason};

const ONE: [u32; 3] = [1, 1, 1];

/// Writes `x` on one stream, adds it to `y` on another; `event` orders them.
fn two_streams(seed: u64, event: bool) -> (Vec<f32>, u64, String) {
    let mut gpu = Gpu::deferred(seed);
    let (fill, add) = (gpu.kernel(TYPES, "fill"), gpu.also("add_to"));
    let (x, y) = (gpu.upload(&[1f32; 64]), gpu.upload(&[10f32; 64]));
    let (mut other, mut done) = (0, 0);
    assert_eq!(cuStreamCreate(&mut other, 1), 0);
    assert_eq!(cuEventCreate(&mut done, 2), 0);
    let (v, n) = (5f32, 64i32);
    assert_eq!(gpu.launch(fill, ONE, 64, 0, args![x, v, n]), 0);
    if event {
        assert_eq!(cuEventRecord(done, gpu.stream), 0);
        assert_eq!(cuStreamWaitEvent(other, done, 0), 0);
    }
    assert_eq!(gpu.launch_on(other, add, ONE, 64, 0, args![x, y, n]), 0);
    assert_eq!(cuStreamSynchronize(other), 0);
    (gpu.download::<f32>(y, 64), count("races"), reason())
}

#[test]
fn an_event_orders_and_a_missing_one_is_a_race_under_every_seed() {
    let mut results = std::collections::HashSet::new();
    for seed in 0..20 {
        assert_eq!(two_streams(seed, true), (vec![15f32; 64], 0, String::new()));
        let (y, races, reason) = two_streams(seed, false);
        assert_eq!(races, 1, "{reason}");
        assert!(reason.contains("nothing orders them") && reason.contains("`add_to`"), "{reason}");
        results.insert(y[0] as i32);
    }
    assert_eq!(results, [11, 15].into(), "both orders occur");
}

#[test]
fn the_race_is_found_in_eager_mode_too() {
    let mut gpu = Gpu::new();
    let fill = gpu.kernel(TYPES, "fill");
    let (x, v, n) = (gpu.alloc::<f32>(64), 5f32, 64i32);
    let mut other = 0;
    assert_eq!(cuStreamCreate(&mut other, 1), 0);
    assert_eq!(gpu.launch(fill, ONE, 64, 0, args![x, v, n]), 0);
    assert_eq!(gpu.launch_on(other, fill, ONE, 64, 0, args![x, v, n]), 0);
    assert_eq!(count("races"), 1);
    // Disjoint bytes of one allocation do not race.
    let (low, half) = (gpu.alloc::<f32>(64), 32i32);
    let high = low + 128;
    assert_eq!(gpu.launch(fill, ONE, 32, 0, args![low, v, half]), 0);
    assert_eq!(gpu.launch_on(other, fill, ONE, 32, 0, args![high, v, half]), 0);
    assert_eq!(count("races"), 1);
}

#[test]
fn nothing_runs_until_the_host_waits() {
    let mut gpu = Gpu::deferred(3);
    let fill = gpu.kernel(TYPES, "fill");
    let (x, v, n) = (gpu.upload(&[1f32; 4]), 2f32, 4i32);
    assert_eq!(gpu.launch(fill, ONE, 4, 0, args![x, v, n]), 0);
    let mut now = [0f32; 4];
    assert_eq!(cudasim_peek(x, now.as_mut_ptr().cast(), 16), 0);
    assert_eq!(now, [1f32; 4]);
    assert_eq!(cudasim_pending(), 1);
    // Each query lets the device go on a little, so polling ends.
    let mut polls = 0;
    while cuStreamQuery(gpu.stream) == 600 {
        polls += 1;
        assert!(polls < 10);
    }
    assert_eq!(cudasim_peek(x, now.as_mut_ptr().cast(), 16), 0);
    assert_eq!(now, [2f32; 4]);
    gpu.clean();
}

#[test]
fn pinned_memory_is_read_when_the_copy_runs() {
    let gpu = Gpu::deferred(1);
    let mut p = std::ptr::null_mut();
    assert_eq!(cuMemHostAlloc(&mut p, 16, 0), 0);
    // SAFETY: 16 bytes of pinned host memory.
    let host = unsafe { std::slice::from_raw_parts_mut(p.cast::<f32>(), 4) };
    host.fill(1.0);
    let x = gpu.alloc::<f32>(4);
    assert_eq!(cuMemcpyHtoDAsync_v2(x, p, 16, gpu.stream), 0);
    host.fill(2.0);
    assert_eq!(gpu.download::<f32>(x, 4), [2.0; 4], "the host wrote too early, as on a device");
    // Pageable memory is staged at the call and counted as a wait.
    let mut page = [3f32; 4];
    let before = count("host_syncs");
    assert_eq!(cuMemcpyHtoDAsync_v2(x, page.as_ptr().cast(), 16, gpu.stream), 0);
    page.fill(4.0);
    assert_eq!((count("host_syncs") - before, count("pageable_copies")), (1, 1));
    assert_eq!(gpu.download::<f32>(x, 4), [3.0; 4]);
    // A copy back that the host does not wait for has not happened yet.
    host.fill(0.0);
    assert_eq!(cuMemcpyDtoHAsync_v2(p, x, 16, gpu.stream), 0);
    assert_eq!(host[0], 0.0);
    assert_eq!(cuStreamSynchronize(gpu.stream), 0);
    assert_eq!(host[0], 3.0);
    gpu.clean();
}

#[test]
fn the_legacy_stream_orders_blocking_streams_only() {
    for (flags, races) in [(0, 0), (1, 1)] {
        let mut gpu = Gpu::deferred(5);
        let fill = gpu.kernel(TYPES, "fill");
        let (x, v, n) = (gpu.alloc::<f32>(8), 3f32, 8i32);
        let mut stream = 0;
        assert_eq!(cuStreamCreate(&mut stream, flags), 0);
        assert_eq!(gpu.launch_on(stream, fill, ONE, 8, 0, args![x, v, n]), 0);
        // A synchronous copy runs on the legacy stream.
        let mut out = [0f32; 8];
        assert_eq!(cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), x, 32), 0);
        assert_eq!(cuCtxSynchronize(), 0);
        assert_eq!(count("races"), races, "flags {flags}");
    }
}

#[test]
fn host_synchronisation_orders_what_follows() {
    let mut gpu = Gpu::deferred(9);
    let fill = gpu.kernel(TYPES, "fill");
    let (x, v, n) = (gpu.alloc::<f32>(8), 3f32, 8i32);
    let (mut other, mut event) = (0, 0);
    assert_eq!(cuStreamCreate(&mut other, 1), 0);
    assert_eq!(cuEventCreate(&mut event, 2), 0);
    assert_eq!(gpu.launch(fill, ONE, 8, 0, args![x, v, n]), 0);
    assert_eq!(cuEventRecord(event, gpu.stream), 0);
    assert_eq!(cuEventSynchronize(event), 0);
    assert_eq!(gpu.launch_on(other, fill, ONE, 8, 0, args![x, v, n]), 0);
    assert_eq!(cuStreamSynchronize(other), 0);
    gpu.clean();
    // A record made before the work does not order it.
    assert_eq!(cuEventRecord(event, other), 0);
    assert_eq!(gpu.launch_on(other, fill, ONE, 8, 0, args![x, v, n]), 0);
    assert_eq!(cuStreamWaitEvent(gpu.stream, event, 0), 0);
    assert_eq!(gpu.launch(fill, ONE, 8, 0, args![x, v, n]), 0);
    assert_eq!(cuCtxSynchronize(), 0);
    assert_eq!(count("races"), 1);
}

#[test]
fn stream_ordered_allocation_races_with_unordered_use() {
    let mut gpu = Gpu::deferred(2);
    let fill = gpu.kernel(TYPES, "fill");
    let (mut other, mut x) = (0, 0);
    assert_eq!(cuStreamCreate(&mut other, 1), 0);
    assert_eq!(cuMemAllocAsync(&mut x, 32, gpu.stream), 0);
    let (v, n) = (1f32, 8i32);
    assert_eq!(gpu.launch_on(other, fill, ONE, 8, 0, args![x, v, n]), 0);
    assert_eq!(cuCtxSynchronize(), 0);
    assert_eq!(count("races"), 1, "{}", reason());
    assert_eq!(cuMemFreeAsync(x, gpu.stream), 0);
    assert_eq!(cuCtxSynchronize(), 0);
    assert_eq!(cuMemFreeAsync(x, gpu.stream), 1);
}

/// Ends a capture: the graph, ready to be launched.
fn instantiated(stream: u64) -> u64 {
    let (mut graph, mut exec) = (0, 0);
    assert_eq!(cuStreamEndCapture(stream, &mut graph), 0, "{}", reason());
    assert_eq!(cuGraphInstantiateWithFlags(&mut exec, graph, 0), 0);
    assert_eq!(cuGraphDestroy(graph), 0);
    exec
}

#[test]
fn a_graph_is_captured_and_replayed() {
    for mode in ["eager", "deferred"] {
        let mut gpu = Gpu::with(&[("mode", mode)]);
        let fill = gpu.kernel(TYPES, "fill");
        let (x, v, n, seven) = (gpu.upload(&[1f32; 8]), 3f32, 8i32, 7f32);
        assert_eq!(cuStreamBeginCapture_v2(gpu.stream, 0), 0);
        let mut status = 0;
        assert_eq!(cuStreamIsCapturing(gpu.stream, &mut status), 0);
        assert_eq!(status, 1);
        assert_eq!(gpu.launch(fill, ONE, 8, 0, args![x, v, n]), 0);
        // Another stream joins the capture through an event, and is joined again.
        let (mut other, mut event) = (0, 0);
        assert_eq!(cuStreamCreate(&mut other, 1), 0);
        assert_eq!(cuEventCreate(&mut event, 2), 0);
        assert_eq!(cuEventRecord(event, gpu.stream), 0);
        assert_eq!(cuEventQuery(event), 907);
        assert_eq!(cuStreamWaitEvent(other, event, 0), 0);
        assert_eq!(cuStreamIsCapturing(other, &mut status), 0);
        assert_eq!(status, 1);
        assert_eq!(gpu.launch_on(other, fill, ONE, 8, 0, args![x, seven, n]), 0);
        assert_eq!(cuEventRecord(event, other), 0);
        assert_eq!(cuStreamWaitEvent(gpu.stream, event, 0), 0);
        let exec = instantiated(gpu.stream);
        assert_eq!(gpu.download::<f32>(x, 8), [1f32; 8], "captured work does not run");
        for _ in 0..2 {
            assert_eq!(gpu.launch(fill, ONE, 8, 0, args![x, v, n]), 0);
            let launches = count("kernel_launches");
            assert_eq!(cuGraphLaunch(exec, gpu.stream), 0);
            assert_eq!(gpu.download::<f32>(x, 8), [7f32; 8]);
            assert_eq!(count("kernel_launches"), launches, "a replay is no launch of the host's");
        }
        assert_eq!((count("races"), count("graph_launches")), (0, 2));
        assert_eq!(cuGraphExecDestroy(exec), 0);
        assert_eq!(cuGraphLaunch(exec, gpu.stream), 400);
    }
}

#[test]
fn what_a_capture_forbids_is_refused_and_spoils_it() {
    let gpu = Gpu::with(&[("mode", "eager")]);
    let (mut event, mut graph, mut status) = (0, 0, 0);
    let place = std::cell::Cell::new(0u64);
    assert_eq!(cuEventCreate(&mut event, 2), 0);
    // Complete or not: an event from outside is refused.
    assert_eq!(cuEventRecord(event, gpu.stream), 0);
    assert_eq!(cuEventSynchronize(event), 0);
    let forbidden: [(&dyn Fn() -> i32, i32); 4] = [
        (&|| cuStreamWaitEvent(gpu.stream, event, 0), 905),
        (&|| cuStreamSynchronize(gpu.stream), 900),
        (&|| cuStreamQuery(gpu.stream), 900),
        (&|| cuMemAlloc_v2(place.as_ptr(), 4), 900),
    ];
    for (call, expected) in forbidden {
        assert_eq!(cuStreamBeginCapture_v2(gpu.stream, 0), 0);
        assert_eq!(call(), expected, "{}", reason());
        assert_eq!(cuStreamIsCapturing(gpu.stream, &mut status), 0);
        assert_eq!(status, 2);
        assert_eq!(cuEventRecordWithFlags(event, gpu.stream, 1), 901);
        assert_eq!(cuStreamEndCapture(gpu.stream, &mut graph), 901);
        assert_eq!((graph, cuStreamSynchronize(gpu.stream)), (0, 0));
    }
    // A stream that joined and did not come back.
    let mut other = 0;
    assert_eq!(cuStreamCreate(&mut other, 1), 0);
    assert_eq!(cuStreamBeginCapture_v2(gpu.stream, 0), 0);
    assert_eq!(cuEventRecord(event, gpu.stream), 0);
    assert_eq!(cuStreamWaitEvent(other, event, 0), 0);
    assert_eq!(cuEventRecordWithFlags(event, other, 1), 0);
    assert_eq!(cuStreamEndCapture(gpu.stream, &mut graph), 904);
}

#[test]
fn external_events_order_replays_with_other_streams() {
    for wait in [true, false] {
        let mut gpu = Gpu::deferred(5);
        let fill = gpu.kernel(TYPES, "fill");
        let (x, three, n, seven) = (gpu.upload(&[1f32; 8]), 3f32, 8i32, 7f32);
        let (mut other, mut event) = (0, 0);
        assert_eq!(cuStreamCreate(&mut other, 1), 0);
        assert_eq!(cuEventCreate(&mut event, 2), 0);
        assert_eq!(cuStreamWaitEvent(other, event, 1), 1, "outside a capture the flag is invalid");
        assert_eq!(cuEventRecord(event, other), 0);
        assert_eq!(cuStreamBeginCapture_v2(gpu.stream, 0), 0);
        assert_eq!(cuStreamWaitEvent(gpu.stream, event, 1), 0);
        assert_eq!(gpu.launch(fill, ONE, 8, 0, args![x, three, n]), 0);
        assert_eq!(cuEventRecordWithFlags(event, gpu.stream, 1), 0);
        let exec = instantiated(gpu.stream);
        // The other stream writes, then the graph, then the other stream again.
        assert_eq!(gpu.launch_on(other, fill, ONE, 8, 0, args![x, seven, n]), 0);
        assert_eq!(cuEventRecord(event, other), 0);
        assert_eq!(cuGraphLaunch(exec, gpu.stream), 0);
        if wait {
            assert_eq!(cuStreamWaitEvent(other, event, 0), 0);
        }
        assert_eq!(gpu.launch_on(other, fill, ONE, 8, 0, args![x, seven, n]), 0);
        assert_eq!(cuCtxSynchronize(), 0);
        assert_eq!(count("races") > 0, !wait, "{}", reason());
    }
}

#[test]
fn work_of_a_destroyed_stream_still_runs() {
    let mut gpu = Gpu::deferred(4);
    let fill = gpu.kernel(TYPES, "fill");
    let (x, v, n) = (gpu.upload(&[1f32; 8]), 3f32, 8i32);
    let mut stream = 0;
    assert_eq!(cuStreamCreate(&mut stream, 1), 0);
    assert_eq!(gpu.launch_on(stream, fill, ONE, 8, 0, args![x, v, n]), 0);
    assert_eq!(cuStreamDestroy_v2(stream), 0);
    assert_eq!(cuStreamQuery(stream), 400);
    assert_eq!(gpu.download::<f32>(x, 8), [3f32; 8]);
}
