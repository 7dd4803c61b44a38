# What the scripts of this folder share. tests/packages.rs runs each of them with these variables:
#
#   ROOT        the checkout                        TARGET_DIR, PROFILE   where cargo put the libraries under test
#   SCRATCH     an empty folder of the script's own  FIRST, PREFIX         where foam was installed, and moved to
#   WHEEL       the wheel
#
# A script passes if it ends without an error; `fail` says what was expected.
set -euo pipefail
cd "$SCRATCH"

VERSION=$(sed -n 's/^version = "\(.*\)"/\1/p' "$ROOT/Cargo.toml" | head -n 1)
SONAME=libfoam.so.$(sed -n 's/^#define FOAM_ABI_MAJOR //p' "$ROOT/include/foam.h")
# While the major version is 0 the minor one is part of the name.
[ "$SONAME" != libfoam.so.0 ] || SONAME=libfoam.so.0.$(sed -n 's/^#define FOAM_ABI_MINOR //p' "$ROOT/include/foam.h")

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# need PROGRAM PACKAGE: names the package if the program is missing.
need() {
    command -v "$1" >/dev/null || fail "$1 is missing: install the package $2"
}

# install_foam OPTION…: installs the libraries under test.
install_foam() {
    "$ROOT/bindings/install.sh" --profile "$PROFILE" --no-build --target-dir "$TARGET_DIR" --strip "$@"
}

# replace_cargo: puts a cargo first in the path that builds nothing: it notes what it was told in the file built, and puts
# the library under test where a build would have put it. Building takes minutes, and was done by the real one.
replace_cargo() {
    local real under
    real=$(command -v cargo)
    under=$TARGET_DIR/${PROFILE/#dev/debug}
    mkdir -p bin
    cat >bin/cargo <<TEXT
#!/bin/sh
[ "\$1" = build ] || exec "$real" "\$@"
echo "\$PWD: \$*" >>"$PWD/built"
while [ "\$1" != --target-dir ]; do
    shift
done
[ "\$2" = "$TARGET_DIR" ] || for profile in debug release; do
    mkdir -p "\$2/\$profile"
    for archive in "$under/libfoam.a" "$under/deps/libfoam.a"; do
        [ ! -f "\$archive" ] || ln -sf "\$archive" "\$2/\$profile/libfoam.a"
    done
done
TEXT
    chmod +x bin/cargo
    export PATH=$PWD/bin:$PATH
}

# refused TEXT COMMAND…: the command fails and says TEXT.
refused() {
    local text=$1 output
    shift
    if output=$("$@" 2>&1); then
        fail "this should have been refused: $*"$'\n'"$output"
    fi
    # CMake breaks its lines where it likes.
    tr -s '\n ' ' ' <<<"$output" | grep -Fq -- "$text" || fail "expected '$text' from $*, got:"$'\n'"$output"
}

# runs PROGRAM: the example converges.
runs() {
    local output
    output=$("$@") || fail "$* ended with $?"
    grep -Eq '^loss after 300 steps: 0\.0' <<<"$output" || fail "unexpected output of $*: $output"
}

# needed PROGRAM: the libraries that the loader will look for.
needed() {
    readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'
}

# shares_foam PROGRAM: it needs the library by its SONAME, and nothing by a path.
shares_foam() {
    needed "$1" | grep -Fqx "$SONAME" || fail "$1 does not need $SONAME but: $(needed "$1")"
    ! needed "$1" | grep -F / || fail "$1 needs a library by its path"
}

# holds_foam PROGRAM: it needs no libfoam when it runs. It is run in a folder of its own, far from the prefix.
holds_foam() {
    ! needed "$1" | grep -F foam || fail "$1 needs a libfoam"
    mkdir -p alone && cp "$1" alone/program
    runs env -i "$PWD/alone/program"
}
