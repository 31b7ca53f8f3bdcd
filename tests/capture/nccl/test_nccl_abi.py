"""The shim's idea of nccl.h against the header itself: types, numbers, every entry point; and the real library, where there is one.

The header is looked for in LASTBIT_NCCL_HOME, build/nccl/nvidia/nccl (the wheel nvidia-nccl-cu13 unpacked there), what pip installed, and /usr.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sysconfig

import pytest
from conftest import BUILD, ROOT

HOMES = [os.environ.get("LASTBIT_NCCL_HOME"), ROOT / "build/nccl/nvidia/nccl", pathlib.Path(sysconfig.get_path("purelib")) / "nvidia/nccl", "/usr"]
HOME = next((pathlib.Path(home) for home in HOMES if home and (pathlib.Path(home) / "include/nccl.h").exists()), None)
needs_header = pytest.mark.skipif(HOME is None, reason="no nccl.h here: unpack the wheel nvidia-nccl-cu13 into build/nccl")

# Of CUDA's headers NCCL's needs these names.
CUDA = {
    "cuda_runtime.h": "#include <stddef.h>\ntypedef struct CUstream_st *cudaStream_t; typedef struct CUevent_st *cudaEvent_t;",
    "cuda_fp16.h": "",
    "cuda_bf16.h": "",
}
SAME = """
#include <nccl.h>
#include "nccl_abi.h"
#define SAME(name, parameters, arguments) \\
    _Static_assert(__builtin_types_compatible_p(__typeof__(&name), lb_nccl_result (*) parameters), #name);
LB_NCCL_ROWS(SAME)
#define NUMBER(number, name, ours) _Static_assert(name == number, #name);
LB_NCCL_DTYPES(NUMBER)
_Static_assert(ncclNumTypes == 12 && sizeof(ncclUniqueId) == 128 && sizeof(ncclDataType_t) == 4 && sizeof(ncclRedOp_t) == 4, "sizes");
_Static_assert(ncclSuccess == LB_NCCL_SUCCESS && ncclSystemError == LB_NCCL_SYSTEM_ERROR && ncclInProgress == LB_NCCL_IN_PROGRESS, "results");
_Static_assert(ncclSum == LB_NCCL_SUM && ncclProd == LB_NCCL_PROD && ncclMax == LB_NCCL_MAX && ncclMin == LB_NCCL_MIN, "ops");
_Static_assert(ncclAvg == LB_NCCL_AVG && ncclNumOps == LB_NCCL_OPS && NCCL_SPLIT_NOCOLOR == LB_NCCL_NOCOLOR, "ops");
_Static_assert(ncclScalarDevice == LB_NCCL_SCALAR_DEVICE && ncclScalarHostImmediate == LB_NCCL_SCALAR_HOST, "residence");
_Static_assert(offsetof(ncclConfig_t, blocking) == 16, "what the stand-in reads of a configuration");
"""


def entry_points():
    text = (HOME / "include/nccl.h").read_text()
    return set(re.findall(r"\bp(nccl[A-Z]\w+)\s*\(", text))


@needs_header
def test_types_and_entry_points_are_those_of_the_header(tmp_path):
    for name, text in CUDA.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "same.c").write_text(SAME)
    includes = [f"-I{tmp_path}", f"-I{HOME}/include", f"-I{ROOT}/capture/nccl"]
    done = subprocess.run(["cc", "-fsyntax-only", *includes, tmp_path / "same.c"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    broken = SAME.replace("name == number", "name == number + 1")  # the comparison compares
    (tmp_path / "same.c").write_text(broken)
    assert subprocess.run(["cc", "-fsyntax-only", *includes, tmp_path / "same.c"], capture_output=True).returncode != 0


def exported():
    listed = subprocess.run(["nm", "-D", "--defined-only", BUILD / "liblastbit_nccl.so"], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in listed.splitlines()}


@needs_header
def test_every_entry_point_of_the_header_is_exported():
    names = entry_points()
    assert len(names) > 60
    assert names | {"p" + name for name in names} <= exported()


def test_nothing_else_is_exported():
    """What the recorder exports would take the place of the recorder's in Python."""
    assert {name for name in exported() if not re.match(r"p?nccl|lb_nccl_(step|join|last_order)$", name)} == set()


@needs_header
@pytest.mark.skipif(HOME is None or not (HOME / "lib/libnccl.so.2").exists(), reason="the real libnccl.so.2 is not here")
def test_real_library_answers_through_the_shim():
    script = (
        "import ctypes, sys\n"
        "nccl = ctypes.CDLL(sys.argv[1])\n"
        "version = ctypes.c_int()\n"
        "nccl.ncclGetErrorString.restype = ctypes.c_char_p\n"
        "print(nccl.ncclGetVersion(ctypes.byref(version)), version.value, nccl.ncclGetErrorString(4).decode())\n"
    )
    env = {**os.environ, "LASTBIT_NCCL": str(HOME / "lib/libnccl.so.2")}
    done = subprocess.run(["python3", "-c", script, BUILD / "dropin/nccl/libnccl.so.2"], capture_output=True, text=True, env=env)
    header = (HOME / "include/nccl.h").read_text()
    version = re.search(r"NCCL_VERSION_CODE (\d+)", header).group(1)
    assert done.stdout.split(maxsplit=2) == ["0", version, "invalid argument (run with NCCL_DEBUG=WARN for details)\n"], done.stderr


@needs_header
@pytest.mark.skipif(HOME is None or not (HOME / "lib/libnccl.so.2").exists(), reason="the real libnccl.so.2 is not here")
def test_all_that_the_real_library_exports_is_found_in_the_drop_in(lastbit, tmp_path):
    """Its device interface among it, of which the shim knows nothing."""
    real = HOME / "lib/libnccl.so.2"
    listed = subprocess.run(["nm", "-D", "--defined-only", real], capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1] for line in listed.splitlines() if re.match(r"p?nccl[A-Z]", line.split()[-1])}
    assert names
    script = "import ctypes, sys\nnccl = ctypes.CDLL(sys.argv[1])\nprint([name for name in sys.argv[2:] if not hasattr(nccl, name)])\n"
    command = ["python3", "-c", script, BUILD / "dropin/nccl/libnccl.so.2", *sorted(names)]
    done = lastbit.run("record", "-o", tmp_path / "run.lb", "--", *command, env={**os.environ, "LASTBIT_NCCL": str(real)})
    assert done.stdout == "[]\n", done.stdout + done.stderr


def members_of_collectives(library, kind):
    """{member: (offset, bytes)} of an event: of its head, and of the member `coll` of its union or what stands there without one."""
    said = subprocess.run(["gdb", "-batch", "-nx", "-ex", f"ptype /o {kind}", library], capture_output=True, text=True, timeout=120).stdout
    first, rest = said.split("} coll;")[0], said if "} coll;" not in said else ""
    return {name: (int(at), int(size)) for at, size, name in re.findall(r"/\*\s+(\d+)\s+\|\s+(\d+) \*/.*?(\w+);", rest or first)}


@needs_header
@pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed")
@pytest.mark.skipif(HOME is None or not (HOME / "lib/libnccl.so.2").exists(), reason="the real libnccl.so.2 is not here")
@pytest.mark.parametrize(
    "version, ours", [(1, "event_1"), (2, "event_2"), (3, "event_3"), (4, "event_4"), (5, "event_4"), (6, "event_4"), (7, "event_4")]
)
def test_events_of_the_profiler_lie_as_the_real_library_has_them(version, ours):
    """By its debug information. Its names of members, and ours."""
    names = dict(func="function", sendBuff="send", recvBuff="recv", count="count", algo="algorithm", proto="protocol")
    names["nChannels" if version >= 4 else "nMaxChannels"] = "channels"
    theirs = members_of_collectives(HOME / "lib/libnccl.so.2", f"ncclProfilerEventDescr_v{version}_t")
    if not theirs:
        pytest.skip("the real libnccl.so.2 has no debug information")
    shim = BUILD / "liblastbit_nccl.so"
    mine, head = members_of_collectives(shim, ours), members_of_collectives(shim, "event")
    if not mine:
        pytest.skip("the shim has no debug information")
    assert {names[name]: theirs[name] for name in names} == {name: mine[name] for name in names.values()}
    assert theirs["rank"] == head["rank"] and theirs["type"] in ((0, 1), (0, 8))


REFUSED = """
import ctypes as c, sys

class UniqueId(c.Structure):
    _fields_ = [("internal", c.c_char * 128)]

nccl, unique, comm, op, number, buffer = c.CDLL(sys.argv[1]), UniqueId(), c.c_void_p(), c.c_int(), c.c_int(), (c.c_float * 8)()
nccl.ncclCommInitRank.argtypes = [c.c_void_p, c.c_int, UniqueId, c.c_int]
nccl.ncclGetErrorString.restype = nccl.ncclGetLastError.restype = c.c_char_p
count, made = c.c_size_t(8), c.byref(comm)
reduce = ("AllReduce", buffer, buffer, count, 7, 0, None, None)
calls = [
    ("GetUniqueId", c.byref(unique)), ("CommInitRank", made, 1, unique, 0), ("CommInitRank", made, 2, unique, 5),
    ("CommInitRank", None, 1, unique, 0), ("CommInitAll", made, 1, None), ("CommInitAll", None, 0, None), reduce,
    ("Broadcast", buffer, buffer, count, 7, 0, None, None), ("Bcast", buffer, count, 7, 0, None, None),
    ("Send", buffer, count, 7, 0, None, None), ("AlltoAll", buffer, buffer, count, 7, None, None),
    ("Gather", buffer, buffer, count, 7, 0, None, None), ("GroupStart",), reduce, ("GroupEnd",), ("GroupEnd",), ("GroupStart",),
    ("GroupSimulateEnd", None), ("CommSplit", None, 0, 0, made, None), ("CommDestroy", None), ("CommAbort", None),
    ("CommFinalize", None), ("CommGetAsyncError", None, c.byref(number)), ("RedOpDestroy", op, None),
    ("RedOpCreatePreMulSum", c.byref(op), buffer, 7, 1, None), ("CommCount", None, c.byref(number)),
]
for name, *arguments in calls:
    print(name, getattr(nccl, "nccl" + name)(*arguments), nccl.ncclGetLastError(None))
print([nccl.ncclGetErrorString(error) for error in range(9)])
"""


@needs_header
@pytest.mark.skipif(HOME is None or not (HOME / "lib/libnccl.so.2").exists(), reason="the real libnccl.so.2 is not here")
def test_what_the_real_library_refuses_is_passed_on(lastbit, tmp_path):
    """With the drop-in, and with the shim preloaded; results and texts are those without us."""
    real = HOME / "lib/libnccl.so.2"
    env = {**os.environ, "LASTBIT_NCCL": str(real)}
    alone = subprocess.run(["python3", "-c", REFUSED, real], capture_output=True, text=True)
    assert alone.returncode == 0 and len(alone.stdout.splitlines()) == 27, alone.stderr
    for library in (BUILD / "dropin/nccl/libnccl.so.2", real):
        done = lastbit.run("record", "-o", tmp_path / "run.lb", "--force", "--", "python3", "-c", REFUSED, library, env=env)
        assert done.stdout == alone.stdout


# A library that does nothing but say which function was reached, one of them younger than the shim.
REACHED = """
#include "nccl_abi.h"
#include <stdio.h>
#define SAY(name, parameters, arguments) lb_nccl_result name parameters { return puts(#name), fflush(stdout), 5; }
LB_NCCL_FORWARDED(SAY)
int ncclYoungerThanTheShim(int number) { return number + 1; }
"""
ASKS = """
import ctypes, sys
nccl = ctypes.CDLL(sys.argv[1])
for name in sys.argv[2:]:
    assert getattr(nccl, name)(*[None] * 6) == 5, name
print(nccl.ncclYoungerThanTheShim(6))
"""


def test_functions_that_move_nothing_reach_the_library_behind(lastbit, tmp_path):
    """Memory, registrations and windows among them, each by its own name and with its answer; and what the shim does not know."""
    real = tmp_path / "libnccl.so.2"
    command = ["cc", "-xc", "-w", "-", f"-I{ROOT}/capture/nccl", "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", "-o", real]
    subprocess.run(command, input=REACHED, text=True, check=True)
    listed = subprocess.run(["nm", "-D", "--defined-only", real], capture_output=True, text=True, check=True).stdout
    names = sorted(line.split()[-1] for line in listed.splitlines() if line.split()[-1].startswith("nccl") and "Younger" not in line)
    assert {"ncclMemAlloc", "ncclCommRegister", "ncclCommWindowRegister", "ncclCommWindowDeregister"} <= set(names)
    asked = ["python3", "-c", ASKS, BUILD / "dropin/nccl/libnccl.so.2", *names]
    done = lastbit.run("record", "-o", tmp_path / "run.lb", "--", *asked, env={**os.environ, "LASTBIT_NCCL": str(real)})
    assert done.stdout.splitlines() == [*names, "7"], done.stdout + done.stderr
