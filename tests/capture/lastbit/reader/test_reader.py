"""`import lastbit` reads: every value bit for bit what torch had, errors that say what to do, memory that outlives its capture."""

import copy
import gc
import inspect
import itertools
import json
import os
import pathlib
import pickle
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import typing

import pytest
from conftest import BUILD, ROOT

sys.path.insert(0, str(ROOT / "capture"))
import lastbit

FAILING, CLEAN = ROOT / "samples" / "scan-overflow.lbz", ROOT / "samples" / "clean.lbz"
RECORDER = BUILD / "liblastbit_capture.so"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "capture"), "LASTBIT_LIB": str(RECORDER), "OMP_NUM_THREADS": "1"}


@pytest.fixture(autouse=True)
def this_build(monkeypatch):
    monkeypatch.setenv("LASTBIT_LIB", str(RECORDER))


def python(text, *words, **options):
    return subprocess.run([sys.executable, "-c", text, *map(str, words)], capture_output=True, text=True, env=ENVIRONMENT, timeout=300, **options)


def record(folder, level):
    done = subprocess.run([sys.executable, ROOT / "tests/programs/saved_values.py", folder, level], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return record(tmp_path_factory.mktemp("saved"), "ops")


def bits(tensor):
    """The elements of a torch tensor in row-major order, as bytes."""
    import torch

    flat = tensor.clone(memory_format=torch.contiguous_format).reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def clones(capture):
    """The clones of the program, in its order, each with what it was a clone of."""
    return [(op.arguments[0], op.results[0]) for op in capture.step().ops if op.name == "aten::clone"]


# ---- structs


def test_structs_are_those_of_the_headers(tmp_path):
    from lastbit.reader.layout import STRUCTS

    lines, mine = [], []
    for name, struct in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        mine.append(f"{name} {__import__('ctypes').sizeof(struct)}")
        for field, *_ in struct._fields_:
            lines.append(f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));')
            mine.append(f"{name}.{field} {getattr(struct, field).offset} {getattr(struct, field).size}")
    (tmp_path / "layout.c").write_text(
        "#include <lastbit/archive.h>\n#include <lastbit/fingerprint.h>\n#include <stdio.h>\nint main(void) {\n"
        + "\n".join(lines)
        + "\nreturn 0; }\n"
    )
    subprocess.run(["cc", "-std=c11", f"-I{ROOT}/include", tmp_path / "layout.c", "-o", tmp_path / "layout"], check=True)
    theirs = subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert theirs == mine and len(mine) > 120


def test_a_struct_that_differs_is_refused():
    text = """
import ctypes
from lastbit.reader import layout
layout.ValueRow._fields_  # the real one agrees
layout.load()
layout._loaded.clear()
class Older(ctypes.Structure):
    _fields_ = [field for field in layout.ValueRow._fields_ if field[0] != "version"]
layout.Program._fields_  # fixed by now: only the row that is written differs
layout.ValueRow = lambda **fields: ctypes.cast(ctypes.pointer(Older(**{k: v for k, v in fields.items() if k != "version"})), ctypes.POINTER(Row)).contents
Row = layout.STRUCTS["lb_value"]
try:
    layout.load()
except layout.Error as error:
    print(error.status, error)
"""
    done = python(text)
    assert done.stdout.startswith("LB_ERR_VERSION") and "install both from one build" in done.stdout, done.stderr


# ---- values


def test_every_value_is_bit_for_bit_what_torch_had(saved):
    import numpy
    import torch

    expected = torch.load(saved / "saved.pt")
    with lastbit.open(saved / "run.lb") as capture:
        found = clones(capture)
        assert len(found) == len(expected) == 9 * 21
        for pair, tensors in zip(found, expected):
            for value, tensor in zip(pair, tensors):
                assert value.kept and value.shape == tuple(tensor.shape), value
                if tensor.numel():
                    assert value.strides == tensor.stride()
                assert value.tobytes() == bits(tensor)
                mine = value.torch()
                assert (mine.dtype, mine.shape, bits(mine)) == (tensor.dtype, tensor.shape, bits(tensor))
                array = value.numpy()
                assert array.shape == value.shape and array.tobytes() == bits(tensor) and not array.flags.writeable
                if array.dtype.names is None:
                    assert array.dtype == torch.empty(0, dtype=tensor.dtype).numpy().dtype
                else:
                    with pytest.raises(TypeError):  # bits are no numbers
                        array + array
                assert numpy.asarray(value).tobytes() == array.tobytes()


def test_dtypes_that_numpy_lacks_are_named_fields_of_bits(saved):
    import torch

    with lastbit.open(saved / "run.lb") as capture:
        arrays = {value.dtype: (value, value.numpy()) for value, _ in clones(capture) if value.shape == (3, 5)}
        value, array = arrays["bf16"]
        assert array.dtype.names == ("bf16",) and array["bf16"].dtype == "u2"
        assert array["bf16"].tolist() == (value.torch().view(torch.int16).to(torch.int32) & 0xFFFF).tolist()
        assert arrays["e4m3fn"][1].dtype == [("e4m3fn", "u1")] and arrays["c32"][1].dtype == [("real", "f2"), ("imag", "f2")]
        assert arrays["f16"][1].dtype == "f2" and arrays["bool"][1].dtype == bool


def test_arrays_and_tensors_are_not_copies(saved):
    with lastbit.open(saved / "run.lb") as capture:
        value = next(value for value, _ in clones(capture) if value.dtype == "f32" and value.shape == (70001,))
        first, second = value.numpy(), value.numpy()
        assert first.__array_interface__["data"] == second.__array_interface__["data"]
        assert value.torch().data_ptr() == first.__array_interface__["data"][0]
        own = value.torch(copy=True)
        assert own.data_ptr() != value.torch().data_ptr()
        own.zero_()
        assert value.numpy().tobytes() == second.tobytes() and not (value.numpy() == 0).all()
        with pytest.raises(ValueError):
            first[0] = 1


@pytest.mark.parametrize("level", ["stats", "sources", "layers"])
def test_bytes_that_were_not_kept_are_an_error_that_says_so(tmp_path, level):
    import torch

    record(tmp_path, level)
    expected = torch.load(tmp_path / "saved.pt")
    with lastbit.open(tmp_path / "run.lb") as capture:
        assert capture.step().level == level
        kept = 0
        for pair, tensors in zip(clones(capture), expected):
            for value, tensor in zip(pair, tensors):
                kept += value.kept and tensor.numel() > 0
                if value.kept:
                    assert value.tobytes() == bits(tensor)
                    continue
                for read in (value.numpy, value.torch, value.tobytes):
                    with pytest.raises(lastbit.Error, match="bytes were not kept.*--level ops") as caught:
                        read()
                    assert caught.value.status == "LB_ERR_NOT_CAPTURED"
        assert (kept > 0) == (level != "stats")


# ---- programs


def test_values_are_what_show_prints(lastbit):
    import lastbit as reader

    for path in (FAILING, ROOT / "samples" / "poisoned-rank.lbz"):
        with reader.open(path) as capture:
            for rank in capture.ranks[-2:]:
                step = capture.step(rank=rank)
                shown = lastbit.json("show", path, "--rank", rank)["values"]
                assert len(shown) == len(step.values) > 2000
                for row, value in zip(shown, step.values):
                    mine = (value.index, value.name, value.dtype, list(value.shape), list(value.strides), value.offset, value.storage, value.version)
                    fields = ("value", "name", "dtype", "shape", "stride", "offset", "storage", "version")
                    assert mine == tuple(row[field] or "" if field == "name" else row[field] for field in fields)
                    assert (value.kept, value.source or "computed", value.digest or "0" * 32) == (
                        row["kept"],
                        row["source"],
                        row["digest"] or "0" * 32,
                    )
                    if value.statistics:  # `show` takes those that were not recorded
                        counts = ("elements", "nan", "pos_inf", "neg_inf", "zero")
                        assert [getattr(value.statistics, name) for name in counts] == [row["statistics"][name] for name in counts]
                    if row.get("op") is not None:
                        op = step.ops[row["op"]]
                        assert (op.name, op.layer, op.phase) == (row["op_name"], row["layer"], row["phase"])
                        assert value in op.results + op.written


def test_a_step_has_names_scalars_and_tables():
    with lastbit.open(FAILING) as capture:
        step = capture.step()
        assert {op.phase for op in step.ops} >= {"forward", "backward", "optimizer"}
        parameter = step.find("embed.weight")[0]
        array = parameter.numpy()
        assert parameter.source == "parameter" and "parameter" in parameter.flags
        assert (parameter.statistics.elements, parameter.statistics.max) == (array.size, array.max())
        assert any(scalar.name == "loss" for scalar in step.scalars)
        assert set(capture.tables()) >= {"receipt", "coverage"} and isinstance(capture.table("receipt"), dict)
        assert capture.table("no such table") is None
    with lastbit.open(ROOT / "samples" / "poisoned-rank.lbz") as capture:
        assert capture.ranks == (0, 1, 2, 3) and capture.step(rank=3).world == 4
        assert [(step.number, step.rank) for step in capture] == [(number, rank) for number in capture.steps for rank in capture.ranks]


def test_arguments_have_their_python_types(tmp_path):
    (tmp_path / "program.py").write_text(
        "import torch, lastbit.torch\n"
        "x = torch.ones(2, 3)\n"
        f"with lastbit.torch.capture({str(tmp_path / 'run.lb')!r}, level='ops') as capture:\n"
        "    with capture.step(4):\n"
        "        y = x.sum([0, 1], keepdim=True, dtype=torch.float64)\n"
        "        z = torch.add(x, x, alpha=2.5)\n"
        "        w = torch.cat([x, z])\n"
        "        w.mul_(3)\n"
        "        capture.scalar('loss', 0.5)\n"
    )
    subprocess.run([sys.executable, tmp_path / "program.py"], env=ENVIRONMENT, check=True)
    with lastbit.open(tmp_path / "run.lb") as capture:
        assert (capture.steps, capture.ranks) == ((4,), (0,))
        ops = {op.name: op for op in capture.step().ops}
        x, dims, keepdim, dtype = ops["aten::sum.dim_IntList"].arguments
        assert (x.shape, dims, keepdim, dtype) == ((2, 3), (0, 1), True, "f64") and type(dtype) is lastbit.DType and keepdim is True
        assert ops["aten::add.Tensor"].arguments[2] == 2.5 and ops["aten::add.Tensor"].arguments[0] == x
        assert [value.shape for value in ops["aten::cat"].inputs] == [(2, 3), (2, 3)] and ops["aten::cat"].inputs[0] == x
        mul = next(op for name, op in ops.items() if name.startswith("aten::mul_"))
        assert "mutable" in mul.flags and mul.written[0].version > mul.arguments[0].version
        assert mul.written[0].numpy().tolist() == [[3.0] * 3] * 2 + [[10.5] * 3] * 2
        line = mul.line
        assert (line.file.rsplit("/")[-1], line.number, line.text) == ("program.py", 8, "w.mul_(3)")
        assert ("loss", 0.5) in [scalar[:2] for scalar in capture.step().scalars]
        assert [step.number for step in capture] == [4]


def test_wrong_indices_and_steps_are_refused():
    with lastbit.open(CLEAN) as capture:
        step = capture.step()
        for rows in (step.ops, step.values):
            assert rows[-1].index == len(rows) - 1 and [row.index for row in rows[:3]] == [0, 1, 2]
            for index in (len(rows), -len(rows) - 1, 2**70):
                with pytest.raises(IndexError, match=f"has {len(rows)}"):
                    rows[index]
            with pytest.raises(TypeError):
                rows["first"]
        for number, rank in ((10**6, None), (2**80, None), (None, 77), (-(2**63), 0), (None, 2**40)):
            with pytest.raises(lastbit.Error) as caught:
                capture.step(number, rank)
            assert caught.value.status == "LB_ERR_NOT_FOUND" and str(CLEAN) in str(caught.value)
        with pytest.raises(lastbit.Error, match="no rank 9"):
            capture.table("receipt", 9)
    for path, status in (("no.lb", "LB_ERR_NOT_FOUND"), (ROOT / "README.md", "LB_ERR_"), ("a\0b", "LB_ERR_INVALID")):
        with pytest.raises(lastbit.Error) as caught:
            lastbit.open(path)
        assert caught.value.status.startswith(status)


# ---- life


def test_nothing_is_read_after_close():
    with lastbit.open(CLEAN) as capture:
        step, path = capture.step(), capture.path
        op = step.ops[5]
        value = next(value for value in step.values if value.kept)
    accesses = [lambda: capture.steps, capture.step, lambda: capture.ranks, lambda: list(capture), capture.tables, lambda: capture.diff(CLEAN)]
    for part in (step, op, value):
        names = [name for name, entry in inspect.getmembers(type(part)) if isinstance(entry, property)]
        accesses += [lambda part=part, name=name: getattr(part, name) for name in names]
    accesses += [value.numpy, value.torch, value.tobytes, lambda: capture.__enter__()]
    for access in accesses:
        with pytest.raises(lastbit.Error, match="was closed; open it again") as caught:
            access()
        assert caught.value.status == "LB_ERR_STATE"
    capture.close()
    assert len(accesses) > 40 and capture.closed and capture.path == path


@pytest.mark.parametrize("order", list(itertools.permutations(("capture", "step", "value"))))
@pytest.mark.parametrize("close", [True, False])
def test_arrays_outlive_everything_in_any_order(saved, order, close):
    mapped = lambda: str(saved) in pathlib.Path("/proc/self/maps").read_text()
    names = {"capture": lastbit.open(saved / "run.lb")}
    names["step"] = names["capture"].step()
    names["value"] = next(value for value in names["step"].values if value.kept and value.shape == (70001,))
    array, tensor, expected = names["value"].numpy()[5:], names["value"].torch()[5:], names["value"].tobytes()
    size = array.itemsize
    if close:
        names["capture"].close()
    for name in order:
        del names[name]
        gc.collect()
        assert array.tobytes() == expected[5 * size :] == bits(tensor)
    assert mapped()
    del array
    assert mapped() and bits(tensor) == expected[5 * size :]
    del tensor
    gc.collect()
    assert not mapped()


def test_threads_read_one_capture(saved):
    capture = lastbit.open(saved / "run.lb")
    expected = [value.tobytes() for value in capture.step().values]
    failures = []

    def read(seed):
        order = list(range(len(expected)))
        random.Random(seed).shuffle(order)
        step = capture.step()
        for index in order:
            if step.values[index].tobytes() != expected[index]:
                failures.append(index)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_close_in_another_thread_ends_reading_by_an_error(saved):
    for _ in range(5):
        captures, ended = [lastbit.open(saved / "run.lb")], []
        step = captures[0].step()

        def read():
            try:
                while True:
                    for value in step.values:
                        value.numpy().tobytes()
            except lastbit.Error as error:
                ended.append(error.status)

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.02)
        captures.pop().close()
        for thread in threads:
            thread.join()
        assert ended == ["LB_ERR_STATE"] * 3


def test_a_forked_child_and_the_end_of_the_interpreter(saved):
    text = """
import atexit, os, sys, lastbit
capture = lastbit.open(sys.argv[1])
array = capture.step().values[0].numpy()
atexit.register(lambda: print(os.getpid() != parent, array.tobytes().hex()))
parent = os.getpid()
if os.fork() == 0:
    assert capture.step().values[0].numpy().tobytes() == array.tobytes()
else:
    assert os.wait()[1] == 0
"""
    done = python(text, saved / "run.lb")
    child, parent = done.stdout.splitlines()
    assert done.returncode == 0 and child.split()[1] == parent.split()[1], done.stderr


def test_damaged_archives_are_errors_or_right(saved, tmp_path):
    """Any byte turned, any length cut: what is read is right or an Error, never a crash. A child reads, so that a crash is seen."""
    folder = tmp_path / "run.lb"
    shutil.copytree(saved / "run.lb", folder)
    (archive,) = folder.glob("*.tar")
    whole, draw = archive.read_bytes(), random.Random(5)
    text = """
import sys, lastbit
for path in sys.stdin.read().split():
    try:
        with lastbit.open(path) as capture:
            for step in capture:
                for op in step.ops:
                    op.arguments, op.results, op.written, op.line, op.layer
                for value in step.values:
                    value.name, value.statistics, value.tobytes() if value.kept else None
        print("read")
    except lastbit.Error as error:
        assert str(error) and error.status.startswith("LB_ERR_"), error
        print(error.status)
"""
    paths = []
    for number in range(60):
        damaged = bytearray(whole if number % 3 else whole[: draw.randrange(len(whole))])
        if number % 3 and damaged:
            for _ in range(draw.choice((1, 8))):
                at = draw.randrange(len(damaged)) if number % 2 else draw.randrange(len(whole) * 9 // 10, len(whole))
                damaged[at] ^= 1 << draw.randrange(8)
        paths.append(tmp_path / f"{number}.lb")
        paths[-1].mkdir()
        (paths[-1] / archive.name).write_bytes(damaged)
    done = python(text, input="\n".join(map(str, paths)))
    assert done.returncode == 0, done.stderr
    said = done.stdout.split()
    assert len(said) == len(paths) and "LB_ERR_CORRUPT" in said and "read" in said, said


# ---- the package


def test_importing_is_light():
    heavy = "import lastbit, sys; print(sorted({'numpy', 'torch', 'ctypes', 'json', 'subprocess', 'lastbit.reader'} & set(sys.modules)))"
    assert python(heavy).stdout == "[]\n"
    reading = f"import lastbit, sys; s = lastbit.open({str(CLEAN)!r}).step(); s.ops[3].arguments; print({{'numpy', 'torch'}} & set(sys.modules))"
    assert python(reading).stdout == "set()\n"


def test_a_library_that_is_missing_or_foreign_is_said(tmp_path):
    shutil.copytree(ROOT / "capture" / "lastbit", tmp_path / "alone" / "lastbit")
    env = {name: value for name, value in ENVIRONMENT.items() if name != "LASTBIT_LIB"}
    env["PYTHONPATH"] = str(tmp_path / "alone")
    text = "import lastbit\ntry:\n    lastbit.{}\nexcept lastbit.Error as error:\n    print(error.status, error)"
    for call in ("open('run.lb')", "bisect('run.lb')"):
        done = subprocess.run([sys.executable, "-c", text.format(call)], env=env, capture_output=True, text=True)
        assert done.stdout.startswith("LB_ERR_NOT_FOUND liblastbit.so is not found; build lastbit, or name"), done.stderr
    (tmp_path / "empty.c").write_text("int nothing;\n")
    foreign = tmp_path / "alone" / "lastbit" / "liblastbit.so"
    subprocess.run(["cc", "-shared", "-fPIC", tmp_path / "empty.c", "-o", foreign], check=True)
    done = subprocess.run([sys.executable, "-c", text.format("open('run.lb')")], env=env, capture_output=True, text=True)
    assert done.stdout.startswith("LB_ERR_VERSION") and "from one build" in done.stdout, done.stderr
    foreign.unlink()
    foreign.symlink_to(BUILD / "liblastbit.so")  # what carries its libraries with it
    done = subprocess.run(
        [sys.executable, "-c", f"import lastbit; print(lastbit.open({str(CLEAN)!r}).ranks)"], env=env, capture_output=True, text=True
    )
    assert done.stdout == "(0,)\n", done.stderr


def public():
    for name in lastbit.__all__:
        entry = getattr(lastbit, name)
        yield name, entry
        if inspect.isclass(entry):
            for member, function in vars(entry).items():
                function = function.fget if isinstance(function, property) else function
                if not member.startswith("_") and inspect.isfunction(function):
                    yield f"{name}.{member}", function


def test_everything_public_has_a_docstring_and_types():
    entries = dict(public())
    assert len(entries) > 60 and (ROOT / "capture/lastbit/py.typed").exists()
    for name, entry in entries.items():
        assert inspect.getdoc(entry), name
        if inspect.isfunction(entry):
            hints = typing.get_type_hints(entry)
            assert set(hints) >= {*inspect.signature(entry).parameters, "return"} - {"self"}, name


def test_mypy_finds_nothing(tmp_path):
    mypy = os.environ.get("LASTBIT_MYPY") or shutil.which("mypy")
    if not mypy:
        pytest.skip("mypy is not installed here (LASTBIT_MYPY names one)")
    (tmp_path / "mypy.ini").write_text("[mypy]\n[mypy-torch.*]\nignore_missing_imports = True\nfollow_imports = skip\n")
    package = ROOT / "capture" / "lastbit"
    done = subprocess.run(
        [mypy, "--strict", "--config-file", tmp_path / "mypy.ini", "--cache-dir", tmp_path, package / "reader", package / "__init__.py"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


# ---- answers


def without_times(tree):
    if isinstance(tree, dict):
        return {name: without_times(field) for name, field in tree.items() if "seconds" not in name and "bytes" not in name}
    return [without_times(field) for field in tree] if isinstance(tree, list) else tree


def test_answers_are_the_documented_json(lastbit):
    import lastbit as reader

    mine = {
        "diff": reader.open(FAILING).diff(ROOT / "samples" / "bad-expert.lbz"),
        "replay": reader.open(CLEAN).replay(),
        "bisect": reader.open(FAILING).bisect(),
    }
    theirs = {
        "diff": lastbit.json("diff", FAILING, ROOT / "samples" / "bad-expert.lbz"),
        "replay": lastbit.json("replay", CLEAN),
        "bisect": lastbit.json("bisect", FAILING),
    }
    for command, answer in mine.items():
        plain = json.loads(str(answer))
        assert plain["schema"] == f"lastbit.{command}/1"
        for changing in ("command", "inputs", "seconds", "cost", "memory"):
            plain.pop(changing, None), theirs[command].pop(changing, None)
        assert without_times(plain) == without_times(theirs[command])
    found = mine["bisect"]
    assert found.outcome == found["outcome"] == "found" and found.exit_code == 1
    assert (found.culprit.layer, found.culprits[0].op) == ("layers.2.scan", "aten::exp") and isinstance(found.stages, tuple)
    assert copy.deepcopy(found) == found == pickle.loads(pickle.dumps(found)) and dict(found)["outcome"] == "found"
    assert "culprit" in dir(found) and not hasattr(found, "no_such_field")
    with pytest.raises(AttributeError):
        found.outcome = "clean"
    with pytest.raises(TypeError):
        found["outcome"] = "clean"


def test_errors_of_commands_are_errors(tmp_path):
    for call, words, status, code in (
        (lambda: lastbit.diff(CLEAN, tmp_path / "no.lb"), "no.lb", "", 128),
        (lambda: lastbit.diff(CLEAN, CLEAN, no_such_option=1), "--no-such-option", "LB_ERR_INVALID", 129),
        (lambda: lastbit.diff(CLEAN, FAILING), "share no step", None, None),
        (lambda: lastbit.bisect("-x.lb"), "./-x.lb", "", 128),
        (lambda: lastbit.replay(CLEAN, steps="a\0b"), "NUL", "LB_ERR_INVALID", None),
    ):
        with pytest.raises(lastbit.Error, match=words) as caught:
            call()
        if status is not None:
            assert (caught.value.status, caught.value.exit_code) == (status, code)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(TypeError):
        lastbit.diff(CLEAN, 7)


def test_an_interrupt_ends_the_command(tmp_path):
    """A stand-in for the command that would run for a minute: the interrupt comes out, and the command is gone."""
    package = tmp_path / "lastbit"
    shutil.copytree(ROOT / "capture" / "lastbit", package)
    (package / "liblastbit.so").write_bytes(b"")
    command = package / "bin" / "lastbit"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\necho $$ >{tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid\nexec sleep 60\n")
    command.chmod(0o755)
    env = {name: value for name, value in ENVIRONMENT.items() if name != "LASTBIT_LIB"}
    text = "import lastbit\ntry:\n    lastbit.diff('a', 'b')\nexcept KeyboardInterrupt:\n    print('interrupted')"
    child = subprocess.Popen([sys.executable, "-c", text], env={**env, "PYTHONPATH": str(tmp_path)}, stdout=subprocess.PIPE, text=True)
    while not (tmp_path / "pid").exists():
        assert child.poll() is None
        time.sleep(0.01)
    begun = time.monotonic()
    child.send_signal(signal.SIGINT)  # to the interpreter alone
    assert child.communicate(timeout=30)[0] == "interrupted\n" and time.monotonic() - begun < 20
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
