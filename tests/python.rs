//! The Python package: each `tests/python/test_*.py` is run by pytest with the library that cargo built for this test.
//! Those named `test_torch*.py` need PyTorch.

#![cfg(target_os = "linux")]

#[path = "support/library.rs"]
mod library;
#[path = "support/program.rs"]
mod program;
#[path = "support/python.rs"]
mod python;
#[path = "support/tier.rs"]
mod tier;

mod jax;
mod jax_cpp;

use library::root;
use python::{Environment, every_file_is_listed};
use tier::Need;

/// Runs one file of tests, if this tier does.
fn passes(file: &str) {
    if !file.starts_with("test_torch") || tier::runs(Need::Torch) {
        Environment::Shared.passes("tests/python", &[file]);
    }
}

/// Makes a test out of each file; the name says what the file shows.
macro_rules! files {
    ($($claim:ident: $file:literal;)+) => {
        const FILES: &[&str] = &[$($file),+];

        $(#[test]
        fn $claim() {
            passes($file);
        })+
    };
}

files! {
    structs_and_constants_are_the_headers: "test_structs.py";
    golden_traces_give_the_same_bits_through_c_ctypes_and_numpy: "test_golden.py";
    arrays_are_used_where_they_lie_or_refused_by_name: "test_tensors.py";
    the_optimizer_does_what_it_says: "test_optimizer.py";
    the_optimizer_lives_and_ends_well: "test_life.py";
    the_library_is_found_and_the_commands_work: "test_commands.py";
    a_page_about_a_run_is_written: "test_report.py";
    examples_and_documented_programs_run: "test_examples.py";
    appendix_k_of_the_paper_is_reproduced: "test_appendix_k.py";
    golden_traces_give_the_same_bits_through_torch: "test_torch_golden.py";
    torch_tensors_are_used_where_they_lie_or_refused_by_name: "test_torch_tensors.py";
    the_torch_optimizer_is_one: "test_torch.py";
    torch_groups_step_all_or_none: "test_torch_groups.py";
    whole_models_and_torchs_own_tools_work: "test_torch_models.py";
    the_plan_and_its_bytes_are_told_before_allocation: "test_torch_plan.py";
    statistics_go_to_the_tools_that_watch_a_run: "test_torch_watch.py";
    lightning_and_tensorboard_themselves_work: "test_torch_lightning.py";
    the_torch_state_travels_bit_for_bit: "test_torch_state.py";
    torch_trains_on_real_data_and_on_two_processes: "test_torch_training.py";
    several_processes_share_one_torch_optimizer: "test_torch_ranks.py";
    the_study_resumes_after_a_kill_and_writes_its_page: "test_torch_study.py";
    bounds_on_real_trajectories_are_above_the_true_gap: "test_torch_bounds.py";
    examples_and_documented_programs_with_torch_run: "test_torch_examples.py";
}

#[test]
fn files_that_import_torch_say_so_in_their_names() {
    let imports = ["import torch", "from torch", "import foam.torch", "from foam.torch"];
    for file in FILES.iter().filter(|file| !file.starts_with("test_torch")) {
        let text =
            std::fs::read_to_string(root().join("tests/python").join(file)).expect("the file is readable");
        let found = text.lines().find(|line| imports.iter().any(|words| line.trim().starts_with(words)));
        assert!(found.is_none(), "{file} has {found:?}: move it to a file named test_torch*.py");
    }
}

#[test]
fn every_file_is_run() {
    every_file_is_listed("tests/python", FILES);
}
