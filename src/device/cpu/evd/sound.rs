//! The test that a decomposition must pass, at the price of a few products of a matrix with a vector.

use super::super::real::{Real, vectorized, wide_sum_of_squares};

/// Vectors that are worked on together: number i of each of them lies at place i.
type Together<const K: usize> = [[f64; K]];

/// y = A·x for a column-major A.
#[inline(always)]
pub(super) fn product<S: Real, const K: usize>(a: &[S], x: &Together<K>, y: &mut Together<K>) {
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
pub(in super::super) const SOUND_ROOM: usize = 4 * PROBES;

/// Whether Q is orthogonal and Q diag(D) Qᵀ is A, tried on a few sign vectors: for a random z,
/// E‖(QᵀQ − I)z‖² = ‖QᵀQ − I‖_F², at the price of O(n²) instead of O(n³). `room` is for [`SOUND_ROOM`] vectors.
pub(in super::super) fn is_sound<S: Real>(a: &[S], spectrum: &[S], basis: &[S], room: &mut [f64]) -> bool {
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
pub(in super::super) fn defect<S: Real>(basis: &[S], n: usize, room: &mut [f64]) -> f64 {
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
pub(super) fn sign(seed: &mut u64) -> f64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    if *seed >> 63 == 0 { 1.0 } else { -1.0 }
}
