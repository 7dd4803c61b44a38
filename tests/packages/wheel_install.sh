# The wheel installs into an empty virtual environment, with no index and no compiler, and trains there.
. "$ROOT/tests/packages/common.sh"
"$PYTHON" -m venv environment
mkdir home

# alone COMMAND…: runs it with the environment's programs and nothing else.
alone() {
    env -i PATH="$PWD/environment/bin" HOME="$PWD/home" "$@"
}
alone pip install --no-index --disable-pip-version-check "$WHEEL"
alone pip check
# -I leaves out the current folder and the user's packages.
alone python -I "$ROOT/tests/packages/smoke.py"
alone python -I -m foam doctor >doctor.txt
cat doctor.txt
grep -q "environment/lib/.*/foam/lib/$SONAME" doctor.txt || fail "the doctor does not name the wheel's library"
alone foam doctor >command.txt || fail "the command foam fails"
alone pip uninstall --yes --quiet libfoam
[ -z "$(find environment -ipath '*foam*')" ] || fail "uninstalling left $(find environment -ipath '*foam*')"
