# libabigail finds nothing in today's header that breaks a program compiled with a frozen one. What it compares are
# libraries with the functions of each header and empty bodies: their debugging information is the ABI as a C compiler
# understands it. tests/header.rs holds the real library to the header, and tests/c/layout.c its layout.
. "$ROOT/tests/packages/common.sh"
need abidw abigail-tools
need abidiff abigail-tools

# describe HEADER NAME: writes NAME.abi, the dump of the header's ABI.
describe() {
    cp "$1" foam.h
    "$PYTHON" "$ROOT/tests/packages/abi.py" foam.h >"$2.c"
    "${CC:-cc}" -g -O0 -w -shared -fPIC -I. "$2.c" -o "lib$2.so"
    abidw --out-file "$2.abi" "lib$2.so"
    grep -q 'foam_create' "$2.abi" || fail "the dump of $1 has no foam_create"
}

describe "$ROOT/include/foam.h" today
for header in "$ROOT"/include/frozen/foam-*.h; do
    name=$(basename "$header" .h)
    describe "$header" "$name"
    # Functions may be added; a struct that starts with its size may grow at its end.
    status=0
    abidiff --suppressions "$ROOT/tests/packages/abi.suppr" --no-added-syms "$name.abi" today.abi >report || status=$?
    [ "$status" = 0 ] || fail "$name: abidiff ended with $status: $(cat report)"
done

# The comparison finds a field in the middle, another type and a lost function, and accepts growth at the end.
changed() {
    sed "$1" "$ROOT/include/foam.h" >changed.h
    ! cmp -s changed.h "$ROOT/include/foam.h" || fail "nothing in the header fits $1"
    describe changed.h changed
    abidiff --suppressions "$ROOT/tests/packages/abi.suppr" --no-added-syms today.abi changed.abi >report
}
breaks() {
    ! changed "$1" || fail "this was not found: $1"
}
changed 's/^} foam_param;/    double after;\n} foam_param;/' || fail "a struct may not grow at its end: $(cat report)"
breaks 's/^} foam_device;/    double after;\n} foam_device;/'
breaks 's/^    double lr_scale;/    double before;\n    double lr_scale;/'
breaks 's/^    int32_t ndim;/    int64_t ndim;/'
breaks 's/foam_destroy/foam_destroyed/'
