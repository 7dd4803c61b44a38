//! PTX text to tokens.

use crate::reason::{Result, refuse};

/// One token. Opcodes and directives keep their dots: `ld.global.f32` and `.reg` are single words.
#[derive(Clone, Debug, PartialEq)]
pub enum Token {
    /// A name, an opcode or a directive.
    Word(String),
    /// An integer literal, as its bits.
    Int(u64),
    /// A `0f` literal, as the bits of an f32.
    F32(u32),
    /// A `0d` or decimal literal, as the bits of an f64.
    F64(u64),
    /// A quoted string, without the quotes.
    Text(String),
    /// Any other character.
    Punct(char),
}

/// Tokens with the line each came from.
pub fn lex(source: &str) -> Result<Vec<(Token, u32)>> {
    let bytes = source.as_bytes();
    let mut tokens = Vec::new();
    let (mut i, mut line) = (0, 1u32);
    while i < bytes.len() {
        let c = bytes[i];
        if c == b'\n' {
            line += 1;
            i += 1;
        } else if c.is_ascii_whitespace() || c == 0 {
            i += 1;
        } else if bytes[i..].starts_with(b"//") {
            while i < bytes.len() && bytes[i] != b'\n' {
                i += 1;
            }
        } else if bytes[i..].starts_with(b"/*") {
            while i < bytes.len() && !bytes[i..].starts_with(b"*/") {
                line += u32::from(bytes[i] == b'\n');
                i += 1;
            }
            i += 2;
        } else if c == b'"' {
            let start = i + 1;
            i = start;
            while i < bytes.len() && bytes[i] != b'"' {
                i += 1;
            }
            tokens.push((Token::Text(source[start..i].to_string()), line));
            i += 1;
        } else if c.is_ascii_digit() {
            let start = i;
            while i < bytes.len() && (bytes[i].is_ascii_alphanumeric() || bytes[i] == b'.') {
                i += 1;
            }
            tokens.push((number(&source[start..i], line)?, line));
        } else if starts_word(c) {
            let start = i;
            while i < bytes.len() && continues_word(bytes, i) {
                i += if bytes[i] == b':' { 2 } else { 1 };
            }
            tokens.push((Token::Word(source[start..i].to_string()), line));
        } else {
            tokens.push((Token::Punct(c as char), line));
            i += 1;
        }
    }
    Ok(tokens)
}

fn starts_word(c: u8) -> bool {
    c.is_ascii_alphabetic() || matches!(c, b'_' | b'$' | b'%' | b'.')
}

/// Whether byte `i` belongs to the word before it; `::` does (`shared::cta`), a label's `:` does not.
fn continues_word(bytes: &[u8], i: usize) -> bool {
    starts_word(bytes[i]) || bytes[i].is_ascii_digit() || bytes[i..].starts_with(b"::")
}

fn number(text: &str, line: u32) -> Result<Token> {
    let hex = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let token = if let Some(digits) = text.strip_prefix("0f").or(text.strip_prefix("0F")) {
        hex(digits).map(|v| Token::F32(v as u32))
    } else if let Some(digits) = text.strip_prefix("0d").or(text.strip_prefix("0D")) {
        hex(digits).map(Token::F64)
    } else if let Some(digits) = text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        hex(digits.trim_end_matches('U')).map(Token::Int)
    } else if text.contains('.') {
        text.parse::<f64>().ok().map(|v| Token::F64(v.to_bits()))
    } else {
        text.trim_end_matches('U').parse::<u64>().ok().map(Token::Int)
    };
    match token {
        Some(token) => Ok(token),
        None => refuse!(InvalidPtx, "line {line}: `{text}` is not a number"),
    }
}
