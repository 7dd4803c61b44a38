//! NVIDIA's driver layer: what of CUDA is found at run time, the driver's things with an owner, and the two
//! libraries. Another vendor would be a second such folder.

pub mod driver;
pub mod libraries;
pub mod linear;
pub mod probe;
