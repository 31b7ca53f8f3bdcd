"""Threads or processes as ranks that call NCCL by ctypes, and say of each call what they gave it and what they got.

nccl_calls.py LIBRARY SCENARIO RANKS      LIBRARY is what they open as libnccl.so.2; prints a line of JSON for each rank

With NCCL_CALLS_CUDA, a driver of CUDA, memory is that driver's, or with NCCL_CALLS_HOST the host's all the same.

Each call is [name, communicator's tag, count, dtype, hash of what was sent or null, hash of what was received or null], in the order of the calls.
"""

import ctypes as c
import hashlib
import json
import os
import signal
import sys
import threading

I8, U8, I32, U32, I64, U64, F16, F32, F64, BF16, E4M3, E5M2 = range(12)
WIDTH = [1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1]
SUM, PROD, MAX, MIN, AVG = range(5)
IN_PROGRESS, NO_COLOR = 7, -1


class UniqueId(c.Structure):
    _fields_ = [("internal", c.c_char * 128)]


cuda = c.CDLL(os.environ["NCCL_CALLS_CUDA"], c.RTLD_GLOBAL) if "NCCL_CALLS_CUDA" in os.environ else None
on_device = cuda and "NCCL_CALLS_HOST" not in os.environ
nccl = c.CDLL(sys.argv[1])
P, N, I = c.c_void_p, c.c_size_t, c.c_int
SIGNATURES = {
    "AllReduce": (P, P, N, I, I, P, P),
    "Reduce": (P, P, N, I, I, I, P, P),
    "Bcast": (P, N, I, I, P, P),
    "Broadcast": (P, P, N, I, I, P, P),
    "ReduceScatter": (P, P, N, I, I, P, P),
    "AllGather": (P, P, N, I, P, P),
    "AlltoAll": (P, P, N, I, P, P),
    "Gather": (P, P, N, I, I, P, P),
    "Scatter": (P, P, N, I, I, P, P),
    "Send": (P, N, I, I, P, P),
    "Recv": (P, N, I, I, P, P),
    "CommInitRank": (P, I, UniqueId, I),
    "CommInitRankConfig": (P, I, UniqueId, I, P),
    "CommInitAll": (P, I, P),
    "CommSplit": (P, I, I, P, P),
    "CommDestroy": (P,),
    "CommAbort": (P,),
    "CommGetAsyncError": (P, P),
    "RedOpCreatePreMulSum": (P, P, I, I, P),
    "RedOpDestroy": (I, P),
    "GroupStart": (),
    "GroupEnd": (),
    "GroupSimulateEnd": (P,),
    "GetUniqueId": (P,),
}
for name, types in SIGNATURES.items():
    getattr(nccl, "nccl" + name).argtypes = types


def short(data):
    return hashlib.sha256(data).hexdigest()[:16]


class Memory:
    """Bytes with an address; parts of it are memory, too."""

    def __init__(self, size, whole=None, at=0):
        self.whole = whole or self.allocate(max(size, 8))
        self.size, self.at = size, at

    def allocate(self, size):
        if not on_device:
            return c.create_string_buffer(size)
        made = c.c_uint64()
        assert cuda.cuMemAlloc_v2(c.byref(made), N(size)) == 0
        return (c.c_char * size).from_address(made.value)

    def part(self, at, size):
        return Memory(size, self.whole, self.at + at)

    @property
    def address(self):
        return c.addressof(self.whole) + self.at

    def bytes(self):
        return c.string_at(self.address, self.size)

    def fill(self, data):
        c.memmove(self.address, data, len(data))
        return self


class Rank:
    def __init__(self, rank, ranks, unique):
        self.rank, self.ranks, self.unique, self.calls, self.seed = rank, ranks, unique, [], 1000003 * (rank + 1)
        self.streams = [None]
        self.held, self.waiting, self.depth = [], [], 0  # until a group ends its memory lives, and what it received is not known
        self.comm = P()
        self.check(nccl.ncclCommInitRank(c.byref(self.comm), ranks, unique, rank))

    def check(self, result, expected=0):
        if result != expected:
            raise SystemExit(f"rank {self.rank}: {result}, not {expected}")

    def draw(self):
        self.seed = (self.seed * 6364136223846793005 + 1442695040888963407) % 2**64
        return self.seed >> 33

    def numbers(self, dtype, count):
        """Small positive numbers of many sizes, as bytes."""
        exponents = {F16: (10, 0x3000), BF16: (7, 0x3E80), E4M3: (3, 0x28), E5M2: (2, 0x34)}
        if dtype in exponents:
            bits, base = exponents[dtype]
            return b"".join((base + self.draw() % (2 << bits)).to_bytes(WIDTH[dtype], "little") for _ in range(count))
        import struct

        if dtype in (F32, F64):
            return struct.pack("<%d%s" % (count, "f" if dtype == F32 else "d"), *(self.draw() / 2**20 + 0.1 for _ in range(count)))
        return b"".join((self.draw() % 40).to_bytes(WIDTH[dtype], "little") for _ in range(count))

    def memory(self, dtype, count):
        return Memory(count * WIDTH[dtype]).fill(self.numbers(dtype, count))

    def call(self, name, send, recv, count, dtype, *rest, tag="world", comm=None, stream=None, expected=0):
        """`rest`: op and root, as the function takes them."""
        given = [memory.address if memory else None for memory in ((send, recv) if name not in ("Bcast", "Recv", "Send") else (send or recv,))]
        row = [name, tag, count, dtype, short(send.bytes()) if send else None, None]
        self.check(getattr(nccl, "nccl" + name)(*given, count, dtype, *rest, self.comm if comm is None else comm, stream), expected)
        self.held.append((send, recv))
        if expected in (0, IN_PROGRESS):
            self.calls.append(row)
            self.waiting.append((row, recv))
            if not self.depth and not expected:
                self.settle()

    def settle(self):
        for stream in self.streams if cuda else ():
            cuda.cuStreamSynchronize(stream)
        for row, recv in self.waiting:
            row[5] = short(recv.bytes()) if recv else None
        self.waiting, self.held = [], []

    def start(self):
        self.check(nccl.ncclGroupStart())
        self.depth += 1

    def end(self):
        self.check(nccl.ncclGroupEnd())
        self.depth -= 1
        if not self.depth:
            self.settle()

    def all_reduce(self, count=100, dtype=F32, op=SUM, in_place=True, **more):
        send = self.memory(dtype, count)
        if count == 60 and self.rank == int(os.environ.get("NCCL_CALLS_ODD_RANK", "-1")):
            send.part(0, 8).fill(self.numbers(F64, 1))
        self.call("AllReduce", send, send if in_place else self.memory(dtype, count), count, dtype, op, **more)

    def split(self, comm, color, key, expected=0):
        made = P()
        self.check(nccl.ncclCommSplit(comm, color, key, c.byref(made), None), expected)
        return made


def ring_of_messages(r, count, dtype=F32, **more):
    r.start()
    r.call("Send", r.memory(dtype, count), None, count, dtype, (r.rank + 1) % r.ranks, **more)
    r.call("Recv", None, r.memory(dtype, count), count, dtype, (r.rank - 1) % r.ranks, **more)
    r.end()


def moves(r):
    """Every function, every type, in place and not, nothing and one element, every root."""
    for dtype in range(12):
        for count in (37, 1, 0) if dtype in (U8, F32, E4M3) else (37,):
            width, n, me = WIDTH[dtype], r.ranks, r.rank
            r.call("AllGather", r.memory(dtype, count), r.memory(dtype, count * n), count, dtype)
            all_of_it = r.memory(dtype, count * n)
            r.call("AllGather", all_of_it.part(me * count * width, count * width), all_of_it, count, dtype)
            r.call("ReduceScatter", r.memory(dtype, count * n), r.memory(dtype, count), count, dtype, SUM)
            all_of_it = r.memory(dtype, count * n)
            r.call("ReduceScatter", all_of_it, all_of_it.part(me * count * width, count * width), count, dtype, MAX)
            r.call("AlltoAll", r.memory(dtype, count * n), r.memory(dtype, count * n), count, dtype)
            root = (dtype + count) % n
            r.call("Gather", r.memory(dtype, count), r.memory(dtype, count * n) if me == root else None, count, dtype, root)
            r.call("Scatter", r.memory(dtype, count * n) if me == root else None, r.memory(dtype, count), count, dtype, root)
            r.call("Reduce", r.memory(dtype, count), r.memory(dtype, count) if me == root else None, count, dtype, SUM, root)
            r.call("Broadcast", r.memory(dtype, count) if me == root else None, r.memory(dtype, count), count, dtype, root)
            both = r.memory(dtype, count)
            r.call("Bcast", both if me == root else None, both, count, dtype, root)
            ring_of_messages(r, count, dtype)
        for op in range(5):
            r.all_reduce(33, dtype, op, in_place=op % 2 == 0)


def to_oneself(r):
    """A message to oneself, several to one peer in one group, and buffers that are sent and then received into."""
    r.start()
    r.call("Send", r.memory(F32, 9), None, 9, F32, r.rank)
    r.call("Recv", None, r.memory(F32, 9), 9, F32, r.rank)
    r.end()
    for count in (5, 6):
        ring_of_messages(r, count)
    r.start()
    for _ in range(2):
        r.all_reduce(20)
        both = r.memory(F32, 20)
        r.call("AllGather", both, r.memory(F32, 20 * r.ranks), 20, F32)
        r.call("Reduce", both, r.memory(F32, 20) if r.rank == 0 else None, 20, F32, SUM, 0)
    r.end()


def several_communicators(r):
    """In one group and on several streams; the second is split off with its order reversed."""
    other = r.split(r.comm, 0, -r.rank)
    for stream in (None, 1, 2):
        r.start()
        r.all_reduce(50, tag="world", stream=stream)
        r.all_reduce(60, F64, tag="other", comm=other, stream=stream)
        r.start()
        r.call("AllGather", r.memory(I8, 3), r.memory(I8, 3 * r.ranks), 3, I8, tag="other", comm=other, stream=1)
        r.end()
        r.end()
    r.call("ReduceScatter", r.memory(F32, 8 * r.ranks), r.memory(F32, 8), 8, F32, SUM, tag="other", comm=other)
    r.check(nccl.ncclCommDestroy(other))
    r.all_reduce(70)


def pre_multiplied(r):
    for residence in (0, 1):
        op, scalar = I(), c.c_float(0.3 + r.rank)
        r.check(nccl.ncclRedOpCreatePreMulSum(c.byref(op), c.byref(scalar), F32, residence, r.comm))
        r.all_reduce(40, F32, op.value)
        r.call("ReduceScatter", r.memory(F32, 8 * r.ranks), r.memory(F32, 8), 8, F32, op.value)
        r.check(nccl.ncclRedOpDestroy(op, r.comm))
        r.all_reduce(41)


def refused(r):
    """One rank alone makes calls that NCCL refuses, and simulates groups: nothing of that counts."""
    for turn in range(3):
        if r.rank == 1:
            r.call("AllReduce", r.memory(F32, 4), r.memory(F32, 4), 4, F32, SUM, comm=P(), expected=4)
            r.call("AllReduce", r.memory(F32, 4), r.memory(F32, 4), 4, 99, SUM, expected=4)
            r.call("Broadcast", r.memory(F32, 4), r.memory(F32, 4), 4, F32, 77, expected=4)
            r.call("Send", r.memory(F32, 4), None, 4, F32, 77, expected=4)
            kept = list(r.calls)
            r.start()
            r.all_reduce(8)
            r.call("Send", r.memory(F32, 8), None, 8, F32, 0)
            r.call("Recv", None, r.memory(F32, 8), 8, F32, 0)
            r.check(nccl.ncclGroupSimulateEnd(None))
            r.depth, r.waiting, r.calls = 0, [], kept
        r.all_reduce(10 + turn)
        ring_of_messages(r, 10 + turn)
        r.call("Broadcast", r.memory(F32, 6) if r.rank == 0 else None, r.memory(F32, 6), 6, F32, 0)


def splits_of_splits(r):
    """No call is made on the one between: who its members are is in its order alone, which is reversed."""
    reversed_ = r.split(r.comm, 0, -r.rank)
    part = r.split(reversed_, 0 if r.rank < r.ranks - 1 else NO_COLOR, 5)
    if part:
        r.all_reduce(30, tag="part", comm=part)
        n = r.ranks - 1
        r.call("AllGather", r.memory(F32, 4), r.memory(F32, 4 * n), 4, F32, tag="part", comm=part)
        r.call("Reduce", r.memory(F32, 9), r.memory(F32, 9) if r.rank == r.ranks - 2 else None, 9, F32, SUM, 0, tag="part", comm=part)
        r.check(nccl.ncclCommDestroy(part))
    r.check(nccl.ncclCommDestroy(reversed_))


def used_by_some(r):
    """Three communicators of the same members; of the first two only some ranks use one."""
    several = [r.split(r.comm, 0, r.rank) for _ in range(3)]
    if r.rank < 2:
        for comm in (several[1], several[0]):
            r.start()
            r.call("Send", r.memory(F32, 6), None, 6, F32, 1 - r.rank, tag="some", comm=comm)
            r.call("Recv", None, r.memory(F32, 6), 6, F32, 1 - r.rank, tag="some", comm=comm)
            r.end()
    r.all_reduce(17, tag="all", comm=several[2])


def first_one_ends(r):
    """Steps are counted by the communicator that was joined first, as long as there is one."""
    other = r.split(r.comm, 0, r.rank)
    r.all_reduce(10)
    r.check(nccl.ncclCommDestroy(r.comm))
    r.comm = other
    for turn in range(12):
        r.all_reduce(10 + turn, tag="other")


def odd_order(r):
    """Rank 1 calls two collectives the other way round, once."""
    for turn in range(4):
        calls = [lambda: r.all_reduce(12, I32), lambda: r.call("Broadcast", r.memory(I32, 12), r.memory(I32, 12), 12, I32, 0)]
        for call in reversed(calls) if (r.rank, turn) == (1, 2) else calls:
            call()


def large_group(r):
    """More than may wait for the writer, in one group."""
    both = r.memory(U8, 4).part(0, 0).allocate(4000000)
    r.start()
    for _ in range(40):
        r.check(nccl.ncclAllGather(both, both, 4000000, U8, r.comm, None))
    r.end()
    r.all_reduce(10)


def all_by_one(r):
    """The first thread alone drives all ranks, each on a device of its own."""
    comms, counts = (P * r.ranks)(), (21, 22)
    if r.rank:
        return
    r.check(nccl.ncclCommInitAll(comms, r.ranks, None))
    r.streams = [P() for _ in comms]
    for stream in r.streams if cuda else ():
        cuda.cuStreamCreate(c.byref(stream), 0)
    for count in counts:
        r.start()
        for comm, stream in zip(comms, r.streams):
            r.all_reduce(count, comm=comm, tag="all", stream=stream)
        r.end()


def in_progress(r):
    """A communicator that does not block, and one that is split from it, whose handle comes later."""
    config = (I * 64)()
    comm, unique, state = P(), UniqueId(r.unique.internal + b"-later"), I()

    def wait(comm):
        while True:
            r.check(nccl.ncclCommGetAsyncError(comm, c.byref(state)))
            if state.value != IN_PROGRESS:
                return r.check(state.value)

    r.check(nccl.ncclCommInitRankConfig(c.byref(comm), r.ranks, unique, r.rank, config))
    wait(comm)
    made = P()
    r.check(nccl.ncclCommSplit(comm, r.rank % 2, -r.rank, c.byref(made), None), IN_PROGRESS)
    wait(comm)
    for one, tag in ((comm, "later"), (made, "part")):
        for count in (11, 12):
            r.all_reduce(count, comm=one, tag=tag, expected=IN_PROGRESS)
            wait(one)
            r.settle()


def ends_suddenly(r, how):
    for _ in range(3):
        for turn in range(4):
            r.all_reduce(10 + turn)
    if r.rank == 0:
        threading.Event().wait(0.3)  # for the writer
        {"exit": lambda: os._exit(0), "abort": os.abort, "kill": lambda: os.kill(os.getpid(), signal.SIGKILL)}[how]()
    threading.Event().wait(60)


SCENARIOS = {
    "moves": moves,
    "to-oneself": to_oneself,
    "several": several_communicators,
    "premul": pre_multiplied,
    "refused": refused,
    "splits": splits_of_splits,
    "some": used_by_some,
    "first-ends": first_one_ends,
    "in-progress": in_progress,
    "one": all_by_one,
    "large-group": large_group,
    "odd-order": odd_order,
    "exit": lambda r: ends_suddenly(r, "exit"),
    "abort": lambda r: ends_suddenly(r, "abort"),
    "kill": lambda r: ends_suddenly(r, "kill"),
}


def main():
    ranks, unique, done = int(sys.argv[3]), UniqueId(), {}
    assert nccl.ncclGetUniqueId(c.byref(unique)) == 0

    def work(rank):
        r = Rank(rank, ranks, unique)
        SCENARIOS[sys.argv[2]](r)
        done[rank] = r.calls

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps([done[rank] for rank in range(ranks)]))


main()
