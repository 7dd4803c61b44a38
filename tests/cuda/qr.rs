//! Refreshes by QR steps on the device: the bound that they prove, the numbers of the CPU, and what happens where they do
//! not suffice.

use crate::simulated::{clear_faults, fail, simulated, simulated_with};
use crate::support::model::{Model, Place, Spec};
use crate::support::random::Random;
use crate::support::tensor::{Dtype, Tensor};
use crate::tier::{self, Need};
use foam::abi::*;

const AXES: [Place; 2] = [(0, 0, 0), (0, 0, 1)];

/// Gradients whose row space turns slowly and whose sizes span two decades, so that bases grow stale.
fn gradient((rows, cols): (usize, usize), t: usize, seed: u64) -> Tensor {
    let mut random = Random::new((31 * t + rows) as u64 ^ seed);
    let size = |i: usize| 0.05 + (0.7 * i as f64 + 0.04 * t as f64).sin().powi(2);
    let mut values = random.matrix(rows, cols);
    values.rows_mut().into_iter().enumerate().for_each(|(i, mut row)| row *= size(i));
    Tensor::f64(&[rows as i64, cols as i64], &values.into_iter().collect::<Vec<f64>>())
}

/// Steps of a model of one matrix; `look` sees it after each of them.
fn run(
    options: &str,
    shape: (usize, usize),
    steps: usize,
    seed: u64,
    mut look: impl FnMut(u64, &Model),
) -> Model {
    let dims = [shape.0 as i64, shape.1 as i64];
    let options = format!("refresh_method=qr check_period=5 beta2=0.95 merge_dims=false {options}");
    let mut model = Model::new("default", &options, &[Spec::new("w", &dims)]);
    let mut params = [Tensor::f64(&dims, &Random::new(5).normals(shape.0 * shape.1))];
    for t in 1..=steps {
        model.step(&mut params, &[gradient(shape, t, seed)]);
        look(t as u64, &model);
    }
    model
}

/// What a certified gap may be above its bound: rounding, by the precision of the statistics.
fn rounding(dtype: &str) -> f64 {
    if dtype == "f32" { 2e-3 } else { 1e-6 }
}

/// The relative distance of two operators.
fn apart(a: &[f64], b: &[f64]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(x, y)| x - y)) / norm(&mut a.iter().copied())
}

#[test]
fn qr_steps_need_no_eigendecomposition_and_agree_with_the_cpu() {
    simulated(|| {
        for (tau, shape, dtype) in
            [(0.25, (24, 17), "f64"), (0.5, (20, 12), "f64"), (0.75, (9, 33), "f64"), (0.5, (24, 17), "f32")]
        {
            let options = format!("tau={tau} statistic_dtype={dtype}");
            let mut roots: Vec<Vec<f64>> = Vec::new();
            let mut bounds = Vec::new();
            let cpu = run(&options, shape, 45, 0, |t, model| {
                for place in AXES.into_iter().filter(|place| model.factor(*place).last_check == t) {
                    roots.push(model.read(place, FOAM_FACTOR_INVERSE_ROOT));
                    bounds.push(model.factor(place).gap_bound);
                }
            });
            let mut seen = 0;
            let gpu = run(&format!("{options} device=cuda:0"), shape, 45, 0, |t, model| {
                for place in AXES.into_iter().filter(|place| model.factor(*place).last_check == t) {
                    let info = model.factor(place);
                    let (gap, bound) = (model.exact_gap(place), info.gap_bound);
                    assert!(
                        gap <= bound + rounding(dtype) && bound <= tau,
                        "{gap}, {bound} at {t}: {info:?}"
                    );
                    // Both are within their bounds of the fresh operator F: |A - B| <= a |A| + b |B|, and |B| (1 - b)
                    // is at most |F|, which is at most |A| (1 + a).
                    let off = apart(&roots[seen], &model.read(place, FOAM_FACTOR_INVERSE_ROOT));
                    let (a, b) = (bounds[seen], bound);
                    let allowed = a + b * (1.0 + a) / (1.0 - b);
                    assert!(off <= allowed + rounding(dtype), "{off} > {allowed} for {a} and {b}");
                    seen += 1;
                }
            });
            assert_eq!(seen, roots.len());
            let counts = |model: &Model| {
                let s = model.stats();
                [s.checks, s.evd_calls, s.reuse_calls, s.qr_refreshes, s.qr_steps, s.qr_fallbacks]
            };
            let (ours, theirs) = (counts(&gpu), counts(&cpu));
            println!("| tau {tau}, {shape:?}, {dtype} | {ours:?} | CPU {theirs:?} |");
            assert_eq!((ours[1], ours[5]), (0, 0), "{ours:?}");
            assert!(ours[3] >= 2, "{ours:?}");
            // The CPU's steps have no shift, so that bounds differ a little, and a decision at the edge of tau may.
            let edges = if tau == 0.25 { 0 } else { 3 };
            for (own, other) in ours.iter().zip(&theirs) {
                assert!(own.abs_diff(*other) <= edges, "{options}: {ours:?} against {theirs:?}");
            }
        }
    });
}

#[test]
fn the_bound_holds_whatever_the_drift_and_what_steps_leave_is_decomposed() {
    if !tier::runs(Need::Long) {
        return;
    }
    simulated_with(&["eager"], &[], || {
        let (mut checks, mut short, mut refreshes, mut closest) = (0, 0, 0, 0.0f64);
        let seeds = 60;
        for seed in 0..seeds {
            let mut random = Random::new(seed ^ 0x51);
            let shape = (2 + random.below(9), 2 + random.below(9));
            let root = 1 + random.below(6);
            let tau = random.pick(&[0.1, 0.25, 0.5, 0.75]);
            let mode =
                random.pick(&["relative epsilon=1e-3", "absolute epsilon=1e-2", "relative epsilon=1e-6"]);
            let dtype = random.pick(&["f64", "f64", "f32"]);
            let beta = random.pick(&[0.5, 0.9, 0.99]);
            let dims = [shape.0 as i64, shape.1 as i64];
            let options = format!(
                "device=cuda:0 refresh_method=qr check_period=2 beta2={beta} root={root} tau={tau} \
                 epsilon_mode={mode} epsilon_max=1 statistic_dtype={dtype} merge_dims=false precondition_1d=true"
            );
            let mut model = Model::new("default", &options, &[Spec::new("w", &dims)]);
            let mut params = [Tensor::f64(&dims, &random.normals(shape.0 * shape.1))];
            let mut before = [(0, 0); 2];
            for t in 1..=16u64 {
                // Rows that wake up and fall asleep: bases turn by any angle.
                let scale: Vec<f64> = (0..shape.0).map(|_| 10f64.powf(-random.within(0.0, 2.0))).collect();
                let values: Vec<f64> =
                    (0..shape.0 * shape.1).map(|k| random.normal() * scale[k / shape.1]).collect();
                model.step(&mut params, &[Tensor::f64(&dims, &values)]);
                for place in AXES.into_iter().filter(|place| model.factor(*place).last_check == t) {
                    let info = model.factor(place);
                    let (gap, bound) = (model.exact_gap(place), info.gap_bound);
                    let spare = if dtype == "f32" && mode.contains("1e-6") { 0.05 } else { rounding(dtype) };
                    assert!(gap <= bound + spare, "gap {gap} > {bound} at {t}, {options}: {info:?}");
                    let failed = info.last_branch == FOAM_BRANCH_QR_SHORT;
                    assert_eq!(bound > tau, failed, "{bound} of {tau} at {t}, {options}: {info:?}");
                    let (evds, fallbacks) = before[place.2 as usize];
                    assert_eq!(info.qr_fallbacks - fallbacks, u64::from(failed));
                    if evds < info.evd_calls {
                        // At the times of the schedule `combined` nothing is sensed.
                        let forced = [1, 2, 3, 5, 8, 12].contains(&t);
                        let branch = if forced { FOAM_BRANCH_EVD_STALE } else { FOAM_BRANCH_EVD_THRESHOLD };
                        assert_eq!((bound, info.last_branch), (0.0, branch), "{info:?}");
                    }
                    assert!(info.evd_calls <= info.qr_fallbacks, "only a fallback decomposes: {info:?}");
                    before[place.2 as usize] = (info.evd_calls, info.qr_fallbacks);
                    closest = if gap > 1e-6 && !failed { closest.max(gap / bound) } else { closest };
                    (checks, short) = (checks + 1, short + u64::from(failed));
                }
            }
            refreshes += model.stats().qr_refreshes;
            assert_eq!(model.stats().failed_evds, 0, "{options}");
            assert!(params[0].values().iter().all(|x| x.is_finite()));
        }
        println!(
            "| {checks} checks, {refreshes} refreshes by QR steps, {short} fell short, gap/bound <= {closest:.3} |"
        );
        assert!(60 * checks > 800 * seeds && refreshes > 5 * seeds && short > 0 && closest > 0.5);
    });
}

#[test]
fn qr_steps_on_the_device_take_statistics_of_zeros_diagonals_and_one_row() {
    simulated_with(&["eager"], &[], || {
        for (shape, dtype) in
            [((1, 1), "f32"), ((1, 7), "f64"), ((5, 1), "f32"), ((4, 4), "f32"), ((4, 4), "f64")]
        {
            let dims = [shape.0 as i64, shape.1 as i64];
            for kind in 0..3 {
                let options = format!(
                    "device=cuda:0 refresh_method=qr check_period=2 precondition_1d=true merge_dims=false \
                     statistic_dtype={dtype}"
                );
                let mut model = Model::new("default", &options, &[Spec::new("w", &dims)]);
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
                let none = (stats.evd_calls, stats.failed_evds, stats.qr_fallbacks);
                assert_eq!(none, (0, 0, 0), "{shape:?}, {kind}: {stats:?}");
            }
        }
    });
}

#[test]
fn steps_whose_solver_fails_leave_the_basis_and_the_next_check_decomposes() {
    simulated_with(&["eager"], &[("CUDASIM_QUIET", "1")], || {
        // All factorizations of the first refresh, or those of a check with a basis.
        for broken in [5, 10] {
            let dims = [6i64, 6];
            let options = "device=cuda:0 refresh_method=qr check_period=5 beta2=0.5 merge_dims=false tau=0.5";
            let mut model = Model::new("default", options, &[Spec::new("w", &dims).of(Dtype::F32)]);
            let mut params = [Tensor::of(Dtype::F32, &dims, &Random::new(5).normals(36))];
            let mut fell = 0;
            for t in 1..=20u64 {
                if t == broken {
                    let all = || (1..=12).for_each(|nth| fail("cusolverDnSpotrfBatched", nth, 7));
                    model.before_step = Some(Box::new(all));
                    model.after_step = Some(Box::new(clear_faults));
                }
                let values = gradient((6, 6), t as usize, 3).values();
                model.step(&mut params, &[Tensor::of(Dtype::F32, &dims, &values)]);
                (model.before_step, model.after_step) = (None, None);
                for place in AXES {
                    let info = model.factor(place);
                    if info.last_branch == FOAM_BRANCH_QR_SHORT && info.last_check == t {
                        assert_eq!(t, broken, "{info:?}");
                        assert!(info.last_refresh == t && info.gap_bound == f64::INFINITY, "{info:?}");
                        fell += 1;
                    }
                    assert!(model.exact_gap(place) <= info.gap_bound + 2e-3 || info.last_check != t);
                }
            }
            let stats = model.stats();
            println!("| at step {broken} | {fell} fell short | {} decompositions |", stats.evd_calls);
            assert_eq!((stats.evd_calls, stats.qr_fallbacks), (fell, fell), "at {broken}: {stats:?}");
            assert!(fell > 0, "at {broken}: {stats:?}");
            assert_eq!((stats.failed_evds, stats.fallback_stale), (0, 0), "{stats:?}");
            assert!(params[0].values().iter().all(|x| x.is_finite()));
        }
    });
}

#[test]
fn tracking_on_the_device_counts_as_on_the_cpu() {
    simulated_with(&["eager"], &[], || {
        let counts = |device: &str| {
            let options = format!("qr_track=true tau=0.1 check_period=1 beta2=0.5 device={device}");
            let model = run(&options, (8, 6), 24, 0, |t, model| {
                for place in AXES {
                    let (info, gap) = (model.factor(place), model.exact_gap(place));
                    assert!(gap <= info.gap_bound + 1e-6, "{gap} at {t}: {info:?}");
                    assert!(info.gap_bound <= 0.1 || info.last_branch == FOAM_BRANCH_QR_SHORT, "{info:?}");
                }
            });
            let stats = model.stats();
            println!("| {device} | {} tracked of {} checks |", stats.qr_tracked, stats.checks);
            (stats.checks, stats.qr_tracked)
        };
        let (cpu, gpu) = (counts("cpu"), counts("cuda:0"));
        assert!(cpu.1 > 8 && gpu.1 > 8 && cpu.0 == gpu.0, "{cpu:?} {gpu:?}");
        assert!(cpu.1.abs_diff(gpu.1) <= 4, "decisions at the edge of tau aside: {cpu:?} {gpu:?}");
    });
}

#[test]
fn the_automatic_refresh_is_by_qr_on_the_device_alone() {
    simulated_with(&["eager"], &[], || {
        let by_qr = |device: &str| {
            let stats =
                run(&format!("refresh_method=auto device={device}"), (7, 5), 12, 0, |_, _| {}).stats();
            (stats.qr_refreshes > 0, stats.evd_calls > 0)
        };
        assert_eq!((by_qr("cpu"), by_qr("cuda:0")), ((false, true), (true, false)));
    });
}
