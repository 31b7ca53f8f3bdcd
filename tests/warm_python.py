"""An interpreter that has PyTorch loaded: `import torch` and the compiler that its optimizers pull in take 3 s, most test programs 0.1 s.

    python warm_python.py serve SOCKET                            # once; loads torch, then forks a process for each run
    python -IS warm_python.py run SOCKET PROGRAM.py ARGUMENTS…    # as `python PROGRAM.py ARGUMENTS…`

The forked process takes over the caller's environment, folder, files and arguments, runs the sitecustomize of its PYTHONPATH
(by which `lastbit record` starts) and then the program, and ends as any interpreter does; the caller ends as it did. Processes
that the program starts with `torch.multiprocessing.spawn`, and the ranks of `-m torch.distributed.run --standalone
--nproc-per-node N PROGRAM.py`, are forked, too. What is read only when a library is loaded would be the server's: where the
caller's environment differs in more than lastbit's own variables, or other options are there, the ordinary interpreter runs it.

Tests of capture itself use the ordinary interpreter; see `Lastbit.record`."""

import json
import os
import signal
import socket
import sys

PRELOADED = (
    "torch",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "transformers",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen3_moe.modeling_qwen3_moe",
)
OURS = ("LASTBIT_", "PYTEST_", "PYTHONPATH", "PWD", "OLDPWD", "SHLVL", "LINES", "COLUMNS", "_")


TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def split(arguments):
    """How many ranks, 0 for a program without, and the program with its arguments: nothing where it isn't for us."""
    ranks = 0
    if arguments[:4] == TORCHRUN:
        ranks, arguments = int(arguments[4]), arguments[5:]
    return ranks, arguments if arguments and arguments[0].endswith(".py") else []


def foreign(environment, but):
    """The variables that a library may have read when the server loaded it, without some."""
    return {name: value for name, value in environment.items() if not name.startswith(OURS) and name not in but and not is_shim(value)}


def is_shim(value):
    """By `lastbit record`, for programs that load NCCL: PyTorch for the CPU never does."""
    return value.endswith("/liblastbit_nccl.so") and ":" not in value


# ---- the caller ------------------------------------------------------------------------------------------------------


def run(path, arguments):
    code = asked(path, arguments) if split(arguments)[1] else None
    if code is None:
        os.execv(sys.executable, [sys.executable, *arguments])
    end_as(code)


def asked(path, arguments):
    """How the program ended; None: the server is gone, or has another environment."""
    with socket.socket(socket.AF_UNIX) as line:
        try:
            line.connect(path)
        except OSError:
            return None
        request = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
        socket.send_fds(line, [b"!"], [0, 1, 2])
        line.sendall(json.dumps(request).encode() + b"\n")
        answer = line.makefile().readline()
    return json.loads(answer) if answer else 1


def end_as(code):
    """As a process that ended with this exit code, or (negative) by this signal."""
    if code >= 0:
        sys.exit(code)
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


# ---- the server ------------------------------------------------------------------------------------------------------


def serve(path):
    """Returns in the forked processes alone, with what each is to run."""
    import gc
    import importlib

    given = dict(os.environ)
    for module in PRELOADED:
        importlib.import_module(module)
    gc.freeze()
    set_by_libraries = {name for name, value in os.environ.items() if given.get(name) != value}
    mine = foreign(os.environ, set_by_libraries)
    # Who has waited for a run that ended forks no children of its own, and nobody waits for it.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(path)
        door.listen()
        print("ready", flush=True)
        while True:
            line, _ = door.accept()
            if os.fork() == 0:
                break
            line.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, files, _, _ = socket.recv_fds(line, 1, 3)
    request = json.loads(line.makefile().readline())
    code = None
    if foreign(request["environment"], set_by_libraries) == mine:
        child = os.fork()
        if child == 0:
            line.close()
            return request, files
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    line.sendall(json.dumps(code).encode() + b"\n")
    os._exit(0)


def become(request, files):
    """This process is the program's from here."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    ranks, sys.argv = split(request["arguments"])
    found = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:1] = [os.path.dirname(os.path.realpath(sys.argv[0])), *found]
    sys.modules.pop("sitecustomize", None)
    if found:
        import sitecustomize  # noqa: F401
    import functools
    import random

    import torch.multiprocessing as processes

    random.seed()
    processes.spawn = functools.partial(processes.start_processes, start_method="fork")
    if ranks:
        processes.spawn(rank_of, (free_port(), ranks), nprocs=ranks)
    else:
        execute(sys.argv[0])


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def rank_of(rank, port, ranks):
    """What torchrun tells its processes."""
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks)
    )
    execute(sys.argv[0])


def execute(program):
    program = os.path.abspath(program)
    main = type(sys)("__main__")
    main.__file__, main.__builtins__ = program, __builtins__
    sys.modules["__main__"] = main
    with open(program, "rb") as text:
        code = compile(text.read(), program, "exec")
    try:
        exec(code, main.__dict__)
    except Exception as error:
        error.__traceback__ = error.__traceback__.tb_next  # the frame of this file left out
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


if __name__ == "__main__":
    if sys.argv[1] == "run":
        run(sys.argv[2], sys.argv[3:])
    else:
        become(*serve(sys.argv[2]))
