//! What a step on a CUDA device costs, counted by the simulator: launches, waits of the host, allocations, copies.
//! No time is claimed; these are the numbers by which a GPU step can be judged without a GPU.

use crate::simulated;
use crate::simulated::{count, set_capturing, simulated_with};
use crate::support::gpu::Gpu;
use crate::support::model::{Model, Spec, configuration};
use crate::support::random::Random;
use crate::support::tensor::Dtype;
use foam::abi::*;
use std::ffi::c_void;
use std::mem::{MaybeUninit, size_of};
use std::ptr::null_mut;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cost {
    kernels: u64,
    products: u64,
    solvers: u64,
    waits: u64,
    allocations: u64,
    copies: u64,
}

impl Cost {
    fn now() -> Cost {
        let sum = |names: &[&str]| names.iter().map(|name| count(name)).sum();
        Cost {
            kernels: count("kernel_launches"),
            products: count("blas_calls"),
            solvers: count("solver_calls"),
            waits: sum(&["host_syncs", "implicit_syncs"]),
            allocations: sum(&["allocs", "host_allocs"]),
            copies: sum(&["h2d_copies", "d2h_copies", "d2d_copies"]),
        }
    }

    fn since(self, before: Cost) -> Cost {
        Cost {
            kernels: self.kernels - before.kernels,
            products: self.products - before.products,
            solvers: self.solvers - before.solvers,
            waits: self.waits - before.waits,
            allocations: self.allocations - before.allocations,
            copies: self.copies - before.copies,
        }
    }
}

/// A model whose parameters and gradients stay on the device, as a trainer's do.
struct Trainer {
    model: Model,
    shapes: Vec<Vec<i64>>,
    params: Vec<u64>,
    grads: Vec<u64>,
}

impl Trainer {
    fn new(specs: &[Spec], options: &str) -> Trainer {
        let options = format!("device=cuda:0 check_period=4 beta2=0.9 epsilon=1e-3 epsilon_max=1 {options}");
        let config = configuration("reference", &options).unwrap();
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
        Trainer { model, shapes, params, grads }
    }

    fn tensors(&self, addresses: &[u64]) -> Vec<foam_tensor> {
        let tensor = |(shape, address): (&Vec<i64>, &u64)| foam_tensor {
            data: *address as *mut c_void,
            device: foam_device { device_type: FOAM_DEVICE_CUDA, device_id: 0 },
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
        let (params, grads) = (self.tensors(&self.params), self.tensors(&self.grads));
        let mut args = MaybeUninit::<foam_step_args>::uninit();
        let mut error = foam_error::new();
        // SAFETY: a struct of the size that is passed, and tensors that stay for the call.
        unsafe {
            foam_step_args_init(args.as_mut_ptr(), size_of::<foam_step_args>() as u32, &mut error);
            let mut args = args.assume_init();
            (args.count, args.params, args.grads) = (params.len(), params.as_ptr(), grads.as_ptr());
            (args.lr, args.stream) = (lr, self.model.gpu.as_ref().unwrap().stream());
            let before = Cost::now();
            let status = foam_step(self.model.handle(), &args, &mut error);
            let cost = Cost::now().since(before);
            if status == FOAM_OK { Ok(cost) } else { Err((status, error.text().to_string())) }
        }
    }

    fn step(&self) -> Cost {
        self.try_step(1e-3).unwrap()
    }
}

fn equal(count: usize, shape: &[i64]) -> Vec<Spec> {
    (0..count).map(|i| Spec::new(&format!("p{i}"), shape).of(Dtype::F32)).collect()
}

/// A plain step, a check that only senses, and one that refreshes.
fn costs(specs: &[Spec]) -> [Cost; 3] {
    let trainer = Trainer::new(specs, "merge_dims=false tau=1e6");
    (0..5).for_each(|_| {
        trainer.step();
    });
    let plain = trainer.step();
    assert_eq!(trainer.try_step(0.5e-3).unwrap(), plain, "another learning rate makes no difference");
    let sensing = trainer.step();
    let eager = Trainer::new(specs, "merge_dims=false policy=stale");
    (0..7).for_each(|_| {
        eager.step();
    });
    [plain, sensing, eager.step()]
}

#[test]
fn a_step_costs_the_same_for_one_block_and_for_a_hundred() {
    simulated_with(&["eager"], &[], || {
        println!(
            "| 16 x 12 blocks | step | kernels | cuBLAS | cuSOLVER | host waits | allocations | copies |"
        );
        println!("| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |");
        let mut plain_costs = Vec::new();
        for blocks in [1, 10, 100] {
            let [plain, sensing, refreshing] = costs(&equal(blocks, &[16, 12]));
            for (name, c) in [("plain", plain), ("check, reuse", sensing), ("check, refresh", refreshing)] {
                println!(
                    "| {blocks} | {name} | {} | {} | {} | {} | {} | {} |",
                    c.kernels, c.products, c.solvers, c.waits, c.allocations, c.copies
                );
            }
            assert_eq!((plain.waits, plain.allocations, plain.copies, plain.solvers), (0, 0, 0, 0));
            assert_eq!((sensing.waits, sensing.allocations), (1, 0));
            assert_eq!((refreshing.waits, refreshing.allocations), (1, 0));
            assert!(refreshing.solvers > 0);
            plain_costs.push(plain.kernels);
        }
        assert!(plain_costs.iter().all(|kernels| *kernels == plain_costs[0]), "{plain_costs:?}");
    });
}

#[test]
fn launches_do_not_depend_on_the_number_of_elements() {
    simulated_with(&["eager"], &[], || {
        let [small, ..] = costs(&equal(3, &[8, 8]));
        let [large, ..] = costs(&equal(3, &[96, 64]));
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

#[test]
fn plain_steps_can_be_captured_and_checks_refuse() {
    simulated_with(&["eager"], &[], || {
        let trainer = Trainer::new(&equal(2, &[6, 5]), "merge_dims=false");
        (0..2).for_each(|_| {
            trainer.step();
        });
        let stream = trainer.model.gpu.as_ref().unwrap().stream();
        set_capturing(stream, true);
        trainer.step();
        let (status, message) = trainer.try_step(1e-3).unwrap_err();
        assert_eq!(status, FOAM_UNSUPPORTED);
        assert!(message.contains("captured") && message.contains("args.stream"), "{message}");
        set_capturing(stream, false);
        // The refused step has changed nothing: the check comes now.
        assert_eq!(trainer.step().waits, 1);
        assert_eq!(trainer.model.stats().checks, 4);
    });
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
        trainer.params[1] = good;
        trainer.step();
        assert_eq!(trainer.model.stats().steps, 1);
    });
}
