//! Replays golden traces and compares every number they hold.
//!
//! A [`Case`] is one file of `tests/golden`; [`replay`] feeds its gradients to the optimizer, records what the
//! optimizer did, and says how far that is from what the reference did. `tests/golden.rs` asserts on the
//! [`Report`], `examples/replay.rs` prints it.

#![allow(dead_code, reason = "each program that includes this module uses a part of it")]

mod case;
pub mod compare;
#[path = "../gpu.rs"]
mod gpu;
mod hyperparameters;

pub use case::Case;
pub use compare::Report;

use foam::{Config, FactorStats, Gradient, Optimizer, Param, StepOptions, TensorMut};
use gpu::Gpu;
use std::ffi::c_void;

/// The precision of a run: of parameters, gradients and statistics alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Single, against the reference's float32 run.
    F32 = 0,
    /// Double, against its float64 run.
    F64 = 1,
}

impl Precision {
    /// Both, in the order in which they are stored.
    pub const ALL: [Precision; 2] = [Precision::F32, Precision::F64];

    /// Its name, which is also the suffix of its tensors.
    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::F64 => "f64",
        }
    }
}

/// What the optimizer did with a case's gradients.
pub struct Recording {
    /// The statistics of every factor after each step.
    pub statistics: Vec<Vec<FactorStats>>,
    /// Each parameter's weights after the case's `w_steps`.
    pub weights: Vec<Vec<Vec<f64>>>,
    /// Each factor's matrices after the last step.
    pub finals: Vec<Finals>,
}

/// One factor's matrices after the last step, row by row.
#[derive(Default)]
pub struct Finals {
    /// The statistic, not bias-corrected.
    pub statistic: Vec<f64>,
    /// The inverse root in use.
    pub inverse_root: Vec<f64>,
    /// The stale matrix Q·diag(D)·Qᵀ, which unlike Q does not depend on signs or on a choice of basis.
    pub stale: Vec<f64>,
    /// The stale spectrum D.
    pub spectrum: Vec<f64>,
}

/// Runs a case on the CPU and compares it with its trace; see [`replay_on`].
pub fn replay(case: &Case, precision: Precision) -> Result<Report, String> {
    replay_on("cpu", case, precision)
}

/// Runs a case on `device` and compares it with its trace. The error is the library's own, or a wrong set of factors.
pub fn replay_on(device: &str, case: &Case, precision: Precision) -> Result<Report, String> {
    let recording = match precision {
        Precision::F32 => record::<f32>(device, case),
        Precision::F64 => record::<f64>(device, case),
    }?;
    compare::compare(case, precision, &recording)
}

/// An element type of a run.
trait Element: foam::Element + bytemuck::Pod {
    /// The element nearest to `value`.
    fn of(value: f64) -> Self;
    /// The element's value.
    fn value(self) -> f64;
}

impl Element for f32 {
    fn of(value: f64) -> Self {
        value as f32
    }
    fn value(self) -> f64 {
        self.into()
    }
}

impl Element for f64 {
    fn of(value: f64) -> Self {
        value
    }
    fn value(self) -> f64 {
        self
    }
}

fn record<T: Element>(device: &str, case: &Case) -> Result<Recording, String> {
    let mut run = Run::new::<T>(device, case).map_err(|error| error.to_string())?;
    same_factors(case, &run.optimizer.factors().map_err(|error| error.to_string())?)?;

    let mut current: Vec<Vec<T>> = case.params.iter().map(|p| elements(&p.start)).collect();
    let mut weights = vec![Vec::new(); case.params.len()];
    let mut statistics = Vec::with_capacity(case.steps);
    for t in 1..=case.steps {
        let gradients: Vec<Vec<T>> = case.params.iter().map(|p| elements(p.gradient(t))).collect();
        let seen = run.step(&mut current, &gradients).and_then(|()| run.optimizer.factors());
        statistics.push(seen.map_err(|error| format!("step {t}: {error}"))?);
        if case.w_steps.contains(&t) {
            for (kept, now) in weights.iter_mut().zip(&current) {
                kept.push(now.iter().map(|w| w.value()).collect());
            }
        }
    }
    let finals = case.factors.iter().map(|f| read_finals(&mut run.optimizer, f)).collect::<Result<_, _>>()?;
    Ok(Recording { statistics, weights, finals })
}

fn elements<T: Element>(values: &[f64]) -> Vec<T> {
    values.iter().map(|v| T::of(*v)).collect()
}

/// An optimizer, and the device that tensors are put on for it, if it has one.
struct Run {
    optimizer: Optimizer,
    gpu: Option<Gpu>,
    shapes: Vec<Vec<usize>>,
}

impl Run {
    /// Parameters and statistics have the precision of `T`, so that a run in `T` is a run in `T` throughout.
    fn new<T: Element>(device: &str, case: &Case) -> foam::Result<Run> {
        let mut config = Config::preset(case.setup.preset)?;
        for (key, value) in &case.setup.options {
            config.set(key, value)?;
        }
        config.set("device", device)?;
        config.set("statistic_dtype", T::DTYPE.name())?;
        let on_cpu = config.device == foam::Device::CPU;
        let param = |(i, p): (usize, &case::Param)| {
            Param::new(format!("param_{i}"), &p.shape).dtype(T::DTYPE).root(p.root)
        };
        let optimizer = Optimizer::new(config, case.params.iter().enumerate().map(param))?;
        let shapes = case.params.iter().map(|p| p.shape.clone()).collect();
        Ok(Run { optimizer, gpu: (!on_cpu).then(Gpu::open), shapes })
    }

    fn step<T: Element>(&mut self, weights: &mut [Vec<T>], gradients: &[Vec<T>]) -> foam::Result<()> {
        let Some(gpu) = &mut self.gpu else {
            return self.optimizer.step(weights, gradients).map(|_| ());
        };
        let (device, count) = (self.optimizer.config().device, weights.len());
        let mut put = |which, values: &[T]| gpu.put(which, bytemuck::cast_slice(values)) as *mut c_void;
        let with_shapes = self.shapes.iter().enumerate();
        // SAFETY: buffers of the device that have the tensors' sizes and are used in the order of its stream.
        let params = with_shapes
            .clone()
            .map(|(i, shape)| unsafe { TensorMut::from_raw(put(i, &weights[i]), T::DTYPE, shape, device) });
        let params: Vec<TensorMut> = params.collect();
        // SAFETY: as above.
        let grads = with_shapes.map(|(i, shape)| unsafe {
            Gradient::from_raw(put(count + i, &gradients[i]), T::DTYPE, shape, device)
        });
        let grads: Vec<Gradient> = grads.collect();
        // SAFETY: the stream lives as long as the device's owner.
        let options = unsafe { StepOptions::default().on_stream(gpu.stream()) };
        self.optimizer.step_with(options, params, grads)?;
        for (which, values) in weights.iter_mut().enumerate() {
            gpu.get(which, bytemuck::cast_slice_mut(values));
        }
        Ok(())
    }
}

/// The optimizer must cut the parameters into the blocks that the reference cut them into.
fn same_factors(case: &Case, ours: &[FactorStats]) -> Result<(), String> {
    // A trace of SOAP says nothing about factors.
    if case.setup.preset == "soap" {
        return Ok(());
    }
    if ours.len() != case.factors.len() {
        return Err(format!("{} factors; the trace has {}", ours.len(), case.factors.len()));
    }
    for (our, their) in ours.iter().zip(&case.factors) {
        let same = our.id == their.place
            && our.dim == their.dim
            && our.root == their.root
            && our.epsilon_base == their.epsilon;
        if !same {
            return Err(format!(
                "{:?} with dim {}, root {}, epsilon {:e}; the trace has {} {:?} with dim {}, root {}, epsilon {:e}",
                our.id,
                our.dim,
                our.root,
                our.epsilon_base,
                their.label,
                their.place,
                their.dim,
                their.root,
                their.epsilon
            ));
        }
    }
    Ok(())
}

fn read_finals(optimizer: &mut Optimizer, factor: &case::Factor) -> Result<Finals, String> {
    let mut read = || -> foam::Result<Finals> {
        let (spectrum, basis) = (optimizer.spectrum(factor.place)?, optimizer.basis(factor.place)?);
        // The basis has one eigenvector per row: (Q·diag(D)·Qᵀ)ᵢⱼ = Σₖ Dₖ·Bₖᵢ·Bₖⱼ.
        let n = spectrum.len();
        let entry = |i: usize, j: usize| (0..n).map(|k| spectrum[k] * basis[[k, i]] * basis[[k, j]]).sum();
        Ok(Finals {
            statistic: optimizer.statistic(factor.place)?.into_iter().collect(),
            inverse_root: optimizer.inverse_root(factor.place)?.into_iter().collect(),
            stale: (0..n * n).map(|at| entry(at / n, at % n)).collect(),
            spectrum: spectrum.to_vec(),
        })
    };
    read().map_err(|error| format!("{}: {error}", factor.label))
}
