//! XLA's call frames, made by hand as its `c_api.h` lays them out, to call the handlers without XLA.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};
use std::mem::{offset_of, size_of};
use std::ptr::{null, null_mut};

#[repr(C)]
struct Version {
    struct_size: usize,
    extension: *mut c_void,
    major: i32,
    minor: i32,
}

#[repr(C)]
struct Api {
    struct_size: usize,
    extension: *mut c_void,
    version: Version,
    internal: *const c_void,
    error_create: unsafe extern "C" fn(*mut ErrorArgs) -> *mut c_void,
    others: [*const c_void; 17],
}

#[repr(C)]
struct ErrorArgs {
    struct_size: usize,
    extension: *mut c_void,
    message: *const c_char,
    code: i32,
}

#[repr(C)]
struct RawBuffer {
    struct_size: usize,
    extension: *mut c_void,
    dtype: i32,
    data: *mut c_void,
    rank: i64,
    dims: *const i64,
}

#[repr(C)]
struct List {
    struct_size: usize,
    extension: *mut c_void,
    size: i64,
    types: *const i32,
    items: *const *mut c_void,
}

#[repr(C)]
struct Span {
    data: *const u8,
    len: usize,
}

#[repr(C)]
struct Scalar {
    dtype: i32,
    value: *const c_void,
}

#[repr(C)]
struct Attrs {
    struct_size: usize,
    extension: *mut c_void,
    size: i64,
    types: *const i32,
    names: *const *const Span,
    items: *const *mut c_void,
}

#[repr(C)]
struct Frame {
    struct_size: usize,
    extension: *mut Extension,
    api: *const Api,
    context: *mut c_void,
    stage: i32,
    args: List,
    rets: List,
    attrs: Attrs,
    future: *mut c_void,
}

#[repr(C)]
struct Extension {
    struct_size: usize,
    kind: i32,
    next: *mut Extension,
    metadata: *mut Metadata,
}

#[repr(C)]
struct Metadata {
    struct_size: usize,
    version: Version,
    traits: u32,
    state: i64,
}

/// A handler.
pub type Handler = unsafe extern "C" fn(*mut c_void) -> *mut c_void;

pub const I32: i32 = 4;
pub const I64: i32 = 5;
pub const U8: i32 = 6;
pub const U32: i32 = 8;
pub const F16: i32 = 10;
pub const F32: i32 = 11;
pub const F64: i32 = 12;
pub const BF16: i32 = 16;

fn size_of_type(dtype: i32) -> usize {
    match dtype {
        U8 => 1,
        F16 | BF16 => 2,
        I64 | F64 => 8,
        _ => 4,
    }
}

/// A buffer in host memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    pub dtype: i32,
    pub dims: Vec<i64>,
    pub data: Vec<u64>,
}

impl Buffer {
    /// Zeros.
    pub fn new(dtype: i32, dims: &[i64]) -> Buffer {
        let bytes = dims.iter().product::<i64>() as usize * size_of_type(dtype);
        Buffer { dtype, dims: dims.to_vec(), data: vec![0; bytes.div_ceil(8).max(1)] }
    }

    pub fn of<T: bytemuck::NoUninit>(dtype: i32, dims: &[i64], values: &[T]) -> Buffer {
        let mut buffer = Buffer::new(dtype, dims);
        let bytes: &[u8] = bytemuck::cast_slice(values);
        bytemuck::cast_slice_mut(&mut buffer.data)[..bytes.len()].copy_from_slice(bytes);
        buffer
    }

    pub fn bytes(&self) -> &[u8] {
        let bytes = self.dims.iter().product::<i64>() as usize * size_of_type(self.dtype);
        &bytemuck::cast_slice(&self.data)[..bytes]
    }
}

/// An attribute.
#[derive(Clone, Debug)]
pub enum Attr {
    Text(String),
    Whole(i64),
    Real(f64),
    Bytes(Vec<u8>),
    /// A kind that no handler takes: an array.
    Array,
}

thread_local! {
    static SAID: RefCell<Option<(i32, String)>> = const { RefCell::new(None) };
}

unsafe extern "C" fn error_create(args: *mut ErrorArgs) -> *mut c_void {
    // SAFETY: the handler gives a message and a code.
    unsafe {
        assert!((*args).struct_size >= offset_of!(ErrorArgs, code) + 4);
        let message = CStr::from_ptr((*args).message).to_string_lossy().into_owned();
        SAID.with(|said| *said.borrow_mut() = Some(((*args).code, message)));
    }
    std::ptr::dangling_mut()
}

#[repr(C)]
struct StreamArgs {
    struct_size: usize,
    extension: *mut c_void,
    context: *mut c_void,
    stream: *mut c_void,
}

/// The stream of a call is its context; without one there is an error, as on a CPU.
unsafe extern "C" fn stream_get(args: *mut StreamArgs) -> *mut c_void {
    // SAFETY: the handler gives the arguments of this call.
    unsafe {
        assert!((*args).struct_size >= size_of::<StreamArgs>());
        (*args).stream = (*args).context;
        if (*args).context.is_null() { std::ptr::dangling_mut() } else { null_mut() }
    }
}

/// A call on a device: its stream, and where the operands and the results lie.
pub struct OnDevice<'a> {
    pub stream: *mut c_void,
    pub args: &'a [u64],
    pub rets: &'a [u64],
}

/// Calls a handler as XLA executes it: its error's code and message, if it gives one.
pub fn execute(
    handler: Handler,
    args: &mut [Buffer],
    rets: &mut [Buffer],
    attrs: &[(&str, Attr)],
) -> Result<(), (i32, String)> {
    execute_at(3, handler, args, rets, attrs)
}

/// As [`execute`], with the buffers' memory on a device.
pub fn execute_on(
    device: &OnDevice,
    handler: Handler,
    args: &mut [Buffer],
    rets: &mut [Buffer],
    attrs: &[(&str, Attr)],
) -> Result<(), (i32, String)> {
    call(3, Some(device), handler, args, rets, attrs)
}

/// As [`execute`], in another stage.
pub fn execute_at(
    stage: i32,
    handler: Handler,
    args: &mut [Buffer],
    rets: &mut [Buffer],
    attrs: &[(&str, Attr)],
) -> Result<(), (i32, String)> {
    call(stage, None, handler, args, rets, attrs)
}

fn call(
    stage: i32,
    device: Option<&OnDevice>,
    handler: Handler,
    args: &mut [Buffer],
    rets: &mut [Buffer],
    attrs: &[(&str, Attr)],
) -> Result<(), (i32, String)> {
    let raw = |buffers: &mut [Buffer], addresses: Option<&[u64]>| -> Vec<RawBuffer> {
        let one = |(place, b): (usize, &mut Buffer)| RawBuffer {
            struct_size: size_of::<RawBuffer>(),
            extension: null_mut(),
            dtype: b.dtype,
            data: addresses.map_or(b.data.as_mut_ptr().cast(), |a| a[place] as *mut c_void),
            rank: b.dims.len() as i64,
            dims: b.dims.as_ptr(),
        };
        buffers.iter_mut().enumerate().map(one).collect()
    };
    let (mut args, mut rets) = (raw(args, device.map(|d| d.args)), raw(rets, device.map(|d| d.rets)));
    let pointers = |raw: &mut [RawBuffer]| -> Vec<*mut c_void> {
        raw.iter_mut().map(|b| std::ptr::from_mut(b).cast()).collect()
    };
    let (arg_items, ret_items) = (pointers(&mut args), pointers(&mut rets));
    let buffer_types = vec![1; arg_items.len().max(ret_items.len())];
    let list = |items: &[*mut c_void]| List {
        struct_size: size_of::<List>(),
        extension: null_mut(),
        size: items.len() as i64,
        types: buffer_types.as_ptr(),
        items: items.as_ptr(),
    };
    let names: Vec<Span> = attrs.iter().map(|(n, _)| Span { data: n.as_ptr(), len: n.len() }).collect();
    let name_items: Vec<*const Span> = names.iter().map(std::ptr::from_ref).collect();
    let spans: Vec<Span> = attrs
        .iter()
        .map(|(_, value)| match value {
            Attr::Text(text) => Span { data: text.as_ptr(), len: text.len() },
            Attr::Bytes(bytes) => Span { data: bytes.as_ptr(), len: bytes.len() },
            _ => Span { data: null(), len: 0 },
        })
        .collect();
    let scalars: Vec<Scalar> = attrs
        .iter()
        .map(|(_, value)| match value {
            Attr::Whole(number) => Scalar { dtype: I64, value: std::ptr::from_ref(number).cast() },
            Attr::Real(number) => Scalar { dtype: F64, value: std::ptr::from_ref(number).cast() },
            _ => Scalar { dtype: 0, value: null() },
        })
        .collect();
    let types: Vec<i32> = attrs
        .iter()
        .map(|(_, value)| match value {
            Attr::Text(_) | Attr::Bytes(_) => 4,
            Attr::Array => 1,
            _ => 3,
        })
        .collect();
    let items: Vec<*mut c_void> = attrs
        .iter()
        .enumerate()
        .map(|(i, (_, value))| match value {
            Attr::Text(_) | Attr::Bytes(_) => std::ptr::from_ref(&spans[i]).cast_mut().cast(),
            _ => std::ptr::from_ref(&scalars[i]).cast_mut().cast(),
        })
        .collect();
    let api = Api {
        struct_size: size_of::<Api>(),
        extension: null_mut(),
        version: Version { struct_size: size_of::<Version>(), extension: null_mut(), major: 0, minor: 3 },
        internal: null(),
        error_create,
        others: std::array::from_fn(|i| if i == 3 { stream_get as *const c_void } else { null() }),
    };
    let mut frame = Frame {
        struct_size: size_of::<Frame>(),
        extension: null_mut(),
        api: &api,
        context: device.map_or(null_mut(), |d| d.stream),
        stage,
        args: list(&arg_items),
        rets: list(&ret_items),
        attrs: Attrs {
            struct_size: size_of::<Attrs>(),
            extension: null_mut(),
            size: attrs.len() as i64,
            types: types.as_ptr(),
            names: name_items.as_ptr(),
            items: items.as_ptr(),
        },
        future: null_mut(),
    };
    SAID.with(|said| *said.borrow_mut() = None);
    // SAFETY: a whole call frame whose parts outlive the call.
    let error = unsafe { handler((&raw mut frame).cast()) };
    let said = SAID.with(|said| said.borrow_mut().take());
    assert_eq!(error.is_null(), said.is_none(), "an error is returned if and only if one is made");
    said.map_or(Ok(()), Err)
}

/// Asks a handler for its version, with no API table, behind `before` other extensions: major, minor, traits.
pub fn metadata(handler: Handler, before: bool) -> (i32, i32, u32) {
    let mut metadata = Metadata {
        struct_size: size_of::<Metadata>(),
        version: Version { struct_size: 0, extension: null_mut(), major: -1, minor: -1 },
        traits: 77,
        state: 55,
    };
    let size = size_of::<Extension>();
    let mut own = Extension { struct_size: size, kind: 1, next: null_mut(), metadata: &mut metadata };
    let mut other = Extension { struct_size: size, kind: 9, next: &mut own, metadata: null_mut() };
    // SAFETY: plain data, for which zero is a value, but for the reference to the API, which is a pointer.
    let mut frame: Frame = unsafe { std::mem::zeroed() };
    frame.struct_size = size_of::<Frame>();
    frame.extension = if before { &mut other } else { &mut own };
    // SAFETY: a call frame with a list of extensions.
    let error = unsafe { handler((&raw mut frame).cast()) };
    assert!(error.is_null());
    assert_eq!(metadata.state, 55, "what is behind the traits is left alone");
    (metadata.version.major, metadata.version.minor, metadata.traits)
}
