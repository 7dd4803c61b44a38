"""The ctypes structs, constants and prototypes are those of the header."""

import ctypes
import re

import pytest

from foam import _library, _structs


@pytest.fixture(scope="module")
def layout(root):
    return (root / "include" / "foam.layout").read_text()


@pytest.fixture(scope="module")
def header(root):
    return (root / "include" / "foam.h").read_text()


def test_every_struct_has_the_size_and_alignment_of_the_layout_file(layout):
    listed = re.findall(r"^STRUCT\((\w+), (\d+), (\d+)\)", layout, re.M)
    assert sorted(name for name, _, _ in listed) == sorted(_structs.STRUCTS)
    for name, size, alignment in listed:
        struct = _structs.STRUCTS[name]
        assert (ctypes.sizeof(struct), ctypes.alignment(struct)) == (int(size), int(alignment)), name


def test_every_field_lies_where_the_layout_file_has_it(layout):
    listed = re.findall(r"^FIELD\((\w+), (\w+), (\d+), (\d+)\)", layout, re.M)
    assert listed
    for name, field, offset, size in listed:
        found = getattr(_structs.STRUCTS[name], field)
        assert (found.offset, found.size) == (int(offset), int(size)), f"{name}.{field}"
    for name, struct in _structs.STRUCTS.items():
        assert [field for field, _ in struct._fields_] == [f for n, f, _, _ in listed if n == name]


def test_constants_are_those_of_the_header(header):
    defined = {name: int(value) for name, value in re.findall(r"^#define FOAM_(\w+) (\d+)$", header, re.M)}
    for index, name in enumerate(_structs.STATUS_NAMES):
        assert defined[name.replace("FOAM_", "")] == index
    for index, name in enumerate(_structs.BRANCHES):
        assert defined[f"BRANCH_{name.upper()}"] == index
    for name, number in _structs.FACTOR_MATRICES.items():
        assert defined[f"FACTOR_{name.upper()}"] == number
    named = ("ABI_MAJOR", "ABI_MINOR", "MESSAGE_SIZE", "PARAM_GRAFTING_ONLY", "LOG_WARNING", "LOG_INFO")
    devices = ("DEVICE_CPU", "DEVICE_CUDA", "DEVICE_CUDA_HOST", "DEVICE_CUDA_MANAGED")
    dtypes = ("DTYPE_INT", "DTYPE_UINT", "DTYPE_FLOAT", "DTYPE_BFLOAT")
    stacks = ("CADENCE_PAPER", "STACK_GRAFTING_ONLY", "STACK_MAX_NDIM", "STACK_BUFFER_NDIM", "STACK_NAME_SIZE")
    infos = ("INFO_IDLE", "INFO_NOT_FINITE", "INFO_LEFT_OUT", "INFO_FELL_BACK")
    for name in (*named, *devices, *dtypes, *stacks, *infos):
        assert defined[name] == getattr(_structs, name), name
    branches = [name for name in defined if name.startswith("BRANCH_")]
    assert len(branches) == len(_structs.BRANCHES)


def test_every_function_of_the_symbol_list_is_declared(root):
    functions = _library.load().functions
    for name in (root / "include" / "foam.symbols").read_text().split():
        assert name in functions.__dict__ and functions.__dict__[name].argtypes is not None, name


def test_status_names_are_the_librarys():
    functions = _library.load().functions
    names = [functions.foam_status_name(status).decode() for status in range(len(_structs.STATUS_NAMES))]
    assert tuple(names) == _structs.STATUS_NAMES


def test_the_package_has_the_crates_version(root):
    import foam

    crate = re.search(r'^version = "(.+)"', (root / "Cargo.toml").read_text(), re.M)[1]
    assert foam.__version__ == crate
    assert f"libfoam {crate} " in foam.build_info()
