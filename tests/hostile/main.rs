//! The campaign of hostile use: one command, a time budget, a seed.
//!
//! ```sh
//! campaign="cargo test --features foam-tests/all --test hostile --"
//! $campaign                                     # two minutes; 10 seconds without FOAM_TEST_ALL=1
//! $campaign --minutes 30 --seed 7               # longer
//! $campaign --only calls --first 123 --count 1  # one case again
//! ```
//!
//! Every part runs in processes of its own, case after case, each with a seed that is printed before it: an abort, a
//! signal, a failed claim or a hang costs one case, is counted, and is named with what repeats it. At the end comes a
//! table of counts. Nothing depends on the time but how many cases there are. As many parts run at once as there are
//! cores.

#![cfg(target_os = "linux")]

#[path = "../support/comm.rs"]
mod comm;
#[path = "../support/frame.rs"]
mod frame;
#[path = "../support/library.rs"]
mod library;
#[path = "../support/program.rs"]
mod program;
#[path = "../support/python.rs"]
mod python;
#[path = "../support/rank.rs"]
mod rank;
#[path = "../support/scarce.rs"]
mod scarce;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/tier.rs"]
mod tier;

mod calls;
mod corpus;
mod files;
mod floats;
mod guarded;
mod life;
mod limits;
mod looks;
mod memory;
mod numbers;
mod outside;
mod processes;
mod ranks;
mod stacks;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: scarce::Scarce = scarce::Scarce;

/// What a part counted, by name.
pub type Tally = BTreeMap<&'static str, u64>;

/// Adds to a count.
pub fn count(tally: &mut Tally, what: &'static str, number: u64) {
    *tally.entry(what).or_default() += number;
}

/// How the cases of a part are run.
enum Kind {
    /// A function of a seed, in a process of this program.
    Case(fn(u64, &mut Tally)),
    /// A program that takes `--first`, `--count` and `--seconds`, and speaks as this one does.
    Program(fn() -> Option<Command>),
}

/// A part of the campaign: its name, its share of the time, what it is.
struct Part {
    name: &'static str,
    share: f64,
    kind: Kind,
}

const PARTS: &[Part] = &[
    Part { name: "calls", share: 4.0, kind: Kind::Case(calls::case) },
    Part { name: "stacks", share: 1.0, kind: Kind::Case(stacks::case) },
    Part { name: "ranks", share: 1.0, kind: Kind::Case(ranks::case) },
    Part { name: "corpus", share: 1.0, kind: Kind::Case(corpus::case) },
    Part { name: "memory", share: 3.0, kind: Kind::Case(memory::case) },
    Part { name: "limits", share: 1.0, kind: Kind::Case(limits::case) },
    Part { name: "kill", share: 1.5, kind: Kind::Case(files::kill) },
    Part { name: "writers", share: 0.5, kind: Kind::Case(files::writers) },
    Part { name: "disk", share: 0.5, kind: Kind::Case(files::full_disk) },
    Part { name: "numbers", share: 2.0, kind: Kind::Case(numbers::case) },
    Part { name: "steady", share: 0.5, kind: Kind::Case(numbers::steady) },
    Part { name: "floats", share: 1.0, kind: Kind::Case(floats::case) },
    Part { name: "threads", share: 1.5, kind: Kind::Case(processes::threads) },
    Part { name: "fork", share: 1.0, kind: Kind::Case(processes::fork) },
    Part { name: "library", share: 0.5, kind: Kind::Case(processes::library) },
    Part { name: "driver", share: 1.0, kind: Kind::Program(outside::driver) },
    Part { name: "python", share: 1.0, kind: Kind::Program(outside::numpy) },
    Part { name: "torch", share: 1.5, kind: Kind::Program(outside::torch) },
    Part { name: "jax", share: 1.5, kind: Kind::Program(outside::jax) },
];

/// A case that says nothing for so long hangs, unless it still computes.
const PATIENCE: Duration = Duration::from_secs(120);
/// A part that fails this often is given up.
const MOST_FAILURES: usize = 5;

struct Options {
    seconds: f64,
    seed: u64,
    only: Vec<String>,
    first: Option<u64>,
    count: Option<u64>,
    child: Option<String>,
}

fn options() -> Options {
    let seconds = if tier::all() { 120.0 } else { 10.0 };
    let mut options = Options { seconds, seed: 1, only: Vec::new(), first: None, count: None, child: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_else(|| panic!("{word}: expected a value"));
        let number = |text: String| text.parse::<u64>().unwrap_or_else(|_| panic!("'{text}' is no number"));
        match &*word {
            "--minutes" => options.seconds = 60.0 * value().parse::<f64>().expect("--minutes: a number"),
            "--seconds" => options.seconds = value().parse().expect("--seconds: a number"),
            "--seed" => options.seed = number(value()),
            "--first" => options.first = Some(number(value())),
            "--count" => options.count = Some(number(value())),
            "--only" => options.only.push(value()),
            "--child" => options.child = Some(value()),
            // What cargo passes to every test program: a filter that names no part runs none.
            other if !other.starts_with('-') => options.only.push(other.to_string()),
            _ => {}
        }
    }
    options
}

fn main() -> ExitCode {
    // What tools ask of every test program: there is nothing to list, and nothing is ignored.
    if std::env::args().any(|word| word == "--list" || word == "--ignored") {
        return ExitCode::SUCCESS;
    }
    let options = options();
    if let Some(name) = &options.child {
        match PARTS.iter().find(|part| part.name == name).map(|part| &part.kind) {
            Some(Kind::Case(case)) => run_cases(&options, *case),
            _ => files::child(name),
        }
        return ExitCode::SUCCESS;
    }
    let parts: Vec<&Part> = PARTS
        .iter()
        .filter(|part| options.only.is_empty() || options.only.iter().any(|name| name == part.name))
        .collect();
    let rows = run_parts(&parts, &options);
    print_table(&options, &rows);
    let failed: u64 = rows.iter().map(|row| row.failures + row.aborts + row.hangs).sum();
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// All parts, one per core at a time; their rows in the order of the parts.
fn run_parts(parts: &[&Part], options: &Options) -> Vec<Row> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get()).min(parts.len().max(1));
    let shares: f64 = parts.iter().map(|part| part.share).sum();
    let seconds = options.seconds * cores as f64 / shares;
    let next = AtomicUsize::new(0);
    let rows: Vec<Mutex<Option<Row>>> = parts.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(part) = parts.get(place) else { break };
                    let row = run_part(part, options, seconds * part.share);
                    *rows[place].lock().expect("no thread panicked") = Some(row);
                }
            });
        }
    });
    rows.into_iter()
        .map(|row| row.into_inner().expect("no thread panicked").expect("every part was run"))
        .collect()
}

/// In a child: case after case until the time is over.
fn run_cases(options: &Options, case: fn(u64, &mut Tally)) {
    let begun = Instant::now();
    let mut tally = Tally::new();
    let first = options.first.unwrap_or(0);
    for seed in first.. {
        let done = options.count.is_some_and(|count| seed - first >= count);
        if done || options.count.is_none() && begun.elapsed().as_secs_f64() > options.seconds {
            break;
        }
        say(&format!("@{seed}"));
        case(seed, &mut tally);
    }
    tally.iter().for_each(|(what, number)| say(&format!("+{what} {number}")));
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).expect("the campaign listens");
}

/// What a part came to.
struct Row {
    name: &'static str,
    cases: u64,
    failures: u64,
    aborts: u64,
    hangs: u64,
    seconds: f64,
    counts: BTreeMap<String, u64>,
    left_out: bool,
}

fn run_part(part: &Part, options: &Options, seconds: f64) -> Row {
    let begun = Instant::now();
    let mut row = Row {
        name: part.name,
        cases: 0,
        failures: 0,
        aborts: 0,
        hangs: 0,
        seconds: 0.0,
        counts: BTreeMap::new(),
        left_out: false,
    };
    // Seeds of different campaigns do not meet.
    let mut first = options.first.unwrap_or(options.seed << 24);
    loop {
        let left = seconds - begun.elapsed().as_secs_f64();
        let mut command = match part.kind {
            Kind::Case(_) => {
                let mut own = Command::new(std::env::current_exe().expect("the program has a path"));
                own.args(["--child", part.name]);
                own
            }
            Kind::Program(make) => match make() {
                Some(command) => command,
                None => {
                    row.left_out = true;
                    return row;
                }
            },
        };
        command.args(["--first", &first.to_string(), "--seconds", &left.max(0.0).to_string()]);
        if let Some(count) = options.count {
            command.args(["--count", &count.to_string()]);
        }
        let Some(last) = watch(part, &mut command, &mut row) else { break };
        first = last + 1;
        let over = begun.elapsed().as_secs_f64() > seconds || options.count.is_some();
        if over || row.failures + row.aborts + row.hangs >= MOST_FAILURES as u64 {
            break;
        }
    }
    row.seconds = begun.elapsed().as_secs_f64();
    row
}

/// Runs a child to its end. Gives the seed of its last case if that went wrong.
fn watch(part: &Part, command: &mut Command, row: &mut Row) -> Option<u64> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).env("RUST_BACKTRACE", "0");
    let mut child = command.spawn().unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
    let (sender, lines) = mpsc::channel();
    let out = child.stdout.take().expect("the output is piped");
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    let mut errors = child.stderr.take().expect("the errors are piped");
    let errors = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = errors.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let mut seed = None;
    let (mut used, mut waited) = (0, 0);
    let hangs = loop {
        match lines.recv_timeout(PATIENCE) {
            Ok(line) => match line.split_at_checked(1).inspect(|_| waited = 0) {
                Some(("@", number)) => {
                    seed = number.parse().ok();
                    row.cases += 1;
                }
                Some(("+", rest)) => {
                    let (what, number) = rest.rsplit_once(' ').unwrap_or((rest, "0"));
                    *row.counts.entry(what.to_string()).or_default() += number.parse::<u64>().unwrap_or(0);
                }
                _ => {}
            },
            // On a busy machine a case may only be slow: what still computes gets more time.
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let now = ticks(child.id());
                if now < used + 5 || waited == 5 {
                    break true;
                }
                (used, waited) = (now, waited + 1);
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break false,
        }
    };
    if hangs {
        let _ = child.kill();
    }
    let status = wait(&mut child);
    let said = errors.join().unwrap_or_default();
    if !hangs && status.success() {
        return None;
    }
    use std::os::unix::process::ExitStatusExt;
    let what = if hangs {
        row.hangs += 1;
        "hang"
    } else if status.signal().is_some() {
        row.aborts += 1;
        "abort"
    } else {
        row.failures += 1;
        "failure"
    };
    let seed = seed.unwrap_or(0);
    let lines: Vec<&str> = said.lines().collect();
    println!(
        "{what} in part '{}', seed {seed} ({status}); again: cargo test --features foam-tests/all --test hostile -- --only {} --first {seed} --count 1\n{}",
        part.name,
        part.name,
        lines[lines.len().saturating_sub(25)..].join("\n")
    );
    Some(seed)
}

/// The time that a process has computed, in hundredths of a second.
fn ticks(process: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields = text.rsplit(')').next().unwrap_or_default().split(' ');
    fields.skip(12).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}

fn wait(child: &mut Child) -> std::process::ExitStatus {
    child.wait().expect("a child can be waited for")
}

fn print_table(options: &Options, rows: &[Row]) {
    println!("seed {}, {:.0} seconds", options.seed, options.seconds);
    println!(
        "{:<9}{:>9}{:>10}{:>8}{:>7}{:>9}  counts",
        "part", "cases", "failures", "aborts", "hangs", "seconds"
    );
    let mut sum = [0; 4];
    for row in rows {
        if row.left_out {
            println!("{:<9} left out: it needs what FOAM_TEST_ALL=1 fetches", row.name);
            continue;
        }
        let counts: Vec<String> =
            row.counts.iter().map(|(what, number)| format!("{what} {number}")).collect();
        println!(
            "{:<9}{:>9}{:>10}{:>8}{:>7}{:>9.1}  {}",
            row.name,
            row.cases,
            row.failures,
            row.aborts,
            row.hangs,
            row.seconds,
            counts.join(", ")
        );
        for (sum, number) in sum.iter_mut().zip([row.cases, row.failures, row.aborts, row.hangs]) {
            *sum += number;
        }
    }
    println!("{:<9}{:>9}{:>10}{:>8}{:>7}", "all", sum[0], sum[1], sum[2], sum[3]);
}
