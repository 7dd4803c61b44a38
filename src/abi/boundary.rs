//! What every entry of the C ABI goes through: panics stop here, structs of other sizes are
//! completed or refused, and C strings become text.

use super::float_env;
use super::status::{self, FOAM_OK, foam_error, foam_status};
use crate::error::{Error, Kind, Result};
use crate::memory::{reserved, tried};
use libc::c_char;
use std::borrow::Cow;
use std::ffi::CStr;
use std::mem::size_of;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A public struct that starts with `struct_size`.
///
/// # Safety
/// The type is `repr(C)` plain data whose first field is `struct_size: u32`, and every bit pattern
/// is a value of it.
pub(super) unsafe trait AbiStruct: Copy {
    /// Its name in messages.
    const NAME: &'static str;
    /// Bytes that even the oldest caller sets.
    const REQUIRED: usize;
    /// Where each field ends, in order.
    const ENDS: &'static [usize];
    /// What missing fields are completed with.
    fn defaults() -> Self;
}

/// Lists where the fields of a struct end, for [`AbiStruct::ENDS`]. A field that is missing does not compile.
macro_rules! field_ends {
    ($type:ident { $($field:ident),+ $(,)? }) => {{
        #[allow(dead_code, reason = "it only has to compile")]
        fn every_field(value: &$type) {
            let $type { $($field: _),+ } = value;
        }
        const ENDS: &[usize] = &[$($crate::abi::boundary::end_of(
            std::mem::offset_of!($type, $field),
            |value: &$type| &value.$field,
        )),+];
        ENDS
    }};
}
pub(super) use field_ends;

/// The end of a field that starts at `offset`; the function is only there for the field's type.
pub(super) const fn end_of<T, F>(offset: usize, _: fn(&T) -> &F) -> usize {
    offset + size_of::<F>()
}

/// Bytes of the fields that lie as a whole within `size` bytes: a size that ends in the middle of a field (or in
/// the padding behind one) says nothing about that field.
fn whole_fields<T: AbiStruct>(size: usize) -> usize {
    T::ENDS.iter().copied().take_while(|end| *end <= size).last().unwrap_or(0)
}

/// Runs the body of an entry: its error goes to the caller's record, its panic becomes
/// `FOAM_PANIC`.
///
/// # Safety
/// `error` is NULL or points to a writable record whose `struct_size` is set.
pub(super) unsafe fn call(error: *mut foam_error, body: impl FnOnce() -> Result<()>) -> foam_status {
    let _floats = float_env::standard();
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| Err(panic_error(&*payload)));
    // SAFETY: the caller's contract.
    unsafe { finish(error, outcome) }
}

/// Reports the outcome of a call and gives its status.
///
/// # Safety
/// As [`call`].
pub(super) unsafe fn finish(error: *mut foam_error, outcome: Result<()>) -> foam_status {
    match outcome {
        Ok(()) => {
            // SAFETY: the caller's contract.
            unsafe { status::report(error, None) };
            FOAM_OK
        }
        Err(cause) => {
            // SAFETY: the caller's contract.
            unsafe { status::report(error, Some(&cause)) };
            status::code(cause.kind)
        }
    }
}

/// The error that a caught panic becomes.
pub(super) fn panic_error(payload: &(dyn std::any::Any + Send)) -> Error {
    let said = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    Error::new(Kind::Panic, format!("internal panic: {said}"))
}

/// The `struct_size` that a caller set, wherever the struct lies: packed structs and byte buffers are not aligned.
///
/// # Safety
/// `source` points to a struct that starts with it.
pub(super) unsafe fn size_of_struct<T>(source: *const T) -> u32 {
    // SAFETY: the caller's contract.
    unsafe { source.cast::<u32>().read_unaligned() }
}

/// Reads a caller's struct of any size: a shorter one is completed with defaults, a longer one is
/// accepted if what this library does not know is all zero. A field of which only a part is there has its default.
///
/// # Safety
/// `source` is NULL or points to as many readable bytes as its `struct_size` says.
pub(super) unsafe fn read_struct<T: AbiStruct>(source: *const T, argument: &str) -> Result<T> {
    if source.is_null() {
        return Err(Error::invalid(format!("{argument} is NULL; expected a {}", T::NAME)));
    }
    // SAFETY: the first field is `struct_size`.
    let size = unsafe { size_of_struct(source) } as usize;
    check_size::<T>(size, argument)?;
    let mut value = T::defaults();
    // SAFETY: both sides have that many bytes, and every bit pattern is a value of `T`.
    unsafe {
        let bytes = whole_fields::<T>(size);
        std::ptr::copy_nonoverlapping(source.cast::<u8>(), (&raw mut value).cast::<u8>(), bytes);
    }
    let known = size.min(size_of::<T>());
    if size > known {
        // SAFETY: the caller's struct has `size` bytes.
        let tail = unsafe { std::slice::from_raw_parts(source.cast::<u8>().add(known), size - known) };
        if tail.iter().any(|byte| *byte != 0) {
            return Err(Error::new(
                Kind::Unsupported,
                format!(
                    "{argument}.struct_size = {size}: the caller sets fields of {} that this library ({} bytes) does not know; expected them to be zero",
                    T::NAME,
                    size_of::<T>()
                ),
            ));
        }
    }
    Ok(value)
}

/// Writes `value` into a caller's struct of `size` bytes: a shorter one gets the fields it has, the
/// unknown tail of a longer one becomes zero. `struct_size` becomes `size`.
///
/// # Safety
/// `target` points to `size` writable bytes.
pub(super) unsafe fn write_struct<T: AbiStruct>(target: *mut T, size: u32, value: T) -> Result<()> {
    let bytes = size as usize;
    check_size::<T>(bytes, "struct_size of")?;
    // SAFETY: the caller's contract.
    unsafe {
        copy_out(&value, target.cast(), bytes);
        target.cast::<u32>().write_unaligned(size);
    }
    Ok(())
}

/// Writes the fields of `value` that fit into `bytes` as a whole, and zeros behind them.
///
/// # Safety
/// `target` has `bytes` writable bytes.
unsafe fn copy_out<T: AbiStruct>(value: &T, target: *mut u8, bytes: usize) {
    let known = whole_fields::<T>(bytes);
    // SAFETY: the caller's contract; `known` is at most `bytes` and the size of `T`.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), target, known);
        target.add(known).write_bytes(0, bytes - known);
    }
}

/// A caller's list: room for `capacity` items of `item_size` bytes, and a place for their number.
pub(super) struct List<T> {
    pub items: *mut T,
    pub item_size: usize,
    pub capacity: usize,
    pub count: *mut usize,
}

/// Writes the `total` items that `item` gives. Without room (`items` = NULL, `capacity` = 0) only their number is
/// written; with too little, too, and the call is refused.
///
/// # Safety
/// The list is as its arguments say; `count` is NULL or writable.
pub(super) unsafe fn write_list<T: AbiStruct>(
    list: List<T>,
    total: usize,
    mut item: impl FnMut(usize) -> Result<T>,
) -> Result<()> {
    let List { items, item_size, capacity, count } = list;
    if count.is_null() {
        return Err(Error::invalid("count is NULL; expected a place for the number of items"));
    }
    let asks = items.is_null() && capacity == 0;
    if items.is_null() && !asks {
        return Err(Error::invalid(format!(
            "items has room for {capacity} but is NULL; expected room for {total}, or capacity = 0"
        )));
    }
    if !asks {
        check_item_size::<T>(item_size)?;
    }
    // SAFETY: the caller's contract.
    unsafe { count.write(total) };
    if asks {
        return Ok(());
    }
    if capacity < total {
        return Err(Error::invalid(format!(
            "items has room for {capacity}: expected room for {total} (capacity = {capacity})"
        )));
    }
    // The items first: one that cannot be described leaves the caller's memory alone.
    let made = tried((0..total).map(&mut item), "the list")?;
    for (place, value) in made.iter().enumerate() {
        // SAFETY: the caller gives `capacity` items of `item_size` bytes.
        unsafe { write_item(value, items, item_size, place) };
    }
    Ok(())
}

/// Writes one item of a caller's list.
///
/// # Safety
/// `items` has more than `place` items of `item_size` writable bytes.
pub(super) unsafe fn write_item<T: AbiStruct>(value: &T, items: *mut T, item_size: usize, place: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        let target = items.cast::<u8>().add(place * item_size);
        copy_out(value, target, item_size);
        target.cast::<u32>().write_unaligned(item_size.min(size_of::<T>()) as u32);
    }
}

/// Reads a list that a caller gives: fields that its items do not have get their defaults.
///
/// # Safety
/// `items` is NULL or has `count` items of `item_size` bytes.
pub(super) unsafe fn read_list<T: AbiStruct>(
    items: *const T,
    item_size: usize,
    count: usize,
) -> Result<Vec<T>> {
    if items.is_null() && count > 0 {
        return Err(Error::invalid(format!("the list of {count} {} is NULL; expected them", T::NAME)));
    }
    if count > 0 {
        check_item_size::<T>(item_size)?;
    }
    let bytes = whole_fields::<T>(item_size);
    let read = |place: usize| {
        let mut value = T::defaults();
        // SAFETY: the caller's contract; every bit pattern is a value of `T`.
        unsafe {
            let source = items.cast::<u8>().add(place * item_size);
            std::ptr::copy_nonoverlapping(source, (&raw mut value).cast::<u8>(), bytes);
        }
        value
    };
    crate::memory::listed((0..count).map(read), "the list")
}

fn check_item_size<T: AbiStruct>(item_size: usize) -> Result<()> {
    if item_size < T::REQUIRED || item_size > ABSURD {
        return Err(Error::invalid(format!(
            "item_size = {item_size}: expected sizeof({}), {} in this library and at least {}",
            T::NAME,
            size_of::<T>(),
            T::REQUIRED
        )));
    }
    Ok(())
}

/// Writes a text with its final NUL into a caller's fixed buffer; what does not fit is cut.
pub(super) fn put_name<const N: usize>(target: &mut [c_char; N], name: &str) {
    for (slot, byte) in target[..N - 1].iter_mut().zip(name.bytes()) {
        *slot = byte as c_char;
    }
}

/// Refuses room for a report that is NULL.
pub(super) fn check_report(text: *mut c_char, capacity: usize) -> Result<()> {
    if text.is_null() && capacity > 0 {
        return Err(Error::invalid(format!(
            "text is NULL but capacity = {capacity}; expected capacity = 0 or {capacity} bytes"
        )));
    }
    Ok(())
}

/// Writes a report, cut to `capacity` bytes with the final NUL, and to `needed` the bytes of all of it.
///
/// # Safety
/// [`check_report`] passed, and `text` has `capacity` writable bytes; `needed` is NULL or writable.
pub(super) unsafe fn put_report(whole: &str, text: *mut c_char, capacity: usize, needed: *mut usize) {
    // SAFETY: the caller's contract.
    unsafe {
        if !needed.is_null() {
            *needed = whole.len() + 1;
        }
        if capacity > 0 {
            let mut kept = whole.len().min(capacity - 1);
            while !whole.is_char_boundary(kept) {
                kept -= 1;
            }
            std::ptr::copy_nonoverlapping(whole.as_ptr().cast(), text, kept);
            text.add(kept).write(0);
        }
    }
}

/// Far beyond any struct of this ABI: a size above it is an uninitialised field, not a version.
const ABSURD: usize = 1 << 16;

fn check_size<T: AbiStruct>(size: usize, argument: &str) -> Result<()> {
    if size < T::REQUIRED || size > ABSURD {
        return Err(Error::invalid(format!(
            "{argument} {}: struct_size = {size}: expected sizeof({}), {} in this library and at least {}",
            T::NAME,
            T::NAME,
            size_of::<T>(),
            T::REQUIRED
        )));
    }
    Ok(())
}

/// A C string argument as text.
///
/// # Safety
/// `source` is NULL or a C string that lives for `'a`.
pub(super) unsafe fn text<'a>(source: *const c_char, argument: &str) -> Result<&'a str> {
    if source.is_null() {
        return Err(Error::invalid(format!("{argument} is NULL; expected a string")));
    }
    // SAFETY: the caller's contract.
    unsafe { CStr::from_ptr(source) }
        .to_str()
        .map_err(|_| Error::invalid(format!("{argument} is not valid UTF-8")))
}

/// A text with its final NUL, and spaces in place of others; if memory for it cannot be had, "out of memory".
pub(super) fn c_text(text: &str) -> Cow<'static, [u8]> {
    let Ok(mut bytes) = reserved(text.len() + 1, "a message") else {
        return Cow::Borrowed(b"out of memory\0");
    };
    bytes.extend(text.bytes().map(|byte| if byte == 0 { b' ' } else { byte }));
    bytes.push(0);
    Cow::Owned(bytes)
}

/// Writes `text` with its final NUL into a caller's buffer, or refuses one that is too small.
///
/// # Safety
/// `value` is NULL or has `capacity` writable bytes.
pub(super) unsafe fn put_text(text: &str, value: *mut c_char, capacity: usize) -> Result<()> {
    if value.is_null() {
        return Err(Error::invalid("value is NULL; expected a buffer for the text"));
    }
    if capacity <= text.len() {
        return Err(Error::invalid(format!(
            "capacity = {capacity}: expected at least {} bytes",
            text.len() + 1
        )));
    }
    // SAFETY: the caller's contract, and the text fits.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast::<c_char>(), value, text.len());
        value.add(text.len()).write(0);
    }
    Ok(())
}
