//! The algorithm: golden traces, the paper's values, a naive optimizer to compare with, properties, and what a step does
//! with any parameter.

#![allow(
    clippy::duplicate_mod,
    reason = "the replay of traces, which an example shares, brings its own way to the device"
)]

#[path = "support/comm.rs"]
mod comm;
#[path = "support/rank.rs"]
mod rank;
mod support;
#[path = "support/golden/mod.rs"]
mod traces;

mod absent;
mod api;
mod certified;
mod delay;
mod diagnosis;
mod dtypes;
mod golden;
mod paper;
mod properties;
mod ranks;
mod reference;
mod refresh;
mod robust;
mod scale;
mod soap;
