"""Each kind of finding is seen on a fault that was planted into a healthy checkpoint, and nothing else is."""

import json
import pathlib
import pickle
import random
import shutil
import struct

import audit_models as models
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

# The layer in the middle, an inner matrix, the one whose product leaves the block, and a norm, in three architectures' names.
NAMES = {
    "llama": ("model.layers.{}.self_attn.q_proj.weight", "model.layers.{}.mlp.down_proj.weight", "model.layers.{}.input_layernorm.weight"),
    "qwen3moe": (
        "model.layers.{}.self_attn.q_proj.weight",
        "model.layers.{}.mlp.experts.1.down_proj.weight",
        "model.layers.{}.post_attention_layernorm.weight",
    ),
    "gpt2": ("transformer.h.{}.attn.c_attn.weight", "transformer.h.{}.mlp.c_proj.weight", "transformer.h.{}.ln_1.weight"),
}


def found(answer):
    return sorted((f["kind"], f["tensor"], tuple(f["ranks"])) for f in answer["findings"])


@pytest.fixture(scope="module", params=list(NAMES))
def saved(request, tmp_path_factory):
    """A trained model in several shards, by architecture."""
    folder = tmp_path_factory.mktemp(request.param)
    models.save(models.trained(request.param)[0], folder, max_shard_size="60KB")
    return request.param, folder


@pytest.fixture
def planted(saved, tmp_path):
    name, folder = saved
    shutil.copytree(folder, tmp_path / "c")
    return models.Folder(tmp_path / "c"), NAMES[name]


def check(lastbit, checkpoint, *expected, **options):
    answer = lastbit.json("audit", checkpoint.folder, expect=1, **options)
    assert found(answer) == sorted((kind, tensor, ()) for kind, tensor in expected)
    return answer


# ---- what is in a tensor


def test_nonfinite(lastbit, planted):
    c, (inner, out, norm) = planted
    c[inner.format(2)].view(-1)[70] = float("nan")
    c[out.format(1)].view(-1)[5] = float("inf")
    c.write()
    answer = check(lastbit, c, ("nonfinite", inner.format(2)), ("nonfinite", out.format(1)))
    columns = c[inner.format(2)].shape[1]
    message = next(f["message"] for f in answer["findings"] if f["tensor"] == inner.format(2))
    assert message == f"1 NaN and 0 infinite of {c[inner.format(2)].numel()} elements, the first at [{70 // columns}, {70 % columns}]"


def test_zero(lastbit, planted):
    c, (inner, out, norm) = planted
    c[inner.format(3)].zero_()
    c[norm.format(1)].zero_()
    c.write()
    check(lastbit, c, ("zero", inner.format(3)), ("zero", norm.format(1)))


def test_noop(lastbit, planted):
    c, (inner, out, norm) = planted
    c[out.format(3)].zero_()
    c.write()
    check(lastbit, c, ("noop", out.format(3)))


def test_constant(lastbit, planted):
    c, (inner, out, norm) = planted
    c[norm.format(2)].fill_(1)
    c.write()
    check(lastbit, c, ("constant", norm.format(2)))


def test_dead(lastbit, planted):
    c, (inner, out, norm) = planted
    c[inner.format(0)].mul_(1e-9)
    c.write()
    check(lastbit, c, ("dead", inner.format(0)))


@pytest.mark.parametrize(
    "initialise",
    [
        lambda w: torch.nn.init.normal_(w, std=0.02),
        lambda w: torch.nn.init.kaiming_uniform_(w, a=5**0.5),
        lambda w: torch.nn.init.xavier_uniform_(w),
        lambda w: torch.nn.init.xavier_normal_(w),
        lambda w: torch.nn.init.kaiming_normal_(w),
    ],
)
def test_fresh(lastbit, planted, initialise):
    c, (inner, out, norm) = planted
    torch.manual_seed(4)
    initialise(c[inner.format(2)])
    c.write()
    check(lastbit, c, ("fresh", inner.format(2)))


def test_copied(lastbit, planted):
    c, (inner, out, norm) = planted
    c[inner.format(4)] = c[inner.format(1)].clone()
    c.write()
    answer = check(lastbit, c, ("copied", inner.format(4)))
    assert inner.format(1) in answer["findings"][0]["message"]


def test_dtype(lastbit, planted):
    c, (inner, out, norm) = planted
    for held in c.files.values():
        for name in held:
            held[name] = held[name].to(torch.float32 if name == out.format(2) else torch.bfloat16)
    c.write()
    check(lastbit, c, ("dtype", out.format(2)))


def test_scales(lastbit, planted):
    c, (inner, out, norm) = planted
    for layer in range(5):
        weight = inner.format(layer)
        c[weight] = c[weight].to(torch.float8_e4m3fn)
        if layer != 3:
            scale = weight + "_scale_inv"
            c.files[c.file_of(weight)][scale] = torch.tensor(0.0 if layer == 1 else 0.5)
            c.map[scale] = c.file_of(weight)
    c.write()
    answer = lastbit.json("audit", c.folder, expect=1)
    got = [f for f in found(answer) if f[0].startswith("scale")]
    assert got == [("scale_invalid", inner.format(1) + "_scale_inv", ()), ("scale_missing", inner.format(3), ())]
    assert {f["kind"] for f in answer["findings"]} <= {"scale_invalid", "scale_missing", "missing"}, "the layer that lacks a scale"


def test_weights_that_were_not_gathered(lastbit, planted):
    """What DeepSpeed's ZeRO-3 leaves of a parameter outside of its gathering; all of them are no more healthy than one."""
    c, (inner, out, norm) = planted
    c[inner.format(2)] = torch.zeros(0)
    c.write()
    check(lastbit, c, ("empty", inner.format(2)))
    for held in c.files.values():
        for name in held:
            held[name] = torch.zeros(0)
    c.write()
    answer = lastbit.json("audit", c.folder, expect=1)
    assert {f["kind"] for f in answer["findings"]} == {"empty"} and len(answer["findings"]) == answer["tensors"]


def test_untied(lastbit, tmp_path):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(5)
    model = Qwen2ForCausalLM(Qwen2Config(**models.GLU, tie_word_embeddings=True))
    c = models.Folder(models.save(model, tmp_path))
    held = c.files["model.safetensors"]
    held["lm_head.weight"] = held["model.embed_tokens.weight"].clone()
    c.write()
    lastbit.json("audit", tmp_path, expect=0)
    held["lm_head.weight"][3, 3] += 1
    c.write()
    check(lastbit, c, ("untied", "lm_head.weight"))


# ---- which tensors are there


def test_missing_among_siblings(lastbit, planted):
    c, (inner, out, norm) = planted
    del c.files[c.file_of(out.format(3))][out.format(3)], c.map[out.format(3)]
    c.write()
    check(lastbit, c, ("missing", out.format(3)))


def test_missing_from_every_file(lastbit, planted):
    c, (inner, out, norm) = planted
    del c.files[c.file_of(inner.format(3))][inner.format(3)]
    c.write()
    check(lastbit, c, ("missing", inner.format(3)))


@pytest.mark.parametrize("layer", [2, 4])
def test_a_lost_layer(lastbit, planted, layer):
    """One in the middle leaves a hole; that the last one lacks only config.json says."""
    c, (inner, out, norm) = planted
    prefix = inner.format(layer).split(f".{layer}.")[0] + f".{layer}."
    for held in c.files.values():
        for name in [n for n in held if n.startswith(prefix)]:
            del held[name], c.map[name]
    c.write()
    check(lastbit, c, ("missing", prefix[:-1]))


def test_unexpected_misplaced_and_duplicate(lastbit, planted):
    c, (inner, out, norm) = planted
    here = c.file_of(inner.format(1))
    other = next(name for name in c.files if name != here and norm.format(2) not in c.files[name])
    c.files[other]["left.over"] = torch.ones(3)
    c.files[other][inner.format(1)] = c[inner.format(1)].clone()
    c.map[norm.format(2)] = other
    c.write()
    check(lastbit, c, ("unexpected", "left.over"), ("duplicate", inner.format(1)), ("misplaced", norm.format(2)))


def test_a_file_that_is_not_there(lastbit, planted):
    c, (inner, out, norm) = planted
    gone = c.file_of(inner.format(2))
    (c.folder / gone).unlink()
    answer = lastbit.json("audit", c.folder, expect=1)
    assert [(f["kind"], f["file"]) for f in answer["findings"] if f["tensor"] is None] == [("no_file", gone)]
    lacking = {f["tensor"] for f in answer["findings"] if f["tensor"]}
    assert lacking <= set(c.files[gone]) or all(any(t.startswith(l) for t in c.files[gone]) for l in lacking)


def test_a_shard_of_another_save(lastbit, planted):
    c, _ = planted
    save_file({"x": torch.ones(2)}, c.folder / "model-00001-of-00099.safetensors")
    answer = lastbit.json("audit", c.folder, expect=1)
    assert [(f["kind"], f["file"]) for f in answer["findings"]] == [("unexpected", "model-00001-of-00099.safetensors")]


def test_expect(lastbit, saved, planted):
    c, (inner, out, norm) = planted
    c[norm.format(2)] = torch.ones(7)
    c.files[c.file_of(inner.format(1))]["more"] = torch.randn(5)
    c.map["more"] = c.file_of(inner.format(1))
    c.write()
    answer = lastbit.json("audit", c.folder, "--expect", saved[1], expect=1)
    assert ("shape", norm.format(2), ()) in found(answer) and ("unexpected", "more", ()) in found(answer)
    other = lastbit.json("audit", saved[1], "--expect", c.folder, expect=1)
    assert found(other) == [("missing", "more", ()), ("shape", norm.format(2), ())]


# ---- optimizer and restart


def test_optimizer_slots(lastbit, tmp_path):
    _, optimizer = models.trained("llama")
    state = pickle.loads(pickle.dumps(optimizer.state_dict()))
    torch.save(state, tmp_path / "optimizer.pt")
    lastbit.json("audit", tmp_path / "optimizer.pt", expect=0)
    del state["state"][4]["exp_avg_sq"]
    state["state"][7]["exp_avg_sq"].view(-1)[0] = -1
    torch.save(state, tmp_path / "optimizer.pt")
    answer = lastbit.json("audit", tmp_path / "optimizer.pt", expect=1)
    assert found(answer) == [("optimizer_invalid", "state.7.exp_avg_sq", ()), ("optimizer_missing", "state.4.exp_avg_sq", ())]


NEEDS = ["optimizer slots", "the schedule", "the sampler's position", "Python's state", "NumPy's state", "Torch's state"]


def lacking(answer):
    return [f["message"] for f in answer["findings"] if f["kind"] == "restart_missing"]


def test_restart_by_files_of_transformers(lastbit, tmp_path):
    """The files that transformers' Trainer writes, one after the other."""
    model, optimizer = models.trained("llama")
    models.save(model, tmp_path)
    assert len(lacking(lastbit.json("audit", tmp_path, "--restart", expect=1))) == 7  # the step, too
    text = lastbit.run("audit", tmp_path, "--restart", expect=1).stdout
    assert [m for m in lacking(lastbit.json("audit", tmp_path, "--restart", expect=1)) if m not in text] == []  # each by itself, not the first alone
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    messages = lacking(lastbit.json("audit", tmp_path, "--restart", expect=1))
    assert [m.split(":")[0].startswith(n) for m, n in zip(messages, NEEDS[1:], strict=True)] == [True] * 5
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    torch.save(schedule.state_dict(), tmp_path / "scheduler.pt")
    torch.save({"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.get_rng_state()}, tmp_path / "rng_state.pth")
    (tmp_path / "trainer_state.json").write_text("{}")
    answer = lastbit.json("audit", tmp_path, "--restart", expect=0)
    assert {n["message"].split(":")[0] for n in answer["notes"]} == {"the device's state of random numbers", "the gradient scaler"}


def test_restart_by_files_of_accelerate(lastbit, tmp_path):
    """Random states in a pickle of their own, which is not read; a sampler's state beside it."""
    model, optimizer = models.trained("llama")
    models.save(model, tmp_path)
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.bin")
    torch.save({"last_epoch": 3, "_last_lr": [1e-3]}, tmp_path / "scheduler.bin")
    states = {"step": 3, "random_state": random.getstate(), "numpy_random_seed": np.random.get_state(), "torch_manual_seed": torch.get_rng_state()}
    (tmp_path / "random_states_0.pkl").write_bytes(pickle.dumps(states))
    torch.save({"samples_yielded": 40}, tmp_path / "dl_state_dict.bin")
    (only,) = lacking(lastbit.json("audit", tmp_path, "--restart", expect=1))
    assert only.startswith("the sampler's position")
    torch.save({"_sampler_iter_yielded": 40}, tmp_path / "dataloader.bin")
    lastbit.json("audit", tmp_path, "--restart", expect=0)
    del states["numpy_random_seed"]
    (tmp_path / "random_states_0.pkl").write_bytes(pickle.dumps(states))
    (only,) = lacking(lastbit.json("audit", tmp_path, "--restart", expect=1))
    assert only.startswith("NumPy's state")


WHOLE = {
    "optimizer slots": lambda o: {"optimizer": pickle.loads(pickle.dumps(o.state_dict()))},
    "the step": lambda o: {"iteration": 25},
    "the schedule": lambda o: {"lr_scheduler": {"last_epoch": 25, "base_lrs": [1e-3]}},
    "the sampler's position": lambda o: {"sampler": {"seed": 3, "epoch": 1, "next_index": 400}},
    "Python's state": lambda o: {"rng": {"python": random.getstate()}},
    "NumPy's state": lambda o: {"rng_numpy": np.random.get_state()},
    "Torch's state": lambda o: {"rng_torch": torch.get_rng_state()},
    "the gradient scaler": lambda o: {"scaler": {"scale": 65536.0, "_growth_tracker": 3}},
}


@pytest.mark.parametrize("lost", sorted(set(WHOLE) - {"the step"}))  # which slots and samplers count as well
def test_restart_asks_for_each_by_itself(lastbit, tmp_path, lost):
    """One dictionary of a home-made loop, without one of its members; the sampler keeps a seed, which is no state of random numbers."""
    model, optimizer = models.trained("llama")
    state = {"model": {k: v.half() for k, v in model.state_dict().items()}}
    for name, make in WHOLE.items():
        state |= make(optimizer) if name != lost else {}
    if lost == "the sampler's position":
        state["sampler"] = {"seed": 3, "epoch": 1, "shuffle": True}
    torch.save(state, tmp_path / "run.pt")
    (only,) = lacking(lastbit.json("audit", tmp_path / "run.pt", "--restart", expect=1))
    assert only.startswith(lost)


# ---- hostile files


def formats(folder):
    state = {"a.0.w": torch.randn(40, 30), "a.1.w": torch.randn(40, 30), "a.2.w": torch.randn(40, 30)}
    save_file(state, folder / "x.safetensors")
    torch.save(state, folder / "x.pt")
    return [folder / "x.safetensors", folder / "x.pt"]


def test_truncated_files(lastbit, tmp_path):
    for path in formats(tmp_path):
        whole = path.read_bytes()
        for part in range(1, 7):
            path.write_bytes(whole[: len(whole) * part // 7])
            answer = lastbit.json("audit", path, expect=1)
            assert {f["kind"] for f in answer["findings"]} == {"truncated"}, (path, part)
        path.write_bytes(b"")
        assert str(path) in lastbit.run("audit", path, expect=128).stderr, "an empty file is none of any kind, as for every command"
        path.write_bytes(whole)


def test_a_truncated_shard_names_its_tensors(lastbit, planted):
    c, (inner, out, norm) = planted
    name = c.file_of(inner.format(2))
    path = c.folder / name
    path.write_bytes(path.read_bytes()[:-100])
    (length,) = struct.unpack("<Q", path.read_bytes()[:8])
    header = json.loads(path.read_bytes()[8 : 8 + length])
    last = max((v["data_offsets"][1], k) for k, v in header.items() if k != "__metadata__")[1]
    check(lastbit, c, ("truncated", last))


def test_a_truncated_index(lastbit, planted):
    c, _ = planted
    whole = c.index.read_bytes()
    for part in range(7):
        c.index.write_bytes(whole[: len(whole) * part // 7])
        answer = lastbit.json("audit", c.folder, expect=1)
        assert ("truncated", c.index.name) in [(f["kind"], f["file"]) for f in answer["findings"]]
        assert {f["kind"] for f in answer["findings"]} == {"truncated"}


def lying(path, change):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def test_headers_that_lie(lastbit, tmp_path):
    path = formats(tmp_path)[0]
    whole = path.read_bytes()

    def overlap(header):
        header["a.1.w"]["data_offsets"] = header["a.0.w"]["data_offsets"]

    def negative(header):
        header["a.1.w"]["data_offsets"] = [-5, -5 + 4800]

    def huge(header):
        header["a.1.w"]["shape"] = [2**40, 2**40]

    def dtype(header):
        header["a.1.w"]["dtype"] = "Q7"

    for change, kind in [(overlap, "overlap"), (negative, "damaged"), (huge, "damaged"), (dtype, "damaged")]:
        path.write_bytes(whole)
        lying(path, change)
        answer = lastbit.json("audit", path, expect=1)
        kinds = {f["kind"] for f in answer["findings"]}
        assert kind in kinds and kinds <= {kind, "copied"}, change
    text = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\0\0\0\0")
    answer = lastbit.json("audit", path, expect=1)
    assert ("duplicate", "a", ()) in found(answer)
    for garbage in [b"\xff" * 64, struct.pack("<Q", 2**63) + b"{}", struct.pack("<Q", 2) + b"[]"]:
        path.write_bytes(garbage)
        assert lastbit.run("audit", path, expect=1)


def test_names_that_are_no_text(lastbit, tmp_path):
    """A pickle's texts are any bytes; JSON and a terminal get a form of them."""
    torch.save({"NAME\x1b[2J": torch.full((8, 8), float("nan"))}, tmp_path / "x.pt")
    path = tmp_path / "x.pt"
    assert [f["tensor"] for f in lastbit.json("audit", path, expect=1)["findings"]] == ["NAME\\x1b[2J"]
    path.write_bytes(path.read_bytes().replace(b"NAME", b"N\xff\xfeE"))
    assert [f["tensor"] for f in lastbit.json("audit", path, expect=1)["findings"]] == ["N\\xff\\xfeE\\x1b[2J"]


def test_what_cannot_be_audited(lastbit, tmp_path):
    lastbit.run("audit", tmp_path / "none", expect=128)
    lastbit.run("audit", tmp_path, expect=128)
    lastbit.run("audit", expect=129)
    path = formats(tmp_path)[0]
    lastbit.run("audit", path, "--merged", path, expect=129)
    lastbit.run("audit", path, "--base", path, expect=129)
    done = lastbit.run("audit", path, "--against", path, "--map", "s/(/", expect=129)
    assert "--map" in done.stderr


def test_nothing_is_executed(lastbit, tmp_path):
    class Trap:
        def __reduce__(self):
            return (pathlib.Path.touch, (tmp_path / "sprung",))

    torch.save({"w": torch.randn(3, 3), "trap": Trap()}, tmp_path / "x.pt")
    lastbit.json("audit", tmp_path / "x.pt", expect=0)
    assert not (tmp_path / "sprung").exists()


def test_files_are_read_as_they_are(lastbit, planted):
    """The same tensors through safetensors' own reader: what is clean there is what was saved."""
    c, _ = planted
    assert sum(len(load_file(c.folder / name)) for name in c.files) == lastbit.json("audit", c.folder, expect=0)["tensors"]
