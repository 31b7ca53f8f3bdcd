"""What recording costs per step: `python tests/capture/bench_overhead.py [--model llama|sample|tiny] [--rounds N]`.

Rounds are interleaved over all settings, one process per setting, one thread, and the best step counts: its time on the
clock, and the time its process was busy (all threads), which says more on a machine that others use. Beside the levels:
an empty dispatch mode, and hooks that torch.save layer outputs.

The last columns say where a level's extra time goes: in the calls of the C recorder (ops, module boundaries, the end of a
step), in the dispatch mode as such (what the empty one costs), and the rest, which is the recorder's Python.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LEVELS = ["plain", "empty", "save", "stats", "sources", "layers", "ops"]


def llama(hidden=256, layers=8, batch=4, sequence=128, vocab=1024):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(hidden_size=hidden, num_hidden_layers=layers, intermediate_size=hidden * 8 // 3 // 8 * 8,
                                         num_attention_heads=hidden // 32, num_key_value_heads=hidden // 32, vocab_size=vocab,
                                         max_position_embeddings=sequence))
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


# Calls of the C recorder, by what they are for.
CALLS = {"lb_wire_op": "ops", "lb_wire_failed": "ops", "lb_wire_enter": "modules", "lb_wire_leave": "modules",
         "lb_wire_role": "names", "lb_wire_group": "names", "lb_wire_step_begin": "step", "lb_wire_step_end": "step"}


def clocked(spent):
    """Makes every call of the C recorder add its time to spent[kind]; each costs some 0.2 us more by that."""
    from lastbit.torch import library

    load = library.load

    def wrap(call, kind):
        clock = time.perf_counter

        def timed(*args):
            start = clock()
            try:
                return call(*args)
            finally:
                spent[kind] += clock() - start

        return timed

    def load_clocked():
        loaded = load()
        for name, kind in CALLS.items():
            setattr(loaded, name, wrap(getattr(loaded, name), kind))
        return loaded

    library.load = load_clocked


def measure(setting, model_name, steps):
    """Runs in a process of its own: seconds of each step after the first two."""
    import torch

    torch.set_num_threads(1)
    sys.path.insert(0, os.path.join(ROOT, "capture"))
    model, step = {"llama": llama, "sample": sample, "tiny": tiny}[model_name]()
    folder = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
    out = []
    spent = dict.fromkeys(CALLS.values(), 0.0)

    def timed(run):
        for n in range(steps):
            before = sum(spent.values())
            start, busy = time.perf_counter(), time.process_time()
            run(n)
            out.append((time.perf_counter() - start, time.process_time() - busy, sum(spent.values()) - before))

    try:
        if setting == "plain":
            timed(lambda n: step())
        elif setting == "empty":
            from torch.utils._python_dispatch import TorchDispatchMode

            class Empty(TorchDispatchMode):
                def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                    return func(*args, **(kwargs or {}))

            with Empty():
                timed(lambda n: step())
        elif setting == "save":
            handles = [m.register_forward_hook(lambda m, a, o, i=i: torch.save(o, "%s/%d.pt" % (folder, i)))
                       for i, m in enumerate(model.modules())]
            timed(lambda n: step())
            del handles
        else:
            import lastbit.torch

            clocked(spent)
            with lastbit.torch.capture(os.path.join(folder, "run.lb"), level=setting) as cap:
                def run(n):
                    with cap.step(n):
                        step()

                timed(run)
    finally:
        size = sum(os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(folder) for f in fs)
        shutil.rmtree(folder)
    print(json.dumps({"seconds": out[2:], "bytes": size, "spent": {kind: t / steps for kind, t in spent.items()}}))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=["llama", "sample", "tiny"], default="llama")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--settings", default=",".join(LEVELS))
    parser.add_argument("--measure")
    args = parser.parse_args()
    if args.measure:
        return measure(args.measure, args.model, args.steps)
    settings = args.settings.split(",")
    best, sizes, where = {}, {}, {}
    for _ in range(args.rounds):
        for setting in settings:
            done = subprocess.run([sys.executable, __file__, "--measure", setting, "--model", args.model, "--steps", str(args.steps)],
                                  env=dict(os.environ, OMP_NUM_THREADS="1"), capture_output=True, text=True)
            if done.returncode:
                sys.exit(done.stderr)
            result = json.loads(done.stdout.splitlines()[-1])
            fastest = min(result["seconds"])
            if setting not in where or fastest[0] < where[setting][0]:
                where[setting] = fastest[0], fastest[2], result["spent"]
            for kind in (0, 1):
                best[setting, kind] = min([best.get((setting, kind), 1e9)] + [x[kind] for x in result["seconds"]])
            sizes[setting] = result["bytes"]
    for setting in settings:
        wall, busy = best[setting, 0], best[setting, 1]
        print("%-8s %8.2f ms  %5.2fx   busy %8.2f ms  %5.2fx  %8.1f MB%s" % (
            setting, wall * 1e3, wall / best[settings[0], 0], busy * 1e3, busy / best[settings[0], 1], sizes[setting] / 1e6,
            breakdown(setting, best, where)))


def breakdown(setting, best, where):
    """Where the fastest step's extra time went, in ms."""
    wall, recorder, kinds = where[setting]
    if not recorder or ("plain", 0) not in best or ("empty", 0) not in best:
        return ""
    mode = best["empty", 0] - best["plain", 0]
    parts = ", ".join("%s %.1f" % (kind, t * 1e3) for kind, t in kinds.items())
    return "   recorder %.1f (a step on average: %s), mode %.1f, Python %.1f" % (
        recorder * 1e3, parts, mode * 1e3, (wall - best["plain", 0] - mode - recorder) * 1e3)


if __name__ == "__main__":
    main()
