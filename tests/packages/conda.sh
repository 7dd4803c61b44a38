# The recipe for conda-forge: its build script installs what its tests look for, in an environment like conda's.
. "$ROOT/tests/packages/common.sh"
recipe=$ROOT/packaging/conda/recipe.yaml
grep -Fqx "  version: \"$VERSION\"" "$recipe" || fail "recipe.yaml has another version than Cargo.toml, $VERSION"
grep -Fqx "  abi: \"${SONAME#libfoam.so.}\"" "$recipe" || fail "recipe.yaml has another ABI than the header"

# Conda unpacks the archive, and gives the script an environment whose folder is the prefix.
"$PYTHON" -m venv prefix
"$PYTHON" "$ROOT/bindings/python/build_wheel.py" --sdist --out archive
tar -xf "archive/libfoam-$VERSION.tar.gz"
replace_cargo
export PREFIX=$PWD/prefix
(cd "libfoam-$VERSION" && PYTHON=$PREFIX/bin/python bash "$ROOT/packaging/conda/build.sh")
[ "$(wc -l <built)" = 1 ] || fail "cargo built more than once: $(cat built)"

# The commands of the recipe's tests, as they stand there.
export PATH=$PREFIX/bin:$PATH
abi=${SONAME#libfoam.so.}
sed -n '/^  - script:/,/^  - python:/s/^      - //p' "$recipe" | sed "s/\${{ abi }}/$abi/" >commands
[ "$(wc -l <commands)" -ge 4 ] || fail "the recipe has fewer tests than expected"
while IFS= read -r command; do
    (cd / && bash -c "$command" >/dev/null) || fail "a test of the recipe fails: $command"
done <commands
(cd / && python -I -c 'import foam; print(foam.build_info())')
for licence in $(sed -n 's/.*license_file: \[\(.*\)\]/\1/p' "$recipe" | tr -d ,); do
    [ -s "libfoam-$VERSION/$licence" ] || fail "$licence is not where the recipe looks for it"
done
