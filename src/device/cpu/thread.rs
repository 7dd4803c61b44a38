//! A thread that can fail to start: the standard library's aborts the process when memory for its own records cannot
//! be had.

#[cfg(unix)]
mod system {
    use libc::{c_int, c_void};
    use std::mem::MaybeUninit;

    /// Bytes of a worker's stack.
    const STACK: usize = 2 << 20;
    /// Signals that a thread causes itself, or that a profiler sends to every thread.
    const OWN: [c_int; 7] = [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGABRT,
        libc::SIGPROF,
    ];

    /// A running thread.
    pub struct Thread(libc::pthread_t);

    // SAFETY: the name of a thread, which any thread may join.
    unsafe impl Send for Thread {}

    /// What a thread is told, its number, and what it does.
    struct Task<T> {
        told: Box<T>,
        number: usize,
        body: fn(Box<T>),
    }

    impl Thread {
        /// Starts a thread that calls `body`; none if the system gives none. It takes none of the signals that are
        /// sent to the process: these go to the caller's threads.
        pub fn start<T: Send>(told: Box<T>, number: usize, body: fn(Box<T>)) -> Option<Thread> {
            let task = crate::memory::boxed(Task { told, number, body }, "a thread").ok()?;
            let task = Box::into_raw(task);
            let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
            let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
            // SAFETY: all are places of their types; the thread owns the task if it is started, and nobody if not.
            unsafe {
                if libc::pthread_attr_init(attributes.as_mut_ptr()) != 0 {
                    drop(Box::from_raw(task));
                    return None;
                }
                libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK);
                let before = block_signals();
                let status =
                    libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), run::<T>, task.cast());
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
                libc::pthread_attr_destroy(attributes.as_mut_ptr());
                if status != 0 {
                    drop(Box::from_raw(task));
                    return None;
                }
                Some(Thread(thread.assume_init()))
            }
        }

        /// Waits for its end.
        pub fn join(self) {
            // SAFETY: a thread that was started here, and joined once.
            unsafe { libc::pthread_join(self.0, std::ptr::null_mut()) };
        }
    }

    /// Blocks what a new thread is not to take; gives the mask of before.
    unsafe fn block_signals() -> libc::sigset_t {
        let mut blocked = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: places for masks.
        unsafe {
            libc::sigfillset(blocked.as_mut_ptr());
            OWN.iter().for_each(|signal| _ = libc::sigdelset(blocked.as_mut_ptr(), *signal));
            libc::pthread_sigmask(libc::SIG_BLOCK, blocked.as_ptr(), before.as_mut_ptr());
            before.assume_init()
        }
    }

    extern "C" fn run<T>(task: *mut c_void) -> *mut c_void {
        // SAFETY: a task of that type, which is this thread's.
        let task = unsafe { Box::from_raw(task.cast::<Task<T>>()) };
        name(task.number);
        (task.body)(task.told);
        std::ptr::null_mut()
    }

    /// `foam-1`, as debuggers show it.
    fn name(number: usize) {
        let mut text = *b"foam-\0\0\0\0\0\0\0\0\0\0\0";
        let (mut rest, mut digits, mut count) = (number % 100_000_000, [0u8; 8], 0);
        while count == 0 || rest > 0 {
            digits[count] = b'0' + (rest % 10) as u8;
            rest /= 10;
            count += 1;
        }
        (0..count).for_each(|place| text[5 + place] = digits[count - 1 - place]);
        // SAFETY: a C string of at most fifteen characters.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        unsafe {
            libc::pthread_setname_np(libc::pthread_self(), text.as_ptr().cast());
        }
        // SAFETY: as above.
        #[cfg(target_os = "macos")]
        unsafe {
            libc::pthread_setname_np(text.as_ptr().cast());
        }
        #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos")))]
        let _ = text;
    }
}

#[cfg(not(unix))]
mod system {
    /// A running thread.
    pub struct Thread(std::thread::JoinHandle<()>);

    impl Thread {
        /// Starts a thread that calls `body`; none if the system gives none.
        pub fn start<T: Send + 'static>(told: Box<T>, number: usize, body: fn(Box<T>)) -> Option<Thread> {
            let named = std::thread::Builder::new().name(format!("foam-{number}"));
            named.spawn(move || body(told)).ok().map(Thread)
        }

        /// Waits for its end.
        pub fn join(self) {
            let _ = self.0.join();
        }
    }
}

pub use system::Thread;
