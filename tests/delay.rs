//! Delayed refreshes: a basis that a check asks for is of the statistic as it was then, and taken a fixed number of steps
//! later; until then the stale one serves. What the thread in the background makes of them is what a check would have made.

use crate::support::model::{Failure, Model, Place, Spec, StepWith, checked, configuration};
use crate::support::random::Random;
use crate::support::tensor::{Dtype, Tensor};
use foam::abi::*;
use std::ffi::CString;

const AXES: [Place; 2] = [(0, 0, 0), (0, 0, 1)];
const OPTIONS: &str =
    "check_period=4 start_step=1 beta2=0.9 merge_dims=false epsilon=1e-4 epsilon_max=1e-2 lr=0.1";

/// One matrix, and gradients whose sizes move.
struct Run {
    spec: Spec,
    model: Model,
    params: [Tensor; 1],
    t: usize,
}

impl Run {
    fn new(options: &str, (rows, cols): (i64, i64)) -> Run {
        let spec = Spec::new("w", &[rows, cols]);
        let model = Model::new("reference", &format!("{OPTIONS} {options}"), std::slice::from_ref(&spec));
        let params = [spec.tensor(&Random::new(5).normals(spec.elements()))];
        Run { spec, model, params, t: 0 }
    }

    fn step(&mut self) {
        self.t += 1;
        let mut values = Random::new(77 * self.t as u64).normals(self.spec.elements());
        let cols = self.spec.shape[1] as usize;
        let size = |row: usize| 0.05 + (0.7 * row as f64 + 0.05 * self.t as f64).sin().powi(2);
        values.iter_mut().enumerate().for_each(|(k, x)| *x *= size(k / cols));
        self.model.step(&mut self.params, &[self.spec.tensor(&values)]);
    }

    fn set(&self, key: &str, value: &str) -> Result<(), Failure> {
        let (key, value) = (CString::new(key).unwrap(), CString::new(value).unwrap());
        // SAFETY: a live handle and C strings.
        checked(|error| unsafe { foam_set_option(self.model.handle(), key.as_ptr(), value.as_ptr(), error) })
    }

    fn read(&self, axis: usize, what: i32) -> Vec<f64> {
        self.model.read(AXES[axis], what)
    }
}

#[test]
fn a_basis_is_of_the_statistic_of_its_request_and_is_taken_when_its_time_has_come() {
    for (delay, period) in [(1, 4), (3, 4), (4, 4), (5, 4), (9, 4), (2, 1), (1, 1)] {
        // The same parameters' statistics without a delay: gradients do not depend on the parameters.
        let options = format!("policy=stale check_period={period}");
        let mut prompt = Run::new(&options, (9, 7));
        let mut run = Run::new(&format!("{options} refresh_delay={delay}"), (9, 7));
        let (mut bases, mut in_use) = (Vec::new(), [Vec::new(), Vec::new()]);
        let mut asked = None;
        for t in 1..=40u64 {
            prompt.step();
            run.step();
            bases.push([0, 1].map(|axis| prompt.read(axis, FOAM_FACTOR_BASIS)));
            let is_check = t == 1 || t % period == 0;
            let since = asked.take_if(|since| t == *since + delay);
            if let Some(since) = since {
                in_use = bases[since as usize - 1].clone();
            } else if t == 1 {
                in_use = bases[0].clone();
            }
            if is_check && t > 1 {
                asked = asked.or(Some(t));
            }
            for (axis, expected) in in_use.iter().enumerate() {
                let case = format!("delay {delay}, period {period}, step {t}, axis {axis}");
                assert_eq!(run.read(axis, FOAM_FACTOR_BASIS), *expected, "{case}: another basis");
                let info = run.model.factor(AXES[axis]);
                assert_eq!(info.pending_since, asked.unwrap_or(0), "{case}");
                assert_eq!(info.last_refresh, if t < 1 + delay { 1 } else { info.last_refresh }, "{case}");
                if let Some(since) = since {
                    assert_eq!((info.last_refresh, info.epsilon), (since, 1e-4), "{case}");
                    assert!(info.noise_floor.is_finite(), "{case}: {info:?}");
                }
            }
        }
        let stats = run.model.stats();
        let under_way = 2 * u64::from(asked.is_some());
        assert_eq!(stats.checks, stats.evd_calls + stats.reuse_calls + under_way, "{stats:?}");
        assert_eq!(stats.delayed_checks, stats.checks - 2, "all but the first, which has no stale basis");
    }
}

#[test]
fn a_delay_of_zero_is_no_delay() {
    for policy in ["stale", "sandwich"] {
        let (mut plain, mut zero) = (
            Run::new(&format!("policy={policy}"), (6, 5)),
            Run::new(&format!("policy={policy} refresh_delay=0"), (6, 5)),
        );
        for _ in 0..20 {
            plain.step();
            zero.step();
        }
        assert!(plain.params == zero.params && plain.model.save() == zero.model.save());
        assert_eq!(zero.model.stats().delayed_checks, 0);
    }
}

/// The sandwich's guarantee with a delay: at a check the bound holds, and is at most τ unless the check asked for a
/// refresh, which is counted.
#[test]
fn the_bound_holds_at_every_check_and_what_passes_tau_is_counted() {
    for delay in [1, 3, 5, 10, 13] {
        let options = format!("policy=sandwich tau=0.2 check_period=5 refresh_delay={delay}");
        let mut run = Run::new(&options, (12, 9));
        let mut above = 0;
        for t in 1..=120u64 {
            run.step();
            for place in AXES {
                let (info, gap) = (run.model.factor(place), run.model.exact_gap(place));
                if info.last_check != t || t == 1 {
                    continue;
                }
                let asked = info.pending_since > 0;
                // The spectrum was corrected, whether or not the check asked for a refresh.
                assert!(gap <= info.gap_bound + 1e-6, "delay {delay}, step {t}: {gap}, {info:?}");
                assert_eq!(info.gap_bound > 0.2, asked && info.last_branch == FOAM_BRANCH_EVD_THRESHOLD);
                above += u64::from(info.gap_bound > 0.2);
            }
        }
        let stats = run.model.stats();
        println!(
            "delay {delay}: {} of {} checks above tau, {} refreshes",
            above, stats.checks, stats.evd_calls
        );
        assert_eq!(stats.delayed_checks, above);
        assert!(stats.evd_calls > 4 && stats.reuse_calls > 0, "{stats:?}");
    }
}

#[test]
fn a_refresh_that_fails_in_the_background_takes_the_ladder_and_is_counted_when_it_is_taken() {
    for (fault, rungs) in
        [("evd_chosen", [1, 1, 0, 0]), ("evd_double", [1, 0, 1, 0]), ("evd_all", [1, 0, 0, 1])]
    {
        // Often enough that the thread is at times done before the refresh is taken, and at times not.
        for dtype in [Dtype::F64, Dtype::F32].repeat(10) {
            let options = format!("policy=stale refresh_delay=3 inject_fault={fault} inject_fault_step=2");
            let mut run = Run::new(&options, (8, 6));
            run.spec.dtype = dtype;
            run.model =
                Model::new("reference", &format!("{OPTIONS} {options}"), std::slice::from_ref(&run.spec));
            run.params = [run.spec.tensor(&run.params[0].values())];
            let mut first = Vec::new();
            for t in 1..=11 {
                run.step();
                let stats = run.model.stats();
                let found =
                    [stats.failed_evds, stats.fallback_double, stats.fallback_svd, stats.fallback_stale];
                // Requests at 4 and 8, taken at 7 and 11.
                let taken = 2 * (u64::from(t >= 7) + u64::from(t >= 11));
                assert_eq!(found, rungs.map(|rung| rung * taken), "{fault}, step {t}");
                if t == 6 {
                    first = run.read(0, FOAM_FACTOR_BASIS);
                }
            }
            let info = run.model.factor(AXES[0]);
            let kept = fault == "evd_all";
            assert_eq!(run.read(0, FOAM_FACTOR_BASIS) == first, kept, "{fault}");
            assert_eq!(
                (info.epsilon, info.last_refresh),
                if kept { (1e-2, 1) } else { (1e-4, 8) },
                "{fault}"
            );
            assert!(run.params[0].values().iter().all(|x| x.is_finite()));
        }
    }
}

#[test]
fn options_that_change_while_a_refresh_is_under_way_hold_when_it_is_taken() {
    let make = || Run::new("policy=stale refresh_delay=3", (8, 6));
    for (key, value) in [("epsilon", "3e-3"), ("negative_eigenvalues", "clamp"), ("noise_floor", "false")] {
        let mut run = make();
        (0..5).for_each(|_| run.step());
        // A copy that never began the refresh with the options of before.
        let mut copy = make();
        copy.model.load(&run.model.save()).unwrap();
        (copy.params, copy.t) = (run.params.clone(), run.t);
        for each in [&mut run, &mut copy] {
            each.set(key, value).unwrap();
            (0..4).for_each(|_| each.step());
        }
        assert!(run.params == copy.params, "{key}");
        assert_eq!(run.model.statistics(), copy.model.statistics(), "{key}");
        let info = run.model.factor(AXES[0]);
        assert_eq!((info.last_refresh, info.pending_since), (4, 8), "{info:?}");
        assert_eq!(info.epsilon, if key == "epsilon" { 3e-3 } else { 1e-4 });
        assert_eq!(info.noise_floor.is_nan(), key == "noise_floor");
    }
    // A shorter delay is one from the next step on, a longer one postpones.
    let mut run = make();
    (0..4).for_each(|_| run.step());
    run.set("refresh_delay", "1").unwrap();
    run.step();
    assert_eq!(run.model.factor(AXES[0]).last_refresh, 4);
    (0..3).for_each(|_| run.step());
    run.set("refresh_delay", "7").unwrap();
    (0..6).for_each(|_| run.step());
    assert_eq!(run.model.factor(AXES[0]).last_refresh, 4);
    run.step();
    assert_eq!((run.t, run.model.factor(AXES[0]).last_refresh), (15, 8));
    let refused = run.set("refresh_delay", "0").unwrap_err();
    assert!(refused.message.contains("refresh_delay") && refused.message.contains("different buffers"));
}

#[test]
fn a_parameter_that_takes_no_part_waits_with_its_refresh() {
    let specs = [Spec::new("often", &[6, 5]), Spec::new("seldom", &[4, 7])];
    let mut model = Model::new("reference", &format!("{OPTIONS} policy=stale refresh_delay=2"), &specs);
    let mut params: Vec<Tensor> =
        specs.iter().map(|s| s.tensor(&Random::new(3).normals(s.elements()))).collect();
    for t in 1..=30u64 {
        let grads: Vec<Option<Tensor>> = specs
            .iter()
            .map(|s| {
                let values = Random::new(t).normals(s.elements());
                (s.name == "often" || t % 3 == 0).then(|| s.tensor(&values))
            })
            .collect();
        model.try_step(&mut params, &grads, StepWith::default()).unwrap();
        for (param, own) in [(0, t), (1, t / 3)] {
            // Requests at the multiples of four of the parameter's own clock, taken two of its steps later.
            let info = model.factor((param, 0, 0));
            let since = if own >= 4 && own % 4 < 2 { own / 4 * 4 } else { 0 };
            assert_eq!(info.pending_since, since, "parameter {param}, step {t}");
        }
        let plain = model.stats().plain_steps;
        let next = (1..9).find(|more| (t + more) % 4 == 0 || (t + more) % 4 == 2 && t + more > 5).unwrap();
        assert!(plain < next, "step {t}: {plain} plain steps, but a step is due in {next}");
    }
    assert!(model.stats().evd_calls > 14);
}

#[test]
fn a_handle_is_destroyed_while_refreshes_are_under_way() {
    for delay in ["1", "100"] {
        for _ in 0..8 {
            let mut run = Run::new(&format!("policy=stale check_period=1 refresh_delay={delay}"), (96, 120));
            (0..3).for_each(|_| run.step());
        }
    }
}

#[test]
fn a_delay_that_cannot_be_is_refused_by_name() {
    for (preset, options, expected) in [
        ("reference", "refresh_delay=-1", "refresh_delay"),
        ("soap", "refresh_delay=2", "preconditioner = soap"),
        ("default", "refresh_delay=2 refresh_method=qr", "QR steps"),
    ] {
        let config = match configuration(preset, options) {
            Ok(config) => config,
            Err(failure) => {
                assert!(failure.message.contains(expected), "{}", failure.message);
                continue;
            }
        };
        let Err(failure) = Model::create_only(&config, &[Spec::new("w", &[3, 3])]) else {
            panic!("{options} was taken")
        };
        assert_eq!(failure.status, FOAM_INVALID_ARGUMENT);
        assert!(
            failure.message.contains(expected) && failure.message.contains("refresh_delay"),
            "{}",
            failure.message
        );
    }
}

#[test]
fn a_caller_of_the_verbs_is_told_when_a_basis_may_be_taken() {
    let config = configuration("reference", &format!("{OPTIONS} refresh_delay=3")).unwrap();
    let due = |step: i64| {
        let mut due = -1;
        // SAFETY: a configuration and a place for the answer.
        checked(|error| unsafe { foam_config_check_due(&config, step, &mut due, error) }).unwrap();
        due == 1
    };
    let found: Vec<i64> = (1..=16).filter(|step| due(*step)).collect();
    assert_eq!(found, [1, 4, 7, 8, 11, 12, 15, 16]);
}
