//! Damaged PTX is refused or loads; it never makes the simulator panic.

mod common;

use std::ffi::CString;

use cudasim::driver::module::*;

use common::{Gpu, REDUCE, TYPES, reason};

#[test]
fn damaged_ptx_never_panics() {
    let gpu = Gpu::new();
    let rare = include_str!("fixtures/rare.ptx");
    let mut seed = 1u64;
    let mut below = move |n: usize| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as usize % n
    };
    let (mut refused, mut loaded) = (0, 0);
    for round in 0..600 {
        let source = [REDUCE, TYPES, rare][round % 3];
        let mut words: Vec<&str> = source.split_inclusive([' ', ',', '\n', '.', ';']).collect();
        for _ in 0..1 + below(3) {
            let (at, other) = (below(words.len()), below(words.len()));
            match below(3) {
                0 => drop(words.remove(at)),
                1 => words.swap(at, other),
                _ => words.insert(at, words[other]),
            }
        }
        let image = CString::new(words.concat()).unwrap();
        let mut module = 0;
        match cuModuleLoadData(&mut module, image.as_ptr().cast()) {
            0 => {
                loaded += 1;
                assert_eq!(cuModuleUnload(module), 0);
            }
            999 => panic!("round {round}: {}", reason()),
            _ => refused += 1,
        }
    }
    assert!(refused > 100 && loaded > 10, "{refused} refused, {loaded} loaded");
    drop(gpu);
}
