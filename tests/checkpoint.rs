//! The checkpoint format: what `docs/checkpoints.md` says of the file, of damage, of numbers, and of what a save
//! may replace.

use crate::support::model::{Model, Spec, StepWith};
use crate::support::random::Random;
use crate::support::tensor::{Dtype, Tensor};
use foam::abi::{FOAM_BAD_CHECKPOINT, FOAM_BRANCH_EVD_FAILED, FOAM_IO_ERROR};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const OPTIONS: &str = "policy=foam check_period=2 beta2=0.8 max_factor_dim=4 merge_dims=false tau=0.2 epsilon=1e-4 \
                       epsilon_max=1e-2 momentum=0.5 num_threads=1";

fn specs() -> Vec<Spec> {
    vec![Spec::new("matrix", &[9, 3]).of(Dtype::F32), Spec::new("vec\"tor", &[3]), Spec::new("scalar", &[])]
}

fn tensors(specs: &[Spec], random: &mut Random) -> Vec<Tensor> {
    specs.iter().map(|s| s.tensor(&random.normals(s.elements()))).collect()
}

/// A model after some steps.
fn trained(options: &str, steps: usize) -> Model {
    let specs = specs();
    let mut model = Model::new("reference", options, &specs);
    let mut random = Random::new(5);
    let mut params = tensors(&specs, &mut random);
    (0..steps).for_each(|_| model.step(&mut params, &tensors(&specs, &mut random)));
    model
}

/// A file taken apart: the object of the header, and the tensors in the order of the file.
struct Parts {
    about: Value,
    tensors: Vec<(String, Value, Vec<u8>)>,
}

impl Parts {
    fn new(bytes: &[u8]) -> Parts {
        let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..start]).unwrap();
        let about = serde_json::from_str(header["__metadata__"]["foam"].as_str().unwrap()).unwrap();
        let place = |tensor: &Value| {
            let end = |at: usize| start + tensor["data_offsets"][at].as_u64().unwrap() as usize;
            end(0)..end(1)
        };
        let mut tensors: Vec<_> =
            header.as_object().unwrap().iter().filter(|t| t.0 != "__metadata__").collect();
        tensors.sort_by_key(|(_, tensor)| place(tensor).start);
        let tensors = tensors.into_iter().map(|(k, v)| (k.clone(), v.clone(), bytes[place(v)].to_vec()));
        Parts { about, tensors: tensors.filter(|(name, ..)| name != "crc32").collect() }
    }

    /// The tensor `name` and its description.
    fn tensor(&mut self, name: &str) -> (&mut Value, &mut Vec<u8>) {
        let found = self.tensors.iter_mut().find(|t| t.0 == name);
        let (_, about, bytes) = found.unwrap_or_else(|| panic!("there is a tensor '{name}'"));
        (about, bytes)
    }

    /// The file again, with new checksums.
    fn bytes(&self) -> Vec<u8> {
        let mut header = serde_json::Map::new();
        header.insert("__metadata__".to_string(), json!({ "foam": self.about.to_string() }));
        let mut end = 0;
        let sums = self.tensors.len() + 2;
        let crc = ("crc32".to_string(), json!({ "dtype": "U32", "shape": [sums] }), vec![0; 4 * sums]);
        for (name, about, bytes) in self.tensors.iter().chain([&crc]) {
            let mut about = about.clone();
            about["data_offsets"] = json!([end, end + bytes.len()]);
            end += bytes.len();
            header.insert(name.clone(), about);
        }
        let header = Value::Object(header).to_string();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(header.as_bytes());
        let mut sums = crc32fast::hash(&file).to_le_bytes().to_vec();
        for (_, _, bytes) in &self.tensors {
            file.extend_from_slice(bytes);
            sums.extend_from_slice(&crc32fast::hash(bytes).to_le_bytes());
        }
        sums.extend_from_slice(&crc32fast::hash(&sums).to_le_bytes());
        file.extend_from_slice(&sums);
        file
    }
}

/// A folder of this test's own, which is removed when the test is over.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = format!("checkpoint-{name}-{}", std::process::id());
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The names in it.
    fn names(&self) -> Vec<String> {
        let name =
            |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<String> = std::fs::read_dir(&self.0).unwrap().map(name).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[track_caller]
fn refused(model: &mut Model, bytes: &[u8]) -> String {
    let before = (model.statistics(), model.save());
    let failure = model.load(bytes).expect_err("refused");
    assert_eq!(failure.status, FOAM_BAD_CHECKPOINT, "{}", failure.message);
    assert!((model.statistics(), model.save()) == before, "a refused checkpoint changed something");
    failure.message
}

#[test]
fn other_readers_of_safetensors_read_the_file() {
    let bytes = trained(OPTIONS, 7).save();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let shape = |name: &str| file.tensor(name).unwrap().shape().to_vec();
    // [9, 3] is cut into two blocks of [4, 3] and one of [1, 3].
    assert_eq!(shape("matrix/stack0/axis0/statistic"), [2, 4, 4]);
    assert_eq!(shape("matrix/stack0/filter"), [2, 4, 3]);
    assert_eq!(shape("matrix/stack1/axis1/basis"), [1, 3, 3]);
    assert_eq!(shape("matrix/stack0/axis1/gauges")[0], 2);
    assert_eq!(shape("vec\"tor/clock.step"), [1]);
    let step = file.tensor("scalar/clock.step").unwrap().data().to_vec();
    assert_eq!(i64::from_le_bytes(step.try_into().unwrap()), 7);
    for (name, tensor) in file.tensors() {
        let offset = tensor.data().as_ptr() as usize - bytes.as_ptr() as usize;
        let size = tensor.data().len() / tensor.shape().iter().product::<usize>();
        assert_eq!(offset % size, 0, "'{name}' is not aligned within the file");
    }
    // Taken apart and put together it is as good as before.
    let mut copy = trained(OPTIONS, 0);
    copy.load(&Parts::new(&bytes).bytes()).unwrap();
    assert!(copy.save() == bytes);
}

#[test]
fn the_size_is_the_size() {
    for steps in [0, 1, 9, 10, 11] {
        let model = trained(OPTIONS, steps);
        let folder = Folder::new(&format!("size{steps}"));
        model.save_file(&folder.join("state")).unwrap();
        assert_eq!(std::fs::read(folder.join("state")).unwrap(), model.save());
    }
}

#[test]
fn every_flipped_bit_is_refused_and_the_tensor_named() {
    let good = trained(OPTIONS, 7).save();
    let file = SafeTensors::deserialize(&good).unwrap();
    let start = |bytes: &[u8]| bytes.as_ptr() as usize - good.as_ptr() as usize;
    let places: Vec<_> = file
        .tensors()
        .into_iter()
        .map(|(n, t)| (n, start(t.data())..start(t.data()) + t.data().len()))
        .collect();
    let mut model = trained(OPTIONS, 3);
    let before = (model.statistics(), model.save());
    let mut bytes = good.clone();
    for at in 0..good.len() {
        for bit in [at % 8, (at + 3) % 8] {
            bytes[at] ^= 1 << bit;
            let failure = model.load(&bytes).expect_err("a flipped bit");
            assert_eq!(failure.status, FOAM_BAD_CHECKPOINT, "byte {at}: {}", failure.message);
            if let Some((name, _)) = places.iter().find(|(_, place)| place.contains(&at)) {
                assert!(failure.message.contains(&format!("'{name}'")), "byte {at}: {}", failure.message);
            }
            bytes[at] ^= 1 << bit;
        }
    }
    assert!((model.statistics(), model.save()) == before, "a refused checkpoint changed something");
    println!("{} of {} flipped bits refused", 2 * good.len(), 2 * good.len());
    model.load(&good).unwrap();
    assert!(model.save() == good);
}

#[test]
fn records_are_read_by_field_name() {
    let source = trained(OPTIONS, 8);
    let mut parts = Parts::new(&source.save());
    let mut turned = Vec::new();
    // A later library: the columns stand in another order, with one more in front.
    for kind in ["gauges", "counters"] {
        let names = parts.about[kind].as_array().unwrap().clone();
        let width = names.len();
        let mut later = vec![json!("from_the_future")];
        later.extend(names.into_iter().rev());
        parts.about[kind] = Value::Array(later);
        for (name, about, bytes) in parts.tensors.iter_mut().filter(|t| t.0.ends_with(&format!("/{kind}"))) {
            about["shape"][1] = json!(width + 1);
            let rows = bytes.chunks_exact(8 * width).map(|row| {
                let words = row.chunks_exact(8).rev().flatten().copied();
                [0xff; 8].into_iter().chain(words).collect::<Vec<u8>>()
            });
            *bytes = rows.collect::<Vec<_>>().concat();
            turned.push(name.clone());
        }
    }
    parts.about["from_the_future"] = json!({ "of": [1, null, "x"] });
    assert_eq!(turned.len(), 2 * 6);
    let mut copy = trained(OPTIONS, 2);
    copy.load(&parts.bytes()).unwrap();
    assert_eq!(copy.statistics(), source.statistics());
    assert!(copy.save() == source.save());
    // An earlier library: all but the first two columns are missing.
    let mut parts = Parts::new(&source.save());
    for kind in ["gauges", "counters"] {
        let names = parts.about[kind].as_array_mut().unwrap();
        let width = names.len();
        names.truncate(2);
        for (_, about, bytes) in parts.tensors.iter_mut().filter(|t| t.0.ends_with(&format!("/{kind}"))) {
            about["shape"][1] = json!(2);
            *bytes = bytes.chunks_exact(8 * width).map(|row| row[..16].to_vec()).collect::<Vec<_>>().concat();
        }
    }
    copy.load(&parts.bytes()).unwrap();
    for (got, expected) in copy.factors().iter().zip(source.factors()) {
        assert_eq!((got.epsilon, got.proxy), (expected.epsilon, expected.proxy));
        assert_eq!(got.last_branch, expected.last_branch);
        assert!(got.noise_floor.is_nan() && got.evd_calls == 0, "{got:?}");
    }
    // The number of columns and the list of their names belong together.
    parts.about["gauges"] = json!(["epsilon"]);
    assert!(
        refused(&mut copy, &parts.bytes()).contains("gauges' is F64 [2,2] in the file: expected F64 [2,1]")
    );
}

#[test]
fn impossible_records_and_clocks_are_refused_by_name() {
    let good = trained(OPTIONS, 7).save();
    let mut model = trained(OPTIONS, 3);
    let mut edited = |name: &str, at: usize, word: [u8; 8]| {
        let mut parts = Parts::new(&good);
        parts.tensor(name).1[8 * at..8 * at + 8].copy_from_slice(&word);
        let message = refused(&mut model, &parts.bytes());
        assert!(message.contains(name.trim_end_matches("gauges").trim_end_matches("weight")), "{message}");
        message
    };
    for epsilon in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(edited("matrix/stack0/axis1/gauges", 0, epsilon.to_le_bytes()).contains("epsilon ="));
    }
    for (at, value) in [(0, i64::from(FOAM_BRANCH_EVD_FAILED) + 1), (1, 2), (4, -1), (14, (1 << 53) + 1)] {
        edited("matrix/stack0/axis1/counters", at, i64::to_le_bytes(value));
    }
    edited("scalar/clock.step", 0, (-1i64).to_le_bytes());
    for weight in [0.0, 1.5, f64::NAN] {
        edited("scalar/clock.weight", 0, weight.to_le_bytes());
    }
}

#[test]
fn the_head_of_a_hostile_file_is_refused() {
    let good = trained(OPTIONS, 7).save();
    let mut model = trained(OPTIONS, 3);
    let mut edited = |edit: &dyn Fn(&mut Parts), says: &str| {
        let mut parts = Parts::new(&good);
        edit(&mut parts);
        let message = refused(&mut model, &parts.bytes());
        assert!(message.contains(says), "'{says}' in: {message}");
    };
    edited(&|p| p.about["format"] = json!(3), "format = 3: expected 1 or 2");
    edited(&|p| p.about["format"] = json!("2"), "expected a whole number");
    edited(&|p| p.about["steps"] = json!(u64::MAX), "steps = 18446744073709551615: expected at most");
    edited(&|p| p.about["steps"] = Value::Null, "expected");
    edited(&|p| p.about["params"] = json!([]), "no parameter 'matrix'");
    edited(&|p| p.about = json!([]), "the metadata 'foam'");
    edited(&|p| p.tensor("matrix/stack0/filter").0["dtype"] = json!("BF16"), "matrix/stack0/filter");
    edited(
        &|p| p.tensor("matrix/stack0/filter").0["shape"] = json!([4, 2, 3]),
        "[4,2,3] in the file: expected F32 [2,4,3]",
    );
    edited(&|p| p.tensors.truncate(p.tensors.len() - 1), "the file has no tensor");
    edited(
        &|p| p.tensors.push(("more".into(), json!({ "dtype": "F32", "shape": [1] }), vec![0; 4])),
        "tensors: expected",
    );
    let flood = |p: &mut Parts| {
        for number in 0..20_000 {
            p.tensors.push((format!("more{number}"), json!({ "dtype": "F32", "shape": [1] }), vec![0; 4]));
        }
    };
    edited(&flood, "tensors");
}

/// A state that was saved can be loaded, whatever its numbers are.
#[test]
fn numbers_that_are_not_finite_are_loaded_as_they_were_saved_and_no_step_dies_of_them() {
    for policy in [
        "stale",
        "foam",
        "foam_no_refresh",
        "diagonal_residual",
        "foam_certified",
        "sandwich",
        "grafting_only",
    ] {
        let options = format!("{OPTIONS} policy={policy}");
        let good = trained(&options, 7).save();
        let names: Vec<String> = Parts::new(&good).tensors.iter().map(|t| t.0.clone()).collect();
        for name in
            names.iter().filter(|n| !n.contains("clock") && !n.contains("gauges") && !n.contains("counters"))
        {
            for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                let mut parts = Parts::new(&good);
                let (about, bytes) = parts.tensor(name);
                if about["dtype"] == "F32" {
                    bytes[..4].copy_from_slice(&(value as f32).to_le_bytes());
                } else {
                    bytes[..8].copy_from_slice(&value.to_le_bytes());
                }
                let mut model = trained(&options, 0);
                model.load(&parts.bytes()).unwrap_or_else(|why| panic!("{policy}, {name}: {why:?}"));
                let saved = model.save();
                let mut copy = trained(&options, 0);
                copy.load(&saved).unwrap();
                assert!(copy.save() == saved, "{policy}, {name}");
                let specs = specs();
                let mut random = Random::new(9);
                let mut params = tensors(&specs, &mut random);
                for _ in 0..4 {
                    let grads = tensors(&specs, &mut random).into_iter().map(Some).collect::<Vec<_>>();
                    let stepped = model.try_step(&mut params, &grads, StepWith::default());
                    assert_eq!(stepped, Ok(false), "{policy}, {name}");
                }
                let saved = model.save();
                copy.load(&saved).unwrap();
                assert!(copy.save() == saved, "{policy}, {name}: after steps");
            }
        }
    }
}

/// (1e-30 + 1e-38)^(−2) is beyond f32.
#[test]
fn an_inverse_root_that_overflowed_is_saved_and_loaded() {
    let options = "policy=stale check_period=1 beta2=0.5 root=1 exponent_multiplier=2 epsilon=1e-38 epsilon_max=1 \
                   statistic_dtype=f64 num_threads=1";
    let specs = [Spec::new("w", &[3, 2]).of(Dtype::F32)];
    let mut model = Model::new("reference", options, &specs);
    let mut params = vec![specs[0].tensor(&[1.0; 6])];
    for t in 0..3 {
        let grads = specs[0].tensor(&[1e-15, 0.0, 2e-15, 1e-15 * t as f64, 0.0, 0.0]);
        model.step(&mut params, &[grads]);
    }
    let root = model.read((0, 0, 0), foam::abi::FOAM_FACTOR_INVERSE_ROOT);
    assert!(root.iter().any(|value| !value.is_finite()), "nothing overflowed: {root:?}");
    let saved = model.save();
    let mut copy = Model::new("reference", options, &specs);
    copy.load(&saved).unwrap();
    assert!(copy.save() == saved);
}

#[test]
fn ninety_thousand_blocks_have_a_small_header() {
    let specs = [Spec::new("table", &[601, 600]).of(Dtype::F32)];
    let options =
        "policy=foam max_factor_dim=2 merge_dims=false check_period=50 grafting=sgd beta1=0.9 num_threads=1";
    let mut model = Model::new("reference", options, &specs);
    let mut random = Random::new(3);
    let mut params = tensors(&specs, &mut random);
    model.step(&mut params, &tensors(&specs, &mut random));
    let bytes = model.save();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    println!("{} blocks: {} bytes, of which the header has {header}", model.stats().blocks, bytes.len());
    assert!(model.stats().blocks > 90_000 && header < 10_000);
    let file = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.tensor("table/stack0/axis0/statistic").unwrap().shape(), [90_000, 2, 2]);
    let folder = Folder::new("blocks");
    model.save_file(&folder.join("state")).unwrap();
    let mut copy = Model::new("reference", options, &specs);
    copy.load_file(&folder.join("state")).unwrap();
    assert!(copy.save() == bytes);
}

/// The file and its statistics were written when format 1 was current.
#[test]
fn a_file_of_the_first_format_still_loads() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("checkpoints");
    let old = std::fs::read(folder.join("v1.safetensors")).unwrap();
    let expected = std::fs::read_to_string(folder.join("v1.txt")).unwrap();
    let options = "policy=foam check_period=3 start_step=4 beta2=0.8 max_factor_dim=5 merge_dims=false tau=0.2 \
                   epsilon=1e-4 epsilon_max=1e-2 lr=0.1 momentum=0.5 nonfinite=skip num_threads=1";
    let specs = vec![
        Spec::new("blocks", &[7, 6]).of(Dtype::F32),
        Spec::new("long", &[11, 2]).of(Dtype::F32),
        Spec::new("layer/vector", &[5]),
        Spec::new("matrix \"quoted\" é", &[3, 4]),
        Spec::new("one", &[1]).of(Dtype::F32),
        Spec { grafting_only: true, ..Spec::new("embedding", &[6]).of(Dtype::F32) },
    ];
    for turned in [false, true] {
        let mut specs = specs.clone();
        if turned {
            specs.reverse();
        }
        let mut model = Model::new("reference", options, &specs);
        model.load(&old).unwrap();
        if !turned {
            check_statistics(&model, &expected);
        }
        // Every number of the old file is in the new one.
        let new = model.save();
        let (old, new) = (SafeTensors::deserialize(&old).unwrap(), SafeTensors::deserialize(&new).unwrap());
        for (name, tensor) in old.tensors() {
            let (stack, row) = match name.split_once("/block") {
                None => (name.clone(), 0),
                Some((param, rest)) => {
                    let (block, rest) = rest.split_once('/').unwrap();
                    // "blocks" is cut into [5, 5], [5, 1], [2, 5] and [2, 1], all of different shape; "long" into
                    // [5, 2], [5, 2] and [1, 2].
                    let (stack, row) = match (param, block) {
                        ("long", "1") => (0, 1),
                        ("long", "2") => (1, 0),
                        _ => (block.parse().unwrap(), 0),
                    };
                    (format!("{param}/stack{stack}/{rest}"), row)
                }
            };
            let found = new.tensor(&stack).unwrap_or_else(|why| panic!("{stack}: {why}"));
            let (size, stride) = (tensor.data().len(), found.data().len() / found.shape()[0]);
            // A record that has grown begins with the fields that it had.
            assert!(
                found.data()[row * stride..row * stride + size] == *tensor.data(),
                "{name} differs from {stack}"
            );
        }
        let total = |file: &SafeTensors, but: &str| -> usize {
            file.tensors().iter().filter(|t| t.0 != but).map(|t| t.1.data().len()).sum()
        };
        // Two gauges and eleven counters that the first format did not have.
        let grown = 8 * 13 * model.stats().factors as usize;
        assert_eq!(total(&old, "") + grown, total(&new, "crc32"));
        // And it goes on as its copy in the present format does.
        let mut copy = Model::new("reference", options, &specs);
        copy.load(&model.save()).unwrap();
        let mut random = Random::new(77);
        let mut params = tensors(&specs, &mut random);
        let mut others = params.clone();
        for _ in 0..6 {
            let grads = tensors(&specs, &mut random);
            model.step(&mut params, &grads);
            copy.step(&mut others, &grads);
        }
        assert!(params == others && model.save() == copy.save());
    }
    // Without checksums, what can be seen of damage is still refused.
    let mut model = Model::new("reference", options, &specs);
    refused(&mut model, &old[..old.len() - 1]);
    let file = SafeTensors::deserialize(&old).unwrap();
    for (kind, taken) in [("axis0/basis", false), ("moment", false), ("axis0/inverse_root", true)] {
        let name = format!("matrix \"quoted\" é/block0/{kind}");
        let at = file.tensor(&name).unwrap().data().as_ptr() as usize - old.as_ptr() as usize;
        let mut bytes = old.clone();
        bytes[at..at + 8].copy_from_slice(&f64::INFINITY.to_le_bytes());
        if taken {
            model.load(&bytes).unwrap();
        } else {
            assert!(refused(&mut model, &bytes).contains("not finite"));
        }
    }
}

/// The statistics are those that were written with the old file: one line for each factor, reals as bits.
fn check_statistics(model: &Model, expected: &str) {
    let stats = model.stats();
    let mut lines = expected.lines();
    let totals = format!("steps={} skipped_steps={}", stats.steps, stats.skipped_steps);
    assert_eq!(lines.next(), Some(&*totals));
    let factors = model.factors();
    for (f, line) in factors.iter().zip(lines.by_ref()) {
        let shown = format!("{f:?}");
        let mut compared = 0;
        for (key, value) in line.split(' ').filter_map(|word| word.split_once('=')) {
            let Some((_, after)) = shown.split_once(&format!(" {key}: ")) else { continue };
            let got = after.split([',', ' ']).next().unwrap();
            let same = match value {
                "nan" => got == "NaN",
                _ if value.len() == 16 => {
                    got.parse::<f64>().unwrap().to_bits() == u64::from_str_radix(value, 16).unwrap()
                }
                _ => got == value,
            };
            assert!(same, "{key} = {got}: expected {value} as in {line}");
            compared += 1;
        }
        assert!(compared >= 28, "only {compared} of {line}");
    }
    assert_eq!((lines.next(), factors.len()), (None, 18));
}

#[test]
fn python_reads_a_checkpoint_in_ten_lines() {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/checkpoints.md"))
        .unwrap();
    let (_, after) = page.split_once("```py\n").expect("the page has an example");
    let (program, _) = after.split_once("```").expect("the example ends");
    assert_eq!(program.lines().count(), 10);
    let folder = Folder::new("python");
    trained(OPTIONS, 7).save_file(&folder.join("state.safetensors")).unwrap();
    let mut python = std::process::Command::new("python3");
    let Ok(done) = python.arg("-c").arg(program).arg(folder.join("state.safetensors")).output() else {
        println!("there is no python3 here");
        return;
    };
    let printed = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(printed, "7 steps of matrix, vec\"tor, scalar\n");
}

#[cfg(unix)]
mod places {
    use super::*;
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_save_keeps_the_mode_of_the_file_that_it_replaces() {
        let folder = Folder::new("mode");
        let (model, path) = (trained(OPTIONS, 2), folder.join("state"));
        model.save_file(&path).unwrap();
        let usual = folder.join("usual");
        std::fs::write(&usual, "x").unwrap();
        assert_eq!(mode(&path), mode(&usual));
        for wanted in [0o600, 0o640, 0o666, 0o777, 0o400] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(wanted)).unwrap();
            model.save_file(&path).unwrap();
            assert_eq!(mode(&path), wanted);
        }
        assert_eq!(folder.names(), ["state", "usual"]);
    }

    #[test]
    fn a_save_follows_links_and_leaves_them() {
        let folder = Folder::new("links");
        let model = trained(OPTIONS, 2);
        std::fs::create_dir(folder.join("deep")).unwrap();
        std::fs::write(folder.join("deep/state"), "old").unwrap();
        symlink("deep/state", folder.join("near")).unwrap();
        symlink(folder.join("near"), folder.join("far")).unwrap();
        symlink("deep/new", folder.join("dangling")).unwrap();
        symlink("circle", folder.join("circle")).unwrap();
        symlink("/dev/null", folder.join("device")).unwrap();
        symlink("deep", folder.join("directory")).unwrap();
        for (link, target) in [("far", "deep/state"), ("near", "deep/state"), ("dangling", "deep/new")] {
            std::fs::write(folder.join("deep/state"), "old").unwrap();
            model.save_file(&folder.join(link)).unwrap();
            assert!(
                std::fs::symlink_metadata(folder.join(link)).unwrap().is_symlink(),
                "{link} was replaced"
            );
            assert!(std::fs::read(folder.join(target)).unwrap() == model.save(), "{link}");
        }
        for link in ["circle", "device", "directory"] {
            let failure = model.save_file(&folder.join(link)).expect_err(link);
            assert!(failure.status == FOAM_IO_ERROR && failure.message.contains(link), "{}", failure.message);
            assert!(
                std::fs::symlink_metadata(folder.join(link)).unwrap().is_symlink(),
                "{link} was replaced"
            );
        }
        assert_eq!(folder.names(), ["circle", "dangling", "deep", "device", "directory", "far", "near"]);
    }

    #[test]
    fn a_save_replaces_nothing_but_regular_files() {
        let folder = Folder::new("kinds");
        let mut model = trained(OPTIONS, 2);
        let pipe = folder.join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        std::fs::create_dir(folder.join("directory")).unwrap();
        for path in [pipe.clone(), folder.join("directory"), PathBuf::from("/dev/null"), folder.join("new/")]
        {
            let shown = path.display().to_string();
            let failure = model.save_file(&path).expect_err(&shown);
            assert!(failure.status == FOAM_IO_ERROR, "{}", failure.message);
            assert!(failure.message.contains(&format!("'{shown}'")), "{}", failure.message);
            let failure = model.load_file(&path).expect_err(&shown);
            assert!(failure.status == FOAM_IO_ERROR, "{}", failure.message);
        }
        assert!(std::fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
        assert!(std::fs::metadata("/dev/null").unwrap().file_type().is_char_device());
        assert_eq!(folder.names(), ["directory", "pipe"]);
    }

    #[test]
    fn a_name_may_be_as_long_as_the_file_system_allows() {
        let folder = Folder::new("long");
        let mut model = trained(OPTIONS, 2);
        for length in [200, 240, 245, 254, 255] {
            let path = folder.join(&"n".repeat(length));
            model.save_file(&path).unwrap_or_else(|why| panic!("{length}: {why:?}"));
            model.load_file(&path).unwrap();
        }
        let failure = model.save_file(&folder.join(&"n".repeat(256))).expect_err("too long");
        assert_eq!(failure.status, FOAM_IO_ERROR);
        assert_eq!(folder.names().len(), 5);
    }

    /// Another process of the same number once left its temporary files; they are not ours to take or remove.
    #[test]
    fn a_save_is_not_stopped_by_what_another_process_left() {
        let folder = Folder::new("left");
        let model = trained(OPTIONS, 2);
        let left = |count: usize| format!(".state.{}.{count}.tmp", std::process::id());
        (0..100).for_each(|count| std::fs::write(folder.join(&left(count)), "theirs").unwrap());
        model.save_file(&folder.join("state")).unwrap();
        model.save_file(&folder.join("state")).unwrap();
        assert!((0..100).all(|count| std::fs::read(folder.join(&left(count))).unwrap() == b"theirs"));
        assert_eq!(folder.names().len(), 101);
    }

    /// A directory that may be written but not read cannot be flushed; the file is in place all the same.
    #[test]
    fn a_directory_that_cannot_be_flushed_is_no_failed_save() {
        let folder = Folder::new("unread");
        let model = trained(OPTIONS, 2);
        std::fs::set_permissions(&folder.0, std::fs::Permissions::from_mode(0o300)).unwrap();
        // With a superuser's rights this shows nothing.
        let saved = model.save_file(&folder.join("state"));
        std::fs::set_permissions(&folder.0, std::fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(saved, Ok(()));
        assert!(std::fs::read(folder.join("state")).unwrap() == model.save());
    }
}
