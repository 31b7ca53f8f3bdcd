"""What recording costs per step: `python tests/capture/lastbit/torch/bench_overhead.py [--model llama|sample|tiny] [--rounds N] [--steps N]`.

One process per setting, one thread each, in lock-step: a round is a few steps of every setting, one setting after the other,
so that all of them meet the same machine. A step's bytes may reach the disk while the next one runs, but those of a round
have reached it when its time is taken. What counts is the fastest round of each setting, and the median over the rounds of
its time divided by that of the plain steps of the same round. Beside the levels: an empty dispatch mode, hooks that torch.save
layer outputs, and torch's DebugMode with hashes of every op's results. `handler` is the recorder's own mode between two
recorded steps: every op comes by, and nothing is noted. `outside`, `between`, `after`: steps before, between and after those that
`--steps` asks for (level stats), which the program does not mark itself; `auto` is the default level; `unlined`: level stats without
lines of code.

`own` is the processor time of the program's own thread, `busy` that of all threads: large results are digested, and bytes
written, by threads beside it where a core is idle. Neither holds the time in which the program waits for the disk at the end of
a step; wall-clock time does, and on a machine that has other work also everybody else's.

The last columns say where a level's extra time goes: in the calls of the C recorder other than ops (`names`, `modules`,
`step`), in the dispatch mode as such (what the empty one costs), and the rest: the ops, digests and statistics included.

Then what no recorder of this kind can go below here, from what it must do in a step and what this machine does by itself:
bytes hashed at the rate of hashing alone in the cache, ops at the cost of an empty mode, bytes written at the rate of write().
"""

import argparse
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = str(pathlib.Path(__file__).resolve().parents[4])
WINDOWS = {"outside": "1000000-1000001", "between": "0,1000000", "after": "0"}  # --steps, of which no timed one is
LEVELS = ["plain", "empty", "handler", "save", "debug", "stats", "sources", "layers", "ops"]


def llama(hidden=256, layers=8, batch=4, sequence=128, vocab=1024):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=hidden,
            num_hidden_layers=layers,
            intermediate_size=hidden * 8 // 3 // 8 * 8,
            num_attention_heads=hidden // 32,
            num_key_value_heads=hidden // 32,
            vocab_size=vocab,
            max_position_embeddings=sequence,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    ids = torch.randint(0, vocab, (batch, sequence))

    def step():
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def sample():
    """samples/hybrid_lm.py with its own defaults, without its printing."""
    import runpy

    import torch

    argv, sys.argv = sys.argv, ["hybrid_lm.py"]
    module = runpy.run_path(os.path.join(ROOT, "samples", "hybrid_lm.py"))
    args = module["arguments"]()
    sys.argv = argv
    args.world = 1
    torch.manual_seed(args.seed)
    model = module["HybridLM"](args)
    optimizers = module["optimizers"](args, model)
    documents, counts = module["shard"](args, 0, 0)

    def step():
        loss = model(documents[0][:, :-1], documents[0][:, 1:], counts)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        for optimizer in optimizers:
            optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad()

    return model, step


def tiny():
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(*[m for _ in range(200) for m in (torch.nn.Linear(8, 8), torch.nn.Tanh())])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(4, 8)

    def step():
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


# Calls of the C recorder, by what they are for; ops do not pass through Python.
CALLS = {"enter": "modules", "leave": "modules", "role": "names", "group": "names", "step_begin": "step", "step_end": "step", "sweep": "step"}


def clocked(native, spent):
    """Makes those calls add their time to spent[kind]."""

    def wrap(call, kind):
        clock = time.perf_counter

        def timed(*args):
            start = clock()
            try:
                return call(*args)
            finally:
                spent[kind] += clock() - start

        return timed

    for name, kind in CALLS.items():
        setattr(native, name, wrap(getattr(native, name), kind))


def steps_of(setting, step, model, folder, spent):
    """A function that runs one step under the setting, after the setting has been made."""
    if setting == "plain":
        return step
    if setting == "save":
        import torch

        for i, module in enumerate(model.modules()):
            module.register_forward_hook(lambda m, a, o, i=i: torch.save(o, "%s/%d.pt" % (folder, i)))
        return step
    if setting == "empty":
        from torch.utils._python_dispatch import TorchDispatchMode

        class Empty(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                return func(*args, **(kwargs or {}))

        mode = Empty()
    elif setting == "debug":
        from torch.utils._debug_mode import DebugMode

        def debugged():
            with DebugMode(record_stack_trace=False), DebugMode.log_tensor_hashes():
                step()

        return debugged
    elif setting in WINDOWS:
        import lastbit.torch

        context = lastbit.torch.capture(os.path.join(folder, "run.lb"), level="stats", steps=WINDOWS[setting])
        context.__enter__()

        def outside():
            step()

        outside.recording = context
        return outside
    else:
        import lastbit.torch

        level = "stats" if setting in ("handler", "unlined") else setting
        context = lastbit.torch.capture(os.path.join(folder, "run.lb"), level=level, lines=setting != "unlined")
        cap = context.__enter__()
        clocked(cap._session.native, spent)
        numbers = iter(range(1 << 30))

        def recorded():
            with cap.step(next(numbers)):
                step()

        if setting == "handler":

            def passed():
                step()

            recorded()
            passed.recording = context  # goes on, between two steps
            return passed
        recorded.context, recorded.flush = context, cap._session.native.bytes_so_far
        return recorded
    mode.__enter__()
    return step


def work(setting, model_name, steps):
    """Runs in a process of its own: `steps` steps per line of input, and a line of JSON with what one took."""
    import torch

    torch.set_num_threads(1)
    sys.path.insert(0, os.path.join(ROOT, "capture"))
    model, step = {"llama": llama, "sample": sample, "tiny": tiny}[model_name]()
    folder = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
    spent = dict.fromkeys(CALLS.values(), 0.0)
    try:
        run = steps_of(setting, step, model, folder, spent)
        for _ in sys.stdin:
            spent.update(dict.fromkeys(spent, 0.0))
            start, busy, own = time.perf_counter(), time.process_time(), time.thread_time()
            for _ in range(steps):
                run()
            getattr(run, "flush", int)()
            took = {"wall": time.perf_counter() - start, "busy": time.process_time() - busy, "own": time.thread_time() - own}
            print(
                json.dumps({**{clock: t / steps for clock, t in took.items()}, "spent": {kind: t / steps for kind, t in spent.items()}}), flush=True
            )
        size = sum(os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(folder) for f in fs)
        print(json.dumps({"bytes": size, **(contents(run.context, folder) if hasattr(run, "context") else {})}), flush=True)
    finally:
        shutil.rmtree(folder)


def contents(context, folder):
    """Ops of the last step, and the bytes that were hashed in it."""
    context.__exit__(None, None, None)
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import recorded

    capture = recorded.Recorded(os.path.join(folder, "run.lb"))
    program = capture.programs[0][capture.steps[-1]]
    hashed, passes = 0, set()
    for v in program.values:  # views of the same bytes share a pass
        if v.statistics != recorded.NONE and v.statistics not in passes:
            passes.add(v.statistics)
            hashed += math.prod(v.layout.shape[: v.layout.ndim]) * capture.lib.lb_dtype_bits(v.dtype) // 8
    return {"ops": sum(program.name(op) != "lb::source" for op in program.ops), "hashed": hashed}


def rates(folder):
    """Bytes per second of hashing what is in the cache, as results are when their op has just ended, and of write()."""
    import ctypes

    import recorded

    lib, n = recorded.load(), 1 << 28
    block = ctypes.create_string_buffer(n)
    lib.lb_digest_bytes.argtypes, lib.lb_digest_bytes.restype = [ctypes.c_void_p, ctypes.c_size_t], recorded.Digest

    def hash_all():
        for _ in range(256):
            lib.lb_digest_bytes(block, n // 256)

    def write_all():
        with open(os.path.join(folder, "raw"), "wb", buffering=0) as out:
            for _ in range(64):
                out.write(memoryview(block)[: n // 64])
        os.unlink(os.path.join(folder, "raw"))

    def best(action, clock):
        times = []
        for _ in range(7):
            start = clock()
            action()
            times.append(clock() - start)
        return n / min(times)

    return best(hash_all, time.process_time), best(write_all, time.perf_counter)


def start(setting, model, steps):
    return subprocess.Popen(
        [sys.executable, __file__, "--work", setting, "--model", model, "--steps", str(steps)],
        stdin=subprocess.PIPE,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(os.environ, OMP_NUM_THREADS="1"),
    )


def ask(worker):
    try:
        worker.stdin.write("step\n")
        worker.stdin.flush()
        return json.loads(worker.stdout.readline())
    except (OSError, ValueError):
        sys.exit(worker.stderr.read())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=["llama", "sample", "tiny"], default="llama")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4, help="in a round, of each setting")
    parser.add_argument("--settings", default=",".join(LEVELS))
    parser.add_argument("--work")
    args = parser.parse_args()
    if args.work:
        return work(args.work, args.model, args.steps)
    settings = args.settings.split(",")
    workers = {setting: start(setting, args.model, args.steps) for setting in settings}
    for _ in range(2):  # the first steps are special
        for worker in workers.values():
            ask(worker)
    rounds = [{setting: ask(worker) for setting, worker in workers.items()} for _ in range(args.rounds)]
    sizes, ends = {}, {}
    for setting, worker in workers.items():
        ends[setting] = json.loads(worker.communicate()[0].splitlines()[-1])
        sizes[setting] = ends[setting]["bytes"] / ((args.rounds + 2) * args.steps)
    fastest = {setting: min((r[setting] for r in rounds), key=lambda x: x["busy"]) for setting in settings}
    first = settings[0]
    for setting in settings:
        best = min(r[setting]["wall"] for r in rounds)
        own = min(r[setting]["own"] for r in rounds)
        print(
            "%-8s %8.2f ms %5.2fx (median %5.2fx)   own thread %8.2f ms %5.2fx (median %5.2fx)   busy %8.2f ms %5.2fx (median %5.2fx) %8.1f MB a step%s"
            % (
                setting,
                best * 1e3,
                best / min(r[first]["wall"] for r in rounds),
                median(rounds, setting, first, "wall"),
                own * 1e3,
                own / min(r[first]["own"] for r in rounds),
                median(rounds, setting, first, "own"),
                fastest[setting]["busy"] * 1e3,
                fastest[setting]["busy"] / fastest[first]["busy"],
                median(rounds, setting, first, "busy"),
                sizes[setting] / 1e6,
                breakdown(setting, fastest),
            )
        )

    if "plain" in settings and "empty" in settings:
        limits(fastest, ends, sizes)


def limits(fastest, ends, sizes):
    sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.join(ROOT, "capture")]
    folder = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
    reading, writing = rates(folder)
    shutil.rmtree(folder)
    plain, mode = fastest["plain"]["busy"], fastest["empty"]["busy"] - fastest["plain"]["busy"]
    for setting, end in ends.items():
        if "ops" in end:
            passes, writes = end["hashed"] / reading, sizes[setting] / writing
            print(
                "%-8s %d ops, %.1f MB hashed a step; at %.1f GB/s read, %.2f GB/s written and %.1f us per op of an empty mode no less than "
                "%.2fx: mode %.1f, reading %.1f, writing %.1f ms"
                % (
                    setting,
                    end["ops"],
                    end["hashed"] / 1e6,
                    reading / 1e9,
                    writing / 1e9,
                    mode / end["ops"] * 1e6,
                    (plain + mode + passes + writes) / plain,
                    mode * 1e3,
                    passes * 1e3,
                    writes * 1e3,
                )
            )


def median(rounds, setting, first, clock):
    return statistics.median(r[setting][clock] / r[first][clock] for r in rounds)


def breakdown(setting, fastest):
    """Where the fastest step's extra time went, in ms."""
    spent = fastest[setting]["spent"]
    if not sum(spent.values()) or "plain" not in fastest or "empty" not in fastest:
        return ""
    mode = fastest["empty"]["busy"] - fastest["plain"]["busy"]
    rest = fastest[setting]["busy"] - fastest["plain"]["busy"] - mode - sum(spent.values())
    return "   " + ", ".join("%s %.1f" % (kind, t * 1e3) for kind, t in spent.items()) + ", mode %.1f, ops %.1f ms" % (mode * 1e3, rest * 1e3)


if __name__ == "__main__":
    main()
