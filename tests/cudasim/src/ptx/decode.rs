//! Parsed functions to decoded ones: memory layout, operands, labels.

use std::collections::HashMap;

use super::code::{Code, Ins, NONE, Op, Program, Special};
use super::types::{Function, Operand, Raw, Source, Space, Type};
use crate::reason::{Result, refuse};

/// Decodes a module whose module-scope variables live at `addresses`.
pub fn decode(source: &Source, addresses: &HashMap<String, u64>) -> Result<Program> {
    let mut shared = HashMap::new();
    let mut shared_size = 0;
    for var in source.vars.iter().filter(|v| v.space == Space::Shared && v.size > 0) {
        shared_size = align(shared_size, var.align);
        shared.insert(var.name.clone(), shared_size);
        shared_size += var.size;
    }
    let mut hints = 0;
    let mut functions = Vec::new();
    for function in &source.functions {
        let mut decoder = Decoder {
            source,
            function,
            addresses,
            module_shared: &shared,
            layout: HashMap::new(),
            constants: HashMap::new(),
            code: Code::default(),
            next_slot: function.registers,
            hints: &mut hints,
            guard: None,
            line: 0,
            carry: NONE,
            values: Vec::new(),
        };
        functions.push(decoder.run(shared_size)?);
    }
    Ok(Program { functions, hints, version: source.version })
}

/// `offset` rounded up to a multiple of `to`.
pub fn align(offset: usize, to: usize) -> usize {
    offset.div_ceil(to.max(1)) * to.max(1)
}

/// The state of decoding one function.
pub(super) struct Decoder<'a> {
    pub(super) source: &'a Source,
    pub(super) function: &'a Function,
    addresses: &'a HashMap<String, u64>,
    module_shared: &'a HashMap<String, usize>,
    /// Local, shared and param variables: space and offset.
    layout: HashMap<String, (Space, usize, usize)>,
    constants: HashMap<u64, u32>,
    pub(super) code: Code,
    next_slot: u32,
    pub(super) hints: &'a mut u32,
    pub(super) guard: Option<(u32, bool)>,
    pub(super) line: u32,
    pub(super) carry: u32,
    /// Initial values of slots beyond the named registers.
    values: Vec<(u32, u64)>,
}

impl Decoder<'_> {
    fn run(&mut self, module_shared: usize) -> Result<Code> {
        self.lay_out(module_shared);
        let mut starts = Vec::with_capacity(self.function.body.len() + 1);
        for raw in &self.function.body {
            starts.push(self.code.ins.len() as u32);
            self.line = raw.line;
            self.guard = raw.guard;
            self.instruction(raw)?;
        }
        starts.push(self.code.ins.len() as u32);
        self.guard = None;
        self.emit(Op::Return);
        for ins in &mut self.code.ins {
            match &mut ins.op {
                Op::Branch(target) => *target = starts[*target as usize],
                Op::BranchTable { targets, .. } => targets.iter_mut().for_each(|t| *t = starts[*t as usize]),
                _ => {}
            }
        }
        self.code.template = vec![0; self.next_slot as usize];
        for &(slot, value) in &self.values {
            self.code.template[slot as usize] = value;
        }
        Ok(std::mem::take(&mut self.code))
    }

    /// Places parameters, local and shared variables.
    fn lay_out(&mut self, module_shared: usize) {
        let function = self.function;
        self.code.name = function.name.clone();
        self.code.entry = function.entry;
        self.code.max_threads = function.max_threads;
        let mut params = 0;
        for (vars, list) in
            [(&function.params, &mut self.code.arguments), (&function.returns, &mut self.code.returns)]
        {
            for var in vars {
                params = align(params, var.align);
                list.push((params, var.size));
                self.layout.insert(var.name.clone(), (Space::Param, params, var.size));
                params += var.size;
            }
        }
        self.code.formal = params;
        let (mut local, mut shared) = (0, module_shared);
        for var in &function.vars {
            let at = match var.space {
                Space::Param => &mut params,
                Space::Shared => &mut shared,
                _ => &mut local,
            };
            *at = align(*at, if var.space == Space::Param { 16 } else { var.align });
            self.layout.insert(var.name.clone(), (var.space, *at, var.size));
            *at += var.size;
        }
        self.code.params = align(params, 16);
        self.code.local = align(local, 16);
        self.code.shared = shared;
    }

    /// Appends an instruction under the current guard.
    pub(super) fn emit(&mut self, op: Op) {
        let (guard, skip_when) = match self.guard {
            Some((slot, negated)) => (slot, u64::from(negated)),
            None => (super::code::ALWAYS, 0),
        };
        self.code.ins.push(Ins { guard, skip_when, op });
        self.code.lines.push(self.line);
    }

    /// A fresh slot.
    pub(super) fn temp(&mut self) -> u32 {
        self.next_slot += 1;
        self.next_slot - 1
    }

    /// The slot of a literal.
    pub(super) fn constant(&mut self, bits: u64) -> u32 {
        if let Some(&slot) = self.constants.get(&bits) {
            return slot;
        }
        let slot = self.temp();
        self.constants.insert(bits, slot);
        self.values.push((slot, bits));
        slot
    }

    fn special(&mut self, special: Special) -> u32 {
        if let Some(&(slot, _)) = self.code.specials.iter().find(|s| s.1 == special) {
            return slot;
        }
        let slot = self.temp();
        self.code.specials.push((slot, special));
        slot
    }

    /// The slot that an operand of type `ty` is read from.
    pub(super) fn source(&mut self, operand: &Operand, ty: Type) -> Result<u32> {
        Ok(match operand {
            Operand::Reg(slot, _) => *slot,
            Operand::Int(bits) => match ty {
                Type::F(4) => self.constant(u64::from((*bits as i64 as f32).to_bits())),
                Type::F(8) => self.constant((*bits as i64 as f64).to_bits()),
                _ => self.constant(bits & ty.mask()),
            },
            Operand::F32(bits) => match ty {
                Type::F(8) => self.constant(f64::from(f32::from_bits(*bits)).to_bits()),
                _ => self.constant(u64::from(*bits)),
            },
            Operand::F64(bits) => match ty {
                Type::F(4) => self.constant(u64::from((f64::from_bits(*bits) as f32).to_bits())),
                _ => self.constant(*bits),
            },
            Operand::Special(name) => self.special_register(name)?,
            Operand::Symbol(name) => self.symbol(name, 0)?,
            Operand::Address(base, offset) => match &**base {
                Operand::Symbol(name) => self.symbol(name, *offset)?,
                _ => refuse!(InvalidPtx, "line {}: an address is not a value here", self.line),
            },
            Operand::Not(inner) => {
                let a = self.source(inner, ty)?;
                let d = self.temp();
                self.emit(Op::Un { f: |a| a ^ 1, d, a });
                d
            }
            other => refuse!(InvalidPtx, "line {}: {other:?} is not a value", self.line),
        })
    }

    /// The slot that holds a variable's address.
    fn symbol(&mut self, name: &str, offset: i64) -> Result<u32> {
        if let Some(&(space, at, _)) = self.layout.get(name) {
            let at = at as i64 + offset;
            if space == Space::Local {
                let d = self.temp();
                self.emit(Op::LocalAddress { d, offset: at as u32 });
                return Ok(d);
            }
            return Ok(self.constant(at as u64));
        }
        if let Some(&at) = self.module_shared.get(name) {
            return Ok(self.constant((at as i64 + offset) as u64));
        }
        if let Some(&address) = self.addresses.get(name) {
            return Ok(self.constant(address.wrapping_add(offset as u64)));
        }
        if self.source.vars.iter().any(|v| v.name == name && v.space == Space::Shared) {
            let base = self.special(Special::DynamicBase);
            if offset == 0 {
                return Ok(base);
            }
            let (d, b) = (self.temp(), self.constant(offset as u64));
            self.emit(Op::Bin { f: |a, b| a.wrapping_add(b), d, a: base, b });
            return Ok(d);
        }
        refuse!(InvalidPtx, "line {}: unknown name `{name}`", self.line)
    }

    /// Offset and size of a parameter variable.
    pub(super) fn param(&self, operand: &Operand) -> Result<(usize, usize)> {
        if let Operand::Symbol(name) = operand
            && let Some(&(Space::Param, at, size)) = self.layout.get(name)
        {
            return Ok((at, size));
        }
        refuse!(InvalidPtx, "line {}: {operand:?} is not a .param variable", self.line)
    }

    /// The slot that a destination is written to.
    pub(super) fn destination(&mut self, operand: &Operand) -> Result<u32> {
        match operand {
            Operand::Reg(slot, _) => Ok(*slot),
            Operand::Sink => Ok(self.temp()),
            other => refuse!(InvalidPtx, "line {}: {other:?} is not a register", self.line),
        }
    }

    /// The bits that a destination register can hold.
    pub(super) fn mask_of(operand: &Operand) -> u64 {
        if let Operand::Reg(_, ty) = operand { ty.mask() } else { u64::MAX }
    }

    /// The register and offset of `[address]`.
    pub(super) fn address(&mut self, operand: &Operand) -> Result<(u32, i64)> {
        let Operand::Address(base, offset) = operand else {
            refuse!(InvalidPtx, "line {}: expected an address, found {operand:?}", self.line);
        };
        Ok(match &**base {
            Operand::Reg(slot, _) => (*slot, *offset),
            Operand::Int(bits) => (NONE, (*bits as i64).wrapping_add(*offset)),
            other => match other {
                Operand::Symbol(name) if matches!(self.layout.get(name), Some((Space::Param, ..))) => {
                    (NONE, self.layout[name].1 as i64 + *offset)
                }
                _ => (self.source(other, Type::U(8))?, *offset),
            },
        })
    }

    /// The index in the body that a label names.
    pub(super) fn label(&self, operand: &Operand) -> Result<u32> {
        if let Operand::Symbol(name) = operand {
            return self.label_named(name);
        }
        refuse!(InvalidPtx, "line {}: {operand:?} is not a label", self.line)
    }

    /// Likewise by name.
    pub(super) fn label_named(&self, name: &str) -> Result<u32> {
        match self.function.labels.get(name) {
            Some(&index) => Ok(index as u32),
            None => refuse!(InvalidPtx, "line {}: unknown label `{name}`", self.line),
        }
    }

    fn special_register(&mut self, name: &str) -> Result<u32> {
        let (base, axis) = match name.rsplit_once('.') {
            Some((base, axis)) => (base, ["x", "y", "z"].iter().position(|a| *a == axis)),
            None => (name, None),
        };
        let special = match (base, axis) {
            ("%tid", Some(axis)) => Special::Tid(axis),
            ("%ntid", Some(axis)) => Special::Ntid(axis),
            ("%ctaid", Some(axis)) => Special::Ctaid(axis),
            ("%nctaid", Some(axis)) => Special::Nctaid(axis),
            ("%laneid", _) => Special::Lane,
            ("%warpid", _) => Special::Warp,
            ("%nwarpid", _) => Special::Warps,
            ("%smid" | "%gridid", _) => Special::Zero,
            ("%nsmid", _) => Special::One,
            ("%lanemask_eq", _) => Special::LaneMaskEq,
            ("%lanemask_lt", _) => Special::LaneMaskLt,
            ("%lanemask_le", _) => Special::LaneMaskLe,
            ("%lanemask_gt", _) => Special::LaneMaskGt,
            ("%lanemask_ge", _) => Special::LaneMaskGe,
            ("%dynamic_smem_size", _) => Special::DynamicShared,
            ("%total_smem_size", _) => Special::TotalShared,
            ("%clock" | "%clock64" | "%globaltimer" | "%globaltimer_lo", _) => {
                let d = self.temp();
                self.emit(Op::Clock { d });
                return Ok(d);
            }
            _ => refuse!(InvalidPtx, "line {}: unknown register `{name}`", self.line),
        };
        Ok(self.special(special))
    }

    /// A refusal of the whole instruction.
    pub(super) fn unknown<T>(&self, raw: &Raw) -> Result<T> {
        refuse!(
            InvalidPtx,
            "line {}: instruction `{}` of `{}` is not supported",
            raw.line,
            raw.opcode.join("."),
            self.function.name
        )
    }
}
