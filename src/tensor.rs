//! Element types, and the caller's tensors once they have been validated.

/// Element type of a parameter or a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single.
    F32,
    /// IEEE double.
    F64,
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
}

impl DType {
    /// Every type, in the order of the kernels' codes.
    pub const ALL: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::Bf16];

    /// Bytes of one element.
    pub fn size(self) -> usize {
        Element::Real(self).size()
    }

    /// Its usual name.
    pub fn name(self) -> &'static str {
        Element::Real(self).name()
    }

    /// Its number in the kernels.
    pub fn code(self) -> i32 {
        DType::ALL.iter().position(|dtype| *dtype == self).map_or(-1, |place| place as i32)
    }

    /// Precision that the work on such a parameter is done in.
    pub(crate) fn work(self) -> Precision {
        if self == DType::F64 { Precision::F64 } else { Precision::F32 }
    }
}

/// Type of an element of any array that a call is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// A type that parameters and gradients may have.
    Real(DType),
    /// A signed word.
    I32,
    /// An unsigned word.
    U32,
    /// A byte.
    U8,
}

/// How an element type is called, and its codes in DLPack and in XLA.
struct Row {
    element: Element,
    name: &'static str,
    bytes: usize,
    dlpack_code: u8,
    xla: i32,
}

const fn row(element: Element, name: &'static str, bytes: usize, dlpack_code: u8, xla: i32) -> Row {
    Row { element, name, bytes, dlpack_code, xla }
}

/// The one table of element types.
const ELEMENTS: [Row; 7] = [
    row(Element::Real(DType::F32), "f32", 4, 2, 11),
    row(Element::Real(DType::F64), "f64", 8, 2, 12),
    row(Element::Real(DType::F16), "f16", 2, 2, 10),
    row(Element::Real(DType::Bf16), "bf16", 2, 4, 16),
    row(Element::I32, "i32", 4, 0, 4),
    row(Element::U32, "u32", 4, 1, 8),
    row(Element::U8, "u8", 1, 1, 6),
];

impl Element {
    fn row(self) -> &'static Row {
        // Every element has its row: the test below walks through all of them.
        ELEMENTS.iter().find(|row| row.element == self).unwrap_or(&ELEMENTS[0])
    }

    /// Bytes of one element.
    pub fn size(self) -> usize {
        self.row().bytes
    }

    /// Its usual name.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Code and bits in DLPack.
    pub fn dlpack(self) -> (u8, u8) {
        (self.row().dlpack_code, 8 * self.row().bytes as u8)
    }

    /// The element with these DLPack code and bits.
    pub fn from_dlpack(code: u8, bits: u8) -> Option<Element> {
        ELEMENTS.iter().map(|row| row.element).find(|element| element.dlpack() == (code, bits))
    }

    /// The element with this `XLA_FFI_DataType`.
    pub fn from_xla(code: i32) -> Option<Element> {
        ELEMENTS.iter().find(|row| row.xla == code).map(|row| row.element)
    }

    /// The element called `name`.
    pub fn named(name: &str) -> Option<Element> {
        ELEMENTS.iter().find(|row| row.name == name).map(|row| row.element)
    }

    /// The type that parameters and gradients may have, if it is one.
    pub fn real(self) -> Option<DType> {
        match self {
            Element::Real(dtype) => Some(dtype),
            _ => None,
        }
    }
}

/// Precision of a state array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Single.
    F32,
    /// Double.
    F64,
}

impl Precision {
    /// Bytes of one number.
    pub fn size(self) -> usize {
        self.element().size()
    }

    /// Its element type.
    pub fn element(self) -> Element {
        Element::Real(match self {
            Precision::F32 => DType::F32,
            Precision::F64 => DType::F64,
        })
    }

    /// What an orthogonal basis in this precision may miss, as a relative error.
    pub fn basis_tolerance(self) -> f64 {
        match self {
            Precision::F32 => 1e-4,
            Precision::F64 => 1e-9,
        }
    }
}

/// ‖G‖² of a block must be smaller than this. The largest entry of G Gᵀ is at most ‖G‖², and the stored
/// statistic carries up to 16 times it (see `LEAST_WEIGHT`).
pub fn squared_norm_limit(work: Precision, statistic: Precision) -> f64 {
    let narrow = work == Precision::F32 || statistic == Precision::F32;
    if narrow { f64::from(f32::MAX) / 32.0 } else { f64::MAX / 32.0 }
}

/// A caller's tensor after validation: row-major contiguous, with as many elements as the plan says,
/// borrowed for one call.
#[derive(Clone, Copy, Debug)]
pub struct TensorRef {
    /// First element; may be unaligned.
    pub data: *mut u8,
    /// Element type.
    pub dtype: DType,
}

// SAFETY: a TensorRef is an address; who reads or writes through it answers for the access.
unsafe impl Send for TensorRef {}
// SAFETY: as above.
unsafe impl Sync for TensorRef {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_has_its_row_and_its_codes_are_its_own() {
        for (number, row) in ELEMENTS.iter().enumerate() {
            assert_eq!(row.element.name(), row.name);
            let (code, bits) = row.element.dlpack();
            assert_eq!(Element::from_dlpack(code, bits), Some(row.element));
            assert_eq!(Element::from_xla(row.xla), Some(row.element));
            assert_eq!(Element::named(row.name), Some(row.element));
            if let Some(dtype) = row.element.real() {
                assert_eq!(dtype.code(), number as i32);
            }
        }
        assert_eq!(ELEMENTS.len(), DType::ALL.len() + 3);
    }
}
