"""Exit codes of files that are not what a command asks for: the same over all commands (formats/command/command_line.h has the rule)."""

import json
import os
import socket

import numpy as np
import pytest
from conftest import ROOT
from safetensors.numpy import save_file

CLEAN = ROOT / "samples" / "clean.lbz"
FAILED, UNTESTABLE = 128, 125


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files by what is wrong with them, and good ones of every kind."""
    folder = tmp_path_factory.mktemp("files")
    made = {name: folder / name for name in "missing empty folder prose program unreadable no-step.lbz array.npy log.jsonl tokens.jsonl".split()}
    made["empty"].touch()
    made["folder"].mkdir()
    made["prose"].write_text("A file of words.\nNo number in it.\n")
    made["program"].write_bytes(open("/bin/sh", "rb").read()[:20000])
    with socket.socket(socket.AF_UNIX) as door:  # refused to everybody, root among them
        here = os.getcwd()
        os.chdir(folder)  # names of sockets are short
        door.bind("unreadable")
        os.chdir(here)
    made["no-step.lbz"].write_bytes(CLEAN.read_bytes()[:3000])  # cut within its first step
    np.save(made["array.npy"], np.arange(6.0))
    made["log.jsonl"].write_text("".join(json.dumps(dict(step=i, loss=2.0)) + "\n" for i in range(50)))
    names = [f"layers.{i}.{n}" for i in range(3) for n in ("up", "down")]
    draw = np.random.default_rng(1).standard_normal
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(dict(peft_type="LORA", r=2, lora_alpha=4, target_modules=["up", "down"])))
    halves = {f"base_model.model.{name}.lora_{h}.weight": draw((2, 8) if h == "A" else (8, 2)).astype("f4") for name in names for h in "AB"}
    save_file(halves, folder / "adapter" / "adapter_model.safetensors")
    save_file({f"{name}.weight": draw((8, 8)).astype("f4") for name in names}, folder / "base.safetensors")
    made |= dict(adapter=folder / "adapter", base=folder / "base.safetensors")
    made["tokens.jsonl"].write_text('{"token_ids": [1, 2, 3], "logprobs": [null, -1.0, -2.0]}\n')
    return made


# Every place of a command line where a file is read; "X" is that file.
READS = {
    "ls": "ls X",
    "ls --receipt": "ls --receipt CLEAN X",
    "show": "show X",
    "verify": "verify X",
    "recover": "recover X -o OUT",
    "pack": "pack X -o OUT",
    "gather": "gather X -o OUT",
    "gather, second": "gather CLEAN X -o OUT",
    "replay": "replay X",
    "diff, first": "diff X CLEAN",
    "diff, second": "diff CLEAN X",
    "diff --noise": "diff CLEAN CLEAN --noise X",
    "diff --kinds": "diff CLEAN CLEAN --kinds X",
    "diff --map": "diff CLEAN CLEAN --map X",
    "explain": "explain X",
    "explain, second": "explain CLEAN X",
    "explain --tree": "explain CLEAN --tree X",
    "explain --invariance": "explain --invariance op=mm X",
    "bisect": "bisect -q X",
    "bisect --check": "bisect --check X",
    "bisect --against": "bisect -q CLEAN --against X",
    "ranks": "ranks X",
    "ranks, second": "ranks CLEAN X",
    "check": "check X",
    "parity, first": "parity X TOKENS",
    "parity, second": "parity TOKENS X",
    "parity --noise": "parity TOKENS TOKENS --noise X",
    "parity --matrix": "parity --matrix X",
    "watch": "watch X",
    "watch, second": "watch LOG X",
    "watch --shards": "watch LOG --shards X",
    "audit": "audit X",
    "audit --against": "audit ARRAY --against X",
    "audit --expect": "audit ARRAY --expect X",
    "audit --adapter": "audit --adapter X",
    "audit --base": "audit --adapter ADAPTER --base X",
    "audit --merged": "audit --adapter ADAPTER --base BASE --merged X",
    "audit --inputs": "audit --adapter ADAPTER --base BASE --inputs X",
    "fingerprint": "fingerprint X",
    "fingerprint, second": "fingerprint ARRAY X",
    "fingerprint --against": "fingerprint ARRAY --against X",
    "replay --order": "replay CLEAN --order .*=tree:X",
    "report": "report -o OUT X",
    "report, second": "report -o OUT CLEAN X",
    "order --so": "order --so X --symbol f -n 8",
    "order --tree": "order --tree X",
    "bisect --order": "bisect --check CLEAN --order .*=tree:X",
    "record --like": "record -o OUT --like X -- true",
}


def run(lastbit, files, tmp_path, words, bad):
    given = dict(
        X=bad,
        CLEAN=CLEAN,
        TOKENS=files["tokens.jsonl"],
        LOG=files["log.jsonl"],
        ARRAY=files["array.npy"],
        ADAPTER=files["adapter"],
        BASE=files["base"],
        OUT=tmp_path / "out.lbz",
    )
    return lastbit.run(
        *[str(given.get(word, word)).replace("tree:X", f"tree:{bad}") for word in words.split()], cwd=tmp_path, timeout=60, errors="strict"
    )


@pytest.mark.parametrize("what", READS)
def test_what_cannot_be_read_failed_in_every_command(lastbit, files, tmp_path, what):
    for bad in ("missing", "empty", "folder", "prose", "program", "unreadable"):
        done = run(lastbit, files, tmp_path, READS[what], files[bad])
        assert done.returncode == FAILED, (bad, done.returncode, done.stdout, done.stderr)
        assert str(files[bad]) in done.stderr, (bad, done.stderr)  # which file it was
        assert all(letter == "\n" or letter >= " " for letter in done.stderr), "no byte of a file that a terminal would obey"
        assert not (tmp_path / "out.lbz").exists(), bad


JUDGED = "replay; diff, first; diff, second; explain; explain, second; bisect; bisect --check; bisect --against; ranks; parity, first; watch; show; pack; gather; fingerprint; fingerprint --against"


@pytest.mark.parametrize("what", JUDGED.split("; "))
def test_a_recording_without_a_step_cannot_be_tested(lastbit, files, tmp_path, what):
    done = run(lastbit, files, tmp_path, READS[what], files["no-step.lbz"])
    assert done.returncode == UNTESTABLE and (done.stderr or done.stdout), (done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("what", ["replay", "explain", "bisect", "bisect --check", "ranks", "verify", "gather"])
def test_tensors_alone_cannot_be_tested(lastbit, files, tmp_path, what):
    """They are read, by `ls` and `show` too, and hold no op and no checksum."""
    assert run(lastbit, files, tmp_path, READS[what], files["array.npy"]).returncode == UNTESTABLE
    assert run(lastbit, files, tmp_path, READS["ls"], files["array.npy"]).returncode == 0


def test_damage_is_a_finding_of_those_that_look_for_it(lastbit, files, tmp_path):
    assert run(lastbit, files, tmp_path, "verify X", files["no-step.lbz"]).returncode == 1
    whole = files["array.npy"].read_bytes()
    (tmp_path / "cut.npy").write_bytes(whole[:-8])
    assert run(lastbit, files, tmp_path, "audit X", tmp_path / "cut.npy").returncode == 1


def test_an_unreadable_file_failed(lastbit, files, tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    locked = tmp_path / "locked.lbz"
    locked.write_bytes(CLEAN.read_bytes())
    locked.chmod(0)
    for what, words in READS.items():
        assert run(lastbit, files, tmp_path, words, locked).returncode == FAILED, what


def test_a_file_that_is_no_journal_is_left_alone(lastbit, files, tmp_path):
    """A bisection goes on with a journal, and adds lines to it: not to a file of somebody else's."""
    for bad in ("prose", "program", "array.npy", "log.jsonl"):
        before = files[bad].read_bytes()
        done = lastbit.run("bisect", "-q", ROOT / "samples" / "scan-overflow.lbz", "--resume", "--journal", files[bad], expect=FAILED)
        assert "is not a journal" in done.stderr and files[bad].read_bytes() == before
    cut = tmp_path / "cut.journal"  # by a kill, while its head was written
    cut.write_text('{"schema":"lastbit.jour')
    lastbit.run("bisect", "-q", ROOT / "samples" / "scan-overflow.lbz", "--resume", "--journal", cut, expect=1)


def test_the_rule_is_said_on_every_page_of_help(lastbit):
    for command in {words.split()[0] for words in READS.values()}:
        text = " ".join(lastbit.run("help", command, expect=0).stdout.split())
        assert "125 nothing to judge, 128 failed (no such file or kind), 129 misused" in text
