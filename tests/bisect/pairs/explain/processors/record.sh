#!/bin/sh
# record.sh: writes the recordings beside this file anew, on an x86-64 machine, with build/release and build/venv.
#
# Each is what PyTorch's libraries do where they believe to run on another processor. MKL asks mkl_serv_intel_cpu_true for the maker, which a
# library that is loaded first answers; oneDNN, ATen and MKL read variables for the instructions. What this processor lacks cannot be had:
# run on one with AMX, this adds its recordings.
set -eu
cd "$(dirname "$0")"
root=$(cd ../../../.. && pwd)
scratch=$(mktemp -d .recording.XXXX)
fault=
trap 'rm -rf "$scratch"' EXIT

record() { # NAME MAKER [VARIABLE=VALUE…]
    name=$1 maker=$2
    shift 2
    env PYTHONPATH="$root/capture" OMP_NUM_THREADS=1 LD_PRELOAD="$PWD/$scratch/$maker.so" "$@" \
        "$root/build/venv/bin/python" families.py "$scratch/$name.lb" $fault
    "$root/build/release/lastbit" pack "$scratch/$name.lb" -o "$name.lbz" --force
}

for maker in amd:0 intel:1; do
    echo "int mkl_serv_intel_cpu_true(void) { return ${maker#*:}; }" > "$scratch/maker.c"
    maker=${maker%:*}
    cc -shared -fPIC -o "$scratch/$maker.so" "$scratch/maker.c"
    record "$maker-sse" "$maker" ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2
    record "$maker-avx2" "$maker" ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2
    if grep -qw avx512bw /proc/cpuinfo; then record "$maker-avx512" "$maker" ONEDNN_MAX_CPU_ISA=AVX512_CORE; fi
    if grep -qw amx_bf16 /proc/cpuinfo; then record "$maker-amx" "$maker"; fi
done
fault=--fault
record faults-intel-avx2 intel ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2
