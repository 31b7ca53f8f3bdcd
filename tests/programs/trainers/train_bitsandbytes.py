"""A Llama under the 8-bit AdamW of bitsandbytes, whose update is one op of its own."""

import bitsandbytes
import planted
import torch

model = planted.llama()
optimizer = bitsandbytes.optim.AdamW8bit(model.parameters(), lr=1e-3, min_8bit_size=1024)
for n in range(4):
    tokens = torch.randint(2, 64, (2, 12))
    optimizer.zero_grad()
    model(tokens, labels=tokens).loss.backward()
    optimizer.step()
