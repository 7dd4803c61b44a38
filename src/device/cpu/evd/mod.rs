//! Symmetric eigendecompositions: the fast one in either precision, two slower ones to fall back on,
//! and the test that a result must pass.

mod divide;
mod leaf;
mod merge;
mod secular;
mod sound;
mod tridiagonal;

use super::Places;
use super::phases::Phases;
use super::pool::Workers;
use super::real::Real;
use crate::error::{Error, Result};
use crate::memory::{filled, listed};
use divide::Problem;
use faer::diag::DiagMut;
use faer::dyn_stack::{MemBuffer, MemStack, StackReq};
use faer::linalg::evd::{
    ComputeEigenvectors, SelfAdjointEvdParams, self_adjoint_evd, self_adjoint_evd_scratch,
};
use faer::linalg::householder::{
    apply_block_householder_sequence_on_the_left_in_place_scratch as reflect_scratch,
    apply_block_householder_sequence_on_the_left_in_place_with_conj as reflect, upgrade_householder_factor,
};
use faer::linalg::svd::{ComputeSvdVectors, svd, svd_scratch};
use faer::linalg::{temp_mat_scratch, temp_mat_zeroed};
use faer::mat::AsMatMut;
use faer::{Auto, Conj, MatMut, MatRef, Par, Spec};
use sound::product;
pub(super) use sound::{SOUND_ROOM, defect, is_sound};
use std::mem::MaybeUninit;

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
    let whole = self_adjoint_evd_scratch::<S>(n.max(1), ComputeEigenvectors::Yes, Par::Seq, tuned::<S>());
    if size_of::<S>() == size_of::<f32>() && n > 2 { whole.or(scratch_single(n)) } else { whole }
}

fn scratch_single(n: usize) -> StackReq {
    let (block, side) = (together(n), divide::padded(n));
    let singles = |count: usize| StackReq::new_aligned::<f32>(count, ALIGNMENT);
    StackReq::all_of(&[
        singles(tridiagonal::padded(n) * tridiagonal::columns(n)),
        temp_mat_scratch::<f32>(block, n - 1),
        StackReq::new_aligned::<f64>(divide::LISTS * side, ALIGNMENT),
        StackReq::new_aligned::<u32>(divide::ORDERS * side, ALIGNMENT),
        singles(2 * side * side).or(singles(tridiagonal::room(n))).or(go_back_scratch(n, block)),
    ])
}

/// From this side on a decomposition is shared among threads; in what parts depends on the side alone.
const SHARED: usize = 384;

/// Whether [`decompose`] in single precision has something to do for several threads.
pub(super) fn is_shared(n: usize) -> bool {
    n >= SHARED
}

/// Bytes to which memory is aligned.
const ALIGNMENT: usize = 64;

/// A = Q diag(D) Qᵀ, column-major; false if it did not converge. Threads of `workers` that are free help with a large
/// matrix; the result does not depend on how many do.
pub(super) fn decompose<S: Real>(
    a: &[S],
    spectrum: &mut [S],
    basis: &mut [S],
    stack: &mut MemStack,
    workers: Option<&Workers>,
) -> bool {
    let n = spectrum.len();
    if size_of::<S>() == size_of::<f32>() && n > 2 {
        // The same type: there is one of that size.
        let cast = |numbers| bytemuck::cast_slice_mut::<S, f32>(numbers);
        let (a, spectrum, basis) = (bytemuck::cast_slice(a), cast(spectrum), cast(basis));
        return match workers.filter(|_| n >= SHARED) {
            Some(workers) => {
                let job = |phases: &Phases| decompose_single(a, spectrum, basis, stack, phases);
                Phases::run(workers, job).unwrap_or(false)
            }
            None => decompose_single(a, spectrum, basis, stack, &Phases::alone()),
        };
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

/// The same in single precision: the tridiagonal form and its decomposition are our own, the reflections back are faer's.
fn decompose_single(
    a: &[f32],
    spectrum: &mut [f32],
    basis: &mut [f32],
    stack: &mut MemStack,
    phases: &Phases,
) -> bool {
    let n = spectrum.len();
    let stride = tridiagonal::padded(n);
    let (mut form, stack) = stack.make_aligned_with(stride * tridiagonal::columns(n), ALIGNMENT, |_| 0f32);
    for (column, a) in form.chunks_exact_mut(stride).zip(a.chunks_exact(n)) {
        column[..n].copy_from_slice(a);
    }
    let block = together(n);
    let (mut factors, stack) = temp_mat_zeroed::<f32, _, _>(block, n - 1, stack);
    let mut factors = factors.as_mat_mut();
    let side = divide::padded(n);
    let (mut lists, stack) = stack.make_aligned_with(divide::LISTS * side, ALIGNMENT, |_| 0f64);
    let (mut orders, stack) = stack.make_aligned_with(divide::ORDERS * side, ALIGNMENT, |_| 0u32);
    let (diagonal, lists) = lists.split_at_mut(side);
    let (below, lists) = lists.split_at_mut(side);
    {
        let (mut room, _) = stack.make_aligned_with(tridiagonal::room(n), ALIGNMENT, |_| 0f32);
        let taus = &mut bytemuck::cast_slice_mut(lists)[..n];
        tridiagonal::tridiagonalize(&mut form, n, taus, &mut room, phases);
        for k in 0..n {
            diagonal[k] = f64::from(form[k + k * stride]);
            if k + 1 < n {
                below[k] = f64::from(form[k + 1 + k * stride]);
                factors[(k % block, k)] = taus[k];
            }
        }
    }
    let solved = {
        let (mut room, _) = stack.make_aligned_with(2 * side * side, ALIGNMENT, |_| 0f32);
        let (packed, vectors) = room.split_at_mut(side * side);
        let problem =
            Problem { side: n, diagonal, below, basis, packed, vectors, lists, orders: &mut orders };
        divide::solve(problem, phases)
    };
    spectrum.iter_mut().zip(&*diagonal).for_each(|(value, d)| *value = *d as f32);
    let form = MatRef::from_column_major_slice_with_stride(&form, n, n, stride);
    go_back(form.submatrix(1, 0, n - 1, n - 1), factors, basis, stack, phases);
    solved
}

/// Reflections that are applied together. Measured: on the sides 32 to 256, 16 take 0.55 to 0.95 of the time of what faer
/// takes for a QR decomposition, which is 4 to 32; on tiny sides none is as fast as one by one.
fn together(n: usize) -> usize {
    match n {
        ..12 => 1,
        12..SHARED => 16,
        _ => 32,
    }
}

/// Vectors of a large matrix that are reflected together.
const COLUMNS: usize = 128;

/// How many vectors of side `n` are reflected together, and the bytes that takes.
fn go_back_shape(n: usize, block: usize) -> (usize, usize) {
    let width = if n < SHARED { n } else { COLUMNS };
    (
        width,
        reflect_scratch::<f32>(n - 1, block, width).unaligned_bytes_required().next_multiple_of(ALIGNMENT),
    )
}

fn go_back_scratch(n: usize, block: usize) -> StackReq {
    let (width, need) = go_back_shape(n, block);
    StackReq::new_aligned::<u8>(n.div_ceil(width) * need, ALIGNMENT)
}

/// The columns of the basis, without their first numbers, become those of the matrix whose reflections are given.
fn go_back(
    reflections: MatRef<f32>,
    factors: MatMut<f32>,
    basis: &mut [f32],
    stack: &mut MemStack,
    phases: &Phases,
) {
    let (n, block) = (reflections.ncols() + 1, factors.nrows());
    let (col_stride, factors, basis) =
        (factors.col_stride(), Places(factors.as_ptr_mut()), Places(basis.as_mut_ptr()));
    // Each block of reflections is I − V·F⁻¹·Vᵀ: F has the τ on its diagonal, and VᵀV above it.
    phases.share((n - 1).div_ceil(block), &|number| {
        let from = number * block;
        let count = block.min(n - 1 - from);
        let own = reflections.submatrix(from, from, n - 1 - from, count);
        let factor = factors.at(from * col_stride as usize);
        // SAFETY: each has its own columns.
        let factor = unsafe { MatMut::from_raw_parts_mut(factor, count, count, 1, col_stride) };
        upgrade_householder_factor(factor, own, block, 1, Par::Seq);
    });
    let (width, need) = go_back_shape(n, block);
    let tasks = n.div_ceil(width);
    let (mut room, _) = stack.make_aligned_with(tasks * need, ALIGNMENT, |_| MaybeUninit::<u8>::uninit());
    let room = Places(room.as_mut_ptr());
    phases.share(tasks, &|number| {
        let (from, count) = (number * width, width.min(n - number * width));
        // SAFETY: each has its own columns and room; the factors are not written any more.
        let (columns, factors, room) = unsafe {
            (
                MatMut::from_raw_parts_mut(basis.at(from * n + 1), n - 1, count, 1, n as isize),
                MatRef::from_raw_parts(factors.at(0).cast_const(), block, n - 1, 1, col_stride),
                std::slice::from_raw_parts_mut(room.at(number * need), need),
            )
        };
        reflect(reflections, factors, Conj::No, columns, Par::Seq, MemStack::new(room));
    });
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

#[cfg(test)]
mod tests;
