//! The race detector: two operations touch the same byte, one of them writes, and nothing orders them.
//!
//! Every operation carries a vector clock that is known when it is enqueued: one component for each
//! stream, raised by stream order, events, the legacy stream's rules and host synchronisation. Operation
//! `a` comes before `b` if the clock of `b` has reached the index of `a` on the stream of `a`.

use std::collections::HashMap;
use std::sync::Arc;

use crate::window::View;

/// A vector clock: for each stream, how many of its operations are known to come before.
#[derive(Clone, Default, Debug)]
pub struct Clock(Vec<u64>);

impl Clock {
    /// Takes the larger of each component.
    pub fn join(&mut self, other: &Clock) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// Takes the smaller of each component.
    pub fn meet(&mut self, other: &Clock) {
        self.0.truncate(other.0.len());
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).min(*theirs);
        }
    }

    /// Sets the component of a stream.
    pub fn set(&mut self, stream: usize, value: u64) {
        if self.0.len() <= stream {
            self.0.resize(stream + 1, 0);
        }
        self.0[stream] = value;
    }

    /// The component of a stream.
    pub fn get(&self, stream: usize) -> u64 {
        self.0.get(stream).copied().unwrap_or(0)
    }
}

/// Who made an access.
#[derive(Clone)]
pub struct Actor {
    /// The stream's component in clocks.
    pub stream: usize,
    /// The operation's index on that stream.
    pub index: u64,
    /// What comes before it.
    pub clock: Arc<Clock>,
    /// What it is, for messages.
    pub what: Arc<str>,
}

/// Bytes that an earlier operation touched.
struct Past {
    stream: usize,
    index: u64,
    write: bool,
    low: usize,
    words: Vec<u64>,
    what: Arc<str>,
}

/// The accesses that a later operation could still collide with.
#[derive(Default)]
pub struct Races {
    history: HashMap<u64, Vec<Past>>,
}

impl Races {
    /// Compares an operation's accesses with the past, adds them to it, and returns a sentence for each race.
    pub fn check(&mut self, views: &[View], actor: &Actor) -> Vec<String> {
        let mut found = Vec::new();
        for view in views {
            let past = self.history.entry(view.base).or_default();
            for (touched, write) in [(&view.reads, false), (&view.writes, true)] {
                let Some((low, words)) = touched.trimmed() else { continue };
                for old in
                    past.iter_mut().filter(|p| p.low < low + words.len() && low < p.low + p.words.len())
                {
                    let ordered = actor.clock.get(old.stream) >= old.index;
                    let own = old.stream == actor.stream && old.index == actor.index;
                    if !ordered && !own && (write || old.write) {
                        found.extend(collision(old, low, words, write, actor, view));
                    }
                    // What this write covers, or a later read on the same stream, need not be remembered.
                    if (ordered && write) || (!write && !old.write && old.stream == actor.stream) {
                        subtract(old, low, words);
                    }
                }
                past.retain(|p| !p.words.is_empty());
                let (stream, index, what) = (actor.stream, actor.index, actor.what.clone());
                past.push(Past { stream, index, write, low, words: words.to_vec(), what });
            }
        }
        found
    }

    /// Forgets what every operation from now on is known to come after.
    pub fn prune(&mut self, known: &Clock) {
        self.history.retain(|_, past| {
            past.retain(|p| p.index > known.get(p.stream));
            !past.is_empty()
        });
    }

    /// Forgets an allocation.
    pub fn forget(&mut self, base: u64) {
        self.history.remove(&base);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.history.clear();
    }
}

fn collision(
    old: &Past,
    low: usize,
    words: &[u64],
    write: bool,
    actor: &Actor,
    view: &View,
) -> Option<String> {
    let (start, end) = (low.max(old.low), (low + words.len()).min(old.low + old.words.len()));
    let mut first = None;
    let mut count = 0;
    for word in start..end {
        let both = words[word - low] & old.words[word - old.low];
        if both != 0 {
            first = first.or(Some(word * 64 + both.trailing_zeros() as usize));
            count += both.count_ones();
        }
    }
    let first = first?;
    let verb = |write: bool| if write { "writes" } else { "reads" };
    Some(format!(
        "{} {} and {} {} {count} bytes from offset {first} of the {}, and nothing orders them",
        old.what,
        verb(old.write),
        actor.what,
        verb(write),
        view.name
    ))
}

fn subtract(old: &mut Past, low: usize, words: &[u64]) {
    let (start, end) = (low.max(old.low), (low + words.len()).min(old.low + old.words.len()));
    for word in start..end {
        old.words[word - old.low] &= !words[word - low];
    }
    if old.words.iter().all(|w| *w == 0) {
        old.words = Vec::new();
    }
}
