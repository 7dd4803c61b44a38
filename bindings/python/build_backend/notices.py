"""The licences of the crates that are compiled into the library. They ask that their text goes with it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any, Dict, List

from .library import cargo_metadata, host, run_cargo
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
    """The packages that end up in the library: what the crate depends on at run time, directly or not, without macros."""
    # `cargo metadata` also names crates that no enabled feature asks for; `cargo tree` does not.
    command = ["cargo", "tree", "--package", "foam", "--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}"]
    done = run_cargo([*command, "--target", host()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)} failed: {done.stderr.strip()}")
    linked = set(re.findall(r"^(\S+) v(\S+)", done.stdout, re.MULTILINE))
    metadata = cargo_metadata("--filter-platform", host())
    root = metadata["resolve"]["root"]
    crates = (crate for crate in metadata["packages"] if crate["id"] != root)
    found = [crate for crate in crates if (crate["name"], crate["version"]) in linked]
    if len(found) != len(linked) - 1:
        raise BuildError("cargo tree and cargo metadata name different crates")
    return sorted(found, key=lambda crate: (crate["name"], crate["version"]))
