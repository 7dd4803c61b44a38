//! The statistic of a vector: S ← S + gain·g gᵀ, a triangle of memory for a row of numbers. In a state of its own the CPU
//! gathers up to [`ROWS`] gradients of a vector and adds them in one pass over the triangle, before anything reads it.
//! Every entry takes its terms one after the other, in the order of the steps: the bits are those of adding each gradient
//! at its step, whenever the pass is made.

use super::real::{Real, vectorized};
use super::walks::{Tile, Walks};
use super::{Cpu, Precision, Shared};
use crate::engine::plan::Plan;
use crate::error::Result;
use crate::memory::{Allocator, Arena, aligned, filled, push};
use crate::preconditioner::Preconditioner;
use std::ops::Range;

/// Most gradients of a vector that are gathered.
const ROWS: usize = 16;
/// A vector gathers as many gradients as an eighth of its side says, so that they take little beside its factor, and below
/// this side none: the triangle is in the cache anyway.
const LEAST_SIDE: usize = 64;
/// Entries of a column that are worked on at once, in registers.
const STRIP: usize = 32;

/// The gradients of a block that its statistic has not taken yet.
#[derive(Clone, Copy, Default)]
struct Row {
    /// Byte offset of the first.
    offset: usize,
    /// Room for so many; none for a block that gathers nothing.
    room: usize,
    count: usize,
    gains: [f64; ROWS],
}

/// The gathered gradients of an owned state.
pub(super) struct Gathered {
    memory: Arena,
    /// By block.
    rows: Vec<Row>,
    /// The statistics of the blocks that gather.
    tiles: Vec<Tile>,
}

impl Gathered {
    /// Room for the vectors of `plan`; none where no vector is worth it.
    pub fn new(plan: &Plan, walks: &Walks, allocator: Allocator) -> Result<Option<Gathered>> {
        let what = "the gathered gradients";
        let gathers = |block: usize| {
            let plan = &plan.blocks[block];
            plan.dims.len() == 1 && plan.dims[0] >= LEAST_SIDE && !plan.factors.is_empty()
        };
        let is_shampoo = matches!(plan.preconditioner, Preconditioner::Shampoo(_));
        if !is_shampoo || !(0..plan.blocks.len()).any(gathers) {
            return Ok(None);
        }
        let (mut rows, mut bytes) = (filled(Row::default(), plan.blocks.len(), what)?, 0);
        for block in (0..rows.len()).filter(|block| gathers(*block)) {
            let side = plan.blocks[block].dims[0];
            let room = ROWS.min(side / 8);
            rows[block] = Row { offset: bytes, room, ..Row::default() };
            let size = plan.params[plan.blocks[block].param].statistic.size();
            bytes += aligned((room * side * size) as u128) as usize;
        }
        let mut tiles = Vec::new();
        for tile in walks.waves.iter().flat_map(|wave| &wave.statistics).filter(|tile| gathers(tile.block)) {
            push(&mut tiles, tile.clone(), what)?;
        }
        Ok(Some(Gathered { memory: Arena::zeroed(bytes, allocator, what)?, rows, tiles }))
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Whether `block` gathers its gradients.
    pub fn takes(&self, block: usize) -> bool {
        self.rows[block].room > 0
    }

    /// Whether `block` has gradients that its statistic has not taken.
    pub fn has(&self, block: usize) -> bool {
        self.rows[block].count > 0
    }

    /// A further gradient of `block`, which enters the statistic with weight `gain`.
    pub fn extend(&mut self, block: usize, gain: f64) {
        let row = &mut self.rows[block];
        row.gains[row.count] = gain;
        row.count += 1;
    }

    /// Whether the statistic of `block` takes its gradients in a step in which `decay` multiplies it: in each that
    /// changes it, and where there is no room for a further gradient.
    pub fn is_due(&self, block: usize, decay: f64) -> bool {
        decay != 1.0 || self.rows[block].count == self.rows[block].room
    }

    /// Where the last gradient of `block`, of `side` numbers, lies.
    pub fn last<S>(&self, block: usize, side: usize) -> *mut S {
        let row = &self.rows[block];
        self.memory.as_ptr().wrapping_add(row.offset).cast::<S>().wrapping_add((row.count - 1) * side)
    }

    /// The statistics of `block` have taken its gradients.
    pub fn empty(&mut self, block: usize) {
        self.rows[block].count = 0;
    }
}

/// The statistics take what was gathered.
pub(super) fn settle(cpu: &mut Cpu) {
    let Some(gathered) = &cpu.gathered else { return };
    if gathered.tiles.iter().all(|tile| !gathered.has(tile.block)) {
        return;
    }
    let shared = &cpu.shared;
    cpu.workers.run(gathered.tiles.len(), gathered.tiles.len() > 1, &|task, _| {
        take(shared, gathered, &gathered.tiles[task], 1.0);
    });
    cpu.gathered.iter_mut().for_each(|gathered| gathered.rows.iter_mut().for_each(|row| row.count = 0));
}

/// A panel of columns of one statistic, which `decay` multiplies first, takes what its block has gathered.
pub(super) fn take(shared: &Shared, gathered: &Gathered, tile: &Tile, decay: f64) {
    let row = &gathered.rows[tile.block];
    let (gains, gradients) = (&row.gains[..row.count], gathered.memory.as_ptr().wrapping_add(row.offset));
    match shared.param(tile.block).statistic {
        Precision::F32 => add::<f32>(shared, tile, decay, gains, gradients.cast()),
        Precision::F64 => add::<f64>(shared, tile, decay, gains, gradients.cast()),
    }
}

/// A panel of columns of the lower triangle of a vector's statistic: S ← decay·S, then S_ij ← S_ij + g_i·(gain·g_j) for
/// each of the gradients, which lie one after the other.
pub(super) fn add<S: Real>(shared: &Shared, tile: &Tile, decay: f64, gains: &[f64], gradients: *const S) {
    let factor = &shared.plan.factors[shared.plan.blocks[tile.block].factors.start + tile.axis];
    let (n, statistic) = (factor.dim, shared.slot::<S>(factor.statistic));
    // SAFETY: the statistic's own columns, of which each task has others, and as many gradients as there are gains.
    vectorized(
        #[inline(always)]
        || unsafe { add_columns(statistic, n, tile.panel.clone(), S::of(decay), gains, gradients) },
    );
}

/// # Safety
/// `statistic` has n² numbers, of which nobody else touches the columns of the panel; `gradients` has n per gain.
#[inline(always)]
unsafe fn add_columns<S: Real>(
    statistic: *mut S,
    n: usize,
    panel: Range<usize>,
    decay: S,
    gains: &[f64],
    gradients: *const S,
) {
    debug_assert!(gains.len() <= ROWS);
    let mut weights = [S::default(); ROWS];
    for j in panel {
        for (k, gain) in gains.iter().enumerate() {
            // SAFETY: number j of gradient k.
            weights[k] = S::of(*gain) * unsafe { gradients.add(k * n + j).read() };
        }
        for first in (j..n).step_by(STRIP) {
            let len = STRIP.min(n - first);
            // SAFETY: `len` entries of column j, from the diagonal on.
            let column = unsafe { std::slice::from_raw_parts_mut(statistic.add(j * n + first), len) };
            // SAFETY: as many numbers of gradient k.
            let gradient =
                |k: usize| unsafe { std::slice::from_raw_parts(gradients.add(k * n + first), len) };
            if let Ok(strip) = <&mut [S; STRIP]>::try_from(&mut *column) {
                let mut sums = strip.map(
                    #[inline(always)]
                    |x| x * decay,
                );
                for (k, weight) in weights[..gains.len()].iter().enumerate() {
                    let g = gradient(k);
                    for i in 0..STRIP {
                        sums[i] += g[i] * *weight;
                    }
                }
                *strip = sums;
            } else {
                for (i, x) in column.iter_mut().enumerate() {
                    *x *= decay;
                    for (k, weight) in weights[..gains.len()].iter().enumerate() {
                        *x += gradient(k)[i] * *weight;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a statistic of side `n` becomes when gradients are added `together` at a time.
    fn after(n: usize, count: usize, together: usize) -> Vec<f32> {
        let number = |i: usize| ((i * 2654435761) % 1000) as f32 / 500.0 - 1.0;
        let gradients: Vec<f32> = (0..count * n).map(number).collect();
        let gains: Vec<f64> = (0..count).map(|k| 0.1 * 1.01f64.powi(k as i32)).collect();
        let mut statistic: Vec<f32> = (0..n * n).map(|i| number(i + 7)).collect();
        for first in (0..count).step_by(together) {
            let last = (first + together).min(count);
            for panel in [0..n / 3, n / 3..n] {
                let (data, rows) = (statistic.as_mut_ptr(), gradients[first * n..].as_ptr());
                // SAFETY: a square of n², and n numbers per gain.
                unsafe { add_columns(data, n, panel, 1.0, &gains[first..last], rows) };
            }
        }
        statistic
    }

    #[test]
    fn gathered_gradients_give_the_bits_of_each_at_its_step() {
        for n in [1, 31, 64, 100, 257] {
            let one_by_one = after(n, 13, 1);
            for together in [2, 5, 13] {
                assert_eq!(after(n, 13, together), one_by_one, "side {n}, {together} at a time");
            }
        }
    }

    #[test]
    fn the_upper_triangle_stays_as_it_is() {
        let n = 70;
        let (before, now) = (after(n, 0, 1), after(n, 9, 4));
        for (i, j) in (0..n).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let at = j * n + i;
            assert_eq!(before[at] == now[at], i < j, "row {i}, column {j}");
        }
    }
}
