//! Stacks: the optimizer without a handle. A stack is a number of equal blocks whose state lies in the
//! caller's buffers, each with the number of the block as its first dimension.
//!
//! A stack is planned as so many parameters of one block each, so that every block has a clock of its own,
//! and the verbs run on the same engine as a step: accumulate, check, apply, one after the other, are a step.

pub mod cache;
mod device;
pub mod ports;
pub mod session;
mod words;

use super::plan::{ParamSpec, Plan, SlotKind};
use crate::config::{Config, Grafting};
use crate::error::{Error, Result};
use crate::preconditioner::{Counters, Gauges};
use crate::tensor::{DType, Precision};

/// Largest order of a block.
pub const MAX_ORDER: usize = 8;
/// Most blocks of a stack, as a guard against an uninitialised count.
pub const MAX_COUNT: usize = 1 << 20;
/// 32-bit words of a clock.
pub const CLOCK_WORDS: usize = 4;
/// 32-bit words of a factor's record.
pub const RECORD_WORDS: usize = (size_of::<Gauges>() + size_of::<Counters>()) / 4;

/// A number of equal blocks.
#[derive(Clone, Debug, PartialEq)]
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
        // Eight bytes an element must stay addressable, of the blocks and of the factors.
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

    /// The plan of the first `count` blocks.
    fn plan(&self, config: &Config, count: usize) -> Result<Plan> {
        let spec = |number| ParamSpec {
            name: format!("block {number}"),
            shape: self.dims.clone(),
            dtype: self.dtype,
            lr_scale: 1.0,
            weight_decay_scale: self.weight_decay_scale,
            root: self.root,
            grafting_only: self.grafting_only,
        };
        Plan::new(config, (0..count).map(spec).collect())
    }

    /// Its state buffers, in the order in which they are given.
    pub fn layout(&self, config: &Config) -> Result<Vec<Buffer>> {
        let plan = self.plan(&normal(config), 1)?;
        let order = plan.blocks[0].factors.len();
        let words = |content, tail: &[usize]| Buffer { content, element: Element::U32, tail: tail.to_vec() };
        let mut layout = vec![words(Content::Clock, &[CLOCK_WORDS])];
        if order > 0 {
            layout.push(words(Content::Record, &[order, RECORD_WORDS]));
        }
        let buffers = plan.slots.iter().map(|slot| Buffer {
            content: Content::Slot(slot.kind, slot.axis),
            element: Element::of(slot.precision),
            tail: slot.dims.clone(),
        });
        layout.extend(buffers);
        // By kind, then by axis; the sort is stable and the plan goes axis by axis.
        layout.sort_by_key(|buffer| buffer.content.rank());
        Ok(layout)
    }
}

/// The configuration as far as it matters to a stack: blocks are neither merged nor cut, nothing fails for
/// a gradient that is not finite, and the learning rate is the caller's.
fn normal(config: &Config) -> Config {
    let default = Config::default();
    Config {
        merge_dims: false,
        max_factor_dim: i64::MAX,
        lr: default.lr,
        nonfinite: default.nonfinite,
        ..config.clone()
    }
}

/// What a state buffer of a stack holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// The clock of every block.
    Clock,
    /// The record of every factor.
    Record,
    /// A buffer of the plan, and its axis if it is a factor's.
    Slot(SlotKind, Option<usize>),
}

impl Content {
    fn rank(self) -> usize {
        match self {
            Content::Clock => 0,
            Content::Record => 1,
            Content::Slot(SlotKind::Statistic, _) => 2,
            Content::Slot(SlotKind::Basis, _) => 3,
            Content::Slot(SlotKind::Spectrum, _) => 4,
            Content::Slot(SlotKind::InverseRoot, _) => 5,
            Content::Slot(SlotKind::Filter, _) => 6,
            Content::Slot(SlotKind::Moment, _) => 7,
            Content::Slot(SlotKind::Momentum, _) => 8,
        }
    }

    /// Its axis, if it is a factor's.
    pub fn axis(self) -> Option<usize> {
        match self {
            Content::Slot(_, axis) => axis,
            _ => None,
        }
    }

    /// Its name, for example `statistic_0`.
    pub fn name(self) -> String {
        match self {
            Content::Clock => "clock".into(),
            Content::Record => "record".into(),
            Content::Slot(kind, Some(axis)) => format!("{}_{axis}", kind.name()),
            Content::Slot(kind, None) => kind.name().into(),
        }
    }
}

/// A state buffer of a stack.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// What it holds.
    pub content: Content,
    /// Type of its elements.
    pub element: Element,
    /// Its dimensions after the first, which is the number of the block.
    pub tail: Vec<usize>,
}

impl Buffer {
    /// Bytes of one block's part.
    pub fn stride(&self) -> usize {
        self.tail.iter().product::<usize>() * self.element.size()
    }
}

/// Type of an element of any buffer that a stack is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// A type that parameters and gradients may have.
    Real(DType),
    /// A signed word.
    I32,
    /// An unsigned word.
    U32,
    /// A byte.
    U8,
}

impl Element {
    /// The element type of a state buffer.
    pub fn of(precision: Precision) -> Element {
        Element::Real(match precision {
            Precision::F32 => DType::F32,
            Precision::F64 => DType::F64,
        })
    }

    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Element::Real(dtype) => dtype.size(),
            Element::I32 | Element::U32 => 4,
            Element::U8 => 1,
        }
    }

    /// Its usual name.
    pub fn name(self) -> &'static str {
        match self {
            Element::Real(dtype) => dtype.name(),
            Element::I32 => "i32",
            Element::U32 => "u32",
            Element::U8 => "u8",
        }
    }
}
