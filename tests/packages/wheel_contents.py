"""Reads a wheel with nothing but Python's standard library and readelf, and compares it with what it should be.

Usage: wheel_contents.py WHEEL CHECKOUT
"""

import base64
import csv
import email.parser
import email.policy
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

wheel, root = Path(sys.argv[1]), Path(sys.argv[2])
package = root / "bindings" / "python" / "foam"
abi = dict(re.findall(r"^#define FOAM_ABI_(MAJOR|MINOR) (\d+)", (root / "include/foam.h").read_text(), re.MULTILINE))
SONAME = f"libfoam.so.0.{abi['MINOR']}" if abi["MAJOR"] == "0" else f"libfoam.so.{abi['MAJOR']}"
LIBRARY = f"foam/lib/{SONAME}"


def readelf(*arguments: str) -> str:
    command = ["readelf", "--wide", *arguments]
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "LC_ALL": "C"}
    ).stdout


version = re.search(r'^version = "(.+)"', (root / "Cargo.toml").read_text(), re.MULTILINE).group(1)
name = re.fullmatch(r"libfoam-(?P<version>[^-]+)-py3-none-(?P<platform>(?:many)?linux_\w+)\.whl", wheel.name)
assert name, f"the name {wheel.name} is not that of a wheel for any Python 3 on one platform"
assert name["version"] == version, f"{wheel.name} has another version than Cargo.toml, {version}"
info = f"libfoam-{version}.dist-info"

with zipfile.ZipFile(wheel) as archive:
    assert archive.testzip() is None
    entries = archive.infolist()
    files = {entry.filename: archive.read(entry) for entry in entries}
assert len(files) == len(entries), "a name is in the archive twice"

# The files: those of the package as they are in the checkout, the library, the metadata, and no others.
sources = {
    f"foam/{path.relative_to(package).as_posix()}": path.read_bytes()
    for path in package.rglob("*")
    if path.is_file() and "__pycache__" not in path.parts and path.parent != package / "lib"
}
assert "foam/py.typed" in sources and "foam/__main__.py" in sources, "the package has py.typed and __main__.py"
for path, content in sources.items():
    assert files.get(path) == content, f"{path} is not in the wheel as it is in the checkout"
licences = {f"{info}/licenses/{file}" for file in ("LICENSE-MIT", "LICENSE-APACHE", "THIRD-PARTY.txt")}
sbom = f"{info}/sboms/libfoam.cdx.json"
others = {LIBRARY, sbom, *licences, *(f"{info}/{file}" for file in ("METADATA", "WHEEL", "RECORD", "entry_points.txt"))}
assert set(files) == set(sources) | others, f"unexpected: {sorted(set(files) ^ (set(sources) | others))}"
for entry in entries:
    mode = 0o755 if entry.filename == LIBRARY else 0o644
    assert entry.external_attr >> 16 == 0o100000 | mode, f"{entry.filename} has the mode {entry.external_attr >> 16:o}"

# RECORD: every file with its hash and size.
record = {row[0]: row[1:] for row in csv.reader(files[f"{info}/RECORD"].decode().splitlines())}
assert set(record) == set(files), "RECORD lists other files than there are"
assert record.pop(f"{info}/RECORD") == ["", ""]
for path, (digest, size) in record.items():
    right = base64.urlsafe_b64encode(hashlib.sha256(files[path]).digest()).rstrip(b"=").decode()
    assert digest == f"sha256={right}", f"RECORD has another hash of {path}"
    assert int(size) == len(files[path]), f"RECORD has another size of {path}"

# METADATA and WHEEL.
parser = email.parser.BytesParser(policy=email.policy.compat32)
metadata = parser.parsebytes(files[f"{info}/METADATA"])
assert not metadata.defects, metadata.defects
single = {
    "Metadata-Version": "2.4",
    "Name": "libfoam",
    "Version": version,
    "License-Expression": "MIT OR Apache-2.0",
    "Requires-Python": ">=3.9",
    "Description-Content-Type": "text/markdown; charset=UTF-8",
}
for field, value in single.items():
    assert metadata.get_all(field) == [value], f"{field} is {metadata.get_all(field)}, expected {value}"
assert 0 < len(metadata["Summary"]) < 200
readme = (root / "bindings" / "python" / "README.md").read_bytes()
assert metadata.get_payload(decode=True) == readme, "the description is not the README"
listed = {f"{info}/licenses/{file}" for file in metadata.get_all("License-File")}
assert listed == licences, f"METADATA lists the licences {listed}"
for requirement in metadata.get_all("Requires-Dist"):
    assert "extra ==" in requirement, f"the package needs nothing, and METADATA asks for {requirement}"
tags = parser.parsebytes(files[f"{info}/WHEEL"])
assert tags["Wheel-Version"] == "1.0" and tags["Root-Is-Purelib"] == "false"
assert tags["Tag"] == f"py3-none-{name['platform']}", f"WHEEL has the tag {tags['Tag']}"
assert files[f"{info}/entry_points.txt"].decode() == "[console_scripts]\nfoam = foam.__main__:main\n"
assert f'__version__ = "{version}"' in files["foam/_version.py"].decode()

# The licences of others: complete, and without a path of the machine that built the wheel.
notices = files[f"{info}/licenses/THIRD-PARTY.txt"].decode()
for crate in ("faer", "crc32fast", "half", "gemm"):
    assert re.search(rf"^  {crate} \d\S+: \S", notices, re.MULTILINE), f"{crate} is not among the third-party licences"
assert not re.search(r"^  (cbindgen|proptest|foam) ", notices, re.MULTILINE), "a crate that is not in the library is listed"
assert "Apache License" in notices and "Permission is hereby granted" in notices
assert str(Path.home()) + "/" not in notices and str(root) not in notices

# The list of components: the crates of the licences, each with a version and a licence.
bom = json.loads(files[sbom])
assert bom["bomFormat"] == "CycloneDX" and bom["metadata"]["component"]["version"] == version
components = {f"{entry['name']} {entry['version']}": entry for entry in bom["components"]}
assert set(components) == set(re.findall(r"^  (\S+ \d\S+): ", notices, re.MULTILINE)), "the two lists of crates differ"
assert all(entry["licenses"][0]["expression"] for entry in components.values())

# The library: the right name, no search path, no debug symbols, the ABI's functions.
with tempfile.NamedTemporaryFile() as copy:
    copy.write(files[LIBRARY])
    copy.flush()
    dynamic = readelf("--dynamic", copy.name)
    sections = readelf("--sections", copy.name)
    symbols = readelf("--dyn-syms", copy.name)
assert f"[{SONAME}]" in dynamic and "RUNPATH" not in dynamic and "RPATH" not in dynamic, dynamic
assert ".debug_" not in sections, "the library has debug symbols"
exported = set(re.findall(r"(?:GLOBAL|WEAK) +DEFAULT +\d+ (\S+)$", symbols, re.MULTILINE))
node = SONAME.replace("libfoam.so.", "FOAM_")
functions = (root / "include/foam.symbols").read_text().split()
assert exported - {node} == {f"{name}@@{node}" for name in functions}, f"the library exports {exported}"

# The platform: no symbol is newer than the glibc that the tag states, and one is as new.
versions = {(int(major), int(minor)) for major, minor in re.findall(r"@GLIBC_(\d+)\.(\d+)", symbols)}
tag = re.fullmatch(r"manylinux_(\d+)_(\d+)_(x86_64|aarch64)", name["platform"])
assert tag, f"expected a manylinux tag, got {name['platform']}"
stated = (int(tag[1]), int(tag[2]))
assert stated == max(versions), f"the tag states glibc {stated}, the library needs {max(versions)}"
print(f"{wheel.name}: {len(files)} files, {wheel.stat().st_size / 1e6:.1f} MB")
