# Builds the wheel of the library under test.
. "$ROOT/tests/packages/common.sh"
"$PYTHON" "$ROOT/bindings/python/build_wheel.py" --profile "$PROFILE" --no-build --target-dir "$TARGET_DIR" --out "$SCRATCH"
