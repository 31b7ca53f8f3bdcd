"""A measuring kernel that is wrong in one place is refused when a device is opened: each mutant of the kernel, compiled for the host,
differs from the host's pass in one of the values that lb_cuda_check asks (device/kernel_cases.h)."""

import os
import pathlib
import shutil
import subprocess

import pytest
from conftest import FULL, ROOT

DEVICE = ROOT / "capture" / "device"
HERE = pathlib.Path(__file__).parent
CHECK = pathlib.Path(os.environ.get("LASTBIT_BUILD", ROOT / "build" / "release")) / "tests" / "kernel_check"
COMPILE = ["c++", "-std=c++17", "-O1", "-w", "-fPIC", "-fno-strict-aliasing"]
FOLDERS = ["-I", HERE, "-I", ROOT / "capture", "-I", ROOT / "include"]

# file, what stands there once, what stands there in the mutant
MUTANTS = {
    "a leaf's seed, from the fourth on": ("digest_kernel.cu", "{(uint32_t)number, from,", "{(uint32_t)(number > 2 ? 2 : number), from,"),
    "a product of two columns": ("kernel_hash.cuh", "sums->high += low + ", "sums->high += high + "),
    "the scramble": ("kernel_hash.cuh", "sum ^ sum >> 47 ^ key", "sum ^ sum >> 46 ^ key"),
    "stripes of the last block": ("kernel_hash.cuh", "(size - 1) % BLOCK / STRIPE", "size % BLOCK / STRIPE"),
    "the seed of odd words": ("digest_kernel.cu", "odd ? shared.keys[key] - seed", "odd ? shared.keys[key] + seed"),
    "the end of the secret": ("digest_kernel.cu", "key_at(121 + 8 * t, leaf.seed)", "key_at(120 + 8 * t, leaf.seed)"),
    "the high half of a digest": ("digest_kernel.cu", "merged(sums, 117, 0", "merged(sums, 116, 0"),
    "sizes after the second": ("digest_kernel.cu", "input.item.shape[i - 2]", "input.item.shape[i > 3 ? 1 : i - 2]"),
    "squares in f32": ("kernel_numbers.cuh", "s->squares[j] = __fma_rn(v, v, s->squares[j]);", "s->squares[j] += (float)(v * v);"),
    "f16's high half": ("kernel_numbers.cuh", "return half_value(x >> 16);", "return half_value(x & 0xffffu);"),
    "the sign of infinities": ("kernel_numbers.cuh", "c->pos_inf++;", "c->neg_inf++;"),
    "upper bounds": ("kernel_numbers.cuh", "from_ordered(most(", "from_ordered(least("),
    "zeros of 16 bits": ("kernel_numbers.cuh", "s->zeros = count_zeros(s->zeros, x->word[j]);", "s->zeros = count_zeros(s->zeros, x->word[0]);"),
    "signed bytes": ("kernel_numbers.cuh", "input.item.element == LB_KERNEL_SIGNED ? 0x80u : 0", "0u"),
    "infinities of 8 bits": ("kernel_numbers.cuh", "magnitude == s->inf_code", "magnitude == s->max_code"),
    "lanes in another order": ("kernel_numbers.cuh", "x[i] = __dadd_rn(x[2 * i], x[2 * i + 1]);", "x[i] = __dadd_rn(x[i], x[i + n / 2]);"),
    "numbers beyond a byte's": ("digest_kernel.cu", "left < lanes ? (uint32_t)left : lanes", "lanes"),
    "a record without a partner": ("digest_kernel.cu", "2 * pair_number + 1 < n", "2 * pair_number + 2 < n"),
    "a barrier of records": (
        "digest_kernel.cu",
        "            wait<ALL>();\n            if (i < all) x[i] = sum;",
        "            if (i < all) x[i] = sum;",
    ),
    "a barrier between leaves": (
        "digest_kernel.cu",
        "        if (leaf < last) __syncthreads();\n",
        "        if (leaf + 1 < last) __syncthreads();\n",
    ),
    "rows that end": ("kernel_read.cuh", "w->row += rows;", "w->row += rows > 1 ? 1 : rows;"),
    "lots that end": ("kernel_read.cuh", "w->base = lot_address(w->lot);", "w->base = w->base;"),
    "four bytes a load": (
        "kernel_read.cuh",
        "case 4: fetch_dense<uint32_t>(to, from); return;",
        "case 4: fetch_dense<uint32_t>(to, from + 4); return;",
    ),
    "chunks of two bytes": ("kernel_read.cuh", "case 2: fetch_chunks<uint16_t>(to, &w); return;", "case 2: fetch_chunks<uint32_t>(to, &w); return;"),
    "the item of a unit": ("digest_kernel.cu", "(uint32_t)launch.words[middle] <= unit", "(uint32_t)launch.words[middle] < unit"),
    "strides of an item": ("digest_kernel.cu", "FIXED + 2 * LB_KERNEL_DIMS + i - strides", "FIXED + 2 * LB_KERNEL_DIMS + i - sizes"),
    "a count that stays": ("digest_kernel.cu", "        r->ended = 0;\n", ""),
    "the dense range": ("digest_kernel.cu", "main ? input.item.bytes : input.item.dense_bytes", "input.item.bytes"),
}
SHORT = sorted(MUTANTS)[::4]


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    out = tmp_path_factory.mktemp("grid") / "host_grid.o"
    subprocess.run([*COMPILE, *FOLDERS, "-c", "-o", out, HERE / "host_grid.cpp"], check=True)
    return out


def compiled(folder, grid, mutate):
    for path in [*DEVICE.glob("*.cu"), *DEVICE.glob("*.cuh"), DEVICE / "digest_kernel.h"]:
        shutil.copy(path, folder)
    mutate(folder)
    out = folder / "kernel.so"
    subprocess.run([*COMPILE, "-I", folder, *FOLDERS, "-shared", "-o", out, HERE / "digest_kernel_on_host.cpp", grid, "-lpthread"], check=True)
    return out


def test_the_kernel_itself_passes(grid, tmp_path):
    done = subprocess.run([CHECK, compiled(tmp_path, grid, lambda folder: None)], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.endswith("cases are the same\n"), done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(MUTANTS) if FULL else SHORT)
def test_a_mutant_never_passes(grid, tmp_path, name):
    file, before, after = MUTANTS[name]

    def mutate(folder):
        text = (folder / file).read_text()
        assert text.count(before) == 1, "%s stands there %d times" % (before, text.count(before))
        (folder / file).write_text(text.replace(before, after))

    done = subprocess.run([CHECK, compiled(tmp_path, grid, mutate)], capture_output=True, text=True)
    # One that forgets a barrier may also end the runner.
    assert (done.returncode == 1 and "differs" in done.stdout) or done.returncode < 0, done.stdout + done.stderr
