//! The optimizer shared by MPI processes: `examples/mpi/train.cc` gives the same bits for every number of ranks. MPICH
//! comes from its Python package; `examples/mpi/nccl_comm.hpp` is compiled against NVIDIA's headers, which torch brings.

use crate::library::root;
use crate::program::{LIBRARIES, SCRATCH, compiler};
use crate::python::{last_line, runs};
use crate::tier::{self, Need};
use std::process::Command;

/// What must hold for every number of ranks: what rank 0 prints, and the checkpoint.
#[test]
fn the_example_gives_the_same_bits_for_every_number_of_ranks() {
    if !tier::runs(Need::Mpi) {
        return;
    }
    let python = last_line(Command::new(root().join("tests/python/environment.sh")).arg("mpi"));
    let tools = std::path::Path::new(&python).parent().expect("python lies in a folder").to_path_buf();
    let folder = SCRATCH.join("mpi");
    std::fs::create_dir_all(&folder).expect("the scratch folder is writable");
    let program = folder.join("train");
    let mut compile = Command::new(tools.join("mpicxx"));
    compile.args(["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-Wconversion", "-Wshadow"]);
    compile.arg(root().join("examples/mpi/train.cc")).arg("-I").arg(root().join("include"));
    compile.arg("-I").arg(root().join("examples/cpp")).arg("-o").arg(&program);
    compile.arg("-L").arg(&*LIBRARIES).arg(format!("-Wl,-rpath,{}", LIBRARIES.display())).arg("-lfoam");
    runs(&mut compile);
    let mut first: Option<(String, Vec<u8>)> = None;
    for ranks in [1, 2, 3, 4] {
        let checkpoint = folder.join(format!("state-{ranks}"));
        let mut run = Command::new(tools.join("mpiexec"));
        run.args(["-n", &ranks.to_string()]).arg(&program).arg(root().join("examples/data/digits.bin"));
        let printed = runs(run.arg("2").arg(&checkpoint));
        let accuracy = printed.lines().find_map(|line| line.strip_prefix("epoch 2: accuracy "));
        assert!(
            accuracy.and_then(|text| text.parse().ok()).is_some_and(|share: f64| share > 0.85),
            "{printed}"
        );
        let found = (printed, std::fs::read(&checkpoint).expect("rank 0 wrote the file"));
        match &first {
            None => first = Some(found),
            Some(first) => {
                assert_eq!(first.0, found.0, "{ranks} ranks");
                assert!(first.1 == found.1, "the checkpoint of {ranks} ranks");
            }
        }
    }
    let _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn the_communicator_for_nccl_compiles() {
    if !crate::nvidia::wanted() {
        return;
    }
    let folder = SCRATCH.join("nccl");
    std::fs::create_dir_all(&folder).expect("the scratch folder is writable");
    let source = folder.join("unit.cc");
    let text = "#include \"nccl_comm.hpp\"\nint main() { return sizeof(NcclComm) == 0; }\n";
    std::fs::write(&source, text).expect("the scratch folder is writable");
    let mut compile = compiler("CXX", "c++");
    compile.args(["-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]);
    compile.arg("-I").arg(root().join("include")).arg("-I").arg(root().join("examples/mpi"));
    // The headers of CUDA 13 without those of its compiler, which those of the older one stand in for.
    for headers in [
        format!("{}/nvidia/nccl/include", crate::nvidia::cuda13()),
        format!("{}/nvidia/cu13/include", crate::nvidia::cuda13()),
        format!("{}/nvidia/cuda_nvcc/include", crate::nvidia::cuda12()),
    ] {
        compile.args(["-isystem", &headers]);
    }
    runs(compile.arg(&source));
    let _ = std::fs::remove_dir_all(&folder);
}
