//! Random sequences of calls, right and wrong: a call that fails changed nothing; nothing is written outside what the
//! caller gave; and a twin on another number of threads, which only gets the calls that succeeded, ends in the same
//! bits.

use crate::guarded::Guarded;
use crate::life::{Life, state};
use crate::support::model::{Model, checked};
use crate::support::random::Random;
use crate::{Tally, count};
use foam::abi::*;
use std::ffi::CString;
use std::mem::{MaybeUninit, size_of};
use std::ptr::{null, null_mut};

/// A model with parameters in guarded memory.
struct Own {
    model: Model,
    params: Vec<Guarded>,
}

impl Own {
    fn new(life: &Life, threads: usize, random: &mut Random) -> Own {
        let params = life.tensors(random).into_iter().map(|tensor| {
            let mut own = Guarded::tensor(tensor.dtype.in_c(), &tensor.shape);
            own.get_mut().copy_from_slice(&tensor.bytes);
            own
        });
        Own { params: params.collect(), model: life.model(threads) }
    }

    fn bits(&self) -> Vec<Vec<u8>> {
        self.params.iter().map(|param| param.get().to_vec()).collect()
    }

    fn step(&self, grads: &[Guarded], spoil: impl FnOnce(&mut Frame)) -> foam_status {
        let mut frame = Frame::new(&self.params, grads);
        spoil(&mut frame);
        (frame.args.params, frame.args.grads) = (frame.params.as_ptr(), frame.grads.as_ptr());
        if frame.no_list {
            frame.args.grads = null();
        }
        // SAFETY: a live handle; tensors that are what they say, or whose fault is refused before it matters.
        unsafe { foam_step(self.model.handle(), &frame.args, null_mut()) }
    }
}

/// The arguments of a step.
struct Frame {
    params: Vec<foam_tensor>,
    grads: Vec<foam_tensor>,
    args: foam_step_args,
    no_list: bool,
    sizes: Box<[i64; 8]>,
}

impl Frame {
    fn new(params: &[Guarded], grads: &[Guarded]) -> Frame {
        let mut args = MaybeUninit::<foam_step_args>::uninit();
        // SAFETY: the struct has the size that is passed; the call fills it.
        let mut args = unsafe {
            foam_step_args_init(args.as_mut_ptr(), size_of::<foam_step_args>() as u32, null_mut());
            args.assume_init()
        };
        args.count = params.len();
        let in_c = |list: &[Guarded]| list.iter().map(Guarded::in_c).collect::<Vec<_>>();
        Frame { params: in_c(params), grads: in_c(grads), args, no_list: false, sizes: Box::new([3; 8]) }
    }
}

/// Something that a step must refuse. Some of it is only wrong for some parameters.
fn spoil(frame: &mut Frame, random: &mut Random) {
    let place = random.below(frame.params.len());
    let which = random.below(14);
    let list = if random.below(2) == 0 { &mut frame.params } else { &mut frame.grads };
    let tensor = &mut list[place];
    match which {
        0 => frame.args.count = random.pick(&[0, 99, usize::MAX]),
        1 => frame.args.struct_size = random.pick(&[0, 3, 4, 7, 1 << 20]),
        2 => frame.args.lr = random.pick(&[-1.0, f64::INFINITY, 1e300]),
        3 => frame.args.grad_scale = random.pick(&[0.0, f64::NAN, f64::INFINITY]),
        4 => frame.args.flags = 1 << (1 + random.below(31)),
        5 => tensor.ndim = random.pick(&[-1, 7, i32::MAX]),
        6 => {
            tensor.dtype =
                foam_dtype { code: random.pick(&[0, 1, 5, 255]), bits: random.pick(&[8, 32]), lanes: 1 }
        }
        7 => tensor.dtype.lanes = random.pick(&[0, 2]),
        8 => tensor.device.device_type = random.pick(&[0, 2, 7, -1]),
        9 => tensor.byte_offset = u64::MAX - random.below(64) as u64,
        10 => frame.params[place].data = null_mut(),
        11 => frame.no_list = true,
        12 => frame.grads[place].data = frame.params[place].data,
        _ => {
            tensor.shape = frame.sizes.as_mut_ptr();
            tensor.ndim = 8;
        }
    }
}

/// Gradients in guarded memory, sometimes with a number that is none.
fn gradients(life: &Life, random: &mut Random, bad: bool) -> Vec<Guarded> {
    let mut all: Vec<Guarded> = life
        .tensors(random)
        .into_iter()
        .map(|tensor| {
            let mut own = Guarded::tensor(tensor.dtype.in_c(), &tensor.shape);
            own.get_mut().copy_from_slice(&tensor.bytes);
            own
        })
        .collect();
    if bad {
        let own = random.below(all.len());
        let size = usize::from(all[own].dtype.bits) / 8;
        let at = size * random.below(all[own].len / size);
        // All ones is a NaN in every type.
        all[own].get_mut()[at..at + size].fill(0xFF);
    }
    all
}

const KEYS: [&str; 12] = [
    "lr",
    "tau",
    "weight_decay",
    "epsilon",
    "epsilon_max",
    "beta1",
    "check_period",
    "policy",
    "nonfinite",
    "momentum",
    "nonsense",
    "num_threads",
];
const VALUES: [&str; 12] =
    ["0.02", "0.5", "1e-7", "-1", "nan", "1e400", "7", "", "stale", "skip", "\u{7f}", "0"];

pub fn case(seed: u64, tally: &mut Tally) {
    let mut random = Random::new(seed);
    let life = Life::new(&mut random);
    let start = random.bits();
    let (own, twin) = (
        Own::new(&life, 1 + random.below(2), &mut Random::new(start)),
        Own::new(&life, 3 + random.below(3), &mut Random::new(start)),
    );
    let handle = own.model.handle();
    let mut kept = own.model.save();
    for _ in 0..40 {
        count(tally, "calls", 1);
        let (before, saved) = (own.bits(), own.model.save());
        let unchanged = |what: &str| {
            assert!(own.bits() == before, "{what}: a failed call changed a parameter; {}", life.options);
            assert!(own.model.save() == saved, "{what}: a failed call changed the state; {}", life.options);
        };
        match random.below(10) {
            0..4 => {
                let grads = gradients(&life, &mut random, false);
                let status = own.step(&grads, |_| {});
                assert_eq!(status, FOAM_OK, "{}", life.options);
                assert_eq!(twin.step(&grads, |_| {}), status);
                assert!(grads.iter().all(Guarded::is_sound), "written before a gradient");
                count(tally, "steps", 1);
            }
            4 => {
                let grads = gradients(&life, &mut random, true);
                let status = own.step(&grads, |_| {});
                assert_eq!(twin.step(&grads, |_| {}), status);
                assert!(status == FOAM_NOT_FINITE || status == FOAM_OK);
                assert!(own.bits() == before, "a step with NaN changed a parameter");
                if status == FOAM_NOT_FINITE {
                    unchanged("not finite");
                }
                count(tally, "not finite", 1);
            }
            5 | 6 => {
                let grads = gradients(&life, &mut random, false);
                let mut again = random.clone();
                let status = own.step(&grads, |frame| spoil(frame, &mut random));
                if status == FOAM_OK {
                    // It was not wrong for this model after all: the twin gets it, too.
                    assert_eq!(twin.step(&grads, |frame| spoil(frame, &mut again)), FOAM_OK);
                } else {
                    unchanged("a spoiled step");
                    count(tally, "refused", 1);
                }
            }
            7 => {
                let (key, value) = (random.pick(&KEYS), random.pick(&VALUES));
                let (key, value) = (CString::new(key).unwrap(), CString::new(value).unwrap());
                // SAFETY: a live handle and C strings.
                let set = |model: &Model| unsafe {
                    foam_set_option(model.handle(), key.as_ptr(), value.as_ptr(), null_mut())
                };
                let status = set(&own.model);
                if status == FOAM_OK {
                    assert_eq!(set(&twin.model), FOAM_OK);
                } else {
                    unchanged("an option");
                    count(tally, "refused", 1);
                }
            }
            8 => {
                let mut bytes = if random.below(2) == 0 { kept.clone() } else { saved.clone() };
                let damaged = random.below(2) == 0;
                if damaged {
                    let at = random.below(bytes.len());
                    bytes[at] ^= 1 << random.below(8);
                    bytes.truncate(bytes.len() - random.below(2) * random.below(9));
                }
                let mut held = Guarded::bytes(bytes.len());
                held.get_mut().copy_from_slice(&bytes);
                // SAFETY: a live handle and as many bytes as are passed.
                let load = |model: &Model| unsafe {
                    foam_load_memory(model.handle(), held.as_ptr().cast(), held.len, null_mut())
                };
                let status = load(&own.model);
                if damaged {
                    assert_eq!(status, FOAM_BAD_CHECKPOINT, "a damaged checkpoint");
                    unchanged("a damaged checkpoint");
                    count(tally, "refused", 1);
                } else {
                    assert_eq!((status, load(&twin.model)), (FOAM_OK, FOAM_OK));
                    count(tally, "loads", 1);
                }
                kept = own.model.save();
            }
            _ => {
                inspect(handle, &mut random);
                unchanged("a look inside");
                count(tally, "looks", 1);
            }
        }
        assert!(own.params.iter().chain(&twin.params).all(Guarded::is_sound), "written before a parameter");
    }
    assert!(own.bits() == twin.bits(), "threads changed a parameter; {}", life.options);
    assert!(state(&own.model) == state(&twin.model), "threads changed the state; {}", life.options);
    count(tally, "twins compared", 1);
}

/// Calls that only read, with lists and texts that are too short, too long, or of other versions.
fn inspect(handle: *mut foam_optimizer, random: &mut Random) {
    let (mut found, mut error) = (0usize, foam_error::new());
    let (param, block, axis) =
        (random.below(4) as i64 - 1, random.below(3) as i64 - 1, random.below(3) as i64 - 1);
    // SAFETY: in all of these, a live handle or NULL, C strings, and buffers of the sizes that are passed, which end
    // where a forbidden page begins.
    unsafe {
        match random.below(7) {
            0 => {
                let size =
                    size_of::<foam_factor_info>().saturating_sub(8 * random.below(4)) + 8 * random.below(3);
                let room = random.below(12);
                let items = Guarded::bytes(size * room);
                let data = if room == 0 { null_mut() } else { items.as_ptr().cast() };
                foam_factor_stats(handle, data, size, room, &mut found, &mut error);
                assert!(items.is_sound());
            }
            1 => {
                let room = random.below(700);
                let values = Guarded::bytes(8 * room);
                let what = random.below(6) as i32 - 1;
                foam_factor_read(
                    handle,
                    param,
                    block,
                    axis,
                    what,
                    values.as_ptr().cast(),
                    room,
                    &mut found,
                    &mut error,
                );
                assert!(values.is_sound());
            }
            2 => {
                let mut gap = 0.0;
                foam_exact_gap(handle, param, block, axis, &mut gap, &mut error);
            }
            3 => {
                let room = random.below(40);
                let text = Guarded::bytes(room);
                let key = CString::new(random.pick(&KEYS)).unwrap();
                foam_get_option(handle, key.as_ptr(), text.as_ptr().cast(), room, &mut error);
                assert!(text.is_sound());
            }
            4 => {
                let room = random.below(5000);
                let bytes = Guarded::bytes(room);
                foam_save_memory(handle, bytes.as_ptr().cast(), room, &mut found, &mut error);
                assert!(bytes.is_sound());
            }
            5 => {
                let size = random.below(400);
                let info = Guarded::bytes(size.max(4));
                info.as_ptr().cast::<u32>().write_unaligned(size as u32);
                if size >= 4 {
                    foam_stats(handle, info.as_ptr().cast(), &mut error);
                }
                assert!(info.is_sound());
            }
            _ => {
                assert_eq!(foam_step(null_mut(), null(), &mut error), FOAM_INVALID_ARGUMENT);
                assert!(checked(|error| foam_synchronize(handle, error)).is_ok());
                foam_get_api(random.bits() as u32);
                let fields = Guarded::bytes(64 * random.below(90));
                foam_record_fields(fields.as_ptr().cast(), 64, fields.len / 64, &mut found, &mut error);
                assert!(fields.is_sound());
            }
        }
    }
}
