//! Opaque handles: numbers that no address can be, tagged with what they stand for. As pointers of a real driver, they
//! are used again: the handle that was freed last is given out first.

use std::collections::BTreeMap;

use crate::reason::{Result, refuse};

/// What a handle stands for.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(u64)]
#[allow(missing_docs)]
pub enum Tag {
    Context = 1,
    Stream = 2,
    Event = 3,
    Module = 4,
    Function = 5,
    Blas = 6,
    Solver = 7,
    Params = 8,
    Graph = 9,
    Exec = 10,
}

/// Not canonical on any x86-64 or AArch64 system, so a host that follows a handle faults.
const BASE: u64 = 0xf0a0_0000_0000_0000;

/// The objects of one kind.
pub struct Table<T> {
    tag: Tag,
    next: u64,
    freed: Vec<u64>,
    /// Whether handles are used again.
    pub reuse: bool,
    /// The live objects by handle.
    pub live: BTreeMap<u64, T>,
}

impl<T> Table<T> {
    /// An empty table.
    pub fn new(tag: Tag) -> Table<T> {
        Table { tag, next: 0, freed: Vec::new(), reuse: true, live: BTreeMap::new() }
    }

    /// Adds an object.
    pub fn add(&mut self, object: T) -> u64 {
        let handle = self.freed.pop().filter(|_| self.reuse).unwrap_or_else(|| {
            self.next += 1;
            BASE | (self.tag as u64) << 40 | self.next << 8
        });
        self.live.insert(handle, object);
        handle
    }

    /// The object of a handle.
    pub fn get(&mut self, handle: u64) -> Result<&mut T> {
        if !self.live.contains_key(&handle) {
            refuse!(InvalidHandle, "{}", self.explain(handle));
        }
        match self.live.get_mut(&handle) {
            Some(object) => Ok(object),
            None => refuse!(InvalidHandle, "{handle:#x} is unknown"),
        }
    }

    /// Takes an object out.
    pub fn remove(&mut self, handle: u64) -> Result<T> {
        match self.live.remove(&handle) {
            Some(object) => {
                self.freed.push(handle);
                Ok(object)
            }
            None => refuse!(InvalidHandle, "{}", self.explain(handle)),
        }
    }

    /// Takes out the objects that `keep` does not want.
    pub fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        let freed = &mut self.freed;
        self.live.retain(|handle, object| {
            let stays = keep(object);
            if !stays {
                freed.push(*handle);
            }
            stays
        });
    }

    fn explain(&self, handle: u64) -> String {
        let tag = handle >> 40 & 0xff;
        let number = handle >> 8 & 0xffff_ffff;
        if handle == 0 {
            format!("the {:?} handle is null", self.tag)
        } else if handle >> 48 != BASE >> 48 {
            format!("{handle:#x} is not a handle")
        } else if tag != self.tag as u64 {
            format!("{handle:#x} is not a {:?} handle", self.tag)
        } else if number <= self.next {
            format!("{:?} {number} was destroyed", self.tag)
        } else {
            format!("{:?} {number} never existed", self.tag)
        }
    }
}

/// The number in a handle, for messages.
pub fn number(handle: u64) -> u64 {
    handle >> 8 & 0xffff_ffff
}
