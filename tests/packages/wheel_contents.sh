# The wheel is what its own metadata says, and what the standards ask for.
. "$ROOT/tests/packages/common.sh"
need readelf binutils
"$PYTHON" "$ROOT/tests/packages/wheel_contents.py" "$WHEEL" "$ROOT"
