//! The exact relative operator gap of a factor, for studies and tests: a fresh eigendecomposition in
//! double precision against what is in use.

use super::product::mirror;
use super::real::Real;
use super::{Floor, Precision, evd};
use crate::error::{Error, Kind, Result};
use crate::optimizer::plan::FactorPlan;
use ndarray::{Array2, ShapeBuilder};

/// ‖(L+ε)^(−1/p) − (L̂+ε)^(−1/p)‖_F / ‖(L̂+ε)^(−1/p)‖_F.
pub(super) fn exact_gap(floor: &Floor, factor: usize, scale: f64, epsilon: f64) -> Result<f64> {
    let plan = &floor.plan.factors[factor];
    match floor.plan.param_of(factor).statistic {
        Precision::F32 => gap_of::<f32>(floor, plan, scale, epsilon),
        Precision::F64 => gap_of::<f64>(floor, plan, scale, epsilon),
    }
}

fn gap_of<S: Real>(floor: &Floor, factor: &FactorPlan, scale: f64, epsilon: f64) -> Result<f64> {
    let n = factor.dim;
    let mut fresh = vec![0.0f64; n * n];
    // SAFETY: the statistic has n² numbers.
    unsafe { mirror::<S, f64>(floor.slot::<S>(factor.statistic), n, fresh.as_mut_ptr(), n, scale) };
    // SAFETY: buffers of the factor.
    let (basis, spectrum) = unsafe {
        (
            std::slice::from_raw_parts(floor.slot::<S>(factor.basis), n * n),
            std::slice::from_raw_parts(floor.slot::<S>(factor.spectrum), n),
        )
    };
    let wide = |x: &[S]| x.iter().map(|x| x.wide()).collect::<Vec<f64>>();
    let in_use = inverse_root(&wide(basis), &wide(spectrum), epsilon, factor.exponent);
    let zero = fresh.iter().all(|x| *x == 0.0);
    let ideal = if zero {
        Array2::eye(n) * epsilon.powf(-factor.exponent)
    } else {
        let eigen =
            evd::decompose_double(&fresh, n).or_else(|| evd::decompose_svd(&fresh, n)).ok_or_else(|| {
                Error::new(Kind::NoConvergence, "the exact eigendecomposition did not converge")
            })?;
        inverse_root(&eigen.basis, &eigen.spectrum, epsilon, factor.exponent)
    };
    let norm = |x: &Array2<f64>| x.iter().map(|x| x * x).sum::<f64>().sqrt();
    Ok(norm(&(ideal - &in_use)) / norm(&in_use))
}

fn inverse_root(basis: &[f64], spectrum: &[f64], epsilon: f64, exponent: f64) -> Array2<f64> {
    let n = spectrum.len();
    let q = ndarray::ArrayView2::from_shape((n, n).f(), basis).map(|q| q.to_owned()).unwrap_or_default();
    let mut scaled = q.clone();
    for (mut column, d) in scaled.columns_mut().into_iter().zip(spectrum) {
        column *= (d.max(0.0) + epsilon).powf(-exponent);
    }
    scaled.dot(&q.t())
}
