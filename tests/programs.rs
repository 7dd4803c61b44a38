//! What a user compiles: programs in C and C++ against the library that cargo built, plugins, and the programs and claims
//! of the documents.

#![cfg(target_os = "linux")]

#[path = "support/cpp.rs"]
mod cpp_program;
#[path = "support/document.rs"]
mod document;
#[path = "support/library.rs"]
mod library;
#[path = "support/nvidia.rs"]
mod nvidia;
#[path = "support/program.rs"]
mod program;
#[path = "support/python.rs"]
mod python;
#[path = "support/tier.rs"]
mod tier;

mod c_abi;
mod cpp;
mod documents;
mod mpi;
mod plugin;
