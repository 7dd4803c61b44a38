#!/usr/bin/env bash
# Makes a virtual environment with one release of JAX, and prints the path of its python as the last line.
#
#   tests/jax/environment.sh oldest|middle|newest
#
# The newest release is in the environment that all tests with Python share (tests/python/environment.sh). The others
# are small ones of their own, target/jax-env-NAME, made once from NAME.txt and reused while neither that file nor the
# interpreter changes. FOAM_TEST_PYTHON names another interpreter than python3.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
name=${1:?expected oldest, middle or newest}
if [ "$name" = newest ]; then
  exec "$root/tests/python/environment.sh"
fi
requirements=$here/$name.txt
[ -f "$requirements" ] || { echo "no $requirements: expected oldest, middle or newest" >&2; exit 2; }
directory=$root/target/jax-env-$name
interpreter=${FOAM_TEST_PYTHON:-python3}

mkdir -p "$root/target"
exec 9>"$directory.lock"
flock 9

version=$("$interpreter" -c 'import platform; print(platform.python_version(), platform.machine())')
wanted=$( (cat "$requirements"; echo "$version") | sha256sum | cut -d' ' -f1)
stamp=$directory/requirements.sha256
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$wanted" ]; then
  echo "making the environment with the $name JAX in $directory (Python $version, about 600 MB)" >&2
  rm -rf "$directory"
  "$interpreter" -m venv "$directory"
  "$directory/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$requirements" >&2
  echo "$wanted" >"$stamp"
fi
echo "$directory/bin/python"
