//! The units of the loss do not matter: gradients times 2^k with every ε times 2^2k is the same run.

use foam::{Branch, Config, Element, Optimizer, Param};

/// Reproducible noise in (−1, 1), with rows of falling size so that the spectra have range.
fn gradient(rows: usize, cols: usize, step: u64) -> Vec<f64> {
    let mut state = (step + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..rows * cols)
        .map(|i| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let x = (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
            x * 0.9f64.powi((i / cols) as i32)
        })
        .collect()
}

/// Proxy and branch of every factor after every step, and failed decompositions.
fn run<T: Element + Default>(of: fn(f64) -> T, exponent: i32) -> (Vec<(f64, Branch)>, u64) {
    let (rows, cols) = (60, 90);
    let square = 4f64.powi(exponent);
    let config = Config {
        check_period: 2,
        beta2: 0.9,
        epsilon: 1e-3 * square,
        epsilon_max: 4e-3 * square,
        tau: 0.4,
        merge_dims: false,
        ..Config::reference()
    };
    let mut optimizer = Optimizer::new(config, [Param::new("w", &[rows, cols]).dtype(T::DTYPE)]).unwrap();
    let mut weights = vec![T::default(); rows * cols];
    let mut seen = Vec::new();
    for step in 0..24 {
        let scaled: Vec<T> = gradient(rows, cols, step).iter().map(|x| of(x * 2f64.powi(exponent))).collect();
        optimizer.step([&mut weights], [&scaled]).unwrap();
        seen.extend(optimizer.factors().unwrap().iter().map(|f| (f.proxy, f.last_branch)));
    }
    let failed = optimizer.stats().unwrap().counters.failed_evds;
    (seen, failed)
}

fn check<T: Element + Default>(of: fn(f64) -> T, exponents: &[i32], tolerance: f64) {
    let (expected, failed) = run(of, 0);
    assert_eq!(failed, 0);
    assert!(expected.iter().any(|(_, branch)| *branch == Branch::EvdCap));
    assert!(expected.iter().any(|(_, branch)| *branch == Branch::ReuseRaised));
    for exponent in exponents {
        let (seen, failed) = run(of, *exponent);
        assert_eq!(failed, 0, "2^{exponent}: an eigendecomposition failed");
        for (i, (one, other)) in expected.iter().zip(&seen).enumerate() {
            let near = (one.0.is_nan() && other.0.is_nan()) || (one.0 - other.0).abs() <= tolerance * one.0;
            assert!(near && one.1 == other.1, "2^{exponent}, reading {i}: {one:?} against {other:?}");
        }
    }
}

#[test]
fn f32_runs_do_not_depend_on_the_units_of_the_gradient() {
    check(|x| x as f32, &[-20, -12, -8, -4, 4, 8, 20], 1e-4);
}

#[test]
fn f64_runs_do_not_depend_on_the_units_of_the_gradient() {
    check(|x| x, &[-60, -12, -4, 4, 12, 60], 1e-10);
}
