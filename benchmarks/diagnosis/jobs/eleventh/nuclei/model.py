"""A U-Net whose encoder has been trained before."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


def stage(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.GroupNorm(4, outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.GroupNorm(4, outputs),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, widths=(16, 32, 64), classes=2):
        super().__init__()
        self.down = nn.ModuleList(stage(a, b) for a, b in zip((3, *widths), widths, strict=False))
        self.bottom = stage(widths[-1], widths[-1])
        self.up = nn.ModuleList(
            stage(a + b, b) for a, b in zip((widths[-1], *widths[:0:-1]), widths[::-1], strict=True)
        )
        self.head = nn.Conv2d(widths[0], classes, 1)
        self.recomputed = 0

    def freeze(self):
        """Only the decoder is trained."""
        self.down.requires_grad_(False)
        self.bottom.requires_grad_(False)

    def forward(self, x):
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for level, block in enumerate(self.up, start=1):
            x = torch.cat((F.interpolate(x, scale_factor=2), skips.pop()), dim=1)
            # FAULT recompute
            if level > len(self.up) - self.recomputed and self.training:
                x = checkpoint(block, x, use_reentrant=False)
                continue
            # END FAULT
            x = block(x)
        return self.head(x)
