"""Two networks, two losses, two optimizers that step one after the other within an iteration."""

import hashlib
import sys

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
generator = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.LeakyReLU(0.2), nn.Linear(32, 2), nn.Tanh())
critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.Linear(32, 1))
of_generator = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
of_critic = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
for step in range(4):
    angle = torch.rand(16) * 6.2831853
    real = torch.stack([angle.cos(), angle.sin()], 1)
    fake = generator(torch.randn(16, 8))

    of_critic.zero_grad()
    right, wrong = critic(real), critic(fake.detach())
    loss_critic = F.binary_cross_entropy_with_logits(right, torch.ones_like(right)) + F.binary_cross_entropy_with_logits(
        wrong, torch.zeros_like(wrong)
    )
    loss_critic.backward()
    of_critic.step()
    if "look" in sys.argv:
        generator(torch.randn(16, 8))

    of_generator.zero_grad()
    fooled = critic(fake)
    loss_generator = F.binary_cross_entropy_with_logits(fooled, torch.ones_like(fooled))
    loss_generator.backward()
    of_generator.step()
    print(f"step {step} critic {loss_critic.item():.6f} generator {loss_generator.item():.6f}")
state = [*generator.state_dict().values(), *critic.state_dict().values()]
print("digest", hashlib.sha256(b"".join(t.numpy().tobytes() for t in state)).hexdigest())
