//! Statistics and inverse roots that share squares (`share_squares`): the numbers, and what a checkpoint holds of them,
//! are those of squares of their own.

use crate::support::model::{Model, Spec};
use crate::support::policies_and_schedules;
use crate::support::random::Random;
use crate::support::run::Run;
use crate::support::stack::{Shape, layout};
use crate::support::tensor::Dtype;
use foam::abi::*;
use safetensors::tensor::TensorView;
use safetensors::{Dtype as Element, SafeTensors};
use std::collections::HashMap;

const OPTIONS: &str = "check_period=3 start_step=2 beta2=0.9 tau=0.3 epsilon=1e-4 epsilon_max=1e-2 momentum=0.5 \
                       max_factor_dim=600 merge_dims=false num_threads=2";
/// The side from which squares are shared.
const LEAST: i64 = 128;

/// Both sides shared, one of them, none; an order of three, a vector, few terms.
fn specs(dtype: Dtype) -> Vec<Spec> {
    let shapes: [&[i64]; 6] = [&[140, 131], &[128, 20], &[33, 127], &[6, 130, 3], &[150], &[4, 160]];
    shapes.iter().enumerate().map(|(i, shape)| Spec::new(&format!("w{i}"), shape).of(dtype)).collect()
}

fn options(more: &str) -> String {
    format!("{OPTIONS} {more}")
}

fn run(specs: Vec<Spec>, more: &str, steps: usize) -> Run {
    let mut run = Run::new(specs, &options(more), 5);
    run.steps(steps);
    run
}

/// The inverse roots of all factors, as bits.
fn roots(run: &Run) -> Vec<Vec<u64>> {
    let factors = run.model.factors();
    let places = factors.iter().map(|f| (f.param_index, f.block, f.axis));
    places.map(|place| bits(&run.model.read(place, FOAM_FACTOR_INVERSE_ROOT))).collect()
}

/// Tensors of its checkpoint by name. Of a statistic only the lower triangle means anything.
fn saved(run: &Run) -> Vec<(String, Vec<u8>)> {
    let bytes = run.model.save();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let kept = |(name, tensor): (String, TensorView)| {
        let mut data = tensor.data().to_vec();
        if name.ends_with("/statistic") {
            let [_, n, _] = *tensor.shape() else { panic!("{name} is a stack of squares") };
            let size = data.len() / tensor.shape().iter().product::<usize>();
            for (place, number) in data.chunks_exact_mut(size).enumerate() {
                if place % n < place / n % n {
                    number.fill(0);
                }
            }
        }
        (name, data)
    };
    let mut tensors: Vec<_> = file.tensors().into_iter().map(kept).collect();
    tensors.retain(|(name, _)| name != "crc32");
    tensors.sort();
    tensors
}

fn bits(values: &[f64]) -> Vec<u64> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[track_caller]
fn assert_same(got: &Run, expected: &Run, case: &str) {
    assert!(got.params == expected.params, "{case}: other parameters");
    // The first line has the bytes of the state.
    let records = |run: &Run| run.model.statistics().split_once('\n').map(|(_, rest)| rest.to_string());
    assert!(records(got) == records(expected), "{case}: other statistics");
    assert!(roots(got) == roots(expected), "{case}: other inverse roots");
    for (ours, theirs) in saved(got).iter().zip(&saved(expected)) {
        assert!(ours == theirs, "{case}: {} differs from {}", ours.0, theirs.0);
    }
}

#[test]
fn every_policy_has_the_bits_of_separate_squares() {
    for policy in policies_and_schedules() {
        let run = |share: bool| run(specs(Dtype::F32), &format!("policy={policy} share_squares={share}"), 8);
        assert_same(&run(true), &run(false), policy);
    }
}

#[test]
fn every_type_and_number_of_threads_has_the_bits_of_separate_squares() {
    for (dtype, statistic) in [
        (Dtype::F64, "auto"),
        (Dtype::Bf16, "auto"),
        (Dtype::F16, "f32"),
        (Dtype::F32, "f64"),
        (Dtype::F64, "f32"),
    ] {
        let run = |share: bool, threads: usize| {
            let options = format!("statistic_dtype={statistic} share_squares={share} num_threads={threads}");
            run(specs(dtype), &options, 6)
        };
        let own = run(false, 1);
        for threads in [1, 2, 5] {
            assert_same(&run(true, threads), &own, &format!("{dtype:?}, {statistic}, {threads} threads"));
        }
    }
}

/// A matrix of several panels along both axes, whose products are shared out to threads.
#[test]
fn a_large_matrix_has_the_bits_of_separate_squares() {
    let run = |share: bool, threads: usize| {
        let options = format!("policy=stale max_factor_dim=1024 share_squares={share} num_threads={threads}");
        run(vec![Spec::new("w", &[530, 1030]).of(Dtype::F32)], &options, 3)
    };
    let own = run(false, 2);
    for threads in [1, 3] {
        let shared = run(true, threads);
        assert!(shared.params == own.params && roots(&shared) == roots(&own), "{threads} threads");
    }
}

#[test]
fn inverse_roots_survive_the_statistics_of_a_hundred_steps() {
    // A plain sum and an average, products of few terms and of many, panels that decay first.
    for options in ["beta2=1", "beta2=0.9", "statistics_period=2"] {
        let mut run = run(specs(Dtype::F32), &format!("{options} policy=stale check_period=1000"), 2);
        let before = roots(&run);
        assert!(before.iter().all(|root| root.iter().any(|x| *x != 0)), "there are inverse roots");
        run.steps(100);
        assert!(roots(&run) == before, "{options}: an inverse root changed between checks");
    }
}

/// Bytes of state, of the blocks of a parameter.
fn state_bytes(shape: &[i64], dtype: Dtype, options: &str) -> usize {
    let specs = [Spec::new("w", shape).of(dtype)];
    let model = Model::new("default", &format!("merge_dims=false num_threads=1 {options}"), &specs);
    model.stats().state_bytes_host as usize
}

#[test]
fn a_large_factor_has_two_squares_and_a_small_one_three() {
    for (n, dtype, size) in
        [(128, Dtype::F32, 4), (256, Dtype::Bf16, 4), (768, Dtype::F32, 4), (200, Dtype::F64, 8)]
    {
        // Beside the factors: filter and moment, a clock.
        let beside = 2 * n * n * size + 16;
        let per_factor = |options: &str| {
            let bytes = state_bytes(&[n as i64, n as i64], dtype, options) - beside;
            bytes as f64 / (2 * n * n * size) as f64
        };
        let (shared, own) = (per_factor(""), per_factor("share_squares=false"));
        assert!(shared <= 2.1, "{shared} squares of side {n}");
        assert!(own > 3.0 && own - shared > 0.98, "{own} and {shared} squares of side {n}");
    }
    let small = [LEAST - 1, LEAST - 1];
    assert_eq!(state_bytes(&small, Dtype::F32, ""), state_bytes(&small, Dtype::F32, "share_squares=false"));
    // Where statistic and step have different precisions nothing is shared.
    let mixed = |share: bool| {
        state_bytes(&[200, 200], Dtype::F32, &format!("statistic_dtype=f64 share_squares={share}"))
    };
    assert_eq!(mixed(true), mixed(false));
}

#[test]
fn a_checkpoint_is_the_same_and_loads_either_way() {
    for policy in ["sandwich", "foam refresh_delay=2"] {
        let with = |share: bool| format!("policy={policy} share_squares={share}");
        let [shared, mut own] = [true, false].map(|share| run(specs(Dtype::F32), &with(share), 6));
        let names =
            |run: &Run| saved(run).into_iter().map(|(name, data)| (name, data.len())).collect::<Vec<_>>();
        assert_eq!(names(&shared), names(&own));
        let mut moved = vec![
            (shared.moved(&options(&with(false))), "shared to separate"),
            (own.moved(&options(&with(true))), "separate to shared"),
            (shared.moved(&options(&with(true))), "shared to shared"),
        ];
        // Over a state that is not the first.
        let mut used = run(specs(Dtype::F32), &with(true), 0);
        used.random = Random::new(99);
        used.steps(5);
        used.model.load(&own.model.save()).unwrap();
        (used.params, used.random) = (own.params.clone(), own.random.clone());
        moved.push((used, "separate over shared"));
        own.steps(7);
        for (mut run, case) in moved {
            run.steps(7);
            assert_same(&run, &own, &format!("{policy}, {case}"));
        }
    }
}

/// The file as the first format had it, for parameters of one block each.
fn first_format(bytes: &[u8]) -> Vec<u8> {
    let file = SafeTensors::deserialize(bytes).unwrap();
    let (_, header) = SafeTensors::read_metadata(bytes).unwrap();
    let about = &header.metadata().as_ref().unwrap()["foam"];
    let mut about: serde_json::Value = serde_json::from_str(about).unwrap();
    about["format"] = 1.into();
    let mut tensors = Vec::new();
    for (name, tensor) in file.tensors().into_iter().filter(|(name, _)| name != "crc32") {
        let kept = match name.rsplit('/').next().unwrap() {
            "gauges" => 10 * 8,
            "counters" => 15 * 8,
            _ => tensor.data().len(),
        };
        let shape = if name.contains("/clock.") { tensor.shape() } else { &tensor.shape()[1..] };
        let shape = if kept < tensor.data().len() { vec![kept / 8] } else { shape.to_vec() };
        let view = TensorView::new(tensor.dtype(), shape, &tensor.data()[..kept]).unwrap();
        tensors.push((name.replace("/stack0/", "/block0/"), view));
    }
    let metadata = HashMap::from([("foam".to_string(), about.to_string())]);
    safetensors::serialize(tensors, Some(metadata)).unwrap()
}

#[test]
fn a_file_of_the_first_format_loads_into_shared_squares() {
    let mut own = run(specs(Dtype::F32), "policy=foam share_squares=false", 6);
    let mut shared = run(specs(Dtype::F32), "policy=foam", 0);
    shared.model.load(&first_format(&own.model.save())).unwrap();
    (shared.params, shared.random) = (own.params.clone(), own.random.clone());
    for run in [&mut shared, &mut own] {
        run.steps(7);
    }
    assert!(shared.params == own.params && roots(&shared) == roots(&own));
}

#[test]
fn a_checkpoint_has_whole_inverse_roots_and_lower_triangles_of_statistics() {
    let run = run(vec![Spec::new("w", &[140, 5]).of(Dtype::F32)], "policy=stale", 2);
    let bytes = run.model.save();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let numbers = |name: &str| {
        let tensor = file.tensor(name).unwrap();
        assert_eq!((tensor.dtype(), tensor.shape()), (Element::F32, &[1, 140, 140][..]), "{name}");
        tensor.data().chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect()
    };
    let (root, statistic): (Vec<f64>, Vec<f64>) =
        (numbers("w/stack0/axis0/inverse_root"), numbers("w/stack0/axis0/statistic"));
    let n = 140;
    for place in 0..n * n {
        let (row, column) = (place % n, place / n);
        assert_eq!(root[place], root[column + row * n], "the inverse root is symmetric");
        assert!(row >= column || statistic[place] == 0.0, "{row}, {column}");
    }
    assert_eq!(bits(&root), bits(&run.model.read((0, 0, 0), FOAM_FACTOR_INVERSE_ROOT)));
    assert!(file.tensor("w/stack0/axis0/root_diagonal").is_err());
}

#[test]
fn the_layout_says_what_is_shared_and_a_wrong_switch_is_refused() {
    let mut config = crate::support::model::configuration("default", "").unwrap();
    assert_eq!(config.share_squares, 1);
    config.share_squares = 2;
    let failure = Model::create(&config, &[Spec::new("w", &[3, 3])]).err().unwrap();
    assert!(failure.message.contains("config.share_squares = 2: expected 0 or 1"), "{}", failure.message);
    config.share_squares = 1;
    let shape = Shape::new(&[LEAST, 3], 1, Dtype::F32);
    let kinds: Vec<i32> = layout(&config, &shape).unwrap().iter().map(|item| item.kind).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == FOAM_STACK_ROOT_DIAGONAL).count(), 1);
    assert_eq!(kinds.iter().filter(|kind| **kind == FOAM_STACK_INVERSE_ROOT).count(), 1);
}
