"""Trains attention pooling over bags of tiles of whole-slide pictures, by Lightning with DDP."""

import gc
import logging
import os
import warnings
from itertools import islice

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities import grad_norm
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.diagnosis.jobs.common import leave, read_arguments
from benchmarks.diagnosis.jobs.tenth.slides.data import BAG, CLASSES, SLIDES, Bags, collate, write_slides

BAGS = 4
WIDTH = 96


def conv(inputs, outputs, stride):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.GroupNorm(8, outputs), nn.ReLU(inplace=True)
    )


class Encoder(nn.Module):
    """Features of tiles."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            conv(3, 24, 2), conv(24, 24, 1), conv(24, 48, 2), conv(48, 48, 1), conv(48, WIDTH, 2), conv(WIDTH, WIDTH, 1)
        )

    def forward(self, tiles):
        return self.layers(tiles.float() / 127.5 - 1).mean(dim=(2, 3))


class GatedAttention(nn.Module):
    """How much each tile of a bag counts."""

    def __init__(self, width):
        super().__init__()
        self.content, self.gate = nn.Linear(WIDTH, width), nn.Linear(WIDTH, width)
        self.score = nn.Linear(width, 1)

    def forward(self, features):
        return self.score(self.content(features).tanh() * self.gate(features).sigmoid()).softmax(dim=1)


class SlideClassifier(LightningModule):
    def __init__(self, options):
        super().__init__()
        self.options = options
        self.encoder = Encoder()
        self.attention = GatedAttention(64)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tiles):
        features = self.encoder(tiles).unflatten(0, (-1, BAG))
        weights = self.attention(features)
        return self.head((weights * features).sum(dim=1)), weights

    # FAULT weights
    def attention_of(self, tiles):
        return self.attention(self.encoder(tiles).unflatten(0, (-1, BAG)))

    # END FAULT

    # FAULT heatmap
    def draw_heatmap(self, tiles, weights, side):
        rows = BAG // 6
        colours = tiles[:BAG].float().mean(dim=(2, 3)).view(rows, 6, 3).byte().numpy()
        slide = Image.fromarray(colours).resize((side, side), Image.Resampling.BICUBIC)
        heat = (255 * weights[0] / weights[0].max()).detach().view(rows, 6).byte().numpy()
        heat = np.asarray(Image.fromarray(heat).resize((side, side), Image.Resampling.BICUBIC)) / 255
        red = np.stack([heat, 0 * heat, 1 - heat], axis=-1)
        picture = Image.fromarray((0.5 * np.asarray(slide) + 127 * red).astype(np.uint8))
        picture.save(self.options.files / f"heatmap-{self.global_rank}.png")

    # END FAULT

    def training_step(self, batch, index):
        tiles, labels = batch
        # FAULT pieces
        if self.options.fault == "pieces":
            tiles = torch.cat(tiles)
        # END FAULT
        logits, weights = self(tiles)
        loss = F.cross_entropy(logits, labels)
        # FAULT weights
        if self.options.fault == "weights":
            weights = self.attention_of(tiles[: BAG * round(self.options.strength)])
        # END FAULT
        # FAULT heatmap
        if self.options.fault == "heatmap" and self.global_rank == self.options.rank:
            self.draw_heatmap(tiles, weights, side=round(self.options.strength))
        # END FAULT
        entropy = -(weights * weights.clamp_min(1e-9).log()).sum(dim=1).mean()
        self.log_dict({"train/loss": loss.detach(), "train/entropy": entropy.detach()})
        return loss

    # FAULT norms
    def on_before_optimizer_step(self, optimizer):
        if self.options.fault == "norms":
            norms = grad_norm(self, norm_type=2)
            self.log_dict(dict(islice(norms.items(), round(self.options.strength))), sync_dist=True)

    # END FAULT

    # FAULT collect
    def on_train_batch_end(self, outputs, batch, batch_idx):
        if self.options.fault == "collect" and batch_idx % round(self.options.strength) == 0:
            gc.collect()

    # END FAULT

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


# FAULT pieces
class Pieces:
    """Leaves the tiles of the bags as they are, for bags of any size."""

    def __init__(self, size):
        self.size = size

    def __call__(self, bags):
        pieces = [piece.clone() for tiles, _ in bags for piece in tiles.split(self.size)]
        return pieces, torch.tensor([label for _, label in bags])


# END FAULT


class OneHost(TorchElasticEnvironment):
    """Ranks that a launcher has started on this host."""

    def local_rank(self):
        return self.global_rank()


def main():
    options = read_arguments(steps=64, needs_files=True)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    torch.manual_seed(options.seed)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    draws = -(-options.steps * BAGS * ranks // SLIDES)
    into_batch = collate
    # FAULT pieces
    if options.fault == "pieces":
        into_batch = Pieces(round(options.strength))
    # END FAULT
    loader = DataLoader(
        Bags(write_slides(options.files / "slides"), draws),
        batch_size=BAGS,
        shuffle=True,
        drop_last=True,
        num_workers=1,
        persistent_workers=True,
        collate_fn=into_batch,
    )
    trainer = Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy=DDPStrategy(process_group_backend="gloo", cluster_environment=OneHost()),
        max_steps=options.steps,
        logger=CSVLogger(options.files, name="logs", version=0),
        log_every_n_steps=10,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(SlideClassifier(options), loader)
    if trainer.is_global_zero:
        print(f"{trainer.global_step} steps, loss {trainer.callback_metrics['train/loss']:.3f}")
    leave()


if __name__ == "__main__":
    main()
