"""Checkpoints for the audit's tests, each written by the library whose format it is: transformers, safetensors, torch, peft, DCP."""

import functools
import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import transformers
from safetensors.torch import load_file, save_file

SIZES = {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4}
GLU = {**SIZES, "intermediate_size": 96, "num_key_value_heads": 2}


def fresh(name):
    """A model as its `_init_weights` leaves it."""
    torch.manual_seed(1)
    make = {
        "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**GLU)),
        "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**GLU)),
        "qwen3moe": lambda: transformers.Qwen3MoeForCausalLM(
            transformers.Qwen3MoeConfig(**GLU, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, head_dim=16)
        ),
        "gemma2": lambda: transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**GLU, head_dim=16)),
        "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=64, n_layer=5, n_head=4, vocab_size=128, n_positions=64)),
        "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, intermediate_size=96)),
        "t5": lambda: transformers.T5ForConditionalGeneration(
            transformers.T5Config(vocab_size=128, d_model=64, d_kv=16, d_ff=96, num_layers=4, num_heads=4)
        ),
        "mamba": lambda: transformers.MambaForCausalLM(transformers.MambaConfig(vocab_size=128, hidden_size=64, num_hidden_layers=4)),
        "neox": lambda: transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**SIZES, intermediate_size=96)),
        "vit": lambda: transformers.ViTModel(
            transformers.ViTConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4, image_size=32, patch_size=8)
        ),
        "jamba": lambda: transformers.JambaForCausalLM(
            transformers.JambaConfig(
                **{**GLU, "num_hidden_layers": 4},
                num_experts=4,
                attn_layer_period=2,
                attn_layer_offset=1,
                expert_layer_period=2,
                expert_layer_offset=1,
                use_mamba_kernels=False,
            )
        ),
    }
    return make[name]()


def train(model, steps=25, lr=5e-3):
    """Real steps of AdamW: far enough that no initialiser fits any more."""
    torch.manual_seed(2)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)
    for _ in range(steps):
        ids = torch.randint(0, 128, (4, 24))
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


@functools.cache
def trained(name):
    model = fresh(name)
    optimizer = train(model)
    return model, optimizer


def weights(name):
    """The trained weights, to be changed."""
    return {k: v.detach().clone() for k, v in trained(name)[0].state_dict().items()}


def write(folder, name, tensors):
    """The file that the tensors were written to."""
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / f"{name}.safetensors")
    return folder / f"{name}.safetensors"


def save(model, folder, **options):
    model.save_pretrained(folder, **options)
    return folder


class Folder:
    """A saved checkpoint's tensors, to be changed and written again in the shards that they were in."""

    def __init__(self, folder):
        self.folder = folder
        self.index = folder / "model.safetensors.index.json"
        self.map = json.loads(self.index.read_text())["weight_map"] if self.index.exists() else {}
        names = set(self.map.values()) or {"model.safetensors"}
        self.files = {name: load_file(folder / name) for name in names}

    def file_of(self, tensor):
        return next(name for name, held in self.files.items() if tensor in held)

    def __getitem__(self, tensor):
        return self.files[self.file_of(tensor)][tensor]

    def __setitem__(self, tensor, value):
        self.files[self.file_of(tensor)][tensor] = value.contiguous()

    def write(self):
        for name, held in self.files.items():
            if not held:
                (self.folder / name).unlink(missing_ok=True)
                continue
            save_file({k: v.contiguous() for k, v in held.items()}, self.folder / name, metadata={"format": "pt"})
        if self.map:
            self.index.write_text(json.dumps({"metadata": {}, "weight_map": self.map}))


COLUMN = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens", "lm_head")
ROW = ("o_proj", "down_proj")


def tensor_parallel(state, ranks):
    """Each rank's shard of everything, as Megatron cuts it: columns of the first matrix of a pair, rows of the second, copies of norms."""
    shards = [{} for _ in range(ranks)]
    for name, value in state.items():
        for rank in range(ranks):
            if value.dim() == 2 and any(f".{word}." in f".{name}" for word in COLUMN):
                shards[rank][name] = value.chunk(ranks, 0)[rank].clone()
            elif value.dim() == 2 and any(f".{word}." in f".{name}" for word in ROW):
                shards[rank][name] = value.chunk(ranks, 1)[rank].clone()
            else:
                shards[rank][name] = value.clone()
    return shards


def on_ranks(ranks, work, *args):
    """Runs work(rank, ranks, *args) in forked processes that share a gloo group."""
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(ranks):
            child = os.fork()
            if not child:
                code = 1
                try:
                    torch.set_num_threads(1)
                    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
                    work(rank, ranks, *args)
                    dist.barrier()
                    dist.destroy_process_group()
                    code = 0
                except BaseException as error:  # noqa: BLE001: a forked child tells and ends here
                    print(f"rank {rank}: {error!r}", file=sys.stderr)
                finally:
                    os._exit(code)
            children.append(child)
        codes = [os.waitpid(child, 0)[1] for child in children]
        assert not any(codes), codes


def save_dcp(rank, ranks, folder, states):
    """states[rank] as torch.distributed.checkpoint saves it: one key on several ranks is taken for copies of one tensor."""
    import torch.distributed.checkpoint as dcp

    dcp.save(states[rank], checkpoint_id=str(folder))


def save_sharded(rank, ranks, folder, state, by_rank=None):
    """DTensors cut along dimension 0. by_rank[name][rank]: the local part, whatever it should be."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (ranks,))
    out = {}
    for name, value in state.items():
        local = (by_rank or {}).get(name)
        if local is not None:
            out[name] = DTensor.from_local(local[rank], mesh, [Shard(0)])
        else:
            out[name] = distribute_tensor(value, mesh, [Shard(0) if value.dim() > 1 else Replicate()])
    dcp.save(out, checkpoint_id=str(folder))


def save_fsdp(rank, ranks, folder, name):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = fresh(name)
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    optimizer = train(model, steps=2)
    weights, slots = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": slots}, checkpoint_id=str(folder))


def save_ddp(rank, ranks, folder, name):
    import torch.distributed.checkpoint as dcp
    from torch.nn.parallel import DistributedDataParallel

    model = fresh(name)
    wrapped = DistributedDataParallel(model)
    optimizer = train(wrapped, steps=2)
    dcp.save({"model": model.state_dict(), "optim": optimizer.state_dict()}, checkpoint_id=str(folder))


def adapter(model, folder, steps=0, **options):
    """A peft adapter of `model`, which it wraps; trained for some steps."""
    import peft

    torch.manual_seed(3)
    settings = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "o_proj", "up_proj", "down_proj"], **options}
    wrapped = peft.get_peft_model(model, peft.LoraConfig(**settings))
    if steps:
        train(wrapped, steps=steps, lr=2e-3)
    wrapped.save_pretrained(folder)
    return wrapped
