//! Memory with a page behind it that nobody may touch, and known bytes in front of it.

use foam::abi::*;

/// Bytes in front of the data, and what they hold.
const LEAD: usize = 64;
const CANARY: u8 = 0xC5;

/// A buffer that ends where a forbidden page begins.
pub struct Guarded {
    pages: *mut u8,
    mapped: usize,
    start: usize,
    pub len: usize,
    pub shape: Vec<i64>,
    pub dtype: foam_dtype,
}

impl Guarded {
    /// `len` bytes.
    pub fn bytes(len: usize) -> Guarded {
        let page = 4096;
        let mapped = (len + LEAD).next_multiple_of(page) + page;
        // SAFETY: new pages of this program's own, of which the last is closed.
        let pages = unsafe {
            let (protection, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let pages = libc::mmap(std::ptr::null_mut(), mapped, protection, flags, -1, 0).cast::<u8>();
            assert!(pages as isize != -1, "no pages");
            assert_eq!(libc::mprotect(pages.add(mapped - page).cast(), page, libc::PROT_NONE), 0);
            pages.write_bytes(CANARY, mapped - page);
            pages
        };
        let start = mapped - page - len;
        let dtype = foam_dtype { code: FOAM_DTYPE_UINT, bits: 8, lanes: 1 };
        Guarded { pages, mapped, start, len, shape: vec![len as i64], dtype }
    }

    /// Numbers of a type and shape, zero.
    pub fn tensor(dtype: foam_dtype, shape: &[i64]) -> Guarded {
        let size = usize::from(dtype.bits) / 8;
        let mut own = Guarded::bytes(shape.iter().product::<i64>() as usize * size);
        (own.dtype, own.shape) = (dtype, shape.to_vec());
        own.get_mut().fill(0);
        own
    }

    pub fn as_ptr(&self) -> *mut u8 {
        self.pages.wrapping_add(self.start)
    }

    pub fn get(&self) -> &[u8] {
        // SAFETY: the buffer's own bytes.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }

    pub fn get_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len) }
    }

    /// Whether nothing in front of the data was written.
    pub fn is_sound(&self) -> bool {
        // SAFETY: the bytes in front of the data are the buffer's.
        unsafe { std::slice::from_raw_parts(self.pages, self.start) }.iter().all(|byte| *byte == CANARY)
    }

    /// The C form; it points into this buffer.
    pub fn in_c(&self) -> foam_tensor {
        foam_tensor {
            data: self.as_ptr().cast(),
            device: foam_device { device_type: FOAM_DEVICE_CPU, device_id: 0 },
            ndim: self.shape.len() as i32,
            dtype: self.dtype,
            shape: self.shape.as_ptr().cast_mut(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the pages that were mapped.
        unsafe { libc::munmap(self.pages.cast(), self.mapped) };
    }
}
