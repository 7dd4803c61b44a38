//! Hostile input: damaged checkpoints and arbitrary option texts are refused, or serve, but never crash, and what
//! is refused changes nothing. Every case has a seed.

use crate::support::model::{Model, Spec, StepWith, configuration};
use crate::support::random::Random;
use crate::support::tensor::{Dtype, Tensor};
use foam::abi::*;
use std::ffi::{CString, c_char};
use std::ptr::{null, null_mut};

const OPTIONS: &str = "policy=foam check_period=2 beta2=0.8 max_factor_dim=4 merge_dims=false tau=0.2 epsilon=1e-4 \
                       epsilon_max=1e-2 momentum=0.5 num_threads=1";

fn specs() -> Vec<Spec> {
    vec![Spec::new("matrix", &[5, 3]).of(Dtype::F32), Spec::new("vector", &[3]), Spec::new("scalar", &[])]
}

/// A model after some steps, and its parameters.
fn trained(steps: usize, seed: u64) -> (Model, Vec<Tensor>) {
    let specs = specs();
    let mut model = Model::new("reference", OPTIONS, &specs);
    let mut random = Random::new(seed);
    let mut tensors =
        || -> Vec<Tensor> { specs.iter().map(|s| s.tensor(&random.normals(s.elements()))).collect() };
    let mut params = tensors();
    (0..steps).for_each(|_| model.step(&mut params, &tensors()));
    (model, params)
}

/// Changes `bytes` in one of the ways in which files get damaged, and says how.
fn damage(bytes: &mut Vec<u8>, random: &mut Random) -> String {
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let kind = random.below(8);
    match kind {
        0 => bytes.truncate(random.below(bytes.len())),
        1 => bytes.truncate(random.below(header + 1)),
        2 => (0..1 + random.below(40)).for_each(|_| bytes.push(random.bits() as u8)),
        3 => bytes[random.below(8)] = random.bits() as u8,
        4 => {
            // Any byte of the header.
            let at = 8 + random.below(header - 8);
            bytes[at] ^= 1 << random.below(8);
        }
        5 => {
            // A digit of the header: shapes, offsets, counts.
            let digits: Vec<usize> = (8..header).filter(|at| bytes[*at].is_ascii_digit()).collect();
            bytes[random.pick(&digits)] = b'0' + random.below(10) as u8;
        }
        6 => {
            // A stretch of the header, removed or doubled; its stated length follows.
            let at = 8 + random.below(header - 8);
            let end = (at + 1 + random.below(60)).min(header);
            let piece: Vec<u8> = bytes[at..end].to_vec();
            let longer = random.below(2) == 1;
            bytes.splice(at..end, if longer { [&piece[..], &piece].concat() } else { Vec::new() });
            let length =
                header - 8 + if longer { piece.len() } else { 0 } - if longer { 0 } else { piece.len() };
            bytes[..8].copy_from_slice(&(length as u64).to_le_bytes());
        }
        _ => {
            for _ in 0..1 + random.below(4) {
                let at = header + random.below(bytes.len() - header);
                bytes[at] ^= 1 << random.below(8);
            }
        }
    }
    format!("damage of kind {kind}")
}

#[test]
fn a_damaged_checkpoint_is_refused_whole() {
    let (source, _) = trained(7, 1);
    let good = source.save();
    let (mut refused, mut served) = ([0; 8], [0; 8]);
    for seed in 0..1500 {
        let mut random = Random::new(seed);
        let mut bytes = good.clone();
        let mut case = String::new();
        for _ in 0..1 + random.below(2) {
            if bytes.len() > 100
                && u64::from_le_bytes(bytes[..8].try_into().unwrap()) < bytes.len() as u64 - 100
            {
                case = damage(&mut bytes, &mut random);
            }
        }
        let kind: usize = case.trim_start_matches("damage of kind ").parse().unwrap();
        let (mut model, mut params) = trained(3, 2);
        let (statistics, saved) = (model.statistics(), model.save());
        match model.load(&bytes) {
            Err(failure) => {
                assert_eq!(failure.status, FOAM_BAD_CHECKPOINT, "seed {seed}, {case}: {}", failure.message);
                assert!(failure.message.len() > 25, "seed {seed}, {case}: {}", failure.message);
                assert!(
                    model.statistics() == statistics && model.save() == saved,
                    "seed {seed}, {case}: changed"
                );
                refused[kind] += 1;
            }
            Ok(()) => {
                assert!(bytes == good, "seed {seed}, {case}: a damaged checkpoint was taken");
                served[kind] += 1;
            }
        }
        for _ in 0..3 {
            let grads: Vec<_> =
                specs().iter().map(|s| Some(s.tensor(&random.normals(s.elements())))).collect();
            let outcome = model.try_step(&mut params, &grads, StepWith::default());
            assert_eq!(outcome, Ok(false), "seed {seed}, {case}");
        }
        model.save();
    }
    println!("by kind of damage: refused {refused:?}, served {served:?}");
    assert!(
        refused[0] > 50 && refused[3] > 50 && refused[6] > 50 && refused[7] > 50,
        "{refused:?} {served:?}"
    );
    // What is taken was not damaged after all: a digit became itself, or a byte was damaged back.
    assert!(served.iter().sum::<i32>() < 100, "{served:?}");
}

fn keys() -> Vec<String> {
    let config = configuration("reference", "").unwrap();
    let mut text = vec![0 as c_char; 4000];
    // SAFETY: an initialised struct and a buffer of the size that is passed.
    let status = unsafe { foam_config_get(&config, null(), text.as_mut_ptr(), text.len(), null_mut()) };
    assert_eq!(status, FOAM_OK);
    let bytes: Vec<u8> = text.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
    String::from_utf8(bytes).unwrap().split(' ').map(String::from).collect()
}

/// The text form of every option.
fn dump(config: &foam_config, keys: &[String]) -> Vec<Vec<c_char>> {
    let get = |key: &String| {
        let key = CString::new(key.as_str()).unwrap();
        let mut text = vec![0 as c_char; 400];
        // SAFETY: an initialised struct, a C string and a buffer of the size that is passed.
        let status =
            unsafe { foam_config_get(config, key.as_ptr(), text.as_mut_ptr(), text.len(), null_mut()) };
        assert_eq!(status, FOAM_OK);
        text
    };
    keys.iter().map(get).collect()
}

fn any_bytes(random: &mut Random) -> Vec<u8> {
    (0..random.below(30)).map(|_| 1 + (random.bits() % 255) as u8).collect()
}

fn value(random: &mut Random) -> Vec<u8> {
    let words = [
        "",
        " ",
        "0",
        "1",
        "-1",
        "0.5",
        "1e-9",
        "1e308",
        "1e309",
        "-0",
        "inf",
        "-inf",
        "nan",
        "true",
        "off",
        "2.5",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551616",
        "0x10",
        "1_000",
        "1,5",
        "foam",
        "adam",
        "cpu",
        "cuda",
        "cuda:0",
        "cuda:-1",
        "cuda:99999999999",
        "f32",
        "skip",
        "paper",
        " 1 ",
        "١",
        "1e",
        "٠٫٥",
    ];
    match random.below(4) {
        0 => any_bytes(random),
        1 => format!("{:e}", random.normal() * 10f64.powf(random.within(-320.0, 310.0))).into_bytes(),
        2 => format!("{}", random.bits() as i64 >> random.below(64)).into_bytes(),
        _ => random.pick(&words).as_bytes().to_vec(),
    }
}

#[test]
fn arbitrary_options_are_refused_without_a_trace_or_taken() {
    let keys = keys();
    assert!(keys.len() > 30);
    let (mut taken, mut refused, mut made) = (0, 0, 0);
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let mut config = configuration(random.pick(&["reference", "paper"]), "").unwrap();
        for _ in 0..12 {
            let key = match random.below(8) {
                0 => any_bytes(&mut random),
                1 => format!("{} ", keys[random.below(keys.len())]).into_bytes(),
                _ => keys[random.below(keys.len())].clone().into_bytes(),
            };
            let (name, text) =
                (CString::new(key.clone()).unwrap(), CString::new(value(&mut random)).unwrap());
            let before = dump(&config, &keys);
            let mut error = foam_error::new();
            // SAFETY: an initialised struct and C strings.
            let status = unsafe { foam_config_set(&mut config, name.as_ptr(), text.as_ptr(), &mut error) };
            assert_eq!(status, error.code);
            if status == FOAM_OK {
                taken += 1;
                continue;
            }
            refused += 1;
            let case = format!("seed {seed}: {name:?} = {text:?}");
            assert_eq!(status, FOAM_INVALID_ARGUMENT, "{case}: {}", error.text());
            assert!(error.text().len() > 10, "{case}");
            assert!(dump(&config, &keys) == before, "{case}: a refused option changed the configuration");
        }
        // As many threads as were asked for would be started; that is no question of parsing.
        config.num_threads = 1;
        match Model::create(&config, &specs()) {
            Ok(model) => made += u64::from(model.stats().params == 3),
            Err(failure) => assert!(
                [FOAM_INVALID_ARGUMENT, FOAM_UNSUPPORTED, FOAM_OUT_OF_MEMORY].contains(&failure.status),
                "seed {seed}: {failure:?}"
            ),
        }
    }
    println!("{taken} options taken, {refused} refused, {made} of 400 configurations serve");
    assert!(taken > 300 && refused > 1000 && made > 100, "{taken} {refused} {made}");
}
