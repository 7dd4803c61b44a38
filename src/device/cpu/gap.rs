//! The exact relative operator gap of a factor, for studies and tests: a fresh eigendecomposition in
//! double precision against what is in use.

use super::evd;
use crate::error::{Error, Kind, Result};
use ndarray::{Array2, ShapeBuilder};

/// A factor as it is in use: all matrices column-major.
pub struct InUse<'a> {
    /// The statistic, of which the lower triangle counts.
    pub statistic: &'a [f64],
    /// The basis.
    pub basis: &'a [f64],
    /// The spectrum.
    pub spectrum: &'a [f64],
    /// 1/p.
    pub exponent: f64,
}

/// ‖(L+ε)^(−1/p) − (L̂+ε)^(−1/p)‖_F / ‖(L̂+ε)^(−1/p)‖_F, for L the statistic times `scale`.
pub fn exact_gap(factor: &InUse, scale: f64, epsilon: f64) -> Result<f64> {
    let n = factor.spectrum.len();
    let lower = |k: usize| (k % n).max(k / n) + (k % n).min(k / n) * n;
    let fresh: Vec<f64> = (0..n * n).map(|k| factor.statistic[lower(k)] * scale).collect();
    let in_use = inverse_root(factor.basis, factor.spectrum, epsilon, factor.exponent);
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
