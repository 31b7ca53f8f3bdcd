"""Custom ops of serving stacks that are collectives: the ranks meet at them, and what they do to each other is told of them."""

import pytest
import recorded

PROGRAM = "tests/programs/ranks/stack_collectives.py"
OPS = {
    "vllm::all_reduce",
    "vllm::all_gather",
    "vllm::reduce_scatter",
    "_C_custom_ar::all_reduce",
    "sglang::inplace_all_reduce",
    "sglang::outplace_all_reduce",
    "sglang::reg_all_gather_into_tensor",
    "sgl_kernel::shm_allgather",
    "trtllm::allreduce",
    "trtllm::reducescatter",
}


@pytest.fixture(scope="module")
def capture(lastbit, tmp_path_factory):
    made = {}

    def make(*arguments):
        if arguments not in made:
            made[arguments] = tmp_path_factory.mktemp("stack") / "run.lb"
            lastbit.record(made[arguments], PROGRAM, *arguments, options=("--level", "ops"), expect=0)
        return made[arguments]

    return make


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_meet_at_them(lastbit, capture, ranks):
    for mode in ("isolated", "chained"):
        answer = lastbit.json("replay", capture(ranks), "--mode", mode, "--coverage", expect=0)
        assert OPS <= {row["op"] for row in answer["coverage"]}
        assert answer["verdict"] == "identical" and answer["ops"]["opaque"] == 0
        assert answer["bitwise"] == answer["compared"] == answer["ops"]["total"]


def test_who_takes_part_is_recorded(capture):
    found = recorded.Recorded(capture(4))
    for rank in range(4):
        program = found.programs[rank][0]
        rows = {
            program.name(program.ops[c.op]): (program.text(c.group), program.refs[c.first_rank : c.first_rank + c.ranks]) for c in program.collectives
        }
        pair = [rank // 2 * 2, rank // 2 * 2 + 1]
        assert set(rows) == OPS
        for name, (group, members) in rows.items():
            assert members == ([0, 1, 2, 3] if name == "sglang::inplace_all_reduce" else pair), name
            assert group == ("world:0" if name == "sglang::inplace_all_reduce" else f"ranks {pair[0]},{pair[1]}" if "trtllm" in name else "tp:0")
        assert found.table("coverage", rank)["notes"] == {}


def test_without_the_stack_all_ranks_are_taken_to_take_part(capture, lastbit):
    made = capture(2, "--strangers")
    assert lastbit.json("replay", made, "--mode", "chained", expect=0)["verdict"] == "identical"
    notes = recorded.Recorded(made).table("coverage", 0)["notes"]
    assert "tp:0" in str(notes["degraded"]) and "all 2 ranks" in str(notes["degraded"])


def test_another_order_and_a_missing_rank_reach_every_member(lastbit, capture):
    run = capture(4)
    for swap in (("--order", "sglang::inplace_all_reduce=wide"), ("--contribution", "rank=3&op=inplace_all_reduce=zero")):
        answer = lastbit.json("replay", run, "--mode", "chained", *swap, "--worst", 100, expect=(0, 1))
        changed = {one["rank"] for one in answer["worst"] if one["op"] == "sglang::inplace_all_reduce"}
        assert changed == {0, 1, 2, 3}, swap


def test_a_sum_without_a_rank_is_no_legal_order(lastbit, capture):
    answer = lastbit.json("replay", capture(4, "--lose"), "--worst", 100, expect=1)
    assert {(one["op"], one["rank"]) for one in answer["worst"] if one["verdict"] == "diverged"} == {
        ("_C_custom_ar::all_reduce", r) for r in range(4)
    }
    (found,) = [
        f
        for f in lastbit.json("explain", capture(4), capture(4, "--lose"), expect=1)["findings"]
        if f["op"] == "_C_custom_ar::all_reduce" and f["cause"] != "input" and f["rank"] == 0
    ]
    assert found["cause"] == "unexplained", found


def test_what_one_rank_brought_is_named(lastbit, capture):
    findings = lastbit.json("explain", capture(4), capture(4, "0.5"), expect=1)["findings"]
    own = [f for f in findings if f["cause"] != "input"]
    assert [(f["op"], f["rank"]) for f in own] == [("aten::add.Tensor", 1)]
    assert any(f["rank"] == 3 for f in findings)  # who shares no pair with it inherits all the same, through the group of all
