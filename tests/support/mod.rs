//! What the numerical tests share: the library through its C functions, random numbers with a seed, small
//! matrices, and a naive optimizer to compare with.

#![allow(dead_code, reason = "each test uses a part of it")]

pub mod gpu;
pub mod matrix;
pub mod model;
pub mod random;
pub mod reference;
pub mod stack;
pub mod tensor;
