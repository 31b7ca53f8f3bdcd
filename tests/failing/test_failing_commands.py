"""Every command on a host that fails: one allocation or system call at a time, and from there on.

Whatever fails, a command ends with what it answers otherwise, or with 128 and a reason. It neither crashes nor hangs, never takes a
read that was refused for damage, for a finding or for the end of a file, and leaves no temporary file. --full tries every call;
otherwise a few of each kind, the first ones among them.
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import BUILD, FULL, ROOT
from failing_runs import KINDS, Server
from safetensors.numpy import save_file

LIBRARY = BUILD / "tests" / "libfailing_host.so"
FAILED = 128
SOME = None if FULL else {"alloc": 6}  # of other kinds 3; each singly and for good
pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="the injector needs glibc, and a build without sanitizers")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """One small input of every kind that is read."""
    folder = tmp_path_factory.mktemp("inputs")
    random.seed(0)
    numbers = np.random.default_rng(0)
    subprocess.run([BUILD / "train_in_c", folder / "run.lb"], check=True, capture_output=True)
    subprocess.run([BUILD / "lastbit", "pack", folder / "run.lb", "-o", folder / "run.lbz"], check=True, capture_output=True)
    log = [
        {"step": i, "loss": 2 - 0.001 * i + 0.01 * random.random() + (5 if i == 120 else 0), "grad_norm": 1 + 0.1 * random.random()}
        for i in range(150)
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))
    short = [{"step": i, "loss": 2.0, "grad_norm": 1.0 if i < 60 else 500.0} for i in range(90)]
    (folder / "short.jsonl").write_text("".join(json.dumps(row) + "\n" for row in short))
    (folder / "adapter").mkdir()
    halves = {"base_model.model.q.lora_A.weight": np.ones((2, 4), np.float32), "base_model.model.q.lora_B.weight": np.ones((4, 2), np.float32)}
    save_file(halves, folder / "adapter/adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ".*q", "rank_pattern": {"(x)|(q)": 2}}
    (folder / "adapter/adapter_config.json").write_text(json.dumps(config))
    for name, slope in (("first.jsonl", 0.01), ("second.jsonl", 0.015)):
        scores = [None] + [-1 - slope * i for i in range(18)]
        (folder / name).write_text(json.dumps({"token_ids": list(range(1, 20)), "logprobs": scores}) + "\n")
    weights = {f"layers.{i}.{name}.weight": numbers.standard_normal((8, 8)).astype(np.float32) for i in range(3) for name in "qk"}
    save_file(weights, folder / "good.safetensors")
    np.savez(folder / "good.npz", **weights)
    fused = {f"layers.{i}.qk.weight": np.concatenate([weights[f"layers.{i}.{name}.weight"] for name in "qk"]) for i in range(3)}
    save_file(fused, folder / "fused.safetensors")
    torch.save({name: torch.from_numpy(value) for name, value in weights.items()}, folder / "good.pt")
    weights["layers.0.k.weight"] = weights["layers.0.k.weight"] * np.float32("nan")
    save_file(weights, folder / "bad.safetensors")
    shards = folder / "sharded"
    shards.mkdir()
    for i in range(2):
        save_file(
            {name: value for name, value in weights.items() if name.startswith(f"layers.{i}.")}, shards / f"model-0000{i + 1}-of-00002.safetensors"
        )
    names = {name: f"model-0000{int(name[7]) + 1}-of-00002.safetensors" for name in weights if name[7] < "2"}
    (shards / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "capture"), "LASTBIT_LIB": str(BUILD / "liblastbit_capture.so")}
    for words in (["passes.lb"], ["fails.lb", "fails"]):
        program = [sys.executable, ROOT / "tests/failing/failing_model.py", *words]
        subprocess.run(program, cwd=folder, env=variables, check=True, capture_output=True)
    tokens = [sys.executable, ROOT / "tests/programs/token_relations.py", folder, "padding_once"]
    subprocess.run(tokens, env=variables, check=True, capture_output=True)
    shutil.copytree(folder / "run.lb", folder / "cut.lb")
    (archive,) = (folder / "cut.lb").glob("*.tar")
    os.truncate(archive, archive.stat().st_size * 3 // 4)
    answer = subprocess.run([BUILD / "lastbit", "audit", "--json", folder / "bad.safetensors"], capture_output=True)
    (folder / "audit.json").write_bytes(answer.stdout)
    for i in (1, 2):
        for command in ("verify", "check"):
            words = [BUILD / "lastbit", command, folder / "passes.lb", "--part", f"{i}/2", "-o", folder / f"{command}{i}.part"]
            subprocess.run(words, check=True, capture_output=True, cwd=folder)
    return folder


# What stands in capitals is a file of `inputs`, or OUT, which is written.
COMMANDS = """
ls RUN | ls --json RUN | ls --tables RUN | ls PACK | ls NPZ | ls SHARDED | show RUN first.weight | show PT | verify RUN | verify PACK
watch LOG | watch --json RUN | parity FIRST SECOND | audit BAD | audit GOOD --against BAD | audit SHARDED
fingerprint GOOD --against BAD | fingerprint PT | fingerprint --json SHARDED | fingerprint PASSES --against GOOD
diff GOOD BAD | diff RUN PACK | diff PACK SHARDED | diff RUN PACK --html OUT | replay RUN | replay --json PACK | replay RUN --write OUT
bisect -q RUN | explain RUN PACK | ranks RUN | recover RUN -o OUT | pack RUN -o OUT | gather RUN PACK -o OUT | gather PACK -o OUT --steps 1-2 | report AUDIT -o OUT | help diff
bisect -q FAILS -o OUT | bisect -q FAILS --against PASSES | bisect -q --json FAILS --journal OUT | explain PASSES FAILS
diff PASSES FAILS --map-out OUT | verify CUT | recover CUT -o OUT | recover PACK -o OUT
check PASSES | check --json FAILS | check --only relations TOKENS
pack CUT -o OUT | pack PACK -o OUT --strip data,params | pack RUN -o OUT --steps 1-2
verify RUN --part 1/2 -o OUT | diff PASSES FAILS --part 2/2 -o OUT | check FAILS --part 1/2 -o OUT | ranks RUN --part 1/2 -o OUT
audit GOOD --part 1/2 -o OUT | fingerprint GOOD --part 2/2 -o OUT | explain PASSES FAILS --part 1/2 -o OUT
diff GOOD BAD --map s/q/k/ | audit GOOD --against BAD --map s/q/r/g | replay PASSES --precision layer=.=bf16 | replay RUN --mode chained --skip layer=first
watch SHORT --alarm-file OUT | diff GOOD PT | audit ADAPTER | parity FIRST SECOND --heat
audit GOOD --against FUSED | diff GOOD FUSED --map-out OUT | fingerprint FUSED --against GOOD
verify --merge VERIFIED1 VERIFIED2 | check --merge CHECKED1 CHECKED2 --json
"""
WORDS = dict(
    RUN="run.lb", PACK="run.lbz", NPZ="good.npz", PT="good.pt", SHARDED="sharded", LOG="log.jsonl", FIRST="first.jsonl", SECOND="second.jsonl"
)
WORDS |= dict(GOOD="good.safetensors", BAD="bad.safetensors", AUDIT="audit.json", OUT="out", PASSES="passes.lb", FAILS="fails.lb", CUT="cut.lb")
WORDS |= dict(SHORT="short.jsonl", ADAPTER="adapter", FUSED="fused.safetensors")
WORDS |= dict(TOKENS="padding_once.lb", VERIFIED1="verify1.part", VERIFIED2="verify2.part", CHECKED1="check1.part", CHECKED2="check2.part")


OURS = ("scratch", "out", "failing.out", "failing.err", "failing.places")


def without_times(text):
    return re.sub(rb'in \d+\.\d+ s\b|"seconds": [\d.e-]+', b"", text)


def remove(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def is_wrong(outcome, whole, left):
    same = (outcome.code, without_times(outcome.out)) == (whole.code, without_times(whole.out))
    mute = outcome.kind == "write" and outcome.for_good  # nothing can be said then, either
    refused = outcome.code == FAILED and (mute or outcome.err.startswith(b"lastbit "))
    # a folder's draft can be emptied only where a folder can be opened
    stuck = outcome.kind == "unlink" or (outcome.kind == "open" and outcome.for_good)
    return not (same or refused) or (left and not stuck)


def test_every_command_is_tried():
    listed = subprocess.run([BUILD / "lastbit", "help"], capture_output=True, text=True, check=True).stdout
    names = set(re.findall(r"^  ([a-z]+)  +\S", listed.split("Topics")[0], re.M))
    elsewhere = {"record", "doctor", "order"}  # they run programs: test_failing_recorder.py
    assert "diff" in names and names - elsewhere == {command.split()[0] for command in re.split(r"[|\n]", COMMANDS) if command.strip()} - {"help"}


@pytest.mark.parametrize("command", [line.strip() for line in re.split(r"[|\n]", COMMANDS) if line.strip()])
def test_a_failure_is_no_other_answer(command, inputs, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    words = [tmp_path / WORDS[word] if word == "OUT" else inputs / WORDS[word] if word in WORDS else word for word in command.split()]
    before = sorted(inputs.rglob("*"))
    wrong, runs = [], 0

    def left():
        return [path for path in [*tmp_path.iterdir(), *scratch.iterdir()] if path.name not in OURS]

    def clean():
        for path in [*left(), tmp_path / "out"]:
            remove(path)

    where = inputs if "--merge" in words else tmp_path  # parts are put together where they were made
    with Server([BUILD / "lastbit", *words], tmp_path, LIBRARY, environment={"TMPDIR": str(scratch)}, cwd=where) as server:
        whole = server.run()
        assert whole.code in (0, 1, 125), whole
        for kind in KINDS:
            for for_good in (False, True):
                for outcome in server.sweep(kind, for_good, SOME and SOME.get(kind, 3), clean):
                    runs += 1
                    if is_wrong(outcome, whole, left()):
                        wrong.append(f"{outcome}{left() or ''}")
    assert not wrong, "\n".join(wrong[:10])
    assert runs > 10 and sorted(inputs.rglob("*")) == before


@pytest.mark.parametrize("kind", ["open", "stat", "folder", "alloc", "read"])
def test_an_output_that_is_an_input_is_never_taken_for_another(kind, inputs, tmp_path):
    """The archive in a folder that is packed, and a shard beside the index that names it: --force replaces neither, whatever call fails."""
    run, shards = tmp_path / "run.lb", tmp_path / "shards"
    shutil.copytree(inputs / "run.lb", run), shutil.copytree(inputs / "sharded", shards)
    (archive,) = run.glob("*.tar")
    shard = shards / "model-00001-of-00002.safetensors"
    for command, output in (
        (["pack", run, "-o", archive, "--force"], archive),
        (["bisect", "-q", run, "-o", run, "--force"], archive),
        (["diff", shards / "model.safetensors.index.json", inputs / "good.safetensors", "--map-out", shard], shard),
    ):
        before, runs = output.read_bytes(), 0
        with Server([BUILD / "lastbit", *command], tmp_path, LIBRARY) as server:
            assert server.run().code == FAILED
            for for_good in (False, True):
                for outcome in server.sweep(kind, for_good, None if FULL else 40, lambda: None):
                    runs += 1
                    assert outcome.code == FAILED and output.read_bytes() == before, outcome
        assert runs or kind in ("read", "folder"), command


@pytest.mark.parametrize("kind", ["open", "read"])
def test_a_file_that_no_watch_has_written_is_no_hold_file(kind, inputs, tmp_path):
    """Also where it cannot be looked into, or not when watching begins."""
    hold, runs = tmp_path / "out", 0
    with Server([BUILD / "lastbit", "watch", inputs / "short.jsonl", "--hold", hold], tmp_path, LIBRARY) as server:
        hold.write_text("mine")
        assert server.run().code == FAILED
        for for_good in (False, True):
            for outcome in server.sweep(kind, for_good, None, lambda: hold.write_text("mine")):
                runs += 1
                assert hold.read_text() == "mine" and b"out" in outcome.err, outcome
    assert runs


# First and second side, and the second side's parts, of a server and of a step of training that two people wrote.
PAIR_COMMANDS = """
diff A B | diff --json A B --map-out OUT | diff A B --html OUT | diff A B --map MAP | bisect -q B --against A -o OUT | explain A B | check B
fingerprint B --against A | ranks B | watch --json B | diff A B --part 2/2 -o OUT | diff --merge PART1 PART2
"""
PAIRS = [
    ("served_ways", "padded-packed", "padded-packed-first.lb", "padded-packed-positions-of-queries-run-on.lb"),
    ("second_blocks", "codebook", "train-codebook-first.lb", "train-codebook-nearest-by-angle.lb"),
]


@pytest.mark.full
@pytest.mark.parametrize("program, name, first, second", PAIRS, ids=[pair[1] for pair in PAIRS])
def test_a_failure_is_no_other_answer_about_two_implementations(program, name, first, second, recorded_pairs, tmp_path):
    """At every place in the code of these commands, once."""
    folder, scratch, out = recorded_pairs(program, name), tmp_path / "scratch", tmp_path / "out"
    names = dict(A=folder / first, B=folder / second, MAP=tmp_path / "inputs" / "map", OUT=out)
    names |= {f"PART{i}": tmp_path / "inputs" / f"part{i}" for i in (1, 2)}
    scratch.mkdir(), (tmp_path / "inputs").mkdir()
    for options in (["--map-out", names["MAP"]], ["--part", "1/2", "-o", names["PART1"]], ["--part", "2/2", "-o", names["PART2"]]):
        subprocess.run([BUILD / "lastbit", "diff", names["A"], names["B"], *options], cwd=tmp_path, capture_output=True)

    def left():
        return [path for path in [*tmp_path.iterdir(), *scratch.iterdir()] if path.name not in (*OURS, "inputs")]

    def clean():
        for path in [*left(), out]:
            remove(path)

    tried, wrong, runs = set(), [], 0
    for command in (line.strip() for line in re.split(r"[|\n]", PAIR_COMMANDS) if line.strip()):
        words = [names.get(word, word) for word in command.split()]
        with Server([BUILD / "lastbit", *words], tmp_path, LIBRARY, environment={"TMPDIR": str(scratch)}, places=True) as server:
            clean()
            whole = server.run()
            assert whole.code in (0, 1, 125), whole
            for outcome in (one for kind in KINDS for one in server.sweep_places(kind, tried, clean)):
                runs += 1
                if is_wrong(outcome, whole, left()):
                    wrong.append(f"{command}: {outcome}{left() or ''}")
    assert not wrong, "\n".join(wrong[:10])
    assert runs > 1000


@pytest.mark.parametrize("command", ["diff A B --map-out OUT", "bisect -q B --against A", "explain A B"])
def test_a_few_failures_are_no_other_answer_about_two_implementations(command, recorded_pairs, tmp_path):
    folder, scratch, out = recorded_pairs("second_blocks", "codebook"), tmp_path / "scratch", tmp_path / "out"
    names = dict(A=folder / "codebook-first.lb", B=folder / "codebook-code-scaled.lb", OUT=out)
    scratch.mkdir()

    def left():
        return [path for path in [*tmp_path.iterdir(), *scratch.iterdir()] if path.name not in OURS]

    def clean():
        for path in [*left(), out]:
            remove(path)

    wrong, runs = [], 0
    words = [names.get(word, word) for word in command.split()]
    with Server([BUILD / "lastbit", *words], tmp_path, LIBRARY, environment={"TMPDIR": str(scratch)}) as server:
        whole = server.run()
        assert whole.code == 1, whole
        for kind in KINDS:
            for for_good in (False, True):
                for outcome in server.sweep(kind, for_good, 20 if kind == "alloc" else 2, clean):
                    runs += 1
                    if is_wrong(outcome, whole, left()):
                        wrong.append(f"{outcome}{left() or ''}")
    assert not wrong, "\n".join(wrong[:10])
    assert runs > 40
