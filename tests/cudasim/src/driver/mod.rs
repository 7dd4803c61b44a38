//! The driver API (`libcuda`).
//!
//! | module | entry points |
//! | --- | --- |
//! | [`device`] | initialisation, devices and their attributes |
//! | [`context`] | contexts and the stack of current ones |
//! | [`memory`] | allocation, pinning, pointer attributes |
//! | [`copy`] | copies and fills |
//! | [`stream`] | streams |
//! | [`graph`] | capture, and graphs that are replayed |
//! | [`event`] | events |
//! | [`module`] | modules and their functions |
//! | [`launch`] | kernel launches and occupancy |
//! | [`query`] | error names, symbol lookup |

pub mod context;
pub mod copy;
pub mod device;
pub mod event;
pub mod graph;
pub mod launch;
pub mod memory;
pub mod module;
pub mod query;
pub mod stream;
