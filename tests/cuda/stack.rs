//! The functional door on a CUDA device, on the simulator: the XLA handlers with hand-made call frames (no JAX with a
//! GPU can run here), and the C functions. The same gradients give the state that a handle on the device has.

use crate::cost::Cost;
use crate::frame::{Attr, Buffer, F32, F64, Handler, I32, OnDevice, U8, U32, execute_on};
use crate::simulated::{count, simulated, simulated_with};
use crate::support;
use crate::support::gpu::Gpu;
use crate::support::model::{Model, Spec, StepWith, checked};
use crate::support::random::Random;
use crate::support::stack::{Room, Shape, layout, words};
use crate::support::tensor::{Dtype, Tensor};
use crate::tier::{self, Need};
use foam::abi::*;

const OPTIONS: &str =
    "check_period=4 beta2=0.9 tau=0.4 epsilon=1e-3 epsilon_max=3e-2 merge_dims=false lr=0.1";

/// A stack whose state stays on the device, driven by XLA's handlers.
pub struct Calls {
    gpu: Gpu,
    shape: Shape,
    attrs: Vec<(&'static str, Attr)>,
    names: Vec<String>,
    /// Every state buffer, with its number on the device.
    state: Vec<(usize, Buffer)>,
    workspace: usize,
    next: usize,
    /// How often a check waits: the certified policies, and delayed refreshes, ask twice.
    waits: u64,
    /// SOAP has other ports, and is checked last.
    soap: bool,
    /// What accumulate, check and apply of the last step cost.
    pub spent: [Cost; 3],
}

impl Calls {
    pub fn new(preset: &str, options: &str, shape: Shape) -> Calls {
        let text = format!("{OPTIONS} {options}");
        let config = support::model::configuration(preset, &format!("{text} device=cuda:0")).unwrap();
        let items = layout(&config, &shape).unwrap();
        let (raw, mut bytes) = (shape.in_c(), 0);
        // SAFETY: live structs and a place for the size.
        checked(|error| unsafe { foam_stack_workspace(&config, &raw, &mut bytes, error) }).unwrap();
        let mut calls = Calls {
            gpu: Gpu::open(),
            attrs: vec![
                ("options", Attr::Text(format!("preset={preset};{}", text.replace(' ', ";")))),
                ("order", Attr::Whole(shape.dims.len() as i64)),
                ("with_params", Attr::Whole(1)),
                ("scale", Attr::Real(-0.1)),
            ],
            names: Vec::new(),
            state: Vec::new(),
            workspace: bytes,
            next: 100,
            waits: if ["foam_certified", "sandwich", "refresh_delay"]
                .iter()
                .any(|name| options.contains(name))
            {
                2
            } else {
                1
            },
            spent: [Cost::default(); 3],
            soap: preset == "soap",
            shape,
        };
        let mut tensors = Vec::new();
        let mut shapes: Vec<Vec<i64>> = items.iter().map(|i| i.shape[..i.ndim as usize].to_vec()).collect();
        for (number, (item, dims)) in items.iter().zip(&mut shapes).enumerate() {
            let dtype = match (item.dtype.code, item.dtype.bits) {
                (FOAM_DTYPE_UINT, _) => U32,
                (_, 64) => F64,
                _ => F32,
            };
            let buffer = Buffer::new(dtype, dims);
            let address = calls.gpu.put(number, buffer.bytes());
            let name: Vec<u8> = item.name.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
            calls.names.push(String::from_utf8(name).unwrap());
            calls.state.push((number, buffer));
            tensors.push(foam_tensor {
                data: address as *mut _,
                device: foam_device { device_type: FOAM_DEVICE_CUDA, device_id: 0 },
                ndim: dims.len() as i32,
                dtype: item.dtype,
                shape: dims.as_mut_ptr(),
                strides: std::ptr::null_mut(),
                byte_offset: 0,
            });
        }
        // SAFETY: tensors of the layout, on the device.
        checked(|error| unsafe { foam_stack_reset(&config, &raw, tensors.as_ptr(), tensors.len(), error) })
            .unwrap();
        calls
    }

    /// The state buffers whose names begin with one of these words, in the words' order.
    fn part(&self, words: &[&str]) -> Vec<(usize, Buffer)> {
        let mut found = Vec::new();
        for word in words {
            let named = self.names.iter().zip(&self.state).filter(|(name, _)| name.starts_with(word));
            found.extend(named.map(|(_, state)| state.clone()));
        }
        found
    }

    /// A new buffer on the device.
    fn put(&mut self, buffer: Buffer) -> (usize, Buffer) {
        self.next += 1;
        self.gpu.put(self.next, buffer.bytes());
        (self.next, buffer)
    }

    fn run(&mut self, handler: Handler, args: &[(usize, Buffer)], rets: &[(usize, Buffer)]) -> Cost {
        let addresses = |list: &[(usize, Buffer)]| -> Vec<u64> {
            list.iter().map(|(number, _)| self.gpu.address(*number)).collect()
        };
        let (from, to) = (addresses(args), addresses(rets));
        let on = OnDevice { stream: self.gpu.stream(), args: &from, rets: &to };
        let bare = |list: &[(usize, Buffer)]| list.iter().map(|b| b.1.clone()).collect::<Vec<_>>();
        let (before, attrs) = (Cost::now(), self.attrs.clone());
        let said = execute_on(&on, handler, &mut bare(args), &mut bare(rets), &attrs);
        assert_eq!(said, Ok(()));
        Cost::now().since(before)
    }

    /// One step: the update, and the info of every block.
    pub fn step(&mut self, grads: &[f32], params: &[f32], active: &[i32]) -> (Vec<f32>, Vec<i32>) {
        let blocks = [self.shape.count as i64];
        self.next = 100;
        let grads = self.put(Buffer::of(F32, &self.shape.whole(), grads));
        let params = self.put(Buffer::of(F32, &self.shape.whole(), params));
        let active = self.put(Buffer::of(I32, &blocks, active));
        let info = self.put(Buffer::of(I32, &blocks, &vec![77i32; self.shape.count]));
        let last = self.put(Buffer::of(I32, &blocks, &vec![77i32; self.shape.count]));
        let update = self.put(Buffer::new(F32, &self.shape.whole()));
        // What lies in the workspace must not matter.
        let bytes = vec![0xffu8; self.workspace];
        let workspace = self.put(Buffer::of(U8, &[self.workspace as i64], &bytes));
        let rest = [info.clone(), workspace.clone()];
        let (clock, record) = (self.part(&["clock"]), self.part(&["record"]));
        let statistics = self.part(&["statistic", "rotated_statistic"]);
        let kinds =
            ["basis", "spectrum", "inverse_root", "root_spectrum", "fresh_spectrum", "pending_statistic"];
        let matrices = self.part(&kinds);
        let through_basis = self.names.iter().any(|name| name.starts_with("root_spectrum"));
        let roots: &[&str] = if through_basis { &["basis", "root_spectrum"] } else { &["inverse_root"] };
        let (roots, moments) = (self.part(roots), self.part(&["filter", "moment"]));
        let join = |lists: &[&[(usize, Buffer)]]| lists.concat();
        let args = join(&[&[grads.clone(), params.clone(), active], &clock, &statistics]);
        let accumulate = self.run(foam_xla_accumulate_cuda, &args, &join(&[&clock, &statistics, &rest]));
        assert_eq!((accumulate.waits, accumulate.allocations), (0, 0), "accumulate waits or allocates");
        let read = |calls: &Calls, (number, buffer): &(usize, Buffer)| {
            let mut bytes = vec![0; buffer.bytes().len()];
            calls.gpu.get(*number, &mut bytes);
            bytes
        };
        if self.soap {
            // The basis is checked after the step; statistics in it take the gradient in the step.
            let (bases, rotated) = (self.part(&["basis"]), self.part(&["rotated_statistic"]));
            let args = join(&[&[grads, params, info.clone()], &clock, &rotated, &bases, &moments]);
            let rets = join(&[
                std::slice::from_ref(&update),
                &rotated,
                &moments,
                &[last.clone(), workspace.clone()],
            ]);
            let apply = self.run(foam_xla_apply_cuda, &args, &rets);
            assert_eq!((apply.waits, apply.allocations), (0, 0), "apply waits or allocates");
            let args = join(&[&[last], &clock, &record, &statistics, &bases, &moments]);
            let rets = join(&[&record, &rotated, &bases, &moments, &rest]);
            let waits = u64::from(!record.is_empty());
            let check = self.run(foam_xla_check_cuda, &args, &rets);
            assert_eq!((check.waits, check.allocations), (waits, 0), "a check waits once");
            self.spent = [accumulate, check, apply];
            return (words(&read(self, &update)), words(&read(self, &info)));
        }
        let args = join(&[std::slice::from_ref(&info), &clock, &record, &statistics, &matrices]);
        let check = self.run(foam_xla_check_cuda, &args, &join(&[&record, &matrices, &rest]));
        // A policy that has to ask before it senses waits once where no check is due.
        assert!([self.waits, 1].contains(&check.waits), "a check waits: {check:?}");
        assert_eq!(check.allocations, 0, "a check allocates");
        let args = join(&[&[grads, params, info], &clock, &roots, &moments]);
        let rets = join(&[std::slice::from_ref(&update), &moments, &[last.clone(), workspace]]);
        let apply = self.run(foam_xla_apply_cuda, &args, &rets);
        assert_eq!((apply.waits, apply.allocations), (0, 0), "apply waits or allocates");
        self.spent = [accumulate, check, apply];
        (words(&read(self, &update)), words(&read(self, &last)))
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        foam_stack_trim();
    }
}

/// Runs a handle on the device and the handlers with the same gradients; parameters and records must be equal.
pub fn race(options: &str, dims: &[i64], blocks: usize, steps: usize) {
    race_of("reference", options, dims, blocks, steps);
}

fn race_of(preset: &str, options: &str, dims: &[i64], blocks: usize, steps: usize) {
    let mut random = Random::new(31);
    let specs: Vec<Spec> = (0..blocks).map(|i| Spec::new(&format!("p{i}"), dims).of(Dtype::F32)).collect();
    let mut model = Model::new(preset, &format!("{OPTIONS} {options} device=cuda:0"), &specs);
    let mut calls = Calls::new(preset, options, Shape::new(dims, blocks, Dtype::F32));
    let elements = dims.iter().product::<i64>() as usize;
    let mut params: Vec<Tensor> = specs.iter().map(|s| s.tensor(&random.normals(elements))).collect();
    let mut stacked: Vec<f32> = params.iter().flat_map(|p| p.values()).map(|x| x as f32).collect();
    let mut fallen = 0;
    for t in 0..steps {
        // Block 1 sits out every fifth step, block 2 is not finite in every seventh.
        let absent = |block: usize| block == 1 && t % 5 == 3;
        let bad = |block: usize| block == 2 && t % 7 == 4;
        let grads: Vec<Tensor> = specs.iter().map(|s| s.tensor(&random.normals(elements))).collect();
        let given: Vec<_> = grads
            .iter()
            .enumerate()
            .map(|(block, g)| (!absent(block) && !bad(block)).then(|| g.clone()))
            .collect();
        model.try_step(&mut params, &given, StepWith::default()).unwrap();
        let mut all: Vec<f32> = grads.iter().flat_map(|g| g.values()).map(|x| x as f32).collect();
        (0..blocks).filter(|b| bad(*b)).for_each(|b| all[b * elements + 1] = f32::NAN);
        let active: Vec<i32> = (0..blocks).map(|b| i32::from(!absent(b))).collect();
        let (update, info) = calls.step(&all, &stacked, &active);
        for (block, info) in info.iter().enumerate() {
            let expected =
                i32::from(absent(block)) * FOAM_INFO_IDLE + i32::from(bad(block)) * FOAM_INFO_NOT_FINITE;
            // A decomposition that is made to fail is told at the checks.
            let told = if options.contains("inject_fault") { *info & !FOAM_INFO_FELL_BACK } else { *info };
            fallen += i32::from(told != *info);
            assert_eq!(told, expected, "{options}: block {block} of step {t}");
        }
        stacked.iter_mut().zip(&update).for_each(|(w, u)| *w += u);
        let expected: Vec<f32> = params.iter().flat_map(|p| p.values()).map(|x| x as f32).collect();
        assert_eq!(stacked, expected, "{options}: parameters after step {t}");
    }
    assert_eq!(fallen > 0, options.contains("inject_fault"));
    // The records of the stack are those of the handle.
    let place = calls.names.iter().position(|name| name == "record");
    let Some(place) = place else { return };
    let mut bytes = vec![0; calls.state[place].1.bytes().len()];
    calls.gpu.get(place, &mut bytes);
    for (number, (record, factor)) in bytes.chunks_exact(304).zip(model.factors()).enumerate() {
        let (gauges, counters): (Vec<f64>, Vec<i64>) = (words(&record[..96]), words(&record[96..]));
        let statistics = [
            factor.epsilon,
            factor.proxy,
            factor.max_proxy,
            factor.relative_change,
            factor.alpha,
            factor.gap_bound,
        ];
        let same = |x: &f64, y: &f64| x == y || (x.is_nan() && y.is_nan());
        assert!(statistics.iter().zip(&gauges).all(|(x, y)| same(x, y)), "{options}: factor {number}");
        assert!(same(&factor.noise_floor, &gauges[7]), "{options}: factor {number}");
        assert!(same(&factor.kappa, &gauges[10]), "{options}: factor {number}");
        assert!(same(&factor.eigenvalue_max, &gauges[9]), "{options}: factor {number}");
        let counts = [factor.checks, factor.evd_calls, factor.reuse_calls, factor.proxy_calls];
        assert_eq!(counts, [4, 5, 6, 7].map(|i| counters[i] as u64), "{options}: factor {number}");
        assert_eq!(factor.last_refresh as i64, counters[2], "{options}: factor {number}");
    }
}

#[test]
fn the_handlers_do_what_a_handle_does() {
    simulated(|| {
        race("", &[6, 5], 4, 22);
        race("policy=stale momentum=0.9 weight_decay=0.1", &[4, 3, 2], 3, 13);
    });
}

#[test]
fn every_policy_and_option_agrees() {
    if !tier::runs(Need::Long) {
        return;
    }
    simulated_with(&["eager"], &[], || {
        for policy in [
            "foam_fixed_epsilon",
            "foam_no_refresh",
            "diagonal_residual",
            "foam_certified",
            "sandwich",
            "sandwich refresh_method=qr tau=0.2",
            "stale correction_period=2 refresh_schedule=geometric",
            "sandwich refresh_schedule=combined refresh_growth=2",
            "foam_no_refresh refresh_schedule=combined",
            "foam statistics_period=3",
            "sandwich keep_inverse_root=false",
        ] {
            race(&format!("policy={policy}"), &[6, 5], 3, 14);
        }
        race("grafting=none beta1=0", &[7], 3, 14);
        race("normalized_grafting=true nadam=true", &[6, 5], 3, 14);
        race("decoupled_weight_decay=false weight_decay=0.1 statistic_dtype=f64", &[6, 5], 3, 14);
        race("inject_fault=evd_chosen policy=stale", &[5, 4], 1, 14);
    });
}

#[test]
fn the_handlers_do_what_a_handle_does_with_soap() {
    if !tier::runs(Need::Long) {
        return;
    }
    let plain = "weight_decay=0 refresh_schedule=fixed check_period=3";
    simulated(|| {
        race_of("soap", plain, &[6, 5], 4, 12);
        race_of("soap", &format!("{plain} soap_form=exact"), &[6, 5], 4, 12);
    });
    simulated_with(&["eager"], &[], || {
        for form in ["exact", "in_basis"] {
            let plain = format!("{plain} soap_form={form}");
            race_of("soap", &format!("{plain} refresh_schedule=kappa kappa_threshold=0.3"), &[6, 5], 3, 12);
            race_of("soap", &format!("{plain} max_precond_dim=5 normalize_grads=true"), &[6, 5], 3, 12);
            race_of("soap", &format!("{plain} precondition_1d=true"), &[7], 3, 8);
            race_of("soap", &format!("{plain} statistics_period=2"), &[6, 5], 3, 12);
            race_of("soap", plain.as_str(), &[7], 3, 8);
            race_of("soap", &format!("{plain} statistic_dtype=f64"), &[4, 3, 2], 3, 12);
            race_of("soap", &format!("{plain} inject_fault=evd_all"), &[5, 4], 1, 8);
            race_of("soap", &format!("{plain} inject_fault=evd_chosen"), &[5, 4], 1, 8);
        }
    });
}

#[test]
fn the_c_functions_refuse_host_memory_and_a_short_workspace() {
    simulated_with(&["eager"], &[], || {
        let config = support::model::configuration("reference", &format!("{OPTIONS} device=cuda:0")).unwrap();
        let shape = Shape::new(&[4, 3], 2, Dtype::F32);
        let items = layout(&config, &shape).unwrap();
        let mut rooms: Vec<Room> =
            items.iter().map(|i| Room::new(i.dtype, &i.shape[..i.ndim as usize])).collect();
        let tensors: Vec<foam_tensor> = rooms.iter_mut().map(Room::in_c).collect();
        let raw = shape.in_c();
        // SAFETY: host tensors of the layout.
        let failure = checked(|error| unsafe {
            foam_stack_reset(&config, &raw, tensors.as_ptr(), tensors.len(), error)
        })
        .unwrap_err();
        assert!(failure.message.contains("'clock'") && failure.message.contains("CUDA"), "{failure:?}");
        let mut calls = Calls::new("reference", "", shape);
        calls.workspace = 64;
        let grads = calls.put(Buffer::new(F32, &[2, 4, 3]));
        let active = calls.put(Buffer::new(I32, &[2]));
        let workspace = calls.put(Buffer::new(U8, &[64]));
        let (clock, statistics) = (calls.part(&["clock"]), calls.part(&["statistic"]));
        let args = [vec![grads.clone(), grads, active.clone()], clock.clone(), statistics.clone()].concat();
        let rets = [clock, statistics, vec![active, workspace]].concat();
        let addresses =
            |list: &[(usize, Buffer)]| list.iter().map(|b| calls.gpu.address(b.0)).collect::<Vec<u64>>();
        let (from, to) = (addresses(&args), addresses(&rets));
        let on = OnDevice { stream: calls.gpu.stream(), args: &from, rets: &to };
        let bare = |list: &[(usize, Buffer)]| list.iter().map(|b| b.1.clone()).collect::<Vec<_>>();
        let said =
            execute_on(&on, foam_xla_accumulate_cuda, &mut bare(&args), &mut bare(&rets), &calls.attrs);
        let (_, message) = said.unwrap_err();
        assert!(message.contains("'workspace': expected at least u8["), "{message}");
        let on = OnDevice { stream: std::ptr::null_mut(), args: &from, rets: &to };
        let said =
            execute_on(&on, foam_xla_accumulate_cuda, &mut bare(&args), &mut bare(&rets), &calls.attrs);
        assert!(said.is_err());
        let host = vec![0u64; 64];
        let wrong: Vec<u64> = from.iter().map(|_| host.as_ptr() as u64).collect();
        let on = OnDevice { stream: calls.gpu.stream(), args: &wrong, rets: &to };
        let said =
            execute_on(&on, foam_xla_accumulate_cuda, &mut bare(&args), &mut bare(&rets), &calls.attrs);
        assert!(said.unwrap_err().1.contains("as device memory"));
    });
}

#[test]
fn a_call_does_not_look_for_cuda_again() {
    simulated_with(&["eager"], &[], || {
        let mut calls = Calls::new("reference", "", Shape::new(&[4, 3], 2, Dtype::F32));
        let (grads, params) = (vec![0.5; 24], vec![1.0; 24]);
        calls.step(&grads, &params, &[1, 1]);
        let asked = || ["cuInit", "cuDriverGetVersion", "cuDeviceGetCount"].map(count);
        let before = asked();
        (0..4).for_each(|_| {
            calls.step(&grads, &params, &[1, 1]);
        });
        assert_eq!(asked(), before);
    });
}
