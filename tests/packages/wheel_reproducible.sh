# Two builds of the wheel with the same SOURCE_DATE_EPOCH are the same, byte for byte, whatever else is different.
. "$ROOT/tests/packages/common.sh"
build() {
    "$PYTHON" "$ROOT/bindings/python/build_wheel.py" --profile "$PROFILE" --no-build --target-dir "$TARGET_DIR" --out "$@"
}

SOURCE_DATE_EPOCH=1700000000 TZ=UTC build one
(umask 077 && cd / && SOURCE_DATE_EPOCH=1700000000 TZ=Asia/Tokyo LC_ALL=C PYTHONHASHSEED=7 build "$SCRATCH/two")
cmp one/*.whl two/*.whl || fail "two builds of the same are different"
SOURCE_DATE_EPOCH=1600000000 build three
! cmp -s one/*.whl three/*.whl || fail "SOURCE_DATE_EPOCH changed nothing"
SOURCE_DATE_EPOCH=0 build four
SOURCE_DATE_EPOCH=yesterday refused 'SOURCE_DATE_EPOCH: expected seconds since 1970' build five

SOURCE_DATE_EPOCH=1700000000 build one --sdist
(umask 077 && SOURCE_DATE_EPOCH=1700000000 TZ=Asia/Tokyo build two --sdist)
cmp one/*.tar.gz two/*.tar.gz || fail "two source archives of the same are different"
