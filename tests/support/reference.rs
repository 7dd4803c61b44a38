//! A second optimizer, as naive as it can be, to compare the library with: one block of any order, f64
//! throughout, written from the description of the authors' code and not from the library's.
//!
//! One thing differs from that description: the proxy is α·RC·`exponent_multiplier`/p, so that it bounds the gap
//! of the root that is used; the authors divide by p alone.

use super::matrix::{compose, eigen, norm};
use ndarray::{Array1, Array2};

/// The options that the reference knows, in the library's words.
#[derive(Clone, Debug)]
pub struct Options {
    pub policy: &'static str,
    pub cadence: &'static str,
    pub check_period: u64,
    pub start_step: u64,
    pub bias_correction: bool,
    pub root: f64,
    pub exponent_multiplier: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub epsilon_left: f64,
    pub epsilon_right: f64,
    pub epsilon_max: f64,
    pub tau: f64,
    pub residual_threshold: f64,
    pub grafting: &'static str,
    pub grafting_beta2: f64,
    pub grafting_epsilon: f64,
    pub normalized_grafting: bool,
    pub momentum: f64,
    pub nesterov: bool,
    pub ema_momentum: bool,
    pub nadam: bool,
    pub weight_decay: f64,
    pub decoupled_weight_decay: bool,
    pub lr: f64,
    pub negative_eigenvalues: &'static str,
    pub statistics_period: u64,
    pub keep_inverse_root: bool,
    pub refresh_delay: u64,
}

impl Options {
    /// The text from which the library is configured: the names of the fields and of the options are the same.
    pub fn text(&self) -> String {
        let listed = format!("{self:?}").replace('"', "").replace(": ", "=").replace(',', " ");
        let fields = listed.trim_start_matches("Options {").trim_end_matches('}');
        format!("{fields} epsilon={:?} merge_dims=false", self.epsilon_left)
    }
}

/// One factor, and what happened to it.
#[derive(Clone, Debug)]
pub struct Factor {
    pub statistic: Array2<f64>,
    pub basis: Option<(Array1<f64>, Array2<f64>)>,
    pub inverse_root: Array2<f64>,
    pub epsilon: f64,
    pub proxy: f64,
    pub relative_change: f64,
    pub alpha: f64,
    pub residual: f64,
    /// The statistic of a refresh that was asked for and is not taken yet, and the step of that check.
    pub pending: Option<(u64, Array2<f64>)>,
    pub count: Count,
}

/// The counters of one factor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub checks: u64,
    pub evd_calls: u64,
    pub reuse_calls: u64,
    pub proxy_calls: u64,
    pub epsilon_updates: u64,
    pub cap_refreshes: u64,
    pub residual_calls: u64,
    pub last_refresh: u64,
    pub delayed_checks: u64,
}

/// One block and its state.
pub struct Reference {
    pub options: Options,
    pub dims: Vec<usize>,
    pub factors: Vec<Factor>,
    time: u64,
    /// Gradients in the statistics.
    gradients: i32,
    filter: Vec<f64>,
    moment: Vec<f64>,
    momentum: Vec<f64>,
}

impl Reference {
    pub fn new(options: Options, dims: &[usize]) -> Reference {
        let zero = vec![0.0; dims.iter().product()];
        let none = f64::NAN;
        let factor = |(axis, n): (usize, &usize)| Factor {
            statistic: Array2::zeros((*n, *n)),
            basis: None,
            inverse_root: Array2::zeros((*n, *n)),
            epsilon: base(&options, dims.len(), axis),
            proxy: none,
            relative_change: none,
            alpha: none,
            residual: none,
            pending: None,
            count: Count::default(),
        };
        let preconditioned = options.policy != "grafting_only";
        let factors = dims.iter().enumerate().filter(|_| preconditioned).map(factor).collect();
        let (filter, moment, momentum) = (zero.clone(), zero.clone(), zero);
        Reference { factors, options, dims: dims.to_vec(), time: 0, gradients: 0, filter, moment, momentum }
    }

    /// One step on `w` with gradient `g`.
    pub fn step(&mut self, w: &mut [f64], g: &[f64]) {
        self.time += 1;
        let (o, t) = (self.options.clone(), self.time);
        let mut g = g.to_vec();
        if !o.decoupled_weight_decay {
            g.iter_mut().zip(&*w).for_each(|(g, w)| *g += o.weight_decay * w);
        }
        let (keep, take) = if o.beta2 == 1.0 { (1.0, 1.0) } else { (o.beta2, 1.0 - o.beta2) };
        if t == 1 || t.is_multiple_of(o.statistics_period) {
            self.gradients += 1;
            for (axis, factor) in self.factors.iter_mut().enumerate() {
                let outer = outer_product(&self.dims, axis, &g);
                factor.statistic = &factor.statistic * keep + outer * take;
            }
        }
        let size = length(&g) + 1e-16;
        let unit: Vec<f64> = g.iter().map(|x| x / size).collect();
        let grafted_gradient = if o.normalized_grafting { &unit } else { &g };
        for (v, x) in self.moment.iter_mut().zip(grafted_gradient) {
            *v = match o.grafting {
                "adagrad" => *v + x * x,
                _ => o.grafting_beta2 * *v + (1.0 - o.grafting_beta2) * x * x,
            };
        }
        let moment_correction =
            if o.grafting == "adam" { 1.0 - o.grafting_beta2.powi(t as i32) } else { 1.0 };
        for (axis, factor) in self.factors.iter_mut().enumerate() {
            // A basis is of the statistic at the check that asked for it.
            let ready = factor.pending.take_if(|(since, _)| t == *since + o.refresh_delay);
            if let Some((since, a)) = ready {
                let at = Check { base: base(&o, self.dims.len(), axis), order: self.dims.len(), t: since };
                factor.renew(&o, &a, at.exponent(&o), &at);
            }
        }
        if is_check(&o, t) {
            let correction =
                if o.bias_correction && o.beta2 < 1.0 { 1.0 - o.beta2.powi(self.gradients) } else { 1.0 };
            for (axis, factor) in self.factors.iter_mut().enumerate() {
                let at = Check { base: base(&o, self.dims.len(), axis), order: self.dims.len(), t };
                factor.check(&o, correction, at);
            }
        }
        let filtered = self.filtered(&g);
        let graft = |x: &[f64]| -> Vec<f64> {
            let denominator = |v: &f64| (v / moment_correction).sqrt() + o.grafting_epsilon;
            match o.grafting {
                "sgd" => x.to_vec(),
                _ => x.iter().zip(&self.moment).map(|(x, v)| x / denominator(v)).collect(),
            }
        };
        let mut u = if self.factors.is_empty() || (t < first_check(&o) && o.grafting != "none") {
            graft(&filtered)
        } else {
            let mut u = filtered.clone();
            for (axis, factor) in self.factors.iter().enumerate() {
                u = along(&self.dims, axis, &factor.inverse_root, &u);
            }
            if o.grafting != "none" {
                let source = graft(if o.normalized_grafting { &unit } else { &filtered });
                let factor = length(&source) / (length(&u) + 1e-16);
                u.iter_mut().for_each(|u| *u *= factor);
            }
            u
        };
        if o.decoupled_weight_decay {
            u.iter_mut().zip(&*w).for_each(|(u, w)| *u += o.weight_decay * w);
        }
        if o.momentum != 0.0 {
            let c = if o.ema_momentum { 1.0 - o.momentum } else { 1.0 };
            for (m, u) in self.momentum.iter_mut().zip(&mut u) {
                *m = o.momentum * *m + c * *u;
                *u = if o.nesterov { c * *u + o.momentum * *m } else { *m };
            }
        }
        w.iter_mut().zip(&u).for_each(|(w, u)| *w -= o.lr * u);
    }

    fn filtered(&mut self, g: &[f64]) -> Vec<f64> {
        let o = &self.options;
        if o.beta1 == 0.0 {
            return g.to_vec();
        }
        let correction = if o.bias_correction { 1.0 - o.beta1.powi(self.time as i32) } else { 1.0 };
        let filter = |(m, g): (&mut f64, &f64)| {
            *m = o.beta1 * *m + (1.0 - o.beta1) * g;
            let looked = if o.nadam { o.beta1 * *m + (1.0 - o.beta1) * g } else { *m };
            looked / correction
        };
        self.filter.iter_mut().zip(g).map(filter).collect()
    }
}

/// What a check needs to know besides the options.
struct Check {
    base: f64,
    order: usize,
    t: u64,
}

impl Check {
    fn exponent(&self, o: &Options) -> f64 {
        o.exponent_multiplier / if o.root > 0.0 { o.root } else { 2.0 * self.order as f64 }
    }
}

impl Factor {
    fn check(&mut self, o: &Options, correction: f64, at: Check) {
        let a = &self.statistic / correction;
        let exponent = at.exponent(o);
        self.count.checks += 1;
        let Some((d, q)) = self.basis.clone().filter(|_| o.policy != "stale") else {
            return self.refresh(o, &a, exponent, &at);
        };
        let current = at.base.max(self.epsilon);
        let h = q.t().dot(&a).dot(&q);
        if o.policy == "diagonal_residual" {
            let diagonal = h.diag().mapv(|x| x.max(0.0));
            self.residual = norm(&(&h - &Array2::from_diag(&diagonal))) / (norm(&h) + 1e-25);
            self.count.residual_calls += 1;
            if self.residual > o.residual_threshold {
                if o.refresh_delay > 0 {
                    // The stale basis serves on, with the spectrum that fits it.
                    self.basis = Some((diagonal, q));
                    self.damp(at.base, exponent);
                }
                return self.refresh(o, &a, exponent, &at);
            }
            self.basis = Some((diagonal, q));
            return self.reuse(at.base, exponent);
        }
        let drift = &h - &Array2::from_diag(&d);
        let s = d.mapv(|d| (d + current).sqrt());
        let scaled = Array2::from_shape_fn(drift.dim(), |(i, j)| drift[(i, j)] / (s[i] * s[j]));
        self.relative_change = norm(&scaled);
        let e = d.mapv(|d| (d + current).powf(-exponent));
        self.alpha = e.fold(0.0f64, |most, e| most.max(*e)) / (e.dot(&e).sqrt() + 1e-25);
        self.proxy = self.relative_change * self.alpha * exponent;
        self.count.proxy_calls += 1;
        let next = at.base.max(current * self.proxy / o.tau);
        let changes = u64::from(next != current);
        match o.policy {
            "foam_fixed_epsilon" if self.proxy > o.tau => self.refresh(o, &a, exponent, &at),
            "foam_fixed_epsilon" => self.reuse(at.base, exponent),
            "foam" => {
                self.count.epsilon_updates += changes;
                if next > o.epsilon_max {
                    self.count.cap_refreshes += 1;
                    return self.refresh(o, &a, exponent, &at);
                }
                self.reuse(next, exponent);
            }
            "foam_no_refresh" => {
                self.count.epsilon_updates += changes;
                self.reuse(next.min(o.epsilon_max), exponent);
            }
            other => panic!("the reference has no policy {other}"),
        }
    }

    /// A check asks for a new basis: at once, or later if there is a stale one.
    fn refresh(&mut self, o: &Options, a: &Array2<f64>, exponent: f64, at: &Check) {
        if o.refresh_delay == 0 || self.basis.is_none() {
            return self.renew(o, a, exponent, at);
        }
        self.count.delayed_checks += 1;
        match self.pending {
            Some(_) => self.count.reuse_calls += 1,
            None => self.pending = Some((at.t, a.clone())),
        }
    }

    fn renew(&mut self, o: &Options, a: &Array2<f64>, exponent: f64, at: &Check) {
        let (mut d, q) = eigen(a);
        if o.negative_eigenvalues == "shift" {
            let lowest = d.fold(0.0f64, |least, d| least.min(*d));
            d -= lowest;
        }
        d.mapv_inplace(|d| d.max(0.0));
        self.basis = Some((d, q));
        self.count.evd_calls += 1;
        self.count.last_refresh = at.t;
        self.damp(at.base, exponent);
    }

    fn reuse(&mut self, epsilon: f64, exponent: f64) {
        self.count.reuse_calls += 1;
        self.damp(epsilon, exponent);
    }

    fn damp(&mut self, epsilon: f64, exponent: f64) {
        let (d, q) = self.basis.as_ref().expect("there is a basis");
        self.epsilon = epsilon;
        self.inverse_root = compose(q, &d.mapv(|d| (d + epsilon).powf(-exponent)));
    }
}

fn base(o: &Options, order: usize, axis: usize) -> f64 {
    if order == 1 || axis == 0 { o.epsilon_left } else { o.epsilon_right }
}

fn first_check(o: &Options) -> u64 {
    match (o.cadence, o.start_step) {
        ("paper", _) => 1,
        (_, 0) => o.check_period,
        (_, start) => start,
    }
}

fn is_check(o: &Options, t: u64) -> bool {
    let first = first_check(o);
    match o.cadence {
        "paper" => (t - 1).is_multiple_of(o.check_period),
        _ => t == first || (t > first && t.is_multiple_of(o.check_period)),
    }
}

fn length(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// A row for every index along the axis, a column for every choice of the others.
fn unfolded(dims: &[usize], axis: usize, x: &[f64]) -> Array2<f64> {
    let (n, inner) = (dims[axis], dims[axis + 1..].iter().product::<usize>());
    let place = |i: usize, other: usize| (other / inner * n + i) * inner + other % inner;
    Array2::from_shape_fn((n, x.len() / n), |(i, other)| x[place(i, other)])
}

/// Σ over all other indices of x[.., i, ..]·x[.., j, ..].
fn outer_product(dims: &[usize], axis: usize, x: &[f64]) -> Array2<f64> {
    let rows = unfolded(dims, axis, x);
    rows.dot(&rows.t())
}

/// y[.., i, ..] = Σ_j p[i, j]·x[.., j, ..].
fn along(dims: &[usize], axis: usize, p: &Array2<f64>, x: &[f64]) -> Vec<f64> {
    let (n, inner) = (dims[axis], dims[axis + 1..].iter().product::<usize>());
    let y = p.dot(&unfolded(dims, axis, x));
    let entry = |at: usize| y[(at / inner % n, at / (inner * n) * inner + at % inner)];
    (0..x.len()).map(entry).collect()
}
