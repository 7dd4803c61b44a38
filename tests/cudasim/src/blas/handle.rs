//! cuBLAS handles, and what every operation does first.

use libc::{c_char, c_int, c_void};

use crate::boundary::{blas, put};
use crate::matrix::Real;
use crate::reason::{Result, refuse};
use crate::schedule::{Run, Stage, Work};
use crate::state::Sim;

/// A cuBLAS handle.
#[derive(Clone, Default)]
pub struct BlasHandle {
    /// Its context.
    pub context: u64,
    /// The stream as the caller gave it.
    pub stream: u64,
    /// Scalars are on the device.
    pub device_scalars: bool,
    /// The math mode.
    pub math: c_int,
    /// The atomics mode.
    pub atomics: c_int,
    /// The caller's workspace.
    pub workspace: (u64, usize),
}

/// `alpha` or `beta`: known now, or on the device until the operation runs.
#[derive(Clone, Copy, Debug)]
pub enum Scalar {
    /// Its value.
    Host(f64),
    /// Its address.
    Device(u64, Real),
}

impl Scalar {
    /// The value when the operation runs.
    pub fn value(self, stage: &mut Stage<'_>) -> Result<f64> {
        match self {
            Scalar::Host(value) => Ok(value),
            Scalar::Device(address, real) => {
                let mut bytes = [0u8; 8];
                stage.window.get(address, &mut bytes[..real.size()], real.size())?;
                Ok(real.read(&bytes))
            }
        }
    }
}

impl Sim {
    /// The handle, if its context is current.
    pub fn blas_handle(&mut self, handle: u64) -> Result<BlasHandle> {
        let current = self.current()?;
        let found = self.blas.get(handle)?.clone();
        if found.context != current {
            refuse!(InvalidContext, "the cuBLAS handle belongs to another context than the current one");
        }
        Ok(found)
    }

    /// Reads a scalar by the handle's pointer mode.
    pub fn scalar(&self, handle: &BlasHandle, from: *const c_void, real: Real, name: &str) -> Result<Scalar> {
        let address = from as u64;
        if address < 4096 {
            refuse!(InvalidValue, "{name} is null");
        }
        if handle.device_scalars {
            return Ok(Scalar::Device(address, real));
        }
        if self.store.is_device_address(address) {
            refuse!(InvalidValue, "{name} is a device address but the pointer mode is host");
        }
        let mut bytes = [0u8; 8];
        // SAFETY: the caller promises a scalar of this type in host memory.
        unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), bytes.as_mut_ptr(), real.size()) };
        Ok(Scalar::Host(real.read(&bytes)))
    }

    /// Enqueues an operation on the handle's stream.
    pub fn enqueue_blas(&mut self, handle: &BlasHandle, name: &str, run: Run) -> Result<u64> {
        let stream = self.stream(handle.stream)?;
        self.counters.totals.launches += 1;
        self.counters.totals.blas_calls += 1;
        let (address, size) = handle.workspace;
        let run: Run = if size == 0 {
            run
        } else {
            // The workspace is scratch: two operations that share it must be ordered.
            std::sync::Arc::new(move |stage| {
                stage.window.claim(address, size)?;
                run(stage)
            })
        };
        self.enqueue(stream, name, Work::Run(run))
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasCreate_v2(out: *mut u64) -> c_int {
    blas("cublasCreate_v2", |sim| {
        let context = sim.current()?;
        let handle = sim.blas.add(BlasHandle { context, ..BlasHandle::default() });
        put(out, handle, "handle")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasDestroy_v2(handle: u64) -> c_int {
    blas("cublasDestroy_v2", |sim| {
        let context = sim.blas.remove(handle)?.context;
        if sim.contexts.live.contains_key(&context) {
            sim.counters.totals.implicit_syncs += 1;
            sim.wait_context(context)?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasGetVersion_v2(_handle: u64, out: *mut c_int) -> c_int {
    blas("cublasGetVersion_v2", |sim| put(out, sim.config.driver / 1000 * 10000 + 600, "version"))
}

/// The major, minor or patch number (0, 1, 2) of the version.
#[unsafe(no_mangle)]
pub extern "C" fn cublasGetProperty(which: c_int, out: *mut c_int) -> c_int {
    blas("cublasGetProperty", |sim| {
        let version = [sim.config.driver / 1000, 6, 0];
        match usize::try_from(which).ok().and_then(|which| version.get(which)) {
            Some(number) => put(out, *number, "value"),
            None => refuse!(InvalidValue, "property {which}: there are 0, 1 and 2"),
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasSetStream_v2(handle: u64, stream: u64) -> c_int {
    blas("cublasSetStream_v2", |sim| {
        sim.blas_handle(handle)?;
        sim.stream(stream)?;
        let found = sim.blas.get(handle)?;
        found.stream = stream;
        // As in cuBLAS, the stream's change drops the caller's workspace.
        found.workspace = (0, 0);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasGetStream_v2(handle: u64, out: *mut u64) -> c_int {
    blas("cublasGetStream_v2", |sim| {
        let found = sim.blas_handle(handle)?;
        put(out, found.stream, "streamId")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasSetWorkspace_v2(handle: u64, workspace: *mut c_void, size: usize) -> c_int {
    blas("cublasSetWorkspace_v2", |sim| {
        let context = sim.blas_handle(handle)?.context;
        let address = workspace as u64;
        if size > 0 {
            if !address.is_multiple_of(256) {
                refuse!(InvalidValue, "the workspace {address:#x} is not a multiple of 256");
            }
            sim.store.check(address, size, context)?;
        }
        sim.blas.get(handle)?.workspace = (address, size);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasSetPointerMode_v2(handle: u64, mode: c_int) -> c_int {
    blas("cublasSetPointerMode_v2", |sim| {
        if mode != 0 && mode != 1 {
            refuse!(InvalidValue, "pointer mode {mode} is unknown");
        }
        sim.blas.get(handle)?.device_scalars = mode == 1;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasGetPointerMode_v2(handle: u64, out: *mut c_int) -> c_int {
    blas("cublasGetPointerMode_v2", |sim| {
        let mode = c_int::from(sim.blas.get(handle)?.device_scalars);
        put(out, mode, "mode")
    })
}

/// The mode holds for the products that are enqueued from now on; see `product::Arithmetic`.
#[unsafe(no_mangle)]
pub extern "C" fn cublasSetMathMode(handle: u64, mode: c_int) -> c_int {
    blas("cublasSetMathMode", |sim| {
        // A mode, and the flag that forbids reductions in less than the compute type.
        if !matches!(mode & !16, 0..=4) {
            refuse!(InvalidValue, "math mode {mode} is unknown");
        }
        sim.blas.get(handle)?.math = mode;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasGetMathMode(handle: u64, out: *mut c_int) -> c_int {
    blas("cublasGetMathMode", |sim| {
        let mode = sim.blas.get(handle)?.math;
        put(out, mode, "mode")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasSetAtomicsMode(handle: u64, mode: c_int) -> c_int {
    blas("cublasSetAtomicsMode", |sim| {
        sim.blas.get(handle)?.atomics = mode;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasGetAtomicsMode(handle: u64, out: *mut c_int) -> c_int {
    blas("cublasGetAtomicsMode", |sim| {
        let mode = sim.blas.get(handle)?.atomics;
        put(out, mode, "mode")
    })
}

fn status_name(status: c_int) -> &'static [u8] {
    match status {
        0 => b"CUBLAS_STATUS_SUCCESS\0",
        1 => b"CUBLAS_STATUS_NOT_INITIALIZED\0",
        3 => b"CUBLAS_STATUS_ALLOC_FAILED\0",
        7 => b"CUBLAS_STATUS_INVALID_VALUE\0",
        8 => b"CUBLAS_STATUS_ARCH_MISMATCH\0",
        11 => b"CUBLAS_STATUS_MAPPING_ERROR\0",
        13 => b"CUBLAS_STATUS_EXECUTION_FAILED\0",
        14 => b"CUBLAS_STATUS_INTERNAL_ERROR\0",
        15 => b"CUBLAS_STATUS_NOT_SUPPORTED\0",
        16 => b"CUBLAS_STATUS_LICENSE_ERROR\0",
        _ => b"unknown cuBLAS status\0",
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasGetStatusName(status: c_int) -> *const c_char {
    status_name(status).as_ptr().cast()
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasGetStatusString(status: c_int) -> *const c_char {
    status_name(status).as_ptr().cast()
}
