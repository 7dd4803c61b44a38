//! foam.jax: each `tests/jax/test_*.py` is run by pytest with the library that cargo built for this test, on the newest
//! JAX that the interpreter can have, and those that need nothing but JAX and Optax also on the oldest one supported
//! and on one between.
//!
//! The environments are made at the first run by `tests/jax/environment.sh`; `FOAM_TEST_PYTHON` names another
//! interpreter than `python3` to make them with.

#![cfg(target_os = "linux")]

#[path = "support/library.rs"]
mod library;

use library::{root, shared_library};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

/// An environment's interpreter. What the script has to say goes to the terminal: the first run takes minutes.
fn interpreter(release: &str) -> PathBuf {
    let mut command = Command::new(root().join("tests/jax/environment.sh"));
    command.arg(release).stderr(Stdio::inherit());
    let done = command.output().unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
    assert!(done.status.success(), "{command:?}: {}; its messages are above", done.status);
    let printed = String::from_utf8_lossy(&done.stdout);
    PathBuf::from(printed.lines().last().expect("the script prints the interpreter's path"))
}

static OLDEST: LazyLock<PathBuf> = LazyLock::new(|| interpreter("oldest"));
static MIDDLE: LazyLock<PathBuf> = LazyLock::new(|| interpreter("middle"));
static NEWEST: LazyLock<PathBuf> = LazyLock::new(|| interpreter("newest"));

/// Runs files of tests; prints their summary past the test harness, and everything if one fails.
fn passes(python: &PathBuf, files: &[&str]) {
    let mut command = Command::new(python);
    command.args(["-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider"]);
    command.args(files.iter().map(|file| root().join("tests/jax").join(file))).current_dir(root());
    command.env("FOAM_LIBRARY", shared_library()).env("PYTHONPATH", root().join("bindings/python"));
    // No compiled files in the source tree.
    command.env("PYTHONDONTWRITEBYTECODE", "1").env_remove("LD_LIBRARY_PATH");
    let done = command.output().unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{command:?}: {}\n{out}{err}", done.status);
    let summary = out.lines().last().unwrap_or_default();
    assert!(summary.contains(" passed"), "{out}");
    let _ = writeln!(std::io::stderr(), "tests/jax/{{{}}}: {summary}", files.join(","));
}

/// Makes a test out of each file; the name says what the file shows.
macro_rules! files {
    ($($claim:ident: $file:literal;)+) => {
        const FILES: &[&str] = &[$($file),+];

        $(#[test]
        fn $claim() {
            passes(&NEWEST, &[$file]);
        })+
    };
}

files! {
    handlers_run_and_name_what_is_wrong: "test_handlers.py";
    blocks_are_the_engines_and_shared_evenly: "test_plan.py";
    steps_are_the_engines_however_compiled: "test_step.py";
    any_tree_works_or_is_refused_by_name: "test_leaves.py";
    a_donated_state_is_updated_where_it_lies: "test_in_place.py";
    devices_and_processes_share_the_blocks: "test_sharding.py";
    optax_and_flax_compose: "test_compose.py";
    checkpoints_resume_bit_for_bit: "test_checkpoint.py";
    golden_traces_are_inside_their_tolerances: "test_golden.py";
    figures_can_be_read_out_of_a_state: "test_stats.py";
    examples_run: "test_examples.py";
}

/// What the older releases are held to: all that depends on JAX itself.
const CORE: &[&str] = &["test_handlers.py", "test_step.py", "test_in_place.py", "test_sharding.py"];

#[test]
fn the_oldest_supported_jax_does_the_same() {
    passes(&OLDEST, CORE);
}

#[test]
fn a_jax_between_does_the_same() {
    passes(&MIDDLE, CORE);
}

#[test]
fn every_file_is_run() {
    let entries = std::fs::read_dir(root().join("tests/jax")).expect("tests/jax is readable");
    for name in entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()) {
        let is_test = name.starts_with("test_") && name.ends_with(".py");
        assert!(!is_test || FILES.contains(&&*name), "tests/jax/{name} is missing in tests/jax.rs");
    }
}
