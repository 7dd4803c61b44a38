//! A steady-state step allocates nothing, on no thread. One test, in a program of its own, because the count is
//! of the whole process.

mod support;

use foam::abi::*;
use foam::{Config, Gradient, Optimizer, Param, TensorMut};
use ndarray::Array2;
use std::alloc::{GlobalAlloc, Layout, System};
use std::mem::{MaybeUninit, size_of};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use support::model::{Model, Spec};
use support::random::Random;
use support::tensor::{Dtype, Tensor};

/// The system's allocator, counting while it is told to.
struct Counting;

static COUNTS: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

fn count(size: usize) {
    if COUNTS.load(Ordering::Relaxed) {
        CALLS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(size, Ordering::Relaxed);
    }
}

// SAFETY: everything is handed to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, data: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: the caller's contract.
        unsafe { System.realloc(data, layout, size) }
    }

    unsafe fn dealloc(&self, data: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(data, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `body` allocates, on any thread: calls and bytes.
fn allocated(body: impl FnOnce()) -> (usize, usize) {
    CALLS.store(0, Ordering::Relaxed);
    BYTES.store(0, Ordering::Relaxed);
    COUNTS.store(true, Ordering::SeqCst);
    body();
    COUNTS.store(false, Ordering::SeqCst);
    (CALLS.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed))
}

/// A model with everything that a step has to call it: what it allocates is the library's.
struct Loop {
    model: Model,
    _tensors: Vec<Tensor>,
    params: Vec<foam_tensor>,
    grads: Vec<foam_tensor>,
}

impl Loop {
    fn new(options: &str, dtype: Dtype) -> Loop {
        Loop::with_preset("reference", options, dtype)
    }

    fn with_preset(preset: &str, options: &str, dtype: Dtype) -> Loop {
        let shapes: [&[i64]; 6] = [&[140, 100], &[40, 3, 20], &[500], &[130, 1], &[3, 3], &[]];
        let specs: Vec<Spec> =
            shapes.iter().enumerate().map(|(i, s)| Spec::new(&format!("w{i}"), s).of(dtype)).collect();
        let mut random = Random::new(4);
        // The parameters, then their gradients.
        let mut tensors: Vec<Tensor> =
            specs.iter().chain(&specs).map(|s| s.tensor(&random.normals(s.elements()))).collect();
        let mut views: Vec<foam_tensor> = tensors.iter_mut().map(Tensor::in_c).collect();
        let grads = views.split_off(specs.len());
        let model = Model::new(preset, options, &specs);
        Loop { model, _tensors: tensors, params: views, grads }
    }

    fn steps(&self, count: usize) {
        let mut args = MaybeUninit::<foam_step_args>::uninit();
        // SAFETY: the struct has the size that is passed, and the tensors live as long as `self`.
        unsafe {
            let size = size_of::<foam_step_args>() as u32;
            assert_eq!(foam_step_args_init(args.as_mut_ptr(), size, null_mut()), FOAM_OK);
            let mut args = args.assume_init();
            (args.count, args.params, args.grads) =
                (self.params.len(), self.params.as_ptr(), self.grads.as_ptr());
            for _ in 0..count {
                assert_eq!(foam_step(self.model.handle(), &args, null_mut()), FOAM_OK);
            }
        }
    }
}

fn the_rust_api_adds_nothing() {
    let config = Config { num_threads: 1, check_period: 1_000_000, start_step: 2, ..Config::reference() };
    let params = [Param::new("matrix", &[40, 30]), Param::new("vector", &[30]), Param::new("absent", &[3])];
    let mut optimizer = Optimizer::new(config, params).unwrap();
    let (mut matrix, mut vector, mut absent) = (Array2::<f32>::ones((40, 30)), vec![1.0f32; 30], [1.0f32; 3]);
    let gradient = Array2::<f32>::ones((40, 30));
    let mut steps = |count| {
        for _ in 0..count {
            let params: [TensorMut; 3] = [(&mut matrix).into(), (&mut vector).into(), (&mut absent).into()];
            let grads: [Gradient; 3] = [(&gradient).into(), gradient.row(0).into(), Gradient::absent()];
            optimizer.step(params, grads).unwrap();
        }
    };
    steps(3);
    assert_eq!(allocated(|| steps(50)), (0, 0), "calls and bytes of steps through the Rust API");
}

#[test]
fn a_step_without_a_check_allocates_nothing_on_any_thread() {
    let (calls, _) = allocated(|| drop(std::hint::black_box(vec![0u8; 100])));
    assert_eq!(calls, 1, "the allocator does not count");
    for threads in [1, 2] {
        for (dtype, variant) in [
            (Dtype::F32, ""),
            (Dtype::F32, "grafting=none beta1=0"),
            (Dtype::F32, "grafting=sgd momentum=0.9 nesterov=true"),
            (Dtype::F32, "normalized_grafting=true decoupled_weight_decay=false"),
            (Dtype::F32, "statistic_dtype=f64"),
            (Dtype::F32, "keep_inverse_root=false statistics_period=3"),
            (Dtype::Bf16, ""),
            (Dtype::F16, "policy=grafting_only"),
            (Dtype::F64, ""),
        ] {
            // The first check is in the warm-up, so that the counted steps are preconditioned.
            let options = format!(
                "num_threads={threads} max_factor_dim=128 merge_dims=false check_period=1000000 start_step=2 \
                 epsilon=1e-4 epsilon_max=1e-2 {variant}"
            );
            let run = Loop::new(&options, dtype);
            run.steps(3);
            let rounds: Vec<_> = (0..4).map(|_| allocated(|| run.steps(50))).collect();
            // The system may start a worker late, and std then copies its name: once, in one of the rounds.
            let dirty = rounds.iter().filter(|round| **round != (0, 0)).count();
            assert!(dirty < threads, "(calls, bytes) {rounds:?}: {threads} threads, {dtype:?}, '{variant}'");
        }
    }
    for (dtype, variant) in [
        (Dtype::F32, "soap_form=exact"),
        (Dtype::F32, "soap_form=in_basis"),
        (Dtype::F32, "soap_form=in_basis statistic_dtype=f64 normalize_grads=true precondition_1d=true"),
        (Dtype::Bf16, "soap_form=exact max_precond_dim=64"),
    ] {
        let options =
            format!("num_threads=1 max_factor_dim=128 check_period=1000000 refresh_schedule=fixed {variant}");
        let run = Loop::with_preset("soap", &options, dtype);
        run.steps(3);
        assert_eq!(
            allocated(|| run.steps(50)),
            (0, 0),
            "(calls, bytes) of SOAP's steps: {dtype:?}, '{variant}'"
        );
    }
    for threads in [1, 2] {
        // Bases are decomposed in the background, and taken, in the counted steps.
        let options = format!(
            "num_threads={threads} max_factor_dim=128 policy=stale check_period=5 refresh_delay=3 start_step=1 epsilon=1e-4"
        );
        let run = Loop::new(&options, Dtype::F32);
        run.steps(21);
        let before = run.model.stats().evd_calls;
        let rounds: Vec<_> = (0..4).map(|_| allocated(|| run.steps(20))).collect();
        assert!(run.model.stats().evd_calls > before);
        let dirty = rounds.iter().filter(|round| **round != (0, 0)).count();
        assert!(dirty < threads, "(calls, bytes) {rounds:?}: {threads} threads, delayed refreshes");
    }
    the_rust_api_adds_nothing();
    let run = Loop::new("max_factor_dim=128 check_period=1 epsilon=1e-4 epsilon_max=1e-2", Dtype::F32);
    run.steps(3);
    let factors = run.model.stats().factors as usize;
    let (calls, bytes) = allocated(|| run.steps(20));
    println!("a check of {factors} factors allocates {} times, {} bytes", calls / 20, bytes / 20);
    // A handful of short lists for each factor, never a matrix.
    assert!(calls / 20 <= 16 * factors + 16, "{calls} allocations in 20 checks of {factors} factors");
    assert!(bytes / 20 <= 128 * 128 * 4 * factors, "{bytes} bytes in 20 checks of {factors} factors");
}
