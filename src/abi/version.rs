//! Versions: of the ABI, and of the build.

use libc::c_char;
use once_cell::sync::Lazy;
use std::ffi::CString;

/// Major version of the ABI that this header describes; it changes when something is removed.
pub const FOAM_ABI_MAJOR: u32 = 0;
/// Minor version of the ABI; it changes when something is added.
pub const FOAM_ABI_MINOR: u32 = 1;

static BUILD_INFO: Lazy<CString> = Lazy::new(|| {
    let text = format!(
        "libfoam {} (ABI {FOAM_ABI_MAJOR}.{FOAM_ABI_MINOR}, API {}, {}, {}), backends: cpu (faer, {} products), cuda (loaded at run time)",
        env!("CARGO_PKG_VERSION"),
        super::api::FOAM_API_VERSION,
        env!("FOAM_TARGET"),
        env!("FOAM_PROFILE"),
        crate::device::cpu::kernels(),
    );
    CString::new(text).unwrap_or_default()
});

/// Version of the ABI that the loaded library implements: MAJOR << 16 | MINOR.
#[unsafe(no_mangle)]
pub extern "C" fn foam_abi_version() -> u32 {
    (FOAM_ABI_MAJOR << 16) | FOAM_ABI_MINOR
}

/// One line about the build: version, ABI, version of `foam_api`, target and backends. Valid as long as the library is.
#[unsafe(no_mangle)]
pub extern "C" fn foam_build_info() -> *const c_char {
    BUILD_INFO.as_ptr()
}
