//! The knobs in the environment, seen by a process of its own.

mod common;

use std::process::Output;

use cudasim::driver::{context::*, device::*, memory::*};

use common::{count, leaks};

/// Runs one ignored test of this binary with variables set.
fn child(test: &str, variables: &[(&str, &str)]) -> Output {
    std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", test, "--nocapture", "--test-threads=1"])
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

#[test]
#[ignore = "the parent runs it with variables set"]
fn child_allocates_three_times() {
    assert_eq!(cuInit(0), 0);
    let (mut context, mut major, mut version) = (0, 0, 0);
    assert_eq!(cuDevicePrimaryCtxRetain(&mut context, 0), 0);
    assert_eq!(cuCtxPushCurrent_v2(context), 0);
    assert_eq!(cuDeviceGetAttribute(&mut major, 75, 0), 0);
    assert_eq!(cuDriverGetVersion(&mut version), 0);
    let mut statuses = Vec::new();
    for _ in 0..3 {
        let mut address = 0;
        statuses.push(cuMemAlloc_v2(&mut address, 600 << 10));
    }
    println!(
        "statuses {statuses:?} major {major} driver {version} leaks {} allocs {}",
        leaks().len(),
        count("allocs")
    );
}

#[test]
fn the_environment_sets_knobs_and_faults() {
    let variables = [
        ("CUDASIM_FAIL", "cuMemAlloc_v2:2:999"),
        ("CUDASIM_MEMORY", "1M"),
        ("CUDASIM_CAPABILITY", "9.0"),
        ("CUDASIM_DRIVER", "13000"),
        ("CUDASIM_REPORT", "1"),
    ];
    let output = child("child_allocates_three_times", &variables);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{err}");
    assert!(out.contains("statuses [0, 999, 2] major 9 driver 13000 leaks 2 allocs 1"), "{out}{err}");
    assert!(err.contains("cudasim: call cuMemAlloc_v2 3") && err.contains("0 violations, 2 leaks"), "{err}");
    let output = child("child_allocates_three_times", &[("CUDASIM_STRICT", "1")]);
    assert_eq!(output.status.code(), Some(99), "strict fails a process that leaks");
}
