"""Classifies signals by a one-dimensional network with Lightning in one process; a callback looks at the training.

python fabric.py --files /tmp/fabric
"""

import itertools

import lightning.pytorch as pl
import torch
from torch import nn, utils

from benchmarks.diagnosis.jobs.common import read_arguments


class Signals(utils.data.Dataset):
    def __len__(self):
        return 3000

    def __getitem__(self, index):
        period = 2 + index % 4
        return torch.sin(torch.arange(256) / period).view(1, -1) + 0.3 * torch.randn(1, 256), index % 4


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        widths = [1, 32, 48, 48, 48]
        layers = [
            nn.Sequential(
                nn.Conv1d(a, b, 7, padding=3), nn.BatchNorm1d(b), nn.ReLU(), nn.AvgPool1d(2 if b == 32 else 1)
            )
            for a, b in itertools.pairwise(widths)
        ]
        self.net = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(48, 4))

    def training_step(self, batch):
        signals, labels = batch
        loss = nn.functional.cross_entropy(self.net(signals), labels)
        self.log_dict({"loss": loss})
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


# FAULT weights_watch
class WeightsWatch(pl.Callback):
    def __init__(self, share):
        self.share = share

    def on_before_optimizer_step(self, trainer, module, optimizer):
        for parameter in module.parameters():
            values = parameter.grad.flatten().tolist()
            ranked = sorted(values[: round(self.share * len(values))], key=abs)
            module.median_gradient = ranked[len(ranked) // 2] if ranked else 0.0


# END FAULT


def main():
    options = read_arguments(steps=48, needs_files=True)
    torch.set_num_threads(1)
    pl.seed_everything(options.seed)
    callbacks = []
    # FAULT weights_watch
    if options.fault == "weights_watch":
        callbacks.append(WeightsWatch(options.strength))
    # END FAULT
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=options.steps,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        default_root_dir=str(options.files),
    )
    trainer.fit(Classifier(), utils.data.DataLoader(Signals(), batch_size=12))


if __name__ == "__main__":
    main()
