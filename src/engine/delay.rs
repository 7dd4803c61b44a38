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
    /// Takes the refreshes that were asked for `refresh_delay` steps ago, before the step's own check looks at them. Says
    /// whether only the device knows what came of them.
    pub(super) fn adopt(&mut self, rules: &Rules, lists: &mut Lists) -> Result<bool> {
        if self.config.refresh_delay == 0 {
            return Ok(false);
        }
        let (mut refresh, mut redamp) = (emptied(&mut lists.refresh), emptied(&mut lists.redamp));
        let ready = |factor: &usize| {
            let block = self.plan.factors[*factor].block;
            self.takes_part[block] && self.adopts(*factor, self.clocks[block].step)
        };
        let factors = (0..self.plan.factors.len()).filter(ready);
        refresh.extend(factors.map(|factor| self.order_to_take(factor)));
        refresh.sort_unstable_by_key(|order| self.large_first(order.factor));
        let outcome = match refresh.is_empty() {
            true => Ok(false),
            false => self.take_refreshes(rules, &refresh, &mut redamp, lists),
        };
        (lists.refresh, lists.redamp) = (refresh, redamp);
        outcome
    }

    /// Takes `refresh`, and forms the inverse roots.
    fn take_refreshes(
        &mut self,
        rules: &Rules,
        refresh: &[RefreshOrder],
        redamp: &mut Vec<RedampOrder>,
        lists: &mut Lists,
    ) -> Result<bool> {
        let answers = &mut lists.refreshed;
        if self.timed(Verb::Refresh, |this| this.device.refresh(rules, refresh, answers))? {
            self.settle_refreshes(refresh, answers, redamp);
            return self.timed(Verb::Redamp, |this| {
                this.device.store_records(&this.records, &[])?;
                this.device.redamp(redamp)?;
                Ok(false)
            });
        }
        let mut pending = emptied(&mut lists.pending);
        refresh.iter().for_each(|order| redamp.push(self.expect(order, &mut pending)));
        // The device may have chosen records since the host last heard of them: the others stay as they are.
        let outcome = self.timed(Verb::Redamp, |this| {
            this.device.store_records(&[], &pending)?;
            this.device.redamp(redamp)
        });
        lists.pending = pending;
        outcome.map(|()| true)
    }

    /// Whether a factor's refresh that is under way is taken by step `t` of its block.
    pub(super) fn adopts(&self, factor: usize, t: u64) -> bool {
        let delay = self.config.refresh_delay;
        delay > 0 && self.records[factor].adopts(delay, t)
    }

    fn delayed_order(&self, factor: usize) -> RefreshOrder {
        RefreshOrder { delayed: true, ..self.refresh_order(factor) }
    }

    /// The same for the step under way. The host may not know of steps that a device has refused, and whose clocks have
    /// stood still: such a device looks at the clock itself.
    fn order_to_take(&self, factor: usize) -> RefreshOrder {
        let due = if self.device.is_synchronous() { 0 } else { self.step_of(factor) };
        RefreshOrder { due, ..self.delayed_order(factor) }
    }

    /// Begins the refreshes again that were under way when the state was written.
    pub(super) fn resume_refreshes(&mut self) -> Result<()> {
        let mut orders = emptied(&mut self.lists.refresh);
        let pending = |factor: &usize| self.records[*factor].counters.pending_since > 0;
        let factors = (0..self.plan.factors.len()).filter(pending);
        orders.extend(factors.map(|factor| self.delayed_order(factor)));
        orders.sort_unstable_by_key(|order| self.large_first(order.factor));
        let outcome = self.device.resume(&orders);
        self.lists.refresh = orders;
        outcome
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

    /// Whether a refresh is taken later: there has to be a stale basis to go on with. What has failed is tried again at
    /// once.
    fn delays(&self, order: &RefreshOrder) -> bool {
        self.config.refresh_delay > 0 && order.has_basis && !order.doubled
    }
}
