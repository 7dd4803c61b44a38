//! Memory and checkpoints: a save or a load that runs out of it says so and changes nothing, whichever allocation
//! fails; it needs little beside the state; and what is no checkpoint costs nothing. One test, in a program of its
//! own, because the allocator is the whole process's.

mod support;

use foam::abi::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering::SeqCst};
use support::model::{Model, Spec};
use support::random::Random;
use support::tensor::Dtype;

/// The system's allocator, which counts while it is told to, and refuses one allocation, or all from one on.
struct Scarce;

static ARMED: AtomicBool = AtomicBool::new(false);
static STAYS_EMPTY: AtomicBool = AtomicBool::new(false);
/// Allocations until one is refused.
static LEFT: AtomicIsize = AtomicIsize::new(0);
static HELD: AtomicIsize = AtomicIsize::new(0);
static PEAK: AtomicIsize = AtomicIsize::new(0);

fn refuses() -> bool {
    if !ARMED.load(SeqCst) {
        return false;
    }
    let left = LEFT.fetch_sub(1, SeqCst);
    left == 0 || (left < 0 && STAYS_EMPTY.load(SeqCst))
}

fn holds(change: isize) {
    if ARMED.load(SeqCst) {
        PEAK.fetch_max(HELD.fetch_add(change, SeqCst) + change, SeqCst);
    }
}

// SAFETY: everything is handed to the system's allocator as it came, or refused with a null pointer.
unsafe impl GlobalAlloc for Scarce {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if refuses() {
            return null_mut();
        }
        holds(layout.size() as isize);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, data: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if refuses() {
            return null_mut();
        }
        holds(size as isize - layout.size() as isize);
        // SAFETY: the caller's contract.
        unsafe { System.realloc(data, layout, size) }
    }

    unsafe fn dealloc(&self, data: *mut u8, layout: Layout) {
        holds(-(layout.size() as isize));
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(data, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Scarce = Scarce;

/// The status of a call whose allocation `number` is refused, and whether it got that far.
fn with_refusal(number: isize, stays_empty: bool, call: &dyn Fn() -> foam_status) -> (foam_status, bool) {
    LEFT.store(number, SeqCst);
    STAYS_EMPTY.store(stays_empty, SeqCst);
    ARMED.store(true, SeqCst);
    let status = call();
    ARMED.store(false, SeqCst);
    (status, LEFT.load(SeqCst) < 0)
}

/// The most bytes that a call held at once.
fn peak(call: &dyn Fn() -> foam_status) -> (foam_status, isize) {
    HELD.store(0, SeqCst);
    PEAK.store(0, SeqCst);
    let (status, _) = with_refusal(isize::MAX, false, call);
    (status, PEAK.load(SeqCst))
}

const OPTIONS: &str =
    "policy=foam check_period=2 beta2=0.8 max_factor_dim=64 merge_dims=false momentum=0.5 num_threads=1";

fn model(specs: &[Spec], steps: usize) -> Model {
    let mut model = Model::new("reference", OPTIONS, specs);
    let mut random = Random::new(steps as u64);
    let mut tensors = || specs.iter().map(|s| s.tensor(&random.normals(s.elements()))).collect::<Vec<_>>();
    let mut params = tensors();
    (0..steps).for_each(|_| model.step(&mut params, &tensors()));
    model
}

fn c_path(path: &Path) -> CString {
    CString::new(path.to_str().unwrap()).unwrap()
}

/// The calls of a handle's whole checkpoint interface; the bytes and files are made before.
type Call<'a> = Box<dyn Fn() -> foam_status + 'a>;

fn files(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

fn every_refused_allocation_is_reported(folder: &Path) {
    let specs = [
        Spec::new("matrix", &[70, 5]).of(Dtype::F32),
        Spec::new("quoted \"vector\"", &[3]),
        Spec { grafting_only: true, ..Spec::new("embedding", &[6]).of(Dtype::F32) },
    ];
    let handle = model(&specs, 3);
    let other = model(&specs, 6).save();
    let v1 = std::fs::read("tests/checkpoints/v1.safetensors").unwrap();
    let (saved, loaded, foreign) = (folder.join("saved"), folder.join("loaded"), folder.join("foreign"));
    std::fs::write(&loaded, &other).unwrap();
    std::fs::write(&foreign, &v1).unwrap();
    let (saved, loaded, foreign) = (c_path(&saved), c_path(&loaded), c_path(&foreign));
    let mut damaged = other.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let mut room = vec![0u8; other.len() + 100];
    let (room, capacity) = (room.as_mut_ptr(), room.len());
    let raw = handle.handle();
    let load = |bytes: &Vec<u8>| {
        let (data, size) = (bytes.as_ptr(), bytes.len());
        // SAFETY: a live handle and the bytes of a vector.
        move || unsafe { foam_load_memory(raw, data.cast(), size, null_mut()) }
    };
    let mut size = 0usize;
    let size = &raw mut size;
    // SAFETY: in all of these, a live handle, C strings, and places of the sizes that are passed.
    let calls: [(&str, foam_status, Call); 7] = unsafe {
        [
            ("size", FOAM_OK, Box::new(move || foam_save_memory(raw, null_mut(), 0, size, null_mut()))),
            (
                "save",
                FOAM_OK,
                Box::new(move || foam_save_memory(raw, room.cast(), capacity, size, null_mut())),
            ),
            ("save file", FOAM_OK, Box::new(|| foam_save_file(raw, saved.as_ptr(), null_mut()))),
            ("damaged", FOAM_BAD_CHECKPOINT, Box::new(load(&damaged))),
            ("foreign", FOAM_BAD_CHECKPOINT, Box::new(|| foam_load_file(raw, foreign.as_ptr(), null_mut()))),
            ("load", FOAM_OK, Box::new(load(&other))),
            ("load file", FOAM_OK, Box::new(|| foam_load_file(raw, loaded.as_ptr(), null_mut()))),
        ]
    };
    for (name, status, call) in &calls {
        let mut refused = 0;
        for stays_empty in [false, true] {
            let before = handle.save();
            let there = files(folder);
            for number in 0.. {
                let (got, reached) = with_refusal(number, stays_empty, call);
                if !reached {
                    assert_eq!(got, *status, "{name}");
                    break;
                }
                // A message that could not be made is left out; the status is the status.
                assert!(
                    got == FOAM_OUT_OF_MEMORY || got == *status && got != FOAM_OK,
                    "{name}, allocation {number}: {got}"
                );
                assert!(handle.save() == before, "{name}, allocation {number}: the state changed");
                assert_eq!(files(folder), there, "{name}, allocation {number}: a file was left");
                refused += 1;
            }
        }
        println!("{name}: {refused} refused allocations, no abort");
        assert!(refused > 3, "{name}");
    }
    assert!(handle.save() == other);
}

fn little_memory_is_needed_beside_the_state(folder: &Path) {
    let specs = [Spec::new("w", &[2048, 256]).of(Dtype::F32)];
    let handle = model(&specs, 1);
    let state = handle.stats().state_bytes_host as isize;
    let (path, raw) = (c_path(&folder.join("large")), handle.handle());
    let mut size = 0;
    let size = &raw mut size;
    // SAFETY: a live handle, C strings, and a place for the size.
    let (asked, saved, loaded) = unsafe {
        (
            peak(&|| foam_save_memory(raw, null_mut(), 0, size, null_mut())),
            peak(&|| foam_save_file(raw, path.as_ptr(), null_mut())),
            peak(&|| foam_load_file(raw, path.as_ptr(), null_mut())),
        )
    };
    println!("state {state}: peak of the size {}, of a save {}, of a load {}", asked.1, saved.1, loaded.1);
    assert_eq!((asked.0, saved.0, loaded.0), (FOAM_OK, FOAM_OK, FOAM_OK));
    assert!(state > 10 << 20 && asked.1 < 200_000 && saved.1 < 3 << 19 && loaded.1 < 3 << 19);
}

fn nonsense_costs_nothing(folder: &Path) {
    let handle = model(&[Spec::new("w", &[4, 3])], 1);
    let (path, raw) = (folder.join("nonsense"), handle.handle());
    let name = c_path(&path);
    for head in [&b"\0\0\0\0\0\0\0\0{}"[..], b"nonsense, and more of it", b"\xff\xff\xff\x7f\0\0\0\0{"] {
        std::fs::write(&path, head).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_len(2 << 30).unwrap();
        // SAFETY: a live handle and a C string.
        let (status, bytes) = peak(&|| unsafe { foam_load_file(raw, name.as_ptr(), null_mut()) });
        println!("2 GB of nonsense: refused with {bytes} bytes");
        assert_eq!(status, FOAM_BAD_CHECKPOINT);
        assert!(bytes < 3 << 19, "{bytes}");
    }
}

#[test]
fn checkpoints_need_little_memory_and_survive_its_end() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("exhausted-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    every_refused_allocation_is_reported(&folder);
    little_memory_is_needed_beside_the_state(&folder);
    nonsense_costs_nothing(&folder);
    std::fs::remove_dir_all(&folder).unwrap();
}
