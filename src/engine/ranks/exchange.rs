//! What has to be copied where, for every collective of a step: worked out once for the parameters that take part,
//! and the same on the CPU and on a GPU.

use super::{Division, Ranks};
use crate::comm::courier::{Room, Rows};
use crate::engine::handle::Tensors;
use crate::engine::owners::{Cuts, rows};
use crate::engine::plan::{BlockPlan, Plan};
use crate::error::Result;
use crate::memory::{filled, push};
use crate::tensor::DType;

const WHAT: &str = "the exchange between ranks";

/// What an offset counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    /// A parameter of the caller's.
    Param(usize),
    /// Its gradient.
    Grad(usize),
    /// The local blocks of sharded parameters.
    Values,
    /// Their gradients.
    Gradients,
    /// The message to a rank.
    To(usize),
    /// The message of a rank.
    From(usize),
}

/// Rows of bytes between two bases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Move {
    from: (Base, usize),
    to: (Base, usize),
    row: usize,
    rows: usize,
    from_step: usize,
    to_step: usize,
}

/// Adds `bytes` bytes to a list; what continues the last entry becomes a part of it.
fn add(list: &mut Vec<Move>, from: (Base, usize), to: (Base, usize), bytes: usize) -> Result<()> {
    let fresh = Move { from, to, row: bytes, rows: 1, from_step: 0, to_step: 0 };
    if let Some(last) = list.last_mut().filter(|last| last.from.0 == from.0 && last.to.0 == to.0) {
        let ahead = from.1.checked_sub(last.from.1).zip(to.1.checked_sub(last.to.1));
        match ahead {
            Some((a, b)) if last.rows == 1 && a == last.row && b == last.row => {
                last.row += bytes;
                return Ok(());
            }
            Some((a, b)) if last.rows == 1 && bytes == last.row && a >= bytes && b >= bytes => {
                (last.rows, last.from_step, last.to_step) = (2, a, b);
                return Ok(());
            }
            Some((a, b))
                if bytes == last.row && a == last.rows * last.from_step && b == last.rows * last.to_step =>
            {
                last.rows += 1;
                return Ok(());
            }
            _ => {}
        }
    }
    push(list, fresh, WHAT)
}

/// One collective: what is packed, what is unpacked, and the bytes to and from every rank.
#[derive(Default)]
pub struct Leg {
    pack: Vec<Move>,
    unpack: Vec<Move>,
    /// Bytes to every rank; of a gather, this rank's bytes at its own place.
    pub out: Vec<usize>,
    /// Bytes from every rank.
    pub back: Vec<usize>,
}

/// The collectives of a step that carry gradients and values.
#[derive(Default)]
pub struct Legs {
    /// Gradients and values of sharded parameters to the owners.
    pub bring: Leg,
    /// New values of sharded parameters to who hold them.
    pub back: Leg,
    /// New values of replicated parameters to all.
    pub spread: Leg,
    /// Bytes of the gradients of the local blocks of sharded parameters, and where each begins.
    pub gradient_bytes: usize,
    pub gradient_places: Vec<usize>,
}

/// What the legs are worked out from.
pub struct Scene<'a> {
    pub rank: usize,
    pub size: usize,
    pub division: &'a Division,
    /// The plan of the local blocks.
    pub part: &'a Plan,
    /// The blocks of the whole plan by owner.
    pub owned: &'a [Vec<usize>],
    /// How every parameter is cut.
    pub cuts: &'a [Option<Cuts>],
    /// The types of the gradients that take part.
    pub grads: &'a [Option<DType>],
    /// Where the values of every local block of a sharded parameter begin.
    pub value_places: &'a [usize],
}

impl Scene<'_> {
    /// The blocks of an owner that are sharded and take part: number, block, cuts, bytes of a gradient's and of a
    /// value's element.
    fn sharded(&self, owner: usize) -> impl Iterator<Item = (usize, &BlockPlan, &Cuts, usize, usize)> {
        self.owned[owner].iter().filter_map(|number| {
            let block = &self.division.whole.blocks[*number];
            let (grad, cuts) = (self.grads[block.param]?, self.cuts[block.param].as_ref()?);
            Some((*number, block, cuts, grad.size(), self.value(block)))
        })
    }

    /// The blocks of an owner that are replicated and take part.
    fn replicated(&self, owner: usize) -> impl Iterator<Item = (&BlockPlan, usize)> {
        self.owned[owner].iter().filter_map(|number| {
            let block = &self.division.whole.blocks[*number];
            self.grads[block.param]?;
            self.cuts[block.param].is_none().then(|| (block, self.value(block)))
        })
    }

    fn value(&self, block: &BlockPlan) -> usize {
        self.division.whole.params[block.param].spec.dtype.size()
    }

    /// Works out all legs.
    pub fn legs(&self) -> Result<Legs> {
        let mut gradient_places = filled(0, self.part.blocks.len(), WHAT)?;
        let mut gradient_bytes = 0usize;
        for (place, block) in gradient_places.iter_mut().zip(&self.part.blocks) {
            *place = gradient_bytes;
            if let (Some(dtype), Some(_)) = (self.grads[block.param], &self.cuts[block.param]) {
                let own = block.elements * dtype.size();
                gradient_bytes = (gradient_bytes + own).next_multiple_of(crate::memory::ALIGNMENT);
            }
        }
        Ok(Legs {
            bring: self.bring(&gradient_places)?,
            back: self.back()?,
            spread: self.spread()?,
            gradient_bytes,
            gradient_places,
        })
    }

    fn leg(&self) -> Result<Leg> {
        let (out, back) = (filled(0, self.size, WHAT)?, filled(0, self.size, WHAT)?);
        Ok(Leg { out, back, ..Leg::default() })
    }

    /// Block by block: its gradient, then its values.
    fn bring(&self, gradient_places: &[usize]) -> Result<Leg> {
        let mut leg = self.leg()?;
        for owner in (0..self.size).filter(|owner| *owner != self.rank) {
            for (number, block, cuts, grad, value) in self.sharded(owner) {
                for (base, each) in [(Base::Grad(block.param), grad), (Base::Param(block.param), value)] {
                    let (list, end) = (&mut leg.pack, &mut leg.out[owner]);
                    let mut added = Ok(());
                    cuts.segments(block, |segment| {
                        let source = cuts.source(segment.piece, number, owner as u32);
                        if source as usize == self.rank && added.is_ok() {
                            let bytes = segment.len * each;
                            added = add(list, (base, segment.held * each), (Base::To(owner), *end), bytes);
                            *end += bytes;
                        }
                    });
                    added?;
                }
            }
        }
        // By sender, so that the rows of a block make one entry.
        for source in 0..self.size {
            for (number, block, cuts, grad, value) in self.sharded(self.rank) {
                let place = self.division.places[number];
                for (own, target, each) in [
                    (Base::Grad(block.param), (Base::Gradients, gradient_places[place]), grad),
                    (Base::Param(block.param), (Base::Values, self.value_places[place]), value),
                ] {
                    let (list, end) = (&mut leg.unpack, &mut leg.back[source]);
                    let mut added = Ok(());
                    cuts.segments(block, |segment| {
                        let sender = cuts.source(segment.piece, number, self.rank as u32) as usize;
                        if sender != source || added.is_err() {
                            return;
                        }
                        let bytes = segment.len * each;
                        let to = (target.0, target.1 + segment.block * each);
                        if source == self.rank {
                            added = add(list, (own, segment.held * each), to, bytes);
                        } else {
                            added = add(list, (Base::From(source), *end), to, bytes);
                            *end += bytes;
                        }
                    });
                    added?;
                }
            }
        }
        Ok(leg)
    }

    fn back(&self) -> Result<Leg> {
        let mut leg = self.leg()?;
        let here = self.rank as u32;
        for holder in (0..self.size).filter(|holder| *holder != self.rank) {
            for (number, block, cuts, _, each) in self.sharded(self.rank) {
                let values = self.value_places[self.division.places[number]];
                let (list, end) = (&mut leg.pack, &mut leg.out[holder]);
                let mut added = Ok(());
                cuts.segments(block, |segment| {
                    let holds = cuts.pieces[segment.piece].holders.contains(&(holder as u32));
                    if holds && added.is_ok() {
                        let (bytes, from) = (segment.len * each, values + segment.block * each);
                        added = add(list, (Base::Values, from), (Base::To(holder), *end), bytes);
                        *end += bytes;
                    }
                });
                added?;
            }
        }
        for owner in 0..self.size {
            for (number, block, cuts, _, each) in self.sharded(owner) {
                let (list, end) = (&mut leg.unpack, &mut leg.back[owner]);
                let mut added = Ok(());
                cuts.segments(block, |segment| {
                    if !cuts.pieces[segment.piece].holders.contains(&here) || added.is_err() {
                        return;
                    }
                    let (bytes, to) = (segment.len * each, (Base::Param(block.param), segment.held * each));
                    if owner == self.rank {
                        let values = self.value_places[self.division.places[number]];
                        added = add(list, (Base::Values, values + segment.block * each), to, bytes);
                    } else {
                        added = add(list, (Base::From(owner), *end), to, bytes);
                        *end += bytes;
                    }
                });
                added?;
            }
        }
        Ok(leg)
    }

    fn spread(&self) -> Result<Leg> {
        let mut leg = self.leg()?;
        for owner in 0..self.size {
            for (block, each) in self.replicated(owner) {
                let mut added = Ok(());
                let end = &mut leg.back[owner];
                rows(block, |tensor, _, len| {
                    let (own, bytes) = ((Base::Param(block.param), tensor * each), len * each);
                    if added.is_ok() && owner == self.rank {
                        added = add(&mut leg.pack, own, (Base::To(owner), *end), bytes);
                    } else if added.is_ok() {
                        added = add(&mut leg.unpack, (Base::From(owner), *end), own, bytes);
                    }
                    *end += bytes;
                });
                added?;
            }
        }
        leg.out[self.rank] = leg.back[self.rank];
        Ok(leg)
    }
}

/// Addresses of the bases.
struct Bases<'a> {
    tensors: &'a Tensors<'a>,
    values: u64,
    gradients: u64,
    to: &'a [u64],
    from: &'a [u64],
}

impl Bases<'_> {
    fn address(&self, (base, at): (Base, usize)) -> u64 {
        let first = match base {
            Base::Param(index) => self.tensors.params[index].data as u64,
            // A list has only gradients that take part.
            Base::Grad(index) => self.tensors.grads[index].map_or(0, |grad| grad.data as u64),
            Base::Values => self.values,
            Base::Gradients => self.gradients,
            Base::To(rank) => self.to[rank],
            Base::From(rank) => self.from[rank],
        };
        first + at as u64
    }

    fn rows(&self, each: &Move) -> Rows {
        Rows {
            from: self.address(each.from),
            to: self.address(each.to),
            row: each.row,
            rows: each.rows,
            from_step: each.from_step,
            to_step: each.to_step,
        }
    }
}

/// Which collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To the owners.
    Bring,
    /// Back to the holders.
    Back,
    /// To all.
    Spread,
}

impl Ranks {
    /// The collective of the step under way.
    pub fn leg(&self, way: Way) -> &Leg {
        match way {
            Way::Bring => &self.legs.bring,
            Way::Back => &self.legs.back,
            Way::Spread => &self.legs.spread,
        }
    }

    /// Works out the legs, if what takes part is not what took part before, and makes room for the gradients.
    pub fn measure(&mut self, part: &Plan) -> Result<()> {
        if self.sized_for.as_ref() == Some(&self.grads) {
            return Ok(());
        }
        self.sized_for = None;
        let scene = Scene {
            rank: self.comm.rank,
            size: self.comm.size,
            division: &self.division,
            part,
            owned: &self.owned,
            cuts: &self.cuts,
            grads: &self.grads,
            value_places: &self.value_places,
        };
        self.legs = scene.legs()?;
        if self.legs.gradient_bytes > 0 {
            self.gradients = self.comm.courier.room(Room::Gradients, self.legs.gradient_bytes)?;
        }
        self.sized_for = Some(crate::memory::copied(&self.grads, WHAT)?);
        Ok(())
    }

    /// Copies what goes out into the messages.
    pub fn pack(&mut self, way: Way, tensors: &Tensors) -> Result<()> {
        let leg = match way {
            Way::Bring => &self.legs.bring,
            Way::Back => &self.legs.back,
            Way::Spread => &self.legs.spread,
        };
        let (values, gradients) = (self.values, self.gradients);
        let bases = Bases { tensors, values, gradients, to: &self.to, from: &self.from };
        // SAFETY: the plan keeps every row within its tensor, its room or its message.
        unsafe { self.comm.courier.carry(&mut leg.pack.iter().map(|each| bases.rows(each))) }
    }

    /// Copies what came in to where it belongs.
    pub fn unpack(&mut self, way: Way, tensors: &Tensors) -> Result<()> {
        let leg = match way {
            Way::Bring => &self.legs.bring,
            Way::Back => &self.legs.back,
            Way::Spread => &self.legs.spread,
        };
        let (values, gradients) = (self.values, self.gradients);
        let bases = Bases { tensors, values, gradients, to: &self.to, from: &self.from };
        // SAFETY: as above.
        unsafe { self.comm.courier.carry(&mut leg.unpack.iter().map(|each| bases.rows(each))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_continue_each_other_are_one_entry() {
        let mut list = Vec::new();
        let (from, to) = (Base::Param(0), Base::To(1));
        // Two runs that touch, then three rows of a wider matrix, then a run of another length.
        for (a, b, bytes) in [(0, 0, 4), (4, 4, 4)] {
            add(&mut list, (from, a), (to, b), bytes).unwrap();
        }
        assert_eq!(list, [Move { from: (from, 0), to: (to, 0), row: 8, rows: 1, from_step: 0, to_step: 0 }]);
        for (a, b, bytes) in [(20, 8, 8), (40, 16, 8), (60, 24, 6)] {
            add(&mut list, (from, a), (to, b), bytes).unwrap();
        }
        assert_eq!(list.len(), 2);
        assert_eq!((list[0].rows, list[0].from_step, list[0].to_step), (3, 20, 8));
        assert_eq!((list[1].from, list[1].row, list[1].rows), ((from, 60), 6, 1));
    }
}
