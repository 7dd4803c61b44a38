//! Random programs: with every event they give the sequential result and no race, under every order; with one
//! needed event left out the race is always found.

mod common;

use cudasim::driver::{context::*, event::*, stream::*};

use common::{Gpu, TYPES, count, reason};

const STREAMS: usize = 4;
const BUFFERS: usize = 6;
const STEPS: usize = 40;
const LENGTH: usize = 8;

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}

/// `buffer[to] += buffer[from]` on a stream, after the steps in `waits`.
struct Step {
    stream: usize,
    from: usize,
    to: usize,
    waits: Vec<usize>,
}

/// Steps, each waiting for every earlier step of another stream that it conflicts with.
fn program(seed: u64) -> Vec<Step> {
    let mut random = Random(seed.wrapping_mul(7919) + 1);
    let mut steps: Vec<Step> = Vec::new();
    for _ in 0..STEPS {
        let (stream, from) = (random.below(STREAMS), random.below(BUFFERS));
        let to = (from + 1 + random.below(BUFFERS - 1)) % BUFFERS;
        let waits = (0..steps.len())
            .filter(|&i| steps[i].stream != stream && conflict(&steps[i], from, to))
            .collect();
        steps.push(Step { stream, from, to, waits });
    }
    steps
}

fn conflict(step: &Step, from: usize, to: usize) -> bool {
    step.to == to || step.to == from || step.from == to
}

/// Whether step `a` comes before step `b` by stream order and waits.
fn ordered(steps: &[Step], a: usize, b: usize) -> bool {
    let mut reached = vec![false; steps.len()];
    reached[a] = true;
    for i in a + 1..=b {
        let by_stream = (a..i).any(|j| reached[j] && steps[j].stream == steps[i].stream);
        reached[i] = by_stream || steps[i].waits.iter().any(|&j| reached[j]);
    }
    reached[b]
}

fn run(steps: &[Step], seed: u64) -> (Vec<Vec<f32>>, u64) {
    let mut gpu = Gpu::deferred(seed);
    let add = gpu.kernel(TYPES, "add_to");
    let buffers: Vec<u64> = (0..BUFFERS).map(|b| gpu.upload(&[b as f32 + 1.0; LENGTH])).collect();
    let streams: Vec<u64> = (0..STREAMS)
        .map(|_| {
            let mut stream = 0;
            assert_eq!(cuStreamCreate(&mut stream, 1), 0);
            stream
        })
        .collect();
    let mut events = Vec::new();
    let n = LENGTH as i32;
    for step in steps {
        for &wait in &step.waits {
            assert_eq!(cuStreamWaitEvent(streams[step.stream], events[wait], 0), 0);
        }
        let (from, to) = (buffers[step.from], buffers[step.to]);
        assert_eq!(gpu.launch_on(streams[step.stream], add, [1, 1, 1], 8, 0, args![from, to, n]), 0);
        let mut event = 0;
        assert_eq!(cuEventCreate(&mut event, 2), 0);
        assert_eq!(cuEventRecord(event, streams[step.stream]), 0);
        events.push(event);
        if events.len() % 15 == 0 {
            // Polling moves the device on without ordering anything.
            cuEventQuery(events[events.len() / 2]);
        }
    }
    assert_eq!(cuCtxSynchronize(), 0, "{}", reason());
    let races = count("races");
    (buffers.iter().map(|b| gpu.download::<f32>(*b, LENGTH)).collect(), races)
}

#[test]
fn ordered_programs_are_right_and_a_missing_event_is_always_found() {
    let mut left_out = 0;
    for seed in 0..25 {
        let mut steps = program(seed);
        let mut want: Vec<f32> = (0..BUFFERS).map(|b| b as f32 + 1.0).collect();
        for step in &steps {
            want[step.to] += want[step.from];
        }
        let want: Vec<Vec<f32>> = want.iter().map(|v| vec![*v; LENGTH]).collect();
        for order in 0..4 {
            assert_eq!(run(&steps, seed * 100 + order), (want.clone(), 0), "program {seed}, order {order}");
        }
        // Leave out one wait that no other path replaces, if there is one that a poll does not hide.
        'search: for i in (0..steps.len()).rev() {
            for w in 0..steps[i].waits.len() {
                let wait = steps[i].waits.remove(w);
                if ordered(&steps, wait, i) {
                    steps[i].waits.insert(w, wait);
                    continue;
                }
                left_out += 1;
                for order in 0..4 {
                    let (_, races) = run(&steps, seed * 100 + order);
                    assert!(races > 0, "program {seed}, order {order}: step {i} does not wait for {wait}");
                }
                break 'search;
            }
        }
    }
    assert!(left_out > 20, "{left_out}");
}
