# The recipe for Conan makes a package, and a CMake project finds, links and runs it.
. "$ROOT/tests/packages/common.sh"
need cmake cmake
need make make
python=$("$ROOT/tests/python/environment.sh" release | tail -n 1)
replace_cargo
export CONAN_HOME=$PWD/home
conan() {
    "$(dirname "$python")/conan" "$@"
}
conan profile detect
conan create "$ROOT/packaging/conan" --build=missing >output 2>&1 || fail "conan create: $(tail -n 60 output)"
[ "$(grep -c '^loss after 300 steps: 0\.0' output)" = 2 ] || fail "the consumer's programs did not run: $(tail -n 60 output)"
grep -q -- '--lib --profile release' built || fail "cargo was run as: $(cat built)"
conan list "libfoam/$VERSION:*" 2>/dev/null | grep -q "libfoam/$VERSION" || fail "the package has another version"
package=$(conan cache path "$(conan list "libfoam/$VERSION:*" --format=compact 2>/dev/null | grep -o "libfoam/$VERSION.*:[0-9a-f]*" | head -n 1)")
for file in lib/libfoam.so lib/libfoam.a include/foam.h lib/cmake/foam/foamConfig.cmake licenses/LICENSE-MIT; do
    [ -f "$package/$file" ] || fail "$file is not in the package"
done
rm -rf "$ROOT/packaging/conan/test_package/build" "$ROOT/packaging/conan/test_package/CMakeUserPresets.json"
