//! Several optimizers in one step (the groups of a torch optimizer): all take it or none, decided by the device, and the
//! host waits as often as for one.

use crate::cost::{Trainer, equal, step_all};
use crate::simulated::{clear_faults, count, fail, simulated, simulated_with};
use crate::tier::{self, Need};
use cudarc::driver::sys::{self, CUresult, CUstream};
use foam::abi::*;
use std::ptr::null_mut;

const OPTIONS: &str = "merge_dims=false tau=1e6";

/// Three optimizers with options and shapes of their own.
fn groups(options: &str) -> Vec<Trainer> {
    let own = ["lr=0.1", "beta1=0.5 check_period=2", "grafting=sgd weight_decay=0.1"];
    let shapes: [&[i64]; 3] = [&[6, 5], &[6, 5], &[4, 3, 2]];
    let made = |(own, shape): (&&str, &&[i64])| {
        let trainer = Trainer::new(&equal(2, shape), &format!("{OPTIONS} {own} {options}"));
        trainer.settle();
        trainer
    };
    own.iter().zip(&shapes).map(made).collect()
}

fn parameters(trainers: &[Trainer]) -> Vec<Vec<u8>> {
    trainers.iter().for_each(|trainer| synchronize(trainer).unwrap());
    let read = |trainer: &Trainer| {
        let gpu = trainer.model.gpu.as_ref().unwrap();
        let mut bytes = vec![0; 2 * 4 * trainer.elements()];
        let (first, second) = bytes.split_at_mut(4 * trainer.elements());
        gpu.get(0, first);
        gpu.get(2, second);
        bytes
    };
    trainers.iter().map(read).collect()
}

fn synchronize(trainer: &Trainer) -> Result<(), (i32, String)> {
    let mut error = foam_error::new();
    // SAFETY: a live handle and a record.
    match unsafe { foam_synchronize(trainer.model.handle(), &mut error) } {
        FOAM_OK => Ok(()),
        status => Err((status, error.text().to_string())),
    }
}

/// Writes a gradient of the second parameter of `trainer` that is not finite, and the good one back.
fn spoil(trainer: &mut Trainer, value: f32) {
    let elements = trainer.elements();
    let gpu = trainer.model.gpu.as_mut().unwrap();
    let mut bytes = vec![0; 4 * elements];
    gpu.get(3, &mut bytes);
    bytes[..4].copy_from_slice(&value.to_le_bytes());
    gpu.put(3, &bytes);
    trainer.settle();
}

#[test]
fn a_step_together_is_the_steps_one_by_one() {
    simulated(|| {
        let (alone, together) = (groups(""), groups(""));
        let stream = together[0].stream();
        for t in 1..=9u64 {
            let waits = alone.iter().map(|trainer| trainer.step_on(trainer.stream()).waits).sum::<u64>();
            let cost = step_all(&together, 1e-3, stream).unwrap();
            // The second group is checked at every other step, the others at every fourth.
            assert_eq!((waits, cost.waits), (if t % 4 == 0 { 3 } else { 1 - t % 2 }, 1 - t % 2), "step {t}");
        }
        assert_eq!(parameters(&alone), parameters(&together));
        for (a, b) in alone.iter().zip(&together) {
            let (a, b) = (a.model.stats(), b.model.stats());
            assert_eq!((a.steps, a.checks, a.evd_calls), (b.steps, b.checks, b.evd_calls));
        }
    });
}

#[test]
fn a_bad_gradient_of_one_stops_all() {
    simulated(|| {
        let mut groups = groups("check_period=50");
        let stream = groups[0].stream();
        (0..2).for_each(|_| {
            step_all(&groups, 1e-3, stream).unwrap();
        });
        let before = parameters(&groups);
        spoil(&mut groups[2], f32::NAN);
        // The device holds all of them back, and the step after it.
        assert_eq!(step_all(&groups, 1e-3, stream).unwrap().waits, 0);
        step_all(&groups, 1e-3, stream).unwrap();
        let (status, message) = synchronize(&groups[2]).unwrap_err();
        assert_eq!(status, FOAM_NOT_FINITE);
        assert!(message.contains("'p1'") && message.contains("1 steps ago"), "{message}");
        synchronize(&groups[0]).unwrap();
        synchronize(&groups[1]).unwrap();
        assert_eq!(parameters(&groups), before, "a step was taken");
        groups.iter().for_each(|trainer| assert_eq!(trainer.model.stats().steps, 2));
        spoil(&mut groups[2], 1.0);
        step_all(&groups, 1e-3, stream).unwrap();
        groups.iter().for_each(|trainer| assert_eq!(trainer.model.stats().steps, 3));
        assert_ne!(parameters(&groups), before);
    });
}

#[test]
fn a_bad_gradient_is_skipped_by_all_and_counted_by_its_own() {
    simulated(|| {
        let mut groups = groups("nonfinite=skip");
        let stream = groups[0].stream();
        spoil(&mut groups[1], f32::INFINITY);
        step_all(&groups, 1e-3, stream).unwrap();
        // The step reads its gradients before they change.
        groups.iter().for_each(|trainer| synchronize(trainer).unwrap());
        spoil(&mut groups[1], 1.0);
        (0..4).for_each(|_| {
            step_all(&groups, 1e-3, stream).unwrap();
        });
        let stats: Vec<_> = groups.iter().map(|trainer| trainer.model.stats()).collect();
        assert_eq!(
            stats.iter().map(|s| (s.steps, s.skipped_steps)).collect::<Vec<_>>(),
            [(4, 0), (4, 1), (4, 0)]
        );
    });
}

#[test]
fn what_cannot_be_stepped_together_is_refused() {
    simulated_with(&["eager"], &[], || {
        let groups = groups("");
        let (_, message) = step_all(&groups[..0], 1e-3, null_mut()).unwrap_err();
        assert!(message.contains("at least one"), "{message}");
        let (status, message) = step_all(&groups, f64::INFINITY, groups[0].stream()).unwrap_err();
        assert_eq!(status, FOAM_INVALID_ARGUMENT);
        assert!(message.contains("optimizers[0]") && message.contains("args.lr"), "{message}");
        groups.iter().for_each(|trainer| assert_eq!(trainer.model.stats().steps, 0));
    });
}

#[test]
fn a_fault_in_one_changes_nothing_or_loses_all() {
    if !tier::runs(Need::Long) {
        return;
    }
    simulated_with(&["eager"], &[("CUDASIM_QUIET", "1")], || {
        let launches = |step: u64| {
            let groups = groups("");
            let run = || step_all(&groups, 1e-3, groups[0].stream());
            (1..step).for_each(|_| {
                run().unwrap();
            });
            let before = count("cuLaunchKernel");
            run().unwrap();
            count("cuLaunchKernel") - before
        };
        for (entry, most) in
            [("cuLaunchKernel", launches(4)), ("cuStreamSynchronize", 1), ("cuMemcpyDtoHAsync_v2", 6)]
        {
            let (mut unchanged, mut lost) = (0, 0);
            for nth in 1..=most {
                let groups = groups("");
                let stream = groups[0].stream();
                (1..4).for_each(|_| {
                    step_all(&groups, 1e-3, stream).unwrap();
                });
                let before = parameters(&groups);
                // CUDA_ERROR_LAUNCH_FAILED.
                fail(entry, nth, 719);
                let outcome = step_all(&groups, 1e-3, stream);
                clear_faults();
                let (status, message) = outcome.unwrap_err();
                assert_eq!(status, FOAM_DEVICE_ERROR, "{message}");
                if message.contains("lost") {
                    lost += 1;
                    assert_eq!(step_all(&groups, 1e-3, stream).unwrap_err().0, FOAM_POISONED);
                    continue;
                }
                unchanged += 1;
                assert_eq!(parameters(&groups), before, "{entry} {nth}");
                assert_eq!(step_all(&groups, 1e-3, stream).unwrap().waits, 1, "{entry} {nth}");
            }
            println!("| {entry} | nothing changed {unchanged} | lost {lost} |");
            assert!(lost > 0 && (unchanged > 0 || entry != "cuLaunchKernel"));
        }
    });
}

/// A stream that is none of the optimizer's.
struct Other<'a> {
    trainer: &'a Trainer,
    stream: CUstream,
}

impl Other<'_> {
    fn new(trainer: &Trainer) -> Other<'_> {
        let mut stream = null_mut();
        // SAFETY: a plain driver call.
        let status =
            trainer.model.gpu.as_ref().unwrap().within(|| unsafe { sys::cuStreamCreate(&mut stream, 1) });
        assert_eq!(status, CUresult::CUDA_SUCCESS);
        Other { trainer, stream }
    }

    /// Makes a gradient there: it is on its way when this returns.
    fn make(&self, which: usize, values: &[f32]) {
        let target = self.trainer.grads.borrow()[which];
        let bytes = size_of_val(values);
        // SAFETY: as many bytes; a copy from pageable memory has read them when it returns.
        let status = self.trainer.model.gpu.as_ref().unwrap().within(|| unsafe {
            sys::cuMemcpyHtoDAsync_v2(target, values.as_ptr().cast(), bytes, self.stream)
        });
        assert_eq!(status, CUresult::CUDA_SUCCESS);
    }
}

impl Drop for Other<'_> {
    fn drop(&mut self) {
        // SAFETY: the stream is ours.
        self.trainer.model.gpu.as_ref().unwrap().within(|| unsafe {
            sys::cuStreamSynchronize(self.stream);
            sys::cuStreamDestroy_v2(self.stream);
        });
    }
}

#[test]
fn a_step_comes_after_the_streams_that_its_gradients_are_made_on() {
    simulated(|| {
        let made = || {
            let trainer = Trainer::new(&equal(2, &[6, 5]), OPTIONS);
            trainer.settle();
            trainer
        };
        let (late, early) = (made(), made());
        let streams = [Other::new(&late), Other::new(&late)];
        let waiting = Other::new(&early);
        for t in 0..6 {
            for (which, stream) in streams.iter().enumerate() {
                let values: Vec<f32> = (0..30).map(|i| ((i * 7 + t * 3 + which) % 11) as f32 - 5.0).collect();
                stream.make(which, &values);
                waiting.make(which, &values);
                early.settle();
                // SAFETY: the stream is alive.
                early.model.gpu.as_ref().unwrap().within(|| unsafe {
                    assert_eq!(sys::cuStreamSynchronize(waiting.stream), CUresult::CUDA_SUCCESS);
                });
            }
            let after = [streams[0].stream.cast(), streams[1].stream.cast(), late.stream()];
            let cost = late.try_step_after(1e-3, late.stream(), &after).unwrap();
            assert_eq!(cost.waits, early.step().waits);
            // The next gradients may not come before this step has read its own.
            synchronize(&late).unwrap();
            synchronize(&early).unwrap();
        }
        drop((streams, waiting));
        assert_eq!(parameters(&[late]), parameters(&[early]));
    });
}

#[test]
fn a_stream_that_cannot_be_waited_for_changes_nothing() {
    simulated_with(&["eager"], &[("CUDASIM_QUIET", "1")], || {
        let trainer = Trainer::new(&equal(2, &[6, 5]), OPTIONS);
        let other = Other::new(&trainer);
        let after = [other.stream.cast()];
        let step = || trainer.try_step_after(1e-3, trainer.stream(), &after);
        for (entry, status) in [("cuEventRecord", 400), ("cuStreamWaitEvent", 400)] {
            fail(entry, 1, status);
            let (status, message) = step().unwrap_err();
            clear_faults();
            assert_eq!(status, FOAM_DEVICE_ERROR);
            assert!(message.contains(entry) && !message.contains("lost"), "{message}");
        }
        assert_eq!(trainer.model.stats().steps, 0);
        step().unwrap();
        assert_eq!(trainer.model.stats().steps, 1);
        drop(other);
    });
}
