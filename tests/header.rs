//! The header, the exported symbols, the layout of the structs and the versions agree with each other,
//! with what is committed under `include/`, and with the library.
//!
//! `FOAM_UPDATE_HEADER=1 cargo test --test header` rewrites the committed files from the sources.

#[path = "support/generate.rs"]
mod generate;
#[path = "support/layout.rs"]
mod layout;
#[path = "support/library.rs"]
mod library;

use library::{root, shared_library};
use std::path::Path;
use std::process::Command;

/// Compares a committed file with what it should be, or writes it if the user asks for that.
fn matches_committed(path: &Path, wanted: &str) {
    if std::env::var("FOAM_UPDATE_HEADER").is_ok_and(|value| value == "1") {
        std::fs::write(path, wanted).expect("the committed file is writable");
        return;
    }
    let have = std::fs::read_to_string(path).unwrap_or_default();
    if have == wanted {
        return;
    }
    let line = have.lines().zip(wanted.lines()).take_while(|(have, wanted)| have == wanted).count();
    panic!(
        "{} does not follow from the sources. First difference, line {}:\n  committed: {}\n  sources:   {}\n\
         To update: FOAM_UPDATE_HEADER=1 cargo test --test header",
        path.strip_prefix(root()).unwrap_or(path).display(),
        line + 1,
        have.lines().nth(line).unwrap_or("(end of file)"),
        wanted.lines().nth(line).unwrap_or("(end of file)"),
    );
}

/// What `command` prints, once it has succeeded.
fn output(command: &mut Command) -> String {
    let shown = format!("{command:?}");
    let done = command.output().unwrap_or_else(|cause| panic!("{shown}: {cause}; is it installed?"));
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{shown}: {}\n{out}{err}", done.status);
    out.into_owned()
}

/// The dynamic section of the library.
fn dynamic_section() -> String {
    output(Command::new("readelf").args(["--wide", "-d"]).arg(shared_library()))
}

#[test]
fn the_committed_header_is_the_one_that_the_sources_generate() {
    matches_committed(&root().join("include/foam.h"), &generate::header(root()));
}

#[test]
fn the_header_is_plain_ascii_and_free_of_rust_words() {
    let header = generate::header(root());
    assert!(header.is_ascii(), "the header holds a character that not every compiler reads");
    for word in ["# Safety", "SAFETY", "`None`", "`Some", "Option<", "usize", "unsafe", "::"] {
        let line = header.lines().find(|line| line.contains(word));
        assert_eq!(line, None, "a comment of the C header says {word}");
    }
}

#[test]
fn every_function_of_the_header_has_a_comment() {
    let header = generate::header(root());
    let (_, declarations) = header.split_once("extern \"C\"").expect("the header has an extern \"C\" part");
    for name in generate::functions(&header) {
        let item =
            declarations.split("\n\n").find(|item| item.contains(&format!("{name}(")) && item.ends_with(';'));
        let item = item.unwrap_or_else(|| panic!("{name} stands by itself in the header"));
        assert!(item.starts_with("/**"), "{name} has no comment:\n{item}");
    }
}

#[test]
fn the_library_exports_exactly_the_functions_of_the_header_and_of_the_committed_list() {
    let declared = generate::functions(&generate::header(root()));
    let symbols = output(Command::new("nm").args(["-D", "--defined-only"]).arg(shared_library()));
    let mut exported: Vec<&str> =
        symbols.lines().filter_map(|line| line.split_whitespace().next_back()).collect();
    exported.sort();
    assert_eq!(exported, declared, "left: exported by the library; right: declared in the header");
    matches_committed(&root().join("include/foam.symbols"), &format!("{}\n", declared.join("\n")));
}

#[test]
#[cfg(target_pointer_width = "64")]
fn sizes_and_offsets_are_the_committed_ones() {
    matches_committed(&root().join("include/foam.layout"), &layout::list());
}

#[test]
fn the_layout_list_has_every_struct_of_the_header() {
    let header = generate::header(root());
    let list = layout::list();
    let opened = header.lines().filter_map(|line| line.strip_prefix("typedef struct ")?.strip_suffix(" {"));
    for name in opened {
        assert!(list.contains(&format!("STRUCT({name}, ")), "{name} is missing in tests/support/layout.rs");
    }
}

#[test]
fn the_version_macros_are_those_of_the_library_and_of_the_crate() {
    let header = generate::header(root());
    let major = generate::define(&header, "FOAM_ABI_MAJOR").expect("FOAM_ABI_MAJOR is a number");
    let minor = generate::define(&header, "FOAM_ABI_MINOR").expect("FOAM_ABI_MINOR is a number");
    assert_eq!(foam::abi::foam_abi_version(), major << 16 | minor);
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml is readable");
    let version = manifest.lines().find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"'));
    let version = version.expect("Cargo.toml has a version");
    let package = version.rsplit_once('.').expect("a version has three parts").0;
    assert_eq!(package, format!("{major}.{minor}"), "Cargo.toml's version, and the ABI's");
    // SAFETY: the library returns a static C string.
    let info = unsafe { std::ffi::CStr::from_ptr(foam::abi::foam_build_info()) }.to_string_lossy();
    let api = format!("API {}", foam::abi::FOAM_API_VERSION);
    for part in [version, &format!("ABI {package}"), &api] {
        assert!(info.contains(part), "{info:?} does not say {part}");
    }
}

#[test]
fn the_soname_carries_the_version_of_the_abi() {
    let header = generate::header(root());
    let number = |name| generate::define(&header, name).unwrap_or_else(|| panic!("{name} is a number"));
    let section = dynamic_section();
    // While the major version is 0 a minor one may break callers, so that both are in the name.
    let (major, minor) = (number("FOAM_ABI_MAJOR"), number("FOAM_ABI_MINOR"));
    let name = if major == 0 { format!("libfoam.so.0.{minor}") } else { format!("libfoam.so.{major}") };
    assert!(section.contains(&format!("Library soname: [{name}]")), "{section}");
}

#[test]
fn the_library_stays_loaded_after_dlclose() {
    let section = dynamic_section();
    let flags = section.lines().find(|line| line.contains("FLAGS_1")).unwrap_or_default();
    assert!(flags.contains("NODELETE"), "{section}");
}

#[test]
fn the_library_needs_nothing_but_the_system() {
    let section = dynamic_section();
    let needed = section.lines().filter_map(|line| line.split_once("Shared library: [")?.1.strip_suffix(']'));
    for name in needed {
        let system = ["libc.so", "libm.so", "libgcc_s.so", "libdl.so", "libpthread.so", "ld-linux"];
        assert!(system.iter().any(|known| name.starts_with(known)), "the library needs {name}");
    }
}

#[test]
fn everything_that_a_frozen_header_declares_is_still_declared() {
    let today = generate::without_comments(&generate::header(root()));
    let folder = std::fs::read_dir(root().join("include/frozen")).expect("include/frozen is readable");
    for path in
        folder.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|e| e == "h"))
    {
        let frozen =
            generate::without_comments(&std::fs::read_to_string(&path).expect("a frozen header is readable"));
        for item in declarations(&frozen) {
            // A struct may have grown at its end.
            let kept = item.strip_prefix("typedef struct").and_then(|rest| rest.rsplit_once('}'));
            let kept = kept.map_or(item.clone(), |(fields, _)| format!("typedef struct{fields}"));
            assert!(today.contains(kept.trim_end()), "{}: no longer declared:\n{item}", path.display());
        }
    }
}

/// The declarations of a header without comments: lines of the preprocessor, structs, types and functions.
fn declarations(code: &str) -> Vec<String> {
    let mut items = Vec::new();
    let (mut item, mut depth) = (String::new(), 0);
    for line in code.lines() {
        if line.starts_with("extern \"C\"") || line.starts_with('}') && depth == 0 {
            continue;
        }
        depth += line.matches('{').count();
        depth -= line.matches('}').count().min(depth);
        item.push_str(line);
        item.push('\n');
        if depth == 0 && (line.starts_with('#') || line.ends_with(';')) {
            items.push(std::mem::take(&mut item).trim_end().to_string());
        }
    }
    items
}

#[test]
fn the_table_has_every_function_and_only_appends() {
    let mut listed: Vec<&str> = foam::abi::FOAM_API_FUNCTIONS.to_vec();
    let frozen = std::fs::read_to_string(root().join("include/frozen/foam_api.1")).expect("a frozen list");
    let frozen: Vec<&str> = frozen.lines().collect();
    assert_eq!(
        listed[..frozen.len()],
        frozen,
        "left: today, right: frozen. The table only ever grows at its end"
    );
    listed.push("foam_get_api");
    listed.sort();
    assert_eq!(listed, generate::functions(&generate::header(root())), "left: the table, right: the header");
}

#[test]
fn the_table_is_given_for_known_versions_only() {
    use foam::abi::{FOAM_API_FUNCTIONS, FOAM_API_VERSION, foam_get_api};
    assert!(foam_get_api(0).is_null() && foam_get_api(FOAM_API_VERSION + 1).is_null());
    for version in 1..=FOAM_API_VERSION {
        // SAFETY: the table is static.
        let table = unsafe { &*foam_get_api(version) };
        assert_eq!(table.version, FOAM_API_VERSION);
        assert_eq!(table.struct_size as usize, 8 + 8 * FOAM_API_FUNCTIONS.len());
        assert_eq!(table.foam_step, foam::abi::foam_step as *const std::ffi::c_void);
    }
}

/// The campaign of hostile use leaves no function out. The handlers of XLA on CUDA need the simulator, where
/// `tests/cuda` makes each of their calls fail.
#[test]
fn the_campaign_calls_every_function() {
    let mut text = std::fs::read_to_string(root().join("fuzz/src/lib.rs")).expect("the targets are readable");
    for folder in ["tests/hostile", "tests/support"] {
        for entry in std::fs::read_dir(root().join(folder)).expect("the folder is readable") {
            text += &std::fs::read_to_string(entry.unwrap().path()).unwrap_or_default();
        }
    }
    let symbols = std::fs::read_to_string(root().join("include/foam.symbols")).expect("a list");
    let called = |name: &str| {
        text.split(name)
            .skip(1)
            .any(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_'))
    };
    let missing: Vec<&str> =
        symbols.lines().filter(|name| !name.ends_with("_cuda") && !called(name)).collect();
    assert!(missing.is_empty(), "no part of tests/hostile calls {missing:?}");
}
