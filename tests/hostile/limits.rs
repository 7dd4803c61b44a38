//! Limits that the system sets: address space, open files, the size of a file.

use crate::files::Folder;
use crate::life::Life;
use crate::support::random::Random;
use crate::{Tally, count};
use foam::abi::*;
use std::ffi::CString;
use std::ptr::null_mut;

/// Runs `call` under a soft limit, which is then lifted again.
fn under<T>(resource: libc::__rlimit_resource_t, limit: u64, call: impl FnOnce() -> T) -> T {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: places for limits; only the soft one is changed.
    unsafe {
        assert_eq!(libc::getrlimit(resource, &mut before), 0);
        let lower = libc::rlimit { rlim_cur: limit.min(before.rlim_max), ..before };
        assert_eq!(libc::setrlimit(resource, &lower), 0);
        let outcome = call();
        assert_eq!(libc::setrlimit(resource, &before), 0);
        outcome
    }
}

fn address_space() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    4096 * text.split(' ').next().unwrap().parse::<u64>().unwrap()
}

pub fn case(seed: u64, tally: &mut Tally) {
    let mut random = Random::new(seed);
    let life = Life::new(&mut random);
    let folder = Folder::new("limits");
    let path = folder.path.join("saved");
    let name = CString::new(path.to_str().unwrap()).unwrap();
    let (mut model, mut params) = life.run(1 + random.below(3), 3, seed);
    model.save_file(&path).unwrap();
    let (raw, state) = (model.handle(), model.save());
    // SAFETY: in all of these, a live handle and a C string.
    let (save, load) = unsafe {
        (|| foam_save_file(raw, name.as_ptr(), null_mut()), || foam_load_file(raw, name.as_ptr(), null_mut()))
    };
    match random.below(3) {
        0 => {
            // A file that may not grow so far: the old one stays, and nothing is left beside it.
            let limit = random.below(state.len() + 100) as u64;
            // SAFETY: an ignored signal makes the write fail instead.
            unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
            life.step(&mut model, &mut params, &mut random);
            let newer = model.save();
            let status = under(libc::RLIMIT_FSIZE, limit, save);
            let expected = if (limit as usize) < newer.len() { FOAM_IO_ERROR } else { FOAM_OK };
            assert_eq!(status, expected, "a limit of {limit} for {} bytes", newer.len());
            let there = std::fs::read(&path).unwrap();
            assert!(there == if status == FOAM_OK { newer } else { state });
            count(tally, "files cut", 1);
        }
        1 => {
            let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
            let limit = random.below(open as usize) as u64;
            let (saved, loaded) = under(libc::RLIMIT_NOFILE, limit, || (save(), load()));
            for status in [saved, loaded] {
                assert!(status == FOAM_IO_ERROR || status == FOAM_OK, "status {status}");
            }
            assert!(model.save() == state && std::fs::read(&path).unwrap() == state);
            count(tally, "without files", 1);
        }
        _ => {
            // Large enough to need pages of its own.
            let config = life.config(2);
            let mut param = std::mem::MaybeUninit::<foam_param>::uninit();
            let shape = [1500i64, 1500];
            // SAFETY: the struct has the size that is passed; the call fills it.
            let mut param = unsafe {
                foam_param_init(param.as_mut_ptr(), size_of::<foam_param>() as u32, null_mut());
                param.assume_init()
            };
            (param.shape, param.ndim) = (shape.as_ptr(), 2);
            let spare = random.below(400) as u64 * (1 << 20);
            let mut handle = null_mut();
            // SAFETY: live structs, and a place for the handle.
            let status = under(libc::RLIMIT_AS, address_space() + spare, || unsafe {
                foam_create(&config, &param, 1, &mut handle, null_mut())
            });
            assert!(status == FOAM_OUT_OF_MEMORY || status == FOAM_OK, "status {status}");
            // SAFETY: NULL, or a handle that is not used again.
            unsafe { foam_destroy(handle) };
            count(tally, if status == FOAM_OK { "spaces enough" } else { "spaces too small" }, 1);
        }
    }
    drop(model);
    assert_eq!(std::fs::read_dir(&folder.path).unwrap().count(), 1, "a file was left beside the checkpoint");
}
