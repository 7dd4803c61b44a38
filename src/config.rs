//! Hyperparameters: every option with its default, its range and where it comes from.
//!
//! [`Config`] is plain data. The table [`OPTIONS`] is the one description of the options: the string
//! interface, the validation and the error messages are all made from it.

use crate::error::{Error, Result};

/// What decides about a factor at a check step (the paper's 𝒰(·)).
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Algorithm 2: an eigendecomposition at every check.
    Stale = 0,
    /// Algorithm 3: the proxy steers ε; a refresh when ε would pass ε_max.
    Foam = 1,
    /// The proxy decides about the refresh, ε stays ε₀.
    FoamFixedEpsilon = 2,
    /// ε is steered and capped at ε_max; no eigendecomposition after the first.
    FoamNoRefresh = 3,
    /// Refresh when the off-diagonal residual passes a threshold (Eschenhagen et al.).
    DiagonalResidual = 4,
    /// The smallest ε whose proven gap bound is at most τ; a refresh when there is none.
    FoamCertified = 5,
    /// No preconditioner at all: the grafted method alone (Adam grafting is then AdamW).
    GraftingOnly = 6,
}

/// When factors are checked, counted on the parameter's own clock.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cadence {
    /// The authors' code: first at `start_step`, then at multiples of `check_period`.
    Reference = 0,
    /// The paper: at t = 1, then whenever (t − 1) mod `check_period` = 0.
    Paper = 1,
}

/// Whose step length the preconditioned direction takes.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grafting {
    /// None: the preconditioned direction as it is.
    None = 0,
    /// Gradient descent.
    Sgd = 1,
    /// AdaGrad.
    Adagrad = 2,
    /// RMSprop.
    Rmsprop = 3,
    /// Adam.
    Adam = 4,
}

/// Precision of statistics, basis and spectrum.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatisticDtype {
    /// f64 for f64 parameters, f32 for all others.
    Auto = 0,
    /// Single precision.
    F32 = 1,
    /// Double precision.
    F64 = 2,
}

/// What a step does with a gradient that is not finite.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nonfinite {
    /// The step fails and changes nothing.
    Error = 0,
    /// The step is skipped as a whole, counted, and succeeds.
    Skip = 1,
}

/// What becomes of eigenvalues that rounding made negative.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NegativeEigenvalues {
    /// The whole spectrum is shifted up so that the smallest is zero (the authors' code).
    Shift = 0,
    /// Each negative eigenvalue becomes zero.
    Clamp = 1,
}

/// A fault made on purpose, for testing how a caller handles one.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectFault {
    /// No fault.
    None = 0,
    /// A panic in the middle of the step.
    Panic = 1,
    /// The eigendecomposition in the chosen precision fails.
    EvdChosen = 2,
    /// It returns a basis that is not orthogonal.
    EvdNonorthogonal = 3,
    /// The double-precision retry fails as well.
    EvdDouble = 4,
    /// The other driver fails as well: the stale basis has to serve.
    EvdAll = 5,
}

/// Where the state lives and the work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// DLPack's device type: 1 CPU, 2 CUDA.
    pub kind: i32,
    /// Ordinal of the device.
    pub id: i32,
}

impl Device {
    /// The CPU.
    pub const CPU: Device = Device { kind: 1, id: 0 };
}

/// A closed set of named values.
pub trait Choice: Copy + PartialEq + Sized + 'static {
    /// Every value with its name in configuration strings.
    const VALUES: &'static [(&'static str, Self)];

    /// The value's number in the C ABI.
    fn number(self) -> i32;

    /// The value with that number.
    fn from_number(number: i32) -> Option<Self> {
        Self::VALUES.iter().map(|v| v.1).find(|v| v.number() == number)
    }

    /// The value's name.
    fn name(self) -> &'static str {
        Self::VALUES.iter().find(|v| v.1 == self).map_or("?", |v| v.0)
    }

    /// All names, for messages.
    fn names() -> String {
        Self::VALUES.iter().map(|v| v.0).collect::<Vec<_>>().join(", ")
    }
}

macro_rules! choice {
    ($type:ident { $($name:literal => $variant:ident),+ $(,)? }) => {
        impl Choice for $type {
            const VALUES: &'static [(&'static str, Self)] = &[$(($name, $type::$variant)),+];
            fn number(self) -> i32 {
                self as i32
            }
        }
    };
}

choice!(Policy {
    "stale" => Stale, "foam" => Foam, "foam_fixed_epsilon" => FoamFixedEpsilon,
    "foam_no_refresh" => FoamNoRefresh, "diagonal_residual" => DiagonalResidual,
    "foam_certified" => FoamCertified, "grafting_only" => GraftingOnly,
});
choice!(Cadence { "reference" => Reference, "paper" => Paper });
choice!(Grafting {
    "none" => None, "sgd" => Sgd, "adagrad" => Adagrad, "rmsprop" => Rmsprop, "adam" => Adam,
});
choice!(StatisticDtype { "auto" => Auto, "f32" => F32, "f64" => F64 });
choice!(Nonfinite { "error" => Error, "skip" => Skip });
choice!(NegativeEigenvalues { "shift" => Shift, "clamp" => Clamp });
choice!(InjectFault {
    "none" => None, "panic" => Panic, "evd_chosen" => EvdChosen,
    "evd_nonorthogonal" => EvdNonorthogonal, "evd_double" => EvdDouble, "evd_all" => EvdAll,
});

/// Every hyperparameter. `Config::default()` is the preset `reference`.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What decides about a factor at a check step.
    pub policy: Policy,
    /// When factors are checked.
    pub cadence: Cadence,
    /// f: steps between checks.
    pub check_period: i64,
    /// First check of the `reference` cadence; 0 means `check_period`.
    pub start_step: i64,
    /// Divide statistics by 1 − β₂ᵗ and the filtered gradient by 1 − β₁ᵗ.
    pub bias_correction: bool,
    /// p of the inverse root; 0 means twice the block's order.
    pub root: f64,
    /// The exponent is −exponent_multiplier / root.
    pub exponent_multiplier: f64,
    /// β₁ of the gradient filter.
    pub beta1: f64,
    /// β₂ of the statistics; 1 means a plain sum.
    pub beta2: f64,
    /// ε₀, the base damping.
    pub epsilon: f64,
    /// ε₀ of axis 0 of blocks of order ≥ 2; 0 means `epsilon`.
    pub epsilon_left: f64,
    /// ε₀ of the other axes of blocks of order ≥ 2; 0 means `epsilon`.
    pub epsilon_right: f64,
    /// ε_max, the largest damping before a refresh.
    pub epsilon_max: f64,
    /// τ, the tolerated proxy.
    pub tau: f64,
    /// Threshold of the policy `diagonal_residual`.
    pub residual_threshold: f64,
    /// Largest side of a block.
    pub max_factor_dim: i64,
    /// Merge neighbouring dimensions while their product is at most `max_factor_dim`.
    pub merge_dims: bool,
    /// Whose step length is taken.
    pub grafting: Grafting,
    /// β of the grafted method's second moment.
    pub grafting_beta2: f64,
    /// Added to the root of the grafted second moment.
    pub grafting_epsilon: f64,
    /// Graft from the normalised gradient.
    pub normalized_grafting: bool,
    /// μ of the momentum on the update.
    pub momentum: f64,
    /// Nesterov momentum.
    pub nesterov: bool,
    /// Scale the momentum's input by 1 − μ.
    pub ema_momentum: bool,
    /// Look one filter step ahead (NAdam).
    pub nadam: bool,
    /// Weight decay.
    pub weight_decay: f64,
    /// Decay the parameter, not the gradient.
    pub decoupled_weight_decay: bool,
    /// Learning rate of a step that gives none.
    pub lr: f64,
    /// Precision of statistics, basis and spectrum.
    pub statistic_dtype: StatisticDtype,
    /// What becomes of negative eigenvalues.
    pub negative_eigenvalues: NegativeEigenvalues,
    /// Measure the proxy right after each refresh.
    pub noise_floor: bool,
    /// What a step does with a gradient that is not finite.
    pub nonfinite: Nonfinite,
    /// Threads of the pool; 0 means one for each core.
    pub num_threads: i64,
    /// Where the state lives.
    pub device: Device,
    /// A fault made on purpose.
    pub inject_fault: InjectFault,
    /// The first step at which it happens.
    pub inject_fault_step: i64,
}

impl Default for Config {
    /// The preset `reference`: the paper's ViT setting (table of appendix J, and section 6) on the
    /// schedule of the authors' code.
    fn default() -> Self {
        Config {
            policy: Policy::Foam,
            cadence: Cadence::Reference,
            check_period: 20,
            start_step: 0,
            bias_correction: true,
            root: 2.0,
            exponent_multiplier: 1.0,
            beta1: 0.95,
            beta2: 0.995,
            epsilon: 1e-9,
            epsilon_left: 0.0,
            epsilon_right: 0.0,
            epsilon_max: 3e-7,
            tau: 0.75,
            residual_threshold: 0.1,
            max_factor_dim: 1024,
            merge_dims: true,
            grafting: Grafting::Adam,
            grafting_beta2: 0.995,
            grafting_epsilon: 1e-9,
            normalized_grafting: false,
            momentum: 0.0,
            nesterov: false,
            ema_momentum: true,
            nadam: false,
            weight_decay: 4.2e-4,
            decoupled_weight_decay: true,
            lr: 2e-3,
            statistic_dtype: StatisticDtype::Auto,
            negative_eigenvalues: NegativeEigenvalues::Shift,
            noise_floor: true,
            nonfinite: Nonfinite::Error,
            num_threads: 0,
            device: Device::CPU,
            inject_fault: InjectFault::None,
            inject_fault_step: 1,
        }
    }
}

impl Config {
    /// The preset called `name`: `reference` (the default) or `paper` (Algorithms 1–3 as printed:
    /// no bias correction, no filter, no grafting, no decay, no merging).
    pub fn preset(name: &str) -> Result<Config> {
        match name {
            "reference" => Ok(Config::default()),
            "paper" => Ok(Config {
                cadence: Cadence::Paper,
                bias_correction: false,
                beta1: 0.0,
                grafting: Grafting::None,
                weight_decay: 0.0,
                merge_dims: false,
                negative_eigenvalues: NegativeEigenvalues::Clamp,
                ..Config::default()
            }),
            other => Err(Error::invalid(format!("preset '{other}' is unknown; expected reference or paper"))),
        }
    }

    /// Sets option `key` from its text form.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        option(key)?.write(self, value)
    }

    /// The text form of option `key`.
    pub fn get(&self, key: &str) -> Result<String> {
        Ok(option(key)?.read(self))
    }

    /// First check on the `reference` cadence.
    pub fn first_check(&self) -> u64 {
        let start = if self.start_step > 0 { self.start_step } else { self.check_period };
        start as u64
    }

    /// ε₀ of axis `axis` of a block of order `order`.
    pub fn base_epsilon(&self, order: usize, axis: usize) -> f64 {
        let side = match (order, axis) {
            (0 | 1, _) => 0.0,
            (_, 0) => self.epsilon_left,
            _ => self.epsilon_right,
        };
        if side > 0.0 { side } else { self.epsilon }
    }

    /// Checks every range and every relation between options.
    pub fn validate(&self) -> Result<()> {
        for option in OPTIONS {
            option.check(self)?;
        }
        let largest = [0, 1].map(|axis| self.base_epsilon(2, axis)).into_iter().fold(self.epsilon, f64::max);
        let steered = matches!(self.policy, Policy::Foam | Policy::FoamNoRefresh | Policy::FoamCertified);
        if steered && self.epsilon_max < largest {
            return Err(Error::invalid(format!(
                "epsilon_max = {:e} is below the base damping {largest:e}; expected epsilon_max >= epsilon, epsilon_left and epsilon_right",
                self.epsilon_max
            )));
        }
        if self.policy == Policy::GraftingOnly && self.grafting == Grafting::None {
            return Err(Error::invalid(
                "policy = grafting_only needs a grafting; expected grafting = sgd, adagrad, rmsprop or adam",
            ));
        }
        Ok(())
    }
}

/// An interval of reals, open or closed at each end.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    low: f64,
    low_open: bool,
    high: f64,
    high_open: bool,
}

impl Range {
    const POSITIVE: Range = Range { low: 0.0, low_open: true, high: f64::INFINITY, high_open: true };
    const NONNEGATIVE: Range = Range { low_open: false, ..Range::POSITIVE };
    const UNIT: Range = Range { low: 0.0, low_open: false, high: 1.0, high_open: false };
    const BELOW_ONE: Range = Range { high_open: true, ..Range::UNIT };

    fn contains(&self, x: f64) -> bool {
        let above = if self.low_open { x > self.low } else { x >= self.low };
        let below = if self.high_open { x < self.high } else { x <= self.high };
        above && below
    }
}

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (open, close) = (if self.low_open { '(' } else { '[' }, if self.high_open { ')' } else { ']' });
        write!(f, "{open}{}, {}{close}", self.low, self.high)
    }
}

type Get<T> = fn(&Config) -> T;
type Set<T> = fn(&mut Config, T);

/// How an option is read, written and checked.
enum Access {
    Real(Get<f64>, Set<f64>, Range),
    Whole(Get<i64>, Set<i64>, std::ops::RangeInclusive<i64>),
    Flag(Get<bool>, Set<bool>),
    Named { get: fn(&Config) -> &'static str, set: fn(&mut Config, &str) -> bool, names: fn() -> String },
    Device,
}

/// One option: its key and how to reach it.
pub struct OptionSpec {
    /// The option's name, the same in the C struct, the strings and the documents.
    pub key: &'static str,
    access: Access,
}

macro_rules! real {
    ($field:ident, $range:expr) => {
        OptionSpec {
            key: stringify!($field),
            access: Access::Real(|c| c.$field, |c, v| c.$field = v, $range),
        }
    };
}
macro_rules! whole {
    ($field:ident, $range:expr) => {
        OptionSpec {
            key: stringify!($field),
            access: Access::Whole(|c| c.$field, |c, v| c.$field = v, $range),
        }
    };
}
macro_rules! flag {
    ($field:ident) => {
        OptionSpec { key: stringify!($field), access: Access::Flag(|c| c.$field, |c, v| c.$field = v) }
    };
}
macro_rules! named {
    ($field:ident, $type:ident) => {
        OptionSpec {
            key: stringify!($field),
            access: Access::Named {
                get: |c| c.$field.name(),
                set: |c, text| match $type::VALUES.iter().find(|v| v.0 == text) {
                    Some(v) => {
                        c.$field = v.1;
                        true
                    }
                    None => false,
                },
                names: $type::names,
            },
        }
    };
}

/// The largest whole number that a double holds exactly: no run has more steps.
const MOST: i64 = 1 << 53;

/// Every option, in the order of the documents.
pub const OPTIONS: &[OptionSpec] = &[
    named!(policy, Policy),
    named!(cadence, Cadence),
    whole!(check_period, 1..=MOST),
    whole!(start_step, 0..=MOST),
    flag!(bias_correction),
    real!(root, Range::NONNEGATIVE),
    real!(exponent_multiplier, Range::POSITIVE),
    real!(beta1, Range::BELOW_ONE),
    real!(beta2, Range::UNIT),
    real!(epsilon, Range::POSITIVE),
    real!(epsilon_left, Range::NONNEGATIVE),
    real!(epsilon_right, Range::NONNEGATIVE),
    real!(epsilon_max, Range::POSITIVE),
    real!(tau, Range::POSITIVE),
    real!(residual_threshold, Range::NONNEGATIVE),
    whole!(max_factor_dim, 1..=1 << 20),
    flag!(merge_dims),
    named!(grafting, Grafting),
    real!(grafting_beta2, Range::BELOW_ONE),
    real!(grafting_epsilon, Range::NONNEGATIVE),
    flag!(normalized_grafting),
    real!(momentum, Range::BELOW_ONE),
    flag!(nesterov),
    flag!(ema_momentum),
    flag!(nadam),
    real!(weight_decay, Range::NONNEGATIVE),
    flag!(decoupled_weight_decay),
    real!(lr, Range::NONNEGATIVE),
    named!(statistic_dtype, StatisticDtype),
    named!(negative_eigenvalues, NegativeEigenvalues),
    flag!(noise_floor),
    named!(nonfinite, Nonfinite),
    whole!(num_threads, 0..=1024),
    OptionSpec { key: "device", access: Access::Device },
    named!(inject_fault, InjectFault),
    whole!(inject_fault_step, 1..=MOST),
];

fn option(key: &str) -> Result<&'static OptionSpec> {
    OPTIONS.iter().find(|o| o.key == key).ok_or_else(|| {
        let known = OPTIONS.iter().map(|o| o.key).collect::<Vec<_>>().join(", ");
        // The list comes first, so that a long key cannot push it out of a fixed buffer.
        Error::invalid(format!("unknown option; known options: {known}; got '{key}'"))
    })
}

impl OptionSpec {
    fn refuse(&self, value: &str, expected: &str) -> Error {
        Error::invalid(format!("option '{}' = '{value}': expected {expected}", self.key))
    }

    fn write(&self, config: &mut Config, value: &str) -> Result<()> {
        let text = value.trim();
        match &self.access {
            Access::Real(_, set, range) => {
                let number: f64 =
                    text.parse().map_err(|_| self.refuse(value, &format!("a number in {range}")))?;
                if !range.contains(number) {
                    return Err(self.refuse(value, &format!("a number in {range}")));
                }
                set(config, number);
            }
            Access::Whole(_, set, range) => {
                let wanted = || self.refuse(value, &whole_in(range));
                let number: i64 = text.parse().map_err(|_| wanted())?;
                if !range.contains(&number) {
                    return Err(wanted());
                }
                set(config, number);
            }
            Access::Flag(_, set) => match text {
                "true" | "1" | "yes" | "on" => set(config, true),
                "false" | "0" | "no" | "off" => set(config, false),
                _ => return Err(self.refuse(value, "true or false")),
            },
            Access::Named { set, names, .. } => {
                if !set(config, text) {
                    return Err(self.refuse(value, &format!("one of {}", names())));
                }
            }
            Access::Device => {
                config.device = parse_device(text).ok_or_else(|| self.refuse(value, "cpu or cuda:N"))?
            }
        }
        Ok(())
    }

    fn read(&self, config: &Config) -> String {
        match &self.access {
            // `{:?}` prints the shortest text that reads back as the same number.
            Access::Real(get, ..) => format!("{:?}", get(config)),
            Access::Whole(get, ..) => get(config).to_string(),
            Access::Flag(get, _) => get(config).to_string(),
            Access::Named { get, .. } => get(config).to_string(),
            Access::Device => match config.device {
                Device { kind: 1, .. } => "cpu".to_string(),
                Device { kind: 2, id } => format!("cuda:{id}"),
                Device { kind, id } => format!("device({kind}):{id}"),
            },
        }
    }

    fn check(&self, config: &Config) -> Result<()> {
        match &self.access {
            Access::Real(get, _, range) if !range.contains(get(config)) => {
                Err(self.refuse(&self.read(config), &format!("a number in {range}")))
            }
            Access::Whole(get, _, range) if !range.contains(&get(config)) => {
                Err(self.refuse(&self.read(config), &whole_in(range)))
            }
            _ => Ok(()),
        }
    }
}

fn whole_in(range: &std::ops::RangeInclusive<i64>) -> String {
    format!("a whole number in [{}, {}]", range.start(), range.end())
}

fn parse_device(text: &str) -> Option<Device> {
    if text == "cpu" {
        return Some(Device::CPU);
    }
    let id = match text.strip_prefix("cuda")? {
        "" => 0,
        rest => rest.strip_prefix(':')?.parse().ok().filter(|id: &i32| *id >= 0)?,
    };
    Some(Device { kind: 2, id })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_reads_back_what_it_wrote() {
        let mut config = Config::default();
        for option in OPTIONS {
            let text = config.get(option.key).unwrap();
            config.set(option.key, &text).unwrap();
        }
        assert_eq!(config, Config::default());
    }

    #[test]
    fn presets_are_valid() {
        for name in ["reference", "paper"] {
            Config::preset(name).unwrap().validate().unwrap();
        }
        assert!(Config::preset("best").unwrap_err().message.contains("reference or paper"));
    }

    #[test]
    fn refusals_name_the_key_the_value_and_the_range() {
        let cases = [
            ("tau", "0", "(0, inf)"),
            ("tau", "nan", "(0, inf)"),
            ("beta2", "1.5", "[0, 1]"),
            ("beta1", "1", "[0, 1)"),
            ("check_period", "0", "[1, "),
            ("num_threads", "1000000", "[0, 1024]"),
            ("check_period", "2.5", "whole number"),
            ("grafting", "muon", "adagrad"),
            ("nesterov", "maybe", "true or false"),
            ("device", "tpu", "cuda:N"),
        ];
        for (key, value, expected) in cases {
            let mut config = Config::default();
            let message = config.set(key, value).unwrap_err().message;
            assert!(
                message.contains(key) && message.contains(value) && message.contains(expected),
                "{message}"
            );
            assert_eq!(config, Config::default(), "a refused value changed the configuration");
        }
        let message = Config::default().set("taus", "1").unwrap_err().message;
        assert!(message.contains("'taus'") && message.contains("residual_threshold"), "{message}");
    }

    #[test]
    fn epsilon_max_must_reach_every_base_damping() {
        let mut config = Config { epsilon_max: 1e-10, ..Config::default() };
        assert!(config.validate().unwrap_err().message.contains("epsilon_max"));
        config.policy = Policy::Stale;
        config.validate().unwrap();
        config = Config { epsilon_right: 1e-6, ..Config::default() };
        assert!(config.validate().unwrap_err().message.contains("epsilon_right"));
    }
}
