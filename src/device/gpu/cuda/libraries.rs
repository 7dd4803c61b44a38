//! cuBLAS and cuSOLVER as one process should have them: those that are loaded already, or else those that fit the
//! driver. Types and constants are cudarc's; the functions are looked up in the file that was chosen, because cudarc
//! itself would take the first of any name and major, beside the one that a framework uses.

use std::ffi::{CStr, CString, c_int, c_void};
use std::sync::OnceLock;

/// What was found, by [`Name`].
static FOUND: [OnceLock<Found>; 2] = [const { OnceLock::new() }; 2];

/// One of the two libraries.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Name {
    /// cuBLAS.
    Blas,
    /// cuSOLVER.
    Solver,
}

/// A library that was chosen.
pub struct Found {
    handle: usize,
    /// Its file.
    pub path: String,
    /// Why it was chosen.
    pub why: String,
}

/// Folders to look in, such as those of NVIDIA's Python packages, with a colon between them.
pub const FOLDERS: &str = "FOAM_CUDA_LIBRARY_PATH";
/// Where NVIDIA's installer puts the libraries.
const SYSTEM: &str = "/usr/local/cuda/lib64";
/// The oldest and newest major of CUDA that is known.
const MAJORS: (i32, i32) = (12, 13);

impl Name {
    fn word(self) -> &'static str {
        match self {
            Name::Blas => "cublas",
            Name::Solver => "cusolver",
        }
    }

    /// The names of the files for a driver of CUDA `driver`, its own major first. A newer major would not run.
    pub fn files(self, driver: i32) -> Vec<String> {
        let newest = driver.clamp(MAJORS.0, MAJORS.1);
        // cuSOLVER counts one behind CUDA.
        let behind = if self == Name::Solver { 1 } else { 0 };
        (MAJORS.0..=newest).rev().map(|major| format!("lib{}.so.{}", self.word(), major - behind)).collect()
    }

    /// The library, found once; `driver` is the driver's major.
    pub fn find(self, driver: i32) -> Option<&'static Found> {
        let kept = &FOUND[self as usize];
        if kept.get().is_none() {
            // Nothing is kept of a search in vain: the library may come later.
            let found = self.search(driver)?;
            return Some(kept.get_or_init(|| found));
        }
        kept.get()
    }

    fn search(self, driver: i32) -> Option<Found> {
        let files = self.files(driver);
        let (own, others) = files.split_first()?;
        for file in &files {
            if let Some(found) = open(file, libc::RTLD_NOLOAD, "loaded already".to_string()) {
                return Some(found);
            }
        }
        let fits = format!("on the loader's path, of the driver's CUDA {}", driver.clamp(MAJORS.0, MAJORS.1));
        if let Some(found) = open(own, 0, fits) {
            return Some(found);
        }
        let given = std::env::var(FOLDERS).unwrap_or_default();
        let folders = given.split(':').filter(|folder| !folder.is_empty());
        for folder in folders {
            for file in &files {
                let why = format!("in a folder of {FOLDERS}");
                if let Some(found) = open(&format!("{folder}/{file}"), 0, why) {
                    return Some(found);
                }
            }
        }
        let bare = format!("lib{}.so", self.word());
        let installed = files.iter().map(|file| format!("{SYSTEM}/{file}"));
        let rest = others.iter().cloned().chain([bare]).chain(installed);
        rest.into_iter().find_map(|file| open(&file, 0, format!("on the system, as {file}")))
    }

    /// The address of a symbol of the library that was found.
    pub fn symbol(self, name: &str) -> Option<*const c_void> {
        let (found, name) = (FOUND[self as usize].get()?, CString::new(name).ok()?);
        // SAFETY: the library stays loaded; the symbol is only looked up.
        let address = unsafe { libc::dlsym(found.handle as *mut c_void, name.as_ptr()) };
        (!address.is_null()).then_some(address.cast_const())
    }
}

/// Opens a library by name or path; it is never closed.
fn open(file: &str, flags: c_int, why: String) -> Option<Found> {
    let name = CString::new(file).ok()?;
    // SAFETY: loads the library, whose initialisers are NVIDIA's.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL | flags) };
    (!handle.is_null()).then(|| Found { handle: handle as usize, path: path_of(handle, file), why })
}

/// The file behind a handle, as the loader knows it.
fn path_of(handle: *mut c_void, asked: &str) -> String {
    #[repr(C)]
    struct LinkMap {
        address: usize,
        name: *const libc::c_char,
    }
    let mut map: *const LinkMap = std::ptr::null();
    // SAFETY: the loader gives its own record of the library, which begins like this.
    unsafe {
        let known = libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut map).cast()) == 0;
        if !known || map.is_null() || (*map).name.is_null() {
            return asked.to_string();
        }
        CStr::from_ptr((*map).name).to_string_lossy().into_owned()
    }
}

/// Functions with the names and types of cudarc's, of the library that was found. Without the symbol they give
/// `missing`: nobody calls them then, because the symbols are looked up first.
macro_rules! functions {
    ($library:expr, $missing:expr; $(fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $answer:ty;)+) => {
        $(
            /// NVIDIA's.
            ///
            /// # Safety
            /// NVIDIA's contract.
            pub unsafe fn $name($($argument: $type),*) -> $answer {
                static ADDRESS: OnceLock<usize> = OnceLock::new();
                let found = *ADDRESS.get_or_init(|| $library.symbol(stringify!($name)).map_or(0, |at| at as usize));
                if found == 0 {
                    return $missing;
                }
                // SAFETY: NVIDIA declares it so, by cudarc's copy of the header.
                unsafe {
                    let function: unsafe extern "C" fn($($type),*) -> $answer =
                        std::mem::transmute::<usize, _>(found);
                    function($($argument),*)
                }
            }
        )+
    };
}

/// cuBLAS.
#[allow(non_snake_case, clippy::too_many_arguments, reason = "NVIDIA's names and arguments")]
pub mod blas {
    use super::Name;
    pub use cudarc::cublas::sys::{
        cublasComputeType_t, cublasDiagType_t, cublasFillMode_t, cublasGemmAlgo_t, cublasHandle_t,
        cublasOperation_t, cublasSideMode_t, cublasStatus_t, cudaDataType, cudaDataType_t,
        libraryPropertyType_t,
    };
    use cudarc::cublas::sys::{cudaStream_t, libraryPropertyType};
    use std::ffi::{c_char, c_int, c_longlong, c_void};
    use std::sync::OnceLock;

    functions! { Name::Blas, c"unknown".as_ptr();
        fn cublasGetStatusName(status: cublasStatus_t) -> *const c_char;
    }

    functions! { Name::Blas, cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED;
        fn cublasCreate_v2(handle: *mut cublasHandle_t) -> cublasStatus_t;
        fn cublasDestroy_v2(handle: cublasHandle_t) -> cublasStatus_t;
        fn cublasSetStream_v2(handle: cublasHandle_t, streamId: cudaStream_t) -> cublasStatus_t;
        fn cublasSetWorkspace_v2(
            handle: cublasHandle_t, workspace: *mut c_void, workspaceSizeInBytes: usize
        ) -> cublasStatus_t;
        fn cublasSgemmStridedBatched(
            handle: cublasHandle_t, transa: cublasOperation_t, transb: cublasOperation_t, m: c_int, n:
            c_int, k: c_int, alpha: *const f32, A: *const f32, lda: c_int, strideA: c_longlong, B:
            *const f32, ldb: c_int, strideB: c_longlong, beta: *const f32, C: *mut f32, ldc: c_int,
            strideC: c_longlong, batchCount: c_int
        ) -> cublasStatus_t;
        fn cublasDgemmStridedBatched(
            handle: cublasHandle_t, transa: cublasOperation_t, transb: cublasOperation_t, m: c_int, n:
            c_int, k: c_int, alpha: *const f64, A: *const f64, lda: c_int, strideA: c_longlong, B:
            *const f64, ldb: c_int, strideB: c_longlong, beta: *const f64, C: *mut f64, ldc: c_int,
            strideC: c_longlong, batchCount: c_int
        ) -> cublasStatus_t;
        fn cublasGemmStridedBatchedEx(
            handle: cublasHandle_t, transa: cublasOperation_t, transb: cublasOperation_t, m: c_int, n:
            c_int, k: c_int, alpha: *const c_void, A: *const c_void, Atype: cudaDataType, lda: c_int,
            strideA: c_longlong, B: *const c_void, Btype: cudaDataType, ldb: c_int, strideB: c_longlong,
            beta: *const c_void, C: *mut c_void, Ctype: cudaDataType, ldc: c_int, strideC: c_longlong,
            batchCount: c_int, computeType: cublasComputeType_t, algo: cublasGemmAlgo_t
        ) -> cublasStatus_t;
        fn cublasSsyrk_v2(
            handle: cublasHandle_t, uplo: cublasFillMode_t, trans: cublasOperation_t, n: c_int, k:
            c_int, alpha: *const f32, A: *const f32, lda: c_int, beta: *const f32, C: *mut f32, ldc:
            c_int
        ) -> cublasStatus_t;
        fn cublasDsyrk_v2(
            handle: cublasHandle_t, uplo: cublasFillMode_t, trans: cublasOperation_t, n: c_int, k:
            c_int, alpha: *const f64, A: *const f64, lda: c_int, beta: *const f64, C: *mut f64, ldc:
            c_int
        ) -> cublasStatus_t;
        fn cublasStrsmBatched(
            handle: cublasHandle_t, side: cublasSideMode_t, uplo: cublasFillMode_t, trans:
            cublasOperation_t, diag: cublasDiagType_t, m: c_int, n: c_int, alpha: *const f32, A: *const
            *const f32, lda: c_int, B: *const *mut f32, ldb: c_int, batchCount: c_int
        ) -> cublasStatus_t;
        fn cublasDtrsmBatched(
            handle: cublasHandle_t, side: cublasSideMode_t, uplo: cublasFillMode_t, trans:
            cublasOperation_t, diag: cublasDiagType_t, m: c_int, n: c_int, alpha: *const f64, A: *const
            *const f64, lda: c_int, B: *const *mut f64, ldb: c_int, batchCount: c_int
        ) -> cublasStatus_t;
        fn cublasGetProperty(type_: libraryPropertyType, value: *mut c_int) -> cublasStatus_t;
    }
}

/// cuSOLVER.
#[allow(non_snake_case, clippy::too_many_arguments, reason = "NVIDIA's names and arguments")]
pub mod solver {
    use super::Name;
    pub use cudarc::cusolver::sys::{
        cublasFillMode_t, cudaDataType, cudaDataType_t, cusolverDnHandle_t, cusolverDnParams_t,
        cusolverEigMode_t, cusolverStatus_t, libraryPropertyType_t,
    };
    use cudarc::cusolver::sys::{cudaStream_t, libraryPropertyType};
    use std::ffi::{c_int, c_void};
    use std::sync::OnceLock;

    functions! { Name::Solver, cusolverStatus_t::CUSOLVER_STATUS_NOT_SUPPORTED;
        fn cusolverDnCreate(handle: *mut cusolverDnHandle_t) -> cusolverStatus_t;
        fn cusolverDnDestroy(handle: cusolverDnHandle_t) -> cusolverStatus_t;
        fn cusolverDnCreateParams(params: *mut cusolverDnParams_t) -> cusolverStatus_t;
        fn cusolverDnDestroyParams(params: cusolverDnParams_t) -> cusolverStatus_t;
        fn cusolverDnSetStream(handle: cusolverDnHandle_t, streamId: cudaStream_t) -> cusolverStatus_t;
        fn cusolverDnXsyevd_bufferSize(
            handle: cusolverDnHandle_t, params: cusolverDnParams_t, jobz: cusolverEigMode_t, uplo:
            cublasFillMode_t, n: i64, dataTypeA: cudaDataType, A: *const c_void, lda: i64, dataTypeW:
            cudaDataType, W: *const c_void, computeType: cudaDataType, workspaceInBytesOnDevice: *mut
            usize, workspaceInBytesOnHost: *mut usize
        ) -> cusolverStatus_t;
        fn cusolverDnXsyevd(
            handle: cusolverDnHandle_t, params: cusolverDnParams_t, jobz: cusolverEigMode_t, uplo:
            cublasFillMode_t, n: i64, dataTypeA: cudaDataType, A: *mut c_void, lda: i64, dataTypeW:
            cudaDataType, W: *mut c_void, computeType: cudaDataType, bufferOnDevice: *mut c_void,
            workspaceInBytesOnDevice: usize, bufferOnHost: *mut c_void, workspaceInBytesOnHost: usize,
            info: *mut c_int
        ) -> cusolverStatus_t;
        fn cusolverDnXsyevBatched_bufferSize(
            handle: cusolverDnHandle_t, params: cusolverDnParams_t, jobz: cusolverEigMode_t, uplo:
            cublasFillMode_t, n: i64, dataTypeA: cudaDataType, A: *const c_void, lda: i64, dataTypeW:
            cudaDataType, W: *const c_void, computeType: cudaDataType, workspaceInBytesOnDevice: *mut
            usize, workspaceInBytesOnHost: *mut usize, batchSize: i64
        ) -> cusolverStatus_t;
        fn cusolverDnXsyevBatched(
            handle: cusolverDnHandle_t, params: cusolverDnParams_t, jobz: cusolverEigMode_t, uplo:
            cublasFillMode_t, n: i64, dataTypeA: cudaDataType, A: *mut c_void, lda: i64, dataTypeW:
            cudaDataType, W: *mut c_void, computeType: cudaDataType, bufferOnDevice: *mut c_void,
            workspaceInBytesOnDevice: usize, bufferOnHost: *mut c_void, workspaceInBytesOnHost: usize,
            info: *mut c_int, batchSize: i64
        ) -> cusolverStatus_t;
        fn cusolverDnSpotrfBatched(
            handle: cusolverDnHandle_t, uplo: cublasFillMode_t, n: c_int, Aarray: *mut *mut f32, lda:
            c_int, infoArray: *mut c_int, batchSize: c_int
        ) -> cusolverStatus_t;
        fn cusolverDnDpotrfBatched(
            handle: cusolverDnHandle_t, uplo: cublasFillMode_t, n: c_int, Aarray: *mut *mut f64, lda:
            c_int, infoArray: *mut c_int, batchSize: c_int
        ) -> cusolverStatus_t;
        fn cusolverGetProperty(type_: libraryPropertyType, value: *mut c_int) -> cusolverStatus_t;
        fn cusolverDnSgeqrf_bufferSize(
            handle: cusolverDnHandle_t, m: c_int, n: c_int, A: *mut f32, lda: c_int, lwork: *mut c_int
        ) -> cusolverStatus_t;
        fn cusolverDnSgeqrf(
            handle: cusolverDnHandle_t, m: c_int, n: c_int, A: *mut f32, lda: c_int, TAU: *mut f32,
            Workspace: *mut f32, Lwork: c_int, devInfo: *mut c_int
        ) -> cusolverStatus_t;
        fn cusolverDnDgeqrf_bufferSize(
            handle: cusolverDnHandle_t, m: c_int, n: c_int, A: *mut f64, lda: c_int, lwork: *mut c_int
        ) -> cusolverStatus_t;
        fn cusolverDnDgeqrf(
            handle: cusolverDnHandle_t, m: c_int, n: c_int, A: *mut f64, lda: c_int, TAU: *mut f64,
            Workspace: *mut f64, Lwork: c_int, devInfo: *mut c_int
        ) -> cusolverStatus_t;
        fn cusolverDnSorgqr_bufferSize(
            handle: cusolverDnHandle_t, m: c_int, n: c_int, k: c_int, A: *const f32, lda: c_int, tau:
            *const f32, lwork: *mut c_int
        ) -> cusolverStatus_t;
        fn cusolverDnSorgqr(
            handle: cusolverDnHandle_t, m: c_int, n: c_int, k: c_int, A: *mut f32, lda: c_int, tau:
            *const f32, work: *mut f32, lwork: c_int, info: *mut c_int
        ) -> cusolverStatus_t;
        fn cusolverDnDorgqr_bufferSize(
            handle: cusolverDnHandle_t, m: c_int, n: c_int, k: c_int, A: *const f64, lda: c_int, tau:
            *const f64, lwork: *mut c_int
        ) -> cusolverStatus_t;
        fn cusolverDnDorgqr(
            handle: cusolverDnHandle_t, m: c_int, n: c_int, k: c_int, A: *mut f64, lda: c_int, tau:
            *const f64, work: *mut f64, lwork: c_int, info: *mut c_int
        ) -> cusolverStatus_t;
    }
}
