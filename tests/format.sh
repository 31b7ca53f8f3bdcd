#!/usr/bin/env bash
# One style for the whole tree: clang-format for C (.clang-format), ruff for Python (.ruff.toml), in the pinned versions of build/venv.
#
#   tests/format.sh            writes it
#   tests/format.sh --check    exit code 1, and what differs, where it does not hold
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
check=0
case "${1:-}" in
"") ;;
--check) check=1 ;;
*) echo "usage: tests/format.sh [--check]" >&2; exit 129 ;;
esac
tools=build/venv/bin
mapfile -t sources < <(git ls-files '*.c' '*.h' '*.cpp' '*.cu' '*.cuh')
python=(capture tests samples)
if [ "$check" = 1 ]; then
    status=0
    printf '%s\n' "${sources[@]}" | xargs -P "$(getconf _NPROCESSORS_ONLN)" -n 40 "$tools/clang-format" --dry-run -Werror || status=1
    "$tools/ruff" format --quiet --diff "${python[@]}" || status=1
    "$tools/ruff" check --quiet "${python[@]}" || status=1
    exit "$status"
fi
printf '%s\n' "${sources[@]}" | xargs -P "$(getconf _NPROCESSORS_ONLN)" -n 40 "$tools/clang-format" -i
"$tools/ruff" check --quiet --fix "${python[@]}" || true
"$tools/ruff" format --quiet "${python[@]}"
