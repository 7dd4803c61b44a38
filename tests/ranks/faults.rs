//! Every fault is an error on all ranks, which says what became of the parameters.

use crate::comm::{Fault, World};
use crate::rank::{
    F64, Failure, Hold, OPTIONS, P, Rank, grads, model, outcome, p, ranks, until_refused, values,
};
use crate::support::model::configuration;
use foam::abi::*;
use std::ptr::null_mut;

/// What differs between ranks is named on every rank, at creation.
#[test]
fn ranks_that_differ_are_refused_by_all() {
    type Change = (&'static str, fn(usize, &mut String, &mut Vec<P>), &'static str);
    let changes: [Change; 6] = [
        (
            "options",
            |rank, options, _| {
                if rank == 2 {
                    options.push_str(" tau=0.25")
                }
            },
            "tau = 0.25",
        ),
        (
            "order",
            |rank, _, params| {
                if rank == 1 {
                    params.swap(0, 3)
                }
            },
            "parameter 0 = 'wide'",
        ),
        (
            "dtypes",
            |rank, _, params| {
                if rank == 1 {
                    params[0].dtype = F64
                }
            },
            "'w' f64",
        ),
        (
            "shapes",
            |rank, _, params| {
                if rank == 2 {
                    params[0].shape = vec![40, 36]
                }
            },
            "[40, 36]",
        ),
        (
            "count",
            |rank, _, params| {
                if rank == 2 {
                    params.truncate(2)
                }
            },
            "nothing more",
        ),
        (
            "bad value",
            |rank, options, _| {
                if rank == 1 {
                    options.push_str(" check_period=0")
                }
            },
            "check_period",
        ),
    ];
    for (what, change, expected) in changes {
        let failures = ranks(3, Fault::None, |number, member| {
            let (mut options, mut params) = (OPTIONS.to_string(), model());
            change(number, &mut options, &mut params);
            let start = values(&params, 1);
            let config = configuration("reference", "").unwrap();
            let mut config = config;
            for option in options.split_whitespace() {
                let (key, value) = option.split_once('=').unwrap();
                if key == "check_period" {
                    config.check_period = value.parse().unwrap();
                } else {
                    crate::support::model::set(&mut config, key, value).unwrap();
                }
            }
            Rank::with(&config, &params, Hold::Replicated, &start, Some(member)).err()
        });
        for (rank, failure) in failures.iter().enumerate() {
            let (status, message) = failure.as_ref().unwrap_or_else(|| panic!("{what}: rank {rank} went on"));
            assert_eq!(*status, FOAM_INVALID_ARGUMENT, "{what}: {message}");
            assert!(message.contains(expected), "{what} on rank {rank}: {message}");
        }
    }
}

/// A rank that takes the world for another size.
#[test]
fn another_world_size_is_refused_by_all() {
    let params = model();
    let failures = ranks(3, Fault::None, |number, mut member| {
        let mut comm = member.comm();
        if number == 2 {
            // Room for the callback that writes three messages: as large a world, with a wrong rank.
            comm.rank = 1;
        }
        let config = configuration("reference", OPTIONS).unwrap();
        create(&config, &comm, &params[..1])
    });
    for failure in failures {
        let (status, message) = failure.unwrap_err();
        assert!(status == FOAM_INVALID_ARGUMENT || status == FOAM_COLLECTIVE_FAILED, "{message}");
    }
    let failures = ranks(2, Fault::None, |number, mut member| {
        let mut comm = member.comm();
        comm.size = if number == 0 { 3 } else { 2 };
        let config = configuration("reference", OPTIONS).unwrap();
        create(&config, &comm, &params[..1])
    });
    for failure in failures {
        let (_, message) = failure.unwrap_err();
        assert!(message.contains("size = ") || message.contains("did not arrive"), "{message}");
    }
    // And a struct that makes no sense is refused before any collective.
    let mut member = World::members(1, Fault::None).remove(0);
    let config = configuration("reference", OPTIONS).unwrap();
    for (change, expected) in [
        (|c: &mut foam_comm| c.rank = 1, "comm.rank = 1"),
        (|c: &mut foam_comm| c.size = 0, "comm.size = 0"),
        (|c: &mut foam_comm| c.all_gatherv = None, "expected both"),
        (|c: &mut foam_comm| c.flags = 4, "comm.flags"),
    ] as [(fn(&mut foam_comm), &str); 4]
    {
        let mut comm = member.comm();
        change(&mut comm);
        let (_, message) = create(&config, &comm, &params[..1]).unwrap_err();
        assert!(message.contains(expected), "{message}");
    }
}

fn create(config: &foam_config, comm: &foam_comm, params: &[P]) -> Result<(), Failure> {
    let mut error = foam_error::new();
    let mut handle = null_mut();
    // SAFETY: initialised structs.
    unsafe {
        let mut raw = std::mem::MaybeUninit::<foam_param>::zeroed();
        foam_param_init(raw.as_mut_ptr(), size_of::<foam_param>() as u32, &mut error);
        let mut raw = raw.assume_init();
        raw.shape = params[0].shape.as_ptr();
        raw.ndim = params[0].shape.len() as i32;
        let status = foam_create_ranks(config, comm, &raw, 1, &mut handle, &mut error);
        outcome(status, &error)?;
        foam_destroy(handle);
    }
    Ok(())
}

/// A gradient that is not finite on one rank only, or only in the block of another: nobody steps, everybody hears.
#[test]
fn a_bad_gradient_on_one_rank_stops_all() {
    let params = model();
    for hold in [Hold::Sharded(0), Hold::Hybrid(0), Hold::Mixed] {
        for skip in [false, true] {
            let options = format!("{OPTIONS} nonfinite={}", if skip { "skip" } else { "error" });
            ranks(4, Fault::None, |_, member| {
                let mut rank = Rank::new(&options, &params, hold, &values(&params, 1), Some(member)).unwrap();
                rank.step(&grads(&params, 0), 0.01).unwrap();
                let (before, state) = (rank.values.clone(), rank.memory());
                let mut bad = grads(&params, 1);
                // The last element: held by one of the ranks.
                *bad[0].as_mut().unwrap().last_mut().unwrap() = f64::NAN;
                let taken = rank.step(&bad, 0.01);
                if skip {
                    assert_eq!(taken, Ok(true));
                    assert_eq!(rank.stats().skipped_steps, 1);
                } else {
                    let (status, message) = taken.unwrap_err();
                    assert_eq!(status, FOAM_NOT_FINITE);
                    assert!(message.contains("'w'"), "{message}");
                    assert!(rank.memory() == state);
                }
                assert!(rank.values == before);
                assert_eq!(rank.step(&grads(&params, 1), 0.01), Ok(false));
            });
        }
    }
}

/// The same where every rank has all of the gradient, and one of them a bad copy. The owner's copy counts: if that is
/// the bad one, nobody steps; any other is not used, and the ranks' parameters are those of a run without it.
#[test]
fn a_bad_copy_of_a_gradient_stops_all_or_none() {
    let params = model();
    let expected = ranks(3, Fault::None, |_, member| {
        let start = values(&params, 1);
        let mut rank = Rank::new(OPTIONS, &params, Hold::Replicated, &start, Some(member)).unwrap();
        rank.step(&grads(&params, 1), 0.01).unwrap();
        rank.values.clone()
    });
    let mut refused = 0;
    for bad in 0..3 {
        let ended = ranks(3, Fault::None, |number, member| {
            let start = values(&params, 1);
            let mut rank = Rank::new(OPTIONS, &params, Hold::Replicated, &start, Some(member)).unwrap();
            let (before, mut own) = (rank.values.clone(), grads(&params, 1));
            if number == bad {
                *own[0].as_mut().unwrap().last_mut().unwrap() = f64::NAN;
            }
            let taken = rank.step(&own, 0.01);
            if let Err((status, message)) = &taken {
                assert!(*status == FOAM_NOT_FINITE && message.contains("'w'"), "{message}");
                assert!(rank.values == before);
                assert_eq!(rank.step(&grads(&params, 1), 0.01), Ok(false));
            }
            assert!(rank.values == expected[number], "rank {number}, the bad copy on {bad}");
            taken.is_err()
        });
        assert!(ended.iter().all(|each| *each == ended[0]), "the bad copy on {bad}: {ended:?}");
        refused += usize::from(ended[0]);
    }
    assert_eq!(refused, 1, "one rank owns the block of the last element");
}

/// What ranks disagree about in a step is an error on all of them, and the next step is taken.
#[test]
fn ranks_that_disagree_about_a_step_refuse_it_together() {
    let params = model();
    type Bad = fn(usize, &mut Rank, &mut Vec<Option<Vec<f64>>>, &mut f64);
    let faults: [(Bad, &str); 3] = [
        (
            |rank, _, grads, _| {
                if rank == 1 {
                    grads[0] = None
                }
            },
            "'w' is f32 on rank 0 and absent on rank 1",
        ),
        (
            |rank, _, _, lr| {
                if rank == 2 {
                    *lr = 0.5
                }
            },
            "lr is 0.01 on rank 0 and 0.5 on rank 2",
        ),
        (
            |rank, _, _, lr| {
                if rank == 1 {
                    *lr = -1.0
                }
            },
            "args.lr = -1",
        ),
    ];
    for hold in [Hold::Replicated, Hold::Sharded(0)] {
        for (fault, expected) in faults {
            ranks(3, Fault::None, |number, member| {
                let mut rank = Rank::new(OPTIONS, &params, hold, &values(&params, 1), Some(member)).unwrap();
                let before = rank.values.clone();
                let (mut own, mut lr) = (grads(&params, 0), 0.01);
                fault(number, &mut rank, &mut own, &mut lr);
                let (status, message) = rank.step(&own, lr).unwrap_err();
                assert_eq!(status, FOAM_INVALID_ARGUMENT);
                assert!(message.contains(expected), "rank {number}: {message}");
                assert!(rank.values == before);
                assert_eq!(rank.step(&grads(&params, 0), 0.01), Ok(false));
            });
        }
    }
}

/// A step that is only validated writes nothing and hears the same.
#[test]
fn validation_is_shared() {
    let params = model();
    for hold in [Hold::Replicated, Hold::Sharded(0)] {
        ranks(2, Fault::None, |_, member| {
            let mut rank = Rank::new(OPTIONS, &params, hold, &values(&params, 1), Some(member)).unwrap();
            let (before, state) = (rank.values.clone(), rank.memory());
            assert_eq!(rank.step_with(&grads(&params, 0), 0.01, FOAM_STEP_VALIDATE), Ok(false));
            let mut bad = grads(&params, 0);
            bad[0].as_mut().unwrap()[0] = f64::INFINITY;
            let (status, _) = rank.step_with(&bad, 0.01, FOAM_STEP_VALIDATE).unwrap_err();
            assert_eq!(status, FOAM_NOT_FINITE);
            assert!(rank.values == before && rank.memory() == state);
        });
    }
}

/// Every collective of creation and of two steps fails, or returns short, on one rank: an error on all ranks, which
/// says what became of the parameters; nobody hangs, and a rank whose message says "no parameter was written" has
/// its old ones.
#[test]
fn every_collective_may_fail() {
    let params = vec![p("w", &[40, 37]), p("bias", &[5])];
    // Four collectives of the creation, then those of two steps. What returns short at the end of the second step is
    // heard of by the other rank in the third.
    for (hold, count) in [(Hold::Replicated, 8), (Hold::Mixed, 14)] {
        for number in 0..count {
            for fault in [Fault::Fails { rank: 1, at: number }, Fault::Short { rank: 1, at: number }] {
                let ended = until_refused(OPTIONS, &params, hold, fault);
                let first = ended[1].as_ref().map(|end| end.at_creation);
                assert_eq!(first, Some(number < 4), "{fault:?}: {ended:?}");
            }
        }
    }
}

/// Every collective of a save or a load fails, or returns short, on one rank: an error on that rank and on all that
/// wait for it; the file is the old one or the new one, whole; and the state is the one that it was.
#[test]
fn every_collective_of_a_checkpoint_may_fail() {
    let folder = std::env::temp_dir().join(format!("foam-rank-faults-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("state");
    let params = vec![p("w", &[40, 37]), p("bias", &[5])];
    // How many collectives a run has up to its end, which saves a second time, and then loads.
    let run = |fault: Fault, watched: &(dyn Fn(usize, &Rank) + Sync)| {
        ranks(2, fault, |number, member| {
            let start = values(&params, 1);
            let mut rank = Rank::new(OPTIONS, &params, Hold::Sharded(0), &start, Some(member)).unwrap();
            rank.step(&grads(&params, 0), 0.01).unwrap();
            rank.file(&path, true).unwrap();
            rank.step(&grads(&params, 1), 0.01).unwrap();
            watched(number, &rank);
            let saved = rank.file(&path, true);
            // After a failed one the ranks are out of step.
            let loaded = if saved.is_ok() { rank.file(&path, false) } else { Ok(()) };
            (saved, loaded, rank.member.as_ref().unwrap().calls.len())
        })
    };
    let first = std::sync::Mutex::new(0);
    let good = run(Fault::None, &|_, rank| {
        *first.lock().unwrap() = rank.member.as_ref().unwrap().calls.len();
    });
    let (begin, end) = (*first.lock().unwrap(), good[0].2);
    assert!(good.iter().all(|(saved, loaded, _)| saved.is_ok() && loaded.is_ok()) && end > begin + 3);
    let newer = std::fs::read(&path).unwrap();
    for at in begin..end {
        for fault in [Fault::Fails { rank: 1, at }, Fault::Short { rank: 1, at }] {
            let older = std::sync::Mutex::new(Vec::new());
            let ended = run(fault, &|number, _| {
                if number == 0 {
                    *older.lock().unwrap() = std::fs::read(&path).unwrap();
                }
            });
            let (saved, loaded, _) = &ended[1];
            let failure = saved.as_ref().and(loaded.as_ref()).expect_err("the fault is in one of the two");
            assert_eq!(failure.0, FOAM_COLLECTIVE_FAILED, "{fault:?}: {}", failure.1);
            let (older, there) = (older.into_inner().unwrap(), std::fs::read(&path).unwrap());
            assert!(there == older || there == newer, "{fault:?}: a file that nobody saved");
            assert!(older != newer && std::fs::read_dir(&folder).unwrap().count() == 1, "{fault:?}");
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A rank that panics between exchange and apply: the others hear of it, and say that the parameters are lost.
#[test]
fn a_rank_that_dies_in_the_middle_is_heard_of() {
    let params = model();
    for hold in [Hold::Replicated, Hold::Sharded(0)] {
        ranks(3, Fault::None, |number, member| {
            let options = if number == 1 {
                format!("{OPTIONS} inject_fault=panic inject_fault_step=2")
            } else {
                OPTIONS.into()
            };
            let mut rank = Rank::new(&options, &params, hold, &values(&params, 1), Some(member)).unwrap();
            rank.step(&grads(&params, 0), 0.01).unwrap();
            let (status, message) = rank.step(&grads(&params, 1), 0.01).unwrap_err();
            if number == 1 {
                assert_eq!(status, FOAM_PANIC);
            } else {
                assert_eq!(status, FOAM_COLLECTIVE_FAILED);
                assert!(message.contains("rank 1 failed") && message.contains("lost"), "{message}");
            }
        });
    }
}

/// Parts that do not make up the parameter.
#[test]
fn parts_that_do_not_fit_are_refused_by_all() {
    ranks(2, Fault::None, |_, mut member| {
        let comm = member.comm();
        let config = configuration("reference", OPTIONS).unwrap();
        let shape = [6i64, 4];
        let mut error = foam_error::new();
        let mut handle = null_mut();
        // SAFETY: initialised structs.
        unsafe {
            let mut raw = std::mem::MaybeUninit::<foam_param>::zeroed();
            foam_param_init(raw.as_mut_ptr(), size_of::<foam_param>() as u32, &mut error);
            let mut raw = raw.assume_init();
            raw.shape = shape.as_ptr();
            raw.ndim = 2;
            (raw.shard_axis, raw.shard_start, raw.shard_length) = (0, 3 * i64::from(comm.rank), 2);
            let status = foam_create_ranks(&config, &comm, &raw, 1, &mut handle, &mut error);
            assert_eq!(status, FOAM_INVALID_ARGUMENT);
            assert!(error.text().contains("places 2 to 3 of axis 0 on no rank"), "{}", error.text());
            // Alone, a part makes no sense.
            let status = foam_create(&config, &raw, 1, &mut handle, &mut error);
            assert_eq!(status, FOAM_INVALID_ARGUMENT);
            assert!(error.text().contains("foam_create_ranks"), "{}", error.text());
        }
    });
}
