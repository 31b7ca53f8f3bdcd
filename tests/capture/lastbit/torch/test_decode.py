"""Decoding with a key-value cache: what one step leaves in the cache is what the next one reads, however it was written."""

import pytest
import recorded

pytest.importorskip("torch")

# B batch, H heads, N positions that the cache holds, D width of a head
MODEL = """
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
B, H, N, D = 2, 2, 12, 8

class Attention(torch.nn.Module):
    def __init__(self, cache):
        super().__init__()
        self.inner = torch.nn.Linear(H * D, 3 * H * D)
        self.embed = torch.nn.Embedding(50, H * D)
        self.head = torch.nn.Linear(H * D, 50)
        self.cache = cache

    def forward(self, ids, at):
        if self.cache is None:
            self.cache = torch.%s(2, *SHAPE)
        T = ids.shape[1]
        q, k, v = (t.view(B, T, H, D).transpose(1, 2) for t in self.inner(self.embed(ids)).chunk(3, -1))
        k, v = WRITE(self.cache, k, v, at, T)
        weights = torch.softmax(q @ k.transpose(2, 3) + torch.full((T, at + T), float("-inf")).triu(at + 1), -1)
        return self.head((weights @ v).transpose(1, 2).reshape(B, T, H * D))

def by_head(cache, k, v, at, T):       # (B, H, N, D): the grown slice has holes
    cache[0, :, :, at:at + T] = k
    cache[1, :, :, at:at + T] = v
    return cache[0, :, :, :at + T], cache[1, :, :, :at + T]

def by_position(cache, k, v, at, T):   # (N, B, H, D): the grown slice is a beginning
    cache[0, at:at + T] = k.permute(2, 0, 1, 3)
    cache[1, at:at + T] = v.permute(2, 0, 1, 3)
    return tuple(cache[i, :at + T].permute(1, 2, 0, 3) for i in range(2))

WRITE, SHAPE = %s
model = Attention(None if %r else torch.%s(2, *SHAPE))
ids = torch.randint(0, 50, (B, 4))
at = 0
with torch.%s():
    for _ in range(5):
        logits = model(ids, at)
        at += ids.shape[1]
        ids = logits[:, -1:].argmax(-1)
print(logits.sum().item())
"""

HUGGING_FACE = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.set_num_threads(1)
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(hidden_size=32, num_hidden_layers=2, intermediate_size=48, num_attention_heads=4,
                                     num_key_value_heads=2, vocab_size=64, max_position_embeddings=64)).eval()
ids = torch.randint(0, 64, (2, 5))
out = model.generate(ids, max_new_tokens=5, do_sample=False, cache_implementation=%r)
print(out.sum().item())
"""

PROGRAMS = {}
for shape, rule in (("holes", "by_head, (B, H, N, D)"), ("beginning", "by_position, (N, B, H, D)")):
    for made, make in ((False, "zeros"), (True, "zeros"), (True, "empty")):
        name = "%s, %s %s" % (shape, make, "in the first step" if made else "before")
        PROGRAMS[name] = MODEL % (make, rule, made, make, "inference_mode" if made else "no_grad")
PROGRAMS["DynamicCache"] = HUGGING_FACE % None
PROGRAMS["StaticCache"] = HUGGING_FACE % "static"


OTHER, UNSEEN, CARRIED, KEPT = 9, 7, 8, 4


def cut(program, met):
    """Sources of storages that were met before, in which nobody knows what a step left."""
    return [(v, program.shape(v), value.source) for v, value in enumerate(program.values) if value.source in (OTHER, UNSEEN) and value.storage in met]


ALWAYS = ["holes, zeros before", "beginning, empty in the first step", "DynamicCache", "StaticCache"]


@pytest.mark.parametrize("name", [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.full) for name in PROGRAMS])
def test_a_decode_loop_chains_from_step_to_step(tmp_path, lastbit, name):
    """The flight recorder leaves out what a chain carries over: the replay has nothing else to go by than the first step."""
    out = recorded.run(
        PROGRAMS[name] + "\nimport os, signal\nos.kill(os.getpid(), signal.SIGUSR2)\n", tmp_path / "run.lb", quiet=False, ring=8, level="ops"
    )[0]
    assert out == recorded.run(PROGRAMS[name])[0]
    programs = recorded.Recorded(tmp_path / "run.lb").programs[0]
    assert len(programs) >= 5
    met = set()
    for step, program in programs.items():
        assert not cut(program, met), "step %d does not get what it reads from the steps before" % step
        assert not [
            v
            for v, value in enumerate(program.values)
            if value.source == CARRIED and value.flags & KEPT and not program.text(value.name).startswith("input")
        ]  # a layer's input is kept whatever it is
        met |= {value.storage for value in program.values}
    replay = lastbit.json("replay", "--mode", "chained", tmp_path / "run.lb", expect=0)
    assert replay["verdict"] in ("identical", "rounding"), replay
    assert replay["ops"]["opaque"] == 0


@pytest.mark.parametrize("name", ["holes, zeros before", pytest.param("beginning, zeros before", marks=pytest.mark.full)])
def test_a_cache_that_somebody_else_wrote_to_is_not_carried(tmp_path, name):
    program = PROGRAMS[name].replace("    at += ", "    if at == 5: model.cache.numpy().flat[5] = 3\n        at += ")
    assert "numpy" in program
    recorded.run(program, tmp_path / "run.lb", quiet=False, level="sources")
    met, steps = set(), []
    for step, program in recorded.Recorded(tmp_path / "run.lb").programs[0].items():
        if cut(program, met):
            steps.append(step)
        met |= {value.storage for value in program.values}
    assert steps[0] == 3
