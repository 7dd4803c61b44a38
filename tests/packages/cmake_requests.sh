# find_package accepts and refuses versions and components as it should, and says what is wrong with half an installation.
. "$ROOT/tests/packages/common.sh"
need cmake cmake
need make make

# find ARGUMENTS [LANGUAGE]: configures a project that asks for foam in this way.
find() {
    rm -rf project build
    mkdir project
    printf '%s\n' 'cmake_minimum_required(VERSION 3.19)' "project(request LANGUAGES ${2:-NONE})" \
        "find_package(foam $1 CONFIG REQUIRED)" 'find_package(foam CONFIG REQUIRED)' \
        'foreach(target foam::foam foam::static foam::headers)' '  if(NOT TARGET ${target})' \
        '    message(FATAL_ERROR "${target} is missing")' '  endif()' 'endforeach()' \
        'message(STATUS "found foam ${foam_VERSION}")' >project/CMakeLists.txt
    cmake -S project -B build -DCMAKE_PREFIX_PATH="$prefix"
}

IFS=. read -r major minor patch <<<"$VERSION"
[ "$major" = 0 ] || fail "since 1.0 a minor version keeps the interface: write down which requests are to be accepted"
series=0.$minor
next=0.$((minor + 1))
before=0.$((minor - 1))

prefix=$PREFIX
for request in '' "$series" "$VERSION" "$VERSION EXACT" "$series...$next" "$series...<$next" "$before...$VERSION"; do
    find "$request" || fail "find_package(foam $request) was refused"
done
# Until 1.0 another minor version is another interface, newer or older.
for request in "$before" "$before.9" "$series.$((patch + 1))" "$next" "0.$((minor + 8))" 1.0; do
    refused "compatible with requested version \"$request\"" find "$request"
done
refused "exactly matches requested version \"$before\"" find "$before EXACT"
for request in "$next...1.0" "$before...<$VERSION"; do
    refused 'compatible with requested version range' find "$request"
done
find "$series COMPONENTS shared static headers" || fail "the components were refused"
find "$series OPTIONAL_COMPONENTS cuda" || fail "an unknown optional component was not passed over"
refused "foam has no component 'cuda'; its components are shared, static and headers" find "$series COMPONENTS cuda"
find "$series" C || fail "a project in C cannot find foam"
find "$series" CXX || fail "a project in C++ cannot find foam"

cp -a "$PREFIX" half
rm half/lib/libfoam.a
prefix=$PWD/half
refused 'half/lib/libfoam.a is missing' find "$series"
