//! A look inside, for studies and tests: the matrices of a factor, and its exact operator gap.

use super::Optimizer;
use super::plan::SlotKind;
use super::rules::Rules;
use crate::device::cpu::gap::{self, InUse};
use crate::error::{Error, Result};
use crate::memory::{filled, listed};
use crate::tensor::Precision;
use ndarray::Array2;

impl Optimizer {
    /// The factor of `axis` of the `block`-th block of parameter `param`.
    pub fn factor_index(&self, param: i64, block: i64, axis: i64) -> Result<usize> {
        let within = |value: i64, count: usize| usize::try_from(value).ok().filter(|v| *v < count);
        let count = self.plan().params.len();
        let index = within(param, count).ok_or_else(|| {
            Error::invalid(format!("param_index = {param}: expected 0 <= param_index < {count}"))
        })?;
        let plan = &self.plan().params[index];
        let name = &plan.spec.name;
        let refuse = |what: &str, value: i64, count: usize| {
            Error::invalid(format!("parameter '{name}': {what} = {value}: expected 0 <= {what} < {count}"))
                .at(index)
        };
        let whole = &self.whole().params[index].blocks;
        let blocks = whole.len();
        let block = within(block, blocks).ok_or_else(|| refuse("block", block, blocks))?;
        let Some(place) = self.place(whole.start + block) else {
            let owner = self.owner(whole.start + block);
            let message = format!("block {block} of parameter '{name}' is owned by rank {owner}; ask there");
            return Err(Error::invalid(message).at(index));
        };
        let factors = self.plan().blocks[place].factors.clone();
        let axis = within(axis, factors.len()).ok_or_else(|| {
            let error = refuse("axis", axis, factors.len());
            match usize::try_from(axis) {
                Ok(axis) => error.on_axis(axis),
                Err(_) => error,
            }
        })?;
        Ok(factors.start + axis)
    }

    /// Numbers in one of a factor's buffers.
    pub fn factor_len(&self, factor: usize, kind: SlotKind) -> usize {
        let dim = self.plan().factors[factor].dim;
        if kind.is_vector() { dim } else { dim * dim }
    }

    /// One of a factor's matrices, row-major. The statistic is the running moment, not bias-corrected (in the
    /// basis, if it is kept there); the basis has one eigenvector per row.
    pub fn factor_matrix(&mut self, factor: usize, kind: SlotKind) -> Result<Array2<f64>> {
        let plan = &self.plan().factors[factor];
        if let (SlotKind::InverseRoot, Some(roots), Some(basis)) = (kind, plan.root_spectrum, plan.basis) {
            return self.composed(basis, roots);
        }
        let slot = match kind {
            SlotKind::Statistic => plan.statistic,
            SlotKind::Basis => plan.basis,
            SlotKind::Spectrum => plan.spectrum,
            SlotKind::InverseRoot => plan.inverse_root.or(plan.root_diagonal),
            _ => None,
        };
        let dim = plan.dim;
        let slot = slot.ok_or_else(|| {
            Error::invalid(format!(
                "axis {} has no {}: expected one that this preconditioner keeps for the axis",
                plan.axis,
                kind.name()
            ))
        })?;
        let in_basis = self.plan().slots[slot].kind == SlotKind::RotatedStatistic;
        let values = self.slot_values(slot)?;
        let shape = if kind.is_vector() { (1, dim) } else { (dim, dim) };
        let shaped = |values| {
            Array2::from_shape_vec(shape, values)
                .map_err(|_| Error::invalid("a factor's buffer has another size"))
        };
        if kind != SlotKind::Statistic {
            return shaped(values);
        }
        // Column-major storage, of which the lower triangle counts.
        let weight = self.engine.clocks[self.plan().factors[factor].block].weight;
        // Statistics in the basis decay in every step.
        let weight = if in_basis { 1.0 } else { weight };
        let lower = |k: usize| (k / dim).max(k % dim) + (k / dim).min(k % dim) * dim;
        let whole = (0..dim * dim).map(|k| weight * values[lower(k)]);
        shaped(listed(whole, "a factor's matrix")?)
    }

    /// Q diag(r) Qᵀ: the inverse root where none is kept.
    fn composed(&mut self, basis: usize, roots: usize) -> Result<Array2<f64>> {
        let (q, r) = (self.slot_values(basis)?, self.slot_values(roots)?);
        let n = r.len();
        let entry = |k: usize| (0..n).map(|j| q[j * n + k / n] * r[j] * q[j * n + k % n]).sum::<f64>();
        let values = listed((0..n * n).map(entry), "a factor's matrix")?;
        Array2::from_shape_vec((n, n), values)
            .map_err(|_| Error::invalid("a factor's buffer has another size"))
    }

    fn slot_values(&mut self, slot: usize) -> Result<Vec<f64>> {
        let plan = &self.plan().slots[slot];
        let what = "a copy of a factor's buffer";
        let (mut bytes, precision) = (filled(0u8, plan.saved_bytes(), what)?, plan.precision);
        self.read_slot(slot, &mut bytes)?;
        let narrow = |b| f64::from(bytemuck::pod_read_unaligned::<f32>(b));
        match precision {
            Precision::F32 => listed(bytes.chunks_exact(4).map(narrow), what),
            Precision::F64 => listed(bytes.chunks_exact(8).map(bytemuck::pod_read_unaligned), what),
        }
    }

    /// The exact relative operator gap of a factor at this moment: what the proxy estimates, at the
    /// price of an eigendecomposition in double precision.
    pub fn exact_gap(&mut self, factor: usize) -> Result<f64> {
        if self.records()[factor].counters.has_basis == 0 {
            let param = self.plan().blocks[self.plan().factors[factor].block].param;
            let name = &self.plan().params[param].spec.name;
            let message =
                format!("parameter '{name}' has no basis yet; expected a call after its first check");
            return Err(Error::invalid(message).at(param));
        }
        let rules = Rules::new(self.config(), 0.0, 1.0);
        let scale = rules.statistic_scale(self.engine.clocks[self.plan().factors[factor].block]);
        let epsilon = self.records()[factor].gauges.epsilon;
        let plan = &self.plan().factors[factor];
        let exponent = plan.exponent;
        let (Some(statistic), Some(basis), Some(spectrum)) = (plan.statistic, plan.basis, plan.spectrum)
        else {
            return Err(Error::invalid(
                "SOAP has no inverse roots and no operator gap; expected preconditioner = shampoo",
            ));
        };
        let [statistic, basis, spectrum] = [statistic, basis, spectrum].map(|slot| self.slot_values(slot));
        let (statistic, basis, spectrum) = (statistic?, basis?, spectrum?);
        let in_use = InUse { statistic: &statistic, basis: &basis, spectrum: &spectrum, exponent };
        gap::exact_gap(&in_use, scale, epsilon)
    }
}
