"""Two steps of a small Llama of transformers, its layers split over the processes by torch's tensor parallelism. `--fault scaling`: in the
last rank the second layer scales its attention by another factor."""
import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--fault", choices=["scaling"])
args = parser.parse_args()
torch.set_num_threads(1)
world = int(os.environ.get("WORLD_SIZE", "1"))
torch.manual_seed(0)
config = LlamaConfig(vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4,
                     max_position_embeddings=64, attn_implementation="eager", use_cache=False)
model = LlamaForCausalLM(config)
if world > 1:
    mesh = init_device_mesh("cpu", (world,))
    plan = {"self_attn.q_proj": ColwiseParallel(), "self_attn.k_proj": ColwiseParallel(), "self_attn.v_proj": ColwiseParallel(),
            "self_attn.o_proj": RowwiseParallel(), "mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel()}
    for layer in model.model.layers:
        parallelize_module(layer, mesh, plan)
if args.fault and int(os.environ.get("RANK", "0")) == world - 1:
    model.model.layers[1].self_attn.scaling *= 1.05
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
for step in range(2):
    ids = torch.randint(0, 128, (2, 16), generator=torch.Generator().manual_seed(step))
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if not dist.is_initialized() or dist.get_rank() == 0:
        print("loss", loss.item())
if dist.is_initialized():
    time.sleep(0.2)  # a gloo thread that lets go of a tensor while Python ends aborts the process (torch 2.13)
    dist.destroy_process_group()
