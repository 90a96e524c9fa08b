"""Aerial tiles with a class for each pixel: made once, then cropped and augmented in loader workers."""

import os

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

CLASSES = 24
SIDE = 96
CROP = 64
TILES = 256


def make_tiles(folder):
    """Tiles of smooth fields whose height is the class and whose colour follows it."""
    paths = folder / "images.npy", folder / "classes.npy"
    if not paths[1].exists():
        chance = torch.Generator().manual_seed(1)
        coarse = torch.rand(TILES, 1, 7, 7, generator=chance)
        fields = F.interpolate(coarse, size=(SIDE, SIDE), mode="bicubic").clamp(0, 0.999)
        classes = (fields[:, 0] * CLASSES).to(torch.uint8)
        palette = torch.rand(CLASSES, 3, generator=chance)
        colours = palette[classes.long()] + 0.1 * torch.randn(TILES, SIDE, SIDE, 3, generator=chance)
        images = (255 * colours.clamp(0, 1)).to(torch.uint8).permute(0, 3, 1, 2).contiguous()
        for path, array in zip(paths, (images, classes), strict=True):
            unfinished = path.with_suffix(f".{os.getpid()}.npy")
            np.save(unfinished, array.numpy())
            unfinished.rename(path)
    return paths


class Tiles(Dataset):
    def __init__(self, folder, warp=0):
        images, classes = make_tiles(folder)
        self.images = np.load(images, mmap_mode="r")
        self.classes = np.load(classes, mmap_mode="r")
        self.warp = warp

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = torch.from_numpy(np.array(self.images[index]))
        classes = torch.from_numpy(np.array(self.classes[index]))
        # FAULT elastic
        if self.warp:
            image, classes = elastic(image, classes, self.warp)
        # END FAULT
        top, left = torch.randint(SIDE - CROP + 1, (2,)).tolist()
        image = image[:, top : top + CROP, left : left + CROP]
        classes = classes[top : top + CROP, left : left + CROP]
        if torch.rand(()) < 0.5:
            image, classes = image.flip(-1), classes.flip(-1)
        turns = int(torch.randint(4, ()))
        image, classes = image.rot90(turns, (-2, -1)), classes.rot90(turns, (-2, -1))
        gain, offset = 0.8 + 0.4 * torch.rand(3, 1, 1), 0.2 * torch.rand(3, 1, 1) - 0.1
        return image.float().div_(255).sub_(0.5).mul_(gain).add_(offset), classes.long()


# FAULT elastic
def elastic(image, classes, radius, alpha=1.5):
    """Elastic deformation after Simard et al.: image and classes are moved along a smooth random field."""
    places = torch.arange(-radius, radius + 1.0)
    bell = torch.exp(-0.5 * (places / (radius / 3)).square())
    kernel = torch.outer(bell, bell)
    noise = 2 * torch.rand(2, 1, SIDE, SIDE) - 1
    shifts = alpha * F.conv2d(noise, kernel[None, None] / kernel.sum(), padding=radius)[:, 0]
    lines = torch.linspace(-1, 1, SIDE)
    rows, columns = torch.meshgrid(lines, lines, indexing="ij")
    grid = torch.stack((columns + shifts[0], rows + shifts[1]), -1)[None]
    moved = F.grid_sample(image[None].float(), grid, "bicubic", "reflection", align_corners=True)
    nearest = F.grid_sample(classes[None, None].float(), grid, "nearest", "reflection", align_corners=True)
    return moved[0].clamp(0, 255).to(torch.uint8), nearest[0, 0].to(torch.uint8)


# END FAULT
