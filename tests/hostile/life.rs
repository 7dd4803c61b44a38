//! A model of random shapes, types and options: what the parts of the campaign mistreat.

use crate::support::model::{Model, Spec, StepWith, configuration, without_checksums};
use crate::support::random::Random;
use crate::support::tensor::{Dtype, Tensor};
use foam::abi::*;

/// What a model is made from.
pub struct Life {
    pub options: String,
    pub specs: Vec<Spec>,
}

impl Life {
    /// A random one; small, so that many fit into a second.
    pub fn new(random: &mut Random) -> Life {
        let dtypes = [Dtype::F32, Dtype::F64, Dtype::Bf16, Dtype::F16];
        let specs = (0..1 + random.below(3)).map(|number| {
            let shape: Vec<i64> = (0..random.below(4)).map(|_| 1 + random.below(24) as i64).collect();
            let mut spec = Spec::new(&format!("p{number}"), &shape).of(random.pick(&dtypes));
            spec.grafting_only = random.below(8) == 0;
            spec.root = random.pick(&[0.0, 0.0, 2.0, 4.0]);
            spec
        });
        let specs = specs.collect();
        let policies = [
            "foam",
            "stale",
            "foam_fixed_epsilon",
            "foam_no_refresh",
            "diagonal_residual",
            "foam_certified",
            "sandwich",
        ];
        let options = format!(
            "policy={} check_period={} beta2={} momentum={} tau={} grafting={} max_factor_dim={} merge_dims={} \
             weight_decay={} epsilon=1e-6 epsilon_max=1e-3 lr=0.01 nonfinite={}",
            random.pick(&policies),
            1 + random.below(4),
            random.pick(&["0.9", "0.99", "1"]),
            random.pick(&["0", "0.5"]),
            random.pick(&["0.05", "0.3", "2"]),
            random.pick(&["adam", "sgd", "rmsprop", "adagrad"]),
            random.pick(&["4", "16", "1024"]),
            random.pick(&["true", "false"]),
            random.pick(&["0", "0.01"]),
            random.pick(&["error", "skip"]),
        );
        Life { options, specs }
    }

    /// A model on some number of threads.
    pub fn model(&self, threads: usize) -> Model {
        Model::new("reference", &format!("{} num_threads={threads}", self.options), &self.specs)
    }

    /// Its configuration.
    pub fn config(&self, threads: usize) -> foam_config {
        configuration("reference", &format!("{} num_threads={threads}", self.options)).unwrap()
    }

    /// Random tensors, one per parameter.
    pub fn tensors(&self, random: &mut Random) -> Vec<Tensor> {
        self.specs.iter().map(|spec| spec.tensor(&random.normals(spec.elements()))).collect()
    }

    /// The parameters and the model after `steps` steps whose gradients follow from `seed`.
    pub fn run(&self, threads: usize, steps: usize, seed: u64) -> (Model, Vec<Tensor>) {
        let mut random = Random::new(seed);
        let (mut model, mut params) = (self.model(threads), self.tensors(&mut random));
        for _ in 0..steps {
            self.step(&mut model, &mut params, &mut random);
        }
        (model, params)
    }

    /// One step with random gradients.
    pub fn step(&self, model: &mut Model, params: &mut [Tensor], random: &mut Random) {
        let grads: Vec<_> = self.tensors(random).into_iter().map(Some).collect();
        assert_eq!(model.try_step(params, &grads, StepWith::default()), Ok(false), "{}", self.options);
    }
}

/// The state of a model, whatever the number of its threads, of which the head of a checkpoint tells.
pub fn state(model: &Model) -> Vec<u8> {
    let mut bytes = without_checksums(model.save());
    let text = b"num_threads\\\":\\\"";
    let at = bytes.windows(text.len()).position(|window| window == text).expect("the head tells the threads");
    bytes[at + text.len()] = b'0';
    bytes
}
