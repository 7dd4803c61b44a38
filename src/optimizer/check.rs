//! The check: sense the due factors, decide about each, refresh or re-damp. The only place where the
//! policies meet the device.

use super::stats::Verb;
use super::{Level, Optimizer};
use crate::backend::{RedampOrder, RefreshOrder, Refreshed, Rung, Search, SenseOrder, Tensors};
use crate::config::Policy;
use crate::error::Result;
use crate::preconditioner::policy::{self, Action, Sensed};
use crate::preconditioner::{Branch, bound, cadence};

impl Optimizer {
    /// Checks every factor of the parameters whose clocks say so.
    pub(super) fn check(&mut self, tensors: &Tensors) -> Result<()> {
        let due = |(index, grad): (usize, &Option<_>)| {
            grad.is_some() && cadence::is_check(&self.config, self.clocks[index].step)
        };
        if !tensors.grads.iter().enumerate().any(due) {
            return Ok(());
        }
        let due: Vec<usize> = (0..tensors.grads.len()).filter(|i| due((*i, &tensors.grads[*i]))).collect();
        self.check_params(&due)
    }

    /// Checks every factor of the parameters `due`.
    pub(super) fn check_params(&mut self, due: &[usize]) -> Result<()> {
        if due.is_empty() {
            return Ok(());
        }
        let (mut sense, mut refresh, mut redamp) = (Vec::new(), Vec::new(), Vec::new());
        for &index in due {
            let t = self.clocks[index].step;
            for factor in self.plan.params[index].factors.clone() {
                self.begin_check(factor, t, &mut sense, &mut refresh);
            }
        }
        // One factor a thread: the large ones first.
        let side = |factor: usize| std::cmp::Reverse(self.plan.factors[factor].dim);
        sense.sort_by_key(|o: &SenseOrder| side(o.factor));
        let mut sensed = vec![Sensed::default(); sense.len()];
        self.timed(Verb::Sense, |this| this.backend.sense(&sense, &mut sensed))?;
        for (order, sensed) in sense.iter().zip(&sensed) {
            self.decide(order, sensed, &mut refresh, &mut redamp);
        }
        let side = |factor: usize| std::cmp::Reverse(self.plan.factors[factor].dim);
        refresh.sort_by_key(|o: &RefreshOrder| side(o.factor));
        let mut refreshed = vec![Refreshed::default(); refresh.len()];
        self.timed(Verb::Refresh, |this| this.backend.refresh(&refresh, &mut refreshed))?;
        for (order, refreshed) in refresh.iter().zip(&refreshed) {
            let epsilon = self.adopt(order, refreshed);
            redamp.push(RedampOrder { factor: order.factor, epsilon, adopt_diagonal: false });
        }
        let side = |factor: usize| std::cmp::Reverse(self.plan.factors[factor].dim);
        redamp.sort_by_key(|o: &RedampOrder| side(o.factor));
        self.timed(Verb::Redamp, |this| this.backend.redamp(&redamp))
    }

    /// The clock of a factor's parameter.
    fn time_of(&self, factor: usize) -> super::Clock {
        self.clocks[self.plan.blocks[self.plan.factors[factor].block].param]
    }

    /// The stored statistic times this is what the paper (or the authors' code) decomposes.
    pub(super) fn statistic_scale(&self, factor: usize) -> f64 {
        let clock = self.time_of(factor);
        clock.weight / cadence::bias_correction(self.config.bias_correction, self.config.beta2, clock.step)
    }

    fn begin_check(
        &mut self,
        factor: usize,
        t: u64,
        sense: &mut Vec<SenseOrder>,
        refresh: &mut Vec<RefreshOrder>,
    ) {
        let counters = &mut self.records[factor].counters;
        counters.checks += 1;
        counters.last_check = t as i64;
        let unconditional = !policy::senses(self.config.policy);
        if unconditional || counters.has_basis == 0 {
            counters.branch = if unconditional { Branch::EvdStale } else { Branch::EvdFirst } as i64;
            return refresh.push(self.refresh_order(factor));
        }
        let base = self.plan.factors[factor].epsilon;
        let search = (self.config.policy == Policy::FoamCertified).then(|| Search {
            low: base,
            high: self.config.epsilon_max,
            target: self.config.tau / self.growth(factor),
        });
        let epsilon = base.max(self.records[factor].gauges.epsilon);
        sense.push(SenseOrder { factor, scale: self.statistic_scale(factor), epsilon, search });
    }

    fn refresh_order(&self, factor: usize) -> RefreshOrder {
        RefreshOrder {
            factor,
            scale: self.statistic_scale(factor),
            epsilon: self.plan.factors[factor].epsilon,
            has_basis: self.records[factor].counters.has_basis != 0,
            fault: self.fault(),
        }
    }

    /// g(m) of the proven bound, for a factor at its current time.
    fn growth(&self, factor: usize) -> f64 {
        let config = &self.config;
        let refreshed = self.records[factor].counters.last_refresh as u64;
        let t = self.time_of(factor).step;
        let m = bound::largest_loss(config.beta2, config.bias_correction, refreshed, t);
        bound::growth(self.plan.factors[factor].exponent, m)
    }

    fn decide(
        &mut self,
        order: &SenseOrder,
        sensed: &Sensed,
        refresh: &mut Vec<RefreshOrder>,
        redamp: &mut Vec<RedampOrder>,
    ) {
        let factor = order.factor;
        let (growth, plan) = (self.growth(factor), &self.plan.factors[factor]);
        let record = &mut self.records[factor];
        let before = record.gauges.epsilon;
        match policy::decide(&self.config, record, sensed, plan.exponent, growth, plan.epsilon) {
            Action::Refresh => refresh.push(self.refresh_order(factor)),
            // The same basis, spectrum and ε give the same inverse root: it is kept.
            Action::Reuse { epsilon, adopt_diagonal: false } if epsilon == before => {}
            Action::Reuse { epsilon, adopt_diagonal } => {
                redamp.push(RedampOrder { factor, epsilon, adopt_diagonal });
            }
        }
    }

    /// Writes the outcome of a refresh into the factor's record; gives the ε to use.
    fn adopt(&mut self, order: &RefreshOrder, refreshed: &Refreshed) -> f64 {
        let factor = order.factor;
        let t = self.time_of(factor).step as i64;
        let base = self.plan.factors[factor].epsilon;
        let record = &mut self.records[factor];
        let (gauges, counters) = (&mut record.gauges, &mut record.counters);
        counters.failed_evds += i64::from(refreshed.rung != Rung::Chosen);
        match refreshed.rung {
            Rung::Chosen => {}
            Rung::Double => counters.fallback_double += 1,
            Rung::Svd => counters.fallback_svd += 1,
            Rung::Stale => counters.fallback_stale += 1,
        }
        let given_up = refreshed.rung == Rung::Stale;
        if given_up && order.has_basis {
            counters.reuse_calls += 1;
        } else {
            counters.evd_calls += i64::from(!given_up);
            counters.last_refresh = t;
            counters.has_basis = 1;
            gauges.noise_floor = refreshed.noise_floor;
            gauges.eigenvalue_min = refreshed.eigenvalue_min;
            gauges.eigenvalue_max = refreshed.eigenvalue_max;
        }
        gauges.epsilon = if given_up { base.max(self.config.epsilon_max) } else { base };
        let epsilon = gauges.epsilon;
        self.remark(factor, refreshed);
        epsilon
    }

    /// Says what a user should know about a refresh.
    fn remark(&mut self, factor: usize, refreshed: &Refreshed) {
        let plan = &self.plan.factors[factor];
        let name = &self.plan.param_of(factor).spec.name;
        let place = format!("parameter '{name}', axis {}, side {}", plan.axis, plan.dim);
        if refreshed.rung != Rung::Chosen {
            let what = match refreshed.rung {
                Rung::Double => "double precision was used",
                Rung::Svd => "a singular value decomposition was used",
                _ => "the stale basis is kept with damping epsilon_max",
            };
            (self.log)(
                Level::Warning,
                &format!("{place}: the eigendecomposition failed or was inaccurate; {what}"),
            );
        }
        let first = self.records[factor].counters.evd_calls == 1;
        if first && refreshed.noise_floor > self.config.tau && policy::senses(self.config.policy) {
            let floor = refreshed.noise_floor;
            let line = format!(
                "{place}: rounding alone makes the proxy {floor:.3}, above tau; use statistic_dtype = f64 or a larger epsilon"
            );
            (self.log)(Level::Warning, &line);
        }
    }
}
