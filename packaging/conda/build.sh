#!/usr/bin/env bash
# Run by conda-forge's tools in the folder of the source archive: installs the libraries and headers, and the Python
# package with the same library.
set -euo pipefail
target=$PWD/target
sh bindings/install.sh --prefix "$PREFIX" --strip --target-dir "$target"
"$PYTHON" -m pip install --no-deps --no-build-isolation --disable-pip-version-check \
    --config-settings build=no --config-settings "target-dir=$target" .
# The licences of the crates inside, which the Python package has collected.
"$PYTHON" - <<'TEXT'
import importlib.metadata
import shutil

(notices,) = (file for file in importlib.metadata.files("libfoam") if file.name == "THIRD-PARTY.txt")
shutil.copy(notices.locate(), "THIRD-PARTY.txt")
TEXT
