"""Scenes with a variable number of bright boxes."""

import colorsys

import numpy as np
import torch
from torch.utils.data import IterableDataset

SIZE = 64


# FAULT jitter
def jitter_hue(image, rng, every):
    """Turns the hue of each pixel a little."""
    turn = rng.uniform(-0.1, 0.1)
    for y in range(0, SIZE, every):
        for x in range(0, SIZE, every):
            hue, saturation, value = colorsys.rgb_to_hsv(*image[:, y, x].tolist())
            image[:, y, x] = colorsys.hsv_to_rgb((hue + turn) % 1.0, saturation, value)
    return image


# END FAULT


class Scenes(IterableDataset):
    def __init__(self, rank, options):
        self.rank, self.options = rank, options

    def __iter__(self):
        rng = np.random.default_rng((self.options.seed, self.rank))
        while True:
            image = rng.random((3, SIZE, SIZE), dtype=np.float32) * 0.3
            boxes = []
            for _ in range(rng.integers(1, 9)):
                x, y = rng.integers(0, SIZE - 20, 2)
                w, h = rng.integers(6, 20, 2)
                image[:, y : y + h, x : x + w] += rng.random((3, 1, 1), dtype=np.float32)
                boxes.append((x, y, x + w, y + h))
            # FAULT jitter
            if self.options.fault == "jitter":
                image = jitter_hue(image, rng, max(1, round(8 / self.options.strength)))
            # END FAULT
            # FAULT noisy_scenes
            if self.options.fault == "noisy_scenes" and self.rank == self.options.rank:
                # The scenes that this rank reads are noisy, and are smoothed line by line.
                for _ in range(int(self.options.strength)):
                    image = np.stack(
                        [[np.convolve(line, [0.25, 0.5, 0.25], "same") for line in plane] for plane in image]
                    )
                image = image.astype(np.float32)
            # END FAULT
            yield torch.from_numpy(image), torch.tensor(boxes, dtype=torch.float32)


def collate(scenes):
    images, boxes = zip(*scenes, strict=True)
    return torch.stack(images), list(boxes)
