"""`explain` of two implementations of one model: partners by what they compute, causes where these can be shown, and the places of `diff` where the
sides are not the same function."""

import pytest

PROGRAM = "tests/programs/two_implementations.py"


@pytest.fixture(scope="module")
def pair(recordings):
    def sides(*faults):
        words = [word for fault in faults for word in ("--fault", fault)]
        return recordings("transformers", program=PROGRAM), recordings("decoder", *words, program=PROGRAM)

    return sides


def reasons(answer):
    return [f for f in answer["findings"] if f["cause"] != "input" or f["op"] == "lb::source"]


@pytest.mark.parametrize("turned", [False, True])
def test_one_function_in_other_ops(lastbit, pair, turned):
    sides = pair()[::-1] if turned else pair()
    answer = lastbit.json("explain", *sides, expect=1)
    assert not answer["missing"]
    found = reasons(answer)
    assert {f["cause"] for f in found} == {"kernel"} and {f["proof"] for f in found} <= {"bits", "exact"}
    attention = [f for f in found if "flash_attention" in f["op"] + f["other_op"]]
    # Three layers: a fused kernel on one side, products and a softmax on the other.
    assert len(attention) == 3 and all("aten::_softmax" in f["op"] + f["other_op"] for f in attention)
    for f in attention:
        assert f["proof"] == "exact" or f["matched"] == f["elements"]
    rotary = [f for f in found if "aten::cos" in f["op"] + f["other_op"]]
    assert rotary and all("the same function" in f["why"] for f in rotary)


@pytest.mark.parametrize("fault", ["scale", "eps", "residual", "act"])
def test_where_they_are_not_the_same_function_the_place_is_that_of_diff(lastbit, pair, fault):
    sides = pair(fault)
    first = lastbit.json("diff", *sides, expect=1)["first"]
    found = [f for f in reasons(lastbit.json("explain", *sides, expect=1)) if f["cause"] == "unexplained"]
    assert found and first["why"].startswith(found[0]["why"])
    assert (found[0]["layer"], found[0]["phase"]) == (first["layer"], first["phase"])
    assert first["op"] in (found[0]["op"], found[0]["other_op"])
    assert {f["layer"] for f in found} == ({first["layer"]} if fault != "act" else {f"model.layers.{i}.mlp.act_fn" for i in range(3)})


@pytest.mark.parametrize("fault, source", [("weight", "parameter model.layers.1.self_attn.o_proj.weight"), ("rope", "model.rotary_emb.inv_freq")])
def test_what_the_other_side_does_not_hold_is_an_input(lastbit, pair, fault, source):
    answer = lastbit.json("explain", *pair(fault), expect=1)
    (found,) = [f for f in reasons(answer) if f["cause"] == "input"]
    assert source in found["schedule"] and not [f for f in reasons(answer) if f["cause"] == "unexplained"]
    assert source.split()[-1] in lastbit.run("explain", *pair(fault), expect=1).stdout
