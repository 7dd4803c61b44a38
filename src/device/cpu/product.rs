//! Matrix products on raw, strided memory: a thin layer over faer, plus what keeps symmetry's gain.

use super::lanes::{LANES, Lanes};
use super::lower;
use super::real::{Real, fused, vectorized};
use crate::error::Result;
use crate::memory::{filled, probe};
use faer::{Accum, MatMut, MatRef, Par};
use std::cell::Cell;

/// Bytes that faer's products may take, once, on every thread that multiplies: twice the last cache. They are taken
/// in a way that aborts the process where they cannot be had, so they are asked for before.
const PACKING: u128 = 64 << 20;
/// Side of a product that is not done in registers.
const SIDE: usize = 64;

/// The vectors that faer's products use on this machine: it chooses them at run time, by these features.
pub fn kernels() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        if has!("avx512f") {
            return "AVX-512";
        }
        if has!("avx2") && has!("fma") {
            return "AVX2";
        }
    }
    if cfg!(target_arch = "aarch64") { "NEON" } else { "portable" }
}

thread_local! {
    static READY: Cell<bool> = const { Cell::new(false) };
}

/// Lets this thread take what products need on it: afterwards none of them allocates.
pub fn ready() -> Result<()> {
    if READY.with(Cell::get) {
        return Ok(());
    }
    let what = "the workspace of products on a thread";
    let mut singles = filled(0f32, 3 * SIDE * SIDE, what)?;
    let mut doubles = filled(0f64, 3 * SIDE * SIDE, what)?;
    probe(PACKING, what)?;
    square(&mut singles);
    square(&mut doubles);
    READY.with(|ready| ready.set(true));
    Ok(())
}

/// A product among three matrices that lie one after the other.
fn square<T: Real>(numbers: &mut [T]) {
    let [target, left, right] =
        [0, 1, 2].map(|place| Span2::square(numbers.as_mut_ptr().wrapping_add(place * SIDE * SIDE), SIDE));
    // SAFETY: three matrices that do not overlap.
    unsafe { multiply(target, false, left, right, T::of(1.0)) };
}

/// A matrix somewhere in memory: row `i`, column `j` at `data + i·row + j·col`.
#[derive(Clone, Copy)]
pub struct Span2<T> {
    /// First element.
    pub data: *mut T,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Elements between rows.
    pub row: usize,
    /// Elements between columns.
    pub col: usize,
}

impl<T> Span2<T> {
    /// A row-major matrix with `stride` elements a row.
    pub fn row_major(data: *mut T, rows: usize, cols: usize, stride: usize) -> Self {
        Span2 { data, rows, cols, row: stride, col: 1 }
    }

    /// A square column-major matrix.
    pub fn square(data: *mut T, n: usize) -> Self {
        Span2 { data, rows: n, cols: n, row: 1, col: n }
    }

    /// The transpose.
    pub fn t(self) -> Self {
        Span2 { data: self.data, rows: self.cols, cols: self.rows, row: self.col, col: self.row }
    }

    /// The part that starts at (`row`, `col`).
    pub fn part(self, row: usize, col: usize, rows: usize, cols: usize) -> Self {
        debug_assert!(row + rows <= self.rows && col + cols <= self.cols);
        let offset = row * self.row + col * self.col;
        Span2 { data: self.data.wrapping_add(offset), rows, cols, ..self }
    }

    /// faer's view of it.
    ///
    /// # Safety
    /// The memory is readable and not written while the view lives.
    pub unsafe fn view<'a>(self) -> MatRef<'a, T> {
        let (row, col) = (self.row as isize, self.col as isize);
        // SAFETY: the caller's contract.
        unsafe { MatRef::from_raw_parts(self.data, self.rows, self.cols, row, col) }
    }

    /// faer's mutable view of it.
    ///
    /// # Safety
    /// The memory is writable and not accessed otherwise while the view lives.
    pub unsafe fn view_mut<'a>(self) -> MatMut<'a, T> {
        let (row, col) = (self.row as isize, self.col as isize);
        // SAFETY: the caller's contract.
        unsafe { MatMut::from_raw_parts_mut(self.data, self.rows, self.cols, row, col) }
    }
}

/// `target` = (`add`? `target` : 0) + `alpha`·`left`·`right`, on the calling thread.
///
/// # Safety
/// All three are valid memory; `target` overlaps neither operand.
pub unsafe fn multiply<T: Real>(target: Span2<T>, add: bool, left: Span2<T>, right: Span2<T>, alpha: T) {
    let accum = if add { Accum::Add } else { Accum::Replace };
    // SAFETY: the caller's contract.
    unsafe {
        faer::linalg::matmul::matmul(target.view_mut(), accum, left.view(), right.view(), alpha, Par::Seq);
    }
}

/// A diagonal block up to this side is computed in panels of [`COLUMNS`] columns, each from its diagonal down.
const DIAGONAL: usize = 96;
/// Narrower panels cost more than they save. Measured at the sides 48 to 128 in single precision: 0.6 to 0.9 of the time
/// of the full product.
const COLUMNS: usize = 24;
/// A product of so few rows is done in full.
const FEW_ROWS: usize = 16;
/// A product of fewer terms is done in full: a panel would cost more to begin than to compute.
const FEW_TERMS: usize = 16;

/// Whether [`lower::multiply`] is the best for a lower triangle.
pub fn is_small<T: Real>(target: &Span2<T>, left: &Span2<T>) -> bool {
    target.rows > FEW_ROWS && left.cols >= FEW_TERMS && lower::takes(target, left)
}

/// The lower triangle of a symmetric `target` (+)= `alpha`·`left`·`right`. Parts of the upper triangle
/// near the diagonal are written too.
///
/// # Safety
/// As [`multiply`].
pub unsafe fn multiply_lower<T: Real>(
    target: Span2<T>,
    add: bool,
    left: Span2<T>,
    right: Span2<T>,
    alpha: T,
) {
    // SAFETY: the caller's contract.
    unsafe { Lower { add, alpha, keeps_upper: false }.multiply(target, left, right) }
}

/// The same, with the same bits, and the strict upper triangle stays as it is. The target is column-major.
///
/// # Safety
/// As [`multiply`].
pub unsafe fn multiply_only_lower<T: Real>(
    target: Span2<T>,
    add: bool,
    left: Span2<T>,
    right: Span2<T>,
    alpha: T,
) {
    debug_assert_eq!(target.row, 1);
    // SAFETY: the caller's contract.
    unsafe { Lower { add, alpha, keeps_upper: true }.multiply(target, left, right) }
}

/// How a lower triangle is made.
struct Lower<T> {
    add: bool,
    alpha: T,
    keeps_upper: bool,
}

impl<T: Real> Lower<T> {
    /// # Safety
    /// As [`multiply_lower`].
    unsafe fn multiply(&self, target: Span2<T>, left: Span2<T>, right: Span2<T>) {
        let (n, k) = (target.rows, left.cols);
        let Lower { add, alpha, .. } = *self;
        // SAFETY: parts of valid matrices, disjoint in the target.
        unsafe {
            if is_small(&target, &left) {
                return lower::multiply(target, T::of(if add { 1.0 } else { 0.0 }), left, right, alpha);
            }
            if n <= COLUMNS || (n <= DIAGONAL && k < FEW_TERMS) {
                return self.multiply_panel(target, left, right);
            }
            if n <= DIAGONAL {
                for start in (0..n).step_by(COLUMNS) {
                    let (rows, cols) = (n - start, COLUMNS.min(n - start));
                    self.multiply_panel(
                        target.part(start, start, rows, cols),
                        left.part(start, 0, rows, k),
                        right.part(0, start, k, cols),
                    );
                }
                return;
            }
            // Halves that are multiples of the kernel's tile.
            let half = (n / 2).next_multiple_of(48).min(n - 1);
            let rest = n - half;
            self.multiply(target.part(0, 0, half, half), left.part(0, 0, half, k), right.part(0, 0, k, half));
            multiply(
                target.part(half, 0, rest, half),
                add,
                left.part(half, 0, rest, k),
                right.part(0, 0, k, half),
                alpha,
            );
            self.multiply(
                target.part(half, half, rest, rest),
                left.part(half, 0, rest, k),
                right.part(0, half, k, rest),
            );
        }
    }

    /// A product in full, whose first row and column are on the diagonal.
    ///
    /// # Safety
    /// As [`multiply_lower`].
    unsafe fn multiply_panel(&self, target: Span2<T>, left: Span2<T>, right: Span2<T>) {
        let columns = target.cols;
        debug_assert!(columns <= DIAGONAL);
        let mut upper = [std::mem::MaybeUninit::<T>::uninit(); DIAGONAL * (DIAGONAL - 1) / 2];
        let upper = upper.as_mut_ptr().cast::<T>();
        // Column j has j numbers above the diagonal, behind those of the columns before it.
        let place =
            |j: usize| (target.data.wrapping_add(j * target.col), upper.wrapping_add(j * (j - 1) / 2));
        let above = 1..if self.keeps_upper { columns } else { 1 };
        // SAFETY: the caller's contract; there is room for a triangle.
        unsafe {
            for j in above.clone() {
                let (from, kept) = place(j);
                std::ptr::copy_nonoverlapping(from, kept, j);
            }
            multiply(target, self.add, left, right, self.alpha);
            for j in above {
                let (to, kept) = place(j);
                std::ptr::copy_nonoverlapping(kept, to, j);
            }
        }
    }
}

/// Side of the tiles in which a triangle is copied onto the other.
const TILE: usize = 32;

/// A lower triangle that is copied onto both triangles of a matrix.
struct Mirror<S, W> {
    source: *const S,
    /// Elements per column of the source.
    stride: usize,
    target: *mut W,
    /// Elements per column of the target.
    pitch: usize,
    n: usize,
    scale: f64,
}

/// Copies the lower triangle of a column-major `source` of side `n`, times `scale`, into both triangles
/// of `target`, converting on the way.
///
/// # Safety
/// Both are `n`×`n` column-major, `source` with `stride` elements a column, `target` with `pitch`; they do not overlap
/// unless they are the same memory of the same type and stride.
pub unsafe fn mirror<S: Real, W: Real>(
    source: *const S,
    stride: usize,
    target: *mut W,
    pitch: usize,
    n: usize,
    scale: f64,
) {
    let mirror = Mirror { source, stride, target, pitch, n, scale };
    // SAFETY: the caller's contract; the wide instructions are there.
    unsafe {
        if fused() {
            vectorized(
                #[inline(always)]
                || mirror.copy::<W::Lanes>(),
            );
        } else {
            mirror.copy::<[W; LANES]>();
        }
    }
}

impl<S: Real, W: Real> Mirror<S, W> {
    /// # Safety
    /// As [`mirror`]; the CPU has the instructions of `L`.
    #[inline(always)]
    unsafe fn copy<L: Lanes<W>>(&self) {
        let n = self.n;
        for first_col in (0..n).step_by(TILE) {
            for first_row in (first_col..n).step_by(TILE) {
                for col in (first_col..(first_col + TILE).min(n)).step_by(LANES) {
                    for row in (first_row.max(col)..(first_row + TILE).min(n)).step_by(LANES) {
                        // SAFETY: the caller's contract; the part lies within the matrix.
                        unsafe {
                            if row + LANES <= n {
                                self.part::<L>(row, col);
                            } else {
                                self.edge(row, col);
                            }
                        }
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn convert(&self, x: S) -> W {
        if self.scale == 1.0 { W::of(x.wide()) } else { W::of(x.wide() * self.scale) }
    }

    /// The part of [`LANES`] rows and columns that starts at (`row`, `col`), at or below the diagonal.
    ///
    /// # Safety
    /// As [`Mirror::copy`]; the part lies within the matrix.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)]
    unsafe fn part<L: Lanes<W>>(&self, row: usize, col: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            let mut columns = [L::splat(W::default()); LANES];
            for j in 0..LANES {
                let from = &*self.source.add(row + (col + j) * self.stride).cast::<[S; LANES]>();
                let mut converted = [W::default(); LANES];
                for i in 0..LANES {
                    converted[i] = self.convert(from[i]);
                }
                columns[j] = L::load(&converted);
            }
            let rows = L::transpose(columns);
            for k in 0..LANES {
                let below = &mut *self.target.add(row + (col + k) * self.pitch).cast::<[W; LANES]>();
                if row == col {
                    rows[k].then(k, columns[k]).store(below);
                } else {
                    columns[k].store(below);
                    rows[k].store(&mut *self.target.add(col + (row + k) * self.pitch).cast::<[W; LANES]>());
                }
            }
        }
    }

    /// The same where the matrix has fewer rows.
    ///
    /// # Safety
    /// As [`mirror`].
    #[inline(always)]
    unsafe fn edge(&self, row: usize, col: usize) {
        for j in col..(col + LANES).min(self.n) {
            for i in row.max(j)..self.n {
                // SAFETY: the caller's contract.
                unsafe {
                    let x = self.convert(self.source.add(i + j * self.stride).read());
                    self.target.add(i + j * self.pitch).write(x);
                    self.target.add(j + i * self.pitch).write(x);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lower_triangle_equals_the_full_product() {
        let sides = [
            (1, 13),
            (5, 16),
            (30, 16),
            (64, 64),
            (96, 13),
            (96, 40),
            (97, 13),
            (96, 130),
            (128, 128),
            (150, 20),
        ];
        for ((n, k), by_rows) in
            sides.into_iter().chain([(17, 100), (257, 13)]).flat_map(|s| [(s, false), (s, true)])
        {
            let a: Vec<f64> = (0..n * k).map(|i| ((i * 7919) % 101) as f64 - 50.0).collect();
            let (row, col) = if by_rows { (k, 1) } else { (1, n) };
            let a_span = Span2 { data: a.as_ptr().cast_mut(), rows: n, cols: k, row, col };
            for add in [true, false] {
                let [mut lower, mut only, mut full] = [(); 3].map(|()| vec![1.0; n * n]);
                // SAFETY: all buffers have the sizes that the spans say.
                unsafe {
                    multiply_lower(Span2::square(lower.as_mut_ptr(), n), add, a_span, a_span.t(), 0.5);
                    multiply_only_lower(Span2::square(only.as_mut_ptr(), n), add, a_span, a_span.t(), 0.5);
                    multiply(Span2::square(full.as_mut_ptr(), n), add, a_span, a_span.t(), 0.5);
                    mirror(lower.as_ptr(), n, lower.as_mut_ptr(), n, n, 1.0);
                }
                assert_eq!(lower, full, "side {n}, {k} terms, by rows {by_rows}");
                for (place, (x, whole)) in only.iter().zip(&full).enumerate() {
                    let expected = if place % n < place / n { 1.0 } else { *whole };
                    assert_eq!(*x, expected, "side {n}, {k} terms, by rows {by_rows}, place {place}");
                }
            }
        }
    }
}
