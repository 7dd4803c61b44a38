# Uninstalling removes what was installed, wherever the prefix is by then, and nothing of anybody else.
. "$ROOT/tests/packages/common.sh"
uninstall() {
    "$ROOT/bindings/install.sh" --uninstall --prefix "$1"
}

cp -a "$PREFIX" moved
uninstall "$PWD/moved"
[ ! -e moved ] || fail "uninstalling left: $(find moved)"
refused 'nothing to uninstall' uninstall "$PWD/moved"

# Folders that were there before, and other people's files, stay.
mkdir -p shared/include shared/lib/pkgconfig
touch shared/lib/libother.so shared/lib/pkgconfig/other.pc
find shared | sort >before
install_foam --prefix shared
touch shared/share/foam/notes.txt
uninstall shared
rm shared/share/foam/notes.txt
rmdir shared/share/foam shared/share
find shared | sort | diff before - || fail "uninstalling did not leave what was there before"

# Installing again takes the files along that only an older version had.
install_foam --prefix again
touch again/lib/libfoam.so.0.0.9
echo lib/libfoam.so.0.0.9 >>again/share/foam/manifest.txt
install_foam --prefix again
[ ! -e again/lib/libfoam.so.0.0.9 ] || fail "a file of the older version stayed"
uninstall again
[ ! -e again ] || fail "uninstalling after installing twice left: $(find again)"

# A list that points out of the prefix is not followed.
cp -a "$PREFIX" damaged
touch precious
echo ../precious >>damaged/share/foam/manifest.txt
refused "it lists '../precious', which is outside the prefix" uninstall damaged
[ -e precious ] || fail "a file outside the prefix was removed"
