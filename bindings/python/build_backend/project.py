"""What ``pyproject.toml`` and ``Cargo.toml`` say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Dict, List, NamedTuple

try:
    import tomllib
except ModuleNotFoundError:
    try:
        import tomli as tomllib  # type: ignore[import-not-found, no-redef]
    except ModuleNotFoundError:
        raise SystemExit("building libfoam with a Python before 3.11 needs the package tomli: pip install tomli") from None

#: The folder of pyproject.toml.
PROJECT = Path(__file__).resolve().parents[1]
#: The folder of Cargo.toml.
ROOT = PROJECT.parents[1]
#: The import package.
PACKAGE = PROJECT / "foam"


class BuildError(Exception):
    """The build cannot go on; the message says what to do."""


class Project(NamedTuple):
    """The project table, with the version of the crate."""

    version: str
    table: Dict[str, Any]

    @classmethod
    def read(cls) -> Project:
        """Reads both files."""
        with open(PROJECT / "pyproject.toml", "rb") as file:
            table = tomllib.load(file)["project"]
        return cls(python_version(crate_version()), table)

    @property
    def distribution(self) -> str:
        """The project's name as it is spelled in file names."""
        return re.sub(r"[-_.]+", "_", self.table["name"]).lower()

    def licences(self) -> List[Path]:
        """The project's own licence files."""
        found = sorted(ROOT.glob("LICENSE-*"))
        if not found:
            raise BuildError(f"no LICENSE-* file in {ROOT}")
        return found

    def check_package(self) -> None:
        """The package states its version itself, so that it can be used from a checkout; the two must agree."""
        path = PACKAGE / "_version.py"
        stated = re.search(r'^__version__ = "(.+)"$', path.read_text(encoding="utf-8"), re.MULTILINE)
        if not stated or stated.group(1) != self.version:
            found = stated.group(1) if stated else "none"
            raise BuildError(f"{path}: expected __version__ = \"{self.version}\", the version of Cargo.toml; found {found}")


def crate_version() -> str:
    """The version in Cargo.toml."""
    with open(ROOT / "Cargo.toml", "rb") as file:
        return tomllib.load(file)["package"]["version"]


def python_version(version: str) -> str:
    """A version of cargo as Python spells it: 1.2.0-beta.3 is 1.2.0b3."""
    match = re.fullmatch(r"(\d+\.\d+\.\d+)(?:-(alpha|beta|rc)\.?(\d+))?", version)
    if not match:
        raise BuildError(f"Cargo.toml: version '{version}' has no Python form; expected 1.2.3 or 1.2.3-alpha.1, -beta.1, -rc.1")
    release, stage, number = match.groups()
    return release + ({"alpha": "a", "beta": "b", "rc": "rc"}[stage] + number if stage else "")
