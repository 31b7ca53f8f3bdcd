"""Two steps of a small language model of transformers on any number of processes, which share out its weights (torch's tensor
parallelism over DTensor) or its batch (DistributedDataParallel). `--fault scaling`: in the last rank the second layer scales its
attention by another factor."""

import argparse
import os

import gloo_group
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3MoeConfig

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", choices=["llama", "qwen3_moe"], default="llama")
parser.add_argument("--share", choices=["weights", "batch"], default="weights")
parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
parser.add_argument("--fault", choices=["scaling"])
args = parser.parse_args()
torch.set_num_threads(1)
world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
torch.manual_seed(0)
size = dict(
    vocab_size=128,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=4,
    max_position_embeddings=64,
    attn_implementation="eager",
    use_cache=False,
)
if args.model == "llama":
    config = LlamaConfig(**size)
else:
    config = Qwen3MoeConfig(
        **size, head_dim=8, moe_intermediate_size=32, num_experts=8, num_experts_per_tok=2, decoder_sparse_step=1, mlp_only_layers=[]
    )
model = AutoModelForCausalLM.from_config(config).to(getattr(torch, args.dtype))
if world > 1 and args.share == "weights":
    mesh = init_device_mesh("cpu", (world,))
    names = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
    names += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"] if args.model == "llama" else []
    for layer in model.model.layers:
        parallelize_module(layer, mesh, {name: RowwiseParallel() if name.endswith(("o_proj", "down_proj")) else ColwiseParallel() for name in names})
if args.fault and rank == world - 1:
    model.model.layers[1].self_attn.scaling *= 1.05
runs = model
if world > 1 and args.share == "batch":
    dist.init_process_group("gloo")
    runs = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
for step in range(2):
    ids = torch.randint(0, 128, (4, 16), generator=torch.Generator().manual_seed(step))
    if args.share == "batch":
        ids = ids.chunk(world)[rank]
    loss = runs(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        print("loss", loss.item())
if dist.is_initialized():
    gloo_group.leave()
