//! What ranks need memory for: meeting, owners, messages, checkpoints, states of single parameters, steps together.

use super::{OPTIONS, arguments, c_path, exhaust, shapes};
use crate::scarce::with_refusal;
use crate::support::model::{Declared, Spec, configuration};
use foam::abi::*;
use std::ffi::c_void;
use std::path::Path;
use std::ptr::null_mut;

unsafe extern "C" fn to_itself(
    _: *mut c_void,
    send: *const c_void,
    send_bytes: *const u64,
    recv: *mut c_void,
    _: *const u64,
    _: *mut c_void,
) -> i32 {
    // SAFETY: one rank, whose message is as long as the library says.
    unsafe { std::ptr::copy(send.cast::<u8>(), recv.cast(), *send_bytes as usize) };
    0
}

unsafe extern "C" fn from_itself(
    _: *mut c_void,
    send: *const c_void,
    bytes: u64,
    recv: *mut c_void,
    _: *const u64,
    _: *mut c_void,
) -> i32 {
    // SAFETY: as above.
    unsafe { std::ptr::copy(send.cast::<u8>(), recv.cast(), bytes as usize) };
    0
}

/// The only rank of a world: every list that ranks need, and nobody who waits.
fn alone(config: &foam_config, declared: &Declared, handle: &mut *mut foam_optimizer) -> foam_status {
    let comm = foam_comm {
        struct_size: size_of::<foam_comm>() as u32,
        rank: 0,
        size: 1,
        flags: 0,
        user: null_mut(),
        all_to_allv: Some(to_itself),
        all_gatherv: Some(from_itself),
    };
    let (params, count) = (declared.params.as_ptr(), declared.params.len());
    // SAFETY: live structs, and a place for the handle.
    unsafe { foam_create_ranks(config, &comm, params, count, handle, null_mut()) }
}

pub fn every_refused_allocation_is_reported(folder: &Path) {
    let specs = shapes();
    let declared = Declared::new(&specs);
    let config = configuration("reference", &format!("{OPTIONS} max_factor_dim=32")).unwrap();
    let create = || {
        let mut handle = null_mut();
        let status = alone(&config, &declared, &mut handle);
        assert_eq!(handle.is_null(), status != FOAM_OK);
        // SAFETY: NULL, or a handle that is not used again.
        unsafe { foam_destroy(handle) };
        status
    };
    exhaust("create ranks", true, &create, &|_| true);
    let mut count = 0;
    let count = &raw mut count;
    let mut blocks: Vec<foam_block_info> = Vec::with_capacity(200);
    let (items, size) = (blocks.as_mut_ptr(), size_of::<foam_block_info>());
    let (params, own) = (declared.params.as_ptr(), declared.params.len());
    // SAFETY: live structs, and room for two hundred blocks.
    let plan = || unsafe { foam_plan_owners(&config, params, own, 3, items, size, 200, count, null_mut()) };
    exhaust("plan owners", true, &plan, &|_| true);
    rank_steps(&config, &declared, &specs);
    rank_states(&config, &declared, &specs, folder);
}

/// The first step of a rank makes room for its messages. Without memory before the first write nothing has changed;
/// what fails in an exchange is a failed collective, after which the handle takes no step.
fn rank_steps(config: &foam_config, declared: &Declared, specs: &[Spec]) {
    let (mut expected, first) = (None, arguments(specs, 2).own);
    let (mut refused, mut broken) = (0, 0);
    for stays_empty in [false, true] {
        for number in 0.. {
            let mut handle = null_mut();
            assert_eq!(alone(config, declared, &mut handle), FOAM_OK);
            let step = arguments(specs, 2);
            // SAFETY: a live handle, and tensors that live as long as the arguments.
            let call = || unsafe { foam_step(handle, &step.args, null_mut()) };
            let (status, reached) = with_refusal(number, stays_empty, call);
            match status {
                FOAM_OK => {
                    let found = step.own.clone();
                    assert!(
                        expected.get_or_insert(found) == &step.own,
                        "allocation {number}: another result"
                    );
                }
                FOAM_OUT_OF_MEMORY => {
                    assert!(step.own == first, "allocation {number}: changed");
                    refused += 1;
                }
                other => {
                    assert_eq!(other, FOAM_COLLECTIVE_FAILED, "allocation {number}");
                    assert_eq!(call(), FOAM_POISONED, "allocation {number}");
                    broken += 1;
                }
            }
            // SAFETY: not used again.
            unsafe { foam_destroy(handle) };
            if !reached {
                assert_eq!(status, FOAM_OK);
                break;
            }
            assert!(number < 500, "allocation {number}");
        }
    }
    println!("steps of a rank: {refused} refused, {broken} failed collectives, no abort");
}

/// Checkpoints of a rank, the states of single parameters, and steps of several optimizers.
fn rank_states(config: &foam_config, declared: &Declared, specs: &[Spec], folder: &Path) {
    let (mut handle, mut other) = (null_mut(), null_mut());
    assert_eq!(alone(config, declared, &mut handle), FOAM_OK);
    assert_eq!(alone(config, declared, &mut other), FOAM_OK);
    let steps = [arguments(specs, 2), arguments(specs, 3)];
    let mut sizes = vec![0u64; specs.len()];
    // SAFETY: in all of these, live handles, C strings, and places of the sizes that are passed.
    unsafe {
        for _ in 0..3 {
            assert_eq!(foam_step(handle, &steps[0].args, null_mut()), FOAM_OK);
        }
        for (index, size) in sizes.iter_mut().enumerate() {
            assert_eq!(foam_param_state_bytes(handle, index as i64, size, null_mut()), FOAM_OK);
        }
        let mut bytes: Vec<Vec<u8>> = sizes.iter().map(|size| vec![0; *size as usize]).collect();
        let parts: Vec<foam_state_part> = bytes
            .iter_mut()
            .map(|own| foam_state_part { offset: 0, bytes: own.len() as u64, data: own.as_mut_ptr().cast() })
            .collect();
        let place = &raw mut sizes[0];
        let call = || foam_param_state_bytes(handle, 0, place, null_mut());
        exhaust("param state bytes", false, &call, &|_| true);
        let call = || foam_read_states(handle, parts.as_ptr(), parts.len(), null_mut());
        exhaust("read states", false, &call, &|_| true);
        let call = || foam_write_states(handle, parts.as_ptr(), parts.len(), 3, 0, null_mut());
        exhaust("write states", false, &call, &|_| true);
        let path = c_path(&folder.join("rank"));
        exhaust("save of a rank", false, &|| foam_save_file(handle, path.as_ptr(), null_mut()), &|_| true);
        exhaust("load of a rank", false, &|| foam_load_file(handle, path.as_ptr(), null_mut()), &|_| true);
        let handles = [handle, other];
        let args = [steps[0].args, steps[1].args];
        assert_eq!(foam_step_together(handles.as_ptr(), args.as_ptr(), 2, null_mut()), FOAM_OK);
        let call = || foam_step_together(handles.as_ptr(), args.as_ptr(), 2, null_mut());
        exhaust("step together", true, &call, &|_| true);
        handles.iter().for_each(|handle| foam_destroy(*handle));
    }
}
