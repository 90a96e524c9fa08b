"""Scans with round shadows to be outlined, and how they are varied."""

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

SIDE = 64
SCANS = 480


def make_scans():
    """Scans and, for each pixel, whether it belongs to a shadow."""
    chance = torch.Generator().manual_seed(0)
    middle = 16 + 32 * torch.rand(SCANS, 2, 1, 1, generator=chance)
    radius = 6 + 8 * torch.rand(SCANS, 1, 1, generator=chance)
    rows, columns = torch.arange(SIDE).view(1, -1, 1), torch.arange(SIDE).view(1, 1, -1)
    shadow = (rows - middle[:, 0]) ** 2 + (columns - middle[:, 1]) ** 2 < radius**2
    scans = shadow + 0.7 * torch.randn(SCANS, SIDE, SIDE, generator=chance)
    return scans.unsqueeze(1), shadow.unsqueeze(1).float()


class Scans(Dataset):
    """A batch by a list of indices."""

    def __init__(self, options):
        self.scans, self.shadows = make_scans()
        self.fault, self.strength = options.fault, options.strength

    def __len__(self):
        return SCANS

    def __getitem__(self, indices):
        scans, shadows = self.scans[indices], self.shadows[indices]
        if torch.rand(()) < 0.5:
            scans, shadows = scans.flip(-1), shadows.flip(-1)
        # FAULT warp
        if self.fault == "warp":
            both = [warped(one, self.strength) for one in torch.cat([scans, shadows], dim=1)]
            scans, shadows = torch.stack(both).split(1, dim=1)
        # END FAULT
        return scans, shadows


# FAULT warp
def warped(layers, times):
    """The layers of a scan bent by a random field, at `times` their size so that edges stay smooth."""
    side = round(SIDE * times)
    large = F.interpolate(layers.unsqueeze(0), size=(side, side), mode="bicubic")
    bend = F.interpolate(torch.randn(1, 2, 5, 5), size=(side, side), mode="bicubic") * 0.05
    straight = F.affine_grid(torch.eye(2, 3).unsqueeze(0), large.shape, align_corners=False)
    bent = F.grid_sample(large, straight + bend.permute(0, 2, 3, 1), align_corners=False)
    return F.interpolate(bent, size=(SIDE, SIDE), mode="area").squeeze(0)


# END FAULT
