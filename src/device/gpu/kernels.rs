//! The kernels that the library carries, loaded once per device and shared by all its optimizers.

use super::cuda::driver::{Device, Function, Module};
use super::cuda::probe;
use crate::error::Result;
use crate::tensor::Precision;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// The PTX, made ahead of time by kernels/build.py.
const PTX: &str = include_str!("kernels/foam.ptx");

/// Kernels of one name, by precision.
pub type ByPrecision = [Function; 2];

/// The row or column of a precision.
pub fn index(precision: Precision) -> usize {
    match precision {
        Precision::F32 => 0,
        Precision::F64 => 1,
    }
}

/// The kernels of SOAP. Those of two precisions go by the one of the statistics, then by the one of the work.
pub struct SoapKernels {
    /// What a step does with each block.
    pub prepare: Function,
    /// Lengths of directions.
    pub length: Function,
    /// The records of pending refreshes.
    pub settle: Function,
    /// The gradient to be projected.
    pub load: ByPrecision,
    /// Adam's moments.
    pub moments: ByPrecision,
    /// The parameter.
    pub update: ByPrecision,
    /// Moments of some blocks, one behind the other.
    pub pick: ByPrecision,
    /// The way back.
    pub lay: ByPrecision,
    /// What κ sums up, by strips.
    pub gauge: ByPrecision,
    /// κ, and the order of a basis.
    pub judge_gauge: ByPrecision,
    /// Columns in their new order.
    pub reorder: ByPrecision,
    /// Whether an orthogonal factor is believed.
    pub judge: Function,
    /// The statistic in a new basis.
    pub statistic: ByPrecision,
    /// The first basis: by the precision of the statistics, then by the one of the solver.
    pub sort: [ByPrecision; 2],
    /// What statistics in the basis take in.
    pub collect: [ByPrecision; 2],
    /// Statistic and basis, whole.
    pub fetch: [ByPrecision; 2],
    /// Takes over a basis.
    pub take: [ByPrecision; 2],
    /// Makes a basis orthonormal again.
    pub polish: [ByPrecision; 2],
    /// Matrices in the precision of the work.
    pub narrow: [ByPrecision; 2],
}

/// The kernels of the cheap rules of a certificate, in their order.
pub struct CertifyKernels {
    /// What the diagonal tells.
    pub start: ByPrecision,
    /// M, and its sums by strips.
    pub scale: ByPrecision,
    /// What these decide.
    pub average: Function,
    /// A round that bounds the spectral radius of M, by strips.
    pub round: ByPrecision,
    /// What the rounds decide.
    pub end: ByPrecision,
    /// What is to be proven.
    pub prove: ByPrecision,
}

/// The kernels of a refresh by QR steps, by the precision of the statistics.
pub struct QrKernels {
    /// The state before the first step.
    pub start: ByPrecision,
    /// H, shifted, in falling order.
    pub arrange: ByPrecision,
    /// Its factor, in the order of the basis.
    pub spread: ByPrecision,
    /// The step of Newton and Schulz.
    pub straighten: ByPrecision,
    /// Whether the basis is believed.
    pub judge: Function,
    /// Whether it serves.
    pub rule: ByPrecision,
    /// Takes it over.
    pub take: ByPrecision,
}

/// A device with its kernels.
pub struct Kernels {
    /// Carries the sites to the device.
    pub post: Function,
    /// Writes the sites of blocks that lie one behind the other.
    pub place: Function,
    /// Orders for clocks that have advanced already.
    pub resume: Function,
    /// A joint step begins.
    pub begin: Function,
    /// Is the step taken?
    pub judge: Function,
    /// The host has read the gate.
    pub acknowledge: Function,
    /// Rows of bytes between tensors and messages.
    pub carry: Function,
    /// Words of messages.
    pub stamp: Function,
    /// The same, compared.
    pub expect: Function,
    /// Squared norms of blocks.
    pub total: Function,
    /// Clocks go on.
    pub tick: Function,
    /// Lengths of directions.
    pub length: Function,
    /// Squared norms of chunks.
    pub inspect: ByPrecision,
    /// The gradient for the statistics.
    pub gather: ByPrecision,
    /// The same in bf16, as it is.
    pub gather_bf16: Function,
    /// What its products add to a statistic.
    pub add_square: Function,
    /// Its unfolding.
    pub unfold_bf16: Function,
    /// Statistics back to scale.
    pub rescale: ByPrecision,
    /// Unfolding along a middle axis.
    pub unfold: ByPrecision,
    /// Filter and grafting.
    pub filter: ByPrecision,
    /// Squared lengths of directions, by chunk.
    pub norm: ByPrecision,
    /// The parameter.
    pub update: ByPrecision,
    /// The largest entry of a statistic, by strips.
    pub peak: ByPrecision,
    /// What RC and the residual sum up, by strips.
    pub drift: ByPrecision,
    /// RC, α, residual, the search.
    pub judge_drift: ByPrecision,
    /// The cheap bounds of the gap: what the diagonal tells, M and its sums, what these decide, a bound of its spectral
    /// radius, what that decides, and what is to be proven.
    pub certify: CertifyKernels,
    /// N where none of them served.
    pub complete: ByPrecision,
    /// What the sandwich sums up, by strips.
    pub enclose: ByPrecision,
    /// Which rule serves.
    pub judge_gap: ByPrecision,
    /// What a decomposition is judged by, by strips.
    pub compare: ByPrecision,
    /// What a matrix misses of an orthogonal one, by strips.
    pub miss: ByPrecision,
    /// Whether it is believed.
    pub verify: ByPrecision,
    /// Keeps a statistic for a refresh that is taken later.
    pub keep: ByPrecision,
    /// Takes over a basis that was found ahead of time.
    pub take_found: ByPrecision,
    /// A fault on purpose.
    pub spoil: ByPrecision,
    /// Ends of a spectrum.
    pub bounds: ByPrecision,
    /// Weights of a damped spectrum.
    pub damp: ByPrecision,
    /// Weighs a basis.
    pub weigh: ByPrecision,
    /// Eigenvalues of an inverse root that is not kept.
    pub eigenroot: ByPrecision,
    /// Multiplies blocks in the bases by them.
    pub scale: ByPrecision,
    /// The statistic, whole: by its precision, then by the one of the solver.
    pub fetch: [ByPrecision; 2],
    /// Takes over a basis: as `fetch`.
    pub adopt: [ByPrecision; 2],
    /// The inverse root: by the precision of the statistics, then by the one of the work.
    pub root: [ByPrecision; 2],
    /// Lists of pointers.
    pub point: Function,
    /// Those of QR steps.
    pub qr: QrKernels,
    /// SOAP's.
    pub soap: SoapKernels,
    /// The device.
    pub device: Arc<Device>,
    /// The code; goes after the functions.
    _module: Module,
}

static OPEN: Mutex<Vec<Weak<Kernels>>> = Mutex::new(Vec::new());

impl Kernels {
    /// The kernels of device number `ordinal`: those in use, or new ones.
    pub fn open(ordinal: i32) -> Result<Arc<Kernels>> {
        probe::require().map_err(|mut cause| {
            cause.message = format!("device = cuda:{ordinal}: {}", cause.message);
            cause
        })?;
        let mut open = OPEN.lock();
        open.retain(|kernels| kernels.strong_count() > 0);
        let same = |kernels: &Arc<Kernels>| kernels.device.ordinal() == ordinal;
        if let Some(kernels) = open.iter().filter_map(Weak::upgrade).find(same) {
            return Ok(kernels);
        }
        let device = Device::open(ordinal, probe::device_count()?)?;
        let kernels = Arc::new(Kernels::load(&device)?);
        open.push(Arc::downgrade(&kernels));
        Ok(kernels)
    }

    fn load(device: &Arc<Device>) -> Result<Kernels> {
        let _current = device.enter()?;
        let module = Module::load(device, PTX)?;
        let one = |name: &str| module.function(&format!("foam_{name}"));
        let both = |name: &str| -> Result<ByPrecision> {
            Ok([one(&format!("{name}_f32"))?, one(&format!("{name}_f64"))?])
        };
        let widened = |name: &str| -> Result<[ByPrecision; 2]> {
            let double = one(&format!("{name}_f64_f64"))?;
            Ok([[one(&format!("{name}_f32_f32"))?, one(&format!("{name}_f32_f64"))?], [double, double]])
        };
        let mixed = |name: &str| -> Result<[ByPrecision; 2]> {
            Ok([both(&format!("{name}_f32"))?, both(&format!("{name}_f64"))?])
        };
        let soap = SoapKernels {
            prepare: one("soap_prepare")?,
            length: one("soap_length")?,
            settle: one("soap_settle")?,
            load: both("soap_load")?,
            moments: both("soap_moments")?,
            update: both("soap_update")?,
            pick: both("soap_pick")?,
            lay: both("soap_lay")?,
            gauge: both("soap_gauge")?,
            judge_gauge: both("soap_judge_gauge")?,
            reorder: both("soap_reorder")?,
            judge: one("soap_judge")?,
            statistic: both("soap_statistic")?,
            sort: widened("soap_sort")?,
            collect: mixed("soap_collect")?,
            fetch: mixed("soap_fetch")?,
            take: mixed("soap_take")?,
            polish: mixed("soap_polish")?,
            narrow: mixed("soap_narrow")?,
        };
        let certify = CertifyKernels {
            start: both("certify_start")?,
            scale: both("certify_scale")?,
            average: one("certify_average")?,
            round: both("certify_round")?,
            end: both("certify_end")?,
            prove: both("certify_prove")?,
        };
        let qr = QrKernels {
            start: both("qr_start")?,
            arrange: both("qr_arrange")?,
            spread: both("qr_spread")?,
            straighten: both("qr_straighten")?,
            judge: one("qr_judge")?,
            rule: both("qr_rule")?,
            take: both("qr_take")?,
        };
        Ok(Kernels {
            post: one("post")?,
            place: one("place")?,
            resume: one("resume")?,
            begin: one("begin")?,
            judge: one("judge")?,
            acknowledge: one("acknowledge")?,
            carry: one("carry")?,
            stamp: one("stamp")?,
            expect: one("expect")?,
            total: one("total")?,
            tick: one("tick")?,
            length: one("length")?,
            inspect: both("inspect")?,
            gather: both("gather")?,
            gather_bf16: one("gather_bf16")?,
            add_square: one("add_square")?,
            unfold_bf16: one("unfold_bf16")?,
            rescale: both("rescale")?,
            unfold: both("unfold")?,
            filter: both("filter")?,
            norm: both("norm")?,
            update: both("update")?,
            peak: both("peak")?,
            drift: both("drift")?,
            judge_drift: both("judge_drift")?,
            certify,
            complete: both("complete")?,
            enclose: both("enclose")?,
            judge_gap: both("judge_gap")?,
            compare: both("compare")?,
            miss: both("miss")?,
            verify: both("verify")?,
            keep: both("keep")?,
            take_found: both("take_found")?,
            spoil: both("spoil")?,
            bounds: both("bounds")?,
            damp: both("damp")?,
            weigh: both("weigh")?,
            eigenroot: both("eigenroot")?,
            scale: both("scale")?,
            fetch: widened("fetch")?,
            adopt: widened("adopt")?,
            root: mixed("root")?,
            point: one("point")?,
            qr,
            soap,
            device: device.clone(),
            _module: module,
        })
    }
}
