//! JSON as a checkpoint's header needs it. Nothing here allocates but through [`Text`], which can refuse: a
//! library that builds a tree aborts the process when memory runs out, and a header of 100 MB becomes a tree
//! of some GB.

use super::{Text, bad};
use crate::error::Result;
use std::fmt::{self, Write};

/// Values nested deeper than this are no header of ours.
const DEEPEST: usize = 32;

/// Reads one text from its beginning to its end, value by value.
pub struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

/// The inside of a string as it stands in the text, with its escapes, which are known to be valid.
#[derive(Clone, Copy)]
pub struct Quoted<'a>(&'a str);

impl<'a> Quoted<'a> {
    /// The characters that are meant.
    pub fn chars(self) -> impl Iterator<Item = char> + 'a {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let first = rest.chars().next()?;
            let (meant, length) =
                if first == '\\' { unescape(rest.as_bytes())? } else { (first, first.len_utf8()) };
            rest = &rest[length..];
            Some(meant)
        })
    }

    /// Whether the string is `other`.
    pub fn is(self, other: &str) -> bool {
        self.chars().eq(other.chars())
    }

    /// Appends the characters that are meant.
    pub fn append_to(self, text: &mut Text) -> Result<()> {
        text.reserve(self.0.len())?;
        self.chars().for_each(|c| text.push(c));
        Ok(())
    }
}

/// The character that an escape at the beginning of `bytes` means, and the escape's length.
fn unescape(bytes: &[u8]) -> Option<(char, usize)> {
    let unit = |at: usize| -> Option<u32> {
        let digits = bytes.get(at..at + 4)?.iter();
        digits.into_iter().try_fold(0, |sum, digit| Some(sum * 16 + (*digit as char).to_digit(16)?))
    };
    let plain = match bytes.get(1)? {
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => {
            let high = unit(2)?;
            if !(0xd800..0xdc00).contains(&high) {
                // A low surrogate alone is no character.
                return Some((char::from_u32(high)?, 6));
            }
            let low = unit(8).filter(|low| bytes[6..8] == *b"\\u" && (0xdc00..0xe000).contains(low))?;
            return Some((char::from_u32(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00))?, 12));
        }
        _ => return None,
    };
    Some((plain, 2))
}

impl<'a> Reader<'a> {
    /// A reader at the beginning of `text`.
    pub fn new(text: &'a str) -> Reader<'a> {
        Reader { text, at: 0, depth: 0 }
    }

    /// The next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        let rest = &self.text.as_bytes()[self.at..];
        let blank = rest.iter().take_while(|b| matches!(b, b' ' | b'\t' | b'\n' | b'\r')).count();
        self.at += blank;
        rest.get(blank).copied()
    }

    fn wrong<T>(&self, expected: &str) -> Result<T> {
        Err(bad!("not valid JSON at byte {}: expected {expected}", self.at))
    }

    fn take(&mut self, byte: u8, expected: &str) -> Result<()> {
        if self.peek() != Some(byte) {
            return self.wrong(expected);
        }
        self.at += 1;
        Ok(())
    }

    /// Reads an object: `each` gets every key and has to read its value.
    pub fn object(&mut self, mut each: impl FnMut(&mut Self, Quoted<'a>) -> Result<()>) -> Result<()> {
        self.list(b'{', b'}', "an object", |this| {
            let key = this.string()?;
            this.take(b':', "':'")?;
            each(this, key)
        })
    }

    /// Reads an array: `each` has to read every value.
    pub fn array(&mut self, each: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.list(b'[', b']', "an array", each)
    }

    fn list(
        &mut self,
        open: u8,
        close: u8,
        expected: &str,
        mut each: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        self.take(open, expected)?;
        self.depth += 1;
        if self.depth > DEEPEST {
            return self.wrong("fewer levels");
        }
        let mut first = true;
        while first || self.peek() != Some(close) {
            if first && self.peek() == Some(close) {
                break;
            }
            if !first {
                self.take(b',', "',' or the end of the list")?;
            }
            first = false;
            each(self)?;
        }
        self.depth -= 1;
        self.take(close, "the end of the list")
    }

    /// Reads a string.
    pub fn string(&mut self) -> Result<Quoted<'a>> {
        self.take(b'"', "a string")?;
        let (begin, bytes) = (self.at, self.text.as_bytes());
        loop {
            match bytes.get(self.at) {
                Some(b'"') => break,
                Some(b'\\') => match unescape(&bytes[self.at..]) {
                    Some((_, length)) => self.at += length,
                    None => return self.wrong("an escape"),
                },
                Some(byte) if *byte >= 0x20 => self.at += 1,
                _ => return self.wrong("the end of a string"),
            }
        }
        self.at += 1;
        Ok(Quoted(&self.text[begin..self.at - 1]))
    }

    /// Reads a whole number that is not negative.
    pub fn whole(&mut self) -> Result<u64> {
        self.peek();
        let begin = self.at;
        let read = self.number();
        let text = &self.text[begin..self.at];
        read.ok().and_then(|()| text.parse().ok()).map_or_else(
            || {
                self.at = begin;
                self.wrong("a whole number")
            },
            Ok,
        )
    }

    fn digits(&mut self) -> Result<()> {
        let rest = &self.text.as_bytes()[self.at..];
        let count = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        self.at += count;
        if count == 0 { self.wrong("a digit") } else { Ok(()) }
    }

    fn number(&mut self) -> Result<()> {
        let bytes = self.text.as_bytes();
        let at = |this: &Self| bytes.get(this.at).copied();
        if at(self) == Some(b'-') {
            self.at += 1;
        }
        let begin = self.at;
        self.digits()?;
        if bytes[begin] == b'0' && self.at > begin + 1 {
            return self.wrong("a number without leading zeros");
        }
        if at(self) == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(at(self), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(at(self), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    /// Passes over a value of any kind.
    pub fn skip(&mut self) -> Result<()> {
        match self.peek() {
            Some(b'{') => self.object(|this, _| this.skip()),
            Some(b'[') => self.array(Self::skip),
            Some(b'"') => self.string().map(|_| ()),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => {
                let rest = &self.text[self.at..];
                let word = ["true", "false", "null"].into_iter().find(|word| rest.starts_with(word));
                match word {
                    Some(word) => {
                        self.at += word.len();
                        Ok(())
                    }
                    None => self.wrong("a value"),
                }
            }
        }
    }

    /// Nothing may follow.
    pub fn end(&mut self) -> Result<()> {
        if self.peek().is_some() { self.wrong("the end") } else { Ok(()) }
    }
}

/// Passes on what is written to it as the inside of a JSON string.
pub struct Escaped<'a>(pub &'a mut dyn Write);

impl Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some(at) = rest.find(|c: char| c < ' ' || c == '"' || c == '\\') {
            self.0.write_str(&rest[..at])?;
            match rest.as_bytes()[at] {
                control if control < b' ' => write!(self.0, "\\u{control:04x}")?,
                other => write!(self.0, "\\{}", other as char)?,
            }
            rest = &rest[at + 1..];
        }
        self.0.write_str(rest)
    }
}

/// Writes a string with its quotes.
pub fn quote(out: &mut dyn Write, text: impl fmt::Display) -> fmt::Result {
    out.write_char('"')?;
    write!(Escaped(out), "{text}")?;
    out.write_char('"')
}

/// Writes an array, each item by `write`.
pub fn list<T>(
    out: &mut dyn Write,
    items: impl IntoIterator<Item = T>,
    mut write: impl FnMut(&mut dyn Write, T) -> fmt::Result,
) -> fmt::Result {
    out.write_char('[')?;
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            out.write_char(',')?;
        }
        write(out, item)?;
    }
    out.write_char(']')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn reads(text: &str) -> bool {
        let mut reader = Reader::new(text);
        reader.skip().and_then(|()| reader.end()).is_ok()
    }

    #[test]
    fn only_json_is_read() {
        for text in
            ["{}", " [ ] ", "{\"a\":[1,-2.5e+3,{\"b\":null}],\"c\":true}", "\"\\ud83d\\ude00\\n\"", "0"]
        {
            assert!(reads(text), "{text}");
        }
        for text in [
            "",
            "{",
            "{]",
            "[1,]",
            "[,1]",
            "{\"a\"}",
            "{\"a\":}",
            "01",
            "-",
            "1.",
            "\"\\ud83d\"",
            "\"\\x\"",
            "\"\n\"",
            "nul",
            "[1]]",
            "{\"a\":1,}",
            "'a'",
        ] {
            assert!(!reads(text), "{text}");
        }
        assert!(!reads(&"[".repeat(1_000_000)));
    }

    proptest! {
        #[test]
        fn what_is_read_is_what_another_parser_reads(text in r#"[\[\]{},:"\\ntu0-9a-f.e+ -]{0,12}"#) {
            // The other parser reads numbers as floats and so refuses those that overflow.
            let theirs = serde_json::from_str::<Value>(&text);
            prop_assert!(reads(&text) == theirs.is_ok() || theirs.is_err_and(|e| e.to_string().contains("out of range")));
        }

        #[test]
        fn any_string_is_written_so_that_every_parser_reads_it(text in any::<String>()) {
            let mut written = Text::default();
            quote(&mut written, &text).unwrap();
            prop_assert_eq!(serde_json::from_str::<String>(&written).unwrap(), text.clone());
            let foreign = serde_json::to_string(&text).unwrap();
            for json in [&*written, &*foreign] {
                let mut back = Text::default();
                Reader::new(json).string().unwrap().append_to(&mut back).unwrap();
                prop_assert_eq!(&*back, &*text);
            }
        }
    }
}
