"""A UNet that learns to denoise, and an average of its weights by diffusers."""

import planted  # noqa: F401
import torch
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.training_utils import EMAModel

torch.manual_seed(0)
model = UNet2DModel(
    sample_size=8,
    in_channels=1,
    out_channels=1,
    layers_per_block=1,
    block_out_channels=(8, 16),
    norm_num_groups=4,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    attention_head_dim=4,
)
noises, optimizer, average = DDPMScheduler(100), torch.optim.AdamW(model.parameters(), lr=1e-3), EMAModel(model.parameters())
for _ in range(4):
    x, t = torch.randn(2, 1, 8, 8), torch.randint(0, 100, (2,))
    noise = torch.randn_like(x)
    torch.nn.functional.mse_loss(model(noises.add_noise(x, noise, t), t).sample, noise).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    average.step(model.parameters())
