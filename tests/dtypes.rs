//! Element types: every combination of parameter, gradient and statistic agrees with the run in double precision,
//! parameters are rounded once and correctly, and a tensor may lie anywhere in memory.

use crate::support::matrix::difference;
use crate::support::model::{Model, Spec, StepWith};
use crate::support::random::Random;
use crate::support::tensor::{Dtype, Tensor};
use foam::abi::FOAM_UNSUPPORTED;
use half::{bf16, f16};

const STEPS: usize = 25;
const SHAPE: [i64; 2] = [12, 9];
const OPTIONS: &str = "check_period=4 beta2=0.9 tau=0.4 epsilon=1e-3 epsilon_max=3e-2 merge_dims=false lr=0.1 \
                       weight_decay=0.01 momentum=0.5";

/// The start and the gradients that all runs share, before they are rounded.
fn material() -> (Vec<f64>, Vec<Vec<f64>>) {
    let mut random = Random::new(21);
    let start = random.normals(108);
    let sizes: Vec<f64> = (0..12).map(|_| 10f64.powf(-random.within(0.0, 1.5))).collect();
    let gradient = |_| {
        let mut g = random.matrix(12, 9);
        g.rows_mut().into_iter().zip(&sizes).for_each(|(mut row, size)| row *= *size);
        g.into_iter().collect()
    };
    (start, (0..STEPS).map(gradient).collect())
}

/// What a run comes to: the parameter, and (checks, eigendecompositions, reuses).
fn run(param: &Tensor, grads: &[Tensor], options: &str) -> (Tensor, [u64; 3]) {
    let spec = Spec::new("w", &SHAPE).of(param.dtype);
    let mut model = Model::new("reference", &format!("{OPTIONS} {options}"), &[spec]);
    let mut params = [param.clone()];
    grads.iter().for_each(|grad| model.step(&mut params, std::slice::from_ref(grad)));
    let stats = model.stats();
    let [param] = params;
    (param, [stats.checks, stats.evd_calls, stats.reuse_calls])
}

#[test]
fn every_combination_of_types_agrees_with_the_run_in_double_precision() {
    let (start, gradients) = material();
    let mut worst = Vec::new();
    for param in Dtype::ALL {
        for grad in Dtype::ALL {
            let start = Tensor::of(param, &SHAPE, &start);
            let grads: Vec<Tensor> = gradients.iter().map(|g| Tensor::of(grad, &SHAPE, g)).collect();
            let wide: Vec<Tensor> = grads.iter().map(|g| g.cast(Dtype::F64)).collect();
            let (expected, counts) = run(&start.cast(Dtype::F64), &wide, "statistic_dtype=f64");
            assert!(counts[1] > 2 && counts[2] > 2, "a run without refreshes or reuses: {counts:?}");
            let got = ["f32", "f64", "auto"].map(|dtype| {
                let (got, found) = run(&start, &grads, &format!("statistic_dtype={dtype}"));
                assert_eq!(found, counts, "parameter {param:?}, gradient {grad:?}, statistic {dtype}");
                got
            });
            let auto = if param == Dtype::F64 { 1 } else { 0 };
            assert_eq!(got[2], got[auto], "auto is f64 for f64 parameters, f32 for all others");
            if param == Dtype::F64 {
                assert_eq!(got[1].elements(), expected.elements(), "f64 throughout, gradient {grad:?}");
            }
            // A parameter is rounded once per step, up or down; the work in single precision adds a little.
            let tolerance = 2.0 * (STEPS as f64).sqrt() * param.unit() + 3e-6;
            let moved = difference(&start.values(), &expected.values());
            assert!(moved > 5.0 * tolerance, "the run does not move the parameter enough to judge it");
            for (got, dtype) in got.iter().zip(["f32", "f64"]) {
                let off = difference(&got.values(), &expected.values());
                assert!(
                    off <= tolerance,
                    "parameter {param:?}, gradient {grad:?}, statistic {dtype}: {off:.1e}"
                );
                worst.push((param, dtype, off));
            }
        }
    }
    for param in Dtype::ALL {
        for dtype in ["f32", "f64"] {
            let those = worst.iter().filter(|w| w.0 == param && w.1 == dtype);
            let most = those.fold(0.0f64, |most, w| most.max(w.2));
            println!("parameter {param:?}, statistic {dtype}: off by at most {most:.1e}");
        }
    }
}

#[test]
fn parameters_of_different_types_in_one_model_do_not_disturb_each_other() {
    let (start, gradients) = material();
    let specs: Vec<Spec> = Dtype::ALL.iter().map(|d| Spec::new(&format!("{d:?}"), &SHAPE).of(*d)).collect();
    let mut model = Model::new("reference", OPTIONS, &specs);
    let mut params: Vec<Tensor> = specs.iter().map(|s| s.tensor(&start)).collect();
    for g in &gradients {
        let grads: Vec<Tensor> = specs.iter().map(|s| s.tensor(g)).collect();
        model.step(&mut params, &grads);
    }
    for (spec, got) in specs.iter().zip(&params) {
        let grads: Vec<Tensor> = gradients.iter().map(|g| spec.tensor(g)).collect();
        assert_eq!(*got, run(&spec.tensor(&start), &grads, "").0, "{:?}", spec.dtype);
    }
}

/// The finite values of a half type, ascending, each with its bits.
fn table(value: fn(u16) -> f64) -> Vec<(f64, u16)> {
    let mut all: Vec<(f64, u16)> = (0..=u16::MAX).map(|bits| (value(bits), bits)).collect();
    all.retain(|x| x.0.is_finite() && x.1 != 0x8000);
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    all
}

/// The nearest value of the table; of two equally near ones, that with an even last bit.
fn nearest(table: &[(f64, u16)], x: f64) -> f64 {
    let above = table.partition_point(|v| v.0 < x).min(table.len() - 1);
    let (low, high) = (table[above.saturating_sub(1)], table[above]);
    match (x - low.0).abs().total_cmp(&(high.0 - x).abs()) {
        std::cmp::Ordering::Less => low.0,
        std::cmp::Ordering::Greater => high.0,
        std::cmp::Ordering::Equal if low.1 % 2 == 0 => low.0,
        std::cmp::Ordering::Equal => high.0,
    }
}

/// A step of plain gradient descent with learning rate 1 is one subtraction.
#[test]
fn a_written_parameter_is_the_correctly_rounded_result() {
    let tables = [
        (Dtype::Bf16, table(|bits| bf16::from_bits(bits).to_f64())),
        (Dtype::F16, table(|bits| f16::from_bits(bits).to_f64())),
    ];
    let round = |dtype: Dtype, x: f32| match tables.iter().find(|t| t.0 == dtype) {
        Some((_, table)) => nearest(table, x.into()),
        None => x.into(),
    };
    let mut random = Random::new(8);
    let count = 5000;
    // From far below the smallest normal half number to thousands.
    let mut numbers = || -> Vec<f64> {
        (0..count).map(|_| random.normal() * 2f64.powf(random.within(-26.0, 12.0))).collect()
    };
    let (start, gradient) = (numbers(), numbers());
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
        for grad in Dtype::ALL {
            let spec = Spec::new("w", &[count as i64]).of(dtype);
            let options = "policy=grafting_only grafting=sgd beta1=0 weight_decay=0 lr=1";
            let mut model = Model::new("reference", options, std::slice::from_ref(&spec));
            let mut params = [spec.tensor(&start)];
            let grads = [Tensor::of(grad, &spec.shape, &gradient)];
            let pairs: Vec<(f64, f64)> = params[0].values().into_iter().zip(grads[0].values()).collect();
            model.step(&mut params, &grads);
            for ((w, g), got) in pairs.iter().zip(params[0].values()) {
                let exact = *w as f32 - *g as f32;
                let expected = round(dtype, exact);
                assert_eq!(got, expected, "{dtype:?} {w} - {grad:?} {g} = {exact}");
            }
        }
    }
}

#[test]
fn a_tensor_may_lie_at_any_address_and_offset_and_state_its_strides() {
    let (start, gradients) = material();
    for dtype in Dtype::ALL {
        let start = Tensor::of(dtype, &SHAPE, &start);
        let grads: Vec<Tensor> = gradients.iter().map(|g| Tensor::of(dtype, &SHAPE, g)).collect();
        let (expected, _) = run(&start, &grads, "");
        for (lead, offset) in [(1, 0), (0, 3), (3, 8), (5, 16), (2, 2)] {
            let place = |tensor: &Tensor| match lead {
                2 => tensor.clone().placed(lead, offset),
                _ => tensor.clone().placed(lead, offset).strided(&[SHAPE[1], 1]),
            };
            let placed = place(&start);
            let grads: Vec<Tensor> = grads.iter().map(place).collect();
            let (got, _) = run(&placed, &grads, "");
            assert_eq!(got.elements(), expected.elements(), "{dtype:?}, {lead} + {offset} bytes");
            assert_eq!(got.surroundings(), placed.surroundings(), "{dtype:?}: written outside the tensor");
        }
    }
}

#[test]
fn strides_are_read_except_where_there_is_one_element() {
    let spec = Spec::new("w", &[3, 1, 4]);
    let mut model = Model::new("reference", "", std::slice::from_ref(&spec));
    let values = Random::new(1).normals(12);
    let (gradient, before) = (spec.tensor(&values), spec.tensor(&values));
    let mut step = |strides: &[i64]| {
        let gradient = gradient.clone().strided(strides);
        let mut params = [before.clone()];
        let outcome = model.try_step(&mut params, &[Some(gradient)], StepWith::default());
        (outcome, params[0] == before)
    };
    for strides in [[4, 4, 1], [4, 12, 1], [4, -7, 1]] {
        let (outcome, unchanged) = step(&strides);
        assert!(outcome == Ok(false) && !unchanged, "{strides:?}: {outcome:?}");
    }
    for strides in [[1, 1, 3], [8, 4, 1], [4, 4, 2], [0, 0, 0]] {
        let (outcome, unchanged) = step(&strides);
        let failure = outcome.expect_err("strides that are not row-major");
        assert!(unchanged, "{strides:?}");
        assert_eq!((failure.status, failure.param_index), (FOAM_UNSUPPORTED, 0), "{}", failure.message);
        assert!(failure.message.contains("strides["), "{}", failure.message);
    }
}
