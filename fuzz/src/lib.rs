//! What the fuzz targets do with bytes: option texts, checkpoints, calls. Each claims that nothing crashes and that
//! what is refused changed nothing. `cargo fuzz run options` (or `checkpoint`, `calls`) runs one of them with coverage;
//! `tests/hostile` runs all of them on the seed corpus and on random changes of it, without any tool.

use foam::abi::*;
use std::ffi::CString;
use std::mem::{MaybeUninit, size_of};
use std::ptr::null_mut;

const SHAPE: [i64; 2] = [5, 3];

/// A configuration with small blocks and frequent checks.
fn config() -> foam_config {
    let mut config = MaybeUninit::<foam_config>::uninit();
    // SAFETY: the struct has the size that is passed; the call fills it.
    let mut config = unsafe {
        let size = size_of::<foam_config>() as u32;
        assert_eq!(foam_config_init(config.as_mut_ptr(), size, c"reference".as_ptr(), null_mut()), FOAM_OK);
        config.assume_init()
    };
    (config.num_threads, config.check_period, config.max_factor_dim) = (1, 1, 4);
    config
}

/// An optimizer of one matrix.
struct Handle(*mut foam_optimizer);

impl Handle {
    fn new(config: &foam_config) -> Option<Handle> {
        let mut param = MaybeUninit::<foam_param>::uninit();
        let mut handle = null_mut();
        // SAFETY: structs of the sizes that are passed; names and shapes outlive the call.
        unsafe {
            assert_eq!(
                foam_param_init(param.as_mut_ptr(), size_of::<foam_param>() as u32, null_mut()),
                FOAM_OK
            );
            let mut param = param.assume_init();
            (param.shape, param.ndim) = (SHAPE.as_ptr(), 2);
            let status = foam_create(config, &param, 1, &mut handle, null_mut());
            assert_eq!(status == FOAM_OK, !handle.is_null());
        }
        (!handle.is_null()).then_some(Handle(handle))
    }

    fn step(
        &self,
        values: &mut [f32; 15],
        grads: &mut [f32; 15],
        spoil: impl FnOnce(&mut foam_step_args),
    ) -> i32 {
        let tensor = |data: *mut f32| foam_tensor {
            data: data.cast(),
            device: foam_device { device_type: FOAM_DEVICE_CPU, device_id: 0 },
            ndim: 2,
            dtype: foam_dtype { code: FOAM_DTYPE_FLOAT, bits: 32, lanes: 1 },
            shape: SHAPE.as_ptr().cast_mut(),
            strides: null_mut(),
            byte_offset: 0,
        };
        let (own, lent) = (tensor(values.as_mut_ptr()), tensor(grads.as_mut_ptr()));
        let mut args = MaybeUninit::<foam_step_args>::uninit();
        // SAFETY: a struct of the size that is passed, and tensors of the shape that they say.
        unsafe {
            assert_eq!(
                foam_step_args_init(args.as_mut_ptr(), size_of::<foam_step_args>() as u32, null_mut()),
                FOAM_OK
            );
            let mut args = args.assume_init();
            (args.count, args.params, args.grads) = (1, &own, &lent);
            spoil(&mut args);
            foam_step(self.0, &args, null_mut())
        }
    }

    fn save(&self) -> Vec<u8> {
        let mut size = 0;
        // SAFETY: a size query, then room for as many bytes.
        unsafe {
            assert_eq!(foam_save_memory(self.0, null_mut(), 0, &mut size, null_mut()), FOAM_OK);
            let mut bytes = vec![0u8; size];
            let status = foam_save_memory(self.0, bytes.as_mut_ptr().cast(), size, &mut size, null_mut());
            assert_eq!(status, FOAM_OK);
            bytes
        }
    }

    fn load(&self, bytes: &[u8]) -> foam_status {
        // SAFETY: a live handle and the bytes of a slice.
        unsafe { foam_load_memory(self.0, bytes.as_ptr().cast(), bytes.len(), null_mut()) }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: live, and not used again.
        unsafe { foam_destroy(self.0) }
    }
}

/// Texts of options: lines of `key=value`, each set; what is left is created, and stepped once.
pub fn options(data: &[u8]) {
    let mut config = config();
    for line in data.split(|byte| *byte == b'\n').take(20) {
        let mut parts = line.splitn(2, |byte| *byte == b'=');
        let text = |part: Option<&[u8]>| CString::new(part.unwrap_or_default()).unwrap_or_default();
        let (key, value) = (text(parts.next()), text(parts.next()));
        let before = config.tau.to_bits();
        // SAFETY: an initialised struct and C strings.
        let status = unsafe { foam_config_set(&mut config, key.as_ptr(), value.as_ptr(), null_mut()) };
        assert!(status == FOAM_OK || status == FOAM_INVALID_ARGUMENT, "status {status}");
        assert!(status == FOAM_OK || config.tau.to_bits() == before, "a refused option changed another");
    }
    // Only the CPU, and few threads: the rest is no question of parsing.
    (config.device_type, config.num_threads, config.inject_fault) = (FOAM_DEVICE_CPU, 1, 0);
    let Some(handle) = Handle::new(&config) else { return };
    let (mut values, mut grads) = ([0.5f32; 15], std::array::from_fn(|k| k as f32 - 7.0));
    for _ in 0..2 {
        let status = handle.step(&mut values, &mut grads, |_| {});
        assert!(
            status == FOAM_OK || status == FOAM_INVALID_ARGUMENT || status == FOAM_NOT_FINITE,
            "status {status}"
        );
    }
}

/// Bytes of a checkpoint: refused without a trace, or taken as they are.
pub fn checkpoint(data: &[u8]) {
    let handle = Handle::new(&config()).expect("the configuration is good");
    let (mut values, mut grads) = ([0.5f32; 15], std::array::from_fn(|k| k as f32 - 7.0));
    assert_eq!(handle.step(&mut values, &mut grads, |_| {}), FOAM_OK);
    let before = handle.save();
    let status = handle.load(data);
    assert!(status == FOAM_OK || status == FOAM_BAD_CHECKPOINT, "status {status}");
    if status == FOAM_OK {
        assert_eq!(handle.step(&mut values, &mut grads, |_| {}), FOAM_OK);
    } else {
        assert!(handle.save() == before, "a refused checkpoint changed the state");
    }
}

/// Frames of calls: each byte is a call, and the bytes after it are its numbers.
pub fn calls(data: &[u8]) {
    let handle = Handle::new(&config()).expect("the configuration is good");
    let mut bytes = data.iter().copied();
    let (mut values, mut kept) = ([0.5f32; 15], handle.save());
    let mut error = foam_error::new();
    for _ in 0..64 {
        let Some(call) = bytes.next() else { break };
        let mut number = || bytes.next().map_or(0, i64::from) - 3;
        let (one, two, three) = (number(), number(), number());
        let (before, saved) = (values, handle.save());
        // SAFETY: a live handle, and places of the sizes that are passed.
        let status = unsafe {
            match call % 9 {
                0 | 1 => {
                    let mut grads = std::array::from_fn(|k| (k as i64 * one + two) as f32 * 0.1);
                    handle.step(&mut values, &mut grads, |_| {})
                }
                2 => {
                    let mut grads = [f32::from_bits((one as u32) << 24 | two as u32); 15];
                    handle.step(&mut values, &mut grads, |_| {})
                }
                3 => {
                    let mut grads = [1.0f32; 15];
                    handle.step(&mut values, &mut grads, |args| match one % 5 {
                        0 => args.count = two as usize,
                        1 => args.struct_size = two as u32,
                        2 => args.flags = two as u32,
                        3 => args.lr = two as f64,
                        _ => args.grad_scale = two as f64,
                    })
                }
                4 => {
                    let (mut out, mut count) = ([0.0; 16], 0);
                    let room = (three.max(0) as usize).min(out.len());
                    foam_factor_read(
                        handle.0,
                        one,
                        two,
                        three % 3,
                        three as i32,
                        out.as_mut_ptr(),
                        room,
                        &mut count,
                        &mut error,
                    )
                }
                5 => {
                    let mut gap = 0.0;
                    foam_exact_gap(handle.0, one, two, three, &mut gap, &mut error)
                }
                6 => {
                    let keys = [c"lr", c"tau", c"epsilon", c"beta1", c"policy", c"weight_decay"];
                    let value = CString::new(format!("{two}e{three}")).unwrap_or_default();
                    foam_set_option(
                        handle.0,
                        keys[one.rem_euclid(6) as usize].as_ptr(),
                        value.as_ptr(),
                        &mut error,
                    )
                }
                7 => handle.load(&kept),
                _ => {
                    kept = saved.clone();
                    FOAM_OK
                }
            }
        };
        let known = [FOAM_OK, FOAM_INVALID_ARGUMENT, FOAM_UNSUPPORTED, FOAM_NOT_FINITE, FOAM_SHAPE_MISMATCH];
        assert!(known.contains(&status), "call {call}: status {status}");
        if status != FOAM_OK {
            assert!(
                values.map(f32::to_bits) == before.map(f32::to_bits),
                "call {call}: a failed call changed a parameter"
            );
            assert!(handle.save() == saved, "call {call}: a failed call changed the state");
        }
    }
}
