//! An optimizer of parameters of any type, through the exported C functions and nothing else.

use super::gpu::Gpu;
use super::tensor::{Dtype, Tensor};
use foam::abi::*;
use ndarray::Array2;
use std::ffi::{CStr, CString, c_void};
use std::mem::{MaybeUninit, size_of};
use std::path::Path;
use std::ptr::null_mut;

/// A parameter as it is declared.
#[derive(Clone, Debug)]
pub struct Spec {
    pub name: String,
    pub shape: Vec<i64>,
    pub dtype: Dtype,
    pub lr_scale: f64,
    pub weight_decay_scale: f64,
    pub root: f64,
    pub grafting_only: bool,
}

impl Spec {
    /// A parameter of f64 with every default.
    pub fn new(name: &str, shape: &[i64]) -> Spec {
        let (name, shape) = (name.to_string(), shape.to_vec());
        let (lr_scale, weight_decay_scale) = (1.0, 1.0);
        Spec { name, shape, dtype: Dtype::F64, lr_scale, weight_decay_scale, root: 0.0, grafting_only: false }
    }

    /// The same with another element type.
    pub fn of(self, dtype: Dtype) -> Spec {
        Spec { dtype, ..self }
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product::<i64>() as usize
    }

    /// A tensor of this parameter's shape and type.
    pub fn tensor(&self, values: &[f64]) -> Tensor {
        Tensor::of(self.dtype, &self.shape, values)
    }
}

/// Parameters in C, and the names that they point to; the shapes are those of the specs, which have to live as long.
pub struct Declared {
    _names: Vec<CString>,
    pub params: Vec<foam_param>,
}

impl Declared {
    pub fn new(specs: &[Spec]) -> Declared {
        let names: Vec<CString> = specs.iter().map(|s| CString::new(&*s.name).unwrap()).collect();
        let declare = |(spec, name): (&Spec, &CString)| {
            let mut param = MaybeUninit::<foam_param>::uninit();
            // SAFETY: the struct has the size that is passed; the call fills it if it succeeds.
            let mut param = unsafe {
                checked(|error| foam_param_init(param.as_mut_ptr(), size_of::<foam_param>() as u32, error))
                    .unwrap();
                param.assume_init()
            };
            (param.name, param.dtype, param.root) = (name.as_ptr(), spec.dtype.in_c(), spec.root);
            (param.shape, param.ndim) = (spec.shape.as_ptr(), spec.shape.len() as i32);
            (param.lr_scale, param.weight_decay_scale) = (spec.lr_scale, spec.weight_decay_scale);
            param.flags = if spec.grafting_only { FOAM_PARAM_GRAFTING_ONLY } else { 0 };
            param
        };
        let params = specs.iter().zip(&names).map(declare).collect();
        Declared { _names: names, params }
    }
}

/// A call that failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    pub status: foam_status,
    pub param_index: i64,
    pub message: String,
}

/// What a step may be given besides the tensors.
#[derive(Clone, Copy, Debug)]
pub struct StepWith {
    /// NaN for the configuration's.
    pub lr: f64,
    pub grad_scale: f64,
}

impl Default for StepWith {
    fn default() -> Self {
        StepWith { lr: f64::NAN, grad_scale: 1.0 }
    }
}

/// Which factor: parameter, block within it, axis within that.
pub type Place = (i64, i64, i64);

/// One optimizer handle.
pub struct Model {
    handle: *mut foam_optimizer,
    count: usize,
    /// With `device=cuda`: the device on which the tensors are put for each step.
    pub gpu: Option<Gpu>,
    /// Called right before the library's step, and right after it.
    pub before_step: Option<Box<dyn Fn()>>,
    /// See `before_step`.
    pub after_step: Option<Box<dyn Fn()>>,
}

/// A configuration: a preset, then options as "key=value key=value".
pub fn configuration(preset: &str, options: &str) -> Result<foam_config, Failure> {
    let preset = CString::new(preset).unwrap();
    let mut config = MaybeUninit::<foam_config>::uninit();
    // SAFETY: the struct has the size that is passed; the call fills it if it succeeds.
    let mut config = unsafe {
        let size = size_of::<foam_config>() as u32;
        checked(|error| foam_config_init(config.as_mut_ptr(), size, preset.as_ptr(), error))?;
        config.assume_init()
    };
    for option in options.split_whitespace() {
        let (key, value) = option.split_once('=').expect("key=value");
        set(&mut config, key, value)?;
    }
    Ok(config)
}

/// Sets one option.
pub fn set(config: &mut foam_config, key: &str, value: &str) -> Result<(), Failure> {
    let (key, value) = (CString::new(key).unwrap(), CString::new(value).unwrap());
    // SAFETY: an initialised struct and C strings.
    checked(|error| unsafe { foam_config_set(config, key.as_ptr(), value.as_ptr(), error) })
}

impl Model {
    /// An optimizer for `specs`; see [`configuration`].
    #[track_caller]
    pub fn new(preset: &str, options: &str, specs: &[Spec]) -> Model {
        let made = configuration(preset, options).and_then(|config| Model::create(&config, specs));
        made.unwrap_or_else(|failure| panic!("{preset} {options}: {failure:?}"))
    }

    /// An optimizer, or why there is none.
    pub fn create(config: &foam_config, specs: &[Spec]) -> Result<Model, Failure> {
        let mut model = Model::create_only(config, specs)?;
        model.gpu = (config.device_type == FOAM_DEVICE_CUDA).then(Gpu::open);
        Ok(model)
    }

    /// The same without a device of the test's own to put tensors on.
    pub fn create_only(config: &foam_config, specs: &[Spec]) -> Result<Model, Failure> {
        let Declared { params, .. } = &Declared::new(specs);
        let mut handle = null_mut();
        // SAFETY: names and shapes outlive the call, which copies them.
        checked(|error| unsafe { foam_create(config, params.as_ptr(), params.len(), &mut handle, error) })?;
        Ok(Model { handle, count: specs.len(), gpu: None, before_step: None, after_step: None })
    }

    /// One step on all parameters.
    #[track_caller]
    pub fn step(&mut self, params: &mut [Tensor], grads: &[Tensor]) {
        let grads: Vec<_> = grads.iter().cloned().map(Some).collect();
        let skipped = self.try_step(params, &grads, StepWith::default());
        assert_eq!(skipped, Ok(false));
    }

    /// One step; a parameter without a gradient takes no part. Says whether the step was skipped.
    pub fn try_step(
        &mut self,
        params: &mut [Tensor],
        grads: &[Option<Tensor>],
        with: StepWith,
    ) -> Result<bool, Failure> {
        assert_eq!((params.len(), grads.len()), (self.count, self.count));
        let mut grads = grads.to_vec();
        let mut own = params.iter_mut().map(Tensor::in_c).collect::<Vec<_>>();
        let absent = foam_tensor { data: null_mut(), byte_offset: 0, ..own[0] };
        let mut lent = grads.iter_mut().map(|g| g.as_mut().map_or(absent, Tensor::in_c)).collect::<Vec<_>>();
        let Some(mut gpu) = self.gpu.take() else { return self.call_step(&own, &lent, with, null_mut()) };
        for (which, tensor) in own.iter_mut().chain(&mut lent).enumerate() {
            to_device(&mut gpu, which, tensor);
        }
        let outcome = gpu.within(|| self.call_step(&own, &lent, with, gpu.stream()));
        for (which, tensor) in params.iter_mut().enumerate() {
            gpu.get(which, &mut tensor.bytes);
        }
        self.gpu = Some(gpu);
        outcome
    }

    fn call_step(
        &mut self,
        params: &[foam_tensor],
        grads: &[foam_tensor],
        with: StepWith,
        stream: *mut c_void,
    ) -> Result<bool, Failure> {
        let mut args = MaybeUninit::<foam_step_args>::uninit();
        let mut skipped = -1;
        // SAFETY: as for the configuration; the tensors point into buffers that outlive the call.
        unsafe {
            let size = size_of::<foam_step_args>() as u32;
            checked(|error| foam_step_args_init(args.as_mut_ptr(), size, error))?;
            let mut args = args.assume_init();
            (args.count, args.params, args.grads) = (params.len(), params.as_ptr(), grads.as_ptr());
            (args.lr, args.grad_scale, args.skipped) = (with.lr, with.grad_scale, &mut skipped);
            args.stream = stream;
            self.before_step.iter().for_each(|hook| hook());
            let outcome = checked(|error| foam_step(self.handle, &args, error));
            self.after_step.iter().for_each(|hook| hook());
            outcome?;
        }
        Ok(skipped == 1)
    }

    /// The handle itself, for calls that this wrapper does not have.
    pub fn handle(&self) -> *mut foam_optimizer {
        self.handle
    }

    /// Statistics of the whole optimizer.
    pub fn stats(&self) -> foam_stats_info {
        let size = size_of::<foam_stats_info>() as u32;
        let mut info = foam_stats_info { struct_size: size, ..Default::default() };
        // SAFETY: a live handle and a struct of the size that it says.
        checked(|error| unsafe { foam_stats(self.handle, &mut info, error) }).unwrap();
        info
    }

    /// Statistics of every factor, ordered by parameter, block and axis.
    pub fn factors(&self) -> Vec<foam_factor_info> {
        let size = size_of::<foam_factor_info>();
        let mut count = self.stats().factors as usize;
        let mut items = vec![foam_factor_info::default(); count];
        // SAFETY: `items` has room for `count` records of `size` bytes.
        checked(|error| unsafe {
            foam_factor_stats(self.handle, items.as_mut_ptr(), size, items.len(), &mut count, error)
        })
        .unwrap();
        assert_eq!(count, items.len());
        items
    }

    /// Statistics of one factor.
    pub fn factor(&self, place: Place) -> foam_factor_info {
        let all = self.factors();
        *all.iter().find(|f| (f.param_index, f.block, f.axis) == place).expect("there is such a factor")
    }

    /// A matrix or vector of one factor; `what` is one of `FOAM_FACTOR_*`.
    pub fn read(&self, (param, block, axis): Place, what: i32) -> Vec<f64> {
        let dim = self.factor((param, block, axis)).dim as usize;
        let mut values = vec![f64::NAN; dim * dim];
        let mut count = 0;
        // SAFETY: `values` has room for a square matrix, the largest thing that a factor has.
        checked(|error| unsafe {
            let (to, room) = (values.as_mut_ptr(), values.len());
            foam_factor_read(self.handle, param, block, axis, what, to, room, &mut count, error)
        })
        .unwrap();
        values.truncate(count);
        values
    }

    /// A square matrix of one factor.
    pub fn matrix(&self, place: Place, what: i32) -> Array2<f64> {
        super::matrix::square(self.read(place, what))
    }

    /// The true relative gap between a factor's inverse root and a fresh one.
    pub fn exact_gap(&self, (param, block, axis): Place) -> f64 {
        let mut gap = f64::NAN;
        // SAFETY: a live handle and a place for one number.
        checked(|error| unsafe { foam_exact_gap(self.handle, param, block, axis, &mut gap, error) }).unwrap();
        gap
    }

    /// The state as the bytes of a checkpoint.
    pub fn save(&self) -> Vec<u8> {
        let mut size = 0;
        // SAFETY: a size query writes nothing but the size.
        checked(|error| unsafe { foam_save_memory(self.handle, null_mut(), 0, &mut size, error) }).unwrap();
        let mut bytes = vec![0u8; size];
        // SAFETY: `bytes` has room for `size` bytes.
        checked(|error| unsafe {
            foam_save_memory(self.handle, bytes.as_mut_ptr().cast(), bytes.len(), &mut size, error)
        })
        .unwrap();
        assert_eq!(size, bytes.len());
        bytes
    }

    /// Takes over the state of a checkpoint in memory.
    pub fn load(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        // SAFETY: a live handle and the bytes of a slice.
        checked(|error| unsafe { foam_load_memory(self.handle, bytes.as_ptr().cast(), bytes.len(), error) })
    }

    /// Writes a checkpoint file.
    pub fn save_file(&self, path: &Path) -> Result<(), Failure> {
        let path = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a live handle and a C string.
        checked(|error| unsafe { foam_save_file(self.handle, path.as_ptr(), error) })
    }

    /// Reads a checkpoint file.
    pub fn load_file(&mut self, path: &Path) -> Result<(), Failure> {
        let path = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a live handle and a C string.
        checked(|error| unsafe { foam_load_file(self.handle, path.as_ptr(), error) })
    }

    /// Everything about the optimizer that a run determines, as text that is equal only if all of it is: the
    /// statistics without times, threads and workspace.
    pub fn statistics(&self) -> String {
        let stats = self.stats();
        let total = (stats.steps, stats.skipped_steps, stats.state_bytes_host);
        let factors: Vec<String> = self.factors().iter().map(|f| format!("{f:?}")).collect();
        format!("{total:?}\n{}", factors.join("\n"))
    }
}

/// Puts a host tensor (unless it is absent) on the device.
fn to_device(gpu: &mut Gpu, which: usize, tensor: &mut foam_tensor) {
    if tensor.data.is_null() {
        return;
    }
    // SAFETY: a tensor of this module: contiguous, with `ndim` sizes.
    let bytes = unsafe {
        let shape = std::slice::from_raw_parts(tensor.shape, tensor.ndim as usize);
        let elements: i64 = shape.iter().product();
        let size = elements as usize * tensor.dtype.bits as usize / 8;
        let first = tensor.data.cast::<u8>().add(tensor.byte_offset as usize);
        std::slice::from_raw_parts(first, size)
    };
    tensor.data = gpu.put(which, bytes) as *mut c_void;
    tensor.byte_offset = 0;
    tensor.device = foam_device { device_type: FOAM_DEVICE_CUDA, device_id: 0 };
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: the handle is live and not used again.
        unsafe { foam_destroy(self.handle) }
    }
}

pub fn checked(call: impl FnOnce(*mut foam_error) -> foam_status) -> Result<(), Failure> {
    let mut error = foam_error::new();
    let status = call(&mut error);
    if status == FOAM_OK {
        return Ok(());
    }
    assert_eq!(status, error.code);
    // SAFETY: the library returns a C string that lives as long as it does.
    let name = unsafe { CStr::from_ptr(foam_status_name(status)) }.to_string_lossy();
    Err(Failure { status, param_index: error.param_index, message: format!("{name}: {}", error.text()) })
}

/// A checkpoint without its last tensor, the checksums, which differ with every byte of the header.
pub fn without_checksums(mut bytes: Vec<u8>) -> Vec<u8> {
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("a checkpoint");
    let sums = file.tensor("crc32").expect("a checkpoint has checksums").data().len();
    bytes.truncate(bytes.len() - sums);
    bytes
}
