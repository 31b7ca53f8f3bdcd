"""Ranks of PyTorch whose custom op is an all-reduce by NCCL: the op is recorded, and the calls beneath it are not recorded again.

nccl_beneath.py LIBRARY RANKS      starts the ranks; LIBRARY is what they open as libnccl.so.2
"""

import ctypes
import os
import sys

import torch

path, ranks = sys.argv[1], int(sys.argv[2])


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


nccl = ctypes.CDLL(path)
nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
nccl.ncclAllReduce.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
unique, comm = UniqueId(), ctypes.c_void_p()
assert nccl.ncclGetUniqueId(ctypes.byref(unique)) == 0


@torch.library.custom_op("trtllm::allreduce", mutates_args=())
def all_reduce(input: torch.Tensor, group: list[int]) -> torch.Tensor:
    out = torch.empty_like(input)
    assert nccl.ncclAllReduce(input.data_ptr(), out.data_ptr(), input.numel(), 7, 0, comm, None) == 0
    return out


def work(rank):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))
    assert nccl.ncclCommInitRank(ctypes.byref(comm), ranks, unique, rank) == 0
    torch.manual_seed(rank)
    model = torch.nn.Linear(64, 64)
    with torch.no_grad():
        for _ in range(2):
            all_reduce(model(torch.randn(20, 64)), list(range(ranks)))


children = []
for rank in range(ranks):
    child = os.fork()
    if not child:
        work(rank)
        sys.exit(0)
    children.append(child)
sys.exit(max(os.waitpid(child, 0)[1] for child in children) != 0)
