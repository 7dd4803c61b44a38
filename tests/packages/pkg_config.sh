# pkg-config finds foam in the moved prefix; programs in C and in C++ link with it, and run wherever the library then is.
. "$ROOT/tests/packages/common.sh"
need pkg-config pkg-config
export PKG_CONFIG_PATH=$PREFIX/lib/pkgconfig

[ "$(pkg-config --modversion foam)" = "$VERSION" ] || fail "pkg-config finds another version"
pkg-config --validate foam
pkg-config --exists "foam >= $VERSION" || fail "$VERSION was refused"
! pkg-config --exists "foam > $VERSION" || fail "more than $VERSION was accepted"
flags=$(pkg-config --cflags --libs foam)
case $flags in
    *"$FIRST"*) fail "pkg-config gives the prefix from before the move: $flags" ;;
esac

# The prefix has a space, which pkg-config escapes for the shell.
eval "${CC:-cc} -std=c11 -Wall -Wextra -Werror '$ROOT/examples/cmake/quadratic.c' -o quadratic_c $flags"
eval "${CXX:-c++} -std=c++17 -Wall -Wextra -Werror '$ROOT/examples/cmake/quadratic.cpp' -o quadratic_cpp $flags"
cp -a "$PREFIX" elsewhere
for program in quadratic_c quadratic_cpp; do
    shares_foam $program
    ! readelf -d $program | grep -E 'RPATH|RUNPATH' || fail "$program has a search path that nobody asked for"
    refused "$SONAME" "./$program"
    runs env LD_LIBRARY_PATH="$PWD/elsewhere/lib" "./$program"
done
