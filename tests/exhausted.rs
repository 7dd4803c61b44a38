//! The end of memory: every function says so and changes nothing, whichever of its allocations fails; a step that
//! has begun never needs any; sizes that cannot be had are refused before anything is built; a save or a load needs
//! little beside the state; and what is no checkpoint costs nothing. Each test runs in a process of its own, because the
//! allocator is the whole process's.

#[path = "exhausted/one_rank.rs"]
mod one_rank;
#[path = "support/scarce.rs"]
mod scarce;
mod support;

use foam::abi::*;
use foam::{Config, Gradient, Optimizer, Param, TensorMut};
use scarce::{ARMED, CALLS, LARGEST, SHOWS, Scarce, peak, with_refusal};
use std::ffi::CString;
use std::mem::{MaybeUninit, size_of};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use support::model::{Declared, Model, Spec, configuration};
use support::random::Random;
use support::stack::{I32, Room, Shape, Stack};
use support::tensor::{Dtype, Tensor};

#[global_allocator]
static ALLOCATOR: Scarce = Scarce;

const OPTIONS: &str =
    "policy=foam check_period=2 beta2=0.8 max_factor_dim=64 merge_dims=false momentum=0.5 num_threads=1";

fn model(specs: &[Spec], steps: usize) -> Model {
    let mut model = Model::new("reference", OPTIONS, specs);
    let mut random = Random::new(steps as u64);
    let mut tensors = || specs.iter().map(|s| s.tensor(&random.normals(s.elements()))).collect::<Vec<_>>();
    let mut params = tensors();
    (0..steps).for_each(|_| model.step(&mut params, &tensors()));
    model
}

fn c_path(path: &Path) -> CString {
    CString::new(path.to_str().unwrap()).unwrap()
}

/// The calls of a handle's whole checkpoint interface; the bytes and files are made before.
type Call<'a> = Box<dyn Fn() -> foam_status + 'a>;

fn files(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

fn every_refused_allocation_is_reported(folder: &Path) {
    let specs = [
        Spec::new("matrix", &[70, 5]).of(Dtype::F32),
        Spec::new("quoted \"vector\"", &[3]),
        Spec { grafting_only: true, ..Spec::new("embedding", &[6]).of(Dtype::F32) },
    ];
    let handle = model(&specs, 3);
    let other = model(&specs, 6).save();
    let v1 = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/checkpoints/v1.safetensors")).unwrap();
    let (saved, loaded, foreign) = (folder.join("saved"), folder.join("loaded"), folder.join("foreign"));
    std::fs::write(&loaded, &other).unwrap();
    std::fs::write(&foreign, &v1).unwrap();
    let (saved, loaded, foreign) = (c_path(&saved), c_path(&loaded), c_path(&foreign));
    let mut damaged = other.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let mut room = vec![0u8; other.len() + 100];
    let (room, capacity) = (room.as_mut_ptr(), room.len());
    let raw = handle.handle();
    let load = |bytes: &Vec<u8>| {
        let (data, size) = (bytes.as_ptr(), bytes.len());
        // SAFETY: a live handle and the bytes of a vector.
        move || unsafe { foam_load_memory(raw, data.cast(), size, null_mut()) }
    };
    let mut size = 0usize;
    let size = &raw mut size;
    // SAFETY: in all of these, a live handle, C strings, and places of the sizes that are passed.
    let calls: [(&str, foam_status, Call); 7] = unsafe {
        [
            ("size", FOAM_OK, Box::new(move || foam_save_memory(raw, null_mut(), 0, size, null_mut()))),
            (
                "save",
                FOAM_OK,
                Box::new(move || foam_save_memory(raw, room.cast(), capacity, size, null_mut())),
            ),
            ("save file", FOAM_OK, Box::new(|| foam_save_file(raw, saved.as_ptr(), null_mut()))),
            ("damaged", FOAM_BAD_CHECKPOINT, Box::new(load(&damaged))),
            ("foreign", FOAM_BAD_CHECKPOINT, Box::new(|| foam_load_file(raw, foreign.as_ptr(), null_mut()))),
            ("load", FOAM_OK, Box::new(load(&other))),
            ("load file", FOAM_OK, Box::new(|| foam_load_file(raw, loaded.as_ptr(), null_mut()))),
        ]
    };
    for (name, status, call) in &calls {
        let mut refused = 0;
        for stays_empty in [false, true] {
            let before = handle.save();
            let there = files(folder);
            for number in 0.. {
                let (got, reached) = with_refusal(number, stays_empty, call);
                if !reached {
                    assert_eq!(got, *status, "{name}");
                    break;
                }
                // A message that could not be made is left out; the status is the status.
                assert!(
                    got == FOAM_OUT_OF_MEMORY || got == *status && got != FOAM_OK,
                    "{name}, allocation {number}: {got}"
                );
                assert!(handle.save() == before, "{name}, allocation {number}: the state changed");
                assert_eq!(files(folder), there, "{name}, allocation {number}: a file was left");
                refused += 1;
            }
        }
        println!("{name}: {refused} refused allocations, no abort");
        assert!(refused > 3, "{name}");
    }
    assert!(handle.save() == other);
}

/// Tries a call with every allocation refused, alone and with all after it: it says so, and `unchanged` holds. Where
/// it can do without (`serves`), it gives what it always gives, which is for `unchanged` to see, too.
fn exhaust(
    name: &str,
    serves: bool,
    call: &dyn Fn() -> foam_status,
    unchanged: &dyn Fn(foam_status) -> bool,
) {
    let (mut refused, mut served) = (0, 0);
    for stays_empty in [false, true] {
        for number in 0.. {
            let (got, reached) = with_refusal(number, stays_empty, call);
            assert!(unchanged(got), "{name}, allocation {number}, status {got}: something changed");
            if !reached {
                assert_eq!(got, FOAM_OK, "{name}");
                break;
            }
            assert!(
                got == FOAM_OUT_OF_MEMORY || serves && got == FOAM_OK,
                "{name}, allocation {number}: {got}"
            );
            refused += 1;
            served += i32::from(got == FOAM_OK);
        }
    }
    println!("{name}: {refused} refused allocations, {served} done without, no abort");
}

fn shapes() -> Vec<Spec> {
    vec![
        Spec::new("matrix", &[130, 70]).of(Dtype::F32),
        Spec::new("tensor", &[9, 4, 8]),
        Spec::new("vector", &[3]),
        Spec::new("scalar", &[]).of(Dtype::Bf16),
    ]
}

const POLICIES: [&str; 5] = ["foam", "stale", "diagonal_residual", "foam_certified", "sandwich"];

fn creation() {
    let specs = shapes();
    let declared = Declared::new(&specs);
    for policy in POLICIES {
        let config = configuration("reference", &format!("{OPTIONS} policy={policy} num_threads=3")).unwrap();
        let create = || {
            let mut handle = null_mut();
            // SAFETY: live structs, and a place for the handle.
            unsafe {
                let (params, count) = (declared.params.as_ptr(), declared.params.len());
                let status = foam_create(&config, params, count, &mut handle, null_mut());
                assert_eq!(handle.is_null(), status != FOAM_OK);
                foam_destroy(handle);
                status
            }
        };
        exhaust(&format!("create, {policy}"), true, &create, &|_| true);
        let mut count = 0;
        let count = &raw mut count;
        let mut blocks: Vec<foam_block_info> = Vec::with_capacity(100);
        let (items, size) = (blocks.as_mut_ptr(), size_of::<foam_block_info>());
        // SAFETY: live structs, and room for a hundred blocks.
        let plan = || unsafe {
            let (params, own) = (declared.params.as_ptr(), declared.params.len());
            foam_plan_blocks(&config, params, own, items, size, 100, count, null_mut())
        };
        exhaust("plan blocks", true, &plan, &|_| true);
    }
}

/// A step as C sees it.
struct Arguments {
    own: Vec<Tensor>,
    _grads: Vec<Tensor>,
    _params: Vec<foam_tensor>,
    _lent: Vec<foam_tensor>,
    args: foam_step_args,
}

fn arguments(specs: &[Spec], seed: u64) -> Box<Arguments> {
    let mut random = Random::new(seed);
    let mut tensors = || specs.iter().map(|s| s.tensor(&random.normals(s.elements()))).collect::<Vec<_>>();
    let (mut own, mut grads) = (tensors(), tensors());
    let params: Vec<_> = own.iter_mut().map(Tensor::in_c).collect();
    let lent: Vec<_> = grads.iter_mut().map(Tensor::in_c).collect();
    let mut args = MaybeUninit::<foam_step_args>::uninit();
    // SAFETY: the struct has the size that is passed; the call fills it.
    let mut args = unsafe {
        foam_step_args_init(args.as_mut_ptr(), size_of::<foam_step_args>() as u32, null_mut());
        args.assume_init()
    };
    (args.count, args.params, args.grads) = (specs.len(), params.as_ptr(), lent.as_ptr());
    Box::new(Arguments { own, _grads: grads, _params: params, _lent: lent, args })
}

fn steps(on_threads: i32) {
    let specs = shapes();
    let cases = [
        ("reference", "policy=foam", 1, "none"),
        ("reference", "policy=foam", 3, "none"),
        ("reference", "policy=foam", 1, "evd_chosen"),
        ("reference", "policy=foam", 3, "evd_all"),
        ("reference", "policy=stale", 3, "none"),
        ("reference", "policy=diagonal_residual", 3, "none"),
        ("reference", "policy=foam_certified", 1, "none"),
        ("default", "policy=sandwich", 3, "none"),
        ("reference", "policy=stale refresh_delay=1", 3, "none"),
        ("default", "policy=sandwich refresh_method=qr", 1, "none"),
        ("soap", "policy=stale momentum=0 soap_form=exact refresh_schedule=fixed", 1, "none"),
        ("soap", "policy=stale momentum=0 soap_form=in_basis refresh_schedule=fixed", 3, "none"),
    ];
    for (preset, more, threads, fault) in cases.into_iter().filter(|case| case.2 == on_threads) {
        let befores = match more {
            "policy=foam" => 1..3,
            // A step that asks for bases, and one that takes them in a handle that has not begun them.
            "policy=stale refresh_delay=1" => 3..5,
            _ => 3..4,
        };
        for before in befores {
            let options =
                format!("{OPTIONS} {more} num_threads={threads} inject_fault={fault} inject_fault_step=1");
            let mut model = Model::new(preset, &options, &specs);
            let mut random = Random::new(1);
            let mut tensors =
                || specs.iter().map(|s| s.tensor(&random.normals(s.elements()))).collect::<Vec<_>>();
            let mut params = tensors();
            (0..before).for_each(|_| model.step(&mut params, &tensors()));
            let saved = model.save();
            drop(model);
            // Every attempt is the first of a handle of its own, on threads of its own.
            let (mut expected, first) = (None, arguments(&specs, 2).own);
            for stays_empty in [false, true] {
                for number in 0.. {
                    let mut model = Model::new(preset, &options, &specs);
                    model.load(&saved).unwrap();
                    let step = arguments(&specs, 2);
                    // SAFETY: a live handle, and tensors that live as long as the arguments.
                    let call = || unsafe { foam_step(model.handle(), &step.args, null_mut()) };
                    let (status, reached) = with_refusal(number, stays_empty, call);
                    let case = format!("{preset} {options}, step {}, allocation {number}", before + 1);
                    if status == FOAM_OUT_OF_MEMORY {
                        assert!(step.own == first && model.save() == saved, "{case}: changed");
                    } else {
                        assert_eq!(status, FOAM_OK, "{case}");
                        // A rung that no memory is left for fails like any other; all else is done as always.
                        let is_same =
                            expected.as_ref().is_none_or(|e| *e == (step.own.clone(), model.save()));
                        assert!(fault != "none" || is_same, "{case}: another result");
                        if fault == "none" {
                            expected = Some((step.own.clone(), model.save()));
                        }
                    }
                    if !reached {
                        break;
                    }
                    assert!(number < 500, "{case}");
                }
            }
        }
        println!("steps, {preset} {more}, {threads} threads, fault {fault}: no abort");
    }
}

fn stacks() {
    let shape = || Shape::new(&[40, 24], 3, Dtype::F32);
    let mut stack =
        Stack::new("reference", "policy=foam check_period=1 weight_decay=0.1 num_threads=2", shape());
    let mut random = Random::new(4);
    let mut room = |dtype: foam_dtype, dims: &[i64]| {
        let mut room = Room::new(dtype, dims);
        if dtype != I32 {
            let values: Vec<f32> = random.normals(room.bytes().len() / 4).iter().map(|x| *x as f32).collect();
            room.bytes_mut().copy_from_slice(bytemuck::cast_slice(&values));
        }
        room
    };
    let (real, whole) = (Dtype::F32.in_c(), shape().whole());
    let (mut grads, mut params) = (room(real, &whole), room(real, &whole));
    stack.step(&mut grads, &mut params, None, (-0.1, 1.0));
    let (mut info, mut update) = (room(I32, &[3]), room(real, &whole));
    let mut outs: Vec<Room> = stack.state.iter().map(|r| Room::new(r.dtype, &r.shape)).collect();
    let state: Vec<foam_tensor> = stack.state.iter_mut().map(Room::in_c).collect();
    let out: Vec<foam_tensor> = outs.iter_mut().map(Room::in_c).collect();
    let (g, w, i, u) = (grads.in_c(), params.in_c(), info.in_c(), update.in_c());
    let raw = stack.shape.in_c();
    let config = stack.config;
    type Verb = unsafe extern "C" fn(
        *const foam_config,
        *const foam_stack,
        *const foam_stack_args,
        *mut foam_error,
    ) -> foam_status;
    let verbs: [(&str, Verb); 3] =
        [("accumulate", foam_stack_accumulate), ("check", foam_stack_check), ("apply", foam_stack_apply)];
    for (name, verb) in verbs {
        let mut args = MaybeUninit::<foam_stack_args>::uninit();
        // SAFETY: the struct has the size that is passed; the call fills it.
        let mut args = unsafe {
            foam_stack_args_init(args.as_mut_ptr(), size_of::<foam_stack_args>() as u32, null_mut());
            args.assume_init()
        };
        (args.state, args.state_out, args.state_count) = (state.as_ptr(), out.as_ptr(), state.len());
        (args.workspace, args.workspace_size) = (stack.workspace.as_mut_ptr().cast(), stack.workspace.len());
        (args.info, args.scale) = (&i, -0.1);
        if name != "check" {
            (args.grads, args.params) = (&g, &w);
        }
        if name == "apply" {
            args.update = &u;
        }
        for kept in [false, true] {
            let call = || {
                if !kept {
                    foam_stack_trim();
                }
                // SAFETY: everything points into rooms that outlive the call.
                unsafe { verb(&config, &raw, &args, null_mut()) }
            };
            exhaust(&format!("{name}, session kept {kept}"), true, &call, &|_| true);
        }
    }
    let mut bytes = 0usize;
    let bytes = &raw mut bytes;
    let mut count = 0usize;
    let count = &raw mut count;
    let mut items: Vec<foam_stack_buffer> = Vec::with_capacity(40);
    let mut ports: Vec<foam_stack_port> = Vec::with_capacity(40);
    let (items, ports) = (items.as_mut_ptr(), ports.as_mut_ptr());
    let size = size_of::<foam_stack_buffer>();
    // SAFETY: in all of these, live structs and room for forty items.
    unsafe {
        let workspace = || {
            foam_stack_trim();
            foam_stack_workspace(&config, &raw, bytes, null_mut())
        };
        exhaust("stack workspace", true, &workspace, &|_| true);
        let reset = || {
            foam_stack_trim();
            foam_stack_reset(&config, &raw, state.as_ptr(), state.len(), null_mut())
        };
        exhaust("stack reset", true, &reset, &|_| true);
        let layout = || foam_stack_layout(&config, &raw, items, size, 40, count, null_mut());
        exhaust("stack layout", false, &layout, &|_| true);
        let listed = || {
            let size = size_of::<foam_stack_port>();
            foam_stack_ports(&config, &raw, 2, 1, ports, size, 40, count, null_mut())
        };
        exhaust("stack ports", false, &listed, &|_| true);
    }
}

fn looks_inside() {
    let specs = shapes();
    let handle = model(&specs, 5);
    let raw = handle.handle();
    let factors = handle.factors().len();
    let before = handle.save();
    let unchanged = |_| handle.save() == before;
    let mut items = vec![foam_factor_info::default(); factors];
    let (items, size) = (items.as_mut_ptr(), size_of::<foam_factor_info>());
    let mut blocks: Vec<foam_block_info> = Vec::with_capacity(100);
    let blocks = blocks.as_mut_ptr();
    let mut fields: Vec<foam_record_field> = Vec::with_capacity(100);
    let fields = fields.as_mut_ptr();
    let mut values = vec![0.0; 130 * 130];
    let values = values.as_mut_ptr();
    let mut text = vec![0; 5000];
    let text = text.as_mut_ptr();
    let (mut count, mut gap) = (0usize, 0.0);
    let (count, gap) = (&raw mut count, &raw mut gap);
    let mut stats =
        foam_stats_info { struct_size: size_of::<foam_stats_info>() as u32, ..Default::default() };
    let stats = &raw mut stats;
    let config = configuration("reference", OPTIONS).unwrap();
    let mut changed = config;
    let changed = &raw mut changed;
    // SAFETY: in all of these, a live handle, C strings, and places of the sizes that are passed.
    unsafe {
        exhaust("stats", false, &|| foam_stats(raw, stats, null_mut()), &unchanged);
        let call = || foam_factor_stats(raw, items, size, factors, count, null_mut());
        exhaust("factor stats", false, &call, &unchanged);
        let call = || foam_blocks(raw, blocks, size_of::<foam_block_info>(), 100, count, null_mut());
        exhaust("blocks", false, &call, &unchanged);
        let call = || foam_record_fields(fields, size_of::<foam_record_field>(), 100, count, null_mut());
        exhaust("record fields", false, &call, &unchanged);
        let call = || foam_diagnosis(raw, text, 5000, count, null_mut());
        exhaust("diagnosis", false, &call, &unchanged);
        let call = || foam_diagnose(&config, items, size, factors, null_mut(), text, 5000, count, null_mut());
        exhaust("diagnose", false, &call, &unchanged);
        for what in [FOAM_FACTOR_STATISTIC, FOAM_FACTOR_BASIS, FOAM_FACTOR_SPECTRUM, FOAM_FACTOR_INVERSE_ROOT]
        {
            let call = || foam_factor_read(raw, 0, 0, 0, what, values, 130 * 130, count, null_mut());
            exhaust("factor read", false, &call, &unchanged);
        }
        exhaust("exact gap", false, &|| foam_exact_gap(raw, 0, 0, 1, gap, null_mut()), &unchanged);
        for key in [null(), c"tau".as_ptr()] {
            exhaust("get option", false, &|| foam_get_option(raw, key, text, 5000, null_mut()), &unchanged);
            exhaust(
                "config get",
                false,
                &|| foam_config_get(&config, key, text, 5000, null_mut()),
                &unchanged,
            );
        }
        let call = || foam_config_set(changed, c"tau".as_ptr(), c"0.25".as_ptr(), null_mut());
        exhaust("config set", false, &call, &unchanged);
        let size = size_of::<foam_config>() as u32;
        let call = || foam_config_init(changed, size, c"paper".as_ptr(), null_mut());
        exhaust("config init", false, &call, &unchanged);
        exhaust("config validate", false, &|| foam_config_validate(&config, null_mut()), &unchanged);
        // Two values in turn, so that every call changes something.
        let turn = AtomicBool::new(false);
        let call = || {
            let value = if turn.fetch_xor(true, SeqCst) { c"1e-12" } else { c"2e-12" };
            foam_set_option(raw, c"epsilon".as_ptr(), value.as_ptr(), null_mut())
        };
        exhaust("set option", true, &call, &|_| true);
        // A message that could not be made is left out; the status is the status.
        for number in 0..10 {
            let call = || foam_set_option(raw, c"tau".as_ptr(), c"-1".as_ptr(), null_mut());
            assert_eq!(with_refusal(number, true, call).0, FOAM_INVALID_ARGUMENT);
            let call = || foam_config_set(changed, c"taus".as_ptr(), c"1".as_ptr(), null_mut());
            assert_eq!(with_refusal(number, true, call).0, FOAM_INVALID_ARGUMENT);
        }
    }
}

fn in_rust() {
    let status = |outcome: foam::Result<()>| match outcome {
        Ok(()) => FOAM_OK,
        Err(error) => {
            assert_eq!(error.kind, foam::ErrorKind::OutOfMemory, "{error}");
            FOAM_OUT_OF_MEMORY
        }
    };
    // The number of cores is found once, by the standard library, which has no way to be refused.
    drop(Optimizer::new(Config::default(), [Param::new("w", &[4])]).unwrap());
    let made = std::cell::RefCell::new(Vec::new());
    let create = || {
        // What the caller makes is the caller's. Alone: a worker that is still starting allocates on its own.
        ARMED.store(false, SeqCst);
        let params = vec![Param::new("w", &[70, 40]), Param::new("b", &[7])];
        ARMED.store(true, SeqCst);
        let outcome = Optimizer::new(Config { check_period: 1, num_threads: 1, ..Config::default() }, params);
        ARMED.store(false, SeqCst);
        made.borrow_mut().clear();
        status(outcome.map(|optimizer| made.borrow_mut().push(optimizer)))
    };
    exhaust("Optimizer::new", true, &create, &|_| true);
    let optimizer = made.into_inner().pop().unwrap();
    let optimizer = std::cell::RefCell::new(optimizer);
    let (w, b) = (vec![0.5f32; 2800], vec![0.5f32; 7]);
    let own = std::cell::RefCell::new((w.clone(), b.clone()));
    let step = || {
        let (w1, b1) = &mut *own.borrow_mut();
        let outcome = optimizer
            .borrow_mut()
            .step([TensorMut::from(w1), TensorMut::from(b1)], [Gradient::from(&w), Gradient::from(&b)]);
        status(outcome.map(|_| ()))
    };
    exhaust("Optimizer::step", true, &step, &|_| true);
    exhaust("Optimizer::factors", false, &|| status(optimizer.borrow_mut().factors().map(drop)), &|_| true);
    exhaust(
        "Optimizer::save_memory",
        false,
        &|| status(optimizer.borrow_mut().save_memory().map(drop)),
        &|_| true,
    );
    let factor = optimizer.borrow_mut().factors().unwrap()[0].id;
    exhaust("statistic", false, &|| status(optimizer.borrow_mut().statistic(factor).map(drop)), &|_| true);
    exhaust("basis", false, &|| status(optimizer.borrow_mut().basis(factor).map(drop)), &|_| true);
}

/// Sizes that no machine has, or that this one has not, are refused before lists of blocks are built.
fn sizes_are_refused_first() {
    let cases: [(&[i64], i64); 5] = [
        (&[1 << 40], 1),
        (&[1 << 30, 1 << 20], 8),
        (&[1 << 36], 64),
        (&[1 << 29, 1 << 29], 1 << 28),
        (&[1 << 34, 3], 1),
    ];
    for (shape, limit) in cases {
        let options = format!("policy=foam num_threads=1 merge_dims=false max_factor_dim={limit}");
        let config = configuration("reference", &options).unwrap();
        let specs = [Spec::new("w", shape).of(Dtype::F32)];
        let declared = Declared::new(&specs);
        let mut handle = null_mut();
        let handle = &raw mut handle;
        LARGEST.store(1 << 38, SeqCst);
        let begun = CALLS.load(SeqCst);
        // SAFETY: live structs, and a place for the handle.
        let status = unsafe { foam_create(&config, declared.params.as_ptr(), 1, handle, null_mut()) };
        let calls = CALLS.load(SeqCst) - begun;
        LARGEST.store(isize::MAX, SeqCst);
        println!("{shape:?} in blocks of {limit}: refused after {calls} allocations");
        assert_eq!(status, FOAM_OUT_OF_MEMORY, "{shape:?}");
        assert!(calls < 100, "{shape:?}: {calls} allocations");
    }
}

fn little_memory_is_needed_beside_the_state(folder: &Path) {
    let specs = [Spec::new("w", &[2048, 256]).of(Dtype::F32)];
    let handle = model(&specs, 1);
    let state = handle.stats().state_bytes_host as isize;
    let (path, raw) = (c_path(&folder.join("large")), handle.handle());
    let mut size = 0;
    let size = &raw mut size;
    // SAFETY: a live handle, C strings, and a place for the size.
    let (asked, saved, loaded) = unsafe {
        (
            peak(|| foam_save_memory(raw, null_mut(), 0, size, null_mut())),
            peak(|| foam_save_file(raw, path.as_ptr(), null_mut())),
            peak(|| foam_load_file(raw, path.as_ptr(), null_mut())),
        )
    };
    println!("state {state}: peak of the size {}, of a save {}, of a load {}", asked.1, saved.1, loaded.1);
    assert_eq!((asked.0, saved.0, loaded.0), (FOAM_OK, FOAM_OK, FOAM_OK));
    assert!(state > 10 << 20 && asked.1 < 200_000 && saved.1 < 3 << 19 && loaded.1 < 3 << 19);
}

fn nonsense_costs_nothing(folder: &Path) {
    let handle = model(&[Spec::new("w", &[4, 3])], 1);
    let (path, raw) = (folder.join("nonsense"), handle.handle());
    let name = c_path(&path);
    for head in [&b"\0\0\0\0\0\0\0\0{}"[..], b"nonsense, and more of it", b"\xff\xff\xff\x7f\0\0\0\0{"] {
        std::fs::write(&path, head).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_len(2 << 30).unwrap();
        // SAFETY: a live handle and a C string.
        let (status, bytes) = peak(|| unsafe { foam_load_file(raw, name.as_ptr(), null_mut()) });
        println!("2 GB of nonsense: refused with {bytes} bytes");
        assert_eq!(status, FOAM_BAD_CHECKPOINT);
        assert!(bytes < 3 << 19, "{bytes}");
    }
}

/// Runs `part` in a process of its own: this program once more, with this test alone.
fn alone(test: &str, part: fn(&Path)) {
    const CHILD: &str = "FOAM_EXHAUSTED_CHILD";
    if std::env::var_os(CHILD).is_none() {
        let mut command = Command::new(std::env::current_exe().expect("a program knows its path"));
        command.args(["--exact", test, "--nocapture"]).env(CHILD, "1");
        let done = command.output().unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
        let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        print!("{out}{err}");
        assert!(done.status.success() && out.contains("1 passed"), "{test}: {}", done.status);
        return;
    }
    SHOWS.store(std::env::var_os("FOAM_SHOW_REFUSED").is_some(), SeqCst);
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("exhausted-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    part(&folder);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Makes a test out of each part.
macro_rules! parts {
    ($($claim:ident: $part:expr;)+) => {
        $(#[test]
        fn $claim() {
            alone(stringify!($claim), $part);
        })+
    };
}

parts! {
    a_handle_is_made_or_refused: |_| creation();
    a_save_and_a_load_survive: every_refused_allocation_is_reported;
    a_save_and_a_load_need_little_memory: little_memory_is_needed_beside_the_state;
    functions_that_look_inside_survive: |_| looks_inside();
    nonsense_is_refused_for_nothing: nonsense_costs_nothing;
    ranks_survive: one_rank::every_refused_allocation_is_reported;
    sizes_that_cannot_be_had_are_refused_first: |_| sizes_are_refused_first();
    stacks_survive: |_| stacks();
    steps_on_one_thread_survive: |_| steps(1);
    steps_on_three_threads_survive: |_| steps(3);
    the_safe_interface_survives: |_| in_rust();
}
