"""What recording does on a device, as figures: python tests/capture/device/device_report.py --python PYTHON [--device cuda] [--size 1b]

    bits       the run leaves the same bytes behind with and without the recorder, per level
    overhead   the fastest recorded step over the fastest plain one, per level
    A/A        the capture replayed on the CPU: ops bit-equal, inside their bound, outside it (must be 0); also of many kinds of op in f32,
               bf16 and f16 (tests/programs/device_ops.py), with TF32 and without
    bisect     a weight that is not finite is found, in its layer
    measuring  what `lastbit doctor` measures a second, against what the device copies

Exits 1 where bits differ, an op is outside its bound, or the fault is not found in its layer."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAM = ROOT / "tests" / "programs" / "device_step.py"
LEVELS = ["stats", "sources", "layers", "auto"]


class Report:
    def __init__(self, args):
        self.args = args
        self.lastbit = pathlib.Path(os.environ.get("LASTBIT_BUILD", ROOT / "build" / "release")) / "lastbit"
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="device-report-", dir=args.folder))
        self.failed = 0

    def says(self, name, text, good=True):
        print("%-10s %s%s" % (name, text, "" if good else "   <- WRONG"), flush=True)
        self.failed += not good

    def run(self, command, fine=(0,)):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode not in fine:
            self.says("failed", "%s\n%s" % (" ".join(map(str, command)), (done.stdout + done.stderr)[-2000:]), False)
            return None
        return done.stdout

    def step(self, what, level=None, parallel=None, fine=(0,)):
        """Runs the program, recorded where a level is given, and under torchrun where its ranks share the work; its JSON and the capture, or
        None."""
        name = "-".join([what, level or "plain", parallel or "alone"])
        out, capture = self.folder / f"{name}.json", self.folder / f"{name}.lb"
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", self.ranks()] if parallel else []
        command = [self.args.python, *launch, PROGRAM, what, "--device", self.args.device, "--size", self.args.size, "--out", out]
        command += ["--steps", self.args.steps, "--sequence", self.args.sequence, "--batch", self.args.batch]
        command += ["--parallel", parallel] if parallel else []
        if level:
            command = [self.lastbit, "record", "-o", capture, "--level", level, "--"] + command
        if self.run(command, fine) is None or not out.exists():
            return None, capture
        return json.loads(out.read_text()), capture

    def ranks(self):
        """As many as asked for, or one for each device."""
        if not self.args.ranks:
            text = self.run([self.args.python, "-c", "import torch; print(torch.cuda.device_count())"])
            self.args.ranks = max(1, int(text or 1))
        return self.args.ranks

    def compare(self, what, parallel=None):
        title = f"{what} {parallel} {self.ranks()}" if parallel else what
        plain, _ = self.step(what, None, parallel)
        if not plain:
            return
        self.says("plain", "%s: %.1f ms a step" % (title, 1e3 * min(plain["seconds"])))
        again, _ = self.step(what, None, parallel)
        own = again and again["digest"] == plain["digest"]
        if not own:
            self.says("bits", "%s: the program itself leaves other bits at each run" % title)
        for level in self.args.levels:
            recorded, capture = self.step(what, level, parallel)
            if not recorded:
                continue
            self.says(
                "overhead",
                "%s, %s: %.2f of plain; %.0f MB" % (title, level, min(recorded["seconds"]) / min(plain["seconds"]), size_of(capture) / 1e6),
            )
            same = recorded["digest"] == plain["digest"]
            if own:
                self.says("bits", "%s, %s: %s" % (title, level, "the same with and without" if same else "differ"), same)
            if level == "auto":
                self.replay(title, capture)

    def replay(self, title, capture, every_step=False):
        steps = [] if every_step else ["--steps", "1"]
        text = self.run([self.lastbit, "replay", "--json", *steps, capture], (0, 1, 125))
        if text is None:
            return
        ops = json.loads(text)["verdicts"]
        self.says(
            "A/A",
            "%s: %d ops bit-equal, %d inside their bound, %d outside, %d not judged"
            % (title, ops["identical"], ops["rounding"], ops["diverged"], ops["missing"]),
            ops["diverged"] == 0 and ops["identical"] + ops["rounding"] > 0,
        )

    def ops(self):
        """Of a small model every op's bytes are kept, so that each is judged."""
        size, self.args.size = self.args.size, "small"
        for what in ("train", "generate"):
            recorded, capture = self.step(what, "ops")
            if recorded:
                self.replay(f"{what} (small), ops", capture)
        self.args.size = size

    def kinds(self):
        """Sections that the device lacks are said by the program and left out."""
        for options in ([], ["--tf32"]) if self.args.device == "cuda" else ([],):
            capture = self.folder / ("-".join(["kinds", *options]) + ".lb")
            program = [self.args.python, PROGRAM.with_name("device_ops.py"), "--device", self.args.device, "--steps", "1", *options]
            if self.run([self.lastbit, "record", "-o", capture, "--level", "ops", "--", *program]) is not None:
                self.replay(" ".join(["kinds of op", *options]), capture, every_step=True)

    def bisect(self):
        _, capture = self.step("fail", "sources")
        text = self.run([self.lastbit, "bisect", "--json", capture], (1,))
        if text is None:
            return
        culprit = json.loads(text)["culprit"]
        self.says("bisect", "%s, step %s: %s" % (culprit["layer"], culprit["step"], culprit["axis"]), "layers.1" in culprit["layer"])

    def measuring(self):
        text = self.run([self.lastbit, "doctor", "--python", self.args.python], (0, 1))
        for line in (text or "").splitlines():
            if "GB/s" in line:
                self.says("measuring", line.strip())


def size_of(folder):
    return sum(path.stat().st_size for path in folder.glob("*"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="one that has torch and transformers")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", default="1b")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--levels", nargs="*", choices=LEVELS, default=LEVELS)
    parser.add_argument("--ranks", type=int, help="processes of FSDP2 and of DDP; unless said otherwise, one for each device, and one is enough")
    parser.add_argument("--only", nargs="*", choices=["train", "graph", "generate", "ops", "kinds", "ranks", "bisect", "measuring"])
    parser.add_argument("--folder", help="where captures go; some need 20 GB")
    args = parser.parse_args()
    report = Report(args)
    asked = args.only or ["measuring", "ops", "kinds", "train", "generate", "bisect", "ranks"] + ["graph"] * (args.device == "cuda")
    for what in asked:
        if what in ("measuring", "ops", "kinds", "bisect"):
            getattr(report, what)()
        elif what == "ranks":
            for parallel in ("fsdp", "ddp"):
                report.compare("train", parallel)
        else:
            report.compare(what)
    print("%d wrong" % report.failed)
    sys.exit(report.failed > 0)


if __name__ == "__main__":
    main()
