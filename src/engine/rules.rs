//! The rules of a step as plain numbers, worked out from the configuration once per call and given to every
//! device alike. A device knows no option by name: what it does with a block follows from these numbers, the
//! block's clock and its site.

use super::grafting;
use crate::config::{Config, EpsilonMode, PreconditionerName};
use crate::preconditioner::cadence;
use bytemuck::{Pod, Zeroable};

/// The time of one block: it advances only when the block takes part in a step.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct Clock {
    /// Steps taken.
    pub step: u64,
    /// The statistic is the stored one times this. Carrying the decay here saves a pass over every
    /// statistic in every step.
    pub weight: f64,
}

impl Clock {
    /// The clock of a block that never took part.
    pub const START: Clock = Clock { step: 0, weight: 1.0 };

    /// Why these cannot be the values of a clock that the engine wrote; none if they can.
    pub fn fault(&self) -> Option<String> {
        let Clock { step, weight } = *self;
        let sound = step <= MOST_STEPS && weight > 0.0 && weight <= 1.0;
        (!sound).then(|| {
            format!("step = {step}, weight = {weight}: expected a count up to {MOST_STEPS}, and a number in (0, 1]")
        })
    }
}

/// The most steps that a clock may show: what a double holds exactly.
pub const MOST_STEPS: u64 = 1 << 53;

/// Below this weight the stored statistics are rescaled, so that they never grow far beyond the true ones.
pub const LEAST_WEIGHT: f64 = 1.0 / 16.0;

/// Keeps a division by a zero norm finite (the authors' code has the same constant).
pub const TINY_NORM: f64 = 1e-16;

/// The numbers of a step. The kernels take this struct as it is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct Rules {
    /// β₁ of the gradient filter.
    pub beta1: f64,
    /// β₂ of the statistics; 1 means a plain sum.
    pub beta2: f64,
    /// ln β₁.
    pub log_beta1: f64,
    /// ln β₂.
    pub log_beta2: f64,
    /// The moment becomes `moment_keep`·v + `moment_take`·g².
    pub moment_keep: f64,
    /// See `moment_keep`.
    pub moment_take: f64,
    /// ln of the moment's decay, for its bias correction.
    pub log_moment: f64,
    /// Added to the root of the moment.
    pub moment_epsilon: f64,
    /// μ of the momentum.
    pub momentum: f64,
    /// The direction enters the momentum times this.
    pub momentum_take: f64,
    /// The parameter (or the update) takes this times the direction: minus the learning rate.
    pub scale: f64,
    /// Multiplies the gradient.
    pub grad_scale: f64,
    /// ‖G‖² must be smaller; a device fills it in for each stack.
    pub largest: f64,
    /// Added to a norm before something is divided by it.
    pub tiny_norm: f64,
    /// There is a grafted method: it gives the direction where there is no basis yet, and the length elsewhere.
    pub grafts: i32,
    /// The moment takes the gradient divided by its norm, and the length is taken of that.
    pub normalized: i32,
    /// The filter looks one step ahead.
    pub nadam: i32,
    /// Nesterov momentum.
    pub nesterov: i32,
    /// The weight decay is added to the direction (1) or to the gradient (0).
    pub decoupled: i32,
    /// The filtered gradient is divided by 1 − β₁ᵗ.
    pub filter_correction: i32,
    /// The statistic is divided by 1 − β₂ⁿ, n the gradients in it.
    pub statistic_correction: i32,
    /// The moment is divided by 1 − βᵗ.
    pub moment_correction: i32,
    /// `moment_epsilon` is a share of the gradient's root mean square.
    pub moment_relative: i32,
    /// Gradients enter the statistics at step 1 and at the multiples of this.
    pub statistics_period: i32,
}

/// A clock's next tick, and how the gradient enters the statistics in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tick {
    /// The clock afterwards.
    pub clock: Clock,
    /// The gradient enters the statistics.
    pub accumulates: bool,
    /// The stored statistics are multiplied by it first (1 in nearly every step).
    pub decay: f64,
    /// G Gᵀ enters the stored statistics with this weight.
    pub gain: f64,
}

fn corrects(enabled: bool, beta: f64) -> i32 {
    i32::from(enabled && beta > 0.0 && beta < 1.0)
}

impl Rules {
    /// The rules of a step whose parameters take `scale` times the direction.
    pub fn new(config: &Config, scale: f64, grad_scale: f64) -> Rules {
        let graft = grafting::Numbers::of(config);
        let relative = config.epsilon_mode == EpsilonMode::Relative;
        // SOAP's Adam is corrected as a whole or not at all.
        let corrected = config.bias_correction || config.preconditioner == PreconditionerName::Shampoo;
        Rules {
            beta1: config.beta1,
            beta2: config.beta2,
            log_beta1: config.beta1.ln(),
            log_beta2: config.beta2.ln(),
            moment_keep: graft.keep,
            moment_take: graft.take,
            log_moment: graft.log_beta,
            moment_epsilon: config.grafting_epsilon,
            momentum: config.momentum,
            momentum_take: if config.ema_momentum { 1.0 - config.momentum } else { 1.0 },
            scale,
            grad_scale,
            largest: 0.0,
            tiny_norm: if relative { 0.0 } else { TINY_NORM },
            grafts: i32::from(graft.grafts),
            normalized: i32::from(config.normalized_grafting),
            nadam: i32::from(config.nadam),
            nesterov: i32::from(config.nesterov),
            decoupled: i32::from(config.decoupled_weight_decay),
            filter_correction: corrects(config.bias_correction, config.beta1),
            statistic_correction: corrects(config.bias_correction, config.beta2),
            moment_correction: corrects(graft.corrects && corrected, config.grafting_beta2),
            moment_relative: i32::from(relative),
            // Validated to fit.
            statistics_period: config.statistics_period as i32,
        }
    }

    /// L = w·S with a stored S: L ← βL + (1−β)GGᵀ becomes w ← βw, S ← S + (1−β)/w·GGᵀ. In a step that leaves the
    /// statistics alone only the step is counted.
    pub fn tick(&self, clock: Clock) -> Tick {
        let step = clock.step + 1;
        if !self.accumulates(step) {
            return Tick { clock: Clock { step, ..clock }, accumulates: false, decay: 1.0, gain: 0.0 };
        }
        let at = |weight, decay, gain| Tick { clock: Clock { step, weight }, accumulates: true, decay, gain };
        if self.beta2 >= 1.0 {
            return at(1.0, 1.0, 1.0);
        }
        let weight = clock.weight * self.beta2;
        if weight < LEAST_WEIGHT {
            return at(1.0, weight, 1.0 - self.beta2);
        }
        at(weight, 1.0, (1.0 - self.beta2) / weight)
    }

    /// Whether the gradient of a block's step `t` enters its statistics.
    pub fn accumulates(&self, t: u64) -> bool {
        cadence::accumulates(self.statistics_period as u64, t)
    }

    /// The filtered gradient of a block at its step `t` is divided by it.
    pub fn filter_divisor(&self, t: u64) -> f64 {
        correction(self.filter_correction, self.log_beta1, t)
    }

    /// The grafted moment of a block at its step `t` is divided by it.
    pub fn moment_divisor(&self, t: u64) -> f64 {
        correction(self.moment_correction, self.log_moment, t)
    }

    /// The stored statistic times this is what the paper (or the authors' code) decomposes.
    pub fn statistic_scale(&self, clock: Clock) -> f64 {
        let count = cadence::accumulations(self.statistics_period as u64, clock.step);
        clock.weight / correction(self.statistic_correction, self.log_beta2, count)
    }

    /// The gradient that enters the grafted moment is multiplied by it.
    pub fn normalization(&self, squared_norm: f64) -> f64 {
        if self.normalized == 0 { 1.0 } else { quotient(1.0, squared_norm.sqrt() + self.tiny_norm) }
    }

    /// What is added to the root of the grafted moment of a block of `elements` elements.
    pub fn moment_epsilon(&self, squared_norm: f64, elements: usize) -> f64 {
        if self.moment_relative == 0 {
            return self.moment_epsilon;
        }
        let mean = (squared_norm / elements as f64).sqrt() * self.normalization(squared_norm);
        self.moment_epsilon * mean
    }

    /// What a direction of length `own` is multiplied by: 1, or what gives it the grafted method's length. A
    /// direction that is not finite gets 0 and is left out.
    pub fn length(&self, own: f64, grafted: f64) -> f64 {
        if !own.is_finite() {
            0.0
        } else if self.grafts == 0 {
            1.0
        } else {
            quotient(grafted, own + self.tiny_norm)
        }
    }
}

/// x / norm; 0 where the norm is 0.
fn quotient(x: f64, norm: f64) -> f64 {
    if norm > 0.0 { x / norm } else { 0.0 }
}

/// 1 − βᵗ, or 1 where there is nothing to correct.
fn correction(enabled: i32, log_beta: f64, t: u64) -> f64 {
    if enabled == 0 { 1.0 } else { cadence::power_complement(log_beta, t) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Grafting;

    #[test]
    fn divisors_are_one_minus_beta_to_the_t() {
        let config = Config { beta1: 0.9, beta2: 1.0, ..Config::reference() };
        let rules = Rules::new(&config, -1.0, 1.0);
        assert!((rules.filter_divisor(3) - (1.0 - 0.9f64.powi(3))).abs() < 1e-15);
        assert_eq!(rules.statistic_scale(Clock { step: 3, weight: 1.0 }), 1.0);
        let plain = Rules::new(&Config { bias_correction: false, ..config.clone() }, -1.0, 1.0);
        assert_eq!(plain.filter_divisor(3), 1.0);
        let rmsprop = Rules::new(&Config { grafting: Grafting::Rmsprop, ..config }, -1.0, 1.0);
        assert_eq!(rmsprop.moment_divisor(3), 1.0);
    }

    #[test]
    fn ticks_carry_the_average_and_rescale_in_time() {
        for period in [1, 2, 3, 7] {
            let config = Config { beta2: 0.9, statistics_period: period, ..Config::reference() };
            let rules = Rules::new(&config, -1.0, 1.0);
            let (mut clock, mut stored, mut plain) = (Clock::START, 0.0, 0.0);
            for t in 1..=200 {
                let tick = rules.tick(clock);
                let added = t == 1 || t % period == 0;
                assert_eq!((tick.accumulates, tick.clock.step), (added, t as u64));
                stored = tick.decay * stored + tick.gain;
                plain = if added { 0.9 * plain + 0.1 } else { plain };
                clock = tick.clock;
                assert!(clock.weight >= LEAST_WEIGHT && (clock.weight * stored - plain).abs() < 1e-14);
                // The average of ones, corrected, is one.
                assert!((rules.statistic_scale(clock) * stored - 1.0).abs() < 1e-12, "{period}: step {t}");
            }
        }
    }
}
