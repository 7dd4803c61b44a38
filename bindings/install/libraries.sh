# Builds and finds the libraries, and what is known about them. Sourced by install.sh.
#
# Sets: version, abi (the version in the SONAME: MAJOR.MINOR while MAJOR is 0, then MAJOR), shared_library (in the folder
# of temporary files), static_library, pointer_size.

# newest FILE…: the newest of the files that exist.
newest() {
    found=''
    for file; do
        if [ -f "$file" ] && { [ -z "$found" ] || [ "$file" -nt "$found" ]; }; then
            found=$file
        fi
    done
    printf '%s\n' "$found"
}

# cargo_target_dir: the folder that cargo builds into, which its configuration may have moved.
cargo_target_dir() {
    metadata=$(cd "$root" && cargo metadata --quiet --format-version 1 --no-deps 2>/dev/null) || metadata=''
    directory=$(printf '%s\n' "$metadata" | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
    printf '%s\n' "${directory:-$root/target}"
}

# remap_paths: lets rustc leave this machine's paths out of what it builds: those of the crates, and of the checkout.
remap_paths() {
    cargo fetch --quiet || die "cargo fetch failed"
    flags=${CARGO_ENCODED_RUSTFLAGS:-$(printf '%s' "${RUSTFLAGS-}" | tr -s ' ' '\037')}
    for folder in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/ "$target_dir/" "$root/"; do
        flags=$flags${flags:+$(printf '\037')}--remap-path-prefix=${folder%/}=foam
    done
    export CARGO_ENCODED_RUSTFLAGS="$flags"
}

find_libraries() {
    version=$(sed -n '/^\[package\]/,/^\[/s/^version *= *"\([^"]*\)".*/\1/p' "$root/Cargo.toml")
    abi=$(sed -n 's/^#define FOAM_ABI_MAJOR \([0-9]*\).*/\1/p' "$root/include/foam.h")
    minor=$(sed -n 's/^#define FOAM_ABI_MINOR \([0-9]*\).*/\1/p' "$root/include/foam.h")
    [ -n "$version" ] || die "Cargo.toml has no version in [package]"
    [ -n "$abi" ] && [ -n "$minor" ] || die "include/foam.h does not define FOAM_ABI_MAJOR and FOAM_ABI_MINOR"
    [ "$abi" != 0 ] || abi=0.$minor

    # Packages are built in a folder of their own, because they are built with other flags.
    [ -n "$target_dir" ] || target_dir=${CARGO_TARGET_DIR:-$(cargo_target_dir)}/package
    if [ "$build" = yes ]; then
        command -v cargo >/dev/null 2>&1 ||
            die "cargo is missing: install Rust, or give --no-build and --target-dir to take libraries built elsewhere"
        set -- build --lib --profile "$profile" --target-dir "$target_dir"
        (cd "$root" && remap_paths && cargo "$@") || die "cargo $* failed"
    fi

    built=$target_dir${CARGO_BUILD_TARGET:+/$CARGO_BUILD_TARGET}/$folder
    # `cargo test` leaves the library in deps, `cargo build` puts a link to it one folder up.
    static_library=$(newest "$built/libfoam.a" "$built/deps/libfoam.a")
    [ -n "$static_library" ] ||
        die "libfoam.a is not in $built: leave out --no-build, or name the right --profile and --target-dir"
    shared_library=$work/libfoam.so
    sh "$here/link.sh" "$static_library" "$shared_library" || die "linking libfoam.so failed"
    # The fifth byte of an ELF file: 1 for 32 bits, 2 for 64.
    pointer_size=$(($(od -An -tu1 -j4 -N1 "$shared_library") * 4))
}
