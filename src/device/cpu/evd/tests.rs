//! Decompositions of many kinds of matrices: orthogonal, exact, as accurate as faer's, the same on any number of threads.

use super::super::pool::Workers;
use super::sound::sign;
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
    if !decompose(&a, &mut spectrum, &mut basis, MemStack::new(&mut memory), None) {
        // A refresh then goes on to other ways. It is for faer to fail.
        let (d, q) =
            (DiagMut::from_slice_mut(&mut spectrum), MatMut::from_column_major_slice_mut(&mut basis, n, n));
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

/// A number in [0, 1) by xorshift.
fn draw(seed: &mut u64) -> f64 {
    sign(seed);
    (*seed >> 11) as f64 / (1u64 << 53) as f64
}

/// H Λ Hᵀ for a few reflections H.
fn reflected(values: &[f64], seed: &mut u64) -> Vec<f64> {
    let n = values.len();
    let mut a = vec![0.0; n * n];
    values.iter().enumerate().for_each(|(k, value)| a[k + k * n] = *value);
    for _ in 0..3 {
        let v: Vec<f64> = (0..n).map(|_| draw(seed) - 0.5).collect();
        let square: f64 = v.iter().map(|v| v * v).sum();
        for _ in 0..2 {
            // Columns are reflected, then rows, as columns of the transpose.
            for column in a.chunks_exact_mut(n) {
                let dot: f64 = column.iter().zip(&v).map(|(a, v)| a * v).sum();
                column.iter_mut().zip(&v).for_each(|(a, v)| *a -= 2.0 * dot / square * v);
            }
            a = (0..n * n).map(|k| a[k / n + k % n * n]).collect();
        }
    }
    (0..n * n).map(|k| a[(k % n).max(k / n) + (k % n).min(k / n) * n]).collect()
}

/// A tridiagonal matrix.
fn banded(n: usize, diagonal: impl Fn(usize) -> f64, below: impl Fn(usize) -> f64) -> Vec<f64> {
    let entry = |i: usize, j: usize| match i.abs_diff(j) {
        0 => diagonal(i),
        1 => below(i.min(j)),
        _ => 0.0,
    };
    (0..n * n).map(|k| entry(k % n, k / n)).collect()
}

/// A name, a matrix, and its eigenvalues where they are known.
type Kind = (&'static str, Vec<f64>, Option<Vec<f64>>);

/// Matrices of side `n` that are hard for one step or another, with their eigenvalues where they are known.
fn kinds(n: usize, seed: &mut u64) -> Vec<Kind> {
    let place = |k: usize| (k + 1) as f64 / n as f64;
    let mut random: Vec<f64> = (0..n).map(|_| draw(seed)).collect();
    random.sort_unstable_by(f64::total_cmp);
    let spectra: Vec<(&str, Vec<f64>)> = vec![
        ("random", random),
        ("graded", (0..n).map(|k| 10f64.powf(-30.0 * (1.0 - place(k)))).collect()),
        ("clusters", (0..n).map(|k| 1.0 + (5 * k / n) as f64 + 1e-8 * place(k)).collect()),
        ("of low rank", (0..n).map(|k| if k < n - n / 8 { 0.0 } else { place(k) }).collect()),
        ("one large", (0..n).map(|k| if k + 1 < n { 1e-6 * place(k) } else { 1.0 }).collect()),
        ("of both signs", (0..n).map(|k| 2.0 * place(k) - 1.0).collect()),
        ("zero", vec![0.0; n]),
    ];
    let mut kinds: Vec<_> =
        spectra.into_iter().map(|(name, values)| (name, reflected(&values, seed), Some(values))).collect();
    let wilkinson = |side: usize, k: usize| (k as f64 - (side - 1) as f64 / 2.0).abs();
    kinds.push(("Wilkinson's", banded(n, |k| wilkinson(n, k), |_| 1.0), None));
    for glue in [1e-3, 1e-7, 1e-14] {
        let below = |k: usize| if k % 21 == 20 { glue } else { -1.0 };
        kinds.push(("glued", banded(n, |k| wilkinson(21, k % 21), below), None));
    }
    kinds.push(("diagonal but for dust", banded(n, |k| ((k * 7) % 5) as f64, |_| 1e-20), None));
    kinds.push(("constant", vec![1.0; n * n], None));
    let numbers: Vec<(f64, f64)> = (0..n).map(|_| (draw(seed) - 0.5, draw(seed) - 0.5)).collect();
    kinds.push(("random and tridiagonal", banded(n, |k| numbers[k].0, |k| numbers[k].1), None));
    let size = |k: usize| 10f64.powf(-36.0 * place(k));
    kinds.push(("falling", banded(n, size, |k| 0.5 * size(k)), None));
    kinds.push(("rising", banded(n, |k| size(n - 1 - k), |k| 0.5 * size(n - 1 - k)), None));
    kinds
}

/// ‖QᵀQ − I‖ and ‖AQ − QD‖/‖A‖ (Frobenius), per root of the side and in steps of single precision.
fn errors(a: &[f32], spectrum: &[f32], basis: &[f32]) -> [f64; 2] {
    let n = spectrum.len();
    let wide = |x: &[f32]| -> Vec<f64> { x.iter().map(|x| f64::from(*x)).collect() };
    let (a, q) = (wide(a), wide(basis));
    let norm = a.iter().map(|x| x * x).sum::<f64>().sqrt();
    let (mut missing, mut wrong) = (0.0, 0.0);
    for (j, own) in q.chunks_exact(n).enumerate() {
        for (i, other) in q.chunks_exact(n).enumerate().take(j + 1) {
            let dot: f64 = own.iter().zip(other).map(|(x, y)| x * y).sum();
            missing += if i == j { (dot - 1.0).powi(2) } else { 2.0 * dot * dot };
        }
        let mut image: Vec<f64> = own.iter().map(|x| -f64::from(spectrum[j]) * x).collect();
        for (column, x) in a.chunks_exact(n).zip(own) {
            image.iter_mut().zip(column).for_each(|(y, a)| *y += a * x);
        }
        wrong += image.iter().map(|x| x * x).sum::<f64>();
    }
    let unit = f64::from(f32::EPSILON) * (n as f64).sqrt();
    [missing.sqrt() / unit, if norm > 0.0 { wrong.sqrt() / norm / unit } else { wrong }]
}

/// Ours, and faer's unless it fails, of one matrix.
fn compare(name: &str, a: &[f64], expected: Option<&[f64]>, scale: f64) {
    let n = (a.len() as f64).sqrt() as usize;
    let a: Vec<f32> = a.iter().map(|x| (x * scale) as f32).collect();
    let (mut spectrum, mut basis) = (vec![0f32; n], vec![0f32; n * n]);
    let mut memory = MemBuffer::new(scratch::<f32>(n));
    memory.fill(MaybeUninit::new(0x7f));
    assert!(
        decompose(&a, &mut spectrum, &mut basis, MemStack::new(&mut memory), None),
        "{name}, side {n}, scale {scale:e}"
    );
    assert!(spectrum.windows(2).all(|pair| pair[0] <= pair[1]), "{name}, side {n}");
    let ours = errors(&a, &spectrum, &basis);
    let norm = a.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    for (k, d) in expected.unwrap_or_default().iter().enumerate() {
        let off = (f64::from(spectrum[k]) - scale * d).abs();
        assert!(off <= 4e-7 * norm, "{name}, side {n}: eigenvalue {k} is off by {:e}", off / norm);
    }
    let faer = self_adjoint_evd(
        MatRef::from_column_major_slice(&a, n, n),
        DiagMut::from_slice_mut(&mut spectrum),
        Some(MatMut::from_column_major_slice_mut(&mut basis, n, n)),
        Par::Seq,
        MemStack::new(&mut memory),
        tuned::<f32>(),
    );
    let faers = if faer.is_ok() { errors(&a, &spectrum, &basis) } else { [f64::INFINITY; 2] };
    for (ours, faers) in ours.into_iter().zip(faers) {
        // Below this all are equally good.
        assert!(ours <= faers.max(ACCURATE), "{name}, side {n}, scale {scale:e}: {ours} steps, faer {faers}");
    }
}

/// Steps of single precision that count as accurate.
const ACCURATE: f64 = 3.0;

#[test]
fn single_precision_is_as_accurate_as_faers() {
    let mut seed = 5;
    for n in [3, 4, 8, 15, 16, 17, 23, 24, 25, 31, 32, 33, 40, 48, 63, 64, 65, 72, 97, 128, 129, 200] {
        for (name, a, expected) in kinds(n, &mut seed) {
            compare(name, &a, expected.as_deref(), 1.0);
        }
    }
    for n in [255, 256, 257, 264, SHARED - 1, SHARED, SHARED + 1] {
        for (name, a, expected) in kinds(n, &mut seed) {
            compare(name, &a, expected.as_deref(), 1.0);
        }
    }
}

#[test]
fn single_precision_may_be_large_or_small() {
    let mut seed = 6;
    for n in [5, 19, 66, 140] {
        for (name, a, expected) in kinds(n, &mut seed) {
            for scale in [1e-30, 1e-10, 1e10, 1e30] {
                compare(name, &a, expected.as_deref(), scale);
            }
        }
    }
}

#[test]
fn single_precision_is_the_same_on_any_number_of_threads() {
    let mut seed = 7;
    for n in [SHARED - 1, SHARED, SHARED + 23, 600] {
        for (name, a, _) in kinds(n, &mut seed).into_iter().step_by(3) {
            let a: Vec<f32> = a.iter().map(|x| *x as f32).collect();
            let mut first: Option<(Vec<f32>, Vec<f32>)> = None;
            for threads in [0, 1, 2, 3, 5] {
                let workers = Workers::new(threads.max(1)).unwrap();
                let workers = Some(&workers).filter(|_| threads > 0);
                let (mut spectrum, mut basis) = (vec![0f32; n], vec![0f32; n * n]);
                let mut memory = MemBuffer::new(scratch::<f32>(n));
                memory.fill(MaybeUninit::new(threads as u8));
                assert!(decompose(&a, &mut spectrum, &mut basis, MemStack::new(&mut memory), workers));
                match &first {
                    None => {
                        let errors = errors(&a, &spectrum, &basis);
                        assert!(errors.iter().all(|error| *error < 15.0), "{name}, side {n}: {errors:?}");
                        first = Some((spectrum, basis));
                    }
                    Some(first) => {
                        assert!(*first == (spectrum, basis), "{name}, side {n}, {threads} threads");
                    }
                }
            }
        }
    }
}

#[test]
fn what_is_not_finite_ends() {
    for n in [3, 16, 20, 70, 300] {
        for bad in [f32::NAN, f32::INFINITY, f32::MAX] {
            for place in [0, 1, n - 1, n * n / 2, n * n - 1] {
                let mut a: Vec<f32> = (0..n * n).map(|k| ((k % n) * (k / n) % 7) as f32).collect();
                a[place] = bad;
                a[place % n * n + place / n] = bad;
                let (mut spectrum, mut basis) = (vec![0f32; n], vec![0f32; n * n]);
                let mut memory = MemBuffer::new(scratch::<f32>(n));
                decompose(&a, &mut spectrum, &mut basis, MemStack::new(&mut memory), None);
            }
        }
    }
}
