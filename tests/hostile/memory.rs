//! A life whose memory ends somewhere: every call says so or does its work, nothing aborts, and what is left is a
//! model that took exactly the steps that succeeded.

use crate::life::Life;
use crate::scarce::with_refusal;
use crate::support::model::Declared;
use crate::support::random::Random;
use crate::support::tensor::Tensor;
use crate::{Tally, count};
use foam::abi::*;
use std::mem::{MaybeUninit, size_of};
use std::ptr::null_mut;

/// Everything that the calls need, made while there is memory.
struct Prepared {
    declared: Declared,
    _grads: Vec<Vec<Tensor>>,
    own: Vec<foam_tensor>,
    lent: Vec<Vec<foam_tensor>>,
    args: foam_step_args,
    config: foam_config,
    saved: Vec<u8>,
}

pub fn case(seed: u64, tally: &mut Tally) {
    const STEPS: usize = 6;
    let mut random = Random::new(seed);
    let life = Life::new(&mut random);
    let threads = 1 + random.below(3);
    let mut tensors = life.tensors(&mut random);
    let mut grads: Vec<Vec<Tensor>> = (0..STEPS).map(|_| life.tensors(&mut random)).collect();
    let declared = Declared::new(&life.specs);
    let first = tensors.clone();
    let own: Vec<_> = tensors.iter_mut().map(Tensor::in_c).collect();
    let lent: Vec<Vec<_>> =
        grads.iter_mut().map(|list| list.iter_mut().map(Tensor::in_c).collect()).collect();
    let mut args = MaybeUninit::<foam_step_args>::uninit();
    // SAFETY: the struct has the size that is passed; the call fills it.
    let mut args = unsafe {
        foam_step_args_init(args.as_mut_ptr(), size_of::<foam_step_args>() as u32, null_mut());
        args.assume_init()
    };
    (args.count, args.params) = (own.len(), own.as_ptr());
    let config = life.config(threads);
    let mut prepared = Prepared { declared, _grads: grads, own, lent, args, config, saved: vec![0; 1 << 26] };
    let (number, stays_empty) = (random.below(1200) as isize, random.below(2) == 0);
    let ((handle, taken, refused), _) = with_refusal(number, stays_empty, || live(&mut prepared, STEPS));
    count(tally, "refused calls", refused);
    let Some(handle) = handle else {
        count(tally, "creations refused", 1);
        return;
    };
    // A twin with all the memory it wants takes the same steps.
    let (mut twin, mut expected) = (life.model(threads), first);
    for step in taken.iter().enumerate().filter(|(_, taken)| **taken).map(|(step, _)| step) {
        let grads: Vec<_> = prepared._grads[step].iter().cloned().map(Some).collect();
        assert_eq!(twin.try_step(&mut expected, &grads, Default::default()), Ok(false));
    }
    let same = tensors.iter().zip(&expected).all(|(own, expected)| own.bytes == expected.bytes);
    assert!(same, "{}, allocation {number}: other parameters", life.options);
    let state = twin.save();
    let mut size = 0;
    // SAFETY: a live handle, and as much room as is passed.
    let status = unsafe {
        let room = (prepared.saved.as_mut_ptr().cast(), prepared.saved.len());
        let status = foam_save_memory(handle, room.0, room.1, &mut size, null_mut());
        foam_destroy(handle);
        status
    };
    assert_eq!(status, FOAM_OK);
    assert!(prepared.saved[..size] == state, "{}, allocation {number}: another state", life.options);
    count(tally, "twins compared", 1);
}

/// The calls, none of which may abort. Gives the handle, which steps were taken, and how many calls were refused.
fn live(prepared: &mut Prepared, steps: usize) -> (Option<*mut foam_optimizer>, [bool; 16], u64) {
    let (mut handle, mut taken, mut refused, mut size) = (null_mut(), [false; 16], 0, 0usize);
    let mut judge = |status: foam_status| {
        assert!(status == FOAM_OK || status == FOAM_OUT_OF_MEMORY, "status {status}");
        refused += u64::from(status != FOAM_OK);
        status == FOAM_OK
    };
    // SAFETY: live structs and handles, and places of the sizes that are passed.
    unsafe {
        let (params, own) = (prepared.declared.params.as_ptr(), prepared.declared.params.len());
        if !judge(foam_create(&prepared.config, params, own, &mut handle, null_mut())) {
            return (None, taken, refused);
        }
        for (step, lent) in prepared.lent.iter().enumerate().take(steps) {
            prepared.args.grads = lent.as_ptr();
            taken[step] = judge(foam_step(handle, &prepared.args, null_mut()));
            let room = (prepared.saved.as_mut_ptr().cast(), prepared.saved.len());
            if judge(foam_save_memory(handle, room.0, room.1, &mut size, null_mut())) {
                judge(foam_load_memory(handle, room.0, size, null_mut()));
            }
            let mut gap = 0.0;
            let status = foam_exact_gap(handle, 0, 0, 0, &mut gap, null_mut());
            if status != FOAM_INVALID_ARGUMENT {
                judge(status);
            }
        }
    }
    let _ = &prepared.own;
    (Some(handle), taken, refused)
}
