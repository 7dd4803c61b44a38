//! The library as a C or C++ program sees it: each program of `tests/c` is compiled as C11 and as C++17 with
//! all warnings on, run, and run again under valgrind and with the address and undefined-behaviour sanitizers.
//!
//! The compilers are `cc` and `c++`, or what `CC` and `CXX` name. Where everything is run, valgrind has to
//! be installed.

use crate::library::root;
use crate::program::{Language, Watch, frozen_headers, passes};

/// Makes four tests out of each program; the module's name says what the program shows.
macro_rules! programs {
    ($($claim:ident: $program:literal;)+) => {
        /// Every program that is tested.
        const PROGRAMS: &[&str] = &[$($program),+];

        $(mod $claim {
            use crate::program::{Language, Watch, headers, passes};
            use crate::tier::{self, Need};

            #[test]
            fn in_c11() {
                passes($program, Language::C11, Watch::Nothing, &headers());
            }

            #[test]
            fn in_cpp17() {
                if tier::runs(Need::Long) {
                    passes($program, Language::Cpp17, Watch::Nothing, &headers());
                }
            }

            #[test]
            fn under_valgrind_without_errors_and_leaks() {
                if tier::runs(Need::Valgrind) {
                    passes($program, Language::C11, Watch::Valgrind, &headers());
                }
            }

            #[test]
            fn under_address_and_undefined_sanitizers() {
                passes($program, Language::C11, Watch::Sanitizers, &headers());
            }
        })+
    };
}

programs! {
    the_header_stands_alone_and_may_be_included_twice: "header_alone";
    structs_are_laid_out_as_listed_and_tensors_as_dlpack_has_them: "layout";
    a_model_trains_and_continues_bit_for_bit_from_a_checkpoint: "lifecycle";
    every_form_of_a_tensor_gives_the_same_bits: "tensors";
    older_and_newer_callers_are_completed_or_refused: "struct_size";
    a_bad_configuration_is_refused_by_name: "bad_config";
    a_bad_model_is_refused_by_name: "bad_create";
    a_refused_step_changes_nothing: "bad_step";
    a_refused_read_changes_nothing: "bad_reads";
    a_bad_checkpoint_changes_nothing: "bad_checkpoint";
    a_panic_poisons_its_handle_and_nothing_else: "panic";
    the_callers_allocator_gets_everything_back: "memory";
    what_a_call_would_refuse_is_found_without_a_trace: "validate";
    live_options_act_at_the_next_step_and_others_are_refused: "options";
    blocks_ports_and_record_fields_are_listed_as_they_are: "lists";
    the_callers_floating_point_environment_changes_nothing: "float_env";
    a_thread_needs_no_more_stack_than_the_header_says: "small_stack";
    an_overlapping_call_is_busy_and_changes_nothing: "busy";
    the_library_survives_dlclose_and_thread_exit: "unload";
    a_stack_trains_in_the_callers_buffers: "stack";
    a_wrong_call_on_a_stack_writes_nothing: "bad_stack";
}

#[test]
fn every_program_is_tested() {
    let folder = root().join("tests/c");
    let files = std::fs::read_dir(folder).expect("tests/c is readable").map(|entry| entry.unwrap().path());
    for path in files.filter(|path| path.extension().is_some_and(|e| e == "c")) {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        assert!(PROGRAMS.contains(&&*name), "tests/c/{name}.c is missing in tests/c_abi.rs");
    }
}

/// A program compiled against an older header runs with today's library.
#[test]
fn every_frozen_header_still_serves_a_whole_life() {
    let folder = root().join("include/frozen");
    let frozen: Vec<_> = std::fs::read_dir(folder)
        .expect("include/frozen is readable")
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "h"))
        .collect();
    assert!(!frozen.is_empty(), "include/frozen holds a header of each released version");
    for header in frozen {
        for language in [Language::C11, Language::Cpp17] {
            passes("lifecycle", language, Watch::Nothing, &frozen_headers(&header));
        }
    }
}
