//! Symmetric eigendecompositions with the 64-bit interface, single and batched.

use std::sync::Arc;

use libc::{c_int, c_void};

use super::rounding::Rounding;
use crate::boundary::{put, put_if, solver};
use crate::eigen::symmetric;
use crate::faults::Spoil;
use crate::matrix::{Matrix, Part, Real};
use crate::reason::{Result, refuse};
use crate::schedule::{Run, Stage, Work};
use crate::state::Sim;

/// One decomposition, or a batch of them one after another in memory.
#[derive(Clone, Copy)]
struct Problem {
    vectors: bool,
    part: Part,
    a: Matrix,
    w: Matrix,
    /// How many, and whether by the batched function.
    batch: usize,
    batched: bool,
    /// What the errors depend on beside the matrix: the algorithm, and the call where results may differ.
    salt: u64,
}

/// What a single decomposition takes beside its matrices.
const SINGLE_FIXED: usize = 32 << 10;
/// Sides up to which a batch works in shared memory.
const SHARED_SIDE: usize = 32;

impl Problem {
    /// Bytes of device and host workspace. The numbers are made up; that they do not only grow is what a caller
    /// must get right: one matrix alone takes more than a batch of small ones, and f64 more than twice f32.
    fn workspace(&self) -> (usize, usize) {
        let (n, size) = (self.a.rows, self.a.real.size());
        let copies = if self.a.real == Real::F64 { 3 } else { 2 };
        let one = (copies * n * n + 6 * n + 32) * size;
        if !self.batched {
            return (one + SINGLE_FIXED, 4 * n * size + 64);
        }
        let each = if n <= SHARED_SIDE { 2 * n * size } else { one };
        (each * self.batch.min(64) + 256, 0)
    }

    fn perform(&self, stage: &mut Stage<'_>, scratch: u64, info: u64) -> Result {
        // Real libraries use their workspace: garbage lands in all of it.
        let needed = self.workspace().0;
        stage.window.put(scratch, &vec![0xa5; needed], 1)?;
        for i in 0..self.batch {
            let a = self.a.offset((i * self.a.ld * self.a.cols) as i64);
            let w = self.w.offset((i * self.w.rows) as i64);
            let status = self.one(stage, a, w)?;
            stage.window.put(info + 4 * i as u64, &status.to_le_bytes(), 4)?;
        }
        Ok(())
    }

    fn one(&self, stage: &mut Stage<'_>, a: Matrix, w: Matrix) -> Result<i32> {
        let n = a.rows;
        let mut full = a.load(&mut stage.window, self.part)?;
        for j in 0..n {
            for i in 0..j {
                // Column-major: (i, j) is above the diagonal.
                if self.part == Part::Upper {
                    full[i * n + j] = full[j * n + i];
                } else {
                    full[j * n + i] = full[i * n + j];
                }
            }
        }
        stage.counters.totals.evds += 1;
        let spoil = stage.faults.strike_evd();
        let config = stage.config;
        let mut rounding = Rounding::new(a.real, config.evd_noise, config.seed, self.salt, &full);
        rounding.disturb(&mut full, n);
        let (mut values, mut vectors, mut status) = match symmetric(&full, n) {
            Some((values, vectors)) => (values, vectors, 0),
            None => (vec![f64::NAN; n], vec![f64::NAN; n * n], n as i32),
        };
        rounding.finish(&mut vectors, n);
        match spoil {
            Some(Spoil::Info) => status = n as i32,
            Some(Spoil::Nan) => vectors[0] = f64::NAN,
            Some(Spoil::NonOrthogonal) if n > 1 => {
                // The second vector leans towards the first.
                for i in 0..n {
                    vectors[n + i] = 0.8 * vectors[n + i] + 0.6 * vectors[i];
                }
            }
            Some(Spoil::NonOrthogonal) => vectors.iter_mut().for_each(|v| *v *= 1.5),
            Some(Spoil::Values) => values.iter_mut().for_each(|v| *v = -v.abs() - 1.0),
            None => {}
        }
        if !self.vectors {
            // The matrix is destroyed.
            vectors.fill(f64::NAN);
        }
        a.store(&mut stage.window, Part::All, &vectors)?;
        w.store(&mut stage.window, Part::All, &values)?;
        Ok(status)
    }
}

impl Sim {
    /// Checks the arguments that the size queries and the decompositions share.
    fn problem(&mut self, handle: u64, params: u64, given: &Given) -> Result<Problem> {
        self.solver_handle(handle)?;
        if params != 0 {
            self.params.get(params)?;
        }
        if given.jobz != 0 && given.jobz != 1 {
            refuse!(InvalidValue, "jobz {} is unknown", given.jobz);
        }
        let batch = given.batch.unwrap_or(1);
        if given.n < 0 || batch < 1 {
            refuse!(InvalidValue, "n is {} and the batch {batch}", given.n);
        }
        // The batched function counts in 32 bits: 32768 matrices, and 2^31 bytes, are too many for it.
        let size = if given.types.0 == 0 { 4 } else { 8 };
        let bytes = i128::from(given.n) * i128::from(given.lda) * i128::from(batch) * size;
        if given.batch.is_some() && (batch >= 32768 || bytes > i128::from(i32::MAX)) {
            refuse!(
                InvalidValue,
                "{batch} matrices of side {} have {bytes} bytes, too many for a batch",
                given.n
            );
        }
        if given.lda < given.n.max(1) {
            refuse!(InvalidValue, "lda is {}, n is {}", given.lda, given.n);
        }
        let reals = [
            Real::from_code(given.types.0)?,
            Real::from_code(given.types.1)?,
            Real::from_code(given.types.2)?,
        ];
        if !matches!(reals[0], Real::F32 | Real::F64) || reals.iter().any(|r| *r != reals[0]) {
            refuse!(InvalidValue, "the types of A, W and the computation must all be f32 or all f64");
        }
        let n = given.n as usize;
        Ok(Problem {
            vectors: given.jobz == 1,
            part: Part::from_code(given.uplo)?,
            a: Matrix { address: given.a, rows: n, cols: n, ld: given.lda as usize, real: reals[0] },
            w: Matrix { address: given.w, rows: n, cols: 1, ld: n.max(1), real: reals[0] },
            batch: given.batch.unwrap_or(1) as usize,
            batched: given.batch.is_some(),
            salt: u64::from(given.batch.is_some()),
        })
    }

    fn decompose(
        &mut self,
        name: &str,
        handle: u64,
        params: u64,
        given: &Given,
        room: Room,
        info: u64,
    ) -> Result {
        let mut problem = self.problem(handle, params, given)?;
        let found = self.solver_handle(handle)?;
        if found.determinism == 2 {
            problem.salt |= self.counters.totals.solver_calls << 1;
        }
        let (device, host) = problem.workspace();
        if room.device.1 < device {
            refuse!(Workspace, "the device workspace has {} bytes, {device} are needed", room.device.1);
        }
        if room.host.1 < host {
            refuse!(Workspace, "the host workspace has {} bytes, {host} are needed", room.host.1);
        }
        let context = found.context;
        self.store.check(room.device.0, room.device.1, context)?;
        self.store.check(info, 4 * problem.batch, context)?;
        if problem.a.rows > 0 {
            let size = problem.a.real.size();
            let bytes = problem.a.extent() + (problem.batch - 1) * problem.a.ld * problem.a.cols * size;
            self.store.check(problem.a.address, bytes, context)?;
            self.store.check(problem.w.address, problem.batch * problem.a.rows * size, context)?;
        }
        if host > 0 {
            if room.host.0 < 4096 || self.store.is_device_address(room.host.0) {
                refuse!(Workspace, "the host workspace {:#x} is not host memory", room.host.0);
            }
            // SAFETY: the caller promises this many bytes; the library may write all it asked for.
            unsafe { std::ptr::write_bytes(room.host.0 as *mut u8, 0xa5, host) };
        }
        let stream = self.stream(found.stream)?;
        self.counters.totals.launches += 1;
        self.counters.totals.solver_calls += 1;
        let scratch = room.device.0;
        let run: Run = Arc::new(move |stage| problem.perform(stage, scratch, info));
        self.enqueue(stream, name, Work::Run(run))?;
        if !problem.batched {
            // Parts of a single decomposition are the host's.
            self.counters.totals.solver_syncs += 1;
            self.wait_stream(stream)?;
        }
        Ok(())
    }
}

/// The arguments as the caller gave them.
struct Given {
    jobz: c_int,
    uplo: c_int,
    n: i64,
    a: u64,
    lda: i64,
    w: u64,
    /// Of A, W and the computation.
    types: (c_int, c_int, c_int),
    /// Of the batched function.
    batch: Option<i64>,
}

/// The workspaces: address and bytes.
struct Room {
    device: (u64, usize),
    host: (u64, usize),
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub extern "C" fn cusolverDnXsyevd_bufferSize(
    handle: u64,
    params: u64,
    jobz: c_int,
    uplo: c_int,
    n: i64,
    a_type: c_int,
    a: *const c_void,
    lda: i64,
    w_type: c_int,
    w: *const c_void,
    compute: c_int,
    device: *mut usize,
    host: *mut usize,
) -> c_int {
    solver("cusolverDnXsyevd_bufferSize", |sim| {
        let types = (a_type, w_type, compute);
        let given = Given { jobz, uplo, n, a: a as u64, lda, w: w as u64, types, batch: None };
        let sizes = sim.problem(handle, params, &given)?.workspace();
        put(device, sizes.0, "workspaceInBytesOnDevice")?;
        put_if(host, sizes.1);
        Ok(())
    })
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub extern "C" fn cusolverDnXsyevd(
    handle: u64,
    params: u64,
    jobz: c_int,
    uplo: c_int,
    n: i64,
    a_type: c_int,
    a: *mut c_void,
    lda: i64,
    w_type: c_int,
    w: *mut c_void,
    compute: c_int,
    device: *mut c_void,
    device_bytes: usize,
    host: *mut c_void,
    host_bytes: usize,
    info: *mut c_int,
) -> c_int {
    solver("cusolverDnXsyevd", |sim| {
        let types = (a_type, w_type, compute);
        let given = Given { jobz, uplo, n, a: a as u64, lda, w: w as u64, types, batch: None };
        let room = Room { device: (device as u64, device_bytes), host: (host as u64, host_bytes) };
        sim.decompose("cusolverDnXsyevd", handle, params, &given, room, info as u64)
    })
}

#[cfg(not(feature = "no-batched-evd"))]
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub extern "C" fn cusolverDnXsyevBatched_bufferSize(
    handle: u64,
    params: u64,
    jobz: c_int,
    uplo: c_int,
    n: i64,
    a_type: c_int,
    a: *const c_void,
    lda: i64,
    w_type: c_int,
    w: *const c_void,
    compute: c_int,
    device: *mut usize,
    host: *mut usize,
    batch: i64,
) -> c_int {
    solver("cusolverDnXsyevBatched_bufferSize", |sim| {
        let types = (a_type, w_type, compute);
        let given = Given { jobz, uplo, n, a: a as u64, lda, w: w as u64, types, batch: Some(batch) };
        let sizes = sim.problem(handle, params, &given)?.workspace();
        put(device, sizes.0, "workspaceInBytesOnDevice")?;
        put_if(host, sizes.1);
        Ok(())
    })
}

#[cfg(not(feature = "no-batched-evd"))]
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub extern "C" fn cusolverDnXsyevBatched(
    handle: u64,
    params: u64,
    jobz: c_int,
    uplo: c_int,
    n: i64,
    a_type: c_int,
    a: *mut c_void,
    lda: i64,
    w_type: c_int,
    w: *mut c_void,
    compute: c_int,
    device: *mut c_void,
    device_bytes: usize,
    host: *mut c_void,
    host_bytes: usize,
    info: *mut c_int,
    batch: i64,
) -> c_int {
    solver("cusolverDnXsyevBatched", |sim| {
        let types = (a_type, w_type, compute);
        let given = Given { jobz, uplo, n, a: a as u64, lda, w: w as u64, types, batch: Some(batch) };
        let room = Room { device: (device as u64, device_bytes), host: (host as u64, host_bytes) };
        sim.decompose("cusolverDnXsyevBatched", handle, params, &given, room, info as u64)
    })
}
