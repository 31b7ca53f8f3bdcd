"""The node that copies in a graph, thread by thread: its text is read as CUDA's driver reads it, and carried out on a memory of bytes.

Threads of a launch run in a random order, each up to the barrier and then on; where the toolkit is, its assembler takes the text, too.
"""

import random
import re
import shutil
import struct
import subprocess

import pytest
from conftest import ROOT

TEXT = "\n".join(re.findall(r'^    "(.*?)\\n"', (ROOT / "capture/nccl/graph_kernel.c").read_text(), re.M))
PARAMETERS = re.findall(r"\.param \.u64 p_(\w+)", TEXT)
STEPS, LABELS = [], {}
for line in TEXT.split("{", 1)[1].replace("\n  ", "\n").splitlines():
    if line.endswith(":"):
        LABELS[line[:-1]] = len(STEPS)
    elif line and not line.startswith((".reg", "}")):
        STEPS.append(line.rstrip(";"))
WIDTHS = {"8": 1, "32": 4, "64": 8}
HEAD, TICKETS, SLOTS_AT = 0x1000, 64, 64 + 256 * 8
COUNTERS, SOURCE = 0x100, 0x10000


class Machine:
    def __init__(self):
        self.memory = bytearray(1 << 20)

    def read(self, at, width):
        assert at % width == 0, "devices read aligned words alone"
        return int.from_bytes(self.memory[at : at + width], "little")

    def write(self, at, width, number):
        assert at % width == 0
        self.memory[at : at + width] = (number & ((1 << 8 * width) - 1)).to_bytes(width, "little")

    def address(self, text, registers):
        name, _, offset = text.strip("[]").partition("+")
        return registers[name] + int(offset or 0)

    def move(self, opcode, operands, registers):
        """Loads and stores; four words at once where the opcode says so."""
        width = WIDTHS[re.search(r"u(\d+)$", opcode).group(1)]
        names, place = (operands[:-1], operands[-1]) if opcode.startswith("ld") else (operands[1:], operands[0])
        at = self.address(place, registers)
        assert at % (width * len(names)) == 0
        for i, name in enumerate(names):
            if opcode.startswith("ld"):
                registers[name] = self.read(at + i * width, width)
            else:
                self.write(at + i * width, width, registers[name])

    def add_atomically(self, opcode, operands, value):
        place, amount = operands[-2:]
        width = WIDTHS[opcode[-2:]]
        at = self.address(place, value)
        before = self.read(at, width)
        number = value[amount] if amount.startswith("%") else int(amount)
        self.write(at, width, 0 if ".inc." in opcode and before >= number else before + (1 if ".inc." in opcode else number))
        if opcode.startswith("atom"):
            value[operands[0]] = before

    def thread(self, arguments, block, blocks, thread, threads):
        """Yields at the barrier."""
        value = {"%tid.x": thread, "%ctaid.x": block, "%ntid.x": threads, "%nctaid.x": blocks}
        number = lambda text: value[text] if text.startswith("%") else int(text)  # noqa: E731
        at = 0
        while True:
            line = STEPS[at]
            at += 1
            if line.startswith("@%p "):
                if not value["%p"]:
                    continue
                line = line[4:]
            opcode, _, rest = line.partition(" ")
            operands = [o for o in re.split(r"[ ,{}]+", rest) if o]
            if opcode == "bra":
                at = LABELS[operands[0]]
            elif opcode == "ret":
                return
            elif opcode == "bar.sync":
                yield
            elif opcode.startswith("ld.param"):
                value[operands[0]] = arguments[operands[1].strip("[]").removeprefix("p_")]
            elif opcode.startswith(("atom", "red")):
                self.add_atomically(opcode, operands, value)
            elif opcode.startswith(("ld", "st")):
                self.move(opcode, operands, value)
            elif opcode.startswith("setp"):
                a, b = number(operands[1]), number(operands[2])
                value["%p"] = {"eq": a == b, "ne": a != b, "ge": a >= b}[opcode.split(".")[1]]
            elif opcode != "membar.sys":
                of = [number(o) for o in operands[1:]]
                bits = 64 if opcode.endswith("64") or "wide" in opcode or opcode.startswith("cvt") else 32
                verb = opcode.split(".")[0]
                result = {
                    "mov": lambda a: a, "cvt": lambda a: a, "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "and": lambda a, b: a & b,
                    "or": lambda a, b: a | b, "shl": lambda a, b: a << b, "shr": lambda a, b: a >> b, "rem": lambda a, b: a % b,
                    "mul": lambda a, b: a * b, "mad": lambda a, b, c: a * b + c,
                }[verb](*of)  # fmt: skip
                value[operands[0]] = result & ((1 << bits) - 1)

    def launch(self, order, blocks, threads, **arguments):
        arguments = {name: arguments.get(name, 0) for name in PARAMETERS}
        running = {}
        left = [(block, thread) for block in range(blocks) for thread in range(threads)]
        order.shuffle(left)
        waiting = {block: [] for block in range(blocks)}
        ended = self.read(arguments["head"], 8)
        for block, thread in left:
            assert self.read(arguments["head"], 8) == ended, "a run ended while threads of it had not begun"
            running[block, thread] = self.thread(arguments, block, blocks, thread, threads)
            if next(running[block, thread], "ended") is None:
                waiting[block].append(running[block, thread])
            if len([1 for b, _ in running if b == block]) == threads:  # all are at the barrier, or ended before it
                assert len(waiting[block]) in (0, threads), "a barrier that some threads never come to"
                for one in waiting[block]:
                    assert next(one, "ended") == "ended"


def bytes_of(run, size):
    return bytes((run * 31 + i * 7 + i // 251) % 256 for i in range(size))


@pytest.mark.parametrize("size, of", [(0, 0), (1, 0), (3, 1), (64, 0), (67, 0), (64, 4), (67, 4), (64, 1), (700, 0), (701, 8)])
@pytest.mark.parametrize("blocks", [1, 3])
def test_runs_fill_slots_in_turn(size, of, blocks):
    machine, order = Machine(), random.Random(size * 7 + of + blocks)
    slots, stride, counters = 2, (size + 15) // 16 * 16, dict(ticket=COUNTERS, arrived=COUNTERS + 8, activity=COUNTERS + 16)
    place = HEAD + SLOTS_AT
    given = dict(bytes=size, to=place, stride=stride, slots=slots, head=HEAD)
    before = {s: bytes(stride) for s in range(slots)}
    for run in range(5):
        machine.memory[SOURCE + of : SOURCE + of + size] = bytes_of(run, size)
        given["from"] = SOURCE + of
        machine.launch(order, blocks, 8, ticket=counters["ticket"], **given)
        assert machine.read(HEAD, 8) == run and machine.read(HEAD + TICKETS + 8 * run, 8) == run
        before[run % slots] = bytes_of(run, size) + bytes(stride - size)
        for s in range(slots):
            assert machine.memory[place + s * stride : place + (s + 1) * stride] == before[s]
        machine.launch(order, blocks, 8, arrived=counters["arrived"], activity=counters["activity"], **given)
        assert machine.read(HEAD, 8) == machine.read(counters["activity"], 8) == run + 1 and machine.read(counters["arrived"], 4) == 0
    assert machine.read(counters["ticket"], 8) == 5
    assert not any(machine.memory[place + slots * stride : SOURCE])


def test_tickets_are_kept_in_turn():
    machine = Machine()
    machine.memory[HEAD : HEAD + 8] = struct.pack("<Q", 256 + 3)
    machine.memory[COUNTERS : COUNTERS + 8] = struct.pack("<Q", 77)
    machine.launch(random.Random(0), 1, 4, slots=1, to=HEAD, head=HEAD, ticket=COUNTERS, **{"from": SOURCE})
    assert machine.read(HEAD + TICKETS + 8 * 3, 8) == 77 and machine.read(COUNTERS, 8) == 78


@pytest.mark.skipif(shutil.which("ptxas", path="/usr/local/cuda/bin:/opt/cuda/bin") is None, reason="no ptxas here")
@pytest.mark.parametrize("architecture", ["sm_75", "sm_90"])
def test_the_assembler_takes_it(tmp_path, architecture):
    (tmp_path / "kernel.ptx").write_text(TEXT + "\n")
    ptxas = shutil.which("ptxas", path="/usr/local/cuda/bin:/opt/cuda/bin")
    command = [ptxas, f"-arch={architecture}", "-v", tmp_path / "kernel.ptx", "-o", tmp_path / "kernel.cubin"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "0 bytes spill stores" in done.stderr, done.stderr
