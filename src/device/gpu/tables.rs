//! What the host and the kernels share. This file is the source: `kernels/shared.cuh` is generated from it, and a
//! test compares the two (`FOAM_WRITE_SHARED=1 cargo test --lib shared_cuh` writes the file).

use crate::device::Rung;
use crate::engine::rules::{Clock, Rules};
use crate::preconditioner::FactorRecord;
use bytemuck::{Pod, Zeroable};

/// Threads of a thread block, at the most.
pub const THREADS: usize = 256;
/// Largest order of a block.
pub const MAX_ORDER: usize = 8;
/// Columns of a strip, the part of a matrix that one thread block passes over.
pub const STRIP: usize = 8;
/// Sums of a strip: two for each round of a certificate, and four otherwise.
pub const SUMS: usize = 2 * CERTIFY_ROUNDS;
/// Rounds in which a certificate bounds a spectral radius.
pub const CERTIFY_ROUNDS: usize = 3;
/// Sites that one launch carries.
pub const POSTED: usize = 64;
/// Entries that one launch carries between tensors and messages.
pub const CARRIED: usize = 64;
/// Words that one launch writes or compares.
pub const STAMPED: usize = 64;
/// No parameter.
pub const NONE: i32 = 0x7fff_ffff;
/// The rung of a delayed refresh whose time has not come.
pub const RUNG_NONE: i32 = 5;

/// Structs that host and kernels share: each field with its type here and its declaration there.
macro_rules! shared {
    ($($(#[$about:meta])* $name:ident { $($(#[$what:meta])* $field:ident: $type:ty => $c:literal,)+ })+) => {
        $(
            $(#[$about])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
            pub struct $name {
                $($(#[$what])* pub $field: $type,)+
            }
        )+

        /// Every struct with the declarations of its fields.
        #[cfg(test)]
        const STRUCTS: &[(&str, &[&str])] = &[$((stringify!($name), &[$($c),+])),+];
    };
}

shared! {
    /// The caller's memory of one block.
    Site {
        /// First element of the parameter's block.
        param: u64 => "u64 param",
        /// First element of the gradient's block.
        grad: u64 => "u64 grad",
        /// Multiplies the learning rate.
        lr_scale: f64 => "double lr_scale",
        /// Weight decay.
        decay: f64 => "double decay",
        /// Type of the gradient, by its code.
        grad_dtype: i32 => "int grad_dtype",
        /// Takes part in the step.
        active: i32 => "int active",
    }

    /// What the current step does with a block, worked out by the device from its clock.
    Order {
        /// The gradient enters the statistics times this.
        gain_root: f64 => "double gain_root",
        /// The stored statistics are multiplied by it.
        decay: f64 => "double decay",
        /// The filtered gradient is divided by it.
        filter: f64 => "double filter",
        /// The moment is divided by it.
        moment: f64 => "double moment",
        /// Multiplies the gradient that enters the moment.
        normalize: f64 => "double normalize",
        /// Added to the root of the moment.
        moment_epsilon: f64 => "double moment_epsilon",
        /// Multiplies the direction.
        length: f64 => "double length",
        /// Takes part.
        active: i32 => "int active",
        /// SOAP: whether it works in the basis, see `kernels/soap.cuh`.
        turn: i32 => "int turn",
    }

    /// Whether joint steps are taken. All blocks of a handle share one; a call on a stack has none.
    Gate {
        /// The first parameter of this step whose gradient is not finite, or NONE.
        bad: i32 => "int bad",
        /// This step is taken.
        open: i32 => "int open",
        /// No step is taken until the host has reported the bad one.
        closed: i32 => "int closed",
        /// The first bad parameter since the host last read, or NONE.
        param: i32 => "int param",
        /// Steps asked for.
        calls: u64 => "u64 calls",
        /// Steps not taken since the host last read.
        refused: u64 => "u64 refused",
        /// The call in which `param` was bad.
        call: u64 => "u64 call",
        /// Directions left out since the host last read.
        left_out: u64 => "u64 left_out",
    }

    /// A batch of equal blocks.
    Stack {
        /// Blocks.
        count: i32 => "int count",
        /// Axes of a block.
        order: i32 => "int order",
        /// Chunks of a block.
        chunks: i32 => "int chunks",
        /// Factors of a block: its order, or 0.
        factors: i32 => "int factors",
        /// Elements of a block.
        elements: u32 => "u32 elements",
        /// Elements of a chunk.
        chunk: u32 => "u32 chunk",
        /// Type of the parameters, by its code.
        param_dtype: i32 => "int param_dtype",
        /// A block is one run in its parameter.
        contiguous: i32 => "int contiguous",
        /// Type of the updates, by its code.
        update_dtype: i32 => "int update_dtype",
        /// The work is in double precision.
        wide: i32 => "int wide",
        /// Sizes of the axes.
        dims: [u32; MAX_ORDER] => "u32 dims[MAX_ORDER]",
        /// Elements between neighbours along each axis of the parameter.
        strides: [u64; MAX_ORDER] => "u64 strides[MAX_ORDER]",
        /// The statistics of each axis.
        statistics: [u64; MAX_ORDER] => "u64 statistics[MAX_ORDER]",
        /// The inverse roots of each axis; SOAP, and where none is kept: the bases. 0 where the axis has none.
        roots: [u64; MAX_ORDER] => "u64 roots[MAX_ORDER]",
        /// The eigenvalues of the inverse roots of each axis where none is kept; else 0.
        eigenroots: [u64; MAX_ORDER] => "u64 eigenroots[MAX_ORDER]",
        /// The site of each block.
        sites: u64 => "Site *sites",
        /// The parameter of each block.
        params: u64 => "const int *params",
        /// The clock of each block.
        clocks: u64 => "Clock *clocks",
        /// The order of each block.
        orders: u64 => "Order *orders",
        /// Two partial sums per chunk.
        partials: u64 => "double *partials",
        /// ‖G‖² of each block.
        squares: u64 => "double *squares",
        /// Info of each block.
        info: u64 => "int *info",
        /// m, or 0.
        filter: u64 => "void *filter",
        /// v, or 0.
        moment: u64 => "void *moment",
        /// M, or 0.
        momentum: u64 => "void *momentum",
        /// The workspace.
        work: u64 => "void *work",
        /// Where the update goes, or 0 for the parameter itself.
        update: u64 => "void *update",
    }

    /// What to do with one factor.
    Task {
        /// L.
        statistic: u64 => "u64 statistic",
        /// Q.
        basis: u64 => "u64 basis",
        /// D.
        spectrum: u64 => "u64 spectrum",
        /// The inverse root, or its eigenvalues where none is kept.
        inverse_root: u64 => "u64 inverse_root",
        /// The spectrum of the last refresh, or 0.
        fresh: u64 => "u64 fresh",
        /// The sensed diagonal.
        diagonal: u64 => "u64 diagonal",
        /// The block's clock.
        clock: u64 => "const Clock *clock",
        /// The factor's record.
        record: u64 => "const double *record",
        /// 1/p.
        exponent: f64 => "double exponent",
        /// ε to sense or to damp with, or its least value.
        epsilon: f64 => "double epsilon",
        /// ε as a share of the largest eigenvalue, or 0.
        ratio: f64 => "double ratio",
        /// As `epsilon`: if the refresh failed, or the end of a search.
        most: f64 => "double most",
        /// As `ratio`, for `most`.
        most_ratio: f64 => "double most_ratio",
        /// Largest tolerated proxy of a search, or bound of the gap.
        target: f64 => "double target",
        /// The statistic is at least this times what it was at the last refresh.
        kept: f64 => "double kept",
        /// ln β₂.
        log_beta2: f64 => "double log_beta2",
        /// Where the answer goes: a Drift or a Renewal.
        report: u64 => "u64 report",
        /// The records that a pending refresh chooses from, or 0.
        choice: u64 => "u64 choice",
        /// m of the block, or 0.
        filter: u64 => "u64 filter",
        /// v of the block, or 0.
        moment: u64 => "u64 moment",
        /// Bits of [`task`].
        flags: i32 => "int flags",
        /// Divide the statistic by its bias correction: 0, or the period that its gradients are counted by.
        correct: i32 => "int correct",
        /// ‖QᵀQ − I‖_F of the basis, which is charged to the bound of the gap.
        orthogonality: f64 => "double orthogonality",
        /// Where the answer to a refresh by QR steps goes, whose report is a Drift; or the answer to a refresh that was
        /// made ahead of time.
        renewal: u64 => "u64 renewal",
        /// The basis that was found ahead of time, its spectrum behind it; or where a statistic is kept.
        found: u64 => "u64 found",
        /// A delayed refresh is taken only if the clock is at this step; 0 in any case.
        due: u64 => "u64 due",
        /// QR steps, at most.
        steps: i32 => "int steps",
        /// Unused.
        reserved: i32 => "int reserved",
    }

    /// What was sensed.
    Drift {
        /// RC.
        relative_change: f64 => "double relative_change",
        /// α.
        alpha: f64 => "double alpha",
        /// Off-diagonal residual.
        residual: f64 => "double residual",
        /// Certified ε.
        epsilon: f64 => "double epsilon",
        /// The proxy there.
        proxy: f64 => "double proxy",
        /// Smallest of the diagonal.
        least: f64 => "double least",
        /// Largest of the diagonal.
        largest: f64 => "double largest",
        /// Bound of the gap.
        bound: f64 => "double bound",
        /// Which rule gave it, by its number.
        rule: i32 => "int rule",
        /// A cheaper rule served, or nothing can: the sandwich is not wanted.
        decided: i32 => "int decided",
        /// κ of a basis of SOAP.
        kappa: f64 => "double kappa",
        /// ‖QᵀQ − I‖_F; after a QR step as it was measured.
        orthogonality: f64 => "double orthogonality",
        /// What of the bound is due to that.
        charge: f64 => "double charge",
        /// A bound of −λ_min(M), or infinity.
        loss: f64 => "double loss",
        /// The m with which a bound is at most τ, if mI + M is positive definite; 0 where that is not asked.
        proven: f64 => "double proven",
        /// That bound.
        proven_bound: f64 => "double proven_bound",
    }

    /// What a refresh came to.
    Renewal {
        /// Smallest eigenvalue.
        least: f64 => "double least",
        /// Largest eigenvalue.
        most: f64 => "double most",
        /// Noise floor.
        noise: f64 => "double noise",
        /// The rung that served.
        rung: i32 => "int rung",
        /// There is a new basis.
        fresh: i32 => "int fresh",
        /// κ before it, for SOAP.
        kappa: f64 => "double kappa",
        /// The bound of the gap after QR steps.
        bound: f64 => "double bound",
        /// ‖QᵀQ − I‖_F after QR steps.
        orthogonality: f64 => "double orthogonality",
        /// QR steps taken, or -1 where another way was gone.
        steps: i32 => "int steps",
        /// Unused.
        reserved: i32 => "int reserved",
    }

    /// A record that depends on how the refresh of its factor went.
    Choice {
        /// The record in the state.
        record: u64 => "u32 *record",
        /// How the refresh went.
        renewal: u64 => "const Renewal *renewal",
        /// The block's info.
        info: u64 => "int *info",
        /// The record if it succeeded.
        success: FactorRecord => "u32 success[RECORD_WORDS]",
        /// The record if it failed.
        failure: FactorRecord => "u32 failure[RECORD_WORDS]",
    }

    /// What a refresh keeps between its kernels.
    Scale {
        /// The power of two that brings the statistic near one.
        unit: f64 => "double unit",
        /// The size of the statistic.
        size: f64 => "double size",
        /// The statistic is finite.
        finite: i32 => "int finite",
        /// The decomposition is believed.
        sound: i32 => "int sound",
        /// The spectrum is shifted down by it.
        shift: f64 => "double shift",
    }

    /// What the cheap rules of a certificate keep between their kernels.
    Certificate {
        /// |f(B)|².
        squares: f64 => "double squares",
        /// The squares of the diagonal of H.
        on: f64 => "double on",
        /// What an average can have lost.
        average: f64 => "double average",
        /// The first order, divided by `squares`.
        first: f64 => "double first",
        /// The second.
        second: f64 => "double second",
        /// h.
        proxy: f64 => "double proxy",
        /// τ less what is charged for the basis.
        target: f64 => "double target",
        /// A bound of the spectral radius of M.
        radius: f64 => "double radius",
        /// m, less a margin for rounding, if M ⪰ −m is to be proven.
        diagonal: f64 => "double diagonal",
        /// The sums alone did not decide.
        open: i32 => "int open",
        /// Unused.
        reserved: i32 => "int reserved",
    }

    /// The search for the smallest ε in [low, best] whose proxy is at most the target.
    Search {
        /// Largest ε that is known not to suffice, or the least one allowed.
        low: f64 => "double low",
        /// Smallest that is known to, or the largest one allowed.
        best: f64 => "double best",
        /// The next to try.
        at: f64 => "double at",
        /// What was found, or NaN.
        epsilon: f64 => "double epsilon",
        /// The proxy there.
        proxy: f64 => "double proxy",
        /// How many were tried.
        tried: i32 => "int tried",
        /// Another is wanted.
        more: i32 => "int more",
    }

    /// Rows of bytes between tensors and messages, entry by entry.
    Carried {
        /// First byte of the first row.
        from: [u64; CARRIED] => "u64 from[CARRIED]",
        /// Where it goes.
        to: [u64; CARRIED] => "u64 to[CARRIED]",
        /// Bytes from one row to the next.
        from_step: [u64; CARRIED] => "u64 from_step[CARRIED]",
        /// The same where they go.
        to_step: [u64; CARRIED] => "u64 to_step[CARRIED]",
        /// Units of a row.
        row: [u64; CARRIED] => "u64 row[CARRIED]",
        /// Rows.
        rows: [u64; CARRIED] => "u64 rows[CARRIED]",
        /// Bytes of a unit: 2, 4 or 8.
        width: [u64; CARRIED] => "u64 width[CARRIED]",
    }

    /// Words of messages.
    Stamped {
        /// Their addresses.
        at: [u64; STAMPED] => "u64 at[STAMPED]",
        /// What they are to be.
        value: [u64; STAMPED] => "u64 value[STAMPED]",
    }
}

/// Bits of [`Task::flags`].
pub mod task {
    /// There is a stale basis to fall back on.
    pub const HAS_BASIS: i32 = 1;
    /// Take the sensed diagonal as spectrum.
    pub const ADOPT_DIAGONAL: i32 = 2;
    /// The ε depends on the refresh of this check.
    pub const AFTER_REFRESH: i32 = 4;
    /// Search for a certified ε.
    pub const SEARCH: i32 = 8;
    /// A fault on purpose: spoil the basis.
    pub const SPOIL: i32 = 16;
    /// A fault on purpose: the decomposition fails.
    pub const FAIL: i32 = 32;
    /// Keep the sensed diagonal.
    pub const KEEP_DIAGONAL: i32 = 64;
    /// Shift the spectrum so that its smallest value is not negative.
    pub const SHIFT: i32 = 128;
    /// Sense with the given ε, not with the one in use.
    pub const GIVEN_EPSILON: i32 = 256;
    /// Measure the noise floor.
    pub const NOISE: i32 = 512;
    /// The damping is relative: powers of two in the statistic keep the digits.
    pub const RELATIVE: i32 = 1024;
    /// The statistic is in the basis: it is as it is stored, whatever the clock says.
    pub const PLAIN: i32 = 2048;
    /// Make the basis orthonormal again.
    pub const POLISH: i32 = 4096;
    /// A refresh by QR steps: what the basis misses of an orthogonal one has just been measured.
    pub const QR: i32 = 8192;
}

/// What a launch of the judge does, as bits.
pub mod judge {
    /// Nothing has been found so far.
    pub const FIRST: i32 = 1;
    /// Looks at the gates.
    pub const LOOK: i32 = 2;
    /// Opens or closes them.
    pub const TELL: i32 = 4;
}

const _: () = {
    assert!(RUNG_NONE > Rung::Short as i32);
    assert!(size_of::<Clock>() == 16);
    assert!(size_of::<Rules>() == 8 * 14 + 4 * 10);
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{INFO_FELL_BACK, INFO_IDLE, INFO_LEFT_OUT, INFO_NOT_FINITE, SEARCH_RATIO};
    use crate::engine::plan::RECORD_WORDS;
    use crate::engine::rules::LEAST_WEIGHT;
    use crate::preconditioner::bound::{LARGEST_AIM, LARGEST_ROOT};
    use crate::preconditioner::policy::BoundRule;
    use crate::preconditioner::soap;
    use crate::preconditioner::{Counters, Gauges};
    use crate::tensor::DType;
    use std::fmt::Write;
    use std::mem::offset_of;

    /// The fields of [`Rules`], in order, checked against the struct.
    fn rules() -> Vec<String> {
        let mut fields = Vec::new();
        let mut end = 0;
        macro_rules! fields {
            ($type:ty, $c:literal: $($field:ident)+) => {
                $(
                    assert_eq!(offset_of!(Rules, $field), end, stringify!($field));
                    end += size_of::<$type>();
                    fields.push(format!("{} {}", $c, stringify!($field)));
                )+
            };
        }
        fields!(f64, "double": beta1 beta2 log_beta1 log_beta2 moment_keep moment_take log_moment moment_epsilon
            momentum momentum_take scale grad_scale largest tiny_norm);
        fields!(i32, "int": grafts normalized nadam nesterov decoupled filter_correction statistic_correction
            moment_correction moment_relative statistics_period);
        assert_eq!(end, size_of::<Rules>());
        fields
    }

    fn shared_cuh() -> String {
        let mut text = String::from(
            "// Generated from ../tables.rs by its test: do not edit. Constants and structs that host and kernels share.\n\
             #pragma once\n\n\
             typedef unsigned char u8;\ntypedef unsigned short u16;\ntypedef unsigned int u32;\n\
             typedef unsigned long long u64;\n\n",
        );
        let gauge = |offset: usize| (offset / 8) as i64;
        let mut constants: Vec<(String, i64)> = vec![
            ("THREADS".into(), THREADS as i64),
            ("MAX_ORDER".into(), MAX_ORDER as i64),
            ("STRIP".into(), STRIP as i64),
            ("SUMS".into(), SUMS as i64),
            ("CERTIFY_ROUNDS".into(), CERTIFY_ROUNDS as i64),
            ("POSTED".into(), POSTED as i64),
            ("CARRIED".into(), CARRIED as i64),
            ("STAMPED".into(), STAMPED as i64),
            ("NONE".into(), i64::from(NONE)),
            ("RECORD_WORDS".into(), RECORD_WORDS as i64),
            ("GAUGE_EPSILON".into(), gauge(offset_of!(Gauges, epsilon))),
            ("GAUGE_NOISE_FLOOR".into(), gauge(offset_of!(Gauges, noise_floor))),
            ("GAUGE_EIGENVALUE_MIN".into(), gauge(offset_of!(Gauges, eigenvalue_min))),
            ("GAUGE_EIGENVALUE_MAX".into(), gauge(offset_of!(Gauges, eigenvalue_max))),
            ("GAUGE_KAPPA".into(), gauge(offset_of!(Gauges, kappa))),
            ("GAUGE_GAP_BOUND".into(), gauge(offset_of!(Gauges, gap_bound))),
            ("GAUGE_ORTHOGONALITY".into(), gauge(offset_of!(Gauges, orthogonality))),
            ("COUNTER_QR_STEPS".into(), gauge(size_of::<Gauges>() + offset_of!(Counters, qr_steps))),
            ("INFO_IDLE".into(), i64::from(INFO_IDLE)),
            ("INFO_NOT_FINITE".into(), i64::from(INFO_NOT_FINITE)),
            ("INFO_LEFT_OUT".into(), i64::from(INFO_LEFT_OUT)),
            ("INFO_FELL_BACK".into(), i64::from(INFO_FELL_BACK)),
            ("RUNG_CHOSEN".into(), Rung::Chosen as i64),
            ("RUNG_DOUBLE".into(), Rung::Double as i64),
            ("RUNG_STALE".into(), Rung::Stale as i64),
            ("RUNG_SHORT".into(), Rung::Short as i64),
            ("RUNG_NONE".into(), i64::from(RUNG_NONE)),
            ("RULE_NONE".into(), BoundRule::None as i64),
            ("RULE_EXCEEDED".into(), BoundRule::Exceeded as i64),
            ("RULE_AVERAGE".into(), BoundRule::Average as i64),
            ("RULE_SPECTRAL".into(), BoundRule::Spectral as i64),
            ("RULE_SANDWICH".into(), BoundRule::Sandwich as i64),
            ("LARGEST_ROOT".into(), i64::from(LARGEST_ROOT)),
            ("JUDGE_FIRST".into(), i64::from(judge::FIRST)),
            ("JUDGE_LOOK".into(), i64::from(judge::LOOK)),
            ("JUDGE_TELL".into(), i64::from(judge::TELL)),
        ];
        constants.extend(DType::ALL.map(|dtype| (dtype.name().to_uppercase(), i64::from(dtype.code()))));
        macro_rules! bits {
            ($($name:ident)+) => { [$((concat!("TASK_", stringify!($name)), task::$name)),+] };
        }
        let bits = bits!(HAS_BASIS ADOPT_DIAGONAL AFTER_REFRESH SEARCH SPOIL FAIL KEEP_DIAGONAL SHIFT GIVEN_EPSILON NOISE RELATIVE PLAIN POLISH QR);
        constants.extend(bits.map(|(name, bit)| (name.to_string(), i64::from(bit))));
        for (name, value) in constants {
            writeln!(text, "#define {name} {value}").unwrap();
        }
        writeln!(text, "#define LEAST_WEIGHT {LEAST_WEIGHT:?}").unwrap();
        writeln!(text, "#define SEARCH_RATIO {SEARCH_RATIO:?}").unwrap();
        writeln!(text, "#define LARGEST_AIM {LARGEST_AIM:?}").unwrap();
        writeln!(text, "#define ROUNDING_F32 {:?}", f64::from(f32::EPSILON)).unwrap();
        writeln!(text, "#define ROUNDING_F64 {:?}", f64::EPSILON).unwrap();
        writeln!(text, "#define KAPPA_FLOOR {:?}", soap::FLOOR).unwrap();
        writeln!(text, "#define TINY_RMS {:?}", soap::TINY_RMS).unwrap();
        let rules = rules();
        let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
        let clock: &[&str] = &["u64 step", "double weight"];
        let head: [(&str, &[&str]); 2] = [("Clock", clock), ("Rules", &rules)];
        for (name, fields) in head.iter().chain(STRUCTS) {
            write!(text, "\nstruct {name} {{\n").unwrap();
            fields.iter().for_each(|field| writeln!(text, "    {field};").unwrap());
            text.push_str("};\n");
        }
        text
    }

    #[test]
    fn shared_cuh_is_what_this_file_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/device/gpu/kernels/shared.cuh");
        if std::env::var_os("FOAM_WRITE_SHARED").is_some() {
            std::fs::write(path, shared_cuh()).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap_or_default(), shared_cuh(), "{path} is out of date");
    }
}
