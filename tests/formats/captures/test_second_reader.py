"""FORMAT.md is enough to write a reader from: second_reader.py reads what the C writer wrote, and both say the same."""

import subprocess

import pytest
from conftest import BUILD
from second_reader import DTYPE_BITS, Capture

SIZES = [1, 3, 16, 100, 4096, 5000, 20000]
NAMES = ("none f64 f32 bf16 f16 e4m3fn e5m2 e4m3fnuz e5m2fnuz e8m0 e2m1 c32 c64 c128 i8 i16 i32 i64 u8 u16 u32 u64 bool").split()


@pytest.fixture(scope="module")
def captures(tmp_path_factory, lastbit):
    folder = tmp_path_factory.mktemp("captures")
    subprocess.run([BUILD / "tests" / "make_captures", folder], check=True)
    lastbit.run("pack", folder / "closed.lb", expect=0)
    return folder


def expected_bytes(dtype, rank, step):
    """As sample_byte in capture_sample.h."""
    seed = dtype if dtype % 2 else dtype + 100 * rank + 1000 * step
    size = (SIZES[dtype % 7] * DTYPE_BITS[dtype] + 7) // 8
    data = bytes((seed * 37 + i * 13 + (i >> 9)) & 255 for i in range(size))
    return bytes(b & 1 for b in data) if NAMES[dtype] == "bool" else data


@pytest.mark.parametrize("name,ranks", [("closed.lb", 3), ("killed.lb", 1), ("closed.lbz", 3)])
def test_every_dtype_reads_byte_for_byte(captures, name, ranks):
    capture = Capture(captures / name if name.endswith("z") else str(captures / name))
    assert sorted(capture.programs) == [(rank, step) for rank in range(ranks) for step in range(2)]
    for (rank, step), program in capture.programs.items():
        values, strings = program["values"], program["strings"]
        names = {strings[row]: v for v, row in enumerate(values["name"]) if row >= 0}
        for dtype in range(1, len(NAMES)):
            v = names["source." + NAMES[dtype]]
            assert values["dtype"][v] == dtype
            assert values["shape"][v] == [SIZES[dtype % 7]]
            assert capture.value(program, v) == expected_bytes(dtype, rank, step)


@pytest.mark.parametrize("name", ["closed.lb", "killed.lb", "closed.lbz"])
def test_both_readers_tell_the_same(captures, lastbit, name):
    capture = Capture(str(captures / name))
    listed = lastbit.json("ls", captures / name, "--ops", "--values", expect=0)["programs"]
    assert len(listed) == len(capture.programs)
    for theirs in listed:
        program = capture.programs[theirs["rank"], theirs["step"]]
        strings, ops, values = program["strings"], program["ops"], program["values"]
        assert (program["world"], program["complete"], strings[program["shard"]]) == (theirs["world"], theirs["complete"], theirs["shard"])
        assert [strings[row] for row in ops["name"]] == [op["name"] for op in theirs["op_list"]]
        assert [strings[program["scopes"]["path"][row]] for row in ops["scope"]] == [op["layer"] for op in theirs["op_list"]]
        refs = program["refs"]["row"]
        assert [refs[a : a + n] for a, n in zip(ops["first_result"], ops["results"])] == [op["results"] for op in theirs["op_list"]]
        for v, value in enumerate(theirs["value_list"]):
            assert (NAMES[values["dtype"][v]], values["shape"][v]) == (value["dtype"], value["shape"])
            assert (values["logical"][v].hex(), values["storage"][v]) == (value["digest"], value["storage"])
            assert (capture.value(program, v) is not None) == value["kept"]


def test_special_numbers_and_tables_survive(captures):
    capture = Capture(str(captures / "closed.lb"))
    program = capture.programs[2, 1]
    args, tags = program["args"], program["args"]["tag"]
    assert args["u"][tags.index(2)] == -(2**63)  # INT64_MIN
    assert args["u"][tags.index(3)] == 0x3FB999999999999A  # the bits of 0.1
    assert program["scalars"]["number"] == [1e-3, float("inf")]
    assert program["collectives"]["sequence"] == [5]
    assert [a.tables for a in capture.archives] == [{(-1, "receipt"): {"rank": r, "levels": ["stats", None, 2.5]}} for r in range(3)]
    assert Capture(str(captures / "closed.lbz")).archives[0].tables[2, "receipt"]["rank"] == 2
