//! The verb `redamp`: the inverse root Q (D + ε)^(−1/p) Qᵀ, formed as B Bᵀ with B = Q (D + ε)^(−1/2p),
//! so that only half of it is computed and it is symmetric to the last bit. Where none is kept, only its eigenvalues
//! (D + ε)^(−1/p) are.

use super::product::{Span2, mirror, multiply_lower};
use super::real::Real;
use super::scratch::{PADDING, Scratch};
use super::{Cpu, Places, Precision, Shared, by_precision, square};
use crate::device::RedampOrder;
use crate::engine::plan::FactorPlan;
use crate::preconditioner::damping::{inverse_power, root_weight};

/// Forms inverse roots.
pub(super) fn redamp(cpu: &mut Cpu, orders: &[RedampOrder]) {
    let diagonals = Places(cpu.diagonals.as_mut_ptr());
    cpu.each_factor(orders.len(), &|shared, task, scratch| {
        let order = &orders[task];
        let factor = &shared.plan.factors[order.factor];
        if order.adopt_diagonal {
            let place = shared.diagonal_offsets[order.factor];
            scratch.vector.clear();
            // SAFETY: every factor has its own stretch of diagonals.
            scratch.vector.extend((0..factor.dim).map(|i| unsafe { *diagonals.get(place + i) }));
        }
        by_precision!(shared.plan.param_of(order.factor), redamp_factor(shared, factor, order, scratch));
    });
}

fn redamp_factor<W: Real, S: Real>(
    shared: &Shared,
    factor: &FactorPlan,
    order: &RedampOrder,
    scratch: &mut Scratch,
) {
    let n = factor.dim;
    // SAFETY: the spectrum has n numbers, and only this task touches the factor.
    let spectrum = unsafe { std::slice::from_raw_parts_mut(shared.slot::<S>(factor.spectrum), n) };
    if order.adopt_diagonal {
        spectrum.iter_mut().zip(&scratch.vector).for_each(|(d, x)| *d = S::of(*x));
    }
    let (basis, b) = (shared.slot::<S>(factor.basis), scratch.matrix::<S>(0));
    let stride = n + PADDING;
    // A relative damping promises the same digits at any scale; the others keep those that they always had.
    let relative = factor.damping.ratio > 0.0;
    let epsilon = order.epsilon.at(spectrum.iter().map(|d| d.wide()).fold(0.0, f64::max));
    let weigh = |d: &S| {
        let damped = d.wide().max(0.0) + epsilon;
        S::of(if relative {
            root_weight(damped, factor.exponent)
        } else {
            inverse_power(damped, 0.5 * factor.exponent)
        })
    };
    if let Some(slot) = factor.root_spectrum {
        // SAFETY: n numbers of this factor. The plan gives them and the spectrum one precision.
        let roots = unsafe { std::slice::from_raw_parts_mut(shared.slot::<S>(slot), n) };
        return roots.iter_mut().zip(&*spectrum).for_each(|(root, d)| *root = weigh(d) * weigh(d));
    }
    for (j, d) in spectrum.iter().enumerate() {
        let weight = weigh(d);
        // SAFETY: column j of the basis and of B.
        let (source, target) = unsafe {
            (
                std::slice::from_raw_parts(basis.add(j * n), n),
                std::slice::from_raw_parts_mut(b.add(j * stride), n),
            )
        };
        target.iter_mut().zip(source).for_each(|(t, q)| *t = *q * weight);
    }
    let b = Span2 { data: b, rows: n, cols: n, row: 1, col: stride };
    let root = Span2::square(scratch.matrix::<S>(1), n);
    // SAFETY: two matrices of the scratch; the inverse root has n² numbers, or shares the statistic's, in its precision.
    unsafe {
        multiply_lower(root, false, b, b.t(), S::of(1.0));
        if let Some(diagonal) = factor.root_diagonal {
            mirror::<S, S>(root.data, n, root.data, n, n, 1.0);
            return square::pack(
                root.data,
                n,
                shared.slot::<S>(factor.statistic),
                shared.slot::<S>(diagonal),
            );
        }
        mirror::<S, W>(root.data, n, shared.slot::<W>(factor.inverse_root), n, n, 1.0);
    }
}
