//! All functions in one table, for hosts that load the library at run time and link nothing.

use super::*;
use std::ffi::c_void;
use std::mem::size_of;

/// Version of `foam_api` that this header describes; it is raised when functions are appended.
pub const FOAM_API_VERSION: u32 = 1;

/// The one list of the functions of the table, in its order. Only ever append: the order is the ABI, and
/// `tests/header.rs` compares it with the exported symbols and with the frozen list. The header's typed struct is
/// made of it and of the prototypes.
macro_rules! table {
    ($($function:ident),+ $(,)?) => {
        /// The table as Rust sees it: addresses. The header has the functions' types.
        #[repr(C)]
        pub struct foam_api {
            /// Bytes of the table.
            pub struct_size: u32,
            /// `FOAM_API_VERSION` of the library.
            pub version: u32,
            $(
                #[doc = stringify!($function)]
                pub $function: *const c_void,
            )+
        }

        static TABLE: foam_api = foam_api {
            struct_size: size_of::<foam_api>() as u32,
            version: FOAM_API_VERSION,
            $($function: $function as *const c_void,)+
        };

        /// The functions of the table, in order.
        pub const FOAM_API_FUNCTIONS: &[&str] = &[$(stringify!($function)),+];
    };
}

table! {
    foam_abi_version,
    foam_build_info,
    foam_status_name,
    foam_config_init,
    foam_config_set,
    foam_config_get,
    foam_config_validate,
    foam_config_check_due,
    foam_param_init,
    foam_create,
    foam_destroy,
    foam_synchronize,
    foam_step_args_init,
    foam_step,
    foam_set_option,
    foam_get_option,
    foam_stats,
    foam_factor_stats,
    foam_factor_read,
    foam_exact_gap,
    foam_plan_blocks,
    foam_blocks,
    foam_save_file,
    foam_load_file,
    foam_save_memory,
    foam_load_memory,
    foam_stack_init,
    foam_stack_layout,
    foam_stack_ports,
    foam_record_fields,
    foam_stack_workspace,
    foam_stack_reset,
    foam_stack_trim,
    foam_stack_args_init,
    foam_stack_accumulate,
    foam_stack_check,
    foam_stack_apply,
    foam_xla_accumulate,
    foam_xla_check,
    foam_xla_apply,
    foam_xla_accumulate_cuda,
    foam_xla_check_cuda,
    foam_xla_apply_cuda,
    foam_cuda_probe,
    foam_create_ranks,
    foam_plan_owners,
    foam_param_state_bytes,
    foam_read_states,
    foam_write_states,
    foam_step_together,
    foam_diagnosis,
    foam_diagnose,
}

// SAFETY: addresses of functions, which never change.
unsafe impl Sync for foam_api {}

/// Gives the table of all functions: the one symbol that a host has to look up. `version` is the
/// `FOAM_API_VERSION` that the host was compiled with. The result is NULL if the library is older than that (or
/// `version` is 0); ask for 1 then, which every library serves, and let its `build_info` say what it is. The table
/// lives as long as the library. Functions are only ever appended to it: `struct_size` says which are there.
#[unsafe(no_mangle)]
pub extern "C" fn foam_get_api(version: u32) -> *const foam_api {
    if (1..=FOAM_API_VERSION).contains(&version) { &raw const TABLE } else { std::ptr::null() }
}
