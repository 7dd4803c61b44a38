//! The fuzz targets on the seed corpus and on random changes of it, without a fuzzer: any toolchain runs it.

#[path = "../../fuzz/src/lib.rs"]
mod targets;

use crate::library::root;
use crate::support::random::Random;
use crate::{Tally, count};

/// A target and its name, which is the name of its folder.
type Target = (&'static str, fn(&[u8]));

const TARGETS: [Target; 3] =
    [("options", targets::options), ("checkpoint", targets::checkpoint), ("calls", targets::calls)];

pub fn case(seed: u64, tally: &mut Tally) {
    let mut random = Random::new(seed);
    let (name, target) = random.pick(&TARGETS);
    let mut files: Vec<_> = std::fs::read_dir(root().join("fuzz/corpus").join(name))
        .unwrap()
        .map(|f| f.unwrap().path())
        .collect();
    files.sort();
    let mut bytes = std::fs::read(&files[random.below(files.len())]).unwrap();
    for _ in 0..random.below(6) {
        let at = random.below(bytes.len().max(1));
        match random.below(5) {
            0 => bytes.truncate(at),
            1 if !bytes.is_empty() => bytes[at] = random.bits() as u8,
            2 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            3 => bytes.insert(at.min(bytes.len()), random.pick(b"=\n-0.e19\0\xff{}[]\",")),
            _ => {
                let other = std::fs::read(&files[random.below(files.len())]).unwrap();
                bytes.splice(at.min(bytes.len()).., other[at.min(other.len())..].iter().copied());
            }
        }
    }
    target(&bytes);
    count(tally, name, 1);
}
