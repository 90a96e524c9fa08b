"""Trains an autoencoder of pictures with Lightning, by DDP.

python lit.py --files /tmp/lit
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.diagnosis.jobs.common import read_arguments


class Autoencoder(L.LightningModule):
    def __init__(self, options):
        super().__init__()
        self.options = options
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 48, 3, stride=2, padding=1)
        )
        self.middle = nn.Sequential(nn.ReLU(), nn.Conv2d(48, 48, 3, padding=1), nn.ReLU())
        self.decoder = nn.ConvTranspose2d(48, 3, 2, stride=2)

    def training_step(self, batch, index):
        (pictures,) = batch
        rebuilt = self.decoder(self.middle(self.encoder(pictures)))
        loss = F.mse_loss(rebuilt, pictures)
        self.log("loss", loss)
        return loss

    # FAULT batch_end
    def on_train_batch_end(self, outputs, batch, index):
        if self.options.fault == "batch_end":
            ranked = [sorted(picture.flatten().tolist()) for picture in batch[0][: round(self.options.strength)]]
            self.medians = [values[len(values) // 2] for values in ranked]

    # END FAULT
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    options = read_arguments(steps=48, needs_files=True)
    L.seed_everything(options.seed)
    torch.set_num_threads(1)
    loader = DataLoader(TensorDataset(torch.randn(4096, 3, 32, 32)), batch_size=16, shuffle=True)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=options.steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        default_root_dir=str(options.files),
    )
    trainer.fit(Autoencoder(options), loader)


if __name__ == "__main__":
    main()
