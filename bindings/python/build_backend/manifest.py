"""Cargo's two files for the source archive, which has neither tests nor benchmarks."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Dict

from .library import run_cargo
from .project import BuildError

#: Tables that name files which are not in the archive, or packages that only those need.
LEFT_OUT = ("[[bench]]", "[profile.dev.package]", "[workspace]")
#: Unpacked below another package's workspace, the crate is still its own.
OWN_WORKSPACE = "\n[workspace]\n"


def alone(files: Dict[str, bytes]) -> Dict[str, bytes]:
    """``Cargo.toml`` without what cargo would refuse or warn of, and ``Cargo.lock`` with the same versions of what is
    left: ``cargo build --locked`` refuses one that lists more.
    """
    manifest = files["Cargo.toml"].decode()
    for table in LEFT_OUT:
        manifest = re.sub(rf"^{re.escape(table)}\n(?:.+\n)*\n*", "", manifest, flags=re.MULTILINE)
    manifest = manifest.rstrip("\n") + "\n" + OWN_WORKSPACE
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        (folder / "Cargo.toml").write_text(manifest, encoding="utf-8")
        (folder / "Cargo.lock").write_bytes(files["Cargo.lock"])
        # cargo wants the files that the manifest names, and does not read them here.
        (folder / "src").mkdir()
        for name in ("build.rs", "src/lib.rs"):
            (folder / name).touch()
        command = ["cargo", "update", "--quiet", "--workspace"]
        pipe = {"cwd": folder, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        # What was built before needs no index.
        if run_cargo([*command, "--offline"], **pipe).returncode != 0:
            done = run_cargo(command, **pipe)
            if done.returncode != 0:
                raise BuildError(f"{' '.join(command)} failed: {done.stdout.strip()}")
        return {"Cargo.toml": manifest.encode(), "Cargo.lock": (folder / "Cargo.lock").read_bytes()}
