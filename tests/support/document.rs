//! The documents that a user reads, README.md, CONTRIBUTING.md and docs/*.md, and the programs in them.

#![allow(dead_code, reason = "each test program uses a part of it")]

use super::library::root;

/// A program of a document.
pub struct Program {
    /// A name for files: the page and the program's number on it.
    pub name: String,
    pub text: String,
}

/// The documents: their paths from the root of the checkout, and their texts.
pub fn pages() -> Vec<(String, String)> {
    let mut paths = vec!["README.md".to_string(), "CONTRIBUTING.md".to_string()];
    for entry in std::fs::read_dir(root().join("docs")).expect("docs is readable") {
        paths.push(format!("docs/{}", entry.unwrap().file_name().to_string_lossy()));
    }
    paths.sort();
    paths.into_iter().filter(|path| path.ends_with(".md")).map(|path| (path.clone(), page(&path))).collect()
}

/// The text of one document.
pub fn page(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|cause| panic!("{path}: {cause}"))
}

/// Every program in the blocks of `language`, of all documents.
pub fn programs(language: &str) -> Vec<Program> {
    let mut found = Vec::new();
    for (path, text) in pages() {
        for (number, block) in text.split(&format!("\n```{language}\n")).skip(1).enumerate() {
            let (text, _) = block.split_once("```").unwrap_or_else(|| panic!("{path}: a block does not end"));
            let name = format!("{}-{}", path.replace(['/', '.'], "-"), number + 1);
            found.push(Program { name, text: text.to_string() });
        }
    }
    assert!(!found.is_empty(), "no document has a program in {language}");
    found
}
