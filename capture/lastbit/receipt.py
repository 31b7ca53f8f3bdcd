"""The receipt: what a run was, so that two captures can be told apart and one can be made again.

collect() reads and never changes anything, imports nothing that the program has not imported, and never raises: what
cannot be read is left out. A capture is meant to be shown to others: environment variables come by allow-list, secrets are
masked (secret_text.py), paths are cut to their last part, and the machine's name is there only where it was asked for.
"""

import hashlib
import os
import platform
import re
import sys
import time

from . import __version__
from .secret_text import is_secret_name, mask, mask_text

# Variables that can change which kernel runs, in which order, on which device. Nothing else of the environment is kept.
ENVIRONMENT = re.compile(
    r"(OMP|KMP|GOMP|MKL|OPENBLAS|BLIS|ATEN|DNNL|ONEDNN)_[A-Z0-9_]+$"
    r"|(PYTORCH|TORCH|TORCHINDUCTOR|TORCHDYNAMO|NVTE|XLA)_[A-Z0-9_]+$"
    r"|(NCCL|GLOO|UCC|TORCH_NCCL)_[A-Z0-9_]+$"
    r"|(CUBLAS|CUDNN|CUDA|NVIDIA_TF32|HIP|ROCR|HSA)_[A-Z0-9_]+$"
    r"|(LOCAL_|GROUP_)?(RANK|WORLD_SIZE)$|PYTHONHASHSEED$|MALLOC_ARENA_MAX$|LD_PRELOAD$"
)
_MAX_MODULES, _MAX_SOURCE = 400, 4 << 20
_PACKAGES = (
    "numpy",
    "transformers",
    "accelerate",
    "deepspeed",
    "megatron",
    "lightning",
    "pytorch_lightning",
    "flash_attn",
    "triton",
    "transformer_engine",
    "peft",
    "safetensors",
    "vllm",
    "torchao",
    "xformers",
    "apex",
    "bitsandbytes",
)


def _reading(function, *arguments):
    """function(*arguments), or None where this version of it does not answer."""
    try:
        return function(*arguments)
    except Exception:
        return None


def _versions():
    found = {"lastbit": __version__, "python": platform.python_version(), "implementation": sys.implementation.name}
    for name in ("torch",) + _PACKAGES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name] = str(version)
    return found


def _process(host):
    found = {
        "pid": os.getpid(),
        **({"host": _reading(platform.node)} if host else {}),
        "directory": os.path.basename(_reading(os.getcwd) or ""),
        "argv": mask(_reading(lambda: sys.argv) or []),
        "executable": os.path.basename(sys.executable or ""),
        "flags": sorted(name for name in ("optimize", "no_site", "isolated", "ignore_environment", "dev_mode") if getattr(sys.flags, name, 0)),
    }
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        text = os.environ.get(name)
        if text is not None and text.isdigit():
            found[name.lower()] = int(text)
    return found


def _torch_flags(torch):
    """Everything that chooses kernels and their precision. Each is read by itself: none exists in all versions."""
    backends = torch.backends
    questions = {
        "matmul_precision": torch.get_float32_matmul_precision,
        "default_dtype": lambda: str(torch.get_default_dtype()),
        "deterministic": torch.are_deterministic_algorithms_enabled,
        "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled,
        "fill_uninitialized_memory": lambda: torch.utils.deterministic.fill_uninitialized_memory,
        "threads": torch.get_num_threads,
        "interop_threads": torch.get_num_interop_threads,
        "cpu_capability": lambda: backends.cpu.get_cpu_capability(),
        "mkl": lambda: backends.mkl.is_available(),
        "mkldnn": lambda: backends.mkldnn.is_available() and backends.mkldnn.enabled,
        "mkldnn_deterministic": lambda: backends.mkldnn.deterministic,
        "openmp": lambda: backends.openmp.is_available(),
        "nnpack": lambda: backends.nnpack.is_available(),
        "fp32_precision_matmul": lambda: backends.cuda.matmul.fp32_precision,
        "fp32_precision_mkldnn": lambda: backends.mkldnn.matmul.fp32_precision,
        "tf32_matmul": lambda: torch._C._get_cublas_allow_tf32(),
        "tf32_cudnn": lambda: torch._C._get_cudnn_allow_tf32(),
        "bf16_reduced_precision": lambda: str(torch._C._get_cublas_allow_bf16_reduced_precision_reduction()),
        "fp16_reduced_precision": lambda: str(torch._C._get_cublas_allow_fp16_reduced_precision_reduction()),
        "cudnn_enabled": lambda: backends.cudnn.enabled,
        "cudnn_benchmark": lambda: backends.cudnn.benchmark,
        "cudnn_deterministic": lambda: backends.cudnn.deterministic,
        "sdp_flash": lambda: torch._C._get_flash_sdp_enabled(),
        "sdp_efficient": lambda: torch._C._get_mem_efficient_sdp_enabled(),
        "sdp_math": lambda: torch._C._get_math_sdp_enabled(),
        "sdp_cudnn": lambda: torch._C._get_cudnn_sdp_enabled(),
        "sdp_flash_3": lambda: torch._C._get_fa3_sdp_enabled(),
        "sdp_math_reduced": lambda: torch._C._get_math_sdp_allow_fp16_bf16_reduction(),
        "sdp_order": lambda: [int(n) for n in torch._C._get_sdp_priority_order()],
        "fp16_accumulation": lambda: torch._C._get_cublas_allow_fp16_accumulation(),
        "fp32_precision_conv": lambda: backends.cudnn.conv.fp32_precision,
        "fp32_precision_rnn": lambda: backends.cudnn.rnn.fp32_precision,
        "blas": lambda: str(torch._C._get_blas_preferred_backend()).rpartition(".")[2],
        "linalg": lambda: str(torch._C._get_linalg_preferred_backend()).rpartition(".")[2],
        "autocast_cpu": lambda: torch.is_autocast_enabled("cpu"),
        "git_version": lambda: torch.version.git_version,
        "cuda": lambda: torch.version.cuda,
        "hip": lambda: torch.version.hip,
        "debug": lambda: torch.version.debug,
    }
    answers = {name: _reading(question) for name, question in questions.items()}
    return {name: answer for name, answer in answers.items() if answer is not None}


def _devices(torch):
    """Named only when the program has started them itself: asking would start them."""
    return _cuda_devices(torch) + _other_devices(torch)


def _cuda_devices(torch):
    if not _reading(torch.cuda.is_initialized):
        return []
    versions = {
        "driver": _reading(lambda: torch._C._cuda_getDriverVersion()),
        "runtime": _reading(lambda: torch.version.cuda or torch.version.hip),
        "cudnn": _reading(lambda: torch.backends.cudnn.version()),
        "nccl": _reading(lambda: ".".join(map(str, torch.cuda.nccl.version()))),
    }
    versions = {name: version for name, version in versions.items() if version is not None}
    devices = []
    for index in range(_reading(torch.cuda.device_count) or 0):
        properties = _reading(torch.cuda.get_device_properties, index)
        if properties is not None:
            capability = "%d.%d" % (properties.major, properties.minor)
            found = {"device": "cuda:%d" % index, "name": properties.name, "memory": properties.total_memory, "capability": capability}
            devices.append(dict(found, processors=properties.multi_processor_count, **versions))
    return devices


def _other_devices(torch):
    """Of accelerators by the names that torch knows them by: XPU, MPS, and what registered itself."""
    devices = []
    for kind in ("xpu", "mps", _reading(torch._C._get_privateuse1_backend_name)):
        module = getattr(torch, kind, None) if kind else None
        if module is None or not _reading(getattr(module, "is_initialized", module.is_available)):
            continue
        for index in range(_reading(module.device_count) or 0):
            name = _reading(module.get_device_name, index) if hasattr(module, "get_device_name") else None
            devices.append({"device": "%s:%d" % (kind, index), **({"name": str(name)} if name else {})})
    return devices


def _distributed(torch):
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not _reading(distributed.is_available) or not _reading(distributed.is_initialized):
        return None
    return {"backend": _reading(distributed.get_backend), "rank": _reading(distributed.get_rank), "world_size": _reading(distributed.get_world_size)}


def _is_library(path):
    parts = path.replace("\\", "/").split("/")
    return "site-packages" in parts or "dist-packages" in parts or path.startswith(_STANDARD) or path.startswith(_OURS)


_STANDARD = os.path.realpath(os.path.dirname(os.__file__)) + os.sep
_OURS = os.path.dirname(os.path.realpath(__file__)) + os.sep


def _code():
    """The program's own modules that are loaded, each with the hash of its source; and one hash of them all."""
    files, skipped = {}, 0
    for name, module in sorted((str(n), m) for n, m in list(sys.modules.items())):
        path = getattr(module, "__file__", None)
        if not isinstance(path, str) or not path.endswith(".py"):
            continue
        path = os.path.realpath(path)
        if _is_library(path):
            continue
        size = _reading(os.path.getsize, path)
        if size is None:
            continue  # no file: torch.ops and the like
        if len(files) >= _MAX_MODULES or size > _MAX_SOURCE:
            skipped += 1
            continue
        digest = _reading(_hash_file, path)
        if digest:
            files[name] = {"file": os.path.basename(path), "sha256": digest}
    whole = hashlib.sha256()
    for name in sorted(files):
        whole.update(("%s %s\n" % (name, files[name]["sha256"])).encode())
    return {"sha256": whole.hexdigest() if files else None, "modules": files, "skipped": skipped}


def _hash_file(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def _machine():
    found = {
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "affinity": len(os.sched_getaffinity(0)),
        "libc": " ".join(platform.libc_ver()),
    }
    for line in _reading(lambda: open("/proc/cpuinfo").read().splitlines()[:64]) or []:
        if line.startswith("model name"):
            found["processor"] = line.partition(":")[2].strip()
            break
    return found


def collect(host=False):
    """`host`: with the machine's name. A dict that json.dumps takes. Cheap: a few milliseconds, most of them hashing the program's sources."""
    receipt = {"time": time.time()}
    torch = sys.modules.get("torch")
    parts = {
        "versions": _versions,
        "process": lambda: _process(host),
        "machine": _machine,
        "code": _code,
        "environment": lambda: {
            name: mask_text(text)[:400] for name, text in sorted(os.environ.items()) if ENVIRONMENT.match(name) and not is_secret_name(name)
        },
    }
    if torch is not None:
        parts.update(torch=lambda: _torch_flags(torch), devices=lambda: _devices(torch), distributed=lambda: _distributed(torch))
    for name, part in parts.items():
        answer = _reading(part)
        if answer is not None:
            receipt[name] = _encodable(answer)
    return receipt


def _encodable(part):
    """A part whose texts UTF-8 has bytes for: an argument or a variable may hold any bytes, which stand as \\xNN."""
    if isinstance(part, dict):
        return {_encodable(name): _encodable(value) for name, value in part.items()}
    if isinstance(part, list):
        return [_encodable(value) for value in part]
    if not isinstance(part, str):
        return part
    try:
        raw = part.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raw = part.encode("utf-8", "surrogatepass")
    return raw.decode("utf-8", "backslashreplace")
