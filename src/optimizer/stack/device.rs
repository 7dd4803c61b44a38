//! A session on a device that works on its own: accumulate and apply only put work on the caller's stream; a
//! check asks once, decides on the host, and leaves to the device what only it knows.

use super::super::plan::Plan;
use super::super::{Clock, StepOptions, Tick, order};
use super::ports::{Given, Role, Verb};
use super::session::{Call, IDLE, NOT_FINITE, Session};
use super::{Content, Element};
use crate::backend::bound::{Late, Lent, RecordWords};
use crate::backend::{BlockOrder, RefreshOrder, Refreshed, Rung, SenseOrder};
use crate::config::Policy;
use crate::error::{Error, Kind, Result};
use crate::preconditioner::policy::Sensed;
use crate::preconditioner::{Branch, Counters, FactorRecord, cadence};
use crate::tensor::DType;

fn dtype(given: Given) -> DType {
    match given.element {
        Element::Real(dtype) => dtype,
        _ => DType::F32,
    }
}

fn words(record: &FactorRecord) -> RecordWords {
    let mut words = [0; 50];
    let (gauges, counters) = (bytemuck::bytes_of(&record.gauges), bytemuck::bytes_of(&record.counters));
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
    bytes[..gauges.len()].copy_from_slice(gauges);
    bytes[gauges.len()..].copy_from_slice(counters);
    words
}

/// Whether the refresh of a factor's last check did not succeed.
fn failed(counters: &Counters) -> bool {
    let refreshes = [Branch::EvdFirst, Branch::EvdStale, Branch::EvdCap, Branch::EvdThreshold];
    let asked = refreshes.iter().any(|branch| *branch as i64 == counters.branch);
    asked && (counters.last_refresh != counters.last_check || counters.evd_calls == 0)
}

impl Session {
    /// The device, if it works on its own.
    pub(super) fn late(&mut self) -> Option<&mut dyn Late> {
        self.optimizer.backend.late()
    }

    fn device(&mut self) -> Result<&mut dyn Late> {
        self.late().ok_or_else(|| Error::new(Kind::Unsupported, "this device answers at once"))
    }

    /// Performs a verb on the device.
    ///
    /// # Safety
    /// As [`Session::run`], until the work on the stream is done.
    pub(super) unsafe fn run_late(&mut self, call: &Call) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { self.lend(call)? };
        let mut order = self.block_order(call);
        match call.verb {
            Verb::Accumulate => self.device()?.begin(&order)?,
            Verb::Check => self.check_late()?,
            Verb::Apply => {
                order.step_lr = call.scale;
                self.device()?.end(&order)?;
            }
        }
        self.device()?.close()
    }

    unsafe fn lend(&mut self, call: &Call) -> Result<()> {
        let place = |content| self.layout.iter().position(|b| b.content == content).map(Role::State);
        let at = |given: Option<Given>| given.map_or(0, |given| given.data as u64);
        let own = |role: Role| at(call.output(role).or(call.input(role)));
        let state = |content| place(content).map_or(0, own);
        for (slot, plan) in self.optimizer.plan.slots.iter().enumerate() {
            let base = own(Role::State(self.places[slot]));
            let offset = plan.block * self.layout[self.places[slot]].stride();
            self.slots[slot] =
                if base == 0 { std::ptr::null_mut() } else { (base as usize + offset) as *mut u8 };
        }
        let slots: Vec<u64> = self.slots.iter().map(|slot| *slot as u64).collect();
        let mut copies = Vec::new();
        for (port, output) in call.ports.outputs.iter().zip(call.outputs) {
            let moved = call.input(port.role).filter(|input| input.data != output.data);
            if let Some(input) = moved.filter(|_| port.role != Role::Update) {
                copies.push((input.data as u64, output.data as u64, output.bytes));
            }
        }
        let real = |given: Option<Given>| (at(given), given.map_or(DType::F32, dtype));
        let workspace = call.output(Role::Workspace).map_or((0, 0), |w| (w.data as u64, w.bytes));
        let lent = Lent {
            slots: &slots,
            clocks: state(Content::Clock),
            records: state(Content::Record),
            infos: own(Role::Info),
            active: at(call.input(Role::Active)),
            params: at(call.input(Role::Params)),
            grads: real(call.input(Role::Grads)),
            updates: real(call.output(Role::Update)),
            copies: &copies,
            workspace,
            stream: call.stream,
        };
        // SAFETY: the caller's contract.
        unsafe { self.device()?.lend(&lent) }
    }

    /// What the kernels take from the host; clocks and norms are the device's.
    fn block_order(&self, call: &Call) -> BlockOrder {
        let options = StepOptions { lr: None, grad_scale: call.grad_scale };
        let tick = Tick { clock: Clock { step: 1, weight: 1.0 }, decay: 1.0, gain: 0.0 };
        order(&self.optimizer.config, &self.optimizer.plan.params[0], &tick, options)
    }

    fn check_late(&mut self) -> Result<()> {
        let plan = self.optimizer.plan.clone();
        if plan.factors.is_empty() {
            return Ok(());
        }
        // The search of the certified policy depends on what only the device knows yet: it is asked first.
        let certified = self.optimizer.config.policy == Policy::FoamCertified;
        let mut sense = all(&plan);
        if certified {
            self.ask(&[])?;
            let due = self.due();
            sense = due
                .iter()
                .filter(|f| self.optimizer.is_sensed(**f))
                .map(|f| self.optimizer.sense_order(*f))
                .collect();
        }
        let sensed = self.ask(&sense)?;
        let due = self.due();
        if due.is_empty() {
            return Ok(());
        }
        let records = &self.optimizer.records;
        let failed: Vec<usize> = due.iter().copied().filter(|f| failed(&records[*f].counters)).collect();
        let wanted: Vec<bool> =
            (0..plan.factors.len()).map(|f| due.contains(&f) && self.optimizer.is_sensed(f)).collect();
        let (orders, answers): (Vec<SenseOrder>, Vec<Sensed>) =
            sense.into_iter().zip(sensed).filter(|(order, _)| wanted[order.factor]).unzip();
        self.optimizer.act(&due, &orders, &answers, &failed)?;
        let pending = self.device()?.take_pending();
        let late: Vec<_> = pending.iter().map(|order| (order.factor, self.variants(order))).collect();
        let records: Vec<RecordWords> = self.optimizer.records.iter().map(words).collect();
        self.device()?.write_records(&records, &late)
    }

    /// Asks the device: clocks, infos and records, and what it senses.
    fn ask(&mut self, orders: &[SenseOrder]) -> Result<Vec<Sensed>> {
        let looked = self.optimizer.backend.late().map(|device| device.look(orders));
        let looked =
            looked.unwrap_or_else(|| Err(Error::new(Kind::Unsupported, "this device answers at once")))?;
        self.info.copy_from_slice(bytemuck::cast_slice(looked.infos));
        let (clocks, records, sensed) = (looked.clocks.to_vec(), looked.records.to_vec(), looked.sensed);
        self.read_clocks(&clocks)?;
        self.read_records(&records)?;
        self.optimizer.totals.steps = self.optimizer.clocks.iter().map(|c| c.step).max().unwrap_or(0);
        Ok(sensed)
    }

    /// The factors of the blocks that took part and whose clocks say so.
    fn due(&self) -> Vec<usize> {
        let due = |block: usize| {
            let t = self.optimizer.clocks[block].step;
            self.info[block] & (IDLE | NOT_FINITE) == 0
                && t > 0
                && cadence::is_check(&self.optimizer.config, t)
        };
        let params = self.optimizer.plan.params.iter().enumerate();
        params.filter(|(block, _)| due(*block)).flat_map(|(_, param)| param.factors.clone()).collect()
    }

    /// The record of a factor if its refresh succeeds, and if it fails.
    fn variants(&mut self, order: &RefreshOrder) -> [RecordWords; 2] {
        let before = self.optimizer.records[order.factor];
        let success = if order.doubled { Rung::Double } else { Rung::Chosen };
        [success, Rung::Stale].map(|rung| {
            self.optimizer.records[order.factor] = before;
            let none = f64::NAN;
            let refreshed = Refreshed { rung, noise_floor: none, eigenvalue_min: none, eigenvalue_max: none };
            self.optimizer.note(order, &refreshed);
            let record = self.optimizer.records[order.factor];
            self.optimizer.records[order.factor] = before;
            words(&record)
        })
    }
}

/// Every factor, those of equal side together, at the ε that the device has for it.
fn all(plan: &Plan) -> Vec<SenseOrder> {
    let order = |factor| SenseOrder { factor, scale: 1.0, epsilon: 0.0, search: None };
    let mut orders: Vec<SenseOrder> = (0..plan.factors.len()).map(order).collect();
    orders.sort_by_key(|order| std::cmp::Reverse(plan.factors[order.factor].dim));
    orders
}
