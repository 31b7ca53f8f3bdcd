"""Batches of other sizes: the rows that both have are held against each other. What PyTorch itself sees decides what is true: which
modules give those rows other bits depends on the machine and its libraries."""

import os
import subprocess

import pytest
import torch
from conftest import ROOT, warm_python

ALL = "6+1+3+0+7+2+5+4"  # all eight texts, in another order
RECORDINGS = {
    "one": "rows=3",
    "two": "rows=3+7",
    "seven": "rows=7",
    "eight": f"rows={ALL}",
    "dup": "rows=3+5+3",
    "place": "rows=3,positional=1",
    "element": f"rows={ALL},fault=element",
    "weight": f"rows={ALL},fault=weight",
    "other": f"rows={ALL},seed=9",
    "long": "rows=3,length=5",
    "stats": "rows=3,level=stats",
    "bf16.1": "rows=3,dtype=bfloat16,attention=eager",
    "bf16.8": f"rows={ALL},dtype=bfloat16,attention=eager",
    "gpt2.1": "model=gpt2,rows=3,attention=eager,length=5",
    "gpt2.8": f"model=gpt2,rows={ALL},attention=eager,length=5",
    "vit.1": "model=vit,rows=5",
    "vit.8": f"model=vit,rows={ALL}",
    "class.1": "model=classifier,rows=5",
    "class.8": f"model=classifier,rows={ALL}",
    "decode.2": "generate=1,rows=5+2,length=8",
    "decode.8": f"generate=1,rows={ALL},length=8",
    "train.1": "train=1,rows=3,length=5",
    "train.8": f"train=1,rows={ALL},length=5",
    "train.gpt2.1": "train=1,model=gpt2,attention=eager,rows=3",
    "train.gpt2.8": f"train=1,model=gpt2,attention=eager,rows={ALL}",
    "train.bf16.2": "train=1,dtype=bfloat16,rows=3+0",
    "train.bf16.8": f"train=1,dtype=bfloat16,rows={ALL}",
    **{
        f"{how}.{name}": f"model=mixture,length=6,experts={how},rows={rows}"
        for how in ("eager", "grouped_mm")
        for name, rows in (("1", "3"), ("8", ALL))
    },
    **{f"mixture.{fault}": f"model=mixture,length=6,experts=grouped_mm,rows={ALL},fault={fault}" for fault in ("element", "weight", "roll")},
    "mixture.train.1": "model=mixture,length=6,rows=3,train=1",
    "mixture.train.8": f"model=mixture,length=6,rows={ALL},train=1",
}


@pytest.fixture(scope="module")
def batches(tmp_path_factory):
    folder = tmp_path_factory.mktemp("batches")
    done = subprocess.run(
        [*warm_python(), ROOT / "tests" / "programs" / "batches.py", folder, *(f"{name}:{options}" for name, options in RECORDINGS.items())],
        capture_output=True,
        text=True,
        env=dict(os.environ),
    )
    assert done.returncode == 0, done.stderr
    return folder


def explain(lastbit, batches, one, other, *options, expect=(0, 1)):
    """Alternatives to what was found are ruled out elsewhere."""
    return lastbit.json("explain", batches / f"{one}.lb", batches / f"{other}.lb", "--seconds", "0.1", *options, expect=expect)


def own(answer):
    return [f for f in answer["findings"] if f["cause"] != "input"]


def rows_of(name):
    options = dict(item.split("=") for item in RECORDINGS[name].split(","))
    return [int(row) for row in options["rows"].split("+")]


def other_modules(batches, few, many):
    """Modules that give the common rows other bits, in the order in which they ran, by PyTorch's own hooks."""
    a, b = (torch.load(batches / f"{name}.pt") for name in (few, many))
    places = [rows_of(many).index(row) for row in rows_of(few)]
    rows = {path: (x, y[places] if y.shape[0] == len(rows_of(many)) else y) for (path, x), y in zip(a.items(), (b[path] for path in a))}
    return [path for path, (x, y) in rows.items() if not torch.equal(x, y)]


@pytest.mark.parametrize(
    "few, many, turned",
    [
        ("one", "eight", False),
        ("one", "eight", True),
        ("two", "eight", True),
        ("one", "dup", False),
        ("bf16.1", "bf16.8", False),
        ("gpt2.1", "gpt2.8", False),
        ("gpt2.1", "gpt2.8", True),
        ("vit.1", "vit.8", False),
        ("class.1", "class.8", False),
    ],
)
def test_a_prompt_alone_and_among_others(lastbit, batches, few, many, turned):
    answer = explain(lastbit, batches, *((many, few) if turned else (few, many)))
    (rows,) = answer["rows"]
    places = [rows_of(many).index(row) for row in rows_of(few)]
    pairs = [[place, i] if turned else [i, place] for i, place in enumerate(places)]
    sizes = (len(rows_of(few)), len(rows_of(many)))
    assert (rows["first"], rows["second"]) == (sizes[::-1] if turned else sizes) and rows["pairs"] == pairs
    assert rows["by"] == ("input:pixel_values" if few.startswith("vit") else "input:input_ids") and answer["missing"] == []
    apart, found = other_modules(batches, few, many), own(answer)
    if not apart:
        assert found == [] or all(f["layer"] not in torch.load(batches / f"{few}.pt") for f in found)
    else:  # the first is where PyTorch sees the first other bits: the module itself, or one whose op's result another reads
        first = min(found, key=lambda f: f["index"])["layer"]
        assert apart[0] == first or apart[0].startswith(first + "."), (apart, [f["layer"] for f in found])
    for f in found:
        assert f["cause"] in ("kernel", "order") and f["op"] == f["other_op"]
        assert f"other bits in a batch of {sizes[1]} than in one of {sizes[0]}" in f["why"]
    assert all(f["matched"] == f["elements"] for f in answer["findings"] if f["cause"] == "input" and f["proof"] == "bits")


def test_rows_that_have_the_same_bits_say_so(lastbit, batches):
    """A product's order of summation may depend on how many rows it has: these are of one kind on every machine."""
    text = lastbit.run("explain", batches / "eight.lb", batches / "eight.lb", expect=0).stdout
    assert "nothing differs" in text and "rows:" not in text
    if not other_modules(batches, "two", "eight") and not explain(lastbit, batches, "two", "eight")["findings"]:
        text = lastbit.run("explain", batches / "two.lb", batches / "eight.lb", expect=0).stdout
        assert "nothing differs in" in text and "rows 0, 1 of the first are rows 2, 4 of the second" in text


@pytest.mark.parametrize("few", ["one", "two"])
def test_a_wrong_element_in_a_row(lastbit, batches, few):
    clean = {f["index"] for f in own(explain(lastbit, batches, few, "eight"))}
    (f,) = [f for f in own(explain(lastbit, batches, few, "element")) if f["index"] not in clean]
    assert (f["layer"], f["op"], f["cause"]) == ("model.layers.1.mlp.act_fn", "aten::silu", "unexplained")
    assert f["elements"] == len(rows_of(few)) * 3 * 688 > f["matched"]
    if not clean:  # its inputs are the same: then one number is another
        assert f"in 1 of {f['elements']} elements" in f["why"]


def test_a_wrong_element_in_a_row_that_the_other_side_has_not(lastbit, batches):
    one, other = (
        [(f["index"], f["layer"], f["op"], f["cause"]) for f in own(explain(lastbit, batches, "seven", many))] for many in ("eight", "element")
    )
    assert one == other


def test_a_weight_that_differs(lastbit, batches):
    answer = explain(lastbit, batches, "two", "weight", expect=1)
    (source,) = [f for f in answer["findings"] if f["op"] == "lb::source"]
    assert source["schedule"] == "parameter model.layers.1.mlp.up_proj.weight" and source["cause"] == "input"
    assert (source["matched"], source["elements"]) == (688 * 256 - 1, 688 * 256)
    clean = {f["index"] for f in own(explain(lastbit, batches, "two", "eight"))}
    assert {f["index"] for f in own(answer)} <= clean


def test_an_input_by_name_and_by_place(lastbit, batches):
    """A server may call the model in another way than a trainer: what is the batch has other names then."""
    one, other = (explain(lastbit, batches, few, "eight") for few in ("one", "place"))
    assert one["rows"][0]["pairs"] == other["rows"][0]["pairs"] == [[0, 2]]
    assert [(f["layer"], f["cause"]) for f in own(one)] == [(f["layer"], f["cause"]) for f in own(other)]
    (missing,) = explain(lastbit, batches, "place", "long", expect=(0, 1, 125))["missing"]
    assert "is [1, 3] on the first side and [1, 5] on the second" in missing


def test_no_row_of_one_is_a_row_of_the_other(lastbit, batches):
    answer = explain(lastbit, batches, "two", "other", expect=125)
    (missing,) = answer["missing"]
    assert answer["findings"] == [] and "batches have 2 and 8 rows (input:input_ids)" in missing
    assert "row 0 of the smaller is not a row of the larger" in missing and "Record" in missing


def test_texts_of_other_lengths(lastbit, batches):
    answer = explain(lastbit, batches, "eight", "long", expect=125)
    (missing,) = answer["missing"]
    assert answer["findings"] == [] and "input:input_ids is [8, 3] on the first side and [1, 5] on the second" in missing
    assert "Record both sides with inputs of one length" in missing


def test_batches_whose_bytes_were_not_kept(lastbit, batches):
    answer = explain(lastbit, batches, "stats", "eight", expect=125)
    (missing,) = answer["missing"]
    assert answer["findings"] == [] and "input:input_ids, by which rows are known" in missing and "--level sources" in missing


@pytest.mark.full
def test_decoding_with_a_cache_in_batches_of_other_sizes(lastbit, batches):
    answer = explain(lastbit, batches, "decode.8", "decode.2")
    assert [r["step"] for r in answer["rows"]] == [0, 1, 2] and answer["missing"] == []
    assert all(r["pairs"] == [[6, 0], [5, 1]] for r in answer["rows"])
    assert {f["cause"] for f in own(answer)} <= {"kernel", "order"} and not [f for f in answer["findings"] if f["op"] == "lb::source"]


@pytest.mark.parametrize(
    "few, many, reductions",
    [("train.1", "train.8", 22), ("train.gpt2.1", "train.gpt2.8", None), pytest.param("train.bf16.2", "train.bf16.8", 22, marks=pytest.mark.full)],
)
def test_a_training_step_on_other_rows_besides(lastbit, batches, few, many, reductions):
    """The loss and the gradients of weights are of other rows; what follows from them is inherited, and nothing is unexplained."""
    answer = explain(lastbit, batches, few, many, expect=1)
    (rows,) = answer["rows"]
    if reductions:  # the loss, and a gradient for each of 21 parameters
        assert rows["over_others"] == reductions
    assert {f["cause"] for f in own(answer)} <= {"kernel", "order"} and answer["missing"] == []
    assert all(f["phase"] != "optimizer" for f in own(answer))
    optimizer = [f for f in answer["findings"] if f["phase"] == "optimizer"]
    assert len(optimizer) >= 100 and all(f["matched"] == f["elements"] for f in optimizer if f["proof"] == "bits")
    # Gradients of activations differ by the mean over four or eight times as many tokens, and only by that: their ops are held against
    # each other row by row.
    backward = [f for f in answer["findings"] if f["phase"] == "backward"]
    assert len(backward) > 50 and any(f["op"].startswith("aten::nll_loss_backward") for f in backward)
    if few != "train.bf16.2":
        return
    text = lastbit.run("explain", batches / f"{few}.lb", batches / f"{many}.lb", expect=1).stdout
    assert "something over all rows (a loss, a weight's gradient): over different rows, and so not compared" in text


def test_diff_says_that_the_batches_have_other_sizes(lastbit, batches):
    text = lastbit.run("diff", batches / "one.lb", batches / "eight.lb", expect=1).stdout
    assert "the sides' batches have 1 and 8 rows (input:input_ids)" in text and "row 0 of the first is row 2 of the second" in text
    assert "`lastbit explain` holds the rows that both have against each other" in text
    text = lastbit.run("diff", batches / "other.lb", batches / "two.lb", expect=1).stdout
    assert "batches have 8 and 2 rows" in text and "row 0 of the smaller is not a row of the larger" in text
    assert "the sides' batches" not in lastbit.run("diff", batches / "eight.lb", batches / "weight.lb", expect=1).stdout


@pytest.mark.full
@pytest.mark.parametrize("few, many, narrow", [("one", "bf16.8", "second"), ("bf16.1", "eight", "first")])
def test_other_precisions_in_batches_of_other_sizes(lastbit, batches, few, many, narrow):
    """A trainer in f32 and a server in bf16, each with its own batch and attention: both sides' ops are run on the rows they share."""
    answer = explain(lastbit, batches, few, many, expect=1)
    found = own(answer)
    linear = [f for f in found if f["op"] == "aten::mm"]
    assert {f["layer"] for f in linear} >= {f"model.layers.{i}.mlp.{name}" for i in range(2) for name in ("gate_proj", "down_proj")}
    for f in linear:
        assert f["cause"] == "precision"
        if f["proof"] == "bits":  # f32 rounded at the end, whichever side it is
            assert f["schedule"].startswith("bf16") and f["first"] == "f32" and f["matched"] == f["elements"]
            assert f["reversed"] == (narrow == "first")
        else:  # a kernel that replay has not
            assert f["proof"] == "bound" and f["schedule"] == ("f32" if narrow == "first" else "bf16")
    assert all(f["elements"] for f in found)
    # Attention by other ops in another type: of the larger batch's only A's ops could be run on its rows.
    (missing,) = answer["missing"]
    assert "self_attn" in missing or "input_layernorm" in missing
    assert "what rows of a larger batch went through there cannot be run on them alone" in missing


# ---- experts, whose tokens stand in another order in a larger batch

EXPERTS = [f"model.layers.{i}.mlp.experts" for i in (0, 1)]


@pytest.mark.parametrize(
    "few, many",
    [
        ("grouped_mm.1", "grouped_mm.8"),
        ("eager.1", "eager.8"),
        ("grouped_mm.8", "grouped_mm.1"),
        ("eager.1", "grouped_mm.8"),
        ("mixture.train.1", "mixture.train.8"),
    ],
)
def test_tokens_sorted_by_expert_are_followed(lastbit, batches, few, many):
    found = own(explain(lastbit, batches, few, many))
    assert not [f for f in found if f["cause"] not in ("kernel", "order")]
    if "train" not in few:  # of training there is nothing that hooks see
        apart = other_modules(batches, *sorted((few, many), key=lambda name: name.endswith("8")))
        assert bool(apart) == bool(found)
        if apart and apart[0] in EXPERTS:
            assert min(found, key=lambda f: f["index"])["layer"] == apart[0]


def test_faults_among_sorted_tokens(lastbit, batches):
    """A wrong element in each expert's result; results that go to the next token; an expert's weight that is another."""

    def found(fault):
        return [
            f
            for f in explain(lastbit, batches, "grouped_mm.1", f"mixture.{fault}", expect=1)["findings"]
            if f["cause"] != "input" or f["op"] == "lb::source"
        ]

    (f,) = [f for f in found("element") if f["cause"] == "unexplained"]
    assert f["layer"] == EXPERTS[1] and f["matched"] < f["elements"]
    (f,) = [f for f in found("roll") if f["cause"] == "unexplained"]
    assert (f["layer"], f["op"]) == ("model.layers.0", "aten::add.Tensor") and f["matched"] < f["elements"]
    (f,) = [f for f in found("weight") if f["op"] == "lb::source"]
    assert f["layer"] == EXPERTS[1] and f["schedule"] == f"parameter {EXPERTS[1]}.down_proj" and f["elements"] - f["matched"] == 1
    assert not [f for f in found("weight") if f["cause"] == "unexplained"]


MIXED = """
import sys, torch
torch.manual_seed(0)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(16, 16), torch.nn.Linear(16, 4)
    def forward(self, x):
        y = torch.sin(self.up(x))
        if sys.argv[2] == "sorted":
            order = y[:, 0].argsort()
            y = torch.cos(y[order])[order.argsort()]
        else:
            y = torch.roll(y, int(sys.argv[2]), 0)
        return torch.exp(self.down(y)) * 2
with torch.no_grad(): Model()(torch.randn(8, 16)[:int(sys.argv[1])])
"""


@pytest.mark.parametrize("how, mixed", [("1", True), ("0", False), ("sorted", False)])
def test_rows_that_never_come_back_are_mixed_up(lastbit, tmp_path, how, mixed):
    """A request that is given another's rows: as sorted as tokens are for their experts, but nothing puts them back."""
    (tmp_path / "program.py").write_text(MIXED)
    for rows, what in (("3", "0" if mixed else how), ("8", how)):
        lastbit.record(tmp_path / f"{rows}.lb", tmp_path / "program.py", rows, what, options=("--level", "ops"), expect=0)
    found = own(explain(lastbit, tmp_path, "3", "8"))
    assert [(f["op"], f["cause"]) for f in found if f["cause"] == "unexplained"] == [("aten::roll", "unexplained")] * mixed
