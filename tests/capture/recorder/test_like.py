"""`record --like OTHER.lb` keeps what another capture kept, op by op, so that a pair can be judged."""

import collections
import os
import subprocess
import sys
import textwrap

import pytest
import recorded
from conftest import BUILD, ROOT

PROGRAM = """
import sys, torch
torch.set_num_threads(1)
torch.manual_seed(0)
dtype = getattr(torch, sys.argv[1])
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.Linear(64, 8)))
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(int(sys.argv[2])):
    x, y = torch.randn(4, 32), torch.randn(4, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
        loss = (model(x).float() - y).square().mean()
    loss.backward()
    opt.step(); opt.zero_grad()
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("like") / "program.py"
    path.write_text(PROGRAM)
    return path


def kept(capture):
    """Per step: the level, and by (phase, layer, op, occurrence) whether a result was kept."""
    steps = {}
    for number, step in recorded.Recorded(capture).programs[0].items():
        counts, found = collections.Counter(), {}
        for op in step.ops:
            if step.name(op) == "lb::source":
                continue
            if op.flags & recorded.VIEW:
                continue
            kind = op.phase, step.layer(op), step.name(op)
            found[(*kind, counts[kind])] = any(
                step.values[v].flags & recorded.KEPT for v in step.results(op) + step.written(op) if v != recorded.NONE
            )
            counts[kind] += 1
        steps[number] = step.level, found
    return steps


@pytest.mark.parametrize(
    "options",
    [
        ["--level", "ops", "--steps", "1-2"],
        ["--level", "layers"],
        ["--level", "sources", "--keep", "mm"],
        ["--level", "ops", "--layers", "^2"],
        ["--level", "stats"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("dtypes", [("float32", "bfloat16"), ("bfloat16", "float32")], ids=" like ".join)
def test_the_same_ops_are_kept(lastbit, program, tmp_path, options, dtypes):
    one, other = tmp_path / "one.lb", tmp_path / "other.lb"
    lastbit.record(one, program, dtypes[0], 4, options=options, expect=0)
    lastbit.record(other, program, dtypes[1], 4, options=["--like", one], expect=0)
    wanted, got = kept(one), kept(other)
    assert list(wanted) == list(got)
    for number, (level, ops) in wanted.items():
        assert got[number][0] == level
        both = [key for key in ops if key in got[number][1]]
        assert len(both) > 30
        assert [key for key in both if ops[key] and not got[number][1][key]] == []
        more = [key for key in both if got[number][1][key] and not ops[key]]
        narrowed = "--keep" in options or "--layers" in options  # what ops read that only one side has is kept, too
        assert len(more) <= (len(both) // 10 if narrowed else 0), more


def test_a_pair_of_unlike_levels_can_be_judged_after_all(lastbit, program, tmp_path):
    lastbit.record(tmp_path / "fine.lb", program, "bfloat16", 2, options=["--level", "ops"], expect=0)
    lastbit.record(tmp_path / "like.lb", program, "float32", 2, options=["--like", tmp_path / "fine.lb"], expect=0)
    assert lastbit.json("replay", tmp_path / "like.lb", expect=0)["verdicts"]["missing"] == 0


def library():
    return {**os.environ, "LASTBIT_LIB": str(BUILD / "liblastbit_capture.so")}


def test_from_python(program, tmp_path, lastbit):
    lastbit.record(tmp_path / "one.lb", program, "float32", 2, options=["--level", "layers"], expect=0)
    code = textwrap.dedent("""
        import sys
        sys.path.insert(0, sys.argv[1])
        import torch
        import lastbit.torch
        model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU())
        with lastbit.torch.capture("two.lb", like="one.lb") as cap:
            for n in range(2):
                with cap.step(n):
                    model(torch.randn(2, 32)).sum().backward()
    """)
    subprocess.run([sys.executable, "-c", code, ROOT / "capture"], cwd=tmp_path, check=True, env=library())
    assert [step.level for step in recorded.Recorded(tmp_path / "two.lb").programs[0].values()] == [2, 2]


@pytest.mark.parametrize(
    "options, said",
    [
        (["--like", "nowhere.lb"], "nowhere.lb"),
        (["--like", "x.lb", "--level", "ops"], "in place of --level"),
        (["--like", "x.lb", "--ring", "2"], "exclude each other"),
    ],
)
def test_what_cannot_be_is_said_before_the_program_starts(lastbit, tmp_path, options, said):
    done = lastbit.run("record", "-o", tmp_path / "run.lb", *options, "--", "touch", tmp_path / "ran")
    assert done.returncode in (128, 129) and said in done.stderr
    assert not (tmp_path / "ran").exists() and not (tmp_path / "run.lb").exists()
