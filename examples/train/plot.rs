//! A small SVG writer for line charts: a figure is a grid of panels under a title and one legend.

use crate::scale::{Scale, ticks};
use std::fmt::Write as _;

/// How a series is drawn.
#[derive(Clone, Copy, PartialEq)]
pub enum Mark {
    /// A line from point to point.
    Line,
    /// A line that holds each value until the next point.
    Steps,
    /// Small dots.
    Dots,
    /// Ticks in a lane of their own above the panel: when, not how much.
    Rug,
}

/// Points with one look. Series of the same label share one entry of the legend.
pub struct Series {
    pub label: String,
    pub colour: &'static str,
    /// SVG's `stroke-dasharray`; empty for a solid line.
    pub dash: &'static str,
    /// Width of a line.
    pub width: f64,
    pub mark: Mark,
    pub points: Vec<(f64, f64)>,
}

/// A horizontal line at a value that matters, named in the right margin.
pub struct Rule {
    pub at: f64,
    pub label: String,
}

/// One chart.
#[derive(Default)]
pub struct Panel {
    pub title: String,
    pub series: Vec<Series>,
    pub rules: Vec<Rule>,
}

/// A title, a legend, and panels that share both axes' kinds and labels.
pub struct Figure {
    pub title: String,
    pub subtitle: String,
    pub x_label: String,
    pub y_label: String,
    pub y_log: bool,
    /// Values that the y axis includes whatever the data.
    pub y_include: Vec<f64>,
    pub columns: usize,
    /// Size of a panel's drawing area.
    pub size: (f64, f64),
    pub panels: Vec<Panel>,
}

const LEFT: f64 = 62.0;
const RIGHT: f64 = 14.0;
const RULE_NAME: f64 = 34.0;
const ABOVE: f64 = 26.0;
const LANE: f64 = 7.0;
const BELOW: f64 = 46.0;
const EDGE: f64 = 16.0;
const TEXT: f64 = 12.0;
const LEGEND_ROW: f64 = 20.0;

impl Figure {
    /// The figure as an SVG document.
    pub fn svg(&self) -> String {
        let columns = self.columns.min(self.panels.len()).max(1);
        let rows = self.panels.len().div_ceil(columns);
        let lanes = self.lanes();
        let above = ABOVE + LANE * lanes.len() as f64;
        let right = if self.panels.iter().all(|p| p.rules.is_empty()) { RIGHT } else { RIGHT + RULE_NAME };
        let (cell_w, cell_h) = (LEFT + self.size.0 + right, above + self.size.1 + BELOW);
        let width = 2.0 * EDGE + columns as f64 * cell_w;
        let legend = self.legend(width - 2.0 * EDGE);
        let head = EDGE + 48.0 + LEGEND_ROW * legend.len() as f64 + 6.0;
        let height = head + rows as f64 * cell_h + EDGE / 2.0;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\" font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\" font-size=\"{TEXT}\" \
             fill=\"#333\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        text(&mut out, (EDGE, EDGE + 14.0), "font-size=\"17\" font-weight=\"bold\"", &self.title);
        text(&mut out, (EDGE, EDGE + 34.0), "fill=\"#666\"", &self.subtitle);
        for (row, entries) in legend.iter().enumerate() {
            let y = EDGE + 56.0 + LEGEND_ROW * row as f64;
            for (x, series) in entries {
                swatch(&mut out, EDGE + x, y, series);
                text(&mut out, (EDGE + x + 34.0, y + 4.0), "", &series.label);
            }
        }
        let (x_scale, y_scale) = self.scales();
        for (index, panel) in self.panels.iter().enumerate() {
            let (column, row) = (index % columns, index / columns);
            let origin = (EDGE + column as f64 * cell_w + LEFT, head + row as f64 * cell_h + above);
            let frame = Frame { origin, size: self.size, x: &x_scale, y: &y_scale, lanes: &lanes };
            frame.axes(&mut out, panel);
            // The labels of the axes stand at the grid's outer panels only.
            if index + columns >= self.panels.len() {
                let at = (origin.0 + self.size.0 / 2.0, origin.1 + self.size.1 + 36.0);
                text(&mut out, at, "text-anchor=\"middle\"", &self.x_label);
            }
            if column == 0 {
                let (x, y) = (origin.0 - 50.0, origin.1 + self.size.1 / 2.0);
                let turn = format!("text-anchor=\"middle\" transform=\"rotate(-90 {x:.1} {y:.1})\"");
                text(&mut out, (x, y), &turn, &self.y_label);
            }
            panel.series.iter().for_each(|series| frame.series(&mut out, series));
        }
        out.push_str("</svg>\n");
        out
    }

    /// Labels of the rugs, in the order of their lanes.
    fn lanes(&self) -> Vec<&str> {
        let mut lanes: Vec<&str> = Vec::new();
        for series in self.panels.iter().flat_map(|p| &p.series).filter(|s| s.mark == Mark::Rug) {
            if !lanes.contains(&series.label.as_str()) {
                lanes.push(&series.label);
            }
        }
        lanes
    }

    /// Scales that hold every point and rule of every panel, so that panels can be compared.
    fn scales(&self) -> (Scale, Scale) {
        let points = || self.panels.iter().flat_map(|p| &p.series).flat_map(|s| &s.points);
        let rules = self.panels.iter().flat_map(|p| &p.rules).map(|r| r.at);
        let x = Scale::fit(points().map(|p| p.0).chain([0.0]), false);
        let y =
            Scale::fit(points().map(|p| p.1).chain(rules).chain(self.y_include.iter().copied()), self.y_log);
        (x, y)
    }

    /// The legend's rows: each entry with its place in the row.
    fn legend(&self, width: f64) -> Vec<Vec<(f64, &Series)>> {
        let mut rows: Vec<Vec<(f64, &Series)>> = vec![Vec::new()];
        let mut x = 0.0;
        let mut seen: Vec<&str> = Vec::new();
        for series in self.panels.iter().flat_map(|p| &p.series) {
            if series.label.is_empty() || seen.contains(&series.label.as_str()) {
                continue;
            }
            seen.push(&series.label);
            let room = 34.0 + 0.58 * TEXT * series.label.chars().count() as f64 + 18.0;
            if x > 0.0 && x + room > width {
                rows.push(Vec::new());
                x = 0.0;
            }
            // There is always a last row.
            if let Some(row) = rows.last_mut() {
                row.push((x, series));
            }
            x += room;
        }
        rows
    }
}

/// A panel's drawing area and its scales.
struct Frame<'a> {
    origin: (f64, f64),
    size: (f64, f64),
    x: &'a Scale,
    y: &'a Scale,
    lanes: &'a [&'a str],
}

impl Frame<'_> {
    fn place(&self, point: (f64, f64)) -> (f64, f64) {
        let (x, y) = (self.x.fraction(point.0), self.y.fraction(point.1));
        (self.origin.0 + x * self.size.0, self.origin.1 + (1.0 - y) * self.size.1)
    }

    fn axes(&self, out: &mut String, panel: &Panel) {
        let ((left, top), (width, height)) = (self.origin, self.size);
        let (right, bottom) = (left + width, top + height);
        let title = top - 8.0 - LANE * self.lanes.len() as f64;
        text(out, (left, title), "font-weight=\"bold\"", &panel.title);
        for (value, label) in ticks(self.y, (height / 30.0) as usize) {
            let y = self.place((0.0, value)).1;
            line(out, (left, y), (right, y), "stroke=\"#e4e4e4\"");
            text(out, (left - 7.0, y + 4.0), "text-anchor=\"end\"", &label);
        }
        for (value, label) in ticks(self.x, (width / 65.0) as usize) {
            let x = self.place((value, self.y.low)).0;
            line(out, (x, bottom), (x, bottom + 4.0), "stroke=\"#333\"");
            text(out, (x, bottom + 18.0), "text-anchor=\"middle\"", &label);
        }
        line(out, (left, bottom), (right, bottom), "stroke=\"#333\"");
        line(out, (left, top), (left, bottom), "stroke=\"#333\"");
        let mut lowest = f64::INFINITY;
        let mut rules: Vec<&Rule> = panel.rules.iter().collect();
        rules.sort_by(|a, b| a.at.total_cmp(&b.at));
        for rule in rules {
            let y = self.place((0.0, rule.at)).1;
            line(out, (left, y), (right, y), "stroke=\"#555\" stroke-dasharray=\"2 3\"");
            // Names of neighbouring rules are pushed apart.
            let at = (y + 4.0).min(lowest - TEXT);
            lowest = at;
            text(out, (right + 5.0, at), "fill=\"#555\"", &rule.label);
        }
    }

    fn series(&self, out: &mut String, series: &Series) {
        let places: Vec<(f64, f64)> = series
            .points
            .iter()
            .filter(|p| p.0.is_finite() && p.1.is_finite() && (!self.y.log || p.1 > 0.0))
            .map(|p| self.place(*p))
            .collect();
        match series.mark {
            Mark::Line | Mark::Steps => path(out, &places, series),
            Mark::Dots => places.iter().for_each(|p| dot(out, *p, series.colour)),
            Mark::Rug => {
                let lane = self.lanes.iter().position(|l| *l == series.label).unwrap_or(0);
                let y = self.origin.1 - 2.0 - LANE * (self.lanes.len() - lane) as f64;
                places.iter().for_each(|p| rug(out, (p.0, y), series.colour));
            }
        }
    }
}

fn path(out: &mut String, places: &[(f64, f64)], series: &Series) {
    let mut before: Option<(f64, f64)> = None;
    let mut way = String::new();
    for (x, y) in places {
        let _ = match before {
            None => write!(way, "M{x:.1} {y:.1}"),
            Some(_) if series.mark == Mark::Steps => write!(way, "H{x:.1}V{y:.1}"),
            Some(_) => write!(way, "L{x:.1} {y:.1}"),
        };
        before = Some((*x, *y));
    }
    if before.is_some() {
        let _ = writeln!(
            out,
            "<path d=\"{way}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-linejoin=\"round\" \
             stroke-dasharray=\"{}\"/>",
            series.colour,
            series.width,
            if series.dash.is_empty() { "none" } else { series.dash }
        );
    }
}

fn dot(out: &mut String, (x, y): (f64, f64), colour: &str) {
    let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2\" fill=\"{colour}\"/>");
}

fn rug(out: &mut String, (x, y): (f64, f64), colour: &str) {
    line(out, (x, y), (x, y + LANE - 1.5), &format!("stroke=\"{colour}\" stroke-width=\"1.8\""));
}

/// The legend's sample of a series, 28 wide.
fn swatch(out: &mut String, x: f64, y: f64, series: &Series) {
    match series.mark {
        Mark::Line | Mark::Steps => path(out, &[(x, y), (x + 28.0, y)], series),
        Mark::Dots => [4.0, 14.0, 24.0].into_iter().for_each(|dx| dot(out, (x + dx, y), series.colour)),
        Mark::Rug => {
            [8.0, 14.0, 20.0].into_iter().for_each(|dx| rug(out, (x + dx, y - 3.0), series.colour));
        }
    }
}

fn line(out: &mut String, from: (f64, f64), to: (f64, f64), look: &str) {
    let _ = writeln!(
        out,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" {look}/>",
        from.0, from.1, to.0, to.1
    );
}

fn text(out: &mut String, (x, y): (f64, f64), look: &str, words: &str) {
    let escaped = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" {look}>{escaped}</text>");
}
