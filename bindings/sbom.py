#!/usr/bin/env python3
"""Writes bindings/libfoam.cdx.json: what is inside libfoam.so, as a CycloneDX list of components with their licences.

`python3 bindings/sbom.py` writes it, `--check` compares it. Packages ship the file; a test compares it with what cargo
links, so that it is written anew when a dependency changes.
"""

import json
import sys
from pathlib import Path

sys.dont_write_bytecode = True  # the checkout stays as it is
sys.path.insert(0, str(Path(__file__).resolve().parent / "python"))

from build_backend import SBOM
from build_backend.notices import linked_crates
from build_backend.project import BuildError, crate_version


def component(name: str, version: str, licence: str) -> dict:
    """One component. Some crates write the older form of a choice, MIT/Apache-2.0."""
    reference = f"pkg:cargo/{name}@{version}"
    return {
        "type": "library",
        "bom-ref": reference,
        "name": name,
        "version": version,
        "licenses": [{"expression": licence.replace("/", " OR ")}],
        "purl": reference,
    }


def document() -> str:
    """The list as text. It has neither a date nor a random number: the same crates give the same text."""
    crates = linked_crates()
    for crate in crates:
        if not crate["license"]:
            raise BuildError(f"{crate['name']} {crate['version']} states no licence")
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component("foam", crate_version(), "MIT OR Apache-2.0")},
        "components": [component(crate["name"], crate["version"], crate["license"]) for crate in crates],
    }
    return json.dumps(bom, indent=1) + "\n"


def main() -> int:
    try:
        text = document()
    except BuildError as cause:
        print(f"sbom.py: {cause}", file=sys.stderr)
        return 1
    if sys.argv[1:] == ["--check"]:
        if not SBOM.is_file() or SBOM.read_text(encoding="utf-8") != text:
            print(f"{SBOM} is not what cargo links: run python3 bindings/sbom.py", file=sys.stderr)
            return 1
    elif sys.argv[1:]:
        print("usage: sbom.py [--check]", file=sys.stderr)
        return 2
    else:
        SBOM.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
