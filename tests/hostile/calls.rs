//! Random sequences of calls, right and wrong: a call that fails changed nothing; nothing is written outside what the
//! caller gave; and a twin on another number of threads, which only gets the calls that succeeded, ends in the same
//! bits.

use crate::guarded::Guarded;
use crate::life::{Life, state};
use crate::looks::look;
use crate::support::model::Model;
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

    fn frame(&self, grads: &[Guarded], spoil: impl FnOnce(&mut Frame)) -> Frame {
        let mut frame = Frame::new(&self.params, grads);
        spoil(&mut frame);
        (frame.args.params, frame.args.grads) = (frame.params.as_ptr(), frame.grads.as_ptr());
        if frame.no_list {
            frame.args.grads = null();
        }
        frame
    }

    fn step(&self, grads: &[Guarded], spoil: impl FnOnce(&mut Frame)) -> foam_status {
        let frame = self.frame(grads, spoil);
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

pub const KEYS: [&str; 12] = [
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
    // Optimizers that take steps together with the two.
    let others = [1, 2].map(|threads| Own::new(&life, threads, &mut Random::new(start ^ 1)));
    let mut kept = own.model.save();
    for _ in 0..40 {
        count(tally, "calls", 1);
        let (before, saved) = (own.bits(), own.model.save());
        let unchanged = |what: &str| {
            assert!(own.bits() == before, "{what}: a failed call changed a parameter; {}", life.options);
            assert!(own.model.save() == saved, "{what}: a failed call changed the state; {}", life.options);
        };
        match random.below(12) {
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
            9 => {
                states(&life, &own.model, &twin.model, &mut random, &unchanged);
                count(tally, "states moved", 1);
            }
            10 => {
                let lists = [gradients(&life, &mut random, false), gradients(&life, &mut random, false)];
                let spoils = random.below(3) == 0;
                let mut again = random.clone();
                let beside: Vec<_> = others.iter().map(|other| (other.bits(), other.model.save())).collect();
                let status = together([&own, &others[0]], &lists, spoils, &mut random);
                if status == FOAM_OK {
                    assert_eq!(together([&twin, &others[1]], &lists, spoils, &mut again), FOAM_OK);
                    count(tally, "steps together", 1);
                } else {
                    assert!(spoils, "status {status}; {}", life.options);
                    unchanged("a spoiled step together");
                    assert!((others[0].bits(), others[0].model.save()) == beside[0], "the other one changed");
                    count(tally, "refused", 1);
                }
            }
            _ => {
                look(&life, own.model.handle(), &mut random);
                unchanged("a look inside");
                count(tally, "looks", 1);
            }
        }
        assert!(own.params.iter().chain(&twin.params).all(Guarded::is_sound), "written before a parameter");
    }
    assert!(own.bits() == twin.bits(), "threads changed a parameter; {}", life.options);
    assert!(others[0].bits() == others[1].bits(), "threads changed a parameter; {}", life.options);
    assert!(state(&own.model) == state(&twin.model), "threads changed the state; {}", life.options);
    count(tally, "twins compared", 1);
}

/// One step of two optimizers, of which the second one may be spoiled.
fn together(both: [&Own; 2], grads: &[Vec<Guarded>; 2], spoils: bool, random: &mut Random) -> foam_status {
    let frames = [
        both[0].frame(&grads[0], |_| {}),
        both[1].frame(&grads[1], |frame| {
            if spoils {
                spoil(frame, random);
            }
        }),
    ];
    let (handles, args) = (both.map(|own| own.model.handle()), [&frames[0], &frames[1]].map(|f| f.args));
    // SAFETY: live handles; tensors that are what they say, or whose fault is refused before it matters.
    let status = unsafe { foam_step_together(handles.as_ptr(), args.as_ptr(), 2, null_mut()) };
    assert!(grads.iter().flatten().all(Guarded::is_sound), "written before a gradient");
    status
}

/// The states of all parameters are read in parts, each of which ends at a forbidden page, and go to the model itself
/// and to its twin; damaged ones, or parts that lack something, are refused.
fn states(life: &Life, own: &Model, twin: &Model, random: &mut Random, unchanged: &dyn Fn(&str)) {
    let handle = own.handle();
    let mut sizes = Vec::new();
    for index in 0..life.specs.len() {
        let mut bytes = 0;
        // SAFETY: a live handle, and a place for the number.
        let status = unsafe { foam_param_state_bytes(handle, index as i64, &mut bytes, null_mut()) };
        assert_eq!(status, FOAM_OK);
        sizes.push(bytes);
    }
    let held: Vec<Guarded> = sizes.iter().map(|bytes| Guarded::bytes(*bytes as usize)).collect();
    let part = |(bytes, held): (&u64, &Guarded)| foam_state_part {
        offset: 0,
        bytes: *bytes,
        data: held.as_ptr().cast(),
    };
    let mut parts: Vec<foam_state_part> = sizes.iter().zip(&held).map(part).collect();
    let stats = own.stats();
    // SAFETY: in all of these, live handles, and parts with as many bytes as they say.
    unsafe {
        assert_eq!(foam_read_states(handle, parts.as_ptr(), parts.len(), null_mut()), FOAM_OK);
        assert!(held.iter().all(Guarded::is_sound), "written before a part");
        unchanged("reading the states");
        let write = |model: &Model, parts: &[foam_state_part]| {
            let (steps, skipped) = (stats.steps, stats.skipped_steps);
            foam_write_states(model.handle(), parts.as_ptr(), parts.len(), steps, skipped, null_mut())
        };
        let which = random.below(parts.len());
        let whole = parts[which];
        match random.below(4) {
            0 => parts[which].bytes -= 1 + random.below(whole.bytes as usize) as u64,
            1 => parts[which].offset = random.pick(&[1, u64::MAX, 1 << 40]),
            2 => parts[which].data = null_mut(),
            _ => drop(parts.pop()),
        }
        assert_ne!(write(own, &parts), FOAM_OK, "parts that lack something");
        unchanged("parts that lack something");
        if parts.len() < sizes.len() {
            parts.push(part((&sizes[parts.len()], &held[parts.len()])));
        }
        parts[which] = whole;
        assert_eq!((write(own, &parts), write(twin, &parts)), (FOAM_OK, FOAM_OK));
    }
    unchanged("a state that was written back");
}
