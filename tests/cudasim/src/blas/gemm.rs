//! Matrix products: `gemm`, batched by stride or by pointers, and the mixed-precision forms.

use std::sync::Arc;

use libc::{c_int, c_longlong, c_void};

use super::handle::{BlasHandle, Scalar};
use super::product::Arithmetic;
use crate::boundary::blas;
use crate::matrix::{Matrix, Part, Real};
use crate::reason::{Result, refuse};
use crate::schedule::{Run, Stage};
use crate::state::Sim;

/// Whether an operand is transposed; the conjugate of a real matrix is itself.
pub fn transposed(op: c_int, name: &str) -> Result<bool> {
    match op {
        0 => Ok(false),
        1 | 2 => Ok(true),
        _ => refuse!(InvalidValue, "{name} {op} is unknown"),
    }
}

/// A size that may not be negative.
pub fn size(value: i64, name: &str) -> Result<usize> {
    if value < 0 {
        refuse!(InvalidValue, "{name} is {value}");
    }
    Ok(value as usize)
}

/// A matrix of the caller, its leading dimension checked.
pub fn matrix(
    from: *const c_void,
    rows: usize,
    cols: usize,
    ld: i64,
    real: Real,
    name: &str,
) -> Result<Matrix> {
    if ld < rows.max(1) as i64 {
        refuse!(InvalidValue, "the leading dimension of {name} is {ld}, its rows are {rows}");
    }
    if rows > 0 && cols > 0 && (from as u64) < 4096 {
        refuse!(InvalidValue, "{name} is null");
    }
    Ok(Matrix { address: from as u64, rows, cols, ld: ld as usize, real })
}

/// One product `C = alpha op(A) op(B) + beta C`.
#[derive(Clone, Copy)]
struct Product {
    a: Matrix,
    b: Matrix,
    c: Matrix,
    transpose: (bool, bool),
    k: usize,
    arithmetic: Arithmetic,
}

impl Product {
    fn flops(&self) -> u64 {
        2 * (self.c.rows * self.c.cols * self.k) as u64
    }

    fn perform(&self, stage: &mut Stage<'_>, alpha: f64, beta: f64) -> Result {
        let (m, n, k) = (self.c.rows, self.c.cols, self.k);
        if m == 0 || n == 0 {
            return Ok(());
        }
        if self.c.overlaps(&self.a) || self.c.overlaps(&self.b) {
            refuse!(InvalidValue, "the result of a product overlaps an operand");
        }
        let mut c = vec![0.0; m * n];
        if alpha != 0.0 && k > 0 {
            let a = self.a.load(&mut stage.window, Part::All)?;
            let b = self.b.load(&mut stage.window, Part::All)?;
            let a = if self.transpose.0 { transpose(&a, k, m) } else { a };
            let flip = self.transpose.1;
            let b = |l: usize, j: usize| if flip { b[l * n + j] } else { b[j * k + l] };
            c = self.arithmetic.multiply((m, n, k), &a, b);
        }
        // With beta 0 the old result is not read, NaN or not.
        let old = if beta == 0.0 { None } else { Some(self.c.load(&mut stage.window, Part::All)?) };
        for (i, value) in c.iter_mut().enumerate() {
            *value = self.arithmetic.combine(*value, alpha, old.as_ref().map(|old| (beta, old[i])));
        }
        self.c.store(&mut stage.window, Part::All, &c)
    }
}

/// The transpose of a column-major `rows` by `cols` matrix.
pub fn transpose(a: &[f64], rows: usize, cols: usize) -> Vec<f64> {
    let mut out = vec![0.0; a.len()];
    for j in 0..cols {
        for i in 0..rows {
            out[i * cols + j] = a[j * rows + i];
        }
    }
    out
}

/// An operand as the caller gave it.
type Operand = (*const c_void, i64, Real);

/// Everything that the forms of `gemm` have in common.
struct Call {
    ops: (c_int, c_int),
    dims: (i64, i64, i64),
    a: Operand,
    b: Operand,
    c: Operand,
    alpha: *const c_void,
    beta: *const c_void,
    scalars: Real,
    /// The `cublasComputeType_t`, where the routine takes one.
    compute: Option<c_int>,
}

impl Call {
    fn product(&self, handle: &BlasHandle, capability: (i32, i32)) -> Result<Product> {
        let transpose = (transposed(self.ops.0, "transa")?, transposed(self.ops.1, "transb")?);
        let (m, n, k) = (size(self.dims.0, "m")?, size(self.dims.1, "n")?, size(self.dims.2, "k")?);
        let shape = |flip: bool, rows: usize, cols: usize| if flip { (cols, rows) } else { (rows, cols) };
        let (ar, ac) = shape(transpose.0, m, k);
        let (br, bc) = shape(transpose.1, k, n);
        Ok(Product {
            a: matrix(self.a.0, ar, ac, self.a.1, self.a.2, "A")?,
            b: matrix(self.b.0, br, bc, self.b.1, self.b.2, "B")?,
            c: matrix(self.c.0, m, n, self.c.1, self.c.2, "C")?,
            transpose,
            k,
            arithmetic: match self.compute {
                None => Arithmetic::of_routine(self.a.2, handle.math, capability),
                Some(compute) => Arithmetic::of_compute(self.a.2, compute, handle.math, capability),
            },
        })
    }

    fn scalars(&self, sim: &mut Sim, handle: &BlasHandle) -> Result<(Scalar, Scalar)> {
        let alpha = sim.scalar(handle, self.alpha, self.scalars, "alpha")?;
        let beta = sim.scalar(handle, self.beta, self.scalars, "beta")?;
        Ok((alpha, beta))
    }

    /// Batched by strides; a single product is a batch of one.
    fn strided(&self, sim: &mut Sim, handle: u64, name: &str, strides: [i64; 3], batch: i64) -> Result {
        let found = sim.blas_handle(handle)?;
        let product = self.product(&found, sim.config.capability)?;
        let batch = size(batch, "batchCount")?;
        let (alpha, beta) = self.scalars(sim, &found)?;
        if batch > 1 && product.c.rows > 0 && product.c.cols > 0 {
            let span = (product.c.extent() / product.c.real.size()) as i64;
            // Columns of C may interleave, but no two products may write one element.
            let interleaved = product.c.cols <= 1 || strides[2].unsigned_abs() as usize >= product.c.rows;
            if strides[2] == 0 || (strides[2].abs() < span && !interleaved) {
                refuse!(InvalidValue, "strideC is {}, so the results of the batch overlap", strides[2]);
            }
        }
        let run: Run = Arc::new(move |stage| {
            let (alpha, beta) = (alpha.value(stage)?, beta.value(stage)?);
            for i in 0..batch as i64 {
                let one = Product {
                    a: product.a.offset(i * strides[0]),
                    b: product.b.offset(i * strides[1]),
                    c: product.c.offset(i * strides[2]),
                    ..product
                };
                one.perform(stage, alpha, beta)?;
            }
            Ok(())
        });
        sim.counters.totals.blas_flops += product.flops() * batch as u64;
        sim.enqueue_blas(&found, name, run)?;
        Ok(())
    }

    /// Batched by arrays of pointers in device memory.
    fn pointers(&self, sim: &mut Sim, handle: u64, name: &str, batch: i64) -> Result {
        let found = sim.blas_handle(handle)?;
        let product = self.product(&found, sim.config.capability)?;
        let batch = size(batch, "batchCount")?;
        let (alpha, beta) = self.scalars(sim, &found)?;
        let lists = [product.a.address, product.b.address, product.c.address];
        let run: Run = Arc::new(move |stage| {
            let (alpha, beta) = (alpha.value(stage)?, beta.value(stage)?);
            for i in 0..batch as u64 {
                let mut addresses = [0u64; 3];
                for (address, list) in addresses.iter_mut().zip(lists) {
                    let mut bytes = [0u8; 8];
                    stage.window.get(list + 8 * i, &mut bytes, 8)?;
                    *address = u64::from_le_bytes(bytes);
                }
                let place = |m: Matrix, address: u64| Matrix { address, ..m };
                let one = Product {
                    a: place(product.a, addresses[0]),
                    b: place(product.b, addresses[1]),
                    c: place(product.c, addresses[2]),
                    ..product
                };
                one.perform(stage, alpha, beta)?;
            }
            Ok(())
        });
        sim.counters.totals.blas_flops += product.flops() * batch as u64;
        sim.enqueue_blas(&found, name, run)?;
        Ok(())
    }
}

macro_rules! gemm {
    ($plain:ident, $strided:ident, $pointers:ident, $real:expr, $int:ty) => {
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)]
        pub extern "C" fn $plain(
            handle: u64,
            ta: c_int,
            tb: c_int,
            m: $int,
            n: $int,
            k: $int,
            alpha: *const c_void,
            a: *const c_void,
            lda: $int,
            b: *const c_void,
            ldb: $int,
            beta: *const c_void,
            c: *mut c_void,
            ldc: $int,
        ) -> c_int {
            blas(stringify!($plain), |sim| {
                let call = Call {
                    ops: (ta, tb),
                    dims: (m.into(), n.into(), k.into()),
                    a: (a, lda.into(), $real),
                    b: (b, ldb.into(), $real),
                    c: (c, ldc.into(), $real),
                    alpha,
                    beta,
                    scalars: $real,
                    compute: None,
                };
                call.strided(sim, handle, stringify!($plain), [0; 3], 1)
            })
        }

        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)]
        pub extern "C" fn $strided(
            handle: u64,
            ta: c_int,
            tb: c_int,
            m: $int,
            n: $int,
            k: $int,
            alpha: *const c_void,
            a: *const c_void,
            lda: $int,
            stride_a: c_longlong,
            b: *const c_void,
            ldb: $int,
            stride_b: c_longlong,
            beta: *const c_void,
            c: *mut c_void,
            ldc: $int,
            stride_c: c_longlong,
            batch: $int,
        ) -> c_int {
            blas(stringify!($strided), |sim| {
                let call = Call {
                    ops: (ta, tb),
                    dims: (m.into(), n.into(), k.into()),
                    a: (a, lda.into(), $real),
                    b: (b, ldb.into(), $real),
                    c: (c, ldc.into(), $real),
                    alpha,
                    beta,
                    scalars: $real,
                    compute: None,
                };
                call.strided(sim, handle, stringify!($strided), [stride_a, stride_b, stride_c], batch.into())
            })
        }

        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)]
        pub extern "C" fn $pointers(
            handle: u64,
            ta: c_int,
            tb: c_int,
            m: $int,
            n: $int,
            k: $int,
            alpha: *const c_void,
            a: *const c_void,
            lda: $int,
            b: *const c_void,
            ldb: $int,
            beta: *const c_void,
            c: *const c_void,
            ldc: $int,
            batch: $int,
        ) -> c_int {
            blas(stringify!($pointers), |sim| {
                let call = Call {
                    ops: (ta, tb),
                    dims: (m.into(), n.into(), k.into()),
                    a: (a, lda.into(), $real),
                    b: (b, ldb.into(), $real),
                    c: (c, ldc.into(), $real),
                    alpha,
                    beta,
                    scalars: $real,
                    compute: None,
                };
                call.pointers(sim, handle, stringify!($pointers), batch.into())
            })
        }
    };
}

gemm!(cublasSgemm_v2, cublasSgemmStridedBatched, cublasSgemmBatched, Real::F32, c_int);
gemm!(cublasDgemm_v2, cublasDgemmStridedBatched, cublasDgemmBatched, Real::F64, c_int);
gemm!(cublasSgemm_v2_64, cublasSgemmStridedBatched_64, cublasSgemmBatched_64, Real::F32, i64);
gemm!(cublasDgemm_v2_64, cublasDgemmStridedBatched_64, cublasDgemmBatched_64, Real::F64, i64);

/// The type of alpha and beta under a `cublasComputeType_t`.
fn scalar_type(compute: c_int) -> Result<Real> {
    match compute {
        64 | 65 => Ok(Real::F16),
        68 | 69 | 74 | 75 | 77 => Ok(Real::F32),
        70 | 71 => Ok(Real::F64),
        _ => refuse!(NotSupported, "compute type {compute} is not supported"),
    }
}

macro_rules! gemm_ex {
    ($plain:ident, $strided:ident, $int:ty) => {
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)]
        pub extern "C" fn $plain(
            handle: u64,
            ta: c_int,
            tb: c_int,
            m: $int,
            n: $int,
            k: $int,
            alpha: *const c_void,
            a: *const c_void,
            a_type: c_int,
            lda: $int,
            b: *const c_void,
            b_type: c_int,
            ldb: $int,
            beta: *const c_void,
            c: *mut c_void,
            c_type: c_int,
            ldc: $int,
            compute: c_int,
            _algorithm: c_int,
        ) -> c_int {
            blas(stringify!($plain), |sim| {
                let call = Call {
                    ops: (ta, tb),
                    dims: (m.into(), n.into(), k.into()),
                    a: (a, lda.into(), Real::from_code(a_type)?),
                    b: (b, ldb.into(), Real::from_code(b_type)?),
                    c: (c, ldc.into(), Real::from_code(c_type)?),
                    alpha,
                    beta,
                    scalars: scalar_type(compute)?,
                    compute: Some(compute),
                };
                call.strided(sim, handle, stringify!($plain), [0; 3], 1)
            })
        }

        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)]
        pub extern "C" fn $strided(
            handle: u64,
            ta: c_int,
            tb: c_int,
            m: $int,
            n: $int,
            k: $int,
            alpha: *const c_void,
            a: *const c_void,
            a_type: c_int,
            lda: $int,
            stride_a: c_longlong,
            b: *const c_void,
            b_type: c_int,
            ldb: $int,
            stride_b: c_longlong,
            beta: *const c_void,
            c: *mut c_void,
            c_type: c_int,
            ldc: $int,
            stride_c: c_longlong,
            batch: $int,
            compute: c_int,
            _algorithm: c_int,
        ) -> c_int {
            blas(stringify!($strided), |sim| {
                let call = Call {
                    ops: (ta, tb),
                    dims: (m.into(), n.into(), k.into()),
                    a: (a, lda.into(), Real::from_code(a_type)?),
                    b: (b, ldb.into(), Real::from_code(b_type)?),
                    c: (c, ldc.into(), Real::from_code(c_type)?),
                    alpha,
                    beta,
                    scalars: scalar_type(compute)?,
                    compute: Some(compute),
                };
                call.strided(sim, handle, stringify!($strided), [stride_a, stride_b, stride_c], batch.into())
            })
        }
    };
}

gemm_ex!(cublasGemmEx, cublasGemmStridedBatchedEx, c_int);
gemm_ex!(cublasGemmEx_64, cublasGemmStridedBatchedEx_64, i64);
