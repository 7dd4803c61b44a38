//! What the numbers of a run mean, whatever the shapes and the gradients are: the statistics are their definitions,
//! the inverse root is one, and nothing depends on the basis, on how a model is cut, or on the units of a
//! gradient.

use crate::support::matrix::{compose, difference, distance, norm, power};
use crate::support::model::{Model, Place, Spec, StepWith};
use crate::support::random::Random;
use crate::support::tensor::Tensor;
use foam::abi::{
    FOAM_FACTOR_BASIS, FOAM_FACTOR_INVERSE_ROOT, FOAM_FACTOR_SPECTRUM, FOAM_FACTOR_STATISTIC,
    foam_factor_info,
};
use ndarray::{Array1, Array2};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};

fn seeded(cases: u32) -> Config {
    Config { cases, failure_persistence: None, rng_seed: RngSeed::Fixed(2), ..Config::default() }
}

/// Gradients over three decades whose basis turns a little at every step.
fn drifting(random: &mut Random, rows: usize, cols: usize, steps: usize) -> Vec<Array2<f64>> {
    let sizes = Array1::from_shape_simple_fn(rows, || 10f64.powf(-random.within(0.0, 3.0)));
    let mut basis = random.orthogonal(rows);
    let step = |_| {
        let small = random.orthogonal(rows) * 0.1;
        basis = &basis + &basis.dot(&small);
        (&basis * &sizes).dot(&random.matrix(rows, cols))
    };
    (0..steps).map(step).collect()
}

fn tensor(matrix: &Array2<f64>) -> Tensor {
    let (rows, cols) = matrix.dim();
    Tensor::f64(&[rows as i64, cols as i64], &matrix.iter().copied().collect::<Vec<_>>())
}

fn shape(matrix: &Array2<f64>) -> [i64; 2] {
    [matrix.nrows() as i64, matrix.ncols() as i64]
}

/// Eigenvectors as columns, and eigenvalues, as a factor has them in use.
fn in_use(model: &Model, place: Place) -> (Array2<f64>, Array1<f64>) {
    let rows = model.matrix(place, FOAM_FACTOR_BASIS);
    (rows.reversed_axes(), Array1::from_vec(model.read(place, FOAM_FACTOR_SPECTRUM)))
}

/// RC, α and h from their definitions, in the order of the formulas and with inverse square roots as matrices.
fn defined(statistic: &Array2<f64>, q: &Array2<f64>, d: &Array1<f64>, epsilon: f64, p: f64) -> [f64; 3] {
    let stale = compose(q, d);
    let whitener = compose(q, &d.mapv(|d| (d + epsilon).powf(-0.5)));
    let relative_change = norm(&whitener.dot(&(statistic - &stale)).dot(&whitener));
    let root = d.mapv(|d| (d + epsilon).powf(-1.0 / p));
    let alpha = root.fold(0.0f64, |most, x| most.max(*x)) / root.dot(&root).sqrt();
    [relative_change, alpha, alpha * relative_change / p]
}

proptest! {
    #![proptest_config(seeded(300))]

    #[test]
    fn the_proxy_is_its_definition(
        rows in 1..11usize, cols in 1..11usize, seed: u64, bias_correction: bool,
        p in prop::sample::select(vec![1.0, 2.0, 2.5, 4.0]), beta2 in 0.7..1.0f64, tau in 0.05..1.0f64,
    ) {
        let options = format!(
            "policy=foam check_period=2 beta2={beta2} bias_correction={bias_correction} root={p} tau={tau} \
             epsilon=1e-7 epsilon_max=1e-4"
        );
        let mut random = Random::new(seed);
        let gradients = drifting(&mut random, rows, cols, 16);
        let mut model = Model::new("paper", &options, &[Spec::new("w", &shape(&gradients[0]))]);
        let mut params = [tensor(&random.matrix(rows, cols))];
        for (step, gradient) in gradients.iter().enumerate() {
            let before: Vec<_> = [0, 1].map(|axis| (in_use(&model, (0, 0, axis)), model.factor((0, 0, axis)))).into();
            model.step(&mut params, &[tensor(gradient)]);
            for (axis, ((q, d), old)) in before.iter().enumerate() {
                let place = (0, 0, axis as i64);
                let info = model.factor(place);
                if info.proxy_calls == old.proxy_calls {
                    continue;
                }
                let t = step as i32 + 1;
                let correction = if bias_correction { 1.0 - beta2.powi(t) } else { 1.0 };
                let statistic = model.matrix(place, FOAM_FACTOR_STATISTIC) / correction;
                let expected = defined(&statistic, q, d, old.epsilon, p);
                let got = [info.relative_change, info.alpha, info.proxy];
                for (got, expected) in got.iter().zip(expected) {
                    prop_assert!((got - expected).abs() <= 1e-7 * expected + 1e-9, "{got} {expected} at step {t}");
                }
            }
        }
        prop_assert!(model.stats().proxy_calls > 0);
    }

    #[test]
    fn the_inverse_root_undoes_the_damped_statistic(
        rows in 1..10usize, cols in 1..10usize, seed: u64,
        p in prop::sample::select(vec![1.0, 2.0, 2.5, 3.0, 4.0, 7.3]),
        multiplier in prop::sample::select(vec![1.0, 0.5, 1.82]), epsilon in -5.0..-2.0f64, kept: bool,
    ) {
        let epsilon = 10f64.powf(epsilon);
        let options = format!(
            "policy=stale check_period=1 beta2=0.9 root={p} exponent_multiplier={multiplier} epsilon={epsilon} \
             keep_inverse_root={kept}"
        );
        let mut random = Random::new(seed);
        let gradients = drifting(&mut random, rows, cols, 4);
        let mut model = Model::new("paper", &options, &[Spec::new("w", &shape(&gradients[0]))]);
        let mut params = [tensor(&random.matrix(rows, cols))];
        gradients.iter().for_each(|gradient| model.step(&mut params, &[tensor(gradient)]));
        for axis in 0..2 {
            let (q, d) = in_use(&model, (0, 0, axis));
            let statistic = model.matrix((0, 0, axis), FOAM_FACTOR_STATISTIC);
            prop_assert!(distance(&compose(&q, &d), &statistic) < 1e-12);
            let identity = Array2::eye(q.nrows());
            prop_assert!(distance(&q.t().dot(&q), &identity) < 1e-12);
            let undo = power(&model.matrix((0, 0, axis), FOAM_FACTOR_INVERSE_ROOT), p / multiplier);
            let product = undo.dot(&(&statistic + &(&identity * epsilon)));
            let off = distance(&product, &identity);
            prop_assert!(off < 1e-7, "‖P^p·(L + ε) − I‖ = {off:.1e}");
        }
    }

    #[test]
    fn a_rotated_gradient_gives_the_rotated_run(
        rows in 1..9usize, cols in 1..9usize, seed: u64,
        policy in prop::sample::select(vec!["foam", "foam_certified", "sandwich", "foam_fixed_epsilon", "stale"]),
    ) {
        let options = format!("policy={policy} check_period=3 beta2=0.9 tau=0.3 epsilon=1e-5 epsilon_max=1e-2 lr=0.1");
        let mut random = Random::new(seed);
        let gradients = drifting(&mut random, rows, cols, 30);
        let start = random.matrix(rows, cols);
        let (u, v) = (random.orthogonal(rows), random.orthogonal(cols));
        let run = |turn: &dyn Fn(&Array2<f64>) -> Array2<f64>| {
            let mut model = Model::new("paper", &options, &[Spec::new("w", &shape(&start))]);
            let mut params = [tensor(&turn(&start))];
            gradients.iter().for_each(|gradient| model.step(&mut params, &[tensor(&turn(gradient))]));
            (Array2::from_shape_vec((rows, cols), params[0].values()).unwrap(), model.factors())
        };
        let turn = |x: &Array2<f64>| u.dot(x).dot(&v);
        let (plain, statistics) = run(&|x| x.clone());
        let (turned, turned_statistics) = run(&turn);
        let off = distance(&turned, &turn(&plain));
        prop_assert!(off < 1e-8, "the parameters differ by {off:.1e}");
        for (a, b) in statistics.iter().zip(&turned_statistics) {
            prop_assert_eq!(counters(a), counters(b));
            for (a, b) in [(a.epsilon, b.epsilon), (a.proxy, b.proxy), (a.gap_bound, b.gap_bound)] {
                prop_assert!((a - b).abs() <= 1e-6 * b.abs() || (a.is_nan() && b.is_nan()), "{} {}", a, b);
            }
        }
    }

    #[test]
    fn blocks_evolve_as_parameters_of_their_own(
        rows in 5..14usize, cols in 5..14usize, seed: u64,
        grafting in prop::sample::select(vec!["none", "sgd", "adam"]), normalized_grafting: bool, momentum: bool,
        even: bool,
    ) {
        // Even pieces are multiples of 16 where the limit allows it: 24 is 16 + 8 there, and 20 + 4 else.
        let (limit, rows, cols) = if even { (20, 4 * rows, 4 * cols) } else { (4, rows, cols) };
        let side = |length: usize| match even {
            true => limit.min(length.div_ceil(length.div_ceil(limit)).next_multiple_of(16)),
            false => limit,
        };
        let (tall, wide) = (side(rows), side(cols));
        let options = format!(
            "max_factor_dim={limit} even_blocks={even} merge_dims=false check_period=3 beta2=0.9 tau=0.3 epsilon=1e-5 epsilon_max=1e-2 \
             grafting={grafting} normalized_grafting={normalized_grafting} momentum={}",
            if momentum { 0.9 } else { 0.0 }
        );
        let mut random = Random::new(seed);
        let corners: Vec<_> =
            (0..rows).step_by(tall).flat_map(|i| (0..cols).step_by(wide).map(move |j| (i, j))).collect();
        let pieces = |whole: &Array2<f64>| -> Vec<Tensor> {
            let piece = |(i, j): &(usize, usize)| {
                let (i_end, j_end) = ((i + tall).min(rows), (j + wide).min(cols));
                tensor(&whole.slice(ndarray::s![*i..i_end, *j..j_end]).to_owned())
            };
            corners.iter().map(piece).collect()
        };
        let gradients = drifting(&mut random, rows, cols, 14);
        let start = random.matrix(rows, cols);
        let mut whole = Model::new("reference", &options, &[Spec::new("w", &shape(&start))]);
        let mut params = [tensor(&start)];
        let mut parts = pieces(&start);
        let specs: Vec<_> = parts.iter().enumerate().map(|(i, p)| Spec::new(&format!("w{i}"), &p.shape)).collect();
        let mut cut = Model::new("reference", &options, &specs);
        for gradient in &gradients {
            whole.step(&mut params, &[tensor(gradient)]);
            cut.step(&mut parts, &pieces(gradient));
        }
        let expected = pieces(&Array2::from_shape_vec((rows, cols), params[0].values()).unwrap());
        if grafting == "none" {
            prop_assert_eq!(&parts, &expected);
        }
        // The grafted length is a sum that is taken row by row in a block, in one run in a whole parameter.
        for (part, expected) in parts.iter().zip(&expected) {
            let off = difference(&part.values(), &expected.values());
            prop_assert!(off < 1e-13, "{off:.1e}");
        }
        for (a, b) in whole.factors().iter().zip(&cut.factors()) {
            prop_assert_eq!(a.block, b.param_index);
            let place = |info: &foam_factor_info| foam_factor_info { block: 0, param_index: 0, ..*info };
            prop_assert_eq!(format!("{:?}", place(a)), format!("{:?}", place(b)));
        }
    }
}

fn counters(info: &foam_factor_info) -> [u64; 7] {
    let i = info;
    let [a, b, c] = [i.checks, i.evd_calls, i.reuse_calls];
    [a, b, c, i.proxy_calls, i.epsilon_updates, i.cap_refreshes, i.last_refresh]
}

/// A run with fixed gradients; its parameter and the sides of its factors.
fn run(options: &str, spec: Spec, scale: f64, with: StepWith) -> (Tensor, Vec<i64>) {
    let mut random = Random::new(11);
    let base = "check_period=3 beta2=0.9 merge_dims=false epsilon=1e-6 epsilon_max=1e-3";
    let mut model = Model::new("reference", &format!("{base} {options}"), std::slice::from_ref(&spec));
    let mut params = [spec.tensor(&random.normals(spec.elements()))];
    for _ in 0..14 {
        let gradient: Vec<f64> = random.normals(spec.elements()).iter().map(|x| x * scale).collect();
        model.try_step(&mut params, &[Some(spec.tensor(&gradient))], with).unwrap();
    }
    let [param] = params;
    (param, model.factors().iter().map(|f| f.dim).collect())
}

fn plain(options: &str, shape: &[i64]) -> (Tensor, Vec<i64>) {
    run(options, Spec::new("w", shape), 1.0, StepWith::default())
}

#[test]
fn merged_dimensions_are_the_merged_shape() {
    let cases: [(&[i64], i64, &[i64]); 7] = [
        (&[2, 1, 3, 4], 6, &[6, 4]),
        (&[2, 3, 4], 24, &[24]),
        (&[5, 2, 3], 6, &[5, 6]),
        (&[1, 4, 1, 7], 7, &[4, 7]),
        (&[2, 2, 2, 2, 2], 8, &[8, 4]),
        (&[1, 1], 8, &[1]),
        (&[], 8, &[1]),
    ];
    for (shape, limit, merged) in cases {
        let (a, sides) = plain(&format!("merge_dims=true max_factor_dim={limit}"), shape);
        let (b, expected) = plain(&format!("merge_dims=false max_factor_dim={limit}"), merged);
        assert_eq!((a.elements(), sides), (b.elements(), expected), "{shape:?}");
    }
}

#[test]
fn a_learning_rate_means_the_same_wherever_it_is_given() {
    let spec = Spec::new("w", &[6, 5]);
    let with = |lr| StepWith { lr, ..StepWith::default() };
    let (expected, _) = run("lr=0.5", spec.clone(), 1.0, StepWith::default());
    assert_eq!(run("lr=17", spec.clone(), 1.0, with(0.5)).0, expected);
    let halved = Spec { lr_scale: 0.125, ..spec.clone() };
    assert_eq!(run("lr=4", halved.clone(), 1.0, StepWith::default()).0, expected);
    assert_eq!(run("lr=17", halved, 1.0, with(4.0)).0, expected);
    assert_ne!(run("lr=0.25", spec.clone(), 1.0, StepWith::default()).0, expected);
    let (still, _) = run("lr=0.5", spec.clone(), 1.0, with(0.0));
    assert_eq!(still, spec.tensor(&Random::new(11).normals(30)));
}

#[test]
fn a_weight_decay_scale_multiplies_the_weight_decay() {
    let scaled = |weight_decay_scale| Spec { weight_decay_scale, ..Spec::new("w", &[6, 5]) };
    for decoupled in [true, false] {
        let run = |decay: f64, scale| {
            let options = format!("lr=0.1 weight_decay={decay} decoupled_weight_decay={decoupled}");
            run(&options, scaled(scale), 1.0, StepWith::default()).0
        };
        assert_eq!(run(0.25, 0.5), run(0.125, 1.0));
        assert_eq!(run(0.25, 0.0), run(0.0, 1.0));
        assert_ne!(run(0.25, 1.0), run(0.0, 1.0));
    }
}

#[test]
fn a_gradient_scale_undoes_a_loss_scale_exactly() {
    let scaled = |scale: f64| StepWith { grad_scale: 1.0 / scale, ..StepWith::default() };
    for options in ["", "grafting=none", "weight_decay=0.1 decoupled_weight_decay=false"] {
        let spec = Spec::new("w", &[7, 4]);
        let (expected, _) = run(options, spec.clone(), 1.0, StepWith::default());
        for scale in [2.0, 1024.0, 2f64.powi(-20)] {
            assert_eq!(run(options, spec.clone(), scale, scaled(scale)).0, expected, "{options} {scale}");
        }
        let off = difference(&run(options, spec.clone(), 1e3, scaled(1e3)).0.values(), &expected.values());
        assert!(off < 1e-8, "{options}: {off:.1e}");
        assert_ne!(run(options, spec, 4.0, StepWith::default()).0, expected);
    }
}

#[test]
fn units_of_the_gradient_do_not_matter_when_the_damping_has_them_too() {
    for exponent in [-30, 10, 20] {
        let unit = 2f64.powi(exponent);
        let options = |unit: f64| {
            let square = unit * unit;
            format!(
                "epsilon={} epsilon_max={} grafting_epsilon={}",
                1e-6 * square,
                1e-3 * square,
                1e-9 * unit
            )
        };
        let spec = Spec::new("w", &[6, 5]);
        let (expected, _) = run(&options(1.0), spec.clone(), 1.0, StepWith::default());
        let (got, _) = run(&options(unit), spec, unit, StepWith::default());
        let off = difference(&got.values(), &expected.values());
        assert!(off < 1e-9, "2^{exponent}: {off:.1e}");
    }
}

#[test]
fn a_grafting_only_parameter_takes_the_step_of_the_policy_of_that_name() {
    for grafting in ["sgd", "adagrad", "rmsprop", "adam"] {
        let only = Spec { grafting_only: true, ..Spec::new("w", &[6, 5]) };
        let (flagged, factors) = run(&format!("grafting={grafting}"), only, 1.0, StepWith::default());
        let (expected, _) = plain(&format!("grafting={grafting} policy=grafting_only"), &[6, 5]);
        assert_eq!((flagged, factors), (expected, vec![]), "{grafting}");
    }
}

/// Loshchilov & Hutter, algorithm 2, with a plain learning rate.
#[test]
fn grafting_only_with_adam_is_adamw() {
    let (lr, beta1, beta2, epsilon, decay) = (0.01, 0.9, 0.99, 1e-8, 0.1);
    let options = format!(
        "policy=grafting_only grafting=adam lr={lr} beta1={beta1} grafting_beta2={beta2} grafting_epsilon={epsilon} \
         weight_decay={decay}"
    );
    let spec = Spec::new("w", &[9, 7]);
    let mut model = Model::new("reference", &options, std::slice::from_ref(&spec));
    let mut random = Random::new(5);
    let mut w = random.normals(63);
    let (mut m, mut v) = (vec![0.0; 63], vec![0.0; 63]);
    let mut params = [spec.tensor(&w)];
    for t in 1..=60 {
        let g = random.normals(63);
        model.step(&mut params, &[spec.tensor(&g)]);
        for i in 0..63 {
            m[i] = beta1 * m[i] + (1.0 - beta1) * g[i];
            v[i] = beta2 * v[i] + (1.0 - beta2) * g[i] * g[i];
            let (m_hat, v_hat): (f64, f64) = (m[i] / (1.0 - beta1.powi(t)), v[i] / (1.0 - beta2.powi(t)));
            w[i] -= lr * (m_hat / (v_hat.sqrt() + epsilon) + decay * w[i]);
        }
        let off = difference(&params[0].values(), &w);
        assert!(off < 1e-13, "step {t}: {off:.1e}");
    }
}
