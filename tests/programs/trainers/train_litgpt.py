"""litgpt's model and loss under Lightning Fabric, two micro-batches an update."""

import warnings

import planted  # noqa: F401
import torch

warnings.filterwarnings("ignore")
import lightning  # noqa: E402
from litgpt import GPT, Config  # noqa: E402
from litgpt.utils import chunked_cross_entropy  # noqa: E402

torch.manual_seed(0)
fabric = lightning.Fabric(accelerator="cpu", devices=1)
model = GPT(
    Config(
        n_layer=2,
        n_head=4,
        n_embd=32,
        vocab_size=64,
        padded_vocab_size=64,
        block_size=32,
        intermediate_size=64,
        mlp_class_name="LLaMAMLP",
        norm_class_name="RMSNorm",
        bias=False,
    )
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer = fabric.setup(model, optimizer)
for n in range(8):
    ids, accumulating = torch.randint(0, 64, (2, 17)), n % 2 == 0
    with fabric.no_backward_sync(model, enabled=accumulating):
        fabric.backward(chunked_cross_entropy(model(ids[:, :-1]), ids[:, 1:], chunk_size=0) / 2)
    if not accumulating:
        fabric.clip_gradients(model, optimizer, max_norm=1.0, error_if_nonfinite=False)
        optimizer.step()
        optimizer.zero_grad()
