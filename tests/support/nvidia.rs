//! Where NVIDIA's compilers, libraries and headers are; installed where they are missing.

#![allow(dead_code, reason = "each test program uses a part of it")]

use super::library::root;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

/// Whether NVIDIA's packages are to be used; only `FOAM_SKIP_REAL_CUDA=1` leaves them out, and says so.
pub fn wanted() -> bool {
    let skipped = std::env::var("FOAM_SKIP_REAL_CUDA").is_ok_and(|value| value == "1");
    if skipped {
        let test = std::thread::current().name().unwrap_or_default().to_string();
        say(&format!("NOT TESTED, because FOAM_SKIP_REAL_CUDA=1: {test}"));
    }
    !skipped
}

/// Prints a line past the test harness, which would swallow it, and in one piece.
pub fn say(line: &str) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
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
        let python = last_line(&mut Command::new(root().join("tests/python/environment.sh")));
        let say = "import sysconfig; print(sysconfig.get_path('purelib'))";
        last_line(Command::new(python).args(["-c", say]))
    });
    &FOLDER
}

/// Runs a command to its end; gives what it prints.
pub fn runs(command: &mut Command) -> String {
    let done = command.output().unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{command:?}: {}\n{out}{err}", done.status);
    out.into_owned()
}

/// The last line that a command prints. What else it has to say goes to the terminal: a first run takes long.
fn last_line(command: &mut Command) -> String {
    let done =
        command.stderr(Stdio::inherit()).output().unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
    assert!(done.status.success(), "{command:?}: {}; its messages are above", done.status);
    let printed = String::from_utf8_lossy(&done.stdout);
    printed.lines().last().unwrap_or_else(|| panic!("{command:?} printed nothing")).to_string()
}
