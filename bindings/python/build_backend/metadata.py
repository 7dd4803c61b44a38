"""The text files of the wheel's dist-info folder."""

from __future__ import annotations

from typing import Dict, List

from . import notices
from .project import PACKAGE, PROJECT, BuildError, Project

#: The tag of an archive that has no library and fits everywhere.
WITHOUT_LIBRARY = "py3-none-any"
#: A tag that stands for the wheel's until the library is built; installers read the wheel's own.
WITH_LIBRARY = "py3-none-linux"


def files(project: Project, tag: str) -> Dict[str, str]:
    """METADATA, WHEEL and entry_points.txt, by name. Only a wheel for one platform holds the library, and with it the
    licences of others."""
    licences = [path.name for path in project.licences()] + ([] if tag == WITHOUT_LIBRARY else [notices.NAME])
    return {"METADATA": core_metadata(project, licences), "WHEEL": wheel(tag), "entry_points.txt": entry_points(project)}


def core_metadata(project: Project, licences: List[str]) -> str:
    """The core metadata, version 2.4: the first with a licence expression."""
    table = project.table
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {table['name']}",
        f"Version: {project.version}",
        f"Summary: {table['description']}",
        f"Keywords: {','.join(table['keywords'])}",
        *(f"Classifier: {classifier}" for classifier in table["classifiers"]),
        f"License-Expression: {table['license']}",
        *(f"License-File: {name}" for name in licences),
        f"Requires-Python: {table['requires-python']}",
        *(f"Requires-Dist: {requirement}" for requirement in table.get("dependencies", [])),
    ]
    for extra, requirements in table.get("optional-dependencies", {}).items():
        lines.append(f"Provides-Extra: {extra}")
        lines += (f'Requires-Dist: {requirement}; extra == "{extra}"' for requirement in requirements)
    lines.append("Description-Content-Type: text/markdown; charset=UTF-8")
    description = (PROJECT / table["readme"]).read_text(encoding="utf-8")
    return "\n".join(lines) + "\n\n" + description


def wheel(tag: str) -> str:
    """How to install the wheel: into the folder for packages with compiled code."""
    pure = "true" if tag == WITHOUT_LIBRARY else "false"
    return f"Wheel-Version: 1.0\nGenerator: libfoam build_backend\nRoot-Is-Purelib: {pure}\nTag: {tag}\n"


def entry_points(project: Project) -> str:
    """The commands; a command whose function is not there would fail only at the user's."""
    lines = ["[console_scripts]"]
    for name, target in project.table["scripts"].items():
        module, function = target.split(":")
        path = PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py")
        if not path.is_file() or f"def {function}(" not in path.read_text(encoding="utf-8"):
            raise BuildError(f"pyproject.toml: the command {name} is {target}, which {path} does not define")
        lines.append(f"{name} = {target}")
    return "\n".join(lines) + "\n"
