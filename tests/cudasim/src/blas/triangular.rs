//! Systems with triangular matrices: `trsm`, batched by pointers.

use std::sync::Arc;

use libc::{c_int, c_void};

use super::gemm::{size, transpose, transposed};
use crate::boundary::blas;
use crate::matrix::{Matrix, Part, Real};
use crate::reason::{Result, refuse};
use crate::schedule::Run;
use crate::state::Sim;

/// The triangle of a matrix as stored, and how it is taken.
#[derive(Clone, Copy)]
struct Triangle {
    right: bool,
    part: Part,
    flip: bool,
    unit: bool,
}

impl Triangle {
    /// T = op(A), of side `n`, with zeros outside its triangle; whether that is the lower one.
    fn whole(&self, mut a: Vec<f64>, n: usize) -> (Vec<f64>, bool) {
        for j in 0..n {
            for i in 0..n {
                let outside = if self.part == Part::Lower { i < j } else { i > j };
                if outside {
                    a[i + j * n] = 0.0;
                } else if i == j && self.unit {
                    a[i + j * n] = 1.0;
                }
            }
        }
        let a = if self.flip { transpose(&a, n, n) } else { a };
        (a, (self.part == Part::Lower) != self.flip)
    }
}

/// X with T X = B, in place, for a triangular T of side `n` and `cols` columns, rounded as it goes.
fn solve(t: &[f64], lower: bool, b: &mut [f64], (n, cols): (usize, usize), round: impl Fn(f64) -> f64) {
    for x in b.chunks_exact_mut(n.max(1)).take(cols) {
        for step in 0..n {
            let i = if lower { step } else { n - 1 - step };
            let known = if lower { 0..i } else { i + 1..n };
            let rest = known.fold(x[i], |rest, k| round(rest - round(t[i + k * n] * x[k])));
            x[i] = round(rest / t[i + i * n]);
        }
    }
}

/// Lists of pointers, leading dimensions and the factor of the right-hand sides, as the caller gave them.
struct Lists {
    a: (u64, i64),
    b: (u64, i64),
    alpha: *const c_void,
}

#[allow(clippy::too_many_arguments)]
fn trsm_batched(
    sim: &mut Sim,
    name: &str,
    handle: u64,
    (side, uplo, op, diag): (c_int, c_int, c_int, c_int),
    (m, n): (i64, i64),
    lists: Lists,
    count: i64,
    real: Real,
) -> Result {
    if !(0..2).contains(&side) || !(0..2).contains(&diag) {
        refuse!(InvalidValue, "side is {side}, diag is {diag}");
    }
    let triangle = Triangle {
        right: side == 1,
        part: Part::from_code(uplo)?,
        flip: transposed(op, "trans")?,
        unit: diag == 1,
    };
    let (m, n, count) = (size(m, "m")?, size(n, "n")?, size(count, "batchCount")?);
    let own = if triangle.right { n } else { m };
    if lists.a.1 < own.max(1) as i64 || lists.b.1 < m.max(1) as i64 {
        refuse!(InvalidValue, "lda is {}, ldb is {}, m is {m}, n is {n}", lists.a.1, lists.b.1);
    }
    let found = sim.blas_handle(handle)?;
    let alpha = sim.scalar(&found, lists.alpha, real, "alpha")?;
    let (a_list, lda) = (lists.a.0, lists.a.1 as usize);
    let (b_list, ldb) = (lists.b.0, lists.b.1 as usize);
    let run: Run = Arc::new(move |stage| {
        let alpha = alpha.value(stage)?;
        let round = move |x: f64| if real == Real::F32 { f64::from(x as f32) } else { x };
        for i in 0..count as u64 {
            let mut at = [0u64; 2];
            for (at, list) in at.iter_mut().zip([a_list, b_list]) {
                let mut bytes = [0u8; 8];
                stage.window.get(list + 8 * i, &mut bytes, 8)?;
                *at = u64::from_le_bytes(bytes);
            }
            let a = Matrix { address: at[0], rows: own, cols: own, ld: lda, real };
            let b = Matrix { address: at[1], rows: m, cols: n, ld: ldb, real };
            if a.overlaps(&b) {
                refuse!(InvalidValue, "the right-hand side of trsm overlaps its matrix");
            }
            let (t, lower) = triangle.whole(a.load(&mut stage.window, triangle.part)?, own);
            let mut x = b.load(&mut stage.window, Part::All)?;
            x.iter_mut().for_each(|x| *x *= alpha);
            if triangle.right {
                // X T = B is Tᵀ Xᵀ = Bᵀ.
                let mut flipped = transpose(&x, m, n);
                solve(&transpose(&t, own, own), !lower, &mut flipped, (n, m), round);
                x = transpose(&flipped, n, m);
            } else {
                solve(&t, lower, &mut x, (m, n), round);
            }
            b.store(&mut stage.window, Part::All, &x)?;
        }
        Ok(())
    });
    sim.counters.totals.blas_flops += (own * m * n * count) as u64;
    sim.enqueue_blas(&found, name, run)?;
    Ok(())
}

macro_rules! trsm {
    ($run:ident, $real:expr) => {
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)]
        pub extern "C" fn $run(
            handle: u64,
            side: c_int,
            uplo: c_int,
            op: c_int,
            diag: c_int,
            m: c_int,
            n: c_int,
            alpha: *const c_void,
            a: *const c_void,
            lda: c_int,
            b: *const c_void,
            ldb: c_int,
            count: c_int,
        ) -> c_int {
            blas(stringify!($run), |sim| {
                let lists = Lists { a: (a as u64, lda.into()), b: (b as u64, ldb.into()), alpha };
                let (ops, dims) = ((side, uplo, op, diag), (m.into(), n.into()));
                trsm_batched(sim, stringify!($run), handle, ops, dims, lists, count.into(), $real)
            })
        }
    };
}

trsm!(cublasStrsmBatched, Real::F32);
trsm!(cublasDtrsmBatched, Real::F64);
