"""A decoder beside one that stores its weights in another way: tensors meet by their numbers, in one table that may be edited."""

import pytest

PROGRAM = "tests/programs/stored_otherwise.py"
WAYS = ["", "groups", "groups pairs turned", "one-plus", "padded", "groups pairs turned one-plus padded"]


def words(way):
    return ["--other", *(f"--{word}" for word in way.split())]


@pytest.fixture
def pair(recordings):
    def record(way, *more, train=False):
        always = ["--train"] * train
        return recordings(*always, program=PROGRAM), recordings(*words(way), *always, *more, program=PROGRAM)

    return record


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("train", [False, True])
def test_another_way_to_store_it_is_the_same_function(lastbit, pair, way, train):
    """Padded scores are sliced where a loss is taken of them, and compared as far as both have them where none is."""
    first, second = pair(way, *(["--sliced"] if train and "padded" in way else []), train=train)
    for sides in ((first, second), (second, first)):
        answer = lastbit.json("diff", *sides, expect=0)
        assert (answer["verdict"], answer["missing"], answer["differences"]) == ("rounding", [], [])


def test_padding_in_a_loss_is_another_loss(lastbit, pair):
    first, second = pair("padded", train=True)
    answer = lastbit.json("diff", first, second, expect=1)
    assert answer["verdict"] == "diverged" and {d["phase"] for d in answer["differences"]} <= {"forward"}


@pytest.mark.parametrize("way", WAYS)
def test_gate_and_up_exchanged_in_one_layer_are_of_axis_source(lastbit, pair, way):
    first, second = pair(way, "--fault", "exchanged")
    (difference,) = lastbit.json("diff", first, second, expect=1)["differences"]
    assert (difference["axis"], difference["layer_b"]) == ("source", "h.2")
    assert difference["tensors"] == {"first": "layers.2.up.weight + layers.2.gate.weight", "second": "h.2.wi.weight"}
    assert "h.0.wi.weight" in difference["why"] and "3 of its siblings" in difference["why"]


def test_bisect_names_the_axis(lastbit, pair):
    first, second = pair("groups", "--fault", "exchanged")
    assert lastbit.json("bisect", second, "--against", first, expect=1)["culprit"]["axis"] == "source"


def test_a_fault_of_computation_is_of_no_tensor(lastbit, pair):
    first, second = pair("groups pairs turned one-plus padded", "--fault", "eps")
    (difference,) = lastbit.json("diff", first, second, expect=1)["differences"]
    assert difference["axis"] is None and difference["layer_b"] == "h.1.post"


# ---- the table ----


@pytest.fixture
def table(lastbit, pair, tmp_path):
    first, second = pair("groups pairs turned one-plus padded")
    lastbit.json("diff", first, second, "--map-out", tmp_path / "table", expect=0)
    return first, second, tmp_path / "table"


def edited(table, name, value):
    lines = [f"{name} = {value}" if line.startswith(f"{name} = ") else line for line in table.read_text().splitlines()]
    assert f"{name} = {value}" in lines
    table.write_text("\n".join(lines) + "\n")
    return lines.index(f"{name} = {value}") + 1


def test_each_tensor_is_named_once(table):
    lines = dict(line.split("  # ")[0].split(" = ") for line in table[2].read_text().splitlines() if not line.startswith("#"))
    assert lines["h.1.c.weight"] == "layers.1.query.weight + layers.1.key.weight + layers.1.value.weight"
    assert lines["h.1.pre.gain"] == "layers.1.input_norm.gain" and lines["wte"] == "tokens"


@pytest.mark.parametrize("command", ["diff", "bisect", "explain"])
def test_what_was_written_is_read(lastbit, table, command):
    first, second, file = table
    sides = (second, "--against", first) if command == "bisect" else (first, second)
    answer = lastbit.json(command, *sides, "--map", file)
    assert answer.get("verdict", "rounding") == "rounding" and not any(
        "--map" in text for text in answer.get("findings", []) if isinstance(text, str)
    )


def test_a_line_that_was_changed_is_obeyed_and_its_first_element_told(lastbit, table):
    first, second, file = table
    line = edited(file, "h.0.o.bias", "layers.1.out.bias")
    answer = lastbit.json("diff", first, second, "--map", file, expect=1)
    assert answer["verdict"] == "diverged" and [d["layer_b"] for d in answer["differences"]] == ["h.0.o"]
    assert any(f"line {line}: the numbers of h.0.o.bias are not those of layers.1.out.bias: element 0" in text for text in answer["findings"])


@pytest.mark.parametrize("name, value, said", [
    ("h.0.o.bias", "nowhere", "has no tensor 'nowhere'"),
    ("h.0.c.weight", "layers.0.query.weight", "has 6912 numbers, and what it is to be made of has 2304"),
    ("h.0.c.weight", "layers.0.query.weight + + layers.0.key.weight", "a name is missing"),
])  # fmt: skip
@pytest.mark.parametrize("command", ["diff", "bisect", "explain"])
def test_a_line_that_cannot_be_obeyed_is_refused(lastbit, table, command, name, value, said):
    first, second, file = table
    line = edited(file, name, value)
    sides = (second, "--against", first) if command == "bisect" else (first, second)
    done = lastbit.run(command, *sides, "--map", file, expect=(128, 129))
    assert f"{file}, line {line}: " in done.stderr and said in done.stderr
