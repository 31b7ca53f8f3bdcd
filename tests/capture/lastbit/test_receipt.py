"""The receipt says what a run was, and keeps secrets to itself."""

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "capture"))
from lastbit import receipt  # noqa: E402


@pytest.mark.parametrize(
    "arguments, masked",
    [
        (["--token=abc"], ["--token=***"]),
        (["--hub_token", "abc", "--lr", "1"], ["--hub_token", "***", "--lr", "1"]),
        (["--api-key", "abc"], ["--api-key", "***"]),
        (["trainer.api_key=abc"], ["trainer.api_key=***"]),
        (["--db-password=abc"], ["--db-password=***"]),
        (["--AWS_SECRET_ACCESS_KEY=abc"], ["--AWS_SECRET_ACCESS_KEY=***"]),
        (["hf_abcdefghijkl"], ["***"]),
        (["--model", "x", "sk-proj-abcdefghij"], ["--model", "x", "***"]),
        (["ghp_abcdefghijklmnop"], ["***"]),
        (["--data=https://me:pass@host/x"], ["--data=https://***@host/x"]),
        (["0123456789abcdef0123456789abcdef01234567"], ["***"]),
    ],
)
def test_secret_is_masked(arguments, masked):
    assert receipt.mask(arguments) == masked


@pytest.mark.parametrize(
    "arguments",
    [
        ["--max-tokens", "512"],
        ["--tokenizer", "gpt2"],
        ["--num_tokens=5"],
        ["--token", "--lr", "1"],
        ["--token"],
        ["--author=me"],
        ["--pad-token-id=3"],
        ["task-sk-small"],
        ["--lr=1e-3", "train.py"],
    ],
)
def test_what_is_no_secret_stays(arguments):
    assert receipt.mask(arguments) == arguments


def test_environment_comes_by_allow_list(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijkl")
    monkeypatch.setenv("TORCH_API_KEY", "abc")
    monkeypatch.setenv("HOME_ADDRESS", "here")
    kept = receipt.collect()["environment"]
    assert kept["OMP_NUM_THREADS"] == "3"
    assert not {"HF_TOKEN", "TORCH_API_KEY", "HOME_ADDRESS", "PATH"} & set(kept)


def test_no_part_that_fails_takes_the_others_along(monkeypatch):
    def broken():
        raise RuntimeError("no such thing")

    monkeypatch.setattr(receipt, "_machine", broken)
    monkeypatch.setattr(os, "getcwd", broken)
    found = receipt.collect()
    assert "machine" not in found
    assert found["process"]["pid"] == os.getpid()
    assert found["process"]["directory"] == ""


def run(tmp_path, *, torch, extra=""):
    (tmp_path / "own.py").write_text("answer = 42" + extra + "\n")
    (tmp_path / "train.py").write_text(
        ("import torch\n" if torch else "") + f"import json, sys, own\nsys.path.append({str(ROOT / 'capture')!r})\nfrom lastbit import receipt\n"
        "before = set(sys.modules)\nfound = receipt.collect()\n"
        "assert not {m for m in set(sys.modules) - before if m.partition('.')[0] in ('numpy', 'torch', 'transformers')}\n"
        "print(json.dumps(found))\n"
    )
    done = subprocess.run([sys.executable, "train.py", "--token=abc"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_programs_own_modules_are_hashed(tmp_path):
    first = run(tmp_path, torch=False)
    assert set(first["code"]["modules"]) == {"__main__", "own"}
    assert first["process"]["argv"] == ["train.py", "--token=***"]
    assert first["process"]["directory"] == tmp_path.name
    assert "torch" not in first
    again, changed = run(tmp_path, torch=False), run(tmp_path, torch=False, extra="  # changed")
    assert first["code"]["sha256"] == again["code"]["sha256"] != changed["code"]["sha256"]
    assert str(tmp_path) not in json.dumps(first)


def test_flags_of_torch_are_read(tmp_path):
    found = run(tmp_path, torch=True)
    assert found["versions"]["torch"]
    assert found["torch"]["matmul_precision"] == "highest"
    assert found["torch"]["deterministic"] is False
    assert found["torch"]["threads"] >= 1
    assert found["torch"]["cpu_capability"]
    assert found["devices"] == []
