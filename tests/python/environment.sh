#!/usr/bin/env bash
# Makes the virtual environment that all tests with Python share, and prints the path of its python as the last line.
#
#   tests/python/environment.sh [DIRECTORY]      default: target/python-env of this checkout
#
# Made once, then reused: a stamp in it holds the hash of requirements.txt and of the interpreter's version, and the
# directory is made anew when either changes. Tests that start at the same time wait for each other on a lock.
# FOAM_TEST_PYTHON names another interpreter than python3.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
directory=${1:-$root/target/python-env}
interpreter=${FOAM_TEST_PYTHON:-python3}
requirements=$here/requirements.txt

mkdir -p "$(dirname "$directory")"
exec 9>"$directory.lock"
flock 9

version=$("$interpreter" -c 'import platform; print(platform.python_version(), platform.machine())')
wanted=$( (cat "$requirements"; echo "$version") | sha256sum | cut -d' ' -f1)
stamp=$directory/requirements.sha256

if [ "$(cat "$stamp" 2>/dev/null || true)" != "$wanted" ]; then
  echo "making the tests' Python environment in $directory (Python $version, torch and jax: about 7 GB, some minutes)" >&2
  rm -rf "$directory"
  if ! "$interpreter" -c 'import venv, ensurepip' 2>/dev/null; then
    echo "python's venv module is missing: installing python3-venv with apt-get" >&2
    DEBIAN_FRONTEND=noninteractive
    export DEBIAN_FRONTEND
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv; } >&2
  fi
  "$interpreter" -m venv "$directory"
  "$directory/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$requirements" >&2
  echo "$wanted" >"$stamp"
fi
echo "$directory/bin/python"
