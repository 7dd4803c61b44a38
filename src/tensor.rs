//! Element types, and the caller's tensors once they have been validated.

use half::{bf16, f16};

/// Element type of a parameter or a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DType {
    /// IEEE single.
    F32,
    /// IEEE double.
    F64,
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
}

impl DType {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            DType::F64 => 8,
            DType::F32 => 4,
            DType::F16 => size_of::<f16>(),
            DType::Bf16 => size_of::<bf16>(),
        }
    }

    /// Its usual name.
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
        }
    }

    /// Precision that the work on such a parameter is done in.
    pub(crate) fn work(self) -> Precision {
        if self == DType::F64 { Precision::F64 } else { Precision::F32 }
    }
}

/// Precision of a state buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Single.
    F32,
    /// Double.
    F64,
}

impl Precision {
    /// Bytes of one number.
    pub fn size(self) -> usize {
        match self {
            Precision::F32 => 4,
            Precision::F64 => 8,
        }
    }
}

/// A caller's tensor after validation: row-major contiguous, with as many elements as the plan says,
/// borrowed for one call.
#[derive(Clone, Copy, Debug)]
pub struct TensorRef {
    /// First element; may be unaligned.
    pub data: *mut u8,
    /// Element type.
    pub dtype: DType,
}

// SAFETY: a TensorRef is an address; who reads or writes through it answers for the access.
unsafe impl Send for TensorRef {}
// SAFETY: as above.
unsafe impl Sync for TensorRef {}
