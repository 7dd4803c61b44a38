//! The library as a C++ program sees it: foam.hpp with and without exceptions, foam_torch.hpp with libtorch, and both
//! examples. Programs are compiled with all warnings on, run, and run again under valgrind and with sanitizers.
//!
//! The compiler is `c++`, or what `CXX` names. Where everything is run, valgrind has to be installed, and torch comes
//! from a Python environment of the tests.

use crate::cpp_program::{Program, STRICTER, run, torch_flags};
use crate::document;
use crate::library::root;
use crate::program::{STRICT, Watch, compiler, named_compiler};
use crate::python::Environment;
use crate::tier::{self, Need};
use std::process::Command;

/// Makes three tests out of each program; the module's name says what the program shows.
macro_rules! programs {
    ($($claim:ident: $source:literal $($flag:literal)?;)+) => {
        $(mod $claim {
            use super::*;

            fn program() -> Program {
                Program::new(&[$source])$(.flag($flag))?
            }

            #[test]
            fn in_cpp17() {
                program().passes();
            }

            #[test]
            fn in_cpp20_under_address_and_undefined_sanitizers() {
                if tier::runs(Need::Long) {
                    program().flag("-std=c++20").watch(Watch::Sanitizers).passes();
                }
            }

            #[test]
            fn under_valgrind_without_errors_and_leaks() {
                if tier::runs(Need::Valgrind) {
                    program().watch(Watch::Valgrind).passes();
                }
            }
        })+
    };
}

programs! {
    handles_are_owned_moved_and_given_back: "tests/cpp/lifecycle.cc";
    every_typed_option_reads_back_as_its_text: "tests/cpp/options.cc";
    a_failure_throws_the_whole_error_and_changes_nothing: "tests/cpp/errors.cc";
    foam_hpp_gives_the_bits_of_foam_h: "tests/cpp/bitwise.cc";
    options_change_steps_are_validated_and_blocks_listed: "tests/cpp/live.cc";
    the_same_holds_through_the_table_of_a_loaded_library: "tests/cpp/live.cc" "-DFOAM_PLUGIN";
    without_exceptions_errors_are_returned: "tests/cpp/no_exceptions.cc" "-fno-exceptions";
}

#[test]
fn exceptions_may_be_declined() {
    Program::new(&["tests/cpp/no_exceptions.cc"]).flag("-DFOAM_NO_EXCEPTIONS").passes();
}

#[test]
fn units_with_and_without_exceptions_share_a_program() {
    Program::new(&["tests/cpp/units.cc", "tests/cpp/units_second.cc", "tests/cpp/units_third.cc"]).passes();
}

/// 18 traces in both precisions, and runs that go from Python to C++ and back.
#[test]
fn golden_traces_and_resumed_runs_have_the_same_bits_in_python_and_cpp() {
    let program = Program::new(&["tests/cpp/trajectory.cc"]).build();
    let folder = program.parent().expect("the program lies in a folder");
    let mut script = Environment::Shared.command();
    script.arg(root().join("tests/cpp/across.py")).arg(&program).arg(folder);
    let packages = [root().join("bindings/python"), root().join("tests/python")];
    script.env("PYTHONPATH", std::env::join_paths(packages).expect("the checkout's path has no colon"));
    let printed = run(&mut script, "");
    assert!(printed.contains("36 golden runs and 2 resumed runs agree bit for bit"), "{printed}");
}

#[test]
fn every_program_is_tested() {
    let text = std::fs::read_to_string(root().join(file!())).expect("this file is readable");
    for folder in ["tests/cpp", "examples/cpp"] {
        let entries = std::fs::read_dir(root().join(folder)).expect("the folder is readable");
        for path in entries.map(|entry| entry.unwrap().path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let source = format!("\"{folder}/{name}\"");
            assert!(!name.ends_with(".cc") || text.contains(&source), "{source} is missing in tests/cpp.rs");
        }
    }
}

/// The header compiles in every standard and mode, and each part of it alone, under every compiler that there is.
#[test]
fn every_header_compiles_without_warnings() {
    let modes: [&[&str]; 4] = [
        &["-std=c++17"],
        &["-std=c++20"],
        &["-std=c++17", "-fno-exceptions"],
        &["-std=c++17", "-DFOAM_PLUGIN"],
    ];
    let mut cases: Vec<(String, &[&str])> =
        modes.iter().map(|mode| ("foam.hpp".to_string(), *mode)).collect();
    for entry in std::fs::read_dir(root().join("include/foam")).expect("include/foam is readable") {
        cases.push((format!("foam/{}", entry.unwrap().file_name().to_string_lossy()), modes[0]));
    }
    assert!(cases.len() > modes.len(), "include/foam holds the parts of foam.hpp");
    let works =
        |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|done| done.status.success());
    // `c++` is one of these two, unless CXX says otherwise.
    let mut compilers: Vec<String> =
        ["g++", "clang++"].into_iter().filter(works).map(str::to_string).collect();
    compilers.extend(std::env::var("CXX").ok());
    assert!(!compilers.is_empty(), "no g++ and no clang++; install one, or name a compiler in CXX");
    for (header, mode) in cases {
        for name in &compilers {
            let mut command = named_compiler(name);
            command.args(STRICT).args(STRICTER).args(mode).arg("-I").arg(root().join("include"));
            command.args(["-include", &header, "-fsyntax-only", "-x", "c++", "/dev/null"]);
            run(&mut command, "");
        }
    }
}

/// The digits, as argument of the examples.
fn digits() -> String {
    root().join("examples/data/digits.bin").display().to_string()
}

/// The number behind `word` in each line that starts with "epoch".
fn epochs(printed: &str, word: &str) -> Vec<f64> {
    let lines = printed.lines().filter(|line| line.starts_with("epoch"));
    let number = |line: &str| line.split_once(word)?.1.split_whitespace().next()?.parse().ok();
    lines
        .map(|line| number(line).unwrap_or_else(|| panic!("no number behind '{word}' in '{line}'")))
        .collect()
}

/// The loss falls to a tenth, the digits are recognised, and few eigendecompositions were spent.
fn trains(printed: &str) {
    let (losses, accuracies) = (epochs(printed, "loss "), epochs(printed, "test accuracy "));
    assert!(losses.len() >= 8, "{printed}");
    assert!(losses[losses.len() - 1] < 0.1 * losses[0], "{printed}");
    assert!(accuracies[accuracies.len() - 1] > 95.0, "{printed}");
    let rates = epochs(printed, "EVD rate ");
    assert!(rates[rates.len() - 1] < 50.0, "{printed}");
}

mod the_framework_free_example {
    use super::*;

    fn example() -> Program {
        Program::new(&["examples/cpp/train.cc"]).flag("-O2")
    }

    #[test]
    fn trains_on_the_digits() {
        trains(&example().prints(&[&digits()]));
    }

    #[test]
    fn is_clean_under_valgrind() {
        if tier::runs(Need::Valgrind) {
            let printed = example().watch(Watch::Valgrind).prints(&[&digits(), "2"]);
            assert_eq!(epochs(&printed, "loss ").len(), 2, "{printed}");
        }
    }

    #[test]
    fn is_clean_under_sanitizers() {
        if tier::runs(Need::Long) {
            let printed = example().watch(Watch::Sanitizers).prints(&[&digits(), "2"]);
            assert_eq!(epochs(&printed, "loss ").len(), 2, "{printed}");
        }
    }
}

mod with_libtorch {
    use super::*;

    #[test]
    fn the_documented_programs_run() {
        if !tier::runs(Need::Torch) {
            return;
        }
        for program in document::programs("c++") {
            let source = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(program.name + ".cc");
            std::fs::write(&source, program.text).expect("target/tmp is writable");
            let source = source.to_str().expect("the checkout's path is text");
            Program::new(&[source]).flag("-O0").flag("-g0").with_torch().prints(&[]);
        }
    }

    #[test]
    fn the_optimizer_gives_the_bits_of_foam_h_and_archives_keep_them() {
        if !tier::runs(Need::Torch) {
            return;
        }
        Program::new(&["tests/cpp/torch.cc"]).flag("-O0").flag("-g0").with_torch().passes();
    }

    #[test]
    fn the_example_trains_on_the_digits_and_resumes() {
        if !tier::runs(Need::Torch) {
            return;
        }
        let printed = Program::new(&["examples/cpp/train_torch.cc"])
            .flag("-O0")
            .flag("-g0")
            .with_torch()
            .prints(&[&digits()]);
        trains(&printed);
        assert!(printed.contains("resumed from the middle: bit for bit the same"), "{printed}");
    }

    /// The way to the current stream that needs CUDA's headers; without a device it can only be compiled.
    #[test]
    fn the_header_compiles_with_the_cuda_headers() {
        if !tier::runs(Need::Torch) {
            return;
        }
        let flags = torch_flags(&["--cuda"]);
        let mut command = compiler("CXX", "c++");
        command.args(STRICT).args(STRICTER).args(flags.compiling);
        command.arg("-I").arg(root().join("include")).arg("-I").arg(root().join("bindings/cpp"));
        command.args(["-include", "foam_torch.hpp", "-fsyntax-only", "-x", "c++", "/dev/null"]);
        run(&mut command, "");
    }
}
