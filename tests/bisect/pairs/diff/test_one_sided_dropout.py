"""Dropout that one side alone has, or has with another p: its places are named, each with the p."""

import pytest

PROGRAM = "tests/programs/trainers/dropped.py"
LAYERS = {f"layers.{i}.drop" for i in range(3)}
DRAW = "aten::bernoulli_.float"


@pytest.fixture(scope="module")
def diff(lastbit, tmp_path_factory):
    """diff(FIRST, SECOND): of two runs of the program with these arguments."""
    folder, made = tmp_path_factory.mktemp("dropped"), {}

    def capture(arguments):
        if arguments not in made:
            made[arguments] = folder / f"{len(made)}.lb"
            lastbit.record(made[arguments], PROGRAM, *arguments, expect=0)
        return made[arguments]

    return lambda a, b: lastbit.json("diff", capture(a), capture(b), expect=1)


def of_side(difference):
    """The layer on the side that draws."""
    return difference["layer_b"] if difference["op_b"] else difference["layer"]


@pytest.mark.parametrize("what, lacks, turned", [
    ((), ("0", "train"), False), ((), ("0", "train"), True), ((), ("0.1", "eval"), False), ((), ("0.1", "eval"), True),
    (("norm",), ("0", "train"), False), (("norm",), ("0", "train"), True), (("norm",), ("0.1", "eval"), False),
])  # fmt: skip
def test_each_layer_that_drops_on_one_side_alone(diff, what, lacks, turned):
    sides = [("0.1", "train", *what), (*lacks, *what)]
    answer = diff(*(sides[::-1] if turned else sides))
    assert answer["verdict"] == "diverged" and not answer["missing"]
    if (what, lacks[1]) != (("norm",), "eval"):  # there the normalisation comes first
        assert (answer["first"]["layer"], answer["first"]["op"], answer["first"]["means"]) == ("layers.0.drop", DRAW, "dropout with p 0.1")
    draws = [d for d in answer["differences"] if d["op"] == DRAW]
    assert {of_side(d) for d in draws} == LAYERS and {d["means"] for d in draws} == {"dropout with p 0.1"} and len(draws) == 3
    assert {d["steps"] for d in draws} == {2} and all(d["effect"] > 1e-3 for d in draws)
    others = {d["layer"] for d in answer["differences"] if d["op"] != DRAW}
    assert others == ({f"layers.{i}.norm" for i in range(3)} if (what, lacks[1]) == (("norm",), "eval") else set())


def test_an_exchanged_norm_leaves_nothing_to_chance(diff):
    """A batch norm of evaluation saves nothing for its backward, which is put right by itself."""
    sides = ("0.1", "train", "norm"), ("0.1", "eval", "norm")
    first = diff(*sides)["differences"]
    for _ in range(3):
        assert diff(*sides)["differences"] == first


def test_the_one_layer_that_drops(diff):
    for sides in [(("0", "train"), ("0.1", "train", "layers.1")), (("0.1", "train", "layers.1"), ("0", "train"))]:
        (difference,) = diff(*sides)["differences"]
        assert (of_side(difference), difference["op"], difference["means"]) == ("layers.1.drop", DRAW, "dropout with p 0.1")


def test_another_p_is_an_argument(diff):
    answer = diff(("0.1", "train"), ("0.3", "train"))
    wanted = [("dropout p", 0.1, 0.3)]
    rows = [answer["first"], *answer["differences"]]
    assert [[(a["name"], a["first"], a["second"]) for a in row["arguments"]] for row in rows] == [wanted] * 4
    assert {d["layer"] for d in answer["differences"]} == LAYERS


def test_places_are_named_in_sixteen_bits(diff):
    answer = diff(("0.1", "train", "bf16"), ("0", "train", "bf16"))
    assert answer["verdict"] == "diverged"
    assert [(d["layer"], d["op"], d["means"]) for d in answer["differences"]] == [("layers.0.drop", DRAW, "dropout with p 0.1")]
