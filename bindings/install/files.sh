# Copies everything into the prefix. Sourced by install.sh.

# What a program that links libfoam.a needs besides: `rustc --print native-static-libs` without -lc and -lgcc_s, which
# the compiler adds itself, and -lgcc_s does not exist for a program that is linked with -static.
private_libraries='-lutil -lrt -lpthread -lm -ldl'

# make_folder PATH: makes a folder of the prefix and its parents, and notes those that were not there.
make_folder() {
    [ -d "$destination/$1" ] && return
    case $1 in
        .)
            mkdir -p -- "$destination" || die "cannot make the folder $destination"
            ;;
        *)
            make_folder "$(dirname "$1")"
            mkdir -- "$destination/$1" || die "cannot make the folder $destination/$1"
            ;;
    esac
    chmod 755 "$destination/$1"
    printf '%s/\n' "$1" >>"$list"
}

# place FILE PATH [MODE]: installs a file. It is written beside its place and renamed, because a program that runs has
# the old library mapped and would crash if that were overwritten.
place() {
    make_folder "$(dirname "$2")"
    cp -- "$1" "$destination/$2.new" || die "cannot write $destination/$2"
    chmod "${3:-644}" "$destination/$2.new"
    mv -f -- "$destination/$2.new" "$destination/$2"
    printf '%s\n' "$2" >>"$list"
}

# link TARGET PATH: installs a relative link.
link() {
    rm -f -- "$destination/$2"
    ln -s -- "$1" "$destination/$2" || die "cannot make the link $destination/$2"
    printf '%s\n' "$2" >>"$list"
}

# place_library FILE PATH MODE: installs a library, without debug symbols if asked.
place_library() {
    if [ "$strip" = yes ]; then
        command -v "${STRIP:-strip}" >/dev/null 2>&1 || die "--strip needs the program strip (package binutils), or one named in STRIP"
        "${STRIP:-strip}" --strip-debug -o "$work/library" "$1" || die "strip failed on $1"
        place "$work/library" "$2" "$3"
        rm -f -- "$work/library"
    else
        place "$1" "$2" "$3"
    fi
}

# place_template FILE PATH: installs a text with its @NAMES@ filled in.
place_template() {
    sed -e "s|@VERSION@|$version|g" -e "s|@ABI@|$abi|g" -e "s|@POINTER_SIZE@|$pointer_size|g" \
        -e "s|@PRIVATE_LIBRARIES@|$private_libraries|g" "$1" >"$work/text"
    place "$work/text" "$2"
}

install_files() {
    list=$work/list
    : >"$list"
    # Folders that an earlier installation made are still ours to remove.
    if has_installed; then
        grep '/$' "$destination/$manifest" >"$list" || true
    fi

    place_library "$shared_library" "lib/libfoam.so.$version" 755
    link "libfoam.so.$version" "lib/libfoam.so.$abi"
    link "libfoam.so.$abi" lib/libfoam.so
    place_library "$static_library" lib/libfoam.a 644

    # foam.hpp is a list of includes from the folder foam; the one for libtorch lies with the bindings.
    for header in foam.h foam.hpp; do
        place "$root/include/$header" "include/$header"
    done
    for header in "$root"/include/foam/*.hpp; do
        place "$header" "include/foam/${header##*/}"
    done
    for header in "$here"/cpp/*.hpp; do
        [ ! -f "$header" ] || place "$header" "include/${header##*/}"
    done
    for template in "$here"/pkg-config/*.in; do
        name=${template##*/}
        place_template "$template" "lib/pkgconfig/${name%.in}"
    done
    for template in "$here"/cmake/*.in; do
        name=${template##*/}
        place_template "$template" "lib/cmake/foam/${name%.in}"
    done
    place "$here/libfoam.cdx.json" share/foam/libfoam.cdx.json
    for licence in "$root"/LICENSE-*; do
        place "$licence" "share/foam/${licence##*/}"
    done

    # What an older version had and this one has not, goes; then the new list is the truth.
    if has_installed; then
        remove_files "$list"
    fi
    LC_ALL=C sort -u "$list" >"$destination/$manifest" || die "cannot write $destination/$manifest"
    chmod 644 "$destination/$manifest"
    printf 'installed libfoam %s into %s\n' "$version" "$destination"
}
