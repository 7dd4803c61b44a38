//! The one description of the options: the string interface, the validation and the error messages are all
//! made from the table [`OPTIONS`].

use super::choices::*;
use super::{Config, Device};
use crate::error::{Error, Result};

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
    whole!(max_factor_dim, 1..=i64::MAX),
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

pub(super) fn find(key: &str) -> Result<&'static OptionSpec> {
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

    pub(super) fn read(&self, config: &Config) -> String {
        let mut text = String::new();
        // A String takes everything.
        let _ = self.print(config, &mut text);
        text
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
