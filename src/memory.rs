//! Fallible memory: aligned and zeroed for state and workspace, from the system or from the caller; and lists, texts
//! and boxes whose growth is an error where the standard library's aborts the process.

use crate::error::{Error, Kind, Result};
use libc::c_void;
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Alignment of every buffer: a cache line, and the widest vector register.
pub const ALIGNMENT: usize = 64;

/// The size and alignment of a huge page. Steps walk through all of a state, and small pages cost them translations of
/// addresses: with huge ones the median step of many small blocks was 2 to 9 % shorter.
const HUGE_PAGE: usize = 2 << 20;

/// Gives `size` bytes aligned to `alignment`, or NULL.
pub type AllocateFn = unsafe extern "C" fn(user: *mut c_void, size: usize, alignment: usize) -> *mut c_void;
/// Takes them back.
pub type DeallocateFn =
    unsafe extern "C" fn(user: *mut c_void, data: *mut c_void, size: usize, alignment: usize);

/// Where memory comes from.
#[derive(Clone, Copy, Debug, Default)]
pub enum Allocator {
    /// The process's allocator.
    #[default]
    System,
    /// The caller's callbacks.
    Callbacks {
        /// Gives memory.
        allocate: AllocateFn,
        /// Takes it back.
        deallocate: DeallocateFn,
        /// First argument of both.
        user: *mut c_void,
    },
}

// SAFETY: the callbacks are only called on a thread inside a call on the handle, as the header says.
unsafe impl Send for Allocator {}
// SAFETY: as above.
unsafe impl Sync for Allocator {}

/// One zeroed allocation.
#[derive(Debug)]
pub struct Arena {
    data: NonNull<u8>,
    bytes: usize,
    source: Allocator,
}

// SAFETY: an Arena owns its memory; access goes through raw pointers whose users keep order.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// `bytes` zeroed bytes for `what`.
    pub fn zeroed(bytes: usize, source: Allocator, what: &str) -> Result<Arena> {
        let refused = || Error::out_of_memory(what, bytes as u128);
        let size = bytes.max(ALIGNMENT);
        let data = match source {
            Allocator::System => {
                let layout = system_layout(size).ok_or_else(refused)?;
                // SAFETY: the layout's size is not zero; the memory is this arena's.
                unsafe {
                    if layout.align() < HUGE_PAGE {
                        alloc_zeroed(layout)
                    } else {
                        let data = alloc(layout);
                        if !data.is_null() {
                            // Asked for before the first write, which chooses the pages. A system that refuses gives
                            // small ones.
                            #[cfg(target_os = "linux")]
                            libc::madvise(data.cast(), size / HUGE_PAGE * HUGE_PAGE, libc::MADV_HUGEPAGE);
                            data.write_bytes(0, size);
                        }
                        data
                    }
                }
            }
            Allocator::Callbacks { allocate, user, .. } => {
                // SAFETY: the caller promised a working callback.
                let data = unsafe { allocate(user, size, ALIGNMENT) }.cast::<u8>();
                if !data.is_null() {
                    // SAFETY: the callback gave `size` bytes.
                    unsafe { data.write_bytes(0, size) };
                }
                data
            }
        };
        let data = NonNull::new(data).ok_or_else(refused)?;
        let arena = Arena { data, bytes: size, source };
        if data.as_ptr().align_offset(ALIGNMENT) != 0 {
            return Err(Error::invalid(format!(
                "config.allocate returned memory that is not aligned; expected alignment {ALIGNMENT}"
            )));
        }
        Ok(arena)
    }

    /// Its first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.data.as_ptr()
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        match self.source {
            Allocator::System => {
                if let Some(layout) = system_layout(self.bytes) {
                    // SAFETY: allocated with the same layout.
                    unsafe { dealloc(self.data.as_ptr(), layout) }
                }
            }
            Allocator::Callbacks { deallocate, user, .. } => {
                // SAFETY: given by the matching callback.
                unsafe { deallocate(user, self.data.as_ptr().cast(), self.bytes, ALIGNMENT) }
            }
        }
    }
}

/// How the system is asked for an arena of `size` bytes.
fn system_layout(size: usize) -> Option<Layout> {
    let alignment = if size >= 2 * HUGE_PAGE { HUGE_PAGE } else { ALIGNMENT };
    Layout::from_size_align(size, alignment).ok()
}

/// A [`Kind::OutOfMemory`] error for a request of `bytes`.
pub fn no_memory(what: &str, bytes: u128) -> Error {
    Error::new(Kind::OutOfMemory, format!("out of memory: {what} needs {bytes} bytes"))
}

fn no_room<T>(what: &str, count: usize) -> Error {
    no_memory(what, count as u128 * size_of::<T>() as u128)
}

/// An empty list with room for `count` items.
pub fn reserved<T>(count: usize, what: &str) -> Result<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(count).map_err(|_| no_room::<T>(what, count))?;
    Ok(list)
}

/// A list of `count` times `item`.
pub fn filled<T: Clone>(item: T, count: usize, what: &str) -> Result<Vec<T>> {
    let mut list = reserved(count, what)?;
    list.resize(count, item);
    Ok(list)
}

/// A copy of a list.
pub fn copied<T: Copy>(items: &[T], what: &str) -> Result<Vec<T>> {
    let mut list = reserved(items.len(), what)?;
    list.extend_from_slice(items);
    Ok(list)
}

/// Appends an item.
pub fn push<T>(list: &mut Vec<T>, item: T, what: &str) -> Result<()> {
    list.try_reserve(1).map_err(|_| no_room::<T>(what, list.len() + 1))?;
    list.push(item);
    Ok(())
}

/// A list of what an iterator gives.
pub fn listed<T>(items: impl IntoIterator<Item = T>, what: &str) -> Result<Vec<T>> {
    let items = items.into_iter();
    let mut list = reserved(items.size_hint().0, what)?;
    for item in items {
        push(&mut list, item, what)?;
    }
    Ok(list)
}

/// The same, of what can fail.
pub fn tried<T>(items: impl IntoIterator<Item = Result<T>>, what: &str) -> Result<Vec<T>> {
    let mut list = Vec::new();
    for item in items {
        push(&mut list, item?, what)?;
    }
    Ok(list)
}

/// Asks whether `bytes` could be had at all, and leaves them alone.
pub fn probe(bytes: u128, what: &str) -> Result<()> {
    let refused = || no_memory(what, bytes);
    let size = usize::try_from(bytes).ok().filter(|size| *size <= isize::MAX as usize).ok_or_else(refused)?;
    let mut room: Vec<u8> = Vec::new();
    room.try_reserve_exact(size).map_err(|_| refused())?;
    // Or the compiler would leave out an allocation that nobody uses.
    std::hint::black_box(&room);
    Ok(())
}

/// A value of its own.
pub fn boxed<T>(value: T, what: &str) -> Result<Box<T>> {
    let layout = Layout::new::<T>();
    if layout.size() == 0 {
        return Ok(Box::new(value));
    }
    // SAFETY: the layout's size is not zero; the memory is the type's, and the box's from then on.
    unsafe {
        let data = alloc(layout).cast::<T>();
        if data.is_null() {
            return Err(no_room::<T>(what, 1));
        }
        data.write(value);
        Ok(Box::from_raw(data))
    }
}

/// A value with several owners: `Arc`, which can only be made infallibly.
pub struct Counted<T>(NonNull<(AtomicUsize, T)>);

// SAFETY: as of `Arc`: the value is reached from all threads, and dropped on one.
unsafe impl<T: Send + Sync> Send for Counted<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Counted<T> {}

impl<T> Counted<T> {
    /// A value with one owner.
    pub fn new(value: T, what: &str) -> Result<Counted<T>> {
        let own = boxed((AtomicUsize::new(1), value), what)?;
        Ok(Counted(NonNull::from(Box::leak(own))))
    }
}

impl<T> Clone for Counted<T> {
    fn clone(&self) -> Self {
        // SAFETY: the value lives while it has owners.
        unsafe { self.0.as_ref() }.0.fetch_add(1, Ordering::Relaxed);
        Counted(self.0)
    }
}

impl<T> Deref for Counted<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the value lives while it has owners.
        unsafe { &self.0.as_ref().1 }
    }
}

impl<T> Drop for Counted<T> {
    fn drop(&mut self) {
        // SAFETY: made from a box; the last owner turns it into one again, after all others let go.
        unsafe {
            if self.0.as_ref().0.fetch_sub(1, Ordering::Release) == 1 {
                std::sync::atomic::fence(Ordering::Acquire);
                drop(Box::from_raw(self.0.as_ptr()));
            }
        }
    }
}

/// Text whose growth can fail.
#[derive(Default)]
pub struct Text(pub String);

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.try_reserve(text.len()).map_err(|_| fmt::Error)?;
        self.0.push_str(text);
        Ok(())
    }
}

/// A message; as much of it as memory allows. The crate's `format!`.
pub fn text(message: fmt::Arguments<'_>) -> String {
    let mut text = Text::default();
    let _ = fmt::Write::write_fmt(&mut text, message);
    text.0
}

/// The items with `between` between them; as much of it as memory allows.
pub fn joined<T: fmt::Display>(items: impl IntoIterator<Item = T>, between: &str) -> String {
    let mut text = Text::default();
    for (place, item) in items.into_iter().enumerate() {
        let between = if place == 0 { "" } else { between };
        let _ = fmt::Write::write_fmt(&mut text, format_args!("{between}{item}"));
    }
    text.0
}

/// The same for a text that has to be whole.
pub fn whole_joined<'a>(
    items: impl Iterator<Item = &'a str> + Clone,
    between: &str,
    what: &str,
) -> Result<String> {
    let bytes: usize = items.clone().map(|item| item.len() + between.len()).sum();
    let mut text = Text::default();
    text.0.try_reserve(bytes).map_err(|_| no_memory(what, bytes as u128))?;
    for (place, item) in items.enumerate() {
        text.0.push_str(if place == 0 { "" } else { between });
        text.0.push_str(item);
    }
    Ok(text.0)
}

/// A text that has to be whole, such as a name.
pub fn whole_text(message: fmt::Arguments<'_>, what: &str) -> Result<String> {
    let mut text = Text::default();
    fmt::Write::write_fmt(&mut text, message).map_err(|_| no_memory(what, text.0.len() as u128 + 1))?;
    Ok(text.0)
}

/// `bytes` rounded up to the alignment.
pub fn aligned(bytes: u128) -> u128 {
    bytes.next_multiple_of(ALIGNMENT as u128)
}
