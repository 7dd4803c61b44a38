//! What a device promises no order or identity of: thread blocks, warps, and handles and addresses that are used again.

mod common;

use std::collections::HashSet;

use cudasim::control::*;
use cudasim::driver::{context::*, event::*, memory::*, stream::*};

use common::{Gpu, TYPES, count, reason};

const ORDER: &str = include_str!("fixtures/order.ptx");
const ONE: [u32; 3] = [1, 1, 1];

/// What a kernel of `order.ptx` leaves.
fn left(knobs: &[(&str, &str)], kernel: &str, blocks: u32, threads: u32) -> u32 {
    let mut gpu = Gpu::with(knobs);
    let kernel = gpu.kernel(ORDER, kernel);
    let x = gpu.upload(&[0u32]);
    assert_eq!(gpu.launch(kernel, [blocks, 1, 1], threads, 0, args![x]), 0);
    let out = gpu.download::<u32>(x, 1)[0];
    gpu.clean();
    out
}

#[test]
fn a_kernel_that_relies_on_the_order_of_blocks_or_warps_gives_other_numbers() {
    for (kernel, blocks, threads, step) in [("chain", 8, 1, 1), ("relay", 1, 256, 32)] {
        let expected = (0..8u32).fold(0u32, |x, i| x.wrapping_mul(3).wrapping_add(i * step));
        assert_eq!(left(&[("blocks", "ordered")], kernel, blocks, threads), expected);
        for mode in ["eager", "deferred"] {
            let run = |seed: u32| {
                let seed = seed.to_string();
                left(&[("mode", mode), ("seed", &seed)], kernel, blocks, threads)
            };
            let found: HashSet<u32> = (1..9).map(run).collect();
            assert!(found.len() > 4, "{kernel}, {mode}: {found:?}");
            assert_eq!(run(3), run(3), "a seed gives one order");
        }
    }
    for seed in ["1", "2", "3", "4"] {
        assert_eq!(left(&[("seed", seed)], "tally", 8, 1), 28, "what needs no order gives the same");
    }
}

/// A stream that is destroyed after its work, and another one in its place.
fn replaced(gpu: &mut Gpu, x: u64) -> (u64, u64) {
    let fill = gpu.kernel(TYPES, "fill");
    let (mut first, mut second, v, n) = (0, 0, 3f32, 8i32);
    assert_eq!(cuStreamCreate(&mut first, 1), 0);
    assert_eq!(gpu.launch_on(first, fill, ONE, 8, 0, args![x, v, n]), 0);
    assert_eq!(cuStreamDestroy_v2(first), 0);
    assert_eq!(cuStreamCreate(&mut second, 1), 0);
    assert_eq!(gpu.launch_on(second, fill, ONE, 8, 0, args![x, v, n]), 0);
    (first, second)
}

#[test]
fn a_stream_is_not_its_handle() {
    let mut gpu = Gpu::new();
    let x = gpu.alloc::<f32>(8);
    // A program that takes an equal handle for the same stream leaves out the event.
    let (first, second) = replaced(&mut gpu, x);
    assert_eq!(first, second, "the handle freed last is used first");
    assert_eq!(count("races"), 1, "nothing orders the two streams");
    assert!(reason().contains("nothing orders them"), "{}", reason());
    // Numbers are of streams, not of handles.
    let (mut third, mut old, mut new) = (0, 0, 0);
    assert_eq!(cuStreamGetId(second, &mut old), 0);
    assert_eq!(cuStreamDestroy_v2(second), 0);
    assert_eq!(cuStreamQuery(second), 400, "until then the handle is dead");
    assert_eq!(cuStreamCreate(&mut third, 1), 0);
    assert_eq!(cuStreamGetId(third, &mut new), 0);
    assert_eq!(third, second);
    assert_ne!(new, old);
    // The last freed comes first.
    let (mut a, mut b, mut again) = (0, 0, 0);
    assert_eq!(cuEventCreate(&mut a, 2), 0);
    assert_eq!(cuEventCreate(&mut b, 2), 0);
    assert_eq!(cuEventDestroy_v2(a), 0);
    assert_eq!(cuEventDestroy_v2(b), 0);
    assert_eq!(cuEventCreate(&mut again, 2), 0);
    assert_eq!(again, b);
}

#[test]
fn a_handle_with_work_left_is_not_given_out() {
    let mut gpu = Gpu::deferred(4);
    let x = gpu.alloc::<f32>(8);
    let (first, second) = replaced(&mut gpu, x);
    assert_ne!(first, second);
    assert_eq!(cuCtxSynchronize(), 0);
    let mut third = 0;
    assert_eq!(cuStreamCreate(&mut third, 1), 0);
    assert_eq!(third, first);
}

#[test]
fn addresses_are_used_again_and_hold_nothing_of_before() {
    let mut gpu = Gpu::new();
    let (x, y) = (gpu.upload(&[1f32; 8]), gpu.upload(&[2f32; 8]));
    let number = |address: u64| {
        let mut number = 0u64;
        assert_eq!(cuPointerGetAttribute((&raw mut number).cast(), 7, address), 0);
        number
    };
    let old = number(y);
    assert_eq!(cuMemFree_v2(x), 0);
    assert_eq!(cuMemFree_v2(y), 0);
    let again = gpu.alloc::<f32>(8);
    assert_eq!(again, y, "the address freed last is used first");
    assert_ne!(number(again), old, "the number is the allocation's, not the address's");
    assert_eq!(gpu.alloc::<f32>(7), x, "sizes are rounded up");
    assert_ne!(gpu.alloc::<f32>(8), x);
    // A program that takes an equal address for the same memory reads what nothing has written.
    let (add, z, n) = (gpu.kernel(TYPES, "add_to"), gpu.upload(&[0f32; 8]), 8i32);
    assert_eq!(gpu.launch(add, ONE, 8, 0, args![again, z, n]), 0);
    assert!(gpu.download::<f32>(z, 8).iter().all(|v| v.is_nan()));
    assert_eq!(count("uninit_bytes"), 32);
    // Page-locked memory too; meanwhile it is gone.
    let (mut p, mut q) = (std::ptr::null_mut(), std::ptr::null_mut());
    assert_eq!(cuMemHostAlloc(&mut p, 64, 0), 0);
    // SAFETY: 64 bytes of pinned memory.
    unsafe { p.cast::<u8>().write(7) };
    assert_eq!(cuMemFreeHost(p), 0);
    assert_eq!(cuMemFreeHost(p), 1);
    assert_eq!(cuMemHostAlloc(&mut q, 100, 0), 0);
    assert_eq!(p, q);
    // SAFETY: as above.
    assert_eq!(unsafe { q.cast::<u8>().read() }, 0);
}

#[test]
fn without_reuse_every_use_after_free_is_told() {
    let gpu = Gpu::with(&[("reuse", "0")]);
    let x = gpu.alloc::<f32>(8);
    let (mut stream, mut other) = (0, 0);
    assert_eq!(cuStreamCreate(&mut stream, 1), 0);
    assert_eq!(cuStreamDestroy_v2(stream), 0);
    assert_eq!(cuStreamCreate(&mut other, 1), 0);
    assert_eq!(cuMemFree_v2(x), 0);
    assert_ne!(gpu.alloc::<f32>(8), x);
    assert_eq!(cuMemFree_v2(x), 1);
    assert!(reason().contains("double free"), "{}", reason());
    assert_eq!(cuStreamSynchronize(stream), 400);
    assert_eq!(cudasim_violations(), 2);
}
