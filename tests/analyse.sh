#!/usr/bin/env bash
# clang's static analyser and clang-tidy's bugprone group (.clang-tidy) over every source of the libraries and the command line, in the
# pinned version of build/venv. Findings that were read and are none stand in tests/analysed.txt, a line each: FILE CHECK: why.
#
#   tests/analyse.sh [FILE…]    exit code 1 with the findings that stand in no line
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
files=("$@")
if [ ${#files[@]} = 0 ]; then mapfile -t files < <(git ls-files 'formats/*.c' 'capture/*.c' 'replay/*.c' 'bisect/*.c'); fi
printf '%s\n' "${files[@]}" | xargs -P "$(getconf _NPROCESSORS_ONLN)" -n 4 build/venv/bin/clang-tidy -p build/release --quiet 2>/dev/null |
    grep -E '(warning|error): .*\[[a-zA-Z.-]+\]$' | sort -u >build/analysed.txt || true
status=0
while IFS= read -r line; do
    file=${line%%:*} check=${line##*[}
    grep -qF "${file#"$root"/} ${check%]}:" tests/analysed.txt || { echo "$line"; status=1; }
done <build/analysed.txt
exit "$status"
