//! The CUDA device on the caller's state: nothing is allocated on the device, and only a check waits.

use super::driver::{self, ALIGNMENT, Memory, Pinned};
use super::factor::batch;
use super::kernels::Engine;
use super::linear::{BLAS_WORKSPACE, Linear};
use super::stacks::{Bench, Layout};
use super::step::{self, each, launch};
use super::tables::{Choice, Drift, RECORD_WORDS, Task, Time, element_code};
use super::{Cuda, Memories, factor, probe};
use crate::backend::bound::{Late, Lent, Looked, RecordWords};
use crate::backend::{BlockOrder, RefreshOrder, SenseOrder};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::memory::Allocator;
use crate::optimizer::plan::Plan;
use crate::tensor::{DType, Precision};
use std::ffi::c_void;
use std::sync::Arc;

/// What a look brings to the host, as byte offsets.
struct Sheet {
    infos: usize,
    records: usize,
    drifts: usize,
    bytes: usize,
}

fn sheet(blocks: usize, factors: usize) -> Sheet {
    let infos = blocks * size_of::<Time>();
    let records = (infos + blocks * 4).next_multiple_of(8);
    let drifts = records + factors * RECORD_WORDS * 4;
    Sheet { infos, records, drifts, bytes: drifts + factors * size_of::<Drift>() }
}

impl Cuda {
    /// A backend for `plan`, whose blocks are one stack, that works on lent memory.
    pub fn borrowing(plan: Arc<Plan>, config: &Config) -> Result<Cuda> {
        let engine = Engine::open(config.device.id)?;
        let _current = engine.device.enter()?;
        let device = &engine.device;
        let mut layout = Layout::new(&plan, config)?;
        // A refresh in double precision must find room, too.
        let wide = plan.factors.iter().map(|f| Bench::bytes(f.dim, 8, 1)).max().unwrap_or(0);
        layout.work_bytes = layout.work_bytes.max(wide).next_multiple_of(ALIGNMENT);
        let nothing = || Memory::lent(device, 0, 0);
        let factors = plan.factors.len();
        let outgoing = factors * (RECORD_WORDS * 4 + size_of::<Choice>());
        let memory = Memories {
            state: nothing(),
            tables: nothing(),
            work: Memory::lent(device, 0, layout.work_bytes),
            bulletin: Pinned::new(device, sheet(plan.blocks.len(), factors).bytes + outgoing)?,
            tasks: Pinned::new(device, 4 * factors * size_of::<Task>())?,
        };
        let linear = Linear::new(device, None, probe::has_batched_solver())?;
        let mut made =
            Cuda::assemble(engine.clone(), plan, config, layout, linear, memory, Allocator::System)?;
        let tables = made.layout.tables.bytes.next_multiple_of(ALIGNMENT);
        made.lent_bytes = tables + made.layout.work_bytes + BLAS_WORKSPACE + made.solver_bytes()? + ALIGNMENT;
        Ok(made)
    }

    /// Bytes that the solver needs for any group of factors, in either precision.
    fn solver_bytes(&self) -> Result<usize> {
        let factors = self.by_side();
        let mut most = 0;
        for precision in [None, Some(Precision::F64)] {
            for group in self.groups(&factors, |_| precision) {
                most = most.max(self.linear.needs(&batch(&self.bench(&group), &group))?.0);
            }
        }
        Ok(most.next_multiple_of(ALIGNMENT))
    }

    fn sheet(&self) -> Sheet {
        sheet(self.plan.blocks.len(), self.plan.factors.len())
    }

    /// Copies from the caller's memory into the sheet.
    fn take_down(&self, place: usize, from: u64, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the sheet has the bytes, and the host waits before it reads them.
        unsafe { driver::download(self.bulletin.data().add(place), from, bytes, self.stream) }
    }

    /// The sites of the stacks, written by the device itself.
    fn lay_sites(&self, lent: &Lent, decay: f64) -> Result<()> {
        let (grads, dtype) = lent.grads;
        for (stack, view) in self.layout.stacks.iter().zip(&self.stacks) {
            let bytes = |dtype: DType| (stack.elements * dtype.size()) as u64;
            let (param_bytes, grad_bytes, first) = (bytes(stack.dtype), bytes(dtype), stack.first as u64);
            let params = if lent.params == 0 { 0 } else { lent.params + first * param_bytes };
            let grads = grads + first * grad_bytes;
            let active = if lent.active == 0 { 0 } else { lent.active + 4 * first };
            let (decay, code) = (if lent.params == 0 { 0.0 } else { decay }, element_code(dtype));
            let grid = each(stack.blocks.len());
            let lay = self.engine.lay;
            launch!(
                lay,
                grid,
                self.stream,
                *view,
                params,
                grads,
                param_bytes,
                grad_bytes,
                decay,
                code,
                active
            )?;
        }
        Ok(())
    }

    /// The weight decay of the plan's blocks.
    fn decay(&self) -> f64 {
        self.config.weight_decay * self.plan.params[0].spec.weight_decay_scale
    }
}

impl Late for Cuda {
    fn workspace_bytes(&self) -> Result<usize> {
        Ok(self.lent_bytes)
    }

    unsafe fn lend(&mut self, lent: &Lent) -> Result<()> {
        let engine = self.engine.clone();
        let _current = engine.device.enter()?;
        self.stream = lent.stream.cast();
        self.capturing = driver::is_capturing(self.stream)?;
        let (start, bytes) = lent.workspace;
        let at = start.next_multiple_of(ALIGNMENT as u64);
        let tables = self.layout.tables.bytes.next_multiple_of(ALIGNMENT);
        let fixed = tables + self.layout.work_bytes + (at - start) as usize;
        let Some(rest) = bytes.checked_sub(fixed) else {
            return Err(Error::invalid(format!(
                "the workspace has {bytes} bytes; expected more than {fixed}"
            )));
        };
        self.tables = Memory::lent(&engine.device, at, tables);
        self.work = Memory::lent(&engine.device, at + tables as u64, self.layout.work_bytes);
        self.linear.borrow(at + (tables + self.layout.work_bytes) as u64, rest);
        self.slots.copy_from_slice(lent.slots);
        (self.clocks, self.infos) = (lent.clocks, lent.infos);
        self.dampings = (lent.records, RECORD_WORDS * 4);
        self.stacks = self.bind();
        for (stack, view) in self.layout.stacks.iter().zip(&mut self.stacks) {
            let (updates, dtype) = lent.updates;
            let offset = (stack.first * stack.elements * dtype.size()) as u64;
            view.update = if updates == 0 { 0 } else { updates + offset };
            view.update_dtype = element_code(dtype);
        }
        if !self.capturing && self.last.is_some_and(|last| last != self.stream) {
            self.ready.before(self.stream)?;
        }
        self.linear.follow(self.stream)?;
        for (from, to, bytes) in lent.copies {
            // SAFETY: the caller's contract.
            unsafe { driver::copy(*to, *from, *bytes, self.stream)? };
        }
        if lent.grads.0 != 0 { self.lay_sites(lent, self.decay()) } else { Ok(()) }
    }

    fn begin(&mut self, order: &BlockOrder) -> Result<()> {
        let engine = self.engine.clone();
        let _current = engine.device.enter()?;
        step::measure(self, order, 0)?;
        step::accumulate(self, order, 0)
    }

    fn look(&mut self, orders: &[SenseOrder]) -> Result<Looked<'_>> {
        let engine = self.engine.clone();
        let _current = engine.device.enter()?;
        if self.capturing {
            return Err(Error::new(
                crate::error::Kind::Unsupported,
                "a check must wait for the device, but the stream is being captured",
            ));
        }
        factor::sense(self, orders)?;
        let (sheet, sections) = (self.sheet(), &self.layout.tables);
        let (blocks, factors) = (self.plan.blocks.len(), self.plan.factors.len());
        self.take_down(0, self.clocks, sheet.infos)?;
        self.take_down(sheet.infos, self.infos, blocks * 4)?;
        self.take_down(sheet.records, self.dampings.0, factors * RECORD_WORDS * 4)?;
        let drifts = self.tables.address() + sections.drifts as u64;
        self.take_down(sheet.drifts, drifts, orders.len() * size_of::<Drift>())?;
        driver::wait_for(self.stream)?;
        let told = self.bulletin.bytes();
        let sensed = told[sheet.drifts..sheet.drifts + orders.len() * size_of::<Drift>()]
            .chunks_exact(size_of::<Drift>())
            .map(|bytes| factor::sensed(&bytemuck::pod_read_unaligned(bytes)))
            .collect();
        Ok(Looked {
            clocks: &told[..sheet.infos],
            infos: &told[sheet.infos..sheet.infos + blocks * 4],
            records: &told[sheet.records..sheet.drifts],
            sensed,
        })
    }

    fn take_pending(&mut self) -> Vec<RefreshOrder> {
        std::mem::take(&mut self.pending)
    }

    fn write_records(&mut self, records: &[RecordWords], late: &[(usize, [RecordWords; 2])]) -> Result<()> {
        let engine = self.engine.clone();
        let _current = engine.device.enter()?;
        let choices: Vec<Choice> = late
            .iter()
            .map(|(factor, [sound, failed])| Choice {
                record: self.dampings.0 + (factor * self.dampings.1) as u64,
                renewal: self.renewal(*factor),
                info: self.infos + 4 * self.plan.factors[*factor].block as u64,
                sound: *sound,
                failed: *failed,
            })
            .collect();
        let outgoing = self.sheet().bytes;
        let (own, rest): (&[u8], &[u8]) = (bytemuck::cast_slice(records), bytemuck::cast_slice(&choices));
        // SAFETY: the pinned sheet has room behind what a look brings. What it held before has been copied: the
        // host has waited for the device since.
        unsafe {
            let staged = self.bulletin.data().add(outgoing);
            std::ptr::copy_nonoverlapping(own.as_ptr(), staged, own.len());
            driver::upload(self.dampings.0, staged, own.len(), self.stream)?;
            if choices.is_empty() {
                return Ok(());
            }
            let staged = staged.add(own.len());
            std::ptr::copy_nonoverlapping(rest.as_ptr(), staged, rest.len());
            let table = self.tables.address() + self.layout.tables.choices as u64;
            driver::upload(table, staged, rest.len(), self.stream)?;
        }
        let table = self.tables.address() + self.layout.tables.choices as u64;
        let grid = step::wide(choices.len(), 1, RECORD_WORDS);
        launch!(self.engine.choose, grid, self.stream, table)
    }

    fn end(&mut self, order: &BlockOrder) -> Result<()> {
        let engine = self.engine.clone();
        let _current = engine.device.enter()?;
        if self.config.normalized_grafting {
            step::measure(self, order, 0)?;
        }
        for (stack, view) in self.layout.stacks.iter().zip(&self.stacks) {
            let rules = self.rules(stack, order);
            launch!(self.engine.recall, each(stack.blocks.len()), self.stream, *view, rules)?;
        }
        // Whether there are inverse roots yet, only the device knows.
        for (marked, stack) in self.preconditioned.iter_mut().zip(&self.layout.stacks) {
            *marked = stack.preconditioned;
        }
        step::update(self, order, 0)
    }

    fn close(&mut self) -> Result<()> {
        let engine = self.engine.clone();
        let _current = engine.device.enter()?;
        if self.capturing { Ok(()) } else { self.mark(self.stream) }
    }

    unsafe fn store(&mut self, from: Option<&[u8]>, to: u64, bytes: usize) -> Result<()> {
        let engine = self.engine.clone();
        let _current = engine.device.enter()?;
        let own = self.own.raw();
        match from {
            // SAFETY: the caller's contract; the bytes stay until the wait is over.
            Some(from) => unsafe { driver::upload(to, from.as_ptr(), bytes, own)? },
            None => driver::fill(to, 0, bytes, own)?,
        }
        driver::wait_for(own)
    }
}
