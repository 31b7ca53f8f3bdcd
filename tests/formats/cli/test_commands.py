"""ls, show, verify, recover and pack on captures as people have them: recorded from a real run, one process and four."""

import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tarfile
import time

import numpy as np
import pytest
from conftest import BUILD, ROOT
from second_reader import Capture

SAMPLE = ROOT / "samples" / "hybrid_lm.py"
CLEAN = ROOT / "samples" / "clean.lbz"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("commands")


def recorded(lastbit, folder, name, *args, options=()):
    path = folder / f"{name}.lb"
    lastbit.record(path, "samples/hybrid_lm.py", *args, options=options, expect=0)
    return path


@pytest.fixture(scope="module")
def run(lastbit, folder):
    """Two steps of one process, everything kept."""
    return recorded(lastbit, folder, "run", "--steps", "2")


@pytest.fixture(scope="module")
def four(lastbit, folder):
    """One step of four processes, layer values kept, in bf16."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return recorded(
        lastbit, folder, "four", "--steps", "1", "--spawn", "4", "--port", str(port), "--precision", "bf16", options=("--level", "layers")
    )


@pytest.fixture(scope="module")
def made(folder):
    subprocess.run([BUILD / "tests" / "make_captures", folder], check=True)
    return folder / "closed.lb"


# ---- ls --------------------------------------------------------------------------------------------------------------


def test_ls_says_what_was_recorded_and_kept(lastbit, run):
    text = lastbit.run("ls", run, expect=0).stdout
    assert text.startswith(f"{run}: 1 rank, 2 steps (0 to 1), ")
    assert re.search(r"recorded \d{4}-\d\d-\d\d \d\d:\d\d UTC by \S*hybrid_lm.py --steps 2; .*torch \d", text)
    for line in (
        r"^rank 0 of 1, step 1: level ops$",
        r"^  \d+ ops: \d+ forward \d+ backward \d+ optimizer; 47 layers; \d+ values$",
        r"^  kept: (\d+) of \1 sources \(\S+ KB\), (\d+) of \2 layer inputs and outputs \(",
        r"^  loss \S+, item \d+ times, grad_norm ",
        r"^  Muon group 0: 19 parameters, lr 0.02,",
        r"^  AdamW group 0: .*weight_decay 0.01",
    ):
        assert re.search(line, text, re.M), line
    assert "did not end its recording" not in text


def test_ls_json_agrees_with_itself(lastbit, run):
    told = lastbit.json("ls", run, "--step", "1", "--layers", "--ops", "--values", "--tables", expect=0)
    (program,) = told["programs"]
    assert sum(program["phases"].values()) == program["ops"] == len(program["op_list"])
    assert sum(kind["values"] for kind in program["kept"].values()) == program["values"] == len(program["value_list"])
    assert sum(value["kept"] for value in program["value_list"]) == sum(kind["kept"] for kind in program["kept"].values())
    assert sum(layer["ops"] for layer in program["layers"]) == program["ops"]
    assert {"Muon", "AdamW"} == {group["optimizer"] for group in program["optimizers"]}
    assert "embed.weight" in {name for group in program["optimizers"] for name in group["parameters"]}
    mm = next(op for op in program["op_list"] if op["name"] == "aten::mm")
    assert len(mm["inputs"]) == 2 and program["value_list"][mm["results"][0]]["op"] == mm["op"]
    assert told["tables"][0]["tables"]["receipt"]["versions"]["torch"]


@pytest.mark.parametrize("level", ["stats", "sources", "layers"])
def test_each_level_keeps_what_it_says(lastbit, folder, level):
    path = recorded(lastbit, folder, level, "--steps", "1", "--pattern", "AD", options=("--level", level))
    (program,) = lastbit.json("ls", path, expect=0)["programs"]
    whole = {kind: k["values"] > 0 and k["kept"] == k["values"] for kind, k in program["kept"].items()}
    assert program["level"] == level
    assert whole == {"sources": level != "stats", "layers": level == "layers", "ops": False}
    if level == "stats":
        assert f"0 of {program['kept']['sources']['values']} sources (0 bytes)" in lastbit.run("ls", path, expect=0).stdout
        refused = lastbit.run("show", path, "--value", "7", "--npy", folder / "none.npy", expect=125).stderr
        assert "were not kept (level stats): record with --level ops" in refused
        (shown,) = lastbit.json("show", path, "--value", "7", expect=0)["values"]
        assert not shown["kept"] and shown["statistics"]["elements"] > 0


def test_ls_of_ops_reads_like_a_program(lastbit, run):
    text = lastbit.run("ls", run, "--step", "0", "--ops", expect=0).stdout
    assert re.search(r"^ +\d+ forward +embed +aten::embedding\(v5, v1, -1, false, false\) -> v6:f32\[2,16,32\]$", text, re.M)
    assert re.search(r"^ +\d+ optimizer .*aten::addcdiv_\(v\d+, v\d+, .*\) -> .* writes v\d+:f32\[", text, re.M)


def test_ls_of_many_programs_is_a_line_each(lastbit, folder):
    path = recorded(lastbit, folder, "many", "--steps", "10", "--pattern", "D", options=("--level", "stats"))
    lines = lastbit.run("ls", path, expect=0).stdout.splitlines()
    heading = next(i for i, line in enumerate(lines) if line.split()[:3] == ["step", "rank", "level"])
    rows = [line.split() for line in lines[heading + 1 :]]
    assert [row[:3] for row in rows] == [[str(step), "0", "stats"] for step in range(10)]
    assert all(row[-4] == "loss" and float(row[-3]) > 0 for row in rows)


def test_ls_of_ranks_and_collectives(lastbit, four):
    told = lastbit.json("ls", four, expect=0)
    assert told["ranks"] == [0, 1, 2, 3] and len(told["programs"]) == 4
    assert all(program["collectives"] > 0 and program["phases"]["communication"] > 0 for program in told["programs"])
    assert "collectives: " in lastbit.run("ls", four, "--rank", "2", expect=0).stdout
    one = lastbit.json("ls", four / "rank-00002.tar", expect=0)
    assert one["ranks"] == [2] and one["programs"] == [told["programs"][2]]


@pytest.mark.parametrize(
    "args,code,says",
    [
        (("nothing.lb",), 128, "nothing.lb"),
        (("{run}", "--step", "9"), 128, "no such step or rank"),
        (("{run}", "--step", "x"), 129, "take a number"),
        ((), 129, "expected CAPTURE"),
        (("{run}", "{run}"), 129, "expected CAPTURE"),
        (("{sample}",), 128, "this is not a lastbit archive"),
    ],
)
def test_ls_refuses(lastbit, run, args, code, says):
    done = lastbit.run("ls", *[str(a).format(run=run, sample=SAMPLE) for a in args], expect=code)
    assert says in done.stderr and done.stdout == ""


TAPPED = """
import sys
sys.path.insert(0, %r)
import torch
from lastbit.torch import tap
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 3)
    def forward(self, x):
        y = tap("the middle", self.net(x))
        return y * 2 if y.sum().item() > 0 else y
torch.manual_seed(0)
Net()(torch.ones(2, 4))
"""


def test_taps_and_decisions_are_listed_and_shown(lastbit, folder):
    program, path = folder / "marks.py", folder / "marks.lb"
    program.write_text(TAPPED % str(ROOT / "capture"))
    lastbit.run("record", "-o", path, "--", sys.executable, program, expect=0)
    text = lastbit.run("ls", path, expect=0).stdout
    value = int(re.search(r"^  tap 'the middle': v(\d+) f32\[2,3\], kept$", text, re.M).group(1))
    assert re.search(r"^  1 decision: 1 aten::_local_scalar_dense$", text, re.M), text
    (told,) = lastbit.json("ls", path, expect=0)["programs"]
    assert told["taps"] == [{"name": "the middle", "value": value, "dtype": "f32", "shape": [2, 3], "kept": True}]
    (decision,) = told["decisions"]
    assert decision["name"] == "aten::_local_scalar_dense" and decision["phase"] == "forward" and len(decision["inputs"]) == 1
    shown = lastbit.json("show", path, "the middle", expect=0)["values"]
    assert [v["value"] for v in shown] == [value] and shown[0]["shape"] == [2, 3]
    assert "no value fits 'the end'" in lastbit.run("show", path, "the end", expect=128).stderr


# ---- show ------------------------------------------------------------------------------------------------------------


def exported(lastbit, tmp_path, capture, value, *options):
    path = tmp_path / f"v{value}{len(options)}{abs(hash(options))}.npy"
    done = lastbit.run("show", capture, "--value", value, "--npy", path, *options, expect=0)
    return np.load(path), done


def values_of(lastbit, capture, *options):
    return lastbit.json("ls", capture, "--values", *options, expect=0)["programs"][0]["value_list"]


@pytest.mark.parametrize("dtype", ["f32", "i64", "bool"])
def test_show_agrees_with_numpy(lastbit, run, tmp_path, dtype):
    value = max((v for v in values_of(lastbit, run, "--step", "0") if v["dtype"] == dtype and v["kept"]), key=lambda v: np.prod(v["shape"]))
    array, _ = exported(lastbit, tmp_path, run, value["value"])
    (shown,) = lastbit.json("show", run, "--value", value["value"], "--limit", "50", "--histogram", expect=0)["values"]
    flat = array.reshape(-1).astype(np.float64)
    assert shown["shape"] == list(array.shape) and shown["elements"] == flat[:50].tolist()
    assert shown["statistics"]["min"] == flat.min() and shown["statistics"]["max"] == flat.max()
    assert shown["statistics"]["sum"] == pytest.approx(flat.sum(), rel=1e-12) and shown["statistics"]["zero"] == (flat == 0).sum()
    exponents, counts = np.unique(np.frexp(flat[flat != 0])[1] - 1, return_counts=True)
    assert shown["histogram"] == {str(e): n for e, n in zip(exponents, counts)}


@pytest.mark.parametrize(
    "text,index",
    [
        ("0", np.s_[0]),
        ("1,2:5", np.s_[1, 2:5]),
        ("...,::3", np.s_[..., ::3]),
        ("-1,-4:,1", np.s_[-1, -4:, 1]),
        ("[:,0,:]", np.s_[:, 0, :]),
        ("5:", np.s_[5:]),
    ],
)
def test_a_slice_is_numpys(lastbit, run, tmp_path, text, index):
    array, _ = exported(lastbit, tmp_path, run, 7)
    part, _ = exported(lastbit, tmp_path, run, 7, "--slice", text)
    (shown,) = lastbit.json("show", run, "--value", "7", "--slice", text, "--limit", "100000", expect=0)["values"]
    assert array.ndim == 3 and np.array_equal(part, array[index])
    assert shown["slice_shape"] == list(array[index].shape) and shown["statistics"]["elements"] == array[index].size
    assert shown["elements"] == array[index].reshape(-1).astype(np.float64).tolist()


def test_slices_of_four_bits(lastbit, made, tmp_path):
    number = next(v["value"] for v in values_of(lastbit, made, "--rank", "0", "--step", "0") if v["name"] == "source.e2m1")
    array, done = exported(lastbit, tmp_path, made, number)
    part, _ = exported(lastbit, tmp_path, made, number, "--slice", "1::2")
    assert np.array_equal(part, array[1::2]) and array.dtype == np.float32 and "NumPy has no e2m1" in done.stderr


def test_integers_are_shown_to_the_last_digit(lastbit, tmp_path):
    for dtype, numbers in {"i8": [2**63 - 1, -(2**63), 2**53 + 1], "u8": [2**64 - 1, 2**63, 7]}.items():
        np.save(tmp_path / "n.npy", np.array(numbers, f"<{dtype}"))
        text = lastbit.run("show", tmp_path / "n.npy", expect=0).stdout
        assert "  [0] " + " ".join(map(str, numbers)) in text
        (shown,) = lastbit.json("show", tmp_path / "n.npy", expect=0)["values"]
        assert [int(x) for x in shown["elements"]] == numbers


def test_show_selects_by_name_layer_and_op(lastbit, run):
    def numbers(*select):
        return [v["value"] for v in lastbit.json("show", run, "--step", "0", *select, expect=0)["values"]]

    listed = values_of(lastbit, run, "--step", "0")
    ops = lastbit.json("ls", run, "--step", "0", "--ops", expect=0)["programs"][0]["op_list"]
    assert numbers("embed.weight") == numbers("--name", "embed.weight") == [v["value"] for v in listed if v["name"] == "embed.weight"]
    mms = [op["results"][0] for op in ops if op["name"] == "aten::mm"]
    assert numbers("mm") == numbers("--op", "aten::mm") == mms
    inside = numbers("layers.0.attention")
    assert numbers("--layer", "layers.0.attention", "--op", "mm") == [v for v in mms if v in inside] != []
    assert numbers("--op", str(ops[4]["op"])) == ops[4]["results"]
    text = lastbit.run("show", run, "embed.weight", expect=0).stdout
    assert "embed.weight, parameter, source: parameter" in text and ", gradient" in text and "--value V one of them" in text


@pytest.mark.parametrize(
    "args,code,says",
    [
        (("nobody",), 128, "no value fits 'nobody'"),
        (("--value", "7", "--slice", "0,99"), 128, "index 99 is out of range"),
        (("--value", "7", "--slice", "a"), 128, "write it as in NumPy"),
        (("mm", "--npy", "x.npy"), 128, "takes one value"),
        (("--step", "8"), 128, "recorded no step 8"),
        (("--limit", "-1"), 129, "take a number"),
    ],
)
def test_show_refuses(lastbit, run, tmp_path, args, code, says):
    assert says in lastbit.run("show", run, *args, expect=code, cwd=tmp_path).stderr


# ---- verify and recover ------------------------------------------------------------------------------------------------


def test_verify_finds_a_wrong_byte_and_recover_keeps_the_rest(lastbit, run, tmp_path):
    assert lastbit.json("verify", run, expect=0)["verdict"] == "whole"
    data = bytearray((run / "rank-00000.tar").read_bytes())
    at = data.index(b"aten::embedding", len(data) // 2)
    data[at] ^= 1
    broken = tmp_path / "rank-00000.tar"
    broken.write_bytes(data)
    told = lastbit.json("verify", broken, expect=1)
    assert told["verdict"] == "damaged" and told["damages"] == len(told["findings"]) == 1
    assert re.match(rf"{broken}: offset \d+: .*program", told["findings"][0]["message"])
    assert "next: `lastbit recover" in lastbit.run("verify", broken, expect=1).stdout
    saved = lastbit.json("recover", broken, "-o", tmp_path / "saved.tar", expect=1)
    assert (saved["programs"], saved["lost_programs"], saved["lost_blobs"], saved["places"]) == (1, 1, 0, 0)
    assert lastbit.json("verify", tmp_path / "saved.tar", expect=0)["damages"] == 0
    assert "exists" in lastbit.run("recover", broken, "-o", tmp_path / "saved.tar", expect=128).stderr
    assert "nothing was lost" in lastbit.run("recover", run, "-o", tmp_path / "copy.lb", expect=0).stdout


def test_a_killed_recording_is_whole_up_to_its_last_step(lastbit, tmp_path):
    path = tmp_path / "killed.lb"
    job = subprocess.Popen(
        [lastbit.path, "record", "-o", path, "--", sys.executable, SAMPLE, "--steps", "100000", "--pattern", "D"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    archive = path / "rank-00000.tar"
    deadline = time.time() + 60
    while time.time() < deadline and (not archive.exists() or archive.stat().st_size < 3_000_000):
        time.sleep(0.05)
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    listed = lastbit.json("ls", path, expect=0)
    assert len(listed["steps"]) > 1 and all(program["complete"] for program in listed["programs"])
    assert "did not end its recording" in lastbit.run("ls", path, expect=0).stdout
    told = lastbit.json("verify", path, expect=0)
    assert told["closed"] == 0 and told["damages"] == told["missing"] == 0
    lastbit.run("recover", path, expect=(0, 1))
    again = lastbit.json("verify", tmp_path / "killed.recovered.lb", expect=0)
    assert again["closed"] == 1 and again["programs"] >= told["programs"] and again["blobs"] >= told["blobs"]


def test_what_is_cut_behind_a_commit_is_whole_so_far(lastbit, run, tmp_path):
    """FORMAT.md: nothing in the file tells it from one that goes on; and what tar says to cuts, behind a commit and elsewhere."""
    whole = run / "rank-00000.tar"
    with tarfile.open(whole) as archive:
        members = [(member.name, member.offset, (member.offset_data + member.size + 511) // 512 * 512) for member in archive]
    commits = [end for name, _, end in members if name.startswith("commit/")]
    assert len(commits) >= 3
    cut = tmp_path / "cut.tar"

    def listed(end):
        cut.write_bytes(whole.read_bytes()[:end])
        return subprocess.run(["tar", "-tf", cut], capture_output=True, text=True)

    for end in commits[1:]:
        done = listed(end)
        assert done.returncode == 0 and not done.stderr, done.stderr
        told = lastbit.json("verify", cut, expect=0)
        assert (told["verdict"], told["closed"], told["may_go_on"]) == ("whole", 0, 1)
        text = lastbit.run("verify", cut, expect=0).stdout
        assert "whole so far" in text and "1 may go on" in text
    assert lastbit.json("verify", whole, expect=0)["may_go_on"] == 0 and "so far" not in lastbit.run("verify", whole, expect=0).stdout
    for name, begin, end in members[4:12:3]:
        done = listed((begin + end) // 2 | 1)
        before = [other for other, _, until in members if until <= begin]
        assert done.returncode == 2 and done.stdout.split()[: len(before)] == before, (name, done.stderr)
    (tmp_path / "whole.tar").unlink(missing_ok=True)
    lastbit.run("recover", cut, "-o", tmp_path / "whole.tar", expect=(0, 1))
    assert subprocess.run(["tar", "-tf", tmp_path / "whole.tar"], capture_output=True).returncode == 0


# ---- pack --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def packed(lastbit, run, four):
    for capture in (run, four):
        lastbit.run("pack", capture, expect=0)
    return run.with_suffix(".lbz"), four.with_suffix(".lbz")


def test_a_packed_capture_tells_the_same(lastbit, run, four, packed):
    for capture, pack in zip((run, four), packed):
        a, b = (lastbit.json("ls", path, "--values", "--ops", expect=0) for path in (capture, pack))
        assert a["programs"] == b["programs"] and a["ranks"] == b["ranks"]
        assert lastbit.json("verify", pack, expect=0)["missing"] == 0
        assert pack.stat().st_size < sum(f.stat().st_size for f in capture.iterdir())
    shown = [lastbit.json("show", path, "--value", "6", "--step", "1", expect=0)["values"] for path in (run, packed[0])]
    assert shown[0] == shown[1] and shown[0][0]["kept"]


def test_pack_chooses_steps_and_ranks_and_overwrites_only_when_told(lastbit, four, run, tmp_path):
    lastbit.run("pack", four, "--ranks", "1-2", "-o", tmp_path / "two.lbz", expect=0)
    assert lastbit.json("ls", tmp_path / "two.lbz", expect=0)["ranks"] == [1, 2]
    lastbit.run("pack", run, "--steps", "1", "-o", tmp_path / "one.lbz", expect=0)
    assert lastbit.json("ls", tmp_path / "one.lbz", expect=0)["steps"] == [1]
    assert "--force replaces it" in lastbit.run("pack", run, "-o", tmp_path / "one.lbz", expect=128).stderr
    lastbit.run("pack", run, "-o", tmp_path / "one.lbz", "--force", expect=0)
    assert "nothing to pack" in lastbit.run("pack", run, "--steps", "7", "-o", tmp_path / "no.lbz", expect=128).stderr
    assert not (tmp_path / "no.lbz").exists()
    assert "--strip takes" in lastbit.run("pack", run, "--strip", "secrets", expect=129).stderr


PARAMETER, INPUT, BATCH = 8, 64, 3


def chosen_bytes(capture, flag, source):
    """Bytes of the parameters, or of the batches, of 64 bytes and more, and casts of them to other floats."""
    for program in capture.programs.values():
        values = program["values"]
        for v in range(values["rows"]):
            data = capture.value(program, v)
            if (values["flags"][v] & flag or values["source"][v] == source) and data and len(set(data)) > 8 and len(data) >= 64:
                yield data
                if values["dtype"][v] == 3:
                    yield (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).tobytes()


@pytest.mark.parametrize("strip,flag,source", [("data", INPUT, BATCH), ("params", PARAMETER, 1)])
def test_stripped_bytes_are_nowhere_in_the_file(lastbit, run, four, tmp_path, strip, flag, source):
    for capture in (run, four):
        out = tmp_path / f"{capture.stem}.lbz"
        lastbit.run("pack", capture, "-o", out, "--strip", strip, expect=0)
        secrets = set(chosen_bytes(Capture(str(capture)), flag, source))
        left = Capture(str(out))
        everything = b"\0".join(left.blobs.values())
        assert secrets and not [s for s in secrets if s in everything]
        assert f"packed without: {strip}" in lastbit.run("ls", out, expect=0).stdout
        told = lastbit.json("verify", out, expect=0)
        assert told["damages"] == 0 and told["missing"] > 0
        assert left.programs.keys() == Capture(str(capture)).programs.keys()


def test_the_second_reader_reads_what_was_recorded_and_packed(lastbit, run, packed):
    for path in (run, *packed):
        capture = Capture(str(path))
        for theirs in lastbit.json("ls", path, "--values", "--ops", expect=0)["programs"]:
            program = capture.programs[theirs["rank"], theirs["step"]]
            strings, values, ops = program["strings"], program["values"], program["ops"]
            assert [strings[row] for row in ops["name"]] == [op["name"] for op in theirs["op_list"]]
            assert [strings[program["scopes"]["path"][row]] for row in ops["scope"]] == [op["layer"] for op in theirs["op_list"]]
            assert [digest.hex() for digest in values["logical"]] == [v["digest"] for v in theirs["value_list"]]
            assert values["shape"] == [v["shape"] for v in theirs["value_list"]]
            assert [capture.value(program, v) is not None for v in range(values["rows"])] == [v["kept"] for v in theirs["value_list"]]
    one, all_ranks = Capture(str(run)), Capture(str(packed[0]))
    for key, program in one.programs.items():
        for v in range(0, program["values"]["rows"], 7):
            assert one.value(program, v) == all_ranks.value(all_ranks.programs[key], v)


def test_help_of_every_command_has_an_example(lastbit):
    for command in ("ls", "show", "verify", "recover", "pack"):
        text = lastbit.run(command, "--help", expect=0).stdout
        assert text.startswith(f"usage: lastbit {command} ") and f"Example:\n  lastbit {command} " in text and "Exit codes:" in text
        assert max(map(len, text.splitlines())) <= 120


# ---- captures without what was asked for -----------------------------------------------------------------------------


def test_a_run_that_is_killed_before_its_first_step_ends_leaves_no_capture(lastbit, folder):
    program = folder / "no_step.py"
    program.write_text("import os, signal, torch\ntorch.nn.Linear(2, 2)(torch.zeros(1, 2))\nos.kill(os.getpid(), signal.SIGKILL)\n")
    path = folder / "no_step.lb"
    said = lastbit.run("record", "-o", path, "--", sys.executable, program).stderr
    assert "nothing was recorded" in said and "killed by signal 9" in said, said
    assert not path.exists()


def test_a_step_that_is_not_there_is_named_beside_those_that_are(lastbit, run):
    for command in ("bisect", "replay"):
        assert "no step from 7 to 9 was recorded; it has steps 0 to 1 of 1 rank" in lastbit.run(command, run, "--steps", "7-9").stderr
        assert "no step 7 was recorded" in lastbit.run(command, run, "--steps", "7").stderr


@pytest.mark.parametrize("size", ["512M", "0.5G", "536870912", "512MiB", "524288k"])
def test_memory_is_a_size_in_every_command(lastbit, size):
    for command in (("diff", CLEAN, CLEAN), ("replay", CLEAN, "--steps", "0"), ("explain", CLEAN, CLEAN)):
        assert lastbit.run(*command, "--memory", size).returncode in (0, 125)


def test_what_has_no_bound_has_no_ratio(lastbit):
    table = lastbit.run("replay", CLEAN).stdout
    assert "of bound" in table and "nan" not in table
    assert re.search(r"^reordered +- ", table, re.M)


# ---- nothing is lost in silence ----------------------------------------------------------------------------------------


def test_an_answer_that_cannot_be_written_is_a_failure(lastbit):
    with open("/dev/full", "w") as full:
        for args in (("ls", CLEAN), ("replay", CLEAN, "--json"), ("diff", CLEAN, CLEAN), ("--help",), ("verify", "--help")):
            done = subprocess.run([lastbit.path, *args], stdout=full, stderr=subprocess.PIPE, text=True)
            assert done.returncode == 128 and "its answer could not be written" in done.stderr, args


@pytest.mark.parametrize(
    "command,left",
    [
        (("pack", CLEAN, "-o", "out.lbz"), "out.lbz"),
        (("recover", CLEAN, "-o", "out.lbz"), "out.lbz"),
        (("replay", CLEAN, "--write", "out.st"), "out.st"),
        (("bisect", "-q", ROOT / "samples" / "scan-overflow.lbz", "-o", "out.lb"), "out.lb"),
    ],
)
def test_a_file_that_may_not_grow_is_an_error_that_leaves_nothing(lastbit, tmp_path, command, left):
    done = subprocess.run(
        [lastbit.path, *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20480, 20480)),
    )
    assert done.returncode == 128 and "File too large" in done.stderr, (done.returncode, done.stderr)
    assert left in done.stderr and list(tmp_path.iterdir()) == []


def test_a_program_under_record_dies_of_the_limit_as_ever(lastbit, tmp_path):
    program = ["/bin/sh", "-c", "ulimit -f 1; head -c 9999 /dev/zero > x; echo $?"]
    alone, recorded = (
        subprocess.run([*head, *program], cwd=tmp_path, capture_output=True, text=True).stdout
        for head in ((), (lastbit.path, "record", "-o", tmp_path / "x.lb", "--"))
    )
    assert alone == recorded == f"{128 + signal.SIGXFSZ}\n"


def test_write_leaves_what_is_no_file_of_its_own_alone(lastbit, tmp_path):
    (tmp_path / "full").symlink_to("/dev/full")
    done = lastbit.run("replay", CLEAN, "--write", tmp_path / "full", "--select", "op=aten::mean", expect=128)
    assert "No space left on device" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["full"] and (tmp_path / "full").is_char_device()


def test_a_pack_that_was_cut_before_its_commit_is_empty(lastbit, tmp_path):
    (tmp_path / "cut.lbz").write_bytes(CLEAN.read_bytes()[:20000])
    told = lastbit.json("verify", tmp_path / "cut.lbz", expect=1)
    assert told["verdict"] == "empty" and told["closed"] == 0
    assert "1 may go on" in lastbit.run("verify", tmp_path / "cut.lbz", expect=1).stdout
    assert "no step was recorded to its end" in lastbit.run("diff", CLEAN, tmp_path / "cut.lbz", expect=125).stderr


@pytest.mark.parametrize(
    "args,code,words",
    [
        (("explain", CLEAN, "missing.lb"), 128, "No such file"),
        (("diff", CLEAN, CLEAN, "--steps", "7"), 128, "lastbit diff: "),
        (("diff", CLEAN, CLEAN, "--map", "s/(/x/"), 129, "missing closing parenthesis"),
        *(
            ((*command, "--memory", size), 129, f"--memory {size}: ")
            for size in ("-1", "512X", "512", "M", "0")
            for command in (("diff", CLEAN, CLEAN), ("replay", CLEAN), ("bisect", CLEAN), ("explain", CLEAN, CLEAN))
        ),
        (("bisect", CLEAN, "--predicate", "los>3"), 129, "expected nonfinite, max>NUMBER, loss>NUMBER or grad_norm>NUMBER"),
        (("bisect", CLEAN, "--predicate", "nonfinite@layr=x"), 129, "layer= op= class= phase="),
        (("bisect", CLEAN, "--check", "--order", "op=sum=pairwse"), 129, "doubling, rabenseifner"),
        (("replay", CLEAN, "--order", "op=sum=pairwse"), 129, 'tree:FILE; and "pairwse" is not an order of a collective: gloo'),
        (("replay", CLEAN, "--order", "op=sum=pairwse"), 129, "doubling, rabenseifner"),
        (("explain", CLEAN, "--invariance", "mm", "--launch", "pairwse"), 129, "one of sequential, pairwise"),
        (("order", "--engine", "pairwse", "-n", "8"), 129, "one of sequential, pairwise"),
        (("order", "--engine", "pairwise", "-n", "8", "--expect", "pairwse"), 129, "one of sequential, pairwise"),
        (("replay", CLEAN, "--threads", "-3"), 129, "--threads -3"),
        (("replay", CLEAN, "--worst", "-1"), 129, "--worst -1"),
        (("replay", CLEAN, "--steps", "5-3"), 129, "--steps 5-3"),
        (("replay", CLEAN, "--ranks", "0-99999999"), 129, "4096 at most"),
        (("order", "more", "--engine", "pairwise", "-n", "8"), 129, "expected options alone, got 1 argument"),
        (("order", "--engine", "pairwise", "-n", "8", "-o", "/dev/full"), 128, "/dev/full: cannot write it: No space left on device"),
        (("ls", CLEAN, "--step", "99"), 128, "no such step or rank was recorded; `lastbit ls` lists"),
    ],
)
def test_bad_input_is_told_what_is_wrong(lastbit, args, code, words):
    told = lastbit.run(*args, expect=code).stderr
    assert words in told and "diff: diff" not in told


def test_an_instruction_set_nobody_knows_is_told_of(lastbit):
    told = lastbit.run("ls", CLEAN, expect=129, env={**os.environ, "LASTBIT_ISA": "avx3"}).stderr
    assert "LASTBIT_ISA=avx3" in told and "scalar, avx2 or avx512" in told
    lastbit.run("ls", CLEAN, expect=0, env={**os.environ, "LASTBIT_ISA": ""})


def test_recover_of_nothing_whole_leaves_no_folder(lastbit, tmp_path):
    """Else the next attempt would be told that it exists."""
    (tmp_path / "run.lb").mkdir()
    (tmp_path / "run.lb" / "rank-00000.tar").write_bytes(b"nothing" * 1000)
    for _ in range(2):
        assert "no archive in it holds a whole record" in lastbit.run("recover", tmp_path / "run.lb", "-o", tmp_path / "whole.lb", expect=128).stderr
    assert not (tmp_path / "whole.lb").exists()


def test_a_nan_has_no_sign(lastbit):
    for sample in sorted((ROOT / "samples").glob("*.lbz")):
        assert "-nan" not in lastbit.run("ls", sample, expect=0).stdout
