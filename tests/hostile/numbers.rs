//! Gradients that numerics must survive: zeros, rank one, huge, tiny, denormal, alternating, and now and then none at
//! all. And ten thousand steps that need no more memory than two thousand.

use crate::life::Life;
use crate::support::model::StepWith;
use crate::support::random::Random;
use crate::support::tensor::Dtype;
use crate::{Tally, count};

const KINDS: [&str; 9] =
    ["plain", "zeros", "rank one", "1e30", "1e-30", "denormal", "alternating", "constant", "one row"];

/// The values of a gradient of some kind, with `cols` columns.
fn values(kind: &str, step: usize, elements: usize, cols: usize, random: &mut Random) -> Vec<f64> {
    let plain = random.normals(elements);
    let scaled = |scale: f64| plain.iter().map(|x| x * scale).collect();
    match kind {
        "zeros" => vec![0.0; elements],
        "rank one" => (0..elements).map(|k| plain[k / cols] * plain[k % cols]).collect(),
        // Their squares are still numbers of the narrowest statistics; double precision gets 1e30.
        "1e30" => scaled(1e15),
        "1e-30" => scaled(1e-30),
        "denormal" => scaled(1e-42),
        "alternating" => scaled(if step.is_multiple_of(2) { 1e12 } else { 1e-12 }),
        "constant" => vec![1.0; elements],
        "one row" => (0..elements).map(|k| if k / cols == 0 { plain[k] } else { 0.0 }).collect(),
        _ => plain,
    }
}

/// How far a run in single precision may be from one in double precision.
const SPARE: f64 = 0.05;

pub fn case(seed: u64, tally: &mut Tally) {
    let mut random = Random::new(seed);
    let mut narrow = Life::new(&mut random);
    narrow.options = narrow.options.replace("nonfinite=error", "nonfinite=skip");
    narrow.specs.iter_mut().for_each(|spec| spec.dtype = Dtype::F32);
    let wide = Life {
        options: narrow.options.clone(),
        specs: narrow.specs.iter().map(|spec| spec.clone().of(Dtype::F64)).collect(),
    };
    let kind = random.pick(&KINDS);
    let start = random.bits();
    let (mut single, mut double) = (narrow.model(1), wide.model(2));
    let (mut own, mut beside) =
        (narrow.tensors(&mut Random::new(start)), wide.tensors(&mut Random::new(start)));
    for step in 0..30 {
        let bad = random.below(10) == 0;
        let mut grads = Vec::new();
        for spec in &narrow.specs {
            let cols = spec.shape.last().copied().unwrap_or(1) as usize;
            grads.push(values(kind, step, spec.elements(), cols, &mut random));
        }
        if bad {
            let which = random.below(grads.len());
            let at = random.below(grads[which].len());
            grads[which][at] = random.pick(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY]);
        }
        let give = |life: &Life, scale: f64| -> Vec<_> {
            let scaled = |values: &Vec<f64>| values.iter().map(|x| x * scale).collect::<Vec<f64>>();
            life.specs.iter().zip(&grads).map(|(spec, values)| Some(spec.tensor(&scaled(values)))).collect()
        };
        let skipped = single.try_step(&mut own, &give(&narrow, 1.0), StepWith::default());
        let more = if kind == "1e30" { 1e15 } else { 1.0 };
        let beside_skipped = double.try_step(&mut beside, &give(&wide, more), StepWith::default());
        assert_eq!((skipped.clone(), beside_skipped), (Ok(bad), Ok(bad)), "{kind}, {}", narrow.options);
        count(tally, "steps", 2);
        count(tally, "skipped", 2 * u64::from(bad));
    }
    for tensor in own.iter().chain(&beside) {
        assert!(tensor.values().iter().all(|x| x.is_finite()), "{kind}, {}: not finite", narrow.options);
    }
    if kind == "plain" && narrow.options.contains("policy=stale") {
        // Where rounding alone moves an inverse root by more than what is allowed here, its noise floor says so.
        let floor = single.factors().iter().map(|factor| factor.noise_floor).fold(0.0, f64::max);
        if floor > SPARE {
            return count(tally, "noise floor too high", 1);
        }
        for (single, double) in own.iter().zip(&beside) {
            for (x, y) in single.values().iter().zip(double.values()) {
                assert!(
                    (x - y).abs() < SPARE * (1.0 + y.abs()),
                    "f32 {x} beside f64 {y}; {}",
                    narrow.options
                );
            }
        }
        count(tally, "f32 beside f64", 1);
    }
}

fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    4096 * text.split(' ').nth(1).unwrap().parse::<u64>().unwrap()
}

pub fn steady(seed: u64, tally: &mut Tally) {
    let mut random = Random::new(seed);
    let life = Life::new(&mut random);
    let (mut model, mut params) = (life.model(1 + random.below(2)), life.tensors(&mut random));
    let steps = if crate::tier::all() { 10_000 } else { 2_000 };
    let mut early = 0;
    for step in 0..steps {
        life.step(&mut model, &mut params, &mut random);
        if step % 500 == 499 {
            // A sign of life: this one case is long.
            crate::say(".");
        }
        if step == steps / 5 {
            early = resident();
        }
    }
    let late = resident();
    assert!(
        late < early + (1 << 20),
        "{early} bytes resident after a fifth of {steps} steps, {late} after all"
    );
    count(tally, "steps", steps);
}
