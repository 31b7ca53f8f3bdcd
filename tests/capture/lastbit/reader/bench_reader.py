"""How long Python takes to open a capture and to walk its values, against C doing the same with the library.

PYTHONPATH=capture python tests/capture/lastbit/reader/bench_reader.py BUILD      prints one line per kind of walk: best of five"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[4]
VALUES = 100_000
PROGRAM = """
import sys, torch, lastbit.torch
x = torch.ones(4, 4)
with lastbit.torch.capture(sys.argv[1], level="ops") as capture:
    with capture.step(0):
        for _ in range(%d):
            x = x + 1
""" % (VALUES - 1)
WALK = r"""
#include <lastbit/archive.h>
#include <lastbit/clock.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    const lb_program *p;
    const int64_t *steps;
    double best[4] = {1e9, 1e9, 1e9, 1e9};
    int64_t sum = 0;
    for (int round = 0; round < 5 && argc == 2; round++) {
        lb_capture *capture;
        double t[5] = {lb_clock_seconds()};
        if (lb_capture_open(argv[1], &capture, NULL)) return 1;
        lb_capture_steps(capture, &steps);
        t[1] = lb_clock_seconds();
        if (lb_capture_program(capture, 0, steps[0], &p, NULL)) return 1;
        t[2] = lb_clock_seconds();
        for (uint32_t v = 0; v < p->n_values; v++)
            sum += p->values[v].dtype + p->values[v].layout.ndim + p->values[v].storage + *lb_program_text(p, p->values[v].name);
        t[3] = lb_clock_seconds();
        for (uint32_t v = 0; v < p->n_values; v++) {
            lb_tensor tensor;
            if (lb_capture_value(capture, p, v, &tensor, NULL)) return 1;
            sum += *(const char *)tensor.data;
        }
        t[4] = lb_clock_seconds();
        for (int i = 0; i < 4; i++)
            if (t[i + 1] - t[i] < best[i]) best[i] = t[i + 1] - t[i];
        if (round == 4) printf("%u %g %g %g %g %lld\n", p->n_values, best[0], best[1], best[2], best[3], (long long)sum);
        lb_capture_close(capture);
    }
    return 0;
}
"""


def best(work, rounds=5):
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return min(times)


def main(build):
    os.environ["LASTBIT_LIB"] = f"{build}/liblastbit_capture.so"
    import lastbit

    with tempfile.TemporaryDirectory() as folder:
        run, source = f"{folder}/run.lb", pathlib.Path(folder, "walk.c")
        subprocess.run([sys.executable, "-c", PROGRAM, run], check=True)
        source.write_text(WALK)
        subprocess.run(
            ["cc", "-O2", f"-I{ROOT}/include", source, f"-L{build}", "-llastbit", f"-Wl,-rpath,{build}", "-o", f"{folder}/walk"], check=True
        )
        done = subprocess.run([f"{folder}/walk", run], capture_output=True, text=True, check=True)
        values, *c = done.stdout.split()
        capture = lastbit.open(run)
        step = capture.step()
        mine = [
            best(lambda: lastbit.open(run).steps),
            best(lambda: lastbit.open(run).step()) - best(lambda: lastbit.open(run).steps),
            best(lambda: [(value.dtype, value.shape, value.storage, value.name) for value in step.values]),
            best(lambda: [value.numpy() for value in step.values], 3),
            best(lambda: [value.torch() for value in step.values], 3),
        ]
        print(f"{values} values")
        for name, python, native in zip(("open", "decode", "rows", "numpy", "torch"), mine, [*map(float, c[:4]), float(c[3])]):
            print(f"{name:8} Python {python * 1e3:9.2f} ms   C {native * 1e3:8.2f} ms   ratio {python / native:7.1f}")


if __name__ == "__main__":
    main(sys.argv[1])
