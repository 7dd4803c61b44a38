//! Householder's QR factorization and the orthogonal factor from it, with the 32-bit interface.

use std::sync::Arc;

use libc::{c_int, c_void};

use crate::boundary::{put, solver};
use crate::faults::Spoil;
use crate::matrix::{Matrix, Part, Real};
use crate::reason::{Result, refuse};
use crate::schedule::{Run, Stage, Work};
use crate::state::Sim;

/// What is computed from an m × n matrix.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// R above, the reflections below the diagonal, and their factors in `tau`.
    Factor,
    /// The first n columns of the product of as many reflections as `tau` has.
    Form,
}

#[derive(Clone, Copy)]
struct Problem {
    kind: Kind,
    a: Matrix,
    tau: Matrix,
}

impl Problem {
    /// Elements of workspace; made up, and larger for the second call.
    fn workspace(&self) -> usize {
        let n = self.a.cols;
        if self.kind == Kind::Factor { 3 * n + 24 } else { 7 * n + 40 }
    }

    fn perform(&self, stage: &mut Stage<'_>, scratch: u64, info: u64) -> Result {
        let real = self.a.real;
        // Real libraries use their workspace: garbage lands in all of it.
        stage.window.put(scratch, &vec![0xa5; self.workspace() * real.size()], 1)?;
        let (rows, cols) = (self.a.rows, self.a.cols);
        // A single-precision library rounds as it goes.
        let round = move |x: f64| if real == Real::F32 { f64::from(x as f32) } else { x };
        let mut a = self.a.load(&mut stage.window, Part::All)?;
        let mut status = 0;
        match self.kind {
            Kind::Factor => {
                let tau = factor(&mut a, rows, cols, round);
                self.tau.store(&mut stage.window, Part::All, &tau)?;
            }
            Kind::Form => {
                let tau = self.tau.load(&mut stage.window, Part::All)?;
                a = form(&a, &tau, rows, cols, round);
                match stage.faults.strike_evd() {
                    Some(Spoil::Info) => status = -1,
                    Some(Spoil::Nan) => a[0] = f64::NAN,
                    Some(Spoil::NonOrthogonal | Spoil::Values) => a.iter_mut().for_each(|x| *x *= 1.25),
                    None => {}
                }
            }
        }
        self.a.store(&mut stage.window, Part::All, &a)?;
        stage.window.put(info, &i32::to_le_bytes(status), 4)
    }
}

/// A = QR in place, column-major: H_j = I − τ_j v vᵀ with v_j = 1, the rest of v below the diagonal.
fn factor(a: &mut [f64], rows: usize, cols: usize, round: impl Fn(f64) -> f64) -> Vec<f64> {
    let count = rows.min(cols);
    let mut tau = vec![0.0; count];
    for j in 0..count {
        let below = (j + 1..rows).fold(0.0, |sum, i| round(sum + round(a[i + j * rows] * a[i + j * rows])));
        if below == 0.0 {
            // Nothing to reflect: H is the identity, and the diagonal keeps its sign.
            continue;
        }
        let alpha = a[j + j * rows];
        let beta = -round(round(alpha * alpha + below).sqrt()).copysign(alpha);
        tau[j] = round((beta - alpha) / beta);
        for i in j + 1..rows {
            a[i + j * rows] = round(a[i + j * rows] / round(alpha - beta));
        }
        a[j + j * rows] = beta;
        for k in j + 1..cols {
            reflect(a, j, k, tau[j], rows, &round);
        }
    }
    tau
}

/// Column `k` of `a` becomes H_j times itself, with the v of column `j`.
fn reflect(a: &mut [f64], j: usize, k: usize, tau: f64, rows: usize, round: &impl Fn(f64) -> f64) {
    let mut dot = a[j + k * rows];
    for i in j + 1..rows {
        dot = round(dot + round(a[i + j * rows] * a[i + k * rows]));
    }
    let scaled = round(tau * dot);
    a[j + k * rows] = round(a[j + k * rows] - scaled);
    for i in j + 1..rows {
        a[i + k * rows] = round(a[i + k * rows] - round(a[i + j * rows] * scaled));
    }
}

/// The first `cols` columns of H_0 H_1 …, from the reflections below the diagonal of `a`.
fn form(a: &[f64], tau: &[f64], rows: usize, cols: usize, round: impl Fn(f64) -> f64) -> Vec<f64> {
    let mut q = vec![0.0; rows * cols];
    (0..cols).for_each(|j| q[j + j * rows] = 1.0);
    for j in (0..tau.len()).rev() {
        for k in 0..cols {
            let mut dot = q[j + k * rows];
            for i in j + 1..rows {
                dot = round(dot + round(a[i + j * rows] * q[i + k * rows]));
            }
            let scaled = round(tau[j] * dot);
            q[j + k * rows] = round(q[j + k * rows] - scaled);
            for i in j + 1..rows {
                q[i + k * rows] = round(q[i + k * rows] - round(a[i + j * rows] * scaled));
            }
        }
    }
    q
}

impl Sim {
    fn reflections(
        &mut self,
        handle: u64,
        (m, n, k): (c_int, c_int, Option<c_int>),
        (a, lda): (u64, c_int),
        tau: u64,
        real: Real,
    ) -> Result<Problem> {
        self.solver_handle(handle)?;
        if m < 0 || n < 0 || lda < m.max(1) {
            refuse!(InvalidValue, "m is {m}, n is {n}, lda is {lda}");
        }
        if k.is_some_and(|k| k < 0 || k > n || n > m) {
            refuse!(InvalidValue, "m is {m}, n is {n}, k is {k:?}: expected m >= n >= k >= 0");
        }
        let (rows, cols) = (m as usize, n as usize);
        let kind = if k.is_none() { Kind::Factor } else { Kind::Form };
        let a = Matrix { address: a, rows, cols, ld: lda as usize, real };
        let count = k.map_or(rows.min(cols), |k| k as usize);
        let tau = Matrix { address: tau, rows: count, cols: 1, ld: count.max(1), real };
        Ok(Problem { kind, a, tau })
    }

    fn run_reflections(
        &mut self,
        name: &str,
        handle: u64,
        problem: Problem,
        work: (u64, c_int),
        info: u64,
    ) -> Result {
        let found = self.solver_handle(handle)?;
        let needed = problem.workspace();
        if (work.1 as i64) < needed as i64 {
            refuse!(Workspace, "the workspace has {} elements, {needed} are needed", work.1);
        }
        let context = found.context;
        self.store.check(work.0, needed * problem.a.real.size(), context)?;
        self.store.check(info, 4, context)?;
        for matrix in [&problem.a, &problem.tau] {
            if matrix.extent() > 0 {
                self.store.check(matrix.address, matrix.extent(), context)?;
            }
        }
        if problem.a.overlaps(&problem.tau) {
            refuse!(InvalidValue, "tau lies within the matrix");
        }
        let stream = self.stream(found.stream)?;
        self.counters.totals.launches += 1;
        self.counters.totals.solver_calls += 1;
        let run: Run = Arc::new(move |stage| problem.perform(stage, work.0, info));
        self.enqueue(stream, name, Work::Run(run))?;
        Ok(())
    }
}

macro_rules! entry {
    ($factor_size:ident, $factor:ident, $form_size:ident, $form:ident, $real:expr) => {
        #[unsafe(no_mangle)]
        pub extern "C" fn $factor_size(
            handle: u64,
            m: c_int,
            n: c_int,
            a: *mut c_void,
            lda: c_int,
            elements: *mut c_int,
        ) -> c_int {
            solver(stringify!($factor_size), |sim| {
                let problem = sim.reflections(handle, (m, n, None), (a as u64, lda), 0, $real)?;
                put(elements, problem.workspace() as c_int, "lwork")
            })
        }

        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)]
        pub extern "C" fn $factor(
            handle: u64,
            m: c_int,
            n: c_int,
            a: *mut c_void,
            lda: c_int,
            tau: *mut c_void,
            work: *mut c_void,
            elements: c_int,
            info: *mut c_int,
        ) -> c_int {
            solver(stringify!($factor), |sim| {
                let problem = sim.reflections(handle, (m, n, None), (a as u64, lda), tau as u64, $real)?;
                sim.run_reflections(
                    stringify!($factor),
                    handle,
                    problem,
                    (work as u64, elements),
                    info as u64,
                )
            })
        }

        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)]
        pub extern "C" fn $form_size(
            handle: u64,
            m: c_int,
            n: c_int,
            k: c_int,
            a: *const c_void,
            lda: c_int,
            tau: *const c_void,
            elements: *mut c_int,
        ) -> c_int {
            solver(stringify!($form_size), |sim| {
                let problem = sim.reflections(handle, (m, n, Some(k)), (a as u64, lda), tau as u64, $real)?;
                put(elements, problem.workspace() as c_int, "lwork")
            })
        }

        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)]
        pub extern "C" fn $form(
            handle: u64,
            m: c_int,
            n: c_int,
            k: c_int,
            a: *mut c_void,
            lda: c_int,
            tau: *const c_void,
            work: *mut c_void,
            elements: c_int,
            info: *mut c_int,
        ) -> c_int {
            solver(stringify!($form), |sim| {
                let problem = sim.reflections(handle, (m, n, Some(k)), (a as u64, lda), tau as u64, $real)?;
                sim.run_reflections(stringify!($form), handle, problem, (work as u64, elements), info as u64)
            })
        }
    };
}

entry!(
    cusolverDnSgeqrf_bufferSize,
    cusolverDnSgeqrf,
    cusolverDnSorgqr_bufferSize,
    cusolverDnSorgqr,
    Real::F32
);
entry!(
    cusolverDnDgeqrf_bufferSize,
    cusolverDnDgeqrf,
    cusolverDnDorgqr_bufferSize,
    cusolverDnDorgqr,
    Real::F64
);
