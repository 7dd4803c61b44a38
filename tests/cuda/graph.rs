//! Plain steps in a CUDA graph: captured on a stream of its own, replayed without the host, with the results, the clocks
//! and the checks of steps that the host takes one by one.

use crate::cost::{Cost, Trainer, equal, step_all};
use crate::simulated::{count, simulated, simulated_with};
use crate::support::random::Random;
use cudarc::driver::sys::{self, CUgraphExec, CUresult, CUstream};
use foam::abi::*;
use std::ffi::c_void;
use std::ptr::null_mut;

const OPTIONS: &str = "merge_dims=false tau=0.05";

#[track_caller]
fn check(status: CUresult) {
    assert_eq!(status, CUresult::CUDA_SUCCESS);
}

/// A stream that was captured, and the graph of what was put on it.
pub struct Captured<'a> {
    trainer: &'a Trainer,
    stream: CUstream,
    exec: CUgraphExec,
}

impl Captured<'_> {
    /// Captures what `body` puts on a new stream.
    pub fn new(trainer: &Trainer, body: impl FnOnce(*mut c_void)) -> Captured<'_> {
        let (mut stream, mut graph, mut exec) = (null_mut(), null_mut(), null_mut());
        trainer.model.gpu.as_ref().unwrap().within(|| {
            // SAFETY: plain driver calls, each checked.
            unsafe {
                check(sys::cuStreamCreate(&mut stream, 1));
                let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_GLOBAL;
                check(sys::cuStreamBeginCapture_v2(stream, mode));
                body(stream.cast());
                check(sys::cuStreamEndCapture(stream, &mut graph));
                check(sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0));
                check(sys::cuGraphDestroy(graph));
            }
        });
        Captured { trainer, stream, exec }
    }

    /// A plain step of all optimizers together.
    pub fn steps(trainers: &[Trainer]) -> Captured<'_> {
        let [first, _, ..] = trainers else { return Captured::step(&trainers[0]) };
        Captured::new(first, |stream| {
            let cost = step_all(trainers, 1e-3, stream).unwrap();
            assert_eq!((cost.waits, cost.allocations, cost.copies), (0, 0, 0));
        })
    }

    /// A plain step.
    pub fn step(trainer: &Trainer) -> Captured<'_> {
        Captured::new(trainer, |stream| {
            let cost = trainer.try_step_on(1e-3, stream).unwrap();
            assert_eq!((cost.waits, cost.allocations, cost.copies), (0, 0, 0));
        })
    }

    /// Launches the graph; says what that cost.
    pub fn replay(&self) -> Cost {
        let before = Cost::now();
        // SAFETY: graph and stream are alive.
        self.trainer.model.gpu.as_ref().unwrap().within(|| unsafe {
            check(sys::cuGraphLaunch(self.exec, self.stream));
        });
        let cost = Cost::now().since(before);
        assert_eq!((cost.kernels, cost.products, cost.waits), (0, 0, 0), "the host took part");
        cost
    }
}

impl Drop for Captured<'_> {
    fn drop(&mut self) {
        // SAFETY: both are ours.
        self.trainer.model.gpu.as_ref().unwrap().within(|| unsafe {
            check(sys::cuStreamSynchronize(self.stream));
            check(sys::cuGraphExecDestroy(self.exec));
            check(sys::cuStreamDestroy_v2(self.stream));
        });
    }
}

/// A trainer with a second set of gradients.
pub fn trainer(options: &str) -> (Trainer, [Vec<u64>; 2]) {
    let specs = equal(3, &[6, 5]);
    let mut trainer = Trainer::new(&specs, &format!("{OPTIONS} {options}"));
    let mut random = Random::new(8);
    let gpu = trainer.model.gpu.as_mut().unwrap();
    let mut put = |i: usize| gpu.put(50 + i, specs[i].tensor(&random.normals(30)).elements());
    let second = (0..3).map(&mut put).collect();
    let first = trainer.grads.borrow().clone();
    (trainer, [first, second])
}

pub fn parameters(trainer: &Trainer) -> Vec<Vec<u8>> {
    let gpu = trainer.model.gpu.as_ref().unwrap();
    let read = |which: usize| {
        let mut bytes = vec![0; 120];
        gpu.get(2 * which, &mut bytes);
        bytes
    };
    (0..3).map(read).collect()
}

/// Waits for all that an optimizer has done: its memory is read on another stream afterwards.
pub fn synchronize(trainer: &Trainer) -> Result<(), (i32, String)> {
    let mut error = foam_error::new();
    // SAFETY: a live handle and a record.
    match unsafe { foam_synchronize(trainer.model.handle(), &mut error) } {
        FOAM_OK => Ok(()),
        status => Err((status, error.text().to_string())),
    }
}

#[test]
fn replayed_steps_are_the_steps_that_would_have_been() {
    simulated(|| {
        let (eager, sets) = trainer("");
        let (mixed, own) = trainer("");
        // Captured before there is a basis; the replays take the direction that there is by then.
        mixed.grads.replace(own[0].clone());
        let graph = Captured::step(&mixed);
        assert_eq!(mixed.model.stats().steps, 0, "a captured step is not taken");
        let mut taken = 0;
        while taken < 23 {
            // Plain steps from the graph, the check from the host with other gradients, and a plain one after it.
            let plain = mixed.model.stats().plain_steps;
            for _ in 0..plain {
                graph.replay();
                eager.grads.replace(sets[0].clone());
                assert_eq!(eager.step().waits, 0);
            }
            mixed.grads.replace(own[1].clone());
            eager.grads.replace(sets[1].clone());
            for waits in [1, 0] {
                assert_eq!(eager.step().waits, waits);
                assert_eq!(mixed.step().waits, waits + 1, "the clocks are fetched");
            }
            taken += plain + 2;
            assert_eq!(mixed.model.stats().steps, taken);
        }
        for trainer in [&eager, &mixed] {
            synchronize(trainer).unwrap();
        }
        assert_eq!(parameters(&mixed), parameters(&eager));
        let (m, e) = (mixed.model.stats(), eager.model.stats());
        assert_eq!((m.steps, m.checks, m.evd_calls), (e.steps, e.checks, e.evd_calls));
        assert!(e.checks > 20 && count("graph_launches") > 10);
    });
}

#[test]
fn a_check_on_a_capturing_stream_is_refused_and_spoils_nothing() {
    simulated_with(&["eager"], &[], || {
        let (trainer, _) = trainer("");
        (0..3).for_each(|_| {
            trainer.step();
        });
        assert_eq!(trainer.model.stats().plain_steps, 0);
        // The capture goes on after the refusal, and its graph is a whole one.
        let graph = Captured::new(&trainer, |stream| {
            let (status, message) = trainer.try_step_on(1e-3, stream).unwrap_err();
            assert_eq!(status, FOAM_UNSUPPORTED);
            assert!(message.contains("captured") && message.contains("args.stream"), "{message}");
        });
        graph.replay();
        assert_eq!(trainer.step().waits, 1);
        assert_eq!((trainer.model.stats().checks, trainer.model.stats().steps), (6, 4));
        assert_eq!(trainer.model.stats().plain_steps, 3);
    });
}

#[test]
fn a_bad_gradient_in_a_replay_is_held_back_and_told() {
    simulated_with(&["deferred"], &[], || {
        let (mut trainer, sets) = trainer("check_period=50");
        trainer.step();
        let graph = Captured::step(&trainer);
        graph.replay();
        synchronize(&trainer).unwrap();
        let before = parameters(&trainer);
        let bad = [f32::NAN; 30];
        drop(graph);
        let gpu = trainer.model.gpu.as_mut().unwrap();
        gpu.put(3, bad.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>().as_slice());
        let graph = Captured::step(&trainer);
        (0..3).for_each(|_| {
            graph.replay();
        });
        let (status, message) = trainer.try_step_on(1e-3, null_mut()).unwrap_err();
        assert_eq!(status, FOAM_NOT_FINITE, "{message}");
        assert!(message.contains("'p1'") && message.contains("2 steps ago"), "{message}");
        drop(graph);
        assert_eq!(trainer.model.stats().steps, 2);
        assert_eq!(parameters(&trainer), before, "a step was taken");
        // Told once: with sound gradients, steps are taken again.
        trainer.grads.replace(sets[1].clone());
        trainer.step();
        assert_eq!(trainer.model.stats().steps, 3);
    });
}
