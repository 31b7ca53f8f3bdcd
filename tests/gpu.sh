#!/usr/bin/env bash
# What only a machine with an NVIDIA GPU can prove; one command, with figures. Exit 77: there is no device.
#
#   tests/gpu.sh [--python PYTHON] [--no-build | --kit KIT] [REPORT OPTIONS]
#   tests/gpu.sh --pack KIT
#
# PYTHON has a CUDA build of torch, and transformers. First the C tests of devices and of NCCL run, one of them on the real
# driver, then a Llama of 1 B parameters trains, is captured as a CUDA graph and generates, recorded and not: whether the bits are the
# same, what recording costs, whether every op of the capture is inside its bound when the CPU replays it, whether a planted fault is
# found, and how fast is measured. What follows is passed to tests/capture/device/device_report.py (--size small, --only …).
#
# For a machine without compilers and network, --pack builds here and puts what is needed there into one folder, the libraries of this
# system among it; --kit uses it, beside a copy of this tree.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
python=python3 build=1 pack="" kit=""
while [ $# -gt 0 ]; do
    case "$1" in
    --python) python=$2; shift 2 ;;
    --no-build) build=0; shift ;;
    --pack) pack=$2; shift 2 ;;
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
    local to=$1 from=$root/build/release file
    mkdir -p "$to/tests" "$to/lib"
    cp "$from"/lastbit "$from"/liblastbit*.so* "$from"/digest_kernel.fatbin.txt "$to"
    cp "$from"/tests/capture_test_cuda_hardware "$to/tests"
    for file in $(ldd "$to"/lastbit "$to"/*.so "$to"/tests/* | awk '/=> \// { print $3 }' | sort -u | grep -Ev "$BASE"); do cp -L "$file" "$to/lib"; done
    file=$(/sbin/ldconfig -p | awk '/libopenblas\.so\.0/ { print $NF; exit }') # it is loaded by name, when asked for
    if [ -n "$file" ]; then
        cp -L "$file" "$to/lib/libopenblas.so.0"
        for file in $(ldd "$file" | awk '/=> \// { print $3 }' | grep -Ev "$BASE"); do cp -L "$file" "$to/lib"; done
    fi
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
    build_here
    pack_kit "$pack"
    exit 0
fi
if ! "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    echo "tests/gpu.sh: $python has no torch that sees a CUDA device (--python names one that does)" >&2
    exit 77
fi
if [ "$build" = 1 ]; then build_here; fi
if [ -n "$kit" ]; then use_kit; fi
export LASTBIT_BUILD=${LASTBIT_BUILD:-$root/build/release} OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
failed=0
echo "== C tests of devices and of NCCL"
if [ -n "$kit" ]; then
    "$kit/tests/capture_test_cuda_hardware" || failed=1
else
    ctest --test-dir "$LASTBIT_BUILD" -R 'device|cuda|nccl' --output-on-failure || failed=1
fi
echo "== recording on the device"
"$python" tests/capture/device/device_report.py --python "$python" "$@" || failed=1
exit "$failed"
