//! What the plain command does not build: the unit tests of the library, which take a second build of it, the CUDA
//! backend on the simulator, and the campaign of hostile use. Each is a command of its own; where everything is run, it
//! is run here.

#[path = "support/library.rs"]
mod library;
#[path = "support/tier.rs"]
mod tier;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use tier::{Need, say};

/// One at a time: each of them uses all cores.
static TURN: Mutex<()> = Mutex::new(());

/// Runs `cargo test` with `arguments` and shows what it prints; gives how many of the lines begin with `counted`.
fn passes(arguments: &[&str], counted: &str) -> usize {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_string()));
    command.arg("test").args(arguments).current_dir(library::root()).stdout(Stdio::piped());
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    let mut child = command.spawn().unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
    let output = child.stdout.take().expect("it is piped");
    let mut count = 0;
    for line in BufReader::new(output).split(b'\n') {
        let line = line.unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
        let line = String::from_utf8_lossy(&line);
        count += usize::from(line.starts_with(counted));
        say(&line);
    }
    let status = child.wait().unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
    assert!(status.success(), "{command:?}: {status}; what it printed is above");
    count
}

/// Runs a program that the feature `all` adds. Built with that feature, cargo runs it anyway.
fn program(name: &str, need: Need, counted: &str, least: usize) {
    if cfg!(feature = "all") || !tier::runs(need) {
        return;
    }
    let count = passes(&["--features", "foam-tests/all", "--test", name], counted);
    assert!(count >= least, "{name}: {count} lines begin with '{counted}', expected at least {least}");
}

#[test]
fn the_unit_tests_of_the_library_pass() {
    if !tier::runs(Need::SecondBuild) {
        return;
    }
    let count = passes(&["--package", "foam", "--lib"], "test ");
    assert!(count > 50, "{count} unit tests, expected more than 50");
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn the_cuda_backend_works_on_the_simulator() {
    program("cuda", Need::Simulator, "test ", 100);
}

#[cfg(target_os = "linux")]
#[test]
fn hostile_use_breaks_nothing() {
    program("hostile", Need::Campaign, "part ", 1);
}
