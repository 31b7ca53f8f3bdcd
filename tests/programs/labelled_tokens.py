"""One loss of a tiny Llama over a text, as training scripts take it: by transformers' labels, of (x, y) halves, of the answer alone, or of labels
that are shifted twice."""

import argparse

import numpy
import torch
import torch.nn.functional as F
import transformers

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--labels", choices=["transformers", "halves", "rows", "answer", "twice", "unshifted"], default="transformers")
parser.add_argument("--noise", type=float, default=0, help="standard deviation of what is added to the head's weights")
parser.add_argument("--save", help="write the log-probability that torch gives each label, as .npy")
args = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
config = transformers.LlamaConfig(
    vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, initializer_range=0.3
)
model = transformers.LlamaForCausalLM(config).eval()
text = torch.randint(3, 90, (4, 61), generator=torch.Generator().manual_seed(1))


class Loss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = model

    def forward(self, text):
        labels = text
        if args.labels == "answer":
            labels = text.masked_fill(torch.arange(61) < 20, -100)
        if args.labels in ("transformers", "answer"):
            return self.model(input_ids=text, labels=labels, use_cache=False).loss
        if args.labels == "halves":
            logits, labels = self.model(input_ids=text[:, :-1], use_cache=False).logits, text[:, 1:]
        else:
            ahead = {"rows": 1, "twice": 2, "unshifted": 0}[args.labels]
            logits, labels = self.model(input_ids=text, use_cache=False).logits[:, : 61 - ahead], text[:, ahead:]
        return F.cross_entropy(logits.reshape(-1, 96), labels.reshape(-1))


with torch.no_grad():
    model.lm_head.weight += args.noise * torch.randn(model.lm_head.weight.shape, generator=torch.Generator().manual_seed(2))
    print(f"loss {Loss()(text).item():.9g}")
    if args.save:
        rows = torch.log_softmax(model(input_ids=text[:, :-1], use_cache=False).logits.double(), -1)
        numpy.save(args.save, rows.gather(2, text[:, 1:, None])[..., 0])
