"""How long `lastbit check` of a step takes, against one exact replay of it, and what memory it needs, against the recording.

    build/venv/bin/python tests/bisect/inspection/check/bench_check.py [--shape slice|smollm] [--threads N] [--keep FOLDER]

Needs build/release with the target bench_replay. The step is failing_llama.py's, of an AdamW at random weights: SmolLM2-135M's shape with
2 x 64 tokens (a recording of 6 GB), or a slice of it. `replay` is the exact shadow of the whole step alone, once by one thread, opening not counted;
a check is the whole command. Seconds are the processor's; those in brackets went by. `memory` is the most that was resident."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[4]
BUILD = pathlib.Path(os.environ.get("LASTBIT_BUILD", ROOT / "build" / "release"))
PROGRAM = ROOT / "tests/programs/failing_llama.py"
PARTS = ["relations", "memory", "gradient,step", "digits", None]


def record(capture, shape):
    command = [BUILD / "lastbit", "record", "-o", capture, "--level", "ops", "--budget", "20G", "--", sys.executable, PROGRAM, "none"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    subprocess.run([*command, "--shape", shape, "--steps", "1"], check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def measured(command, threads):
    """What it printed, its processor's seconds, those that went by, and the most bytes that were resident."""
    begin = time.monotonic()
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": str(threads)})
        problem = child.stderr.read().decode()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode in (0, 1, 125), problem
        out.seek(0)
        return json.load(out), usage.ru_utime + usage.ru_stime, time.monotonic() - begin, usage.ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=["slice", "smollm"], default="slice")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--keep", type=pathlib.Path, help="keep the recording in this folder, and use the one that lies there")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        capture = (args.keep or pathlib.Path(scratch)) / f"{args.shape}.lb"
        if not capture.exists():
            record(capture, args.shape)
        size = sum(path.stat().st_size for path in capture.rglob("*") if path.is_file())
        replay = measured([BUILD / "bench_replay", capture, "1", "1"], 1)[0]["exact"]
        print(f"{args.shape}: {size / 1e9:.2f} GB, an exact replay {replay:.2f} s", flush=True)
        for part in PARTS:
            command = [BUILD / "lastbit", "check", capture, "--json", *(["--only", part] if part else [])]
            answer, busy, wall, most = measured(command, args.threads)
            print(
                f"{part or 'all':14} {busy:7.2f} s ({wall:.2f} s), {busy / replay:5.1f} replays' time for {answer['replays']}; memory "
                f"{most / 1e9:.2f} GB, {most / size:.2f} of the recording; {answer['verdict']}",
                flush=True,
            )


if __name__ == "__main__":
    main()
