//! The check: sense the due factors, decide about each, refresh or re-damp. The only place where the
//! policies meet the device.

use super::stats::Verb;
use super::{Level, Optimizer};
use crate::backend::{News, RedampOrder, RefreshOrder, Refreshed, Rung, Search, SenseOrder, Tensors};
use crate::config::{Nonfinite, Policy};
use crate::error::Result;
use crate::preconditioner::policy::{self, Action, Sensed};
use crate::preconditioner::{Branch, bound, cadence};
use std::cmp::Reverse;

impl Optimizer {
    /// Checks every factor of the parameters whose clocks say so. Says whether the step goes on: a device
    /// may have held it back.
    pub(super) fn check(&mut self, tensors: &Tensors) -> Result<bool> {
        let due = |(index, grad): (usize, &Option<_>)| grad.is_some() && self.is_due(index);
        if !tensors.grads.iter().enumerate().any(due) {
            return Ok(true);
        }
        let due: Vec<usize> = (0..tensors.grads.len()).filter(|i| due((*i, &tensors.grads[*i]))).collect();
        self.check_params(&due)
    }

    /// Checks every factor of the parameters `due`, as [`Optimizer::check`].
    pub(super) fn check_params(&mut self, due: &[usize]) -> Result<bool> {
        let factors: Vec<usize> = due.iter().flat_map(|i| self.plan.params[*i].factors.clone()).collect();
        // One factor a thread: the large ones first.
        let mut sense: Vec<SenseOrder> =
            factors.iter().filter(|f| self.is_sensed(**f)).map(|f| self.sense_order(*f)).collect();
        sense.sort_by_key(|o| Reverse(self.plan.factors[o.factor].dim));
        let mut sensed = vec![Sensed::default(); sense.len()];
        let mut news = News::default();
        self.timed(Verb::Sense, |this| this.backend.sense(&sense, &mut sensed, &mut news))?;
        let (held_back, failed) = (news.refused_now, failures(&news));
        self.hear(news)?;
        if held_back {
            return Ok(false);
        }
        // The news may have set a clock back: what is not due after all was sensed in vain.
        let due = |factor: &usize| self.is_due(self.param_index(*factor));
        let factors: Vec<usize> = factors.into_iter().filter(due).collect();
        self.act(&factors, &sense, &sensed, &failed)?;
        Ok(true)
    }

    /// Decides about `factors` from what was sensed, then refreshes and re-damps. Those in `failed` are refreshed
    /// in double precision, because their last refresh did not succeed.
    pub(super) fn act(
        &mut self,
        factors: &[usize],
        sense: &[SenseOrder],
        sensed: &[Sensed],
        failed: &[usize],
    ) -> Result<()> {
        let (mut refresh, mut redamp) = (Vec::new(), Vec::new());
        let mut undecided = vec![false; self.plan.factors.len()];
        for &factor in factors {
            let doubled = failed.contains(&factor);
            undecided[factor] = !doubled;
            if self.begin_check(factor) || doubled {
                refresh.push(RefreshOrder { doubled, ..self.refresh_order(factor) });
            }
        }
        for (order, sensed) in sense.iter().zip(sensed) {
            if undecided[order.factor] {
                self.decide(order, sensed, &mut refresh, &mut redamp);
            }
        }
        refresh.sort_by_key(|o| Reverse(self.plan.factors[o.factor].dim));
        let mut refreshed = vec![None; refresh.len()];
        self.timed(Verb::Refresh, |this| this.backend.refresh(&refresh, &mut refreshed))?;
        for (order, refreshed) in refresh.iter().zip(&refreshed) {
            let factor = order.factor;
            let (epsilon, fallback) = match refreshed {
                Some(refreshed) => (self.adopt(order, refreshed), None),
                None => self.expect(order),
            };
            redamp.push(RedampOrder { factor, epsilon, fallback, adopt_diagonal: false });
        }
        redamp.sort_by_key(|o: &RedampOrder| Reverse(self.plan.factors[o.factor].dim));
        self.timed(Verb::Redamp, |this| this.backend.redamp(&redamp))
    }

    /// Takes in what a device has found out. A refused step is an error, if the configuration says so; then
    /// nothing has changed since.
    pub(super) fn hear(&mut self, news: News) -> Result<()> {
        for (order, refreshed) in &news.refreshed {
            self.adopt(order, refreshed);
        }
        if !news.clocks.is_empty() {
            self.clocks.copy_from_slice(&news.clocks);
        }
        self.remark_overflow(news.overflowed);
        if news.refused == 0 {
            return Ok(());
        }
        self.totals.steps -= news.refused.min(self.totals.steps);
        let Some(culprit) = news.culprit else { return Ok(()) };
        let mut error = self.not_finite(culprit);
        if self.config.nonfinite == Nonfinite::Error {
            self.backend.forgive();
            if news.refused > 1 {
                let after = news.refused - 1;
                error.message +=
                    &format!("; the device found out {after} steps ago, and these were not taken either");
            }
            return Err(error);
        }
        self.totals.skipped_steps += news.refused;
        (self.log)(Level::Warning, &format!("{} steps skipped: {}", news.refused, error.message));
        Ok(())
    }

    fn param_index(&self, factor: usize) -> usize {
        self.plan.blocks[self.plan.factors[factor].block].param
    }

    fn is_due(&self, param: usize) -> bool {
        cadence::is_check(&self.config, self.clocks[param].step)
    }

    /// Whether a factor is looked at before anything is decided about it.
    pub(super) fn is_sensed(&self, factor: usize) -> bool {
        policy::senses(self.config.policy) && self.records[factor].counters.has_basis != 0
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

    /// Counts the check; says whether it is a refresh unseen.
    fn begin_check(&mut self, factor: usize) -> bool {
        let t = self.time_of(factor).step as i64;
        let sensed = self.is_sensed(factor);
        let unconditional = !policy::senses(self.config.policy);
        let counters = &mut self.records[factor].counters;
        counters.checks += 1;
        counters.last_check = t;
        if !sensed {
            counters.branch = if unconditional { Branch::EvdStale } else { Branch::EvdFirst } as i64;
        }
        !sensed
    }

    pub(super) fn sense_order(&self, factor: usize) -> SenseOrder {
        let base = self.plan.factors[factor].epsilon;
        let search = (self.config.policy == Policy::FoamCertified).then(|| Search {
            low: base,
            high: self.config.epsilon_max,
            target: self.config.tau / self.growth(factor),
        });
        let epsilon = base.max(self.records[factor].gauges.epsilon);
        SenseOrder { factor, scale: self.statistic_scale(factor), epsilon, search }
    }

    fn refresh_order(&self, factor: usize) -> RefreshOrder {
        RefreshOrder {
            factor,
            scale: self.statistic_scale(factor),
            epsilon: self.plan.factors[factor].epsilon,
            step: self.time_of(factor).step,
            last_refresh: self.records[factor].counters.last_refresh,
            doubled: false,
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
                redamp.push(RedampOrder { factor, epsilon, fallback: None, adopt_diagonal });
            }
        }
    }

    /// A refresh whose answer is still out: the record is written as far as it is certain. Gives the ε to
    /// use if it succeeds, and if it fails.
    fn expect(&mut self, order: &RefreshOrder) -> (f64, Option<f64>) {
        let counters = &mut self.records[order.factor].counters;
        counters.has_basis = 1;
        counters.last_refresh = order.step as i64;
        let base = self.plan.factors[order.factor].epsilon;
        (base, Some(base.max(self.config.epsilon_max)))
    }

    /// Writes the outcome of a refresh into the factor's record, and says what a user should know; gives the ε
    /// to use.
    fn adopt(&mut self, order: &RefreshOrder, refreshed: &Refreshed) -> f64 {
        self.note(order, refreshed);
        self.remark(order.factor, refreshed);
        self.records[order.factor].gauges.epsilon
    }

    /// Writes the outcome of a refresh into the factor's record.
    pub(super) fn note(&mut self, order: &RefreshOrder, refreshed: &Refreshed) {
        let factor = order.factor;
        let t = order.step as i64;
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
            counters.last_refresh = order.last_refresh;
        } else {
            counters.evd_calls += i64::from(!given_up);
            counters.last_refresh = t;
            counters.has_basis = 1;
            gauges.noise_floor = refreshed.noise_floor;
            gauges.eigenvalue_min = refreshed.eigenvalue_min;
            gauges.eigenvalue_max = refreshed.eigenvalue_max;
        }
        gauges.epsilon = if given_up { base.max(self.config.epsilon_max) } else { base };
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

/// The factors whose last refresh failed in the chosen precision.
fn failures(news: &News) -> Vec<usize> {
    let failed = news.refreshed.iter().filter(|(_, refreshed)| refreshed.rung == Rung::Stale);
    failed.map(|(order, _)| order.factor).collect()
}
