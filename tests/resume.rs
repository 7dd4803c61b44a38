//! A run that is saved and loaded goes on bit for bit: parameters, statistics, and the checkpoints that it writes
//! later.

use crate::support::model::{Model, Spec, StepWith};
use crate::support::policies_and_schedules;
use crate::support::random::Random;
use crate::support::tensor::{Dtype, Tensor};
use foam::abi::{FOAM_BAD_CHECKPOINT, foam_factor_info};
use std::path::PathBuf;

const STEPS: usize = 40;

fn options(policy: &str) -> String {
    format!(
        "policy={policy} check_period=3 start_step=4 beta2=0.8 max_factor_dim=5 merge_dims=false tau=0.2 \
         epsilon=1e-4 epsilon_max=1e-2 lr=0.1 momentum=0.5 nonfinite=skip"
    )
}

/// Blocks, a vector, a scalar, all element types, and a parameter that is not preconditioned.
fn specs() -> Vec<Spec> {
    vec![
        Spec::new("blocks", &[7, 6]).of(Dtype::F32),
        Spec::new("layer/vector", &[5]).of(Dtype::Bf16),
        Spec::new("matrix \"quoted\" é", &[3, 4]),
        Spec::new("scalar", &[]).of(Dtype::F16),
        Spec { grafting_only: true, ..Spec::new("embedding", &[6]).of(Dtype::F32) },
    ]
}

/// The gradient of every parameter at step `t`; some take no part, and step 9 is not finite.
fn gradients(specs: &[Spec], t: usize) -> Vec<Option<Tensor>> {
    let gradient = |spec: &Spec| {
        let mut random = Random::new((t * 1000 + spec.elements()) as u64);
        let mut values = random.normals(spec.elements());
        if t == 9 {
            values[0] = f64::NAN;
        }
        let absent = spec.name == "layer/vector" && t % 4 == 1;
        (!absent).then(|| spec.tensor(&values))
    };
    specs.iter().map(gradient).collect()
}

/// A run at some step.
struct Run {
    specs: Vec<Spec>,
    model: Model,
    params: Vec<Tensor>,
}

impl Run {
    fn new(specs: Vec<Spec>, options: &str) -> Run {
        Run::with_preset("reference", specs, options)
    }

    fn with_preset(preset: &str, specs: Vec<Spec>, options: &str) -> Run {
        let model = Model::new(preset, options, &specs);
        let start = |s: &Spec| s.tensor(&Random::new(s.elements() as u64).normals(s.elements()));
        let params = specs.iter().map(start).collect();
        Run { specs, model, params }
    }

    /// Takes the steps of `range`, counted from 1.
    fn steps(&mut self, range: std::ops::RangeInclusive<usize>) {
        for t in range {
            let grads = gradients(&self.specs, t);
            let skipped = self.model.try_step(&mut self.params, &grads, StepWith::default()).unwrap();
            assert_eq!(skipped, t == 9);
        }
    }

    /// All that is to be the same: parameters, statistics, checkpoint.
    fn outcome(&self) -> (Vec<Tensor>, String, Vec<u8>) {
        (self.params.clone(), self.model.statistics(), self.model.save())
    }
}

#[track_caller]
fn assert_same(got: &Run, expected: &Run, case: &str) {
    let (got, expected) = (got.outcome(), expected.outcome());
    assert_eq!(got.1, expected.1, "{case}: other statistics");
    assert!(got.0 == expected.0, "{case}: other parameters");
    assert!(got.2 == expected.2, "{case}: another checkpoint");
}

/// A run at step `k`, and its copy in a fresh handle.
fn forked(policy: &str, k: usize) -> (Run, Run) {
    let mut run = Run::new(specs(), &options(policy));
    run.steps(1..=k);
    let mut copy = Run::new(specs(), &options(policy));
    copy.model.load(&run.model.save()).unwrap();
    copy.params = run.params.clone();
    (run, copy)
}

#[test]
fn a_run_resumed_after_any_step_continues_bit_for_bit() {
    let mut whole = Run::new(specs(), &options("foam"));
    whole.steps(1..=STEPS);
    let stats = whole.model.stats();
    assert!(stats.reuse_calls > 10 && stats.cap_refreshes > 10 && stats.skipped_steps == 1, "{stats:?}");
    for k in 0..=25 {
        let (run, mut copy) = forked("foam", k);
        assert_same(&copy, &run, &format!("right after loading step {k}"));
        copy.steps(k + 1..=STEPS);
        assert_same(&copy, &whole, &format!("resumed after step {k}"));
    }
}

#[test]
fn a_run_resumed_while_refreshes_are_under_way_continues_bit_for_bit() {
    for policy in ["stale refresh_delay=2", "stale refresh_delay=7", "sandwich refresh_delay=4"] {
        let mut whole = Run::new(specs(), &options(policy));
        whole.steps(1..=STEPS);
        let stats = whole.model.stats();
        assert!(stats.evd_calls > 10 && stats.delayed_checks > 10 && stats.skipped_steps == 1, "{stats:?}");
        let mut under_way = 0;
        for k in 0..=25 {
            let (run, mut copy) = forked(policy, k);
            under_way += u32::from(run.model.factors().iter().any(|factor| factor.pending_since > 0));
            assert_same(&copy, &run, &format!("{policy}: right after loading step {k}"));
            copy.steps(k + 1..=STEPS);
            assert_same(&copy, &whole, &format!("{policy}: resumed after step {k}"));
            // A handle whose own refreshes are under way forgets them.
            let mut used = Run::new(specs(), &options(policy));
            used.steps(13..=25);
            used.model.load(&run.model.save()).unwrap();
            used.params = run.params.clone();
            used.steps(k + 1..=STEPS);
            assert_same(&used, &whole, &format!("{policy}: loaded over another run after step {k}"));
        }
        assert!(under_way > 8, "{policy}: {under_way} of 26 checkpoints with a refresh under way");
    }
}

fn soap(form: &str, options: &str) -> Run {
    let options =
        format!("soap_form={form} max_factor_dim=5 max_precond_dim=5 lr=0.1 nonfinite=skip {options}");
    Run::with_preset("soap", specs(), &options)
}

#[test]
fn a_run_of_soap_resumed_after_any_step_continues_bit_for_bit() {
    for form in ["exact", "in_basis"] {
        for options in [
            "",
            "refresh_schedule=kappa check_period=2 kappa_threshold=0.3",
            "precondition_1d=true",
            "statistics_period=3",
        ] {
            let mut whole = soap(form, options);
            whole.steps(1..=STEPS);
            let stats = whole.model.stats();
            assert!(stats.evd_calls > 10 && stats.skipped_steps == 1, "{stats:?}");
            for k in [0, 1, 2, 5, 6, 8, 9, 17, 25] {
                let mut run = soap(form, options);
                run.steps(1..=k);
                let mut copy = soap(form, options);
                copy.model.load(&run.model.save()).unwrap();
                copy.params = run.params.clone();
                assert_same(&copy, &run, &format!("{form} {options}: right after loading step {k}"));
                copy.steps(k + 1..=STEPS);
                assert_same(&copy, &whole, &format!("{form} {options}: resumed after step {k}"));
            }
        }
    }
}

#[test]
fn a_checkpoint_of_another_form_or_preconditioner_is_refused() {
    let mut exact = soap("exact", "");
    exact.steps(1..=3);
    let saved = exact.model.save();
    for mut other in [soap("in_basis", ""), Run::new(specs(), &options("foam"))] {
        let failure = other.model.load(&saved).unwrap_err();
        assert_eq!(failure.status, FOAM_BAD_CHECKPOINT);
        assert!(failure.message.contains("other options"), "{}", failure.message);
    }
}

#[test]
fn a_run_of_every_policy_resumes() {
    for policy in policies_and_schedules() {
        let mut whole = Run::new(specs(), &options(policy));
        whole.steps(1..=STEPS);
        for k in [0, 1, 3, 4, 9, 12, 23] {
            let (_, mut copy) = forked(policy, k);
            copy.steps(k + 1..=STEPS);
            assert_same(&copy, &whole, &format!("{policy}, resumed after step {k}"));
        }
    }
}

/// A folder of this test program's own.
fn folder() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("resume-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn a_file_holds_what_memory_holds() {
    let path = folder().join("state.safetensors");
    for k in [2, 7, 16] {
        let (mut run, _) = forked("foam_certified", k);
        run.model.save_file(&path).unwrap();
        assert!(std::fs::read(&path).unwrap() == run.model.save(), "the file is not the checkpoint");
        let mut copy = Run::new(specs(), &options("foam_certified"));
        copy.model.load_file(&path).unwrap();
        copy.params = run.params.clone();
        copy.steps(k + 1..=STEPS);
        run.steps(k + 1..=STEPS);
        assert_same(&copy, &run, &format!("through a file after step {k}"));
    }
    std::fs::remove_dir_all(folder()).unwrap();
}

#[test]
fn a_used_handle_forgets_all_when_it_loads() {
    let (mut run, _) = forked("foam", 11);
    let mut used = Run::new(specs(), &options("foam"));
    used.steps(20..=37);
    used.model.load(&run.model.save()).unwrap();
    used.params = run.params.clone();
    run.steps(12..=STEPS);
    used.steps(12..=STEPS);
    assert_same(&used, &run, "loaded over another run");
}

#[test]
fn the_order_of_parameters_and_the_number_of_threads_may_change_on_the_way() {
    for policy in policies_and_schedules() {
        let (mut run, _) = forked(policy, 10);
        let reversed: Vec<Spec> = specs().into_iter().rev().collect();
        let mut copy = Run::new(reversed, &format!("{} num_threads=3", options(policy)));
        copy.model.load(&run.model.save()).unwrap();
        copy.params = run.params.iter().rev().cloned().collect();
        run.steps(11..=STEPS);
        copy.steps(11..=STEPS);
        copy.params.reverse();
        assert!(copy.params == run.params, "{policy}: other parameters");
        let last = specs().len() as i64 - 1;
        let same = |f: foam_factor_info| format!("{f:?}");
        let mut turned: Vec<_> = copy.model.factors();
        turned.iter_mut().for_each(|f| f.param_index = last - f.param_index);
        turned.sort_by_key(|f| (f.param_index, f.block, f.axis));
        let turned: Vec<String> = turned.into_iter().map(same).collect();
        let expected: Vec<String> = run.model.factors().into_iter().map(same).collect();
        assert_eq!(turned, expected, "{policy}");
        // And back again.
        let mut home = Run::new(specs(), &options(policy));
        home.model.load(&copy.model.save()).unwrap();
        home.params = copy.params.clone();
        assert_same(&home, &run, &format!("{policy}, there and back"));
    }
}

#[test]
fn a_checkpoint_of_another_model_is_refused_and_changes_nothing() {
    let (run, _) = forked("foam", 8);
    let bytes = run.model.save();
    let change = |index: usize, change: &dyn Fn(&mut Spec)| {
        let mut specs = specs();
        change(&mut specs[index]);
        specs
    };
    let others: [(Vec<Spec>, String, &str); 10] = [
        (change(0, &|s| s.shape = vec![6, 7]), options("foam"), "blocks"),
        (change(1, &|s| s.dtype = Dtype::F16), options("foam"), "layer/vector"),
        (change(3, &|s| s.name = "other".to_string()), options("foam"), "other"),
        (specs()[..4].to_vec(), options("foam"), "5 parameters"),
        (specs(), format!("{} max_factor_dim=4", options("foam")), "/stack1/axis0/gauges"),
        (specs(), format!("{} momentum=0", options("foam")), "tensors"),
        (specs(), format!("{} statistic_dtype=f64", options("foam")), "basis"),
        (specs(), format!("{} statistics_period=2", options("foam")), "statistics_period = 1"),
        (specs(), format!("{} keep_inverse_root=false", options("foam")), "root_spectrum"),
        (specs(), format!("{} refresh_delay=2", options("foam")), "pending_statistic"),
    ];
    for (specs, options, expected) in others {
        let mut other = Run::new(specs, &options);
        other.steps(1..=5);
        let before = other.outcome();
        let failure = other.model.load(&bytes).expect_err(expected);
        assert_eq!(failure.status, FOAM_BAD_CHECKPOINT, "{}", failure.message);
        assert!(failure.message.contains(expected), "'{expected}' in: {}", failure.message);
        assert!(other.outcome() == before, "a refused checkpoint changed something");
    }
}
