# DESTDIR stages an installation: everything is below it, and works once it is at its prefix.
. "$ROOT/tests/packages/common.sh"
need pkg-config pkg-config

# The prefix lies in the scratch folder as well, so that an installer that forgets DESTDIR writes nowhere else.
prefix=$SCRATCH/prefix
DESTDIR=$PWD/stage install_foam --prefix "$prefix"
[ -f "stage$prefix/lib/libfoam.a" ] || fail "nothing was staged"
[ ! -e "$prefix" ] || fail "DESTDIR was not honoured"
! grep -rIF -- "$PWD" stage || fail "an installed text holds the stage's path or the prefix"
mv "stage$prefix" final
flags=$(PKG_CONFIG_PATH=$PWD/final/lib/pkgconfig pkg-config --cflags --libs foam)
eval "${CC:-cc} '$ROOT/examples/cmake/quadratic.c' -o quadratic $flags"
runs env LD_LIBRARY_PATH="$PWD/final/lib" ./quadratic

DESTDIR=$PWD/stage install_foam --prefix "$prefix"
DESTDIR=$PWD/stage "$ROOT/bindings/install.sh" --prefix "$prefix" --uninstall
[ -z "$(find stage -not -type d)" ] || fail "uninstalling left: $(find stage)"
DESTDIR=$PWD/stage refused '--prefix has to be absolute with DESTDIR' install_foam --prefix relative
