//! The attributes of a call: options and numbers, each checked and named in the error.

use super::frame::{Attrs, ByteSpan, SCALAR, STRING, Scalar};
use crate::config::Config;
use crate::engine::stack::MAX_ORDER;
use crate::error::{Error, Result};
use crate::memory::{push, whole_text};
use crate::tensor::{DType, Element};
use parking_lot::Mutex;

/// What the attributes say.
pub struct Attributes {
    /// The configuration.
    pub config: Config,
    /// Dimensions of a block; those in front of them are the batch.
    pub order: usize,
    /// Whether there is an operand `params`.
    pub with_params: bool,
    /// Whether the blocks have preconditioners.
    pub preconditioned: bool,
    /// Type of the blocks; `None` for that of the params, or else of the grads.
    pub dtype: Option<DType>,
    /// The update is this times the direction.
    pub scale: Option<f64>,
    /// Multiplies the gradients.
    pub grad_scale: f64,
    /// Multiplies the weight decay.
    pub weight_decay_scale: f64,
    /// p, or 0 for the configuration's.
    pub root: f64,
}

const KNOWN: &str =
    "options, order, with_params, preconditioned, dtype, scale, grad_scale, weight_decay_scale, root";

impl Attributes {
    /// Reads all attributes.
    ///
    /// # Safety
    /// `attrs` is XLA's list of attributes.
    pub unsafe fn read(attrs: &Attrs) -> Result<Attributes> {
        let mut read = Attributes {
            config: Config::default(),
            order: 0,
            with_params: false,
            preconditioned: true,
            dtype: None,
            scale: None,
            grad_scale: 1.0,
            weight_decay_scale: 1.0,
            root: 0.0,
        };
        for place in 0..usize::try_from(attrs.size).unwrap_or(0) {
            // SAFETY: the lists have `size` items.
            let (name, value) = unsafe {
                let name = text(&**attrs.names.add(place), "an attribute's name")?;
                (name, Value { name, kind: *attrs.types.add(place), item: *attrs.items.add(place) })
            };
            // SAFETY: the caller's contract.
            unsafe {
                match name {
                    "options" => read.config = options(value.text()?)?,
                    "order" => read.order = value.order()?,
                    "with_params" => read.with_params = value.flag()?,
                    "preconditioned" => read.preconditioned = value.flag()?,
                    "dtype" => read.dtype = Some(parse_dtype(value.text()?)?),
                    "scale" => read.scale = Some(value.finite()?),
                    "grad_scale" => read.grad_scale = value.finite()?,
                    "weight_decay_scale" => read.weight_decay_scale = value.finite()?,
                    "root" => read.root = value.finite()?,
                    _ => {
                        return Err(Error::invalid(format!(
                            "attribute '{name}' is unknown; expected {KNOWN}"
                        )));
                    }
                }
            }
        }
        if read.order == 0 {
            return Err(Error::invalid(format!(
                "attribute 'order' is missing; expected an integer, 1 to {MAX_ORDER}"
            )));
        }
        if read.grad_scale == 0.0 {
            return Err(Error::invalid("attribute 'grad_scale' = 0: expected another number"));
        }
        Ok(read)
    }
}

/// One attribute.
#[derive(Clone, Copy)]
struct Value<'a> {
    name: &'a str,
    kind: i32,
    item: *const libc::c_void,
}

impl<'a> Value<'a> {
    fn wrong(&self, expected: &str) -> Error {
        Error::invalid(format!("attribute '{}': expected {expected}", self.name))
    }

    unsafe fn text(&self) -> Result<&'a str> {
        if self.kind != STRING {
            return Err(self.wrong("a string"));
        }
        // SAFETY: a string attribute is a span of bytes.
        unsafe { text(&*self.item.cast::<ByteSpan>(), self.name) }
    }

    /// A scalar of any numeric type.
    unsafe fn number(&self) -> Result<f64> {
        if self.kind != SCALAR {
            return Err(self.wrong("a number"));
        }
        // SAFETY: a scalar attribute has a type and the address of its value.
        unsafe {
            let scalar = &*self.item.cast::<Scalar>();
            let at = scalar.value;
            Ok(match scalar.dtype {
                1 => f64::from(u8::from(*at.cast::<u8>() != 0)),
                2 => f64::from(at.cast::<i8>().read_unaligned()),
                3 => f64::from(at.cast::<i16>().read_unaligned()),
                4 => f64::from(at.cast::<i32>().read_unaligned()),
                5 => at.cast::<i64>().read_unaligned() as f64,
                6 => f64::from(at.cast::<u8>().read_unaligned()),
                7 => f64::from(at.cast::<u16>().read_unaligned()),
                8 => f64::from(at.cast::<u32>().read_unaligned()),
                9 => at.cast::<u64>().read_unaligned() as f64,
                11 => f64::from(at.cast::<f32>().read_unaligned()),
                12 => at.cast::<f64>().read_unaligned(),
                _ => return Err(self.wrong("an integer, f32 or f64")),
            })
        }
    }

    unsafe fn finite(&self) -> Result<f64> {
        // SAFETY: the caller's contract.
        let number = unsafe { self.number()? };
        if number.is_finite() {
            return Ok(number);
        }
        Err(Error::invalid(format!("attribute '{}' = {number}: expected a finite number", self.name)))
    }

    unsafe fn flag(&self) -> Result<bool> {
        // SAFETY: the caller's contract.
        match unsafe { self.number()? } {
            0.0 => Ok(false),
            1.0 => Ok(true),
            other => Err(Error::invalid(format!("attribute '{}' = {other}: expected 0 or 1", self.name))),
        }
    }

    unsafe fn order(&self) -> Result<usize> {
        // SAFETY: the caller's contract.
        let number = unsafe { self.number()? };
        if number.fract() == 0.0 && (1.0..=MAX_ORDER as f64).contains(&number) {
            return Ok(number as usize);
        }
        Err(Error::invalid(format!("attribute 'order' = {number}: expected an integer, 1 to {MAX_ORDER}")))
    }
}

unsafe fn text<'a>(span: &ByteSpan, what: &str) -> Result<&'a str> {
    if span.len == 0 {
        return Ok("");
    }
    // SAFETY: a span has `len` bytes, which live as long as the call.
    let bytes = unsafe { std::slice::from_raw_parts(span.data, span.len) };
    std::str::from_utf8(bytes).map_err(|_| Error::invalid(format!("attribute '{what}' is not valid UTF-8")))
}

fn parse_dtype(name: &str) -> Result<DType> {
    Element::named(name).and_then(Element::real).ok_or_else(|| {
        Error::invalid(format!("attribute 'dtype' = '{name}': expected f32, f64, f16 or bf16"))
    })
}

/// Texts whose meaning is kept: a program has one or a few.
const KEPT: usize = 64;

static PARSED: Mutex<Vec<(String, Config)>> = Mutex::new(Vec::new());

/// The configuration that a text says. XLA gives the same text at every execution: it is parsed once.
fn options(text: &str) -> Result<Config> {
    let mut parsed = PARSED.lock();
    if let Some((_, config)) = parsed.iter().find(|(known, _)| known == text) {
        return Ok(config.clone());
    }
    let config = parse_options(text)?;
    if parsed.len() == KEPT {
        parsed.remove(0);
    }
    let what = "the options of a call";
    push(&mut parsed, (whole_text(format_args!("{text}"), what)?, config.clone()), what)?;
    Ok(config)
}

/// `key=value;key=value`, where `preset=NAME` may come first.
fn parse_options(text: &str) -> Result<Config> {
    #[cfg(test)]
    tests::PARSES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let mut config = Config::default();
    for (place, option) in text.split(';').map(str::trim).filter(|o| !o.is_empty()).enumerate() {
        let Some((key, value)) = option.split_once('=') else {
            return Err(Error::invalid(format!(
                "attribute 'options': '{option}': expected key=value;key=value"
            )));
        };
        let outcome = match (key.trim(), place) {
            ("preset", 0) => Config::preset(value.trim()).map(|preset| config = preset),
            ("preset", _) => Err(Error::invalid("preset: expected it to be the first option")),
            (key, _) => config.set(key, value.trim()),
        };
        outcome.map_err(|mut cause| {
            cause.message = format!("attribute 'options': {}", cause.message);
            cause
        })?;
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    pub static PARSES: AtomicUsize = AtomicUsize::new(0);

    #[test]
    fn options_are_parsed_once_however_often_they_come() {
        let text = "preset=reference;tau=0.125;check_period=7";
        let first = options(text).unwrap();
        assert_eq!((first.tau, first.check_period), (0.125, 7));
        let before = PARSES.load(Ordering::Relaxed);
        for _ in 0..5 {
            assert!(options(text).unwrap() == first);
        }
        assert_eq!(PARSES.load(Ordering::Relaxed), before);
        // What is wrong is refused each time, and the list does not grow without end.
        for _ in 0..2 {
            assert!(options("tau=much").unwrap_err().message.contains("tau"));
        }
        for period in 1..=2 * KEPT {
            assert_eq!(options(&format!("check_period={period}")).unwrap().check_period, period as i64);
        }
        assert_eq!(PARSED.lock().len(), KEPT);
        assert!(options(text).unwrap() == first);
    }
}
