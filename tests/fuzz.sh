#!/usr/bin/env bash
# Fuzzes the readers with libFuzzer, target after target, and goes on where it stopped: inputs that reach new code, findings and counts stay in a
# folder. The targets are the rows of tests/fuzz/reader_targets.h and run_targets.h; tests/fuzz/corpus is what every run starts from.
#
#   tests/fuzz.sh --hours 8                 all targets in turn, a minute each, by one process
#   tests/fuzz.sh --seconds 600 --only npz,torch --slice 20 --state /tmp/fuzz
#   tests/fuzz.sh --hours 2 --built /tmp/f  targets that were built before and copied there; those that are not there are left out
#   tests/fuzz.sh --report                  what was run so far: runs, runs a second, findings
#
# A finding lies in STATE/findings/TARGET; `build/fuzz/fuzz_TARGET FILE` shows it again. Once it is mended the file goes to tests/fuzz/corpus/TARGET,
# where every suite reads it. Exit code 1 when there are findings.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
usage() { sed -n 's/^#   //p' "$0" >&2; exit 129; }

seconds=0 slice=60 only="" state=build/fuzz-state report=0 built=""
while [ $# -gt 0 ]; do
    case "$1" in
    --hours) seconds=$(awk -v hours="${2:?}" 'BEGIN { printf "%d", hours * 3600 }'); shift ;;
    --seconds) seconds=${2:?}; shift ;;
    --slice) slice=${2:?}; shift ;;
    --only) only=${2:?}; shift ;;
    --state) state=${2:?}; shift ;;
    --built) built=${2:?}; shift ;;
    --report) report=1 ;;
    *) usage ;;
    esac
    shift
done
[ "$report" = 1 ] || [ "$seconds" -gt 0 ] || usage

# One row a slice: target, runs, seconds of the processor (other work on the machine does not count). Findings are counted as they lie there.
print_report() {
    printf '%-14s %14s %10s %10s %9s\n' target runs seconds runs/s findings
    [ -f "$state/slices.tsv" ] || return 0
    for target in $(cut -f1 "$state/slices.tsv" | sort -u); do
        found=$(find "$state/findings/$target" -type f 2>/dev/null | wc -l)
        awk -F'\t' -v target="$target" -v found="$found" '$1 == target { runs += $2; seconds += $3 }
            END { printf "%-14s %14d %10d %10d %9d\n", target, runs, seconds, seconds ? runs / seconds : 0, found }' "$state/slices.tsv"
    done
    awk -F'\t' '{ runs += $2; seconds += $3 } END { printf "%-14s %14d %10d\n", "all", runs, seconds }' "$state/slices.tsv"
}
findings() { find "$state/findings" -type f 2>/dev/null | wc -l; }
if [ "$report" = 1 ]; then
    print_report
    [ "$(findings)" = 0 ]
    exit
fi

mapfile -t targets < <(sed -n 's/^ *X(\([a-z]*\),.*/\1/p' tests/fuzz/reader_targets.h tests/fuzz/run_targets.h)
if [ -n "$only" ]; then IFS=, read -r -a targets <<<"$only"; fi

mkdir -p build "$state/corpus" "$state/findings"

build_targets() {
    # A clang that links libFuzzer.
    local compiler=""
    for candidate in ${CLANG:-clang} clang-{21..14}; do
        command -v "$candidate" >/dev/null || continue
        if echo 'int LLVMFuzzerTestOneInput(const char *b, long n) { return (int)(n && *b == 7 && !b); }' |
            "$candidate" -x c - -fsanitize=fuzzer,address,undefined -fopenmp -o /dev/null 2>/dev/null; then
            compiler=$candidate
            break
        fi
    done
    if [ -z "$compiler" ]; then
        echo "fuzz: no clang here that links libFuzzer and OpenMP. On Debian 12: apt-get install clang-14 libclang-rt-14-dev libomp-14-dev" >&2
        exit 128
    fi
    cmake --preset fuzz -DCMAKE_C_COMPILER="$compiler" -DCMAKE_CXX_COMPILER="${compiler/clang/clang++}" >build/configure-fuzz.log 2>&1 || { cat build/configure-fuzz.log >&2; exit 128; }
    cmake --build --preset fuzz --target "${targets[@]/#/fuzz_}" >build/build-fuzz.log 2>&1 || { grep -E 'error|undefined' build/build-fuzz.log >&2; exit 128; }
}
if [ -z "$built" ]; then
    build_targets
    built=build/fuzz
else
    for i in "${!targets[@]}"; do [ -x "$built/fuzz_${targets[i]}" ] || unset "targets[i]"; done
    targets=("${targets[@]}")
    [ "${#targets[@]}" -gt 0 ] || { echo "fuzz: no target is in $built" >&2; exit 128; }
fi

TIMEFORMAT='%U %S'
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 OMP_NUM_THREADS=1
end=$((SECONDS + seconds))
next=$(cat "$state/next" 2>/dev/null || echo 0)
while left=$((end - SECONDS)) && [ "$left" -gt 0 ]; do
    target=${targets[next % ${#targets[@]}]}
    seeds=tests/fuzz/corpus/$target
    if [ "$target" = damaged ]; then seeds=tests/fuzz/corpus/archive; fi
    mkdir -p "$state/corpus/$target" "$state/findings/$target"
    log=$state/$target.log
    # A crash ends the slice; the next one of this target goes on with what was learnt.
    { time "$built/fuzz_$target" -max_total_time=$((left < slice ? left : slice)) -max_len=65536 -rss_limit_mb=1024 -timeout=10 \
        -print_final_stats=1 -artifact_prefix="$state/findings/$target/" "$state/corpus/$target" "$seeds" >"$log" 2>&1; } 2>"$state/time" ||
        echo "fuzz: $target: a finding: $(grep -m1 -E 'ERROR:|SUMMARY:|runtime error' "$log" || tail -1 "$log")" >&2
    awk -v target="$target" 'FNR == NR { seconds = $1 + $2; next } /^stat::number_of_executed_units:/ { runs = $2 }
        END { printf "%s\t%d\t%.1f\n", target, runs, seconds }' "$state/time" "$log" >>"$state/slices.tsv"
    next=$(((next + 1) % ${#targets[@]}))
    echo "$next" >"$state/next"
done
print_report
[ "$(findings)" = 0 ]
