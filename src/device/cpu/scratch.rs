//! The scratch of one factor at a check step: a few matrices and the workspace of an eigendecomposition, made once.

use super::certificate;
use super::pool::Workers;
use super::product::{Span2, mirror, multiply, multiply_lower};
use super::real::Real;
use super::{Precision, Shared};
use super::{evd, qr};
use crate::engine::plan::{FactorPlan, Plan};
use crate::error::Result;
use crate::memory::{aligned, filled, reserved};
use faer::dyn_stack::MemStack;

/// Three square matrices, a vector, and the scratch of an eigendecomposition.
pub(super) struct Scratch {
    shape: ScratchShape,
    memory: *mut u8,
    /// A vector in double precision.
    pub vector: Vec<f64>,
    /// Room for [`ROOM`] more.
    pub room: Vec<f64>,
    /// Room for an order of the columns.
    pub order: Vec<usize>,
    /// Whose threads help with a large factor, unless they are at work.
    pub workers: Option<Workers>,
}

// SAFETY: the memory is the scratch's own as long as it is placed there.
unsafe impl Send for Scratch {}

/// Vectors that a decomposition's test needs; a certificate needs eleven, and padding.
const ROOM: usize = evd::SOUND_ROOM;

/// Elements by which a workspace matrix's columns are longer than the factor's side.
pub(super) const PADDING: usize = 16;

/// The sizes of a scratch.
#[derive(Clone, Copy)]
pub(super) struct ScratchShape {
    /// Largest side of a factor.
    side: usize,
    /// Bytes of one matrix.
    stride: usize,
    /// Bytes of the scratch.
    scratch: usize,
}

impl ScratchShape {
    /// The scratch for the largest factor of the plan.
    pub fn new(plan: &Plan) -> ScratchShape {
        // SOAP turns its moments, which have the precision of the work, in the same matrices.
        let turns = !plan.preconditioner.has_roots();
        let largest = |precision| {
            let has = |f: &&FactorPlan| {
                let param = &plan.params[plan.blocks[f.block].param];
                param.statistic == precision || (turns && param.work == precision)
            };
            let sides = plan.factors.iter().filter(|f| f.is_preconditioned()).filter(has);
            sides.map(|f| f.dim).max().unwrap_or(0)
        };
        let (single, double) = (largest(Precision::F32), largest(Precision::F64));
        let bytes = |n: usize, size: usize| aligned((n * (n + PADDING) * size) as u128) as usize;
        let mut need = evd::scratch::<f32>(single).or(evd::scratch::<f64>(double));
        need = need.or(certificate::scratch::<f32>(single)).or(certificate::scratch::<f64>(double));
        need = need.or(qr::scratch::<f32>(single)).or(qr::scratch::<f64>(double));
        ScratchShape {
            side: single.max(double),
            stride: bytes(single, 4).max(bytes(double, 8)),
            scratch: aligned(need.unaligned_bytes_required() as u128) as usize,
        }
    }

    /// Bytes of one scratch.
    pub fn bytes(&self) -> usize {
        3 * self.stride + self.scratch
    }
}

impl Scratch {
    /// The scratch that has no memory yet.
    pub fn new(shape: ScratchShape, workers: Option<&Workers>) -> Result<Scratch> {
        let what = "the workspace of a check";
        Ok(Scratch {
            shape,
            memory: std::ptr::null_mut(),
            vector: reserved(shape.side, what)?,
            room: filled(0.0, ROOM * shape.side + certificate::PADDING, what)?,
            order: reserved(shape.side, what)?,
            workers: workers.cloned(),
        })
    }

    /// Takes [`ScratchShape::bytes`] at `memory`, aligned, as its own.
    pub fn place(&mut self, memory: *mut u8) {
        self.memory = memory;
    }

    /// `order` becomes the places of the vector's numbers, the largest first.
    pub fn sort_falling(&mut self) {
        let values = &self.vector;
        self.order.clear();
        self.order.extend(0..values.len());
        self.order.sort_unstable_by(|i, j| values[*j].total_cmp(&values[*i]).then(i.cmp(j)));
    }

    /// Matrix number `which` (0, 1, 2).
    pub fn matrix<S>(&self, which: usize) -> *mut S {
        debug_assert!(which < 3);
        // SAFETY: three matrices of `stride` bytes.
        unsafe { self.memory.add(which * self.shape.stride).cast() }
    }

    /// The scratch of an eigendecomposition.
    pub fn stack(&mut self) -> &mut MemStack {
        // SAFETY: the scratch is the scratch's own, and borrowed with it.
        MemStack::new(unsafe {
            let scratch = self.memory.add(3 * self.shape.stride);
            std::slice::from_raw_parts_mut(scratch.cast(), self.shape.scratch)
        })
    }

    /// Matrix 0 becomes the factor's statistic, whole and scaled.
    pub fn load_statistic<S: Real>(&self, shared: &Shared, factor: &FactorPlan, scale: f64) {
        // SAFETY: the statistic has dim² numbers, and so has matrix 0.
        unsafe {
            let n = factor.dim;
            mirror::<S, S>(shared.slot::<S>(factor.statistic), n, self.matrix(0), n, n, scale);
        }
    }

    /// Matrix 2 becomes the lower triangle of H = Qᵀ A Q, for A in matrix 0; matrix 1 is used.
    pub fn rotate<S: Real>(&self, shared: &Shared, factor: &FactorPlan) {
        self.rotate_by(shared.slot::<S>(factor.basis), factor.dim);
    }

    /// The same for the basis at `q`, of side `n`.
    pub fn rotate_by<S: Real>(&self, q: *mut S, n: usize) {
        let (a, t, h) = (
            Span2::square(self.matrix::<S>(0), n),
            Span2::square(self.matrix(1), n),
            Span2::square(self.matrix(2), n),
        );
        let q = Span2::square(q, n);
        // SAFETY: three different matrices of the scratch, and the basis.
        unsafe {
            multiply(t, false, a, q, S::of(1.0));
            multiply_lower(h, false, q.t(), t, S::of(1.0));
        }
    }
}
