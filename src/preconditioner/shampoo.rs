//! Shampoo: which arrays it keeps for a block. Its accumulation, direction and sensing are the device's verbs;
//! what is decided about a factor at a check is in [`super::policy`].

use super::{Access, policy};
use crate::config::{Config, Device};
use crate::engine::plan::{Array, SlotKind};
use crate::engine::ports::Verb;
use crate::error::Result;
use crate::memory::push;
use crate::tensor::Precision;

/// Shampoo's options that shape its state and its verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shampoo {
    /// The inverse root is kept; else every step goes through the basis: Q (D + ε)^(−1/p) Qᵀ G.
    pub keeps_root: bool,
    /// Statistic and inverse root share a square where [`Shampoo::shares`] says so.
    pub shares_squares: bool,
}

/// From this side on a factor's statistic and inverse root share a square. To bring the inverse root together takes some 3 %
/// of a plain step at this side (`cargo bench --bench step -- squares`); of a smaller one it would take more, and save 64 KB
/// at most in single precision.
pub const SHARED_SIDE: usize = 128;

impl Shampoo {
    /// The configuration's.
    pub fn of(config: &Config) -> Shampoo {
        Shampoo {
            keeps_root: config.keep_inverse_root,
            shares_squares: config.share_squares && config.device.kind == Device::CPU.kind,
        }
    }

    /// Whether statistic and inverse root of a side share a square: the lower triangle is the statistic's, the strict
    /// upper one the inverse root's, whose diagonal is a vector of its own. On the CPU, where both have one precision.
    pub fn shares(&self, side: usize, statistic: Precision, work: Precision) -> bool {
        self.shares_squares && self.keeps_root && statistic == work && side >= SHARED_SIDE
    }

    /// Statistic, basis, spectrum and inverse root (or what stands for it, see [`Shampoo::shares`]) of every axis, and
    /// the spectrum of the last refresh where the policy needs it (after QR steps: numbers that diag(·) of them is a
    /// lower bound of QᵀAQ), and the statistic of a refresh under way where refreshes are delayed; kind by kind, axis by
    /// axis.
    pub fn arrays(
        &self,
        config: &Config,
        dims: &[usize],
        statistic: Precision,
        work: Precision,
        arrays: &mut Vec<Array>,
    ) -> Result<()> {
        let root = if self.keeps_root { SlotKind::InverseRoot } else { SlotKind::RootSpectrum };
        let kinds = [
            (SlotKind::Statistic, statistic),
            (SlotKind::Basis, statistic),
            (SlotKind::Spectrum, statistic),
            (root, work),
            (SlotKind::FreshSpectrum, statistic),
            (SlotKind::PendingStatistic, statistic),
        ];
        let wanted = |kind: SlotKind| match kind {
            SlotKind::FreshSpectrum => policy::certifies(config.policy),
            SlotKind::PendingStatistic => config.refresh_delay > 0,
            _ => true,
        };
        for (kind, precision) in kinds.into_iter().filter(|(kind, _)| wanted(*kind)) {
            for (axis, dim) in dims.iter().enumerate() {
                let shared = kind == SlotKind::InverseRoot && self.shares(*dim, statistic, work);
                let kind = if shared { SlotKind::RootDiagonal } else { kind };
                let square = [*dim, *dim];
                let tail = if kind.is_vector() { &square[..1] } else { &square[..] };
                push(arrays, Array::numbers(kind, Some(axis), precision, tail)?, "the plan of blocks")?;
            }
        }
        Ok(())
    }

    /// What `verb` does with an array of numbers.
    pub fn access(&self, verb: Verb, kind: SlotKind) -> Access {
        use Access::{None, Reads, Writes};
        use SlotKind::{
            Basis, Filter, FreshSpectrum, InverseRoot, Moment, Momentum, PendingStatistic, RootDiagonal,
            RootSpectrum, Spectrum, Statistic,
        };
        match (verb, kind) {
            (Verb::Accumulate, Statistic) => Writes,
            (Verb::Check, Statistic) => Reads,
            (Verb::Check, Basis | Spectrum | InverseRoot | RootSpectrum | RootDiagonal) => Writes,
            (Verb::Check, FreshSpectrum | PendingStatistic) => Writes,
            (Verb::Apply, InverseRoot | RootSpectrum | RootDiagonal) => Reads,
            (Verb::Apply, Basis) if !self.keeps_root => Reads,
            (Verb::Apply, Filter | Moment | Momentum) => Writes,
            _ => None,
        }
    }
}
