//! Symmetric eigendecompositions: the fast one in either precision, two slower ones to fall back on,
//! and the test that a result must pass.

use super::real::{Real, vectorized, wide_sum_of_squares};
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

/// Divide and conquer goes down to blocks of this side, smaller ones take the QR algorithm. Measured: faer's default
/// of 128 costs up to 13 % on sides from 96 to 256, half of this 2 to 6 %; above 500 all are equal.
const RECURSION: usize = 64;

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
        product::<_, 1>(&scaled, bytemuck::cast_slice(q), bytemuck::cast_slice_mut(&mut image));
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

/// Vectors that are worked on together: number i of each of them lies at place i.
type Together<const K: usize> = [[f64; K]];

/// y = A·x for a column-major A.
#[inline(always)]
fn product<S: Real, const K: usize>(a: &[S], x: &Together<K>, y: &mut Together<K>) {
    y.fill([0.0; K]);
    for (column, x) in a.chunks_exact(x.len()).zip(x) {
        for (y, a) in y.iter_mut().zip(column) {
            y.iter_mut().zip(x).for_each(|(y, x)| *y += a.wide() * x);
        }
    }
}

/// y = Qᵀ·x for a column-major Q.
#[inline(always)]
fn coordinates<S: Real, const K: usize>(q: &[S], x: &Together<K>, y: &mut Together<K>) {
    for (y, column) in y.iter_mut().zip(q.chunks_exact(x.len())) {
        // Two sums, so that an addition need not wait for the one before.
        let mut sums = [[0.0; K]; 2];
        for (place, (q, x)) in column.iter().zip(x).enumerate() {
            sums[place % 2].iter_mut().zip(x).for_each(|(sum, x)| *sum += q.wide() * x);
        }
        y.iter_mut().enumerate().for_each(|(k, y)| *y = sums[0][k] + sums[1][k]);
    }
}

/// Sign vectors that a decomposition is tried on.
const PROBES: usize = 4;
/// Numbers per side of a matrix that [`is_sound`] uses.
pub(super) const SOUND_ROOM: usize = 4 * PROBES;

/// Whether Q is orthogonal and Q diag(D) Qᵀ is A, tried on a few sign vectors: for a random z,
/// E‖(QᵀQ − I)z‖² = ‖QᵀQ − I‖_F², at the price of O(n²) instead of O(n³). `room` is for [`SOUND_ROOM`] vectors.
pub(super) fn is_sound<S: Real>(a: &[S], spectrum: &[S], basis: &[S], room: &mut [f64]) -> bool {
    vectorized(
        #[inline(always)]
        || is_sound_in(a, spectrum, basis, room),
    )
}

#[inline(always)]
fn is_sound_in<S: Real>(a: &[S], spectrum: &[S], basis: &[S], room: &mut [f64]) -> bool {
    let n = spectrum.len();
    // An infinity or a NaN among them makes the sum one.
    let sizes = [wide_sum_of_squares(a), wide_sum_of_squares(basis), wide_sum_of_squares(spectrum)];
    if !sizes.iter().sum::<f64>().is_finite() {
        return false;
    }
    let size = sizes[0].sqrt();
    let room: &mut Together<PROBES> = bytemuck::cast_slice_mut(&mut room[..SOUND_ROOM * n]);
    let (z, rest) = room.split_at_mut(n);
    let (x, rest) = rest.split_at_mut(n);
    let (y, last) = rest.split_at_mut(n);
    draw(z);
    let norm = (n as f64).sqrt();
    product(basis, z, x);
    coordinates(basis, x, y);
    let missing = distances(y, z);
    coordinates(basis, z, x);
    x.iter_mut().zip(spectrum).for_each(|(x, d)| x.iter_mut().for_each(|x| *x *= d.wide()));
    product(basis, x, y);
    product(a, z, last);
    let wrong = distances(y, last);
    missing.iter().all(|missing| missing / norm <= S::BASIS_TOLERANCE)
        && wrong.iter().all(|wrong| *wrong <= S::BASIS_TOLERANCE * size * norm)
}

#[inline(always)]
fn distances(x: &Together<PROBES>, y: &Together<PROBES>) -> [f64; PROBES] {
    let mut sums = [0.0; PROBES];
    for (x, y) in x.iter().zip(y) {
        sums.iter_mut().zip(x.iter().zip(y)).for_each(|(sum, (x, y))| *sum += (x - y) * (x - y));
    }
    sums.map(f64::sqrt)
}

/// ‖(QᵀQ − I)z‖, the largest over a few sign vectors z: E‖(QᵀQ − I)z‖² = ‖QᵀQ − I‖_F². `room` is for [`SOUND_ROOM`]
/// vectors.
pub(super) fn defect<S: Real>(basis: &[S], n: usize, room: &mut [f64]) -> f64 {
    vectorized(
        #[inline(always)]
        || {
            let room: &mut Together<PROBES> = bytemuck::cast_slice_mut(&mut room[..SOUND_ROOM * n]);
            let (z, rest) = room.split_at_mut(n);
            let (x, y) = rest.split_at_mut(n);
            let y = &mut y[..n];
            draw(z);
            product(basis, z, x);
            coordinates(basis, x, y);
            distances(y, z).into_iter().fold(0.0, f64::max)
        },
    )
}

/// Fills vectors with signs, the same ones each time.
#[inline(always)]
fn draw(z: &mut Together<PROBES>) {
    let mut seed = 0x9E37_79B9_7F4A_7C15u64;
    for probe in 0..PROBES {
        z.iter_mut().for_each(|z| z[probe] = sign(&mut seed));
    }
}

/// ±1 by xorshift.
fn sign(seed: &mut u64) -> f64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    if *seed >> 63 == 0 { 1.0 } else { -1.0 }
}
