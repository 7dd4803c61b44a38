//! What others share with the optimizer: handles of streams that are used again, managed memory, memory of another
//! device, and a second host thread.

use crate::cost::{Trainer, equal};
use crate::parity;
use crate::simulated::{count, simulated, simulated_with};
use crate::support::gpu::Gpu;
use crate::support::tensor::Dtype;
use cudarc::driver::sys::{self, CUresult::CUDA_SUCCESS};
use foam::abi::*;
use std::ptr::null_mut;

/// A driver as it is: the handle of a stream that is gone is the next stream's.
#[test]
fn a_stream_with_the_handle_of_an_old_one_is_another_stream() {
    simulated_with(&["eager"], &[], || {
        let trainer = Trainer::new(&equal(2, &[6, 5]), "merge_dims=false tau=1e6");
        let gpu = trainer.model.gpu.as_ref().unwrap();
        let mut handles = Vec::new();
        for _ in 0..9 {
            let mut stream = null_mut();
            // SAFETY: a stream of ours, which ends after the step has been put on it. Nobody waits for it.
            gpu.within(|| assert_eq!(unsafe { sys::cuStreamCreate(&mut stream, 1) }, CUDA_SUCCESS));
            trainer.try_step_on(1e-3, stream.cast()).unwrap();
            // SAFETY: as above.
            gpu.within(|| assert_eq!(unsafe { sys::cuStreamDestroy_v2(stream) }, CUDA_SUCCESS));
            handles.push(stream);
        }
        assert!(handles.iter().all(|handle| *handle == handles[0]), "the simulator uses handles again");
        assert_eq!(count("races"), 0, "steps on two streams of one handle are not ordered");
        assert_eq!(trainer.model.stats().steps, 9);
    });
}

/// A copy of a buffer of `gpu` in managed memory.
fn managed_copy(gpu: &Gpu, which: usize, bytes: usize) -> u64 {
    let (mut values, mut address) = (vec![0u8; bytes], 0);
    gpu.get(which, &mut values);
    // SAFETY: managed memory is the host's as well, and no work touches it yet.
    gpu.within(|| unsafe {
        assert_eq!(sys::cuMemAllocManaged(&mut address, bytes, 1), CUDA_SUCCESS);
        std::ptr::copy_nonoverlapping(values.as_ptr(), address as *mut u8, bytes);
    });
    address
}

#[test]
fn managed_memory_gives_the_bits_of_device_memory() {
    simulated(|| {
        let specs = equal(2, &[6, 5]);
        let new = || Trainer::new(&specs, "merge_dims=false tau=0.1");
        let plain = new();
        for device_type in [FOAM_DEVICE_CUDA, FOAM_DEVICE_CUDA_MANAGED] {
            let mut shared = new();
            shared.device_type = device_type;
            let gpu = shared.model.gpu.as_ref().unwrap();
            // Buffers are parameter, gradient, parameter, gradient.
            let copies: Vec<u64> = (0..4).map(|which| managed_copy(gpu, which, 120)).collect();
            shared.params = vec![copies[0], copies[2]];
            *shared.grads.borrow_mut() = vec![copies[1], copies[3]];
            (0..9).for_each(|_| {
                shared.step();
            });
            if device_type == FOAM_DEVICE_CUDA {
                (0..9).for_each(|_| {
                    plain.step();
                });
            }
            for number in 0..2 {
                let mut wanted = vec![0u8; 120];
                plain.model.gpu.as_ref().unwrap().get(2 * number, &mut wanted);
                let gpu = shared.model.gpu.as_ref().unwrap();
                // SAFETY: everything has run; 120 bytes that the host may read.
                let found = gpu.within(|| unsafe {
                    assert_eq!(sys::cuCtxSynchronize(), CUDA_SUCCESS);
                    std::slice::from_raw_parts(shared.params[number] as *const u8, 120)
                });
                assert_eq!(found, wanted, "parameter {number}, device type {device_type}");
            }
            let gpu = shared.model.gpu.as_ref().unwrap();
            // SAFETY: allocated above.
            gpu.within(|| {
                copies.iter().for_each(|x| assert_eq!(unsafe { sys::cuMemFree_v2(*x) }, CUDA_SUCCESS))
            });
        }
    });
}

#[test]
fn memory_of_another_device_is_refused_even_if_the_device_reaches_it() {
    simulated_with(&["eager"], &[("CUDASIM_DEVICES", "2")], || {
        let mut trainer = Trainer::new(&equal(2, &[6, 5]), "");
        let good = trainer.params[1];
        let (mut peer, mut address, mut popped) = (null_mut(), 0, null_mut());
        // SAFETY: plain driver calls, each checked.
        unsafe {
            for status in [
                sys::cuDevicePrimaryCtxRetain(&mut peer, 1),
                sys::cuCtxPushCurrent_v2(peer),
                sys::cuMemAlloc_v2(&mut address, 120),
                sys::cuCtxPopCurrent_v2(&mut popped),
            ] {
                assert_eq!(status, CUDA_SUCCESS);
            }
        }
        for reached in [false, true] {
            if reached {
                let gpu = trainer.model.gpu.as_ref().unwrap();
                // SAFETY: a live context of another device.
                gpu.within(|| assert_eq!(unsafe { sys::cuCtxEnablePeerAccess(peer, 0) }, CUDA_SUCCESS));
            }
            trainer.params[1] = address;
            let stream = trainer.model.gpu.as_ref().unwrap().stream();
            let (status, message) = trainer.try_step_on(1e-3, stream).unwrap_err();
            assert_eq!(status, FOAM_INVALID_ARGUMENT, "{message}");
            assert!(message.contains("'p1' lies on cuda:1: expected cuda:0"), "{message}");
        }
        trainer.params[1] = good;
        trainer.step();
        assert_eq!(trainer.model.stats().steps, 1);
        // SAFETY: as above.
        unsafe {
            for status in [
                sys::cuCtxPushCurrent_v2(peer),
                sys::cuMemFree_v2(address),
                sys::cuCtxPopCurrent_v2(&mut popped),
                sys::cuDevicePrimaryCtxRelease_v2(1),
            ] {
                assert_eq!(status, CUDA_SUCCESS);
            }
        }
    });
}

#[test]
fn two_host_threads_give_the_bits_of_one_after_the_other() {
    simulated(|| {
        let run = |policy: &str| {
            let options = format!("policy={policy} device=cuda:0");
            parity::run("reference", &options, Dtype::F32, Dtype::F32, 18).params
        };
        let policies = ["foam", "stale"];
        let expected = policies.map(run);
        let found = std::thread::scope(|scope| {
            policies.map(|policy| scope.spawn(move || run(policy))).map(|thread| thread.join().unwrap())
        });
        assert!(found == expected, "optimizers of two threads disturb each other");
    });
}
