//! `matmul_precision`: which products are rounded to TF32, and what that does; and the products of bf16, which are exact.

use crate::cost::{Trainer, equal};
use crate::simulated::{count, simulated_with};
use crate::support::matrix::difference;
use crate::support::model::{Model, Spec, StepWith};
use crate::support::random::Random;
use crate::support::tensor::{Dtype, Tensor};
use foam::abi::*;

const FAST: &str = "cublasGemmStridedBatchedEx";

#[test]
fn only_the_products_of_every_step_are_fast() {
    simulated_with(&["eager"], &[], || {
        for (preset, blocks, products) in [("reference", 1, 4), ("reference", 3, 4), ("soap", 2, 6)] {
            for statistic in ["f32", "f64"] {
                let options = format!("matmul_precision=tf32 statistic_dtype={statistic} merge_dims=false");
                let trainer = Trainer::of(preset, &equal(blocks, &[16, 12]), &options);
                // Two statistics in f64 are left as they are.
                let expected = if statistic == "f64" { products - 2 } else { products };
                let mut seen = [0; 2];
                for step in 1..=12 {
                    let before = count(FAST);
                    let cost = trainer.step();
                    let (fast, check) = (count(FAST) - before, cost.waits > 0);
                    // Until there are bases, nothing is multiplied by them.
                    if step <= 4 {
                        continue;
                    }
                    assert_eq!(fast, expected, "{preset}, {statistic}, step {step}: {cost:?}");
                    // What a check multiplies besides is exact.
                    assert_eq!(
                        cost.products > products,
                        check,
                        "{preset}, {statistic}, step {step}: {cost:?}"
                    );
                    seen[usize::from(check)] += 1;
                }
                assert!(seen[0] > 0 && seen[1] > 0, "{preset}: {seen:?} plain steps and checks");
            }
        }
        let exact = Trainer::of("reference", &equal(3, &[16, 12]), "merge_dims=false");
        let before = count(FAST);
        (0..9).for_each(|_| {
            exact.step();
        });
        assert_eq!(count(FAST), before, "f32 is the default");
    });
}

/// Parameters and the first statistic after some steps.
fn run(options: &str, dtype: Dtype) -> (Vec<f64>, Vec<f64>) {
    let shape = [9i64, 7];
    let options =
        format!("check_period=4 beta2=0.9 epsilon=1e-3 epsilon_max=1 merge_dims=false lr=0.1 {options}");
    let mut model = Model::new("reference", &options, &[Spec::new("w", &shape).of(dtype)]);
    let mut random = Random::new(11);
    let mut params = [Tensor::of(dtype, &shape, &random.normals(63))];
    for _ in 0..10 {
        model.step(&mut params, &[Tensor::of(dtype, &shape, &random.normals(63))]);
    }
    (params[0].values(), model.read((0, 0, 0), FOAM_FACTOR_STATISTIC))
}

#[test]
fn tf32_rounds_operands_on_the_device_and_nothing_elsewhere() {
    simulated_with(&["eager"], &[], || {
        let tf32 = "matmul_precision=tf32";
        assert_eq!(run(tf32, Dtype::F32), run("", Dtype::F32), "no effect on the CPU");
        let f64s = (run("device=cuda:0", Dtype::F64), run(&format!("device=cuda:0 {tf32}"), Dtype::F64));
        assert_eq!(f64s.0, f64s.1, "no effect on f64");
        let (exact, fast) =
            (run("device=cuda:0", Dtype::F32), run(&format!("device=cuda:0 {tf32}"), Dtype::F32));
        let off = difference(&exact.1, &fast.1);
        println!(
            "| the statistic differs by {off:.1e}, the parameter by {:.1e} |",
            difference(&exact.0, &fast.0)
        );
        // Each operand by at most 2^-11, so a product by 2^-10.
        assert!(off > 1e-6 && off < 1e-3, "{off}");
        assert!(difference(&exact.0, &fast.0) < 2e-2);
    });
}

/// Steps of a model whose gradients are of type `grad`, each with a scale: how many products were of bf16, and the
/// statistics of all factors.
fn squares(shapes: &[&[i64]], options: &str, param: Dtype, grad: Dtype, scale: f64) -> (u64, Vec<Vec<f64>>) {
    let named = |(i, shape): (usize, &&[i64])| Spec::new(&format!("p{i}"), shape).of(param);
    let specs: Vec<Spec> = shapes.iter().enumerate().map(named).collect();
    let options =
        format!("check_period=4 beta2=0.9 epsilon=1e-3 epsilon_max=1 merge_dims=false lr=0.1 {options}");
    let mut model = Model::new("reference", &options, &specs);
    let mut random = Random::new(23);
    let mut params: Vec<Tensor> = specs.iter().map(|s| s.tensor(&random.normals(s.elements()))).collect();
    let before = count(FAST);
    for t in 0..6 {
        let values = |spec: &Spec, random: &mut Random| {
            // Values of bf16, whatever the type.
            Tensor::of(Dtype::Bf16, &spec.shape, &random.normals(spec.elements())).values()
        };
        let mut grads: Vec<Option<Tensor>> = Vec::new();
        for (i, spec) in specs.iter().enumerate() {
            let own = Tensor::of(grad, &spec.shape, &values(spec, &mut random));
            // The second parameter sits out some steps.
            grads.push((i != 1 || t % 3 != 1).then_some(own));
        }
        model.try_step(&mut params, &grads, StepWith { lr: f64::NAN, grad_scale: scale }).unwrap();
    }
    let made = count(FAST) - before;
    let factors = model.factors();
    let place = |f: &foam_factor_info| (f.param_index, f.block, f.axis);
    (made, factors.iter().map(|f| model.read(place(f), FOAM_FACTOR_STATISTIC)).collect())
}

/// Blocks that are alone, equal, cut from a larger parameter, of three axes, and one of which an axis is so long that its
/// square has no room.
const SHAPES: [&[i64]; 6] = [&[9, 7], &[9, 7], &[20, 13], &[4, 5, 6], &[30, 2], &[11]];

#[test]
fn gradients_in_bf16_are_multiplied_as_they_are() {
    simulated_with(&["eager"], &[], || {
        let gpu = "max_factor_dim=12 device=cuda:0";
        let (none, wide) =
            squares(&SHAPES, &format!("{gpu} statistic_dtype=f64"), Dtype::F32, Dtype::Bf16, 1.0);
        assert_eq!(none, 0, "statistics in f64 take products in f64");
        let (made, exact) = squares(&SHAPES, gpu, Dtype::F32, Dtype::Bf16, 1.0);
        assert!(made > 6 * 8, "{made} products");
        for (number, (a, b)) in wide.iter().zip(&exact).enumerate() {
            // Sums of at most 20 terms in f32, six of them one upon the other.
            let off = difference(a, b);
            assert!(off < 1e-6, "factor {number} is off by {off:.1e}");
        }
        // The same numbers as f32 go the other way, as do those that a step changes first.
        for (options, grad, scale) in [
            ("", Dtype::F32, 1.0),
            ("", Dtype::F16, 1.0),
            ("", Dtype::Bf16, 0.5),
            ("weight_decay=0.1 decoupled_weight_decay=false", Dtype::Bf16, 1.0),
        ] {
            let (made, _) = squares(&SHAPES, &format!("{gpu} {options}"), Dtype::F32, grad, scale);
            assert_eq!(made, 0, "{options}, {grad:?}, {scale}");
        }
        let decayed = format!("{gpu} weight_decay=0.1");
        assert!(
            squares(&SHAPES, &decayed, Dtype::Bf16, Dtype::Bf16, 1.0).0 > 0,
            "a decay of the parameter alone"
        );
        // What has no room is multiplied in f32: of a vector, and along the long side of a thin matrix.
        assert_eq!(squares(&[&[11]], "device=cuda:0", Dtype::F32, Dtype::Bf16, 1.0).0, 0);
        assert_eq!(squares(&[&[30, 2]], "device=cuda:0", Dtype::F32, Dtype::Bf16, 1.0).0, 6);
    });
}

#[test]
fn a_device_without_products_of_bf16_takes_f32() {
    simulated_with(&["eager"], &[("CUDASIM_CAPABILITY", "7.5")], || {
        let (made, statistics) = squares(&SHAPES, "device=cuda:0", Dtype::F32, Dtype::Bf16, 1.0);
        let (_, cpu) = squares(&SHAPES, "", Dtype::F32, Dtype::Bf16, 1.0);
        assert_eq!(made, 0);
        for (a, b) in cpu.iter().zip(&statistics) {
            assert!(difference(a, b) < 1e-6);
        }
    });
}

/// The statistics of some blocks with a long side after two steps, and the flops of the second step's products.
fn long_sides(options: &str, blocks: usize, shape: [i64; 2], grad: Dtype) -> (u64, u64, Vec<Vec<f64>>) {
    let named = |i: usize| Spec::new(&format!("p{i}"), &shape).of(Dtype::F32);
    let specs: Vec<Spec> = (0..blocks).map(named).collect();
    let options = format!("start_step=100 beta2=0.9 merge_dims=false max_factor_dim=1024 {options}");
    let mut model = Model::new("reference", &options, &specs);
    let mut random = Random::new(29);
    let mut tensors = |dtype: Dtype| -> Vec<Tensor> {
        let own = |spec: &Spec| Tensor::of(dtype, &spec.shape, &random.normals(spec.elements()));
        specs.iter().map(own).collect()
    };
    let mut params = tensors(Dtype::F32);
    model.step(&mut params, &tensors(grad));
    let before = (count("blas_flops"), count("blas_calls"));
    model.step(&mut params, &tensors(grad));
    let spent = (count("blas_flops") - before.0, count("blas_calls") - before.1);
    let read = |i: usize| model.read((i as i64, 0, 0), FOAM_FACTOR_STATISTIC);
    (spent.0, spent.1, (0..blocks).map(read).collect())
}

/// Of a batched square only columns from the diagonal on are multiplied: of side 600 in two pieces, three quarters.
#[test]
fn batched_statistics_take_products_of_the_lower_triangle() {
    simulated_with(&["eager"], &[], || {
        let small = 2 * 3 * 3 * 600;
        for (options, grad, tolerance) in [
            ("", Dtype::F32, 1e-6),
            ("statistic_dtype=f64", Dtype::F32, 1e-6),
            ("matmul_precision=tf32", Dtype::F32, 1e-3),
        ] {
            let (_, _, cpu) = long_sides(options, 3, [600, 3], grad);
            let (flops, calls, gpu) = long_sides(&format!("{options} device=cuda:0"), 3, [600, 3], grad);
            println!("| three blocks of 600 x 3, {options} | {calls} products | {flops} flops |");
            assert_eq!(flops, 3 * (2 * 3 * 600 * 600 * 3 / 4 + small), "{options}");
            assert_eq!(calls, 3, "{options}: two for the long side, one for the short one");
            for (a, b) in cpu.iter().zip(&gpu) {
                let off = difference(a, b);
                assert!(off < tolerance, "{options}: off by {off:.1e}");
            }
            let (_, more, _) = long_sides(&format!("{options} device=cuda:0"), 7, [600, 3], grad);
            assert_eq!(more, calls, "the number of blocks makes no difference");
        }
        // Gradients in bf16, multiplied as they are.
        let shape = [512, 360];
        let (flops, calls, gpu) = long_sides("device=cuda:0", 1, shape, Dtype::Bf16);
        assert_eq!((flops, calls), (2 * 512 * 360 * (512 * 3 / 4 + 360), 3));
        let (_, _, cpu) = long_sides("", 1, shape, Dtype::Bf16);
        assert!(difference(&cpu[0], &gpu[0]) < 1e-5);
    });
}
