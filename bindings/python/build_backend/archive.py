"""Archives that are the same, byte for byte, whenever their content is."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import os
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Dict

from .project import BuildError, Project

#: The date of the files if SOURCE_DATE_EPOCH does not say: 1 January 2020. A zip knows no date before 1980.
DEFAULT_EPOCH = 1577836800
OLDEST_EPOCH = 315532800


def epoch() -> int:
    """The date that all files of an archive get, in seconds since 1970."""
    text = os.environ.get("SOURCE_DATE_EPOCH", str(DEFAULT_EPOCH))
    if not text.isdecimal():
        raise BuildError(f"SOURCE_DATE_EPOCH: expected seconds since 1970, got '{text}'")
    return int(text)


class Wheel:
    """A wheel that is being put together."""

    def __init__(self, project: Project, tag: str) -> None:
        name = f"{project.distribution}-{project.version}"
        self.file_name = f"{name}-{tag}.whl"
        self.info = f"{name}.dist-info"
        self.project = project
        self.files: Dict[str, bytes] = {}

    def add(self, path: str, content: bytes) -> None:
        """Adds a file."""
        if path in self.files:
            raise BuildError(f"two files of the wheel are called {path}")
        self.files[path] = content

    def add_info(self, name: str, content: bytes) -> None:
        """Adds a file of the dist-info folder."""
        self.add(f"{self.info}/{name}", content)

    def add_licences(self) -> None:
        """Adds the project's own licences."""
        for path in self.project.licences():
            self.add_info(f"licenses/{path.name}", path.read_bytes())

    def record(self) -> str:
        """Hash and size of every file; the list itself has neither."""
        lines = []
        for path, content in sorted(self.files.items()):
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            lines.append(f"{path},sha256={digest},{len(content)}\n")
        return "".join(lines) + f"{self.info}/RECORD,,\n"

    def write(self, folder: Path) -> Path:
        """Writes the wheel; the dist-info folder comes last, as the format recommends."""
        files = {**self.files, f"{self.info}/RECORD": self.record().encode()}
        date = time.gmtime(max(epoch(), OLDEST_EPOCH))[:6]
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            for path in sorted(files, key=lambda path: (path.startswith(self.info), path)):
                entry = zipfile.ZipInfo(path, date)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.create_system = 3  # Unix, so that the mode counts
                executable = path.startswith("foam/lib/")
                entry.external_attr = (0o100755 if executable else 0o100644) << 16
                archive.writestr(entry, files[path], compresslevel=9)
        return place(folder, self.file_name, content.getvalue())


def write_tar(folder: Path, name: str, files: Dict[str, bytes]) -> Path:
    """Writes ``name``.tar.gz with the files in a folder of that name."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, content in sorted(files.items()):
            entry = tarfile.TarInfo(f"{name}/{path}")
            entry.size, entry.mtime, entry.mode = len(content), epoch(), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return place(folder, f"{name}.tar.gz", gzip.compress(plain.getvalue(), mtime=epoch()))


def place(folder: Path, name: str, content: bytes) -> Path:
    """Writes a file, so that nobody sees half of it."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{name}.part"
    part.write_bytes(content)
    part.replace(folder / name)
    return folder / name
