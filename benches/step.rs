//! What a step costs against what the hardware allows: `cargo bench --bench step [-- S1 S3 ...]`.
//!
//! Each work is measured at one and two threads (many small blocks at one): the plain step, the check step without an
//! eigendecomposition (proxies and re-damping of every factor), and the check step with one of every
//! factor. Beside it, in the same run and interleaved with it, the bare faer products of the same
//! flops as the plain step. Then, for one matrix at one thread, what a check costs: sensing alone, sensing with a
//! bound that takes a Cholesky factorization, with the sandwich bound, a refresh by an eigendecomposition, one by QR
//! steps (`-- cost` for these alone, `-- cost 64` for one side). Then plain steps with shared squares beside steps with a
//! square each (`-- squares`). Then the latency of steps with refreshes at the check and delayed ones (`-- delay`).
//! Read the ratios: machines are noisy, ratios within one run are less so. One thread
//! is measured in processor time.

use faer::{Accum, MatMut, MatRef, Par, linalg::matmul::matmul};
use foam::config::{EpsilonMode, Policy, RefreshMethod};
use foam::{Config, Optimizer, Param, Stats};
use std::sync::OnceLock;
use std::time::Instant;

/// A work: its name, what it is, the shapes of its parameters, and the numbers of threads to measure.
struct Work {
    name: &'static str,
    what: &'static str,
    shapes: Vec<Vec<usize>>,
    threads: &'static [usize],
}

impl Work {
    fn new(name: &'static str, what: &'static str, shapes: Vec<Vec<usize>>) -> Work {
        Work { name, what, shapes, threads: &[1, 2] }
    }
}

fn works() -> Vec<Work> {
    let encoder = |d: usize| {
        vec![
            vec![d, d],
            vec![d, 3 * d],
            vec![d, 4 * d],
            vec![4 * d, d],
            vec![d],
            vec![3 * d],
            vec![4 * d],
            vec![d],
        ]
    };
    let model = |d: usize| -> Vec<Vec<usize>> { (0..12).flat_map(|_| encoder(d)).collect() };
    let small = [vec![vec![64, 64]; 200], vec![vec![64]; 100]].concat();
    vec![
        Work::new("S1", "one 256x256", vec![vec![256, 256]]),
        Work::new("S2", "one 1024x1024", vec![vec![1024, 1024]]),
        Work::new("S3", "ViT-S/16 encoder block (384 wide)", encoder(384)),
        Work::new("S4", "GPT-2 small block (768 wide)", encoder(768)),
        // What a step costs beside its products: the works above have few blocks, this one has many.
        Work { threads: &[1], ..Work::new("S5", "many small: 200 of 64x64, 100 of 64", small) },
        Work { threads: &[2], ..Work::new("S6", "ViT-S/16, 12 blocks", model(384)) },
        Work { threads: &[2], ..Work::new("S7", "GPT-2 small, 12 blocks", model(768)) },
        // Next to no products: what a block costs beside them.
        Work { threads: &[1], ..Work::new("S8", "4,096 vectors of 4", vec![vec![4]; 4096]) },
        Work { threads: &[1], ..Work::new("S9", "16 vectors of 1024", vec![vec![1024]; 16]) },
    ]
}

const LARGEST_SIDE: usize = 1024;

/// (m, n) of every block of a shape, cut as the engine cuts it.
fn blocks(shape: &[usize]) -> Vec<(usize, usize)> {
    let cut = |d: usize| -> Vec<usize> {
        (0..d).step_by(LARGEST_SIDE).map(|s| (d - s).min(LARGEST_SIDE)).collect()
    };
    let (rows, cols) =
        if shape.len() == 1 { (vec![1], cut(shape[0])) } else { (cut(shape[0]), cut(shape[1])) };
    rows.iter().flat_map(|m| cols.iter().map(|n| (*m, *n)).collect::<Vec<_>>()).collect()
}

/// The products of a plain step with symmetry used: m²n + mn² for the statistics (as products with half
/// the columns), 2m²n + 2mn² for the direction. A vector has one factor.
fn products(work: &Work) -> Vec<(usize, usize, usize)> {
    let mut list = Vec::new();
    for (m, n) in work.shapes.iter().flat_map(|s| blocks(s)) {
        if m > 1 {
            list.extend([(m, n, m.div_ceil(2)), (m, m, n)]);
        }
        list.extend([(n, m, n.div_ceil(2)), (m, n, n)]);
    }
    list
}

fn noise(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

/// Operands and results of the bare products, column-major.
struct Bare {
    products: Vec<(usize, usize, usize)>,
    buffers: Vec<(Vec<f32>, Vec<f32>, Vec<f32>)>,
}

impl Bare {
    fn new(work: &Work) -> Bare {
        let products = products(work);
        let buffers =
            products.iter().map(|&(m, k, n)| (noise(m * k, 1), noise(k * n, 2), vec![0.0; m * n])).collect();
        Bare { products, buffers }
    }

    fn flops(&self) -> f64 {
        self.products.iter().map(|&(m, k, n)| 2.0 * m as f64 * k as f64 * n as f64).sum()
    }

    /// All products, each cut into `threads` panels of columns.
    fn run(&mut self, threads: usize) {
        std::thread::scope(|scope| {
            let mut shares: Vec<Vec<_>> = (0..threads).map(|_| Vec::new()).collect();
            for (&(m, k, n), (a, b, c)) in self.products.iter().zip(&mut self.buffers) {
                let width = n.div_ceil(threads);
                let panels = b.chunks(k * width).zip(c.chunks_mut(m * width));
                for (share, (b, c)) in shares.iter_mut().zip(panels) {
                    share.push((m, k, &*a, b, c));
                }
            }
            let mut shares = shares.into_iter();
            let own = shares.next();
            for share in shares {
                scope.spawn(move || multiply_all(share));
            }
            multiply_all(own.unwrap_or_default());
        });
    }
}

/// Rows and depth, the left operand, and a panel of the right operand and of the result.
type Panel<'a> = (usize, usize, &'a Vec<f32>, &'a [f32], &'a mut [f32]);

fn multiply_all(share: Vec<Panel>) {
    for (m, k, a, b, c) in share {
        let n = c.len() / m;
        let target = MatMut::from_column_major_slice_mut(c, m, n);
        let (a, b) = (MatRef::from_column_major_slice(a, m, k), MatRef::from_column_major_slice(b, k, n));
        matmul(target, Accum::Replace, a, b, 1.0, Par::Seq);
    }
}

/// Milliseconds: of this thread's processor time where it works alone, which other programs disturb less; else of time.
fn clock(threads: usize) -> f64 {
    if threads > 1 {
        static BEGUN: OnceLock<Instant> = OnceLock::new();
        return BEGUN.get_or_init(Instant::now).elapsed().as_secs_f64() * 1e3;
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the time.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0, "there is a clock of processor time");
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 * 1e-6
}

/// An optimizer with its parameters and a few different gradients.
struct Run {
    optimizer: Optimizer,
    weights: Vec<Vec<f32>>,
    gradients: Vec<Vec<Vec<f32>>>,
    taken: usize,
    threads: usize,
}

impl Run {
    fn new(work: &Work, threads: usize, config: Config) -> Run {
        let config = Config { num_threads: threads as i64, ..config };
        let params = (0..).zip(&work.shapes).map(|(i, shape)| Param::new(format!("param_{i}"), shape));
        let optimizer = Optimizer::new(config, params).expect("the optimizer takes the work");
        let sizes: Vec<usize> = work.shapes.iter().map(|s| s.iter().product()).collect();
        let make = |seed: u64| sizes.iter().map(|n| noise(*n, seed + *n as u64)).collect::<Vec<_>>();
        let gradients = (0..3).map(|s| make(100 + s)).collect();
        Run { optimizer, weights: make(7), gradients, taken: 0, threads }
    }

    /// Takes a step; gives its milliseconds.
    fn step(&mut self) -> f64 {
        let gradient = &self.gradients[self.taken % self.gradients.len()];
        self.taken += 1;
        let begun = clock(self.threads);
        self.optimizer.step(&mut self.weights, gradient).expect("the step succeeds");
        clock(self.threads) - begun
    }

    fn stats(&mut self) -> Stats {
        self.optimizer.stats().expect("a live optimizer has statistics")
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn measure(work: &Work, threads: usize) {
    let mut bare = Bare::new(work);
    let repeats = ((40e9 / bare.flops()) as usize).clamp(5, 200);
    // A first check at step 1 gives the basis; the next is far away, so every step is a plain one.
    let mut plain =
        Run::new(work, threads, Config { start_step: 1, check_period: 1_000_000, ..Config::reference() });
    // A check at every step that reuses the basis but always changes epsilon, and one that always refreshes.
    let always = Config { check_period: 1, ..Config::reference() };
    let steered = Config { policy: Policy::FoamNoRefresh, epsilon_max: 1e9, tau: 1e-3, ..always.clone() };
    let mut reuse = Run::new(work, threads, steered);
    let mut refresh = Run::new(work, threads, Config { policy: Policy::Stale, ..always });
    plain.step();
    plain.step();
    bare.run(threads);
    let before = plain.stats().seconds;
    let (mut plain_times, mut bare_times) = (Vec::new(), Vec::new());
    for _ in 0..repeats {
        plain_times.push(plain.step());
        let begun = clock(threads);
        bare.run(threads);
        bare_times.push(clock(threads) - begun);
    }
    reuse.step();
    let reuse_times = (0..(repeats / 4).clamp(3, 20)).map(|_| reuse.step()).collect();
    refresh.step();
    let refresh_times = (0..(repeats / 8).clamp(3, 10)).map(|_| refresh.step()).collect();
    let after = plain.stats().seconds;
    let mean = |end: f64, start: f64| (end - start) * 1e3 / repeats as f64;
    let verbs = format!(
        "{:.2} + {:.2} + {:.2}",
        mean(after.inspect, before.inspect),
        mean(after.accumulate, before.accumulate),
        mean(after.apply, before.apply)
    );
    let (p, b) = (median(plain_times), median(bare_times));
    let (c, e) = (median(reuse_times), median(refresh_times));
    println!(
        "{:<4} {:>7}  {:>10.2} {:>10.2} {:>6.2} {:>8.0}  {:>24}  {:>12.2} {:>12.2}   {}",
        work.name,
        threads,
        p,
        b,
        p / b,
        bare.flops() / b / 1e6,
        verbs,
        c,
        e,
        work.what
    );
}

/// What the parts of a check of one square matrix's factors take, as differences of whole steps that differ in that
/// part alone: the least processor time of a few interleaved repetitions.
fn measure_checks(n: usize) {
    let work = Work::new("", "", vec![vec![n, n]]);
    let relative = Config {
        epsilon_mode: EpsilonMode::Relative,
        epsilon: 3e-4,
        epsilon_max: 3e-4,
        check_period: 1,
        beta2: 0.99,
        noise_floor: false,
        ..Config::reference()
    };
    let plain = Config { start_step: 1, check_period: 1_000_000, ..relative.clone() };
    // Looks only: τ is never passed, and ε does not follow the spectrum.
    let look = Config {
        epsilon_mode: EpsilonMode::Absolute,
        policy: Policy::FoamFixedEpsilon,
        tau: 1e300,
        ..relative.clone()
    };
    // Looks, and takes the diagonal as spectrum.
    let correct = Config { policy: Policy::DiagonalResidual, residual_threshold: 1e300, ..relative.clone() };
    // The same while a proven bound is at most τ: at the larger τ a Cholesky factorization mostly suffices, at the
    // smaller one the inverse is needed.
    let certified = |tau: f64| Config { policy: Policy::Sandwich, tau, ..relative.clone() };
    let stale = Config { policy: Policy::Stale, ..relative.clone() };
    // Every step is on the schedule, and is refreshed without being sensed.
    let by_qr = Config {
        policy: Policy::Sandwich,
        tau: 0.5,
        refresh_method: RefreshMethod::Qr,
        correction_period: 1,
        ..relative.clone()
    };
    let configs = [plain, look, correct, certified(0.75), certified(0.4), stale, by_qr];
    let (mut least, mut qr_steps) = ([f64::INFINITY; 7], 0.0);
    // After some steps with the same gradients nothing changes any more, and the cheapest rule suffices: begin again.
    for round in 0..(2048 / n).clamp(1, 24) {
        let mut runs = configs.clone().map(|config| Run::new(&work, 1, config));
        let mut counted = [(0, 0); 7];
        for repeat in 0..24 {
            for (place, run) in runs.iter_mut().enumerate() {
                // A decomposition takes long: a few suffice.
                if place >= 5 && (round > 0 || repeat >= 6) {
                    continue;
                }
                let spent = run.step();
                let counters =
                    if place == 3 || place == 4 { run.stats().counters } else { Default::default() };
                let before = counted[place];
                counted[place] = (counters.bound_spectral, counters.bound_sandwich);
                // Only checks count in which both factors were certified in the same way.
                let kind = match place {
                    3 | 4 if counted[place].0 == before.0 + 2 => 3,
                    3 | 4 if counted[place].1 == before.1 + 2 => 4,
                    3 | 4 => continue,
                    _ => place,
                };
                if repeat > 0 {
                    least[kind] = least[kind].min(spent);
                }
            }
        }
        if round == 0 {
            let counters = runs[6].stats().counters;
            qr_steps = counters.qr_steps as f64 / (counters.qr_refreshes + counters.qr_fallbacks) as f64;
        }
    }
    let [plain, look, correct, cholesky, inverse, evd, qr] = least;
    let sense = look - plain;
    let [cholesky, inverse] = [cholesky, inverse].map(|certified| sense + certified - correct);
    // With the new inverse roots.
    let [evd, qr] = [evd, qr].map(|refreshed| refreshed - plain);
    println!(
        "{n:<5} {sense:>9.3} {cholesky:>10.3} {:>6.2} {inverse:>9.3} {:>6.2}  {evd:>9.2} {qr:>9.2} {:>6.2} {qr_steps:>12.1}",
        cholesky / sense,
        inverse / sense,
        qr / evd,
    );
}

fn checks(sides: &[usize]) {
    println!("\nf32, one n x n matrix (two factors), one thread; least milliseconds of processor time");
    println!("side      sense + Cholesky  ratio + inverse  ratio        EVD        QR  ratio steps per QR");
    sides.iter().for_each(|n| measure_checks(*n));
}

/// Steps of two optimizers in turn, one of which delays its refreshes, with other work between the steps, as a training
/// loop has it: the times of steps, sorted.
fn measure_delay(n: usize) {
    const PERIOD: i64 = 10;
    let work = Work::new("", "", vec![vec![n, n]]);
    let config = |refresh_delay: i64| Config {
        policy: Policy::Stale,
        start_step: 1,
        check_period: PERIOD,
        refresh_delay,
        ..Config::reference()
    };
    let mut bare = Bare::new(&work);
    let mut runs = [0, PERIOD].map(|delay| Run::new(&work, 1, config(delay)));
    let mut times = [Vec::new(), Vec::new()];
    for step in 0..20 * PERIOD {
        for (run, times) in runs.iter_mut().zip(&mut times) {
            let spent = run.step();
            if step >= PERIOD {
                times.push(spent);
            }
            (0..3).for_each(|_| bare.run(1));
        }
    }
    let place = |times: &[f64], share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
    let [[p50, p99], [late50, late99]] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        [0.5, 0.99].map(|share| place(&times, share))
    });
    let counters = runs[1].stats().counters;
    println!(
        "{n:<5} {p50:>9.2} {p99:>9.2} {:>7.2}  {late50:>9.2} {late99:>9.2} {:>7.2}  {:>12.2} {:>10}",
        p99 / p50,
        late99 / late50,
        late99 / p99,
        counters.evd_calls,
    );
}

fn delays() {
    println!(
        "\nf32, one n x n matrix, one thread, stale, a refresh every 10 steps; milliseconds of a step, wall time"
    );
    println!("          at the check:             10 steps later, in the background:");
    println!("side        p50       p99   ratio        p50       p99   ratio   p99 to p99  refreshes");
    [128, 256, 512].into_iter().for_each(measure_delay);
}

/// Plain steps of two optimizers in turn, one of which keeps statistics and inverse roots in squares of their own.
fn measure_squares(n: usize, threads: usize) {
    let count = (512 / n).pow(2).max(1);
    let work = Work::new("", "", vec![vec![n, n]; count]);
    let plain = Config { start_step: 1, check_period: 1_000_000, ..Config::reference() };
    let mut runs = [true, false]
        .map(|share_squares| Run::new(&work, threads, Config { share_squares, ..plain.clone() }));
    let [shared, own] = runs.each_mut().map(|run| {
        let numbers: usize = run.weights.iter().map(Vec::len).sum();
        run.stats().memory.state_host as f64 / numbers as f64
    });
    let mut times = [Vec::new(), Vec::new()];
    let rounds = if n > 512 { 40 } else { 100 };
    for round in 0..rounds {
        // The first to work finds other things in the cache than the second.
        for place in [round % 2, 1 - round % 2] {
            let spent = runs[place].step();
            if round > 1 {
                times[place].push(spent);
            }
        }
    }
    let least = times.each_ref().map(|times| times.iter().copied().fold(f64::INFINITY, f64::min));
    let [middle, middle_own] = times.map(median);
    println!(
        "{n:<5} {threads:>7} {count:>7}  {middle:>9.3} {middle_own:>9.3} {:>6.3} {:>6.3}  {shared:>7.1} {own:>7.1}",
        middle / middle_own,
        least[0] / least[1],
    );
}

fn squares(sides: &[usize]) {
    println!(
        "\nf32, n x n matrices, plain steps with shared squares and with a square each, in turn; milliseconds"
    );
    println!("                         median of a step:     ratio of:  bytes per parameter:");
    println!("side  threads  blocks     shared      each median  least   shared    each");
    for n in sides {
        [1, 2].into_iter().for_each(|threads| measure_squares(*n, threads));
    }
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    println!("{}", foam::build_info());
    println!(
        "f32, blocks up to {LARGEST_SIDE}, Adam grafting, p = 2; median milliseconds (one thread: of processor time)"
    );
    println!(
        "{:<4} {:>7}  {:>10} {:>10} {:>6} {:>8}  {:>24}  {:>12} {:>12}",
        "work",
        "threads",
        "plain step",
        "products",
        "ratio",
        "GFLOP/s",
        "inspect+accumulate+apply",
        "check, reuse",
        "check, EVD"
    );
    for work in works().iter().filter(|w| wanted.is_empty() || wanted.iter().any(|name| name == w.name)) {
        for threads in work.threads {
            measure(work, *threads);
        }
    }
    let sides: Vec<usize> = wanted.iter().filter_map(|side| side.parse().ok()).collect();
    let sides = if sides.is_empty() { &[64, 128, 256, 512, 1024] } else { &sides[..] };
    if wanted.is_empty() || wanted.iter().any(|name| name == "cost") {
        checks(sides);
    }
    if wanted.is_empty() || wanted.iter().any(|name| name == "squares") {
        squares(sides);
    }
    if wanted.is_empty() || wanted.iter().any(|name| name == "delay") {
        delays();
    }
}
