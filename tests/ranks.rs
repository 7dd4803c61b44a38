//! Many ranks: the same bits as one process, for every number of ranks and every way to hold the parameters; and, in
//! [`faults`], every fault is an error on all ranks.

mod faults;

use crate::comm::Fault;
use crate::rank::{
    Described, F64, Failure, Hold, OPTIONS, P, Rank, STEPS, cut, grads, model, outcome, p, paste, ranks,
    step_together, values,
};
use crate::support::model::configuration;
use foam::abi::*;
use std::path::Path;
use std::ptr::null_mut;

/// Whole parameters and the state after some steps on one process.
fn alone(params: &[P], steps: u64) -> (Vec<Vec<u8>>, Vec<u8>, Vec<foam_factor_info>) {
    let mut rank = Rank::new(OPTIONS, params, Hold::Replicated, &values(params, 1), None).unwrap();
    for step in 0..steps {
        rank.step(&grads(params, step), 0.01).unwrap();
    }
    (rank.values.clone(), rank.memory(), rank.factors())
}

/// Statistics as bits, so that NaN equals NaN.
fn bits(info: &foam_factor_info) -> Vec<u64> {
    let reals = [
        info.epsilon,
        info.proxy,
        info.max_proxy,
        info.relative_change,
        info.alpha,
        info.gap_bound,
        info.residual,
        info.eigenvalue_min,
        info.eigenvalue_max,
    ];
    let counts = [
        info.param_index as u64,
        info.block as u64,
        info.axis as u64,
        info.checks,
        info.evd_calls,
        info.reuse_calls,
    ];
    reals.iter().map(|r| if r.is_nan() { u64::MAX } else { r.to_bits() }).chain(counts).collect()
}

/// Every rank count and every way to hold the parameters: the bits of one process.
#[test]
fn parameters_and_state_are_those_of_one_process() {
    let params = model();
    let (expected, state, statistics) = alone(&params, STEPS);
    for (size, hold) in [
        (1, Hold::Replicated),
        (1, Hold::Sharded(0)),
        (2, Hold::Replicated),
        (3, Hold::Replicated),
        (4, Hold::Replicated),
        (2, Hold::Sharded(0)),
        (3, Hold::Sharded(0)),
        (4, Hold::Sharded(0)),
        (3, Hold::Sharded(1)),
        (4, Hold::Hybrid(0)),
        (3, Hold::Mixed),
    ] {
        let ended = ranks(size, Fault::None, |_, member| {
            let mut rank = Rank::new(OPTIONS, &params, hold, &values(&params, 1), Some(member)).unwrap();
            for step in 0..STEPS {
                rank.step(&grads(&params, step), 0.01).unwrap();
            }
            let state = rank.memory();
            (rank.values.clone(), rank.parts.clone(), state, rank.factors(), rank.stats())
        });
        let mut seen: Vec<Vec<u64>> = Vec::new();
        for (index, p) in params.iter().enumerate() {
            let mut whole = vec![0u8; p.elements() * p.width()];
            for (rank, (own, parts, ..)) in ended.iter().enumerate() {
                paste(&mut whole, &own[index], &p.shape, p.width(), parts[index]);
                let same = own[index] == cut(&expected[index], &p.shape, p.width(), parts[index]);
                assert!(same, "{} on rank {rank} of {size}, {hold:?}", p.name);
            }
            assert!(whole == expected[index], "{} of {size} ranks, {hold:?}", p.name);
        }
        for (.., own, factors, stats) in &ended {
            assert!(*own == state, "the state of {size} ranks, {hold:?}");
            seen.extend(factors.iter().map(bits));
            assert_eq!(stats.steps, STEPS);
        }
        seen.sort();
        let mut single: Vec<Vec<u64>> = statistics.iter().map(bits).collect();
        single.sort();
        assert!(seen == single, "the statistics of {size} ranks, {hold:?}");
    }
}

/// Each rank has about its share of the state.
#[test]
fn the_state_is_shared() {
    let params = vec![p("a", &[64, 64]), p("b", &[48, 96]), p("c", &[96])];
    let bytes = |size: usize| -> Vec<u64> {
        ranks(size, Fault::None, |_, member| {
            let rank =
                Rank::new(OPTIONS, &params, Hold::Replicated, &values(&params, 1), Some(member)).unwrap();
            rank.stats().state_bytes_host
        })
    };
    let whole = bytes(1)[0];
    for size in 2..5 {
        let each = bytes(size);
        let most = *each.iter().max().unwrap() as f64;
        // Blocks are whole, and arrays begin at multiples of 256 bytes.
        assert!(most < 1.25 * whole as f64 / size as f64 + 8192.0, "{size} ranks: {each:?} of {whole}");
    }
}

/// As few collectives as there can be: two per step if parameters are replicated, four if they are sharded.
#[test]
fn collectives_are_counted() {
    let params = vec![p("a", &[64, 64]), p("b", &[48, 96])];
    for (hold, expected) in [
        (Hold::Replicated, vec!["all_gatherv", "all_gatherv"]),
        (Hold::Sharded(0), vec!["all_gatherv", "all_to_allv", "all_gatherv", "all_to_allv"]),
        (Hold::Mixed, vec!["all_gatherv", "all_to_allv", "all_gatherv", "all_to_allv", "all_gatherv"]),
    ] {
        ranks(2, Fault::None, |_, member| {
            let mut rank = Rank::new(OPTIONS, &params, hold, &values(&params, 1), Some(member)).unwrap();
            rank.member.as_mut().unwrap().calls.clear();
            let before = rank.stats();
            rank.step(&grads(&params, 0), 0.01).unwrap();
            let after = rank.stats();
            assert_eq!(rank.member.as_ref().unwrap().calls, expected, "{hold:?}");
            assert_eq!(after.collectives - before.collectives, expected.len() as u64);
            let sent = after.bytes_sent - before.bytes_sent;
            let values = 4 * (64 * 64 + 48 * 96) as u64;
            // No more than the new values of this rank's blocks, or with shards the gradients and values of the
            // other's blocks and then new values; notes besides.
            assert!(sent > values / 4 && sent < 2 * values, "{hold:?}: {sent}");
        });
    }
}

/// A communicator that takes bytes from where they belong gets new values so, and the library keeps no second copy of
/// them. Here every other rank has such a one; all other tests compare their bits.
#[test]
fn new_values_are_gathered_in_place() {
    let params = vec![p("a", &[64, 64]), p("b", &[64, 64])];
    let found = ranks(2, Fault::None, |number, member| {
        assert_eq!(member.in_place, number == 1);
        let mut rank =
            Rank::new(OPTIONS, &params, Hold::Replicated, &values(&params, 1), Some(member)).unwrap();
        let before = rank.stats().workspace_bytes;
        for step in 0..3 {
            rank.step(&grads(&params, step), 0.01).unwrap();
        }
        (rank.member.as_ref().unwrap().placed, rank.stats().workspace_bytes - before)
    });
    // What comes in: the values of both ranks.
    let values = 2 * 4 * 64 * 64;
    assert_eq!((found[0].0, found[1].0), (0, 3));
    assert!(found[1].1 >= values && found[1].1 < values + values / 4, "{found:?}");
    assert!(found[0].1 >= values + values / 2, "{found:?}");
}

/// The traces of the authors' code, through two ranks: the weights and statistics of one process, which
/// `tests/golden.rs` compares with the traces.
#[test]
fn golden_traces_through_two_ranks() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "safetensors") {
            continue;
        }
        let Ok(case) = crate::traces::Case::load(&path) else { continue };
        let mut config = configuration(case.setup.preset, "num_threads=1").unwrap();
        for (key, value) in &case.setup.options {
            crate::support::model::set(&mut config, key, value).unwrap();
        }
        crate::support::model::set(&mut config, "statistic_dtype", "f64").unwrap();
        let params: Vec<P> = case
            .params
            .iter()
            .enumerate()
            .map(|(index, given)| P {
                name: format!("param_{index}"),
                shape: given.shape.iter().map(|size| *size as i64).collect(),
                dtype: F64,
                root: given.root,
                grafting_only: false,
            })
            .filter(|p| !p.shape.is_empty())
            .collect();
        let start: Vec<Vec<f64>> = case.params.iter().map(|given| given.start.clone()).collect();
        let gradients = |t: usize| -> Vec<Option<Vec<f64>>> {
            case.params.iter().map(|given| Some(given.gradient(t).to_vec())).collect()
        };
        let steps = case.steps;
        let mut single = Rank::with(&config, &params, Hold::Replicated, &start, None).unwrap();
        (1..=steps).for_each(|t| assert!(!single.step(&gradients(t), f64::NAN).unwrap()));
        struct Shared(foam_config);
        // SAFETY: no callbacks in it.
        unsafe impl Sync for Shared {}
        let shared = Shared(config);
        for hold in [Hold::Replicated, Hold::Sharded(0)] {
            let shared = &shared;
            let ended = ranks(2, Fault::None, |_, member| {
                let shared: &Shared = shared;
                let mut rank = Rank::with(&shared.0, &params, hold, &start, Some(member)).unwrap();
                (1..=steps).for_each(|t| assert!(!rank.step(&gradients(t), f64::NAN).unwrap()));
                (rank.values.clone(), rank.parts.clone(), rank.factors())
            });
            for (index, p) in params.iter().enumerate() {
                for (own, parts, _) in &ended {
                    let same = own[index] == cut(&single.values[index], &p.shape, 8, parts[index]);
                    assert!(same, "{}: parameter {index}, {hold:?}", case.name);
                }
            }
            let mut seen: Vec<_> = ended.iter().flat_map(|(.., factors)| factors.iter().map(bits)).collect();
            let mut expected: Vec<_> = single.factors().iter().map(bits).collect();
            seen.sort();
            expected.sort();
            assert!(seen == expected, "{}: statistics, {hold:?}", case.name);
        }
        count += 1;
    }
    assert!(count >= 18, "only {count} traces");
}

/// Of each block: parameter, number, owner, cost.
type Owners = Vec<(i64, i64, i64, u64)>;

fn owners_of(list: impl Fn(*mut foam_block_info, usize, usize, &mut usize) -> foam_status) -> Owners {
    let (mut count, size) = (0, size_of::<foam_block_info>());
    assert_eq!(list(null_mut(), size, 0, &mut count), FOAM_OK);
    // SAFETY: zero bytes are a value of the struct.
    let mut items: Vec<foam_block_info> = vec![unsafe { std::mem::zeroed() }; count];
    assert_eq!(list(items.as_mut_ptr(), size, count, &mut count), FOAM_OK);
    items.iter().map(|i| (i.param_index, i.block, i.owner, i.cost)).collect()
}

/// The same list of owners on every rank, and from a call that creates nothing.
#[test]
fn owners_are_listed_before_and_after() {
    let params = model();
    let after = |rank: &Rank| -> Owners {
        // SAFETY: a live handle, and a list with room.
        owners_of(|items, size, room, count| unsafe {
            foam_blocks(rank.handle, items, size, room, count, null_mut())
        })
    };
    let described = Described::new(&params, &vec![None; params.len()]);
    let config = configuration("reference", OPTIONS).unwrap();
    let before = |ranks: i32| -> Owners {
        let (list, own) = (described.params.as_ptr(), described.params.len());
        // SAFETY: described parameters, and a list with room.
        owners_of(|items, size, room, count| unsafe {
            foam_plan_owners(&config, list, own, ranks, items, size, room, count, null_mut())
        })
    };
    for hold in [Hold::Replicated, Hold::Sharded(0)] {
        let lists = ranks(3, Fault::None, |_, member| {
            let start = values(&params, 1);
            after(&Rank::new(OPTIONS, &params, hold, &start, Some(member)).unwrap())
        });
        assert!(lists.iter().all(|each| *each == before(3)), "{hold:?}");
    }
    for owner in 0..3 {
        assert!(before(3).iter().any(|block| block.2 == owner), "rank {owner} owns nothing");
    }
    let single = Rank::new(OPTIONS, &params, Hold::Replicated, &values(&params, 1), None).unwrap();
    assert_eq!(after(&single), before(1));
    assert!(before(1).iter().all(|block| block.2 == 0) && before(1).len() == before(3).len());
}

/// A checkpoint of any number of ranks is that of one process, byte for byte, and is read by any number.
#[test]
fn checkpoints_do_not_know_the_number_of_ranks() {
    let folder = std::env::temp_dir().join(format!("foam-ranks-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let params = model();
    let (_, state, _) = alone(&params, 5);
    let (expected, ..) = alone(&params, STEPS);
    for (saving, hold) in [(2, Hold::Replicated), (3, Hold::Sharded(0))] {
        let path = folder.join(format!("{saving}"));
        let saved = ranks(saving, Fault::None, |_, member| {
            let mut rank = Rank::new(OPTIONS, &params, hold, &values(&params, 1), Some(member)).unwrap();
            for step in 0..5 {
                rank.step(&grads(&params, step), 0.01).unwrap();
            }
            rank.file(&path, true).unwrap();
            // A directory that is not there: refused on all ranks, and the old file stays.
            let (status, message) = rank.file(&folder.join("none/x"), true).unwrap_err();
            assert!(status == FOAM_IO_ERROR || message.contains("rank 0 refused"), "{message}");
            rank.step(&grads(&params, 5), 0.01).unwrap();
            (rank.values.clone(), rank.parts.clone())
        });
        assert!(std::fs::read(&path).unwrap() == state);
        // Parameters after six steps; the state after five, loaded, and the sixth step once more.
        let mut start: Vec<Vec<u8>> = Vec::new();
        let mut rank = Rank::new(OPTIONS, &params, Hold::Replicated, &values(&params, 1), None).unwrap();
        (0..5).for_each(|step| assert!(!rank.step(&grads(&params, step), 0.01).unwrap()));
        start.extend(rank.values.iter().cloned());
        drop(saved);
        for (loading, hold) in [(1, Hold::Replicated), (2, Hold::Sharded(0)), (4, Hold::Replicated)] {
            let ended = ranks(loading, Fault::None, |_, member| {
                let mut rank = Rank::new(OPTIONS, &params, hold, &values(&params, 1), Some(member)).unwrap();
                for (index, p) in params.iter().enumerate() {
                    rank.values[index] = cut(&start[index], &p.shape, p.width(), rank.parts[index]);
                }
                rank.file(&path, false).unwrap();
                // A file that does not fit is refused by all, and changes nothing.
                rank.file(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml").as_path(), false)
                    .unwrap_err();
                for step in 5..STEPS {
                    rank.step(&grads(&params, step), 0.01).unwrap();
                }
                (rank.values.clone(), rank.parts.clone())
            });
            for (index, p) in params.iter().enumerate() {
                for (own, parts) in &ended {
                    let same = own[index] == cut(&expected[index], &p.shape, p.width(), parts[index]);
                    assert!(same, "{}: saved by {saving}, loaded by {loading}", p.name);
                }
            }
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The states of single parameters in parts: any rank reads any part, and any partition is taken back.
#[test]
fn states_travel_in_parts() {
    let params = model();
    let (expected, ..) = alone(&params, STEPS);
    let sizes = |rank: &Rank| -> Vec<u64> {
        let size = |index: usize| {
            let mut bytes = 0;
            // SAFETY: a live handle.
            let status = unsafe { foam_param_state_bytes(rank.handle, index as i64, &mut bytes, null_mut()) };
            assert_eq!(status, FOAM_OK);
            bytes
        };
        (0..params.len()).map(size).collect()
    };
    let span = |bytes: u64, rank: usize, ranks: usize| {
        let each = bytes.div_ceil(ranks as u64);
        let begin = (each * rank as u64).min(bytes);
        (begin, (bytes - begin).min(each))
    };
    // The whole states and parameters after five steps, on three ranks.
    let saved = ranks(3, Fault::None, |number, member| {
        let mut rank =
            Rank::new(OPTIONS, &params, Hold::Sharded(0), &values(&params, 1), Some(member)).unwrap();
        (0..5).for_each(|step| assert!(!rank.step(&grads(&params, step), 0.01).unwrap()));
        let spans: Vec<(u64, u64)> = sizes(&rank).iter().map(|bytes| span(*bytes, number, 3)).collect();
        let mut data: Vec<Vec<u8>> = spans.iter().map(|(_, bytes)| vec![0; *bytes as usize]).collect();
        let before = rank.memory();
        let parts: Vec<foam_state_part> = spans
            .iter()
            .zip(&mut data)
            .map(|((offset, bytes), data)| foam_state_part {
                offset: *offset,
                bytes: *bytes,
                data: data.as_mut_ptr().cast(),
            })
            .collect();
        // SAFETY: as much memory as the parts say.
        let status = unsafe { foam_read_states(rank.handle, parts.as_ptr(), parts.len(), null_mut()) };
        assert_eq!(status, FOAM_OK);
        assert!(rank.memory() == before);
        data
    });
    let whole: Vec<Vec<u8>> = (0..params.len())
        .map(|index| saved.iter().flat_map(|data| data[index].iter().copied()).collect())
        .collect();
    let mut single = Rank::new(OPTIONS, &params, Hold::Replicated, &values(&params, 1), None).unwrap();
    (0..5).for_each(|step| assert!(!single.step(&grads(&params, step), 0.01).unwrap()));
    let start = single.values.clone();
    for loading in [1, 2, 4] {
        ranks(loading, Fault::None, |number, member| {
            let mut rank =
                Rank::new(OPTIONS, &params, Hold::Replicated, &values(&params, 1), Some(member)).unwrap();
            rank.values.clone_from(&start);
            let mut parts: Vec<foam_state_part> = sizes(&rank)
                .iter()
                .zip(&whole)
                .map(|(bytes, whole)| {
                    assert_eq!(*bytes, whole.len() as u64);
                    let (offset, bytes) = span(*bytes, number, loading);
                    let data = whole.as_ptr().wrapping_add(offset as usize).cast_mut().cast();
                    foam_state_part { offset, bytes, data }
                })
                .collect();
            let write = |rank: &Rank, parts: &[foam_state_part]| -> Result<(), Failure> {
                let mut error = foam_error::new();
                // SAFETY: as much memory as the parts say.
                let status =
                    unsafe { foam_write_states(rank.handle, parts.as_ptr(), parts.len(), 5, 0, &mut error) };
                outcome(status, &error)
            };
            // Bytes that nobody has.
            let before = parts[0];
            parts[0].bytes = parts[0].bytes.saturating_sub(1);
            let (status, message) = write(&rank, &parts).unwrap_err();
            assert_eq!(status, FOAM_BAD_CHECKPOINT);
            assert!(message.contains("on no rank"), "{message}");
            parts[0] = before;
            write(&rank, &parts).unwrap();
            assert_eq!(rank.stats().steps, 5);
            for step in 5..STEPS {
                rank.step(&grads(&params, step), 0.01).unwrap();
            }
            assert!(rank.values == expected, "loaded by {loading}");
        });
    }
}

/// Several optimizers take a step together, with the collectives of one: the bits of one process, and all or none.
#[test]
fn several_optimizers_share_the_collectives_of_one_step() {
    let params = model();
    let (first, second) = (params[..3].to_vec(), params[3..].to_vec());
    let halves = |step: u64| {
        let mut all = grads(&params, step);
        let rest = all.split_off(3);
        (all, rest)
    };
    let start = values(&params, 1);
    let mut single = Rank::new(OPTIONS, &params, Hold::Replicated, &start, None).unwrap();
    (0..STEPS).for_each(|step| assert!(!single.step(&grads(&params, step), 0.01).unwrap()));
    for (hold, collectives) in [(Hold::Replicated, 2), (Hold::Sharded(0), 4), (Hold::Mixed, 5)] {
        ranks(3, Fault::None, |_, member| {
            let mut member = member;
            let config = configuration("reference", OPTIONS).unwrap();
            let comm = Some(member.comm());
            let mut a = Rank::over(&config, &first, hold, &start[..3], comm).unwrap();
            let mut b = Rank::over(&config, &second, hold, &start[3..], comm).unwrap();
            for step in 0..STEPS {
                let before = member.calls.len();
                let (own, other) = halves(step);
                assert_eq!(step_together(&mut [(&mut a, &own), (&mut b, &other)]), Ok(false));
                assert_eq!(member.calls.len() - before, collectives, "{hold:?}");
            }
            for (index, (value, part)) in
                a.values.iter().zip(&a.parts).chain(b.values.iter().zip(&b.parts)).enumerate()
            {
                let p = &params[index];
                assert!(
                    *value == cut(&single.values[index], &p.shape, p.width(), *part),
                    "{} {hold:?}",
                    p.name
                );
            }
            // What one refuses, all refuse: a gradient of the second optimizer is not finite.
            let kept = (a.values.clone(), b.values.clone(), a.memory(), b.memory());
            let (own, mut other) = halves(0);
            *other[0].as_mut().unwrap().last_mut().unwrap() = f64::NAN;
            let (status, message) = step_together(&mut [(&mut a, &own), (&mut b, &other)]).unwrap_err();
            assert!(status == FOAM_NOT_FINITE && message.contains("'wide'"), "{message}");
            assert!(kept == (a.values.clone(), b.values.clone(), a.memory(), b.memory()));
            // One without ranks.
            let mut alone = Rank::new(OPTIONS, &second, Hold::Replicated, &start[3..], None).unwrap();
            let (_, message) = step_together(&mut [(&mut a, &own), (&mut alone, &other)]).unwrap_err();
            assert!(message.contains("optimizers[1] has no other ranks"), "{message}");
            drop((a, b));
        });
    }
}

/// Bits of SOAP, of the other policies and with a refresh schedule do not depend on the number of ranks either.
#[test]
fn every_policy_gives_the_bits_of_one_process() {
    let params = model();
    let own = "max_factor_dim=16 check_period=3 num_threads=1";
    for (preset, options) in [
        ("soap", String::from(own)),
        ("soap", format!("{own} soap_form=in_basis refresh_schedule=kappa")),
        ("reference", format!("{OPTIONS} policy=stale refresh_schedule=geometric")),
        ("reference", format!("{OPTIONS} policy=foam_certified tau=0.3")),
        ("reference", format!("{OPTIONS} refresh_schedule=front_loaded front_period=1 front_steps=4")),
        ("reference", format!("{OPTIONS} grafting=rmsprop nesterov=true")),
        ("reference", format!("{OPTIONS} policy=stale refresh_delay=2")),
    ] {
        let make = |hold: Hold, member| {
            let config = configuration(preset, &options).unwrap_or_else(|f| panic!("{options}: {f:?}"));
            let made = Rank::with(&config, &params, hold, &values(&params, 1), member);
            made.unwrap_or_else(|failure| panic!("{options}: {failure:?}"))
        };
        let mut single = make(Hold::Replicated, None);
        (0..STEPS).for_each(|step| assert!(!single.step(&grads(&params, step), 0.01).unwrap()));
        let state = single.memory();
        for (size, hold) in [(2, Hold::Replicated), (3, Hold::Sharded(0)), (2, Hold::Sharded(1))] {
            let expected = &single.values;
            ranks(size, Fault::None, |_, member| {
                let mut rank = make(hold, Some(member));
                (0..STEPS).for_each(|step| assert!(!rank.step(&grads(&params, step), 0.01).unwrap()));
                for (index, p) in params.iter().enumerate() {
                    let own = cut(&expected[index], &p.shape, p.width(), rank.parts[index]);
                    assert!(rank.values[index] == own, "{options}: {} of {size} ranks, {hold:?}", p.name);
                }
                assert!(rank.memory() == state, "{options}: the state of {size} ranks, {hold:?}");
            });
        }
    }
}
