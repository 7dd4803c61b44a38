//! A run at some step: a handle with the preset `reference` and some options, its parameters, and the random numbers
//! that its next gradients are.

use super::model::{Model, Spec};
use super::random::Random;
use super::tensor::Tensor;

pub struct Run {
    pub specs: Vec<Spec>,
    pub model: Model,
    pub params: Vec<Tensor>,
    pub random: Random,
}

impl Run {
    pub fn new(specs: Vec<Spec>, options: &str, seed: u64) -> Run {
        let mut random = Random::new(seed);
        let params = specs.iter().map(|s| s.tensor(&random.normals(s.elements()))).collect();
        Run { model: Model::new("reference", options, &specs), specs, params, random }
    }

    /// The same at the same step, with other options: its state goes through a checkpoint.
    pub fn moved(&self, options: &str) -> Run {
        let mut model = Model::new("reference", options, &self.specs);
        model.load(&self.model.save()).unwrap();
        Run { specs: self.specs.clone(), model, params: self.params.clone(), random: self.random.clone() }
    }

    /// Steps once; gives the gradients.
    pub fn step(&mut self) -> Vec<Tensor> {
        let gradient = |s: &Spec| s.tensor(&self.random.normals(s.elements()));
        let grads: Vec<Tensor> = self.specs.iter().map(gradient).collect();
        self.model.step(&mut self.params, &grads);
        grads
    }

    pub fn steps(&mut self, count: usize) {
        (0..count).for_each(|_| drop(self.step()));
    }
}
