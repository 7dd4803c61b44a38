//! The Python package: each `tests/python/test_*.py` is run by pytest with the library that cargo built for this test.
//!
//! The Python environment (NumPy, PyTorch, JAX and others) is made at the first run by `tests/python/environment.sh`,
//! in `target/python-env`; `FOAM_TEST_PYTHON` names another interpreter than `python3` to make it with.

#![cfg(target_os = "linux")]

#[path = "support/library.rs"]
mod library;

use library::{root, shared_library};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

/// The environment's interpreter. What the script has to say goes to the terminal: the first run takes minutes.
static PYTHON: LazyLock<PathBuf> = LazyLock::new(|| {
    let mut command = Command::new(root().join("tests/python/environment.sh"));
    command.stderr(Stdio::inherit());
    let done = command.output().unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
    assert!(done.status.success(), "{command:?}: {}; its messages are above", done.status);
    let printed = String::from_utf8_lossy(&done.stdout);
    PathBuf::from(printed.lines().last().expect("the script prints the interpreter's path"))
});

/// Runs one file of tests; prints its summary past the test harness, and everything if it fails.
fn passes(file: &str) {
    let mut command = Command::new(&*PYTHON);
    command.args(["-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider"]);
    command.arg(root().join("tests/python").join(file)).current_dir(root());
    command.env("FOAM_LIBRARY", shared_library()).env("PYTHONPATH", root().join("bindings/python"));
    // No compiled files in the source tree.
    command.env("PYTHONDONTWRITEBYTECODE", "1").env_remove("LD_LIBRARY_PATH");
    let done = command.output().unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{command:?}: {}\n{out}{err}", done.status);
    let summary = out.lines().last().unwrap_or_default();
    assert!(summary.contains(" passed") && !summary.contains("skipped"), "{out}");
    let _ = writeln!(std::io::stderr(), "tests/python/{file}: {summary}");
}

/// Makes a test out of each file; the name says what the file shows.
macro_rules! files {
    ($($claim:ident: $file:literal;)+) => {
        const FILES: &[&str] = &[$($file),+];

        $(#[test]
        fn $claim() {
            passes($file);
        })+
    };
}

files! {
    structs_and_constants_are_the_headers: "test_structs.py";
    golden_traces_give_the_same_bits_through_c_ctypes_numpy_and_torch: "test_golden.py";
    arrays_are_used_where_they_lie_or_refused_by_name: "test_tensors.py";
    the_optimizer_does_what_it_says: "test_optimizer.py";
    the_optimizer_lives_and_ends_well: "test_life.py";
    the_torch_optimizer_is_one: "test_torch.py";
    the_torch_state_travels_bit_for_bit: "test_torch_state.py";
    torch_trains_on_real_data_and_on_two_processes: "test_training.py";
    the_library_is_found_and_the_commands_work: "test_commands.py";
    examples_and_readme_programs_run: "test_examples.py";
}

#[test]
fn every_file_is_run() {
    let entries = std::fs::read_dir(root().join("tests/python")).expect("tests/python is readable");
    for name in entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()) {
        let is_test = name.starts_with("test_") && name.ends_with(".py");
        assert!(!is_test || FILES.contains(&&*name), "tests/python/{name} is missing in tests/python.rs");
    }
}
