//! A step never fails for numerical reasons: eigendecompositions that fail are replaced, rung by rung; gradients
//! that are not finite change nothing; and gradients that are zero, constant, of rank one, tiny, huge or absent
//! leave everything finite and in its place.

use crate::support::POLICIES;
use crate::support::matrix::{compose, difference, distance};
use crate::support::model::{Model, Place, Spec, StepWith, without_checksums};
use crate::support::random::Random;
use crate::support::tensor::{Dtype, Tensor};
use foam::abi::*;
use ndarray::{Array1, Array2};

const OPTIONS: &str =
    "check_period=3 beta2=0.9 merge_dims=false tau=0.3 epsilon=1e-4 epsilon_max=1e-2 lr=0.1";
/// Every policy that has factors.
const FACTORED: &[&str] = POLICIES.split_last().expect("there are policies").1;

fn specs(dtype: Dtype) -> Vec<Spec> {
    vec![Spec::new("matrix", &[6, 5]).of(dtype), Spec::new("vector", &[7]).of(dtype)]
}

fn start(specs: &[Spec]) -> Vec<Tensor> {
    let mut random = Random::new(31);
    specs.iter().map(|s| s.tensor(&random.normals(s.elements()))).collect()
}

fn gradients(specs: &[Spec], random: &mut Random, scale: f64) -> Vec<Tensor> {
    let mut values =
        |s: &Spec| -> Vec<f64> { random.normals(s.elements()).iter().map(|x| x * scale).collect() };
    specs.iter().map(|s| s.tensor(&values(s))).collect()
}

/// A run of `steps` random steps.
fn run(options: &str, dtype: Dtype, steps: usize) -> (Model, Vec<Tensor>) {
    let specs = specs(dtype);
    let mut model = Model::new("reference", &format!("{OPTIONS} {options}"), &specs);
    let (mut params, mut random) = (start(&specs), Random::new(32));
    (0..steps).for_each(|_| model.step(&mut params, &gradients(&specs, &mut random, 1.0)));
    (model, params)
}

fn assert_finite(params: &[Tensor], case: &str) {
    assert!(params.iter().all(|p| p.values().iter().all(|x| x.is_finite())), "{case}: not finite");
}

/// Failures on each rung: chosen precision, double precision, singular values, none.
fn rungs(model: &Model) -> [u64; 4] {
    let s = model.stats();
    [s.failed_evds, s.fallback_double, s.fallback_svd, s.fallback_stale]
}

#[test]
fn a_failed_eigendecomposition_is_replaced_by_the_next_rung() {
    const STEPS: usize = 18;
    for (dtype, tolerance) in [(Dtype::F64, 1e-9), (Dtype::F32, 1e-3)] {
        for policy in ["stale", "foam"] {
            let (good, expected) = run(&format!("policy={policy}"), dtype, STEPS);
            assert_eq!(rungs(&good), [0; 4]);
            for (fault, rung) in [("evd_chosen", 1), ("evd_nonorthogonal", 1), ("evd_double", 2)] {
                for from in [1, 7] {
                    let case = format!("{fault} from step {from}, {policy}, {dtype:?}");
                    let faults = format!("policy={policy} inject_fault={fault} inject_fault_step={from}");
                    let (bad, params) = run(&faults, dtype, STEPS);
                    assert_eq!(bad.stats().evd_calls, good.stats().evd_calls, "{case}");
                    let mut failed = bad.stats().evd_calls;
                    if policy == "stale" {
                        // Checks at 3, 6, … 18, of three factors each.
                        failed = if from == 1 { 6 * 3 } else { 4 * 3 };
                    } else if from == 7 {
                        failed -= run("policy=foam", dtype, 6).0.stats().evd_calls;
                    }
                    let mut count = [failed, 0, 0, 0];
                    count[rung] = failed;
                    assert_eq!(rungs(&bad), count, "{case}");
                    for (got, expected) in params.iter().zip(&expected) {
                        let off = difference(&got.values(), &expected.values());
                        assert!(off <= tolerance, "{case}: off by {off:.1e}");
                    }
                }
            }
        }
    }
}

fn in_use(model: &Model, place: Place) -> (Array2<f64>, Array1<f64>) {
    (model.matrix(place, FOAM_FACTOR_BASIS), Array1::from_vec(model.read(place, FOAM_FACTOR_SPECTRUM)))
}

const PLACES: [Place; 3] = [(0, 0, 0), (0, 0, 1), (1, 0, 0)];

#[test]
fn when_every_eigendecomposition_fails_the_stale_basis_serves_with_the_largest_damping() {
    for dtype in [Dtype::F64, Dtype::F32] {
        let (before, _) = run("policy=stale", dtype, 6);
        let (model, params) = run("policy=stale inject_fault=evd_all inject_fault_step=7", dtype, 12);
        assert_finite(&params, "evd_all");
        // Two good checks, then two that found nothing better than the basis of step 6.
        assert_eq!(rungs(&model), [6, 0, 0, 6]);
        for place in PLACES {
            let info = model.factor(place);
            assert_eq!((info.checks, info.evd_calls, info.reuse_calls, info.last_refresh), (4, 2, 2, 6));
            assert_eq!(info.epsilon, 1e-2);
            let (q, d) = in_use(&model, place);
            assert_eq!((q.clone(), d.clone()), in_use(&before, place), "the basis changed");
            let expected = compose(&q.reversed_axes(), &d.mapv(|d| (d + 1e-2).powf(-0.5)));
            let off = distance(&model.matrix(place, FOAM_FACTOR_INVERSE_ROOT), &expected);
            assert!(off < 1e-6, "the inverse root is off by {off:.1e}");
        }
    }
}

#[test]
fn when_the_first_eigendecomposition_fails_on_every_rung_the_diagonal_serves() {
    let (model, params) = run("policy=stale inject_fault=evd_all", Dtype::F64, 3);
    assert_finite(&params, "evd_all at the first check");
    assert_eq!(rungs(&model), [3, 0, 0, 3]);
    assert_eq!((model.stats().evd_calls, model.stats().checks), (0, 3));
    for place in PLACES {
        let (q, d) = in_use(&model, place);
        let statistic = model.matrix(place, FOAM_FACTOR_STATISTIC) / (1.0 - 0.9f64.powi(3));
        assert_eq!(q, Array2::<f64>::eye(d.len()));
        let off = difference(d.as_slice().unwrap(), &statistic.diag().to_vec());
        assert!(off < 1e-14, "the spectrum is not the diagonal: {off:.1e}");
        assert_eq!(model.factor(place).epsilon, 1e-2);
        assert!(model.exact_gap(place).is_finite());
    }
}

#[test]
fn no_policy_fails_a_step_however_many_eigendecompositions_do() {
    for policy in FACTORED {
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let options = format!("policy={policy} inject_fault=evd_all inject_fault_step=4");
            let (model, params) = run(&options, dtype, 45);
            assert_finite(&params, policy);
            let stats = model.stats();
            assert_eq!(stats.failed_evds, stats.fallback_stale, "{policy}");
            assert_eq!(stats.evd_calls, 3, "{policy}: only the first check has a new basis");
        }
    }
}

/// A checkpoint with the number of skipped steps taken out of its header.
fn without_skips(bytes: &[u8], skipped: u64) -> Vec<u8> {
    let bytes = without_checksums(bytes.to_vec());
    let text = format!("\\\"skipped_steps\\\":{skipped}");
    let at = bytes.windows(text.len()).position(|w| w == text.as_bytes()).expect("the header counts skips");
    [&bytes[..at], &bytes[at + text.len()..]].concat()
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing_but_the_count_of_skips() {
    let overflow = [(Dtype::F32, 1e30), (Dtype::F64, 1e200), (Dtype::Bf16, 1e30)];
    for dtype in [Dtype::F32, Dtype::F64, Dtype::Bf16, Dtype::F16] {
        let huge = overflow.iter().find(|o| o.0 == dtype).map(|o| o.1);
        for bad in [Some(f64::NAN), Some(f64::INFINITY), Some(f64::NEG_INFINITY), huge].into_iter().flatten()
        {
            for (mode, at) in [("error", 0), ("error", 6), ("skip", 0), ("skip", 6)] {
                let case = format!("{bad} in mode {mode}, place {at}, {dtype:?}");
                let (mut model, mut params) = run(&format!("nonfinite={mode}"), dtype, 7);
                let (before, saved) = (params.clone(), model.save());
                let mut grads = gradients(&specs(dtype), &mut Random::new(33), 1.0);
                let good = grads.clone();
                let mut values = grads[1].values();
                values[at] = bad;
                grads[1] = specs(dtype)[1].tensor(&values);
                let grads: Vec<_> = grads.into_iter().map(Some).collect();
                let outcome = model.try_step(&mut params, &grads, StepWith::default());
                assert!(params == before, "{case}: the parameters changed");
                if mode == "error" {
                    let failure = outcome.expect_err(&case);
                    assert_eq!((failure.status, failure.param_index), (FOAM_NOT_FINITE, 1), "{case}");
                    assert!(failure.message.contains("'vector'"), "{}", failure.message);
                    assert!(model.save() == saved, "{case}: the state changed");
                } else {
                    assert_eq!(outcome, Ok(true), "{case}");
                    assert_eq!((model.stats().skipped_steps, model.stats().steps), (1, 7), "{case}");
                    let now = without_skips(&model.save(), 1);
                    assert!(now == without_skips(&saved, 0), "{case}: the state changed");
                }
                model.step(&mut params, &good);
                let (mut twin, mut expected) = run("", dtype, 7);
                twin.step(&mut expected, &good);
                assert!(params == expected, "{case}: the next step differs");
            }
        }
    }
}

#[test]
fn zero_gradients_move_nothing() {
    for policy in FACTORED {
        for grafting in ["none", "sgd", "adagrad", "rmsprop", "adam"] {
            for normalized in [true, false] {
                let options = format!(
                    "{OPTIONS} policy={policy} grafting={grafting} normalized_grafting={normalized} weight_decay=0"
                );
                let specs = specs(Dtype::F32);
                let mut model = Model::new("reference", &options, &specs);
                let mut params = start(&specs);
                let zero: Vec<Tensor> = specs.iter().map(|s| s.tensor(&vec![0.0; s.elements()])).collect();
                (0..40).for_each(|_| model.step(&mut params, &zero));
                assert!(params == start(&specs), "{policy}, {grafting}: zero gradients moved a parameter");
                model.step(&mut params, &gradients(&specs, &mut Random::new(34), 1.0));
                (0..300).for_each(|_| model.step(&mut params, &zero));
                assert_finite(&params, &options);
            }
        }
    }
}

#[test]
fn a_constant_gradient_is_no_drift() {
    let specs = specs(Dtype::F64);
    for policy in ["foam", "foam_certified", "foam_fixed_epsilon", "diagonal_residual"] {
        let mut model = Model::new("reference", &format!("{OPTIONS} policy={policy}"), &specs);
        let mut params = start(&specs);
        let grads = gradients(&specs, &mut Random::new(35), 1.0);
        (0..100).for_each(|_| model.step(&mut params, &grads));
        for info in model.factors() {
            assert_eq!((info.checks, info.evd_calls, info.reuse_calls), (33, 1, 32), "{policy}");
            assert_eq!(info.epsilon, info.epsilon_base);
            assert!(!info.max_proxy.is_finite() || info.max_proxy < 1e-9, "{policy}: {}", info.max_proxy);
        }
        assert_finite(&params, policy);
    }
}

#[test]
fn gradients_of_rank_one_tiny_and_huge_leave_every_number_finite() {
    let specs = specs(Dtype::F32);
    for policy in FACTORED {
        for (scale, rank_one) in [(1e-20, false), (1e15, false), (1e15, true), (1.0, true), (1e-38, false)] {
            let options = format!("policy={policy} epsilon=1e-9 epsilon_max=3e-7 weight_decay=0");
            let case = format!("{policy}, gradients of {scale:e}, of rank one: {rank_one}");
            let mut model = Model::new("reference", &format!("{OPTIONS} {options}"), &specs);
            let (mut params, mut random) = (start(&specs), Random::new(36));
            for _ in 0..60 {
                let mut grads = gradients(&specs, &mut random, scale);
                if rank_one {
                    let (x, y) = (random.normals(6), random.normals(5));
                    let outer: Vec<f64> =
                        x.iter().flat_map(|x| y.iter().map(move |y| scale * x * y)).collect();
                    grads[0] = specs[0].tensor(&outer);
                }
                model.step(&mut params, &grads);
            }
            assert_finite(&params, &case);
            for info in model.factors() {
                let seen = [info.epsilon, info.eigenvalue_min, info.eigenvalue_max];
                assert!(seen.iter().all(|x| x.is_finite()), "{case}: {info:?}");
                assert!(!info.proxy.is_infinite(), "{case}: {info:?}");
            }
            // Adam's steps have entries of about one at most, and so have steps of its length.
            for (param, before) in params.iter().zip(start(&specs)) {
                let far =
                    param.values().iter().zip(before.values()).fold(0.0f64, |m, (a, b)| m.max((a - b).abs()));
                assert!(far < 60.0 * 0.1 * 40.0, "{case}: moved by {far}");
                assert!(far > 0.1 || scale < 1e-10, "{case}: moved by {far} only");
            }
        }
    }
}

/// One step along a direction that the basis has seen, then one along a direction that it has not: there the
/// inverse roots are as large as ε makes them.
fn unseen_direction(options: &str, dtype: Dtype, scale: f64) -> Tensor {
    let spec = Spec::new("w", &[4, 4]).of(dtype);
    let options = format!("merge_dims=false start_step=1 check_period=100 weight_decay=0 lr=0.1 {options}");
    let mut model = Model::new("reference", &options, std::slice::from_ref(&spec));
    let mut params = [spec.tensor(&[1.0; 16])];
    for places in [&[0][..], &[1, 6, 15]] {
        let mut gradient = [0.0; 16];
        places.iter().for_each(|at| gradient[*at] = scale);
        model.step(&mut params, &[spec.tensor(&gradient)]);
    }
    let [param] = params;
    param
}

#[test]
fn a_direction_whose_square_overflows_single_precision_keeps_its_grafted_length() {
    for (options, scale) in [("root=1", 1e3), ("root=2 epsilon=1e-12", 1e8), ("root=2", 1e11)] {
        let expected = unseen_direction(options, Dtype::F64, scale).values();
        let off = difference(&unseen_direction(options, Dtype::F32, scale).values(), &expected);
        assert!(off < 1e-4, "{options}, gradients of {scale:e}: off by {off:.1e}");
    }
}

#[test]
fn a_direction_that_overflows_single_precision_leaves_the_parameter_finite() {
    for grafting in ["sgd", "adam"] {
        let options = format!("root=1 epsilon=1e-12 grafting={grafting}");
        assert_finite(&[unseen_direction(&options, Dtype::F32, 1e17)], grafting);
    }
}

#[test]
fn a_gradient_with_zeros_needs_no_grafting_epsilon() {
    for grafting in ["adagrad", "rmsprop", "adam"] {
        for epsilon in ["0", "1e-60"] {
            let options = format!("grafting={grafting} grafting_epsilon={epsilon}");
            assert_finite(&[unseen_direction(&options, Dtype::F32, 1.0)], &options);
        }
    }
}

/// As the embedding of a text that has few of its symbols.
#[test]
fn rows_that_no_gradient_touches_are_eigenvectors_as_they_are() {
    const UNTOUCHED: [usize; 4] = [0, 7, 8, 23];
    for (dtype, tolerance) in [(Dtype::F64, 1e-12), (Dtype::F32, 1e-5)] {
        let specs = [Spec::new("embedding", &[24, 5]).of(dtype)];
        let mut model = Model::new("reference", &format!("{OPTIONS} policy=stale"), &specs);
        let (mut params, mut random) = (start(&specs), Random::new(34));
        for _ in 0..6 {
            let mut values = random.normals(24 * 5);
            UNTOUCHED.iter().for_each(|row| values[row * 5..(row + 1) * 5].fill(0.0));
            model.step(&mut params, &[specs[0].tensor(&values)]);
        }
        let place = (0, 0, 0);
        assert_eq!(rungs(&model), [0; 4]);
        let (rows, d) = in_use(&model, place);
        for (number, row) in UNTOUCHED.iter().enumerate() {
            let mut unit = vec![0.0; 24];
            unit[*row] = 1.0;
            assert_eq!((rows.row(number).to_vec(), d[number]), (unit, 0.0), "{dtype:?}, row {row}");
        }
        let statistic = model.matrix(place, FOAM_FACTOR_STATISTIC) / (1.0 - 0.9f64.powi(6));
        let off = distance(&compose(&rows.reversed_axes(), &d), &statistic);
        assert!(off < tolerance, "{dtype:?}: the statistic is missed by {off:.1e}");
    }
}

#[test]
fn a_run_resumed_with_other_checks_takes_no_dead_step() {
    // No check was due in thirty steps; of the new options, the next one is due at step 40 or 41.
    for (saved, loaded) in [
        ("cadence=reference check_period=100", "cadence=reference check_period=20"),
        ("cadence=reference check_period=100", "cadence=paper check_period=20"),
        ("check_period=20 start_step=100", "check_period=20 start_step=5"),
    ] {
        for grafting in ["adam", "none"] {
            let specs = specs(Dtype::F64);
            let options =
                |checks: &str| format!("{OPTIONS} weight_decay=0 beta1=0 grafting={grafting} {checks}");
            let mut before = Model::new("reference", &options(saved), &specs);
            let (mut params, mut random) = (start(&specs), Random::new(33));
            (0..30).for_each(|_| before.step(&mut params, &gradients(&specs, &mut random, 1.0)));
            assert_eq!(before.stats().checks, 0, "no basis yet");
            let mut after = Model::new("reference", &options(loaded), &specs);
            after.load(&before.save()).unwrap();
            for step in 31..=45 {
                let old = params.clone();
                after.step(&mut params, &gradients(&specs, &mut random, 1.0));
                for (old, new) in old.iter().zip(&params) {
                    let moved = difference(&old.values(), &new.values());
                    assert!(moved > 0.0, "{saved}, then {loaded}, {grafting}: step {step} moved nothing");
                }
            }
            assert_eq!(after.factor((0, 0, 0)).last_refresh, 31, "the missing basis is made at once");
        }
    }
}

#[test]
fn the_search_for_a_damping_ends_for_the_smallest_epsilon() {
    let specs = specs(Dtype::F64);
    let options = "policy=foam_certified check_period=2 beta2=0.9 merge_dims=false epsilon=1e-300 epsilon_max=1e-2 tau=1e-3";
    let mut model = Model::new("reference", options, &specs);
    let (mut params, mut random) = (start(&specs), Random::new(34));
    (0..8).for_each(|_| model.step(&mut params, &gradients(&specs, &mut random, 1.0)));
    assert_finite(&params, "epsilon = 1e-300");
}
