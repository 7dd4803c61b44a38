//! The programs of `examples/cuda`, compiled against NVIDIA's real headers and run on the simulator of `tests/cudasim`.

use crate::cost::{STEPS, costs, equal};
use crate::cudasim;
use crate::cudasim::simulate;
use crate::library::root;
use crate::nvidia::{cuda12, cuda13, wanted};
use crate::program::{LIBRARIES, SCRATCH, STRICT, compiler};
use crate::python::{Environment, runs};
use crate::simulated::simulated_with;
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
    assert_eq!(printed.lines().filter(|line| line.ends_with("the same")).count(), 10 * 4, "{printed}");
    assert!(printed.ends_with("parity: passed\n"), "{printed}");
}

#[test]
fn the_parity_program_times_no_simulator() {
    if !tier::runs(Need::Long) {
        return;
    }
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

/// The number behind a key that comes after some others in a text of JSON.
fn number_at(json: &str, keys: &[&str]) -> u64 {
    let mut rest = json;
    for key in keys {
        let found = rest.find(&format!("\"{key}\":")).unwrap_or_else(|| panic!("no '{key}' in {json}"));
        rest = &rest[found + key.len() + 3..];
    }
    let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no number behind {keys:?} in {json}"))
}

/// What the cost model counts through Python is what is counted through C.
#[test]
fn the_cost_model_counts_what_a_step_costs() {
    simulated_with(&["eager"], &[], || {
        let counted = costs(&[equal(4, &[16, 12])]);
        let shapes = ["a=16x12", "b=16x12", "c=16x12", "d=16x12"];
        let options = ["examples/cuda/model.py", "--set", "merge_dims=false", "--json"];
        let printed = python(&[&options[..], &shapes[..]].concat());
        for (step, cost) in STEPS.iter().zip(&counted).take(3) {
            for (name, expected) in [
                ("kernels", cost.kernels),
                ("products", cost.products),
                ("solvers", cost.solvers),
                ("copies", cost.copies),
                ("waits", cost.waits),
                ("allocations", cost.allocations),
            ] {
                assert_eq!(number_at(&printed, &["counts", step, name]), expected, "{step}: {name}");
            }
        }
    });
}

#[test]
fn the_cost_model_says_that_it_is_one() {
    let printed =
        python(&["examples/cuda/model.py", "w=40x24", "--set", "max_factor_dim=16", "merge_dims=false"]);
    assert!(printed.starts_with("A model, not a measurement. Counts: by the simulator."), "{printed}");
    for words in ["on A100", "on H100", "measured ms", "XsyevBatched", "plain, tf32"] {
        assert!(printed.contains(words), "no '{words}' in\n{printed}");
    }
    // The preset cuts evenly, the model in full.
    let printed = python(&["examples/cuda/model.py", "w=2304x768", "--preset", "default", "--gpu", "a100"]);
    assert!(printed.contains("1 of side 256"), "{printed}");
}

/// The measurements of the first run on a GPU, on the simulator: every part runs, and the report says what it is.
#[test]
fn the_measurements_write_one_report() {
    if !tier::runs(Need::Long) {
        return;
    }
    let report = SCRATCH.join("cuda-report.json");
    std::fs::create_dir_all(&*SCRATCH).expect("the scratch folder is writable");
    let path = report.to_str().expect("the scratch folder has a plain name");
    let printed = python(&["examples/cuda/measure.py", "--small", "--out", path]);
    assert!(
        printed.ends_with("measured: machine, libraries, steps, graph, eigensolvers, torch, jax\n"),
        "{printed}"
    );
    let text = std::fs::read_to_string(&report).expect("a report was written");
    for words in [
        "\"simulated\": true",
        "cudasim device 0",
        "libcudasim.so",
        "\"replay_stepped\": true",
        "\"capture_wrote_nothing\": true",
        "\"solver\": \"XsyevBatched\"",
        "\"device_bytes\"",
    ] {
        assert!(text.contains(words), "no '{words}' in\n{text}");
    }
}

/// The first run on a GPU is made by somebody else, far away: it must at least be a program.
#[test]
fn the_script_for_the_first_gpu_run_explains_itself() {
    let mut command = Command::new(root().join("examples/cuda/first_gpu_run.sh"));
    let printed = runs(command.arg("--help"));
    for words in ["first_gpu_run.sh", "--wheel", "report.json"] {
        assert!(printed.contains(words), "no '{words}' in\n{printed}");
    }
    let mut command = Command::new(root().join("examples/cuda/first_gpu_run.sh"));
    command.arg("--check");
    let done = command.output().unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
    let said = String::from_utf8_lossy(&done.stdout);
    // Whoever has a GPU passes; whoever has none is told so.
    assert!(done.status.success() || said.contains("nvidia-smi"), "{said}");
}
