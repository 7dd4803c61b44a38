//! What has to be copied where, for every collective of a step: worked out once for the parameters that take part,
//! and the same on the CPU and on a GPU.

use super::{Division, Ranks};
use crate::comm::WHAT;
use crate::comm::courier::{Room, Rows};
use crate::engine::handle::Tensors;
use crate::engine::owners::{Cuts, rows};
use crate::engine::plan::{BlockPlan, Plan};
use crate::error::Result;
use crate::memory::{filled, push};
use crate::tensor::DType;

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

impl Leg {
    /// Packs bytes for a rank, behind those that it gets already.
    fn send(&mut self, rank: usize, from: (Base, usize), bytes: usize) -> Result<()> {
        let to = (Base::To(rank), self.out[rank]);
        self.out[rank] += bytes;
        add(&mut self.pack, from, to, bytes)
    }

    /// Takes bytes from where they lie `here`, or the next ones of a rank's message.
    fn take(
        &mut self,
        rank: usize,
        here: Option<(Base, usize)>,
        to: (Base, usize),
        bytes: usize,
    ) -> Result<()> {
        let from = here.unwrap_or_else(|| {
            let from = (Base::From(rank), self.back[rank]);
            self.back[rank] += bytes;
            from
        });
        add(&mut self.unpack, from, to, bytes)
    }
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
                    cuts.segments(block, |segment| {
                        let source = cuts.source(segment.piece, number, owner as u32);
                        if source as usize != self.rank {
                            return Ok(());
                        }
                        leg.send(owner, (base, segment.held * each), segment.len * each)
                    })?;
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
                    cuts.segments(block, |segment| {
                        let sender = cuts.source(segment.piece, number, self.rank as u32) as usize;
                        if sender != source {
                            return Ok(());
                        }
                        let here = (source == self.rank).then_some((own, segment.held * each));
                        let to = (target.0, target.1 + segment.block * each);
                        leg.take(source, here, to, segment.len * each)
                    })?;
                }
            }
        }
        Ok(leg)
    }

    fn back(&self) -> Result<Leg> {
        let mut leg = self.leg()?;
        let held_by = |cuts: &Cuts, piece: usize, rank: usize| {
            let holders = &cuts.pieces[piece].holders;
            holders.contains(&(rank as u32))
        };
        for holder in (0..self.size).filter(|holder| *holder != self.rank) {
            for (number, block, cuts, _, each) in self.sharded(self.rank) {
                let values = self.value_places[self.division.places[number]];
                cuts.segments(block, |segment| {
                    if !held_by(cuts, segment.piece, holder) {
                        return Ok(());
                    }
                    leg.send(holder, (Base::Values, values + segment.block * each), segment.len * each)
                })?;
            }
        }
        for owner in 0..self.size {
            for (number, block, cuts, _, each) in self.sharded(owner) {
                let values = (owner == self.rank).then(|| self.value_places[self.division.places[number]]);
                cuts.segments(block, |segment| {
                    if !held_by(cuts, segment.piece, self.rank) {
                        return Ok(());
                    }
                    let here = values.map(|values| (Base::Values, values + segment.block * each));
                    leg.take(owner, here, (Base::Param(block.param), segment.held * each), segment.len * each)
                })?;
            }
        }
        Ok(leg)
    }

    fn spread(&self) -> Result<Leg> {
        let mut leg = self.leg()?;
        for owner in 0..self.size {
            for (block, each) in self.replicated(owner) {
                rows(block, |tensor, _, len| {
                    let (own, bytes) = ((Base::Param(block.param), tensor * each), len * each);
                    if owner == self.rank {
                        leg.send(owner, own, bytes)
                    } else {
                        leg.take(owner, None, own, bytes)
                    }
                })?;
            }
        }
        // Of a gather, this rank's bytes come back, too.
        leg.back[self.rank] = leg.out[self.rank];
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

impl Legs {
    /// One of them.
    fn leg(&self, way: Way) -> &Leg {
        match way {
            Way::Bring => &self.bring,
            Way::Back => &self.back,
            Way::Spread => &self.spread,
        }
    }
}

impl Ranks {
    /// The collective of the step under way.
    pub fn leg(&self, way: Way) -> &Leg {
        self.legs.leg(way)
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
        self.carry(|legs| &legs.leg(way).pack, tensors)
    }

    /// Copies what came in to where it belongs.
    pub fn unpack(&mut self, way: Way, tensors: &Tensors) -> Result<()> {
        self.carry(|legs| &legs.leg(way).unpack, tensors)
    }

    fn carry(&mut self, list: impl Fn(&Legs) -> &Vec<Move>, tensors: &Tensors) -> Result<()> {
        let (values, gradients) = (self.values, self.gradients);
        let bases = Bases { tensors, values, gradients, to: &self.to, from: &self.from };
        // SAFETY: the plan keeps every row within its tensor, its room or its message.
        unsafe { self.comm.courier.carry(&mut list(&self.legs).iter().map(|each| bases.rows(each))) }
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
