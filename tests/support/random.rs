//! Random numbers that a seed repeats on every machine.

use ndarray::Array2;

/// splitmix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in [low, high).
    pub fn within(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A whole number below `count`.
    pub fn below(&mut self, count: usize) -> usize {
        (self.bits() % count as u64) as usize
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Standard normal.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.within(0.0, 1.0)).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.within(0.0, 1.0)).cos()
    }

    /// `count` standard normals.
    pub fn normals(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| self.normal()).collect()
    }

    /// A matrix of standard normals.
    pub fn matrix(&mut self, rows: usize, cols: usize) -> Array2<f64> {
        Array2::from_shape_simple_fn((rows, cols), || self.normal())
    }

    /// An orthogonal matrix: normals, made orthonormal column by column (twice, for the last digits).
    pub fn orthogonal(&mut self, n: usize) -> Array2<f64> {
        let mut q = self.matrix(n, n);
        for j in 0..n {
            for _ in 0..2 {
                for i in 0..j {
                    let along = q.column(i).dot(&q.column(j));
                    let done = q.column(i).to_owned();
                    q.column_mut(j).scaled_add(-along, &done);
                }
            }
            let norm = q.column(j).dot(&q.column(j)).sqrt();
            q.column_mut(j).mapv_inplace(|x| x / norm);
        }
        q
    }

    /// A matrix whose rows have sizes spread over `decades`, in a random basis.
    pub fn graded(&mut self, rows: usize, cols: usize, decades: f64) -> Array2<f64> {
        let mut inner = self.matrix(rows, cols);
        for mut row in inner.rows_mut() {
            row *= 10f64.powf(-self.within(0.0, decades));
        }
        self.orthogonal(rows).dot(&inner)
    }
}
