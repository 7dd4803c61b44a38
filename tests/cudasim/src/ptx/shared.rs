//! A block's shared memory and the detector of races in it.
//!
//! Two threads race if they touch the same byte between two barriers of the block, one of them writes, not
//! both atomically, and, when they are of one warp, no `bar.warp.sync` lies between.

/// The latest accesses to one byte.
#[derive(Clone, Copy, Default)]
struct Shadow {
    /// The block-wide barrier count at these accesses.
    epoch: u32,
    /// The last writer plus one, or 0.
    writer: u16,
    writer_sync: u16,
    /// The first reader plus one, or 0.
    reader: u16,
    reader_sync: u16,
    /// 1: one reader, 2: several of one warp, 3: of several warps.
    readers: u8,
    atomic: bool,
}

/// How a thread touches memory.
#[derive(Clone, Copy, PartialEq)]
pub enum Touch {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Reads and writes as one.
    Atomic,
}

/// The shared memory of the running block.
#[derive(Default)]
pub struct Shared {
    /// The bytes.
    pub bytes: Vec<u8>,
    shadow: Vec<Shadow>,
    epoch: u32,
    /// Counts of warp-wide synchronisations.
    syncs: Vec<u16>,
}

impl Shared {
    /// Makes ready for a new block.
    pub fn start(&mut self, size: usize, warps: usize) {
        self.bytes.clear();
        // Shared memory starts with garbage; NaN shows.
        self.bytes.resize(size, 0xff);
        self.shadow.resize(size, Shadow::default());
        self.syncs.clear();
        self.syncs.resize(warps, 0);
        self.barrier();
    }

    /// All threads passed a barrier.
    pub fn barrier(&mut self) {
        self.epoch += 1;
    }

    /// A warp synchronised.
    pub fn warp_sync(&mut self, warp: usize) {
        self.syncs[warp] = self.syncs[warp].wrapping_add(1);
    }

    /// Records an access; returns the other thread of a race.
    pub fn touch(&mut self, thread: u32, offset: usize, len: usize, touch: Touch) -> Option<u32> {
        let (me, warp, epoch) = (thread as u16 + 1, thread / 32, self.epoch);
        let sync = self.syncs[warp as usize];
        let mut other = None;
        for shadow in &mut self.shadow[offset..offset + len] {
            if shadow.epoch != epoch {
                *shadow = Shadow { epoch, ..Shadow::default() };
            }
            let same_warp = |them: u16| u32::from(them - 1) / 32 == warp;
            // A write by another thread, not ordered by a warp-wide synchronisation.
            if shadow.writer != 0
                && shadow.writer != me
                && !(same_warp(shadow.writer) && shadow.writer_sync != sync)
                && !(touch == Touch::Atomic && shadow.atomic)
            {
                other = Some(u32::from(shadow.writer) - 1);
            }
            if touch == Touch::Read {
                shadow.readers = match shadow.readers {
                    0 => 1,
                    readers if !same_warp(shadow.reader) || readers == 3 => 3,
                    _ if shadow.reader_sync != sync => 1,
                    1 if shadow.reader == me => 1,
                    _ => 2,
                };
                shadow.reader = me;
                shadow.reader_sync = sync;
            } else {
                let alone = match shadow.readers {
                    0 => true,
                    1 if shadow.reader == me => true,
                    1 | 2 => same_warp(shadow.reader) && shadow.reader_sync != sync,
                    _ => false,
                };
                if !alone {
                    other = Some(u32::from(shadow.reader) - 1);
                }
                shadow.writer = me;
                shadow.writer_sync = sync;
                shadow.atomic = touch == Touch::Atomic;
            }
        }
        other
    }
}
