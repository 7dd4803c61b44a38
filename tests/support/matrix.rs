//! Small symmetric matrices, the slow and obvious way.

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

/// Eigenvalues, ascending, and eigenvectors as columns. Of the matrix only the lower triangle is read.
pub fn eigen(a: &Array2<f64>) -> (Array1<f64>, Array2<f64>) {
    assert!(a.iter().all(|x| x.is_finite()), "a finite matrix");
    let n = a.nrows();
    let mut rows: Vec<Vec<f64>> = (0..n).map(|i| (0..n).map(|j| a[(i.max(j), i.min(j))]).collect()).collect();
    let (mut diagonal, mut beside, mut vectors) = tridiagonal(&mut rows);
    diagonalize(&mut diagonal, &mut beside, &mut vectors);
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|i, j| diagonal[*i].total_cmp(&diagonal[*j]));
    (
        Array1::from_shape_fn(n, |k| diagonal[order[k]]),
        Array2::from_shape_fn((n, n), |(i, k)| vectors[order[k]][i]),
    )
}

fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

fn add(x: &mut [f64], scale: f64, y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += scale * y);
}

/// T = QᵀAQ by Householder's reflections: its diagonal, what is beside it, and the rows of Qᵀ.
fn tridiagonal(a: &mut [Vec<f64>]) -> (Vec<f64>, Vec<f64>, Vec<Vec<f64>>) {
    let n = a.len();
    let mut q: Vec<Vec<f64>> = (0..n).map(|i| (0..n).map(|j| f64::from(i == j)).collect()).collect();
    let mut beside = vec![0.0; n];
    for k in 0..n.saturating_sub(1) {
        // v is zero up to k, and (I − 2vvᵀ/vᵀv)·A[k+1.., k] has one number that is not.
        let mut v = a[k].clone();
        v[..=k].fill(0.0);
        let length = dot(&v, &v).sqrt();
        beside[k] = if v[k + 1] > 0.0 { -length } else { length };
        v[k + 1] -= beside[k];
        let square = dot(&v, &v);
        if square == 0.0 {
            continue;
        }
        // A ← A − vwᵀ − wvᵀ.
        let mut w: Vec<f64> = a.iter().map(|row| 2.0 * dot(row, &v) / square).collect();
        let share = dot(&v, &w) / square;
        add(&mut w, -share, &v);
        for (row, (v_i, w_i)) in a.iter_mut().zip(v.iter().zip(&w)) {
            add(row, -v_i, &w);
            add(row, -w_i, &v);
        }
        for row in &mut q {
            let along = -2.0 * dot(row, &v) / square;
            add(row, along, &v);
        }
    }
    let diagonal = (0..n).map(|i| a[i][i]).collect();
    // The rows are of Q = H₀H₁…; its columns are wanted.
    (diagonal, beside, (0..n).map(|j| q.iter().map(|row| row[j]).collect()).collect())
}

/// The implicit QL iteration on a tridiagonal matrix; the rows of `vectors` turn with it.
fn diagonalize(d: &mut [f64], e: &mut [f64], vectors: &mut [Vec<f64>]) {
    let n = d.len();
    let largest = d.iter().chain(&*e).fold(0.0f64, |most, x| most.max(x.abs()));
    for l in 0..n {
        for sweep in 0.. {
            assert!(sweep < 60, "the QL iteration has not converged");
            // Beside its neighbours, or beside the rounding of everything.
            let near = |m: usize| (d[m].abs() + d[m + 1].abs()).max(0.1 * largest);
            let is_small = |m: &usize| e[*m].abs() <= 0.5 * f64::EPSILON * near(*m);
            let m = (l..n - 1).find(is_small).unwrap_or(n - 1);
            if m == l {
                break;
            }
            // Wilkinson's shift.
            let ahead = (d[l + 1] - d[l]) / (2.0 * e[l]);
            let mut g = d[m] - d[l] + e[l] / (ahead + ahead.hypot(1.0).copysign(ahead));
            let (mut sine, mut cosine, mut shift) = (1.0, 1.0, 0.0);
            let mut whole = true;
            for i in (l..m).rev() {
                let (f, b) = (sine * e[i], cosine * e[i]);
                let r = f.hypot(g);
                e[i + 1] = r;
                if r == 0.0 {
                    d[i + 1] -= shift;
                    e[m] = 0.0;
                    whole = false;
                    break;
                }
                (sine, cosine) = (f / r, g / r);
                let before = d[i + 1] - shift;
                let turned = (d[i] - before) * sine + 2.0 * cosine * b;
                shift = sine * turned;
                d[i + 1] = before + shift;
                g = cosine * turned - b;
                let (low, high) = vectors.split_at_mut(i + 1);
                for (x, y) in low[i].iter_mut().zip(&mut high[0]) {
                    (*x, *y) = (cosine * *x - sine * *y, sine * *x + cosine * *y);
                }
            }
            if whole {
                d[l] -= shift;
                e[l] = g;
                e[m] = 0.0;
            }
        }
    }
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
