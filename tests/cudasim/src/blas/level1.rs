//! `nrm2`, `dot`, `axpy` and `scal`.

use std::sync::{Arc, Mutex};

use libc::{c_int, c_void};

use super::gemm::size;
use super::handle::BlasHandle;
use crate::boundary::blas;
use crate::matrix::Real;
use crate::reason::{Result, refuse};
use crate::schedule::{Run, Stage};
use crate::state::Sim;
use crate::window::Window;

/// A strided vector in device memory.
#[derive(Clone, Copy)]
pub struct Vector {
    address: u64,
    count: usize,
    step: i64,
    real: Real,
}

/// A vector of the caller. A negative increment walks backwards from the end, as in BLAS.
pub fn vector(from: *const c_void, count: usize, step: i64, real: Real, name: &str) -> Result<Vector> {
    if count > 0 && (from as u64) < 4096 {
        refuse!(InvalidValue, "{name} is null");
    }
    Ok(Vector { address: from as u64, count, step, real })
}

impl Vector {
    fn element(&self, i: usize) -> u64 {
        let index = if self.step >= 0 {
            i as i64 * self.step
        } else {
            (self.count as i64 - 1 - i as i64) * -self.step
        };
        self.address + index as u64 * self.real.size() as u64
    }

    /// The elements in order.
    pub fn load(&self, window: &mut Window<'_>) -> Result<Vec<f64>> {
        let size = self.real.size();
        let mut bytes = [0u8; 8];
        (0..self.count)
            .map(|i| {
                window.get(self.element(i), &mut bytes[..size], size)?;
                Ok(self.real.read(&bytes))
            })
            .collect()
    }

    fn store(&self, window: &mut Window<'_>, values: &[f64]) -> Result {
        let size = self.real.size();
        let mut bytes = [0u8; 8];
        for (i, value) in values.iter().enumerate() {
            self.real.write(*value, &mut bytes);
            window.put(self.element(i), &bytes[..size], size)?;
        }
        Ok(())
    }
}

impl Sim {
    /// Enqueues a reduction; in host pointer mode the host waits for its result.
    fn reduce(
        &mut self,
        handle: &BlasHandle,
        name: &str,
        out: *mut c_void,
        real: Real,
        value: impl Fn(&mut Stage<'_>) -> Result<f64> + Send + Sync + 'static,
    ) -> Result {
        let address = out as u64;
        if address < 4096 {
            refuse!(InvalidValue, "result is null");
        }
        if handle.device_scalars {
            let run: Run = Arc::new(move |stage| {
                let mut bytes = [0u8; 8];
                real.write(value(stage)?, &mut bytes);
                stage.window.put(address, &bytes[..real.size()], real.size())
            });
            self.enqueue_blas(handle, name, run)?;
            return Ok(());
        }
        if self.store.is_device_address(address) {
            refuse!(InvalidValue, "result is a device address but the pointer mode is host");
        }
        let answer = Arc::new(Mutex::new(None));
        let slot = answer.clone();
        let run: Run = Arc::new(move |stage| {
            let found = value(stage)?;
            *slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(found);
            Ok(())
        });
        self.enqueue_blas(handle, name, run)?;
        let stream = self.stream(handle.stream)?;
        self.counters.totals.host_syncs += 1;
        self.wait_stream(stream)?;
        let found = answer.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(found) = found {
            let mut bytes = [0u8; 8];
            real.write(found, &mut bytes);
            // SAFETY: the caller promises a scalar of this type in host memory.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.cast::<u8>(), real.size()) };
        }
        Ok(())
    }
}

macro_rules! level1 {
    ($nrm2:ident, $dot:ident, $axpy:ident, $scal:ident, $real:expr, $int:ty) => {
        #[unsafe(no_mangle)]
        pub extern "C" fn $nrm2(
            handle: u64,
            n: $int,
            x: *const c_void,
            incx: $int,
            out: *mut c_void,
        ) -> c_int {
            blas(stringify!($nrm2), |sim| {
                let found = sim.blas_handle(handle)?;
                let x = vector(x, n.max(0) as usize, incx.into(), $real, "x")?;
                sim.reduce(&found, stringify!($nrm2), out, $real, move |stage| {
                    let x = x.load(&mut stage.window)?;
                    Ok(x.iter().map(|v| v * v).sum::<f64>().sqrt())
                })
            })
        }

        #[unsafe(no_mangle)]
        pub extern "C" fn $dot(
            handle: u64,
            n: $int,
            x: *const c_void,
            incx: $int,
            y: *const c_void,
            incy: $int,
            out: *mut c_void,
        ) -> c_int {
            blas(stringify!($dot), |sim| {
                let found = sim.blas_handle(handle)?;
                let n = n.max(0) as usize;
                let x = vector(x, n, incx.into(), $real, "x")?;
                let y = vector(y, n, incy.into(), $real, "y")?;
                sim.reduce(&found, stringify!($dot), out, $real, move |stage| {
                    let (x, y) = (x.load(&mut stage.window)?, y.load(&mut stage.window)?);
                    Ok(x.iter().zip(&y).map(|(a, b)| a * b).sum())
                })
            })
        }

        #[unsafe(no_mangle)]
        pub extern "C" fn $axpy(
            handle: u64,
            n: $int,
            alpha: *const c_void,
            x: *const c_void,
            incx: $int,
            y: *mut c_void,
            incy: $int,
        ) -> c_int {
            blas(stringify!($axpy), |sim| {
                let found = sim.blas_handle(handle)?;
                let n = size(n.into(), "n")?;
                if incy == 0 && n > 1 {
                    refuse!(InvalidValue, "incy is 0");
                }
                let alpha = sim.scalar(&found, alpha, $real, "alpha")?;
                let x = vector(x, n, incx.into(), $real, "x")?;
                let y = vector(y, n, incy.into(), $real, "y")?;
                let run: Run = Arc::new(move |stage| {
                    let alpha = alpha.value(stage)?;
                    let (values, mut sum) = (x.load(&mut stage.window)?, y.load(&mut stage.window)?);
                    for (s, v) in sum.iter_mut().zip(values) {
                        *s += alpha * v;
                    }
                    y.store(&mut stage.window, &sum)
                });
                sim.enqueue_blas(&found, stringify!($axpy), run)?;
                Ok(())
            })
        }

        #[unsafe(no_mangle)]
        pub extern "C" fn $scal(
            handle: u64,
            n: $int,
            alpha: *const c_void,
            x: *mut c_void,
            incx: $int,
        ) -> c_int {
            blas(stringify!($scal), |sim| {
                let found = sim.blas_handle(handle)?;
                let alpha = sim.scalar(&found, alpha, $real, "alpha")?;
                let x = vector(x, size(n.into(), "n")?, incx.into(), $real, "x")?;
                let run: Run = Arc::new(move |stage| {
                    let alpha = alpha.value(stage)?;
                    let values: Vec<f64> = x.load(&mut stage.window)?.iter().map(|v| alpha * v).collect();
                    x.store(&mut stage.window, &values)
                });
                sim.enqueue_blas(&found, stringify!($scal), run)?;
                Ok(())
            })
        }
    };
}

level1!(cublasSnrm2_v2, cublasSdot_v2, cublasSaxpy_v2, cublasSscal_v2, Real::F32, c_int);
level1!(cublasDnrm2_v2, cublasDdot_v2, cublasDaxpy_v2, cublasDscal_v2, Real::F64, c_int);
level1!(cublasSnrm2_v2_64, cublasSdot_v2_64, cublasSaxpy_v2_64, cublasSscal_v2_64, Real::F32, i64);
level1!(cublasDnrm2_v2_64, cublasDdot_v2_64, cublasDaxpy_v2_64, cublasDscal_v2_64, Real::F64, i64);
