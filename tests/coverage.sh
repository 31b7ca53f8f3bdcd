#!/usr/bin/env bash
# Prints which share of the lines and branches of each room the tests run, and the files with the most branches that none runs.
#
#   ./tests/coverage.sh                     the C tests, and of Python's those that drive formats: its folder, and commands on a host that fails
#   ./tests/coverage.sh tests/capture …     the C tests, and these: pytest's own arguments
#   ./tests/coverage.sh --c                 the C tests alone
#
# Python's tests run the command and load the capture library of this build. A process that is killed, or ends by _exit, leaves no counts. The build counts (preset coverage, gcov); gcovr reads the counts. It is put into build/gcovr, not into the tests' environment.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
export OMP_NUM_THREADS=1
workers=$(getconf _NPROCESSORS_ONLN)

launcher=()
if command -v ccache >/dev/null; then launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache); fi
cmake --preset coverage -DLASTBIT_TESTS=ON "${launcher[@]}" >build/configure-coverage.log
cmake --build --preset coverage >build/build-coverage.log || { grep -E 'error|FAILED' build/build-coverage.log | head -20; exit 1; }
[ -x build/gcovr/bin/gcovr ] || build/venv/bin/python -m pip install -q --target build/gcovr gcovr

find build/coverage -name '*.gcda' -delete
ctest --preset coverage -j "$workers" >build/coverage-ctest.log || tail -20 build/coverage-ctest.log
if [ $# = 0 ]; then set -- tests/formats tests/failing/test_failing_commands.py; fi
if [ "$1" != --c ]; then
    LASTBIT_BUILD="$root/build/coverage" build/venv/bin/python -m pytest -q -p no:cacheprovider "$@" || true
fi

PYTHONPATH=build/gcovr build/venv/bin/python -m gcovr --root . --object-directory build/coverage -j "$workers" \
    --filter 'formats/' --filter 'capture/' --filter 'replay/' --filter 'bisect/' --filter 'include/' \
    --gcov-ignore-parse-errors=all --gcov-ignore-errors=all --json-summary build/coverage.json >build/coverage-gcovr.log 2>&1

build/venv/bin/python - build/coverage.json <<'PY'
import collections, json, pathlib, sys

rooms = collections.defaultdict(lambda: [0, 0, 0, 0])
files = []
for one in json.load(open(sys.argv[1]))["files"]:
    path = pathlib.PurePath(one["filename"])
    counts = [one["line_covered"], one["line_total"], one["branch_covered"], one["branch_total"]]
    for room in ("/".join(path.parts[:2]) if path.parts[0] != "include" else "include", path.parts[0], "all"):
        rooms[room] = [a + b for a, b in zip(rooms[room], counts)]
    files.append((counts[3] - counts[2], counts, str(path)))


def share(of, all_):
    return f"{100 * of / all_:5.1f} %" if all_ else "      -"


print(f"{'room':28} {'lines':>16} {'branches':>17}")
for room, (lines, all_lines, branches, all_branches) in sorted(rooms.items(), key=lambda row: ("/" not in row[0], row[0])):
    print(f"{room:28} {share(lines, all_lines)} of {all_lines:6} {share(branches, all_branches)} of {all_branches:6}")
print("\nbranches that no test ran, by file:")
for missing, counts, path in sorted(files, reverse=True)[:40]:
    print(f"{missing:6} of {counts[3]:5}  {path}")
PY
