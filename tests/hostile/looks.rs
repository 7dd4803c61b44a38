//! Calls that only read, with lists and texts that are too short, too long, or of other versions, in memory that ends
//! where a forbidden page begins.

use crate::calls::KEYS;
use crate::guarded::Guarded;
use crate::life::Life;
use crate::support::model::{Declared, checked};
use crate::support::random::Random;
use foam::abi::*;
use std::ffi::{CStr, CString};
use std::mem::size_of;
use std::ptr::{null, null_mut};

/// One call on an optimizer, or one that needs none.
pub fn look(life: &Life, handle: *mut foam_optimizer, random: &mut Random) {
    if random.below(2) == 0 {
        return look_before(life, handle, random);
    }
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

/// A list of some length, and items of some version; sometimes no list.
struct List {
    held: Guarded,
    size: usize,
    room: usize,
}

impl List {
    fn new<T>(most: usize, random: &mut Random) -> List {
        let size = size_of::<T>().saturating_sub(8 * random.below(4)) + 8 * random.below(3);
        let room = random.below(most);
        List { held: Guarded::bytes(size * room), size, room }
    }

    fn items<T>(&self) -> *mut T {
        if self.room == 0 { null_mut() } else { self.held.as_ptr().cast() }
    }
}

/// What can be asked of a configuration and of parameters that no optimizer has yet, and what an optimizer says of its
/// blocks and its run.
fn look_before(life: &Life, handle: *mut foam_optimizer, random: &mut Random) {
    let (mut found, mut error) = (0usize, foam_error::new());
    let mut config = life.config(1);
    if random.below(4) == 0 {
        config.struct_size = random.pick(&[0, 3, 4, 7, 60, 1 << 20]);
    }
    let declared = Declared::new(&life.specs);
    let (params, own) = (declared.params.as_ptr(), declared.params.len());
    // SAFETY: live structs, handles and C strings; lists and texts of the sizes that are passed.
    unsafe {
        match random.below(7) {
            0 | 1 => {
                let list = List::new::<foam_block_info>(80, random);
                let (items, size, room) = (list.items(), list.size, list.room);
                let ranks = random.pick(&[-1, 0, 1, 2, 3, 7, 65_536, i32::MAX]);
                match random.below(3) {
                    0 => foam_plan_blocks(&config, params, own, items, size, room, &mut found, &mut error),
                    1 => foam_plan_owners(
                        &config, params, own, ranks, items, size, room, &mut found, &mut error,
                    ),
                    _ => foam_blocks(handle, items, size, room, &mut found, &mut error),
                };
                assert!(list.held.is_sound());
            }
            2 => {
                let room = random.below(60);
                let text = Guarded::bytes(room);
                let key = CString::new(random.pick(&KEYS)).unwrap();
                let key = if random.below(4) == 0 { null() } else { key.as_ptr() };
                foam_config_get(&config, key, text.as_ptr().cast(), room, &mut error);
                assert!(text.is_sound());
            }
            3 => {
                foam_config_validate(&config, &mut error);
                let mut due = 7;
                let step = random.pick(&[i64::MIN, -1, 0, 1, 2, 99, i64::MAX]);
                let status = foam_config_check_due(&config, step, &mut due, &mut error);
                assert_eq!(status == FOAM_OK, due != 7);
            }
            4 => {
                let room = random.below(300);
                let text = Guarded::bytes(room);
                let data = if room == 0 { null_mut() } else { text.as_ptr().cast() };
                match random.below(2) {
                    0 => foam_diagnosis(handle, data, room, &mut found, &mut error),
                    _ => foam_cuda_probe(&mut 0, data, room, &mut found, &mut error),
                };
                assert!(text.is_sound());
            }
            5 => diagnose(&config, handle, random),
            _ => {
                for text in [foam_build_info(), foam_status_name(random.below(40) as foam_status - 9)] {
                    assert!(!CStr::from_ptr(text).to_bytes().is_empty());
                }
                assert!(foam_abi_version() > 0);
                let (mut bytes, index) = (7, random.pick(&[-1, 0, 2, 99, i64::MAX]));
                let status = foam_param_state_bytes(handle, index, &mut bytes, &mut error);
                assert_eq!(status == FOAM_OK, bytes != 7 && (index as usize) < own);
            }
        }
    }
}

/// The judgement of statistics that were read before, with numbers that no run has.
unsafe fn diagnose(config: &foam_config, handle: *mut foam_optimizer, random: &mut Random) {
    let size = size_of::<foam_factor_info>();
    let (mut count, mut found, mut needed, mut error) = (0, 0, 0, foam_error::new());
    // SAFETY: a live handle and a configuration; lists and texts of the sizes that are passed.
    unsafe {
        assert_eq!(foam_factor_stats(handle, null_mut(), size, 0, &mut count, &mut error), FOAM_OK);
        let items = Guarded::bytes(size * count);
        let list = if count == 0 { null_mut() } else { items.as_ptr().cast::<foam_factor_info>() };
        assert_eq!(foam_factor_stats(handle, list, size, count, &mut count, &mut error), FOAM_OK);
        if count > 0 {
            let mut item = list.add(random.below(count)).read_unaligned();
            match random.below(3) {
                0 => item.checks = random.pick(&[0, 99, u64::MAX]),
                1 => item.noise_floor = random.pick(&[f64::NAN, f64::INFINITY, -1.0, 1e300]),
                _ => item.proxy = random.pick(&[f64::NAN, f64::INFINITY, 1e300]),
            }
            list.write_unaligned(item);
        }
        let room = random.below(2000);
        let text = Guarded::bytes(room);
        let data = if room == 0 { null_mut() } else { text.as_ptr().cast() };
        foam_diagnose(config, list, size, count, &mut found, data, room, &mut needed, &mut error);
        assert!(items.is_sound() && text.is_sound());
    }
}
