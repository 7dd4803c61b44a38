//! A CUDA device as a trainer uses it: its primary context, a stream, and buffers of its own. Real or simulated.

#![allow(dead_code, reason = "each program that includes this module uses a part of it")]

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUresult, CUstream};
use std::ffi::c_void;
use std::ptr::null_mut;

/// The device, with a buffer for each tensor that was ever put on it.
pub struct Gpu {
    device: CUdevice,
    context: CUcontext,
    stream: CUstream,
    buffers: Vec<(u64, usize)>,
}

#[track_caller]
fn check(status: CUresult) {
    assert_eq!(status, CUresult::CUDA_SUCCESS);
}

/// Makes the context current for `body`, and checks that it still is at its end.
fn within<R>(context: CUcontext, body: impl FnOnce() -> R) -> R {
    // SAFETY: the context is retained by its owner.
    unsafe {
        check(sys::cuCtxPushCurrent_v2(context));
        let result = body();
        let mut popped = null_mut();
        check(sys::cuCtxPopCurrent_v2(&mut popped));
        assert_eq!(popped, context, "a call left another context current");
        result
    }
}

impl Gpu {
    /// Device 0. The driver must be there.
    pub fn open() -> Gpu {
        // SAFETY: plain driver calls, each checked.
        unsafe {
            check(sys::cuInit(0));
            let (mut device, mut context, mut stream) = (0, null_mut(), null_mut());
            check(sys::cuDeviceGet(&mut device, 0));
            check(sys::cuDevicePrimaryCtxRetain(&mut context, device));
            within(context, || check(sys::cuStreamCreate(&mut stream, 1)));
            Gpu { device, context, stream, buffers: Vec::new() }
        }
    }

    /// The stream that everything is ordered on.
    pub fn stream(&self) -> *mut c_void {
        self.stream.cast()
    }

    /// Another stream in place of the old one, which has nothing left to do.
    pub fn change_stream(&mut self) {
        within(self.context, || {
            // SAFETY: the stream is ours.
            unsafe {
                check(sys::cuStreamSynchronize(self.stream));
                check(sys::cuStreamDestroy_v2(self.stream));
                check(sys::cuStreamCreate(&mut self.stream, 1));
            }
        });
    }

    /// Runs `body` with the device's context current, as in a trainer's thread.
    pub fn within<R>(&self, body: impl FnOnce() -> R) -> R {
        within(self.context, body)
    }

    /// Puts bytes into buffer number `which`, in the order of the stream; gives its address.
    pub fn put(&mut self, which: usize, bytes: &[u8]) -> u64 {
        self.buffers.resize(self.buffers.len().max(which + 1), (0, 0));
        let (address, room) = &mut self.buffers[which];
        let stream = self.stream;
        within(self.context, || {
            // SAFETY: buffers of ours; the copy from pageable memory has read it when it returns.
            unsafe {
                if *room < bytes.len() {
                    if *room > 0 {
                        check(sys::cuMemFree_v2(*address));
                    }
                    check(sys::cuMemAlloc_v2(address, bytes.len()));
                    *room = bytes.len();
                }
                check(sys::cuMemcpyHtoDAsync_v2(*address, bytes.as_ptr().cast(), bytes.len(), stream));
                check(sys::cuStreamSynchronize(stream));
            }
        });
        *address
    }

    /// The address of buffer number `which`.
    pub fn address(&self, which: usize) -> u64 {
        self.buffers[which].0
    }

    /// Reads buffer number `which` after everything on the stream.
    pub fn get(&self, which: usize, bytes: &mut [u8]) {
        within(self.context, || {
            // SAFETY: the buffer has been given that many bytes.
            unsafe {
                let from = self.buffers[which].0;
                check(sys::cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), from, bytes.len(), self.stream));
                check(sys::cuStreamSynchronize(self.stream));
            }
        });
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        within(self.context, || {
            // SAFETY: everything is ours.
            unsafe {
                sys::cuStreamSynchronize(self.stream);
                for (address, _) in self.buffers.iter().filter(|b| b.1 > 0) {
                    sys::cuMemFree_v2(*address);
                }
                sys::cuStreamDestroy_v2(self.stream);
            }
        });
        // SAFETY: retained once.
        unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}
