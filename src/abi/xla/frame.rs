//! XLA's FFI, API version 0.1, declared by hand: what a handler is called with, and how it answers. Only
//! what has kept its place in every release is declared; fields behind it are left alone.

use crate::error::{Error, Kind, Result};
use libc::{c_char, c_void};

/// `XLA_FFI_API_MAJOR` that the handlers follow.
pub const API_MAJOR: i32 = 0;
/// `XLA_FFI_API_MINOR` that the handlers follow; runtimes accept older ones than their own.
pub const API_MINOR: i32 = 1;

/// `XLA_FFI_Extension_Metadata`.
const EXTENSION_METADATA: i32 = 1;
/// `XLA_FFI_ExecutionStage_EXECUTE`.
pub const STAGE_EXECUTE: i32 = 3;
/// `XLA_FFI_ArgType_BUFFER` and `XLA_FFI_RetType_BUFFER`.
pub const BUFFER: i32 = 1;
/// `XLA_FFI_AttrType_SCALAR`.
pub const SCALAR: i32 = 3;
/// `XLA_FFI_AttrType_STRING`.
pub const STRING: i32 = 4;

/// `XLA_FFI_Extension_Base`.
#[repr(C)]
pub struct ExtensionBase {
    pub struct_size: usize,
    pub kind: i32,
    pub next: *mut ExtensionBase,
}

/// `XLA_FFI_Api_Version`.
#[repr(C)]
pub struct ApiVersion {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub major: i32,
    pub minor: i32,
}

/// `XLA_FFI_Metadata`, as far as the traits.
#[repr(C)]
pub struct Metadata {
    pub struct_size: usize,
    pub api_version: ApiVersion,
    pub traits: u32,
}

/// `XLA_FFI_Metadata_Extension`.
#[repr(C)]
pub struct MetadataExtension {
    pub base: ExtensionBase,
    pub metadata: *mut Metadata,
}

/// `XLA_FFI_Error_Create_Args`.
#[repr(C)]
pub struct ErrorCreateArgs {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub message: *const c_char,
    pub code: i32,
}

/// `XLA_FFI_Api`, as far as `XLA_FFI_Stream_Get`.
#[repr(C)]
pub struct Api {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub api_version: ApiVersion,
    pub internal_api: *const c_void,
    pub error_create: Option<unsafe extern "C" fn(*mut ErrorCreateArgs) -> *mut c_void>,
    pub error_get_message: *const c_void,
    pub error_destroy: *const c_void,
    pub handler_register: *const c_void,
    pub stream_get: Option<unsafe extern "C" fn(*mut StreamGetArgs) -> *mut c_void>,
}

/// `XLA_FFI_Stream_Get_Args`.
#[repr(C)]
pub struct StreamGetArgs {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub context: *mut c_void,
    pub stream: *mut c_void,
}

/// `XLA_FFI_Buffer`.
#[repr(C)]
pub struct Buffer {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub dtype: i32,
    pub data: *mut c_void,
    pub rank: i64,
    pub dims: *const i64,
}

/// `XLA_FFI_ByteSpan`.
#[repr(C)]
pub struct ByteSpan {
    pub data: *const u8,
    pub len: usize,
}

/// `XLA_FFI_Scalar`.
#[repr(C)]
pub struct Scalar {
    pub dtype: i32,
    pub value: *const c_void,
}

/// `XLA_FFI_Args` and `XLA_FFI_Rets`.
#[repr(C)]
pub struct Buffers {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub size: i64,
    pub types: *const i32,
    pub items: *const *mut c_void,
}

/// `XLA_FFI_Attrs`.
#[repr(C)]
pub struct Attrs {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub size: i64,
    pub types: *const i32,
    pub names: *const *const ByteSpan,
    pub items: *const *mut c_void,
}

/// `XLA_FFI_CallFrame`, as far as the attributes.
#[repr(C)]
pub struct CallFrame {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub api: *const Api,
    pub context: *mut c_void,
    pub stage: i32,
    pub args: Buffers,
    pub rets: Buffers,
    pub attrs: Attrs,
}

/// Answers the call in which XLA asks for a handler's version and traits; false if this is another call.
///
/// # Safety
/// `frame` is a call frame.
pub unsafe fn answer_metadata(frame: *mut CallFrame) -> bool {
    // SAFETY: the caller's contract; extensions are a list.
    unsafe {
        let mut extension = (*frame).extension_start;
        while !extension.is_null() {
            if (*extension).kind == EXTENSION_METADATA {
                let metadata = (*extension.cast::<MetadataExtension>()).metadata;
                (*metadata).api_version = ApiVersion {
                    struct_size: size_of::<ApiVersion>(),
                    extension_start: std::ptr::null_mut(),
                    major: API_MAJOR,
                    minor: API_MINOR,
                };
                (*metadata).traits = 0;
                return true;
            }
            extension = (*extension).next;
        }
        false
    }
}

/// The stream that the call is ordered on.
///
/// # Safety
/// `frame` is a call frame of the execute stage.
pub unsafe fn stream(frame: &CallFrame) -> Result<*mut c_void> {
    let mut args = StreamGetArgs {
        struct_size: size_of::<StreamGetArgs>(),
        extension_start: std::ptr::null_mut(),
        context: frame.context,
        stream: std::ptr::null_mut(),
    };
    // SAFETY: the caller's contract. An error object is XLA's to keep: there is nothing to learn from it.
    let refused = unsafe {
        let get = if frame.api.is_null() { None } else { (*frame.api).stream_get };
        get.is_none_or(|get| !get(&mut args).is_null())
    };
    if refused {
        return Err(Error::new(
            Kind::DeviceError,
            "XLA gave no stream for this call; expected a call on a GPU",
        ));
    }
    Ok(args.stream)
}
