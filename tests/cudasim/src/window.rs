//! What one operation sees of device memory: checked access, with a record of every byte touched.

use crate::bits::{self, Bits};
use crate::reason::{Result, refuse};
use crate::store::Store;

/// What to do about reads of memory that nothing has written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Uninit {
    /// Nothing.
    Ignore,
    /// Count the bytes.
    Count,
    /// Refuse.
    Refuse,
}

/// One allocation as an operation sees it.
pub struct View {
    /// The allocation's address.
    pub base: u64,
    /// Its size.
    pub size: usize,
    /// Its name, for messages.
    pub name: String,
    bytes: *mut u8,
    init: *mut u64,
    /// Bytes read.
    pub reads: Bits,
    /// Bytes written.
    pub writes: Bits,
}

/// Checked access to the memory of one context, for the length of one operation.
pub struct Window<'a> {
    store: &'a mut Store,
    context: u64,
    uninit: Uninit,
    /// Bytes read that nothing has written.
    pub uninit_bytes: u64,
    /// The allocations touched so far.
    pub views: Vec<View>,
}

/// A memo of an allocation, so that the next access need not search.
pub type Hint = u32;

impl<'a> Window<'a> {
    /// Opens the memory of a context. No allocation may come or go while it is open.
    pub fn new(store: &'a mut Store, context: u64, uninit: Uninit) -> Window<'a> {
        Window { store, context, uninit, uninit_bytes: 0, views: Vec::new() }
    }

    fn view(&mut self, hint: &mut Hint, address: u64, len: usize) -> Result<usize> {
        if let Some(view) = self.views.get(*hint as usize) {
            let offset = address.wrapping_sub(view.base) as usize;
            if offset < view.size && len <= view.size - offset {
                return Ok(*hint as usize);
            }
        }
        let alloc = self.store.check(address, len, self.context)?;
        let index = match self.views.iter().position(|v| v.base == alloc.base) {
            Some(index) => index,
            None => {
                let init = if alloc.init.is_empty() { std::ptr::null_mut() } else { alloc.init.as_mut_ptr() };
                self.views.push(View {
                    base: alloc.base,
                    size: alloc.size,
                    name: alloc.name(),
                    bytes: alloc.bytes,
                    init,
                    reads: Bits::new(alloc.size),
                    writes: Bits::new(alloc.size),
                });
                self.views.len() - 1
            }
        };
        *hint = index as u32;
        Ok(index)
    }

    fn aligned(address: u64, align: usize) -> Result {
        if align > 1 && !address.is_multiple_of(align as u64) {
            refuse!(Misaligned, "address {address:#x} is not a multiple of {align}");
        }
        Ok(())
    }

    /// The bytes to read `len` of; `align` is the access size.
    #[inline]
    pub fn read(&mut self, hint: &mut Hint, address: u64, len: usize, align: usize) -> Result<*const u8> {
        Self::aligned(address, align)?;
        let index = self.view(hint, address, len)?;
        let view = &mut self.views[index];
        let offset = (address - view.base) as usize;
        view.reads.mark(offset, len);
        if self.uninit != Uninit::Ignore && !view.init.is_null() {
            // SAFETY: `init` has a bit for every byte of the allocation, which outlives the window.
            let words = unsafe { std::slice::from_raw_parts(view.init, view.size.div_ceil(64)) };
            let missing = bits::missing(words, offset, len);
            if missing > 0 {
                self.uninit_bytes += missing;
                if self.uninit == Uninit::Refuse {
                    refuse!(
                        IllegalAddress,
                        "{missing} of {len} bytes read at {address:#x}, offset {offset} of the {}, were never written",
                        view.name
                    );
                }
            }
        }
        // SAFETY: the offset is within the allocation.
        Ok(unsafe { view.bytes.add(offset) })
    }

    /// The bytes to write `len` of.
    #[inline]
    pub fn write(&mut self, hint: &mut Hint, address: u64, len: usize, align: usize) -> Result<*mut u8> {
        Self::aligned(address, align)?;
        let index = self.view(hint, address, len)?;
        let view = &mut self.views[index];
        let offset = (address - view.base) as usize;
        view.writes.mark(offset, len);
        if !view.init.is_null() {
            // SAFETY: as in `read`, and nothing else refers to the bits now.
            let words = unsafe { std::slice::from_raw_parts_mut(view.init, view.size.div_ceil(64)) };
            bits::mark_words(words, offset, len);
        }
        // SAFETY: the offset is within the allocation.
        Ok(unsafe { view.bytes.add(offset) })
    }

    /// Copies bytes out.
    pub fn get(&mut self, address: u64, out: &mut [u8], align: usize) -> Result {
        if out.is_empty() {
            return Ok(());
        }
        let from = self.read(&mut 0, address, out.len(), align)?;
        // SAFETY: `read` checked the range.
        unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies bytes in.
    pub fn put(&mut self, address: u64, data: &[u8], align: usize) -> Result {
        if data.is_empty() {
            return Ok(());
        }
        let to = self.write(&mut 0, address, data.len(), align)?;
        // SAFETY: `write` checked the range.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
        Ok(())
    }

    /// Copies within device memory; bytes that nothing has written stay so.
    pub fn copy(&mut self, to: u64, from: u64, len: usize) -> Result {
        if len == 0 {
            return Ok(());
        }
        let policy = std::mem::replace(&mut self.uninit, Uninit::Ignore);
        let source = self.read(&mut 0, from, len, 1);
        self.uninit = policy;
        let source = source?;
        let target = self.write(&mut 0, to, len, 1)?;
        // SAFETY: both ranges were checked; they may overlap.
        unsafe { std::ptr::copy(source, target, len) };
        let copied = self.init_bits(from, len);
        if let (Some(known), Some(view)) =
            (copied, self.views.iter().find(|v| to.wrapping_sub(v.base) < v.size as u64))
            && !view.init.is_null()
        {
            // SAFETY: as in `write`.
            let words = unsafe { std::slice::from_raw_parts_mut(view.init, view.size.div_ceil(64)) };
            let offset = (to - view.base) as usize;
            for (i, known) in known.into_iter().enumerate() {
                if !known {
                    bits::clear_words(words, offset + i, 1);
                }
            }
        }
        Ok(())
    }

    /// Copies to page-locked host memory, where bytes that nothing has written count as read.
    pub fn copy_out(&mut self, to: u64, from: u64, len: usize) -> Result {
        self.read(&mut 0, from, len, 1)?;
        self.copy(to, from, len)
    }

    /// Notes a write of a whole range that changes nothing: allocation and freeing in stream order.
    pub fn claim(&mut self, address: u64, len: usize) -> Result {
        let index = self.view(&mut 0, address, len)?;
        let offset = (address - self.views[index].base) as usize;
        self.views[index].writes.mark(offset, len);
        Ok(())
    }

    /// Which bytes are initialised, or nothing if all are.
    fn init_bits(&self, address: u64, len: usize) -> Option<Vec<bool>> {
        let view = self.views.iter().find(|v| address.wrapping_sub(v.base) < v.size as u64)?;
        if view.init.is_null() {
            return None;
        }
        // SAFETY: as in `read`.
        let words = unsafe { std::slice::from_raw_parts(view.init, view.size.div_ceil(64)) };
        let offset = (address - view.base) as usize;
        if bits::missing(words, offset, len) == 0 {
            return None;
        }
        Some((offset..offset + len).map(|i| words[i / 64] >> (i % 64) & 1 == 1).collect())
    }

    /// Fills `count` elements of `data` from `address` on.
    pub fn fill(&mut self, address: u64, data: &[u8], count: usize) -> Result {
        if count == 0 {
            return Ok(());
        }
        let to = self.write(&mut 0, address, data.len() * count, data.len())?;
        for i in 0..count {
            // SAFETY: `write` checked the whole range.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to.add(i * data.len()), data.len()) };
        }
        Ok(())
    }
}
