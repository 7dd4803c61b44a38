//! Link settings of the shared library: a SONAME that carries the ABI's major version, so that a
//! consumer records a name and not a build path, and `nodelete`, because worker threads may
//! outlive a `dlclose`.

/// Major number of the C ABI; `src/abi/version.rs` states the same number and a test compares both.
const ABI_MAJOR: u32 = 0;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let os = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if os == "linux" {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libfoam.so.{ABI_MAJOR}");
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
    let target = std::env::var("TARGET").unwrap_or_default();
    let profile = std::env::var("PROFILE").unwrap_or_default();
    println!("cargo:rustc-env=FOAM_TARGET={target}");
    println!("cargo:rustc-env=FOAM_PROFILE={profile}");
}
