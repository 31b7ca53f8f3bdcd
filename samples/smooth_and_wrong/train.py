"""A small GPT on the bytes of this file. Its loss falls smoothly, and it learns the wrong thing: train.py [--mended]."""

import pathlib
import sys

import torch
import torch.nn.functional as F

MENDED = "--mended" in sys.argv[1:]
WIDTH, HEADS, COLUMNS, ROWS, STEPS = 48, 4, 40, 8, 60


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(256, WIDTH), torch.nn.Embedding(COLUMNS, WIDTH)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, 256)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def causal_lm_loss(logits, labels):
    """Scores each row against the next label, as the loss functions of model libraries do."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def main():
    torch.manual_seed(0)
    text = torch.tensor(list(pathlib.Path(__file__).read_bytes()))
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(STEPS):
        starts = torch.randint(len(text) - COLUMNS, (ROWS,))
        ids = torch.stack([text[i : i + COLUMNS] for i in starts])
        logits = model(ids)
        # The loss shifts, and so did whoever wrote this line.
        loss = causal_lm_loss(logits, ids) if MENDED else causal_lm_loss(logits[:, :-1], ids[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0 or step == STEPS - 1:
            print(f"step {step}: loss {loss.item():.2f}")


if __name__ == "__main__":
    main()
