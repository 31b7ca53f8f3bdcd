"""The interpreter that has PyTorch loaded runs a program as the ordinary one does."""

import os
import subprocess
import sys

import pytest
from conftest import warm_python

PROGRAM = """
import os, sys
loaded = "torch" in sys.modules
import torch
if "ranks" in sys.argv:
    torch.distributed.init_process_group("gloo")
    total = torch.tensor([float(os.environ["RANK"])])
    torch.distributed.all_reduce(total)
    torch.distributed.destroy_process_group()
    open(f"{sys.argv[1]}.{os.environ['RANK']}", "w").write(str(total.item()))
    sys.exit(0)
print(loaded, sys.argv, __name__, os.path.basename(__file__), os.getcwd(), os.environ.get("SOME"), sys.stdin.read())
sys.exit({"exit": 3, "fine": None}[sys.argv[1]] if sys.argv[1] != "kill" else os.kill(os.getpid(), 9))
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)

    def start(python, *arguments, **environment):
        done = subprocess.run(
            [*python, "program.py", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            input="given",
            env={**os.environ, **environment},
            timeout=60,
        )
        return done.stdout, done.stderr, done.returncode

    return start


@pytest.mark.parametrize("how", ["fine", "exit", "kill", "raise"])
def test_a_program_runs_as_ever(run, how):
    warm, ordinary = run(warm_python(), how), run([sys.executable], how)
    assert warm[0].replace("True", "False", 1) == ordinary[0] and warm[1:] == ordinary[1:]
    assert how == "kill" or warm[0].startswith("True")


def test_what_libraries_read_when_they_load_is_the_callers(run):
    assert run(warm_python(), "fine", SOME="thing")[0].startswith("False")
    assert run(warm_python(), "fine", LASTBIT_SOME="thing")[0].startswith("True")


def test_ranks_meet(run, tmp_path):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    assert run([*warm_python(), *torchrun], "sum", "ranks") == ("", "", 0)
    assert [(tmp_path / f"sum.{rank}").read_text() for rank in range(3)] == ["3.0"] * 3


def test_recording_does_not_lose_it(lastbit, tmp_path):
    """`lastbit record` sets variables of its own; a suite whose programs load PyTorch again takes twice the time."""
    program = tmp_path / "program.py"
    program.write_text("import sys\nprint('loaded', 'torch' in sys.modules)\nimport torch\ntorch.nn.Linear(2, 2)(torch.ones(1, 2))\n")
    assert "loaded True" in lastbit.record(tmp_path / "run.lb", program, expect=0).stdout
