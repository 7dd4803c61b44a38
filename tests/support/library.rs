//! Where the checkout and the shared library under test are.

use std::path::{Path, PathBuf};

/// The shared library that cargo built along with this test.
#[allow(dead_code, reason = "each test program uses a part of it")]
pub fn shared_library() -> PathBuf {
    let test = std::env::current_exe().expect("the test knows its own path");
    let deps = test.parent().expect("the test lies in a folder");
    let candidates = [deps.join("libfoam.so"), deps.join("../libfoam.so")];
    let found = candidates.iter().find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("libfoam.so lies beside the test; looked for {candidates:?}")).clone()
}

/// The root of the checkout.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests lie in a folder of the checkout")
}
