"""Automatic optimization: the whole iteration runs in the optimizer's closure; the model's parts are called, it never is."""

import logging
import warnings

import lightning
import planted  # noqa: F401
import torch

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)

    def loss(self, batch):
        return torch.nn.functional.cross_entropy(self.down(torch.relu(self.up(batch[0]))), batch[1])

    def training_step(self, batch, index):
        return self.loss(batch)

    def validation_step(self, batch, index):
        self.log("loss", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


lightning.seed_everything(0, verbose=False)
data = torch.utils.data.TensorDataset(torch.randn(48, 8), torch.randint(0, 4, (48,)))
trainer = lightning.Trainer(
    max_steps=4,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    gradient_clip_val=1.0,
)
trainer.fit(Module(), torch.utils.data.DataLoader(data, 8), torch.utils.data.DataLoader(data, 8))
