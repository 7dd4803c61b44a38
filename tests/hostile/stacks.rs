//! Stacks of blocks and XLA's handlers: random verbs, right and wrong. A call that fails wrote nothing; a twin on
//! another number of threads, which writes its new state elsewhere, ends in the same bits.

use crate::frame::{self, Attr, Buffer, Handler};
use crate::guarded::Guarded;
use crate::support::model::Failure;
use crate::support::random::Random;
use crate::support::stack::{I32, Room, Shape, Stack};
use crate::support::tensor::Dtype;
use crate::{Tally, count};
use foam::abi::*;
use std::mem::size_of;
use std::ptr::{null, null_mut};

const PRESETS: [(&str, &str); 5] = [
    ("reference", "policy=foam"),
    ("reference", "policy=stale momentum=0.5"),
    ("default", "weight_decay=0.1"),
    ("soap", ""),
    ("reference", "policy=grafting_only"),
];

/// The tensors of a step.
#[derive(Clone)]
struct Rooms {
    grads: Room,
    params: Room,
    info: Room,
    update: Room,
}

impl Rooms {
    fn new(shape: &Shape, random: &mut Random) -> Rooms {
        let mut filled = || {
            let mut room = Room::new(shape.dtype.in_c(), &shape.whole());
            let values = random.normals(shape.whole().iter().product::<i64>() as usize);
            let bytes: Vec<u8> = values.iter().flat_map(|value| shape.dtype.encode(*value)).collect();
            room.bytes_mut().copy_from_slice(&bytes);
            room
        };
        let (grads, params) = (filled(), filled());
        let wide = if shape.dtype == Dtype::F64 { Dtype::F64 } else { Dtype::F32 };
        let (info, update) = (Room::new(I32, &[shape.count as i64]), Room::new(wide.in_c(), &shape.whole()));
        Rooms { grads, params, info, update }
    }

    fn bytes(&self) -> Vec<Vec<u8>> {
        [&self.grads, &self.params, &self.update].map(|room| room.bytes().to_vec()).to_vec()
    }
}

/// Calls a verb (0, 1, 2) with what it needs, and then spoils that.
fn call(
    stack: &mut Stack,
    verb: usize,
    rooms: &mut Rooms,
    spoils: Option<&mut Random>,
) -> Result<(), Failure> {
    let (mut g, mut w, mut i, mut u) =
        (rooms.grads.in_c(), rooms.params.in_c(), rooms.info.in_c(), rooms.update.in_c());
    let mut sizes = [3i64; 9];
    let mut wrong = None;
    if let Some(random) = spoils {
        let tensor = match random.below(4) {
            0 => &mut g,
            1 => &mut w,
            2 => &mut i,
            _ => &mut u,
        };
        match random.below(14) {
            0 => tensor.ndim = random.pick(&[-1, 7, i32::MAX]),
            1 => tensor.dtype.bits = 12,
            2 => tensor.dtype.lanes = 2,
            3 => tensor.device.device_type = random.pick(&[0, 2, -1]),
            4 => tensor.data = null_mut(),
            5 => (tensor.shape, tensor.ndim) = (sizes.as_mut_ptr(), 9),
            6 => tensor.byte_offset = u64::MAX - 8,
            other => wrong = Some((other, random.bits())),
        }
    }
    stack.call([foam_stack_accumulate, foam_stack_check, foam_stack_apply][verb], |args| {
        args.info = &i;
        if verb != 1 {
            (args.grads, args.params) = (&g, &w);
        }
        if verb == 2 {
            (args.update, args.scale) = (&u, -0.01);
        }
        let Some((which, bits)) = wrong else { return };
        match which {
            7 => args.struct_size = [0, 3, 7, 50, 1 << 20][bits as usize % 5],
            8 => args.state_count = [0, 1, args.state_count + 1, usize::MAX][bits as usize % 4],
            9 => args.workspace_size = bits as usize % args.workspace_size.max(1),
            10 => args.workspace = null_mut(),
            11 => args.info = null(),
            12 => args.state = null(),
            _ => args.grad_scale = [0.0, f64::NAN, f64::INFINITY][bits as usize % 3],
        }
    })
}

fn state(stack: &Stack) -> Vec<Vec<u8>> {
    stack.state.iter().map(|room| room.bytes().to_vec()).collect()
}

pub fn case(seed: u64, tally: &mut Tally) {
    let mut random = Random::new(seed);
    let dims: Vec<i64> = (0..1 + random.below(3)).map(|_| 1 + random.below(10) as i64).collect();
    let dtype = random.pick(&[Dtype::F32, Dtype::F64, Dtype::Bf16, Dtype::F16]);
    let shape = Shape::new(&dims, 1 + random.below(4), dtype);
    let (preset, options) = random.pick(&PRESETS);
    let options = format!("{options} check_period={} lr=0.01", 1 + random.below(3));
    let make =
        |threads: usize| Stack::new(preset, &format!("{options} num_threads={threads}"), shape.clone());
    let text = format!("preset={preset};num_threads=1;{}", options.trim().replace(' ', ";"));
    let (mut own, mut twin) = (make(1 + random.below(2)), make(3));
    twin.out_of_place = random.below(2) == 0;
    // SOAP is checked after its update.
    let order = if preset == "soap" { [0, 2, 1] } else { [0, 1, 2] };
    for _ in 0..12 {
        let mut rooms = Rooms::new(&shape, &mut random);
        let mut beside = rooms.clone();
        for verb in order {
            if random.below(3) == 0 {
                let (before, bytes) = (state(&own), rooms.bytes());
                let mut again = random.clone();
                let wrong = random.below(3);
                let outcome = call(&mut own, wrong, &mut rooms, Some(&mut random));
                if outcome.is_ok() {
                    // It was not wrong for this verb after all: the twin gets it, too.
                    assert_eq!(again.below(3), wrong);
                    call(&mut twin, wrong, &mut beside, Some(&mut again)).unwrap();
                } else {
                    assert!(state(&own) == before, "{preset} {options}: a failed call changed the state");
                    assert!(rooms.bytes() == bytes, "{preset} {options}: a failed call wrote a tensor");
                    count(tally, "refused", 1);
                }
            }
            for (stack, rooms) in [(&mut own, &mut rooms), (&mut twin, &mut beside)] {
                if let Err(failure) = call(stack, verb, rooms, None) {
                    panic!("{preset} {options}, verb {verb}: {failure:?}");
                }
            }
            count(tally, "verbs", 1);
        }
        assert!(rooms.bytes() == beside.bytes(), "{preset} {options}: other updates than the twin's");
        lists(&own, &mut random);
        handlers(&own, &text, &mut random, tally);
    }
    assert!(state(&own) == state(&twin), "{preset} {options}: another state than the twin's");
    count(tally, "twins compared", 1);
}

/// Layouts, ports and sizes, into lists that end at a forbidden page; and stacks that cannot be.
fn lists(stack: &Stack, random: &mut Random) {
    let mut raw = stack.shape.in_c();
    match random.below(6) {
        0 => raw.struct_size = random.pick(&[0, 3, 7, 1 << 20]),
        1 => raw.count = random.pick(&[-1, 0, i64::MAX]),
        2 => raw.ndim = random.pick(&[-1, 0, 9, i32::MAX]),
        3 => raw.dtype.bits = 12,
        _ => {}
    }
    let (mut found, mut bytes, mut error) = (0usize, 0usize, foam_error::new());
    let room = random.below(30);
    let (buffer, port) = (
        size_of::<foam_stack_buffer>() + 8 * random.below(3) - 8 * random.below(2),
        size_of::<foam_stack_port>() + 8 * random.below(3) - 8 * random.below(2),
    );
    let held = Guarded::bytes(room * buffer.max(port));
    // SAFETY: live structs; a list that has room for as many items of either size.
    unsafe {
        let (end, verb) = (held.as_ptr().add(held.len), random.below(5) as i32 - 1);
        let with = random.below(4) as i32 - 1;
        let items = |size: usize| if room == 0 { null_mut() } else { end.sub(room * size) };
        foam_stack_layout(&stack.config, &raw, items(buffer).cast(), buffer, room, &mut found, &mut error);
        let list = items(port).cast();
        foam_stack_ports(&stack.config, &raw, verb, with, list, port, room, &mut found, &mut error);
        foam_stack_workspace(&stack.config, &raw, &mut bytes, &mut error);
        foam_stack_reset(&stack.config, &raw, null(), random.pick(&[0, 1, usize::MAX]), &mut error);
        if random.below(4) == 0 {
            foam_stack_trim();
        }
    }
    assert!(held.is_sound());
}

/// A call frame of XLA with the operands and results that the ports list, as they should be or with one of them wrong:
/// what is wrong is refused.
fn handlers(stack: &Stack, options: &str, random: &mut Random, tally: &mut Tally) {
    let (raw, size, mut found) = (stack.shape.in_c(), size_of::<foam_stack_port>(), 0);
    let verb = random.below(3);
    // SAFETY: zero bytes are a value of the struct.
    let mut ports: Vec<foam_stack_port> = vec![unsafe { std::mem::zeroed() }; 40];
    // SAFETY: live structs, and room for forty items.
    let status = unsafe {
        let list = ports.as_mut_ptr();
        foam_stack_ports(&stack.config, &raw, verb as i32, 1, list, size, 40, &mut found, null_mut())
    };
    assert_eq!(status, FOAM_OK);
    let buffer = |port: &foam_stack_port| {
        let dtype = match (port.dtypes[0].code, port.dtypes[0].bits) {
            (FOAM_DTYPE_INT, _) => frame::I32,
            (FOAM_DTYPE_UINT, 8) => frame::U8,
            (FOAM_DTYPE_UINT, _) => frame::U32,
            (FOAM_DTYPE_BFLOAT, _) => frame::BF16,
            (_, 16) => frame::F16,
            (_, 32) => frame::F32,
            _ => frame::F64,
        };
        let mut dims = port.shape[..port.ndim as usize].to_vec();
        if dims == [0] {
            dims[0] = stack.workspace.len() as i64;
        }
        let mut own = Buffer::new(dtype, &dims);
        if let Ok(place) = usize::try_from(port.state) {
            let bytes = stack.state[place].bytes();
            bytemuck::cast_slice_mut(&mut own.data)[..bytes.len()].copy_from_slice(bytes);
        }
        own
    };
    let listed = |flag: u32| -> Vec<Buffer> {
        ports[..found].iter().filter(|port| port.flags & flag != 0).map(buffer).collect()
    };
    let (mut args, mut rets) = (listed(FOAM_PORT_READ), listed(FOAM_PORT_WRITTEN));
    let mut attrs: Vec<(&str, Attr)> = vec![
        ("options", Attr::Text(options.into())),
        ("dtype", Attr::Text(format!("{:?}", stack.shape.dtype).to_lowercase())),
        ("order", Attr::Whole(stack.shape.dims.len() as i64)),
        ("with_params", Attr::Whole(1)),
        ("grad_scale", Attr::Real(1.0)),
        ("weight_decay_scale", Attr::Real(1.0)),
        ("root", Attr::Real(0.0)),
        ("preconditioned", Attr::Whole(1)),
        ("scale", Attr::Real(-0.1)),
    ];
    let wrong = random.below(6);
    let list = if random.below(2) == 0 { &mut args } else { &mut rets };
    let place = random.below(list.len());
    match wrong {
        0 => list[place] = Buffer::new(frame::I64, &list[place].dims),
        // A workspace may be larger than it has to be.
        1 if list[place].dtype == frame::U8 => list[place] = Buffer::new(frame::U8, &[0]),
        1 => list[place] = Buffer::new(list[place].dtype, &[list[place].dims.clone(), vec![2, 2]].concat()),
        2 => drop(list.remove(place)),
        3 => {
            let values = [
                Attr::Array,
                Attr::Whole(i64::MIN),
                Attr::Real(f64::NAN),
                Attr::Text("nonsense=1".into()),
                Attr::Bytes(vec![0xff, 0]),
            ];
            attrs[random.below(9)].1 = values[random.below(5)].clone();
        }
        4 => drop(attrs.remove(random.below(9))),
        _ => {}
    }
    let handler: [Handler; 3] = [foam_xla_accumulate, foam_xla_check, foam_xla_apply];
    let outcome = frame::execute(handler[verb], &mut args, &mut rets, &attrs);
    if wrong == 5 {
        assert_eq!(outcome, Ok(()), "verb {verb}");
        count(tally, "frames", 1);
    } else if wrong < 3 {
        assert!(outcome.is_err(), "verb {verb}, fault {wrong} was taken");
    }
    count(tally, "frames refused", u64::from(outcome.is_err()));
}
