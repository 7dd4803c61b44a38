# pip installs the package from the checkout and from the source archive.
. "$ROOT/tests/packages/common.sh"
"$PYTHON" -m venv environment
replace_cargo
pip() {
    environment/bin/pip --disable-pip-version-check "$@"
}
settings=(--config-settings "profile=$PROFILE" --config-settings "target-dir=$TARGET_DIR")

# from SOURCE FOLDER: installs, and expects cargo to have been run in FOLDER.
from() {
    rm -f built
    pip install --force-reinstall "${settings[@]}" "$1"
    grep -Eqx "$2: build --lib --profile $PROFILE --target-dir $TARGET_DIR" built || fail "cargo was run as: $(cat built)"
    [ "$(wc -l <built)" = 1 ] || fail "cargo built more than once: $(cat built)"
    (cd / && env -i PATH="$SCRATCH/environment/bin" python -I "$ROOT/tests/packages/smoke.py")
}
from "$ROOT/bindings/python" "$ROOT"
"$PYTHON" "$ROOT/bindings/python/build_wheel.py" --sdist --out archive
from "archive/libfoam-$VERSION.tar.gz" '/.*'

# The archive has what cargo needs, and only what is listed. Crates of other platforms are in no new machine's cache.
tar -xf "archive/libfoam-$VERSION.tar.gz"
host=$(rustc -vV | sed -n 's/^host: //p')
(cd "libfoam-$VERSION" && cargo metadata --quiet --locked --filter-platform "$host" --format-version 1 >/dev/null) ||
    fail "cargo does not accept the crate in the source archive"
diff -r "$ROOT/src" "libfoam-$VERSION/src"
grep -Fqx 'backend-path = ["bindings/python"]' "libfoam-$VERSION/pyproject.toml" || fail "the archive's backend is elsewhere"

# From the checkout for those who work on it: the package is the checkout's own.
pip install --force-reinstall "${settings[@]}" --editable "$ROOT/bindings/python"
where=$(cd / && FOAM_LIBRARY="$PREFIX/lib/$SONAME" "$SCRATCH/environment/bin/python" -c 'import foam; print(foam.__file__)')
[ "$where" = "$ROOT/bindings/python/foam/__init__.py" ] || fail "an editable installation imports $where"

refused "unknown setting 'profil'" pip install --config-settings profil=dev "$ROOT/bindings/python"
refused "setting profile: expected release or dev, got 'fast'" \
    pip install --config-settings profile=fast "$ROOT/bindings/python"
