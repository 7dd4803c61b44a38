//! The errors of an eigensolver that works in the precision of its matrix.
//!
//! The solver is backward stable: it gives the eigenvalues and eigenvectors of A + E, with ‖E‖ some machine epsilons of
//! the largest eigenvalue. So eigenvalues are off by up to that much, small ones may come out negative, eigenvectors of
//! clusters closer than that are rotated at random, the vectors are orthogonal up to as much, and their signs are
//! anyone's. E is made from the seed and the bits of the matrix: as in cuSOLVER, the same call gives the same bits.

use crate::matrix::Real;

/// Random numbers from the seed and what the solver was given.
pub struct Rounding {
    state: u64,
    /// The error, relative to the largest eigenvalue: epsilons of the precision.
    size: f64,
}

impl Rounding {
    /// Of one decomposition. `epsilons` is the size of the errors, and 0 makes none.
    pub fn new(real: Real, epsilons: f64, seed: u64, salt: u64, matrix: &[f64]) -> Rounding {
        let epsilon = if real == Real::F32 { f64::from(f32::EPSILON) } else { f64::EPSILON };
        let mut state = mix(seed ^ mix(salt));
        for value in matrix {
            state = mix(state ^ value.to_bits());
        }
        Rounding { state, size: epsilons * epsilon }
    }

    /// Uniform, of mean 0 and variance 1.
    fn next(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix(self.state) >> 11) as f64 / (1u64 << 52) as f64 * 3f64.sqrt() - 3f64.sqrt()
    }

    /// A becomes A + E: a symmetric random matrix of independent entries, of which the norm is about 2σ√n.
    pub fn disturb(&mut self, a: &mut [f64], n: usize) {
        if self.size == 0.0 || n == 0 || a.iter().any(|x| !x.is_finite()) {
            return;
        }
        let deviation = self.size * largest(a, n) / (2.0 * (n as f64).sqrt());
        for j in 0..n {
            for i in 0..=j {
                let error = deviation * self.next();
                a[j * n + i] += error;
                if i != j {
                    a[i * n + j] += error;
                }
            }
        }
    }

    /// Eigenvectors, one after another, get random signs and miss orthogonality.
    pub fn finish(&mut self, vectors: &mut [f64], n: usize) {
        if self.size == 0.0 || n == 0 {
            return;
        }
        let deviation = self.size / (2.0 * (n as f64).sqrt());
        for vector in vectors.chunks_exact_mut(n) {
            let sign = 1f64.copysign(self.next());
            for x in vector {
                *x = sign * (*x + deviation * self.next());
            }
        }
    }
}

/// The largest absolute eigenvalue, as near as some steps of the power iteration come.
fn largest(a: &[f64], n: usize) -> f64 {
    // Scaled, so that squares neither overflow nor vanish.
    let top = a.iter().fold(0.0f64, |m, x| m.max(x.abs()));
    if top == 0.0 {
        return 0.0;
    }
    // Begin with the longest column: its length is at most the answer and at least 1/√n of it.
    let length = |v: &[f64]| v.iter().map(|x| (x / top).powi(2)).sum::<f64>().sqrt();
    let columns = a.chunks_exact(n);
    let mut v = columns.max_by(|x, y| length(x).total_cmp(&length(y))).unwrap_or(a).to_vec();
    let mut found = 0.0;
    for _ in 0..6 {
        let norm = length(&v) * top;
        v.iter_mut().for_each(|x| *x /= norm);
        let mut next = vec![0.0; n];
        for (column, factor) in a.chunks_exact(n).zip(&v) {
            for (out, x) in next.iter_mut().zip(column) {
                *out += x * factor;
            }
        }
        found = length(&next) * top;
        if found == 0.0 {
            return top;
        }
        v = next;
    }
    found.max(top)
}

fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[cfg(test)]
mod tests {
    use super::{Rounding, largest};
    use crate::eigen::symmetric;
    use crate::matrix::Real;

    #[test]
    fn the_largest_eigenvalue_is_found_well_enough() {
        for n in [1usize, 2, 7, 30] {
            let a: Vec<f64> = (0..n * n).map(|k| 1.0 / (1.0 + (k % n + k / n) as f64)).collect();
            let Some((values, _)) = symmetric(&a, n) else { panic!("n = {n} did not converge") };
            let found = largest(&a, n) / values[n - 1];
            assert!((0.8..=1.0 + 1e-9).contains(&found), "n = {n}: {found}");
        }
        assert_eq!(largest(&[0.0; 9], 3), 0.0);
        assert!(largest(&[1e300; 9], 3).is_finite());
    }

    #[test]
    fn the_error_has_the_size_that_is_asked_for() {
        let n = 40;
        let a: Vec<f64> =
            (0..n * n).map(|k| if k % n == k / n { 1.0 + (k % n) as f64 } else { 0.0 }).collect();
        let mut other = a.clone();
        Rounding::new(Real::F32, 8.0, 1, 0, &a).disturb(&mut other, n);
        let error: Vec<f64> = other.iter().zip(&a).map(|(x, y)| x - y).collect();
        let norm = largest(&error, n) / (n as f64 * 8.0 * f64::from(f32::EPSILON));
        assert!((0.6..1.4).contains(&norm), "{norm}");
        let mut same = a.clone();
        Rounding::new(Real::F32, 8.0, 1, 0, &a).disturb(&mut same, n);
        assert_eq!(same, other, "the same call gives the same bits");
        Rounding::new(Real::F32, 8.0, 2, 0, &a).disturb(&mut same, n);
        assert_ne!(same, other);
        let mut exact = a.clone();
        Rounding::new(Real::F32, 0.0, 1, 0, &a).disturb(&mut exact, n);
        assert_eq!(exact, a);
    }
}
