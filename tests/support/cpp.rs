//! Compiles C++ programs of `tests/cpp` and `examples/cpp` against the library under test and runs them.

use super::library::root;
use super::program::{LIBRARIES, SANITIZE, SCRATCH, STRICT, Watch, compiler, expect_success, watched};
use super::python::Environment;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

/// What our headers must pass beside `STRICT`.
pub const STRICTER: [&str; 2] = ["-Wconversion", "-Wshadow"];

/// A program to be compiled and run.
pub struct Program {
    name: String,
    sources: Vec<PathBuf>,
    flags: Vec<String>,
    link: Vec<String>,
    watch: Watch,
}

impl Program {
    /// The program with these sources, whose paths start at the root of the checkout, in C++17.
    pub fn new(sources: &[&str]) -> Self {
        Program {
            name: sources[0].replace(['/', '.'], "-"),
            sources: sources.iter().map(|source| root().join(source)).collect(),
            flags: vec!["-std=c++17".to_string()],
            link: Vec::new(),
            watch: Watch::Nothing,
        }
    }

    /// Adds a flag of the compiler; a later one wins.
    pub fn flag(mut self, flag: &str) -> Self {
        self.name.push_str(flag);
        self.flags.push(flag.to_string());
        self
    }

    /// Watched while it runs.
    pub fn watch(mut self, watch: Watch) -> Self {
        self.name.push_str(&format!("-{watch:?}"));
        self.watch = watch;
        self
    }

    /// Compiled and linked with the torch of the tests' Python environment.
    pub fn with_torch(mut self) -> Self {
        self.flags.extend(TORCH.compiling.iter().cloned());
        self.link.extend(TORCH.linking.iter().cloned());
        self
    }

    /// The folder that it is built and run in.
    fn folder(&self) -> PathBuf {
        SCRATCH.join("cpp").join(&self.name)
    }

    /// Compiles it; gives the path of the program.
    pub fn build(&self) -> PathBuf {
        let folder = self.folder();
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("the scratch folder is writable");
        let program = folder.join("program");
        let mut compile = compiler("CXX", "c++");
        compile.args(STRICT).args(STRICTER).args(&self.flags);
        compile.arg("-I").arg(root().join("include")).arg("-I").arg(root().join("bindings/cpp"));
        let mut hint = "";
        if matches!(self.watch, Watch::Sanitizers) {
            compile.args(SANITIZE);
            hint = "If libasan or libubsan is missing: install the compiler's sanitizer libraries.";
        }
        compile.args(&self.sources).arg("-o").arg(&program);
        compile.arg("-L").arg(&*LIBRARIES).arg(format!("-Wl,-rpath,{}", LIBRARIES.display())).arg("-lfoam");
        compile.args(&self.link);
        run(&mut compile, hint);
        program
    }

    /// Compiles it, runs it with a folder of its own as working directory, and gives what it prints.
    pub fn prints(self, arguments: &[&str]) -> String {
        let program = self.build();
        let mut command = watched(&program, self.watch);
        command.args(arguments).current_dir(self.folder());
        // The library is found by the path that the linker recorded, not by cargo's.
        command.env_remove("LD_LIBRARY_PATH");
        // An injected panic is expected; its backtrace would bury what is not.
        command.env("RUST_BACKTRACE", "0");
        command.env("ASAN_OPTIONS", "allocator_may_return_null=1:detect_leaks=1");
        let printed = run(&mut command, "");
        // A program with torch's debugging information is large, and is made anew each time.
        let _ = std::fs::remove_file(&program);
        printed
    }

    /// Compiles it, runs it with its folder as argument, and expects it to find nothing wrong.
    pub fn passes(self) {
        self.prints(&["."]);
    }
}

/// Runs a command to its end; gives what it prints.
pub fn run(command: &mut Command, hint: &str) -> String {
    let done = command.output().unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
    expect_success(command, &done, hint);
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// How programs are compiled and linked with torch.
pub struct Flags {
    pub compiling: Vec<String>,
    pub linking: Vec<String>,
}

/// Those of the tests' torch.
pub static TORCH: LazyLock<Flags> = LazyLock::new(|| torch_flags(&[]));

/// What `examples/cpp/torch_flags.py` prints.
pub fn torch_flags(arguments: &[&str]) -> Flags {
    let mut script = Environment::Full.command();
    script.arg(root().join("examples/cpp/torch_flags.py")).args(arguments);
    // The script prints assignments for a shell: a shell splits them as a user's would.
    let text = run(&mut script, "");
    let words = |variable: &str| {
        let print = format!("{text}\neval \"printf '%s\\n' ${variable}\"");
        let lines = run(Command::new("bash").args(["-c", &print]), "");
        lines.lines().map(str::to_string).collect::<Vec<_>>()
    };
    Flags { compiling: words("TORCH_CXXFLAGS"), linking: words("TORCH_LDFLAGS") }
}
