//! The optimizer as this program uses it: a safe skin over the exported C functions, and the only
//! file of the example with `unsafe` in it. A C program would make the same calls in the same order.

use foam::abi::{self, foam_config, foam_error, foam_factor_info, foam_param, foam_stats_info, foam_tensor};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt;
use std::mem::{MaybeUninit, size_of};
use std::ptr;
use std::sync::{Mutex, PoisonError};

/// A call that did not return `FOAM_OK`.
#[derive(Debug)]
pub struct Failure {
    call: &'static str,
    status: abi::foam_status,
    message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: the library returns a static C string for every number.
        let name = unsafe { CStr::from_ptr(abi::foam_status_name(self.status)) };
        write!(f, "{}: {} ({})", self.call, self.message, name.to_string_lossy())
    }
}

impl std::error::Error for Failure {}

/// Makes one call with an error record of its own.
fn checked(
    call: &'static str,
    body: impl FnOnce(*mut foam_error) -> abi::foam_status,
) -> Result<(), Failure> {
    let mut error = foam_error::new();
    match body(&mut error) {
        abi::FOAM_OK => Ok(()),
        status => Err(Failure { call, status, message: error.text() }),
    }
}

/// A C string; text with a NUL in it ends there, and the library will say what it thinks of the rest.
fn c_string(text: &str) -> CString {
    CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default()
}

/// One line about the library that is loaded.
pub fn build_info() -> String {
    // SAFETY: a static C string.
    unsafe { CStr::from_ptr(abi::foam_build_info()) }.to_string_lossy().into_owned()
}

/// A configuration that is being put together.
#[derive(Clone)]
pub struct Config(foam_config);

impl Config {
    /// The library's defaults.
    pub fn new() -> Result<Self, Failure> {
        let mut raw = MaybeUninit::<foam_config>::uninit();
        let size = size_of::<foam_config>() as u32;
        checked("foam_config_init", |error| {
            // SAFETY: `raw` has `size` writable bytes; NULL is the default preset.
            unsafe { abi::foam_config_init(raw.as_mut_ptr(), size, ptr::null(), error) }
        })?;
        // SAFETY: the successful call filled it.
        Ok(Config(unsafe { raw.assume_init() }))
    }

    /// Sets an option by name.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), Failure> {
        let (key, value) = (c_string(key), c_string(value));
        checked("foam_config_set", |error| {
            // SAFETY: an initialised configuration and two C strings.
            unsafe { abi::foam_config_set(&mut self.0, key.as_ptr(), value.as_ptr(), error) }
        })
    }

    /// The text form of an option.
    pub fn get(&self, key: &str) -> Result<String, Failure> {
        let key = c_string(key);
        let mut text: [c_char; 256] = [0; 256];
        checked("foam_config_get", |error| {
            // SAFETY: an initialised configuration, a C string, and a buffer of the size that is given.
            unsafe { abi::foam_config_get(&self.0, key.as_ptr(), text.as_mut_ptr(), text.len(), error) }
        })?;
        // SAFETY: the successful call wrote a NUL-terminated string.
        Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// An option that is a number.
    pub fn number(&self, key: &str) -> Result<f64, Failure> {
        Ok(self.get(key)?.parse().unwrap_or(f64::NAN))
    }
}

/// What the library had to warn about, and how often: it never prints itself.
#[derive(Default)]
struct Warnings(Mutex<BTreeMap<String, usize>>);

/// The library's log callback; `user` is the session's [`Warnings`].
unsafe extern "C" fn keep_warning(user: *mut c_void, level: i32, message: *const c_char) {
    if level != abi::FOAM_LOG_WARNING {
        return;
    }
    // SAFETY: the session keeps its warnings until the optimizer is destroyed; the message is a C string.
    let (warnings, message) = unsafe { (&*user.cast::<Warnings>(), CStr::from_ptr(message)) };
    let mut counts = warnings.0.lock().unwrap_or_else(PoisonError::into_inner);
    *counts.entry(message.to_string_lossy().into_owned()).or_default() += 1;
}

/// Name and shape of a parameter.
pub struct Parameter {
    pub name: String,
    pub shape: Vec<i64>,
}

/// An optimizer for a fixed list of f32 parameters in host memory.
pub struct Session {
    handle: *mut abi::foam_optimizer,
    shapes: Vec<Vec<i64>>,
    /// Boxed, because the library holds its address.
    warnings: Box<Warnings>,
}

impl Session {
    /// Creates the optimizer; the configuration is validated as a whole here.
    pub fn create(config: &Config, parameters: &[Parameter]) -> Result<Self, Failure> {
        let names: Vec<CString> = parameters.iter().map(|p| c_string(&p.name)).collect();
        let mut described = Vec::with_capacity(parameters.len());
        for (parameter, name) in parameters.iter().zip(&names) {
            let mut param = MaybeUninit::<foam_param>::uninit();
            let size = size_of::<foam_param>() as u32;
            checked("foam_param_init", |error| {
                // SAFETY: `param` has `size` writable bytes.
                unsafe { abi::foam_param_init(param.as_mut_ptr(), size, error) }
            })?;
            // SAFETY: the successful call filled it.
            let mut param = unsafe { param.assume_init() };
            param.name = name.as_ptr();
            param.shape = parameter.shape.as_ptr();
            param.ndim = parameter.shape.len() as i32;
            described.push(param);
        }
        let warnings = Box::<Warnings>::default();
        let mut config = config.clone();
        config.0.log = Some(keep_warning);
        config.0.log_user = (&raw const *warnings).cast_mut().cast::<c_void>();
        let mut handle = ptr::null_mut();
        checked("foam_create", |error| {
            // SAFETY: names and shapes outlive the call, which copies them; the warnings outlive the handle.
            unsafe { abi::foam_create(&config.0, described.as_ptr(), described.len(), &mut handle, error) }
        })?;
        Ok(Session { handle, shapes: parameters.iter().map(|p| p.shape.clone()).collect(), warnings })
    }

    /// Updates the parameters in place with learning rate `lr`. Slices are in the order of creation.
    pub fn step(&mut self, params: &mut [&mut [f32]], grads: &[&[f32]], lr: f64) -> Result<(), Failure> {
        assert!(params.len() == self.shapes.len() && grads.len() == self.shapes.len());
        let targets: Vec<foam_tensor> = (params.iter_mut().zip(&self.shapes))
            .map(|(values, shape)| tensor(values.as_mut_ptr(), values.len(), shape))
            .collect();
        let sources: Vec<foam_tensor> = (grads.iter().zip(&self.shapes))
            .map(|(values, shape)| tensor(values.as_ptr().cast_mut(), values.len(), shape))
            .collect();
        let mut args = MaybeUninit::<abi::foam_step_args>::uninit();
        let size = size_of::<abi::foam_step_args>() as u32;
        checked("foam_step_args_init", |error| {
            // SAFETY: `args` has `size` writable bytes.
            unsafe { abi::foam_step_args_init(args.as_mut_ptr(), size, error) }
        })?;
        // SAFETY: the successful call filled it.
        let mut args = unsafe { args.assume_init() };
        args.count = targets.len();
        args.params = targets.as_ptr();
        args.grads = sources.as_ptr();
        args.lr = lr;
        checked("foam_step", |error| {
            // SAFETY: the tensors describe slices borrowed until the call returns; gradients are only read.
            unsafe { abi::foam_step(self.handle, &args, error) }
        })
    }

    /// The library's warnings so far, each with its count.
    pub fn warnings(&self) -> BTreeMap<String, usize> {
        self.warnings.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Figures of the whole optimizer.
    pub fn stats(&mut self) -> Result<foam_stats_info, Failure> {
        let struct_size = size_of::<foam_stats_info>() as u32;
        let mut stats = foam_stats_info { struct_size, ..Default::default() };
        // SAFETY: a live handle and a record whose size is set.
        checked("foam_stats", |error| unsafe { abi::foam_stats(self.handle, &mut stats, error) })?;
        Ok(stats)
    }

    /// Figures of every factor, in the order parameter, block, axis.
    pub fn factors(&mut self) -> Result<Vec<foam_factor_info>, Failure> {
        let item = size_of::<foam_factor_info>();
        let mut count = 0;
        checked("foam_factor_stats", |error| {
            // SAFETY: no items and no capacity: the call only counts.
            unsafe { abi::foam_factor_stats(self.handle, ptr::null_mut(), item, 0, &mut count, error) }
        })?;
        let mut items = vec![foam_factor_info::default(); count];
        checked("foam_factor_stats", |error| {
            let capacity = items.len();
            // SAFETY: `capacity` items of `item` bytes.
            unsafe {
                abi::foam_factor_stats(self.handle, items.as_mut_ptr(), item, capacity, &mut count, error)
            }
        })?;
        Ok(items)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: the handle came from `foam_create` and is not used again.
        unsafe { abi::foam_destroy(self.handle) };
    }
}

/// A row-major f32 tensor in host memory. DLPack's pointers are mutable, but shapes are only read.
fn tensor(data: *mut f32, len: usize, shape: &[i64]) -> foam_tensor {
    assert_eq!(len as i64, shape.iter().product::<i64>(), "the slice has the declared shape");
    foam_tensor {
        data: data.cast::<c_void>(),
        device: abi::foam_device { device_type: abi::FOAM_DEVICE_CPU, device_id: 0 },
        ndim: shape.len() as i32,
        dtype: abi::foam_dtype { code: abi::FOAM_DTYPE_FLOAT, bits: 32, lanes: 1 },
        shape: shape.as_ptr().cast_mut(),
        strides: ptr::null_mut(),
        byte_offset: 0,
    }
}
