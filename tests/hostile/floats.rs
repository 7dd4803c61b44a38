//! The caller's floating-point environment: any rounding, flushed denormals, enabled traps. Results are those of the
//! standard one, and the caller finds the environment as it was.

use crate::life::{Life, state};
use crate::support::model::StepWith;
use crate::support::random::Random;
use crate::{Tally, count};
use std::cell::Cell;
use std::rc::Rc;

#[cfg(target_arch = "x86_64")]
mod control {
    /// Rounding (13, 14), flush (15), denormals are zero (6), masks of traps (7 to 12).
    pub const STANDARD: u32 = 0x1F80;
    pub const CONTROL: u32 = 0xFFC0;

    pub fn get() -> u32 {
        let mut word = 0u32;
        // SAFETY: stores the register.
        unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &mut word, options(nostack)) };
        word
    }

    pub fn set(word: u32) {
        // SAFETY: control bits that exist.
        unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &word, options(nostack, readonly)) };
    }

    pub fn random(bits: u64) -> u32 {
        let (rounding, flags) = ((bits & 3) as u32, (bits >> 2) as u32);
        let traps = if flags & 1 == 0 { 0x1F80 } else { 0x1000 | (flags & 0x0F80) };
        traps | rounding << 13 | (flags >> 12 & 1) << 15 | (flags >> 13 & 1) << 6
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod control {
    pub const STANDARD: u32 = 0;
    pub const CONTROL: u32 = 0;

    pub fn get() -> u32 {
        0
    }

    pub fn set(_: u32) {}

    pub fn random(_: u64) -> u32 {
        0
    }
}

pub fn case(seed: u64, tally: &mut Tally) {
    let mut random = Random::new(seed);
    let life = Life::new(&mut random);
    let (mut own, mut twin) = (life.model(1 + random.below(3)), life.model(1));
    let mut params = life.tensors(&mut random);
    let mut expected = params.clone();
    let (word, found) = (Rc::new(Cell::new(control::STANDARD)), Rc::new(Cell::new(0)));
    let (set, get) = (word.clone(), found.clone());
    own.before_step = Some(Box::new(move || control::set(set.get())));
    own.after_step = Some(Box::new(move || {
        get.set(control::get());
        control::set(control::STANDARD);
    }));
    for _ in 0..20 {
        word.set(control::random(random.bits()));
        let grads: Vec<_> = life.tensors(&mut random).into_iter().map(Some).collect();
        assert_eq!(own.try_step(&mut params, &grads, StepWith::default()), Ok(false));
        assert_eq!(found.get() & control::CONTROL, word.get() & control::CONTROL, "the environment changed");
        assert_eq!(twin.try_step(&mut expected, &grads, StepWith::default()), Ok(false));
        count(tally, "steps", 1);
    }
    assert!(params == expected && state(&own) == state(&twin), "{}: other bits", life.options);
}
