//! The statistic of a vector, whose gradients are gathered between checks: what is read, and when, changes nothing.

use crate::support::model::{Model, Spec};
use crate::support::random::Random;
use crate::support::tensor::{Dtype, Tensor};
use foam::abi::*;

const OPTIONS: &str = "precondition_1d=true merge_dims=false check_period=12 start_step=1 max_factor_dim=200 \
                       bias_correction=true epsilon=1e-4 epsilon_max=1e-2 num_threads=2";

/// Vectors with and without room, one of two blocks, and a matrix beside them.
fn specs(dtype: Dtype) -> Vec<Spec> {
    let shapes: [&[i64]; 6] = [&[64], &[63], &[100], &[250], &[130], &[9, 5]];
    shapes.iter().enumerate().map(|(i, shape)| Spec::new(&format!("w{i}"), shape).of(dtype)).collect()
}

/// A run at some step.
struct Run {
    specs: Vec<Spec>,
    model: Model,
    params: Vec<Tensor>,
    random: Random,
}

impl Run {
    fn new(dtype: Dtype, options: &str) -> Run {
        let (specs, mut random) = (specs(dtype), Random::new(11));
        let params = specs.iter().map(|s| s.tensor(&random.normals(s.elements()))).collect();
        let model = Model::new("reference", &format!("{OPTIONS} {options}"), &specs);
        Run { specs, model, params, random }
    }

    fn step(&mut self) -> Vec<Tensor> {
        let gradient = |s: &Spec| s.tensor(&self.random.normals(s.elements()));
        let grads: Vec<Tensor> = self.specs.iter().map(gradient).collect();
        self.model.step(&mut self.params, &grads);
        grads
    }

    fn steps(mut self, count: usize) -> Run {
        (0..count).for_each(|_| drop(self.step()));
        self
    }

    fn saved(&self) -> Vec<u8> {
        self.model.save()
    }
}

#[test]
fn the_statistic_is_the_running_moment_at_every_step() {
    for (dtype, beta, tolerance) in
        [(Dtype::F64, 0.9, 1e-13), (Dtype::F32, 0.5, 1e-5), (Dtype::F64, 1.0, 1e-13)]
    {
        let mut run = Run::new(dtype, &format!("beta2={beta}"));
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
        let alone = Run::new(dtype, options).steps(50);
        let mut read = Run::new(dtype, options);
        for t in 0..50 {
            read.step();
            match t % 4 {
                0 => drop(read.model.read((0, 0, 0), FOAM_FACTOR_STATISTIC)),
                1 => drop(read.saved()),
                _ => {}
            }
        }
        assert!(read.params == alone.params, "{dtype:?} {options}: other parameters");
        assert!(read.saved() == alone.saved(), "{dtype:?} {options}: another state");
    }
}

#[test]
fn a_run_resumed_between_checks_has_the_bits_of_one_that_went_on() {
    for options in ["policy=foam beta2=0.9", "policy=sandwich beta2=0.5 num_threads=1"] {
        for at in [1, 5, 11, 13, 20] {
            let whole = Run::new(Dtype::F32, options).steps(30);
            let mut run = Run::new(Dtype::F32, options).steps(at);
            let bytes = run.saved();
            run.model = Model::new("reference", &format!("{OPTIONS} {options}"), &run.specs);
            run.model.load(&bytes).unwrap();
            let run = run.steps(30 - at);
            assert!(run.params == whole.params, "{options}, resumed after {at}: other parameters");
            assert!(run.saved() == whole.saved(), "{options}, resumed after {at}: another state");
        }
    }
}

#[test]
fn what_was_gathered_is_forgotten_when_a_checkpoint_is_loaded() {
    let whole = Run::new(Dtype::F32, "beta2=0.9").steps(24);
    let mut run = Run::new(Dtype::F32, "beta2=0.9").steps(8);
    let (bytes, params, random) = (run.saved(), run.params.clone(), run.random.clone());
    run = run.steps(3);
    run.model.load(&bytes).unwrap();
    (run.params, run.random) = (params, random);
    let run = run.steps(16);
    assert!(run.params == whole.params && run.saved() == whole.saved());
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let run = |threads: usize| Run::new(Dtype::F32, &format!("beta2=0.9 num_threads={threads}")).steps(30);
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
