//! A stack does what a handle does: the same gradients through `foam_step` and through the verbs give equal
//! bits of state, records, clocks and parameters.

use crate::support::model::{Model, Spec, StepWith};
use crate::support::policies_and_schedules;
use crate::support::random::Random;
use crate::support::stack::{Room, Shape, Stack, layout, words};
use crate::support::tensor::{Dtype, Tensor};
use foam::abi::*;
use safetensors::SafeTensors;

/// A run of both doors.
struct Race {
    model: Model,
    stack: Stack,
    params: Vec<Tensor>,
    stacked: Room,
    random: Random,
    /// Type of the gradients.
    grad_dtype: Dtype,
    with: StepWith,
    /// Steps between comparisons of the states: a handle that is read has gathered nothing.
    every: usize,
}

/// What goes wrong in a step, besides a gradient for every block.
#[derive(Clone, Copy, PartialEq)]
enum Trouble {
    None,
    Absent,
    NotFinite,
}

impl Race {
    fn new(preset: &str, options: &str, shape: Shape) -> Race {
        let options = format!("{options} merge_dims=false max_factor_dim=4096");
        let specs: Vec<Spec> = (0..shape.count)
            .map(|block| Spec {
                weight_decay_scale: shape.weight_decay_scale,
                root: shape.root,
                grafting_only: shape.grafting_only,
                ..Spec::new(&format!("p{block}"), &shape.dims).of(shape.dtype)
            })
            .collect();
        let mut random = Random::new(7);
        let params: Vec<Tensor> = specs.iter().map(|s| s.tensor(&random.normals(s.elements()))).collect();
        let mut stacked = Room::new(shape.dtype.in_c(), &shape.whole());
        stacked.bytes_mut().copy_from_slice(&joined(&params));
        Race {
            model: Model::new(preset, &options, &specs),
            grad_dtype: shape.dtype,
            stack: Stack::new(preset, &options, shape),
            params,
            stacked,
            random,
            with: StepWith { lr: 0.03, grad_scale: 1.0 },
            every: 1,
        }
    }

    fn step(&mut self, t: usize) {
        let count = self.stack.shape.count;
        let trouble: Vec<Trouble> = (0..count)
            .map(|block| match (t * 5 + block * 3) % 11 {
                0 if block > 0 => Trouble::Absent,
                4 if block > 0 => Trouble::NotFinite,
                _ => Trouble::None,
            })
            .collect();
        let elements: usize = self.stack.shape.dims.iter().product::<i64>() as usize;
        let mut grads: Vec<Tensor> = Vec::new();
        for params in &self.params {
            // A gradient that shrinks with the parameter, and noise.
            let values = params.values();
            let values: Vec<f64> = values.iter().map(|w| 0.3 * w + 0.2 * self.random.normal()).collect();
            grads.push(Tensor::of(self.grad_dtype, &self.stack.shape.dims, &values));
        }
        let given: Vec<Option<Tensor>> = grads
            .iter()
            .zip(&trouble)
            .map(|(g, trouble)| (*trouble == Trouble::None).then(|| g.clone()))
            .collect();
        assert_eq!(self.model.try_step(&mut self.params, &given, self.with), Ok(false));

        for (grad, _) in grads.iter_mut().zip(&trouble).filter(|(_, t)| **t == Trouble::NotFinite) {
            let mut values = grad.values();
            values[t % elements] = [f64::NAN, f64::INFINITY][t % 2];
            *grad = Tensor::of(self.grad_dtype, &self.stack.shape.dims, &values);
        }
        let mut all = Room::new(self.grad_dtype.in_c(), &self.stack.shape.whole());
        all.bytes_mut().copy_from_slice(&joined(&grads));
        let active: Vec<i32> = trouble.iter().map(|t| i32::from(*t != Trouble::Absent)).collect();
        let active = trouble.contains(&Trouble::Absent).then_some(&*active);
        let stepped =
            self.stack.step(&mut all, &mut self.stacked, active, (-self.with.lr, self.with.grad_scale));
        for (block, trouble) in trouble.iter().enumerate() {
            let expected = match trouble {
                Trouble::None => 0,
                Trouble::Absent => FOAM_INFO_IDLE,
                Trouble::NotFinite => FOAM_INFO_NOT_FINITE,
            };
            assert_eq!(stepped.info[block], expected, "block {block}");
        }
        self.add(&stepped.update);
        assert_eq!(self.stacked.bytes(), joined(&self.params), "parameters after step {t}");
        if t.is_multiple_of(self.every) {
            self.compare(t);
        }
    }

    /// parameter += update, in the precision of the work.
    fn add(&mut self, update: &Room) {
        let own = self.stack.shape.dtype;
        let wide = if own == Dtype::F64 { Dtype::F64 } else { Dtype::F32 };
        let parameters = self.stacked.bytes_mut().chunks_exact_mut(own.size());
        for (w, u) in parameters.zip(update.bytes().chunks_exact(wide.size())) {
            let sum = match own {
                Dtype::F64 => own.decode(w) + own.decode(u),
                _ => f64::from(own.decode(w) as f32 + wide.decode(u) as f32),
            };
            // half's own way from f64 to bf16 loses the last bits before it rounds.
            match own {
                Dtype::Bf16 => w.copy_from_slice(&half::bf16::from_f32(sum as f32).to_ne_bytes()),
                _ => w.copy_from_slice(&own.encode(sum)),
            }
        }
    }

    /// Every state buffer, record and clock is the handle's, bit for bit.
    fn compare(&self, t: usize) {
        let saved = self.model.save();
        let saved = SafeTensors::deserialize(&saved).unwrap();
        let stack = &self.stack;
        for block in 0..stack.shape.count {
            for name in &stack.names {
                let own = stack.part(name, block);
                let same = |key: &str, own: &[u8]| {
                    let key = format!("p{block}/{key}");
                    let theirs = saved.tensor(&key).unwrap_or_else(|e| panic!("{key}: {e}"));
                    assert_eq!(theirs.data(), own, "{key} after step {t}");
                };
                match (name.as_str(), name.rsplit_once('_')) {
                    ("clock", _) => {
                        same("clock.step", &own[..8]);
                        same("clock.weight", &own[8..]);
                    }
                    ("record", _) => {
                        for (axis, record) in own.chunks_exact(304).enumerate() {
                            same(&format!("stack0/axis{axis}/gauges"), &record[..96]);
                            same(&format!("stack0/axis{axis}/counters"), &record[96..]);
                        }
                    }
                    (_, Some(("root_diagonal", axis))) => {
                        let (root, statistic) = apart(stack.part(&format!("statistic_{axis}"), block), own);
                        same(&format!("stack0/axis{axis}/inverse_root"), &root);
                        same(&format!("stack0/axis{axis}/statistic"), &statistic);
                    }
                    (_, Some(("statistic", axis)))
                        if stack.names.contains(&format!("root_diagonal_{axis}")) => {}
                    (_, Some((kind, axis))) => same(&format!("stack0/axis{axis}/{kind}"), own),
                    (kind, None) => same(&format!("stack0/{kind}"), own),
                }
            }
        }
    }

    fn run(mut self, steps: usize) {
        (1..=steps).for_each(|t| self.step(t));
    }
}

/// The inverse root and the statistic of a square that they share, as a checkpoint has them.
fn apart(square: &[u8], diagonal: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let size = diagonal.len() * diagonal.len() / square.len();
    let n = diagonal.len() / size;
    let (mut root, mut statistic) = (square.to_vec(), square.to_vec());
    for place in 0..n * n {
        let (row, column) = (place % n, place / n);
        let number = match row.cmp(&column) {
            std::cmp::Ordering::Equal => &diagonal[row * size..][..size],
            _ => &square[(row.min(column) + row.max(column) * n) * size..][..size],
        };
        root[place * size..][..size].copy_from_slice(number);
        if row < column {
            statistic[place * size..][..size].fill(0);
        }
    }
    (root, statistic)
}

fn joined(tensors: &[Tensor]) -> Vec<u8> {
    tensors.iter().flat_map(|t| t.elements().to_vec()).collect()
}

const DAMPED: &str = "epsilon=1e-3 epsilon_max=1e-1 check_period=4 num_threads=2";

#[test]
fn every_policy_has_the_bits_of_a_handle() {
    for policy in policies_and_schedules() {
        let options = format!("policy={policy} residual_threshold=0.4 {DAMPED}");
        Race::new("reference", &options, Shape::new(&[6, 5], 3, Dtype::F32)).run(64);
    }
}

#[test]
fn soap_has_the_bits_of_a_handle() {
    let orders: [&[i64]; 6] = [&[7], &[6, 5], &[4, 3, 5], &[2, 3, 2, 4], &[9, 4], &[1]];
    for dims in orders {
        for options in [
            "soap_form=exact",
            "soap_form=in_basis",
            "soap_form=exact refresh_schedule=kappa kappa_threshold=0.2 normalize_grads=true",
            "soap_form=in_basis refresh_schedule=kappa kappa_threshold=0.2 statistic_dtype=f64",
            "soap_form=in_basis statistic_dtype=f64 precondition_1d=true refresh_schedule=geometric",
            "soap_form=exact statistics_period=2",
            "soap_form=in_basis statistics_period=5 statistic_dtype=f64",
        ] {
            let options = format!("{options} check_period=3 max_precond_dim=8 num_threads=2");
            let mut race = Race::new("soap", &options, Shape::new(dims, 3, Dtype::F32));
            race.stack.out_of_place = dims.len() == 2;
            race.run(40);
        }
    }
    let mut halves = Race::new("soap", "num_threads=1", Shape::new(&[5, 4], 2, Dtype::Bf16));
    halves.stack.shape.weight_decay_scale = 1.0;
    halves.run(30);
}

#[test]
fn every_order_has_the_bits_of_a_handle() {
    let orders: [&[i64]; 6] = [&[7], &[6, 5], &[4, 3, 5], &[2, 3, 2, 4], &[1, 5], &[1]];
    for dims in orders {
        let mut race = Race::new("reference", DAMPED, Shape::new(dims, 3, Dtype::F32));
        race.stack.out_of_place = true;
        race.run(60);
        let bases = format!("{DAMPED} keep_inverse_root=false");
        Race::new("reference", &bases, Shape::new(dims, 3, Dtype::F32)).run(30);
    }
}

#[test]
fn every_mix_of_types_has_the_bits_of_a_handle() {
    for dtype in Dtype::ALL {
        for (statistic, grads) in [("f32", Dtype::F32), ("f64", Dtype::Bf16), ("auto", dtype)] {
            let options = format!("statistic_dtype={statistic} {DAMPED}");
            let mut race = Race::new("reference", &options, Shape::new(&[5, 4], 3, dtype));
            race.grad_dtype = grads;
            race.run(60);
        }
    }
}

#[test]
fn every_way_to_a_step_has_the_bits_of_a_handle() {
    for options in [
        "grafting=none weight_decay=0",
        "grafting=sgd momentum=0.9",
        "grafting=adagrad momentum=0.9 nesterov=true",
        "grafting=rmsprop momentum=0.5 ema_momentum=false nadam=true",
        "grafting=adam normalized_grafting=true",
        "decoupled_weight_decay=false weight_decay=0.1",
        "decoupled_weight_decay=false weight_decay=0.1 normalized_grafting=true momentum=0.9 nesterov=true",
        "beta1=0 beta2=1 grafting=adagrad",
        "beta2=0.7 bias_correction=false",
        "cadence=paper",
        "start_step=9",
        "root=0 exponent_multiplier=1.5",
    ] {
        let mut race =
            Race::new("reference", &format!("{DAMPED} {options}"), Shape::new(&[6, 4], 3, Dtype::F32));
        race.with = StepWith { lr: 0.01, grad_scale: 0.5 };
        race.run(60);
    }
    Race::new("paper", DAMPED, Shape::new(&[6, 4], 2, Dtype::F64)).run(60);
}

#[test]
fn a_stacks_own_options_have_the_bits_of_a_handle() {
    let shape = Shape { weight_decay_scale: 3.0, root: 4.0, ..Shape::new(&[5, 6], 2, Dtype::F32) };
    Race::new("reference", &format!("{DAMPED} weight_decay=0.1"), shape).run(30);
    let shape = Shape { grafting_only: true, ..Shape::new(&[5, 6], 4, Dtype::Bf16) };
    Race::new("reference", DAMPED, shape).run(30);
}

#[test]
fn shared_squares_have_the_bits_of_a_handle() {
    for (dims, dtype, options) in [
        (&[130i64, 12][..], Dtype::F32, "policy=sandwich"),
        (&[5, 128], Dtype::F64, "policy=foam"),
        (&[140, 129], Dtype::Bf16, "policy=stale refresh_delay=2"),
        (&[3, 130, 2], Dtype::F32, "policy=foam share_squares=false"),
        (&[130], Dtype::F32, "policy=foam"),
    ] {
        for out_of_place in [false, true] {
            let options = format!("{options} {DAMPED}");
            let mut race = Race::new("reference", &options, Shape::new(dims, 2, dtype));
            race.stack.out_of_place = out_of_place;
            race.run(10);
        }
    }
}

/// A handle gathers the gradients of vectors, a stack does not.
#[test]
fn gathered_vectors_have_the_bits_of_a_handle() {
    for (side, dtype, options) in [
        (64i64, Dtype::F32, "policy=sandwich"),
        (100, Dtype::F64, "policy=stale beta2=0.5"),
        (150, Dtype::Bf16, "policy=foam beta2=0.5 statistic_dtype=f64"),
        (530, Dtype::F32, "policy=foam_certified refresh_delay=3 statistics_period=2"),
        (70, Dtype::F32, "policy=foam beta2=1 keep_inverse_root=false check_period=9"),
    ] {
        for every in [5, 28] {
            let options = format!("{DAMPED} check_period=12 {options}");
            let mut race = Race::new("reference", &options, Shape::new(&[side], 3, dtype));
            race.every = every;
            race.run(56);
        }
    }
}

/// Blocks of several chunks and panels, with padded rows, and more threads than blocks.
#[test]
fn large_blocks_have_the_bits_of_a_handle_with_any_number_of_threads() {
    for threads in [1, 3] {
        let options = format!("epsilon=1e-3 epsilon_max=1e-1 check_period=2 num_threads={threads}");
        Race::new("reference", &options, Shape::new(&[150, 530], 2, Dtype::F32)).run(4);
    }
}

/// The fault makes the eigendecomposition fall, in both doors alike; info says so in check steps only.
#[test]
fn a_fallen_eigendecomposition_is_told_by_info() {
    let shape = Shape::new(&[5, 4], 2, Dtype::F32);
    for fault in ["evd_chosen", "evd_nonorthogonal", "evd_double", "evd_all"] {
        let options = format!("{DAMPED} inject_fault={fault} weight_decay=0");
        let mut stack = Stack::new("reference", &options, shape.clone());
        let mut params = Room::new(Dtype::F32.in_c(), &shape.whole());
        let mut random = Random::new(3);
        for t in 1..=8 {
            let values: Vec<f32> = random.normals(40).iter().map(|x| *x as f32).collect();
            let mut grads = Room::new(Dtype::F32.in_c(), &shape.whole());
            grads.bytes_mut().copy_from_slice(bytemuck::cast_slice(&values));
            let stepped = stack.step(&mut grads, &mut params, None, (-0.1, 1.0));
            let fell = t == 4 || t == 8 && fault == "evd_all";
            let told = stepped.info.iter().all(|i| i & FOAM_INFO_FELL_BACK != 0);
            assert!(t == 8 || told == fell, "{fault}, step {t}: {:?}", stepped.info);
        }
    }
}

/// A direction that overflows is left out, and info says which block's.
#[test]
fn an_overflowing_direction_is_told_by_info() {
    let shape = Shape::new(&[4, 4], 2, Dtype::F32);
    let options = "epsilon=1e-30 epsilon_max=1e-29 check_period=1 start_step=1 root=1 grafting=none beta1=0 weight_decay=0 statistic_dtype=f64";
    let mut stack = Stack::new("reference", options, shape.clone());
    let mut params = Room::new(Dtype::F32.in_c(), &shape.whole());
    let mut values = vec![0f32; 32];
    values[0] = 1e-10;
    values[16..].iter_mut().enumerate().for_each(|(i, x)| *x = if i % 5 == 0 { 1.0 } else { 0.0 });
    let mut grads = Room::new(Dtype::F32.in_c(), &shape.whole());
    grads.bytes_mut().copy_from_slice(bytemuck::cast_slice(&values));
    stack.step(&mut grads, &mut params, None, (-0.1, 1.0));
    // The second gradient lies where the first block has felt nothing: there its roots are 1e30 each.
    values[0] = 0.0;
    values[5] = 1.0;
    grads.bytes_mut().copy_from_slice(bytemuck::cast_slice(&values));
    stack.config.check_period = 1 << 40;
    let stepped = stack.step(&mut grads, &mut params, None, (-0.1, 1.0));
    assert_eq!(stepped.info, [FOAM_INFO_LEFT_OUT, 0]);
    let update: &[f32] = &words(stepped.update.bytes());
    assert!(update[..16].iter().all(|u| *u == 0.0) && update.iter().all(|u| u.is_finite()), "{update:?}");
}

/// The updates may take the place of the gradients.
#[test]
fn updates_may_overwrite_the_gradients() {
    let shape = Shape::new(&[6, 5], 3, Dtype::F32);
    let mut two: Vec<Stack> = (0..2).map(|_| Stack::new("reference", DAMPED, shape.clone())).collect();
    let mut random = Random::new(11);
    let mut params = Room::new(Dtype::F32.in_c(), &shape.whole());
    let mut info = Room::new(crate::support::stack::I32, &[3]);
    for _ in 0..12 {
        let values: Vec<f32> = random.normals(90).iter().map(|x| *x as f32).collect();
        let mut grads = Room::new(Dtype::F32.in_c(), &shape.whole());
        grads.bytes_mut().copy_from_slice(bytemuck::cast_slice(&values));
        let apart = two[0].step(&mut grads, &mut params, None, (-0.1, 1.0));
        let (g, w, i) = (grads.in_c(), params.in_c(), info.in_c());
        let stack = &mut two[1];
        stack.call(foam_stack_accumulate, |a| (a.grads, a.info) = (&g, &i)).unwrap();
        stack.call(foam_stack_check, |a| a.info = &i).unwrap();
        let fill = |a: &mut foam_stack_args| {
            (a.grads, a.params, a.update, a.info, a.scale) = (&g, &w, &g, &i, -0.1);
        };
        stack.call(foam_stack_apply, fill).unwrap();
        assert_eq!(apart.update.bytes(), grads.bytes());
    }
}

/// Calls at the same time, on equal and on different stacks, neither wait for ever nor disturb each other.
#[test]
fn concurrent_calls_have_the_bits_of_lone_ones() {
    let run = |seed: u64, dims: &[i64]| {
        let shape = Shape::new(dims, 4, Dtype::F32);
        let mut stack = Stack::new(
            "reference",
            "epsilon=1e-3 epsilon_max=1e-1 check_period=2 num_threads=3",
            shape.clone(),
        );
        let mut params = Room::new(Dtype::F32.in_c(), &shape.whole());
        let mut random = Random::new(seed);
        let mut last = Vec::new();
        for _ in 0..8 {
            let count = shape.whole().iter().product::<i64>() as usize;
            let values: Vec<f32> = random.normals(count).iter().map(|x| *x as f32).collect();
            let mut grads = Room::new(Dtype::F32.in_c(), &shape.whole());
            grads.bytes_mut().copy_from_slice(bytemuck::cast_slice(&values));
            last = stack.step(&mut grads, &mut params, None, (-0.1, 1.0)).update.bytes().to_vec();
        }
        last
    };
    let cases: Vec<(u64, &[i64])> =
        vec![(1, &[64, 96]), (2, &[64, 96]), (3, &[64, 96]), (4, &[33, 17]), (5, &[9, 8, 7]), (6, &[128])];
    let alone: Vec<Vec<u8>> = cases.iter().map(|(seed, dims)| run(*seed, dims)).collect();
    let together: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let started: Vec<_> = cases.iter().map(|(seed, dims)| scope.spawn(|| run(*seed, dims))).collect();
        started.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(alone == together);
}

#[test]
fn the_layout_names_types_and_shapes_every_buffer() {
    let listed = |options: &str, shape: &Shape| -> Vec<String> {
        let config = crate::support::model::configuration("reference", options).unwrap();
        let items = layout(&config, shape).unwrap();
        items
            .iter()
            .map(|item| {
                let name: String =
                    item.name.iter().take_while(|c| **c != 0).map(|c| *c as u8 as char).collect();
                let kind = ["int", "u", "f", "?", "bf"][item.dtype.code as usize];
                format!("{name} {kind}{}{:?}", item.dtype.bits, &item.shape[..item.ndim as usize])
            })
            .collect()
    };
    let shape = Shape::new(&[6, 4], 3, Dtype::Bf16);
    assert_eq!(
        listed("momentum=0.9 statistic_dtype=f64", &shape),
        [
            "clock u32[3, 4]",
            "record u32[3, 2, 76]",
            "statistic_0 f64[3, 6, 6]",
            "statistic_1 f64[3, 4, 4]",
            "basis_0 f64[3, 6, 6]",
            "basis_1 f64[3, 4, 4]",
            "spectrum_0 f64[3, 6]",
            "spectrum_1 f64[3, 4]",
            "inverse_root_0 f32[3, 6, 6]",
            "inverse_root_1 f32[3, 4, 4]",
            "filter f32[3, 6, 4]",
            "moment f32[3, 6, 4]",
            "momentum f32[3, 6, 4]",
        ]
    );
    let only = Shape { grafting_only: true, dtype: Dtype::F64, ..shape };
    assert_eq!(listed("beta1=0 grafting=sgd", &only), ["clock u32[3, 4]"]);
    assert_eq!(listed("beta1=0", &only), ["clock u32[3, 4]", "moment f64[3, 6, 4]"]);
}

/// A batch of n stacks needs no more workspace than n times that of one: vmap may multiply both.
#[test]
fn workspace_grows_no_faster_than_the_number_of_blocks() {
    for dims in [vec![3], vec![40, 30], vec![300, 200], vec![1500, 1500]] {
        let bytes = |count: usize| {
            Stack::new(
                "reference",
                "num_threads=5 beta1=0 grafting=sgd",
                Shape::new(&dims, count, Dtype::F32),
            )
            .workspace
            .len()
        };
        let one = bytes(1);
        let counts: &[usize] = if dims[0] > 1000 { &[2, 5] } else { &[2, 3, 7, 64] };
        for count in counts {
            assert!(bytes(*count) <= count * one, "{dims:?} times {count}");
        }
    }
}

#[test]
fn a_stack_whose_checks_change_takes_no_dead_step() {
    for grafting in ["adam", "none"] {
        let shape = Shape::new(&[6, 5], 2, Dtype::F32);
        let options = format!("policy=stale check_period=100 beta1=0 grafting={grafting} weight_decay=0");
        let mut stack = Stack::new("reference", &options, shape.clone());
        let mut random = Random::new(5);
        let mut params = Room::new(Dtype::F32.in_c(), &shape.whole());
        for step in 1..=45 {
            let mut grads = Room::new(Dtype::F32.in_c(), &shape.whole());
            let values: Vec<f32> = random.normals(60).iter().map(|x| *x as f32).collect();
            grads.bytes_mut().copy_from_slice(bytemuck::cast_slice(&values));
            // As a caller may: the state of 30 steps without a basis, and then more frequent checks.
            stack.config.check_period = if step <= 30 { 100 } else { 20 };
            let stepped = stack.step(&mut grads, &mut params, None, (-0.1, 1.0));
            let update: Vec<f32> = words(stepped.update.bytes());
            if grafting == "adam" || step > 30 {
                assert!(update.iter().all(|x| x.is_finite() && *x != 0.0), "{grafting}, step {step}: dead");
            }
        }
    }
}
