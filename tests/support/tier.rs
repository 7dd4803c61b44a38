//! Which tests run. `cargo test` runs what a compiler, Python and small downloads suffice for;
//! `FOAM_TEST_ALL=1 cargo test` runs everything. Nothing else decides.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::io::Write;
use std::sync::Mutex;

/// What a test needs that the plain command does not fetch or ask for.
#[derive(Clone, Copy, PartialEq)]
pub enum Need {
    Torch,
    OlderJax,
    Nvidia,
    BuildSystems,
    Valgrind,
    Long,
    Site,
    Release,
    Abigail,
    Recipes,
    Mpi,
    SecondBuild,
    Simulator,
    Campaign,
}

impl Need {
    /// As it is named to the user.
    fn text(self) -> &'static str {
        match self {
            Need::Torch => "torch, 6 GB",
            Need::OlderJax => "older releases of JAX, 1.2 GB",
            Need::Nvidia => "NVIDIA's compilers and libraries and torch, 8 GB",
            Need::BuildSystems => "CMake, make and pkg-config",
            Need::Valgrind => "valgrind",
            Need::Long => "minutes",
            Need::Release => "zig and a build for release, 0.5 GB",
            Need::Abigail => "libabigail",
            Need::Recipes => "Conan and CMake",
            Need::Site => "MkDocs, 0.2 GB",
            Need::Mpi => "MPICH, 0.1 GB",
            Need::SecondBuild => "a second build of the library (its unit tests: cargo test --lib)",
            Need::Simulator => {
                "the CUDA simulator and minutes (cargo test --features foam-tests/all --test cuda)"
            }
            Need::Campaign => "minutes (hostile use: cargo test --features foam-tests/all --test hostile)",
        }
    }
}

/// Whether everything is to be run.
pub fn all() -> bool {
    match std::env::var("FOAM_TEST_ALL").as_deref() {
        Ok("1") => true,
        Ok("" | "0") | Err(std::env::VarError::NotPresent) => false,
        other => panic!("FOAM_TEST_ALL is {other:?}: expected 1, 0 or nothing"),
    }
}

/// Whether tests with this need are to be run. Where they are not, one line for all of them in this program says so.
pub fn runs(need: Need) -> bool {
    static SAID: Mutex<Vec<Need>> = Mutex::new(Vec::new());
    if all() {
        return true;
    }
    let mut said = SAID.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if !said.contains(&need) {
        said.push(need);
        let (program, text) = (env!("CARGO_CRATE_NAME"), need.text());
        let feature = if cfg!(feature = "all") { "--features foam-tests/all " } else { "" };
        say(&format!(
            "left out: tests of {program} that need {text}; to run them: \
             FOAM_TEST_ALL=1 cargo test {feature}--test {program}"
        ));
    }
    false
}

/// Prints a line past the test harness, which would swallow it, and in one piece.
pub fn say(line: &str) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
