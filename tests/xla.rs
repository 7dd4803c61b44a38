//! The XLA FFI handlers, called with hand-made call frames: they do what the C functions do, and refuse wrong
//! operands, results and attributes by name.

use crate::frame::*;
use crate::support::random::Random;
use crate::support::stack::{Room, Shape, Stack, words};
use crate::support::tensor::Dtype;
use foam::abi::{foam_xla_accumulate, foam_xla_apply, foam_xla_check};

const OPTIONS: &str =
    "preset=reference;check_period=3;epsilon=1e-3;epsilon_max=1e-1;num_threads=2;weight_decay=0.01";
const COUNT: i64 = 3;
const DIMS: [i64; 2] = [6, 4];

/// The attributes of a call, with `changed` instead of (or besides) the usual ones.
fn attributes(changed: &[(&'static str, Attr)]) -> Vec<(&'static str, Attr)> {
    let mut attrs = vec![
        ("options", Attr::Text(OPTIONS.into())),
        ("order", Attr::Whole(2)),
        ("with_params", Attr::Whole(1)),
        ("grad_scale", Attr::Real(1.0)),
        ("weight_decay_scale", Attr::Real(1.0)),
        ("root", Attr::Real(0.0)),
        ("preconditioned", Attr::Whole(1)),
        ("scale", Attr::Real(-0.1)),
    ];
    for (name, value) in changed {
        attrs.retain(|a| a.0 != *name);
        attrs.push((name, value.clone()));
    }
    attrs
}

/// The state of a stack as XLA's buffers, and one step through the handlers.
struct Calls {
    batch: Vec<i64>,
    clock: Buffer,
    record: Buffer,
    statistics: Vec<Buffer>,
    /// Bases, spectra and inverse roots.
    matrices: Vec<Buffer>,
    moments: Vec<Buffer>,
    workspace: Buffer,
}

impl Calls {
    /// The state of `stack`, with `batch` for its number of blocks.
    fn new(stack: &Stack, batch: &[i64]) -> Calls {
        let take = |prefixes: &[&str]| -> Vec<Buffer> {
            let mut taken = Vec::new();
            for prefix in prefixes {
                let places = (0..stack.names.len()).filter(|i| stack.names[*i].starts_with(prefix));
                taken.extend(places.map(|i| {
                    let room = &stack.state[i];
                    let dtype = if room.dtype.code == 1 { U32 } else { F32 };
                    let dims = [batch, &room.shape[1..]].concat();
                    Buffer::of(dtype, &dims, room.bytes())
                }));
            }
            taken
        };
        Calls {
            batch: batch.to_vec(),
            clock: take(&["clock"]).remove(0),
            record: take(&["record"]).remove(0),
            statistics: take(&["statistic"]),
            matrices: take(&["basis", "spectrum", "inverse_root"]),
            moments: take(&["filter", "moment"]),
            workspace: Buffer::new(U8, &[stack.workspace.len() as i64]),
        }
    }

    fn info(&self) -> Buffer {
        Buffer::new(I32, &self.batch)
    }

    fn accumulate_args(&self, grads: &Buffer, params: &Buffer) -> Vec<Buffer> {
        let active = Buffer::of(I32, &self.batch, &vec![1i32; COUNT as usize]);
        [vec![grads.clone(), params.clone(), active, self.clock.clone()], self.statistics.clone()].concat()
    }

    fn accumulate_rets(&self) -> Vec<Buffer> {
        let rest = vec![self.info(), self.workspace.clone()];
        [vec![self.clock.clone()], self.statistics.clone(), rest].concat()
    }

    fn check_args(&self, info: &Buffer) -> Vec<Buffer> {
        let first = vec![info.clone(), self.clock.clone(), self.record.clone()];
        [first, self.statistics.clone(), self.matrices.clone()].concat()
    }

    fn check_rets(&self) -> Vec<Buffer> {
        [vec![self.record.clone()], self.matrices.clone(), vec![self.info(), self.workspace.clone()]].concat()
    }

    fn apply_args(&self, grads: &Buffer, params: &Buffer, info: &Buffer) -> Vec<Buffer> {
        let first = vec![grads.clone(), params.clone(), info.clone(), self.clock.clone()];
        [first, self.matrices[4..].to_vec(), self.moments.clone()].concat()
    }

    fn apply_rets(&self, grads: &Buffer) -> Vec<Buffer> {
        [vec![grads.clone()], self.moments.clone(), vec![self.info(), self.workspace.clone()]].concat()
    }

    /// One step; gives the update.
    fn step(&mut self, grads: &Buffer, params: &Buffer) -> Buffer {
        let attrs = attributes(&[]);
        let mut rets = self.accumulate_rets();
        execute(foam_xla_accumulate, &mut self.accumulate_args(grads, params), &mut rets, &attrs).unwrap();
        self.clock = rets[0].clone();
        self.statistics = rets[1..3].to_vec();
        let mut checked = self.check_rets();
        execute(foam_xla_check, &mut self.check_args(&rets[3]), &mut checked, &attrs).unwrap();
        self.record = checked[0].clone();
        self.matrices = checked[1..7].to_vec();
        let mut applied = self.apply_rets(grads);
        let mut args = self.apply_args(grads, params, &checked[7]);
        execute(foam_xla_apply, &mut args, &mut applied, &attrs).unwrap();
        self.moments = applied[1..3].to_vec();
        assert!(applied[3].bytes().iter().all(|b| *b == 0), "info");
        applied.remove(0)
    }
}

fn stack() -> Stack {
    Stack::new(
        "reference",
        &OPTIONS.replace("preset=reference;", "").replace(';', " "),
        Shape::new(&DIMS, COUNT as usize, Dtype::F32),
    )
}

fn values(random: &mut Random) -> Vec<f32> {
    random.normals(72).iter().map(|x| *x as f32).collect()
}

#[test]
fn a_handler_answers_the_metadata_call_without_an_api_table() {
    for handler in [foam_xla_accumulate, foam_xla_check, foam_xla_apply] {
        assert_eq!(metadata(handler, false), (0, 1, 0));
        assert_eq!(metadata(handler, true), (0, 1, 0));
    }
}

#[test]
fn other_stages_than_execute_do_nothing() {
    for stage in 0..3 {
        execute_at(stage, foam_xla_check, &mut [], &mut [], &[]).unwrap();
    }
}

#[test]
fn the_handlers_have_the_bits_of_the_c_functions_for_any_batch() {
    for batch in [vec![3], vec![1, 3], vec![3, 1, 1]] {
        let mut stack = stack();
        let mut calls = Calls::new(&stack, &batch);
        let mut random = Random::new(5);
        let dims = [&batch[..], &DIMS].concat();
        for _ in 0..10 {
            let (g, w) = (values(&mut random), values(&mut random));
            let mut grads = Room::new(Dtype::F32.in_c(), &[COUNT, 6, 4]);
            let mut params = grads.clone();
            grads.bytes_mut().copy_from_slice(bytemuck::cast_slice(&g));
            params.bytes_mut().copy_from_slice(bytemuck::cast_slice(&w));
            let expected = stack.step(&mut grads, &mut params, None, (-0.1, 1.0));
            let update = calls.step(&Buffer::of(F32, &dims, &g), &Buffer::of(F32, &dims, &w));
            assert_eq!(update.bytes(), expected.update.bytes());
        }
        let after = Calls::new(&stack, &batch);
        assert_eq!(after.record, calls.record);
        assert_eq!(after.matrices, calls.matrices);
        assert_eq!((after.statistics, after.moments), (calls.statistics, calls.moments));
    }
}

/// A refused call gives a message with all `parts`, and writes nothing.
#[track_caller]
fn refuses(
    handler: Handler,
    args: &mut [Buffer],
    rets: &mut [Buffer],
    attrs: &[(&str, Attr)],
    parts: &[&str],
) {
    let before = rets.to_vec();
    let (code, message) = execute(handler, args, rets, attrs).expect_err("the call is refused");
    assert!(matches!(code, 3 | 12), "{code} {message}");
    for part in parts {
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
    assert!(before == rets, "a refused call wrote");
}

fn parts() -> (Calls, Buffer, Buffer) {
    let calls = Calls::new(&stack(), &[COUNT]);
    let grads = Buffer::new(F32, &[COUNT, 6, 4]);
    (calls, grads.clone(), grads)
}

#[test]
fn every_operand_and_result_is_checked_by_name() {
    let (calls, grads, params) = parts();
    let verbs: [(Handler, Vec<Buffer>, Vec<Buffer>); 3] = [
        (foam_xla_accumulate, calls.accumulate_args(&grads, &params), calls.accumulate_rets()),
        (foam_xla_check, calls.check_args(&calls.info()), calls.check_rets()),
        (foam_xla_apply, calls.apply_args(&grads, &params, &calls.info()), calls.apply_rets(&grads)),
    ];
    let names: [(&[&str], &[&str]); 3] = [
        (
            &["grads", "params", "active", "clock", "statistic_0", "statistic_1"],
            &["clock", "statistic_0", "statistic_1", "info", "workspace"],
        ),
        (
            &[
                "info",
                "clock",
                "record",
                "statistic_0",
                "statistic_1",
                "basis_0",
                "basis_1",
                "spectrum_0",
                "spectrum_1",
                "inverse_root_0",
                "inverse_root_1",
            ],
            &[
                "record",
                "basis_0",
                "basis_1",
                "spectrum_0",
                "spectrum_1",
                "inverse_root_0",
                "inverse_root_1",
                "info",
                "workspace",
            ],
        ),
        (
            &["grads", "params", "info", "clock", "inverse_root_0", "inverse_root_1", "filter", "moment"],
            &["update", "filter", "moment", "info", "workspace"],
        ),
    ];
    for ((handler, args, rets), (arg_names, ret_names)) in verbs.iter().zip(names) {
        for place in 0..args.len() {
            let name = arg_names[place];
            let label = format!("operand {place} '{name}'");
            let mut wrong = args.clone();
            wrong[place].dtype = I64;
            wrong[place].data.resize(4096, 0);
            // The type of the parameters or gradients is the stack's: another one is refused there.
            refuses(
                *handler,
                &mut wrong,
                &mut rets.clone(),
                &attributes(&[]),
                &[&label, "expected", "got i64"],
            );
            // Sizes that the stack's own size is told by are refused where they contradict others.
            let telling = matches!(name, "grads" | "statistic_0" | "statistic_1") || place == 0;
            let last = args[place].dims.len() - 1;
            let mut wrong = args.clone();
            wrong[place].dims[last] += 1;
            wrong[place].data.resize(4096, 0);
            let part = if telling { "expected" } else { &label };
            refuses(*handler, &mut wrong, &mut rets.clone(), &attributes(&[]), &[part, "got"]);
            let mut fewer = args.clone();
            fewer.remove(place);
            let list = format!("expected {} operands ({}", args.len(), arg_names.join(", "));
            refuses(*handler, &mut fewer, &mut rets.clone(), &attributes(&[]), &[&list]);
        }
        for place in 0..rets.len() {
            let label = format!("result {place} '{}'", ret_names[place]);
            let mut wrong = rets.clone();
            wrong[place].dtype = I64;
            let room = wrong[place].data.len() * 8;
            wrong[place].data.resize(room, 0);
            refuses(
                *handler,
                &mut args.clone(),
                &mut wrong,
                &attributes(&[]),
                &[&label, "expected", "got i64"],
            );
            let mut wrong = rets.clone();
            wrong[place].dims[0] -= 1;
            refuses(*handler, &mut args.clone(), &mut wrong, &attributes(&[]), &[&label, "expected", "got"]);
            let mut fewer = rets.clone();
            fewer.remove(place);
            let list = format!("expected {} results ({}", rets.len(), ret_names.join(", "));
            refuses(*handler, &mut args.clone(), &mut fewer, &attributes(&[]), &[&list]);
        }
    }
}

#[test]
fn a_message_shows_both_shapes() {
    let (calls, grads, params) = parts();
    let mut args = calls.accumulate_args(&grads, &params);
    args[4] = Buffer::new(F32, &[COUNT, 5, 5]);
    let said = ["foam_xla_accumulate: operand 4 'statistic_0': expected f32[3,6,6], got f32[3,5,5]"];
    refuses(foam_xla_accumulate, &mut args, &mut calls.accumulate_rets(), &attributes(&[]), &said);
    args[0] = Buffer::new(F32, &[4]);
    let said = ["operand 0 'grads': expected at least 2 dimensions, got [4]"];
    refuses(foam_xla_accumulate, &mut args, &mut calls.accumulate_rets(), &attributes(&[]), &said);
}

#[test]
fn every_attribute_is_checked_by_name() {
    let (calls, grads, params) = parts();
    let cases: Vec<(&'static str, Attr, &[&str])> = vec![
        ("options", Attr::Text("taus=1".into()), &["'options'", "'taus'", "residual_threshold"]),
        ("options", Attr::Text("tau=zero".into()), &["'options'", "tau", "zero"]),
        ("options", Attr::Text("tau".into()), &["'options'", "'tau'", "key=value"]),
        ("options", Attr::Text("tau=1;preset=paper".into()), &["preset", "first"]),
        ("options", Attr::Text("preset=best".into()), &["'best'", "reference, paper or soap"]),
        ("options", Attr::Text("preset=reference;epsilon_max=1e-12".into()), &["epsilon_max"]),
        ("options", Attr::Bytes(vec![0xFF, 0xFE]), &["'options'", "UTF-8"]),
        ("options", Attr::Real(1.0), &["'options'", "a string"]),
        ("order", Attr::Whole(0), &["'order' = 0", "1 to 8"]),
        ("order", Attr::Whole(9), &["'order' = 9", "1 to 8"]),
        ("order", Attr::Real(1.5), &["'order' = 1.5", "1 to 8"]),
        ("order", Attr::Text("2".into()), &["'order'", "a number"]),
        ("order", Attr::Array, &["'order'", "a number"]),
        ("with_params", Attr::Whole(2), &["'with_params' = 2", "0 or 1"]),
        ("with_params", Attr::Whole(0), &["expected 7 operands", "got 8"]),
        ("preconditioned", Attr::Whole(-1), &["'preconditioned' = -1", "0 or 1"]),
        ("dtype", Attr::Text("float32".into()), &["'dtype' = 'float32'", "bf16"]),
        ("dtype", Attr::Text("f64".into()), &["'params'", "expected f64[3,6,4]"]),
        ("scale", Attr::Real(f64::NAN), &["'scale' = NaN", "finite"]),
        ("grad_scale", Attr::Real(0.0), &["'grad_scale' = 0"]),
        ("grad_scale", Attr::Real(f64::INFINITY), &["'grad_scale' = inf"]),
        ("weight_decay_scale", Attr::Real(-1.0), &["weight_decay_scale = -1"]),
        ("root", Attr::Real(-2.0), &["root = -2"]),
        ("colour", Attr::Whole(1), &["'colour' is unknown", "weight_decay_scale"]),
    ];
    for (name, value, said) in cases {
        let mut args = calls.apply_args(&grads, &params, &calls.info());
        let attrs = attributes(&[(name, value)]);
        refuses(foam_xla_apply, &mut args, &mut calls.apply_rets(&grads), &attrs, said);
    }
    let mut args = calls.apply_args(&grads, &params, &calls.info());
    let mut attrs = attributes(&[]);
    attrs.retain(|a| a.0 != "order");
    refuses(foam_xla_apply, &mut args, &mut calls.apply_rets(&grads), &attrs, &["'order' is missing"]);
    args.remove(1);
    let attrs = attributes(&[("with_params", Attr::Whole(0))]);
    let said = ["params are missing", "weight_decay = 0.01"];
    refuses(foam_xla_apply, &mut args, &mut calls.apply_rets(&grads), &attrs, &said);
    let attrs = attributes(&[("options", Attr::Text(format!("{OPTIONS};device=cuda:0")))]);
    let mut args = calls.apply_args(&grads, &params, &calls.info());
    // The platform says where the buffers are, not the options.
    execute(foam_xla_apply, &mut args, &mut calls.apply_rets(&grads), &attrs).unwrap();
}

#[test]
fn a_damaged_state_is_refused() {
    let (mut calls, grads, params) = parts();
    calls.clock.data[1] = f64::NAN.to_bits();
    let mut args = calls.accumulate_args(&grads, &params);
    let said = ["clock of block 0", "weight = NaN", "foam_stack_reset"];
    refuses(foam_xla_accumulate, &mut args, &mut calls.accumulate_rets(), &attributes(&[]), &said);
    let (mut calls, ..) = parts();
    // A record is a list of numbers of two words each.
    let numbers = *calls.record.dims.last().unwrap() as usize / 2;
    calls.record.data[numbers + 13] = -7i64 as u64;
    let mut args = calls.check_args(&calls.info());
    let said = ["record of block 0, axis 1", "-7", "foam_stack_reset"];
    refuses(foam_xla_check, &mut args, &mut calls.check_rets(), &attributes(&[]), &said);
}

#[test]
fn a_panic_becomes_an_error_and_the_next_call_works() {
    let (calls, grads, params) = parts();
    let attrs = attributes(&[("options", Attr::Text(format!("{OPTIONS};inject_fault=panic")))]);
    let mut args = calls.accumulate_args(&grads, &params);
    let (code, message) =
        execute(foam_xla_accumulate, &mut args, &mut calls.accumulate_rets(), &attrs).unwrap_err();
    assert!(code == 13 && message.contains("injected fault"), "{message}");
    execute(foam_xla_accumulate, &mut args, &mut calls.accumulate_rets(), &attributes(&[])).unwrap();
}

#[test]
fn types_and_preconditioners_are_told_by_operands_and_attributes() {
    let dims = [COUNT, 6, 4];
    let attrs = attributes(&[
        ("preconditioned", Attr::Whole(0)),
        ("with_params", Attr::Whole(0)),
        ("options", Attr::Text("preset=reference;weight_decay=0;beta1=0;grafting=sgd".into())),
    ]);
    let clock = parts().0.clock;
    let info = Buffer::new(I32, &[COUNT]);
    let workspace = Buffer::new(U8, &[1 << 16]);
    let active = Buffer::of(I32, &[COUNT], &[1, 0, 1]);
    for (grads, update) in [(F32, F32), (F64, F64), (BF16, BF16), (BF16, F32), (F16, F16)] {
        let mut rets = [clock.clone(), info.clone(), workspace.clone()];
        let args = [Buffer::new(grads, &dims), active.clone(), clock.clone()];
        execute(foam_xla_accumulate, &mut args.clone(), &mut rets, &attrs).unwrap();
        let told: Vec<i32> = words(rets[1].bytes());
        assert_eq!(told, [0, 1, 0]);
        let mut checked = [info.clone(), workspace.clone()];
        execute(foam_xla_check, &mut [rets[1].clone(), rets[0].clone()], &mut checked, &attrs).unwrap();
        let mut applied = [Buffer::new(update, &dims), info.clone(), workspace.clone()];
        let mut args = [args[0].clone(), checked[0].clone(), rets[0].clone()];
        execute(foam_xla_apply, &mut args, &mut applied, &attrs).unwrap();
        assert_eq!(applied[1], rets[1]);
    }
}
