//! Small tridiagonal problems, by the implicit QL algorithm in double precision.

/// Largest side.
pub(super) const LEAF: usize = 16;

/// Sweeps for one eigenvalue; two are usual.
const MOST_SWEEPS: usize = 60;
/// A number below the diagonal this small, relative to its neighbours on it, is taken for zero.
const NEGLIGIBLE: f64 = 1e-12;
/// The same relative to the largest number of the matrix.
const ABSENT: f64 = 1e-14;

/// A vector of a small problem: numbers beyond its side are zero.
pub(super) type Column = [f64; LEAF];

/// `diagonal` becomes the eigenvalues, in no order, and `vectors` the eigenvectors; `below`, which has as many numbers,
/// the last of them unused, is destroyed. False if it did not converge.
#[inline(always)]
pub(super) fn solve(diagonal: &mut [f64], below: &mut [f64], vectors: &mut [Column; LEAF]) -> bool {
    let n = diagonal.len();
    let (d, e) = (diagonal, &mut below[..n]);
    e[n - 1] = 0.0;
    *vectors = [[0.0; LEAF]; LEAF];
    for (k, column) in vectors.iter_mut().enumerate() {
        column[k] = 1.0;
    }
    let largest = d.iter().chain(e.iter()).fold(0.0, |largest: f64, x| largest.max(x.abs()));
    for first in 0..n {
        let mut sweeps = 0;
        loop {
            let is_negligible = |k: &usize| {
                e[*k].abs() <= (NEGLIGIBLE * (d[*k].abs() + d[*k + 1].abs())).max(ABSENT * largest)
            };
            let last = (first..n - 1).find(is_negligible).unwrap_or(n - 1);
            if last == first {
                break;
            }
            sweeps += 1;
            if sweeps > MOST_SWEEPS {
                return false;
            }
            sweep(d, e, first, last, vectors);
        }
    }
    true
}

/// One sweep over the part from `first` to `last`, with Wilkinson's shift.
#[inline(always)]
fn sweep(d: &mut [f64], e: &mut [f64], first: usize, last: usize, vectors: &mut [Column; LEAF]) {
    let ratio = (d[first + 1] - d[first]) / (2.0 * e[first]);
    let shift = e[first] / (ratio + (1.0 + ratio * ratio).sqrt().copysign(ratio));
    let mut g = d[last] - d[first] + shift;
    let (mut s, mut c, mut p) = (1.0, 1.0, 0.0);
    let mut upper = vectors[last];
    for k in (first..last).rev() {
        let (f, b) = (s * e[k], c * e[k]);
        let norm = (f * f + g * g).sqrt();
        e[k + 1] = norm;
        if norm == 0.0 {
            // Nothing is left to rotate: the part ends here.
            d[k + 1] -= p;
            e[last] = 0.0;
            vectors[k + 1] = upper;
            return;
        }
        let inverse = 1.0 / norm;
        (s, c) = (f * inverse, g * inverse);
        g = d[k + 1] - p;
        let r = (d[k] - g) * s + 2.0 * c * b;
        p = s * r;
        d[k + 1] = g + p;
        g = c * r - b;
        let lower = vectors[k];
        vectors[k + 1] = std::array::from_fn(|i| s * lower[i] + c * upper[i]);
        upper = std::array::from_fn(|i| c * lower[i] - s * upper[i]);
    }
    vectors[first] = upper;
    d[first] -= p;
    e[first] = g;
    e[last] = 0.0;
}
