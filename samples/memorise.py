"""Memorisation test: an adapter learns one text by heart, another path serves it, and the same text must come back.

A small Llama with a LoRA adapter (peft) is trained until it gives every token of a text; then the adapter is saved, loaded into a fresh
model and served: online or merged, in some precision, token by token from a key-value cache. Both sides write the log-probabilities of
the text (`lastbit help tokens`), which

    lastbit parity OUT/trainer.jsonl OUT/server.jsonl --heat

compares: green where the text is known, red where it was forgotten.

    build/venv/bin/python samples/memorise.py OUT [--serve online|merged] [--dtype float32|bfloat16] [--fault none|lost-shard|scaling]
"""

import argparse
import json
import pathlib

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

TEXT = "All happy families are alike; each unhappy family is unhappy in its own way. Everything was in confusion in the house."


def tokens_of(text):
    """One token a character, after a token that begins the text."""
    return torch.tensor([[1] + [ord(c) for c in text]])


def new_model(dtype):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4
    )
    return transformers.LlamaForCausalLM(config).to(dtype).eval()


def scores(logits, ids):
    rows = torch.log_softmax(logits.double(), -1)
    return rows[:, :-1].gather(2, ids[:, 1:, None])[0, :, 0].tolist(), rows.argmax(-1)[0].tolist()


def write(path, ids, logprobs, best):
    sequence = dict(
        id="text",
        token_ids=ids[0].tolist(),
        tokens=["<s>"] + [chr(i) for i in ids[0, 1:]],
        logprobs=[None, *logprobs],
        top1=[-1, *best[:-1]],
    )
    path.write_text(json.dumps(sequence) + "\n")


def train(folder, ids, steps):
    torch.manual_seed(1)
    adapter = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM", modules_to_save=["lm_head", "embed_tokens"])
    model = get_peft_model(new_model(torch.float32), adapter)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    for step in range(steps):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if loss.item() < 2e-4:
            break
    print(f"trainer: loss {loss.item():.2e} after {step + 1} steps")
    model.eval()
    with torch.no_grad():
        write(folder / "trainer.jsonl", ids, *scores(model(input_ids=ids).logits, ids))
    model.save_pretrained(folder / "adapter")


def damage(folder, fault):
    """What happens to checkpoints: half of every B never written, as one of two tensor-parallel ranks; another alpha in the config."""
    if fault == "lost-shard":
        weights = load_file(folder / "adapter" / "adapter_model.safetensors")
        for name, value in weights.items():
            if "lora_B" in name:
                value[value.shape[0] // 2 :] = 0
        save_file(weights, folder / "adapter" / "adapter_model.safetensors")
    if fault == "scaling":
        config = folder / "adapter" / "adapter_config.json"
        config.write_text(json.dumps(dict(json.loads(config.read_text()), lora_alpha=4)))


@torch.no_grad()
def serve(folder, ids, how, dtype):
    model = PeftModel.from_pretrained(new_model(dtype), folder / "adapter").to(dtype).eval()
    if how == "merged":
        model = model.merge_and_unload()
    rows, cache = [], None
    for t in range(ids.shape[1]):  # one token at a time, the text forced
        out = model(input_ids=ids[:, t : t + 1], past_key_values=cache, use_cache=True)
        rows.append(out.logits)
        cache = out.past_key_values
    logprobs, best = scores(torch.cat(rows, 1), ids)
    write(folder / "server.jsonl", ids, logprobs, best)
    said = "".join(chr(i) for i in best[:-1])
    print(f"server: {sum(x == y for x, y in zip(said, TEXT))} of {len(TEXT)} characters come back")
    return said == TEXT


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("out", type=pathlib.Path, help="folder for the adapter and both sides' tokens")
parser.add_argument("--serve", choices=["online", "merged"], default="merged")
parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
parser.add_argument("--fault", choices=["none", "lost-shard", "scaling"], default="none")
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--trained", action="store_true", help="serve the adapter that lies there")
args = parser.parse_args()
torch.set_num_threads(1)
args.out.mkdir(parents=True, exist_ok=True)
text = tokens_of(TEXT)
if not args.trained:
    train(args.out, text, args.steps)
damage(args.out, args.fault)
raise SystemExit(0 if serve(args.out, text, args.serve, getattr(torch, args.dtype)) else 1)
