//! The words of a factor's record: what lies where in the buffer `FOAM_STACK_RECORD`.

use super::boundary::{self, AbiStruct, List, field_ends};
use super::stack::FOAM_STACK_NAME_SIZE;
use super::status::{foam_error, foam_status};
use crate::preconditioner::{RecordField, record_fields};
use libc::c_char;
use std::mem::size_of;

/// A double.
pub const FOAM_RECORD_REAL: i32 = 0;
/// A signed 64-bit whole number.
pub const FOAM_RECORD_WHOLE: i32 = 1;

/// A field of a factor's record, which a stack keeps as 32-bit words.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct foam_record_field {
    /// Bytes of this struct as the library wrote it.
    pub struct_size: u32,
    /// `FOAM_RECORD_REAL` or `FOAM_RECORD_WHOLE`.
    pub kind: i32,
    /// Its first word within the record of a factor.
    pub word: i32,
    /// Its number of words.
    pub words: i32,
    /// Its name, as in `foam_factor_info`, and "has_basis"; NUL-terminated.
    pub name: [c_char; FOAM_STACK_NAME_SIZE],
}

// SAFETY: plain data, first field `struct_size`, every bit pattern valid.
unsafe impl AbiStruct for foam_record_field {
    const NAME: &'static str = "foam_record_field";
    const REQUIRED: usize = size_of::<foam_record_field>();
    const ENDS: &'static [usize] = field_ends!(foam_record_field { struct_size, kind, word, words, name });

    fn defaults() -> Self {
        let name = [0; FOAM_STACK_NAME_SIZE];
        foam_record_field {
            struct_size: size_of::<Self>() as u32,
            kind: FOAM_RECORD_REAL,
            word: 0,
            words: 2,
            name,
        }
    }
}

/// Lists the fields of a factor's record in the buffer `FOAM_STACK_RECORD`, in the order of their words. A later
/// version may have more fields: look them up by name. `items`, `item_size` = `sizeof(foam_record_field)`,
/// `capacity` and `count` are as in `foam_stack_layout`.
///
/// # Safety
/// `items` has `capacity` × `item_size` writable bytes; `count` is writable; `error` is NULL or a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foam_record_fields(
    items: *mut foam_record_field,
    item_size: usize,
    capacity: usize,
    count: *mut usize,
    error: *mut foam_error,
) -> foam_status {
    // SAFETY: the caller's contract.
    unsafe {
        boundary::call(error, || {
            let list = List { items, item_size, capacity, count };
            let fields: Vec<RecordField> = crate::memory::listed(record_fields(), "the fields")?;
            boundary::write_list(list, fields.len(), |place| {
                let field = fields[place];
                let mut item = foam_record_field {
                    kind: if field.real { FOAM_RECORD_REAL } else { FOAM_RECORD_WHOLE },
                    word: (field.offset / 4) as i32,
                    ..foam_record_field::defaults()
                };
                boundary::put_name(&mut item.name, field.name);
                Ok(item)
            })
        })
    }
}
