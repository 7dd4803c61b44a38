# install.sh refuses what it does not understand, says why, and touches nothing before that.
. "$ROOT/tests/packages/common.sh"
install=$ROOT/bindings/install.sh

refused '--prefix DIR is missing' "$install"
refused '--prefix needs a value' "$install" --prefix
refused '--prefix needs a value that is not empty' "$install" --prefix=
refused 'got the option --strip' "$install" --prefix --strip
refused "unknown argument '--prefx'" "$install" --prefx out
refused "unknown argument 'out'" "$install" out
refused "--profile is release or dev, not 'fast'" "$install" --prefix out --profile fast
refused '--target-dir needs a value' "$install" --prefix out --target-dir
mkdir nothing
refused 'libfoam.a is not in' "$install" --prefix out --no-build --target-dir nothing
refused 'leave out --no-build' "$install" --prefix out --no-build --target-dir nothing
mkdir -p half/release && touch half/release/libfoam.so
refused 'libfoam.a is not in' "$install" --prefix out --no-build --target-dir half
touch file
refused 'is not a folder' "$install" --prefix file
mkdir without_cargo
for program in sh dirname uname sed cat mkdir mktemp rm; do
    ln -s "$(command -v $program)" without_cargo
done
refused 'cargo is missing' env PATH="$PWD/without_cargo" "$install" --prefix out
refused '--strip needs the program strip' env STRIP=/nonexistent "$install" --prefix "$PWD/out" --no-build --strip \
    --profile "$PROFILE" --target-dir "$TARGET_DIR"
[ -z "$(find out -type f 2>/dev/null)" ] || fail "something was installed: $(find out)"
"$install" --help | grep -q -- --prefix || fail "--help does not help"
