//! `matmul_precision`: which products are rounded to TF32, and what that does.

use crate::cost::{Trainer, equal};
use crate::simulated::{count, simulated_with};
use crate::support::matrix::difference;
use crate::support::model::{Model, Spec};
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
