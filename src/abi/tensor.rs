//! The tensor that crosses the boundary: byte for byte DLPack's `DLTensor`.

use libc::c_void;

/// Host memory.
pub const FOAM_DEVICE_CPU: i32 = 1;
/// CUDA device memory.
pub const FOAM_DEVICE_CUDA: i32 = 2;
/// Pinned host memory, used as host memory.
pub const FOAM_DEVICE_CUDA_HOST: i32 = 3;
/// CUDA managed memory.
pub const FOAM_DEVICE_CUDA_MANAGED: i32 = 13;

/// dtype code of i32 (only in calls on stacks).
pub const FOAM_DTYPE_INT: u8 = 0;
/// dtype code of u32 and u8 (only in calls on stacks).
pub const FOAM_DTYPE_UINT: u8 = 1;
/// dtype code of f16, f32 and f64.
pub const FOAM_DTYPE_FLOAT: u8 = 2;
/// dtype code of bf16.
pub const FOAM_DTYPE_BFLOAT: u8 = 4;

/// DLPack's `DLDataType`: f32 is {2,32,1}, f64 {2,64,1}, f16 {2,16,1}, bf16 {4,16,1}.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct foam_dtype {
    /// `FOAM_DTYPE_*`.
    pub code: u8,
    /// Bits of one element.
    pub bits: u8,
    /// Always 1.
    pub lanes: u16,
}

/// DLPack's `DLDevice`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct foam_device {
    /// One of `FOAM_DEVICE_*`.
    pub device_type: i32,
    /// Ordinal of the device.
    pub device_id: i32,
}

/// A tensor, borrowed for the call; byte-identical to DLPack's `DLTensor`, so that a `DLTensor *`
/// passes by cast. The elements start at `data + byte_offset` and must be row-major contiguous
/// (`strides` may be NULL, or say so; strides of dimensions of size 1 do not matter).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct foam_tensor {
    /// The elements' allocation; NULL in a gradient means "takes no part in this step".
    pub data: *mut c_void,
    /// Where `data` lives.
    pub device: foam_device,
    /// Number of dimensions.
    pub ndim: i32,
    /// Type of an element.
    pub dtype: foam_dtype,
    /// `ndim` sizes.
    pub shape: *mut i64,
    /// `ndim` strides in elements, or NULL for row-major contiguous.
    pub strides: *mut i64,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
}
