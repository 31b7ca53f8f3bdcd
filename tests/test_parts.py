"""One question shared out: whatever the number of workers and whatever becomes of them, the answer has the bytes that one process gives.

Captures are of 20 ranks, more than a diff takes together, computed by make_ranks.c: each with a fault at a known place."""

import ctypes
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import BUILD, FULL, ROOT
from safetensors.numpy import save_file
from test_schemas import check

RANKS, LAYERS = 20, 4
FAULTS = {"poisoned": "poison=0:13:2", "flipped": "flip=0:1:6", "mismatched": "mismatch=0:6:1", "reordered": "order=tree"}
LASTBIT = str(BUILD / "lastbit")
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMPI_", "PMI", "RANK", "WORLD_SIZE"))}


def make(folder, *options):
    subprocess.run([BUILD / "tests/make_ranks", folder, f"ranks={RANKS}", f"layers={LAYERS}", "steps=2", *options], check=True, capture_output=True)


def save(path, tensors):
    """As safetensors; what is called optimizer.* is a state."""
    header, at = {}, 0
    for name, numbers in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(numbers.shape), "data_offsets": [at, at + numbers.nbytes]}
        at += numbers.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(each.tobytes() for each in tensors.values()))


def make_checkpoints(folder):
    """Twelve weights on either side: equal, rounded, transposed, changed in one element, of another shape, renamed, moved, and one that lacks."""
    draw = np.random.default_rng(7)
    one = {f"model.layers.{i}.up.weight": draw.standard_normal((24, 16), dtype=np.float32) for i in range(12)}
    other = {name: numbers.copy() for name, numbers in one.items()}
    names = list(one)
    other[names[1]] = (other[names[1]].view(np.uint32) & 0xFFFF0000).view(np.float32)
    other[names[2]] = np.ascontiguousarray(other[names[2]].T)
    other[names[3]][5, 7] += 1
    other[names[4]] = other[names[4]][:20].copy()
    other[names[5].removeprefix("model.")] = other.pop(names[5])
    other["elsewhere.weight"] = other.pop(names[6])
    other[names[7]], other[names[8]] = other[names[8]], other[names[7]]
    del other[names[9]]
    save(folder / "one.safetensors", one)
    save(folder / "other.safetensors", other)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with captures, in which all commands are run: parts are of files by the names that were typed."""
    folder = tmp_path_factory.mktemp("parts")
    make(folder / "clean.lb")
    make(folder / "same.lb")
    for name, option in FAULTS.items():
        make(folder / f"{name}.lb", option)
    make_checkpoints(folder)
    make(folder / "few.lb", "ranks=5")
    make(folder / "few-tree.lb", "ranks=5", "order=tree")
    torn = folder / "torn.lb"
    shutil.copytree(folder / "clean.lb", torn)
    archive = torn / "rank-00007.tar"
    broken = bytearray(archive.read_bytes())
    broken[len(broken) // 2] ^= 4
    archive.write_bytes(broken)
    one = archive.read_bytes()
    (folder / "one.tar").write_bytes((folder / "clean.lb" / archive.name).read_bytes())
    (folder / "one-torn.tar").write_bytes(one)
    shutil.copytree(folder / "clean.lb", folder / "checkpoint" / "inner")
    return folder


QUESTIONS = {
    "verify": ["verify", "clean.lb"],
    "verify, damaged": ["verify", "torn.lb"],
    "verify, one archive": ["verify", "one.tar"],
    "verify, one that is damaged": ["verify", "one-torn.tar"],
    "diff, the same": ["diff", "clean.lb", "same.lb"],
    "diff, poisoned": ["diff", "clean.lb", "poisoned.lb"],
    "diff, flipped": ["diff", "clean.lb", "flipped.lb"],
    "diff, mismatched": ["diff", "clean.lb", "mismatched.lb"],
    "diff, reordered": ["diff", "clean.lb", "reordered.lb", "--steps", "0-0"],
    "ranks": ["ranks", "flipped.lb"],
    "audit": ["audit", "one.safetensors"],
    "audit, against": ["audit", "one.safetensors", "--against", "other.safetensors"],
    "fingerprint": ["fingerprint", "clean.lb", "--against", "poisoned.lb", "--step", "1"],
    "explain": ["explain", "few.lb", "few-tree.lb"],
    "explain, budget": ["explain", "few.lb", "few-tree.lb", "--budget", "--table"],
    "explain, alone": ["explain", "few.lb", "--steps", "0-0"],
    "check": ["check", "few.lb", "--only", "memory"],
    "check, digits": ["check", "few.lb", "--only", "digits,gradient,step"],
    "check, a model": ["check", str(ROOT / "samples/clean.lbz")],
    "explain, a model": ["explain", *(str(ROOT / f"samples/{name}.lbz") for name in ("clean", "dropped-term")), "--routing", "--budget"],
}


FEW_UNITS = ("explain, alone", "explain, a model", "check", "check, digits", "check, a model", "ranks")


def run(place, *words, **more):
    return subprocess.run([LASTBIT, *words], cwd=place, capture_output=True, timeout=240, **{"env": PLAIN, **more})


@pytest.fixture(scope="module")
def alone(place):
    """The answers of one process, as text and as JSON."""
    return {name: (run(place, *words), run(place, *words, "--json")) for name, words in QUESTIONS.items()}


@pytest.mark.parametrize("name", QUESTIONS)
def test_parts_in_files(place, alone, tmp_path, name):
    text, answer = alone[name]
    assert answer.returncode in (0, 1, 125) and text.returncode == answer.returncode, answer.stderr
    draw = random.Random(name)
    for n in (1, 2, 3, 7):
        parts = [tmp_path / f"{n}-{i}" for i in range(n)]
        for i, part in enumerate(parts):
            made = run(place, *QUESTIONS[name], "--part", f"{i + 1}/{n}", "-o", part)
            assert (made.returncode, made.stdout) == (0, b""), made.stderr
        draw.shuffle(parts)
        merged = run(place, QUESTIONS[name][0], "--merge", *parts, "--json")
        assert (merged.returncode, merged.stdout) == (answer.returncode, answer.stdout)
        out = tmp_path / "answer"
        merged = run(place, QUESTIONS[name][0], "--merge", *parts[: max(1, n - 2)], "-o", out)  # two are lost
        assert (merged.returncode, out.read_bytes()) == (text.returncode, text.stdout)
        if name not in FEW_UNITS:  # of so few units that parts which are there may have all of them
            assert (b"in none of the parts" in merged.stderr) == (n > 1)


def start(place, words, number, workers, **how):
    env = {**PLAIN, "RANK": str(number), "WORLD_SIZE": str(workers), "TORCHELASTIC_RUN_ID": "one", "MASTER_PORT": "1"}
    return subprocess.Popen([LASTBIT, *words], cwd=place, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)


def shared(place, words, workers):
    """What all workers said together, and their codes."""
    started = [start(place, words, number, workers) for number in range(workers)]
    said = [worker.communicate(timeout=240) for worker in started]
    return b"".join(out for out, _ in said), [worker.returncode for worker in started], b"".join(err for _, err in said)


@pytest.mark.parametrize("name", QUESTIONS)
def test_workers_that_a_launcher_started(place, alone, name):
    _, answer = alone[name]
    out, codes, err = shared(place, [*QUESTIONS[name], "--json"], 3)
    assert out == answer.stdout, err
    assert sorted(codes) == sorted([answer.returncode, 0, 0])
    assert not list(place.glob("*.parts")), "the last worker takes the folder with it"


def test_the_places_are_named(alone):
    """By many ranks judged one by one as by few taken together (tests/capture/recorder/test_make_ranks.py)."""
    answers = {name: json.loads(alone[f"diff, {name}"][1].stdout) for name in FAULTS}
    poisoned = answers["poisoned"]["first"]
    assert (poisoned["step"], poisoned["rank"], poisoned["layer"], poisoned["op"]) == (0, 13, "layers.2", "aten::mm")
    flipped = answers["flipped"]["first"]
    assert flipped["op"] == "c10d::allreduce_" and "no order of the sum gives" in flipped["why"] and "bit" in flipped["why"]
    assert answers["mismatched"]["first"]["rank"] == 6 and answers["mismatched"]["verdict"] == "diverged"
    reordered = answers["reordered"]["earliest"]
    assert reordered["op"] == "c10d::allreduce_" and reordered["local"] == "reordered"
    assert "the first side's bits are those of ring, the second's of tree" in reordered["why"]
    assert json.loads(alone["diff, the same"][1].stdout)["verdict"] == "identical"


def test_what_other_ranks_brought_is_inherited(alone):
    """The poisoned rank alone has an op of its own that diverged; what all others have from it is inherited."""
    layers = json.loads(alone["diff, poisoned"][1].stdout)["layers"]
    own = {layer["rank"] for layer in layers if layer["local"] == "diverged" and layer["step"] == 0}
    assert own == {13}
    others = [layer for layer in layers if layer["rank"] != 13 and layer["verdict"] != "identical"]
    assert len({layer["rank"] for layer in others}) == RANKS - 1
    assert all(layer["inherited"] == "diverged" for layer in others)


@pytest.mark.parametrize("name", ["audit, against", "explain", "explain, a model", "check", "check, a model"])
def test_each_part_has_units_of_its_own(place, tmp_path, name):
    """A step of a rank is one, or a step: neither of two parts is left without."""
    for i in (1, 2):
        part = tmp_path / f"{i}"
        assert run(place, *QUESTIONS[name], "--part", f"{i}/2", "-o", part).returncode == 0
        assert len(frames(part.read_bytes())) > 1  # the first is the command


@pytest.mark.parametrize("name", ["diff, poisoned", "explain, budget", "check, a model"])
@pytest.mark.parametrize("round", range(3 if not FULL else 30))
def test_killed_workers(place, alone, tmp_path, round, name):
    """Three of four are killed at any time; the fourth, or one that is started afterwards, answers."""
    _, answer = alone[name]
    draw = random.Random(round)
    folder = tmp_path / "shared"
    words = [LASTBIT, *QUESTIONS[name], "--json", "--parts", folder]
    started = [subprocess.Popen(words, cwd=place, env=PLAIN, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(4)]
    for worker in started[1:]:
        time.sleep(draw.random() * 0.1)
        worker.send_signal(signal.SIGKILL)
    said = [worker.communicate(timeout=240)[0] for worker in started]
    out = b"".join(said)
    assert out == answer.stdout or (answer.stdout.startswith(out) and any(said[1:]))  # one was killed while it answered: the folder has all of it
    assert {worker.returncode for worker in started} <= {-signal.SIGKILL, 0, answer.returncode}
    again = run(place, QUESTIONS[name][0], "--merge", folder, "--json")
    assert (again.returncode, again.stdout) == (answer.returncode, answer.stdout)
    late = subprocess.run(words, cwd=place, env=PLAIN, capture_output=True, timeout=240)
    assert (late.returncode, late.stdout) == (0, b"")


def test_parts_of_what_has_changed_are_refused(place, tmp_path):
    shutil.copytree(place / "few.lb", tmp_path / "few.lb")
    assert run(tmp_path, "verify", "few.lb", "--part", "1/2", "-o", "part").returncode == 0
    make(tmp_path / "other.lb", "ranks=5", "order=tree")
    shutil.rmtree(tmp_path / "few.lb")
    (tmp_path / "other.lb").rename(tmp_path / "few.lb")
    refused = run(tmp_path, "verify", "--merge", "part")
    assert refused.returncode == 129 and b"another question, of files that have changed since" in refused.stderr
    elsewhere = run(place, "verify", "--merge", tmp_path / "part")
    assert elsewhere.returncode == 129 and b"merge there" in elsewhere.stderr


@pytest.mark.parametrize(
    "words, code, message",
    [
        (["verify", "few.lb", "--part", "0/3", "-o", "x"], 129, b"expected I/N with I from 1 to N"),
        (["verify", "few.lb", "--part", "4/3", "-o", "x"], 129, b"expected I/N with I from 1 to N"),
        (["verify", "few.lb", "--part", "1/2"], 129, b"-o FILE says where the part goes"),
        (["verify", "few.lb", "--part", "1/2", "-o", "x", "--parts", "y"], 129, b"--part and --parts"),
        (["verify", "--merge"], 129, b"expected files of --part"),
        (["verify", "--merge", "few.lb/rank-00000.tar"], 128, b"no part of lastbit's"),
        (["verify", "--merge", "nowhere"], 128, b"nowhere"),
        (["verify", "few.lb", "--parts", "few.lb/rank-00000.tar"], 128, b"is not a folder"),
        (["verify", "nowhere.lb", "--part", "1/2", "-o", "x"], 128, b"nowhere.lb"),
        (["verify", "few.lb", "-o", "few.lb/rank-00000.tar"], 128, b"few.lb/rank-00000.tar"),
    ],
)
def test_what_is_wrong_is_said(place, words, code, message):
    said = run(place, *words)
    assert said.returncode == code and message in said.stderr and said.stdout == b""
    assert not (place / "x").exists()
    assert run(place, "verify", "few.lb").returncode == 0


def test_workers_that_all_fail_leave_nothing(place):
    out, codes, err = shared(place, ["verify", "nowhere.lb"], 3)
    assert (out, codes) == (b"", [128] * 3) and err.count(b"nowhere.lb") == 3
    assert not list(place.glob("*.parts"))


def test_workers_that_know_no_start_are_told_what_to_do(place):
    """MPICH's launcher over several hosts says who one is, and not of which start."""
    said = run(place, "verify", "few.lb", env={**PLAIN, "PMI_RANK": "0", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"})
    assert said.returncode == 129 and b"--parts FOLDER" in said.stderr
    off = run(place, "verify", "few.lb", "--parts", "off", env={**PLAIN, "PMI_RANK": "0", "PMI_SIZE": "4"})
    assert off.returncode == 0 and off.stdout


def test_a_trainer_asks_for_itself(place, tmp_path):
    """lastbit.diff in one of the processes that torchrun started: the others do not ask, and the answer is this one's."""
    env = {**PLAIN, "RANK": "3", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "one", "PYTHONPATH": str(ROOT / "capture"), "LASTBIT_BUILD": str(BUILD)}
    script = f"import lastbit; print(lastbit.diff('{place}/few.lb', '{place}/few-tree.lb')['verdict'])"
    said = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert not list(tmp_path.iterdir())  # nor is a folder left, in which others were waited for
    assert said.stdout.strip() in ("rounding", "reordered"), said


def test_a_batch_script_is_no_worker(place):
    """Slurm's variables stand in a batch script, too, in which no srun has started anything."""
    env = {**PLAIN, "SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "64"}
    said = run(place, "verify", "few.lb", env=env)
    assert said.returncode == 0 and said.stdout and not list(pathlib.Path(place).glob("*.parts"))


def sealed(body):
    """A frame of a part around `body`: its digest is right, whatever the body says."""

    class Digest(ctypes.Structure):
        _fields_ = [("hi", ctypes.c_uint64), ("lo", ctypes.c_uint64)]

    digest = ctypes.CDLL(str(BUILD / "liblastbit.so")).lb_digest_bytes
    digest.argtypes, digest.restype = [ctypes.c_char_p, ctypes.c_size_t], Digest
    value = digest(body, len(body))
    return b"LBPART1\n" + len(body).to_bytes(8, "little") + value.hi.to_bytes(8, "big") + value.lo.to_bytes(8, "big") + body


def frames(part):
    """The bodies of a part's frames."""
    bodies, at = [], 0
    while at < len(part):
        size = int.from_bytes(part[at + 8 : at + 16], "little")
        bodies.append(part[at + 32 : at + 32 + size])
        at += 32 + size
    return bodies


@pytest.mark.parametrize(
    "name", ["audit, against", "check", "check, a model", "explain", "explain, a model", "ranks", "diff, poisoned", "verify, damaged"]
)
def test_a_part_with_a_right_digest_is_not_believed(place, tmp_path, name):
    """Bytes changed at random within a record: an answer or a refusal, and never a lack of memory or a signal."""
    part, draw = tmp_path / "part", random.Random(name)
    assert run(place, *QUESTIONS[name], "--part", "1/1", "-o", part).returncode == 0
    bodies = frames(part.read_bytes())
    assert b"".join(map(sealed, bodies)) == part.read_bytes()
    refused = 0
    for _ in range(400 if FULL else 25):
        changed = [bytearray(body) for body in bodies]
        body = draw.choice(changed[1:])  # the first is the command, which has to be the same
        for _ in range(draw.choice([1, 1, 2, 8])):
            body[draw.randrange(len(body))] = draw.choice([0, 0x7F, 0x80, 0xC3, 0xFF, draw.randrange(256)])
        part.write_bytes(b"".join(sealed(bytes(each)) for each in changed))
        merged = run(place, QUESTIONS[name][0], "--merge", part, "--json")
        other = merged.returncode == 129 and b"is a part of another question" in merged.stderr  # what changed was whose record it is
        assert other or merged.returncode in (0, 1, 125, 128), (merged.returncode, merged.stderr)
        assert b"out of memory" not in merged.stderr, merged.stderr
        refused += merged.returncode == 128
    assert refused


def objects(body):
    """The MessagePack objects of a body: their kind, where they begin and end, and where the bytes of one begin."""
    found, at = [], 0
    while at < len(body):
        first, start = body[at], at
        if first < 0x80 or first >= 0xE0:
            at += 1
        elif 0xCC <= first <= 0xD3:
            at += 1 + (1 << (first & 3))
        elif 0xC4 <= first <= 0xC6:
            head = at + 1 + (1 << (first - 0xC4))
            at = head + int.from_bytes(body[at + 1 : head], "big")
            found.append(("bytes", start, at, head))
            continue
        else:
            return []  # no record: a program, an answer in JSON
        found.append(("number", start, at, at))
    return found if at == len(body) else []


def packed(number):
    return (b"\xcf" if number >= 0 else b"\xd3") + (number % 2**64).to_bytes(8, "big")


NUMBERS = [0, 1, -1, 2, 9, 17, 255, 65535, 2**31 - 1, -(2**31), 2**32 - 1, 2**48, 2**53, 2**63 - 1, -(2**63), 0x7FF0 << 48, 0x7FF8 << 48]
BYTES = [b"", b"\0", b"\xff\xfe\0", b"\x1b[31mred\0", "\u202e".encode() + b"\0", b"a" * 5000 + b"\0"]


def lies(body, nested=True):
    """Changes of one field of a body, or of one of its records: begin, end and the bytes that stand there instead."""
    fields = objects(body)
    for i, (kind, start, end, inside) in enumerate(fields):
        if kind == "number":
            yield from ((start, end, packed(number)) for number in NUMBERS)
            if body[start:end] == b"\1" and i + 1 < len(fields) and fields[i + 1][0] == "bytes":
                yield start, fields[i + 1][2], b"\0"  # a text that is not there
        elif nested and objects(body[inside:end]):
            for first, last, instead in lies(body[inside:end], nested=False):
                record = body[inside : inside + first] + instead + body[inside + last : end]
                yield start, end, b"\xc6" + len(record).to_bytes(4, "big") + record
        else:
            yield from ((start, end, b"\xc6" + len(text).to_bytes(4, "big") + text) for text in BYTES)


FIELDS = {name: QUESTIONS[name] for name in ("verify, damaged", "diff, poisoned", "diff, mismatched", "ranks", "fingerprint")}
FIELDS["audit"] = ["audit", "weights"]
FIELDS["fingerprint, weights"] = ["fingerprint", "weights"]


@pytest.mark.parametrize("name", FIELDS)
def test_no_field_of_a_record_is_believed(place, tmp_path, name):
    """One field says something else, and the digest is right: an answer as its schema has it, or a refusal that names the part."""
    words = FIELDS[name]
    if words[1] == "weights" and not (place / "weights").exists():
        (place / "weights").mkdir()
        rng = np.random.default_rng(0)
        tensors = {f"model.layers.{i}.mlp.{which}.weight": rng.standard_normal((64, 32)).astype("f4") for i in range(3) for which in ("up", "down")}
        save_file({**tensors, "model.norm.weight": np.ones(32, "f4")}, place / "weights" / "model.safetensors")
    part, draw = tmp_path / "part", random.Random(name)
    assert run(place, *words, "--part", "1/1", "-o", part).returncode == 0
    bodies = frames(part.read_bytes())
    changes = [(i, *change) for i, body in enumerate(bodies) if i for change in lies(body)]
    answered = refused = 0
    for i, start, end, instead in draw.sample(changes, 2000 if FULL else 60):
        changed = bodies[i][:start] + instead + bodies[i][end:]
        part.write_bytes(b"".join(sealed(body if k != i else changed) for k, body in enumerate(bodies)))
        json_too = draw.random() < 0.5
        merged = run(place, words[0], "--merge", part, *(["--json"] if json_too else []))
        what = (i, start, instead, merged.returncode, merged.stderr)
        assert merged.returncode in (0, 1, 125, 128, 129), what
        if merged.returncode >= 128:
            assert str(part).encode() in merged.stderr and b"out of memory" not in merged.stderr, what
            refused += 1
            continue
        answered += 1
        said = (merged.stdout + merged.stderr).decode()
        assert "(null)" not in said and "\x1b" not in said and "\u202e" not in said, what
        if json_too:
            check(words[0], json.loads(merged.stdout))
    assert answered and refused
