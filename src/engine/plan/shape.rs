//! Arithmetic of shapes: merged dimensions, strides, a block seen along one axis.

use super::LISTS;
use crate::config::Config;
use crate::error::Result;
use crate::memory::{filled, reserved};

/// A block seen along one axis: `outer` slices of `dim` rows and `inner` columns.
#[derive(Clone, Copy, Debug)]
pub struct AxisView {
    /// Slices.
    pub outer: usize,
    /// Rows of a slice.
    pub dim: usize,
    /// Columns of a slice; 1 for the last axis, whose slices are then seen as one matrix.
    pub inner: usize,
}

impl AxisView {
    /// The view of `dims` along `axis`.
    pub fn new(dims: &[usize], axis: usize) -> AxisView {
        AxisView {
            outer: dims[..axis].iter().product(),
            dim: dims[axis],
            inner: dims[axis + 1..].iter().product(),
        }
    }

    /// Whether there are axes with more than one element on both sides.
    pub fn is_middle(&self) -> bool {
        self.outer > 1 && self.inner > 1
    }
}

/// Drops dimensions of size 1, then merges neighbours from the left while the product is at most
/// `limit`; with `keep_matrix` the first of them stays alone. Without merging a shape stays as it is; a scalar
/// becomes a vector of one.
pub(super) fn merged(shape: &[usize], config: &Config, limit: usize) -> Result<Vec<usize>> {
    let mut kept: Vec<usize> = reserved(shape.len().max(1), LISTS)?;
    if !config.merge_dims {
        kept.extend(shape);
        kept.extend(shape.is_empty().then_some(1));
        return Ok(kept);
    }
    let alone = usize::from(config.keep_matrix);
    for dim in shape.iter().copied().filter(|d| *d != 1) {
        let count = kept.len();
        match kept.last_mut() {
            Some(last) if count > alone && last.saturating_mul(dim) <= limit => *last *= dim,
            _ => kept.push(dim),
        }
    }
    kept.extend(kept.is_empty().then_some(1));
    Ok(kept)
}

/// The side of the pieces of a dimension: all but the last have it. `ceil(dim / limit)` pieces in either case; even ones
/// are of multiples of `ALIGNED`, for whole vectors and tiles.
pub(super) fn piece(config: &Config, dim: usize) -> usize {
    const ALIGNED: usize = 16;
    let limit = config.max_factor_dim as usize;
    if !config.even_blocks || dim <= limit {
        return limit;
    }
    limit.min(dim.div_ceil(dim.div_ceil(limit)).next_multiple_of(ALIGNED))
}

pub(in crate::engine) fn row_major_strides(shape: &[usize]) -> Result<Vec<usize>> {
    let mut strides = filled(1, shape.len(), LISTS)?;
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    Ok(strides)
}

/// The `number`-th index tuple of a grid, in row-major order.
pub(super) fn unravel(mut number: usize, grid: &[usize]) -> Result<Vec<usize>> {
    let mut at = filled(0, grid.len(), LISTS)?;
    for (slot, size) in at.iter_mut().zip(grid).rev() {
        *slot = number % size;
        number /= size;
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_merge_from_the_left_while_they_fit() {
        let config = Config::reference();
        let plain = Config { merge_dims: false, ..Config::reference() };
        assert_eq!(merged(&[8, 4, 3, 3], &config, 32).unwrap(), [32, 9]);
        assert_eq!(merged(&[6, 4], &config, 1024).unwrap(), [24]);
        assert_eq!(merged(&[1, 1], &config, 1024).unwrap(), [1]);
        assert_eq!(merged(&[1, 1], &plain, 1024).unwrap(), [1, 1]);
        assert_eq!(merged(&[], &plain, 1024).unwrap(), [1]);
        assert_eq!(merged(&[64, 1, 64], &config, 100).unwrap(), [64, 64]);
    }

    #[test]
    fn even_pieces_are_as_many_as_full_ones_and_no_larger() {
        for limit in [1, 2, 5, 7, 16, 40, 100, 1024] {
            let full = Config { max_factor_dim: limit, ..Config::reference() };
            let even = Config { even_blocks: true, ..full.clone() };
            for dim in (1..300).chain([1023, 1024, 1025, 2304, 3072, 50257, 1 << 40]) {
                let side = piece(&even, dim);
                assert!(side <= limit as usize);
                assert_eq!(dim.div_ceil(side), dim.div_ceil(piece(&full, dim)), "{dim} by {limit}");
            }
        }
        let even = Config { even_blocks: true, ..Config::reference() };
        assert_eq!([2304, 3072, 1025, 50257].map(|dim| piece(&even, dim)), [768, 1024, 528, 1008]);
    }

    #[test]
    fn a_matrix_stays_a_matrix_if_asked_for() {
        let config = Config { keep_matrix: true, ..Config::reference() };
        assert_eq!(merged(&[64, 10], &config, 1024).unwrap(), [64, 10]);
        assert_eq!(merged(&[32, 3, 3, 3], &config, 1024).unwrap(), [32, 27]);
        assert_eq!(merged(&[1, 32, 1, 8], &config, 1024).unwrap(), [32, 8]);
        assert_eq!(merged(&[7], &config, 1024).unwrap(), [7]);
        assert_eq!(merged(&[64, 512, 3, 3], &config, 1024).unwrap(), [64, 512, 9]);
    }
}
