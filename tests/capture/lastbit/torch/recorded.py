"""Reads a capture through the C reader, for tests: programs as plain Python objects, values as torch tensors.

The structures mirror include/lastbit/{program,tensor}.h; sizes are checked by what comes out being sensible.
"""

import ctypes as c
import json
import os
import pathlib
import sys

ROOT = str(pathlib.Path(__file__).resolve().parents[4])
sys.path.insert(0, os.path.join(ROOT, "capture"))

import lastbit  # noqa: E402

NONE = 0xFFFFFFFF
PHASES = ["forward", "backward", "optimizer", "communication", "other"]
KINDS = ["", "parameter", "state", "batch", "random", "collective", "opaque", "unseen", "carried", "other"]
VIEW, MUTABLE, RANDOM, DECISION, UNDEFINED_OP, RECOMPUTE, COLLECTIVE, COMPOSITE, FAILED = (1 << n for n in range(9))
SOURCE, UNDEFINED, KEPT, PARAMETER, GRADIENT, STATE, INPUT = (1 << n for n in range(7))


def struct(name, *fields):
    return type(name, (c.Structure,), {"_fields_": list(fields)})


u8, u32, i32, i64, u64, f64, p = c.c_uint8, c.c_uint32, c.c_int32, c.c_int64, c.c_uint64, c.c_double, c.c_void_p
Digest = struct("Digest", ("hi", u64), ("lo", u64))
Layout = struct("Layout", ("ndim", i32), ("offset", i64), ("shape", i64 * 16), ("stride", i64 * 16))
Tensor = struct("Tensor", ("data", p), ("dtype", u8), ("layout", Layout))
Arg = struct("Arg", ("tag", u8), ("count", u32), ("u", u64))
Op = struct(
    "Op",
    ("name", u32),
    ("scope", u32),
    ("call", u32),
    ("flags", u32),
    ("first_arg", u32),
    ("args", u32),
    ("first_result", u32),
    ("results", u32),
    ("first_written", u32),
    ("written", u32),
    ("node_name", u32),
    ("node", i64),
    ("phase", u8),
    ("thread", u8),
    ("line", u32),
)
Value = struct(
    "Value",
    ("storage", i64),
    ("version", u32),
    ("flags", u32),
    ("layout", Layout),
    ("dtype", u8),
    ("source", u8),
    ("device", u8),
    ("name", u32),
    ("statistics", u32),
    ("logical", Digest),
    ("blob", Digest),
)
Scope = struct("Scope", ("path", u32), ("class_name", u32), ("parent", u32))
Boundary = struct("Boundary", ("scope", u32), ("call", u32), ("op", u32), ("position", u32), ("value", u32), ("output", u8), ("recompute", u8))
Collective = struct(
    "Collective", ("op", u32), ("group", u32), ("reduce", u32), ("algorithm", u32), ("sequence", u64), ("first_rank", u32), ("ranks", u32)
)
Routing = struct("Routing", ("scope", u32), ("call", u32), ("logits", u32), ("ids", u32), ("weights", u32), ("slots", u32), ("dropped", u32))
Scalar = struct("Scalar", ("name", u32), ("op", u32), ("number", f64))
Group = struct(
    "Group",
    ("optimizer", u32),
    ("index", u32),
    ("first_op", u32),
    ("ops", u32),
    ("first_param", u32),
    ("params", u32),
    ("first_option", u32),
    ("options", u32),
)
GroupParam = struct("GroupParam", ("name", u32), ("storage", i64), ("gradient", i64))
Notice = struct("Notice", ("kind", u32), ("op", u32), ("value", u32), ("message", u32))
Shard = struct(
    "Shard",
    ("value", u32),
    ("name", u32),
    ("mesh", u32),
    ("first_placement", u32),
    ("placements", u32),
    ("first_extent", u32),
    ("extents", u32),
    ("at", i64),
)
Extent = struct("Extent", ("dim", i32), ("whole", i64), ("from_", i64), ("size", i64))
Placement = struct("Placement", ("kind", u8), ("dim", i32), ("reduce", u32))
Mesh = struct("Mesh", ("first_axis", u32), ("axes", u32), ("first_rank", u32), ("ranks", u32))
MeshAxis = struct("MeshAxis", ("name", u32), ("size", u32))
Statistics = struct(
    "Statistics", *[(n, i64) for n in ("elements", "nan", "pos_inf", "neg_inf", "zero")], *[(n, f64) for n in ("min", "max", "sum", "sum_squares")]
)
TABLES = [
    ("strings", c.c_char_p),
    ("scopes", Scope),
    ("ops", Op),
    ("args", Arg),
    ("refs", u32),
    ("values", Value),
    ("statistics", Statistics),
    ("boundaries", Boundary),
    ("collectives", Collective),
    ("routings", Routing),
    ("scalars", Scalar),
    ("groups", Group),
    ("group_params", GroupParam),
    ("notices", Notice),
    ("shards", Shard),
    ("extents", Extent),
    ("placements", Placement),
    ("meshes", Mesh),
    ("mesh_axes", MeshAxis),
]
Program = struct(
    "Program",
    ("step", i64),
    ("rank", i32),
    ("world", i32),
    ("level", u8),
    ("complete", u8),
    ("shard", u32),
    *[f for n, t in TABLES for f in ((n, c.POINTER(t)), ("n_" + n, u32))],
)
Err = struct("Err", ("status", c.c_int), ("message", c.c_char * 480))


def load():
    lib = c.CDLL(lastbit.library_path())
    lib.lb_archive_step.restype = i64
    lib.lb_capture_table.restype = c.c_char_p
    for name in ("lb_capture_open", "lb_capture_program", "lb_capture_value", "lb_program_validate"):
        getattr(lib, name).restype = c.c_int
    lib.lb_capture_ranks.argtypes = lib.lb_capture_steps.argtypes = [p, p]
    lib.lb_capture_ranks.restype = lib.lb_capture_steps.restype = u32
    lib.lb_capture_program.argtypes = [p, i32, i64, p, p]
    lib.lb_capture_value.argtypes = [p, p, u32, p, p]
    lib.lb_capture_table.argtypes = [p, i32, c.c_char_p]
    lib.lb_capture_close.argtypes = [p]
    lib.lb_capture_close.restype = None
    lib.lb_digest_tensor.argtypes = [p]
    lib.lb_digest_tensor.restype = Digest
    lib.lb_dtype_torch.argtypes = [u8]
    lib.lb_dtype_torch.restype = c.c_char_p
    return lib


class Recorded:
    """A capture; `programs[rank][step]`."""

    def __init__(self, path):
        self.lib = load()
        self.handle = p()
        self.err = Err()
        self.check(self.lib.lb_capture_open(os.fsencode(str(path)), c.byref(self.handle), c.byref(self.err)))
        self.ranks, self.steps = self._list(self.lib.lb_capture_ranks, i32), self._list(self.lib.lb_capture_steps, i64)
        self.programs = {r: {s: q for s in self.steps for q in [self._program(r, s)] if q} for r in self.ranks}

    def check(self, status):
        if status:
            raise RuntimeError("%d: %s" % (status, self.err.message.decode()))

    def _list(self, function, kind):
        pointer = c.POINTER(kind)()
        n = function(self.handle, c.byref(pointer))
        return [pointer[i] for i in range(n)]

    def _program(self, rank, step):
        pointer = c.POINTER(Program)()
        if self.lib.lb_capture_program(self.handle, rank, step, c.byref(pointer), None):
            return None
        self.check(self.lib.lb_program_validate(pointer, c.byref(self.err)))
        return Steps(self, pointer)

    def table(self, name, rank=0):
        text = self.lib.lb_capture_table(self.handle, rank, name.encode())
        return json.loads(text) if text else None

    def close(self):
        self.lib.lb_capture_close(self.handle)


class Steps:
    """One program; rows are the C structures with names resolved."""

    def __init__(self, capture, pointer):
        self.capture, self.pointer = capture, pointer
        q = pointer.contents
        self.step, self.rank, self.world, self.level, self.complete = q.step, q.rank, q.world, q.level, q.complete
        self.strings = [q.strings[i].decode() for i in range(q.n_strings)]
        for name, _ in TABLES[1:]:
            rows = getattr(q, name)
            setattr(self, name, [rows[i] for i in range(getattr(q, "n_" + name))])

    def text(self, i):
        return "" if i == NONE else self.strings[i]

    def name(self, op):
        return self.text(op.name)

    def layer(self, op):
        return self.text(self.scopes[op.scope].path)

    def results(self, op):
        return self.refs[op.first_result : op.first_result + op.results]

    def written(self, op):
        return self.refs[op.first_written : op.first_written + op.written]

    def arg(self, a):
        if a.tag == 1:
            return ("value", a.u & NONE)
        if a.tag == 3:
            return c.c_double.from_buffer_copy(u64(a.u)).value
        if a.tag in (2, 4):
            return i64(a.u).value
        if a.tag == 5:
            return ("dtype", a.u & 255)
        if a.tag == 6:
            return self.text(a.u & NONE)
        if a.tag in (7, 8):
            first = a.u & NONE
            return [self.arg(x) for x in self.args[first : first + a.count]]
        return None

    def op_args(self, op):
        return [self.arg(a) for a in self.args[op.first_arg : op.first_arg + op.args]]

    def inputs(self, op):
        def walk(x):
            if isinstance(x, tuple) and x[0] == "value":
                yield x[1]
            elif isinstance(x, list):
                for y in x:
                    yield from walk(y)

        return list(walk(self.op_args(op)))

    def shape(self, v):
        layout = self.values[v].layout
        return list(layout.shape[: layout.ndim])

    def stride(self, v):
        layout = self.values[v].layout
        return list(layout.stride[: layout.ndim])

    def has(self, v):
        return bool(self.capture.lib.lb_capture_has_value(self.capture.handle, self.pointer, u32(v)) & 1)

    def digest(self, v):
        d = self.values[v].logical
        return (d.hi, d.lo)

    def tensor(self, v):
        """The recorded contents as a torch tensor (a copy)."""
        import torch

        t = Tensor()
        self.capture.check(self.capture.lib.lb_capture_value(self.capture.handle, self.pointer, v, c.byref(t), c.byref(self.capture.err)))
        value = self.values[v]
        dtype = getattr(torch, self.capture.lib.lb_dtype_torch(value.dtype).decode())
        size = torch.empty((), dtype=dtype).element_size()
        shape, stride = self.shape(v), list(t.layout.stride[: t.layout.ndim])
        reach = 1 + sum((n - 1) * s for n, s in zip(shape, stride)) if all(shape) else 0
        data = c.string_at(t.data, reach * size) if reach else b""
        flat = torch.frombuffer(bytearray(data), dtype=dtype) if reach else torch.empty(0, dtype=dtype)
        return torch.as_strided(flat, shape, stride).clone() if reach else flat.reshape(shape)

    def show(self):
        """One line per op, for people."""
        lines = ["step %d rank %d/%d level %d complete %d" % (self.step, self.rank, self.world, self.level, self.complete)]
        for i, op in enumerate(self.ops):
            lines.append(
                "%4d %-5s %-28s %-40s %s -> %s w%s f%x %s %d"
                % (
                    i,
                    PHASES[op.phase][:5],
                    self.layer(op) + "/%d" % op.call,
                    self.name(op),
                    self.op_args(op),
                    self.results(op),
                    self.written(op),
                    op.flags,
                    self.text(op.node_name),
                    op.node,
                )
            )
        for i, v in enumerate(self.values):
            lines.append(
                "v%-4d s%d.%d %s %s+%d %s fl%x %s %s %016x"
                % (
                    i,
                    v.storage,
                    v.version,
                    self.shape(i),
                    self.stride(i),
                    v.layout.offset,
                    v.dtype,
                    v.flags,
                    KINDS[v.source],
                    self.text(v.name),
                    v.logical.lo,
                )
            )
        return "\n".join(lines)


def settings_of(folder, settings):
    """The environment in which `lastbit record` would run a program; `settings`: level="ops" and so on, capitals as they are."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("LASTBIT_") or k in ("LASTBIT_LIB", "LASTBIT_ISA")}
    env.update(OMP_NUM_THREADS="1")
    if folder is not None:
        os.makedirs(folder, exist_ok=True)
        env.update(LASTBIT_OUT=str(folder), LASTBIT_LEVEL="ops", PYTHONPATH=os.path.join(ROOT, "capture", "lastbit", "launch"))
    env.update({k if k.isupper() else "LASTBIT_" + k.upper(): str(v) for k, v in settings.items()})
    return env


def _warn_as_usual():
    """The test runner keeps warnings for itself."""
    import warnings

    def show(message):
        sys.stderr.write(warnings.formatwarning(message.message, message.category, message.filename, message.lineno, message.line))

    warnings._showwarnmsg_impl = show
    warnings.resetwarnings()
    for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", category)


def _become(code, env, cwd, arguments):
    """The rest of a forked child: runs `code` as python would run a script, and never returns."""
    import atexit
    import faulthandler
    import threading
    import types

    status = 1
    try:
        os.chdir(cwd or ".")
        os.environ.clear()
        os.environ.update(env)
        sys.argv = ["-c", *map(str, arguments)]
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False, buffering=1)
        sys.excepthook = sys.__excepthook__
        faulthandler.disable()
        _warn_as_usual()
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        if "LASTBIT_OUT" in env:
            import lastbit.torch

            lastbit.torch.autostart()
        exec(compile(code, "<string>", "exec"), main.__dict__)
        status = 0
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 0 if leaving.code is None else 1
        if status == 1 and not isinstance(leaving.code, int):
            print(leaving.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        try:
            threading._shutdown()
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)


def _in_child(code, env, cwd, arguments):
    """As `python -c code` would, in a fork of this process: importing torch takes seconds, forking milliseconds."""
    import signal
    import tempfile
    import time

    import torch  # noqa: F401  (loaded here once, for all children)

    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            _become(code, env, cwd, arguments)
        end = time.time() + 300
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                break
            if time.time() > end:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)
        out.seek(0), err.seek(0)
        return out.read().decode(), err.read().decode(), os.waitstatus_to_exitcode(status)


def run(code, folder=None, ok=True, quiet=True, arguments=(), **settings):
    """Runs a program, recorded into `folder` as `lastbit record` would, and returns (stdout, stderr, exit code)."""
    import textwrap

    cwd = os.path.dirname(os.path.abspath(folder)) if folder is not None else None
    out, err, status = _in_child(textwrap.dedent(code), settings_of(folder, settings), cwd, arguments)
    if ok:
        assert status == 0, err
    if quiet:
        assert "lastbit:" not in err, err
    return out, err, status


def run_script(path, *arguments, folder=None, **settings):
    """The same of a file."""
    return run("import runpy; runpy.run_path(%r, run_name='__main__')" % str(path), folder, arguments=arguments, **settings)


if __name__ == "__main__":
    r = Recorded(sys.argv[1])
    for rank in r.ranks:
        for step, q in r.programs[rank].items():
            if len(sys.argv) < 3 or int(sys.argv[2]) == step:
                print(q.show())
                print("scalars", [(q.text(s.name), s.op, s.number) for s in q.scalars if q.text(s.name) != "item"])
                print(
                    "groups",
                    [
                        (
                            q.text(g.optimizer),
                            g.index,
                            g.first_op,
                            g.ops,
                            [q.text(m.name) for m in q.group_params[g.first_param : g.first_param + g.params]],
                        )
                        for g in q.groups
                    ],
                )
                print("boundaries", [(q.text(q.scopes[b.scope].path), b.call, b.op, b.position, b.value, b.output) for b in q.boundaries])
                print("notices", [(q.text(n.kind), q.text(n.message)) for n in q.notices])
                print("routings", [(q.text(q.scopes[b.scope].path), b.logits, b.ids, b.weights) for b in q.routings])
                print(
                    "collectives",
                    [(b.op, q.text(b.group), q.text(b.reduce), b.sequence, q.refs[b.first_rank : b.first_rank + b.ranks]) for b in q.collectives],
                )
    print(json.dumps(r.table("coverage")))
    print(json.dumps(r.table("receipt")))
