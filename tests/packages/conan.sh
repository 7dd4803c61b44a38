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
conan create "$ROOT/packaging/conan" --no-remote --build=missing \
    --conf "tools.cmake.cmake_layout:test_folder=$PWD/consumer" --conf tools.cmake.cmaketoolchain:user_presets= \
    >output 2>&1 || fail "conan create: $(tail -n 60 output)"
[ "$(grep -c '^loss after 300 steps: 0\.0' output)" = 2 ] || fail "the consumer's programs did not run: $(tail -n 60 output)"
grep -q -- '--lib --profile release' built || fail "cargo was run as: $(cat built)"
package=$(dirname "$(dirname "$(find home/p/b/*/p/include -name foam.h)")")
grep -Fqx "Version: $VERSION" "$package/lib/pkgconfig/foam.pc" || fail "the package has another version"
for file in lib/libfoam.so lib/libfoam.a include/foam.h lib/cmake/foam/foamConfig.cmake licenses/LICENSE-MIT; do
    [ -f "$package/$file" ] || fail "$file is not in the package"
done
[ ! -e "$ROOT/packaging/conan/test_package/build" ] || fail "the checkout was written to"
