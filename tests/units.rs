//! The unit tests of the library. They need a build of it of their own, which takes as long as the first: the plain
//! command leaves them out, and `cargo test --lib` runs them alone.

use crate::library::root;
use crate::tier::{self, Need, say};
use std::process::Command;

#[test]
fn the_unit_tests_of_the_library_pass() {
    if !tier::runs(Need::SecondBuild) {
        return;
    }
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_string()));
    command.args(["test", "--lib"]).current_dir(root());
    let done = command.output().unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
    let (out, errors) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{command:?}: {}\n{out}{errors}", done.status);
    let summary = out.lines().find(|line| line.starts_with("test result: ok. ")).unwrap_or_default();
    let passed = summary.split(' ').nth(3).and_then(|number| number.parse().ok()).unwrap_or(0);
    assert!(passed > 50, "{command:?} ran {passed} tests:\n{out}");
    say(&format!("cargo test --lib: {passed} unit tests passed"));
}
