//! The XLA handler in C++ that calls the stack functions: `examples/jax/cpp/train.py` compiles it against the installed
//! jaxlib's headers, trains with it, and has a wrong call refused.

use crate::library::root;
use crate::program::{LIBRARIES, SCRATCH};
use crate::python::Environment;
use crate::tier::{self, Need};

#[test]
fn a_thin_handler_in_cpp_trains_in_place() {
    // XLA's headers take a compiler most of a minute.
    if !tier::runs(Need::Long) {
        return;
    }
    let mut command = Environment::Shared.command();
    command.arg(root().join("examples/jax/cpp/train.py")).arg(&*LIBRARIES).arg(&*SCRATCH);
    command.env("JAX_PLATFORMS", "cpu");
    let done = command.output().unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{command:?}: {}\n{out}{err}", done.status);
    for said in
        ["loss ", "state in place: True", "refused: INVALID_ARGUMENT: args.state_count = 3: expected 14"]
    {
        assert!(out.contains(said), "{said:?} is missing in:\n{out}{err}");
    }
    assert!(!err.contains("warning:"), "{err}");
}
