//! The header of a safetensors file: eight bytes that say its length, then a JSON object that says for every
//! tensor its type, shape and place.

use super::json::Reader;
use super::source::Source;
use super::{Text, bad, reserved};
use crate::error::Result;
use std::fmt;
use std::ops::Range;

/// The metadata key under which our description stands.
pub const KEY: &str = "foam";
/// The format's limit. A file that states more is none.
pub const LONGEST: u64 = 100_000_000;

/// The element types that we write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// Double.
    F64,
    /// Signed, eight bytes.
    I64,
    /// Single.
    F32,
    /// Unsigned, four bytes.
    U32,
    /// One that we never write.
    Other,
}

impl Dtype {
    const NAMED: [(Dtype, &'static str); 4] =
        [(Dtype::F64, "F64"), (Dtype::I64, "I64"), (Dtype::F32, "F32"), (Dtype::U32, "U32")];

    /// Bytes of an element, 0 where we do not know.
    pub fn size(self) -> u64 {
        match self {
            Dtype::F64 | Dtype::I64 => 8,
            Dtype::F32 | Dtype::U32 => 4,
            Dtype::Other => 0,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Dtype::NAMED.iter().find(|(dtype, _)| dtype == self);
        f.write_str(named.map_or("another type", |(_, name)| name))
    }
}

/// A tensor in the file.
#[derive(Clone, Debug)]
pub struct Entry {
    name: Range<usize>,
    /// Type of its elements.
    pub dtype: Dtype,
    shape: Range<usize>,
    /// Its bytes within the file.
    pub bytes: Range<u64>,
}

/// All that a header says.
#[derive(Default)]
pub struct Header {
    /// Names, one behind the other.
    names: Text,
    /// Sizes, one shape behind the other.
    sizes: Vec<usize>,
    /// The first tensors, by name.
    entries: Vec<Entry>,
    /// How many tensors there are.
    pub count: usize,
    /// What stands under [`KEY`].
    pub about: Option<Text>,
    /// Checksum of the length and the object.
    pub crc: u32,
    /// Where the tensors begin.
    payload: u64,
}

impl Header {
    /// Reads the header and nothing more. At most `most` tensors are kept, all are counted.
    pub fn read(source: &mut dyn Source, most: usize) -> Result<Header> {
        let mut length = [0; 8];
        let whole = source.size();
        if whole < 8 {
            return Err(bad!("not a safetensors file: it has {whole} bytes; expected at least 8"));
        }
        source.read_at(0, &mut length)?;
        let stated = u64::from_le_bytes(length);
        if stated > LONGEST || stated > whole - 8 {
            return Err(bad!(
                "not a safetensors file, or a damaged one: its header would have {stated} bytes; expected at most {}",
                LONGEST.min(whole - 8)
            ));
        }
        // No more than 100 MB, as was just seen.
        let mut bytes = reserved(stated as usize, "the header of the checkpoint")?;
        bytes.resize(stated as usize, 0);
        source.read_at(8, &mut bytes)?;
        let mut crc = crc32fast::Hasher::new();
        crc.update(&length);
        crc.update(&bytes);
        let text = std::str::from_utf8(&bytes)
            .map_err(|_| bad!("not a safetensors file, or a damaged one: its header is not text"))?;
        let mut header = Header { crc: crc.finalize(), payload: 8 + stated, ..Header::default() };
        header.parse(text, most).map_err(|mut error| {
            if error.kind == crate::error::Kind::BadCheckpoint {
                let why = format_args!("not a safetensors file, or a damaged one: {}", error.message);
                error.message = super::text(why);
            }
            error
        })?;
        Ok(header)
    }

    fn parse(&mut self, text: &str, most: usize) -> Result<()> {
        let mut reader = Reader::new(text);
        reader.object(|reader, key| {
            if key.is("__metadata__") {
                return reader.object(|reader, key| {
                    let value = reader.string()?;
                    if key.is(KEY) {
                        let mut about = Text::default();
                        value.append_to(&mut about)?;
                        self.about = Some(about);
                    }
                    Ok(())
                });
            }
            self.count += 1;
            if self.count > most {
                return reader.skip();
            }
            let begin = self.names.len();
            key.append_to(&mut self.names)?;
            let entry = self.entry(reader, begin..self.names.len())?;
            self.entries.try_reserve(1).map_err(|_| super::no_memory("the header of the checkpoint", 0))?;
            self.entries.push(entry);
            Ok(())
        })?;
        reader.end()
    }

    fn entry(&mut self, reader: &mut Reader, name: Range<usize>) -> Result<Entry> {
        let begin = self.sizes.len();
        let (mut dtype, mut shape, mut bytes) = (None, None, None);
        reader.object(|reader, key| {
            if key.is("dtype") {
                let found = reader.string()?;
                let named = Dtype::NAMED.iter().find(|(_, name)| found.is(name));
                dtype = Some(named.map_or(Dtype::Other, |(dtype, _)| *dtype));
            } else if key.is("shape") {
                self.sizes.truncate(begin);
                let sizes = &mut self.sizes;
                reader.array(|reader| {
                    sizes.try_reserve(1).map_err(|_| super::no_memory("the header of the checkpoint", 0))?;
                    sizes.push(usize::try_from(reader.whole()?).unwrap_or(usize::MAX));
                    Ok(())
                })?;
                shape = Some(begin..self.sizes.len());
            } else if key.is("data_offsets") {
                let (mut ends, mut count) = ([0; 2], 0);
                reader.array(|reader| {
                    let end = reader.whole()?;
                    if count < 2 {
                        ends[count] = end;
                    }
                    count += 1;
                    Ok(())
                })?;
                bytes = (count == 2).then_some(ends);
            } else {
                reader.skip()?;
            }
            Ok(())
        })?;
        let (Some(dtype), Some(shape), Some([first, end])) = (dtype, shape, bytes) else {
            return Err(bad!(
                "tensor '{}' has no type, shape or place; expected all three",
                &self.names[name.clone()]
            ));
        };
        let place = |at: u64| at.checked_add(self.payload);
        let (Some(first), Some(end)) = (place(first), place(end)) else {
            return Err(bad!("tensor '{}' lies outside the file", &self.names[name.clone()]));
        };
        Ok(Entry { name, dtype, shape, bytes: first..end })
    }

    /// Every tensor has the bytes that its shape needs, and together they fill the file, without gaps.
    pub fn check_places(&mut self, whole: u64) -> Result<()> {
        if self.entries.len() != self.count {
            return Err(bad!("the file has {} tensors: expected far fewer", self.count));
        }
        self.entries.sort_unstable_by_key(|entry| (entry.bytes.start, entry.bytes.end));
        let mut end = self.payload;
        for entry in &self.entries {
            let name = &self.names[entry.name.clone()];
            let elements =
                self.sizes[entry.shape.clone()].iter().try_fold(1u64, |n, d| n.checked_mul(*d as u64));
            let needed = elements.and_then(|n| n.checked_mul(entry.dtype.size()));
            let has = entry.bytes.end.checked_sub(entry.bytes.start);
            if has.is_none() || has != needed || entry.bytes.start != end || entry.bytes.end > whole {
                return Err(bad!(
                    "tensor '{name}' has bytes {} to {} of {whole}: expected {} bytes from {end} on",
                    entry.bytes.start,
                    entry.bytes.end,
                    needed.unwrap_or(u64::MAX)
                ));
            }
            end = entry.bytes.end;
        }
        if end != whole {
            return Err(bad!("the file has {whole} bytes: expected {end}; it was cut or has a tail"));
        }
        Ok(())
    }

    /// The tensors, as [`Header::check_places`] leaves them: in the order of the file.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The name of a tensor.
    pub fn name(&self, entry: &Entry) -> &str {
        &self.names[entry.name.clone()]
    }

    /// The shape of a tensor.
    pub fn shape(&self, entry: &Entry) -> &[usize] {
        &self.sizes[entry.shape.clone()]
    }
}
