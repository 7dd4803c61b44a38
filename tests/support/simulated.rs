//! Tests that run on the simulator, each in a process of its own, and the simulator's functions inside it.

#![allow(dead_code, reason = "each test program uses a part of it")]

use super::cudasim;
use super::python::Environment;
use super::tier::{self, Need};
use std::ffi::{CString, c_void};
use std::process::Command;
use std::sync::Once;

/// Runs this very test again in a process that finds the simulator, with queued work run in random order, and where
/// everything is run first at once; inside that process runs `body`. The first run uses handles and addresses again, as a
/// driver does, so that a stale identity shows; a last one does not, so that every use after free is told.
pub fn simulated(body: impl Fn()) {
    let modes: &[&str] = if tier::runs(Need::Long) { &["eager", "deferred"] } else { &["deferred"] };
    simulated_with(modes, &[], body);
}

pub fn simulated_with(modes: &[&str], knobs: &[(&str, &str)], body: impl Fn()) {
    if std::env::var_os("FOAM_SIMULATED").is_some() {
        return body();
    }
    prepare();
    let name = std::thread::current().name().expect("a test has a name").to_string();
    for (number, mode) in modes.iter().enumerate() {
        let mut command = Command::new(std::env::current_exe().expect("a test knows its program"));
        command.args([&*name, "--exact", "--nocapture", "--test-threads=1"]);
        // First, since it names a mode of its own.
        cudasim::simulate(&mut command).env("FOAM_SIMULATED", "1").env("CUDASIM_MODE", mode);
        command.env("CUDASIM_SEED", (7 + number).to_string());
        command.env("CUDASIM_REUSE", if number > 0 && number + 1 == modes.len() { "0" } else { "1" });
        command.envs(knobs.iter().copied());
        let output = command.output().expect("the test's program runs");
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}, {mode}: {}\n{text}\n{errors}", output.status);
        // What the test printed, without what its harness did.
        let own = text.lines().filter(|line| line.starts_with('|'));
        own.for_each(|line| println!("{line}"));
    }
}

/// Python's environment is made while the first tests run, if all of them do: those that need it come later.
fn prepare() {
    static ONCE: Once = Once::new();
    if std::env::args().len() == 1 {
        ONCE.call_once(|| Environment::Shared.prepare());
    }
}

fn symbol(name: &str) -> *mut c_void {
    let name = CString::new(name).unwrap();
    // SAFETY: the library is loaded already, by its name.
    unsafe {
        let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW);
        let found = libc::dlsym(library, name.as_ptr());
        assert!(!found.is_null(), "the simulator has no {name:?}");
        found
    }
}

/// The `nth` call from now of `entry` gives `status`.
pub fn fail(entry: &str, nth: u64, status: i32) {
    let entry = CString::new(entry).unwrap();
    // SAFETY: the simulator declares it so.
    let function: unsafe extern "C" fn(*const libc::c_char, u64, i32) =
        unsafe { std::mem::transmute(symbol("cudasim_fail")) };
    // SAFETY: a C string.
    unsafe { function(entry.as_ptr(), nth, status) };
}

/// The `nth` eigendecomposition from now goes wrong: `info`, `nonorthogonal`, `nan` or `values`.
pub fn fail_evd(nth: u64, kind: &str) {
    let kind = CString::new(kind).unwrap();
    // SAFETY: the simulator declares it so.
    let function: unsafe extern "C" fn(u64, *const libc::c_char) -> i32 =
        unsafe { std::mem::transmute(symbol("cudasim_fail_evd")) };
    // SAFETY: a C string.
    assert_eq!(unsafe { function(nth, kind.as_ptr()) }, 0);
}

/// How often `entry` was called, or one of the totals by its name.
pub fn count(entry: &str) -> u64 {
    let entry = CString::new(entry).unwrap();
    // SAFETY: the simulator declares it so.
    let function: unsafe extern "C" fn(*const libc::c_char) -> u64 =
        unsafe { std::mem::transmute(symbol("cudasim_count")) };
    // SAFETY: a C string.
    unsafe { function(entry.as_ptr()) }
}

/// Pieces of work that have been put on streams and have not run.
pub fn pending() -> u64 {
    // SAFETY: the simulator declares it so.
    let function: unsafe extern "C" fn() -> u64 = unsafe { std::mem::transmute(symbol("cudasim_pending")) };
    // SAFETY: it takes nothing.
    unsafe { function() }
}

/// Forgets the faults that have not happened.
pub fn clear_faults() {
    // SAFETY: the simulator declares it so.
    let function: unsafe extern "C" fn() = unsafe { std::mem::transmute(symbol("cudasim_clear_faults")) };
    // SAFETY: it takes nothing.
    unsafe { function() };
}
