//! The programs of `examples/cuda`, compiled against NVIDIA's real headers and run on the simulator of `tests/cudasim`.

use crate::cudasim;
use crate::cudasim::simulate;
use crate::library::root;
use crate::nvidia::{cuda12, cuda13, wanted};
use crate::program::{LIBRARIES, SCRATCH, STRICT, compiler};
use crate::python::{Environment, runs};
use crate::tier::{self, Need};
use std::path::PathBuf;
use std::process::Command;

/// Compiles `examples/cuda/train.cc` with the `cuda.h` in `headers`, and links it with the driver that is simulated.
fn example(headers: &str) -> PathBuf {
    let name = headers.replace(['/', '.'], "-");
    let folder = SCRATCH.join("cuda").join(name.rsplit_once("nvidia-").map_or(&*name, |(_, end)| end));
    std::fs::create_dir_all(&folder).expect("the scratch folder is writable");
    let program = folder.join("train");
    let mut compile = compiler("CXX", "c++");
    compile.args(STRICT).args(["-Wconversion", "-Wshadow", "-std=c++17", "-isystem", headers]);
    compile.arg("-I").arg(root().join("include")).arg(root().join("examples/cuda/train.cc"));
    compile.arg("-L").arg(&*LIBRARIES).arg(format!("-Wl,-rpath,{}", LIBRARIES.display())).arg("-lfoam");
    compile.arg("-L").arg(cudasim::folder()).arg("-l:libcuda.so.1").arg("-o").arg(&program);
    runs(&mut compile);
    program
}

/// The number behind `word` in each line that starts with "epoch".
fn epochs(printed: &str, word: &str) -> Vec<f64> {
    let lines = printed.lines().filter(|line| line.starts_with("epoch"));
    let number = |line: &str| line.split_once(word)?.1.split_whitespace().next()?.parse().ok();
    lines
        .map(|line| number(line).unwrap_or_else(|| panic!("no number behind '{word}' in '{line}'")))
        .collect()
}

/// The loss falls, the digits are recognised, and the state lives on the device.
fn trains(headers: &str) {
    let mut command = Command::new(example(headers));
    command.arg(root().join("examples/data/digits.bin")).arg("4");
    let printed = runs(simulate(&mut command));
    let (losses, accuracies) = (epochs(&printed, "loss "), epochs(&printed, "test accuracy "));
    assert_eq!(losses.len(), 4, "{printed}");
    assert!(losses[3] < 0.3 * losses[0] && accuracies[3] > 90.0, "{printed}");
    let state = printed.lines().last().unwrap_or_default();
    assert!(state.starts_with("state: ") && !state.starts_with("state: 0 bytes"), "{printed}");
}

#[test]
fn the_cpp_example_trains_with_the_headers_of_cuda_12() {
    if wanted() {
        trains(&format!("{}/nvidia/cuda_runtime/include", cuda12()));
    }
}

#[test]
fn the_cpp_example_trains_with_the_headers_of_cuda_13() {
    if wanted() {
        trains(&format!("{}/nvidia/cu13/include", cuda13()));
    }
}

/// Runs Python, with the package and the library under test, on the simulator.
fn python(arguments: &[&str]) -> String {
    let mut command = Environment::Shared.command();
    command.args(arguments).current_dir(root());
    runs(simulate(&mut command))
}

#[test]
fn the_parity_program_finds_cpu_and_gpu_equal() {
    if !tier::runs(Need::Long) {
        return;
    }
    let printed = python(&["examples/cuda/parity.py", "--no-timing"]);
    assert_eq!(printed.lines().filter(|line| line.ends_with("the same")).count(), 8 * 4, "{printed}");
    assert!(printed.ends_with("parity: passed\n"), "{printed}");
}

#[test]
fn the_parity_program_times_no_simulator() {
    let printed = python(&["examples/cuda/parity.py", "--steps", "1"]);
    assert!(printed.contains("no timing: this is a simulator"), "{printed}");
}

#[test]
fn the_doctor_reports_the_libraries_and_the_device() {
    let printed = python(&["-m", "foam", "doctor"]);
    for words in ["libcublas", "libcusolver", "cudasim device 0", "| usable |"] {
        assert!(printed.contains(words), "no '{words}' in\n{printed}");
    }
}

/// The first run on a GPU is made by somebody else, far away: it must at least be a program.
#[test]
fn the_script_for_the_first_gpu_run_explains_itself() {
    let mut command = Command::new(root().join("examples/cuda/first_gpu_run.sh"));
    let printed = runs(command.arg("--help"));
    assert!(printed.contains("first_gpu_run.sh"), "{printed}");
    let mut command = Command::new(root().join("examples/cuda/first_gpu_run.sh"));
    command.arg("--check");
    let done = command.output().unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
    let said = String::from_utf8_lossy(&done.stdout);
    // Whoever has a GPU passes; whoever has none is told so.
    assert!(done.status.success() || said.contains("nvidia-smi"), "{said}");
}
