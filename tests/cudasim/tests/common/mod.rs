//! A thin, checked use of the simulator's entry points, as a host program would call them.
#![allow(dead_code)]

use std::ffi::{CString, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudasim::control::*;
use cudasim::driver::{context::*, copy::*, device::*, launch::*, memory::*, module::*, stream::*};

/// The simulator is one for the whole process, so tests take turns.
static TURN: Mutex<()> = Mutex::new(());

/// PTX that NVRTC made from the .cu files in `fixtures`.
pub const MATH: &str = include_str!("../fixtures/math.ptx");
pub const REDUCE: &str = include_str!("../fixtures/reduce.ptx");
pub const TYPES: &str = include_str!("../fixtures/types.ptx");

/// A device with a current primary context and a non-blocking stream.
pub struct Gpu {
    pub context: u64,
    pub stream: u64,
    pub modules: Vec<u64>,
    _turn: MutexGuard<'static, ()>,
}

/// Sets a knob.
pub fn set(key: &str, value: &str) {
    let (key, value) = (CString::new(key).unwrap(), CString::new(value).unwrap());
    assert_eq!(cudasim_set(key.as_ptr(), value.as_ptr()), 0);
}

/// The newest reason.
pub fn reason() -> String {
    let mut buffer = vec![0u8; 4096];
    let length = cudasim_last_reason(buffer.as_mut_ptr().cast(), buffer.len());
    buffer.truncate(length);
    String::from_utf8(buffer).unwrap()
}

/// A count by name.
pub fn count(name: &str) -> u64 {
    let name = CString::new(name).unwrap();
    cudasim_count(name.as_ptr())
}

/// The list of leaks.
pub fn leaks() -> Vec<String> {
    let mut buffer = vec![0u8; 1 << 16];
    cudasim_leaks(buffer.as_mut_ptr().cast(), buffer.len());
    let end = buffer.iter().position(|b| *b == 0).unwrap();
    String::from_utf8_lossy(&buffer[..end]).lines().map(str::to_string).collect()
}

/// Waits for this test's turn and starts the simulator anew with default knobs.
pub fn turn() -> MutexGuard<'static, ()> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    cudasim_reset();
    for (key, value) in [
        ("mode", "eager"),
        ("seed", "1"),
        ("evd_noise", "8"),
        ("blocks", "shuffled"),
        ("reuse", "1"),
        ("devices", "1"),
        ("capability", "7.0"),
        ("driver", "12090"),
        ("memory", "1G"),
        ("races", "1"),
        ("uninit", "count"),
        ("quiet", "1"),
        ("budget", "10000000000"),
    ] {
        set(key, value);
    }
    turn
}

impl Gpu {
    /// In eager mode.
    pub fn new() -> Gpu {
        Gpu::with(&[])
    }

    /// In deferred mode.
    pub fn deferred(seed: u64) -> Gpu {
        Gpu::with(&[("mode", "deferred"), ("seed", &seed.to_string())])
    }

    /// With some knobs set.
    pub fn with(knobs: &[(&str, &str)]) -> Gpu {
        let turn = turn();
        for (key, value) in knobs {
            set(key, value);
        }
        assert_eq!(cuInit(0), 0);
        let (mut context, mut stream) = (0, 0);
        assert_eq!(cuDevicePrimaryCtxRetain(&mut context, 0), 0);
        assert_eq!(cuCtxPushCurrent_v2(context), 0);
        assert_eq!(cuStreamCreate(&mut stream, 1), 0);
        Gpu { context, stream, modules: Vec::new(), _turn: turn }
    }

    /// A kernel of a PTX module.
    pub fn kernel(&mut self, ptx: &str, name: &str) -> u64 {
        let image = CString::new(ptx).unwrap();
        let (mut module, mut function) = (0, 0);
        let status = cuModuleLoadData(&mut module, image.as_ptr().cast());
        assert_eq!(status, 0, "{}", reason());
        self.modules.push(module);
        let name = CString::new(name).unwrap();
        assert_eq!(cuModuleGetFunction(&mut function, module, name.as_ptr()), 0, "{}", reason());
        function
    }

    /// Another kernel of the newest module.
    pub fn also(&self, name: &str) -> u64 {
        let mut function = 0;
        let name = CString::new(name).unwrap();
        assert_eq!(cuModuleGetFunction(&mut function, *self.modules.last().unwrap(), name.as_ptr()), 0);
        function
    }

    /// Uninitialised device memory.
    pub fn alloc<T>(&self, count: usize) -> u64 {
        let mut address = 0;
        assert_eq!(cuMemAlloc_v2(&mut address, count * size_of::<T>()), 0, "{}", reason());
        address
    }

    /// Device memory with a copy of `data`.
    pub fn upload<T: Copy>(&self, data: &[T]) -> u64 {
        let address = self.alloc::<T>(data.len());
        assert_eq!(cuMemcpyHtoD_v2(address, data.as_ptr().cast(), size_of_val(data)), 0, "{}", reason());
        address
    }

    /// Device memory after all work is done.
    pub fn download<T: Copy + Default>(&self, address: u64, count: usize) -> Vec<T> {
        assert_eq!(cuCtxSynchronize(), 0, "{}", reason());
        let mut out = vec![T::default(); count];
        assert_eq!(
            cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), address, size_of_val(&out[..])),
            0,
            "{}",
            reason()
        );
        out
    }

    /// Launches on this device's stream.
    pub fn launch(
        &self,
        function: u64,
        grid: [u32; 3],
        block: u32,
        shared: u32,
        args: &[*const c_void],
    ) -> i32 {
        self.launch_on(self.stream, function, grid, block, shared, args)
    }

    /// Launches on any stream.
    pub fn launch_on(
        &self,
        stream: u64,
        function: u64,
        grid: [u32; 3],
        block: u32,
        shared: u32,
        args: &[*const c_void],
    ) -> i32 {
        let list = args.as_ptr().cast_mut().cast();
        cuLaunchKernel(
            function,
            grid[0],
            grid[1],
            grid[2],
            block,
            1,
            1,
            shared,
            stream,
            list,
            std::ptr::null_mut(),
        )
    }

    /// Asserts that no rule was broken.
    pub fn clean(&self) {
        assert_eq!(cudasim_violations(), 0, "{}", reason());
    }
}

/// The addresses of values, as `cuLaunchKernel` wants them.
#[macro_export]
macro_rules! args {
    ($($value:expr),* $(,)?) => {
        &[$((&raw const $value).cast::<std::ffi::c_void>()),*]
    };
}
