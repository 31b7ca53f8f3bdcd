#!/usr/bin/env bash
# Records the shipped captures anew: real runs of hybrid_lm.py under `lastbit record`, packed. Needs build/release and
# build/venv (tests/setup.sh python). Usage: samples/record.sh [FOLDER], default: samples
#
# A window holds the step in which the fault acts and, where it shows one step later, that step too. Parameters and the
# batch are kept as bytes, and what enters and leaves each layer where there is room; the rest is recomputed by replay.
set -euo pipefail
# Relative paths: a receipt names the program, and shipped captures should not tell where a home folder is.
out=$(realpath "${1:-$(dirname "$0")}")
cd "$(dirname "$0")/.."
lastbit=build/release/lastbit
python=build/venv/bin/python
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export OMP_NUM_THREADS=1

# record NAME STEPS LEVEL ARGS…: the run may fail, that is what it is for.
record() {
    local name=$1 steps=$2 level=$3
    shift 3
    echo "== $name: hybrid_lm.py $*"
    "$lastbit" record -o "$scratch/$name.lb" --steps "$steps" --level "$level" -- \
        "$python" samples/hybrid_lm.py "$@" || true
    "$lastbit" pack "$scratch/$name.lb" -o "$out/$name.lbz" --force
}

record clean 0-1 layers --steps 2
record dropped-term 0-1 layers --steps 2 --fault dropped-term
record polar-bf16 2-3 layers --fault polar-bf16
record stale-scale 2-2 layers --fault stale-scale
record scan-overflow 2-2 layers --fault scan-overflow
record bad-expert 2-2 layers --fault bad-expert
record poisoned-rank 2-2 sources --fault poisoned-rank
ls -l "$out"/*.lbz
