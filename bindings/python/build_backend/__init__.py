"""The build backend of the wheel (PEP 517 and 660): what pip calls, and what ``build_wheel.py`` calls.

``pip install ./bindings/python --config-settings profile=dev`` passes options: ``profile`` (release or dev), ``build``
(yes or no), ``target-dir`` and ``glibc`` (the oldest to run on; needs the package ziglang).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional

from . import archive, library, manifest, metadata, notices
from .library import Options
from .project import PACKAGE, PROJECT, ROOT, BuildError, Project

#: The list of what is inside the library, in the form of CycloneDX.
SBOM = ROOT / "bindings" / "libfoam.cdx.json"

Settings = Optional[Dict[str, Any]]


def write_wheel(folder: Path, options: Options) -> Path:
    """Builds the library and writes the wheel into ``folder``; gives its path."""
    project = Project.read()
    project.check_package()
    with tempfile.TemporaryDirectory() as work:
        built = library.build(options, Path(work))
        tag = f"py3-none-{library.platform_tag(built)}"
        content, whole = library.stripped(built), built.stat().st_size

    wheel = archive.Wheel(project, tag)
    for path in package_files():
        wheel.add(f"foam/{path.relative_to(PACKAGE).as_posix()}", path.read_bytes())
    wheel.add(f"foam/lib/{library.soname()}", content)
    for name, text in metadata.files(project, tag).items():
        wheel.add_info(name, text.encode())
    wheel.add_licences()
    wheel.add_info(f"licenses/{notices.NAME}", notices.collect().encode())
    wheel.add_info(f"sboms/{SBOM.name}", SBOM.read_bytes())

    path = wheel.write(folder)
    print(
        f"{path.name}: {path.stat().st_size / 1e6:.1f} MB; "
        f"library {len(content) / 1e6:.1f} MB, {whole / 1e6:.1f} MB with debug symbols",
        file=sys.stderr,
    )
    return path


def write_sdist(folder: Path) -> Path:
    """Writes the source archive, which builds by itself, into ``folder``; gives its path."""
    project = Project.read()
    files = {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in source_files(project)}
    # Tests and benchmarks are not in the archive, and cargo refuses a manifest that names a file that is not there.
    files.update(manifest.alone(files))
    files["PKG-INFO"] = metadata.files(project, metadata.WITHOUT_LIBRARY)["METADATA"].encode()
    # The archive has its project file at the top, where pip looks for it, and the backend two folders down.
    text = (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    moved = text.replace('backend-path = ["."]', 'backend-path = ["bindings/python"]')
    if moved == text:
        raise BuildError('pyproject.toml: expected the line backend-path = ["."]')
    files["pyproject.toml"] = moved.encode()
    return archive.write_tar(folder, f"{project.distribution}-{project.version}", files)


def write_metadata(folder: Path, tag: str) -> str:
    """Writes the dist-info folder of a wheel that is not built yet into ``folder``; gives its name."""
    project = Project.read()
    info = archive.Wheel(project, tag).info
    (folder / info).mkdir(parents=True)
    for name, text in metadata.files(project, tag).items():
        (folder / info / name).write_text(text, encoding="utf-8")
    return info


def package_files() -> List[Path]:
    """The files of the import package, without what Python or an editable build left there."""
    if not (PACKAGE / "__init__.py").is_file():
        raise BuildError(f"the Python package is not in {PACKAGE}")
    own = {PACKAGE / "lib", *PACKAGE.rglob("__pycache__")}
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and own.isdisjoint(path.parents))
    return sorted(path for path in files if not path.name.startswith("."))


def source_files(project: Project) -> List[Path]:
    """What the library and the wheel are built from."""
    files = [ROOT / name for name in ("Cargo.toml", "Cargo.lock", "build.rs", "README.md", "CHANGELOG.md")]
    for folder in (ROOT / "src", ROOT / "include"):
        files += (path for path in folder.rglob("*") if path.is_file())
    files += (PROJECT / name for name in ("pyproject.toml", "README.md", "build_wheel.py"))
    files += (PROJECT / "build_backend").glob("*.py")
    # What installs the libraries for C and C++, with the files that it installs.
    bindings = ROOT / "bindings"
    files += (bindings / "install.sh", bindings / "link.sh", SBOM)
    for folder in ("install", "cmake", "pkg-config", "cpp"):
        files += (path for path in (bindings / folder).rglob("*") if path.is_file())
    return sorted({*files, *project.licences(), *package_files()})


# The hooks. pip runs them with this folder as the current one.


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: Optional[str] = None) -> str:
    """PEP 517: builds the wheel."""
    return write_wheel(Path(wheel_directory), Options.from_settings(config_settings or {})).name


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    """PEP 517: the metadata alone. Without this hook pip would build the library twice."""
    return write_metadata(Path(metadata_directory), metadata.WITH_LIBRARY)


def prepare_metadata_for_build_editable(metadata_directory: str, config_settings: Settings = None) -> str:
    """PEP 660: the metadata alone."""
    return write_metadata(Path(metadata_directory), metadata.WITHOUT_LIBRARY)


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """PEP 517: writes the source archive."""
    return write_sdist(Path(sdist_directory)).name


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: Optional[str] = None
) -> str:
    """PEP 660: a wheel that points to the checkout, whose ``target`` folder the package searches for the library."""
    options = Options.from_settings(config_settings or {})
    if options.build:
        library.cargo_build(options, options.target_dir)
    project = Project.read()
    wheel = archive.Wheel(project, metadata.WITHOUT_LIBRARY)
    wheel.add("libfoam.pth", f"{PROJECT}\n".encode())
    for name, text in metadata.files(project, metadata.WITHOUT_LIBRARY).items():
        wheel.add_info(name, text.encode())
    wheel.add_licences()
    return wheel.write(Path(wheel_directory)).name
