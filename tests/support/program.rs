//! Compiles the programs of `tests/c` against the library under test and runs them.

#![allow(dead_code, reason = "each test program uses a part of it")]

use super::library::{root, shared_library};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

/// The language that a program is compiled as.
#[derive(Clone, Copy, Debug)]
pub enum Language {
    C11,
    Cpp17,
}

/// How a program is compiled and watched.
#[derive(Clone, Copy, Debug)]
pub enum Watch {
    /// It runs by itself.
    Nothing,
    /// Under valgrind's memcheck.
    Valgrind,
    /// Compiled with the address and undefined-behaviour sanitizers.
    Sanitizers,
}

/// Every warning is an error.
pub const STRICT: [&str; 6] = ["-Wall", "-Wextra", "-Werror", "-Wpedantic", "-g", "-O1"];
/// The address and undefined-behaviour sanitizers.
pub const SANITIZE: [&str; 3] =
    ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"];

/// A leak counts when nothing points to it any more; what once-cells and thread-locals still hold does not.
pub const MEMCHECK: [&str; 7] = [
    "--tool=memcheck",
    "--quiet",
    "--error-exitcode=99",
    "--leak-check=full",
    "--show-leak-kinds=definite",
    "--errors-for-leak-kinds=definite",
    "--fair-sched=try",
];

/// A folder of this build's own, for programs and the files that they write.
pub static SCRATCH: LazyLock<PathBuf> = LazyLock::new(|| {
    let library = shared_library().canonicalize().expect("the library has a path");
    let build = library.ancestors().find_map(|folder| match folder.file_name()?.to_str()? {
        "deps" | "libfoam.so" => None,
        name => Some(name.to_string()),
    });
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c_abi").join(build.unwrap_or_default());
    std::fs::create_dir_all(&scratch).expect("target/tmp is writable");
    scratch
});

/// A folder with the library under its two names: the linker's, and the SONAME that programs record.
pub static LIBRARIES: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = SCRATCH.join("lib");
    std::fs::create_dir_all(&folder).expect("the scratch folder is writable");
    let library = shared_library().canonicalize().expect("the library has a path");
    for name in ["libfoam.so", &soname()] {
        let link = folder.join(name);
        if std::fs::read_link(&link).is_ok_and(|target| target == library) {
            continue;
        }
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(&library, &link).expect("the scratch folder takes a link");
    }
    folder
});

/// The name that programs record when they are linked with the library.
pub fn soname() -> String {
    use foam::abi::{FOAM_ABI_MAJOR, FOAM_ABI_MINOR};
    if FOAM_ABI_MAJOR == 0 {
        format!("libfoam.so.0.{FOAM_ABI_MINOR}")
    } else {
        format!("libfoam.so.{FOAM_ABI_MAJOR}")
    }
}

/// The headers of today.
pub fn headers() -> PathBuf {
    root().join("include")
}

/// A folder whose `foam.h` is a copy of `frozen`.
pub fn frozen_headers(frozen: &Path) -> PathBuf {
    let name = frozen.file_stem().expect("a header has a name");
    let folder = SCRATCH.join("frozen").join(name);
    std::fs::create_dir_all(&folder).expect("the scratch folder is writable");
    std::fs::copy(frozen, folder.join("foam.h")).expect("the frozen header is readable");
    folder
}

/// Compiles `tests/c/<name>.c` with the headers in `include`, runs it, and expects it to find nothing wrong.
pub fn passes(name: &str, language: Language, watch: Watch, include: &Path) {
    let tag = include.strip_prefix(&*SCRATCH).unwrap_or(Path::new("today")).display().to_string();
    let place = format!("{name}-{language:?}-{watch:?}-{}", tag.replace('/', "-"));
    let folder = SCRATCH.join(place);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("the scratch folder is writable");
    let program = folder.join(name);
    let source = root().join("tests/c").join(format!("{name}.c"));
    compile(&source, language, watch, include, &program);

    let mut command = watched(&program, watch);
    // Programs that write files take a folder; the one that loads the library itself takes the library.
    match name {
        "unload" => command.arg(LIBRARIES.join(soname())),
        _ => command.arg(&folder),
    };
    // The library is found by the path that the linker recorded, not by cargo's.
    command.env_remove("LD_LIBRARY_PATH").current_dir(&folder);
    // An injected panic is expected; its backtrace would bury what is not.
    command.env("RUST_BACKTRACE", "0");
    command.env("ASAN_OPTIONS", "allocator_may_return_null=1:detect_leaks=1");
    let done = command.output().unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
    expect_success(&command, &done, "");
}

/// The command that runs `program`, under valgrind where it is watched by it.
pub fn watched(program: &Path, watch: Watch) -> Command {
    if !matches!(watch, Watch::Valgrind) {
        return Command::new(program);
    }
    let found = Command::new("valgrind").arg("--version").output().is_ok_and(|done| done.status.success());
    assert!(found, "valgrind is missing: install the packages valgrind and libc6-dbg");
    let mut command = Command::new("valgrind");
    command.args(MEMCHECK).arg(program);
    command
}

/// Compiles the text of a program and runs it; gives what it prints.
pub fn prints(name: &str, text: &str, language: Language) -> String {
    let folder = SCRATCH.join(format!("{name}-{language:?}"));
    std::fs::create_dir_all(&folder).expect("the scratch folder is writable");
    let (source, program) = (folder.join("source.txt"), folder.join(name));
    std::fs::write(&source, text).expect("the scratch folder is writable");
    compile(&source, language, Watch::Nothing, &headers(), &program);
    let mut command = Command::new(&program);
    command.env_remove("LD_LIBRARY_PATH").current_dir(&folder);
    let done = command.output().unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
    expect_success(&command, &done, "");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// Compiles the text of a part of a program.
pub fn compiles(name: &str, text: &str, language: Language) {
    let folder = SCRATCH.join(format!("{name}-{language:?}"));
    std::fs::create_dir_all(&folder).expect("the scratch folder is writable");
    let source = folder.join("source.txt");
    std::fs::write(&source, text).expect("the scratch folder is writable");
    let mut command = compilation(&source, language, Watch::Nothing, &headers());
    command.arg("-c").arg("-o").arg(folder.join(name));
    finish_compiling(&mut command, Watch::Nothing);
}

/// The compiler that the environment variable names, or the usual one.
pub fn compiler(variable: &str, usual: &str) -> Command {
    named_compiler(&std::env::var(variable).unwrap_or_else(|_| usual.to_string()))
}

/// A compiler whose name may hold options of its own: "ccache gcc".
pub fn named_compiler(name: &str) -> Command {
    let mut words = name.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    command
}

/// Compiles a program and links it with the library.
pub fn compile(source: &Path, language: Language, watch: Watch, include: &Path, program: &Path) {
    let mut command = compilation(source, language, watch, include);
    command.arg("-o").arg(program);
    command.arg("-L").arg(&*LIBRARIES).arg(format!("-Wl,-rpath,{}", LIBRARIES.display()));
    command.args(["-Wl,--as-needed", "-lfoam", "-lpthread", "-ldl", "-lm"]);
    finish_compiling(&mut command, watch);
}

/// A compiler with its options and a source.
fn compilation(source: &Path, language: Language, watch: Watch, include: &Path) -> Command {
    let (variable, default, options) = match language {
        Language::C11 => ("CC", "cc", ["-x", "c", "-std=c11"]),
        Language::Cpp17 => ("CXX", "c++", ["-x", "c++", "-std=c++17"]),
    };
    let mut command = compiler(variable, default);
    command.args(options).args(STRICT);
    if matches!(watch, Watch::Sanitizers) {
        command.args(SANITIZE);
    }
    command.arg("-I").arg(include).arg(source);
    command
}

fn finish_compiling(command: &mut Command, watch: Watch) {
    let done = command.output().unwrap_or_else(|cause| {
        panic!("{command:?}: {cause}; install a C and a C++ compiler, or name them in CC and CXX")
    });
    let hint = match watch {
        Watch::Sanitizers => "If libasan or libubsan is missing: install the compiler's sanitizer libraries.",
        _ => "",
    };
    expect_success(command, &done, hint);
}

/// Panics with everything that the command said unless it succeeded.
pub fn expect_success(command: &Command, done: &Output, hint: &str) {
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{command:?}: {}\n{out}{err}{hint}", done.status);
}
