//! CUDA calls that fail, each in its turn: the caller gets a status that names the call, and either nothing has
//! changed or the message says what is lost. Nothing leaks, whatever fails.

use crate::simulated::{clear_faults, count, fail, fail_evd, simulated_with};
use crate::support::model::{Failure, Model, Spec, StepWith, configuration};
use crate::support::random::Random;
use crate::support::tensor::{Dtype, Tensor};
use crate::tier::{self, Need};
use foam::abi::*;
use std::collections::BTreeMap;

/// Faults are many, and no address is used again: whatever is used or freed after its end is told.
pub const QUIETLY: [(&str, &str); 2] = [("CUDASIM_QUIET", "1"), ("CUDASIM_REUSE", "0")];

pub const OPTIONS: &str = "device=cuda:0 check_period=4 beta2=0.9 policy=stale epsilon=1e-3 epsilon_max=3e-2";

/// Everything that a step or a creation calls, and the status that its failure gives.
const ENTRIES: &[(&str, i32)] = &[
    ("cuInit", 3),
    ("cuDriverGetVersion", 1),
    ("cuDeviceGetCount", 3),
    ("cuDeviceGet", 101),
    ("cuDeviceGetAttribute", 1),
    ("cuDevicePrimaryCtxRetain", 2),
    ("cuCtxPushCurrent_v2", 201),
    ("cuMemAlloc_v2", 2),
    ("cuMemHostAlloc", 2),
    ("cuMemsetD8Async", 700),
    ("cuMemcpyHtoDAsync_v2", 700),
    ("cuMemcpyDtoHAsync_v2", 700),
    ("cuModuleLoadData", 218),
    ("cuModuleGetFunction", 500),
    ("cuStreamCreate", 2),
    ("cuEventCreate", 2),
    ("cuEventRecord", 400),
    ("cuEventRecordWithFlags", 400),
    ("cuStreamWaitEvent", 400),
    ("cuStreamIsCapturing", 1),
    ("cuStreamSynchronize", 700),
    ("cuLaunchKernel", 719),
    ("cublasCreate_v2", 3),
    ("cublasSetStream_v2", 1),
    ("cublasSetWorkspace_v2", 7),
    ("cublasSgemmStridedBatched", 13),
    ("cublasSsyrk_v2", 13),
    ("cublasGemmStridedBatchedEx", 13),
    ("cublasStrsmBatched", 13),
    ("cublasDtrsmBatched", 13),
    ("cusolverDnCreate", 1),
    ("cusolverDnSetStream", 1),
    ("cusolverDnCreateParams", 2),
    ("cusolverDnSpotrfBatched", 7),
    ("cusolverDnDpotrfBatched", 7),
    ("cusolverDnXsyevd_bufferSize", 3),
    ("cusolverDnXsyevd", 7),
    ("cusolverDnXsyevBatched_bufferSize", 3),
    ("cusolverDnXsyevBatched", 7),
    ("cusolverDnSgeqrf_bufferSize", 3),
    ("cusolverDnSgeqrf", 7),
    ("cusolverDnSorgqr_bufferSize", 3),
    ("cusolverDnSorgqr", 7),
    ("cusolverDnDgeqrf_bufferSize", 3),
    ("cusolverDnDgeqrf", 7),
    ("cusolverDnDorgqr_bufferSize", 3),
    ("cusolverDnDorgqr", 7),
];

const SOAP: &str = "device=cuda:0 check_period=4 refresh_schedule=fixed";

fn specs() -> Vec<Spec> {
    specs_in(Dtype::F32)
}

fn specs_in(dtype: Dtype) -> Vec<Spec> {
    let shapes: [&[i64]; 4] = [&[6, 5], &[6, 5], &[2, 5], &[7]];
    let spec = |(i, shape): (usize, &&[i64])| Spec::new(&format!("p{i}"), shape).of(dtype);
    shapes.iter().enumerate().map(spec).collect()
}

pub struct Bed {
    pub model: Model,
    params: Vec<Tensor>,
    grads: Vec<Vec<Option<Tensor>>>,
}

fn bed() -> Bed {
    bed_of("reference", &format!("{OPTIONS} merge_dims=false"))
}

pub fn bed_of(preset: &str, options: &str) -> Bed {
    bed_in(Dtype::F32, preset, options)
}

fn bed_in(dtype: Dtype, preset: &str, options: &str) -> Bed {
    let specs = specs_in(dtype);
    let mut random = Random::new(9);
    let mut tensors = || specs.iter().map(|s| s.tensor(&random.normals(s.elements()))).collect::<Vec<_>>();
    let params = tensors();
    let grads = (0..8).map(|_| tensors().into_iter().map(Some).collect()).collect();
    Bed { model: Model::new(preset, options, &specs), params, grads }
}

impl Bed {
    pub fn step(&mut self, t: usize) -> Result<bool, Failure> {
        self.model.try_step(&mut self.params, &self.grads[t], StepWith::default())
    }

    /// The step `t` with the `nth` call of `entry` failing, but none of the test's own calls.
    fn step_with_fault(&mut self, t: usize, entry: &str, nth: u64, status: i32) -> Result<bool, Failure> {
        let grads = self.grads[t].clone();
        self.model.before_step = Some(Box::new({
            let entry = entry.to_string();
            move || fail(&entry, nth, status)
        }));
        self.model.after_step = Some(Box::new(clear_faults));
        let outcome = self.model.try_step(&mut self.params, &grads, StepWith::default());
        (self.model.before_step, self.model.after_step) = (None, None);
        outcome
    }
}

/// What became of the faults, for the table.
#[derive(Default)]
pub struct Tally {
    pub absorbed: u64,
    pub unchanged: u64,
    pub lost: u64,
}

pub fn sweep(bed: impl Fn() -> Bed, t: usize) -> BTreeMap<&'static str, Tally> {
    let mut clean = bed();
    let mut calls = BTreeMap::new();
    (0..t).for_each(|t| assert_eq!(clean.step(t), Ok(false)));
    // How often a step calls each entry: that many faults to try.
    let before: Vec<u64> = ENTRIES.iter().map(|(entry, _)| count(entry)).collect();
    let own = { (count("cuMemcpyHtoDAsync_v2"), count("cuStreamSynchronize")) };
    assert_eq!(clean.step(t), Ok(false));
    for ((entry, _), before) in ENTRIES.iter().zip(&before) {
        calls.insert(*entry, count(entry) - before);
    }
    assert!(own.0 < count("cuMemcpyHtoDAsync_v2"));
    let mut tallies: BTreeMap<&str, Tally> = BTreeMap::new();
    for (entry, status) in ENTRIES {
        // The test's own copies, waits and pushes are in the count; beyond what the step calls, nothing fails.
        for nth in 1..=calls[entry] {
            let mut bed = bed();
            (0..t).for_each(|t| assert_eq!(bed.step(t), Ok(false)));
            let before = bed.params.clone();
            let tally = tallies.entry(entry).or_default();
            match bed.step_with_fault(t, entry, nth, *status) {
                Ok(_) => tally.absorbed += 1,
                Err(failure) if failure.message.contains("lost") => {
                    assert_eq!(failure.status, FOAM_DEVICE_ERROR, "{entry} {nth}: {failure:?}");
                    assert_eq!(bed.step(t).unwrap_err().status, FOAM_POISONED);
                    assert_eq!(bed.model.stats().params, 4, "statistics are still to be had");
                    tally.lost += 1;
                }
                Err(failure) => {
                    let text = &failure.message;
                    assert!(
                        text.contains("failed") || text.contains("no usable"),
                        "{entry} {nth}: {failure:?}"
                    );
                    assert_eq!(bed.params, before, "{entry} {nth} changed a parameter");
                    // The same step again is the step that would have been.
                    assert_eq!(bed.step(t), Ok(false), "{entry} {nth}");
                    assert_eq!(bed.params, clean.params, "{entry} {nth} left the state changed");
                    tally.unchanged += 1;
                }
            }
        }
    }
    tallies.retain(|_, tally| tally.absorbed + tally.unchanged + tally.lost > 0);
    tallies
}

pub fn print(what: &str, tallies: &BTreeMap<&str, Tally>) {
    println!("| {what}: call that fails | absorbed | nothing changed | said to be lost |");
    for (entry, t) in tallies {
        println!("| {entry} | {} | {} | {} |", t.absorbed, t.unchanged, t.lost);
    }
}

#[test]
fn a_fault_in_a_plain_step_changes_nothing_or_says_what_is_lost() {
    if !tier::runs(Need::Long) {
        return;
    }
    simulated_with(&["eager"], &QUIETLY, || {
        let tallies = sweep(bed, 5);
        print("plain step", &tallies);
        assert!(tallies["cuLaunchKernel"].lost > 0 && tallies["cuLaunchKernel"].unchanged > 0);
        let fast = || bed_of("reference", &format!("{OPTIONS} merge_dims=false matmul_precision=tf32"));
        assert!(sweep(fast, 5)["cublasGemmStridedBatchedEx"].lost > 0);
        let short = || bed_in(Dtype::Bf16, "reference", &format!("{OPTIONS} merge_dims=false"));
        assert!(sweep(short, 5)["cublasGemmStridedBatchedEx"].lost > 0);
    });
}

#[test]
fn a_fault_in_a_check_changes_nothing_or_says_what_is_lost() {
    if !tier::runs(Need::Long) {
        return;
    }
    simulated_with(&["eager"], &QUIETLY, || {
        let tallies = sweep(bed, 7);
        print("check", &tallies);
        // A solver that fails costs no step: the stale basis stays.
        assert!(tallies["cusolverDnXsyevd"].lost == 0 && tallies["cusolverDnXsyevBatched"].lost == 0);
    });
}

#[test]
fn a_fault_in_a_step_of_soap_changes_nothing_or_says_what_is_lost() {
    if !tier::runs(Need::Long) {
        return;
    }
    simulated_with(&["eager"], &QUIETLY, || {
        let tallies = sweep(|| bed_of("soap", SOAP), 5);
        print("SOAP, plain step", &tallies);
        assert!(tallies["cuLaunchKernel"].lost > 0 && tallies["cuLaunchKernel"].unchanged > 0);
        let tallies = sweep(|| bed_of("soap", SOAP), 0);
        print("SOAP, first basis", &tallies);
        assert!(tallies["cusolverDnXsyevd"].lost == 0 && tallies["cusolverDnXsyevBatched"].lost == 0);
        for (options, solvers) in [
            (format!("{SOAP} soap_form=exact"), ["cusolverDnSgeqrf", "cusolverDnSorgqr"]),
            (format!("{SOAP} statistic_dtype=f64"), ["cusolverDnDgeqrf", "cusolverDnDorgqr"]),
        ] {
            let tallies = sweep(|| bed_of("soap", &options), 4);
            print(&format!("SOAP, refresh, {}", &options[SOAP.len()..]), &tallies);
            for name in solvers {
                // A solver that fails costs no step: the stale basis stays.
                assert!(tallies[name].lost == 0 && tallies[name].absorbed > 0, "{name}");
            }
        }
    });
}

#[test]
fn a_fault_in_a_refresh_by_qr_steps_changes_nothing_or_says_what_is_lost() {
    if !tier::runs(Need::Long) {
        return;
    }
    const QR: &str = "device=cuda:0 check_period=4 beta2=0.5 refresh_method=qr tau=0.5 merge_dims=false";
    simulated_with(&["eager"], &[("CUDASIM_QUIET", "1")], || {
        // The first bases, and a check that senses them first.
        for (t, dtype, solver, product) in [
            (7, "f32", "cusolverDnSpotrfBatched", "cublasStrsmBatched"),
            (3, "f64", "cusolverDnDpotrfBatched", "cublasDtrsmBatched"),
        ] {
            let tallies = sweep(|| bed_of("default", &format!("{QR} statistic_dtype={dtype}")), t);
            print(&format!("QR steps in {dtype}, step {t}"), &tallies);
            // A factorization that fails costs no step: the next check decomposes.
            assert!(tallies[solver].lost == 0 && tallies[solver].absorbed > 0, "{solver}");
            assert!(tallies[product].lost > 0, "{product}");
        }
    });
}

#[test]
fn an_orthogonal_factor_that_is_none_is_not_believed() {
    simulated_with(&["eager"], &[], || {
        for form in ["exact", "in_basis"] {
            for kind in ["info", "nonorthogonal", "nan"] {
                let mut bed = bed_of("soap", &format!("{SOAP} soap_form={form}"));
                for t in 0..8 {
                    // The second eigendecomposition of the first step, and the first factor of the next check, which
                    // belongs to another block.
                    match t {
                        0 => fail_evd(2, kind),
                        4 => fail_evd(1, kind),
                        _ => {}
                    }
                    assert_eq!(bed.step(t), Ok(false), "{kind}");
                }
                let stats = bed.model.stats();
                assert_eq!((stats.fallback_stale, stats.failed_evds), (2, 3), "{form}, {kind}: {stats:?}");
                assert_eq!(stats.fallback_double, 1, "the first one is made up for: {stats:?}");
                assert!(bed.params.iter().all(|p| p.values().iter().all(|x| x.is_finite())), "{kind}");
            }
        }
    });
}

#[test]
fn a_fault_at_the_creation_of_soap_is_an_error_and_leaks_nothing() {
    if !tier::runs(Need::Long) {
        return;
    }
    simulated_with(&["eager"], &QUIETLY, || faults_at_creation("soap", SOAP));
}

#[test]
fn a_fault_at_creation_is_an_error_and_leaks_nothing() {
    if !tier::runs(Need::Long) {
        return;
    }
    simulated_with(&["eager"], &QUIETLY, || faults_at_creation("reference", OPTIONS));
}

pub fn faults_at_creation(preset: &str, options: &str) {
    let config = configuration(preset, options).unwrap();
    let before: Vec<u64> = ENTRIES.iter().map(|(entry, _)| count(entry)).collect();
    let made = Model::create_only(&config, &specs()).unwrap_or_else(|failure| panic!("{failure:?}"));
    let mut tried = 0;
    let calls: Vec<u64> =
        ENTRIES.iter().zip(&before).map(|((entry, _), before)| count(entry) - before).collect();
    drop(made);
    for ((entry, status), calls) in ENTRIES.iter().zip(calls) {
        for nth in 1..=calls {
            fail(entry, nth, *status);
            let made = Model::create_only(&config, &specs());
            clear_faults();
            if let Err(failure) = made {
                assert!(failure.message.len() > 20, "{failure:?}");
                let sane =
                    [FOAM_DEVICE_ERROR, FOAM_OUT_OF_MEMORY, FOAM_UNSUPPORTED].contains(&failure.status);
                assert!(sane, "{entry} {nth}: {failure:?}");
                tried += 1;
            }
            drop(Model::create(&config, &specs()).unwrap());
        }
    }
    println!("| faults at creation, {preset} | {tried} |");
    assert!(tried > 60, "{tried}");
}

#[test]
fn a_solver_that_gives_nonsense_is_not_believed() {
    simulated_with(&["eager"], &[], || {
        for kind in ["info", "nonorthogonal", "nan", "values"] {
            let mut bed = bed();
            // At the first check there is no basis to keep: the diagonal serves. At the second there is one.
            for t in 0..8 {
                if t == 3 || t == 7 {
                    fail_evd(2, kind);
                }
                assert_eq!(bed.step(t), Ok(false), "{kind}");
            }
            let stats = bed.model.stats();
            assert_eq!((stats.fallback_stale, stats.failed_evds), (2, 2), "{kind}: {stats:?}");
            assert!(bed.params.iter().all(|p| p.values().iter().all(|x| x.is_finite())), "{kind}");
        }
    });
}

/// The caller's allocator, on the device; what it gave out and has not got back.
mod allocator {
    use cudarc::driver::sys;
    use std::ffi::c_void;
    use std::sync::atomic::{AtomicUsize, Ordering};

    pub static CALLS: AtomicUsize = AtomicUsize::new(0);
    pub static LIVE: AtomicUsize = AtomicUsize::new(0);

    pub unsafe extern "C" fn allocate(_: *mut c_void, size: usize, alignment: usize) -> *mut c_void {
        assert!(alignment >= 256);
        let mut address = 0;
        // SAFETY: the library calls with its device's context current.
        let status = unsafe { sys::cuMemAlloc_v2(&mut address, size) };
        CALLS.fetch_add(1, Ordering::Relaxed);
        LIVE.fetch_add(size, Ordering::Relaxed);
        if status == sys::CUresult::CUDA_SUCCESS { address as *mut c_void } else { std::ptr::null_mut() }
    }

    pub unsafe extern "C" fn deallocate(_: *mut c_void, data: *mut c_void, size: usize, _: usize) {
        // SAFETY: given by `allocate`.
        unsafe { sys::cuMemFree_v2(data as u64) };
        LIVE.fetch_sub(size, Ordering::Relaxed);
    }
}

#[test]
fn device_memory_comes_from_the_callers_allocator_and_goes_back_to_it() {
    use std::sync::atomic::Ordering::Relaxed;
    simulated_with(&["eager"], &[], || {
        let mut config = configuration("reference", OPTIONS).unwrap();
        config.allocate = Some(allocator::allocate);
        config.deallocate = Some(allocator::deallocate);
        let before = count("cuMemAlloc_v2");
        let mut model = Model::create(&config, &specs()).unwrap_or_else(|failure| panic!("{failure:?}"));
        let made = count("cuMemAlloc_v2") - before;
        assert_eq!(made as usize, allocator::CALLS.load(Relaxed), "memory from elsewhere");
        let stats = model.stats();
        let known = stats.state_bytes_device + stats.workspace_bytes;
        assert_eq!(allocator::LIVE.load(Relaxed) as u64, known);
        let mut random = Random::new(9);
        let mut params: Vec<Tensor> =
            specs().iter().map(|s| s.tensor(&random.normals(s.elements()))).collect();
        let grads = params.clone();
        model.step(&mut params, &grads);
        drop(model);
        assert_eq!(allocator::LIVE.load(Relaxed), 0);
    });
}

#[test]
fn a_device_that_is_too_small_says_what_it_lacked_room_for() {
    simulated_with(&["eager"], &[("CUDASIM_QUIET", "1"), ("CUDASIM_MEMORY", "5M")], || {
        let config = configuration("reference", OPTIONS).unwrap();
        let failure = Model::create_only(&config, &[Spec::new("w", &[512, 512])]).err().unwrap();
        assert_eq!(failure.status, FOAM_OUT_OF_MEMORY);
        assert!(failure.message.contains("state") && failure.message.contains("bytes"), "{failure:?}");
    });
}
