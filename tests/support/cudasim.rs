//! The CUDA simulator of `tests/cudasim`: builds it, and lets programs find it in place of NVIDIA's libraries.

#![allow(dead_code, reason = "each test program uses a part of it")]

use super::library::root;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

/// The names under which CUDA 12 and CUDA 13 are asked for. One file, so one simulator.
const NAMES: [&str; 5] =
    ["libcuda.so.1", "libcublas.so.12", "libcublas.so.13", "libcusolver.so.11", "libcusolver.so.12"];

/// A folder with the simulator under CUDA's names; built where needed.
pub fn folder() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| build("cudasim", &[]));
    &FOLDER
}

/// The same, of a simulator without `cusolverDnXsyevBatched`, like CUDA before 12.6.
pub fn folder_without_batched_evd() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> =
        LazyLock::new(|| build("cudasim-no-batched-evd", &["--features", "no-batched-evd"]));
    &FOLDER
}

/// Lets `command` find the simulator, and neither the machine's CUDA nor cargo's libraries. It runs queued work late and
/// in a random legal order, so that a missing event shows, and fails programs that break CUDA's rules or leak.
pub fn simulate(command: &mut Command) -> &mut Command {
    command.env("LD_LIBRARY_PATH", folder()).envs([("CUDASIM_MODE", "deferred"), ("CUDASIM_STRICT", "1")])
}

/// Builds the simulator in `target/<name>`; gives the folder of its links.
fn build(name: &str, arguments: &[&str]) -> PathBuf {
    let target = root().join("target").join(name);
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_string()));
    command.args(["build", "--quiet", "--manifest-path"]).arg(root().join("tests/cudasim/Cargo.toml"));
    command.arg("--target-dir").arg(&target).args(arguments);
    // It is seldom built twice.
    command.env("CARGO_INCREMENTAL", "0");
    // What cargo says goes to the terminal.
    let status =
        command.stdout(Stdio::null()).status().unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
    assert!(status.success(), "{command:?}: {status}; its messages are above");
    let library = target.join("debug/libcudasim.so").canonicalize().expect("cargo built the simulator");
    let folder = target.join("lib");
    std::fs::create_dir_all(&folder).expect("the target folder is writable");
    for name in NAMES {
        link(&library, &folder.join(name));
    }
    folder
}

/// Makes `name` a link to `library`; tests that start at the same time all may.
fn link(library: &Path, name: &Path) {
    if std::fs::read_link(name).is_ok_and(|target| target == library) {
        return;
    }
    let own = name.with_extension(format!("{}-{:?}", std::process::id(), std::thread::current().id()));
    std::os::unix::fs::symlink(library, &own).expect("the target folder takes a link");
    std::fs::rename(&own, name).expect("the target folder takes a link");
}
