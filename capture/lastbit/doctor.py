"""What `lastbit doctor` finds out inside the user's own Python: what recording would see here, what not, and why.

Runs in the environment that `lastbit record` makes, with a scratch folder to record into: so the last check is a real
one, two small training steps whose capture the command then opens. The answer goes to a file as JSON, since anything may
print while torch is imported. Written for Python 3.6 on, so that an interpreter that is too old can be told so.
"""

import json
import os
import sys

OK, NOTE, DEGRADED, IMPOSSIBLE = "ok", "note", "degraded", "impossible"
OLDEST_PYTHON, OLDEST_TORCH = (3, 9), (2, 6)


class Report:
    def __init__(self):
        self.checks = []

    def add(self, state, what, detail, advice=""):
        self.checks.append({"state": state, "what": what, "detail": detail, "advice": advice})

    def guarded(self, what, function, *arguments):
        """A check that breaks is a finding, not the end of the others."""
        try:
            function(self, *arguments)
        except Exception as error:
            self.add(DEGRADED, what, "the check itself failed: %s: %s" % (type(error).__name__, error))


def check_python(report):
    version = "%s, %s" % (".".join(map(str, sys.version_info[:3])), sys.executable)
    if sys.version_info < OLDEST_PYTHON:
        report.add(IMPOSSIBLE, "python", version, "Python %d.%d or newer is needed" % OLDEST_PYTHON)
    elif sys.implementation.name != "cpython":
        report.add(DEGRADED, "python", version + ", " + sys.implementation.name, "only CPython is tested")
    else:
        report.add(OK, "python", version)


def check_startup(report):
    here = os.path.join(os.path.dirname(os.path.realpath(__file__)), "launch")
    armed = (
        any(type(finder).__module__ == "sitecustomize" or type(finder).__name__ == "_AfterTorch" for finder in sys.meta_path)
        or "torch" in sys.modules
    )
    if not armed:
        report.add(
            IMPOSSIBLE, "start", "our sitecustomize did not run", "the interpreter is started without site or PYTHONPATH (-S, -I, -E, or built so)"
        )
        return
    module = sys.modules.get("sitecustomize")
    path = getattr(module, "__file__", None)
    theirs = path and os.path.dirname(os.path.realpath(path)) != here
    report.add(OK, "start", "sitecustomize runs" + (", and then the one it hides, %s" % path if theirs else ""))


def check_library(report):
    import ctypes

    from . import library_path

    path = library_path()
    try:
        library = ctypes.CDLL(path)
        assert library.lb_recorder_open  # absent, it is an AttributeError
    except (OSError, AttributeError) as error:
        report.add(IMPOSSIBLE, "recorder", str(error), "build lastbit for this machine, or name the library in LASTBIT_LIB")
    else:
        report.add(OK, "recorder", path)


def import_torch(report):
    try:
        import torch
    except ImportError as error:
        report.add(IMPOSSIBLE, "torch", str(error), "install PyTorch in this Python, or name the one that has it: --python")
        return None
    except Exception as error:
        report.add(IMPOSSIBLE, "torch", "importing it fails: %s: %s" % (type(error).__name__, error))
        return None
    version = str(getattr(torch, "__version__", "0"))
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    if numbers < OLDEST_TORCH:
        report.add(DEGRADED, "torch", version, "only PyTorch %d.%d and newer are tested" % OLDEST_TORCH)
    else:
        report.add(OK, "torch", version)
    return torch


# What recording needs of torch that is not its public interface: (name, is it there, what is lost without it).
def _entry_points(torch):
    def autograd_sequence():
        return getattr(torch.autograd, "_get_sequence_nr", None) or torch._C._autograd._get_sequence_nr

    def always_called_hooks():
        import inspect

        hook = torch.nn.modules.module.register_module_forward_hook
        assert "always_call" in inspect.signature(hook).parameters
        return torch.nn.modules.module.register_module_forward_pre_hook

    def dispatch_mode():
        from torch.utils._python_dispatch import TorchDispatchMode

        return TorchDispatchMode

    def optimizer_hooks():
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        return register_optimizer_step_pre_hook and register_optimizer_step_post_hook

    def process_groups():
        if torch.distributed.is_available():
            return torch.distributed.ProcessGroup.unbox and torch.distributed.Work.unbox
        return True

    return (
        (IMPOSSIBLE, "TorchDispatchMode", dispatch_mode, "no op is seen"),
        (DEGRADED, "_current_autograd_node", lambda: torch._C._current_autograd_node, "backward ops carry no layer"),
        (DEGRADED, "_get_sequence_nr", autograd_sequence, "backward ops carry no layer"),
        (DEGRADED, "global module hooks", always_called_hooks, "ops carry no layer, and steps are not found"),
        (DEGRADED, "global optimizer hooks", optimizer_hooks, "optimizer steps and parameter groups are not seen"),
        (
            DEGRADED,
            "storage weak references",
            lambda: torch.zeros(1).untyped_storage()._weak_ref,
            "a storage that is used again may be taken for the one before",
        ),
        (DEGRADED, "dispatch mode stack", lambda: torch._C._len_torch_dispatch_stack, "modes of other tools are not noticed"),
        (DEGRADED, "ProcessGroup.unbox, Work.unbox", process_groups, "collectives carry no group and no completion"),
    )


def check_entry_points(report, torch):
    lacking = []
    points = _entry_points(torch)
    for state, name, probe, lost in points:
        try:
            there = probe()
        except Exception:
            there = None
        if not there:
            lacking.append(name)
            report.add(state, "torch: " + name, "not in this version", lost)
    if not lacking:
        report.add(OK, "entry points", "all %d that are not public" % len(points))


def check_devices(report, torch):
    from .torch import devices

    found = devices.present()
    built = torch.version.cuda or torch.version.hip
    idle = ", torch is built for %s but no GPU is usable" % built if built and len(found) == 1 else ""
    report.add(OK, "devices", "CPU: digests, statistics and bytes; read at %.1f GB/s" % (devices.rate_of(found[0]) / 1e9) + idle)
    there, kernels = devices.kernels_where_they_lie()
    if there or len(found) == 1:
        report.add(OK, "cuda kernels", kernels)
    else:
        advice = "values of CUDA's devices are copied: add the folder of libnvrtc.so to LD_LIBRARY_PATH, or build lastbit where nvcc is"
        report.add(DEGRADED, "cuda kernels", kernels, advice)
    for device in found[1:]:
        report.guarded("device %s" % device, check_device, device)


def check_device(report, device):
    from .torch import devices

    name = devices.name_of(device)
    prefix = name + ": " if name else ""
    copied = "read at %.1f GB/s" % (devices.rate_of(device) / 1e9)
    if not devices.measured_where_they_lie(device):
        advice = "the program waits for the device at each value that is recorded: --steps and --level stats cost less"
        report.add(NOTE, "device %s" % device, prefix + "digests, statistics and bytes, copied by torch; " + copied, advice)
        return
    try:
        measured = "measured there by kernels, at %.1f GB/s" % (devices.rate_where_they_lie(device) / 1e9)
    except RuntimeError as error:
        advice = "the kernels of lastbit do not measure here, and each value is copied: %s" % error
        report.add(DEGRADED, "device %s" % device, prefix + "digests, statistics and bytes, copied by torch; " + copied, advice)
        return
    report.add(OK, "device %s" % device, prefix + "digests, statistics and bytes, %s, copied; %s" % (measured, copied))


def check_distributed(report, torch):
    distributed = torch.distributed
    if not distributed.is_available():
        report.add(NOTE, "distributed", "this torch is built without torch.distributed")
        return
    backends = [name for name in ("gloo", "nccl", "mpi", "ucc", "xccl") if getattr(distributed, "is_%s_available" % name, lambda: False)()]
    report.add(OK, "distributed", ", ".join(backends) or "no backend", "" if "gloo" in backends else "only gloo is tested")


def check_nccl(report, torch):
    """One line on what lies beneath torch's collectives: the NCCL that it calls, our library in front of it, and whether NCCL can tell
    that one how it reduces."""
    shim = os.environ.get("LASTBIT_NCCL_SHIM")
    path, why = _nccl_of(torch)
    if path is None:
        report.add(OK, "nccl", why + (", the shim is there for programs that bring one" if shim else ""))
        return
    what = "%s%s" % (path, _nccl_version(path))
    if not shim:
        report.add(NOTE, "nccl", what + "; no shim", "liblastbit_nccl.so is not beside the recorder: nothing says in which order NCCL reduces")
        return
    plugin = os.environ.get("NCCL_PROFILER_PLUGIN")
    if plugin and plugin != shim:
        advice = "it stays: collectives are recorded, and not in which order NCCL reduces"
        report.add(NOTE, "nccl", "%s; the shim is there, but NCCL_PROFILER_PLUGIN names %s" % (what, plugin), advice)
        return
    ours, theirs = _profilers(shim), _profilers(path)
    common = ours & theirs
    if common:
        report.add(OK, "nccl", what + "; the shim is there, and both speak version %d of the profiler interface" % max(common))
        return
    said = "its profiler interface is version %s" % _numbers(theirs) if theirs else "it has no profiler interface"
    advice = "the shim speaks version %s: collectives are recorded, and not in which order NCCL reduces" % _numbers(ours)
    report.add(NOTE, "nccl", "%s; the shim is there, but %s" % (what, said), advice)


def check_mpi(report):
    """Beneath which families of MPI `record --mpi` can stand: its library and their adapters lie beside the recorder."""
    folder = os.path.dirname(os.environ.get("LASTBIT_LIB", ""))
    if not os.path.exists(os.path.join(folder, "liblastbit_mpi.so")):
        report.add(NOTE, "mpi", "liblastbit_mpi.so is not beside the recorder", "`lastbit record --mpi` is not there")
        return
    families = [name for name, file in _MPI if os.path.exists(os.path.join(folder, "liblastbit_mpi_%s.so" % file))]
    if families:
        report.add(OK, "mpi", "calls of %s are recorded by `lastbit record --mpi`" % " and ".join(families))
        return
    advice = "build lastbit again where mpicc of Open MPI or MPICH is installed, to have `lastbit record --mpi`"
    report.add(NOTE, "mpi", "the library beneath MPI is there, without an adapter for any", advice)


_MPI = (("Open MPI", "openmpi"), ("MPICH", "mpich"))


def _nccl_of(torch):
    """(path of the libnccl that torch calls, None), or (None, why there is none). LASTBIT_NCCL names another, as for the shim."""
    import ctypes

    if os.environ.get("LASTBIT_NCCL"):
        return os.environ["LASTBIT_NCCL"], None
    available = getattr(torch.distributed, "is_nccl_available", lambda: False)()
    mapped = _mapped("libnccl")
    if mapped or not available:
        return mapped, None if mapped else "this torch has no NCCL"
    try:
        ctypes.CDLL("libnccl.so.2")
    except OSError:
        return None, "this torch has NCCL inside of itself, where no shim comes beneath it"
    return _mapped("libnccl"), "this torch has NCCL, and no file of it was found"


def _mapped(prefix):
    """The file of a loaded library."""
    try:
        with open("/proc/self/maps") as maps:
            for line in maps:
                path = line.split(maxsplit=5)[5].strip() if line.count("/") else ""
                if os.path.basename(path).startswith(prefix + "."):
                    return path
    except OSError:
        pass  # no such system
    return None


def _nccl_version(path):
    """ ", version 2.27.3"; "" where it does not say."""
    import ctypes

    try:
        number = ctypes.c_int()
        ctypes.CDLL(path).ncclGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return ""
    n = number.value  # 2708 was 2.7.8, and from 2.9 on 20900 is 2.9.0
    parts = (n // 1000, n // 100 % 10, n % 100) if n < 10000 else (n // 10000, n // 100 % 100, n % 100)
    return ", version %d.%d.%d" % parts


def _profilers(path):
    """Versions of NCCL's profiler interface that a library names: what NCCL looks for in a plug-in, and what a plug-in offers."""
    import mmap
    import re

    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
        return {int(number) for number in re.findall(rb"ncclProfiler_v(\d+)\b", library)}


def _numbers(versions):
    return ", ".join(map(str, sorted(versions))) or "none"


def check_compile(report):
    report.add(
        NOTE,
        "torch.compile",
        "compiled functions run as eager code while steps are recorded",
        "what is recorded are the bits of the eager program; --compiled kernels records what leaves compiled code of inductor; with "
        "--steps what comes before the first of them and after the "
        "last runs compiled, and a step is counted only where a module is called outside compiled functions",
    )


def check_disk(report, folder):
    import shutil

    free = shutil.disk_usage(folder).free
    text = "%.1f GB free in %s" % (free / 2.0**30, folder)
    if not os.access(folder, os.W_OK):
        report.add(DEGRADED, "disk", "%s cannot be written to" % folder, "record elsewhere with -o")
    elif free < 2 << 30:
        report.add(DEGRADED, "disk", text, "a capture may take 2 GB per rank: record elsewhere with -o, or give --budget")
    else:
        report.add(OK, "disk", text)


def check_trial(report, torch):
    """Two training steps of a small network. The command that started us opens what they left behind."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        optimizer.step()
    if not bool(torch.isfinite(loss)):
        raise ArithmeticError("two small steps do not give a finite loss")
    report.add(OK, "trial", "two training steps ran")


def run(report, directory):
    for what, check in (("python", check_python), ("start", check_startup), ("recorder", check_library), ("mpi", check_mpi)):
        report.guarded(what, check)
    torch = import_torch(report)
    if torch is not None:
        for what, check in (
            ("entry points", check_entry_points),
            ("devices", check_devices),
            ("distributed", check_distributed),
            ("nccl", check_nccl),
            ("trial", check_trial),
        ):
            report.guarded(what, check, torch)
        report.guarded("torch.compile", check_compile)
    report.guarded("disk", check_disk, directory)


def main(answer, log):
    """`answer`: where the JSON goes. `log`: where everything that is printed meanwhile goes, for the reader of errors."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    report = Report()
    run(report, os.getcwd())
    with open(answer, "w") as out:
        json.dump({"python": sys.executable, "checks": report.checks}, out)
