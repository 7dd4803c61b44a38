//! Tokens to a module: variables, functions, instructions with their registers resolved to slots.

use super::lex::{Token, lex};
use super::types::{Function, Init, Source, Space, Type, Var};
use crate::reason::{Result, refuse};

/// Parses a whole PTX module.
pub fn parse(text: &str) -> Result<Source> {
    let mut parser = Parser { tokens: lex(text)?, at: 0 };
    let mut source = Source::default();
    while parser.at < parser.tokens.len() {
        parser.item(&mut source)?;
    }
    if source.version == 0 {
        refuse!(InvalidPtx, "the image has no .version directive: it is not PTX text");
    }
    Ok(source)
}

pub(super) struct Parser {
    tokens: Vec<(Token, u32)>,
    at: usize,
}

impl Parser {
    pub(super) fn line(&self) -> u32 {
        self.tokens.get(self.at.min(self.tokens.len().saturating_sub(1))).map_or(0, |t| t.1)
    }

    pub(super) fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|t| &t.0)
    }

    pub(super) fn next(&mut self) -> Result<Token> {
        match self.tokens.get(self.at) {
            Some((token, _)) => {
                self.at += 1;
                Ok(token.clone())
            }
            None => refuse!(InvalidPtx, "the text ends too early"),
        }
    }

    pub(super) fn is(&self, c: char) -> bool {
        self.peek() == Some(&Token::Punct(c))
    }

    pub(super) fn accept(&mut self, c: char) -> bool {
        let found = self.is(c);
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect(&mut self, c: char) -> Result {
        if !self.accept(c) {
            refuse!(InvalidPtx, "line {}: expected `{c}`, found {:?}", self.line(), self.peek());
        }
        Ok(())
    }

    pub(super) fn word(&mut self) -> Result<String> {
        match self.next()? {
            Token::Word(word) => Ok(word),
            other => refuse!(InvalidPtx, "line {}: expected a name, found {other:?}", self.line()),
        }
    }

    pub(super) fn integer(&mut self) -> Result<i64> {
        let negative = self.accept('-');
        match self.next()? {
            Token::Int(value) => Ok(if negative { (value as i64).wrapping_neg() } else { value as i64 }),
            other => refuse!(InvalidPtx, "line {}: expected an integer, found {other:?}", self.line()),
        }
    }

    fn skip_line(&mut self) {
        let line = self.line();
        while self.at < self.tokens.len() && self.tokens[self.at].1 == line {
            self.at += 1;
        }
    }

    fn item(&mut self, source: &mut Source) -> Result {
        let mut external = false;
        loop {
            let line = self.line();
            let word = self.word()?;
            match word.as_str() {
                ".version" => {
                    let Token::F64(bits) = self.next()? else {
                        refuse!(InvalidPtx, "line {line}: bad .version")
                    };
                    source.version = (f64::from_bits(bits) * 10.0).round() as u32;
                    return Ok(());
                }
                ".target" => {
                    let target = self.word()?;
                    let digits: String = target.chars().filter(char::is_ascii_digit).collect();
                    source.target = digits.parse().unwrap_or(0);
                    while self.accept(',') {
                        self.word()?;
                    }
                    return Ok(());
                }
                ".address_size" => {
                    if self.integer()? != 64 {
                        refuse!(InvalidPtx, "line {line}: only .address_size 64 is supported");
                    }
                    return Ok(());
                }
                ".file" | ".loc" => {
                    self.skip_line();
                    return Ok(());
                }
                ".section" => {
                    self.word()?;
                    self.expect('{')?;
                    while !self.accept('}') {
                        self.next()?;
                    }
                    return Ok(());
                }
                ".visible" | ".weak" | ".common" => {}
                ".extern" => external = true,
                ".entry" | ".func" => {
                    let function = self.function(word == ".entry")?;
                    return add_function(source, function);
                }
                ".alias" | ".pragma" => {
                    while !self.accept(';') {
                        self.next()?;
                    }
                    return Ok(());
                }
                ".global" | ".const" | ".shared" => {
                    let space = Space::parse(&word[1..]).unwrap_or(Space::Global);
                    source.vars.extend(self.vars(space)?);
                    let _ = external;
                    return self.expect(';');
                }
                _ => refuse!(InvalidPtx, "line {line}: unknown directive `{word}`"),
            }
        }
    }

    /// `.align 8 .b8 name[64] = {..}, other ..`, after the space.
    pub(super) fn vars(&mut self, space: Space) -> Result<Vec<Var>> {
        let mut vars = vec![self.var(space)?];
        while self.is(',') {
            self.at += 1;
            let (align, element) = (vars[0].align, vars[0].element);
            vars.push(self.var_tail(space, align, element, 1)?);
        }
        Ok(vars)
    }

    fn var(&mut self, space: Space) -> Result<Var> {
        let (mut align, mut vector) = (0, 1);
        loop {
            let word = self.word()?;
            match word.as_str() {
                ".align" => align = self.integer()? as usize,
                ".ptr" | ".global" | ".const" | ".shared" | ".local" | ".attribute" => {}
                ".v2" => vector = 2,
                ".v4" => vector = 4,
                _ => {
                    let Some(element) = word.strip_prefix('.').and_then(Type::parse) else {
                        refuse!(InvalidPtx, "line {}: `{word}` is not a type", self.line());
                    };
                    if align == 0 {
                        align = element.size() * vector;
                    }
                    return self.var_tail(space, align, element, vector);
                }
            }
        }
    }

    fn var_tail(&mut self, space: Space, mut align: usize, element: Type, vector: usize) -> Result<Var> {
        // `.param .u64 .ptr .global .align 1 name`: attributes of the pointee.
        while let Some(Token::Word(word)) = self.peek() {
            match word.as_str() {
                ".ptr" | ".global" | ".const" | ".shared" | ".local" => self.at += 1,
                ".align" => {
                    self.at += 1;
                    self.integer()?;
                }
                _ => break,
            }
        }
        let name = self.word()?;
        let mut count = 1;
        let mut open = false;
        while self.accept('[') {
            if self.accept(']') {
                open = true;
            } else {
                count *= self.integer()? as usize;
                self.expect(']')?;
            }
        }
        let mut init = Vec::new();
        if self.accept('=') {
            self.initialiser(element, &mut init)?;
        }
        if open {
            count = init.len();
        }
        align = align.max(1);
        Ok(Var { name, space, align, element, size: count * vector * element.size(), init })
    }

    fn initialiser(&mut self, element: Type, out: &mut Vec<Init>) -> Result {
        if self.accept('{') {
            while !self.accept('}') {
                self.initialiser(element, out)?;
                self.accept(',');
            }
            return Ok(());
        }
        let negative = self.accept('-');
        match self.next()? {
            Token::Int(value) if element.float() => {
                let value = if negative { -(value as f64) } else { value as f64 };
                out.push(Init::Bits(float_bits(element, value.to_bits())));
            }
            Token::Int(value) => {
                let value = if negative { value.wrapping_neg() } else { value };
                out.push(Init::Bits(value & element.mask()));
            }
            Token::F32(bits) => out.push(Init::Bits(u64::from(bits))),
            Token::F64(bits) => out.push(Init::Bits(float_bits(element, bits))),
            Token::Word(name) if name == "generic" => {
                self.expect('(')?;
                let name = self.word()?;
                self.expect(')')?;
                let offset = if self.accept('+') { self.integer()? } else { 0 };
                out.push(Init::Address(name, offset));
            }
            Token::Word(name) => {
                let offset = if self.accept('+') { self.integer()? } else { 0 };
                out.push(Init::Address(name, offset));
            }
            other => refuse!(InvalidPtx, "line {}: bad initialiser {other:?}", self.line()),
        }
        Ok(())
    }

    fn function(&mut self, entry: bool) -> Result<Function> {
        let mut function = Function { entry, ..Function::default() };
        if self.is('(') {
            function.returns = self.parameters()?;
        }
        function.name = self.word()?;
        if self.is('(') {
            function.params = self.parameters()?;
        }
        loop {
            match self.peek() {
                Some(Token::Word(word)) => {
                    let word = word.clone();
                    self.at += 1;
                    match word.as_str() {
                        ".maxntid" | ".reqntid" => {
                            let mut threads = self.integer()?;
                            while self.accept(',') {
                                threads *= self.integer()?;
                            }
                            function.max_threads = Some(threads as u32);
                        }
                        ".minnctapersm" | ".maxnctapersm" | ".maxnreg" => {
                            self.integer()?;
                        }
                        ".noreturn" => {}
                        ".pragma" => {
                            self.next()?;
                            self.accept(';');
                        }
                        _ => refuse!(InvalidPtx, "line {}: unknown directive `{word}`", self.line()),
                    }
                }
                Some(Token::Punct(';')) => {
                    self.at += 1;
                    return Ok(function);
                }
                _ => break,
            }
        }
        function.defined = true;
        super::body::body(self, &mut function)?;
        Ok(function)
    }

    fn parameters(&mut self) -> Result<Vec<Var>> {
        let mut params = Vec::new();
        self.expect('(')?;
        while !self.accept(')') {
            let space = self.word()?;
            if space != ".param" {
                refuse!(
                    InvalidPtx,
                    "line {}: only .param parameters are supported, not `{space}`",
                    self.line()
                );
            }
            params.push(self.var(Space::Param)?);
            self.accept(',');
        }
        Ok(params)
    }

    /// Skips the rest of a directive that carries no meaning for execution.
    pub(super) fn skip_directive(&mut self, word: &str) -> Result {
        if word == ".loc" {
            self.skip_line();
            return Ok(());
        }
        while !self.accept(';') {
            self.next()?;
        }
        Ok(())
    }

    /// Whether the next token is a label's colon; takes it if so.
    pub(super) fn label_colon(&mut self) -> bool {
        self.accept(':')
    }
}

/// The bits of an f64 literal in an element type.
fn float_bits(element: Type, bits: u64) -> u64 {
    if element == Type::F(4) { u64::from((f64::from_bits(bits) as f32).to_bits()) } else { bits }
}

/// A definition replaces the declaration before it.
fn add_function(source: &mut Source, function: Function) -> Result {
    match source.functions.iter_mut().find(|f| f.name == function.name) {
        Some(known) if function.defined && known.defined => {
            refuse!(InvalidPtx, "function `{}` is defined twice", function.name)
        }
        Some(known) if function.defined => *known = function,
        Some(_) => {}
        None => source.functions.push(function),
    }
    Ok(())
}
