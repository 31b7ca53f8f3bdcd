"""Which part of a larger tensor a value is: what the recorder says is held against the tensors of the program itself."""

import json
import sys
import types

import pytest
from conftest import ROOT, warm_python

torch = pytest.importorskip("torch")
from torch.distributed.tensor.placement_types import Shard, _StridedShard  # noqa: E402


@pytest.fixture(scope="module")
def recorded(lastbit, tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("shards"), {}

    def record(*args, ranks=2):
        if args not in made:
            made[args] = folder / ("-".join(args) + ".lb")
            torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
            command = (*warm_python(), *torchrun, ROOT / "tests/programs/ranks/parallel_twins.py", *args)
            lastbit.run("record", "-o", made[args], "--level", "sources", "--steps", "0-0", "--", *command, expect=0)
        return made[args]

    return record


def parts(lastbit, capture, rank):
    """{name: what is said of the first value of that name}, and all that have any."""
    answer = lastbit.json("ls", capture, "--step", "0", "--rank", rank, "--values", expect=0)
    values = [v for v in answer["programs"][0]["value_list"] if "shards" in v]
    named = {}
    for value in values:
        for shard in value["shards"]:
            named.setdefault(shard["name"] or value["name"], shard)
    return named, values


def ranges(shard, dim):
    return [(r["from"], r["from"] + r["size"]) for r in shard["ranges"] if r["dim"] == dim]


def test_dtensors_say_which_columns_and_rows_they_are(lastbit, recorded):
    for rank in range(2):
        named, values = parts(lastbit, recorded("--how", "sp"), rank)
        half = [(rank * 16, rank * 16 + 16)]
        up, down = named["blocks.0.mlp.up.weight"], named["blocks.0.mlp.down.weight"]
        assert up["whole"] == [32, 16] and ranges(up, 0) == half and ranges(up, 1) == [(0, 16)]
        assert down["whole"] == [16, 32] and ranges(down, 0) == [(0, 16)] and ranges(down, 1) == half
        assert up["mesh"] == [{"name": "tp", "size": 2, "at": rank, "placement": "shard", "dim": 0}] and up["ranks"] == [0, 1]
        assert named["blocks.0.norm1.weight"]["mesh"][0]["placement"] == "replicate"
        assert named["optimizer.exp_avg:blocks.0.mlp.up.weight"]["whole"] == [32, 16]
        # A sequence that the ranks share goes in and out of the norms.
        tokens = [v["shards"][0] for v in values if v["shape"] == [4, 4, 16]]
        assert tokens and all(s["whole"] == [4, 8, 16] and ranges(s, 1) == [(rank * 4, rank * 4 + 4)] for s in tokens)
        transposed = [v for v in values if v["shape"] == [16, 16] and v["digest"] == "0" * 32]
        assert all(v["shards"][0]["whole"] in ([32, 16], [16, 32], [16, 16]) for v in transposed)


def test_fsdp2_says_which_rows_lie_flat_and_padded(lastbit, recorded):
    """33 rows over two ranks: the second has 16, in a storage for 17."""
    for rank in range(2):
        named, values = parts(lastbit, recorded("--how", "fsdp2", "--vocabulary", "33"), rank)
        shard = named["embedding.weight"]
        assert shard["whole"] == [33, 16] and ranges(shard, 0) == [((0, 17), (17, 33))[rank]]
        assert {tuple(v["shape"]) for v in values if v["name"] == "embedding.weight"} >= {(17 * 16,)}
        assert shard["mesh"][0]["name"] == "dp" and shard["mesh"][0]["at"] == rank


def test_a_flat_parameter_of_fsdp1_is_parts_of_several(lastbit, recorded):
    whole = {}
    for rank in range(2):
        named, _ = parts(lastbit, recorded("--how", "fsdp1"), rank)
        for name, shard in named.items():
            if ":" not in name:
                whole.setdefault(name, []).extend(ranges(shard, -1))
    assert len(whole) == 28
    for name, found in whole.items():
        assert found[0][0] == 0 and all(a[1] == b[0] for a, b in zip(found, found[1:])), name
    assert sorted(whole["embedding.weight"])[-1][1] == 512


def test_a_zigzag_that_the_program_names_comes_with_its_ranges(lastbit, recorded):
    for rank in range(2):
        shard = parts(lastbit, recorded("--how", "cp"), rank)[0]["input:0"]
        assert shard["whole"] == [4, 8] and ranges(shard, 1) == [[(0, 2), (6, 8)], [(2, 4), (4, 6)]][rank]
    text = lastbit.run("show", recorded("--how", "cp"), "--rank", "1", "input:0", expect=0).stdout
    assert "part: cp 1 of 2 shard(1), [:, 2:4 4:6] of [4, 8]" in text
    shown = json.loads(lastbit.run("show", recorded("--how", "cp"), "--rank", "1", "input:0", "--json", expect=0).stdout)
    assert "[4, 8]" in json.dumps(shown) and '"cp"' in json.dumps(shown)


def test_experts_are_named_with_their_states(lastbit, recorded):
    for rank in range(2):
        named, _ = parts(lastbit, recorded("--how", "ep"), rank)
        for prefix in ("", "optimizer.exp_avg_sq:"):
            shard = named[prefix + "blocks.1.mlp.up"]
            assert shard["whole"] == [4, 16, 16] and ranges(shard, 0) == [(rank * 2, rank * 2 + 2)]


@pytest.mark.parametrize("option", [(), ("--strip", "results")])
def test_a_packed_capture_says_the_same(lastbit, recorded, tmp_path, option):
    capture = recorded("--how", "sp")
    lastbit.run("pack", capture, "-o", tmp_path / "run.lbz", *option, expect=0)
    assert parts(lastbit, tmp_path / "run.lbz", 1)[0] == parts(lastbit, capture, 1)[0]
    lastbit.run("verify", tmp_path / "run.lbz", expect=0 if not option else (0, 1))


# ---- without processes


@pytest.fixture
def shards(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "capture"))
    from lastbit.torch import shards

    return shards


@pytest.mark.parametrize("size", [8, 10, 7, 3, 1])
@pytest.mark.parametrize(
    "first, second", [(Shard(0), Shard(0)), (_StridedShard(0, split_factor=3), Shard(0)), (Shard(0), _StridedShard(0, split_factor=2))]
)
def test_ranges_are_those_that_torch_cuts(shards, size, first, second):
    """Each placement applied to the numbers of rows themselves, by torch's own splitting."""
    rows = torch.arange(size)
    for i in range(2):
        for j in range(3):
            mine = first._split_tensor(rows, 2, with_padding=False, contiguous=True)[0][i]
            mine = second._split_tensor(mine, 3, with_padding=False, contiguous=True)[0][j]
            found = shards._cut(shards._cut([(0, size)], first, 2, i), second, 3, j)
            assert [row for begin, n in shards._joined(found) for row in range(begin, begin + n)] == mine.tolist()


@pytest.mark.parametrize("stride, ranges", [(1, [(0, 32, 8, 8)]), (2, [(0, 32, 4, 4), (0, 32, 20, 4)])])
def test_megatron_attributes_are_read(shards, monkeypatch, stride, ranges):
    state = types.SimpleNamespace(
        get_tensor_model_parallel_world_size=lambda: 4, get_tensor_model_parallel_rank=lambda: 1, get_tensor_model_parallel_group=lambda: None
    )
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", state)
    p = torch.nn.Parameter(torch.zeros(8, 5))
    p.tensor_model_parallel, p.partition_dim, p.partition_stride = True, 0, stride
    name, at, extents, axes, ranks = shards.of_megatron(p)
    assert extents == [*ranges, (1, 5, 0, 5)] and axes == [("tp", 4, 1, 0, None)] and len(ranks) == 4
    p.tensor_model_parallel = False
    assert shards.of_megatron(p) is None


def test_deepspeed_attributes_are_read(shards, monkeypatch):
    import torch.distributed as dist

    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 3)
    monkeypatch.setattr(dist, "get_rank", lambda group=None: 2)
    p = torch.nn.Parameter(torch.zeros(0))
    p.ds_shape, p.ds_numel, p.ds_tensor = torch.Size([5, 4]), 20, torch.zeros(7)
    held, (name, at, extents, axes, ranks) = shards.of_deepspeed(p)
    assert held is p.ds_tensor and extents == [(0, 5, 0, 5), (1, 4, 0, 4), (-1, 20, 14, 6)]
    assert axes == [("zero", 3, 1, -1, None)] and ranks == [0, 1, 2]


def test_wrong_ranges_are_refused_at_once(shards):
    with pytest.raises(ValueError, match="dimension 1 has 4 elements"):
        shards.shard(torch.zeros(2, 4), {1: [(0, 3)]}, {1: 8})
    with pytest.raises(ValueError, match="of a whole of 3"):
        shards.shard(torch.zeros(2, 4), {1: [(0, 4)]}, {1: 3})
