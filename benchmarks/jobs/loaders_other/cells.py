"""Trains a network that segments the cells in microscope images, on turned, scaled and recoloured cut-outs.

A file is a tar archive of two PNG images: `image.png` in colour, and `mask.png`, white where there is a cell.

    python -m benchmarks.jobs.loaders_other.cells OPTIONS
"""

import functools
import io
import math
import tarfile

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from benchmarks.loaders.kit import SampleFiles, batches, behind_cache, device, loader_options, made, parse, prepared
from esprof.data import MinIOCache

_FILES, _BATCH, _CUT = 156, 6, 96

Sample = tuple[Tensor, Tensor]


def content(number: int) -> bytes:
    """An archive of an image, of 160 to 320 pixels a side, with round cells and noise, and of its mask."""
    rng = np.random.default_rng(number)
    height, width = rng.integers(160, 321, 2)
    y, x = np.mgrid[:height, :width]
    is_cell = np.zeros((height, width), bool)
    for _ in range(rng.integers(8, 30)):
        centre_y, centre_x = rng.random(2) * (height, width)
        radius_y, radius_x = rng.uniform(8, 24, 2)
        is_cell |= ((y - centre_y) / radius_y) ** 2 + ((x - centre_x) / radius_x) ** 2 < 1
    colours = np.where(is_cell[..., None], rng.uniform((100, 40, 110), (160, 90, 170)), (225, 200, 220))
    pixels = colours + 15 * np.sin(x / 40)[..., None] + rng.normal(0, rng.uniform(1, 4), (height, width, 3))
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, array in ("image.png", pixels.clip(0, 255)), ("mask.png", 255 * is_cell):
            png = io.BytesIO()
            Image.fromarray(array.astype(np.uint8)).save(png, "png")
            member = tarfile.TarInfo(name)
            member.size = png.tell()
            tar.addfile(member, io.BytesIO(png.getvalue()))
    return archive.getvalue()


def opened(tar: tarfile.TarFile, name: str) -> Image.Image:
    """An image of an archive."""
    member = tar.extractfile(name)
    assert member is not None
    return Image.open(io.BytesIO(member.read()))


class Cells(Dataset[Sample]):
    """Random cut-outs of images, as 3 x side x side, and of their masks, as 1 x side x side."""

    def __init__(self, files: SampleFiles | MinIOCache) -> None:
        self._files = files

    def __getitem__(self, index: int) -> Sample:
        with tarfile.open(fileobj=io.BytesIO(self._files[index])) as tar:
            image, mask = opened(tar, "image.png"), opened(tar, "mask.png")
        turn, scale, flip, blur, right, down, contrast = torch.rand(7).tolist()
        cos, sin = (part(2 * math.pi * turn) * (0.7 + 0.8 * scale) for part in (math.cos, math.sin))
        flipped = math.copysign(1, flip - 0.5)
        left, top = (0.25 + right / 2) * image.width, (0.25 + down / 2) * image.height
        half = _CUT / 2
        row_x = flipped * cos, -sin, left - half * (flipped * cos - sin)
        row_y = flipped * sin, cos, top - half * (flipped * sin + cos)
        size, affine = (_CUT, _CUT), Image.Transform.AFFINE
        if blur < 0.3:
            image = image.filter(ImageFilter.GaussianBlur(4 * blur))
        image = image.transform(size, affine, row_x + row_y, Image.Resampling.BILINEAR)
        mask = mask.transform(size, affine, row_x + row_y, Image.Resampling.NEAREST)
        colours = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        colours = (colours - colours.mean()) * (1 + contrast) + 0.1 * torch.randn(3, 1, 1)
        return colours, torch.from_numpy(np.array(mask)).unsqueeze(0).float() / 255


def network() -> nn.Module:
    """Convolutions to a fourth of the resolution, and back."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 1),
        nn.PixelShuffle(4),
    )


def main() -> None:
    settings = parse(__doc__)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    paths = [made(settings.files / f"{n:04d}.tar", functools.partial(content, n)) for n in range(_FILES)]
    files = SampleFiles(paths, settings)
    dataset = prepared(Cells(behind_cache(files, settings)), files, settings)
    loader = DataLoader(dataset, batch_size=_BATCH, **loader_options(dataset, files, settings))
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for images, masks in batches(loader, files, settings):
        optimizer.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(model(images), masks)
        loss.backward()
        device(loss, settings)
        optimizer.step()


if __name__ == "__main__":
    main()
