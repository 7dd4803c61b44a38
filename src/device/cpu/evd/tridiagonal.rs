//! The tridiagonal form of a symmetric matrix in single precision, T = Qᵀ A Q, by Householder reflections I − v·vᵀ/τ.
//!
//! faer has the same algorithm, column by column. Here two columns are updated and multiplied together, in whole groups of
//! [`LANES`] rows, which takes a third of its time. In double precision, where a group would be two vectors, it takes as
//! long as faer's from side 256 on: that is left to faer.

use super::super::Places;
use super::super::phases::Phases;
use super::super::real::{vectorized, wide_sum_of_squares};
use std::array::from_fn;
use std::ops::Range;

/// Rows that are worked on together.
const LANES: usize = 8;
/// Columns that are worked on together; it divides [`LANES`].
const COLUMNS: usize = 2;

/// Rows of a column that are worked on together.
type Group = [f32; LANES];

/// Numbers of a column for side `n`: rows beyond the matrix are zero.
pub(super) fn padded(n: usize) -> usize {
    n.next_multiple_of(LANES)
}

/// Columns of the memory for side `n`.
pub(super) fn columns(n: usize) -> usize {
    n.next_multiple_of(COLUMNS)
}

/// Columns with more rows below them share the work, in parts that depend on the number of rows alone. With fewer rows a
/// part would be too short: whoever waits for a thread that the system has put aside loses more than was gained.
const SHARED: usize = 512;
/// Columns for one part, and the most parts.
const PART: usize = 128;
const MOST_PARTS: usize = 8;

/// Numbers that [`tridiagonalize`] needs beside the matrix.
pub(super) fn room(n: usize) -> usize {
    (4 + if n > SHARED { MOST_PARTS } else { 0 }) * padded(n)
}

/// The matrix `a`, of which the lower triangle is given, becomes T, in its diagonal and below it, and under these the
/// vectors v without their first number, which is 1. `a` has [`padded`] numbers in each of [`columns`] columns, and
/// zeros beyond the side `n`; `taus` has a number for each column but the last, infinite where nothing is reflected.
pub(super) fn tridiagonalize(a: &mut [f32], n: usize, taus: &mut [f32], room: &mut [f32], phases: &Phases) {
    let stride = padded(n);
    room.fill(0.0);
    let (u, rest) = room.split_at_mut(stride);
    let (v, rest) = rest.split_at_mut(stride);
    let (y, rest) = rest.split_at_mut(stride);
    let (z, partial) = rest.split_at_mut(stride);
    let mut form = Form { a, n, stride, taus, u, v, y, z };
    let shared = n.saturating_sub(SHARED);
    for k in 0..shared {
        vectorized(
            #[inline(always)]
            || form.begin(k),
        );
        form.multiply_shared(k, partial, phases);
        vectorized(
            #[inline(always)]
            || form.end(k),
        );
    }
    vectorized(
        #[inline(always)]
        || form.columns(shared),
    );
}

/// A matrix on its way to tridiagonal form. Column k + 1 of T needs A − u·yᵀ − y·uᵀ of all reflections before. That of the
/// last one is left to the pass that multiplies the matrix with the next v: it is read and written once per column.
struct Form<'a> {
    a: &'a mut [f32],
    n: usize,
    stride: usize,
    taus: &'a mut [f32],
    u: &'a mut [f32],
    v: &'a mut [f32],
    y: &'a mut [f32],
    z: &'a mut [f32],
}

impl Form<'_> {
    /// All columns from `first` on.
    #[inline(always)]
    fn columns(&mut self, first: usize) {
        for k in first..self.n {
            self.begin(k);
            if k + 1 == self.n {
                return;
            }
            let (from, stride) = ((k + 1) & !(LANES - 1), self.stride);
            self.z[from..].fill(0.0);
            let own = (k + 1) & !(COLUMNS - 1);
            pass_all(&mut self.a[own * stride..], stride, own..self.n, [self.u, self.y, self.v], self.z);
            self.end(k);
        }
    }

    /// Column k of T, and its v.
    #[inline(always)]
    fn begin(&mut self, k: usize) {
        let column = &mut self.a[k * self.stride..][..self.stride];
        // u and y are zero above row k.
        let from = k & !(LANES - 1);
        subtract(&mut column[from..], &self.u[from..], &self.y[from..], self.u[k], self.y[k]);
        if k + 1 < self.n {
            (self.u[k], self.y[k]) = (0.0, 0.0);
            self.taus[k] = reflect(column, self.v, k + 1, (k + 1) & !(LANES - 1));
        }
    }

    /// y, from z = A·v.
    #[inline(always)]
    fn end(&mut self, k: usize) {
        let from = (k + 1) & !(LANES - 1);
        self.z[from..k + 1].fill(0.0);
        finish(&mut self.y[from..], &self.z[from..], &self.v[from..], 1.0 / self.taus[k]);
        std::mem::swap(&mut self.u, &mut self.v);
    }

    /// z = A·v, in parts of about equal work; each adds up what its own columns give, in `partial`.
    fn multiply_shared(&mut self, k: usize, partial: &mut [f32], phases: &Phases) {
        let (n, stride, rows) = (self.n, self.stride, self.n - k - 1);
        let parts = (rows / PART).clamp(1, MOST_PARTS);
        let start = |part: usize| match part {
            0 => (k + 1) & !(COLUMNS - 1),
            // A triangle of `rest` columns has the area of the parts that follow.
            _ if part < parts => {
                let rest = rows as f64 * ((parts - part) as f64 / parts as f64).sqrt();
                (n - rest as usize) & !(LANES - 1)
            }
            _ => n,
        };
        let (a, sums) = (Places(self.a.as_mut_ptr()), Places(partial[..parts * stride].as_mut_ptr()));
        let vectors: [&[f32]; 3] = [self.u, self.y, self.v];
        phases.share(parts, &|part| {
            let own = start(part)..start(part + 1);
            let width = own.len().next_multiple_of(COLUMNS);
            // SAFETY: parts have different columns and different sums.
            let (a, z) = unsafe {
                (
                    std::slice::from_raw_parts_mut(a.at(own.start * stride), width * stride),
                    std::slice::from_raw_parts_mut(sums.at(part * stride), stride),
                )
            };
            vectorized(
                #[inline(always)]
                || {
                    z[own.start & !(LANES - 1)..].fill(0.0);
                    pass_all(a, stride, own.clone(), vectors, z);
                },
            );
        });
        let from = (k + 1) & !(LANES - 1);
        self.z[from..].copy_from_slice(&partial[from..stride]);
        for part in 1..parts {
            let (from, z) = (start(part), &partial[part * stride..][..stride]);
            self.z[from..].iter_mut().zip(&z[from..]).for_each(|(sum, z)| *sum += z);
        }
    }
}

/// [`pass`] for the columns `own`, of which the first is at the start of `a`.
#[inline(always)]
fn pass_all(a: &mut [f32], stride: usize, own: Range<usize>, [u, y, v]: [&[f32]; 3], z: &mut [f32]) {
    for (j, columns) in own.step_by(COLUMNS).zip(a.chunks_exact_mut(COLUMNS * stride)) {
        let first = j & !(LANES - 1);
        let sums = pass(columns, j, [&u[first..], &y[first..], &v[first..]], &mut z[first..]);
        z[j..].iter_mut().zip(sums).for_each(|(z, sum)| *z += sum);
    }
}

/// `column` −= `u`·y_k + `y`·u_k.
#[inline(always)]
fn subtract(column: &mut [f32], u: &[f32], y: &[f32], u_k: f32, y_k: f32) {
    for (a, (u, y)) in column
        .as_chunks_mut::<LANES>()
        .0
        .iter_mut()
        .zip(u.as_chunks::<LANES>().0.iter().zip(y.as_chunks::<LANES>().0))
    {
        for i in 0..LANES {
            a[i] -= u[i] * y_k + y[i] * u_k;
        }
    }
}

/// Makes the reflection that takes rows `k` to the end of `column` to a multiple of the first of them, which becomes that
/// multiple, and the others v; gives τ. `v` is the whole vector: zeros from row `from` on, the one of row `k`, and the
/// rest.
#[inline(always)]
fn reflect(column: &mut [f32], v: &mut [f32], k: usize, from: usize) -> f32 {
    v[from..].copy_from_slice(&column[from..]);
    v[from..=k].fill(0.0);
    let (head, tail) = (f64::from(column[k]), wide_sum_of_squares(&v[from..]));
    let norm = (head * head + tail).sqrt();
    let factor = (1.0 / (head + norm.copysign(head))) as f32;
    if tail.sqrt() as f32 == 0.0 || !factor.is_finite() {
        v[from..].fill(0.0);
        column[k + 1..].fill(0.0);
        return f32::INFINITY;
    }
    v[from..].iter_mut().for_each(|x| *x *= factor);
    column[k + 1..].copy_from_slice(&v[k + 1..]);
    column[k] = -norm.copysign(head) as f32;
    v[k] = 1.0;
    (0.5 * (1.0 + tail * f64::from(factor).powi(2))) as f32
}

/// The lower triangle of columns j and j + 1 −= u·yᵀ + y·uᵀ; then z += what is below their diagonal, times v. Gives the
/// products of the columns from the diagonal on with v. All begin with the group of rows that j is in.
#[inline(always)]
fn pass(columns: &mut [f32], j: usize, [u, y, v]: [&[f32]; 3], z: &mut [f32]) -> [f32; COLUMNS] {
    let (first, at) = (j & !(LANES - 1), j % LANES);
    let (one, two) = columns.split_at_mut(columns.len() / COLUMNS);
    let [one, two] = [one, two].map(|column| column[first..].as_chunks_mut::<LANES>().0);
    let own = [0, 1].map(|c| (u[at + c], y[at + c], v[at + c]));
    let (u, y, v, z) = (
        u.as_chunks::<LANES>().0,
        y.as_chunks::<LANES>().0,
        v.as_chunks::<LANES>().0,
        z.as_chunks_mut::<LANES>().0,
    );
    // Whole groups are read before any is written: only then are they computed in vectors.
    let mut sums = [[0.0; LANES]; COLUMNS];
    for (c, column) in [&mut one[0], &mut two[0]].into_iter().enumerate() {
        let x = updated(*column, u[0], y[0], own[c].0, own[c].1);
        let from = |row: usize| from_fn(|i| if i >= row { x[i] } else { 0.0 });
        let (whole, below) = (from(at + c), from(at + c + 1));
        *column = whole;
        z[0] = plus(z[0], below, own[c].2);
        sums[c] = from_fn(|i| whole[i] * v[0][i]);
    }
    let rest = one[1..].iter_mut().zip(&mut two[1..]).zip(&u[1..]).zip(&y[1..]).zip(&v[1..]).zip(&mut z[1..]);
    for (((((one, two), u), y), v), z) in rest {
        let (u, y, v) = (*u, *y, *v);
        let x0 = updated(*one, u, y, own[0].0, own[0].1);
        let x1 = updated(*two, u, y, own[1].0, own[1].1);
        let next = plus(plus(*z, x0, own[0].2), x1, own[1].2);
        sums = [from_fn(|i| sums[0][i] + x0[i] * v[i]), from_fn(|i| sums[1][i] + x1[i] * v[i])];
        (*one, *two, *z) = (x0, x1, next);
    }
    sums.map(total)
}

/// x − u·y_j − y·u_j.
#[inline(always)]
fn updated(x: Group, u: Group, y: Group, u_j: f32, y_j: f32) -> Group {
    from_fn(|i| x[i] - (u[i] * y_j + y[i] * u_j))
}

/// z + x·v_j.
#[inline(always)]
fn plus(z: Group, x: Group, v_j: f32) -> Group {
    from_fn(|i| z[i] + x[i] * v_j)
}

/// y = p − (vᵀp/2τ)·v with p = z/τ: A − u·yᵀ − y·uᵀ, u = v, then is the reflected matrix.
#[inline(always)]
fn finish(y: &mut [f32], z: &[f32], v: &[f32], inverse: f32) {
    let mut sums = [0.0; LANES];
    for (z, v) in z.as_chunks::<LANES>().0.iter().zip(v.as_chunks::<LANES>().0) {
        for i in 0..LANES {
            sums[i] += z[i] * v[i];
        }
    }
    let share = 0.5 * inverse * inverse * total(sums);
    for (y, (z, v)) in y
        .as_chunks_mut::<LANES>()
        .0
        .iter_mut()
        .zip(z.as_chunks::<LANES>().0.iter().zip(v.as_chunks::<LANES>().0))
    {
        for i in 0..LANES {
            y[i] = inverse * z[i] - share * v[i];
        }
    }
}

#[inline(always)]
fn total(x: Group) -> f32 {
    let [a, b, c, d, e, f, g, h] = x;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}
