//! Symmetric eigendecompositions: the fast one in either precision, two slower ones to fall back on,
//! and the test that a result must pass.

use super::real::Real;
use crate::error::{Error, Result};
use crate::memory::{filled, listed};
use faer::diag::DiagMut;
use faer::dyn_stack::{MemBuffer, MemStack, StackReq};
use faer::linalg::evd::{
    ComputeEigenvectors, SelfAdjointEvdParams, self_adjoint_evd, self_adjoint_evd_scratch,
};
use faer::linalg::svd::{ComputeSvdVectors, svd, svd_scratch};
use faer::{Auto, MatMut, MatRef, Par, Spec};

/// A decomposition in double precision, column-major.
pub(super) struct Eigen {
    pub spectrum: Vec<f64>,
    pub basis: Vec<f64>,
}

/// Divide and conquer goes down to blocks of this side: faer's default of 128 costs twice the time
/// on factors below 500.
const RECURSION: usize = 32;

fn tuned<S: Real>() -> Spec<SelfAdjointEvdParams, S> {
    let mut params: SelfAdjointEvdParams = <SelfAdjointEvdParams as Auto<S>>::auto();
    params.recursion_threshold = RECURSION;
    Spec::new(params)
}

/// Scratch that [`decompose`] needs for side `n`.
pub(super) fn scratch<S: Real>(n: usize) -> StackReq {
    // faer's formula subtracts one from the side.
    self_adjoint_evd_scratch::<S>(n.max(1), ComputeEigenvectors::Yes, Par::Seq, tuned::<S>())
}

/// A = Q diag(D) Qᵀ, column-major; false if it did not converge.
pub(super) fn decompose<S: Real>(a: &[S], spectrum: &mut [S], basis: &mut [S], stack: &mut MemStack) -> bool {
    let n = spectrum.len();
    self_adjoint_evd(
        MatRef::from_column_major_slice(a, n, n),
        DiagMut::from_slice_mut(spectrum),
        Some(MatMut::from_column_major_slice_mut(basis, n, n)),
        Par::Seq,
        stack,
        tuned::<S>(),
    )
    .is_ok()
}

/// A in double precision, scaled to norm one, with faer's own parameters.
pub(super) fn decompose_double(a: &[f64], n: usize) -> Result<Option<Eigen>> {
    // faer's divide and conquer has absolute cutoffs: a matrix far below norm one loses its digits.
    let Some((scaled, norm)) = unit(a)? else { return Ok(None) };
    let params = Spec::new(<SelfAdjointEvdParams as Auto<f64>>::auto());
    let need = self_adjoint_evd_scratch::<f64>(n, ComputeEigenvectors::Yes, Par::Seq, params);
    let mut scratch = MemBuffer::try_new(need).map_err(|_| refused(need))?;
    let (mut spectrum, mut basis) = (zeros(n)?, zeros(n * n)?);
    let done = self_adjoint_evd(
        MatRef::from_column_major_slice(&scaled, n, n),
        DiagMut::from_slice_mut(&mut spectrum),
        Some(MatMut::from_column_major_slice_mut(&mut basis, n, n)),
        Par::Seq,
        MemStack::new(&mut scratch),
        params,
    );
    if done.is_err() {
        return Ok(None);
    }
    spectrum.iter_mut().for_each(|d| *d *= norm);
    Ok(Some(Eigen { spectrum, basis }))
}

/// The singular value decomposition: for a positive semidefinite A its left vectors are a basis. The
/// spectrum is the Rayleigh quotients, which keep the sign of an eigenvalue that rounding made negative.
pub(super) fn decompose_svd(a: &[f64], n: usize) -> Result<Option<Eigen>> {
    let Some((scaled, norm)) = unit(a)? else { return Ok(None) };
    let params = Spec::default();
    let (yes, no) = (ComputeSvdVectors::Full, ComputeSvdVectors::No);
    let need = svd_scratch::<f64>(n, n, yes, no, Par::Seq, params);
    let mut scratch = MemBuffer::try_new(need).map_err(|_| refused(need))?;
    let (mut values, mut basis, mut image) = (zeros(n)?, zeros(n * n)?, zeros(n)?);
    let matrix = MatRef::from_column_major_slice(&scaled, n, n);
    let done = svd(
        matrix,
        DiagMut::from_slice_mut(&mut values),
        Some(MatMut::from_column_major_slice_mut(&mut basis, n, n)),
        None,
        Par::Seq,
        MemStack::new(&mut scratch),
        params,
    );
    if done.is_err() {
        return Ok(None);
    }
    for (value, q) in values.iter_mut().zip(basis.chunks_exact(n)) {
        product(&scaled, q, &mut image);
        *value = norm * image.iter().zip(q).map(|(x, y)| x * y).sum::<f64>();
    }
    Ok(Some(Eigen { spectrum: values, basis }))
}

fn unit(a: &[f64]) -> Result<Option<(Vec<f64>, f64)>> {
    let norm = a.iter().map(|x| x.abs()).fold(0.0, f64::max);
    if !(norm.is_finite() && norm > 0.0) {
        return Ok(None);
    }
    Ok(Some((listed(a.iter().map(|x| x / norm), DECOMPOSITION)?, norm)))
}

/// What the memory of a decomposition is called in errors.
const DECOMPOSITION: &str = "a decomposition";

fn zeros(count: usize) -> Result<Vec<f64>> {
    filled(0.0, count, DECOMPOSITION)
}

fn refused(need: StackReq) -> Error {
    Error::out_of_memory(DECOMPOSITION, need.unaligned_bytes_required() as u128)
}

/// y = A·x for a column-major A.
fn product<S: Real>(a: &[S], x: &[f64], y: &mut [f64]) {
    y.fill(0.0);
    for (column, x) in a.chunks_exact(x.len()).zip(x) {
        y.iter_mut().zip(column).for_each(|(y, a)| *y += a.wide() * x);
    }
}

/// y = Qᵀ·x for a column-major Q.
fn coordinates<S: Real>(q: &[S], x: &[f64], y: &mut [f64]) {
    for (y, column) in y.iter_mut().zip(q.chunks_exact(x.len())) {
        *y = column.iter().zip(x).map(|(q, x)| q.wide() * x).sum();
    }
}

/// Sign vectors that a decomposition is tried on.
const PROBES: u64 = 4;

/// Whether Q is orthogonal and Q diag(D) Qᵀ is A, tried on a few sign vectors: for a random z,
/// E‖(QᵀQ − I)z‖² = ‖QᵀQ − I‖_F², at the price of O(n²) instead of O(n³). `room` is for four vectors.
pub(super) fn is_sound<S: Real>(a: &[S], spectrum: &[S], basis: &[S], room: &mut [f64]) -> bool {
    let n = spectrum.len();
    if spectrum.iter().any(|d| !d.wide().is_finite()) || basis.iter().any(|q| !q.wide().is_finite()) {
        return false;
    }
    let size = a.iter().map(|x| x.wide() * x.wide()).sum::<f64>().sqrt();
    let mut seed = 0x9E37_79B9_7F4A_7C15u64;
    let (z, rest) = room.split_at_mut(n);
    let (x, rest) = rest.split_at_mut(n);
    let (y, rest) = rest.split_at_mut(n);
    let last = &mut rest[..n];
    (0..PROBES).all(|_| {
        z.iter_mut().for_each(|z| *z = sign(&mut seed));
        let norm = (n as f64).sqrt();
        product(basis, z, x);
        coordinates(basis, x, y);
        let missing = distance(y, z) / norm;
        coordinates(basis, z, x);
        x.iter_mut().zip(spectrum).for_each(|(x, d)| *x *= d.wide());
        product(basis, x, y);
        product(a, z, last);
        let wrong = distance(y, last);
        missing <= S::BASIS_TOLERANCE && wrong <= S::BASIS_TOLERANCE * size * norm
    })
}

fn distance(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| (x - y) * (x - y)).sum::<f64>().sqrt()
}

/// ±1 by xorshift.
fn sign(seed: &mut u64) -> f64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    if *seed >> 63 == 0 { 1.0 } else { -1.0 }
}
