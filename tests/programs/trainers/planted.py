"""What the trainers of this folder share: tiny models, and a fault to order. PLANT=N: after the optimizer's Nth step something past
every op writes an infinity into the first matrix that rank 0's optimizer holds."""

import ctypes
import os

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

torch.set_num_threads(1)
steps = 0


def plant(optimizer, args, kwargs):
    global steps
    steps += 1
    if steps != int(os.environ.get("PLANT") or 0) or os.environ.get("RANK", "0") != "0":
        return
    for group in optimizer.param_groups:
        for p in group["params"]:
            p = getattr(p, "_local_tensor", p)
            if p.ndim >= 2 and p.numel():
                infinity = torch.tensor([torch.inf], dtype=p.dtype)
                ctypes.memmove(p.data_ptr(), infinity.data_ptr(), p.element_size())
                return


register_optimizer_step_post_hook(plant)


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", "<unk>"] + ["w%d" % i for i in range(61)]
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    made.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    return made


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=32,
            num_hidden_layers=2,
            intermediate_size=64,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=64,
            max_position_embeddings=64,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=1,
        )
    )


def saved_llama():
    import tempfile

    folder = tempfile.mkdtemp()
    llama().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def sentences():
    return [" ".join("w%d" % ((i * 7 + j * 3) % 61) for j in range(10)) for i in range(32)]
