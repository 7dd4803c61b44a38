//! The Python environments of the tests, and pytest in them. `FOAM_TEST_PYTHON` names another interpreter than `python3`
//! to make them with.

#![allow(dead_code, reason = "each test program uses a part of it")]

use super::library::{root, shared_library};
use super::tier;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// One of the environments that `tests/python/environment.sh` makes.
#[derive(Clone, Copy)]
pub enum Environment {
    /// NumPy and the newest JAX; beside them PyTorch where everything is run.
    Shared,
    /// Both and PyTorch.
    Full,
    OldestJax,
    MiddleJax,
}

impl Environment {
    /// Its interpreter. What the script has to say goes to the terminal: the first run may take minutes.
    pub fn python(self) -> PathBuf {
        let name = match self {
            Environment::Shared if tier::all() => "full",
            Environment::Shared => "small",
            Environment::Full => "full",
            Environment::OldestJax => "jax-oldest",
            Environment::MiddleJax => "jax-middle",
        };
        last_line(Command::new(root().join("tests/python/environment.sh")).arg(name)).into()
    }

    /// Begins to make it where it is missing, and does not wait.
    pub fn prepare(self) {
        std::thread::spawn(move || self.python());
    }

    /// A command that runs its interpreter with the package of this checkout and the library that cargo built.
    pub fn command(self) -> Command {
        let mut command = Command::new(self.python());
        command.env("FOAM_LIBRARY", shared_library()).env("PYTHONPATH", root().join("bindings/python"));
        // Compiled once, by the first import, and not into the source tree.
        command.env("PYTHONPYCACHEPREFIX", root().join("target/python-cache"));
        command.env_remove("PYTHONDONTWRITEBYTECODE").env_remove("LD_LIBRARY_PATH");
        command
    }

    /// Runs files of tests that lie in `folder`; prints their summary past the test harness, and everything if one
    /// fails or is skipped. Those marked `long` are left to the tier that runs everything.
    pub fn passes(self, folder: &str, files: &[&str]) {
        let mut command = self.command();
        command.args(["-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider"]).current_dir(root());
        command.args(files.iter().map(|file| root().join(folder).join(file)));
        if !tier::runs(tier::Need::Long) {
            command.args(["-m", "not long"]);
        }
        let out = runs(&mut command);
        let summary = out.lines().last().unwrap_or_default();
        assert!(summary.contains(" passed") && !summary.contains("skipped"), "{out}");
        tier::say(&format!("{folder}/{{{}}}: {summary}", files.join(",")));
    }
}

/// The files of tests in `folder` are those that are listed.
pub fn every_file_is_listed(folder: &str, listed: &[&str]) {
    let entries = std::fs::read_dir(root().join(folder)).expect("the folder is readable");
    for name in entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()) {
        let is_test = name.starts_with("test_") && name.ends_with(".py");
        assert!(!is_test || listed.contains(&&*name), "{folder}/{name} is not run by any test");
    }
}

/// Runs a command to its end; gives what it prints.
pub fn runs(command: &mut Command) -> String {
    let done = command.output().unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{command:?}: {}\n{out}{err}", done.status);
    out.into_owned()
}

/// The last line that a command prints; what goes to its standard error goes to the terminal.
pub fn last_line(command: &mut Command) -> String {
    let done =
        command.stderr(Stdio::inherit()).output().unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
    assert!(done.status.success(), "{command:?}: {}; its messages are above", done.status);
    let printed = String::from_utf8_lossy(&done.stdout);
    printed.lines().last().unwrap_or_else(|| panic!("{command:?} printed nothing")).to_string()
}
