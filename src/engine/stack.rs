//! A stack as a caller declares it: a number of equal blocks whose state lies in the caller's arrays, each with
//! the number of the block as its first dimension.

use super::plan::{Array, ParamSpec, Plan};
use crate::config::{Config, Grafting};
use crate::error::{Error, Result};
use crate::memory::{copied, tried, whole_text};
use crate::tensor::DType;

/// Largest order of a block.
pub const MAX_ORDER: usize = 8;
/// Most blocks of a stack, as a guard against an uninitialised count.
pub const MAX_COUNT: usize = 1 << 20;

/// A number of equal blocks.
#[derive(Debug, PartialEq)]
pub struct Stack {
    /// Sizes of a block's axes.
    pub dims: Vec<usize>,
    /// Blocks.
    pub count: usize,
    /// Type of the parameters' elements.
    pub dtype: DType,
    /// Multiplies the weight decay.
    pub weight_decay_scale: f64,
    /// p of the inverse roots; 0 for the configuration's.
    pub root: f64,
    /// No preconditioner: the grafted method alone.
    pub grafting_only: bool,
}

impl Stack {
    /// Checks the sizes and the relations to `config`.
    pub fn validate(&self, config: &Config) -> Result<()> {
        let refuse = |what: String| Err(Error::invalid(format!("stack.{what}")));
        if self.dims.is_empty() || self.dims.len() > MAX_ORDER {
            return refuse(format!("ndim = {}: expected 1 <= ndim <= {MAX_ORDER}", self.dims.len()));
        }
        if self.count == 0 || self.count > MAX_COUNT {
            return refuse(format!("count = {}: expected 1 <= count <= {MAX_COUNT}", self.count));
        }
        if let Some(axis) = self.dims.iter().position(|d| *d == 0) {
            return refuse(format!("shape[{axis}] = 0: expected at least 1"));
        }
        // Eight bytes per element must stay addressable, of the blocks and of the factors.
        let elements = self.dims.iter().fold(self.count as u128, |all, d| all.saturating_mul(*d as u128));
        let squares = self.dims.iter().map(|d| (*d as u128).pow(2)).max().unwrap_or(0);
        let largest = elements.max(squares.saturating_mul(self.count as u128));
        if largest > (isize::MAX as u128) / 64 {
            return refuse(format!("shape {:?} overflows; expected an addressable size", self.dims));
        }
        if !(self.weight_decay_scale.is_finite() && self.weight_decay_scale >= 0.0) {
            return refuse(format!(
                "weight_decay_scale = {}: expected a number >= 0",
                self.weight_decay_scale
            ));
        }
        if !(self.root.is_finite() && self.root >= 0.0) {
            return refuse(format!(
                "root = {}: expected a number >= 0, 0 for the configuration's",
                self.root
            ));
        }
        if self.grafting_only && config.grafting == Grafting::None {
            return refuse(
                "flags has FOAM_STACK_GRAFTING_ONLY but grafting = none; expected sgd, adagrad, rmsprop or adam"
                    .into(),
            );
        }
        Ok(())
    }

    /// The plan of `count` blocks: as many parameters of one block each, so that every block has a clock of its own.
    pub(super) fn plan(&self, config: &Config, count: usize) -> Result<Plan> {
        let spec = |number| -> Result<ParamSpec> {
            Ok(ParamSpec {
                name: whole_text(format_args!("block {number}"), "a name")?,
                shape: copied(&self.dims, "the blocks")?,
                dtype: self.dtype,
                lr_scale: 1.0,
                weight_decay_scale: self.weight_decay_scale,
                root: self.root,
                grafting_only: self.grafting_only,
                shard: None,
            })
        };
        Plan::new(config, tried((0..count).map(spec), "the blocks")?)
    }

    /// A copy of it.
    pub fn copy(&self) -> Result<Stack> {
        Ok(Stack { dims: copied(&self.dims, "the blocks")?, ..*self })
    }

    /// The arrays of its state, in the order in which they are given.
    pub fn layout(&self, config: &Config) -> Result<Vec<Array>> {
        Ok(self.plan(&normal(config), 1)?.stacks.swap_remove(0).layout)
    }
}

/// The configuration as far as it matters to a stack: blocks are neither merged nor cut, nothing fails for
/// a gradient that is not finite, and the learning rate is the caller's.
pub(super) fn normal(config: &Config) -> Config {
    let default = Config::reference();
    Config {
        merge_dims: false,
        max_factor_dim: i64::MAX,
        lr: default.lr,
        nonfinite: default.nonfinite,
        ..config.clone()
    }
}
