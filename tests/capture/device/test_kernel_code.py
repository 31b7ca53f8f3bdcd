"""What the measuring kernel's machine code says of its speed: what its loops cost for what they load, and a model of how long a value takes.

nvcc compiles the kernel for each architecture, and nvdisasm (pip: nvidia-cuda-nvdisasm) shows the code; without them nothing is said.
"""

import dataclasses
import pathlib
import re
import shutil
import subprocess
import sysconfig

import machine_code
import pytest
from conftest import ROOT

DEVICE = ROOT / "capture" / "device"
NVCC = shutil.which("nvcc")
NVDISASM = shutil.which("nvdisasm") or next((str(p) for p in pathlib.Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin/nvdisasm")), None)
pytestmark = pytest.mark.skipif(not (NVCC and NVDISASM), reason="nvcc or nvdisasm is not here")
WARP, STRIPES = 32, 16  # threads; 16 bytes each that a thread reads of a leaf


@dataclasses.dataclass
class Machine:
    """Multiprocessors, their clock, adders of f64 of each, GB/s of the memory. Each multiprocessor begins four instructions of a warp a cycle.

    A100 and H100: https://pmc.ncbi.nlm.nih.gov/articles/PMC10448217/, table 3, but for the multiprocessors that are sold (108, 132) and the
    memory of an A100 of 80 GB. B200: 37 TFLOP/s of f64 and 8 TB/s (NVIDIA's data sheet) at 148 multiprocessors and 1.85 GHz."""

    name: str
    processors: int
    ghz: float
    adders: int
    memory: float

    def rate_of_code(self, loop):
        """GB/s, were there nothing to wait for: by instructions that begin, and by additions of f64."""
        read = loop.bytes * WARP
        begun = self.processors * 4 * self.ghz * read / len(loop.body)
        added = self.processors * self.adders / WARP * self.ghz * read / loop.f64 if loop.f64 else begun
        return min(begun, added)

    def rate(self, loop):
        """GB/s of a large value. What threads have on its way is what a turn of their loops loads, and comes TURN_NS later."""
        under_way = self.processors * defined("LB_KERNEL_RESIDENT") * defined("LB_KERNEL_READERS") * loop.bytes
        return min(under_way / TURN_NS, self.rate_of_code(loop), MEMORY_PART * self.memory)

    def holds(self, loop, size):
        """Microseconds for which the stream of a program has to do with a value: it copies it aside, or measures it."""
        return COPY_US + 2 * size / (MEMORY_PART * self.memory) / 1000 if size <= ASIDE else self.microseconds(loop, size)

    def microseconds(self, loop, size):
        units = SEVERAL_US if size > defined("LB_KERNEL_LEAF") else 0
        return (ONE_US + units) * MACHINES["sm_90"].ghz / self.ghz + size / self.rate(loop) / 1000


MACHINES = {
    "sm_80": Machine("A100", 108, 1.41, 32, 2039),
    "sm_90": Machine("H100", 132, 1.755, 64, 3352),
    "sm_100": Machine("B200", 148, 1.85, 64, 8000),
}
# Of an H100, as capture/device/README.md has them (bf16, caches warm): a value of one unit; what it takes longer where several units are
# added; how long what is loaded takes where all of the device loads. Of a memory's rate the best kernels see the last part.
ONE_US, SEVERAL_US, TURN_NS, MEMORY_PART = 10.6, 3.4, 950, 0.9
# A copy of nothing, from one operation of a stream to the next: assumed, not measured.
COPY_US = 2.5
ASIDE = 4 << 20  # bytes: LB_CUDA_ASIDE_BYTES
GOAL_US, GOAL_PART = 5, 0.8  # of a small value; of the memory's rate, for a large one
SIZES = {"8 KiB": 8 << 10, "64 KiB": 64 << 10, "1 MiB": 1 << 20, "8 MiB": 8 << 20, "32 MiB": 32 << 20, "128 MiB": 128 << 20}

# Of each loop that takes whole columns: how it is known, the most instructions of a warp for a KiB, and the most cycles by which a turn waits
# for the one before (its own additions; 8 for each of two).
LOOPS = {
    "f32": (lambda loop: loop.f64 == 16, 130, 48),
    "bf16, f16": (lambda loop: loop.f64 == 32, 165, 48),
    "f8": (lambda loop: loop.f64 == 64, 460, 260),
    "f64": (lambda loop: loop.f64 == 24, 130, 48),
}


def defined(name):
    return int(re.search(rf"#define {name} (\d+)", (DEVICE / "digest_kernel.h").read_text()).group(1))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """{architecture: (the kernel, what the assembler says of it)}"""
    folder, made = tmp_path_factory.mktemp("code"), {}
    for name in MACHINES:
        cubin, options = folder / f"{name}.cubin", ("-cubin", f"-arch={name}", "-std=c++17", "--fmad=false", "-Xptxas", "-v")
        done = subprocess.run([NVCC, *options, "-o", cubin, DEVICE / "digest_kernel.cu"], check=True, capture_output=True, text=True)
        made[name] = cubin, done.stderr[done.stderr.index("properties for lb_kernel_measure\n") :]
    return made


@pytest.fixture(scope="module")
def columns(compiled):
    """{architecture: the innermost loops that load 32 bytes a turn}"""
    made = {}
    for name, (cubin, _) in compiled.items():
        text = subprocess.run([NVDISASM, "-c", cubin], check=True, capture_output=True, text=True).stdout
        loops = machine_code.innermost_loops(text, "lb_kernel_measure")
        made[name] = [loop for loop in loops if loop.bytes == 32 and loop.count("IMAD.WIDE") >= 4]
    return made


def loops_of(columns, name, kind):
    return [loop for loop in columns[name] if LOOPS[kind][0](loop)]


def test_registers_suffice_and_parameters_stay_where_they_are(compiled):
    """Two blocks of a multiprocessor have 65,536 registers. The stack has a column of blocks and no copy of the 4 KB of parameters."""
    for name, (_, said) in compiled.items():
        stack, stored, loaded = map(int, re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", said).groups())
        registers = int(re.search(r"Used (\d+) registers", said).group(1))
        print("%s: %d registers, %d bytes of stack, %d and %d of spills" % (name, registers, stack, stored, loaded))
        assert registers * defined("LB_KERNEL_THREADS") * defined("LB_KERNEL_RESIDENT") <= 65536
        assert stack <= 1024 and stored <= 8 and loaded <= 8, name


@pytest.mark.parametrize("kind", LOOPS)
def test_loops_are_short_and_wait_for_nothing(columns, kind):
    """No call, nothing kept in memory, and no chain of additions through the numbers of a column."""
    _, most, longest = LOOPS[kind]
    for name in MACHINES:
        found = loops_of(columns, name, kind)
        assert len(found) == (2 if kind == "bf16, f16" else 1), (name, [len(loop.body) for loop in found])
        for loop in found:
            per_kib = len(loop.body) * 1024 / (loop.bytes * WARP)
            print("%s %s: %.0f instructions a KiB, %d of f64; a turn waits %d cycles" % (name, kind, per_kib, loop.f64, loop.chain[1]))
            assert loop.spills == loop.calls == 0, name
            assert per_kib <= most and loop.chain[1] <= longest, name


@pytest.mark.parametrize("kind", ["f32", "bf16, f16"])
def test_instructions_keep_up_with_the_memory(columns, kind):
    for name, machine in MACHINES.items():
        for loop in loops_of(columns, name, kind):
            assert machine.rate_of_code(loop) >= 0.8 * machine.memory, (name, machine.rate_of_code(loop))


def measured():
    """{size: microseconds} of an H100: the table in capture/device/README.md."""
    rows = re.findall(r"^\| (\d+ [KM]iB) \| ([\d.]+) \|", (DEVICE / "README.md").read_text(), re.M)
    return {size: float(warm) for size, warm in rows}


def test_a_model_of_the_code_says_how_long_a_value_takes(columns):
    """It finds what an H100 measured to a sixth; the others were not measured."""
    assert measured().keys() == SIZES.keys()
    print("\nmicroseconds of a bf16 value, computed       " + "".join("%9s" % size for size in SIZES))
    for name, machine in MACHINES.items():
        loop = loops_of(columns, name, "bf16, f16")[0]
        computed = {size: machine.microseconds(loop, n) for size, n in SIZES.items()}
        print("%-6s %s, %5.0f GB/s, %.2f of its memory's" % (name, machine.name, machine.rate(loop), machine.rate(loop) / machine.memory), end="")
        print("".join("%9.1f" % us for us in computed.values()))
        for size, us in measured().items() if name == "sm_90" else ():
            assert abs(computed[size] - us) <= us / 6, (size, computed[size], us)


def held():
    """{machine: {size: microseconds}}: the second table in capture/device/README.md."""
    text = (DEVICE / "README.md").read_text()
    rows = text[text.index("| the program's stream has |") :].split("\n\n")[0].split("\n")
    sizes, *lines = ([cell.strip() for cell in row.strip("|").split("|")] for row in rows if not row.startswith("|---"))
    return {cells[0]: dict(zip(sizes[1:], map(float, cells[1:]))) for cells in lines}


def test_a_model_says_how_long_a_program_waits(columns):
    """Copying a value aside pays up to the size at which it begins to be measured where it lies; what the README says is what is computed."""
    assert "LB_CUDA_ASIDE_BYTES (%du << 20)" % (ASIDE >> 20) in re.sub(r" +", " ", (DEVICE.parent / "cuda" / "cuda_inside.h").read_text())
    sizes = {"8 KiB": 8 << 10, "64 KiB": 64 << 10, "1 MiB": 1 << 20, "4 MiB": 4 << 20, "8 MiB": 8 << 20, "32 MiB": 32 << 20, "128 MiB": 128 << 20}
    table = held()
    for name, machine in MACHINES.items():
        loop = loops_of(columns, name, "bf16, f16")[0]
        computed = {size: machine.holds(loop, n) for size, n in sizes.items()}
        part = (128 << 20) / computed["128 MiB"] / 1000 / machine.memory
        print("%s: %s; 128 MiB: %.2f of its memory's rate" % (machine.name, ", ".join("%s %.1f us" % one for one in computed.items()), part))
        assert table[machine.name] == {size: round(us, 1) for size, us in computed.items()}
        # Measured together by one launch, each takes its share of the machine besides; alone it has a launch for itself.
        share = ASIDE / machine.rate(loop) / 1000
        assert machine.holds(loop, ASIDE) + share < machine.microseconds(loop, ASIDE)
        assert machine.holds(loop, 1 << 20) <= GOAL_US and part < GOAL_PART, "the README says where the goals are met, and where not"


LOOP = """
kernel:
.L_x_1:
        /*0000*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0010*/                   IADD3 R2, P0, R2, 0x10, RZ ;
        /*0020*/                   IADD3.X R3, R3, RZ, RZ, P0, !PT ;
        /*0030*/                   F2F.F64.F32 R8, R4 ;
        /*0040*/                   DADD R10, R8, R10 ;
        /*0050*/               @P1 DFMA R10, R8, R8, R10 ;
        /*0060*/                   STS.64 [R20], R10 ;
        /*0070*/               @P2 BRA `(.L_x_1) ;
        /*0080*/                   EXIT ;
.section other
"""


def test_the_longest_chain_of_a_loop_is_found():
    """The two additions of f64 depend on each other and on the turn before: 16 cycles; the address on itself: 8."""
    (loop,) = machine_code.innermost_loops(LOOP, "kernel")
    assert (loop.bytes, loop.f64, loop.spills, len(loop.body)) == (16, 2, 0, 8)
    assert loop.chain == (2, 16)
    code = loop.body
    assert code[0].written() == ["R4", "R5", "R6", "R7"] and set(code[0].read()) == {"UR4", "UR5", "R2", "R3"}
    assert code[1].written() == ["R2", "P0"] and "P0" in code[2].read()
    assert code[5].read() == ["P1", "R8", "R9", "R8", "R9", "R10", "R11"] and code[6].written() == []
    (alone,) = machine_code.innermost_loops(
        LOOP.replace("R8, R8, R10 ;", "R8, R8, R12 ;").replace("DADD R10, R8, R10", "DADD R14, R8, R10"), "kernel"
    )
    assert alone.chain[1] < 16
