//! cuBLAS and cuSOLVER: batched products, the symmetric eigendecomposition, Cholesky's and orthogonal factors. Column-major, as they are.

use super::driver::{Device, Memory, refused};
use super::libraries::{blas, solver};
use crate::error::{Error, Kind, Result};
use crate::memory::{Allocator, filled};
use crate::tensor::Precision;
use cudarc::driver::sys::CUstream;
use parking_lot::{Mutex, MutexGuard};
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Bytes of workspace that NVIDIA recommends for cuBLAS, which then allocates nothing itself: 32 MiB from compute
/// capability 9.0 on, 4 MiB before.
pub fn blas_workspace(device: &Device) -> usize {
    if device.generation().0 >= 9 { 32 << 20 } else { 4 << 20 }
}

/// Matrices of one call of the batched solver: it has refused more than 32 768.
const MOST_BATCHED: usize = 16384;

/// Microseconds that `Xsyevd` takes for `count` matrices of side `n`, one by one. This and [`batched_cost`] are stated,
/// not measured here; `examples/cuda/model.py` has the sources. 9 n³ flops at 0.75 of an A100.
fn single_cost(n: f64, count: f64) -> f64 {
    count * (35.0 * n + 9.0 * n.powi(3) / 14.6e6)
}

/// The same for `XsyevBatched`.
fn batched_cost(n: f64, count: f64) -> f64 {
    3.3 * n + count * (80.0 + 0.93e-6 * n.powi(3))
}

/// How many matrices of side `n` one call of the batched solver takes, of `size` bytes per number: it counts the bytes
/// of all of them in 32 bits. 0 if not even one.
fn most_batched(n: usize, size: usize) -> usize {
    let bytes = (n * n * size).max(1);
    (i32::MAX as usize / bytes).min(MOST_BATCHED)
}

/// One operand of a batched product: where, leading dimension, elements between matrices, transposed.
#[derive(Clone, Copy)]
pub struct Operand {
    /// Address.
    pub at: u64,
    /// Elements between columns.
    pub lead: usize,
    /// Elements between the matrices of the batch.
    pub stride: usize,
    /// Taken transposed.
    pub transposed: bool,
}

/// The size of a batched product: m×k times k×n, `count` times.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Inner length.
    pub k: usize,
    /// Matrices of the batch.
    pub count: usize,
}

/// A batch of symmetric matrices to decompose in place.
#[derive(Clone, Copy)]
pub struct Batch {
    /// The matrices, one behind the other; eigenvectors afterwards.
    pub matrices: u64,
    /// The spectra, one behind the other.
    pub spectra: u64,
    /// One int per matrix: 0 if it converged.
    pub infos: u64,
    /// Side.
    pub n: usize,
    /// How many.
    pub count: usize,
    /// Of which precision.
    pub precision: Precision,
}

/// Square matrices that a list on the device points to.
#[derive(Clone, Copy)]
pub struct Pointers {
    /// The list.
    pub list: u64,
    /// Side.
    pub n: usize,
    /// How many.
    pub count: usize,
    /// Of which precision.
    pub precision: Precision,
}

/// On which side a triangle stands: L X, or X Lᵀ.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// L X.
    Left,
    /// X Lᵀ.
    Right,
}

/// How a batch is decomposed: at once, or matrix by matrix.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Path {
    Batched,
    Single,
}

/// The handles of a device: one of each library, whatever the number of optimizers and sessions. A handle follows one
/// stream; whoever uses it sets its own again if another was there in between. Work that runs beside that of a step has
/// handles of its own, because nobody says what a handle keeps on the device between calls on two streams.
pub struct Handles {
    blas: blas::cublasHandle_t,
    solver: solver::cusolverDnHandle_t,
    params: solver::cusolverDnParams_t,
    /// Number of the user whose stream and workspace are set; 0 for none.
    user: Mutex<u64>,
    device: Arc<Device>,
}

// SAFETY: handles that one thread at a time uses, by the lock.
unsafe impl Send for Handles {}
// SAFETY: as above.
unsafe impl Sync for Handles {}

static OPEN: Mutex<Vec<Weak<Handles>>> = Mutex::new(Vec::new());

impl Handles {
    /// Those of `device` that are in use, or new ones. The context is current.
    pub fn open(device: &Arc<Device>) -> Result<Arc<Handles>> {
        let mut open = OPEN.lock();
        open.retain(|handles| handles.strong_count() > 0);
        let same = |handles: &Arc<Handles>| Arc::ptr_eq(&handles.device, device);
        if let Some(handles) = open.iter().filter_map(Weak::upgrade).find(same) {
            return Ok(handles);
        }
        let made = Handles::new(device)?;
        open.push(Arc::downgrade(&made));
        Ok(made)
    }

    /// New ones, which nobody else gets. The context is current.
    pub fn new(device: &Arc<Device>) -> Result<Arc<Handles>> {
        let (blas, solver, params) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        let mut made = Handles { blas, solver, params, user: Mutex::new(0), device: device.clone() };
        // SAFETY: the handles are ours; Drop releases those that were made.
        unsafe {
            blas_check(blas::cublasCreate_v2(&mut made.blas), "cublasCreate")?;
            solver_check(solver::cusolverDnCreate(&mut made.solver), "cusolverDnCreate")?;
            solver_check(solver::cusolverDnCreateParams(&mut made.params), "cusolverDnCreateParams")?;
        }
        Ok(Arc::new(made))
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        let _current = self.device.enter();
        // SAFETY: handles made by `open`; those that were not are NULL.
        unsafe {
            if !self.params.is_null() {
                solver::cusolverDnDestroyParams(self.params);
            }
            if !self.solver.is_null() {
                solver::cusolverDnDestroy(self.solver);
            }
            if !self.blas.is_null() {
                blas::cublasDestroy_v2(self.blas);
            }
        }
    }
}

/// The two libraries for one optimizer or session: the device's handles, and workspace of its own.
pub struct Linear {
    blas: blas::cublasHandle_t,
    solver: solver::cusolverDnHandle_t,
    params: solver::cusolverDnParams_t,
    handles: Arc<Handles>,
    /// Who it is among the users of the handles.
    user: u64,
    stream: CUstream,
    batched: bool,
    /// Products that may be fast round their operands in single precision.
    tf32: bool,
    workspace: Memory,
    scratch: Option<Memory>,
    host_scratch: Vec<u8>,
    device: Arc<Device>,
}

// SAFETY: the handles move with their owner, and one call at a time uses them.
unsafe impl Send for Linear {}

fn blas_check(status: blas::cublasStatus_t, call: &str) -> Result<()> {
    if status == blas::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    // SAFETY: cuBLAS gives a static string.
    let name = unsafe { CStr::from_ptr(blas::cublasGetStatusName(status)) }.to_string_lossy();
    let kind = if status == blas::cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED {
        Kind::OutOfMemory
    } else {
        Kind::DeviceError
    };
    Err(Error { native_code: status as i32, ..Error::new(kind, format!("{call} failed: {name}")) })
}

fn solver_check(status: solver::cusolverStatus_t, call: &str) -> Result<()> {
    if status == solver::cusolverStatus_t::CUSOLVER_STATUS_SUCCESS {
        return Ok(());
    }
    let kind = if status == solver::cusolverStatus_t::CUSOLVER_STATUS_ALLOC_FAILED {
        Kind::OutOfMemory
    } else {
        Kind::DeviceError
    };
    Err(Error { native_code: status as i32, ..Error::new(kind, format!("{call} failed: {status:?}")) })
}

fn operation(x: Operand) -> blas::cublasOperation_t {
    if x.transposed { blas::cublasOperation_t::CUBLAS_OP_T } else { blas::cublasOperation_t::CUBLAS_OP_N }
}

fn data_type(precision: Precision) -> solver::cudaDataType {
    match precision {
        Precision::F32 => solver::cudaDataType_t::CUDA_R_32F,
        Precision::F64 => solver::cudaDataType_t::CUDA_R_64F,
    }
}

impl Linear {
    /// The libraries by `handles`, the context of whose device is current. Without an allocator, workspace is borrowed
    /// for each call.
    pub fn new(
        handles: Arc<Handles>,
        allocator: Option<Allocator>,
        batched: bool,
        tf32: bool,
    ) -> Result<Linear> {
        let device = &handles.device.clone();
        let workspace = match allocator {
            Some(allocator) => {
                Memory::new(device, blas_workspace(device), allocator, "the workspace of cuBLAS")?
            }
            None => Memory::borrowed(device, 0, 0),
        };
        static USERS: AtomicU64 = AtomicU64::new(0);
        Ok(Linear {
            blas: handles.blas,
            solver: handles.solver,
            params: handles.params,
            user: USERS.fetch_add(1, Ordering::Relaxed) + 1,
            stream: std::ptr::null_mut(),
            handles,
            batched,
            tf32,
            workspace,
            scratch: None,
            host_scratch: Vec::new(),
            device: device.clone(),
        })
    }

    /// What follows is put on `stream`.
    pub fn follow(&mut self, stream: CUstream) -> Result<()> {
        self.stream = stream;
        *self.handles.user.lock() = 0;
        self.hold().map(|_held| ())
    }

    /// Keeps others from the handles, which follow our stream until the guard is dropped.
    fn hold(&self) -> Result<MutexGuard<'_, u64>> {
        let mut user = self.handles.user.lock();
        if *user != self.user {
            *user = 0;
            self.set_stream()?;
            *user = self.user;
        }
        Ok(user)
    }

    fn set_stream(&self) -> Result<()> {
        let stream = self.stream;
        // SAFETY: handles, stream and workspace are alive. A new stream resets the workspace.
        unsafe {
            blas_check(blas::cublasSetStream_v2(self.blas, stream.cast()), "cublasSetStream")?;
            let (at, bytes) = (self.workspace.address() as *mut c_void, self.workspace.bytes());
            blas_check(blas::cublasSetWorkspace_v2(self.blas, at, bytes), "cublasSetWorkspace")?;
            solver_check(solver::cusolverDnSetStream(self.solver, stream.cast()), "cusolverDnSetStream")
        }
    }

    /// Whether products that may be fast are.
    pub fn is_fast(&self) -> bool {
        self.tf32
    }

    /// As [`Linear::multiply`], with operands in single precision rounded to TF32 if the option says so.
    pub fn multiply_fast(
        &self,
        precision: Precision,
        shape: Shape,
        a: Operand,
        b: Operand,
        c: Operand,
        keep: bool,
    ) -> Result<()> {
        if !self.tf32 || precision == Precision::F64 {
            return self.multiply(precision, shape, a, b, c, keep);
        }
        let rounded = blas::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32;
        self.multiply_as((blas::cudaDataType_t::CUDA_R_32F, rounded), shape, a, b, c, keep)
    }

    /// Whether the device has products of bf16.
    pub fn has_bf16(&self) -> bool {
        self.device.generation().0 >= 8
    }

    /// c ← a·b for operands in bf16, whose products are exact in f32; the result and all sums are in f32.
    pub fn multiply_bf16(&self, shape: Shape, a: Operand, b: Operand, c: Operand) -> Result<()> {
        let exact = blas::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        self.multiply_as((blas::cudaDataType_t::CUDA_R_16BF, exact), shape, a, b, c, false)
    }

    /// c ← a·b + keep·c in f32, with operands of a type and products of a kind.
    fn multiply_as(
        &self,
        (operands, compute): (blas::cudaDataType_t, blas::cublasComputeType_t),
        shape: Shape,
        a: Operand,
        b: Operand,
        c: Operand,
        keep: bool,
    ) -> Result<()> {
        let (one, beta): (f32, f32) = (1.0, if keep { 1.0 } else { 0.0 });
        let _held = self.hold()?;
        // SAFETY: as in `multiply`.
        let status = unsafe {
            blas::cublasGemmStridedBatchedEx(
                self.blas,
                operation(a),
                operation(b),
                shape.m as c_int,
                shape.n as c_int,
                shape.k as c_int,
                (&raw const one).cast(),
                a.at as *const c_void,
                operands,
                a.lead as c_int,
                a.stride as i64,
                b.at as *const c_void,
                operands,
                b.lead as c_int,
                b.stride as i64,
                (&raw const beta).cast(),
                c.at as *mut c_void,
                blas::cudaDataType_t::CUDA_R_32F,
                c.lead as c_int,
                c.stride as i64,
                shape.count as c_int,
                compute,
                blas::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        };
        blas_check(status, "cublasGemmStridedBatchedEx")
    }

    /// c ← a·b + keep·c, for every matrix of the batch.
    pub fn multiply(
        &self,
        precision: Precision,
        shape: Shape,
        a: Operand,
        b: Operand,
        c: Operand,
        keep: bool,
    ) -> Result<()> {
        let Shape { m, n, k, count } = shape;
        let _held = self.hold()?;
        macro_rules! call {
            ($function:ident, $type:ty) => {{
                let (one, beta): ($type, $type) = (1.0, if keep { 1.0 } else { 0.0 });
                // SAFETY: operands of the sizes given, by the callers' layouts; scalars are read at once.
                let status = unsafe {
                    blas::$function(
                        self.blas,
                        operation(a),
                        operation(b),
                        m as c_int,
                        n as c_int,
                        k as c_int,
                        &one,
                        a.at as *const $type,
                        a.lead as c_int,
                        a.stride as i64,
                        b.at as *const $type,
                        b.lead as c_int,
                        b.stride as i64,
                        &beta,
                        c.at as *mut $type,
                        c.lead as c_int,
                        c.stride as i64,
                        count as c_int,
                    )
                };
                blas_check(status, stringify!($function))
            }};
        }
        match precision {
            Precision::F32 => call!(cublasSgemmStridedBatched, f32),
            Precision::F64 => call!(cublasDgemmStridedBatched, f64),
        }
    }

    /// The lower triangle of c ← c + a·aᵀ (or aᵀ·a if transposed): half the work of a product, for one matrix.
    pub fn add_square(&self, precision: Precision, n: usize, k: usize, a: Operand, c: Operand) -> Result<()> {
        let op = if a.transposed {
            blas::cublasOperation_t::CUBLAS_OP_T
        } else {
            blas::cublasOperation_t::CUBLAS_OP_N
        };
        let lower = blas::cublasFillMode_t::CUBLAS_FILL_MODE_LOWER;
        let _held = self.hold()?;
        macro_rules! call {
            ($function:ident, $type:ty) => {{
                let one: $type = 1.0;
                // SAFETY: as in `multiply`.
                let status = unsafe {
                    blas::$function(
                        self.blas,
                        lower,
                        op,
                        n as c_int,
                        k as c_int,
                        &one,
                        a.at as *const $type,
                        a.lead as c_int,
                        &one,
                        c.at as *mut $type,
                        c.lead as c_int,
                    )
                };
                blas_check(status, stringify!($function))
            }};
        }
        match precision {
            Precision::F32 => call!(cublasSsyrk_v2, f32),
            Precision::F64 => call!(cublasDsyrk_v2, f64),
        }
    }

    /// Takes the caller's workspace: [`blas_workspace`] bytes, then what the solver needs.
    pub fn borrow(&mut self, at: u64, bytes: usize) {
        let own = blas_workspace(&self.device);
        self.workspace = Memory::borrowed(&self.device, at, own);
        let scratch = bytes.saturating_sub(own);
        self.scratch = Some(Memory::borrowed(&self.device, at + own as u64, scratch));
    }

    /// Makes the solver's workspace, on the device (unless the caller lends it) and on the host. Only here: in the
    /// middle of training nothing grows.
    pub fn reserve(&mut self, bytes: usize, host: usize, allocator: Option<Allocator>) -> Result<()> {
        if let Some(allocator) = allocator {
            self.scratch = Some(Memory::new(&self.device, bytes, allocator, "an eigendecomposition")?);
        }
        self.host_scratch = filled(0, host, "an eigendecomposition")?;
        Ok(())
    }

    /// The ways in which a batch can be decomposed, the cheaper one first.
    fn paths(&self, batch: &Batch) -> &'static [Path] {
        if !self.batched || most_batched(batch.n, batch.precision.size()) == 0 {
            return &[Path::Single];
        }
        let (n, count) = (batch.n as f64, batch.count as f64);
        if batched_cost(n, count) < single_cost(n, count) {
            &[Path::Batched, Path::Single]
        } else {
            &[Path::Single, Path::Batched]
        }
    }

    /// Bytes of workspace on the device and on the host, whichever way `batch` is decomposed.
    pub fn needs(&self, batch: &Batch) -> Result<(usize, usize)> {
        let mut most = (0, 0);
        for path in self.paths(batch) {
            let (bytes, host) = self.needs_on(*path, batch)?;
            most = (most.0.max(bytes), most.1.max(host));
        }
        Ok(most)
    }

    fn needs_on(&self, path: Path, batch: &Batch) -> Result<(usize, usize)> {
        let (mut bytes, mut host) = (0usize, 0usize);
        let kind = data_type(batch.precision);
        let (vectors, lower) = (
            solver::cusolverEigMode_t::CUSOLVER_EIG_MODE_VECTOR,
            solver::cublasFillMode_t::CUBLAS_FILL_MODE_LOWER,
        );
        let (n, matrices, spectra) =
            (batch.n as i64, batch.matrices as *const c_void, batch.spectra as *const c_void);
        // The last call of several may be a smaller one, which need not ask for less.
        let most = most_batched(batch.n, batch.precision.size());
        let rest = batch.count % most.max(1);
        if path == Path::Batched && batch.count > most {
            let whole = self.needs_on(path, &Batch { count: most, ..*batch })?;
            let last = self.needs_on(path, &Batch { count: rest.max(1), ..*batch })?;
            return Ok((whole.0.max(last.0), whole.1.max(last.1)));
        }
        // SAFETY: only sizes are asked for.
        unsafe {
            match path {
                Path::Batched => {
                    let status = solver::cusolverDnXsyevBatched_bufferSize(
                        self.solver,
                        self.params,
                        vectors,
                        lower,
                        n,
                        kind,
                        matrices,
                        n,
                        kind,
                        spectra,
                        kind,
                        &mut bytes,
                        &mut host,
                        batch.count as i64,
                    );
                    solver_check(status, "cusolverDnXsyevBatched_bufferSize")?;
                }
                Path::Single => {
                    let status = solver::cusolverDnXsyevd_bufferSize(
                        self.solver,
                        self.params,
                        vectors,
                        lower,
                        n,
                        kind,
                        matrices,
                        n,
                        kind,
                        spectra,
                        kind,
                        &mut bytes,
                        &mut host,
                    );
                    solver_check(status, "cusolverDnXsyevd_bufferSize")?;
                }
            }
        }
        Ok((bytes, host))
    }

    /// The first way whose workspace is there. Sizes need not grow with the batch, so a part of a group may ask for
    /// more than the whole; one by one, every group has room.
    fn choose(&self, batch: &Batch) -> Result<Path> {
        let room = (self.scratch.as_ref().map_or(0, Memory::bytes), self.host_scratch.len());
        let mut least = 0;
        for path in self.paths(batch) {
            let (bytes, host) = self.needs_on(*path, batch)?;
            if bytes <= room.0 && host <= room.1 {
                return Ok(*path);
            }
            least = bytes;
        }
        Err(Error::out_of_memory("an eigendecomposition, in the workspace", least as u128))
    }

    /// Decomposes every matrix of the batch, from its lower triangle, in place.
    pub fn decompose(&mut self, batch: &Batch) -> Result<()> {
        let path = self.choose(batch)?;
        self.decompose_on(path, batch).map_err(|cause| {
            let bytes = self.scratch.as_ref().map_or(0, Memory::bytes);
            let (count, n) = (batch.count, batch.n);
            refused(cause, bytes, &format!("the eigendecomposition of {count} matrices of side {n}"))
        })
    }

    fn decompose_on(&mut self, path: Path, batch: &Batch) -> Result<()> {
        let kind = data_type(batch.precision);
        let (vectors, lower) = (
            solver::cusolverEigMode_t::CUSOLVER_EIG_MODE_VECTOR,
            solver::cublasFillMode_t::CUBLAS_FILL_MODE_LOWER,
        );
        let n = batch.n as i64;
        let (scratch, bytes) = self.scratch.as_ref().map_or((0, 0), |s| (s.address(), s.bytes()));
        let (host, host_bytes) = (self.host_scratch.as_mut_ptr().cast::<c_void>(), self.host_scratch.len());
        let _held = self.hold()?;
        let size = batch.precision.size();
        let most = most_batched(batch.n, size).max(1);
        for first in (0..batch.count).step_by(most).filter(|_| path == Path::Batched) {
            let at = |base: u64, step: usize| (base + (first * step) as u64) as *mut c_void;
            // SAFETY: buffers of the sizes that were asked for.
            let status = unsafe {
                solver::cusolverDnXsyevBatched(
                    self.solver,
                    self.params,
                    vectors,
                    lower,
                    n,
                    kind,
                    at(batch.matrices, batch.n * batch.n * size),
                    n,
                    kind,
                    at(batch.spectra, batch.n * size),
                    kind,
                    scratch as *mut c_void,
                    bytes,
                    host,
                    host_bytes,
                    at(batch.infos, 4).cast(),
                    most.min(batch.count - first) as i64,
                )
            };
            solver_check(status, "cusolverDnXsyevBatched")?;
        }
        for i in (0..batch.count).filter(|_| path == Path::Single) {
            let at = |base: u64, step: usize| (base + (i * step) as u64) as *mut c_void;
            // SAFETY: as above, matrix by matrix.
            let status = unsafe {
                solver::cusolverDnXsyevd(
                    self.solver,
                    self.params,
                    vectors,
                    lower,
                    n,
                    kind,
                    at(batch.matrices, batch.n * batch.n * size),
                    n,
                    kind,
                    at(batch.spectra, batch.n * size),
                    kind,
                    scratch as *mut c_void,
                    bytes,
                    host,
                    host_bytes,
                    at(batch.infos, 4).cast(),
                )
            };
            solver_check(status, "cusolverDnXsyevd")?;
        }
        Ok(())
    }

    /// Cholesky's factor of every matrix, symmetric and positive definite, from and into its lower triangle; the upper
    /// one is used as workspace. The info of a matrix that is not positive definite is not 0.
    pub fn factorize(&self, matrices: &Pointers, infos: u64) -> Result<()> {
        let lower = solver::cublasFillMode_t::CUBLAS_FILL_MODE_LOWER;
        let Pointers { list, n, count, precision } = *matrices;
        let _held = self.hold()?;
        macro_rules! call {
            ($function:ident, $type:ty) => {{
                let (list, infos) = (list as *mut *mut $type, infos as *mut c_int);
                let (n, count) = (n as c_int, count as c_int);
                // SAFETY: as many pointers to matrices of side n, and as many infos.
                let status = unsafe { solver::$function(self.solver, lower, n, list, n, infos, count) };
                solver_check(status, stringify!($function))
            }};
        }
        match precision {
            Precision::F32 => call!(cusolverDnSpotrfBatched, f32),
            Precision::F64 => call!(cusolverDnDpotrfBatched, f64),
        }
    }

    /// X ← L⁻¹X, or X ← X·L⁻ᵀ, for the lower triangles L and the square matrices X that `list` points to.
    pub fn solve_lower(&self, triangles: &Pointers, list: u64, side: Side) -> Result<()> {
        let lower = blas::cublasFillMode_t::CUBLAS_FILL_MODE_LOWER;
        let diagonal = blas::cublasDiagType_t::CUBLAS_DIAG_NON_UNIT;
        let (side, op) = match side {
            Side::Left => (blas::cublasSideMode_t::CUBLAS_SIDE_LEFT, blas::cublasOperation_t::CUBLAS_OP_N),
            Side::Right => (blas::cublasSideMode_t::CUBLAS_SIDE_RIGHT, blas::cublasOperation_t::CUBLAS_OP_T),
        };
        let (n, count) = (triangles.n as c_int, triangles.count as c_int);
        let _held = self.hold()?;
        macro_rules! call {
            ($function:ident, $type:ty) => {{
                let one: $type = 1.0;
                let (a, x) = (triangles.list as *const *const $type, list as *const *mut $type);
                // SAFETY: as many pointers to matrices of side n in each list.
                let status = unsafe {
                    blas::$function(self.blas, side, lower, op, diagonal, n, n, &one, a, n, x, n, count)
                };
                blas_check(status, stringify!($function))
            }};
        }
        match triangles.precision {
            Precision::F32 => call!(cublasStrsmBatched, f32),
            Precision::F64 => call!(cublasDtrsmBatched, f64),
        }
    }

    /// Bytes of workspace that [`Linear::orthonormalize`] needs.
    pub fn needs_factor(&self, batch: &Batch) -> Result<usize> {
        let n = batch.n as c_int;
        let (mut factor, mut form): (c_int, c_int) = (0, 0);
        macro_rules! ask {
            ($factor:ident, $form:ident, $type:ty) => {{
                let (at, tau) = (batch.matrices as *mut $type, batch.spectra as *const $type);
                // SAFETY: only sizes are asked for.
                unsafe {
                    let status = solver::$factor(self.solver, n, n, at, n, &mut factor);
                    solver_check(status, stringify!($factor))?;
                    let status = solver::$form(self.solver, n, n, n, at, n, tau, &mut form);
                    solver_check(status, stringify!($form))?
                }
            }};
        }
        match batch.precision {
            Precision::F32 => ask!(cusolverDnSgeqrf_bufferSize, cusolverDnSorgqr_bufferSize, f32),
            Precision::F64 => ask!(cusolverDnDgeqrf_bufferSize, cusolverDnDorgqr_bufferSize, f64),
        }
        Ok(factor.max(form).max(0) as usize * batch.precision.size())
    }

    /// Every matrix of the batch becomes the orthogonal factor of itself, by Householder reflections, whose scales
    /// go where the spectra are. Columns that depend on others are completed to a basis.
    pub fn orthonormalize(&mut self, batch: &Batch) -> Result<()> {
        let n = batch.n as c_int;
        let size = batch.precision.size();
        let (scratch, bytes) = self.scratch.as_ref().map_or((0, 0), |s| (s.address(), s.bytes()));
        let room = (bytes / size).min(c_int::MAX as usize) as c_int;
        let _held = self.hold()?;
        macro_rules! call {
            ($factor:ident, $form:ident, $type:ty, $i:expr) => {{
                let at = |base: u64, step: usize| base + ($i * step) as u64;
                let (matrix, tau) = (
                    at(batch.matrices, batch.n * batch.n * size) as *mut $type,
                    at(batch.spectra, batch.n * size) as *mut $type,
                );
                let (work, info) = (scratch as *mut $type, at(batch.infos, 4) as *mut c_int);
                // SAFETY: a matrix of the batch, its scales, and the workspace that was reserved. The info
                // of the second call stays: it speaks of both, because the result is looked at.
                unsafe {
                    let status = solver::$factor(self.solver, n, n, matrix, n, tau, work, room, info);
                    solver_check(status, stringify!($factor))?;
                    let status = solver::$form(self.solver, n, n, n, matrix, n, tau, work, room, info);
                    solver_check(status, stringify!($form))?
                }
            }};
        }
        for i in 0..batch.count {
            match batch.precision {
                Precision::F32 => call!(cusolverDnSgeqrf, cusolverDnSorgqr, f32, i),
                Precision::F64 => call!(cusolverDnDgeqrf, cusolverDnDorgqr, f64, i),
            }
        }
        Ok(())
    }

    /// Bytes of device memory that it occupies.
    pub fn bytes(&self) -> usize {
        self.workspace.bytes() + self.scratch.as_ref().map_or(0, Memory::bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_batched_solver_is_taken_by_its_stated_cost_and_within_its_limits() {
        let cheaper = |n: f64, count: f64| batched_cost(n, count) < single_cost(n, count);
        // Of every side that a model has; one by one only where a call costs more than the matrix.
        for n in [3.0, 64.0, 256.0, 1024.0, 2048.0, 8192.0] {
            assert!((1..64).all(|count| cheaper(n, f64::from(count))), "{n}");
        }
        assert!(!cheaper(2.0, 1.0) && !cheaper(2.0, 100.0));
        assert_eq!((most_batched(4, 4), most_batched(0, 4)), (MOST_BATCHED, MOST_BATCHED));
        // Bytes, not numbers: 16 384 matrices of side 256 would be 4 GiB.
        assert_eq!((most_batched(256, 4), most_batched(256, 8)), (8191, 4095));
        assert_eq!((most_batched(1024, 4), most_batched(23170, 4), most_batched(23171, 4)), (511, 1, 0));
    }
}
