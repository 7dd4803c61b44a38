//! Hosts that load the library at run time: the programs of `examples/plugin`, with the library and without it.

use crate::library::{root, shared_library};
use crate::program::{SANITIZE, SCRATCH, STRICT, compiler, expect_success};
use std::path::PathBuf;
use std::process::Command;

/// A host of `examples/plugin`, compiled without linking the library.
fn host(source: &str, sanitized: bool) -> PathBuf {
    let (mut compile, standard) = match source {
        "host.c" => (compiler("CC", "cc"), "-std=c11"),
        _ => (compiler("CXX", "c++"), "-std=c++17"),
    };
    let folder = SCRATCH.join("plugin").join(format!("{source}-{sanitized}"));
    std::fs::create_dir_all(&folder).expect("the scratch folder is writable");
    let program = folder.join("host");
    compile.arg(standard).args(STRICT).arg("-I").arg(root().join("include"));
    if sanitized {
        compile.args(SANITIZE);
    }
    compile.arg(root().join("examples/plugin").join(source)).arg("-o").arg(&program).arg("-ldl");
    let done = compile.output().unwrap_or_else(|cause| panic!("{compile:?}: {cause}"));
    expect_success(&compile, &done, "");
    program
}

fn prints(program: &PathBuf, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(arguments).env_remove("LD_LIBRARY_PATH").env("ASAN_OPTIONS", "detect_leaks=1");
    let done = command.output().unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
    expect_success(&command, &done, "");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// The loss after the arrow.
fn last_loss(printed: &str) -> f64 {
    let number = printed.split("-> ").nth(1).and_then(|rest| rest.split(' ').next());
    number.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no loss in {printed}"))
}

fn works_with_and_without(source: &str) {
    let library = shared_library().canonicalize().expect("the library has a path");
    let library = library.to_str().expect("a path of text");
    for sanitized in [false, true] {
        let program = host(source, sanitized);
        let without = prints(&program, &["./there-is-no-such-library.so"]);
        assert!(without.contains("no plugin") && without.contains("plain SGD"), "{without}");
        let foreign = prints(&program, &["libm.so.6"]);
        assert!(foreign.contains("plain SGD"), "{foreign}");
        let with = prints(&program, &[library]);
        assert!(with.contains("plugin: libfoam") && with.contains("FOAM: loss"), "{with}");
        assert!(last_loss(&with) < last_loss(&without), "{with}{without}");
        println!("{source}, sanitized: {sanitized}\n{without}{with}");
    }
}

#[test]
fn a_host_in_c_runs_with_and_without_the_library() {
    works_with_and_without("host.c");
}

#[test]
fn a_host_in_cpp_runs_with_and_without_the_library() {
    works_with_and_without("host.cpp");
}

#[test]
fn the_makefile_builds_both_hosts() {
    let folder = SCRATCH.join("plugin").join("make");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("the scratch folder is writable");
    for name in ["host.c", "host.cpp", "Makefile"] {
        std::fs::copy(root().join("examples/plugin").join(name), folder.join(name))
            .expect("an example is readable");
    }
    let mut make = Command::new("make");
    make.current_dir(&folder).arg(format!("INCLUDE={}", root().join("include").display()));
    let done = make.output().unwrap_or_else(|cause| panic!("{make:?}: {cause}; is it installed?"));
    expect_success(&make, &done, "");
    for name in ["host_c", "host_cpp"] {
        assert!(prints(&folder.join(name), &["./nothing.so"]).contains("plain SGD"));
    }
}
