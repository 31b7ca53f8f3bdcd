"""What collectives made, explained from what all ranks brought: pairs of real runs over torch's gloo, from their recorded bits."""

import pytest
import torch

PROGRAM = "tests/programs/ranks/reductions.py"
KINDS = [
    "rank",
    "ring",
    "wide",
    "payload",
    "dropped",
    "twice",
    "stale",
    "altered",
    "reduce_broadcast",
    "scatter_gather",
    "gather_sum",
    "bf16",
    "functional",
    "rank:bfloat16",
    "wide:bfloat16",
    "stale:bfloat16",
    "avg",
]

# The layer norm behind the sums over ranks: replay has ATen's kernel as vector units run it.
NORM_IS_KNOWN = torch.backends.cpu.get_cpu_capability() != "DEFAULT"


def record(lastbit, folder, name, ranks, steps):
    lastbit.record(folder / f"{name}.lb", PROGRAM, ranks, *steps, options=("--level", "ops"), expect=0)
    return folder / f"{name}.lb"


@pytest.fixture(scope="module")
def runs(lastbit, tmp_path_factory):
    """Four ranks: gloo's all_reduce in every step, and one of KINDS in each."""
    folder = tmp_path_factory.mktemp("ranks")
    gloo = ["all_reduce" + kind.partition(":")[1] + kind.partition(":")[2] for kind in KINDS]
    return record(lastbit, folder, "gloo", 4, gloo), record(lastbit, folder, "many", 4, KINDS)


@pytest.fixture(scope="module")
def findings(lastbit, runs):
    """Per kind: what is said of the collective when gloo's run comes first."""
    answer = lastbit.json("explain", *runs, expect=1)
    return {kind: [f for f in answer["findings"] if f["step"] == step and "c10d" in f["op"]] for step, kind in enumerate(KINDS)}


N = 4 * 32 * 60  # elements that four members receive
# Of four ranks, and elements that four divides: a tree whose root takes in all others one after the other, and a ring of equal chunks.
ALIKE = {"rank": "chain", "ring": "mpich_ring", "wide": "rotated"}


@pytest.mark.parametrize(
    "kind, cause, schedule",
    [
        ("rank", "order", "rank"),
        ("ring", "order", "ring"),
        ("wide", "order", "wide"),
        ("payload", "precision", "bf16, rank"),
        ("rank:bfloat16", "order", "rank"),
        ("wide:bfloat16", "order", "wide"),
        ("bf16", "precision", "bf16"),
    ],
)
def test_another_legal_order_is_named(findings, kind, cause, schedule):
    (f,) = findings[kind]
    assert (f["cause"], f["schedule"], f["proof"]) == (cause, schedule, "bits")
    assert f["first"] == ("f32" if kind == "bf16" else "gloo") and not f["reversed"]
    assert (f["layer"], f["phase"], f["rank"], f["op"]) == ("down", "communication", 0, "c10d::allreduce_")
    assert f["matched"] == f["elements"] == N and f["excluded"] >= 20
    # What the data cannot tell apart is said; everything else that was tried has lost.
    assert f["also"] == ALIKE.get(kind.partition(":")[0], "") and f["tried"] - f["excluded"] == 1 + bool(f["also"])
    assert kind == "bf16" or "all ranks brought the same bits" in f["why"]


@pytest.mark.parametrize(
    "kind, what",
    [
        ("dropped", "without the contribution of rank 3, order rank gives all of them"),
        ("twice", "with the contribution of rank 3 added twice, order rank gives all of them"),
    ],
)
def test_no_legal_order_and_what_it_is(findings, kind, what):
    (f,) = findings[kind]
    assert (f["cause"], f["proof"]) == ("unexplained", "none") and f["excluded"] == f["tried"] >= 20
    assert f["matched"] < f["elements"] == N
    assert f["why"].startswith("no legal order of these inputs gives these bits; " + what)


@pytest.mark.parametrize("kind", ["stale", "stale:bfloat16"])
def test_no_legal_order_and_nothing_known(findings, kind):
    """In bf16 most elements still agree with rank order, which nevertheless loses."""
    (f,) = findings[kind]
    assert f["cause"] == "unexplained" and f["why"] == "no legal order of these inputs gives these bits; all ranks brought the same bits"
    assert f["elements"] == N and (0.5 * N < f["matched"] < N and f["schedule"] == "rank" if "bf" in kind else not f["matched"])


def test_another_reduction(findings):
    """Each side does what it says: a mean where the other side has a sum."""
    (f,) = findings["avg"]
    assert (f["cause"], f["first"], f["schedule"], f["proof"]) == ("kernel", "sum", "avg", "bits")
    assert f["matched"] == f["elements"] == N and f["excluded"] == f["tried"] >= 20


def test_the_rank_whose_contribution_differs(lastbit, runs, findings):
    (f,) = findings["altered"]
    assert (f["cause"], f["proof"], f["matched"]) == ("input", "bits", N)
    assert "rank 2 brought other numbers" in f["why"] and "rank 1" not in f["why"]
    text = lastbit.run("explain", "--all", "--steps", KINDS.index("altered"), *runs, expect=1).stdout
    assert "inherited" in text and "rank 2 brought other numbers" in text


def test_collectives_that_together_are_one(findings):
    """gloo adds in one order whatever it is asked for; gathered and summed by hand is rank order."""
    assert not findings["reduce_broadcast"] and not findings["scatter_gather"] and not findings["functional"]
    (f,) = findings["gather_sum"]
    assert (f["cause"], f["schedule"], f["first"], f["proof"]) == ("order", "rank", "gloo", "bits")
    assert "c10d::allgather_" in f["other_op"] and "aten::add.Tensor x3" in f["other_op"]
    assert f["matched"] == f["elements"] == N / 4 and f["excluded"] >= 20 and f["also"] == ALIKE["rank"]


def test_one_run_by_itself(lastbit, runs):
    """Under which order were the recorded bits made, where replay's own does not give them?"""
    assert not [f for f in lastbit.json("explain", runs[0])["findings"] if "c10d" in f["op"]]
    answer = lastbit.json("explain", runs[1], expect=1)
    found = {KINDS[f["step"]]: f for f in answer["findings"] if "c10d" in f["op"]}
    assert {kind: f["schedule"] for kind, f in found.items() if f["cause"] != "unexplained"} == {
        "rank": "rank",
        "ring": "ring",
        "wide": "wide",
        "payload": "bf16, rank",
        "rank:bfloat16": "rank",
        "wide:bfloat16": "wide",
    }
    assert {kind for kind, f in found.items() if f["cause"] == "unexplained"} == {"dropped", "twice", "stale", "stale:bfloat16"}
    assert "without the contribution of rank 3" in found["dropped"]["why"]


def test_turned_round(lastbit, runs):
    """The run with other orders first: it is its own bits that no legal order gives."""
    answer = lastbit.json("explain", runs[1], runs[0], expect=1)
    found = {KINDS[f["step"]]: f for f in answer["findings"] if f["phase"] == "communication" or "allgather" in f["op"]}
    for kind in ("rank", "ring", "wide"):
        assert (found[kind]["cause"], found[kind]["first"], found[kind]["schedule"]) == ("order", kind, "gloo")
    assert "the first side's inputs gives its bits; without the contribution of rank 3" in found["dropped"]["why"]
    assert (found["gather_sum"]["schedule"], found["gather_sum"]["reversed"]) == ("rank", True)


@pytest.mark.full
def test_three_ranks_and_hand_written_ones(lastbit, tmp_path):
    """With three ranks gloo's ring and NCCL's are the same additions, which is said; rank order is another one."""
    kinds = ["all_reduce", "reduce_broadcast", "scatter_gather", "altered"]
    one, other = record(lastbit, tmp_path, "rank", 3, ["rank"] * 4), record(lastbit, tmp_path, "hand", 3, kinds)
    found = {kinds[f["step"]]: f for f in lastbit.json("explain", one, other, expect=1)["findings"] if "c10d" in f["op"]}
    assert set(found) == set(kinds)
    for kind, f in found.items():
        assert (f["cause"], f["first"], f["schedule"]) == ("order", "rank", "gloo") and "ring" in f["also"].split("; ")
        assert f["matched"] == f["elements"] and f["excluded"] >= 20
        assert ("rank 1 brought other numbers" in f["why"]) == (kind == "altered")
    assert found["reduce_broadcast"]["other_op"] == "c10d::reduce_, c10d::broadcast_"
    assert "c10d::_reduce_scatter_base_, c10d::_allgather_base_" in found["scatter_gather"]["other_op"]


@pytest.mark.full
def test_a_group_of_some_ranks(lastbit, tmp_path):
    """Ranks 0, 2 and 3 reduce among themselves; rank 1 has its own output, which nobody takes for theirs."""
    one, other = (record(lastbit, tmp_path, kind, 4, [kind, "--without", 1]) for kind in ("all_reduce", "gather_sum"))
    for sides, turned in (((one, other), False), ((other, one), True)):
        (f,) = [f for f in lastbit.json("explain", *sides, expect=1)["findings"] if f["cause"] != "input"]
        assert (f["cause"], f["schedule"], f["layer"], f["reversed"], f["proof"]) == ("order", "rank", "down", turned, "bits")
        assert f["matched"] == f["elements"] == N / 4 and "all ranks brought the same bits" in f["why"]
        assert set(f["also"].split("; ")) >= {"doubling", "rabenseifner", "tree:2"}  # (a + b) + c all of them


def test_the_budget_of_other_orders(lastbit, tmp_path):
    """All ranks are replayed together under the order that was found: each of them has the other run's very bits then."""
    kinds = ["ring", "payload", "rank:bfloat16"]
    gloo = record(lastbit, tmp_path, "gloo", 4, ["all_reduce" + kind[4:] if "bf" in kind else "all_reduce" for kind in kinds])
    other = record(lastbit, tmp_path, "other", 4, kinds)
    schedules = {"ring": "ring", "payload": "bf16, rank", "rank:bfloat16": "rank"}
    for sides, turned in (((gloo, other), False), ((other, gloo), True)):
        budgets = lastbit.json("explain", "--budget", *sides, expect=1)["budget"]
        assert [(b["step"], b["rank"]) for b in budgets] == [(step, rank) for step in range(3) for rank in range(4)]
        for b in budgets:
            (row,) = b["rows"]
            assert row["schedule"] == ("gloo" if turned else schedules[kinds[b["step"]]]) and row["layer"] == "down"
            assert row["cause"] == ("precision" if kinds[b["step"]] == "payload" else "order")
            assert b["gap"] > 1e-9 and (b["elements"], b["left_out"], b["left"]) == (32 * 60, 0, "")
            if NORM_IS_KNOWN:
                assert row["share"] == pytest.approx(1) and b["together"] == pytest.approx(1) and b["differing"] == 0
    text = lastbit.run("explain", "--budget", "--steps", 0, gloo, other, expect=1).stdout
    assert text.count("Budget of step 0") == 1 and "ranks 1, 2, 3: the same" in text


@pytest.mark.full
def test_the_budget_of_what_one_rank_does_otherwise(lastbit, tmp_path):
    """Rank 1 multiplies in f64, and the sum over ranks has another order: every rank's output has both in it."""
    one = record(lastbit, tmp_path, "one", 2, ["all_reduce"])
    other = record(lastbit, tmp_path, "other", 2, ["payload", "--wide", 1])
    budgets = lastbit.json("explain", "--budget", one, other, expect=1)["budget"]
    assert [b["rank"] for b in budgets] == [0, 1]
    for b in budgets:
        rows = {r["schedule"]: r for r in b["rows"]}
        assert set(rows) == {"f64", "bf16"} and all(r["places"] == 1 for r in rows.values())
        # What one rank multiplies otherwise reaches the other one, too; beside a sum of bf16 it is little.
        assert 0 < rows["f64"]["size"] < 1e-3 and rows["bf16"]["share"] == pytest.approx(1, abs=1e-3)
        assert b["differing"] == 0 and b["together"] == pytest.approx(1)


def test_the_budget_says_what_it_leaves_out(lastbit, tmp_path):
    """A contribution that is missing, and ops that stand for a collective, are no swap: they are named, and nothing is made up."""
    gloo = record(lastbit, tmp_path, "gloo", 4, ["all_reduce"] * 2)
    other = record(lastbit, tmp_path, "other", 4, ["dropped", "gather_sum"])
    for sides, left in (
        ((gloo, other), {0: "down c10d::allreduce_: unexplained"}),
        ((other, gloo), {0: "down c10d::allreduce_: unexplained", 1: "order rank"}),
    ):
        for b in lastbit.json("explain", "--budget", *sides, expect=1)["budget"]:
            if b["step"] not in left:
                assert (b["left_out"], b["left"]) == (0, "") and len(b["rows"]) == 1 and (b["differing"] == 0 or not NORM_IS_KNOWN)
                continue
            assert b["left_out"] == 1 and left[b["step"]] in b["left"] and not b["rows"]
            assert b["together"] == pytest.approx(0, abs=1e-9) and b["rest"] == pytest.approx(1)
    text = lastbit.run("explain", "--budget", "--steps", 0, gloo, other, expect=1).stdout
    assert "what no replay made: 1 places have no swap (down c10d::allreduce_: unexplained)" in text


FAULTS = {
    "dropped": "without the contribution of rank {last}, order",
    "twice": "with the contribution of rank {last} added twice, order",
    "narrow": "with the contribution of rank {last} in bf16, order",
    "divided": "divided by the number of ranks besides, order",
}


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.full), 4])
def test_what_became_of_contributions_to_other_sums(lastbit, tmp_path, ranks):
    """reduce_scatter, and an all_reduce of several tensors: each rank is asked what it brought, and its part of the sum what came of it."""
    kinds = [f"{form}-{fault}" for form in ("scatter", "coalesced") for fault in (*FAULTS, "stale", "rank")]
    sides = (
        record(lastbit, tmp_path, "gloo", ranks, [kind.partition("-")[0] + "-gloo" for kind in kinds]),
        record(lastbit, tmp_path, "other", ranks, kinds),
    )
    findings = [f for f in lastbit.json("explain", *sides, expect=1)["findings"] if "c10d" in f["op"]]
    for step, kind in enumerate(kinds):
        form, _, fault = kind.partition("-")
        found = [f for f in findings if f["step"] == step]
        if fault == "rank":  # a legal order, which two ranks have in common with gloo
            assert [(f["cause"], f["schedule"]) for f in found] == ([("order", "rank")] if ranks > 2 else [])
            continue
        (f,) = found
        assert f["cause"] == "unexplained" and f["proof"] == "none" and f["matched"] < f["elements"]
        assert f["elements"] == 32 * 60 * (1 if form == "scatter" else ranks)
        assert f["op"] == {"scatter": "c10d::_reduce_scatter_base_", "coalesced": "c10d::allreduce_coalesced_"}[form]
        prefix = "no legal order of these inputs gives these bits; "
        if fault == "stale":  # none of the faults fits
            assert f["why"] == prefix + "all ranks brought the same bits"
        else:
            assert f["why"].startswith(prefix + FAULTS[fault].format(last=ranks - 1)), kind


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.full)])
def test_what_became_of_what_was_gathered(lastbit, tmp_path, ranks):
    """Added up by hand after all_gather, as a list or in one tensor: one side leaves a rank out, or has one twice."""
    kinds = ["gather-dropped", "gather-twice", "gather-divided", "whole-dropped", "whole-divided", "gather-stale"]
    sides = (
        record(lastbit, tmp_path, "right", ranks, [kind.partition("-")[0] + "-rank" for kind in kinds]),
        record(lastbit, tmp_path, "wrong", ranks, kinds),
    )
    for turned in (False, True):
        answer = lastbit.json("explain", *(reversed(sides) if turned else sides), expect=1)
        for step, kind in enumerate(kinds):
            found = [f for f in answer["findings"] if f["step"] == step and f["cause"] != "input"]
            assert sorted(f["rank"] for f in found) == list(range(ranks)), kind
            for f in found:
                assert (f["cause"], f["layer"], f["matched"], f["elements"]) == ("unexplained", "down", 0, 32 * 60)
                if kind.endswith("stale"):
                    assert "contribution" not in f["why"] and "divided" not in f["why"]
                    continue
                inputs = "the first side's inputs gives its bits" if turned else "these inputs gives these bits"
                fault = FAULTS[kind.partition("-")[2]].format(last=ranks - 1)
                assert f["why"].startswith(f"no legal order of {inputs}; {fault}"), (kind, f["why"])


@pytest.mark.parametrize(
    "ranks, fault",
    [
        pytest.param(2, "dropped", marks=pytest.mark.full),
        *(pytest.param(4, fault, marks=pytest.mark.full) for fault in ("dropped", "twice", "divided")),
    ],
)
def test_one_of_several_buckets(lastbit, tmp_path, ranks, fault):
    """DistributedDataParallel: the first bucket is as it should be, of the second one contribution is not."""
    sides = []
    for how in ("gloo", fault):
        sides.append(tmp_path / f"{how}.lb")
        lastbit.record(sides[-1], "tests/programs/ranks/ddp_buckets.py", ranks, how, options=("--level", "ops", "--steps", "1-1"), expect=0)
    (f,) = [f for f in lastbit.json("explain", *sides, expect=1)["findings"] if f["cause"] != "input"]
    assert (f["op"], f["layer"], f["cause"], f["elements"]) == ("c10d::allreduce_", "0", "unexplained", ranks * 1000)
    assert f["why"].startswith("no legal order of these inputs gives these bits; " + FAULTS[fault].format(last=ranks - 1))


@pytest.mark.full
def test_gradients_sent_in_bf16(lastbit, tmp_path):
    """DistributedDataParallel with and without torch's compression of gradients: each bucket is one op."""
    sides = []
    for name, options in (("plain", ()), ("bf16", ("--compress",))):
        sides.append(tmp_path / f"{name}.lb")
        lastbit.record(
            sides[-1],
            "tests/programs/ranks/ddp_accumulate.py",
            "--spawn",
            3,
            "--steps",
            2,
            *options,
            options=("--level", "ops", "--steps", "0-0"),
            expect=0,
        )
    found = [f for f in lastbit.json("explain", *sides, expect=1)["findings"] if f["cause"] != "input"]
    (bucket,) = [f for f in found if f["op"] == "c10d::allreduce_"]
    assert (bucket["cause"], bucket["first"], bucket["schedule"], bucket["matched"]) == ("precision", "f32", "bf16", 3 * 938)
    divided = [f for f in found if f["other_op"] == "aten::div_.Tensor"]
    assert sorted(f["rank"] for f in divided) == [0, 1, 2] and {f["schedule"] for f in divided} == {"bf16"}
