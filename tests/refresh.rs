//! When and how bases are refreshed: schedules with corrections in between, and QR steps instead of eigendecompositions.

use crate::support::model::{Model, Place, Spec};
use crate::support::random::Random;
use crate::support::tensor::Tensor;
use foam::abi::*;
use ndarray::{Array1, Array2};

const AXES: [Place; 2] = [(0, 0, 0), (0, 0, 1)];

/// Gradients whose row space turns slowly and whose sizes span two decades, so that bases grow stale.
fn gradient(rows: usize, cols: usize, t: usize) -> Tensor {
    let mut random = Random::new((31 * t + rows) as u64);
    let size = |i: usize| 0.05 + (0.7 * i as f64 + 0.04 * t as f64).sin().powi(2);
    let mut values = random.matrix(rows, cols);
    values.rows_mut().into_iter().enumerate().for_each(|(i, mut row)| row *= size(i));
    Tensor::f64(&[rows as i64, cols as i64], &values.into_iter().collect::<Vec<f64>>())
}

/// Steps of a model of one matrix; `look` sees it after each of them.
fn run(
    preset: &str,
    options: &str,
    (rows, cols): (usize, usize),
    steps: usize,
    mut look: impl FnMut(u64, &Model),
) {
    let shape = [rows as i64, cols as i64];
    let mut model = Model::new(preset, options, &[Spec::new("w", &shape)]);
    let mut params = [Tensor::f64(&shape, &Random::new(5).normals(rows * cols))];
    for t in 1..=steps {
        model.step(&mut params, &[gradient(rows, cols, t)]);
        look(t as u64, &model);
    }
}

/// diag QᵀAQ of a factor, from its running statistic and the bias correction.
fn diagonal(model: &Model, place: Place, correction: f64) -> Array1<f64> {
    let (a, q) = (model.matrix(place, FOAM_FACTOR_STATISTIC), model.matrix(place, FOAM_FACTOR_BASIS));
    // One eigenvector per row.
    let h: Array2<f64> = q.dot(&a).dot(&q.t());
    h.diag().mapv(|x| (x / correction).max(0.0))
}

#[test]
fn a_correction_keeps_the_basis_and_takes_the_diagonal_between_scheduled_refreshes() {
    for policy in [
        "stale refresh_schedule=geometric correction_period=5",
        "sandwich refresh_schedule=geometric correction_period=5",
        "sandwich refresh_schedule=combined check_period=5",
    ] {
        let options = format!(
            "policy={policy} tau=1e6 epsilon=1e-4 epsilon_max=1e-4 refresh_growth=2 merge_dims=false beta2=0.9"
        );
        let (mut refreshes, mut corrections) = (Vec::new(), Vec::new());
        let mut bases: [Vec<f64>; 2] = Default::default();
        run("reference", &options, (6, 5), 41, |t, model| {
            let correction = 1.0 - 0.9f64.powi(t as i32);
            for (axis, place) in AXES.into_iter().enumerate() {
                let info = model.factor(place);
                let basis = model.read(place, FOAM_FACTOR_BASIS);
                if info.last_refresh != t {
                    assert_eq!(basis, bases[axis], "{policy}: another basis at step {t}");
                } else if axis == 0 {
                    refreshes.push(t);
                }
                if info.last_check == t && info.last_refresh != t {
                    let expected = diagonal(model, place, correction);
                    let spectrum = model.read(place, FOAM_FACTOR_SPECTRUM);
                    for (got, expected) in spectrum.iter().zip(&expected) {
                        assert!((got - expected).abs() <= 1e-12 * info.eigenvalue_max, "{got} {expected}");
                    }
                    if axis == 0 {
                        corrections.push(t);
                    }
                }
                bases[axis] = basis;
            }
        });
        assert_eq!(refreshes, [1, 2, 4, 8, 16, 32], "{policy}");
        assert_eq!(corrections, [5, 10, 15, 20, 25, 30, 35, 40], "{policy}");
    }
}

#[test]
fn a_correction_makes_a_stale_operator_better() {
    let gaps = |options: &str| {
        let (mut sum, mut count) = (0.0, 0.0);
        run(
            "reference",
            &format!("policy=stale epsilon=1e-3 epsilon_max=1e-3 {options}"),
            (12, 9),
            80,
            |t, model| {
                if t > 20 && t % 10 == 9 {
                    sum += model.exact_gap(AXES[0]);
                    count += 1.0;
                }
            },
        );
        sum / count
    };
    let schedule = "refresh_schedule=geometric refresh_growth=2 merge_dims=false beta2=0.9";
    let (blind, corrected) = (gaps(schedule), gaps(&format!("{schedule} correction_period=1")));
    assert!(corrected < 0.9 * blind, "mean gap {corrected} with corrections, {blind} without");
}

#[test]
fn a_policy_without_refreshes_has_none_on_a_combined_schedule() {
    let options =
        "policy=foam_no_refresh refresh_schedule=combined check_period=5 refresh_growth=2 merge_dims=false";
    run("reference", options, (6, 5), 20, |t, model| {
        for place in AXES {
            let info = model.factor(place);
            let checks = [1, 2, 4, 5, 8, 10, 15, 16, 20].iter().filter(|step| **step <= t).count();
            assert_eq!((info.evd_calls, info.checks), (1, checks as _), "step {t}");
        }
    });
}

#[test]
fn runs_with_qr_steps_need_no_eigendecomposition() {
    for (tau, shape) in [(0.25, (24, 17)), (0.5, (40, 30)), (0.75, (33, 64))] {
        for dtype in ["f64", "f32"] {
            let options = format!(
                "refresh_method=qr tau={tau} statistic_dtype={dtype} check_period=5 beta2=0.95 merge_dims=false"
            );
            let mut last = None;
            run("default", &options, shape, 150, |t, model| {
                for place in AXES {
                    let info = model.factor(place);
                    if info.last_check == t {
                        let gap = model.exact_gap(place);
                        assert!(
                            gap <= info.gap_bound + 2e-3 && info.gap_bound <= tau,
                            "{gap} {}",
                            info.gap_bound
                        );
                    }
                }
                last = Some(model.stats());
            });
            let stats = last.unwrap();
            println!(
                "tau {tau}, {shape:?}, {dtype}: {} checks, {} refreshes by {} QR steps",
                stats.checks, stats.qr_refreshes, stats.qr_steps
            );
            assert_eq!((stats.evd_calls, stats.qr_fallbacks), (0, 0), "{options}");
            assert!(stats.qr_refreshes >= 2 && stats.reuse_calls > 0, "{stats:?}");
        }
    }
}

#[test]
fn qr_steps_take_statistics_of_zeros_diagonals_and_one_row() {
    for shape in [(1, 1), (1, 7), (5, 1), (4, 4)] {
        let dims = [shape.0 as i64, shape.1 as i64];
        for kind in 0..3 {
            let mut model = Model::new(
                "default",
                "refresh_method=qr check_period=2 precondition_1d=true merge_dims=false",
                &[Spec::new("w", &dims)],
            );
            let mut params = [Tensor::f64(&dims, &Random::new(3).normals(shape.0 * shape.1))];
            for t in 0..9 {
                let value = |k: usize| match kind {
                    0 => 0.0,
                    1 => f64::from(k.is_multiple_of(shape.1 + 1)) * (1.0 + t as f64),
                    _ => 1e-30,
                };
                let values: Vec<f64> = (0..shape.0 * shape.1).map(value).collect();
                model.step(&mut params, &[Tensor::f64(&dims, &values)]);
            }
            assert!(params[0].values().iter().all(|x| x.is_finite()));
            let stats = model.stats();
            assert_eq!((stats.evd_calls, stats.failed_evds), (0, 0), "{shape:?}, {kind}: {stats:?}");
        }
    }
}

#[test]
fn tracking_refreshes_unseen_while_most_checks_ask_for_it() {
    let tau = 0.1;
    let shape = [10i64, 8];
    let options = format!(
        "refresh_method=qr qr_track=true tau={tau} check_period=1 refresh_schedule=fixed beta2=0.5 merge_dims=false"
    );
    let mut model = Model::new("default", &options, &[Spec::new("w", &shape)]);
    let mut params = [Tensor::f64(&shape, &Random::new(5).normals(80))];
    let mut history = Vec::new();
    for t in 1..=100 {
        // Bases turn all the time, and then no more.
        let own = if t <= 40 { t } else { 40 };
        model.step(&mut params, &[gradient(10, 8, own)]);
        for place in AXES {
            let (info, gap) = (model.factor(place), model.exact_gap(place));
            assert!(gap <= info.gap_bound + 1e-6 && info.gap_bound <= tau, "{gap} at {t}: {info:?}");
            assert_eq!(info.checks, 1 + info.qr_tracked + info.proxy_calls, "unseen or sensed: {info:?}");
        }
        let info = model.factor(AXES[0]);
        history.push((info.qr_tracked, info.proxy_calls, info.recent_refreshes));
    }
    let (then, still, end) = (history[39], history[79], history[99]);
    println!("tracked, sensed, bits: {then:?} at 40, {still:?} at 80, {end:?} at 100");
    assert!(then.0 >= 15 && then.1 >= 8, "{then:?}");
    assert_eq!(then.2.count_ones(), 8, "every look found a refresh to be due: {then:?}");
    assert_eq!((end.0, end.2), (still.0, 0), "nothing is tracked that does not move: {still:?}, {end:?}");
    assert_eq!(model.stats().qr_tracked, model.factors().iter().map(|factor| factor.qr_tracked).sum::<u64>());
}
