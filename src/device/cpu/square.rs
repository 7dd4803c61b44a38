//! Two symmetric matrices in one square, column-major: a statistic has the lower triangle, an inverse root the strict
//! upper one and a vector for its diagonal.

use super::lanes::{LANES, Lanes};
use super::real::{Real, fused, vectorized};
use crate::device::SharedSquare;
use crate::tensor::Precision;
use std::ops::Range;

/// Side of the tiles in which a matrix is brought together.
const TILE: usize = 32;

/// The inverse root in `matrix`, whole, goes to its place in `square` and `diagonal`.
///
/// # Safety
/// `matrix` and `square` have `n`² numbers, `diagonal` has `n`; they do not overlap, and the last two are nobody else's.
pub(super) unsafe fn pack<T: Copy>(matrix: *const T, n: usize, square: *mut T, diagonal: *mut T) {
    for j in 0..n {
        // SAFETY: the caller's contract.
        unsafe {
            std::ptr::copy_nonoverlapping(matrix.add(j * n), square.add(j * n), j);
            diagonal.add(j).write(matrix.add(j * n + j).read());
        }
    }
}

/// An inverse root of side `n` that lies in a square.
#[derive(Clone, Copy)]
pub(super) struct Packed<T> {
    pub square: *const T,
    pub diagonal: *const T,
    pub n: usize,
}

impl<T: Real> Packed<T> {
    /// These rows and columns of the matrix go to `target`, row by row, `pitch` numbers apart.
    ///
    /// # Safety
    /// The square has `n`² numbers, the diagonal `n`, the rows and columns are below `n`, and the target has room for them
    /// and overlaps neither.
    pub unsafe fn unpack(&self, rows: Range<usize>, columns: Range<usize>, target: *mut T, pitch: usize) {
        let part = Part { from: *self, rows, columns, target, pitch };
        // SAFETY: the caller's contract; the wide instructions are there.
        unsafe {
            if fused() {
                vectorized(
                    #[inline(always)]
                    || part.fill::<T::Lanes>(),
                );
            } else {
                part.fill::<[T; LANES]>();
            }
        }
    }
}

struct Part<T> {
    from: Packed<T>,
    rows: Range<usize>,
    columns: Range<usize>,
    target: *mut T,
    pitch: usize,
}

impl<T: Real> Part<T> {
    /// Where a number goes.
    #[inline(always)]
    fn place(&self, row: usize, column: usize) -> *mut T {
        self.target.wrapping_add((row - self.rows.start) * self.pitch + column - self.columns.start)
    }

    /// # Safety
    /// As [`Packed::unpack`]; the CPU has the instructions of `L`.
    #[inline(always)]
    unsafe fn fill<L: Lanes<T>>(&self) {
        let Packed { square, n, .. } = self.from;
        let (rows, columns) = (&self.rows, &self.columns);
        for top in rows.clone().step_by(TILE) {
            let bottom = (top + TILE).min(rows.end);
            // A column of the square, up to its diagonal, is a row of the matrix.
            let left = columns.start..top.clamp(columns.start, columns.end);
            for row in top..bottom {
                // SAFETY: the caller's contract.
                unsafe {
                    let from = square.add(row * n + left.start);
                    std::ptr::copy_nonoverlapping(from, self.place(row, left.start), left.len());
                }
            }
            for column in (left.end..columns.end).step_by(LANES) {
                for row in (top..bottom).step_by(LANES) {
                    let whole = row + LANES <= bottom && column + LANES <= columns.end;
                    // SAFETY: the caller's contract.
                    unsafe {
                        if whole && column + LANES <= row {
                            self.copy::<L>(row, column);
                        } else if whole && (column >= row + LANES || column == row) {
                            self.turn::<L>(row, column);
                        } else {
                            let ends = (bottom.min(row + LANES), columns.end.min(column + LANES));
                            self.pick(row..ends.0, column..ends.1);
                        }
                    }
                }
            }
        }
    }

    /// [`LANES`] rows and columns left of the diagonal.
    ///
    /// # Safety
    /// As [`Part::fill`].
    #[inline(always)]
    unsafe fn copy<L: Lanes<T>>(&self, row: usize, column: usize) {
        let Packed { square, n, .. } = self.from;
        for row in row..row + LANES {
            // SAFETY: the caller's contract.
            unsafe {
                let line = L::load(&*square.add(row * n + column).cast::<[T; LANES]>());
                line.store(&mut *self.place(row, column).cast::<[T; LANES]>());
            }
        }
    }

    /// [`LANES`] rows and columns right of the diagonal, from their mirror image, or on it.
    ///
    /// # Safety
    /// As [`Part::fill`].
    #[inline(always)]
    #[allow(clippy::needless_range_loop)]
    unsafe fn turn<L: Lanes<T>>(&self, row: usize, column: usize) {
        let Packed { square, n, .. } = self.from;
        // SAFETY: the caller's contract.
        unsafe {
            let mut lines = [L::splat(T::default()); LANES];
            for k in 0..LANES {
                lines[k] = L::load(&*square.add((column + k) * n + row).cast::<[T; LANES]>());
            }
            let turned = L::transpose(lines);
            if row == column {
                let diagonal = L::load(&*self.from.diagonal.add(row).cast::<[T; LANES]>());
                for k in 0..LANES {
                    let whole = lines[k].then(k, turned[k]).with(k, diagonal);
                    whole.store(&mut *self.place(row + k, column).cast::<[T; LANES]>());
                }
                return;
            }
            for k in 0..LANES {
                turned[k].store(&mut *self.place(row + k, column).cast::<[T; LANES]>());
            }
        }
    }

    /// Any rows and columns, one by one.
    ///
    /// # Safety
    /// As [`Part::fill`].
    #[inline(always)]
    unsafe fn pick(&self, rows: Range<usize>, columns: Range<usize>) {
        let Packed { square, diagonal, n } = self.from;
        for row in rows {
            for column in columns.clone() {
                let (high, low) = (row.max(column), row.min(column));
                // SAFETY: the caller's contract.
                unsafe {
                    let from = if row == column { diagonal.add(row) } else { square.add(high * n + low) };
                    self.place(row, column).write(from.read());
                }
            }
        }
    }
}

/// Copies one of the two matrices out: the inverse root whole, of the statistic the lower triangle and zeros.
///
/// # Safety
/// The addresses are those of such a square and diagonal, and nobody writes them; `into` has room for `side`² numbers.
pub(super) unsafe fn read(at: &SharedSquare, root: bool, into: &mut [u8]) {
    let size = at.precision.size();
    debug_assert_eq!(into.len(), at.side * at.side * size);
    // SAFETY: the caller's contract.
    unsafe {
        match at.precision {
            Precision::F32 if root => read_root::<f32>(at, into),
            Precision::F64 if root => read_root::<f64>(at, into),
            _ => {
                for (j, column) in into.chunks_exact_mut(at.side * size).enumerate() {
                    let (above, own) = column.split_at_mut(j * size);
                    above.fill(0);
                    let from = (at.square as *const u8).add((j * at.side + j) * size);
                    std::ptr::copy_nonoverlapping(from, own.as_mut_ptr(), own.len());
                }
            }
        }
    }
}

/// # Safety
/// As [`read`].
unsafe fn read_root<T: Real>(at: &SharedSquare, into: &mut [u8]) {
    let (n, size) = (at.side, size_of::<T>());
    let packed = Packed { square: at.square as *const T, diagonal: at.diagonal as *const T, n };
    // The bytes may lie anywhere.
    let mut tile = [T::default(); TILE * TILE];
    for row in (0..n).step_by(TILE) {
        for column in (0..n).step_by(TILE) {
            let (rows, columns) = (row..n.min(row + TILE), column..n.min(column + TILE));
            // SAFETY: the caller's contract; the tile has room.
            unsafe {
                packed.unpack(rows.clone(), columns.clone(), tile.as_mut_ptr(), TILE);
                for (line, row) in tile.chunks_exact(TILE).zip(rows) {
                    let to = into.as_mut_ptr().add((row * n + column) * size);
                    std::ptr::copy_nonoverlapping(line.as_ptr().cast(), to, columns.len() * size);
                }
            }
        }
    }
}

/// Copies one of the two matrices in; the other stays as it is.
///
/// # Safety
/// The addresses are those of such a square and diagonal, and nobody else's; `bytes` are `side`² numbers.
pub(super) unsafe fn write(bytes: &[u8], at: &SharedSquare, root: bool) {
    let (n, size) = (at.side, at.precision.size());
    debug_assert_eq!(bytes.len(), n * n * size);
    // SAFETY: the caller's contract.
    unsafe {
        match at.precision {
            Precision::F32 if root => {
                pack::<[u8; 4]>(bytes.as_ptr().cast(), n, at.square as _, at.diagonal as _)
            }
            Precision::F64 if root => {
                pack::<[u8; 8]>(bytes.as_ptr().cast(), n, at.square as _, at.diagonal as _)
            }
            _ => {
                for (j, column) in bytes.chunks_exact(n * size).enumerate() {
                    let to = (at.square as *mut u8).add((j * n + j) * size);
                    std::ptr::copy_nonoverlapping(column[j * size..].as_ptr(), to, (n - j) * size);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Real>(n: usize) {
        let entry = |i: usize, j: usize| T::of((i.max(j) * 1000 + i.min(j)) as f64);
        let whole: Vec<T> = (0..n * n).map(|k| entry(k / n, k % n)).collect();
        let mut square: Vec<T> = (0..n * n).map(|k| T::of(-(k as f64) - 1.0)).collect();
        let (before, mut diagonal) = (square.clone(), vec![T::default(); n]);
        // SAFETY: all have the sizes of the side.
        unsafe { pack(whole.as_ptr(), n, square.as_mut_ptr(), diagonal.as_mut_ptr()) };
        for k in 0..n * n {
            assert_eq!(square[k], if k % n < k / n { whole[k] } else { before[k] }, "side {n}, place {k}");
        }
        let packed = Packed { square: square.as_ptr(), diagonal: diagonal.as_ptr(), n };
        let parts = [(0..n, 0..n), (n / 3..n, 0..n), (0..n / 2, n / 3..n), (n / 2..n, n / 4..n.div_ceil(2))];
        for (rows, columns) in parts {
            let pitch = columns.len() + 3;
            let mut target = vec![T::of(-7.0); rows.len() * pitch];
            // SAFETY: the target has room for the part.
            unsafe { packed.unpack(rows.clone(), columns.clone(), target.as_mut_ptr(), pitch) };
            for (line, i) in target.chunks_exact(pitch).zip(rows) {
                let expected: Vec<T> = columns.clone().map(|j| entry(i, j)).collect();
                assert_eq!(line[..columns.len()], expected, "side {n}, row {i}");
                assert!(line[columns.len()..].iter().all(|x| *x == T::of(-7.0)), "side {n}, row {i}");
            }
        }
    }

    #[test]
    fn what_was_packed_is_unpacked_and_the_lower_triangle_stays() {
        for n in [1, 2, 7, 8, 9, 16, 31, 32, 33, 64, 100, 129, 200] {
            check::<f32>(n);
            check::<f64>(n);
        }
    }

    #[test]
    fn each_of_the_two_is_read_as_it_was_written_and_leaves_the_other() {
        for n in [1, 5, 33, 130] {
            let mut square = vec![0f32; n * n];
            let mut diagonal = vec![0f32; n];
            let at = SharedSquare {
                square: square.as_mut_ptr() as u64,
                diagonal: diagonal.as_mut_ptr() as u64,
                side: n,
                precision: Precision::F32,
            };
            let entry = |sign: f32, k: usize| sign * ((k / n).max(k % n) * n + (k / n).min(k % n) + 1) as f32;
            let [statistic, root] =
                [1.0, -1.0].map(|sign| (0..n * n).map(|k| entry(sign, k)).collect::<Vec<f32>>());
            // One byte in front: the bytes of a file may lie anywhere.
            let bytes = |numbers: &[f32]| [&[0], bytemuck::cast_slice(numbers)].concat();
            let lower = |k: usize| if k % n < k / n { 0.0 } else { statistic[k] };
            let lower: Vec<f32> = (0..n * n).map(lower).collect();
            for order in [[true, false], [false, true]] {
                let mut found = vec![0u8; 1 + 4 * n * n];
                // SAFETY: sizes as declared.
                unsafe {
                    for is_root in order {
                        write(&bytes(if is_root { &root } else { &statistic })[1..], &at, is_root);
                    }
                    read(&at, true, &mut found[1..]);
                    assert_eq!(found, bytes(&root));
                    read(&at, false, &mut found[1..]);
                    assert_eq!(found, bytes(&lower));
                }
            }
        }
    }
}
