"""Real libraries as judges of orders: what Open MPI and MPICH give, each with its algorithms forced, and what an order of ours gives.

One run of a library takes all its cases (mpi_judge.c), on communicators of the first 2, 3, … of its ranks.
"""

import ctypes as C
import os
import shutil
import subprocess
import typing

import numpy as np
from conftest import BUILD, ROOT

JUDGE = ROOT / "tests" / "replay" / "orders" / "mpi_judge.c"
DTYPES = {"f64": (1, np.float64), "f32": (2, np.float32), "bf16": (3, np.uint16)}
ROOTED = ("reduce", "ireduce")
SCANS = ("scan", "exscan")
SCATTERS = ("reduce_scatter", "reduce_scatter_block")
# Of each family the orders that libraries have; some are the same for some numbers of ranks.
ORDERS = (
    "rank linear doubling binomial binomial@0 binary kary chain chain:1 in_order_binary halving mpi_ring mpich_ring nbc_ring nbc_binomial nbc_chain "
    "gloo ring pairwise"
).split()


class Case(typing.NamedTuple):
    ranks: int
    collective: str
    reduction: str
    dtype: str
    count: int
    root: int = 0
    in_place: int = 0


class Result(typing.NamedTuple):
    case: Case
    inputs: list  # per rank
    outputs: list  # per rank


def installed(library):
    return shutil.which(f"mpicc.{library}") and shutil.which(f"mpirun.{library}")


def build(library, folder):
    program = folder / f"judge.{library}"
    subprocess.run([f"mpicc.{library}", "-O1", "-Wall", "-rdynamic", JUDGE, "-o", program, "-lm", "-ldl"], check=True)
    return program


def environment():
    # Open MPI asks for this where root runs it; its tools look for keys and networks otherwise.
    return {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_plm": "isolated"}


def judge(library, program, settings, cases, out, ranks=8):
    """What the library gives for each case; `settings`: MCA parameters of Open MPI, or variables of MPICH."""
    listed = out.with_suffix(".cases")
    listed.write_text("".join(" ".join(map(str, case)) + "\n" for case in cases))
    command = [f"mpirun.{library}", "-n", str(ranks)]
    if library == "openmpi":
        command += ["--oversubscribe", *(word for name, value in settings.items() for word in ("--mca", name, str(value)))]
    env = environment() | ({name: str(value) for name, value in settings.items()} if library == "mpich" else {})
    done = subprocess.run([*command, program, listed, out], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return read(cases, out, ranks)


def read(cases, out, ranks):
    results = [Result(case, [None] * case.ranks, [None] * case.ranks) for case in cases]
    for rank in range(ranks):
        data, at = (out.parent / f"{out.name}.{rank}").read_bytes(), 0
        while at < len(data):
            row, given, received = np.frombuffer(data, np.int64, 3, at)
            kind = DTYPES[cases[row].dtype][1]
            at += 24
            for numbers, n in ((results[row].inputs, given), (results[row].outputs, received)):
                numbers[rank] = np.frombuffer(data, kind, n, at)
                at += int(n) * np.dtype(kind).itemsize
    return results


_harness = C.CDLL(str(BUILD / "tests" / "libop_harness.so"))


def rank_sum(order, reduction, dtype, inputs, home=0, blocks=False):
    code, kind = DTYPES[dtype]
    inputs = [np.ascontiguousarray(x) for x in inputs]
    pointers = (C.c_void_p * len(inputs))(*(x.ctypes.data for x in inputs))
    out = np.empty(len(inputs[0]), kind)
    count = C.c_int64(len(out))
    status = _harness.harness_rank_sum(
        order.encode(), reduction.encode(), len(inputs), code, count, home, int(blocks), pointers, C.c_void_p(out.ctypes.data)
    )
    assert status == 0, (order, reduction, status)
    return out


def parts(result):
    """Per rank: the contributions it received the reduction of, `home`, and what it received."""
    case = result.case
    begin = 0
    for rank, received in enumerate(result.outputs):
        if not len(received):
            continue
        inputs, home = result.inputs, 0
        if case.collective in SCANS:
            inputs = inputs[: rank + (case.collective == "scan")]
        if case.collective in ROOTED:
            home = case.root + 1
        if case.collective in SCATTERS:
            # An order that ends where its block is received asks whose it is; trees end at rank 0.
            inputs = [x[begin : begin + len(received)] for x in inputs]
            begin += len(received)
        yield rank, inputs, home, received


def wrong(result, order):
    """Elements whose bits the order does not give, all ranks together."""
    case, differing = result.case, 0
    for rank, inputs, home, received in parts(result):
        if case.collective in SCATTERS and order.split(":")[0] in ("ring", "pairwise"):
            home = rank + 1
        ours = rank_sum(order, case.reduction, case.dtype, inputs, home) if len(inputs) > 1 else inputs[0]
        differing += int((bits(ours) != bits(received)).sum())
    return differing


def bits(x):
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")


def fitting(result):
    """The orders that give every bit."""
    return [order for order in ORDERS if not wrong(result, order)]


def hop(order, dtype, inputs, at, which, mask, home=0):
    """What each rank has of element `at` when bits were turned over on message number `which` of the order: (numbers, from, to, messages)."""
    code, kind = DTYPES[dtype]
    inputs = [np.ascontiguousarray(x) for x in inputs]
    pointers = (C.c_void_p * len(inputs))(*(x.ctypes.data for x in inputs))
    held, ends = (C.c_double * len(inputs))(), (C.c_uint32 * 2)()
    count, at, mask = C.c_int64(len(inputs[0])), C.c_int64(at), C.c_uint64(mask)
    messages = _harness.harness_hop(order.encode(), len(inputs), code, count, at, home, pointers, which, mask, held, ends)
    assert messages > 0, order
    return np.array(held[:], kind), ends[0], ends[1], messages
