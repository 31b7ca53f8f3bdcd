"""Runs that share one model out in other ways are the same run; a rank that has another's part, or a copy of its own, is named."""

import pytest
from conftest import ROOT, warm_python


@pytest.fixture(scope="module")
def recorded(lastbit, tmp_path_factory):
    """Records a program on so many processes, each once per settings."""
    folder, done = tmp_path_factory.mktemp("twins"), {}

    def record(ranks, *args, program="parallel_twins.py"):
        if (program, ranks, args) not in done:
            done[program, ranks, args] = folder / f"{len(done)}.lb"
            torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)) if ranks > 1 else ()
            command = (*warm_python(), *torchrun, ROOT / "tests/programs/ranks" / program, *args)
            lastbit.run("record", "-o", done[program, ranks, args], "--level", "ops", "--", *command, expect=0)
        return done[program, ranks, args]

    return record


FSDP2, DDP, CP, SP, TP = (2, "--how", "fsdp2"), (2, "--how", "ddp"), (2, "--how", "cp"), (2, "--how", "sp"), (2, "--how", "tp")
SQ, FSDP1, FLAT = (2, "--how", "sq"), (2, "--how", "fsdp1"), (2, "--how", "fsdp1", "--flat")
HSDP, GRID = (4, "--how", "hsdp"), (4, "--how", "grid")
UNEVEN = ("--vocabulary", "33", "--width", "20")
full = pytest.mark.full


@pytest.mark.parametrize(
    "one, other",
    [
        pytest.param((1,), FSDP2, id="fsdp2"),
        pytest.param(CP, (1,), id="cp"),
        pytest.param(DDP, FSDP2, id="ddp-fsdp2"),
        pytest.param(DDP, FSDP1, id="ddp-fsdp1"),
        pytest.param((1,), FSDP1, marks=full, id="fsdp1"),
        pytest.param(FSDP2, FSDP1, marks=full, id="fsdp2-fsdp1"),
        pytest.param((1,), FLAT, marks=full, id="fsdp1-flat"),
        pytest.param(FSDP1, FLAT, marks=full, id="fsdp1-fsdp1-flat"),
        pytest.param((1,), TP, marks=full, id="tp"),
        pytest.param((1,), SP, marks=full, id="sp"),
        pytest.param((1, "--how", "ep"), (2, "--how", "ep"), marks=full, id="ep"),
        pytest.param((1, *UNEVEN), (*FSDP2, *UNEVEN), marks=full, id="fsdp2-uneven"),
        pytest.param((1,), HSDP, marks=full, id="hsdp"),
        pytest.param(FSDP2, HSDP, marks=full, id="fsdp2-hsdp"),
        pytest.param(FSDP1, HSDP, marks=full, id="fsdp1-hsdp"),
        pytest.param((4, "--how", "fsdp2"), HSDP, marks=full, id="fsdp2-4-hsdp"),
        pytest.param((1,), GRID, marks=full, id="grid"),
        pytest.param(FSDP2, GRID, marks=full, id="fsdp2-grid"),
        pytest.param(TP, GRID, marks=full, id="tp-grid"),
        pytest.param(DDP, (4, "--how", "fsdp2"), marks=full, id="ddp-fsdp2-4"),
        pytest.param((1,), (4, "--how", "cp"), marks=full, id="cp-4"),
        pytest.param((1,), (4, "--how", "tp"), marks=full, id="tp-4"),
    ],
)
def test_a_healthy_run_is_the_same_however_it_is_shared_out(lastbit, recorded, one, other):
    for pair in ((one, other), (other, one)):
        answer = lastbit.json("diff", *(recorded(*side) for side in pair), expect=0)
        assert answer["verdict"] in ("identical", "reordered", "rounding"), answer["first"]
        assert answer["ops"]["aligned"] > 240 and not answer["missing"]
        assert not any("diverged" in (row["local"], row["inherited"]) for row in answer["layers"])


@pytest.mark.parametrize(
    "one, other",
    [
        pytest.param(TP, DDP, marks=full, id="tp-ddp"),
        pytest.param(TP, FSDP1, marks=full, id="tp-fsdp1"),
        pytest.param(TP, FSDP2, marks=full, id="tp-fsdp2"),
        pytest.param(GRID, (4, "--how", "ddp"), marks=full, id="grid-ddp-4"),
        pytest.param((4, "--how", "tp"), DDP, marks=full, id="tp-4-ddp"),
    ],
)
def test_weights_shared_out_here_and_batches_there_are_the_same(lastbit, recorded, one, other):
    """One rank of those that share out the weights stands for all; what it is made of on the other side is put together."""
    for pair in ((one, other), (other, one)):
        answer = lastbit.json("diff", *(recorded(*side) for side in pair), expect=0)
        assert answer["verdict"] == "rounding" and answer["ops"]["aligned"] > 60 and not answer["missing"], answer["first"]
        assert not any("diverged" in (row["local"], row["inherited"]) for row in answer["layers"])


@pytest.mark.parametrize("one", [pytest.param(DDP, id="ddp"), pytest.param(TP, id="tp"), pytest.param(SP, marks=full, id="sp")])
def test_a_zigzag_and_work_shared_out_otherwise_are_one_function(lastbit, recorded, one):
    """Which rank has which tokens is read from the tokens themselves."""
    for pair in ((one, CP), (CP, one)):
        answer = lastbit.json("diff", *(recorded(*side) for side in pair), expect=0)
        assert answer["verdict"] == "rounding" and answer["implementations"] and not answer["missing"]


@pytest.mark.parametrize("fault, place", [("scaled", ("forward", "blocks.1.mlp")), ("decay", ("optimizer", ""))])
def test_a_fault_between_a_zigzag_and_a_batch_is_the_one_place(lastbit, recorded, fault, place):
    answer = lastbit.json("diff", recorded(*DDP), recorded(*CP, "--fault", fault), expect=1)
    assert answer["verdict"] == "diverged" and [(d["phase"], d["layer"]) for d in answer["differences"]] == [place]


@pytest.mark.parametrize(
    "good, bad, place",
    [
        pytest.param(CP, (*SP, "--fault", "drift"), (1, "blocks.1.norm1.weight"), id="cp-sp"),
        pytest.param(TP, (*SP, "--fault", "other_shard"), (1, "blocks.1.mlp.up.weight"), marks=full, id="tp-sp"),
        pytest.param(TP, (*SQ, "--fault", "other_shard"), (1, "blocks.1.mlp.up.weight"), marks=full, id="tp-sq"),
        pytest.param(DDP, (*FSDP1, "--fault", "other_shard"), (1, "blocks.1.norm2.bias"), marks=full, id="ddp-fsdp1"),
        pytest.param((1,), (*FSDP1, "--fault", "other_shard"), (1, "blocks.1.norm2.bias"), marks=full, id="fsdp1"),
        pytest.param(FSDP2, (*FSDP1, "--fault", "other_shard"), (1, "blocks.1.norm2.bias"), marks=full, id="fsdp2-fsdp1"),
    ],
)
def test_a_fault_is_named_between_sides_that_cut_otherwise(lastbit, recorded, good, bad, place):
    first = lastbit.json("diff", recorded(*good), recorded(*bad), expect=1)["first"]
    assert (first["step"], first["other_rank"], first["layer"], first["local"]) == (0, *place, "diverged"), first
    turned = lastbit.json("diff", recorded(*bad), recorded(*good), expect=1)["first"]
    assert (turned["step"], turned["rank"], turned["layer"], turned["local"]) == (0, *place, "diverged"), turned


@pytest.mark.parametrize(
    "good, how",
    [
        pytest.param(DDP, FSDP1, id="ddp-fsdp1"),
        pytest.param((1,), FSDP1, marks=full, id="fsdp1"),
        pytest.param(FSDP2, FSDP1, marks=full, id="fsdp2-fsdp1"),
        pytest.param(FLAT, FSDP1, marks=full, id="fsdp1-flat-fsdp1"),
        pytest.param((1,), HSDP, marks=full, id="hsdp"),
        pytest.param(FSDP1, HSDP, marks=full, id="fsdp1-hsdp"),
        pytest.param(TP, GRID, marks=full, id="tp-grid"),
        pytest.param((1,), GRID, marks=full, id="grid"),
        pytest.param(FSDP2, GRID, marks=full, id="fsdp2-grid"),
        pytest.param(TP, SP, marks=full, id="tp-sp"),
        pytest.param(TP, SQ, marks=full, id="tp-sq"),
    ],
)
def test_a_fault_inside_a_layer_is_named_between_sides_that_cut_otherwise(lastbit, recorded, good, how):
    bad = recorded(*how, "--fault", "scaled")
    for pair in ((recorded(*good), bad), (bad, recorded(*good))):
        first = lastbit.json("diff", *pair, expect=1)["first"]
        assert (first["step"], first["phase"], first["layer"], first["op"]) == (0, "forward", "blocks.1.mlp", "aten::mul.Tensor"), first
        assert first["local"] == "diverged"


@pytest.mark.parametrize(
    "good, how, part",
    [
        pytest.param((1,), HSDP, "[16:32, :]", marks=full, id="hsdp"),
        pytest.param((4, "--how", "ddp"), HSDP, "[16:32, :]", marks=full, id="ddp-4-hsdp"),
        pytest.param((4, "--how", "fsdp2"), HSDP, "[16:32, :]", marks=full, id="fsdp2-4-hsdp"),
        pytest.param((1,), GRID, "[24:32, :]", marks=full, id="grid"),
        pytest.param(FSDP2, GRID, "[24:32, :]", marks=full, id="fsdp2-grid"),
        pytest.param(TP, GRID, "[24:32, :]", marks=full, id="tp-grid"),
    ],
)
def test_a_rank_of_a_grid_with_anothers_part_is_named(lastbit, recorded, good, how, part):
    bad = recorded(*how, "--fault", "other_shard")
    for pair, rank in (((recorded(*good), bad), "other_rank"), ((bad, recorded(*good)), "rank")):
        first = lastbit.json("diff", *pair, expect=1)["first"]
        assert (first["step"], first["layer"], first["local"], first[rank]) == (0, "blocks.1.mlp.up.weight", "diverged", 3), first
        assert f"that of rank 3, {part} of [32, 16] is another" in first["why"] and "it has what rank 0 " in first["why"], first


@pytest.mark.full
def test_a_fault_where_the_sequence_is_cut_is_named_behind_it(lastbit, recorded):
    """A norm runs over half of the tokens on one side and over all on the other: the sides share an op again in the MLP behind it."""
    bad = recorded(*SP, "--fault", "eps")
    for pair in ((recorded(*TP), bad), (bad, recorded(*TP))):
        first = lastbit.json("diff", *pair, expect=1)["first"]
        assert (first["step"], first["phase"], first["layer"], first["local"]) == (0, "forward", "blocks.1.mlp.up", "diverged"), first
        assert "run over other parts on the two sides" in first["why"], first


def test_an_update_of_flat_parameters_that_is_another_is_diverged(lastbit, recorded):
    """Weight decay is in the optimizer alone, whose ops run over other parts on the two sides: what they leave is compared."""
    answer = lastbit.json("diff", recorded(*DDP), recorded(*FLAT, "--fault", "decay"), expect=1)
    assert answer["verdict"] == "diverged" and answer["first"]["step"] == 0
    assert not any(row["verdict"] == "diverged" for row in answer["layers"] if row["phase"] == "forward" and row["step"] == 0)


def test_without_names_a_zigzag_is_put_together_by_its_tokens(lastbit, recorded):
    """Shapes alone say that the first half is the first rank's; the tokens themselves say which are whose."""
    answer = lastbit.json("diff", recorded(1), recorded(*CP, "--unnamed"), expect=0)
    assert answer["verdict"] == "rounding" and answer["implementations"] and not answer["missing"]


@pytest.mark.parametrize("good", [(1,), DDP, pytest.param(FSDP2, marks=full)])
def test_a_rank_with_anothers_part_is_named_with_the_tensor(lastbit, recorded, good):
    bad = recorded(*FSDP2, "--fault", "other_shard")
    first = lastbit.json("diff", recorded(*good), bad, expect=1)["first"]
    assert (first["step"], first["layer"], first["local"]) == (0, "blocks.1.mlp.up.weight", "diverged"), first
    if good == FSDP2:
        assert first["rank"] == 1 and first["why"].endswith("the second side has what rank 0 has on the first side"), first
        return
    said = "that of rank 1, [16:32, :] of [32, 16] is another: it has what rank 0 should have"
    assert first["why"].endswith(said), first
    turned = lastbit.json("diff", bad, recorded(*good), expect=1)["first"]
    assert turned["rank"] == 1 and turned["layer"] == first["layer"] and turned["why"].endswith(said), turned


def test_a_copy_that_drifts_is_named(lastbit, recorded):
    answer = lastbit.json("ranks", recorded(*SP, "--fault", "drift"), expect=1)
    found = [row for row in answer["findings"] if "blocks.1.norm1.weight" in str(row)]
    assert found and "no longer the same on the 2 ranks" in str(found[0]), answer["findings"]
    healthy = lastbit.json("ranks", recorded(*FSDP2), expect=(0, 1))
    assert not any("no longer the same" in str(row) for row in healthy["findings"])


def test_bisect_against_a_run_that_is_shared_otherwise_names_the_tensor(lastbit, recorded):
    answer = lastbit.json("bisect", recorded(*FSDP2, "--fault", "other_shard"), "--against", recorded(1), expect=1)
    assert "blocks.1.mlp.up.weight" in str(answer["culprit"]), answer["culprit"]


# ---- a program that shares out its weights by hand, and says nothing of it


@pytest.fixture(scope="module")
def by_hand(recorded):
    return lambda ranks, tp=1, *fault: recorded(ranks, *(("--tp", str(tp)) if tp > 1 else ()), *fault, program="token_first.py")


@pytest.mark.parametrize(
    "one, other",
    [
        pytest.param((1,), (2,), id="dp"),
        pytest.param((2, 2), (2,), id="tp-dp"),
        pytest.param((1,), (4, 2), marks=full, id="grid"),
        pytest.param((2, 2), (4, 2), marks=full, id="tp-grid"),
        pytest.param((2,), (4, 2), marks=full, id="dp-grid"),
        pytest.param((4,), (4, 2), marks=full, id="dp-4-grid"),
        pytest.param((2,), (4,), marks=full, id="dp-dp-4"),
        pytest.param((1,), (2, 2), marks=full, id="tp"),
    ],
)
def test_tokens_before_the_batch_are_the_same_on_any_ranks(lastbit, by_hand, one, other):
    """Tokens flattened with the batch behind them lie in other places in a smaller batch; shapes do not tell."""
    for pair in ((one, other), (other, one)):
        answer = lastbit.json("diff", *(by_hand(*side) for side in pair), expect=0)
        assert answer["verdict"] == "rounding" and answer["ops"]["aligned"] > 200 and not answer["missing"], answer["first"]
        assert not any("diverged" in (row["local"], row["inherited"]) for row in answer["layers"])


def test_results_flattened_behind_their_tokens_are_put_together_bit_by_bit(lastbit, by_hand):
    """Half of a batch gives the same bits up to the losses; without the blocks every projection would be rounding."""
    answer = lastbit.json("diff", by_hand(1), by_hand(2), expect=0)
    assert answer["first"]["op"] == "aten::nll_loss_forward" and answer["first"]["phase"] == "forward", answer["first"]


@pytest.mark.parametrize(
    "good, bad, layer",
    [
        pytest.param((2,), (2, 2, "--fault", "bias_twice"), "blocks.1.mlp.down", id="dp-tp-bias"),
        pytest.param((1,), (2, 2, "--fault", "bias_twice"), "blocks.1.mlp.down", marks=full, id="tp-bias"),
        pytest.param((1,), (4, 2, "--fault", "bias_twice"), "blocks.1.mlp.down", marks=full, id="grid-bias"),
        pytest.param((1,), (2, 2, "--fault", "no_reduce"), "blocks.1.attention.o", id="tp-not-added-up"),
        pytest.param((1,), (2, 1, "--fault", "skip"), "blocks.1.norm2", marks=full, id="dp-not-averaged"),
        pytest.param((2, 2), (2, 1, "--fault", "skip"), "blocks.1.norm2", marks=full, id="tp-dp-not-averaged"),
        pytest.param((2,), (2, 2, "--fault", "other_shard"), "blocks.1.mlp.up.weight", marks=full, id="dp-tp-shard"),
    ],
)
def test_a_mistake_of_sharing_out_by_hand_is_named(lastbit, by_hand, good, bad, layer):
    for pair in ((good, bad), (bad, good)):
        answer = lastbit.json("diff", *(by_hand(*side) for side in pair), expect=1)
        first = answer["first"]
        assert (first["step"], first["layer"], first["local"]) == (0, layer, "diverged"), first
        if bad[-1] in ("no_reduce", "skip"):
            assert first["why"] == "each rank takes what it has by itself, terms of a sum, for the sum of all", first


@pytest.mark.full
@pytest.mark.parametrize("good, bad, rank", [((2,), (2, 2), 1), ((1,), (4, 2), 3), ((4,), (4, 2), 3), ((2, 2), (4, 2), 3)])
def test_the_rank_that_scales_its_heads_is_named(lastbit, by_hand, good, bad, rank):
    wrong = by_hand(*bad, "--fault", "scale")
    for pair, key in (((by_hand(*good), wrong), "other_rank"), ((wrong, by_hand(*good)), "rank")):
        first = lastbit.json("diff", *pair, expect=1)["first"]
        assert (first["step"], first["phase"], first["layer"], first[key]) == (0, "forward", "blocks.1.attention", rank), first


def test_an_update_over_other_parts_is_named_where_it_is_made(lastbit, by_hand):
    """Weights decay faster: the ops of the update run over other parts on the two sides, and its arguments tell."""
    bad = by_hand(2, 2, "--fault", "decay")
    for pair in ((by_hand(2), bad), (bad, by_hand(2))):
        first = lastbit.json("diff", *pair, expect=1)["first"]
        assert (first["step"], first["phase"], first["op"], first["local"]) == (0, "optimizer", "aten::mul_.Tensor", "diverged"), first
