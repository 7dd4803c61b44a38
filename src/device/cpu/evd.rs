//! Symmetric eigendecompositions: the fast one in either precision, two slower ones to fall back on,
//! and the test that a result must pass.

use super::real::{Real, vectorized, wide_sum_of_squares};
use super::tridiagonal;
use crate::error::{Error, Result};
use crate::memory::{filled, listed};
use faer::diag::{DiagMut, DiagRef};
use faer::dyn_stack::{MemBuffer, MemStack, StackReq};
use faer::linalg::evd::{
    ComputeEigenvectors, SelfAdjointEvdParams, self_adjoint_evd, self_adjoint_evd_scratch,
    tridiagonal_self_adjoint_evd,
};
use faer::linalg::householder::{
    apply_block_householder_sequence_on_the_left_in_place_with_conj as reflect, upgrade_householder_factor,
};
use faer::linalg::qr::no_pivoting::factor::recommended_block_size;
use faer::linalg::svd::{ComputeSvdVectors, svd, svd_scratch};
use faer::linalg::temp_mat_zeroed;
use faer::mat::AsMatMut;
use faer::reborrow::{Reborrow, ReborrowMut};
use faer::{Auto, Conj, MatMut, MatRef, Par, Spec};

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
    // faer's formula subtracts one from the side. It counts a square, which the tridiagonal form takes with its padding.
    let whole = self_adjoint_evd_scratch::<S>(n.max(1), ComputeEigenvectors::Yes, Par::Seq, tuned::<S>());
    whole.and(StackReq::new_aligned::<S>(tridiagonal::room(n) + 2 * tridiagonal::padded(n), ALIGNMENT))
}

/// Bytes to which the columns of a tridiagonal form are aligned.
const ALIGNMENT: usize = 64;

/// A = Q diag(D) Qᵀ, column-major; false if it did not converge.
pub(super) fn decompose<S: Real>(a: &[S], spectrum: &mut [S], basis: &mut [S], stack: &mut MemStack) -> bool {
    let n = spectrum.len();
    if size_of::<S>() == size_of::<f32>() && n > 2 {
        // The same type: there is one of that size.
        let cast = |numbers| bytemuck::cast_slice_mut::<S, f32>(numbers);
        return decompose_single(bytemuck::cast_slice(a), cast(spectrum), cast(basis), stack);
    }
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

/// The same in single precision: the tridiagonal form is our own, its decomposition and the way back are faer's.
fn decompose_single(a: &[f32], spectrum: &mut [f32], basis: &mut [f32], stack: &mut MemStack) -> bool {
    let n = spectrum.len();
    let stride = tridiagonal::padded(n);
    let (mut form, stack) = stack.make_aligned_with(stride * tridiagonal::columns(n), ALIGNMENT, |_| 0f32);
    for (column, a) in form.chunks_exact_mut(stride).zip(a.chunks_exact(n)) {
        column[..n].copy_from_slice(a);
    }
    let block = recommended_block_size::<f32>(n, n);
    let (mut factors, stack) = temp_mat_zeroed::<f32, _, _>(block, n - 1, stack);
    let mut factors = factors.as_mat_mut();
    let (mut ends, stack) = stack.make_with(2 * n, |_| 0f32);
    let (diagonal, below) = ends.split_at_mut(n);
    {
        let (mut room, _) = stack.make_aligned_with(tridiagonal::room(n), ALIGNMENT, |_| 0f32);
        // The τ lie where the numbers below the diagonal will.
        tridiagonal::tridiagonalize(&mut form, n, below, &mut room);
    }
    for k in 0..n {
        diagonal[k] = form[k + k * stride];
        if k + 1 < n {
            factors[(k % block, k)] = std::mem::replace(&mut below[k], form[k + 1 + k * stride]);
        }
    }
    let form = MatRef::from_column_major_slice_with_stride(&form, n, n, stride);
    let reflections = form.submatrix(1, 0, n - 1, n - 1);
    let mut basis = MatMut::from_column_major_slice_mut(basis, n, n);
    let solved = tridiagonal_self_adjoint_evd(
        DiagRef::from_slice(diagonal),
        DiagRef::from_slice(below),
        DiagMut::from_slice_mut(spectrum),
        Some(basis.rb_mut()),
        Par::Seq,
        stack,
        tuned::<f32>(),
    );
    // Each block of reflections is I − V·F⁻¹·Vᵀ: F has the τ on its diagonal, and VᵀV above it.
    for from in (0..n - 1).step_by(block) {
        let count = block.min(n - 1 - from);
        let own = reflections.submatrix(from, from, n - 1 - from, count);
        let factor = factors.rb_mut().submatrix_mut(0, from, count, count);
        upgrade_householder_factor(factor, own, block, 1, Par::Seq);
    }
    reflect(reflections, factors.rb(), Conj::No, basis.subrows_mut(1, n - 1), Par::Seq, stack);
    solved.is_ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Q Λ Qᵀ for a fixed orthogonal Q, scaled to norm 1.
    fn with_spectrum(values: &[f64]) -> Vec<f64> {
        let n = values.len();
        let mut seed = 17;
        let mut basis: Vec<f64> = (0..n * n).map(|k| sign(&mut seed) * (1.0 + (k % 7) as f64)).collect();
        // Gram and Schmidt, twice.
        for _ in 0..2 {
            for j in 0..n {
                let (before, rest) = basis.split_at_mut(j * n);
                let own = &mut rest[..n];
                for other in before.chunks_exact(n) {
                    let dot: f64 = own.iter().zip(other).map(|(x, y)| x * y).sum();
                    own.iter_mut().zip(other).for_each(|(x, y)| *x -= dot * y);
                }
                let norm = own.iter().map(|x| x * x).sum::<f64>().sqrt();
                own.iter_mut().for_each(|x| *x /= norm);
            }
        }
        let entry = |i: usize, j: usize| -> f64 {
            values.iter().enumerate().map(|(k, d)| d * basis[i + k * n] * basis[j + k * n]).sum()
        };
        (0..n * n).map(|k| entry((k % n).max(k / n), (k % n).min(k / n))).collect()
    }

    fn check<S: Real>(name: &str, a: &[f64], expected: Option<&[f64]>) {
        let n = (a.len() as f64).sqrt() as usize;
        let a: Vec<S> = a.iter().map(|x| S::of(*x)).collect();
        let norm = a.iter().map(|x| x.wide().powi(2)).sum::<f64>().sqrt();
        let (mut spectrum, mut basis) = (vec![S::default(); n], vec![S::default(); n * n]);
        // Not a zero of what a decomposition before has left in the scratch is taken for granted.
        let mut memory = MemBuffer::new(scratch::<S>(n));
        memory.fill(std::mem::MaybeUninit::new(0x7f));
        if !decompose(&a, &mut spectrum, &mut basis, MemStack::new(&mut memory)) {
            // A refresh then goes on to double precision. It is for faer's tridiagonal problem to fail.
            let (d, q) = (
                DiagMut::from_slice_mut(&mut spectrum),
                MatMut::from_column_major_slice_mut(&mut basis, n, n),
            );
            let a = MatRef::from_column_major_slice(&a, n, n);
            let stack = MemStack::new(&mut memory);
            let faer = self_adjoint_evd(a, d, Some(q), Par::Seq, stack, tuned::<S>());
            return assert!(faer.is_err(), "{name}, side {n}");
        }
        let tolerance = 20.0 * (n as f64).sqrt() * S::STEP;
        assert!(spectrum.windows(2).all(|pair| pair[0] <= pair[1]), "{name}, side {n}");
        for i in 0..n {
            for j in 0..n {
                let dot: f64 = (0..n).map(|k| basis[k + i * n].wide() * basis[k + j * n].wide()).sum();
                let missing = (dot - if i == j { 1.0 } else { 0.0 }).abs();
                assert!(missing <= tolerance, "{name}, side {n}: QᵀQ is off by {missing} at {i}, {j}");
                let made = |k: usize| spectrum[k].wide() * basis[i + k * n].wide() * basis[j + k * n].wide();
                let wrong = ((0..n).map(made).sum::<f64>() - a[i + j * n].wide()).abs();
                assert!(wrong <= tolerance * norm, "{name}, side {n}: A is off by {wrong} at {i}, {j}");
            }
        }
        for (k, d) in expected.unwrap_or_default().iter().enumerate() {
            let off = (spectrum[k].wide() - d).abs();
            assert!(off <= tolerance * norm, "{name}, side {n}: eigenvalue {k} is off by {off}");
        }
        let mut room = vec![0.0; SOUND_ROOM * n];
        assert!(is_sound(&a, &spectrum, &basis, &mut room), "{name}, side {n}");
    }

    fn check_all(n: usize) {
        let both = |name: &str, a: &[f64], expected: Option<&[f64]>| {
            check::<f32>(name, a, expected);
            check::<f64>(name, a, expected);
        };
        let place = |k: usize| (k + 1) as f64 / n as f64;
        let spectra: [(&str, Vec<f64>); 6] = [
            ("even", (0..n).map(place).collect()),
            ("graded", (0..n).map(|k| 10f64.powf(-12.0 * (1.0 - place(k)))).collect()),
            ("clusters", (0..n).map(|k| 1.0 + (3 * k / n) as f64 + 1e-9 * place(k)).collect()),
            ("of low rank", (0..n).map(|k| if k < n - n / 4 { 0.0 } else { place(k) }).collect()),
            ("one", vec![1.0; n]),
            ("of both signs", (0..n).map(|k| place(k) - 0.5).collect()),
        ];
        for (name, values) in spectra {
            both(name, &with_spectrum(&values), Some(&values));
        }
        let sparse: Vec<f64> = (0..n * n)
            .map(|k| if (k % n).abs_diff(k / n) == n / 2 || k % n == k / n { 1.0 } else { 0.0 })
            .collect();
        both("sparse", &sparse, None);
        let tridiagonal: Vec<f64> =
            (0..n * n).map(|k| [2.0, -1.0, 0.0][(k % n).abs_diff(k / n).min(2)]).collect();
        both("tridiagonal", &tridiagonal, None);
        // Next to a one, numbers whose squares are no numbers any more, and denormal ones.
        for small in [1e-25, 1e-41, 1e-170, 1e-310] {
            let a: Vec<f64> = (0..n * n)
                .map(|k| if k == 0 { 1.0 } else { small * (1.0 + ((k % n) * (k / n) % 5) as f64) })
                .collect();
            both("with tiny numbers", &a, None);
        }
    }

    #[test]
    fn a_decomposition_is_orthogonal_and_gives_the_matrix_back() {
        for n in [1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 33, 64, 65, 100, 130] {
            check_all(n);
        }
    }
}
