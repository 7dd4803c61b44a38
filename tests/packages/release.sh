# The wheel of a release: built for release, linked for glibc 2.17, without a path of this machine, and it trains.
. "$ROOT/tests/packages/common.sh"
need readelf binutils
need strings binutils
python=$("$ROOT/tests/python/environment.sh" release | tail -n 1)
"$python" "$ROOT/bindings/python/build_wheel.py" --glibc 2.17 --out "$SCRATCH"
wheel=$(echo "$SCRATCH"/libfoam-*-manylinux_2_17_"$(uname -m)".whl)
[ -f "$wheel" ] || fail "expected a wheel for glibc 2.17, got: $(ls "$SCRATCH")"
"$PYTHON" "$ROOT/tests/packages/wheel_contents.py" "$wheel" "$ROOT"

# The same build, installed for C and C++.
target=$(cd "$ROOT" && cargo metadata --quiet --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/package
"$ROOT/bindings/install.sh" --prefix "$SCRATCH/prefix" --no-build --target-dir "$target"
mkdir unpacked
(cd unpacked && "$PYTHON" -m zipfile -e "$wheel" .)

# Neither where it was built nor where the crates lay; the index's host is part of the latter.
home=${CARGO_HOME:-$HOME/.cargo}
for library in unpacked/foam/lib/libfoam.so.* prefix/lib/libfoam.so prefix/lib/libfoam.a; do
    strings -a -n 6 "$library" >texts
    grep -Fq 'foam/faer-' texts || fail "$library: the paths are not where they were, look again"
    for place in "$ROOT" "$HOME/" "$home" registry/src "$target"; do
        ! grep -F -m 3 -- "$place" texts || fail "$library holds the path $place"
    done
done

# It works without a compiler, and a panic is caught by the unwinder that is inside.
"$PYTHON" -m venv environment
environment/bin/pip install --quiet --no-index --disable-pip-version-check "$wheel"
(cd / && env -i PATH="$SCRATCH/environment/bin" python -I "$ROOT/tests/packages/smoke.py")
(cd / && env -i PATH="$SCRATCH/environment/bin" python -I - <<'TEXT'
import array, foam
values, gradient = (memoryview(array.array("f", [1.0] * 16)).cast("B").cast("f", (4, 4)) for _ in range(2))
optimizer = foam.Optimizer({"w": values}, inject_fault="panic", inject_fault_step=1)
try:
    optimizer.step({"w": gradient})
except foam.PanicError:
    pass
else:
    raise AssertionError("the injected panic was not told")
TEXT
)
