//! One golden file, read and checked as a whole: whatever is missing shows here, not in the middle of a run.

use super::hyperparameters::Setup;
use super::{Finals, Precision};
use foam::FactorId;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::path::Path;

/// Columns of a factor's `series`.
pub const SERIES: [&str; 4] = ["eps", "h", "rc", "alpha"];
/// Columns of a factor's `counters`.
pub const COUNTERS: [&str; 9] =
    ["check", "evd", "proxy", "reuse", "damp", "cap", "resid", "last_refresh", "branch"];

/// A trace: what was fed to the reference, and what it did.
pub struct Case {
    /// Its name.
    pub name: String,
    /// T, the number of steps.
    pub steps: usize,
    /// The configuration of the run.
    pub setup: Setup,
    /// The parameters, all in one optimizer.
    pub params: Vec<Param>,
    /// Every factor, ordered by parameter, block and axis.
    pub factors: Vec<Factor>,
    /// The steps, from 1, after which weights are stored.
    pub w_steps: Vec<usize>,
    /// False where the reference counts a change of epsilon that is only its own rounding of it to float32.
    pub damp_is_comparable: bool,
    tolerances: [Tolerance; 2],
}

/// A parameter's trace.
pub struct Param {
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its own root, or 0.
    pub root: f64,
    /// The weights before the first step.
    pub start: Vec<f64>,
    /// By precision: the weights after the last steps of `w_steps`, one row per step.
    pub weights: [Vec<Vec<f64>>; 2],
    gradients: Vec<f64>,
}

/// A factor's trace.
pub struct Factor {
    /// Its name in the file, for example "p0.b1.f0".
    pub label: String,
    /// Parameter, block, axis.
    pub place: FactorId,
    /// Its side.
    pub dim: usize,
    /// p of its inverse root.
    pub root: f64,
    /// Its base damping.
    pub epsilon: f64,
    /// [`COUNTERS`] after each step.
    pub counters: Vec<f64>,
    /// By precision: [`SERIES`] after each step.
    pub series: [Vec<f64>; 2],
    /// By precision: the matrices after the last step; those the file does not have are empty.
    pub finals: [Finals; 2],
}

/// How far an implementation without the reference's float32 roundings may be from it, as the file states.
#[derive(Clone, Copy)]
pub struct Tolerance {
    /// Of weights.
    pub weights: f64,
    /// Of the series.
    pub series: f64,
    /// Of the inverse root.
    pub inverse_root: f64,
    /// Of the statistic.
    pub statistic: f64,
}

impl Param {
    /// The gradient of step `t`, from 1.
    pub fn gradient(&self, t: usize) -> &[f64] {
        let size = self.start.len();
        &self.gradients[(t - 1) * size..t * size]
    }
}

impl Case {
    /// Reads a file; the error names it and what is wrong with it.
    pub fn load(path: &Path) -> Result<Case, String> {
        let named = |why: String| format!("{}: {why}", path.display());
        let bytes = std::fs::read(path).map_err(|why| named(format!("cannot be read: {why}")))?;
        Case::parse(&bytes).map_err(|why| named(format!("is not a golden trace: {why}")))
    }

    /// The tolerances of a run in `precision`.
    pub fn tolerance(&self, precision: Precision) -> Tolerance {
        self.tolerances[precision as usize]
    }

    fn parse(bytes: &[u8]) -> Result<Case, String> {
        let source = Source::open(bytes)?;
        let meta = &source.meta;
        if meta["schema"] != 1 {
            return Err(format!("schema {}; expected 1", meta["schema"]));
        }
        let hp = meta["hp"].as_object().ok_or("no hyperparameters")?;
        let setup = match meta["source"].as_str() {
            Some("official") => Setup::official(hp),
            Some("paper_oracle") => Setup::paper(hp),
            Some("soap") => Setup::soap(hp),
            _ => Err(format!("source {}; expected official, paper_oracle or soap", meta["source"])),
        }?;
        let steps = whole(&meta["T"], "T")?;
        if setup.preset == "soap" {
            return Case::parse_soap(&source, setup, steps);
        }
        let blocks = meta["blocks"].as_array().ok_or("no list of blocks")?;
        let w_steps: Vec<usize> = source.any("w_steps")?.1.iter().map(|t| *t as usize).collect();
        if w_steps.is_empty() || w_steps.iter().any(|t| !(1..=steps).contains(t)) {
            return Err(format!("w_steps are not within 1..={steps}"));
        }
        let shapes = meta["shapes"].as_array().ok_or("no list of shapes")?;
        let params = shapes.iter().enumerate().map(|(i, shape)| {
            let order = blocks.iter().find(|b| b["param"] == i).and_then(|b| b["dims"].as_array());
            let order = order.ok_or_else(|| format!("parameter {i} has no block"))?.len();
            source.param(i, &sizes(shape, "shapes")?, steps, w_steps.len(), setup.root_of_order(order))
        });
        let params = params.collect::<Result<Vec<_>, String>>()?;
        let mut factors = Vec::new();
        for block in blocks {
            source.block(block, steps, &mut factors)?;
        }
        let stated = &meta["tolerance"];
        let mut tolerances = [tolerance(&stated["f32"])?, tolerance(&stated["f64_clean"])?];
        // None of the reference's float32 roundings reaches the statistic, so in double precision it must be as
        // near as an implementation that has them all (the paper's cases have none).
        let double = &mut tolerances[Precision::F64 as usize];
        double.statistic = stated["f64_with_f32_scalar_quirks"]["inv"].as_f64().unwrap_or(double.statistic);
        Ok(Case {
            name: meta["name"].as_str().ok_or("no name")?.to_string(),
            steps,
            params,
            factors,
            w_steps,
            // Absent in the paper's cases, which round nothing to float32.
            damp_is_comparable: meta["damp_counter_equal_without_f32_rounding"] != false,
            tolerances,
            setup,
        })
    }
}

impl Case {
    /// A trace of SOAP holds the weights after every step, and nothing about its factors.
    fn parse_soap(source: &Source, setup: Setup, steps: usize) -> Result<Case, String> {
        let meta = &source.meta;
        let shapes = meta["shapes"].as_array().ok_or("no list of shapes")?;
        let params = shapes.iter().enumerate();
        let params = params.map(|(i, shape)| source.param(i, &sizes(shape, "shapes")?, steps, steps, 0.0));
        let tolerance = |precision: &str| -> Result<Tolerance, String> {
            let weights = real(&meta["tolerance"][precision]["W"], "tolerance.W")?;
            Ok(Tolerance { weights, series: 0.0, inverse_root: 0.0, statistic: 0.0 })
        };
        Ok(Case {
            name: meta["name"].as_str().ok_or("no name")?.to_string(),
            steps,
            params: params.collect::<Result<Vec<_>, String>>()?,
            factors: Vec::new(),
            w_steps: (1..=steps).collect(),
            damp_is_comparable: true,
            tolerances: [tolerance("f32")?, tolerance("f64")?],
            setup,
        })
    }
}

/// The tensors of a file and its description.
struct Source<'a> {
    tensors: SafeTensors<'a>,
    meta: Value,
}

impl<'a> Source<'a> {
    fn open(bytes: &'a [u8]) -> Result<Self, String> {
        let tensors = SafeTensors::deserialize(bytes).map_err(|why| format!("not safetensors ({why})"))?;
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(|why| why.to_string())?;
        let meta = header.metadata().as_ref().and_then(|m| m.get("meta")).ok_or("no metadata 'meta'")?;
        let meta =
            serde_json::from_str(meta).map_err(|why| format!("metadata 'meta' is not JSON ({why})"))?;
        Ok(Source { tensors, meta })
    }

    fn has(&self, name: &str) -> bool {
        self.tensors.tensor(name).is_ok()
    }

    /// A tensor of any shape; every stored type widens to f64 without loss.
    fn any(&self, name: &str) -> Result<(Vec<usize>, Vec<f64>), String> {
        let view = self.tensors.tensor(name).map_err(|_| format!("no tensor '{name}'"))?;
        let data = view.data();
        let values = match view.dtype() {
            Dtype::F16 => words(data, |b| half::f16::from_le_bytes(b).to_f64()),
            Dtype::F32 => words(data, |b| f32::from_le_bytes(b).into()),
            Dtype::F64 => words(data, f64::from_le_bytes),
            Dtype::I32 => words(data, |b| i32::from_le_bytes(b).into()),
            Dtype::I64 => words(data, |b| i64::from_le_bytes(b) as f64),
            other => return Err(format!("tensor '{name}' has type {other:?}")),
        };
        Ok((view.shape().to_vec(), values))
    }

    /// A tensor of a known shape.
    fn shaped(&self, name: &str, shape: &[usize]) -> Result<Vec<f64>, String> {
        let (found, values) = self.any(name)?;
        if found != shape {
            return Err(format!("tensor '{name}' has shape {found:?}; expected {shape:?}"));
        }
        Ok(values)
    }

    /// `stem.f32` or `stem.f64`. Where the file has no float32 data, a float32 run is held against the float64
    /// data: its tolerance covers the difference between the reference's own two runs ten times.
    fn final_of(&self, stem: &str, precision: Precision, shape: &[usize]) -> Result<Vec<f64>, String> {
        let own = format!("{stem}.{}", precision.name());
        self.shaped(&if self.has(&own) { own } else { format!("{stem}.f64") }, shape)
    }

    fn param(
        &self,
        i: usize,
        shape: &[usize],
        steps: usize,
        stored: usize,
        root: f64,
    ) -> Result<Param, String> {
        let with = |rows: usize| [&[rows], shape].concat();
        let mut weights = [Vec::new(), Vec::new()];
        for precision in Precision::ALL {
            let name = format!("p{i}.W.{}", precision.name());
            let (found, values) = self.any(&name)?;
            let rows = found.first().copied().unwrap_or(0);
            // The large block case stores its last step only in float32.
            if rows == 0 || rows > stored || found != with(rows) {
                return Err(format!("tensor '{name}' has shape {found:?}; expected {:?}", with(stored)));
            }
            let size = values.len() / rows;
            weights[precision as usize] =
                (0..rows).map(|r| values[r * size..(r + 1) * size].to_vec()).collect();
        }
        Ok(Param {
            shape: shape.to_vec(),
            root,
            start: self.shaped(&format!("p{i}.W0"), shape)?,
            gradients: self.shaped(&format!("p{i}.G"), &with(steps))?,
            weights,
        })
    }

    fn block(&self, block: &Value, steps: usize, factors: &mut Vec<Factor>) -> Result<(), String> {
        let id = block["id"].as_str().ok_or("a block without an id")?;
        let number = id.split_once(".b").and_then(|(_, b)| b.parse().ok());
        let block_number: usize = number.ok_or_else(|| format!("block id '{id}'; expected p<i>.b<j>"))?;
        let param = whole(&block["param"], "blocks.param")?;
        for (axis, dim) in sizes(&block["dims"], "blocks.dims")?.into_iter().enumerate() {
            let label = format!("{id}.f{axis}");
            let series =
                |p: Precision| self.shaped(&format!("{label}.series.{}", p.name()), &[steps, SERIES.len()]);
            let finals = |p: Precision| -> Result<Finals, String> {
                let square = |what: &str| self.final_of(&format!("{label}.{what}"), p, &[dim, dim]);
                let has_stale = self.has(&format!("{label}.stale.f64"));
                Ok(Finals {
                    statistic: square("factor")?,
                    inverse_root: square("inv")?,
                    stale: if has_stale { square("stale")? } else { Vec::new() },
                    spectrum: self.final_of(&format!("{label}.eigvals"), p, &[dim])?,
                })
            };
            factors.push(Factor {
                place: FactorId { param, block: block_number, axis },
                dim,
                root: real(&block["root"], "blocks.root")?,
                epsilon: real(&block["eps0"][axis], "blocks.eps0")?,
                counters: self.shaped(&format!("{label}.counters"), &[steps, COUNTERS.len()])?,
                series: [series(Precision::F32)?, series(Precision::F64)?],
                finals: [finals(Precision::F32)?, finals(Precision::F64)?],
                label,
            });
        }
        Ok(())
    }
}

fn words<const N: usize>(data: &[u8], value: impl Fn([u8; N]) -> f64) -> Vec<f64> {
    data.as_chunks().0.iter().map(|word| value(*word)).collect()
}

fn real(value: &Value, what: &str) -> Result<f64, String> {
    value.as_f64().ok_or_else(|| format!("{what} is {value}; expected a number"))
}

fn whole(value: &Value, what: &str) -> Result<usize, String> {
    let number = value.as_u64().and_then(|n| usize::try_from(n).ok());
    number.ok_or_else(|| format!("{what} is {value}; expected a whole number"))
}

fn sizes(value: &Value, what: &str) -> Result<Vec<usize>, String> {
    let list = value.as_array().ok_or_else(|| format!("{what} is {value}; expected a list"))?;
    list.iter().map(|size| whole(size, what)).collect()
}

/// Where the file states no tolerance for the inverse root, it gets the larger of the two others: like the
/// weights and the series it is a smooth function of the statistic, so the same roundings reach it at the same
/// size (an independent implementation, run on every file, was off by at most 0.82 of that).
fn tolerance(value: &Value) -> Result<Tolerance, String> {
    let (weights, series) = (real(&value["W"], "tolerance.W")?, real(&value["series"], "tolerance.series")?);
    let inverse_root = value["inv"].as_f64().unwrap_or(weights.max(series));
    Ok(Tolerance { weights, series, inverse_root, statistic: inverse_root })
}
