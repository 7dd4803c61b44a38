//! Counts of calls and of what they cause.

use std::collections::HashMap;

/// Totals since the start or the last reset. The layout is fixed: `u64` fields in this order.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// `kernel_launches + blas_calls + solver_calls`.
    pub launches: u64,
    /// `cuLaunchKernel` calls that were enqueued.
    pub kernel_launches: u64,
    /// cuBLAS operations enqueued.
    pub blas_calls: u64,
    /// cuSOLVER operations enqueued.
    pub solver_calls: u64,
    /// Calls that made the host wait for the device: synchronize calls, synchronous copies between host and
    /// device, asynchronous copies of pageable memory, BLAS results in host memory.
    pub host_syncs: u64,
    /// Waits that freeing memory implies.
    pub implicit_syncs: u64,
    /// Device allocations.
    pub allocs: u64,
    /// Device frees.
    pub frees: u64,
    /// Bytes of device allocations.
    pub alloc_bytes: u64,
    /// Page-locked allocations.
    pub host_allocs: u64,
    /// Page-locked frees.
    pub host_frees: u64,
    /// Copies from host to device.
    pub h2d_copies: u64,
    /// Their bytes.
    pub h2d_bytes: u64,
    /// Copies from device to host.
    pub d2h_copies: u64,
    /// Their bytes.
    pub d2h_bytes: u64,
    /// Copies within the device.
    pub d2d_copies: u64,
    /// Their bytes.
    pub d2d_bytes: u64,
    /// Fills.
    pub memsets: u64,
    /// Their bytes.
    pub memset_bytes: u64,
    /// Asynchronous copies of pageable host memory.
    pub pageable_copies: u64,
    /// Event records.
    pub event_records: u64,
    /// Waits of streams for events.
    pub stream_waits: u64,
    /// PTX instructions executed, over all threads.
    pub instructions: u64,
    /// Bytes read on the device that nothing had written.
    pub uninit_bytes: u64,
    /// Races between operations.
    pub races: u64,
    /// Races in shared memory.
    pub shared_races: u64,
    /// Statuses that fault injection returned.
    pub injected: u64,
    /// Eigendecompositions executed.
    pub evds: u64,
    /// Waits inside cuSOLVER, which its caller cannot avoid.
    pub solver_syncs: u64,
    /// Graphs launched.
    pub graph_launches: u64,
    /// Multiplications and additions of matrix products and triangular solutions that were enqueued.
    pub blas_flops: u64,
}

/// The names of the fields of [`Totals`], in order.
pub const NAMES: [&str; 31] = [
    "launches",
    "kernel_launches",
    "blas_calls",
    "solver_calls",
    "host_syncs",
    "implicit_syncs",
    "allocs",
    "frees",
    "alloc_bytes",
    "host_allocs",
    "host_frees",
    "h2d_copies",
    "h2d_bytes",
    "d2h_copies",
    "d2h_bytes",
    "d2d_copies",
    "d2d_bytes",
    "memsets",
    "memset_bytes",
    "pageable_copies",
    "event_records",
    "stream_waits",
    "instructions",
    "uninit_bytes",
    "races",
    "shared_races",
    "injected",
    "evds",
    "solver_syncs",
    "graph_launches",
    "blas_flops",
];

const _: () = assert!(size_of::<Totals>() == 8 * NAMES.len());

/// Totals and the count of every entry point.
#[derive(Default)]
pub struct Counters {
    /// The totals.
    pub totals: Totals,
    calls: HashMap<&'static str, u64>,
}

impl Counters {
    /// Counts a call of an entry point.
    pub fn call(&mut self, name: &'static str) {
        *self.calls.entry(name).or_default() += 1;
    }

    /// A total or an entry point, by name.
    pub fn by_name(&self, name: &str) -> u64 {
        if let Some(index) = NAMES.iter().position(|n| *n == name) {
            return self.values()[index];
        }
        self.calls.get(name).copied().unwrap_or(0)
    }

    /// The totals as an array.
    pub fn values(&self) -> [u64; NAMES.len()] {
        // SAFETY: `Totals` is `repr(C)` with as many u64 fields, as asserted above.
        unsafe { std::mem::transmute_copy(&self.totals) }
    }

    /// Counts of entry points, by name.
    pub fn calls(&self) -> Vec<(&'static str, u64)> {
        let mut calls: Vec<_> = self.calls.iter().map(|(name, count)| (*name, *count)).collect();
        calls.sort_unstable();
        calls
    }
}
