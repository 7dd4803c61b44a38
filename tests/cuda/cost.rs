//! What a step on a CUDA device costs, counted by the simulator: launches, waits of the host, allocations, copies.
//! No time is claimed; these are the numbers by which a GPU step can be judged without a GPU.

use crate::graph::Captured;
use crate::simulated;
use crate::simulated::{count, simulated_with};
use crate::stack::Calls;
use crate::support::gpu::Gpu;
use crate::support::model::{Model, Spec, configuration};
use crate::support::random::Random;
use crate::support::stack::Shape;
use crate::support::tensor::Dtype;
use crate::tier::{self, Need};
use cudarc::driver::sys;
use foam::abi::*;
use std::cell::RefCell;
use std::ffi::c_void;
use std::mem::{MaybeUninit, size_of};
use std::ptr::null_mut;

/// What is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    pub kernels: u64,
    pub products: u64,
    pub solvers: u64,
    pub waits: u64,
    pub allocations: u64,
    pub copies: u64,
    pub graphs: u64,
}

impl Cost {
    pub fn now() -> Cost {
        let sum = |names: &[&str]| names.iter().map(|name| count(name)).sum();
        Cost {
            kernels: count("kernel_launches"),
            products: count("blas_calls"),
            solvers: count("solver_calls"),
            waits: sum(&["host_syncs", "implicit_syncs"]),
            allocations: sum(&["allocs", "host_allocs"]),
            copies: sum(&["h2d_copies", "d2h_copies", "d2d_copies"]),
            graphs: count("graph_launches"),
        }
    }

    pub fn plus(self, other: Cost) -> Cost {
        Cost {
            kernels: self.kernels + other.kernels,
            products: self.products + other.products,
            solvers: self.solvers + other.solvers,
            waits: self.waits + other.waits,
            allocations: self.allocations + other.allocations,
            copies: self.copies + other.copies,
            graphs: self.graphs + other.graphs,
        }
    }

    pub fn since(self, before: Cost) -> Cost {
        Cost {
            kernels: self.kernels - before.kernels,
            products: self.products - before.products,
            solvers: self.solvers - before.solvers,
            waits: self.waits - before.waits,
            allocations: self.allocations - before.allocations,
            copies: self.copies - before.copies,
            graphs: self.graphs - before.graphs,
        }
    }
}

/// A model whose parameters and gradients stay on the device, as a trainer's do.
pub struct Trainer {
    pub model: Model,
    shapes: Vec<Vec<i64>>,
    pub params: Vec<u64>,
    /// What the tensors are said to lie on.
    pub device_type: i32,
    pub grads: RefCell<Vec<u64>>,
}

impl Trainer {
    pub fn new(specs: &[Spec], options: &str) -> Trainer {
        Trainer::of("reference", specs, &format!("epsilon=1e-3 epsilon_max=1 {options}"))
    }

    pub fn of(preset: &str, specs: &[Spec], options: &str) -> Trainer {
        let options = format!("device=cuda:0 check_period=4 beta2=0.9 {options}");
        let config = configuration(preset, &options).unwrap();
        let mut model = Model::create(&config, specs).unwrap();
        let mut random = Random::new(3);
        let gpu: &mut Gpu = model.gpu.as_mut().unwrap();
        let mut put = |which: usize, spec: &Spec| {
            let tensor = spec.tensor(&random.normals(spec.elements()));
            gpu.put(which, tensor.elements())
        };
        let params = specs.iter().enumerate().map(|(i, spec)| put(2 * i, spec)).collect();
        let grads = specs.iter().enumerate().map(|(i, spec)| put(2 * i + 1, spec)).collect();
        let shapes = specs.iter().map(|spec| spec.shape.clone()).collect();
        Trainer { model, shapes, params, device_type: FOAM_DEVICE_CUDA, grads: RefCell::new(grads) }
    }

    fn tensors(&self, addresses: &[u64]) -> Vec<foam_tensor> {
        let tensor = |(shape, address): (&Vec<i64>, &u64)| foam_tensor {
            data: *address as *mut c_void,
            device: foam_device { device_type: self.device_type, device_id: 0 },
            ndim: shape.len() as i32,
            dtype: Dtype::F32.in_c(),
            shape: shape.as_ptr().cast_mut(),
            strides: null_mut(),
            byte_offset: 0,
        };
        self.shapes.iter().zip(addresses).map(tensor).collect()
    }

    /// One step, and what it cost; the status and message of one that fails.
    fn try_step(&self, lr: f64) -> Result<Cost, (i32, String)> {
        self.try_step_on(lr, self.stream())
    }

    /// Elements of each of its parameters, which are equal.
    pub fn elements(&self) -> usize {
        self.shapes[0].iter().product::<i64>() as usize
    }

    /// A step on a stream.
    pub fn step_on(&self, stream: *mut c_void) -> Cost {
        self.try_step_on(1e-3, stream).unwrap()
    }

    /// Waits for its own stream, on which its tensors were put on the device.
    pub fn settle(&self) {
        let status = self.model.gpu.as_ref().unwrap().within(|| {
            // SAFETY: the stream is alive.
            unsafe { sys::cuStreamSynchronize(self.stream().cast()) }
        });
        assert_eq!(status, sys::CUresult::CUDA_SUCCESS);
    }

    /// Its own stream.
    pub fn stream(&self) -> *mut c_void {
        self.model.gpu.as_ref().unwrap().stream()
    }

    /// The same on any stream.
    pub fn try_step_on(&self, lr: f64, stream: *mut c_void) -> Result<Cost, (i32, String)> {
        self.try_step_after(lr, stream, &[])
    }

    /// The same, after what has been put on other streams.
    pub fn try_step_after(
        &self,
        lr: f64,
        stream: *mut c_void,
        after: &[*mut c_void],
    ) -> Result<Cost, (i32, String)> {
        let lists = self.lists();
        let (mut args, mut error) = (self.args(&lists, lr, stream), foam_error::new());
        (args.after, args.after_count) = (after.as_ptr(), after.len());
        let before = Cost::now();
        // SAFETY: tensors that stay for the call.
        let status = unsafe { foam_step(self.model.handle(), &args, &mut error) };
        let cost = Cost::now().since(before);
        if status == FOAM_OK { Ok(cost) } else { Err((status, error.text().to_string())) }
    }

    /// Parameters and gradients as they are passed.
    fn lists(&self) -> [Vec<foam_tensor>; 2] {
        [self.tensors(&self.params), self.tensors(&self.grads.borrow())]
    }

    fn args(&self, lists: &[Vec<foam_tensor>; 2], lr: f64, stream: *mut c_void) -> foam_step_args {
        let mut args = MaybeUninit::<foam_step_args>::uninit();
        // SAFETY: a struct of the size that is passed.
        let mut args = unsafe {
            foam_step_args_init(args.as_mut_ptr(), size_of::<foam_step_args>() as u32, null_mut());
            args.assume_init()
        };
        (args.count, args.params, args.grads) = (lists[0].len(), lists[0].as_ptr(), lists[1].as_ptr());
        (args.lr, args.stream) = (lr, stream);
        args
    }

    pub fn step(&self) -> Cost {
        self.try_step(1e-3).unwrap()
    }
}

/// One step of all optimizers, or of none; what it cost, or the status and message of one that fails.
pub fn step_all(trainers: &[Trainer], lr: f64, stream: *mut c_void) -> Result<Cost, (i32, String)> {
    let lists: Vec<_> = trainers.iter().map(Trainer::lists).collect();
    let args: Vec<foam_step_args> =
        trainers.iter().zip(&lists).map(|(trainer, lists)| trainer.args(lists, lr, stream)).collect();
    let handles: Vec<*mut foam_optimizer> = trainers.iter().map(|trainer| trainer.model.handle()).collect();
    let mut error = foam_error::new();
    let before = Cost::now();
    // SAFETY: live handles, and tensors that stay for the call.
    let status = unsafe { foam_step_together(handles.as_ptr(), args.as_ptr(), args.len(), &mut error) };
    let cost = Cost::now().since(before);
    if status == FOAM_OK { Ok(cost) } else { Err((status, error.text().to_string())) }
}

pub fn equal(count: usize, shape: &[i64]) -> Vec<Spec> {
    (0..count).map(|i| Spec::new(&format!("p{i}"), shape).of(Dtype::F32)).collect()
}

/// The kinds of steps that are counted.
pub const STEPS: [&str; 4] = ["plain", "check, reuse", "check, refresh", "plain, replayed"];

/// A plain step, a check that only senses, one that refreshes, and a plain one replayed from a graph, of one native
/// optimizer per list of parameters.
pub fn costs(groups: &[Vec<Spec>]) -> [Cost; 4] {
    let all = |options: &str| -> Vec<Trainer> {
        groups.iter().map(|specs| Trainer::new(specs, &format!("merge_dims=false {options}"))).collect()
    };
    let step_at = |trainers: &[Trainer], lr: f64| match trainers {
        [one] => one.try_step(lr).unwrap(),
        all => step_all(all, lr, all[0].stream()).unwrap(),
    };
    let step = |trainers: &[Trainer]| step_at(trainers, 1e-3);
    let trainers = all("tau=1e6");
    (0..5).for_each(|_| {
        step(&trainers);
    });
    let plain = step(&trainers);
    assert_eq!(step_at(&trainers, 0.5e-3), plain, "another learning rate makes no difference");
    let sensing = step(&trainers);
    let eager = all("policy=stale");
    (0..7).for_each(|_| {
        step(&eager);
    });
    let refreshing = step(&eager);
    let replayed = Captured::steps(&eager).replay();
    [plain, sensing, refreshing, replayed]
}

/// The first three steps through XLA's handlers, one stack per shape. As in JAX, the check is called where one is due.
fn handler_costs(shapes: &[[i64; 2]], blocks: usize) -> [Cost; 3] {
    let run = |options: &str| -> [Cost; 2] {
        let mut sums = [Cost::default(); 2];
        for dims in shapes {
            let mut calls = Calls::new(
                "reference",
                &format!("{options} epsilon_max=1"),
                Shape::new(dims, blocks, Dtype::F32),
            );
            let elements = blocks * (dims[0] * dims[1]) as usize;
            let (mut random, active) = (Random::new(3), vec![1; blocks]);
            let values: Vec<f32> = random.normals(elements).iter().map(|x| *x as f32).collect();
            for step in 1..=8 {
                calls.step(&values, &values, &active);
                let [accumulate, check, apply] = calls.spent;
                if step == 6 {
                    sums[0] = sums[0].plus(accumulate).plus(apply);
                } else if step == 8 {
                    sums[1] = sums[1].plus(accumulate).plus(check).plus(apply);
                }
            }
        }
        sums
    };
    let ([plain, sensing], [again, refreshing]) = (run("tau=1e6"), run("policy=stale"));
    assert_eq!(plain, again);
    [plain, sensing, refreshing]
}

/// Shapes whose sides all differ, so that nothing is shared between them.
fn different(count: usize) -> Vec<[i64; 2]> {
    (0..count as i64).map(|i| [3 + i, 13 + i]).collect()
}

/// One list of parameters with `blocks` blocks of each shape.
fn of_each(shapes: &[[i64; 2]], blocks: usize) -> Vec<Spec> {
    let named = shapes.iter().enumerate().flat_map(|(s, dims)| (0..blocks).map(move |b| (s, b, dims)));
    named.map(|(s, b, dims)| Spec::new(&format!("p{s}.{b}"), dims).of(Dtype::F32)).collect()
}

fn print_costs(through: &str, shapes: usize, costs: &[Cost]) {
    for (name, c) in STEPS.iter().zip(costs) {
        println!(
            "| {through} | {shapes} | {name} | {} | {} | {} | {} | {} | {} | {} |",
            c.graphs, c.kernels, c.products, c.solvers, c.waits, c.allocations, c.copies
        );
    }
}

/// A plain step neither waits nor allocates; a check waits `waits` times.
fn is_frugal(costs: &[Cost], waits: u64, copies: u64) {
    let [plain, sensing, refreshing, ..] = costs else { panic!("three kinds of steps at least") };
    assert_eq!((plain.waits, plain.allocations, plain.copies, plain.solvers), (0, 0, copies, 0));
    assert_eq!((sensing.waits, sensing.allocations, sensing.solvers), (waits, 0, 0));
    assert_eq!((refreshing.waits, refreshing.allocations), (waits, 0));
    assert!(refreshing.solvers > 0);
    for replayed in &costs[3..] {
        assert_eq!(*replayed, Cost { graphs: 1, ..Cost::default() });
    }
}

/// The counts for one block of each shape, and for 10 and 100 blocks in all, which must be one and the same.
fn whatever_the_blocks<const N: usize>(shapes: usize, count: impl Fn(usize) -> [Cost; N]) -> [Cost; N] {
    let one = count(1);
    for blocks in [10usize, 100].map(|all| all.div_ceil(shapes)) {
        assert_eq!(count(blocks), one, "{blocks} blocks of each shape cost another number of calls than one");
    }
    one
}

#[test]
fn a_step_costs_the_same_for_one_block_and_for_a_hundred() {
    if !tier::runs(Need::Long) {
        return;
    }
    simulated_with(&["eager"], &[], || {
        // The harness has begun a line.
        println!();
        println!(
            "| through | shapes | step | graphs | kernels | cuBLAS | cuSOLVER | host waits | allocations | copies |"
        );
        println!("| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
        for count in [1, 3, 9] {
            let shapes = different(count);
            let handle = whatever_the_blocks(count, |blocks| costs(&[of_each(&shapes, blocks)]));
            is_frugal(&handle, 1, 0);
            print_costs("one optimizer", count, &handle);
        }
        for count in [3, 9] {
            let shapes = different(count);
            let group = count / 3;
            let groups = whatever_the_blocks(count, |blocks| {
                costs(&shapes.chunks(group).map(|own| of_each(own, blocks)).collect::<Vec<_>>())
            });
            is_frugal(&groups, 1, 0);
            print_costs("three optimizers", count, &groups);
        }
    });
}

/// Waits inside cuSOLVER are not ours to avoid, and are counted apart from ours: one for each decomposition of a single
/// matrix.
#[test]
fn waits_inside_the_solver_are_counted_apart() {
    simulated_with(&["eager"], &[], || {
        for blocks in [1, 3] {
            let trainer = Trainer::new(&equal(blocks, &[6, 5]), "merge_dims=false policy=stale");
            (0..7).for_each(|_| {
                trainer.step();
            });
            let inside = || (count("solver_syncs"), count("cusolverDnXsyevd"));
            let before = inside();
            let cost = trainer.step();
            let after = inside();
            let (waits, single) = (after.0 - before.0, after.1 - before.1);
            println!("| {blocks} blocks: host waits of ours {} | inside cuSOLVER {waits} |", cost.waits);
            assert!(cost.solvers > 0 && cost.waits == 1, "{cost:?}");
            assert_eq!(waits, single, "{blocks} blocks");
        }
    });
}

#[test]
fn handlers_cost_the_same_for_one_block_and_for_a_hundred() {
    if !tier::runs(Need::Long) {
        return;
    }
    simulated_with(&["eager"], &[], || {
        println!();
        for count in [1, 3, 9] {
            let shapes = different(count);
            // Each stack is called on its own: that the blocks make no difference shows with one.
            let handlers = match count {
                1 => whatever_the_blocks(count, |blocks| handler_costs(&shapes, blocks)),
                _ => handler_costs(&shapes, 1),
            };
            // One copy per stack: these frames give the infos another place than JAX does, which gives them their own.
            is_frugal(&handlers, count as u64, count as u64);
            print_costs("XLA handlers", count, &handlers);
        }
    });
}

/// Gradients that do not enter the statistics cost no product: the host leaves them out where it is certain. After a
/// gradient that may have entered it is not, until the next check.
#[test]
fn a_step_that_leaves_the_statistics_alone_has_no_products_for_them() {
    simulated_with(&["eager"], &[], || {
        let specs = equal(3, &[6, 5]);
        for (preset, options, of_statistics) in [
            ("reference", "epsilon=1e-3 epsilon_max=1 tau=1e6 start_step=4 merge_dims=false", 2),
            ("soap", "refresh_schedule=fixed soap_form=exact", 2),
            ("soap", "refresh_schedule=fixed soap_form=in_basis", 2),
        ] {
            let products = |period: usize| -> Vec<u64> {
                let trainer = Trainer::of(preset, &specs, &format!("{options} statistics_period={period}"));
                (1..=12).map(|_| trainer.step().products).collect()
            };
            let (every, sparse, between) = (products(1), products(4), products(2));
            // The reference checks at 4, 8, 12, SOAP at 1, 5, 9.
            let checks = |t: usize| t % 4 == usize::from(preset == "soap");
            let (mut unsure_of_4, mut unsure_of_2) = (true, true);
            for t in 1..=12usize {
                let saved = |unsure: &mut bool, period: usize| {
                    *unsure = *unsure || t == 1 || t.is_multiple_of(period);
                    let saved = if *unsure { 0 } else { of_statistics };
                    *unsure = *unsure && !checks(t);
                    saved
                };
                let expected = saved(&mut unsure_of_4, 4);
                assert_eq!(every[t - 1] - sparse[t - 1], expected, "{preset} {options}: step {t}");
                let expected = saved(&mut unsure_of_2, 2);
                assert_eq!(every[t - 1] - between[t - 1], expected, "{preset} {options}: step {t}");
            }
        }
    });
}

/// With policy sandwich: a check that only senses; one that is a refresh, unseen, by an eigendecomposition; and one by a
/// QR step.
fn costs_of_the_sandwich(specs: &[Spec]) -> [Cost; 3] {
    let eighth = |options: &str| {
        let trainer = Trainer::new(specs, &format!("merge_dims=false policy=sandwich {options}"));
        (0..7).for_each(|_| {
            trainer.step();
        });
        trainer.step()
    };
    // Corrections make the checks of the schedule refreshes that nothing is sensed for.
    [
        eighth("tau=1e6"),
        eighth("tau=0.5 correction_period=1000"),
        eighth("tau=0.5 correction_period=1000 refresh_method=qr"),
    ]
}

#[test]
fn a_refresh_by_qr_steps_costs_the_same_for_one_block_and_for_ten() {
    simulated_with(&["eager"], &[], || {
        println!();
        let [sensing, decomposing, stepping] = costs_of_the_sandwich(&equal(1, &[3, 13]));
        let ten = costs_of_the_sandwich(&equal(10, &[3, 13]));
        assert_eq!((sensing, stepping), (ten[0], ten[2]));
        for (name, c) in [
            ("check, reuse", sensing),
            ("check, refresh by an eigendecomposition, unseen", decomposing),
            ("check, refresh by one QR step, unseen", stepping),
        ] {
            println!(
                "| {name} | {} | {} | {} | {} | {} | {} |",
                c.kernels, c.products, c.solvers, c.waits, c.allocations, c.copies
            );
            assert_eq!((c.waits, c.allocations), (1, 0), "{name}");
        }
    });
}

/// Flops of the products that a refresh adds to a plain step, and its solver calls, as shares of n³ per factor: by
/// eigendecompositions, and by one QR step, which needs none.
#[test]
fn a_refresh_takes_so_many_flops() {
    simulated_with(&["eager"], &[], || {
        println!();
        println!(
            "| refresh of 6 factors of side 24 | flops of products / n³ | eigendecompositions | solver calls |"
        );
        let specs = equal(3, &[24, 24]);
        let of = |options: &str| {
            let trainer =
                Trainer::new(&specs, &format!("merge_dims=false policy=sandwich tau=0.5 {options}"));
            let mut steps = Vec::new();
            for _ in 0..8 {
                let before = (count("blas_flops"), count("evds"));
                let cost = trainer.step();
                steps.push((count("blas_flops") - before.0, count("evds") - before.1, cost.solvers));
            }
            let (plain, check) = (steps[6], steps[7]);
            let cubes = (check.0 - plain.0) as f64 / (6.0 * 24f64.powi(3));
            (cubes, check.1, check.2)
        };
        let decomposed = of("correction_period=1000");
        let stepped = of("correction_period=1000 refresh_method=qr");
        let sensed = of("");
        for (name, (cubes, evds, calls)) in
            [("an eigendecomposition", decomposed), ("one QR step", stepped), ("sensed first", sensed)]
        {
            println!("| {name} | {cubes:.2} | {evds} | {calls} |");
        }
        // QᵀQ, A·Q, QᵀAQ, B·Bᵀ; beside them 9 n³ of the solver's own, by the model.
        assert_eq!((decomposed.0, decomposed.1), (8.0, 6));
        // QᵀAQ 4, LᵀL 2, a solution 1, Q·Z 2, two times QᵀQ 4, Q·QᵀQ 2, the new QᵀAQ 4, B·Bᵀ 2, and of the certificate a
        // solution and a product, 3; Cholesky's factors are the solver's.
        assert_eq!((stepped.0, stepped.1), (24.0, 0));
        assert!(sensed.0 > 4.0);
    });
}

/// A plain step of SOAP, a check that only measures, and one that refreshes.
fn costs_of_soap(specs: &[Spec], options: &str) -> [Cost; 3] {
    let trainer =
        Trainer::of("soap", specs, &format!("refresh_schedule=kappa kappa_threshold=1e9 {options}"));
    (0..5).for_each(|_| {
        trainer.step();
    });
    let plain = trainer.step();
    assert_eq!(trainer.try_step(0.5e-3).unwrap(), plain, "another learning rate makes no difference");
    trainer.step();
    let sensing = trainer.step();
    let eager = Trainer::of("soap", specs, &format!("refresh_schedule=fixed {options}"));
    (0..8).for_each(|_| {
        eager.step();
    });
    [plain, sensing, eager.step()]
}

#[test]
fn a_step_of_soap_costs_the_same_for_one_block_and_for_thirty() {
    if !tier::runs(Need::Long) {
        return;
    }
    simulated_with(&["eager"], &[], || {
        println!(
            "| SOAP, 16 x 12 blocks | form | step | kernels | cuBLAS | cuSOLVER | host waits | allocations | copies |"
        );
        println!("| ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |");
        for form in ["exact", "in_basis"] {
            let mut launches = Vec::new();
            for blocks in [1, 10, 30] {
                let found = costs_of_soap(&equal(blocks, &[16, 12]), &format!("soap_form={form}"));
                for (name, c) in ["plain", "check, reuse", "check, refresh"].iter().zip(&found) {
                    println!(
                        "| {blocks} | {form} | {name} | {} | {} | {} | {} | {} | {} |",
                        c.kernels, c.products, c.solvers, c.waits, c.allocations, c.copies
                    );
                }
                let [plain, sensing, refreshing] = found;
                assert_eq!((plain.waits, plain.allocations, plain.copies, plain.solvers), (0, 0, 0, 0));
                assert_eq!((sensing.waits, sensing.allocations, sensing.solvers), (1, 0, 0));
                assert_eq!((refreshing.waits, refreshing.allocations), (1, 0));
                // cuSOLVER has no batched orthogonal factor: two calls for each of the two sides of a block.
                assert_eq!(refreshing.solvers, 4 * blocks as u64);
                launches.push((plain.kernels, sensing.kernels, refreshing.kernels, refreshing.products));
            }
            assert!(launches.iter().all(|own| *own == launches[0]), "{launches:?}");
        }
    });
}

#[test]
fn launches_of_soap_do_not_depend_on_the_number_of_elements() {
    simulated_with(&["eager"], &[], || {
        let small = costs_of_soap(&equal(3, &[8, 6]), "");
        assert_eq!(small, costs_of_soap(&equal(3, &[40, 24]), ""));
    });
}

#[test]
fn launches_do_not_depend_on_the_number_of_elements() {
    simulated_with(&["eager"], &[], || {
        let [small, ..] = costs(&[equal(3, &[8, 8])]);
        let [large, ..] = costs(&[equal(3, &[96, 64])]);
        assert_eq!(small, large);
    });
}

#[test]
fn synchronize_waits_for_a_step_whatever_it_was() {
    simulated_with(&["deferred"], &[], || {
        let trainer = Trainer::new(&equal(2, &[6, 5]), "merge_dims=false tau=1e6");
        for _ in 0..9 {
            trainer.step();
            let mut error = foam_error::new();
            // SAFETY: a live handle and a record.
            assert_eq!(unsafe { foam_synchronize(trainer.model.handle(), &mut error) }, FOAM_OK);
            assert_eq!(simulated::pending(), 0, "work is left");
        }
    });
}

/// Memory of a second context on the device, which stays current nowhere.
fn in_another_context() -> u64 {
    let (mut context, mut address) = (null_mut(), 0);
    // SAFETY: plain driver calls, each checked.
    unsafe {
        for status in [
            sys::cuCtxCreate_v4(&mut context, null_mut(), 0, 0),
            sys::cuMemAlloc_v2(&mut address, 120),
            sys::cuCtxPopCurrent_v2(&mut context),
        ] {
            assert_eq!(status, sys::CUresult::CUDA_SUCCESS);
        }
    }
    address
}

/// Frees it, and its context with it.
fn free_in_its_context(address: u64) {
    let mut context: sys::CUcontext = null_mut();
    let attribute = sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_CONTEXT;
    // SAFETY: as above; the attribute is one handle.
    unsafe {
        for status in [
            sys::cuPointerGetAttribute((&raw mut context).cast(), attribute, address),
            sys::cuCtxPushCurrent_v2(context),
            sys::cuMemFree_v2(address),
            sys::cuCtxDestroy_v2(context),
        ] {
            assert_eq!(status, sys::CUresult::CUDA_SUCCESS);
        }
    }
}

#[test]
fn memory_that_is_not_the_devices_is_refused_by_name() {
    simulated_with(&["eager"], &[], || {
        let mut trainer = Trainer::new(&equal(2, &[6, 5]), "");
        let (good, host) = (trainer.params[1], vec![0f32; 30]);
        for (address, expected) in [
            (good + 2, "expected a multiple of 4"),
            (host.as_ptr() as u64, "does not know address"),
            (0x1000, "does not know address"),
        ] {
            trainer.params[1] = address;
            let (status, message) = trainer.try_step(1e-3).unwrap_err();
            assert_eq!(status, FOAM_INVALID_ARGUMENT, "{message}");
            assert!(message.contains("'p1'") && message.contains(expected), "{message}");
        }
        trainer.params[1] = in_another_context();
        let (status, message) = trainer.try_step(1e-3).unwrap_err();
        assert_eq!(status, FOAM_INVALID_ARGUMENT, "{message}");
        assert!(message.contains("'p1'") && message.contains("another context of cuda:0"), "{message}");
        free_in_its_context(trainer.params[1]);
        trainer.params[1] = good;
        trainer.step();
        assert_eq!(trainer.model.stats().steps, 1);
    });
}
