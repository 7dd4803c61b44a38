//! foam.jax: each `tests/jax/test_*.py` is run by pytest with the library that cargo built for this test, on the newest
//! JAX that the interpreter can have, and those that need nothing but JAX and Optax also on the oldest one supported
//! and on one between.

use crate::python::{Environment, every_file_is_listed};
use crate::tier::{self, Need};

/// Makes a test out of each file; the name says what the file shows.
macro_rules! files {
    ($($claim:ident: $file:literal;)+) => {
        const FILES: &[&str] = &[$($file),+];

        $(#[test]
        fn $claim() {
            if !LONG.contains(&$file) || tier::runs(Need::Long) {
                Environment::Shared.passes("tests/jax", &[$file]);
            }
        })+
    };
}

files! {
    handlers_run_and_name_what_is_wrong: "test_handlers.py";
    blocks_are_the_engines_and_shared_evenly: "test_plan.py";
    steps_are_the_engines: "test_step.py";
    checks_are_made_when_the_engine_makes_them: "test_schedule.py";
    a_step_is_the_same_however_compiled: "test_compiled.py";
    any_tree_works_or_is_refused_by_name: "test_leaves.py";
    a_donated_state_is_updated_where_it_lies: "test_in_place.py";
    devices_and_processes_share_the_blocks: "test_sharding.py";
    optax_and_flax_compose: "test_compose.py";
    checkpoints_resume_bit_for_bit: "test_checkpoint.py";
    golden_traces_are_inside_their_tolerances: "test_golden.py";
    statistics_can_be_read_out_of_a_state: "test_stats.py";
    examples_run: "test_examples.py";
}

/// An example that trains for a minute, traces that other languages have shown to be met, and what is compiled in many
/// ways.
const LONG: &[&str] = &[
    "test_examples.py",
    "test_golden.py",
    "test_in_place.py",
    "test_leaves.py",
    "test_compose.py",
    "test_sharding.py",
];

/// What the older releases are held to: all that depends on JAX itself.
const CORE: &[&str] = &[
    "test_handlers.py",
    "test_step.py",
    "test_schedule.py",
    "test_compiled.py",
    "test_in_place.py",
    "test_sharding.py",
];

#[test]
fn the_oldest_supported_jax_does_the_same() {
    if tier::runs(Need::OlderJax) {
        Environment::OldestJax.passes("tests/jax", CORE);
    }
}

#[test]
fn a_jax_between_does_the_same() {
    if tier::runs(Need::OlderJax) {
        Environment::MiddleJax.passes("tests/jax", CORE);
    }
}

#[test]
fn every_file_is_run() {
    every_file_is_listed("tests/jax", FILES);
}
