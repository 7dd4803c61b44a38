//! What a user installs: the prefix with its CMake package and pkg-config files, and the wheel. Each test runs a script
//! of `tests/packages` on the library that cargo built along with it.
//!
//! The scripts need Python 3 with its venv module and binutils; those that are run where everything is, also cmake, make
//! and pkg-config. `FOAM_TEST_PYTHON` names another interpreter than `python3`, `CC` and `CXX` the compilers.

#![cfg(target_os = "linux")]

#[path = "support/library.rs"]
mod library;
#[path = "support/tier.rs"]
mod tier;

use library::{root, shared_library};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use tier::Need;

/// Variables that would lead a script to another library, compiler flag or place.
const FOREIGN: [&str; 14] = [
    "CARGO_BUILD_TARGET",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_TARGET_DIR",
    "CMAKE_PREFIX_PATH",
    "DESTDIR",
    "FOAM_LIBRARY",
    "LD_LIBRARY_PATH",
    "PKG_CONFIG_PATH",
    "PYTHONHOME",
    "PYTHONPATH",
    "RUSTFLAGS",
    "SOURCE_DATE_EPOCH",
    "STRIP",
    "VIRTUAL_ENV",
];

/// The folder of all scripts' files. Each build of the library has its own.
static SCRATCH: LazyLock<PathBuf> = LazyLock::new(|| {
    let (_, folder) = build();
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("packages").join(folder)
});

/// The installed prefix, after it was moved.
static PREFIX: LazyLock<PathBuf> = LazyLock::new(|| {
    run("moved_prefix", &[]);
    moved_prefix()
});

/// The wheel.
static WHEEL: LazyLock<PathBuf> = LazyLock::new(|| {
    let printed = run("wheel", &[]);
    PathBuf::from(printed.trim_end().lines().last().expect("build_wheel.py prints the wheel's path"))
});

/// cargo's target folder, and the folder in it that holds this build.
fn build() -> (PathBuf, String) {
    let library = shared_library().canonicalize().expect("the library has a path");
    let folder = library
        .ancestors()
        .skip(1)
        .find(|path| !path.ends_with("deps"))
        .expect("the library lies in a folder");
    let name = folder.file_name().expect("cargo names the folder after the profile");
    (folder.parent().expect("cargo has a target folder").to_path_buf(), name.to_string_lossy().into_owned())
}

fn first_prefix() -> PathBuf {
    SCRATCH.join("moved_prefix/first")
}

fn moved_prefix() -> PathBuf {
    SCRATCH.join("moved_prefix/moved to here")
}

/// Runs a script in an empty folder of its own; gives what it prints.
fn run(script: &str, variables: &[(&str, &Path)]) -> String {
    let scratch = SCRATCH.join(script);
    let _ = std::fs::remove_dir_all(&scratch);
    std::fs::create_dir_all(&scratch).expect("target/tmp is writable");
    let (target, folder) = build();
    let mut command = Command::new("bash");
    command.arg(root().join("tests/packages").join(script).with_extension("sh"));
    for name in FOREIGN {
        command.env_remove(name);
    }
    command.env("ROOT", root()).env("SCRATCH", &scratch).env("TARGET_DIR", target);
    command.env("PROFILE", if folder == "debug" { "dev" } else { &folder });
    command.env("FIRST", first_prefix()).env("PREFIX", moved_prefix());
    command.env("PYTHON", std::env::var("FOAM_TEST_PYTHON").unwrap_or_else(|_| "python3".to_string()));
    // A test leaves nothing in the checkout.
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command.envs(variables.iter().copied());
    let done = command.output().unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "tests/packages/{script}.sh: {}\n{out}\n{err}", done.status);
    println!("{out}{err}");
    out.into_owned()
}

/// Runs a script on the moved prefix.
fn on_the_prefix(script: &str) {
    assert!(PREFIX.is_dir(), "moved_prefix.sh left nothing at {}", PREFIX.display());
    run(script, &[]);
}

/// Runs a script on the moved prefix that needs CMake, make or pkg-config, if this tier does.
fn with_a_build_system(script: &str) {
    if tier::runs(Need::BuildSystems) {
        on_the_prefix(script);
    }
}

/// Runs a script on the wheel.
fn on_the_wheel(script: &str) {
    run(script, &[("WHEEL", &WHEEL)]);
}

#[test]
fn an_installation_is_complete_and_knows_no_path() {
    on_the_prefix("layout");
}

#[test]
fn a_cmake_project_uses_the_moved_prefix_shared_and_static() {
    with_a_build_system("cmake");
}

#[test]
fn cmake_refuses_other_versions_and_half_an_installation() {
    with_a_build_system("cmake_requests");
}

#[test]
fn pkg_config_links_with_the_moved_prefix() {
    with_a_build_system("pkg_config");
}

#[test]
fn pkg_config_links_programs_that_hold_the_library() {
    with_a_build_system("pkg_config_static");
}

#[test]
fn uninstalling_leaves_nothing_behind_and_everything_else() {
    if !tier::runs(Need::Long) {
        return;
    }
    on_the_prefix("uninstall");
}

#[test]
fn destdir_stages_an_installation() {
    with_a_build_system("staging");
}

#[test]
fn the_installer_refuses_wrong_arguments_by_name() {
    run("arguments", &[]);
}

#[test]
fn the_wheel_is_what_its_metadata_says() {
    on_the_wheel("wheel_contents");
}

#[test]
fn the_wheel_is_reproducible() {
    if !tier::runs(Need::Long) {
        return;
    }
    run("wheel_reproducible", &[]);
}

#[test]
fn the_wheel_trains_in_an_empty_environment_without_a_compiler() {
    on_the_wheel("wheel_install");
}

#[test]
fn the_list_of_what_is_inside_is_what_cargo_links() {
    run("sbom", &[]);
}

#[test]
fn the_release_runs_on_glibc_2_17_and_holds_no_path_of_this_machine() {
    if tier::runs(Need::Release) {
        run("release", &[]);
    }
}

#[test]
fn the_abi_is_that_of_every_frozen_header() {
    if tier::runs(Need::Abigail) {
        run("abi", &[]);
    }
}

#[test]
fn the_recipe_for_conan_builds_and_its_consumer_runs() {
    if tier::runs(Need::Recipes) {
        run("conan", &[]);
    }
}

#[test]
fn the_recipe_for_conda_builds_what_it_lists() {
    if tier::runs(Need::Recipes) {
        run("conda", &[]);
    }
}

#[test]
fn pip_installs_from_the_checkout_and_from_the_source_archive() {
    // It makes environments and archives of its own.
    if tier::runs(Need::Long) {
        on_the_prefix("source_install");
    }
}
