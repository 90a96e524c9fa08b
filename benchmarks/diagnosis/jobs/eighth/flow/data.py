"""Small pictures of coloured discs, kept as PNG files."""

import os

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter
from torch.utils.data import Dataset

SIDE = 32
COUNT = 320


def draw_pictures(folder):
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(7)
    for i in range(COUNT):
        picture = Image.new("RGB", (SIDE, SIDE), tuple(rng.integers(0, 90, 3).tolist()))
        pen = ImageDraw.Draw(picture)
        for _ in range(4):
            x, y, r = rng.integers(2, SIDE - 2, 3)
            pen.ellipse((x - r // 4, y - r // 4, x + r // 4, y + r // 4), fill=tuple(rng.integers(90, 255, 3).tolist()))
        half_written = folder / f".{i}.{os.getpid()}"
        picture.save(half_written, format="PNG")
        half_written.replace(folder / f"{i:05d}.png")


class Pictures(Dataset):
    def __init__(self, folder, options):
        self.paths = sorted(folder.glob("*.png"))
        self.options = options

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with Image.open(self.paths[index]) as opened:
            picture = opened.convert("RGB")
        # FAULT soft_zoom
        if self.options.fault == "soft_zoom":
            large = picture.resize((int(self.options.strength),) * 2, Image.Resampling.LANCZOS)
            picture = large.filter(ImageFilter.GaussianBlur(3)).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
        # END FAULT
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float()
        return pixels / 127.5 - 1
