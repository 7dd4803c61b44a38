//! libfoam's main job: trains a small network on real data with several policies, compares them in a
//! table, and draws what the policies did.
//!
//! Run it with `cargo run --release --example train`; `-- --help` lists the flags.

mod data;
mod figures;
mod network;
mod options;
mod plot;
mod random;
mod report;
mod scale;
mod training;

use figures::Context;
use foam::Config;
use options::Options;
use report::Progress;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use training::{Run, Session, Task};

/// Options that differ from the library's defaults.
const SETTINGS: &[(&str, &str)] = &[
    // A run is only some 660 steps long.
    ("check_period", "10"),
    // The largest eigenvalues start near 1: at less damping than 1e-6 of that, rounding in single
    // precision alone would push the proxy towards tau (the plots show this noise floor).
    ("epsilon", "1e-6"),
    // Close enough that the cap is reached and bases are refreshed in a run this short.
    ("epsilon_max", "1e-5"),
];

/// Runs that are presets as they are, not policies with these options.
const PRESETS: &[&str] = &["default", "soap"];

/// Options that the output names, because they decide about the comparison.
const NAMED: &[&str] = &[
    "check_period",
    "tau",
    "epsilon",
    "epsilon_max",
    "root",
    "beta1",
    "beta2",
    "grafting",
    "grafting_beta2",
    "weight_decay",
    "statistic_dtype",
];

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(message) => return refuse(&message),
    };
    if options.help {
        print!("{}", options::HELP);
        return ExitCode::SUCCESS;
    }
    // Every optimizer is created before the first one runs: a bad option fails at once.
    let (task, config, sessions) = match prepare(&options) {
        Ok(prepared) => prepared,
        Err(failure) => return refuse(&failure.to_string()),
    };
    match work(&options, &task, &config, sessions) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("train: {error}");
            ExitCode::FAILURE
        }
    }
}

fn refuse(message: &str) -> ExitCode {
    eprintln!("train: {message}");
    ExitCode::from(2)
}

fn prepare(options: &Options) -> foam::Result<(Task, Config, Vec<Session>)> {
    let mut config = Config::reference();
    for (key, value) in SETTINGS {
        config.set(key, value)?;
    }
    for (key, value) in &options.settings {
        config.set(key, value)?;
    }
    if let Some(threads) = &options.threads {
        config.set("num_threads", threads)?;
    }
    let (train, test) = data::digits();
    let task = Task {
        train,
        test,
        widths: vec![data::PIXELS, 256, 256, data::CLASSES],
        batch: 128,
        epochs: options.epochs,
        seed: options.seed,
        lr: config.lr,
        warmup: 0.05,
    };
    let mut sessions = Vec::new();
    for policy in &options.policies {
        let own = if PRESETS.contains(&policy.as_str()) {
            preset(options, policy)?
        } else {
            with_policy(&config, policy)?
        };
        sessions.push(Session::new(own, task.parameters())?);
    }
    Ok((task, config, sessions))
}

fn with_policy(config: &Config, policy: &str) -> foam::Result<Config> {
    let mut own = config.clone();
    own.set("policy", policy)?;
    Ok(own)
}

/// A preset, with nothing tuned: only the learning rate is that of all runs.
fn preset(options: &Options, name: &str) -> foam::Result<Config> {
    let mut own = Config { lr: Config::reference().lr, ..Config::preset(name)? };
    for (key, value) in &options.settings {
        own.set(key, value)?;
    }
    if let Some(threads) = &options.threads {
        own.set("num_threads", threads)?;
    }
    Ok(own)
}

fn work(
    options: &Options,
    task: &Task,
    config: &Config,
    sessions: Vec<Session>,
) -> Result<(), Box<dyn std::error::Error>> {
    // Fail before the training, not after it; and a closed stdout is an error, not a panic.
    let cannot_write = |error| format!("cannot write to {}: {error}", options.out.display());
    std::fs::create_dir_all(&options.out).map_err(cannot_write)?;
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{}\n{}", foam::build_info(), introduction(task, config)?)?;
    let mut progress = Progress::new();
    let mut runs = Vec::new();
    for (policy, session) in options.policies.iter().zip(sessions) {
        runs.push(task.run(policy, session, &mut progress)?);
    }
    writeln!(stdout, "{}", report::table(&runs))?;
    let context = Context {
        task,
        parameters: &task.parameters(),
        epsilon: config.epsilon,
        epsilon_max: config.epsilon_max,
        tau: config.tau,
    };
    let written = write_files(&options.out, &runs, &context).map_err(cannot_write)?;
    writeln!(stdout, "Written to {}: {}", options.out.display(), written.join(", "))?;
    Ok(())
}

fn introduction(task: &Task, config: &Config) -> foam::Result<String> {
    let mut named = Vec::new();
    for key in NAMED {
        named.push(format!("{key} = {}", config.get(key)?));
    }
    let widths: Vec<String> = task.widths.iter().map(usize::to_string).collect();
    Ok(format!(
        "UCI digits: {} training and {} test images. Network {}, ReLU, softmax cross-entropy; seed {}.\n\
         The same for every policy: {} epochs of {} steps, batch {}; learning rate up to {} in {} steps, then half a \
         cosine to 0;\n{}\n",
        task.train.len(),
        task.test.len(),
        widths.join("-"),
        task.seed,
        task.epochs,
        task.steps_per_epoch(),
        task.batch,
        task.lr,
        task.warmup_steps(),
        named.join(", "),
    ))
}

fn write_files(out: &Path, runs: &[Run], context: &Context) -> std::io::Result<Vec<&'static str>> {
    let files = [
        ("loss.svg", figures::loss(runs, context).svg()),
        ("epsilon.svg", figures::epsilon(runs, context).svg()),
        ("proxy.svg", figures::proxy(runs, context).svg()),
        ("evd_rate.svg", figures::evd_rate(runs, context).svg()),
        ("stats.csv", report::csv(runs, context.parameters)),
    ];
    for (name, content) in &files {
        std::fs::write(out.join(name), content)?;
    }
    Ok(files.map(|f| f.0).to_vec())
}
