//! The one description of the options: the string interface, the validation and the error messages are all
//! made from the table [`OPTIONS`].

use super::choices::*;
use super::{Config, Device};
use crate::error::{Error, Kind, Result};
use crate::memory::{Text, no_memory};

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
    const GROWTH: Range = Range { low: 1.01, low_open: false, high: 1000.0, high_open: false };
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

/// Whether an option of a live optimizer may change.
#[derive(Clone, Copy)]
enum Change {
    /// At any time: no state depends on it.
    Live,
    /// As long as this stays what it is, for the reason given.
    While(fn(&Config) -> bool, &'static str),
    /// Never, for the reason given.
    Fixed(&'static str),
}
use Change::{Fixed, Live, While};

const BLOCKS: Change = Fixed("it cuts the parameters into blocks");
const BUFFERS: Change = Fixed("it decides which buffers the state has");
const FIRST_BASIS: Change = Fixed("it decides when the first basis is made");
const MADE_WITH: Change = Fixed("the bases, roots or moments in use were made with it");

/// One option: its key, how to reach it, and whether it may change while an optimizer lives.
pub struct OptionSpec {
    /// The option's name, the same in the C struct, the strings and the documents.
    pub key: &'static str,
    access: Access,
    change: Change,
}

macro_rules! real {
    ($field:ident, $range:expr, $change:expr) => {
        OptionSpec {
            key: stringify!($field),
            access: Access::Real(|c| c.$field, |c, v| c.$field = v, $range),
            change: $change,
        }
    };
}
macro_rules! whole {
    ($field:ident, $range:expr, $change:expr) => {
        OptionSpec {
            key: stringify!($field),
            access: Access::Whole(|c| c.$field, |c, v| c.$field = v, $range),
            change: $change,
        }
    };
}
macro_rules! flag {
    ($field:ident, $change:expr) => {
        OptionSpec {
            key: stringify!($field),
            access: Access::Flag(|c| c.$field, |c, v| c.$field = v),
            change: $change,
        }
    };
}
macro_rules! named {
    ($field:ident, $type:ident, $change:expr) => {
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
            change: $change,
        }
    };
}

/// The largest whole number that a double holds exactly: no run has more steps.
const MOST: i64 = 1 << 53;

/// Every option, in the order of the documents.
pub const OPTIONS: &[OptionSpec] = &[
    named!(policy, Policy, BUFFERS),
    named!(cadence, Cadence, FIRST_BASIS),
    whole!(check_period, 1..=MOST, Live),
    whole!(start_step, 0..=MOST, FIRST_BASIS),
    flag!(bias_correction, MADE_WITH),
    real!(root, Range::NONNEGATIVE, MADE_WITH),
    real!(exponent_multiplier, Range::POSITIVE, MADE_WITH),
    real!(beta1, Range::BELOW_ONE, While(|c| c.beta1 > 0.0, "0 and more than 0 have different buffers")),
    real!(beta2, Range::UNIT, While(|c| c.beta2 >= 1.0, "1 means a plain sum, anything else an average")),
    real!(epsilon, Range::POSITIVE, Live),
    real!(epsilon_left, Range::NONNEGATIVE, Live),
    real!(epsilon_right, Range::NONNEGATIVE, Live),
    real!(epsilon_max, Range::POSITIVE, Live),
    real!(tau, Range::POSITIVE, Live),
    real!(residual_threshold, Range::NONNEGATIVE, Live),
    whole!(max_factor_dim, 1..=i64::MAX, BLOCKS),
    flag!(merge_dims, BLOCKS),
    named!(grafting, Grafting, BUFFERS),
    real!(grafting_beta2, Range::BELOW_ONE, Live),
    real!(grafting_epsilon, Range::NONNEGATIVE, Live),
    flag!(normalized_grafting, MADE_WITH),
    real!(
        momentum,
        Range::BELOW_ONE,
        While(|c| c.momentum > 0.0, "0 and more than 0 have different buffers")
    ),
    flag!(nesterov, Live),
    flag!(ema_momentum, Live),
    flag!(nadam, Live),
    real!(weight_decay, Range::NONNEGATIVE, Live),
    flag!(decoupled_weight_decay, Live),
    real!(lr, Range::NONNEGATIVE, Live),
    named!(statistic_dtype, StatisticDtype, Fixed("it is the type of the state")),
    named!(negative_eigenvalues, NegativeEigenvalues, Live),
    flag!(noise_floor, Live),
    named!(nonfinite, Nonfinite, Live),
    whole!(num_threads, 0..=1024, Fixed("threads and workspace are made for it")),
    OptionSpec { key: "device", access: Access::Device, change: Fixed("the state lies there") },
    named!(inject_fault, InjectFault, Live),
    whole!(inject_fault_step, 1..=MOST, Live),
    named!(epsilon_mode, EpsilonMode, MADE_WITH),
    flag!(precondition_1d, BUFFERS),
    flag!(keep_matrix, BLOCKS),
    named!(preconditioner, PreconditionerName, BUFFERS),
    named!(soap_form, SoapForm, BUFFERS),
    named!(refresh_schedule, RefreshSchedule, Live),
    flag!(normalize_grads, Fixed("the device was made for it")),
    whole!(max_precond_dim, 0..=i64::MAX, BUFFERS),
    whole!(front_period, 1..=MOST, Live),
    whole!(front_steps, 0..=MOST, Live),
    real!(refresh_growth, Range::GROWTH, Live),
    real!(kappa_threshold, Range::NONNEGATIVE, Live),
    named!(refresh_method, RefreshMethod, Live),
    whole!(
        correction_period,
        0..=MOST,
        While(|c| c.correction_period > 0, "0 and more than 0 have different buffers")
    ),
    whole!(
        statistics_period,
        1..=i32::MAX as i64,
        Fixed("the weight of the statistics in use is counted by it")
    ),
    flag!(keep_inverse_root, BUFFERS),
    flag!(qr_track, Live),
    named!(matmul_precision, MatmulPrecision, Fixed("the device was made for it")),
    whole!(
        refresh_delay,
        0..=MOST,
        While(|c| c.refresh_delay > 0, "0 and more than 0 have different buffers")
    ),
    flag!(even_blocks, BLOCKS),
    flag!(share_squares, BUFFERS),
];

pub(super) fn find(key: &str) -> Result<&'static OptionSpec> {
    OPTIONS.iter().find(|o| o.key == key).ok_or_else(|| {
        let known = crate::memory::joined(OPTIONS.iter().map(|o| o.key), ", ");
        // The list comes first, so that a long key cannot push it out of a fixed buffer.
        Error::invalid(format!("unknown option; known options: {known}; got '{key}'"))
    })
}

impl OptionSpec {
    /// Whether the option may change while an optimizer lives.
    pub fn is_live(&self) -> bool {
        !matches!(self.change, Fixed(_))
    }

    /// Refuses a change from one configuration to another that the state of a live optimizer does not follow.
    pub(super) fn check_change(&self, from: &Config, to: &Config) -> Result<()> {
        let (same, reason) = match self.change {
            Live => return Ok(()),
            While(side, reason) => (side(from) == side(to), reason),
            Fixed(reason) => (self.read(from) == self.read(to), reason),
        };
        if same {
            return Ok(());
        }
        let (key, old, new) = (self.key, self.read(from), self.read(to));
        Err(Error::new(
            Kind::Unsupported,
            format!(
                "option '{key}' = '{new}' of a live optimizer, which has {old}: {reason}; create a new optimizer"
            ),
        ))
    }

    fn refuse(&self, value: &str, expected: &str) -> Error {
        Error::invalid(format!("option '{}' = '{value}': expected {expected}", self.key))
    }

    pub(super) fn write(&self, config: &mut Config, value: &str) -> Result<()> {
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

    /// The text form of the option's value, for messages: as much of it as memory allows.
    fn read(&self, config: &Config) -> String {
        let mut text = Text::default();
        let _ = self.print(config, &mut text);
        text.0
    }

    /// The same as a whole.
    pub(super) fn value(&self, config: &Config) -> Result<String> {
        let mut text = Text::default();
        self.print(config, &mut text)
            .map_err(|_| no_memory("an option's value", text.0.len() as u128 + 1))?;
        Ok(text.0)
    }

    /// Writes the text form of the option's value.
    pub fn print(&self, config: &Config, out: &mut dyn std::fmt::Write) -> std::fmt::Result {
        match &self.access {
            // `{:?}` prints the shortest text that reads back as the same number.
            Access::Real(get, ..) => write!(out, "{:?}", get(config)),
            Access::Whole(get, ..) => write!(out, "{}", get(config)),
            Access::Flag(get, _) => write!(out, "{}", get(config)),
            Access::Named { get, .. } => out.write_str(get(config)),
            Access::Device => match config.device {
                Device { kind: 1, .. } => out.write_str("cpu"),
                Device { kind: 2, id } => write!(out, "cuda:{id}"),
                Device { kind, id } => write!(out, "device({kind}):{id}"),
            },
        }
    }

    pub(super) fn check(&self, config: &Config) -> Result<()> {
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
