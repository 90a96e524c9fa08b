"""Classify photographs: JPEG files of various sizes, decoded by Pillow and made smaller, at times mirrored."""

from io import BytesIO

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.loaders.kit import SampleFiles, batches, behind_cache, device, loader_options, made, parse, prepared

FILES, CLASSES = 192, 10
SIDE, SMALL = 320, 64
"""Median side of a photograph, and that of what the model gets, pixels."""


class Photographs(Dataset[tuple[Tensor, int]]):
    def __init__(self, files: SampleFiles) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = Image.open(BytesIO(self.files[index]))
        small = image.convert("RGB").resize((SMALL, SMALL), Image.Resampling.BILINEAR)
        if torch.rand(()) < 0.5:
            small = ImageOps.mirror(small)
        return torch.from_numpy(np.array(small)).permute(2, 0, 1).float() / 255, index % CLASSES


def photograph(number: int) -> bytes:
    """Soft patches with grain, whose side scatters, so that batches do, too."""
    rng = np.random.default_rng(number)
    side = int(SIDE * np.exp(rng.normal(0, 0.25)))
    patches = Image.fromarray(rng.integers(0, 256, (side // 16 + 1, side // 16 + 1, 3), np.uint8))
    pixels = np.asarray(patches.resize((side, side), Image.Resampling.BICUBIC), np.int16)
    grained = np.clip(pixels + rng.integers(-12, 13, pixels.shape), 0, 255).astype(np.uint8)
    file = BytesIO()
    Image.fromarray(grained).save(file, "JPEG", quality=90)
    return file.getvalue()


def main() -> None:
    settings = parse(__doc__)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    paths = [
        made(settings.files / f"{number:04d}.jpg", lambda number=number: photograph(number)) for number in range(FILES)
    ]
    files = SampleFiles(paths, settings)
    dataset = prepared(Photographs(behind_cache(files, settings)), files, settings)
    loader = DataLoader(dataset, batch_size=8, **loader_options(dataset, files, settings))
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(CLASSES))
    model(torch.zeros(1, 3, SMALL, SMALL))  # Makes the lazy layer.
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for images, classes in batches(loader, files, settings):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), classes)
        loss.backward()
        device(loss, settings)
        optimizer.step()


if __name__ == "__main__":
    main()
