//! `syrk`, `dgmm` and `geam`.

use std::sync::Arc;

use libc::{c_int, c_void};

use super::gemm::{matrix, size, transpose, transposed};
use super::product::Arithmetic;
use crate::boundary::blas;
use crate::matrix::{Matrix, Part, Real};
use crate::reason::{Result, refuse};
use crate::schedule::Run;
use crate::state::Sim;

/// `C = alpha op(A) op(A)ᵀ + beta C` in one triangle.
#[allow(clippy::too_many_arguments)]
fn syrk(
    sim: &mut Sim,
    name: &str,
    handle: u64,
    uplo: c_int,
    op: c_int,
    n: i64,
    k: i64,
    alpha: *const c_void,
    (a, lda): (*const c_void, i64),
    beta: *const c_void,
    (c, ldc): (*const c_void, i64),
    real: Real,
) -> Result {
    let part = Part::from_code(uplo)?;
    let flip = transposed(op, "trans")?;
    let (n, k) = (size(n, "n")?, size(k, "k")?);
    let a = if flip { matrix(a, k, n, lda, real, "A")? } else { matrix(a, n, k, lda, real, "A")? };
    let c = matrix(c, n, n, ldc, real, "C")?;
    let found = sim.blas_handle(handle)?;
    let alpha = sim.scalar(&found, alpha, real, "alpha")?;
    let beta = sim.scalar(&found, beta, real, "beta")?;
    let arithmetic = Arithmetic::of_routine(real, found.math, sim.config.capability);
    let run: Run = Arc::new(move |stage| {
        if n == 0 {
            return Ok(());
        }
        if c.overlaps(&a) {
            refuse!(InvalidValue, "the result of syrk overlaps its operand");
        }
        let (alpha, beta) = (alpha.value(stage)?, beta.value(stage)?);
        let mut out = vec![0.0; n * n];
        if alpha != 0.0 && k > 0 {
            let values = a.load(&mut stage.window, Part::All)?;
            // n by k, column by column.
            let values = if flip { transpose(&values, k, n) } else { values };
            out = arithmetic.multiply((n, n, k), &values, |l, j| values[l * n + j]);
        }
        let old = if beta == 0.0 { None } else { Some(c.load(&mut stage.window, part)?) };
        for (i, value) in out.iter_mut().enumerate() {
            *value = arithmetic.combine(*value, alpha, old.as_ref().map(|old| (beta, old[i])));
        }
        c.store(&mut stage.window, part, &out)
    });
    // One triangle.
    sim.counters.totals.blas_flops += (n * (n + 1) * k) as u64;
    sim.enqueue_blas(&found, name, run)?;
    Ok(())
}

/// `C = diag(x) A` or `A diag(x)`; C may be A.
#[allow(clippy::too_many_arguments)]
fn dgmm(
    sim: &mut Sim,
    name: &str,
    handle: u64,
    side: c_int,
    m: i64,
    n: i64,
    (a, lda): (*const c_void, i64),
    (x, incx): (*const c_void, i64),
    (c, ldc): (*const c_void, i64),
    real: Real,
) -> Result {
    if side != 0 && side != 1 {
        refuse!(InvalidValue, "side {side} is unknown");
    }
    let (m, n) = (size(m, "m")?, size(n, "n")?);
    let a = matrix(a, m, n, lda, real, "A")?;
    let c = matrix(c, m, n, ldc, real, "C")?;
    let x = super::level1::vector(x, if side == 0 { m } else { n }, incx, real, "x")?;
    let found = sim.blas_handle(handle)?;
    let run: Run = Arc::new(move |stage| {
        if m == 0 || n == 0 {
            return Ok(());
        }
        if c.overlaps(&a) && (c.address, c.ld) != (a.address, a.ld) {
            refuse!(InvalidValue, "the result of dgmm overlaps its operand but is not the same matrix");
        }
        let mut values = a.load(&mut stage.window, Part::All)?;
        let x = x.load(&mut stage.window)?;
        for j in 0..n {
            for i in 0..m {
                values[j * m + i] *= if side == 0 { x[i] } else { x[j] };
            }
        }
        c.store(&mut stage.window, Part::All, &values)
    });
    sim.enqueue_blas(&found, name, run)?;
    Ok(())
}

/// `C = alpha op(A) + beta op(B)`; C may be A or B if that one is not transposed.
#[allow(clippy::too_many_arguments)]
fn geam(
    sim: &mut Sim,
    name: &str,
    handle: u64,
    (ta, tb): (c_int, c_int),
    (m, n): (i64, i64),
    alpha: *const c_void,
    (a, lda): (*const c_void, i64),
    beta: *const c_void,
    (b, ldb): (*const c_void, i64),
    (c, ldc): (*const c_void, i64),
    real: Real,
) -> Result {
    let flips = [transposed(ta, "transa")?, transposed(tb, "transb")?];
    let (m, n) = (size(m, "m")?, size(n, "n")?);
    let found = sim.blas_handle(handle)?;
    let scalars = [sim.scalar(&found, alpha, real, "alpha")?, sim.scalar(&found, beta, real, "beta")?];
    let shape = |flip: bool| if flip { (n, m) } else { (m, n) };
    // An operand whose scalar is 0 is not read and may be null.
    let operand = |from: *const c_void, ld: i64, flip: bool, name: &str| -> Result<Matrix> {
        let (rows, cols) = shape(flip);
        if from.is_null() {
            return Ok(Matrix { address: 0, rows, cols, ld: rows.max(1), real });
        }
        matrix(from, rows, cols, ld, real, name)
    };
    let operands = [operand(a, lda, flips[0], "A")?, operand(b, ldb, flips[1], "B")?];
    let c = matrix(c, m, n, ldc, real, "C")?;
    let run: Run = Arc::new(move |stage| {
        let mut out = vec![0.0; m * n];
        for i in 0..2 {
            let factor = scalars[i].value(stage)?;
            if factor == 0.0 || m == 0 || n == 0 {
                continue;
            }
            let given = operands[i];
            if c.overlaps(&given) && (flips[i] || (c.address, c.ld) != (given.address, given.ld)) {
                refuse!(InvalidValue, "the result of geam overlaps an operand in a way that is not allowed");
            }
            let values = given.load(&mut stage.window, Part::All)?;
            let values = if flips[i] { transpose(&values, n, m) } else { values };
            for (out, value) in out.iter_mut().zip(values) {
                *out += factor * value;
            }
        }
        c.store(&mut stage.window, Part::All, &out)
    });
    sim.enqueue_blas(&found, name, run)?;
    Ok(())
}

macro_rules! level3 {
    ($syrk:ident, $dgmm:ident, $geam:ident, $real:expr, $int:ty) => {
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)]
        pub extern "C" fn $syrk(
            handle: u64,
            uplo: c_int,
            op: c_int,
            n: $int,
            k: $int,
            alpha: *const c_void,
            a: *const c_void,
            lda: $int,
            beta: *const c_void,
            c: *mut c_void,
            ldc: $int,
        ) -> c_int {
            blas(stringify!($syrk), |sim| {
                let (a, c) = ((a, lda.into()), (c.cast_const(), ldc.into()));
                syrk(sim, stringify!($syrk), handle, uplo, op, n.into(), k.into(), alpha, a, beta, c, $real)
            })
        }

        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)]
        pub extern "C" fn $dgmm(
            handle: u64,
            side: c_int,
            m: $int,
            n: $int,
            a: *const c_void,
            lda: $int,
            x: *const c_void,
            incx: $int,
            c: *mut c_void,
            ldc: $int,
        ) -> c_int {
            blas(stringify!($dgmm), |sim| {
                let (a, x, c) = ((a, lda.into()), (x, incx.into()), (c.cast_const(), ldc.into()));
                dgmm(sim, stringify!($dgmm), handle, side, m.into(), n.into(), a, x, c, $real)
            })
        }

        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)]
        pub extern "C" fn $geam(
            handle: u64,
            ta: c_int,
            tb: c_int,
            m: $int,
            n: $int,
            alpha: *const c_void,
            a: *const c_void,
            lda: $int,
            beta: *const c_void,
            b: *const c_void,
            ldb: $int,
            c: *mut c_void,
            ldc: $int,
        ) -> c_int {
            blas(stringify!($geam), |sim| {
                let (a, b, c) = ((a, lda.into()), (b, ldb.into()), (c.cast_const(), ldc.into()));
                let dims = (m.into(), n.into());
                geam(sim, stringify!($geam), handle, (ta, tb), dims, alpha, a, beta, b, c, $real)
            })
        }
    };
}

level3!(cublasSsyrk_v2, cublasSdgmm, cublasSgeam, Real::F32, c_int);
level3!(cublasDsyrk_v2, cublasDdgmm, cublasDgeam, Real::F64, c_int);
level3!(cublasSsyrk_v2_64, cublasSdgmm_64, cublasSgeam_64, Real::F32, i64);
level3!(cublasDsyrk_v2_64, cublasDdgmm_64, cublasDgeam_64, Real::F64, i64);
