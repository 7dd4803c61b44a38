//! The optimizer as a C program sees it: a thin safe wrapper around the exported functions.
//!
//! Tests and examples go through it so that what they check is the ABI, not the crate's insides.

#![allow(dead_code, reason = "each program that includes this module uses a part of it")]

#[path = "gpu.rs"]
mod gpu;

use foam::abi::*;
use gpu::Gpu;
use std::ffi::{CStr, CString, c_void};
use std::mem::{MaybeUninit, size_of};
use std::ptr::{null, null_mut};

/// An element type of parameters and gradients.
pub trait Element: Copy + Default + bytemuck::Pod {
    /// Bits of one element.
    const BITS: u8;
    /// The element nearest to `value`.
    fn of(value: f64) -> Self;
    /// The element's value.
    fn value(self) -> f64;
}

impl Element for f32 {
    const BITS: u8 = 32;
    fn of(value: f64) -> Self {
        value as f32
    }
    fn value(self) -> f64 {
        self.into()
    }
}

impl Element for f64 {
    const BITS: u8 = 64;
    fn of(value: f64) -> Self {
        value
    }
    fn value(self) -> f64 {
        self
    }
}

/// A parameter's shape, and its own root (0 for the configuration's).
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Sizes of its dimensions.
    pub shape: Vec<i64>,
    /// p of its inverse roots.
    pub root: f64,
}

/// Which factor: parameter, block within it, axis within that.
pub type Place = (i64, i64, i64);

/// One optimizer handle, for parameters of type `T`.
pub struct Engine<T: Element> {
    handle: *mut foam_optimizer,
    gpu: Option<Gpu>,
    shapes: Vec<Vec<i64>>,
    element: std::marker::PhantomData<T>,
}

/// The line that describes the library under test.
pub fn build_info() -> String {
    // SAFETY: the library returns a C string that lives as long as it does.
    unsafe { CStr::from_ptr(foam_build_info()) }.to_string_lossy().into_owned()
}

impl<T: Element> Engine<T> {
    /// An optimizer with a preset and options in text form. Statistics have the parameters' precision, so that
    /// a run in `T` is a run in `T` throughout.
    pub fn new(preset: &str, options: &[(String, String)], params: &[Parameter]) -> Result<Self, String> {
        let mut config = MaybeUninit::<foam_config>::uninit();
        let preset = c_string(preset)?;
        // SAFETY: the struct has the size that is passed; the call fills it if it succeeds.
        let mut config = unsafe {
            let size = size_of::<foam_config>() as u32;
            checked(|error| foam_config_init(config.as_mut_ptr(), size, preset.as_ptr(), error))?;
            config.assume_init()
        };
        let dtype = ("statistic_dtype".to_string(), format!("f{}", T::BITS));
        for (key, value) in options.iter().chain([&dtype]) {
            let (key, value) = (c_string(key)?, c_string(value)?);
            // SAFETY: an initialised struct and C strings.
            checked(|error| unsafe { foam_config_set(&mut config, key.as_ptr(), value.as_ptr(), error) })?;
        }
        let described = params.iter().map(describe::<T>).collect::<Result<Vec<_>, _>>()?;
        let mut handle = null_mut();
        // SAFETY: the descriptions borrow shapes of `params`, which outlive the call.
        checked(|error| unsafe {
            foam_create(&config, described.as_ptr(), described.len(), &mut handle, error)
        })?;
        let shapes = params.iter().map(|p| p.shape.clone()).collect();
        let gpu = (config.device_type == FOAM_DEVICE_CUDA).then(Gpu::open);
        Ok(Engine { handle, gpu, shapes, element: std::marker::PhantomData })
    }

    /// One step on all parameters; every parameter has a gradient.
    pub fn step(&mut self, weights: &mut [Vec<T>], gradients: &[Vec<T>]) -> Result<(), String> {
        for (tensors, what) in [(&*weights, "weights"), (gradients, "gradients")] {
            let sizes = self.shapes.iter().map(|s| s.iter().product::<i64>() as usize);
            if !tensors.iter().map(Vec::len).eq(sizes) {
                return Err(format!("the {what} do not have the parameters' sizes {:?}", self.shapes));
            }
        }
        let shapes = &mut self.shapes;
        let mut params = tensors::<T>(shapes, weights.iter_mut().map(|w| w.as_mut_ptr()));
        // The gradients are only read; the tensor type has no const form.
        let mut grads = tensors::<T>(shapes, gradients.iter().map(|g| g.as_ptr().cast_mut()));
        if let Some(gpu) = &mut self.gpu {
            let all = params.iter_mut().chain(&mut grads).zip(weights.iter().chain(gradients));
            for (which, (tensor, values)) in all.enumerate() {
                tensor.data = gpu.put(which, bytemuck::cast_slice(values)) as *mut c_void;
                tensor.device = foam_device { device_type: FOAM_DEVICE_CUDA, device_id: 0 };
            }
        }
        let mut args = MaybeUninit::<foam_step_args>::uninit();
        // SAFETY: as for the configuration; the tensors point into buffers of the checked sizes.
        unsafe {
            let size = size_of::<foam_step_args>() as u32;
            checked(|error| foam_step_args_init(args.as_mut_ptr(), size, error))?;
            let mut args = args.assume_init();
            (args.count, args.params, args.grads) = (params.len(), params.as_ptr(), grads.as_ptr());
            args.stream = self.gpu.as_ref().map_or(null_mut(), Gpu::stream);
            checked(|error| foam_step(self.handle, &args, error))?;
        }
        if let Some(gpu) = &self.gpu {
            for (which, values) in weights.iter_mut().enumerate() {
                gpu.get(which, bytemuck::cast_slice_mut(values));
            }
        }
        Ok(())
    }

    /// The figures of every factor, ordered by parameter, block and axis.
    pub fn factors(&self) -> Result<Vec<foam_factor_info>, String> {
        let size = size_of::<foam_factor_info>();
        let mut count = 0;
        // SAFETY: a count query writes nothing but the count.
        checked(|error| unsafe { foam_factor_stats(self.handle, null_mut(), size, 0, &mut count, error) })?;
        let mut items = vec![foam_factor_info::default(); count];
        // SAFETY: `items` has room for `count` records of `size` bytes.
        checked(|error| unsafe {
            foam_factor_stats(self.handle, items.as_mut_ptr(), size, items.len(), &mut count, error)
        })?;
        if count != items.len() {
            return Err(format!("foam_factor_stats counted {} factors, then {count}", items.len()));
        }
        Ok(items)
    }

    /// The figures of the whole optimizer.
    pub fn stats(&self) -> Result<foam_stats_info, String> {
        let mut info =
            foam_stats_info { struct_size: size_of::<foam_stats_info>() as u32, ..Default::default() };
        // SAFETY: a live handle, and a record with its size.
        checked(|error| unsafe { foam_stats(self.handle, &mut info, error) })?;
        Ok(info)
    }

    /// A matrix or vector of one factor; `what` is one of `FOAM_FACTOR_*`.
    pub fn read(&self, (param, block, axis): Place, what: i32) -> Result<Vec<f64>, String> {
        let mut count = 0;
        // SAFETY: a count query writes nothing but the count.
        checked(|error| unsafe {
            foam_factor_read(self.handle, param, block, axis, what, null_mut(), 0, &mut count, error)
        })?;
        let mut values = vec![f64::NAN; count];
        // SAFETY: `values` has room for `count` numbers.
        checked(|error| unsafe {
            let (to, room) = (values.as_mut_ptr(), values.len());
            foam_factor_read(self.handle, param, block, axis, what, to, room, &mut count, error)
        })?;
        Ok(values)
    }

    /// The true relative gap between one factor's inverse root and a fresh one.
    pub fn exact_gap(&self, (param, block, axis): Place) -> Result<f64, String> {
        let mut gap = f64::NAN;
        // SAFETY: a live handle and a place for one number.
        checked(|error| unsafe { foam_exact_gap(self.handle, param, block, axis, &mut gap, error) })?;
        Ok(gap)
    }
}

impl<T: Element> Drop for Engine<T> {
    fn drop(&mut self) {
        // SAFETY: the handle is live and not used again.
        unsafe { foam_destroy(self.handle) }
    }
}

fn checked(call: impl FnOnce(*mut foam_error) -> foam_status) -> Result<(), String> {
    let mut error = foam_error::new();
    let status = call(&mut error);
    if status == FOAM_OK {
        return Ok(());
    }
    // SAFETY: the library returns a C string that lives as long as it does.
    let name = unsafe { CStr::from_ptr(foam_status_name(status)) }.to_string_lossy();
    Err(format!("{name}: {}", error.text()))
}

fn c_string(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| format!("'{text}' has a NUL inside"))
}

fn dtype<T: Element>() -> foam_dtype {
    foam_dtype { code: FOAM_DTYPE_FLOAT, bits: T::BITS, lanes: 1 }
}

fn describe<T: Element>(param: &Parameter) -> Result<foam_param, String> {
    let mut described = MaybeUninit::<foam_param>::uninit();
    // SAFETY: the struct has the size that is passed; the call fills it if it succeeds.
    let mut described = unsafe {
        let size = size_of::<foam_param>() as u32;
        checked(|error| foam_param_init(described.as_mut_ptr(), size, error))?;
        described.assume_init()
    };
    (described.name, described.dtype, described.root) = (null(), dtype::<T>(), param.root);
    (described.shape, described.ndim) = (param.shape.as_ptr(), param.shape.len() as i32);
    Ok(described)
}

fn tensors<T: Element>(shapes: &mut [Vec<i64>], data: impl Iterator<Item = *mut T>) -> Vec<foam_tensor> {
    let device = foam_device { device_type: FOAM_DEVICE_CPU, device_id: 0 };
    let tensor = |(shape, data): (&mut Vec<i64>, *mut T)| foam_tensor {
        data: data.cast::<c_void>(),
        device,
        ndim: shape.len() as i32,
        dtype: dtype::<T>(),
        shape: shape.as_mut_ptr(),
        strides: null_mut(),
        byte_offset: 0,
    };
    shapes.iter_mut().zip(data).map(tensor).collect()
}
