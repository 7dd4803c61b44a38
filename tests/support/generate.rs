//! Makes the C header out of `src/abi`, in an order and with comments that suit a C reader.

use std::path::Path;

/// The order in which a person would want to read the header; other modules follow by name.
const READING_ORDER: [&str; 19] = [
    "version",
    "status",
    "tensor",
    "config",
    "param",
    "handle",
    "step",
    "live",
    "stats",
    "inspect",
    "blocks",
    "checkpoint",
    "stack",
    "stack_args",
    "stack_ports",
    "record",
    "xla",
    "probe",
    "api",
];

/// Modules of `src/abi` that hold nothing of the interface.
const PRIVATE: [&str; 3] = ["boundary", "float_env", "mod"];

/// Set after the struct, where a reader looks for it.
const ERROR_INIT: &str = "
/** An empty record to start from: `foam_error error = FOAM_ERROR_INIT;` */
#define FOAM_ERROR_INIT { sizeof(foam_error), 0, -1, -1, 0, {0} }
";

/// The text of `include/foam.h` that the sources in `root` call for.
pub fn header(root: &Path) -> String {
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml is readable");
    let mut builder = cbindgen::Builder::new().with_config(config);
    let mut sources = String::new();
    for path in modules(&root.join("src/abi")) {
        sources.push_str(&std::fs::read_to_string(&path).expect("a module of src/abi is readable"));
        builder = builder.with_src(path);
    }
    let mut raw = Vec::new();
    builder.generate().expect("cbindgen reads src/abi").write(&mut raw);
    let raw = String::from_utf8(raw).expect("the header is UTF-8");
    with_table(&in_order_of(&sources, &prose(&raw)))
}

/// Puts the struct of all functions in front of the one function that gives it. It is made of the functions'
/// prototypes in the order of the library's own list.
fn with_table(header: &str) -> String {
    let mut fields = String::new();
    for name in foam::abi::FOAM_API_FUNCTIONS {
        let prototype = prototype(header, name);
        let (before, after) = prototype.split_once(&format!("{name}(")).expect("a prototype has its name");
        let arguments: Vec<&str> = after.split_whitespace().collect();
        let field = name.strip_prefix("foam_").expect("a function of the library is called so");
        fields.push_str(&format!(
            "    /** `{name}` */\n    {}(*{field})({}\n",
            before,
            arguments.join(" ").replace("* ", "*")
        ));
    }
    let table = format!(
        "/**\n * All functions of the library, each under its name without `foam_`. Later versions only append.\n */\n\
         typedef struct foam_api {{\n    /** Bytes of the table. */\n    uint32_t struct_size;\n    \
         /** `FOAM_API_VERSION` of the library. */\n    uint32_t version;\n{fields}}} foam_api;\n\n"
    );
    let function = "foam_get_api(uint32_t version);";
    let end = header.find(function).expect("the header declares foam_get_api");
    let start = header[..end].rfind("\n\n").expect("an item before it") + 2;
    format!("{}{table}{}", &header[..start], &header[start..])
}

/// The declaration of a function, from its result to its semicolon.
fn prototype<'a>(header: &'a str, name: &str) -> &'a str {
    let at = [' ', '*'].iter().find_map(|before| header.find(&format!("{before}{name}(")));
    let at = at.unwrap_or_else(|| panic!("{name} is declared"));
    let start = header[..at].rfind('\n').expect("it begins in a line") + 1;
    let end = start + header[start..].find(';').expect("it ends with a semicolon") + 1;
    &header[start..end]
}

/// The names of the functions that a header declares, sorted.
pub fn functions(header: &str) -> Vec<String> {
    let code = without_comments(header);
    let code = match (code.find("typedef struct foam_api {"), code.find("} foam_api;")) {
        (Some(start), Some(end)) => format!("{}{}", &code[..start], &code[end + "} foam_api;".len()..]),
        _ => code,
    };
    let declarations: Vec<&str> =
        code.lines().filter(|line| !line.starts_with('#') && !line.starts_with("extern")).collect();
    let mut names: Vec<String> = declarations
        .join("\n")
        .split(';')
        .filter(|declaration| !declaration.contains("typedef"))
        .filter_map(|declaration| declaration.split_once('('))
        .filter_map(|(before, _)| before.split([' ', '\n', '*']).next_back())
        .map(str::to_string)
        .collect();
    names.sort();
    names
}

/// The number that `#define name` stands for.
pub fn define(header: &str, name: &str) -> Option<u32> {
    let mut definitions = header.lines().filter_map(|line| line.strip_prefix("#define "));
    definitions.find_map(|rest| rest.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// A header's code alone: what a compiler sees.
pub fn without_comments(header: &str) -> String {
    let mut code = String::new();
    let mut rest = header;
    while let Some((before, after)) = rest.split_once("/*") {
        code.push_str(before);
        rest = after.split_once("*/").map_or("", |(_, rest)| rest);
    }
    code.push_str(rest);
    let lines = code.lines().map(str::trim_end).filter(|line| !line.trim().is_empty());
    lines.collect::<Vec<_>>().join("\n")
}

fn modules(folder: &Path) -> Vec<std::path::PathBuf> {
    let name = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .expect("src/abi exists")
        .map(|entry| entry.expect("src/abi is readable").path())
        .filter(|path| path.extension().is_some_and(|e| e == "rs") && !PRIVATE.contains(&&*name(path)))
        .collect();
    files.sort_by_key(|path| {
        let place = READING_ORDER.iter().position(|known| *known == name(path));
        (place.unwrap_or(READING_ORDER.len()), name(path))
    });
    files
}

/// Turns rustdoc into prose for C: one-line comments in one line, no Markdown headings and links, plain
/// ASCII, no `struct` in front of what has a typedef.
fn prose(raw: &str) -> String {
    let plain = raw.replace("[`", "`").replace("`]", "`").replace('×', "*");
    let mut text = String::new();
    let mut lines = plain.lines().peekable();
    while let Some(line) = lines.next() {
        let mut line = line.to_string();
        if !line.starts_with("typedef") {
            line = line.replace("struct foam_", "foam_");
        }
        if line.trim() == "/**" {
            let first = lines.next().unwrap_or_default();
            if lines.next_if(|next| next.trim() == "*/").is_some() {
                line = format!("{line} {} */", first.trim().trim_start_matches('*').trim());
            } else {
                line = format!("{line}\n{first}");
            }
        }
        if line.trim() == "* # Safety" {
            let next = lines.next().unwrap_or_default().trim().trim_start_matches('*');
            line = line.replace("# Safety", &format!("Contract:{next}"));
        }
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// Sorts the constants and types as `sources` has them (cbindgen puts all constants in front of all
/// types), and puts the types of the callbacks into the `extern "C"` part too.
fn in_order_of(sources: &str, text: &str) -> String {
    let includes = "#include <stddef.h>\n#include <stdint.h>\n\n";
    let opening = "#ifdef __cplusplus\nextern \"C\" {\n#endif // __cplusplus\n\n";
    let (before, rest) = text.split_once(includes).expect("the header includes stddef.h and stdint.h");
    let (items, functions) = rest.split_once(opening).expect("the header has an extern \"C\" part");
    let mut items: Vec<&str> = items.trim().split("\n\n").collect();
    items.sort_by_key(|item| {
        let name = declared(item);
        let forms = ["const", "type", "struct"].map(|form| format!("pub {form} {name}"));
        let follows = |at: &usize, form: &str| {
            !sources[at + form.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_')
        };
        let places = forms.iter().flat_map(|form| {
            sources.match_indices(form.as_str()).map(|found| found.0).find(|at| follows(at, form))
        });
        places.min().unwrap_or_else(|| panic!("{name} is declared in src/abi"))
    });
    let items = items.join("\n\n");
    let error = "} foam_error;\n";
    assert!(items.contains(error), "the header declares foam_error");
    let items = items.replacen(error, &format!("{error}{ERROR_INIT}"), 1);
    let before = before.replacen("*/\n\n\n", "*/\n\n", 1);
    format!("{before}{includes}{opening}{items}\n\n{functions}")
}

/// The name that a constant's or type's declaration declares.
fn declared(item: &str) -> &str {
    let end = |text: &str| text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
    let after = |mark: &str| item.rsplit_once(mark).map(|(_, rest)| &rest[..end(rest)]);
    let last_word = || item.trim_end_matches(';').rsplit(' ').next();
    let found = after("#define ").or_else(|| after("(*")).or_else(|| after("\n} ")).or_else(last_word);
    found.expect("a declaration has words")
}
