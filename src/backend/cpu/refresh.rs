//! The verb `refresh`: a new basis and spectrum, by a ladder that never fails a step.
//!
//! Chosen precision → double precision → singular value decomposition → keep the stale basis. A rung
//! counts only if its result is finite, orthogonal and reproduces the statistic.

use super::bench::Bench;
use super::evd::{self, Eigen};
use super::real::Real;
use super::sense::Drift;
use super::{Cpu, Floor, Places, Precision};
use crate::backend::{RefreshOrder, Refreshed, Rung};
use crate::config::{InjectFault, NegativeEigenvalues};
use crate::optimizer::plan::FactorPlan;

/// Renews bases and spectra.
pub(super) fn refresh(cpu: &mut Cpu, orders: &[RefreshOrder], refreshed: &mut [Option<Refreshed>]) {
    let answers = Places(refreshed.as_mut_ptr());
    cpu.each_factor(orders.len(), &|floor, task, bench| {
        let order = &orders[task];
        let factor = &floor.plan.factors[order.factor];
        let answer = match floor.plan.param_of(order.factor).statistic {
            Precision::F32 => refresh_factor::<f32>(floor, factor, order, bench),
            Precision::F64 => refresh_factor::<f64>(floor, factor, order, bench),
        };
        // SAFETY: one place a task.
        unsafe { answers.put(task, Some(answer)) };
    });
}

fn refresh_factor<S: Real>(
    floor: &Floor,
    factor: &FactorPlan,
    order: &RefreshOrder,
    bench: &mut Bench,
) -> Refreshed {
    bench.load_statistic::<S>(floor, factor, order.scale);
    let n = factor.dim;
    // SAFETY: buffers of the factor, touched by this task alone.
    let (basis, spectrum) = unsafe {
        (
            std::slice::from_raw_parts_mut(floor.slot::<S>(factor.basis), n * n),
            std::slice::from_raw_parts_mut(floor.slot::<S>(factor.spectrum), n),
        )
    };
    let rung = climb::<S>(n, order.fault, bench);
    if rung == Rung::Stale && order.has_basis {
        return Refreshed { rung, ..bounds(spectrum) };
    }
    if rung == Rung::Stale {
        take_diagonal(bench, basis, spectrum);
    } else {
        // SAFETY: `climb` left the basis in matrix 1 and the spectrum in the vector.
        basis.copy_from_slice(unsafe { std::slice::from_raw_parts(bench.matrix::<S>(1), n * n) });
        let lowest = bench.vector.iter().copied().fold(f64::INFINITY, f64::min);
        let shift = match floor.config.negative_eigenvalues {
            NegativeEigenvalues::Shift => lowest.min(0.0),
            NegativeEigenvalues::Clamp => 0.0,
        };
        spectrum.iter_mut().zip(&bench.vector).for_each(|(d, x)| *d = S::of((*x - shift).max(0.0)));
    }
    let mut noise_floor = f64::NAN;
    if floor.config.noise_floor {
        bench.rotate::<S>(floor, factor);
        // SAFETY: `rotate` filled matrix 2.
        let h = unsafe { std::slice::from_raw_parts(bench.matrix::<S>(2), n * n) };
        noise_floor = Drift { h, spectrum, exponent: factor.exponent }.proxy(order.epsilon);
    }
    Refreshed { rung, noise_floor, ..bounds(spectrum) }
}

fn bounds<S: Real>(spectrum: &[S]) -> Refreshed {
    let each = spectrum.iter().map(|d| d.wide());
    Refreshed {
        rung: Rung::Chosen,
        eigenvalue_min: each.clone().fold(f64::INFINITY, f64::min),
        eigenvalue_max: each.fold(0.0, f64::max),
        noise_floor: f64::NAN,
    }
}

/// With no decomposition and no stale basis, the statistic's diagonal still is a preconditioner.
fn take_diagonal<S: Real>(bench: &Bench, basis: &mut [S], spectrum: &mut [S]) {
    let n = spectrum.len();
    basis.fill(S::default());
    for (i, d) in spectrum.iter_mut().enumerate() {
        basis[i + i * n] = S::of(1.0);
        // SAFETY: matrix 0 has n² numbers.
        let x = unsafe { bench.matrix::<S>(0).add(i + i * n).read() }.wide();
        *d = S::of(if x.is_finite() { x.max(0.0) } else { 0.0 });
    }
}

/// Leaves a basis in matrix 1 and its spectrum in the vector, and says which rung gave them; on
/// [`Rung::Stale`] neither holds anything.
fn climb<S: Real>(n: usize, fault: InjectFault, bench: &mut Bench) -> Rung {
    // SAFETY: matrix 0 holds the statistic, matrix 1 is another matrix of the bench.
    let (a, q) = unsafe {
        (
            std::slice::from_raw_parts_mut(bench.matrix::<S>(0), n * n),
            std::slice::from_raw_parts_mut(bench.matrix::<S>(1), n * n),
        )
    };
    if a.iter().any(|x| !x.wide().is_finite()) {
        return Rung::Stale;
    }
    bench.vector.clear();
    bench.vector.resize(n, 0.0);
    if is_diagonal(a, n) {
        q.fill(S::default());
        for i in 0..n {
            q[i + i * n] = S::of(1.0);
            bench.vector[i] = a[i + i * n].wide();
        }
        return Rung::Chosen;
    }
    // faer's divide and conquer has absolute cutoffs: a matrix far below norm one loses its digits. A
    // power of two costs none.
    let largest = a.iter().map(|x| x.wide().abs()).fold(0.0, f64::max);
    let scale = 2f64.powi(-(largest.log2().floor() as i32).clamp(-120, 120));
    a.iter_mut().for_each(|x| *x *= S::of(scale));
    let rung = climb_scaled(a, q, fault, bench);
    a.iter_mut().for_each(|x| *x *= S::of(1.0 / scale));
    bench.vector.iter_mut().for_each(|d| *d /= scale);
    rung
}

fn climb_scaled<S: Real>(a: &[S], q: &mut [S], fault: InjectFault, bench: &mut Bench) -> Rung {
    use InjectFault::{EvdAll, EvdChosen, EvdDouble, EvdNonorthogonal};
    let n = bench.vector.len();
    // SAFETY: matrix 2 is another matrix of the bench; its first n numbers take the spectrum.
    let spectrum = unsafe { std::slice::from_raw_parts_mut(bench.matrix::<S>(2), n) };
    let fails = matches!(fault, EvdChosen | EvdDouble | EvdAll);
    if !fails && evd::decompose(a, spectrum, q, bench.stack()) {
        if fault == EvdNonorthogonal {
            q.copy_within(0..n, n);
        }
        if evd::is_sound(a, spectrum, q) {
            bench.vector.iter_mut().zip(&*spectrum).for_each(|(v, d)| *v = d.wide());
            return Rung::Chosen;
        }
    }
    type Path = fn(&[f64], usize) -> Option<Eigen>;
    let paths: [(Rung, bool, Path); 2] = [
        (Rung::Double, matches!(fault, EvdDouble | EvdAll), evd::decompose_double),
        (Rung::Svd, fault == EvdAll, evd::decompose_svd),
    ];
    let wide: Vec<f64> = a.iter().map(|x| x.wide()).collect();
    for (rung, fails, path) in paths {
        let Some(eigen) = path(&wide, n).filter(|_| !fails) else { continue };
        if evd::is_sound(&wide, &eigen.spectrum, &eigen.basis) {
            q.iter_mut().zip(&eigen.basis).for_each(|(q, x)| *q = S::of(*x));
            bench.vector.copy_from_slice(&eigen.spectrum);
            return rung;
        }
    }
    Rung::Stale
}

fn is_diagonal<S: Real>(a: &[S], n: usize) -> bool {
    (0..n).all(|j| a[j * n + j + 1..(j + 1) * n].iter().all(|x| *x == S::default()))
}
