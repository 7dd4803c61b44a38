//! Stacks, the door without a handle: the caller owns every state buffer. Here: what a stack is, what its
//! state looks like, how it begins. [`super::stack_args`] has the verbs.

pub(super) mod views;

use super::boundary::{self, AbiStruct, List, field_ends};
use super::config::{foam_config, to_config};
use super::handle::{dtype_text, element_type};
use super::status::{foam_error, foam_status};
use super::tensor::{FOAM_DTYPE_FLOAT, foam_dtype, foam_tensor};
use crate::config::Config;
use crate::engine::cache;
use crate::engine::plan::{Array, Content, SlotKind};
use crate::engine::stack::{MAX_ORDER, Stack};
use crate::error::{Error, Kind, Result};
use crate::tensor::Element;
use libc::c_char;
use std::mem::size_of;
use views::{State, read_state};

/// No preconditioner: the blocks take the grafted method's step (needs a grafting).
pub const FOAM_STACK_GRAFTING_ONLY: u32 = 1;
/// Largest `ndim` of a stack's blocks.
pub const FOAM_STACK_MAX_NDIM: usize = 8;
/// Sizes in `foam_stack_buffer.shape`.
pub const FOAM_STACK_BUFFER_NDIM: usize = 9;
/// Bytes of `foam_stack_buffer.name`, with its final NUL.
pub const FOAM_STACK_NAME_SIZE: usize = 32;

const _: () = assert!(FOAM_STACK_MAX_NDIM == MAX_ORDER && FOAM_STACK_BUFFER_NDIM == MAX_ORDER + 1);

/// A stack: `count` blocks of the same shape, type and options, whose state lies in buffers of the caller.
/// Each of them has the number of the block as its first dimension. Fill it with `foam_stack_init`, then
/// set shape, ndim, count and dtype. Blocks are taken as they are: `merge_dims` and `max_factor_dim` do
/// nothing here, and neither do `lr_scale` and `nonfinite`.
///
/// One step is three calls, `foam_stack_accumulate`, `foam_stack_check` and `foam_stack_apply` (for SOAP
/// `foam_stack_accumulate`, `foam_stack_apply` and `foam_stack_check`). They do what
/// `foam_step` does to parameters of that shape, with equal bits. There is no handle: calls may overlap as
/// long as they write different buffers. Threads are shared by all calls with the same `num_threads`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct foam_stack {
    /// Bytes of this struct, set by the caller.
    pub struct_size: u32,
    /// `FOAM_STACK_*` bits.
    pub flags: u32,
    /// `ndim` sizes of one block, each at least 1.
    pub shape: *const i64,
    /// Number of dimensions of one block, from 1 to `FOAM_STACK_MAX_NDIM`.
    pub ndim: i32,
    /// Type of the parameters' elements.
    pub dtype: foam_dtype,
    /// Number of blocks, at least 1.
    pub count: i64,
    /// Multiplies the weight decay; default 1, 0 switches it off.
    pub weight_decay_scale: f64,
    /// The inverse root's p; 0 (the default) means the configuration's.
    pub root: f64,
}

// SAFETY: plain data, first field `struct_size`, every bit pattern valid.
unsafe impl AbiStruct for foam_stack {
    const NAME: &'static str = "foam_stack";
    const REQUIRED: usize = std::mem::offset_of!(foam_stack, weight_decay_scale);
    const ENDS: &'static [usize] =
        field_ends!(foam_stack { struct_size, flags, shape, ndim, dtype, count, weight_decay_scale, root });

    fn defaults() -> Self {
        foam_stack {
            struct_size: size_of::<Self>() as u32,
            flags: 0,
            shape: std::ptr::null(),
            ndim: 0,
            dtype: foam_dtype { code: FOAM_DTYPE_FLOAT, bits: 32, lanes: 1 },
            count: 1,
            weight_decay_scale: 1.0,
            root: 0.0,
        }
    }
}

/// The clock of every block, u32[count, 4]: its steps as a 64-bit whole number, the weight of its statistics
/// as a double.
pub const FOAM_STACK_CLOCK: i32 = 0;
/// The record of every factor, u32[count, ndim, 76]: twelve doubles (epsilon, proxy, max_proxy, relative_change, alpha,
/// gap_bound, residual, noise_floor, eigenvalue_min, eigenvalue_max, kappa, orthogonality), then 26 64-bit whole numbers
/// (last_branch, 1 once there is a basis, last_refresh, last_check, checks, evd_calls, reuse_calls,
/// proxy_calls, epsilon_updates, cap_refreshes, residual_calls, failed_evds, fallback_double, fallback_svd,
/// fallback_stale, bound_exceeded, bound_average, bound_spectral, bound_sandwich, qr_steps, qr_refreshes,
/// qr_fallbacks, qr_tracked, recent_refreshes, pending_since, delayed_checks), as in `foam_factor_info`.
pub const FOAM_STACK_RECORD: i32 = 1;
/// Statistics of an axis; the lower triangle of their transpose counts. The rest may hold inverse roots, see
/// `FOAM_STACK_ROOT_DIAGONAL`.
pub const FOAM_STACK_STATISTIC: i32 = 2;
/// Bases of an axis, one eigenvector per row.
pub const FOAM_STACK_BASIS: i32 = 3;
/// Spectra of an axis.
pub const FOAM_STACK_SPECTRUM: i32 = 4;
/// Inverse roots of an axis.
pub const FOAM_STACK_INVERSE_ROOT: i32 = 5;
/// Filtered gradients (`beta1` > 0).
pub const FOAM_STACK_FILTER: i32 = 6;
/// The grafted method's second moments (adagrad, rmsprop, adam).
pub const FOAM_STACK_MOMENT: i32 = 7;
/// Momentum (`momentum` > 0).
pub const FOAM_STACK_MOMENTUM: i32 = 8;
/// Spectra of an axis as the last refresh gave them (policy sandwich).
pub const FOAM_STACK_FRESH_SPECTRUM: i32 = 9;
/// Statistics of an axis in its basis (`soap_form` = in_basis); the lower triangle of their transpose counts.
pub const FOAM_STACK_ROTATED_STATISTIC: i32 = 10;
/// Eigenvalues of an axis' inverse roots (`keep_inverse_root` = 0).
pub const FOAM_STACK_ROOT_SPECTRUM: i32 = 11;
/// Statistics of an axis as they were when a refresh that is under way was asked for (`refresh_delay` > 0).
pub const FOAM_STACK_PENDING_STATISTIC: i32 = 12;
/// Diagonals of an axis' inverse roots (`share_squares` = 1): the numbers below the diagonal lie in the statistics'
/// squares, where those count that the statistics do not use.
pub const FOAM_STACK_ROOT_DIAGONAL: i32 = 13;

/// One state buffer of a stack, as `foam_stack_layout` describes it: row-major and contiguous.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct foam_stack_buffer {
    /// Bytes of this struct as the library wrote it.
    pub struct_size: u32,
    /// `FOAM_STACK_*`: what it holds.
    pub kind: i32,
    /// Axis, for a factor's buffer, else -1.
    pub axis: i32,
    /// Number of dimensions.
    pub ndim: i32,
    /// Type of its elements.
    pub dtype: foam_dtype,
    /// 0.
    pub reserved: u32,
    /// Bytes.
    pub bytes: u64,
    /// Its sizes; those behind `ndim` are 0.
    pub shape: [i64; FOAM_STACK_BUFFER_NDIM],
    /// Its name, for example "statistic_0", NUL-terminated.
    pub name: [c_char; FOAM_STACK_NAME_SIZE],
}

// SAFETY: plain data, first field `struct_size`, every bit pattern valid.
unsafe impl AbiStruct for foam_stack_buffer {
    const NAME: &'static str = "foam_stack_buffer";
    const REQUIRED: usize = std::mem::offset_of!(foam_stack_buffer, bytes);
    const ENDS: &'static [usize] =
        field_ends!(foam_stack_buffer { struct_size, kind, axis, ndim, dtype, reserved, bytes, shape, name });

    fn defaults() -> Self {
        foam_stack_buffer {
            struct_size: size_of::<Self>() as u32,
            kind: FOAM_STACK_CLOCK,
            axis: -1,
            ndim: 0,
            dtype: foam_dtype::default(),
            reserved: 0,
            bytes: 0,
            shape: [0; FOAM_STACK_BUFFER_NDIM],
            name: [0; FOAM_STACK_NAME_SIZE],
        }
    }
}

/// Fills `stack` with the defaults: one f32 block without a shape yet, scale 1, the configuration's root.
/// `struct_size` is `sizeof(foam_stack)` as the caller was compiled.
///
/// # Safety
/// `stack` points to `struct_size` writable bytes; `error` is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_stack_init(
    stack: *mut foam_stack,
    struct_size: u32,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        boundary::call(error, || {
            if stack.is_null() {
                return Err(Error::invalid("stack is NULL; expected a foam_stack to fill"));
            }
            boundary::write_struct(stack, struct_size, foam_stack::defaults())
        })
    }
}

/// Describes the state buffers of a stack, in the order in which every other call takes them. `items` has room
/// for `capacity` elements of `item_size` = `sizeof(foam_stack_buffer)` bytes as the caller was compiled;
/// `*count` receives their number. Pass `items` = NULL and `capacity` = 0 to ask for it. If there is too
/// little room, nothing is written but `*count`.
///
/// # Safety
/// `config` and `stack` are structs whose `struct_size` is set; `items` has `capacity` × `item_size` writable
/// bytes; `count` is writable; `error` is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_stack_layout(
    config: *const foam_config,
    stack: *const foam_stack,
    items: *mut foam_stack_buffer,
    item_size: usize,
    capacity: usize,
    count: *mut usize,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        boundary::call(error, || {
            let (config, stack) = read_stack(config, stack)?;
            config.validate()?;
            stack.validate(&config)?;
            let layout = stack.layout(&config)?;
            let list = List { items, item_size, capacity, count };
            boundary::write_list(list, layout.len(), |place| describe(&layout[place], stack.count))
        })
    }
}

/// Bytes of workspace that any verb needs for this stack; they depend on `num_threads`.
///
/// # Safety
/// `config` and `stack` are structs whose `struct_size` is set; `bytes` is writable; `error` is NULL or a
/// record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_stack_workspace(
    config: *const foam_config,
    stack: *const foam_stack,
    bytes: *mut usize,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        boundary::call(error, || {
            let (config, stack) = read_stack(config, stack)?;
            if bytes.is_null() {
                return Err(Error::invalid("bytes is NULL; expected a place for the size"));
            }
            let session = cache::take(&config, &stack)?;
            *bytes = session.workspace_bytes();
            cache::give(session);
            Ok(())
        })
    }
}

/// Writes the first values into the state buffers of a stack: zeros, a clock at step 0, and records with the
/// base epsilon. `state` has the `count` tensors of `foam_stack_layout`, in that order.
///
/// # Safety
/// `config` and `stack` are structs whose `struct_size` is set; the tensors' memory is valid for the call, and
/// nobody else accesses it meanwhile; `error` is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_stack_reset(
    config: *const foam_config,
    stack: *const foam_stack,
    state: *const foam_tensor,
    count: usize,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        boundary::call(error, || {
            let (config, stack) = read_stack(config, stack)?;
            let mut session = cache::take(&config, &stack)?;
            let list = State { tensors: state, count, called: "state", device: config.device };
            let addresses = read_state(&list, session.layout(), &stack)?;
            session.reset(&addresses)?;
            cache::give(session);
            Ok(())
        })
    }
}

/// Lets go of what the library keeps between calls on stacks: plans, and with CUDA handles and pinned memory on
/// the devices. Calls that come later make them anew; state is not affected, it is the caller's.
#[unsafe(no_mangle)]
pub extern "C" fn foam_stack_trim() {
    // A panic in a release must not cross, and there is no one to report it to.
    let _ = std::panic::catch_unwind(cache::clear);
}

/// The configuration and the stack that the structs describe; not yet validated against each other.
///
/// # Safety
/// Both are NULL or structs whose `struct_size` is set and whose pointers are valid.
pub(super) unsafe fn read_stack(
    config: *const foam_config,
    stack: *const foam_stack,
) -> Result<(Config, Stack)> {
    // SAFETY: the caller's contract.
    let (config, raw) =
        unsafe { (boundary::read_struct(config, "config")?, boundary::read_struct(stack, "stack")?) };
    let config = to_config(&config)?;
    let refuse = |what: String| Err(Error::invalid(format!("stack.{what}")));
    if raw.flags & !FOAM_STACK_GRAFTING_ONLY != 0 {
        return refuse(format!("flags = {:#x}: expected FOAM_STACK_* bits", raw.flags));
    }
    if !(1..=MAX_ORDER as i32).contains(&raw.ndim) {
        return refuse(format!("ndim = {}: expected 1 <= ndim <= {MAX_ORDER}", raw.ndim));
    }
    if raw.shape.is_null() {
        return refuse(format!("shape is NULL; expected {} sizes", raw.ndim));
    }
    let mut dims = crate::memory::reserved(raw.ndim as usize, "a shape")?;
    for axis in 0..raw.ndim as usize {
        // SAFETY: the caller gives `ndim` sizes.
        let size = unsafe { raw.shape.add(axis).read_unaligned() };
        if size <= 0 {
            return refuse(format!("shape[{axis}] = {size}: expected at least 1"))
                .map_err(|e| e.on_axis(axis));
        }
        dims.push(size as usize);
    }
    let Ok(count) = usize::try_from(raw.count) else {
        return refuse(format!("count = {}: expected at least 1", raw.count));
    };
    let Some(dtype) = element_type(raw.dtype) else {
        return Err(Error::new(
            Kind::Unsupported,
            format!("stack.dtype: {}: expected f32, f64, f16 or bf16", dtype_text(raw.dtype)),
        ));
    };
    let stack = Stack {
        dims,
        count,
        dtype,
        weight_decay_scale: raw.weight_decay_scale,
        root: raw.root,
        grafting_only: raw.flags & FOAM_STACK_GRAFTING_ONLY != 0,
    };
    Ok((config, stack))
}

/// The dtype that names an element type.
pub(super) fn dtype_of(element: Element) -> foam_dtype {
    let (code, bits) = element.dlpack();
    foam_dtype { code, bits, lanes: 1 }
}

fn describe(array: &Array, count: usize) -> Result<foam_stack_buffer> {
    let kind = match array.content {
        Content::Clock => FOAM_STACK_CLOCK,
        Content::Record => FOAM_STACK_RECORD,
        Content::Slot(SlotKind::Statistic, _) => FOAM_STACK_STATISTIC,
        Content::Slot(SlotKind::RotatedStatistic, _) => FOAM_STACK_ROTATED_STATISTIC,
        Content::Slot(SlotKind::Basis, _) => FOAM_STACK_BASIS,
        Content::Slot(SlotKind::Spectrum, _) => FOAM_STACK_SPECTRUM,
        Content::Slot(SlotKind::InverseRoot, _) => FOAM_STACK_INVERSE_ROOT,
        Content::Slot(SlotKind::RootSpectrum, _) => FOAM_STACK_ROOT_SPECTRUM,
        Content::Slot(SlotKind::RootDiagonal, _) => FOAM_STACK_ROOT_DIAGONAL,
        Content::Slot(SlotKind::FreshSpectrum, _) => FOAM_STACK_FRESH_SPECTRUM,
        Content::Slot(SlotKind::PendingStatistic, _) => FOAM_STACK_PENDING_STATISTIC,
        Content::Slot(SlotKind::Filter, _) => FOAM_STACK_FILTER,
        Content::Slot(SlotKind::Moment, _) => FOAM_STACK_MOMENT,
        Content::Slot(SlotKind::Momentum, _) => FOAM_STACK_MOMENTUM,
    };
    let mut item = foam_stack_buffer {
        kind,
        axis: array.content.axis().map_or(-1, |axis| axis as i32),
        ndim: array.tail.len() as i32 + 1,
        dtype: dtype_of(array.element),
        bytes: (array.stride() * count) as u64,
        ..foam_stack_buffer::defaults()
    };
    item.shape[0] = count as i64;
    for (slot, size) in item.shape[1..].iter_mut().zip(&array.tail) {
        *slot = *size as i64;
    }
    boundary::put_name(&mut item.name, &array.content.name()?);
    Ok(item)
}
