//! The CUDA backend, executed on the simulator of `tests/cudasim`: the same numbers as the CPU and as the authors'
//! code, with queued work run at once and in a random legal order; what a step costs; what faults do.
//!
//! Every test runs in a process of its own, which finds the simulator in place of NVIDIA's libraries and fails if
//! anything leaks, races, or reads memory that nothing has written.

use crate::golden::{Case, Precision, replay_on};
use crate::simulated::{fail, simulated, simulated_with};
use crate::support::matrix::difference;
use crate::support::model::{Failure, Model, Spec, StepWith};
use crate::support::random::Random;
use crate::support::tensor::{Dtype, Tensor};
use crate::tier::{self, Need};
use crate::{cudasim, library};
use foam::abi::{
    FOAM_FACTOR_INVERSE_ROOT, FOAM_FACTOR_STATISTIC, FOAM_NOT_FINITE, FOAM_OK, FOAM_POISONED, foam_error,
    foam_factor_info, foam_stats_info, foam_synchronize,
};

/// The traces of `tests/golden`.
fn traces() -> Vec<Case> {
    let folder = library::root().join("tests/golden");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|e| e == "safetensors"));
    files.sort();
    assert_eq!(files.len(), 18);
    files.iter().map(|file| Case::load(file).unwrap()).collect()
}

/// Every counter equal, and every error within `room` times what the trace allows.
fn golden_in(precision: Precision, room: f64) {
    let (mut worst, mut wrong) = (0f64, Vec::new());
    for case in traces() {
        let report = replay_on("cuda:0", &case, precision).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        assert!(report.compared > 0);
        for check in &report.checks {
            let ratio = check.error.map_or(0.0, |error| error / check.tolerance);
            worst = worst.max(ratio);
            if ratio > room {
                wrong.push(format!("{}: {} is {ratio:.2} tolerances off", case.name, check.name));
            }
        }
        if report.differing > 0 {
            wrong.push(format!("{}: {} counters differ", case.name, report.differing));
        }
    }
    println!("| golden traces in {} | worst error {worst:.2} of its tolerance |", precision.name());
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_golden_trace_agrees_in_f64() {
    simulated(|| golden_in(Precision::F64, 1.0));
}

/// The traces state what an eigensolver of LAPACK's accuracy gives: an error of about one epsilon of the largest
/// eigenvalue.
#[test]
fn every_golden_trace_agrees_in_f32() {
    if !tier::runs(Need::Long) {
        return;
    }
    let knobs = [("CUDASIM_EVD_NOISE", "1")];
    simulated_with(&["eager", "deferred"], &knobs, || golden_in(Precision::F32, 1.0));
}

/// The solver's error reaches the results in proportion, so eight times that error has eight times the room. The
/// counters stay equal: no decision of a trace lies that near to its edge.
#[test]
fn every_golden_trace_agrees_in_f32_with_a_solver_of_eight_epsilons() {
    if !tier::runs(Need::Long) {
        return;
    }
    simulated_with(&["eager"], &[], || golden_in(Precision::F32, 8.0));
}

/// A model with blocks of every order, some of them equal, some cut from a larger parameter.
fn specs(dtype: Dtype) -> Vec<Spec> {
    let shapes: [&[i64]; 7] = [&[6, 5], &[6, 5], &[11, 7], &[9], &[4, 3, 5], &[3, 2, 4, 2], &[6, 5]];
    let mut specs: Vec<Spec> =
        shapes.iter().enumerate().map(|(i, shape)| Spec::new(&format!("p{i}"), shape).of(dtype)).collect();
    specs[1].lr_scale = 0.5;
    specs[2].weight_decay_scale = 2.0;
    specs[3].root = 3.0;
    specs[6].grafting_only = true;
    specs
}

/// Starts and gradients; the rows of a gradient differ in size, so that the statistics do.
fn material(specs: &[Spec], grad: Dtype, steps: usize) -> (Vec<Tensor>, Vec<Vec<Tensor>>) {
    let mut random = Random::new(5);
    let start = specs.iter().map(|s| s.tensor(&random.normals(s.elements()))).collect();
    let sizes: Vec<f64> = (0..16).map(|_| 10f64.powf(-random.within(0.0, 1.5))).collect();
    let mut gradient = |spec: &Spec| {
        let values: Vec<f64> = (0..spec.elements()).map(|i| random.normal() * sizes[i % 16]).collect();
        Tensor::of(grad, &spec.shape, &values)
    };
    let grads = (0..steps).map(|_| specs.iter().map(&mut gradient).collect()).collect();
    (start, grads)
}

const OPTIONS: &str =
    "check_period=4 beta2=0.9 tau=0.4 epsilon=1e-3 epsilon_max=3e-2 merge_dims=false lr=0.1 max_factor_dim=8";

pub struct Run {
    pub params: Vec<Tensor>,
    factors: Vec<foam_factor_info>,
    save: Vec<u8>,
}

pub fn run(preset: &str, options: &str, param: Dtype, grad: Dtype, steps: usize) -> Run {
    let mut specs = specs(param);
    if options.contains("grafting=none") || preset == "paper" {
        specs.iter_mut().for_each(|s| s.grafting_only = false);
    }
    let (mut params, grads) = material(&specs, grad, steps);
    let mut model = Model::new(preset, &format!("{OPTIONS} {options}"), &specs);
    for (t, grads) in grads.iter().enumerate() {
        // Parameter 1 sits out every third step, parameter 4 the first six.
        let absent = |i: usize| (i == 1 && t % 3 == 2) || (i == 4 && t < 6);
        let grads: Vec<_> = grads.iter().enumerate().map(|(i, g)| (!absent(i)).then(|| g.clone())).collect();
        model.try_step(&mut params, &grads, StepWith { lr: f64::NAN, grad_scale: 0.5 }).unwrap();
    }
    Run { params, factors: model.factors(), save: model.save() }
}

/// What must be equal to the last one.
fn counts(f: &foam_factor_info) -> [u64; 14] {
    [
        f.checks,
        f.evd_calls,
        f.reuse_calls,
        f.proxy_calls,
        f.epsilon_updates,
        f.cap_refreshes,
        f.last_refresh,
        f.last_branch as u64,
        f.bound_exceeded,
        f.bound_average,
        f.bound_spectral,
        f.bound_sandwich,
        f.pending_since,
        f.delayed_checks,
    ]
}

pub fn parity(preset: &str, options: &str, param: Dtype, grad: Dtype, tolerance: f64) {
    let cpu = run(preset, options, param, grad, 34);
    let gpu = run(preset, &format!("{options} device=cuda:0"), param, grad, 34);
    let what = format!("{preset} {options}, {param:?} with gradients of {grad:?}");
    for (i, (a, b)) in cpu.params.iter().zip(&gpu.params).enumerate() {
        let off = difference(&a.values(), &b.values());
        assert!(off <= tolerance, "{what}: parameter {i} is off by {off:.2e}");
    }
    let checked = cpu.factors.iter().map(|f| f.checks).sum::<u64>();
    assert!(checked > 0 || options.contains("grafting_only"), "{what}: nothing was checked");
    for (a, b) in cpu.factors.iter().zip(&gpu.factors) {
        assert_eq!(counts(a), counts(b), "{what}: {a:?} against {b:?}");
        let close =
            |x: f64, y: f64| (x.is_nan() && y.is_nan()) || (x - y).abs() <= 30.0 * tolerance * x.abs();
        for (x, y) in [
            (a.epsilon, b.epsilon),
            (a.proxy, b.proxy),
            (a.alpha, b.alpha),
            (a.residual, b.residual),
            (a.gap_bound, b.gap_bound),
        ] {
            assert!(close(x, y), "{what}: {x:e} against {y:e} in {b:?}");
        }
        assert!(close(a.eigenvalue_max, b.eigenvalue_max), "{what}: {b:?}");
        assert_eq!(a.noise_floor.is_nan(), b.noise_floor.is_nan(), "{what}: {b:?}");
    }
}

const POLICIES: [&str; 15] = [
    "stale",
    // The first basis comes late: a statistic without full rank has many, and corrections depend on which.
    "stale check_period=12 correction_period=4",
    "sandwich check_period=12 correction_period=4",
    "foam",
    "foam_fixed_epsilon",
    "foam_no_refresh",
    "diagonal_residual",
    "foam_certified",
    "sandwich",
    "foam statistics_period=2",
    "foam keep_inverse_root=false",
    "sandwich keep_inverse_root=false",
    // The same, for a vector of eight.
    "sandwich statistics_period=2 start_step=20",
    "foam statistics_period=4",
    "grafting_only",
];

#[test]
fn every_policy_agrees_with_the_cpu() {
    if !tier::runs(Need::Long) {
        return;
    }
    simulated(|| {
        for policy in POLICIES {
            parity("reference", &format!("policy={policy}"), Dtype::F64, Dtype::F64, 1e-9);
        }
        parity("paper", "", Dtype::F64, Dtype::F64, 1e-9);
        parity("paper", "policy=stale", Dtype::F64, Dtype::F64, 1e-9);
    });
}

/// In f32 the CPU's solver and the device's are off by different errors, so a decision nearer to its edge than these may
/// go either way. None of this model's is: counters are equal at eight times the usual error as well.
#[test]
fn every_policy_decides_as_the_cpu_in_f32() {
    if !tier::runs(Need::Long) {
        return;
    }
    policies_in_f32("8");
}

#[test]
fn every_policy_decides_as_the_cpu_in_f32_at_eight_times_the_solvers_error() {
    if !tier::runs(Need::Long) {
        return;
    }
    policies_in_f32("64");
}

fn policies_in_f32(noise: &str) {
    simulated_with(&["eager"], &[("CUDASIM_EVD_NOISE", noise)], || {
        for policy in POLICIES {
            parity("reference", &format!("policy={policy}"), Dtype::F32, Dtype::F32, 2e-3);
        }
    });
}

#[test]
fn every_option_of_the_step_agrees_with_the_cpu() {
    if !tier::runs(Need::Long) {
        return;
    }
    simulated_with(&["eager"], &[], || {
        for options in [
            "grafting=none",
            "grafting=sgd",
            "grafting=adagrad",
            "grafting=rmsprop normalized_grafting=true",
            "momentum=0.9 nesterov=true",
            "momentum=0.9 ema_momentum=false",
            "nadam=true",
            "beta1=0",
            "beta2=1",
            "beta2=0.5",
            "beta2=0.5 statistics_period=3",
            "beta2=1 statistics_period=2",
            "grafting=none keep_inverse_root=false epsilon_mode=relative epsilon=1e-3 epsilon_max=1e-1",
            "bias_correction=false start_step=7",
            "decoupled_weight_decay=false weight_decay=0.1",
            "weight_decay=0.1 momentum=0.5",
            "root=4 exponent_multiplier=0.8",
            "epsilon_left=2e-3 epsilon_right=3e-3",
            "negative_eigenvalues=clamp noise_floor=false",
        ] {
            parity("reference", options, Dtype::F64, Dtype::F64, 1e-9);
        }
    });
}

/// Gradients of matrices that one thread block does not pass over alone: rows turn slowly and span two decades.
fn turning(shape: [usize; 2], t: usize) -> Tensor {
    let mut random = Random::new((37 * t + shape[0]) as u64);
    let size = |i: usize| 0.05 + (0.7 * i as f64 + 0.04 * t as f64).sin().powi(2);
    let values: Vec<f64> = (0..shape[0] * shape[1]).map(|k| size(k / shape[1]) * random.normal()).collect();
    Tensor::f64(&shape.map(|x| x as i64), &values)
}

/// Factors, and the parameter of the first shape, after some steps of a model of `shapes`.
fn run_of(shapes: &[[usize; 2]], options: &str, steps: usize) -> (Vec<foam_factor_info>, Tensor) {
    let named = |(i, shape): (usize, &[usize; 2])| Spec::new(&format!("p{i}"), &shape.map(|x| x as i64));
    let specs: Vec<Spec> = shapes.iter().enumerate().map(named).collect();
    let options =
        format!("check_period=5 beta2=0.9 merge_dims=false epsilon=1e-3 epsilon_max=3e-2 {options}");
    let mut model = Model::new("reference", &options, &specs);
    let mut params: Vec<Tensor> = shapes.iter().map(|shape| turning(*shape, 0)).collect();
    for t in 1..=steps {
        let grads: Vec<Tensor> = shapes.iter().map(|shape| turning(*shape, t)).collect();
        model.step(&mut params, &grads);
    }
    (model.factors(), params.swap_remove(0))
}

/// Sides of several strips, the last of them not whole; the rules of the certificate are all used.
#[test]
fn factors_of_several_strips_agree_with_the_cpu() {
    if !tier::runs(Need::Long) {
        return;
    }
    simulated_with(&["eager"], &[], || {
        let mut rules = [0; 4];
        for options in [
            "policy=foam tau=0.3",
            "policy=foam_certified tau=0.3",
            "policy=diagonal_residual tau=0.3",
            "policy=sandwich tau=0.1",
            "policy=sandwich tau=0.2",
            "policy=sandwich tau=0.4",
            "policy=sandwich tau=0.4 root=4",
            "policy=sandwich tau=0.3 root=3",
        ] {
            let of = |device: &str| run_of(&[[42, 25], [25, 8]], &format!("{options} device={device}"), 40);
            let ((cpu, there), (gpu, here)) = (of("cpu"), of("cuda:0"));
            let off = difference(&there.values(), &here.values());
            assert!(off < 1e-9, "{options}: the parameter is off by {off:.2e}");
            for (a, b) in cpu.iter().zip(&gpu) {
                assert_eq!(counts(a), counts(b), "{options}: {a:?} against {b:?}");
                for (x, y) in [
                    (a.epsilon, b.epsilon),
                    (a.proxy, b.proxy),
                    (a.alpha, b.alpha),
                    (a.residual, b.residual),
                    (a.gap_bound, b.gap_bound),
                ] {
                    let same = (x.is_nan() && y.is_nan()) || (x - y).abs() <= 1e-8 * x.abs();
                    assert!(same, "{options}: {x:e} against {y:e} in {b:?}");
                }
                let own = [b.bound_exceeded, b.bound_average, b.bound_spectral, b.bound_sandwich];
                rules.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
            }
        }
        println!("| exceeded, average, spectral, sandwich | {rules:?} |");
        assert!(rules.iter().all(|uses| *uses > 0), "{rules:?}");
    });
}

/// Strips depend on the side alone: what else is in the group makes no difference to a bit.
#[test]
fn a_factor_alone_has_the_bits_of_one_among_others() {
    if !tier::runs(Need::Long) {
        return;
    }
    simulated_with(&["eager"], &[("CUDASIM_EVD_NOISE", "0")], || {
        for policy in ["foam", "foam_certified", "sandwich"] {
            let options = format!("policy={policy} tau=0.3 device=cuda:0");
            let (alone, own) = run_of(&[[42, 25]], &options, 25);
            let (among, same) = run_of(&[[42, 25], [25, 8], [42, 25], [42, 42]], &options, 25);
            assert_eq!(own, same, "{policy}");
            for (a, b) in alone.iter().zip(&among) {
                assert_eq!(format!("{a:?}"), format!("{b:?}"), "{policy}");
            }
        }
    });
}

/// Vectors of 60 elements, whose statistics have no full rank at any step.
#[test]
fn merged_dimensions_agree_with_the_cpu() {
    simulated_with(&["eager"], &[], || {
        parity("reference", "max_factor_dim=64 merge_dims=true", Dtype::F64, Dtype::F64, 1e-9);
    });
}

#[test]
fn every_combination_of_types_agrees_with_the_cpu() {
    if !tier::runs(Need::Long) {
        return;
    }
    simulated_with(&["eager"], &[], || {
        for param in Dtype::ALL {
            for grad in Dtype::ALL {
                for statistic in ["f32", "f64"] {
                    let options = format!("policy=stale statistic_dtype={statistic}");
                    let single: f64 = if param == Dtype::F64 && statistic == "f64" { 1e-9 } else { 2e-4 };
                    parity("reference", &options, param, grad, single.max(3.0 * param.unit()));
                }
            }
        }
    });
}

#[test]
fn a_solver_without_batches_gives_the_same_numbers() {
    // It takes another build of the simulator.
    if !tier::runs(Need::Long) {
        return;
    }
    let folder = if std::env::var_os("FOAM_SIMULATED").is_none() {
        cudasim::folder_without_batched_evd().to_str().unwrap().to_string()
    } else {
        String::new()
    };
    simulated_with(&["eager"], &[("LD_LIBRARY_PATH", &folder)], || {
        parity("reference", "", Dtype::F64, Dtype::F64, 1e-9);
    });
}

#[test]
fn checkpoints_cross_between_cpu_and_device() {
    simulated(|| {
        let there = run("reference", "device=cuda:0", Dtype::F32, Dtype::F32, 22);
        let (specs, steps) = (specs(Dtype::F32), 12);
        let (_, grads) = material(&specs, Dtype::F32, steps);
        let go_on = |device: &str| {
            let mut model = Model::new("reference", &format!("{OPTIONS} device={device}"), &specs);
            model.load(&there.save).unwrap();
            if device != "cpu" {
                assert!(model.save() == there.save, "a loaded state saves other bytes");
            }
            let mut params = there.params.clone();
            grads.iter().for_each(|grads| model.step(&mut params, grads));
            (params, model.factors())
        };
        let (cpu, gpu) = (go_on("cpu"), go_on("cuda:0"));
        for (a, b) in cpu.0.iter().zip(&gpu.0) {
            assert!(difference(&a.values(), &b.values()) < 2e-4);
        }
        // Decisions are far enough from their edges for f32, as `every_policy_decides_as_the_cpu_in_f32` measures.
        cpu.1.iter().zip(&gpu.1).for_each(|(a, b)| assert_eq!(counts(a), counts(b)));
        // On one device the way over a checkpoint changes no bit.
        assert_eq!(go_on("cuda:0").0, gpu.0);
    });
}

/// On the CPU the statistic and the inverse root of the first side share a square; on the device nothing is shared.
#[test]
fn checkpoints_cross_between_shared_squares_and_a_device() {
    simulated(|| {
        let specs = [Spec::new("w", &[130, 3]).of(Dtype::F32)];
        let (mut params, grads) = material(&specs, Dtype::F32, 8);
        let new = |device: &str| {
            Model::new("reference", &format!("{OPTIONS} max_factor_dim=200 device={device}"), &specs)
        };
        let matrices = |model: &Model| {
            [FOAM_FACTOR_STATISTIC, FOAM_FACTOR_INVERSE_ROOT].map(|what| model.read((0, 0, 0), what))
        };
        let mut model = new("cpu");
        for (grads, device) in grads.chunks(4).zip(["cuda:0", "cpu"]) {
            grads.iter().for_each(|grads| model.step(&mut params, grads));
            let mut next = new(device);
            next.load(&model.save()).unwrap();
            assert!(matrices(&next) == matrices(&model), "to {device}");
            assert!(matrices(&next)[1].iter().any(|x| *x != 0.0), "there is an inverse root");
            model = next;
        }
        model.step(&mut params, &grads[0]);
    });
}

/// A model on the device, with its gradients.
pub struct Bed {
    pub model: Model,
    pub params: Vec<Tensor>,
    grads: Vec<Vec<Tensor>>,
}

pub fn bed(options: &str) -> Bed {
    let specs = specs(Dtype::F32);
    let (params, grads) = material(&specs, Dtype::F32, 40);
    let model = Model::new("reference", &format!("{OPTIONS} device=cuda:0 {options}"), &specs);
    Bed { model, params, grads }
}

impl Bed {
    pub fn step(&mut self, t: usize) -> Result<bool, Failure> {
        let grads: Vec<_> = self.grads[t].iter().cloned().map(Some).collect();
        self.model.try_step(&mut self.params, &grads, StepWith::default())
    }

    /// The same step with one number of parameter 2's gradient replaced.
    pub fn bad_step(&mut self, t: usize, value: f32) -> Result<bool, Failure> {
        let mut grads: Vec<_> = self.grads[t].iter().cloned().map(Some).collect();
        let spoilt = grads[2].as_mut().unwrap();
        spoilt.bytes[40..44].copy_from_slice(&value.to_ne_bytes());
        self.model.try_step(&mut self.params, &grads, StepWith::default())
    }

    fn synchronize(&self) -> (i32, String) {
        let mut error = foam_error::new();
        // SAFETY: a live handle and a record.
        let status = unsafe { foam_synchronize(self.model.handle(), &mut error) };
        (status, error.text().to_string())
    }
}

#[test]
fn another_stream_at_every_step_changes_nothing() {
    simulated(|| {
        let (mut still, mut moving) = (bed(""), bed(""));
        for t in 0..20 {
            still.step(t).unwrap();
            moving.step(t).unwrap();
            moving.model.gpu.as_mut().unwrap().change_stream();
        }
        assert_eq!(still.params, moving.params);
        assert_eq!(still.model.statistics(), moving.model.statistics());
    });
}

#[test]
fn a_skipped_step_leaves_no_trace() {
    simulated(|| {
        let (mut clean, mut spoilt) = (bed("nonfinite=skip"), bed("nonfinite=skip"));
        for t in 0..30 {
            clean.step(t).unwrap();
            spoilt.step(t).unwrap();
            // Before, at and after checks, more than one in a row, infinities and overflowing squares too.
            if [1, 2, 3, 6, 7, 8, 18].contains(&t) {
                let before = spoilt.params.clone();
                let value = [f32::NAN, f32::INFINITY, 1e30][t % 3];
                spoilt.bad_step(t, value).unwrap();
                assert_eq!(spoilt.params, before, "a bad step wrote a parameter");
            }
        }
        let stats = spoilt.model.stats();
        assert_eq!((stats.steps, stats.skipped_steps), (30, 7));
        assert_eq!(clean.params, spoilt.params);
        assert_eq!(clean.model.save().len(), spoilt.model.save().len());
        let factors = |bed: &Bed| bed.model.factors().iter().map(|f| format!("{f:?}")).collect::<Vec<_>>();
        assert_eq!(factors(&clean), factors(&spoilt));
    });
}

#[test]
fn an_error_is_reported_late_but_nothing_happens_meanwhile() {
    simulated(|| {
        let (mut clean, mut spoilt) = (bed(""), bed(""));
        for t in 0..10 {
            clean.step(t).unwrap();
            spoilt.step(t).unwrap();
        }
        // The device holds back the bad step and those after it, until the check at step 12 tells.
        let before = spoilt.params.clone();
        assert_eq!(spoilt.bad_step(10, f32::NAN), Ok(false));
        let failure = spoilt.step(11).unwrap_err();
        assert_eq!((failure.status, failure.param_index), (FOAM_NOT_FINITE, 2), "{failure:?}");
        assert!(failure.message.contains("'p2'") && failure.message.contains("1 steps ago"), "{failure:?}");
        assert_eq!(spoilt.params, before);
        // Told by a question in between: the question is answered, the next step tells.
        assert_eq!(spoilt.bad_step(10, f32::NAN), Ok(false));
        assert_eq!(spoilt.model.stats().steps, 10);
        assert_eq!(spoilt.step(10).unwrap_err().status, FOAM_NOT_FINITE);
        // Told by synchronize.
        assert_eq!(spoilt.bad_step(10, f32::NAN), Ok(false));
        assert_eq!(spoilt.synchronize().0, FOAM_NOT_FINITE);
        assert_eq!(spoilt.synchronize().0, FOAM_OK);
        for t in 10..30 {
            clean.step(t).unwrap();
            spoilt.step(t).unwrap();
        }
        assert_eq!(clean.params, spoilt.params);
        assert_eq!(clean.model.statistics(), spoilt.model.statistics());
    });
}

#[test]
fn a_decomposition_that_fails_keeps_the_stale_basis_and_is_tried_again_in_double_precision() {
    if !tier::runs(Need::Long) {
        return;
    }
    simulated(|| {
        let fallen_with = |fault: &str, asks: bool| {
            let mut bed = bed(&format!("policy=stale inject_fault={fault} inject_fault_step=8"));
            for t in 0..30 {
                assert_eq!(bed.step(t), Ok(false));
                // A question in between brings the failure to the host, which must not forget it.
                let _ = asks.then(|| bed.model.stats());
            }
            assert!(bed.params.iter().all(|p| p.values().iter().all(|x| x.is_finite())));
            (bed.model.stats(), bed.model.factors().iter().filter(|f| f.dim > 1).count() as u64)
        };
        let fallen = |fault: &str| fallen_with(fault, false);
        let (sound, wide) = fallen("none");
        assert_eq!(sound.failed_evds, 0);
        for fault in ["evd_chosen", "evd_nonorthogonal"] {
            let (asked, silent) = (fallen_with(fault, true).0, fallen(fault).0);
            let counts = |s: &foam_stats_info| (s.fallback_stale, s.fallback_double, s.evd_calls);
            assert_eq!(counts(&asked), counts(&silent), "{fault}: asked in between");
        }
        // A basis of one vector cannot be made oblique.
        for (fault, factors) in [("evd_chosen", sound.factors), ("evd_nonorthogonal", wide)] {
            let (stats, _) = fallen(fault);
            // Checks at 4, 8, …, 28: from 8 on every other one fails, and its successor is saved by f64.
            assert_eq!(stats.fallback_stale, 3 * factors, "{fault}: {stats:?}");
            assert_eq!(stats.fallback_double, 3 * factors, "{fault}: {stats:?}");
        }
        let (stats, _) = fallen("evd_all");
        // The check at 28 has not been answered by a later one, but the question for statistics asked for it.
        assert_eq!(stats.fallback_stale, 6 * sound.factors);
    });
}

#[test]
fn a_failed_decomposition_is_not_forgotten_when_another_parameter_is_checked_first() {
    if !tier::runs(Need::Long) {
        return;
    }
    simulated(|| {
        // The first parameter begins `late` steps after the others, so that its checks lie between theirs.
        let others = |fault: &str, late: usize| {
            let mut bed = bed(&format!("policy=stale inject_fault={fault} inject_fault_step=8"));
            for t in 0..30 {
                let mut grads: Vec<_> = bed.grads[t].iter().cloned().map(Some).collect();
                grads[0] = grads[0].take().filter(|_| t >= late);
                bed.model.try_step(&mut bed.params, &grads, StepWith::default()).unwrap();
            }
            let factors = bed.model.factors();
            let counts = |f: &foam_factor_info| {
                (f.param_index, f.axis, f.fallback_stale, f.fallback_double, f.evd_calls)
            };
            factors.iter().filter(|f| f.param_index > 0).map(counts).collect::<Vec<_>>()
        };
        for fault in ["evd_chosen", "evd_nonorthogonal"] {
            let together = others(fault, 0);
            assert!(together.iter().any(|counts| counts.2 == 3 && counts.3 == 3), "{fault}: {together:?}");
            for late in [1, 2, 3] {
                assert_eq!(others(fault, late), together, "{fault}: {late} steps late");
            }
        }
    });
}

#[test]
fn a_device_that_fails_in_the_middle_of_a_step_is_said_to_have_lost_it() {
    simulated_with(&["eager"], &[], || {
        let mut bed = bed("");
        (0..6).for_each(|t| assert_eq!(bed.step(t), Ok(false)));
        let before = bed.params.clone();
        fail("cublasSgemmStridedBatched", 1, 13);
        let failure = bed.step(6).unwrap_err();
        assert!(failure.message.contains("lost"), "{failure:?}");
        assert_eq!(bed.step(7).unwrap_err().status, FOAM_POISONED);
        assert_eq!(bed.params, before);
        assert_eq!(bed.model.stats().params, 7);
    });
}
