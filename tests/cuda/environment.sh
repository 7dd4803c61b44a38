#!/usr/bin/env bash
# Makes the environment of the CUDA tests (NVIDIA's compilers, libraries and headers, from PyPI; no GPU is needed), and
# prints the folder of its packages, in which nvidia/ lies, as the last line. tests/python/environment.sh has the rest.
set -euo pipefail
python=$("$(dirname "$0")/../python/environment.sh" cuda)
"$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
