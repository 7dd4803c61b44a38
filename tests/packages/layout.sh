# What is installed is complete, has its names and links, and nothing in it knows where it was built or first installed.
. "$ROOT/tests/packages/common.sh"

for file in "lib/libfoam.so.$VERSION" lib/libfoam.a include/foam.h include/foam.hpp include/foam/optimizer.hpp \
    lib/pkgconfig/foam.pc lib/pkgconfig/foam-static.pc lib/cmake/foam/foamConfig.cmake \
    lib/cmake/foam/foamConfigVersion.cmake lib/cmake/foam/foamTargets.cmake \
    share/foam/libfoam.cdx.json share/foam/LICENSE-MIT share/foam/LICENSE-APACHE share/foam/manifest.txt; do
    [ -f "$PREFIX/$file" ] || fail "$file was not installed"
done
for header in "$ROOT"/include/foam/*.hpp; do
    cmp "$header" "$PREFIX/include/foam/${header##*/}"
done
for header in "$ROOT"/bindings/cpp/*.hpp; do
    [ ! -f "$header" ] || cmp "$header" "$PREFIX/include/${header##*/}"
done
[ "$(readlink "$PREFIX/lib/libfoam.so")" = "$SONAME" ] || fail "libfoam.so is not a link to $SONAME"
[ "$(readlink "$PREFIX/lib/$SONAME")" = "libfoam.so.$VERSION" ] || fail "$SONAME is not a link to libfoam.so.$VERSION"

# Everything that is there is on the list, and the other way round.
(cd "$PREFIX" && find . -mindepth 1 \( -type d -printf '%P/\n' -o -printf '%P\n' \)) | grep -vx share/foam/manifest.txt |
    LC_ALL=C sort >there
grep -vx './' "$PREFIX/share/foam/manifest.txt" | LC_ALL=C sort >listed
diff there listed || fail "the list of what was installed is wrong"

dynamic=$(readelf -d "$PREFIX/lib/$SONAME")
grep -Fq "soname: [$SONAME]" <<<"$dynamic" || fail "the library has another SONAME"
! grep -E 'RPATH|RUNPATH' <<<"$dynamic" || fail "the library has a search path"

# Every function that the library defines has the version of the ABI, and no other symbol is visible.
node=FOAM_${SONAME#libfoam.so.}
readelf --wide --dyn-syms "$PREFIX/lib/$SONAME" | awk '$7 != "UND" && $5 == "GLOBAL" && $4 == "FUNC" { print $8 }' |
    LC_ALL=C sort >defined
sed "s/\$/@@$node/" "$ROOT/include/foam.symbols" | LC_ALL=C sort >expected
diff expected defined || fail "the library's symbols are not those of include/foam.symbols with the version $node"
versions=$(readelf --wide --version-info "$PREFIX/lib/$SONAME")
grep -Eq "Flags: none.* Name: $node *\$" <<<"$versions" || fail "the version $node is not defined: $versions"
cmp "$ROOT/bindings/libfoam.cdx.json" "$PREFIX/share/foam/libfoam.cdx.json"

# -I leaves binary files out.
for place in "$FIRST" "$PREFIX" "$ROOT" "$TARGET_DIR" "$HOME/"; do
    ! grep -rIF -- "$place" "$PREFIX" || fail "an installed text holds the path $place"
done
! grep -rIE '@[A-Z_]+@' "$PREFIX/lib" || fail "an installed text has a name that was not filled in"
grep -Fqx "Version: $VERSION" "$PREFIX/lib/pkgconfig/foam.pc" || fail "foam.pc has another version than Cargo.toml"
