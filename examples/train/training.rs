//! One training run: a network, an optimizer, and what happened to both.

use crate::data::Images;
use crate::network::{Evaluation, Layer, Network};
use crate::random::Random;
use crate::report::Progress;
use foam::{Config, FactorStats, Level, Optimizer, Param, Stats, StepOptions};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// What every run has in common.
pub struct Task {
    pub train: Images,
    pub test: Images,
    pub widths: Vec<usize>,
    pub batch: usize,
    pub epochs: usize,
    pub seed: u64,
    /// Learning rate at the top of the schedule.
    pub lr: f64,
    /// Fraction of the steps in which it rises from zero.
    pub warmup: f64,
}

/// Options that `python -m foam doctor` has to know.
const OPTIONS: &[&str] = &[
    "preconditioner",
    "policy",
    "cadence",
    "grafting",
    "refresh_schedule",
    "epsilon_mode",
    "epsilon",
    "epsilon_max",
    "tau",
    "beta2",
    "check_period",
    "statistic_dtype",
];

/// A factor's statistics right after a check.
pub struct Check {
    pub step: usize,
    pub factor: FactorStats,
}

/// Counters of the whole optimizer right after a check.
pub struct Tally {
    pub step: usize,
    pub evd_calls: u64,
    pub checks: u64,
}

/// An optimizer, and what it had to warn about: it never prints itself.
pub struct Session {
    optimizer: Optimizer,
    /// How often each warning came.
    warnings: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Session {
    /// Creates the optimizer; the configuration is validated as a whole here.
    pub fn new(config: Config, params: Vec<Param>) -> foam::Result<Session> {
        let warnings = Arc::<Mutex<BTreeMap<String, usize>>>::default();
        let kept = warnings.clone();
        let log = move |level, line: &str| {
            if level == Level::Warning {
                *kept.lock().unwrap_or_else(PoisonError::into_inner).entry(line.to_string()).or_default() +=
                    1;
            }
        };
        Ok(Session { optimizer: Optimizer::with_log(config, params, log)?, warnings })
    }
}

/// The record of a run.
pub struct Run {
    pub policy: String,
    /// The options that decide what its statistics mean, as `KEY=VALUE`.
    pub options: String,
    /// Loss of each step's batch, before the step.
    pub losses: Vec<f64>,
    /// On the test images, after each epoch.
    pub tests: Vec<Evaluation>,
    /// On all training images, at the end.
    pub train: Evaluation,
    pub checks: Vec<Check>,
    pub tallies: Vec<Tally>,
    pub stats: Stats,
    /// Wall time of each step of the optimizer.
    pub step_seconds: Vec<f64>,
    /// Wall time of everything, network included.
    pub seconds: f64,
}

impl Task {
    /// Steps of an epoch: full batches only, so that all gradients have the same variance.
    pub fn steps_per_epoch(&self) -> usize {
        self.train.len() / self.batch
    }

    /// Steps of a run.
    pub fn steps(&self) -> usize {
        self.epochs * self.steps_per_epoch()
    }

    /// Steps in which the learning rate rises.
    pub fn warmup_steps(&self) -> usize {
        ((self.warmup * self.steps() as f64).round() as usize).max(1)
    }

    /// Learning rate of `step` (from 1): linear warm-up, then half a cosine down to zero.
    pub fn lr_at(&self, step: usize) -> f64 {
        let (warm, all) = (self.warmup_steps() as f64, self.steps() as f64);
        let at = step as f64;
        if at <= warm {
            return self.lr * at / warm;
        }
        let progress = (at - warm) / (all - warm + 1.0);
        self.lr * 0.5 * (1.0 + (std::f64::consts::PI * progress).cos())
    }

    /// The network's parameters as the optimizer is told about them.
    pub fn parameters(&self) -> Vec<Param> {
        let layer = |(index, pair): (usize, &[usize])| {
            [
                Param::new(format!("layer{}.weight", index + 1), pair),
                Param::new(format!("layer{}.bias", index + 1), &pair[1..]),
            ]
        };
        self.widths.windows(2).enumerate().flat_map(layer).collect()
    }

    /// Trains a network from the task's seed: every run starts from the same weights and sees the
    /// same batches in the same order.
    pub fn run(&self, policy: &str, mut session: Session, progress: &mut Progress) -> foam::Result<Run> {
        let start = Instant::now();
        let mut random = Random::new(self.seed);
        let mut network = Network::new(&self.widths, &mut random);
        let mut order: Vec<usize> = (0..self.train.len()).collect();
        let mut recorder = Recorder::default();
        let (mut losses, mut tests, mut step_seconds) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.epochs {
            random.shuffle(&mut order);
            for rows in order.chunks_exact(self.batch) {
                let (loss, gradient) = network.loss_and_gradient(&self.train.select(rows));
                losses.push(loss);
                let step = losses.len();
                let clock = Instant::now();
                let options = StepOptions::default().lr(self.lr_at(step));
                let (params, grads) = (values_mut(&mut network.layers), values(&gradient));
                session.optimizer.step_with(options, params, grads)?;
                step_seconds.push(clock.elapsed().as_secs_f64());
                recorder.look(step, &mut session.optimizer)?;
                progress.show(policy, step, self.steps(), loss);
            }
            tests.push(network.evaluate(&self.test));
        }
        for (warning, count) in &*session.warnings.lock().unwrap_or_else(PoisonError::into_inner) {
            eprintln!("{policy}: {count} × warning: {warning}");
        }
        let train = network.evaluate(&self.train);
        let stats = session.optimizer.stats()?;
        let seconds = start.elapsed().as_secs_f64();
        let policy = policy.to_string();
        let Recorder { checks, tallies, .. } = recorder;
        let config = session.optimizer.config();
        let pair = |key: &&str| Ok(format!("{key}={}", config.get(key)?));
        let options = OPTIONS.iter().map(pair).collect::<foam::Result<Vec<_>>>()?.join(" ");
        Ok(Run { policy, options, losses, tests, train, checks, tallies, stats, step_seconds, seconds })
    }
}

/// Collects the factors' statistics whenever the optimizer has checked them.
#[derive(Default)]
struct Recorder {
    /// Checks of each factor so far.
    seen: Vec<u64>,
    checks: Vec<Check>,
    tallies: Vec<Tally>,
}

impl Recorder {
    fn look(&mut self, step: usize, optimizer: &mut Optimizer) -> foam::Result<()> {
        let counters = optimizer.stats()?.counters;
        if counters.checks == self.tallies.last().map_or(0, |t| t.checks) {
            return Ok(());
        }
        self.tallies.push(Tally { step, evd_calls: counters.evd_calls, checks: counters.checks });
        let factors = optimizer.factors()?;
        self.seen.resize(factors.len(), 0);
        for (seen, factor) in self.seen.iter_mut().zip(factors) {
            if factor.counters.checks > *seen {
                *seen = factor.counters.checks;
                self.checks.push(Check { step, factor });
            }
        }
        Ok(())
    }
}

/// The layers' values in the order of `Task::parameters`. New arrays are row-major and stay so.
fn values(layers: &[Layer]) -> Vec<&[f32]> {
    let row_major = "a gradient is row-major";
    layers
        .iter()
        .flat_map(|l| [l.weight.as_slice().expect(row_major), l.bias.as_slice().expect(row_major)])
        .collect()
}

fn values_mut(layers: &mut [Layer]) -> Vec<&mut [f32]> {
    let row_major = "a parameter is row-major";
    layers
        .iter_mut()
        .flat_map(|l| [l.weight.as_slice_mut().expect(row_major), l.bias.as_slice_mut().expect(row_major)])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{CLASSES, PIXELS, digits};

    fn task() -> Task {
        let (train, test) = digits();
        let widths = vec![PIXELS, 8, CLASSES];
        Task { train, test, widths, batch: 128, epochs: 10, seed: 1, lr: 0.1, warmup: 0.1 }
    }

    #[test]
    fn the_learning_rate_rises_to_its_peak_and_falls_to_nearly_nothing() {
        let task = task();
        let rates: Vec<f64> = (1..=task.steps()).map(|step| task.lr_at(step)).collect();
        let peak = task.warmup_steps();
        assert_eq!(rates[peak - 1], task.lr);
        assert!(rates[..peak].is_sorted() && rates[peak..].is_sorted_by(|a, b| a >= b));
        assert!(rates.iter().all(|lr| *lr > 0.0) && rates[rates.len() - 1] < 1e-3 * task.lr);
    }

    #[test]
    fn slices_come_in_the_declared_order_and_size() {
        let task = task();
        let network = Network::new(&task.widths, &mut Random::new(1));
        let sizes: Vec<usize> = values(&network.layers).iter().map(|v| v.len()).collect();
        let declared: Vec<usize> = task.parameters().iter().map(|p| p.shape().iter().product()).collect();
        assert_eq!(sizes, declared);
    }
}
