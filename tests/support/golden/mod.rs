//! Replays golden traces through the C ABI and compares every number they hold.
//!
//! A [`Case`] is one file of `tests/golden`; [`replay`] feeds its gradients to the optimizer, records what the
//! optimizer did, and says how far that is from what the reference did. `tests/golden.rs` asserts on the
//! [`Report`], `examples/replay.rs` prints it.

#![allow(dead_code, reason = "each program that includes this module uses a part of it")]

mod case;
pub mod compare;
#[path = "../engine.rs"]
pub mod engine;
mod hyperparameters;

pub use case::Case;
pub use compare::Report;

use engine::{Element, Engine, Parameter};
use foam::abi::*;

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
    /// The figures of every factor after each step.
    pub figures: Vec<Vec<foam_factor_info>>,
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

fn record<T: Element>(device: &str, case: &Case) -> Result<Recording, String> {
    let parameter = |p: &case::Param| Parameter { shape: p.shape.clone(), root: p.root };
    let params: Vec<_> = case.params.iter().map(parameter).collect();
    let mut options = case.setup.options.clone();
    options.push(("device".to_string(), device.to_string()));
    let mut engine = Engine::<T>::new(case.setup.preset, &options, &params)?;
    same_factors(case, &engine.factors()?)?;

    let mut current: Vec<Vec<T>> = case.params.iter().map(|p| elements(&p.start)).collect();
    let mut weights = vec![Vec::new(); case.params.len()];
    let mut figures = Vec::with_capacity(case.steps);
    for t in 1..=case.steps {
        let gradients: Vec<Vec<T>> = case.params.iter().map(|p| elements(p.gradient(t))).collect();
        engine.step(&mut current, &gradients).map_err(|error| format!("step {t}: {error}"))?;
        figures.push(engine.factors()?);
        if case.w_steps.contains(&t) {
            for (kept, now) in weights.iter_mut().zip(&current) {
                kept.push(now.iter().map(|w| w.value()).collect());
            }
        }
    }
    let finals = case.factors.iter().map(|f| read_finals(&engine, f)).collect::<Result<_, _>>()?;
    Ok(Recording { figures, weights, finals })
}

fn elements<T: Element>(values: &[f64]) -> Vec<T> {
    values.iter().map(|v| T::of(*v)).collect()
}

/// The optimizer must cut the parameters into the blocks that the reference cut them into.
fn same_factors(case: &Case, ours: &[foam_factor_info]) -> Result<(), String> {
    if ours.len() != case.factors.len() {
        return Err(format!("{} factors; the trace has {}", ours.len(), case.factors.len()));
    }
    for (our, their) in ours.iter().zip(&case.factors) {
        let place = (our.param_index, our.block, our.axis);
        let same = place == their.place
            && our.dim == their.dim as i64
            && our.root == their.root
            && our.epsilon_base == their.epsilon;
        if !same {
            return Err(format!(
                "factor {place:?} with dim {}, root {}, epsilon {:e}; the trace has {} {:?} with dim {}, root {}, epsilon {:e}",
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

fn read_finals<T: Element>(engine: &Engine<T>, factor: &case::Factor) -> Result<Finals, String> {
    let n = factor.dim;
    let spectrum = engine.read(factor.place, FOAM_FACTOR_SPECTRUM)?;
    let basis = engine.read(factor.place, FOAM_FACTOR_BASIS)?;
    if (basis.len(), spectrum.len()) != (n * n, n) {
        return Err(format!("{}: basis or spectrum has the wrong size", factor.label));
    }
    // The basis has one eigenvector a row: (Q·diag(D)·Qᵀ)ᵢⱼ = Σₖ Dₖ·Bₖᵢ·Bₖⱼ.
    let entry = |i: usize, j: usize| (0..n).map(|k| spectrum[k] * basis[k * n + i] * basis[k * n + j]).sum();
    let stale = (0..n * n).map(|at| entry(at / n, at % n)).collect();
    Ok(Finals {
        statistic: engine.read(factor.place, FOAM_FACTOR_STATISTIC)?,
        inverse_root: engine.read(factor.place, FOAM_FACTOR_INVERSE_ROOT)?,
        stale,
        spectrum,
    })
}
