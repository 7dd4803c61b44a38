#!/usr/bin/env bash
# Everything that could not be done on a machine without a GPU, in one command:
#
#   examples/cuda/first_gpu_run.sh              checks the machine, builds, tests, compares CPU and GPU, measures
#   examples/cuda/first_gpu_run.sh --check      checks the machine only
#   examples/cuda/first_gpu_run.sh --no-tests   leaves the test suite out
#   examples/cuda/first_gpu_run.sh --wheel      without Rust: the package foam of PYTHON (default python3), nothing built
#   examples/cuda/first_gpu_run.sh --simulate   tries this script without a GPU: small sizes on the simulator
#
# It needs an NVIDIA driver for CUDA 12.2 or newer, and to build Rust, a C++ compiler and Python 3; cuBLAS and cuSOLVER
# are fetched by package name where the machine has none. With --wheel it needs Python with foam and NumPy, and cuBLAS and
# cuSOLVER where the library finds them. measure.py says what is measured; model.py lays it beside a cost model. It writes
# one file, target/first_gpu_run/report.json: please read it through and send it back with an issue.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit

check_only=no tests=yes simulate=no wheel=no
for argument in "$@"; do
  case $argument in
    --check) check_only=yes ;;
    --no-tests) tests=no ;;
    --simulate) simulate=yes ;;
    --wheel) wheel=yes tests=no ;;
    --help) sed -n '2,/^set /p' "$0" | sed '$d; s/^# \{0,1\}//' && exit 0 ;;
    *) echo "$argument: expected --check, --no-tests, --wheel, --simulate or --help" >&2 && exit 2 ;;
  esac
done

out=target/first_gpu_run
summary=$out/summary.txt
mkdir -p "$out"
rm -f "$out/report.json"
: >"$summary"
failed=()

# Prints a line and keeps it.
say() { printf '%s\n' "$*" | tee -a "$summary"; }

# stage NAME LINES COMMAND...: runs a command; the end of what it says, and how it ended, go to the summary.
stage() {
  local name=$1 lines=$2 log status
  shift 2
  log=$out/${name// /_}.log
  printf '\n== %s (log: %s)\n' "$name" "$log"
  "$@" 2>&1 | tee "$log"
  status=${PIPESTATUS[0]}
  { printf '\n== %s\n' "$name" && tail -n "$lines" "$log"; } >>"$summary"
  if [ "$status" -eq 0 ]; then
    say "-- $name: passed"
  else
    say "-- $name: FAILED with status $status"
    failed+=("$name")
  fi
  return "$status"
}

# Puts the summary of all stages into the one report.
gather() {
  "${python:-python3}" - "$summary" "$out/report.json" <<'PYTHON'
import json, os, sys

summary, path = sys.argv[1:]
report = json.load(open(path, encoding="utf-8")) if os.path.exists(path) else {}
report["summary"] = open(summary, encoding="utf-8", errors="replace").read().splitlines()
json.dump(report, open(path, "w", encoding="utf-8"), indent=1)
PYTHON
}

finish() {
  say ""
  if [ "${#failed[@]}" -eq 0 ]; then say "All passed."; else say "FAILED: $(printf '%s; ' "${failed[@]}")"; fi
  gather && echo "Report: $out/report.json (please read it through, then send it back with an issue)"
  [ "${#failed[@]}" -eq 0 ]
  exit
}

# ---- the machine

# The version of CUDA that the driver is for, as 1202.
driver_version() {
  nvidia-smi | sed -n 's/.*CUDA Version: *\([0-9]*\)\.\([0-9]*\).*/\1 \2/p' | head -n 1 |
    { read -r major minor && echo $((major * 100 + minor)); }
}

machine() {
  local missing=() driver
  date -u '+%Y-%m-%d'
  git log -1 --format='commit %h %s' 2>/dev/null
  uname -srm
  sed -n 's/^model name[^:]*: /CPU: /p' /proc/cpuinfo | head -n 1
  local tools=(cargo c++ python3 flock)
  [ "$wheel" = no ] || tools=("${PYTHON:-python3}")
  for tool in "${tools[@]}"; do
    command -v "$tool" >/dev/null || missing+=("$tool")
  done
  if [ "${#missing[@]}" -gt 0 ]; then
    echo "missing: ${missing[*]}"
    return 1
  fi
  [ "$wheel" = yes ] || cargo --version
  if [ "$simulate" = yes ]; then
    echo "no GPU: everything runs on the simulator"
    return 0
  fi
  if ! command -v nvidia-smi >/dev/null; then
    echo "missing: nvidia-smi, which comes with NVIDIA's driver; is there a GPU, and is the driver installed?"
    return 1
  fi
  nvidia-smi --query-gpu=index,name,compute_cap,driver_version,memory.total --format=csv || return 1
  driver=$(driver_version)
  if [ "${driver:-0}" -lt 1202 ]; then
    echo "the driver is for CUDA ${driver:-?} (as 100 * major + minor): expected 1202 or newer"
    return 1
  fi
}

stage "machine" 40 machine || finish
[ "$check_only" = no ] || finish

# ---- the environment and the build

if [ "$wheel" = yes ]; then
  # The installed package, and the libraries that it finds by itself; of the checkout only the programs of this folder.
  python=${PYTHON:-python3}
  stage "package" 3 "$python" -c 'import numpy, foam; print(foam.__file__, foam.build_info())' || finish
  libraries=${LD_LIBRARY_PATH:-}
else
  python=$(tests/python/environment.sh | tail -n 1) || { failed+=("Python environment") && finish; }
  export PYTHONPATH=$PWD/bindings/python FOAM_LIBRARY=${FOAM_LIBRARY:-$PWD/target/release/libfoam.so}
  # Nothing of the user's own may slip in; each program gets the libraries that are chosen below.
  unset LD_LIBRARY_PATH
  stage "build" 3 cargo build --release || finish
  ln -sf libfoam.so target/release/libfoam.so.0.1.1
  cuda12=$(tests/cuda/environment.sh | tail -n 1) || { failed+=("CUDA environment") && finish; }
fi

packages() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

# Where cuBLAS and cuSOLVER are: the machine's own, or those of the packages that the driver can run.
if [ "$wheel" = yes ]; then
  :
elif [ "$simulate" = yes ]; then
  cargo build --quiet --manifest-path tests/cudasim/Cargo.toml --target-dir target/cudasim || exit 1
  libraries=$PWD/target/cudasim/lib
  mkdir -p "$libraries"
  for name in libcuda.so.1 libcublas.so.12 libcublas.so.13 libcusolver.so.11 libcusolver.so.12; do
    ln -sf ../debug/libcudasim.so "$libraries/$name"
  done
elif ldconfig -p | grep -q 'libcublas\.so\.1[23]' && ldconfig -p | grep -q 'libcusolver\.so\.1[12]'; then
  libraries=
elif [ "$(driver_version)" -ge 1300 ]; then
  libraries=$(packages "$python")/nvidia/cu13/lib
else
  libraries=$(printf '%s:' "$cuda12"/nvidia/{cublas,cusolver,cusparse,nvjitlink}/lib)
fi
say "cuBLAS and cuSOLVER: ${libraries:-those of this machine}"
with_cuda() { LD_LIBRARY_PATH=$libraries "$@"; }

# ---- what is to be found out

stage "doctor" 60 with_cuda "$python" -m foam doctor

small=()
parity=()
[ "$simulate" = no ] || small=(--small) parity=(--no-timing --steps 18)
stage "parity and timing" 80 with_cuda "$python" examples/cuda/parity.py "${parity[@]}"
stage "measurements" 60 with_cuda "$python" examples/cuda/measure.py --out "$out/report.json" "${small[@]}"

example() {
  local driver
  # By its path: its folder is not always one that the linker searches.
  driver=$(ldconfig -p | sed -n 's/.*libcuda\.so\.1 (libc6,x86-64.*) => //p' | head -n 1)
  [ "$simulate" = no ] || driver=$libraries/libcuda.so.1
  c++ -std=c++17 -O2 examples/cuda/train.cc -Iinclude -isystem "$cuda12/nvidia/cuda_runtime/include" \
    -Ltarget/release -lfoam "-Wl,-rpath,$PWD/target/release" "${driver:--l:libcuda.so.1}" -o "$out/train" &&
    with_cuda "$out/train"
}
[ "$wheel" = yes ] || stage "example" 30 example

if [ "$tests" = yes ]; then
  stage "tests" 40 env FOAM_TEST_ALL=1 cargo test --release --no-fail-fast --features foam-tests/all
fi
finish
