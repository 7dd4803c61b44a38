//! The pool: results do not depend on how many threads there are, and a handle goes on working in a forked child,
//! where its threads do not exist.

#![cfg(target_os = "linux")]

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::{Duration, Instant};
use support::model::{Model, Spec, without_checksums};
use support::random::Random;
use support::tensor::{Dtype, Tensor};

/// Many shapes: blocks of a matrix and of a vector, tall, wide, of order three, tiny, a scalar.
fn specs(dtype: Dtype) -> Vec<Spec> {
    let shapes: [&[i64]; 8] =
        [&[300, 140], &[65, 200], &[1000], &[40, 9, 30], &[1, 130], &[257, 3], &[7], &[]];
    shapes.iter().enumerate().map(|(i, shape)| Spec::new(&format!("w{i}"), shape).of(dtype)).collect()
}

const OPTIONS: &str = "max_factor_dim=128 merge_dims=false check_period=3 beta2=0.9 tau=0.3 epsilon=1e-4 \
                       epsilon_max=1e-2 momentum=0.5";

/// A model, its parameters and the gradients to come.
struct Run {
    model: Model,
    params: Vec<Tensor>,
    specs: Vec<Spec>,
    random: Random,
}

impl Run {
    fn new(specs: Vec<Spec>, options: &str) -> Run {
        let mut random = Random::new(9);
        let params = specs.iter().map(|s| s.tensor(&random.normals(s.elements()))).collect();
        let model = Model::new("reference", &format!("{OPTIONS} {options}"), &specs);
        Run { model, params, specs, random }
    }

    fn steps(&mut self, count: usize) {
        for _ in 0..count {
            let gradient = |s: &Spec| s.tensor(&self.random.normals(s.elements()));
            let grads: Vec<Tensor> = self.specs.iter().map(gradient).collect();
            self.model.step(&mut self.params, &grads);
        }
    }

    /// The state without the header of its checkpoint, which names the number of threads, and its checksums.
    fn state(&self) -> Vec<u8> {
        let bytes = without_checksums(self.model.save());
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        bytes[8 + header..].to_vec()
    }
}

fn every_thread_count_gives_the_same_bits(dtype: Dtype, policy: &str) {
    let run = |threads: usize| {
        let mut run = Run::new(specs(dtype), &format!("policy={policy} num_threads={threads}"));
        run.steps(8);
        assert_eq!(run.model.stats().threads, threads as u64);
        (run.params.clone(), run.model.statistics(), run.state())
    };
    let expected = run(1);
    for threads in [2, 3, 5] {
        let got = run(threads);
        assert_eq!(got.1, expected.1, "{threads} threads");
        assert!(got.0 == expected.0, "other parameters with {threads} threads");
        assert!(got.2 == expected.2, "another state with {threads} threads");
    }
}

#[test]
fn soap_does_not_depend_on_the_number_of_threads() {
    for options in ["soap_form=exact", "soap_form=in_basis", "soap_form=in_basis statistic_dtype=f64"] {
        let run = |threads: usize| {
            let (specs, mut random) = (specs(Dtype::F32), Random::new(9));
            let params = specs.iter().map(|s| s.tensor(&random.normals(s.elements()))).collect();
            let options = format!("{options} max_factor_dim=128 front_period=3 num_threads={threads}");
            let mut run = Run { model: Model::new("soap", &options, &specs), params, specs, random };
            run.steps(8);
            assert_eq!(run.model.stats().threads, threads as u64);
            (run.params.clone(), run.model.statistics(), run.state())
        };
        let expected = run(1);
        for threads in [2, 5] {
            let got = run(threads);
            assert_eq!(got.1, expected.1, "{options}: {threads} threads");
            assert!(got.0 == expected.0, "{options}: other parameters with {threads} threads");
            assert!(got.2 == expected.2, "{options}: another state with {threads} threads");
        }
    }
}

#[test]
fn f32_results_do_not_depend_on_the_number_of_threads() {
    every_thread_count_gives_the_same_bits(Dtype::F32, "foam");
    every_thread_count_gives_the_same_bits(Dtype::F32, "foam_certified");
    every_thread_count_gives_the_same_bits(Dtype::F32, "sandwich");
    every_thread_count_gives_the_same_bits(Dtype::F32, "sandwich refresh_method=qr tau=0.1");
    every_thread_count_gives_the_same_bits(Dtype::F32, "foam keep_inverse_root=false statistics_period=2");
    every_thread_count_gives_the_same_bits(Dtype::F32, "stale refresh_delay=1");
    every_thread_count_gives_the_same_bits(Dtype::F32, "sandwich refresh_delay=2");
}

#[test]
fn a_large_factor_does_not_depend_on_the_threads_that_share_it() {
    // Beside others, alone, and two of them.
    for shapes in [&[&[430i64, 3][..], &[20, 30]][..], &[&[400, 1]], &[&[390, 385]]] {
        let run = |threads: usize| {
            let named = |(i, shape): (usize, &&[i64])| Spec::new(&format!("w{i}"), shape);
            let specs: Vec<Spec> = shapes.iter().enumerate().map(named).collect();
            let mut run = Run::new(specs, &format!("policy=stale max_factor_dim=512 num_threads={threads}"));
            run.steps(4);
            (run.params.clone(), run.model.statistics(), run.state())
        };
        let expected = run(1);
        for threads in [2, 3, 5] {
            let got = run(threads);
            assert_eq!(got.1, expected.1, "{threads} threads");
            assert!(got.0 == expected.0, "other parameters with {threads} threads");
            assert!(got.2 == expected.2, "another state with {threads} threads");
        }
    }
}

#[test]
fn bf16_results_do_not_depend_on_the_number_of_threads() {
    every_thread_count_gives_the_same_bits(Dtype::Bf16, "foam");
    every_thread_count_gives_the_same_bits(Dtype::Bf16, "diagonal_residual");
}

/// Runs `body` in a process of its own, where no other test's threads are: the test starts itself again.
fn alone(test: &str, body: fn()) {
    const VARIABLE: &str = "FOAM_TEST_ALONE";
    if std::env::var(VARIABLE).is_ok_and(|value| value == test) {
        return body();
    }
    let program = std::env::current_exe().expect("the test knows its own path");
    let done = Command::new(program)
        .args([test, "--exact", "--test-threads=1", "--nocapture"])
        .env(VARIABLE, test)
        .output()
        .expect("the test can be started again");
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success() && out.contains("1 passed"), "{}\n{out}{err}", done.status);
}

/// How many threads this process has.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

const CHILD_IS_RIGHT: i32 = 0;
const CHILD_IS_WRONG: i32 = 2;
const CHILD_IS_ALONE: i32 = 3;
const CHILD_PANICKED: i32 = 4;
/// A child that hangs is killed after this many seconds.
const PATIENCE: u32 = 30;

/// Forks; the child makes `run` take two steps, expects `expected`, and destroys the handle. Gives its verdict.
/// What the child allocates lies `shift` places further on than without.
fn child_steps(run: Run, expected: &[Tensor], shift: usize) -> (i32, Run) {
    // SAFETY: the child touches nothing but the library, memory and its own exit.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no child");
    if child == 0 {
        // SAFETY: a plain system call.
        unsafe { libc::alarm(PATIENCE) };
        let verdict = catch_unwind(AssertUnwindSafe(|| {
            let mut run = run;
            let _elsewhere: Vec<Vec<u8>> = (0..shift).map(|_| vec![0; 112]).collect();
            run.steps(2);
            let verdict = match (run.params == expected, threads() > 1) {
                (false, _) => CHILD_IS_WRONG,
                (_, false) => CHILD_IS_ALONE,
                _ => CHILD_IS_RIGHT,
            };
            drop(run);
            verdict
        }));
        // SAFETY: leaves without the parent's exit handlers.
        unsafe { libc::_exit(verdict.unwrap_or(CHILD_PANICKED)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child that was just made.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    let verdict = if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) };
    (verdict, run)
}

fn forkable() -> Run {
    Run::new(specs(Dtype::F32)[1..4].to_vec(), "num_threads=3")
}

/// One whose refreshes are under way most of the time.
fn forkable_delayed() -> Run {
    Run::new(specs(Dtype::F32)[1..4].to_vec(), "num_threads=3 policy=stale check_period=2 refresh_delay=1")
}

#[test]
fn a_handle_made_before_a_fork_works_in_the_child() {
    alone("a_handle_made_before_a_fork_works_in_the_child", || {
        let mut twin = forkable();
        twin.steps(2);
        let (verdict, mut run) = child_steps(forkable(), &twin.params, 0);
        assert_eq!(verdict, CHILD_IS_RIGHT);
        run.steps(2);
        assert!(run.params == twin.params, "the child changed its parent");
    });
}

#[test]
fn a_handle_that_has_stepped_works_in_a_forked_child_and_in_its_parent() {
    alone("a_handle_that_has_stepped_works_in_a_forked_child_and_in_its_parent", || {
        let (mut twin, mut run) = (forkable(), forkable());
        twin.steps(3);
        run.steps(1);
        assert!(threads() > 2, "the pool of the parent has not started");
        for round in 0..16 {
            // The first fork finds the parent's workers awake, the others asleep. Locks that keep sleepers in a
            // table by address fail at some addresses only.
            for shift in [0, round, 3 * round + 1] {
                let verdict;
                (verdict, run) = child_steps(run, &twin.params, shift);
                assert_eq!(verdict, CHILD_IS_RIGHT, "round {round}, shift {shift}");
            }
            run.steps(1);
            twin.steps(1);
        }
        run.steps(2);
        assert!(run.params == twin.params, "the children changed their parent");
    });
}

#[test]
fn a_child_forked_while_refreshes_are_under_way_takes_them_as_its_parent_does() {
    alone("a_child_forked_while_refreshes_are_under_way_takes_them_as_its_parent_does", || {
        let (mut twin, mut run) = (forkable_delayed(), forkable_delayed());
        twin.steps(3);
        run.steps(1);
        for round in 0..12 {
            let verdict;
            (verdict, run) = child_steps(run, &twin.params, 0);
            assert_eq!(verdict, CHILD_IS_RIGHT, "round {round}");
            run.steps(1);
            twin.steps(1);
        }
        run.steps(2);
        assert!(run.params == twin.params, "the children changed their parent");
        assert!(run.model.stats().delayed_checks > 10);
    });
}

#[test]
fn forty_handles_of_as_many_threads_share_one_pool() {
    let named = |name: &str| {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let own = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        own.filter(|comm| comm.trim() == name).count()
    };
    let mut runs: Vec<Run> =
        (0..40).map(|_| Run::new(specs(Dtype::F32)[1..4].to_vec(), "num_threads=23")).collect();
    runs.iter_mut().for_each(|run| run.steps(3));
    assert!(runs.iter().all(|run| run.state() == runs[0].state()));
    // A thread names itself once it runs, and is listed a moment longer than it is waited for.
    let settles = |wanted: usize| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while named("foam-22") != wanted && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(Duration::from_millis(200));
        named("foam-22")
    };
    // No other test asks for so many: this is the last worker of the one pool.
    assert_eq!(settles(1), 1);
    drop(runs);
    assert_eq!(settles(0), 0, "the threads end with the last handle");
}
