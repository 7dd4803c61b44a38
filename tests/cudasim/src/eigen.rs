//! Eigenvalues and eigenvectors of a symmetric matrix, in f64: Householder reduction to tridiagonal form,
//! then the implicit QL iteration.

/// The eigenvalues in ascending order and the eigenvectors as columns, or nothing if the iteration does not
/// converge or the matrix is not finite. `a` is a full symmetric matrix, column-major.
pub fn symmetric(a: &[f64], n: usize) -> Option<(Vec<f64>, Vec<f64>)> {
    if a.iter().any(|v| !v.is_finite()) {
        return None;
    }
    // Scaled so that squares neither overflow nor vanish.
    let largest = a.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    if n == 0 {
        return Some((Vec::new(), Vec::new()));
    }
    let scale = if largest > 0.0 { 2f64.powi(largest.log2().floor() as i32) } else { 1.0 };
    let work: Vec<f64> = a.iter().map(|v| v / scale).collect();
    let (mut d, mut e, mut q) = tridiagonal(work, n);
    ql(&mut d, &mut e, &mut q, n)?;
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|i, j| d[*i].total_cmp(&d[*j]));
    let values = order.iter().map(|&i| d[i] * scale).collect();
    // Row i of `q` is the i-th eigenvector, so the columns asked for are these rows one after another.
    let vectors = order.iter().flat_map(|&i| q[i * n..(i + 1) * n].to_vec()).collect();
    Some((values, vectors))
}

/// `A = Q T Qᵀ`; returns the diagonal of T, its subdiagonal (`e[i]` couples i and i + 1), and Qᵀ by rows.
fn tridiagonal(mut a: Vec<f64>, n: usize) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let mut reflectors: Vec<(usize, Vec<f64>, f64)> = Vec::new();
    for k in 0..n.saturating_sub(2) {
        // Reflect column k below the subdiagonal onto the subdiagonal.
        let mut v: Vec<f64> = (k + 1..n).map(|i| a[k * n + i]).collect();
        let norm = v.iter().map(|x| x * x).sum::<f64>().sqrt();
        let tail = v[1..].iter().map(|x| x * x).sum::<f64>();
        if tail == 0.0 {
            continue;
        }
        let alpha = -norm.copysign(v[0]);
        v[0] -= alpha;
        let square = v.iter().map(|x| x * x).sum::<f64>();
        let beta = 2.0 / square;
        // B ← H B H with B the trailing block: p = beta B v, w = p − (beta/2)(pᵀv) v, B ← B − v wᵀ − w vᵀ.
        let m = n - k - 1;
        let mut p = vec![0.0; m];
        for j in 0..m {
            let column = &a[(k + 1 + j) * n + k + 1..(k + 2 + j) * n];
            for (out, value) in p.iter_mut().zip(column) {
                *out += beta * value * v[j];
            }
        }
        let half = 0.5 * beta * p.iter().zip(&v).map(|(x, y)| x * y).sum::<f64>();
        let w: Vec<f64> = p.iter().zip(&v).map(|(x, y)| x - half * y).collect();
        for j in 0..m {
            let column = &mut a[(k + 1 + j) * n + k + 1..(k + 2 + j) * n];
            for (i, value) in column.iter_mut().enumerate() {
                *value -= v[i] * w[j] + w[i] * v[j];
            }
        }
        a[k * n + k + 1] = alpha;
        reflectors.push((k + 1, v, beta));
    }
    let d = (0..n).map(|i| a[i * n + i]).collect();
    let e = (0..n.saturating_sub(1)).map(|i| a[i * n + i + 1]).collect();
    // Qᵀ = H_last … H_first, built from the right so that only the trailing block changes.
    let mut q = vec![0.0; n * n];
    for i in 0..n {
        q[i * n + i] = 1.0;
    }
    for (start, v, beta) in reflectors.iter().rev() {
        for row in q.chunks_exact_mut(n).skip(*start) {
            let dot = row[*start..].iter().zip(v).map(|(x, y)| x * y).sum::<f64>() * beta;
            for (x, y) in row[*start..].iter_mut().zip(v) {
                *x -= dot * y;
            }
        }
    }
    (d, e, q)
}

/// Steps for one eigenvalue after which an entry may be small beside the whole matrix; a few suffice as a rule.
const PATIENCE: usize = 20;

/// Diagonalises the tridiagonal matrix by implicit QL steps with Wilkinson's shift, rotating the rows of `q`.
fn ql(d: &mut [f64], e: &mut Vec<f64>, q: &mut [f64], n: usize) -> Option<()> {
    e.push(0.0);
    let norm = d.iter().zip(&*e).fold(0.0f64, |most, (d, e)| most.max(d.abs() + e.abs()));
    for l in 0..n {
        for step in 0.. {
            // The first small subdiagonal entry at or after l: beside its neighbours, or, where these are nothing but
            // rounding themselves and it does not become smaller, beside the whole.
            let patient = if step < PATIENCE { 0.0 } else { f64::EPSILON * norm };
            let m = (l..n - 1)
                .find(|&m| e[m].abs() <= (f64::EPSILON * (d[m].abs() + d[m + 1].abs())).max(patient))
                .unwrap_or(n - 1);
            if m == l {
                break;
            }
            if step == 60 {
                return None;
            }
            let g = (d[l + 1] - d[l]) / (2.0 * e[l]);
            let r = g.hypot(1.0);
            let mut g = d[m] - d[l] + e[l] / (g + r.copysign(g));
            let (mut s, mut c, mut p) = (1.0, 1.0, 0.0);
            let mut split = false;
            for i in (l..m).rev() {
                let f = s * e[i];
                let b = c * e[i];
                let r = f.hypot(g);
                e[i + 1] = r;
                if r == 0.0 {
                    // The matrix falls apart here: take back the shift and look again.
                    d[i + 1] -= p;
                    e[m] = 0.0;
                    split = true;
                    break;
                }
                s = f / r;
                c = g / r;
                let g2 = d[i + 1] - p;
                let r2 = (d[i] - g2) * s + 2.0 * c * b;
                p = s * r2;
                d[i + 1] = g2 + p;
                g = c * r2 - b;
                let (low, high) = q.split_at_mut((i + 1) * n);
                for (x, y) in low[i * n..].iter_mut().zip(&mut high[..n]) {
                    let z = *y;
                    *y = s * *x + c * z;
                    *x = c * *x - s * z;
                }
            }
            if split {
                continue;
            }
            d[l] -= p;
            e[l] = g;
            e[m] = 0.0;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::symmetric;

    #[test]
    fn reconstructs_random_symmetric_matrices() {
        let mut seed = 7u64;
        let mut random = move || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as f64 / (1u64 << 31) as f64 - 0.5
        };
        for n in [1, 2, 3, 5, 17, 64] {
            let mut a = vec![0.0; n * n];
            for j in 0..n {
                for i in 0..=j {
                    a[j * n + i] = random();
                    a[i * n + j] = a[j * n + i];
                }
            }
            let Some((values, q)) = symmetric(&a, n) else { panic!("n = {n} did not converge") };
            assert!(values.windows(2).all(|w| w[0] <= w[1]));
            for i in 0..n {
                for j in 0..n {
                    let dot: f64 = (0..n).map(|k| q[i * n + k] * q[j * n + k]).sum();
                    assert!((dot - f64::from(u8::from(i == j))).abs() < 1e-12, "n {n}: {i}·{j} = {dot}");
                    let back: f64 = (0..n).map(|k| q[k * n + i] * values[k] * q[k * n + j]).sum();
                    assert!((back - a[j * n + i]).abs() < 1e-12, "n {n}: entry {i} {j}");
                }
            }
        }
    }

    #[test]
    fn low_rank_with_rounding_converges() {
        let mut seed = 3u64;
        let mut random = move || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as f64 / (1u64 << 31) as f64 - 0.5
        };
        let n = 60;
        for trial in 0..60 {
            let rank = 1 + trial % 20;
            let sizes: Vec<f64> = (0..n).map(|_| 10f64.powf(-3.0 * (random() + 0.5))).collect();
            let mut a = vec![0.0; n * n];
            for _ in 0..rank {
                let g: Vec<f64> = sizes.iter().map(|size| size * random()).collect();
                for k in 0..n * n {
                    a[k] += g[k % n] * g[k / n];
                }
            }
            // What a solver's rounding adds: some epsilons, so that all that was zero is of that size.
            let trace: f64 = a.iter().step_by(n + 1).sum();
            for j in 0..n {
                for i in 0..=j {
                    let error = 8.0 * f64::EPSILON * trace * random() / (n as f64).sqrt();
                    a[j * n + i] += error;
                    a[i * n + j] = a[j * n + i];
                }
            }
            let Some((values, q)) = symmetric(&a, n) else { panic!("trial {trial} did not converge") };
            for i in 0..n {
                for j in 0..n {
                    let back: f64 = (0..n).map(|k| q[k * n + i] * values[k] * q[k * n + j]).sum();
                    assert!((back - a[j * n + i]).abs() < 1e-13 * trace, "trial {trial}: entry {i} {j}");
                }
            }
        }
    }

    #[test]
    fn handles_zero_diagonal_and_repeated() {
        for a in [vec![0.0; 9], vec![2.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 1e-300], vec![1e300; 9]] {
            let Some((values, q)) = symmetric(&a, 3) else { panic!("did not converge") };
            assert!(values.iter().chain(&q).all(|v| v.is_finite()));
        }
        assert!(symmetric(&[f64::NAN], 1).is_none());
    }
}
