//! The workspace is made at creation, as large as any path through a refresh needs: a group, a single factor, one in
//! double precision. The simulator's sizes are not monotone: one small matrix takes more than a batch of them.

use crate::simulated::{count, fail, simulated, simulated_with};
use crate::support::model::{Failure, Model, Spec, StepWith};
use crate::support::random::Random;
use crate::support::tensor::{Dtype, Tensor};
use crate::tier::{self, Need};
use foam::abi::*;
use std::cell::Cell;
use std::rc::Rc;

const OPTIONS: &str =
    "device=cuda:0 check_period=4 beta2=0.9 policy=stale epsilon=1e-3 epsilon_max=3e-2 merge_dims=false";

/// A model, and how often its steps allocated device memory.
struct Bed {
    model: Model,
    specs: Vec<Spec>,
    params: Vec<Tensor>,
    random: Random,
    allocated: Rc<Cell<u64>>,
}

impl Bed {
    fn new(options: &str, shapes: &[&[i64]]) -> Bed {
        let spec = |(i, shape): (usize, &&[i64])| Spec::new(&format!("p{i}"), shape).of(Dtype::F32);
        let specs: Vec<Spec> = shapes.iter().enumerate().map(spec).collect();
        let mut random = Random::new(12);
        let params = specs.iter().map(|s| s.tensor(&random.normals(s.elements()))).collect();
        let mut model = Model::new("reference", &format!("{OPTIONS} {options}"), &specs);
        let allocated = Rc::new(Cell::new(0u64));
        let (before, after) = (allocated.clone(), allocated.clone());
        model.before_step = Some(Box::new(move || before.set(before.get().wrapping_sub(count("allocs")))));
        model.after_step = Some(Box::new(move || after.set(after.get().wrapping_add(count("allocs")))));
        Bed { model, specs, params, random, allocated }
    }

    /// A step in which the parameters of `active` take part.
    fn step(&mut self, active: &[usize]) -> Result<bool, Failure> {
        let specs = self.specs.iter().enumerate();
        let grad = |(i, s): (usize, &Spec)| {
            let values = self.random.normals(s.elements());
            active.contains(&i).then(|| s.tensor(&values))
        };
        let grads: Vec<Option<Tensor>> = specs.map(grad).collect();
        self.model.try_step(&mut self.params, &grads, StepWith::default())
    }
}

#[test]
fn a_lone_factor_of_a_group_finds_room() {
    simulated(|| {
        let mut bed = Bed::new("", &[&[6, 5], &[6, 5], &[6, 5]]);
        (0..3).for_each(|_| assert_eq!(bed.step(&[0, 1, 2]), Ok(false)));
        // The check of one parameter alone, then of the other two.
        assert_eq!(bed.step(&[1]), Ok(false));
        assert_eq!(bed.step(&[0, 2]), Ok(false));
        let stats = bed.model.stats();
        assert_eq!((stats.evd_calls, stats.fallback_stale, stats.failed_evds), (6, 0, 0), "{stats:?}");
        assert_eq!(bed.allocated.get(), 0, "a step allocated device memory");
    });
}

#[test]
fn a_refresh_in_double_precision_finds_room() {
    simulated(|| {
        // The first refresh is made to fail in single precision; the next check goes on in double.
        let mut bed = Bed::new("inject_fault=evd_chosen inject_fault_step=4", &[&[48, 5], &[48, 5]]);
        (0..8).for_each(|_| assert_eq!(bed.step(&[0, 1]), Ok(false)));
        let stats = bed.model.stats();
        assert_eq!((stats.fallback_stale, stats.fallback_double), (4, 4), "{stats:?}");
        assert_eq!(bed.allocated.get(), 0, "a step allocated device memory");
    });
}

#[test]
fn a_solver_without_memory_is_an_error_that_names_the_bytes() {
    simulated_with(&["eager"], &[("CUDASIM_QUIET", "1")], || {
        // Matrices of side 2 are decomposed one by one.
        for (entry, shape) in [("cusolverDnXsyevBatched", [6, 5]), ("cusolverDnXsyevd", [2, 2])] {
            let mut bed = Bed::new("", &[&shape, &shape]);
            (0..3).for_each(|_| assert_eq!(bed.step(&[0, 1]), Ok(false)));
            // CUSOLVER_STATUS_ALLOC_FAILED.
            fail(entry, 1, 2);
            let failure = bed.step(&[0, 1]).unwrap_err();
            assert_eq!(failure.status, FOAM_OUT_OF_MEMORY, "{failure:?}");
            for word in [entry, "bytes", &format!("side {}", shape[0]), "lost"] {
                assert!(failure.message.contains(word), "no '{word}' in {failure:?}");
            }
            assert_eq!(bed.step(&[0, 1]).unwrap_err().status, FOAM_POISONED);
        }
    });
}

#[test]
fn a_stack_that_is_worked_on_in_slices_takes_the_steps_of_the_cpu() {
    if !tier::runs(Need::Long) {
        return;
    }
    simulated_with(&["eager"], &[], || {
        // More blocks than one launch takes; a large model is cut in the same way.
        let run = |device: &str| {
            let mut bed = Bed::new(&format!("max_factor_dim=3 {device}"), &[&[99000]]);
            (0..5).for_each(|_| assert_eq!(bed.step(&[0]), Ok(false)));
            let stats = bed.model.stats();
            assert_eq!((stats.factors, stats.evd_calls, stats.fallback_stale), (33000, 33000, 0));
            bed.params[0].values()
        };
        let (cpu, gpu) = (run("device=cpu"), run(""));
        let off = cpu.iter().zip(&gpu).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(off < 1e-6, "{off}");
    });
}

#[test]
fn optimizers_of_a_device_share_the_handles_of_its_libraries() {
    simulated_with(&["eager"], &[], || {
        let made = || ["cublasCreate_v2", "cusolverDnCreate"].map(count);
        let before = made();
        // Interleaved, each takes the steps that it would take alone.
        let mut beds: Vec<Bed> = (0..3).map(|_| Bed::new("", &[&[6, 5], &[4, 3]])).collect();
        for _ in 0..5 {
            beds.iter_mut().for_each(|bed| assert_eq!(bed.step(&[0, 1]), Ok(false)));
        }
        assert_eq!(made(), before.map(|calls| calls + 1));
        let mut alone = Bed::new("", &[&[6, 5], &[4, 3]]);
        (0..5).for_each(|_| assert_eq!(alone.step(&[0, 1]), Ok(false)));
        beds.iter().for_each(|bed| assert_eq!(bed.params, alone.params));
    });
}

#[test]
fn cublas_gets_the_workspace_that_is_recommended_for_its_device() {
    for capability in ["8.0", "9.0"] {
        simulated_with(&["eager"], &[("CUDASIM_CAPABILITY", capability)], || {
            let own = std::env::var("CUDASIM_CAPABILITY").unwrap();
            let bytes = if own == "9.0" { 32u64 << 20 } else { 4 << 20 };
            let found = Bed::new("", &[&[6, 5]]).model.stats().workspace_bytes;
            assert!((bytes..bytes + (1 << 20)).contains(&found), "{own}: {found}");
        });
    }
}
