//! Many ranks: the same bits as one process, for every number of ranks and every way to hold the parameters; and
//! every fault is an error on all ranks.

use crate::comm::{BROKEN, Fault, Member, World};
use crate::support::model::configuration;
use crate::support::random::Random;
use foam::abi::*;
use std::ffi::{CString, c_void};
use std::path::Path;
use std::ptr::null_mut;

const F32: foam_dtype = foam_dtype { code: 2, bits: 32, lanes: 1 };
const F64: foam_dtype = foam_dtype { code: 2, bits: 64, lanes: 1 };
const BF16: foam_dtype = foam_dtype { code: 4, bits: 16, lanes: 1 };

/// A parameter of a test.
#[derive(Clone)]
struct P {
    name: String,
    shape: Vec<i64>,
    dtype: foam_dtype,
    root: f64,
    grafting_only: bool,
}

fn p(name: &str, shape: &[i64]) -> P {
    P { name: name.into(), shape: shape.to_vec(), dtype: F32, root: 0.0, grafting_only: false }
}

impl P {
    fn elements(&self) -> usize {
        self.shape.iter().product::<i64>() as usize
    }

    fn width(&self) -> usize {
        self.dtype.bits as usize / 8
    }

    fn bytes(&self, values: &[f64]) -> Vec<u8> {
        match (self.dtype.code, self.dtype.bits) {
            (4, 16) => values.iter().flat_map(|v| half::bf16::from_f64(*v).to_le_bytes()).collect(),
            (_, 64) => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            _ => values.iter().flat_map(|v| (*v as f32).to_le_bytes()).collect(),
        }
    }
}

/// How the ranks hold a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Hold {
    /// Each has all of it.
    Replicated,
    /// Each has a part of an axis; parts are as torch cuts them, the last ones may be short or empty.
    Sharded(usize),
    /// Two copies of every part.
    Hybrid(usize),
    /// The first parameter sharded, the second replicated, and so on.
    Mixed,
}

/// Start and length of a rank's part of a parameter; none for the whole.
fn part(hold: Hold, index: usize, size: i64, rank: usize, ranks: usize) -> Option<(usize, i64, i64)> {
    let (axis, rank, ranks) = match hold {
        Hold::Replicated => return None,
        Hold::Mixed if index % 2 == 1 => return None,
        Hold::Mixed => (0, rank, ranks),
        Hold::Sharded(axis) => (axis, rank, ranks),
        Hold::Hybrid(axis) => (axis, rank % (ranks / 2), ranks / 2),
    };
    let each = (size + ranks as i64 - 1) / ranks as i64;
    let start = (each * rank as i64).min(size);
    Some((axis, start, (size - start).min(each).max(0)))
}

/// The bytes of a part of a tensor.
fn cut(bytes: &[u8], shape: &[i64], width: usize, part: Option<(usize, i64, i64)>) -> Vec<u8> {
    let Some((axis, start, length)) = part else { return bytes.to_vec() };
    let inner: usize = shape[axis + 1..].iter().product::<i64>() as usize * width;
    let outer: usize = shape[..axis].iter().product::<i64>() as usize;
    let row = shape[axis] as usize * inner;
    let mut cut = Vec::new();
    for slice in 0..outer {
        let begin = slice * row + start as usize * inner;
        cut.extend_from_slice(&bytes[begin..begin + length as usize * inner]);
    }
    cut
}

/// Puts a part back into the whole.
fn paste(whole: &mut [u8], piece: &[u8], shape: &[i64], width: usize, part: Option<(usize, i64, i64)>) {
    let Some((axis, start, length)) = part else { return whole.copy_from_slice(piece) };
    let inner: usize = shape[axis + 1..].iter().product::<i64>() as usize * width;
    let outer: usize = shape[..axis].iter().product::<i64>() as usize;
    let (row, own) = (shape[axis] as usize * inner, length as usize * inner);
    for slice in 0..outer {
        let begin = slice * row + start as usize * inner;
        whole[begin..begin + own].copy_from_slice(&piece[slice * own..(slice + 1) * own]);
    }
}

/// One rank's optimizer, its tensors and its communicator.
struct Rank {
    handle: *mut foam_optimizer,
    params: Vec<P>,
    parts: Vec<Option<(usize, i64, i64)>>,
    values: Vec<Vec<u8>>,
    member: Option<Box<Member>>,
}

// SAFETY: used by one thread at a time.
unsafe impl Send for Rank {}

impl Drop for Rank {
    fn drop(&mut self) {
        // SAFETY: a live handle.
        unsafe { foam_destroy(self.handle) };
    }
}

type Failure = (foam_status, String);

fn outcome(status: foam_status, error: &foam_error) -> Result<(), Failure> {
    if status == FOAM_OK { Ok(()) } else { Err((status, error.text())) }
}

impl Rank {
    fn new(
        options: &str,
        params: &[P],
        hold: Hold,
        start: &[Vec<f64>],
        member: Option<Box<Member>>,
    ) -> Result<Rank, Failure> {
        let config = configuration("reference", options).unwrap();
        Rank::with(&config, params, hold, start, member)
    }

    fn with(
        config: &foam_config,
        params: &[P],
        hold: Hold,
        start: &[Vec<f64>],
        mut member: Option<Box<Member>>,
    ) -> Result<Rank, Failure> {
        let comm = member.as_mut().map(|member| member.comm());
        let names: Vec<CString> = params.iter().map(|p| CString::new(&p.name[..]).unwrap()).collect();
        let parts: Vec<_> = params
            .iter()
            .enumerate()
            .map(|(index, p)| {
                let axis =
                    if let Hold::Sharded(a) | Hold::Hybrid(a) = hold { a.min(p.shape.len() - 1) } else { 0 };
                let hold = match hold {
                    Hold::Sharded(_) => Hold::Sharded(axis),
                    Hold::Hybrid(_) => Hold::Hybrid(axis),
                    other => other,
                };
                comm.and_then(|comm| part(hold, index, p.shape[axis], comm.rank as usize, comm.size as usize))
            })
            .collect();
        let mut error = foam_error::new();
        let mut described = Vec::new();
        for ((p, name), part) in params.iter().zip(&names).zip(&parts) {
            let mut raw = std::mem::MaybeUninit::<foam_param>::zeroed();
            // SAFETY: the call fills the struct.
            let mut raw = unsafe {
                foam_param_init(raw.as_mut_ptr(), size_of::<foam_param>() as u32, &mut error);
                raw.assume_init()
            };
            raw.name = name.as_ptr();
            raw.shape = p.shape.as_ptr();
            raw.ndim = p.shape.len() as i32;
            raw.dtype = p.dtype;
            raw.root = p.root;
            raw.flags = if p.grafting_only { FOAM_PARAM_GRAFTING_ONLY } else { 0 };
            if let Some((axis, start, length)) = part {
                (raw.shard_axis, raw.shard_start, raw.shard_length) = (*axis as i64, *start, *length);
            }
            described.push(raw);
        }
        let mut handle = null_mut();
        // SAFETY: initialised structs; the member outlives the handle.
        let status = unsafe {
            match &comm {
                None => foam_create(config, described.as_ptr(), params.len(), &mut handle, &mut error),
                Some(comm) => {
                    foam_create_ranks(config, comm, described.as_ptr(), params.len(), &mut handle, &mut error)
                }
            }
        };
        outcome(status, &error)?;
        let values = params
            .iter()
            .zip(start)
            .zip(&parts)
            .map(|((p, start), part)| cut(&p.bytes(start), &p.shape, p.width(), *part))
            .collect();
        Ok(Rank { handle, params: params.to_vec(), parts, values, member })
    }

    /// A step on the parts of whole gradients.
    fn step(&mut self, grads: &[Option<Vec<f64>>], lr: f64) -> Result<bool, Failure> {
        self.step_with(grads, lr, 0)
    }

    fn step_with(&mut self, grads: &[Option<Vec<f64>>], lr: f64, flags: u32) -> Result<bool, Failure> {
        let shapes: Vec<Vec<i64>> = self
            .params
            .iter()
            .zip(&self.parts)
            .map(|(p, part)| {
                let mut shape = p.shape.clone();
                part.iter().for_each(|(axis, _, length)| shape[*axis] = *length);
                shape
            })
            .collect();
        let mut cuts: Vec<Option<Vec<u8>>> = grads
            .iter()
            .zip(&self.params)
            .zip(&self.parts)
            .map(|((grad, p), part)| {
                grad.as_ref().map(|grad| cut(&p.bytes(grad), &p.shape, p.width(), *part))
            })
            .collect();
        let tensor = |data: *mut c_void, index: usize| foam_tensor {
            data,
            device: foam_device { device_type: FOAM_DEVICE_CPU, device_id: 0 },
            ndim: shapes[index].len() as i32,
            dtype: self.params[index].dtype,
            shape: shapes[index].as_ptr().cast_mut(),
            strides: null_mut(),
            byte_offset: 0,
        };
        let params: Vec<foam_tensor> =
            self.values.iter_mut().enumerate().map(|(i, v)| tensor(v.as_mut_ptr().cast(), i)).collect();
        let grads: Vec<foam_tensor> = cuts
            .iter_mut()
            .enumerate()
            .map(|(i, grad)| tensor(grad.as_mut().map_or(null_mut(), |g| g.as_mut_ptr().cast()), i))
            .collect();
        let (mut error, mut skipped) = (foam_error::new(), 0);
        let args = foam_step_args {
            struct_size: size_of::<foam_step_args>() as u32,
            flags,
            count: params.len(),
            params: params.as_ptr(),
            grads: grads.as_ptr(),
            stream: null_mut(),
            skipped: &mut skipped,
            lr,
            grad_scale: 1.0,
        };
        // SAFETY: all memory lives through the call.
        let status = unsafe { foam_step(self.handle, &args, &mut error) };
        outcome(status, &error)?;
        Ok(skipped != 0)
    }

    fn stats(&self) -> foam_stats_info {
        let mut info =
            foam_stats_info { struct_size: size_of::<foam_stats_info>() as u32, ..Default::default() };
        // SAFETY: the struct has its size.
        assert_eq!(unsafe { foam_stats(self.handle, &mut info, null_mut()) }, FOAM_OK);
        info
    }

    fn factors(&self) -> Vec<foam_factor_info> {
        let mut count = 0;
        let size = size_of::<foam_factor_info>();
        // SAFETY: a list with room.
        unsafe {
            foam_factor_stats(self.handle, null_mut(), size, 0, &mut count, null_mut());
            let mut items = vec![foam_factor_info::default(); count];
            let status =
                foam_factor_stats(self.handle, items.as_mut_ptr(), size, count, &mut count, null_mut());
            assert_eq!(status, FOAM_OK);
            items
        }
    }

    fn file(&mut self, path: &Path, save: bool) -> Result<(), Failure> {
        let path = CString::new(path.to_str().unwrap()).unwrap();
        let mut error = foam_error::new();
        // SAFETY: a live handle and a C string.
        let status = unsafe {
            if save {
                foam_save_file(self.handle, path.as_ptr(), &mut error)
            } else {
                foam_load_file(self.handle, path.as_ptr(), &mut error)
            }
        };
        outcome(status, &error)
    }

    /// The state as bytes, on every rank.
    fn memory(&mut self) -> Vec<u8> {
        let mut size = 0;
        // SAFETY: room as asked for.
        unsafe {
            assert_eq!(foam_save_memory(self.handle, null_mut(), 0, &mut size, null_mut()), FOAM_OK);
            let mut bytes = vec![0u8; size];
            let status =
                foam_save_memory(self.handle, bytes.as_mut_ptr().cast(), size, &mut size, null_mut());
            assert_eq!(status, FOAM_OK);
            bytes
        }
    }
}

/// Runs `body` on every rank of a world, each on its thread.
fn ranks<T: Send>(size: usize, fault: Fault, body: impl Fn(usize, Box<Member>) -> T + Sync) -> Vec<T> {
    let members = World::members(size, fault);
    std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = members
            .into_iter()
            .enumerate()
            .map(|(rank, member)| scope.spawn(move || body(rank, Box::new(member))))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

const OPTIONS: &str = "max_factor_dim=16 check_period=3 epsilon=1e-4 epsilon_max=1e-1 momentum=0.9 weight_decay=0.01 num_threads=1";

fn model() -> Vec<P> {
    let mut bf16 = p("bf16", &[21, 10]);
    bf16.dtype = BF16;
    let mut wide = p("wide", &[9, 5]);
    wide.dtype = F64;
    let mut embedding = p("embedding", &[13, 4]);
    embedding.grafting_only = true;
    vec![p("w", &[40, 37]), p("bias", &[5]), bf16, wide, embedding, p("conv", &[6, 3, 3, 3]), p("one", &[1])]
}

fn values(params: &[P], seed: u64) -> Vec<Vec<f64>> {
    let mut random = Random::new(seed);
    params.iter().map(|p| (0..p.elements()).map(|_| random.normal()).collect()).collect()
}

/// The gradients of a step; the second parameter takes no part in every third.
fn grads(params: &[P], step: u64) -> Vec<Option<Vec<f64>>> {
    let all = values(params, 1000 + step).into_iter().enumerate();
    all.map(|(index, grad)| (index != 1 || step % 3 != 2).then_some(grad)).collect()
}

const STEPS: u64 = 11;

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

/// The traces of the authors' code, through two ranks: the weights and statistics of one process, which
/// `tests/golden.rs` compares with the traces.
#[test]
fn golden_traces_through_two_ranks() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
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

/// The same list of owners on every rank, and from a call that creates nothing.
#[test]
fn owners_are_listed_before_and_after() {
    let params = model();
    let list = |rank: &Rank| -> Vec<(i64, i64, i64, u64)> {
        let (mut count, size) = (0, size_of::<foam_block_info>());
        // SAFETY: a list with room; zero bytes are a value of the struct.
        unsafe {
            foam_blocks(rank.handle, null_mut(), size, 0, &mut count, null_mut());
            let mut items: Vec<foam_block_info> = vec![std::mem::zeroed(); count];
            foam_blocks(rank.handle, items.as_mut_ptr(), size, count, &mut count, null_mut());
            items.iter().map(|i| (i.param_index, i.block, i.owner, i.cost)).collect()
        }
    };
    let lists = ranks(3, Fault::None, |_, member| {
        let rank = Rank::new(OPTIONS, &params, Hold::Sharded(0), &values(&params, 1), Some(member)).unwrap();
        list(&rank)
    });
    assert!(lists.iter().all(|each| *each == lists[0]));
    for owner in 0..3 {
        assert!(lists[0].iter().any(|block| block.2 == owner), "rank {owner} owns nothing");
    }
    let single = Rank::new(OPTIONS, &params, Hold::Replicated, &values(&params, 1), None).unwrap();
    assert_eq!(list(&single).len(), lists[0].len());
    assert!(list(&single).iter().all(|block| block.2 == 0));
}

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
                let ended = ranks(2, fault, |rank, member| {
                    let start = values(&params, 1);
                    let made = Rank::new(OPTIONS, &params, hold, &start, Some(member));
                    let mut made = match made {
                        Ok(made) => made,
                        Err((status, message)) => return Some(("creation", status, message)),
                    };
                    for step in 0..3 {
                        let before = made.values.clone();
                        if let Err((status, message)) = made.step(&grads(&params, step), 0.01) {
                            let lost = message.contains("they are lost");
                            let kept = message.contains("no parameter of this rank was written");
                            assert!(lost || kept, "rank {rank}, {fault:?}: {message}");
                            assert!(lost || made.values == before, "rank {rank}, {fault:?}: {message}");
                            // The ranks are out of step: nothing more is done.
                            let (again, _) = made.step(&grads(&params, step), 0.01).unwrap_err();
                            assert_eq!(again, FOAM_POISONED);
                            return Some(("step", status, message));
                        }
                    }
                    None
                });
                assert!(ended.iter().all(Option::is_some), "{hold:?} {fault:?}: {ended:?}");
                let first = ended[1].as_ref().map(|end| end.0 == "creation");
                assert_eq!(first, Some(number < 4), "{fault:?}: {ended:?}");
                for (_, status, message) in ended.iter().flatten() {
                    assert_eq!(*status, FOAM_COLLECTIVE_FAILED, "{fault:?}: {message}");
                    let told =
                        message.contains(&format!("status {BROKEN}")) || message.contains("did not arrive");
                    assert!(told, "{fault:?}: {message}");
                }
            }
        }
    }
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
