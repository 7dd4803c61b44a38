#!/usr/bin/env bash
# Makes the environment of the CUDA tests (NVIDIA's compilers, libraries and headers, from PyPI; no GPU is needed), and
# prints the folder of its packages, in which nvidia/ lies, as the last line.
#
#   tests/cuda/environment.sh [DIRECTORY]      default: target/cuda-env of this checkout
#
# Made once, then reused: a stamp in it holds the hash of requirements.txt and of the interpreter's version, and the
# directory is made anew when either changes. Tests that start at the same time wait for each other on a lock.
# FOAM_TEST_PYTHON names another interpreter than python3.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
directory=${1:-$root/target/cuda-env}
interpreter=${FOAM_TEST_PYTHON:-python3}
requirements=$here/requirements.txt

mkdir -p "$(dirname "$directory")"
exec 9>"$directory.lock"
flock 9

version=$("$interpreter" -c 'import platform; print(platform.python_version(), platform.machine())')
wanted=$( (cat "$requirements"; echo "$version") | sha256sum | cut -d' ' -f1)
stamp=$directory/requirements.sha256

if [ "$(cat "$stamp" 2>/dev/null || true)" != "$wanted" ]; then
  echo "making the CUDA tests' environment in $directory (NVIDIA's packages: 0.8 GB to fetch, 1.3 GB installed)" >&2
  rm -rf "$directory"
  if ! "$interpreter" -c 'import venv, ensurepip' 2>/dev/null; then
    echo "python's venv module is missing: installing python3-venv with apt-get" >&2
    DEBIAN_FRONTEND=noninteractive
    export DEBIAN_FRONTEND
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv; } >&2
  fi
  "$interpreter" -m venv "$directory"
  # Exactly these packages: what they depend on is listed where it is needed.
  "$directory/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --requirement "$requirements" >&2
  echo "$wanted" >"$stamp"
fi
"$directory/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
