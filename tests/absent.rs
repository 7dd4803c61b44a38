//! A parameter without a gradient takes no part in a step: it stands still, with its own clock, and later goes on
//! as if that step had not existed.

use crate::support::POLICIES;
use crate::support::model::{Model, Spec, StepWith};
use crate::support::random::Random;
use crate::support::tensor::{Dtype, Tensor};
use foam::abi::foam_factor_info;

const OPTIONS: &str = "check_period=3 beta2=0.8 max_factor_dim=5 merge_dims=false tau=0.2 epsilon=1e-4 \
                       epsilon_max=1e-2 lr=0.1 momentum=0.5";

fn specs() -> Vec<Spec> {
    let shapes: [(&str, &[i64], Dtype); 4] = [
        ("always", &[4, 3], Dtype::F32),
        ("sometimes", &[7, 6], Dtype::F32),
        ("rarely", &[4], Dtype::Bf16),
        ("never", &[3, 3], Dtype::F64),
    ];
    shapes.iter().map(|(name, shape, dtype)| Spec::new(name, shape).of(*dtype)).collect()
}

/// Whether parameter `index` has a gradient at step `t`.
fn takes_part(index: usize, t: usize) -> bool {
    match index {
        0 => true,
        1 => !matches!(t % 7, 2 | 3 | 5),
        2 => t % 5 == 1,
        _ => false,
    }
}

fn factors_of(model: &Model, index: usize) -> Vec<foam_factor_info> {
    model.factors().into_iter().filter(|f| f.param_index == index as i64).collect()
}

/// The tensors of one parameter in a checkpoint, name and bytes; names start with the parameter's.
fn state_of(model: &Model, name: &str) -> Vec<(String, Vec<u8>)> {
    let bytes = model.save();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut own: Vec<_> =
        file.tensors().into_iter().filter(|t| t.0.starts_with(&format!("{name}/"))).collect();
    own.sort_by(|a, b| a.0.cmp(&b.0));
    own.into_iter().map(|(key, view)| (key, view.data().to_vec())).collect()
}

#[test]
fn a_parameter_without_a_gradient_stands_still_while_others_move() {
    for policy in POLICIES {
        let specs = specs();
        let mut model = Model::new("reference", &format!("{OPTIONS} policy={policy}"), &specs);
        let mut random = Random::new(41);
        let mut params: Vec<Tensor> = specs.iter().map(|s| s.tensor(&random.normals(s.elements()))).collect();
        for t in 1..=30 {
            let grads: Vec<Option<Tensor>> = (0..specs.len())
                .map(|i| takes_part(i, t).then(|| specs[i].tensor(&random.normals(specs[i].elements()))))
                .collect();
            let before = params.clone();
            let statistics: Vec<_> =
                (0..specs.len()).map(|i| format!("{:?}", factors_of(&model, i))).collect();
            let states: Vec<_> = specs.iter().map(|s| state_of(&model, &s.name)).collect();
            assert_eq!(model.try_step(&mut params, &grads, StepWith::default()), Ok(false));
            for (i, spec) in specs.iter().enumerate() {
                let case = format!("{policy}, step {t}, parameter '{}'", spec.name);
                if takes_part(i, t) {
                    assert!(params[i] != before[i], "{case} did not move");
                    assert!(state_of(&model, &spec.name) != states[i], "{case}: its state did not move");
                } else {
                    assert!(params[i] == before[i], "{case} moved");
                    assert_eq!(format!("{:?}", factors_of(&model, i)), statistics[i], "{case}");
                    assert!(state_of(&model, &spec.name) == states[i], "{case}: its state moved");
                }
            }
        }
        assert!(factors_of(&model, 3).iter().all(|f| f.checks == 0 && f.proxy.is_nan()));
    }
}

#[test]
fn a_parameter_that_misses_steps_evolves_as_if_they_had_not_existed() {
    for policy in POLICIES {
        let options = format!("{OPTIONS} policy={policy}");
        let specs = specs();
        let mut model = Model::new("reference", &options, &specs);
        let start = |s: &Spec| s.tensor(&Random::new(s.elements() as u64).normals(s.elements()));
        let mut params: Vec<Tensor> = specs.iter().map(start).collect();
        let mut random = Random::new(42);
        let mut taken: Vec<Vec<Tensor>> = vec![Vec::new(); specs.len()];
        for t in 1..=40 {
            let mut grads = Vec::new();
            for (i, spec) in specs.iter().enumerate() {
                let gradient = spec.tensor(&random.normals(spec.elements()));
                grads.push(takes_part(i, t).then_some(gradient));
                taken[i].extend(grads[i].clone());
            }
            model.try_step(&mut params, &grads, StepWith::default()).unwrap();
        }
        for (i, spec) in specs.iter().enumerate() {
            let case = format!("{policy}, parameter '{}'", spec.name);
            let mut alone = Model::new("reference", &options, std::slice::from_ref(spec));
            let mut own = [start(spec)];
            taken[i].iter().for_each(|g| alone.step(&mut own, std::slice::from_ref(g)));
            assert!(own[0] == params[i], "{case}: other numbers");
            assert!(state_of(&alone, &spec.name) == state_of(&model, &spec.name), "{case}: another state");
            let statistics = |model: &Model, index: usize| -> Vec<String> {
                let same = |f: foam_factor_info| format!("{:?}", foam_factor_info { param_index: 0, ..f });
                factors_of(model, index).into_iter().map(same).collect()
            };
            assert_eq!(statistics(&alone, 0), statistics(&model, i), "{case}");
        }
    }
}

#[test]
fn a_step_without_any_gradient_changes_nothing_but_the_count_of_steps() {
    let specs = specs();
    let mut model = Model::new("reference", OPTIONS, &specs);
    let mut random = Random::new(43);
    let mut params: Vec<Tensor> = specs.iter().map(|s| s.tensor(&random.normals(s.elements()))).collect();
    let grads: Vec<Tensor> = specs.iter().map(|s| s.tensor(&random.normals(s.elements()))).collect();
    (0..4).for_each(|_| model.step(&mut params, &grads));
    let (before, statistics) = (params.clone(), format!("{:?}", model.factors()));
    let states: Vec<_> = specs.iter().map(|s| state_of(&model, &s.name)).collect();
    assert_eq!(model.try_step(&mut params, &[const { None }; 4], StepWith::default()), Ok(false));
    assert!(params == before);
    assert_eq!(format!("{:?}", model.factors()), statistics);
    assert!(specs.iter().zip(&states).all(|(s, state)| state_of(&model, &s.name) == *state));
    assert_eq!(model.stats().steps, 5);
}
