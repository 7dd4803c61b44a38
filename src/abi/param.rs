//! The description of a parameter, given once at creation.

use super::boundary::{self, AbiStruct, field_ends};
use super::status::{foam_error, foam_status};
use super::tensor::foam_dtype;
use crate::config::Config;
use crate::engine::plan::ParamSpec;
use crate::engine::stack::Stack;
use crate::error::{Error, Result};
use crate::tensor::{DType, Precision};
use libc::c_char;

/// No preconditioner for this parameter: it takes the grafted method's step (needs a grafting).
/// For embeddings, or whatever you know should not be preconditioned.
pub const FOAM_PARAM_GRAFTING_ONLY: u32 = 1;

/// One parameter of the model. Fill it with `foam_param_init` first, then set name, shape and dtype.
/// The library copies what it needs: nothing is borrowed after `foam_create`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct foam_param {
    /// Bytes of this struct, set by the caller; the same in every element of an array.
    pub struct_size: u32,
    /// `FOAM_PARAM_*` bits.
    pub flags: u32,
    /// Unique name, NUL-terminated UTF-8; NULL means "param_<index>". Checkpoints are keyed by it.
    pub name: *const c_char,
    /// `ndim` sizes, each at least 1.
    pub shape: *const i64,
    /// Number of dimensions; 0 for a scalar.
    pub ndim: i32,
    /// Type of the parameter's elements.
    pub dtype: foam_dtype,
    /// Multiplies the learning rate; default 1, must be > 0.
    pub lr_scale: f64,
    /// Multiplies the weight decay; default 1, 0 switches it off.
    pub weight_decay_scale: f64,
    /// The inverse root's p for this parameter; 0 (the default) means the configuration's.
    pub root: f64,
    /// The axis of `shape` of which this rank holds a part, with `foam_create_ranks`; -1 (the default) if it holds
    /// the whole parameter. `shape` is that of the whole parameter on every rank; the tensors of a step have
    /// `shard_length` places on this axis.
    pub shard_axis: i64,
    /// First place of the part.
    pub shard_start: i64,
    /// Places of the part; 0 if this rank holds nothing of the parameter (its tensors' `data` may then be NULL).
    pub shard_length: i64,
}

// SAFETY: plain data, first field `struct_size`, every bit pattern valid.
unsafe impl AbiStruct for foam_param {
    const NAME: &'static str = "foam_param";
    const REQUIRED: usize = std::mem::offset_of!(foam_param, lr_scale);
    const ENDS: &'static [usize] = field_ends!(foam_param {
        struct_size,
        flags,
        name,
        shape,
        ndim,
        dtype,
        lr_scale,
        weight_decay_scale,
        root,
        shard_axis,
        shard_start,
        shard_length
    });

    fn defaults() -> Self {
        foam_param {
            struct_size: std::mem::size_of::<Self>() as u32,
            flags: 0,
            name: std::ptr::null(),
            shape: std::ptr::null(),
            ndim: 0,
            dtype: foam_dtype { code: 2, bits: 32, lanes: 1 },
            lr_scale: 1.0,
            weight_decay_scale: 1.0,
            root: 0.0,
            shard_axis: -1,
            shard_start: 0,
            shard_length: 0,
        }
    }
}

/// Fills `param` with the defaults: a nameless f32 scalar with both scales 1.
/// `struct_size` is `sizeof(foam_param)` as the caller was compiled.
///
/// # Safety
/// `param` points to `struct_size` writable bytes; `error` is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_param_init(
    param: *mut foam_param,
    struct_size: u32,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        boundary::call(error, || {
            if param.is_null() {
                return Err(Error::invalid("param is NULL; expected a foam_param to fill"));
            }
            boundary::write_struct(param, struct_size, foam_param::defaults())
        })
    }
}

/// Refuses a learning rate or a weight decay that is beyond the numbers that a parameter is worked on with: in f32
/// it would be infinite, and the step would write NaN.
pub(super) fn refuse_rates<'a>(
    config: &Config,
    lr: f64,
    specs: impl Iterator<Item = &'a ParamSpec>,
) -> Result<()> {
    for (index, spec) in specs.enumerate() {
        let (rate, decay) = (lr * spec.lr_scale, config.weight_decay * spec.weight_decay_scale);
        let most = largest(spec.dtype);
        let refuse = |what: &str, value: f64| {
            let name = &spec.name;
            let message = format!(
                "parameter '{name}': {what} = {value:e}: expected at most {most:e}, as its numbers are"
            );
            Err(Error::invalid(message).at(index))
        };
        if rate > most {
            return refuse("lr times lr_scale", rate);
        }
        if decay > most {
            return refuse("weight_decay times weight_decay_scale", decay);
        }
        if rate * decay > most {
            return refuse("lr times weight_decay (with both scales)", rate * decay);
        }
    }
    Ok(())
}

/// The same for a stack, whose update is `scale` times the direction; none means minus the configuration's lr.
pub(super) fn refuse_stack_rates(config: &Config, stack: &Stack, scale: Option<f64>) -> Result<()> {
    let most = largest(stack.dtype);
    let decay = config.weight_decay * stack.weight_decay_scale;
    let (called, rate) = scale.map_or(("lr", config.lr), |scale| ("scale", scale.abs()));
    let refuse = |what: &str, value: f64| {
        Err(Error::invalid(format!(
            "{what} = {value:e}: expected at most {most:e}, as the stack's numbers are"
        )))
    };
    if rate > most {
        return refuse(called, rate);
    }
    if decay > most {
        return refuse("weight_decay times weight_decay_scale", decay);
    }
    if rate * decay > most {
        return refuse(&format!("{called} times weight_decay (with its scale)"), rate * decay);
    }
    Ok(())
}

/// The largest number of the precision in which parameters of type `dtype` are worked on.
fn largest(dtype: DType) -> f64 {
    match dtype.work() {
        Precision::F32 => f64::from(f32::MAX),
        Precision::F64 => f64::MAX,
    }
}
