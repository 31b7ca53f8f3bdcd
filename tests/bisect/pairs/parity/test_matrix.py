"""Elimination over variables, with a program whose variables matter or not by construction; and the memorisation test on a real adapter."""

import json
import os
import subprocess
import sys

import pytest

ROOT = __import__("pathlib").Path(__file__).resolve().parents[4]

# Scores fixed tokens; the precision rounds them to 8 bits, the adapter changes one kind, the cache nothing.
PROGRAM = """
import argparse, json, pathlib, random
parser = argparse.ArgumentParser()
for name in ("precision", "adapter", "cache", "out"):
    parser.add_argument("--" + name)
args = parser.parse_args()
with open("runs.log", "a") as log:
    log.write(f"{args.precision} {args.adapter} {args.cache}\\n")
if args.cache == "broken":
    raise SystemExit("no such cache")
draw, noise = random.Random(1), random.Random(args.out)
logprobs, kinds = [], []
for t in range(200):
    p, kind = -3 * draw.random(), "image" if t % 10 == 0 else "text"
    if args.precision == "bf16":
        p = round(p * 4) / 4
    if args.adapter == "merged" and kind == "image":
        p -= 0.3
    logprobs.append(p + 1e-5 * noise.random())
    kinds.append(kind)
pathlib.Path(args.out).write_text(json.dumps(dict(token_ids=list(range(200)), logprobs=logprobs, kinds=kinds)))
"""


@pytest.fixture
def matrix(tmp_path):
    (tmp_path / "serve.py").write_text(PROGRAM)

    def write(**changes):
        content = dict(
            command=f"cd {tmp_path} && {sys.executable} serve.py --precision {{precision}} --adapter {{adapter}} --cache {{cache}} --out {{out}}",
            variables=dict(precision=["fp32", "bf16"], adapter=["online", "merged"], cache=["paged", "dense"]),
        )
        content.update(changes)
        (tmp_path / "matrix.json").write_text(json.dumps(content))
        return tmp_path / "matrix.json"

    return write


def runs(folder):
    return (folder / "runs.log").read_text().splitlines()


def test_variables_that_matter_are_named_and_runs_are_taken_up(lastbit, matrix, tmp_path):
    answer = lastbit.json("parity", "--matrix", matrix(), expect=1)
    assert answer["matters"] == ["precision=bf16", "adapter=merged"]
    assert len(answer["cells"]) == 5 and answer["noise_floor"] < 1e-9
    assert {c["value"]: c["verdict"] for c in answer["cells"][2:]} == {"bf16": "fail", "merged": "fail", "dense": "pass"}
    merged = answer["cells"][3]
    assert merged["worst"] > 10 * merged["k3"] / 2 > 0  # image tokens alone
    assert len(runs(tmp_path)) == 5
    again = lastbit.json("parity", "--matrix", tmp_path / "matrix.json", expect=1)
    assert len(runs(tmp_path)) == 5 and all(c["resumed"] for c in again["cells"]) and again["matters"] == answer["matters"]
    more = matrix(variables=dict(precision=["fp32", "bf16", "fp16"], adapter=["online", "merged"], cache=["paged", "dense"]))
    lastbit.json("parity", "--matrix", more, expect=1)
    assert len(runs(tmp_path)) == 6  # the new value alone


def test_a_reference_shows_which_variable_cures(lastbit, matrix, tmp_path):
    lastbit.json("parity", "--matrix", matrix(), expect=1)
    (tmp_path / "trainer.jsonl").write_text(next((tmp_path / "matrix.json.runs").glob("baseline-[0-9a-f]*.jsonl")).read_text())
    bad_first = dict(precision=["bf16", "fp32"], adapter=["online", "merged"], cache=["paged", "dense"])
    answer = lastbit.json("parity", "--matrix", matrix(variables=bad_first, reference="trainer.jsonl"), expect=1)
    verdicts = {f"{c['variable']}={c['value']}": c["verdict"] for c in answer["cells"]}
    assert verdicts["None=None"] == "fail" and verdicts["precision=fp32"] == "pass" and verdicts["cache=dense"] == "fail"
    assert "precision=fp32" in answer["matters"]


def test_a_run_that_fails_is_a_row_and_is_tried_again(lastbit, matrix, tmp_path):
    variables = dict(precision=["fp32", "bf16"], adapter=["online", "merged"], cache=["paged", "broken"])
    for count in (5, 6):
        answer = lastbit.json("parity", "--matrix", matrix(variables=variables), expect=1)
        broken = answer["cells"][-1]
        assert not broken["scored"] and broken["exit"] == 1 and "no such cache" in broken["message"]
        assert len(runs(tmp_path)) == count
    text = lastbit.run("parity", "--matrix", tmp_path / "matrix.json", expect=1).stdout
    assert "what matters: precision=bf16 (fail), adapter=merged (fail)" in text and "no such cache" in text


BAD = {
    '{"command": "x"': "line 1",
    '{"command": "x", "variables": {"a": ["1", "2"]}}': "{out}",
    '{"command": "x {out}", "variables": {}}': "variables",
    '{"command": "x {out}", "variables": {"a": ["1", "2"]}}': "stands nowhere",
    '{"command": "x {a} {out}", "variables": {"a": ["1"]}}': "two values",
    '{"command": "x {a} {out}", "variables": {"a": ["1", 2]}}': "expected a text",
    '{"command": "x {a} {out}", "variables": {"a": ["1", "2"]}, "seconds": 0}': "seconds",
}


@pytest.mark.parametrize("content", BAD)
def test_a_bad_file_is_refused(lastbit, tmp_path, content):
    (tmp_path / "matrix.json").write_text(content)
    done = lastbit.run("parity", "--matrix", tmp_path / "matrix.json", expect=128)
    assert "matrix.json" in done.stderr and BAD[content] in done.stderr
    assert not (tmp_path / "matrix.json.runs").exists()


def test_a_baseline_that_fails_or_hangs_ends_it(lastbit, matrix):
    assert (
        "no token file"
        in lastbit.run("parity", "--matrix", matrix(command="echo no luck; false {precision} {adapter} {cache} {out}"), expect=(125, 128)).stderr
    )
    slow = matrix(command="sleep 30; : {precision} {adapter} {cache} {out}", seconds=0.2)
    assert "ended after 0.2 s" in lastbit.run("parity", "--matrix", slow, expect=(125, 128), timeout=20).stderr


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memorise")
    memorise(folder, "--dtype", "bfloat16")
    return folder


def memorise(folder, *options):
    return subprocess.run(
        [sys.executable, ROOT / "samples/memorise.py", folder, *options], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


def test_a_memorised_text_comes_back_through_another_path(lastbit, adapter):
    assert lastbit.json("parity", adapter / "trainer.jsonl", adapter / "server.jsonl", expect=0)["all"]["perplexity_b"] < 1.01
    text = lastbit.run("parity", adapter / "trainer.jsonl", adapter / "server.jsonl", "--heat", expect=0).stdout
    assert "All happy families" in text and "9999999999" in text


def test_an_adapter_that_lost_a_shard_is_red(lastbit, adapter):
    done = memorise(adapter, "--trained", "--fault", "lost-shard")
    assert done.returncode == 1 and "characters come back" in done.stdout
    answer = lastbit.json("parity", adapter / "trainer.jsonl", adapter / "server.jsonl", expect=1)
    assert answer["verdict"] == "fail" and answer["all"]["perplexity_a"] < 1.01 < 1.5 < answer["all"]["perplexity_b"] and answer["all"]["top1"] < 0.9
