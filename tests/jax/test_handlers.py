"""The handlers register and run on this JAX; a wrong call is an error that names what is wrong, never a crash."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foam.jax import _calls, _compat
from foam.jax._options import read
from foam.jax._plan import Plan, Stack
from foam.jax._state import initial
from support import python

ROWS, DIMS = 6, (4, 3)
STACK = Stack("key", DIMS, "float32", True, 2.0, 1.0, (None,) * ROWS)
OPTIONS = read("reference", {"num_threads": 1})
FIRST = initial(OPTIONS, Plan((), (), (STACK,), 1)).stacks["key"]
SETTINGS = _calls.Settings.of(OPTIONS, STACK, 0.0)


def operands(verb):
    """Names and arrays of a right call."""
    state = {name: jnp.array(array) for name, array in FIRST.items()}
    known = {"grads": jnp.ones((ROWS, *DIMS)), "active": jnp.ones(ROWS, jnp.int32), "info": jnp.zeros(ROWS, jnp.int32)}
    known.update(state)
    factors = [f"{kind}_{axis}" for kind in ("basis", "spectrum", "inverse_root") for axis in (0, 1)]
    names = {
        "accumulate": ["grads", "active", "clock", "statistic_0", "statistic_1"],
        "check": ["info", "clock", "record", "statistic_0", "statistic_1", *factors],
        "apply": ["grads", "info", "clock", "inverse_root_0", "inverse_root_1", "filter", "moment"],
    }[verb]
    return {name: known[name] for name in names}


def results(verb):
    """Names and types of a right call's results."""
    given = operands(verb)
    names = {
        "accumulate": ["clock", "statistic_0", "statistic_1"],
        "check": ["record", *(name for name in given if re.match("basis|spectrum|inverse", name))],
        "apply": ["update", "filter", "moment"],
    }[verb]
    kinds = {name: (given["grads"] if name == "update" else given[name]) for name in names}
    found = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in kinds.items()}
    found["info"] = jax.ShapeDtypeStruct((ROWS,), jnp.int32)
    found["workspace"] = jax.ShapeDtypeStruct((_calls.workspace(SETTINGS, ROWS),), jnp.uint8)
    return found


def call(verb, given=None, wanted=None, **attributes):
    """A call without aliases: the results are the caller's own buffers."""
    _calls.register()
    given = list((given if given is not None else operands(verb)).values())
    wanted = list((wanted if wanted is not None else results(verb)).values())
    whole = {**SETTINGS.attributes(verb), **attributes}
    whole = {key: value for key, value in whole.items() if value is not None}
    return jax.block_until_ready(_compat.ffi.ffi_call(_calls.target(verb), wanted)(*given, **whole))


def refusal(verb, *arguments, **attributes):
    with pytest.raises(Exception) as caught:
        call(verb, *arguments, **attributes)
    # The process lives, and so do the handlers.
    assert len(call(verb)) == len(results(verb))
    return str(caught.value)


def test_registration_can_be_repeated():
    _calls.register()
    _calls._registered = False
    _calls.register()
    _calls.register()


@pytest.mark.parametrize("verb", _calls.VERBS)
def test_a_right_call_runs(verb):
    found = dict(zip(results(verb), call(verb)))
    # A block that never accumulated cannot be applied: it takes no part.
    assert (np.asarray(found["info"]) == (1 if verb == "apply" else 0)).all()


CASES = [(verb, name) for verb in _calls.VERBS for name in operands(verb)]
#: The operands that the sizes of all others follow from: a wrong one makes the next look wrong.
LEADING = {"accumulate": "grads", "check": "info", "apply": "grads"}


@pytest.mark.parametrize("verb, name", CASES, ids=lambda value: str(value))
def test_an_operand_of_a_wrong_shape_or_type_is_named(verb, name):
    given = operands(verb)
    place, right = list(given).index(name), given[name]
    message = refusal(verb, {**given, name: jnp.zeros((*right.shape[:-1], right.shape[-1] + 1), right.dtype)})
    named = r"operand \d+ '\w+'" if name == LEADING[verb] else f"operand {place} '{name}'"
    assert re.search(f"{named}: expected .*, got ", message), message
    message = refusal(verb, {**given, name: jnp.zeros(right.shape, jnp.int8)})
    assert f"operand {place} '{name}'" in message, message


@pytest.mark.parametrize("verb, name", [(verb, name) for verb in _calls.VERBS for name in results(verb)])
def test_a_result_of_a_wrong_shape_or_type_is_named(verb, name):
    wanted = results(verb)
    place, right = list(wanted).index(name), wanted[name]
    kinds = [jax.ShapeDtypeStruct(right.shape, jnp.int8)]
    if name != "workspace":
        kinds.append(jax.ShapeDtypeStruct((*right.shape[:-1], right.shape[-1] + 2), right.dtype))
    for kind in kinds:
        message = refusal(verb, None, {**wanted, name: kind})
        assert f"result {place} '{name}'" in message, message


@pytest.mark.parametrize("verb", _calls.VERBS)
def test_a_wrong_number_of_operands_or_results_names_the_right_ones(verb):
    given, wanted = operands(verb), results(verb)
    fewer = dict(list(given.items())[:-1])
    message = refusal(verb, fewer)
    assert all(name in message for name in given), message
    message = refusal(verb, {**given, "extra": jnp.zeros(3)})
    assert all(name in message for name in given), message
    message = refusal(verb, None, dict(list(wanted.items())[:-1]))
    assert all(name in message for name in wanted), message


@pytest.mark.parametrize(
    "attributes, expected",
    [
        (dict(options="taus=3"), "taus"),
        (dict(options="tau=much"), "tau"),
        (dict(options="nonsense"), "nonsense"),
        (dict(options="check_period=0"), "check_period"),
        (dict(order=None), "order"),
        (dict(order=np.int64(0)), "order"),
        (dict(order=np.int64(99)), "order"),
        (dict(order="two"), "order"),
        (dict(root=np.float64(-1)), "root"),
        (dict(surprise=np.int64(1)), "surprise"),
    ],
)
def test_a_wrong_attribute_is_named(attributes, expected):
    assert expected in refusal("accumulate", **attributes)


def test_a_small_workspace_is_refused():
    wanted = results("check")
    need = wanted["workspace"].shape[0]
    if need > 1:
        wanted["workspace"] = jax.ShapeDtypeStruct((need - 1,), jnp.uint8)
        assert "workspace" in refusal("check", None, wanted)


def test_the_package_does_not_import_jax_and_says_what_is_missing():
    done = python("-c", "import sys, foam; assert 'jax' not in sys.modules and 'optax' not in sys.modules")
    assert done.returncode == 0, done.stderr
    for missing in ("jax", "optax"):
        done = python("-c", f"import sys; sys.modules[{missing!r}] = None; import foam.jax")
        assert done.returncode == 1 and "pip install 'libfoam[jax]'" in done.stderr, done.stderr


def test_the_bare_example_in_the_documentation_runs():
    program = """
import doctest, sys, foam.jax, foam.jax._transform as transform
sys.exit(sum(doctest.testmod(module).failed for module in (foam.jax, transform)))
"""
    done = python("-c", program)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_workspace_is_asked_of_a_device_of_this_process(monkeypatch):
    asked = []
    devices = [type("Device", (), {"local_hardware_id": number})() for number in (3, 2)]
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    monkeypatch.setattr(_calls._native, "workspace", lambda options, shape, rows, device: asked.append(device) or 1)
    assert _calls.workspace(SETTINGS, ROWS) == 1 and asked == ["cuda:2"]
