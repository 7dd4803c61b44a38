#!/usr/bin/env bash
# Makes one of the tests' virtual environments and prints the path of its python as the last line.
#
#   tests/python/environment.sh [NAME]
#
#   NAME         in                      holds
#   small        target/python-env-small NumPy, JAX and what they are combined with: what `cargo test` needs
#   full         target/python-env       the same and PyTorch: what FOAM_TEST_ALL=1 needs; the default
#   jax-oldest   target/jax-env-oldest   the oldest JAX that foam.jax runs on
#   jax-middle   target/jax-env-middle   one between
#   docs         target/docs-env         what builds the documentation site
#   release      target/release-env      zig, which links for older systems, and Conan
#   mpi          target/mpi-env          MPICH
#   cuda         target/cuda-env         NVIDIA's compilers, libraries and headers, without their dependencies
#
# What pytest runs in is not compiled ahead: most modules are never imported, and those that are leave their code in
# target/python-cache.
#
# Made once, then reused: a stamp in it holds the hash of its requirements and of the interpreter's version, and the
# directory is made anew when either changes. Tests that start at the same time wait for each other on a lock.
# FOAM_TEST_PYTHON names another interpreter than python3.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
interpreter=${FOAM_TEST_PYTHON:-python3}
name=${1:-full}
options=()
case $name in small | full | jax-*) options=(--no-compile) ;; esac
case $name in
  small) directory=python-env-small requirements=(python/requirements.txt) size='0.9 GB' ;;
  full) directory=python-env requirements=(python/requirements.txt python/torch.txt) size='7 GB, some minutes' ;;
  jax-oldest | jax-middle) directory=jax-env-${name#jax-} requirements=("jax/${name#jax-}.txt") size='0.6 GB' ;;
  release) directory=release-env requirements=(packages/requirements.txt) size='0.5 GB' ;;
  docs) directory=docs-env requirements=(../site/requirements.txt) size='0.2 GB' ;;
  # Exactly these packages: what they depend on is listed where it is needed.
  cuda) directory=cuda-env requirements=(cuda/requirements.txt) size='1.3 GB' options=(--no-deps) ;;
  mpi) directory=mpi-env requirements=(mpi/requirements.txt) size='0.1 GB' ;;
  *) echo "$name: expected small, full, jax-oldest, jax-middle, mpi, docs, release or cuda" >&2 && exit 2 ;;
esac
directory=$root/target/$directory
requirements=("${requirements[@]/#/$root/tests/}")

command -v flock >/dev/null || { echo "flock is missing: install the package util-linux" >&2 && exit 1; }
mkdir -p "$root/target"
exec 9>"$directory.lock"
flock 9

version=$("$interpreter" -c 'import platform; print(platform.python_version(), platform.machine())')
wanted=$( (cat "${requirements[@]}"; echo "$version") | sha256sum | cut -d' ' -f1)
stamp=$directory/requirements.sha256

if [ "$(cat "$stamp" 2>/dev/null || true)" != "$wanted" ]; then
  "$interpreter" -c 'import venv, ensurepip' 2>/dev/null ||
    { echo "python's modules venv and ensurepip are missing: install the package python3-venv" >&2 && exit 1; }
  echo "making the tests' Python environment '$name' in ${directory#"$root"/} (Python $version, $size)" >&2
  rm -rf "$directory"
  "$interpreter" -m venv "$directory"
  "$directory/bin/python" -m pip install --quiet --disable-pip-version-check "${options[@]}" \
    "${requirements[@]/#/--requirement=}" >&2
  echo "$wanted" >"$stamp"
fi
echo "$directory/bin/python"
