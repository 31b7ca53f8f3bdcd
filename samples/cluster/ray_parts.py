"""ray_parts.py WORKERS COMMAND ARGS…: the parts of a lastbit command as tasks of Ray, which starts again what was lost.

    python ray_parts.py 64 diff a.lb b.lb

The captures and the current folder lie where all nodes of the cluster see them."""

import contextlib
import os
import subprocess
import sys
import tempfile

import ray

LASTBIT = os.environ.get("LASTBIT", "lastbit")


@ray.remote(max_retries=3)
def part(words, number, of, out, folder):
    done = subprocess.run([LASTBIT, *words, "--part", f"{number}/{of}", "-o", out], cwd=folder, stderr=subprocess.PIPE, text=True)
    if done.returncode < 0:
        os._exit(1)  # it was killed: a lost worker is what Ray starts again
    return done.returncode, done.stderr


def main():
    workers, words = int(sys.argv[1]), sys.argv[2:]
    with tempfile.TemporaryDirectory(prefix="lastbit-parts.", dir=".") as parts:
        files = [os.path.join(parts, str(number)) for number in range(1, workers + 1)]
        with contextlib.redirect_stdout(sys.stderr):  # stdout is the answer's; Ray has much to say
            ray.init(address=os.environ.get("RAY_ADDRESS"), log_to_driver=False)
            done = ray.get([part.remote(words, number + 1, workers, file, os.getcwd()) for number, file in enumerate(files)])
        for code, said in done:
            sys.stderr.write(said)
            if code:
                return code
        return subprocess.run([LASTBIT, words[0], "--merge", *files]).returncode


if __name__ == "__main__":
    sys.exit(main())
