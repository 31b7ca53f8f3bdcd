"""`lastbit check` on healthy programs, of which none may have a finding: build/venv/bin/python bench_healthy.py [PART …] [--keep FOLDER]

Parts: architectures, ways, own, tokens, hf, trainers, ranks; all of them without. Prints a row for each program and totals: verdicts, findings,
what was not judged and why, replays, seconds. Exits with 1 where a program has a finding that is not listed here as true.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[4]
PROGRAMS = ROOT / "tests" / "programs"
BUILD = pathlib.Path(os.environ.get("LASTBIT_BUILD", ROOT / "build" / "release"))
LASTBIT = BUILD / "lastbit"
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": f"{ROOT / 'capture'}:{PROGRAMS / 'trainers'}",
    "LASTBIT_BUILD": str(BUILD),
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
# True of programs that are as their authors want them. YOSO's backward is an estimate of the derivative, as its paper has it; padding on the
# left without position_ids shifts the rows of a learned table of positions.
TRUE = {("masked:yoso", "gradient"), ("+left", "positions")}
ARCHITECTURES = {
    "causal": """afmoe apertus arcee bamba bart bert bert-generation big_bird bigbird_pegasus biogpt bitnet blenderbot blenderbot-small bloom camembert
        codegen cohere cohere2 cohere2_moe ctrl cwm data2vec-text deepseek_v2 deepseek_v3 diffllama doge dots1 electra ernie ernie4_5 ernie4_5_moe exaone4
        falcon_h1 falcon_mamba flex_olmo gemma gemma2 gemma3_text gemma3n_text glm glm4 glm4_moe gpt2 gpt_bigcode gpt_neo gpt_neox gpt_neox_japanese
        gpt_oss gptj granite granitemoe granitemoehybrid granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe jais2 jamba jetmoe lfm2 lfm2_moe llama
        llama4_text mamba mamba2 marian mbart megatron-bert mimo_v2_flash minicpm3 minimax minimax_m2 ministral mistral mixtral modernbert-decoder mpt mvp
        nanochat nemotron nemotron_h olmo olmo2 olmo3 olmo_hybrid olmoe openai-gpt opt pegasus persimmon phi phi3 phimoe plbart qwen2 qwen2_moe qwen3
        qwen3_5_text qwen3_moe qwen3_next recurrent_gemma reformer rembert roberta roberta-prelayernorm roformer rwkv seed_oss smollm3 stablelm starcoder2
        vaultgemma whisper xglm xlm xlm-roberta xlnet xlstm prophetnet zamba2""",
    "masked": """albert bart bert big_bird camembert convbert data2vec-text deberta deberta-v2 distilbert electra ernie esm eurobert flaubert fnet funnel gte ibert
        jina_embeddings_v3 longformer mbart megatron-bert mobilebert modernbert mpnet mra mvp nomic_bert nystromformer rembert roberta
        roberta-prelayernorm roformer squeezebert xlm xlm-roberta xlm-roberta-xl yoso""",
    "seq2seq": """bart bigbird_pegasus blenderbot blenderbot-small led longt5 m2m_100 marian mbart mt5 mvp nllb-moe pegasus pegasus_x plbart prophetnet
        switch_transformers t5 umt5""",
    "image": """beit convnext convnextv2 dinov2 dinov2_with_registers ijepa imagegpt mobilenet_v1 mobilenet_v2 poolformer regnet resnet segformer swin
        swinv2 vit vit_msn""",
    "speech": "whisper speech_to_text moonshine",
}
WAYS = """bf16 autocast scaler+gas gas+clip checkpoint reentrant lora drop drop+checkpoint adafactor lion muon sgd fused padding left eager+drop bf16+sgd
gas+drop+checkpoint autocast+gas+lion""".split()
WAYS_OF = {
    "causal:llama": WAYS,
    "causal:gpt2": WAYS,
    **{
        f"causal:{name}": WAYS[i % 3 :: 3]
        for i, name in enumerate("qwen2_moe mixtral olmoe gemma2 gpt_neox bloom deepseek_v3 recurrent_gemma qwen3_next gpt_oss opt jetmoe".split())
    },
    "causal:mamba": "bf16 autocast gas+clip drop+checkpoint lion muon sgd".split(),
    "masked:bert": "bf16 autocast lora drop+checkpoint adafactor lion padding".split(),
    "masked:roberta": "drop sgd muon padding gas+clip".split(),
    "seq2seq:t5": "bf16 drop+checkpoint lora gas+clip adafactor padding".split(),
    "seq2seq:bart": "autocast drop lion padding scaler+gas".split(),
    "speech:whisper": "bf16 drop+checkpoint adafactor gas+clip".split(),
    "image:vit": "bf16 autocast drop lora muon gas+clip".split(),
    "image:resnet": "gas+clip sgd autocast".split(),
}
OWN = """plain sgd foreach fused muon clip tied padding relu scan frozen drop drop_checkpoint drop_checkpoint_reentrant gas gas_clip scaler_gas
scaler_clip autocast autocast_drop_checkpoint_gas bf16 bf16_sgd_tied""".split()
TOKENS = """plain sdpa conv prefix_mean two_heads chosen next_tokens documents padding llama llama_eager llama_left means_of_all micro_batches summed
mean_kept stream experts_listed experts_found two_tables tokens_first squares_documents squares_padding""".split()
RANKS = "ddp ddp_view ddp_view_clip ddp_clip ddp_no_sync mean sum mean_clip fsdp fsdp_clip".split()
# Programs that are recorded from outside, with what they are given; two steps of each at least.
HF = {
    f"hf_architectures {' '.join(given)}": ("hf_architectures.py", "--steps", "3", *given)
    for given in (
        ("--model", "llama"),
        ("--model", "gpt2", "--dropout", "--optimizer", "foreach"),
        ("--model", "qwen3_moe", "--experts", "eager", "--dtype", "autocast"),
        ("--model", "mixtral", "--optimizer", "amsgrad"),
        ("--model", "t5", "--dropout", "--checkpointing"),
        ("--model", "bert", "--padding", "--lora"),
        ("--model", "minilm", "--padding", "--optimizer", "radam"),
        ("--model", "vit", "--optimizer", "nadam"),
        ("--model", "siglip_vision"),
        ("--model", "qwen2_vl"),
        ("--model", "clip", "--padding", "--optimizer", "adagrad"),
        ("--model", "whisper", "--dropout"),
        ("--model", "jamba", "--optimizer", "rmsprop"),
        ("--model", "rwkv"),
    )
}
HF.update({f"healthy_runs {name}": ("healthy_runs.py", name) for name in ("evals", "masks", "scheduled", "lora")})
HF["gan"] = ("gan_two_optimizers.py",)
TRAINERS = {
    "accelerate": ("trainers/train_accelerate.py",),
    "Trainer with peft": ("trainers/train_hf_peft.py",),
    "Trainer": ("trainers/train_hf_logged.py", "{folder}/logged", "3"),
}
TRAINERS_OF_RANKS = {
    "pipelining": ("trainers/train_pipelining.py",),
    "tensor parallel": ("trainers/train_parallel.py", "tp"),
    "FSDP2": ("trainers/train_parallel.py", "fsdp2"),
    "DDP": ("trainers/train_parallel.py", "ddp"),
}
PARTS = ("architectures", "ways", "own", "tokens", "hf", "trainers", "ranks")


def python(*words, folder):
    return subprocess.run([sys.executable, *map(str, words)], env={**ENVIRONMENT, "HOME": str(folder)}, capture_output=True, text=True, timeout=1200)


def by_name(program, names, folder):
    """A program that writes FOLDER/NAME.lb for each name; some names at a time, so that one that dies takes few with it."""
    for first in range(0, len(names), 40):
        done = python(PROGRAMS / program, folder, *names[first : first + 40], folder=folder)
        told = [line for line in done.stdout.splitlines() if "did not run" in line]
        if done.returncode:
            told.append(f"{program} ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
        print(*told, sep="\n", end="\n" if told else "")


def from_outside(programs, folder, start=()):
    for name, (program, *given) in programs.items():
        out = folder / f"{name.replace('/', ' ')}.lb"
        words = [word.format(folder=folder) for word in given]
        command = [LASTBIT, "record", "-o", out, "--level", "ops", "--", sys.executable, *start, PROGRAMS / program, *words]
        done = subprocess.run(list(map(str, command)), env={**ENVIRONMENT, "HOME": str(folder)}, capture_output=True, text=True, timeout=600)
        if done.returncode:
            print(f"{name} ended with {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1][:200]}")


def record(part, folder):
    if part == "architectures":
        by_name("many_architectures.py", [f"{task}:{name}" for task, names in ARCHITECTURES.items() for name in names.split()], folder)
    elif part == "ways":
        by_name("many_architectures.py", [f"{name}+{way}" for name, ways in WAYS_OF.items() for way in ways], folder)
    elif part == "own":
        by_name("checked_steps.py", OWN, folder)
    elif part == "tokens":
        by_name("token_relations.py", TOKENS, folder)
    elif part == "hf":
        from_outside(HF, folder)
    elif part == "trainers":
        from_outside(TRAINERS, folder)
        from_outside(TRAINERS_OF_RANKS, folder, ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"))
    else:
        by_name("ranks/checked_ranks.py", RANKS, folder)


def check(path):
    """The last step of hf_architectures, which ends with the program, reads weights as bytes: moved numbers keep f32's digits there."""
    steps = ["--steps", "0-1"] if path.stem.startswith("hf_arch") else []
    start = time.perf_counter()
    try:
        done = subprocess.run(
            [LASTBIT, "check", path, "--json", "--budget", "100", *steps], capture_output=True, text=True, timeout=300, env=ENVIRONMENT
        )
        answer = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, json.JSONDecodeError) as error:
        answer = dict(verdict=type(error).__name__, findings=[], not_judged=[], replays=0)
    return path.stem, answer, time.perf_counter() - start


def is_true(name, finding):
    return any(name.endswith(end) and kind == finding["kind"] for end, kind in TRUE)


def show(name, answer, seconds):
    found = " ".join(f"{row['kind']}{' (true)' if is_true(name, row) else ''}" for row in answer["findings"]) or "-"
    print(
        f"{name:44} {answer['verdict']:10} {found:24} left {len(answer['not_judged']):2} {answer['replays']:3} replays {seconds:6.1f} s", flush=True
    )
    for row in answer["findings"]:
        print(f"    {row['message']}\n    {row['layer']}: {(row['source'] or {}).get('text')}")


def total(rows):
    why = collections.Counter(row["why"] for _, answer, _ in rows for row in answer["not_judged"])
    kinds = collections.Counter(row["kind"] for name, answer, _ in rows for row in answer["findings"] if not is_true(name, row))
    print(f"\n{len(rows)} programs: {dict(collections.Counter(answer['verdict'] for _, answer, _ in rows))}")
    print(f"findings that are not listed as true: {dict(kinds) or 0}")
    print(f"{sum(answer['replays'] for _, answer, _ in rows)} replays, {sum(seconds for *_, seconds in rows):.0f} s of checks")
    for text, n in why.most_common(20):
        print(f"{n:5} not judged: {text}")
    return 1 if kinds else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART")
    parser.add_argument("--keep", type=pathlib.Path, help="recordings stay in this folder")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for part in given.parts or PARTS:
            folder = (given.keep or pathlib.Path(scratch)) / part
            folder.mkdir(parents=True, exist_ok=True)
            record(part, folder)
            with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
                for row in pool.map(check, sorted(folder.glob("*.lb"))):
                    show(*row)
                    rows.append(row)
            if not given.keep:
                shutil.rmtree(folder)
    return total(rows)


if __name__ == "__main__":
    sys.exit(main())
