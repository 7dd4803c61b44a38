"""The library inside the wheel: building, finding and stripping it, and the platforms that it runs on."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

from .project import ROOT, BuildError

#: Libraries that every Linux with glibc has, as the manylinux policies list them.
SYSTEM_LIBRARIES = {
    "libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libgcc_s.so.1",
    "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1",
}  # fmt: skip
#: The oldest glibc that a tag of this form stands for, and the libgcc of that time.
OLDEST_GLIBC, LIBGCC = (2, 17), (4, 8)
#: Machines of the ELF header.
MACHINES = {62: "x86_64", 183: "aarch64"}


class Options(NamedTuple):
    """How the library is built."""

    profile: str = "release"
    build: bool = True
    target_dir: Optional[Path] = None
    #: The oldest glibc to run on, as "2.17"; None is that of this machine. Needs the package ziglang.
    glibc: Optional[str] = None

    @classmethod
    def from_settings(cls, settings: Dict[str, Any]) -> Options:
        """From pip's --config-settings."""
        unknown = sorted(set(settings) - {"profile", "build", "target-dir", "glibc"})
        if unknown:
            raise BuildError(f"unknown setting '{unknown[0]}'; expected profile, build, target-dir or glibc")
        profile, build = settings.get("profile", "release"), settings.get("build", "yes")
        if profile not in ("release", "dev"):
            raise BuildError(f"setting profile: expected release or dev, got '{profile}'")
        if build not in ("yes", "no"):
            raise BuildError(f"setting build: expected yes or no, got '{build}'")
        folder = settings.get("target-dir")
        glibc = settings.get("glibc")
        if glibc is not None and not re.fullmatch(r"2\.\d+", glibc):
            raise BuildError(f"setting glibc: expected a version such as 2.17, got '{glibc}'")
        return cls(profile, build == "yes", Path(folder) if folder else None, glibc)


def build(options: Options, folder: Path) -> Path:
    """Builds the library, unless told not to, and links it in ``folder``, as packages ship it; gives its path."""
    # Packages are built in a folder of their own, because they are built with other flags.
    target = options.target_dir or Path(cargo_metadata("--no-deps")["target_directory"], "package")
    if options.build:
        cargo_build(options, target.absolute(), without_paths(target.absolute()))
    built = target / os.environ.get("CARGO_BUILD_TARGET", "") / {"dev": "debug"}.get(options.profile, options.profile)
    # `cargo test` leaves the library in deps, `cargo build` puts a link to it one folder up.
    found = [path for path in (built / "libfoam.a", built / "deps" / "libfoam.a") if path.is_file()]
    if not found:
        raise BuildError(f"libfoam.a is not in {built}; build it with cargo build --lib --profile {options.profile}")
    newest = max(found, key=lambda path: path.stat().st_mtime_ns)
    environment = dict(os.environ)
    if options.glibc:
        environment["CC"] = f"{sys.executable} -m ziglang cc -target {platform.machine()}-linux-gnu.{options.glibc}"
    linked = folder / "libfoam.so"
    command = [str(ROOT / "bindings" / "link.sh"), str(newest), str(linked)]
    if subprocess.run(["sh", *command], env=environment, stdout=sys.stderr.fileno()).returncode != 0:
        hint = "; --glibc needs the package ziglang: pip install ziglang" if options.glibc else ""
        raise BuildError(f"{' '.join(command)} failed{hint}")
    return linked


def cargo_build(options: Options, target: Optional[Path] = None, flags: Optional[List[str]] = None) -> None:
    """Runs ``cargo build``."""
    if not sys.platform.startswith("linux"):
        raise BuildError(f"wheels are built on Linux only, and this is {sys.platform}")
    command = ["cargo", "build", "--lib", "--profile", options.profile]
    if target:
        command += ["--target-dir", str(target)]
    environment = dict(os.environ)
    if flags:
        environment["CARGO_ENCODED_RUSTFLAGS"] = "\x1f".join(flags)
    # pip shows what goes to the standard error only when it is asked to, or when the build fails.
    if run_cargo(command, stdout=sys.stderr.fileno(), env=environment).returncode != 0:
        raise BuildError(f"{' '.join(command)} failed")


def without_paths(target: Path) -> List[str]:
    """The flags that let rustc leave this machine's paths out of what it builds, behind those of the environment."""
    encoded, plain = os.environ.get("CARGO_ENCODED_RUSTFLAGS"), os.environ.get("RUSTFLAGS", "")
    flags = encoded.split("\x1f") if encoded else plain.split()
    # cargo keeps the crates of an index in one folder, whose name holds the index's host.
    crates = (package for package in cargo_metadata("--filter-platform", host())["packages"] if package["source"])
    folders = {Path(crate["manifest_path"]).parent.parent for crate in crates}
    return flags + [f"--remap-path-prefix={folder}=foam" for folder in (*sorted(folders), target, ROOT)]


def run_cargo(command: List[str], **options: Any) -> subprocess.CompletedProcess:
    """Runs cargo, in the checkout unless ``cwd`` says otherwise."""
    try:
        return subprocess.run(command, **{"cwd": ROOT, **options})
    except FileNotFoundError:
        raise BuildError("cargo was not found: building libfoam needs Rust; a wheel of the index does not") from None


def cargo_metadata(*arguments: str) -> Dict[str, Any]:
    """What cargo knows about the crate and, without --no-deps, about those that it is made of."""
    command = ["cargo", "metadata", "--format-version", "1", *arguments]
    done = run_cargo(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return json.loads(done.stdout)


def host() -> str:
    """The platform that cargo builds for by default."""
    try:
        text = subprocess.run(["rustc", "-vV"], check=True, stdout=subprocess.PIPE, text=True).stdout
    except FileNotFoundError:
        raise BuildError("rustc was not found: building libfoam needs Rust") from None
    return re.search(r"^host: (\S+)", text, re.MULTILINE).group(1)  # type: ignore[union-attr]


def soname() -> str:
    """The name under which the loader knows the library."""
    header = (ROOT / "include" / "foam.h").read_text(encoding="utf-8")
    numbers = dict(re.findall(r"^#define FOAM_ABI_(MAJOR|MINOR) (\d+)", header, re.MULTILINE))
    if len(numbers) != 2:
        raise BuildError("include/foam.h does not define FOAM_ABI_MAJOR and FOAM_ABI_MINOR")
    # While the major version is 0 a minor one may break callers.
    return f"libfoam.so.0.{numbers['MINOR']}" if numbers["MAJOR"] == "0" else f"libfoam.so.{numbers['MAJOR']}"


def stripped(path: Path) -> bytes:
    """The library without its debug symbols; function names stay, for backtraces."""
    strip = os.environ.get("STRIP", "strip")
    if not shutil.which(strip):
        raise BuildError(f"the program {strip} was not found: install the package binutils, or name one in STRIP")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, path.name)
        subprocess.run([strip, "--strip-debug", "-o", str(copy), str(path)], check=True)
        return copy.read_bytes()


def platform_tag(path: Path) -> str:
    """The platforms that the library runs on: manylinux with the glibc that its symbols need, or plain linux where that
    cannot be said for certain (no readelf, libraries that not every system has, code for one CPU)."""
    with open(path, "rb") as file:
        header = file.read(20)
    machine = MACHINES.get(int.from_bytes(header[18:20], "little"))
    if header[:4] != b"\x7fELF" or machine is None:
        raise BuildError(f"{path} is not a library for {' or '.join(MACHINES.values())}")
    glibc = needed_glibc(path)
    return f"manylinux_{glibc[0]}_{glibc[1]}_{machine}" if glibc else f"linux_{machine}"


def needed_glibc(path: Path) -> Optional[tuple]:
    """The oldest glibc that has every symbol of the library, or None."""
    flags = os.environ.get("RUSTFLAGS", "") + os.environ.get("CARGO_ENCODED_RUSTFLAGS", "")
    if "target-cpu" in flags or "target-feature" in flags or not shutil.which("readelf"):
        return None
    command = ["readelf", "--wide", "--dynamic", "--version-info", str(path)]
    text = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "LC_ALL": "C"}
    ).stdout
    if not set(re.findall(r"\(NEEDED\).*\[(.+)\]", text)) <= SYSTEM_LIBRARIES:
        return None
    glibc = [OLDEST_GLIBC]
    for name in re.findall(r"Name: (\S+) +Flags:", text):
        match = re.fullmatch(r"(GLIBC|GCC)_(\d+)\.(\d+)(?:\.\d+)?", name)
        if not match:
            return None
        version = (int(match.group(2)), int(match.group(3)))
        if match.group(1) == "GLIBC":
            glibc.append(version)
        elif version > LIBGCC:
            return None
    return max(glibc)
