//! The live diagnosis: a run for each finding, and runs without any.

use crate::support::random::Random;
use foam::ndarray::{Array2, Axis};
use foam::{Config, Finding, Level, Optimizer, Param};
use std::sync::{Arc, Mutex};

const SIDES: [usize; 2] = [12, 8];

/// `preset` with options as text.
fn config(preset: &str, options: &str) -> Config {
    let mut config = Config::preset(preset).expect("a known preset");
    for option in options.split_whitespace() {
        let (key, value) = option.split_once('=').expect("key=value");
        config.set(key, value).expect("a known option and a good value");
    }
    config
}

/// An optimizer whose warnings are collected.
fn heard(config: Config, params: Vec<Param>) -> (Optimizer, Arc<Mutex<Vec<String>>>) {
    let said = Arc::new(Mutex::new(Vec::new()));
    let listener = said.clone();
    let optimizer = Optimizer::with_log(config, params, move |level, line| {
        if level == Level::Warning {
            listener.lock().unwrap().push(line.to_string());
        }
    });
    (optimizer.expect("good options"), said)
}

/// Checks a run of random gradients: nothing is said before the twentieth check, then `finding` and nothing else, once.
fn says(preset: &str, options: &str, finding: Finding, remedy: &str) {
    says_from(20, preset, options, finding, remedy);
}

fn says_from(first: usize, preset: &str, options: &str, finding: Finding, remedy: &str) {
    let params = vec![Param::new("weight", &SIDES)];
    let (mut optimizer, said) = heard(config(preset, &format!("check_period=1 {options}")), params);
    let (mut random, mut weights) = (Random::new(1), vec![0.5f32; SIDES[0] * SIDES[1]]);
    let about = |said: &[String]| said.iter().filter(|line| line.starts_with(finding.name())).count();
    for check in 1..=40 {
        let gradient: Vec<f32> = weights.iter().map(|_| random.normal() as f32).collect();
        optimizer.step([&mut weights], [&gradient]).unwrap();
        let (stats, factors) = (optimizer.stats().unwrap(), optimizer.factors().unwrap());
        let (found, told) = (stats.findings, about(&said.lock().unwrap()));
        if check < first {
            assert!(
                found.is_empty() && told == 0,
                "{finding:?} at check {check}: {:?}",
                said.lock().unwrap()
            );
            assert!(factors.iter().all(|factor| factor.findings.is_empty()));
        } else {
            assert_eq!(found.iter().collect::<Vec<_>>(), [finding], "check {check}: {factors:?}");
            assert!(factors.iter().any(|factor| factor.findings.contains(finding)));
            assert_eq!(told, 1, "check {check}: {:?}", said.lock().unwrap());
        }
    }
    let line = optimizer.diagnosis().unwrap();
    assert!(line.len() == 1 && line[0].starts_with(finding.name()) && line[0].contains(remedy), "{line:?}");
    let said = said.lock().unwrap();
    let warning = said.iter().find(|line| line.starts_with(finding.name())).unwrap();
    assert!(warning.contains("parameter 'weight', axis 0") && warning.contains("try "), "{warning}");
}

#[test]
fn rounding_above_tau_is_found() {
    let far_below_rounding = "epsilon=1e-30 epsilon_max=1e-29 root=1";
    says("reference", far_below_rounding, Finding::NoiseAboveTau, "try statistic_dtype = f64, or epsilon = ");
}

#[test]
fn a_cap_that_most_checks_want_to_pass_is_found() {
    let options = "epsilon=1e-3 epsilon_max=1e-3 tau=0.01 statistic_dtype=f64 beta2=0.9";
    says("reference", options, Finding::EpsilonAtCap, "try epsilon_max = 0.01, or policy = sandwich");
    let clipped = format!("{options} policy=foam_no_refresh");
    says("reference", &clipped, Finding::EpsilonAtCap, "try epsilon_max = 0.01");
}

#[test]
fn a_refresh_at_every_check_is_found() {
    let fast = "tau=0.01 beta2=0.7 statistic_dtype=f64 refresh_schedule=fixed";
    says("default", fast, Finding::AlwaysRefreshes, "try beta2 = 0.9, or a smaller check_period");
    let strict = "tau=0.001 statistic_dtype=f64";
    let remedy = "try tau = 0.002, or policy = stale";
    says("default", &format!("{strict} refresh_schedule=fixed"), Finding::AlwaysRefreshes, remedy);
    // Refreshes at steps 2, 3, 5, 8, 12 and 18 are the schedule's, and say nothing.
    says_from(26, "default", strict, Finding::AlwaysRefreshes, remedy);
    let residual = "policy=diagonal_residual residual_threshold=0.0001 epsilon=1e-4 statistic_dtype=f64";
    says("reference", residual, Finding::AlwaysRefreshes, "try residual_threshold = ");
    let soap = "refresh_schedule=kappa kappa_threshold=0.0001";
    says("soap", soap, Finding::AlwaysRefreshes, "try kappa_threshold = 0.0002");
}

#[test]
fn damping_above_the_spectrum_is_found() {
    let remedy = "or epsilon_mode = relative with epsilon = 3e-4";
    says("reference", "epsilon=1e6 epsilon_max=1e7", Finding::DampingDominates, remedy);
    says_from(26, "default", "epsilon=2", Finding::DampingDominates, "try epsilon = 3e-4");
}

#[test]
fn eigendecompositions_that_fail_are_found() {
    let options = "policy=stale inject_fault=evd_chosen epsilon=1e-4";
    says("reference", options, Finding::RefreshesFail, "try statistic_dtype = f64");
}

/// The digits of the train example: pixels in [0, 1], one image per row, and labels.
fn digits() -> (Array2<f32>, Vec<usize>) {
    const RECORD: usize = 41;
    let bytes = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data/digits.bin")).unwrap();
    let images = bytes.len() / RECORD;
    let bit = |image: usize, place: usize| bytes[image * RECORD + 1 + place / 8] >> (place % 8) & 1;
    let pixel = |(image, pixel): (usize, usize)| {
        (0..5).map(|k| f32::from(bit(image, 5 * pixel + k)) * (1 << k) as f32).sum::<f32>() / 16.0
    };
    let labels = (0..images).map(|image| bytes[image * RECORD] as usize).collect();
    (Array2::from_shape_fn((images, 64), pixel), labels)
}

/// Trains a network of two layers; gives the first and the last batch's loss.
fn train(optimizer: &mut Optimizer, steps: usize) -> (f32, f32) {
    let (pixels, labels) = digits();
    let mut random = Random::new(3);
    let mut draw = |rows, columns, scale: f64| {
        Array2::from_shape_fn((rows, columns), |_| (scale * random.normal()) as f32)
    };
    let (mut first, mut second) = (draw(64, 48, 0.17), draw(48, 10, 0.2));
    let mut losses = Vec::new();
    for step in 0..steps {
        let rows: Vec<usize> = (0..128).map(|k| (step * 128 + 7 * k) % labels.len()).collect();
        let x = pixels.select(Axis(0), &rows);
        let hidden = x.dot(&first).mapv(|v| v.max(0.0));
        let mut share = hidden.dot(&second);
        let mut loss = 0.0;
        for (mut row, image) in share.rows_mut().into_iter().zip(&rows) {
            let largest = row.fold(f32::MIN, |a, b| a.max(*b));
            row.mapv_inplace(|v| (v - largest).exp());
            let sum = row.sum();
            row.mapv_inplace(|v| v / sum);
            loss -= row[labels[*image]].max(1e-30).ln() / 128.0;
            row[labels[*image]] -= 1.0;
        }
        losses.push(loss);
        share /= 128.0;
        let back = share.dot(&second.t()) * hidden.mapv(|v| f32::from(v > 0.0));
        let gradients =
            [x.t().dot(&back), hidden.t().dot(&share)].map(|g| g.as_standard_layout().into_owned());
        let [a, b] = &gradients;
        optimizer
            .step(
                [first.as_slice_mut().unwrap(), second.as_slice_mut().unwrap()],
                [a.as_slice().unwrap(), b.as_slice().unwrap()],
            )
            .unwrap();
    }
    (losses[0], losses[steps - 1])
}

#[test]
fn nothing_is_found_in_runs_that_work_well() {
    let layers = || vec![Param::new("first", &[64, 48]), Param::new("second", &[48, 10])];
    let foam = "epsilon=1e-6 epsilon_max=1e-4 check_period=10";
    for (preset, options) in
        [("default", ""), ("default", "check_period=1"), ("soap", ""), ("reference", foam)]
    {
        let (mut optimizer, said) = heard(config(preset, &format!("lr=0.003 {options}")), layers());
        let (before, after) = train(&mut optimizer, 400);
        assert!(before > 2.0 && after < 0.2, "{preset} {options}: {before} to {after}");
        let (stats, said) = (optimizer.stats().unwrap(), said.lock().unwrap());
        assert!(stats.findings.is_empty() && said.is_empty(), "{preset} {options}: {said:?}");
        assert!(stats.counters.checks >= 40 && optimizer.diagnosis().unwrap().is_empty());
    }
}
