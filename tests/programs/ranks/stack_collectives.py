"""Collectives that are custom ops, by the names and schemas of vLLM, SGLang and TensorRT-LLM: python stack_collectives.py RANKS [FAULT]
[--lose] [--strangers].

Each is computed by torch's gloo inside the op, but for those that read the other ranks' memory, which add up in rank order in f32. Groups are
named as the stack that keeps them names them. FAULT: what rank 1 adds to its part of the first all-reduce. --lose: a sum goes without rank 1. --strangers: the groups' keeper is nobody's."""

import argparse
import os
import sys
import types

import gloo_group
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

LOSE = False


class Coordinator:
    def __init__(self, name, ranks):
        self.unique_name, self.ranks, self.group = name, ranks, dist.new_group(ranks)


KEEPER = "vllm.distributed.parallel_state"


def keep_groups(name, *coordinators):
    global KEEPER
    KEEPER = name
    keeper = types.ModuleType(name)
    keeper._groups = {c.unique_name: lambda c=c: c for c in coordinators}
    keeper.get_tp_group = lambda: coordinators[0]
    sys.modules[name] = keeper


def members(name):
    return sys.modules[KEEPER]._groups[name]()


def parts(x, group):
    found = [torch.empty_like(x.contiguous()) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, x.contiguous(), group=group)
    return found


def reduced(x, name):
    y = x.clone()
    dist.all_reduce(y, group=members(name).group)
    return y


def gathered(x, dim, world, name):
    return torch.cat(parts(x, members(name).group), dim)


def scattered(x, dim, world, name):
    group = members(name)
    y = x.movedim(dim, 0).contiguous()
    out = y.new_empty(y.shape[0] // len(group.ranks), *y.shape[1:])
    dist.reduce_scatter_tensor(out, y, group=group.group)
    return out.movedim(0, dim).contiguous()


def from_memory(handle, x, out, *_):
    total = 0
    for n, part in enumerate(parts(x, members("tp:0").group)):
        total = total + part.float() * (not LOSE or n != 1)
    out.copy_(total)


def by_list(ranks):
    return next(c() for c in sys.modules[KEEPER]._groups.values() if c().ranks == list(ranks)).unique_name


OPS = {
    "vllm::all_reduce": ("(Tensor tensor, str group_name) -> Tensor", reduced),
    "vllm::all_gather": ("(Tensor tensor, int dim, int world_size, str group_name) -> Tensor", gathered),
    "vllm::reduce_scatter": ("(Tensor tensor, int dim, int world_size, str group_name) -> Tensor", scattered),
    "_C_custom_ar::all_reduce": ("(int fa, Tensor inp, Tensor! out, int reg_buffer, int reg_buffer_sz_bytes) -> ()", from_memory),
    "sglang::inplace_all_reduce": ("(Tensor! tensor, str group_name) -> ()", lambda x, name: x.copy_(reduced(x, name))),
    "sglang::outplace_all_reduce": (
        "(Tensor tensor, str group_name, str outplace_all_reduce_method) -> Tensor",
        lambda x, name, how: reduced(x, name),
    ),
    "sglang::reg_all_gather_into_tensor": (
        "(Tensor! output, Tensor input, str group_name) -> ()",
        lambda out, x, name: out.copy_(gathered(x, 0, 0, name)),
    ),
    "sgl_kernel::shm_allgather": ("(Tensor data, int dim) -> Tensor", lambda x, dim: gathered(x, dim, 0, "tp:0")),
    "trtllm::allreduce": (
        "(Tensor input, Tensor? residual, Tensor? norm_weight, Tensor? scale, Tensor? bias, Tensor? workspace, int[] group, "
        "int strategy, int op, float eps, bool trigger_completion_at_end) -> Tensor[]",
        lambda x, *rest: [reduced(x, by_list(rest[5]))],
    ),
    "trtllm::reducescatter": ("(Tensor input, SymInt[]? sizes, int[] group) -> Tensor", lambda x, sizes, group: scattered(x, 0, 0, by_list(group))),
}
LIBRARIES = {}


def define():
    for name, (schema, function) in OPS.items():
        space, _, op = name.partition("::")
        library = LIBRARIES.setdefault(space, torch.library.Library(space, "FRAGMENT"))
        library.define(op + schema)
        written = "!" in schema
        library.impl(op, (lambda *a, f=function: (f(*a), None)[1]) if written else function, "CPU")


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.product = torch.nn.Linear(32, 24, bias=False)

    def forward(self, x, fault):
        ops, tp = torch.ops, members("tp:0").ranks
        y = self.product(x)
        h = ops.vllm.all_reduce(y + fault, "tp:0")
        h = ops.vllm.all_gather(h, -1, len(tp), "tp:0")
        h = ops.vllm.reduce_scatter(h, 1, len(tp), "tp:0")
        out = torch.empty_like(h)
        ops._C_custom_ar.all_reduce(1, h, out, 0, 0)
        ops.sglang.inplace_all_reduce(out, "world:0")
        h = ops.sglang.outplace_all_reduce(out, "tp:0", "ca") * 0.01
        whole = h.new_empty(h.shape[0] * len(tp), h.shape[1])
        ops.sglang.reg_all_gather_into_tensor(whole, h, "tp:0")
        whole = ops.sgl_kernel.shm_allgather(whole, 1)
        h = ops.trtllm.allreduce(whole, None, None, None, None, None, tp, 0, 0, 1e-6, False)[0]
        return ops.trtllm.reducescatter(h, None, tp)


def run(rank, world, args):
    global LOSE
    LOSE = args.lose
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    pairs = [Coordinator("tp:0", [first, first + 1]) for first in range(0, world, 2)]
    keep_groups("a.stack" if args.strangers else KEEPER, pairs[rank // 2], Coordinator("world:0", list(range(world))))
    define()
    torch.manual_seed(rank)
    layer = Layer().bfloat16()
    with torch.no_grad():
        layer(torch.randn(10, 32).bfloat16(), args.fault if rank == 1 else 0.0)
    gloo_group.leave()


if __name__ == "__main__":
    gloo_group.choose_port()
    parser = argparse.ArgumentParser()
    parser.add_argument("ranks", type=int)
    parser.add_argument("fault", type=float, nargs="?", default=0.0)
    parser.add_argument("--lose", action="store_true")
    parser.add_argument("--strangers", action="store_true")
    arguments = parser.parse_args()
    mp.spawn(run, (arguments.ranks, arguments), nprocs=arguments.ranks)
