//! The optimizer: creation, the step, and what can be read.

use super::engine::{self, Allocator, Level, Outcome, ParamPlan, SlotKind, TensorRef, Tensors};
use super::param::Param;
use super::stats::{self, FactorId, FactorStats, Stats};
use super::tensor::{Gradient, TensorMut};
use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::memory::{boxed, listed, reserved, tried, whole_text};
use ndarray::{Array1, Array2, Axis};
use std::ffi::{CStr, c_void};
use std::fmt;

/// An optimizer for a fixed list of parameters.
///
/// It owns its state; parameters and gradients stay with the caller, who lends them for each step.
///
/// ```
/// # fn main() -> foam::Result<()> {
/// use foam::{Config, Optimizer, Param};
///
/// let config = Config { lr: 0.01, ..Config::default() };
/// let mut optimizer = Optimizer::new(config, [Param::new("w", &[8, 4])])?;
/// let mut w = vec![1.5f32; 32];
/// for _ in 0..300 {
///     let gradient = w.clone(); // the loss is half the squared norm
///     optimizer.step([&mut w], [&gradient])?;
/// }
/// assert!(w[0].abs() < 0.1);
/// # Ok(())
/// # }
/// ```
///
/// # Threads
/// An optimizer may move to another thread, but is not shared between threads (`Send`, not `Sync`). Its pool of
/// `num_threads` is its own; results do not depend on the number of threads, bit for bit.
///
/// # Panics
/// No function here panics on purpose. If one does, it is an error in the library: the panic unwinds to the caller,
/// parameters of that step are undefined, and the optimizer is poisoned. Only [`Optimizer::stats`] and
/// [`Optimizer::factors`] work then; everything else gives [`ErrorKind::Poisoned`](crate::ErrorKind::Poisoned). The same holds
/// after a device failed in the middle of a step.
pub struct Optimizer {
    engine: engine::Optimizer,
    /// Lists that a step fills anew; kept so that it does not allocate.
    params: Vec<TensorRef>,
    grads: Vec<Option<TensorRef>>,
    /// False while the engine works, and for good once it panicked or lost its device.
    sound: bool,
}

// Send is part of the interface.
const _: fn() = || {
    fn sent<T: Send>() {}
    sent::<Optimizer>();
};

/// What may be chosen for one step: its learning rate and a scale of the gradients.
///
/// ```
/// let loss_scale = 1024.0;
/// let options = foam::StepOptions::default().lr(1e-3).grad_scale(1.0 / loss_scale);
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct StepOptions {
    engine: engine::StepOptions,
    /// The stream's address, as a number, so that options may move between threads.
    stream: usize,
}

impl Default for StepOptions {
    /// The configuration's learning rate, and gradients as they are.
    fn default() -> Self {
        StepOptions { engine: engine::StepOptions::default(), stream: 0 }
    }
}

impl StepOptions {
    /// The learning rate of the step, at least 0; without it the configuration's is taken.
    pub fn lr(mut self, lr: f64) -> Self {
        self.engine.lr = Some(lr);
        self
    }

    /// Multiplies every gradient; finite and not 0, for example 1/S to undo a loss scale of S.
    pub fn grad_scale(mut self, scale: f64) -> Self {
        self.engine.grad_scale = scale;
        self
    }

    /// Orders the step's work on a CUDA stream (a `CUstream` or `cudaStream_t`); without it, on the legacy default
    /// stream. The CPU ignores it.
    ///
    /// # Safety
    /// `stream` is a live stream of the optimizer's device until the step's work is done.
    pub unsafe fn on_stream(mut self, stream: *mut c_void) -> Self {
        self.stream = stream as usize;
        self
    }

    fn check(&self) -> Result<()> {
        let engine::StepOptions { lr, grad_scale } = self.engine;
        if let Some(lr) = lr.filter(|lr| !(lr.is_finite() && *lr >= 0.0)) {
            return Err(Error::invalid(format!("lr = {lr}: expected a number >= 0")));
        }
        if !grad_scale.is_finite() || grad_scale == 0.0 {
            let message = format!("grad_scale = {grad_scale}: expected a finite number other than 0");
            return Err(Error::invalid(message));
        }
        Ok(())
    }
}

impl Optimizer {
    /// An optimizer for `params`, with all state zero. The configuration and every parameter are validated.
    pub fn new(config: Config, params: impl IntoIterator<Item = Param>) -> Result<Optimizer> {
        Optimizer::with_log(config, params, |_, _| {})
    }

    /// The same with a place for what the optimizer has to say; without it, that goes nowhere. `log` is called on a
    /// thread that is inside a function of this optimizer.
    ///
    /// ```
    /// # fn main() -> foam::Result<()> {
    /// use foam::{Config, Optimizer, Param};
    ///
    /// let log = |level, line: &str| eprintln!("{level:?}: {line}");
    /// let optimizer = Optimizer::with_log(Config::default(), [Param::new("w", &[64, 10])], log)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_log(
        config: Config,
        params: impl IntoIterator<Item = Param>,
        log: impl Fn(Level, &str) + Send + 'static,
    ) -> Result<Optimizer> {
        let params = params.into_iter().enumerate();
        let specs = tried(params.map(|(index, param)| param.checked(index)), "the parameters")?;
        let count = specs.len();
        let engine = engine::Optimizer::new(config, specs, Allocator::System, boxed(log, "the log")?)?;
        let what = "the tensors of a step";
        let (params, grads) = (reserved(count, what)?, reserved(count, what)?);
        Ok(Optimizer { engine, params, grads, sound: true })
    }

    /// The options it was made with.
    pub fn config(&self) -> &Config {
        self.engine.config()
    }

    /// One step: reads the gradients, updates the parameters in place, both in the order of creation. Says whether the
    /// step was taken, or skipped because a gradient is not finite (option `nonfinite = skip`; otherwise that is an error).
    ///
    /// Lists may be anything that gives items that become a [`TensorMut`] and a [`Gradient`]: vectors of vectors for
    /// parameters of one type, or arrays of converted tensors for parameters of several.
    ///
    /// ```
    /// # fn main() -> foam::Result<()> {
    /// use foam::ndarray::{Array1, Array2};
    /// use foam::{Config, Gradient, Optimizer, Outcome, Param, TensorMut};
    ///
    /// let params = [Param::new("weight", &[8, 4]), Param::new("bias", &[4])];
    /// let mut optimizer = Optimizer::new(Config::default(), params)?;
    /// let (mut weight, mut bias) = (Array2::<f32>::ones((8, 4)), Array1::<f32>::ones(4));
    /// let gradient = Array2::<f32>::ones((8, 4));
    /// let outcome = optimizer.step(
    ///     [TensorMut::from(&mut weight), TensorMut::from(&mut bias)],
    ///     [Gradient::from(&gradient), Gradient::absent()], // the bias takes no part
    /// )?;
    /// assert_eq!(outcome, Outcome::Stepped);
    /// assert!(weight[[0, 0]] < 1.0 && bias[0] == 1.0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Everything is validated before the first write: a failed step has changed neither parameters nor state. Shape,
    /// length or element type that differ from what was declared are a [`ErrorKind::ShapeMismatch`](crate::ErrorKind::ShapeMismatch), memory
    /// that is not row-major and contiguous is [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported), a gradient that is not finite is
    /// [`ErrorKind::NotFinite`](crate::ErrorKind::NotFinite); each names its parameter.
    pub fn step<'p, 'g>(
        &mut self,
        params: impl IntoIterator<Item: Into<TensorMut<'p>>>,
        grads: impl IntoIterator<Item: Into<Gradient<'g>>>,
    ) -> Result<Outcome> {
        self.step_with(StepOptions::default(), params, grads)
    }

    /// The same with a learning rate, or a scale of the gradients, of its own.
    ///
    /// ```
    /// # fn main() -> foam::Result<()> {
    /// use foam::{Config, Optimizer, Param, StepOptions};
    ///
    /// let mut optimizer = Optimizer::new(Config::default(), [Param::new("w", &[4])])?;
    /// let mut w = [1.0f32; 4];
    /// for t in 0..10 {
    ///     let warm_up = StepOptions::default().lr(1e-3 * f64::from(t + 1) / 10.0);
    ///     optimizer.step_with(warm_up, [&mut w], [&[0.1f32; 4]])?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn step_with<'p, 'g>(
        &mut self,
        options: StepOptions,
        params: impl IntoIterator<Item: Into<TensorMut<'p>>>,
        grads: impl IntoIterator<Item: Into<Gradient<'g>>>,
    ) -> Result<Outcome> {
        self.refuse_poisoned()?;
        options.check()?;
        let (plan, device) = (self.engine.plan(), self.engine.config().device);
        gather("params", &plan.params, params, &mut self.params, |tensor, param| {
            tensor.into().checked(param, device)
        })?;
        gather("grads", &plan.params, grads, &mut self.grads, |gradient, param| {
            gradient.into().checked(param, device)
        })?;
        // The borrows 'p and 'g outlive this call: the addresses are good for the step, and no parameter overlaps
        // anything else.
        let stream = options.stream as *mut c_void;
        let tensors = Tensors { params: &self.params, grads: &self.grads, stream, after: &[] };
        self.sound = false;
        let outcome = self.engine.step(&tensors, options.engine);
        self.sound = !self.engine.is_lost();
        outcome
    }

    /// Waits until all work on the optimizer's device is done, and tells of a step that the device refused meanwhile.
    /// On the CPU nothing is ever pending.
    pub fn synchronize(&mut self) -> Result<()> {
        self.enter(engine::Optimizer::synchronize)
    }

    /// Statistics of the whole optimizer. Works after a panic, too.
    pub fn stats(&mut self) -> Result<Stats> {
        self.settle()?;
        Ok(stats::whole(&self.engine))
    }

    /// What keeps the configuration from working, as far as the statistics show it: a line for each finding, with the
    /// factors that have it, the option to change and a value to try; none if nothing was found. The log function gets
    /// each finding once. A factor is judged from its twentieth check on, and one in ten of those that were judged makes a
    /// finding. Works after a panic, too.
    pub fn diagnosis(&mut self) -> Result<Vec<String>> {
        self.settle()?;
        let lines = self.engine.diagnosis_text()?;
        let copy = |line: &str| whole_text(format_args!("{line}"), "the findings");
        tried(lines.lines().map(copy), "the findings")
    }

    /// Statistics of every factor, ordered by parameter, block and axis. Works after a panic, too.
    pub fn factors(&mut self) -> Result<Vec<FactorStats>> {
        self.settle()?;
        let count = self.engine.plan().factors.len();
        listed((0..count).map(|index| stats::factor(&self.engine, index)), "the statistics")
    }

    /// A factor's statistic: the running second moment of the gradient along its axis, not bias-corrected.
    pub fn statistic(&mut self, factor: FactorId) -> Result<Array2<f64>> {
        self.matrix(factor, SlotKind::Statistic)
    }

    /// A factor's stale basis, one eigenvector per row.
    pub fn basis(&mut self, factor: FactorId) -> Result<Array2<f64>> {
        self.matrix(factor, SlotKind::Basis)
    }

    /// A factor's stale spectrum.
    pub fn spectrum(&mut self, factor: FactorId) -> Result<Array1<f64>> {
        Ok(self.matrix(factor, SlotKind::Spectrum)?.index_axis_move(Axis(0), 0))
    }

    /// A factor's inverse root in use.
    pub fn inverse_root(&mut self, factor: FactorId) -> Result<Array2<f64>> {
        self.matrix(factor, SlotKind::InverseRoot)
    }

    /// The exact relative operator gap of a factor at this moment: what the proxy estimates, at the price of an
    /// eigendecomposition in double precision. For studies and tests.
    pub fn exact_gap(&mut self, factor: FactorId) -> Result<f64> {
        self.settled(|engine| engine.exact_gap(index_of(engine, factor)?))
    }

    fn matrix(&mut self, factor: FactorId, kind: SlotKind) -> Result<Array2<f64>> {
        self.settled(|engine| engine.factor_matrix(index_of(engine, factor)?, kind))
    }

    /// Runs `work` on a sound engine. If it panics, the engine stays unsound.
    pub(super) fn enter<R>(&mut self, work: impl FnOnce(&mut engine::Optimizer) -> Result<R>) -> Result<R> {
        self.refuse_poisoned()?;
        self.sound = false;
        let outcome = work(&mut self.engine);
        self.sound = !self.engine.is_lost();
        outcome
    }

    /// The same with all that the device has to tell.
    pub(super) fn settled<R>(&mut self, work: impl FnOnce(&mut engine::Optimizer) -> Result<R>) -> Result<R> {
        self.enter(|engine| {
            engine.settle()?;
            work(engine)
        })
    }

    /// Brings the statistics up to date, as far as they can be.
    fn settle(&mut self) -> Result<()> {
        if self.sound { self.enter(engine::Optimizer::settle) } else { Ok(()) }
    }

    fn refuse_poisoned(&self) -> Result<()> {
        if self.sound {
            return Ok(());
        }
        Err(Error::new(
            Kind::Poisoned,
            "an earlier call panicked, or its device failed, and left this optimizer inconsistent; load a checkpoint into a new one",
        ))
    }
}

impl fmt::Debug for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.engine.plan().params.iter().map(|p| p.spec.name.as_str()).collect();
        f.debug_struct("Optimizer")
            .field("params", &names)
            .field("sound", &self.sound)
            .finish_non_exhaustive()
    }
}

/// Checks every tensor of a list against its parameter, and the length of the list.
fn gather<T, R>(
    list: &str,
    plan: &[ParamPlan],
    items: impl IntoIterator<Item = T>,
    checked: &mut Vec<R>,
    check: impl Fn(T, &ParamPlan) -> Result<R>,
) -> Result<()> {
    checked.clear();
    let count = plan.len();
    let wrong = |given: String| {
        Err(Error::invalid(format!("{list} has {given} tensors: expected {count}, as at creation")))
    };
    let mut items = items.into_iter();
    for (index, param) in plan.iter().enumerate() {
        let Some(item) = items.next() else { return wrong(format!("{index}")) };
        checked.push(check(item, param).map_err(|error| error.at(index))?);
    }
    // An endless list is refused, too.
    if items.next().is_some() { wrong(format!("more than {count}")) } else { Ok(()) }
}

fn index_of(engine: &engine::Optimizer, FactorId { param, block, axis }: FactorId) -> Result<usize> {
    // An index beyond i64 turns negative, and is refused like any other that is out of range.
    engine.factor_index(param as i64, block as i64, axis as i64)
}

/// One line about the build: version, ABI, target and devices.
pub fn build_info() -> &'static str {
    // SAFETY: a C string that lives as long as the program.
    unsafe { CStr::from_ptr(crate::abi::foam_build_info()) }.to_str().unwrap_or_default()
}
