//! The PTX interpreter.
//!
//! | module | is |
//! | --- | --- |
//! | [`lex`], [`parse`], `body`, `operand` | text to tokens to functions |
//! | [`types`] | scalar types, state spaces, the parsed module |
//! | [`decode`], `select`, `access` | functions to decoded operations over register slots |
//! | [`code`] | the decoded operations |
//! | [`integer`], [`float`], [`convert`] | what the arithmetic instructions compute |
//! | [`thread`], `space` | one thread, the loop that runs it, its memory accesses |
//! | [`shared`] | a block's shared memory and its race detector |
//! | [`launch`] | blocks, barriers, warp-wide exchanges |

mod access;
mod body;
pub mod code;
pub mod convert;
pub mod decode;
pub mod float;
pub mod integer;
pub mod launch;
pub mod lex;
mod operand;
pub mod parse;
mod select;
pub mod shared;
mod space;
pub mod thread;
pub mod types;
