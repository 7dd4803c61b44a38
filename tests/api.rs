//! The safe Rust API: the bits of the C functions, refusals by name, every element type, absent gradients, resume.

use crate::support::model::{Model, Spec, StepWith};
use crate::support::random::Random;
use crate::support::tensor::{Dtype, Tensor};
use foam::half::{bf16, f16};
use foam::ndarray::{Array1, Array2, ArrayViewMut2, s};
use foam::{
    Branch, Config, DType, Device, ErrorKind, FactorId, Gradient, Level, Optimizer, Outcome, Param,
    StepOptions, TensorMut,
};
use std::sync::{Arc, Mutex};

const OPTIONS: &str = "check_period=3 epsilon=1e-4 epsilon_max=1e-2 tau=0.3 num_threads=1 momentum=0.9";

/// The same options as text.
fn config(options: &str) -> Config {
    let mut config = Config::reference();
    for option in options.split_whitespace() {
        let (key, value) = option.split_once('=').expect("key=value");
        config.set(key, value).expect("a known option and a good value");
    }
    config
}

fn noise(random: &mut Random, len: usize) -> Vec<f32> {
    (0..len).map(|_| random.normal() as f32).collect()
}

fn values(values: &[f32]) -> Vec<f64> {
    values.iter().map(|x| f64::from(*x)).collect()
}

fn first() -> FactorId {
    FactorId { param: 0, block: 0, axis: 0 }
}

#[test]
fn it_has_the_bits_and_the_statistics_of_the_c_functions() {
    let shapes: [&[usize]; 3] = [&[12, 7], &[5], &[3, 4, 2]];
    let sizes = shapes.map(|shape| shape.iter().product::<usize>());
    let specs: Vec<Spec> = (shapes.iter().enumerate())
        .map(|(i, shape)| {
            let shape: Vec<i64> = shape.iter().map(|d| *d as i64).collect();
            Spec::new(&format!("p{i}"), &shape).of(Dtype::F32)
        })
        .collect();
    let options = format!("{OPTIONS} merge_dims=false max_factor_dim=8");
    let mut through_c = Model::new("reference", &options, &specs);
    let params = (0..).zip(shapes).map(|(i, shape)| Param::new(format!("p{i}"), shape));
    let mut optimizer = Optimizer::new(config(&options), params).unwrap();
    assert_eq!(optimizer.stats().unwrap().counters.evd_rate(), 0.0, "nothing was checked");

    let mut random = Random::new(1);
    let mut weights = sizes.map(|len| noise(&mut random, len));
    let mut tensors: Vec<Tensor> =
        specs.iter().zip(&weights).map(|(spec, w)| spec.tensor(&values(w))).collect();
    for t in 1..=20 {
        let gradients = sizes.map(|len| noise(&mut random, len));
        // The second parameter takes part in every other step only.
        let lent: Vec<Option<&Vec<f32>>> =
            gradients.iter().enumerate().map(|(i, g)| (i != 1 || t % 2 == 0).then_some(g)).collect();
        let in_c: Vec<Option<Tensor>> =
            specs.iter().zip(&lent).map(|(spec, g)| g.map(|g| spec.tensor(&values(g)))).collect();
        let with = StepWith { lr: 1e-2 / f64::from(t), grad_scale: 0.5 };
        let chosen = StepOptions::default().lr(with.lr).grad_scale(with.grad_scale);
        assert_eq!(through_c.try_step(&mut tensors, &in_c, with), Ok(false));
        assert_eq!(optimizer.step_with(chosen, &mut weights, lent).unwrap(), Outcome::Stepped);
        for (ours, theirs) in weights.iter().zip(&tensors) {
            assert_eq!(foam_bytes(ours), theirs.elements(), "step {t}");
        }
    }
    assert_eq!(optimizer.save_memory().unwrap(), through_c.save(), "the whole state has the same bytes");

    let factors = optimizer.factors().unwrap();
    let in_c = through_c.factors();
    assert_eq!(factors.len(), in_c.len());
    for (ours, theirs) in factors.iter().zip(&in_c) {
        let place = (ours.id.param as i64, ours.id.block as i64, ours.id.axis as i64);
        assert_eq!(place, (theirs.param_index, theirs.block, theirs.axis));
        assert_eq!((ours.dim as i64, ours.last_branch as i32), (theirs.dim, theirs.last_branch));
        let reals =
            [ours.root, ours.epsilon_base, ours.epsilon, ours.proxy, ours.max_proxy, ours.relative_change];
        let in_c = [
            theirs.root,
            theirs.epsilon_base,
            theirs.epsilon,
            theirs.proxy,
            theirs.max_proxy,
            theirs.relative_change,
        ];
        assert_eq!(reals.map(f64::to_bits), in_c.map(f64::to_bits));
        let counts =
            (ours.counters.checks, ours.counters.evd_calls, ours.counters.reuse_calls, ours.last_check);
        assert_eq!(counts, (theirs.checks, theirs.evd_calls, theirs.reuse_calls, theirs.last_check));
        let read = |what| through_c.read(place, what);
        let flat = |matrix: Array2<f64>| matrix.into_iter().collect::<Vec<f64>>();
        assert_eq!(flat(optimizer.statistic(ours.id).unwrap()), read(foam::abi::FOAM_FACTOR_STATISTIC));
        assert_eq!(flat(optimizer.basis(ours.id).unwrap()), read(foam::abi::FOAM_FACTOR_BASIS));
        assert_eq!(optimizer.spectrum(ours.id).unwrap().to_vec(), read(foam::abi::FOAM_FACTOR_SPECTRUM));
        assert_eq!(flat(optimizer.inverse_root(ours.id).unwrap()), read(foam::abi::FOAM_FACTOR_INVERSE_ROOT));
        assert_eq!(optimizer.exact_gap(ours.id).unwrap().to_bits(), through_c.exact_gap(place).to_bits());
    }
    let (ours, theirs) = (optimizer.stats().unwrap(), through_c.stats());
    assert_eq!((ours.steps, ours.blocks as u64, ours.factors as u64), (20, theirs.blocks, theirs.factors));
    assert_eq!((ours.counters.checks, ours.counters.evd_calls), (theirs.checks, theirs.evd_calls));
    assert_eq!(ours.memory.state_host as u64, theirs.state_bytes_host);
    assert!(ours.counters.evd_rate() > 0.0 && ours.counters.evd_rate() <= 1.0);
}

fn foam_bytes(values: &[f32]) -> &[u8] {
    bytemuck::cast_slice(values)
}

/// Two parameters, f32 and f64, for the refusals.
fn small() -> Optimizer {
    let params = [Param::new("weight", &[4, 3]), Param::new("bias", &[3]).dtype(DType::F64)];
    Optimizer::new(config(OPTIONS), params).unwrap()
}

#[test]
fn a_step_that_is_refused_names_the_parameter_and_changes_nothing() {
    let mut optimizer = small();
    let before = optimizer.save_memory().unwrap();
    let mut weight = Array2::<f32>::ones((4, 3));
    let mut bias = [1.0f64; 3];
    let (gw, gb) = (Array2::<f32>::ones((4, 3)), [1.0f32; 3]);
    let mut wide = Array2::<f32>::ones((4, 6));
    let mut turned = Array2::<f32>::ones((3, 4));

    let mut refused =
        |params: [TensorMut; 2], grads: [Gradient; 2]| optimizer.step(params, grads).unwrap_err();
    let mut short = vec![1.0f32; 11];
    let error = refused([(&mut short).into(), (&mut bias).into()], [(&gw).into(), (&gb).into()]);
    assert_eq!((error.kind, error.place.param), (ErrorKind::ShapeMismatch, Some(0)));
    assert_eq!(error.message, "parameter 'weight': 11 elements: expected 12 ([4, 3])");

    let error = refused([(&mut turned).into(), (&mut bias).into()], [(&gw).into(), (&gb).into()]);
    assert_eq!(
        (error.kind, error.place.param, error.place.axis),
        (ErrorKind::ShapeMismatch, Some(0), Some(0))
    );
    assert_eq!(error.message, "parameter 'weight': shape[0] = 3: expected 4 ([4, 3])");

    let flat = Array1::<f32>::ones(12);
    let error = refused([(&mut weight).into(), (&mut bias).into()], [(&flat).into(), (&gb).into()]);
    assert_eq!(error.message, "gradient of parameter 'weight': ndim = 1: expected 2 ([4, 3])");

    let every_other: ArrayViewMut2<f32> = wide.slice_mut(s![.., ..;2]);
    let error = refused([every_other.into(), (&mut bias).into()], [(&gw).into(), (&gb).into()]);
    assert_eq!((error.kind, error.place.param, error.place.axis), (ErrorKind::Unsupported, Some(0), Some(1)));
    assert!(
        error.message.starts_with("parameter 'weight': strides[1] = 2: expected 1, row-major"),
        "{error}"
    );

    let error =
        refused([turned.view_mut().reversed_axes().into(), (&mut bias).into()], [(&gw).into(), (&gb).into()]);
    assert!(error.message.starts_with("parameter 'weight': strides[1] = 4: expected 1"), "{error}");

    let mut single = [1.0f32; 3];
    let error = refused([(&mut weight).into(), (&mut single).into()], [(&gw).into(), (&gb).into()]);
    assert_eq!((error.kind, error.place.param), (ErrorKind::ShapeMismatch, Some(1)));
    assert_eq!(error.message, "parameter 'bias': dtype f32: expected f64, as at creation");

    let mut bad = gb;
    bad[2] = f32::NAN;
    let error = refused([(&mut weight).into(), (&mut bias).into()], [(&gw).into(), (&bad).into()]);
    assert_eq!((error.kind, error.place.param), (ErrorKind::NotFinite, Some(1)));
    assert!(error.message.contains("'bias'"), "{error}");

    // SAFETY: the tensor is refused before its memory is looked at.
    let elsewhere = unsafe {
        let cuda = Device { kind: Device::CUDA_KIND, id: 0 };
        TensorMut::from_raw(weight.as_mut_ptr().cast(), DType::F32, &[4, 3], cuda)
    };
    let error = refused([elsewhere, (&mut bias).into()], [(&gw).into(), (&gb).into()]);
    assert_eq!(
        error.message,
        "parameter 'weight': device type 2, id 0: expected type 1, id 0, the optimizer's device"
    );

    assert_eq!((weight, bias), (Array2::ones((4, 3)), [1.0; 3]));
    assert_eq!(optimizer.save_memory().unwrap(), before);
}

#[test]
fn lists_of_another_length_and_bad_options_are_refused() {
    let mut optimizer = Optimizer::new(config(OPTIONS), [Param::new("w", &[2])]).unwrap();
    let (mut w, g) = (vec![vec![1.0f32; 2]; 2], [1.0f32; 2]);
    let error = optimizer.step(&mut w, [&g]).unwrap_err();
    assert_eq!(error.message, "params has more than 1 tensors: expected 1, as at creation");
    let none: [&[f32]; 0] = [];
    let error = optimizer.step(&mut w[..1], none).unwrap_err();
    assert_eq!(error.message, "grads has 0 tensors: expected 1, as at creation");
    for (options, message) in [
        (StepOptions::default().lr(-1.0), "lr = -1: expected a number >= 0"),
        (StepOptions::default().lr(f64::NAN), "lr = NaN: expected a number >= 0"),
        (StepOptions::default().grad_scale(0.0), "grad_scale = 0: expected a finite number other than 0"),
    ] {
        let error = optimizer.step_with(options, &mut w[..1], [&g]).unwrap_err();
        assert_eq!((error.kind, error.message.as_str()), (ErrorKind::InvalidArgument, message));
    }
    assert_eq!(w[0], [1.0; 2]);
}

#[test]
fn parameters_and_options_are_validated_at_creation() {
    let refused = |config: Config, params: Vec<Param>| Optimizer::new(config, params).unwrap_err();
    let error = refused(Config::default(), vec![]);
    assert!(error.message.contains("expected at least one parameter"), "{error}");
    let error = refused(Config::default(), vec![Param::new("a", &[2]), Param::new("a", &[2])]);
    assert_eq!(error.place.param, Some(1));
    assert!(error.message.contains("both named 'a'"), "{error}");
    let error = refused(Config::default(), vec![Param::new("a", &[2]), Param::new("b", &[2, 0])]);
    assert_eq!((error.place.param, error.place.axis), (Some(1), Some(1)));
    assert_eq!(error.message, "parameter 'b' (1): shape[1] = 0: expected at least 1");
    let error = refused(Config::default(), vec![Param::new("a", &[usize::MAX, 2])]);
    assert!(error.message.contains("overflows at axis 0"), "{error}");
    let error = refused(Config::default(), vec![Param::new("", &[2])]);
    assert!(error.message.contains("name is empty"), "{error}");
    let error = refused(Config::default(), vec![Param::new("a", &[2]).lr_scale(0.0)]);
    assert!(error.message.contains("lr_scale = 0"), "{error}");
    let error = refused(Config { tau: -1.0, ..Config::default() }, vec![Param::new("a", &[2])]);
    assert!(error.message.contains("tau"), "{error}");
}

#[test]
fn every_element_type_steps_and_gradients_may_have_another() {
    let types = [DType::F32, DType::F64, DType::Bf16, DType::F16];
    let params = types.map(|dtype| Param::new(dtype.name(), &[4, 4]).dtype(dtype));
    let config = Config { lr: 0.125, weight_decay: 0.0, momentum: 0.0, ..config(OPTIONS) };
    let mut optimizer = Optimizer::new(config, params).unwrap();
    let (mut single, mut double) = ([1.0f32; 16], [1.0f64; 16]);
    let (mut brain, mut half) = ([bf16::ONE; 16], vec![f16::ONE; 16]);
    let gradient = Array2::<f32>::ones((4, 4));
    let halves = [f16::ONE; 16];
    for _ in 0..2 {
        let params: [TensorMut; 4] =
            [(&mut single).into(), (&mut double).into(), (&mut brain).into(), (&mut half).into()];
        let grads: [Gradient; 4] =
            [(&halves).into(), (&gradient).into(), (&gradient).into(), (&halves).into()];
        assert_eq!(optimizer.step(params, grads).unwrap(), Outcome::Stepped);
    }
    // Before the first check this is Adam: each of two equal gradients moves an element by the learning rate.
    assert!((single[0] - 0.75).abs() < 1e-3 && (double[0] - 0.75).abs() < 1e-3);
    assert!((brain[0].to_f32() - 0.75).abs() < 1e-2 && (half[0].to_f32() - 0.75).abs() < 1e-2);
}

#[test]
fn a_parameter_without_a_gradient_keeps_its_value_and_its_clock() {
    let params = [Param::new("a", &[3, 3]), Param::new("b", &[3, 3])];
    let mut optimizer = Optimizer::new(config("check_period=1"), params).unwrap();
    let (mut w, g) = ([[1.0f32; 9]; 2], [1.0f32; 9]);
    optimizer.step(&mut w, [Some(&g), None]).unwrap();
    assert!(w[0][0] < 1.0);
    assert_eq!(w[1], [1.0; 9]);
    let checks: Vec<u64> = optimizer.factors().unwrap().iter().map(|f| f.last_check).collect();
    assert_eq!(checks, [1, 0]);
    let error = optimizer.exact_gap(FactorId { param: 1, block: 0, axis: 0 }).unwrap_err();
    assert!(error.message.contains("'b' has no basis yet"), "{error}");
}

#[test]
fn a_resumed_run_is_the_uninterrupted_one_bit_for_bit() {
    let make = || Optimizer::new(config(OPTIONS), [Param::new("w", &[6, 5])]).unwrap();
    let mut random = Random::new(3);
    let gradients: Vec<Vec<f32>> = (0..12).map(|_| noise(&mut random, 30)).collect();
    let start = noise(&mut random, 30);
    let run = |optimizer: &mut Optimizer, w: &mut Vec<f32>, gradients: &[Vec<f32>]| {
        gradients.iter().for_each(|g| assert_eq!(optimizer.step([&mut *w], [g]).unwrap(), Outcome::Stepped));
    };
    let (mut whole, mut whole_w) = (make(), start.clone());
    run(&mut whole, &mut whole_w, &gradients);

    let (mut begun, mut w) = (make(), start.clone());
    run(&mut begun, &mut w, &gradients[..7]);
    let path = std::env::temp_dir().join(format!("foam-api-{}.safetensors", std::process::id()));
    begun.save_file(&path).unwrap();
    let mut resumed = make();
    resumed.load_file(&path).unwrap();
    run(&mut resumed, &mut w, &gradients[7..]);
    assert_eq!(foam_bytes(&w), foam_bytes(&whole_w));
    assert_eq!(resumed.save_memory().unwrap(), whole.save_memory().unwrap());

    std::fs::write(&path, b"not a checkpoint").unwrap();
    let error = resumed.load_file(&path).unwrap_err();
    assert_eq!(error.kind, ErrorKind::BadCheckpoint);
    assert!(error.message.contains(path.to_str().unwrap()), "{error}");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(resumed.load_file(&path).unwrap_err().kind, ErrorKind::Io);
}

#[test]
fn a_gradient_that_is_not_finite_can_be_skipped_and_is_logged() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let kept = lines.clone();
    let log = move |level, line: &str| kept.lock().unwrap().push((level, line.to_string()));
    let mut optimizer = Optimizer::with_log(config("nonfinite=skip"), [Param::new("w", &[2])], log).unwrap();
    let mut w = [1.0f32; 2];
    assert_eq!(optimizer.step([&mut w], [&[1.0f32, f32::INFINITY]]).unwrap(), Outcome::Skipped);
    assert_eq!(w, [1.0; 2]);
    let stats = optimizer.stats().unwrap();
    assert_eq!((stats.steps, stats.skipped_steps), (0, 1));
    let lines = lines.lock().unwrap();
    assert!(lines[0].0 == Level::Warning && lines[0].1.contains("'w'"), "{lines:?}");
}

#[test]
fn a_panic_unwinds_and_leaves_statistics_only() {
    let options = config("inject_fault=panic inject_fault_step=2");
    let mut optimizer = Optimizer::new(options, [Param::new("w", &[2, 2])]).unwrap();
    let (mut w, g) = ([1.0f32; 4], [1.0f32; 4]);
    optimizer.step([&mut w], [&g]).unwrap();
    let stepped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| optimizer.step([&mut w], [&g])));
    assert!(stepped.is_err());
    assert_eq!(optimizer.step([&mut w], [&g]).unwrap_err().kind, ErrorKind::Poisoned);
    assert_eq!(optimizer.save_memory().unwrap_err().kind, ErrorKind::Poisoned);
    assert_eq!(optimizer.statistic(first()).unwrap_err().kind, ErrorKind::Poisoned);
    assert_eq!(optimizer.stats().unwrap().factors, 1);
    assert_eq!(optimizer.factors().unwrap()[0].last_branch, Branch::None);
}

#[test]
fn an_optimizer_moves_to_another_thread() {
    let mut optimizer = Optimizer::new(Config::default(), [Param::new("w", &[2])]).unwrap();
    let steps = std::thread::spawn(move || {
        let mut w = [1.0f32; 2];
        optimizer.step([&mut w], [&[1.0f32; 2]]).unwrap();
        optimizer.synchronize().unwrap();
        optimizer.stats().unwrap().steps
    });
    assert_eq!(steps.join().unwrap(), 1);
}

#[test]
fn factors_that_do_not_exist_are_refused() {
    let mut optimizer = small();
    let error = optimizer.basis(FactorId { param: 2, ..first() }).unwrap_err();
    assert!(error.message.contains("param_index = 2"), "{error}");
    let error = optimizer.spectrum(FactorId { axis: 1, ..first() }).unwrap_err();
    assert!(error.message.contains("'weight': axis = 1: expected 0 <= axis < 1"), "{error}");
}

#[test]
fn branches_are_named_as_in_c() {
    assert_eq!((Branch::EvdCap.name(), Branch::ReuseSame.name()), ("evd_cap", "reuse_same"));
    assert!(Branch::EvdThreshold.is_refresh() && !Branch::ReuseRaised.is_refresh());
}
