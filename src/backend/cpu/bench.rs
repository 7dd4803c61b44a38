//! A worker's bench: the workspace for one factor at a check step, made once and kept.

use super::evd;
use super::product::{Span2, mirror, multiply, multiply_lower};
use super::real::Real;
use super::{Floor, Precision};
use crate::error::Result;
use crate::memory::{Allocator, Arena, aligned};
use crate::optimizer::plan::{FactorPlan, Plan};
use faer::dyn_stack::MemStack;

/// Three square matrices, a vector, and the scratch of an eigendecomposition.
pub(super) struct Bench {
    matrices: Arena,
    /// Bytes of one matrix.
    stride: usize,
    scratch: Arena,
    /// A vector in double precision.
    pub vector: Vec<f64>,
}

/// Elements by which a workspace matrix's columns are longer than the factor's side.
pub(super) const PADDING: usize = 16;

impl Bench {
    /// A bench for the largest factor of the plan.
    pub fn new(plan: &Plan, allocator: Allocator) -> Result<Bench> {
        let largest = |precision| {
            let sides = plan.factors.iter().filter(|f| plan.slots[f.statistic].precision == precision);
            sides.map(|f| f.dim).max().unwrap_or(0)
        };
        let (single, double) = (largest(Precision::F32), largest(Precision::F64));
        let bytes = |n: usize, size: usize| aligned((n * (n + PADDING) * size) as u128) as usize;
        let stride = bytes(single, 4).max(bytes(double, 8));
        let need = evd::scratch::<f32>(single).or(evd::scratch::<f64>(double));
        let scratch = Arena::zeroed(need.unaligned_bytes_required(), allocator, "an eigendecomposition")?;
        let matrices = Arena::zeroed(3 * stride, allocator, "the workspace of a check")?;
        Ok(Bench { matrices, stride, scratch, vector: Vec::with_capacity(single.max(double)) })
    }

    /// Bytes that it occupies.
    pub fn bytes(&self) -> usize {
        self.matrices.bytes() + self.scratch.bytes()
    }

    /// Matrix number `which` (0, 1, 2).
    pub fn matrix<S>(&self, which: usize) -> *mut S {
        debug_assert!(which < 3);
        // SAFETY: three matrices of `stride` bytes.
        unsafe { self.matrices.as_ptr().add(which * self.stride).cast() }
    }

    /// The scratch of an eigendecomposition.
    pub fn stack(&mut self) -> &mut MemStack {
        // SAFETY: the scratch is the bench's own, and borrowed with it.
        MemStack::new(unsafe {
            std::slice::from_raw_parts_mut(self.scratch.as_ptr().cast(), self.scratch.bytes())
        })
    }

    /// Matrix 0 becomes the factor's statistic, whole and scaled.
    pub fn load_statistic<S: Real>(&self, floor: &Floor, factor: &FactorPlan, scale: f64) {
        // SAFETY: the statistic has dim² numbers, and so has matrix 0.
        unsafe {
            mirror::<S, S>(floor.slot::<S>(factor.statistic), factor.dim, self.matrix(0), factor.dim, scale);
        }
    }

    /// Matrix 2 becomes the lower triangle of H = Qᵀ A Q, for A in matrix 0; matrix 1 is used.
    pub fn rotate<S: Real>(&self, floor: &Floor, factor: &FactorPlan) {
        let n = factor.dim;
        let (a, t, h) = (
            Span2::square(self.matrix::<S>(0), n),
            Span2::square(self.matrix(1), n),
            Span2::square(self.matrix(2), n),
        );
        let q = Span2::square(floor.slot::<S>(factor.basis), n);
        // SAFETY: three different matrices of the bench, and the basis.
        unsafe {
            multiply(t, false, a, q, S::of(1.0));
            multiply_lower(h, false, q.t(), t, S::of(1.0));
        }
    }
}
