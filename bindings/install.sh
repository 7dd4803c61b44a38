#!/bin/sh
# Installs libfoam for C and C++ into a prefix: libraries, headers, pkg-config files and a CMake package.
# Nothing that is installed knows the prefix, so the folder may be moved, copied or packed afterwards.
# `bindings/install.sh --help` lists the options.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/.." && pwd)

usage() {
    cat <<'TEXT'
Usage: bindings/install.sh --prefix DIR [options]
       bindings/install.sh --prefix DIR --uninstall

Builds libfoam with cargo and installs it into DIR:
  lib/libfoam.so.VERSION, libfoam.so.ABI, libfoam.so   the shared library
  lib/libfoam.a                                        the static library
  lib/pkgconfig/foam.pc, foam-static.pc                for pkg-config
  lib/cmake/foam/                                      for find_package(foam CONFIG)
  include/foam.h and the C++ headers
  share/foam/                                          licences, the list of what is inside the library
                                                       (CycloneDX), and of what was installed

Options:
  --prefix DIR          where to install; it may be moved afterwards
  --profile NAME        release (the default) or dev
  --no-build            take the libraries that cargo built before
  --target-dir DIR      where cargo builds or has built, instead of target/package
  --strip               leave out debug symbols (about a quarter of the size)
  --uninstall           remove what was installed into DIR, and nothing else
  -h, --help            this text

Environment:
  DESTDIR               is put before the prefix, to stage a package: DESTDIR=/stage … --prefix /usr
  CARGO_BUILD_TARGET    the target to build for, as cargo takes it
  CC                    the compiler that links the shared library; see bindings/link.sh
TEXT
}

die() {
    printf 'install.sh: %s\n' "$1" >&2
    exit 1
}

# value OPTION COUNT VALUE: the value of an option, which has to be there. A name that begins with a dash is more
# likely a forgotten value than a folder.
value() {
    [ "$2" -ge 2 ] || die "$1 needs a value; see --help"
    case $3 in
        '') die "$1 needs a value that is not empty" ;;
        -*) die "$1 needs a value, and got the option $3 (a folder of that name is written ./$3)" ;;
    esac
    printf '%s\n' "$3"
}

prefix='' profile=release build=yes target_dir='' strip=no action=install
while [ $# -gt 0 ]; do
    # --option=value is --option value.
    case $1 in
        --prefix=* | --profile=* | --target-dir=*)
            option=$1
            shift
            set -- "${option%%=*}" "${option#*=}" "$@"
            ;;
    esac
    case $1 in
        --prefix)
            prefix=$(value "$1" $# "${2-}") || exit 1
            shift
            ;;
        --profile)
            profile=$(value "$1" $# "${2-}") || exit 1
            shift
            ;;
        --target-dir)
            target_dir=$(value "$1" $# "${2-}") || exit 1
            shift
            ;;
        --no-build) build=no ;;
        --strip) strip=yes ;;
        --uninstall) action=uninstall ;;
        -h | --help)
            usage
            exit 0
            ;;
        *) die "unknown argument '$1'; see --help" ;;
    esac
    shift
done

[ -n "$prefix" ] || die "--prefix DIR is missing: say where to install, for example --prefix /usr/local"
case $profile in
    release) folder=release ;;
    dev) folder=debug ;;
    *) die "--profile is release or dev, not '$profile'" ;;
esac
case $prefix in
    /*) ;;
    *)
        [ -z "${DESTDIR-}" ] || die "--prefix has to be absolute with DESTDIR, not '$prefix'"
        prefix=$PWD/$prefix
        ;;
esac
[ "$(uname -s)" = Linux ] || die "installs on Linux only, and this is $(uname -s)"

destination=${DESTDIR-}$prefix
manifest=share/foam/manifest.txt
[ -e "$destination" ] && [ ! -d "$destination" ] && die "--prefix $destination is there, and is not a folder"

. "$here/install/manifest.sh"
if [ "$action" = uninstall ]; then
    remove_installed
    exit 0
fi
. "$here/install/libraries.sh"
. "$here/install/files.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
find_libraries
install_files
