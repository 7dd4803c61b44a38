//! The check: sense the due factors, decide about each, refresh or re-damp. The only place where the policies
//! meet the device.

use super::Engine;
use super::rules::Rules;
use super::stats::Verb;
use crate::config::NegativeEigenvalues;
use crate::device::{
    Certificate, Pending, QrSteps, RedampOrder, RefreshOrder, Refreshed, Rung, Search, SenseOrder,
};
use crate::error::Result;
use crate::memory::reserved;
use crate::preconditioner::damping::Damping;
use crate::preconditioner::diagnosis;
use crate::preconditioner::policy::{self, Action, Sensed};
use crate::preconditioner::{Branch, FactorRecord, bound, cadence, soap};
use crate::tensor::Precision;
use std::cmp::Reverse;

/// The lists of a check, made with the engine: a check neither allocates nor fails for want of memory.
#[derive(Default)]
pub(super) struct Lists {
    due: Vec<usize>,
    undecided: Vec<bool>,
    sense: Vec<SenseOrder>,
    pub(super) refresh: Vec<RefreshOrder>,
    postponed: Vec<RefreshOrder>,
    pub(super) refreshed: Vec<Refreshed>,
    pub(super) redamp: Vec<RedampOrder>,
    pub(super) pending: Vec<Pending>,
}

impl Lists {
    /// Lists with room for `factors` factors, of which a check may leave `pending` ones in doubt.
    pub fn with_room(factors: usize, pending: usize) -> Result<Lists> {
        let what = "the lists of a check";
        Ok(Lists {
            due: reserved(factors, what)?,
            undecided: reserved(factors, what)?,
            sense: reserved(factors, what)?,
            refresh: reserved(factors, what)?,
            postponed: reserved(factors, what)?,
            refreshed: reserved(factors, what)?,
            redamp: reserved(factors, what)?,
            pending: reserved(pending, what)?,
        })
    }
}

/// An empty list, with the room of `list`, which is left without any.
pub(super) fn emptied<T>(list: &mut Vec<T>) -> Vec<T> {
    let mut taken = std::mem::take(list);
    taken.clear();
    taken
}

impl Engine {
    /// Second part of a step: checks every factor that is due. Says whether the step goes on: a device may have
    /// held it back.
    pub(super) fn check(&mut self, rules: &Rules) -> Result<bool> {
        if self.begin_check(rules)? { self.end_check(rules) } else { Ok(true) }
    }

    /// The part of a check that waits for nothing: measures the factors that are due, and asks for the answers. Says
    /// whether there are any.
    pub(super) fn begin_check(&mut self, rules: &Rules) -> Result<bool> {
        if self.plan.factors.is_empty() {
            return Ok(false);
        }
        // Of a borrowed state on a device that works on its own the host knows nothing before it asks, which means
        // waiting: all factors are sensed before that, unless what to sense depends on the answer.
        let mut known = !self.borrowed || self.device.is_synchronous();
        if !known && (policy::looks_at_age(self.config.policy) || self.config.refresh_delay > 0) {
            self.sense(rules, &[])?;
            self.hear()?;
            known = true;
        }
        let mut lists = std::mem::take(&mut self.lists);
        let outcome = self.adopt_and_sense(rules, known, &mut lists);
        self.lists = lists;
        outcome
    }

    fn adopt_and_sense(&mut self, rules: &Rules, known: bool, lists: &mut Lists) -> Result<bool> {
        let in_doubt = self.adopt(rules, lists)?;
        if self.sense_due(rules, known, lists)? {
            return Ok(true);
        }
        // What a device that works on its own has taken over is heard of now: the next check builds on it.
        let hears = in_doubt && !self.borrowed;
        if hears {
            self.sense(rules, &[])?;
        }
        Ok(hears)
    }

    /// The rest of a check: hears the answers, decides, refreshes and re-damps. Says whether the step goes on.
    pub(super) fn end_check(&mut self, rules: &Rules) -> Result<bool> {
        self.hear()?;
        let mut lists = std::mem::take(&mut self.lists);
        let outcome = self.act_on_due(rules, &mut lists);
        self.lists = lists;
        outcome
    }

    fn sense_due(&mut self, rules: &Rules, known: bool, lists: &mut Lists) -> Result<bool> {
        if known {
            self.find_due(&mut lists.due);
        } else {
            lists.due.clear();
            let own = |factor: &usize| self.plan.factors[*factor].is_preconditioned();
            lists.due.extend((0..self.plan.factors.len()).filter(own));
        }
        if lists.due.is_empty() {
            return Ok(false);
        }
        let senses = self.plan.preconditioner.senses(&self.config);
        let sensed = lists.due.iter().copied().filter(|f| senses && (!known || self.is_sensed(*f)));
        lists.sense.clear();
        lists.sense.extend(sensed.map(|factor| self.sense_order(factor)));
        // One factor per thread, equal ones together: the large ones first.
        lists.sense.sort_unstable_by_key(|order| self.large_first(order.factor));
        self.sense(rules, &lists.sense)?;
        Ok(true)
    }

    fn act_on_due(&mut self, rules: &Rules, lists: &mut Lists) -> Result<bool> {
        if !self.borrowed {
            self.report_refused()?;
        }
        if self.readback.refused_now {
            return Ok(false);
        }
        // The readback may have set a clock back: what is not due after all was sensed in vain.
        self.find_due(&mut lists.due);
        if !lists.due.is_empty() {
            let sensed = std::mem::take(&mut self.readback.sensed);
            let outcome = self.act(rules, lists, &sensed);
            self.readback.sensed = sensed;
            outcome?;
            if !self.borrowed {
                self.diagnose();
            }
        }
        Ok(true)
    }

    /// Measures factors and asks for the answers.
    fn sense(&mut self, rules: &Rules, orders: &[SenseOrder]) -> Result<()> {
        self.timed(Verb::Sense, |this| {
            this.device.sense(rules, orders)?;
            this.device.request()
        })
    }

    /// Brings the answers to the host.
    fn hear(&mut self) -> Result<()> {
        self.timed(Verb::Sense, Engine::ask)?;
        if self.borrowed {
            self.totals.steps = self.clocks.iter().map(|clock| clock.step).max().unwrap_or(0);
        }
        Ok(())
    }

    /// The factors of the blocks that take part and whose clocks say so.
    fn find_due(&self, due: &mut Vec<usize>) {
        let is_due = |factor: &usize| {
            let (block, own) =
                (self.plan.factors[*factor].block, self.plan.factors[*factor].is_preconditioned());
            let has_basis = self.records[*factor].has_basis();
            own && self.takes_part[block] && cadence::is_due(&self.config, self.clocks[block].step, has_basis)
        };
        due.clear();
        due.extend((0..self.plan.factors.len()).filter(is_due));
    }

    /// The order of work on factors.
    pub(super) fn large_first(&self, factor: usize) -> (Reverse<usize>, usize) {
        (Reverse(self.plan.factors[factor].dim), factor)
    }

    /// Decides about `due` from what was sensed, then refreshes and re-damps.
    fn act(&mut self, rules: &Rules, lists: &mut Lists, sensed: &[Sensed]) -> Result<()> {
        let (mut refresh, mut redamp) = (emptied(&mut lists.refresh), emptied(&mut lists.redamp));
        let mut postponed = emptied(&mut lists.postponed);
        let mut undecided = emptied(&mut lists.undecided);
        undecided.resize(self.plan.factors.len(), false);
        for &factor in &lists.due {
            // A device that climbs one rung per check goes on where the last check failed.
            let again = self.plan.preconditioner.decomposes_again(&self.config, &self.records[factor]);
            let doubled = !self.device.is_synchronous() && again;
            // QR steps that did not suffice there are made up for by an eigendecomposition now.
            let short = self.records[factor].is_short();
            let mut order = RefreshOrder { doubled, ..self.refresh_order(factor) };
            if doubled || short {
                order.qr = None;
            }
            let unseen = self.count_check(factor);
            undecided[factor] = !(unseen || doubled || short);
            if !undecided[factor] {
                self.ask_for(order, &mut refresh, &mut postponed);
            }
            if (short || doubled && self.config.refresh_delay > 0) && !unseen {
                self.records[factor].counters.branch = Branch::EvdThreshold as i64;
            }
        }
        for (order, sensed) in lists.sense.iter().zip(sensed) {
            if undecided[order.factor] {
                self.decide(order, sensed, &mut refresh, &mut postponed, &mut redamp);
            }
        }
        postponed.sort_unstable_by_key(|order| self.large_first(order.factor));
        self.timed(Verb::Refresh, |this| this.device.postpone(rules, &postponed))?;
        refresh.sort_unstable_by_key(|order| self.large_first(order.factor));
        let answers = &mut lists.refreshed;
        let answered = self.timed(Verb::Refresh, |this| this.device.refresh(rules, &refresh, answers))?;
        let mut pending = emptied(&mut lists.pending);
        match answered {
            true => self.settle_refreshes(&refresh, answers, &mut redamp),
            false => refresh.iter().for_each(|order| redamp.push(self.expect(order, &mut pending))),
        }
        if !self.plan.preconditioner.has_roots() {
            redamp.clear();
        }
        redamp.sort_unstable_by_key(|order: &RedampOrder| self.large_first(order.factor));
        let outcome = self.timed(Verb::Redamp, |this| {
            this.device.store_records(&this.records, &pending)?;
            this.device.redamp(&redamp)
        });
        *lists = Lists { undecided, refresh, postponed, redamp, pending, ..std::mem::take(lists) };
        outcome
    }

    /// Takes over what refreshes found, and asks for their inverse roots.
    pub(super) fn settle_refreshes(
        &mut self,
        refresh: &[RefreshOrder],
        answers: &[Refreshed],
        redamp: &mut Vec<RedampOrder>,
    ) {
        for (order, refreshed) in refresh.iter().zip(answers) {
            let before = self.records[order.factor];
            let after = self.outcome(order, refreshed);
            self.records[order.factor] = after;
            self.warn_of_fallbacks(order.factor, &before, &after);
            let epsilon = Damping::absolute(after.gauges.epsilon);
            redamp.push(RedampOrder { factor: order.factor, epsilon, pending: None, adopt_diagonal: false });
        }
    }

    /// The step of a factor's block.
    pub(super) fn step_of(&self, factor: usize) -> u64 {
        self.clocks[self.plan.factors[factor].block].step
    }

    /// Whether a due factor is measured before it is decided about, by a policy that measures.
    fn is_sensed(&self, factor: usize) -> bool {
        let forced = cadence::is_forced(&self.config, self.step_of(factor));
        self.records[factor].has_basis() && !forced && !self.is_tracked(factor)
    }

    /// Counts the check; says whether it is a refresh that nothing has to be sensed for.
    fn count_check(&mut self, factor: usize) -> bool {
        let t = self.step_of(factor) as i64;
        let senses = self.plan.preconditioner.senses(&self.config);
        let sensed = senses && self.is_sensed(factor);
        let tracked = senses && self.records[factor].has_basis() && self.is_tracked(factor);
        let record = &mut self.records[factor];
        record.counters.qr_tracked += i64::from(tracked);
        let first = senses && !record.has_basis();
        record.counters.checks += 1;
        record.counters.last_check = t;
        if !sensed {
            record.counters.branch = if first { Branch::EvdFirst } else { Branch::EvdStale } as i64;
        }
        !sensed
    }

    fn sense_order(&self, factor: usize) -> SenseOrder {
        let policy = self.config.policy;
        let search = policy::searches(policy).then(|| Search {
            most: self.config.most_damping(),
            target: self.config.tau / self.growth(factor),
        });
        let certificate = policy::certifies(policy).then(|| Certificate {
            target: self.config.tau,
            kept: 1.0 - self.largest_loss(factor),
            // NaN, which is less than nothing, for a basis that no QR step gave.
            orthogonality: self.records[factor].gauges.orthogonality.max(0.0),
        });
        SenseOrder {
            factor,
            base: self.damping(factor),
            search,
            keep_diagonal: policy::adopts_diagonal(&self.config),
            certificate,
        }
    }

    pub(super) fn refresh_order(&self, factor: usize) -> RefreshOrder {
        RefreshOrder {
            factor,
            base: self.damping(factor),
            noise_floor: self.config.noise_floor,
            shift: self.config.negative_eigenvalues == NegativeEigenvalues::Shift,
            has_basis: self.records[factor].has_basis(),
            polish: soap::polishes(&self.records[factor]),
            qr: self.qr_steps(factor),
            doubled: false,
            delayed: false,
            due: 0,
            fault: self.fault(),
        }
    }

    /// How a factor is refreshed by QR steps, if it is.
    fn qr_steps(&self, factor: usize) -> Option<QrSteps> {
        let target = self.config.tau;
        let blind = policy::blind_steps(target, self.records[factor].has_basis());
        self.config.refreshes_by_qr().then_some(QrSteps { target, blind })
    }

    /// Whether a factor is refreshed by QR steps without being looked at first.
    fn is_tracked(&self, factor: usize) -> bool {
        let on = self.config.qr_track && self.config.refreshes_by_qr();
        on && policy::tracks(&self.records[factor])
    }

    /// The share of a factor's statistic that can have been lost since its last refresh.
    fn largest_loss(&self, factor: usize) -> f64 {
        let config = &self.config;
        let gradients = |step| cadence::accumulations(config.statistics_period as u64, step);
        let refreshed = gradients(self.records[factor].counters.last_refresh as u64);
        bound::largest_loss(config.beta2, config.bias_correction, refreshed, gradients(self.step_of(factor)))
    }

    /// g(m) of the proven bound, for a factor at its current time.
    fn growth(&self, factor: usize) -> f64 {
        bound::growth(self.plan.factors[factor].exponent, self.largest_loss(factor))
    }

    fn decide(
        &mut self,
        order: &SenseOrder,
        sensed: &Sensed,
        refresh: &mut Vec<RefreshOrder>,
        postponed: &mut Vec<RefreshOrder>,
        redamp: &mut Vec<RedampOrder>,
    ) {
        let factor = order.factor;
        let (growth, damping, plan) = (self.growth(factor), self.damping(factor), &self.plan.factors[factor]);
        let record = &mut self.records[factor];
        let before = record.gauges.epsilon;
        let preconditioner = &self.plan.preconditioner;
        match preconditioner.decide(&self.config, record, sensed, plan.exponent, growth, damping) {
            Action::Refresh => {
                let order = self.refresh_order(factor);
                redamp.extend(self.correct_stale(&order, sensed));
                self.ask_for(order, refresh, postponed);
            }
            // The same basis, spectrum and ε give the same inverse root: it is kept.
            Action::Reuse { epsilon, adopt_diagonal: false } if epsilon == before => {}
            Action::Reuse { epsilon, adopt_diagonal } => {
                let epsilon = Damping::absolute(epsilon);
                redamp.push(RedampOrder { factor, epsilon, pending: None, adopt_diagonal });
            }
        }
    }

    /// A refresh whose answer is still out: the device chooses the record, and the host's is written as far as it
    /// is certain.
    pub(super) fn expect(&mut self, order: &RefreshOrder, pending: &mut Vec<Pending>) -> RedampOrder {
        let factor = order.factor;
        let with = |rung| Refreshed { rung, by_qr: order.qr.is_some(), ..Refreshed::default() };
        let narrow = self.plan.param_of(factor).statistic == Precision::F32;
        let rung = if order.doubled && narrow { Rung::Double } else { Rung::Chosen };
        let success = self.outcome(order, &with(rung));
        let failed = if order.qr.is_some() { Rung::Short } else { Rung::Stale };
        let failure = Refreshed { by_qr: false, bound: f64::INFINITY, ..with(failed) };
        let failure = self.outcome(order, &failure);
        pending.push(Pending { factor, success, failure });
        let record = &mut self.records[factor];
        record.gauges.orthogonality = success.gauges.orthogonality;
        record.counters.has_basis = 1;
        record.counters.last_refresh = success.counters.last_refresh;
        RedampOrder {
            factor,
            epsilon: self.damping(factor),
            pending: Some((pending.len() - 1, self.damping_given_up(factor))),
            adopt_diagonal: false,
        }
    }

    /// The record of a factor after a refresh.
    fn outcome(&self, order: &RefreshOrder, refreshed: &Refreshed) -> FactorRecord {
        let factor = order.factor;
        let mut record = self.records[factor];
        let (gauges, counters) = (&mut record.gauges, &mut record.counters);
        // A basis is as old as the statistic that it is of.
        let since = std::mem::take(&mut counters.pending_since);
        let refreshed_at = if order.delayed { since } else { self.step_of(factor) as i64 };
        counters.failed_evds += i64::from(!matches!(refreshed.rung, Rung::Chosen | Rung::Short));
        match refreshed.rung {
            Rung::Chosen => {}
            Rung::Short => counters.branch = Branch::QrShort as i64,
            Rung::Double => counters.fallback_double += 1,
            Rung::Svd => counters.fallback_svd += 1,
            Rung::Stale => counters.fallback_stale += 1,
        }
        gauges.kappa = refreshed.kappa;
        counters.qr_steps += refreshed.qr_steps;
        counters.qr_fallbacks += i64::from(order.qr.is_some() && !refreshed.by_qr);
        let given_up = refreshed.rung == Rung::Stale;
        if given_up && self.config.refresh_delay > 0 && !self.device.is_synchronous() {
            counters.branch = Branch::EvdFailed as i64;
        }
        // What QR steps did not bring to τ is still a basis, where nothing else gives one.
        if given_up && order.has_basis && refreshed.qr_steps == 0 {
            counters.reuse_calls += 1;
        } else {
            let decomposed = !given_up && !refreshed.by_qr && refreshed.rung != Rung::Short;
            counters.evd_calls += i64::from(decomposed);
            counters.qr_refreshes += i64::from(refreshed.by_qr);
            gauges.orthogonality = refreshed.orthogonality;
            counters.last_refresh = refreshed_at;
            counters.has_basis = 1;
            gauges.noise_floor = refreshed.noise_floor;
            gauges.eigenvalue_min = refreshed.eigenvalue_min;
            gauges.eigenvalue_max = refreshed.eigenvalue_max;
        }
        // A certificate speaks of the basis that it was measured in.
        if policy::certifies(self.config.policy) && (!given_up || refreshed.qr_steps > 0) {
            // Nobody has looked at a delayed one with the statistic as it is now.
            gauges.gap_bound = if order.delayed { f64::NAN } else { refreshed.bound };
        }
        let damping = if given_up { self.damping_given_up(factor) } else { self.damping(factor) };
        gauges.epsilon = damping.at(gauges.eigenvalue_max);
        record
    }

    /// ε₀ of a factor.
    pub(super) fn damping(&self, factor: usize) -> Damping {
        self.plan.factors[factor].base(&self.config, &self.plan)
    }

    /// The damping of a factor whose refresh failed on every path: ε_max, or ε₀ if that is larger.
    fn damping_given_up(&self, factor: usize) -> Damping {
        let (base, most) = (self.damping(factor), self.config.most_damping());
        Damping { ratio: base.ratio.max(most.ratio), floor: base.floor.max(most.floor) }
    }

    /// Warns of a failed eigendecomposition, and says what was used instead.
    pub(super) fn warn_of_fallbacks(&self, factor: usize, before: &FactorRecord, after: &FactorRecord) {
        let (old, new) = (&before.counters, &after.counters);
        if new.failed_evds > old.failed_evds {
            let what = if new.fallback_double > old.fallback_double {
                "double precision was used"
            } else if new.fallback_svd > old.fallback_svd {
                "a singular value decomposition was used"
            } else {
                "the stale basis is kept with damping epsilon_max"
            };
            self.warn(&format!(
                "{}: the eigendecomposition failed or was inaccurate; {what}",
                self.place(factor)
            ));
        }
    }

    /// Warns of what keeps the configuration from working, once for each kind.
    fn diagnose(&mut self) {
        let found = diagnosis::judge_all(&self.config, self.records.iter());
        for finding in found.findings.iter().filter(|finding| !self.reported.contains(*finding)) {
            let first = found.first[finding as usize];
            let place = format!("the first is {}", self.place(first));
            self.warn(&found.text(&self.config, finding, &self.records[first], Some(&place)));
        }
        self.reported = self.reported.with(found.findings);
    }

    /// Which factor, for people.
    fn place(&self, factor: usize) -> String {
        let (plan, name) = (&self.plan.factors[factor], &self.plan.param_of(factor).spec.name);
        format!("parameter '{name}', axis {}, side {}", plan.axis, plan.dim)
    }
}
