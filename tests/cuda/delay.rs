//! Delayed refreshes on a CUDA device: decomposed on a stream of the library's own beside the steps that go on, and taken
//! a fixed number of steps later, with the records, counters and certificates of the CPU. `tests/delay.rs` has the CPU's.

use crate::cost::{Cost, Trainer, equal, step_all};
use crate::faults;
use crate::graph::{self, Captured};
use crate::parity::{self, parity};
use crate::simulated::{fail_evd, pending, simulated, simulated_with};
use crate::stack::race;
use crate::support::agree::{both_agree_with, plain};
use crate::support::matrix::difference;
use crate::support::model::{Model, Place, Spec};
use crate::support::random::Random;
use crate::support::reference::Options;
use crate::support::tensor::{Dtype, Tensor};
use crate::tier::{self, Need};
use foam::abi::*;
use std::ffi::CString;

const AXES: [Place; 2] = [(0, 0, 0), (0, 0, 1)];
const OPTIONS: &str =
    "check_period=4 start_step=1 beta2=0.9 merge_dims=false epsilon=1e-4 epsilon_max=1e-2 lr=0.1";
/// Decompositions without the solver's errors, which differ from call to call.
const EXACT: [(&str, &str); 1] = [("CUDASIM_EVD_NOISE", "0")];

/// Two equal matrices and a third, and gradients whose sizes move.
struct Run {
    specs: Vec<Spec>,
    model: Model,
    params: Vec<Tensor>,
    t: usize,
}

impl Run {
    fn new(options: &str) -> Run {
        let shapes: [&[i64]; 3] = [&[9, 7], &[9, 7], &[6, 5]];
        let named = |(i, shape): (usize, &&[i64])| Spec::new(&format!("w{i}"), shape);
        let specs: Vec<Spec> = shapes.iter().enumerate().map(named).collect();
        let model = Model::new("reference", &format!("{OPTIONS} {options}"), &specs);
        let mut random = Random::new(5);
        let params = specs.iter().map(|spec| spec.tensor(&random.normals(spec.elements()))).collect();
        Run { specs, model, params, t: 0 }
    }

    fn step(&mut self) {
        self.t += 1;
        let t = self.t;
        let gradient = |(i, spec): (usize, &Spec)| {
            let mut values = Random::new((77 * t + i) as u64).normals(spec.elements());
            let size = |row: usize| 0.05 + (0.7 * row as f64 + 0.05 * t as f64).sin().powi(2);
            let cols = spec.shape[1] as usize;
            values.iter_mut().enumerate().for_each(|(k, x)| *x *= size(k / cols));
            spec.tensor(&values)
        };
        let grads: Vec<Tensor> = self.specs.iter().enumerate().map(gradient).collect();
        self.model.step(&mut self.params, &grads);
    }

    /// Another run that goes on from here, by way of a checkpoint.
    fn resumed(&self, options: &str) -> Run {
        let mut other = Run::new(options);
        other.model.load(&self.model.save()).unwrap();
        (other.params, other.t) = (self.params.clone(), self.t);
        other
    }

    fn read(&self, axis: usize, what: i32) -> Vec<f64> {
        self.model.read(AXES[axis], what)
    }
}

/// Spectra are corrected in a stale basis: where that is of a statistic without full rank, it depends on the solver.
const DELAYED: [&str; 8] = [
    "stale refresh_delay=1",
    "stale refresh_delay=4",
    "stale refresh_delay=9",
    "foam refresh_delay=3",
    "diagonal_residual refresh_delay=2 start_step=20",
    "foam_certified refresh_delay=5 keep_inverse_root=false",
    "sandwich refresh_delay=2 start_step=20",
    "sandwich check_period=12 correction_period=4 refresh_delay=4",
];

#[test]
fn every_policy_agrees_with_the_cpu() {
    if !tier::runs(Need::Long) {
        return;
    }
    simulated(|| {
        for policy in DELAYED {
            parity("reference", &format!("policy={policy}"), Dtype::F64, Dtype::F64, 1e-9);
        }
    });
    simulated_with(&["eager"], &[], || {
        for policy in DELAYED {
            parity("reference", &format!("policy={policy}"), Dtype::F32, Dtype::F32, 2e-3);
        }
    });
}

#[test]
fn the_naive_optimizer_agrees() {
    if !tier::runs(Need::Long) {
        return;
    }
    simulated(|| {
        for policy in ["foam", "foam_fixed_epsilon", "stale"] {
            for refresh_delay in [1, 3, 4, 10] {
                let options = Options { refresh_delay, ..plain(policy) };
                let agree = |options: &Options, dims: &[usize]| {
                    both_agree_with("device=cuda:0", 30, options, dims, 3, 1e-8)
                };
                let (refreshes, _) = agree(&options, &[6, 5]);
                assert!(refreshes > 2, "{policy}, {refresh_delay}: {refreshes} refreshes");
                agree(&Options { statistics_period: 2, ..options.clone() }, &[4, 2, 3]);
                agree(&Options { keep_inverse_root: false, ..options }, &[12, 9]);
            }
        }
    });
}

#[test]
fn a_basis_is_of_the_statistic_of_its_request_and_is_taken_when_its_time_has_come() {
    if !tier::runs(Need::Long) {
        return;
    }
    simulated_with(&["eager", "deferred"], &EXACT, || {
        for (delay, period) in [(1, 4), (3, 4), (4, 4), (5, 4), (9, 4), (2, 1), (1, 1)] {
            let options = format!("policy=stale check_period={period} device=cuda:0");
            let mut prompt = Run::new(&options);
            let mut run = Run::new(&format!("{options} refresh_delay={delay}"));
            let (mut bases, mut in_use, mut asked) = (Vec::new(), [Vec::new(), Vec::new()], None);
            for t in 1..=24u64 {
                prompt.step();
                run.step();
                bases.push([0, 1].map(|axis| prompt.read(axis, FOAM_FACTOR_BASIS)));
                let since = asked.take_if(|since| t == *since + delay);
                if let Some(since) = since {
                    in_use = bases[since as usize - 1].clone();
                } else if t == 1 {
                    in_use = bases[0].clone();
                }
                if t > 1 && t % period == 0 {
                    asked = asked.or(Some(t));
                }
                for (axis, expected) in in_use.iter().enumerate() {
                    let case = format!("delay {delay}, period {period}, step {t}, axis {axis}");
                    assert_eq!(run.read(axis, FOAM_FACTOR_BASIS), *expected, "{case}: another basis");
                    let info = run.model.factor(AXES[axis]);
                    assert_eq!(info.pending_since, asked.unwrap_or(0), "{case}");
                    if let Some(since) = since {
                        assert_eq!((info.last_refresh, info.epsilon), (since, 1e-4), "{case}");
                        assert!(info.noise_floor.is_finite(), "{case}: {info:?}");
                    }
                }
            }
        }
    });
}

/// The caller's stream does not wait for the side stream before the step that takes the basis, nor does the host.
#[test]
fn plain_steps_leave_the_decomposition_behind() {
    simulated_with(&["deferred"], &[], || {
        let options = "merge_dims=false policy=stale refresh_delay=3";
        let trainer = Trainer::new(&equal(3, &[16, 12]), options);
        (0..7).for_each(|_| {
            trainer.step();
        });
        let mut left = Vec::new();
        for _ in 0..4 {
            // The check, and two plain steps.
            let steps = [trainer.step(), trainer.step(), trainer.step()];
            assert_eq!(steps.map(|cost| cost.waits), [1, 0, 0]);
            trainer.settle();
            left.push(pending());
            // The step that takes them; whatever was left of them comes before it.
            let taking = trainer.step();
            assert_eq!((taking.waits, taking.solvers, taking.allocations), (1, 0, 0));
            trainer.settle();
            assert_eq!(pending(), 0, "something was left");
            assert_eq!(trainer.model.stats().evd_calls % 6, 0);
        }
        println!("| pieces of work left on the side stream after two plain steps | {left:?} |");
        // The simulator may have run some of it by chance, as a GPU would.
        assert!(left.iter().any(|count| *count > 5), "the caller's stream has waited for the decompositions");
    });
}

#[test]
fn a_run_goes_on_from_a_checkpoint_of_any_step() {
    if !tier::runs(Need::Long) {
        return;
    }
    simulated_with(&["eager", "deferred"], &EXACT, || {
        for policy in ["stale refresh_delay=3", "stale refresh_delay=6", "sandwich refresh_delay=4 tau=0.2"] {
            let options = format!("policy={policy} device=cuda:0");
            let mut run = Run::new(&options);
            let mut others: Vec<(Run, Run)> = Vec::new();
            for t in 1..=16 {
                run.step();
                for (there, here) in &mut others {
                    there.step();
                    here.step();
                    let case = format!("{policy}: step {t}, resumed after {}", t - 1);
                    assert!(there.params == run.params, "{case}");
                    let off: Vec<f64> = here
                        .params
                        .iter()
                        .zip(&run.params)
                        .map(|(a, b)| difference(&a.values(), &b.values()))
                        .collect();
                    assert!(off.iter().all(|off| *off < 1e-8), "{case} on the CPU: {off:?}");
                }
                if (7..13).contains(&t) {
                    others.push((run.resumed(&options), run.resumed(&format!("policy={policy}"))));
                }
            }
            for (there, _) in &others {
                assert!(there.model.statistics() == run.model.statistics(), "{policy}");
                assert!(there.model.save() == run.model.save(), "{policy}");
            }
        }
    });
}

#[test]
fn a_state_that_is_loaded_while_refreshes_are_under_way_forgets_them() {
    simulated_with(&["eager", "deferred"], &EXACT, || {
        let options = "policy=stale refresh_delay=3 device=cuda:0";
        let (mut run, mut other) = (Run::new(options), Run::new(options));
        (0..5).for_each(|_| run.step());
        let (save, params) = (run.model.save(), run.params.clone());
        // Refreshes of step 8 are under way when the state of step 5 comes.
        (0..4).for_each(|_| run.step());
        run.model.load(&save).unwrap();
        other.model.load(&save).unwrap();
        for each in [&mut run, &mut other] {
            (each.params, each.t) = (params.clone(), 5);
            (0..8).for_each(|_| each.step());
        }
        assert!(run.params == other.params && run.model.save() == other.model.save());
    });
}

#[test]
fn options_that_change_while_a_refresh_is_under_way_hold_when_it_is_taken() {
    simulated_with(&["eager", "deferred"], &EXACT, || {
        let options = "policy=stale refresh_delay=3 device=cuda:0";
        for (key, value) in [("epsilon", "3e-3"), ("negative_eigenvalues", "clamp"), ("noise_floor", "false")]
        {
            let mut run = Run::new(options);
            (0..5).for_each(|_| run.step());
            let mut copy = run.resumed(options);
            for each in [&mut run, &mut copy] {
                let (key, value) = (CString::new(key).unwrap(), CString::new(value).unwrap());
                let mut error = foam_error::new();
                // SAFETY: a live handle and C strings.
                let status =
                    unsafe { foam_set_option(each.model.handle(), key.as_ptr(), value.as_ptr(), &mut error) };
                assert_eq!(status, FOAM_OK);
                (0..4).for_each(|_| each.step());
            }
            assert!(run.params == copy.params, "{key}");
            assert_eq!(run.model.statistics(), copy.model.statistics(), "{key}");
            let info = run.model.factor(AXES[0]);
            assert_eq!((info.last_refresh, info.pending_since), (4, 8), "{info:?}");
            assert_eq!(info.epsilon, if key == "epsilon" { 3e-3 } else { 1e-4 });
            assert_eq!(info.noise_floor.is_nan(), key == "noise_floor");
        }
    });
}

/// Steps that the device refuses on its own, before, at and after requests and takings, do not count.
#[test]
fn a_skipped_step_leaves_no_trace() {
    if !tier::runs(Need::Long) {
        return;
    }
    simulated(|| {
        for delay in [1, 2, 4, 7] {
            let options = format!("nonfinite=skip policy=stale refresh_delay={delay}");
            let (mut clean, mut spoilt) = (parity::bed(&options), parity::bed(&options));
            for t in 0..30 {
                clean.step(t).unwrap();
                spoilt.step(t).unwrap();
                if [1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 18].contains(&t) {
                    spoilt.bad_step(t, [f32::NAN, f32::INFINITY, 1e30][t % 3]).unwrap();
                }
            }
            assert_eq!(clean.params, spoilt.params, "delay {delay}");
            let factors =
                |bed: &parity::Bed| bed.model.factors().iter().map(|f| format!("{f:?}")).collect::<Vec<_>>();
            assert_eq!(factors(&clean), factors(&spoilt), "delay {delay}");
            assert!(clean.model.stats().evd_calls > 20);
        }
    });
}

#[test]
fn a_delayed_refresh_that_fails_is_made_up_for_in_double_precision_at_the_next_check() {
    simulated(|| {
        for policy in ["stale", "sandwich tau=0.01"] {
            let mut bed = parity::bed(&format!("policy={policy} refresh_delay=2"));
            (0..7).for_each(|t| assert_eq!(bed.step(t), Ok(false)));
            let before = bed.model.stats();
            assert_eq!((before.failed_evds, before.evd_calls), (0, before.factors), "{policy}");
            // The check of step 8 asks; what it asked for fails, and is taken at step 10.
            fail_evd(1, "nonorthogonal");
            assert_eq!((bed.step(7), bed.step(8)), (Ok(false), Ok(false)));
            let asked = bed.model.stats();
            assert_eq!((asked.failed_evds, asked.evd_calls), (0, before.factors), "{policy}: not taken yet");
            assert_eq!(bed.step(9), Ok(false));
            let taken = bed.model.stats();
            assert_eq!(
                (taken.failed_evds, taken.fallback_stale, taken.fallback_double),
                (1, 1, 0),
                "{policy}"
            );
            // With the policy stale all are asked for.
            assert!(policy != "stale" || taken.evd_calls == 2 * before.factors - 1, "{taken:?}");
            let failed: Vec<_> = bed.model.factors();
            let failed: Vec<_> = failed.iter().filter(|f| f.last_branch == FOAM_BRANCH_EVD_FAILED).collect();
            assert!(failed.len() == 1 && failed[0].last_refresh == 4, "{policy}: {failed:?}");
            (10..12).for_each(|t| assert_eq!(bed.step(t), Ok(false)));
            let again = bed.model.stats();
            assert_eq!(
                (again.failed_evds, again.fallback_stale, again.fallback_double),
                (2, 1, 1),
                "{policy}"
            );
            (12..20).for_each(|t| assert_eq!(bed.step(t), Ok(false)));
            let last = bed.model.stats();
            assert_eq!((last.failed_evds, last.fallback_double), (2, 1), "{policy}: forgotten after that");
            assert!(bed.params.iter().all(|p| p.values().iter().all(|x| x.is_finite())));
        }
    });
}

#[test]
fn plain_steps_between_request_and_taking_may_be_replayed() {
    simulated(|| {
        let options = "policy=stale refresh_delay=3";
        let (eager, sets) = graph::trainer(options);
        let (mixed, own) = graph::trainer(options);
        mixed.grads.replace(own[0].clone());
        let first = Captured::step(&mixed);
        let mut graphs = vec![first];
        let mut taken = 0;
        while taken < 25 {
            let plain = mixed.model.stats().plain_steps;
            for _ in 0..plain {
                graphs[graphs.len() - 1].replay();
                eager.grads.replace(sets[0].clone());
                assert_eq!(eager.step().waits, 0);
            }
            // A check, or the step that takes what one asked for.
            mixed.grads.replace(own[1].clone());
            eager.grads.replace(sets[1].clone());
            assert_eq!((eager.step().waits, mixed.step().waits), (1, 2), "the clocks are fetched");
            taken += plain + 1;
            // Captured while refreshes are under way, too.
            mixed.grads.replace(own[0].clone());
            if mixed.model.stats().plain_steps > 0 {
                graphs.push(Captured::step(&mixed));
            }
        }
        assert!(graphs.len() > 5);
        for trainer in [&eager, &mixed] {
            graph::synchronize(trainer).unwrap();
        }
        assert_eq!(graph::parameters(&mixed), graph::parameters(&eager));
        let of = |trainer: &Trainer| {
            let s = trainer.model.stats();
            (s.steps, s.checks, s.evd_calls, s.delayed_checks)
        };
        assert_eq!(of(&mixed), of(&eager));
        // The step that takes a refresh waits: no graph can.
        while mixed.model.stats().plain_steps > 0 {
            mixed.step();
        }
        let refused = Captured::new(&mixed, |stream| {
            let (status, message) = mixed.try_step_on(1e-3, stream).unwrap_err();
            assert_eq!(status, FOAM_UNSUPPORTED);
            assert!(message.contains("delayed refresh") && message.contains("args.stream"), "{message}");
        });
        refused.replay();
        mixed.step();
    });
}

#[test]
fn the_handlers_do_what_a_handle_does() {
    if !tier::runs(Need::Long) {
        return;
    }
    simulated_with(&["eager", "deferred"], &EXACT, || {
        for policy in ["stale refresh_delay=2", "sandwich refresh_delay=4", "foam refresh_delay=1"] {
            race(&format!("policy={policy}"), &[6, 5], 3, 18);
        }
        race("policy=foam_certified refresh_delay=3 keep_inverse_root=false", &[4, 3, 2], 2, 14);
    });
}

#[test]
fn a_handle_is_destroyed_while_refreshes_are_under_way() {
    simulated(|| {
        for steps in 3..10 {
            let mut run = Run::new("policy=stale refresh_delay=4 device=cuda:0");
            (0..steps).for_each(|_| run.step());
        }
    });
}

/// A plain step, one that asks, a plain one while refreshes are under way, one that takes them, and one that does both.
fn costs(groups: &[Vec<Spec>]) -> [Cost; 5] {
    let run = |options: &str, steps: usize| -> Vec<Cost> {
        let made =
            |specs: &Vec<Spec>| Trainer::new(specs, &format!("merge_dims=false policy=stale {options}"));
        let trainers: Vec<Trainer> = groups.iter().map(made).collect();
        (0..steps).map(|_| step_all(&trainers, 1e-3, trainers[0].stream()).unwrap()).collect()
    };
    let (apart, at_once) = (run("refresh_delay=2", 12), run("refresh_delay=4", 12));
    assert_eq!(apart[5], apart[10], "plain steps differ");
    [apart[10], apart[7], apart[8], apart[9], at_once[11]]
}

#[test]
fn a_delayed_refresh_costs_the_same_for_one_block_and_for_ten() {
    if !tier::runs(Need::Long) {
        return;
    }
    simulated_with(&["eager"], &[], || {
        println!();
        for groups in [1, 3] {
            let of = |blocks: usize| -> [Cost; 5] {
                let specs = |g: usize| equal(blocks, &[3 + g as i64, 13 + g as i64]);
                costs(&(0..groups).map(specs).collect::<Vec<_>>())
            };
            let one = of(1);
            assert_eq!(of(10), one);
            let names = ["plain", "check that asks", "plain, under way", "taken", "check, taken and asked"];
            for (name, c) in names.iter().zip(&one) {
                println!(
                    "| {groups} | {name} | {} | {} | {} | {} | {} | {} |",
                    c.kernels, c.products, c.solvers, c.waits, c.allocations, c.copies
                );
            }
            let [plain, asking, between, taking, both] = one;
            assert_eq!(between, plain, "a step beside the side stream costs what any plain step does");
            assert_eq!((plain.waits, plain.allocations, plain.copies, plain.solvers), (0, 0, 0, 0));
            assert_eq!((asking.waits, asking.allocations), (1, 0));
            assert_eq!((taking.waits, taking.allocations, taking.solvers), (1, 0, 0));
            assert_eq!(
                (both.waits, both.allocations),
                (1, 0),
                "a check that takes what another asked for waits once"
            );
            assert_eq!(both.solvers, asking.solvers);
        }
    });
}

#[test]
fn a_fault_while_refreshes_are_delayed_changes_nothing_or_says_what_is_lost() {
    if !tier::runs(Need::Long) {
        return;
    }
    simulated_with(&["eager"], &faults::QUIETLY, || {
        let options = |delay: usize| {
            format!("{} merge_dims=false start_step=2 check_period=2 refresh_delay={delay}", faults::OPTIONS)
        };
        let bed = |delay: usize| faults::bed_of("reference", &options(delay));
        // The first bases come at step 2; refreshes are asked for at every second one from 4 on.
        for (delay, step, what) in [
            (3, 3, "plain"),
            (3, 4, "asked"),
            (3, 5, "under way"),
            (1, 5, "taken"),
            (2, 6, "taken and asked"),
        ] {
            let tallies = faults::sweep(|| bed(delay), step - 1);
            faults::print(&format!("delayed, {what}"), &tallies);
            assert!(tallies["cuLaunchKernel"].lost > 0);
            assert!(!what.contains("taken") || tallies["cuStreamWaitEvent"].lost > 0);
            // A solver that fails costs no step: the stale basis stays.
            for solver in ["cusolverDnXsyevd", "cusolverDnXsyevBatched"] {
                assert!(tallies.get(solver).is_none_or(|tally| tally.lost == 0), "{solver}");
            }
        }
        // A state that was loaded begins its refreshes in the first step, before anything is written.
        let save = {
            let mut bed = bed(2);
            (0..5).for_each(|t| assert_eq!(bed.step(t), Ok(false)));
            bed.model.save()
        };
        let resumed = || {
            let mut bed = bed(2);
            bed.model.load(&save).unwrap();
            bed
        };
        let tallies = faults::sweep(resumed, 0);
        faults::print("delayed, resumed", &tallies);
        assert!(tallies["cuEventRecord"].unchanged > 0);
        let options = options(2);
        faults::faults_at_creation("reference", &options);
    });
}
