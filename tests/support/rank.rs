//! One rank of a world of threads: its optimizer, its tensors, its communicator; on the CPU or on a CUDA device.

#![allow(dead_code, reason = "each test uses a part of it")]

use crate::comm::{BROKEN, Fault, Member, World};
use crate::support::gpu::Gpu;
use crate::support::model::configuration;
use crate::support::random::Random;
use foam::abi::*;
use std::ffi::{CString, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};

pub const F32: foam_dtype = foam_dtype { code: 2, bits: 32, lanes: 1 };
pub const F64: foam_dtype = foam_dtype { code: 2, bits: 64, lanes: 1 };
pub const BF16: foam_dtype = foam_dtype { code: 4, bits: 16, lanes: 1 };

/// A parameter of a test.
#[derive(Clone)]
pub struct P {
    pub name: String,
    pub shape: Vec<i64>,
    pub dtype: foam_dtype,
    pub root: f64,
    pub grafting_only: bool,
}

pub fn p(name: &str, shape: &[i64]) -> P {
    P { name: name.into(), shape: shape.to_vec(), dtype: F32, root: 0.0, grafting_only: false }
}

impl P {
    pub fn elements(&self) -> usize {
        self.shape.iter().product::<i64>() as usize
    }

    pub fn width(&self) -> usize {
        self.dtype.bits as usize / 8
    }

    pub fn bytes(&self, values: &[f64]) -> Vec<u8> {
        match (self.dtype.code, self.dtype.bits) {
            (4, 16) => values.iter().flat_map(|v| half::bf16::from_f64(*v).to_le_bytes()).collect(),
            (_, 64) => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            _ => values.iter().flat_map(|v| (*v as f32).to_le_bytes()).collect(),
        }
    }
}

/// How the ranks hold a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Hold {
    /// Each has all of it.
    Replicated,
    /// Each has a part of an axis; parts are as torch cuts them, the last ones may be short or empty.
    Sharded(usize),
    /// Two copies of every part.
    Hybrid(usize),
    /// The first parameter sharded, the second replicated, and so on.
    Mixed,
}

/// A rank's part of a parameter: axis, start and length; none for the whole.
pub type Part = Option<(usize, i64, i64)>;

/// The parameters in C, and what they point to.
pub struct Described {
    _names: Vec<CString>,
    pub params: Vec<foam_param>,
}

impl Described {
    /// The shapes are those of `params`, which have to live as long.
    pub fn new(params: &[P], parts: &[Part]) -> Described {
        let names: Vec<CString> = params.iter().map(|p| CString::new(&p.name[..]).unwrap()).collect();
        let describe = |((p, name), part): ((&P, &CString), &Part)| {
            let mut raw = std::mem::MaybeUninit::<foam_param>::zeroed();
            // SAFETY: the call fills the struct.
            let mut raw = unsafe {
                foam_param_init(raw.as_mut_ptr(), size_of::<foam_param>() as u32, null_mut());
                raw.assume_init()
            };
            raw.name = name.as_ptr();
            raw.shape = p.shape.as_ptr();
            raw.ndim = p.shape.len() as i32;
            raw.dtype = p.dtype;
            raw.root = p.root;
            raw.flags = if p.grafting_only { FOAM_PARAM_GRAFTING_ONLY } else { 0 };
            if let Some((axis, start, length)) = part {
                (raw.shard_axis, raw.shard_start, raw.shard_length) = (*axis as i64, *start, *length);
            }
            raw
        };
        let params = params.iter().zip(&names).zip(parts).map(describe).collect();
        Described { _names: names, params }
    }
}

/// Start and length of a rank's part of a parameter; none for the whole.
pub fn part(hold: Hold, index: usize, size: i64, rank: usize, ranks: usize) -> Part {
    let (axis, rank, ranks) = match hold {
        Hold::Replicated => return None,
        Hold::Mixed if index % 2 == 1 => return None,
        Hold::Mixed => (0, rank, ranks),
        Hold::Sharded(axis) => (axis, rank, ranks),
        Hold::Hybrid(axis) => (axis, rank % (ranks / 2), ranks / 2),
    };
    let each = (size + ranks as i64 - 1) / ranks as i64;
    let start = (each * rank as i64).min(size);
    Some((axis, start, (size - start).min(each).max(0)))
}

/// The bytes of a part of a tensor.
pub fn cut(bytes: &[u8], shape: &[i64], width: usize, part: Part) -> Vec<u8> {
    let Some((axis, start, length)) = part else { return bytes.to_vec() };
    let inner: usize = shape[axis + 1..].iter().product::<i64>() as usize * width;
    let outer: usize = shape[..axis].iter().product::<i64>() as usize;
    let row = shape[axis] as usize * inner;
    let mut cut = Vec::new();
    for slice in 0..outer {
        let begin = slice * row + start as usize * inner;
        cut.extend_from_slice(&bytes[begin..begin + length as usize * inner]);
    }
    cut
}

/// Puts a part back into the whole.
pub fn paste(whole: &mut [u8], piece: &[u8], shape: &[i64], width: usize, part: Part) {
    let Some((axis, start, length)) = part else { return whole.copy_from_slice(piece) };
    let inner: usize = shape[axis + 1..].iter().product::<i64>() as usize * width;
    let outer: usize = shape[..axis].iter().product::<i64>() as usize;
    let (row, own) = (shape[axis] as usize * inner, length as usize * inner);
    for slice in 0..outer {
        let begin = slice * row + start as usize * inner;
        whole[begin..begin + own].copy_from_slice(&piece[slice * own..(slice + 1) * own]);
    }
}

/// One rank's optimizer, its tensors and its communicator.
pub struct Rank {
    pub handle: *mut foam_optimizer,
    pub params: Vec<P>,
    pub parts: Vec<Part>,
    pub values: Vec<Vec<u8>>,
    pub member: Option<Box<Member>>,
    /// With `device=cuda`: the device on which the tensors are put for each step.
    pub gpu: Option<Gpu>,
    /// Called when the tensors are in place, right before the library's step, and right after it.
    pub around_step: Option<Box<dyn Fn(bool)>>,
}

// SAFETY: used by one thread at a time.
unsafe impl Send for Rank {}

impl Drop for Rank {
    fn drop(&mut self) {
        // SAFETY: a live handle.
        unsafe { foam_destroy(self.handle) };
    }
}

pub type Failure = (foam_status, String);

pub fn outcome(status: foam_status, error: &foam_error) -> Result<(), Failure> {
    if status == FOAM_OK { Ok(()) } else { Err((status, error.text())) }
}

impl Rank {
    pub fn new(
        options: &str,
        params: &[P],
        hold: Hold,
        start: &[Vec<f64>],
        member: Option<Box<Member>>,
    ) -> Result<Rank, Failure> {
        let config = configuration("reference", options).unwrap();
        Rank::with(&config, params, hold, start, member)
    }

    pub fn with(
        config: &foam_config,
        params: &[P],
        hold: Hold,
        start: &[Vec<f64>],
        mut member: Option<Box<Member>>,
    ) -> Result<Rank, Failure> {
        if let Some(member) = &mut member {
            member.on_device = config.device_type == FOAM_DEVICE_CUDA;
        }
        let comm = member.as_mut().map(|member| member.comm());
        let mut rank = Rank::over(config, params, hold, start, comm)?;
        rank.member = member;
        Ok(rank)
    }

    /// The same over a communicator whose member outlives it.
    pub fn over(
        config: &foam_config,
        params: &[P],
        hold: Hold,
        start: &[Vec<f64>],
        comm: Option<foam_comm>,
    ) -> Result<Rank, Failure> {
        let gpu = (config.device_type == FOAM_DEVICE_CUDA).then(Gpu::open);
        let parts: Vec<_> = params
            .iter()
            .enumerate()
            .map(|(index, p)| {
                let axis =
                    if let Hold::Sharded(a) | Hold::Hybrid(a) = hold { a.min(p.shape.len() - 1) } else { 0 };
                let hold = match hold {
                    Hold::Sharded(_) => Hold::Sharded(axis),
                    Hold::Hybrid(_) => Hold::Hybrid(axis),
                    other => other,
                };
                comm.and_then(|comm| part(hold, index, p.shape[axis], comm.rank as usize, comm.size as usize))
            })
            .collect();
        let mut error = foam_error::new();
        let described = Described::new(params, &parts);
        let mut handle = null_mut();
        // SAFETY: initialised structs; the member outlives the handle.
        let mut create = || unsafe {
            match &comm {
                None => foam_create(config, described.params.as_ptr(), params.len(), &mut handle, &mut error),
                Some(comm) => foam_create_ranks(
                    config,
                    comm,
                    described.params.as_ptr(),
                    params.len(),
                    &mut handle,
                    &mut error,
                ),
            }
        };
        let status = within(gpu.as_ref(), &mut create);
        outcome(status, &error)?;
        let values = params
            .iter()
            .zip(start)
            .zip(&parts)
            .map(|((p, start), part)| cut(&p.bytes(start), &p.shape, p.width(), *part))
            .collect();
        Ok(Rank { handle, params: params.to_vec(), parts, values, member: None, gpu, around_step: None })
    }

    /// A step on the parts of whole gradients.
    pub fn step(&mut self, grads: &[Option<Vec<f64>>], lr: f64) -> Result<bool, Failure> {
        self.step_with(grads, lr, 0)
    }

    pub fn step_with(&mut self, grads: &[Option<Vec<f64>>], lr: f64, flags: u32) -> Result<bool, Failure> {
        let lent = self.lend(grads);
        let (mut error, mut skipped) = (foam_error::new(), 0);
        let args = foam_step_args { skipped: &mut skipped, flags, ..self.args(&lent, lr) };
        let mut call = || {
            self.around_step.iter().for_each(|hook| hook(true));
            // SAFETY: all memory lives through the call.
            let status = unsafe { foam_step(self.handle, &args, &mut error) };
            self.around_step.iter().for_each(|hook| hook(false));
            status
        };
        let status = within(self.gpu.as_ref(), &mut call);
        self.take_back();
        outcome(status, &error)?;
        Ok(skipped != 0)
    }

    fn args(&self, lent: &Lent, lr: f64) -> foam_step_args {
        foam_step_args {
            struct_size: size_of::<foam_step_args>() as u32,
            flags: 0,
            count: lent.params.len(),
            params: lent.params.as_ptr(),
            grads: lent.grads.as_ptr(),
            stream: self.gpu.as_ref().map_or(null_mut(), Gpu::stream),
            skipped: null_mut(),
            lr,
            grad_scale: 1.0,
            after: null(),
            after_count: 0,
        }
    }

    /// The tensors of a step, on the device if there is one.
    fn lend(&mut self, grads: &[Option<Vec<f64>>]) -> Lent {
        let mut shapes: Vec<Vec<i64>> = self
            .params
            .iter()
            .zip(&self.parts)
            .map(|(p, part)| {
                let mut shape = p.shape.clone();
                part.iter().for_each(|(axis, _, length)| shape[*axis] = *length);
                shape
            })
            .collect();
        let mut cuts: Vec<Option<Vec<u8>>> = grads
            .iter()
            .zip(&self.params)
            .zip(&self.parts)
            .map(|((grad, p), part)| {
                grad.as_ref().map(|grad| cut(&p.bytes(grad), &p.shape, p.width(), *part))
            })
            .collect();
        let dtypes: Vec<foam_dtype> = self.params.iter().map(|p| p.dtype).collect();
        let mut tensor = |data: *mut c_void, index: usize| foam_tensor {
            data,
            device: foam_device { device_type: FOAM_DEVICE_CPU, device_id: 0 },
            ndim: shapes[index].len() as i32,
            dtype: dtypes[index],
            shape: shapes[index].as_mut_ptr(),
            strides: null_mut(),
            byte_offset: 0,
        };
        let mut params = Vec::new();
        for (index, values) in self.values.iter_mut().enumerate() {
            params.push(tensor(values.as_mut_ptr().cast(), index));
        }
        let mut grads = Vec::new();
        for (index, grad) in cuts.iter_mut().enumerate() {
            grads.push(tensor(grad.as_mut().map_or(null_mut(), |g| g.as_mut_ptr().cast()), index));
        }
        if let Some(gpu) = &mut self.gpu {
            for (which, tensor) in params.iter_mut().chain(&mut grads).enumerate() {
                to_device(gpu, which, tensor);
            }
        }
        Lent { _shapes: shapes, _cuts: cuts, params, grads }
    }

    /// The parameters as the device has them.
    fn take_back(&mut self) {
        if let Some(gpu) = &self.gpu {
            for (which, values) in self.values.iter_mut().enumerate().filter(|(_, v)| !v.is_empty()) {
                gpu.get(which, values);
            }
        }
    }

    pub fn stats(&self) -> foam_stats_info {
        let mut info =
            foam_stats_info { struct_size: size_of::<foam_stats_info>() as u32, ..Default::default() };
        // SAFETY: the struct has its size.
        assert_eq!(unsafe { foam_stats(self.handle, &mut info, null_mut()) }, FOAM_OK);
        info
    }

    pub fn factors(&self) -> Vec<foam_factor_info> {
        let mut count = 0;
        let size = size_of::<foam_factor_info>();
        // SAFETY: a list with room.
        unsafe {
            foam_factor_stats(self.handle, null_mut(), size, 0, &mut count, null_mut());
            let mut items = vec![foam_factor_info::default(); count];
            let status =
                foam_factor_stats(self.handle, items.as_mut_ptr(), size, count, &mut count, null_mut());
            assert_eq!(status, FOAM_OK);
            items
        }
    }

    pub fn file(&mut self, path: &Path, save: bool) -> Result<(), Failure> {
        let path = CString::new(path.to_str().unwrap()).unwrap();
        let mut error = foam_error::new();
        // SAFETY: a live handle and a C string.
        let status = unsafe {
            if save {
                foam_save_file(self.handle, path.as_ptr(), &mut error)
            } else {
                foam_load_file(self.handle, path.as_ptr(), &mut error)
            }
        };
        outcome(status, &error)
    }

    /// The state as bytes, on every rank.
    pub fn memory(&mut self) -> Vec<u8> {
        let mut size = 0;
        // SAFETY: room as asked for.
        unsafe {
            assert_eq!(foam_save_memory(self.handle, null_mut(), 0, &mut size, null_mut()), FOAM_OK);
            let mut bytes = vec![0u8; size];
            let status =
                foam_save_memory(self.handle, bytes.as_mut_ptr().cast(), size, &mut size, null_mut());
            assert_eq!(status, FOAM_OK);
            bytes
        }
    }
}

/// Calls the library with the device's context current, if there is a device.
fn within(gpu: Option<&Gpu>, call: &mut dyn FnMut() -> foam_status) -> foam_status {
    match gpu {
        Some(gpu) => gpu.within(call),
        None => call(),
    }
}

/// The tensors of a step and what they point to.
struct Lent {
    _shapes: Vec<Vec<i64>>,
    _cuts: Vec<Option<Vec<u8>>>,
    params: Vec<foam_tensor>,
    grads: Vec<foam_tensor>,
}

/// The gradients of a step; none for a parameter that takes no part.
pub type Grads = Vec<Option<Vec<f64>>>;

/// One step of several optimizers of this thread.
pub fn step_together(each: &mut [(&mut Rank, &Grads)]) -> Result<bool, Failure> {
    let (mut error, mut skipped) = (foam_error::new(), 0);
    let lent: Vec<Lent> = each.iter_mut().map(|(rank, grads)| rank.lend(grads)).collect();
    let mut args: Vec<foam_step_args> =
        each.iter().zip(&lent).map(|((rank, _), lent)| rank.args(lent, 0.01)).collect();
    args[0].skipped = &mut skipped;
    let handles: Vec<*mut foam_optimizer> = each.iter().map(|(rank, _)| rank.handle).collect();
    // SAFETY: all memory lives through the call.
    let mut call =
        || unsafe { foam_step_together(handles.as_ptr(), args.as_ptr(), handles.len(), &mut error) };
    let status = within(each[0].0.gpu.as_ref(), &mut call);
    each.iter_mut().for_each(|(rank, _)| rank.take_back());
    outcome(status, &error)?;
    Ok(skipped != 0)
}

/// How a rank ended that a failed collective stopped.
#[derive(Debug)]
pub struct Refused {
    pub at_creation: bool,
    pub message: String,
}

/// Two ranks, one of which has `fault` in a collective, take three steps or as many as they can. Each that is stopped
/// says that a collective failed and what became of its parameters, keeps them unless it says that they are lost, and
/// does nothing more: the ranks are out of step.
pub fn until_refused(options: &str, params: &[P], hold: Hold, fault: Fault) -> Vec<Option<Refused>> {
    let ended = ranks(2, fault, |rank, member| {
        let refused = |at_creation, (status, message): Failure| {
            assert_eq!(status, FOAM_COLLECTIVE_FAILED, "{fault:?}: {message}");
            let named = message.contains(&format!("status {BROKEN}")) || message.contains("did not arrive");
            assert!(named, "{fault:?}: {message}");
            Some(Refused { at_creation, message })
        };
        let mut made = match Rank::new(options, params, hold, &values(params, 1), Some(member)) {
            Ok(made) => made,
            Err(failure) => return refused(true, failure),
        };
        for step in 0..3 {
            let before = made.values.clone();
            let Err(failure) = made.step(&grads(params, step), 0.01) else { continue };
            let lost = failure.1.contains("they are lost");
            let kept = failure.1.contains("no parameter of this rank was written");
            assert!(lost || kept, "rank {rank}, {fault:?}: {}", failure.1);
            assert!(lost || made.values == before, "rank {rank}, {fault:?}: {}", failure.1);
            let (again, _) = made.step(&grads(params, step), 0.01).unwrap_err();
            assert_eq!(again, FOAM_POISONED);
            return refused(false, failure);
        }
        None
    });
    assert!(ended.iter().all(Option::is_some), "{hold:?} {fault:?}: {ended:?}");
    ended
}

/// Puts a host tensor (unless it is absent) on the device.
fn to_device(gpu: &mut Gpu, which: usize, tensor: &mut foam_tensor) {
    if tensor.data.is_null() {
        return;
    }
    // SAFETY: a tensor of this module: contiguous, with `ndim` sizes.
    let mut bytes = unsafe {
        let shape = std::slice::from_raw_parts(tensor.shape, tensor.ndim as usize);
        let size = shape.iter().product::<i64>() as usize * tensor.dtype.bits as usize / 8;
        std::slice::from_raw_parts(tensor.data.cast::<u8>(), size).to_vec()
    };
    // A part may be empty; its tensor has an address all the same.
    bytes.resize(bytes.len().max(8), 0);
    tensor.data = gpu.put(which, &bytes) as *mut c_void;
    tensor.device = foam_device { device_type: FOAM_DEVICE_CUDA, device_id: 0 };
}

/// Runs `body` on every rank of a world, each on its thread.
pub fn ranks<T: Send>(size: usize, fault: Fault, body: impl Fn(usize, Box<Member>) -> T + Sync) -> Vec<T> {
    let members = World::members(size, fault);
    std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = members
            .into_iter()
            .enumerate()
            .map(|(rank, member)| scope.spawn(move || body(rank, Box::new(member))))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

pub const OPTIONS: &str = "max_factor_dim=16 check_period=3 epsilon=1e-4 epsilon_max=1e-1 momentum=0.9 weight_decay=0.01 num_threads=1";

pub fn model() -> Vec<P> {
    let mut bf16 = p("bf16", &[21, 10]);
    bf16.dtype = BF16;
    let mut wide = p("wide", &[9, 5]);
    wide.dtype = F64;
    let mut embedding = p("embedding", &[13, 4]);
    embedding.grafting_only = true;
    vec![p("w", &[40, 37]), p("bias", &[5]), bf16, wide, embedding, p("conv", &[6, 3, 3, 3]), p("one", &[1])]
}

pub fn values(params: &[P], seed: u64) -> Vec<Vec<f64>> {
    let mut random = Random::new(seed);
    params.iter().map(|p| (0..p.elements()).map(|_| random.normal()).collect()).collect()
}

/// The gradients of a step; the second parameter takes no part in every third.
pub fn grads(params: &[P], step: u64) -> Vec<Option<Vec<f64>>> {
    let all = values(params, 1000 + step).into_iter().enumerate();
    all.map(|(index, grad)| (index != 1 || step % 3 != 2).then_some(grad)).collect()
}

pub const STEPS: u64 = 11;
