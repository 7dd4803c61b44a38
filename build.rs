//! Link settings of the shared library: a SONAME that carries the ABI's version, so that a consumer records a
//! name and not a build path, and `nodelete`, because worker threads may outlive a `dlclose`.

/// Version of the C ABI in the SONAME: major and minor while the major one is 0 (a minor one may then break
/// callers), the major one alone from 1 on. `src/abi/version.rs` states the same numbers and a test compares them.
const ABI: &str = "0.1";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let os = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if os == "linux" {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libfoam.so.{ABI}");
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
    let target = std::env::var("TARGET").unwrap_or_default();
    let profile = std::env::var("PROFILE").unwrap_or_default();
    println!("cargo:rustc-env=FOAM_TARGET={target}");
    println!("cargo:rustc-env=FOAM_PROFILE={profile}");
}
