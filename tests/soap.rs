//! SOAP beyond its traces: both forms, the gauge κ, the schedules, blocks, element types, and what it refuses.

use crate::support::model::{Model, Spec, StepWith, checked, configuration};
use crate::support::random::Random;
use crate::support::tensor::{Dtype, Tensor};
use foam::abi::*;
use ndarray::Array2;

/// A model on gradients that come from a fixed stream and turn slowly, so that a basis grows stale.
struct Run {
    model: Model,
    params: Vec<Tensor>,
    specs: Vec<Spec>,
    t: usize,
}

impl Run {
    fn new(preset: &str, options: &str, specs: &[Spec]) -> Run {
        let start = |s: &Spec| s.tensor(&Random::new(s.elements() as u64).normals(s.elements()));
        let options = format!("num_threads=1 {options}");
        Run {
            model: Model::new(preset, &options, specs),
            params: specs.iter().map(start).collect(),
            specs: specs.to_vec(),
            t: 0,
        }
    }

    fn gradients(&self) -> Vec<Tensor> {
        let gradient = |spec: &Spec| {
            let n = spec.elements();
            let noise = Random::new((self.t * 7919 + n) as u64).normals(n);
            let scale = |i: usize| 0.05 + (0.7 * i as f64 + 0.03 * self.t as f64).sin().powi(2);
            spec.tensor(&noise.iter().enumerate().map(|(i, x)| x * scale(i)).collect::<Vec<_>>())
        };
        self.specs.iter().map(gradient).collect()
    }

    fn steps(&mut self, count: usize) {
        for _ in 0..count {
            self.t += 1;
            let gradients = self.gradients();
            self.model.step(&mut self.params, &gradients);
        }
    }

    fn values(&self) -> Vec<f64> {
        self.params.iter().flat_map(|p| p.values()).collect()
    }
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}

fn matrix(dims: &[i64]) -> Vec<Spec> {
    vec![Spec::new("w", dims)]
}

/// ‖QᵀQ − I‖, the largest entry.
fn defect(run: &Run, axis: i64) -> f64 {
    let q = run.model.matrix((0, 0, axis), FOAM_FACTOR_BASIS);
    let gram = q.dot(&q.t());
    let n = gram.nrows();
    let eye = Array2::<f64>::eye(n);
    (&gram - &eye).iter().map(|x| x.abs()).fold(0.0, f64::max)
}

#[test]
fn the_form_in_the_basis_follows_the_exact_form() {
    for (dtype, tolerance, orthogonal) in [(Dtype::F64, 1e-12, 1e-13), (Dtype::F32, 1e-4, 1e-5)] {
        // The first statistic of every axis has full rank: its basis is unique.
        for dims in [&[10i64, 10][..], &[5, 4, 6], &[3, 2, 4, 3]] {
            for options in
                ["check_period=1 refresh_schedule=fixed", "front_steps=60", "beta2=1 front_steps=50"]
            {
                let specs = vec![Spec::new("w", dims).of(dtype)];
                let run = |form: &str| {
                    let mut run = Run::new("soap", &format!("soap_form={form} {options}"), &specs);
                    run.steps(200);
                    run
                };
                let (exact, turned) = (run("exact"), run("in_basis"));
                let start = Run::new("soap", "", &specs).values();
                let moved = distance(&exact.values(), &start);
                let off = distance(&exact.values(), &turned.values()) / moved;
                println!("{dtype:?} {dims:?} {options}: {off:.1e}");
                assert!(moved > 0.1 && off < tolerance, "{dtype:?} {dims:?} {options}: {off:e}");
                for axis in 0..dims.len() as i64 {
                    assert!(defect(&turned, axis) < orthogonal, "{}", defect(&turned, axis));
                    assert!(defect(&exact, axis) < orthogonal, "{}", defect(&exact, axis));
                }
                let refreshes = |run: &Run| run.model.stats().evd_calls;
                assert_eq!(refreshes(&exact), refreshes(&turned));
            }
        }
    }
}

/// κ as it is defined, from the matrices of a factor.
fn kappa(run: &Run, axis: i64, in_basis: bool) -> f64 {
    let statistic = run.model.matrix((0, 0, axis), FOAM_FACTOR_STATISTIC);
    let q = run.model.matrix((0, 0, axis), FOAM_FACTOR_BASIS);
    let h = if in_basis { statistic } else { q.dot(&statistic).dot(&q.t()) };
    let n = h.nrows();
    let largest = (0..n).map(|i| h[[i, i]]).fold(0.0, f64::max);
    let a: Vec<f64> = (0..n).map(|i| h[[i, i]] + 1e-6 * largest).collect();
    let mut total = 0.0;
    for i in 0..n {
        for j in 0..i {
            let c = h[[i, j]] / (a[i] * a[j]).sqrt();
            total += c * c * (a[i] + a[j]) / (a[i].sqrt() + a[j].sqrt()).powi(2);
        }
    }
    (total / n as f64).sqrt()
}

#[test]
fn the_gauge_is_kappa_of_the_statistic_in_the_basis() {
    for form in ["exact", "in_basis"] {
        // Never refreshed: after a check the gauge is that of the matrices.
        let options = format!("soap_form={form} refresh_schedule=kappa kappa_threshold=1e9 check_period=5");
        let mut run = Run::new("soap", &options, &matrix(&[8, 6]));
        run.steps(1);
        assert!(run.model.factor((0, 0, 0)).kappa.is_nan(), "no check of a basis yet");
        run.steps(15);
        for axis in 0..2 {
            let (info, expected) = (run.model.factor((0, 0, axis)), kappa(&run, axis, form == "in_basis"));
            assert!(
                info.kappa > 0.05 && (info.kappa / expected - 1.0).abs() < 1e-9,
                "{} {expected}",
                info.kappa
            );
            assert_eq!((info.checks, info.evd_calls, info.reuse_calls), (4, 1, 3));
            assert_eq!((info.last_branch, info.last_check), (FOAM_BRANCH_REUSE_SAME, 16));
        }
    }
}

#[test]
fn a_schedule_by_kappa_lies_between_never_and_always() {
    let run = |options: &str| {
        let mut run = Run::new("soap", &format!("check_period=4 {options}"), &matrix(&[10, 7]));
        run.steps(101);
        run
    };
    let always = run("refresh_schedule=kappa kappa_threshold=0");
    let fixed = run("refresh_schedule=fixed");
    assert_eq!(always.values(), fixed.values());
    assert_eq!(always.model.stats().evd_calls, 2 * 26);
    let kappa = fixed.model.factor((0, 0, 0)).kappa;
    let some = run(&format!("refresh_schedule=kappa kappa_threshold={kappa}")).model.stats();
    assert!(some.evd_calls > 2 && some.evd_calls < 2 * 26, "{}", some.evd_calls);
    assert_eq!((some.checks, some.evd_calls + some.reuse_calls), (2 * 26, 2 * 26));
    assert_eq!(run("refresh_schedule=kappa kappa_threshold=1e9").model.stats().evd_calls, 2);
    // A refresh by any schedule tells how stale the basis was.
    let info = fixed.model.factor((0, 0, 0));
    assert!(info.kappa > 0.0 && info.last_refresh == 101 && info.last_branch == FOAM_BRANCH_EVD_STALE);
    assert!(info.eigenvalue_max >= info.eigenvalue_min && info.eigenvalue_min >= 0.0);
}

#[test]
fn the_schedules_refresh_when_they_say() {
    let refreshes = |preset: &str, options: &str, steps: usize| {
        let mut run = Run::new(preset, options, &matrix(&[6, 5]));
        let mut found = Vec::new();
        for t in 1..=steps as u64 {
            run.steps(1);
            if run.model.factor((0, 0, 0)).last_refresh == t {
                found.push(t);
            }
        }
        found
    };
    assert_eq!(refreshes("soap", "front_steps=12", 50), [1, 6, 11, 16, 31, 46]);
    // The preset: four windows of 1/(1 − 0.95) steps.
    let preset = refreshes("soap", "", 130);
    assert_eq!(preset.iter().filter(|t| **t <= 81).count(), 17);
    assert_eq!(preset[17..], [91, 106, 121]);
    assert_eq!(refreshes("soap", "refresh_schedule=geometric refresh_growth=2", 40), [1, 2, 3, 5, 9, 17, 33]);
    let stale = "policy=stale epsilon=1e-4 check_period=10";
    assert_eq!(
        refreshes(
            "paper",
            &format!("{stale} refresh_schedule=front_loaded front_period=2 front_steps=6"),
            31
        ),
        [1, 3, 5, 7, 11, 21, 31]
    );
    assert_eq!(
        refreshes("reference", &format!("{stale} refresh_schedule=geometric merge_dims=false"), 20),
        [1, 2, 3, 5, 8, 12, 18]
    );
}

#[test]
fn the_first_gradient_makes_the_basis_and_no_update() {
    let specs = [Spec::new("matrix", &[4, 3]), Spec::new("vector", &[5])];
    let mut run = Run::new("soap", "", &specs);
    let before = run.values();
    run.steps(1);
    assert_eq!(run.values(), before);
    assert_eq!(run.model.stats().evd_calls, 2);
    run.steps(1);
    assert!(run.values().iter().zip(&before).all(|(now, then)| now != then));
}

#[test]
fn a_cut_parameter_is_its_blocks() {
    let (rows, cols) = (7, 9);
    let mut whole = Run::new("soap", "max_factor_dim=5", &matrix(&[rows, cols]));
    let cuts: [(i64, i64); 2] = [(0, 5), (5, 2)];
    let columns: [(i64, i64); 2] = [(0, 5), (5, 4)];
    let mut blocks = Vec::new();
    for (row, height) in cuts {
        for (col, width) in columns {
            blocks.push((row, col, Run::new("soap", "", &[Spec::new("b", &[height, width])])));
        }
    }
    let part = |tensor: &Tensor, row: i64, col: i64, spec: &Spec| {
        let values = tensor.values();
        let (height, width) = (spec.shape[0], spec.shape[1]);
        let at = |i: i64, j: i64| values[((row + i) * cols + col + j) as usize];
        let own: Vec<f64> =
            (0..height).flat_map(|i| (0..width).map(move |j| (i, j))).map(|(i, j)| at(i, j)).collect();
        spec.tensor(&own)
    };
    for (row, col, run) in &mut blocks {
        run.params = vec![part(&whole.params[0], *row, *col, &run.specs[0])];
    }
    for _ in 0..20 {
        whole.t += 1;
        let gradients = whole.gradients();
        whole.model.step(&mut whole.params, &gradients);
        for (row, col, run) in &mut blocks {
            let own = [part(&gradients[0], *row, *col, &run.specs[0])];
            run.model.step(&mut run.params, &own);
            assert_eq!(run.params[0].values(), part(&whole.params[0], *row, *col, &run.specs[0]).values());
        }
    }
}

#[test]
fn a_side_that_is_too_large_is_left_as_it_is() {
    let mut run = Run::new("soap", "max_precond_dim=6", &matrix(&[9, 6]));
    run.steps(12);
    let (large, small) = (run.model.factor((0, 0, 0)), run.model.factor((0, 0, 1)));
    assert_eq!((large.dim, large.checks, large.evd_calls), (9, 0, 0));
    assert_eq!((small.dim, small.checks, small.evd_calls), (6, 3, 3));
    // A huge side costs no memory of its square: an embedding of 200,000 rows.
    let model = Model::new("soap", "", &[Spec::new("embedding", &[200_000, 8]).of(Dtype::F32)]);
    let elements = 200_000 * 8 * 4;
    assert!(model.stats().state_bytes_host < 2 * elements + (1 << 20), "{}", model.stats().state_bytes_host);
}

#[test]
fn every_element_type_follows_double_precision() {
    let run = |dtype: Dtype, options: &str| {
        let specs: Vec<Spec> = [&[8i64, 8][..], &[6], &[]]
            .iter()
            .enumerate()
            .map(|(i, dims)| Spec::new(&format!("w{i}"), dims).of(dtype))
            .collect();
        let mut run = Run::new("soap", options, &specs);
        run.steps(60);
        run.values()
    };
    let expected = run(Dtype::F64, "");
    let size = distance(&expected, &vec![0.0; expected.len()]);
    for (dtype, options, tolerance) in [
        (Dtype::F64, "statistic_dtype=f32", 1e-3),
        (Dtype::F32, "", 1e-3),
        (Dtype::F32, "statistic_dtype=f64", 1e-3),
        (Dtype::F16, "", 3e-2),
        (Dtype::Bf16, "statistic_dtype=f64 soap_form=exact", 1e-1),
    ] {
        let off = distance(&run(dtype, options), &expected) / size;
        println!("{dtype:?} '{options}': {off:.1e}");
        assert!(off < tolerance, "{dtype:?} '{options}': {off:e}");
    }
}

#[test]
fn a_decomposition_that_fails_leaves_adam() {
    let mut broken = Run::new("soap", "inject_fault=evd_all", &matrix(&[6, 4]));
    let mut adam = Run::new("soap", "max_precond_dim=1", &matrix(&[6, 4]));
    broken.steps(20);
    adam.steps(20);
    let stats = broken.model.stats();
    assert_eq!((stats.evd_calls, stats.fallback_stale, stats.failed_evds), (0, 8, 8));
    assert!(distance(&broken.values(), &adam.values()) < 1e-12);
    for fault in ["evd_chosen", "evd_nonorthogonal", "evd_double"] {
        let mut run = Run::new("soap", &format!("inject_fault={fault}"), &matrix(&[5, 5]));
        let mut whole = Run::new("soap", "", &matrix(&[5, 5]));
        run.steps(20);
        whole.steps(20);
        assert_eq!(run.model.stats().evd_calls, 8, "{fault}");
        assert!(distance(&run.values(), &whole.values()) < 1e-9, "{fault}");
    }
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing() {
    let mut run = Run::new("soap", "nonfinite=skip", &matrix(&[5, 4]));
    run.steps(7);
    let (before, state) = (run.values(), run.model.statistics());
    let mut values = run.gradients()[0].values();
    values[3] = f64::NAN;
    let gradient = [Some(run.specs[0].tensor(&values))];
    assert_eq!(run.model.try_step(&mut run.params, &gradient, StepWith::default()), Ok(true));
    assert_eq!(run.values(), before);
    assert_eq!(run.model.factor((0, 0, 0)).checks, 2, "{state}");
}

#[test]
fn what_soap_does_not_have_is_refused_by_name() {
    let config = configuration("reference", "preconditioner=soap").unwrap();
    let failure = Model::create(&config, &matrix(&[4, 4])).err().unwrap();
    assert!(failure.message.contains("the preset soap"), "{}", failure.message);

    let mut run = Run::new("soap", "max_precond_dim=6", &matrix(&[4, 7]));
    run.steps(3);
    let read = |axis: i64, what: i32| {
        let (mut values, mut count) = (vec![0.0; 49], 0);
        let (handle, to) = (run.model.handle(), values.as_mut_ptr());
        // SAFETY: the buffer has room for a side of seven.
        checked(|error| unsafe { foam_factor_read(handle, 0, 0, axis, what, to, 49, &mut count, error) })
    };
    for (axis, what) in [(0, FOAM_FACTOR_INVERSE_ROOT), (0, FOAM_FACTOR_SPECTRUM), (1, FOAM_FACTOR_BASIS)] {
        let failure = read(axis, what).unwrap_err();
        assert!(failure.message.contains("has no"), "{}", failure.message);
        assert_eq!(failure.status, FOAM_INVALID_ARGUMENT);
    }
    let mut gap = 0.0;
    // SAFETY: a live handle and a place for one number.
    let failure =
        checked(|error| unsafe { foam_exact_gap(run.model.handle(), 0, 0, 0, &mut gap, error) }).unwrap_err();
    assert!(failure.message.contains("preconditioner = shampoo"), "{}", failure.message);
}
