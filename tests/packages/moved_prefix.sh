# Installs foam into FIRST and moves it to PREFIX, whose name has a space.
. "$ROOT/tests/packages/common.sh"
install_foam --prefix "$FIRST"
mv "$FIRST" "$PREFIX"
