//! Replays golden traces and prints how far this build is from the authors' code: a parity certificate.
//!
//!     cargo run --release --example replay -- tests/golden/*.safetensors
//!
//! Exit status: 0 if every trace agrees, 1 if one does not, 2 for wrong usage or a file that is not a trace.

#[path = "../tests/support/golden/mod.rs"]
mod golden;

use foam::build_info;
use golden::compare::Check;
use golden::{Case, Precision, Report, replay_on};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "\
usage: replay [--json] [--device=cuda:0] TRACE.safetensors...

Feeds the gradients of each trace to the optimizer, in f64 and in f32, and compares weights, damping, proxies,
final matrices and every counter with what the reference implementation did.

  --json           print one JSON document instead of a table
  --device=NAME    where the optimizer works: cpu (the default) or cuda:N";

fn main() -> ExitCode {
    let (flags, files): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(|a| a.starts_with('-'));
    let (mut json, mut help, mut device) = (false, false, "cpu");
    for flag in &flags {
        match flag.as_str() {
            named if named.starts_with("--device=") => device = &named["--device=".len()..],
            "--json" => json = true,
            "-h" | "--help" => help = true,
            unknown => {
                eprintln!("replay: unknown option '{unknown}'\n\n{USAGE}");
                return ExitCode::from(2);
            }
        }
    }
    if help {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    if files.is_empty() {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    }
    // A reader that has seen enough (`replay … | head`) is no reason to fail loudly.
    certify(device, &files, json, &mut io::stdout().lock()).unwrap_or(ExitCode::FAILURE)
}

/// Runs all files and prints as it goes; a file that is no trace does not keep the others from being run.
fn certify(device: &str, files: &[String], json: bool, out: &mut impl Write) -> io::Result<ExitCode> {
    if !json {
        writeln!(out, "{}\n", build_info())?;
    }
    let (mut passed, mut failed, mut refused, mut cases) = (0, 0, 0, Vec::new());
    for file in files {
        let case = match Case::load(Path::new(file)) {
            Ok(case) => case,
            Err(why) => {
                eprintln!("replay: {why}");
                refused += 1;
                continue;
            }
        };
        if !json {
            print_heading(out, &case)?;
        }
        for precision in [Precision::F64, Precision::F32] {
            let outcome = replay_on(device, &case, precision);
            let good = outcome.as_ref().is_ok_and(Report::passed);
            *if good { &mut passed } else { &mut failed } += 1;
            if json {
                cases.push(describe(&case, precision, &outcome));
            } else {
                print_outcome(out, precision, &outcome)?;
            }
        }
    }
    if json {
        let document = json!({
            "build": build_info(), "cases": cases, "passed": passed, "failed": failed, "refused_files": refused,
        });
        writeln!(out, "{document:#}")?;
    } else {
        write!(out, "\n{passed} passed, {failed} failed")?;
        writeln!(out, "{}", if refused > 0 { format!(", {refused} not a trace") } else { String::new() })?;
    }
    Ok(match (refused, failed) {
        (0, 0) => ExitCode::SUCCESS,
        (0, _) => ExitCode::FAILURE,
        _ => ExitCode::from(2),
    })
}

fn print_heading(out: &mut impl Write, case: &Case) -> io::Result<()> {
    let shapes: Vec<String> = case.params.iter().map(|p| format!("{:?}", p.shape)).collect();
    let (name, steps, policy, preset) = (&case.name, case.steps, case.setup.policy, case.setup.preset);
    writeln!(out, "{name}: {policy}, preset {preset}, {steps} steps of {}", shapes.join(" "))
}

fn print_outcome(
    out: &mut impl Write,
    precision: Precision,
    outcome: &Result<Report, String>,
) -> io::Result<()> {
    let name = precision.name();
    let report = match outcome {
        Ok(report) => report,
        Err(why) => return writeln!(out, "  {name} FAIL  {why}"),
    };
    let line = |cell: &dyn Fn(&Check) -> String| report.checks.iter().map(cell).collect::<String>();
    let number = |value: f64| format!("{value:9.1e}");
    let shown = |c: &Check, value: f64| if c.error.is_some() { number(value) } else { format!("{:>9}", "-") };
    let error = |c: &Check| shown(c, c.error.unwrap_or_default());
    let allowed = |c: &Check| shown(c, c.tolerance);
    let excluded = if report.damp_compared { "" } else { " (damp left out)" };
    let counters = match report.differing {
        0 => format!("{} equal{excluded}", report.compared),
        n => format!("{n} of {} differ{excluded}", report.compared),
    };
    let verdict = if report.passed() { "PASS" } else { "FAIL" };
    writeln!(out, "  {name} {verdict} {}   counters", line(&|c| format!("{:>9}", c.name)))?;
    writeln!(out, "     error {}   {counters}", line(&error))?;
    writeln!(out, "   allowed {}", line(&allowed))?;
    for check in report.checks.iter().filter(|c| !c.passed()) {
        writeln!(out, "    {} is outside its tolerance: {}", check.name, check.place)?;
    }
    if let Some(d) = &report.first_difference {
        let (step, factor, column) = (d.step, &d.factor, d.column);
        writeln!(
            out,
            "    first difference: step {step}, factor {factor}, column {column}: expected {}, got {}",
            d.expected, d.got
        )?;
    }
    Ok(())
}

fn describe(case: &Case, precision: Precision, outcome: &Result<Report, String>) -> Value {
    let mut entry = json!({ "case": case.name, "precision": precision.name() });
    match outcome {
        Err(why) => (entry["passed"], entry["failure"]) = (false.into(), why.as_str().into()),
        Ok(report) => {
            entry["passed"] = report.passed().into();
            for check in &report.checks {
                // JSON has no infinity: an error that is no number is written as null and fails.
                entry["checks"][check.name] = json!({
                    "error": check.error, "tolerance": check.tolerance, "place": check.place, "passed": check.passed(),
                });
            }
            entry["counters"] = json!({
                "compared": report.compared, "differing": report.differing, "damp_compared": report.damp_compared,
            });
            if let Some(d) = &report.first_difference {
                entry["counters"]["first_difference"] = json!({
                    "step": d.step, "factor": d.factor, "column": d.column, "expected": d.expected, "got": d.got,
                });
            }
        }
    }
    entry
}
