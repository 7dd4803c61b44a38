//! Sets of bytes of an allocation, as bitmaps that know which words they use.

/// A set of byte offsets.
pub struct Bits {
    /// One bit for each byte of the allocation; empty until the first mark.
    words: Vec<u64>,
    /// The allocation's size in words.
    length: usize,
    /// The first word in use.
    low: usize,
    /// One past the last word in use.
    high: usize,
}

impl Bits {
    /// The empty set over `size` bytes.
    pub fn new(size: usize) -> Bits {
        Bits { words: Vec::new(), length: size.div_ceil(64), low: usize::MAX, high: 0 }
    }

    /// Adds `len` bytes at `offset`.
    #[inline]
    pub fn mark(&mut self, offset: usize, len: usize) {
        if self.words.is_empty() {
            self.words = vec![0; self.length];
        }
        let (first, last) = (offset / 64, (offset + len - 1) / 64);
        self.low = self.low.min(first);
        self.high = self.high.max(last + 1);
        if first == last {
            self.words[first] |= span(offset % 64, len);
        } else {
            mark_words(&mut self.words, offset, len);
        }
    }

    /// The words in use and the index of the first; nothing if the set is empty.
    pub fn trimmed(&self) -> Option<(usize, &[u64])> {
        (self.low < self.high).then(|| (self.low, &self.words[self.low..self.high]))
    }
}

/// `len` ones from bit `at` on; they must fit in the word.
#[inline]
pub fn span(at: usize, len: usize) -> u64 {
    (u64::MAX >> (64 - len)) << at
}

/// Sets `len` bits at `offset`.
pub fn mark_words(words: &mut [u64], offset: usize, len: usize) {
    each_word(offset, len, |word, mask| words[word] |= mask);
}

/// Clears `len` bits at `offset`.
pub fn clear_words(words: &mut [u64], offset: usize, len: usize) {
    each_word(offset, len, |word, mask| words[word] &= !mask);
}

/// How many of `len` bits at `offset` are not set.
pub fn missing(words: &[u64], offset: usize, len: usize) -> u64 {
    let mut count = 0;
    each_word(offset, len, |word, mask| count += u64::from((!words[word] & mask).count_ones()));
    count
}

/// Calls `f` with every word and the mask of the bits concerned.
pub fn each_word(offset: usize, len: usize, mut f: impl FnMut(usize, u64)) {
    let mut at = offset;
    let end = offset + len;
    while at < end {
        let take = (64 - at % 64).min(end - at);
        f(at / 64, span(at % 64, take));
        at += take;
    }
}
