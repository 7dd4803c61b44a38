//! Threads with small stacks, storms of signals, forks in the middle of a step, libraries that come and go.

use crate::library::shared_library;
use crate::life::{Life, state};
use crate::support::random::Random;
use crate::{Tally, count};
use foam::abi::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

static SIGNALS: AtomicU64 = AtomicU64::new(0);

extern "C" fn heard(_: libc::c_int) {
    SIGNALS.fetch_add(1, SeqCst);
}

/// A signal every fifth of a millisecond while it lives; calls of the system are not restarted.
struct Storm;

impl Storm {
    fn new() -> Storm {
        // SAFETY: a handler that only counts, and a timer of this process.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = heard as *const () as usize;
            assert_eq!(libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()), 0);
            Storm::set(200);
        }
        Storm
    }

    unsafe fn set(micros: i64) {
        let every = libc::timeval { tv_sec: 0, tv_usec: micros };
        let timer = libc::itimerval { it_interval: every, it_value: every };
        // SAFETY: the timer of this process.
        unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) };
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { Storm::set(0) };
    }
}

/// Several threads with the smallest stacks that are promised to do, each with handles of its own, in a storm.
pub fn threads(seed: u64, tally: &mut Tally) {
    let mut random = Random::new(seed);
    let lives: Vec<Life> = (0..3).map(|_| Life::new(&mut random)).collect();
    let expected: Vec<_> = lives.iter().map(|life| state(&life.run(1, 8, seed).0)).collect();
    let before = SIGNALS.load(SeqCst);
    let storm = Storm::new();
    std::thread::scope(|scope| {
        for (life, expected) in lives.iter().zip(&expected) {
            let small = std::thread::Builder::new().stack_size(FOAM_THREAD_STACK_SIZE);
            let work = move || {
                for _ in 0..3 {
                    let (model, _) = life.run(3, 8, seed);
                    assert!(state(&model) == *expected, "{}: other bits", life.options);
                }
            };
            small.spawn_scoped(scope, work).unwrap();
        }
    });
    drop(storm);
    // One pool serves all of them: the program, its threads, and at most two workers.
    count(tally, "runs compared", 9);
    count(tally, "signals", SIGNALS.load(SeqCst) - before);
    let many: Vec<_> = (0..20).map(|_| lives[0].run(3, 2, seed)).collect();
    let listed = || std::fs::read_dir("/proc/self/task").unwrap().count();
    // Threads that have done their work may be listed a moment longer.
    let deadline = Instant::now() + Duration::from_secs(10);
    while listed() > 6 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    let threads = listed();
    assert!(threads <= 6, "{threads} threads for {} handles", many.len());
    count(tally, "handles on one pool", 20);
}

/// Forks while another thread is inside a step: the child makes models of its own, and uses its copies of ours.
pub fn fork(seed: u64, tally: &mut Tally) {
    let mut random = Random::new(seed);
    let life = Life::new(&mut random);
    let expected = state(&life.run(1, 4, seed).0);
    let (own, _) = life.run(2, 4, seed);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut steps = Random::new(seed);
            let (mut model, mut params) = (life.model(2), life.tensors(&mut steps));
            while !stop.load(SeqCst) {
                life.step(&mut model, &mut params, &mut steps);
            }
        });
        for _ in 0..5 {
            std::thread::sleep(Duration::from_micros(random.below(2_000) as u64));
            // SAFETY: the child calls what the library promises to work after a fork, and leaves at once.
            let child = unsafe { libc::fork() };
            assert!(child >= 0, "no fork");
            if child == 0 {
                let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    state(&own) == expected && state(&life.run(2, 4, seed).0) == expected
                }));
                // SAFETY: leaves without destructors, which are the parent's.
                unsafe { libc::_exit(if good.unwrap_or(false) { 0 } else { 1 }) };
            }
            let (begun, mut status) = (Instant::now(), 0);
            // SAFETY: a child of this process.
            while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
                if begun.elapsed() > Duration::from_secs(100) {
                    // SAFETY: the child from above, not yet waited for.
                    unsafe { libc::kill(child, libc::SIGKILL) };
                    stop.store(true, SeqCst);
                    panic!("a forked child hangs");
                }
                std::thread::sleep(Duration::from_micros(500));
            }
            if status != 0 {
                stop.store(true, SeqCst);
            }
            assert_eq!(status, 0, "a forked child failed");
            count(tally, "children", 1);
        }
        stop.store(true, SeqCst);
    });
}

/// Opens the shared library, uses it on its own threads, closes it, and again.
pub fn library(seed: u64, tally: &mut Tally) {
    let path = std::ffi::CString::new(shared_library().to_str().unwrap()).unwrap();
    for round in 0..10 {
        // SAFETY: the library of this build; its functions have the types of this build's.
        unsafe {
            let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            assert!(!library.is_null(), "the library does not open");
            let get: unsafe extern "C" fn(u32) -> *const foam_api =
                std::mem::transmute(libc::dlsym(library, c"foam_get_api".as_ptr()));
            let api = get(FOAM_API_VERSION);
            assert!(!api.is_null());
            let mut config = std::mem::MaybeUninit::<foam_config>::uninit();
            let size = size_of::<foam_config>() as u32;
            let preset = c"reference".as_ptr();
            let init: unsafe extern "C" fn(
                *mut foam_config,
                u32,
                *const libc::c_char,
                *mut foam_error,
            ) -> foam_status = std::mem::transmute(libc::dlsym(library, c"foam_config_init".as_ptr()));
            assert_eq!(init(config.as_mut_ptr(), size, preset, std::ptr::null_mut()), FOAM_OK);
            let mut config = config.assume_init();
            (config.num_threads, config.check_period) = (3, 1);
            run(library, &config, seed + round);
            libc::dlclose(library);
        }
        count(tally, "openings", 1);
    }
}

/// A few steps through the functions of an opened library.
unsafe fn run(library: *mut libc::c_void, config: &foam_config, seed: u64) {
    let mut random = Random::new(seed);
    let shape = [96i64, 80];
    let spec = crate::support::model::Spec::new("w", &shape);
    let (mut own, mut grad) = (spec.tensor(&random.normals(96 * 80)), spec.tensor(&random.normals(96 * 80)));
    // SAFETY: as above; everything that is passed lives through the calls.
    unsafe {
        let find = |name: &std::ffi::CStr| libc::dlsym(library, name.as_ptr());
        let param_init: unsafe extern "C" fn(*mut foam_param, u32, *mut foam_error) -> foam_status =
            std::mem::transmute(find(c"foam_param_init"));
        let args_init: unsafe extern "C" fn(*mut foam_step_args, u32, *mut foam_error) -> foam_status =
            std::mem::transmute(find(c"foam_step_args_init"));
        let create: unsafe extern "C" fn(
            *const foam_config,
            *const foam_param,
            usize,
            *mut *mut foam_optimizer,
            *mut foam_error,
        ) -> foam_status = std::mem::transmute(find(c"foam_create"));
        let step: unsafe extern "C" fn(
            *mut foam_optimizer,
            *const foam_step_args,
            *mut foam_error,
        ) -> foam_status = std::mem::transmute(find(c"foam_step"));
        let destroy: unsafe extern "C" fn(*mut foam_optimizer) = std::mem::transmute(find(c"foam_destroy"));
        let null = std::ptr::null_mut();
        let mut param = std::mem::MaybeUninit::<foam_param>::uninit();
        assert_eq!(param_init(param.as_mut_ptr(), size_of::<foam_param>() as u32, null), FOAM_OK);
        let mut param = param.assume_init();
        (param.shape, param.ndim, param.dtype) = (shape.as_ptr(), 2, spec.dtype.in_c());
        let mut handle = std::ptr::null_mut();
        assert_eq!(create(config, &param, 1, &mut handle, null), FOAM_OK);
        let mut args = std::mem::MaybeUninit::<foam_step_args>::uninit();
        assert_eq!(args_init(args.as_mut_ptr(), size_of::<foam_step_args>() as u32, null), FOAM_OK);
        let mut args = args.assume_init();
        let (params, grads) = (own.in_c(), grad.in_c());
        (args.count, args.params, args.grads) = (1, &params, &grads);
        for _ in 0..3 {
            assert_eq!(step(handle, &args, null), FOAM_OK);
        }
        destroy(handle);
    }
    assert!(own.values().iter().all(|x| x.is_finite()));
}
