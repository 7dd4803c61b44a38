//! The verb `refresh`: a new basis and spectrum, by a ladder that never fails a step.
//!
//! Chosen precision → double precision → singular value decomposition → keep the stale basis. A rung
//! counts only if its result is finite, orthogonal and reproduces the statistic. The first one works in memory of its
//! own; the others allocate, and count as failed where no memory can be had.
//!
//! A delayed refresh ([`super::background`]) is the same of a statistic that was kept: whoever works it out, and when,
//! what it finds is the same.

use super::background::Background;
use super::certificate::Corrected;
use super::evd::{self, Eigen};
use super::product::{Span2, mirror, multiply};
use super::qr;
use super::real::Real;
use super::scratch::Scratch;
use super::sense::Drift;
use super::{Cpu, Places, Precision, Shared};
use crate::config::InjectFault;
use crate::device::{Certificate, RefreshOrder, Refreshed, Rung};
use crate::engine::rules::Rules;
use crate::error::Result;
use crate::memory::listed;
use crate::preconditioner::policy::BoundRule;
use std::cell::Cell;

/// Renews bases and spectra; an answer per order. The list has room for one per factor.
pub(super) fn refresh(cpu: &mut Cpu, rules: &Rules, orders: &[RefreshOrder], refreshed: &mut Vec<Refreshed>) {
    refreshed.clear();
    refreshed.resize(orders.len(), Refreshed::default());
    let answers = Places(refreshed.as_mut_ptr());
    let background = cpu.background.take();
    let work = |shared: &Shared, task: usize, scratch: &mut Scratch| {
        let (order, ahead) = (&orders[task], background.as_ref());
        let answer = match shared.plan.param_of(order.factor).statistic {
            Precision::F32 if order.delayed => adopt_factor::<f32>(shared, order, ahead, scratch),
            Precision::F64 if order.delayed => adopt_factor::<f64>(shared, order, ahead, scratch),
            Precision::F32 => refresh_factor::<f32>(shared, rules, order, scratch),
            Precision::F64 => refresh_factor::<f64>(shared, rules, order, scratch),
        };
        // SAFETY: one place per task.
        unsafe { answers.put(task, answer) };
    };
    // A few large factors come first, one after the other, each shared among the threads; the others are each of one
    // thread. What is found does not depend on this.
    let (plan, threads) = (cpu.shared.plan.clone(), cpu.workers.threads());
    let is_large = |order: &RefreshOrder| {
        let single = plan.param_of(order.factor).statistic == Precision::F32;
        single && order.qr.is_none() && !order.delayed && evd::is_shared(plan.factors[order.factor].dim)
    };
    let large = orders.iter().filter(|order| is_large(order)).count();
    let is_first = |task: usize| 2 * large <= threads && is_large(&orders[task]);
    for task in (0..orders.len()).filter(|task| is_first(*task)) {
        cpu.each_factor(1, &|shared, _, scratch| work(shared, task, scratch));
    }
    cpu.each_factor(orders.len(), &|shared, task, scratch| {
        if !is_first(task) {
            work(shared, task, scratch);
        }
    });
    cpu.background = background;
}

/// Keeps the statistics of factors, scaled and whole, for refreshes that are taken later.
pub(super) fn keep(cpu: &mut Cpu, rules: &Rules, orders: &[RefreshOrder]) {
    cpu.each_factor(orders.len(), &|shared, task, _| {
        let factor = &shared.plan.factors[orders[task].factor];
        let (n, scale) = (factor.dim, rules.statistic_scale(shared.clock(factor.block)));
        // SAFETY: two slots of n² numbers; the factor has no refresh under way that would read the second.
        unsafe {
            match shared.plan.param_of(orders[task].factor).statistic {
                Precision::F32 => mirror::<f32, f32>(
                    shared.slot(factor.statistic),
                    n,
                    shared.slot(factor.pending_statistic),
                    n,
                    n,
                    scale,
                ),
                Precision::F64 => mirror::<f64, f64>(
                    shared.slot(factor.statistic),
                    n,
                    shared.slot(factor.pending_statistic),
                    n,
                    n,
                    scale,
                ),
            }
        }
    });
}

/// A delayed refresh: takes what was found ahead of time, or finds it now.
fn adopt_factor<S: Real>(
    shared: &Shared,
    order: &RefreshOrder,
    ahead: Option<&Background>,
    scratch: &mut Scratch,
) -> Refreshed {
    let factor = &shared.plan.factors[order.factor];
    let n = factor.dim;
    // SAFETY: slots of the factor, touched by this task alone.
    let (basis, spectrum, kept) = unsafe {
        (
            std::slice::from_raw_parts_mut(shared.slot::<S>(factor.basis), n * n),
            std::slice::from_raw_parts_mut(shared.slot::<S>(factor.spectrum), n),
            std::slice::from_raw_parts(shared.slot::<S>(factor.pending_statistic), n * n),
        )
    };
    let found = match ahead.and_then(|ahead| ahead.take(order, basis, spectrum)) {
        Some(found) => found,
        None => decompose(kept, order, factor.exponent, basis, spectrum, scratch),
    };
    if found.rung == Rung::Stale {
        return Refreshed { rung: found.rung, ..bounds(spectrum) };
    }
    if let Some(slot) = factor.fresh_spectrum {
        // SAFETY: the factor's own slot, of n numbers.
        unsafe { std::slice::from_raw_parts_mut(shared.slot::<S>(slot), n) }.copy_from_slice(spectrum);
    }
    found
}

/// Decomposes `statistic`; on [`Rung::Stale`] basis and spectrum are left as they are.
pub(super) fn decompose<S: Real>(
    statistic: &[S],
    order: &RefreshOrder,
    exponent: f64,
    basis: &mut [S],
    spectrum: &mut [S],
    scratch: &mut Scratch,
) -> Refreshed {
    let n = spectrum.len();
    // SAFETY: matrix 0 has n² numbers.
    unsafe { std::slice::from_raw_parts_mut(scratch.matrix::<S>(0), n * n) }.copy_from_slice(statistic);
    let rung = renew(order, basis, spectrum, scratch);
    if rung == Rung::Stale {
        return Refreshed { rung, ..Refreshed::default() };
    }
    let noise_floor = noise_floor(order, exponent, basis, spectrum, scratch);
    Refreshed { rung, noise_floor, ..bounds(spectrum) }
}

/// Decomposes matrix 0; on [`Rung::Stale`] basis and spectrum are left as they are.
fn renew<S: Real>(order: &RefreshOrder, basis: &mut [S], spectrum: &mut [S], scratch: &mut Scratch) -> Rung {
    let n = spectrum.len();
    let rung = climb::<S>(n, order.fault, scratch);
    if rung != Rung::Stale {
        // SAFETY: `climb` left the basis in matrix 1 and the spectrum in the vector.
        basis.copy_from_slice(unsafe { std::slice::from_raw_parts(scratch.matrix::<S>(1), n * n) });
        let lowest = scratch.vector.iter().copied().fold(f64::INFINITY, f64::min);
        let shift = if order.shift { lowest.min(0.0) } else { 0.0 };
        spectrum.iter_mut().zip(&scratch.vector).for_each(|(d, x)| *d = S::of((*x - shift).max(0.0)));
    }
    rung
}

/// The proxy of matrix 0 in its new basis; NaN if it was not asked for.
fn noise_floor<S: Real>(
    order: &RefreshOrder,
    exponent: f64,
    basis: &mut [S],
    spectrum: &[S],
    scratch: &mut Scratch,
) -> f64 {
    if !order.noise_floor {
        return f64::NAN;
    }
    let n = spectrum.len();
    scratch.rotate_by(basis.as_mut_ptr(), n);
    // SAFETY: `rotate_by` filled matrix 2.
    let h = unsafe { std::slice::from_raw_parts(scratch.matrix::<S>(2), n * n) };
    let base = order.base.at(bounds(spectrum).eigenvalue_max);
    let weights = Cell::from_mut(&mut scratch.room[..n]).as_slice_of_cells();
    Drift { h, spectrum, exponent, weights }.proxy(base)
}

fn refresh_factor<S: Real>(
    shared: &Shared,
    rules: &Rules,
    order: &RefreshOrder,
    scratch: &mut Scratch,
) -> Refreshed {
    let factor = &shared.plan.factors[order.factor];
    scratch.load_statistic::<S>(shared, factor, rules.statistic_scale(shared.clock(factor.block)));
    let n = factor.dim;
    // SAFETY: buffers of the factor, touched by this task alone.
    let (basis, spectrum) = unsafe {
        (
            std::slice::from_raw_parts_mut(shared.slot::<S>(factor.basis), n * n),
            std::slice::from_raw_parts_mut(shared.slot::<S>(factor.spectrum), n),
        )
    };
    let mut tried = Refreshed::default();
    if let Some(steps) = order.qr {
        tried = iterate::<S>(shared, rules, order, steps.target, scratch);
        if tried.by_qr {
            return tried;
        }
        scratch.load_statistic::<S>(shared, factor, rules.statistic_scale(shared.clock(factor.block)));
    }
    let rung = renew(order, basis, spectrum, scratch);
    if rung == Rung::Stale && (order.has_basis || tried.qr_steps > 0) {
        return Refreshed { rung, ..if tried.qr_steps > 0 { tried } else { bounds(spectrum) } };
    }
    if rung == Rung::Stale {
        take_diagonal(scratch, basis, spectrum);
    }
    if let Some(slot) = factor.fresh_spectrum {
        // SAFETY: the factor's own slot, of n numbers.
        unsafe { std::slice::from_raw_parts_mut(shared.slot::<S>(slot), n) }.copy_from_slice(spectrum);
    }
    let noise_floor = noise_floor(order, factor.exponent, basis, spectrum, scratch);
    Refreshed { rung, noise_floor, qr_steps: tried.qr_steps, ..bounds(spectrum) }
}

/// QR steps of one refresh.
const MOST_STEPS: i64 = 3;
/// What sign vectors see of ‖QᵀQ − I‖_F is charged this many times.
const MARGIN: f64 = 2.0;

/// Steps Q ← qr(A·Q), from the stale basis or from I, the columns in the order of diag QᵀAQ, until the sandwich bound is
/// at most `target`. A is matrix 0, which is destroyed. Each step leaves an orthogonal basis, its spectrum diag QᵀAQ,
/// and a lower bound of QᵀAQ in place of the fresh spectrum, so that the state is sound wherever it ends.
fn iterate<S: Real>(
    shared: &Shared,
    rules: &Rules,
    order: &RefreshOrder,
    target: f64,
    scratch: &mut Scratch,
) -> Refreshed {
    let factor = &shared.plan.factors[order.factor];
    let (n, one) = (factor.dim, S::of(1.0));
    let [a, t, columns] = [0, 1, 2].map(|which| Span2::square(scratch.matrix::<S>(which), n));
    // SAFETY: the factor's own slots, touched by this task alone.
    let (basis, spectrum) = unsafe {
        (
            std::slice::from_raw_parts_mut(shared.slot::<S>(factor.basis), n * n),
            std::slice::from_raw_parts_mut(shared.slot::<S>(factor.spectrum), n),
        )
    };
    // SAFETY: three different matrices of the scratch, of n² numbers each.
    let matrix = |which: Span2<S>| unsafe { std::slice::from_raw_parts_mut(which.data, n * n) };
    let mut done = Refreshed { bound: f64::INFINITY, ..Refreshed::default() };
    if matrix(a).iter().any(|x| !x.wide().is_finite()) {
        return done;
    }
    let in_use = Span2::square(basis.as_mut_ptr(), n);
    scratch.vector.clear();
    if order.has_basis {
        // SAFETY: as above; the basis is another matrix.
        unsafe { multiply(t, false, a, in_use, one) };
        let dot = |(q, t): (&[S], &[S])| q.iter().zip(t).map(|(q, t)| q.wide() * t.wide()).sum::<f64>();
        scratch.vector.extend(basis.chunks_exact(n).zip(matrix(t).chunks_exact(n)).map(dot));
    } else {
        matrix(t).copy_from_slice(matrix(a));
        scratch.vector.extend((0..n).map(|i| matrix(a)[i + i * n].wide()));
    }
    loop {
        scratch.sort_falling();
        for (column, place) in matrix(columns).chunks_exact_mut(n).zip(&scratch.order) {
            column.copy_from_slice(&matrix(t)[place * n..(place + 1) * n]);
        }
        if !qr::orthonormalize(matrix(columns), matrix(t), n, scratch.stack()) {
            return done;
        }
        done.qr_steps += 1;
        done.orthogonality = MARGIN * evd::defect(matrix(t), n, &mut scratch.room);
        basis.copy_from_slice(matrix(t));
        scratch.rotate::<S>(shared, factor);
        scratch.vector.clear();
        scratch.vector.extend((0..n).map(|i| matrix(columns)[i + i * n].wide().max(0.0)));
        spectrum.iter_mut().zip(&scratch.vector).for_each(|(d, x)| *d = S::of(*x));
        let ends = bounds(spectrum);
        let epsilon = order.base.at(ends.eigenvalue_max);
        let diagonal = std::mem::take(&mut scratch.vector);
        // Of an older statistic nothing is known: kept = 0.
        let certificate = Certificate { target, kept: 0.0, orthogonality: done.orthogonality };
        let corrected =
            Corrected { diagonal: &diagonal, fresh: spectrum, exponent: factor.exponent, epsilon };
        let found = corrected.bound(certificate, scratch);
        scratch.vector = diagonal;
        if let Some(slot) = factor.fresh_spectrum {
            // SAFETY: the factor's own slot, of n numbers.
            let fresh = unsafe { std::slice::from_raw_parts_mut(shared.slot::<S>(slot), n) };
            // H + ε ⪰ (1 − m)·(diag H + ε).
            let kept = (1.0 - found.loss).max(0.0);
            fresh
                .iter_mut()
                .zip(&scratch.vector)
                .for_each(|(f, d)| *f = S::of(kept * (d + epsilon) - epsilon));
        }
        let (bound, rule) = found.bound;
        // What exceeded τ is a lower bound.
        let bound = if rule == BoundRule::Exceeded { f64::INFINITY } else { bound };
        done = Refreshed {
            bound,
            by_qr: bound <= target,
            qr_steps: done.qr_steps,
            orthogonality: done.orthogonality,
            ..ends
        };
        if done.by_qr || done.qr_steps == MOST_STEPS {
            return done;
        }
        if found.factorized {
            scratch.load_statistic::<S>(shared, factor, rules.statistic_scale(shared.clock(factor.block)));
            // SAFETY: as above.
            unsafe { multiply(t, false, a, in_use, one) };
        }
    }
}

fn bounds<S: Real>(spectrum: &[S]) -> Refreshed {
    let each = spectrum.iter().map(|d| d.wide());
    Refreshed {
        eigenvalue_min: each.clone().fold(f64::INFINITY, f64::min),
        eigenvalue_max: each.fold(0.0, f64::max),
        ..Refreshed::default()
    }
}

/// With no decomposition and no stale basis, the statistic's diagonal still is a preconditioner.
fn take_diagonal<S: Real>(scratch: &Scratch, basis: &mut [S], spectrum: &mut [S]) {
    let n = spectrum.len();
    basis.fill(S::default());
    for (i, d) in spectrum.iter_mut().enumerate() {
        basis[i + i * n] = S::of(1.0);
        // SAFETY: matrix 0 has n² numbers.
        let x = unsafe { scratch.matrix::<S>(0).add(i + i * n).read() }.wide();
        *d = S::of(if x.is_finite() { x.max(0.0) } else { 0.0 });
    }
}

/// Leaves a basis in matrix 1 and its spectrum in the vector, and says which rung gave them; on
/// [`Rung::Stale`] neither holds anything.
pub(super) fn climb<S: Real>(n: usize, fault: InjectFault, scratch: &mut Scratch) -> Rung {
    // SAFETY: matrix 0 holds the statistic, matrix 1 is another matrix of the scratch.
    let (a, q) = unsafe {
        (
            std::slice::from_raw_parts_mut(scratch.matrix::<S>(0), n * n),
            std::slice::from_raw_parts_mut(scratch.matrix::<S>(1), n * n),
        )
    };
    if a.iter().any(|x| !x.wide().is_finite()) {
        return Rung::Stale;
    }
    scratch.vector.clear();
    scratch.vector.resize(n, 0.0);
    if is_diagonal(a, n) {
        q.fill(S::default());
        for i in 0..n {
            q[i + i * n] = S::of(1.0);
            scratch.vector[i] = a[i + i * n].wide();
        }
        return Rung::Chosen;
    }
    // faer's divide and conquer has absolute cutoffs: a matrix far below norm one loses its digits. A
    // power of two costs none.
    let largest = a.iter().map(|x| x.wide().abs()).fold(0.0, f64::max);
    let scale = 2f64.powi(-(largest.log2().floor() as i32).clamp(-120, 120));
    a.iter_mut().for_each(|x| *x *= S::of(scale));
    let rung = climb_touched(a, q, fault, scratch);
    a.iter_mut().for_each(|x| *x *= S::of(1.0 / scale));
    scratch.vector.iter_mut().for_each(|d| *d /= scale);
    rung
}

/// As [`climb_scaled`], on the rows and columns that are not zero alone: a row that no gradient has touched (a symbol
/// that no text had so far) is an eigenvector with eigenvalue 0, exactly. Of such a matrix a decomposition in single
/// precision is less accurate, and a larger one than it has to be. The zeros come first, as the least eigenvalues do.
fn climb_touched<S: Real>(a: &mut [S], q: &mut [S], fault: InjectFault, scratch: &mut Scratch) -> Rung {
    let n = scratch.vector.len();
    let mut touched = std::mem::take(&mut scratch.order);
    touched.clear();
    touched.extend((0..n).filter(|i| a[i * n..(i + 1) * n].iter().any(|x| *x != S::default())));
    let k = touched.len();
    if k == n {
        scratch.order = touched;
        return climb_scaled(a, q, fault, scratch);
    }
    // Forwards every number moves to a lower place, and backwards to a higher one: none is lost.
    let inner = |place: usize| (place % k, place / k);
    let outer = |(i, j): (usize, usize)| touched[i] + touched[j] * n;
    for place in 0..k * k {
        a[place] = a[outer(inner(place))];
    }
    scratch.vector.truncate(k);
    let rung = climb_scaled(&a[..k * k], &mut q[..k * k], fault, scratch);
    a[k * k..].fill(S::default());
    q[k * k..].fill(S::default());
    for place in (0..k * k).rev() {
        let (i, j) = inner(place);
        let (from_a, from_q) = (std::mem::take(&mut a[place]), std::mem::take(&mut q[place]));
        a[outer((i, j))] = from_a;
        q[touched[i] + (n - k + j) * n] = from_q;
    }
    let untouched = (0..n).filter(|i| touched.binary_search(i).is_err());
    untouched.enumerate().for_each(|(column, i)| q[i + column * n] = S::of(1.0));
    scratch.vector.resize(n, 0.0);
    scratch.vector.rotate_right(n - k);
    scratch.order = touched;
    rung
}

fn climb_scaled<S: Real>(a: &[S], q: &mut [S], fault: InjectFault, scratch: &mut Scratch) -> Rung {
    use InjectFault::{EvdAll, EvdChosen, EvdDouble, EvdNonorthogonal};
    let n = scratch.vector.len();
    // SAFETY: matrix 2 is another matrix of the scratch; its first n numbers take the spectrum.
    let spectrum = unsafe { std::slice::from_raw_parts_mut(scratch.matrix::<S>(2), n) };
    let fails = matches!(fault, EvdChosen | EvdDouble | EvdAll);
    let workers = scratch.workers.clone();
    if !fails && evd::decompose(a, spectrum, q, scratch.stack(), workers.as_ref()) {
        if fault == EvdNonorthogonal {
            q.copy_within(0..n, n);
        }
        if evd::is_sound(a, spectrum, q, &mut scratch.room) {
            scratch.vector.iter_mut().zip(&*spectrum).for_each(|(v, d)| *v = d.wide());
            return Rung::Chosen;
        }
    }
    type Path = fn(&[f64], usize) -> Result<Option<Eigen>>;
    let paths: [(Rung, bool, Path); 2] = [
        (Rung::Double, matches!(fault, EvdDouble | EvdAll), evd::decompose_double),
        (Rung::Svd, fault == EvdAll, evd::decompose_svd),
    ];
    // A rung that no memory can be had for has failed like any other.
    let Ok(wide) = listed(a.iter().map(|x| x.wide()), "a decomposition in double precision") else {
        return Rung::Stale;
    };
    for (rung, fails, path) in paths {
        let Ok(Some(eigen)) = path(&wide, n) else { continue };
        if fails {
            continue;
        }
        if evd::is_sound(&wide, &eigen.spectrum, &eigen.basis, &mut scratch.room) {
            q.iter_mut().zip(&eigen.basis).for_each(|(q, x)| *q = S::of(*x));
            scratch.vector.copy_from_slice(&eigen.spectrum);
            return rung;
        }
    }
    Rung::Stale
}

fn is_diagonal<S: Real>(a: &[S], n: usize) -> bool {
    (0..n).all(|j| a[j * n + j + 1..(j + 1) * n].iter().all(|x| *x == S::default()))
}
