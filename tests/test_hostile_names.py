"""Names of strangers through every command: JSON parses and holds them all, and nothing that a terminal would obey leaves (include/lastbit/text.h)."""

import io
import json
import os
import pickle
import re
import struct
import subprocess
import sys
import zipfile

import numpy
import pytest
from conftest import BUILD, ROOT
from spelt_names import BAD_LAYER, LAYERS, check_streams, hostile_names, spelt


def run(*words, expect=(0, 1, 125), **more):
    done = subprocess.run([BUILD / "lastbit", *words], capture_output=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"}, **more)
    assert done.returncode in ((expect,) if isinstance(expect, int) else expect), (words, done.returncode, done.stderr)
    check_streams(done)
    return done


def answer(command, *words, **more):
    done = run(command, "--json", *words, **more)
    return json.loads(done.stdout)


# ---- checkpoints ------------------------------------------------------------------------------------------------------


def write_safetensors(path, names, change=0.0):
    """Names of bytes as any other program may write them: a byte that is no UTF-8 stands as it is."""
    data, rows = b"", []
    for i, name in enumerate(names):
        text = json.dumps(name.decode("utf-8", "surrogateescape"), ensure_ascii=False).encode("utf-8", "surrogateescape")
        rows.append(text + b': {"dtype":"F32","shape":[2],"data_offsets":[%d,%d]}' % (len(data), len(data) + 8))
        data += numpy.array([i, i + 0.5 + change], numpy.float32).tobytes()
    head = b"{" + b",".join(rows) + b"}"
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)


def write_npz(path, names, change=0.0):
    """The names of a zip's members, patched in as bytes."""
    plain, data = ["n%07d" % i + "x" * (len(name) - 8 if len(name) > 8 else 0) for i, name in enumerate(names)], io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        for i, name in enumerate(plain):
            member = io.BytesIO()
            numpy.save(member, numpy.array([i, i + 0.5 + change], numpy.float32))
            file.writestr(zipfile.ZipInfo(name + ".npy"), member.getvalue())
    raw = data.getvalue()
    for name, stand_in in zip(names, plain):
        raw = raw.replace(stand_in.encode() + b".npy", name + b".npy")
    path.write_bytes(raw)


def write_torch(path, names, change=0.0):
    """As torch.save writes: a str of lone surrogates is what Python makes of bytes that are no UTF-8."""
    import torch

    tensors = {name.decode("utf-8", "surrogateescape"): torch.tensor([i, i + 0.5 + change]) for i, name in enumerate(names)}
    torch.save(tensors, path, _use_new_zipfile_serialization=True, pickle_module=pickle)


def expected(kind, names):
    if kind != "pt":
        return {spelt(name) for name in names}
    return {spelt(name.decode("utf-8", "surrogateescape")) for name in names}


@pytest.fixture(scope="module", params=["safetensors", "npz", "pt"])
def pair(request, tmp_path_factory):
    """Two checkpoints of one kind that differ in every tensor, and the names that they hold."""
    folder, kind = tmp_path_factory.mktemp(request.param), request.param
    names = hostile_names(3, 90, nul=kind != "npz", longest=3000)
    if kind == "npz":  # a stand-in is replaced by its name in the file, and libarchive takes a backslash for a slash
        names = [name for name in names if len(name) >= 8 and b"\\" not in name and b"/" not in name]
    write = {"safetensors": write_safetensors, "npz": write_npz, "pt": write_torch}[kind]
    write(folder / f"a.{kind}", names)
    write(folder / f"b.{kind}", names, 1.0)
    return folder / f"a.{kind}", folder / f"b.{kind}", expected(kind, names), names


def test_all_tensors_of_a_checkpoint_are_there(pair):
    first, second, names, raw = pair
    listed = answer("ls", "--values", first)["programs"][0]["value_list"]
    assert len(listed) == len(raw) and {value["name"] for value in listed} == names
    found = answer("diff", first, second, expect=1)
    assert {layer["layer"] for layer in found["layers"]} == names
    assert found["verdict"] == "diverged" and answer("diff", first, first, expect=0)["verdict"] == "identical"
    audited = answer("audit", first, "--against", second)
    assert audited["tensors"] == len(raw)
    for words in (
        ["ls", "--values", first],
        ["diff", first, second],
        ["audit", first, "--against", second],
        ["verify", first],
        ["fingerprint", first],
    ):
        run(*words, expect=(0, 1, 125, 128, 129))


def test_a_name_is_found_as_bytes_and_as_it_was_printed(pair):
    first, _, _, raw = pair
    for name in raw[::7]:
        form = spelt(name if first.suffix != ".pt" else name.decode("utf-8", "surrogateescape"))
        for given in {form.encode(), name} if b"\\" not in name and b"\0" not in name and first.suffix != ".pt" else {form.encode()}:
            (value,) = answer("show", first, "--name", given, expect=0)["values"]
            assert value["name"] == form


def test_names_that_begin_alike_lack_each_by_itself(tmp_path):
    """However long they are: what one side lacks is told whole, and counted once for each name."""
    long = [b"layers." + b"n" * length + b".%d" % i for length in (10, 600, 3000) for i in range(3)]
    write_safetensors(tmp_path / "a.safetensors", [b"same", *long])
    write_safetensors(tmp_path / "b.safetensors", [b"same"])
    found = answer("diff", tmp_path / "a.safetensors", tmp_path / "b.safetensors", expect=1)
    assert sorted(found["missing"]) == sorted(f"{name.decode()} is on the first side only" for name in long)


# ---- recorded runs -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    env = {**os.environ, "PYTHONPATH": str(ROOT / "capture"), "LASTBIT_LIB": str(BUILD / "liblastbit_capture.so"), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, ROOT / "tests/programs/hostile_names.py", folder], env=env, check=True, timeout=120)
    return folder


def recorded(name):
    """The recorder's interface is C: a NUL in a name of Python's goes as the two bytes that no other character has."""
    return spelt(name.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80"))


NAMES, BAD = {recorded(name) for name in LAYERS}, recorded(BAD_LAYER)


def test_all_layers_of_a_run_are_there(runs):
    assert NAMES <= {layer["layer"] for layer in answer("ls", "--layers", runs / "good.lb")["programs"][0]["layers"]}
    found = answer("diff", runs / "good.lb", runs / "bad.lb", expect=1)
    assert NAMES <= {layer["layer"] for layer in found["layers"]}
    assert found["first"]["layer"].startswith(BAD)


def test_the_culprit_of_a_failure_has_its_name(runs):
    found = answer("bisect", runs / "bad.lb", expect=1)
    assert found["outcome"] == "found" and BAD in json.dumps(found["culprit"], ensure_ascii=False).replace("\\\\", "\\")
    run("bisect", runs / "bad.lb", expect=1)
    checked = run("bisect", "--check", runs / "bad.lb", "--skip", "layer=^" + re.escape(BAD) + "$")
    assert checked.stdout


@pytest.mark.parametrize(
    "command",
    [
        ["ls", "--layers", "--ops", "--values", "good.lb"],
        ["ls", "--tables", "good.lb"],
        ["ls", "--receipt", "good.lb"],
        ["show", "good.lb", "--all"],
        ["verify", "good.lb"],
        ["diff", "good.lb", "bad.lb"],
        ["explain", "good.lb", "bad.lb"],
        ["replay", "good.lb"],
        ["ranks", "good.lb", "bad.lb"],
        ["watch", "good.lb"],
        ["pack", "good.lb", "-o", "good.lbz", "-f"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_commands_print_no_control(runs, command):
    words = [command[0], *(str(runs / word) if word.startswith(("good.", "bad.")) else word for word in command[1:])]
    run(*words)
    if command[:2] != ["ls", "--receipt"]:
        answer(*words)


def test_names_survive_a_pack(runs):
    run("pack", runs / "good.lb", "-o", runs / "again.lbz", "-f", expect=0)
    layers = [{layer["layer"] for layer in answer("ls", "--layers", runs / name)["programs"][0]["layers"]} for name in ("good.lb", "again.lbz")]
    assert layers[0] == layers[1] and answer("diff", runs / "good.lb", runs / "again.lbz", expect=0)["verdict"] == "identical"


def test_the_page_holds_no_control(runs):
    found = run("diff", "--json", "--html", runs / "page.html", runs / "good.lb", runs / "bad.lb", expect=1)
    (runs / "diff.json").write_bytes(found.stdout)
    run("report", runs / "diff.json", "-o", runs / "report.html", "--force", expect=(0, 129))
    for page in runs.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        text = text[: text.index("Chart.js")] if "Chart.js" in text else text
        assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e\u2066]", text)


# ---- logs, tokens, paths -----------------------------------------------------------------------------------------------


def test_a_log_of_strange_names(tmp_path):
    names = hostile_names(11, 60)
    rows = []
    for i in range(60):
        row = {
            "step": i,
            "loss": float("nan") if i == 50 else 2.0,
            "shard": names[i].decode("utf-8", "surrogateescape"),
            **{"x" + n.decode("utf-8", "surrogateescape"): 1.0 for n in names[:9]},
        }
        rows.append(json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogateescape"))
    (tmp_path / "log.jsonl").write_bytes(b"\n".join(rows) + b"\n")
    answer("watch", tmp_path / "log.jsonl", expect=1)
    run("watch", tmp_path / "log.jsonl", "--alarms", tmp_path / "alarms.jsonl", expect=(1, 129))
    (tmp_path / "log.txt").write_bytes(
        b"".join(b"step %d/60 | loss: %s | %s: 1\n" % (i, b"nan" if i == 50 else b"2.0", n.replace(b"\n", b"")) for i, n in enumerate(names))
    )
    run("watch", tmp_path / "log.txt")


def test_tokens_of_strange_texts(tmp_path):
    texts = [name.decode("utf-8", "surrogateescape") for name in hostile_names(12, 60)]
    for file, change in (("a.jsonl", 0.0), ("b.jsonl", 0.5)):
        row = {"id": texts[3], "tokens": texts, "logprobs": [-1.0 - change * (i % 3) for i in range(60)], "kinds": [texts[i % 7] for i in range(60)]}
        (tmp_path / file).write_bytes(json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n")
    compared = run("parity", "--json", tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    assert json.loads(compared.stdout)["tokens"]
    run("parity", "--heat", tmp_path / "a.jsonl", tmp_path / "b.jsonl")


@pytest.mark.parametrize("name", hostile_names(13, 44, nul=False)[3::4], ids=range(len(hostile_names(13, 44, nul=False)[3::4])))
def test_a_strange_path(tmp_path, name):
    """A file that is there, one that is not, and one that is nothing."""
    folder = os.path.join(os.fsencode(tmp_path), name.replace(b"/", b""))
    os.mkdir(folder)
    path = os.path.join(folder, b"w.safetensors")
    write_safetensors(tmp_path / "w.safetensors", [b"weight"])
    os.rename(tmp_path / "w.safetensors", path)
    found = answer("ls", path, expect=0)
    assert found["capture"].endswith("w.safetensors") and len(found["inputs"]) == 1
    for words in (
        ["ls", path],
        ["ls", path + b"x"],
        ["verify", folder],
        ["diff", path, path],
        ["audit", path],
        ["watch", path],
        ["show", path, name],
        [b"ls", b"--" + name],
        [name or b"x"],
    ):
        run(*words, expect=(0, 1, 125, 128, 129))
