#!/bin/sh
# Links libfoam.so out of libfoam.a as packages ship it: every symbol with the version of the ABI.
#
#   bindings/link.sh ARCHIVE LIBRARY
#
# cargo's own libfoam.so has the same code under symbols without versions: rustc hands the linker a version script
# without a name, and linkers refuse a second one beside it. Programs run with either.
#
# CC names the compiler, which may have arguments: "python3 -m ziglang cc -target x86_64-linux-gnu.2.17" links for
# every glibc from 2.17 on.
set -eu

archive=${1:?usage: bindings/link.sh ARCHIVE LIBRARY}
library=${2:?usage: bindings/link.sh ARCHIVE LIBRARY}
include=$(cd "$(dirname "$0")/../include" && pwd)
compiler=${CC:-cc}

number() {
    sed -n "s/^#define $1 \([0-9]*\).*/\1/p" "$include/foam.h"
}
major=$(number FOAM_ABI_MAJOR)
abi=$major
# While the major version is 0 a minor one may break callers.
[ "$major" != 0 ] || abi=0.$(number FOAM_ABI_MINOR)

# The unwinder of panics, which are caught at the boundary: the system's, or the one that comes with zig.
case $compiler in
    *zig*) unwinder=-lunwind ;;
    *) unwinder=-lgcc_s ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
{
    printf 'FOAM_%s {\n  global:\n' "$abi"
    sed 's/.*/    &;/' "$include/foam.symbols"
    printf '  local: *;\n};\n'
} >"$work/foam.map"

set --
while IFS= read -r symbol; do
    set -- "$@" "-Wl,-u,$symbol"
done <"$include/foam.symbols"
# The compiler's name is split into words on purpose. nodelete: worker threads may outlive a dlclose.
# shellcheck disable=SC2086
$compiler -shared -o "$library" "$@" "$archive" "-Wl,--version-script=$work/foam.map" "-Wl,-soname,libfoam.so.$abi" \
    -Wl,-z,nodelete -Wl,-z,relro -Wl,-z,now -Wl,--gc-sections -Wl,--no-undefined \
    "$unwinder" -lutil -lrt -lpthread -lm -ldl
