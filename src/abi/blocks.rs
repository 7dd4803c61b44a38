//! The blocks that parameters are cut into, before and after an optimizer is made.

use super::boundary::{self, AbiStruct, List, field_ends};
use super::comm::FOAM_MAX_RANKS;
use super::config::{foam_config, to_config};
use super::handle::{Need, enter, foam_optimizer, read_params};
use super::param::foam_param;
use super::status::{foam_error, foam_status};
use crate::config::Config;
use crate::engine::Optimizer;
use crate::engine::owners::{self, Cost};
use crate::engine::plan::Plan;
use crate::error::{Error, Kind, Result};
use std::collections::HashMap;
use std::mem::size_of;

/// Sizes in `foam_block_info.shape` and `strides`.
pub const FOAM_BLOCK_MAX_NDIM: usize = 8;

/// A block: a rectangular piece of a parameter that has a preconditioner of its own. Its element at (i, j, ...)
/// is element `offset` + i * `strides[0]` + j * `strides[1]` + ... of the parameter.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct foam_block_info {
    /// Bytes of this struct as the library wrote it.
    pub struct_size: u32,
    /// Number of dimensions; 1 for a scalar or a vector.
    pub ndim: i32,
    /// Parameter of the block.
    pub param_index: i64,
    /// Number of the block within its parameter, in row-major order, as in `foam_factor_info`.
    pub block: i64,
    /// Number of its stack: blocks have the same number if a `foam_stack` could hold them together, that is if
    /// shape, dtype, root, weight decay and preconditioning are equal. Numbered from 0 in the order of the list.
    pub stack: i64,
    /// First element within the parameter.
    pub offset: i64,
    /// Number of elements.
    pub elements: i64,
    /// Number of factors: one per axis, or 0 without a preconditioner.
    pub factors: i64,
    /// Multiplications of the matrix products of a step: 2 * elements * (sum of the sides), or `elements` without
    /// a preconditioner.
    pub step_cost: u64,
    /// Multiplications that a check adds when it keeps the basis: 3 * dim^3 per axis (the statistic in the stale
    /// basis, and a new inverse root).
    pub check_cost: u64,
    /// Multiplications that a refresh adds, about 10 * dim^3 per axis (the eigendecomposition and the inverse root).
    pub refresh_cost: u64,
    /// Bytes of the block's state, without alignment.
    pub state_bytes: u64,
    /// Its sizes; those behind `ndim` are 0.
    pub shape: [i64; FOAM_BLOCK_MAX_NDIM],
    /// Elements of the parameter between neighbours along each axis; those behind `ndim` are 0.
    pub strides: [i64; FOAM_BLOCK_MAX_NDIM],
    /// The rank that works on the block and holds its state; 0 without a `foam_comm`.
    pub owner: i64,
    /// Multiplications per step on average: `step_cost`, 128 * `elements` for what is done beside the products, and
    /// (`check_cost` + `refresh_cost` / 4) / `check_period`, with the policy stale all of `refresh_cost`. The owners
    /// are chosen by the work of plain steps (the first two) and of steps that check, each for itself.
    pub cost: u64,
}

// SAFETY: plain data, first field `struct_size`, every bit pattern valid.
unsafe impl AbiStruct for foam_block_info {
    const NAME: &'static str = "foam_block_info";
    const REQUIRED: usize = std::mem::offset_of!(foam_block_info, owner);
    const ENDS: &'static [usize] = field_ends!(foam_block_info {
        struct_size,
        ndim,
        param_index,
        block,
        stack,
        offset,
        elements,
        factors,
        step_cost,
        check_cost,
        refresh_cost,
        state_bytes,
        shape,
        strides,
        owner,
        cost
    });

    fn defaults() -> Self {
        foam_block_info {
            struct_size: size_of::<Self>() as u32,
            ndim: 0,
            param_index: 0,
            block: 0,
            stack: 0,
            offset: 0,
            elements: 0,
            factors: 0,
            step_cost: 0,
            check_cost: 0,
            refresh_cost: 0,
            state_bytes: 0,
            shape: [0; FOAM_BLOCK_MAX_NDIM],
            strides: [0; FOAM_BLOCK_MAX_NDIM],
            owner: 0,
            cost: 0,
        }
    }
}

/// Lists the blocks that `foam_create` would cut `param_count` parameters into, ordered by parameter and block,
/// without creating anything: no state is allocated, and no device is asked. What `foam_create` would refuse about
/// the configuration's values or the parameters is refused here. `items`, `item_size` = `sizeof(foam_block_info)`,
/// `capacity` and `count` are as in `foam_stack_layout`. A block of more than `FOAM_BLOCK_MAX_NDIM` dimensions
/// gives FOAM_UNSUPPORTED.
///
/// # Safety
/// `config` and the `params` are structs whose `struct_size` is set and whose pointers are valid; `items` has
/// `capacity` × `item_size` writable bytes; `count` is writable; `error` is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_plan_blocks(
    config: *const foam_config,
    params: *const foam_param,
    param_count: usize,
    items: *mut foam_block_info,
    item_size: usize,
    capacity: usize,
    count: *mut usize,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        boundary::call(error, || {
            if param_count == 0 {
                return Err(Error::invalid("param_count = 0: expected at least one parameter"));
            }
            let config = to_config(&boundary::read_struct(config, "config")?)?;
            let plan = Optimizer::plan_for(&config, read_params(params, param_count)?)?;
            write_blocks(&config, &plan, &[], List { items, item_size, capacity, count })
        })
    }
}

/// Lists the blocks as `foam_plan_blocks` does, with the owners that they have among `ranks` ranks. All ranks wait for
/// the one with the most work, in plain steps and in those with a check: the blocks, the longest plain work first, go
/// each to the rank that makes the time from one check to the next the least, with a bound on the bytes. Every rank
/// finds the same owners.
///
/// # Safety
/// As `foam_plan_blocks`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_plan_owners(
    config: *const foam_config,
    params: *const foam_param,
    param_count: usize,
    ranks: i32,
    items: *mut foam_block_info,
    item_size: usize,
    capacity: usize,
    count: *mut usize,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        boundary::call(error, || {
            if param_count == 0 {
                return Err(Error::invalid("param_count = 0: expected at least one parameter"));
            }
            if !(1..=FOAM_MAX_RANKS).contains(&ranks) {
                let message = format!("ranks = {ranks}: expected 1 <= ranks <= {FOAM_MAX_RANKS}");
                return Err(Error::invalid(message));
            }
            let config = to_config(&boundary::read_struct(config, "config")?)?;
            let plan = Optimizer::plan_for(&config, read_params(params, param_count)?)?;
            let owners = owners::owners(&config, &plan, ranks as usize)?;
            write_blocks(&config, &plan, &owners, List { items, item_size, capacity, count })
        })
    }
}

/// Lists the blocks of an optimizer, as `foam_plan_blocks` does. Works after a panic too.
///
/// # Safety
/// `optimizer` came from `foam_create`; `items` has `capacity` × `item_size` writable bytes; `count` is writable;
/// `error` is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_blocks(
    optimizer: *mut foam_optimizer,
    items: *mut foam_block_info,
    item_size: usize,
    capacity: usize,
    count: *mut usize,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        enter(optimizer, Need::Statistics, error, |inner| {
            let optimizer = &inner.optimizer;
            let owners = optimizer.division().map_or(&[][..], |division| &division.owners[..]);
            let list = List { items, item_size, capacity, count };
            write_blocks(optimizer.config(), optimizer.whole(), owners, list)
        })
    }
}

/// # Safety
/// The list is as its arguments say.
unsafe fn write_blocks(
    config: &Config,
    plan: &Plan,
    owners: &[u32],
    list: List<foam_block_info>,
) -> Result<()> {
    let state_bytes = owners::state_bytes(plan)?;
    let mut stacks = HashMap::new();
    let describe = |number: usize| {
        let block = &plan.blocks[number];
        let param = &plan.params[block.param];
        if block.dims.len() > FOAM_BLOCK_MAX_NDIM {
            let message = format!(
                "parameter '{}': a block has {} dimensions: expected at most {FOAM_BLOCK_MAX_NDIM} (merge_dims makes fewer)",
                param.spec.name,
                block.dims.len()
            );
            return Err(Error::new(Kind::Unsupported, message).at(block.param));
        }
        // What `foam_stack` says about its blocks; a root of 0 means the same root for equal shapes.
        let kind = (
            &block.dims,
            param.spec.dtype.name(),
            param.spec.root.to_bits(),
            param.spec.weight_decay_scale.to_bits(),
            block.factors.is_empty(),
        );
        let next = stacks.len() as i64;
        stacks.try_reserve(1).map_err(|_| Error::out_of_memory("the list of blocks", 0))?;
        let cost = Cost::of(block);
        let mut item = foam_block_info {
            ndim: block.dims.len() as i32,
            param_index: block.param as i64,
            block: block.number as i64,
            stack: *stacks.entry(kind).or_insert(next),
            offset: block.offset as i64,
            elements: block.elements as i64,
            factors: block.factors.len() as i64,
            step_cost: cost.step,
            check_cost: cost.check,
            refresh_cost: cost.refresh,
            state_bytes: state_bytes[number],
            owner: owners.get(number).map_or(0, |owner| i64::from(*owner)),
            cost: cost.per_step(block, config),
            ..foam_block_info::defaults()
        };
        for (axis, (dim, stride)) in block.dims.iter().zip(&block.strides).enumerate() {
            item.shape[axis] = *dim as i64;
            item.strides[axis] = *stride as i64;
        }
        Ok(item)
    };
    // SAFETY: the caller's contract.
    unsafe { boundary::write_list(list, plan.blocks.len(), describe) }
}
