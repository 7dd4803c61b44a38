//! Delayed refreshes: a check that asks for a new basis leaves the statistic as it is with the device and the stale basis
//! in use; `refresh_delay` steps later what the device made of it is taken.

use super::Engine;
use super::check::{Lists, emptied};
use super::rules::Rules;
use super::stats::Verb;
use crate::device::{RedampOrder, RefreshOrder};
use crate::error::Result;
use crate::preconditioner::damping::Damping;
use crate::preconditioner::policy::{self, Sensed};

impl Engine {
    /// Takes the refreshes that were asked for `refresh_delay` steps ago, before the step's own check looks at them.
    pub(super) fn adopt(&mut self, rules: &Rules, lists: &mut Lists) -> Result<()> {
        if self.config.refresh_delay == 0 {
            return Ok(());
        }
        let (mut refresh, mut redamp) = (emptied(&mut lists.refresh), emptied(&mut lists.redamp));
        let ready = |factor: &usize| {
            let block = self.plan.factors[*factor].block;
            self.takes_part[block] && self.adopts(*factor, self.clocks[block].step)
        };
        let factors = (0..self.plan.factors.len()).filter(ready);
        refresh.extend(factors.map(|factor| self.delayed_order(factor)));
        let outcome = if refresh.is_empty() {
            Ok(())
        } else {
            refresh.sort_unstable_by_key(|order| self.large_first(order.factor));
            self.timed(Verb::Refresh, |this| this.device.refresh(rules, &refresh, &mut lists.refreshed))
                .and_then(|_| {
                    self.settle_refreshes(&refresh, &lists.refreshed, &mut redamp);
                    self.timed(Verb::Redamp, |this| {
                        this.device.store_records(&this.records, &[])?;
                        this.device.redamp(&redamp)
                    })
                })
        };
        (lists.refresh, lists.redamp) = (refresh, redamp);
        outcome
    }

    /// Whether a factor's refresh that is under way is taken by step `t` of its block.
    pub(super) fn adopts(&self, factor: usize, t: u64) -> bool {
        let delay = self.config.refresh_delay;
        delay > 0 && self.records[factor].adopts(delay, t)
    }

    fn delayed_order(&self, factor: usize) -> RefreshOrder {
        RefreshOrder { delayed: true, ..self.refresh_order(factor) }
    }

    /// Begins the refreshes again that were under way when the state was written.
    pub(super) fn resume_refreshes(&mut self) {
        let mut orders = emptied(&mut self.lists.refresh);
        let pending = |factor: &usize| self.records[*factor].counters.pending_since > 0;
        let factors = (0..self.plan.factors.len()).filter(pending);
        orders.extend(factors.map(|factor| self.delayed_order(factor)));
        orders.sort_unstable_by_key(|order| self.large_first(order.factor));
        self.device.resume(&orders);
        self.lists.refresh = orders;
    }

    /// A refresh that a check asks for: at once, or later where refreshes are delayed and there is a stale basis to go on
    /// with.
    pub(super) fn ask_for(
        &mut self,
        order: RefreshOrder,
        refresh: &mut Vec<RefreshOrder>,
        postponed: &mut Vec<RefreshOrder>,
    ) {
        if !self.delays(&order) {
            return refresh.push(order);
        }
        let t = self.step_of(order.factor) as i64;
        let counters = &mut self.records[order.factor].counters;
        counters.delayed_checks += 1;
        if counters.pending_since > 0 {
            // One at a time: the next check after it may ask again.
            counters.reuse_calls += 1;
            return;
        }
        counters.pending_since = t;
        postponed.push(RefreshOrder { delayed: true, ..order });
    }

    /// The correction of a stale basis that is to be refreshed later, if the policy corrects spectra.
    pub(super) fn correct_stale(&mut self, order: &RefreshOrder, sensed: &Sensed) -> Option<RedampOrder> {
        if !self.delays(order) {
            return None;
        }
        let (factor, damping) = (order.factor, self.damping(order.factor));
        let epsilon = policy::correct_stale(&self.config, &mut self.records[factor], sensed, damping)?;
        let epsilon = Damping::absolute(epsilon);
        Some(RedampOrder { factor, epsilon, pending: None, adopt_diagonal: true })
    }

    /// Whether a refresh is taken later: there has to be a stale basis to go on with.
    fn delays(&self, order: &RefreshOrder) -> bool {
        self.config.refresh_delay > 0 && order.has_basis
    }
}
