#!/usr/bin/env bash
# From a clean clone to a verdict: builds lastbit, bisects a training step that really failed, compares two runs.
# Needs no PyTorch and no GPU; on a bare Debian or Ubuntu it installs what the build needs (root or sudo).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
[ -t 1 ] || say() { printf '\n%s\n' "$*"; }
show() { printf '$ %s\n' "$*"; "$@"; }

if [ -n "${LASTBIT_BUILD:-}" ]; then
    build=$LASTBIT_BUILD # built already: the tests run this script too
else
    build=build/release
    tests/setup.sh system
    say "1/3  Building ($build)"
    mkdir -p build
    launcher=()
    if command -v ccache >/dev/null; then launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache); fi
    cmake --preset release -DLASTBIT_TESTS=OFF "${launcher[@]}" >build/configure-release.log 2>&1 || { cat build/configure-release.log; exit 1; }
    cmake --build --preset release >build/build-release.log 2>&1 || { tail -n 40 build/build-release.log; exit 1; }
fi
PATH="$(realpath "$build"):$PATH"
out=build/quickstart
rm -rf "$out" && mkdir -p "$out"

say "2/3  A real failing step: the loss of this run became NaN at step 2. Which part of the step is to blame?"
found=0
show lastbit bisect samples/scan-overflow.lbz -o "$out/reproducer.lb" || found=$?
[ "$found" = 1 ] || { echo "quickstart: expected a culprit (exit code 1), got $found" >&2; exit 1; }

say "3/3  Two runs with smooth losses that do not train alike. Rounding, or a bug?"
differs=0
show lastbit diff samples/clean.lbz samples/dropped-term.lbz || differs=$?
[ "$differs" = 1 ] || { echo "quickstart: expected a divergence (exit code 1), got $differs" >&2; exit 1; }

say "Next: your own run"
cat <<TEXT
  export PATH=\$PATH:$root/build/release
  lastbit replay --mode chained $out/reproducer.lb    # the reproducer fails by itself
  lastbit doctor                                      # what recording would see of your PyTorch, and what not
  lastbit record -o run.lb -- python train.py         # your program, unchanged; torchrun works too
  lastbit bisect run.lb                               # which part of the failing step is to blame
TEXT
