//! Parts that are programs in other languages: a C driver under the address sanitizer, and the Python layers.

use crate::library::root;
use crate::program::{self, Language, Watch};
use crate::python::Environment;
use crate::tier;
use std::process::Command;
use std::sync::OnceLock;

/// The C driver, compiled once with the address and undefined-behaviour sanitizers.
pub fn driver() -> Option<Command> {
    static PROGRAM: OnceLock<std::path::PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        let program = program::SCRATCH.join("hostile-driver");
        let source = root().join("tests/hostile/driver.c");
        program::compile(&source, Language::C11, Watch::Sanitizers, &program::headers(), &program);
        program
    });
    let mut command = Command::new(program);
    command.env_remove("LD_LIBRARY_PATH").env("ASAN_OPTIONS", "allocator_may_return_null=1:detect_leaks=1");
    Some(command)
}

fn layer(name: &str) -> Command {
    let mut command = Environment::Shared.command();
    command.arg(root().join("tests/hostile/layers.py")).arg(name);
    command
}

pub fn numpy() -> Option<Command> {
    Some(layer("numpy"))
}

pub fn torch() -> Option<Command> {
    tier::runs(tier::Need::Torch).then(|| layer("torch"))
}

pub fn jax() -> Option<Command> {
    Some(layer("jax"))
}
