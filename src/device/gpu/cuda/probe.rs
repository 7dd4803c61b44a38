//! What of CUDA is here: libraries, symbols, versions, devices. Everything is looked up before anything is
//! called, because a call through a missing library or symbol could only panic.

use super::libraries::{FOLDERS, Found, Name, blas, solver};
use crate::error::{Error, Kind, Result};
use cudarc::driver;
use std::ffi::{CStr, c_int, c_void};
use std::fmt::Write;
use std::sync::OnceLock;

/// The list of symbols that the backend calls.
const SYMBOLS: &str = include_str!("symbols.txt");

/// The oldest driver that is supported, as CUDA numbers it: 12.2.
const OLDEST_DRIVER: i32 = 12020;

/// NVIDIA's libraries.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Library {
    Driver,
    Blas,
    Solver,
}

const LIBRARIES: [Library; 3] = [Library::Driver, Library::Blas, Library::Solver];

impl Library {
    fn name(self) -> &'static str {
        match self {
            Library::Driver => "cuda",
            Library::Blas => "cublas",
            Library::Solver => "cusolver",
        }
    }

    /// Which of the two that are chosen with care; none for the driver, of which a system has one.
    fn choice(self) -> Option<Name> {
        match self {
            Library::Driver => None,
            Library::Blas => Some(Name::Blas),
            Library::Solver => Some(Name::Solver),
        }
    }

    fn found(self) -> Option<&'static Found> {
        self.choice()?.find(driver_major())
    }

    fn is_present(self) -> bool {
        match self {
            // SAFETY: loads the library, whose initialisers are NVIDIA's.
            Library::Driver => unsafe { driver::sys::is_culib_present() },
            _ => self.found().is_some(),
        }
    }

    /// The address of a symbol; call only if the library is present.
    fn symbol(self, name: &str) -> Option<*const c_void> {
        if let Some(choice) = self.choice() {
            return choice.symbol(name);
        }
        type Any = unsafe extern "C" fn();
        let name = format!("{name}\0");
        // SAFETY: the symbol is only looked up.
        let found = unsafe { driver::sys::culib().get::<Any>(name.as_bytes()).map(|s| *s) };
        found.ok().map(|f| f as *const c_void)
    }

    /// What is asked of it: symbols, and whether each can be done without.
    fn wanted(self) -> impl Iterator<Item = (&'static str, bool)> {
        let lines = SYMBOLS.lines().filter(|line| !line.starts_with('#'));
        lines.filter_map(move |line| {
            let mut words = line.split_whitespace();
            let (library, symbol) = (words.next()?, words.next()?);
            (library == self.name()).then_some((symbol, words.next() == Some("optional")))
        })
    }

    fn missing(self) -> Vec<&'static str> {
        self.wanted().filter(|(s, optional)| !optional && self.symbol(s).is_none()).map(|(s, _)| s).collect()
    }

    /// The names under which it was looked for that a Linux system can have.
    fn candidates(self) -> String {
        match self.choice() {
            Some(choice) => choice.files(driver_major()).join(", "),
            None => {
                let all = cudarc::get_lib_name_candidates(self.name());
                let plain = |name: &String| !name.contains("64");
                all.into_iter().filter(plain).collect::<Vec<_>>().join(", ")
            }
        }
    }

    /// The file that it was loaded from.
    fn path(self) -> String {
        if let Some(found) = self.found() {
            return found.path.clone();
        }
        let first = self.wanted().find_map(|(symbol, _)| self.symbol(symbol));
        // SAFETY: an all-zero Dl_info is valid, and dladdr only reads the address as a number.
        unsafe {
            let mut info: libc::Dl_info = std::mem::zeroed();
            match first {
                Some(address) if libc::dladdr(address, &mut info) != 0 && !info.dli_fname.is_null() => {
                    CStr::from_ptr(info.dli_fname).to_string_lossy().into_owned()
                }
                _ => "an unknown file".to_string(),
            }
        }
    }

    /// Refuses unless the library and every symbol that cannot be done without are there.
    fn require(self) -> Result<()> {
        let unsupported = |message: String| Err(Error::new(Kind::Unsupported, message));
        if !self.is_present() {
            return unsupported(format!(
                "lib{} was not found; looked for {} along LD_LIBRARY_PATH, in the folders of {FOLDERS}, and on the system's paths; expected NVIDIA's {} of CUDA 12.2 or newer",
                self.name(),
                self.candidates(),
                if self == Library::Driver { "driver" } else { "library" },
            ));
        }
        let missing = self.missing();
        if !missing.is_empty() {
            return unsupported(format!(
                "{} lacks {}; expected the library of CUDA 12.2 or newer",
                self.path(),
                missing.join(", ")
            ));
        }
        Ok(())
    }
}

/// Whether the batched eigensolver (CUDA 12.6) is there; call only after [`require`].
pub fn has_batched_solver() -> bool {
    let optional = |(symbol, optional): (&'static str, bool)| optional.then_some(symbol);
    Library::Solver.wanted().filter_map(optional).all(|symbol| Library::Solver.symbol(symbol).is_some())
}

/// Refuses, naming what is missing, unless CUDA can be used. What is there stays there: a success is kept, so that a
/// call of XLA's does not look for libraries.
pub fn require() -> Result<()> {
    static USABLE: OnceLock<()> = OnceLock::new();
    if USABLE.get().is_none() {
        look()?;
        let _ = USABLE.set(());
    }
    Ok(())
}

fn look() -> Result<()> {
    Library::Driver.require()?;
    let version = driver_version()?;
    if version < OLDEST_DRIVER {
        return Err(Error::new(
            Kind::Unsupported,
            format!(
                "{}: the driver supports CUDA {}; expected 12.2 or newer",
                Library::Driver.path(),
                dotted(version)
            ),
        ));
    }
    device_count()?;
    Library::Blas.require()?;
    Library::Solver.require()
}

/// The driver's major; the newest one known if there is no driver.
fn driver_major() -> i32 {
    let present = Library::Driver.is_present() && Library::Driver.missing().is_empty();
    let version = if present { driver_version().ok() } else { None };
    version.map_or(i32::MAX, |version| version / 1000)
}

fn driver_version() -> Result<i32> {
    let mut version = 0;
    // SAFETY: the symbol is there, by `require`.
    super::driver::check(unsafe { driver::sys::cuDriverGetVersion(&mut version) }, "cuDriverGetVersion")?;
    Ok(version)
}

/// Initialises the driver and counts its devices; none is an error.
pub fn device_count() -> Result<i32> {
    // SAFETY: the symbols are there, by `require`.
    unsafe {
        super::driver::check(driver::sys::cuInit(0), "cuInit").map_err(no_device)?;
        let mut count: c_int = 0;
        super::driver::check(driver::sys::cuDeviceGetCount(&mut count), "cuDeviceGetCount")?;
        if count == 0 {
            Err(no_device(Error::new(Kind::Unsupported, "cuDeviceGetCount gave 0")))
        } else {
            Ok(count)
        }
    }
}

fn no_device(cause: Error) -> Error {
    let message = format!("{} finds no usable NVIDIA device: {}", Library::Driver.path(), cause.message);
    Error { kind: Kind::Unsupported, message, ..cause }
}

fn dotted(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// What was found, for people: one line for each library and device, and a verdict.
pub fn report() -> String {
    let mut text = String::new();
    for library in LIBRARIES {
        let _ = writeln!(text, "{}", describe(library));
    }
    if Library::Driver.is_present() && Library::Driver.missing().is_empty() {
        for line in devices() {
            let _ = writeln!(text, "{line}");
        }
    }
    match require() {
        Ok(()) => text.push_str("cuda: usable"),
        Err(error) => {
            let _ = write!(text, "cuda: not usable: {}", error.message);
        }
    }
    text
}

fn describe(library: Library) -> String {
    let name = library.name();
    if !library.is_present() {
        return format!("lib{name}: not found; looked for {}", library.candidates());
    }
    let missing = library.missing();
    if !missing.is_empty() {
        return format!("lib{name}: {}, lacks {}", library.path(), missing.join(", "));
    }
    let extra = match library {
        Library::Solver if has_batched_solver() => ", with the batched eigensolver",
        Library::Solver => ", without the batched eigensolver",
        _ => "",
    };
    let why = library.found().map_or(String::new(), |found| format!("; {}", found.why));
    format!("lib{name}: {}, version {}{extra}{why}", library.path(), version(library))
}

fn version(library: Library) -> String {
    let property = |ask: &dyn Fn(u32, *mut c_int) -> bool| {
        let mut parts = [0; 3];
        let known = parts.iter_mut().enumerate().all(|(which, part)| ask(which as u32, part));
        if known { format!("{}.{}.{}", parts[0], parts[1], parts[2]) } else { "unknown".to_string() }
    };
    // SAFETY: the symbols are there: the caller looked.
    unsafe {
        match library {
            Library::Driver => driver_version().map_or_else(|_| "unknown".to_string(), dotted),
            Library::Blas => property(&|which, value| {
                use blas::libraryPropertyType_t::{MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL};
                let which = [MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL][which as usize];
                blas::cublasGetProperty(which, value) as u32 == 0
            }),
            Library::Solver => property(&|which, value| {
                use solver::libraryPropertyType_t::{MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL};
                let which = [MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL][which as usize];
                solver::cusolverGetProperty(which, value) as u32 == 0
            }),
        }
    }
}

fn devices() -> Vec<String> {
    let Ok(count) = device_count() else { return Vec::new() };
    (0..count).filter_map(|ordinal| super::driver::describe(ordinal).ok()).collect()
}

/// The number of the device that an address belongs to.
pub fn owner(address: u64) -> Result<i32> {
    require()?;
    super::driver::owner(address).ok_or_else(|| {
        Error::invalid(format!(
            "the driver does not know address {address:#x} as device memory; expected buffers on an NVIDIA device"
        ))
    })
}
