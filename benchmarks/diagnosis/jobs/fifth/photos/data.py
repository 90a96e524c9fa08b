"""Photos for the classifier: small crops in one array, made once, and the JPEG originals beside them."""

import io
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

SIDE, CROP, PHOTOS, CLASSES = 72, 64, 256, 20


def prepare(folder: Path, original_side: int) -> None:
    """Write the photos unless they are there; each class has its own hue and grain."""
    folder.mkdir(parents=True, exist_ok=True)
    small = folder / "small.npy"
    chance = np.random.default_rng(7)
    if not small.exists():
        hues = chance.uniform(40, 215, (CLASSES, 3))
        noise = chance.normal(0, 40, (PHOTOS, SIDE, SIDE, 3))
        photos = hues[np.arange(PHOTOS) % CLASSES][:, None, None, :] + noise
        np.save(small, photos.clip(0, 255).astype(np.uint8))
    if original_side:
        for number in range(16):
            grain = chance.normal(128, 50, (original_side, original_side, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(grain).save(folder / f"original-{number}.jpg", quality=85)


class Photos(Dataset):
    """Random crops, some of them flipped."""

    def __init__(self, folder: Path, fault: str, strength: float) -> None:
        self.folder, self.fault, self.strength = folder, fault, strength
        self.small = np.load(folder / "small.npy", mmap_mode="r")

    def __len__(self) -> int:
        return 20 * PHOTOS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        photo = self.read(index % PHOTOS)
        top, left = np.random.randint(0, SIDE - CROP, 2)
        crop = photo[top : top + CROP, left : left + CROP]
        if np.random.rand() < 0.5:
            crop = crop[:, ::-1]
        image = torch.from_numpy(np.ascontiguousarray(crop.transpose(2, 0, 1))).float().div_(255)
        return image, index % CLASSES

    def read(self, number: int) -> np.ndarray:
        # FAULT full_decode
        if self.fault == "full_decode":
            raw = (self.folder / f"original-{number % 16}.jpg").read_bytes()
            original = Image.open(io.BytesIO(raw)).convert("RGB")
            return np.asarray(original.resize((SIDE, SIDE), Image.Resampling.LANCZOS))
        # END FAULT
        # FAULT cold_shelf
        if self.fault == "cold_shelf":
            time.sleep(self.strength / 1e3)  # What one request to the object store of that host takes.
        # END FAULT
        return self.small[number]
