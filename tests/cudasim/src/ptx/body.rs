//! The body of a function: declarations, labels, instructions.

use super::lex::Token;
use super::operand::Scopes;
use super::parse::Parser;
use super::types::{Function, Operand, Raw, Space, Type};
use crate::reason::{Result, refuse};

/// Parses `{ .. }` into `function`.
pub(super) fn body(parser: &mut Parser, function: &mut Function) -> Result {
    let mut scopes = Scopes::default();
    parser.expect('{')?;
    scopes.open();
    let mut depth = 1;
    while depth > 0 {
        if parser.accept('{') {
            scopes.open();
            depth += 1;
        } else if parser.accept('}') {
            scopes.close();
            depth -= 1;
        } else if !parser.accept(';') {
            statement(parser, function, &mut scopes)?;
        }
    }
    function.registers = scopes.next;
    Ok(())
}

fn statement(parser: &mut Parser, function: &mut Function, scopes: &mut Scopes) -> Result {
    let line = parser.line();
    let mut guard = None;
    if parser.accept('@') {
        guard = Some(match parser.operand(scopes)? {
            Operand::Reg(slot, Type::Pred) => (slot, false),
            Operand::Not(inner) => match *inner {
                Operand::Reg(slot, Type::Pred) => (slot, true),
                other => refuse!(InvalidPtx, "line {line}: {other:?} is not a predicate"),
            },
            other => refuse!(InvalidPtx, "line {line}: {other:?} is not a predicate"),
        });
    }
    let word = parser.word()?;
    if guard.is_none() && parser.label_colon() {
        if let Some(Token::Word(next)) = parser.peek()
            && (next == ".branchtargets" || next == ".callprototype")
        {
            if next == ".callprototype" {
                refuse!(InvalidPtx, "line {line}: indirect calls are not supported");
            }
            parser.word()?;
            let mut labels = vec![parser.word()?];
            while parser.accept(',') {
                labels.push(parser.word()?);
            }
            function.targets.insert(word, labels);
            return parser.expect(';');
        }
        function.labels.insert(word, function.body.len());
        return Ok(());
    }
    match word.as_str() {
        ".reg" => return registers(parser, scopes),
        ".local" | ".shared" | ".param" | ".const" | ".global" => {
            let space = Space::parse(&word[1..]).unwrap_or(Space::Local);
            for var in parser.vars(space)? {
                // Call sequences declare the same `.param` names again and again: one place, large enough.
                match function.vars.iter_mut().find(|v| v.name == var.name && space == Space::Param) {
                    Some(known) => {
                        known.size = known.size.max(var.size);
                        known.align = known.align.max(var.align);
                    }
                    None => function.vars.push(var),
                }
            }
            return parser.expect(';');
        }
        ".loc" | ".pragma" | ".file" => return parser.skip_directive(&word),
        _ if word.starts_with('.') => refuse!(InvalidPtx, "line {line}: unknown directive `{word}`"),
        _ => {}
    }
    let mut operands = Vec::new();
    while !parser.accept(';') {
        operands.push(parser.operand(scopes)?);
        parser.accept(',');
    }
    let opcode = word.split('.').map(str::to_string).collect();
    function.body.push(Raw { guard, opcode, operands, line });
    Ok(())
}

fn registers(parser: &mut Parser, scopes: &mut Scopes) -> Result {
    let mut word = parser.word()?;
    if word == ".v2" || word == ".v4" {
        refuse!(InvalidPtx, "line {}: vector registers are not supported", parser.line());
    }
    let Some(ty) = word.strip_prefix('.').and_then(Type::parse) else {
        refuse!(InvalidPtx, "line {}: `{word}` is not a register type", parser.line());
    };
    loop {
        word = parser.word()?;
        let mut count = None;
        if parser.accept('<') {
            count = Some(parser.integer()? as u32);
            parser.expect('>')?;
        }
        scopes.declare(word, count, ty);
        if !parser.accept(',') {
            return parser.expect(';');
        }
    }
}
