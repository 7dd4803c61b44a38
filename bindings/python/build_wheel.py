#!/usr/bin/env python3
"""Builds the wheel of libfoam: `python bindings/python/build_wheel.py`.

Needs cargo, and nothing but Python's standard library (before Python 3.11 also `tomli`).
Two builds of the same library with the same SOURCE_DATE_EPOCH are the same, byte for byte.
"""

import argparse
import sys
from pathlib import Path

sys.dont_write_bytecode = True  # the checkout stays as it is

import build_backend
from build_backend.library import Options
from build_backend.project import BuildError, ROOT


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the wheel of libfoam.")
    parser.add_argument("--out", type=Path, default=ROOT / "target" / "wheels", help="folder of the wheel (default: target/wheels)")
    parser.add_argument("--profile", choices=("release", "dev"), default="release", help="cargo profile (default: release)")
    parser.add_argument("--no-build", action="store_true", help="take the library that cargo built before")
    parser.add_argument("--target-dir", type=Path, help="where cargo builds or has built (default: target/package)")
    parser.add_argument("--glibc", help="the oldest glibc to run on, such as 2.17 (needs the package ziglang; default: this machine's)")
    parser.add_argument("--sdist", action="store_true", help="write the source archive instead of the wheel")
    arguments = parser.parse_args()
    try:
        settings = {"profile": arguments.profile, "build": "no" if arguments.no_build else "yes"}
        settings.update({"target-dir": arguments.target_dir} if arguments.target_dir else {})
        settings.update({"glibc": arguments.glibc} if arguments.glibc else {})
        options = Options.from_settings(settings)
        if arguments.sdist:
            path = build_backend.write_sdist(arguments.out)
        else:
            path = build_backend.write_wheel(arguments.out, options)
    except BuildError as cause:
        print(f"build_wheel.py: {cause}", file=sys.stderr)
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
