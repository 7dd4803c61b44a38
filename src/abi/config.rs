//! The configuration struct, its presets and its string interface.

use super::boundary::{self, AbiStruct, field_ends};
use super::handle::read_allocator;
use super::status::{foam_error, foam_status};
use crate::config::{Choice, Config, Device};
use crate::device::gpu::cuda::probe;
use crate::error::{Error, Result};
use crate::memory::{joined, whole_joined};
use crate::preconditioner::cadence;
use libc::{c_char, c_void};

/// An eigendecomposition at every check (Algorithm 2).
pub const FOAM_POLICY_STALE: i32 = 0;
/// The proxy steers epsilon; refresh when it would pass `epsilon_max` (Algorithm 3).
pub const FOAM_POLICY_FOAM: i32 = 1;
/// The proxy decides about the refresh, epsilon stays at its base.
pub const FOAM_POLICY_FOAM_FIXED_EPSILON: i32 = 2;
/// Epsilon is steered and capped; no eigendecomposition after the first.
pub const FOAM_POLICY_FOAM_NO_REFRESH: i32 = 3;
/// Refresh when the off-diagonal residual passes `residual_threshold`.
pub const FOAM_POLICY_DIAGONAL_RESIDUAL: i32 = 4;
/// The smallest epsilon whose proven gap bound is at most `tau`; refresh when there is none.
pub const FOAM_POLICY_FOAM_CERTIFIED: i32 = 5;
/// No preconditioner: the grafted method alone.
pub const FOAM_POLICY_GRAFTING_ONLY: i32 = 6;
/// The spectrum is corrected at every check; refresh when the proven sandwich bound of the gap passes `tau`.
pub const FOAM_POLICY_SANDWICH: i32 = 7;

/// `epsilon`, `epsilon_max` and `grafting_epsilon` have the units of the paper.
pub const FOAM_EPSILON_ABSOLUTE: i32 = 0;
/// `epsilon` and `epsilon_max` are shares of a factor's largest eigenvalue, `grafting_epsilon` of the gradient's
/// root mean square: nothing depends on the scale of the loss.
pub const FOAM_EPSILON_RELATIVE: i32 = 1;

/// Checks at `start_step`, then at multiples of `check_period` (the authors' code).
pub const FOAM_CADENCE_REFERENCE: i32 = 0;
/// Checks at t = 1, then whenever (t - 1) mod `check_period` = 0 (the paper).
pub const FOAM_CADENCE_PAPER: i32 = 1;

/// The preconditioned direction as it is.
pub const FOAM_GRAFTING_NONE: i32 = 0;
/// Step length of gradient descent.
pub const FOAM_GRAFTING_SGD: i32 = 1;
/// Step length of AdaGrad.
pub const FOAM_GRAFTING_ADAGRAD: i32 = 2;
/// Step length of RMSprop.
pub const FOAM_GRAFTING_RMSPROP: i32 = 3;
/// Step length of Adam.
pub const FOAM_GRAFTING_ADAM: i32 = 4;

/// f64 statistics for f64 parameters, f32 for all others.
pub const FOAM_STATISTIC_AUTO: i32 = 0;
/// Single-precision statistics and eigendecompositions.
pub const FOAM_STATISTIC_F32: i32 = 1;
/// Double-precision statistics and eigendecompositions.
pub const FOAM_STATISTIC_F64: i32 = 2;

/// A gradient that is not finite fails the step, which changes nothing.
pub const FOAM_NONFINITE_ERROR: i32 = 0;
/// A gradient that is not finite skips the whole step, which succeeds and is counted.
pub const FOAM_NONFINITE_SKIP: i32 = 1;

/// Rounding's negative eigenvalues: the spectrum is shifted up until the smallest is zero.
pub const FOAM_NEGATIVE_SHIFT: i32 = 0;
/// Rounding's negative eigenvalues become zero.
pub const FOAM_NEGATIVE_CLAMP: i32 = 1;

/// Inverse roots of the statistics times the filtered gradient.
pub const FOAM_PRECONDITIONER_SHAMPOO: i32 = 0;
/// SOAP: Adam in the eigenbasis of the statistics.
pub const FOAM_PRECONDITIONER_SOAP: i32 = 1;

/// SOAP's statistics in the parameter's own axes, as in the authors' code.
pub const FOAM_SOAP_EXACT: i32 = 0;
/// SOAP's statistics in the basis: equal in exact arithmetic, and cheaper.
pub const FOAM_SOAP_IN_BASIS: i32 = 1;

/// Checks every `check_period` steps.
pub const FOAM_SCHEDULE_FIXED: i32 = 0;
/// Checks every `front_period` steps in the first `front_steps`, then every `check_period`.
pub const FOAM_SCHEDULE_FRONT_LOADED: i32 = 1;
/// Checks at t = 1, then at t <- ceil(refresh_growth * t).
pub const FOAM_SCHEDULE_GEOMETRIC: i32 = 2;
/// Checks every `check_period` steps; SOAP's basis is refreshed where kappa is above `kappa_threshold`.
pub const FOAM_SCHEDULE_KAPPA: i32 = 3;
/// Checks every `check_period` steps, and at the times of `FOAM_SCHEDULE_GEOMETRIC`, when bases are refreshed whatever
/// is found.
pub const FOAM_SCHEDULE_COMBINED: i32 = 4;

/// A basis is refreshed by an eigendecomposition.
pub const FOAM_REFRESH_EVD: i32 = 0;
/// A basis is refreshed by steps Q <- qr(A Q) until the sandwich bound is at most `tau`, at most three of them; by an
/// eigendecomposition only where they do not suffice (policy sandwich, tau >= 0.1).
pub const FOAM_REFRESH_QR: i32 = 1;
/// `FOAM_REFRESH_QR` on a GPU where the policy has a bound that says when to stop, else `FOAM_REFRESH_EVD`.
pub const FOAM_REFRESH_AUTO: i32 = 2;

/// Products of every step in the precision of their numbers.
pub const FOAM_MATMUL_F32: i32 = 0;
/// On a CUDA device operands in single precision are rounded to ten bits (TF32), sums are not.
pub const FOAM_MATMUL_TF32: i32 = 1;

/// No fault.
pub const FOAM_FAULT_NONE: i32 = 0;
/// A panic in the middle of the step.
pub const FOAM_FAULT_PANIC: i32 = 1;
/// The eigendecomposition in the chosen precision fails.
pub const FOAM_FAULT_EVD_CHOSEN: i32 = 2;
/// The eigendecomposition in the chosen precision returns a basis that is not orthogonal.
pub const FOAM_FAULT_EVD_NONORTHOGONAL: i32 = 3;
/// The double-precision retry fails as well.
pub const FOAM_FAULT_EVD_DOUBLE: i32 = 4;
/// Every eigendecomposition fails: the stale basis has to serve.
pub const FOAM_FAULT_EVD_ALL: i32 = 5;

/// Log levels of `foam_log_fn`.
pub const FOAM_LOG_WARNING: i32 = 1;
/// Something that a user may ignore.
pub const FOAM_LOG_INFO: i32 = 2;

/// Receives log lines; called only on a thread that is inside a call on the handle.
pub type foam_log_fn = Option<unsafe extern "C" fn(user: *mut c_void, level: i32, message: *const c_char)>;

/// Gives `size` bytes aligned to `alignment`, or NULL. Called only inside calls on the handle.
pub type foam_allocate_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, size: usize, alignment: usize) -> *mut c_void>;

/// Takes back what `foam_allocate_fn` gave, with the same size and alignment.
pub type foam_deallocate_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, data: *mut c_void, size: usize, alignment: usize)>;

/// Every hyperparameter. Fill it with `foam_config_init`, then set fields or call
/// `foam_config_set`; `foam_create` validates it as a whole. Switches hold 0 or 1.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct foam_config {
    /// Bytes of this struct, set by the caller.
    pub struct_size: u32,
    /// Must be 0.
    pub flags: u32,
    /// `FOAM_POLICY_*`: what decides about a factor at a check step.
    pub policy: i32,
    /// `FOAM_CADENCE_*`: when factors are checked.
    pub cadence: i32,
    /// `FOAM_GRAFTING_*`: whose step length the direction takes.
    pub grafting: i32,
    /// `FOAM_STATISTIC_*`: precision of statistics, basis and spectrum.
    pub statistic_dtype: i32,
    /// `FOAM_NONFINITE_*`: what a gradient that is not finite does.
    pub nonfinite: i32,
    /// `FOAM_NEGATIVE_*`: what becomes of negative eigenvalues.
    pub negative_eigenvalues: i32,
    /// `FOAM_DEVICE_CPU` or `FOAM_DEVICE_CUDA`.
    pub device_type: i32,
    /// Ordinal of the device.
    pub device_id: i32,
    /// Divide statistics by 1 - beta2^t and the filtered gradient by 1 - beta1^t.
    pub bias_correction: i32,
    /// Merge neighbouring dimensions while their product is at most `max_factor_dim`.
    pub merge_dims: i32,
    /// Graft from the gradient divided by its norm.
    pub normalized_grafting: i32,
    /// Nesterov momentum.
    pub nesterov: i32,
    /// Scale the momentum's input by 1 - momentum.
    pub ema_momentum: i32,
    /// Look one filter step ahead (NAdam).
    pub nadam: i32,
    /// Decay the parameter itself (1) or add the decay to the gradient (0).
    pub decoupled_weight_decay: i32,
    /// Measure the proxy right after each refresh and report it as the factor's `noise_floor`.
    pub noise_floor: i32,
    /// `FOAM_FAULT_*`: a fault made on purpose, for testing how your code handles one.
    pub inject_fault: i32,
    /// Must be 0.
    pub reserved: i32,
    /// Steps between checks (the paper's f).
    pub check_period: i64,
    /// First check of the reference cadence; 0 means `check_period`.
    pub start_step: i64,
    /// Largest side of a block; larger dimensions are split.
    pub max_factor_dim: i64,
    /// Threads that share the work, the caller's included; 0 means one for each core. Handles with the same number share one pool.
    pub num_threads: i64,
    /// The first step at which `inject_fault` happens.
    pub inject_fault_step: i64,
    /// p of the inverse root; 0 means twice the block's order.
    pub root: f64,
    /// The exponent is -exponent_multiplier / root.
    pub exponent_multiplier: f64,
    /// Decay of the gradient filter, in [0, 1).
    pub beta1: f64,
    /// Decay of the statistics, in [0, 1]; 1 means a plain sum.
    pub beta2: f64,
    /// Base damping (the paper's epsilon_0), added to every eigenvalue; in the unit that `epsilon_mode` says, as
    /// all dampings.
    pub epsilon: f64,
    /// Base damping of axis 0 of blocks of order 2 and more; 0 means `epsilon`.
    pub epsilon_left: f64,
    /// Base damping of the other axes of such blocks; 0 means `epsilon`.
    pub epsilon_right: f64,
    /// Largest damping; a refresh follows when the proxy asks for more.
    pub epsilon_max: f64,
    /// Tolerated proxy of the relative operator gap.
    pub tau: f64,
    /// Threshold of the policy diagonal_residual.
    pub residual_threshold: f64,
    /// Decay of the grafted method's second moment, in [0, 1).
    pub grafting_beta2: f64,
    /// Added to the root of the grafted second moment.
    pub grafting_epsilon: f64,
    /// Momentum on the update, in [0, 1).
    pub momentum: f64,
    /// Weight decay.
    pub weight_decay: f64,
    /// Learning rate of a step whose arguments give none.
    pub lr: f64,
    /// Log callback, or NULL. The library never prints; only an internal panic, should there be one, is
    /// also reported on stderr by the language runtime.
    pub log: foam_log_fn,
    /// First argument of `log`.
    pub log_user: *mut c_void,
    /// Allocator of the state and the workspace, or NULL for the library's own. With a CUDA device it must give
    /// memory of that device.
    pub allocate: foam_allocate_fn,
    /// Its counterpart; both or neither must be given.
    pub deallocate: foam_deallocate_fn,
    /// First argument of both.
    pub allocator_user: *mut c_void,
    /// `FOAM_EPSILON_*`: the unit of the dampings.
    pub epsilon_mode: i32,
    /// Precondition vectors and scalars too; else they take the grafted method's step (SOAP: plain Adam).
    pub precondition_1d: i32,
    /// Merging leaves the first dimension alone, so that a matrix stays a matrix.
    pub keep_matrix: i32,
    /// `FOAM_PRECONDITIONER_*`: which preconditioner gives the direction.
    pub preconditioner: i32,
    /// `FOAM_SOAP_*`: where SOAP keeps its statistics.
    pub soap_form: i32,
    /// `FOAM_SCHEDULE_*`: at which steps factors are checked (policy stale and SOAP: refreshed).
    pub refresh_schedule: i32,
    /// SOAP: divide the direction of a block by its root mean square.
    pub normalize_grads: i32,
    /// `FOAM_REFRESH_*`: how a basis of Shampoo is refreshed.
    pub refresh_method: i32,
    /// SOAP: a side larger than this has no basis; 0 means no limit.
    pub max_precond_dim: i64,
    /// Steps between checks in the first part of the schedule front_loaded.
    pub front_period: i64,
    /// Steps of that part; 0 means 4 / (1 - beta2).
    pub front_steps: i64,
    /// Factor from a time to the next in the schedules geometric and combined, in [1.01, 1000].
    pub refresh_growth: f64,
    /// Kappa above which the schedule kappa refreshes.
    pub kappa_threshold: f64,
    /// If > 0, `refresh_schedule` says when bases are refreshed whatever the policy finds, and every so many steps in
    /// between the spectrum is corrected; policies stale, sandwich (which may refresh then, too) and diagonal_residual.
    pub correction_period: i64,
    /// Gradients enter the statistics at a block's step 1 and at the multiples of this; 1 means at every step.
    pub statistics_period: i64,
    /// Keep an inverse root for every axis (1), or apply basis and spectrum in every step (0): twice the products of a
    /// plain step, and a square less of state for every axis.
    pub keep_inverse_root: i32,
    /// With QR steps: a factor most of whose recent checks asked for a refresh is refreshed at every check, unseen.
    pub qr_track: i32,
    /// `FOAM_MATMUL_*`: how the products of every step are rounded on a CUDA device. No effect on the CPU.
    pub matmul_precision: i32,
    /// Cut a dimension larger than `max_factor_dim` into pieces of about one size (1), or into pieces of `max_factor_dim`
    /// and a rest (0). The number of pieces is the same.
    pub even_blocks: i32,
    /// If > 0, a basis that a check asks for is decomposed in the background, from the statistic as it is then, and taken
    /// so many steps later; until then the stale one serves. Shampoo with eigendecompositions.
    pub refresh_delay: i64,
    /// On the CPU, keep the statistic and the inverse root of a side of 128 or more in one square (1), or in a square each
    /// (0). The numbers are the same, and so are checkpoints; a plain step takes a few percent longer.
    pub share_squares: i32,
    /// 0.
    pub reserved_2: i32,
}

// SAFETY: plain data, first field `struct_size`, every bit pattern valid.
unsafe impl AbiStruct for foam_config {
    const NAME: &'static str = "foam_config";
    const REQUIRED: usize = std::mem::offset_of!(foam_config, policy);
    const ENDS: &'static [usize] = field_ends!(foam_config {
        struct_size,
        flags,
        policy,
        cadence,
        grafting,
        statistic_dtype,
        nonfinite,
        negative_eigenvalues,
        device_type,
        device_id,
        bias_correction,
        merge_dims,
        normalized_grafting,
        nesterov,
        ema_momentum,
        nadam,
        decoupled_weight_decay,
        noise_floor,
        inject_fault,
        reserved,
        check_period,
        start_step,
        max_factor_dim,
        num_threads,
        inject_fault_step,
        root,
        exponent_multiplier,
        beta1,
        beta2,
        epsilon,
        epsilon_left,
        epsilon_right,
        epsilon_max,
        tau,
        residual_threshold,
        grafting_beta2,
        grafting_epsilon,
        momentum,
        weight_decay,
        lr,
        log,
        log_user,
        allocate,
        deallocate,
        allocator_user,
        epsilon_mode,
        precondition_1d,
        keep_matrix,
        preconditioner,
        soap_form,
        refresh_schedule,
        normalize_grads,
        refresh_method,
        max_precond_dim,
        front_period,
        front_steps,
        refresh_growth,
        kappa_threshold,
        correction_period,
        statistics_period,
        keep_inverse_root,
        qr_track,
        matmul_precision,
        even_blocks,
        refresh_delay,
        share_squares,
        reserved_2
    });

    fn defaults() -> Self {
        from_config(&Config::reference())
    }
}

/// The C form of a configuration, without callbacks.
fn from_config(config: &Config) -> foam_config {
    foam_config {
        struct_size: std::mem::size_of::<foam_config>() as u32,
        flags: 0,
        policy: config.policy.number(),
        cadence: config.cadence.number(),
        grafting: config.grafting.number(),
        statistic_dtype: config.statistic_dtype.number(),
        nonfinite: config.nonfinite.number(),
        negative_eigenvalues: config.negative_eigenvalues.number(),
        device_type: config.device.kind,
        device_id: config.device.id,
        bias_correction: config.bias_correction.into(),
        merge_dims: config.merge_dims.into(),
        normalized_grafting: config.normalized_grafting.into(),
        nesterov: config.nesterov.into(),
        ema_momentum: config.ema_momentum.into(),
        nadam: config.nadam.into(),
        decoupled_weight_decay: config.decoupled_weight_decay.into(),
        noise_floor: config.noise_floor.into(),
        inject_fault: config.inject_fault.number(),
        reserved: 0,
        check_period: config.check_period,
        start_step: config.start_step,
        max_factor_dim: config.max_factor_dim,
        num_threads: config.num_threads,
        inject_fault_step: config.inject_fault_step,
        root: config.root,
        exponent_multiplier: config.exponent_multiplier,
        beta1: config.beta1,
        beta2: config.beta2,
        epsilon: config.epsilon,
        epsilon_left: config.epsilon_left,
        epsilon_right: config.epsilon_right,
        epsilon_max: config.epsilon_max,
        tau: config.tau,
        residual_threshold: config.residual_threshold,
        grafting_beta2: config.grafting_beta2,
        grafting_epsilon: config.grafting_epsilon,
        momentum: config.momentum,
        weight_decay: config.weight_decay,
        lr: config.lr,
        log: None,
        log_user: std::ptr::null_mut(),
        allocate: None,
        deallocate: None,
        allocator_user: std::ptr::null_mut(),
        epsilon_mode: config.epsilon_mode.number(),
        precondition_1d: config.precondition_1d.into(),
        keep_matrix: config.keep_matrix.into(),
        preconditioner: config.preconditioner.number(),
        soap_form: config.soap_form.number(),
        refresh_schedule: config.refresh_schedule.number(),
        normalize_grads: config.normalize_grads.into(),
        refresh_method: config.refresh_method.number(),
        max_precond_dim: config.max_precond_dim,
        front_period: config.front_period,
        front_steps: config.front_steps,
        refresh_growth: config.refresh_growth,
        kappa_threshold: config.kappa_threshold,
        correction_period: config.correction_period,
        statistics_period: config.statistics_period,
        keep_inverse_root: config.keep_inverse_root.into(),
        qr_track: config.qr_track.into(),
        matmul_precision: config.matmul_precision.number(),
        refresh_delay: config.refresh_delay,
        even_blocks: config.even_blocks.into(),
        share_squares: config.share_squares.into(),
        reserved_2: 0,
    }
}

fn choice<T: Choice>(key: &str, number: i32) -> Result<T> {
    T::from_number(number).ok_or_else(|| {
        let known = joined(T::VALUES.iter().map(|v| format!("{} = {}", v.1.number(), v.0)), ", ");
        Error::invalid(format!("config.{key} = {number}: expected one of {known}"))
    })
}

fn switch(key: &str, number: i32) -> Result<bool> {
    match number {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Error::invalid(format!("config.{key} = {number}: expected 0 or 1"))),
    }
}

/// The configuration that the struct describes; ranges are not checked here.
pub(super) fn to_config(raw: &foam_config) -> Result<Config> {
    if raw.flags != 0 || raw.reserved != 0 || raw.reserved_2 != 0 {
        return Err(Error::invalid("config.flags, config.reserved and config.reserved_2 must be 0"));
    }
    Ok(Config {
        policy: choice("policy", raw.policy)?,
        cadence: choice("cadence", raw.cadence)?,
        check_period: raw.check_period,
        start_step: raw.start_step,
        bias_correction: switch("bias_correction", raw.bias_correction)?,
        root: raw.root,
        exponent_multiplier: raw.exponent_multiplier,
        beta1: raw.beta1,
        beta2: raw.beta2,
        epsilon: raw.epsilon,
        epsilon_left: raw.epsilon_left,
        epsilon_right: raw.epsilon_right,
        epsilon_max: raw.epsilon_max,
        tau: raw.tau,
        residual_threshold: raw.residual_threshold,
        max_factor_dim: raw.max_factor_dim,
        merge_dims: switch("merge_dims", raw.merge_dims)?,
        grafting: choice("grafting", raw.grafting)?,
        grafting_beta2: raw.grafting_beta2,
        grafting_epsilon: raw.grafting_epsilon,
        normalized_grafting: switch("normalized_grafting", raw.normalized_grafting)?,
        momentum: raw.momentum,
        nesterov: switch("nesterov", raw.nesterov)?,
        ema_momentum: switch("ema_momentum", raw.ema_momentum)?,
        nadam: switch("nadam", raw.nadam)?,
        weight_decay: raw.weight_decay,
        decoupled_weight_decay: switch("decoupled_weight_decay", raw.decoupled_weight_decay)?,
        lr: raw.lr,
        statistic_dtype: choice("statistic_dtype", raw.statistic_dtype)?,
        negative_eigenvalues: choice("negative_eigenvalues", raw.negative_eigenvalues)?,
        noise_floor: switch("noise_floor", raw.noise_floor)?,
        nonfinite: choice("nonfinite", raw.nonfinite)?,
        num_threads: raw.num_threads,
        device: Device { kind: raw.device_type, id: raw.device_id },
        inject_fault: choice("inject_fault", raw.inject_fault)?,
        inject_fault_step: raw.inject_fault_step,
        epsilon_mode: choice("epsilon_mode", raw.epsilon_mode)?,
        precondition_1d: switch("precondition_1d", raw.precondition_1d)?,
        keep_matrix: switch("keep_matrix", raw.keep_matrix)?,
        preconditioner: choice("preconditioner", raw.preconditioner)?,
        soap_form: choice("soap_form", raw.soap_form)?,
        refresh_schedule: choice("refresh_schedule", raw.refresh_schedule)?,
        normalize_grads: switch("normalize_grads", raw.normalize_grads)?,
        max_precond_dim: raw.max_precond_dim,
        front_period: raw.front_period,
        front_steps: raw.front_steps,
        refresh_growth: raw.refresh_growth,
        kappa_threshold: raw.kappa_threshold,
        correction_period: raw.correction_period,
        statistics_period: raw.statistics_period,
        keep_inverse_root: switch("keep_inverse_root", raw.keep_inverse_root)?,
        refresh_method: choice("refresh_method", raw.refresh_method)?,
        qr_track: switch("qr_track", raw.qr_track)?,
        matmul_precision: choice("matmul_precision", raw.matmul_precision)?,
        refresh_delay: raw.refresh_delay,
        even_blocks: switch("even_blocks", raw.even_blocks)?,
        share_squares: switch("share_squares", raw.share_squares)?,
    })
}

/// Fills `config` with a preset: NULL or "default" (works without tuning: relative damping, the policy sandwich),
/// "reference" (the paper's ViT setting on the schedule of the authors' code), "paper" (Algorithms 1-3 as
/// printed) or "soap" (SOAP). `struct_size` is `sizeof(foam_config)` as the caller was compiled. For a program
/// compiled before the preset "default" existed, NULL means "reference", as it did then.
///
/// # Safety
/// `config` points to `struct_size` writable bytes; `preset` is NULL or a C string; `error` is NULL
/// or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_config_init(
    config: *mut foam_config,
    struct_size: u32,
    preset: *const c_char,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        boundary::call(error, || {
            if config.is_null() {
                return Err(Error::invalid("config is NULL; expected a foam_config to fill"));
            }
            let knows_default =
                struct_size as usize >= std::mem::offset_of!(foam_config, kappa_threshold) + 8;
            let name = match (preset.is_null(), knows_default) {
                (true, true) => "default",
                (true, false) => "reference",
                (false, _) => boundary::text(preset, "preset")?,
            };
            if matches!(name, "default" | "soap") && !knows_default {
                return Err(Error::invalid(format!(
                    "preset '{name}' needs a struct_size of {}, and this program was compiled with {struct_size}; expected reference or paper, or a program compiled with a newer foam.h",
                    std::mem::size_of::<foam_config>()
                )));
            }
            boundary::write_struct(config, struct_size, from_config(&Config::preset(name)?))
        })
    }
}

/// Sets one option by name, for example `foam_config_set(&config, "tau", "0.75", &error)`.
/// Keys are the names of the struct's fields, and "device" ("cpu", "cuda:0"). An unknown key is an
/// error that lists the known ones; a refused value leaves the configuration as it was.
///
/// # Safety
/// `config` was filled by `foam_config_init`; `key` and `value` are C strings; `error` is NULL or a
/// record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_config_set(
    config: *mut foam_config,
    key: *const c_char,
    value: *const c_char,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        boundary::call(error, || {
            let raw = boundary::read_struct(config, "config")?;
            let (key, value) = (boundary::text(key, "key")?, boundary::text(value, "value")?);
            let mut parsed = to_config(&raw)?;
            parsed.set(key, value)?;
            let changed = foam_config {
                log: raw.log,
                log_user: raw.log_user,
                allocate: raw.allocate,
                deallocate: raw.deallocate,
                allocator_user: raw.allocator_user,
                ..from_config(&parsed)
            };
            boundary::write_struct(config, boundary::size_of_struct(config), changed)
        })
    }
}

/// Writes the text form of option `key`, NUL-terminated, into `value` of `capacity` bytes. Give
/// `key` = NULL to get all keys, separated by spaces.
///
/// # Safety
/// `config` was filled by `foam_config_init`; `key` is NULL or a C string; `value` points to
/// `capacity` writable bytes; `error` is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_config_get(
    config: *const foam_config,
    key: *const c_char,
    value: *mut c_char,
    capacity: usize,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        boundary::call(error, || {
            let parsed = to_config(&boundary::read_struct(config, "config")?)?;
            let text = if key.is_null() {
                whole_joined(crate::config::OPTIONS.iter().map(|o| o.key), " ", "the keys")?
            } else {
                parsed.get(boundary::text(key, "key")?)?
            };
            boundary::put_text(&text, value, capacity)
        })
    }
}

/// Says whether `foam_create` would accept the configuration: every value, every relation between values, the
/// callbacks, and whether its device can be used (a CUDA device is looked for, as `foam_cuda_probe` does). Nothing
/// is created. What depends on the parameters is checked by `foam_create` and `foam_plan_blocks`.
///
/// # Safety
/// `config` is a struct whose `struct_size` is set; `error` is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_config_validate(
    config: *const foam_config,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        boundary::call(error, || {
            let raw = boundary::read_struct(config, "config")?;
            let config = to_config(&raw)?;
            read_allocator(&raw)?;
            config.validate()?;
            match config.device.kind {
                Device::CPU_KIND => Ok(()),
                Device::CUDA_KIND => probe::require().map(|_| ()),
                _ => Err(config.device.unknown()),
            }
        })
    }
}

/// Says whether the factors of a parameter are checked at its step `step` (counted from 1, for each parameter
/// by itself: a step in which it has no gradient does not count), or may take over a basis that an earlier check asked
/// for (`refresh_delay`). `*due` receives 1 or 0.
///
/// # Safety
/// `config` is a struct whose `struct_size` is set; `due` is writable; `error` is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_config_check_due(
    config: *const foam_config,
    step: i64,
    due: *mut i32,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        boundary::call(error, || {
            let config = to_config(&boundary::read_struct(config, "config")?)?;
            config.validate()?;
            if due.is_null() {
                return Err(Error::invalid("due is NULL; expected a place for the answer"));
            }
            if step < 1 {
                return Err(Error::invalid(format!("step = {step}: expected at least 1, the first step")));
            }
            *due = i32::from(cadence::calls_check(&config, step as u64));
            Ok(())
        })
    }
}
