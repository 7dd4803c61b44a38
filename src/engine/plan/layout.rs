//! What a stack's arrays hold: their names, their order, and where they lie in an owned state.

use super::{LISTS, Plan, SlotId};
use crate::config::Config;
use crate::engine::{Clock, grafting};
use crate::error::{Error, Result};
use crate::memory::{copied, filled, push, reserved, whole_text};
use crate::preconditioner::{FactorRecord, Preconditioner};
use crate::tensor::{Element, Precision};
use std::ops::Range;

/// Alignment of every array in an owned state: what a GPU's widest accesses want.
const ARRAY_ALIGNMENT: usize = 256;
/// 32-bit words of a clock.
pub const CLOCK_WORDS: usize = size_of::<Clock>() / 4;
/// 32-bit words of a factor's record.
pub const RECORD_WORDS: usize = size_of::<FactorRecord>() / 4;

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SlotKind {
    /// L or R.
    Statistic,
    /// L or R in the basis, QᵀLQ.
    RotatedStatistic,
    /// Q.
    Basis,
    /// D.
    Spectrum,
    /// (Q (D + ε) Qᵀ)^(−1/p).
    InverseRoot,
    /// (D + ε)^(−1/p), which with the basis takes the place of the inverse root.
    RootSpectrum,
    /// The diagonal of an inverse root whose other numbers lie in the strict upper triangle of the statistic's square
    /// (column-major), of which the statistic has the rest. Both are symmetric.
    RootDiagonal,
    /// D as the last refresh gave it.
    FreshSpectrum,
    /// L or R as it was when a refresh that is under way was asked for.
    PendingStatistic,
    /// The filtered gradient.
    Filter,
    /// The grafted second moment.
    Moment,
    /// The momentum.
    Momentum,
}

impl SlotKind {
    /// Its name in checkpoints and layouts.
    pub fn name(self) -> &'static str {
        match self {
            SlotKind::Statistic => "statistic",
            SlotKind::RotatedStatistic => "rotated_statistic",
            SlotKind::Basis => "basis",
            SlotKind::Spectrum => "spectrum",
            SlotKind::InverseRoot => "inverse_root",
            SlotKind::RootSpectrum => "root_spectrum",
            SlotKind::RootDiagonal => "root_diagonal",
            SlotKind::FreshSpectrum => "fresh_spectrum",
            SlotKind::PendingStatistic => "pending_statistic",
            SlotKind::Filter => "filter",
            SlotKind::Moment => "moment",
            SlotKind::Momentum => "momentum",
        }
    }

    /// Whether a factor's slot of this kind has one number per eigenvalue; else it is a square.
    pub fn is_vector(self) -> bool {
        use SlotKind::{FreshSpectrum, RootDiagonal, RootSpectrum, Spectrum};
        matches!(self, Spectrum | RootSpectrum | RootDiagonal | FreshSpectrum)
    }

    /// What a checkpoint has of it: of a diagonal, the whole matrix.
    pub fn saved(self) -> SlotKind {
        if self == SlotKind::RootDiagonal { SlotKind::InverseRoot } else { self }
    }
}

/// What an array of a stack holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    /// The clock of every block.
    Clock,
    /// The record of every factor.
    Record,
    /// A slot of every block, and its axis if it is a factor's.
    Slot(SlotKind, Option<usize>),
}

impl Content {
    /// Its axis, if it is a factor's.
    pub fn axis(self) -> Option<usize> {
        match self {
            Content::Slot(_, axis) => axis,
            _ => None,
        }
    }

    /// Its name, for example `statistic_0`.
    pub fn name(self) -> Result<String> {
        let kind = match self {
            Content::Clock => "clock",
            Content::Record => "record",
            Content::Slot(kind, _) => kind.name(),
        };
        match self.axis() {
            Some(axis) => whole_text(format_args!("{kind}_{axis}"), "a name"),
            None => whole_text(format_args!("{kind}"), "a name"),
        }
    }
}

/// An array of a stack, as its layout says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Array {
    /// What it holds.
    pub content: Content,
    /// Type of its elements.
    pub element: Element,
    /// Its dimensions after the first, which is the number of the block.
    pub tail: Vec<usize>,
}

impl Array {
    /// An array of numbers.
    pub fn numbers(
        kind: SlotKind,
        axis: Option<usize>,
        precision: Precision,
        tail: &[usize],
    ) -> Result<Array> {
        Array::new(Content::Slot(kind, axis), precision.element(), tail)
    }

    fn new(content: Content, element: Element, tail: &[usize]) -> Result<Array> {
        Ok(Array { content, element, tail: copied(tail, LISTS)? })
    }

    /// A copy of it.
    pub fn copy(&self) -> Result<Array> {
        Array::new(self.content, self.element, &self.tail)
    }

    /// Bytes of one block's part.
    pub fn stride(&self) -> usize {
        self.tail.iter().product::<usize>() * self.element.size()
    }
}

/// The one layout: the arrays of a stack of blocks, in the order in which every call takes them.
pub(super) fn layout(
    config: &Config,
    dims: &[usize],
    statistic: Precision,
    work: Precision,
    preconditioned: bool,
) -> Result<Vec<Array>> {
    let mut arrays = reserved(5 + 6 * dims.len(), LISTS)?;
    arrays.push(Array::new(Content::Clock, Element::U32, &[CLOCK_WORDS])?);
    let preconditioner = Preconditioner::of(config);
    if preconditioned && dims.iter().any(|dim| preconditioner.has_basis(dims.len(), *dim)) {
        arrays.push(Array::new(Content::Record, Element::U32, &[dims.len(), RECORD_WORDS])?);
        preconditioner.arrays(config, dims, statistic, work, &mut arrays)?;
    }
    let moments = [
        (SlotKind::Filter, config.beta1 > 0.0),
        (SlotKind::Moment, grafting::has_moment(config.grafting)),
        (SlotKind::Momentum, config.momentum > 0.0),
    ];
    for (kind, _) in moments.into_iter().filter(|(_, wanted)| *wanted) {
        push(&mut arrays, Array::numbers(kind, None, work, dims)?, LISTS)?;
    }
    Ok(arrays)
}

/// One block's part of an array of numbers.
#[derive(Debug)]
pub struct Slot {
    /// What it holds.
    pub kind: SlotKind,
    /// Its block.
    pub block: usize,
    /// Its axis, for a factor's slot.
    pub axis: Option<usize>,
    /// Precision of its numbers.
    pub precision: Precision,
    /// Its dimensions.
    pub dims: Vec<usize>,
    /// The array that it is part of, and its bytes from the array's start.
    pub place: (usize, usize),
}

impl Slot {
    /// A copy of it.
    pub fn copy(&self) -> Result<Slot> {
        Ok(Slot { dims: copied(&self.dims, LISTS)?, ..*self })
    }

    /// How many numbers it holds.
    pub fn len(&self) -> usize {
        self.dims.iter().product()
    }

    /// Its bytes.
    pub fn bytes(&self) -> usize {
        self.len() * self.precision.size()
    }

    /// Its dimensions in a checkpoint.
    pub fn saved_dims(&self) -> impl Iterator<Item = usize> + '_ {
        let times = if self.kind == SlotKind::RootDiagonal { 2 } else { 1 };
        self.dims.iter().copied().cycle().take(times * self.dims.len())
    }

    /// Its bytes in a checkpoint.
    pub fn saved_bytes(&self) -> usize {
        self.saved_dims().product::<usize>() * self.precision.size()
    }
}

/// A stack: equal blocks, which share every array.
#[derive(Debug)]
pub struct StackPlan {
    /// Its blocks, by their numbers in the plan.
    pub blocks: Vec<usize>,
    /// Its arrays.
    pub layout: Vec<Array>,
    /// Its arrays, counted over all stacks.
    pub arrays: Range<usize>,
}

/// Where an array lies in an owned state.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// First byte.
    pub offset: usize,
    /// Bytes.
    pub bytes: usize,
}

impl Plan {
    /// Numbers the arrays of all stacks and places them in an owned state. Clocks and records come first, so
    /// that a device can bring all of them to the host at once.
    pub(in crate::engine) fn place_arrays(&mut self) -> Result<()> {
        let mut number = 0;
        for stack in &mut self.stacks {
            stack.arrays = number..number + stack.layout.len();
            number = stack.arrays.end;
        }
        self.arrays = filled(Extent { offset: 0, bytes: 0 }, number, LISTS)?;
        let mut end: u128 = 0;
        for head in [Some(Content::Clock), Some(Content::Record), None] {
            for stack in &self.stacks {
                for (array, number) in stack.layout.iter().zip(stack.arrays.clone()) {
                    let is_head = matches!(array.content, Content::Clock | Content::Record);
                    if head.map_or(is_head, |wanted| wanted != array.content) {
                        continue;
                    }
                    let count = stack.blocks.len() as u128;
                    let numbers =
                        array.tail.iter().fold(count, |product, d| product.saturating_mul(*d as u128));
                    let bytes = numbers.saturating_mul(array.element.size() as u128);
                    let place = |x: u128| usize::try_from(x).unwrap_or(usize::MAX);
                    self.arrays[number] = Extent { offset: place(end), bytes: place(bytes) };
                    // Clocks and records stay dense; numbers start where a device likes them to.
                    end = end.saturating_add(bytes);
                    end = if is_head { end } else { end.next_multiple_of(ARRAY_ALIGNMENT as u128) };
                }
            }
            if head == Some(Content::Record) {
                self.head_bytes = usize::try_from(end).unwrap_or(usize::MAX);
                end = end.next_multiple_of(ARRAY_ALIGNMENT as u128);
            }
        }
        self.state_bytes = usize::try_from(end).map_err(|_| Error::out_of_memory("the state", end))?;
        for (number, slot) in self.slots.iter_mut().enumerate() {
            let block = &self.blocks[slot.block];
            let stack = &self.stacks[block.stack];
            // The arrays of numbers follow those of the clocks and records.
            let words = stack.layout.len() - block.slots.len();
            slot.place =
                (stack.arrays.start + words + number - block.slots.start, block.place * slot.bytes());
        }
        Ok(())
    }

    /// The array, counted over all stacks, that holds `content` of the blocks of `stack`.
    pub fn array(&self, stack: usize, content: Content) -> Option<usize> {
        let own = &self.stacks[stack];
        own.layout.iter().position(|array| array.content == content).map(|place| own.arrays.start + place)
    }

    /// The array that a slot is part of, and the slot's bytes from its start.
    pub fn place_of(&self, slot: SlotId) -> (usize, usize) {
        self.slots[slot].place
    }
}
