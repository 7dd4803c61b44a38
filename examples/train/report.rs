//! What the program says: progress on stderr while it runs, the table on stdout, the rows of stats.csv.

use crate::training::Run;
use foam::Param;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::time::{Duration, Instant};

const BAR: usize = 28;
/// Updates of the bar: often enough to look alive.
const REDRAW: Duration = Duration::from_millis(100);
/// Plain lines per run when stderr is a file.
const PLAIN_LINES: usize = 4;

/// The progress of one run after another.
pub struct Progress {
    terminal: bool,
    start: Instant,
    drawn: Instant,
}

impl Progress {
    /// Starts the clock.
    pub fn new() -> Self {
        let now = Instant::now();
        Progress { terminal: std::io::stderr().is_terminal(), start: now, drawn: now - REDRAW }
    }

    /// Tells that `step` of `steps` is done.
    pub fn show(&mut self, policy: &str, step: usize, steps: usize, loss: f64) {
        let last = step == steps;
        let seconds = self.start.elapsed().as_secs_f64();
        if !self.terminal {
            if last || step.is_multiple_of((steps / PLAIN_LINES).max(1)) {
                eprintln!("{policy}: step {step} of {steps}, loss {loss:.4}, {seconds:.1} s");
            }
        } else if last || self.drawn.elapsed() >= REDRAW {
            self.drawn = Instant::now();
            let full = BAR * step / steps;
            let bar = format!("{}{}", "━".repeat(full), "─".repeat(BAR - full));
            let end = if last { "\n" } else { "" };
            // A closed stderr is no reason to stop training.
            let mut err = std::io::stderr().lock();
            let _ =
                write!(err, "\r{policy:<18} {bar} {step:>5}/{steps}  loss {loss:.4} {seconds:6.1} s{end}");
            let _ = err.flush();
        }
    }
}

/// Heads of the table's columns, in two lines.
const HEADS: [[&str; 2]; 15] = [
    ["", "policy"],
    ["train", "loss"],
    ["test", "loss"],
    ["test", "accuracy"],
    ["EVDs", "done/scheduled"],
    ["EVD", "rate"],
    ["inspect", "s"],
    ["accumulate", "s"],
    ["sense", "s"],
    ["refresh", "s"],
    ["redamp", "s"],
    ["apply", "s"],
    ["step mean", "ms"],
    ["step p99", "ms"],
    ["total", "s"],
];

/// The comparison: one row per run.
pub fn table(runs: &[Run]) -> String {
    let mut rows: Vec<Vec<String>> =
        (0..2).map(|line| HEADS.iter().map(|head| head[line].to_string()).collect()).collect();
    rows.extend(runs.iter().map(cells));
    let widths: Vec<usize> = (0..HEADS.len())
        .map(|column| rows.iter().map(|row| row[column].chars().count()).fold(0, usize::max))
        .collect();
    let mut text = String::new();
    for row in rows {
        let _ = write!(text, "{:<1$}", row[0], widths[0]);
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            let _ = write!(text, "  {cell:>width$}");
        }
        text.push('\n');
    }
    text
}

fn cells(run: &Run) -> Vec<String> {
    let s = &run.stats;
    let (mean, p99) = mean_and_p99(&run.step_seconds);
    let test = run.tests.last().copied().unwrap_or(run.train);
    let rate = match s.counters.checks {
        0 => "–".to_string(),
        checks => format!("{:.1} %", 100.0 * s.counters.evd_calls as f64 / checks as f64),
    };
    let mut row = vec![
        run.policy.clone(),
        format!("{:.5}", run.train.loss),
        format!("{:.4}", test.loss),
        format!("{:.2} %", 100.0 * test.accuracy),
        format!("{}/{}", s.counters.evd_calls, s.counters.checks),
        rate,
    ];
    let s = &s.seconds;
    let verbs = [s.inspect, s.accumulate, s.sense, s.refresh, s.redamp, s.apply];
    row.extend(verbs.map(|seconds| format!("{seconds:.3}")));
    row.extend([format!("{:.2}", 1e3 * mean), format!("{:.2}", 1e3 * p99), format!("{:.2}", run.seconds)]);
    row
}

fn mean_and_p99(seconds: &[f64]) -> (f64, f64) {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = (0.99 * sorted.len() as f64).ceil() as usize;
    let mean = sorted.iter().sum::<f64>() / sorted.len().max(1) as f64;
    (mean, sorted.get(place.saturating_sub(1)).copied().unwrap_or(0.0))
}

/// Every check of every factor, as comma-separated values; what does not exist is an empty cell.
pub fn csv(runs: &[Run], parameters: &[Param]) -> String {
    let mut text = String::from(
        "policy,step,param,block,axis,dim,epsilon,proxy,relative_change,alpha,gap_bound,noise_floor,\
         eigenvalue_min,eigenvalue_max,checks,evd_calls,cap_refreshes,failed_evds,fallback_stale,branch,options\n",
    );
    for run in runs {
        for check in &run.checks {
            let f = &check.factor;
            let (id, name) = (f.id, parameters[f.id.param].name());
            let _ = write!(text, "{},{},{name},{},{},{}", run.policy, check.step, id.block, id.axis, f.dim);
            let measured = [f.epsilon, f.proxy, f.relative_change, f.alpha, f.gap_bound, f.noise_floor];
            for value in measured.into_iter().chain([f.eigenvalue_min, f.eigenvalue_max]) {
                text.push(',');
                if value.is_finite() {
                    let _ = write!(text, "{value:e}");
                }
            }
            let c = &f.counters;
            for count in [c.checks, c.evd_calls, c.cap_refreshes, c.failed_evds, c.fallback_stale] {
                let _ = write!(text, ",{count}");
            }
            let _ = writeln!(text, ",{},{}", f.last_branch.name(), run.options);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_99th_percentile_leaves_one_in_a_hundred_above() {
        let seconds: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(mean_and_p99(&seconds), (100.5, 198.0));
        assert_eq!(mean_and_p99(&[]), (0.0, 0.0));
    }
}
