"""Synthetic stained slides with the masks of their nuclei, and augmented crops of them."""

import os

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

SLIDES = 12
SIDE = 384
CROP = 64
NUCLEI = 260


def slides(folder):
    """Images [slide, 3, side, side] and masks [slide, side, side] as uint8; written to the folder once."""
    file = folder / "slides.npz"
    if not file.exists():
        made = folder / f"{os.getpid()}.npz"
        images, masks = _stain()
        np.savez(made, images=images, masks=masks)
        made.rename(file)
    with np.load(file) as stored:
        return torch.from_numpy(stored["images"]), torch.from_numpy(stored["masks"])


def _stain():
    chance = np.random.default_rng(11)
    images = np.empty((SLIDES, 3, SIDE, SIDE), np.uint8)
    masks = np.zeros((SLIDES, SIDE, SIDE), np.uint8)
    rows, columns = np.mgrid[-8:9, -8:9]
    for slide in range(SLIDES):
        for y, x in chance.integers(8, SIDE - 9, (NUCLEI, 2)):
            height, width = chance.uniform(3, 8, 2)
            masks[slide, y - 8 : y + 9, x - 8 : x + 9] |= (rows / height) ** 2 + (columns / width) ** 2 < 1
        tint = np.array([[[210]], [[170]], [[200]]]) - masks[slide] * np.array([[[90]], [[100]], [[40]]])
        images[slide] = np.clip(tint + 20 * chance.standard_normal(tint.shape, np.float32), 0, 255)
    return images, masks


class Crops(Dataset):
    """Crops at random places, flipped, turned and stained otherwise."""

    def __init__(self, images, masks, length, seed, warp=None):
        self.images, self.masks, self.length, self.seed, self.warp = images, masks, length, seed, warp

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.seed + index)
        slide = int(torch.randint(len(self.images), (), generator=generator))
        top, left, turns = torch.randint(SIDE - CROP, (3,), generator=generator).tolist()
        window = (slice(top, top + CROP), slice(left, left + CROP))
        image, mask = self.images[slide][:, *window].float() / 255, self.masks[slide][window].long()
        if self.warp:
            image, mask = self.warp(image, mask, generator)
        image, mask = torch.rot90(image, turns % 4, (1, 2)), torch.rot90(mask, turns % 4)
        stain = 0.9 + 0.2 * torch.rand(3, 1, 1, generator=generator)
        return (image * stain).contiguous(), mask.contiguous()


# FAULT elastic
class Elastic:
    """Bends a crop by a random field, smoothed over `sigma` pixels."""

    def __init__(self, sigma):
        reach = torch.arange(-3 * sigma, 3 * sigma + 1)
        bell = torch.exp(-((reach[:, None] ** 2 + reach**2) / (2 * sigma**2)))
        self.kernel = (bell / bell.sum()).expand(2, 1, -1, -1)

    def __call__(self, image, mask, generator):
        line = torch.linspace(-1, 1, CROP)
        grid = torch.stack(torch.meshgrid(line, line, indexing="xy"), dim=2)[None]
        noise = torch.rand(1, 2, CROP, CROP, generator=generator) - 0.5
        field = F.conv2d(noise, self.kernel, padding="same", groups=2)
        grid = grid + 0.8 * field.permute(0, 2, 3, 1)
        image = F.grid_sample(image[None], grid, padding_mode="reflection", align_corners=True)[0]
        mask = F.grid_sample(mask[None, None].float(), grid, "nearest", "reflection", align_corners=True)
        return image, mask[0, 0].long()


# END FAULT
