//! Where NVIDIA's compilers, libraries and headers are; installed where they are missing.

#![allow(dead_code, reason = "each test program uses a part of it")]

use super::library::root;
use super::python::{Environment, last_line};
use super::tier::{self, Need};
use std::process::Command;
use std::sync::LazyLock;

/// Whether NVIDIA's packages are to be used.
pub fn wanted() -> bool {
    tier::runs(Need::Nvidia)
}

/// The interpreter that runs the scripts, which use nothing but its own library.
pub fn python() -> String {
    std::env::var("FOAM_TEST_PYTHON").unwrap_or_else(|_| "python3".to_string())
}

/// The folder of the packages of CUDA 12.
pub fn cuda12() -> &'static str {
    static FOLDER: LazyLock<String> =
        LazyLock::new(|| last_line(&mut Command::new(root().join("tests/cuda/environment.sh"))));
    &FOLDER
}

/// The folder of the packages of CUDA 13, which torch brings.
pub fn cuda13() -> &'static str {
    static FOLDER: LazyLock<String> = LazyLock::new(|| {
        let say = "import sysconfig; print(sysconfig.get_path('purelib'))";
        last_line(Environment::Full.command().args(["-c", say]))
    });
    &FOLDER
}
