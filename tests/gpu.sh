#!/usr/bin/env bash
# What only a machine with an NVIDIA GPU can prove; one command, with figures. Exit 77: there is no device.
#
#   tests/gpu.sh [--python PYTHON] [--no-build] [REPORT OPTIONS]
#
# PYTHON has a CUDA build of torch, and transformers. First the C tests of devices and of NCCL run, one of them on the real
# driver, then a Llama of 1 B parameters trains, is captured as a CUDA graph and generates, recorded and not: whether the bits are the
# same, what recording costs, whether every op of the capture is inside its bound when the CPU replays it, whether a planted fault is
# found, and how fast is measured. What follows is passed to tests/capture/device/device_report.py (--size small, --only …).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
python=python3 build=1
while [ $# -gt 0 ]; do
    case "$1" in
    --python) python=$2; shift 2 ;;
    --no-build) build=0; shift ;;
    *) break ;;
    esac
done
if ! "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    echo "tests/gpu.sh: $python has no torch that sees a CUDA device (--python names one that does)" >&2
    exit 77
fi
if [ "$build" = 1 ]; then
    tests/setup.sh system
    cmake --preset release -DLASTBIT_TESTS=ON >/dev/null
    cmake --build --preset release
fi
export LASTBIT_BUILD=${LASTBIT_BUILD:-$root/build/release} OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
failed=0
echo "== C tests of devices and of NCCL"
ctest --test-dir "$LASTBIT_BUILD" -R 'device|cuda|nccl' --output-on-failure || failed=1
echo "== recording on the device"
"$python" tests/capture/device/device_report.py --python "$python" "$@" || failed=1
exit "$failed"
