//! The statistic of a vector, whose gradients are gathered between checks: what is read, and when, changes nothing.

use crate::support::model::Spec;
use crate::support::run::Run;
use crate::support::tensor::Dtype;
use foam::abi::*;

const OPTIONS: &str = "precondition_1d=true merge_dims=false check_period=12 start_step=1 max_factor_dim=200 \
                       bias_correction=true epsilon=1e-4 epsilon_max=1e-2 num_threads=2";

/// Vectors with and without room, one of two blocks, and a matrix beside them.
fn specs(dtype: Dtype) -> Vec<Spec> {
    let shapes: [&[i64]; 6] = [&[64], &[63], &[100], &[250], &[130], &[9, 5]];
    shapes.iter().enumerate().map(|(i, shape)| Spec::new(&format!("w{i}"), shape).of(dtype)).collect()
}

fn options(more: &str) -> String {
    format!("{OPTIONS} {more}")
}

fn run(dtype: Dtype, more: &str, steps: usize) -> Run {
    let mut run = Run::new(specs(dtype), &options(more), 11);
    run.steps(steps);
    run
}

#[test]
fn the_statistic_is_the_running_moment_at_every_step() {
    for (dtype, beta, tolerance) in
        [(Dtype::F64, 0.9, 1e-13), (Dtype::F32, 0.5, 1e-5), (Dtype::F64, 1.0, 1e-13)]
    {
        let mut run = run(dtype, &format!("beta2={beta}"), 0);
        let side = 100;
        let mut expected = vec![0.0; side * side];
        for t in 1..=40usize {
            let grads = run.step();
            let g = grads[2].values();
            let gain = if beta == 1.0 { 1.0 } else { 1.0 - beta };
            for (place, x) in expected.iter_mut().enumerate() {
                *x = beta * *x + gain * g[place / side] * g[place % side];
            }
            if t % 3 == 0 || t > 35 {
                let got = run.model.read((2, 0, 0), FOAM_FACTOR_STATISTIC);
                let largest = expected.iter().fold(0.0f64, |most, x| most.max(x.abs()));
                for (place, (got, expected)) in got.iter().zip(&expected).enumerate() {
                    let error = (got - expected).abs() / largest;
                    assert!(error <= tolerance, "{dtype:?}, step {t}, entry {place}: off by {error:e}");
                }
            }
        }
    }
}

#[test]
fn a_run_that_is_read_and_saved_has_the_bits_of_one_that_is_not() {
    for (dtype, options) in [
        (Dtype::F32, "policy=foam beta2=0.9"),
        (Dtype::F64, "policy=sandwich beta2=0.5"),
        (Dtype::Bf16, "policy=stale refresh_delay=2 beta2=0.99"),
        (Dtype::F32, "policy=foam beta2=0.9 share_squares=false statistic_dtype=f64"),
    ] {
        let alone = run(dtype, options, 50);
        let mut read = run(dtype, options, 0);
        for t in 0..50 {
            read.step();
            match t % 4 {
                0 => drop(read.model.read((0, 0, 0), FOAM_FACTOR_STATISTIC)),
                1 => drop(read.model.save()),
                _ => {}
            }
        }
        assert!(read.params == alone.params, "{dtype:?} {options}: other parameters");
        assert!(read.model.save() == alone.model.save(), "{dtype:?} {options}: another state");
    }
}

#[test]
fn a_run_resumed_between_checks_has_the_bits_of_one_that_went_on() {
    for more in ["policy=foam beta2=0.9", "policy=sandwich beta2=0.5 num_threads=1"] {
        for at in [1, 5, 11, 13, 20] {
            let whole = run(Dtype::F32, more, 30);
            let mut resumed = run(Dtype::F32, more, at).moved(&options(more));
            resumed.steps(30 - at);
            assert!(resumed.params == whole.params, "{more}, resumed after {at}: other parameters");
            assert!(resumed.model.save() == whole.model.save(), "{more}, resumed after {at}: another state");
        }
    }
}

#[test]
fn what_was_gathered_is_forgotten_when_a_checkpoint_is_loaded() {
    let whole = run(Dtype::F32, "beta2=0.9", 24);
    let mut run = run(Dtype::F32, "beta2=0.9", 8);
    let (bytes, params, random) = (run.model.save(), run.params.clone(), run.random.clone());
    run.steps(3);
    run.model.load(&bytes).unwrap();
    (run.params, run.random) = (params, random);
    run.steps(16);
    assert!(run.params == whole.params && run.model.save() == whole.model.save());
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let run = |threads: usize| run(Dtype::F32, &format!("beta2=0.9 num_threads={threads}"), 30);
    let one = run(1);
    for threads in [2, 5] {
        let more = run(threads);
        assert!(more.params == one.params, "{threads} threads: other parameters");
        for param in 0..5 {
            let statistic = |run: &Run| run.model.read((param, 0, 0), FOAM_FACTOR_STATISTIC);
            assert!(statistic(&more) == statistic(&one), "{threads} threads: another statistic of w{param}");
        }
    }
}
