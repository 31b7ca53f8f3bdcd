"""Rows in batches of other sizes under launch rules: where a rule cuts a sum otherwise, and that its bits are those of the named order,
replayed on a recording whose batch has that size. A cut that never looks at the batch must keep every bit."""

import pytest
import torch
from swapped import replayed  # noqa: E402

PROGRAM = "tests/programs/other_batches.py"
SIZES = [1 << i for i in range(10)]


@pytest.fixture(scope="module")
def captures(lastbit, tmp_path_factory):
    """By rows and sequences: recorded once each."""
    made, folder = {}, tmp_path_factory.mktemp("batches")

    def capture(rows=64, sequences=4):
        if (rows, sequences) not in made:
            made[rows, sequences] = folder / f"{rows}x{sequences}.lb"
            lastbit.record(made[rows, sequences], PROGRAM, rows, sequences, options=("--level", "ops"), expect=0)
        return made[rows, sequences]

    return capture


def asked(lastbit, capture, selector, launch, *options, expect=(0, 1)):
    (row,) = lastbit.json("explain", "--invariance", selector, "--launch", launch, *options, capture, expect=expect)["invariance"]
    assert [s["rows"] for s in row["sizes"]] == SIZES and row["varies"] == any(s["differing"] for s in row["sizes"])
    (recorded,) = [s for s in row["sizes"] if s["rows"] == row["recorded"]]
    assert recorded["differing"] == 0 and recorded["launch"] == row["launch"]
    return row, {s["rows"]: (s["launch"], s["differing"]) for s in row["sizes"]}


def output(lastbit, folder, capture, selector, *swap):
    """What the op, or the fused op, gives in an isolated replay."""
    folder.mkdir(exist_ok=True)
    _, written = replayed(lastbit, capture, folder, "--select", selector, *swap)
    return written.tensors[(*max(written.tensors)[:3], 0)]


def differing(x, y):
    return (x.view(torch.int32) != y.view(torch.int32)).sum().item()


def test_a_split_that_follows_the_batch(lastbit, captures, tmp_path):
    """1024 columns are 8 tiles, 16 and 32 from 129 and 257 rows on: of 64 multiprocessors each has 8, 4 and 2."""
    row, sizes = asked(lastbit, captures(), "layer=up", "splitk", "--multiprocessors", 64, expect=1)
    assert row["op"] == "aten::mm" and row["kernel"] == "splitk,sms:64" and row["unit"] == "row"
    assert {rows: launch for rows, (launch, _) in sizes.items()} == {n: f"splitk:{8 if n <= 128 else 4 if n <= 256 else 2}" for n in SIZES}
    assert row["embedded"] == 64 and row["elements"] == 64 * 1024 and not any(count for n, (_, count) in sizes.items() if n <= 128)
    # The bits are those of the order by its name, on this batch and on one that was recorded with that size.
    for rows in (256, 512):
        launch, count = sizes[rows]
        whole = output(lastbit, tmp_path, captures(), "layer=up", "--order", "layer=up=splitk:8")
        here = output(lastbit, tmp_path, captures(), "layer=up", "--order", f"layer=up={launch}")
        there = output(lastbit, tmp_path, captures(rows), "layer=up", "--order", f"layer=up={launch}")
        assert count == differing(whole, here) == differing(whole, there[:64]) > 10000 and there.shape == (rows, 1024)
    text = lastbit.run("explain", "--invariance", "layer=up", "--launch", "splitk", "--multiprocessors", 64, captures(), expect=1).stdout
    assert "recorded batch of 64 rows, as splitk:8 in batches of 256 (" in text and ", as splitk:4), 512 (" in text


def test_shares_of_a_stream_follow_the_batch(lastbit, captures, tmp_path):
    """The launch stays 132 shares, but more tiles lie before a row's end: the pieces of its sum move."""
    row, sizes = asked(lastbit, captures(), "layer=up", "streamk", expect=1)
    assert row["kernel"] == "streamk,sms:132" and {launch for launch, _ in sizes.values()} == {"streamk:132"}
    whole = output(lastbit, tmp_path, captures(), "layer=up", "--order", "layer=up=streamk:132")
    for rows in (256, 512):
        there = output(lastbit, tmp_path, captures(rows), "layer=up", "--order", "layer=up=streamk:132")
        assert sizes[rows][1] == differing(whole, there[:64]) > 10000


@pytest.mark.parametrize(
    "selector, launch",
    [
        ("layer=up", "splitk:4"),
        ("layer=up", "blocked:256"),
        ("layer=mean", "butterfly:128"),
        ("layer=head", "two-pass,sum:splitk:3"),
        ("layer=attention", "splitkv:4,block:256,exp:2"),
        ("layer=head", "persistent"),
    ],
)
def test_cuts_that_do_not_follow_the_batch_keep_every_bit(lastbit, captures, selector, launch):
    """The decoys: parts of a fixed number or size are batch invariant, however many they are."""
    row, sizes = asked(lastbit, captures(), selector, launch, expect=0)
    assert row["kernel"] == launch and not row["varies"] and len({launch for launch, _ in sizes.values()}) == 1
    text = lastbit.run("explain", "--invariance", selector, "--launch", launch, captures(), expect=0).stdout
    assert f"the same bits in batches of 1 to 512 {row['unit']}s\n" in text


def test_threads_of_a_sum_follow_the_batch(lastbit, captures, tmp_path):
    """PyTorch gives one row 512 threads, and two rows 256 each, down to a warp from 16 rows on."""
    row, sizes = asked(lastbit, captures(), "layer=mean", "blocks", expect=1)
    assert {rows: launch for rows, (launch, _) in sizes.items()} == {n: f"butterfly:{max(512 // n, 32)}" for n in SIZES}
    whole = output(lastbit, tmp_path, captures(), "layer=mean", "--order", "layer=mean=butterfly:32")
    for rows in (1, 2, 8):
        count = differing(whole, output(lastbit, tmp_path, captures(), "layer=mean", "--order", f"layer=mean={sizes[rows][0]}"))
        assert sizes[rows][1] == count > 8 and row["elements"] == 64
    assert not any(count for n, (_, count) in sizes.items() if n >= 16)


@pytest.mark.parametrize(
    "rule, launches",
    [
        ("flash-attention", {1: "splitkv:4,block:256,exp:2", 4: "splitkv:4,block:256,exp:2", 16: "splitkv:2,block:256,exp:2", 64: "flash:256,exp:2"}),
        ("flashinfer", {1: "splitkv:8,block:128,exp:2", 4: "splitkv:8,block:128,exp:2", 16: "splitkv:2,block:512,exp:2", 64: "flash:1024,exp:2"}),
        ("paged", {1: "splitkv:2,block:512,p:f32", 64: "splitkv:2,block:512,p:f32", 128: "flash:0,p:f32"}),
    ],
)
def test_slices_of_keys_follow_the_batch(lastbit, captures, tmp_path, rule, launches):
    row, sizes = asked(lastbit, captures(), "layer=attention", rule, expect=1)
    assert row["unit"] == "sequence" and row["op"] == "attention" and (row["recorded"], row["embedded"]) == (4, 4)
    assert row["elements"] == 4 * 8 * 16 and {n: sizes[n][0] for n in launches} == launches
    last, text = max(launches.items())
    whole = output(lastbit, tmp_path, captures(), "layer=attention", "--fuse", f"attention={row['launch']}")
    here = output(lastbit, tmp_path, captures(), "layer=attention", "--fuse", f"attention={text}")
    there = output(lastbit, tmp_path, captures(64, last), "layer=attention", "--fuse", f"attention={text}")
    assert sizes[last][1] == differing(whole, here) == differing(whole, there[:4].contiguous()) > 0


def test_all_rules_are_asked_unless_some_are_named(lastbit, captures):
    every = lastbit.json("explain", "--invariance", "", "--row", 3, captures(), expect=1)["invariance"]
    found = {(r["op"], r["kernel"]) for r in every}
    assert found >= {
        ("aten::mm", "own"),
        ("aten::mm", "openblas"),
        ("aten::mm", "splitk,sms:132"),
        ("aten::mm", "streamk,sms:132"),
        ("aten::mean.dim", "own"),
        ("aten::mean.dim", "blocks"),
        ("rms_norm", "butterfly,sms:132"),
        ("softmax", "persistent"),
        ("attention", "flash-attention,sms:132"),
        ("attention", "flashinfer,sms:132"),
        ("attention", "paged"),
    }
    assert not [r for r in every if r["kernel"] in ("own", "persistent") and r["varies"]] and {r["embedded"] for r in every} == {1}
    assert ("softmax", "vocabulary") not in found  # of 24576 elements and more
    two = lastbit.json("explain", "--invariance", "layer=up|mean", "--launch", "own", "--launch", "splitk", "--row", 0, captures(), expect=(0, 1))[
        "invariance"
    ]
    assert sorted((r["op"], r["kernel"]) for r in two) == [("aten::mean.dim", "own"), ("aten::mm", "own"), ("aten::mm", "splitk,sms:132")]


def test_what_is_no_launch_is_misuse(lastbit, captures):
    done = lastbit.run("explain", "--invariance", "layer=up", "--launch", "spltk", captures(), expect=129)
    assert "splitk streamk blocks butterfly" in done.stderr
    lastbit.run("explain", "--launch", "splitk", captures(), expect=129)
    lastbit.run("explain", "--invariance", "layer=mean", "--launch", "splitk", captures(), expect=125)  # a rule for products
    usage = lastbit.run("explain", "--help", expect=0).stdout
    for rule in done.stderr.split("(")[1].split(")")[0].split():
        assert rule in usage, rule


NO_ROWS = """
import torch
torch.manual_seed(0)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.time = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.LSTM(8, 8)
    def forward(self, x):
        y = self.up(x)
        down = torch.softmax(y, 0) + y.cumsum(0) + self.norm(y) + self.time(y[:, None])[0][:, 0]
        return down + torch.addmm(x, y, down) + torch.mm(self.up.weight, y) + torch.softmax(y, 1)
with torch.no_grad(): Model()(torch.randn(8, 8))
"""


def test_only_what_has_rows_of_its_own_is_embedded(lastbit, tmp_path):
    """Sums down the columns, statistics of a batch and steps of time are no rows, nor are those of a right factor; what is added to a product has
    rows that go with them."""
    (tmp_path / "program.py").write_text(NO_ROWS)
    lastbit.record(tmp_path / "run.lb", tmp_path / "program.py", options=("--level", "ops"), expect=0)
    found = lastbit.json("explain", "--invariance", "", "--launch", "own", tmp_path / "run.lb", expect=0)["invariance"]
    assert [(r["layer"], r["op"]) for r in found] == [("up", "aten::addmm"), ("", "aten::addmm"), ("", "aten::_softmax")]
    assert all([s["rows"] for s in r["sizes"]] == SIZES for r in found)
