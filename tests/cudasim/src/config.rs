//! The knobs, from the environment at first use and from [`cudasim_set`](crate::control::cudasim_set) later.

use crate::window::Uninit;

/// All knobs. The environment variable of a key is `CUDASIM_` and the key in capitals.
#[derive(Clone, Debug)]
pub struct Config {
    /// `mode`: `eager`, or `deferred` to run queued work late and in a random legal order.
    pub deferred: bool,
    /// `seed` of that order, of the order of thread blocks, and of the errors of eigensolvers.
    pub seed: u64,
    /// `evd_noise`: errors of eigensolvers, in machine epsilons of the largest eigenvalue; 0 makes none.
    pub evd_noise: f64,
    /// `blocks`: `shuffled`, or `ordered` to run thread blocks and warps by their numbers.
    pub shuffled: bool,
    /// `reuse`: `0` never uses a handle or an address again, so that every use after its end is told.
    pub reuse: bool,
    /// `devices`: how many to report.
    pub devices: i32,
    /// `capability`: such as `8.0`.
    pub capability: (i32, i32),
    /// `driver`: the version to report, such as `12040`.
    pub driver: i32,
    /// `memory`: bytes on each device, with an optional suffix `K`, `M` or `G`.
    pub memory: u64,
    /// `races`: `0` turns the race detector off.
    pub races: bool,
    /// `uninit`: `ignore`, `count` or `refuse` reads of memory that nothing has written.
    pub uninit: Uninit,
    /// `quiet`: `1` prints no reasons.
    pub quiet: bool,
    /// `abort`: `1` aborts at the first violation.
    pub abort: bool,
    /// `report`: `1` prints counters, leaks and violations at exit.
    pub report: bool,
    /// `strict`: `1` makes the process exit with status 99 if there are violations or leaks.
    pub strict: bool,
    /// `budget`: instructions after which a kernel is taken for endless.
    pub budget: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            deferred: false,
            seed: 1,
            evd_noise: 8.0,
            shuffled: true,
            reuse: true,
            devices: 1,
            capability: (8, 0),
            driver: 12090,
            memory: 8 << 30,
            races: true,
            uninit: Uninit::Count,
            quiet: false,
            abort: false,
            report: false,
            strict: false,
            budget: 20_000_000_000,
        }
    }
}

/// The keys of [`Config::set`].
pub const KEYS: [&str; 16] = [
    "mode",
    "seed",
    "evd_noise",
    "blocks",
    "reuse",
    "devices",
    "capability",
    "driver",
    "memory",
    "races",
    "uninit",
    "quiet",
    "abort",
    "report",
    "strict",
    "budget",
];

impl Config {
    /// The defaults, changed by the environment.
    pub fn from_env() -> Config {
        let mut config = Config::default();
        for key in KEYS {
            let name = format!("CUDASIM_{}", key.to_uppercase());
            if let Ok(value) = std::env::var(&name)
                && !config.set(key, &value)
            {
                eprintln!("cudasim: {name}={value} is not understood");
            }
        }
        config
    }

    /// Sets one knob; false if the key or the value is not understood.
    pub fn set(&mut self, key: &str, value: &str) -> bool {
        fn into<T: std::str::FromStr>(target: &mut T, value: &str) -> bool {
            value.parse().map(|v| *target = v).is_ok()
        }
        fn flag(target: &mut bool, value: &str) -> bool {
            *target = value != "0";
            matches!(value, "0" | "1")
        }
        match key {
            "mode" => {
                self.deferred = value == "deferred";
                matches!(value, "eager" | "deferred")
            }
            "seed" => into(&mut self.seed, value),
            "blocks" => {
                self.shuffled = value == "shuffled";
                matches!(value, "shuffled" | "ordered")
            }
            "reuse" => flag(&mut self.reuse, value),
            "evd_noise" => into(&mut self.evd_noise, value) && self.evd_noise >= 0.0,
            "devices" => into(&mut self.devices, value),
            "capability" => match value.split_once('.') {
                Some((major, minor)) => {
                    into(&mut self.capability.0, major) && into(&mut self.capability.1, minor)
                }
                None => false,
            },
            "driver" => into(&mut self.driver, value),
            "memory" => {
                let (digits, shift) = match value.chars().last() {
                    Some('K') => (&value[..value.len() - 1], 10),
                    Some('M') => (&value[..value.len() - 1], 20),
                    Some('G') => (&value[..value.len() - 1], 30),
                    _ => (value, 0),
                };
                digits.parse::<u64>().map(|v| self.memory = v << shift).is_ok()
            }
            "races" => flag(&mut self.races, value),
            "uninit" => {
                self.uninit = match value {
                    "ignore" => Uninit::Ignore,
                    "count" => Uninit::Count,
                    "refuse" => Uninit::Refuse,
                    _ => return false,
                };
                true
            }
            "quiet" => flag(&mut self.quiet, value),
            "abort" => flag(&mut self.abort, value),
            "report" => flag(&mut self.report, value),
            "strict" => flag(&mut self.strict, value),
            "budget" => into(&mut self.budget, value),
            _ => false,
        }
    }
}
