//! Names of statuses and lookup of symbols.

use libc::{c_char, c_int, c_void};

use crate::boundary::{driver, put, put_if, text};
use crate::reason::refuse;

/// Name and description of the statuses that the simulator can return.
const STATUSES: [(c_int, &[u8], &[u8]); 36] = [
    (0, b"CUDA_SUCCESS\0", b"no error\0"),
    (1, b"CUDA_ERROR_INVALID_VALUE\0", b"invalid argument\0"),
    (2, b"CUDA_ERROR_OUT_OF_MEMORY\0", b"out of memory\0"),
    (3, b"CUDA_ERROR_NOT_INITIALIZED\0", b"initialization error\0"),
    (4, b"CUDA_ERROR_DEINITIALIZED\0", b"driver shutting down\0"),
    (46, b"CUDA_ERROR_DEVICE_UNAVAILABLE\0", b"device is busy or unavailable\0"),
    (100, b"CUDA_ERROR_NO_DEVICE\0", b"no CUDA-capable device is detected\0"),
    (101, b"CUDA_ERROR_INVALID_DEVICE\0", b"invalid device ordinal\0"),
    (200, b"CUDA_ERROR_INVALID_IMAGE\0", b"device kernel image is invalid\0"),
    (201, b"CUDA_ERROR_INVALID_CONTEXT\0", b"invalid device context\0"),
    (209, b"CUDA_ERROR_NO_BINARY_FOR_GPU\0", b"no kernel image is available for execution on the device\0"),
    (
        217,
        b"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED\0",
        b"peer access is not supported between these two devices\0",
    ),
    (218, b"CUDA_ERROR_INVALID_PTX\0", b"a PTX JIT compilation failed\0"),
    (222, b"CUDA_ERROR_UNSUPPORTED_PTX_VERSION\0", b"the provided PTX has an unsupported version\0"),
    (400, b"CUDA_ERROR_INVALID_HANDLE\0", b"invalid resource handle\0"),
    (500, b"CUDA_ERROR_NOT_FOUND\0", b"named symbol not found\0"),
    (600, b"CUDA_ERROR_NOT_READY\0", b"device not ready\0"),
    (700, b"CUDA_ERROR_ILLEGAL_ADDRESS\0", b"an illegal memory access was encountered\0"),
    (701, b"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES\0", b"too many resources requested for launch\0"),
    (702, b"CUDA_ERROR_LAUNCH_TIMEOUT\0", b"the launch timed out and was terminated\0"),
    (704, b"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED\0", b"peer access is already enabled\0"),
    (705, b"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED\0", b"peer access has not been enabled\0"),
    (709, b"CUDA_ERROR_CONTEXT_IS_DESTROYED\0", b"context is destroyed\0"),
    (710, b"CUDA_ERROR_ASSERT\0", b"device-side assert triggered\0"),
    (715, b"CUDA_ERROR_ILLEGAL_INSTRUCTION\0", b"an illegal instruction was encountered\0"),
    (716, b"CUDA_ERROR_MISALIGNED_ADDRESS\0", b"misaligned address\0"),
    (719, b"CUDA_ERROR_LAUNCH_FAILED\0", b"unspecified launch failure\0"),
    (800, b"CUDA_ERROR_NOT_PERMITTED\0", b"operation not permitted\0"),
    (801, b"CUDA_ERROR_NOT_SUPPORTED\0", b"operation not supported\0"),
    (900, b"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED\0", b"operation not permitted when stream is capturing\0"),
    (
        901,
        b"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED\0",
        b"operation failed due to a previous error during capture\0",
    ),
    (904, b"CUDA_ERROR_STREAM_CAPTURE_UNJOINED\0", b"capturing stream has unjoined work\0"),
    (
        905,
        b"CUDA_ERROR_STREAM_CAPTURE_ISOLATION\0",
        b"dependency created on uncaptured work in another stream\0",
    ),
    (
        906,
        b"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT\0",
        b"operation would make the legacy stream depend on a capturing blocking stream\0",
    ),
    (
        907,
        b"CUDA_ERROR_CAPTURED_EVENT\0",
        b"operation not permitted on an event last recorded in a capturing stream\0",
    ),
    (999, b"CUDA_ERROR_UNKNOWN\0", b"unknown error\0"),
];

fn lookup(name: &'static str, status: c_int, out: *mut *const c_char, description: bool) -> c_int {
    driver(name, |_| match STATUSES.iter().find(|s| s.0 == status) {
        Some((_, name, text)) => {
            put(out, if description { text.as_ptr() } else { name.as_ptr() }.cast(), "pStr")
        }
        None => {
            put(out, std::ptr::null(), "pStr")?;
            refuse!(Probe, "status {status} is unknown")
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorName(status: c_int, out: *mut *const c_char) -> c_int {
    lookup("cuGetErrorName", status, out, false)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorString(status: c_int, out: *mut *const c_char) -> c_int {
    lookup("cuGetErrorString", status, out, true)
}

/// Finds the newest version of a symbol in this very library.
#[unsafe(no_mangle)]
pub extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    out: *mut *mut c_void,
    _version: c_int,
    _flags: u64,
    status: *mut c_int,
) -> c_int {
    driver("cuGetProcAddress_v2", |_| {
        let name = text(symbol, "symbol")?;
        for suffix in ["_v2", ""] {
            let Ok(full) = std::ffi::CString::new(format!("{name}{suffix}")) else { continue };
            // SAFETY: looks up a symbol of the library that holds this function.
            let found = unsafe {
                let mut info: libc::Dl_info = std::mem::zeroed();
                libc::dladdr(cuGetProcAddress_v2 as *const c_void, &mut info);
                let library = libc::dlopen(info.dli_fname, libc::RTLD_NOLOAD | libc::RTLD_LAZY);
                if library.is_null() { std::ptr::null_mut() } else { libc::dlsym(library, full.as_ptr()) }
            };
            if !found.is_null() {
                put_if(status, 0);
                return put(out, found, "pfn");
            }
        }
        put_if(status, 1);
        put(out, std::ptr::null_mut(), "pfn")?;
        refuse!(NotFound, "there is no `{name}`")
    })
}

/// Always an error: NVRTC asks for a private table when it finds a libcuda, and goes on without it.
#[unsafe(no_mangle)]
pub extern "C" fn cuGetExportTable(_table: *mut *const c_void, _id: *const c_void) -> c_int {
    driver("cuGetExportTable", |_| refuse!(NotSupported, "there are no private tables"))
}
