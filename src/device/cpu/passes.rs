//! The passes over M of a certificate, in the precision of the statistic, [`LANES`] rows at a time: rows of such a group
//! that are not below the diagonal are made zero, and vectors are padded with zeros to whole groups.

// Iterators over arrays of vectors are not always inlined, and instructions beyond the baseline must be.
#![allow(clippy::needless_range_loop)]

use super::lanes::{LANES, Lanes};
use super::real::Real;
use crate::preconditioner::bound::Coupling;

/// Vectors of [`Vectors`] in the precision of the statistic.
pub(super) const VECTORS: usize = 7;

/// Vectors in the precision of the statistic, padded with zeros to whole groups of [`LANES`] numbers.
pub(super) struct Vectors<'a, S> {
    /// Numbers of each, without the padding.
    pub n: usize,
    /// a^(−1/2).
    pub roots: &'a mut [S],
    /// f(a)², in the unit of the largest.
    pub powers: &'a mut [S],
    /// a, in the unit of the largest.
    pub shares: &'a mut [S],
    /// √a in the unit of the least, if p = 2; else a column of C.
    pub numbers: &'a mut [S],
    /// Three of an iteration.
    pub v: &'a mut [S],
    pub image: &'a mut [S],
    pub before: &'a mut [S],
    /// A column of C in double precision.
    pub wide: &'a mut [f64],
}

impl<'a, S: Real> Vectors<'a, S> {
    /// In `room`: `n` numbers and [`VECTORS`] padded vectors.
    pub fn new(n: usize, room: &'a mut [f64]) -> Vectors<'a, S> {
        let (wide, room) = room.split_at_mut(n);
        let room: &mut [S] = bytemuck::cast_slice_mut(room);
        let padded = n.next_multiple_of(LANES);
        room[..VECTORS * padded].fill(S::default());
        let mut parts = room.chunks_exact_mut(padded);
        let mut next = || parts.next().expect("the room has space for the vectors");
        Vectors {
            n,
            roots: next(),
            powers: next(),
            shares: next(),
            numbers: next(),
            v: next(),
            image: next(),
            before: next(),
            wide,
        }
    }
}

/// The first row of the group that row j + 1 is in.
#[inline(always)]
fn group_start(j: usize) -> usize {
    (j + 1) & !(LANES - 1)
}

/// The groups of a padded vector from row `from` on.
#[inline(always)]
fn groups<S>(vector: &[S], from: usize) -> &[[S; LANES]] {
    vector[from..].as_chunks().0
}

/// The last group of a column, of which only the first numbers exist.
#[inline(always)]
fn padded<S: Real>(rest: &[S]) -> [S; LANES] {
    let mut group = [S::default(); LANES];
    for (place, x) in group.iter_mut().zip(rest) {
        *place = *x;
    }
    group
}

/// Sums over the columns, in double precision at least once per column.
struct Totals<L, const K: usize> {
    wide: [[f64; LANES]; K],
    own: [L; K],
    /// Groups that the own sums have.
    groups: usize,
}

/// So many groups are added up in the precision of the statistic, and those of one column.
const GROUPS: usize = 32;

impl<L, const K: usize> Totals<L, K> {
    #[inline(always)]
    fn new(zero: L) -> Self
    where
        L: Copy,
    {
        Totals { wide: [[0.0; LANES]; K], own: [zero; K], groups: 0 }
    }

    /// `groups` more are in the own sums.
    #[inline(always)]
    fn count<S: Real>(&mut self, groups: usize, zero: L)
    where
        L: Lanes<S>,
    {
        self.groups += groups;
        if self.groups >= GROUPS {
            self.widen(zero);
        }
    }

    #[inline(always)]
    fn widen<S: Real>(&mut self, zero: L)
    where
        L: Lanes<S>,
    {
        for k in 0..K {
            let mut lanes = [S::default(); LANES];
            self.own[k].store(&mut lanes);
            for i in 0..LANES {
                self.wide[k][i] += lanes[i].wide();
            }
            self.own[k] = zero;
        }
        self.groups = 0;
    }

    #[inline(always)]
    fn sums<S: Real>(mut self, zero: L) -> [f64; K]
    where
        L: Lanes<S>,
    {
        self.widen(zero);
        self.wide.map(|lanes| lanes.iter().sum())
    }
}

/// What one pass over M gives.
pub(super) struct Sums {
    /// ‖M‖_F².
    pub squares: f64,
    /// ‖C∘M‖_F².
    pub first_order: f64,
    /// Σ f(a_i)² M_ij².
    pub weighted_by_powers: f64,
    /// Σ a_i a_j M_ij², in the unit of the largest a.
    pub weighted_by_a: f64,
}

/// The lower triangle of H in `m` becomes that of M.
///
/// # Safety
/// The CPU has the instructions of `L`.
#[inline(always)]
pub(super) unsafe fn scale<S: Real, L: Lanes<S>>(
    m: &mut [S],
    vectors: &mut Vectors<S>,
    coupling: &Coupling,
) -> Sums {
    let n = vectors.n;
    // SAFETY: the caller's contract.
    unsafe {
        let zero = L::splat(S::default());
        let mut totals = Totals::<L, 4>::new(zero);
        for j in 0..n {
            let from = group_start(j);
            let weights = Weights::<S, L>::new(vectors.numbers, vectors.wide, coupling, from, j);
            let column = &mut m[j * n..][..n];
            column[from..j + 1].fill(S::default());
            let own = L::splat(vectors.roots[j]);
            let (power, share) = (L::splat(vectors.powers[j]), L::splat(vectors.shares[j]));
            let (roots, powers) = (groups(vectors.roots, from), groups(vectors.powers, from));
            let shares = groups(vectors.shares, from);
            let mut sums = totals.own;
            let (whole, rest) = column[from..].as_chunks_mut::<LANES>();
            let mut last = padded(rest);
            for k in 0..roots.len() {
                let x = if k < whole.len() { &mut whole[k] } else { &mut last };
                let change = L::load(x).times(L::load(&roots[k])).times(own);
                let (square, weighted) = (change.times(change), change.times(weights.at(k)));
                change.store(x);
                sums[0] = sums[0].plus(square);
                sums[1] = weighted.times_plus(weighted, sums[1]);
                sums[2] = square.times_plus(L::load(&powers[k]).plus(power), sums[2]);
                sums[3] = square.times_plus(L::load(&shares[k]).times(share), sums[3]);
            }
            for (x, scaled) in rest.iter_mut().zip(last) {
                *x = scaled;
            }
            totals.own = sums;
            totals.count(roots.len(), zero);
        }
        let [squares, first_order, powers, shares] = totals.sums(zero);
        Sums {
            squares: 2.0 * squares,
            first_order: 2.0 * first_order,
            weighted_by_powers: powers,
            weighted_by_a: 2.0 * shares,
        }
    }
}

/// C_ij of a column from some row on.
struct Weights<'a, S, L> {
    /// √a_i, if p = 2; else C_ij.
    numbers: &'a [[S; LANES]],
    /// √a_j and 1, if p = 2.
    roots: Option<(L, L)>,
}

impl<'a, S: Real, L: Lanes<S>> Weights<'a, S, L> {
    /// Those of column `j` from row `from` on; `numbers` are √a, if p = 2, else they and `wide` are used.
    ///
    /// # Safety
    /// The CPU has the instructions of `L`.
    #[inline(always)]
    unsafe fn new(
        numbers: &'a mut [S],
        wide: &mut [f64],
        coupling: &Coupling,
        from: usize,
        j: usize,
    ) -> Self {
        if coupling.square_roots().is_some() {
            // SAFETY: the caller's contract.
            let roots = unsafe { (L::splat(numbers[j]), L::splat(S::of(1.0))) };
            return Weights { numbers: groups(numbers, from), roots: Some(roots) };
        }
        let wide = &mut wide[from..];
        coupling.column(from, j, wide);
        numbers[from..].iter_mut().zip(wide).for_each(|(c, x)| *c = S::of(*x));
        Weights { numbers: groups(numbers, from), roots: None }
    }

    /// Those of group `k`.
    #[inline(always)]
    fn at(&self, k: usize) -> L {
        // SAFETY: `new` had the contract.
        let numbers = unsafe { L::load(&self.numbers[k]) };
        match self.roots {
            Some((own, one)) => one.over(numbers.plus(own)),
            None => numbers,
        }
    }
}

/// `image` = M·v, or |M|·v if `SIZES`; the triangle of M below its diagonal is given, v and `image` are padded. In squares
/// of [`LANES`] rows and columns, each of which is used for the part above the diagonal, too.
///
/// # Safety
/// The CPU has the instructions of `L`.
#[inline(always)]
unsafe fn apply<S: Real, L: Lanes<S>, const SIZES: bool>(m: &[S], n: usize, v: &[S], image: &mut [S]) {
    image.fill(S::default());
    let (images, numbers) = (image.as_chunks_mut::<LANES>().0, groups(v, 0));
    // SAFETY: the caller's contract.
    unsafe {
        let zero = L::splat(S::default());
        for (place, own) in numbers.iter().enumerate() {
            let first = place * LANES;
            let mut sums = [zero; LANES];
            for k in place..numbers.len() {
                let inside = (k + 1) * LANES <= n;
                let (left, mut sum) = (L::load(&numbers[k]), L::load(&images[k]));
                for c in 0..LANES.min(n - first) {
                    let at = (first + c) * n + k * LANES;
                    let x = if inside {
                        L::load(&groups(m, at)[0])
                    } else {
                        L::load(&padded(&m[at..(first + c + 1) * n]))
                    };
                    // Of the squares on the diagonal, only what is below it.
                    let x = if k == place { zero.then(c + 1, x) } else { x };
                    let x = if SIZES { x.size() } else { x };
                    sum = x.times_plus(L::splat(own[c]), sum);
                    sums[c] = x.times_plus(left, sums[c]);
                }
                sum.store(&mut images[k]);
            }
            let rows = L::transpose(sums);
            let mut sum = L::load(&images[place]);
            for row in rows {
                sum = sum.plus(row);
            }
            sum.store(&mut images[place]);
        }
    }
}

/// max_i (|M| v)_i / v_i ≥ the largest |eigenvalue| of M, for any v > 0 (Collatz–Wielandt); v is a few steps of the
/// power method. min_i (|M| v)_i / v_i is below all that further steps can give: they are left out if that is not
/// `promising`.
///
/// # Safety
/// The CPU has the instructions of `L`.
#[inline(always)]
pub(super) unsafe fn spectral_radius<S: Real, L: Lanes<S>>(
    m: &[S],
    vectors: &mut Vectors<S>,
    promising: impl Fn(f64) -> bool,
) -> f64 {
    let n = vectors.n;
    let (v, image) = (&mut *vectors.v, &mut *vectors.image);
    v[..n].fill(S::of(1.0));
    let mut radius = f64::INFINITY;
    for _ in 0..3 {
        // SAFETY: the caller's contract.
        unsafe { apply::<S, L, true>(m, n, v, image) };
        let ratios = image[..n].iter().zip(&*v).map(|(w, v)| w.wide() / v.wide());
        let (least, worst) = ratios.fold((f64::INFINITY, 0.0), |(l, w), x| (x.min(l), x.max(w)));
        // What the sums of n numbers may have lost by rounding.
        radius = worst.mul_add(n as f64 * S::STEP, worst).min(radius);
        if !promising(least) {
            break;
        }
        let mean = image[..n].iter().map(|w| w.wide()).sum::<f64>() / n as f64;
        // Every entry stays positive, however little it takes part.
        let little = S::of(1e-3 * mean + 1e-30);
        v[..n].iter_mut().zip(&*image).for_each(|(v, w)| *v = *w + little);
    }
    radius
}

/// xᵀy of padded vectors.
#[inline(always)]
fn dot<S: Real>(x: &[S], y: &[S]) -> f64 {
    let mut lanes = [0.0; LANES];
    for (x, y) in groups(x, 0).iter().zip(groups(y, 0)) {
        for k in 0..LANES {
            lanes[k] += x[k].wide() * y[k].wide();
        }
    }
    lanes.iter().sum()
}

/// Steps of Lanczos's method before a Cholesky factorization, which costs more of them the larger it is.
fn lanczos_steps(n: usize) -> usize {
    2 + (n / 32).min(14)
}

/// Whether mI + M is found not to be positive definite, m = `shift`, so that a factorization would be in vain: Lanczos's
/// method makes it a tridiagonal matrix in the space of a few vectors, whose pivots are then not all positive. Where
/// rounding makes that untrue, only the cheaper bound is missed.
///
/// # Safety
/// The CPU has the instructions of `L`.
#[inline(always)]
pub(super) unsafe fn is_refuted<S: Real, L: Lanes<S>>(m: &[S], vectors: &mut Vectors<S>, shift: f64) -> bool {
    let n = vectors.n;
    let (v, image, before) = (&mut *vectors.v, &mut *vectors.image, &mut *vectors.before);
    // Signs without a pattern.
    let (mut state, start) = (0x9e37_79b9_7f4a_7c15u64, 1.0 / (n as f64).sqrt());
    for v in &mut v[..n] {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *v = S::of(if state >> 63 == 0 { start } else { -start });
    }
    before.fill(S::default());
    let (mut square, mut pivot) = (0.0f64, 1.0);
    for _ in 0..lanczos_steps(n) {
        // SAFETY: the caller's contract.
        unsafe { apply::<S, L, false>(m, n, v, image) };
        let diagonal = dot(v, image);
        pivot = shift + diagonal - square / pivot;
        if pivot <= 0.0 {
            return true;
        }
        let (own, other) = (S::of(diagonal), S::of(square.sqrt()));
        let terms = image.iter_mut().zip(&*v).zip(&*before);
        terms.for_each(|((w, v), before)| *w -= own * *v + other * *before);
        square = dot(image, image);
        if square <= S::STEP * S::STEP {
            return false;
        }
        let inverse = S::of(1.0 / square.sqrt());
        before.copy_from_slice(v);
        v.iter_mut().zip(&*image).for_each(|(v, w)| *v = *w * inverse);
    }
    false
}

/// ‖C∘(N⁻¹ − I − M)‖_F + ‖C∘(N⁻¹ − I + M)‖_F, the length of the centre and the radius of the ball that the sandwich puts
/// the gap into, both doubled. The lower triangle of `n_inverse` is N⁻¹.
///
/// # Safety
/// The CPU has the instructions of `L`.
#[inline(always)]
pub(super) unsafe fn ball<S: Real, L: Lanes<S>>(
    m: &[S],
    n_inverse: &mut [S],
    vectors: &mut Vectors<S>,
    coupling: &Coupling,
) -> f64 {
    let n = vectors.n;
    // SAFETY: the caller's contract.
    unsafe {
        let zero = L::splat(S::default());
        let (mut diagonal, mut totals) = (0.0, Totals::<L, 2>::new(zero));
        for j in 0..n {
            let from = group_start(j);
            let weights = Weights::<S, L>::new(vectors.numbers, vectors.wide, coupling, from, j);
            let column = &mut n_inverse[j * n..][..n];
            diagonal += ((column[j].wide() - 1.0) * coupling.at(j, j)).powi(2);
            column[from..j + 1].fill(S::default());
            let mut sums = totals.own;
            let (inverses, rest) = column[from..].as_chunks::<LANES>();
            let (changes, other) = m[j * n..][from..n].as_chunks::<LANES>();
            let last = (padded(rest), padded(other));
            for k in 0..weights.numbers.len() {
                let (inverse, x) =
                    if k < inverses.len() { (&inverses[k], &changes[k]) } else { (&last.0, &last.1) };
                let (inverse, x, c) = (L::load(inverse), L::load(x), weights.at(k));
                let (low, high) = (inverse.minus(x).times(c), inverse.plus(x).times(c));
                sums[0] = low.times_plus(low, sums[0]);
                sums[1] = high.times_plus(high, sums[1]);
            }
            totals.own = sums;
            totals.count(weights.numbers.len(), zero);
        }
        totals.sums(zero).map(|sum| (2.0 * sum + diagonal).sqrt()).iter().sum()
    }
}
