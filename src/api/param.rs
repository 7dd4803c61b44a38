//! The description of a parameter, given once at creation.

use super::engine::ParamSpec;
use crate::error::{Error, Result};
use crate::tensor::DType;

/// One parameter of the model: its name, its shape, and what it does differently from the others.
///
/// ```
/// use foam::{DType, Param};
///
/// let weight = Param::new("encoder.weight", &[64, 10]);
/// let bias = Param::new("encoder.bias", &[10]).weight_decay_scale(0.0);
/// let table = Param::new("embedding", &[1000, 16]).dtype(DType::Bf16).grafting_only();
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Param {
    spec: ParamSpec,
}

impl Param {
    /// An f32 parameter called `name` with the sizes `shape` (none for a scalar). Names are unique within an
    /// optimizer; checkpoints find a parameter by its name.
    pub fn new(name: impl Into<String>, shape: &[usize]) -> Param {
        Param { spec: ParamSpec::new(name.into(), shape.to_vec()) }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Its sizes.
    pub fn shape(&self) -> &[usize] {
        &self.spec.shape
    }

    /// The type of the parameter's elements; its gradients may have another.
    pub fn dtype(mut self, dtype: DType) -> Param {
        self.spec.dtype = dtype;
        self
    }

    /// Multiplies the learning rate; greater than 0.
    pub fn lr_scale(mut self, scale: f64) -> Param {
        self.spec.lr_scale = scale;
        self
    }

    /// Multiplies the weight decay; 0 switches it off.
    pub fn weight_decay_scale(mut self, scale: f64) -> Param {
        self.spec.weight_decay_scale = scale;
        self
    }

    /// p of the parameter's inverse roots; 0 (the default) takes the configuration's.
    pub fn root(mut self, root: f64) -> Param {
        self.spec.root = root;
        self
    }

    /// No preconditioner: the parameter takes the grafted method's step. For embeddings, or whatever you know
    /// should not be preconditioned.
    pub fn grafting_only(mut self) -> Param {
        self.spec.grafting_only = true;
        self
    }

    /// The parameter as the engine takes it: its size is addressable and not zero.
    pub(super) fn checked(self, index: usize) -> Result<ParamSpec> {
        let name = &self.spec.name;
        let refuse = |what: String| Error::invalid(format!("parameter '{name}' ({index}): {what}")).at(index);
        if name.is_empty() {
            return Err(refuse(format!("name is empty; expected a name")));
        }
        let mut elements = 1usize;
        for (axis, size) in self.spec.shape.iter().enumerate() {
            if *size == 0 {
                return Err(refuse(format!("shape[{axis}] = 0: expected at least 1")).on_axis(axis));
            }
            // Eight bytes per element must stay addressable.
            elements =
                elements.checked_mul(*size).filter(|n| *n <= isize::MAX as usize / 8).ok_or_else(|| {
                    refuse(format!("shape overflows at axis {axis}; expected an addressable size"))
                        .on_axis(axis)
                })?;
        }
        Ok(self.spec)
    }
}
