//! A step that many ranks share. Every rank owns some blocks and holds their state; gradients come to the owners,
//! new values go back. Around the same three verbs, in this order:
//!
//! | collective | carries | when |
//! | --- | --- | --- |
//! | `all_gatherv` | a note: options, rates, which gradients there are, and whether all is well | every step |
//! | `all_to_allv` | gradients and values of sharded parameters, to the owners | if there are sharded parameters |
//! | `all_gatherv` | a note: whether what came is finite | likewise |
//! | `all_to_allv` | new values of sharded parameters, to who hold them | likewise |
//! | `all_gatherv` | new values of replicated parameters, to all | if there are replicated parameters |
//!
//! Nothing is written before all ranks have said that they can go on. Several optimizers take a step together with
//! the collectives of one ([`step::run`]). On a GPU the host waits for the notes and for nothing else.

mod exchange;
mod note;
pub mod step;

use super::owners::{Cuts, ELSEWHERE, owners};
use super::plan::{ParamSpec, Plan, Shard};
use crate::comm::courier::{Courier, Host, NOBODY, Room};
use crate::comm::{Comm, Mail, Parcel, Traffic, WHAT, agree};
use crate::config::{Config, Device};
use crate::device::gpu;
use crate::error::{Error, Kind, Result};
use crate::memory::{Allocator, Counted, boxed, filled, push, reserved};
use crate::tensor::DType;

/// What an optimizer knows of the ranks that it shares its work with.
pub struct Ranks {
    comm: Comm,
    mail: Mail,
    parcel: Parcel,
    division: Counted<Division>,
    /// The blocks of the whole plan by owner.
    owned: Vec<Vec<usize>>,
    /// How every parameter is cut; none for a replicated one.
    cuts: Vec<Option<Cuts>>,
    /// Hash of the options that all ranks share.
    options: u64,
    /// Of every parameter, the type of its gradient in the step under way; none if it takes no part.
    grads: Vec<Option<DType>>,
    /// What the legs were worked out for.
    sized_for: Option<Vec<Option<DType>>>,
    legs: exchange::Legs,
    /// Address of the values of the local blocks of sharded parameters, and where each begins.
    values: u64,
    value_places: Vec<usize>,
    /// Address of their gradients.
    gradients: u64,
    /// Where this optimizer's bytes begin in the message to, and of, every rank.
    to: Vec<u64>,
    from: Vec<u64>,
}

/// Who has which block.
pub struct Division {
    /// The plan of all blocks.
    pub whole: Plan,
    /// The owner of every block of it.
    pub owners: Vec<u32>,
    /// The number of each of its blocks in the local plan, or [`ELSEWHERE`].
    pub places: Vec<usize>,
}

impl Division {
    /// The number of a block of the whole plan in the local one; none if another rank owns it.
    pub fn place(&self, block: usize) -> Option<usize> {
        Some(self.places[block]).filter(|place| *place != ELSEWHERE)
    }
}

/// What there is to be known once all ranks have met.
pub struct Shared {
    /// The ranks.
    pub ranks: Ranks,
    /// The plan of this rank's own blocks.
    pub part: Plan,
}

/// What moves bytes on a device.
pub fn courier(device: Device, allocator: Allocator) -> Result<Box<dyn Courier>> {
    match device.kind {
        Device::CUDA_KIND => Ok(boxed(gpu::Courier::new(device.id, allocator)?, WHAT)?),
        _ => Ok(boxed(Host::new(), WHAT)?),
    }
}

/// What every rank finds for itself from the plan and the parts.
struct Divided {
    whole: Plan,
    owners: Vec<u32>,
    cuts: Vec<Option<Cuts>>,
    part: Plan,
    places: Vec<usize>,
    value_places: Vec<usize>,
    values: u64,
}

impl Ranks {
    /// Compares options and parameters with all ranks and gives every block an owner. `whole` is the plan of all
    /// blocks, or why there is none.
    pub fn meet(mut comm: Comm, config: &Config, specs: &[ParamSpec], whole: Result<Plan>) -> Result<Shared> {
        let parts = agree::agree(&mut comm, config, specs, whole.as_ref().err())?;
        let mut mail = Mail::default();
        let made = whole.and_then(|whole| Ranks::divide(&mut comm, config, whole, parts));
        let made = agree::all_well(&mut comm, &mut mail, made, "the creation")?;
        let Divided { whole, owners, cuts, part, places, value_places, values } = made;
        let mut owned: Vec<Vec<usize>> = filled(Vec::new(), comm.size, WHAT)?;
        for (block, owner) in owners.iter().enumerate() {
            push(&mut owned[*owner as usize], block, WHAT)?;
        }
        let (size, params) = (comm.size, whole.params.len());
        let ranks = Ranks {
            comm,
            mail,
            parcel: Parcel::default(),
            owned,
            cuts,
            options: agree::options_hash(config),
            grads: filled(None, params, WHAT)?,
            sized_for: None,
            legs: exchange::Legs::default(),
            values,
            value_places,
            gradients: 0,
            to: filled(0, size, WHAT)?,
            from: filled(0, size, WHAT)?,
            division: Counted::new(Division { whole, owners, places }, WHAT)?,
        };
        Ok(Shared { ranks, part })
    }

    fn divide(
        comm: &mut Comm,
        config: &Config,
        whole: Plan,
        parts: Vec<Vec<Option<Shard>>>,
    ) -> Result<Divided> {
        let mut cuts = reserved(whole.params.len(), WHAT)?;
        for (index, (param, shards)) in whole.params.iter().zip(&parts).enumerate() {
            let named = |problem: Error| match problem.kind {
                Kind::InvalidArgument => {
                    let message = format!("parameter '{}' {}", param.spec.name, problem.message);
                    Error { message, ..problem }.at(index)
                }
                _ => problem,
            };
            cuts.push(Cuts::new(&param.spec.shape, shards).map_err(named)?);
        }
        let owners = owners(config, &whole, comm.size)?;
        let (part, places) = whole.part(&owners, comm.rank, |param| cuts[param].is_some())?;
        let mut bytes = 0usize;
        let mut value_places = reserved(part.blocks.len(), WHAT)?;
        for block in &part.blocks {
            value_places.push(bytes);
            if cuts[block.param].is_some() {
                let own = block.elements * part.params[block.param].spec.dtype.size();
                bytes = (bytes + own).next_multiple_of(crate::memory::ALIGNMENT);
            }
        }
        let values = if bytes > 0 { comm.courier.room(Room::Values, bytes)? } else { 0 };
        Ok(Divided { whole, owners, cuts, part, places, value_places, values })
    }

    /// This rank and the number of ranks.
    pub fn rank_and_size(&self) -> (usize, usize) {
        (self.comm.rank, self.comm.size)
    }

    /// Who has which block.
    pub fn division(&self) -> &Counted<Division> {
        &self.division
    }

    /// What went through the communicator.
    pub fn traffic(&self) -> Traffic {
        self.comm.traffic
    }

    /// The communicator and the mail, for calls other than a step.
    pub fn post(&mut self) -> (&mut Comm, &mut Mail) {
        (&mut self.comm, &mut self.mail)
    }

    /// The options have changed.
    pub fn set_options(&mut self, config: &Config) {
        self.options = agree::options_hash(config);
    }

    /// Bytes of the buffers for the exchange.
    pub fn bytes(&self) -> usize {
        self.comm.courier.bytes()
    }

    /// Tells of new values that did not arrive, which a GPU finds out on its own. Waits for it.
    pub fn settle(&mut self) -> Result<()> {
        let [lost, broken] = self.comm.courier.settle()?;
        let message = match (lost, broken) {
            (NOBODY, NOBODY) => return Ok(()),
            (NOBODY, rank) => format!("rank {rank} failed in the middle of the last step"),
            (rank, _) => format!("the values that rank {rank} sent in the last step did not arrive"),
        };
        Err(Error::new(Kind::Collective, message).saying(step::WRITTEN))
    }

    fn has_sharded(&self) -> bool {
        self.cuts.iter().any(Option::is_some)
    }

    fn has_replicated(&self) -> bool {
        self.cuts.iter().any(Option::is_none)
    }

    /// Where the values and the gradient of a local block lie, and the gradient's type, if its parameter is sharded
    /// and takes part. `Some(None)` if it is sharded and takes no part.
    pub fn staged(&self, param: usize, block: usize) -> Option<Option<(u64, u64, DType)>> {
        self.cuts[param].as_ref()?;
        Some(self.grads[param].map(|dtype| {
            let value = self.values + self.value_places[block] as u64;
            (value, self.gradients + self.legs.gradient_places[block] as u64, dtype)
        }))
    }

    /// Whether a sharded parameter takes part in the step under way; none if it is replicated.
    pub fn sharded_takes_part(&self, param: usize) -> Option<bool> {
        self.cuts[param].as_ref().map(|_| self.grads[param].is_some())
    }
}
