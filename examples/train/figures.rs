//! The four figures that this program draws.

use crate::plot::{Figure, Mark, Panel, Rule, Series};
use crate::training::{Check, Run, Task};
use foam::{FactorId, Param};

/// Colour, dashes and width of a policy's lines: Okabe and Ito's palette, which colour-blind readers can
/// tell apart. `stale` is wide and drawn first, so that it shows where the others follow it.
const LOOKS: [(&str, &str, &str, f64); 9] = [
    ("grafting_only", "#555555", "5 3", 1.8),
    ("stale", "#e69f00", "", 4.0),
    ("foam", "#0072b2", "", 1.8),
    ("foam_certified", "#d55e00", "7 4", 1.8),
    ("foam_fixed_epsilon", "#009e73", "3 2", 1.8),
    ("foam_no_refresh", "#cc79a7", "10 3 2 3", 1.8),
    ("diagonal_residual", "#56b4e9", "", 2.6),
    ("default", "#009e73", "", 2.2),
    ("soap", "#cc79a7", "", 2.2),
];

/// What the figures need to know about the settings.
pub struct Context<'a> {
    pub task: &'a Task,
    pub parameters: &'a [Param],
    pub epsilon: f64,
    pub epsilon_max: f64,
    pub tau: f64,
}

fn series(policy: &str, label: String, mark: Mark, points: Vec<(f64, f64)>) -> Series {
    let look = LOOKS.iter().find(|l| l.0 == policy).unwrap_or(&LOOKS[0]);
    Series { label, colour: look.1, dash: look.2, width: look.3, mark, points }
}

/// Training loss (mean of the last epoch's batches) and test loss over the steps.
pub fn loss(runs: &[Run], context: &Context) -> Figure {
    let epoch = context.task.steps_per_epoch();
    let mut train = Panel { title: "training loss, mean of one epoch's batches".into(), ..Panel::default() };
    let mut test = Panel { title: "test loss, after each epoch".into(), ..Panel::default() };
    for run in runs {
        let smooth = run.losses.windows(epoch).zip(epoch..);
        let points = smooth.map(|(w, step)| (step as f64, w.iter().sum::<f64>() / epoch as f64)).collect();
        train.series.push(series(&run.policy, run.policy.clone(), Mark::Line, points));
        let points = (1..).zip(&run.tests).map(|(n, e)| ((n * epoch) as f64, e.loss)).collect();
        test.series.push(series(&run.policy, run.policy.clone(), Mark::Line, points));
    }
    Figure {
        title: "Loss on the UCI digits".into(),
        subtitle: describe(context.task),
        x_label: "step".into(),
        y_label: "cross-entropy (nats)".into(),
        y_log: true,
        y_include: Vec::new(),
        columns: 2,
        size: (430.0, 300.0),
        panels: vec![train, test],
    }
}

/// The damping of every factor, with ε₀ and ε_max.
pub fn epsilon(runs: &[Run], context: &Context) -> Figure {
    let panels = per_factor(runs, context, |run, checks, panel| {
        let line: Vec<(f64, f64)> = checks.iter().map(|c| (c.step as f64, c.factor.epsilon)).collect();
        let refreshed = checks.iter().filter(|c| is_refresh(c)).map(|c| (c.step as f64, c.factor.epsilon));
        panel.series.push(series(&run.policy, run.policy.clone(), Mark::Steps, line));
        let label = format!("{}: refresh", run.policy);
        panel.series.push(series(&run.policy, label, Mark::Rug, refreshed.collect()));
        panel.rules = vec![
            Rule { at: context.epsilon, label: "ε₀".into() },
            Rule { at: context.epsilon_max, label: "ε_max".into() },
        ];
    });
    Figure {
        title: "Damping ε of every Kronecker factor".into(),
        subtitle:
            "Set at each check and held until the next; a refresh (a new eigendecomposition) resets it to ε₀."
                .into(),
        x_label: "step".into(),
        y_label: "ε".into(),
        y_log: true,
        y_include: Vec::new(),
        columns: 3,
        size: (270.0, 150.0),
        panels,
    }
}

/// The proxy of every factor at each check, against τ.
pub fn proxy(runs: &[Run], context: &Context) -> Figure {
    let panels = per_factor(runs, context, |run, checks, panel| {
        let points = |value: fn(&Check) -> f64| checks.iter().map(|c| (c.step as f64, value(c))).collect();
        let proxies =
            series(&run.policy, format!("{}: h", run.policy), Mark::Dots, points(|c| c.factor.proxy));
        panel.series.push(proxies);
        let floor = points(|c| c.factor.noise_floor);
        let mut floor = series(&run.policy, format!("{}: noise floor", run.policy), Mark::Steps, floor);
        (floor.dash, floor.width) = ("1 3", 1.4);
        panel.series.push(floor);
        panel.rules = vec![Rule { at: context.tau, label: "τ".into() }];
    });
    Figure {
        title: "Staleness proxy h of every Kronecker factor".into(),
        subtitle: "Measured at each check, before it is answered; the noise floor is h right after a refresh, with no drift at all.".into(),
        x_label: "step".into(),
        y_label: "proxy h".into(),
        y_log: true,
        y_include: Vec::new(),
        columns: 3,
        size: (270.0, 150.0),
        panels,
    }
}

/// Eigendecompositions done, as a share of those that stale Shampoo would have done by then.
pub fn evd_rate(runs: &[Run], context: &Context) -> Figure {
    let mut panel = Panel { title: "EVDs done / scheduled, since the start".into(), ..Panel::default() };
    for run in runs.iter().filter(|r| r.stats.counters.checks > 0) {
        let rate = |evds: u64, checks: u64| 100.0 * evds as f64 / checks as f64;
        let points = run.tallies.iter().map(|t| (t.step as f64, rate(t.evd_calls, t.checks))).collect();
        let label = format!(
            "{} ({:.0} % in the end)",
            run.policy,
            rate(run.stats.counters.evd_calls, run.stats.counters.checks)
        );
        panel.series.push(series(&run.policy, label, Mark::Line, points));
    }
    Figure {
        title: "Eigendecompositions".into(),
        subtitle: describe(context.task),
        x_label: "step".into(),
        y_label: "EVD rate (%)".into(),
        y_log: false,
        y_include: vec![0.0, 100.0],
        columns: 1,
        size: (640.0, 280.0),
        panels: vec![panel],
    }
}

fn describe(task: &Task) -> String {
    let widths: Vec<String> = task.widths.iter().map(usize::to_string).collect();
    format!(
        "{} ReLU network, batch {}, {} epochs of {} steps, seed {}",
        widths.join("–"),
        task.batch,
        task.epochs,
        task.steps_per_epoch(),
        task.seed
    )
}

fn is_refresh(check: &Check) -> bool {
    check.factor.last_branch.is_refresh()
}

/// One panel for each factor, filled by `draw` from every run that measured a proxy.
fn per_factor(runs: &[Run], context: &Context, draw: impl Fn(&Run, &[&Check], &mut Panel)) -> Vec<Panel> {
    let sensing: Vec<&Run> = runs.iter().filter(|r| r.stats.counters.proxy_calls > 0).collect();
    let key = |c: &Check| (c.factor.id, c.factor.dim);
    let mut keys: Vec<_> = sensing.iter().flat_map(|r| &r.checks).map(key).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter()
        .map(|place| {
            let (FactorId { param, block, axis }, dim) = place;
            let name = context.parameters[param].name();
            let block = if block > 0 { format!(", block {block}") } else { String::new() };
            let title = format!("{name}{block}, axis {axis} ({dim}×{dim})");
            let mut panel = Panel { title, ..Panel::default() };
            for run in &sensing {
                let checks: Vec<&Check> = run.checks.iter().filter(|c| key(c) == place).collect();
                draw(run, &checks, &mut panel);
            }
            panel
        })
        .collect()
}
