"""`lastbit.torch.fingerprint`: a model that runs has the fingerprints of its files, on one rank and on several that hold parts."""

import json
import os
import subprocess
import sys

import pytest
import torch
from conftest import BUILD, ROOT
from safetensors.torch import save_file

sys.path[:0] = [str(ROOT / "capture"), str(ROOT / "tests" / "programs")]
import lastbit.torch.fingerprints as fingerprints
from fingerprint_ranks import model
from lastbit import Error
from lastbit.torch import fingerprint, load_fingerprint, merge_fingerprints

RECORDER = BUILD / "liblastbit_capture.so"
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT / "capture"),
    "LASTBIT_LIB": str(RECORDER),
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
}


@pytest.fixture(autouse=True)
def this_build(monkeypatch):
    monkeypatch.setenv("LASTBIT_LIB", str(RECORDER))


def of_files(lastbit, path, field="fingerprint"):
    return {row["name"]: row[field] for row in lastbit.json("fingerprint", path, expect=0)["tables"][0]["tensors"]}


def test_a_model_has_the_fingerprints_of_its_file(lastbit, tmp_path):
    net = model()
    save_file(net.state_dict(), tmp_path / "net.safetensors")
    for source in (net, net.state_dict()):
        table = fingerprint(source)
        assert {row.name: row.fingerprint for row in table} == of_files(lastbit, tmp_path / "net.safetensors")
        assert {row.name: row.numbers for row in table} == of_files(lastbit, tmp_path / "net.safetensors", "numbers")
    assert table.sum == lastbit.json("fingerprint", tmp_path / "net.safetensors")["tables"][0]["sum"]


def test_every_dtype_and_layout(lastbit, tmp_path):
    torch.manual_seed(1)
    state = {
        str(d).split(".")[1]: (torch.randn(9, 7) * 10).to(d) for d in (torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.int8)
    }
    state |= {
        "bool": torch.randn(9, 7) > 0,
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "complex": torch.randn(5, 3, dtype=torch.complex64),
    }
    torch.save(state, tmp_path / "state.pt")
    views = {name: value.T.contiguous().T if value.ndim == 2 else value for name, value in state.items()}
    for source in (state, views):
        table = fingerprint(source)
        assert {row.name: row.fingerprint for row in table} == of_files(lastbit, tmp_path / "state.pt")


def test_large_tensors_go_in_blocks(monkeypatch):
    state = {"w": torch.randn(300, 50), "row": torch.randn(4000)}
    whole = fingerprint(state, rounded=True)
    monkeypatch.setattr(fingerprints, "BLOCK", 1000)
    blocks = fingerprint(state, rounded=True, threads=3)
    assert [row.sums for row in blocks] == [row.sums for row in whole]


def test_tables_are_saved_loaded_and_compared(tmp_path):
    net = model()
    before, path = fingerprint(net, rounded=True), tmp_path / "sent.json"
    before.save(path)
    again = load_fingerprint(path)
    assert again.as_json() == before.as_json() and again.sum == before.sum
    assert before.compare(again).verdict == "same"
    served = fingerprint({name: value.bfloat16() if value.is_floating_point() else value for name, value in net.state_dict().items()})
    answer = before.compare(served)
    assert answer.verdict == "same" and answer.counts["cast"] >= 2 and answer.counts["cast"] + answer.counts["same"] == len(before)
    with torch.no_grad():
        net[0].weight[3, 4] += 1
        net[2].weight *= 2
    after = fingerprint(net)
    answer = after.compare(before, earlier=[before])
    assert answer.exit_code == 1 and {(m.kind, m.tensor) for m in answer.matches} == {("old", "0.weight"), ("old", "2.weight")}
    with pytest.raises(ValueError):
        before.save(tmp_path / "sent.txt")
    path.write_text(json.dumps({"schema": "lastbit.audit/1", "tables": [1]}))
    for bad in (path, tmp_path / "missing.json"):
        with pytest.raises(Error, match=bad.name):
            load_fingerprint(bad)


def run_ranks(folder, ranks, how):
    words = [sys.executable, ROOT / "tests/programs/fingerprint_ranks.py"]
    processes = [subprocess.Popen([*words, str(rank), str(ranks), str(folder), how], env=ENVIRONMENT) for rank in range(ranks)]
    assert [process.wait(timeout=200) for process in processes] == [0] * ranks
    return [folder / f"rank-{rank}.json" for rank in range(ranks)]


@pytest.mark.parametrize(("how", "ranks"), [("fsdp2", 2), ("hsdp", 4), ("megatron", 2)])
def test_parts_of_ranks_add_up(lastbit, tmp_path, how, ranks):
    """By one all_reduce, and by merging what each rank saved; FSDP2's checkpoint has the same."""
    expected = fingerprint(model(), rounded=True)
    saved = run_ranks(tmp_path, ranks, how)
    for rank in range(ranks):
        reduced = load_fingerprint(tmp_path / f"all-{rank}.json")
        assert {r.name: (r.fingerprint, r.sums, r.why) for r in reduced} == {r.name: (r.fingerprint, r.sums, None) for r in expected}
    assert {r.name: (r.fingerprint, r.sums) for r in merge_fingerprints(saved)} == {r.name: (r.fingerprint, r.sums) for r in expected}
    own = load_fingerprint(saved[0])
    assert own["0.weight"].fingerprint is None and "a part of it" in own["0.weight"].why
    save_file(model().state_dict(), tmp_path / "net.safetensors")
    assert lastbit.json("fingerprint", tmp_path / "all-0.json", "--against", tmp_path / "net.safetensors", expect=0)["verdict"] == "same"
    assert lastbit.json("fingerprint", saved[0], "--against", tmp_path / "net.safetensors", expect=125)["verdict"] == "undecided"
    if how == "fsdp2":
        assert of_files(lastbit, tmp_path / "saved") == {r.name: r.fingerprint for r in expected}


def test_copies_that_drift_apart_are_told(tmp_path):
    saved = run_ranks(tmp_path, 2, "drifted")
    for table in (load_fingerprint(tmp_path / "all-0.json"), merge_fingerprints(saved)):
        assert {row.name: row.why for row in table if row.why} == {"2.weight": "copies of it differ between ranks"}


def test_stages_of_a_pipeline_are_merged(tmp_path):
    saved = run_ranks(tmp_path, 2, "stages")
    assert [row.sums for row in merge_fingerprints(saved)] == [row.sums for row in fingerprint(model(), rounded=True)]
    assert not list(tmp_path.glob("all-*")) and all("other names" in path.read_text() for path in tmp_path.glob("refused-*"))
