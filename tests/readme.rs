//! What the README says is true: its C and C++ examples compile without warnings and run, and its options are the
//! library's, with their defaults.

#![cfg(target_os = "linux")]

#[path = "support/library.rs"]
mod library;
#[path = "support/program.rs"]
mod program;

use foam::config::{Config, OPTIONS};
use program::{Language, prints};

fn readme() -> String {
    std::fs::read_to_string(library::root().join("README.md")).expect("the README is readable")
}

/// The first block of the README in `language`.
fn example(language: &str) -> String {
    let readme = readme();
    let (_, after) = readme.split_once(&format!("```{language}\n")).expect("the README has such an example");
    after.split_once("```").expect("the example ends").0.to_string()
}

#[test]
fn the_c_example_runs_as_c_and_as_cpp() {
    let text = example("c");
    for language in [Language::C11, Language::Cpp17] {
        let printed = prints("readme_example", &text, language);
        assert!(printed.starts_with("loss 0."), "{printed}");
    }
}

#[test]
fn the_cpp_example_runs() {
    let printed = prints("readme_cpp", &example("cpp"), Language::Cpp17);
    assert!(printed.contains("EVD rate"), "{printed}");
    let weight: f64 =
        printed.trim_start_matches("w[0] ").split(',').next().unwrap().parse().expect("a number");
    assert!(weight.abs() < 0.1, "{printed}");
}

#[test]
fn the_rust_example_is_the_page_s_which_runs() {
    let page = include_str!("../docs/rust.md");
    assert!(page.contains(&example("rust")), "the README's Rust program is not in docs/rust.md");
}

#[test]
fn every_option_is_in_the_table() {
    let readme = readme();
    for option in OPTIONS {
        assert!(readme.contains(&format!("`{}`", option.key)), "the README does not mention {}", option.key);
    }
}

#[test]
fn the_defaults_in_the_table_are_the_library_s() {
    let readme = readme();
    let table = readme.split_once("| option | default |").expect("the README has a table of options").1;
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let mut compared = 0;
    for row in rows {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let keys: Vec<&str> = cells[1].split(',').map(|key| key.trim().trim_matches('`')).collect();
        let defaults: Vec<&str> = cells[2].split(',').map(|value| value.trim().trim_matches('`')).collect();
        assert_eq!(keys.len(), defaults.len(), "{row}");
        for (key, text) in keys.iter().zip(defaults) {
            let mut config = Config::default();
            config.set(key, text).expect("the README's default is accepted");
            assert_eq!(config, Config::default(), "the README gives another default for {key}");
            compared += 1;
        }
    }
    assert_eq!(compared, OPTIONS.len(), "options with a default in the table");
}
