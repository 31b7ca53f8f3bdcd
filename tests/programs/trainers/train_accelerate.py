"""Two micro-batches an update, a scheduler that steps with it."""

import planted  # noqa: F401
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.9**n)
data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,)))
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, 8), schedule)
for x, y in loader:
    with accelerator.accumulate(model):
        accelerator.backward(torch.nn.functional.cross_entropy(model(x), y))
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
