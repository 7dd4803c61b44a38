//! Column-major matrices in device memory, read and written as f64.

use half::{bf16, f16};

use crate::reason::{Result, refuse};
use crate::window::Window;

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Real {
    F16,
    Bf16,
    F32,
    F64,
}

impl Real {
    /// From a `cudaDataType_t`.
    pub fn from_code(code: i32) -> Result<Real> {
        match code {
            0 => Ok(Real::F32),
            1 => Ok(Real::F64),
            2 => Ok(Real::F16),
            14 => Ok(Real::Bf16),
            _ => refuse!(NotSupported, "data type {code} is not supported"),
        }
    }

    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            Real::F16 | Real::Bf16 => 2,
            Real::F32 => 4,
            Real::F64 => 8,
        }
    }

    /// An element from its bytes.
    pub fn read(self, bytes: &[u8]) -> f64 {
        let mut raw = [0u8; 8];
        raw[..self.size()].copy_from_slice(&bytes[..self.size()]);
        let bits = u64::from_le_bytes(raw);
        match self {
            Real::F16 => f16::from_bits(bits as u16).to_f64(),
            Real::Bf16 => bf16::from_bits(bits as u16).to_f64(),
            Real::F32 => f64::from(f32::from_bits(bits as u32)),
            Real::F64 => f64::from_bits(bits),
        }
    }

    /// An element to its bytes, rounded to nearest.
    pub fn write(self, value: f64, bytes: &mut [u8]) {
        let bits = match self {
            Real::F16 => u64::from(f16::from_f64(value).to_bits()),
            Real::Bf16 => u64::from(bf16::from_f64(value).to_bits()),
            Real::F32 => u64::from((value as f32).to_bits()),
            Real::F64 => value.to_bits(),
        };
        bytes[..self.size()].copy_from_slice(&bits.to_le_bytes()[..self.size()]);
    }
}

/// Which part of a square matrix is meant.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Part {
    All,
    Lower,
    Upper,
}

impl Part {
    /// From a `cublasFillMode_t`.
    pub fn from_code(code: i32) -> Result<Part> {
        match code {
            0 => Ok(Part::Lower),
            1 => Ok(Part::Upper),
            _ => refuse!(InvalidValue, "fill mode {code} is neither lower nor upper"),
        }
    }

    /// The rows of column `j`, of `n`, that belong to the part.
    fn rows(self, j: usize, n: usize) -> std::ops::Range<usize> {
        match self {
            Part::All => 0..n,
            Part::Lower => j.min(n)..n,
            Part::Upper => 0..(j + 1).min(n),
        }
    }
}

/// A matrix in device memory.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// The address of the first element.
    pub address: u64,
    /// Rows as stored.
    pub rows: usize,
    /// Columns as stored.
    pub cols: usize,
    /// Elements from one column to the next.
    pub ld: usize,
    /// The element type.
    pub real: Real,
}

impl Matrix {
    /// The same matrix, `elements` further on.
    pub fn offset(self, elements: i64) -> Matrix {
        Matrix { address: self.address.wrapping_add((elements * self.real.size() as i64) as u64), ..self }
    }

    /// Bytes from the first to the last element.
    pub fn extent(&self) -> usize {
        if self.rows == 0 || self.cols == 0 {
            return 0;
        }
        ((self.cols - 1) * self.ld + self.rows) * self.real.size()
    }

    /// Whether the bytes of two matrices may overlap.
    pub fn overlaps(&self, other: &Matrix) -> bool {
        let (a, b) = (self.extent() as u64, other.extent() as u64);
        a > 0 && b > 0 && self.address < other.address + b && other.address < self.address + a
    }

    /// All elements, column by column; those outside `part` are NaN and not read.
    pub fn load(&self, window: &mut Window<'_>, part: Part) -> Result<Vec<f64>> {
        let size = self.real.size();
        let mut out = vec![f64::NAN; self.rows * self.cols];
        let mut bytes = vec![0u8; self.rows * size];
        for j in 0..self.cols {
            let rows = part.rows(j, self.rows);
            let column = &mut bytes[..rows.len() * size];
            let at = self.address + ((j * self.ld + rows.start) * size) as u64;
            if !at.is_multiple_of(size as u64) {
                refuse!(Misaligned, "matrix address {at:#x} is not a multiple of {size}");
            }
            window.get(at, column, 1)?;
            for (i, element) in column.chunks_exact(size).enumerate() {
                out[j * self.rows + rows.start + i] = self.real.read(element);
            }
        }
        Ok(out)
    }

    /// Writes all elements of `part`.
    pub fn store(&self, window: &mut Window<'_>, part: Part, values: &[f64]) -> Result {
        let size = self.real.size();
        let mut bytes = vec![0u8; self.rows * size];
        for j in 0..self.cols {
            let rows = part.rows(j, self.rows);
            let column = &mut bytes[..rows.len() * size];
            for (i, element) in column.chunks_exact_mut(size).enumerate() {
                self.real.write(values[j * self.rows + rows.start + i], element);
            }
            let at = self.address + ((j * self.ld + rows.start) * size) as u64;
            if !at.is_multiple_of(size as u64) {
                refuse!(Misaligned, "matrix address {at:#x} is not a multiple of {size}");
            }
            window.put(at, column, 1)?;
        }
        Ok(())
    }
}
