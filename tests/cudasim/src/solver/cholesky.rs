//! Cholesky's factorization, single and batched, and the inverse from it, with the 32-bit interface.

use std::sync::Arc;

use libc::{c_int, c_void};

use crate::boundary::{put, solver};
use crate::matrix::{Matrix, Part, Real};
use crate::reason::{Result, refuse};
use crate::schedule::{Run, Stage, Work};
use crate::state::Sim;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// A = L Lᵀ.
    Factor,
    /// A⁻¹ from L.
    Inverse,
}

#[derive(Clone, Copy)]
struct Problem {
    kind: Kind,
    a: Matrix,
}

impl Problem {
    /// Elements of workspace; made up, and larger for the inverse.
    fn workspace(&self) -> usize {
        let n = self.a.rows;
        if self.kind == Kind::Factor { 4 * n + 16 } else { n * n + 8 }
    }

    fn perform(&self, stage: &mut Stage<'_>, scratch: u64, info: u64) -> Result {
        let size = self.a.real.size();
        stage.window.put(scratch, &vec![0xa5; self.workspace() * size], 1)?;
        let n = self.a.rows;
        let mut m = self.a.load(&mut stage.window, Part::Lower)?;
        let round = rounding(self.a.real);
        let status = match self.kind {
            Kind::Factor => factor(&mut m, n, round),
            Kind::Inverse => inverse(&mut m, n, round),
        };
        self.a.store(&mut stage.window, Part::Lower, &m)?;
        stage.window.put(info, &status.to_le_bytes(), 4)
    }
}

/// A single-precision library rounds as it goes.
fn rounding(real: Real) -> impl Fn(f64) -> f64 {
    move |x: f64| if real == Real::F32 { f64::from(x as f32) } else { x }
}

/// L in the lower triangle, column-major; the order of the first minor that is not positive, or 0.
fn factor(m: &mut [f64], n: usize, round: impl Fn(f64) -> f64) -> i32 {
    for j in 0..n {
        let mut pivot = m[j + j * n];
        for k in 0..j {
            pivot = round(pivot - round(m[j + k * n] * m[j + k * n]));
        }
        if pivot.is_nan() || pivot <= 0.0 {
            return j as i32 + 1;
        }
        let root = round(pivot.sqrt());
        m[j + j * n] = root;
        for i in j + 1..n {
            let mut x = m[i + j * n];
            for k in 0..j {
                x = round(x - round(m[i + k * n] * m[j + k * n]));
            }
            m[i + j * n] = round(x / root);
        }
    }
    0
}

/// L⁻ᵀL⁻¹ in the lower triangle; the first zero of L's diagonal, or 0.
fn inverse(m: &mut [f64], n: usize, round: impl Fn(f64) -> f64) -> i32 {
    if let Some(j) = (0..n).find(|j| m[j + j * n] == 0.0) {
        return j as i32 + 1;
    }
    let mut inverse = vec![0.0; n * n];
    for j in 0..n {
        inverse[j + j * n] = round(1.0 / m[j + j * n]);
        for i in j + 1..n {
            let mut x = 0.0;
            for k in j..i {
                x = round(x - round(m[i + k * n] * inverse[k + j * n]));
            }
            inverse[i + j * n] = round(x / m[i + i * n]);
        }
    }
    for j in 0..n {
        for i in j..n {
            m[i + j * n] = (i..n).fold(0.0, |x, k| round(x + round(inverse[k + i * n] * inverse[k + j * n])));
        }
    }
    0
}

impl Sim {
    fn cholesky(
        &mut self,
        handle: u64,
        kind: Kind,
        uplo: c_int,
        n: c_int,
        (a, lda): (u64, c_int),
        real: Real,
    ) -> Result<Problem> {
        self.solver_handle(handle)?;
        if n < 0 || lda < n.max(1) {
            refuse!(InvalidValue, "n is {n}, lda is {lda}");
        }
        if Part::from_code(uplo)? != Part::Lower {
            refuse!(InvalidValue, "only the lower triangle is simulated");
        }
        let a = Matrix { address: a, rows: n as usize, cols: n as usize, ld: lda as usize, real };
        Ok(Problem { kind, a })
    }

    fn run_cholesky(
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
        if problem.a.rows > 0 {
            self.store.check(problem.a.address, problem.a.extent(), context)?;
        }
        let stream = self.stream(found.stream)?;
        self.counters.totals.launches += 1;
        self.counters.totals.solver_calls += 1;
        let run: Run = Arc::new(move |stage| problem.perform(stage, work.0, info));
        self.enqueue(stream, name, Work::Run(run))?;
        Ok(())
    }
}

/// The strict upper triangles: a batched factorization uses them as workspace.
fn spoil_upper(m: &mut [f64], n: usize) {
    (0..n).for_each(|j| m[j * n..j * n + j].fill(f64::NAN));
}

impl Sim {
    /// A = L Lᵀ for every matrix of a list of pointers in device memory. It needs no workspace of its own.
    fn run_batched(
        &mut self,
        name: &str,
        handle: u64,
        problem: Problem,
        (list, infos): (u64, u64),
        count: c_int,
    ) -> Result {
        if count < 0 {
            refuse!(InvalidValue, "batchSize is {count}");
        }
        let found = self.solver_handle(handle)?;
        let (context, count) = (found.context, count as usize);
        self.store.check(list, 8 * count, context)?;
        self.store.check(infos, 4 * count, context)?;
        let stream = self.stream(found.stream)?;
        self.counters.totals.launches += 1;
        self.counters.totals.solver_calls += 1;
        let run: Run = Arc::new(move |stage| {
            for i in 0..count as u64 {
                let mut bytes = [0u8; 8];
                stage.window.get(list + 8 * i, &mut bytes, 8)?;
                let a = Matrix { address: u64::from_le_bytes(bytes), ..problem.a };
                let mut m = a.load(&mut stage.window, Part::Lower)?;
                let status = factor(&mut m, a.rows, rounding(a.real));
                spoil_upper(&mut m, a.rows);
                a.store(&mut stage.window, Part::All, &m)?;
                stage.window.put(infos + 4 * i, &status.to_le_bytes(), 4)?;
            }
            Ok(())
        });
        self.enqueue(stream, name, Work::Run(run))?;
        Ok(())
    }
}

macro_rules! batched {
    ($run:ident, $real:expr) => {
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)]
        pub extern "C" fn $run(
            handle: u64,
            uplo: c_int,
            n: c_int,
            list: *mut c_void,
            lda: c_int,
            infos: *mut c_int,
            count: c_int,
        ) -> c_int {
            solver(stringify!($run), |sim| {
                let problem = sim.cholesky(handle, Kind::Factor, uplo, n, (list as u64, lda), $real)?;
                sim.run_batched(stringify!($run), handle, problem, (list as u64, infos as u64), count)
            })
        }
    };
}

batched!(cusolverDnSpotrfBatched, Real::F32);
batched!(cusolverDnDpotrfBatched, Real::F64);

macro_rules! entry {
    ($size:ident, $run:ident, $kind:expr, $real:expr) => {
        #[unsafe(no_mangle)]
        pub extern "C" fn $size(
            handle: u64,
            uplo: c_int,
            n: c_int,
            a: *mut c_void,
            lda: c_int,
            elements: *mut c_int,
        ) -> c_int {
            solver(stringify!($size), |sim| {
                let problem = sim.cholesky(handle, $kind, uplo, n, (a as u64, lda), $real)?;
                put(elements, problem.workspace() as c_int, "lwork")
            })
        }

        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)]
        pub extern "C" fn $run(
            handle: u64,
            uplo: c_int,
            n: c_int,
            a: *mut c_void,
            lda: c_int,
            work: *mut c_void,
            elements: c_int,
            info: *mut c_int,
        ) -> c_int {
            solver(stringify!($run), |sim| {
                let problem = sim.cholesky(handle, $kind, uplo, n, (a as u64, lda), $real)?;
                sim.run_cholesky(stringify!($run), handle, problem, (work as u64, elements), info as u64)
            })
        }
    };
}

entry!(cusolverDnSpotrf_bufferSize, cusolverDnSpotrf, Kind::Factor, Real::F32);
entry!(cusolverDnDpotrf_bufferSize, cusolverDnDpotrf, Kind::Factor, Real::F64);
entry!(cusolverDnSpotri_bufferSize, cusolverDnSpotri, Kind::Inverse, Real::F32);
entry!(cusolverDnDpotri_bufferSize, cusolverDnDpotri, Kind::Inverse, Real::F64);
