#!/usr/bin/env bash
# Builds everything and runs every test; set-up included. Ends with `N passed, N failed, N skipped`.
#
#   ./tests/run.sh          the suite, some 16 minutes on two cores; building comes first
#   ./tests/run.sh --full   and the long sweeps: every planted fault freshly recorded, every op at many shapes, static analysis
#
# C tests run with AddressSanitizer and UndefinedBehaviorSanitizer (preset dev). Python loads the plain build (preset
# release): a sanitized library cannot be loaded into an ordinary interpreter.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
full=0
for arg in "$@"; do
    case "$arg" in
    --full) full=1 ;;
    *) echo "usage: tests/run.sh [--full]" >&2; exit 129 ;;
    esac
done
export LASTBIT_FULL=$full
# PyTorch's OpenMP threads spin; two such processes on two cores run ten times slower.
export OMP_NUM_THREADS=1

tests/setup.sh system
tests/setup.sh python
tests/setup.sh engines

launcher=()
if command -v ccache >/dev/null; then launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache); fi
for preset in release dev; do
    echo "== building preset $preset"
    # The quickstart configures without tests, in the same folder.
    cmake --preset "$preset" -DLASTBIT_TESTS=ON "${launcher[@]}" >"build/configure-$preset.log" || { cat "build/configure-$preset.log"; exit 1; }
    cmake --build --preset "$preset" -- -k 0 >"build/build-$preset.log" || { grep -E 'error|FAILED|undefined' "build/build-$preset.log" | head -40; exit 1; }
done

echo "== style"
style=0
tests/format.sh --check >build/style.log 2>&1 || { head -40 build/style.log; echo "tests/format.sh writes it"; style=1; }
if [ "$full" = 1 ]; then
    echo "== static analysis"
    tests/analyse.sh || style=1
fi

passed=0 failed=0 skipped=0
workers=$(getconf _NPROCESSORS_ONLN) # nproc takes OMP_NUM_THREADS for an answer
if [ "$workers" -gt 8 ]; then workers=8; fi

echo "== C tests (preset dev, sanitizers on)"
export ASAN_OPTIONS=detect_leaks=1:abort_on_error=0 UBSAN_OPTIONS=print_stacktrace=1
ctest --preset dev -j "$workers" --output-junit "$root/build/ctest.xml" || true

echo "== Python and command-line tests (preset release)"
export LASTBIT_BUILD="$root/build/release"
# A file's tests share its recordings, so a file stays with one worker.
build/venv/bin/python -m pytest -q -p no:cacheprovider -n "$workers" --dist loadfile --junit-xml="$root/build/pytest.xml" tests || true

read -r passed failed skipped < <(build/venv/bin/python - build/ctest.xml build/pytest.xml <<'PY'
import sys, xml.etree.ElementTree as tree
passed = failed = skipped = 0
for path in sys.argv[1:]:
    try:
        cases = list(tree.parse(path).iter("testcase"))
    except OSError:
        cases = []
    if not cases:
        failed += 1  # a suite that ran nothing has not passed
    for case in cases:
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"} or case.get("status") == "fail":
            failed += 1
        elif "skipped" in kinds or case.get("status") in ("notrun", "disabled"):
            skipped += 1
        else:
            passed += 1
print(passed, failed, skipped)
PY
)
failed=$((failed + style))
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
