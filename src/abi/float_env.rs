//! The floating-point environment of a call: round to nearest, subnormal numbers kept, no traps, on every thread
//! that computes. Without it a caller's rounding mode would change results, and differently for each number of
//! threads; a caller who debugs with traps would be stopped by the harmless exceptions of an eigendecomposition.

/// The caller's environment; given back on drop.
pub struct Caller(arch::Environment);

/// Sets the standard environment on this thread until the result is dropped.
pub fn standard() -> Caller {
    Caller(arch::enter())
}

/// Sets the standard environment on this thread for good: for a thread of the library's own.
pub fn keep_standard() {
    std::mem::forget(standard());
}

impl Drop for Caller {
    fn drop(&mut self) {
        arch::leave(&self.0);
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod arch {
    use std::arch::asm;

    /// MXCSR: rounding, flush-to-zero, denormals-are-zero, masks and flags.
    pub type Environment = u32;
    /// All exceptions masked, no flag set, round to nearest, nothing flushed.
    const STANDARD: u32 = 0x1f80;

    pub fn enter() -> Environment {
        let mut caller = 0u32;
        // SAFETY: stores the register to the variable.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut caller, options(nostack, preserves_flags)) };
        if caller != STANDARD {
            set(STANDARD);
        }
        caller
    }

    pub fn leave(caller: &Environment) {
        // Flags that the call raised are not the caller's.
        set(*caller);
    }

    fn set(value: u32) {
        // SAFETY: a value that the register held before, or the standard one: no reserved bit is set.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const value, options(nostack, preserves_flags)) };
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
mod arch {
    use std::arch::asm;

    /// FPCR (rounding, flush-to-zero, traps) and FPSR (flags).
    pub type Environment = (u64, u64);

    pub fn enter() -> Environment {
        let (control, flags): (u64, u64);
        // SAFETY: reads two registers.
        unsafe {
            asm!("mrs {}, fpcr", "mrs {}, fpsr", out(reg) control, out(reg) flags, options(nostack));
        }
        if control != 0 {
            set(0, flags);
        }
        (control, flags)
    }

    pub fn leave(caller: &Environment) {
        set(caller.0, caller.1);
    }

    fn set(control: u64, flags: u64) {
        // SAFETY: values that the registers held before, or zero, the standard.
        unsafe { asm!("msr fpcr, {}", "msr fpsr, {}", in(reg) control, in(reg) flags, options(nostack)) };
    }
}

#[cfg(all(not(any(target_arch = "x86_64", target_arch = "aarch64")), not(miri)))]
mod arch {
    use libc::c_int;

    /// Room for any C library's `fenv_t`.
    #[repr(C, align(16))]
    pub struct Environment([u8; 256]);

    unsafe extern "C" {
        fn feholdexcept(environment: *mut Environment) -> c_int;
        fn fesetround(mode: c_int) -> c_int;
        fn fesetenv(environment: *const Environment) -> c_int;
    }

    pub fn enter() -> Environment {
        let mut caller = Environment([0; 256]);
        // SAFETY: the room is large enough. FE_TONEAREST is 0 wherever Rust runs.
        unsafe {
            feholdexcept(&mut caller);
            fesetround(0);
        }
        caller
    }

    pub fn leave(caller: &Environment) {
        // SAFETY: what `feholdexcept` stored.
        unsafe { fesetenv(caller) };
    }
}

#[cfg(miri)]
mod arch {
    pub type Environment = ();
    pub fn enter() -> Environment {}
    pub fn leave(_: &Environment) {}
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn the_standard_environment_holds_inside_and_the_callers_afterwards() {
        // Round up, flush to zero, overflow traps off (a trap would end the test).
        let odd = 0x1f80 | 0x4000 | 0x8000;
        let before = arch::enter();
        arch::leave(&odd);
        {
            let _floats = standard();
            assert_eq!(arch::enter(), 0x1f80);
        }
        assert_eq!(arch::enter(), odd);
        arch::leave(&before);
    }
}
