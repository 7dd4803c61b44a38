//! The library beside the naive optimizer of `reference.rs`, on the same gradients.

use super::matrix::difference;
use super::model::{Model, Spec};
use super::random::Random;
use super::reference::{Count, Options, Reference};
use super::tensor::Tensor;

/// Gradients whose basis changes now and then, with row sizes over two decades.
fn gradients(random: &mut Random, dims: &[usize], steps: usize) -> Vec<Vec<f64>> {
    let rest: usize = dims[1..].iter().product();
    let mut basis = random.orthogonal(dims[0]);
    let sizes: Vec<f64> = (0..dims[0]).map(|_| 10f64.powf(-random.within(0.0, 2.0))).collect();
    let gradient = |t: usize| {
        if t % 11 == 10 {
            basis = random.orthogonal(dims[0]);
        }
        let mut inner = random.matrix(dims[0], rest);
        inner.rows_mut().into_iter().zip(&sizes).for_each(|(mut row, size)| row *= *size);
        basis.dot(&inner).into_iter().collect()
    };
    (0..steps).map(gradient).collect()
}

/// Runs both on the same gradients for some steps, the library with `further` options.
pub fn both_agree_with(
    further: &str,
    steps: usize,
    options: &Options,
    dims: &[usize],
    seed: u64,
    tolerance: f64,
) -> (u64, u64) {
    let shape: Vec<i64> = dims.iter().map(|n| *n as i64).collect();
    let mut random = Random::new(seed);
    let mut expected = random.normals(dims.iter().product());
    let mut model =
        Model::new("reference", &format!("{} {further}", options.text()), &[Spec::new("w", &shape)]);
    let mut reference = Reference::new(options.clone(), dims);
    let mut params = [Tensor::f64(&shape, &expected)];
    for (t, gradient) in gradients(&mut random, dims, steps).iter().enumerate() {
        model.step(&mut params, &[Tensor::f64(&shape, gradient)]);
        reference.step(&mut expected, gradient);
        let off = difference(&params[0].values(), &expected);
        assert!(off <= tolerance, "step {}: the parameters differ by {off:.2e}", t + 1);
    }
    let near = |a: f64, b: f64, noise: f64| {
        (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-6 * b.abs().max(1e-6) + noise
    };
    for (got, factor) in model.factors().iter().zip(&reference.factors) {
        let count = Count {
            checks: got.checks,
            evd_calls: got.evd_calls,
            reuse_calls: got.reuse_calls,
            proxy_calls: got.proxy_calls,
            epsilon_updates: got.epsilon_updates,
            cap_refreshes: got.cap_refreshes,
            residual_calls: got.residual_calls,
            last_refresh: got.last_refresh,
            delayed_checks: got.delayed_checks,
        };
        assert_eq!(count, factor.count, "axis {}", got.axis);
        assert_eq!(got.pending_since, factor.pending.as_ref().map_or(0, |(since, _)| *since));
        // What rounding makes of a statistic that has not changed.
        let noise = 1e-15 * got.eigenvalue_max / got.epsilon;
        let gauges = [
            (got.epsilon, factor.epsilon, 0.0),
            (got.proxy, factor.proxy, noise),
            (got.relative_change, factor.relative_change, noise),
            (got.alpha, factor.alpha, 0.0),
            (got.residual, factor.residual, 0.0),
        ];
        assert!(gauges.iter().all(|(a, b, noise)| near(*a, *b, *noise)), "axis {}: {gauges:?}", got.axis);
    }
    let stats = model.stats();
    (stats.evd_calls, stats.reuse_calls)
}

/// A run of every policy that the reference has, with everything else that a parameter can carry switched on.
pub fn plain(policy: &'static str) -> Options {
    Options {
        policy,
        cadence: "reference",
        check_period: 3,
        start_step: 4,
        bias_correction: true,
        root: 0.0,
        exponent_multiplier: 1.0,
        beta1: 0.9,
        beta2: 0.95,
        epsilon_left: 1e-5,
        epsilon_right: 1e-5,
        epsilon_max: 1e-3,
        tau: 0.2,
        residual_threshold: 0.3,
        grafting: "adam",
        grafting_beta2: 0.95,
        grafting_epsilon: 1e-8,
        normalized_grafting: false,
        momentum: 0.5,
        nesterov: true,
        ema_momentum: true,
        nadam: false,
        weight_decay: 0.01,
        decoupled_weight_decay: true,
        lr: 0.02,
        negative_eigenvalues: "shift",
        statistics_period: 1,
        keep_inverse_root: true,
        refresh_delay: 0,
    }
}
