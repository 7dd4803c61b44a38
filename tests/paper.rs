//! The paper's own numbers, out of the real engine: the counterexample of appendix I and theorem H.
//!
//! A chosen pair of matrices is reached with two steps. The left statistic of an n×n parameter is an average,
//! L₁ = (1−β)·G₁G₁ᵀ and L₂ = β·L₁ + (1−β)·G₂G₂ᵀ, so G₁ and G₂ are Cholesky factors of what is wanted; the second
//! one exists if β is small enough. With a check at each step and a policy that never refreshes again, the second
//! check measures L₂ against the basis of L₁.

use foam::{Config, DType, FactorStats, Optimizer, Param};
use ndarray::Array2;
use serde_json::Value;

/// Small enough to be nothing beside any eigenvalue here; the options refuse a zero.
const NO_DAMPING: &str = "1e-300";

fn data() -> Value {
    serde_json::from_str(include_str!("golden/appendix_I_H.json")).unwrap()
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("no number '{key}' in {row}"))
}

fn matrix(rows: &Value) -> Array2<f64> {
    let n = rows.as_array().unwrap().len();
    Array2::from_shape_fn((n, n), |(i, j)| rows[i][j].as_f64().unwrap())
}

/// A factor G with G·Gᵀ = `a`, if `a` is positive definite.
fn factor(a: &Array2<f64>) -> Option<Array2<f64>> {
    let n = a.nrows();
    let mut l = Array2::<f64>::zeros((n, n));
    for (i, j) in (0..n).flat_map(|i| (0..=i).map(move |j| (i, j))) {
        let rest = a[(i, j)] - (0..j).map(|k| l[(i, k)] * l[(j, k)]).sum::<f64>();
        if i == j && rest <= 0.0 {
            return None;
        }
        l[(i, j)] = if i == j { rest.sqrt() } else { rest / l[(j, j)] };
    }
    Some(l)
}

/// What the engine says about the drift from `before` to `after`, and the true gap.
struct Measured {
    info: FactorStats,
    gap: f64,
}

/// Two steps: G₁ makes the statistic `before`, G₂ then makes it `after`.
fn drift(before: &Array2<f64>, after: &Array2<f64>, p: f64, options: &[(&str, &str)]) -> Measured {
    let n = before.nrows();
    // after − β·before must be positive definite; half of the largest power of two for which it is leaves room.
    let rest = |beta: f64| {
        Array2::from_shape_fn((n, n), |(i, j)| (after[(i, j)] - beta * before[(i, j)]) / (1.0 - beta))
    };
    let beta = (1..60).map(|k| 0.5f64.powi(k)).find(|b| factor(&rest(*b)).is_some());
    let beta = beta.expect("the fresh matrix is positive definite") / 2.0;
    let first = factor(&Array2::from_shape_fn((n, n), |(i, j)| before[(i, j)] / (1.0 - beta))).unwrap();
    let second = factor(&rest(beta)).unwrap();
    two_steps(&first, &second, beta, p, options)
}

fn two_steps(
    first: &Array2<f64>,
    second: &Array2<f64>,
    beta: f64,
    p: f64,
    options: &[(&str, &str)],
) -> Measured {
    let n = first.nrows();
    let (beta, p) = (format!("{beta:?}"), format!("{p:?}"));
    // A fixed epsilon and a tolerance that nothing passes: the stale basis is kept and nothing is steered.
    let fixed = [("policy", "foam_fixed_epsilon"), ("tau", "1e9"), ("epsilon", NO_DAMPING)];
    let common = [("check_period", "1"), ("beta2", &beta), ("root", &p), ("lr", "0"), ("num_threads", "1")];
    let mut config = Config::preset("paper").unwrap();
    for (key, value) in fixed.iter().chain(&common).chain(options) {
        config.set(key, value).unwrap();
    }
    let mut optimizer = Optimizer::new(config, [Param::new("w", &[n, n]).dtype(DType::F64)]).unwrap();
    let mut weights = vec![0.0; n * n];
    for gradient in [first, second] {
        let rows: Vec<f64> = (0..n * n).map(|at| gradient[(at / n, at % n)]).collect();
        optimizer.step([&mut weights], [&rows]).unwrap();
    }
    let info = optimizer.factors().unwrap()[0];
    let counts = (info.counters.checks, info.counters.evd_calls, info.counters.reuse_calls);
    assert_eq!(counts, (2, 1, 1), "the stale basis was not kept");
    Measured { info, gap: optimizer.exact_gap(info.id).unwrap() }
}

#[track_caller]
fn assert_near(what: &str, got: f64, expected: f64, tolerance: f64) {
    let error = (got - expected).abs();
    assert!(
        error <= tolerance,
        "{what}: got {got:e}, expected {expected:e}, off by {error:.1e} > {tolerance:.1e}"
    );
}

/// The library's own proven bound holds wherever it reports one.
#[track_caller]
fn assert_bounded(measured: &Measured) {
    let (gap, bound) = (measured.gap, measured.info.gap_bound);
    assert!(bound.is_finite(), "no bound reported");
    assert!(gap <= bound * (1.0 + 1e-9) + 1e-13, "gap {gap:e} > bound {bound:e}");
}

/// L_δ = [[δ, c√δ], [c√δ, 1]].
fn appendix_i(c: f64, delta: f64) -> [Array2<f64>; 2] {
    let off = c * delta.sqrt();
    let full = [[delta, off], [off, 1.0]];
    let stale = [[delta, 0.0], [0.0, 1.0]];
    [stale, full].map(|rows| Array2::from_shape_fn((2, 2), |(i, j)| rows[i][j]))
}

/// With basis I and the stale matrix diag(L_δ): RC, α, h and the true error of every row.
#[test]
fn appendix_i_has_the_papers_proxy_and_error() {
    let data = data();
    let rows = data["appendix_I"]["rows"].as_array().unwrap();
    for row in rows {
        let (c, delta) = (number(row, "c"), number(row, "delta"));
        let [stale, full] = appendix_i(c, delta);
        let measured = drift(&stale, &full, 2.0, &[]);
        let info = &measured.info;
        assert_near("RC", info.relative_change, number(row, "foam_rc"), 1e-12);
        assert_near("alpha", info.alpha, number(row, "foam_alpha"), 1e-12);
        assert_near("h", info.proxy, number(row, "foam_h"), 1e-12);
        // A symmetric eigensolver is exact to a few ulps of the largest eigenvalue (1 here), so the smallest one,
        // and with it the fresh inverse root, has a relative error of that size over λ_min.
        let error = number(row, "inv_root_rel_err");
        let rounding = 4.0 * f64::EPSILON / number(row, "lambda_min");
        assert_near("gap", measured.gap, error, (1e-12 + rounding) * (1.0 + error));
        assert_bounded(&measured);
    }
    assert_eq!(rows.len(), 24);
}

/// What the appendix is about: the error is larger than h, so h alone is no bound.
#[test]
fn appendix_i_is_a_case_that_the_proxy_underestimates() {
    let [stale, full] = appendix_i(0.99, 1e-6);
    let measured = drift(&stale, &full, 2.0, &[]);
    assert!(
        measured.info.proxy < 0.71 && measured.gap > 6.0,
        "h {}, gap {}",
        measured.info.proxy,
        measured.gap
    );
}

/// The off-diagonal residual goes to zero with δ while the error does not.
#[test]
fn appendix_i_has_the_papers_residual() {
    for row in data()["appendix_I"]["rows"].as_array().unwrap() {
        let [stale, full] = appendix_i(number(row, "c"), number(row, "delta"));
        let policy = [("policy", "diagonal_residual"), ("residual_threshold", "1")];
        let expected = number(row, "residual_full");
        let residual = drift(&stale, &full, 2.0, &policy).info.residual;
        assert_near("residual", residual, expected, 1e-12 * expected);
    }
}

/// h of every row, above the exact first-order change; for drift that only adds, above the true gap as well.
#[test]
fn theorem_h_bounds_the_first_order_change() {
    let data = data();
    let rows = data["theorem_H"]["rows"].as_array().unwrap();
    for row in rows {
        let (before, change) = (matrix(&row["A"]), matrix(&row["E"]));
        let after = &before + &change;
        let measured = drift(&before, &after, number(row, "p"), &[]);
        let info = &measured.info;
        // The drift is formed by cancellation: its rounding is that of the matrices, times their condition.
        let near = |what: &str, got: f64, key: &str| {
            let expected = number(row, key);
            assert_near(what, got, expected, 1e-9 * expected + 1e-13);
        };
        near("RC", info.relative_change, "RC");
        near("alpha", info.alpha, "alpha");
        near("h", info.proxy, "h");
        near("gap", measured.gap, "rel_actual");
        let first_order = number(row, "rel_first_order");
        assert!(first_order <= info.proxy * (1.0 + 1e-9), "first order {first_order:e} > h {:e}", info.proxy);
        if row["kind"] == "psd" {
            assert!(measured.gap <= info.proxy * (1.0 + 1e-9), "gap {:e} > h {:e}", measured.gap, info.proxy);
        }
        assert_bounded(&measured);
    }
    assert_eq!(rows.len(), 24);
}

/// A = 1, E = −0.9: an average that got no gradient. Here the library's bound is not only valid but exact.
#[test]
fn pure_decay_meets_the_proven_bound_with_equality() {
    let row = &data()["theorem_H"]["scalar_counterexample"];
    let one = Array2::from_shape_fn((1, 1), |(_, _)| (1.0f64 / 0.9).sqrt());
    let measured = two_steps(&one, &Array2::zeros((1, 1)), 0.1, 2.0, &[]);
    assert_near("h", measured.info.proxy, number(row, "h"), 1e-14);
    assert_near("gap", measured.gap, number(row, "rel_actual"), 1e-14);
    assert_near("bound", measured.info.gap_bound, measured.gap, 1e-13);
}

/// H(r) = (1−r^(−1/p))·√r/(r−1) is how much of its bound a small off-diagonal drift of diag(1, r) uses:
/// gap/h → p·H(r) ≤ 1.
#[test]
fn theorem_h_is_as_tight_as_its_function_says() {
    let data = data();
    let rows = data["theorem_H"]["H_function"]["rows"].as_array().unwrap();
    for row in rows {
        let (p, r, h) = (number(row, "p"), number(row, "r"), number(row, "H"));
        // The drift must be small beside H itself: what is of second order changes the diagonal by its square.
        let off = 0.01 * h * r.sqrt();
        let stale = Array2::from_shape_fn((2, 2), |(i, j)| if i != j { 0.0 } else { [1.0, r][i] });
        let full = Array2::from_shape_fn((2, 2), |(i, j)| if i != j { off } else { [1.0, r][i] });
        let measured = drift(&stale, &full, p, &[]);
        // As in appendix I: the eigenvalue 1 is exact to a few ulps of r.
        let tolerance = 1e-3 + 4.0 * f64::EPSILON * r / measured.gap;
        let used = measured.gap / measured.info.proxy;
        assert_near("gap / h", used, p * h, tolerance * p * h);
        assert_bounded(&measured);
    }
    assert_eq!(rows.len(), 20);
}
