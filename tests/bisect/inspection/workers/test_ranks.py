"""`lastbit ranks`: numbers against gradients that the workers saved themselves, findings against planted faults, silence on healthy runs."""

import itertools
import random
import shutil

import numpy as np
import pytest
from conftest import ROOT, warm_python

PROGRAM = "tests/programs/ranks/worker_faults.py"


@pytest.fixture(scope="module")
def recorded(lastbit, tmp_path_factory):
    """recorded(*ARGUMENTS): the capture of worker_faults.py, each made once."""
    folder = tmp_path_factory.mktemp("workers")
    made = {}

    def record(*arguments, options=(), expect=0):
        if (arguments, options) not in made:
            out = made[arguments, options] = folder / f"{len(made)}.lb"
            lastbit.record(out, PROGRAM, *arguments, options=options, expect=expect)
        return made[arguments, options]

    return record


def found(answer, notes=False):
    return [row for row in answer["findings"] if row["note"] == notes]


def one(answer, kind):
    rows = [row for row in found(answer) if row["kind"] == kind]
    assert len(rows) == 1, answer["findings"]
    return rows[0]


# ---- numbers ---------------------------------------------------------------------------------------------------------


def dispersion(gradients):
    """Of gradients {name: array}, one dict per worker, in the words of the JSON."""
    flat = [np.concatenate([g[name].ravel() for name in sorted(g)]) for g in gradients]
    norms = [np.linalg.norm(g) for g in flat]
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in itertools.combinations(flat, 2)]
    return {
        "grad_norm_mean": np.mean(norms),
        "grad_norm_std": np.std(norms),
        "grad_cosine_mean": np.mean(cosines),
        "grad_cosine_min": np.min(cosines),
    }


def equals(row, wanted):
    for key, number in wanted.items():
        assert row[key] == pytest.approx(number, rel=1e-6, abs=1e-9), key


@pytest.mark.parametrize("how, ranks, micro", [("ddp", 3, 2), ("hand", 4, 1), ("fsdp", 2, 1), pytest.param("fsdp", 4, 2, marks=pytest.mark.full)])
def test_numbers_are_those_of_the_gradients_that_workers_saved(lastbit, recorded, tmp_path_factory, how, ranks, micro):
    """Saved by hooks before anything is reduced. DDP scales by the number of workers before its all-reduce, FSDP scatters."""
    saved = tmp_path_factory.mktemp("saved")
    capture = recorded(how, "--ranks", str(ranks), "--micro", str(micro), "--steps", "2", "--save", str(saved))
    answer = lastbit.json("ranks", capture, expect=0)
    assert answer["verdict"] == "clean" and not answer["findings"] and [s["step"] for s in answer["steps"]] == [0, 1]
    for step in answer["steps"]:
        workers = [dict(np.load(saved / f"{step['step']}-{rank}.npz")) for rank in range(ranks)]
        losses = [float(w.pop("loss")) for w in workers]
        equals(step, {"loss_mean": np.mean(losses), "loss_std": np.std(losses), "loss_range": np.ptp(losses)})
        equals(step, dispersion(workers))
        assert step["lacking"] == 0 and not step["approximate"] and step["gradients"] == len(workers[0]) == 15
        for layer in step["layers"] + step["blocks"]:
            part = layer["layer"] + "."
            equals(layer, dispersion([{n: g for n, g in w.items() if n.startswith(part)} for w in workers]))
        assert {row["layer"] for row in step["blocks"]} == {"blocks.0", "blocks.1"}
        for worker, loss, gradients in zip(step["workers"], losses, workers):
            equals(worker, {"loss": loss, "grad_norm": np.linalg.norm(np.concatenate([g.ravel() for g in gradients.values()]))})


def test_gradients_whose_bytes_were_not_kept_are_computed_again(lastbit, recorded):
    """With sources alone replay gives them; with statistics alone nothing does, and the command that records them is said."""
    full = lastbit.json("ranks", recorded("ddp"), expect=0)
    sources = lastbit.json("ranks", recorded("ddp", options=("--level", "sources")), expect=0)
    for a, b in zip(full["steps"], sources["steps"]):
        assert b["lacking"] == 0 and b["loss_std"] == a["loss_std"]
        # Replay rounds where torch does, in another order: some units in the last place of an f32.
        for key in ("grad_norm_mean", "grad_norm_std", "grad_cosine_mean", "grad_cosine_min"):
            assert abs(b[key] - a[key]) < (1e-6 if b["approximate"] else 1e-12)
    stats = lastbit.json("ranks", recorded("ddp", options=("--level", "stats")), expect=0)
    assert stats["steps"][0]["grad_norm_mean"] is None and stats["steps"][0]["lacking"] == 30
    assert stats["steps"][0]["loss_mean"] == full["steps"][0]["loss_mean"] and stats["replicas"] == full["replicas"]
    assert "lastbit record" in stats["record"] and "worker_faults.py" in stats["record"]


def test_a_window_of_steps_is_judged_by_itself(lastbit, recorded):
    answer = lastbit.json("ranks", "--steps", "1-2", recorded("ddp"), expect=0)
    assert [s["step"] for s in answer["steps"]] == [1, 2]
    assert lastbit.run("ranks", "--steps", "7", recorded("ddp"), expect=128).stderr
    assert "--steps x" in lastbit.run("ranks", "--steps", "x", recorded("ddp"), expect=129).stderr


# ---- findings --------------------------------------------------------------------------------------------------------


def test_workers_that_read_the_same_tokens_are_named(lastbit, recorded):
    row = one(lastbit.json("ranks", recorded("ddp", "--fault", "tokens", "--ranks", "3"), expect=1), "tokens")
    assert row["ranks"] == [0, 1, 2] and row["step"] == 0 and row["steps"] == 3


def test_a_parameter_that_one_rank_wrote_is_named_with_the_op(lastbit, recorded):
    answer = lastbit.json("ranks", recorded("ddp", "--fault", "parameter", "--ranks", "3"), expect=1)
    row = one(answer, "replica")
    # Written before step 1, which the recorder files behind the optimizer of step 0.
    assert row["tensor"] == "blocks.0.up.weight" and row["ranks"] == [1] and row["step"] == 0
    assert "aten::add_" in row["message"] and "after the optimizer" in row["message"]


def test_another_learning_rate_is_named_before_what_follows_from_it(lastbit, recorded):
    answer = lastbit.json("ranks", recorded("ddp", "--fault", "rate", "--ranks", "3"), expect=1)
    assert [row["kind"] for row in found(answer)] == ["option", "replica"]
    option, replica = found(answer)
    assert option["ranks"] == replica["ranks"] == [1] and option["step"] == replica["step"] == 1
    assert "lr of group 0 of AdamW is 0.03 on rank 1 and 0.01 on rank 0" in option["message"]


def test_a_worker_that_repeats_a_batch_is_named(lastbit, recorded):
    row = one(lastbit.json("ranks", recorded("ddp", "--fault", "repeat"), expect=1), "batch")
    assert row["ranks"] == [1] and row["step"] == 2 and "in step 1" in row["message"]


def test_a_worker_with_fewer_micro_batches_is_named(lastbit, recorded):
    row = one(lastbit.json("ranks", recorded("hand", "--fault", "micro", "--micro", "2"), expect=1), "batch")
    assert row["ranks"] == [1] and row["step"] == 1 and "1 micro-batches" in row["message"]


def test_one_seed_for_all_workers_is_said_and_no_fault(lastbit, recorded):
    """S1-1 of the paper: the setting in which workers are closest together."""
    answer = lastbit.json("ranks", recorded("ddp", "--fault", "seed", "--dropout", "0.1"), expect=0)
    (row,) = [row for row in found(answer, notes=True) if row["kind"] == "seed"]
    assert answer["seeds"] == "one" and row["ranks"] == [0, 1] and row["steps"] == 3 and "S1-1" in row["message"]


def test_parameters_that_began_unequal_are_told_apart_from_those_that_became_so(lastbit, recorded):
    answer = lastbit.json("ranks", recorded("hand", "--fault", "initial"), expect=1)
    assert {row["kind"] for row in found(answer)} == {"initial"}
    for row in found(answer):
        assert row["step"] == 0 and row["ranks"] == [0, 1] and row["tensor"] and "before step 0" in row["message"]


@pytest.mark.parametrize(
    "fault, step, texts, fails",
    [
        ("size", 1, ("rank 0 called broadcast_ of f32[7]", "rank 1 called broadcast_ of f32[5]"), False),
        ("swapped", 1, ("rank 0 called allreduce_(sum) of f32[512], which reduces the gradient of blocks.0.up.weight", "blocks.1.up.weight"), False),
        ("order", 1, ("rank 0 called broadcast_ of f32[6]", "rank 1 called allreduce_ of f32[6]", "it failed"), True),
        ("absent", 1, ("rank 0 called allreduce_", "it failed; rank 1 never came to it"), True),
    ],
)
def test_collectives_that_do_not_match_are_said_before_any_number(lastbit, recorded, fault, step, texts, fails):
    capture = recorded("hand", "--fault", fault, "--timeout", "3", expect=1 if fails else 0)
    answer = lastbit.json("ranks", capture, expect=1)
    row = answer["findings"][0]
    assert row["kind"] == "collective" and row["step"] == step and 1 in row["ranks"]
    assert all(text in row["message"] for text in texts), row["message"]
    text = lastbit.run("ranks", capture, expect=1).stdout
    assert text.index("does not match") < text.index("loss mean")


@pytest.mark.parametrize("fault", ["parameter", "size"])
def test_bisect_of_ranks_that_disagree_is_not_clean(lastbit, recorded, fault):
    extra = ("--ranks", "3") if fault == "parameter" else ("--timeout", "3")
    how = "ddp" if fault == "parameter" else "hand"
    answer = lastbit.json("bisect", recorded(how, "--fault", fault, *extra), expect=1)
    assert answer["outcome"] == "found" and answer["culprit"]["axis"] == "rank" and 1 in answer["culprit"]["ranks"]


def test_a_rank_that_is_gone_before_any_call_fails_is_named(lastbit, recorded, tmp_path):
    """What a kill leaves: whole steps, and no end."""
    cut = tmp_path / "cut.lb"
    shutil.copytree(recorded("ddp"), cut)
    archive = cut / "rank-00001.tar"
    last = lastbit.json("ls", cut)["steps"][-1]
    while any((p["step"], p["rank"]) == (last, 1) for p in lastbit.json("ls", cut)["programs"]):
        with open(archive, "r+b") as file:
            file.truncate(archive.stat().st_size - 2048)
    for command in ("ranks", "bisect"):
        answer = lastbit.json(command, cut, expect=1)
        row = one(answer, "lost") if command == "ranks" else answer["culprit"]
        assert row["step"] == last and row["ranks"] == [1]
        assert f"rank 1 never came to step {last}" in (row["message"] if command == "ranks" else answer["failure"]["what"])


# ---- silence ---------------------------------------------------------------------------------------------------------


def test_running_statistics_of_each_rank_are_a_note(lastbit, recorded):
    answer = lastbit.json("ranks", recorded("ddp", "--batch-norm", "--dropout", "0.1"), expect=0)
    (row,) = found(answer, notes=True)
    assert row["kind"] == "buffer" and row["tensor"] == "blocks.0.norm.running_mean" and not found(answer)
    assert answer["seeds"] == "each"


@pytest.mark.parametrize(
    "program, arguments, torchrun, workers",
    [
        ("ddp_buckets.py", ("2", "gloo"), 0, True),
        ("ddp_accumulate.py", ("--spawn", "2", "--bucket-view"), 0, True),
        ("ddp_accumulate.py", ("--spawn", "2", "--compress"), 0, True),
        ("sharded.py", ("fsdp",), 2, True),
        ("sharded.py", ("tp",), 2, False),
        ("tensor_parallel.py", ("--ranks", "2"), 2, False),
        ("pipeline.py", (), 2, False),
    ],
)
def test_healthy_runs_are_clean(lastbit, tmp_path, program, arguments, torchrun, workers):
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(torchrun)) if torchrun else ()
    capture = tmp_path / "run.lb"
    lastbit.run("record", "-o", capture, "--", *warm_python(), *launch, ROOT / "tests/programs/ranks" / program, *arguments, expect=0)
    answer = lastbit.json("ranks", capture, expect=0)
    assert not found(answer), answer["findings"]
    for step in answer["steps"]:
        assert (step["grad_cosine_mean"] is not None) == workers
    assert any("no data-parallel workers" in row["message"] for row in answer["findings"]) != workers


def test_one_rank_cannot_be_tested(lastbit, recorded, tmp_path):
    alone = tmp_path / "alone.lb"
    shutil.copytree(recorded("ddp"), alone)
    (alone / "rank-00001.tar").unlink()
    answer = lastbit.json("ranks", alone, expect=125)
    assert answer["verdict"] == "cannot be tested" and any("1 of 2 ranks" in row["message"] for row in answer["findings"])


# ---- captures that are not whole


def broken(whole, folder, seed):
    """A copy of a capture, one of whose files is cut off, has bytes turned over, or holds another's."""
    draw = random.Random(seed)
    shutil.copytree(whole, folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 512)
    file = draw.choice(files)
    bytes_ = bytearray(file.read_bytes())
    if seed % 3 == 0:
        del bytes_[draw.randrange(len(bytes_)) :]
    elif seed % 3 == 1:
        for _ in range(8):
            bytes_[draw.randrange(len(bytes_))] ^= 1 << draw.randrange(8)
    else:
        at = draw.randrange(len(bytes_))
        bytes_[at : at + 4096] = draw.choice(files).read_bytes()[:4096]
    file.write_bytes(bytes_)
    return folder


@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 60), marks=pytest.mark.full)])
def test_broken_captures_are_answered_or_refused(lastbit, recorded, tmp_path, seeds):
    """By every command that reads captures step by step: no signal, no sanitizer's report, a sentence where there is no answer."""
    for seed in seeds:
        capture = broken(recorded("ddp"), tmp_path / str(seed), seed)
        for words in (("ranks", capture), ("watch", capture), ("parity", capture, capture)):
            done = lastbit.run(*words)
            assert done.returncode in (0, 1, 125, 128), (seed, words, done.stderr)
            assert done.returncode < 2 or done.stderr.startswith("lastbit "), (seed, words, done.stderr)


def test_a_ring_of_gradients_is_no_pipeline(lastbit, tmp_path):
    """Copies of one model begin alike on purpose; stages of a pipeline that do were drawn from one seed."""
    lastbit.record(tmp_path / "ring.lb", "tests/programs/ranks/gradient_ring.py", expect=0)
    answer = lastbit.json("ranks", tmp_path / "ring.lb", expect=0)
    assert answer["verdict"] == "clean" and not found(answer)
