//! The exact relative operator gap of a factor, for studies and tests: a fresh eigendecomposition in
//! double precision against what is in use.

use super::evd;
use super::product::{self, Span2, multiply};
use crate::error::{Error, Kind, Result};
use crate::memory::{copied, filled, listed};

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
    product::ready()?;
    let n = factor.spectrum.len();
    let lower = |k: usize| (k % n).max(k / n) + (k % n).min(k / n) * n;
    let fresh = listed((0..n * n).map(|k| factor.statistic[lower(k)] * scale), MATRIX)?;
    let in_use = inverse_root(factor.basis, factor.spectrum, epsilon, factor.exponent)?;
    let ideal = if fresh.iter().all(|x| *x == 0.0) {
        let mut ideal = filled(0.0, n * n, MATRIX)?;
        ideal.iter_mut().step_by(n + 1).for_each(|x| *x = epsilon.powf(-factor.exponent));
        ideal
    } else {
        let eigen = match evd::decompose_double(&fresh, n)? {
            Some(eigen) => Some(eigen),
            None => evd::decompose_svd(&fresh, n)?,
        };
        let eigen = eigen.ok_or_else(|| {
            Error::new(Kind::NoConvergence, "the exact eigendecomposition did not converge")
        })?;
        inverse_root(&eigen.basis, &eigen.spectrum, epsilon, factor.exponent)?
    };
    let squares: f64 = ideal.iter().zip(&in_use).map(|(x, y)| (x - y) * (x - y)).sum();
    Ok(squares.sqrt() / in_use.iter().map(|x| x * x).sum::<f64>().sqrt())
}

/// What a matrix is called in errors.
const MATRIX: &str = "a factor's matrix";

fn inverse_root(basis: &[f64], spectrum: &[f64], epsilon: f64, exponent: f64) -> Result<Vec<f64>> {
    let n = spectrum.len();
    let (mut scaled, mut root) = (copied(basis, MATRIX)?, filled(0.0, n * n, MATRIX)?);
    for (column, d) in scaled.chunks_exact_mut(n).zip(spectrum) {
        let weight = (d.max(0.0) + epsilon).powf(-exponent);
        column.iter_mut().for_each(|x| *x *= weight);
    }
    let (q, scaled) = (Span2::square(basis.as_ptr().cast_mut(), n), Span2::square(scaled.as_mut_ptr(), n));
    // SAFETY: three matrices of side n; the first is only read.
    unsafe { multiply(Span2::square(root.as_mut_ptr(), n), false, scaled, q.t(), 1.0) };
    Ok(root)
}
