# A program that holds the library links by pkg-config and runs with no libfoam.so around: with foam-static, where all
# but foam is shared, and with `--static` and -static, where nothing is.
. "$ROOT/tests/packages/common.sh"
need pkg-config pkg-config
export PKG_CONFIG_PATH=$PREFIX/lib/pkgconfig

flags=$(pkg-config --cflags --libs foam-static)
eval "${CC:-cc} -std=c11 '$ROOT/examples/cmake/quadratic.c' -o quadratic_c $flags"
eval "${CXX:-c++} -std=c++17 '$ROOT/examples/cmake/quadratic.cpp' -o quadratic_cpp $flags"
holds_foam quadratic_c
holds_foam quadratic_cpp

flags=$(pkg-config --static --cflags --libs foam)
eval "${CC:-cc} -std=c11 -static '$ROOT/examples/cmake/quadratic.c' -o quadratic_static $flags" 2>warnings || {
    cat warnings >&2
    fail "a program without shared libraries does not link"
}
[ -z "$(needed quadratic_static)" ] || fail "a program without shared libraries needs $(needed quadratic_static)"
holds_foam quadratic_static

# The list of libraries is written down in bindings/install; rustc has the last word. The compiler adds libc and libgcc.
rustc --crate-type staticlib --print native-static-libs --crate-name nothing -o nothing.a - </dev/null 2>said
wanted=$(sed -n 's/.*native-static-libs: //p' said | tr ' ' '\n' | grep -vx -e -lc -e -lgcc_s)
[ -n "$wanted" ] || fail "rustc did not say what a static library needs: $(cat said)"
for library in $wanted; do
    grep -q "^Libs.private:.* $library\b" "$PREFIX/lib/pkgconfig/foam.pc" || fail "foam.pc does not link $library"
done
