//! What the documents say is true: their C and C++ programs compile without warnings and run, their options are the
//! library's, with their defaults, and their links lead somewhere. Programs with libtorch are run by `tests/cpp.rs`,
//! those in Python by `tests/python.rs`.

use crate::document::{page, pages, programs};
use crate::library::root;
use crate::program::{Language, compiles, prints};
use crate::tier::{self, Need};
use foam::config::{Config, OPTIONS};
use std::process::Command;

/// Runs every program in `block` as `language`; compiles those that are a part of one.
fn run_all(block: &str, language: Language) {
    for program in programs(block) {
        if program.text.contains("int main(") {
            let printed = prints(&program.name, &program.text, language);
            assert!(!printed.trim().is_empty(), "{} prints nothing", program.name);
        } else {
            compiles(&program.name, &program.text, language);
        }
    }
}

#[test]
fn the_programs_in_c_run_as_c_and_as_cpp() {
    run_all("c", Language::C11);
    run_all("c", Language::Cpp17);
}

#[test]
fn the_programs_in_cpp_run() {
    run_all("cpp", Language::Cpp17);
}

#[test]
fn the_readme_is_short_and_in_order() {
    let readme = page("README.md");
    let lines: Vec<&str> = readme.lines().collect();
    assert!(lines.len() <= 165, "the README has {} lines: move something to docs/", lines.len());
    for line in &lines {
        assert!(line.chars().count() <= 100, "longer than 100 characters: {line}");
    }
    let head = lines[..16].join(" ");
    for said in ["Status:", "arxiv.org", "`cargo run --release --example train`", "`cargo test`"] {
        assert!(head.contains(said), "the README does not begin with {said}");
    }
    let sections: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix("## ")).collect();
    let languages = ["PyTorch", "JAX", "C++", "C", "Python with ctypes", "Rust"];
    let (first, last) =
        (["Why", "Install"], ["When not to use it", "The options that matter", "Documentation"]);
    assert_eq!(sections, [&first[..], &languages, &last].concat());
}

#[test]
fn the_readme_has_programs_in_c_and_cpp() {
    for block in ["c", "cpp"] {
        assert!(programs(block).iter().any(|program| program.name.starts_with("README")), "{block}");
    }
}

#[test]
fn the_readme_s_program_in_rust_is_on_the_page_whose_programs_run() {
    let own = programs("rust").into_iter().filter(|program| program.name.starts_with("README"));
    let own: Vec<_> = own.collect();
    assert!(!own.is_empty(), "the README has no program in Rust");
    let rust = page("docs/rust.md");
    own.iter().for_each(|program| assert!(rust.contains(&program.text), "{}", program.name));
}

/// The options in a document's table, each of which has the library's default.
fn options_with_true_defaults(path: &str) -> Vec<String> {
    let text = page(path);
    let (_, table) = text.split_once("| option | default |").unwrap_or_else(|| panic!("{path}: no table"));
    let mut found = Vec::new();
    for row in table.lines().skip(2).take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let keys: Vec<&str> = cells[1].split(',').map(|key| key.trim().trim_matches('`')).collect();
        let defaults: Vec<&str> = cells[2].split(',').map(|value| value.trim().trim_matches('`')).collect();
        assert_eq!(keys.len(), defaults.len(), "{path}: {row}");
        for (key, text) in keys.iter().zip(defaults) {
            let mut config = Config::default();
            config.set(key, text).unwrap_or_else(|error| panic!("{path}: {row}: {error:?}"));
            assert_eq!(config, Config::default(), "{path} gives another default for {key}");
            found.push(key.to_string());
        }
    }
    found
}

#[test]
fn the_page_of_options_has_each_with_its_default() {
    let mut found = options_with_true_defaults("docs/options.md");
    let mut expected: Vec<String> = OPTIONS.iter().map(|option| option.key.to_string()).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn the_readme_has_the_defaults_of_eight_options() {
    assert_eq!(options_with_true_defaults("README.md").len(), 8);
}

#[test]
fn every_link_to_a_file_leads_to_one() {
    let mut followed = 0;
    for (path, text) in pages() {
        let folder = root().join(&path).parent().expect("a page lies in a folder").to_path_buf();
        for after in text.split("](").skip(1) {
            let target = after.split(')').next().unwrap_or_default().split('#').next().unwrap_or_default();
            if !target.is_empty() && !target.contains("://") {
                assert!(folder.join(target).exists(), "{path} links to {target}, which is not there");
                followed += 1;
            }
        }
    }
    assert!(followed > 20, "only {followed} links were found");
}

#[test]
fn the_readme_names_every_page() {
    let readme = page("README.md");
    let (_, list) = readme.split_once("## Documentation").expect("the README lists the pages");
    for (path, _) in pages().iter().filter(|(path, _)| path.starts_with("docs/")) {
        assert!(list.contains(&format!("]({path})")), "the README's list of pages leaves out {path}");
    }
}

#[test]
fn each_page_answers_one_question() {
    for (path, text) in pages().iter().filter(|(path, _)| path.starts_with("docs/")) {
        let title = text.lines().next().unwrap_or_default();
        assert!(title.starts_with("# ") && title.ends_with('?'), "{path} starts with {title:?}");
    }
}

#[test]
fn the_site_has_every_page_with_search_and_fetches_nothing() {
    if !tier::runs(Need::Site) {
        return;
    }
    let mut command = Command::new(root().join("site/build.sh"));
    let done = command.output().unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command:?}: {}\n{said}", done.status);
    let read = |path: &str| {
        let path = root().join("target/site").join(path);
        std::fs::read_to_string(&path).unwrap_or_else(|cause| panic!("{}: {cause}", path.display()))
    };
    let index: serde_json::Value = serde_json::from_str(&read("search/search_index.json")).expect("an index");
    let places: Vec<&str> = index["docs"]
        .as_array()
        .expect("pages")
        .iter()
        .filter_map(|place| place["location"].as_str())
        .collect();
    for (path, text) in pages() {
        let name = path.trim_start_matches("docs/").replace(".md", ".html");
        let name = if name == "README.html" { "index.html".to_string() } else { name };
        assert!(places.contains(&&*name), "{path} cannot be found by searching");
        let html = read(&name);
        let title = text.lines().next().unwrap_or_default().trim_start_matches("# ");
        assert!(html.contains(title), "{name} has not the title {title:?}");
        for tag in ["<script src=", "<link rel=\"stylesheet\" href=", "<img src="] {
            let foreign =
                html.split(tag).skip(1).find(|rest| rest.trim_start_matches('"').starts_with("http"));
            assert!(foreign.is_none(), "{name} fetches {foreign:?}");
        }
    }
}

#[test]
fn every_file_of_tests_is_in_a_program() {
    let manifest = page("tests/Cargo.toml");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root().join("tests")).expect("tests is readable") {
        let name = entry.unwrap().file_name().to_string_lossy().into_owned();
        found.extend(name.strip_suffix(".rs").map(str::to_string));
    }
    let (programs, parts): (Vec<String>, Vec<String>) =
        found.into_iter().partition(|name| manifest.contains(&format!("path = \"{name}.rs\"")));
    let texts: Vec<String> = programs.iter().map(|name| page(&format!("tests/{name}.rs"))).collect();
    for part in parts {
        let of = texts.iter().filter(|text| text.lines().any(|line| line == format!("mod {part};"))).count();
        assert_eq!(
            of, 1,
            "tests/{part}.rs is in {of} programs: add it to one, or to the [[test]]s of tests/Cargo.toml"
        );
    }
    assert!(programs.len() > 5, "only {programs:?} are named in tests/Cargo.toml");
}
