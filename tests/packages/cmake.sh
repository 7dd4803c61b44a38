# The CMake example finds foam in the moved prefix, and its shared and static programs run, in C and in C++.
. "$ROOT/tests/packages/common.sh"
need cmake cmake
need make make

cmake -S "$ROOT/examples/cmake" -B build -DCMAKE_PREFIX_PATH="$PREFIX" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_C_FLAGS='-Wall -Wextra -Werror' -DCMAKE_CXX_FLAGS='-Wall -Wextra -Werror'
cmake --build build
for language in c cpp; do
    shares_foam "build/quadratic_$language"
    runs "build/quadratic_$language"
    holds_foam "build/quadratic_${language}_static"
done
! grep -F -- "$FIRST" build/CMakeCache.txt || fail "CMake was told the prefix from before the move"
