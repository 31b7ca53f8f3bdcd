"""Isolated A/A over the architectures of tests/programs/hf_architectures.py: the cases, and one case recorded and replayed.

python tests/replay/session/architectures.py [PATTERN …]     records and replays the cases whose name holds a pattern; prints the table
"""

import collections
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ.get("LASTBIT_BUILD", ROOT / "build" / "release"))
PROGRAM = ROOT / "tests" / "programs" / "hf_architectures.py"

WITHOUT_SDPA = ("mamba2", "gemma2", "gpt_oss", "mamba", "rwkv")
WITHOUT_DROPOUT = ("mamba2", "qwen2_vl", "mamba", "rwkv")
WITHOUT_PADDING = ("vit", "siglip_vision", "qwen2_vl", "rwkv")
EXPERTS = ("qwen3_moe", "mixtral", "deepseek_v3", "qwen3_next", "gpt_oss", "jamba")
TEXT = (
    "llama",
    "gpt2",
    "qwen3",
    "qwen3_moe",
    "mixtral",
    "deepseek_v3",
    "mamba2",
    "qwen3_next",
    "gemma2",
    "gemma3",
    "gpt_oss",
    "t5",
    "mamba",
    "jamba",
    "bamba",
    "falcon_h1",
)
MODELS = (*TEXT, "bert", "minilm", "vit", "siglip_vision", "qwen2_vl", "rwkv", "clip", "whisper")
OPTIMIZERS = ("foreach", "fused", "amsgrad", "sgd", "adafactor", "rmsprop", "nadam", "radam", "adagrad")


def cases():
    """name: arguments. A name is MODEL followed by what is unlike fp32, sdpa, AdamW."""
    found = {}
    for model in MODELS:
        for dtype in ("fp32", "bf16", "autocast"):
            for attention in ("eager",) if model in WITHOUT_SDPA else ("sdpa", "eager"):
                words = [w for w in (dtype, attention) if w not in ("fp32", "sdpa")]
                found[" ".join([model, *words])] = ["--dtype", dtype, "--attention", attention]
        if model not in WITHOUT_DROPOUT:
            found[f"{model} dropout"] = ["--dropout", "--dtype", "bf16"]
        if model not in WITHOUT_PADDING:
            found[f"{model} padding"] = ["--padding"]
        found[f"{model} decode"] = ["--decode", "--dtype", "bf16"] + (["--padding"] if model in TEXT else [])
        if model in EXPERTS:
            for experts in ("eager", "batched_mm"):
                found[f"{model} experts={experts}"] = ["--experts", experts]
    for model in ("llama", "qwen3_moe", "gemma3"):
        found[f"{model} sampled"] = ["--decode", "--sample"]
    for model in ("llama", "qwen3_moe", "gpt2", "t5", "bert"):
        found[f"{model} checkpointing"] = ["--checkpointing"]
        found[f"{model} lora"] = ["--lora", "--dropout"]
    for optimizer in OPTIMIZERS:
        found[f"llama {optimizer}"] = ["--optimizer", optimizer]
    for length in (12, 16, 40):  # fewer keys than a vector has lanes, as many, and more: NaNs go other ways
        found[f"llama fp16 to NaN, {length}"] = ["--dtype", "fp16", "--optimizer", "sgd", "--lr", "3000", "--steps", "4", "--seq", str(length)]
    found["llama fp16"] = ["--dtype", "fp16", "--optimizer", "sgd", "--lr", "30", "--steps", "4"]
    return {name: ["--model", name.split()[0], *arguments] for name, arguments in found.items()}


CASES = cases()


def record(out, arguments, timeout=600):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [str(BUILD / "lastbit"), "record", "-o", str(out), "--", sys.executable, str(PROGRAM), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment,
    )


def replay(capture, *options):
    done = subprocess.run(
        [str(BUILD / "lastbit"), "replay", "--json", "--coverage", "--worst", "20", *options, str(capture)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    return json.loads(done.stdout) if done.stdout else {"error": done.stderr}


def main(patterns):
    rows = collections.defaultdict(lambda: collections.Counter())
    opaque, diverged = collections.Counter(), []
    for name, arguments in CASES.items():
        if patterns and not any(re.search(p, name) for p in patterns):
            continue
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            done = record(f"{folder}/run.lb", arguments)
            answer = replay(f"{folder}/run.lb") if done.returncode == 0 else {"error": done.stderr[-500:]}
        if "error" in answer:
            print(f"{name}: {answer['error']}", flush=True)
            rows[name.split()[0]]["failed"] += 1
            continue
        row = rows[name.split()[0]]
        row["cases"] += 1
        for key in ("total", "native", "opaque"):
            row[key] += answer["ops"][key]
        for key in ("compared", "bitwise"):
            row[key] += answer[key]
        row["diverged"] += answer["verdicts"]["diverged"]
        ratios = [w["bound_ratio"] for w in answer["worst"] if isinstance(w["bound_ratio"], float)]
        row["worst"] = max([row["worst"], *ratios])
        for one in answer["opaque_ops"]:
            opaque[one["op"], one["why"]] += one["count"]
        diverged += [(name, w["op"], w["layer"], w["phase"], w["bound_ratio"]) for w in answer["worst"] if w["verdict"] == "diverged"]
        print(
            f"{name}: {answer['verdict']}, {answer['ops']['opaque']} opaque of {answer['ops']['total']}, "
            f"{answer['bitwise'] / max(answer['compared'], 1):.1%} bit-equal, {time.monotonic() - start:.0f} s",
            flush=True,
        )
    print("\nmodel|cases|ops|native|bit-equal|largest error of its bound|diverged\n---|---|---|---|---|---|---")
    for model, row in rows.items():
        print(
            f"{model}|{row['cases']}|{row['total']:,}|{row['native'] / max(row['total'], 1):.2%}|{row['bitwise'] / max(row['compared'], 1):.1%}|"
            f"{row['worst']:.2f}|{row['diverged']}".replace(",", " ")
            + (f" ({row['failed']} failed)" if row["failed"] else "")
        )
    total = collections.Counter()
    for row in rows.values():
        total.update({k: v for k, v in row.items() if k != "worst"})
    print(
        f"all|{total['cases']}|{total['total']:,}|{total['native'] / max(total['total'], 1):.2%}|{total['bitwise'] / max(total['compared'], 1):.1%}|"
        f"{max([r['worst'] for r in rows.values()], default=math.nan):.2f}|{total['diverged']}".replace(",", " ")
    )
    for (op, why), count in opaque.most_common():
        print(f"opaque: {count} {op}: {why}")
    for one in diverged:
        print("diverged:", *one)


if __name__ == "__main__":
    main(sys.argv[1:])
