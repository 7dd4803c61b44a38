//! Operands of instructions, and the scopes in which register names are looked up.

use std::collections::HashMap;

use super::lex::Token;
use super::parse::Parser;
use super::types::{Operand, Type};
use crate::reason::{Result, refuse};

impl Parser {
    /// One operand, with register names looked up in `scopes`.
    pub(super) fn operand(&mut self, scopes: &Scopes) -> Result<Operand> {
        let first = self.simple(scopes)?;
        if self.accept('|') {
            let second = self.simple(scopes)?;
            return Ok(Operand::Pair(Box::new(first), Box::new(second)));
        }
        Ok(first)
    }

    fn simple(&mut self, scopes: &Scopes) -> Result<Operand> {
        let line = self.line();
        Ok(match self.next()? {
            Token::Punct('[') => {
                let base = self.simple(scopes)?;
                let mut offset = 0i64;
                while !self.accept(']') {
                    let plus = self.accept('+');
                    if !plus && !self.is('-') {
                        refuse!(InvalidPtx, "line {line}: bad address");
                    }
                    offset += self.integer()?;
                }
                Operand::Address(Box::new(base), offset)
            }
            Token::Punct('{') => Operand::Vector(self.list(scopes, '}')?),
            Token::Punct('(') => Operand::List(self.list(scopes, ')')?),
            Token::Punct('!') => Operand::Not(Box::new(self.simple(scopes)?)),
            Token::Punct('-') => match self.next()? {
                Token::Int(value) => Operand::Int(value.wrapping_neg()),
                Token::F32(bits) => Operand::F32(bits ^ 0x8000_0000),
                Token::F64(bits) => Operand::F64(bits ^ (1 << 63)),
                other => refuse!(InvalidPtx, "line {line}: cannot negate {other:?}"),
            },
            Token::Int(value) => Operand::Int(value),
            Token::F32(bits) => Operand::F32(bits),
            Token::F64(bits) => Operand::F64(bits),
            Token::Word(word) if word == "_" => Operand::Sink,
            Token::Word(word) => match scopes.find(&word) {
                Some((slot, ty)) => Operand::Reg(slot, ty),
                None if word.starts_with('%') => Operand::Special(word),
                None => {
                    if self.accept('+') {
                        let offset = self.integer()?;
                        return Ok(Operand::Address(Box::new(Operand::Symbol(word)), offset));
                    }
                    Operand::Symbol(word)
                }
            },
            other => refuse!(InvalidPtx, "line {line}: unexpected {other:?}"),
        })
    }

    fn list(&mut self, scopes: &Scopes, close: char) -> Result<Vec<Operand>> {
        let mut list = Vec::new();
        while !self.accept(close) {
            list.push(self.operand(scopes)?);
            self.accept(',');
        }
        Ok(list)
    }
}

/// The names of registers, by nested `{ }` scopes.
#[derive(Default)]
pub(super) struct Scopes {
    /// Each scope: exact names, and `%r<n>` families as prefix, first slot, count, type.
    stack: Vec<Scope>,
    /// The next free slot.
    pub(super) next: u32,
}

#[derive(Default)]
struct Scope {
    names: HashMap<String, (u32, Type)>,
    families: Vec<(String, u32, u32, Type)>,
}

impl Scopes {
    pub(super) fn open(&mut self) {
        self.stack.push(Scope::default());
    }

    pub(super) fn close(&mut self) {
        self.stack.pop();
    }

    /// Declares one register, or `count` numbered ones.
    pub(super) fn declare(&mut self, name: String, count: Option<u32>, ty: Type) {
        let first = self.next;
        self.next += count.unwrap_or(1);
        if let Some(scope) = self.stack.last_mut() {
            match count {
                Some(count) => scope.families.push((name, first, count, ty)),
                None => {
                    scope.names.insert(name, (first, ty));
                }
            }
        }
    }

    fn find(&self, name: &str) -> Option<(u32, Type)> {
        self.stack.iter().rev().find_map(|scope| {
            scope.names.get(name).copied().or_else(|| {
                scope.families.iter().find_map(|(prefix, first, count, ty)| {
                    let index: u32 = name.strip_prefix(prefix.as_str())?.parse().ok()?;
                    (index < *count).then_some((first + index, *ty))
                })
            })
        })
    }
}
