#!/usr/bin/env bash
# Records the shipped captures anew: real runs of hybrid_lm.py under `lastbit record`, packed. Needs build/release and
# build/venv (tests/setup.sh python). Usage: samples/record.sh [FOLDER], default: samples
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
out=${1:-$root/samples}
lastbit=$root/build/release/lastbit
python=$root/build/venv/bin/python
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export OMP_NUM_THREADS=1

# record NAME STEPS ARGS…: the run may fail, that is what it is for.
record() {
    local name=$1 steps=$2
    shift 2
    echo "== $name: hybrid_lm.py $*"
    "$lastbit" record -o "$scratch/$name.lb" --steps "$steps" -- "$python" "$root/samples/hybrid_lm.py" "$@" || true
    "$lastbit" pack "$scratch/$name.lb" -o "$out/$name.lbz" --force
}

record clean 0-1 --steps 2
record polar-bf16 2-3 --steps 4 --fault polar-bf16
record stale-scale 2-2 --steps 4 --fault stale-scale
record dropped-term 0-1 --steps 2 --fault dropped-term
ls -l "$out"/*.lbz
