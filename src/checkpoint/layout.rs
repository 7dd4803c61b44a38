//! Which tensors a state is: what belongs to blocks of one parameter that have the same shape is one tensor
//! whose first dimension counts the blocks.

use super::header::Dtype;
use super::{no_memory, reserved};
use crate::engine::plan::Plan;
use crate::error::Result;
use crate::preconditioner::{Counters, Gauges};
use crate::tensor::Precision;
use std::cmp::Reverse;
use std::fmt;
use std::ops::Range;

/// What a tensor holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Content {
    /// The step of a parameter's clock.
    ClockStep,
    /// The weight of a parameter's clock.
    ClockWeight,
    /// The reals of factors' records.
    Gauges,
    /// The counters of factors' records.
    Counters,
    /// State buffers of this name.
    Slots(&'static str),
}

/// One tensor.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Its parameter.
    pub param: usize,
    /// Which of the parameter's block shapes; the largest is 0.
    pub stack: usize,
    /// Its axis, for what belongs to factors.
    pub axis: Option<usize>,
    /// What it holds.
    pub content: Content,
    /// Element type.
    pub dtype: Dtype,
    /// One for each block, in the blocks' order: positions in [`Layout::slots`] or [`Layout::factors`].
    pub items: Range<usize>,
    /// Bytes of one item.
    pub item: usize,
}

impl Tensor {
    /// Bytes of all items.
    pub fn bytes(&self) -> u64 {
        self.items.len() as u64 * self.item as u64
    }
}

/// All tensors of a state, in the order of the file, and the order of what they are made of.
pub struct Layout {
    /// State buffers, ordered so that every tensor is a range.
    pub slots: Vec<usize>,
    /// Factors, likewise.
    pub factors: Vec<usize>,
    /// The tensors. The wider elements come first, so that all are aligned.
    pub tensors: Vec<Tensor>,
}

/// The element type of a state buffer.
pub fn dtype(precision: Precision) -> Dtype {
    match precision {
        Precision::F32 => Dtype::F32,
        Precision::F64 => Dtype::F64,
    }
}

impl Layout {
    /// The layout for `plan`. It depends on nothing but the parameters and their blocks.
    pub fn new(plan: &Plan) -> Result<Layout> {
        let what = "the list of the checkpoint's tensors";
        let stack = stacks(plan)?;
        let mut slots = reserved(plan.slots.len(), what)?;
        slots.extend(0..plan.slots.len());
        slots.sort_unstable_by_key(|id| {
            let slot = &plan.slots[*id];
            (
                plan.blocks[slot.block].param,
                stack[slot.block],
                slot.axis,
                slot.kind.saved().name(),
                slot.block,
            )
        });
        let mut factors = reserved(plan.factors.len(), what)?;
        factors.extend(0..plan.factors.len());
        factors.sort_unstable_by_key(|id| {
            let factor = &plan.factors[*id];
            (plan.blocks[factor.block].param, stack[factor.block], factor.axis, factor.block)
        });
        let mut tensors: Vec<Tensor> = Vec::new();
        let mut add = |new: Tensor| {
            let same = |t: &Tensor| {
                (t.param, t.stack, t.axis, t.content) == (new.param, new.stack, new.axis, new.content)
            };
            match tensors.last_mut() {
                Some(last) if same(last) => last.items.end += 1,
                _ => {
                    tensors.try_reserve(1).map_err(|_| no_memory(what, 0))?;
                    tensors.push(new);
                }
            }
            Ok(())
        };
        for (at, id) in slots.iter().enumerate() {
            let slot = &plan.slots[*id];
            add(Tensor {
                param: plan.blocks[slot.block].param,
                stack: stack[slot.block],
                axis: slot.axis,
                content: Content::Slots(slot.kind.saved().name()),
                dtype: dtype(slot.precision),
                items: at..at + 1,
                item: slot.saved_bytes(),
            })?;
        }
        for (content, dtype, item) in [
            (Content::Gauges, Dtype::F64, size_of::<Gauges>()),
            (Content::Counters, Dtype::I64, size_of::<Counters>()),
        ] {
            for (at, id) in factors.iter().enumerate() {
                let factor = &plan.factors[*id];
                let (param, stack) = (plan.blocks[factor.block].param, stack[factor.block]);
                let axis = Some(factor.axis);
                add(Tensor { param, stack, axis, content, dtype, items: at..at + 1, item })?;
            }
        }
        for (content, dtype) in [(Content::ClockStep, Dtype::I64), (Content::ClockWeight, Dtype::F64)] {
            for param in 0..plan.params.len() {
                add(Tensor { param, stack: 0, axis: None, content, dtype, items: 0..1, item: 8 })?;
            }
        }
        tensors.sort_unstable_by_key(|t| (Reverse(t.dtype.size()), t.param, t.stack, t.axis, t.content));
        Ok(Layout { slots, factors, tensors })
    }

    /// Calls `each` with every size of a tensor's shape; `fields` is the number of a record's fields.
    pub fn shape(&self, plan: &Plan, tensor: &Tensor, mut each: impl FnMut(usize)) {
        each(tensor.items.len());
        match tensor.content {
            Content::ClockStep | Content::ClockWeight => {}
            Content::Gauges => each(Gauges::FIELDS.len()),
            Content::Counters => each(Counters::FIELDS.len()),
            Content::Slots(_) => plan.slots[self.slots[tensor.items.start]].saved_dims().for_each(each),
        }
    }
}

/// For every block, which of its parameter's block shapes it has.
fn stacks(plan: &Plan) -> Result<Vec<usize>> {
    let what = "the list of the checkpoint's tensors";
    let mut order: Vec<usize> = reserved(plan.blocks.len(), what)?;
    order.extend(0..plan.blocks.len());
    let shape = |id: usize| (plan.blocks[id].param, Reverse(&plan.blocks[id].dims));
    order.sort_unstable_by(|a, b| shape(*a).cmp(&shape(*b)));
    let mut stack = reserved(plan.blocks.len(), what)?;
    stack.resize(plan.blocks.len(), 0);
    for pair in order.windows(2) {
        let (before, block) = (&plan.blocks[pair[0]], &plan.blocks[pair[1]]);
        if before.param == block.param {
            stack[pair[1]] = stack[pair[0]] + usize::from(before.dims != block.dims);
        }
    }
    Ok(stack)
}

/// A tensor's name.
pub struct Name<'a>(pub &'a Plan, pub &'a Tensor);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Name(plan, tensor) = self;
        f.write_str(&plan.params[tensor.param].spec.name)?;
        let content = match tensor.content {
            Content::ClockStep => return f.write_str("/clock.step"),
            Content::ClockWeight => return f.write_str("/clock.weight"),
            Content::Gauges => "gauges",
            Content::Counters => "counters",
            Content::Slots(name) => name,
        };
        write!(f, "/stack{}", tensor.stack)?;
        if let Some(axis) = tensor.axis {
            write!(f, "/axis{axis}")?;
        }
        write!(f, "/{content}")
    }
}
