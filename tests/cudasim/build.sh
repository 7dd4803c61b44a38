#!/bin/sh
# Builds the simulator and puts it in DIR under the names of the CUDA libraries.
#   build.sh DIR [cargo build options, such as --features no-batched-evd]
# Then: LD_LIBRARY_PATH=DIR program
set -eu
dir=${1:?usage: build.sh DIR [cargo options]}
shift
here=$(cd "$(dirname "$0")" && pwd)
target=${CARGO_TARGET_DIR:-$here/target}
cargo build --quiet --manifest-path "$here/Cargo.toml" --target-dir "$target" "$@"
mkdir -p "$dir"
cp "$target/debug/libcudasim.so" "$dir/libcudasim.so.new"
mv "$dir/libcudasim.so.new" "$dir/libcudasim.so"
for name in libcuda.so libcuda.so.1 \
    libcublas.so libcublas.so.12 libcublas.so.13 \
    libcusolver.so libcusolver.so.11 libcusolver.so.12; do
    ln -sf libcudasim.so "$dir/$name"
done
