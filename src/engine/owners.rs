//! Who works on which block: the cost of a block, an owner for each, and the part of a plan that one rank keeps.

use super::plan::{Array, BlockPlan, CLOCK_WORDS, Plan, RECORD_WORDS, Shard, StackPlan, row_major_strides};
use crate::config::{Config, Policy};
use crate::error::{Error, Result};
use crate::memory::{filled, listed, push, tried};
use std::cmp::Reverse;
use std::collections::HashMap;

/// What a step does with an element beside the products (moments, grafting, the update), which moves memory, in
/// multiplications of a product that take as long.
const ELEMENT: u64 = 128;

/// What lists of owners are called where there is no memory for them.
const OWNERS: &str = "the owners of blocks";

/// The work on a block, in multiplications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The products of a step.
    pub step: u64,
    /// What a check that keeps the basis adds.
    pub check: u64,
    /// What a refresh adds.
    pub refresh: u64,
}

impl Cost {
    /// The cost of `block`.
    pub fn of(block: &BlockPlan) -> Cost {
        let elements = block.elements as u64;
        if block.factors.is_empty() {
            return Cost { step: elements, check: 0, refresh: 0 };
        }
        let sides: u64 = block.dims.iter().map(|dim| *dim as u64).sum();
        let cubes =
            block.dims.iter().fold(0u64, |sum, dim| sum.saturating_add((*dim as u64).saturating_pow(3)));
        Cost {
            step: elements.saturating_mul(sides).saturating_mul(2),
            check: cubes.saturating_mul(3),
            refresh: cubes.saturating_mul(10),
        }
    }

    /// The work of a plain step: the products, and what is done with every element beside them.
    fn plain(&self, block: &BlockPlan) -> u64 {
        self.step.saturating_add(ELEMENT.saturating_mul(block.elements as u64))
    }

    /// What a check adds on average: a part of the checks refreshes, a quarter if a policy decides about it. In whole
    /// numbers, so that every machine finds the same.
    fn at_check(&self, config: &Config) -> u64 {
        let share = if config.policy == Policy::Stale { 1 } else { 4 };
        self.check.saturating_add(self.refresh / share)
    }

    /// The cost of a step of `block` on average: every `check_period`-th step checks.
    pub fn per_step(&self, block: &BlockPlan, config: &Config) -> u64 {
        self.plain(block).saturating_add(self.at_check(config) / config.check_period.max(1) as u64).max(1)
    }
}

/// Bytes of every block's state, without alignment.
pub fn state_bytes(plan: &Plan) -> Result<Vec<u64>> {
    let words = |block: &BlockPlan| 4 * (CLOCK_WORDS + RECORD_WORDS * block.factors.len()) as u64;
    let mut bytes = listed(plan.blocks.iter().map(words), "the list of blocks")?;
    for slot in &plan.slots {
        bytes[slot.block] += slot.bytes() as u64;
    }
    Ok(bytes)
}

/// What a rank has to do, and to keep.
#[derive(Clone, Copy, Default)]
struct Load {
    /// In a plain step.
    plain: u64,
    /// In a step that checks.
    checked: u64,
    /// Bytes of state.
    bytes: u64,
}

impl Load {
    fn with(self, other: Load) -> Load {
        Load {
            plain: self.plain.saturating_add(other.plain),
            checked: self.checked.saturating_add(other.checked),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    /// The work of all steps from one check to the next.
    fn per_period(self, plain_steps: u64) -> u128 {
        u128::from(plain_steps) * u128::from(self.plain) + u128::from(self.checked)
    }
}

/// The owner of every block among `ranks`. All ranks wait for the one with the most work in every step: from one
/// check to the next a step takes (f - 1) times the largest plain work and once the largest work with a check. Each
/// block, the longest plain work first, goes to the rank that makes this time the least, and among equals to the one
/// with the least work so far, as long as it has room: a quarter above the mean of the bytes, or one block.
pub fn owners(config: &Config, plan: &Plan, ranks: usize) -> Result<Vec<u32>> {
    let mut found = filled(0, plan.blocks.len(), OWNERS)?;
    if ranks <= 1 {
        return Ok(found);
    }
    let bytes = state_bytes(plan)?;
    let load = |(block, bytes): (&BlockPlan, &u64)| {
        let cost = Cost::of(block);
        let plain = cost.plain(block);
        Load { plain, checked: plain.saturating_add(cost.at_check(config)), bytes: *bytes }
    };
    let own = listed(plan.blocks.iter().zip(&bytes).map(load), OWNERS)?;
    let mean = bytes.iter().fold(0u64, |sum, b| sum.saturating_add(*b)) / ranks as u64;
    let room = (mean + mean / 4).max(bytes.iter().copied().max().unwrap_or(0));
    let plain_steps = config.check_period.max(1) as u64 - 1;
    let mut order = listed(0..plan.blocks.len(), OWNERS)?;
    order.sort_unstable_by_key(|block| (Reverse((own[*block].plain, own[*block].checked)), *block));
    let mut loads = filled(Load::default(), ranks, OWNERS)?;
    let mut most = Load::default();
    for block in order {
        let with = |rank: usize| loads[rank].with(own[block]);
        let time = |rank: &usize| {
            let (before, after) = (loads[*rank], with(*rank));
            let (plain, checked) = (most.plain.max(after.plain), most.checked.max(after.checked));
            let longest = Load { plain, checked, bytes: 0 }.per_period(plain_steps);
            (longest, before.per_period(plain_steps), before.bytes, *rank)
        };
        let least = (0..ranks).filter(|rank| with(*rank).bytes <= room).min_by_key(time);
        // The mean is below the room, so that somebody has room for all but the largest blocks.
        let rank = least.or_else(|| (0..ranks).min_by_key(|rank| (loads[*rank].bytes, *rank))).unwrap_or(0);
        found[block] = rank as u32;
        loads[rank] = with(rank);
        most.plain = most.plain.max(loads[rank].plain);
        most.checked = most.checked.max(loads[rank].checked);
    }
    Ok(found)
}

/// No block of the local plan.
pub const ELSEWHERE: usize = usize::MAX;

impl Plan {
    /// The part of the plan whose blocks `rank` owns, with all parameters, and for every block of the whole its
    /// number in the part. The blocks of `staged` parameters lie in memory of their own, one run each.
    pub fn part(
        &self,
        owners: &[u32],
        rank: usize,
        staged: impl Fn(usize) -> bool,
    ) -> Result<(Plan, Vec<usize>)> {
        let mut part = Plan { preconditioner: self.preconditioner, ..Plan::default() };
        let mut places = filled(ELSEWHERE, self.blocks.len(), OWNERS)?;
        let mut stacks: HashMap<(usize, bool), usize> = HashMap::new();
        for (index, param) in self.params.iter().enumerate() {
            let (first_block, first_factor) = (part.blocks.len(), part.factors.len());
            for number in param.blocks.clone().filter(|block| owners[*block] as usize == rank) {
                let mut block = self.blocks[number].copy()?;
                let here = part.blocks.len();
                places[number] = here;
                let (slots, factors) = (block.slots.clone(), block.factors.clone());
                let (first_slot, own_factor) = (part.slots.len(), part.factors.len());
                let moved = |slot: usize| slot - slots.start + first_slot;
                for slot in slots.clone() {
                    let mut slot = self.slots[slot].copy()?;
                    slot.block = here;
                    push(&mut part.slots, slot, OWNERS)?;
                }
                for factor in factors {
                    let mut factor = self.factors[factor].clone();
                    factor.block = here;
                    for slot in [
                        &mut factor.statistic,
                        &mut factor.basis,
                        &mut factor.spectrum,
                        &mut factor.inverse_root,
                        &mut factor.root_spectrum,
                        &mut factor.root_diagonal,
                        &mut factor.fresh_spectrum,
                        &mut factor.pending_statistic,
                    ] {
                        *slot = slot.map(moved);
                    }
                    push(&mut part.factors, factor, OWNERS)?;
                }
                for slot in [&mut block.filter, &mut block.moment, &mut block.momentum] {
                    *slot = slot.map(moved);
                }
                block.slots = first_slot..part.slots.len();
                block.factors = own_factor..part.factors.len();
                if staged(index) {
                    block.strides = row_major_strides(&block.dims)?;
                }
                let kind = (block.stack, staged(index));
                if !stacks.contains_key(&kind) {
                    let layout = tried(self.stacks[block.stack].layout.iter().map(Array::copy), OWNERS)?;
                    let stack = StackPlan { blocks: Vec::new(), layout, arrays: 0..0 };
                    push(&mut part.stacks, stack, OWNERS)?;
                    stacks.try_reserve(1).map_err(|_| Error::out_of_memory(OWNERS, 1))?;
                    stacks.insert(kind, part.stacks.len() - 1);
                }
                block.stack = stacks[&kind];
                let own = &mut part.stacks[block.stack].blocks;
                block.place = own.len();
                push(own, here, OWNERS)?;
                push(&mut part.blocks, block, OWNERS)?;
            }
            let mut own = param.copy()?;
            own.blocks = first_block..part.blocks.len();
            own.factors = first_factor..part.factors.len();
            push(&mut part.params, own, OWNERS)?;
        }
        part.place_arrays()?;
        Ok((part, places))
    }
}

/// A piece of a parameter that the same ranks hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First place of the axis.
    pub start: usize,
    /// Places.
    pub length: usize,
    /// Who holds it, in ascending order.
    pub holders: Vec<u32>,
}

/// How a parameter is cut along one axis.
#[derive(Clone, Debug)]
pub struct Cuts {
    /// Elements of one place of the axis.
    inner: usize,
    /// Places of the axis.
    size: usize,
    /// The pieces, which fill the axis one behind the other.
    pub pieces: Vec<Piece>,
}

/// Consecutive elements of a block that lie in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The piece.
    pub piece: usize,
    /// First element within the tensor of who holds the piece.
    pub held: usize,
    /// First element within the block.
    pub block: usize,
    /// Elements.
    pub len: usize,
}

fn on_no_rank(begin: usize, end: usize, axis: usize) -> Error {
    Error::invalid(format!("has places {begin} to {end} of axis {axis} on no rank"))
}

impl Cuts {
    /// The cuts of a parameter of this shape of which rank `r` holds `shards[r]`; none if all hold all of it. The
    /// error says which part nobody holds, or who hold overlapping ones.
    pub fn new(shape: &[usize], shards: &[Option<Shard>]) -> Result<Option<Cuts>> {
        let Some(axis) = shards.iter().flatten().map(|shard| shard.axis).next() else { return Ok(None) };
        let size = shape[axis];
        let mut parts: Vec<(usize, usize, u32)> = Vec::new();
        for (rank, shard) in shards.iter().enumerate() {
            let whole = Shard { axis, start: 0, length: size };
            let shard = shard.unwrap_or(whole);
            if shard.axis != axis {
                return Err(Error::invalid(format!(
                    "is cut along axis {} on rank {rank}; expected axis {axis}, as on the ranks before",
                    shard.axis
                )));
            }
            if shard.length > 0 {
                push(&mut parts, (shard.start, shard.length, rank as u32), OWNERS)?;
            }
        }
        parts.sort_unstable();
        let mut pieces: Vec<Piece> = Vec::new();
        for (start, length, rank) in parts {
            let end = pieces.last().map_or(0, |piece| piece.start + piece.length);
            match pieces.last_mut() {
                Some(last) if (last.start, last.length) == (start, length) => {
                    push(&mut last.holders, rank, OWNERS)?;
                }
                _ if start == end => {
                    let holders = filled(rank, 1, OWNERS)?;
                    push(&mut pieces, Piece { start, length, holders }, OWNERS)?;
                }
                _ if start > end => return Err(on_no_rank(end, start, axis)),
                last => {
                    let other = last.map_or(0, |last| last.holders[0]);
                    return Err(Error::invalid(format!(
                        "has overlapping parts of axis {axis} on ranks {other} and {rank}; expected equal parts or disjoint ones"
                    )));
                }
            }
        }
        let end = pieces.last().map_or(0, |piece| piece.start + piece.length);
        if end != size {
            return Err(on_no_rank(end, size, axis));
        }
        if let [all] = &pieces[..]
            && all.holders.len() == shards.len()
        {
            return Ok(None);
        }
        Ok(Some(Cuts { inner: shape[axis + 1..].iter().product(), size, pieces }))
    }

    /// Visits the segments of `block` (of the whole plan) in the order of its elements.
    pub fn segments(&self, block: &BlockPlan, mut visit: impl FnMut(Segment) -> Result<()>) -> Result<()> {
        let slice = self.size * self.inner;
        rows(block, |tensor, at, len| {
            let (mut first, mut at) = (tensor, at);
            let end = tensor + len;
            while first < end {
                let (outer, place) = (first / slice, first / self.inner % self.size);
                // The pieces fill the axis, so that one of them has the place.
                let piece = self.pieces.partition_point(|piece| piece.start + piece.length <= place);
                let own = &self.pieces[piece];
                let begin = outer * slice + own.start * self.inner;
                let len = (begin + own.length * self.inner).min(end) - first;
                let held = outer * own.length * self.inner + first - begin;
                visit(Segment { piece, held, block: at, len })?;
                first += len;
                at += len;
            }
            Ok(())
        })
    }

    /// Who sends a piece of block `number` to its owner: the owner itself if it can, else the holders in turn.
    pub fn source(&self, piece: usize, number: usize, owner: u32) -> u32 {
        let holders = &self.pieces[piece].holders;
        if holders.contains(&owner) { owner } else { holders[number % holders.len()] }
    }
}

/// Visits the runs of a block within its parameter: first element there, first element in the block, elements.
pub fn rows(block: &BlockPlan, mut visit: impl FnMut(usize, usize, usize) -> Result<()>) -> Result<()> {
    if block.is_run {
        return visit(block.offset, 0, block.elements);
    }
    let outer = block.dims.len() - 1;
    let cols = block.dims[outer];
    for row in 0..block.elements / cols {
        let (mut rest, mut first) = (row, block.offset);
        for axis in (0..outer).rev() {
            first += (rest % block.dims[axis]) * block.strides[axis];
            rest /= block.dims[axis];
        }
        visit(first, row * cols, cols)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::plan::ParamSpec;

    fn plan(shapes: &[&[usize]], limit: i64) -> (Config, Plan) {
        let config = Config { max_factor_dim: limit, ..Config::reference() };
        let spec = |(number, shape): (usize, &&[usize])| ParamSpec::new(format!("w{number}"), shape.to_vec());
        let specs = shapes.iter().enumerate().map(spec).collect();
        let plan = Plan::new(&config, specs).unwrap();
        (config, plan)
    }

    #[test]
    fn owners_share_work_and_bytes() {
        let (config, plan) = plan(&[&[200, 300], &[77, 40], &[500], &[64, 64]], 32);
        let bytes = state_bytes(&plan).unwrap();
        for ranks in 1..6 {
            let owners = owners(&config, &plan, ranks).unwrap();
            let sum = |rank: usize, of: &dyn Fn(usize) -> u64| -> u64 {
                (0..owners.len()).filter(|b| owners[*b] as usize == rank).map(of).sum()
            };
            let cost = |block: usize| Cost::of(&plan.blocks[block]).per_step(&plan.blocks[block], &config);
            for of in [&cost as &dyn Fn(usize) -> u64, &|block| bytes[block]] {
                let loads: Vec<u64> = (0..ranks).map(|rank| sum(rank, of)).collect();
                let mean = loads.iter().sum::<u64>() as f64 / ranks as f64;
                let largest = *loads.iter().max().unwrap() as f64;
                assert!(largest <= 1.1 * mean, "{ranks} ranks: {loads:?}");
            }
        }
    }

    #[test]
    fn plain_steps_and_checks_are_each_shared() {
        // Blocks of transformers: the eigendecompositions of their vectors cost as much as those of matrices, and
        // their plain steps nothing. Shared by the mean of both, one rank had 1.3 and 1.09 times the mean plain work.
        for (width, most) in [(384, 1.06), (768, 1.06)] {
            let [d, three, four] = [width, 3 * width, 4 * width];
            let shapes: [&[usize]; 8] =
                [&[d, d], &[d, three], &[d, four], &[four, d], &[d], &[three], &[four], &[d]];
            let (config, plan) = plan(&shapes, 1024);
            let config = Config { policy: Policy::Stale, check_period: 10, ..config };
            let owners = owners(&config, &plan, 2).unwrap();
            let mut loads = [[0u64; 2]; 2];
            for (block, owner) in plan.blocks.iter().zip(&owners) {
                let cost = Cost::of(block);
                loads[0][*owner as usize] += cost.plain(block);
                loads[1][*owner as usize] += cost.at_check(&config);
            }
            for [one, other] in loads {
                let balance = 2.0 * one.max(other) as f64 / (one + other) as f64;
                assert!(balance < most, "{width} wide: {loads:?}");
            }
        }
    }

    #[test]
    fn elements_without_a_preconditioner_are_shared() {
        // What has no products is work all the same: a table of a thousand rows beside three matrices.
        let config = Config { max_factor_dim: 64, ..Config::reference() };
        let spec = |name: &str, shape: &[usize]| ParamSpec::new(name.into(), shape.to_vec());
        let mut table = spec("table", &[1000, 64]);
        table.grafting_only = true;
        let matrix = |name| spec(name, &[64, 64]);
        let plan = Plan::new(&config, vec![matrix("a"), matrix("b"), matrix("c"), table]).unwrap();
        let owners = owners(&config, &plan, 2).unwrap();
        let mut elements = [0; 2];
        for (block, owner) in plan.blocks.iter().zip(&owners).filter(|(block, _)| block.param == 3) {
            elements[*owner as usize] += block.elements;
        }
        assert!(elements.iter().all(|own| *own > 20_000), "{elements:?}");
    }

    #[test]
    fn the_parts_are_the_whole() {
        let (config, plan) = plan(&[&[20, 30], &[3], &[], &[16, 20]], 8);
        let owners = owners(&config, &plan, 3).unwrap();
        let mut seen = vec![0; plan.blocks.len()];
        for rank in 0..3 {
            let (part, places) = plan.part(&owners, rank, |param| param == 3).unwrap();
            assert_eq!(part.params.len(), plan.params.len());
            for (number, place) in places.iter().enumerate().filter(|(_, place)| **place != ELSEWHERE) {
                seen[number] += 1;
                let (whole, own) = (&plan.blocks[number], &part.blocks[*place]);
                assert_eq!((whole.param, whole.number, &whole.dims), (own.param, own.number, &own.dims));
                assert!(part.params[own.param].blocks.contains(place));
                for (factor, at) in plan.factors[whole.factors.clone()].iter().zip(own.factors.clone()) {
                    assert_eq!(part.factors[at].block, *place);
                    assert_eq!(factor.dim, part.factors[at].dim);
                    assert_eq!(part.slots[part.factors[at].basis.unwrap()].axis, Some(factor.axis));
                }
                assert_eq!(part.stacks[own.stack].blocks[own.place], *place);
            }
        }
        assert!(seen.iter().all(|count| *count == 1));
    }

    #[test]
    fn segments_are_where_the_shards_have_the_elements() {
        // Any axis, uneven and empty parts, two replicas, merged and cut blocks.
        for (shape, axis, parts) in [
            (vec![7, 5], 0, vec![(0, 4), (4, 3), (7, 0)]),
            (vec![7, 5], 1, vec![(0, 2), (2, 3)]),
            (vec![3, 4, 5], 1, vec![(0, 1), (1, 3), (0, 1), (1, 3)]),
            (vec![3, 4, 5], 2, vec![(3, 2), (0, 3)]),
            (vec![33], 0, vec![(0, 10), (10, 23)]),
        ] {
            let (_, plan) = plan(&[&shape], 4);
            let shard =
                |(start, length): &(usize, usize)| Some(Shard { axis, start: *start, length: *length });
            let shards: Vec<_> = parts.iter().map(shard).collect();
            let cuts = Cuts::new(&shape, &shards).unwrap().unwrap();
            // The tensor of every piece holds the flat numbers of its elements.
            let total: usize = shape.iter().product();
            let (inner, size): (usize, usize) = (shape[axis + 1..].iter().product(), shape[axis]);
            let tensor = |piece: &Piece| -> Vec<usize> {
                let held =
                    |f: &usize| (piece.start..piece.start + piece.length).contains(&(f / inner % size));
                (0..total).filter(held).collect()
            };
            let mut seen = vec![0; total];
            for block in &plan.blocks {
                let mut expected = vec![0; block.elements];
                rows(block, |tensor, at, len| {
                    (0..len).for_each(|i| expected[at + i] = tensor + i);
                    Ok(())
                })
                .unwrap();
                cuts.segments(block, |segment| {
                    let numbers = tensor(&cuts.pieces[segment.piece]);
                    for i in 0..segment.len {
                        assert_eq!(numbers[segment.held + i], expected[segment.block + i]);
                        seen[numbers[segment.held + i]] += 1;
                    }
                    Ok(())
                })
                .unwrap();
            }
            assert!(seen.iter().all(|count| *count == 1), "{shape:?} {axis}");
        }
    }

    #[test]
    fn parts_that_do_not_fit_are_refused() {
        let part = |axis, start, length| Some(Shard { axis, start, length });
        let refused = |shards: &[Option<Shard>]| Cuts::new(&[6, 4], shards).unwrap_err().message;
        assert!(refused(&[part(0, 0, 3), part(0, 4, 2)]).contains("places 3 to 4 of axis 0 on no rank"));
        assert!(refused(&[part(0, 0, 4), part(0, 3, 3)]).contains("overlapping"));
        assert!(refused(&[part(0, 0, 6), part(1, 0, 4)]).contains("axis 1 on rank 1"));
        assert!(refused(&[part(0, 0, 5), part(0, 5, 0)]).contains("places 5 to 6"));
        assert!(refused(&[None, part(0, 0, 3)]).contains("overlapping"));
        assert!(Cuts::new(&[6, 4], &[None, part(0, 0, 6)]).unwrap().is_none());
    }
}
