//! Hyperparameters: every option with its default, its range and where it comes from.
//!
//! [`Config`] is plain data. [`options`] reads, writes and checks it by name; [`choices`] are the options that
//! take one of a few named values.

pub mod choices;
pub mod options;

pub use choices::*;
pub use options::OPTIONS;

use crate::error::{Error, Result};
use crate::preconditioner::damping::Damping;

/// Every hyperparameter. `Config::default()` is the preset `default`.
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
    /// The unit of `epsilon`, `epsilon_left`, `epsilon_right`, `epsilon_max` and `grafting_epsilon`.
    pub epsilon_mode: EpsilonMode,
    /// Precondition vectors and scalars too; else they take the grafted method's step (SOAP: plain Adam).
    pub precondition_1d: bool,
    /// Merging leaves the first dimension alone, so that a matrix stays a matrix.
    pub keep_matrix: bool,
    /// Which preconditioner gives the direction.
    pub preconditioner: PreconditionerName,
    /// Where SOAP keeps its statistics.
    pub soap_form: SoapForm,
    /// At which steps factors are checked.
    pub refresh_schedule: RefreshSchedule,
    /// SOAP: divide the direction of a block by its root mean square.
    pub normalize_grads: bool,
    /// SOAP: a side larger than this has no basis; 0 means no limit.
    pub max_precond_dim: i64,
    /// Steps between checks in the first `front_steps`.
    pub front_period: i64,
    /// How long the first part of the schedule `front_loaded` lasts; 0 means 4/(1 − β₂).
    pub front_steps: i64,
    /// ρ of the schedules `geometric` and `combined`.
    pub refresh_growth: f64,
    /// κ above which the schedule `kappa` refreshes.
    pub kappa_threshold: f64,
    /// How a basis of Shampoo is refreshed.
    pub refresh_method: RefreshMethod,
    /// Steps between corrections of the spectrum from one scheduled refresh to the next; 0 means none.
    pub correction_period: i64,
    /// Gradients enter the statistics at step 1 and at the multiples of this.
    pub statistics_period: i64,
    /// Keep inverse roots; else every step goes through the basis, which saves a square per side.
    pub keep_inverse_root: bool,
    /// With QR steps: where most recent checks asked for a refresh, refresh at every check, unseen.
    pub qr_track: bool,
    /// How the products of every step are rounded on a GPU.
    pub matmul_precision: MatmulPrecision,
    /// Steps from the check that asks for a new basis to the step that takes it; 0 means none.
    pub refresh_delay: i64,
    /// A dimension that is cut has pieces of about one size; else all but the last have `max_factor_dim`.
    pub even_blocks: bool,
    /// On the CPU, statistic and inverse root of a large side share one square.
    pub share_squares: bool,
}

/// The bound falls as 1/k with the k-th QR step: below this an eigendecomposition is cheaper.
const LEAST_TAU_OF_QR: f64 = 0.1;

/// A side that no parameter has: blocks are not cut.
const NO_CUT: i64 = 1 << 40;

impl Default for Config {
    /// The preset `default`: what needs no tuning when it takes the place of AdamW. Nothing in it depends on the
    /// scale of the loss; vectors and scalars take Adam's step.
    fn default() -> Self {
        Config {
            policy: Policy::Sandwich,
            check_period: 10,
            start_step: 1,
            beta1: 0.9,
            beta2: 0.99,
            epsilon: 3e-4,
            epsilon_max: 1e-2,
            tau: 0.5,
            grafting_beta2: 0.999,
            grafting_epsilon: 1e-8,
            weight_decay: 0.0,
            lr: 1e-3,
            negative_eigenvalues: NegativeEigenvalues::Clamp,
            epsilon_mode: EpsilonMode::Relative,
            refresh_schedule: RefreshSchedule::Combined,
            precondition_1d: false,
            keep_matrix: true,
            even_blocks: true,
            ..Config::reference()
        }
    }
}

impl Config {
    /// The preset `reference`: the paper's ViT setting (table of appendix J, and section 6) on the
    /// schedule of the authors' code.
    pub fn reference() -> Self {
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
            epsilon_mode: EpsilonMode::Absolute,
            precondition_1d: true,
            keep_matrix: false,
            preconditioner: PreconditionerName::Shampoo,
            soap_form: SoapForm::Exact,
            refresh_schedule: RefreshSchedule::Fixed,
            normalize_grads: false,
            max_precond_dim: 0,
            front_period: 5,
            front_steps: 0,
            refresh_growth: 1.5,
            kappa_threshold: 0.5,
            refresh_method: RefreshMethod::Evd,
            correction_period: 0,
            statistics_period: 1,
            keep_inverse_root: true,
            qr_track: false,
            matmul_precision: MatmulPrecision::F32,
            refresh_delay: 0,
            even_blocks: false,
            share_squares: true,
        }
    }

    /// The preset called `name`: `default`, `reference`, `paper` (Algorithms 1–3 as printed: no bias correction,
    /// no filter, no grafting, no decay, no merging) or `soap` (SOAP with its authors' options, the statistics in
    /// the basis, and a front-loaded schedule).
    pub fn preset(name: &str) -> Result<Config> {
        match name {
            "default" => Ok(Config::default()),
            "reference" => Ok(Config::reference()),
            "paper" => Ok(Config {
                cadence: Cadence::Paper,
                bias_correction: false,
                beta1: 0.0,
                grafting: Grafting::None,
                weight_decay: 0.0,
                merge_dims: false,
                negative_eigenvalues: NegativeEigenvalues::Clamp,
                ..Config::reference()
            }),
            "soap" => Ok(Config {
                preconditioner: PreconditionerName::Soap,
                soap_form: SoapForm::InBasis,
                policy: Policy::Stale,
                cadence: Cadence::Paper,
                refresh_schedule: RefreshSchedule::FrontLoaded,
                check_period: 15,
                beta2: 0.95,
                grafting_beta2: 0.95,
                grafting_epsilon: 1e-8,
                precondition_1d: false,
                max_precond_dim: 10_000,
                max_factor_dim: NO_CUT,
                merge_dims: false,
                weight_decay: 0.01,
                lr: 3e-3,
                ..Config::reference()
            }),
            other => Err(Error::invalid(format!(
                "preset '{other}' is unknown; expected default, reference, paper or soap"
            ))),
        }
    }

    /// Sets option `key` from its text form.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        options::find(key)?.write(self, value)
    }

    /// The text form of option `key`.
    pub fn get(&self, key: &str) -> Result<String> {
        options::find(key)?.value(self)
    }

    /// This configuration with one option changed, as a live optimizer may take it over: the option is one that
    /// does not shape the state, and the whole is valid.
    pub fn changed(&self, key: &str, value: &str) -> Result<Config> {
        let option = options::find(key)?;
        let mut config = self.clone();
        option.write(&mut config, value)?;
        option.check_change(self, &config)?;
        // Where the first check follows from the schedule it stays: it may be past, and its bases in use.
        let moves_the_first = ["check_period", "refresh_schedule", "front_period"].contains(&key);
        if moves_the_first && self.start_step == 0 && self.cadence == Cadence::Reference {
            config.start_step = self.first_check() as i64;
        }
        config.validate()?;
        Ok(config)
    }

    /// First check on the `reference` cadence.
    pub fn first_check(&self) -> u64 {
        let scheduled = match self.refresh_schedule {
            RefreshSchedule::Fixed | RefreshSchedule::Kappa => self.check_period,
            RefreshSchedule::FrontLoaded if self.front_length() >= self.front_period as u64 => {
                self.front_period
            }
            RefreshSchedule::FrontLoaded => self.check_period,
            RefreshSchedule::Geometric | RefreshSchedule::Combined => 1,
        };
        (if self.start_step > 0 { self.start_step } else { scheduled }) as u64
    }

    /// How many steps the first part of the schedule `front_loaded` lasts.
    pub fn front_length(&self) -> u64 {
        if self.front_steps > 0 {
            return self.front_steps as u64;
        }
        // Four windows of the statistics; a plain sum has none, and is refused.
        (4.0 / (1.0 - self.beta2)).round() as u64
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

    /// ε₀ of axis `axis` of a block of order `order`, in its unit.
    pub fn base_damping(&self, order: usize, axis: usize) -> Damping {
        Damping::new(self, self.base_epsilon(order, axis))
    }

    /// ε_max, in its unit.
    pub fn most_damping(&self) -> Damping {
        Damping::new(self, self.epsilon_max)
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
        if self.refresh_schedule == RefreshSchedule::FrontLoaded && self.front_steps == 0 && self.beta2 >= 1.0
        {
            return Err(Error::invalid(
                "front_steps = 0 means 4/(1 - beta2), but beta2 = 1; expected front_steps >= 1",
            ));
        }
        match self.preconditioner {
            PreconditionerName::Shampoo => self.refuse_options_of_soap()?,
            PreconditionerName::Soap => self.validate_soap()?,
        }
        let corrects = matches!(self.policy, Policy::Stale | Policy::Sandwich | Policy::DiagonalResidual);
        if self.correction_period > 0 && !corrects {
            return Err(Error::invalid(format!(
                "correction_period = {} with policy = {}, which keeps the spectrum of its last refresh; expected policy = stale, sandwich or diagonal_residual, or correction_period = 0",
                self.correction_period,
                self.policy.name()
            )));
        }
        self.validate_qr()?;
        self.validate_delay()
    }

    /// Whether bases are refreshed by QR steps.
    pub fn refreshes_by_qr(&self) -> bool {
        match self.refresh_method {
            RefreshMethod::Evd => false,
            RefreshMethod::Qr => true,
            // On a CPU an eigendecomposition is not slower.
            RefreshMethod::Auto => {
                let bounded = self.policy == Policy::Sandwich && self.tau >= LEAST_TAU_OF_QR;
                let shampoo = self.preconditioner == PreconditionerName::Shampoo;
                self.device.kind != Device::CPU_KIND && bounded && shampoo
            }
        }
    }

    /// What a refresh by QR steps needs: a proven stop that it can reach.
    fn validate_qr(&self) -> Result<()> {
        if self.refresh_method != RefreshMethod::Qr {
            return Ok(());
        }
        if self.policy != Policy::Sandwich {
            return Err(Error::invalid(format!(
                "refresh_method = qr with policy = {}, which has no bound that would say when to stop; expected policy = sandwich, or refresh_method = evd",
                self.policy.name()
            )));
        }
        if self.tau < LEAST_TAU_OF_QR {
            return Err(Error::invalid(format!(
                "refresh_method = qr with tau = {}: so small a bound takes many steps; expected tau >= {LEAST_TAU_OF_QR}, or refresh_method = evd",
                self.tau
            )));
        }
        Ok(())
    }

    /// A delayed refresh is an eigendecomposition of Shampoo.
    fn validate_delay(&self) -> Result<()> {
        let delay = self.refresh_delay;
        if delay == 0 {
            return Ok(());
        }
        if self.preconditioner != PreconditionerName::Shampoo {
            return Err(Error::invalid(format!(
                "refresh_delay = {delay} with preconditioner = soap, whose moments turn with the basis; expected preconditioner = shampoo, or refresh_delay = 0"
            )));
        }
        if self.refreshes_by_qr() {
            return Err(Error::invalid(format!(
                "refresh_delay = {delay} with refreshes by QR steps, which begin at the stale basis; expected refresh_method = evd, or refresh_delay = 0"
            )));
        }
        Ok(())
    }

    /// What only SOAP does.
    fn refuse_options_of_soap(&self) -> Result<()> {
        if !self.precondition_1d && self.grafting == Grafting::None {
            return Err(Error::invalid(
                "precondition_1d = false needs a grafting, which vectors then take; expected grafting = sgd, adagrad, rmsprop or adam, or precondition_1d = true",
            ));
        }
        let set = [
            ("soap_form = in_basis", self.soap_form == SoapForm::InBasis),
            ("refresh_schedule = kappa", self.refresh_schedule == RefreshSchedule::Kappa),
            ("normalize_grads = true", self.normalize_grads),
            ("max_precond_dim > 0", self.max_precond_dim > 0),
        ];
        match set.iter().find(|(_, set)| *set) {
            None => Ok(()),
            Some((what, _)) => Err(Error::invalid(format!(
                "{what} belongs to SOAP, but preconditioner = shampoo; expected preconditioner = soap, or the option's default"
            ))),
        }
    }

    /// SOAP is Adam in a basis that is made at the first step and refreshed on a schedule: what does not fit.
    fn validate_soap(&self) -> Result<()> {
        let fits = [
            (
                self.policy == Policy::Stale,
                "policy = stale: refresh_schedule says when its basis is refreshed",
            ),
            (self.cadence == Cadence::Paper, "cadence = paper: its basis is made at the first step"),
            (self.grafting == Grafting::Adam, "grafting = adam: it is Adam in a basis"),
            (!self.normalized_grafting, "normalized_grafting = false"),
            (self.momentum == 0.0, "momentum = 0: its momentum is beta1"),
            (!self.nadam, "nadam = false"),
            (self.decoupled_weight_decay, "decoupled_weight_decay = true"),
            (self.epsilon_mode == EpsilonMode::Absolute, "epsilon_mode = absolute: its epsilon is Adam's"),
            (self.correction_period == 0, "correction_period = 0: it keeps no spectrum"),
            (
                self.refresh_method != RefreshMethod::Qr,
                "refresh_method = evd: its own refreshes are by QR already",
            ),
            (self.keep_inverse_root, "keep_inverse_root = true: it has none anyway"),
        ];
        if let Some((_, expected)) = fits.iter().find(|(fits, _)| !fits) {
            return Err(Error::invalid(format!(
                "preconditioner = soap: expected {expected}; the preset soap sets all of its options"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_reads_back_what_it_wrote() {
        let mut config = Config::reference();
        for option in OPTIONS {
            let text = config.get(option.key).unwrap();
            config.set(option.key, &text).unwrap();
        }
        assert_eq!(config, Config::reference());
    }

    #[test]
    fn presets_are_valid() {
        for name in ["default", "reference", "paper", "soap"] {
            Config::preset(name).unwrap().validate().unwrap();
        }
        assert!(Config::preset("best").unwrap_err().message.contains("default, reference, paper or soap"));
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
            ("statistics_period", "0", "[1, 2147483647]"),
            ("grafting", "muon", "adagrad"),
            ("nesterov", "maybe", "true or false"),
            ("device", "tpu", "cuda:N"),
        ];
        for (key, value, expected) in cases {
            let mut config = Config::reference();
            let message = config.set(key, value).unwrap_err().message;
            assert!(
                message.contains(key) && message.contains(value) && message.contains(expected),
                "{message}"
            );
            assert_eq!(config, Config::reference(), "a refused value changed the configuration");
        }
        let message = Config::reference().set("taus", "1").unwrap_err().message;
        assert!(message.contains("'taus'") && message.contains("residual_threshold"), "{message}");
    }

    #[test]
    fn a_live_change_keeps_what_shapes_the_state() {
        let config = Config::reference();
        assert_eq!(config.changed("lr", "0.5").unwrap().lr, 0.5);
        for (key, value) in [("lr", "1e-3"), ("tau", "0.5"), ("nonfinite", "skip"), ("beta1", "0.5")] {
            assert!(config.changed(key, value).is_ok(), "{key}");
        }
        let fixed = [
            ("policy", "stale"),
            ("max_factor_dim", "8"),
            ("device", "cuda:0"),
            ("statistic_dtype", "f64"),
            ("beta1", "0"),
            ("beta2", "1"),
            ("momentum", "0.9"),
            ("start_step", "3"),
            ("statistics_period", "2"),
            ("root", "4"),
        ];
        for (key, value) in fixed {
            let error = config.changed(key, value).unwrap_err();
            assert!(error.kind == crate::error::Kind::Unsupported && error.message.contains(key), "{error}");
        }
        // What is there already may be said again.
        assert_eq!(config.changed("policy", "foam").unwrap(), config);
        assert!(config.changed("epsilon_max", "1e-12").unwrap_err().message.contains("epsilon_max"));
    }

    #[test]
    fn a_live_check_period_leaves_the_first_check_where_it_was() {
        let config = Config::reference().changed("check_period", "7").unwrap();
        assert_eq!((config.check_period, config.first_check()), (7, 20));
    }

    #[test]
    fn soap_refuses_what_does_not_fit_it_and_shampoo_what_is_soaps() {
        let refused = |preset: &str, key: &str, value: &str, expected: &str| {
            let mut config = Config::preset(preset).unwrap();
            config.set(key, value).unwrap();
            let message = config.validate().unwrap_err().message;
            assert!(message.contains(expected), "{message}");
        };
        for (key, value) in [
            ("policy", "foam"),
            ("cadence", "reference"),
            ("grafting", "rmsprop"),
            ("momentum", "0.9"),
            ("nadam", "true"),
            ("normalized_grafting", "true"),
            ("decoupled_weight_decay", "false"),
            ("epsilon_mode", "relative"),
            ("correction_period", "5"),
            ("refresh_method", "qr"),
            ("keep_inverse_root", "false"),
        ] {
            refused("soap", key, value, &format!("expected {key} = "));
        }
        refused("reference", "preconditioner", "soap", "the preset soap");
        for (key, value) in [
            ("soap_form", "in_basis"),
            ("refresh_schedule", "kappa"),
            ("normalize_grads", "true"),
            ("max_precond_dim", "64"),
        ] {
            refused("reference", key, value, "expected preconditioner = soap");
        }
        let sum = Config { beta2: 1.0, ..Config::preset("soap").unwrap() };
        assert!(sum.validate().unwrap_err().message.contains("front_steps"));
    }

    #[test]
    fn corrections_need_a_policy_that_takes_them() {
        for (policy, valid) in
            [("stale", true), ("sandwich", true), ("foam", false), ("foam_certified", false)]
        {
            let mut config = Config { correction_period: 5, ..Config::reference() };
            config.set("policy", policy).unwrap();
            let answer = config.validate();
            assert_eq!(answer.is_ok(), valid, "{policy}");
            let named =
                |error: Error| error.message.contains("correction_period") && error.message.contains(policy);
            assert!(answer.err().is_none_or(named));
        }
    }

    #[test]
    fn refreshes_by_qr_need_a_bound_that_they_can_reach() {
        let qr = Config { refresh_method: RefreshMethod::Qr, ..Config::default() };
        qr.validate().unwrap();
        for (key, value, expected) in [
            ("policy", "foam", "policy = sandwich"),
            ("policy", "stale", "policy = sandwich"),
            ("tau", "0.09", "tau >= 0.1"),
        ] {
            let mut config = qr.clone();
            config.set(key, value).unwrap();
            let message = config.validate().unwrap_err().message;
            assert!(message.contains("refresh_method = qr") && message.contains(expected), "{message}");
        }
        assert!(qr.changed("tau", "0.05").unwrap_err().message.contains("tau"));
    }

    #[test]
    fn the_automatic_refresh_is_by_qr_on_a_gpu_where_a_bound_ends_it() {
        let auto = Config { refresh_method: RefreshMethod::Auto, ..Config::default() };
        let by_qr = |options: &[(&str, &str)]| {
            let mut config = auto.clone();
            options.iter().for_each(|(key, value)| config.set(key, value).unwrap());
            config.validate().unwrap();
            config.refreshes_by_qr()
        };
        let gpu = ("device", "cuda:0");
        assert!(by_qr(&[gpu]) && !by_qr(&[]));
        assert!(!by_qr(&[gpu, ("tau", "0.05")]) && !by_qr(&[gpu, ("policy", "stale")]));
        for preset in ["default", "reference", "paper", "soap"] {
            let mut config = Config::preset(preset).unwrap();
            config.set("device", "cuda:0").unwrap();
            assert!(!config.refreshes_by_qr(), "{preset}");
            config.refresh_method = RefreshMethod::Auto;
            config.validate().unwrap();
            assert_eq!(config.refreshes_by_qr(), preset == "default");
        }
    }

    #[test]
    fn epsilon_max_must_reach_every_base_damping() {
        let mut config = Config { epsilon_max: 1e-10, ..Config::reference() };
        assert!(config.validate().unwrap_err().message.contains("epsilon_max"));
        config.policy = Policy::Stale;
        config.validate().unwrap();
        config = Config { epsilon_right: 1e-6, ..Config::reference() };
        assert!(config.validate().unwrap_err().message.contains("epsilon_right"));
    }
}
