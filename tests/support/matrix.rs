//! Small symmetric matrices, the slow and obvious way.

use faer::{Mat, Side};
use ndarray::{Array1, Array2};

/// A square matrix from its rows, one after the other.
pub fn square(values: Vec<f64>) -> Array2<f64> {
    let n = values.len().isqrt();
    Array2::from_shape_vec((n, n), values).expect("a square number of values")
}

/// Frobenius norm.
pub fn norm(a: &Array2<f64>) -> f64 {
    a.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// ‖a − b‖_F / ‖b‖_F.
pub fn distance(a: &Array2<f64>, b: &Array2<f64>) -> f64 {
    norm(&(a - b)) / norm(b)
}

/// The largest |a_i − b_i| over the largest |b_i|.
pub fn difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let size = b.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    let off = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    // A NaN must not get lost in a maximum.
    off.fold(0.0f64, |most, x| if x > most || x.is_nan() { x } else { most }) / size.max(f64::MIN_POSITIVE)
}

/// Eigenvalues, ascending, and eigenvectors as columns.
pub fn eigen(a: &Array2<f64>) -> (Array1<f64>, Array2<f64>) {
    let n = a.nrows();
    let done = Mat::from_fn(n, n, |i, j| a[(i, j)]).self_adjoint_eigen(Side::Lower).expect("a finite matrix");
    let (values, vectors) = (done.S().column_vector(), done.U());
    (Array1::from_shape_fn(n, |i| values[i]), Array2::from_shape_fn((n, n), |(i, j)| vectors[(i, j)]))
}

/// Q diag(d) Qᵀ.
pub fn compose(q: &Array2<f64>, d: &Array1<f64>) -> Array2<f64> {
    (q * d).dot(&q.t())
}

/// a^exponent of a positive definite matrix.
pub fn power(a: &Array2<f64>, exponent: f64) -> Array2<f64> {
    let (d, q) = eigen(a);
    compose(&q, &d.mapv(|x| x.powf(exponent)))
}
