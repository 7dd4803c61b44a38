//! What the library says where CUDA is missing, incomplete, too old, or has no device: a status that names what was
//! looked for. The CPU works all the same.

use crate::simulated::simulated_with;
use crate::support::model::{Model, Spec, configuration};
use crate::support::tensor::{Dtype, Tensor};
use crate::{cudasim, library};
use foam::abi::*;
use std::path::PathBuf;
use std::process::Command;

/// A folder with the simulator under some of CUDA's names only.
fn folder(name: &str, libraries: &[&str]) -> String {
    if std::env::var_os("FOAM_SIMULATED").is_some() {
        return String::new();
    }
    let folder: PathBuf = library::root().join("target/tmp/cuda-probe").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    for library in libraries {
        let target = cudasim::folder().join(library).canonicalize().unwrap();
        std::os::unix::fs::symlink(target, folder.join(library)).unwrap();
    }
    folder.to_str().unwrap().to_string()
}

/// What the probe says: usable, and its report.
fn probe() -> (bool, String) {
    let (mut usable, mut needed, mut error) = (-1, 0, foam_error::new());
    // SAFETY: places for both answers, then a buffer of the size that was asked for.
    unsafe {
        let status = foam_cuda_probe(&mut usable, std::ptr::null_mut(), 0, &mut needed, &mut error);
        assert_eq!(status, FOAM_OK);
        let mut text = vec![1u8; needed];
        let status = foam_cuda_probe(&mut usable, text.as_mut_ptr().cast(), needed, &mut needed, &mut error);
        assert_eq!(status, FOAM_OK);
        assert_eq!(text.pop(), Some(0));
        (usable == 1, String::from_utf8(text).unwrap())
    }
}

/// `device = cuda` is refused with these words, the probe says them too, and the CPU works.
fn refused(device: &str, status: foam_status, words: &[&str]) {
    let config = configuration("reference", &format!("device={device}")).unwrap();
    let specs = [Spec::new("w", &[4, 3]).of(Dtype::F32)];
    let failure = Model::create(&config, &specs).err().expect("there is no such device");
    assert_eq!(failure.status, status, "{failure:?}");
    words.iter().for_each(|word| assert!(failure.message.contains(word), "no '{word}' in {failure:?}"));
    let mut model = Model::new("reference", "device=cpu", &specs);
    let mut params = [Tensor::of(Dtype::F32, &[4, 3], &[1.0; 12])];
    model.step(&mut params, &[Tensor::of(Dtype::F32, &[4, 3], &[0.5; 12])]);
    assert!(params[0].values()[0] < 1.0);
}

fn unusable(words: &[&str]) {
    refused("cuda:0", FOAM_UNSUPPORTED, words);
    let (usable, report) = probe();
    assert!(!usable && report.contains("cuda: not usable: "), "{report}");
    words.iter().for_each(|word| assert!(report.contains(word), "no '{word}' in {report}"));
}

#[test]
fn without_a_driver() {
    let folder = folder("none", &[]);
    simulated_with(&["eager"], &[("LD_LIBRARY_PATH", &folder)], || {
        unusable(&["libcuda was not found", "libcuda.so.1", "LD_LIBRARY_PATH", "12.2"]);
    });
}

#[test]
fn without_cublas() {
    let folder = folder("driver", &["libcuda.so.1"]);
    simulated_with(&["eager"], &[("LD_LIBRARY_PATH", &folder)], || {
        unusable(&["libcublas was not found", "libcublas.so.12", "FOAM_CUDA_LIBRARY_PATH"]);
    });
}

#[test]
fn without_cusolver() {
    let folder = folder("blas", &["libcuda.so.1", "libcublas.so.12"]);
    simulated_with(&["eager"], &[("LD_LIBRARY_PATH", &folder)], || {
        unusable(&["libcusolver was not found", "libcusolver.so.11", "FOAM_CUDA_LIBRARY_PATH"]);
    });
}

#[test]
fn with_a_cusolver_that_lacks_a_symbol() {
    let folder = folder("old", &["libcuda.so.1", "libcublas.so.12"]);
    if !folder.is_empty() {
        let source = PathBuf::from(&folder).join("old.c");
        std::fs::write(&source, "int cusolverDnCreate(void **h) { *h = 0; return 0; }\n").unwrap();
        let built = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".to_string()))
            .args(["-shared", "-fPIC", "-o"])
            .arg(PathBuf::from(&folder).join("libcusolver.so.11"))
            .arg(&source)
            .status()
            .unwrap();
        assert!(built.success());
    }
    simulated_with(&["eager"], &[("LD_LIBRARY_PATH", &folder)], || {
        unusable(&["libcusolver.so.11 lacks", "cusolverDnXsyevd_bufferSize", "12.2"]);
    });
}

#[test]
fn without_a_device() {
    simulated_with(&["eager"], &[("CUDASIM_DEVICES", "0"), ("CUDASIM_QUIET", "1")], || {
        unusable(&["finds no usable NVIDIA device", "libcuda.so.1"]);
    });
}

#[test]
fn with_a_driver_that_is_too_old() {
    simulated_with(&["eager"], &[("CUDASIM_DRIVER", "11080")], || unusable(&["CUDA 11.8", "12.2"]));
}

#[test]
fn with_a_device_that_is_too_old() {
    simulated_with(&["eager"], &[("CUDASIM_CAPABILITY", "6.1")], || {
        refused("cuda:0", FOAM_UNSUPPORTED, &["compute capability 6.1", "7.0"]);
    });
}

#[test]
fn with_a_device_number_that_does_not_exist() {
    simulated_with(&["eager"], &[("CUDASIM_DEVICES", "2")], || {
        refused("cuda:2", FOAM_INVALID_ARGUMENT, &["cuda:2", "cuda:0 to cuda:1"]);
    });
}

#[test]
fn cuda_12_and_13_are_found_and_described() {
    for (name, libraries, driver) in [
        ("twelve", ["libcuda.so.1", "libcublas.so.12", "libcusolver.so.11"], "12090"),
        ("thirteen", ["libcuda.so.1", "libcublas.so.13", "libcusolver.so.12"], "13000"),
    ] {
        let folder = folder(name, &libraries);
        simulated_with(&["eager"], &[("LD_LIBRARY_PATH", &folder), ("CUDASIM_DRIVER", driver)], || {
            let (usable, report) = probe();
            assert!(usable && report.ends_with("cuda: usable"), "{report}");
            let lines: Vec<&str> = report.lines().collect();
            assert_eq!(lines.len(), 5, "{report}");
            assert!(lines[0].contains("libcuda.so.1, version 1"), "{report}");
            assert!(lines[2].contains("with the batched eigensolver"), "{report}");
            assert!(lines[3].starts_with("cuda:0: "), "{report}");
        });
    }
}

#[test]
fn a_short_buffer_gets_the_beginning_and_a_zero() {
    simulated_with(&["eager"], &[], || {
        let (_, whole) = probe();
        let mut text = [7u8; 12];
        let mut error = foam_error::new();
        let (no_usable, no_needed) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: a buffer of the size that is given.
        let status =
            unsafe { foam_cuda_probe(no_usable, text.as_mut_ptr().cast(), 9, no_needed, &mut error) };
        assert_eq!(status, FOAM_OK);
        assert_eq!(&text[..8], &whole.as_bytes()[..8]);
        assert_eq!(&text[8..], [0, 7, 7, 7]);
        // SAFETY: no buffer, but a capacity: refused before anything is written.
        let status = unsafe { foam_cuda_probe(no_usable, std::ptr::null_mut(), 9, no_needed, &mut error) };
        assert_eq!(status, FOAM_INVALID_ARGUMENT);
        assert!(error.text().contains("text is NULL"));
    });
}

/// A folder with libraries of their own, each with its SONAME as NVIDIA's have one. They hold nothing and need the
/// simulator, or hold one function and need nothing: what a stub or another copy would be.
fn libraries(name: &str, sound: &[&str], broken: &[&str]) -> String {
    let folder = folder(name, &[]);
    if folder.is_empty() {
        return folder;
    }
    let at = PathBuf::from(&folder);
    std::fs::write(at.join("one.c"), "int cublasNothing(void) { return 0; }\n").unwrap();
    let simulator = cudasim::folder().join("libcuda.so.1").canonicalize().unwrap();
    for (file, is_sound) in sound.iter().map(|f| (f, true)).chain(broken.iter().map(|f| (f, false))) {
        let mut command = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".to_string()));
        command.args(["-shared", "-fPIC", "-Wl,--no-as-needed"]).arg(format!("-Wl,-soname,{file}"));
        command.arg("-o").arg(at.join(file)).arg(at.join("one.c"));
        if is_sound {
            command.arg(&simulator);
        }
        assert!(command.status().unwrap().success());
    }
    folder
}

/// Links of the driver, for a folder that [`libraries`] made.
fn with_driver(folder: &str) {
    if !folder.is_empty() {
        let target = cudasim::folder().join("libcuda.so.1").canonicalize().unwrap();
        std::os::unix::fs::symlink(target, PathBuf::from(folder).join("libcuda.so.1")).unwrap();
    }
}

#[test]
fn a_library_that_is_loaded_is_taken_before_any_on_the_path() {
    let on_path = libraries(
        "on-path",
        &["libcublas.so.12", "libcusolver.so.11"],
        &["libcublas.so", "libcusolver.so", "libcublas.so.13"],
    );
    with_driver(&on_path);
    let loaded = libraries("loaded", &["libcublas.so.12", "libcusolver.so.11"], &[]);
    let knobs = [("LD_LIBRARY_PATH", &*on_path), ("FOAM_TEST_LOADED", &*loaded)];
    simulated_with(&["eager"], &knobs, || {
        let folder = std::env::var("FOAM_TEST_LOADED").unwrap();
        for file in ["libcublas.so.12", "libcusolver.so.11"] {
            let path = std::ffi::CString::new(format!("{folder}/{file}")).unwrap();
            // SAFETY: a library of the test's own.
            assert!(!unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) }.is_null());
        }
        let (usable, report) = probe();
        assert!(usable, "{report}");
        for file in ["libcublas.so.12", "libcusolver.so.11"] {
            let line = report.lines().find(|line| line.contains(file)).unwrap_or_default();
            assert!(
                line.contains(&format!("{folder}/{file}")) && line.contains("loaded already"),
                "{report}"
            );
        }
        let config = configuration("reference", "device=cuda:0").unwrap();
        drop(Model::create(&config, &[Spec::new("w", &[4, 3]).of(Dtype::F32)]).unwrap());
    });
}

#[test]
fn of_several_majors_the_drivers_is_taken() {
    let files = ["libcublas.so.12", "libcusolver.so.11", "libcublas.so.13", "libcusolver.so.12"];
    let majors = libraries("majors", &files, &["libcublas.so", "libcusolver.so"]);
    with_driver(&majors);
    let body = || {
        let newer = std::env::var("CUDASIM_DRIVER").unwrap() == "13000";
        let (major, expected) = if newer { ("CUDA 13", &files[2..]) } else { ("CUDA 12", &files[..2]) };
        let (usable, report) = probe();
        assert!(usable, "{report}");
        for file in expected {
            let line = report.lines().find(|line| line.contains(file)).unwrap_or_default();
            assert!(line.contains(&format!("of the driver's {major}")), "{file}: {report}");
        }
    };
    if std::env::var_os("FOAM_SIMULATED").is_some() {
        return body();
    }
    for driver in ["12090", "13000"] {
        simulated_with(&["eager"], &[("LD_LIBRARY_PATH", &*majors), ("CUDASIM_DRIVER", driver)], body);
    }
}

#[test]
fn folders_of_python_packages_are_looked_in() {
    let (bare, packages) =
        (folder("bare", &["libcuda.so.1"]), libraries("packages", &["libcublas.so.12"], &[]));
    let second = libraries("packages-solver", &["libcusolver.so.11"], &[]);
    let folders = format!("/nonexistent:{packages}:{second}");
    let knobs = [("LD_LIBRARY_PATH", &*bare), ("FOAM_CUDA_LIBRARY_PATH", &folders)];
    simulated_with(&["eager"], &knobs, || {
        let (usable, report) = probe();
        assert!(usable && report.contains("packages/libcublas.so.12"), "{report}");
        assert_eq!(report.matches("in a folder of FOAM_CUDA_LIBRARY_PATH").count(), 2, "{report}");
    });
}
