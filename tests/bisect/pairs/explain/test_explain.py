"""Which order, kernel or precision turns one recording into another: pairs of real runs, from their recorded bits alone."""

import json
import subprocess
import sys

import pytest
from explained_pairs import own, record, record_pair, recorded_once

SUM = """
import sys, torch
torch.set_num_threads(int(sys.argv[1]))
torch.manual_seed(0)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Linear(1, 1)
    def forward(self, x):
        return self.scale(sum(row.sum() for row in x).reshape(1, 1) * 1e-3)
model = Model()
with torch.no_grad():
    for step in range(3):
        model(torch.randn(4, 400000))
"""


SPLIT = """
import sys, torch
slices = int(sys.argv[1])
torch.manual_seed(0)
class Product(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(64, 256) / 16)
    def forward(self, x):
        w, k = self.weight.t(), 256 // slices
        y = x[:, :k] @ w[:k]
        for i in range(1, slices):
            y = y + x[:, i * k:(i + 1) * k] @ w[i * k:(i + 1) * k]
        return y
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm = Product(), torch.nn.LayerNorm(64)
    def forward(self, x):
        return self.norm(self.up(x))
model = Model()
with torch.no_grad():
    model(torch.randn(32, 256))
"""


NARROW = """
import sys, torch
torch.backends.mkldnn.enabled = False
torch.manual_seed(0)
class Product(torch.nn.Module):
    def __init__(self, k, n):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(n, k).bfloat16() / k ** 0.5)
        self.transposed = torch.nn.Parameter(self.weight.detach().t().contiguous())
    def forward(self, x):
        return x @ (self.transposed if sys.argv[1] == "rows" else self.weight.t())
sizes = [512, 768, 256, 640, 384, 512]
model = torch.nn.Sequential(*[Product(k, n) for k, n in zip(sizes, sizes[1:])])
with torch.no_grad():
    model(torch.randn(64, 512).bfloat16())
"""


SUMS = """
import sys, torch
torch.manual_seed(0)
N = 256
class Total(torch.nn.Module):
    def forward(self, x):
        if sys.argv[1] == "op": return x.sum(-1)
        if sys.argv[1] == "loop":
            y = x[:, 0]
            for i in range(1, N): y = y + x[:, i]
            return y
        if sys.argv[1] == "inplace":
            y = torch.zeros(x.shape[0])
            for i in range(N): y += x[:, i]
            return y
        if sys.argv[1] == "chunks":  # partial sums of 64, then those one after the other
            y = None
            for k in range(0, N, 64):
                part = x[:, k]
                for i in range(k + 1, k + 64): part = part + x[:, i]
                y = part if y is None else y + part
            return y
        if sys.argv[1] == "tree":
            parts = [x[:, i] for i in range(N)]
            while len(parts) > 1: parts = [a + b for a, b in zip(parts[::2], parts[1::2])]
            return parts[0]
class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(1 + torch.randn(N) / 8)
    def forward(self, x):
        square = x.pow(2)
        if sys.argv[1] == "op": mean = square.mean(-1, keepdim=True)
        else:
            y = None
            for k in range(0, N, 32):
                part = square[:, k:k + 1]
                for i in range(k + 1, k + 32): part = part + square[:, i:i + 1]
                y = part if y is None else y + part
            mean = y / N
        return x * torch.rsqrt(mean + 1e-6) * self.weight
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.total, self.down = torch.nn.Linear(32, N), Norm(), Total(), torch.nn.Linear(64, 8)
    def forward(self, x): return self.down(self.total(self.norm(self.up(x)))[None])
m = Model()
with torch.no_grad(): m(torch.randn(64, 32))
"""


SCALED = """
import sys, torch
torch.manual_seed(0)
class Scaled(torch.nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(m, n) / n ** 0.5)
        self.register_buffer("amax_history", torch.zeros(4))
    def quantise(self, x, amax):
        scale = 448 / amax
        return (x * scale).clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype) / scale
    def forward(self, x):
        amax = x.abs().amax()
        if sys.argv[1] == "static":
            amax = self.amax_history.max()
        if sys.argv[1] == "delayed":
            history = self.amax_history.max()
            self.amax_history.copy_(self.amax_history.roll(1))
            self.amax_history[0] = amax
            amax = history
        return self.quantise(x, amax) @ self.quantise(self.weight, self.weight.abs().amax()).t()
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.up, self.down = torch.nn.Linear(32, 64), Scaled(64, 128), torch.nn.Linear(128, 16)
    def forward(self, x): return self.down(torch.relu(self.up(self.embed(x))))
m = Model()
m.up.amax_history.fill_(3.0)
with torch.no_grad():
    for step in range(3): m(torch.randn(24, 32))
"""


def test_a_sum_by_four_threads(lastbit, tmp_path):
    one, other = record_pair(lastbit, tmp_path, SUM, ["1"], ["4"])
    answer = lastbit.json("explain", one, other, expect=1)
    found = own(answer)
    assert len(found) >= 6 and {f["step"] for f in found} == {0, 1, 2}
    for f in found:
        assert (f["op"], f["cause"], f["schedule"], f["first"]) == ("aten::sum", "order", "torch:4", "torch:1")
        assert f["matched"] == f["elements"] == 1 and f["proof"] == "bits"
    # One element is a weak witness: what one sum cannot rule out, all of them together do.
    also = [set(filter(None, f["also"].split("; "))) for f in found]
    assert not set.intersection(*also)
    text = lastbit.run("explain", one, other, expect=1).stdout
    assert "torch:1 became torch:4" in text and "told apart" not in text
    alone = own(lastbit.json("explain", other, expect=1))
    assert {f["schedule"] for f in alone if f["op"] == "aten::sum"} == {"torch:4"}
    assert lastbit.json("explain", one, one, expect=0)["findings"] == []


@pytest.mark.full
def test_one_order_explains_all_products_of_bf16(lastbit, tmp_path):
    """Products of a few rows fit many orders once they are rounded to bf16; together they fit one on each side."""
    one, other = record_pair(lastbit, tmp_path, NARROW, ["rows"], ["columns"])
    found = own(lastbit.json("explain", one, other, "--seconds", 60, expect=1))
    assert len(found) >= 3 and {f["op"] for f in found} == {"aten::mm"}
    assert {(f["cause"], f["first"], f["schedule"]) for f in found} == {("order", "lanes:4", "torchdot")}
    assert all(f["matched"] == f["elements"] for f in found)
    assert any(f["also"] for f in found)  # by itself it could have been another


@pytest.mark.parametrize("turned", [False, True])
def test_split_k_by_hand(lastbit, tmp_path, turned):
    one, other = record_pair(lastbit, tmp_path, SPLIT, ["1"], ["4"])
    answer = lastbit.json("explain", *((other, one) if turned else (one, other)), expect=1)
    (f,) = own(answer)
    assert (f["layer"], f["cause"], f["schedule"], f["reversed"]) == ("up", "order", "splitk:4", turned)
    assert f["matched"] == f["elements"] == 32 * 64 and f["proof"] == "bits" and not f["also"]
    assert f["excluded"] == f["tried"] - 1 >= 50
    (norm,) = [f for f in answer["findings"] if f["layer"] == "norm"]
    # ATen's kernel without vector instructions is not replay's.
    assert norm["cause"] == "input" and (norm["proof"] == "bound" or norm["matched"] == norm["elements"])
    assert own(lastbit.json("explain", one, other, "--layer", "norm")) == []
    for nothing in ("--phase backward", "--layer nosuch", "--select op=nosuch"):
        refused = lastbit.run("explain", one, other, *nothing.split(), expect=125)
        assert "selects no op" in refused.stderr and not refused.stdout
    assert "phases are" in lastbit.run("explain", one, other, "--phase", "sideways", expect=129).stderr


def test_programs_that_have_nothing_in_common_are_not_called_equal(lastbit, tmp_path):
    lastbit.record(tmp_path / "a.lb", "tests/programs/two_linears.py", options=("--level", "ops"), expect=0)
    lastbit.record(tmp_path / "b.lb", "tests/programs/mixture_pair.py", options=("--level", "ops"), expect=0)
    assert "lines up" in lastbit.run("explain", tmp_path / "a.lb", tmp_path / "b.lb", expect=125).stderr


@pytest.mark.parametrize("how, schedule", [("loop", "sequential"), ("inplace", "sequential"), ("chunks", "splitk:4"), ("tree", "pairwise")])
def test_sums_written_out(lastbit, sums, how, schedule):
    """One op on one side, 255 or 256 on the other."""
    found = {f["layer"]: f for f in own(lastbit.json("explain", "--seconds", "60", sums("op"), sums(how), expect=1))}
    assert set(found) == {"norm", "total"}
    for layer, order in (("total", schedule), ("norm", "splitk:8")):
        f = found[layer]
        assert (f["cause"], f["first"], f["schedule"], f["proof"], f["also"]) == ("order", "torch:1", order, "bits", "")
        assert f["matched"] == f["elements"] == 64 and f["excluded"] == f["tried"] - 1 >= 80
    assert "x25" in found["total"]["other_op"] and found["norm"]["other_op"] == "aten::add.Tensor x255, aten::div.Tensor"


def test_sums_both_written_out(lastbit, sums):
    """The additions line up one by one, but from some on they add other terms: that is where the sides part."""
    for how, adds in (("chunks", 192), ("tree", 254)):
        (f,) = own(lastbit.json("explain", sums("loop"), sums(how), expect=1))
        assert (f["layer"], f["cause"], f["proof"], f["matched"]) == ("total", "kernel", "bits", 64)
        assert f["op"] == f["other_op"] == f"aten::add.Tensor x{adds}" and f["excluded"] == f["tried"]


@pytest.fixture(scope="module")
def sums(lastbit, tmp_path_factory):
    return recorded_once(lastbit, tmp_path_factory.mktemp("sums"), SUMS)


PERMUTED = """
import sys, torch
torch.manual_seed(0)
order = [int(i) for i in sys.argv[1].split(",")] if sys.argv[1] else None
@torch.library.custom_op("own::product", mutates_args=())
def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    # A chain of fma: x and w have 14 bits, so that a product and its sum with those before are exact in f64, and rounded once.
    total = torch.zeros(12, 48)
    for k in order: total = (total.double() + x[:, k, None].double() * w[k].double()).float()
    return total
class Product(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter((torch.randn(64, 48) * 2048).round() / 16384)
    def forward(self, x):
        return x @ self.weight if order is None else product(x, self.weight)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm = Product(), torch.nn.LayerNorm(48)
    def forward(self, x): return self.norm(self.up(x))
model = Model()
given = (torch.randn(12, 64) * 4096).round() / 4096
with torch.no_grad():
    if "--is-chain" in sys.argv:
        order = range(64)
        print(torch.equal(given @ model.up.weight, product(given, model.up.weight)))
    else:
        model(given)
"""


def test_a_tree_of_one_s_own_is_tried(lastbit, tmp_path, monkeypatch):
    """A product in an order that has no name: the tree in a file explains it; another tree, or one of other sums, does not."""
    monkeypatch.chdir(tmp_path)
    order = [(7 * i + 3) % 64 for i in range(64)]  # the first two ascend: of two terms the later one goes in by fma
    (tmp_path / "right.txt").write_text("[" + " ".join(map(str, order)) + "]")
    (tmp_path / "wrong.txt").write_text("[" + " ".join(map(str, order[::2] + order[1::2])) + "]")
    (tmp_path / "short.txt").write_text("[0 2 1]")
    nodes = [[order[0], order[1]]] + [[62 + i, order[i]] for i in range(2, 64)]
    (tmp_path / "rounded.json").write_text(json.dumps({"leaves": 64, "nodes": nodes, "products": "rounded"}))
    sides = record(lastbit, tmp_path, "one", PERMUTED, ""), record(lastbit, tmp_path, "other", PERMUTED, ",".join(map(str, order)))

    def explained(*trees):
        (found,) = own(lastbit.json("explain", *sides, *(f"--tree={t}" for t in trees), expect=1))
        return found

    plain = explained()
    assert plain["layer"] == "up" and (plain["cause"], plain["proof"]) != ("order", "bits")
    without = explained("wrong.txt", "short.txt", "rounded.json")
    assert (without["cause"], without["proof"]) == (plain["cause"], plain["proof"]) and without["tried"] == plain["tried"] + 2
    found = explained("wrong.txt", "short.txt", "rounded.json", "right.txt")
    asked = subprocess.run([sys.executable, tmp_path / "one.py", "", "--is-chain"], capture_output=True, text=True, check=True)
    if asked.stdout == "False\n":  # torch's own order may have no name here: then a tree of the other side alone is no reason
        assert (found["cause"], found["proof"]) in (("order", "bits"), (plain["cause"], plain["proof"]))
        return
    assert (found["proof"], found["schedule"], found["also"]) == ("bits", "tree:right.txt", "")
    assert found["matched"] == found["elements"] == 12 * 48 and found["excluded"] == found["tried"] - 1
    assert "tree:right.txt" in lastbit.run("explain", *sides, "--tree", "right.txt", expect=1).stdout
    for file, why, code in (("none.txt", "No such file", 128), ("a" * 200, "longer than", 129), ("one.py", "tree", 128)):
        assert why in lastbit.run("explain", *sides, "--tree", file, expect=code).stderr


def test_histories_that_differ(lastbit, tmp_path):
    """The same recipe on both sides, delayed scaling, with another amax history: a source differs, and no kernel."""
    sides = []
    for start in ("3.0", "2.0"):
        sides.append(record(lastbit, tmp_path, f"from{start[0]}", SCALED.replace("fill_(3.0)", f"fill_({start})"), "delayed"))
    answer = lastbit.json("explain", *sides, expect=1)
    assert own(answer) == []
    (f,) = [f for f in answer["findings"] if f["op"] == "lb::source"]
    assert (f["step"], f["layer"], f["cause"], f["schedule"]) == (0, "up", "input", "state up.amax_history")
    assert (f["matched"], f["elements"]) == (0, 4) and "another history: the scale of a cast to e4m3fn" in f["why"]
    assert all(f["proof"] == "bits" and f["matched"] == f["elements"] for f in answer["findings"] if f["op"] != "lb::source")
    text = lastbit.run("explain", *sides, expect=1).stdout
    assert "1 source enters with other numbers" in text and "up, forward: state up.amax_history: another history" in text


def test_delayed_and_current_scaling(lastbit, tmp_path):
    current, delayed, static = (record(lastbit, tmp_path, name, SCALED, name) for name in ("current", "delayed", "static"))
    for one, other in (("current", "delayed"), ("delayed", "current"), ("current", "static")):
        answer = lastbit.json("explain", tmp_path / f"{one}.lb", tmp_path / f"{other}.lb", expect=1)
        found = own(answer)
        assert [f["step"] for f in found] == [0, 1, 2]
        for f in found:
            assert (f["layer"], f["cause"], f["proof"]) == ("up", "precision", "bits")
            assert (f["first"], f["schedule"]) == (f"e4m3fn:{one}", f"e4m3fn:{other}")
            assert f["matched"] == f["elements"] and f["excluded"] == f["tried"] > 0 and "up.amax_history" in f["why"]
        # What follows from the scale is inherited, bit by bit.
        assert {f["layer"] for f in answer["findings"] if f["cause"] == "input"} >= {"up", "down"}
        assert all(f["proof"] == "bits" for f in answer["findings"])


def test_what_lacks_bytes_is_missing_and_not_unexplained(lastbit, tmp_path):
    """Of level stats there are digests: they differ, and the reason is unknown. The answer names what to record again."""
    program = tmp_path / "split.py"
    program.write_text(SPLIT)
    for slices in "1", "4":
        lastbit.record(tmp_path / f"{slices}.lb", program, slices, options=("--level", "stats"), expect=0)
    told = lastbit.json("explain", tmp_path / "1.lb", tmp_path / "4.lb", expect=125)
    assert not told["findings"] and len(told["missing"]) == 1
    assert "--level ops --steps 0" in told["missing"][0]
    assert "nothing differs" not in lastbit.run("explain", tmp_path / "1.lb", tmp_path / "4.lb", expect=125).stdout
