"""Trains with the C++ handler of foam_step.cc: a stack of matrices, the state donated, one custom call a step.

    python examples/jax/cpp/train.py LIBRARIES [FOLDER]

LIBRARIES holds libfoam.so and libfoam.so.0.1 (bindings/install.sh makes such a folder); FOLDER takes the compiled
handler (default: a temporary one). Needs jax and a C++17 compiler (`c++`, or what CXX names). A handler that is
compiled this way runs on JAX releases at least as new as the one whose headers it saw.
"""

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

HERE = Path(__file__).resolve().parent
OPTIONS = "check_period=5"
COUNT, SHAPE, LR = 4, (8, 6), 0.02


def build(libraries: Path, folder: Path) -> ctypes.CDLL:
    """Compiles the handler against the installed jaxlib's headers and loads it."""
    target = folder / "foam_step.so"
    includes = [f"-isystem{jax.ffi.include_dir()}", f"-I{HERE.parents[2] / 'include'}"]
    link = [f"-L{libraries}", "-lfoam", f"-Wl,-rpath,{libraries}"]
    flags = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared"]
    command = [os.environ.get("CXX", "c++"), *flags, *includes, str(HERE / "foam_step.cc"), *link, "-o", str(target)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(target))


class Stack:
    """A stack's state, as arrays, and the call that makes a step of it."""

    def __init__(self, library: ctypes.CDLL, options: str, count: int, shape: tuple):
        library.foam_cpp_layout.restype = library.foam_cpp_reset.restype = ctypes.c_char_p
        self.options, sizes = options, (ctypes.c_int64 * len(shape))(*shape)
        where = (options.encode(), ctypes.c_int64(count), sizes, ctypes.c_size_t(len(shape)))
        said = library.foam_cpp_layout(*where).decode()
        if said.startswith("error: "):
            raise ValueError(said)
        *state, workspace = (item.split(" ") for item in said.split(";"))
        kinds = {"u32": np.uint32, "f32": np.float32, "f64": np.float64}
        first = [np.empty([int(size) for size in dims.split(",")], kinds[kind]) for _, kind, dims in state]
        places = (ctypes.c_void_p * len(first))(*(array.ctypes.data for array in first))
        said = library.foam_cpp_reset(*where, places).decode()
        if said:
            raise ValueError(said)
        self.first = [jnp.array(array) for array in first]
        extra = [((count,), np.int32), ((int(workspace[2]),), np.uint8)]  # info and workspace
        self.extra = [jax.ShapeDtypeStruct(*each) for each in extra]

    def step(self, state, grads, params):
        """The update, the new state, and what happened to every block."""
        like = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (grads, *state)]
        aliases = {2 + i: 1 + i for i in range(len(state))}  # every state buffer in place
        call = jax.ffi.ffi_call("foam_cpp_step", (*like, *self.extra), input_output_aliases=aliases)
        update, *rest = call(grads, params, *state, options=self.options, scale=-LR)
        return update, rest[:-2], rest[-2]


def main(libraries: Path, folder: Path) -> None:
    library = build(libraries, folder)
    jax.devices()
    jax.ffi.register_ffi_target("foam_cpp_step", jax.ffi.pycapsule(library.foam_cpp_step), platform="cpu")
    stack = Stack(library, OPTIONS, COUNT, SHAPE)
    keys = jax.random.split(jax.random.PRNGKey(0), 3)
    inputs = jax.random.normal(keys[0], (256, SHAPE[0]))
    wanted = jnp.tanh(jnp.einsum("ni,cio->cno", inputs, jax.random.normal(keys[1], (COUNT, *SHAPE))))

    def loss(params):
        return jnp.mean((jnp.tanh(jnp.einsum("ni,cio->cno", inputs, params)) - wanted) ** 2)

    def one(params, state):
        value, grads = jax.value_and_grad(loss)(params)
        update, state, info = stack.step(state, grads, params)
        return params + update, state, value, info

    one = jax.jit(one, donate_argnums=(0, 1))
    params, state = 0.1 * jax.random.normal(keys[2], (COUNT, *SHAPE)), stack.first
    before = [x.unsafe_buffer_pointer() for x in state]
    for number in range(200):
        params, state, value, info = one(params, state)
        if number == 0:
            start = float(value)
    after = [x.unsafe_buffer_pointer() for x in state]
    print(f"loss {start:.4f} -> {float(value):.6f}, info {np.asarray(info)}, {len(state)} state buffers")
    print("state in place:", before == after)
    assert float(value) < 0.01 * start and before == after
    try:  # a wrong call is refused, with what was expected
        jax.block_until_ready(jax.jit(stack.step)(state[:3], params, params))
    except Exception as error:
        print("refused:", str(error).splitlines()[0])
        assert "state_count" in str(error)
    else:
        raise AssertionError("a stack with three state buffers was accepted")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(sys.argv[1]).resolve(), Path(sys.argv[2] if len(sys.argv) == 3 else scratch))
