"""One step of tiny transformers with random weights: checked_architectures.py FOLDER NAME… writes FOLDER/NAME.lb."""

import pathlib
import sys

import lastbit.torch
import torch
import transformers as hf

SMALL = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64)
GROUPED = dict(SMALL, num_key_value_heads=2)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
CONFIGS = {
    "llama": lambda: hf.LlamaConfig(**GROUPED),
    "gpt2": lambda: hf.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "mamba": lambda: hf.MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=4),
    "mixtral": lambda: hf.MixtralConfig(**GROUPED, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True),
    "gemma2": lambda: hf.Gemma2Config(**GROUPED, head_dim=8),
    "qwen2": lambda: hf.Qwen2Config(**GROUPED),
    "qwen3_moe": lambda: hf.Qwen3MoeConfig(**GROUPED, head_dim=8, **EXPERTS),
    "olmo2": lambda: hf.Olmo2Config(**GROUPED),
    "gpt_neox": lambda: hf.GPTNeoXConfig(**SMALL),
    "bloom": lambda: hf.BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4),
    "bert": lambda: hf.BertConfig(**SMALL),
    "t5": lambda: hf.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0),
}
CLASSES = {"bert": hf.AutoModelForMaskedLM, "t5": hf.AutoModelForSeq2SeqLM}


def train(name, out):
    torch.manual_seed(0)
    model = CLASSES.get(name, hf.AutoModelForCausalLM).from_config(CONFIGS[name]()).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = torch.randint(0, 64, (2, 12))
    with lastbit.torch.capture(out, level="ops"):
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


if __name__ == "__main__":
    for name in sys.argv[2:]:
        train(name, pathlib.Path(sys.argv[1]) / f"{name}.lb")
