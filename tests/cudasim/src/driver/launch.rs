//! Kernel launches, attributes of functions, occupancy.

use std::sync::Arc;

use libc::{c_int, c_uint, c_void};

use super::device::{BLOCK_AXES, BLOCK_LIMIT, GRID_AXES, SHARED_LIMIT, SHARED_OPT_IN};
use crate::boundary::{driver, put, take};
use crate::ptx::launch::{Launch, run};
use crate::reason::{Result, refuse};
use crate::schedule::{Run, Work};
use crate::state::Sim;

/// The largest parameters that a kernel may have on sm_70 to sm_90.
const PARAM_LIMIT: usize = 4096;

impl Sim {
    /// Refuses a configuration beyond the device's limits.
    fn check_limits(&mut self, function: u64, grid: [u32; 3], block: [u32; 3], shared: u32) -> Result {
        for axis in 0..3 {
            let name = ["x", "y", "z"][axis];
            if grid[axis] == 0 || block[axis] == 0 {
                refuse!(InvalidValue, "the grid or block is 0 along {name}");
            }
            if grid[axis] > GRID_AXES[axis] {
                refuse!(InvalidValue, "{} blocks along {name}, at most {}", grid[axis], GRID_AXES[axis]);
            }
            if block[axis] > BLOCK_AXES[axis] {
                refuse!(InvalidValue, "{} threads along {name}, at most {}", block[axis], BLOCK_AXES[axis]);
            }
        }
        let found = self.functions.get(function)?;
        let code = &found.program.functions[found.entry];
        let threads = u64::from(block[0]) * u64::from(block[1]) * u64::from(block[2]);
        let limit = code.max_threads.unwrap_or(BLOCK_LIMIT).min(BLOCK_LIMIT);
        if threads > u64::from(limit) {
            refuse!(InvalidValue, "`{}` has {threads} threads in a block, at most {limit}", code.name);
        }
        let total = code.shared as u32 + shared;
        if total > SHARED_LIMIT && shared > found.max_dynamic {
            refuse!(
                InvalidValue,
                "`{}` asks for {shared} bytes of dynamic and {} of static shared memory, at most {SHARED_LIMIT}",
                code.name,
                code.shared
            );
        }
        if code.formal > PARAM_LIMIT {
            refuse!(
                OutOfResources,
                "`{}` has {} bytes of parameters, at most {PARAM_LIMIT}",
                code.name,
                code.formal
            );
        }
        Ok(())
    }

    /// Reads the parameters through `kernelParams`, or from the buffer of `extra`.
    fn parameters(
        &mut self,
        function: u64,
        list: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> Result<Vec<u8>> {
        let found = self.functions.get(function)?;
        let code = &found.program.functions[found.entry];
        let mut params = vec![0u8; code.formal];
        if !extra.is_null() {
            if !list.is_null() {
                refuse!(InvalidValue, "both kernelParams and extra are given");
            }
            let buffer = packed(extra)?;
            if buffer.len() < code.formal {
                refuse!(
                    InvalidValue,
                    "`{}` takes {} bytes of parameters, {} given",
                    code.name,
                    code.formal,
                    buffer.len()
                );
            }
            params.copy_from_slice(&buffer[..code.formal]);
            return Ok(params);
        }
        for (i, &(at, size)) in code.arguments.iter().enumerate() {
            if list.is_null() {
                refuse!(
                    InvalidValue,
                    "kernelParams is null and `{}` takes {} parameters",
                    code.name,
                    code.arguments.len()
                );
            }
            let from = take(list.wrapping_add(i), "kernelParams")?;
            if from.is_null() {
                refuse!(InvalidValue, "parameter {i} of `{}` is null", code.name);
            }
            // SAFETY: the caller promises as many bytes as the kernel declares.
            unsafe { std::ptr::copy_nonoverlapping(from as *const u8, params.as_mut_ptr().add(at), size) };
        }
        Ok(params)
    }
}

/// The buffer that `CU_LAUNCH_PARAM_BUFFER_POINTER` (1) and `_SIZE` (2) name in `extra`, ended by 0.
fn packed(extra: *mut *mut c_void) -> Result<Vec<u8>> {
    let (mut pointer, mut size) = (std::ptr::null::<u8>(), 0usize);
    for i in (0..16).step_by(2) {
        let key = take(extra.wrapping_add(i), "extra")? as usize;
        if key == 0 {
            break;
        }
        let value = take(extra.wrapping_add(i + 1), "extra")?;
        match key {
            1 => pointer = value as *const u8,
            2 => size = take(value as *const usize, "the size in extra")?,
            _ => refuse!(InvalidValue, "unknown key {key} in extra"),
        }
    }
    if pointer.is_null() {
        refuse!(InvalidValue, "extra names no buffer");
    }
    let mut buffer = vec![0; size];
    // SAFETY: the caller promises `size` bytes.
    unsafe { std::ptr::copy_nonoverlapping(pointer, buffer.as_mut_ptr(), size) };
    Ok(buffer)
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub extern "C" fn cuLaunchKernel(
    function: u64,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: u64,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> c_int {
    driver("cuLaunchKernel", |sim| {
        let stream = sim.stream(stream)?;
        let context = sim.current()?;
        if sim.functions.get(function)?.context != context {
            refuse!(InvalidContext, "the function belongs to another context than the current one");
        }
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        sim.check_limits(function, grid, block, shared)?;
        let params = sim.parameters(function, params, extra)?;
        let found = sim.functions.get(function)?;
        let (program, entry) = (found.program.clone(), found.entry);
        let name = format!("kernel `{}`", program.functions[entry].name);
        let launch = Launch { entry, grid, block, shared, params };
        let work: Run = Arc::new(move |stage| {
            let order = stage.config.shuffled.then_some(&mut *stage.random);
            let outcome = run(&program, &launch, &mut stage.window, stage.config.budget, order)?;
            stage.counters.totals.instructions += outcome.instructions;
            stage.reports.extend(outcome.reports);
            Ok(())
        });
        sim.counters.totals.launches += 1;
        sim.counters.totals.kernel_launches += 1;
        sim.enqueue(stream, &name, Work::Run(work))?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncGetAttribute(out: *mut c_int, attribute: c_int, function: u64) -> c_int {
    driver("cuFuncGetAttribute", |sim| {
        sim.current()?;
        let capability = sim.config.capability.0 * 10 + sim.config.capability.1;
        let found = sim.functions.get(function)?;
        let code = &found.program.functions[found.entry];
        let value = match attribute {
            0 => code.max_threads.unwrap_or(BLOCK_LIMIT) as c_int,
            1 => code.shared as c_int,
            3 => code.local as c_int,
            4 => 32,
            5 => found.program.version as c_int,
            6 => capability,
            8 => found.max_dynamic.max(SHARED_LIMIT - code.shared as u32) as c_int,
            2 | 7 | 9..=17 => 0,
            _ => refuse!(InvalidValue, "function attribute {attribute} is unknown"),
        };
        put(out, value, "pi")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetAttribute(function: u64, attribute: c_int, value: c_int) -> c_int {
    driver("cuFuncSetAttribute", |sim| {
        sim.current()?;
        let found = sim.functions.get(function)?;
        match attribute {
            8 => {
                let fixed = found.program.functions[found.entry].shared as i64;
                if value < 0 || i64::from(value) + fixed > i64::from(SHARED_OPT_IN) {
                    refuse!(InvalidValue, "{value} bytes of dynamic shared memory are too many");
                }
                found.max_dynamic = value as u32;
            }
            9 => {}
            _ => refuse!(InvalidValue, "function attribute {attribute} cannot be set"),
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    out: *mut c_int,
    function: u64,
    block: c_int,
    _shared: usize,
) -> c_int {
    driver("cuOccupancyMaxActiveBlocksPerMultiprocessor", |sim| {
        sim.current()?;
        sim.functions.get(function)?;
        if block <= 0 {
            refuse!(InvalidValue, "the block size is not positive");
        }
        put(out, (2048 / block).clamp(0, 32), "numBlocks")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuOccupancyMaxPotentialBlockSize(
    grid: *mut c_int,
    block: *mut c_int,
    function: u64,
    _dynamic: Option<extern "C" fn(c_int) -> usize>,
    _shared: usize,
    limit: c_int,
) -> c_int {
    driver("cuOccupancyMaxPotentialBlockSize", |sim| {
        sim.current()?;
        sim.functions.get(function)?;
        let size = if limit > 0 { limit.min(1024) } else { 1024 };
        put(grid, 4 * 2048 / size, "minGridSize")?;
        put(block, size, "blockSize")
    })
}
