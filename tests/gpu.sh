#!/usr/bin/env bash
# What only a machine with an NVIDIA GPU can prove; one command, with figures. Exit 77: there is no device.
#
#   tests/gpu.sh [--python PYTHON] [--no-build | --kit KIT] [--pieces "NAME …"] [--limit SECONDS] [REPORT OPTIONS]
#   tests/gpu.sh --pack KIT [--no-build]
#
# PYTHON has a CUDA build of torch, and transformers. Pieces run one after the other, those first that decide; each has SECONDS, 480
# where nothing is said, and what it printed stands whatever the others do. So a machine that is lent for minutes at a time is asked
# for some of them at a time:
#
#   hardware   digests and statistics on the real driver are the host's, over types, sizes and layouts; how fast, by size
#   sanitizer  the same under compute-sanitizer, where that is there
#   ctest      the other C tests of devices and of NCCL; not with a kit
#   measuring  what `lastbit doctor` measures
#   ops kinds  every op of small captures is inside its bound when the CPU replays it
#   bisect     a planted fault is found
#   train graph generate ranks   a Llama of 1 B parameters, recorded and not: the same bits, and what recording costs
#
# What else follows is passed to tests/capture/device/device_report.py (--size small, …). --rehearse does all of it on a machine
# without a device: programs run on the CPU, and what needs a driver says that there is none.
#
# For a machine without compilers and network, --pack builds here and puts what is needed there into one folder, the libraries of this
# system among it (but OpenBLAS, which no piece asks for); --kit uses it, beside a copy of this tree.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
python=python3 build=1 pack="" kit="" limit=480 rehearse=0
pieces="hardware sanitizer ctest measuring ops kinds bisect train graph generate ranks"
while [ $# -gt 0 ]; do
    case "$1" in
    --python) python=$2; shift 2 ;;
    --no-build) build=0; shift ;;
    --pack) pack=$2; shift 2 ;;
    --pieces) pieces=$2; shift 2 ;;
    --limit) limit=$2; shift 2 ;;
    --rehearse) rehearse=1; shift ;;
    --kit) kit=$(cd "$2" && pwd); build=0; shift 2 ;;
    *) break ;;
    esac
done

build_here() {
    tests/setup.sh system
    cmake --preset release -DLASTBIT_TESTS=ON >/dev/null
    cmake --build --preset release
}

# Libraries that another system has itself, or must not take from here: the C library and what goes with it.
BASE='/(ld-linux|libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s)[-.]'

pack_kit() {
    local to=$1 from=${LASTBIT_BUILD:-$root/build/release} file
    mkdir -p "$to/tests" "$to/lib"
    cp -d "$from"/lastbit "$from"/liblastbit*.so* "$to"
    cp "$from"/tests/capture_test_cuda_hardware "$to/tests"
    for file in $(ldd "$to"/lastbit "$to"/*.so "$to"/tests/* | awk '/=> \// { print $3 }' | sort -u | grep -Ev "$BASE"); do cp -L "$file" "$to/lib"; done
    find "$to" -type f \( -name '*.so*' -o -perm -u+x \) -exec strip --strip-unneeded {} \; 2>/dev/null || true
    du -sh "$to"
}

# A library that this system has stays its own.
use_kit() {
    local file name
    mkdir -p "$kit/used"
    for file in "$kit"/lib/*; do
        name=$(basename "$file")
        if ! /sbin/ldconfig -p | grep -q "	$name "; then cp "$file" "$kit/used/$name"; fi
    done
    export LD_LIBRARY_PATH=$kit/used${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} LASTBIT_BUILD=$kit
}

if [ -n "$pack" ]; then
    if [ "$build" = 1 ]; then build_here; fi
    pack_kit "$pack"
    exit 0
fi
if [ "$rehearse" = 1 ]; then
    build=0
    set -- --device cpu "$@"
elif ! "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    echo "tests/gpu.sh: $python has no torch that sees a CUDA device (--python names one that does)" >&2
    exit 77
fi
if [ "$build" = 1 ]; then build_here; fi
if [ -n "$kit" ]; then use_kit; fi
export LASTBIT_BUILD=${LASTBIT_BUILD:-$root/build/release} OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
hardware=$LASTBIT_BUILD/tests/capture_test_cuda_hardware

report() {
    timeout "$limit" "$python" tests/capture/device/device_report.py --python "$python" --only "$@"
}

run_piece() {
    case "$1" in
    hardware) timeout "$limit" "$hardware" ;;
    sanitizer)
        if ! command -v compute-sanitizer >/dev/null; then return 77; fi
        timeout "$limit" compute-sanitizer --error-exitcode 1 "$hardware" ;;
    ctest)
        if [ -n "$kit" ] || [ "$rehearse" = 1 ]; then return 77; fi
        timeout "$limit" ctest --test-dir "$LASTBIT_BUILD" -R 'device|cuda|nccl' -E cuda_hardware --output-on-failure ;;
    graph)
        if [ "$rehearse" = 1 ]; then return 77; fi
        report "$@" ;;
    *) report "$@" ;;
    esac
}

failed=0
for piece in $pieces; do
    echo "== $piece"
    began=$SECONDS status=0
    run_piece "$piece" "$@" || status=$?
    case $status in
    0) said=passed ;;
    77) said="left out: not here" ;;
    124) said="stopped after $limit s" failed=1 ;;
    *) said="failed ($status)" failed=1 ;;
    esac
    echo "== $piece: $said, $((SECONDS - began)) s"
done
exit "$failed"
