# The list of what is inside the library is what cargo links today, and the library itself holds nothing else.
. "$ROOT/tests/packages/common.sh"
need ar binutils
"$PYTHON" "$ROOT/bindings/sbom.py" --check

# An object of the static library is named after its crate. Those of Rust's standard library are not listed one by one.
archive=$TARGET_DIR/${PROFILE/#dev/debug}/deps/libfoam.a
[ -f "$archive" ] || archive=$TARGET_DIR/${PROFILE/#dev/debug}/libfoam.a
ar t "$archive" | sed -n 's/^\([a-z0-9_]*\)-[0-9a-f]*\..*\.o$/\1/p' | LC_ALL=C sort -u >inside
[ "$(wc -l <inside)" -gt 20 ] || fail "the static library's objects are not named after crates: $(ar t "$archive" | head)"
sysroot=$(rustc --print sysroot)/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/lib
for library in "$sysroot"/*.rlib; do
    name=${library##*/lib}
    echo "${name%-*}"
done | LC_ALL=C sort -u >standard
{ sed -n 's/.*"name": "\(.*\)".*/\1/p' "$ROOT/bindings/libfoam.cdx.json" | tr - _; cat standard; } | LC_ALL=C sort -u >listed
LC_ALL=C comm -23 inside listed >missing
[ ! -s missing ] || fail "inside the library and not on the list: $(cat missing)"
