# The list of what an installation put into its prefix, and its removal. Sourced by install.sh.
#
# The list holds one path a line, relative to the prefix, so that it stays true when the prefix is moved. A path that
# ends with a slash is a folder that the installation made; folders that were there before are never removed.

# has_installed: whether the prefix holds an installation.
has_installed() {
    [ -f "$destination/$manifest" ]
}

# check_entry PATH: refuses a line that could reach out of the prefix.
check_entry() {
    case /$1/ in
        //* | */../*) die "$destination/$manifest is damaged: it lists '$1', which is outside the prefix" ;;
    esac
}

# remove_files KEPT: removes the listed files that are not listed in the file KEPT as well.
remove_files() {
    while IFS= read -r entry; do
        case $entry in
            */) continue ;;
        esac
        check_entry "$entry"
        grep -Fqx -- "$entry" "$1" || rm -f -- "$destination/$entry"
    done <"$destination/$manifest"
}

remove_installed() {
    has_installed || die "nothing to uninstall: $destination/$manifest is not there"
    listed=$(cat "$destination/$manifest")
    remove_files /dev/null
    rm -f -- "$destination/$manifest"
    # Deepest first; a folder with somebody else's files stays.
    printf '%s\n' "$listed" | grep '/$' | LC_ALL=C sort -r | while IFS= read -r entry; do
        check_entry "${entry%/}"
        # rmdir refuses a path that ends with a dot, and the prefix itself is listed as one.
        folder=$destination/${entry%/}
        rmdir -- "${folder%/.}" 2>/dev/null || true
    done
    printf 'removed libfoam from %s\n' "$destination"
}
