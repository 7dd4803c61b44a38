//! The CUDA kernels and calls against NVIDIA's own compilers and libraries, none of which needs a GPU.
//!
//! The packages are installed at the first run by `tests/cuda/environment.sh`, in `target/cuda-env` (CUDA 12.2, the
//! oldest that is supported, and the newest ptxas of CUDA 12); CUDA 13 comes with the torch of `target/python-env`.
//! They are run where everything is.

use crate::library::{root, shared_library};
use crate::nvidia::{cuda12, cuda13, python, wanted};
use crate::python::runs;
use crate::tier::say;
use std::process::Command;

/// Runs a script with these arguments; gives what it says, and prints the end of it past the test harness.
fn passes(script: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(python());
    command.arg(root().join(script)).args(arguments);
    command.env("PYTHONDONTWRITEBYTECODE", "1").env_remove("LD_LIBRARY_PATH");
    let said = runs(&mut command);
    say(&format!("{script}: {}", said.lines().last().unwrap_or_default()));
    said
}

const BUILD: &str = "src/device/gpu/kernels/build.py";

#[test]
fn the_committed_ptx_is_what_the_source_gives() {
    if wanted() {
        passes(BUILD, &["--check", "--packages", cuda12()]);
    }
}

#[test]
fn the_ptx_assembles_for_every_gpu_without_spills() {
    if wanted() {
        passes(BUILD, &["--assemble", "--packages", cuda12()]);
    }
}

#[test]
fn the_newest_assembler_takes_the_ptx_too() {
    if wanted() {
        let ptxas = format!("{}/triton/backends/nvidia/bin/ptxas-blackwell", cuda13());
        passes(BUILD, &["--assemble", "--ptxas", &ptxas]);
    }
}

#[test]
fn the_libraries_of_cuda_12_have_every_symbol() {
    if wanted() {
        passes("tests/cuda/real_libraries.py", &[cuda12()]);
    }
}

#[test]
fn the_libraries_of_cuda_13_have_every_symbol() {
    if wanted() {
        let said = passes("tests/cuda/real_libraries.py", &[cuda13()]);
        // What is optional is there as well, or nobody would ever see a misspelt name.
        assert!(!said.contains("not in this version"), "{said}");
    }
}

/// What libfoam itself says when it looks for CUDA in these folders of NVIDIA's packages; there is no driver.
fn doctor(packages: &str, folders: &[&str]) -> String {
    let mut command = Command::new(python());
    command.args(["-m", "foam", "doctor"]).env("PYTHONPATH", root().join("bindings/python"));
    command.env("FOAM_LIBRARY", shared_library()).env("PYTHONDONTWRITEBYTECODE", "1");
    let paths = folders.iter().map(|folder| format!("{packages}/nvidia/{folder}/lib"));
    command.env("LD_LIBRARY_PATH", std::env::join_paths(paths).expect("the paths have no colon"));
    runs(&mut command)
}

#[test]
fn libfoam_finds_cuda_12_without_and_cuda_13_with_the_batched_eigensolver() {
    if wanted() {
        let said = doctor(cuda12(), &["cublas", "cusolver", "cusparse", "nvjitlink"]);
        assert!(said.contains("libcublas.so.12, version 12.2."), "{said}");
        assert!(said.contains("libcusolver.so.11, version 11.5.2, without the batched"), "{said}");
        let said = doctor(cuda13(), &["cu13"]);
        assert!(said.contains("libcublas.so.13, version 13."), "{said}");
        assert!(
            said.contains("libcusolver.so.12, version 12.") && said.contains(", with the batched"),
            "{said}"
        );
    }
}
