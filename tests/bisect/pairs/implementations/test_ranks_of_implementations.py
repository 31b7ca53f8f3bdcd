"""Two implementations of one model that share their work out over ranks in their own ways, or one of which is one process: one function, and every fault by
its place and rank."""

import pytest
from conftest import ROOT, warm_python

PROGRAM = "two_parallel.py"


@pytest.fixture(scope="module")
def recorded(lastbit, tmp_path_factory):
    made = {}

    def record(*words, program=PROGRAM, ranks=None):
        n = ranks if ranks is not None else 2 if "--how" in words else 1
        if (program, words, n) not in made:
            out = tmp_path_factory.mktemp("ranks") / "run.lb"
            torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n)) if n > 1 else ()
            command = (*warm_python(), *torchrun, ROOT / "tests/programs/ranks" / program, *words)
            lastbit.run("record", "-o", out, "--level", "ops", "--", *command, expect=0)
            made[program, words, n] = out
        return made[program, words, n]

    return record


@pytest.fixture(scope="module")
def diff(lastbit, recorded):
    def answer(first, second, expect=1):
        return lastbit.json("diff", recorded(*first.split()), recorded(*second.split()), expect=expect)

    return answer


def places(answer):
    return [(d["layer"], d["layer_b"], d["ranks_b"]) for d in answer["differences"]]


ONE, DDP, FSDP = "transformers", "transformers --how ddp", "transformers --how fsdp2"
BY_HAND = "decoder --how "


@pytest.mark.parametrize("first, second", [
    (DDP, BY_HAND + "ddp"),  # torch's buckets against a loop over gradients
    (FSDP, BY_HAND + "ddp"),  # parameters in parts
    (ONE, BY_HAND + "ddp"),  # parts of the batch
    (ONE, BY_HAND + "tp"),  # columns and rows of weights, the vocabulary and its loss in parts
    (ONE, BY_HAND + "sp"),  # the sequence in parts between them
    (ONE, BY_HAND + "pp"),  # stages
    (DDP, BY_HAND + "sp"),  # parts of the batch here, of weights and of the sequence there
    (BY_HAND + "pp", FSDP),
    (FSDP, BY_HAND + "tp"),  # rows of a weight here, columns there
    (DDP + " --steps 2", BY_HAND + "sp --steps 2"),  # what each rank has a part of is known from the step before
])  # fmt: skip
def test_healthy_pairs_are_one_function(diff, first, second):
    answer = diff(first, second, expect=0)
    assert answer["verdict"] == "rounding" and answer["implementations"] and not answer["missing"] and not answer["differences"]


def test_a_gradient_divided_twice_and_a_rank_with_another_eps_are_two_places(diff):
    answer = diff(DDP, BY_HAND + "ddp --fault rank_eps --fault twice")
    assert answer["verdict"] == "diverged"
    assert ("model.layers.1.post_attention_layernorm", "blocks.1.between", [1]) in places(answer)
    (update,) = [d for d in answer["differences"] if d["layer_b"] != "blocks.1.between"]
    assert (update["layer"], update["phase"]) == ("model.layers.0.mlp.down_proj", "backward")


@pytest.mark.parametrize("first", [ONE, BY_HAND + "tp"])
def test_a_norm_whose_gradient_is_not_added_up_is_named(diff, first):
    answer = diff(first, BY_HAND + "sp --fault no_reduce")
    assert answer["verdict"] == "diverged" and {d["layer_b"] for d in answer["differences"]} == {"blocks.1.between"}
    assert {d["phase"] for d in answer["differences"]} == {"backward"}


def test_ranks_that_have_each_others_part_of_a_weight_are_named(diff):
    answer = diff(ONE, BY_HAND + "tp --fault shard")
    assert answer["verdict"] == "diverged"
    assert [(d["layer"], d["layer_b"]) for d in answer["differences"]] == [("model.layers.1.self_attn.o_proj", "blocks.1.mix.out")]


def test_experts_on_other_ranks_are_one_function(lastbit, recorded):
    one, shared = (recorded(program="two_experts.py", ranks=n) for n in (1, 2))
    for pair in ((one, shared), (shared, one)):
        answer = lastbit.json("diff", *pair, expect=0)
        assert answer["verdict"] == "rounding" and answer["implementations"]


def test_bisect_names_the_rank(lastbit, recorded):
    good, bad = recorded(*DDP.split()), recorded(*(BY_HAND + "ddp --fault rank_eps --fault twice").split())
    answer = lastbit.json("bisect", good, "--against", bad, expect=1)
    assert "model.layers.1.post_attention_layernorm" in [culprit["layer"] for culprit in answer["culprits"]]
