//! Checkpoint files: killed writers, two writers, a full disk.

use crate::life::Life;
use crate::support::model::Model;
use crate::support::random::Random;
use crate::{Tally, count};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A folder that goes away.
pub struct Folder {
    pub path: PathBuf,
}

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hostile-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder { path }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Steps that a writer takes.
const STEPS: usize = 400;

/// A process of this program that is not a part: `write-SEED-PATH` steps and saves until it is killed.
pub fn child(name: &str) {
    let mut words = name.splitn(3, '-').skip(1);
    let seed: u64 =
        words.next().and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("no part '{name}'"));
    let path = PathBuf::from(words.next().unwrap());
    let (life, mut random) = (Life::new(&mut Random::new(seed)), Random::new(seed + 1));
    let (mut model, mut params) = (life.model(1), life.tensors(&mut random));
    println!("ready");
    std::io::stdout().flush().unwrap();
    for _ in 0..STEPS {
        life.step(&mut model, &mut params, &mut random);
        model.save_file(&path).unwrap();
    }
}

fn steps_of(model: &Model) -> usize {
    model.stats().steps as usize
}

/// The state after `steps` steps, as the writer takes them.
fn after(life: &Life, steps: usize, seed: u64) -> Vec<u8> {
    life.run(1, steps, seed + 1).0.save()
}

pub fn kill(seed: u64, tally: &mut Tally) {
    let folder = Folder::new("kill");
    let path = folder.path.join("saved");
    let (life, mut random) = (Life::new(&mut Random::new(seed)), Random::new(seed + 2));
    for _ in 0..4 {
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args(["--child", &format!("write-{seed}-{}", path.display())])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(writer.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        std::thread::sleep(Duration::from_micros(random.below(20_000) as u64));
        writer.kill().unwrap();
        writer.wait().unwrap();
        count(tally, "kills", 1);
        if !path.exists() {
            count(tally, "before the first save", 1);
            continue;
        }
        // The file is whole, is the state of some step, and a run goes on from it as if nothing had happened.
        let bytes = std::fs::read(&path).unwrap();
        let mut model = life.model(1);
        model.load_file(&path).unwrap_or_else(|failure| panic!("a killed save left {failure:?}"));
        let steps = steps_of(&model);
        assert!(bytes == after(&life, steps, seed), "not the state of step {steps}");
        let (_, mut params) = life.run(1, steps, seed + 1);
        let mut gradients = Random::new(seed + 1);
        (0..=steps).for_each(|_| drop(life.tensors(&mut gradients)));
        for _ in 0..3 {
            life.step(&mut model, &mut params, &mut gradients);
        }
        assert!(model.save() == after(&life, steps + 3, seed), "the resumed run differs");
        count(tally, "resumed", 1);
        std::fs::remove_file(&path).unwrap();
    }
}

/// Two writers of one file, and a reader: what is read is one of the two states, whole.
pub fn writers(seed: u64, tally: &mut Tally) {
    let folder = Folder::new("writers");
    let path = folder.path.join("saved");
    let life = Life::new(&mut Random::new(seed));
    let (one, other) = (after(&life, 2, seed), after(&life, 3, seed));
    life.run(1, 2, seed + 1).0.save_file(&path).unwrap();
    // Names such as a process of the same number would have left behind.
    let pid = std::process::id();
    for number in 0..3 {
        let name = format!(".foam-{:016x}.tmp", u64::from(pid) << 8 | number);
        std::fs::write(folder.path.join(name), b"not ours").unwrap();
    }
    std::thread::scope(|scope| {
        for steps in [2, 3] {
            let (life, path) = (&life, &path);
            scope.spawn(move || {
                let (model, _) = life.run(1, steps, seed + 1);
                (0..25).for_each(|_| model.save_file(path).unwrap());
            });
        }
        let mut reader = life.model(1);
        for _ in 0..25 {
            reader.load_file(&path).unwrap();
            let read = reader.save();
            assert!(read == one || read == other, "neither writer's state");
            count(tally, "reads", 1);
        }
    });
    count(tally, "saves", 50);
    assert_eq!(
        std::fs::read_dir(&folder.path).unwrap().count(),
        4,
        "files were left, or others' were removed"
    );
}

/// A disk without room: the save says so, and the old file stays. Without the right to mount a small one, a file
/// system that is always full takes its place.
pub fn full_disk(seed: u64, tally: &mut Tally) {
    let mut random = Random::new(seed);
    let life = Life::new(&mut random);
    let folder = Folder::new("disk");
    let (model, _) = life.run(1, 2, seed);
    let size = model.save().len();
    let mount = folder.path.join("small");
    std::fs::create_dir_all(&mount).unwrap();
    let pages = 1 + random.below(2 * size / 4096 + 2);
    let c_path = std::ffi::CString::new(mount.to_str().unwrap()).unwrap();
    let options = std::ffi::CString::new(format!("size={}", pages * 4096)).unwrap();
    // SAFETY: C strings; the folder is ours, and so are the mounts of this process from here on: nobody else sees the
    // small disk, and it ends with the process.
    let mounted = unsafe {
        let flags = libc::MS_REC | libc::MS_PRIVATE;
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(c"none".as_ptr(), c"/".as_ptr(), std::ptr::null(), flags, std::ptr::null()) == 0
            && libc::mount(c"tmpfs".as_ptr(), c_path.as_ptr(), c"tmpfs".as_ptr(), 0, options.as_ptr().cast())
                == 0
    };
    if !mounted {
        // A device is no file to replace, and is left alone.
        let failure = model.save_file(Path::new("/dev/full")).unwrap_err();
        assert!(failure.message.contains("/dev/full"), "{failure:?}");
        count(tally, "no right to mount", 1);
        return;
    }
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let path = mount.join("saved");
        let first = model.save_file(&path);
        // Room for one, not for two at once; or not even for one.
        let second = model.save_file(&path);
        let there = std::fs::read(&path).ok();
        let left = std::fs::read_dir(&mount).unwrap().count();
        (first.is_ok(), second.is_ok(), there == Some(model.save()), left)
    }));
    // SAFETY: what was mounted above.
    unsafe { libc::umount2(c_path.as_ptr(), libc::MNT_DETACH) };
    let (first, second, whole, left) = outcome.unwrap();
    assert_eq!((whole, left), (first, usize::from(first)), "{pages} pages for {size} bytes");
    assert!(first || !second);
    count(tally, if first && second { "room enough" } else { "disk full" }, 1);
}
