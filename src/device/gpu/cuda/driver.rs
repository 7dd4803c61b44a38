//! The driver's things with an owner: context, stream, event, memory, module. Each frees itself, in its own
//! context, and no error of a release is an error of ours.

use crate::error::{Error, Kind, Result};
use crate::memory::Allocator;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUmodule, CUresult, CUstream,
};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

/// A stream's handle.
pub type RawStream = CUstream;

/// Alignment of device buffers.
pub const ALIGNMENT: usize = 256;

/// Turns a status into an error that names the call.
pub fn check(status: CUresult, call: &str) -> Result<()> {
    named(status.result(), call)
}

/// The same for a call of cudarc's.
fn named<T>(outcome: std::result::Result<T, DriverError>, call: &str) -> Result<T> {
    let status = match outcome {
        Ok(value) => return Ok(value),
        Err(DriverError(status)) => status,
    };
    let text = |get: unsafe fn(CUresult, *mut *const c_char) -> CUresult| {
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: the driver gives a static string or leaves NULL.
        unsafe {
            get(status, &mut text);
            if text.is_null() { "?".into() } else { CStr::from_ptr(text).to_string_lossy() }
        }
    };
    let (name, meaning) = (text(sys::cuGetErrorName), text(sys::cuGetErrorString));
    let kind =
        if status == CUresult::CUDA_ERROR_OUT_OF_MEMORY { Kind::OutOfMemory } else { Kind::DeviceError };
    Err(Error {
        native_code: status as i32,
        ..Error::new(kind, format!("{call} failed: {name} ({meaning})"))
    })
}

/// A device's name and generation, for people.
pub fn describe(ordinal: i32) -> Result<String> {
    let device = device_at(ordinal)?;
    let mut name = [0 as c_char; 128];
    // SAFETY: the buffer has the length that is given.
    unsafe {
        check(sys::cuDeviceGetName(name.as_mut_ptr(), 127, device), "cuDeviceGetName")?;
        let name = CStr::from_ptr(name.as_ptr()).to_string_lossy();
        let (major, minor) = generation(device)?;
        Ok(format!("cuda:{ordinal}: {name}, compute capability {major}.{minor}"))
    }
}

fn device_at(ordinal: i32) -> Result<CUdevice> {
    named(result::device::get(ordinal), "cuDeviceGet")
}

fn generation(device: CUdevice) -> Result<(i32, i32)> {
    use sys::CUdevice_attribute_enum::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
    };
    let get = |attribute| {
        // SAFETY: a device of the driver's.
        let found = unsafe { result::device::get_attribute(device, attribute) };
        named(found, "cuDeviceGetAttribute")
    };
    Ok((get(MAJOR)?, get(MINOR)?))
}

/// A device's primary context: the one that PyTorch, JAX and the runtime API use.
pub struct Device {
    device: CUdevice,
    context: CUcontext,
    ordinal: i32,
    generation: (i32, i32),
}

// SAFETY: a context may be made current on any thread; each call pushes and pops it.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Device number `ordinal` of `count`.
    pub fn open(ordinal: i32, count: i32) -> Result<Arc<Device>> {
        if !(0..count).contains(&ordinal) {
            return Err(Error::invalid(format!(
                "device = cuda:{ordinal}: expected cuda:0 to cuda:{}",
                count - 1
            )));
        }
        let device = device_at(ordinal)?;
        let (major, minor) = generation(device)?;
        if major < 7 {
            return Err(Error::new(
                Kind::Unsupported,
                format!(
                    "device = cuda:{ordinal} has compute capability {major}.{minor}; expected 7.0 or newer"
                ),
            ));
        }
        // SAFETY: a device of the driver's; released in Drop.
        let context = named(unsafe { result::primary_ctx::retain(device) }, "cuDevicePrimaryCtxRetain")?;
        Ok(Arc::new(Device { device, context, ordinal, generation: (major, minor) }))
    }

    /// Its number.
    pub fn ordinal(&self) -> i32 {
        self.ordinal
    }

    /// Its compute capability.
    pub fn generation(&self) -> (i32, i32) {
        self.generation
    }

    /// Whether an address was allocated in another context than the device's primary one.
    pub fn is_foreign(&self, address: u64) -> bool {
        context_of(address).is_some_and(|context| context != self.context)
    }

    /// Makes the context current until the guard is dropped; then the caller's is current again.
    pub fn enter(&self) -> Result<Current> {
        // SAFETY: the context is retained.
        check(unsafe { sys::cuCtxPushCurrent_v2(self.context) }, "cuCtxPushCurrent")?;
        Ok(Current(()))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: retained once by `open`.
        unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// A context that is current.
pub struct Current(());

impl Drop for Current {
    fn drop(&mut self) {
        let mut popped: CUcontext = std::ptr::null_mut();
        // SAFETY: pushed by `enter` on this thread.
        unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
    }
}

/// A stream of ours.
pub struct Stream {
    device: Arc<Device>,
    raw: CUstream,
}

/// An event of ours, without timing.
pub struct Event {
    device: Arc<Device>,
    raw: CUevent,
}

// SAFETY: streams and events may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Send for Event {}

impl Stream {
    /// A stream that does not wait for the default stream. The context is current.
    pub fn new(device: &Arc<Device>) -> Result<Stream> {
        let raw = named(result::stream::create(result::stream::StreamKind::NonBlocking), "cuStreamCreate")?;
        Ok(Stream { device: device.clone(), raw })
    }

    /// Its handle.
    pub fn raw(&self) -> CUstream {
        self.raw
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _current = self.device.enter();
        // SAFETY: created by `new`.
        unsafe { sys::cuStreamDestroy_v2(self.raw) };
    }
}

impl Event {
    /// An event. The context is current.
    pub fn new(device: &Arc<Device>) -> Result<Event> {
        let untimed = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING;
        let raw = named(result::event::create(untimed), "cuEventCreate")?;
        Ok(Event { device: device.clone(), raw })
    }

    /// Marks what has been put on `stream` so far.
    pub fn record(&self, stream: CUstream) -> Result<()> {
        // SAFETY: event and stream are alive.
        check(unsafe { sys::cuEventRecord(self.raw, stream) }, "cuEventRecord")
    }

    /// What is put on `stream` from now on comes after the mark.
    pub fn before(&self, stream: CUstream) -> Result<()> {
        // SAFETY: event and stream are alive.
        check(unsafe { sys::cuStreamWaitEvent(stream, self.raw, 0) }, "cuStreamWaitEvent")
    }

    /// As `record`, on a stream that records a graph: every launch of the graph marks what comes before.
    pub fn record_in_graph(&self, stream: CUstream) -> Result<()> {
        let external = sys::CUevent_record_flags_enum::CU_EVENT_RECORD_EXTERNAL as c_uint;
        // SAFETY: event and stream are alive.
        let status = unsafe { sys::cuEventRecordWithFlags(self.raw, stream, external) };
        check(status, "cuEventRecordWithFlags")
    }

    /// As `before`, on a stream that records a graph: every launch of the graph comes after the newest mark.
    pub fn before_in_graph(&self, stream: CUstream) -> Result<()> {
        let external = sys::CUevent_wait_flags_enum::CU_EVENT_WAIT_EXTERNAL as c_uint;
        // SAFETY: event and stream are alive.
        check(unsafe { sys::cuStreamWaitEvent(stream, self.raw, external) }, "cuStreamWaitEvent")
    }

    /// The host waits for the mark.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: the event is alive.
        check(unsafe { sys::cuEventSynchronize(self.raw) }, "cuEventSynchronize")
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _current = self.device.enter();
        // SAFETY: created by `new`.
        unsafe { sys::cuEventDestroy_v2(self.raw) };
    }
}

/// Whether a stream records a graph instead of running.
pub fn is_capturing(stream: CUstream) -> Result<bool> {
    // SAFETY: the stream is the caller's.
    let status = named(unsafe { result::stream::is_capturing(stream) }, "cuStreamIsCapturing")?;
    Ok(status != sys::CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// The host waits for a stream.
pub fn wait_for(stream: CUstream) -> Result<()> {
    // SAFETY: the stream is alive.
    check(unsafe { sys::cuStreamSynchronize(stream) }, "cuStreamSynchronize")
}

/// Device memory, from the driver or from the caller's allocator, or borrowed for a call.
pub struct Memory {
    device: Arc<Device>,
    address: CUdeviceptr,
    bytes: usize,
    source: Option<Allocator>,
}

impl Memory {
    /// `bytes` bytes for `what`, with whatever in them. The context is current.
    pub fn new(device: &Arc<Device>, bytes: usize, source: Allocator, what: &str) -> Result<Memory> {
        let bytes = bytes.next_multiple_of(ALIGNMENT).max(ALIGNMENT);
        let address = match source {
            // SAFETY: freed in Drop.
            Allocator::System => named(unsafe { result::malloc_sync(bytes) }, "cuMemAlloc")
                .map_err(|cause| refused(cause, bytes, what))?,
            Allocator::Callbacks { allocate, user, .. } => {
                // SAFETY: the caller promised a working callback.
                (unsafe { allocate(user, bytes, ALIGNMENT) }) as CUdeviceptr
            }
        };
        if address == 0 {
            return Err(Error::out_of_memory(what, bytes as u128));
        }
        let memory = Memory { device: device.clone(), address, bytes, source: Some(source) };
        if address % ALIGNMENT as u64 != 0 {
            return Err(Error::invalid(format!(
                "config.allocate returned memory that is not aligned; expected alignment {ALIGNMENT}"
            )));
        }
        Ok(memory)
    }

    /// Memory of a caller's.
    pub fn borrowed(device: &Arc<Device>, address: u64, bytes: usize) -> Memory {
        Memory { device: device.clone(), address, bytes, source: None }
    }

    /// Its first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Fills it with zeros, in the order of `stream`.
    pub fn clear(&self, stream: CUstream) -> Result<()> {
        fill(self.address, 0, self.bytes, stream)
    }
}

/// Fills device memory of ours with one byte, in the order of `stream`.
pub fn fill(address: u64, byte: u8, bytes: usize, stream: CUstream) -> Result<()> {
    // SAFETY: the callers give memory of their own.
    check(unsafe { sys::cuMemsetD8Async(address, byte, bytes, stream) }, "cuMemsetD8Async")
}

/// An error for want of memory names what for, and how many bytes.
pub fn refused(cause: Error, bytes: usize, what: &str) -> Error {
    if cause.kind != Kind::OutOfMemory {
        return cause;
    }
    let message = format!("{} ({})", Error::out_of_memory(what, bytes as u128).message, cause.message);
    Error { message, ..cause }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let Some(source) = self.source else { return };
        let _current = self.device.enter();
        match source {
            // SAFETY: given by the driver.
            Allocator::System => unsafe {
                sys::cuMemFree_v2(self.address);
            },
            // SAFETY: given by the matching callback.
            Allocator::Callbacks { deallocate, user, .. } => unsafe {
                deallocate(user, self.address as *mut c_void, self.bytes, ALIGNMENT);
            },
        }
    }
}

/// Copies host memory to the device in the order of `stream`.
///
/// # Safety
/// `source` has `bytes` bytes, stays as it is until the copy has run, and so does the target.
pub unsafe fn upload(target: u64, source: *const u8, bytes: usize, stream: CUstream) -> Result<()> {
    // SAFETY: the caller's contract.
    check(unsafe { sys::cuMemcpyHtoDAsync_v2(target, source.cast(), bytes, stream) }, "cuMemcpyHtoDAsync")
}

/// Copies device memory to the host in the order of `stream`.
///
/// # Safety
/// `target` has `bytes` bytes and nobody touches it until the copy has run.
pub unsafe fn download(target: *mut u8, source: u64, bytes: usize, stream: CUstream) -> Result<()> {
    // SAFETY: the caller's contract.
    check(unsafe { sys::cuMemcpyDtoHAsync_v2(target.cast(), source, bytes, stream) }, "cuMemcpyDtoHAsync")
}

/// Copies within the device in the order of `stream`.
///
/// # Safety
/// Both have `bytes` bytes, valid until the copy has run, and do not overlap.
pub unsafe fn copy(target: u64, source: u64, bytes: usize, stream: CUstream) -> Result<()> {
    // SAFETY: the caller's contract.
    check(unsafe { sys::cuMemcpyDtoDAsync_v2(target, source, bytes, stream) }, "cuMemcpyDtoDAsync")
}

/// Host memory that the device can reach while the host goes on.
pub struct Pinned {
    device: Arc<Device>,
    data: *mut u8,
    bytes: usize,
}

// SAFETY: memory with an owner.
unsafe impl Send for Pinned {}

impl Pinned {
    /// `bytes` zeroed bytes. The context is current.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Pinned> {
        let bytes = bytes.max(64);
        // SAFETY: as many bytes; no flags: cached memory, for reading back.
        let data: *mut u8 = unsafe {
            let data = named(result::malloc_host(bytes, 0), "cuMemHostAlloc")?.cast();
            std::ptr::write_bytes(data, 0, bytes);
            data
        };
        Ok(Pinned { device: device.clone(), data, bytes })
    }

    /// Its first byte.
    pub fn data(&self) -> *mut u8 {
        self.data
    }

    /// The bytes, once the device has written them.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: ours, and initialised.
        unsafe { std::slice::from_raw_parts(self.data, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _current = self.device.enter();
        // SAFETY: given by cuMemHostAlloc.
        unsafe { sys::cuMemFreeHost(self.data.cast()) };
    }
}

/// The loaded kernels.
pub struct Module {
    device: Arc<Device>,
    raw: CUmodule,
}

/// A kernel.
#[derive(Clone, Copy)]
pub struct Function(CUfunction);

// SAFETY: handles that any thread may use.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}
// SAFETY: as above.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Module {
    /// Loads PTX, which the driver compiles for its device. The context is current.
    pub fn load(device: &Arc<Device>, ptx: &str) -> Result<Module> {
        let image = CString::new(ptx).map_err(|_| Error::invalid("the kernels' PTX holds a zero byte"))?;
        // SAFETY: `image` is a C string.
        let raw = named(unsafe { result::module::load_data(image.as_ptr().cast()) }, "cuModuleLoadData")?;
        Ok(Module { device: device.clone(), raw })
    }

    /// The kernel called `name`.
    pub fn function(&self, name: &str) -> Result<Function> {
        let text = CString::new(name).unwrap_or_default();
        // SAFETY: the module is loaded.
        let found = unsafe { result::module::get_function(self.raw, text) };
        named(found, &format!("cuModuleGetFunction({name})")).map(Function)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let _current = self.device.enter();
        // SAFETY: loaded by `load`.
        unsafe { sys::cuModuleUnload(self.raw) };
    }
}

/// Where and how wide a kernel runs.
#[derive(Clone, Copy)]
pub struct Grid {
    /// Thread blocks along x and y.
    pub blocks: (usize, usize),
    /// Threads of a block.
    pub threads: usize,
}

/// Puts a kernel on `stream`.
///
/// # Safety
/// `arguments` are pointers to values of the kernel's parameter types, and the memory that these name is
/// valid until the kernel has run.
pub unsafe fn launch(
    function: Function,
    grid: Grid,
    stream: CUstream,
    arguments: &mut [*mut c_void],
) -> Result<()> {
    let (x, y) = grid.blocks;
    // SAFETY: the caller's contract.
    let status = unsafe {
        sys::cuLaunchKernel(
            function.0,
            x as c_uint,
            y as c_uint,
            1,
            grid.threads as c_uint,
            1,
            1,
            0,
            stream,
            arguments.as_mut_ptr(),
            std::ptr::null_mut(),
        )
    };
    check(status, "cuLaunchKernel")
}

/// The context that an address was allocated in; `None` if it has none, as memory of a pool.
fn context_of(address: u64) -> Option<CUcontext> {
    let mut context: CUcontext = std::ptr::null_mut();
    let attribute = sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_CONTEXT;
    // SAFETY: the attribute is one handle.
    let status = unsafe { sys::cuPointerGetAttribute((&raw mut context).cast(), attribute, address) };
    (status == CUresult::CUDA_SUCCESS && !context.is_null()).then_some(context)
}

/// The device that an address belongs to; `None` if the driver does not know it as device memory.
pub fn owner(address: u64) -> Option<i32> {
    use sys::CUpointer_attribute_enum::{
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as ORDINAL, CU_POINTER_ATTRIBUTE_MEMORY_TYPE as TYPE,
    };
    let get = |attribute| {
        let mut value: c_int = -1;
        // SAFETY: both attributes are one int.
        let status = unsafe { sys::cuPointerGetAttribute((&raw mut value).cast(), attribute, address) };
        (status == CUresult::CUDA_SUCCESS).then_some(value)
    };
    // 2 is device memory; managed memory says so too.
    get(TYPE).filter(|kind| *kind == 2)?;
    get(ORDINAL)
}
