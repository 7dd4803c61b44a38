//! Tensors of every element type, as bytes: two are equal when all their bits are.

use foam::abi::{FOAM_DEVICE_CPU, FOAM_DTYPE_BFLOAT, FOAM_DTYPE_FLOAT, foam_device, foam_dtype, foam_tensor};
use half::{bf16, f16};
use std::ptr::null_mut;

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    F32,
    F64,
    Bf16,
    F16,
}

impl Dtype {
    /// All of them.
    pub const ALL: [Dtype; 4] = [Dtype::F32, Dtype::F64, Dtype::Bf16, Dtype::F16];

    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Dtype::F64 => 8,
            Dtype::F32 => 4,
            Dtype::Bf16 | Dtype::F16 => 2,
        }
    }

    /// What the rounding of one number may change, relative to it.
    pub fn unit(self) -> f64 {
        match self {
            Dtype::F64 => 2f64.powi(-53),
            Dtype::F32 => 2f64.powi(-24),
            Dtype::F16 => 2f64.powi(-11),
            Dtype::Bf16 => 2f64.powi(-8),
        }
    }

    /// Its name in the C ABI.
    pub fn in_c(self) -> foam_dtype {
        let code = if self == Dtype::Bf16 { FOAM_DTYPE_BFLOAT } else { FOAM_DTYPE_FLOAT };
        foam_dtype { code, bits: 8 * self.size() as u8, lanes: 1 }
    }

    /// The bytes of the element nearest to `value`.
    pub fn encode(self, value: f64) -> Vec<u8> {
        match self {
            Dtype::F64 => value.to_ne_bytes().to_vec(),
            Dtype::F32 => (value as f32).to_ne_bytes().to_vec(),
            Dtype::Bf16 => bf16::from_f64(value).to_ne_bytes().to_vec(),
            Dtype::F16 => f16::from_f64(value).to_ne_bytes().to_vec(),
        }
    }

    /// The value of an element.
    pub fn decode(self, bytes: &[u8]) -> f64 {
        match self {
            Dtype::F64 => f64::from_ne_bytes(bytes.try_into().unwrap()),
            Dtype::F32 => f32::from_ne_bytes(bytes.try_into().unwrap()).into(),
            Dtype::Bf16 => bf16::from_ne_bytes(bytes.try_into().unwrap()).into(),
            Dtype::F16 => f16::from_ne_bytes(bytes.try_into().unwrap()).into(),
        }
    }
}

/// A row-major tensor that owns its memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Sizes of its dimensions.
    pub shape: Vec<i64>,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Strides to state; none are stated if this is `None`.
    strides: Option<Vec<i64>>,
    /// The `data` pointer lies this many bytes behind the start of the memory.
    lead: usize,
    /// The elements lie this many bytes behind the `data` pointer.
    byte_offset: usize,
    pub bytes: Vec<u8>,
}

impl Tensor {
    /// A tensor with the elements nearest to `values`.
    pub fn of(dtype: Dtype, shape: &[i64], values: &[f64]) -> Tensor {
        assert_eq!(shape.iter().product::<i64>() as usize, values.len());
        let bytes = values.iter().flat_map(|x| dtype.encode(*x)).collect();
        Tensor { shape: shape.to_vec(), dtype, strides: None, lead: 0, byte_offset: 0, bytes }
    }

    /// A vector or matrix of f64.
    pub fn f64(shape: &[i64], values: &[f64]) -> Tensor {
        Tensor::of(Dtype::F64, shape, values)
    }

    /// The same tensor elsewhere in memory: `lead` bytes before the data pointer, `byte_offset` behind it.
    pub fn placed(mut self, lead: usize, byte_offset: usize) -> Tensor {
        let elements = self.elements().to_vec();
        self.bytes = [vec![0xA5; lead + byte_offset], elements, vec![0xA5; 9]].concat();
        (self.lead, self.byte_offset) = (lead, byte_offset);
        self
    }

    /// The same tensor with its strides stated.
    pub fn strided(self, strides: &[i64]) -> Tensor {
        Tensor { strides: Some(strides.to_vec()), ..self }
    }

    /// The elements as bytes.
    pub fn elements(&self) -> &[u8] {
        let start = self.lead + self.byte_offset;
        let len = self.shape.iter().product::<i64>() as usize * self.dtype.size();
        &self.bytes[start..start + len]
    }

    /// The bytes around the elements.
    pub fn surroundings(&self) -> (&[u8], &[u8]) {
        let start = self.lead + self.byte_offset;
        (&self.bytes[..start], &self.bytes[start + self.elements().len()..])
    }

    /// The elements' values.
    pub fn values(&self) -> Vec<f64> {
        self.elements().chunks_exact(self.dtype.size()).map(|b| self.dtype.decode(b)).collect()
    }

    /// The same values in another type, rounded.
    pub fn cast(&self, dtype: Dtype) -> Tensor {
        Tensor::of(dtype, &self.shape, &self.values())
    }

    /// The C form; it points into this tensor.
    pub fn in_c(&mut self) -> foam_tensor {
        foam_tensor {
            data: self.bytes.as_mut_ptr().wrapping_add(self.lead).cast(),
            device: foam_device { device_type: FOAM_DEVICE_CPU, device_id: 0 },
            ndim: self.shape.len() as i32,
            dtype: self.dtype.in_c(),
            shape: self.shape.as_mut_ptr(),
            strides: self.strides.as_mut().map_or(null_mut(), |s| s.as_mut_ptr()),
            byte_offset: self.byte_offset as u64,
        }
    }
}
