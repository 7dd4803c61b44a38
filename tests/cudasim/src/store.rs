//! Device memory: allocations at addresses that the host cannot touch, with the bytes kept elsewhere.
//!
//! Addresses are handed out from PROT_NONE reservations, with gaps, so that a pointer past the end is always
//! recognised, and one to freed memory until the address is used again: as an allocator's, those of equal size are,
//! the one freed last first.

use std::collections::{BTreeMap, HashMap, HashSet};

use libc::c_void;

use crate::bits;
use crate::reason::{Result, refuse};

/// Where an allocation lives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place {
    /// Device memory.
    Device,
    /// A variable of a module.
    Module,
    /// Page-locked host memory; the device address is the host address.
    Pinned,
    /// The caller's host memory, registered.
    Registered,
    /// Managed memory: host and every device reach it at one address.
    Managed,
}

impl Place {
    /// Whether the host reaches it at its address.
    pub fn is_of_host(self) -> bool {
        !matches!(self, Place::Device | Place::Module)
    }
}

/// One allocation, live or freed.
pub struct Alloc {
    /// The address.
    pub base: u64,
    /// Bytes asked for.
    pub size: usize,
    /// The context it belongs to.
    pub context: u64,
    /// The device of that context.
    pub device: usize,
    /// Where it lives.
    pub place: Place,
    /// Its number, for messages.
    pub number: u64,
    /// Whether it can still be used.
    pub live: bool,
    /// The real bytes.
    pub bytes: *mut u8,
    /// One bit for each byte that was written; empty where the host can write too.
    pub init: Vec<u64>,
}

impl Alloc {
    /// The real bytes and their layout are given back.
    fn release(&mut self) {
        self.live = false;
        self.init = Vec::new();
        match self.place {
            Place::Device | Place::Module => {
                // SAFETY: allocated in `bytes_for` with this layout, and released once.
                unsafe { std::alloc::dealloc(self.bytes, layout(self.size)) };
            }
            Place::Pinned | Place::Managed => {
                // SAFETY: the mapping is ours; it stays reserved, so a late use by the host faults.
                unsafe {
                    let length = page_round(self.size);
                    libc::madvise(self.bytes.cast(), length, libc::MADV_DONTNEED);
                    libc::mprotect(self.bytes.cast(), length, libc::PROT_NONE);
                }
            }
            Place::Registered => {}
        }
        self.bytes = std::ptr::null_mut();
    }

    /// A short name for messages.
    pub fn name(&self) -> String {
        let kind = match self.place {
            Place::Device => "device allocation",
            Place::Module => "module variable",
            Place::Pinned => "pinned allocation",
            Place::Registered => "registered range",
            Place::Managed => "managed allocation",
        };
        format!("{kind} #{} ({} bytes at {:#x})", self.number, self.size, self.base)
    }
}

fn layout(size: usize) -> std::alloc::Layout {
    // An alignment of 256 and a size below the address space are always valid.
    std::alloc::Layout::from_size_align(size.max(1), 256).unwrap_or(std::alloc::Layout::new::<u64>())
}

fn page_round(size: usize) -> usize {
    size.div_ceil(4096) * 4096
}

/// A reservation of addresses.
struct Region {
    device: usize,
    base: u64,
    end: u64,
    next: u64,
}

const REGION: usize = 64 << 30;
/// Allocations are this far apart at least, so that no overrun lands in a neighbour.
const GAP: u64 = 512;

/// All memory of all devices.
#[derive(Default)]
pub struct Store {
    allocs: BTreeMap<u64, Alloc>,
    regions: Vec<Region>,
    /// Bytes in use, by device.
    pub used: Vec<u64>,
    /// The most bytes ever in use over all devices.
    pub peak: u64,
    numbers: u64,
    /// Contexts that may reach the device memory of another one: the first of each pair reaches that of the second.
    pub peers: HashSet<(u64, u64)>,
    /// Whether addresses are used again.
    pub reuse: bool,
    /// Freed addresses, by device (none for page-locked memory) and rounded size.
    freed: HashMap<(Option<usize>, u64), Vec<u64>>,
}

impl Store {
    /// Takes `size` bytes of device memory, uninitialised (every byte is 0xff, so floats are NaN).
    pub fn allocate(
        &mut self,
        size: usize,
        context: u64,
        device: usize,
        total: u64,
        place: Place,
    ) -> Result<u64> {
        if self.used.len() <= device {
            self.used.resize(device + 1, 0);
        }
        let rounded = (size as u64).div_ceil(512) * 512;
        if self.used[device] + rounded > total {
            refuse!(OutOfMemory, "{size} bytes asked, {} of {total} in use", self.used[device]);
        }
        let base = self.address(rounded, device)?;
        // SAFETY: the layout is never empty.
        let bytes = unsafe { std::alloc::alloc(layout(size)) };
        if bytes.is_null() {
            refuse!(OutOfMemory, "the host has no {size} bytes to stand in for device memory");
        }
        // SAFETY: just allocated with `size` bytes.
        unsafe { std::ptr::write_bytes(bytes, 0xff, size) };
        self.used[device] += rounded;
        self.peak = self.peak.max(self.used.iter().sum());
        self.insert(base, size, context, device, place, bytes, vec![0; size.div_ceil(64)]);
        Ok(base)
    }

    /// The address of this size that was freed last.
    fn again(&mut self, device: Option<usize>, rounded: u64) -> Option<u64> {
        if !self.reuse {
            return None;
        }
        self.freed.get_mut(&(device, rounded))?.pop()
    }

    fn address(&mut self, rounded: u64, device: usize) -> Result<u64> {
        if let Some(base) = self.again(Some(device), rounded) {
            return Ok(base);
        }
        let need = rounded + GAP;
        if let Some(region) = self.regions.iter_mut().find(|r| r.device == device && r.end - r.next >= need) {
            region.next += need;
            return Ok(region.next - need);
        }
        let reserve = |size: usize| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // SAFETY: a fresh private mapping that nothing may access.
            unsafe { libc::mmap(std::ptr::null_mut(), size, libc::PROT_NONE, flags, -1, 0) }
        };
        let mut size = REGION.max(page_round(need as usize));
        let mut base = reserve(size);
        if base == libc::MAP_FAILED {
            // Under a limit on addresses: take no more than needed.
            size = page_round(need as usize);
            base = reserve(size);
        }
        if base == libc::MAP_FAILED {
            refuse!(OutOfMemory, "the host has no {size} addresses to reserve");
        }
        let base = base as u64;
        self.regions.push(Region { device, base, end: base + size as u64, next: base + need });
        Ok(base)
    }

    /// Takes page-locked or managed memory, readable and writable by the host.
    pub fn take_host(&mut self, size: usize, context: u64, device: usize, place: Place) -> Result<u64> {
        let length = page_round(size);
        if let Some(base) = self.again(None, length as u64) {
            // SAFETY: a mapping of ours of this length, which nobody uses.
            let status =
                unsafe { libc::mprotect(base as *mut c_void, length, libc::PROT_READ | libc::PROT_WRITE) };
            if status != 0 {
                refuse!(OutOfMemory, "the host has no {size} bytes to pin");
            }
            self.insert(base, size, context, device, place, base as *mut u8, Vec::new());
            return Ok(base);
        }
        // SAFETY: a fresh private mapping.
        let base = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        if base == libc::MAP_FAILED {
            refuse!(OutOfMemory, "the host has no {size} bytes to pin");
        }
        self.insert(base as u64, size, context, device, place, base.cast(), Vec::new());
        Ok(base as u64)
    }

    /// Registers the caller's memory.
    pub fn register(&mut self, base: u64, size: usize, context: u64, device: usize) {
        self.insert(base, size, context, device, Place::Registered, base as *mut u8, Vec::new());
    }

    #[allow(clippy::too_many_arguments)]
    fn insert(
        &mut self,
        base: u64,
        size: usize,
        context: u64,
        device: usize,
        place: Place,
        bytes: *mut u8,
        init: Vec<u64>,
    ) {
        self.numbers += 1;
        let number = self.numbers;
        self.allocs
            .insert(base, Alloc { base, size, context, device, place, number, live: true, bytes, init });
    }

    /// The allocation, live or freed, that `address` falls in.
    pub fn find(&self, address: u64) -> Option<&Alloc> {
        let alloc = self.allocs.range(..=address).next_back()?.1;
        (address - alloc.base < alloc.size.max(1) as u64).then_some(alloc)
    }

    /// Likewise, to change it.
    pub fn find_mut(&mut self, address: u64) -> Option<&mut Alloc> {
        let alloc = self.allocs.range_mut(..=address).next_back()?.1;
        (address - alloc.base < alloc.size.max(1) as u64).then_some(alloc)
    }

    /// The live allocation that holds all of `len` bytes at `address`.
    pub fn check(&mut self, address: u64, len: usize, context: u64) -> Result<&mut Alloc> {
        let reason = match self.find(address) {
            Some(alloc) if !alloc.live => {
                format!("address {address:#x} is in the {}, which was freed", alloc.name())
            }
            Some(alloc) if (address - alloc.base) as usize + len > alloc.size => format!(
                "{len} bytes at {address:#x} end {} bytes past the {}",
                (address - alloc.base) as usize + len - alloc.size,
                alloc.name()
            ),
            Some(alloc)
                if alloc.context != context
                    && !alloc.place.is_of_host()
                    && !self.peers.contains(&(context, alloc.context)) =>
            {
                format!("address {address:#x} is in the {} of another context", alloc.name())
            }
            Some(_) => String::new(),
            None => self.strange(address),
        };
        match self.find_mut(address) {
            Some(alloc) if reason.is_empty() => Ok(alloc),
            _ => refuse!(IllegalAddress, "{reason}"),
        }
    }

    /// Says what an address outside all allocations is.
    fn strange(&self, address: u64) -> String {
        if address < 4096 {
            return format!("address {address:#x} is null or nearly so");
        }
        if !self.is_device_address(address) {
            return format!("address {address:#x} is a host address, not a device address");
        }
        match self.allocs.range(..=address).next_back() {
            Some((_, alloc)) => format!(
                "address {address:#x} is {} bytes past the end of the {}",
                address - alloc.base - alloc.size as u64,
                alloc.name()
            ),
            None => format!("address {address:#x} is before every allocation"),
        }
    }

    /// Whether an address lies in a reservation of device addresses.
    pub fn is_device_address(&self, address: u64) -> bool {
        self.regions.iter().any(|r| (r.base..r.end).contains(&address))
    }

    /// Frees the live allocation that starts at `address`.
    pub fn free(&mut self, address: u64, places: &[Place]) -> Result<usize> {
        let reason = match self.find(address) {
            None => self.strange(address),
            Some(alloc) if !alloc.live => format!("double free of the {}", alloc.name()),
            Some(alloc) if alloc.base != address => {
                format!("address {address:#x} is inside the {}, not its start", alloc.name())
            }
            Some(alloc) if !places.contains(&alloc.place) => {
                format!("the {} is not freed by this function", alloc.name())
            }
            Some(_) => String::new(),
        };
        let Some(alloc) = self.find_mut(address).filter(|_| reason.is_empty()) else {
            refuse!(InvalidValue, "{reason}");
        };
        let (size, device, place) = (alloc.size, alloc.device, alloc.place);
        alloc.release();
        match place {
            Place::Device | Place::Module => {
                let rounded = (size as u64).div_ceil(512) * 512;
                self.used[device] -= rounded;
                self.freed.entry((Some(device), rounded)).or_default().push(address);
            }
            // The same range may be registered again.
            Place::Registered => {
                self.allocs.remove(&address);
            }
            Place::Pinned | Place::Managed => {
                self.freed.entry((None, page_round(size) as u64)).or_default().push(address);
            }
        }
        Ok(size)
    }

    /// The live allocations.
    pub fn live(&self) -> impl Iterator<Item = &Alloc> {
        self.allocs.values().filter(|a| a.live)
    }

    /// Writes host bytes without checks, for module variables and tests.
    pub fn poke(&mut self, address: u64, data: &[u8]) -> bool {
        let Some(alloc) = self.find_mut(address).filter(|a| a.live) else { return false };
        let offset = (address - alloc.base) as usize;
        if offset + data.len() > alloc.size {
            return false;
        }
        // SAFETY: within the allocation's bytes.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), alloc.bytes.add(offset), data.len()) };
        if !alloc.init.is_empty() && !data.is_empty() {
            bits::mark_words(&mut alloc.init, offset, data.len());
        }
        true
    }
}
