//! Initialisation, devices and their attributes.

use libc::{c_char, c_int, c_uint};

use crate::boundary::{copy_text, driver, put};
use crate::reason::{Result, refuse};
use crate::state::Sim;

/// The largest static plus dynamic shared memory of a block without opting in.
pub const SHARED_LIMIT: u32 = 48 << 10;
/// The largest that a function may opt in to.
pub const SHARED_OPT_IN: u32 = 96 << 10;
/// Threads of a block.
pub const BLOCK_LIMIT: u32 = 1024;
/// Threads of a block along each axis.
pub const BLOCK_AXES: [u32; 3] = [1024, 1024, 64];
/// Blocks of a grid along each axis.
pub const GRID_AXES: [u32; 3] = [i32::MAX as u32, 65535, 65535];

impl Sim {
    /// The device's index, if it exists.
    pub fn device(&self, device: c_int) -> Result<usize> {
        self.ready()?;
        if device < 0 || device >= self.config.devices {
            refuse!(InvalidDevice, "device {device} does not exist; there are {}", self.config.devices);
        }
        Ok(device as usize)
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: c_uint) -> c_int {
    driver("cuInit", |sim| {
        if flags != 0 {
            refuse!(InvalidValue, "flags must be 0");
        }
        if sim.config.devices == 0 {
            refuse!(NoDevice, "the simulator is set to have no device");
        }
        sim.initialized = true;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    driver("cuDriverGetVersion", |sim| put(version, sim.config.driver, "driverVersion"))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    driver("cuDeviceGetCount", |sim| {
        sim.ready()?;
        put(count, sim.config.devices, "count")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_int {
    driver("cuDeviceGet", |sim| {
        sim.device(ordinal)?;
        put(device, ordinal, "device")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) -> c_int {
    driver("cuDeviceGetName", |sim| {
        sim.device(device)?;
        if name.is_null() || len <= 0 {
            refuse!(InvalidValue, "name is null or len is not positive");
        }
        copy_text(&format!("cudasim device {device}"), name, len as usize);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> c_int {
    driver("cuDeviceGetAttribute", |sim| {
        sim.device(device)?;
        let (major, minor) = sim.config.capability;
        // Attributes of no consequence here are 0.
        #[allow(clippy::match_overlapping_arm)]
        let answer = match attribute {
            1 => BLOCK_LIMIT as i32,
            2..=4 => BLOCK_AXES[attribute as usize - 2] as i32,
            5..=7 => GRID_AXES[attribute as usize - 5] as i32,
            8 => SHARED_LIMIT as i32,
            9 => 64 << 10,
            10 => 32,
            11 => i32::MAX,
            12 | 82 => 65536,
            13 => 1_000_000,
            14 => 512,
            15 | 19 | 31 | 41 | 78..=80 | 83 | 86 | 89 | 90..=93 | 95 | 99 | 115 => 1,
            16 => 4,
            17 | 18 | 20 => 0,
            33 => device,
            36 => 1_000_000,
            37 => 256,
            38 => 4 << 20,
            39 => 2048,
            40 => 2,
            75 => major,
            76 => minor,
            81 => 100 << 10,
            87 => 2,
            97 => SHARED_OPT_IN as i32,
            106 => 32,
            21..=150 => 0,
            _ => refuse!(InvalidValue, "attribute {attribute} is unknown"),
        };
        put(value, answer, "pi")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) -> c_int {
    driver("cuDeviceTotalMem_v2", |sim| {
        sim.device(device)?;
        put(bytes, sim.config.memory as usize, "bytes")
    })
}

fn uuid(device: usize) -> [u8; 16] {
    let mut bytes = *b"cudasim device\0\0";
    bytes[15] = device as u8;
    bytes
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetUuid(out: *mut [u8; 16], device: c_int) -> c_int {
    driver("cuDeviceGetUuid", |sim| {
        let device = sim.device(device)?;
        put(out, uuid(device), "uuid")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetUuid_v2(out: *mut [u8; 16], device: c_int) -> c_int {
    driver("cuDeviceGetUuid_v2", |sim| {
        let device = sim.device(device)?;
        put(out, uuid(device), "uuid")
    })
}
