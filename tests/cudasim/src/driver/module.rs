//! Modules: PTX in, functions and variables out.

use std::collections::HashMap;
use std::sync::Arc;

use libc::{c_char, c_int, c_uint, c_void};

use crate::boundary::{driver, put, put_if, text};
use crate::ptx::decode::decode;
use crate::ptx::parse::parse;
use crate::ptx::types::{Init, Source, Space};
use crate::reason::{Result, refuse};
use crate::state::{Function, Module, Sim};
use crate::store::Place;

impl Sim {
    fn load(&mut self, out: *mut u64, image: *const c_void) -> Result {
        let context = self.current()?;
        let source = text(image.cast(), "image")?;
        let source = parse(&source)?;
        let (major, minor) = self.config.capability;
        if source.target > (major * 10 + minor) as u32 {
            refuse!(NoBinary, "the PTX is for sm_{}, the device is sm_{major}{minor}", source.target);
        }
        let newest = newest_ptx(self.config.driver);
        if source.version > newest {
            refuse!(PtxVersion, "the PTX has version {}, the driver knows up to {newest}", source.version);
        }
        let globals = self.place_variables(&source, context)?;
        let addresses = globals.iter().map(|(name, (address, _))| (name.clone(), *address)).collect();
        let program = match decode(&source, &addresses) {
            Ok(program) => Arc::new(program),
            Err(fault) => {
                for (address, _) in globals.values() {
                    self.store.free(*address, &[Place::Module])?;
                }
                return Err(fault);
            }
        };
        let module = self.modules.add(Module { context, program, globals, functions: Vec::new() });
        put(out, module, "module")
    }

    /// Allocates and initialises the variables of global and constant space.
    fn place_variables(&mut self, source: &Source, context: u64) -> Result<HashMap<String, (u64, usize)>> {
        let device = self.device_of(context)?;
        let mut globals = HashMap::new();
        let vars: Vec<_> = source
            .vars
            .iter()
            .filter(|v| matches!(v.space, Space::Global | Space::Const) && v.size > 0)
            .collect();
        for var in &vars {
            let address =
                self.store.allocate(var.size, context, device, self.config.memory, Place::Module)?;
            globals.insert(var.name.clone(), (address, var.size));
        }
        for var in vars {
            let mut bytes = vec![0u8; var.size];
            let size = var.element.size();
            for (i, init) in var.init.iter().enumerate() {
                let value = match init {
                    Init::Bits(bits) => *bits,
                    Init::Address(name, offset) => match globals.get(name) {
                        Some((address, _)) => address.wrapping_add(*offset as u64),
                        None => refuse!(InvalidPtx, "initialiser of `{}`: unknown name `{name}`", var.name),
                    },
                };
                if (i + 1) * size <= bytes.len() {
                    bytes[i * size..(i + 1) * size].copy_from_slice(&value.to_le_bytes()[..size]);
                }
            }
            let address = globals[&var.name].0;
            self.store.poke(address, &bytes);
        }
        Ok(globals)
    }
}

/// The newest PTX version (times ten) of a driver.
fn newest_ptx(driver: i32) -> u32 {
    let (major, minor) = (driver / 1000, driver % 1000 / 10);
    match (major, minor) {
        (..=11, _) => 78,
        (12, 0..=4) => 80 + minor as u32,
        (12, 5..=7) => 85,
        (12, 8) => 87,
        (12, _) => 88,
        (_, minor) => 90 + minor as u32,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleLoadData(out: *mut u64, image: *const c_void) -> c_int {
    driver("cuModuleLoadData", |sim| sim.load(out, image))
}

/// The options are ignored.
#[unsafe(no_mangle)]
pub extern "C" fn cuModuleLoadDataEx(
    out: *mut u64,
    image: *const c_void,
    _count: c_uint,
    _options: *mut c_int,
    _values: *mut *mut c_void,
) -> c_int {
    driver("cuModuleLoadDataEx", |sim| sim.load(out, image))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: u64) -> c_int {
    driver("cuModuleUnload", |sim| {
        let context = sim.current_even_failed()?;
        if sim.modules.get(module)?.context != context {
            refuse!(InvalidContext, "the module belongs to another context than the current one");
        }
        sim.wait_context(context)?;
        let module = sim.modules.remove(module)?;
        for function in module.functions {
            sim.functions.remove(function)?;
        }
        for (address, _) in module.globals.into_values() {
            sim.store.free(address, &[Place::Module])?;
            sim.races.forget(address);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleGetFunction(out: *mut u64, module: u64, name: *const c_char) -> c_int {
    driver("cuModuleGetFunction", |sim| {
        sim.current()?;
        let name = text(name, "name")?;
        let found = sim.modules.get(module)?;
        let entry = found.program.functions.iter().position(|f| f.name == name && f.entry);
        let Some(entry) = entry else { refuse!(NotFound, "the module has no kernel `{name}`") };
        let (context, program) = (found.context, found.program.clone());
        let function = sim.functions.add(Function { module, context, entry, program, max_dynamic: 0 });
        sim.modules.get(module)?.functions.push(function);
        put(out, function, "hfunc")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleGetGlobal_v2(
    out: *mut u64,
    size: *mut usize,
    module: u64,
    name: *const c_char,
) -> c_int {
    driver("cuModuleGetGlobal_v2", |sim| {
        sim.current()?;
        let name = text(name, "name")?;
        match sim.modules.get(module)?.globals.get(&name) {
            Some(&(address, bytes)) => {
                put_if(out, address);
                put_if(size, bytes);
                Ok(())
            }
            None => refuse!(NotFound, "the module has no variable `{name}`"),
        }
    })
}
