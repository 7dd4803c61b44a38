"""The licences of the crates that are compiled into the library. They ask that their text goes with it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any, Dict, List, Set

from .library import cargo_metadata
from .project import BuildError

#: The file in the wheel.
NAME = "THIRD-PARTY.txt"

HEAD = """\
libfoam.so contains code of the following Rust crates, and of the standard library of Rust
(MIT OR Apache-2.0, the Rust Project contributors). Their licence texts follow the list.
"""
LICENCE_FILES = re.compile(r"(?i)^(licen[cs]e|copying|unlicense|notice|copyright)([-_.].*)?$")


def collect() -> str:
    """The list of the crates and their licence texts, each text once."""
    crates = linked_crates()
    lines = [HEAD]
    texts: Dict[str, List[str]] = {}
    for crate in crates:
        name = f"{crate['name']} {crate['version']}"
        lines.append(f"  {name}: {crate['license'] or 'see the text below'}")
        for path in licence_files(Path(crate["manifest_path"]).parent):
            text = "\n".join(line.rstrip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines())
            texts.setdefault(text.strip(), []).append(name)
    for text, names in texts.items():
        lines.append(f"\n{'-' * 78}\n{', '.join(dict.fromkeys(names))}\n{'-' * 78}\n\n{text}")
    return "\n".join(lines) + "\n"


def licence_files(folder: Path) -> List[Path]:
    """The licence files of a crate."""
    return sorted(path for path in folder.iterdir() if path.is_file() and LICENCE_FILES.match(path.name))


def linked_crates() -> List[Dict[str, Any]]:
    """The packages that end up in the library: what the crate depends on at run time, directly or not."""
    metadata = cargo_metadata("--filter-platform", host())
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = metadata["resolve"]["root"]
    seen: Set[str] = set()
    waiting = [root]
    while waiting:
        package = waiting.pop()
        if package in seen or is_macro(packages[package]):
            continue
        seen.add(package)
        # A dependency of kind None is neither for the build nor for the tests.
        for dependency in nodes[package]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                waiting.append(dependency["pkg"])
    return sorted((packages[package] for package in seen - {root}), key=lambda crate: (crate["name"], crate["version"]))


def is_macro(package: Dict[str, Any]) -> bool:
    """Whether the package runs in the compiler and not in the library."""
    return any("proc-macro" in target["kind"] for target in package["targets"])


def host() -> str:
    """The platform that cargo builds for by default."""
    try:
        text = subprocess.run(["rustc", "-vV"], check=True, stdout=subprocess.PIPE, text=True).stdout
    except FileNotFoundError:
        raise BuildError("rustc was not found: building libfoam needs Rust") from None
    return re.search(r"^host: (\S+)", text, re.MULTILINE).group(1)  # type: ignore[union-attr]
