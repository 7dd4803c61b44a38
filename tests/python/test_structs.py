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
    lists = ("STEP_VALIDATE", "API_VERSION", "BLOCK_MAX_NDIM", "PORT_DTYPES", "PORT_READ", "PORT_WRITTEN")
    verbs = ("VERB_ACCUMULATE", "VERB_CHECK", "VERB_APPLY", "RECORD_REAL", "RECORD_WHOLE", "COMM_IN_PLACE")
    infos = ("INFO_IDLE", "INFO_NOT_FINITE", "INFO_LEFT_OUT", "INFO_FELL_BACK")
    soap = ("PRECONDITIONER_SOAP", "SCHEDULE_FRONT_LOADED", "SCHEDULE_GEOMETRIC", "SCHEDULE_COMBINED")
    for name in (*named, *devices, *dtypes, *stacks, *lists, *verbs, *infos, *soap):
        assert defined[name] == getattr(_structs, name), name
    branches = [name for name in defined if name.startswith("BRANCH_")]
    assert len(branches) == len(_structs.BRANCHES)


def test_every_function_of_the_symbol_list_is_declared(root):
    functions = _library.load().functions
    listed = (root / "include" / "foam.symbols").read_text().split()
    listed.remove("foam_get_api")  # the way to all others
    for name in listed:
        assert functions.__dict__[name].argtypes is not None, name
    assert sorted("foam_" + name for name in _structs.API_FUNCTIONS) == listed


def test_the_functions_are_those_of_the_librarys_table():
    functions = _library.load().functions
    table = _library._table(functions._library)
    assert (table.version, table.struct_size) == (_structs.API_VERSION, ctypes.sizeof(_structs.Api))
    for name in _structs.API_FUNCTIONS:
        address = ctypes.cast(getattr(functions, "foam_" + name), ctypes.c_void_p).value
        assert address == getattr(table, name), name
        exported = ctypes.cast(getattr(functions._library, "foam_" + name), ctypes.c_void_p).value
        assert address == exported, name


def test_a_library_without_a_table_is_refused_by_name():
    with pytest.raises(_library.LibraryError, match="foam_get_api"):
        _library._table(ctypes.CDLL(None))


def test_blocks_ports_and_fields_are_readable_through_the_table():
    library = _library.load()
    config, count = _structs.Config(), ctypes.c_size_t(0)
    library.call("foam_config_init", ctypes.byref(config), ctypes.sizeof(config), b"reference")
    fields = (_structs.RecordField * 64)()
    library.call("foam_record_fields", fields, ctypes.sizeof(fields[0]), 64, ctypes.byref(count))
    words = {field.name.decode(): field.word for field in fields[: count.value]}
    assert words["epsilon"] == 0 and words["last_branch"] == 24 and len(words) == 38
    sizes = (ctypes.c_int64 * 2)(6, 4)
    param = _structs.Param()
    library.call("foam_param_init", ctypes.byref(param), ctypes.sizeof(param))
    param.shape, param.ndim = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64)), 2
    blocks = (_structs.BlockInfo * 8)()
    library.call(
        "foam_plan_blocks", ctypes.byref(config), ctypes.byref(param), 1, blocks, ctypes.sizeof(blocks[0]), 8, ctypes.byref(count)
    )
    assert (count.value, blocks[0].ndim, blocks[0].shape[0], blocks[0].factors) == (1, 1, 24, 1)
    due = ctypes.c_int32(0)
    library.call("foam_config_check_due", ctypes.byref(config), 20, ctypes.byref(due))
    assert due.value == 1


def test_status_names_are_the_librarys():
    functions = _library.load().functions
    names = [functions.foam_status_name(status).decode() for status in range(len(_structs.STATUS_NAMES))]
    assert tuple(names) == _structs.STATUS_NAMES


def test_the_package_has_the_crates_version(root):
    import foam

    crate = re.search(r'^version = "(.+)"', (root / "Cargo.toml").read_text(), re.M)[1]
    assert foam.__version__ == crate
    assert f"libfoam {crate} " in foam.build_info()
