//! The options that take one of a few named values.

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
    /// The spectrum is corrected at every check; a refresh when the sandwich bound of the gap passes τ.
    Sandwich = 7,
}

/// The unit of the dampings.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpsilonMode {
    /// That of a squared gradient, as in the paper.
    Absolute = 0,
    /// The factor's largest eigenvalue; for the grafted method's ε the gradient's root mean square.
    Relative = 1,
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

/// Which preconditioner gives the direction.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreconditionerName {
    /// Inverse roots of the statistics times the filtered gradient.
    Shampoo = 0,
    /// Adam in the eigenbasis of the statistics.
    Soap = 1,
}

/// Where SOAP keeps its statistics; both are equal in exact arithmetic.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoapForm {
    /// In the parameter's own axes, as the authors' code does.
    Exact = 0,
    /// In the basis, where the projected gradient is already: a check costs O(n²).
    InBasis = 1,
}

/// At which steps factors are checked (policy `stale`, or with a `correction_period`: refreshed).
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefreshSchedule {
    /// Every `check_period` steps.
    Fixed = 0,
    /// Every `front_period` steps in the first `front_steps`, then every `check_period`.
    FrontLoaded = 1,
    /// At t = 1, then at t ← ⌈`refresh_growth`·t⌉.
    Geometric = 2,
    /// Every `check_period` steps; SOAP's basis is refreshed where κ is above `kappa_threshold`.
    Kappa = 3,
    /// Every `check_period` steps, and at the times of `Geometric`, when bases are refreshed whatever is found.
    Combined = 4,
}

/// How a basis of Shampoo is refreshed.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefreshMethod {
    /// By an eigendecomposition.
    Evd = 0,
    /// By steps Q ← qr(A·Q) until the sandwich bound is at most τ; an eigendecomposition only where they do not suffice.
    Qr = 1,
    /// `qr` on a GPU where a bound says when to stop, else `evd`.
    Auto = 2,
}

/// How the products of every step are rounded on a GPU.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatmulPrecision {
    /// As the numbers are.
    F32 = 0,
    /// Operands in single precision are rounded to ten bits, sums are not.
    Tf32 = 1,
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
    /// DLPack's number of CPUs.
    pub const CPU_KIND: i32 = 1;
    /// DLPack's number of CUDA devices.
    pub const CUDA_KIND: i32 = 2;
    /// The CPU.
    pub const CPU: Device = Device { kind: Device::CPU_KIND, id: 0 };

    /// The error for a kind that is neither.
    pub fn unknown(self) -> crate::error::Error {
        let message = format!("device_type = {}: expected 1 (cpu) or 2 (cuda)", self.kind);
        crate::error::Error::new(crate::error::Kind::Unsupported, message)
    }
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
        crate::memory::joined(Self::VALUES.iter().map(|v| v.0), ", ")
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
    "foam_certified" => FoamCertified, "grafting_only" => GraftingOnly, "sandwich" => Sandwich,
});
choice!(EpsilonMode { "absolute" => Absolute, "relative" => Relative });
choice!(Cadence { "reference" => Reference, "paper" => Paper });
choice!(Grafting {
    "none" => None, "sgd" => Sgd, "adagrad" => Adagrad, "rmsprop" => Rmsprop, "adam" => Adam,
});
choice!(StatisticDtype { "auto" => Auto, "f32" => F32, "f64" => F64 });
choice!(PreconditionerName { "shampoo" => Shampoo, "soap" => Soap });
choice!(SoapForm { "exact" => Exact, "in_basis" => InBasis });
choice!(RefreshSchedule {
    "fixed" => Fixed, "front_loaded" => FrontLoaded, "geometric" => Geometric, "kappa" => Kappa,
    "combined" => Combined,
});
choice!(RefreshMethod { "evd" => Evd, "qr" => Qr, "auto" => Auto });
choice!(MatmulPrecision { "f32" => F32, "tf32" => Tf32 });
choice!(Nonfinite { "error" => Error, "skip" => Skip });
choice!(NegativeEigenvalues { "shift" => Shift, "clamp" => Clamp });
choice!(InjectFault {
    "none" => None, "panic" => Panic, "evd_chosen" => EvdChosen,
    "evd_nonorthogonal" => EvdNonorthogonal, "evd_double" => EvdDouble, "evd_all" => EvdAll,
});
