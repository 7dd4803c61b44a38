//! cuSOLVER handles and parameter objects.

use libc::c_int;

use crate::boundary::{put, solver};
use crate::reason::{Result, refuse};
use crate::state::Sim;

/// A cuSOLVER handle.
#[derive(Clone, Default)]
pub struct SolverHandle {
    /// Its context.
    pub context: u64,
    /// The stream as the caller gave it.
    pub stream: u64,
    /// 1 for deterministic results, 2 otherwise.
    pub determinism: c_int,
}

impl Sim {
    /// The handle, if its context is current.
    pub(super) fn solver_handle(&mut self, handle: u64) -> Result<SolverHandle> {
        let current = self.current()?;
        let found = self.solvers.get(handle)?.clone();
        if found.context != current {
            refuse!(InvalidContext, "the cuSOLVER handle belongs to another context than the current one");
        }
        Ok(found)
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cusolverDnCreate(out: *mut u64) -> c_int {
    solver("cusolverDnCreate", |sim| {
        let context = sim.current()?;
        let handle = sim.solvers.add(SolverHandle { context, stream: 0, determinism: 1 });
        put(out, handle, "handle")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cusolverDnDestroy(handle: u64) -> c_int {
    solver("cusolverDnDestroy", |sim| {
        let context = sim.solvers.remove(handle)?.context;
        if sim.contexts.live.contains_key(&context) {
            sim.counters.totals.implicit_syncs += 1;
            sim.wait_context(context)?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cusolverDnSetStream(handle: u64, stream: u64) -> c_int {
    solver("cusolverDnSetStream", |sim| {
        sim.solver_handle(handle)?;
        sim.stream(stream)?;
        sim.solvers.get(handle)?.stream = stream;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cusolverDnGetStream(handle: u64, out: *mut u64) -> c_int {
    solver("cusolverDnGetStream", |sim| {
        let found = sim.solver_handle(handle)?;
        put(out, found.stream, "streamId")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cusolverGetVersion(out: *mut c_int) -> c_int {
    solver("cusolverGetVersion", |sim| {
        let batched = c_int::from(!cfg!(feature = "no-batched-evd"));
        put(out, if sim.config.driver >= 13000 { 12000 } else { 11500 + 200 * batched }, "version")
    })
}

/// The major, minor or patch number (0, 1, 2) of the version.
#[unsafe(no_mangle)]
pub extern "C" fn cusolverGetProperty(which: c_int, out: *mut c_int) -> c_int {
    solver("cusolverGetProperty", |sim| {
        let batched = c_int::from(!cfg!(feature = "no-batched-evd"));
        let version = if sim.config.driver >= 13000 { [12, 0, 0] } else { [11, 5 + 2 * batched, 0] };
        match usize::try_from(which).ok().and_then(|which| version.get(which)) {
            Some(number) => put(out, *number, "value"),
            None => refuse!(InvalidValue, "property {which}: there are 0, 1 and 2"),
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cusolverDnCreateParams(out: *mut u64) -> c_int {
    solver("cusolverDnCreateParams", |sim| {
        let params = sim.params.add(());
        put(out, params, "params")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cusolverDnDestroyParams(params: u64) -> c_int {
    solver("cusolverDnDestroyParams", |sim| sim.params.remove(params))
}

#[unsafe(no_mangle)]
pub extern "C" fn cusolverDnSetAdvOptions(params: u64, _function: c_int, _algorithm: c_int) -> c_int {
    solver("cusolverDnSetAdvOptions", |sim| sim.params.get(params).map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cusolverDnSetDeterministicMode(handle: u64, mode: c_int) -> c_int {
    solver("cusolverDnSetDeterministicMode", |sim| {
        if mode != 1 && mode != 2 {
            refuse!(InvalidValue, "mode {mode} is unknown");
        }
        sim.solvers.get(handle)?.determinism = mode;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cusolverDnGetDeterministicMode(handle: u64, out: *mut c_int) -> c_int {
    solver("cusolverDnGetDeterministicMode", |sim| {
        let mode = sim.solvers.get(handle)?.determinism;
        put(out, mode, "mode")
    })
}
