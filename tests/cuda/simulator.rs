//! The tests of the CUDA simulator itself: a simulator without teeth would prove nothing. Planted on purpose and
//! caught: a use after free, a missing event, a short workspace, a race in shared memory, a leak, and more.

use crate::library::root;
use crate::tier::{self, Need, say};
use std::process::Command;

#[test]
fn the_simulator_has_teeth() {
    // It takes a build of the simulator's own test programs.
    if !tier::runs(Need::Long) {
        return;
    }
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_string()));
    command.args(["test", "--manifest-path"]).arg(root().join("tests/cudasim/Cargo.toml"));
    command.arg("--target-dir").arg(root().join("target/cudasim"));
    let done = command.output().unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{command:?}: {}\n{out}\n{err}", done.status);
    let passed: u32 = out
        .lines()
        .filter_map(|line| line.strip_prefix("test result: ok. ")?.split(' ').next()?.parse::<u32>().ok())
        .sum();
    assert!(passed > 40, "{out}");
    say(&format!("tests/cudasim: {passed} passed"));
}
